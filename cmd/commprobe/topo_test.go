package main

import (
	"encoding/json"
	"encoding/xml"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/internal/nvml"
	"github.com/commprobe/commprobe/internal/topo"
	"github.com/commprobe/commprobe/internal/topo/topotest"
)

// topoRun runs `commprobe topo` in this process, with what stdin has.
func topoRun(stdin string, args ...string) finished {
	return inProcessWith(strings.NewReader(stdin), append([]string{"topo"}, args...)...)
}

func TestTopoMatrix(t *testing.T) {
	t.Parallel()
	f := topoRun("", "--root", topotest.Materialise(t, "dgx-h100"))
	if f.code != 0 || f.stderr != "" {
		t.Fatalf("exit status %d: %s", f.code, f.stderr)
	}
	has(t, f.stdout, "8 × NVIDIA H100 80GB HBM3, 10 RDMA NICs, 2 NUMA nodes on 2 sockets, 4 NVSwitches", "\nGPU0\t X \tNV18\t", "0-55,112-167", "NIC0: mlx5_0", "Legend:",
		"NODE is PHB", "note: 0000:27:00.0: the PCIe link runs at 16 of 32 GT/s")
	if strings.Contains(f.stdout, "\x1b") {
		t.Error("colours where there is no terminal")
	}
}

func TestTopoNCCL(t *testing.T) {
	t.Parallel()
	f := topoRun("", "--root", topotest.Materialise(t, "a40-bridges"), "--nccl")
	if f.code != 0 {
		t.Fatalf("exit status %d: %s", f.code, f.stderr)
	}
	has(t, f.stdout, "rules of NCCL "+topo.NCCLRules, "\tNVL\t", "NIC0: mlx5_0")
	if strings.Contains(f.stdout, "NODE") {
		t.Errorf("NCCL has no NODE:\n%s", f.stdout)
	}
}

// A machine without GPU and NIC gets an answer all the same.
func TestTopoNothing(t *testing.T) {
	t.Parallel()
	root := topotest.Materialise(t, "no-gpu-no-nic")
	f := topoRun("", "--root", root)
	if f.code != 0 {
		t.Fatalf("exit status %d: %s", f.code, f.stderr)
	}
	has(t, f.stdout, "no GPU seen, no NIC seen, one NUMA node on one socket", "NUMA 0  socket 0  CPUs 0-1", "No matrix")
	if f := topoRun("", "--root", root, "--advise"); f.code != 0 || !strings.Contains(f.stdout, "no GPU is known here") {
		t.Errorf("--advise: exit status %d\n%s%s", f.code, f.stdout, f.stderr)
	}
}

func TestTopoTree(t *testing.T) {
	t.Parallel()
	f := topoRun("", "--root", topotest.Materialise(t, "pcie-plx"), "--tree")
	if f.code != 0 {
		t.Fatalf("exit status %d: %s", f.code, f.stderr)
	}
	has(t, f.stdout, "├─ ", "GPU5 NVIDIA A100-PCIE-40GB", "gen1 x8 (of gen3 x16)")
}

// What is written as JSON can be read again, and then gives the same matrix.
func TestTopoJSON(t *testing.T) {
	t.Parallel()
	root := topotest.Materialise(t, "dgx-a100")
	f := topoRun("", "--root", root, "--json", "-")
	var doc struct {
		GPUs, NICs, CPUs []json.RawMessage
		Paths            []topo.Path
	}
	if err := json.Unmarshal([]byte(f.stdout), &doc); err != nil || f.code != 0 {
		t.Fatalf("exit status %d, %v", f.code, err)
	}
	if len(doc.GPUs) != 8 || len(doc.NICs) != 11 || len(doc.CPUs) != 8 || len(doc.Paths) != 19*18/2 || doc.Paths[0].SMI != "NV12" {
		t.Errorf("%d GPUs, %d NICs, %d CPUs, %d paths", len(doc.GPUs), len(doc.NICs), len(doc.CPUs), len(doc.Paths))
	}
	file := filepath.Join(t.TempDir(), "a.json")
	if g := topoRun("", "--root", root, "--json", file); g.code != 0 || !strings.Contains(g.stdout, "NV12") || !strings.Contains(g.stderr, "wrote "+file) {
		t.Errorf("--json FILE: exit status %d, %s", g.code, g.stderr)
	}
	if g := topoRun("", "--root", root, "--json", file); g.code != bench.ExitUsage {
		t.Errorf("an existing file: exit status %d", g.code)
	}
	text := topoRun("", "--root", root).stdout
	if again := topoRun(f.stdout, "--from", "-"); again.code != 0 || again.stdout != text {
		t.Errorf("read again: exit status %d\n%s\nand before\n%s", again.code, again.stdout, text)
	}
}

func TestTopoXML(t *testing.T) {
	t.Parallel()
	f := topoRun("", "--root", topotest.Materialise(t, "dgx1-v100"), "--xml", "-")
	var doc struct {
		XMLName xml.Name `xml:"system"`
		CPUs    []struct {
			NUMA string `xml:"numaid,attr"`
		} `xml:"cpu"`
	}
	if err := xml.Unmarshal([]byte(f.stdout), &doc); err != nil || f.code != 0 || len(doc.CPUs) != 2 {
		t.Fatalf("exit status %d, %v, %d CPUs", f.code, err, len(doc.CPUs))
	}
	g := topoRun(f.stdout, "--from", "-")
	if g.code != 0 {
		t.Fatalf("exit status %d: %s", g.code, g.stderr)
	}
	has(t, g.stdout, "NV2", "NV1", "SYS")
}

const pastedMatrix = `$ nvidia-smi topo -m
	GPU0	GPU1	NIC0	CPU Affinity	NUMA Affinity	GPU NUMA ID
GPU0	 X 	NV4	PIX	0-15	0		N/A
GPU1	NV4	 X 	SYS	16-31	1		N/A
NIC0	PIX	SYS	 X

NIC Legend:

  NIC0: mlx5_0
`

// A pasted matrix is read, compared, and refused where the wiring is needed.
func TestTopoPasted(t *testing.T) {
	t.Parallel()
	f := topoRun(pastedMatrix, "--from", "-")
	if f.code != 0 {
		t.Fatalf("exit status %d: %s", f.code, f.stderr)
	}
	has(t, f.stdout, "of stdin: 2 GPUs, 1 NICs", "GPU0\t X \tNV4\tPIX", "NIC0: mlx5_0")
	for _, flag := range [][]string{{"--tree"}, {"--nccl"}, {"--advise"}, {"--draw", filepath.Join(t.TempDir(), "x.svg")}, {"--xml", "-"}} {
		if f := topoRun(pastedMatrix, append([]string{"--from", "-"}, flag...)...); f.code != bench.ExitUsage || f.stdout != "" || !strings.Contains(f.stderr, "holds a matrix") {
			t.Errorf("%s: exit status %d, %s", flag[0], f.code, f.stderr)
		}
	}
	other := filepath.Join(t.TempDir(), "other.txt")
	if err := os.WriteFile(other, []byte(strings.ReplaceAll(pastedMatrix, "PIX", "NODE")), 0o644); err != nil {
		t.Fatal(err)
	}
	if f := topoRun(pastedMatrix, "--from", "-", "--diff", other); f.code != 0 || !strings.Contains(f.stdout, "GPU0 to mlx5_0: PIX in stdin, NODE in "+other) {
		t.Errorf("--diff: exit status %d, %s%s", f.code, f.stdout, f.stderr)
	}
}

func TestTopoDiff(t *testing.T) {
	t.Parallel()
	text := topotest.Text(t, "a40-bridges")
	good, bad := topotest.Build(t, text), topotest.Build(t, strings.Replace(text, "ib=mlx5_1 layer=Eth rate=100", "ib=mlx5_1 layer=Eth rate=25", 1))
	f := topoRun("", "--root", good, "--diff", bad)
	if f.code != 0 {
		t.Fatalf("exit status %d: %s", f.code, f.stderr)
	}
	has(t, f.stdout, "mlx5_1 port 1: rate in Gb/s 100 in ", ", 25 in ")
	if n := strings.Count(f.stdout, "\n"); n != 1 {
		t.Errorf("%d differences:\n%s", n, f.stdout)
	}
	if f := topoRun("", "--root", good, "--diff", good); f.code != 0 || !strings.Contains(f.stdout, "do not differ") {
		t.Errorf("with itself: exit status %d, %s", f.code, f.stdout)
	}
	var lines []string
	if f := topoRun("", "--root", good, "--diff", bad, "--json", "-"); json.Unmarshal([]byte(f.stdout), &lines) != nil || len(lines) != 1 {
		t.Errorf("as JSON: %s", f.stdout)
	}
}

func TestTopoDraw(t *testing.T) {
	t.Parallel()
	dir, root := t.TempDir(), topotest.Materialise(t, "vm-flat")
	for name, start := range map[string]string{"a.svg": "<?xml", "b.png": "\x89PNG"} {
		file := filepath.Join(dir, name)
		f := topoRun("", "--root", root, "--draw", file, "--quiet")
		text, err := os.ReadFile(file)
		if f.code != 0 || f.stderr != "" || err != nil || !strings.HasPrefix(string(text), start) {
			t.Errorf("%s: exit status %d, %s, %v", name, f.code, f.stderr, err)
		}
	}
}

// The advice names what fits this node, and what the shell says against it.
func TestTopoAdvise(t *testing.T) {
	t.Setenv("NCCL_IB_HCA", "mlx5_1,mlx5_77")
	t.Setenv("NCCL_SOCKET_IFNAME", "docker0")
	root := topotest.Materialise(t, "roce-bond-vf")
	f := topoRun("", "--root", root, "--advise")
	if f.code != 0 {
		t.Fatalf("exit status %d: %s", f.code, f.stderr)
	}
	has(t, f.stdout, "mlx5_77 does not exist on this node", "docker0 leads to no other node", "export NCCL_IB_HCA==mlx5_2:1,mlx5_bond_0:1", "leave  mlx5_3:1", "port is DOWN")
	var a topo.Advice
	if f := topoRun("", "--root", root, "--advise", "--json", "-"); json.Unmarshal([]byte(f.stdout), &a) != nil || len(a.GPUs) != 2 || len(a.Contradictions) < 2 {
		t.Errorf("as JSON: %s", f.stdout)
	}
}

func TestTopoUsage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"extra"}, {"--from", "no/such/file"}, {"--from", empty}, {"--from", dir}, {"--root", "no/such/folder"}, {"--root", empty}, {"--from", empty, "--root", dir},
		{"--json", "-", "--xml", "-"}, {"--tree", "--advise"}, {"--tree", "--diff", empty}, {"--draw", "a.gif"}, {"--draw", ""}, {"--draw", "-"}, {"--json", dir}, {"--diff", empty}, {"--diff", "no/such"},
		{"--from", "-", "--diff", "-"}, {"--nonsense"}} {
		if f := topoRun("", args...); f.code != bench.ExitUsage || f.stdout != "" || !strings.HasPrefix(f.stderr, "commprobe: ") {
			t.Errorf("%q: exit status %d, stderr %q, stdout %q", args, f.code, f.stderr, f.stdout)
		}
	}
	has(t, topoRun("", "--help").stdout, "commprobe topo --advise", "NCCL_TOPO_FILE", "--json FILE")
}

// This machine, whatever it is.
func TestTopoHere(t *testing.T) {
	t.Parallel()
	for _, view := range [][]string{nil, {"--tree"}, {"--advise"}, {"--nccl"}} {
		if f := topoRun("", view...); f.code != 0 || f.stdout == "" {
			t.Errorf("%q: exit status %d: %s", view, f.code, f.stderr)
		}
	}
}

// What NVML says reaches the topology, and what it could not say stays unknown.
func TestTopoDevices(t *testing.T) {
	t.Parallel()
	if topoDevices(nil) != nil {
		t.Error("devices without NVML")
	}
	text := func(s string) *string { return &s }
	on, off := true, false
	n := &nvml.Node{Driver: text("580.1"), GPUs: []nvml.GPU{
		{Index: 0, Name: text("H"), PCI: text("0000:01:00.0"), SM: text("9.0"), Missing: map[string]string{},
			Links: []nvml.Link{{Link: 0, Active: &on, RemotePCI: text("0000:02:00.0"), RemoteType: text("gpu")}, {Link: 1, Active: &off}}},
		{Index: 1, SM: text("x"), Missing: map[string]string{"nvlinks": "no NVLink on this GPU: not supported"}},
		{Index: 2, Missing: map[string]string{"nvlinks": "the library lacks nvmlDeviceGetNvLinkState"}},
	}}
	d := topoDevices(n)
	g := d.GPUs[0]
	if d.Source != "NVML 580.1" || g.Name != "H" || g.SM == nil || *g.SM != 90 || len(g.NVLinks) != 2 || g.NVLinks[0].Peer != topo.PeerGPU || g.NVLinks[1].Active != &off {
		t.Errorf("%+v", g)
	}
	if d.GPUs[1].SM != nil || d.GPUs[1].NVLinks == nil || len(d.GPUs[1].NVLinks) != 0 || d.GPUs[2].NVLinks != nil {
		t.Errorf("%+v", d.GPUs[1:])
	}
}

func TestNCCLDiffers(t *testing.T) {
	t.Parallel()
	in, err := topo.Read(strings.NewReader(topoRun("", "--root", topotest.Materialise(t, "dgx-a100"), "--json", "-").stdout), "a")
	if err != nil {
		t.Fatal(err)
	}
	lines := ncclDiffers(in.Graph)
	if !slices.ContainsFunc(lines, func(s string) bool {
		return strings.Contains(s, "PXB is PIX") && strings.Contains(s, "mlx5_0–mlx5_1")
	}) {
		t.Errorf("%q", lines)
	}
	for _, l := range lines {
		if strings.Contains(l, "SYS is SYS") || strings.Contains(l, "NV12") {
			t.Errorf("no difference: %s", l)
		}
	}
}
