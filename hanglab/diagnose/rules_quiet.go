package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

// quiet finds ranks whose log stops without a word while others complain: the process is gone, or so stuck that its watchdog cannot speak. It is only told
// where most ranks' logs are there.
func (j *job) quiet() (out []*finding) {
	var complain, silent []int
	for _, r := range j.logs.ranks {
		p := j.logs.progs[r]
		_, open := p.open()
		switch {
		case len(p.trouble) > 0:
			complain = append(complain, r)
		case p.finished == nil && open && p.last != nil:
			silent = append(silent, r)
		}
	}
	if len(silent) > 0 && len(silent) < len(complain) {
		out = append(out, j.silentRanks(silent, complain, j.lostFirst() != nil))
	}
	out = append(out, j.namedSilent()...)
	out = append(out, j.ownWord()...)
	return append(out, j.endedEarly()...)
}

// ownWord is what a rank says of itself when another asks for dumps: that it has completed all that it made, and waits for nothing. Of one log this
// is the strongest line there can be: it is the rank that the others wait for.
func (j *job) ownWord() (out []*finding) {
	for _, x := range j.logs.by[evidence.DumpSignal] {
		p := j.logs.progs[x.Rank]
		if p == nil || x.OtherRank == x.Rank || j.waitsSelf(x.Rank) {
			continue
		}
		idle := x.LastEnqueued >= 0 && x.LastEnqueued == x.LastCompleted || x.Detail == "waits for nothing" || x.Detail == "never joined" || x.Detail == "has ended it"
		switch {
		case x.Detail == "never began its creation":
			f := newFinding(LazyInit, unfinished, probable, x.Rank)
			f.fact(x, fmt.Sprintf("rank %d has not begun to make the communicator that others wait for", x.Rank))
			f.Location = x.Phase
			f.alternative(RankStuckHost, byAbsence, x.Rank)
			out = append(out, f.say("others wait in the creation of a communicator to which rank %d never came%s", x.Rank, inPhase(x)))
		case idle && (p.finished == nil || p.finished.Kind == evidence.Marker) && j.over(x.Rank) != nil:
			f := newFinding(SkippedCollective, unfinished, byAbsence, x.Rank)
			f.fact(x, fmt.Sprintf("others wait, and rank %d has nothing open", x.Rank))
			f.alternative(RankStuckHost, oneView, x.Rank)
			out = append(out, f.say("rank %d's program is over while others wait in a call: it made a call less than they", x.Rank))
		case idle && x.Phase != "" && !strings.Contains(x.Phase, "ending"):
			f := newFinding(RankStuckHost, unfinished, probable, x.Rank)
			f.Group, f.Sequence, f.Location = x.Group, x.Seq, x.Phase
			f.fact(x, fmt.Sprintf("rank %d has completed all that it made, and is in its own program", x.Rank))
			f.alternative(SkippedCollective, byAbsence, x.Rank)
			out = append(out, f.say("others wait for rank %d, which has completed all that it made and is in its own program%s", x.Rank, inPhase(x)))
		case idle && x.LastEnqueued >= 0:
			f := newFinding(SkippedCollective, unfinished, byAbsence, x.Rank)
			f.Group = x.Group
			f.fact(x, fmt.Sprintf("rank %d has completed all that it made: last enqueued == last completed == %d", x.Rank, x.LastEnqueued))
			f.alternative(RankStuckHost, byAbsence, x.Rank)
			out = append(out, f.say("rank %d heard of another's time-out and has completed all that it made itself: it never joined what the others wait for", x.Rank))
		}
	}
	if len(out) > 4 {
		return nil // as many innocents cannot be told from one culprit by their own words
	}
	return out
}

func inPhase(x *evidence.Fact) string {
	if x.Phase == "" {
		return ""
	}
	return " (" + x.Phase + ")"
}

// waitsSelf tells that a rank has an operation of its own that does not finish.
func (j *job) waitsSelf(rank int) bool {
	for _, x := range j.logs.progs[rank].trouble {
		switch {
		case x.Kind == evidence.Timeout, x.LastEnqueued > x.LastCompleted, x.Kind == evidence.RemoteError:
			return true
		case x.Op == "init" && x.Detail != "never began its creation":
			return true
		}
	}
	return false
}

// lostFirst is the first word of a lost connection, if the trouble began with it: once watchdogs have fired, connections are closed by those who give up.
func (j *job) lostFirst() *evidence.Fact {
	var lost *evidence.Fact
	for _, x := range slices.Concat(j.logs.by[evidence.RemoteError], j.logs.by[evidence.PeerClosed]) {
		if lost == nil || !x.Time.IsZero() && !lost.Time.IsZero() && since(x.Time, lost.Time) > 0 {
			lost = x
		}
	}
	for _, x := range j.logs.by[evidence.Timeout] {
		if lost != nil && !after(x, lost) && x.Op != "init" {
			return nil
		}
	}
	return lost
}

func (j *job) silentRanks(silent, complain []int, lost bool) *finding {
	class, other, why := RankStuckHost, RankCrash, "and it left nothing: it is stopped, or stuck so that its watchdog cannot speak"
	if lost {
		class, other, why = RankCrash, RankStuckHost, "and the others lost their connection to a peer: its process ended without a word"
	}
	f := newFinding(class, unfinished, probable, silent...)
	if lost {
		f.Confidence = inferred
	}
	for _, r := range silent[:min(3, len(silent))] {
		f.fact(j.logs.progs[r].last, fmt.Sprintf("the last line of rank %d", r))
	}
	for _, r := range complain[:min(2, len(complain))] {
		x := j.logs.progs[r].trouble[0]
		f.fact(x, fmt.Sprintf("rank %d complains", r))
		if f.Group == "" && x.Seq >= 0 {
			f.Group, f.Sequence, f.Op = x.Group, x.Seq, x.Op
		}
	}
	f.alternative(other, byAbsence, silent...)
	return f.say("%s complain, %s says nothing, %s", showRanks(complain), showRanks(silent), why)
}

// namedSilent: a watchdog names the ranks that wrote no dump, or did not come.
func (j *job) namedSilent() []*finding {
	var ranks []int
	var list []*evidence.Fact
	for _, x := range j.logs.by[evidence.Silent] {
		ranks = union(ranks, x.Ranks)
		list = append(list, x)
	}
	if len(ranks) == 0 || len(ranks) > 3 {
		return nil
	}
	f := newFinding(RankStuckHost, unfinished, byAbsence, ranks...)
	if len(j.logs.by[evidence.RemoteError])+len(j.logs.by[evidence.PeerClosed]) > 0 {
		f.Class = RankCrash
	}
	for _, x := range list[:min(3, len(list))] {
		f.fact(x, fmt.Sprintf("%s did not answer", showRanks(x.Ranks)))
	}
	f.alternative(RankCrash, oneView, ranks...)
	return []*finding{f.say("%s did not write a dump when asked: stopped, gone, or out of reach", showRanks(ranks))}
}

// endedEarly: a rank's program ended as it should while others are in the middle of a call: they have a call more than it had.
func (j *job) endedEarly() []*finding {
	var ended, waiting []int
	for _, r := range j.logs.ranks {
		p := j.logs.progs[r]
		_, open := p.open()
		switch {
		case j.over(r) != nil:
			ended = append(ended, r)
		case len(p.trouble) > 0, open && (p.phase != nil && strings.Contains(p.phase.Phase, "waiting for")):
			waiting = append(waiting, r)
		}
	}
	if len(ended) == 0 || len(waiting) == 0 {
		return nil
	}
	odd := ended
	if len(waiting) < len(ended) {
		odd = waiting
	}
	if len(waiting) == len(ended) && len(ended) > 1 {
		odd = union(ended, waiting)
	}
	f := newFinding(SkippedCollective, unfinished, inferred, odd...)
	for _, r := range ended[:min(3, len(ended))] {
		it := j.over(r)
		f.item(it.Where, it.Text, it.Says)
	}
	for _, r := range waiting[:min(3, len(waiting))] {
		p := j.logs.progs[r]
		x := p.entered
		if len(p.trouble) > 0 {
			x = p.trouble[0]
		}
		f.fact(x, fmt.Sprintf("rank %d waits in a call", r))
		if x.Seq >= 0 && x.Kind == evidence.Timeout {
			f.Group, f.Sequence, f.Op = x.Group, x.Seq, x.Op
		}
	}
	f.alternative(OpMismatch, oneView, odd...)
	return []*finding{f.say("the program of %s is over while %s %s in a call: %s made a call less, or the others one more", showRanks(ended), showRanks(waiting),
		verb(waiting, "wait"), showRanks(ended))}
}

// oldMessage: results of receives are wrong on one rank only, and nothing hangs: it got messages that were meant for other receives.
func (j *job) oldMessage() []*finding {
	var list []*evidence.Fact
	for _, x := range j.logs.by[evidence.WrongData] {
		if fieldOf(x.Detail, "call") != "recv" {
			return nil
		}
		list = append(list, x)
	}
	ranks := ranksOf(list)
	if len(ranks) != 1 || j.hangs() {
		return nil
	}
	f := newFinding(UnpairedP2P, unfinished, oneView, ranks...)
	f.Op = "recv"
	for _, x := range list[:min(3, len(list))] {
		f.fact(x, fmt.Sprintf("rank %d received something else than it should", x.Rank))
	}
	f.Next = append(f.Next, "flight recorder dumps of both ends, which count sends and receives")
	return []*finding{f.say("rank %d receives wrong data and nothing hangs: an earlier message had no receive, and each receive gets the one before", ranks[0])}
}
