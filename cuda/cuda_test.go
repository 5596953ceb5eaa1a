package cuda_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/cuda"
)

func TestProperties(t *testing.T) {
	devices(t, 1)
	n, err := cuda.DeviceCount()
	ok(t, err)
	seen := make(map[string]bool)
	for d := range n {
		p, err := cuda.GetProperties(d)
		ok(t, err)
		if p.Device != d || p.Name == "" || p.TotalBytes < 1<<20 || p.Multiprocessors < 1 || p.ComputeMode < 0 {
			t.Errorf("%+v", p)
		}
		if !regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.0$`).MatchString(p.PCIBusID) {
			t.Errorf("PCI bus id %q", p.PCIBusID)
		}
		if !regexp.MustCompile(`^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`).MatchString(p.UUID) {
			t.Errorf("UUID %q", p.UUID)
		}
		if seen[p.PCIBusID] || seen[p.UUID] {
			t.Errorf("two devices have the bus id or UUID of %+v", p)
		}
		seen[p.PCIBusID], seen[p.UUID] = true, true
		if native() && p.Major < 3 {
			t.Errorf("compute capability %d.%d", p.Major, p.Minor)
		}
	}
	_, err = cuda.GetProperties(n)
	is(t, err, cuda.ErrInvalidDevice)
	_, err = cuda.PCIBusID(n)
	is(t, err, cuda.ErrInvalidDevice)
}

func TestLibraries(t *testing.T) {
	devices(t, 1)
	libs := cuda.Libraries()
	if cuda.IsHost() == native() || len(libs) == 0 {
		t.Fatalf("host %v, libraries %+v", cuda.IsHost(), libs)
	}
	for _, l := range libs {
		if l.Name == "" || !strings.HasPrefix(l.Path, "/") || l.Version == "" {
			t.Errorf("%+v", l)
		}
	}
	libs[0].Name = "changed"
	if cuda.Libraries()[0].Name == "changed" {
		t.Error("a caller can change the list")
	}
	drv, err := cuda.DriverVersion()
	ok(t, err)
	rt, err := cuda.RuntimeVersion()
	ok(t, err)
	if native() && (rt < 11000 || drv < rt/1000*1000) || !native() && (rt != 0 || drv != 0) {
		t.Errorf("driver %d, runtime %d", drv, rt)
	}
}

func TestCurrentDevice(t *testing.T) {
	devices(t, 1)
	n, err := cuda.DeviceCount()
	ok(t, err)
	for d := range n {
		onDevice(t, d, func() error {
			if got, err := cuda.GetDevice(); err != nil || got != d {
				return fmt.Errorf("on device %d of %d: %w", got, d, err)
			}
			free, total, err := cuda.MemInfo()
			if err == nil && (free <= 0 || free > total) {
				err = fmt.Errorf("%d of %d bytes free", free, total)
			}
			return errors.Join(err, cuda.Synchronize())
		})
	}
	is(t, cuda.SetDevice(n), cuda.ErrInvalidDevice)
}

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = seed + byte(i*7>>3)
	}
	return b
}

// holds compares device memory with want.
func holds(p cuda.DevicePtr, want []byte) error {
	got := make([]byte, len(want))
	if err := cuda.CopyOut(got, p); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("memory at %#x of %d bytes is not what was written", p, len(want))
	}
	return nil
}

// TestMemory takes bytes in, around and out.
func TestMemory(t *testing.T) {
	onDevice(t, 0, func() error {
		const n = 1<<20 + 3
		a, err1 := cuda.Malloc(2 * n)
		b, err2 := cuda.Malloc(n)
		s, err3 := cuda.NewStream()
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		data := pattern(n, 1)
		filled := append(bytes.Repeat([]byte{0xa5}, 100), data[100:]...)
		return errors.Join(
			cuda.CopyIn(a, data), holds(a, data),
			cuda.Copy(a.Add(n), a, n), holds(a.Add(n), data),
			cuda.Memset(a, 0xa5, 100), holds(a, filled), holds(a.Add(n), data),
			cuda.CopyAsync(b, a, n, s), s.Synchronize(), holds(b, filled),
			cuda.MemsetAsync(b, 0, n, s), s.Synchronize(), holds(b, make([]byte, n)),
			cuda.CopyIn(b, nil), cuda.CopyOut(nil, b), holds(b, make([]byte, n)),
			cuda.Free(a), cuda.Free(b), s.Destroy())
	})
}

func TestPinnedMemory(t *testing.T) {
	onDevice(t, 0, func() error {
		const n = 4096
		h, err1 := cuda.HostAlloc(n)
		a, err2 := cuda.Malloc(2 * n)
		s, err3 := cuda.NewStream()
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		data := pattern(n, 9)
		return errors.Join(
			cuda.CopyIn(a, data), cuda.CopyPinnedAsync(h, a, n, s), cuda.CopyPinnedAsync(a.Add(n), h, n, s), s.Synchronize(), holds(a.Add(n), data),
			cuda.Free(a), cuda.FreeHost(h), s.Destroy())
	})
}

func TestMemoryErrors(t *testing.T) {
	devices(t, 1)
	for name, f := range map[string]func(int64) error{
		"Malloc": func(n int64) error { return drop(cuda.Malloc(n)) }, "HostAlloc": func(n int64) error { return drop(cuda.HostAlloc(n)) },
	} {
		if err := f(-1); err == nil {
			t.Errorf("%s of -1 bytes gives no error", name)
		}
	}
	onDevice(t, 0, func() error {
		_, err := cuda.Malloc(1 << 60)
		is(t, err, cuda.ErrOutOfMemory)
		var e *cuda.Error
		if !errors.As(err, &e) || e.Func != "cudaMalloc" || e.Name != "cudaErrorMemoryAllocation" {
			t.Errorf("got %#v", err)
		}
		p, err := cuda.Malloc(8)
		if err != nil {
			return err
		}
		return cuda.Free(p)
	})
	if left := cuda.Live(); len(left) != 0 {
		t.Errorf("failed allocations are counted: %v", left)
	}
}

// TestPeer copies between the memory of two devices.
func TestPeer(t *testing.T) {
	devices(t, 2)
	const n = 1 << 16
	data := pattern(n, 3)
	var far cuda.DevicePtr
	onDevice(t, 1, func() (err error) {
		far, err = cuda.Malloc(n)
		return err
	})
	onDevice(t, 0, func() error {
		near, err1 := cuda.Malloc(n)
		s, err2 := cuda.NewStream()
		can, err3 := cuda.CanAccessPeer(0, 1)
		self, err4 := cuda.CanAccessPeer(0, 0)
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			return err
		}
		if self && !native() { // CUDA leaves open what it answers
			t.Error("a device is its own peer")
		}
		errs := []error{
			cuda.CopyIn(near, data), cuda.CopyPeer(far, 1, near, 0, n), cuda.Synchronize(), cuda.Memset(near, 0, n),
			cuda.CopyPeerAsync(near, 0, far, 1, n, s), s.Synchronize(), holds(near, data),
		}
		if can { // twice is no error, and what ends once cannot end again
			errs = append(errs, cuda.EnablePeerAccess(1), cuda.EnablePeerAccess(1), cuda.Copy(far, near, n), cuda.Synchronize(), cuda.DisablePeerAccess(1))
			is(t, cuda.DisablePeerAccess(1), cuda.Code(705))
		}
		return errors.Join(append(errs, cuda.Free(near), s.Destroy())...)
	})
	onDevice(t, 1, func() error { return errors.Join(holds(far, data), cuda.Free(far)) })
}

// TestStreamOrder: streams are ordered in themselves, and by events among each other.
func TestStreamOrder(t *testing.T) {
	onDevice(t, 0, func() error {
		const n = 1 << 20
		a, err1 := cuda.Malloc(n)
		b, err2 := cuda.Malloc(n)
		s1, err3 := cuda.NewStream()
		s2, err4 := cuda.NewStream()
		e, err5 := cuda.NewEvent(cuda.EventNoTiming)
		errs := []error{err1, err2, err3, err4, err5}
		for i := range byte(50) {
			errs = append(errs, cuda.MemsetAsync(a, i, n, s1), e.Record(s1), s2.Wait(e), cuda.CopyAsync(b, a, n, s2), e.Record(s2), s1.Wait(e))
		}
		errs = append(errs, s2.Synchronize(), e.Synchronize(), holds(b, bytes.Repeat([]byte{49}, n)))
		for name, f := range map[string]func() (bool, error){"stream": s2.Done, "event": e.Done} {
			if done, err := f(); !done || err != nil {
				t.Errorf("%s: done %v, %v", name, done, err)
			}
		}
		return errors.Join(append(errs, cuda.Free(a), cuda.Free(b), s1.Destroy(), s2.Destroy(), e.Destroy())...)
	})
}

func TestPriorities(t *testing.T) {
	onDevice(t, 0, func() error {
		least, greatest, err := cuda.StreamPriorities()
		if err != nil || least < greatest {
			return fmt.Errorf("priorities %d to %d: %w", least, greatest, err)
		}
		for _, p := range []int{least, greatest} {
			s, err := cuda.NewPriorityStream(p)
			if err = errors.Join(err, s.Synchronize(), s.Destroy()); err != nil {
				return fmt.Errorf("priority %d: %w", p, err)
			}
		}
		return nil
	})
}

func TestEvents(t *testing.T) {
	onDevice(t, 0, func() error {
		const n = 64 << 20
		p, err1 := cuda.Malloc(n)
		s, err2 := cuda.NewStream()
		start, err3 := cuda.NewEvent(cuda.EventTiming)
		end, err4 := cuda.NewEvent(cuda.EventBlockingSync)
		none, err5 := cuda.NewEvent(cuda.EventNoTiming)
		before := time.Now()
		errs := []error{
			err1, err2, err3, err4, err5,
			start.Record(s), cuda.MemsetAsync(p, 1, n, s), none.Record(s), end.Record(s), end.Synchronize(),
		}
		took, err := end.Since(start)
		if whole := time.Since(before); took <= 0 || took > whole+whole/100 {
			t.Errorf("the device says %v, the host %v", took, whole)
		}
		back, err6 := start.Since(end)
		if d := back + took; d < -10*time.Microsecond || d > 10*time.Microsecond {
			t.Errorf("backwards %v, forwards %v", back, took)
		}
		const invalidHandle = cuda.Code(400)
		_, timeless := none.Since(start)
		is(t, timeless, invalidHandle)
		wantText(t, timeless, "cudaEventElapsedTime")
		return errors.Join(append(errs, err, err6, cuda.Free(p), s.Destroy(), start.Destroy(), end.Destroy(), none.Destroy())...)
	})
}

// TestGraph records work, which does not run then, and launches it twice.
func TestGraph(t *testing.T) {
	onDevice(t, 0, func() error {
		const n = 1024
		a, err1 := cuda.Malloc(n)
		b, err2 := cuda.Malloc(n)
		s, err3 := cuda.NewStream()
		g, err4 := record(s, func() error {
			return errors.Join(cuda.CopyAsync(b, a, n, s), cuda.MemsetAsync(a, 0x11, n, s))
		}, cuda.CopyIn(a, pattern(n, 5)), cuda.Memset(b, 0, n), cuda.Synchronize())
		x, err5 := g.Instantiate()
		return errors.Join(err1, err2, err3, err4, err5,
			holds(b, make([]byte, n)), holds(a, pattern(n, 5)), g.Destroy(),
			x.Launch(s), s.Synchronize(), holds(b, pattern(n, 5)),
			x.Launch(s), s.Synchronize(), holds(b, bytes.Repeat([]byte{0x11}, n)),
			x.Destroy(), cuda.Free(a), cuda.Free(b), s.Destroy())
	})
}

// record captures what f queues. Errors from before come first.
func record(s cuda.Stream, f func() error, before ...error) (cuda.Graph, error) {
	err := errors.Join(errors.Join(before...), s.BeginCapture(cuda.CaptureThreadLocal), f())
	g, end := s.EndCapture()
	return g, errors.Join(err, end)
}

func TestCaptureErrors(t *testing.T) {
	onDevice(t, 0, func() error {
		s, err := cuda.NewStream()
		if err != nil {
			return err
		}
		if _, err := s.EndCapture(); err == nil {
			t.Error("the end of a capture that was not begun gives no error")
		}
		if err := s.BeginCapture(cuda.CaptureRelaxed); err != nil {
			return err
		}
		if err := s.BeginCapture(cuda.CaptureRelaxed); err == nil {
			t.Error("two captures at a time give no error")
		}
		if g, err := s.EndCapture(); err == nil {
			ok(t, g.Destroy())
		}
		return s.Destroy()
	})
}

// kernels are the data kernels that the benchmark uses.
type kernels struct {
	m     cuda.Module
	found cuda.DevicePtr
}

func (k *kernels) run(name string, grid, block int, s cuda.Stream, params ...uint64) error {
	f, err := k.m.Function(name)
	if err != nil {
		return err
	}
	return f.Launch(grid, block, s, params...)
}

// check compares count float32 at p with rank 2's data and returns what it found.
func (k *kernels) check(p cuda.DevicePtr, count int, s cuda.Stream) (csrc.CheckResult, error) {
	var r csrc.CheckResult
	raw := make([]byte, binary.Size(r))
	source := int64(csrc.OpSource)
	err := errors.Join(
		k.run("cp_check_reset", 1, 1, s, uint64(k.found)),
		k.run("cp_check", 3, 64, s, uint64(p), uint64(count), 0, 7, uint64(source), 2, 4, 99, uint64(k.found)),
		s.Synchronize(), cuda.CopyOut(raw, k.found))
	return r, errors.Join(err, binary.Read(bytes.NewReader(raw), binary.NativeEndian, &r))
}

// TestKernels fills memory with the embedded kernels, spoils an element and finds it.
func TestKernels(t *testing.T) {
	onDevice(t, 0, func() error {
		const count, spoilt = 100000, 54321
		m, err1 := cuda.LoadModule(csrc.VerifyPTX())
		p, err2 := cuda.Malloc(4 * count)
		found, err3 := cuda.Malloc(int64(binary.Size(csrc.CheckResult{})))
		s, err4 := cuda.NewStream()
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			return err
		}
		k := &kernels{m, found}
		source := int64(csrc.OpSource)
		fill := k.run("cp_fill_input", 5, 128, s, uint64(p), count, 0, 7, uint64(source), 2, 4, 99)
		r, err := k.check(p, count, s)
		if r.Wrong != 0 {
			t.Errorf("right data: %+v", r)
		}
		got := make([]byte, 4)
		last := cuda.CopyOut(got, p.Add(4*(count-1)))
		if want := csrc.VerifyInputBits(7, csrc.OpSource, 2, 4, 99, count-1); uint64(binary.NativeEndian.Uint32(got)) != want {
			t.Errorf("the last element is %x, want %#x", got, want)
		}
		spoil := k.run("cp_corrupt", 1, 1, s, uint64(p), spoilt, 7)
		r, again := k.check(p, count, s)
		if r.Wrong != 1 || r.FirstIndex != spoilt || r.LastIndex != spoilt || r.NSample != 1 || r.Sample[0].Index != spoilt || r.Sample[0].Got == r.Sample[0].Expected {
			t.Errorf("one element spoilt: %+v", r)
		}
		_, unknown := m.Function("cp_no_such_kernel")
		is(t, unknown, cuda.Code(500))
		wantText(t, unknown, "cp_no_such_kernel", "cuModuleGetFunction")
		return errors.Join(fill, err, last, spoil, again, m.Unload(), cuda.Free(p), cuda.Free(found), s.Destroy())
	})
}

func TestModuleErrors(t *testing.T) {
	devices(t, 1)
	for _, image := range [][]byte{nil, {}, []byte("no zero byte")} {
		if _, err := cuda.LoadModule(image); err == nil {
			t.Errorf("%q is loaded", image)
		}
	}
	onDevice(t, 0, func() error {
		m, err := cuda.LoadModule(csrc.VerifyPTX())
		if err != nil {
			return err
		}
		f, err := m.Function("cp_check_reset")
		is(t, f.Launch(0, 1, cuda.Stream{}, 0), cuda.ErrInvalidValue)
		is(t, f.Launch(1, 1, cuda.Stream{}, make([]uint64, csrc.MaxKernelParams+1)...), cuda.ErrInvalidValue)
		return errors.Join(err, m.Unload())
	})
}

// TestIPC: this engine's memory cannot be opened by another process, and it says so.
func TestIPC(t *testing.T) {
	hostOnly(t, "handles of a GPU are for another process")
	_, export := cuda.IPCExport(1)
	_, open := cuda.IPCOpen(cuda.IPCHandle{})
	_, event := cuda.IPCOpenEvent(cuda.IPCHandle{})
	for _, err := range []error{export, open, event, cuda.IPCClose(1)} {
		is(t, err, cuda.ErrNotSupported)
	}
}

func TestLive(t *testing.T) {
	onDevice(t, 0, func() error {
		p, err1 := cuda.Malloc(8)
		h, err2 := cuda.HostAlloc(8)
		s, err3 := cuda.NewStream()
		e, err4 := cuda.NewEvent(cuda.EventTiming)
		if got := fmt.Sprint(cuda.Live()); got != "map[events:1 memory:2 streams:1]" {
			t.Errorf("alive: %s", got)
		}
		return errors.Join(err1, err2, err3, err4, cuda.Free(p), cuda.FreeHost(h), s.Destroy(), e.Destroy())
	})
	if got := cuda.Live(); len(got) != 0 {
		t.Errorf("alive: %v", got)
	}
}

func TestThread(t *testing.T) {
	devices(t, 1)
	_, err := cuda.NewThread(1000)
	is(t, err, cuda.ErrInvalidDevice)
	wantText(t, err, "device 1000: ")
	for _, awake := range []bool{false, true} {
		t.Run(fmt.Sprintf("awake %t", awake), func(t *testing.T) { phases(t, awake) })
	}
}

func phases(t *testing.T, awake bool) {
	th, err := cuda.NewThread(0)
	ok(t, err)
	th.StayAwake(awake)
	if th.Device() != 0 {
		t.Errorf("device %d", th.Device())
	}
	mine := errors.New("mine")
	is(t, th.Do(soon(t), func() error { return mine }), mine)
	ok(t, th.Do(soon(t), func() error { return nil }))
	var wg sync.WaitGroup // phases of several callers run one after the other
	n := 0
	for range 50 {
		wg.Go(func() {
			if err := th.Do(soon(t), func() error { n++; return nil }); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	ok(t, th.Do(soon(t), func() error {
		if n != 50 {
			t.Errorf("%d phases ran", n)
		}
		return nil
	}))
	ok(t, th.Close(soon(t)))
}

// TestStayAwake: a thread that stays awake does not give its processor up between phases.
func TestStayAwake(t *testing.T) {
	devices(t, 1)
	sleeps := func(awake bool) int64 {
		th, err := cuda.NewThread(0)
		ok(t, err)
		th.StayAwake(awake)
		var before, after syscall.Rusage
		usage := func(u *syscall.Rusage) func() error {
			return func() error { return syscall.Getrusage(1 /* RUSAGE_THREAD */, u) }
		}
		ok(t, th.Do(soon(t), usage(&before)))
		for range 50 {
			time.Sleep(time.Millisecond)
			ok(t, th.Do(soon(t), func() error { return nil }))
		}
		ok(t, th.Do(soon(t), usage(&after)))
		ok(t, th.Close(soon(t)))
		return after.Nvcsw - before.Nvcsw
	}
	if asleep, awake := sleeps(false), sleeps(true); asleep < 40 || awake > asleep/2 {
		t.Errorf("%d voluntary context switches when it may sleep, %d when it stays awake", asleep, awake)
	}
}

// ending is a context that soon ends with cause.
func ending(cause error) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	timer := time.AfterFunc(50*time.Millisecond, func() { cancel(cause) })
	return ctx, func() { timer.Stop(); cancel(nil) }
}

// TestThreadStuck: callers of a thread that hangs leave with their contexts; when the function returns after all, the thread goes on.
func TestThreadStuck(t *testing.T) {
	devices(t, 1)
	th, err := cuda.NewThread(0)
	ok(t, err)
	release, gone := make(chan struct{}), errors.New("gave up")
	for name, f := range map[string]func(ctx context.Context) error{
		"stuck":  func(ctx context.Context) error { return th.Do(ctx, func() error { <-release; return nil }) },
		"behind": func(ctx context.Context) error { return th.Do(ctx, func() error { <-release; return nil }) },
	} {
		ctx, stop := ending(gone)
		if err := f(ctx); !errors.Is(err, gone) {
			t.Errorf("%s: got %v, want the context's cause", name, err)
		}
		stop()
	}
	close(release)
	ok(t, th.Do(soon(t), func() error { return nil }))
	ok(t, th.Close(soon(t)))
}

// TestThreadClose: the present phase ends before, whoever waits or comes later gets an error, and closing twice is no harm.
func TestThreadClose(t *testing.T) {
	devices(t, 1)
	th, err := cuda.NewThread(0)
	ok(t, err)
	release, running, waiting := make(chan struct{}), make(chan struct{}), make(chan error, 2)
	go func() { waiting <- th.Do(soon(t), func() error { close(running); <-release; return nil }) }()
	<-running
	go func() { waiting <- th.Do(soon(t), func() error { return nil }) }()
	gone := errors.New("gave up")
	ctx, stop := ending(gone)
	defer stop()
	is(t, th.Close(ctx), gone)
	close(release)
	ok(t, th.Close(soon(t)))
	ok(t, th.Close(soon(t)))
	done, refused := <-waiting, <-waiting
	if done != nil {
		done, refused = refused, done
	}
	ok(t, done)
	wantText(t, refused, "closed")
	wantText(t, th.Do(soon(t), func() error { return nil }), "closed")
}

// TestDMABuf: what the driver says that it can, it does; the host engine says no to both.
func TestDMABuf(t *testing.T) {
	onDevice(t, 0, func() error {
		can, err := cuda.DMABufSupported(0)
		if err != nil {
			return err
		}
		const n = 2 << 20
		p, err := cuda.Malloc(n)
		if err != nil {
			return err
		}
		fd, err := cuda.ExportDMABuf(p, n)
		t.Logf("supported: %v; export: descriptor %d, %v", can, fd, err)
		switch {
		case can && err != nil:
			t.Errorf("supported, but %v", err)
		case !can && !errors.Is(err, cuda.ErrNotSupported):
			t.Errorf("not supported, but descriptor %d, %v", fd, err)
		case err == nil:
			to, linkErr := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
			if linkErr != nil || !strings.Contains(to, "dmabuf") {
				t.Errorf("the descriptor is %q, %v", to, linkErr)
			}
			if err := syscall.Close(fd); err != nil {
				t.Error(err)
			}
		}
		return cuda.Free(p)
	})
}
