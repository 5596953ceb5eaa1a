package csrc

import (
	"math"
	"testing"
)

// This file is the tests' own arithmetic of the element types, written with floating-point functions where the C code uses integers, so
// that both are unlikely to share a mistake.

const (
	tInt8 = iota
	tUint8
	tInt32
	tUint32
	tInt64
	tUint64
	tHalf
	tFloat
	tDouble
	tBF16
	tE4M3
	tE5M2
)

const (
	opSum = iota
	opProd
	opMax
	opMin
	opAvg
)

var opNames = map[int]string{OpSource: "source", opSum: "sum", opProd: "prod", opMax: "max", opMin: "min", opAvg: "avg", OpMulSum: "mulsum", OpUniform: "uniform"}

// elemType describes an element type. For floats, p is the significand's bits with the hidden one and min the exponent of the smallest
// normal value.
type elemType struct {
	name   string
	dtype  int
	bytes  int
	signed bool
	p, min int
	max    float64 // largest finite value
	inf    uint64  // what overflow gives
}

var elemTypes = []elemType{
	{name: "int8", dtype: tInt8, bytes: 1, signed: true},
	{name: "uint8", dtype: tUint8, bytes: 1},
	{name: "int32", dtype: tInt32, bytes: 4, signed: true},
	{name: "uint32", dtype: tUint32, bytes: 4},
	{name: "int64", dtype: tInt64, bytes: 8, signed: true},
	{name: "uint64", dtype: tUint64, bytes: 8},
	{name: "half", dtype: tHalf, bytes: 2, p: 11, min: -14, max: 65504, inf: 0x7c00},
	{name: "float", dtype: tFloat, bytes: 4, p: 24, min: -126, max: math.MaxFloat32, inf: 0x7f800000},
	{name: "double", dtype: tDouble, bytes: 8, p: 53, min: -1022, max: math.MaxFloat64, inf: 0x7ff0000000000000},
	{name: "bfloat16", dtype: tBF16, bytes: 2, p: 8, min: -126, max: 0x1.fep127, inf: 0x7f80},
	{name: "f8e4m3", dtype: tE4M3, bytes: 1, p: 4, min: -6, max: 448, inf: 0x7f},
	{name: "f8e5m2", dtype: tE5M2, bytes: 1, p: 3, min: -14, max: 57344, inf: 0x7c},
}

func (e elemType) float() bool  { return e.p != 0 }
func (e elemType) bits() int    { return 8 * e.bytes }
func (e elemType) mask() uint64 { return ^uint64(0) >> (64 - e.bits()) }
func (e elemType) top() uint64  { return uint64(1) << (e.bits() - 1) }
func (e elemType) isNaN(b uint64) bool {
	return e.float() && math.IsNaN(e.decode(b))
}

// decoded has decode's values for the narrow types, by element type.
var decoded = func() (out [tE5M2 + 1][]float64) {
	for _, e := range elemTypes {
		if e.float() && e.bytes <= 2 {
			table := make([]float64, e.mask()+1)
			for b := range table {
				table[b] = e.decodeSlowly(uint64(b))
			}
			out[e.dtype] = table
		}
	}
	return out
}()

// decode returns the value of a float's bits; exact.
func (e elemType) decode(b uint64) float64 {
	if table := decoded[e.dtype]; table != nil {
		return table[b]
	}
	return e.decodeSlowly(b)
}

func (e elemType) decodeSlowly(b uint64) float64 {
	switch e.dtype {
	case tFloat:
		return float64(math.Float32frombits(uint32(b)))
	case tDouble:
		return math.Float64frombits(b)
	}
	sign := 1.0
	if b&e.top() != 0 {
		sign = -1
	}
	b &^= e.top()
	field, frac := int(b>>(e.p-1)), float64(b&(1<<(e.p-1)-1))
	if b > e.inf || (e.dtype == tE4M3 && b == e.inf) {
		return math.NaN()
	}
	if b == e.inf {
		return math.Inf(int(sign))
	}
	if field == 0 {
		return sign * math.Ldexp(frac, e.min-e.p+1)
	}
	return sign * math.Ldexp(frac+math.Ldexp(1, e.p-1), e.min+field-1-e.p+1)
}

// encode rounds to nearest, ties to even.
func (e elemType) encode(x float64) uint64 {
	switch e.dtype {
	case tFloat:
		return uint64(math.Float32bits(float32(x)))
	case tDouble:
		return math.Float64bits(x)
	}
	sign := uint64(0)
	if math.Signbit(x) {
		sign = e.top()
	}
	if math.IsNaN(x) {
		return e.mask() >> 1
	}
	x = math.Abs(x)
	exp := max(math.Ilogb(max(x, math.SmallestNonzeroFloat64)), e.min)
	ulp := math.Ldexp(1, exp-e.p+1)
	steps := math.RoundToEven(x / ulp)
	if math.IsInf(x, 0) || steps*ulp > e.max {
		return sign | e.inf
	}
	return sign | (uint64(exp-e.min)<<(e.p-1) + uint64(steps))
}

// round is encode and decode.
func (e elemType) round(x float64) float64 { return e.decode(e.encode(x)) }

func (e elemType) less(a, b uint64) bool {
	switch {
	case e.float():
		return e.decode(a) < e.decode(b)
	case e.signed:
		return e.extend(a) < e.extend(b)
	}
	return a < b
}

func (e elemType) extend(a uint64) int64 { return int64(a<<(64-e.bits())) >> (64 - e.bits()) }

// combine is one step of a reduction, rounded as the type's own arithmetic does; avg and mulsum combine like sum.
func (e elemType) combine(op int, a, b uint64) uint64 {
	switch op {
	case opMax:
		if e.less(a, b) {
			return b
		}
		return a
	case opMin:
		if e.less(b, a) {
			return b
		}
		return a
	case opProd:
		if e.float() {
			return e.encode(e.decode(a) * e.decode(b))
		}
		return a * b & e.mask()
	}
	if e.float() {
		return e.encode(e.decode(a) + e.decode(b))
	}
	return (a + b) & e.mask()
}

// before is what a library does to rank's input of an average or a mulsum.
func (e elemType) before(op, n, rank int, a uint64) uint64 {
	if op == OpMulSum {
		return e.times(a, 1+rank%2)
	}
	if op != opAvg || !e.float() {
		return a
	}
	scale := 1 / float64(n)
	if e.dtype != tDouble {
		scale = e.round(float64(float32(scale)))
	}
	return e.encode(e.decode(a) * scale)
}

// times is a product with a small integer.
func (e elemType) times(a uint64, k int) uint64 {
	if e.float() {
		return e.encode(e.decode(a) * float64(k))
	}
	return a * uint64(k) & e.mask()
}

// after is what a library does to the sum of an average.
func (e elemType) after(op, n int, a uint64) uint64 {
	switch {
	case op != opAvg || e.float():
		return a
	case e.signed:
		return uint64(e.extend(a)/int64(n)) & e.mask()
	}
	return a / uint64(n)
}

// widened is an average as some kernels do it: summed in a wider type, multiplied there, then rounded.
func (e elemType) widened(n int, in []uint64) uint64 {
	wide := elemTypes[tFloat]
	switch e.dtype {
	case tE4M3, tE5M2:
		wide = elemTypes[tHalf]
	case tDouble:
		wide = e
	}
	sum := 0.0
	for _, b := range in {
		sum = wide.round(sum + e.decode(b))
	}
	return e.encode(wide.round(sum * wide.round(1/float64(n))))
}

func TestArithmeticOfTheTests(t *testing.T) {
	for _, e := range elemTypes {
		if !e.float() || e.bytes > 2 {
			continue
		}
		prev := math.Inf(-1)
		for b := uint64(0); b <= e.mask(); b++ {
			x := e.decode(b)
			if math.IsNaN(x) {
				continue
			}
			if got := e.encode(x); got != b {
				t.Fatalf("%s: %#x is %g, back %#x", e.name, b, x, got)
			}
			if b >= e.top() || math.IsInf(x, 0) {
				continue
			}
			if x <= prev {
				t.Fatalf("%s: %#x is %g, not above %g", e.name, b, x, prev)
			}
			if b > 0 { // the midpoint below goes to the even neighbour
				if got := e.encode((x + prev) / 2); got != b-b&1 {
					t.Fatalf("%s: midpoint below %#x rounds to %#x", e.name, b, got)
				}
			}
			prev = x
		}
		if prev != e.max {
			t.Errorf("%s: largest is %g, want %g", e.name, prev, e.max)
		}
	}
	for _, c := range []struct {
		dtype int
		bits  uint64
		value float64
	}{{tHalf, 0x3555, 0.333251953125}, {tHalf, 1, 0x1p-24}, {tBF16, 0x3eab, 0.333984375}, {tBF16, 0xc040, -3}, {tE4M3, 0x01, 0x1p-9},
		{tE4M3, 0x7e, 448}, {tE4M3, 0x38, 1}, {tE5M2, 0x3c, 1}, {tE5M2, 0x01, 0x1p-16}, {tE5M2, 0xfb, -57344}} {
		if got := elemTypes[c.dtype].decode(c.bits); got != c.value {
			t.Errorf("%s: %#x is %g, want %g", elemTypes[c.dtype].name, c.bits, got, c.value)
		}
	}
}

// elements is a buffer of n elements that starts at byte from.
type elements struct {
	e    elemType
	all  []byte
	from int
	n    int
}

// newElements makes a buffer for count elements that starts skip elements after a multiple of 16 bytes, with room around it.
func newElements(e elemType, count, skip int) *elements {
	all := make([]byte, (count+skip)*e.bytes+64)
	from := (16-int(addressOf(all)&15))&15 + 16 + skip*e.bytes
	return &elements{e: e, all: all, from: from, n: count}
}

func (v *elements) get(i int) uint64 {
	at, x := v.from+i*v.e.bytes, uint64(0)
	for k := v.e.bytes - 1; k >= 0; k-- {
		x = x<<8 | uint64(v.all[at+k])
	}
	return x
}

func (v *elements) set(i int, x uint64) {
	at := v.from + i*v.e.bytes
	for k := range v.e.bytes {
		v.all[at+k] = byte(x >> (8 * k))
	}
}
