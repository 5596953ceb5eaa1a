package topo_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/commprobe/commprobe/internal/topo"
	"github.com/commprobe/commprobe/internal/topo/topotest"
)

// machine reads a recorded machine with what NVML says there. Making the files takes long, so each is read once, and a test gets a copy.
func machine(t testing.TB, name string) *topo.Graph {
	t.Helper()
	text, ok := machines[name]
	if !ok {
		g, err := topo.ReadSys(topotest.Materialise(t, name), devices(t, name))
		if err != nil {
			t.Fatal(err)
		}
		rename(g, name)
		if text, err = json.Marshal(g); err != nil {
			t.Fatal(err)
		}
		machines[name] = text
	}
	g := &topo.Graph{}
	if err := json.Unmarshal(text, g); err != nil {
		t.Fatal(err)
	}
	return g
}

var machines = map[string][]byte{}

// rename takes the temporary folder out of a graph.
func rename(g *topo.Graph, name string) {
	for i := range g.Notes {
		if g.Notes[i].Where == g.Source {
			g.Notes[i].Where = name
		}
	}
	g.Source = name
}

func devices(t testing.TB, name string) *topo.Devices {
	t.Helper()
	text := topotest.NVML(t, name)
	if text == nil {
		return nil
	}
	d := &topo.Devices{}
	if err := json.Unmarshal(text, d); err != nil {
		t.Fatalf("%s: nvml.json: %v", name, err)
	}
	return d
}

func codes(notes []topo.Note) string {
	var out []string
	for _, n := range notes {
		if !slices.Contains(out, n.Code) {
			out = append(out, n.Code)
		}
	}
	return strings.Join(out, " ")
}

// TestMachines has what was worked out by hand for each machine: how much there is, the notes, and words of pairs from the drawing of its tree.
func TestMachines(t *testing.T) {
	tests := []struct {
		name                         string
		gpus, nics, cpus, nvswitches int
		notes                        string
		pairs                        []string // a b smi pci nccl
	}{
		{"dgx-a100", 8, 11, 8, 6, "", []string{
			"GPU0 GPU1 NV12 PXB NVL", "GPU0 GPU7 NV12 SYS NVL",
			"GPU0 mlx5_0 PXB PXB PXB", "GPU0 mlx5_1 PXB PXB PXB", "GPU1 mlx5_0 PXB PXB PXB", "GPU0 mlx5_2 SYS SYS SYS",
			"GPU4 mlx5_6 PXB PXB PXB", "GPU6 mlx5_8 PXB PXB PXB", "GPU0 mlx5_4 SYS SYS SYS",
			"mlx5_0 mlx5_1 PXB PXB PIX", "mlx5_4 mlx5_5 PIX PIX LOC", "mlx5_0 mlx5_2 SYS SYS SYS",
		}},
		{"dgx-h100", 8, 10, 2, 4, "link-slow", []string{
			"GPU0 GPU7 NV18 SYS NVL", "GPU0 mlx5_0 PXB PXB PIX", "GPU0 mlx5_1 NODE NODE PHB", "GPU1 mlx5_3 PXB PXB PIX", "GPU0 mlx5_3 NODE NODE PHB",
			"GPU0 mlx5_6 SYS SYS SYS", "GPU7 mlx5_9 PXB PXB PIX", "mlx5_1 mlx5_2 PIX PIX LOC", "mlx5_0 mlx5_3 NODE NODE PHB",
		}},
		{"pcie-plx", 8, 1, 2, 0, "no-infiniband link-slow link-narrow", []string{
			"GPU0 GPU1 PIX PIX PIX", "GPU0 GPU2 PHB PHB PHB", "GPU0 GPU4 SYS SYS SYS", "GPU6 GPU7 PIX PIX PIX", "GPU0 eno1 PHB PHB PHB",
		}},
		{"a40-bridges", 8, 2, 2, 0, "", []string{
			"GPU0 GPU1 NV4 NODE NVL", "GPU2 GPU3 NV4 PIX NVL", "GPU0 GPU2 NODE NODE PHB", "GPU0 GPU4 SYS SYS SYS", "GPU2 mlx5_0 PIX PIX PIX", "GPU0 mlx5_0 NODE NODE PHB",
		}},
		{"dgx1-v100", 8, 4, 2, 0, "", []string{
			"GPU0 GPU1 NV1 PIX NVL", "GPU0 GPU2 NV1 PHB NVL", "GPU0 GPU3 NV2 PHB NVL", "GPU0 GPU4 NV2 SYS NVL", "GPU0 GPU5 SYS SYS NVB", "GPU0 GPU7 SYS SYS NVB", "GPU0 mlx5_0 PIX PIX PIX",
			"GPU0 mlx5_1 PHB PHB PHB", "GPU0 mlx5_2 SYS SYS SYS",
		}},
		{"gh200", 1, 4, 2, 0, "", []string{
			"GPU0 mlx5_0 NODE NODE P2C", "GPU0 mlx5_3 NODE NODE P2C", "mlx5_0 mlx5_1 PIX PIX LOC", "mlx5_0 mlx5_2 NODE NODE PHB",
		}},
		{"roce-bond-vf", 2, 4, 2, 0, "nic-unused link-narrow", []string{
			"GPU0 mlx5_bond_0 PIX PIX PIX", "GPU0 GPU1 SYS SYS SYS", "GPU1 mlx5_2 PHB PHB PHB", "mlx5_2 mlx5_10 PIX PIX LOC", "mlx5_2 mlx5_3 PIX PIX LOC",
		}},
		{"vm-flat", 4, 8, 1, 0, "virtual-machine nvlink-hidden flat-pci numa-unknown", []string{
			"GPU0 GPU1 NV18 PHB NVL", "GPU0 mlx5_0 PHB PHB PHB", "GPU3 mlx5_7 PHB PHB PHB", "mlx5_0 mlx5_1 PHB PHB PHB",
		}},
		{"vm-h200x2", 2, 1, 1, 0, "virtual-machine no-infiniband", []string{"GPU0 GPU1 NV18 PHB NVL", "GPU0 eth0 PHB PHB PHB"}},
		{"container-cutdown", 2, 0, 0, 0, "no-node-folder no-pci no-infiniband gpu-not-in-sysfs no-nic no-numa", []string{"GPU0 GPU1 NV18 ? NVL"}},
		{"no-gpu-no-nic", 0, 0, 1, 0, "virtual-machine no-infiniband no-gpu no-nic", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := machine(t, tt.name)
			if len(g.GPUs) != tt.gpus || len(g.NICs) != tt.nics || len(g.CPUs) != tt.cpus || len(g.NVSwitches) != tt.nvswitches {
				t.Errorf("%d GPUs, %d NICs, %d CPUs, %d NVSwitches", len(g.GPUs), len(g.NICs), len(g.CPUs), len(g.NVSwitches))
			}
			if got := codes(g.Notes); got != tt.notes {
				t.Errorf("notes %q, want %q\n%v", got, tt.notes, g.Notes)
			}
			for _, pair := range tt.pairs {
				f := strings.Fields(pair)
				p, err := g.Path(f[0], f[1])
				if err != nil {
					t.Fatal(err)
				}
				back, _ := g.Path(f[1], f[0])
				if got := strings.Join([]string{f[0], f[1], p.SMI, p.PCI, p.NCCL}, " "); got != pair {
					t.Errorf("got %s, want %s (%s)", got, pair, p.Why)
				}
				if back.SMI != p.SMI || back.NCCL != p.NCCL || !same(back.GBs, p.GBs) || !same(back.NCCLGBs, p.NCCLGBs) {
					t.Errorf("%s is another way back: %+v", pair, back)
				}
			}
		})
	}
	if len(tests) != len(topotest.Names()) {
		t.Errorf("%d machines are tested, there are %v", len(tests), topotest.Names())
	}
}

func same(a, b *float64) bool { return a == nil && b == nil || a != nil && b != nil && *a == *b }

func TestPathBandwidth(t *testing.T) {
	tests := []struct {
		machine, a, b string
		gbs, now      float64 // 0: unknown
		nccl          float64
		narrow        string
		relay         string
		unknown       string
	}{
		{"dgx-h100", "GPU0", "GPU5", 450, 450, 370.8, "18 NVLinks of 25 GB/s", "", ""},
		{"dgx-h100", "GPU0", "mlx5_0", 63.02, 63.02, 48, "the link above 0000:1f:00.0: gen5 x16", "", ""},
		{"dgx-h100", "GPU0", "mlx5_1", 63.02, 31.51, 25, "", "", "between the host bridges pci0000:17 pci0000:26"},
		{"dgx-h100", "GPU0", "mlx5_3", 63.02, 63.02, 48, "", "GPU1", "between the host bridges pci0000:17 pci0000:3d"},
		{"dgx-h100", "GPU0", "mlx5_6", 0, 0, 22, "", "GPU4", "between the NUMA nodes"},
		{"dgx-a100", "GPU0", "mlx5_0", 31.51, 31.51, 24, "", "", ""},
		{"dgx-a100", "GPU0", "mlx5_2", 0, 0, 16, "", "GPU2", "between the NUMA nodes"},
		{"pcie-plx", "GPU0", "GPU1", 15.75, 4, 12, "the link above 0000:04:00.0: gen3 x16", "", ""},
		{"pcie-plx", "GPU4", "GPU5", 15.75, 2, 12, "", "", ""},
		{"pcie-plx", "GPU0", "GPU4", 0, 0, 6, "", "", "between the NUMA nodes"},
		{"a40-bridges", "GPU0", "GPU1", 56.3, 56.3, 48, "4 NVLinks of 14.0625 GB/s", "", ""},
		{"dgx1-v100", "GPU0", "GPU3", 50, 50, 40, "", "", ""},
		{"gh200", "GPU0", "mlx5_0", 63.02, 63.02, 48, "the link above 0000:01:00.0: gen5 x16", "", "between the host bridges pci0009:00 pci0000:00"},
		{"vm-flat", "GPU0", "mlx5_0", 0, 0, 12, "", "", "inside the host bridge pci0000:00|the link above 0000:00:10.0"},
		{"container-cutdown", "GPU0", "GPU1", 450, 450, 370.8, "", "", ""},
	}
	for _, tt := range tests {
		p, err := machine(t, tt.machine).Path(tt.a, tt.b)
		if err != nil {
			t.Fatal(err)
		}
		name := tt.machine + " " + tt.a + " " + tt.b
		for what, v := range map[string]struct {
			got  *float64
			want float64
		}{"gbs": {p.GBs, tt.gbs}, "now": {p.NowGBs, tt.now}, "nccl": {p.NCCLGBs, tt.nccl}} {
			if v.got == nil && v.want != 0 || v.got != nil && *v.got != v.want {
				t.Errorf("%s: %s is %v, want %v", name, what, str(v.got), v.want)
			}
		}
		if tt.narrow != "" && p.Narrow != tt.narrow || p.Relay != tt.relay || strings.Join(p.Unknown, "|") != tt.unknown {
			t.Errorf("%s: narrow %q, relay %q, unknown %q", name, p.Narrow, p.Relay, p.Unknown)
		}
	}
}

func str(v *float64) any {
	if v == nil {
		return "unknown"
	}
	return *v
}

// TestWithoutNVML: what only NVML knows stays unknown.
func TestWithoutNVML(t *testing.T) {
	g, err := topo.ReadSys(topotest.Materialise(t, "dgx-h100"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(g.GPUs) != 8 || g.GPUs[0].NVLinks != nil || g.GPUs[0].Index != nil || g.GPUs[0].BusID != "0000:1f:00.0" {
		t.Errorf("%d GPUs, first %+v", len(g.GPUs), g.GPUs[0])
	}
	p, _ := g.Path("GPU0", "GPU1")
	if p.SMI != topo.SMIUnknown || p.PCI != "NODE" || p.NCCL != "" || p.GBs != nil || !strings.Contains(p.Why, "NVLinks of GPU0 are not known") {
		t.Errorf("%+v", p)
	}
	if p, _ := g.Path("GPU0", "mlx5_0"); p.SMI != "PXB" || p.NCCL != "PIX" {
		t.Errorf("%+v", p)
	}
	if !strings.Contains(codes(g.Notes), "nvlink-unknown") {
		t.Errorf("notes %v", g.Notes)
	}
	text, err := json.Marshal(g)
	if err != nil || !strings.Contains(string(text), `"nvlinks":null`) {
		t.Errorf("unknown NVLink is not null in JSON (%v)", err)
	}
}

func TestDetails(t *testing.T) {
	g := machine(t, "roce-bond-vf")
	byName := map[string]topo.NIC{}
	for _, n := range g.NICs {
		byName[n.Name] = n
	}
	bond, vf, pf, down := byName["mlx5_bond_0"], byName["mlx5_10"], byName["mlx5_2"], byName["mlx5_3"]
	if bond.Bond != "bond0" || !slices.Equal(bond.Netdevs, []string{"ens1f0np0", "ens1f1np1"}) || *bond.Ports[0].Gbps != 200 || bond.Ports[0].LinkLayer != "Ethernet" {
		t.Errorf("bond: %+v", bond)
	}
	if len(bond.Ports[0].GIDs) != 4 || bond.Ports[0].GIDs[3].Type != "RoCE v2" || bond.Ports[0].GIDs[3].Netdev != "bond0" {
		t.Errorf("GIDs: %+v", bond.Ports[0].GIDs)
	}
	if vf.PF != "0000:99:00.0" || vf.NUMA == nil || *vf.NUMA != 1 || pf.VFs == nil || *pf.VFs != 2 || pf.PF != "" {
		t.Errorf("VF: %+v\nPF: %+v", vf, pf)
	}
	if down.Ports[0].State != "DOWN" || down.Ports[0].Phys != "Disabled" {
		t.Errorf("down: %+v", down.Ports)
	}
	if f := g.Function("0000:18:00.0"); f.ACS.State != "on" || !slices.Equal(f.ACS.Enabled, []string{"SV", "RR", "CR", "UF"}) || f.Role != topo.RoleDownstream || *f.MaxReadReq != 512 || !*f.Relaxed {
		t.Errorf("downstream port: %+v", f)
	}
	if f := g.Function("0000:17:00.0"); f.ACS.State != "off" || f.Role != topo.RoleUpstream {
		t.Errorf("upstream port: %+v", f)
	}
	if f := g.Function("0000:97:01.0"); f.ACS.State != "cannot tell" || f.ACS.Why == "" || f.Role != topo.RoleRootPort {
		t.Errorf("root port without readable configuration space: %+v", f)
	}
	var up []string
	for _, f := range g.Above("0000:19:00.0") {
		up = append(up, f.BusID)
	}
	if !slices.Equal(up, []string{"0000:18:00.0", "0000:17:00.0", "0000:16:01.0"}) {
		t.Errorf("above GPU0: %v", up)
	}
	a := machine(t, "dgx-a100")
	if f := a.Function("0000:07:00.0"); f.IOMMUGroup == nil || *f.IOMMUGroup != 20 || f.Root != "pci0000:00" {
		t.Errorf("%+v", f)
	}
	if c := a.CPUs[3]; c.CPUs != "48-63,176-191" || *c.Socket != 0 || len(c.Distance) != 8 || *c.Family != 23 || c.Vendor != "AuthenticAMD" || c.Arch != "x86_64" {
		t.Errorf("%+v", c)
	}
	h := machine(t, "gh200")
	if h.CPUs[1].CPUs != "" || *h.GPUs[0].MemNUMA != 1 || h.CPUs[0].Arch != "arm64" || h.GPUs[0].C2C.Count != 10 {
		t.Errorf("GH200: %+v", h.CPUs)
	}
	vm, box := machine(t, "vm-flat"), machine(t, "container-cutdown")
	if !*vm.Host.Virtual || vm.Host.Product != "QEMU Standard PC (Q35 + ICH9, 2009)" || *box.Host.Virtual || !*box.Host.Container || vm.Host.Container != nil {
		t.Errorf("hosts: %+v %+v", vm.Host, box.Host)
	}
}

// change reads a machine after one change of its description.
func change(t *testing.T, name, old, replacement string, d *topo.Devices) *topo.Graph {
	t.Helper()
	text := topotest.Text(t, name)
	if !strings.Contains(text, old) {
		t.Fatalf("%s has no %q", name, old)
	}
	g, err := topo.ReadSys(topotest.Build(t, strings.ReplaceAll(text, old, replacement)), d)
	if err != nil {
		t.Fatal(err)
	}
	rename(g, name)
	return g
}

func TestDeviceFacts(t *testing.T) {
	no, yes := false, true
	d := devices(t, "dgx-h100")
	d.GPUs[2].NVLinks[0].Active = &no
	d.GPUs[3].MIG = &yes
	d.GPUs = d.GPUs[:7]
	d.GPUs[6].BusID = "nonsense"
	g := change(t, "dgx-h100", "mlx5_9", "mlx5_9", d)
	if got := codes(g.Notes); got != "nvlink-down mig device-busid gpu-not-in-sysfs gpu-not-in-driver nvlink-unknown link-slow" {
		t.Errorf("notes %q\n%v", got, g.Notes)
	}
	p, _ := g.Path("GPU0", "GPU2")
	if p.SMI != "NV13" && p.SMI != topo.SMIUnknown {
		t.Errorf("%+v", p)
	}
	d = devices(t, "dgx-h100")
	d.GPUs[2].NVLinks[0].Active = &no
	g = change(t, "dgx-h100", "mlx5_9", "mlx5_9", d)
	if p, _ := g.Path("GPU0", "GPU2"); p.SMI != "NV13" || *p.GBs != 325 {
		t.Errorf("five links down: %+v", p)
	}
	if got := codes(g.Notes); got != "nvlink-down nvlink-uneven link-slow" {
		t.Errorf("notes %q", got)
	}
}

// TestNUMAUnknown: -1 on a machine with several host bridges and NUMA nodes.
func TestNUMAUnknown(t *testing.T) {
	g := change(t, "dgx-h100", "pci0000:26 numa=0", "pci0000:26 numa=-1", devices(t, "dgx-h100"))
	p, _ := g.Path("GPU0", "mlx5_1")
	if p.SMI != "SYS" || p.Why == "" {
		t.Errorf("%+v", p)
	}
	if !strings.Contains(codes(g.Notes), "numa-unknown") {
		t.Errorf("%v", g.Notes)
	}
	one := change(t, "gh200", "numa=0", "numa=-1", devices(t, "gh200"))
	one.CPUs = one.CPUs[:1]
	if p, _ := one.Path("GPU0", "mlx5_0"); p.SMI != topo.SMINodeOrSys || p.Why == "" {
		t.Errorf("one node: %+v", p)
	}
}

func TestCopiedSys(t *testing.T) {
	root := topotest.Materialise(t, "dgx-h100")
	link := filepath.Join(root, "sys/bus/pci/devices/0000:1f:00.0")
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"class": "0x030200", "vendor": "0x10de", "numa_node": "0"} {
		if err := os.MkdirAll(link, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(link, name), []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	g, err := topo.ReadSys(root, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(codes(g.Notes), "no-place") {
		t.Errorf("notes %v", g.Notes)
	}
	if p, _ := g.Path("GPU0", "mlx5_0"); p.SMI != topo.SMIUnknown || p.GBs != nil {
		t.Errorf("a GPU without a place has a path: %+v", p)
	}
}

func TestReadSysErrors(t *testing.T) {
	if _, err := topo.ReadSys(filepath.Join(t.TempDir(), "absent"), nil); err == nil {
		t.Error("an absent root was read")
	}
	g, err := topo.ReadSys(t.TempDir(), nil)
	if err != nil || len(g.GPUs)+len(g.NICs)+len(g.CPUs) != 0 || len(g.Notes) == 0 {
		t.Errorf("empty root: %+v, %v", g, err)
	}
	if g, err = topo.ReadSys("/", nil); err != nil || g.Source != "/sys" {
		t.Errorf("this machine: %v", err)
	}
	root := topotest.Materialise(t, "pcie-plx")
	outside := filepath.Join(root, "sys/class/net/eno1/mtu")
	if _, err := os.Stat(outside); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/hostname", filepath.Join(root, "sys/class/dmi")); err != nil {
		t.Fatal(err)
	}
	if g, err = topo.ReadSys(root, nil); err != nil || g.Host.Product != "" {
		t.Errorf("a link out of the root was followed: %q, %v", g.Host.Product, err)
	}
}

// TestXMLOfMachines: the XML of a machine says the same as the machine, as far as NCCL's form can.
func TestXMLOfMachines(t *testing.T) {
	for _, name := range topotest.Names() {
		g := machine(t, name)
		var b strings.Builder
		if err := g.WriteXML(&b); err != nil {
			if len(g.CPUs) > 0 {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if len(g.GPUs)+len(g.NICs) == 0 {
			continue
		}
		in, err := topo.Read(strings.NewReader(b.String()), name+".xml")
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, &b)
		}
		x := in.Graph
		if len(x.GPUs) != len(g.GPUs) || len(x.CPUs) != len(g.CPUs) {
			t.Errorf("%s: %d GPUs, %d CPUs in the XML", name, len(x.GPUs), len(x.CPUs))
		}
		for _, p := range g.Paths() {
			a, b := nameOf(g, p.A), nameOf(g, p.B)
			q, err := x.Path(a, b)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if q.NCCL != p.NCCL || !same(q.NCCLGBs, p.NCCLGBs) && name != "vm-flat" { // virtual functions have no speed, and an XML without one is completed by NCCL
				t.Errorf("%s: %s to %s: NCCL %s %v, from the XML %s %v", name, a, b, p.NCCL, str(p.NCCLGBs), q.NCCL, str(q.NCCLGBs))
			}
			ok := q.SMI == p.SMI || q.SMI == topo.SMIHostOrNode && (p.SMI == "PHB" || p.SMI == "NODE")
			if !ok && name != "vm-flat" {
				t.Errorf("%s: %s to %s: nvidia-smi %s, from the XML %s", name, a, b, p.SMI, q.SMI)
			}
		}
	}
}

func nameOf(g *topo.Graph, id string) string {
	for _, n := range g.NICs {
		if n.ID == id {
			return n.Name
		}
	}
	return id
}

// TestXMLGUID: NCCL prints the eight bytes the other way round: published dumps end in the vendor's 94:6d:ae or 0c:42:a1 read backwards.
func TestXMLGUID(t *testing.T) {
	g := change(t, "dgx-h100", "ib=mlx5_4 ", "ib=mlx5_4 guid=946d.ae03.0050.709a ", devices(t, "dgx-h100"))
	if text := written1(t, g); !strings.Contains(text, `name="mlx5_4" speed="400000" port="1" guid="0x9a70500003ae6d94"`) {
		t.Error(text)
	}
}

func TestJSON(t *testing.T) {
	for _, name := range topotest.Names() {
		g := machine(t, name)
		text, err := json.Marshal(g)
		if err != nil {
			t.Fatal(err)
		}
		var form struct {
			GPUs, NICs, CPUs, Edges []json.RawMessage
			Paths                   []struct {
				A, B, SMI, NCCL string
				GBs             *float64
			}
		}
		if err := json.Unmarshal(text, &form); err != nil {
			t.Fatal(err)
		}
		ends := len(g.GPUs) + len(g.NICs)
		if len(form.GPUs) != len(g.GPUs) || len(form.NICs) != len(g.NICs) || len(form.CPUs) != len(g.CPUs) || len(form.Paths) != ends*(ends-1)/2 || form.GPUs == nil || form.Paths == nil {
			t.Errorf("%s: %d GPUs, %d NICs, %d CPUs, %d paths", name, len(form.GPUs), len(form.NICs), len(form.CPUs), len(form.Paths))
		}
		if ends == 0 {
			continue
		}
		in, err := topo.Read(strings.NewReader(string(text)), name)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(g, in.Graph, emptyLists); d != "" {
			t.Errorf("%s: JSON gives another graph:\n%s", name, d)
		}
	}
}

// emptyLists takes an empty list of devices for an absent one; for NVLinks they mean different things.
var emptyLists = cmp.FilterPath(func(p cmp.Path) bool {
	return p.Last().Type().Kind() == reflect.Slice && p.Last().String() != ".NVLinks"
},
	cmp.Comparer(func(a, b any) bool {
		return reflect.ValueOf(a).Len() == 0 && reflect.ValueOf(b).Len() == 0 || reflect.DeepEqual(a, b)
	}))

func TestTree(t *testing.T) {
	for _, name := range topotest.Names() {
		g := machine(t, name)
		var b strings.Builder
		if err := g.Tree(&b); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 120 {
				t.Errorf("%s: %d columns: %s", name, n, line)
			}
		}
		for _, gpu := range g.GPUs {
			if strings.Count(b.String(), gpu.ID+" ") != 1 {
				t.Errorf("%s: %s is not drawn once:\n%s", name, gpu.ID, &b)
			}
		}
		for _, nic := range g.NICs {
			if !strings.Contains(b.String(), nic.ID+" "+nic.Name) {
				t.Errorf("%s: %s is not drawn", name, nic.Name)
			}
		}
	}
	var b strings.Builder
	if err := machine(t, "pcie-plx").Tree(&b); err != nil {
		t.Fatal(err)
	}
	const want = `NUMA 1  socket 1  CPUs 14-27,42-55  GenuineIntel
└─ pci0000:80
   ├─ 0000:82:00.0  switch 10b5:8747  gen3 x16 15.8 GB/s
   │  ├─ 0000:84:00.0  GPU4 NVIDIA A100-PCIE-40GB  gen1 x16 (of gen3 x16) 15.8 GB/s
   │  └─ 0000:85:00.0  GPU5 NVIDIA A100-PCIE-40GB  gen1 x8 (of gen3 x16) 15.8 GB/s
   └─ 0000:8a:00.0  switch 10b5:8747  gen3 x16 15.8 GB/s
`
	if !strings.Contains(b.String(), want) {
		t.Errorf("got\n%s", &b)
	}
}

func TestDiff(t *testing.T) {
	a := machine(t, "dgx-h100")
	if d := topo.Diff(a, machine(t, "dgx-h100")); len(d) != 0 {
		t.Errorf("equal machines differ: %q", d)
	}
	d := devices(t, "dgx-h100")
	no := false
	d.GPUs[5].NVLinks[0].Active = &no
	for _, tt := range []struct {
		name, old, replacement string
		d                      *topo.Devices
		want                   []string
	}{
		{"NVLinks", "mlx5_9", "mlx5_9", d, []string{"GPU5: NVLinks 18 to nvswitch in a, 13 to nvswitch in b", "GPU0 to GPU5: NV18 in a, NV13 in b"}},
		{"state", "rate=200 state=DOWN", "rate=200", nil, []string{"mlx5_2 port 1: state DOWN in a, ACTIVE in b"}},
		{"rate", "ib=mlx5_4 layer=IB rate=400", "ib=mlx5_4 layer=IB rate=200", nil, []string{"mlx5_4 port 1: rate in Gb/s 400 in a, 200 in b"}},
		{"name", "ib=mlx5_4", "ib=mlx5_44", nil, []string{"NIC mlx5_4 is only in a", "NIC mlx5_44 is only in b"}},
		{"width", "0000:55:00.0 gpu gen5x16", "0000:55:00.0 gpu gen5x8/gen5x16", nil, []string{"0000:55:00.0: PCIe width 16 in a, 8 in b"}},
		{"CPUs", "0 cpus=0-55,112-167", "0 cpus=0-55", nil, []string{"NUMA node 0: CPUs 0-55,112-167 in a, 0-55 in b"}},
		{"place", "pci0000:26 numa=0", "pci0000:26 numa=1", nil, []string{"mlx5_1: NUMA node 0 in a, 1 in b", "GPU0 to mlx5_1: NODE in a, SYS in b"}},
	} {
		if tt.d == nil {
			tt.d = devices(t, "dgx-h100")
		}
		b := change(t, "dgx-h100", tt.old, tt.replacement, tt.d)
		a.Source, b.Source = "a", "b"
		got := topo.Diff(a, b)
		for _, want := range tt.want {
			if !slices.Contains(got, want) {
				t.Errorf("%s: %q is not among %q", tt.name, want, got)
			}
		}
	}
	if got := topo.Diff(a, machine(t, "vm-flat")); !slices.Contains(got, "GPUs: 8 in a, 4 in vm-flat") {
		t.Errorf("%q", got)
	}
}

func TestPathErrors(t *testing.T) {
	g := machine(t, "pcie-plx")
	if _, err := g.Path("GPU0", "GPU9"); err == nil || !strings.Contains(err.Error(), `no GPU or NIC "GPU9": there are GPU0, GPU1`) {
		t.Errorf("%v", err)
	}
	for _, name := range []string{"GPU3", "0000:0D:00.0", "00000000:0d:00.0", "GPU-c1000000-0000-0000-0000-000000000003"} {
		if p, err := g.Path("GPU2", name); err != nil || p.B != "GPU3" || p.SMI != "PIX" {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
	if p, err := g.Path("GPU1", "GPU1"); err != nil || p.SMI != "X" || p.NCCL != "LOC" {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestOddNICs has devices that are not simply a PCI function with one interface.
func TestOddNICs(t *testing.T) {
	root := topotest.Build(t, `-- pci --
pci0000:00 numa=1 cpus=8-15
  0000:00:01.0 root gen4x16
    0000:01:00.0 nic gen4x16 layer=Eth
    0000:01:00.1 nic unknown numa=-1 pf=0000:01:00.0 ib=rocep1s0f0v0 layer=Eth rate=100 net=enp1s0f0v0
  0000:00:02.0 gpu unknown id=10de:20b0
-- nodes --
0 cpus=0-7
1 cpus=8-15
-- sys/class/infiniband/rxe0/ports/1/state --
4: ACTIVE
-- sys/class/infiniband/rxe0/ports/1/rate --
2.5 Gb/sec (1X SDR)
-- sys/class/infiniband/copied0/device/uevent --
DRIVER=mlx5_core
PCI_SLOT_NAME=0000:01:00.0
-- sys/class/infiniband/gone0/device/uevent --
PCI_SLOT_NAME=0000:55:00.0
-- proc/cpuinfo --
cpu		: POWER9, altivec supported
-- proc/driver/nvidia/gpus/0000:00:02.0/information --
Model: 		 NVIDIA A100-SXM4-40GB
IRQ:   		 100
GPU UUID: 	 GPU-12345678-1234-1234-1234-123456789012
`)
	gen, width := 4, 16
	g, err := topo.ReadSys(root, &topo.Devices{Source: "NVML", GPUs: []topo.Device{{BusID: "00000000:00:02.0", PCIeGen: &gen, PCIeWidth: &width, PCIeMaxGen: &gen, PCIeMaxWidth: &width}}})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, n := range g.NICs {
		names = append(names, n.ID+" "+n.Name+" "+n.BusID)
	}
	want := "NIC0 copied0 0000:01:00.0, NIC1 gone0 0000:55:00.0, NIC2 rocep1s0f0v0 0000:01:00.1, NIC3 rxe0 "
	if got := strings.Join(names, ", "); got != want {
		t.Errorf("got %s", got)
	}
	if vf := g.NICs[2]; vf.NUMA == nil || *vf.NUMA != 1 || vf.PF != "0000:01:00.0" {
		t.Errorf("a virtual function takes its physical function's NUMA node: %+v", vf)
	}
	if p := g.GPUs[0]; p.Name != "NVIDIA A100-SXM4-40GB" || p.UUID != "GPU-12345678-1234-1234-1234-123456789012" || p.NVLinks != nil {
		t.Errorf("%+v", p)
	}
	if l := g.Function("0000:00:02.0").Link; *l.Speed != 16 || *l.MaxWidth != 16 {
		t.Errorf("%+v", l)
	}
	if g.CPUs[0].Arch != "ppc64" {
		t.Errorf("%+v", g.CPUs[0])
	}
	for _, name := range []string{"gone0", "rxe0"} {
		if p, err := g.Path("GPU0", name); err != nil || p.SMI != topo.SMIUnknown || p.NCCL != "" || p.GBs != nil || p.Why == "" {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
	var b strings.Builder
	if err := g.Tree(&b); err != nil || !strings.Contains(b.String(), "place unknown: NIC3 rxe0 2.5 Gb/s") {
		t.Errorf("%v\n%s", err, &b)
	}
	if got := codes(g.Notes); got != "nic-without-pci nvlink-unknown" {
		t.Errorf("notes %q\n%v", got, g.Notes)
	}
}

// TestLargeNode: 16 GPUs and 76 NICs behind switches.
func TestLargeNode(t *testing.T) {
	var b strings.Builder
	b.WriteString("-- nodes --\n0 cpus=0-31\n1 cpus=32-63\n-- pci --\n")
	gpu, nic := 0, 0
	for s := range 16 {
		fmt.Fprintf(&b, "pci%04x:00 numa=%d cpus=0-31\n  %04x:00:01.0 root gen5x16\n    %04x:01:00.0 up gen5x16\n", s, s/8, s, s)
		fmt.Fprintf(&b, "      %04x:02:00.0 down gen5x16\n        %04x:03:00.0 gpu gen5x16 id=10de:2330\n", s, s)
		gpu++
		for k := range 5 {
			if nic == 76 {
				break
			}
			fmt.Fprintf(&b, "      %04x:02:%02x.0 down gen5x16\n        %04x:%02x:00.0 nic gen5x16 ib=mlx5_%d layer=IB rate=400 net=ib%d\n", s, k+1, s, k+4, nic, nic)
			nic++
		}
	}
	g, err := topo.ReadSys(topotest.Build(t, b.String()), nil)
	if err != nil || len(g.GPUs) != 16 || len(g.NICs) != 76 || g.NICs[75].Name != "mlx5_75" {
		t.Fatalf("%d GPUs, %d NICs, %v", len(g.GPUs), len(g.NICs), err)
	}
	start := time.Now()
	paths := g.Paths()
	if took := time.Since(start); len(paths) != 92*91/2 || took > 5*time.Second {
		t.Errorf("%d paths in %v", len(paths), took)
	}
	m := g.Matrix()
	if m.Word("GPU15", "mlx5_75") != "PIX" || m.Word("GPU0", "mlx5_75") != "SYS" || m.Word("GPU0", "mlx5_5") != "NODE" {
		t.Errorf("%s %s %s", m.Word("GPU15", "mlx5_75"), m.Word("GPU0", "mlx5_75"), m.Word("GPU0", "mlx5_5"))
	}
	if n := g.MatrixNCCL(); n.Word("GPU15", "mlx5_75") != "PIX" || n.Word("GPU0", "mlx5_5") != "PHB" || n.Word("GPU0", "GPU1") != "" {
		t.Errorf("%v", n.Rows[0].Words)
	}
	roundTrip(t, "large", read(t, written1(t, g)).Graph)
}
