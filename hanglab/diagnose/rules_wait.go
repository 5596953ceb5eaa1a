package diagnose

import (
	"fmt"
	"slices"
)

// sinks reports what all waiting ends in: ranks that wait for nothing, ranks whose device is behind, ranks that left no record, a circle, or nothing.
func (a *aligned) sinks() {
	w := a.w
	if len(w.ops) == 0 {
		return
	}
	switch {
	case a.idle():
	case a.behind():
	case a.circle():
	case a.evenWhole():
	case a.silent():
	case a.torn():
	default:
		a.even()
	}
}

// torn: records of a job that may be running, made at different moments.
func (a *aligned) torn() bool {
	ops := a.heads(func(o *waitOp) bool { return o.torn })
	if len(ops) == 0 {
		return false
	}
	o := ops[0]
	if !a.otherWaits(o.blocked()) {
		return true // nobody waits for them
	}
	f := a.add(newFinding(Undecided, unfinished, direction))
	f.about(o.g, o.seq, o.ask())
	f.waiting(o, 3)
	for _, m := range o.g.members {
		if m.counted && m.done >= o.seq {
			f.item(m.placeOf(o.seq), m.line(o.g, o.seq), fmt.Sprintf("rank %d has finished it", m.rank))
			break
		}
	}
	f.say("%s %s in call %d of group %s (%s), which as many others have finished: these records are of different moments, and do not show whether anything stands still",
		showRanks(o.blocked()), verb(o.blocked(), "be"), o.seq, o.g.title(), o.what())
	f.Next = append(f.Next, "dumps of all ranks once more, some seconds later: what has not moved by then hangs")
	f.Picture = picture(o.g, o.seq, nil)
	return true
}

// heads are the operations that have some property, those with most ranks waiting first.
func (a *aligned) heads(has func(*waitOp) bool) (ops []*waitOp) {
	for _, o := range a.w.ops {
		if has(o) {
			ops = append(ops, o)
		}
	}
	slices.SortStableFunc(ops, func(x, y *waitOp) int { return len(y.blocks) - len(x.blocks) })
	return ops
}

// waiting adds the evidence of those that wait.
func (f *finding) waiting(o *waitOp, most int) {
	for i, b := range o.blocks {
		if i == most {
			break
		}
		m := o.g.by[b.rank]
		text := m.line(o.g, o.seq)
		if o.src >= 0 && b.call != nil {
			text = fmt.Sprintf("rank %d, group %s, p2p sequence %d: %s with rank %d, not complete", b.rank, o.g.title(), o.seq, b.call.ask, o.src+o.dst-b.rank)
		}
		f.item(m.placeOf(o.seq), text, fmt.Sprintf("rank %d waits here", b.rank))
	}
}

func (o *waitOp) ask() *ask {
	for _, b := range o.blocks {
		if b.call != nil {
			return b.call.ask
		}
	}
	return o.g.askAt(o.seq)
}

func (o *waitOp) what() string {
	if a := o.ask(); a != nil {
		if o.src >= 0 {
			return fmt.Sprintf("%s (rank %d to rank %d)", a, o.src, o.dst)
		}
		return a.String()
	}
	return "a call"
}

// idle: ranks that others wait for and that themselves wait for nothing, have left the call out or are busy in their own program.
func (a *aligned) idle() bool {
	ops := a.heads(func(o *waitOp) bool { return len(o.idle) > 0 })
	if len(ops) == 0 {
		return false
	}
	var ranks []int
	for _, o := range ops {
		ranks = append(ranks, o.idle...)
	}
	o := ops[0]
	if ahead := o.blocked(); len(ops) == 1 && len(o.idle) > len(ahead) && len(o.idle)+len(ahead) > 2 {
		a.ahead(o, ahead)
		return true
	}
	f := a.j.hostFinding(o, ranks)
	f.about(o.g, o.seq, o.ask())
	f.waiting(o, 2)
	for _, o := range ops {
		for _, r := range o.idle {
			m := o.g.by[r]
			says := fmt.Sprintf("rank %d has completed all that it made and never came to sequence %d", r, o.seq)
			if m.unused {
				says = fmt.Sprintf("rank %d's dump does not know this group: it has not made its first call in it", r)
			} else if !m.log && len(m.calls) == 0 {
				says += "; nothing of it was active when the dump was made"
			}
			f.item(m.where, fmt.Sprintf("rank %d, group %s: last enqueued %d, last completed %d", r, o.g.title(), m.enq, m.done), says)
		}
	}
	f.side(o.blocked(), o.ask())
	if f.Location == "" {
		for _, b := range o.blocks {
			if f.Location = location(b.call); f.Location != "" {
				break
			}
		}
	}
	f.Picture = picture(o.g, o.seq, o.idle)
	a.add(f)
	return true
}

// ahead: most have not come, and few wait. Who is wrong cannot be told from the records: the few may make a call more than the others.
func (a *aligned) ahead(o *waitOp, ahead []int) {
	f := a.add(newFinding(SkippedCollective, unfinished, oneView, ahead...))
	f.about(o.g, o.seq, o.ask())
	f.side(ahead, o.ask())
	f.waiting(o, 2)
	for _, r := range o.idle[:min(3, len(o.idle))] {
		m := o.g.by[r]
		f.item(m.where, fmt.Sprintf("rank %d, group %s: last enqueued %d, last completed %d", r, o.g.title(), m.enq, m.done), fmt.Sprintf("rank %d waits for nothing", r))
	}
	f.say("only %s made call %d of group %s (%s), and waits: a call more than the others make, or %s left it out", showRanks(ahead), o.seq, o.g.title(), o.what(),
		showRanks(o.idle))
	f.alternative(RankStuckHost, oneView, o.idle...)
	f.Picture = picture(o.g, o.seq, ahead)
}

// behind: a rank has given its device the same work as the others, and the device has not done it.
func (a *aligned) behind() bool {
	ops := a.heads(func(o *waitOp) bool { return len(o.behind) > 0 })
	if len(ops) == 0 {
		return false
	}
	var ranks []int
	for _, o := range ops {
		ranks = append(ranks, o.behind...)
	}
	if !a.otherWaits(ranks) {
		return true // their record is a moment older than the others', or their device a moment later: nobody waits for them
	}
	o := ops[0]
	if o.unlike {
		a.unlike(o)
		return true
	}
	f := a.add(newFinding(RankStuckGPU, unfinished, probable, ranks...))
	if o.g.by[o.behind[0]].starts {
		f.Confidence = inferred
	}
	f.about(o.g, o.seq, o.ask())
	f.side(o.behind, o.ask())
	for _, o := range ops {
		for _, r := range o.behind[:min(2, len(o.behind))] {
			m := o.g.by[r]
			f.item(m.placeOf(o.seq), m.line(o.g, o.seq), fmt.Sprintf("rank %d's host has made the call, its device has not done it", r))
		}
		for _, m := range o.g.members {
			if m.counted && !slices.Contains(o.behind, m.rank) {
				f.item(m.placeOf(o.seq), m.line(o.g, o.seq), fmt.Sprintf("rank %d's device has come to it", m.rank))
				break
			}
		}
	}
	f.say("the device of %s is stuck before sequence %d of group %s (%s): the host has enqueued the call like the others' hosts", showRanks(f.Ranks), o.seq, o.g.title(), o.what())
	f.Location = location(o.g.by[o.behind[0]].at(o.seq))
	f.alternative(GPUFault, oneView, ranks...)
	f.alternative(GPUStuckOrNetwork, oneView)
	f.Picture = picture(o.g, o.seq, o.behind)
	return true
}

// unlike: ranks are inside of a call that others have finished with. Equal calls finish together, so these were different ones; in what, is not said.
func (a *aligned) unlike(o *waitOp) {
	var gone []int
	for _, m := range o.g.members {
		if m.counted && m.done >= o.seq {
			gone = append(gone, m.rank)
		}
	}
	inside := o.behind
	odd, usual := inside, gone
	if len(gone) < len(inside) {
		odd, usual = gone, inside
	}
	if len(gone) == len(inside) {
		odd = union(gone, inside)
	}
	class, confidence := OpMismatch, byAbsence
	f := a.add(newFinding(class, unfinished, confidence, odd...))
	f.about(o.g, o.seq, o.ask())
	f.side(inside, o.ask())
	f.waiting(o, 3)
	for _, r := range gone[:min(3, len(gone))] {
		m := o.g.by[r]
		f.item(m.where, m.line(o.g, m.done+1), fmt.Sprintf("rank %d has finished its call %d", r, o.seq))
	}
	f.say("%s %s inside of call %d of group %s (%s), which %s %s finished: equal calls finish together, so these two sides called different things, or sizes", showRanks(inside),
		verb(inside, "be"), o.seq, o.g.title(), o.what(), showRanks(gone), verb(gone, "have"))
	a.shifted(f, o, odd, usual)
	f.alternative(SizeMismatch, f.Confidence, odd...)
	f.alternative(DTypeMismatch, oneView, odd...)
	f.alternative(RankStuckGPU, oneView, inside...)
	f.Picture = picture(o.g, o.seq, odd)
}

// shifted: what a rank is in is what the others wait for one call later.
func (a *aligned) shifted(f *finding, o *waitOp, odd, usual []int) {
	if len(odd) == 0 || len(usual) == 0 {
		return
	}
	mine, theirs := o.g.by[odd[0]], o.g.by[usual[0]]
	x, y := mine.askAt(o.seq), theirs.askAt(o.seq+1)
	if x == nil || y == nil || x.size < 0 || y.size < 0 || !x.same(y) {
		return
	}
	f.Class, f.Confidence = SkippedCollective, probable
	if mine.enq == theirs.enq {
		f.Class = OrderMismatch
	}
	f.say("%s %s in %s as call %d of group %s, which is what %s %s as number %d", showRanks(odd), verb(odd, "be"), x, o.seq, o.g.title(), showRanks(usual), verb(usual, "call"), o.seq+1)
}

// otherWaits tells whether a rank that is not among those waits in anything.
func (a *aligned) otherWaits(ranks []int) bool {
	for _, o := range a.w.ops {
		for _, b := range o.blocks {
			if !slices.Contains(ranks, b.rank) {
				return true
			}
		}
	}
	return false
}

// circle: ranks wait for each other, in two communicators, in the creation of one, or in sends and receives.
func (a *aligned) circle() bool {
	ops := a.w.circle()
	if len(ops) == 0 {
		return false
	}
	slices.SortStableFunc(ops, func(x, y *waitOp) int { return len(y.blocks) - len(x.blocks) })
	var all []int
	p2p, init, groups := false, false, map[*group]bool{}
	for _, o := range ops {
		all = append(all, o.via(ops)...)
		p2p, init = p2p || o.src >= 0, init || o.init
		groups[o.g] = true
	}
	few, clear := fewest(ops)
	ranks := few
	if !clear {
		ranks = all
	}
	if gone := withoutPartner(ops); p2p && len(gone) > 0 {
		ranks, few = gone, gone
	}
	class := CrossedComms
	alone, on := a.oneWay(ops)
	if len(alone) > 0 && !p2p && !init {
		ranks, few = alone, alone
	}
	facing := p2p && !slices.ContainsFunc(ops, func(o *waitOp) bool {
		return slices.ContainsFunc(o.next, func(l waitLink) bool { return l.why == absent })
	})
	switch {
	case facing:
		class = OrderMismatch
	case on && !init && !p2p:
		class = SkippedCollective
	case init:
		class = LazyInit
	case p2p:
		class = UnpairedP2P
	}
	f := a.add(newFinding(class, unfinished, inferred, ranks...))
	if facing || a.source == "calls" || !clear && len(alone) == 0 {
		f.Confidence = probable // they are all in it, and no one of them stands out
	}
	main := ops[len(ops)-1]
	if len(alone) > 0 {
		f.alternative(map[bool]Class{true: CrossedComms, false: SkippedCollective}[on], byAbsence, ranks...)
	}
	f.about(main.g, main.seq, main.ask())
	for _, o := range ops {
		f.side(o.blocked(), o.ask())
		f.waiting(o, 2)
	}
	for _, b := range main.blocks {
		if f.Location == "" {
			f.Location = location(b.call)
		}
	}
	f.Picture = picture(ops[0].g, ops[0].seq, few)
	switch {
	case facing:
		f.say("%s each have the same kind of call with the other before the one that the other waits for: both send first, or both receive first", showRanks(f.Ranks))
	case init:
		made, other := inInit(ops)
		f.say("%s %s in the creation of communicator %s for %s, which %s meanwhile in sequence %d of group %s (%s): creating is a collective call of its own", showRanks(made.blocked()),
			verb(made.blocked(), "wait"), made.g.title(), showRanks(other.blocked()), verb(other.blocked(), "wait"), other.seq, other.g.title(), other.what())
	case p2p && len(f.Ranks) < len(slices.Compact(slices.Sorted(slices.Values(all)))):
		f.say("%s %s gone on without the send or receive that others wait for, and now they wait for each other", showRanks(f.Ranks), verb(f.Ranks, "have"))
	case p2p:
		f.say("%s wait for each other in sends and receives: none of these calls has its partner", showRanks(f.Ranks))
	case on:
		f.say("%s %s gone on to other groups without the call for which %s %s", showRanks(f.Ranks), verb(f.Ranks, "have"), showRanks(skippedBy(ops, f.Ranks).blocked()),
			verb(skippedBy(ops, f.Ranks).blocked(), "wait"))
		f.about(skippedBy(ops, f.Ranks).g, skippedBy(ops, f.Ranks).seq, skippedBy(ops, f.Ranks).ask())
	default:
		f.say("%s %s in group %s, sequence %d, for %s, which %s in group %s, sequence %d: each has taken the two communicators in another order",
			showRanks(main.blocked()), verb(main.blocked(), "wait"), main.g.title(), main.seq, showRanks(ops[0].blocked()), verb(ops[0].blocked(), "wait"), ops[0].g.title(), ops[0].seq)
	}
	return true
}

// inInit are the creation of a communicator in a circle, and what its missing members are in.
func inInit(ops []*waitOp) (made, other *waitOp) {
	made, other = ops[0], ops[len(ops)-1]
	for _, o := range ops {
		if o.init {
			made = o
		}
	}
	for _, l := range made.next {
		if slices.Contains(ops, l.to) && l.to != made {
			other = l.to
		}
	}
	return made, other
}

// via are the ranks by which an operation of a circle waits for the others of it: those who only wait with them have done nothing in another order.
func (o *waitOp) via(ops []*waitOp) (ranks []int) {
	for _, l := range o.next {
		if slices.Contains(ops, l.to) {
			ranks = append(ranks, l.via)
		}
	}
	slices.Sort(ranks)
	return slices.Compact(ranks)
}

// fewest are the ranks by which the circle hangs: of the operations in it, one waits for fewer ranks than all others do.
func fewest(ops []*waitOp) (ranks []int, clear bool) {
	for _, o := range ops {
		via := o.via(ops)
		switch {
		case ranks == nil || len(via) < len(ranks):
			ranks, clear = via, true
		case len(via) == len(ranks) && !slices.Equal(via, ranks):
			clear = false
		}
	}
	return ranks, clear
}

// oneWay finds ranks that alone have not come to an operation of the circle, where everybody else has made both calls in one order: they have taken them in another
// order, or have left one out. on tells the latter: they have made more calls after the one in which they wait.
func (a *aligned) oneWay(ops []*waitOp) (ranks []int, on bool) {
	for _, o := range ops {
		for _, l := range o.next {
			if l.why == absent && slices.Contains(ops, l.to) {
				ranks = union(ranks, []int{l.via})
			}
		}
	}
	var back []int
	for _, o := range ops {
		for _, l := range o.next {
			if l.why == older && slices.Contains(ops, l.to) {
				back = union(back, []int{l.via})
			}
		}
	}
	back = slices.DeleteFunc(back, func(r int) bool { return slices.Contains(ranks, r) })
	if len(back) == 0 || len(back) <= len(ranks) { // those who have taken them in the other order are no majority
		return nil, false
	}
	on = len(ranks) > 0
	for _, r := range ranks {
		on = on && a.madeMore(r, ops)
	}
	return ranks, on
}

// madeMore tells that a rank has calls after the one of the circle that it waits in.
func (a *aligned) madeMore(r int, ops []*waitOp) bool {
	at := int32(-1)
	for _, b := range a.w.blocks[r] {
		if slices.Contains(ops, b.op) {
			at = max(at, b.age())
		}
	}
	for _, g := range a.groups {
		if m := g.by[r]; m != nil && len(m.calls) > 0 && m.calls[len(m.calls)-1].pos > at {
			return at >= 0
		}
	}
	return false
}

// skippedBy is the operation of the circle that the ranks have not come to.
func skippedBy(ops []*waitOp, ranks []int) *waitOp {
	for _, o := range ops {
		if slices.ContainsFunc(o.next, func(l waitLink) bool { return l.why == absent && slices.Contains(ranks, l.via) }) {
			return o
		}
	}
	return ops[0]
}

// withoutPartner are ranks that a send or receive waits for, and that are themselves in a collective: they have gone on without it.
func withoutPartner(ops []*waitOp) (ranks []int) {
	for _, o := range ops {
		for _, l := range o.next {
			if o.src >= 0 && l.to.src < 0 {
				ranks = append(ranks, l.via)
			}
		}
	}
	slices.Sort(ranks)
	return slices.Compact(ranks)
}

// mostWaitFor are those of the ranks without a record for which most others wait, through however many operations.
func (a *aligned) mostWaitFor(silent []int) (best []int) {
	if len(silent) < 2 {
		return silent
	}
	before := map[*waitOp][]*waitOp{}
	for _, o := range a.w.ops {
		for _, l := range o.next {
			before[l.to] = append(before[l.to], o)
		}
	}
	most := 0
	for _, r := range silent {
		seen, waiting := map[*waitOp]bool{}, map[int]bool{}
		queue := a.heads(func(o *waitOp) bool { return slices.Contains(o.silent, r) })
		for len(queue) > 0 {
			o := queue[0]
			queue = queue[1:]
			if seen[o] {
				continue
			}
			seen[o] = true
			for _, b := range o.blocks {
				waiting[b.rank] = true
			}
			queue = append(queue, before[o]...)
		}
		switch n := len(waiting); {
		case n > most:
			most, best = n, []int{r}
		case n == most:
			best = append(best, r)
		}
	}
	return best
}

// known is how many ranks left a record.
func (a *aligned) known() int {
	seen := map[int]bool{}
	for _, g := range a.groups {
		for _, m := range g.members {
			seen[m.rank] = true
		}
	}
	return len(seen)
}

// evenWhole: a group of which all members are known has launched a call everywhere and finished it nowhere. That is an end of all waiting by itself; of ranks without
// a record it is not known that they do anything else than wait for it.
func (a *aligned) evenWhole() bool {
	for _, o := range a.heads(func(o *waitOp) bool { return o.even && o.src < 0 && o.g.sure && len(o.g.ranks) > 1 }) {
		if len(o.blocked()) == len(o.g.ranks) {
			a.even()
			return true
		}
	}
	return false
}

// silent: all ranks that left a record wait, for ranks that left none.
func (a *aligned) silent() bool {
	ops := a.heads(func(o *waitOp) bool { return len(o.silent) > 0 })
	if len(ops) == 0 {
		return false
	}
	var ranks []int
	for _, o := range ops {
		ranks = append(ranks, o.silent...)
	}
	slices.Sort(ranks)
	ranks = slices.Compact(ranks)
	o := ops[0]
	if known := a.known(); known < 2 || len(ranks) >= known {
		f := a.add(newFinding(Undecided, unfinished, direction))
		f.about(o.g, o.seq, o.ask())
		f.waiting(o, 3)
		f.say("cannot tell more than that %s %s in sequence %d of group %s (%s): there is no record of %s", showRanks(o.blocked()), verb(o.blocked(), "wait"), o.seq, o.g.title(),
			o.what(), showRanks(o.silent))
		f.Next = append(f.Next, "the dumps or logs of "+showRanks(o.silent))
		f.Picture = picture(o.g, o.seq, nil)
		return true
	}
	most := a.mostWaitFor(ranks)
	f := a.add(newFinding(RankCrash, unfinished, byAbsence, most...))
	left := "dump"
	if len(ranks) > 1 {
		f.Confidence = oneView // more files may be lost than processes
	}
	if len(most) < len(ranks) {
		f.against(a.j.whereNone(), "no dump of "+showRanks(ranks), "fewer wait for the others of these; their files may have been lost")
		ranks = most
	}
	if o.init {
		f.Class, left = LazyInit, "word"
		f.alternative(RankCrash, oneView, ranks...)
	}
	f.about(o.g, o.seq, o.ask())
	f.side(o.blocked(), o.ask())
	f.waiting(o, 3)
	for _, r := range ranks {
		if d := a.j.by[r]; d != nil && d.Err != nil {
			f.item(d.Where, d.Err.Error(), fmt.Sprintf("rank %d was ended before its dump was written", r))
			f.Confidence = probable
		}
	}
	f.say("all other ranks wait in sequence %d of group %s (%s), and %s left no %s: ended, stopped, or stuck so that none could be written", o.seq, o.g.title(),
		o.what(), showRanks(ranks), left)
	f.alternative(RankStuckHost, oneView, ranks...)
	f.Next = append(f.Next, "the log, the exit status and the kernel log of "+showRanks(ranks))
	f.Picture = picture(o.g, o.seq, ranks)
	return true
}

// someMissing: not all members of a group are known to have come. Then it is not known that the call was launched everywhere; ranks that have spoken and complain of
// nothing are the ones to look at.
func (a *aligned) someMissing(f *finding, o *waitOp) bool {
	if o.src >= 0 || o.g.sure || a.source != "watchdog" {
		return false
	}
	blocked := o.blocked()
	var calm []int
	for _, r := range a.j.logs.ranks {
		if !slices.Contains(blocked, r) && !a.j.waitsSelf(r) && len(a.j.logs.progs[r].trouble) > 0 {
			calm = append(calm, r)
		}
	}
	missing := o.g.size > len(blocked)
	if len(blocked) < 2 || !missing && (len(calm) == 0 || o.g.name == "0") {
		return false
	}
	f.Confidence = oneView
	whom := "whether others have come to it is not said"
	if len(calm) > 0 {
		whom = fmt.Sprintf("%s complain of nothing of their own", showRanks(calm))
		if len(calm) == 1 {
			whom = fmt.Sprintf("%s complains of nothing of its own", showRanks(calm))
		}
		f.alternative(RankStuckHost, oneView, calm...)
	}
	if missing {
		whom = fmt.Sprintf("%d of its %d members are not heard of; ", o.g.size-len(blocked), o.g.size) + whom
		f.Class, f.Confidence = Undecided, direction
		f.alternative(GPUStuckOrNetwork, oneView)
	}
	f.Next = append(f.Next, "flight recorder dumps, which list the members of each group")
	f.say("%s wait in call %d of group %s (%s), and %s", showRanks(blocked), o.seq, o.g.title(), o.what(), whom)
	return true
}

// exchange: of an exchange only the sums are equal, over all ranks: what all send is what all receive.
func (a *aligned) exchange(f *finding, o *waitOp) bool {
	if k := o.ask(); k == nil || k.kind != "all_to_all" || !o.g.sure {
		return false
	}
	var in, out int64
	var odd []int
	for _, r := range o.g.ranks {
		m := o.g.by[r]
		if m == nil || m.askAt(o.seq) == nil {
			return false
		}
		x := m.askAt(o.seq)
		if x.in < 0 || x.out < 0 {
			return false
		}
		in, out = in+x.in, out+x.out
		if x.in != x.out {
			odd = append(odd, r)
		}
	}
	if in == out {
		return false
	}
	f.Class = SizeMismatch
	if len(odd) == 1 && len(o.g.ranks) > 2 {
		f.Ranks, f.Confidence = odd, byAbsence
	}
	f.alternative(GPUStuckOrNetwork, oneView)
	f.say("in call %d of group %s (all_to_all) all ranks together send %d elements and receive %d: what one sends is not what another expects", o.seq, o.g.title(), in, out)
	return true
}

// unlikeEnds tells that both ends of a send or receive are there, and are not the same: it is no call that is equal on all.
func (a *aligned) unlikeEnds(o *waitOp) bool {
	if o.src < 0 {
		return false
	}
	p := a.w.pair(o)
	if p == nil {
		return false
	}
	_, _, class := p.wrongSize()
	return class != ""
}

// even: everywhere launched, nowhere finished.
func (a *aligned) even() {
	ops := a.heads(func(o *waitOp) bool { return o.even && !a.unlikeEnds(o) })
	if len(ops) == 0 {
		return
	}
	o := ops[0]
	f := a.add(newFinding(GPUStuckOrNetwork, unfinished, probable))
	f.about(o.g, o.seq, o.ask())
	f.side(o.blocked(), o.ask())
	f.waiting(o, 4)
	if a.someMissing(f, o) || a.exchange(f, o) {
		return
	}
	if len(o.g.members) < 2 || !o.g.sure && a.source == "watchdog" {
		f.Confidence = byAbsence
	}
	if len(o.blocked()) < 2 && a.j.rasEven() {
		f.Confidence = byAbsence
		f.item(a.j.e.RAS[0].Where, "RAS: OK", "all ranks have launched as many calls, by RAS: whatever it is was launched everywhere")
		f.say("%s waits in call %d of group %s (%s), and RAS has all ranks at the same counts: launched everywhere, and not finished", showRanks(o.blocked()), o.seq, o.g.title(), o.what())
		return
	}
	if m := o.g.members[0]; len(o.g.members) == 1 && o.src < 0 && m.starts && m.begun < o.seq && len(a.w.blocks[m.rank]) == 1 {
		f.Class, f.Ranks, f.Confidence = RankStuckGPU, []int{m.rank}, probable
		f.alternative(GPUStuckOrNetwork, byAbsence)
		f.say("rank %d's device has not even begun with call %d of group %s (%s): something before it on this device does not end, whatever the others do", m.rank, o.seq,
			o.g.title(), o.what())
		return
	}
	if len(o.blocked()) < 2 {
		f.Class, f.Confidence = Undecided, direction
		f.say("cannot tell more than that %s waits in sequence %d of group %s (%s): one rank's record does not show the others", showRanks(o.blocked()), o.seq,
			o.g.title(), o.what())
		f.Next = append(f.Next, "the dumps or logs of the other ranks")
		return
	}
	f.say("%s all made call %d of group %s (%s), the same on all, and it finished nowhere: a device, a link or the library", showRanks(o.blocked()), o.seq, o.g.title(),
		o.what())
	f.alternative(Network, oneView)
	f.alternative(RankStuckGPU, oneView)
	f.Picture = picture(o.g, o.seq, nil)
}
