package bench

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/internal/bootstrap"
	"github.com/commprobe/commprobe/internal/launch"
)

// Workers are the running processes of a local launch, such as *launch.Group.
type Workers interface {
	Exits() <-chan launch.Exit
	Done() <-chan struct{} // closed when all have ended
	Shutdown(grace time.Duration) error
}

// Sweep drives a plan. The zero value of the hooks is silence.
type Sweep struct {
	Plan    Plan
	Runs    int      // fresh sets of processes, at least 1, for each variant
	Algos   []string // NCCL_ALGO values, each with each of Protos; nil: NCCL's own choice
	Protos  []string
	Program result.Program
	Command []string
	Listen  string // address for the workers to come to, "127.0.0.1:0"
	Token   bootstrap.Token

	// Start launches the workers of one run, told where to join and what to add to their environment. nil: somebody else starts them, once.
	Start func(ctx context.Context, addr string, env []string) (Workers, error)

	OnStart func(run *result.Run)                              // facts are complete, measuring begins; once
	OnStep  func(done, total int, what string, b result.Bytes) // before each size
	OnRow   func(row result.Row)
	Log     func(format string, args ...any) // diagnostics, e.g. refused connections
	Stop    <-chan struct{}                  // closed: end after the present size, keep the rows

	bestRate map[string]float64 // the best issue rate seen on each host, over all runs
	history  history
}

// waitAsLongAsTheRun is the store's own limit for waits without a deadline: those of watchers, and for the next step. What they wait for
// comes when the run ends at the latest, and every phase of a run has its own deadline.
const waitAsLongAsTheRun = 30 * 24 * time.Hour

// errInterrupted ends a sweep that was asked to stop.
var errInterrupted = errors.New("interrupted")

// Run measures. It always returns a result with all rows measured so far and how it ended; it honours ctx by killing the workers.
func (s *Sweep) Run(ctx context.Context) *result.Run {
	out := &result.Run{
		Schema: result.Schema, Program: s.Program, Command: s.Command, Started: time.Now(), Config: s.config(&s.Plan),
		Environment: result.Environment{Env: ncclEnv()},
	}
	if s.Log == nil {
		s.Log = func(string, ...any) {}
	}
	s.bestRate = make(map[string]float64)
	err := s.variants(ctx, out)
	out.Ended = time.Now()
	out.Modes = findModes(out.Rows, s.Runs)
	out.Consistency = consistency(out.Rows)
	out.Cycles = s.history.summary()
	out.Outcome = outcome(out, err)
	return out
}

// variants runs all fresh sets of processes. With several variants each collective has processes of its own, and one that NCCL refuses is
// left out with its reason: few algorithms exist for all collectives.
func (s *Sweep) variants(ctx context.Context, out *result.Run) error {
	all := Variants(s.Algos, s.Protos)
	sets := [][]string{s.Plan.Collectives}
	if len(all) > 1 {
		sets = nil
		for _, c := range s.Plan.Collectives {
			sets = append(sets, []string{c})
		}
	}
	number := 0
	for _, names := range sets {
		for _, v := range all {
			for r := 1; r <= s.Runs; r++ {
				number++
				err := s.once(ctx, out, number, r, v, names)
				var f *Failure
				if len(all) > 1 && errors.As(err, &f) && f.Kind == FailInternal {
					out.Skipped = append(out.Skipped, result.Skipped{What: v.String() + ": " + strings.Join(names, ", "), Why: refusal(f.Text)})
					break
				}
				if err != nil {
					return err
				}
			}
		}
	}
	if n := len(out.Skipped); len(all) > 1 && len(out.Rows) == 0 && n > 0 {
		return &Failure{Kind: FailUsage, Rank: -1, Text: "no --algo and --proto could be measured: " + out.Skipped[n-1].Why}
	}
	return nil
}

// refusal is the part of an error that says that NCCL has no such algorithm or protocol; the whole text where it says something else.
func refusal(text string) string {
	if i := strings.Index(text, "no algorithm/protocol available"); i >= 0 {
		return "NCCL: " + text[i:]
	}
	return text
}

// config is what the result says of the sweep: the plan with the limits that its ranks set, for all collectives.
func (s *Sweep) config(p *Plan) result.Config {
	c := p.config(s.Runs)
	c.Collectives, c.Algos, c.Protos = s.Plan.Collectives, s.Algos, s.Protos
	return c
}

// once is one set of processes going through the plan: the number-th of all, the r-th of its variant.
func (s *Sweep) once(ctx context.Context, out *result.Run, number, r int, v Variant, collectives []string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	o := &oneRun{s: s, out: out, number: number, run: r, variant: v, cancel: cancel, fails: make(chan *Failure, 4*s.Plan.World+16), job: randomName(), settled: make(chan struct{}), began: time.Now(), rings: make(map[int]*os.File)}
	o.plan = s.Plan
	o.plan.Collectives = collectives
	var err error
	o.server, err = bootstrap.Listen(s.Listen, bootstrap.Config{
		World: s.Plan.World, Token: s.Token, Hello: bootstrap.Hello{Program: s.Program.Version}, Log: s.Log, OnLost: o.onLost,
		MaxFrameBytes: 256 << 20, WaitTimeout: waitAsLongAsTheRun,
	})
	if err != nil {
		return &Failure{Kind: FailInternal, Rank: -1, Phase: "start", Text: err.Error()}
	}
	defer o.server.Close()
	defer func() {
		for _, f := range o.rings {
			f.Close()
		}
		for r := range s.Plan.World {
			_ = os.Remove(barrierPath(o.job, r)) // only there when a start was cut off
			_ = os.Remove(recordPath(o.job, r))
		}
	}()
	if s.Start != nil {
		// Not ended with ctx: what the ranks are at then is read before finish ends them.
		if o.workers, err = s.Start(context.WithoutCancel(ctx), o.server.Addr().String(), v.Env()); err != nil {
			return &Failure{Kind: FailInternal, Rank: -1, Phase: "start", Text: err.Error()}
		}
		go o.watchExits()
	}
	go o.judge(ctx)
	go func() {
		if _, err := o.server.Get(ctx, keyStop); err == nil {
			o.asked.Store(true)
		}
	}()
	err = o.drive(ctx)
	var f *Failure
	if cause := context.Cause(ctx); errors.As(cause, &f) {
		err = f
	} else if err != nil && ctx.Err() != nil && errors.Is(cause, context.Canceled) {
		err = errInterrupted
	}
	last := o.lastRecords(ctx, err)
	o.finish(err)
	return o.dump(err, last)
}

func randomName() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// oneRun is the state of one set of processes.
type oneRun struct {
	s       *Sweep
	out     *result.Run
	number  int // among all sets of processes
	run     int // among those of its variant
	variant Variant
	job     string
	server  *bootstrap.Server
	workers Workers
	cancel  context.CancelCauseFunc
	fails   chan *Failure
	settled chan struct{} // closed by finish: later exits are of our own making

	reports []deviceReport // by rank
	ready   []readyReport  // by rank
	phase   phase          // what the ranks are doing, for failures that come from outside
	began   time.Time
	rings   map[int]*os.File // of local workers, by a driver's lowest rank; see record.go
	steps   atomic.Bool      // operations have been asked for
	plan    Plan
	asked   atomic.Bool // a worker passes on a wish to stop
}

// phase is text that several goroutines see.
type phase struct{ text atomic.Value }

func (p *phase) set(s string) { p.text.Store(s) }

func (p *phase) get() string {
	s, _ := p.text.Load().(string) // nothing was stored yet: ""
	return s
}

// watchExits turns the end of a worker process that was not asked for into a failure.
func (o *oneRun) watchExits() {
	for e := range o.workers.Exits() {
		select {
		case <-o.settled:
			continue
		default:
		}
		text := e.String()
		if e.LastStderr != "" && e.Signal == 0 {
			text += "; its last words: " + e.LastStderr
		}
		if e.OK() {
			continue // an orderly end comes after the goodbye; one before it shows as a rank that does not answer
		}
		o.fails <- &Failure{Kind: FailDied, Rank: e.Ranks[0], Host: localName(), Text: text}
	}
}

func localName() string {
	name, err := os.Hostname()
	if err != nil {
		return "this host"
	}
	return name
}

func (o *oneRun) onLost(h bootstrap.Hello, err error) {
	select {
	case <-o.settled:
		return
	default:
	}
	f := &Failure{Kind: FailDied, Rank: h.Ranks[0], Host: h.Host, Text: fmt.Sprintf("rank %s (pid %d): connection lost: %v", bootstrap.FormatRanks(h.Ranks), h.PID, err)}
	if o.workers != nil {
		// The process's end is told as well and says how. Only one that lives on without its connection is told here.
		time.AfterFunc(settleTime/2, func() { o.fails <- f })
		return
	}
	o.fails <- f
}

// settleTime is how long other ranks' failures are waited for once one is known: the first to be heard is often only a consequence.
const settleTime = time.Second

// judge waits for the first failure, hears the others for a moment, and ends the run with the gravest one.
func (o *oneRun) judge(ctx context.Context) {
	for r := range o.s.Plan.World {
		go o.watchAlarm(ctx, r)
	}
	var all []*Failure
	select {
	case f := <-o.fails:
		all = append(all, f)
	case <-ctx.Done():
		return
	}
	settled := time.After(settleTime)
	for all[len(all)-1].Kind != FailDied { // nothing is graver
		select {
		case f := <-o.fails:
			all = append(all, f)
			continue
		case <-settled:
		case <-ctx.Done():
			return
		}
		break
	}
	o.cancel(o.verdict(all))
}

// verdict is the failure that ends this run, with the host of the rank that it names.
func (o *oneRun) verdict(all []*Failure) *Failure {
	f := verdict(all, o.s.Plan.World, o.phase.get())
	if f.Host == "" && f.Rank >= 0 {
		for _, h := range o.server.Members() {
			if slices.Contains(h.Ranks, f.Rank) {
				f.Host = h.Host
			}
		}
	}
	return f
}

func (o *oneRun) watchAlarm(ctx context.Context, rank int) {
	raw, err := o.server.Get(ctx, keyAlarm(rank))
	if err != nil {
		return
	}
	f, err := decode[*Failure](raw)
	if err != nil {
		f = &Failure{Kind: FailInternal, Rank: rank, Text: err.Error()}
	}
	o.fails <- f
}

// verdict picks the gravest failure. A time-out is blamed on the ranks that say nothing, where there are some: those that report it only
// waited for them.
func verdict(all []*Failure, world int, phase string) *Failure {
	best := *all[0]
	for _, f := range all[1:] {
		if f.severity() < best.severity() {
			best = *f
		}
	}
	if best.Phase == "" {
		best.Phase = phase
	}
	if best.Kind != FailTimeout || world == 1 {
		return &best
	}
	heard := make(map[int]bool)
	var waiting, silent []int
	for _, f := range all {
		for _, r := range append([]int{f.Rank}, f.Process...) {
			if !heard[r] && f.Kind == FailTimeout {
				waiting = append(waiting, r)
			}
			heard[r] = true
		}
	}
	for r := range world {
		if !heard[r] {
			silent = append(silent, r)
		}
	}
	switch {
	case len(silent) > 0:
		best.Text = fmt.Sprintf("no word from %s; reported by %s: %s", bootstrap.NameRanks(silent), bootstrap.NameRanks(waiting), best.Text)
		best.Rank, best.Host = silent[0], ""
		if len(silent) > 1 {
			best.Rank = -1
		}
	case len(waiting) > 1:
		best.Text = fmt.Sprintf("%s; reported by %s", best.Text, bootstrap.NameRanks(waiting))
	}
	return &best
}

// backstop bounds a wait whose real limits lie in the workers, so that nothing waits for ever even if a worker's clock stands still.
func (o *oneRun) backstop(ctx context.Context, phases int) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, time.Duration(phases)*o.s.Plan.Timeout+5*time.Second)
}

// collect gathers all ranks' parts of a phase within its limit.
func collect[T any](ctx context.Context, o *oneRun, name, phase string, phases int) ([]T, error) {
	ctx, cancel := o.backstop(ctx, phases)
	defer cancel()
	parts, err := o.server.Collect(ctx, name)
	if err != nil {
		return nil, o.late(phase, err)
	}
	out := make([]T, o.s.Plan.World)
	for r := range out {
		if out[r], err = decode[T](parts[r]); err != nil {
			return nil, &Failure{Kind: FailInternal, Rank: r, Phase: phase, Text: err.Error()}
		}
	}
	return out, nil
}

// late turns a wait that ended into a Failure that names the ranks that did not come.
func (o *oneRun) late(phase string, err error) error {
	f := &Failure{Kind: FailInternal, Rank: -1, Phase: phase, Text: err.Error()}
	var missing *bootstrap.MissingRanksError
	if errors.As(err, &missing) && errors.Is(err, context.DeadlineExceeded) {
		f.Kind = FailTimeout
		if len(missing.Missing) == 1 {
			f.Rank = missing.Missing[0]
		}
	}
	return f
}

func (o *oneRun) drive(ctx context.Context) error {
	if err := o.assemble(ctx); err != nil {
		return err
	}
	steps, err := o.plan.steps()
	if err != nil {
		return &Failure{Kind: FailUsage, Rank: -1, Text: err.Error()}
	}
	if o.number == 1 && o.s.OnStart != nil {
		o.s.OnStart(o.out)
	}
	k, err := o.cycles(ctx, steps)
	stopped := errors.Is(err, errInterrupted)
	if err != nil && !stopped {
		return err
	}
	if err := o.goodbye(ctx, k); err != nil {
		return err
	}
	if stopped && o.plan.Modes.Cycles != 0 { // 0 cycles: a stop is the end that was asked for
		return errInterrupted
	}
	return nil
}

// cycles goes through all steps as often as the plan says and returns how many were done.
func (o *oneRun) cycles(ctx context.Context, steps []step) (k int, err error) {
	n := o.plan.Modes.Cycles
	total := o.s.Runs * len(Variants(o.s.Algos, o.s.Protos)) * len(steps) * n
	pace := pace{plan: &o.plan}
	for cycle := 1; n == 0 || cycle <= n; cycle++ {
		for i, st := range steps {
			if o.stopped() {
				return k, errInterrupted
			}
			if o.s.OnStep != nil {
				o.s.OnStep((o.number-1)*len(steps)*max(1, n)+k, total, st.name(), st.bytes)
			}
			msg := pace.next(st)
			msg.Step = i
			if err := o.step(ctx, k, st, msg, &pace, cycle); err != nil {
				return k, err
			}
			k++
		}
	}
	return k, nil
}

func (o *oneRun) stopped() bool {
	select {
	case <-o.s.Stop:
		return true
	default:
		return o.asked.Load()
	}
}

// assemble takes the ranks from joining to ready communicators and buffers.
func (o *oneRun) assemble(ctx context.Context) error {
	o.phase.set("join")
	join, cancel := context.WithTimeout(ctx, o.s.Plan.Timeout)
	defer cancel()
	if err := o.server.WaitJoined(join); err != nil {
		return o.late("join", err)
	}
	o.phase.set("finding the devices")
	if err := o.server.Set(ctx, keyPlan, encode(o.plan)); err != nil {
		return o.late(o.phase.get(), err)
	}
	var err error
	if o.reports, err = collect[deviceReport](ctx, o, gatherDevice, o.phase.get(), 1); err != nil {
		return err
	}
	final, err := o.finalPlan()
	if err != nil {
		return err
	}
	o.phase.set("communicator initialisation")
	if err := o.server.Set(ctx, keyFinal, encode(final)); err != nil {
		return o.late(o.phase.get(), err)
	}
	o.ready, err = collect[readyReport](ctx, o, gatherReady, o.phase.get(), 2)
	o.takeRings()
	for r, rep := range o.ready {
		if o.number == 1 {
			o.out.Ranks[r].InitS = rep.InitS
		}
	}
	return err
}

func (o *oneRun) step(ctx context.Context, k int, st step, msg stepMsg, pace *pace, cycle int) error {
	o.phase.set(st.halfName(false))
	if err := o.server.Set(ctx, keyStep(k), encode(msg)); err != nil {
		return o.late(o.phase.get(), err)
	}
	o.steps.Store(true)
	what := fmt.Sprintf("%s, %d bytes", st.name(), st.bytes)
	ranks, err := collect[rankRow](ctx, o, gatherRow(k), what, 20+8*o.plan.Check)
	if err != nil {
		return err
	}
	if err := o.server.Delete(ctx, keyStep(k)); err != nil {
		return o.late(o.phase.get(), err)
	}
	rows := mergeRows(&o.plan, st, msg, ranks)
	pace.saw(rows[0])
	for i := range rows {
		row := &rows[i]
		row.Run, row.Time = o.run, time.Now()
		row.Algo, row.Proto = o.variant.Algo, o.variant.Proto
		if o.plan.Modes.Cycles != 1 {
			row.Cycle = cycle
		}
		if o.plan.Engine == "native" { // CPU ranks that outnumber the processors share cores by themselves
			coreShares(o.out, o.s.bestRate, allHalves(rows[i:i+1]))
		}
		if o.s.OnRow != nil {
			o.s.OnRow(*row)
		}
		if cycle > 1 {
			o.s.history.thin(row)
		}
		o.s.history.add(*row)
	}
	o.out.Rows = o.s.history.keep(append(o.out.Rows, rows...))
	return nil
}

func (o *oneRun) goodbye(ctx context.Context, k int) error {
	o.phase.set("shutdown")
	if err := o.server.Set(ctx, keyStep(k), encode(stepMsg{Stop: true})); err != nil {
		return o.late(o.phase.get(), err)
	}
	byes, err := collect[goodbye](ctx, o, gatherBye, o.phase.get(), 1)
	if err == nil && o.plan.Modes.Memory && o.number == 1 {
		o.recordMemory(byes)
	}
	return err
}

// finish tells everybody that it is over and sees that no process stays behind.
func (o *oneRun) finish(err error) {
	close(o.settled)
	grace := graceful + time.Second
	if err != nil && !errors.Is(err, errInterrupted) {
		cause := bootstrap.Cause{Rank: -1, Reason: err.Error()}
		var f *Failure
		if errors.As(err, &f) {
			cause = bootstrap.Cause{Rank: f.Rank, Host: f.Host, Phase: f.Phase, Reason: f.Text}
		}
		o.server.Abort(cause)
	}
	if o.workers == nil {
		return
	}
	if err == nil {
		// All have said goodbye and end by themselves; the signals are for one that does not.
		select {
		case <-o.workers.Done():
		case <-time.After(grace):
		}
	}
	if err := o.workers.Shutdown(grace); err != nil {
		o.s.Log("ending the rank processes: %v", err)
	}
}

// ListenAddr is where a coordinator for workers on this host listens.
const ListenAddr = "127.0.0.1:0"

// RendezvousListen is where a coordinator listens when the workers come to rendezvous (host:port): on the loopback interface when that is
// what the address says, otherwise on all, since a host's own name often resolves to an address that other hosts cannot reach.
func RendezvousListen(rendezvous string) string {
	host, port, err := net.SplitHostPort(rendezvous)
	if err != nil {
		return rendezvous // Listen says what is wrong with it
	}
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return rendezvous
	}
	return net.JoinHostPort("", port)
}
