package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/bench/report"
	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/internal/bootstrap"
	"github.com/commprobe/commprobe/internal/launch"
	"github.com/commprobe/commprobe/nccl"
)

var sweepHelp = `Runs each collective at each size out-of-place and in-place, checks the results, and prints nccl-tests' table.
One process a rank is started on this host; under torchrun the processes that are there become the ranks.

   commprobe sweep                                     all_reduce on all GPUs (or, without GPUs, on 4 CPU ranks)
   commprobe sweep -b 8 -e 4G -n 50 -w 10              nccl-tests' letters: sizes 8 B to 4 GiB, 50 iterations, 10 to warm up
   commprobe sweep all -d all -o all -e 1M             every collective, data type and operator
   commprobe sweep alltoall -G 10 -R 2                 in a CUDA graph that is launched 10 times, on symmetric windows
   commprobe sweep --split local                       each rail (k-th ranks of all hosts) by itself, all at the same time
   commprobe sweep --consistency --algo ring,tree      are results the same bits on all ranks, each time, with each algorithm?
   commprobe sweep -e 1M --runs 10                     ten fresh sets of processes: do small sizes agree from run to run?
   commprobe sweep --json r.json --plot r.png --plot - results as JSON, as a picture, and as a curve in the terminal
   torchrun --nproc-per-node 2 --no-python commprobe sweep

How to read the table: time is microseconds an operation, from a barrier to the end of all queued operations, mean over ranks; algbw is size
over time; busbw is algbw times a factor (2(n-1)/n for all_reduce) and is what compares with the speed of a link. #wrong must be 0.
"launch-bound on rank r" means that the GPU waits for that rank's processor. Sizes take K, M, G, T (binary) and fractions.

Collectives:
` + indented(bench.DescribeCollectives())

func indented(text string) string {
	return "   " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n   ")
}

func sweepCommand() *cli.Command {
	return &cli.Command{
		Name:            "sweep",
		Usage:           "time collectives over message sizes and check every result",
		ArgsUsage:       "[COLLECTIVE… | all]   (all_reduce if none is named)",
		Description:     sweepHelp,
		HideHelpCommand: true,
		Flags:           append(sweepFlags(), globalFlags()...),
		Action:          sweep,
	}
}

// The groups of flags in the help.
const (
	howMuch  = "1. What to measure"
	howMode  = "2. How operations are called (nccl-tests' letters)"
	howCheck = "3. Checks"
	howOut   = "4. Output"
)

func sweepFlags() []cli.Flag {
	return slices.Concat(measureFlags(), modeFlags(), checkFlags(), outputFlags())
}

func measureFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Category: howMuch, Name: "min-bytes", Aliases: []string{"b"}, Value: "8", Usage: "smallest message `SIZE`"},
		&cli.StringFlag{Category: howMuch, Name: "max-bytes", Aliases: []string{"e"}, DefaultText: "1G on GPUs, 16M on the host engine; -b if that is larger", Usage: "largest message `SIZE`"},
		&cli.StringFlag{Category: howMuch, Name: "step-factor", Aliases: []string{"f"}, DefaultText: "2", Usage: "`FACTOR` from size to size, more than 1, fractions work"},
		&cli.StringFlag{Category: howMuch, Name: "step-bytes", Aliases: []string{"i"}, Usage: "`SIZE` added from size to size, instead of -f"},
		&cli.IntFlag{Category: howMuch, Name: "ranks", Aliases: []string{"g"}, DefaultText: "all GPUs, 4 on the host engine", Usage: "ranks on this host"},
		&cli.IntFlag{Category: howMuch, Name: "iters", Aliases: []string{"n"}, Value: 20, Usage: "timed operations a size; small sizes run up to 20 times more unless --iters-exact"},
		&cli.BoolFlag{Category: howMuch, Name: "iters-exact", Usage: "exactly -n operations at every size, as nccl-tests does"},
		&cli.IntFlag{Category: howMuch, Name: "warmup", Aliases: []string{"w"}, Value: 5, Usage: "operations before the timed ones"},
		&cli.StringFlag{Category: howMuch, Name: "type", Aliases: []string{"d"}, Value: "float", Usage: "data `TYPE`, several with commas, or all: int8 uint8 int32 uint32 int64 uint64 half float double bfloat16 f8e4m3 f8e5m2"},
		&cli.StringFlag{Category: howMuch, Name: "op", Aliases: []string{"o"}, Value: "sum", Usage: "`OPERATOR`, several with commas, or all: " + strings.Join(bench.Ops(), " ") + " (premulsum: each rank's input times its own factor, 1 or 2, then the sum)"},
		&cli.StringFlag{Category: howMuch, Name: "root", Aliases: []string{"r"}, Value: "0", Usage: "`RANK` that is the root where there is one, or all (-1): each in turn"},
		&cli.Float64Flag{Category: howMuch, Name: "timeout", Aliases: []string{"T"}, Value: 60, Usage: "`SECONDS` that each phase may take: join, initialisation, each series of a size"},
		&cli.StringFlag{Category: howMuch, Name: "placement", Value: "process", Usage: "process (one a rank), thread (one process, a thread a rank: nccl-tests -t N -g 1) or group (one thread: -g N)"},
		&cli.IntFlag{Category: howMuch, Name: "runs", Value: 1, Usage: "repeat all of it in `R` fresh sets of processes and report the modes they fall into"},
		&cli.StringFlag{Category: howMuch, Name: "algo", Usage: "fresh processes for each NCCL_ALGO of `LIST`, such as ring,tree,nvls"},
		&cli.StringFlag{Category: howMuch, Name: "proto", Usage: "and for each NCCL_PROTO of `LIST`, such as ll,ll128,simple"},
		&cli.IntFlag{Category: howMuch, Name: "cycles", Aliases: []string{"N"}, Value: 1, Usage: "repeat all of it `N` times in the same processes, 0: until stopped; with a summary at the end"},
		&cli.StringFlag{Category: howMuch, Name: "split", Usage: "sweep in groups at the same time, `HOW`: node, local (rails), mod:N, div:N, and:N, or:N of the rank"},
		&cli.IntFlag{Category: howMuch, Name: "comms", Value: 1, Usage: "`K` communicators over the same GPUs work at the same time, each on a stream of its own; a time is that of all K"},
		&cli.Float64Flag{Category: howMuch, Name: "spread", Value: 1, Usage: "alltoallv: 0 equal parts … 1 parts that grow with the distance of the ranks"},
		&cli.StringFlag{Category: howMuch, Name: "matrix", Usage: "alltoallv: `FILE` with a line a rank: bytes to each rank. Without -b and -e as it is, with them scaled so that the busiest rank has the size"},
	}
}

func modeFlags() []cli.Flag {
	return []cli.Flag{
		&cli.IntFlag{Category: howMode, Name: "cudagraph", Aliases: []string{"G"}, Usage: "capture the -n operations into a CUDA graph and launch it `N` times, 0: no graph"},
		&cli.IntFlag{Category: howMode, Name: "agg-iters", Aliases: []string{"m"}, Value: 1, Usage: "`N` operations in one group make an iteration"},
		&cli.IntFlag{Category: howMode, Name: "local-register", Aliases: []string{"R"}, Usage: "`HOW` buffers are registered: 0 not, 1 ncclCommRegister, 2 symmetric windows (NCCL 2.27)"},
		&cli.IntFlag{Category: howMode, Name: "cta-policy", Aliases: []string{"x"}, DefaultText: "the library's", Usage: "`POLICY`: 0 default, 1 efficiency (NCCL 2.27), 2 zero CTA (2.28)"},
		&cli.IntFlag{Category: howMode, Name: "blocking", Aliases: []string{"z"}, Usage: "after each iteration 1: wait and barrier, 2: wait, 3: wait and barrier whose time is left out; 0: queue on"},
		&cli.IntFlag{Category: howMode, Name: "stream-null", Aliases: []string{"y"}, Usage: "1: use the NULL stream"},
		&cli.IntFlag{Category: howMode, Name: "unalign", Aliases: []string{"u"}, Usage: "shift both buffers by `N` elements"},
		&cli.IntFlag{Category: howMode, Name: "average", Aliases: []string{"a"}, DefaultText: "1, for alltoallv 3", Usage: "time of 0: rank 0, 1: the mean, 2: the fastest, 3: the slowest rank"},
		&cli.IntFlag{Category: howMode, Name: "parallel-init", Aliases: []string{"p"}, Usage: "1: with --placement group too each rank initialises on a thread of its own"},
		&cli.BoolFlag{Category: howMode, Name: "quiet-cores", DefaultText: "on with GPUs, off on the host engine", Usage: "before each timed series, move each rank's timing thread to an allowed processor near its GPU whose other hardware thread is idle; =false leaves threads where the system puts them"},
	}
}

func checkFlags() []cli.Flag {
	return []cli.Flag{
		&cli.IntFlag{Category: howCheck, Name: "check", Aliases: []string{"c"}, Value: 1, Usage: "check what the timed operations left, and `N` more operations on fresh data; 0 = none"},
		&cli.BoolFlag{Category: howCheck, Name: "consistency", Usage: "compare fingerprints of results between ranks, repeats, --runs, and --algo and --proto: does only the order of summation differ?"},
		&cli.BoolFlag{Category: howCheck, Name: "nan-check", Usage: "look for NaN and infinity in every rank's input before each check"},
		&cli.BoolFlag{Category: howCheck, Name: "inject-fault", Usage: "flip one bit of one result before each check: proves that the check sees it (exit 6)"},
		&cli.BoolFlag{Category: howCheck, Name: "inject-drop", Usage: "take one rank's contribution away before each check: proves that the check names it (exit 6)"},
		&cli.BoolFlag{Category: howCheck, Name: "inject-hang", Usage: "let one rank leave out one timed operation: proves that the time-out names who waits and that the dumps show it (exit 4)"},
		&cli.BoolFlag{Category: howCheck, Name: "inject-nan", Usage: "put a NaN into one rank's input before each check: proves that --nan-check names it (exit 6)"},
	}
}

func outputFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Category: howOut, Name: "tuning", Usage: "run each row once more with NCCL's TUNING log, to show which algorithm, protocol and channels each size used"},
		&cli.BoolFlag{Category: howOut, Name: "percentiles", Usage: "columns p50, p99 and max of the single operations"},
		&cli.IntFlag{Category: howOut, Name: "report-cputime", Aliases: []string{"C"}, Usage: "1: the time columns show queueing by the processor; bandwidths remain the GPU's"},
		&cli.IntFlag{Category: howOut, Name: "report-timestamps", Aliases: []string{"S"}, Usage: "1: a column with date and time at the end of each row"},
		&cli.IntFlag{Category: howOut, Name: "memory", Aliases: []string{"M"}, Usage: "1: report what initialisation, buffers and operations took of each GPU's memory"},
		&cli.StringFlag{Category: howOut, Name: "json", Aliases: []string{"J"}, Usage: "write the whole result to `FILE` (- is stdout)"},
		&cli.StringFlag{Category: howOut, Name: "csv", Usage: "write the rows to `FILE` (- is stdout)"},
		&cli.StringSliceFlag{Category: howOut, Name: "plot", Usage: "draw to `FILE`.png or .svg (- is a curve in the terminal); may be given more than once"},
		&cli.IntFlag{Category: howOut, Name: "record", Value: bench.DefaultRecord, Usage: "each rank keeps a record of its last `N` NCCL calls in memory for the dumps of a run that ends badly; 0: none"},
		&cli.StringFlag{Category: howOut, Name: "dump", Value: "commprobe-dump", Usage: "folder for these dumps, `DIR`/trace_RANK and json_RANK in the format of PyTorch's Flight Recorder; made only then, dumps of an earlier run in it are replaced"},
		&cli.BoolFlag{Category: howOut, Name: "force", Usage: "replace result files that exist"},
	}
}

// sweepRun is one invocation of the command.
type sweepRun struct {
	stdout, stderr io.Writer
	quiet, color   bool
	opts           report.Options
	json, csv      string
	plots          []string
	table          *report.Table // nil: stdout belongs to a document
	started        bool          // the table has its header
	progress       *report.Progress
	place          *launch.Placement // nil: this program launches the ranks
	plan           bench.Plan
	runs           int
	algos, protos  []string
	tuning         bool
}

func sweep(c *cli.Context) error {
	s := &sweepRun{
		stdout: c.App.Writer, stderr: c.App.ErrWriter, quiet: isSet(c, "quiet"),
		color: !isSet(c, "no-color") && os.Getenv("NO_COLOR") == "" && isTerminal(c.App.Writer),
		opts:  report.Options{Percentiles: c.Bool("percentiles"), Force: c.Bool("force")},
		json:  c.String("json"), csv: c.String("csv"), plots: c.StringSlice("plot"), runs: c.Int("runs"),
	}
	s.opts.Color = s.color
	if err := s.checkOutputs(); err != nil {
		return err
	}
	var err error
	if s.place, err = launch.FromEnv(os.LookupEnv); err != nil {
		return &exitError{bench.ExitUsage, err}
	}
	if err := s.makePlan(c); err != nil {
		return err
	}
	if s.place != nil && s.place.Rank != 0 {
		return s.joinOnly()
	}
	return s.coordinate()
}

// checkOutputs refuses, before anything is measured, outputs that could not be written at the end.
func (s *sweepRun) checkOutputs() error {
	documents := 0
	for _, p := range []string{s.json, s.csv} {
		if p == "-" {
			documents++
		}
	}
	if documents > 1 || documents == 1 && slices.Contains(s.plots, "-") {
		return usage("only one of --json, --csv and --plot can go to stdout")
	}
	files := map[string]string{} // path to flag
	for i, p := range append([]string{s.json, s.csv}, s.plots...) {
		if p == "" || p == "-" {
			continue
		}
		flag := []string{"--json", "--csv", "--plot"}[min(i, 2)]
		switch err := report.CheckOutput(p, s.opts); {
		case errors.Is(err, report.ErrExists):
			return usage("%s: %w (--force)", flag, err)
		case err != nil:
			return usage("%s: %w", flag, err)
		}
		if other, twice := files[filepath.Clean(p)]; twice && !strings.HasPrefix(p, "/dev/") {
			return usage("%s and %s both write %s: choose two names", other, flag, p)
		}
		files[filepath.Clean(p)] = flag
	}
	for _, p := range s.plots {
		if p == "-" {
			continue
		}
		if _, err := report.PlotFormat(p); err != nil {
			return usage("--plot: %w", err)
		}
	}
	if documents == 0 {
		s.table = report.NewTable(s.stdout, s.opts)
	}
	return nil
}

func (s *sweepRun) makePlan(c *cli.Context) error {
	p := &s.plan
	var err error
	if p.Collectives, err = collectives(c.Args().Slice()); err != nil {
		return usage("%w", err)
	}
	p.Types, p.Ops = typesAndOps(c.String("type"), c.String("op"))
	p.CUDARTPath, p.NCCLPath = text(c, "cudart-lib"), text(c, "nccl-lib")
	p.Iters, p.ItersExact, p.Warmup, p.Check = c.Int("iters"), c.Bool("iters-exact"), c.Int("warmup"), c.Int("check")
	t := c.Float64("timeout")
	if !(t > 0 && t < 1e8) {
		return usage("-T %g: the time-out must be more than 0 and less than 1e8 seconds; a wait without an end is what this tool is there to avoid", t)
	}
	p.Timeout = time.Duration(t * float64(time.Second))
	if p.Placement, err = bench.ParsePlacement(c.String("placement")); err != nil {
		return usage("--placement: %w", err)
	}
	if s.runs < 1 || s.runs > 10000 {
		return usage("--runs %d: must be between 1 and 10000", s.runs)
	}
	asked, err := engineName(c)
	if err != nil {
		return err
	}
	engine, devices, err := chooseEngine(asked, p.CUDARTPath, p.NCCLPath, s.say)
	if err != nil {
		return err
	}
	p.Engine = engine
	// On the host engine the ranks' own streams keep the processors busy: there is nothing quiet to find.
	p.QuietCores = p.Engine == "native"
	if c.IsSet("quiet-cores") {
		p.QuietCores = c.Bool("quiet-cores")
	}
	if err := s.chooseWorld(c, devices); err != nil {
		return err
	}
	if err := sizes(c, p); err != nil {
		return err
	}
	if err := s.modes(c); err != nil {
		return err
	}
	p.NaNCheck, p.Consistency = c.Bool("nan-check"), c.Bool("consistency")
	p.Record, p.Dump = c.Int("record"), c.String("dump")
	if f, err := os.Stat(p.Dump); p.Record != 0 && err == nil && !f.IsDir() {
		return usage("--dump %s: is a file; name a folder", p.Dump)
	}
	if s.algos, s.protos = list(c.String("algo")), list(c.String("proto")); s.place != nil && len(s.algos)+len(s.protos) > 0 {
		return usage("under %s every rank is a process that is already there: --algo and --proto need fresh ones; set NCCL_ALGO and NCCL_PROTO instead", s.place.Engine)
	}
	if s.tuning = c.Bool("tuning"); s.tuning {
		switch {
		case s.place != nil:
			return usage("--tuning needs fresh processes, but under %s they are already there: set NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING and read the log with commprobe log", s.place.Engine)
		case len(s.algos)+len(s.protos) > 0:
			return usage("--tuning with --algo or --proto: what NCCL uses is then what it was told")
		case p.Engine != "native":
			return usage("--tuning: the host engine has one algorithm and writes no log; this is for GPUs")
		}
	}
	p.Inject = bench.Inject{Element: c.Bool("inject-fault"), Drop: c.Bool("inject-drop"), NaN: c.Bool("inject-nan"), Hang: c.Bool("inject-hang")}
	if (p.Inject.Element || p.Inject.Drop || p.Inject.NaN) && p.Check == 0 {
		return usage("--inject-fault, --inject-drop and --inject-nan plant a fault before a check, so they need -c 1 or more")
	}
	if err := p.Validate(); err != nil {
		return usage("%w", err)
	}
	return nil
}

func collectives(args []string) ([]string, error) {
	if len(args) == 0 {
		return []string{"all_reduce"}, nil
	}
	if slices.Contains(args, "all") {
		return bench.CollectiveNames(), nil
	}
	var out []string
	for _, a := range args {
		name, err := bench.ParseCollective(a)
		if err != nil {
			return nil, err
		}
		out = append(out, name)
	}
	return once(out), nil
}

// once is the list without repeats, in its order.
func once(list []string) []string {
	var out []string
	for _, s := range list {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

func typesAndOps(types, ops string) (t, o []string) {
	if types == "all" {
		for _, d := range nccl.DataTypes() {
			t = append(t, d.String())
		}
	} else {
		t = strings.Split(types, ",")
	}
	if ops == "all" {
		return once(t), bench.Ops()
	}
	for _, name := range strings.Split(ops, ",") {
		if own, err := bench.ParseOp(name); err == nil { // otherwise the plan's check says what is wrong
			name = own
		}
		o = append(o, name)
	}
	return once(t), once(o)
}

// chooseEngine settles which engine the ranks will use, of what --engine says, and how many devices this host has for them; 0 means as many as
// wanted. say hears why it is not the native one.
func chooseEngine(asked, cudart, ncclLib string, say func(format string, args ...any)) (engine string, devices int, err error) {
	if asked == "host" {
		return "host", 0, nil
	}
	err = bench.UseEngine("native", cudart, ncclLib, 0)
	if err == nil {
		if devices, err = cuda.DeviceCount(); err != nil {
			return "", 0, &exitError{bench.ExitInternal, err}
		}
		return "native", devices, nil
	}
	if asked == "native" {
		return "", 0, &exitError{noDeviceStatus(err), fmt.Errorf("native engine: %w", err)}
	}
	say("engine: host, since %v", err)
	return "host", 0, nil
}

func (s *sweepRun) chooseWorld(c *cli.Context, devices int) error {
	p := &s.plan
	if s.place != nil {
		if c.IsSet("ranks") && c.Int("ranks") != s.place.World {
			return usage("-g %d, but %s started %d ranks: leave -g out", c.Int("ranks"), s.place.Engine, s.place.World)
		}
		if p.Placement != bench.PlaceProcess || s.runs > 1 {
			return usage("under %s every rank is a process that is already there: --placement and --runs cannot be chosen", s.place.Engine)
		}
		p.World = s.place.World
		return nil
	}
	p.World = c.Int("ranks")
	if !c.IsSet("ranks") {
		p.World = 4
		if p.Engine == "native" {
			p.World = devices
		}
	}
	if p.Engine == "native" && p.World > devices {
		return usage("-g %d: this host shows %d GPUs (CUDA_VISIBLE_DEVICES=%q), and NCCL needs one a rank", p.World, devices, os.Getenv("CUDA_VISIBLE_DEVICES"))
	}
	if p.World > 1024 {
		return usage("-g %d: more than 1024 ranks on one host", p.World)
	}
	return nil
}

func sizes(c *cli.Context, p *bench.Plan) error {
	var err error
	if p.MinBytes, err = report.ParseSize(c.String("min-bytes")); err != nil {
		return usage("-b: %w", err)
	}
	p.MaxBytes = 16 << 20
	if p.Engine == "native" {
		p.MaxBytes = 1 << 30
	}
	p.MaxBytes = max(p.MaxBytes, p.MinBytes)
	if c.IsSet("max-bytes") {
		if p.MaxBytes, err = report.ParseSize(c.String("max-bytes")); err != nil {
			return usage("-e: %w", err)
		}
	}
	if c.IsSet("step-factor") && c.IsSet("step-bytes") {
		return usage("-f and -i are two ways to step: give one")
	}
	p.StepFactor = 2
	if c.IsSet("step-bytes") {
		p.StepFactor = 0
		if p.StepBytes, err = report.ParseSize(c.String("step-bytes")); err != nil {
			return usage("-i: %w", err)
		}
	}
	if c.IsSet("step-factor") {
		f, err := strconv.ParseFloat(c.String("step-factor"), 64)
		if err != nil || math.IsNaN(f) || f <= 1 {
			return usage("-f %q: the factor between sizes must be a number above 1 (1.5 works)", c.String("step-factor"))
		}
		p.StepFactor = f
	}
	return nil
}

// list splits a list with commas; nil when it is empty.
func list(text string) []string {
	if text == "" {
		return nil
	}
	return once(strings.Split(text, ","))
}

// modes reads the ways of calling.
func (s *sweepRun) modes(c *cli.Context) error {
	p := &s.plan
	m := &p.Modes
	*m = result.Options{
		Root: c.String("root"), Graph: c.Int("cudagraph"), Aggregate: c.Int("agg-iters"), Register: c.Int("local-register"),
		Blocking: c.Int("blocking"), Cycles: c.Int("cycles"), Unalign: c.Int("unalign"), Split: c.String("split"), Comms: c.Int("comms"),
		Spread: c.Float64("spread"), Matrix: c.String("matrix"),
	}
	if c.IsSet("cta-policy") {
		x := c.Int("cta-policy")
		m.CTAPolicy = &x
	}
	for name, to := range map[string]*bool{
		"stream-null": &m.NullStream, "parallel-init": &m.ParallelInit, "report-cputime": &m.CPUTime, "report-timestamps": &m.Timestamps, "memory": &m.Memory,
	} {
		switch v := c.Int(name); v {
		case 0, 1:
			*to = v == 1
		default:
			return usage("--%s %d: use 0 or 1", name, v)
		}
	}
	p.Average = bench.AverageDefault
	if c.IsSet("average") {
		if p.Average = bench.Average(c.Int("average")); p.Average < bench.AverageRank0 {
			return usage("-a %d: use 0 (rank 0), 1 (mean), 2 (min) or 3 (max)", c.Int("average"))
		}
	}
	switch r, err := strconv.Atoi(m.Root); {
	case m.Root == "all":
		p.Root = bench.AllRoots
	case err != nil:
		return usage("-r %q: a rank or all", m.Root)
	default:
		p.Root = r
	}
	if m.Comms < 1 || m.Aggregate < 1 {
		return usage("--comms and -m must be 1 or more")
	}
	if m.Cycles != 1 && s.runs > 1 {
		return usage("-N repeats in the same processes, --runs in fresh ones: choose one")
	}
	if m.Split != "" {
		if err := bench.ParseSplit(m.Split); err != nil {
			return usage("%w", err)
		}
	}
	return s.matrix(c)
}

// matrix reads an alltoallv matrix. Without sizes of the user's own the size is the matrix's.
func (s *sweepRun) matrix(c *cli.Context) error {
	p := &s.plan
	name := p.Modes.Matrix
	if name == "" {
		return nil
	}
	f, err := os.Open(name)
	if err != nil {
		return usage("--matrix: %w", err)
	}
	defer f.Close()
	if p.Traffic, err = bench.ReadMatrix(f, name, p.World); err != nil {
		return usage("--matrix: %w", err)
	}
	if !slices.Equal(p.Collectives, []string{"alltoallv"}) {
		return usage("--matrix is for alltoallv alone")
	}
	if !c.IsSet("min-bytes") && !c.IsSet("max-bytes") {
		p.MinBytes = p.Traffic.Busiest(p.World)
		p.MaxBytes = p.MinBytes
	}
	return nil
}

// say prints a remark on stderr without disturbing the progress bar.
func (s *sweepRun) say(format string, args ...any) {
	if s.quiet {
		return
	}
	s.progress.Interrupt(func() { fmt.Fprintf(s.stderr, "commprobe: "+format+"\n", args...) })
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// coordinate runs the sweep from this process: with workers of its own, or under torchrun as rank 0 beside the others.
func (s *sweepRun) coordinate() error {
	sw := &bench.Sweep{
		Plan: s.plan, Runs: s.runs, Algos: s.algos, Protos: s.protos, Command: os.Args, Listen: bench.ListenAddr,
		Program: result.Program{Name: "commprobe", Version: programVersion(), Go: runtime.Version()},
		Log:     func(format string, args ...any) { s.say(format, args...) },
	}
	var err error
	if sw.Token, err = s.token(); err != nil {
		return &exitError{bench.ExitInternal, err}
	}
	if s.place == nil {
		sw.Start = func(ctx context.Context, addr string, env []string) (bench.Workers, error) {
			return s.start(ctx, addr, env, sw.Token)
		}
	} else {
		sw.Listen = bench.RendezvousListen(s.place.Rendezvous)
	}
	s.hooks(sw)
	ctx, stop, cancel := interrupts(s)
	defer cancel()
	sw.Stop = stop
	beside := make(chan error, 1)
	if s.place != nil {
		go func() { beside <- bench.RunWorker(ctx, s.placed(sw.Token)) }()
	} else {
		close(beside)
	}
	run := sw.Run(ctx)
	select {
	case <-beside: // its error is the run's outcome
	case <-time.After(5 * time.Second):
	}
	s.progress.Close()
	if s.tuning && run.Outcome.Exit == bench.ExitOK {
		if err := s.tuningPass(ctx, sw, run); err != nil { // what was measured counts without it
			run.Notes = append(run.Notes, result.Note{Severity: "warning", Text: "--tuning: " + err.Error()})
		}
	}
	return s.finish(run)
}

func (s *sweepRun) token() (bootstrap.Token, error) {
	if s.place != nil {
		return launch.JobToken(s.place, os.LookupEnv)
	}
	return bootstrap.NewToken()
}

// start launches one set of local workers.
func (s *sweepRun) start(ctx context.Context, addr string, env []string, token bootstrap.Token) (bench.Workers, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	all := make([]int, s.plan.World)
	for r := range all {
		all[r] = r
	}
	groups := [][]int{all}
	if s.plan.Placement == bench.PlaceProcess {
		groups = nil
		for _, r := range all {
			groups = append(groups, []int{r})
		}
	}
	spec := launch.Spec{Path: self, Args: []string{workerName}, Prefix: true, Stdout: s.stderr, Stderr: s.stderr, Grace: 3 * time.Second}
	for _, ranks := range groups {
		spec.Workers = append(spec.Workers, launch.Worker{Ranks: ranks, Env: append([]string{
			envStore + "=" + addr, launch.EnvToken + "=" + token.String(), envWorld + "=" + strconv.Itoa(s.plan.World),
			envRanks + "=" + joinNumbers(ranks), envDevices + "=" + joinNumbers(ranks),
			envTimeout + "=" + strconv.FormatFloat(s.plan.Timeout.Seconds(), 'g', -1, 64),
		}, env...)})
	}
	g, err := launch.Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	return g, nil
}

// placed is this process as a rank that somebody else started.
func (s *sweepRun) placed(token bootstrap.Token) bench.WorkerConfig {
	device := s.place.LocalRank
	if device < 0 {
		device = 0
	}
	return bench.WorkerConfig{
		Addr: s.place.Rendezvous, Token: token, Ranks: []int{s.place.Rank}, Devices: []int{device}, World: s.place.World,
		Program: programVersion(), JoinTimeout: s.plan.Timeout,
	}
}

// joinOnly is a rank other than 0 under torchrun: rank 0 coordinates and prints.
func (s *sweepRun) joinOnly() error {
	token, err := s.token()
	if err != nil {
		return &exitError{bench.ExitInternal, err}
	}
	// A launcher or a terminal that signals all ranks means one interrupt, which rank 0 acts on for all.
	ctx, stop, cancel := interrupts(s)
	defer cancel()
	cfg := s.placed(token)
	cfg.Stop = stop
	return workerStatus(bench.RunWorker(ctx, cfg))
}

func (s *sweepRun) hooks(sw *bench.Sweep) {
	sw.OnStart = func(run *result.Run) {
		s.started = true
		if s.table != nil {
			_ = s.table.Start(run) // the table keeps its first error; finish returns it
		}
	}
	sw.OnStep = func(done, total int, what string, b result.Bytes) {
		if s.progress == nil && isTerminal(s.stderr) {
			s.progress = report.NewProgress(s.stderr.(*os.File), total, s.quiet)
		}
		s.progress.Begin(what, b)
	}
	sw.OnRow = func(row result.Row) {
		if s.table != nil {
			s.progress.Interrupt(func() { _ = s.table.Row(row) })
		}
		s.progress.Step()
	}
}

// interrupts turns the first SIGINT or SIGTERM into a stop after the present size and the second into an immediate end.
func interrupts(s *sweepRun) (ctx context.Context, stop chan struct{}, cancel func()) {
	ctx, kill := context.WithCancel(context.Background())
	stop = make(chan struct{})
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		select {
		case <-signals:
			s.say("stopping after the present size; interrupt once more to end at once")
			close(stop)
		case <-done:
			return
		}
		select {
		case <-signals:
			kill()
		case <-done:
		}
	}()
	return ctx, stop, func() {
		close(done)
		signal.Stop(signals)
		kill()
	}
}

// finish writes everything that was asked for, also of a run that ended badly, and returns its exit status.
func (s *sweepRun) finish(run *result.Run) error {
	var errs []error
	if s.table != nil && s.started {
		errs = append(errs, s.table.Finish(run))
	}
	if s.json == "-" {
		errs = append(errs, report.WriteJSON(s.stdout, run))
	} else if s.json != "" {
		errs = append(errs, report.WriteFile(s.json, s.opts, func(w io.Writer) error { return report.WriteJSON(w, run) }))
	}
	if s.csv == "-" {
		errs = append(errs, report.WriteCSV(s.stdout, run))
	} else if s.csv != "" {
		errs = append(errs, report.WriteFile(s.csv, s.opts, func(w io.Writer) error { return report.WriteCSV(w, run) }))
	}
	for _, p := range s.plots {
		switch {
		case p == "-":
			errs = append(errs, report.Terminal(s.stdout, run, s.terminalSize()))
		case len(run.Rows) == 0:
			s.say("no rows were measured: %s is not drawn", p)
		default:
			errs = append(errs, report.WritePlot(p, run, s.opts))
		}
	}
	if run.Outcome.Exit != bench.ExitOK {
		return &exitError{run.Outcome.Exit, errors.Join(append(errs, errors.New(ending(&run.Outcome)))...)}
	}
	if err := errors.Join(errs...); err != nil {
		return &exitError{bench.ExitInternal, err}
	}
	return nil
}

// ending is the last line on stderr of a run that did not go well.
func ending(o *result.Outcome) string {
	text := o.Status
	if o.Rank != nil {
		text += fmt.Sprintf(": rank %d", *o.Rank)
		if o.Host != "" {
			text += " on " + o.Host
		}
	}
	if o.Phase != "" {
		text += ": " + o.Phase
	}
	return text + ": " + o.Message
}

func (s *sweepRun) terminalSize() report.Options {
	o := s.opts
	if f, ok := s.stdout.(*os.File); ok {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 30 {
			o.Width = min(w, 120)
		}
	}
	return o
}
