package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

// Limits of remarks.
const (
	fewInputs = 4 // from how many files of one kind on a gap in their ranks is a gap
	mostGaps  = 8 // of which more say that the ranks are no series
)

// notes are remarks about the evidence that are no verdict, but that its reader should know: who or what ended the job, that it was started again, whose
// files are missing, and files of two jobs together. ask is what to collect because of them.
func notes(e *evidence.Evidence) (remarks, ask []string) {
	for _, s := range []string{ended(e), again(e), twoJobs(e)} {
		if s != "" {
			remarks = append(remarks, s)
		}
	}
	missing, ask := missingInputs(ranked(e))
	return append(remarks, missing...), ask
}

func (v *Verdict) annotate(e *evidence.Evidence) *Verdict {
	remarks, ask := notes(e)
	v.Notes = remarks
	for _, s := range ask {
		if v.Class != NotAHang && !slices.Contains(v.Next, s) {
			v.Next = append([]string{s}, v.Next...)
		}
	}
	return v
}

// ended says that somebody or a limit ended the job.
func ended(e *evidence.Evidence) string {
	words := map[string]string{
		"cancelled": "somebody cancelled the job", "time limit": "the job came to its time limit", "preempted": "the scheduler took the job's place for another one",
		"node failure": "the scheduler lost a node and ended the job", "interrupt": "somebody interrupted the job (Ctrl-C)", "evicted": "the cluster evicted a pod of the job",
	}
	interrupted := 0
	var first *evidence.Fact
	for i := range e.Facts {
		f := &e.Facts[i]
		if f.Kind == evidence.Cancelled && f.Detail != "told to end" { // a launcher tells all to end when one has
			if f.Detail != "cancelled" || first == nil {
				first = f
			}
			if f.Detail != "cancelled" {
				break
			}
		}
		if f.Kind == evidence.Traceback && strings.HasPrefix(f.Op, "KeyboardInterrupt") {
			interrupted++
		}
	}
	switch {
	case first != nil:
		s := fmt.Sprintf("%s (%s)", cmp.Or(words[first.Detail], "the job was ended from outside: "+first.Detail), Item{Where: first.Where}.at())
		if !first.Time.IsZero() {
			s += first.Time.Format(" at 15:04:05")
		}
		return s + ": ends and lost connections after that follow from it"
	case interrupted > 0:
		return "somebody interrupted the program (Ctrl-C): its tracebacks show where each rank was then, and are no failures"
	}
	return ""
}

// again says that a launcher started all ranks once more.
func again(e *evidence.Evidence) string {
	n := 0
	var last *evidence.Fact
	for i := range e.Facts {
		if f := &e.Facts[i]; f.Kind == evidence.Restarted {
			n++
			last = f
		}
	}
	switch n {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("the launcher started all ranks again (%s): what stands before that is of an earlier attempt, which failed too", Item{Where: last.Where}.at())
	}
	return fmt.Sprintf("the launcher started all ranks again %d times, last at %s: what stands before that is of earlier attempts, which failed too", n, Item{Where: last.Where}.at())
}

// inputClass puts inputs together of which a rank has one.
func inputClass(in *evidence.Input) string {
	switch in.Kind {
	case "flight_pickle", "flight_json":
		return "dump"
	case "log":
		return "log"
	}
	return ""
}

// twoJobs says that files of the same ranks come from two folders.
func twoJobs(e *evidence.Evidence) string {
	type key struct {
		kind string
		rank int
	}
	folders := map[key][]string{}
	for i := range e.Inputs {
		in := &e.Inputs[i]
		if in.Rank < 0 || inputClass(in) == "" || in.Err != "" {
			continue
		}
		k := key{in.Kind, in.Rank}
		if dir := path.Dir(in.Name); !slices.Contains(folders[k], dir) {
			folders[k] = append(folders[k], dir)
		}
	}
	ranks, names, kind := []int{}, []string{}, ""
	for k, list := range folders {
		if len(list) < 2 {
			continue
		}
		ranks = append(ranks, k.rank)
		for _, f := range list {
			if !slices.Contains(names, f) {
				names = append(names, f)
			}
		}
		kind = inputClass(&evidence.Input{Kind: k.kind})
	}
	if len(ranks) < 2 {
		return ""
	}
	slices.Sort(names)
	return fmt.Sprintf("%s have a %s in each of %s: these are two jobs, or two moments of one, and a verdict can be of one only; name one folder at a time", showRanks(ranks), kind,
		shortList(lastParts(names)))
}

// lastParts are names of folders without what comes before them, where that tells them apart.
func lastParts(names []string) []string {
	out := make([]string, len(names))
	for i, n := range names {
		if out[i] = path.Base(n); slices.Contains(out[:i], out[i]) {
			return names
		}
	}
	return out
}

// ranked are the inputs, with the ranks of logs that only their lines tell.
func ranked(e *evidence.Evidence) []evidence.Input {
	said := map[string]int{}
	for i := range e.Facts {
		f := &e.Facts[i]
		if f.Rank < 0 {
			continue
		}
		if old, ok := said[f.Where.File]; ok && old != f.Rank {
			said[f.Where.File] = -1
			continue
		}
		said[f.Where.File] = f.Rank
	}
	out := slices.Clone(e.Inputs)
	for i := range out {
		if rank, ok := said[out[i].Name]; ok && out[i].Rank < 0 {
			out[i].Rank = rank
		}
	}
	return out
}

// missingInputs says whose file is missing from a series, and asks for it.
func missingInputs(inputs []evidence.Input) (remarks, ask []string) {
	have, unknown := map[string]map[int]bool{}, map[string]bool{}
	for i := range inputs {
		in := &inputs[i]
		class := inputClass(in)
		if class == "" {
			continue
		}
		if in.Rank < 0 { // may be that of whoever seems to be missing
			unknown[class] = true
			continue
		}
		if have[class] == nil {
			have[class] = map[int]bool{}
		}
		have[class][in.Rank] = true
	}
	for _, class := range slices.Sorted(maps.Keys(have)) {
		last := slices.Max(slices.Collect(maps.Keys(have[class])))
		n := len(have[class])
		if gaps := last + 1 - n; n < fewInputs || gaps < 1 || gaps > min(mostGaps, n/3) || unknown[class] {
			continue
		}
		var gone []int
		for r := range last {
			if !have[class][r] {
				gone = append(gone, r)
			}
		}
		remarks = append(remarks, fmt.Sprintf("there is no %s of %s, and %d of ranks 0-%d", class, showRanks(gone), n, last))
		ask = append(ask, fmt.Sprintf("the %s of %s: %s", class, showRanks(gone), map[bool]string{true: "the only one that is missing", false: "those that are missing"}[len(gone) == 1]))
	}
	return remarks, ask
}

// others are the alternatives with what the verdict leaves for them: readings that exclude each other cannot have more than one certainty together.
func (v *Verdict) others() []Alternative {
	out := slices.Clone(v.Alternatives)
	rest := max(0, 1-v.Confidence)
	for i := range out {
		out[i].Confidence = min(out[i].Confidence, float64(int(rest*100+0.5))/100)
	}
	return out
}
