package bench

import (
	"errors"
	"fmt"
	"slices"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/cuda"
)

// task is one step as a driver runs it.
type task struct {
	step
	plan       *Plan
	iters      int
	eventIters int
	number     int // of the step, makes data differ from step to step
}

// halfName says what is being done, for errors.
func (st step) halfName(inPlace bool) string {
	where := "out-of-place"
	if inPlace {
		where = "in-place"
	}
	return fmt.Sprintf("%s, %d bytes, %s", st.name(), st.bytes, where)
}

// slots is after how many operations of that size the rotation through the buffers starts again, as in nccl-tests: so that caches stay cold
// when the buffers are much larger than the message.
func (t *task) slots(size result.Bytes) uint64 {
	if size == 0 {
		return 1
	}
	return uint64(max(1, t.plan.MaxBytes/size))
}

// aggregate is the number of operations that make an iteration.
func (t *task) aggregate() int { return max(1, t.plan.Modes.Aggregate) }

// half is the state of one placement of a task on a driver.
type half struct {
	*driver
	t       *task
	ms      []member
	inPlace bool
	doing   string
	steps   []csrc.Step
	graphs  []cuda.GraphExec // with -G: all iterations, one a lane
	out     []rankHalf       // one a member
}

// measure runs both halves of a task on the driver's thread and returns one row for each rank that the driver has.
func (d *driver) measure(t *task) ([]rankRow, error) {
	rows := make([]rankRow, len(d.sets()[0]))
	for k, inPlace := range []bool{false, true} {
		h, err := d.half(t, inPlace)
		if err != nil {
			return nil, err
		}
		for i := range rows {
			rows[i].Halves[k] = h.out[i]
		}
		for i := len(rows); i < len(h.out); i++ { // further communicators of the same ranks
			rows[i%len(rows)].Halves[k].join(&h.out[i])
		}
	}
	return rows, nil
}

// half is nccl-tests' order of things: data, warm-up, one operation not timed, barrier, the timed operations; then, apart from it, the check
// of what they left, a second series with an event after each iteration, and the checks on fresh data.
func (d *driver) half(t *task, inPlace bool) (*half, error) {
	ms, err := d.members(t)
	if err != nil {
		return nil, err
	}
	h := &half{driver: d, t: t, ms: ms, inPlace: inPlace, doing: t.halfName(inPlace), steps: d.steps(t, ms, inPlace, 0), out: make([]rankHalf, len(ms))}
	for i := range ms {
		h.out[i].Idle = ms[i].idle
	}
	for _, phase := range []func() error{h.prepare, h.warm, h.poise, h.timed, h.checkTimed, h.events, h.checks, h.hashes} {
		if err := phase(); err != nil {
			return h, errors.Join(err, h.dropGraphs())
		}
	}
	return h, h.dropGraphs()
}

// repeat is a series of iterations through the rotating places.
func (h *half) repeat(iters int, barrier bool) *csrc.Series {
	s := h.series(h.steps, iters)
	s.Aggregate = h.t.aggregate()
	for i := range s.Lanes {
		s.Lanes[i].RotStride, s.Lanes[i].RotSlots = uint64(h.ms[i].ly.bytes), h.ms[i].slots
	}
	if barrier {
		s.Barrier, s.Parties = h.barrier, h.parties
	}
	return s
}

// prepare fills the send buffers with data of the cell's type, once, and the receive buffers with as much as the operations will touch: timing
// must not run on zeros or on another type's bit patterns.
func (h *half) prepare() error {
	want := fmt.Sprintf("%d/%d", h.t.dtype, h.t.dataOp())
	for i := range h.ms {
		m := &h.ms[i]
		if m.filled == want {
			continue
		}
		err := m.on(func(l *lane) error {
			err := errors.Join(l.fillAll(l.send, h.t, sendSeed, l.bufBytes), l.fillAll(l.recv, h.t, recvSeed, l.bufBytes))
			if l.recvBytes > l.bufBytes {
				err = errors.Join(err, l.fillAll(l.recv.Add(l.bufBytes), h.t, sendSeed, l.bufBytes))
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: fill buffers: %w", h.doing, err)
		}
		m.filled = want
	}
	return h.settled(h.doing + ", filling buffers")
}

func (h *half) warm() error {
	if h.t.plan.Warmup == 0 {
		return nil
	}
	_, err := h.run(h.repeat(h.t.plan.Warmup, false), h.doing+", warm-up")
	return err
}

// poise is what comes right before the timed operations: the buffers are made ready for the check of their result, the thread takes its place,
// and one operation more runs untimed, since on a new core the first one's queueing takes some ten microseconds longer. That operation goes to
// a place of the rotation that no timed one uses, so that its result cannot stand in for theirs; where there is none, it goes first.
func (h *half) poise() error {
	spare := true
	for i := range h.ms {
		_, used := h.timedOps(&h.ms[i])
		spare = spare && used < int64(h.ms[i].slots)
	}
	if !spare {
		h.quiet.settle()
		if _, err := h.run(h.repeat(1, false), h.doing); err != nil {
			return err
		}
		return h.armTimed()
	}
	if err := h.armTimed(); err != nil {
		return err
	}
	h.quiet.settle()
	s := h.series(h.at(func(m *member) int64 {
		_, used := h.timedOps(m)
		return used * int64(m.ly.bytes)
	}), 1)
	s.Aggregate = h.t.aggregate()
	_, err := h.run(s, h.doing)
	return err
}

// at are the operation's steps, shifted by so many bytes.
func (h *half) at(shift func(m *member) int64) []csrc.Step {
	out := slices.Clone(h.steps)
	for i := range out {
		s := &out[i]
		by := uintptr(shift(&h.ms[s.Lane]))
		if s.Send != 0 {
			s.Send += by
		}
		if s.Recv != 0 {
			s.Recv += by
		}
	}
	return out
}

// timed is the series that the figure comes from.
func (h *half) timed() error {
	launches, perLaunch := h.t.iters, h.t.aggregate()
	s := h.repeat(h.t.iters, true)
	if n := h.t.plan.Modes.Graph; n > 0 {
		if err := h.capture(); err != nil {
			return err
		}
		launches, perLaunch = n, h.t.iters*h.t.aggregate()
		s = h.graphSeries(n)
	}
	if h.lags() {
		s.Iters--
	}
	s.Probe = true
	s.Blocking = csrc.Blocking(h.t.plan.Modes.Blocking)
	r, err := h.run(s, h.doing)
	if err != nil {
		return err
	}
	trips := float64(max(1, h.t.coll.trips))
	ops := float64(launches*perLaunch) * trips
	for i := range h.out {
		o := &h.out[i]
		o.TimeNS = float64(r.DoneNS-r.StartNS-r.ExcludedNS) / ops
		o.QueuedNS = float64(r.EnqueuedNS-r.StartNS-r.ExcludedNS) / ops
		if s.Blocking == csrc.BlockingNo { // otherwise queueing waits for the operations
			o.EnqueueNS = float64(r.MarkedNS-r.StartNS) / (float64(min(launches, csrc.EnqueueSample)*perLaunch) * trips)
		}
		o.CPU, o.Switches, o.IssueRate = r.CPU, r.Switches, min(r.RateBefore, r.RateAfter)
	}
	return nil
}

// capture records all iterations of the half into a graph for each lane.
func (h *half) capture() error {
	graphs, err := h.record(h.repeat(h.t.iters, false))
	h.graphs = graphs
	return err
}

// record captures a series into graphs, one a lane. The caller destroys them.
func (h *half) record(s *csrc.Series) ([]cuda.GraphExec, error) {
	doing := h.doing + ", capturing the graph"
	defer h.rec.capturing()()
	for i := range h.ms {
		// Thread-local: other ranks of this process capture or allocate at the same time.
		err := h.ms[i].on(func(l *lane) error { return l.stream.BeginCapture(cuda.CaptureThreadLocal) })
		if err != nil {
			return nil, fmt.Errorf("%s: %w", doing, err)
		}
	}
	s.Capture = true
	_, runErr := h.run(s, doing)
	graphs := make([]cuda.Graph, len(h.ms))
	ended := make([]error, len(h.ms))
	// All captures end before the first graph is instantiated, which a thread that still captures may not do.
	for i := range h.ms {
		ended[i] = h.ms[i].on(func(l *lane) (err error) {
			graphs[i], err = l.stream.EndCapture()
			return err
		})
	}
	if runErr != nil { // why the captures then ended badly is no news
		return nil, runErr
	}
	var out []cuda.GraphExec
	errs := ended
	for i := range h.ms {
		if ended[i] != nil {
			continue
		}
		errs = append(errs, h.ms[i].on(func(*lane) error {
			x, err := graphs[i].Instantiate()
			if err == nil {
				out = append(out, x)
			}
			return errors.Join(err, graphs[i].Destroy())
		}))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("%s: %w", doing, errors.Join(err, destroyGraphs(out)))
	}
	return out, nil
}

// graphSeries launches the half's graphs that often.
func (h *half) graphSeries(launches int) *csrc.Series {
	s := h.series(nil, launches)
	for _, g := range h.graphs {
		s.Graphs = append(s.Graphs, g.Handle())
	}
	s.Barrier, s.Parties = h.barrier, h.parties
	return s
}

func (h *half) dropGraphs() error {
	graphs := h.graphs
	h.graphs = nil
	return destroyGraphs(graphs)
}

func destroyGraphs(graphs []cuda.GraphExec) error {
	var errs []error
	for _, g := range graphs {
		errs = append(errs, g.Destroy())
	}
	return errors.Join(errs...)
}

// events repeats the operations with an event between each two iterations (or graph launches), which the main series is not disturbed by.
func (h *half) events() error {
	n := h.t.eventIters
	if n == 0 {
		return nil
	}
	s, ops := h.repeat(n, true), h.t.aggregate()
	if h.graphs != nil {
		s, ops = h.graphSeries(n), h.t.iters*h.t.aggregate()
	}
	for i := range h.ms {
		m := &h.ms[i]
		if err := m.on(func(l *lane) error { return l.need(n + 1) }); err != nil {
			return err
		}
		for _, e := range m.lane.events[:n+1] {
			s.Lanes[i].Events = append(s.Lanes[i].Events, e.Handle())
		}
	}
	if _, err := h.run(s, h.doing+", per-iteration series"); err != nil {
		return err
	}
	ops *= max(1, h.t.coll.trips)
	for i := range h.ms {
		m := &h.ms[i]
		h.out[i].EventUS = make([]float64, n)
		for k := range h.out[i].EventUS {
			dt, err := m.lane.events[k+1].Since(m.lane.events[k])
			if err != nil {
				return fmt.Errorf("rank %d: %s: %w", m.rank, h.doing, err)
			}
			h.out[i].EventUS[k] = float64(dt.Nanoseconds()) / 1000 / float64(ops)
		}
	}
	return nil
}

// join adds what another communicator of the same rank measured at the same time.
func (a *rankHalf) join(b *rankHalf) {
	for i, us := range b.EventUS {
		if i < len(a.EventUS) {
			a.EventUS[i] = max(a.EventUS[i], us)
		}
	}
	a.Checked = a.Checked && b.Checked
	a.Faults = append(a.Faults, b.Faults...)
	if a.Unchecked == "" {
		a.Unchecked = b.Unchecked
	}
	a.Hashes = slices.Concat(a.Hashes, b.Hashes)
}
