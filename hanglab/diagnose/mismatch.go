package diagnose

import (
	"cmp"
	"slices"
	"sync"
)

// side is ranks that asked the same.
type side struct {
	ask   *ask
	ranks []int
}

// mismatch is the first place of a group where ranks ask for different things.
type mismatch struct {
	g     *group
	seq   int64
	sides []side // the largest first
	tie   bool   // no side is larger than all others
	class Class
	shift int       // +1: the odd rank is one call ahead of the others (it left one out), -1: one behind
	match int       // calls that agree again after the shift
	old   bool      // every rank has long gone on after it
	hint  bool      // the shift rests on the program's own repetition
	why   inference // what has broken a tie
}

// odd are the ranks that disagree with most; all where there is no majority.
func (x *mismatch) odd() (ranks []int) {
	from := 1
	if x.tie {
		from = 0
	}
	for _, s := range x.sides[from:] {
		ranks = append(ranks, s.ranks...)
	}
	slices.Sort(ranks)
	return ranks
}

// recent is how many calls back a difference may lie that all ranks have completed and still be the cause of a hang.
const recent = 16

// findMismatch looks for the first disagreement that matters.
func (g *group) findMismatch() *mismatch {
	if g.looked {
		return g.mismatch
	}
	g.looked = true
	var oldest *mismatch
	from := int64(0)
	for range 64 {
		seq := g.firstDifference(from)
		if seq < 0 {
			break
		}
		x := g.vote(seq)
		if x == nil {
			from = seq + 1
			continue
		}
		x.old = g.leastDone() >= seq+recent
		if !x.old || x.shift != 0 && x.match > 2 {
			g.mismatch = x
			return x
		}
		if oldest == nil {
			oldest = x
		}
		from = seq + 1
	}
	if seq := g.firstDifference(max(from, g.leastDone()-recent)); seq >= 0 && seq > from {
		if x := g.vote(seq); x != nil {
			g.mismatch = x
			return x
		}
	}
	g.mismatch = oldest
	return oldest
}

// firstDifference is the first place from on where two ranks' records differ, -1 if none. All are compared with the one that has most.
func (g *group) firstDifference(from int64) int64 {
	var ref *member
	for _, m := range g.members {
		if len(m.calls) > 0 && (ref == nil || len(m.calls) > len(ref.calls)) {
			ref = m
		}
	}
	if ref == nil {
		return -1
	}
	best := int64(-1)
	var mu sync.Mutex
	look := func(i int) {
		m := g.members[i]
		if m == ref || len(m.calls) == 0 {
			return
		}
		if seq := difference(ref, m, from); seq >= 0 {
			mu.Lock()
			if best < 0 || seq < best {
				best = seq
			}
			mu.Unlock()
		}
	}
	if len(g.members)*len(ref.calls) < 1<<16 {
		for i := range g.members {
			look(i)
		}
	} else {
		parallel(len(g.members), look)
	}
	return best
}

func difference(a, b *member, from int64) int64 {
	lo, hi := max(a.low(), b.low(), from), min(a.high(), b.high())
	if lo > hi {
		return -1
	}
	i, _ := slices.BinarySearchFunc(a.calls, lo, func(c issued, s int64) int { return cmp.Compare(c.seq, s) })
	j, _ := slices.BinarySearchFunc(b.calls, lo, func(c issued, s int64) int { return cmp.Compare(c.seq, s) })
	for i < len(a.calls) && j < len(b.calls) {
		x, y := &a.calls[i], &b.calls[j]
		switch {
		case x.seq < y.seq:
			i++
		case x.seq > y.seq:
			j++
		case x.ask != y.ask && !x.ask.same(y.ask):
			return x.seq
		default:
			i++
			j++
		}
	}
	return -1
}

// vote sorts the ranks by what they ask at a place.
func (g *group) vote(seq int64) *mismatch {
	x := &mismatch{g: g, seq: seq}
	for _, m := range g.members {
		a := m.askAt(seq)
		if a == nil {
			continue
		}
		i := slices.IndexFunc(x.sides, func(s side) bool { return s.ask == a || s.ask.same(a) })
		if i < 0 {
			i = len(x.sides)
			x.sides = append(x.sides, side{ask: a})
		}
		x.sides[i].ranks = append(x.sides[i].ranks, m.rank)
	}
	if len(x.sides) < 2 {
		return nil
	}
	slices.SortStableFunc(x.sides, func(a, b side) int {
		return cmp.Or(cmp.Compare(len(b.ranks), len(a.ranks)), cmp.Compare(a.ranks[0], b.ranks[0]))
	})
	x.tie = len(x.sides[0].ranks) == len(x.sides[1].ranks)
	x.class = x.sides[0].ask.differs(x.sides[1].ask)
	x.findShift()
	x.byHistory()
	return x
}

// findShift tells whether the calls that differ are the same ones, moved.
func (x *mismatch) findShift() {
	usual, odd := x.g.longest(x.sides[0].ranks), x.g.longest(x.sides[1].ranks)
	n := x.seq
	if d := swapped(usual, odd, n); d > 0 {
		x.class, x.shift, x.match = OrderMismatch, 0, d+1
		return
	}
	ahead, behind := agree(odd, usual, n, 1), agree(usual, odd, n, 1)
	switch {
	case agree(odd, usual, n+1, 0) > 0: // the calls after it match where they are: only this one differs
	case ahead > 0 && ahead >= behind:
		x.class, x.shift, x.match = SkippedCollective, 1, ahead
	case behind > 0:
		x.class, x.shift, x.match = SkippedCollective, -1, behind
	default:
		x.byRepetition(usual, odd)
	}
	if x.shift == -1 && !x.tie {
		x.class = OrderMismatch // one rank makes a call more than the others
	}
}

// longest is the member of a side whose record reaches furthest.
func (g *group) longest(ranks []int) *member {
	var best *member
	for _, r := range ranks {
		if m := g.by[r]; best == nil || m.high() > best.high() || m.high() == best.high() && m.low() < best.low() {
			best = m
		}
	}
	return best
}

// agree counts how many calls of a from n on equal b's that come by d later; 0 if one does not.
func agree(a, b *member, n, d int64) int {
	k := 0
	for i := n; k < 64; i++ {
		x, y := a.askAt(i), b.askAt(i+d)
		if x == nil || y == nil {
			break
		}
		if !x.same(y) {
			return 0
		}
		k++
	}
	return k
}

// swapped finds the shortest stretch from n on in which both made the same calls in another order; it returns its length less one.
func swapped(a, b *member, n int64) int {
	const most = 8
	var left, right []*ask
	for i := range int64(most) {
		x, y := a.askAt(n+i), b.askAt(n+i)
		if x == nil || y == nil {
			return 0
		}
		left, right = append(left, x), append(right, y)
		if i > 0 && sameSet(left, right) {
			return int(i)
		}
	}
	return 0
}

func sameSet(a, b []*ask) bool {
	used := make([]bool, len(b))
	for _, x := range a {
		i := 0
		for i < len(b) && (used[i] || !x.same(b[i])) {
			i++
		}
		if i == len(b) {
			return false
		}
		used[i] = true
	}
	return true
}

// byRepetition uses that training repeats itself: what followed the usual call the last time is what the odd rank calls now, so it left the usual one out.
func (x *mismatch) byRepetition(usual, odd *member) {
	n := x.seq
	now, before, mine := usual.askAt(n), usual.askAt(n-1), odd.askAt(n)
	if before == nil {
		return
	}
	earlier := usual.askAt(n - 2) // where all calls are alike, one more like them says nothing
	if mine.same(before) && !now.same(before) && odd.askAt(n-1) != nil && earlier != nil && !earlier.same(before) {
		x.shift, x.match, x.hint = -1, 1, true
		x.class = OrderMismatch
		return
	}
	for j := n - 2; j > usual.low() && j > n-1000; j-- {
		if usual.askAt(j) != now || usual.askAt(j-1) != before {
			continue
		}
		if next := usual.askAt(j + 1); next != nil && next.same(mine) && !now.same(next) {
			x.shift, x.match, x.hint = 1, 1, true
			x.class = SkippedCollective
		}
		return
	}
}
