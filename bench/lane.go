package bench

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/nccl"
)

// lane is one rank: its device, communicator, stream and buffers. All of it is used on its driver's thread only.
type lane struct {
	rank, device int
	comm         atomic.Pointer[nccl.Comm] // set once on the driver's thread, aborted from any
	pci          string                    // PCI address of the device
	stream       cuda.Stream
	send, recv   cuda.DevicePtr
	bufBytes     int64
	fromNCCL     bool // buffers came from ncclMemAlloc
	events       []cuda.Event
	check        *checker
	filled       string // what the buffers hold, so that they are not filled twice
}

// driver is one thread that times: with one lane, or in the group placement with all of them.
type driver struct {
	thread  *cuda.Thread
	lanes   []*lane
	flag    *csrc.Flag
	barrier *csrc.Barrier
	parties int
	timeout time.Duration
	quiet   *quiet // nil: stay where the system puts the thread
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

// init creates the communicators of the driver's lanes.
func (d *driver) init(ctx context.Context, id nccl.UniqueID, world int) error {
	return d.thread.Do(ctx, func() error {
		config, err := parityConfig()
		if err != nil {
			return err
		}
		one := func(l *lane) error {
			return l.on(func(l *lane) error {
				c, err := nccl.InitRank(id, world, l.rank, config)
				l.comm.Store(c)
				return err
			})
		}
		if len(d.lanes) == 1 {
			return one(d.lanes[0])
		}
		return nccl.Group(func() error {
			for _, l := range d.lanes {
				if err := one(l); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// parityConfig is the communicator config that nccl-tests uses, so that the figures compare.
func parityConfig() (*nccl.Config, error) {
	if cuda.IsHost() || nccl.LibraryVersion() < nccl.Since228 {
		return nil, nil
	}
	c := nccl.NewConfig()
	return c, c.SetNVLinkCentricSched(true)
}

// alloc creates the stream, the buffers and the checker.
func (l *lane) alloc(bytes int64) error {
	var err error
	if l.stream, err = cuda.NewStream(); err != nil {
		return err
	}
	l.bufBytes = bytes
	l.fromNCCL = nccl.Has("ncclMemAlloc")
	for _, p := range []*cuda.DevicePtr{&l.send, &l.recv} {
		if l.fromNCCL {
			*p, err = nccl.MemAlloc(bytes)
		} else {
			*p, err = cuda.Malloc(bytes)
		}
		if err != nil {
			return fmt.Errorf("buffer of %d bytes: %w", bytes, err)
		}
	}
	l.check, err = newChecker(l.device)
	return err
}

// close releases everything in order. The communicator goes last: NCCL wants its memory back before.
func (l *lane) close() error {
	var errs []error
	for _, e := range l.events {
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

// buffers are the addresses that a half uses.
func (l *lane) buffers(ly layout, t nccl.DataType, inPlace bool) (send, recv uintptr) {
	if !inPlace {
		return uintptr(l.send), uintptr(l.recv)
	}
	at := func(off result.Count) uintptr {
		return uintptr(l.recv) + uintptr(int64(off)*int64(l.rank)*int64(t.Size()))
	}
	return at(ly.sendInPlace), at(ly.recvInPlace)
}

// steps is one iteration of all of the driver's lanes.
func (d *driver) steps(st step, world int, inPlace bool, shift uint64) []csrc.Step {
	var out []csrc.Step
	for i, l := range d.lanes {
		send, recv := l.buffers(st.layout, st.dtype, inPlace)
		out = append(out, st.coll.steps(call{
			lane: i, send: send + uintptr(shift), recv: recv + uintptr(shift), count: st.layout.count, dtype: st.dtype, op: st.op,
			root: 0, rank: l.rank, world: world,
		})...)
	}
	if len(d.lanes) > 1 {
		out = append([]csrc.Step{{Kind: csrc.StepGroupStart}}, append(out, csrc.Step{Kind: csrc.StepGroupEnd})...)
	}
	return out
}

// series is the driver's timed series of iters iterations over steps; what it shares with the others comes from the driver.
func (d *driver) series(steps []csrc.Step, iters int) *csrc.Series {
	s := &csrc.Series{Steps: steps, Iters: iters, Abort: d.flag, Timeout: d.timeout}
	for _, l := range d.lanes {
		s.Lanes = append(s.Lanes, csrc.Lane{Comm: l.comm.Load().Handle(), Stream: l.stream.Handle()})
	}
	return s
}

// run runs a series and turns what went wrong into a Failure that names the rank.
func (d *driver) run(s *csrc.Series, doing string) (csrc.SeriesResult, error) {
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
	case csrc.SeriesAborted, csrc.SeriesBarrier:
		return r, errStopped
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
