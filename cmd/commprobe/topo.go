package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/bench/report"
	"github.com/commprobe/commprobe/internal/nvml"
	"github.com/commprobe/commprobe/internal/topo"
)

const topoHelp = `Shows how GPUs, NICs, NUMA nodes and PCIe switches of a node are joined: the matrix of nvidia-smi topo -m, where NCCL sees it otherwise, and what cannot be told.
It reads /sys and asks NVML; nothing is started or changed. Without a GPU or a NIC it shows what there is.

   commprobe topo                               this machine
   commprobe topo --tree                        the PCIe tree with the bandwidth of every link one way
   commprobe topo --draw node.svg               a picture (.svg, .png): what is narrow or down is red
   commprobe topo --advise                      which NIC for which GPU, NCCL_IB_HCA, NCCL_SOCKET_IFNAME, GID index, cores; and what NCCL_* in this shell contradicts
   commprobe topo --nccl                        the matrix in NCCL's words, which NCCL_P2P_LEVEL and NCCL_NET_GDR_LEVEL are compared with
   commprobe topo --xml topo.xml                what NCCL_TOPO_FILE takes
   nvidia-smi topo -m | commprobe topo --from - reads a pasted matrix, NCCL's XML, lspci -tv, or the JSON of this command
   commprobe topo --json a.json                 on one node, and on another one:
   commprobe topo --diff a.json                 in what they differ (also a recorded folder with sys/, or an XML)
   commprobe topo --json - | jq '.paths[] | select(.a == "GPU0") | {b, smi, nccl, gbs}'

A matrix alone (nvidia-smi's text) has no wiring in it: --tree, --draw, --xml and --advise need this machine, --root, an XML, lspci or JSON.
With --advise or --diff, --json writes the advice or the differences. The exit status is 0 unless an input cannot be read.`

// topoPatience is how long NVML may take: a lost GPU can hold it for ever.
const topoPatience = 20 * time.Second

// maxTopoDevices bounds the nvml.json of a recorded tree.
const maxTopoDevices = 4 << 20

func topoCommand() *cli.Command {
	flags := append([]cli.Flag{
		&cli.StringFlag{Name: "from", Usage: "read `FILE` (- is stdin) instead of this machine: nvidia-smi topo text, NCCL's XML, lspci -tv, JSON"},
		&cli.StringFlag{Name: "root", Value: "/", Usage: "look at the files below `DIR`, a recorded tree, instead of this machine; its nvml.json stands for NVML"},
		&cli.StringFlag{Name: "diff", Usage: "say in what the node `OTHER` differs: a file as for --from, or a recorded folder"},
		&cli.BoolFlag{Name: "tree", Usage: "the PCIe tree instead of the matrix"},
		&cli.BoolFlag{Name: "nccl", Usage: "the matrix in NCCL's words"},
		&cli.BoolFlag{Name: "advise", Usage: "advice for NCCL on this node, and what the environment contradicts"},
		&cli.StringFlag{Name: "draw", Usage: "make a picture in `FILE`, .svg or .png"},
		&cli.StringFlag{Name: "xml", Usage: "write NCCL's topology XML to `FILE` (- is stdout)"},
		&cli.StringFlag{Name: "json", Usage: "write `FILE` (- is stdout, and nothing else goes there)"},
		&cli.BoolFlag{Name: "force", Usage: "replace files that exist"},
	}, sayFlags()...)
	return &cli.Command{
		Name:            "topo",
		Usage:           "how GPUs, NICs and NUMA nodes are joined, and what NCCL should use",
		Description:     topoHelp,
		HideHelpCommand: true,
		Flags:           flags,
		Action:          runTopo,
	}
}

// topoWork is one run of the command.
type topoWork struct {
	c    *cli.Context
	in   *topo.Input
	net  topo.HostNet
	live bool // this machine
}

func runTopo(c *cli.Context) error {
	if err := checkTopo(c); err != nil {
		return err
	}
	w := &topoWork{c: c}
	if err := w.load(); err != nil {
		return err
	}
	if err := w.files(); err != nil {
		return err
	}
	if c.String("json") == "-" || c.String("xml") == "-" {
		return nil
	}
	var told *exitError
	if err := w.print(); errors.As(err, &told) {
		return err
	} else if err != nil {
		return &exitError{bench.ExitInternal, fmt.Errorf("topo: %w", err)}
	}
	return nil
}

// checkTopo refuses what cannot be before anything is read.
func checkTopo(c *cli.Context) error {
	if c.Args().Present() {
		return usage("topo: %q: the command takes no arguments; --from FILE reads a file", c.Args().First())
	}
	if c.IsSet("from") && c.String("root") != "/" {
		return usage("topo: --from and --root: choose one")
	}
	if c.String("json") == "-" && c.String("xml") == "-" {
		return usage("topo: --json - and --xml -: stdout holds one document")
	}
	views := 0
	for _, name := range []string{"tree", "nccl", "advise"} {
		if c.Bool(name) {
			views++
		}
	}
	if c.IsSet("diff") {
		views++
	}
	if views > 1 {
		return usage("topo: --tree, --nccl, --advise and --diff: choose one")
	}
	if c.String("from") == "-" && c.String("diff") == "-" {
		return usage("topo: --from - and --diff -: stdin holds one of them")
	}
	if file := c.String("draw"); c.IsSet("draw") && !slices.Contains(topo.PictureFormats, pictureFormat(file)) {
		return usage("topo: --draw %q: cannot tell the picture format; end the name in .%s", file, strings.Join(topo.PictureFormats, " or ."))
	}
	for _, name := range []string{"draw", "xml", "json"} {
		file := c.String(name)
		if !c.IsSet(name) || file == "-" {
			continue
		}
		switch err := report.CheckOutput(file, report.Options{Force: c.Bool("force")}); {
		case errors.Is(err, report.ErrExists):
			return usage("topo: --%s: %w (--force)", name, err)
		case err != nil:
			return usage("topo: --%s: %w", name, err)
		}
	}
	return nil
}

func pictureFormat(file string) string {
	return strings.ToLower(strings.TrimPrefix(filepath.Ext(file), "."))
}

// load reads the node that was asked for.
func (w *topoWork) load() error {
	if from := w.c.String("from"); w.c.IsSet("from") {
		in, err := topoFile(from, w.c.App.Reader)
		if err != nil {
			return usage("topo: --from: %w", err)
		}
		w.in = in
		if in.Graph == nil {
			return w.needGraph()
		}
		return nil
	}
	root := w.c.String("root")
	w.live = root == "/"
	g, err := topoTree(w.c.Context, root)
	if err != nil {
		return usage("topo: --root: %w", err)
	}
	w.in = &topo.Input{Graph: g}
	if w.net, err = topo.ReadHostNet(root); err != nil {
		return usage("topo: --root: %w", err)
	}
	return nil
}

// needGraph refuses what a matrix cannot give.
func (w *topoWork) needGraph() error {
	for _, name := range []string{"tree", "nccl", "advise", "draw", "xml"} {
		if w.c.IsSet(name) {
			return usage("topo: --%s: %s holds a matrix, which says how far devices are from each other and not how they are wired; use it on the node itself, or with an XML, lspci or JSON",
				name, w.c.String("from"))
		}
	}
	return nil
}

func topoFile(name string, stdin io.Reader) (*topo.Input, error) {
	if name == "-" {
		if stdin == nil {
			stdin = os.Stdin
		}
		return topo.Read(stdin, "stdin")
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return topo.Read(f, name)
}

// topoTree reads a machine: this one with NVML, a recorded one with its nvml.json.
func topoTree(ctx context.Context, root string) (*topo.Graph, error) {
	if root != "/" {
		devices, err := recordedDevices(filepath.Join(root, "nvml.json"))
		if err != nil {
			return nil, err
		}
		return topo.ReadSys(root, devices)
	}
	ctx, cancel := context.WithTimeout(ctx, topoPatience)
	defer cancel()
	node, nvmlErr := nvml.Read(ctx, nvml.Options{})
	g, err := topo.ReadSys(root, topoDevices(node))
	if err == nil && nvmlErr != nil && len(g.GPUs) > 0 {
		g.Notes = append(g.Notes, topo.Note{Code: "nvml", Where: "NVML", Text: nvmlErr.Error() + ": names, order and NVLinks of the GPUs are not known"})
	}
	return g, err
}

// recordedDevices reads the nvml.json of a recorded tree; nil: it has none.
func recordedDevices(name string) (*topo.Devices, error) {
	f, err := os.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var d topo.Devices
	if err := json.NewDecoder(io.LimitReader(f, maxTopoDevices)).Decode(&d); err != nil {
		return nil, fmt.Errorf("%s: no list of GPUs: %w", name, err)
	}
	return &d, nil
}

// topoDevices brings what NVML says into the form that the topology takes; nil where NVML said nothing.
func topoDevices(n *nvml.Node) *topo.Devices {
	if n == nil {
		return nil
	}
	d := &topo.Devices{Source: "NVML"}
	if n.Driver != nil {
		d.Source += " " + *n.Driver
	}
	for i := range n.GPUs {
		g := &n.GPUs[i]
		v := topo.Device{Index: g.Index, MIG: g.MIG, PCIeGen: g.PCIe.Gen, PCIeWidth: g.PCIe.Width, PCIeMaxGen: g.PCIe.MaxGen, PCIeMaxWidth: g.PCIe.MaxWidth, SM: smNumber(g.SM)}
		for _, s := range []struct {
			to   *string
			from *string
		}{{&v.BusID, g.PCI}, {&v.Name, g.Name}, {&v.UUID, g.UUID}} {
			if s.from != nil {
				*s.to = *s.from
			}
		}
		v.NVLinks = topoLinks(g)
		d.GPUs = append(d.GPUs, v)
	}
	return d
}

// smNumber makes 90 of "9.0"; nil: unknown.
func smNumber(sm *string) *int {
	if sm == nil {
		return nil
	}
	major, minor, ok := strings.Cut(*sm, ".")
	a, err1 := strconv.Atoi(major)
	b, err2 := strconv.Atoi(minor)
	if !ok || err1 != nil || err2 != nil {
		return nil
	}
	v := 10*a + b
	return &v
}

// topoLinks are a GPU's NVLinks; nil where NVML could not be asked, empty where the GPU has none.
func topoLinks(g *nvml.GPU) []topo.DeviceLink {
	if len(g.Links) == 0 && g.Missing["nvlinks"] != "" && !strings.HasPrefix(g.Missing["nvlinks"], "no NVLink") {
		return nil
	}
	peers := map[string]topo.Peer{"gpu": topo.PeerGPU, "switch": topo.PeerSwitch, "cpu": topo.PeerCPU}
	out := []topo.DeviceLink{}
	for _, l := range g.Links {
		one := topo.DeviceLink{Link: l.Link, Active: l.Active}
		if l.RemotePCI != nil {
			one.Target = *l.RemotePCI
		}
		if l.RemoteType != nil {
			one.Peer = peers[*l.RemoteType]
		}
		out = append(out, one)
	}
	return out
}

// files writes the files that were asked for.
func (w *topoWork) files() error {
	g := w.in.Graph
	if file := w.c.String("draw"); w.c.IsSet("draw") {
		if err := w.write("draw", file, func(out io.Writer) error { return g.Draw(out, pictureFormat(file)) }); err != nil {
			return err
		}
	}
	if file := w.c.String("xml"); w.c.IsSet("xml") {
		if err := w.write("xml", file, g.WriteXML); err != nil {
			return err
		}
	}
	file := w.c.String("json")
	if !w.c.IsSet("json") {
		return nil
	}
	value, err := w.value()
	if err != nil {
		return err
	}
	return w.write("json", file, func(out io.Writer) error { return writeIndented(out, value, " ") })
}

func (w *topoWork) write(flag, file string, write func(io.Writer) error) error {
	if file == "-" {
		if err := write(w.c.App.Writer); err != nil {
			return &exitError{bench.ExitInternal, fmt.Errorf("topo: --%s: %w", flag, err)}
		}
		return nil
	}
	if err := report.WriteFile(file, report.Options{Force: w.c.Bool("force")}, write); err != nil {
		return &exitError{bench.ExitInternal, fmt.Errorf("topo: --%s: %w", flag, err)}
	}
	if !isSet(w.c, "quiet") {
		fmt.Fprintf(w.c.App.ErrWriter, "commprobe: wrote %s\n", file)
	}
	return nil
}

// value is what --json writes.
func (w *topoWork) value() (any, error) {
	switch {
	case w.c.IsSet("diff"):
		lines, err := w.diff()
		if lines == nil {
			lines = []string{}
		}
		return lines, err
	case w.c.Bool("advise"):
		return w.advice(), nil
	case w.in.Graph != nil:
		return w.in.Graph, nil
	}
	return w.in, nil
}

func (w *topoWork) advice() topo.Advice {
	env := map[string]string{}
	for _, kv := range os.Environ() {
		if k, v, ok := strings.Cut(kv, "="); ok && strings.HasPrefix(k, "NCCL_") {
			env[k] = v
		}
	}
	return topo.Advise(w.in.Graph, env, topo.AdviseOptions{Net: w.net})
}

// diff compares with the other node: graphs where both are, else matrices.
func (w *topoWork) diff() ([]string, error) {
	name := w.c.String("diff")
	other := &topo.Input{}
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		if other.Graph, err = topoTree(w.c.Context, name); err != nil {
			return nil, usage("topo: --diff: %w", err)
		}
	} else if other, err = topoFile(name, w.c.App.Reader); err != nil {
		return nil, usage("topo: --diff: %w", err)
	}
	if w.in.Graph != nil && other.Graph != nil {
		return topo.Diff(w.in.Graph, other.Graph), nil
	}
	a, b := topoMatrix(w.in), topoMatrix(other)
	if a == nil || b == nil {
		return nil, usage("topo: --diff: only one of them has the matrix of nvidia-smi topo -m")
	}
	return a.Compare(b), nil
}

// topoMatrix is the -m matrix of an input; nil: it has none.
func topoMatrix(in *topo.Input) *topo.Matrix {
	if in.Graph != nil {
		return in.Graph.Matrix()
	}
	for _, m := range in.Matrices {
		if m.Kind == topo.MatrixTopo {
			return m
		}
	}
	return nil
}

// print writes the text that was asked for.
func (w *topoWork) print() error {
	out, g := w.c.App.Writer, w.in.Graph
	if w.c.IsSet("diff") {
		return w.printDiff(out)
	}
	if g == nil {
		return w.printMatrices(out)
	}
	fmt.Fprintf(out, "%s\n\n", g.Summary())
	switch {
	case w.c.Bool("tree"):
		return g.Tree(out)
	case w.c.Bool("advise"):
		advice := w.advice()
		return advice.WriteText(out)
	case len(g.Matrix().Columns) == 0:
		if err := g.Tree(out); err != nil {
			return err
		}
		_, err := fmt.Fprintf(out, "\nNo matrix: it needs a GPU or an RDMA device.\n")
		return err
	case w.c.Bool("nccl"):
		m := g.MatrixNCCL()
		fmt.Fprintf(out, "In NCCL's words, by the rules of NCCL %s; from near to far: %s\n\n", topo.NCCLRules, strings.Join(topo.NCCLTypes, " "))
		return w.matrix(out, m, false)
	}
	if err := w.matrix(out, g.Matrix(), true); err != nil {
		return err
	}
	return w.printNotes(out, ncclDiffers(g))
}

func (w *topoWork) printDiff(out io.Writer) error {
	lines, err := w.diff()
	if err != nil {
		return err
	}
	if len(lines) == 0 {
		_, err := fmt.Fprintln(out, "They do not differ in what both show.")
		return err
	}
	_, err = fmt.Fprintln(out, strings.Join(lines, "\n"))
	return err
}

func (w *topoWork) printMatrices(out io.Writer) error {
	for _, m := range w.in.Matrices {
		fmt.Fprintf(out, "nvidia-smi topo -%s of %s: %d GPUs, %d NICs\n\n", m.Kind, m.Source, m.GPUs(), m.NICs())
		if err := m.WriteText(out); err != nil {
			return err
		}
	}
	for _, n := range w.in.AllNotes() {
		printNote(out, n)
	}
	return nil
}

// matrix prints a matrix: NCCL's has no legend of nvidia-smi's words.
func (w *topoWork) matrix(out io.Writer, m *topo.Matrix, smi bool) error {
	if smi {
		return m.WriteText(out)
	}
	var b strings.Builder
	if err := m.WriteText(&b); err != nil {
		return err
	}
	head, rest, _ := strings.Cut(b.String(), "\nLegend:")
	_, names, _ := strings.Cut(rest, "\nNIC Legend:")
	if names != "" {
		names = "\nNIC Legend:" + names
	}
	_, err := io.WriteString(out, head+names)
	return err
}

func printNote(out io.Writer, n topo.Note) {
	where := n.Where
	if where != "" {
		where += ": "
	}
	fmt.Fprintf(out, "note: %s%s\n", where, n.Text)
}

// printNotes says what is unknown and why.
func (w *topoWork) printNotes(out io.Writer, more []string) error {
	var b strings.Builder
	for _, line := range more {
		fmt.Fprintf(&b, "%s\n", line)
	}
	if len(more) > 0 {
		b.WriteByte('\n')
	}
	for _, n := range w.in.Graph.Notes {
		printNote(&b, n)
	}
	why := map[string]int{}
	for _, p := range w.in.Graph.Paths() {
		if p.Why != "" {
			why[p.Why]++
		}
	}
	for _, text := range slices.Sorted(maps.Keys(why)) {
		fmt.Fprintf(&b, "note: %d of the paths: %s\n", why[text], text)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// ncclWord is what NCCL calls a word of nvidia-smi when both mean the same.
var ncclWord = map[string]string{topo.SMIPIX: "PIX", topo.SMIPXB: "PXB", topo.SMIPHB: "PHB", topo.SMISYS: "SYS"}

// ncclDiffers lists in which pairs NCCL sees another distance than nvidia-smi prints.
func ncclDiffers(g *topo.Graph) []string {
	pairs := map[string][]string{}
	name := topoNames(g)
	for _, p := range g.Paths() {
		want := ncclWord[p.SMI]
		if _, ok := topo.NVLinkCount(p.SMI); ok {
			want = "NVL"
		}
		if p.NCCL == "" || p.NCCL == want || p.NCCL == "LOC" || // LOC: two ports of one card
			p.SMI == topo.SMIUnknown || strings.Contains(p.SMI, "|") || name[p.A] == "" || name[p.B] == "" {
			continue
		}
		key := p.SMI + " is " + p.NCCL
		pairs[key] = append(pairs[key], name[p.A]+"–"+name[p.B])
	}
	if len(pairs) == 0 {
		return nil
	}
	out := []string{fmt.Sprintf("Where NCCL (rules of %s) sees another distance; --nccl prints its matrix:", topo.NCCLRules)}
	for _, key := range slices.Sorted(maps.Keys(pairs)) {
		list := pairs[key]
		text := strings.Join(list, " ")
		if len(list) > 4 {
			text = strings.Join(list[:3], " ") + " …"
		}
		plural := "s"
		if len(list) == 1 {
			plural = ""
		}
		out = append(out, fmt.Sprintf("  %-12s  %d pair%s: %s", key, len(list), plural, text))
	}
	return out
}

// topoNames are the names of what the matrix has, by id.
func topoNames(g *topo.Graph) map[string]string {
	out := map[string]string{}
	for i := range g.GPUs {
		out[g.GPUs[i].ID] = g.GPUs[i].ID
	}
	for i := range g.NICs {
		n := &g.NICs[i]
		switch {
		case n.RDMA != nil && !*n.RDMA:
		case n.Name != "":
			out[n.ID] = n.Name
		default:
			out[n.ID] = n.ID
		}
	}
	return out
}
