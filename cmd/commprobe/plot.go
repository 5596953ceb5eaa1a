package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/bench/report"
)

const plotHelp = `Draws any result file: those of sweep (--json, --csv, or its table), the output of nccl-tests of every age and its -J files, that of rccl-tests
and other relatives. Labels of launchers, log lines and cut rows do not matter, nor does the name of the file. What is odd in a file is told
on stderr with the number of the line.

   commprobe plot run.txt                         the curve in the terminal
   commprobe plot run.txt -o run.png              and as a picture: busbw and time over size, with the model line
   commprobe plot old.txt new.txt -o both.svg     several runs in one picture (a file may have several tables, too)
   commprobe plot slurm-123.out --csv -           the rows as CSV, nothing else on stdout
   mpirun … all_reduce_perf … | commprobe plot -  straight from the program

The picture and the terminal show bandwidths computed from size and time, which have more digits than the printed ones; the CSV has the printed ones.`

func plotCommand() *cli.Command {
	flags := []cli.Flag{
		&cli.StringSliceFlag{Name: "output", Aliases: []string{"o"}, Usage: "draw to `FILE`.png, .svg or .pdf; may be given more than once"},
		&cli.StringFlag{Name: "csv", Usage: "write the rows to `FILE` (- is stdout)"},
		&cli.BoolFlag{Name: "no-draw", Usage: "no curve in the terminal"},
		&cli.BoolFlag{Name: "force", Usage: "replace files that exist"},
	}
	return &cli.Command{
		Name:            "plot",
		Usage:           "draw or convert result files, ours and those of nccl-tests",
		ArgsUsage:       "FILE…   (- is stdin)",
		Description:     plotHelp,
		HideHelpCommand: true,
		Flags:           append(flags, sayFlags()...),
		Action:          plot,
	}
}

func plot(c *cli.Context) error {
	pictures, table := c.StringSlice("output"), c.String("csv")
	opts := report.Options{Force: c.Bool("force"), Color: !isSet(c, "no-color") && isTerminal(c.App.Writer)}
	if err := checkPlotOutputs(pictures, table, opts); err != nil {
		return err
	}
	docs, err := readResults(c.Args().Slice(), os.Stdin)
	if !isSet(c, "quiet") {
		tellWarnings(c.App.ErrWriter, docs)
	}
	if err != nil {
		return usage("plot: %w", err)
	}
	if table != "" {
		write := func(w io.Writer) error { return report.WriteCurvesCSV(w, report.Curves(docs, false)) }
		if table == "-" {
			err = write(c.App.Writer)
		} else {
			err = report.WriteFile(table, opts, write)
		}
		if err != nil {
			return &exitError{bench.ExitInternal, fmt.Errorf("plot: --csv: %w", err)}
		}
	}
	for _, path := range pictures {
		if err := report.WriteCurvesPlot(path, report.Curves(docs, true), opts); err != nil {
			return &exitError{bench.ExitInternal, fmt.Errorf("plot: -o: %w", err)}
		}
	}
	if table == "-" || c.Bool("no-draw") {
		return nil
	}
	return drawInTerminal(c.App.Writer, docs, opts)
}

// checkPlotOutputs refuses, before anything is read, outputs that could not be written.
func checkPlotOutputs(pictures []string, table string, opts report.Options) error {
	seen := map[string]bool{}
	for i, path := range append([]string{table}, pictures...) {
		flag := "-o"
		if i == 0 {
			if flag = "--csv"; path == "" || path == "-" {
				continue
			}
		} else if _, err := report.PlotFormat(path); err != nil {
			return usage("plot: -o: %w", err)
		}
		switch err := report.CheckOutput(path, opts); {
		case errors.Is(err, report.ErrExists):
			return usage("plot: %s: %w (--force)", flag, err)
		case err != nil:
			return usage("plot: %s: %w", flag, err)
		}
		if clean := filepath.Clean(path); seen[clean] && !strings.HasPrefix(path, "/dev/") {
			return usage("plot: %s is to be written twice: choose two names", path)
		}
		seen[filepath.Clean(path)] = true
	}
	return nil
}

// readResults reads each file. A file that cannot be read, or has no rows, is an error that says what is in it instead; the documents so far are
// returned too.
func readResults(names []string, stdin io.Reader) ([]*report.Document, error) {
	if len(names) == 0 {
		return nil, errors.New("name at least one result file, or - for stdin; commprobe plot --help has examples")
	}
	var docs []*report.Document
	for _, name := range names {
		doc, err := readResult(name, stdin)
		if doc != nil {
			docs = append(docs, doc)
		}
		if err != nil {
			return docs, err
		}
		if doc.Rows() == 0 {
			return docs, fmt.Errorf("%s: no result rows; %s", doc.Name, insteadOfRows(doc))
		}
	}
	return docs, nil
}

func readResult(name string, stdin io.Reader) (*report.Document, error) {
	if name == "-" {
		return report.Read(stdin, "stdin")
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return report.Read(f, name)
}

// insteadOfRows says what a file without rows holds: the failures in it, else what is odd, else what it looks like.
func insteadOfRows(doc *report.Document) string {
	for _, severity := range []string{report.Fault, report.Odd} {
		var says []string
		for _, w := range doc.Warnings {
			if w.Severity == severity && len(says) < 4 {
				says = append(says, w.Text)
			}
		}
		if len(says) > 0 {
			return "it says: " + strings.Join(says, "; ")
		}
	}
	if doc.FirstLine == "" {
		return "it is empty"
	}
	return fmt.Sprintf("nothing of a result format is in it; it begins %q", doc.FirstLine)
}

// tellWarnings prints each warning once, as compilers do.
func tellWarnings(w io.Writer, docs []*report.Document) {
	for _, doc := range docs {
		for _, warning := range doc.Warnings {
			fmt.Fprintf(w, "%s:%d: %s\n", doc.Name, warning.Line, warning.Text)
		}
	}
}

func drawInTerminal(w io.Writer, docs []*report.Document, opts report.Options) error {
	for _, doc := range docs {
		for i := range doc.Runs {
			run := &doc.Runs[i]
			if len(run.Run.Rows) == 0 {
				continue
			}
			if _, err := fmt.Fprintf(w, "%s:%d: %s\n", doc.Name, run.Line, run.Summary()); err != nil {
				return err
			}
			if err := report.Terminal(w, run.Exact(), opts); err != nil {
				return err
			}
			fmt.Fprintln(w)
		}
	}
	return nil
}
