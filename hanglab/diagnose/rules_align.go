package diagnose

import (
	"cmp"
	"fmt"
	"slices"
)

// aligned draws the conclusions from ranks that are laid side by side, whatever source they come from.
type aligned struct {
	j      *job
	groups []*group
	source string // "dump", "calls", "watchdog"
	w      *waitGraph
	out    []*finding
}

func (j *job) align(groups []*group, source string) []*finding {
	if len(groups) == 0 {
		return nil
	}
	a := &aligned{j: j, groups: groups, source: source, w: buildGraph(groups)}
	fresh := a.mismatches()
	a.pairsOf()
	if len(a.out) > 0 {
		for _, f := range a.out {
			f.kinds = []string{source}
		}
	}
	if !fresh {
		a.sinks()
	}
	for _, f := range a.out {
		f.kinds = []string{source}
	}
	return a.out
}

func (a *aligned) add(f *finding) *finding {
	if f != nil {
		a.out = append(a.out, f)
	}
	return f
}

// mismatches reports each group's first disagreement. It tells whether one of them may explain a hang.
func (a *aligned) mismatches() (fresh bool) {
	var list []*mismatch
	for _, g := range a.groups {
		if x := g.findMismatch(); x != nil {
			list = append(list, x)
		}
	}
	slices.SortStableFunc(list, func(x, y *mismatch) int { return cmp.Compare(x.created(), y.created()) })
	for i, x := range list {
		f := a.add(a.mismatch(x))
		switch {
		case x.old && x.shift == 0:
			f.Confidence = min(f.Confidence, direction)
			f.layer = observation
		case i > 0:
			f.Confidence *= 0.8
			fresh = true
		default:
			fresh = true
		}
	}
	return fresh
}

// created is when the usual call was made, by the clock of the first rank that made it.
func (x *mismatch) created() int64 {
	if c := x.g.by[x.sides[0].ranks[0]].at(x.seq); c != nil && c.entry != nil {
		return c.entry.TimeCreatedNs
	}
	return x.seq
}

func (a *aligned) mismatch(x *mismatch) *finding {
	over := a.overSoon(x)
	g, odd := x.g, x.odd()
	confidence := x.confidence()
	if x.tie && x.shift != 0 && a.source == "calls" {
		odd = a.fewerCalls(x, odd)
	}
	f := newFinding(x.class, unfinished, confidence, odd...)
	f.of, f.root, f.leans = g, x, x.why == oneEarly || x.why == unheard
	f.about(g, x.seq, x.sides[0].ask)
	if x.class == OpMismatch && len(x.sides) > 1 {
		f.Op = x.sides[0].ask.op + " / " + x.sides[1].ask.op
	}
	for i := len(x.sides) - 1; i >= 0; i-- {
		f.side(x.sides[i].ranks, x.sides[i].ask)
	}
	for i := len(x.sides) - 1; i >= 0; i-- {
		for k, r := range x.sides[i].ranks {
			if k == 2 {
				break
			}
			m := g.by[r]
			f.item(m.placeOf(x.seq), m.line(g, x.seq), fmt.Sprintf("%s: %s", showRanks(x.sides[i].ranks), x.sides[i].ask))
		}
	}
	for _, it := range over {
		f.item(it.Where, it.Text, it.Says)
	}
	f.Location = location(g.by[x.sides[len(x.sides)-1].ranks[0]].at(x.seq))
	f.Picture = picture(g, x.seq, odd)
	a.words(f, x, odd)
	f.inferredBy(x)
	if x.shift != 0 && a.source == "calls" && x.seq == 1 { // NCCL's log begins with the communicator
		f.alternative(SkippedCollective, f.Confidence, odd...)
		f.Class = LazyInit
		f.say("%s did not come to the first call of communicator %s (%s), which was made for it: its first call is what the others call next", showRanks(odd), g.title(),
			x.sides[0].ask)
	}
	return f
}

// confidence is how sure it is that the odd ones of a mismatch are those.
func (x *mismatch) confidence() float64 {
	switch {
	case x.g.unnumbered:
		return byAbsence
	case x.sides[0].ask.kind == "":
		return probable // a call whose sizes may differ, for all that its name says
	case x.why != none && x.shift != 0 && !x.hint:
		return inferred // the calls before and those after say the same
	case x.tie, x.why != none:
		return probable
	case len(x.sides[0].ranks) < len(x.g.ranks)/2+1:
		return probable // those whose records are not there may outvote them
	case x.hint:
		return inferred
	}
	return stated
}

// overSoon breaks a tie of two sides whose calls lie one apart: a side whose programs are over, while the other waits in its last call, has made one call less.
func (a *aligned) overSoon(x *mismatch) (items []Item) {
	if !x.tie || x.shift == 0 || len(x.sides) != 2 {
		return nil
	}
	for usual, odd := range []int{1, 0} {
		short, long := x.g.longest(x.sides[odd].ranks), x.g.longest(x.sides[usual].ranks)
		if _, waits := long.waits(); !waits || short.enq+1 != long.enq || short.done < short.enq {
			continue
		}
		for _, r := range x.sides[odd].ranks {
			it := a.j.over(r)
			if it == nil {
				return nil
			}
			items = append(items, *it)
		}
		if agree(short, long, x.seq, 1) > 0 {
			x.settle(x.sides[usual], x.sides[odd], overSoon)
			return items
		}
		return nil
	}
	return nil
}

// inferredBy says what has broken a tie, and what else it may be.
func (f *finding) inferredBy(x *mismatch) {
	usual, odd := x.sides[0], x.sides[1]
	switch x.why {
	case oneEarly:
		f.Summary += fmt.Sprintf("; that it was %s and not %s is an inference: by the calls before, %s was due here and %s is the next one", showRanks(odd.ranks),
			showRanks(usual.ranks), usual.ask, odd.ask)
	case unheard:
		f.Summary += fmt.Sprintf("; that %s %s the odd one is an inference: by the calls before, the other's was due here, and %s fits nowhere", showRanks(odd.ranks), verb(odd.ranks, "be"), odd.ask)
		f.alternative(f.Class, oneView, x.doubted()...)
	case overSoon:
		f.Summary += fmt.Sprintf("; the program of %s is over, and %s %s for one call more", showRanks(odd.ranks), showRanks(usual.ranks), verb(usual.ranks, "wait"))
	}
}

// doubted are those of whom one may be the odd one: of a tie, all, whatever has broken it.
func (x *mismatch) doubted() []int {
	if x.why == none {
		return x.odd()
	}
	return union(x.sides[0].ranks, x.sides[1].ranks)
}

// fewerCalls breaks a tie: of two sides in one step of the program, the one with fewer calls has left one out.
func (a *aligned) fewerCalls(x *mismatch, odd []int) []int {
	one, two := x.g.longest(x.sides[0].ranks), x.g.longest(x.sides[1].ranks)
	s1, ok1 := a.j.logs.progs[one.rank].open()
	s2, ok2 := a.j.logs.progs[two.rank].open()
	if !ok1 || !ok2 || s1 != s2 || len(one.calls) == len(two.calls) {
		return odd
	}
	x.tie = false
	if len(one.calls) < len(two.calls) {
		x.sides[0], x.sides[1] = x.sides[1], x.sides[0]
	}
	return x.sides[1].ranks
}

// words says what a mismatch is, with its shift, and what else it could be.
func (a *aligned) words(f *finding, x *mismatch, odd []int) {
	where := fmt.Sprintf("in sequence %d of group %s", x.seq, x.g.title())
	last := x.sides[len(x.sides)-1]
	switch {
	case x.tie && x.shift != 0:
		f.say("%s disagree %s: the calls of one side match the other's moved by one: one side left a call out or made one more", showRanks(odd), where)
		f.alternative(SizeMismatch, oneView, odd...)
	case x.tie:
		f.say("%s disagree %s: %s against %s; nothing tells which of them is wrong", showRanks(odd), where, x.sides[0].ask, x.sides[1].ask)
	case x.shift == 1 && x.hint:
		f.say("%s %s %s %s, which is what follows the others' %s: that one was left out", showRanks(odd), verb(odd, "call"), last.ask, where, x.sides[0].ask)
		f.alternative(x.sides[0].ask.differs(last.ask), byAbsence, x.doubted()...)
	case x.shift == 1:
		f.say("from sequence %d of group %s on, %s %s what the others call one later: their %s was left out", x.seq, x.g.title(), showRanks(odd), verb(odd, "call"), x.sides[0].ask)
		if x.match == 1 {
			f.alternative(OrderMismatch, oneView, odd...)
		}
	case x.shift == -1:
		f.say("from sequence %d of group %s on, %s %s one call behind the others: a call (%s) that the others do not make, or one made twice",
			x.seq, x.g.title(), showRanks(odd), verb(odd, "be"), last.ask)
	case x.class == OrderMismatch:
		f.say("%s %s the same calls as the others from sequence %d of group %s on, in another order: %s where the others call %s", showRanks(odd), verb(odd, "make"), x.seq,
			x.g.title(), last.ask, x.sides[0].ask)
	default:
		f.say("%s %s %s %s, where %s %s %s", showRanks(odd), verb(odd, "call"), last.ask, where, showRanks(x.sides[0].ranks), verb(x.sides[0].ranks, "call"), x.sides[0].ask)
	}
	if x.class == SizeMismatch && x.shift == 0 {
		f.alternative(SkippedCollective, oneView, odd...)
	}
	if missing := a.missing(x.g); len(missing) > 0 {
		f.Next = append(f.Next, fmt.Sprintf("the dumps of %s", showRanks(missing)))
	}
}

func (a *aligned) missing(g *group) (ranks []int) {
	if !g.sure {
		return nil
	}
	for _, r := range g.ranks {
		if g.by[r] == nil {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// pairsOf reports sends and receives that met with different sizes, and those that have no partner although all have gone on.
func (a *aligned) pairsOf() {
	for _, g := range a.groups {
		if !g.p2p {
			continue
		}
		for _, p := range g.pairs() {
			if s, r, class := p.wrongSize(); class != "" {
				f := a.add(newFinding(class, unfinished, probable, p.src, p.dst))
				if !p.counted {
					f.Confidence = byAbsence
				}
				f.about(g, s.seq, s.ask)
				f.side([]int{p.src}, s.ask)
				f.side([]int{p.dst}, r.ask)
				f.Location = location(r)
				f.item(g.by[p.src].where, fmt.Sprintf("rank %d: %s to rank %d, p2p sequence %d", p.src, s.ask, p.dst, s.seq), "what is sent")
				f.item(g.by[p.dst].where, fmt.Sprintf("rank %d: %s from rank %d, p2p sequence %d", p.dst, r.ask, p.src, r.seq), "what is received")
				f.say("rank %d sends %s, and the receive on rank %d that it meets is %s", p.src, s.ask, p.dst, r.ask)
				f.alternative(UnpairedP2P, oneView, p.dst)
				continue
			}
			a.add(a.unpaired(p))
		}
	}
}

// stuckPair tells that a rank waits in a send or receive whose partner has not made its call: it may come to later ones yet.
func (a *aligned) stuckPair(g *group, m *member) bool {
	for _, b := range a.w.blocks[m.rank] {
		if b.op.g != g || b.op.src < 0 {
			continue
		}
		if p := a.w.pair(b.op); p == nil {
			return true
		} else if yes, known := p.posted(b.call); known && !yes || !known {
			return true
		}
	}
	return false
}

// unmet is the call of the longer side that has no partner. The number of collectives before a call shows where it was left out: up to there the two sides agree.
func unmet(long, short []*issued) *issued {
	for i := 1; i < len(short); i++ {
		if long[i-1].coll == short[i-1].coll && long[i].coll < short[i].coll {
			return long[i]
		}
	}
	return long[len(short)]
}

// unpaired is a direction with more sends than receives, or fewer, whose short side has gone on to later calls: it will not make up for it.
func (a *aligned) unpaired(p *pair) *finding {
	g := p.g
	src, dst := g.by[p.src], g.by[p.dst]
	if !p.counted || src == nil || dst == nil || len(p.sends) == len(p.recvs) {
		return nil
	}
	long, short, shortRank, longRank, verb := p.sends, p.recvs, p.dst, p.src, "receive"
	if len(p.recvs) > len(p.sends) {
		long, short, shortRank, longRank, verb = p.recvs, p.sends, p.src, p.dst, "send"
	}
	c := unmet(long, short)
	m := g.by[shortRank]
	later := m.enq > c.coll
	for i := range m.p2p {
		later = later || m.p2p[i].coll > c.coll
	}
	finished := g.leastDone() >= g.mostEnq() && g.mostEnq() >= 0 && !c.open && !a.stuckPair(g, m) // the program has gone past it everywhere
	if !later && !finished {
		return nil // it may be on its way: the wait graph says what keeps it
	}
	confidence := inferred
	if !later {
		confidence = probable
	}
	if m.log {
		confidence = byAbsence // a log may lack its last lines
	}
	f := newFinding(UnpairedP2P, unfinished, confidence, shortRank)
	f.about(g, c.seq, c.ask)
	f.side([]int{longRank}, c.ask)
	f.Location = location(c)
	f.item(g.by[longRank].where, fmt.Sprintf("rank %d, group %s, p2p sequence %d: %s; %d in this direction", longRank, g.title(), c.seq, c.ask, len(long)),
		fmt.Sprintf("%d made between ranks %d and %d", len(long), p.src, p.dst))
	f.item(m.where, fmt.Sprintf("rank %d, group %s: %d of the %d %ss that match them", shortRank, g.title(), len(short), len(long), verb),
		fmt.Sprintf("rank %d has gone on without its %s", shortRank, verb))
	f.say("rank %d has no %s for the %s of rank %d (p2p sequence %d of group %s): %d against %d", shortRank, verb, c.ask, longRank, c.seq, g.title(),
		len(long), len(short))
	f.Picture = picture(g, max(c.coll, 1), []int{shortRank})
	f.alternative(UnpairedP2P, oneView, longRank)
	return f
}
