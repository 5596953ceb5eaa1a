package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/bench/report"
	"github.com/commprobe/commprobe/nccl/ncclog"
)

const logHelp = `Reads what NCCL writes with NCCL_DEBUG=INFO and says what was decided, why, and what is wrong: findings first, then for each communicator its ranks,
versions, settings and where they came from, network, GPUDirect RDMA, connections, rings and trees, choice of algorithm, time of the
initialisation; then the WARN lines with their meaning. NCCL 2.10 to 2.31; one file, a file a rank, or all ranks mixed in one stream; time stamps,
labels of launchers, colours and the program's own output do not matter. A log may be of any size.

   NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,ENV,NET,GRAPH,TUNING mpirun … 2>&1 | tee job.log
   commprobe log job.log                       what happened, what is wrong
   commprobe log logs/                         a folder with a file a rank (NCCL_DEBUG_FILE=logs/%h.%p), .gz too
   kubectl logs job/train | commprobe log -    straight from the cluster
   commprobe log slow.log --vs good.log        what was decided differently: settings, NICs, transports, rings, algorithms
   commprobe log job.log --json - | jq '.findings[].title'
   commprobe log job.log --json - | jq '.log.comms[0].ranks[] | {rank, network: .network.value}'

For a hang, log the calls as well: NCCL_DEBUG_SUBSYS=…,COLL; then the ranks' calls are compared.
The exit status is 8 when a finding is a fault, 0 otherwise.`

func logCommand() *cli.Command {
	flags := []cli.Flag{
		&cli.StringFlag{Name: "json", Usage: "write the whole model to `FILE` (- is stdout, and nothing else goes there)"},
		&cli.StringFlag{Name: "vs", Usage: "compare with the log `OTHER`: it is the old one"},
		&cli.BoolFlag{Name: "force", Usage: "replace files that exist"},
	}
	return &cli.Command{
		Name:            "log",
		Usage:           "read NCCL's logs: what was decided, and what is wrong",
		ArgsUsage:       "FILE|DIR|-…",
		Description:     logHelp,
		HideHelpCommand: true,
		Flags:           flags,
		Action:          readLog,
	}
}

// logDocument is the JSON of the command.
type logDocument struct {
	Format      string              `json:"format"`
	Findings    []ncclog.Finding    `json:"findings"`
	Log         *ncclog.Log         `json:"log"`
	Differences []ncclog.Difference `json:"differences,omitempty"`
}

func readLog(c *cli.Context) error {
	paths, out, opts := c.Args().Slice(), c.String("json"), report.Options{Force: c.Bool("force")}
	if len(paths) == 0 {
		return usage("log: name at least one log, a folder, or - for stdin; commprobe log --help has examples")
	}
	if slices.Contains(paths, "-") && c.String("vs") == "-" {
		return usage("log: stdin can be one of the two logs only")
	}
	if out != "" && out != "-" {
		if err := report.CheckOutput(out, opts); err != nil {
			return usage("log: --json: %w", err)
		}
	}
	log, err := ncclog.Open(paths, os.Stdin)
	if err != nil {
		return usage("log: %w", err)
	}
	doc := logDocument{Format: "commprobe log 1", Log: log, Findings: log.Findings()}
	if c.IsSet("vs") {
		old, err := ncclog.Open([]string{c.String("vs")}, os.Stdin)
		if err != nil {
			return usage("log: --vs: %w", err)
		}
		doc.Differences = ncclog.Diff(old, log)
	}
	if err := writeLog(c, doc, out, opts); err != nil {
		return &exitError{bench.ExitInternal, fmt.Errorf("log: %w", err)}
	}
	if slices.ContainsFunc(doc.Findings, func(f ncclog.Finding) bool { return f.Severity == ncclog.Fault }) {
		return &exitError{status: bench.ExitFindings}
	}
	return nil
}

func writeLog(c *cli.Context, doc logDocument, out string, opts report.Options) error {
	if out != "" {
		write := func(w io.Writer) error { return writeIndented(w, doc, " ") }
		if out == "-" {
			return write(c.App.Writer)
		}
		if err := report.WriteFile(out, opts, write); err != nil {
			return err
		}
	}
	if c.IsSet("vs") {
		return ncclog.WriteDiff(c.App.Writer, doc.Differences, c.String("vs"), strings.Join(c.Args().Slice(), " "))
	}
	return ncclog.WriteReport(c.App.Writer, doc.Log, doc.Findings)
}
