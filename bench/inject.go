package bench

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/nccl"
)

// Planted faults, for proving that checks find them.

// victim is the highest rank of a communicator that has a result, or with giving that has data to give; -1: none has.
func (t *task) victim(world int, giving bool) int {
	for r := world - 1; r >= 0; r-- {
		s := t.plan.shape(t.cell, r, world)
		if t.coll.idle != nil && t.coll.idle(s) {
			continue
		}
		l := t.coll.lay(s, t.ask, t.dtype)
		if giving && l.send > 0 || !giving && t.coll.expect != nil && len(t.coll.expect(s, l)) > 0 {
			return r
		}
	}
	return -1
}

// plantInput spoils the input that begins at p, if the plan wants that of this rank.
func (h *half) plantInput(m *member, p cuda.DevicePtr) error {
	inject := h.t.plan.Inject
	if !inject.Drop && !inject.NaN || h.t.victim(m.world, true) != m.at {
		return nil
	}
	t, size := h.t.dtype, int64(h.t.dtype.Size())
	switch {
	case inject.NaN:
		f, isFloat := floatBits[t]
		if !isFloat {
			return nil // integers are always numbers
		}
		return m.repeat(p.Add(int64(m.ly.send)/2*size), f.nan, size, 1)
	case !h.t.coll.reduces:
		return m.check.poison(p, int64(m.ly.send)*size, 0, m.stream)
	}
	return m.repeat(p, neutral(h.t.op, t), size, int64(m.ly.send))
}

// plantResult spoils the results, if the plan wants that of a rank of this driver.
func (h *half) plantResult(place int64) error {
	if !h.t.plan.Inject.Element {
		return nil
	}
	for i := range h.ms {
		if err := h.flip(&h.ms[i], h.ms[i].shiftOf(place)); err != nil {
			return err
		}
	}
	return nil
}

// lags tells whether the plan wants a rank of this driver to leave an operation out.
func (h *half) lags() bool {
	return h.t.plan.Inject.Hang && slices.ContainsFunc(h.ms, func(m member) bool { return h.t.victim(m.world, true) == m.at })
}

// flip changes a bit of the element in the middle of a member's result, if the member is the victim.
func (h *half) flip(m *member, shift int64) error {
	if m.idle || h.t.victim(m.world, false) != m.at {
		return nil
	}
	_, recv := m.buffers(h.inPlace)
	return m.on(func(l *lane) error {
		return l.check.corrupt(recv.Add(shift), int64(m.ly.recv)/2, h.t.dtype, l.stream)
	})
}

// repeat writes count elements of size bytes, all with the same bits.
func (l *lane) repeat(p cuda.DevicePtr, bits uint64, size, count int64) error {
	var one [8]byte
	binary.LittleEndian.PutUint64(one[:], bits)
	chunk := bytes.Repeat(one[:size], int(min(count, 1<<16)))
	if len(chunk) == 0 {
		return nil
	}
	if err := errors.Join(l.stream.Synchronize(), cuda.CopyIn(p, chunk)); err != nil {
		return err
	}
	for have, all := int64(len(chunk)), count*size; have < all; {
		n := min(have, all-have)
		if err := cuda.CopyAsync(p.Add(have), p, n, l.stream); err != nil {
			return err
		}
		have += n
	}
	return nil
}

// floatBits are 1, the largest finite number, the sign and a NaN of a float type.
var floatBits = map[nccl.DataType]struct{ one, most, sign, nan uint64 }{
	nccl.Float16:    {0x3c00, 0x7bff, 1 << 15, 0x7e00},
	nccl.Float32:    {0x3f800000, 0x7f7fffff, 1 << 31, 0x7fc00000},
	nccl.Float64:    {0x3ff0000000000000, 0x7fefffffffffffff, 1 << 63, 0x7ff8000000000000},
	nccl.Bfloat16:   {0x3f80, 0x7f7f, 1 << 15, 0x7fc0},
	nccl.Float8E4M3: {0x38, 0x7e, 1 << 7, 0x7f},
	nccl.Float8E5M2: {0x3c, 0x7b, 1 << 7, 0x7e},
}

// neutral is the element that changes no reduction's result.
func neutral(op nccl.RedOp, t nccl.DataType) uint64 {
	bits := uint(8 * t.Size())
	f, isFloat := floatBits[t]
	signed := t == nccl.Int8 || t == nccl.Int32 || t == nccl.Int64
	switch op {
	case nccl.Prod:
		if isFloat {
			return f.one
		}
		return 1
	case nccl.Max:
		switch {
		case isFloat:
			return f.most | f.sign
		case signed:
			return 1 << (bits - 1)
		}
		return 0
	case nccl.Min:
		switch {
		case isFloat:
			return f.most
		case signed:
			return 1<<(bits-1) - 1
		}
		return ^uint64(0) >> (64 - bits)
	}
	return 0
}

// faultNaN is the kind of a fault that lies in the input.
const faultNaN = result.FaultInput
