package bench

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/nccl"
)

// Bounds of the text.
const (
	maxLines       = 8    // causes
	maxIntervals   = 3    // ranges that a line names
	gapProbes      = 16   // right elements between two ranges that are tried, to see whether the cause just does not show there
	lastPlaces     = 4    // steps of the last place that look like rounding
	cutProbes      = 1500 // elements read or predicted for the places where a cause begins and ends
	unseen         = -2   // label of a run without a sample
	noCauseText    = "no single contribution explains it"
	maxListedRanks = 8
)

// segment is neighbouring elements with one cause.
type segment struct {
	first, last int64
	wrong       int64 // −1 unknown
	label       int
}

// cut divides the runs of wrong elements where the cause changes, and joins what is only apart because the cause does not show in between.
func (q *inquiry) cut() error {
	probes := min(cutProbes, max(minVoted, inputBudget/q.evidence.world/q.share))
	var out []segment
	for _, r := range q.runs {
		var in []int
		for i, c := range q.samples {
			if c.at >= r.First && c.at <= r.Last {
				in = append(in, i)
			}
		}
		s := segment{first: r.First, last: r.Last, wrong: r.Wrong, label: unseen}
		if len(in) > 0 {
			s.label = q.labels[in[0]]
		}
		for k := 1; k < len(in); k++ {
			left, right := in[k-1], in[k]
			if q.labels[right] == s.label {
				continue
			}
			end, next, err := q.border(q.samples[left].at, q.samples[right].at, s.label, q.labels[right], &probes)
			if err != nil {
				return err
			}
			full := r.Wrong == r.Last-r.First+1
			s.last = end
			s.wrong = -1
			if full {
				s.wrong = s.last - s.first + 1
			}
			out = append(out, s)
			s = segment{first: next, last: r.Last, wrong: -1, label: q.labels[right]}
			if full {
				s.wrong = s.last - s.first + 1
			}
		}
		out = append(out, s)
	}
	q.segments = q.bridge(out, &probes)
	return nil
}

// border finds, by bisection, the last element of cause l after lo and the first one of cause r before hi.
func (q *inquiry) border(lo, hi int64, l, r int, probes *int) (int64, int64, error) {
	for hi-lo > 1 && *probes > 0 {
		mid := lo + (hi-lo)/2
		side := 0
		at := mid
		for ; at < hi && at < mid+8 && side == 0 && *probes > 0; at++ {
			*probes--
			var err error
			if side, err = q.side(at, l, r); err != nil {
				return 0, 0, err
			}
		}
		switch {
		case side < 0:
			lo = at - 1
		case side > 0 && at-1 > mid: // those from mid on told nothing
			hi = mid
		default:
			hi = mid
		}
	}
	return lo, hi, nil
}

// side says whether the element at belongs to cause l (−1) or r (1), 0 when it does not show.
func (q *inquiry) side(at int64, l, r int) (int, error) {
	raw, err := q.elements(at, 1)
	if err != nil {
		return 0, err
	}
	p, ok := q.element(at)
	if !ok || q.right(p, raw[0]) {
		return 0, nil
	}
	c := &column{piece: p, got: raw[0], want: q.want(p)}
	q.loadColumn(c)
	isL := l >= 0 && q.predict(&q.causes[l].h, c).allows(c.got)
	isR := r >= 0 && q.predict(&q.causes[r].h, c).allows(c.got)
	switch {
	case isL == isR && l >= 0 && r >= 0:
		return 0, nil
	case isL || l < 0 && !isR:
		return -1, nil
	}
	return 1, nil
}

// bridge joins segments of the same cause where the elements in between would be right under it, too.
func (q *inquiry) bridge(list []segment, probes *int) []segment {
	var out []segment
	for _, s := range list {
		n := len(out)
		if n == 0 || out[n-1].label != s.label || s.label < 0 || !q.hidden(s.label, out[n-1].last+1, s.first, probes) {
			out = append(out, s)
			continue
		}
		out[n-1].last = s.last
		if out[n-1].wrong < 0 || s.wrong < 0 {
			out[n-1].wrong = -1
		} else {
			out[n-1].wrong += s.wrong
		}
	}
	return out
}

// hidden says whether cause v shows nowhere from element lo up to hi.
func (q *inquiry) hidden(v int, lo, hi int64, probes *int) bool {
	n := min(hi-lo, gapProbes)
	for k := range n {
		if *probes--; *probes < 0 {
			return false
		}
		p, ok := q.element(lo + (hi-lo)*k/n)
		if !ok {
			return false
		}
		c := &column{piece: p, want: q.want(p)}
		q.loadColumn(c)
		if !q.predict(&q.causes[v].h, c).allows(c.want) {
			return false
		}
	}
	return true
}

// line is one cause's part of the text.
type line struct {
	first  int64 // for the order
	text   string
	kind   string
	blamed int // −1 nobody
	weight int64
}

// conclude writes the analysis.
func (e *evidence) conclude(f *result.Fault, findings []*finding, rest []int) {
	var lines []line
	notes := map[string]bool{}
	for _, one := range findings {
		lines = append(lines, e.lines(one)...)
		for _, n := range one.notes {
			notes[n] = true
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.first, b.first) })
	e.summarise(f, lines, len(rest))
	var out []string
	for _, l := range lines[:min(len(lines), maxLines)] {
		out = append(out, l.text)
	}
	if n := len(lines) - maxLines; n > 0 {
		out = append(out, fmt.Sprintf("and %d more causes like these", n))
	}
	if len(rest) > 0 {
		out = append(out, fmt.Sprintf("also wrong, but not searched for a cause: what should hold the data of %s", ranksText(rest)))
	}
	if len(notes) > 0 {
		var list []string
		for n := range notes {
			list = append(list, n)
		}
		slices.Sort(list)
		out = append(out, fmt.Sprintf("not searched, because there are %d ranks: %s", e.world, strings.Join(list, ", ")))
	}
	f.Analysis = strings.Join(out, "\n")
}

// summarise sets Kind and Blamed: what nearly all of the evidence says.
func (e *evidence) summarise(f *result.Fault, lines []line, rest int) {
	kinds, blamed, total := map[string]int64{}, map[int]int64{}, int64(0)
	for _, l := range lines {
		kinds[l.kind] += l.weight
		blamed[l.blamed] += l.weight
		total += l.weight
	}
	f.Kind = result.FaultMixed
	if len(kinds) == 1 && lines[0].kind == result.FaultUnknown || total == 0 {
		f.Kind = result.FaultUnknown
	}
	for k, w := range kinds {
		if float64(w) >= nearlyAll*float64(total) {
			f.Kind = k
		}
	}
	for r, w := range blamed {
		if r >= 0 && rest == 0 && float64(w) >= nearlyAll*float64(total) {
			f.Blamed = &r
		}
	}
}

// lines makes one line for each cause in a piece, and one for what has none.
func (e *evidence) lines(f *finding) []line {
	var out []line
	for label := unseen; label < len(f.causes); label++ {
		var mine []segment
		for _, s := range f.segments {
			if s.label == label {
				mine = append(mine, s)
			}
		}
		if len(mine) == 0 {
			continue
		}
		l := line{first: mine[0].first, kind: result.FaultUnknown, blamed: -1}
		var in []*column
		agree := 0
		for i, c := range f.samples {
			if f.labels[i] == label {
				in = append(in, c)
				if label >= 0 && f.causes[label].agreesWith(e, f, c) {
					agree++
				}
			}
		}
		l.weight = int64(len(in))
		where := e.where(f, mine)
		switch {
		case label == unseen:
			l.text = where + ": wrong, but no element was looked at closely"
		case label < 0:
			var what string
			what, l.kind = e.pattern(f, mine, in)
			l.text = where + ": " + what
		default:
			var what, as string
			what, as, l.kind, l.blamed = e.statement(f.source, f.causes[label])
			l.text = fmt.Sprintf("%s: %s (%s)", where, what, sampledText(agree, len(in), as))
		}
		out = append(out, l)
	}
	return out
}

func (v *ballot) agreesWith(e *evidence, f *finding, c *column) bool {
	q := inquiry{evidence: e, finding: f, arith: newArith(e.dtype, e.op, e.world)}
	return q.predict(&v.h, c).allows(c.got)
}

// sampledText says how many samples a statement rests on.
func sampledText(k, n int, as string) string {
	switch {
	case n == 1:
		verb, rest, _ := strings.Cut(as, " ")
		one := map[string]string{"equal": "equals", "are": "is", "still": "still", "fit": "fits"}[verb]
		return "the one sampled element " + one + " " + strings.Replace(rest, "hold ", "holds ", 1)
	case k == n && n == 2:
		return "both sampled elements " + as
	case k == n:
		return fmt.Sprintf("all %d sampled elements %s", n, as)
	}
	return fmt.Sprintf("%d of %d sampled elements %s", k, n, as)
}

// where names the places of segments.
func (e *evidence) where(f *finding, list []segment) string {
	size := int64(e.dtype.Size())
	var out []string
	for _, s := range list[:min(len(list), maxIntervals)] {
		n := s.last - s.first + 1
		few := ""
		if s.wrong >= 0 && s.wrong < n {
			few = fmt.Sprintf(", %d of %d wrong", s.wrong, n)
		}
		span := fmt.Sprintf("%d–%d", s.first, s.last)
		if n == 1 {
			span = strconv.FormatInt(s.first, 10)
		}
		out = append(out, fmt.Sprintf("%s (bytes %d–%d%s)", span, s.first*size, (s.last+1)*size-1, few))
	}
	text := "elements "
	if len(list) == 1 && list[0].first == list[0].last {
		text = "element "
	}
	text += strings.Join(out, ", ")
	if n := len(list) - maxIntervals; n > 0 {
		text += fmt.Sprintf(" and %d more places up to element %d", n, list[len(list)-1].last)
	}
	if f.source >= 0 {
		text += fmt.Sprintf(", which should hold rank %d's data", f.source)
	}
	return text
}

// statement says in words what a cause is, what the samples equal, and who is to blame, −1 nobody.
func (e *evidence) statement(source int, v *ballot) (what, as, kind string, blamed int) {
	h := v.h
	if len(v.rivals) > 0 {
		return e.ambiguous(v)
	}
	others := fmt.Sprintf("the %s over the other %d ranks", e.opName(), e.world-1)
	if e.world == 2 {
		others = "the other rank's input alone"
	}
	all := "the " + e.opName()
	switch h.cause {
	case causeUnwritten:
		return "never written", "still hold the pattern from before the operation", result.FaultUnwritten, source
	case causeZero:
		return "all zero", "are zero", result.FaultZero, source
	case causeMoved:
		return e.moved(source, h)
	case causeResult:
		if h.shift != 0 {
			return "the result from another place: " + shiftText(h.shift), fmt.Sprintf("equal the result %s", shiftText(h.shift)), result.FaultShifted, -1
		}
		return "left over from an earlier operation", "equal that operation's result", result.FaultStale, -1
	case causeMissing:
		if h.b-h.a == 1 {
			return fmt.Sprintf("rank %d's contribution is missing", h.a), "equal " + others, result.FaultMissing, h.a
		}
		return fmt.Sprintf("the contributions of ranks %d–%d are missing", h.a, h.b-1),
			fmt.Sprintf("equal %s over the other %d ranks", all, e.world-h.b+h.a), result.FaultMissing, -1
	case causeOnly:
		return e.alone(h)
	case causeRaw:
		if h.seed != e.seed {
			return "left over from an earlier operation", fmt.Sprintf("equal rank %d's own input of that operation", h.a), result.FaultStale, -1
		}
		return e.alone(hypothesis{cause: causeOnly, a: h.a, b: h.a + 1})
	case causeDoubled:
		return fmt.Sprintf("rank %d's contribution counts twice", h.a), fmt.Sprintf("equal %s with rank %d's input once more", all, h.a), result.FaultDoubled, h.a
	case causeReplaced:
		return fmt.Sprintf("rank %d's contribution is missing and rank %d's counts twice", h.a, h.b),
			fmt.Sprintf("equal %s with rank %d's input in place of rank %d's", all, h.b, h.a), result.FaultReplaced, h.a
	case causeLacksTwo:
		return fmt.Sprintf("the contributions of ranks %d and %d are missing", h.a, h.b), fmt.Sprintf("equal %s over the other %d ranks", all, e.world-2), result.FaultMissing, -1
	case causeAlien:
		if h.seed != e.seed {
			return fmt.Sprintf("rank %d's contribution is left over from an earlier operation", h.a),
				fmt.Sprintf("equal %s with rank %d's input of that operation", all, h.a), result.FaultStale, h.a
		}
		return fmt.Sprintf("rank %d's contribution is taken from the wrong place: %s", h.a, shiftText(h.shift)),
			fmt.Sprintf("equal %s with rank %d's input %s", all, h.a, shiftText(h.shift)), result.FaultShifted, h.a
	case causeUndivided:
		return fmt.Sprintf("the sum was not divided by %d", e.world), "equal the sum over all ranks", result.FaultUnscaled, -1
	case causeUnscaled:
		if h.a < 0 {
			return "no rank's factor was applied", "equal the plain sum over all ranks", result.FaultUnscaled, -1
		}
		return fmt.Sprintf("rank %d's factor was not applied", h.a), fmt.Sprintf("equal the sum with rank %d's plain input", h.a), result.FaultUnscaled, h.a
	}
	return noCauseText, "", result.FaultUnknown, -1
}

// alone words that only some ranks took part.
func (e *evidence) alone(h hypothesis) (what, as, kind string, blamed int) {
	switch {
	case h.b-h.a > 1:
		return fmt.Sprintf("only ranks %d–%d took part, the contributions of the other %d are missing", h.a, h.b-1, e.world-h.b+h.a),
			fmt.Sprintf("equal the %s over ranks %d–%d", e.opName(), h.a, h.b-1), result.FaultMissing, -1
	case h.a == e.rank:
		return fmt.Sprintf("only rank %d's own input: nothing was reduced", h.a), "equal its own input", result.FaultNotReduced, -1
	}
	return fmt.Sprintf("only rank %d's input: nothing was reduced", h.a), fmt.Sprintf("equal rank %d's input", h.a), result.FaultNotReduced, -1
}

// moved words what a place holds instead of the data of the rank it should.
func (e *evidence) moved(source int, h hypothesis) (what, as, kind string, blamed int) {
	whose := fmt.Sprintf("rank %d's data", h.a)
	if h.a == e.rank {
		whose = fmt.Sprintf("rank %d's own data", h.a)
	}
	switch {
	case h.seed != e.seed:
		return fmt.Sprintf("left over from an earlier operation: %s of then", whose), "equal it", result.FaultStale, source
	case h.a == source:
		return fmt.Sprintf("%s, shifted by %+d elements", whose, h.shift), fmt.Sprintf("equal its data %s", shiftText(h.shift)), result.FaultShifted, source
	case h.shift != 0:
		return fmt.Sprintf("holds %s instead of rank %d's, and from another place: shifted by %+d elements", whose, source, h.shift),
			fmt.Sprintf("equal rank %d's data %s", h.a, shiftText(h.shift)), result.FaultOtherRank, source
	}
	return fmt.Sprintf("holds %s instead of rank %d's", whose, source), fmt.Sprintf("equal rank %d's data at the same place", h.a), result.FaultOtherRank, source
}

// ambiguous names the ranks that the elements cannot tell apart.
func (e *evidence) ambiguous(v *ballot) (what, as, kind string, blamed int) {
	one := *v
	one.rivals = nil
	_, _, kind, _ = e.statement(-1, &one)
	ranks := []int{v.h.a}
	for _, r := range v.rivals {
		ranks = append(ranks, r.a)
	}
	slices.Sort(ranks)
	ranks = slices.Compact(ranks)
	return fmt.Sprintf("%s, but these elements cannot tell whose fault: one of %s", kind, ranksText(ranks)), "fit each of them", kind, -1
}

// shiftText says where data was taken from.
func shiftText(s int64) string {
	if s < 0 {
		return fmt.Sprintf("from %d elements earlier", -s)
	}
	return fmt.Sprintf("from %d elements further on", s)
}

func (e *evidence) opName() string {
	switch e.op {
	case nccl.Sum:
		return "sum"
	case nccl.Prod:
		return "product"
	case nccl.Max:
		return "maximum"
	case nccl.Min:
		return "minimum"
	case nccl.Avg:
		return "average"
	case mulSum:
		return "sum of products"
	}
	return e.op.String()
}

// ranksText lists ranks: "rank 3", "ranks 0–2, 7".
func ranksText(list []int) string {
	var parts []string
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}
		switch {
		case j > i+1:
			parts = append(parts, fmt.Sprintf("%d–%d", list[i], list[j]))
		case j == i+1:
			parts = append(parts, strconv.Itoa(list[i]), strconv.Itoa(list[j]))
		default:
			parts = append(parts, strconv.Itoa(list[i]))
		}
		i = j + 1
	}
	if n := len(parts) - maxListedRanks; n > 0 {
		parts = append(parts[:maxListedRanks], fmt.Sprintf("and %d more", n))
	}
	if len(list) == 1 {
		return "rank " + parts[0]
	}
	return "ranks " + strings.Join(parts, ", ")
}

// pattern describes wrong elements that no cause explains by their bits and by their places.
func (e *evidence) pattern(f *finding, list []segment, in []*column) (what, kind string) {
	a := newArith(e.dtype, e.op, e.world)
	single, sameXor, sameGot, close := true, true, true, true
	for _, c := range in {
		x := c.got ^ c.want
		single = single && bits.OnesCount64(x) == 1
		sameXor = sameXor && x == in[0].got^in[0].want
		sameGot = sameGot && c.got == in[0].got
		close = close && near(c.got, c.want, lastPlaces)
	}
	n, kind := len(in), result.FaultUnknown
	x := in[0].got ^ in[0].want
	switch {
	case single && sameXor:
		what, kind = fmt.Sprintf("one bit differs: bit %d", bits.TrailingZeros64(x)), result.FaultBits
		if n > 1 {
			what = fmt.Sprintf("the same bit differs in all %d sampled elements: bit %d", n, bits.TrailingZeros64(x))
		}
	case single:
		what, kind = fmt.Sprintf("one bit differs in each of %d sampled elements, not always the same", n), result.FaultBits
	case sameXor && n > 1:
		what, kind = fmt.Sprintf("the same bits differ in all %d sampled elements: %#x", n, x), result.FaultBits
	case sameGot && n > 1:
		what = fmt.Sprintf("all %d sampled elements hold the same value, %s", n, formatBits(e.dtype, in[0].got))
	case close && a.p != 0:
		what = fmt.Sprintf("off by a few steps of the last place in all %d sampled elements, as by rounding", n)
	default:
		what = noCauseText
	}
	if n <= 3 && what == noCauseText {
		what += ", and so few elements would hardly tell"
	}
	if at := e.alignment(f, list); at != "" {
		what += "; " + at
	}
	return what, kind
}

// alignment says at multiples of how many bytes all ranges begin and end; the ends of a piece count for nothing.
func (e *evidence) alignment(f *finding, list []segment) string {
	size := int64(e.dtype.Size())
	var all uint64
	known := false
	for _, s := range list {
		if s.wrong >= 0 && s.wrong < s.last-s.first+1 {
			return "" // not every element is, so the ends are those of the search
		}
		if _, inside := f.element(s.first - 1); inside {
			all, known = all|uint64(s.first*size), true
		}
		if _, inside := f.element(s.last + 1); inside {
			all, known = all|uint64((s.last+1)*size), true
		}
	}
	if !known {
		return ""
	}
	for _, unit := range []int64{2 << 20, 64 << 10, 4096, 512, 128, 16} {
		if all&uint64(unit-1) == 0 && unit > size {
			return fmt.Sprintf("ranges begin and end at multiples of %d bytes", unit)
		}
	}
	return ""
}

// jointly looks at the faults of all ranks of one half of a row together and says what they have in common and where to look first; ""
// when there is no fault. world is the communicator's size, and faults are of ranks of one communicator, one a rank.
func jointly(faults []result.Fault, world int) string {
	if len(faults) == 0 {
		return ""
	}
	var wrong []int
	blamed, kinds := map[int]int{}, map[string]int{}
	sameRanges := true
	for _, f := range faults {
		wrong = append(wrong, f.Rank)
		kinds[f.Kind]++
		if f.Blamed != nil {
			blamed[*f.Blamed]++
		}
		sameRanges = sameRanges && slices.Equal(f.Ranges, faults[0].Ranges)
	}
	slices.Sort(wrong)
	wrong = slices.Compact(wrong)
	kind := faults[0].Kind
	if len(kinds) > 1 {
		kind = result.FaultMixed
	}
	if len(blamed) == 1 && len(faults) > 0 && faults[0].Blamed != nil && blamed[*faults[0].Blamed] == len(faults) {
		return blameText(wrong, *faults[0].Blamed, kind, world) + placeText(len(wrong), sameRanges)
	}
	who := whoText(wrong, world)
	switch {
	case len(wrong) == 1 && world > 1:
		return fmt.Sprintf("only rank %d is wrong (%s): look at its receive side or memory", wrong[0], kindText(kind))
	case len(wrong) == 1:
		return fmt.Sprintf("rank 0 is wrong (%s), and there is no other: look at its memory", kindText(kind))
	case kind == result.FaultNotReduced && len(wrong) == world:
		return "every rank has only its input, nothing was reduced: look at whether the operation ran at all" + placeText(len(wrong), sameRanges)
	case kind == result.FaultUnwritten && len(wrong) == world:
		return "no rank's result was written: look at whether the operation ran at all, and on these buffers" + placeText(len(wrong), sameRanges)
	case len(blamed) > 1:
		ranks := make([]int, 0, len(blamed))
		for r := range blamed {
			ranks = append(ranks, r)
		}
		slices.Sort(ranks)
		return fmt.Sprintf("%s wrong (%s), with data of %s: no single sender explains it", who, kindText(kind), ranksText(ranks)) +
			placeText(len(wrong), sameRanges)
	}
	return fmt.Sprintf("%s wrong (%s)", who, kindText(kind)) + placeText(len(wrong), sameRanges) + ": look at what they share"
}

// whoText is the subject of a sentence about wrong ranks.
func whoText(wrong []int, world int) string {
	switch {
	case len(wrong) == world && world > 1:
		return "every rank is"
	case len(wrong) == 1:
		return fmt.Sprintf("rank %d is", wrong[0])
	}
	return fmt.Sprintf("%s of %d are", ranksText(wrong), world)
}

func kindText(kind string) string {
	switch kind {
	case "", result.FaultUnknown:
		return "cause unknown"
	}
	return kind
}

// blameText is for faults that all blame the same rank.
func blameText(wrong []int, blamed int, kind string, world int) string {
	what := map[string]string{
		result.FaultMissing: "%s lack%s rank %d's contribution", result.FaultDoubled: "%s count%s rank %d's contribution twice",
		result.FaultReplaced: "%s lack%s rank %d's contribution and have another one twice",
		result.FaultStale:    "%s ha%s rank %d's data of an earlier operation", result.FaultShifted: "%s ha%s rank %d's data from a wrong place",
		result.FaultOtherRank: "%s lack%s rank %d's data and have another rank's instead",
		result.FaultUnwritten: "%s got%s nothing from rank %d", result.FaultZero: "%s ha%s zeros in place of rank %d's data",
		result.FaultUnscaled: "%s lack%s rank %d's factor",
	}[kind]
	if what == "" {
		what = "%s ha%s wrong data of rank %d"
	}
	everyOther := len(wrong) == world-1 && !slices.Contains(wrong, blamed)
	subject, one := ranksText(wrong)+fmt.Sprintf(" of %d", world), false
	switch {
	case world > 1 && len(wrong) == world:
		subject, one = "every rank", true
	case world > 2 && everyOther:
		subject, one = fmt.Sprintf("every rank but rank %d itself", blamed), true
	case len(wrong) == 1:
		subject, one = fmt.Sprintf("only rank %d", wrong[0]), true
	}
	ending := ""
	switch {
	case strings.Contains(what, "ha%s") && one:
		ending = "s"
	case strings.Contains(what, "ha%s"):
		ending = "ve"
	case one && !strings.Contains(what, "got%s"):
		ending = "s"
	}
	text := fmt.Sprintf(what, subject, ending, blamed)
	switch {
	case len(wrong) == 1 && wrong[0] == blamed:
		return text + fmt.Sprintf(": look at rank %d's own copy and memory", blamed)
	case len(wrong) == 1:
		return text + fmt.Sprintf(": look at the way from rank %d to rank %d and at rank %d's receive side", blamed, wrong[0], wrong[0])
	case len(wrong) == world || everyOther:
		return text + fmt.Sprintf(": look at rank %d's send side", blamed)
	}
	return text + fmt.Sprintf(": look at the way from rank %d to these ranks", blamed)
}

// placeText says whether all ranks are wrong at the same elements.
func placeText(ranks int, same bool) string {
	if ranks > 1 && same {
		return " (the same elements on each)"
	}
	return ""
}
