package bench

import (
	"math"
	"math/bits"

	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/nccl"
)

// Steps of the last place that are accepted: as cp_check does for an average of two (pairSlack), and where a supposed cause makes sums that
// the type cannot hold, so that the order of additions decides about the last bits.
const (
	pairSlack    = 2
	roundedSlack = 2
)

// arith is the exact arithmetic of an element type under an operator. Values are a float's float64, as bits, or an integer's bits. A float's
// partial sums and products are exact in float64 by the choice of the data (csrc/verify_kernels.h).
type arith struct {
	dtype   nccl.DataType
	op      nccl.RedOp
	world   int
	width   int // bits of the type
	signed  bool
	p, bias int     // significand bits with the hidden one, 0: integer; exponent bias
	pair    bool    // an average of which only two ranks' inputs are not zero
	recip   float64 // rounded 1/world where it is subnormal in the type, else 0
}

func newArith(t nccl.DataType, op nccl.RedOp, world int) arith {
	a := arith{dtype: t, op: op, world: world, width: 8 * t.Size(), signed: t == nccl.Int8 || t == nccl.Int32 || t == nccl.Int64}
	switch t {
	case nccl.Float16:
		a.p, a.bias = 11, 15
	case nccl.Float32:
		a.p, a.bias = 24, 127
	case nccl.Float64:
		a.p, a.bias = 53, 1023
	case nccl.Bfloat16:
		a.p, a.bias = 8, 127
	case nccl.Float8E4M3:
		a.p, a.bias = 4, 7
	case nccl.Float8E5M2:
		a.p, a.bias = 3, 15
	}
	if a.p == 0 || op != nccl.Avg {
		return a
	}
	log2 := bits.Len(uint(world)) - 1
	a.pair = world&(world-1) != 0 || log2 > a.bias+a.p-2
	if a.pair && a.bias <= recipFormBias && world > 1<<(a.bias-1) {
		unit := math.Ldexp(1, -(a.bias + a.p - 2)) // the smallest subnormal
		a.recip = math.RoundToEven(1/float64(world)/unit) * unit
	}
	return a
}

func (a *arith) mask() uint64 { return ^uint64(0) >> (64 - a.width) }

// value is the value of an element's bits.
func (a *arith) value(b uint64) uint64 {
	if a.p == 0 {
		return b
	}
	v := 0.0
	switch a.dtype {
	case nccl.Float32:
		v = float64(math.Float32frombits(uint32(b)))
	case nccl.Float64:
		return b
	case nccl.Bfloat16:
		v = float64(math.Float32frombits(uint32(b) << 16))
	default:
		v = smallFloat(b, a.width-a.p, a.p-1, a.dtype != nccl.Float8E4M3)
	}
	return math.Float64bits(v)
}

// encode rounds to the type, to nearest and even; what is too large becomes infinity, or for E4M3, which has none, the largest number.
func (a *arith) encode(x float64) uint64 {
	switch a.dtype {
	case nccl.Float32:
		return uint64(math.Float32bits(float32(x)))
	case nccl.Float64:
		return math.Float64bits(x)
	}
	sign := uint64(0)
	if math.Signbit(x) {
		sign = 1 << (a.width - 1)
	}
	top := uint64(1)<<(a.width-1) - 1<<(a.p-1) // infinity
	if a.dtype == nccl.Float8E4M3 {
		top = 0x7e
	}
	if x == 0 {
		return sign
	}
	x = math.Abs(x)
	lowest := 1 - a.bias
	exp := lowest
	if !math.IsInf(x, 0) && !math.IsNaN(x) {
		exp = max(math.Ilogb(x), lowest)
	}
	steps := math.RoundToEven(math.Ldexp(x, a.p-1-exp))
	if code := float64(exp-lowest)*float64(uint64(1)<<(a.p-1)) + steps; code < float64(top) {
		return sign | uint64(code)
	}
	return sign | top
}

// combine is one step of the reduction.
func (a *arith) combine(x, y uint64) uint64 {
	if a.p != 0 {
		return math.Float64bits(a.combineFloat(floatOf(x), floatOf(y)))
	}
	flip := uint64(0)
	if a.signed {
		flip = 1 << (a.width - 1)
	}
	switch a.op {
	case nccl.Prod:
		return x * y & a.mask()
	case nccl.Max:
		return max(x^flip, y^flip) ^ flip
	case nccl.Min:
		return min(x^flip, y^flip) ^ flip
	}
	return (x + y) & a.mask()
}

func (a *arith) combineFloat(x, y float64) float64 {
	switch a.op {
	case nccl.Prod:
		return x * y
	case nccl.Max:
		return math.Max(x, y)
	case nccl.Min:
		return math.Min(x, y)
	}
	return x + y
}

// scaled is what rank's input enters the reduction as; for an average the division comes last, since it is exact or has a tolerance.
func (a *arith) scaled(rank int, v uint64) uint64 {
	if a.op != mulSum || rank%2 == 0 {
		return v
	}
	return a.combine(v, v) // csrc.MulSumScalar is 2 on odd ranks
}

// prediction is what a cause would leave in an element: bits or alt, give or take slack steps.
type prediction struct {
	bits, alt, slack uint64
	none             bool // the cause says nothing about this element
}

// allows says whether got is as predicted.
func (p prediction) allows(got uint64) bool {
	if p.none {
		return false
	}
	return got == p.bits || p.slack > 0 && (near(got, p.bits, p.slack) || near(got, p.alt, p.slack))
}

func near(x, y, steps uint64) bool { return max(x, y)-min(x, y) <= steps }

func exactly(b uint64) prediction { return prediction{bits: b, alt: b} }

// finish turns a total into what the rank has at the end. rough: the cause breaks the rules that make sums exact.
func (a *arith) finish(v uint64, rough bool) prediction {
	if a.p == 0 {
		return exactly(a.divide(v))
	}
	x := floatOf(v)
	p := prediction{}
	if a.op == nccl.Avg {
		p.bits = a.encode(x / float64(a.world))
		p.alt = p.bits
		if a.recip != 0 {
			p.alt = a.encode(x * a.recip)
		}
		if a.pair {
			p.slack = pairSlack
		}
		x /= float64(a.world)
	} else {
		p = exactly(a.encode(x))
	}
	inexact := a.p == 53 || floatOf(a.value(p.bits)) != x
	if rough && inexact && a.op != nccl.Max && a.op != nccl.Min {
		p.slack = max(p.slack, roundedSlack)
	}
	return p
}

// divide is the end of an integer average.
func (a *arith) divide(v uint64) uint64 {
	if a.op != nccl.Avg {
		return v
	}
	if !a.signed {
		return v / uint64(a.world)
	}
	s := 64 - a.width
	return uint64(int64(v<<s)>>s/int64(a.world)) & a.mask()
}

// input is the bits of rank's input for the reduction.
func (a *arith) input(rank int, seed uint64, index int64) uint64 {
	return csrc.VerifyInputBits(int(a.dtype), int(a.op), rank, a.world, seed, uint64(index))
}

// load computes the inputs of all ranks at a column, and what the first and the last k of them combine to.
func (a *arith) load(c *column, seed uint64) {
	n := a.world
	buf := make([]uint64, 3*n+2)
	c.x, c.pre, c.suf = buf[:n], buf[n:2*n+1], buf[2*n+1:]
	for r := range n {
		c.x[r] = a.scaled(r, a.value(a.input(r, seed, c.first)))
	}
	c.pre[1], c.suf[n-1] = c.x[0], c.x[n-1]
	for k := 2; k <= n; k++ {
		c.pre[k] = a.combine(c.pre[k-1], c.x[k-1])
		c.suf[n-k] = a.combine(c.x[n-k], c.suf[n-k+1])
	}
}

// without combines all ranks but lo … hi−1, which must not be all.
func (a *arith) without(c *column, lo, hi int) uint64 {
	switch {
	case lo == 0:
		return c.suf[hi]
	case hi == a.world:
		return c.pre[lo]
	}
	return a.combine(c.pre[lo], c.suf[hi])
}

// only combines the ranks lo … hi−1.
func (a *arith) only(c *column, lo, hi int) uint64 {
	v := c.x[lo]
	for r := lo + 1; r < hi; r++ {
		v = a.combine(v, c.x[r])
	}
	return v
}

func floatOf(v uint64) float64 { return math.Float64frombits(v) }
