package diagnose

import (
	"cmp"
	"slices"
)

// block is an operation that a rank has made and that does not complete.
type block struct {
	rank int
	op   *waitOp
	call *issued // nil: not recorded
}

// waitOp is an operation in which ranks wait: a node of the graph of who waits for what. Ranks are in it through their blocks.
type waitOp struct {
	g        *group
	seq      int64
	src, dst int // of a send or receive, -1: a collective
	init     bool
	blocks   []*block
	next     []waitLink
	idle     []int // members that have not come and wait for nothing
	silent   []int // members of whom there is no record
	behind   []int // members whose device has not done what others' devices have
	unlike   bool  // those are in a call that others have finished, which equal calls do not allow
	torn     bool  // half of the members have finished it and half have not: their records are of different moments
	even     bool  // all members have come, none has finished, and none has anything older
}

// waitLink says that an operation cannot go on before another does, because of a rank.
type waitLink struct {
	to  *waitOp
	via int
	why linkKind
}

type linkKind int

const (
	absent linkKind = iota // has not made the call
	older                  // has made it, and is blocked in an older one
)

// waitGraph is all of it.
type waitGraph struct {
	ops    []*waitOp
	blocks map[int][]*block // by rank, oldest first
	pairs  map[*group]map[[2]int]*pair
}

type opKey struct {
	g        *group
	seq      int64
	src, dst int
}

func buildGraph(groups []*group) *waitGraph {
	w := &waitGraph{blocks: map[int][]*block{}, pairs: map[*group]map[[2]int]*pair{}}
	at := map[opKey]*waitOp{}
	for _, g := range groups {
		for _, m := range g.members {
			w.collect(g, m, at)
		}
	}
	for _, list := range w.blocks {
		slices.SortStableFunc(list, func(a, b *block) int { return cmp.Compare(a.age(), b.age()) })
	}
	for _, o := range w.ops {
		if o.src >= 0 {
			w.weighPair(o)
		} else {
			w.weigh(o)
		}
	}
	return w
}

// age orders the blocks of one rank: what is not recorded any more is the oldest.
func (b *block) age() int32 {
	if b.call == nil {
		return -1
	}
	return b.call.pos
}

// collect takes a member's first collective that is not complete, and its first send and receive with each peer.
func (w *waitGraph) collect(g *group, m *member, at map[opKey]*waitOp) {
	enter := func(k opKey, c *issued) {
		o := at[k]
		if o == nil {
			o = &waitOp{g: g, seq: k.seq, src: k.src, dst: k.dst, init: g.source == "init"}
			at[k] = o
			w.ops = append(w.ops, o)
		}
		b := &block{rank: m.rank, op: o, call: c}
		o.blocks = append(o.blocks, b)
		w.blocks[m.rank] = append(w.blocks[m.rank], b)
	}
	if seq, ok := m.waits(); ok {
		enter(opKey{g, seq, -1, -1}, m.at(seq))
	}
	seen := map[[2]int]bool{}
	for i := range m.p2p {
		c := &m.p2p[i]
		if !c.open {
			continue
		}
		src, dst := g.ends(m, c)
		if k := [2]int{src, dst}; src >= 0 && dst >= 0 && !seen[k] {
			seen[k] = true
			enter(opKey{g, c.seq, src, dst}, c)
		}
	}
}

// ends are a send's or receive's two ranks.
func (g *group) ends(m *member, c *issued) (src, dst int) {
	src, dst = g.global(c.ask.src), g.global(c.ask.dst)
	if c.ask.kind == "send" && src < 0 {
		src = m.rank
	}
	if c.ask.kind == "recv" && dst < 0 {
		dst = m.rank
	}
	return src, dst
}

// waitFor notes why an operation waits for a rank that has not come: for what that rank is blocked in, or for the rank itself.
func (w *waitGraph) waitFor(o *waitOp, r int) {
	found := false
	for _, b := range w.blocks[r] {
		if b.op != o {
			o.next = append(o.next, waitLink{b.op, r, absent})
			found = true
		}
	}
	if !found {
		o.idle = append(o.idle, r)
	}
}

// weigh says for whom a collective waits.
func (w *waitGraph) weigh(o *waitOp) {
	for _, r := range o.g.ranks {
		m := o.g.by[r]
		switch {
		case m == nil && o.g.sure:
			o.silent = append(o.silent, r)
		case m != nil && m.absent(o.seq):
			w.waitFor(o, r)
		}
	}
	if len(o.idle) > 0 || len(o.next) > 0 {
		return
	}
	for _, m := range o.g.members {
		if seq, ok := m.waits(); ok && seq < o.seq {
			for _, b := range w.blocks[m.rank] {
				if b.op.g == o.g && b.op.seq == seq && b.op.src < 0 {
					o.next = append(o.next, waitLink{b.op, m.rank, older})
				}
			}
		}
	}
	if len(o.next) > 0 {
		return
	}
	w.late(o)
	if len(o.behind) > 0 || o.torn {
		return
	}
	for _, b := range o.blocks {
		for _, other := range w.blocks[b.rank] {
			if other.op.g != o.g && other.age() < b.age() {
				o.next = append(o.next, waitLink{other.op, b.rank, older})
				break
			}
		}
	}
	o.even = len(o.next) == 0 && len(o.silent) == 0
}

// late finds members whose device keeps the others: it has not completed what theirs have, or has not begun what theirs have.
func (w *waitGraph) late(o *waitOp) {
	var waiting, notBegun []int
	done, begun, unknown := 0, 0, true
	for _, m := range o.g.members {
		switch {
		case !m.counted:
		case m.done >= o.seq:
			done++
			unknown = unknown && m.log && m.at(o.seq) == nil
		default:
			waiting = append(waiting, m.rank)
			if m.starts && m.begun < o.seq {
				notBegun = append(notBegun, m.rank)
			} else if m.starts {
				begun++
			}
		}
	}
	a := o.g.askAt(o.seq)
	switch {
	case done > 0 && len(waiting) > 1 && len(waiting) >= done && !unknown:
		o.torn = true
	case done > 0 && (a == nil || synchronises(a.kind) || done > len(waiting)):
		o.behind, o.unlike = waiting, unknown && (begun > 0 || len(notBegun) == 0) || o.oneLess(waiting)
	case done == 0 && begun > 0 && len(notBegun) > 0 && len(notBegun) <= begun:
		for _, r := range notBegun {
			if !w.olderElsewhere(r, o) {
				o.behind = append(o.behind, r)
			}
		}
	}
}

// oneLess tells that ranks are not known not to have begun with a call that others have finished, and have made one call less than those who wait in the next one:
// what they are in may be that next one.
func (o *waitOp) oneLess(ranks []int) bool {
	for _, r := range ranks {
		m := o.g.by[r]
		if m.starts && m.begun < o.seq || m.askAt(o.seq) == nil {
			return false
		}
		for _, other := range o.g.members {
			if seq, ok := other.waits(); other.counted && other.done >= o.seq && (!ok || other.enq-m.enq != seq-o.seq || other.askAt(seq) == nil || !other.askAt(seq).same(m.askAt(o.seq))) {
				return false
			}
		}
	}
	return len(ranks) > 0
}

func (w *waitGraph) olderElsewhere(r int, o *waitOp) bool {
	i := slices.IndexFunc(w.blocks[r], func(b *block) bool { return b.op == o })
	return i > 0 && w.blocks[r][0].op.g != o.g
}

func (w *waitGraph) pair(o *waitOp) *pair {
	m, ok := w.pairs[o.g]
	if !ok {
		m = map[[2]int]*pair{}
		for _, p := range o.g.pairs() {
			m[[2]int{p.src, p.dst}] = p
		}
		w.pairs[o.g] = m
	}
	return m[[2]int{o.src, o.dst}]
}

// weighPair says whether a send or receive waits for its partner.
func (w *waitGraph) weighPair(o *waitOp) {
	p := w.pair(o)
	b := o.blocks[0]
	peer := o.dst
	if b.rank == o.dst {
		peer = o.src
	}
	if o.g.by[peer] == nil {
		if o.g.sure {
			o.silent = append(o.silent, peer)
		}
		return
	}
	if p == nil {
		return
	}
	switch yes, known := p.posted(b.call); {
	case !known:
	case !yes:
		w.waitFor(o, peer)
	default:
		if first := w.behind(p, b.call); first != nil {
			o.next = append(o.next, waitLink{first, peer, older})
			return
		}
		o.even = true
	}
}

// circle is the largest set of operations that wait for each other; nil if there is none.
func (w *waitGraph) circle() []*waitOp {
	t := &tarjan{index: map[*waitOp]int{}, low: map[*waitOp]int{}, on: map[*waitOp]bool{}}
	for _, o := range w.ops {
		if _, ok := t.index[o]; !ok {
			t.visit(o)
		}
	}
	return t.best
}

type tarjan struct {
	index, low map[*waitOp]int
	on         map[*waitOp]bool
	stack      []*waitOp
	best       []*waitOp
}

func (t *tarjan) visit(o *waitOp) {
	t.index[o], t.low[o] = len(t.index), len(t.index)
	t.stack = append(t.stack, o)
	t.on[o] = true
	for _, l := range o.next {
		if _, ok := t.index[l.to]; !ok {
			t.visit(l.to)
			t.low[o] = min(t.low[o], t.low[l.to])
		} else if t.on[l.to] {
			t.low[o] = min(t.low[o], t.index[l.to])
		}
	}
	if t.low[o] != t.index[o] {
		return
	}
	i := slices.Index(t.stack, o)
	component := slices.Clone(t.stack[i:])
	t.stack = t.stack[:i]
	for _, x := range component {
		t.on[x] = false
	}
	if len(component) > 1 && len(component) > len(t.best) {
		t.best = component
	}
}

// blocked are the ranks that wait in an operation.
func (o *waitOp) blocked() (ranks []int) {
	for _, b := range o.blocks {
		ranks = append(ranks, b.rank)
	}
	slices.Sort(ranks)
	return slices.Compact(ranks)
}
