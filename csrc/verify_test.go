package csrc

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"
)

var (
	verifyRanks = []int{1, 2, 3, 4, 8, 17, 64, 300}
	mulSumRanks = []int{1, 2, 3, 4, 7, 8, 17, 64, 300, 1024}
)

const verifySeed = 0x5eed_0f_c0ffee

// verifyFirst is a first index past 2^32, so that the upper word takes part.
const verifyFirst = 7<<32 - 100

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }

func (v *elements) pointer() unsafe.Pointer { return unsafe.Pointer(&v.all[v.from]) }

func (v *elements) fill(t *testing.T, first uint64, op, rank, n int, seed uint64) {
	t.Helper()
	if !hostFillInput(v.pointer(), uint64(v.n), first, v.e.dtype, op, rank, n, seed) {
		t.Fatal("no host kernel cp_fill_input")
	}
}

func (v *elements) check(t *testing.T, first uint64, op, source, n int, seed uint64) CheckResult {
	t.Helper()
	res := NewCheckResult()
	if !hostCheck(v.pointer(), uint64(v.n), first, v.e.dtype, op, source, n, seed, &res) {
		t.Fatal("no host kernel cp_check")
	}
	return res
}

// inputs returns all ranks' inputs, [rank][element].
func inputs(t *testing.T, e elemType, op, n, count int, seed uint64) [][]uint64 {
	t.Helper()
	v := newElements(e, count, 0)
	out := make([][]uint64, n)
	for r := range out {
		v.fill(t, verifyFirst, op, r, n, seed)
		out[r] = make([]uint64, count)
		for i := range out[r] {
			out[r][i] = v.get(i)
		}
	}
	return out
}

// merge says that slot src is combined into slot dst, on its left or on its right.
type merge struct {
	dst, src int
	left     bool
}

// orders returns ways to reduce n slots into one: up and down a ring, a binary tree, and random trees. Each is its merges; the last dst has
// the result.
func orders(rng *rand.Rand, n int) [][]merge {
	var ring, back, tree []merge
	start := rng.IntN(n)
	for k := 1; k < n; k++ {
		ring = append(ring, merge{dst: start, src: (start + k) % n})
		back = append(back, merge{dst: start, src: (start + n - k) % n, left: true})
	}
	for d := 1; d < n; d *= 2 {
		for r := 0; r+d < n; r += 2 * d {
			tree = append(tree, merge{dst: r, src: r + d})
		}
	}
	out := [][]merge{ring, back, tree}
	for range 3 {
		slots := rng.Perm(n)
		var m []merge
		for len(slots) > 1 {
			a, last := rng.IntN(len(slots)-1), len(slots)-1
			m = append(m, merge{dst: slots[a], src: slots[last], left: rng.IntN(2) == 0})
			slots = slots[:last]
			rng.Shuffle(last, func(i, j int) { slots[i], slots[j] = slots[j], slots[i] })
		}
		out = append(out, m)
	}
	return out
}

// reduce combines column i of in by the merges.
func (e elemType) reduce(op int, in [][]uint64, i int, order []merge, scratch []uint64) uint64 {
	n := len(in)
	for r := range in {
		scratch[r] = e.before(op, n, r, in[r][i])
	}
	at := 0
	for _, m := range order {
		at = m.dst
		if m.left {
			scratch[at] = e.combine(op, scratch[m.src], scratch[at])
		} else {
			scratch[at] = e.combine(op, scratch[at], scratch[m.src])
		}
	}
	return e.after(op, n, scratch[at])
}

// isPair says whether an average has a tolerance.
func isPair(e elemType, op, n int) bool { return op == opAvg && e.float() && n&(n-1) != 0 }

// eachReduction runs f for every type, operation and number of ranks.
func eachReduction(t *testing.T, f func(t *testing.T, e elemType, op, n int)) {
	for _, e := range elemTypes {
		for op := opSum; op <= OpMulSum; op++ {
			ranks := verifyRanks
			if op == OpMulSum {
				ranks = mulSumRanks
			}
			for _, n := range ranks {
				t.Run(fmt.Sprintf("%s/%s/%d", e.name, opNames[op], n), func(t *testing.T) {
					t.Parallel()
					f(t, e, op, n)
				})
			}
		}
	}
}

func TestVerifyAnyOrderGivesTheExpectedBits(t *testing.T) {
	eachReduction(t, func(t *testing.T, e elemType, op, n int) {
		count := 200
		if n <= 8 {
			count = 4000 // enough for the extremes of the narrow types
		}
		in := inputs(t, e, op, n, count, verifySeed)
		rng := rand.New(rand.NewPCG(1, uint64(n)))
		scratch := make([]uint64, n)
		got := newElements(e, count, 0)
		for o, order := range orders(rng, n) {
			for i := range count {
				bits := e.reduce(op, in, i, order, scratch)
				got.set(i, bits)
				want := VerifyExpectedBits(e.dtype, op, n, verifySeed, verifyFirst+uint64(i))
				if !isPair(e, op, n) && bits != want {
					t.Fatalf("order %d, element %d: %#x, want %#x", o, i, bits, want)
				}
			}
			if res := got.check(t, verifyFirst, op, -5, n, verifySeed); res.Wrong != 0 {
				t.Fatalf("order %d: check finds %d wrong: %x", o, res.Wrong, res.Sample[0])
			}
		}
	})
}

func TestVerifyInputsAreInRange(t *testing.T) {
	eachReduction(t, func(t *testing.T, e elemType, op, n int) {
		const count = 200
		for r, column := range inputs(t, e, op, n, count, verifySeed) {
			for i, b := range column {
				if want := VerifyInputBits(e.dtype, op, r, n, verifySeed, verifyFirst+uint64(i)); b != want {
					t.Fatalf("rank %d, element %d: kernel %#x, function %#x", r, i, b, want)
				}
				if !e.float() {
					if op == opProd && b&1 == 0 {
						t.Fatalf("rank %d, element %d: %#x is even", r, i, b)
					}
					if op == opAvg && e.signed && b >= e.top() {
						t.Fatalf("rank %d, element %d: %#x is negative", r, i, b)
					}
					continue
				}
				x := math.Abs(e.decode(b))
				if b == e.top() || !(x <= e.max) || (x != 0 && x < math.Ldexp(1, e.min)) {
					t.Fatalf("rank %d, element %d: %#x is %g", r, i, b, x)
				}
			}
		}
	})
}

// pairLimit is how far an average of two may be from V, in steps.
const pairLimit = 2

func TestVerifyAveragesOfAPair(t *testing.T) {
	ranks := []int{3, 5, 6, 7, 12, 24, 63, 65, 96, 100, 300, 1023, 1025, 3000, 40000, 65535}
	for _, e := range elemTypes {
		if !e.float() {
			continue
		}
		for _, n := range ranks {
			count, worst := max(50, min(2000, 2000000/n)), uint64(0)
			in := pairInputs(t, e, n, count)
			got := [2]*elements{newElements(e, count, 0), newElements(e, count, 0)}
			for i := range count {
				a, b := in[i][0], in[i][1]
				got[0].set(i, e.combine(opSum, e.before(opAvg, n, 0, a), e.before(opAvg, n, 0, b)))
				got[1].set(i, e.widened(n, []uint64{a, b}))
				want := VerifyExpectedBits(e.dtype, opAvg, n, verifySeed, uint64(i))
				if exact := e.encode((e.decode(a) + e.decode(b)) / float64(n)); e.p < 24 && exact != want {
					t.Fatalf("%s, %d ranks, element %d: expected %#x, should be %#x", e.name, n, i, want, exact)
				}
				for _, v := range got {
					worst = max(worst, distance(v.get(i), want))
				}
			}
			for k, v := range got {
				if res := v.check(t, 0, opAvg, 0, n, verifySeed); res.Wrong != 0 {
					t.Errorf("%s, %d ranks, way %d: %d wrong, %x", e.name, n, k, res.Wrong, res.Sample[0])
				}
			}
			if normal := 1/float64(n) >= math.Ldexp(1, e.min); normal && worst > pairLimit {
				t.Errorf("%s, %d ranks: %d steps off", e.name, n, worst)
			}
		}
	}
}

func distance(a, b uint64) uint64 { return max(a, b) - min(a, b) }

// pairInputs finds the two non-zero inputs of an average at each of count indices.
func pairInputs(t *testing.T, e elemType, n, count int) [][]uint64 {
	t.Helper()
	out := make([][]uint64, count)
	v := newElements(e, count, 0)
	for r := range n {
		v.fill(t, 0, opAvg, r, n, verifySeed)
		for i := range out {
			if x := v.get(i); x != 0 {
				out[i] = append(out[i], x)
			}
		}
	}
	for i := range out {
		if len(out[i]) != 2 {
			t.Fatalf("%s, %d ranks, element %d: %d inputs are not zero", e.name, n, i, len(out[i]))
		}
	}
	return out
}

// A fault is one rank's contribution changed: its inputs' multiplicity, those of another rank, those of its input with the scalar of a rank
// of the other parity, and those of another rank's input with its own scalar.
type fault struct {
	name                           string
	times, other, scalar, unscaled int
}

var (
	faults       = []fault{{name: "dropped"}, {name: "doubled", times: 2}, {name: "replaced", other: 1}}
	mulSumFaults = append(faults, fault{name: "wrongly scaled", scalar: 1}, fault{name: "swapped before scaling", unscaled: 1})
)

func faultsOf(op int) []fault {
	if op == OpMulSum {
		return mulSumFaults
	}
	return faults
}

// visible says whether any data could show the fault.
func visible(e elemType, op, n int, f fault) bool {
	switch {
	case op == opMax || op == opMin:
		return n > 1 && f.name != "doubled"
	case op == opAvg && !e.float():
		largest := e.mask()
		if e.signed {
			largest >>= 1
		}
		// A gain must reach n to change the quotient.
		return n > 1 && largest/uint64(n) > 0 && (f.name != "doubled" || largest/uint64(n) > 1)
	}
	return n > 1 || f.times == 2 || f.scalar == 1
}

// window is within how many elements a fault must show.
func window(e elemType, op, n int) int {
	switch {
	case n <= 8 && e.bytes > 1 && op != opAvg:
		return 64
	case n <= 8 && op != opAvg:
		return 256
	case n <= 17:
		return 1024
	}
	return 2048
}

func TestVerifySeesRankFaults(t *testing.T) {
	eachReduction(t, func(t *testing.T, e elemType, op, n int) {
		count := window(e, op, n)
		in := inputs(t, e, op, n, count, verifySeed)
		rank := n / 3
		faults := faultsOf(op)
		got := make([]*elements, len(faults))
		for k := range got {
			got[k] = newElements(e, count, 0)
		}
		for i := range count {
			others := e.others(op, in, i, rank)
			for k, f := range faults {
				got[k].set(i, e.faulty(op, in, i, rank, others, f))
			}
		}
		for k, f := range faults {
			if !visible(e, op, n, f) {
				continue
			}
			if res := got[k].check(t, verifyFirst, op, 0, n, verifySeed); res.Wrong == 0 {
				t.Errorf("rank %d %s: not seen in %d elements", rank, f.name, count)
			}
		}
	})
}

// others combines column i but for one rank; it means nothing where there is no other.
func (e elemType) others(op int, in [][]uint64, i, rank int) uint64 {
	n := len(in)
	acc := e.before(op, n, (rank+1)%n, in[(rank+1)%n][i])
	for k := 2; k < n; k++ {
		r := (rank + k) % n
		acc = e.combine(op, acc, e.before(op, n, r, in[r][i]))
	}
	return acc
}

// faulty is the reduction of column i with a fault of one rank; the replacing data is the next rank's.
func (e elemType) faulty(op int, in [][]uint64, i, rank int, others uint64, f fault) uint64 {
	n := len(in)
	terms := []uint64{}
	if n > 1 {
		terms = append(terms, others)
	}
	next := (rank + 1) % n
	for _, k := range []struct{ times, scaledBy, input int }{
		{f.times, rank, rank}, {f.other, next, next}, {f.scalar, rank + 1, rank}, {f.unscaled, rank, next},
	} {
		for range k.times {
			terms = append(terms, e.before(op, n, k.scaledBy, in[k.input][i]))
		}
	}
	if len(terms) == 0 {
		return 0
	}
	acc := terms[0]
	for _, x := range terms[1:] {
		acc = e.combine(op, acc, x)
	}
	return e.after(op, n, acc)
}

// expectedElements is a buffer with a right result.
func expectedElements(e elemType, op, n, count, skip int, first uint64) *elements {
	v := newElements(e, count, skip)
	for i := range count {
		if op == OpSource {
			v.set(i, VerifyInputBits(e.dtype, op, n, 0, verifySeed, first+uint64(i)))
		} else {
			v.set(i, VerifyExpectedBits(e.dtype, op, n, verifySeed, first+uint64(i)))
		}
	}
	return v
}

func TestVerifySeesMovedElements(t *testing.T) {
	const count = 256
	eachReduction(t, func(t *testing.T, e elemType, op, n int) {
		if op == opAvg && e.dtype <= tUint8 && n > 64 {
			t.Skip("the average can only be 0, or 0 and 1")
		}
		v := expectedElements(e, op, n, count, 0, verifyFirst)
		for _, off := range []uint64{1, 1 << 31, 1 << 32, 1 << 40} {
			for _, first := range []uint64{verifyFirst + off, verifyFirst - off} {
				if res := v.check(t, first, op, 0, n, verifySeed); res.Wrong < count/8 {
					t.Errorf("first index %#x instead of %#x: %d of %d wrong", first, uint64(verifyFirst), res.Wrong, count)
				}
			}
		}
		if res := v.check(t, verifyFirst, op, 0, n, verifySeed+1); res.Wrong < count/8 {
			t.Errorf("another seed: %d of %d wrong", res.Wrong, count)
		}
		seen := 0
		for i := 0; i+17 < count; i++ {
			a, b := v.get(i), v.get(i+17)
			v.set(i, b)
			v.set(i+17, a)
			if res := v.check(t, verifyFirst, op, 0, n, verifySeed); res.Wrong != 0 {
				seen++
			}
			v.set(i, a)
			v.set(i+17, b)
		}
		if seen < count/8 {
			t.Errorf("%d of %d swaps seen", seen, count-17)
		}
	})
}

func TestVerifySource(t *testing.T) {
	const count = 999
	for _, e := range elemTypes {
		v := newElements(e, count, 1)
		v.fill(t, verifyFirst, OpSource, 5, 0, verifySeed)
		zero := 0
		for i := range count {
			if e.isNaN(v.get(i)) || v.get(i) == e.mask() {
				t.Errorf("%s: element %d is %#x", e.name, i, v.get(i))
			}
			if v.get(i) == 0 {
				zero++
			}
		}
		if zero > count/20 {
			t.Errorf("%s: %d zeros", e.name, zero)
		}
		if res := v.check(t, verifyFirst, OpSource, 5, 0, verifySeed); res.Wrong != 0 {
			t.Errorf("%s: %d wrong", e.name, res.Wrong)
		}
		for name, res := range map[string]CheckResult{
			"another rank": v.check(t, verifyFirst, OpSource, 6, 0, verifySeed),
			"another seed": v.check(t, verifyFirst, OpSource, 5, 0, verifySeed+1),
			"shifted":      v.check(t, verifyFirst+1, OpSource, 5, 0, verifySeed),
			"a reduction":  v.check(t, verifyFirst, opSum, 5, 8, verifySeed),
		} {
			if res.Wrong < count*9/10 {
				t.Errorf("%s: %s: only %d of %d wrong", e.name, name, res.Wrong, count)
			}
		}
	}
}

func TestVerifyPoisonIsNeverRight(t *testing.T) {
	const count = 5000
	for _, e := range elemTypes {
		v := newElements(e, count, 1)
		for op := OpSource; op <= OpMulSum; op++ {
			for _, n := range append(verifyRanks, 2000) {
				for i := range v.all {
					v.all[i] = 0
				}
				hostPoison(v.pointer(), uint64(count*e.bytes), verifySeed)
				if v.all[v.from-1] != 0 || v.all[v.from+count*e.bytes] != 0 {
					t.Fatalf("%s: poison outside the buffer", e.name)
				}
				if res := v.check(t, verifyFirst, op, 0, n, verifySeed); res.Wrong != count {
					t.Errorf("%s, %s, %d ranks: %d of %d wrong", e.name, opNames[op], n, res.Wrong, count)
				}
			}
		}
	}
}

func TestVerifyFindsAPlantedFault(t *testing.T) {
	const count = 77
	for _, e := range elemTypes {
		for op := OpSource; op <= OpMulSum; op++ {
			for _, n := range []int{1, 3, 8, 100} {
				for skip := range 4 {
					v := expectedElements(e, op, n, count, skip, verifyFirst)
					for at := range count {
						want := v.get(at)
						hostCorrupt(v.pointer(), uint64(at), e.dtype)
						res := v.check(t, verifyFirst, op, n, n, verifySeed)
						index := uint64(verifyFirst + at)
						sample := CheckSample{Index: index, Got: v.get(at), Expected: want}
						if res.Wrong != 1 || res.FirstIndex != index || res.LastIndex != index || res.NSample != 1 || res.Sample[0] != sample {
							t.Fatalf("%s, %s, %d ranks, element %d: %+v, want sample %+v", e.name, opNames[op], n, at, res, sample)
						}
						v.set(at, want)
					}
				}
			}
		}
	}
}

func TestVerifyResultAddsUp(t *testing.T) {
	e := elemTypes[tFloat]
	v := expectedElements(e, opSum, 4, 100, 0, 0)
	for _, at := range []uint64{99, 3, 4, 50, 51, 52, 53, 54, 55, 56} {
		hostCorrupt(v.pointer(), at, e.dtype)
	}
	res := CheckResult{Wrong: 1, FirstIndex: 2, LastIndex: 3, NSample: 4}
	res.Sample[7].Got = 9
	hostCheckReset(&res)
	if res != NewCheckResult() {
		t.Errorf("after reset: %+v", res)
	}
	for range 2 {
		hostCheck(v.pointer(), 100, 0, e.dtype, opSum, 0, 4, verifySeed, &res)
	}
	if res.Wrong != 20 || res.FirstIndex != 3 || res.LastIndex != 99 || res.NSample != CheckSamples {
		t.Errorf("after two checks: %+v", res)
	}
	for k, want := range []uint64{3, 4, 50, 51, 52, 53, 54, 55} {
		if res.Sample[k].Index != want {
			t.Errorf("sample %d is of element %d, want %d", k, res.Sample[k].Index, want)
		}
	}
}

// Every part of a range is filled as the whole is, wherever it starts in memory, and nothing else is written.
func TestVerifyFillsAnyRange(t *testing.T) {
	for _, e := range elemTypes {
		for op := OpUniform; op <= OpMulSum; op++ {
			for skip := range 17 {
				for _, count := range []int{0, 1, 2, 15, 16, 17, 40} {
					v := newElements(e, count+1, skip)
					v.n = count
					for i := range v.all {
						v.all[i] = 0xa5
					}
					first := uint64(1<<32 - 20 + skip)
					v.fill(t, first, op, 2, 5, verifySeed)
					for i := range count {
						if want := VerifyInputBits(e.dtype, op, 2, 5, verifySeed, first+uint64(i)); v.get(i) != want {
							t.Fatalf("%s, %s, skip %d, element %d of %d: %#x, want %#x", e.name, opNames[op], skip, i, count, v.get(i), want)
						}
					}
					if v.all[v.from-1] != 0xa5 || v.all[v.from+count*e.bytes] != 0xa5 {
						t.Fatalf("%s, %s, skip %d, count %d: written outside", e.name, opNames[op], skip, count)
					}
				}
			}
		}
	}
}

func TestVerifyRefusesSenselessArguments(t *testing.T) {
	for _, c := range []struct{ dtype, op, rank, n int }{{-1, 0, 0, 1}, {12, 0, 0, 1}, {7, 6, 0, 1}, {7, -3, 0, 1}, {7, 0, 4, 4}, {7, 0, -1, 4},
		{7, 0, 0, 0}, {7, 0, 0, -1}, {7, 0, 0, MaxVerifyRanks + 1}, {7, OpSource, -1, 1}, {7, OpUniform, -1, 1}} {
		v := newElements(elemTypes[tFloat], 9, 0)
		hostFillInput(v.pointer(), 9, 0, c.dtype, c.op, c.rank, c.n, 1)
		if strings.Trim(string(v.all), "\x00") != "" {
			t.Errorf("%+v: filled", c)
		}
		if got := VerifyInputBits(c.dtype, c.op, c.rank, c.n, 1, 3); got != 0 {
			t.Errorf("%+v: input %#x", c, got)
		}
		if c.op >= 0 && (c.rank < 0 || c.rank >= c.n) && c.n > 0 {
			continue // a check of a reduction takes no rank
		}
		res := NewCheckResult()
		hostCheck(v.pointer(), 9, 0, c.dtype, c.op, c.rank, c.n, 1, &res)
		if res.Wrong != 9 {
			t.Errorf("%+v: check finds %d of 9 wrong", c, res.Wrong)
		}
	}
	if HostKernel("cp_nothing") != 0 {
		t.Error("cp_nothing exists")
	}
}

func TestCheckResultLayout(t *testing.T) {
	var r CheckResult
	var s CheckSample
	at := unsafe.Offsetof(r.Sample)
	want := []uintptr{unsafe.Sizeof(r), unsafe.Sizeof(s), unsafe.Offsetof(r.Wrong), unsafe.Offsetof(r.FirstIndex), unsafe.Offsetof(r.LastIndex),
		unsafe.Offsetof(r.NSample), at, at + unsafe.Offsetof(s.Index), at + unsafe.Offsetof(s.Got), at + unsafe.Offsetof(s.Expected)}
	if got := checkResultLayout(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("C's layout is %v, Go's %v", got, want)
	}
}

// BenchmarkVerifyHost measures the host build, bytes a second.
func BenchmarkVerifyHost(b *testing.B) {
	const bytes, n = 1 << 20, 8
	for _, e := range []elemType{elemTypes[tInt8], elemTypes[tInt32], elemTypes[tHalf], elemTypes[tFloat], elemTypes[tDouble], elemTypes[tE4M3]} {
		v := newElements(e, bytes/e.bytes, 0)
		count := uint64(bytes / e.bytes)
		run := func(name string, f func()) {
			b.Run(name+"/"+e.name, func(b *testing.B) {
				b.SetBytes(bytes)
				for range b.N {
					f()
				}
			})
		}
		for _, op := range []int{OpSource, opSum, opProd, opMax, opAvg} {
			run("fill/"+opNames[op], func() { hostFillInput(v.pointer(), count, 0, e.dtype, op, 0, n, 1) })
			if op == OpSource {
				continue
			}
			for i := range int(count) {
				v.set(i, VerifyExpectedBits(e.dtype, op, n, 1, uint64(i)))
			}
			run("check/"+opNames[op], func() {
				res := NewCheckResult()
				if hostCheck(v.pointer(), count, 0, e.dtype, op, 0, n, 1, &res); res.Wrong != 0 {
					b.Fatal(res.Wrong)
				}
			})
		}
		var sum uint64
		run("hash", func() { hostHash(v.pointer(), count, 0, e.dtype, &sum) })
		if !e.float() {
			continue // no integer is looked at
		}
		res := NewCheckResult()
		run("scan", func() { hostNaNScan(v.pointer(), count, 0, e.dtype, &res) })
	}
}
