// Command commprobe measures and diagnoses collective communication between GPUs.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/commprobe/commprobe/bench"
)

// version is set by the Makefile; a plain go build leaves it and takes what the Go tool recorded.
var version = ""

func main() {
	os.Exit(run(os.Args, os.Stdout, os.Stderr))
}

// exitError carries an exit status; a nil err is silent because everything was said before.
type exitError struct {
	status int
	err    error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.status)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func usage(format string, args ...any) error {
	return &exitError{bench.ExitUsage, fmt.Errorf(format, args...)}
}

// run is the whole program but for the process: args with the program's name first, and where output goes. It returns the exit status.
func run(args []string, stdout, stderr io.Writer) int {
	return runApp(newApp(stdout, stderr), args, stderr)
}

func runApp(app *cli.App, args []string, stderr io.Writer) int {
	err := app.RunContext(context.Background(), permute(app, args))
	if err == nil {
		return bench.ExitOK
	}
	var e *exitError
	if !errors.As(err, &e) {
		e = &exitError{bench.ExitUsage, err} // from the flag parser
	}
	if e.err != nil {
		fmt.Fprintf(stderr, "commprobe: %v\n", e.err)
	}
	return e.status
}

func newApp(stdout, stderr io.Writer) *cli.App {
	app := &cli.App{
		Name:           "commprobe",
		Usage:          "measure collective communication between GPUs, natively, and say what is wrong",
		HideVersion:    true,
		Writer:         stdout,
		ErrWriter:      stderr,
		ExitErrHandler: func(*cli.Context, error) {}, // run decides
		OnUsageError:   func(_ *cli.Context, err error, _ bool) error { return &exitError{bench.ExitUsage, err} },
		Flags:          globalFlags(),
		Commands:       []*cli.Command{sweepCommand(), plotCommand(), envCommand(), logCommand(), hangCommand(), diagnoseCommand(), rasCommand(), rdmaCommand(), versionCommand(), workerCommand(), hangRankCommand(), rdmaAgentCommand(), doctorCommand(), topoCommand(), linksCommand(), gdrCommand()},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return usage("unknown command %q; commprobe --help lists them", c.Args().First())
			}
			return cli.ShowAppHelp(c)
		},
		CustomAppHelpTemplate: cli.AppHelpTemplate + exitStatusHelp,
	}
	for _, c := range app.Commands {
		c.OnUsageError = func(_ *cli.Context, err error, _ bool) error {
			return usage("%s: %w; commprobe %s --help lists the flags", c.Name, err, c.Name)
		}
	}
	return app
}

const exitStatusHelp = `
EXIT STATUS:
   0 good   1 internal fault   2 usage   3 no device or library missing   4 time-out   5 a rank or peer died
   6 wrong data   8 a fault was found (env check, log, ras, rdma pairs, doctor, links, gdr)   130 interrupted (rows measured so far are kept)
`

// globalFlags are accepted before and after the command's name.
func globalFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "engine", Value: "auto", Usage: "auto, native (GPUs through CUDA and NCCL) or host (CPUs; behaves like NCCL)"},
		&cli.StringFlag{Name: "nccl-lib", Usage: "load this `FILE` as NCCL instead of searching for libnccl.so.2"},
		&cli.StringFlag{Name: "cudart-lib", Usage: "load this `FILE` as the CUDA runtime instead of searching for it"},
		&cli.BoolFlag{Name: "quiet", Usage: "no progress and no remarks on stderr"},
		&cli.BoolFlag{Name: "no-color", Usage: "no colours (the variable NO_COLOR does the same)"},
	}
}

// sayFlags are those of the global ones that concern what is printed, for commands that use no engine.
func sayFlags() []cli.Flag {
	return slices.DeleteFunc(globalFlags(), func(f cli.Flag) bool { return f.Names()[0] != "quiet" && f.Names()[0] != "no-color" })
}

// writeIndented writes one JSON document.
func writeIndented(w io.Writer, v any, indent string) error {
	e := json.NewEncoder(w)
	e.SetIndent("", indent)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// engineName is the --engine that was asked for, refused when there is none of that name.
func engineName(c *cli.Context) (string, error) {
	switch e := text(c, "engine"); e {
	case "auto", "native", "host":
		return e, nil
	default:
		return "", usage("--engine %q: use auto, native or host", e)
	}
}

// text is a flag's value wherever it was given: after the command's name, before it, or by default.
func text(c *cli.Context, name string) string {
	for _, l := range c.Lineage() {
		if l.IsSet(name) {
			return l.String(name)
		}
	}
	return c.String(name)
}

func isSet(c *cli.Context, name string) bool {
	for _, l := range c.Lineage() {
		if l.IsSet(name) {
			return l.Bool(name)
		}
	}
	return false
}

// permute moves the arguments that are not flags behind those that are, so that `sweep all_reduce -g 4` works as hands expect; the flag
// package stops at the first argument that is no flag. "--" ends the flags.
func permute(app *cli.App, args []string) []string {
	if len(args) < 2 {
		return args
	}
	at, cmd := 1, (*cli.Command)(nil)
	takesValue := valueFlags(app.Flags)
	for at < len(args) && strings.HasPrefix(args[at], "-") && len(args[at]) > 1 {
		if takesValue[strings.TrimLeft(args[at], "-")] {
			at++
		}
		at++
	}
	if at < len(args) {
		cmd = app.Command(args[at])
	}
	if cmd == nil {
		return args
	}
	takesValue = valueFlags(cmd.Flags)
	out := append([]string(nil), args[:at+1]...)
	var flags, rest []string
	for i := at + 1; i < len(args); i++ {
		a := args[i]
		if a == "--" {
			rest = append(rest, args[i:]...)
			break
		}
		if !strings.HasPrefix(a, "-") || a == "-" {
			rest = append(rest, a)
			continue
		}
		if a == "--help" || a == "-help" || a == "-h" {
			return append(out, "--help") // with arguments the library looks for a subcommand of that name
		}
		flags = append(flags, a)
		if takesValue[strings.TrimLeft(a, "-")] && i+1 < len(args) {
			i++
			flags = append(flags, args[i])
		}
	}
	return append(append(out, flags...), rest...)
}

func valueFlags(flags []cli.Flag) map[string]bool {
	out := make(map[string]bool)
	for _, f := range flags {
		if _, isBool := f.(*cli.BoolFlag); isBool {
			continue
		}
		for _, n := range f.Names() {
			out[n] = true
		}
	}
	return out
}

// programVersion is the Makefile's, or the commit that the Go tool recorded.
func programVersion() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	rev, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			rev = s.Value[:12]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if rev == "" {
		return "devel"
	}
	return rev + dirty
}
