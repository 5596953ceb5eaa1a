package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/bench/report"
	"github.com/commprobe/commprobe/hanglab/diagnose"
	"github.com/commprobe/commprobe/hanglab/evidence"
	"github.com/commprobe/commprobe/hanglab/live"
)

const diagnoseHelp = `Says from what a hung job has left behind who is to blame, in which call, and why: the verdict first, then where, how sure it is and on which lines
it rests, what speaks against it, what else it could be, what to collect next, and the likely fix.

   commprobe diagnose dumps/                           PyTorch's Flight Recorder dumps, a file a rank (pickle or JSON, every version)
   commprobe diagnose job.log /tmp/nccl_trace_rank_*   the launcher's output as well: the more, the surer
   commprobe diagnose rank_3.log                       one rank's log: often no more than "cannot tell", and what would tell
   kubectl logs job/train | commprobe diagnose -       from stdin, also tar cz dumps/ | …
   commprobe diagnose case.tar.gz dmesg.txt ras.txt    archives, the kernel's log, NCCL's RAS, py-spy and gdb stacks
   commprobe diagnose dumps/ --html hang.html          a page of its own: all ranks' calls by sequence number
   commprobe diagnose dumps/ --json - | jq '{class, ranks, fix}'
   commprobe diagnose --live --job                     on this host, while it hangs: asks every rank of the job (RAS, stacks, /proc, dumps)
   commprobe diagnose --live 4711 4712 job.log         these processes, and a file; nothing is stopped, ended or changed

Any mix of files, folders and archives (tar, zip, gz); what a file is, its content says. A rank is known by its file's name (trace_3, rank_3.log) or
by the labels of launchers. Logs of NCCL with NCCL_DEBUG_SUBSYS=…,COLL show the calls where no dump does.

What to collect while it hangs: the dumps (echo > PIPE of TORCH_NCCL_DEBUG_INFO_PIPE_FILE, or they come with the time-out), the output of all ranks,
py-spy dump --pid of the ranks that are behind, ncclras, dmesg. What to collect of a hang that is over: all that is left, and sacct or kubectl describe.

A verdict is as good as its evidence. Who is named in a log is usually a victim; who is silent is the suspect. When two ranks disagree and nothing
breaks the tie, both are named. When all have launched the same call and none has finished it, no rank is.

Exit status: 8 when the verdict accuses (also when something hangs and no rank can be named), 0 when nothing is wrong or the evidence does not
tell (class undecided), 2 when nothing could be read.`

func diagnoseCommand() *cli.Command {
	flags := []cli.Flag{
		&cli.BoolFlag{Name: "all", Usage: "all evidence with its text, and everything that was read"},
		&cli.StringFlag{Name: "json", Usage: "write the verdict to `FILE` as JSON (- is stdout, and nothing else there)"},
		&cli.StringFlag{Name: "html", Usage: "write a page with the ranks' calls to `FILE`"},
		&cli.BoolFlag{Name: "live", Usage: "arguments that are numbers are processes: collect evidence from them first"},
		&cli.BoolFlag{Name: "job", Usage: "with --live: all ranks on this host of the job that the processes belong to, or of the only job"},
		&cli.StringFlag{Name: "keep", Usage: "with --live: keep what was collected in `DIR`, which may be read again, also by others"},
		&cli.BoolFlag{Name: "force", Usage: "replace files that exist"},
	}
	return &cli.Command{
		Name:            "diagnose",
		Usage:           "say who is to blame for a hang, in which call, and why",
		ArgsUsage:       "PATH… | --live PID… | --live --job   (- is stdin)",
		Description:     diagnoseHelp,
		HideHelpCommand: true,
		Flags:           append(flags, sayFlags()...),
		Action:          runDiagnose,
	}
}

func runDiagnose(c *cli.Context) error {
	opts := report.Options{Force: c.Bool("force")}
	if err := checkDiagnoseOutputs(c, opts); err != nil {
		return err
	}
	e, err := gather(c)
	if err != nil {
		return err
	}
	if !isSet(c, "quiet") {
		tellUnread(c.App.ErrWriter, e.Inputs)
	}
	v := diagnose.Diagnose(e)
	if err := writeVerdict(c, v, e, opts); err != nil {
		return &exitError{bench.ExitInternal, fmt.Errorf("diagnose: %w", err)}
	}
	if v.Accuses() {
		return &exitError{bench.ExitFindings, nil}
	}
	return nil
}

func checkDiagnoseOutputs(c *cli.Context, opts report.Options) error {
	asJSON, page := c.String("json"), c.String("html")
	if page != "" && page == asJSON {
		return usage("diagnose: --json and --html both write %s", page)
	}
	for _, o := range []struct{ flag, file string }{{"json", asJSON}, {"html", page}} {
		if o.file == "" || o.file == "-" {
			continue
		}
		switch err := report.CheckOutput(o.file, opts); {
		case errors.Is(err, report.ErrExists):
			return usage("diagnose: --%s: %w (--force)", o.flag, err)
		case err != nil:
			return usage("diagnose: --%s: %w", o.flag, err)
		}
	}
	return nil
}

// gather reads all inputs. Nothing that could be read is an error of usage: a script that names the wrong folder must not hear that all is well.
func gather(c *cli.Context) (*evidence.Evidence, error) {
	paths, targets, err := diagnoseArguments(c)
	if err != nil {
		return nil, err
	}
	e := &evidence.Evidence{}
	if c.Bool("live") {
		if e, err = collectLive(c, targets); err != nil {
			return nil, err
		}
	}
	if len(paths) > 0 {
		show, end := readProgress(c.App.ErrWriter, isSet(c, "quiet"))
		read, err := evidence.Read(paths, evidence.Options{Stdin: os.Stdin, Progress: show})
		end()
		if err != nil {
			return nil, usage("diagnose: %w", err)
		}
		e.Inputs, e.Dumps, e.Facts = append(e.Inputs, read.Inputs...), append(e.Dumps, read.Dumps...), append(e.Facts, read.Facts...)
		e.Comms, e.RAS, e.Stacks = append(e.Comms, read.Comms...), append(e.RAS, read.RAS...), append(e.Stacks, read.Stacks...)
	}
	if err := nothingRead(e); err != nil {
		return nil, usage("diagnose: %w", err)
	}
	return e, nil
}

// diagnoseArguments tells files from processes.
func diagnoseArguments(c *cli.Context) (paths []string, targets live.Targets, err error) {
	targets.Job = c.Bool("job")
	if !c.Bool("live") {
		if targets.Job || c.IsSet("keep") {
			return nil, targets, usage("diagnose: --job and --keep go with --live")
		}
		if !c.Args().Present() {
			return nil, targets, usage("diagnose: name dumps, logs, folders or archives, or - for stdin; commprobe diagnose --help has examples")
		}
	}
	for _, arg := range c.Args().Slice() {
		pid, err := strconv.Atoi(arg)
		if c.Bool("live") && err == nil {
			if pid < 1 {
				return nil, targets, usage("diagnose: --live %d: a process has a number from 1 on", pid)
			}
			targets.PIDs = append(targets.PIDs, pid)
			continue
		}
		if arg == "-" && slices.Contains(paths, "-") {
			return nil, targets, usage("diagnose: stdin can be read once only")
		}
		if arg != "-" {
			if _, err := os.Stat(arg); err != nil {
				var pe *fs.PathError
				if errors.As(err, &pe) {
					err = pe.Err
				}
				return nil, targets, usage("diagnose: %s: %w", arg, err)
			}
		}
		paths = append(paths, arg)
	}
	if c.Bool("live") && !targets.Job && len(targets.PIDs) == 0 {
		return nil, targets, usage("diagnose: --live: name the processes, or --job for all ranks of this host's job")
	}
	return paths, targets, nil
}

// collectLive asks the processes themselves. An interrupt ends that early and leaves what is known by then.
func collectLive(c *cli.Context, targets live.Targets) (*evidence.Evidence, error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o := live.Options{Dir: c.String("keep")}
	if w := c.App.ErrWriter; !isSet(c, "quiet") && isTerminal(w) {
		o.Progress = func(text string) { fmt.Fprintf(w, "\r\x1b[K%s …\r", text) }
		defer fmt.Fprint(w, "\r\x1b[K")
	}
	e, err := live.Collect(ctx, targets, o)
	if err != nil {
		return nil, usage("diagnose: --live: %w", err)
	}
	return e, nil
}

// nothingRead is what is wrong with the inputs when they gave nothing at all.
func nothingRead(e *evidence.Evidence) error {
	if len(e.Inputs) == 0 {
		return errors.New("the folders are empty")
	}
	if len(e.Dumps)+len(e.Facts)+len(e.Comms)+len(e.RAS)+len(e.Stacks) > 0 {
		return nil
	}
	if i := slices.IndexFunc(e.Inputs, func(in evidence.Input) bool { return in.Err == "" }); i >= 0 {
		return nil
	}
	return fmt.Errorf("%s: %s", plainLine(e.Inputs[0].Name), plainLine(e.Inputs[0].Err))
}

// tellUnread says what could not be read, or not wholly.
func tellUnread(w io.Writer, inputs []evidence.Input) {
	const most = 5
	n := 0
	for _, in := range inputs {
		if in.Err == "" || in.Kind == live.NotCollected { // those are listed by --all
			continue
		}
		if n++; n <= most {
			fmt.Fprintf(w, "commprobe: diagnose: %s: %s\n", plainLine(in.Name), plainLine(in.Err))
		}
	}
	if n > most {
		fmt.Fprintf(w, "commprobe: diagnose: and %d more inputs like these (--all lists them)\n", n-most)
	}
}

// plainLine keeps names of an archive's members from drawing on the terminal.
func plainLine(s string) string {
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// readProgress shows on a terminal how far long inputs are.
func readProgress(w io.Writer, quiet bool) (show func(name string, bytes int64), end func()) {
	if quiet || !isTerminal(w) {
		return nil, func() {}
	}
	var mu sync.Mutex
	last, shown := time.Now().Add(500*time.Millisecond), false // nothing for what is read at once
	show = func(name string, bytes int64) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(last) < 200*time.Millisecond {
			return
		}
		last, shown = time.Now(), true
		fmt.Fprintf(w, "\r\x1b[Kreading %s: %d MB …\r", plainLine(filepath.Base(name)), bytes>>20)
	}
	return show, func() {
		mu.Lock()
		defer mu.Unlock()
		if shown {
			fmt.Fprint(w, "\r\x1b[K")
		}
	}
}

// writeVerdict writes what was asked for, and the text unless something else took stdout.
func writeVerdict(c *cli.Context, v *diagnose.Verdict, e *evidence.Evidence, opts report.Options) error {
	taken := false
	page := func(w io.Writer) error { return v.WriteHTML(w, e, "commprobe "+programVersion()) }
	for _, o := range []struct {
		file  string
		write func(io.Writer) error
	}{{c.String("json"), v.WriteJSON}, {c.String("html"), page}} {
		var err error
		switch o.file {
		case "":
		case "-":
			taken = true
			err = o.write(c.App.Writer)
		default:
			err = report.WriteFile(o.file, opts, o.write)
		}
		if err != nil {
			return err
		}
	}
	if taken {
		return nil
	}
	return v.WriteText(c.App.Writer, screenOf(c, e))
}

// screenOf is how the text is to look.
func screenOf(c *cli.Context, e *evidence.Evidence) diagnose.TextOptions {
	o := diagnose.TextOptions{All: c.Bool("all"), Inputs: e.Inputs}
	if !isTerminal(c.App.Writer) {
		return o
	}
	o.Color = !isSet(c, "no-color") && os.Getenv("NO_COLOR") == ""
	if width, _, err := term.GetSize(int(c.App.Writer.(*os.File).Fd())); err == nil && width > 0 {
		o.Width = min(width, 140)
	}
	return o
}
