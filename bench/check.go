package bench

import (
	"errors"
	"fmt"
	"slices"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/nccl"
)

// Seeds of what the timed operations work on. Checks on fresh data have larger ones.
const (
	sendSeed = 1
	recvSeed = 2
)

// fresh is the seed of a check: it differs from step to step, check to check, half to half.
func (h *half) fresh(check int) uint64 {
	seed := uint64(h.t.number)*4096 + uint64(check)*2 + 3
	if h.inPlace {
		seed++
	}
	return seed
}

// data describes what a lane's communicator works on. Communicators have different data, so that traffic of one that gets into another shows.
func (m *member) data(t *task, seed uint64) data {
	return data{dtype: t.dtype, op: t.dataOp(), world: m.world, seed: seed + uint64(m.group)<<40 + uint64(m.index)<<56}
}

// hostPattern is after how many bytes a buffer's contents repeat on the host engine, where making data is slow.
const hostPattern = 64 << 10

// pattern is after how many elements a buffer's contents repeat.
func (l *lane) pattern(t nccl.DataType) int64 {
	n := l.bufBytes
	if cuda.IsHost() {
		n = min(n, hostPattern)
	}
	return n / int64(t.Size())
}

// fillAll fills the first n bytes of a buffer: the pattern, and copies of it.
func (l *lane) fillAll(p cuda.DevicePtr, t *task, seed uint64, n int64) error {
	m := member{lane: l}
	part := l.pattern(t.dtype) * int64(t.dtype.Size())
	have := min(n, part)
	if err := l.check.fill(p, result.Count(have/int64(t.dtype.Size())), m.data(t, seed), l.at, l.stream); err != nil {
		return err
	}
	for have < n {
		more := min(have/part*part, n-have)
		if err := cuda.CopyAsync(p.Add(have), p, more, l.stream); err != nil {
			return err
		}
		have += more
	}
	return nil
}

// timedOps is how many operations the timed series has, and used how many places they take turns in.
func (h *half) timedOps(m *member) (ops, used int64) {
	ops = int64(h.t.iters) * int64(h.t.aggregate())
	return ops, min(ops, int64(m.slots))
}

// uncheckable says why the result of the timed operations is not known beforehand, "" when it is.
func (h *half) uncheckable(m *member) string {
	ops, used := h.timedOps(m)
	if m.apart(h.inPlace) || !h.t.coll.reduces || ops <= used && h.t.plan.Modes.Graph <= 1 {
		return ""
	}
	return "in place each reduction changes the next one's input, and there is no room for all side by side"
}

// places are the rotation's places whose contents are compared after the timed operations: the last, on GPUs also the first and one between.
func (h *half) places(m *member) []int64 {
	ops, used := h.timedOps(m)
	last := (ops - 1) % int64(m.slots)
	if cuda.IsHost() {
		return []int64{last}
	}
	out := []int64{0, used / 2, last}
	slices.Sort(out)
	return slices.Compact(out)
}

// armTimed prepares what checkTimed will look at: the buffers get their pattern back, and out of place the result's place is poisoned.
func (h *half) armTimed() error {
	if h.t.plan.Check == 0 {
		return nil
	}
	for i := range h.ms {
		m := &h.ms[i]
		if m.idle || h.uncheckable(m) != "" {
			continue
		}
		err := m.on(func(l *lane) error {
			_, used := h.timedOps(m)
			end := min(l.bufBytes, m.base+used*int64(m.ly.bytes))
			// Earlier operations and checks left other data.
			in, seed := m.input(h.inPlace)
			err := l.fillAll(in, h.t, seed, end)
			if !m.apart(h.inPlace) {
				return err
			}
			for _, p := range h.places(m) {
				at := l.recv.Add(m.base + p*int64(m.ly.bytes))
				err = errors.Join(err, l.check.poison(at, int64(m.ly.recv)*int64(h.t.dtype.Size()), 0, l.stream))
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", h.doing, err)
		}
	}
	return h.settled(h.doing + ", preparing buffers")
}

// checkTimed compares what the timed operations left.
func (h *half) checkTimed() error {
	if h.t.plan.Check == 0 {
		return nil
	}
	for i := range h.ms {
		m := &h.ms[i]
		if m.idle {
			continue
		}
		if why := h.uncheckable(m); why != "" {
			h.out[i].Unchecked = why
			continue
		}
		for _, p := range h.places(m) {
			if err := h.checkPlace(i, p); err != nil {
				return err
			}
		}
	}
	return nil
}

func (h *half) checkPlace(i int, place int64) error {
	m := &h.ms[i]
	_, seed := m.input(h.inPlace)
	shift := place * int64(m.ly.bytes)
	if h.t.plan.Inject.Timed {
		if err := h.flip(m, shift); err != nil {
			return err
		}
	}
	v := verdictOn{h: h, m: m, shift: shift, seed: seed, pieces: h.patterned(m, shift), what: "timed operations"}
	return v.judge(&h.out[i])
}

// patterned is what the result at a place of the rotation must be when the buffers hold their pattern: the pieces, cut where it repeats.
func (h *half) patterned(m *member, shift int64) []piece {
	if h.t.coll.expect == nil {
		return nil
	}
	period := m.pattern(h.t.dtype)
	base := (m.base + shift) / int64(h.t.dtype.Size())
	var out []piece
	for _, p := range h.t.coll.expect(m.s, m.ly) {
		first := base + p.first
		if !m.apart(h.inPlace) && p.source >= 0 {
			s := m.s
			s.rank = p.source
			first += int64(h.t.coll.lay(s, h.t.ask, h.t.dtype).sendAt)
		}
		for done := int64(0); done < p.count; {
			at := (first + done) % period
			n := min(p.count-done, period-at)
			out = append(out, piece{at: p.at + done, count: n, source: p.source, first: at})
			done += n
		}
	}
	return out
}

// verdictOn is one comparison of a member's result.
type verdictOn struct {
	h      *half
	m      *member
	shift  int64 // bytes, of both buffers
	seed   uint64
	stale  []uint64
	pieces []piece
	what   string // what was done, for the text
}

// judge compares and adds what it finds to out.
func (v *verdictOn) judge(out *rankHalf) error {
	h, m := v.h, v.m
	_, result0 := m.buffers(h.inPlace)
	at := result0.Add(v.shift)
	d := m.data(h.t, v.seed)
	err := m.on(func(l *lane) error {
		err := l.check.reset(l.stream)
		for _, p := range v.pieces {
			err = errors.Join(err, l.check.compare(at, p, d, l.stream))
		}
		return err
	})
	if err == nil {
		err = h.settled(h.doing + ", comparing")
	}
	if err != nil {
		return fmt.Errorf("%s: compare: %w", h.doing, err)
	}
	out.Checked = true
	return m.on(func(l *lane) error {
		r, err := l.check.read()
		if err != nil || r.Wrong == 0 {
			return err
		}
		f, err := v.explain(l, at, d, r)
		if err != nil {
			return err
		}
		f.Rank = l.rank
		if !slices.ContainsFunc(out.Faults, func(o result.Fault) bool { return o.Rank == f.Rank }) {
			out.Faults = append(out.Faults, *f) // one tells enough; a broken rank would tell the same at each check
		}
		return nil
	})
}

// explain finds out what is wrong with a result. What the device counted stands in any case.
func (v *verdictOn) explain(l *lane, at cuda.DevicePtr, d data, counted csrc.CheckResult) (*result.Fault, error) {
	size := int64(d.dtype.Size())
	e := &evidence{
		rank: l.at, world: l.world, dtype: d.dtype, op: d.op, seed: d.seed, pieces: v.pieces,
		wrong: func(p piece) (int64, error) { return l.check.wrong(at, p, d, l.stream) },
		read: func(from, count int64) ([]byte, error) {
			b := make([]byte, count*size)
			return b, cuda.CopyOut(b, at.Add(from*size))
		},
	}
	for _, s := range v.stale {
		e.stale = append(e.stale, v.m.data(v.h.t, s).seed)
	}
	f, err := e.explain()
	if err != nil {
		return nil, err
	}
	if f == nil {
		f = &result.Fault{Wrong: int64(counted.Wrong), Analysis: "a second look found nothing wrong: the memory changed after the operation was done"}
	}
	f.Analysis = v.what + ": " + f.Analysis
	if v.h.t.plan.Groups != nil {
		f.Analysis = fmt.Sprintf("ranks as numbered in group %d: %s", l.group, f.Analysis)
	}
	return f, nil
}

// checks runs the operation on fresh data and compares every element. The part of the buffers that is used differs from check to check.
func (h *half) checks() error {
	for c := range h.t.plan.Check {
		seed := h.fresh(c)
		place := int64(seed * 0x9e3779b97f4a7c15 >> 33 % h.ms[0].slots)
		if err := h.freshData(seed, place); err != nil {
			return err
		}
		if h.t.plan.NaNCheck {
			if err := h.nanCheck(place); err != nil {
				return err
			}
		}
		if err := h.runOnce(seed, place); err != nil {
			return err
		}
		for i := range h.ms {
			m := &h.ms[i]
			if m.idle || h.t.coll.expect == nil {
				h.out[i].Checked = true
				continue
			}
			shift := m.shiftOf(place)
			v := verdictOn{
				h: h, m: m, shift: shift, seed: seed, stale: []uint64{h.fresh(c - 1), h.fresh(c) - 1}, pieces: h.t.coll.expect(m.s, m.ly),
				what: fmt.Sprintf("check %d", c+1),
			}
			if err := v.judge(&h.out[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// shiftOf is the place's offset in bytes; members whose buffers have fewer places take them modulo.
func (m *member) shiftOf(place int64) int64 { return place % int64(m.slots) * int64(m.ly.bytes) }

// freshData gives every rank its input for a check. The place of the result is poisoned before, so that an element that nobody writes is seen.
func (h *half) freshData(seed uint64, place int64) error {
	for i := range h.ms {
		m := &h.ms[i]
		err := m.on(func(l *lane) error {
			send, recv := m.buffers(h.inPlace)
			shift := m.shiftOf(place)
			size := int64(h.t.dtype.Size())
			err := l.check.poison(recv.Add(shift), int64(m.ly.recv)*size, seed, l.stream)
			err = errors.Join(err, l.check.fill(send.Add(shift), m.ly.send, m.data(h.t, seed), l.at, l.stream))
			return errors.Join(err, h.plantInput(m, send.Add(shift)))
		})
		if err != nil {
			return fmt.Errorf("%s: %w", h.doing, err)
		}
	}
	return nil
}

// runOnce is the operation that a check looks at. With -G it is a graph's second launch.
func (h *half) runOnce(seed uint64, place int64) error {
	doing := h.doing + ", check"
	s := h.series(h.at(func(m *member) int64 { return m.shiftOf(place) }), 1)
	if h.t.plan.Modes.Graph == 0 {
		if _, err := h.run(s, doing); err != nil {
			return err
		}
		return h.plantResult(place)
	}
	graphs, err := h.record(s)
	if err != nil {
		return err
	}
	launch := h.series(nil, 1)
	for _, g := range graphs {
		launch.Graphs = append(launch.Graphs, g.Handle())
	}
	for n := range 2 {
		if n == 1 {
			err = h.freshData(seed, place)
		}
		if err == nil {
			_, err = h.run(launch, doing)
		}
	}
	if err = errors.Join(err, destroyGraphs(graphs)); err != nil {
		return err
	}
	return h.plantResult(place)
}

// nanCheck looks at every rank's input.
func (h *half) nanCheck(place int64) error {
	for i := range h.ms {
		m := &h.ms[i]
		send, _ := m.buffers(h.inPlace)
		at := send.Add(m.shiftOf(place))
		err := m.on(func(l *lane) error {
			return errors.Join(l.check.reset(l.stream), l.check.scan(at, m.ly.send, h.t.dtype, l.stream))
		})
		if err == nil {
			err = h.settled(h.doing + ", looking for NaN")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", h.doing, err)
		}
		r, err := m.check.read()
		if err != nil {
			return fmt.Errorf("%s: %w", h.doing, err)
		}
		if r.Wrong == 0 {
			continue
		}
		f := result.Fault{Rank: m.rank, Wrong: int64(r.Wrong), First: int64(r.FirstIndex), Last: int64(r.LastIndex), Kind: faultNaN}
		for _, s := range r.Sample[:min(r.NSample, csrc.CheckSamples)] {
			f.Samples = append(f.Samples, result.Sample{Index: int64(s.Index), Got: formatBits(h.t.dtype, s.Got), Expected: "a finite number"})
		}
		f.Analysis = fmt.Sprintf("input: %d elements are NaN or infinite before the operation, the first at index %d", f.Wrong, f.First)
		h.out[i].Faults = append(h.out[i].Faults, f)
	}
	return nil
}
