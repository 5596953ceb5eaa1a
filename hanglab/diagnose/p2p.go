package diagnose

import (
	"cmp"
	"slices"
)

// pair is one direction between two ranks of a group: the k-th send meets the k-th receive.
type pair struct {
	g            *group
	src, dst     int
	sends, recvs []*issued
	counted      bool // both records go back to the same point
}

// pairs matches a group's sends and receives.
func (g *group) pairs() []*pair {
	type key struct{ src, dst int }
	at := map[key]*pair{}
	var out []*pair
	for _, m := range g.members {
		for i := range m.p2p {
			c := &m.p2p[i]
			src, dst := g.global(c.ask.src), g.global(c.ask.dst)
			if c.ask.kind == "send" && src < 0 {
				src = m.rank
			}
			if c.ask.kind == "recv" && dst < 0 {
				dst = m.rank
			}
			if src < 0 || dst < 0 {
				continue
			}
			p := at[key{src, dst}]
			if p == nil {
				p = &pair{g: g, src: src, dst: dst}
				at[key{src, dst}] = p
				out = append(out, p)
			}
			if c.ask.kind == "send" {
				p.sends = append(p.sends, c)
			} else {
				p.recvs = append(p.recvs, c)
			}
		}
	}
	for _, p := range out {
		p.align()
	}
	slices.SortFunc(out, func(a, b *pair) int { return cmp.Or(cmp.Compare(a.src, b.src), cmp.Compare(a.dst, b.dst)) })
	return out
}

// global is the rank of the job for one of the group.
func (g *group) global(r int) int {
	switch {
	case r < 0:
		return -1
	case g.sure && r < len(g.ranks):
		return g.ranks[r]
	case g.sure:
		return -1
	}
	for _, m := range g.members {
		if m.place == r {
			return m.rank
		}
	}
	return r
}

// align drops what lies before the later of the two records' beginnings: the number of collectives before a call is common to both.
func (p *pair) align() {
	a, b := p.g.by[p.src], p.g.by[p.dst]
	if a == nil || b == nil {
		return
	}
	if !a.p2pLost() && !b.p2pLost() {
		p.counted = true
		return
	}
	from := max(a.firstColl(), b.firstColl())
	if len(a.calls) == 0 || len(b.calls) == 0 {
		return // nothing in common to count from
	}
	keep := func(list []*issued) []*issued {
		return slices.DeleteFunc(list, func(c *issued) bool { return c.coll < from })
	}
	p.sends, p.recvs = keep(p.sends), keep(p.recvs)
	p.counted = true
}

func (m *member) p2pLost() bool {
	return m.lost || len(m.p2p) > 0 && m.p2p[0].seq > 1
}

// firstColl is the first collective that is recorded whole, with all sends and receives after it.
func (m *member) firstColl() int64 {
	if len(m.calls) == 0 {
		return 0
	}
	return m.low()
}

// posted tells whether the partner of an operation is known to have made its call, and whether that can be told.
func (p *pair) posted(c *issued) (yes, known bool) {
	mine, theirs, who := p.sends, p.recvs, p.dst
	if c.ask.kind == "recv" {
		mine, theirs, who = p.recvs, p.sends, p.src
	}
	if p.g.by[who] == nil {
		return false, false
	}
	if p.counted {
		k := slices.Index(mine, c)
		return k >= 0 && k < len(theirs), k >= 0
	}
	mine, theirs = onlyOpen(mine), onlyOpen(theirs)
	k := slices.Index(mine, c)
	return k < len(theirs), k >= 0
}

// behind is an older call of the partner, in the other direction of the same two ranks, that its matching call has to wait for: the two are made one after the other,
// not in one batch.
func (w *waitGraph) behind(p *pair, c *issued) *waitOp {
	mine, theirs, who := p.sends, p.recvs, p.dst
	if c.ask.kind == "recv" {
		mine, theirs, who = p.recvs, p.sends, p.src
	}
	if !p.counted {
		mine, theirs = onlyOpen(mine), onlyOpen(theirs)
	}
	k := slices.Index(mine, c)
	if k < 0 || k >= len(theirs) {
		return nil
	}
	match := theirs[k]
	for _, b := range w.blocks[who] {
		if o := b.op; o.g == p.g && o.src == p.dst && o.dst == p.src && b.call != nil && b.call.seq < match.seq && b.call.pos < match.pos {
			return o
		}
	}
	return nil
}

func onlyOpen(list []*issued) (out []*issued) {
	for _, c := range list {
		if c.open {
			out = append(out, c)
		}
	}
	return out
}

// wrongSize is the first pair of operations that meet with different sizes or types. Where only what is open was recorded, the oldest open ones of both sides meet.
func (p *pair) wrongSize() (s, r *issued, class Class) {
	sends, recvs := p.sends, p.recvs
	if !p.counted {
		sends, recvs = onlyOpen(sends), onlyOpen(recvs)
		n := min(1, len(sends), len(recvs))
		sends, recvs = sends[:n], recvs[:n]
	}
	for i := range min(len(sends), len(recvs)) {
		a, b := *sends[i].ask, *recvs[i].ask
		a.kind, b.kind = "", ""
		if class := a.differs(&b); class != "" {
			return sends[i], recvs[i], class
		}
	}
	return nil, nil, ""
}
