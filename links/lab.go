package links

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/internal/rankset"
)

// TimeoutError says that a GPU did not come to an end. Its thread is lost with all it holds, so the process should end soon.
type TimeoutError struct {
	What  string
	After time.Duration
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("%s: no end after %v; a GPU or a link hangs: see dmesg for NVRM and Xid, and nvidia-smi", e.What, e.After)
}

const (
	blockThreads = 512
	blocksPerSM  = 4 // 2048 threads, all that an SM takes
	pollStep     = 20 * time.Microsecond
	gateFuse     = 5 * time.Second
	spare        = 4096 // for results and flags
	streams      = 2    // of a device: both directions to the host run at once
)

// gpu is one device with everything that lives on it. Its calls are made on its thread only.
type gpu struct {
	about   *GPU
	device  int
	thread  *cuda.Thread
	modules []cuda.Module
	kernel  map[string]cuda.Function
	stream  [streams]cuda.Stream
	start   [streams]cuda.Event
	end     [streams]cuda.Event

	src, dst cuda.DevicePtr // what leaves, and what arrives
	small    cuda.DevicePtr // flag, result of a ping-pong, result of a check
	hostSrc  cuda.PinnedPtr
	hostDst  cuda.PinnedPtr
	peers    []int // whose memory it maps
}

// Where things lie in small; the flags are at its start.
const (
	pingedAt = 256
	foundAt  = 512
)

// lab holds all devices of a run.
type lab struct {
	opts Options
	gpus []*gpu
	gate cuda.PinnedPtr // kernels that hold a stream end when it is not 0
	lost atomic.Bool    // a thread did not come back: nothing can be freed any more
	what string         // for messages
	seed uint64

	spoil bool // for tests: one element of what arrived is changed before the check
	deaf  bool // for tests: the answering side of a ping-pong listens where nothing arrives
}

// do runs f on the device's thread. A thread that has not come back some time after the deadline is lost.
func (l *lab) do(g *gpu, f func() error) error {
	// f's own wait ends by the deadline; this one is for calls that never return.
	after := 2 * l.opts.Deadline
	late := &TimeoutError{What: g.about.ID + ": " + l.what, After: after}
	ctx, cancel := context.WithTimeoutCause(context.Background(), after, late)
	defer cancel()
	err := g.thread.Do(ctx, f)
	var timeout *TimeoutError
	if errors.As(err, &timeout) {
		l.lost.Store(true) // what still runs uses the buffers
	}
	return err
}

// open makes the devices ready; what was made is closed by close, also after an error.
func (l *lab) open(r *Report, m Machine) error {
	for i := range r.GPUs {
		about := &r.GPUs[i]
		l.what = "preparing"
		t, err := cuda.NewThread(about.Device)
		if err != nil {
			return err
		}
		g := &gpu{about: about, device: about.Device, thread: t, kernel: map[string]cuda.Function{}}
		l.gpus = append(l.gpus, g)
		if n := m.node(about.PCI); n != nil {
			about.CPUs = n.CPUs
		}
		if err := l.do(g, func() error { return g.open(l.opts.Bytes) }); err != nil {
			return fmt.Errorf("%s: %w", about.ID, err)
		}
	}
	return l.do(l.gpus[0], func() (err error) {
		l.gate, err = cuda.HostAlloc(8)
		return err
	})
}

func (g *gpu) open(bytes int64) error {
	g.about.CPUs = bindNear(g.about.CPUs)
	free, _, err := cuda.MemInfo()
	if err != nil {
		return err
	}
	if need := 2*bytes + spare; need > free {
		return fmt.Errorf("two buffers of %d bytes are needed, %d bytes are free: make --size smaller, or look with nvidia-smi who holds the memory", bytes, free)
	}
	for _, one := range []struct {
		to *cuda.DevicePtr
		n  int64
	}{{&g.src, bytes}, {&g.dst, bytes}, {&g.small, spare}} {
		if *one.to, err = cuda.Malloc(one.n); err != nil {
			return err
		}
	}
	for i := range streams {
		var err1, err2, err3 error
		g.stream[i], err1 = cuda.NewStream()
		g.start[i], err2 = cuda.NewEvent(cuda.EventTiming)
		g.end[i], err3 = cuda.NewEvent(cuda.EventTiming)
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
	}
	return g.load()
}

func (g *gpu) load() error {
	for _, one := range []struct {
		image   []byte
		kernels []string
	}{
		{csrc.VerifyPTX(), []string{"cp_fill_input", "cp_check", "cp_check_reset", "cp_poison", "cp_corrupt"}},
		{csrc.LinksPTX(), []string{"cp_link_copy", "cp_link_ping"}},
		{csrc.BusyPTX(), []string{"cp_busy"}},
	} {
		m, err := cuda.LoadModule(one.image)
		if err != nil {
			return err
		}
		g.modules = append(g.modules, m)
		for _, name := range one.kernels {
			if g.kernel[name], err = m.Function(name); err != nil {
				return err
			}
		}
	}
	// The driver may load a kernel at its first launch, and wait for all running ones to do so: never while another side of a ping-pong runs.
	small := uint64(g.small)
	err := errors.Join(
		g.kernel["cp_link_copy"].Launch(1, 1, g.stream[0], uint64(g.dst), uint64(g.src), 0),
		g.kernel["cp_link_ping"].Launch(1, 1, g.stream[0], small, small, 0, 0, 0, 1, small+pingedAt))
	return errors.Join(err, g.stream[0].Synchronize())
}

// bindNear restricts the calling thread to those of the processors in list (0-31,64-95) that it may use, so that the host memory which it allocates
// lies near. It answers the list if that was done, "" if the thread stays as it is.
func bindNear(list string) string {
	var may, near unix.CPUSet
	if list == "" || unix.SchedGetaffinity(0, &may) != nil {
		return ""
	}
	for _, n := range rankset.Parse(list) {
		if may.IsSet(n) {
			near.Set(n)
		}
	}
	if near.Count() == 0 || unix.SchedSetaffinity(0, &near) != nil {
		return ""
	}
	return list
}

// close frees everything, unless a thread was lost: then freeing could hang as well, and the end of the process does it.
func (l *lab) close() error {
	if l.lost.Load() {
		return nil
	}
	var errs []error
	l.what = "cleaning up"
	for i, g := range l.gpus {
		errs = append(errs, l.do(g, func() error {
			var gate error
			if i == 0 && l.gate != 0 {
				gate = cuda.FreeHost(l.gate)
			}
			return errors.Join(gate, g.close())
		}))
		ctx, cancel := context.WithTimeout(context.Background(), l.opts.Deadline)
		errs = append(errs, g.thread.Close(ctx))
		cancel()
	}
	return errors.Join(errs...)
}

func (g *gpu) close() error {
	var errs []error
	for _, peer := range g.peers {
		errs = append(errs, cuda.DisablePeerAccess(peer))
	}
	for _, m := range g.modules {
		errs = append(errs, m.Unload())
	}
	for i := range streams {
		if g.stream[i] != (cuda.Stream{}) {
			errs = append(errs, g.stream[i].Destroy())
		}
		for _, e := range []cuda.Event{g.start[i], g.end[i]} {
			if e != (cuda.Event{}) {
				errs = append(errs, e.Destroy())
			}
		}
	}
	for _, p := range []cuda.DevicePtr{g.src, g.dst, g.small} {
		if p != 0 {
			errs = append(errs, cuda.Free(p))
		}
	}
	return errors.Join(append(errs, g.freeHost())...)
}

// allocHost makes the host's buffers, near the device where its thread is bound. Only one device has them at a time.
func (g *gpu) allocHost(bytes int64) (err error) {
	if g.hostSrc, err = cuda.HostAlloc(bytes); err != nil {
		return fmt.Errorf("page-locked host memory: %w", err)
	}
	if g.hostDst, err = cuda.HostAlloc(bytes); err != nil {
		return fmt.Errorf("page-locked host memory: %w", err)
	}
	return nil
}

func (g *gpu) freeHost() error {
	var errs []error
	for _, p := range []*cuda.PinnedPtr{&g.hostSrc, &g.hostDst} {
		if *p != 0 {
			errs = append(errs, cuda.FreeHost(*p))
			*p = 0
		}
	}
	return errors.Join(errs...)
}

// grid is as many blocks as the device runs at a time.
func (g *gpu) grid() int { return max(1, g.about.SMs*blocksPerSM) }

// Numbers of the data kernels: 64-bit integers that are moved, not reduced.
const (
	typeUint64 = 5
	dataRank   = 0
	dataRanks  = 2
)

func source() uint64 { op := int64(csrc.OpSource); return uint64(op) }

// fill writes a pattern that differs from seed to seed, and waits for it.
func (g *gpu) fill(addr uint64, bytes int64, seed uint64) error {
	err := g.kernel["cp_fill_input"].Launch(g.grid(), blockThreads, g.stream[0], addr, uint64(bytes/8), 0, typeUint64, source(), dataRank, dataRanks, seed)
	return errors.Join(err, g.stream[0].Synchronize())
}

// poison writes what no pattern contains.
func (g *gpu) poison(addr uint64, bytes int64) error {
	err := g.kernel["cp_poison"].Launch(g.grid(), blockThreads, g.stream[0], addr, uint64(bytes), 0)
	return errors.Join(err, g.stream[0].Synchronize())
}

// check counts the elements that are not the pattern's.
func (g *gpu) check(addr uint64, bytes int64, seed uint64) (wrong uint64, err error) {
	found := uint64(g.small.Add(foundAt))
	raw := make([]byte, 8)
	err = errors.Join(
		g.kernel["cp_check_reset"].Launch(1, 1, g.stream[0], found),
		g.kernel["cp_check"].Launch(g.grid(), blockThreads, g.stream[0], addr, uint64(bytes/8), 0, typeUint64, source(), dataRank, dataRanks, seed, found),
		g.stream[0].Synchronize(), cuda.CopyOut(raw, cuda.DevicePtr(found)))
	return binary.NativeEndian.Uint64(raw), err // Wrong is the first field of csrc.CheckResult
}
