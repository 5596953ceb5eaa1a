package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/bench/report"
	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/hanglab"
	"github.com/commprobe/commprobe/hanglab/pages"
	"github.com/commprobe/commprobe/hanglab/watch"
	"github.com/commprobe/commprobe/internal/bootstrap"
	"github.com/commprobe/commprobe/internal/launch"
)

const hangHelp = `list      the scenarios, a line each: name, class of the verdict it deserves, mechanism
explain   the page of a scenario: what happens, what you see, how to tell it from its neighbours, what to do
run       causes it, on this machine's GPUs or without any on its CPU, watches it from inside, and stops it in time

   commprobe hang list
   commprobe hang explain skip
   commprobe hang run size -g 4 -T 3 --out /tmp/size     rank 3 passes another count in step 5; dumps, logs, time line in /tmp/size
   commprobe hang run skip --rank 1 --step 3             another rank, another step
   commprobe hang run skip --constant                    the control: all steps have one size, so the shifted calls match until the end
   commprobe hang run op --check-calls                   ranks compare their calls first: the odd one is named before anything hangs
   commprobe hang run all -T 3                           the laboratory exercise: every scenario, what really happened, how soon it was caught, and what
                                                         diagnose makes of the evidence
   commprobe hang run stuck --mode 0                     watch only: see what a hang looks like from outside until the fuse ends it

Each rank is a process and runs a small program: a healthy warm-up, then eight steps; step s all-reduces (s+1) * 65536 floats, waits, and compares
the result. In step 5 the odd rank does what the scenario says. Every call is recorded; a watchdog of each rank looks at the calls' events, and
when one is older than -T, all ranks write what they recorded, abort and end. Nothing is assumed: a mismatch may hang, finish, or corrupt.

In the folder: trace_N and json_N, each rank's record in the format of PyTorch's Flight Recorder (python -m torch.distributed.flight_recorder.fr_trace
DIR -p trace_ reads the first), rank_N.log with its markers and its watchdog's words, launcher.log with how the processes ended, timeline.txt, run.json.
While it runs, SIGUSR1 makes a rank dump. The verdict shown is that of commprobe diagnose on dumps and logs: it does not know the fault.

Modes, after the dumps: 0 nothing (processes and communicators stay), 1 abort the communicators and exit (default), 2 abort only, 3 exit at once
(communicators are left to the driver).

Exit status of one scenario: 4 it hung and was caught, 0 every rank finished with right data, 6 finished with wrong data, 5 a rank died, 8 the fault
was named before anything hung (by --check-calls or by NCCL), 1 not caught. Of several: 0 when each was caught or ran to its end.`

func hangCommand() *cli.Command {
	return &cli.Command{
		Name:            "hang",
		Usage:           "cause a collective hang on purpose, see it from inside, stop it in time",
		ArgsUsage:       "list | explain NAME | run NAME…|all",
		Description:     hangHelp,
		HideHelpCommand: true,
		Flags: append([]cli.Flag{
			&cli.IntFlag{Name: "ranks", Aliases: []string{"g"}, DefaultText: "all GPUs; 4 without", Usage: "`N` ranks, a process each"},
			&cli.Float64Flag{Name: "timeout", Aliases: []string{"T"}, Value: 5, Usage: "deadline of an operation in `SECONDS`, from its call on"},
			&cli.StringFlag{Name: "out", DefaultText: "commprobe-hang/NAME", Usage: "write dumps, logs and reports to `DIR` (several scenarios: DIR/NAME)"},
			&cli.IntFlag{Name: "rank", Value: -1, DefaultText: "the last", Usage: "the `RANK` that misbehaves"},
			&cli.IntFlag{Name: "step", Value: 5, Usage: "the `STEP` of the fault"},
			&cli.IntFlag{Name: "steps", Value: hanglab.DefaultSteps, Usage: "`N` steps in all"},
			&cli.IntFlag{Name: "unit", Value: hanglab.DefaultUnit, Usage: "`N` floats in step 0; step s has s+1 times as many"},
			&cli.BoolFlag{Name: "constant", Usage: "the same size in every step, instead of growing ones"},
			&cli.BoolFlag{Name: "check-calls", Usage: "compare the ranks' calls before each collective; its cost is printed"},
			&cli.IntFlag{Name: "mode", Value: int(watch.AbortAndExit), Usage: "what follows the dumps: `0` nothing, 1 abort and exit, 2 abort, 3 exit"},
			&cli.Float64Flag{Name: "init-timeout", DefaultText: "twice -T, at least 5", Usage: "deadline of making a communicator in `SECONDS`"},
			&cli.Float64Flag{Name: "fuse", DefaultText: "from the deadlines", Usage: "end everything after `SECONDS`, whatever happens"},
			&cli.IntFlag{Name: "entries", Value: 2000, Usage: "keep the last `N` calls of a rank"},
			&cli.IntFlag{Name: "jobs", Aliases: []string{"j"}, DefaultText: "1; on CPUs by the ranks", Usage: "run `N` of several scenarios at a time"},
			&cli.StringFlag{Name: "json", Usage: "write the report to `FILE` as JSON (- is stdout, and nothing else there)"},
		}, globalFlags()...),
		Action: hang,
	}
}

// hang looks at the first argument itself, as env does.
func hang(c *cli.Context) error {
	what, args := c.Args().First(), c.Args().Tail()
	switch what {
	case "list":
		return hangList(c.App.Writer)
	case "explain":
		return hangExplain(c.App.Writer, args)
	case "run":
		return hangRun(c, args)
	case "":
		return usage("hang: say list, explain or run; commprobe hang --help has examples")
	}
	return usage("hang %s: there are list, explain and run; commprobe hang --help has examples", what)
}

func hangList(w io.Writer) error {
	for _, s := range hanglab.Scenarios() {
		class := s.Class
		if class == "" {
			class = "-"
		}
		if _, err := fmt.Fprintf(w, "%-15s %-19s %s\n", s.Name, class, s.Line); err != nil {
			return err
		}
	}
	return nil
}

func hangExplain(w io.Writer, names []string) error {
	if len(names) == 0 {
		return usage("hang explain: say which; commprobe hang list shows them")
	}
	for i, name := range names {
		s, err := hanglab.Find(name)
		if err != nil {
			return usage("hang explain: %w", err)
		}
		page, err := pages.Page(s.Name)
		if err != nil {
			return &exitError{bench.ExitInternal, err}
		}
		if i > 0 {
			page = "\n" + page
		}
		if _, err := io.WriteString(w, page); err != nil {
			return err
		}
	}
	return nil
}

// hangJob is one `hang run`.
type hangJob struct {
	stdout, stderr io.Writer
	quiet          bool
	plan           hanglab.Plan // of all scenarios, but for name and folder
	out            string
	scenarios      []hanglab.Scenario
	jobs           int
	json           string
}

func hangRun(c *cli.Context, names []string) error {
	j := &hangJob{stdout: c.App.Writer, stderr: c.App.ErrWriter, quiet: isSet(c, "quiet"), out: c.String("out"), json: c.String("json")}
	if err := j.choose(names); err != nil {
		return err
	}
	if err := j.settle(c); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(j.scenarios) == 1 {
		return j.one(ctx)
	}
	return j.several(ctx)
}

func (j *hangJob) choose(names []string) error {
	if len(names) == 0 {
		return usage("hang run: say which scenario, or all; commprobe hang list shows them")
	}
	for _, name := range names {
		if name == "all" {
			j.scenarios = hanglab.Scenarios()
			continue
		}
		s, err := hanglab.Find(name)
		if err != nil {
			return usage("hang run: %w", err)
		}
		j.scenarios = append(j.scenarios, s)
	}
	return nil
}

// settle turns flags into the plan.
func (j *hangJob) settle(c *cli.Context) error {
	p := &j.plan
	p.NCCLPath, p.CUDARTPath = text(c, "nccl-lib"), text(c, "cudart-lib")
	asked, err := engineName(c)
	if err != nil {
		return err
	}
	engine, devices, err := chooseEngine(asked, p.CUDARTPath, p.NCCLPath, j.say)
	if err != nil {
		return err
	}
	p.Engine = engine
	p.World = 4
	if p.Engine == "native" {
		p.World = devices
	}
	if c.IsSet("ranks") {
		p.World = c.Int("ranks")
	}
	if p.Engine == "native" && p.World > devices {
		return usage("-g %d: this host shows %d GPUs, and NCCL needs one a rank", p.World, devices)
	}
	p.Rank = c.Int("rank")
	if !c.IsSet("rank") {
		p.Rank = p.World - 1
	}
	p.Step, p.Steps, p.Unit, p.Constant, p.CheckCalls = c.Int("step"), c.Int("steps"), c.Int("unit"), c.Bool("constant"), c.Bool("check-calls")
	if !c.IsSet("step") && c.IsSet("steps") {
		p.Step = min(p.Step, p.Steps-1)
	}
	p.Mode, p.Entries = watch.Mode(c.Int("mode")), c.Int("entries")
	if p.Mode < watch.ReportOnly || p.Mode > watch.ExitAtOnce {
		return usage("--mode %d: use 0 (nothing), 1 (abort and exit), 2 (abort only) or 3 (exit at once)", p.Mode)
	}
	j.deadlines(c)
	j.jobs = c.Int("jobs")
	if !c.IsSet("jobs") {
		j.jobs = 1
		if p.Engine == "host" {
			j.jobs = max(1, min(4, 32/p.World))
		}
	}
	if j.jobs < 1 {
		return usage("-j %d: at least 1", j.jobs)
	}
	for i := range j.scenarios {
		if err := j.planOf(j.scenarios[i]).Validate(); err != nil && len(j.scenarios) == 1 {
			return usage("hang run: %w", err)
		}
	}
	return nil
}

// say prints a remark on stderr.
func (j *hangJob) say(format string, args ...any) {
	if !j.quiet {
		fmt.Fprintf(j.stderr, "commprobe: "+format+"\n", args...)
	}
}

func (j *hangJob) deadlines(c *cli.Context) {
	p := &j.plan
	seconds := func(name string) time.Duration { return time.Duration(c.Float64(name) * float64(time.Second)) }
	p.Op, p.Init, p.Join, p.Heartbeat = seconds("timeout"), seconds("init-timeout"), time.Minute, 10*time.Second
	if !c.IsSet("init-timeout") {
		p.Init = max(2*p.Op, 5*time.Second)
	}
	p.Fuse = seconds("fuse")
	if !c.IsSet("fuse") { // a fault at the last step of slow ones is still caught
		p.Fuse = 3*p.Op + 2*p.Init + 20*time.Second
	}
}

// planOf is the plan of one scenario.
func (j *hangJob) planOf(s hanglab.Scenario) *hanglab.Plan {
	p := j.plan
	p.Scenario = s.Name
	switch {
	case j.out != "" && len(j.scenarios) == 1:
		p.Dir = j.out
	case j.out != "":
		p.Dir = filepath.Join(j.out, s.Name)
	default:
		p.Dir = filepath.Join("commprobe-hang", s.Name)
	}
	return &p
}

func (j *hangJob) run(ctx context.Context, s hanglab.Scenario) (*hanglab.Report, error) {
	token, err := bootstrap.NewToken()
	if err != nil {
		return nil, err
	}
	p := j.planOf(s)
	sup := &hanglab.Supervisor{Plan: *p, Program: programVersion(), Token: token}
	sup.Start = func(ctx context.Context, spec hanglab.StartSpec) (*launch.Group, error) {
		return startHangRanks(ctx, spec, token, p)
	}
	return sup.Run(ctx)
}

func startHangRanks(ctx context.Context, spec hanglab.StartSpec, token bootstrap.Token, p *hanglab.Plan) (*launch.Group, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	out := launch.Spec{Path: self, Args: []string{hangRankName}, Prefix: true, Stdout: spec.Output, Stderr: spec.Output, Grace: -1}
	for r, one := range spec.Ranks {
		out.Workers = append(out.Workers, launch.Worker{Ranks: []int{r}, Through: one.Through, Env: append([]string{
			envStore + "=" + one.Addr, launch.EnvToken + "=" + token.String(), envWorld + "=" + strconv.Itoa(p.World), envRanks + "=" + strconv.Itoa(r),
			envTimeout + "=" + strconv.FormatFloat(p.Join.Seconds(), 'g', -1, 64),
		}, one.Env...)})
	}
	return launch.Start(ctx, out)
}

// one runs a single scenario and shows all of it.
func (j *hangJob) one(ctx context.Context) error {
	r, err := j.run(ctx, j.scenarios[0])
	if err != nil {
		return hangFailure(err)
	}
	if err := j.writeJSON(r); err != nil {
		return &exitError{bench.ExitInternal, err}
	}
	if j.json != "-" {
		if err := r.WriteText(j.stdout); err != nil {
			return &exitError{bench.ExitInternal, err}
		}
	}
	if r.Exit != 0 {
		return &exitError{r.Exit, nil}
	}
	return nil
}

// hangFailure is the status of a run that did not take place.
func hangFailure(err error) error {
	var start *hanglab.StartError
	var net *hanglab.NetworkError
	switch {
	case errors.As(err, &net):
		return &exitError{bench.ExitNoDevice, err}
	case errors.As(err, &start) && start.Code > 0:
		return &exitError{start.Code, err}
	}
	return &exitError{bench.ExitInternal, err}
}

func (j *hangJob) writeJSON(v any) error {
	switch j.json {
	case "":
		return nil
	case "-":
		return writeIndented(j.stdout, v, "  ")
	}
	return report.WriteFile(j.json, report.Options{Force: true}, func(w io.Writer) error { return writeIndented(w, v, "  ") })
}

// several runs scenarios side by side and shows a line for each, in their order, as soon as it and those before it are done.
func (j *hangJob) several(ctx context.Context) error {
	results := make([]chan hanglab.Result, len(j.scenarios))
	seats := make(chan struct{}, j.jobs)
	var wg sync.WaitGroup
	for i, s := range j.scenarios {
		results[i] = make(chan hanglab.Result, 1)
		wg.Go(func() {
			seats <- struct{}{}
			defer func() { <-seats }()
			if ctx.Err() != nil {
				results[i] <- hanglab.Result{Scenario: s, Err: ctx.Err()}
				return
			}
			r, err := j.run(ctx, s)
			results[i] <- hanglab.Result{Scenario: s, Report: r, Err: err}
		})
	}
	table := hanglab.NewTable(j.stdout, &j.plan)
	var all []hanglab.Result
	bad := 0
	for i := range results {
		j.progress(i, j.scenarios[i].Name)
		res := <-results[i]
		all = append(all, res)
		if !res.Good() {
			bad++
		}
		if j.json != "-" {
			if err := table.Row(res); err != nil {
				return &exitError{bench.ExitInternal, err}
			}
		}
	}
	wg.Wait()
	if err := j.writeJSON(all); err != nil {
		return &exitError{bench.ExitInternal, err}
	}
	if j.json != "-" {
		if err := table.Close(all); err != nil {
			return &exitError{bench.ExitInternal, err}
		}
	}
	switch {
	case ctx.Err() != nil:
		return &exitError{bench.ExitInterrupted, nil}
	case bad > 0:
		return &exitError{bench.ExitInternal, fmt.Errorf("%d of %d scenarios were not caught or did not run", bad, len(all))}
	}
	return nil
}

// progress says on a terminal what the table waits for.
func (j *hangJob) progress(i int, name string) {
	if j.quiet || !isTerminal(j.stderr) {
		return
	}
	fmt.Fprintf(j.stderr, "\r\x1b[K%d of %d: %s …\r", i+1, len(j.scenarios), name)
}

const hangRankName = "hang-rank"

func hangRankCommand() *cli.Command {
	return &cli.Command{
		Name: hangRankName, Hidden: true, Usage: "be a rank of hang run; started by it",
		Action: func(*cli.Context) error { return hangRank() },
	}
}

func hangRank() error {
	gone, err := watchParent(0)
	if err != nil {
		return err
	}
	cfg, err := workerConfigOne(os.Getenv)
	if err != nil {
		return usage("%s is started by hang run only: %w", hangRankName, err)
	}
	cfg.ParentGone = gone
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	dumps := make(chan os.Signal, 1)
	signal.Notify(dumps, syscall.SIGUSR1)
	cfg.DumpSignal = dumps
	err = hanglab.RunRank(ctx, cfg)
	var e *hanglab.ExitError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e):
		return &exitError{e.Code, nil} // its words are in the log
	}
	var none *cuda.NoDeviceError
	if errors.As(err, &none) {
		return &exitError{bench.ExitNoDevice, err}
	}
	return &exitError{bench.ExitInternal, err}
}

func workerConfigOne(getenv func(string) string) (hanglab.RankConfig, error) {
	w, err := workerConfig(func(name string) string {
		if name == envDevices {
			return getenv(envRanks) // a rank's device is its own number
		}
		return getenv(name)
	})
	if err == nil && len(w.Ranks) != 1 {
		err = fmt.Errorf("%s=%q: one rank a process", envRanks, strings.TrimSpace(getenv(envRanks)))
	}
	if err != nil {
		return hanglab.RankConfig{}, err
	}
	return hanglab.RankConfig{
		Addr: w.Addr, Token: w.Token, Rank: w.Ranks[0], World: w.World, Program: w.Program, JoinTimeout: w.JoinTimeout, Out: os.Stdout,
	}, nil
}
