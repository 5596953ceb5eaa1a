package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

// hostFinding weighs what ranks do that never came to a call and wait for nothing: they left it out, they are in host code, or they are gone. Records of
// calls do not tell: what their programs, stacks and watchdogs say does.
func (j *job) hostFinding(o *waitOp, ranks []int) *finding {
	if o.init {
		return j.neverInit(o, ranks)
	}
	f := newFinding(SkippedCollective, unfinished, probable, ranks...)
	why := "left the call out, or still in the program before it"
	switch {
	case j.allOver(f):
		f.Confidence, why = inferred, "its program is over, so it left the call out"
		f.alternative(RankStuckHost, oneView, ranks...)
	case j.stackOutside(f):
		f.Class, f.Confidence, why = RankStuckHost, stated, "its own program is elsewhere, by its stack"
		f.alternative(SkippedCollective, oneView, ranks...)
	case j.goneOn(f, o):
		f.Confidence, why = inferred, "the program has gone on without it"
		f.alternative(RankStuckHost, oneView, ranks...)
	case j.gone(f):
		f.Class, f.Confidence, why = RankCrash, inferred, "its process has ended, since its peers lost their connections"
		f.alternative(RankStuckHost, oneView, ranks...)
	case j.creating(f):
		return j.inCreation(f, o)
	case j.inHost(f, o):
		f.Class, f.Confidence, why = RankStuckHost, inferred, "the program is still before it"
		f.alternative(SkippedCollective, byAbsence, ranks...)
	case o.g.source == "dump" && j.nothingActive(ranks):
		f.Class, f.Confidence, why = RankStuckHost, inferred, "in host code: no operation is active there"
		f.alternative(SkippedCollective, oneView, ranks...)
	default:
		f.alternative(RankStuckHost, byAbsence, ranks...)
		f.alternative(RankCrash, oneView, ranks...)
	}
	if f.Class != RankCrash && o.g.source == "watchdog" && j.lostFirst() != nil {
		f.Confidence = byAbsence // the alarm came at once, not at a deadline: whoever had not come yet may have been on its way
	}
	f.say("%s never came to sequence %d of group %s (%s), for which %s %s; all calls made there are complete: %s", showRanks(ranks), o.seq, o.g.title(), o.what(),
		showRanks(o.blocked()), verb(o.blocked(), "wait"), why)
	f.Next = append(f.Next, fmt.Sprintf("the stack of %s (py-spy dump --pid PID; gdb -p PID -batch -ex \"thread apply all bt\"), its log, its exit status", showRanks(ranks)))
	return f
}

// inCreation: ranks that have not come to a call are in the creation of a communicator meanwhile, and whoever waits for them has not come to that. Which of the two
// ought to be first, the call or the creation, is not said: where as many do the one as the other, all are named.
func (j *job) inCreation(f *finding, o *waitOp) *finding {
	f.Class, f.Confidence, f.leans = LazyInit, byAbsence, true
	if len(f.Ranks) == len(o.blocked()) {
		f.Ranks = union(f.Ranks, o.blocked())
	}
	f.alternative(CrossedComms, byAbsence, f.Ranks...)
	f.Next = append(f.Next, "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL of all ranks: who has come to the creation of which communicator")
	return f.say("%s never came to sequence %d of group %s (%s), for which %s %s: meanwhile in the creation of a communicator, which is a collective call of its own", showRanks(o.idle),
		o.seq, o.g.title(), o.what(), showRanks(o.blocked()), verb(o.blocked(), "wait"))
}

// stackOutside tells that the stacks of all these ranks are there, and are in no collective: that is where they are.
func (j *job) stackOutside(f *finding) bool {
	var at []standing
	for _, r := range f.Ranks {
		i := slices.IndexFunc(j.e.Stacks, func(s evidence.Stack) bool { return s.Rank == r && s.RankBy != "order" })
		if i < 0 {
			return false
		}
		t := mainThread(&j.e.Stacks[i])
		if t == nil || len(t.Frames) == 0 {
			return false
		}
		s := stand(r, &j.e.Stacks[i], t)
		if s.waits {
			return false
		}
		at = append(at, s)
	}
	for _, s := range at {
		f.item(s.stack.Where, fmt.Sprintf("%s (%s)", s.fn, s.at), fmt.Sprintf("rank %d is here, in no collective", s.rank))
		f.Location = orText(f.Location, s.at)
	}
	return len(at) > 0
}

// neverInit: ranks that do not come to the creation of a communicator.
func (j *job) neverInit(o *waitOp, ranks []int) *finding {
	f := newFinding(LazyInit, unfinished, inferred, ranks...)
	for _, r := range ranks {
		if p := j.logs.progs[r]; p != nil && p.phase != nil {
			f.fact(p.phase, fmt.Sprintf("rank %d is in its own program: %s", r, p.phase.Phase))
		}
	}
	f.alternative(RankStuckHost, byAbsence, ranks...)
	return f.say("%s %s in the creation of communicator %s, and %s never came to it", showRanks(o.blocked()), verb(o.blocked(), "wait"), o.g.title(), showRanks(ranks))
}

// nothingActive tells that a dump of active operations has none of these ranks.
func (j *job) nothingActive(ranks []int) bool {
	for _, r := range ranks {
		if d := j.by[r]; d == nil || d.Data == nil || len(d.Data.Entries) > 0 {
			return false
		}
	}
	return true
}

// goneOn tells that the ranks' programs have ended well, entered a later step than those that wait, or wait in something else that is not NCCL's.
func (j *job) goneOn(f *finding, o *waitOp) bool {
	step := j.steps(o.blocked())
	found := 0
	for _, r := range f.Ranks {
		p := j.logs.progs[r]
		if p == nil {
			p = &program{done: -1}
		}
		at, open := p.open()
		over, other, comm := j.over(r), j.elsewhere(r), j.destroyed(r, o)
		switch {
		case over != nil:
			f.item(over.Where, over.Text, over.Says)
		case open && step >= 0 && at > step:
			f.fact(p.entered, fmt.Sprintf("rank %d is in step %d, the others in step %d", r, at, step))
		case comm != nil:
			f.item(evidence.Where{File: comm.Where.File, Line: comm.EndedLine}, fmt.Sprintf("communicator %s: destroyed", comm.Pointer), fmt.Sprintf("rank %d ended this communicator as it should", r))
		case other != nil:
			f.fact(other, fmt.Sprintf("rank %d was in a collective of the host side meanwhile", r))
		default:
			continue
		}
		found++
	}
	return found > 0 && found == len(f.Ranks)
}

// destroyed is a rank's communicator that it ended in order, before others had what they wait for.
func (j *job) destroyed(r int, o *waitOp) *evidence.Comm {
	if o.g.source != "calls" {
		return nil
	}
	m := o.g.by[r]
	for _, c := range j.e.Comms {
		if m != nil && c.Where == m.where && c.Ended == "destroyed" {
			return c
		}
	}
	return nil
}

// elsewhere is a rank's word that it waited in a Gloo collective.
func (j *job) elsewhere(r int) *evidence.Fact {
	for _, x := range j.logs.by[evidence.Gloo] {
		if x.Rank == r {
			return x
		}
	}
	return nil
}

// gone tells that the ranks' own logs stop without a word while others lost a peer.
func (j *job) gone(f *finding) bool {
	lost := j.lostFirst()
	if lost == nil {
		return false
	}
	for _, r := range f.Ranks {
		if p := j.logs.progs[r]; p == nil || p.last == nil || len(p.trouble) > 0 || p.finished != nil {
			return false
		}
	}
	for _, r := range f.Ranks {
		f.fact(j.logs.progs[r].last, fmt.Sprintf("the last line of rank %d", r))
	}
	f.fact(lost, fmt.Sprintf("%s lost a peer", whose(lost)))
	return true
}

// steps is the step that most of the ranks are in, -1 if their programs do not say.
func (j *job) steps(ranks []int) int64 {
	best, most := int64(-1), 0
	seen := map[int64]int{}
	for _, r := range ranks {
		if at, ok := j.logs.progs[r].open(); ok {
			if seen[at]++; seen[at] > most {
				best, most = at, seen[at]
			}
		}
	}
	return best
}

// inHost tells that the ranks' programs say what they do instead, are in the same step as those that wait, or that their watchdogs could not get through.
func (j *job) inHost(f *finding, o *waitOp) bool {
	step := j.steps(o.blocked())
	found := 0
	for _, r := range f.Ranks {
		p := j.logs.progs[r]
		if p == nil {
			continue
		}
		at, open := p.open()
		switch {
		case p.phase != nil && !strings.Contains(p.phase.Phase, "waiting for") || p.phase != nil && strings.Contains(p.phase.Phase, "waiting for the next"):
			f.fact(p.phase, fmt.Sprintf("rank %d is in its own program: %s", r, p.phase.Phase))
			f.Location = orText(f.Location, p.phase.Phase)
		case open && step >= 0 && at <= step:
			f.fact(p.entered, fmt.Sprintf("rank %d has entered step %d like the others and has not come to this call", r, at))
		case j.beatless(r) != nil:
			f.fact(j.beatless(r), fmt.Sprintf("rank %d's own watchdog did not come round", r))
		default:
			continue
		}
		found++
	}
	return found > 0 && found == len(f.Ranks)
}

func (j *job) beatless(r int) *evidence.Fact {
	for _, k := range []evidence.FactKind{evidence.HostStuck, evidence.Stopped} {
		i := slices.IndexFunc(j.logs.by[k], func(x *evidence.Fact) bool { return x.Rank == r })
		if i >= 0 {
			return j.logs.by[k][i]
		}
	}
	return nil
}
