package csrc_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/internal/bindtest"
	"github.com/google/go-cmp/cmp"
)

var native = bindtest.Native

// engine fills the tables of this process once and answers the number of devices.
var engine = sync.OnceValues(func() (int, error) {
	if !native() {
		csrc.FillHost(4)
		return 4, nil
	}
	for lib, s := range map[csrc.Lib]csrc.Search{
		csrc.CUDRV:  {Library: "NVIDIA driver library", Names: []string{"libcuda.so.1"}},
		csrc.CUDART: {Library: "CUDA runtime", Names: []string{"libcudart.so.13", "libcudart.so.12"}, CUDA: true, Python: []string{"nvidia/cu13/lib", "nvidia/cuda_runtime/lib"}},
		csrc.NCCL:   {Library: "NCCL", Names: []string{"libnccl.so.2"}, CUDA: true, Python: []string{"nvidia/nccl/lib"}},
	} {
		if _, err := csrc.Load(lib, s, usable(lib)); err != nil {
			return 0, err
		}
	}
	var n int32
	if code := csrc.CudaGetDeviceCount(&n); code != 0 {
		return 0, errNoDevice(code)
	}
	return int(n), nil
})

// usable passes over a runtime that is too new for the driver, as package cuda does.
func usable(lib csrc.Lib) func(string) error {
	return func(path string) error {
		var n int32
		if lib == csrc.CUDART && csrc.CudaGetDeviceCount(&n) == 35 {
			return errors.New("too new for the driver")
		}
		return nil
	}
}

type errNoDevice int

func (e errNoDevice) Error() string { return fmt.Sprintf("no CUDA device: code %d", int(e)) }

// devices fills the tables and skips the test where there are fewer than n devices.
func devices(t testing.TB, n int) {
	t.Helper()
	have, err := engine()
	var none errNoDevice
	if _, lib := csrc.IsLibrary(err); (lib || errors.As(err, &none)) && os.Getenv("REQUIRE_GPU") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if have < n {
		t.Skipf("needs %d devices, there are %d", n, have)
	}
}

func hostOnly(t *testing.T) {
	t.Helper()
	if native() {
		t.Skip("only the host engine notices it in one process")
	}
	devices(t, 1)
}

// member is one rank, on a thread of its own. Its buffers hold slots × elems float32; slot s of send is rank + s + 1.
type member struct {
	rank, world                int
	comm, stream, send, recv   uintptr
	cell                       csrc.Cell
	gone                       bool
	events, graphs, executable []uintptr
}

const (
	elems  = 1000
	slots  = 3
	stride = elems * 4
	long   = 30 * time.Second // for what should be done in an instant
	short  = 300 * time.Millisecond
)

func failed(what string, code int) error {
	if code == 0 {
		return nil
	}
	return fmt.Errorf("%s answers %d", what, code)
}

// together runs body on a locked thread a rank and fails the test with what they return.
func together(t *testing.T, world int, body func(m *member) error) {
	t.Helper()
	devices(t, world)
	var id [csrc.UniqueIDBytes]byte
	if err := failed("ncclGetUniqueId", csrc.NcclGetUniqueID(&id)); err != nil {
		t.Fatal(err)
	}
	errs := make(chan error, world)
	for r := range world {
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			m := &member{rank: r, world: world}
			err := m.open(&id)
			if err == nil {
				if err = body(m); err != nil && !m.gone { // others may wait for this one, and its stream for them
					err = errors.Join(err, m.abort())
				}
				err = errors.Join(err, m.close())
			}
			if err != nil {
				err = fmt.Errorf("rank %d: %w", r, err)
			}
			errs <- err
		}()
	}
	end := time.After(2 * long)
	for range world {
		select {
		case err := <-errs:
			if err != nil {
				t.Error(err)
			}
		case <-end:
			t.Fatal("a rank hangs")
		}
	}
}

func (m *member) open(id *[csrc.UniqueIDBytes]byte) error {
	m.cell = csrc.NewCell()
	for _, step := range []struct {
		what string
		f    func() int
	}{
		{"cudaSetDevice", func() int { return csrc.CudaSetDevice(m.rank) }},
		{"cudaStreamCreateWithFlags", func() int { return csrc.CudaStreamCreateWithFlags(&m.stream, 1) }},
		{"cudaMalloc", func() int { return csrc.CudaMalloc(&m.send, slots*stride) }},
		{"cudaMalloc", func() int { return csrc.CudaMalloc(&m.recv, slots*stride) }},
		{"ncclCommInitRank", func() int { return csrc.NcclCommInitRank(m.cell, m.world, id, m.rank, nil) }},
	} {
		if err := failed(step.what, step.f()); err != nil {
			return err
		}
	}
	m.comm = m.cell.Value()
	data := make([]byte, 0, slots*stride)
	for i := range slots * elems {
		data = binary.NativeEndian.AppendUint32(data, math.Float32bits(float32(m.rank+i/elems+1)))
	}
	// One operation first: real libraries connect at the first, in a call that waits for the peers.
	return errors.Join(failed("cudaMemcpy", csrc.CudaCopyIn(m.send, data)), m.clear(), status(m.series(1), csrc.SeriesOK, 0), m.clear())
}

func (m *member) clear() error {
	return failed("cudaMemset", csrc.CudaMemset(m.recv, 0xff, slots*stride)|csrc.CudaDeviceSynchronize())
}

func (m *member) abort() error {
	m.gone = true
	return failed("ncclCommAbort", csrc.NcclCommAbort(m.comm))
}

func (m *member) close() error {
	errs := []error{failed("cudaDeviceSynchronize", csrc.CudaDeviceSynchronize())}
	for _, e := range m.events {
		errs = append(errs, failed("cudaEventDestroy", csrc.CudaEventDestroy(e)))
	}
	for _, x := range m.executable {
		errs = append(errs, failed("cudaGraphExecDestroy", csrc.CudaGraphExecDestroy(x)))
	}
	for _, g := range m.graphs {
		errs = append(errs, failed("cudaGraphDestroy", csrc.CudaGraphDestroy(g)))
	}
	if !m.gone {
		errs = append(errs, failed("ncclCommDestroy", csrc.NcclCommDestroy(m.comm)))
	}
	m.cell.Free()
	return errors.Join(append(errs, failed("cudaFree", csrc.CudaFree(m.send)|csrc.CudaFree(m.recv)), failed("cudaStreamDestroy", csrc.CudaStreamDestroy(m.stream)))...)
}

// step is a sum of slot 0; the series' rotation moves it on.
func (m *member) step() csrc.Step {
	return csrc.Step{Kind: csrc.StepAllReduce, Send: m.send, Recv: m.recv, Count: elems, DType: 7}
}

func (m *member) series(iters int) *csrc.Series {
	return &csrc.Series{
		Steps: []csrc.Step{m.step()}, Iters: iters, Timeout: long,
		Lanes: []csrc.Lane{{Comm: m.comm, Stream: m.stream, RotStride: stride, RotSlots: slots}},
	}
}

// status runs a series that must end this way.
func status(s *csrc.Series, want csrc.SeriesStatus, code int) error {
	if r := s.Run(); r.Status != want || r.Code != code {
		return fmt.Errorf("the series ends with %+v, want status %d, code %d", r, want, code)
	}
	return nil
}

// sums compares every element of the first slots with the sum over all ranks; those beyond must be untouched.
func (m *member) sums(done int) error {
	got := make([]byte, slots*stride)
	if err := failed("cudaMemcpy", csrc.CudaCopyOut(got, m.recv)); err != nil {
		return err
	}
	for i := range slots * elems {
		bits, want := binary.NativeEndian.Uint32(got[4*i:]), uint32(math.MaxUint32)
		if s := i / elems; s < done {
			want = math.Float32bits(float32(m.world*(m.world-1)/2 + m.world*(s+1)))
		}
		if bits != want {
			return fmt.Errorf("slot %d, element %d is %#x, want %#x", i/elems, i%elems, bits, want)
		}
	}
	return nil
}

// now reads the clock that series use.
func now() int64 { return (&csrc.Series{}).Run().StartNS }

func ordered(s *csrc.Series, r csrc.SeriesResult) error {
	if r.Status != csrc.SeriesOK || r.Iter != int64(s.Iters) {
		return fmt.Errorf("the series ends with %+v", r)
	}
	if r.StartNS <= 0 || r.StartNS > r.MarkedNS || r.MarkedNS > r.EnqueuedNS || r.EnqueuedNS > r.DoneNS || r.CPU < 0 || r.Switches < 0 {
		return fmt.Errorf("times out of order: %+v", r)
	}
	return nil
}

// TestSeriesTimes times two ranks which start together, with fewer and with more operations than the cost of queueing is taken from.
func TestSeriesTimes(t *testing.T) {
	b := csrc.NewBarrier()
	var late int64 // when the last rank came; the barrier orders it
	together(t, 2, func(m *member) error {
		for _, iters := range []int{1, csrc.EnqueueSample, 3 * csrc.EnqueueSample} {
			s := m.series(iters)
			s.Barrier, s.Parties, s.Probe = b, 2, true
			if m.rank == 1 {
				time.Sleep(20 * time.Millisecond)
				late = now()
			}
			r := s.Run()
			if err := ordered(s, r); err != nil {
				return err
			}
			if r.StartNS < late {
				return fmt.Errorf("%d operations: started %d ns before the last rank came", iters, late-r.StartNS)
			}
			if iters == 3*csrc.EnqueueSample && r.MarkedNS == r.EnqueuedNS {
				return errors.New("the mark is at the end of all operations")
			}
			if runtime.GOARCH == "amd64" && (r.RateBefore <= 0 || r.RateAfter <= 0) {
				return fmt.Errorf("issue rates %g, %g", r.RateBefore, r.RateAfter)
			}
			if st := b.Wait(2, nil, long); st != csrc.SeriesOK { // nobody writes late while another reads it
				return fmt.Errorf("barrier: %d", st)
			}
		}
		return m.sums(slots)
	})
}

// TestSeriesRotation: as many places are written as there are iterations, up to the number of slots.
func TestSeriesRotation(t *testing.T) {
	together(t, 2, func(m *member) error {
		for _, c := range []struct {
			iters, places int
			slots         uint64
		}{{1, 1, slots}, {2, 2, slots}, {slots + 2, slots, slots}, {4, 2, 2}, {4, 1, 1}, {4, 1, 0}} {
			s := m.series(c.iters)
			s.Lanes[0].RotSlots = c.slots
			if err := errors.Join(m.clear(), status(s, csrc.SeriesOK, 0)); err != nil {
				return err
			}
			if err := m.sums(c.places); err != nil {
				return fmt.Errorf("%+v: %w", c, err)
			}
		}
		return nil
	})
}

// TestSeriesEvents: an event before every operation and one at the end, in their order.
func TestSeriesEvents(t *testing.T) {
	together(t, 2, func(m *member) error {
		const iters = 20
		m.events = make([]uintptr, iters+1)
		for i := range m.events {
			if err := failed("cudaEventCreateWithFlags", csrc.CudaEventCreateWithFlags(&m.events[i], 0)); err != nil {
				return err
			}
		}
		s := m.series(iters)
		s.Lanes[0].Events = m.events
		r := s.Run()
		if err := ordered(s, r); err != nil {
			return err
		}
		total := 0.0
		for i := range iters {
			var ms float32
			if err := failed("cudaEventElapsedTime", csrc.CudaEventElapsedTime(&ms, m.events[i], m.events[i+1])); err != nil {
				return err
			}
			if ms < 0 {
				return fmt.Errorf("operation %d took %g ms", i, ms)
			}
			total += float64(ms)
		}
		// The device's clock and the host's are not the same.
		if whole := float64(r.DoneNS-r.StartNS) / 1e6; total <= 0 || total > 1.01*whole+0.01 {
			return fmt.Errorf("events are %g ms apart in a series of %g ms", total, whole)
		}
		return m.sums(slots)
	})
}

func TestSeriesGraph(t *testing.T) {
	together(t, 2, func(m *member) error {
		var g, x uintptr
		const threadLocal = 1
		if err := failed("cudaStreamBeginCapture", csrc.CudaStreamBeginCapture(m.stream, threadLocal)); err != nil {
			return err
		}
		err := failed("ncclAllReduce", csrc.NcclAllReduce(m.send, m.recv, elems, 7, 0, m.comm, m.stream))
		if err = errors.Join(err, failed("cudaStreamEndCapture", csrc.CudaStreamEndCapture(m.stream, &g))); err != nil {
			return err
		}
		m.graphs = append(m.graphs, g)
		if err := failed("cudaGraphInstantiate", csrc.CudaGraphInstantiate(&x, g)); err != nil {
			return err
		}
		m.executable = append(m.executable, x)
		if err := m.sums(0); err != nil {
			return fmt.Errorf("the capture ran: %w", err)
		}
		s := m.series(10)
		s.Graphs = m.executable
		if err := ordered(s, s.Run()); err != nil {
			return err
		}
		return m.sums(1) // a graph's addresses do not rotate
	})
}

// TestSeriesPeerMissing: rank 1 does not take part in the operation.
func TestSeriesPeerMissing(t *testing.T) {
	flag := csrc.NewFlag()
	for _, c := range []struct {
		name string
		want csrc.SeriesStatus
	}{{"timeout", csrc.SeriesTimeout}, {"abort", csrc.SeriesAborted}} {
		t.Run(c.name, func(t *testing.T) {
			end := csrc.NewBarrier()
			together(t, 2, func(m *member) error {
				var err error
				if m.rank == 0 {
					s := m.series(1)
					if s.Timeout = short; c.want == csrc.SeriesAborted {
						s.Timeout, s.Abort = long, flag
						time.AfterFunc(short, flag.Set)
					}
					r := s.Run()
					if r.Status != c.want || r.Phase != csrc.PhaseComplete || r.Lane != 0 || r.Iter != 1 || r.DoneNS-r.EnqueuedNS < int64(short)/2 {
						err = fmt.Errorf("the series ends with %+v", r)
					}
				}
				end.Wait(2, nil, long)
				return errors.Join(err, m.abort())
			})
		})
	}
}

// TestSeriesNotStarted: what ends a series before its first operation is over.
func TestSeriesNotStarted(t *testing.T) {
	set := csrc.NewFlag()
	if set.Set(); !set.IsSet() || csrc.NewFlag().IsSet() {
		t.Error("IsSet does not answer what Set did")
	}
	broken := csrc.NewBarrier()
	broken.Break()
	together(t, 1, func(m *member) error {
		for _, c := range []struct {
			name   string
			change func(s *csrc.Series)
			want   csrc.SeriesResult
		}{
			{"nobody at the barrier", func(s *csrc.Series) { s.Barrier, s.Timeout = csrc.NewBarrier(), short }, csrc.SeriesResult{Status: csrc.SeriesTimeout, Lane: -1}},
			{"abort at the barrier", func(s *csrc.Series) { s.Barrier, s.Abort = csrc.NewBarrier(), set }, csrc.SeriesResult{Status: csrc.SeriesAborted, Lane: -1}},
			{"broken barrier", func(s *csrc.Series) { s.Barrier = broken }, csrc.SeriesResult{Status: csrc.SeriesBarrier, Lane: -1}},
			{"abort while queueing", func(s *csrc.Series) { s.Abort = set }, csrc.SeriesResult{Status: csrc.SeriesAborted, Lane: -1, Phase: csrc.PhaseEnqueue}},
			{"data type", func(s *csrc.Series) { s.Steps[0].DType = 99 }, csrc.SeriesResult{Status: csrc.SeriesCall, Code: 4, Phase: csrc.PhaseEnqueue}},
			{"kind of step", func(s *csrc.Series) { s.Steps[0].Kind = 99 }, csrc.SeriesResult{Status: csrc.SeriesCall, Code: 4, Phase: csrc.PhaseEnqueue}},
		} {
			s := m.series(5)
			s.Parties = 2
			c.change(s)
			r := s.Run()
			got := csrc.SeriesResult{Status: r.Status, Code: r.Code, Phase: r.Phase, Lane: r.Lane, Iter: r.Iter}
			if d := cmp.Diff(c.want, got); d != "" {
				return fmt.Errorf("%s: %s", c.name, d)
			}
		}
		return errors.Join(m.clear(), status(m.series(slots), csrc.SeriesOK, 0), m.sums(slots))
	})
}

// TestSeriesBreaksBarrier: who gives up at the barrier tells the others, now and later.
func TestSeriesBreaksBarrier(t *testing.T) {
	b := csrc.NewBarrier()
	together(t, 2, func(m *member) error {
		s := m.series(1)
		s.Barrier, s.Parties = b, 3
		want := csrc.SeriesBarrier
		if m.rank == 0 {
			s.Timeout, want = short, csrc.SeriesTimeout
		}
		r := s.Run()
		if r.Status != want || r.Phase != csrc.PhaseBarrier || r.Lane != -1 {
			return fmt.Errorf("the series ends with %+v, want status %d", r, want)
		}
		if st := b.Wait(1, nil, long); st != csrc.SeriesBarrier {
			return fmt.Errorf("later the barrier answers %d", st)
		}
		return nil
	})
}

// TestSeriesPeerDies: rank 1 ends its communicator while rank 0 waits for it.
func TestSeriesPeerDies(t *testing.T) {
	hostOnly(t)
	together(t, 2, func(m *member) error {
		if m.rank == 1 {
			time.Sleep(short / 3)
			return m.abort()
		}
		r := m.series(1).Run()
		if r.Status != csrc.SeriesAsync || r.Code != 6 || r.Phase != csrc.PhaseComplete || r.Lane != 0 {
			return errors.Join(fmt.Errorf("the series ends with %+v", r), m.abort())
		}
		return m.abort()
	})
}

// TestSeriesGroupFails: a call that fails within a group must not leave the thread's group open, or nothing queued later would ever start.
func TestSeriesGroupFails(t *testing.T) {
	together(t, 1, func(m *member) error {
		s := m.series(1)
		bad := m.step()
		bad.DType = 99
		s.Steps = []csrc.Step{{Kind: csrc.StepGroupStart}, {Kind: csrc.StepGroupStart}, m.step(), bad}
		if err := status(s, csrc.SeriesCall, 4); err != nil {
			return err
		}
		return errors.Join(m.clear(), status(m.series(slots), csrc.SeriesOK, 0), m.sums(slots))
	})
}

// withFakes puts the runtime and NCCL beside each other and fills the tables in the process of its own.
func withFakes(t *testing.T, flags []string, env ...string) bool {
	t.Helper()
	if !bindtest.Isolated(t, func(dir string) []string {
		bindtest.Put(t, filepath.Join(dir, "cudart.so"), "cudart")
		bindtest.Put(t, filepath.Join(dir, "nccl.so"), "nccl", flags...)
		return append(env, "FAKE_LOG="+filepath.Join(dir, "log"))
	}) {
		return false
	}
	for lib, name := range map[csrc.Lib]string{csrc.CUDART: "cudart.so", csrc.NCCL: "nccl.so"} {
		h, text := csrc.Open(bindtest.InDir(name))
		if h == 0 {
			t.Fatal(text)
		}
		csrc.Fill(lib, h)
	}
	return true
}

// called lists the logged calls whose names begin with prefix.
func called(t *testing.T, prefix string) []string {
	t.Helper()
	b, err := os.ReadFile(bindtest.InDir("log"))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, prefix) {
			out = append(out, line)
		}
	}
	return out
}

// twoLanes is a series of communicators 1 and 2 on streams 11 and 12.
func twoLanes(steps ...csrc.Step) *csrc.Series {
	lane := func(comm, stream uintptr) csrc.Lane {
		return csrc.Lane{Comm: comm, Stream: stream, RotStride: 100, RotSlots: 2}
	}
	return &csrc.Series{Steps: steps, Lanes: []csrc.Lane{lane(1, 11), lane(2, 12)}, Iters: 1, Timeout: short}
}

// TestSeriesCalls shows what each step passes on.
func TestSeriesCalls(t *testing.T) {
	t.Parallel()
	if !withFakes(t, nil) {
		return
	}
	var steps []csrc.Step
	for k := csrc.StepGroupStart; k <= csrc.StepScatter; k++ {
		steps = append(steps, csrc.Step{Kind: k, Lane: int(k) % 2, Send: 1000, Recv: 2000, Count: 7, DType: 3, Op: 2, Peer: 5})
	}
	steps[csrc.StepAllReduce].Send, steps[csrc.StepBroadcast].Recv = 0, 0 // absent buffers stay absent
	s := twoLanes(steps...)
	s.Iters = 3
	if r := s.Run(); r.Status != csrc.SeriesOK {
		t.Fatalf("the series ends with %+v", r)
	}
	var want []string
	for i := range 3 {
		send, recv := 1000+i%2*100, 2000+i%2*100
		want = append(want, "ncclGroupStart", "ncclGroupEnd",
			fmt.Sprintf("ncclAllReduce 0 %d 7 3 2 1 11", recv),
			fmt.Sprintf("ncclBroadcast %d 0 7 3 5 2 12", send),
			fmt.Sprintf("ncclReduce %d %d 7 3 2 5 1 11", send, recv),
			fmt.Sprintf("ncclAllGather %d %d 7 3 2 12", send, recv),
			fmt.Sprintf("ncclReduceScatter %d %d 7 3 2 1 11", send, recv),
			fmt.Sprintf("ncclSend %d 7 3 5 2 12", send),
			fmt.Sprintf("ncclRecv %d 7 3 5 1 11", recv),
			fmt.Sprintf("ncclAlltoAll %d %d 7 3 2 12", send, recv),
			fmt.Sprintf("ncclGather %d %d 7 3 5 1 11", send, recv),
			fmt.Sprintf("ncclScatter %d %d 7 3 5 2 12", send, recv))
	}
	got := slices.DeleteFunc(called(t, "nccl"), func(l string) bool { return strings.HasPrefix(l, "ncclCommGetAsyncError") })
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestSeriesAggregate: the operations of an iteration share a group and each has its own place in the rotation.
func TestSeriesAggregate(t *testing.T) {
	t.Parallel()
	if !withFakes(t, nil) {
		return
	}
	s := twoLanes(csrc.Step{Kind: csrc.StepCopy, Send: 1000, Recv: 2000, Count: 7, DType: 8}, csrc.Step{Kind: csrc.StepSend, Send: 1000, Count: 7, DType: 3, Peer: 5})
	s.Iters, s.Aggregate = 2, 3
	if r := s.Run(); r.Status != csrc.SeriesOK {
		t.Fatalf("the series ends with %+v", r)
	}
	var want []string
	for i := range 2 {
		want = append(want, "ncclGroupStart")
		for a := range 3 {
			want = append(want, fmt.Sprintf("ncclSend %d 7 3 5 1 11", 1000+(3*i+a)%2*100))
		}
		want = append(want, "ncclGroupEnd")
	}
	got := slices.DeleteFunc(called(t, "nccl"), func(l string) bool { return strings.HasPrefix(l, "ncclCommGetAsyncError") })
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if n := len(called(t, "cudaMemcpyAsync")); n != 6 {
		t.Errorf("%d copies instead of 6", n)
	}
}

// TestSeriesAggregateFails: a call that fails leaves no group open.
func TestSeriesAggregateFails(t *testing.T) {
	t.Parallel()
	if !withFakes(t, nil, "FAKE_FAIL=ncclSend=4") {
		return
	}
	s := twoLanes(csrc.Step{Kind: csrc.StepGroupStart}, csrc.Step{Kind: csrc.StepSend}, csrc.Step{Kind: csrc.StepGroupEnd})
	s.Aggregate = 2
	if r := s.Run(); r.Status != csrc.SeriesCall || r.Code != 4 {
		t.Errorf("the series ends with %+v", r)
	}
	if s, e := len(called(t, "ncclGroupStart")), len(called(t, "ncclGroupEnd")); s != 2 || e != 2 {
		t.Errorf("%d groups started, %d ended", s, e)
	}
}

// TestSeriesBlocking: with a wait after each iteration the second call comes after the first one's stream was asked; a capture asks never.
func TestSeriesBlocking(t *testing.T) {
	for _, c := range []struct {
		name     string
		blocking csrc.Blocking
		capture  bool
		queries  int // of each of the two streams
	}{
		{"no", csrc.BlockingNo, false, 1}, {"barrier", csrc.BlockingBarrier, false, 4}, {"wait", csrc.BlockingWait, false, 4},
		{"excluded", csrc.BlockingExcluded, false, 4}, {"capture", csrc.BlockingWait, true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if !withFakes(t, nil) {
				return
			}
			s := twoLanes(csrc.Step{Kind: csrc.StepAllReduce, Send: 1, Recv: 2, Count: 1})
			s.Iters, s.Blocking, s.Capture = 3, c.blocking, c.capture
			s.Barrier, s.Parties = csrc.NewBarrier(), 1
			r := s.Run()
			if r.Status != csrc.SeriesOK || r.Iter != 3 {
				t.Fatalf("the series ends with %+v", r)
			}
			if got := len(called(t, "cudaStreamQuery")); got != 2*c.queries {
				t.Errorf("%d queries instead of %d", got, 2*c.queries)
			}
			if c.blocking == csrc.BlockingExcluded == (r.ExcludedNS == 0) {
				t.Errorf("%d ns excluded", r.ExcludedNS)
			}
		})
	}
}

// TestSeriesFailures: which end a failing library gives a series, and at which lane.
func TestSeriesFailures(t *testing.T) {
	sum := func(lane int) csrc.Step {
		return csrc.Step{Kind: csrc.StepAllReduce, Lane: lane, Send: 1, Recv: 2, Count: 1}
	}
	events := func(s *csrc.Series) {
		for i := range s.Lanes {
			s.Lanes[i].Events = []uintptr{21, 22}
		}
	}
	graphs := func(s *csrc.Series) { s.Graphs = []uintptr{31, 32} }
	steps := func(*csrc.Series) {}
	for _, c := range []struct {
		name   string
		change func(s *csrc.Series)
		env    []string
		want   csrc.SeriesResult
	}{
		{"stream", steps, []string{"FAKE_FAIL=cudaStreamQuery=700"}, csrc.SeriesResult{Status: csrc.SeriesCUDA, Code: 700, Phase: csrc.PhaseComplete, Iter: 1}},
		{"event", events, []string{"FAKE_FAIL=cudaEventRecord=400"}, csrc.SeriesResult{Status: csrc.SeriesCUDA, Code: 400, Phase: csrc.PhaseEnqueue}},
		{"graph", graphs, []string{"FAKE_FAIL=cudaGraphLaunch=719"}, csrc.SeriesResult{Status: csrc.SeriesCUDA, Code: 719, Phase: csrc.PhaseEnqueue}},
		{"call", steps, []string{"FAKE_FAIL=ncclAllReduce=6"}, csrc.SeriesResult{Status: csrc.SeriesCall, Code: 6, Phase: csrc.PhaseEnqueue}},
		{"call in progress", steps, []string{"FAKE_FAIL=ncclAllReduce=7"}, csrc.SeriesResult{Phase: csrc.PhaseComplete, Lane: -1, Iter: 1}},
		{"starting", steps, []string{"FAKE_BUSY=12", "FAKE_STARTING=2"}, csrc.SeriesResult{Status: csrc.SeriesTimeout, Phase: csrc.PhaseComplete, Lane: 1, Iter: 1}},
		{"broken", steps, []string{"FAKE_BUSY=12", "FAKE_BROKEN=2"}, csrc.SeriesResult{Status: csrc.SeriesAsync, Code: 6, Phase: csrc.PhaseComplete, Lane: 1, Iter: 1}},
		{"done before broken", steps, []string{"FAKE_BROKEN=2"}, csrc.SeriesResult{Phase: csrc.PhaseComplete, Lane: -1, Iter: 1}},
		{"asynchronous error fails", steps, []string{"FAKE_BUSY=11", "FAKE_FAIL=ncclCommGetAsyncError=5"}, csrc.SeriesResult{Status: csrc.SeriesAsync, Code: 5, Phase: csrc.PhaseComplete, Iter: 1}},
		// The error is another lane's than the one that never ends.
		{"second broken", steps, []string{"FAKE_BUSY=-1", "FAKE_BROKEN=2"}, csrc.SeriesResult{Status: csrc.SeriesAsync, Code: 6, Phase: csrc.PhaseComplete, Lane: 1, Iter: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if !withFakes(t, nil, c.env...) {
				return
			}
			s := twoLanes(sum(0), sum(1))
			c.change(s)
			r := s.Run()
			got := csrc.SeriesResult{Status: r.Status, Code: r.Code, Phase: r.Phase, Lane: r.Lane, Iter: r.Iter}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestSeriesMissingFunction(t *testing.T) {
	t.Parallel()
	if !withFakes(t, bindtest.Lacking(t, "ncclAlltoAll")) {
		return
	}
	r := twoLanes(csrc.Step{Kind: csrc.StepAllToAll, Lane: 1}).Run()
	if r.Status != csrc.SeriesCall || r.Code != csrc.Missing || r.Lane != 1 {
		t.Errorf("the series ends with %+v", r)
	}
}

// TestSeriesClosesGroups counts what a failure within groups leaves open.
func TestSeriesClosesGroups(t *testing.T) {
	t.Parallel()
	if !withFakes(t, nil, "FAKE_FAIL=ncclSend=4") {
		return
	}
	start, end := csrc.Step{Kind: csrc.StepGroupStart}, csrc.Step{Kind: csrc.StepGroupEnd}
	twoLanes(start, end, start, start, end, start, csrc.Step{Kind: csrc.StepSend}, end).Run()
	if s, e := len(called(t, "ncclGroupStart")), len(called(t, "ncclGroupEnd")); s != 4 || e != 4 {
		t.Errorf("%d groups started, %d ended", s, e)
	}
}

// TestBarrierRounds: nobody is a round ahead.
func TestBarrierRounds(t *testing.T) {
	const parties, rounds = 3, 200
	b := csrc.NewBarrier()
	var mu sync.Mutex
	var wg sync.WaitGroup
	arrived := 0
	for range parties {
		wg.Go(func() {
			for i := range rounds {
				mu.Lock()
				arrived++
				mu.Unlock()
				if st := b.Wait(parties, nil, long); st != csrc.SeriesOK {
					t.Errorf("round %d: barrier answers %d", i, st)
					return
				}
				mu.Lock()
				if arrived < (i+1)*parties || arrived > (i+2)*parties {
					t.Errorf("after round %d %d have arrived", i, arrived)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

// TestBarrierFile: two mappings of one file are one barrier, after the file is gone as well.
func TestBarrierFile(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "barrier"))
	if err != nil {
		t.Fatal(err)
	}
	var both [2]*csrc.Barrier
	err = f.Truncate(csrc.BarrierBytes)
	for i := range both {
		b, e := csrc.MapBarrier(f)
		both[i], err = b, errors.Join(err, e)
	}
	if err = errors.Join(err, f.Close(), os.Remove(f.Name())); err != nil {
		t.Fatal(err)
	}
	other := make(chan csrc.SeriesStatus)
	go func() { other <- both[1].Wait(2, nil, long) }()
	if a, b := both[0].Wait(2, nil, long), <-other; a != csrc.SeriesOK || b != csrc.SeriesOK {
		t.Errorf("the two sides answer %d and %d", a, b)
	}
	both[0].Break()
	if st := both[1].Wait(2, nil, long); st != csrc.SeriesBarrier {
		t.Errorf("a barrier broken at the other side answers %d", st)
	}
	if b, err := csrc.MapBarrier(f); err == nil || b != nil || !strings.Contains(err.Error(), "map barrier") {
		t.Errorf("mapping a closed file gives %v, %v", b, err)
	}
}

func TestIssueRate(t *testing.T) {
	known := runtime.GOARCH == "amd64" || runtime.GOARCH == "arm64"
	if r := csrc.IssueRate(); (r > 0) != known || r > 100 {
		t.Errorf("%g additions a nanosecond", r)
	}
	var best float64
	if r := csrc.QuietCore(nil, 0, 8, &best); (r > 0) != known {
		t.Errorf("without processors: %g", r)
	}
	bound := make(chan csrc.SeriesResult)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread stays bound to a processor
		cpu := (&csrc.Series{}).Run().CPU
		if r := csrc.QuietCore([]int32{1 << 20, int32(cpu)}, 0, 2, &best); (r > 0) != known || best < r {
			t.Errorf("rate %g, best %g", r, best)
		}
		r := (&csrc.Series{}).Run()
		if known && r.CPU != cpu {
			t.Errorf("on processor %d, not on %d", r.CPU, cpu)
		}
		bound <- r
	}()
	<-bound
}

func TestSeriesPhaseText(t *testing.T) {
	seen := make(map[string]bool)
	for _, p := range []csrc.SeriesPhase{csrc.PhaseBarrier, csrc.PhaseEnqueue, csrc.PhaseComplete} {
		if seen[p.String()] = true; p.String() == "" {
			t.Errorf("phase %d has no text", p)
		}
	}
	if len(seen) != 3 {
		t.Errorf("phases share texts: %v", seen)
	}
}

// ring is a snapshot of a flight ring; package hanglab/flight reads it properly, by the same offsets.
type ring []byte

const ringEntries = 282624

func (r ring) u64(at int) uint64 { return binary.LittleEndian.Uint64(r[at:]) }
func (r ring) u32(at int) uint32 { return binary.LittleEndian.Uint32(r[at:]) }

// flightEntry is what the tests look at in a record.
type flightEntry struct {
	Kind               csrc.StepKind
	Group, Stream      int
	State, Flags       int
	Coll, P2P, Op      int
	Count, In, Out     int
	Completed, Created bool
}

// The bits of flight.h.
const (
	flagP2P, flagRetired, flagCoalesced, flagBounded, flagJoined = 1, 2, 4, 8, 16
	scheduled, completed                                         = 0, 2
	callsAnEvent                                                 = 128 // CP_FLIGHT_EVENT_EVERY
)

// entries are the calls in the ring, which no series writes any more: a record that several share is taken apart.
func (r ring) entries(t *testing.T) []flightEntry {
	t.Helper()
	out := make([]flightEntry, 0, r.u64(64)+r.u64(72))
	for i := range int(r.u64(64)) {
		e := r[ringEntries+192*i:][:192]
		if id := uint64(i + 1); e.u64(0) != id || e.u64(184) != id {
			t.Fatalf("record %d is torn: ids %d and %d", id, e.u64(0), e.u64(184))
		}
		x := flightEntry{
			Kind: csrc.StepKind(e.u32(28)), Group: int(int32(e.u32(16))), Stream: int(e.u32(24)), State: int(e.u32(112)), Flags: int(e.u32(116)),
			Coll: int(e.u64(48)), P2P: int(e.u64(56)), Op: int(e.u64(64)), Count: int(e.u64(72)), In: int(e.u64(80)), Out: int(e.u64(88)),
			Created: e.u64(96) > 0, Completed: e.u64(128) >= e.u64(96),
		}
		more := 0
		if e.u64(144)>>8 == e.u64(0) {
			more = int(e.u64(144) & 255)
		}
		out = append(out, x.apart(more)...)
	}
	if len(out) != cap(out) {
		t.Fatalf("%d calls are in the ring, its header says %d", len(out), cap(out))
	}
	return out
}

// apart are the calls that share the record x: what is known of its state is known of the last.
func (x flightEntry) apart(more int) []flightEntry {
	var out []flightEntry
	for k := range more + 1 {
		one := x
		one.Op += k
		if x.Flags&flagP2P != 0 {
			one.P2P += k
		} else {
			one.Coll += k
		}
		if k < more {
			one.State, one.Completed, one.Flags = scheduled, false, one.Flags|flagBounded
		}
		out = append(out, one)
	}
	return out
}

// last are the group's counters: enqueued, started, completed.
func (r ring) last(group int, p2p bool) [3]int {
	at := 4096 + 128*group + 64
	if p2p {
		at += 24
	}
	return [3]int{int(r.u64(at)), int(r.u64(at + 8)), int(r.u64(at + 16))}
}

func newRing(t testing.TB, groups ...string) *csrc.Flight {
	t.Helper()
	f, err := csrc.NewFlight(nil, 1024)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, g := range groups {
		f.AddGroup(g, "", []int{0, 1})
	}
	return f
}

// recorded is a series that writes into the ring and has n events to follow its stream.
func (m *member) recorded(f *csrc.Flight, iters, n int) (*csrc.Series, error) {
	s := m.series(iters)
	s.Flight, s.Lanes[0].FlightStream = f, 5
	s.Steps[0].Flight = csrc.FlightTemplate{Site: 1, InCount: elems, OutCount: elems, TimeoutNs: 9}
	if n == 0 {
		return s, nil
	}
	events := make([]uintptr, n)
	for i := range events {
		const disableTiming = 2
		if err := failed("cudaEventCreateWithFlags", csrc.CudaEventCreateWithFlags(&events[i], disableTiming)); err != nil {
			return nil, err
		}
	}
	m.events = append(m.events, events...)
	var err error
	s.Lanes[0].FlightEvents, err = csrc.NewFlightEvents(f, events)
	return s, err
}

// TestSeriesFlight: every operation is recorded; those with an event and the last are known to be complete, the others lie between them.
func TestSeriesFlight(t *testing.T) {
	for _, events := range []int{0, 1, 8} {
		const iters = 1000
		f := newRing(t, "0")
		f.AddSite("a\tb\t1\n")
		together(t, 2, func(m *member) error {
			s := m.series(iters)
			if m.rank == 0 {
				var err error
				if s, err = m.recorded(f, iters, events); err != nil {
					return err
				}
			}
			return errors.Join(ordered(s, s.Run()), m.sums(slots))
		})
		raw := ring(f.Snapshot())
		got := raw.entries(t)
		if len(got) != iters {
			t.Fatalf("%d events: %d calls of %d operations", events, len(got), iters)
		}
		known := 0
		for i, e := range got {
			want := flightEntry{Kind: csrc.StepAllReduce, Stream: 5, Flags: flagBounded, Coll: i + 1, Op: i + 1, Count: elems, In: elems, Out: elems, Created: true}
			if e.State == completed {
				known++
				want.State, want.Flags, want.Completed = completed, 0, true
			}
			if d := cmp.Diff(want, e); d != "" {
				t.Fatalf("%d events, record %d: %s", events, i+1, d)
			}
		}
		if got[iters-1].State != completed || known > 1+iters/callsAnEvent || events == 0 && known != 1 || events == 8 && known == 1 {
			t.Errorf("%d events: %d records are known to be complete, the last one: %d", events, known, got[iters-1].State)
		}
		if last := raw.last(0, false); last != [3]int{iters, -1, iters} {
			t.Errorf("the counters are %v", last)
		}
		if n := raw.u64(64); n > iters/2 { // a busy machine ends runs early
			t.Errorf("%d events: %d records for %d calls that are the same", events, n, iters)
		}
	}
}

// TestSeriesFlightHangs: while the peer is missing the last operation is known not to be complete; once the peer has come, a poll from another
// thread sees it.
func TestSeriesFlightHangs(t *testing.T) {
	f := newRing(t, "0")
	end := csrc.NewBarrier()
	together(t, 2, func(m *member) error {
		if m.rank == 1 {
			end.Wait(2, nil, long)
			return status(m.series(3), csrc.SeriesOK, 0)
		}
		s, err := m.recorded(f, 3, 2)
		if err != nil {
			return err
		}
		s.Timeout = short
		err = status(s, csrc.SeriesTimeout, 0)
		raw := ring(f.Snapshot())
		for i, e := range raw.entries(t) {
			if flags := []int{flagBounded, flagBounded, 0}[i]; e.State != scheduled || e.Flags != flags || e.Completed {
				err = errors.Join(err, fmt.Errorf("record %d: %+v", i+1, e))
			}
		}
		if last := raw.last(0, false); last != [3]int{3, -1, -1} {
			err = errors.Join(err, fmt.Errorf("the counters are %v", last))
		}
		if n := s.Lanes[0].FlightEvents.Poll(); n != 0 {
			err = errors.Join(err, fmt.Errorf("%d events are done", n))
		}
		end.Wait(2, nil, long)
		polled := make(chan int)
		go func() {
			for stop := time.Now().Add(long); time.Now().Before(stop); time.Sleep(time.Millisecond) {
				if n := s.Lanes[0].FlightEvents.Poll(); n > 0 {
					polled <- n
					return
				}
			}
			polled <- 0
		}()
		if n := <-polled; n != 1 {
			err = errors.Join(err, fmt.Errorf("%d events became done", n))
		}
		if e := ring(f.Snapshot()).entries(t)[2]; e.State != completed || !e.Completed {
			err = errors.Join(err, fmt.Errorf("at the end: %+v", e))
		}
		return err
	})
}

// flightKinds lists records in short: the kind, and what differs from a collective of group 0.
func flightKinds(entries []flightEntry) []string {
	var out []string
	for _, e := range entries {
		out = append(out, fmt.Sprintf("%d group %d stream %d flags %d coll %d p2p %d op %d", e.Kind, e.Group, e.Stream, e.Flags&^flagBounded, e.Coll, e.P2P, e.Op))
	}
	return out
}

// TestSeriesFlightSteps shows which records the kinds of steps give, and which are numbered alike.
func TestSeriesFlightSteps(t *testing.T) {
	at := func(group int32) csrc.FlightTemplate { return csrc.FlightTemplate{Group: group} }
	start, end := csrc.Step{Kind: csrc.StepGroupStart}, csrc.Step{Kind: csrc.StepGroupEnd}
	send, recv := csrc.Step{Kind: csrc.StepSend, Send: 1, Flight: at(1), Lane: 1}, csrc.Step{Kind: csrc.StepRecv, Recv: 1, Flight: at(1), Lane: 1}
	sum, bcast := csrc.Step{Kind: csrc.StepAllReduce, Send: 1, Recv: 2}, csrc.Step{Kind: csrc.StepBroadcast, Send: 1, Recv: 2}
	for _, c := range []struct {
		name   string
		steps  []csrc.Step
		change func(s *csrc.Series)
		env    []string
		want   []string
	}{
		{"plain", []csrc.Step{sum, send, {Kind: csrc.StepCopy, Send: 1, Recv: 2, Count: 1, DType: 7}, bcast}, nil, nil, []string{
			"2 group 0 stream 0 flags 0 coll 1 p2p 0 op 1", "7 group 1 stream 3 flags 1 coll 0 p2p 1 op 1", "3 group 0 stream 0 flags 0 coll 2 p2p 0 op 2",
		}},
		{"group", []csrc.Step{start, sum, start, send, recv, end, end, recv}, nil, nil, []string{
			"2 group 0 stream 0 flags 4 coll 1 p2p 0 op 1", "7 group 1 stream 3 flags 5 coll 0 p2p 1 op 1", "8 group 1 stream 3 flags 21 coll 0 p2p 1 op 2",
			"1 group 0 stream 0 flags 20 coll 1 p2p 0 op 1", "1 group 1 stream 3 flags 21 coll 0 p2p 1 op 2", "8 group 1 stream 3 flags 1 coll 0 p2p 2 op 3",
		}},
		{"aggregate", []csrc.Step{sum}, func(s *csrc.Series) { s.Aggregate, s.Iters = 2, 2 }, nil, []string{
			"2 group 0 stream 0 flags 4 coll 1 p2p 0 op 1", "2 group 0 stream 0 flags 20 coll 1 p2p 0 op 2", "1 group 0 stream 0 flags 20 coll 1 p2p 0 op 2",
			"2 group 0 stream 0 flags 4 coll 2 p2p 0 op 3", "2 group 0 stream 0 flags 20 coll 2 p2p 0 op 4", "1 group 0 stream 0 flags 20 coll 2 p2p 0 op 4",
		}},
		{"graph", nil, func(s *csrc.Series) {
			s.Graphs, s.Lanes[0].FlightGraph, s.Lanes[1].FlightGraph = []uintptr{31, 32}, at(1), at(0)
		}, nil, []string{
			"13 group 1 stream 0 flags 0 coll 1 p2p 0 op 1", "13 group 0 stream 3 flags 0 coll 1 p2p 0 op 1",
		}},
		{"capture", []csrc.Step{sum}, func(s *csrc.Series) { s.Capture = true }, nil, nil},
		{"runs", []csrc.Step{sum}, func(s *csrc.Series) { s.Iters = 3 }, nil, []string{
			"2 group 0 stream 0 flags 0 coll 1 p2p 0 op 1", "2 group 0 stream 0 flags 0 coll 2 p2p 0 op 2", "2 group 0 stream 0 flags 0 coll 3 p2p 0 op 3",
		}},
		{"no runs of two kinds", []csrc.Step{send, recv}, func(s *csrc.Series) { s.Iters = 2 }, nil, []string{
			"7 group 1 stream 3 flags 1 coll 0 p2p 1 op 1", "8 group 1 stream 3 flags 1 coll 0 p2p 2 op 2",
			"7 group 1 stream 3 flags 1 coll 0 p2p 3 op 3", "8 group 1 stream 3 flags 1 coll 0 p2p 4 op 4",
		}},
		{"failed call", []csrc.Step{sum, send, sum}, nil, []string{"FAKE_FAIL=ncclSend=4"}, []string{
			"2 group 0 stream 0 flags 0 coll 1 p2p 0 op 1", "7 group 1 stream 3 flags 3 coll 0 p2p 1 op 1",
		}},
		{"failed graph", nil, func(s *csrc.Series) { s.Graphs = []uintptr{31, 32} }, []string{"FAKE_FAIL=cudaGraphLaunch=719"}, []string{
			"13 group 0 stream 0 flags 2 coll 1 p2p 0 op 1",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if !withFakes(t, nil, c.env...) {
				return
			}
			s := twoLanes(c.steps...)
			s.Flight, s.Lanes[1].FlightStream = newRing(t, "0", "1"), 3
			if c.change != nil {
				c.change(s)
			}
			if r := s.Run(); (r.Status != csrc.SeriesOK) != (c.env != nil) {
				t.Fatalf("the series ends with %+v", r)
			}
			if d := cmp.Diff(c.want, flightKinds(ring(s.Flight.Snapshot()).entries(t))); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestSeriesFlightEventFails: an event of the ring that fails ends the series as any CUDA failure does.
func TestSeriesFlightEventFails(t *testing.T) {
	t.Parallel()
	if !withFakes(t, nil, "FAKE_FAIL=cudaEventRecord=400") {
		return
	}
	s := twoLanes(csrc.Step{Kind: csrc.StepAllReduce, Send: 1, Recv: 2, Lane: 1})
	s.Iters, s.Flight = 2*callsAnEvent, newRing(t, "0") // enough of them for an event in their midst
	var err error
	if s.Lanes[1].FlightEvents, err = csrc.NewFlightEvents(s.Flight, []uintptr{21}); err != nil {
		t.Fatal(err)
	}
	if r := s.Run(); r.Status != csrc.SeriesCUDA || r.Code != 400 || r.Lane != 1 || r.Phase != csrc.PhaseEnqueue {
		t.Errorf("the series ends with %+v", r)
	}
}

// BenchmarkSeriesFlight is the time of an 8-byte all_reduce with and without the ring on one communicator, in turn (off on, on off): medians
// over series of 1000, and the median over the pairs' ratios with its 95 % interval (of order statistics). Two ranks, or one where there is but one
// device: then a call copies, and takes less time than any other.
func BenchmarkSeriesFlight(b *testing.B) {
	devices(b, 1)
	have, _ := engine()
	world := min(have, 2)
	const iters = 1000
	rings := []*csrc.Flight{newRing(b, "0"), newRing(b, "0")}
	var id [csrc.UniqueIDBytes]byte
	if code := csrc.NcclGetUniqueID(&id); code != 0 {
		b.Fatal(code)
	}
	start := csrc.NewBarrier()
	times := [2][]float64{}
	var wg sync.WaitGroup
	for r := range world {
		wg.Go(func() {
			runtime.LockOSThread()
			m := &member{rank: r, world: world}
			if err := m.open(&id); err != nil {
				b.Error(err)
				return
			}
			last, err := m.recorded(rings[r], iters, 8)
			if err != nil {
				b.Error(err)
				return
			}
			pool := last.Lanes[0].FlightEvents
			for i := range 2 * b.N {
				s := m.series(iters)
				recorded := (i + i/2) % 2
				if recorded == 1 {
					s.Flight = rings[r]
					s.Lanes[0].FlightEvents = pool
				}
				s.Steps[0].Count, s.Barrier, s.Parties = 2, start, world
				res := s.Run()
				if res.Status != csrc.SeriesOK {
					b.Errorf("the series ends with %+v", res)
					return
				}
				if r == 0 {
					times[recorded] = append(times[recorded], float64(res.DoneNS-res.StartNS)/iters)
				}
			}
			if err := m.close(); err != nil {
				b.Error(err)
			}
		})
	}
	wg.Wait()
	if b.Failed() {
		return
	}
	ratios := make([]float64, len(times[0]))
	for i := range ratios {
		ratios[i] = (times[1][i]/times[0][i] - 1) * 100
	}
	slices.Sort(ratios)
	half := int(0.98 * math.Sqrt(float64(len(ratios))))
	b.ReportMetric(ratios[len(ratios)/2], "%overhead")
	b.ReportMetric(ratios[max(len(ratios)/2-half, 0)], "%low")
	b.ReportMetric(ratios[min(len(ratios)/2+half, len(ratios)-1)], "%high")
	for i, name := range []string{"off-ns/op", "ring-ns/op"} {
		slices.Sort(times[i])
		b.ReportMetric(times[i][len(times[i])/2], name)
	}
	b.ReportMetric(0, "ns/op")
}
