package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/bench/report"
	"github.com/commprobe/commprobe/nccl/ras"
)

const rasHelp = `Every process of an NCCL job (2.24 or later) listens on a port for questions about the job; one answers for all. The question is put twice: counts that
differ between ranks are normal in a job that works, counts that differ and stand still are not.

   commprobe ras                               the job on this host, at NCCL_RAS_ADDR or localhost:28028
   commprobe ras node7:28028                   another host (the job's NCCL_RAS_ADDR must not be localhost then)
   commprobe ras --interval 30                 for steps that take longer than two seconds
   commprobe ras --working                     the job should be computing now: equal counts that stand still are an alarm too
   commprobe ras --json - | jq .comparison

It says alarm, and the exit status is 8, when ranks' counts differ and none of them moved, when ranks or processes gave no data twice, or when ranks report
an error; 0 otherwise; 3 when nobody answers. It only asks: nothing in the job changes.`

const rasLimits = "RAS counts calls that hosts made (AllReduce, AllGather, ReduceScatter, Broadcast, Reduce), not calls that are complete; " +
	"send, recv and graph replays not at all."

func rasCommand() *cli.Command {
	return &cli.Command{
		Name:            "ras",
		Usage:           "ask a running job's NCCL which ranks are behind",
		ArgsUsage:       "[HOST:PORT]",
		Description:     rasHelp,
		HideHelpCommand: true,
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "samples", Value: 2, Usage: "how often to ask, at least 2"},
			&cli.Float64Flag{Name: "interval", Value: 2, Usage: "`SECONDS` between two samples"},
			&cli.Float64Flag{Name: "timeout", Value: 5, Usage: "`SECONDS` that NCCL waits for the job's other processes"},
			&cli.BoolFlag{Name: "working", Usage: "the job should make progress now: equal counts that stand still are an alarm too"},
			&cli.StringFlag{Name: "json", Usage: "write samples and comparison to `FILE` (- is stdout, and nothing else goes there)"},
			&cli.BoolFlag{Name: "force", Usage: "replace files that exist"},
		},
		Action: askRAS,
	}
}

// rasDocument is the JSON of the command.
type rasDocument struct {
	Format     string          `json:"format"`
	Address    string          `json:"address"`
	Interval   float64         `json:"interval_s"`
	Samples    []*ras.Report   `json:"samples"`
	Comparison *ras.Comparison `json:"comparison"`
	Limits     string          `json:"limits"`
}

func askRAS(c *cli.Context) error {
	addr, err := rasAddr(c)
	if err != nil {
		return err
	}
	n, interval, timeout, out := c.Int("samples"), c.Float64("interval"), c.Float64("timeout"), c.String("json")
	switch {
	case n < 2 || n > 1000:
		return usage("ras: --samples %d: use 2 to 1000; one sample cannot tell a job that works from one that hangs", n)
	case !(interval >= 0 && interval <= 3600):
		return usage("ras: --interval %v: use seconds, 0 to 3600", interval)
	case !(timeout >= 1 && timeout <= 600):
		return usage("ras: --timeout %v: use seconds, 1 to 600", timeout)
	}
	opts := report.Options{Force: c.Bool("force")}
	if out != "" && out != "-" {
		if err := report.CheckOutput(out, opts); err != nil {
			return usage("ras: --json: %w", err)
		}
	}
	ctx, stop := signal.NotifyContext(c.Context, os.Interrupt, syscall.SIGTERM)
	defer stop()
	opt := ras.Options{Timeout: time.Duration(timeout * float64(time.Second))}
	samples, err := ras.Watch(ctx, addr, opt, n, time.Duration(interval*float64(time.Second)))
	if ctx.Err() != nil {
		return &exitError{bench.ExitInterrupted, fmt.Errorf("ras: interrupted after %d samples", len(samples))}
	}
	if len(samples) < 2 {
		return &exitError{rasStatus(err), fmt.Errorf("ras: %w", err)}
	}
	doc := rasDocument{"commprobe ras 1", addr, interval, samples, ras.Compare(samples[0], samples[len(samples)-1], c.Bool("working")), rasLimits}
	if err != nil {
		doc.Comparison.Notes = append(doc.Comparison.Notes, err.Error())
	}
	if err := writeRAS(c, doc, out, opts); err != nil {
		return &exitError{bench.ExitInternal, fmt.Errorf("ras: %w", err)}
	}
	if doc.Comparison.Alarm {
		return &exitError{status: bench.ExitFindings}
	}
	return nil
}

// rasAddr is where to ask: the argument, NCCL_RAS_ADDR, or NCCL's default.
func rasAddr(c *cli.Context) (string, error) {
	if c.NArg() > 1 {
		return "", usage("ras: one address at most; commprobe ras --help has examples")
	}
	addr := cmp.Or(c.Args().First(), os.Getenv("NCCL_RAS_ADDR"), ras.DefaultAddr)
	host, port, ok := cutAddr(addr)
	switch {
	case !ok && strings.Trim(addr, "0123456789") == "":
		addr = "localhost:" + addr
	case !ok:
		addr += ":28028"
	case host == "" && port != "":
		addr = "localhost:" + port
	}
	return addr, nil
}

// cutAddr splits HOST:PORT; a bare IPv6 address has no port.
func cutAddr(addr string) (host, port string, ok bool) {
	i := strings.LastIndexByte(addr, ':')
	if i < 0 || strings.HasSuffix(addr, "]") || strings.Count(addr, ":") > 1 && !strings.Contains(addr, "]") {
		return addr, "", false
	}
	return addr[:i], addr[i+1:], true
}

// rasStatus is the exit status for a question that got no answer.
func rasStatus(err error) int {
	var nobody *ras.NobodyError
	var protocol *ras.ProtocolError
	if errors.As(err, &nobody) || errors.As(err, &protocol) {
		return bench.ExitNoDevice
	}
	return bench.ExitUsage
}

func writeRAS(c *cli.Context, doc rasDocument, out string, opts report.Options) error {
	if out != "" {
		write := func(w io.Writer) error { return writeIndented(w, doc, " ") }
		if out == "-" {
			return write(c.App.Writer)
		}
		if err := report.WriteFile(out, opts, write); err != nil {
			return err
		}
	}
	var b strings.Builder
	rasText(&b, doc)
	_, err := io.WriteString(c.App.Writer, b.String())
	return err
}

// rasText is the answer for people: what RAS says, what the two samples say together, what RAS cannot say.
func rasText(b *strings.Builder, doc rasDocument) {
	last := doc.Samples[len(doc.Samples)-1]
	fmt.Fprintf(b, "%s: NCCL %s", doc.Address, cmp.Or(last.NCCLVersion, "?"))
	if last.Nodes > 0 {
		fmt.Fprintf(b, ", %d nodes, %d processes, %d GPUs", last.Nodes, last.Processes, last.GPUs)
	}
	fmt.Fprintf(b, "; %d samples, %g s apart\n\n", len(doc.Samples), doc.Interval)
	rasTable(b, doc.Samples[0], last)
	verdict := "no alarm: nothing stands still that should not"
	switch {
	case doc.Comparison.Alarm:
		verdict = "ALARM"
	case doc.Comparison.Moving:
		verdict = "no alarm: the job moves"
	}
	fmt.Fprintf(b, "\n%s\n", verdict)
	for _, f := range doc.Comparison.Findings {
		if f.Kind == ras.Moving && doc.Comparison.Alarm {
			continue
		}
		where := ""
		if f.Comm != "" {
			where = f.Comm + ": "
		}
		fmt.Fprintf(b, "  %-7s %s%s\n", f.Kind, where, f.Text)
		rasPlaces(b, last, f)
	}
	for _, n := range doc.Comparison.Notes {
		fmt.Fprintf(b, "  note    %s\n", n)
	}
	if last.Timeouts > 0 {
		fmt.Fprintf(b, "  note    %d time-outs while NCCL gathered this: some of its processes answer late or not at all\n", last.Timeouts)
	}
	if last.Cut {
		b.WriteString("  note    the last answer broke off in the middle\n")
	}
	fmt.Fprintf(b, "\n%s\n", rasLimits)
}

// rasTable has a line a communicator and operation.
func rasTable(b *strings.Builder, first, last *ras.Report) {
	fmt.Fprintf(b, "%-20s %6s %6s  %-9s %-12s %s\n", "communicator", "comms", "ranks", "status", "errors", "calls (first sample > last)")
	old := make(map[string]*ras.Communicator)
	for i := range first.Communicators {
		old[first.Communicators[i].Hash] = &first.Communicators[i]
	}
	const most = 64
	for i := range last.Communicators {
		if i == most {
			fmt.Fprintf(b, "… and %d more\n", len(last.Communicators)-most)
			break
		}
		x := &last.Communicators[i]
		name := cmp.Or(x.Hash, fmt.Sprintf("group %d", x.Group))
		fmt.Fprintf(b, "%-20s %6d %6d  %-9s %-12s", name, x.Comms, x.Size, x.Status, x.Errors)
		ops := slices.Sorted(maps.Keys(x.Counts))
		if len(ops) == 0 {
			b.WriteString(" equal on all ranks, or none\n")
			continue
		}
		for j, op := range ops {
			if j > 0 {
				fmt.Fprintf(b, "\n%58s", "")
			}
			var before []ras.Level
			if x.Hash != "" && old[x.Hash] != nil {
				before = old[x.Hash].Counts[op]
			}
			fmt.Fprintf(b, " %s %s > %s", op, rasCounts(before), rasCounts(x.Counts[op]))
		}
		b.WriteString("\n")
	}
	if len(last.Communicators) == 0 {
		b.WriteString("none yet, or none any more\n")
	}
}

// rasCounts writes levels as "640 x30, 641 x2".
func rasCounts(levels []ras.Level) string {
	if len(levels) == 0 {
		return "?"
	}
	var parts []string
	for i, l := range levels {
		if i == 4 {
			parts = append(parts, "…")
			break
		}
		parts = append(parts, fmt.Sprintf("%d x%d", l.Count, l.N))
	}
	return strings.Join(parts, ", ")
}

// rasPlaces says where the ranks of a finding are, the ones that are behind first.
func rasPlaces(b *strings.Builder, rep *ras.Report, f ras.Finding) {
	places := make(map[int]ras.Place)
	for i := range rep.Communicators {
		x := &rep.Communicators[i]
		if cmp.Or(x.Hash, fmt.Sprintf("group %d", x.Group)) != f.Comm {
			continue
		}
		for _, p := range x.Places {
			places[p.Rank] = p
		}
		for _, m := range x.Missing {
			places[m.Rank] = ras.Place{Rank: m.Rank, PID: m.PID, GPU: m.GPU, Host: m.Host}
		}
	}
	for _, set := range []struct {
		what  string
		ranks []int
	}{{"behind", f.Behind}, {"ahead", f.Ahead}, {"", f.Ranks}} {
		const most = 8
		for i, r := range set.ranks {
			p, ok := places[r]
			if !ok || len(set.ranks) > most && i >= most {
				continue
			}
			fmt.Fprintf(b, "          %-6s rank %d: process %d on %s, GPU %d\n", set.what, r, p.PID, cmp.Or(p.Host, "?"), p.GPU)
		}
		if len(set.ranks) > most {
			fmt.Fprintf(b, "          %-6s … and %d more\n", set.what, len(set.ranks)-most)
		}
	}
}
