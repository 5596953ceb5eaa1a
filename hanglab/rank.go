package hanglab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/hanglab/watch"
	"github.com/commprobe/commprobe/internal/bootstrap"
	"github.com/commprobe/commprobe/nccl"
)

// RankConfig says which rank a process is and where the supervisor listens.
type RankConfig struct {
	Addr        string
	Token       bootstrap.Token
	Rank, World int
	Program     string // version, must equal the supervisor's
	JoinTimeout time.Duration
	Out         io.Writer        // markers and log lines
	DumpSignal  <-chan os.Signal // each asks for a dump; nil: none
	ParentGone  <-chan struct{}
}

// rank is one process of the laboratory.
type rank struct {
	id, world, device int
	plan              *Plan
	scenario          Scenario
	ctx               context.Context
	store             *bootstrap.Client
	recorder          *recorder
	watcher           *watcher
	checks            checker
	told              atomic.Bool // that this rank's dump is written

	mu  sync.Mutex
	out io.Writer
}

// mark writes a machine-readable line about something that happened now: name and value in turn.
func (r *rank) mark(event string, fields ...any) {
	var b strings.Builder
	fmt.Fprintf(&b, "LAB_EVENT rank=%d case=%s event=%s mono_ns=%d", r.id, r.plan.Scenario, event, int64(now()))
	for i := 0; i+1 < len(fields); i += 2 {
		v := fmt.Sprint(fields[i+1])
		if v == "" || strings.ContainsAny(v, " \"=\n\t") {
			v = fmt.Sprintf("%q", v)
		}
		fmt.Fprintf(&b, " %s=%s", fields[i], v)
	}
	b.WriteByte('\n')
	r.write(b.String())
}

// log writes a line for people.
func (r *rank) log(format string, args ...any) {
	r.write(time.Now().Format("2006-01-02 15:04:05.000 ") + fmt.Sprintf(format, args...) + "\n")
}

func (r *rank) write(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = io.WriteString(r.out, line) // a parent that is gone ends this process anyway
}

// inject says that this rank now misbehaves on purpose.
func (r *rank) inject(format string, args ...any) {
	r.mark("inject", "text", fmt.Sprintf(format, args...))
}

// phase is what the rank's thread does now, for whoever looks from outside.
func (r *rank) phase(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.recorder.ring.SetPhase(text)
	r.watcher.tell(watch.Phase{Text: text})
}

// RunRank joins the supervisor and is one rank of its plan. It returns nil when the program ran to its end, and otherwise an *ExitError or what
// went wrong: the caller ends the process with its status. A thread may still hang inside a library then.
func RunRank(ctx context.Context, cfg RankConfig) error {
	dial, cancel := context.WithTimeout(ctx, cfg.JoinTimeout)
	defer cancel()
	store, err := bootstrap.Dial(dial, cfg.Addr, bootstrap.Config{
		Token: cfg.Token, World: cfg.World, Hello: bootstrap.Hello{Ranks: []int{cfg.Rank}, Program: cfg.Program},
	})
	if err != nil {
		return fmt.Errorf("rank %d: join: %w", cfg.Rank, err)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r := &rank{id: cfg.Rank, world: cfg.World, device: cfg.Rank, store: store, ctx: ctx, out: cfg.Out}
	if err := r.prepare(dial); err != nil {
		return errors.Join(fmt.Errorf("rank %d: %w", cfg.Rank, err), store.Close())
	}
	err = r.live(cfg, stop)
	var e *ExitError
	if errors.As(err, &e) && e.Abrupt {
		return err
	}
	return errors.Join(err, store.Close())
}

// prepare gets the plan, loads the engine, and makes ring and watchdog.
func (r *rank) prepare(ctx context.Context) error {
	raw, err := r.store.Get(ctx, keyPlan)
	if err != nil {
		return fmt.Errorf("get the plan: %w", err)
	}
	plan, err := decode[Plan](raw)
	if err != nil {
		return err
	}
	r.plan = &plan
	if r.scenario, err = Find(plan.Scenario); err != nil {
		return err
	}
	if r.scenario.SameGPU && r.odd() {
		r.device = (r.id + r.world - 1) % r.world
	}
	if err := bench.UseEngine(plan.Engine, plan.CUDARTPath, plan.NCCLPath, plan.World); err != nil {
		return err
	}
	have, err := cuda.DeviceCount()
	if err != nil {
		return err
	}
	if r.device >= have {
		return fmt.Errorf("needs device %d, but this process sees %d (CUDA_VISIBLE_DEVICES=%q)", r.device, have, os.Getenv("CUDA_VISIBLE_DEVICES"))
	}
	r.watcher, err = newWatcher(r)
	return err
}

func (r *rank) odd() bool { return r.id == r.plan.Rank }

// live runs the program on one thread and the watchdog on another until one of them ends, or somebody from outside says so.
func (r *rank) live(cfg RankConfig, stop context.CancelCauseFunc) error {
	program, err := cuda.NewThread(r.device)
	if err != nil {
		return err
	}
	if err := program.Do(r.ctx, r.openRing); err != nil {
		return err
	}
	if err := r.report(); err != nil {
		return err
	}
	dog, err := cuda.NewThread(r.device)
	if err != nil {
		return err
	}
	barked := make(chan error, 1)
	watching, quiet := context.WithCancel(r.ctx)
	defer quiet()
	go func() { barked <- dog.Do(r.ctx, func() error { return r.watcher.loop(watching) }) }()
	go r.watcher.hear(r.ctx)
	go r.watcher.guard(r.ctx)
	go r.answer(cfg.DumpSignal)
	go func() {
		if err := r.serve(r.ctx); err != nil {
			r.log("%v", err)
		}
	}()
	finished := make(chan error, 1)
	go func() { finished <- program.Do(r.ctx, (&lab{rank: r}).run) }()
	select {
	case err = <-finished:
		err = r.finish(err)
	case e := <-r.watcher.ended:
		r.mark("exit", "code", e.Code, "clean", e.Clean)
		return &ExitError{Code: e.Code, Text: e.Reason.Text}
	case err = <-barked:
		err = errors.Join(errors.New("the watchdog ended"), err)
	case <-r.store.Done():
		err = r.store.Err()
	case <-cfg.ParentGone:
		err = errors.New("the supervisor is gone")
	case <-r.ctx.Done():
		err = context.Cause(r.ctx)
	}
	if err != nil {
		stop(err)
		return err
	}
	quiet() // the watchdog's thread is done with the events before they are destroyed
	if err := <-barked; err != nil {
		return err
	}
	err = program.Do(r.ctx, r.recorder.close)
	if left := cuda.Live(); err == nil && (len(left) > 0 || nccl.Live() > 0) {
		err = fmt.Errorf("leaked handles: %v, communicators: %d", left, nccl.Live())
	}
	r.mark("exit_ok")
	return err
}

// openRing makes the ring in its file. Runs on the rank's thread.
func (r *rank) openRing() error {
	f, err := os.OpenFile(ringPath(r.plan.Rings, r.id), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("flight ring: %w", err)
	}
	defer f.Close()
	r.recorder, err = newRecorder(f, r.plan.Entries, r.plan, r.id)
	return err
}

func ringPath(dir string, rank int) string { return filepath.Join(dir, fmt.Sprintf("ring_%d", rank)) }

// report tells the supervisor how this rank's clock stands to its own.
func (r *rank) report() error {
	ctx, cancel := context.WithTimeout(r.ctx, r.plan.Join)
	defer cancel()
	offset, rtt, err := r.store.ClockOffset(ctx)
	if err != nil {
		return err
	}
	wall := time.Now().UnixNano() - int64(now())
	p, err := cuda.GetProperties(r.device)
	if err != nil {
		return err
	}
	host, _ := os.Hostname()
	msg := clockReport{OffsetNs: wall + int64(offset), RTTNs: int64(rtt), PID: os.Getpid(), Host: host, Library: libraryVersion(), Device: p.Name}
	if err := r.store.Contribute(ctx, gatherClock, map[int][]byte{r.id: encode(msg)}); err != nil {
		return err
	}
	return r.store.Barrier(ctx, "hang/start", []int{r.id}) // so that deadlines do not count how long processes take to start
}

// finish is what follows when the program has returned.
func (r *rank) finish(err error) error {
	var e *ExitError
	if errors.As(err, &e) && e.Abrupt {
		return err
	}
	r.watcher.tell(watch.Finished{})
	if n := r.checks.calls; n > 0 {
		r.mark("check_cost", "calls", n, "each_ns", r.checks.spent.Nanoseconds()/int64(n))
	}
	reason := "finished"
	if err != nil {
		reason = "failed"
		r.mark("failed", "error", err)
		r.log("%v", err)
	}
	dumpErr := r.dump(reason)
	if dumpErr == nil && !r.told.Swap(true) { // whoever asks for dumps later need not wait for this rank's
		ctx, cancel := context.WithTimeout(r.ctx, storeWait)
		defer cancel()
		dumpErr = r.store.Contribute(ctx, gatherDumps, map[int][]byte{r.id: nil})
	}
	if dumpErr != nil {
		r.log("dump: %v", dumpErr)
	}
	if err == nil || errors.As(err, &e) {
		return err
	}
	if errors.Is(err, errAborted) || errors.Is(err, nccl.ErrGone) {
		select { // the watchdog's reason is the better one
		case x := <-r.watcher.ended:
			r.mark("exit", "code", x.Code, "clean", x.Clean)
			return &ExitError{Code: x.Code, Text: x.Reason.Text}
		case <-time.After(abortWait):
		}
		return &ExitError{Code: watch.ExitTimeout, Text: err.Error()}
	}
	return &ExitError{Code: bench.ExitInternal, Text: err.Error()}
}

// answer dumps on each signal; the job goes on.
func (r *rank) answer(signals <-chan os.Signal) {
	for {
		select {
		case s, ok := <-signals:
			if !ok {
				return
			}
			if err := r.dump("signal"); err != nil {
				r.log("dump on %v: %v", s, err)
			}
		case <-r.ctx.Done():
			return
		}
	}
}
