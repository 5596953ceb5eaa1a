package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/internal/bootstrap"
	"github.com/commprobe/commprobe/nccl"
)

// testEngine is the engine to measure with and how many ranks of those wanted it has room for.
func testEngine(t testing.TB, want int) (string, int) {
	t.Helper()
	if os.Getenv("COMMPROBE_TEST_ENGINE") != "native" {
		return "host", want
	}
	err := UseEngine("native", "", "", 0)
	n := 0
	if err == nil {
		n, err = cuda.DeviceCount()
	}
	if err != nil {
		if os.Getenv("REQUIRE_GPU") == "1" {
			t.Fatalf("REQUIRE_GPU=1: %v", err)
		}
		t.Skipf("no GPU: %v", err)
	}
	return "native", min(n, want, 2)
}

// couple is a coordinator and one worker with all ranks, both in this process.
type couple struct {
	sweep  *Sweep
	worker WorkerConfig
	ctx    context.Context // of the worker
	result *result.Run
	err    error // of the worker
}

func newCouple(t testing.TB, place Placement, want int) *couple {
	t.Helper()
	engine, ranks := testEngine(t, want)
	token, err := bootstrap.NewToken()
	if err != nil {
		t.Fatal(err)
	}
	// The address has to be known before the store listens, so the store's log is of no use: take a free port and let both go there.
	p := goodPlan()
	p.Engine, p.Placement, p.World, p.ItersExact = engine, place, ranks, true
	w := &couple{
		ctx:    context.Background(),
		sweep:  &Sweep{Plan: p, Runs: 1, Listen: freeAddr(t), Token: token, Program: result.Program{Name: "test", Version: "1"}},
		worker: WorkerConfig{Token: token, World: ranks, Program: "1", JoinTimeout: 30 * time.Second},
	}
	for r := range ranks {
		w.worker.Ranks, w.worker.Devices = append(w.worker.Ranks, r), append(w.worker.Devices, r)
	}
	return w
}

func freeAddr(t testing.TB) string {
	t.Helper()
	token, err := bootstrap.NewToken()
	if err != nil {
		t.Fatal(err)
	}
	s, err := bootstrap.Listen(ListenAddr, bootstrap.Config{World: 1, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	return s.Addr().String()
}

// run lets both go to their ends.
func (w *couple) run(t testing.TB, ctx context.Context) {
	t.Helper()
	w.worker.Addr = w.sweep.Listen
	done := make(chan error, 1)
	go func() { done <- RunWorker(w.ctx, w.worker) }()
	w.result = w.sweep.Run(ctx)
	select {
	case w.err = <-done:
	case <-time.After(time.Minute):
		t.Fatal("the worker does not end")
	}
}

func (w *couple) outcome(t *testing.T, status string, exit int) {
	t.Helper()
	if o := w.result.Outcome; o.Status != status || o.Exit != exit {
		t.Errorf("outcome %+v, want %q exit %d; worker: %v", o, status, exit, w.err)
	}
}

func TestRunInOneProcess(t *testing.T) {
	for _, place := range []Placement{PlaceGroup, PlaceThread} {
		t.Run(string(place), func(t *testing.T) {
			w := newCouple(t, place, 3)
			w.sweep.Plan.Types, w.sweep.Plan.Ops = []string{"float", "bfloat16"}, []string{"sum", "avg"}
			started, rows, stepsSeen := 0, 0, 0
			w.sweep.OnStart = func(run *result.Run) {
				started++
				if len(run.Ranks) != w.sweep.Plan.World || len(run.Rows) != 0 {
					t.Errorf("at the start %d ranks, %d rows", len(run.Ranks), len(run.Rows))
				}
			}
			w.sweep.OnStep = func(done, total int, _ string, _ result.Bytes) {
				if done != stepsSeen || total != 16 {
					t.Errorf("step %d of %d, want %d of 16", done, total, stepsSeen)
				}
				stepsSeen++
			}
			w.sweep.OnRow = func(result.Row) { rows++ }
			w.run(t, t.Context())
			w.outcome(t, "ok", ExitOK)
			if w.err != nil {
				t.Errorf("worker: %v", w.err)
			}
			if started != 1 || rows != 16 || stepsSeen != 16 || len(w.result.Rows) != 16 {
				t.Errorf("%d starts, %d rows told, %d steps, %d rows", started, rows, stepsSeen, len(w.result.Rows))
			}
			for _, h := range allHalves(w.result.Rows) {
				if h.Wrong == nil || *h.Wrong != 0 || h.TimeUS <= 0 || h.Iters != 3 || len(h.Ranks) != w.sweep.Plan.World || h.Iter.N < 3 {
					t.Errorf("wrong %v, %g µs, %d iterations, %d with events, %d ranks", h.Wrong, h.TimeUS, h.Iters, h.Iter.N, len(h.Ranks))
				}
			}
			if left := cuda.Live(); len(left) != 0 || nccl.Live() != 0 {
				t.Errorf("left behind: %v, communicators %d", left, nccl.Live())
			}
		})
	}
}

func TestInjectedFault(t *testing.T) {
	w := newCouple(t, PlaceGroup, 3)
	last := w.sweep.Plan.World - 1
	w.sweep.Plan.Inject = Inject{Element: true}
	w.run(t, t.Context())
	w.outcome(t, "wrong data", ExitWrongData)
	if r := w.result.Outcome.Rank; r == nil || *r != last {
		t.Errorf("outcome %+v, want rank %d", w.result.Outcome, last)
	}
	for _, r := range w.result.Rows {
		for _, h := range []*result.Half{r.OutOfPlace, r.InPlace} {
			if *h.Wrong != 1 || len(h.Faults) != 1 || h.Faults[0].Rank != last || h.Faults[0].First != int64(r.Count)/2 || h.Faults[0].Last != int64(r.Count)/2 {
				t.Errorf("%d bytes: wrong %d, %+v", r.Bytes, *h.Wrong, h.Faults)
			}
		}
	}
}

// TestFaultInTimedOperations: what the timed operations left is compared for every collective, in place too where that can be known.
func TestFaultInTimedOperations(t *testing.T) {
	for _, graph := range []int{0, 2} {
		t.Run(fmt.Sprintf("graph %d", graph), func(t *testing.T) {
			w := newCouple(t, PlaceThread, 4)
			p := &w.sweep.Plan
			p.Collectives, p.MinBytes, p.MaxBytes, p.Iters = CollectiveNames(), 1<<10, 1<<12, 3
			p.StepFactor, p.Modes.Graph, p.Inject = 4, graph, Inject{Timed: true}
			w.run(t, t.Context())
			w.outcome(t, "wrong data", ExitWrongData)
			unknown := 0
			for _, row := range w.result.Rows {
				for name, h := range map[string]*result.Half{"out-of-place": row.OutOfPlace, "in-place": row.InPlace} {
					switch {
					case h.Unchecked != "":
						unknown++
						if len(h.Faults) > 0 || name == "out-of-place" {
							t.Errorf("%s %d bytes %s: not checked (%s), faults %+v", row.Collective, row.Bytes, name, h.Unchecked, h.Faults)
						}
					case len(h.Faults) != 1 || h.Faults[0].Wrong != 1 || !strings.HasPrefix(h.Faults[0].Analysis, "timed operations: "):
						t.Errorf("%s %d bytes %s: %+v", row.Collective, row.Bytes, name, h.Faults)
					}
				}
			}
			// Without a graph there is room for all operations at 1 KiB, not at 4 KiB; launches of a graph repeat them in the same places.
			if want := map[int]int{0: 3, 2: 6}[graph]; unknown != want {
				t.Errorf("%d in-place halves cannot be checked, want %d: those of the three reductions", unknown, want)
			}
		})
	}
}

func TestStopKeepsRows(t *testing.T) {
	w := newCouple(t, PlaceGroup, 2)
	stop := make(chan struct{})
	w.sweep.Stop = stop
	w.sweep.OnRow = func(r result.Row) {
		if r.Bytes == 16 {
			close(stop)
		}
	}
	w.run(t, t.Context())
	w.outcome(t, "interrupted", ExitInterrupted)
	if len(w.result.Rows) != 2 || w.err != nil {
		t.Errorf("%d rows, worker: %v", len(w.result.Rows), w.err)
	}
}

// TestStopBeforeTheFirstRow: a run until stopped that is stopped at once has come to the end that was asked for, with nothing measured.
func TestStopBeforeTheFirstRow(t *testing.T) {
	for cycles, exit := range map[int]int{0: ExitOK, 1: ExitInterrupted} {
		w := newCouple(t, PlaceThread, 2)
		stop := make(chan struct{})
		close(stop)
		w.sweep.Stop, w.sweep.Plan.Modes.Cycles = stop, cycles
		w.run(t, t.Context())
		if o := w.result.Outcome; o.Exit != exit || len(w.result.Rows) != 0 {
			t.Errorf("%d cycles: %+v, %d rows", cycles, o, len(w.result.Rows))
		}
	}
}

func TestCancelEndsAtOnce(t *testing.T) {
	w := newCouple(t, PlaceGroup, 2)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w.sweep.Plan.MinBytes, w.sweep.Plan.MaxBytes, w.sweep.Plan.StepFactor, w.sweep.Plan.StepBytes = 4096, 4096*5000, 0, 4096
	w.sweep.OnRow = func(result.Row) { cancel() }
	at := time.Now()
	w.run(t, ctx)
	w.outcome(t, "interrupted", ExitInterrupted)
	if len(w.result.Rows) == 0 || len(w.result.Rows) > 100 {
		t.Errorf("%d rows", len(w.result.Rows))
	}
	if w.err == nil {
		t.Error("the worker ended as if all were well")
	}
	if d := time.Since(at); d > 30*time.Second {
		t.Errorf("took %v", d)
	}
}

// Ranks that do not come are named, and so are those that are there.
func TestMissingRank(t *testing.T) {
	w := newCouple(t, PlaceGroup, 2)
	ranks := w.sweep.Plan.World
	w.sweep.Plan.World++
	w.worker.World++
	w.sweep.Plan.Timeout = 500 * time.Millisecond
	w.run(t, t.Context())
	w.outcome(t, "time-out", ExitTimeout)
	o := w.result.Outcome
	if o.Rank == nil || *o.Rank != ranks || o.Phase != "join" || !strings.Contains(o.Message, fmt.Sprintf("rank %d of %d did not join", ranks, ranks+1)) {
		t.Errorf("outcome %+v", o)
	}
	var aborted *bootstrap.AbortedError
	if !errors.As(w.err, &aborted) {
		t.Errorf("worker: %v, want the abort", w.err)
	}
}

// Two jobs' processes, or two versions', do not join one another.
func TestStrangersAreRefused(t *testing.T) {
	for name, change := range map[string]func(*couple){
		"token":   func(w *couple) { w.worker.Token, _ = bootstrap.NewToken() },
		"world":   func(w *couple) { w.worker.World++ },
		"version": func(w *couple) { w.worker.Program = "2" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newCouple(t, PlaceGroup, 1)
			w.sweep.Plan.Timeout = time.Second
			var log []string
			w.sweep.Log = func(format string, args ...any) { log = append(log, fmt.Sprintf(format, args...)) }
			change(w)
			w.run(t, t.Context())
			w.outcome(t, "time-out", ExitTimeout)
			var refused *bootstrap.RefusedError
			if !errors.Is(w.err, bootstrap.ErrWrongToken) && !errors.As(w.err, &refused) {
				t.Errorf("worker: %v", w.err)
			}
			if len(log) == 0 {
				t.Error("no line in the log")
			}
		})
	}
}

// A worker that cannot do what is asked for says so, and the run has its exit status.
func TestWorkerFailures(t *testing.T) {
	t.Run("library", func(t *testing.T) {
		w := newCouple(t, PlaceGroup, 1)
		w.sweep.Plan.Engine, w.sweep.Plan.CUDARTPath = "native", "/nowhere/libcudart.so"
		w.run(t, t.Context())
		w.outcome(t, "no device", ExitNoDevice)
		if w.err == nil || w.result.Outcome.Phase != "finding the devices" {
			t.Errorf("worker: %v, outcome %+v", w.err, w.result.Outcome)
		}
	})
	t.Run("memory", func(t *testing.T) {
		w := newCouple(t, PlaceGroup, 1)
		w.sweep.Plan.MinBytes, w.sweep.Plan.MaxBytes = 1<<50, 1<<50
		w.run(t, t.Context())
		w.outcome(t, "usage", ExitUsage)
		if !strings.Contains(w.result.Outcome.Message, "not enough memory") {
			t.Errorf("outcome %+v", w.result.Outcome)
		}
	})
}

// A worker that has to leave, because its launcher is gone or ends it, does not leave the others waiting for their time-outs.
func TestWorkerLeaves(t *testing.T) {
	for _, how := range []string{"parent gone", "cancelled"} {
		t.Run(how, func(t *testing.T) {
			w := newCouple(t, PlaceGroup, 1)
			gone := make(chan struct{})
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			w.worker.ParentGone, w.ctx = gone, ctx
			w.sweep.Plan.MaxBytes, w.sweep.Plan.StepFactor, w.sweep.Plan.StepBytes = 8*5000, 0, 8
			left := time.Time{}
			w.sweep.OnRow = func(result.Row) {
				switch {
				case !left.IsZero():
				case how == "cancelled":
					left = time.Now()
					cancel()
				default:
					left = time.Now()
					close(gone)
				}
			}
			limit, stop := context.WithTimeout(t.Context(), 20*time.Second)
			defer stop()
			w.run(t, limit)
			if w.err == nil || how == "parent gone" && !strings.Contains(w.err.Error(), "launching process is gone") {
				t.Errorf("worker: %v", w.err)
			}
			if w.result.Outcome.Exit != ExitDied || w.result.Outcome.Rank == nil || len(w.result.Rows) == 0 {
				t.Errorf("%d rows, outcome %+v, want that rank 0 died", len(w.result.Rows), w.result.Outcome)
			}
			if d := time.Since(left); d > 8*time.Second {
				t.Errorf("noticed after %v", d)
			}
		})
	}
}

func TestListenTwice(t *testing.T) {
	w := newCouple(t, PlaceGroup, 1)
	taken, err := bootstrap.Listen(w.sweep.Listen, bootstrap.Config{World: 1, Token: w.sweep.Token})
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	w.result = w.sweep.Run(t.Context())
	w.outcome(t, "failed", ExitInternal)
	if !strings.Contains(w.result.Outcome.Message, "in use") || w.result.Outcome.Phase != "start" {
		t.Errorf("outcome %+v", w.result.Outcome)
	}
}

// The first rank that gives up at the barrier reports a time-out; those that wait there with it are not silent, and do not end as if the job
// were over.
func TestBrokenBarrier(t *testing.T) {
	engine, _ := testEngine(t, 1)
	if err := UseEngine(engine, "", "", 1); err != nil {
		t.Fatal(err)
	}
	barrier := csrc.NewBarrier()
	var all []*Failure
	for _, rank := range []int{1, 0} {
		d := &driver{lanes: []*lane{{rank: rank}}, timeout: 50 * time.Millisecond}
		_, err := d.run(&csrc.Series{Barrier: barrier, Parties: 3, Timeout: d.timeout}, "a size")
		var f *Failure
		if !errors.As(err, &f) || f.Rank != rank || f.Phase != "a size" {
			t.Fatalf("rank %d: %v", rank, err)
		}
		all = append(all, f)
	}
	if all[0].Kind != FailTimeout || all[1].Kind != FailRemote || !strings.Contains(all[1].Text, "gave up at the barrier") {
		t.Errorf("%+v and %+v", all[0], all[1])
	}
	if v := verdict(all, 3, ""); v.Kind != FailTimeout || v.Rank != 2 || !strings.Contains(v.Text, "no word from rank 2; reported by rank 1") {
		t.Errorf("%+v", v)
	}
}
