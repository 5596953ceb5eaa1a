package csrc

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestMulSumScalar(t *testing.T) {
	for _, e := range elemTypes {
		for rank := range 5 {
			s := MulSumScalar(e.dtype, rank)
			got, want := binary.LittleEndian.Uint64(s[:]), uint64(1+rank%2)
			if e.float() {
				want = e.encode(float64(want))
			}
			if got != want {
				t.Errorf("%s, rank %d: %#x, want %#x", e.name, rank, got, want)
			}
		}
	}
	for _, dtype := range []int{-1, 12} {
		if s := MulSumScalar(dtype, 1); s != [8]byte{} {
			t.Errorf("type %d: %x", dtype, s)
		}
	}
}

// More ranks than eachReduction has, up to the limit, in a few orders.
func TestVerifyMulSumOfManyRanks(t *testing.T) {
	for _, e := range elemTypes {
		for _, n := range []int{1025, 4099, MaxVerifyRanks - 1, MaxVerifyRanks} {
			for i := uint64(0); i < max(3, 20000/uint64(n)); i++ {
				index := verifyFirst + 31*i
				up, down, parity := uint64(0), uint64(0), [2]uint64{}
				column := make([]uint64, n)
				for r := range n {
					column[r] = e.times(VerifyInputBits(e.dtype, OpMulSum, r, n, verifySeed, index), 1+r%2)
					up = e.combine(opSum, up, column[r])
					parity[r%2] = e.combine(opSum, parity[r%2], column[r])
				}
				for r := range n {
					down = e.combine(opSum, column[n-1-r], down)
				}
				want := VerifyExpectedBits(e.dtype, OpMulSum, n, verifySeed, index)
				if both := e.combine(opSum, parity[0], parity[1]); up != want || down != want || both != want {
					t.Fatalf("%s, %d ranks, index %d: %#x, %#x, %#x, want %#x", e.name, n, index, up, down, both, want)
				}
			}
		}
	}
}

// A library may multiply and add in a wider type and round at the end.
func TestVerifyMulSumInAWiderType(t *testing.T) {
	for _, e := range elemTypes {
		if !e.float() || e.dtype == tDouble { // which Go has nothing wider for
			continue
		}
		for _, n := range mulSumRanks {
			const count = 300
			sum := make([]float64, count)
			for r, column := range inputs(t, e, OpMulSum, n, count, verifySeed) {
				for i, b := range column {
					sum[i] += float64(1+r%2) * e.decode(b)
				}
			}
			for i, x := range sum {
				if want := VerifyExpectedBits(e.dtype, OpMulSum, n, verifySeed, verifyFirst+uint64(i)); e.encode(x) != want || e.decode(want) != x {
					t.Fatalf("%s, %d ranks, element %d: %g is %#x, want %#x", e.name, n, i, x, e.encode(x), want)
				}
			}
		}
	}
}

// The result is on every rank that may have it, odd ranks use all bits of an integer, and results are odd as often as even.
func TestVerifyMulSumCarriers(t *testing.T) {
	const count = 4000
	for _, e := range elemTypes {
		if e.float() {
			continue
		}
		for _, n := range []int{1, 2, 3, 7, 8, 17} {
			for r, column := range inputs(t, e, OpMulSum, n, count, verifySeed) {
				odd, all := 0, uint64(0)
				for _, b := range column {
					odd += int(b & 1)
					all |= b
				}
				want := count / 2
				if r%2 == 0 { // y is odd half of the time
					want = count / 2 / ((n + 1) / 2)
				}
				if odd < want*8/10 || odd > want*12/10 || all != e.mask() {
					t.Errorf("%s, rank %d of %d: %d inputs are odd, want about %d; bits %#x", e.name, r, n, odd, want, all)
				}
			}
		}
	}
}

func TestVerifyUniform(t *testing.T) {
	const count = 20000
	for _, e := range elemTypes {
		v := newElements(e, count, 0)
		v.fill(t, verifyFirst, OpUniform, 3, 0, verifySeed)
		negative, binades, ones := 0, map[int]int{}, make([]int, e.bits())
		for i := range count {
			b := v.get(i)
			for k := range ones {
				ones[k] += int(b >> k & 1)
			}
			if !e.float() {
				continue
			}
			x := e.decode(b)
			if !(math.Abs(x) >= 0.125 && math.Abs(x) < 1) {
				t.Fatalf("%s: element %d, %#x, is %g", e.name, i, b, x)
			}
			if x < 0 {
				negative++
			}
			binades[math.Ilogb(x)]++
		}
		random := e.bits()
		if e.float() {
			random = e.p - 1
			for exp := -3; exp < 0; exp++ {
				if got := binades[exp]; got < count/3*9/10 || got > count/3*11/10 {
					t.Errorf("%s: %d of %d in binade %d", e.name, got, count, exp)
				}
			}
			if negative < count*45/100 || negative > count*55/100 {
				t.Errorf("%s: %d of %d negative", e.name, negative, count)
			}
		}
		for k := range random {
			if ones[k] < count*45/100 || ones[k] > count*55/100 {
				t.Errorf("%s: bit %d is set in %d of %d", e.name, k, ones[k], count)
			}
		}
		for name, w := range map[string]uint64{
			"another rank":  VerifyInputBits(e.dtype, OpUniform, 4, 0, verifySeed, verifyFirst),
			"another seed":  VerifyInputBits(e.dtype, OpUniform, 3, 0, verifySeed+1, verifyFirst),
			"another index": VerifyInputBits(e.dtype, OpUniform, 3, 0, verifySeed, verifyFirst+1),
		} {
			if w == v.get(0) && e.bytes > 1 {
				t.Errorf("%s: %s gives the same", e.name, name)
			}
		}
		if VerifyInputBits(e.dtype, OpUniform, 3, 8, verifySeed, verifyFirst) != v.get(0) {
			t.Errorf("%s: depends on the number of ranks", e.name)
		}
		if res := v.check(t, verifyFirst, OpUniform, 3, 8, verifySeed); res.Wrong != count {
			t.Errorf("%s: check finds %d of %d wrong", e.name, res.Wrong, count)
		}
		if got := VerifyExpectedBits(e.dtype, OpUniform, 8, verifySeed, verifyFirst); got != 0 {
			t.Errorf("%s: expected %#x", e.name, got)
		}
	}
}

// Two orders of a sum often differ, a product in any order is a number, and nothing overflows.
func TestVerifyUniformShowsTheOrder(t *testing.T) {
	const count = 400
	for _, e := range elemTypes {
		if !e.float() {
			continue
		}
		for _, n := range []int{3, 4, 8} {
			in := inputs(t, e, OpUniform, n, count, verifySeed)
			all := orders(rand.New(rand.NewPCG(2, uint64(n))), n)
			scratch := make([]uint64, n)
			differ := 0
			for i := range count {
				results := map[uint64]bool{}
				for _, order := range all {
					sum, prod := e.reduce(opSum, in, i, order, scratch), e.reduce(opProd, in, i, order, scratch)
					results[sum] = true
					if x := math.Abs(e.decode(sum)); !(x < math.Pow(float64(n), math.Log2(3))) {
						t.Fatalf("%s, %d ranks, element %d: sum %g", e.name, n, i, x)
					}
					if x := e.decode(prod); !(math.Abs(x) < 1) {
						t.Fatalf("%s, %d ranks, element %d: product %g", e.name, n, i, x)
					}
				}
				if len(results) > 1 {
					differ++
				}
			}
			t.Logf("%s, %d ranks: %d of %d sums depend on the order", e.name, n, differ, count)
			if differ < count/5 {
				t.Errorf("%s, %d ranks: only %d of %d sums depend on the order", e.name, n, differ, count)
			}
		}
	}
}

// The bound that verify_kernels.h proves, where it is reached most: all terms as large as they can be, in the orders that round most.
func TestVerifyUniformDoesNotOverflow(t *testing.T) {
	limit := map[int]int{tFloat: MaxVerifyRanks, tDouble: MaxVerifyRanks, tBF16: MaxVerifyRanks, tHalf: 1024, tE5M2: 512, tE4M3: 32}
	for _, e := range elemTypes {
		if !e.float() {
			continue
		}
		n := limit[e.dtype]
		largest := e.encode(1) - 1
		chain, tree := largest, largest
		for k := 1; k < n; k++ {
			chain = e.combine(opSum, chain, largest)
		}
		for k := 1; k < n; k *= 2 {
			tree = e.combine(opSum, tree, tree)
		}
		for _, b := range []uint64{chain, tree} {
			if x := e.decode(b); !(x <= e.max) {
				t.Errorf("%s, %d ranks: %g", e.name, n, x)
			}
		}
		sum := uint64(0)
		for r := range n {
			sum = e.combine(opSum, sum, VerifyInputBits(e.dtype, OpUniform, r, n, verifySeed, verifyFirst))
		}
		if x := math.Abs(e.decode(sum)); !(x <= e.max) {
			t.Errorf("%s, %d ranks: %g", e.name, n, x)
		}
	}
}

// hash is cp_hash of part of v, from element at.
func (v *elements) hash(t *testing.T, at, n int, first uint64) uint64 {
	t.Helper()
	part := elements{e: v.e, all: v.all, from: v.from + at*v.e.bytes, n: n}
	var sum uint64
	if !hostHash(part.pointer(), uint64(n), first, v.e.dtype, &sum) {
		t.Fatal("no host kernel cp_hash")
	}
	return sum
}

// goHash is cp_hash in Go.
func (v *elements) goHash(first uint64) (sum uint64) {
	for i := range v.n {
		x := (first+uint64(i))*0xd1b54a32d192ed03 + v.get(i) + 0x9e3779b97f4a7c15
		x ^= x >> 30
		x *= 0xbf58476d1ce4e5b9
		x ^= x >> 27
		x *= 0x94d049bb133111eb
		sum += x ^ x>>31
	}
	return sum
}

func TestHashOfAnyRange(t *testing.T) {
	for _, e := range elemTypes {
		for skip := range 17 {
			for _, count := range []int{0, 1, 2, 15, 16, 17, 40, 333} {
				v := newElements(e, count+1, skip)
				v.fill(t, 5, OpSource, 1, 0, verifySeed)
				v.n = count
				first := uint64(1<<32 - 20 + skip)
				want := v.goHash(first)
				if got := v.hash(t, 0, count, first); got != want {
					t.Fatalf("%s, skip %d, count %d: %#x, want %#x", e.name, skip, count, got, want)
				}
				cut := count / 3 // the second part first
				parts := v.hash(t, cut, count-cut, first+uint64(cut))
				parts += v.hash(t, 0, cut, first)
				if parts != want {
					t.Fatalf("%s, skip %d, count %d: %#x in two parts, want %#x", e.name, skip, count, parts, want)
				}
			}
		}
	}
	sum := uint64(7)
	v := newElements(elemTypes[tFloat], 9, 0)
	hostHash(v.pointer(), 9, 3, tFloat, &sum)
	if want := v.goHash(3) + 7; sum != want {
		t.Errorf("added to 7: %#x, want %#x", sum, want)
	}
	for _, dtype := range []int{-1, 12} {
		if hostHash(v.pointer(), 9, 3, dtype, &sum); sum != v.goHash(3)+7 {
			t.Errorf("type %d is hashed", dtype)
		}
	}
}

func TestHashSeesChanges(t *testing.T) {
	const count = 100
	for _, e := range elemTypes {
		for _, kind := range []string{"random", "zero", "counting"} {
			v := newElements(e, count+1, 1)
			v.n = count
			switch kind {
			case "random":
				v.fill(t, 0, OpSource, 1, 0, verifySeed)
			case "counting":
				for i := range count {
					v.set(i, uint64(i+1))
				}
			}
			seen := map[uint64]string{v.hash(t, 0, count, 0): "unchanged"}
			note := func(what string) {
				h := v.hash(t, 0, count, 0)
				if was, ok := seen[h]; ok {
					t.Errorf("%s, %s: %s and %s have the same hash %#x", e.name, kind, what, was, h)
				}
				seen[h] = what
			}
			for i := range count {
				was := v.get(i)
				for k := range e.bits() {
					v.set(i, was^1<<k)
					note("a bit")
				}
				v.set(i, was)
				for j := range i {
					if other := v.get(j); other != was {
						v.set(i, other)
						v.set(j, was)
						note("a swap")
						v.set(i, was)
						v.set(j, other)
					}
				}
			}
			for _, first := range []uint64{1, ^uint64(0), 1 << 31, 1 << 32, 1 << 63} {
				h := v.hash(t, 0, count, first)
				if was, ok := seen[h]; ok {
					t.Errorf("%s, %s: first index %#x is as %s", e.name, kind, first, was)
				}
				seen[h] = "another first index"
			}
			if kind != "zero" {
				copy(v.all[v.from+e.bytes:], v.all[v.from:v.from+(count-1)*e.bytes])
				note("a shift")
			}
		}
	}
}

// Half of the hash's bits change with any bit of the data, on average.
func TestHashSpreads(t *testing.T) {
	v := newElements(elemTypes[tUint64], 1, 0)
	changed, n := 0, 0
	for i := range uint64(200) {
		v.set(0, i)
		h := v.hash(t, 0, 1, i)
		for k := range 64 {
			v.set(0, i^1<<k)
			d := bits.OnesCount64(h ^ v.hash(t, 0, 1, i))
			if d < 8 || d > 56 {
				t.Errorf("element %d, bit %d: %d bits change", i, k, d)
			}
			changed, n = changed+d, n+1
		}
	}
	if mean := float64(changed) / float64(n); mean < 31 || mean > 33 {
		t.Errorf("%g bits change", mean)
	}
}

func (v *elements) scan(t *testing.T, first uint64) CheckResult {
	t.Helper()
	res := NewCheckResult()
	if !hostNaNScan(v.pointer(), uint64(v.n), first, v.e.dtype, &res) {
		t.Fatal("no host kernel cp_nan_scan")
	}
	return res
}

// notFinite says whether the bits are NaN or infinity.
func (e elemType) notFinite(b uint64) bool {
	return e.float() && !(math.Abs(e.decode(b)) <= e.max)
}

// Every pattern of the narrow types, and the wide types' edges, at every place of a vector.
func TestNaNScanKnowsAllValues(t *testing.T) {
	for _, e := range elemTypes {
		var values []uint64
		switch e.bytes {
		case 1, 2:
			for b := uint64(0); b <= e.mask(); b++ {
				values = append(values, b)
			}
		default:
			for k := range e.bits() {
				x := uint64(1) << k
				for _, b := range []uint64{x, x - 1, ^x, -x, e.inf ^ x, e.inf - x, e.inf + x} {
					values = append(values, b&e.mask(), b&e.mask()^e.top())
				}
			}
			values = append(values, e.inf, e.inf|e.top(), e.mask(), 0)
		}
		v := newElements(e, 16/e.bytes, 0)
		others := []uint64{0, e.mask() ^ e.top()>>1, e.inf - 1, e.mask() >> 1} // the last is NaN
		for at := range v.n {
			for k, b := range values {
				rest := uint64(0)
				for i := range v.n {
					v.set(i, others[(k+i)%3])
					if e.notFinite(v.get(i)) {
						v.set(i, 0)
					}
				}
				if k%7 == 0 && v.n > 1 {
					v.set((at+1)%v.n, others[3])
					if e.float() {
						rest = 1
					}
				}
				v.set(at, b)
				want := rest
				if e.notFinite(b) {
					want++
				}
				if res := v.scan(t, 0); res.Wrong != want {
					t.Fatalf("%s: %#x at %d: %d found, want %d", e.name, b, at, res.Wrong, want)
				}
			}
		}
	}
}

func TestNaNScanReports(t *testing.T) {
	for _, e := range elemTypes {
		for skip := range 17 {
			for _, count := range []int{0, 1, 16, 17, 40, 200} {
				v := newElements(e, count+1, skip)
				for i := range v.all {
					v.all[i] = 0xff // around the buffer too
				}
				v.n = count
				if count > 0 {
					v.fill(t, 0, OpUniform, 0, 0, verifySeed)
				}
				want := NewCheckResult()
				for i := range count {
					if !e.float() || i%27 != 3 { // no more than there are samples
						continue
					}
					bad := []uint64{e.inf, e.mask(), e.inf | e.top(), e.mask() >> 1}[i%4]
					v.set(i, bad)
					index := uint64(verifyFirst + i)
					want.Sample[want.NSample] = CheckSample{Index: index, Got: bad}
					want.NSample++
					want.Wrong++
					want.FirstIndex, want.LastIndex = min(want.FirstIndex, index), index
				}
				got := v.scan(t, verifyFirst)
				slices.SortFunc(got.Sample[:got.NSample], func(a, b CheckSample) int { return cmp.Compare(a.Index, b.Index) })
				if got != want {
					t.Fatalf("%s, skip %d, count %d: %+v, want %+v", e.name, skip, count, got, want)
				}
			}
		}
	}
	res := NewCheckResult()
	v := newElements(elemTypes[tFloat], 9, 0)
	if hostNaNScan(v.pointer(), 9, 0, 12, &res); res.Wrong != 9 {
		t.Errorf("unknown type: %d of 9", res.Wrong)
	}
}

// Blocks of elements, what is left over, and both builds of the kernels give what the functions give.
func TestVerifyInBlocks(t *testing.T) {
	const count = 64*3 + 37
	for _, e := range elemTypes {
		for op := OpUniform; op <= OpMulSum; op++ {
			for _, n := range []int{1, 2, 3, 8, 100} {
				const first = 1<<32 - 70 // both words of the index change
				wide, plain := newElements(e, count, 1), newElements(e, count, 1)
				wide.fill(t, first, op, n-1, n, verifySeed)
				if !plainFillInput(plain.pointer(), count, first, e.dtype, op, n-1, n, verifySeed) {
					t.Fatal("no plain kernel")
				}
				for i := range count {
					want := VerifyInputBits(e.dtype, op, n-1, n, verifySeed, first+uint64(i))
					if wide.get(i) != want || plain.get(i) != want {
						t.Fatalf("%s, %s, %d ranks, element %d: %#x and %#x, want %#x", e.name, opNames[op], n, i, wide.get(i), plain.get(i), want)
					}
				}
				if op == OpUniform {
					continue
				}
				v := expectedElements(e, op, n, count, 1, first)
				for _, spoilt := range [][]uint64{nil, {0, 63, 64, 190, 191, 192, 228}} {
					for _, at := range spoilt {
						hostCorrupt(v.pointer(), at, e.dtype)
					}
					res := v.check(t, first, op, n, n, verifySeed)
					other := NewCheckResult()
					plainCheck(v.pointer(), count, first, e.dtype, op, n, n, verifySeed, &other)
					if res.Wrong != uint64(len(spoilt)) || res != other {
						t.Fatalf("%s, %s, %d ranks: %+v, plain %+v, want %d wrong", e.name, opNames[op], n, res, other, len(spoilt))
					}
					for k, at := range spoilt {
						if res.Sample[k].Index != first+at {
							t.Errorf("%s, %s, %d ranks: sample %d is of element %d", e.name, opNames[op], n, k, res.Sample[k].Index)
						}
					}
				}
			}
		}
	}
}
