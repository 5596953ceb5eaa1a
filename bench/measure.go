package bench

import (
	"errors"
	"fmt"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/cuda"
)

// task is one step as a driver runs it.
type task struct {
	step
	world      int
	warmup     int
	checks     int
	iters      int
	eventIters int
	maxBytes   result.Bytes // rotation reaches as far
	number     int          // of the step, makes data differ from step to step
	inject     Inject
}

func (t *task) name(inPlace bool) string {
	where := "out-of-place"
	if inPlace {
		where = "in-place"
	}
	return fmt.Sprintf("%s %s %s, %d bytes, %s", t.coll.name, t.dtype, t.op, t.layout.bytes, where)
}

// slots is after how many iterations the rotation through the buffers starts again, as in nccl-tests: so that caches stay cold when the
// buffers are much larger than the message.
func (t *task) slots() uint64 {
	if t.layout.bytes == 0 {
		return 1
	}
	return uint64(max(1, t.maxBytes/t.layout.bytes))
}

// measure runs both halves of a task on the driver's thread and returns one row a lane.
func (d *driver) measure(t *task) ([]rankRow, error) {
	rows := make([]rankRow, len(d.lanes))
	for h, inPlace := range []bool{false, true} {
		halves, err := d.half(t, inPlace)
		if err != nil {
			return nil, err
		}
		for i := range rows {
			rows[i].Halves[h] = halves[i]
		}
	}
	return rows, nil
}

// half is nccl-tests' order of things: data, warm-up, one operation not timed, barrier, the timed operations; then a second series with an
// event after each operation, and the checks.
func (d *driver) half(t *task, inPlace bool) ([]rankHalf, error) {
	doing := t.name(inPlace)
	if err := d.prepare(t, doing); err != nil {
		return nil, err
	}
	steps := d.steps(t.step, t.world, inPlace, 0)
	repeat := func(iters int, barrier bool) *csrc.Series {
		s := d.series(steps, iters)
		s.RotStride, s.RotSlots = uint64(t.layout.bytes), t.slots()
		if barrier {
			s.Barrier, s.Parties = d.barrier, d.parties
		}
		return s
	}
	if t.warmup > 0 {
		if _, err := d.run(repeat(t.warmup, false), doing+", warm-up"); err != nil {
			return nil, err
		}
	}
	if _, err := d.run(repeat(1, false), doing); err != nil {
		return nil, err
	}
	d.quiet.settle()
	timed := repeat(t.iters, true)
	timed.Probe = true
	r, err := d.run(timed, doing)
	if err != nil {
		return nil, err
	}
	out := make([]rankHalf, len(d.lanes))
	for i := range out {
		out[i] = rankHalf{
			TimeNS:    float64(r.DoneNS-r.StartNS) / float64(t.iters),
			EnqueueNS: float64(r.MarkedNS-r.StartNS) / float64(min(t.iters, csrc.EnqueueSample)),
			CPU:       r.CPU, Switches: r.Switches, IssueRate: min(r.RateBefore, r.RateAfter),
		}
	}
	if err := d.eventSeries(t, repeat(t.eventIters, true), doing, out); err != nil {
		return nil, err
	}
	return out, d.checks(t, inPlace, doing, out)
}

// prepare fills the buffers with data of the cell's type, once: timing must not run on zeros or on another type's bit patterns.
func (d *driver) prepare(t *task, doing string) error {
	want := fmt.Sprintf("%d/%d", t.dtype, t.op)
	for _, l := range d.lanes {
		if l.filled == want {
			continue
		}
		err := l.on(func(l *lane) error {
			return errors.Join(l.fillAll(l.send, t, 1), l.fillAll(l.recv, t, 2))
		})
		if err != nil {
			return fmt.Errorf("%s: fill buffers: %w", doing, err)
		}
		l.filled = want
	}
	_, err := d.run(d.series(nil, 0), doing+", filling buffers")
	return err
}

// fillAll fills a whole buffer: a first part with data, the rest with copies of it, since making data is slow on the host engine.
func (l *lane) fillAll(p cuda.DevicePtr, t *task, seed uint64) error {
	const part = 1 << 20
	have := min(l.bufBytes, part)
	if err := l.check.fill(p, result.Count(have/int64(t.dtype.Size())), t.dtype, t.op, l.rank, t.world, seed, l.stream); err != nil {
		return err
	}
	for have < l.bufBytes {
		n := min(have, l.bufBytes-have)
		if err := cuda.CopyAsync(p.Add(have), p, n, l.stream); err != nil {
			return err
		}
		have += n
	}
	return nil
}

// eventSeries repeats the operations with an event between each two, which the main series is not disturbed by.
func (d *driver) eventSeries(t *task, s *csrc.Series, doing string, out []rankHalf) error {
	if t.eventIters == 0 {
		return nil
	}
	for i, l := range d.lanes {
		if err := l.on(func(l *lane) error { return l.need(t.eventIters + 1) }); err != nil {
			return err
		}
		for _, e := range l.events[:t.eventIters+1] {
			s.Lanes[i].Events = append(s.Lanes[i].Events, e.Handle())
		}
	}
	if _, err := d.run(s, doing+", per-iteration series"); err != nil {
		return err
	}
	for i, l := range d.lanes {
		out[i].EventUS = make([]float64, t.eventIters)
		for k := range out[i].EventUS {
			dt, err := l.events[k+1].Since(l.events[k])
			if err != nil {
				return fmt.Errorf("rank %d: %s: %w", l.rank, doing, err)
			}
			out[i].EventUS[k] = float64(dt.Nanoseconds()) / 1000
		}
	}
	return nil
}

// checks runs the operation on fresh data and compares every element. The part of the buffers that is used differs from check to check.
func (d *driver) checks(t *task, inPlace bool, doing string, out []rankHalf) error {
	for c := range t.checks {
		seed := uint64(t.number)*4096 + uint64(c)*2 + 3
		if inPlace {
			seed++
		}
		slot := seed * 0x9e3779b97f4a7c15 >> 33 % t.slots()
		shift := slot * uint64(t.layout.bytes)
		for _, l := range d.lanes {
			if err := l.on(func(l *lane) error { return l.freshData(t, inPlace, shift, seed) }); err != nil {
				return fmt.Errorf("%s: %w", doing, err)
			}
		}
		if _, err := d.run(d.series(d.steps(t.step, t.world, inPlace, shift), 1), doing+", check"); err != nil {
			return err
		}
		for i, l := range d.lanes {
			err := l.on(func(l *lane) error {
				if t.inject.Element && t.inject.Rank == l.rank && t.layout.recv > 0 {
					if err := l.check.corrupt(l.recv.Add(int64(shift)), int64(t.layout.recv)/2, t.dtype, l.stream); err != nil {
						return err
					}
				}
				return l.check.start(l.recv.Add(int64(shift)), t.layout.recv, t.dtype, t.op, t.world, seed, l.stream)
			})
			if err != nil {
				return fmt.Errorf("%s: check: %w", doing, err)
			}
			out[i].Checked = true
		}
		if _, err := d.run(d.series(nil, 0), doing+", comparing"); err != nil {
			return err
		}
		for i, l := range d.lanes {
			err := l.on(func(l *lane) error {
				f, err := l.check.fault(l.rank, t.dtype)
				if f != nil && out[i].Fault == nil {
					out[i].Fault = f
				}
				return err
			})
			if err != nil {
				return fmt.Errorf("%s: %w", doing, err)
			}
		}
	}
	return nil
}

// freshData gives the rank its input for a check and, out of place, poisons the place of the result so that an element that nobody writes
// is seen.
func (l *lane) freshData(t *task, inPlace bool, shift, seed uint64) error {
	in := l.send
	if inPlace {
		in = l.recv
	} else if err := l.check.poison(l.recv.Add(int64(shift)), int64(t.layout.recv)*int64(t.dtype.Size()), seed, l.stream); err != nil {
		return err
	}
	return l.check.fill(in.Add(int64(shift)), t.layout.send, t.dtype, t.op, l.rank, t.world, seed, l.stream)
}
