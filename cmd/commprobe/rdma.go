package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/bench/report"
	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/internal/bootstrap"
	"github.com/commprobe/commprobe/internal/launch"
	"github.com/commprobe/commprobe/rdma"
)

var rdmaHelp = `Tests the RDMA link between two hosts: bandwidth and latency of WRITE, READ and SEND, with the data checked. One host serves, the other asks.

   commprobe rdma list                                 devices, ports, GIDs of this machine; or what it lacks
   commprobe rdma serve                                on one host: prints the command for the other
   COMMPROBE_TOKEN=… commprobe rdma write hostb        64 KiB writes, as ib_write_bw
   commprobe rdma read hostb -a -q 4                   all sizes from 2 B to 8 MiB, 4 QPs
   commprobe rdma send hostb -s 4K,1M -b               two sizes, both directions at once
   commprobe rdma write hostb -s 2..64K -D 5           powers of two, 5 seconds each
   commprobe rdma latency hostb                        write, read and send, as ib_write_lat, ib_read_lat, ib_send_lat; or name which, also atomic
   commprobe rdma sweep hostb --json r.json            everything over all sizes
   commprobe rdma write hostb -x 3 -m 4096             this GID index and MTU; by default both are negotiated, and the choice is shown
   commprobe rdma write hostb --memory gpu:0           from GPU to GPU memory by nvidia_peermem; dmabuf:0: by DMA-BUF

The client's options rule both sides; serve may fix its own device, port, GID index and memory. The two share a token: serve takes COMMPROBE_TOKEN, or
makes one and shows it. It serves one client after the other until it is interrupted (--once: until the first is done).

Letters are perftest's: -d -i -s -a -n -D -q -t -b -x -m. Average bandwidth is all data over the time from the first post to the last completion, peak
the best window within. Latency of write and send is half a round trip; no sample is dropped. MiB is 2^20 bytes, Gb is 10^9 bits.

What is checked: before each timed series some messages whose content changes from one to the next, and what the timed series left. Targets are poisoned
before. The first wrong byte ends the test with status 6; --inject-fault plants one to show that it is found.

The link ends the test on both sides: after -T seconds without progress, when a QP fails (with what its error means), when the peer dies.

` + rdmaPairsHelp + `

Keys of --set, with their defaults:
` + indented(strings.Join(rdma.Keys(), "\n"))

const (
	rdmaLink = "1. The link"
	rdmaWork = "2. What to measure"
	rdmaOut  = "3. Output and end"
)

func rdmaCommand() *cli.Command {
	return &cli.Command{
		Name:            "rdma",
		Usage:           "test the RDMA link between two hosts",
		ArgsUsage:       "list | serve [ADDR] | write|read|send|sweep ADDR | latency ADDR [write|read|send|atomic…] | pairs --hosts A,B…",
		Description:     rdmaHelp,
		HideHelpCommand: true,
		Flags:           slices.Concat(rdmaFlags(), rdmaPairsFlags(), sayFlags()),
		Action:          rdmaAction,
	}
}

func rdmaFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Category: rdmaLink, Name: "device", Aliases: []string{"d"}, DefaultText: "the first with an active port", Usage: "`NAME` of this side's device"},
		&cli.IntFlag{Category: rdmaLink, Name: "port", Aliases: []string{"i"}, DefaultText: "the first that is active", Usage: "port `N` of the device"},
		&cli.StringFlag{Category: rdmaLink, Name: "gid-index", Aliases: []string{"x"}, DefaultText: "the best pair", Usage: "`INDEX` of this side's GID, or CLIENT:SERVER"},
		&cli.IntFlag{Category: rdmaLink, Name: "mtu", Aliases: []string{"m"}, DefaultText: "the smaller of the two active ones", Usage: "`BYTES`: 256, 512, 1024, 2048 or 4096"},
		&cli.StringFlag{Category: rdmaLink, Name: "memory", DefaultText: "host", Usage: "`WHERE` the data lies: host, gpu:N (needs nvidia_peermem) or dmabuf:N"},
		&cli.BoolFlag{Category: rdmaLink, Name: "hugepages", Usage: "host memory in huge pages"},
		&cli.StringFlag{Category: rdmaWork, Name: "size", Aliases: []string{"s"}, DefaultText: "64K; 2 for latency; all for sweep", Usage: "message `SIZE`, several with commas, powers of two as 2..1M"},
		&cli.BoolFlag{Category: rdmaWork, Name: "all", Aliases: []string{"a"}, Usage: "all powers of two from 2 B to 8 MiB, and 64 KiB + 1"},
		&cli.IntFlag{Category: rdmaWork, Name: "iters", Aliases: []string{"n"}, Value: rdma.Defaults().Iterations, Usage: "timed operations a QP"},
		&cli.Float64Flag{Category: rdmaWork, Name: "duration", Aliases: []string{"D"}, Usage: "`SECONDS` a series, instead of -n"},
		&cli.IntFlag{Category: rdmaWork, Name: "qps", Aliases: []string{"q"}, Value: 1, Usage: "`N` QPs (bandwidth)"},
		&cli.IntFlag{Category: rdmaWork, Name: "depth", Aliases: []string{"t"}, Value: rdma.Defaults().Depth, Usage: "`N` operations outstanding, a QP"},
		&cli.BoolFlag{Category: rdmaWork, Name: "bidirectional", Aliases: []string{"b"}, Usage: "both sides post at the same time; the rates are added (bandwidth)"},
		&cli.StringSliceFlag{Category: rdmaWork, Name: "set", Usage: "`KEY=VALUE` of what is rarely changed, listed above"},
		&cli.BoolFlag{Category: rdmaWork, Name: "inject-fault", Usage: "damage one byte: proves that the check sees it (exit 6)"},
		&cli.Float64Flag{Category: rdmaOut, Name: "timeout", Aliases: []string{"T"}, Value: rdma.Defaults().Deadline.Seconds(), Usage: "end after `SECONDS` without progress"},
		&cli.BoolFlag{Category: rdmaOut, Name: "once", Usage: "serve: end after one client, with its test's status"},
		&cli.StringFlag{Category: rdmaOut, Name: "json", Usage: "write the result to `FILE` (- is stdout, and nothing else goes there)"},
		&cli.BoolFlag{Category: rdmaOut, Name: "force", Usage: "replace files that exist"},
	}
}

// rdmaAction looks at the first argument itself, as hang does.
func rdmaAction(c *cli.Context) error {
	what, args := c.Args().First(), c.Args().Tail()
	if c.Bool("all-pairs") {
		if what != "pairs" {
			args = c.Args().Slice()
		}
		what = "pairs"
	}
	if what != "pairs" {
		if err := rdmaNotPairs(c, what); err != nil {
			return err
		}
	}
	switch what {
	case "pairs":
		return rdmaPairs(c, args)
	case "list":
		return rdmaList(c, args)
	case "serve":
		return rdmaServe(c, args)
	case "write", "read", "send", "latency", "sweep":
		return rdmaTest(c, what, args)
	case "":
		return usage("rdma: say list, serve, write, read, send, latency, sweep or pairs; commprobe rdma --help has examples")
	}
	return usage("rdma %s: there are list, serve, write, read, send, latency, sweep and pairs; commprobe rdma --help has examples", what)
}

// rdmaFailed gives an error of the package its exit status.
func rdmaFailed(what string, err error) error {
	status, ok := map[rdma.Kind]int{
		rdma.Usage: bench.ExitUsage, rdma.Unusable: bench.ExitNoDevice, rdma.TimedOut: bench.ExitTimeout, rdma.Died: bench.ExitDied,
		rdma.WrongData: bench.ExitWrongData, rdma.Interrupted: bench.ExitInterrupted,
	}[rdma.KindOf(err)]
	if !ok {
		status = bench.ExitInternal
	}
	return &exitError{status, fmt.Errorf("rdma %s: %w", what, err)}
}

// rdmaOutput checks --json before anything is measured, and says where the text goes.
func rdmaOutput(c *cli.Context) (opts report.Options, text io.Writer, err error) {
	opts, text = report.Options{Force: c.Bool("force")}, c.App.Writer
	switch out := c.String("json"); out {
	case "":
	case "-":
		text = io.Discard
	default:
		if err := report.CheckOutput(out, opts); err != nil {
			if errors.Is(err, report.ErrExists) {
				return opts, nil, usage("rdma: --json: %w (--force)", err)
			}
			return opts, nil, usage("rdma: --json: %w", err)
		}
	}
	return opts, text, nil
}

func rdmaJSON(c *cli.Context, opts report.Options, v any) error {
	out := c.String("json")
	write := func(w io.Writer) error { return writeIndented(w, v, " ") }
	var err error
	switch out {
	case "":
	case "-":
		err = write(c.App.Writer)
	default:
		err = report.WriteFile(out, opts, write)
	}
	if err != nil {
		return &exitError{bench.ExitInternal, fmt.Errorf("rdma: --json: %w", err)}
	}
	return nil
}

func rdmaList(c *cli.Context, args []string) error {
	if len(args) > 0 {
		return usage("rdma list takes no arguments")
	}
	opts, text, err := rdmaOutput(c)
	if err != nil {
		return err
	}
	l, err := rdma.Devices("")
	if err != nil {
		return rdmaFailed("list", err)
	}
	if err := l.WriteText(text); err != nil {
		return &exitError{bench.ExitInternal, err}
	}
	return rdmaJSON(c, opts, l)
}

func rdmaWant(c *cli.Context) (rdma.Want, error) {
	w := rdma.Want{Device: c.String("device"), Port: c.Int("port"), Program: programVersion(), CPU: -1}
	if w.Port < 0 || w.Port > 255 {
		return w, usage("rdma: -i %d: ports are numbered from 1", w.Port)
	}
	return w, nil
}

// rdmaDeadline reads -T.
func rdmaDeadline(c *cli.Context) (time.Duration, error) {
	t := c.Float64("timeout")
	if !(t >= 0.1 && t <= 86400) {
		return 0, usage("rdma: -T %g: use seconds, 0.1 to 86400; a wait without an end is what this tool is there to avoid", t)
	}
	return time.Duration(t * float64(time.Second)), nil
}

// rdmaGIDs reads -x: CLIENT, CLIENT:SERVER or :SERVER.
func rdmaGIDs(text string) (client, server int, err error) {
	client, server = -1, -1
	if text == "" {
		return client, server, nil
	}
	c, s, both := strings.Cut(text, ":")
	for _, one := range []struct {
		text string
		to   *int
		may  bool // be empty
	}{{c, &client, both}, {s, &server, true}} {
		if one.text == "" && one.may {
			continue
		}
		if *one.to, err = strconv.Atoi(one.text); err != nil || *one.to < 0 || *one.to > 65535 {
			return 0, 0, usage("rdma: -x %q: write an index from the table of commprobe rdma list, or CLIENT:SERVER", text)
		}
	}
	return client, server, nil
}

// rdmaToken is COMMPROBE_TOKEN; fresh says that it was not set and one was made.
func rdmaToken(make bool) (token bootstrap.Token, fresh bool, err error) {
	text, set := os.LookupEnv(launch.EnvToken)
	switch {
	case set:
		if token, err = bootstrap.ParseToken(text); err != nil {
			err = usage("rdma: %s: %w", launch.EnvToken, err)
		}
		return token, false, err
	case make:
		token, err = bootstrap.NewToken()
		return token, true, err
	}
	return token, false, usage("rdma: %s is not set: `commprobe rdma serve` on the other host prints the whole command, with the token", launch.EnvToken)
}

func rdmaServe(c *cli.Context, args []string) error {
	if len(args) > 1 {
		return usage("rdma serve: one address at most, [HOST][:PORT]")
	}
	for _, f := range []string{"size", "all", "iters", "duration", "qps", "depth", "bidirectional", "mtu", "set", "inject-fault", "hugepages"} {
		if c.IsSet(f) {
			return usage("rdma serve: --%s is the client's to say; serve takes -d, -i, -x, --memory, -T, --once, --json", f)
		}
	}
	opts, text, err := rdmaOutput(c)
	if err != nil {
		return err
	}
	s := rdma.Server{Addr: rdma.CompleteAddr(strings.Join(args, "")), Once: c.Bool("once")}
	if s.Want, err = rdmaWant(c); err != nil {
		return err
	}
	if s.Want.Memory = c.String("memory"); s.Want.Memory != "" {
		o := rdma.Defaults()
		o.Memory = s.Want.Memory
		if err := o.Validate(); err != nil {
			return rdmaFailed("serve", err)
		}
	}
	if s.GID, _, err = rdmaGIDs(c.String("gid-index")); err != nil {
		return err
	}
	if s.Deadline, err = rdmaDeadline(c); err != nil {
		return err
	}
	if c.String("json") != "" && !s.Once {
		return usage("rdma serve: --json is one document, so it goes with --once")
	}
	var fresh bool
	if s.Token, fresh, err = rdmaToken(true); err != nil {
		return err
	}
	say := rdmaSay(c)
	s.Hooks, s.Log = rdmaHooks(c, text), say
	s.Listening = func(addr string) { rdmaInvite(text, addr, s.Token, fresh) }
	var written error
	s.Done = func(r *rdma.Report, err error) {
		rdma.NewTable(text).Footer(r)
		written = rdmaJSON(c, opts, r)
		if err != nil && !s.Once {
			say("%v", err)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := s.Run(ctx); err != nil {
		return rdmaFailed("serve", err)
	}
	return written
}

// rdmaInvite prints what to type on the other host.
func rdmaInvite(w io.Writer, addr string, token bootstrap.Token, fresh bool) {
	host, port, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		if host, err = os.Hostname(); err != nil {
			host = "HOST"
		}
	}
	env := ""
	if fresh {
		env = launch.EnvToken + "=" + token.String() + " "
	}
	fmt.Fprintf(w, "# serving at %s; on the other host:\n%scommprobe rdma sweep %s\n", addr, env, net.JoinHostPort(host, port))
}

func rdmaSay(c *cli.Context) func(string, ...any) {
	w, quiet := c.App.ErrWriter, isSet(c, "quiet")
	return func(format string, args ...any) {
		if !quiet {
			fmt.Fprintf(w, "commprobe: rdma: %s\n", fmt.Sprintf(format, args...))
		}
	}
}

// rdmaHooks print a test as it goes.
func rdmaHooks(c *cli.Context, text io.Writer) rdma.Hooks {
	say := rdmaSay(c)
	var t *rdma.Table
	h := rdma.Hooks{
		Header: func(r *rdma.Report) { t = rdma.NewTable(text); t.Header(r) },
		Row:    func(_ *rdma.Report, row *rdma.Row) { t.Row(row) },
		Tell:   func(s string) { say("%s", s) },
	}
	if w := c.App.ErrWriter; !isSet(c, "quiet") && isTerminal(w) {
		h.Step = func(s string) { fmt.Fprintf(w, "\r\x1b[K%s …\r", s) }
		h.Row = func(_ *rdma.Report, row *rdma.Row) {
			fmt.Fprint(w, "\r\x1b[K")
			t.Row(row)
		}
	}
	return h
}

func rdmaTest(c *cli.Context, what string, args []string) error {
	if len(args) == 0 {
		return usage("rdma %s: name the host where `commprobe rdma serve` runs", what)
	}
	if c.Bool("once") {
		return usage("rdma %s: --once goes with serve", what)
	}
	opts, text, err := rdmaOutput(c)
	if err != nil {
		return err
	}
	cl := rdma.Client{Addr: rdma.CompleteAddr(args[0]), Hooks: rdmaHooks(c, text)}
	if cl.Options, err = rdmaOptions(c, what, args[1:]); err != nil {
		return err
	}
	if cl.Want, err = rdmaWant(c); err != nil {
		return err
	}
	if cl.Token, _, err = rdmaToken(false); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r, err := cl.Run(ctx)
	rdma.NewTable(text).Footer(r)
	if written := rdmaJSON(c, opts, r); err == nil {
		err = written
	} else {
		err = rdmaFailed(what, err)
	}
	return err
}

// rdmaOptions makes the options of the flags; names are the tests of latency.
func rdmaOptions(c *cli.Context, what string, names []string) (rdma.Options, error) {
	o := rdma.Defaults()
	var err error
	if o.Tests, err = rdmaTests(what, names); err != nil {
		return o, err
	}
	if o.Sizes, err = rdmaSizes(c, what); err != nil {
		return o, err
	}
	if o.ClientGID, o.ServerGID, err = rdmaGIDs(c.String("gid-index")); err != nil {
		return o, err
	}
	if o.Deadline, err = rdmaDeadline(c); err != nil {
		return o, err
	}
	if d := c.Float64("duration"); c.IsSet("duration") {
		if !(d > 0 && d <= 86400) {
			return o, usage("rdma: -D %g: use seconds, up to 86400", d)
		}
		if c.IsSet("iters") {
			return o, usage("rdma: -n and -D: a number or a duration, not both")
		}
		o.Duration = time.Duration(d * float64(time.Second))
		o.Margin = min(o.Margin, o.Duration/10)
	}
	o.Iterations, o.QPs, o.Depth, o.MTU = c.Int("iters"), c.Int("qps"), c.Int("depth"), c.Int("mtu")
	o.Bidirectional, o.InjectFault, o.HugePages = c.Bool("bidirectional"), c.Bool("inject-fault"), c.Bool("hugepages")
	if m := c.String("memory"); m != "" {
		o.Memory = m
	}
	for _, kv := range c.StringSlice("set") {
		if err := o.Set(kv); err != nil {
			return o, usage("rdma: --set %w", err)
		}
	}
	if what == "latency" && (o.Bidirectional || c.IsSet("qps") || c.IsSet("depth")) {
		return o, usage("rdma latency: one operation at a time on one QP, so -b, -q and -t have no meaning")
	}
	if err := o.Validate(); err != nil {
		return o, usage("rdma: %w", err)
	}
	return o, nil
}

func rdmaTests(what string, names []string) ([]string, error) {
	if what != "latency" && len(names) > 0 {
		return nil, usage("rdma %s: one address and nothing more, not %q", what, names[0])
	}
	switch what {
	case "sweep":
		return []string{"write", "read", "send", "write latency", "read latency", "send latency"}, nil
	case "latency":
	default:
		return []string{what}, nil
	}
	if len(names) == 0 {
		names = []string{"write", "read", "send"}
	}
	var out []string
	for _, n := range once(names) {
		if _, err := rdma.FindTest(n + " latency"); err != nil {
			return nil, usage("rdma latency: %q: there are write, read, send and atomic", n)
		}
		out = append(out, n+" latency")
	}
	return out, nil
}

// rdmaSizes reads -s and -a.
func rdmaSizes(c *cli.Context, what string) ([]int, error) {
	text := c.String("size")
	switch {
	case c.Bool("all") && text != "":
		return nil, usage("rdma: -a and -s: all sizes or those, not both")
	case c.Bool("all") || text == "" && what == "sweep":
		return rdma.AllSizes(), nil
	case text == "" && what == "latency":
		return []int{2}, nil
	case text == "":
		return rdma.Defaults().Sizes, nil
	}
	var out []int
	for part := range strings.SplitSeq(text, ",") {
		lo, hi, ranged := strings.Cut(part, "..")
		if !ranged {
			hi = lo
		}
		a, err1 := report.ParseSize(lo)
		b, err2 := report.ParseSize(hi)
		if err := cmp.Or(err1, err2); err != nil {
			return nil, usage("rdma: -s: %w", err)
		}
		if a < 1 || b < a {
			return nil, usage("rdma: -s %s: sizes are 1 or more, and the first of a range is the smaller", part)
		}
		for n := a; n <= b && len(out) < 1000; n *= 2 {
			out = append(out, int(min(n, result.Bytes(1)<<40)))
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}
