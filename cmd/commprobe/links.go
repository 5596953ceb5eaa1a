package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/bench/report"
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/internal/nvml"
	"github.com/commprobe/commprobe/internal/topo"
	"github.com/commprobe/commprobe/links"
)

const linksHelp = `Measures what each connection of this node's GPUs gives, one after the other: GPU to GPU by copy engine and by kernels that read and write the far
memory, one way and both ways at once; to and from page-locked host memory near the GPU; the GPU's own memory; latency. All data is checked.

   commprobe links                        all GPUs, 256 MiB a copy, 20 repetitions: well under a minute for eight GPUs
   commprobe links -g 2 --json links.json two GPUs; every sample, and alpha and beta of each way for a cost model
   commprobe links --pairs 0-1,2-3        only these pairs
   commprobe links --engine host          try it without a GPU: the figures then describe this machine's memory

Times are taken on the device by events around copies that are queued back to back. A rate counts payload one way; in a GPU's own memory a copy counts twice.
Figures are compared with the line rate (PCIe generation and lanes, NVLinks and their rate): 80 to 95 % of it is usual. Named are links that run narrower or
slower than they could, NVLinks that are down, error counters that moved during the test, ways slower than their equals, and pairs without peer access.
Run it on an idle node: other work on the GPUs takes its share.

The exit status is 6 for wrong data, 8 when a link is degraded, 4 when a GPU does not come to an end, 0 otherwise.`

// linksHostDevices is how many devices the host engine shows without -g.
const linksHostDevices = 2

// linksPatience is how long NVML may take.
const linksPatience = 20 * time.Second

func linksCommand() *cli.Command {
	flags := append([]cli.Flag{
		&cli.IntFlag{Name: "gpus", Aliases: []string{"g"}, Usage: "how many GPUs, from the first on (default: all; host engine: 2)"},
		&cli.StringFlag{Name: "size", Usage: "bytes of one copy (default: 256M; host engine: 8M)"},
		&cli.IntFlag{Name: "iters", Aliases: []string{"n"}, Value: 20, Usage: "repetitions; the median counts"},
		&cli.StringFlag{Name: "pairs", Usage: "only these `PAIRS` of GPUs: 0-1,2-3"},
		&cli.Float64Flag{Name: "timeout", Aliases: []string{"T"}, Value: 60, Usage: "give up when one step makes no progress for this many seconds"},
		&cli.StringFlag{Name: "json", Usage: "write everything to `FILE` (- is stdout, and nothing else goes there)"},
		&cli.BoolFlag{Name: "force", Usage: "replace files that exist"},
	}, globalFlags()...)
	return &cli.Command{
		Name: "links", Usage: "measure the links between GPUs and to host memory, and find degraded ones", Description: linksHelp, HideHelpCommand: true,
		Flags: flags, Action: runLinks,
	}
}

func runLinks(c *cli.Context) error {
	if c.Args().Present() {
		return usage("links takes no arguments but flags, not %q; choose pairs with --pairs 0-1", c.Args().First())
	}
	if err := checkJSONFile(c, "links"); err != nil {
		return err
	}
	o, err := linksOptions(c)
	if err != nil {
		return err
	}
	say, status := talk(c)
	devices := max(o.Devices, linksHostDevices) // of the host engine
	for _, p := range o.Pairs {
		devices = max(devices, min(max(p[0], p[1]), 1023)+1)
	}
	host, err := gpuEngine(c, devices, say)
	if err != nil {
		return err
	}
	if o.Bytes == 0 {
		o.Bytes = links.DefaultBytes
		if host {
			o.Bytes = links.DefaultBytesHost
		}
	}
	if host && o.Devices == 0 && o.Pairs == nil {
		o.Devices = linksHostDevices
	}
	o.Machine = func() links.Machine { return linksMachine(host) }
	o.Progress = func(done, total int, what string) { status(fmt.Sprintf("%d of %d: %s", done+1, total, what)) }
	ctx, stop := signal.NotifyContext(c.Context, os.Interrupt, syscall.SIGTERM)
	defer stop()
	r, err := links.Run(ctx, o)
	status("")
	if r != nil {
		if werr := writeFound(c, "links", r, r.WriteText); werr != nil {
			return werr
		}
	}
	return linksStatus(ctx, r, err)
}

// linksStatus says the gravest thing that happened.
func linksStatus(ctx context.Context, r *links.Report, err error) error {
	var late *links.TimeoutError
	switch {
	case r != nil && r.WrongData():
		return &exitError{bench.ExitWrongData, errors.New("links: data arrived wrong; see above")}
	case ctx.Err() != nil:
		return &exitError{bench.ExitInterrupted, errors.New("links: interrupted; what was measured before is kept")}
	case errors.Is(err, links.ErrUsage):
		return usage("links: %w", err)
	case errors.As(err, &late):
		return &exitError{bench.ExitTimeout, fmt.Errorf("links: %w", err)}
	case err != nil:
		return &exitError{bench.ExitInternal, fmt.Errorf("links: %w", err)}
	case r.Faults() > 0:
		return &exitError{status: bench.ExitFindings}
	}
	return nil
}

func linksOptions(c *cli.Context) (o links.Options, err error) {
	o = links.Options{Devices: c.Int("gpus"), Repetitions: c.Int("iters"), Program: programVersion()}
	if o.Devices < 0 || o.Devices > 1024 {
		return o, usage("links: -g %d: use the number of GPUs", o.Devices)
	}
	if o.Repetitions < 1 || o.Repetitions > 100000 {
		return o, usage("links: -n %d: use 1 to 100000 repetitions", o.Repetitions)
	}
	if t := c.Float64("timeout"); t >= 0.1 && t <= 86400 {
		o.Deadline = time.Duration(t * float64(time.Second))
	} else {
		return o, usage("links: -T %g: use seconds, 0.1 to 86400", t)
	}
	if s := c.String("size"); s != "" {
		b, err := report.ParseSize(s)
		if err != nil {
			return o, usage("links: --size: %w", err)
		}
		if o.Bytes = int64(b); o.Bytes < 16 || o.Bytes > 1<<40 {
			return o, usage("links: --size %s: use 16 bytes to 1T; small sizes measure latency, not links", s)
		}
	}
	o.Pairs, err = linksPairs(c.String("pairs"))
	return o, err
}

// linksPairs reads 0-1,2-3.
func linksPairs(text string) (out [][2]int, err error) {
	if text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		a, b, ok := strings.Cut(part, "-")
		x, err1 := strconv.Atoi(a)
		y, err2 := strconv.Atoi(b)
		if !ok || err1 != nil || err2 != nil || x < 0 || y < 0 || x == y {
			return nil, usage("links: --pairs %q: write two different GPUs a pair, 0-1,2-3", text)
		}
		out = append(out, [2]int{x, y})
	}
	return out, nil
}

// talk gives ways to say something on stderr: a remark, and on a terminal a line that shows what is being done now and that the next one replaces; "" takes it away.
func talk(c *cli.Context) (say func(format string, args ...any), status func(what string)) {
	quiet := isSet(c, "quiet")
	live := !quiet && isTerminal(c.App.ErrWriter)
	status = func(what string) {
		if live {
			fmt.Fprintf(c.App.ErrWriter, "\r\x1b[K%s", what)
		}
	}
	say = func(format string, args ...any) {
		if !quiet {
			status("")
			fmt.Fprintf(c.App.ErrWriter, "commprobe: "+format+"\n", args...)
		}
	}
	return say, status
}

// gpuEngine chooses the engine for what needs CUDA and no NCCL.
func gpuEngine(c *cli.Context, hostDevices int, say func(format string, args ...any)) (host bool, err error) {
	engine, err := engineName(c)
	if err != nil {
		return false, err
	}
	if engine != "host" {
		err := cuda.Load(cuda.Options{RuntimePath: text(c, "cudart-lib")})
		if err == nil {
			return false, nil
		}
		if engine == "native" {
			status := bench.ExitInternal
			var none *cuda.NoDeviceError
			if _, lib := csrc.IsLibrary(err); lib || errors.As(err, &none) {
				status = bench.ExitNoDevice
			}
			return false, &exitError{status, fmt.Errorf("native engine: %w", err)}
		}
		say("engine: host, since %v", err)
	}
	cuda.UseHost(hostDevices)
	return true, nil
}

// linksMachine asks NVML and /sys. The host engine's devices are in neither.
func linksMachine(host bool) links.Machine {
	if host {
		return links.Machine{}
	}
	ctx, cancel := context.WithTimeout(context.Background(), linksPatience)
	defer cancel()
	var m links.Machine
	var err error
	if m.NVML, err = nvml.Read(ctx, nvml.Options{}); err != nil {
		m.NVML, m.NVMLWhy = nil, err.Error()
	}
	if g, err := topo.ReadSys("/", topoDevices(m.NVML)); err == nil {
		m.Graph = g
	}
	return m
}
