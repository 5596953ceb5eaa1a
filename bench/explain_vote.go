package bench

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/nccl"
)

// cause is a kind of fault that predicts the bits it leaves behind.
type cause int

const (
	causeUnwritten cause = iota // the poison is still there
	causeZero                   // all bits zero
	causeMoved                  // source data: rank a's, of seed, shifted
	causeResult                 // the reduction's result of seed, shifted
	causeMissing                // all but ranks a … b−1 took part
	causeOnly                   // only ranks a … b−1 took part
	causeRaw                    // rank a's input of seed as it was, neither scaled nor divided
	causeDoubled                // rank a took part twice
	causeReplaced               // rank b took part twice, a not at all
	causeLacksTwo               // ranks a and b did not take part
	causeAlien                  // rank a took part with data of seed, shifted
	causeUndivided              // an average's sum
	causeUnscaled               // PreMulSum without rank a's scalar, a = −1: without any
)

// hypothesis is one supposed cause.
type hypothesis struct {
	cause cause
	a, b  int
	seed  uint64
	shift int64
}

// Bounds of the search; a prediction costs up to 100 ns.
const (
	maxRounds     = 6      // different causes in one piece
	screenSize    = 16     // samples that most hypotheses are tried on
	screenLeast   = 4      // and at least, when there are many hypotheses
	maxTries      = 600000 // predictions for screening a family in a round, for all pieces
	maxCandidates = 96     // hypotheses that all samples vote on
	subsetRanks   = 128    // up to so many ranks, neighbouring ranks are searched as a set
	pairRanks     = 64     // up to so many ranks, pairs are searched
	calibrations  = 64     // elements that say how often chance looks like the cause
	calibrateCost = 1 << 19
	chanceBits    = 24 // an element is worth at most so many bits of evidence
	leastBits     = 16 // evidence for a cause, beyond log2 of the hypotheses tried
	plainBits     = 6  // evidence for the poison and for zeros, which accuse nobody
	enough        = 0.95
	nearlyAll     = 0.9
	absorbed      = 2 // samples beside each other that a cause may leave unexplained
)

// ballot is a hypothesis and how many of the samples agree.
type ballot struct {
	h      hypothesis
	agree  []bool
	k      int          // number that agree
	rivals []hypothesis // others of the same kind that agree as well
}

// common is how many samples both explain.
func (v *ballot) common(o *ballot) int {
	n := 0
	for i, yes := range v.agree {
		if yes && o.agree[i] {
			n++
		}
	}
	return n
}

// inquiry looks for the causes of the wrong elements of one source.
type inquiry struct {
	*evidence
	*finding
	arith
	share       int       // of pieces, that the bounds are divided by
	reduces     bool      // the data is a reduction of several ranks' that the generator knows
	tried       int       // hypotheses
	calibrators []*column // right ones
	shifts      []int64
	missed      []string // families not searched, for the notes
}

func newInquiry(e *evidence, f *finding, share int) *inquiry {
	q := &inquiry{evidence: e, finding: f, arith: newArith(e.dtype, e.op, e.world), share: max(1, share)}
	q.reduces = f.source < 0 && e.world > 1 && e.known()
	return q
}

// vote finds the causes one after the other: each takes the samples that it explains with it.
func (q *inquiry) vote() {
	q.labels = make([]int, len(q.samples))
	for i, c := range q.samples {
		q.labels[i] = -1
		q.loadColumn(c)
	}
	q.shifts = q.listShifts()
	for range maxRounds {
		var left []*column
		var at []int
		for i, c := range q.samples {
			if q.labels[i] < 0 {
				left, at = append(left, c), append(at, i)
			}
		}
		if len(left) == 0 {
			break
		}
		v := q.best(left)
		if v == nil {
			break
		}
		for i, yes := range v.agree {
			if yes {
				q.labels[at[i]] = len(q.causes)
			}
		}
		q.causes = append(q.causes, v)
	}
	q.absorb()
	if len(q.causes) == 0 || slices.Contains(q.labels, -1) {
		q.notes = q.missed
	}
}

func (q *inquiry) loadColumn(c *column) {
	if q.reduces {
		q.load(c, q.seed)
	}
}

// known says whether the generator has data for the operator.
func (e *evidence) known() bool {
	for i := range uint64(64) {
		if csrc.VerifyExpectedBits(int(e.dtype), int(e.op), e.world, e.seed, i) != 0 {
			return true
		}
	}
	return false
}

// absorb gives the few samples that a cause does not explain, amid those that it does, to that cause: sums that were rounded on the way need
// not be predicted to the bit.
func (q *inquiry) absorb() {
	for v := range q.causes {
		first, last, k := -1, -1, 0
		for i, l := range q.labels {
			if l == v {
				if first < 0 {
					first = i
				}
				last = i
				k++
			}
		}
		if first < 0 || float64(k) < nearlyAll*float64(last-first+1) {
			continue
		}
		for i := first; i < last; i++ {
			end := i + 1 // those from i + 1 up to end are not of v
			for q.labels[end] != v {
				end++
			}
			if end-i-1 <= absorbed && q.together(q.samples[i], q.samples[i+1]) && q.together(q.samples[end-1], q.samples[end]) {
				for j := i + 1; j < end; j++ {
					if q.labels[j] < 0 || q.causes[q.labels[j]].h.cause != causeUnwritten {
						q.labels[j] = v
					}
				}
			}
			i = end - 1
		}
		if q.causes[v].h.rough() {
			q.stretch(v, first, -1)
			q.stretch(v, last, 1)
		}
	}
}

// stretch gives unexplained samples beside the first or the last one of a rough cause to it.
func (q *inquiry) stretch(v, from, step int) {
	for i, n := from+step, 0; i >= 0 && i < len(q.labels) && n < absorbed && q.labels[i] < 0; i, n = i+step, n+1 {
		if !q.together(q.samples[min(i, i-step)], q.samples[max(i, i-step)]) {
			return
		}
		q.labels[i] = v
	}
}

// rough says whether a cause breaks the rules that make sums exact.
func (h *hypothesis) rough() bool {
	return h.cause == causeDoubled || h.cause == causeReplaced || h.cause == causeAlien
}

// together says whether two samples are neighbours, so that the same should have happened to both: near, or in the same run.
func (q *inquiry) together(a, b *column) bool {
	if b.at-a.at <= leafElements/64 {
		return true
	}
	return slices.ContainsFunc(q.runs, func(r result.Range) bool { return r.First <= a.at && b.at <= r.Last })
}

// best returns the cause that explains most of the samples, the simplest of several that do, or nil if chance might explain them as well.
func (q *inquiry) best(cols []*column) *ballot {
	var top *ballot
	for _, family := range q.families() {
		list := family.list()
		q.tried += len(list)
		for _, v := range q.screen(family.name, list, cols) {
			switch {
			case top == nil || v.k > top.k+top.k/50:
				v.rivals = nil
				top = v
			case v.h.cause == top.h.cause && top.common(v) >= top.k-top.k/50:
				top.rivals = append(top.rivals, v.h)
			}
		}
		if top != nil && float64(top.k) >= enough*float64(len(cols)) && q.convinced(top, cols) {
			return top
		}
	}
	if top == nil || !q.convinced(top, cols) {
		return nil
	}
	return top
}

// screen tries hypotheses on a few samples and lets all samples vote on the promising ones.
func (q *inquiry) screen(name string, list []hypothesis, cols []*column) []*ballot {
	if len(list) == 0 {
		return nil
	}
	size := max(screenLeast, min(screenSize, maxTries/q.share/len(list)))
	if size*len(list) > 2*maxTries && len(list) > 4*q.evidence.world {
		if !slices.Contains(q.missed, name) {
			q.missed = append(q.missed, name)
		}
		return nil
	}
	some := spread(cols, size)
	least := 1
	if q.width == 8 && len(some) >= 8 {
		least = 2 // in 8 bits one agreement is nothing
	}
	type candidate struct{ i, k int }
	var found []candidate
	for i := range list {
		k := 0
		for n, c := range some {
			if k+len(some)-n < least {
				break
			}
			if q.predict(&list[i], c).allows(c.got) {
				k++
			}
		}
		if k >= least {
			found = append(found, candidate{i, k})
		}
	}
	slices.SortStableFunc(found, func(a, b candidate) int { return cmp.Compare(b.k, a.k) })
	found = found[:min(len(found), maxCandidates)]
	slices.SortFunc(found, func(a, b candidate) int { return cmp.Compare(a.i, b.i) })
	out := make([]*ballot, len(found))
	for n, f := range found {
		v := &ballot{h: list[f.i], agree: make([]bool, len(cols))}
		for i, c := range cols {
			if q.predict(&v.h, c).allows(c.got) {
				v.agree[i] = true
				v.k++
			}
		}
		out[n] = v
	}
	return out
}

// predict says what h would leave at c.
func (q *inquiry) predict(h *hypothesis, c *column) prediction {
	index := c.first + h.shift
	if index < 0 {
		return prediction{none: true}
	}
	n := q.evidence.world
	switch h.cause {
	case causeUnwritten:
		return exactly(q.mask())
	case causeZero:
		return exactly(0)
	case causeMoved:
		return exactly(csrc.VerifyInputBits(int(q.evidence.dtype), csrc.OpSource, h.a, n, h.seed, uint64(index)))
	case causeResult:
		p := exactly(csrc.VerifyExpectedBits(int(q.evidence.dtype), int(q.evidence.op), n, h.seed, uint64(index)))
		if q.pair {
			p.slack = pairSlack
		}
		return p
	case causeMissing:
		return q.finish(q.without(c, h.a, h.b), false)
	case causeOnly:
		return q.finish(q.only(c, h.a, h.b), false)
	case causeRaw:
		return exactly(q.input(h.a, h.seed, index))
	case causeDoubled:
		return q.finish(q.combine(c.pre[n], c.x[h.a]), true)
	case causeReplaced:
		return q.finish(q.combine(q.without(c, h.a, h.a+1), c.x[h.b]), true)
	case causeLacksTwo:
		return q.lacksTwo(c, h.a, h.b)
	case causeAlien:
		x := q.scaled(h.a, q.value(q.input(h.a, h.seed, index)))
		return q.finish(q.combine(q.without(c, h.a, h.a+1), x), true)
	case causeUndivided:
		whole := q.arith
		whole.op = nccl.Sum
		return whole.finish(c.pre[n], true)
	case causeUnscaled:
		return q.unscaled(c, h.a)
	}
	return prediction{none: true}
}

// lacksTwo: the ranks before a, between a and b, and after b.
func (q *inquiry) lacksTwo(c *column, a, b int) prediction {
	var parts []uint64
	if a > 0 {
		parts = append(parts, c.pre[a])
	}
	if b > a+1 {
		parts = append(parts, q.only(c, a+1, b))
	}
	if b+1 < q.evidence.world {
		parts = append(parts, c.suf[b+1])
	}
	if len(parts) == 0 {
		return prediction{none: true}
	}
	v := parts[0]
	for _, x := range parts[1:] {
		v = q.combine(v, x)
	}
	return q.finish(v, false)
}

func (q *inquiry) unscaled(c *column, rank int) prediction {
	if rank >= 0 {
		return q.finish(q.combine(q.without(c, rank, rank+1), q.value(q.input(rank, q.seed, c.first))), false)
	}
	v := q.value(q.input(0, q.seed, c.first))
	for r := 1; r < q.evidence.world; r++ {
		v = q.combine(v, q.value(q.input(r, q.seed, c.first)))
	}
	return q.finish(v, true)
}

// convinced says whether chance is excluded as the reason for so many agreements. Let q be how likely chance makes a sample agree, and T the
// sum of log2(1/q) over those that do. Then for any 0 < λ < 1 a T or more has at most the probability 2^−bits, with
// bits = λT − Σ log2(1 − q + q^(1−λ)) over all samples (Markov's inequality for 2^(λT)). That must be tiny even after so many tries.
func (q *inquiry) convinced(v *ballot, cols []*column) bool {
	odds := q.chance(&v.h, cols)
	most := 0.0
	for step := 1; step < 20; step++ {
		lambda, sum := float64(step)/20, 0.0
		for i, o := range odds {
			if v.agree[i] {
				sum -= lambda * math.Log2(o)
			}
			sum -= math.Log2(1 - o + math.Pow(o, 1-lambda))
		}
		most = max(most, sum)
	}
	if v.h.cause == causeUnwritten || v.h.cause == causeZero {
		return most >= plainBits
	}
	return most >= leastBits+math.Log2(float64(max(1, q.tried)))
}

// chance is q of convinced. A wrong element may be any bits, but it may also be a flipped bit, the next number or zero, and some of these
// are what the cause predicts here and there: without a rank that gives 1, a sum is the next number. So for each such way of being wrong
// it is counted, at other elements, how often the prediction is just that.
func (q *inquiry) chance(h *hypothesis, cols []*column) []float64 {
	out := make([]float64, len(cols))
	base := math.Ldexp(1, -min(q.width, chanceBits))
	for i := range out {
		out[i] = base
	}
	if h.cause == causeUnwritten || h.cause == causeZero {
		for i, c := range cols {
			if bits.OnesCount64(c.got^c.want) == 1 {
				out[i] = 0.9 // a flipped bit is a likelier reason
			}
		}
		return out
	}
	other := q.calibration()
	ways := make(map[int]float64)
	values := make(map[uint64]float64)
	for _, c := range other {
		p := q.predict(h, c)
		if p.none {
			continue
		}
		values[p.bits]++
		for _, w := range q.ways(p.bits, c.want) {
			ways[w]++
		}
	}
	m, collide := float64(len(other)), 0.0
	for _, c := range cols {
		collide += values[c.got]
	}
	base = max(base, min(q.collisions(values, m), collide/m/float64(len(cols))))
	for i, c := range cols {
		out[i] = base
		for _, w := range q.ways(c.got, c.want) {
			out[i] = max(out[i], (ways[w]+0.5)/(m+1))
		}
		if p := q.predict(h, c); p.slack > 0 {
			out[i] *= float64(4*p.slack + 2)
		}
		out[i] = min(out[i], 0.99)
	}
	return out
}

// collisions is how often two predictions for different elements are equal, not counting zeros, which are a way of their own.
func (q *inquiry) collisions(values map[uint64]float64, m float64) float64 {
	sum := 0.0
	for v, n := range values {
		if v != 0 {
			sum += n * n
		}
	}
	return max(1, sum) / m / m
}

// ways lists how bits differ from what they should be: the number of a flipped bit, or a negative number for other simple ways.
func (q *inquiry) ways(got, want uint64) []int {
	var out []int
	if x := got ^ want; x != 0 && x&(x-1) == 0 {
		out = append(out, bits.TrailingZeros64(x))
	}
	switch (got - want) & q.mask() {
	case 1, q.mask():
		out = append(out, -1)
	case 2, q.mask() - 1:
		out = append(out, -2)
	}
	if got == 0 {
		out = append(out, -3)
	}
	return out
}

// calibration returns elements beside the samples.
func (q *inquiry) calibration() []*column {
	if q.calibrators != nil {
		return q.calibrators
	}
	n := max(16, min(calibrations, calibrateCost/q.evidence.world/q.share))
	for k := range int64(n) {
		p := piece{at: -1, count: 1, source: q.source, first: q.finding.pieces[0].first + 1<<20 + k*1009}
		c := &column{piece: p, want: q.want(p)}
		q.loadColumn(c)
		q.calibrators = append(q.calibrators, c)
	}
	return q.calibrators
}

// listShifts are the distances at which data may have been taken by mistake: a few elements, powers of two, pieces and other pieces' places.
func (q *inquiry) listShifts() []int64 {
	seen := map[int64]bool{0: true}
	var out []int64
	add := func(s int64) {
		for _, v := range []int64{s, -s} {
			if !seen[v] {
				seen[v] = true
				out = append(out, v)
			}
		}
	}
	mine := q.finding.pieces[0]
	for k := int64(1); k <= int64(min(q.evidence.world, 32)); k++ {
		add(mine.count * k)
	}
	for _, p := range spread(q.evidence.pieces, 64) {
		add(p.first - mine.first)
		add(p.at - mine.at)
	}
	for k := int64(1); k <= 64; k++ {
		add(k)
	}
	for k := 7; k <= 33; k++ {
		add(1 << k)
	}
	return out
}

// family is hypotheses of a kind.
type family struct {
	name string // for what was not searched
	list func() []hypothesis
}

// families are in order of how much they are to be believed when several explain the same.
func (q *inquiry) families() []family {
	plain := family{"", func() []hypothesis { return []hypothesis{{cause: causeUnwritten}, {cause: causeZero}} }}
	if q.source >= 0 {
		return []family{plain,
			{"", func() []hypothesis { return q.movedRanks(q.source, q.source+1) }},
			{"other ranks' data of earlier operations", func() []hypothesis { return q.movedRanks(0, q.evidence.world) }},
			{"other ranks' data from another place", q.movedShifts}}
	}
	out := []family{plain, {"", q.results}}
	if !q.reduces {
		return out
	}
	return append(out,
		family{"", q.single},
		family{"sets of neighbouring ranks", q.subsets},
		family{"pairs of ranks", q.pairs},
		family{"single contributions of earlier operations", q.aliensStale},
		family{"single contributions from another place", q.aliensShifted})
}

// movedRanks: data of ranks lo … hi−1, now or earlier; for one rank alone also shifted.
func (q *inquiry) movedRanks(lo, hi int) []hypothesis {
	var out []hypothesis
	own := q.evidence.rank
	if hi-lo > 1 {
		out = append(out, hypothesis{cause: causeMoved, a: own, seed: q.seed})
	}
	for i, seed := range append([]uint64{q.seed}, q.stale...) {
		for r := lo; r < hi; r++ {
			if i > 0 || r != q.source && (r != own || hi-lo == 1) {
				out = append(out, hypothesis{cause: causeMoved, a: r, seed: seed})
			}
		}
	}
	if hi-lo == 1 {
		for _, s := range q.shifts {
			out = append(out, hypothesis{cause: causeMoved, a: lo, seed: q.seed, shift: s})
		}
	}
	return out
}

// movedShifts: other ranks' data from another place, as blocks in the wrong order.
func (q *inquiry) movedShifts() []hypothesis {
	var out []hypothesis
	for r := range q.evidence.world {
		if r == q.source {
			continue
		}
		for _, s := range q.shifts {
			out = append(out, hypothesis{cause: causeMoved, a: r, seed: q.seed, shift: s})
		}
	}
	return out
}

// results: the reduction's result, of an earlier operation or from another place.
func (q *inquiry) results() []hypothesis {
	var out []hypothesis
	for _, s := range q.stale {
		out = append(out, hypothesis{cause: causeResult, seed: s}, hypothesis{cause: causeRaw, a: q.evidence.rank, seed: s})
	}
	for _, s := range q.shifts {
		out = append(out, hypothesis{cause: causeResult, seed: q.seed, shift: s})
	}
	return out
}

// single: one rank missing, alone or doubled.
func (q *inquiry) single() []hypothesis {
	n, own := q.evidence.world, q.evidence.rank
	var out []hypothesis
	// Of two ranks, the result of one is the result without the other.
	if n > 2 {
		out = append(out, hypothesis{cause: causeOnly, a: own, b: own + 1})
	}
	for r := range n {
		out = append(out, hypothesis{cause: causeMissing, a: r, b: r + 1})
	}
	for r := range n {
		if n > 2 && r != own {
			out = append(out, hypothesis{cause: causeOnly, a: r, b: r + 1})
		}
	}
	if q.op() == nccl.Avg || q.op() == mulSum {
		out = append(out, hypothesis{cause: causeRaw, a: own, seed: q.seed})
		for r := range n {
			if r != own {
				out = append(out, hypothesis{cause: causeRaw, a: r, seed: q.seed})
			}
		}
	}
	if q.op() == nccl.Avg {
		out = append(out, hypothesis{cause: causeUndivided})
	}
	if q.op() == mulSum {
		out = append(out, hypothesis{cause: causeUnscaled, a: -1})
		for r := 1; r < n; r += 2 {
			out = append(out, hypothesis{cause: causeUnscaled, a: r})
		}
	}
	for r := range n {
		out = append(out, hypothesis{cause: causeDoubled, a: r})
	}
	return out
}

func (q *inquiry) op() nccl.RedOp { return q.evidence.op }

// subsets: neighbouring ranks missing or alone, as when a ring or a host dropped out.
func (q *inquiry) subsets() []hypothesis {
	n := q.evidence.world
	if n > subsetRanks {
		q.skip("sets of neighbouring ranks")
		return nil
	}
	var out []hypothesis
	for length := 2; length < n; length++ {
		for a := 0; a+length <= n; a++ {
			out = append(out, hypothesis{cause: causeMissing, a: a, b: a + length})
		}
	}
	for length := 2; length < n; length++ {
		for a := 1; a+length < n; a++ { // those at the ends are covered above
			out = append(out, hypothesis{cause: causeOnly, a: a, b: a + length})
		}
	}
	return out
}

// pairs: one rank in place of another, or two ranks missing.
func (q *inquiry) pairs() []hypothesis {
	n := q.evidence.world
	if n > pairRanks {
		q.skip("pairs of ranks")
		return nil
	}
	var out []hypothesis
	for a := range n {
		for b := a + 2; b < n; b++ {
			out = append(out, hypothesis{cause: causeLacksTwo, a: a, b: b})
		}
	}
	for a := range n {
		for b := range n {
			if a != b {
				out = append(out, hypothesis{cause: causeReplaced, a: a, b: b})
			}
		}
	}
	return out
}

func (q *inquiry) skip(what string) {
	if !slices.Contains(q.missed, what) {
		q.missed = append(q.missed, what)
	}
}

func (q *inquiry) aliensStale() []hypothesis {
	var out []hypothesis
	for r := range q.evidence.world {
		for _, s := range q.stale {
			out = append(out, hypothesis{cause: causeAlien, a: r, seed: s})
		}
	}
	return out
}

func (q *inquiry) aliensShifted() []hypothesis {
	if q.evidence.world*len(q.shifts) > maxTries {
		q.skip("single contributions from another place")
		return nil
	}
	var out []hypothesis
	for r := range q.evidence.world {
		for _, s := range q.shifts {
			out = append(out, hypothesis{cause: causeAlien, a: r, seed: q.seed, shift: s})
		}
	}
	return out
}
