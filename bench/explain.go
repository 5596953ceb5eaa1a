package bench

import (
	"cmp"
	"fmt"
	"slices"
	"sort"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/nccl"
)

// This file finds the wrong elements and puts a Fault together. explain_vote.go decides what explains them, explain_arith.go predicts what
// a supposed cause would have left behind, explain_text.go says it in words.

// piece says what one part of a rank's result must be.
type piece struct {
	at     int64 // element offset in the rank's result
	count  int64
	source int   // rank (in the communicator) whose data it is, -1: the reduction over all ranks
	first  int64 // index, in the generator's space, of the piece's first element
}

// evidence is what explain works on. Ranks are those of the communicator.
type evidence struct {
	rank, world int // whose result
	dtype       nccl.DataType
	op          nccl.RedOp // the reduction; pieces with a source use csrc.OpSource
	seed        uint64
	stale       []uint64 // seeds of earlier operations on this buffer: an element that equals their result was not written anew
	pieces      []piece
	wrong       func(p piece) (int64, error)          // how many elements of this (part of a) piece the device finds wrong
	read        func(at, count int64) ([]byte, error) // the rank's result, elements, little endian
}

// Bounds. A call of wrong is a kernel and a wait, tens of µs; a call of read about as much; comparing an element here takes 60 ns. With
// these bounds the search takes a few thousand calls of wrong and compares less than a million elements, however large the result.
const (
	leafElements  = 4096    // areas up to this size are compared element by element
	fanOut        = 16      // parts that a larger area is split into
	maxOpen       = 48      // areas split a level; the others are reported whole
	maxLeaves     = 160     // areas compared element by element
	sampleWindow  = 256     // elements looked through for a wrong one where an area was not searched
	maxRuns       = 64      // runs a source's text is made from
	maxVoted      = 256     // wrong elements a source that vote on causes
	minVoted      = 32      // where many ranks make an element's inputs slow
	maxSources    = 16      // sources whose cause is searched
	inputBudget   = 2 << 20 // inputs computed for the votes on all sources; 60 ns and 24 bytes each
	recipFormBias = 15      // types with a larger bias have no subnormal 1/n
)

// area is neighbouring elements of one piece with some that are wrong.
type area struct {
	piece
	wrong int64
}

func (p piece) end() int64 { return p.at + p.count }

// part is count elements of p from element off.
func (p piece) part(off, count int64) piece {
	return piece{at: p.at + off, count: count, source: p.source, first: p.first + off}
}

// explain says which elements are wrong and why. It returns nil when the device finds nothing wrong. In the Fault, Wrong is the device's
// count over all pieces; all indices are those of the rank's result. Ranges are exact where the search went down to elements; where it did
// not, and where more than result.MaxRanges were nearest neighbours and so joined, Range.Wrong is less than the range's length.
//
// A cause is named only if it predicts the sampled wrong elements so well that chance is excluded; see (*inquiry).convinced.
func (e *evidence) explain() (*result.Fault, error) {
	if e.dtype < nccl.Int8 || e.dtype > nccl.Float8E5M2 || e.world < 1 || e.rank < 0 || e.rank >= e.world {
		return nil, fmt.Errorf("explain rank %d of %d, %s: no such rank or type", e.rank, e.world, e.dtype)
	}
	areas, err := e.locate()
	if err != nil || len(areas) == 0 {
		return nil, err
	}
	f := &result.Fault{Rank: e.rank}
	for _, a := range areas {
		f.Wrong += a.wrong
	}
	runs := runsOf(areas)
	f.First, f.Last = runs[0].First, runs[len(runs)-1].Last
	f.Ranges = joinRuns(runs, result.MaxRanges)
	findings, rest, err := e.findings(areas)
	if err != nil {
		return nil, err
	}
	f.Samples = e.show(findings)
	e.conclude(f, findings, rest)
	return f, nil
}

// locate narrows down where the wrong elements are, in order.
func (e *evidence) locate() ([]area, error) {
	var open, done, leaves []area
	pieces := slices.Clone(e.pieces)
	slices.SortStableFunc(pieces, func(a, b piece) int { return cmp.Compare(a.at, b.at) })
	for _, p := range pieces {
		if p.count == 0 {
			continue
		}
		n, err := e.wrong(p)
		if err != nil {
			return nil, err
		}
		if n > 0 {
			open = append(open, area{p, min(n, p.count)})
		}
	}
	for len(open) > 0 {
		var mixed []area
		for _, a := range open {
			switch {
			case a.wrong == a.count:
				done = append(done, a)
			case a.count <= leafElements:
				leaves = append(leaves, a)
			default:
				mixed = append(mixed, a)
			}
		}
		open = nil
		for i, chosen := range choose(mixed, maxOpen) {
			if !chosen {
				done = append(done, mixed[i])
				continue
			}
			parts, err := e.split(mixed[i])
			if err != nil {
				return nil, err
			}
			open = append(open, parts...)
		}
	}
	sortAreas(leaves)
	for i, chosen := range choose(leaves, maxLeaves) {
		if !chosen {
			done = append(done, leaves[i])
			continue
		}
		found, err := e.compare(leaves[i])
		if err != nil {
			return nil, err
		}
		done = append(done, found...)
	}
	sortAreas(done)
	return done, nil
}

func sortAreas(a []area) {
	slices.SortFunc(a, func(a, b area) int { return cmp.Compare(a.at, b.at) })
}

// choose picks up to limit of the areas, which are in order: first those at the ends of a row of touching areas, because ends tell most
// about a cause; the first and the last one always.
func choose(a []area, limit int) []bool {
	out := make([]bool, len(a))
	var edges, inner []int
	for i := range a {
		if i == 0 || i == len(a)-1 || a[i-1].end() != a[i].at || a[i].end() != a[i+1].at {
			edges = append(edges, i)
		} else {
			inner = append(inner, i)
		}
	}
	for _, i := range spread(edges, limit) {
		out[i] = true
	}
	for _, i := range spread(inner, limit-min(limit, len(edges))) {
		out[i] = true
	}
	return out
}

// spread picks up to limit of list, evenly, with the first and the last.
func spread[T any](list []T, limit int) []T {
	if len(list) <= limit {
		return list
	}
	out := make([]T, limit)
	for k := range out {
		out[k] = list[k*(len(list)-1)/max(1, limit-1)]
	}
	return out
}

// split counts the wrong elements of an area's parts.
func (e *evidence) split(a area) ([]area, error) {
	var out []area
	step := (a.count + fanOut - 1) / fanOut
	left := a.wrong
	for off := int64(0); off < a.count && left > 0; off += step {
		p := a.part(off, min(step, a.count-off))
		n := left
		if p.end() < a.end() { // what the others lack is in the last one
			var err error
			if n, err = e.wrong(p); err != nil {
				return nil, err
			}
			n = min(n, left)
		}
		if n > 0 {
			out = append(out, area{p, min(n, p.count)})
		}
		left -= n
	}
	return out, nil
}

// compare finds the runs of wrong elements of an area.
func (e *evidence) compare(a area) ([]area, error) {
	raw, err := e.elements(a.at, a.count)
	if err != nil {
		return nil, err
	}
	var out []area
	left := a.wrong
	for k := int64(0); k < a.count && left > 0; k++ {
		if e.right(a.part(k, 1), raw[k]) {
			continue
		}
		left--
		if n := len(out); n > 0 && out[n-1].end() == a.at+k {
			out[n-1].count++
			out[n-1].wrong++
		} else {
			out = append(out, area{a.part(k, 1), 1})
		}
	}
	return out, nil
}

// elements reads count elements as zero-extended bits.
func (e *evidence) elements(at, count int64) ([]uint64, error) {
	raw, err := e.read(at, count)
	if err != nil {
		return nil, err
	}
	size := e.dtype.Size()
	if int64(len(raw)) != count*int64(size) {
		return nil, fmt.Errorf("read elements %d to %d: %d bytes instead of %d", at, at+count-1, len(raw), count*int64(size))
	}
	out := make([]uint64, count)
	for i := range out {
		for k := size - 1; k >= 0; k-- {
			out[i] = out[i]<<8 | uint64(raw[i*size+k])
		}
	}
	return out, nil
}

// want is what element p, a piece of one, must be.
func (e *evidence) want(p piece) uint64 {
	if p.source >= 0 {
		return csrc.VerifyInputBits(int(e.dtype), csrc.OpSource, p.source, e.world, e.seed, uint64(p.first))
	}
	return csrc.VerifyExpectedBits(int(e.dtype), int(e.op), e.world, e.seed, uint64(p.first))
}

// right accepts what cp_check accepts (csrc/verify_kernels.h). The rule for a subnormal 1/n needs the inputs of all ranks, so the device is
// asked about such an element.
func (e *evidence) right(p piece, got uint64) bool {
	want := e.want(p)
	if got == want {
		return true
	}
	a := newArith(e.dtype, e.op, e.world)
	if p.source >= 0 || !a.pair {
		return false
	}
	if near(got, want, pairSlack) {
		return true
	}
	if a.recip == 0 {
		return false
	}
	n, err := e.wrong(p)
	return err == nil && n == 0
}

// joinRuns merges runs that touch, and then those nearest to each other until there are at most limit. runs are in order.
func joinRuns(runs []result.Range, limit int) []result.Range {
	var gaps []int64
	for i := 1; i < len(runs); i++ {
		if gap := runs[i].First - runs[i-1].Last - 1; gap > 0 {
			gaps = append(gaps, gap)
		}
	}
	widest := int64(0) // gap that is closed
	atWidest := 0      // how many gaps of that very width are
	if extra := len(gaps) + 1 - limit; extra > 0 {
		slices.Sort(gaps)
		widest = gaps[extra-1]
		atWidest = extra - sort.Search(len(gaps), func(i int) bool { return gaps[i] >= widest })
	}
	var out []result.Range
	for _, r := range runs {
		n := len(out)
		if n == 0 {
			out = append(out, r)
			continue
		}
		gap := r.First - out[n-1].Last - 1
		if gap == widest && widest > 0 {
			atWidest--
		}
		if gap > widest || gap == widest && widest > 0 && atWidest < 0 {
			out = append(out, r)
			continue
		}
		out[n-1].Last = max(out[n-1].Last, r.Last)
		out[n-1].Wrong += r.Wrong
	}
	return out
}

// finding is the wrong elements of what should come from one source, and what explains them.
type finding struct {
	source   int // as piece.source
	pieces   []piece
	areas    []area
	runs     []result.Range
	samples  []*column // in order
	labels   []int     // a sample's cause: index into causes, -1 none
	causes   []*ballot // accepted ones
	segments []segment
	notes    []string // what was not searched
}

// findings looks for causes source by source, and returns the sources with wrong elements that were left out, too.
func (e *evidence) findings(areas []area) (out []*finding, rest []int, err error) {
	bySource := make(map[int]*finding)
	var all []*finding
	for _, a := range areas {
		f := bySource[a.source]
		if f == nil {
			f = &finding{source: a.source}
			bySource[a.source] = f
			all = append(all, f)
		}
		f.areas = append(f.areas, a)
	}
	out = spread(all, maxSources)
	for _, f := range all {
		if !slices.Contains(out, f) {
			rest = append(rest, f.source)
		}
	}
	slices.Sort(rest)
	for _, p := range e.pieces {
		if f := bySource[p.source]; f != nil && p.count > 0 {
			f.pieces = append(f.pieces, p)
		}
	}
	for _, f := range out {
		slices.SortFunc(f.pieces, func(a, b piece) int { return cmp.Compare(a.at, b.at) })
		quota := e.quota(f.source, len(out))
		f.runs = joinRuns(runsOf(f.areas), min(maxRuns, quota/2))
		if f.samples, err = e.sample(f.areas, f.runs, quota); err != nil {
			return nil, nil, err
		}
		q := newInquiry(e, f, len(out))
		q.vote()
		if err := q.cut(); err != nil {
			return nil, nil, err
		}
	}
	return out, rest, nil
}

// element finds element at of the result among the source's pieces.
func (f *finding) element(at int64) (piece, bool) {
	i := sort.Search(len(f.pieces), func(i int) bool { return f.pieces[i].end() > at })
	if i == len(f.pieces) || at < f.pieces[i].at {
		return piece{}, false
	}
	return f.pieces[i].part(at-f.pieces[i].at, 1), true
}

func runsOf(areas []area) []result.Range {
	out := make([]result.Range, len(areas))
	for i, a := range areas {
		out[i] = result.Range{First: a.at, Last: a.end() - 1, Wrong: a.wrong}
	}
	return out
}

// quota is how many wrong elements of a source vote.
func (e *evidence) quota(source, sources int) int {
	n := max(minVoted, maxVoted/max(1, sources/4))
	if source < 0 {
		n = min(n, max(minVoted, inputBudget/e.world/sources))
	}
	return n
}

// column is one sampled wrong element, and later the inputs of all ranks there.
type column struct {
	piece            // of one element
	got, want uint64 // bits
	x         []uint64
	pre, suf  []uint64
}

// sample picks wrong elements: spread over all of them by a jittered step, so that no regular pattern hides between them, the first of
// each run, and some from each of a few runs, so that a small run has a say beside a large one.
func (e *evidence) sample(areas []area, runs []result.Range, quota int) ([]*column, error) {
	at := positions(areas, quota)
	for _, r := range runs {
		at = append(at, r.First)
	}
	for _, r := range spread(runs, quota/8) {
		for k := range int64(6) {
			at = append(at, r.First+(r.Last-r.First)*k/5)
		}
	}
	slices.Sort(at)
	var out []*column
	last := int64(-1)
	for _, pos := range slices.Compact(at) {
		i := sort.Search(len(areas), func(i int) bool { return areas[i].end() > pos })
		if i == len(areas) || pos <= last {
			continue
		}
		c, err := e.probe(areas[i], max(pos, areas[i].at))
		if err != nil {
			return nil, err
		}
		if c != nil && c.at > last {
			out = append(out, c)
			last = c.at
		}
	}
	return out, nil
}

// positions are up to quota places among the wrong elements of areas.
func positions(areas []area, quota int) []int64 {
	total := int64(0)
	for _, a := range areas {
		total += a.wrong
	}
	n := min(int64(quota), total)
	var out []int64
	i, before := 0, int64(0) // wrong elements before area i
	for k := range n {
		lo, hi := muldiv(total, k, n), muldiv(total, k+1, n)
		nth := lo + int64(scramble(uint64(k))%uint64(max(1, hi-lo)))
		for nth >= before+areas[i].wrong {
			before += areas[i].wrong
			i++
		}
		a := areas[i]
		out = append(out, a.at+int64(float64(nth-before)/float64(a.wrong)*float64(a.count)))
	}
	return out
}

// muldiv is a·b/c for b ≤ c, where a·b might overflow.
func muldiv(a, b, c int64) int64 { return a/c*b + a%c*b/c }

// scramble is a number that looks random.
func scramble(x uint64) uint64 {
	x = (x + 1) * 0x9e3779b97f4a7c15
	return (x ^ x>>29) * 0xbf58476d1ce4e5b9 >> 20
}

// probe reads a wrong element of a at or after element pos of the result, nil if there is none near.
func (e *evidence) probe(a area, pos int64) (*column, error) {
	off := min(pos-a.at, a.count-1)
	n := int64(1)
	if a.wrong < a.count {
		n = min(sampleWindow, a.count-off)
	}
	raw, err := e.elements(a.at+off, n)
	if err != nil {
		return nil, err
	}
	for k, got := range raw {
		p := a.part(off+int64(k), 1)
		if a.wrong == a.count || !e.right(p, got) {
			return &column{piece: p, got: got, want: e.want(p)}, nil
		}
	}
	return nil, nil
}

// show picks the samples that are printed.
func (e *evidence) show(findings []*finding) []result.Sample {
	var all []*column
	for _, f := range findings {
		all = append(all, f.samples...)
	}
	slices.SortFunc(all, func(a, b *column) int { return cmp.Compare(a.at, b.at) })
	var out []result.Sample
	for _, c := range spread(all, csrc.CheckSamples) {
		out = append(out, result.Sample{Index: c.at, Got: formatBits(e.dtype, c.got), Expected: formatBits(e.dtype, c.want)})
	}
	return out
}
