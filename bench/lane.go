package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/nccl"
)

// lane is one rank's part of one communicator: its stream and buffers. All of it is used on its driver's thread only.
type lane struct {
	rank, device int
	index        int                       // which of several communicators over the same GPUs
	group        int                       // which of the groups that sweep at the same time
	at, world    int                       // rank and number of ranks in the communicator
	comm         atomic.Pointer[nccl.Comm] // set once on the driver's thread, aborted from any
	pci          string                    // PCI address of the device
	stream       cuda.Stream               // zero: the NULL stream
	send, recv   cuda.DevicePtr
	bufBytes     int64 // of the send buffer
	recvBytes    int64 // of the receive buffer: as much, or twice that for exchanges in place
	fromNCCL     bool  // buffers came from ncclMemAlloc
	events       []cuda.Event
	check        *checker
	filled       string                       // what the send buffer holds, so that it is not filled twice
	mulsum       map[nccl.DataType]nccl.RedOp // operators made for this communicator
	unregister   []func() error
	record       laneRecord
	free         [3]int64 // bytes free on the device before initialisation, after it, and with buffers; 0: not asked for
}

// driver is one thread that times: with one lane, or in the group placement with all of them.
type driver struct {
	thread  *cuda.Thread
	lanes   []*lane
	flag    *csrc.Flag
	barrier *csrc.Barrier
	parties int
	timeout time.Duration
	quiet   *quiet    // nil: stay where the system puts the thread
	rec     *recorder // nil: nothing is recorded
}

// quiet is what a driver knows in its search for a core with a quiet neighbour.
type quiet struct {
	cpus []int32 // processors that this driver may use, disjoint from the other drivers' on this host
	best float64 // issue rate, additions a nanosecond
	next int     // where the next search begins
}

// quietTries bounds one search to some milliseconds.
const quietTries = 64

// settle moves the thread to a quiet core unless it is on one.
func (q *quiet) settle() {
	if q == nil {
		return
	}
	csrc.QuietCore(q.cpus, q.next, quietTries, &q.best)
	q.next++
}

// newDrivers starts the threads for the given ranks; device i of the list belongs to rank i of the list.
func newDrivers(p Placement, ranks, devices []int, flag *csrc.Flag, timeout time.Duration) ([]*driver, error) {
	var out []*driver
	for i, r := range ranks {
		l := &lane{rank: r, device: devices[i]}
		if p == PlaceGroup && len(out) == 1 {
			out[0].lanes = append(out[0].lanes, l)
			continue
		}
		t, err := cuda.NewThread(l.device)
		if err != nil {
			return nil, fmt.Errorf("rank %d: %w", r, err)
		}
		out = append(out, &driver{thread: t, lanes: []*lane{l}, flag: flag, timeout: timeout})
	}
	return out, nil
}

// each runs f for every lane of the driver, on its thread with the lane's device current, within the driver's time-out.
func (d *driver) each(ctx context.Context, f func(*lane) error) error {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	return d.thread.Do(ctx, func() error {
		for _, l := range d.lanes {
			if err := l.on(f); err != nil {
				return err
			}
		}
		return nil
	})
}

func (l *lane) on(f func(*lane) error) error {
	if err := cuda.SetDevice(l.device); err != nil {
		return fmt.Errorf("rank %d: %w", l.rank, err)
	}
	if err := f(l); err != nil {
		return fmt.Errorf("rank %d: %w", l.rank, err)
	}
	return nil
}

// commKey names a communicator: group and index.
type commKey struct{ group, index int }

// spread gives each lane its place in the plan, and each rank a lane for each communicator over the same GPUs.
func (d *driver) spread(p *Plan) {
	ranks := d.lanes
	for i := 1; i < p.Modes.Comms; i++ {
		for _, l := range ranks {
			d.lanes = append(d.lanes, &lane{rank: l.rank, device: l.device, pci: l.pci, index: i})
		}
	}
	for _, l := range d.lanes {
		l.group, l.at, l.world = p.place(l.rank)
	}
}

// sets are the driver's lanes by communicator index.
func (d *driver) sets() [][]*lane {
	var out [][]*lane
	for _, l := range d.lanes {
		if l.index == len(out) {
			out = append(out, nil)
		}
		out[l.index] = append(out[l.index], l)
	}
	return out
}

// grouped runs f for each set of lanes in one NCCL group, as calls in which the ranks of one thread wait for each other need.
func (d *driver) grouped(ctx context.Context, f func(*lane) error) error {
	return d.thread.Do(ctx, func() error {
		for _, set := range d.sets() {
			all := func() error {
				for _, l := range set {
					if err := l.on(f); err != nil {
						return err
					}
				}
				return nil
			}
			run := func() error { return nccl.Group(all) }
			if len(set) == 1 {
				run = all
			}
			if err := run(); err != nil {
				return err
			}
		}
		return nil
	})
}

// init creates the communicators of the driver's lanes.
func (d *driver) init(ctx context.Context, ids map[commKey]nccl.UniqueID, modes *result.Options) error {
	make1 := func(l *lane) error {
		config, err := commConfig(modes)
		if err != nil {
			return err
		}
		c, err := nccl.InitRank(ids[commKey{l.group, l.index}], l.world, l.at, config)
		l.comm.Store(c)
		return err
	}
	if !modes.ParallelInit {
		return d.grouped(ctx, make1)
	}
	for _, set := range d.sets() {
		if err := inThreads(ctx, set, make1); err != nil {
			return err
		}
	}
	return nil
}

// inThreads runs f for all lanes at once, each on a thread of its own.
func inThreads(ctx context.Context, lanes []*lane, f func(*lane) error) error {
	errs := make([]error, len(lanes))
	var wg sync.WaitGroup
	for i, l := range lanes {
		wg.Go(func() {
			t, err := cuda.NewThread(l.device)
			if err != nil {
				errs[i] = fmt.Errorf("rank %d: %w", l.rank, err)
				return
			}
			errs[i] = t.Do(ctx, func() error { return l.on(f) })
			if errs[i] == nil {
				errs[i] = t.Close(ctx)
			}
		})
	}
	wg.Wait()
	return worst(errs)
}

// commConfig is the communicator config that nccl-tests uses, so that the figures compare.
func commConfig(modes *result.Options) (*nccl.Config, error) {
	c := nccl.NewConfig()
	if modes.CTAPolicy != nil {
		if err := c.SetCTAPolicy(*modes.CTAPolicy); err != nil {
			return nil, err
		}
	}
	if !cuda.IsHost() && nccl.LibraryVersion() >= nccl.Since228 {
		return c, c.SetNVLinkCentricSched(true)
	}
	if modes.CTAPolicy == nil {
		return nil, nil
	}
	return c, nil
}

// alloc creates the stream, the buffers and the checker.
func (l *lane) alloc(bytes int64, p *Plan) error {
	var err error
	if !p.Modes.NullStream {
		if l.stream, err = cuda.NewStream(); err != nil {
			return err
		}
	}
	l.bufBytes, l.recvBytes = bytes, bytes*int64(p.bufferParts()-1)
	l.fromNCCL = nccl.Has("ncclMemAlloc")
	for _, b := range l.both() {
		if l.fromNCCL {
			*b.p, err = nccl.MemAlloc(b.bytes)
		} else {
			*b.p, err = cuda.Malloc(b.bytes)
		}
		if err != nil {
			return fmt.Errorf("buffer of %d bytes: %w", b.bytes, err)
		}
	}
	l.check, err = newChecker(l.device)
	return err
}

type buffer struct {
	p     *cuda.DevicePtr
	bytes int64
}

func (l *lane) both() []buffer { return []buffer{{&l.send, l.bufBytes}, {&l.recv, l.recvBytes}} }

// register makes the buffers known to the communicator: how is nccl-tests' -R, 1 or 2.
func (l *lane) register(how int) error {
	for _, b := range l.both() {
		switch how {
		case 1:
			r, err := l.comm.Load().Register(*b.p, b.bytes)
			if err != nil {
				return err
			}
			l.unregister = append(l.unregister, r.Deregister)
		case 2:
			w, err := l.comm.Load().RegisterWindow(*b.p, b.bytes, true)
			if err != nil {
				return err
			}
			l.unregister = append(l.unregister, w.Deregister)
		}
	}
	return nil
}

// release undoes register.
func (l *lane) release() error {
	var errs []error
	for _, f := range l.unregister {
		errs = append(errs, f())
	}
	l.unregister = nil
	return errors.Join(errs...)
}

// operator is the handle of an operator in this lane's communicator.
func (l *lane) operator(op nccl.RedOp, t nccl.DataType) (nccl.RedOp, error) {
	if op != mulSum {
		return op, nil
	}
	if h, ok := l.mulsum[t]; ok {
		return h, nil
	}
	h, err := l.comm.Load().NewPreMulSum(csrc.MulSumScalar(int(t), l.at), t)
	if err != nil {
		return 0, err
	}
	if l.mulsum == nil {
		l.mulsum = make(map[nccl.DataType]nccl.RedOp)
	}
	l.mulsum[t] = h
	return h, nil
}

// close releases everything in order. The communicator goes last: NCCL wants its memory back before.
func (l *lane) close() error {
	var errs []error
	for _, op := range l.mulsum {
		errs = append(errs, l.comm.Load().DestroyOp(op))
	}
	for _, e := range slices.Concat(l.events, l.record.events) {
		errs = append(errs, e.Destroy())
	}
	if l.check != nil {
		errs = append(errs, l.check.close())
	}
	for _, p := range []cuda.DevicePtr{l.send, l.recv} {
		switch {
		case p == 0:
		case l.fromNCCL:
			errs = append(errs, nccl.MemFree(p))
		default:
			errs = append(errs, cuda.Free(p))
		}
	}
	if l.stream != (cuda.Stream{}) {
		errs = append(errs, l.stream.Destroy())
	}
	return errors.Join(errs...)
}

// destroy ends the driver's communicators, one after the other as nccl-tests does.
func (d *driver) destroy(ctx context.Context) error {
	return d.each(ctx, func(l *lane) error { return l.comm.Load().Destroy() })
}

// need makes sure that the lane has n timing events.
func (l *lane) need(n int) error {
	for len(l.events) < n {
		e, err := cuda.NewEvent(cuda.EventTiming)
		if err != nil {
			return err
		}
		l.events = append(l.events, e)
	}
	return nil
}

// member is a lane's part in a task.
type member struct {
	*lane
	s          shape
	ly         layout
	op         nccl.RedOp // as the communicator knows it
	idle       bool
	sideBySide bool   // see collective.exchange
	slots      uint64 // after how many operations the rotation through the buffers starts again
	base       int64  // bytes that both buffers are shifted by
}

// members are all lanes' parts in a task.
func (d *driver) members(t *task) ([]member, error) {
	out := make([]member, len(d.lanes))
	for i, l := range d.lanes {
		m := member{lane: l, s: t.plan.shape(t.cell, l.at, l.world)}
		m.ly = t.coll.lay(m.s, t.ask, t.dtype)
		m.idle = t.coll.idle != nil && t.coll.idle(m.s)
		m.slots = t.slots(m.ly.bytes)
		m.sideBySide = t.coll.exchange
		m.base = int64(t.plan.Modes.Unalign) * int64(t.dtype.Size())
		var err error
		if m.op, err = l.operator(t.op, t.dtype); err != nil {
			return nil, fmt.Errorf("rank %d: operator %s of %s: %w", l.rank, opName(t.op), t.dtype, err)
		}
		out[i] = m
	}
	return out, nil
}

// input is the buffer that a half's input lies in, and seed what timing finds there. The input of an exchange in place lies in the second
// part of the receive buffer.
func (m *member) input(inPlace bool) (p cuda.DevicePtr, seed uint64) {
	switch {
	case !inPlace:
		return m.send, sendSeed
	case m.sideBySide:
		return m.recv.Add(m.bufBytes), sendSeed
	}
	return m.recv, recvSeed
}

// apart tells whether input and result of a half are different places.
func (m *member) apart(inPlace bool) bool { return !inPlace || m.sideBySide }

// buffers are the addresses that a half uses.
func (m *member) buffers(inPlace bool) (send, recv cuda.DevicePtr) {
	in, _ := m.input(inPlace)
	send, recv = in.Add(m.base), m.recv.Add(m.base)
	if m.apart(inPlace) {
		return send, recv
	}
	elt := int64(m.ly.dtype.Size())
	return send.Add(int64(m.ly.sendAt) * elt), recv.Add(int64(m.ly.recvAt) * elt)
}

// steps is one operation of all members, shifted by shift bytes. Calls of one round are grouped; each communicator has its own.
func (d *driver) steps(t *task, ms []member, inPlace bool, shift int64) []csrc.Step {
	var out []csrc.Step
	first := 0
	for _, set := range d.sets() {
		var rounds [][]csrc.Step
		for i := first; i < first+len(set); i++ {
			if ms[i].idle {
				continue
			}
			for r, calls := range ms[i].rounds(t, i, inPlace, shift) {
				if r == len(rounds) {
					rounds = append(rounds, nil)
				}
				rounds[r] = append(rounds[r], calls...)
			}
		}
		for _, calls := range rounds {
			out = append(out, group(calls)...)
		}
		first += len(set)
	}
	return out
}

func (m *member) rounds(t *task, lane int, inPlace bool, shift int64) [][]csrc.Step {
	send, recv := m.buffers(inPlace)
	return t.coll.rounds(call{
		shape: m.s, layout: m.ly, lane: lane, op: m.op, send: uintptr(send.Add(shift)), recv: uintptr(recv.Add(shift)),
	})
}

// group puts several calls into an NCCL group. Copies are not NCCL's.
func group(calls []csrc.Step) []csrc.Step {
	if len(calls) < 2 || calls[0].Kind == csrc.StepCopy {
		return calls
	}
	return append(append([]csrc.Step{{Kind: csrc.StepGroupStart}}, calls...), csrc.Step{Kind: csrc.StepGroupEnd})
}

// series is the driver's timed series of iters iterations over steps; what it shares with the others comes from the driver.
func (d *driver) series(steps []csrc.Step, iters int) *csrc.Series {
	s := &csrc.Series{Steps: steps, Iters: iters, Abort: d.flag, Timeout: d.timeout}
	for _, l := range d.lanes {
		s.Lanes = append(s.Lanes, csrc.Lane{Comm: l.comm.Load().Handle(), Stream: l.stream.Handle()})
	}
	return s
}

// settled waits for all that is queued.
func (d *driver) settled(doing string) error {
	_, err := d.run(d.series(nil, 0), doing)
	return err
}

// run runs a series and turns what went wrong into a Failure that names the rank.
func (d *driver) run(s *csrc.Series, doing string) (csrc.SeriesResult, error) {
	d.begin(s, doing)
	r := s.Run()
	if r.Status == csrc.SeriesOK {
		return r, nil
	}
	rank := d.lanes[0].rank
	if r.Lane >= 0 && r.Lane < len(d.lanes) {
		rank = d.lanes[r.Lane].rank
	}
	f := &Failure{Kind: FailInternal, Rank: rank, Phase: doing}
	switch r.Status {
	case csrc.SeriesTimeout:
		f.Kind = FailTimeout
		f.Text = fmt.Sprintf("no progress within %v while %s", d.timeout, r.Phase)
		if r.Phase == csrc.PhaseEnqueue {
			f.Text += fmt.Sprintf(" (operation %d of %d)", r.Iter+1, s.Iters)
		}
	case csrc.SeriesAborted:
		return r, errStopped
	case csrc.SeriesBarrier: // that rank tells why; this one must be heard too, or it would count as silent
		f.Kind = FailRemote
		f.Text = "another rank of this host gave up at the barrier"
	case csrc.SeriesCall:
		f.Text = nccl.NewError("collective call", r.Code).Error()
		if nccl.Result(r.Code) == nccl.ErrRemote {
			f.Kind = FailRemote
		}
	case csrc.SeriesAsync:
		f.Text = nccl.NewError("communicator", r.Code).Error()
		if nccl.Result(r.Code) == nccl.ErrRemote {
			f.Kind = FailRemote
		}
	case csrc.SeriesCUDA:
		f.Text = "stream: " + cuda.Code(r.Code).Error()
	}
	return r, f
}

// errStopped says that the job is being ended for a reason that is known elsewhere.
var errStopped = errors.New("stopped because the job is ending")
