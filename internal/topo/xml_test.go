package topo_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/commprobe/commprobe/internal/topo"
	"github.com/commprobe/commprobe/internal/topo/topotest"
)

func read(t *testing.T, text string) *topo.Input {
	t.Helper()
	in, err := topo.Read(strings.NewReader(text), "t")
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// TestOwnDump reads what NCCL 2.28 wrote on a virtual machine with two H200.
func TestOwnDump(t *testing.T) {
	text, err := os.ReadFile("testdata/h200x2.xml")
	if err != nil {
		t.Fatal(err)
	}
	g := read(t, string(text)).Graph
	if len(g.GPUs) != 2 || len(g.NICs) != 1 || len(g.CPUs) != 1 || g.CPUs[0].NUMA != -1 || *g.GPUs[1].SM != 90 || g.GPUs[1].NVLinks[0].Target != topo.HiddenTarget {
		t.Errorf("%+v", g)
	}
	p, err := g.Path("GPU0", "GPU1")
	if err != nil || p.SMI != "NV18" || p.PCI != "PHB" || p.NCCL != "NVL" || *p.GBs != 450 || *p.NCCLGBs != 370.8 {
		t.Errorf("%+v, %v", p, err)
	}
	p, err = g.Path("GPU0", "eth0")
	if err != nil || p.SMI != topo.SMIUnknown || p.NCCL != "PHB" || *p.NCCLGBs != 1.25 || p.Relay != "" {
		t.Errorf("%+v, %v", p, err)
	}
	if n := g.NICs[0]; *n.RDMA || *n.GDR || *n.Ports[0].Gbps != 10 || n.Attrs["maxconn"] != "65536" {
		t.Errorf("%+v", n)
	}
	roundTrip(t, "h200x2", g)
	if m := g.Matrix(); m.NICs() != 0 {
		t.Errorf("nvidia-smi lists no socket interface: %v", m.Columns)
	}
}

// TestOwnPair: what nvidia-smi and NCCL said of one machine, and the machine itself, give one matrix.
func TestOwnPair(t *testing.T) {
	smi, err := readFile(t, "testdata/h200x2-smi.txt")
	if err != nil {
		t.Fatal(err)
	}
	xml, err := readFile(t, "testdata/h200x2.xml")
	if err != nil {
		t.Fatal(err)
	}
	want := smi.Matrices[0]
	if len(want.Columns) != 2 || want.Between("GPU0", "GPU1") != "NV18" {
		t.Fatalf("%+v", want)
	}
	sys := machine(t, "vm-h200x2").Matrix()
	for name, got := range map[string]*topo.Matrix{"XML": xml.Graph.Matrix(), "/sys": sys} {
		if d := got.Compare(want); len(d) != 0 {
			t.Errorf("%s: %q", name, d)
		}
	}
	for i, r := range sys.Rows {
		w := want.Rows[i]
		if *r.CPUs != *w.CPUs || *r.NUMA != *w.NUMA || *r.GPUNUMA != *w.GPUNUMA {
			t.Errorf("row %d: %s %s %s, nvidia-smi %s %s %s", i, *r.CPUs, *r.NUMA, *r.GPUNUMA, *w.CPUs, *w.NUMA, *w.GPUNUMA)
		}
	}
}

// TestXMLIsComplete: NCCL 2.28 ends with an internal error for a NIC or a bridge without these attributes; it completes those of GPUs.
func TestXMLIsComplete(t *testing.T) {
	for _, name := range topotest.Names() {
		g := machine(t, name)
		if len(g.CPUs) == 0 {
			continue
		}
		for _, line := range strings.Split(written1(t, g), "\n") {
			if strings.Contains(line, "<pci ") && !strings.Contains(line, `class="0x0302`) && !(strings.Contains(line, "link_speed=") && strings.Contains(line, "link_width=")) {
				t.Errorf("%s: %s", name, line)
			}
			if strings.Contains(line, "<nvlink ") && !strings.Contains(line, "target=") {
				t.Errorf("%s: %s", name, line)
			}
		}
	}
}

const smallXML = `<system version="1">
  <cpu host_hash="0x1" numaid="0" affinity="00000000,0000ffff" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49">
    <pci busid="0000:01:00.0" class="0x060400" vendor="0x1000" device="0xc010" subsystem_vendor="0x1000" subsystem_device="0xa096" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:07:00.0" class="0x030200" vendor="0x10de" device="0x20b0" subsystem_vendor="0x10de" subsystem_device="0x134f" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="80" rank="0" gdr="1">
          <nvlink target="0000:0f:00.0" count="12" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0000:08:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_0" dev="0" speed="200000" port="1" latency="0.000000" guid="0x1234" maxconn="131072" gdr="1" coll="1"/>
        </nic>
      </pci>
      <pcilink target="0000:0e:00.0"/>
    </pci>
    <pci busid="0000:0e:00.0" class="0x060400" link_speed="" link_width="0">
      <pci busid="0000:0f:00.0" class="0x030200" link_speed="16 GT/s" link_width="8">
        <gpu dev="1" sm="80" rank="1" gdr="1">
          <nvlink target="0000:07:00.0" count="12" tclass="0x030200"/>
          <c2c bw="42500" count="10"/>
        </gpu>
      </pci>
    </pci>
  </cpu>
</system>
`

func TestXMLFields(t *testing.T) {
	g := read(t, smallXML).Graph
	if c := g.CPUs[0]; c.CPUs != "0-15" || *c.Family != 23 || *c.Model != 49 || c.HostHash != "0x1" {
		t.Errorf("%+v", c)
	}
	f := g.Function("0000:08:00.0")
	if f.Parent != "0000:01:00.0" || *f.Link.MaxSpeed != 16 || *f.Link.MaxWidth != 16 || f.Role != topo.RoleNIC || *f.NUMA != 0 {
		t.Errorf("%+v", f)
	}
	if e := g.Function("0000:0e:00.0"); e.Link.MaxSpeed != nil || e.Link.MaxWidth != nil {
		t.Errorf("an empty speed was read as %+v", e.Link)
	}
	if c := g.GPUs[1].C2C; c.Count != 10 || *c.GBs != 42.5 {
		t.Errorf("%+v", c)
	}
	if len(g.Links) != 1 || g.Links[0] != (topo.PeerLink{A: "0000:01:00.0", B: "0000:0e:00.0"}) {
		t.Errorf("%+v", g.Links)
	}
	if n := g.NICs[0]; n.Attrs["coll"] != "1" || !*n.RDMA {
		t.Errorf("%+v", n)
	}
	if len(g.Notes) != 0 {
		t.Errorf("notes %v", g.Notes)
	}
	roundTrip(t, "small", g)
	p, _ := g.Path("GPU1", "mlx5_0")
	if p.SMI != topo.SMIHostOrNode || p.NCCL != "P2C" || p.Relay != "" || *p.NCCLGBs != 24 || *p.GBs != 31.51 { // by C2C to the CPU
		t.Errorf("%+v", p)
	}
	g = read(t, strings.ReplaceAll(smallXML, `<c2c bw="42500" count="10"/>`, "")).Graph
	p, _ = g.Path("GPU1", "mlx5_0")
	if p.NCCL != "PHB" || p.Relay != "GPU0" || *p.NCCLGBs != 12 || p.GBs != nil { // gen4 x8, and NCCL takes gen3 x16 where the speed is empty
		t.Errorf("%+v", p)
	}
}

func TestXMLDamage(t *testing.T) {
	tests := []struct {
		name, old, replacement string
		notes                  string
		gpus, nics             int
	}{
		{"cut", `        </nic>`, "\x00", "xml-damaged xml-open", 1, 1},
		{"end missing", "  </cpu>\n</system>\n", "", "xml-open", 2, 1},
		{"beginning missing", `<system version="1">` + "\n", "", "xml-unopened", 2, 1},
		{"no bus id", `busid="0000:08:00.0"`, `busid="left out"`, "xml-busid", 2, 1},
		{"bus id twice", `busid="0000:08:00.0"`, `busid="0000:07:00.0"`, "xml-twice", 2, 1},
		{"no affinity", `affinity="00000000,0000ffff"`, `affinity="all"`, "xml-affinity", 2, 1},
		{"short group", `affinity="00000000,0000ffff"`, `affinity="00000000,0000fff"`, "xml-affinity", 2, 1},
		{"no numaid", `numaid="0" `, ``, "xml-no-numaid no-numa", 2, 1},
		{"no count", `count="12" tclass="0x030200"/>` + "\n          <c2c", `tclass="0x030200"/>` + "\n          <c2c", "xml-nvlink-count nvlink-uneven", 2, 1},
		{"to itself", `target="0000:07:00.0" count`, `target="0000:0f:00.0" count`, "nvlink-to-itself", 2, 1},
		{"strange tag", `<pcilink target="0000:0e:00.0"/>`, `<cxl target="0000:0e:00.0"/>`, "xml-tag", 2, 1},
		{"link to nowhere", `<pcilink target="0000:0e:00.0"/>`, `<pcilink/>`, "xml-pcilink", 2, 1},
		{"without classes", `class="0x030200"`, ``, "", 2, 1},
		{"of several hosts", "</system>", `<cpu host_hash="0x2" numaid="0" arch="x86_64"><pci busid="0000:07:00.0" class="0x030200"><gpu dev="0" sm="80" rank="4" gdr="1"/></pci></cpu></system>`, "xml-hosts", 2, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if !strings.Contains(smallXML, tt.old) {
				t.Fatalf("no %q", tt.old)
			}
			in := read(t, strings.ReplaceAll(smallXML, tt.old, tt.replacement))
			if got := codes(in.AllNotes()); got != tt.notes {
				t.Errorf("notes %q, want %q\n%v", got, tt.notes, in.AllNotes())
			}
			if len(in.Graph.GPUs) != tt.gpus || len(in.Graph.NICs) != tt.nics {
				t.Errorf("%d GPUs, %d NICs", len(in.Graph.GPUs), len(in.Graph.NICs))
			}
		})
	}
}

func TestNoTopology(t *testing.T) {
	for text, want := range map[string]error{
		"":                               topo.ErrNoTopology,
		"hello\n":                        topo.ErrNoTopology,
		"<!-- nothing -->":               topo.ErrNoTopology,
		"<html><body>login</body>":       topo.ErrNoTopology,
		"{}":                             topo.ErrNoTopology,
		`<graphs version="1">`:           topo.ErrGraphFile,
		"\n<!-- x -->\n<graph id=\"0\">": topo.ErrGraphFile,
		"<system version=\"1\"/>":        topo.ErrNoTopology,
	} {
		in, err := topo.Read(strings.NewReader(text), "name.txt")
		if !errors.Is(err, want) || in != nil || !strings.HasPrefix(err.Error(), "name.txt:") {
			t.Errorf("%q: %v, %v", text, in, err)
		}
	}
	if _, err := topo.Read(strings.NewReader(strings.Repeat("x", 17<<20)), "big"); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("%v", err)
	}
	if _, err := topo.Read(failing{}, "f"); err == nil || !strings.Contains(err.Error(), "f: broken pipe") {
		t.Errorf("%v", err)
	}
	long := "<system>" + strings.Repeat("<pci/>", 1<<14) + "</system>"
	if _, err := topo.Read(strings.NewReader(long), "many"); err == nil || !strings.Contains(err.Error(), "tags") {
		t.Errorf("%v", err)
	}
	if err := (&topo.Graph{}).WriteXML(&strings.Builder{}); err == nil {
		t.Error("an empty graph was written")
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("broken pipe") }

// gb200 is a compute tray: two CPUs, two GPUs at each by C2C, all four joined by NVLink, a NIC at each CPU.
func gb200() string {
	var b strings.Builder
	b.WriteString("<system version=\"1\">\n")
	for cpu := range 2 {
		fmt.Fprintf(&b, `<cpu numaid="%d" affinity="ffffffff" arch="arm64">`, cpu)
		for k := range 2 {
			id := 2*cpu + k
			fmt.Fprintf(&b, `<pci busid="%04x:01:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"><gpu dev="%d" sm="100" rank="%d" gdr="1"><nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/><c2c bw="25000" count="14"/></gpu></pci>`, 8+id*8, id, id)
		}
		fmt.Fprintf(&b, `<pci busid="%04x:03:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16"><nic><net name="mlx5_%d" dev="%d" speed="400000" port="1" guid="0x%d" gdr="1"/></nic></pci></cpu>`, cpu*16, cpu, cpu, cpu+7)
	}
	b.WriteString("</system>\n")
	return b.String()
}

func TestC2C(t *testing.T) {
	g := read(t, gb200()).Graph
	for _, tt := range []struct {
		a, b, smi, nccl, relay string
		gbs, nccl2             float64
	}{
		{"GPU0", "GPU3", "NV18", "NVL", "", 900, 721.8},
		{"GPU0", "mlx5_0", "PHB|NODE", "P2C", "", 63.02, 48},
		{"GPU0", "mlx5_1", "SYS", "SYS", "GPU2", 0, 6},
		{"GPU3", "mlx5_1", "PHB|NODE", "P2C", "", 63.02, 48},
	} {
		p, err := g.Path(tt.a, tt.b)
		if err != nil {
			t.Fatal(err)
		}
		if p.SMI != tt.smi || p.NCCL != tt.nccl || p.Relay != tt.relay || *p.NCCLGBs != tt.nccl2 || (p.GBs == nil) != (tt.gbs == 0) || p.GBs != nil && *p.GBs != tt.gbs {
			t.Errorf("%s to %s: %s %s via %q, %v GB/s, NCCL %v GB/s", tt.a, tt.b, p.SMI, p.NCCL, p.Relay, str(p.GBs), str(p.NCCLGBs))
		}
	}
	roundTrip(t, "gb200", g)
}

// TestLevels: what NCCL makes of switches within switches, and of Broadcom's that only look like that.
func TestLevels(t *testing.T) {
	xml := func(outer, inner string) string {
		return `<system><cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"><pci busid="0000:01:00.0" class="0x060400" ` + outer + ` link_speed="32.0 GT/s PCIe" link_width="16">` +
			`<pci busid="0000:03:00.0" class="0x060400" ` + inner + ` link_speed="32.0 GT/s PCIe" link_width="16"><pci busid="0000:05:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"><gpu dev="0" sm="90" rank="0" gdr="1"/></pci></pci>` +
			`<pci busid="0000:07:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16"><nic><net name="mlx5_0" dev="0" speed="400000" guid="0x1" gdr="1"/></nic></pci></pci></cpu></system>`
	}
	id := func(device, sub string) string {
		return `vendor="0x1000" device="` + device + `" subsystem_vendor="0x1000" subsystem_device="` + sub + `"`
	}
	for _, tt := range []struct{ outer, inner, nccl string }{
		{id("0xc030", "0x0072"), id("0xc030", "0x1003"), "PIX"},
		{id("0xc010", "0xa096"), id("0xc010", "0xa064"), "PIX"},
		{id("0xc030", "0x0072"), id("0xc030", "0x0072"), "PXB"},
		{id("0xc010", "0xa096"), id("0xc030", "0x1003"), "PXB"},
		{`vendor="0x10b5" device="0x8764"`, `vendor="0x10b5" device="0x8764"`, "PXB"},
	} {
		p, err := read(t, xml(tt.outer, tt.inner)).Graph.Path("GPU0", "mlx5_0")
		if err != nil || p.SMI != "PXB" || p.NCCL != tt.nccl || *p.NCCLGBs != 48 {
			t.Errorf("%s over %s: %+v, %v", tt.outer, tt.inner, p, err)
		}
	}
}

func FuzzXML(f *testing.F) {
	f.Add(smallXML)
	f.Add(gb200())
	f.Add(`<cpu numaid="-1"><nic><net name="a" dev="0" speed="-1"/></nic><pci busid="1:2.3"><gpu/></pci></cpu>`)
	f.Fuzz(func(t *testing.T, text string) {
		if !strings.HasPrefix(text, "<") {
			return
		}
		in, err := topo.Read(strings.NewReader(text), "f")
		if err != nil != (in == nil) {
			t.Fatalf("%v, %v", in, err)
		}
		if err != nil || in.Graph == nil || len(in.Graph.CPUs) == 0 {
			return
		}
		one := written1(t, in.Graph)
		again, err := topo.Read(strings.NewReader(one), "f")
		if err != nil {
			t.Fatalf("%v\n%s", err, one)
		}
		// What hangs outside a CPU finds a place in the first pass; from then on nothing may change.
		two := written1(t, again.Graph)
		third, err := topo.Read(strings.NewReader(two), "f")
		if err != nil {
			t.Fatalf("%v\n%s", err, two)
		}
		if d := cmp.Diff(again.Graph, third.Graph, cmpopts.IgnoreFields(topo.Graph{}, "Notes")); d != "" {
			t.Errorf("%s\n%s", d, two)
		}
		if len(in.Graph.GPUs)+len(in.Graph.NICs) < 40 {
			in.Graph.Paths()
			in.Graph.Edges()
			if err := in.Graph.Tree(&strings.Builder{}); err != nil {
				t.Error(err)
			}
		}
	})
}

func written1(t *testing.T, g *topo.Graph) string {
	t.Helper()
	var b strings.Builder
	if err := g.WriteXML(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func FuzzRead(f *testing.F) {
	var b strings.Builder
	if err := bigNode().WriteText(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.String())
	f.Add("        GPU0    NIC0NIC1    CPU Affinity\nGPU0     X      PIXNODE     0-3\nNIC0    PIX     X NODE\n")
	f.Add("\x1b[4m\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\nGPU0\t X \tNV4\t0-3\t0\t\tN/A\nGPU1\tNV4\t X \t4,\n5\t1\n\nNIC Legend:\n  NIC0: mlx5_0\n")
	f.Add("nvidia-smi topo -p2p r\n GPU0 GPU1\n GPU0 X OK\n GPU1 OK X\n")
	f.Add(lspciTree)
	f.Add(`{"form":"full","gpus":[{"id":"GPU0","busid":"0000:01:00.0"}],"pci":[{"busid":"0000:01:00.0","parent":"0000:01:00.0","role":"gpu"}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		in, err := topo.Read(strings.NewReader(text), "f")
		if err != nil != (in == nil) {
			t.Fatalf("%v, %v", in, err)
		}
		if err != nil {
			return
		}
		if in.Graph != nil {
			if len(in.Graph.GPUs)+len(in.Graph.NICs) < 40 {
				in.Graph.Paths()
				in.Graph.Edges()
			}
			return
		}
		for _, m := range in.Matrices {
			for i := range m.Rows {
				if len(m.Rows[i].Words) < len(m.Columns) {
					t.Errorf("row %s has %d words for %d columns", m.Rows[i].Label, len(m.Rows[i].Words), len(m.Columns))
				}
			}
			var b strings.Builder
			if err := m.WriteText(&b); err != nil {
				t.Error(err)
			}
			m.Compare(m)
		}
	})
}
