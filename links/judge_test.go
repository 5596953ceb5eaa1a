package links

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/commprobe/commprobe/internal/nvml"
	"github.com/commprobe/commprobe/internal/topo"
)

func f(v float64) *float64 { return &v }
func n(v int) *int         { return &v }

// healthy is a node of four GPUs on NVSwitch with PCIe 5, all of whose figures are as they should be.
func healthy() *Report {
	yes, none := true, uint64(0)
	r := &Report{Engine: "native"}
	for i := range 4 {
		r.GPUs = append(r.GPUs, GPU{ID: fmt.Sprintf("GPU%d", i), Device: i, MemoryGBs: f(4900), NVLinks: n(18), NVLinksDown: n(0),
			PCIe: PCIe{Gen: n(5), Width: n(16), MaxGen: n(5), MaxWidth: n(16), NowGBs: f(63), MaxGBs: f(63), Narrow: "its own link, gen5 x16"}})
		id := r.GPUs[i].ID
		r.Measured = append(r.Measured,
			Measured{Kind: Local, From: id, To: id, Method: CopyEngine, GBs: f(4200), Wrong: &none},
			Measured{Kind: HostToGPU, From: "host", To: id, Method: CopyEngine, GBs: f(55), Wrong: &none},
			Measured{Kind: GPUToHost, From: id, To: "host", Method: CopyEngine, GBs: f(54), Wrong: &none})
	}
	for a := range 4 {
		for b := range 4 {
			if a < b {
				r.Pairs = append(r.Pairs, Pair{A: a, B: b, Peer: &yes, Word: "NV18", MaxGBs: f(450), NowGBs: f(450)})
			}
			if a != b {
				r.Measured = append(r.Measured, Measured{Kind: GPUToGPU, From: r.GPUs[a].ID, To: r.GPUs[b].ID, Method: CopyEngine, GBs: f(390), Wrong: &none},
					Measured{Kind: GPUToGPU, From: r.GPUs[a].ID, To: r.GPUs[b].ID, Method: SmallCopy, LatencyUS: f(2.5), Wrong: &none})
			}
		}
	}
	return r
}

// at is a measurement to change.
func (r *Report) at(t *testing.T, from, to string) *Measured {
	t.Helper()
	m := r.find(from, to, CopyEngine)
	if m == nil {
		t.Fatalf("no measurement from %s to %s", from, to)
	}
	return m
}

// TestJudge plants one fault at a time.
func TestJudge(t *testing.T) {
	no, bad := false, uint64(7)
	for _, c := range []struct {
		name   string
		change func(t *testing.T, r *Report)
		want   []string // severity, code and where of all findings
	}{
		{"healthy", func(*testing.T, *Report) {}, nil},
		{"x8 of x16", func(t *testing.T, r *Report) {
			r.GPUs[2].PCIe.Width, r.GPUs[2].PCIe.NowGBs = n(8), f(31.5)
			*r.at(t, "host", "GPU2").GBs, *r.at(t, "GPU2", "host").GBs = 28, 28
		}, []string{"fault pcie-width GPU2", "warn slow host to GPU2 by copy engine", "warn slow GPU2 to host by copy engine", "warn outlier host to GPU2 by copy engine", "warn outlier GPU2 to host by copy engine"}},
		{"asleep after the test, fast in it", func(t *testing.T, r *Report) { r.GPUs[2].PCIe.Gen, r.GPUs[2].PCIe.NowGBs = n(1), f(4) }, nil},
		{"a nominal that cannot be", func(t *testing.T, r *Report) { r.GPUs[0].MemoryGBs = f(3000) }, []string{"warn nominal GPU0's own memory by copy engine"}},
		{"gen 3 of 5", func(t *testing.T, r *Report) { r.GPUs[1].PCIe.Gen = n(3) }, []string{"fault pcie-gen GPU1"}}, // though the rate of the link is not known
		{"a bridge above is narrow", func(t *testing.T, r *Report) {
			r.GPUs[1].PCIe.NowGBs, r.GPUs[1].PCIe.Narrow = f(56), "the link above 0000:0a:00.0"
		}, []string{"fault pcie-above GPU1"}},
		{"unknown widths", func(t *testing.T, r *Report) { r.GPUs[1].PCIe = PCIe{} }, nil},
		{"NVLink down", func(t *testing.T, r *Report) { r.GPUs[3].NVLinks, r.GPUs[3].NVLinksDown = n(16), n(2) }, []string{"fault nvlink-down GPU3"}},
		{"replays moved", func(t *testing.T, r *Report) { r.GPUs[0].Moved = []Moved{{pcieReplays, nil, 3}} }, []string{"warn counter-moved GPU0"}},
		{"NVLinks repeated", func(t *testing.T, r *Report) { r.GPUs[0].Moved = []Moved{{replays, n(2), 3}, {replays, n(7), 1}} }, []string{"warn counter-moved GPU0"}},
		{"a NVLink was trained anew", func(t *testing.T, r *Report) { r.GPUs[0].Moved = []Moved{{recoveries, n(2), 1}} }, []string{"fault nvlink-recovered GPU0"}},
		{"CRC errors as usual", func(t *testing.T, r *Report) {
			r.CounterSecs, r.GPUs[1].Moved = f(4), []Moved{{crcData, n(0), 5}, {crcData, n(1), 110}, {crcData, n(2), 399}, {crcData, n(3), 8}}
		}, []string{"usual crc-errors GPU1"}},
		{"CRC errors of a bad link", func(t *testing.T, r *Report) {
			r.CounterSecs, r.GPUs[1].Moved = f(4), []Moved{{crcData, n(0), 5}, {crcData, n(2), 400}}
		}, []string{"warn crc-errors GPU1"}},
		{"CRC errors in an unknown time", func(t *testing.T, r *Report) { r.GPUs[1].Moved = []Moved{{crcFlit, n(0), 5}} }, []string{"warn crc-errors GPU1"}},
		{"a counter was reset", func(t *testing.T, r *Report) { r.GPUs[0].Moved = []Moved{{pcieReplays, nil, -3}} }, nil},
		{"slow way", func(t *testing.T, r *Report) { *r.at(t, "GPU1", "GPU2").GBs = 200 },
			[]string{"warn slow GPU1 to GPU2 by copy engine", "warn outlier GPU1 to GPU2 by copy engine"}},
		{"an outlier that is not slow", func(t *testing.T, r *Report) { *r.at(t, "GPU1", "GPU2").GBs = 300 }, []string{"warn outlier GPU1 to GPU2 by copy engine"}},
		{"an outlier without a nominal", func(t *testing.T, r *Report) {
			for i := range r.Pairs {
				r.Pairs[i].MaxGBs, r.Pairs[i].Word = nil, ""
			}
			*r.at(t, "GPU0", "GPU3").GBs = 100
		}, []string{"warn outlier GPU0 to GPU3 by copy engine"}},
		{"other nominal, no equal", func(t *testing.T, r *Report) {
			r.Pairs[0].MaxGBs, r.Pairs[0].Word = f(60), "NODE"
			*r.at(t, "GPU0", "GPU1").GBs, *r.at(t, "GPU1", "GPU0").GBs = 50, 51
		}, nil},
		{"two that differ", func(t *testing.T, r *Report) {
			r.Pairs[0].MaxGBs, r.Pairs[0].Word = nil, "NODE"
			*r.at(t, "GPU0", "GPU1").GBs, *r.at(t, "GPU1", "GPU0").GBs = 30, 51
		}, []string{"warn uneven GPU0 to GPU1 by copy engine"}},
		{"slow from the host", func(t *testing.T, r *Report) { *r.at(t, "host", "GPU1").GBs = 20 },
			[]string{"warn slow host to GPU1 by copy engine", "warn outlier host to GPU1 by copy engine"}},
		{"no peer access", func(t *testing.T, r *Report) { r.Pairs[5].Peer = &no }, []string{"warn no-peer-access GPU2 and GPU3"}},
		{"wrong data", func(t *testing.T, r *Report) { r.at(t, "GPU2", "host").Wrong = &bad }, []string{"fault wrong-data GPU2 to host by copy engine"}},
		{"host engine has no outliers", func(t *testing.T, r *Report) { r.Engine = "host"; *r.at(t, "GPU1", "GPU2").GBs = 1 }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := healthy()
			c.change(t, r)
			for range 2 { // again is the same
				Judge(r)
			}
			var got []string
			for _, x := range r.Findings {
				got = append(got, fmt.Sprint(x.Severity, " ", x.Code, " ", x.Where))
				if x.Text == "" || x.Fix == "" {
					t.Errorf("%+v says too little", x)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestEfficiencyAndModel(t *testing.T) {
	r := healthy()
	Judge(r)
	m := r.find("GPU0", "GPU1", CopyEngine)
	if m.Efficiency == nil || *m.NominalGBs != 450 || *m.Efficiency < 0.866 || *m.Efficiency > 0.867 {
		t.Errorf("%+v", m)
	}
	if l := r.find("GPU0", "GPU0", CopyEngine); l.NominalGBs == nil || *l.NominalGBs != 4900 {
		t.Errorf("%+v", l)
	}
	i := slices.IndexFunc(r.Model, func(x Model) bool { return x.From == "GPU0" && x.To == "GPU1" })
	if i < 0 || *r.Model[i].AlphaUS != 2.5 || *r.Model[i].BetaGBs != 390 {
		t.Errorf("%+v", r.Model)
	}
	// Staged copies are not measured against the link that they do not use.
	m.Staged = true
	Judge(r)
	if m.NominalGBs != nil || m.Efficiency != nil {
		t.Errorf("staged: %+v", m)
	}
}

// TestFacts: NVML's word on a GPU's link goes before that of /sys, the narrowest link above counts, and what neither knows stays unknown.
func TestFacts(t *testing.T) {
	pci := "0000:0f:00.0"
	gen, width, maxGen, maxWidth, repeats := 4, 8, 5, 16, 9
	up, down, crc := true, false, uint64(12)
	m := Machine{
		NVML: &nvml.Node{GPUs: []nvml.GPU{{PCI: &pci, PCIe: nvml.PCIe{Gen: &gen, Width: &width, MaxGen: &maxGen, MaxWidth: &maxWidth, Replays: &repeats},
			Links: []nvml.Link{{Link: 0, Active: &up, CRCFlit: &crc}, {Link: 1, Active: &down}}}}},
		Graph: &topo.Graph{PCI: []topo.Function{
			{BusID: "0000:0a:00.0", Role: topo.RoleRootPort, Link: topo.PCILink{Speed: f(32), Width: n(4), MaxSpeed: f(32), MaxWidth: n(16)}},
			{BusID: pci, Parent: "0000:0a:00.0", Role: topo.RoleGPU, Link: topo.PCILink{Speed: f(2.5), Width: n(1), MaxSpeed: f(32), MaxWidth: n(16)}}}},
	}
	g := GPU{PCI: pci}
	g.learn(m)
	p := g.PCIe
	if *p.Gen != 4 || *p.Width != 8 || *p.MaxGen != 5 || *p.MaxWidth != 16 || *g.NVLinks != 1 || *g.NVLinksDown != 1 {
		t.Errorf("%+v", g)
	}
	// 8 lanes of generation 4 and 4 of generation 5 give the same; 4 lanes of generation 5 are not narrower.
	if *p.NowGBs < 15.7 || *p.NowGBs > 15.8 || *p.MaxGBs < 63 || *p.MaxGBs > 63.1 || !strings.HasPrefix(p.Narrow, "its own link") {
		t.Errorf("now %v of %v: %s", *p.NowGBs, *p.MaxGBs, p.Narrow)
	}
	m.Graph.PCI[0].Link.Width = n(2)
	if p = m.pcie(pci); *p.NowGBs > 7.9 || !strings.Contains(p.Narrow, "0000:0a:00.0") {
		t.Errorf("now %v: %s", *p.NowGBs, p.Narrow)
	}
	made, yes := m, true
	made.Graph = &topo.Graph{Host: topo.Host{Virtual: &yes}, PCI: m.Graph.PCI}
	if p = made.pcie(pci); *p.NowGBs < 15.7 {
		t.Errorf("in a virtual machine the bridge above counts: %v, %s", *p.NowGBs, p.Narrow)
	}
	before := m.counters(pci)
	repeats, crc = 11, 16
	if got := moved(before, m.counters(pci)); len(got) != 2 || got[0].Counter != crcFlit || *got[0].Link != 0 || got[0].By != 4 || got[1] != (Moved{pcieReplays, nil, 2}) {
		t.Errorf("%v", got)
	}
	m.NVML.GPUs[0].Links[1].Active = nil
	g = GPU{PCI: pci}
	if g.learn(m); g.NVLinks != nil || g.NVLinksDown != nil {
		t.Error("a link of unknown state is counted")
	}
	g = GPU{PCI: "0000:99:00.0"}
	if g.learn(m); g.PCIe.NowGBs != nil || g.PCIe.Gen != nil || g.NVLinks != nil {
		t.Errorf("unknown GPU: %+v", g)
	}
	if p := (Machine{}).pcie(pci); p.NowGBs != nil || len((Machine{}).counters(pci)) != 0 {
		t.Errorf("nothing is known: %+v", p)
	}
}

// TestText: a degraded node's page has the numbers in lines that line up, the faults before the warnings, and what to do.
func TestText(t *testing.T) {
	r := healthy()
	no := false
	r.GPUs[1].PCIe.Width, r.GPUs[1].PCIe.NowGBs = n(8), nil
	r.Pairs[0].Peer, r.Pairs[0].Why = &no, "a test"
	*r.at(t, "GPU2", "GPU3").GBs = 100
	r.at(t, "GPU0", "GPU1").Staged = true
	r.CounterSecs, r.GPUs[3].Moved = f(4), []Moved{{crcData, n(0), 5}, {crcData, n(1), 110}, {crcData, n(2), 12}, {crcData, n(3), 8}, {recoveries, n(1), 2}, {recoveries, n(4), 1}}
	Judge(r)
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, want := range []string{"usual GPU3: NVLink CRC errors (data) in 4.0 s: 5 to 110 on each of 4 links\n", "fault GPU3: NVLink recoveries moved in 4.0 s: 2 on link 1, 1 on link 4\n", "gen5 x8 of gen5 x16", "450 NV18", "390.0*", "staged through host memory", "fault GPU1: PCIe runs with 8 of 16 lanes", "      -> reseat", "4200"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Index(text, "fault ") > strings.Index(text, "warn ") {
		t.Error("a warning stands before a fault")
	}
	_, table, _ := strings.Cut(text, "copy engine, one way, GB/s\n")
	lines := strings.Split(table, "\n")[:5]
	for _, line := range lines {
		if len(line) != len(lines[0]) {
			t.Errorf("the table does not line up:\n%s", strings.Join(lines, "\n"))
			break
		}
	}
}
