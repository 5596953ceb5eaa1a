package hanglab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/hanglab/evidence"
	"github.com/commprobe/commprobe/hanglab/flight"
	"github.com/commprobe/commprobe/hanglab/pages"
)

func TestMain(m *testing.M) {
	if err := bench.UseEngine("host", "", "", 4); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func TestEveryScenarioHasAPage(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for _, s := range Scenarios() {
		if seen[s.Name] || s.Line == "" {
			t.Errorf("%s: twice, or without its line", s.Name)
		}
		seen[s.Name] = true
		if _, err := pages.Page(s.Name); err != nil {
			t.Error(err)
		}
	}
	for _, name := range pages.Names() {
		if !seen[name] {
			t.Errorf("a page of %s, which is no scenario", name)
		}
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"size": "size", "SKIP-STOP": "skip_stop", "exception": "panic", "sendrecv": "sendrecv_large"} {
		if s, err := Find(name); err != nil || s.Name != want {
			t.Errorf("Find(%q) = %q, %v", name, s.Name, err)
		}
	}
	if _, err := Find("sizes"); err == nil || !strings.Contains(err.Error(), "there are: control") {
		t.Errorf("an unknown name: %v", err)
	}
}

// TestMarkers: what mark writes, parseMarker reads, also behind a prefix; anything else is no marker.
func TestMarkers(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	r := &rank{id: 7, plan: &Plan{Scenario: "size"}, out: &b}
	values := []string{"", "plain", "two words", `a "quoted" one`, "x=y", "tab\tand\nline", "é…"}
	for _, v := range values {
		b.Reset()
		r.mark("thing", "a", 1, "v", v, "z", "end")
		m, ok := parseMarker("some prefix " + b.String())
		if !ok || m.Rank != 7 || m.Name != "thing" || m.At <= 0 {
			t.Fatalf("%q: %+v, %v", b.String(), m, ok)
		}
		if d := cmp.Diff(map[string]string{"a": "1", "v": v, "z": "end"}, m.Fields); d != "" {
			t.Errorf("%q: %s", b.String(), d)
		}
	}
	for _, line := range []string{
		"", "LAB_EVENT", "LAB_EVENT ", "LAB_EVENT rank=x event=a mono_ns=1", "LAB_EVENT rank=1 event=a", "LAB_EVENT rank=1 mono_ns=1",
		"LAB_EVENT rank=1 event=a mono_ns=1 loose", "a line of a program",
	} {
		if m, ok := parseMarker(line); ok {
			t.Errorf("%q is a marker: %+v", line, m)
		}
	}
}

func FuzzParseMarker(f *testing.F) {
	f.Add(`LAB_EVENT rank=3 case=size event=inject mono_ns=12 text="count 1 instead of 2" n=5`)
	f.Fuzz(func(t *testing.T, line string) {
		if m, ok := parseMarker(line); ok && m.Name == "" {
			t.Errorf("a marker without a name: %+v", m)
		}
	})
}

func TestDisagreement(t *testing.T) {
	t.Parallel()
	usual := fingerprint{Seq: 7, Op: "all_reduce", Count: 100, DType: "float", RedOp: "sum", Where: "a.go:1"}
	with := func(change func(*fingerprint)) fingerprint {
		f := usual
		change(&f)
		return f
	}
	other := with(func(f *fingerprint) { f.Count = 101; f.Where = "b.go:2" })
	for _, c := range []struct {
		name string
		all  map[int]fingerprint
		odd  []int
		text []string
	}{
		{"agree, from different lines", map[int]fingerprint{0: usual, 1: with(func(f *fingerprint) { f.Where = "c.go:9" })}, nil, nil},
		{"one of four", map[int]fingerprint{0: usual, 1: usual, 2: other, 3: usual}, []int{2},
			[]string{"rank 2 differs in count: all_reduce of 101 float", "at b.go:2", "ranks 0-1, 3 of 4: all_reduce of 100 float"}},
		{"a tie of two", map[int]fingerprint{0: usual, 1: other}, nil, []string{"these disagree, without a majority: rank 0: all_reduce of 100 float", "rank 1: all_reduce of 101"}},
		{"a tie of two and two", map[int]fingerprint{0: usual, 1: other, 2: usual, 3: other}, nil, []string{"without a majority: ranks 0, 2: "}},
		{"two odd ones in different ways", map[int]fingerprint{
			0: usual, 1: with(func(f *fingerprint) { f.Op = "broadcast"; f.Root = 2 }), 2: usual, 3: with(func(f *fingerprint) { f.DType = "bfloat16"; f.RedOp = "max"; f.Seq = 8 }), 4: usual,
		}, []int{1, 3}, []string{"rank 1 differs in op, root: broadcast", "rank 3 differs in sequence, dtype, reduction"}},
	} {
		odd, text := disagreement(c.all)
		if d := cmp.Diff(c.odd, odd); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
		if (text == "") != (c.text == nil) {
			t.Errorf("%s: %q", c.name, text)
		}
		for _, want := range c.text {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %q does not say %q", c.name, text, want)
			}
		}
	}
}

// TestOutcomeExits: each outcome has the status that the command documents.
func TestOutcomeExits(t *testing.T) {
	t.Parallel()
	for o, want := range map[Outcome]int{Finished: 0, WrongData: 6, Hung: 4, Died: 5, Named: 8, Refused: 8, Failed: 1, NotCaught: 1, Interrupted: 130} {
		if got := o.Exit(); got != want {
			t.Errorf("%s: exit status %d, want %d", o, got, want)
		}
	}
}

// recorded is a recorder on one device with a ring in a file.
func recorded(t *testing.T, entries int) (*recorder, *cuda.Thread, string) {
	t.Helper()
	thread, err := cuda.NewThread(0)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "ring")
	var r *recorder
	err = thread.Do(t.Context(), func() error {
		f, err := os.Create(path)
		if err != nil {
			return err
		}
		defer f.Close()
		r, err = newRecorder(f, entries, &Plan{World: 2}, 1)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		if err := errors.Join(thread.Do(ctx, r.close), thread.Close(ctx)); err != nil {
			t.Error(err)
		}
	})
	return r, thread, path
}

// TestRecorderStates follows operations behind a busy kernel: queued, started, complete, in the poll's words and in the dump's.
func TestRecorderStates(t *testing.T) {
	r, thread, path := recorded(t, 64)
	g := r.addGroup("0", "default_pg", []int{0, 1})
	states := func() string {
		d, _, err := readRing(path)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		for _, e := range d.Entries {
			b.WriteString(strings.TrimPrefix(e.ProfilingName, "nccl:") + " " + string(e.State) + "; ")
		}
		return b.String()
	}
	err := thread.Do(t.Context(), func() error {
		s, err := cuda.NewStream()
		if err != nil {
			return err
		}
		first, second, err := newBusyPair(s)
		if err != nil {
			return err
		}
		if err := first.Start(s, time.Minute); err != nil {
			return err
		}
		for _, c := range []struct {
			call call
			body func() error
		}{
			{call{fn: fnAllReduce, count: 10}, func() error { return second.Start(s, time.Minute) }},
			{call{fn: fnSend, count: 5, peer: 0}, func() error { return nil }},
		} {
			op, err := r.begin(g, c.call, 2, s, time.Second)
			if err := errors.Join(err, c.body(), r.end(g, op, s)); err != nil {
				return err
			}
		}
		fresh, changes, err := r.poll()
		if err != nil || len(fresh) != 2 || len(changes) != 0 || r.openCount() != 2 {
			t.Errorf("at first: %d new, %d changes, %d open, %v", len(fresh), len(changes), r.openCount(), err)
		}
		if got := states(); got != "all_reduce scheduled; send 1->0 scheduled; " {
			t.Errorf("behind the kernel: %s", got)
		}
		first.Stop()
		await(t, r, 1)
		if got := states(); got != "all_reduce started; send 1->0 scheduled; " {
			t.Errorf("the first runs: %s", got)
		}
		second.Stop()
		await(t, r, 3)
		if got := states(); got != "all_reduce completed; send 1->0 completed; " || r.openCount() != 0 {
			t.Errorf("all done: %s, %d open", got, r.openCount())
		}
		return errors.Join(s.Synchronize(), first.Close(), second.Close(), s.Destroy())
	})
	if err != nil {
		t.Fatal(err)
	}
}

func newBusyPair(cuda.Stream) (a, b *cuda.Busy, err error) {
	if a, err = cuda.NewBusy(); err != nil {
		return nil, nil, err
	}
	b, err = cuda.NewBusy()
	return a, b, err
}

// await polls until n changes were seen.
func await(t *testing.T, r *recorder, n int) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); n > 0; time.Sleep(time.Millisecond) {
		_, changes, err := r.poll()
		if err != nil || time.Now().After(end) {
			t.Fatalf("%d changes are missing: %v", n, err)
		}
		n -= len(changes)
	}
}

// TestRecorderSeesACallThatDoesNotReturn: NCCL may make connections inside the call and wait there for a peer that does not come.
func TestRecorderSeesACallThatDoesNotReturn(t *testing.T) {
	r, thread, path := recorded(t, 64)
	g := r.addGroup("0", "default_pg", []int{0, 1})
	err := thread.Do(t.Context(), func() error {
		s, err := cuda.NewStream()
		if err != nil {
			return err
		}
		// An earlier operation has used all events, so that each has been done once.
		for range openOps + 1 {
			op, err := r.begin(g, call{fn: fnAllReduce, count: 1}, 2, s, time.Second)
			if err := errors.Join(err, r.end(g, op, s), s.Synchronize()); err != nil {
				return err
			}
			await(t, r, 2)
		}
		op, err := r.begin(g, call{fn: fnBroadcast, count: 10}, 2, s, time.Second)
		if err != nil {
			return err
		}
		if err := s.Synchronize(); err != nil {
			return err
		}
		fresh, changes, err := r.poll()
		if err != nil || len(fresh) != 1 || fresh[0].call.fn != fnBroadcast || len(changes) != 1 || !changes[0].started {
			t.Errorf("within the call: new %+v, changes %+v, %v", fresh, changes, err)
		}
		if d, _, err := readRing(path); err != nil || d.Entries[len(d.Entries)-1].State == flight.Completed {
			t.Errorf("within the call the record is complete, %v", err)
		}
		if err := errors.Join(r.end(g, op, s), s.Synchronize()); err != nil {
			return err
		}
		await(t, r, 1)
		return s.Destroy()
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestRecorderBeyondItsEvents: more operations than events are recorded all the same, and complete with those after them.
func TestRecorderBeyondItsEvents(t *testing.T) {
	r, thread, path := recorded(t, 1024)
	g := r.addGroup("0", "default_pg", []int{0, 1})
	const n = openOps + 40
	err := thread.Do(t.Context(), func() error {
		s, err := cuda.NewStream()
		if err != nil {
			return err
		}
		for i := range n {
			op, err := r.begin(g, call{fn: fnAllReduce, count: i + 1}, 2, s, time.Second)
			if err := errors.Join(err, r.end(g, op, s)); err != nil {
				return err
			}
		}
		if err := s.Synchronize(); err != nil {
			return err
		}
		if _, _, err := r.poll(); err != nil {
			return err
		}
		// Events are free again: the next one has its own, and shows that those without are complete.
		op, err := r.begin(g, call{fn: fnAllReduce, count: 1}, 2, s, time.Second)
		if err := errors.Join(err, r.end(g, op, s), s.Synchronize()); err != nil {
			return err
		}
		if _, _, err := r.poll(); err != nil {
			return err
		}
		return s.Destroy()
	})
	if err != nil {
		t.Fatal(err)
	}
	d, _, err := readRing(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Entries) != n+1 || r.openCount() != 0 {
		t.Fatalf("%d entries, %d open", len(d.Entries), r.openCount())
	}
	for i, e := range d.Entries {
		if e.State != flight.Completed || e.CollectiveSeqID != int64(i+1) {
			t.Fatalf("entry %d: %s, sequence %d", i, e.State, e.CollectiveSeqID)
		}
	}
}

func TestRecorderDoesNotAllocate(t *testing.T) {
	r, thread, _ := recorded(t, 64)
	g := r.addGroup("0", "default_pg", []int{0, 1})
	err := thread.Do(t.Context(), func() error {
		s, err := cuda.NewStream()
		if err != nil {
			return err
		}
		one := func() {
			op, err := r.begin(g, call{fn: fnAllReduce, count: 1}, 2, s, time.Second)
			if err := errors.Join(err, r.end(g, op, s)); err != nil {
				t.Error(err)
			}
		}
		one()
		if n := testing.AllocsPerRun(50, one); n >= 1 {
			t.Errorf("%v allocations a call", n)
		}
		return errors.Join(s.Synchronize(), s.Destroy())
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestSocket asks a rank on its socket, as a user's tool would.
func TestSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "hl") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	r := &rank{id: 1, world: 2, plan: &Plan{World: 2, Rings: dir, Dir: dir, Entries: 64}, ctx: t.Context(), out: io.Discard}
	thread, err := cuda.NewThread(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := thread.Do(t.Context(), r.openRing); err != nil {
		t.Fatal(err)
	}
	r.recorder.addGroup("0", "default_pg", []int{0, 1})
	r.recorder.ring.SetPhase("step 5: saving a checkpoint")
	served := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() { served <- r.serve(ctx) }()
	ask := func(line string) string {
		t.Helper()
		var c net.Conn
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			if c, err = net.Dial("unix", socketPath(dir, 1)); err == nil {
				break
			}
			if time.Now().After(end) {
				t.Fatal(err)
			}
		}
		defer c.Close()
		if _, err := io.WriteString(c, line); err != nil {
			t.Fatal(err)
		}
		if u, ok := c.(*net.UnixConn); ok {
			_ = u.CloseWrite()
		}
		answer, _ := io.ReadAll(c) // what is refused is closed early
		return string(answer)
	}
	var status struct {
		Rank  int
		Phase string
	}
	if err := json.Unmarshal([]byte(ask("status\n")), &status); err != nil || status.Rank != 1 || status.Phase != "step 5: saving a checkpoint" {
		t.Errorf("status: %+v, %v", status, err)
	}
	if d, err := evidence.ReadFlight(strings.NewReader(ask("dump\n")), "rank_1"); err != nil || len(d.Groups) != 1 {
		t.Errorf("dump: %+v, %v", d, err)
	}
	if got := ask("what\n"); !strings.Contains(got, "use dump or status") {
		t.Errorf("an unknown request: %s", got)
	}
	if got := ask(strings.Repeat("x", 1000)); got != "" {
		t.Errorf("a long request: %.80s", got)
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	ctx = context.Background()
	if err := errors.Join(thread.Do(ctx, r.recorder.close), thread.Close(ctx)); err != nil {
		t.Error(err)
	}
}

// TestGuardEndsAStuckWatchdog: a watchdog that does not come round is noticed, the rank's record is written without it, and the process is told to end.
func TestGuardEndsAStuckWatchdog(t *testing.T) {
	dir := t.TempDir()
	var b lockedBuffer
	r := &rank{id: 0, world: 2, plan: &Plan{Scenario: "stuck", World: 2, Rings: dir, Dir: dir, Entries: 64, Heartbeat: 400 * time.Millisecond, Mode: 1}, ctx: t.Context(), out: &b}
	thread, err := cuda.NewThread(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := thread.Do(t.Context(), r.openRing); err != nil {
		t.Fatal(err)
	}
	r.recorder.addGroup("0", "default_pg", []int{0, 1})
	if r.watcher, err = newWatcher(r); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan struct{})
	go func() { defer close(done); r.watcher.guard(ctx) }() // and no loop beats
	select {
	case e := <-r.watcher.ended:
		if e.Clean || e.Reason.Kind != "watchdog" {
			t.Errorf("ended with %+v", e)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the monitor did nothing")
	}
	f, err := os.Open(filepath.Join(dir, "trace_0"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := evidence.ReadFlight(f, "trace_0"); err != nil {
		t.Error(err)
	}
	if !strings.Contains(b.String(), "kind=watchdog_hang") {
		t.Errorf("the log does not say it: %s", b.String())
	}
	stop()
	<-done
	ctx = context.Background()
	if err := errors.Join(thread.Do(ctx, r.recorder.close), thread.Close(ctx)); err != nil {
		t.Error(err)
	}
}

// lockedBuffer is a buffer that several goroutines write to.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestResultJSON: a scenario that did not take place is named in the JSON, with the reason.
func TestResultJSON(t *testing.T) {
	raw, err := json.Marshal([]Result{
		{Scenario: Scenario{Name: "netcut"}, Err: errors.New("needs the host engine")},
		{Scenario: Scenario{Name: "skip"}, Report: &Report{Scenario: "skip", Outcome: Hung}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []struct {
		Scenario, Error string
		Report          *Report
	}
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	if got[0].Scenario != "netcut" || got[0].Error != "needs the host engine" || got[0].Report != nil {
		t.Errorf("%+v", got[0])
	}
	if got[1].Scenario != "skip" || got[1].Error != "" || got[1].Report == nil || got[1].Report.Outcome != Hung {
		t.Errorf("%+v", got[1])
	}
}
