package diagnose

import (
	"fmt"
	"slices"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

// failures are the kinds of facts by which a job comes to its end: they tell which attempt of a job that is started again is the one to explain.
var failures = []evidence.FactKind{evidence.Timeout, evidence.DumpSignal, evidence.HostStuck, evidence.Fingerprint, evidence.Desync, evidence.Ended, evidence.Launcher,
	evidence.Traceback, evidence.CUDAOOM, evidence.CUDAError, evidence.PeerClosed, evidence.RemoteError, evidence.Finished}

// lastAttempt drops what belongs to earlier attempts of a job that its launcher has started again, if something has come of the last one. What has no place
// in time before the restart stays.
func lastAttempt(facts []*evidence.Fact) (now, earlier []*evidence.Fact) {
	var restart *evidence.Fact
	in := map[string]*evidence.Fact{} // the last one of each file
	for _, f := range facts {
		if f.Kind != evidence.Restarted {
			continue
		}
		in[f.Where.File] = f
		if restart == nil || after(f, restart) {
			restart = f
		}
	}
	if restart == nil {
		return facts, nil
	}
	again := false
	for _, f := range facts {
		last := restart
		if own := in[f.Where.File]; own != nil {
			last = own
		}
		if after(last, f) {
			earlier = append(earlier, f)
			continue
		}
		now = append(now, f)
		again = again || slices.Contains(failures, f.Kind)
	}
	if !again {
		return facts, nil
	}
	return now, earlier
}

// few is how many steps of the whole job after a failure of one rank may be lines that were still on their way.
const few = 3

// wentOn is a later line by which the program that failed, or the whole job, went on or came to its end as it should: then the failure was caught. own tells that
// it is the same rank's word.
func (l *logs) wentOn(f *evidence.Fact) (x *evidence.Fact, own bool) {
	if l.failedExit(f.Rank) {
		return nil, false
	}
	if f.Rank >= 0 {
		if p := l.progs[f.Rank]; p != nil && p.finished != nil && after(p.finished, f) {
			return p.finished, true
		}
		for _, x := range slices.Backward(l.by[evidence.Marker]) {
			if x.Rank == f.Rank && x.Op == "done" && after(x, f) {
				return x, true
			}
		}
	}
	for _, x := range l.by[evidence.Finished] {
		if x.Rank < 0 && after(x, f) {
			return x, false
		}
	}
	first := map[int]*evidence.Fact{}
	for _, x := range l.by[evidence.Progress] {
		same := f.Rank >= 0 && x.Rank == f.Rank
		switch o := first[x.Rank]; {
		case o == nil || o.Where.File != x.Where.File:
			first[x.Rank] = x
		case !after(x, f) || !after(f, o):
		case same && x.Seq > o.Seq, stepsAfter(o, f, x) >= few:
			return x, same || f.Rank < 0 && x.Rank < 0
		}
	}
	return nil, false
}

// failedExit tells that a rank's process is known to have ended by a status or signal of its own.
func (l *logs) failedExit(rank int) bool {
	return slices.ContainsFunc(slices.Concat(l.by[evidence.Ended], l.by[evidence.Launcher]), func(e *evidence.Fact) bool {
		return rank >= 0 && e.Rank == rank && (e.Code > 0 || e.Signal > 0)
	})
}

// stepsAfter is about how many steps of the program lie between a line and the last step, of which only the first and the last are known: steps are taken to be
// spread evenly over time, or over the lines of the file.
func stepsAfter(first, f, last *evidence.Fact) int64 {
	var at, all float64
	switch {
	case !first.Time.IsZero() && !f.Time.IsZero() && !last.Time.IsZero():
		at, all = since(f.Time, last.Time).Seconds(), since(first.Time, last.Time).Seconds()
	case first.Where.File == f.Where.File && last.Where.File == f.Where.File:
		at, all = float64(last.Where.Line-f.Where.Line), float64(last.Where.Line-first.Where.Line)
	}
	if at <= 0 || all <= 0 || last.Seq <= first.Seq {
		return 0
	}
	return int64(float64(last.Seq-first.Seq) * at / all)
}

// caught takes those failures out of a list after which the program went on, and keeps them to be told. Where only others are known to have gone on and
// something hangs in the end, it stays, with less weight.
func (j *job) caught(list []*evidence.Fact) (left []*evidence.Fact, doubt *evidence.Fact) {
	for _, f := range list {
		x, own := j.logs.wentOn(f)
		switch {
		case x == nil:
			left = append(left, f)
		case own || !j.hangs():
			j.survived = append(j.survived, survival{f, x})
		default:
			left, doubt = append(left, f), x
		}
	}
	return left, doubt
}

// survival is a failure and the line that shows that it was none.
type survival struct{ what, later *evidence.Fact }

// doubted lowers a finding's weight where the job went on after what it rests on.
func (f *finding) doubted(x *evidence.Fact) {
	if x != nil {
		f.Confidence = min(f.Confidence, byAbsence)
		f.against(x.Where, x.Text, "the job went on for some steps after it")
	}
}

// survivals: failures that were caught are no cause, and that the program went on is word of a healthy job.
func (j *job) survivals() []*finding {
	if len(j.survived) == 0 || j.hangs() {
		return nil
	}
	f := newFinding(NotAHang, observation, probable)
	for _, s := range j.survived[:min(3, len(j.survived))] {
		f.fact(s.what, fmt.Sprintf("%s met with an error here", whose(s.what)))
		f.fact(s.later, "and the program went on, or ended as it should")
	}
	return []*finding{f.say("an error was caught (%s) and the program went on after it: nothing hangs by what is written here", j.survived[0].what.Text)}
}

// foreign tells of dumps that are of another job.
func (f *finding) foreign(j *job) {
	if len(j.others) == 0 {
		return
	}
	var ranks []int
	for _, d := range j.others {
		ranks = append(ranks, d.Rank)
	}
	f.item(j.others[0].Where, fmt.Sprintf("a job of %d ranks", len(worldOf(j.others[0]))), fmt.Sprintf("the dumps of %s are of another job, of another size: left out", showRanks(ranks)))
}

// incident tells of what ended an earlier attempt of the job.
func (f *finding) incident(j *job) {
	for _, x := range j.logs.earlier {
		if !x.Consequence && slices.Contains([]evidence.FactKind{evidence.Traceback, evidence.CUDAOOM, evidence.CUDAError, evidence.OOMKill, evidence.Timeout}, x.Kind) {
			f.fact(x, "of an earlier attempt, before the job was started again: an incident of its own")
			return
		}
	}
}
