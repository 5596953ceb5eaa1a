package topo

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"encoding/json"

	"github.com/commprobe/commprobe/internal/topo/topotest"
)

// drawnGraph is a recorded machine.
func drawnGraph(t *testing.T, name string) *Graph {
	t.Helper()
	var d *Devices
	if text := topotest.NVML(t, name); text != nil {
		d = &Devices{}
		if err := json.Unmarshal(text, d); err != nil {
			t.Fatal(err)
		}
	}
	g, err := ReadSys(topotest.Materialise(t, name), d)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

type box struct{ x0, y0, x1, y1 float64 }

func (t sceneText) box() box {
	return box{t.x, t.y, t.x + t.w, t.y + t.h}
}

func (a box) overlaps(b box) bool {
	const slack = 0.01
	return a.x0 < b.x1-slack && b.x0 < a.x1-slack && a.y0 < b.y1-slack && b.y0 < a.y1-slack
}

// checkScene finds texts over each other, under lines, across the borders of boxes, and anything outside the canvas.
func checkScene(t *testing.T, s *scene) {
	t.Helper()
	canvas := box{0, 0, s.width, s.height}
	inside := func(b box) bool {
		return b.x0 >= canvas.x0 && b.y0 >= canvas.y0 && b.x1 <= canvas.x1 && b.y1 <= canvas.y1
	}
	for i, a := range s.texts {
		if !inside(a.box()) {
			t.Errorf("%q lies outside the canvas", a.s)
		}
		if a.size < 12 {
			t.Errorf("%q is too small: %g", a.s, a.size)
		}
		for _, b := range s.texts[i+1:] {
			if a.box().overlaps(b.box()) {
				t.Errorf("%q and %q overlap at %.0f,%.0f", a.s, b.s, a.x, a.y)
			}
		}
		for _, l := range s.lines {
			for k := 1; k < len(l.pts); k++ {
				p, q := l.pts[k-1], l.pts[k]
				seg := box{float64(min(p.X, q.X)) - 0.5, float64(min(p.Y, q.Y)) - 0.5, float64(max(p.X, q.X)) + 0.5, float64(max(p.Y, q.Y)) + 0.5}
				if a.box().overlaps(seg) {
					t.Errorf("a line runs through %q at %.0f,%.0f", a.s, a.x, a.y)
				}
			}
		}
		for _, r := range s.rects {
			out := box{r.x, r.y, r.x + r.w, r.y + r.h}
			b := a.box()
			if within := b.x0 >= out.x0 && b.x1 <= out.x1 && b.y0 >= out.y0 && b.y1 <= out.y1; b.overlaps(out) && !within {
				t.Errorf("%q crosses the border of a box at %.0f,%.0f", a.s, r.x, r.y)
			}
		}
	}
	for _, r := range s.rects {
		if !inside(box{r.x, r.y, r.x + r.w, r.y + r.h}) {
			t.Errorf("a box at %.0f,%.0f lies outside the canvas", r.x, r.y)
		}
	}
	for _, l := range s.lines {
		for _, p := range l.pts {
			if x, y := float64(p.X), float64(p.Y); x < 0 || y < 0 || x > s.width || y > s.height {
				t.Errorf("a line goes to %.0f,%.0f, outside the canvas", x, y)
			}
		}
	}
}

// sceneShows says whether some text of a scene contains a string.
func sceneShows(s *scene, part string) bool {
	for _, t := range s.texts {
		if strings.Contains(t.s, part) {
			return true
		}
	}
	return false
}

// checkNames wants every GPU, NIC and NUMA node with devices in the picture.
func checkNames(t *testing.T, g *Graph, s *scene) {
	t.Helper()
	for i := range g.GPUs {
		if !sceneShows(s, g.GPUs[i].ID) {
			t.Errorf("%s is not drawn", g.GPUs[i].ID)
		}
	}
	for i := range g.NICs {
		if n := first(g.NICs[i].Name, g.NICs[i].ID); !sceneShows(s, n) && g.NICs[i].PF == "" {
			t.Errorf("%s is not drawn", n)
		}
	}
}

func TestDrawLayout(t *testing.T) {
	t.Parallel()
	for _, name := range topotest.Names() {
		t.Run(name, func(t *testing.T) {
			g := drawnGraph(t, name)
			s := newPicture(g).scene()
			checkScene(t, s)
			checkNames(t, g, s)
		})
	}
}

// The published files as well: other shapes, and the form without root ports.
func TestDrawShared(t *testing.T) {
	t.Parallel()
	files, _ := filepath.Glob("../../../shared/data/topo_public/*.xml")
	more, _ := filepath.Glob("../../../shared/data/topo_public/partial-xml/*")
	files = append(append(files, more...), "testdata/h200x2.xml")
	for _, path := range files {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		in, err := Read(f, filepath.Base(path))
		f.Close()
		if err != nil || in.Graph == nil {
			continue
		}
		t.Run(filepath.Base(path), func(t *testing.T) {
			s := newPicture(in.Graph).scene()
			checkScene(t, s)
			checkNames(t, in.Graph, s)
		})
	}
}

// bigTree is a machine of 16 GPUs with 16 NICs on 8 NUMA nodes, or of another size.
func bigTree(nodes, gpus int) string {
	var b strings.Builder
	b.WriteString("-- pci --\n")
	hex := "0123456789abcdef"
	for n := range nodes {
		h := string(hex[n])
		b.WriteString("pci0000:" + h + "0 numa=" + string(hex[n]) + " cpus=0-7\n  0000:" + h + "0:01.0 root gen5x16\n    0000:" + h + "1:00.0 up gen5x16\n")
		for k := range gpus {
			d := string(hex[k])
			b.WriteString("      0000:" + h + "2:0" + d + ".0 down gen5x16\n        0000:" + h + string(hex[3+k]) + ":00.0 gpu gen5x16\n")
			b.WriteString("      0000:" + h + "2:1" + d + ".0 down gen5x16\n        0000:" + h + string(hex[10+k]) + ":00.0 nic gen5x8/gen5x16 layer=IB rate=400 ib=mlx5_" + h + d + " net=ib" + h + d + "\n")
		}
	}
	b.WriteString("-- nodes --\n")
	for n := range nodes {
		b.WriteString(string(hex[n]) + " cpus=0-7 socket=" + string(hex[n*2/nodes]) + " distance=10\n")
	}
	return b.String()
}

func TestDrawBig(t *testing.T) {
	t.Parallel()
	for _, shape := range []struct{ nodes, gpus int }{{8, 2}, {2, 4}, {4, 4}, {1, 1}, {16, 1}} {
		g, err := ReadSys(topotest.Build(t, bigTree(shape.nodes, shape.gpus)), nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(g.GPUs) != shape.nodes*shape.gpus {
			t.Fatalf("%d GPUs", len(g.GPUs))
		}
		s := newPicture(g).scene()
		checkScene(t, s)
		checkNames(t, g, s)
		if !sceneShows(s, "gen5 x8") {
			t.Error("the narrow links of the NICs are not told")
		}
		if shape.nodes <= 8 && s.width > pictureWidth {
			t.Errorf("%d NUMA nodes make it %g wide", shape.nodes, s.width)
		}
	}
}

// What is worse than it can be is red; what an idle GPU does is not.
func TestDrawColours(t *testing.T) {
	t.Parallel()
	red := func(s *scene, part string) (found bool) {
		for _, x := range s.texts {
			found = found || strings.Contains(x.s, part) && x.color == inkBad
		}
		return found
	}
	h100 := newPicture(drawnGraph(t, "dgx-h100")).scene()
	if !red(h100, "(of gen5 x16)") || !red(h100, "DOWN") || red(h100, "400 Gb/s") {
		t.Error("dgx-h100: the slow link or the port that is down is not red")
	}
	gh := newPicture(drawnGraph(t, "gh200")).scene()
	if !red(gh, "gen1 x1") { // fewer lanes are no idling
		t.Error("gh200: a GPU with one lane is not red")
	}
	plx := newPicture(drawnGraph(t, "pcie-plx")).scene()
	if red(plx, "gen1 x16") {
		t.Error("pcie-plx: an idle GPU is red")
	}
}

func TestDrawFormats(t *testing.T) {
	t.Parallel()
	g := drawnGraph(t, "a40-bridges")
	var b bytes.Buffer
	if err := g.Draw(&b, "png"); err != nil {
		t.Fatal(err)
	}
	cfg, err := png.DecodeConfig(&b)
	if want := newPicture(g).scene(); err != nil || cfg.Width != int(want.width) {
		t.Errorf("%d wide, %v", cfg.Width, err)
	}
	b.Reset()
	if err := g.Draw(&b, "svg"); err != nil {
		t.Fatal(err)
	}
	texts, dec := "", xml.NewDecoder(&b)
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if c, ok := token.(xml.CharData); ok {
			texts += string(c) + "\n"
		}
	}
	for _, want := range []string{"GPU7", "mlx5_1", "NV4, 56.3 GB/s", "root port", "socket 1  AuthenticAMD"} {
		if !strings.Contains(texts, want) {
			t.Errorf("no %q in the SVG", want)
		}
	}
	if err := g.Draw(io.Discard, "gif"); err == nil {
		t.Error("gif is no format of ours")
	}
}

// An empty graph and one with nothing but names must not break the layout.
func TestDrawLittle(t *testing.T) {
	t.Parallel()
	one := 1
	for _, g := range []*Graph{{}, {GPUs: []GPU{{ID: "GPU0"}}}, {NICs: []NIC{{ID: "NIC0", NUMA: &one}}}, {CPUs: []CPU{{ID: "CPU0"}}},
		{PCI: []Function{{BusID: "0000:01:00.0", Parent: "0000:01:00.0"}, {BusID: "0000:02:00.0", Parent: "0000:03:00.0"}, {BusID: "0000:03:00.0", Parent: "0000:02:00.0"}}}} {
		s := newPicture(g).scene()
		checkScene(t, s)
	}
}

// With COMMPROBE_PICTURES=DIR the pictures of all recorded machines are left there, to be looked at.
func TestDrawLook(t *testing.T) {
	dir := os.Getenv("COMMPROBE_PICTURES")
	if dir == "" {
		t.Skip("COMMPROBE_PICTURES is not set")
	}
	for _, name := range topotest.Names() {
		var b bytes.Buffer
		if err := drawnGraph(t, name).Draw(&b, "png"); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".png"), b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSummary(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"dgx-a100":          "8 × NVIDIA A100-SXM4-80GB, 10 RDMA NICs, one NIC without RDMA, 8 NUMA nodes on 2 sockets, 6 NVSwitches; NVIDIA DGXA100 920-23687-2530-000",
		"gh200":             "1 × NVIDIA GH200 480GB, 4 RDMA NICs, 2 NUMA nodes on one socket",
		"container-cutdown": "2 × NVIDIA H100 80GB HBM3, no NIC seen, NUMA nodes unknown; container",
		"no-gpu-no-nic":     "no GPU seen, no NIC seen, one NUMA node on one socket; virtual machine",
	} {
		if got := drawnGraph(t, name).Summary(); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := (&Graph{}).Summary(); got != "no GPU seen, no NIC seen, NUMA nodes unknown" {
		t.Errorf("empty: %q", got)
	}
}
