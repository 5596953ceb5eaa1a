package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/rdma"
	"github.com/commprobe/commprobe/rdma/pairs"
)

// rdmaPairsHelp is a part of the help of rdma.
const rdmaPairsHelp = `Every NIC of every pair of hosts, as a matrix, with the slow ones named:

   commprobe rdma pairs --hosts a,b,c                  5000 writes of 64 KiB each way, all active NICs (also: rdma --all-pairs --hosts a,b,c)
   commprobe rdma pairs --hosts a,b,c --rails          only NICs of the same name with each other
   commprobe rdma pairs --hosts a,b --test latency --json pairs.json
   commprobe rdma pairs --hosts a=10.0.0.1,root@b      reach a at that address, enter b as root

An agent is started on each host through --rsh; the same commprobe must be there, at the same path or at --remote-binary. It ends when this command does. No
host is in two measurements at once; host pairs that share none are measured at the same time (--one-at-a-time: never). What looks slow is measured a second
time by itself. Exit status: 6 wrong data, 5 a host could not take part, 8 a pair is slow or failed.`

const rdmaAll = "4. All pairs"

func rdmaPairsFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Category: rdmaAll, Name: "hosts", Usage: "pairs: `HOSTS` with commas, each [USER@]NAME[=ADDRESS]; ADDRESS is how the others reach it"},
		&cli.BoolFlag{Category: rdmaAll, Name: "all-pairs", Usage: "the same as the word pairs"},
		&cli.StringFlag{Category: rdmaAll, Name: "test", Value: "write", Usage: "pairs: write, read, send or latency"},
		&cli.StringFlag{Category: rdmaAll, Name: "devices", DefaultText: "all with an active port", Usage: "pairs: `NAMES` with commas, DEVICE or DEVICE/PORT"},
		&cli.BoolFlag{Category: rdmaAll, Name: "rails", Usage: "pairs: only NICs of the same name; by position, where names differ between hosts"},
		&cli.Float64Flag{Category: rdmaAll, Name: "below", DefaultText: "0.8; latency 0.5", Usage: "pairs: slow is below this `FRACTION` of the port rate, or of what a fifth of like pairs reach"},
		&cli.BoolFlag{Category: rdmaAll, Name: "one-at-a-time", Usage: "pairs: one host pair at a time"},
		&cli.StringFlag{Category: rdmaAll, Name: "rsh", Value: pairs.DefaultShell, Usage: "pairs: remote shell, `COMMAND` to which host and command are appended"},
		&cli.StringFlag{Category: rdmaAll, Name: "remote-binary", DefaultText: "this program's path", Usage: "pairs: `PATH` of commprobe on the other hosts"},
		&cli.IntFlag{Category: rdmaAll, Name: "tcp-port", DefaultText: "any", Usage: "pairs: TCP port `N` of each host for the control connection, where a firewall lets only some through"},
	}
}

// rdmaNotPairs refuses the flags above where they have no meaning.
func rdmaNotPairs(c *cli.Context, what string) error {
	for _, f := range rdmaPairsFlags() {
		if name := f.Names()[0]; c.IsSet(name) {
			return usage("rdma %s: --%s goes with pairs", what, name)
		}
	}
	return nil
}

// rdmaAgentCommand is what `rdma pairs` starts on each host.
func rdmaAgentCommand() *cli.Command {
	return &cli.Command{
		Name:   pairs.AgentCommand,
		Hidden: true,
		Usage:  "measure on this host for rdma pairs; started by it, spoken to over stdin and stdout",
		Action: func(*cli.Context) error { return rdmaAgent(os.Stdin, os.Stdout) },
	}
}

func rdmaAgent(in io.Reader, out io.Writer) error {
	// A hang-up of the terminal or of ssh closes stdin as well, and that is the orderly way.
	signal.Ignore(syscall.SIGHUP)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	a := pairs.Agent{Program: programVersion(), Bench: pairs.Verbs{Program: programVersion()}}
	if err := a.Run(ctx, in, out); err != nil && ctx.Err() == nil {
		return &exitError{bench.ExitInternal, fmt.Errorf("%s: %w", pairs.AgentCommand, err)}
	}
	return nil
}

func rdmaPairs(c *cli.Context, args []string) error {
	if len(args) > 0 {
		return usage("rdma pairs: takes no arguments but flags, not %q; name hosts with --hosts a,b,c", args[0])
	}
	opts, text, err := rdmaOutput(c)
	if err != nil {
		return err
	}
	plan, err := rdmaPairsPlan(c)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return &exitError{bench.ExitInternal, fmt.Errorf("rdma pairs: own path: %w", err)}
	}
	shell := pairs.Shell{Command: c.String("rsh"), Binary: c.String("remote-binary"), Self: self}
	if shell.Binary == "" {
		shell.Binary = self
	}
	hooks, clear := rdmaPairsHooks(c)
	shell.Stderr = func(host, line string) { hooks.Tell(host + ": " + line) }
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r, err := pairs.Run(ctx, plan, shell.Start, hooks)
	clear()
	if werr := r.WriteText(text); werr != nil {
		return &exitError{bench.ExitInternal, fmt.Errorf("rdma pairs: %w", werr)}
	}
	if werr := rdmaJSON(c, opts, r); werr != nil {
		return werr
	}
	return rdmaPairsStatus(r, err)
}

// rdmaPairsStatus says the gravest thing that happened.
func rdmaPairsStatus(r *pairs.Result, err error) error {
	var f *pairs.Failure
	switch {
	case r.Count(pairs.WrongData) > 0:
		return &exitError{status: bench.ExitWrongData}
	case r.Interrupted:
		return &exitError{bench.ExitInterrupted, errors.New("rdma pairs: interrupted")}
	case errors.As(err, &f):
		return rdmaFailed("pairs", &rdma.Problem{Kind: f.Kind, Text: f.Text, Err: err})
	case err != nil:
		return rdmaFailed("pairs", err)
	case r.HostFailed():
		return &exitError{status: bench.ExitDied}
	case r.Verdict.Status != pairs.Good:
		return &exitError{status: bench.ExitFindings}
	}
	return nil
}

// rdmaPairsPlan reads the flags.
func rdmaPairsPlan(c *cli.Context) (pairs.Plan, error) {
	p := pairs.Plan{Program: programVersion(), Rails: c.Bool("rails"), OneAtATime: c.Bool("one-at-a-time"), TCPPort: c.Int("tcp-port"), Below: c.Float64("below")}
	for _, f := range []string{"device", "port", "gid-index", "all", "once"} {
		if c.IsSet(f) {
			return p, usage("rdma pairs: --%s has no meaning here: NICs are taken with --devices, GIDs chosen for each pair", f)
		}
	}
	if c.String("hosts") == "" {
		return p, usage("rdma pairs: name the hosts: --hosts a,b,c")
	}
	var err error
	if p.Hosts, err = pairs.ParseHosts(c.String("hosts")); err != nil {
		return p, usage("rdma pairs: --hosts: %w", err)
	}
	what, names := c.String("test"), []string(nil)
	switch what {
	case "write", "read", "send":
	case "latency":
		names = []string{"write"}
	default:
		return p, usage("rdma pairs: --test %q: there are write, read, send and latency", what)
	}
	if p.Options, err = rdmaOptions(c, what, names); err != nil {
		return p, err
	}
	if !c.IsSet("iters") && p.Options.Duration == 0 && what != "latency" {
		p.Options.Iterations = rdmaPairsIterations
	}
	if len(p.Options.Sizes) != 1 {
		return p, usage("rdma pairs: -s %s: one size: a matrix shows one", c.String("size"))
	}
	if c.IsSet("below") && !(p.Below > 0 && p.Below <= 1) {
		return p, usage("rdma pairs: --below %g: a fraction above 0, at most 1", p.Below)
	}
	if p.TCPPort < 0 || p.TCPPort > 65535 {
		return p, usage("rdma pairs: --tcp-port %d: 1 to 65535", p.TCPPort)
	}
	for name := range strings.SplitSeq(c.String("devices"), ",") {
		if name = strings.TrimSpace(name); name != "" {
			p.Devices = append(p.Devices, name)
		}
	}
	return p, nil
}

// rdmaPairsIterations are 328 MB at the default size: 7 ms at 400 Gb/s, which the first and last microseconds do not bend.
const rdmaPairsIterations = 5000

// rdmaPairsHooks show how far it is, on a terminal. clear takes the last such line away.
func rdmaPairsHooks(c *cli.Context) (h pairs.Hooks, clear func()) {
	w := c.App.ErrWriter
	say := rdmaSay(c)
	progress := !isSet(c, "quiet") && isTerminal(w)
	var mu sync.Mutex // lines of agents come from other goroutines
	clear = func() {
		mu.Lock()
		defer mu.Unlock()
		if progress {
			fmt.Fprint(w, "\r\x1b[K")
		}
	}
	h.Tell = func(text string) {
		clear()
		mu.Lock()
		defer mu.Unlock()
		say("%s", text)
	}
	if progress {
		h.Step = func(done, total int, text string) {
			mu.Lock()
			defer mu.Unlock()
			fmt.Fprintf(w, "\r\x1b[K%d of %d: %.60s\r", done, total, text)
		}
	}
	return h, clear
}
