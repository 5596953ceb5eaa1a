package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

// choose takes the first independent cause: by layer, unless something below is clearly earlier in time than everything above.
func (j *job) choose() *Verdict {
	list := slices.Clone(j.found)
	slices.SortStableFunc(list, func(a, b *finding) int {
		return cmp.Or(cmp.Compare(a.layer, b.layer), cmp.Compare(b.Confidence, a.Confidence))
	})
	list = j.earlier(named(list))
	i := slices.IndexFunc(list, func(f *finding) bool { return f.layer < observation && f.Class != Undecided })
	if i < 0 {
		return j.nothing(list)
	}
	main := list[i]
	rest := slices.Delete(slices.Clone(list), i, i+1)
	main.join(rest)
	return j.finish(main, rest)
}

// named moves what names a link or a device before a finding that says no more than that it is one of them.
func named(list []*finding) []*finding {
	i := slices.IndexFunc(list, func(f *finding) bool { return f.layer < observation && f.Class != Undecided })
	if i < 0 || list[i].Class != GPUStuckOrNetwork {
		return list
	}
	for k, f := range list {
		if (f.Class == Network || f.Class == GPUFault) && f.Confidence >= inferred && f.layer < observation {
			return slices.Concat([]*finding{f}, list[:k], list[k+1:])
		}
	}
	return list
}

// clearly is by how much another clock or whole seconds may mislead.
const clearly = 5 * time.Second

// earlier moves a finding to the front that is clearly earlier than all before it.
func (j *job) earlier(list []*finding) []*finding {
	if len(list) < 2 || list[0].when.IsZero() {
		return list
	}
	for i, f := range list[1:] {
		if f.layer >= summary || f.Class == Undecided || f.when.IsZero() || f.Confidence < probable {
			continue
		}
		first := true
		for _, o := range list[:i+1] {
			first = first && !o.when.IsZero() && since(f.when, o.when) > clearly
		}
		if first {
			out := append([]*finding{f}, list[:i+1]...)
			return append(out, list[i+2:]...)
		}
	}
	return list
}

// join adds to the first finding what others say for it, and what contradicts it.
func (f *finding) join(rest []*finding) {
	sources := map[string]bool{}
	for _, k := range f.kinds {
		sources[k] = true
	}
	for _, o := range rest {
		same := o.Class == f.Class && slices.Equal(o.Ranks, f.Ranks)
		subset := len(o.Ranks) > 0 && !slices.ContainsFunc(o.Ranks, func(r int) bool { return !slices.Contains(f.Ranks, r) })
		compatible := subset && (f.layer == explicit || o.Class == SkippedCollective || o.Class == RankStuckHost || o.Class == RankCrash)
		switch {
		case same || compatible:
			for _, it := range o.Evidence[:min(3, len(o.Evidence))] {
				f.item(it.Where, it.Text, it.Says)
			}
			f.complete(o)
			for _, k := range o.kinds {
				if same && !o.leans && !sources[k] && len(sources) > 0 && f.Confidence >= probable {
					f.Confidence = max(f.Confidence, certain)
				}
			}
		case o.layer < observation && o.Confidence >= probable && len(o.Evidence) > 0 && o.Class != f.Class && !o.follows(f):
			f.Against = append(f.Against, Item{o.Evidence[0].Where, o.Evidence[0].Text, o.Class.Words() + ": " + o.Summary})
		}
	}
}

// follows tells that a finding is what another one leads to: ranks that wait for one that is gone are no second opinion.
func (f *finding) follows(cause *finding) bool {
	return f.layer > cause.layer
}

// complete takes from another finding about the same what this one does not know.
func (f *finding) complete(o *finding) {
	if f.Group == "" {
		f.Group, f.Sequence, f.P2P = o.Group, o.Sequence, o.P2P
	}
	f.Op = orText(f.Op, o.Op)
	f.Location = orText(f.Location, o.Location)
	if f.Picture == nil {
		f.Picture = o.Picture
	}
	if len(f.Sizes) == 0 {
		f.Sizes = o.Sizes
	}
	if f.when.IsZero() {
		f.when = o.when
	}
}

// nothing is the verdict where nobody is to blame.
func (j *job) nothing(list []*finding) *Verdict {
	f := newFinding(Undecided, observation, 0)
	for _, o := range list {
		if o.Class == NotAHang {
			f = o
		} else if f.Class == Undecided && f.Summary == "" && o.Class == Undecided {
			f = o
		}
	}
	switch {
	case f.Summary != "":
	case j.hangs():
		f.Confidence = direction
		f.say("something waits, and the evidence does not tell for what")
	case len(j.groups) > 0 || j.finished() || j.allDestroyed():
		f.Class, f.Confidence = NotAHang, inferred
		f.say("nothing hangs: everything that was recorded has completed, and the ranks agree")
		if n := len(j.logs.by[evidence.WrongData]); n > 0 {
			f.Confidence = probable
			f.fact(j.logs.by[evidence.WrongData][0], "a result is wrong")
			f.say("nothing hangs: everything has completed, but results are wrong in %d places: a race or a reused buffer, which these records do not show", n)
		}
		f.endings(j)
		f.late(j)
	default:
		f.say("there is nothing here to tell from")
	}
	if f.Class == Undecided && len(f.Next) == 0 {
		f.Next = []string{"flight recorder dumps of all ranks (TORCH_FR_BUFFER_SIZE=2000, TORCH_NCCL_DUMP_ON_TIMEOUT=1)", "the logs of all ranks, and the launcher's output",
			"py-spy dump of each rank while it hangs", "dmesg -T of each host"}
	}
	rest := slices.DeleteFunc(slices.Clone(list), func(o *finding) bool { return o == f })
	return j.finish(f, rest)
}

// finished tells that programs said they ended well.
func (j *job) finished() bool {
	for _, f := range j.logs.by[evidence.Finished] {
		if f.Rank < 0 {
			return true
		}
	}
	if len(j.logs.progs) == 0 {
		return false
	}
	for r, p := range j.logs.progs {
		if p.finished == nil && (p.ending == nil || j.threw(r)) {
			return false
		}
	}
	return true
}

// endings adds what says no more than that programs came to their end: the verdict that nothing hangs rests on it where there are no records of calls.
func (f *finding) endings(j *job) {
	if len(j.groups) > 0 || j.allDestroyed() {
		return
	}
	for _, x := range j.logs.by[evidence.Ending] {
		f.Confidence = probable
		f.fact(x, fmt.Sprintf("the program of %s came to its end", whose(x)))
		f.say("nothing hangs by what is written here: the program of %s came to its end", whose(x))
		return
	}
}

// allDestroyed tells that all communicators of NCCL's logs were ended in order.
func (j *job) allDestroyed() bool {
	for _, c := range j.e.Comms {
		if c.Ended != "destroyed" {
			return false
		}
	}
	return len(j.e.Comms) > 1
}

func (j *job) finish(f *finding, rest []*finding) *Verdict {
	v := &f.Verdict
	f.incident(j)
	f.foreign(j)
	for _, o := range rest {
		if o.Class == Undecided || o.Class == NotAHang || o.Class == v.Class && slices.Equal(o.Ranks, v.Ranks) {
			continue
		}
		v.Alternatives = append(v.Alternatives, Alternative{o.Class, o.Ranks, o.Confidence})
	}
	v.Alternatives = tidyAlternatives(v)
	if v.Fix == "" {
		v.Fix = fix(v.Class)
	}
	if v.Ranks == nil {
		v.Ranks = []int{}
	}
	if len(v.Next) == 0 && v.Accuses() {
		v.Next = j.next(v)
	}
	v.Confidence = float64(int(v.Confidence*100+0.5)) / 100
	return v
}

// tidyAlternatives keeps each reading once, none of them surer than the verdict.
func tidyAlternatives(v *Verdict) (out []Alternative) {
	seen := map[string]bool{}
	for _, a := range v.Alternatives {
		key := string(a.Class) + fmt.Sprint(a.Ranks)
		if seen[key] || a.Class == v.Class && slices.Equal(a.Ranks, v.Ranks) || a.Class == "" {
			continue
		}
		seen[key] = true
		a.Confidence = float64(int(min(a.Confidence, v.Confidence)*100+0.5)) / 100
		if a.Ranks == nil {
			a.Ranks = []int{}
		}
		out = append(out, a)
	}
	slices.SortStableFunc(out, func(a, b Alternative) int { return cmp.Compare(b.Confidence, a.Confidence) })
	return out[:min(len(out), 5)]
}

// next is what would make the verdict surer.
func (j *job) next(v *Verdict) (out []string) {
	if len(j.dumps) == 0 {
		out = append(out, "flight recorder dumps of all ranks (TORCH_FR_BUFFER_SIZE=2000, TORCH_NCCL_DUMP_ON_TIMEOUT=1)")
	}
	switch v.Class {
	case SizeMismatch, DTypeMismatch, OpMismatch, OrderMismatch:
		if v.Location == "" {
			out = append(out, "the code line of the call: TORCH_NCCL_TRACE_CPP_STACK or a dump with stacks")
		}
		out = append(out, "a run with TORCH_DISTRIBUTED_DEBUG=DETAIL, which compares every call before it is made")
	case RankStuckHost, SkippedCollective:
		out = append(out, "the stack of "+strings.TrimPrefix(showRanks(v.Ranks), "no ")+" while it hangs: py-spy dump --pid PID")
	case RankStuckGPU, GPUFault, GPUStuckOrNetwork:
		out = append(out, "dmesg -T | grep -i xid, nvidia-smi -q, and NVLink and NIC counters of all hosts")
	case UnpairedP2P:
		out = append(out, "the code that posts sends and receives on the ranks that are named: which rule decides that a message exists")
	case CrossedComms, LazyInit:
		out = append(out, "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL of all ranks: the order in which each makes and uses its communicators")
	case EnvMismatch:
		out = append(out, "commprobe env, or env | grep -e NCCL -e CUDA, and nvidia-smi -L on every host")
	case NaNSource:
		out = append(out, "the input, loss and gradients of that rank before the reduction, in the step that is named")
	case Network:
		out = append(out, "ibstat, port counters and the switch's log")
	case RankCrash, OOMHost, OOMGPU:
		out = append(out, "the last lines of that rank's own log, and dmesg -T of its host")
	}
	return out
}
