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
	module                                           cuda.Module
	kFill, kCheck, kReset, kPoison, kX, kHash, kScan cuda.Function
	found                                            cuda.DevicePtr // a csrc.CheckResult
	grid, block                                      int
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
		"cp_hash": &c.kHash, "cp_nan_scan": &c.kScan,
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

// data says what a buffer is filled with or compared to.
type data struct {
	dtype nccl.DataType
	op    nccl.RedOp // of the cell: sourced where data is only moved
	world int
	seed  uint64
}

// fill queues writing a rank's input: count elements.
func (c *checker) fill(p cuda.DevicePtr, count result.Count, d data, rank int, s cuda.Stream) error {
	return c.kFill.Launch(c.grid, c.block, s, uint64(p), uint64(count), 0, uint64(d.dtype), uint64(d.op), uint64(rank), uint64(d.world), d.seed)
}

// poison queues writing a pattern that no generated value equals.
func (c *checker) poison(p cuda.DevicePtr, n int64, seed uint64, s cuda.Stream) error {
	return c.kPoison.Launch(c.grid, c.block, s, uint64(p), uint64(n), seed)
}

// corrupt queues flipping one bit of one element.
func (c *checker) corrupt(p cuda.DevicePtr, index int64, t nccl.DataType, s cuda.Stream) error {
	return c.kX.Launch(1, 1, s, uint64(p), uint64(index), uint64(t))
}

// reset queues forgetting what earlier comparisons found.
func (c *checker) reset(s cuda.Stream) error { return c.kReset.Launch(1, 1, s, uint64(c.found)) }

// compare queues comparing a piece of the result that begins at p with what it must be; found has the outcome once the stream is done.
func (c *checker) compare(p cuda.DevicePtr, q piece, d data, s cuda.Stream) error {
	op, source := d.op, 0
	if q.source >= 0 {
		op, source = sourced, q.source
	}
	return c.kCheck.Launch(c.grid, c.block, s, uint64(p.Add(q.at*int64(d.dtype.Size()))), uint64(q.count), uint64(q.first), uint64(d.dtype),
		uint64(op), uint64(source), uint64(d.world), d.seed, uint64(c.found))
}

// scan queues counting what is not a finite number.
func (c *checker) scan(p cuda.DevicePtr, count result.Count, t nccl.DataType, s cuda.Stream) error {
	return c.kScan.Launch(c.grid, c.block, s, uint64(p), uint64(count), 0, uint64(t), uint64(c.found))
}

// hash waits for the stream and returns a fingerprint of count elements.
func (c *checker) hash(p cuda.DevicePtr, count result.Count, t nccl.DataType, s cuda.Stream) (uint64, error) {
	raw := make([]byte, 8)
	err := errors.Join(cuda.MemsetAsync(c.found, 0, int64(len(raw)), s),
		c.kHash.Launch(c.grid, c.block, s, uint64(p), uint64(count), 0, uint64(t), uint64(c.found)), s.Synchronize(), cuda.CopyOut(raw, c.found))
	return binary.NativeEndian.Uint64(raw), err
}

// read returns what comparisons or scans found. The stream must be done.
func (c *checker) read() (csrc.CheckResult, error) {
	var r csrc.CheckResult
	raw := make([]byte, binary.Size(r))
	if err := cuda.CopyOut(raw, c.found); err != nil {
		return r, fmt.Errorf("read the comparison's result: %w", err)
	}
	if err := binary.Read(bytes.NewReader(raw), binary.NativeEndian, &r); err != nil {
		return r, fmt.Errorf("read the comparison's result: %w", err)
	}
	return r, nil
}

// wrong compares a piece and waits for the outcome.
func (c *checker) wrong(p cuda.DevicePtr, q piece, d data, s cuda.Stream) (int64, error) {
	if err := errors.Join(c.reset(s), c.compare(p, q, d, s), s.Synchronize()); err != nil {
		return 0, err
	}
	r, err := c.read()
	return int64(r.Wrong), err
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
