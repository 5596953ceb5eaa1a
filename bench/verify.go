package bench

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/nccl"
)

// checker fills and compares device buffers on one device, with the kernels in csrc/verify_kernels.h.
type checker struct {
	module                             cuda.Module
	kFill, kCheck, kReset, kPoison, kX cuda.Function
	found                              cuda.DevicePtr // a csrc.CheckResult
	grid, block                        int
}

// newChecker loads the kernels on device, which must be the calling thread's.
func newChecker(device int) (*checker, error) {
	c := &checker{grid: 1, block: 1}
	if !cuda.IsHost() {
		sms, err := cuda.Attribute(cuda.AttrMultiprocessors, device)
		if err != nil {
			return nil, err
		}
		c.grid, c.block = sms*8, 256
	}
	var err error
	if c.module, err = cuda.LoadModule(csrc.VerifyPTX()); err != nil {
		return nil, fmt.Errorf("data kernels: %w", err)
	}
	for name, f := range map[string]*cuda.Function{
		"cp_fill_input": &c.kFill, "cp_check": &c.kCheck, "cp_check_reset": &c.kReset, "cp_poison": &c.kPoison, "cp_corrupt": &c.kX,
	} {
		if *f, err = c.module.Function(name); err != nil {
			return nil, errors.Join(err, c.close())
		}
	}
	if c.found, err = cuda.Malloc(int64(binary.Size(csrc.CheckResult{}))); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *checker) close() error {
	var errs []error
	if c.found != 0 {
		errs = append(errs, cuda.Free(c.found))
	}
	return errors.Join(append(errs, c.module.Unload())...)
}

// fill queues writing rank's input: count elements.
func (c *checker) fill(p cuda.DevicePtr, count result.Count, t nccl.DataType, op nccl.RedOp, rank, world int, seed uint64, s cuda.Stream) error {
	return c.kFill.Launch(c.grid, c.block, s, uint64(p), uint64(count), 0, uint64(t), uint64(op), uint64(rank), uint64(world), seed)
}

// poison queues writing a pattern that no generated value equals.
func (c *checker) poison(p cuda.DevicePtr, n int64, seed uint64, s cuda.Stream) error {
	return c.kPoison.Launch(c.grid, c.block, s, uint64(p), uint64(n), seed)
}

// corrupt queues flipping one bit of one element.
func (c *checker) corrupt(p cuda.DevicePtr, index int64, t nccl.DataType, s cuda.Stream) error {
	return c.kX.Launch(1, 1, s, uint64(p), uint64(index), uint64(t))
}

// start queues comparing count elements with the reduction over all ranks; fault tells the outcome once the stream is done.
func (c *checker) start(p cuda.DevicePtr, count result.Count, t nccl.DataType, op nccl.RedOp, world int, seed uint64, s cuda.Stream) error {
	if err := c.kReset.Launch(1, 1, s, uint64(c.found)); err != nil {
		return err
	}
	return c.kCheck.Launch(c.grid, c.block, s, uint64(p), uint64(count), 0, uint64(t), uint64(op), 0, uint64(world), seed, uint64(c.found))
}

// fault reads what the comparison found, nil when every element was right.
func (c *checker) fault(rank int, t nccl.DataType) (*result.Fault, error) {
	var r csrc.CheckResult
	raw := make([]byte, binary.Size(r))
	if err := cuda.CopyOut(raw, c.found); err != nil {
		return nil, fmt.Errorf("read the comparison's result: %w", err)
	}
	if err := binary.Read(bytes.NewReader(raw), binary.NativeEndian, &r); err != nil {
		return nil, fmt.Errorf("read the comparison's result: %w", err)
	}
	if r.Wrong == 0 {
		return nil, nil
	}
	f := &result.Fault{Rank: rank, Wrong: int64(r.Wrong), First: int64(r.FirstIndex), Last: int64(r.LastIndex)}
	for _, s := range r.Sample[:min(r.NSample, csrc.CheckSamples)] {
		f.Samples = append(f.Samples, result.Sample{Index: int64(s.Index), Got: formatBits(t, s.Got), Expected: formatBits(t, s.Expected)})
	}
	return f, nil
}

// formatBits prints an element's bits in the notation of its type.
func formatBits(t nccl.DataType, b uint64) string {
	switch t {
	case nccl.Int8:
		return strconv.Itoa(int(int8(b)))
	case nccl.Int32:
		return strconv.Itoa(int(int32(b)))
	case nccl.Int64:
		return strconv.FormatInt(int64(b), 10)
	case nccl.Uint8, nccl.Uint32, nccl.Uint64:
		return strconv.FormatUint(b, 10)
	case nccl.Float32:
		return formatFloat(float64(math.Float32frombits(uint32(b))), 32)
	case nccl.Float64:
		return formatFloat(math.Float64frombits(b), 64)
	case nccl.Bfloat16:
		return formatFloat(float64(math.Float32frombits(uint32(b)<<16)), 32)
	case nccl.Float16:
		return formatFloat(smallFloat(b, 5, 10, true), 32)
	case nccl.Float8E5M2:
		return formatFloat(smallFloat(b, 5, 2, true), 32)
	case nccl.Float8E4M3:
		return formatFloat(smallFloat(b, 4, 3, false), 32)
	}
	return fmt.Sprintf("%#x", b)
}

func formatFloat(v float64, bits int) string { return strconv.FormatFloat(v, 'g', -1, bits) }

// smallFloat decodes a binary float of the given exponent and mantissa widths. ieee: the largest exponent means infinity and NaN; without it
// (E4M3 of the OCP 8-bit formats) only the pattern of all ones is NaN.
func smallFloat(b uint64, expBits, manBits int, ieee bool) float64 {
	man := b & (1<<manBits - 1)
	exp := b >> manBits & (1<<expBits - 1)
	sign := 1.0
	if b>>(expBits+manBits)&1 != 0 {
		sign = -1
	}
	bias := 1<<(expBits-1) - 1
	top := exp == 1<<expBits-1
	switch {
	case top && ieee && man == 0:
		return math.Inf(int(sign))
	case top && (ieee || man == 1<<manBits-1):
		return math.NaN()
	case exp == 0:
		return sign * math.Ldexp(float64(man), 1-bias-manBits)
	}
	return sign * math.Ldexp(float64(man|1<<manBits), int(exp)-bias-manBits)
}
