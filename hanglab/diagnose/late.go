package diagnose

import (
	"fmt"
	"slices"
	"time"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

// lateness is how much later than the others a rank made a call. Hosts' clocks may be hours apart: each rank's usual difference is taken off first.
type lateness struct {
	rank int
	seq  int64
	by   time.Duration
}

// latest finds the rank that came latest to one of a group's last calls, and how late. nil: none stands out.
func (g *group) latest() *lateness {
	if len(g.members) < 2 {
		return nil
	}
	lo, hi := int64(0), int64(-1)
	for _, m := range g.members {
		if len(m.calls) == 0 || m.calls[0].entry == nil {
			return nil
		}
		lo = max(lo, m.low())
		if hi < 0 || m.high() < hi {
			hi = m.high()
		}
	}
	lo = max(lo, hi-200)
	if hi-lo < 2 {
		return nil
	}
	usual := g.offsets(lo, hi)
	best := &lateness{by: 500 * time.Millisecond}
	found := false
	for seq := lo; seq <= hi; seq++ {
		var at []int64
		for i, m := range g.members {
			if c := m.at(seq); c != nil {
				at = append(at, c.entry.TimeCreatedNs-usual[i])
			}
		}
		if len(at) != len(g.members) {
			continue
		}
		middle := median(at)
		for i, t := range at {
			if d := time.Duration(t - middle); d > best.by {
				best, found = &lateness{g.members[i].rank, seq, d}, true
			}
		}
	}
	if !found {
		return nil
	}
	return best
}

// offsets is each member's usual difference to the first one, over calls that were made close together.
func (g *group) offsets(lo, hi int64) []int64 {
	out := make([]int64, len(g.members))
	for i, m := range g.members[1:] {
		var d []int64
		for seq := lo; seq <= hi; seq++ {
			a, b := g.members[0].at(seq), m.at(seq)
			if a != nil && b != nil {
				d = append(d, b.entry.TimeCreatedNs-a.entry.TimeCreatedNs)
			}
		}
		if len(d) > 0 {
			out[i+1] = median(d)
		}
	}
	return out
}

func median(list []int64) int64 {
	s := slices.Sorted(slices.Values(list))
	return s[(len(s)-1)/2]
}

// late mentions a rank that kept the others waiting and came.
func (f *finding) late(j *job) {
	for _, g := range j.groups {
		l := g.latest()
		if l == nil {
			continue
		}
		m := g.by[l.rank]
		f.item(m.where, m.line(g, l.seq), fmt.Sprintf("rank %d came %v later than the others to this call, and all went on", l.rank, l.by.Round(10*time.Millisecond)))
		f.alternative(Straggler, byAbsence, l.rank)
		return
	}
	for _, x := range j.logs.by[evidence.Late] {
		f.fact(x, "it completed, after its deadline")
		f.alternative(Straggler, oneView)
		return
	}
}
