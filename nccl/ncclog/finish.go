package ncclog

import (
	"fmt"
	"slices"
	"sort"
)

// Finish puts together what the lines said and returns the log. The Reader must not be used afterwards.
func (r *Reader) Finish() *Log {
	for _, o := range r.open {
		r.settle(o)
	}
	r.open = nil
	r.strayComms()
	for _, p := range r.list {
		p.finish()
	}
	for _, c := range r.comms {
		c.numberGuesses()
		c.finish()
		r.log.Comms = append(r.log.Comms, c.Comm)
	}
	sort.SliceStable(r.log.Counts.Unknown, func(i, j int) bool { return r.log.Counts.Unknown[i].Count > r.log.Counts.Unknown[j].Count })
	return r.log
}

// strayComms makes a communicator of the ranks whose Init lines are not in the log, so that what they say is not lost.
func (r *Reader) strayComms() {
	var c *comm
	for _, p := range r.list {
		for _, x := range p.ranks {
			if x.comm != nil || !x.says() {
				continue
			}
			if y := p.without(x); y != nil { // this process has one whose lines of the initialisation are missing
				y.adopt(x)
				continue
			}
			if y := r.tornOff(x); y != nil {
				for _, e := range x.Edges {
					r.addEdge(y, e)
				}
				continue
			}
			if d := r.missing(x); d != nil {
				d.add(x)
				continue
			}
			if c == nil || c.byRank[x.Rank.Rank] != nil {
				if c = r.newComm(-1); c == nil {
					r.drop("communicators")
					return
				}
			}
			c.add(x)
		}
	}
}

// says tells a rank with facts of its own from one that only chose its network.
func (x *rank) says() bool {
	return x.Rank.Rank != -2 && (len(x.Edges) > 0 || len(x.Trees) > 0 || len(x.rings) > 0 || x.Totals != nil || len(x.Graphs) > 0 || len(x.tuning) > 0 ||
		len(x.chosen) > 0 || len(x.GDR) > 0 || x.Placed != nil || len(x.RingLinks) > 0 || x.Init != nil || x.Bootstrap != nil)
}

// without finds a rank of the process that is known by its calls only.
func (p *process) without(x *rank) *rank {
	for _, y := range p.ranks {
		if y != x && y.Guessed && y.Totals == nil && len(y.Edges) == 0 && len(y.Trees) == 0 {
			return y
		}
	}
	return nil
}

// tornOff finds the rank that lines without a prefix belong to in a log whose other lines have one.
func (r *Reader) tornOff(x *rank) *rank {
	if x.proc.Host != "" || x.Rank.Rank < 0 || len(r.procs) == 1 {
		return nil
	}
	var only *rank
	for _, c := range r.comms {
		if y := c.byRank[x.Rank.Rank]; y != nil && y.Complete != nil {
			if only != nil {
				return nil
			}
			only = y
		}
	}
	return only
}

// missing finds the communicator that lacks this rank and whose ranks had no Init line cut.
func (r *Reader) missing(x *rank) *comm {
	for _, c := range r.comms {
		if x.Rank.Rank >= 0 && x.Rank.Rank < c.NRanks && c.byRank[x.Rank.Rank] == nil && !c.has(x.proc) {
			return c
		}
	}
	if x.Rank.Rank >= 0 {
		return nil
	}
	var only *comm
	for _, c := range r.comms {
		if len(c.members) < c.NRanks && !c.has(x.proc) {
			if only != nil {
				return nil
			}
			only = c
		}
	}
	if only != nil {
		x.Guessed = true
	}
	return only
}

// numberGuesses gives numbers to ranks that no line names: the one that is missing, or the device where these differ.
func (c *comm) numberGuesses() {
	var unnamed []*rank
	for _, x := range c.members {
		if x.Rank.Rank < 0 {
			unnamed = append(unnamed, x)
		}
	}
	if len(unnamed) == 0 || c.NRanks == 0 {
		return
	}
	if len(unnamed) == 1 && len(c.members) == c.NRanks {
		for n := 0; n < c.NRanks; n++ {
			if c.byRank[n] == nil {
				unnamed[0].Rank.Rank, unnamed[0].Guessed = n, true
				c.byRank[n] = unnamed[0]
				return
			}
		}
	}
	devs := map[int]bool{}
	for _, x := range unnamed {
		d := x.CudaDev
		if d < 0 || d >= c.NRanks || devs[d] || c.byRank[d] != nil || x.proc.Host != unnamed[0].proc.Host {
			return
		}
		devs[d] = true
	}
	for _, x := range unnamed {
		x.Rank.Rank, x.Guessed = x.CudaDev, true
		c.byRank[x.CudaDev] = x
	}
}

// finish fills in the fields of the process that are worked out.
func (p *process) finish() {
	p.Last = Line{File: p.lastF, N: p.lastN}
	lo, hi := p.lo, p.hi
	if p.minor > 0 {
		lo, hi = p.minor, p.minor
	}
	if p.minor == 0 {
		p.Form = formText(lo, hi)
	}
	if p.Form != "" {
		p.Process.lo, p.Process.hi = lo, hi
	}
	for _, x := range p.ranks {
		if x.Network == nil && len(p.Networks) == 1 { // to 2.12 it is chosen once a process, in another thread
			x.Network = &p.Networks[0]
		}
		for i := range x.GDR {
			g := &x.GDR[i]
			g.Path, g.LimitIs = pathName(lo, hi, g.Distance), pathName(lo, hi, g.Limit)
		}
	}
}

// formText writes a range of versions; "" where it says nothing.
func formText(lo, hi int) string {
	switch {
	case lo <= 10 && hi >= 99 || lo > hi:
		return ""
	case hi >= 99:
		return fmt.Sprintf("2.%d+", lo)
	case lo <= 10:
		return fmt.Sprintf("up to 2.%d", hi)
	case lo == hi:
		return fmt.Sprintf("2.%d", lo)
	}
	return fmt.Sprintf("2.%d-2.%d", lo, hi)
}

// pathNames by the first version that numbers them so.
var pathNames = []struct {
	since int
	names []string
}{
	{10, []string{"LOC", "NVL", "NVB", "PIX", "PXB", "PHB", "SYS"}},
	{12, []string{"LOC", "NVL", "NVB", "PIX", "PXB", "PXN", "PHB", "SYS", "NET", "DIS"}},
	{26, []string{"LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "PXN", "PHB", "SYS", "NET", "DIS"}},
	{27, []string{"LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "PXN", "P2C", "PHB", "SYS", "NET", "DIS"}},
	{28, []string{"LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS"}},
}

// pathName is the name of a distance if all versions from lo to hi agree on it.
func pathName(lo, hi, n int) string {
	name := ""
	for i, p := range pathNames {
		last := 99
		if i+1 < len(pathNames) {
			last = pathNames[i+1].since - 1
		}
		if hi < p.since || lo > last {
			continue
		}
		if n < 0 || n >= len(p.names) || name != "" && name != p.names[n] {
			return ""
		}
		name = p.names[n]
	}
	return name
}

// finish sorts the ranks and lifts to the communicator what single ranks printed.
func (c *comm) finish() {
	slices.SortStableFunc(c.members, func(a, b *rank) int { return a.Rank.Rank - b.Rank.Rank })
	for _, x := range c.members {
		if x.calls != nil {
			x.Calls = x.calls.sum()
		}
		c.Ranks = append(c.Ranks, x.Rank)
		if len(c.Rings) == 0 {
			c.Rings = x.rings
		}
		if len(c.Tuning) == 0 {
			c.Tuning, c.MaxThreads = x.tuning, x.max
		}
		if len(c.Matrix) == 0 {
			c.Matrix = x.matrix
		}
		if len(c.NVLSHeads) == 0 {
			c.NVLSHeads = x.heads
		}
		c.Selections = append(c.Selections, x.chosen...)
		if c.CC == nil {
			c.CC = x.cc
		}
		if c.DirectP2P == nil {
			c.DirectP2P = x.direct
		}
		for _, f := range x.forced {
			if !slices.ContainsFunc(c.Forced, func(o Fact[string]) bool { return o.Value == f.Value }) {
				c.Forced = append(c.Forced, f)
			}
		}
	}
	slices.SortStableFunc(c.Rings, func(a, b Ring) int { return a.Channel - b.Channel })
	c.linkRings()
	c.buildTrees()
	c.mismatches()
}

// linkRings makes rings of the ranks' neighbours where rank 0's list is missing or cut.
func (c *comm) linkRings() {
	next := map[int]map[int]RingLink{} // by channel and rank
	for _, x := range c.members {
		for _, l := range x.RingLinks {
			if next[l.Channel] == nil {
				next[l.Channel] = map[int]RingLink{}
			}
			next[l.Channel][x.Rank.Rank] = l
		}
	}
	for ch, links := range next {
		first, ok := links[0]
		if !ok || len(links) != c.NRanks {
			continue
		}
		order := []int{0}
		for at := first.Next; at != 0 && len(order) < c.NRanks; at = links[at].Next {
			order = append(order, at)
		}
		i := slices.IndexFunc(c.Rings, func(r Ring) bool { return r.Channel == ch })
		if i < 0 {
			c.Rings = append(c.Rings, Ring{Channel: ch, Order: order, At: first.At})
		} else if c.Rings[i].Cut || len(c.Rings[i].Order) < c.NRanks {
			c.Rings[i].Order, c.Rings[i].Cut = order, false
		}
	}
	slices.SortStableFunc(c.Rings, func(a, b Ring) int { return a.Channel - b.Channel })
	for i := range c.Rings {
		if c.NRanks > len(c.Rings[i].Order) {
			c.Rings[i].Cut = true
		}
	}
}

// buildTrees puts the ranks' places together.
func (c *comm) buildTrees() {
	size := c.NRanks
	for _, x := range c.members {
		size = max(size, x.Rank.Rank+1)
	}
	trees := map[int]*Tree{}
	room := 1 << 24 // of all trees together, so that a made-up size does not take the memory
	for _, x := range c.members {
		if x.Rank.Rank < 0 {
			continue
		}
		for _, l := range x.Trees {
			t := trees[l.Channel]
			if t == nil {
				if room -= size; room < 0 {
					return
				}
				t = &Tree{Channel: l.Channel, Root: -1, Parent: slices.Repeat([]int{-2}, size)}
				trees[l.Channel] = t
			}
			t.Parent[x.Rank.Rank] = l.Up
			if l.Up < 0 {
				t.Root = x.Rank.Rank
			}
		}
	}
	for _, t := range trees {
		c.Trees = append(c.Trees, *t)
	}
	slices.SortFunc(c.Trees, func(a, b Tree) int { return a.Channel - b.Channel })
}

func (c *comm) mismatches() {
	for _, x := range c.members {
		s := x.calls
		if s == nil || s.mismatch == nil {
			continue
		}
		m := *s.mismatch
		m.Rank, m.Ref = x.Rank.Rank, s.ref.Rank.Rank
		for _, y := range c.members {
			if y.calls == nil || y.calls.base+y.calls.Collectives <= m.N || y.calls.base > m.N {
				continue
			}
			if y.calls.mismatch == nil || y.calls.mismatch.N > m.N {
				m.Same = append(m.Same, y.Rank.Rank)
			}
		}
		c.Mismatches = append(c.Mismatches, m)
	}
	slices.SortStableFunc(c.Mismatches, func(a, b Mismatch) int { return a.N - b.N })
}
