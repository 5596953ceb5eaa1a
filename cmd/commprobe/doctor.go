package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/bench/report"
	"github.com/commprobe/commprobe/doctor"
)

const doctorHelp = `Looks whether this node is set up as it should be before a job runs on it: driver and its libraries, GPUs, NVLink and fabric manager, RDMA ports, PCIe,
GPUDirect RDMA, network interfaces, limits, control groups, container, settings. It only reads, starts no other program, and takes a second or two.

   commprobe doctor                             what is wrong and what to do about it, then every check in a line
   sudo commprobe doctor                        also the kernel log and PCI configuration, which only root may read
   commprobe doctor --area gpu,rdma             only these areas; commprobe doctor --list has all checks with their reasons
   srun --ntasks-per-node=1 commprobe doctor --json - > node.json
   commprobe doctor --json - | jq -r '.results[] | select(.status == "fault") | .id + ": " + .found[0]'
   commprobe doctor --compare a.json b.json …   what differs between nodes, from reports that each of them wrote

Run it as the job will run: the same user, container, shell and limits. A check answers ok, warn (works, but costs or surprises), fault (jobs fail, hang or
crawl) or cannot tell, with the reason; what does not apply to the machine is skipped. The exit status is 8 when a fault was found, 0 otherwise.`

// doctorPatience is how long NVML may take. A lost GPU can hold it for ever, and without persistence mode the driver starts every GPU first, a second or two each.
const doctorPatience = 20 * time.Second

// maxDoctorReport bounds a report that is read.
const maxDoctorReport = 16 << 20

func doctorCommand() *cli.Command {
	flags := append([]cli.Flag{
		&cli.StringSliceFlag{Name: "area", Usage: "only `AREA`, one or several of " + strings.Join(doctor.Areas(), ", ")},
		&cli.StringFlag{Name: "json", Usage: "write the report to `FILE` (- is stdout, and nothing else goes there)"},
		&cli.BoolFlag{Name: "compare", Usage: "compare reports of several nodes: JSON files as arguments, the name of a node in each"},
		&cli.BoolFlag{Name: "list", Usage: "list all checks: why, and where the rule comes from"},
		&cli.StringFlag{Name: "root", Value: "/", Usage: "look at the files below `DIR`, a recorded tree, instead of this machine; then nothing is asked of GPUs"},
		&cli.BoolFlag{Name: "force", Usage: "replace files that exist"},
	}, sayFlags()...)
	return &cli.Command{
		Name:            "doctor",
		Usage:           "check whether this node is set up as it should be",
		ArgsUsage:       "[REPORT…]",
		Description:     doctorHelp,
		HideHelpCommand: true,
		Flags:           flags,
		Action:          runDoctor,
	}
}

func runDoctor(c *cli.Context) error {
	if file := c.String("json"); file != "" && file != "-" {
		switch err := report.CheckOutput(file, report.Options{Force: c.Bool("force")}); {
		case errors.Is(err, report.ErrExists):
			return usage("doctor: --json: %w (--force)", err)
		case err != nil:
			return usage("doctor: --json: %w", err)
		}
	}
	if c.Bool("compare") && c.Bool("list") {
		return usage("doctor: --compare and --list: choose one")
	}
	if c.Bool("compare") {
		return doctorCompare(c, c.Args().Slice())
	}
	if c.Args().Present() {
		return usage("doctor: %q: arguments are reports for --compare; commprobe doctor --help has examples", c.Args().First())
	}
	var areas []string
	for _, list := range c.StringSlice("area") {
		for a := range strings.SplitSeq(list, ",") {
			if !slices.Contains(doctor.Areas(), a) {
				return usage("doctor: --area %q: there are %s", a, strings.Join(doctor.Areas(), ", "))
			}
			areas = append(areas, a)
		}
	}
	if c.Bool("list") {
		return doctorList(c, areas)
	}
	node, err := doctorNode(c)
	if err != nil {
		return err
	}
	r := doctor.Run(node, areas...)
	if err := writeFound(c, "doctor", r, func(w io.Writer) error { return r.WriteText(w, doctor.TextOptions{Color: doctorColor(c)}) }); err != nil {
		return err
	}
	if r.Count(doctor.Fault) > 0 {
		return &exitError{status: bench.ExitFindings}
	}
	return nil
}

// doctorNode is this machine, or a recorded tree of files.
func doctorNode(c *cli.Context) (doctor.Node, error) {
	root := c.String("root")
	if root == "/" {
		ctx, cancel := context.WithTimeout(c.Context, doctorPatience)
		defer cancel()
		return doctor.Live(ctx), nil
	}
	info, err := os.Stat(root)
	switch {
	case err != nil:
		return doctor.Node{}, usage("doctor: --root: %w", err)
	case !info.IsDir():
		return doctor.Node{}, usage("doctor: --root %s: it is no folder", root)
	}
	return doctor.Node{Root: root, Now: time.Now(), NVMLErr: errors.New("files alone were looked at (--root)")}, nil
}

// doctorColor: only a terminal understands colours, and not everybody wants them.
func doctorColor(c *cli.Context) bool {
	f, isFile := c.App.Writer.(*os.File)
	return isFile && !isSet(c, "no-color") && os.Getenv("NO_COLOR") == "" && term.IsTerminal(int(f.Fd()))
}

func doctorList(c *cli.Context, areas []string) error {
	rules := doctor.Rules()
	if len(areas) > 0 {
		rules = slices.DeleteFunc(rules, func(r doctor.Rule) bool { return !slices.Contains(areas, r.Area) })
	}
	return writeFound(c, "doctor", rules, func(w io.Writer) error {
		area := ""
		for _, r := range rules {
			if r.Area != area {
				area = r.Area
				if _, err := fmt.Fprintf(w, "%s\n", strings.ToUpper(area)); err != nil {
					return err
				}
			}
			if _, err := fmt.Fprintf(w, "  %-20s  %s: %s (%s)\n", r.ID, r.Title, r.Why, r.Source); err != nil {
				return err
			}
		}
		return nil
	})
}

func doctorCompare(c *cli.Context, files []string) error {
	if len(files) < 2 {
		return usage("doctor --compare: name at least two reports that commprobe doctor --json FILE wrote")
	}
	var reports []doctor.Report
	for _, name := range files {
		r, err := readDoctorReport(name)
		if err != nil {
			return usage("doctor --compare: %w", err)
		}
		reports = append(reports, *r)
	}
	list := doctor.Compare(reports)
	if list == nil {
		list = []doctor.Difference{}
	}
	return writeFound(c, "doctor", list, func(w io.Writer) error { return doctor.WriteDifferences(w, list) })
}

func readDoctorReport(name string) (*doctor.Report, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var r doctor.Report
	if err := json.NewDecoder(io.LimitReader(f, maxDoctorReport)).Decode(&r); err != nil {
		return nil, fmt.Errorf("%s: no report of commprobe doctor --json: %w", name, err)
	}
	if r.Schema != doctor.Schema {
		return nil, fmt.Errorf("%s: its schema is %q, not %q", name, r.Schema, doctor.Schema)
	}
	return &r, nil
}
