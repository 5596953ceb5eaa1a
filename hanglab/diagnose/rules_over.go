package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

// endingFrames are functions in which a program is at its end: it takes its process groups down, or its interpreter or the C library runs what is left to do.
var endingFrames = []string{"destroy_process_group", "_destroy_process_group", "Py_FinalizeEx", "Py_Finalize", "finalize_modules", "wait_for_thread_shutdown", "_run_exitfuncs",
	"__run_exit_handlers", "__cxa_finalize"}

// atEnd is the frame that tells that a thread is in its program's end, "" if none does.
func atEnd(t *evidence.Thread) string {
	for _, fr := range t.Frames {
		name := fr.Name[strings.LastIndexByte(fr.Name, '.')+1:]
		if slices.Contains(endingFrames, name) || name == "_shutdown" && strings.HasSuffix(fr.File, "threading.py") {
			return fr.Name
		}
	}
	return ""
}

// over is the word that a rank's program has come to its end, as it should or on its way there; nil if there is none. A rank that was thrown out by an exception, or
// that waits itself, comes to its end as well, and is none of these.
func (j *job) over(r int) *Item {
	if j.threw(r) {
		return nil
	}
	p := j.logs.progs[r]
	switch {
	case p != nil && p.finished != nil:
		return &Item{p.finished.Where, p.finished.Text, fmt.Sprintf("rank %d's program ended as it should, while others wait", r)}
	case p != nil && j.waitsSelf(r):
		return nil
	case p != nil && p.phase != nil && p.phase.Phase == "ending":
		return &Item{p.phase.Where, p.phase.Text, fmt.Sprintf("rank %d's program is over and takes down what it has made, while others wait", r)}
	case p != nil && p.ending != nil:
		return &Item{p.ending.Where, p.ending.Text, fmt.Sprintf("rank %d's program is over, while others wait", r)}
	}
	for i := range j.e.Stacks {
		s := &j.e.Stacks[i]
		if s.Rank != r || s.RankBy == "order" {
			continue
		}
		if t := mainThread(s); t != nil && atEnd(t) != "" {
			return &Item{s.Where, atEnd(t), fmt.Sprintf("rank %d's program is over, by its stack, while others wait", r)}
		}
	}
	return nil
}

// threw tells that an exception is known that ended a rank's program, or may have.
func (j *job) threw(r int) bool {
	var file string
	if p := j.logs.progs[r]; p != nil && p.last != nil {
		file = p.last.Where.File
	}
	return slices.ContainsFunc(j.logs.by[evidence.Traceback], func(x *evidence.Fact) bool { return x.Rank == r || x.Rank < 0 && x.Where.File == file })
}

// allOver tells that all ranks of a finding have come to their program's end, and takes the words for it.
func (j *job) allOver(f *finding) bool {
	var items []Item
	for _, r := range f.Ranks {
		it := j.over(r)
		if it == nil {
			return false
		}
		items = append(items, *it)
	}
	for _, it := range items[:min(3, len(items))] {
		f.item(it.Where, it.Text, it.Says)
	}
	return len(items) > 0
}

// endedComms changes what a rank says that it has no communicator of that name, where it is known to have made it: it has taken it down again.
func endedComms(facts []*evidence.Fact) {
	type comm struct {
		rank int
		name string
	}
	begun, done := map[string]bool{}, map[comm]bool{}
	for _, f := range facts {
		switch f.Kind {
		case evidence.InitBegun:
			begun[initKey(f)] = true
		case evidence.InitDone:
			done[comm{rankOf(f), initKey(f)}] = true
		}
	}
	all := func(r int) bool { // whichever it is
		for name := range begun {
			if !done[comm{r, name}] {
				return false
			}
		}
		return len(begun) > 0
	}
	for i, f := range facts {
		if f.Kind == evidence.DumpSignal && f.Detail == "never began its creation" && (done[comm{f.Rank, initKey(f)}] || all(f.Rank)) {
			x := *f
			x.Op, x.Detail = "", "has ended it"
			facts[i] = &x
		}
	}
}

// initKey is the communicator that a line about its creation means.
func initKey(f *evidence.Fact) string {
	if f.Group == "" && f.GroupDesc == "default_pg" {
		return "0"
	}
	return f.Group
}

// creating tells that all ranks of a finding are in the creation of a communicator, and takes the words for it.
func (j *job) creating(f *finding) bool {
	var at []*evidence.Fact
	for _, r := range f.Ranks {
		x := j.making(r)
		if x == nil {
			return false
		}
		at = append(at, x)
	}
	for _, x := range at[:min(3, len(at))] {
		f.fact(x, fmt.Sprintf("rank %d is in the creation of a communicator, which needs all its members", rankOf(x)))
	}
	return len(at) > 0
}

// making is a rank's word that it has begun to make a communicator and has not come out of it.
func (j *job) making(r int) *evidence.Fact {
	if p := j.logs.progs[r]; p != nil && p.phase != nil {
		if strings.HasPrefix(p.phase.Phase, "creating communicator") {
			return p.phase
		}
		return nil
	}
	var open *evidence.Fact
	for _, x := range j.logs.by[evidence.InitBegun] {
		made := func(d *evidence.Fact) bool { return rankOf(d) == r && initKey(d) == initKey(x) }
		if rankOf(x) == r && !slices.ContainsFunc(j.logs.by[evidence.InitDone], made) {
			open = x
		}
	}
	return open
}
