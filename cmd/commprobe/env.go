package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/bench/report"
	"github.com/commprobe/commprobe/nccl/ncclenv"
)

const envHelp = `check     says which settings of NCCL and PyTorch are in force and from where, then what is wrong with them. NCCL itself says nothing when a name
          is misspelt, a number has a unit, or true is read as 0.
explain   what a variable does, how its value is written, its default, since when, when to set it, and what it contradicts.
profile   a commented template for a shell: debug to find out what is wrong, prod for production.

   commprobe env check                             this shell, with NCCL_CONF_FILE or ~/.nccl.conf, and /etc/nccl.conf
   commprobe env check --pid 4711                  what a running rank was started with, also in a container
   commprobe env check --file job.sbatch           a script, the output of env, an env file, an nccl.conf, docker inspect, Kubernetes YAML or JSON,
   commprobe env check --file nccl.log             or an NCCL log (its "set by environment" lines)
   srun -l env | commprobe env check -             the ranks of a job: also what differs between them (- is stdin)
   commprobe env check host*.env                   several files, one a host: the same
   commprobe env check --nccl-version 2.21.5       also what this version does not know yet, or any more
   commprobe env check --json - | jq .findings
   commprobe env explain NCCL_IB_HCA 'NCCL_P2P_*'  without the prefix and in lower case, too
   commprobe env explain --layer net-ib            all of one layer, a line each; without a name the layers
   commprobe env profile prod > nccl-prod.sh

What counts, first to last: the environment, then the file of NCCL_CONF_FILE or else ~/.nccl.conf, then /etc/nccl.conf. A file never overrides
what is set. Of an environment only variables of NCCL, of PyTorch's NCCL parts, and a few of CUDA and the loader are kept or shown.

Findings are faults (it does not do what it says, or does harm), warnings (it works but may mislead or cost) and notes. Exit status 8: a fault.`

func envCommand() *cli.Command {
	flags := []cli.Flag{
		&cli.IntFlag{Name: "pid", DefaultText: "this shell", Usage: "check the environment of process `N`"},
		&cli.StringSliceFlag{Name: "file", Usage: "check what `FILE` sets (- is stdin); several are compared, one a host"},
		&cli.StringFlag{Name: "nccl-version", Usage: "the `VERSION` of NCCL that will run, for example 2.21.5"},
		&cli.StringFlag{Name: "layer", Usage: "explain: all variables of `LAYER`"},
		&cli.StringFlag{Name: "json", Usage: "write the result to `FILE` as JSON (- is stdout, and nothing else there)"},
		&cli.BoolFlag{Name: "force", Usage: "replace files that exist"},
	}
	return &cli.Command{
		Name:            "env",
		Usage:           "check and explain the environment variables of NCCL and PyTorch",
		ArgsUsage:       "check [FILE…] | explain [NAME…] | profile debug|prod",
		Description:     envHelp,
		HideHelpCommand: true,
		Flags:           flags,
		Action:          env,
	}
}

// env looks at the first argument itself: subcommands would end the flags that permute brings to the front.
func env(c *cli.Context) error {
	what, args := c.Args().First(), c.Args().Tail()
	takes := map[string][]string{"check": {"pid", "file", "nccl-version", "json", "force"}, "explain": {"layer", "json", "force"}, "profile": {}}
	allowed, ok := takes[what]
	if !ok {
		if what == "" {
			return usage("env: say check, explain or profile; commprobe env --help has examples")
		}
		return usage("env %s: there are check, explain and profile; commprobe env --help has examples", what)
	}
	for _, name := range c.LocalFlagNames() {
		if !slices.Contains(allowed, name) {
			return usage("env %s takes no --%s; commprobe env --help has examples", what, name)
		}
	}
	if file := c.String("json"); file != "" && file != "-" {
		switch err := report.CheckOutput(file, report.Options{Force: c.Bool("force")}); {
		case errors.Is(err, report.ErrExists):
			return usage("env %s: --json: %w (--force)", what, err)
		case err != nil:
			return usage("env %s: --json: %w", what, err)
		}
	}
	switch what {
	case "check":
		return envCheck(c, args)
	case "explain":
		return envExplain(c, args)
	}
	return envProfile(c, args)
}

func envCheck(c *cli.Context, args []string) error {
	var version ncclenv.Version
	if s := c.String("nccl-version"); s != "" {
		var ok bool
		if version, ok = ncclenv.ParseVersion(s); !ok || version.Major != 2 {
			return usage("env check: --nccl-version %q: write it as 2.21.5", s)
		}
	}
	files := append(c.StringSlice("file"), args...)
	var sources []*ncclenv.Source
	switch {
	case c.IsSet("pid") && len(files) > 0:
		return usage("env check: --pid and files: choose one")
	case c.IsSet("pid"):
		if c.Int("pid") < 1 {
			return usage("env check: --pid %d: a process has a number from 1 on", c.Int("pid"))
		}
		src, err := ncclenv.FromProcess("/proc", c.Int("pid"), version)
		if err != nil {
			return usage("env check: --pid: %w", err)
		}
		sources = append(sources, src)
	case len(files) > 0:
		var err error
		if sources, err = readEnvFiles(files, os.Stdin); err != nil {
			return usage("env check: %w", err)
		}
	default:
		place := ncclenv.Place{Root: "/", Machine: ncclenv.MachineAt("/")}
		sources = append(sources, ncclenv.FromEnvironment(os.Environ(), place, version))
	}
	r := ncclenv.NewReport(sources, version)
	if err := writeFound(c, "env", r, r.WriteText); err != nil {
		return err
	}
	if ncclenv.HasFault(r.Findings) {
		return &exitError{bench.ExitFindings, nil}
	}
	return nil
}

// readEnvFiles reads each file; several of equal name in different folders are told apart by their folders.
func readEnvFiles(files []string, stdin io.Reader) ([]*ncclenv.Source, error) {
	var sources []*ncclenv.Source
	for _, name := range files {
		got, err := readEnvFile(name, stdin)
		if err != nil {
			return nil, err
		}
		for _, src := range got {
			if len(files) > 1 && src.Name == name {
				src.Name = hostLabel(name, files)
			}
			sources = append(sources, src)
		}
	}
	return sources, nil
}

func readEnvFile(name string, stdin io.Reader) ([]*ncclenv.Source, error) {
	if name == "-" {
		return ncclenv.Read(stdin, "stdin")
	}
	f, err := os.Open(name)
	if err != nil {
		if errors.Is(err, fs.ErrPermission) {
			return nil, fmt.Errorf("%w (of another user? a running process: --pid N)", err)
		}
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return nil, fmt.Errorf("%s is a directory: name its files", name)
	}
	return ncclenv.Read(f, name)
}

// hostLabel is a file's name without folder and ending where that is enough to tell the files apart.
func hostLabel(name string, files []string) string {
	short := func(f string) string {
		base := filepath.Base(f)
		if cut := strings.TrimSuffix(base, filepath.Ext(base)); cut != "" {
			return cut
		}
		return base
	}
	for _, f := range files {
		if f != name && short(f) == short(name) {
			return name
		}
	}
	return short(name)
}

func envExplain(c *cli.Context, names []string) error {
	layer := c.String("layer")
	var vars []*ncclenv.Variable
	switch {
	case layer != "" && len(names) > 0:
		return usage("env explain: --layer or names: choose one")
	case layer != "":
		for _, v := range ncclenv.Variables() {
			if v.Layer == layer {
				vars = append(vars, v)
			}
		}
		if len(vars) == 0 {
			return usage("env explain: no layer %q; there are %s", layer, strings.Join(layerNames(), ", "))
		}
		return writeFound(c, "env", vars, func(w io.Writer) error { return ncclenv.List(w, vars) })
	case len(names) == 0:
		return writeFound(c, "env", ncclenv.Variables(), listLayers)
	}
	for _, name := range names {
		found := ncclenv.Find(name)
		if len(found) == 0 {
			return unknownVariable(name)
		}
		vars = append(vars, found...)
	}
	return writeFound(c, "env", vars, func(w io.Writer) error {
		for i, v := range vars {
			if i > 0 {
				fmt.Fprintln(w)
			}
			if err := ncclenv.Explain(w, v); err != nil {
				return err
			}
		}
		return nil
	})
}

func unknownVariable(name string) error {
	if strings.ContainsAny(name, "*?[") {
		return usage("env explain: no variable is like %q", name)
	}
	near := ncclenv.Nearest(name)
	if len(near) == 0 {
		near = ncclenv.Nearest("NCCL_" + name)
	}
	if len(near) == 0 {
		return usage("env explain: no variable %q is known up to NCCL %s; commprobe env explain '*WORD*' searches", name, ncclenv.Known)
	}
	return usage("env explain: no variable %q; was %s meant?", name, strings.Join(near, " or "))
}

func layerNames() []string {
	var names []string
	for _, l := range ncclenv.Layers {
		names = append(names, l.Name)
	}
	return names
}

// listLayers is what explain says without a name.
func listLayers(w io.Writer) error {
	n := map[string]int{}
	for _, v := range ncclenv.Variables() {
		n[v.Layer]++
	}
	for _, l := range ncclenv.Layers {
		if _, err := fmt.Fprintf(w, "%-13s %3d  %s\n", l.Name, n[l.Name], l.Does); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "\ncommprobe env explain --layer LAYER lists one, commprobe env explain NAME… tells all about some. Up to NCCL %s.\n", ncclenv.Known)
	return err
}

func envProfile(c *cli.Context, args []string) error {
	if len(args) != 1 {
		return usage("env profile: say debug or prod")
	}
	text, err := ncclenv.Profile(args[0])
	if err != nil {
		return usage("env profile: %w", err)
	}
	if _, err := io.WriteString(c.App.Writer, text); err != nil {
		return &exitError{bench.ExitInternal, err}
	}
	return nil
}
