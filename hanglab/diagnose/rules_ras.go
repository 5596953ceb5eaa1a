package diagnose

import (
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"

	"github.com/commprobe/commprobe/hanglab/evidence"
	"github.com/commprobe/commprobe/nccl/ras"
)

// rasCounts compares samples of NCCL's RAS. Counts that differ are normal in a running job, so one sample accuses nobody.
func (j *job) rasCounts() (out []*finding) {
	var reports []*ras.Report
	for i := range j.e.RAS {
		if r := j.e.RAS[i].Report; r != nil && len(r.Communicators) > 0 && !j.sampleAgain(i) {
			reports = append(reports, r)
		}
	}
	if len(reports) == 0 {
		return nil
	}
	if len(reports) > 1 {
		if f := j.rasPair(reports); f != nil {
			return []*finding{f}
		}
	}
	return j.rasOne(reports[len(reports)-1])
}

// sampleAgain tells that a sample is one of the earlier ones, copied: made at the same time, or, where they have no time, equal and in a file of the same name.
func (j *job) sampleAgain(i int) bool {
	x := j.e.RAS[i]
	return slices.ContainsFunc(j.e.RAS[:i], func(o evidence.RASReport) bool {
		switch {
		case o.Report == nil || x.Where.File == o.Where.File:
			return false
		case !x.Report.Time.IsZero():
			return x.Report.Time.Equal(o.Report.Time) && reflect.DeepEqual(x.Report, o.Report)
		}
		return path.Base(x.Where.File) == path.Base(o.Where.File) && reflect.DeepEqual(x.Report, o.Report)
	})
}

// rasPair takes the first and the last sample.
func (j *job) rasPair(reports []*ras.Report) *finding {
	c := ras.Compare(reports[0], reports[len(reports)-1], len(j.logs.by[evidence.Timeout]) > 0)
	where := j.e.RAS[len(j.e.RAS)-1].Where
	if c.Moving {
		f := newFinding(NotAHang, observation, inferred)
		for _, x := range c.Findings {
			f.item(where, x.Text, "counts rose between two samples")
		}
		return f.say("counts rise from one RAS sample to the next: the job makes progress, and ranks that differ for a moment are normal")
	}
	if f := rasOps(c, where); f != nil {
		return f
	}
	for _, x := range c.Findings {
		switch x.Kind {
		case ras.Stuck:
			f := newFinding(SkippedCollective, unfinished, 0.6, x.Behind...)
			f.Op, f.Group = x.Op, x.Comm
			f.item(where, x.Text, "the counts differ, and none of them moved")
			if len(x.Behind) == 0 || x.BehindN > x.AheadN {
				f.Ranks, f.Confidence = nil, oneView
				f.alternative(OrderMismatch, oneView, x.Ahead...)
			}
			f.alternative(RankStuckHost, byAbsence, x.Behind...)
			return f.say("RAS: %s called %s less often than the others, and nothing moved between two samples", orText(rankText(x.Behind), fmt.Sprintf("%d ranks", x.BehindN)), x.Op)
		case ras.Lost:
			f := newFinding(RankCrash, transport, probable, x.Ranks...)
			f.item(where, x.Text, "no answer, twice")
			f.alternative(RankStuckHost, byAbsence, x.Ranks...)
			return f.say("RAS: %s", x.Text)
		}
	}
	for _, x := range c.Findings {
		if x.Kind == ras.Frozen {
			f := newFinding(GPUStuckOrNetwork, transport, byAbsence)
			f.item(where, x.Text, "all have called the same, and nothing moved")
			return f.say("RAS: all ranks have called the same, and nothing moved between two samples: launched everywhere, finished nowhere, or idle")
		}
	}
	return nil
}

// rasOps: one rank is ahead in one operation and behind in another: it has called the one where the others called the other.
func rasOps(c *ras.Comparison, where evidence.Where) *finding {
	for _, a := range c.Findings {
		for _, b := range c.Findings {
			if a.Kind != ras.Stuck || b.Kind != ras.Stuck || a.Comm != b.Comm || a.Op == b.Op || len(a.Ahead) == 0 || !slices.Equal(a.Ahead, b.Behind) {
				continue
			}
			ranks := a.Ahead
			if a.AheadN == a.BehindN {
				ranks = union(a.Ahead, a.Behind)
			} else if a.AheadN > a.BehindN {
				ranks = a.Behind
			}
			f := newFinding(OpMismatch, unfinished, 0.6, ranks...)
			f.Op, f.Group = a.Op+" / "+b.Op, a.Comm
			f.item(where, a.Text, "ahead here")
			f.item(where, b.Text, "and behind here")
			return f.say("RAS: %s called %s more often and %s less often than the others", showRanks(a.Ahead), a.Op, b.Op)
		}
	}
	return nil
}

// rasOne takes what a single sample shows, as a direction.
func (j *job) rasOne(r *ras.Report) []*finding {
	where := j.e.RAS[len(j.e.RAS)-1].Where
	for i := range r.Communicators {
		c := &r.Communicators[i]
		for _, op := range slices.Sorted(maps.Keys(c.Counts)) {
			levels := slices.Clone(c.Counts[op])
			if len(levels) < 2 {
				continue
			}
			slices.SortFunc(levels, func(a, b ras.Level) int { return int(a.Count - b.Count) })
			low, high := levels[0], levels[len(levels)-1]
			f := newFinding(SkippedCollective, transport, oneView)
			f.Op, f.Group = kindOf(op), c.Hash
			for _, l := range levels {
				f.item(where, fmt.Sprintf("%d ranks have launched %s %d times", l.N, op, l.Count), "one sample of something that moves")
			}
			ranks := low.Ranks
			if low.N <= high.N && len(ranks) == low.N && j.hangs() {
				f.Ranks, f.Confidence = ranks, byAbsence
			}
			f.alternative(Straggler, oneView, ranks...)
			f.alternative(NotAHang, oneView)
			f.Next = append(f.Next, "a second RAS sample some seconds later: only counts that differ and stand still mean something")
			return []*finding{f.say("RAS: ranks have launched %s differently often (%d of them %d times, %d of them %d times); one sample does not tell whether that stands still", op,
				low.N, low.Count, high.N, high.Count)}
		}
	}
	for i := range r.Communicators {
		c := &r.Communicators[i]
		if n := len(c.Missing); n > 0 && n <= 4 {
			f := newFinding(RankCrash, transport, oneView)
			for _, m := range c.Missing {
				if m.Rank >= 0 {
					f.Ranks = union(f.Ranks, []int{m.Rank})
				}
				f.item(where, fmt.Sprintf("rank %d (process %d on %s) gave no data", m.Rank, m.PID, m.Host), "one sample: it may have been slow to answer")
			}
			f.alternative(RankStuckHost, oneView, f.Ranks...)
			f.Next = append(f.Next, "a second RAS sample: a rank that is missing twice is stopped, gone, or cut off")
			return []*finding{f.say("RAS has no data of %s: stopped, gone, or slow to answer", orText(rankText(f.Ranks), fmt.Sprintf("%d ranks", n)))}
		}
	}
	for _, m := range r.Dead {
		f := newFinding(RankCrash, transport, byAbsence)
		if m.Rank >= 0 {
			f.Ranks = []int{m.Rank}
		}
		f.item(where, fmt.Sprintf("process %d on %s is considered dead", m.PID, m.Host), "it has not answered for a minute")
		return []*finding{f.say("RAS considers process %d on %s dead", m.PID, m.Host)}
	}
	return nil
}

// rasEven tells that RAS sees all ranks at the same counts.
func (j *job) rasEven() bool {
	seen := false
	for i := range j.e.RAS {
		r := j.e.RAS[i].Report
		if r == nil || len(r.Communicators) == 0 {
			continue
		}
		seen = true
		for _, c := range r.Communicators {
			if c.Errors != "OK" {
				return false
			}
		}
	}
	return seen
}

// hangs tells that somebody complains.
func (j *job) hangs() bool {
	return len(j.logs.by[evidence.Timeout])+len(j.logs.by[evidence.DumpSignal])+len(j.logs.by[evidence.HostStuck]) > 0
}
