package topo_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/commprobe/commprobe/internal/topo"
)

var update = flag.Bool("update", false, "rewrite golden files")

const sharedData = "../../../shared/data"

// sharedFiles are published matrices and topology files, which lie beside the repository.
func sharedFiles(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, pattern := range []string{"topo_public/*.txt", "topo_public/*.xml", "topo_public/partial-xml/*", "nccltests_h200x2/*.xml"} {
		files, err := filepath.Glob(filepath.Join(sharedData, pattern))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, files...)
	}
	if len(out) == 0 {
		t.Skip("the shared data is not here")
	}
	return out
}

func readFile(t *testing.T, path string) (*topo.Input, error) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return topo.Read(f, filepath.Base(path))
}

// TestShared reads every published file and compares sizes and every note with a golden file.
func TestShared(t *testing.T) {
	var b strings.Builder
	for _, path := range sharedFiles(t) {
		in, err := readFile(t, path)
		fmt.Fprintf(&b, "%s:", filepath.Base(path))
		switch {
		case err != nil:
			fmt.Fprintf(&b, " error %s\n", strings.TrimPrefix(err.Error(), filepath.Base(path)+":"))
			continue
		case in.Graph != nil:
			g := in.Graph
			fmt.Fprintf(&b, " graph of %d GPUs, %d NICs, %d CPUs, %d functions\n", len(g.GPUs), len(g.NICs), len(g.CPUs), len(g.PCI))
		}
		for _, m := range in.Matrices {
			r := m.Rows[0]
			fmt.Fprintf(&b, " %s %d GPUs, %d NICs, %d rows, %d names; %s | %s | %s\n", m.Kind, m.GPUs(), m.NICs(), len(m.Rows), len(m.Legend), deref(r.CPUs), deref(r.NUMA), deref(r.GPUNUMA))
		}
		for _, n := range in.AllNotes() {
			fmt.Fprintf(&b, "  %s %s\n", n.Code, strings.TrimPrefix(n.Where, filepath.Base(path)))
		}
	}
	const golden = "testdata/shared.golden"
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(b.String(), "\n")); d != "" {
		t.Error(d)
	}
}

// TestSharedRoundTrip writes what was read, and reads the same again.
func TestSharedRoundTrip(t *testing.T) {
	for _, path := range sharedFiles(t) {
		in, err := readFile(t, path)
		if err != nil {
			continue
		}
		name := filepath.Base(path)
		if in.Graph != nil {
			roundTrip(t, name, in.Graph)
		}
		for _, m := range in.Matrices {
			var b strings.Builder
			if err := m.WriteText(&b); err != nil {
				t.Fatal(err)
			}
			again, err := topo.Read(strings.NewReader(b.String()), name)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			ignore := []cmp.Option{cmpopts.IgnoreFields(topo.Matrix{}, "Notes", "Kind"), cmpopts.IgnoreFields(topo.Row{}, "Line"), cmpopts.EquateEmpty()}
			if len(m.Affinity) < 2 && m.Rows[0].NUMA != nil { // the heading was cut
				ignore = append(ignore, cmpopts.IgnoreFields(topo.Row{}, "NUMA", "CPUs", "GPUNUMA"), cmpopts.IgnoreFields(topo.Matrix{}, "Affinity"))
			}
			if d := cmp.Diff(m, again.Matrices[0], ignore...); d != "" {
				t.Errorf("%s: another matrix:\n%s", name, d)
			}
		}
	}
}

func roundTrip(t *testing.T, name string, g *topo.Graph) {
	t.Helper()
	var b strings.Builder
	if err := g.WriteXML(&b); err != nil {
		if len(g.CPUs) > 0 {
			t.Errorf("%s: %v", name, err)
		}
		return
	}
	again, err := topo.Read(strings.NewReader(b.String()), g.Source)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	ignore := cmpopts.IgnoreFields(topo.Graph{}, "Notes")
	if strings.Contains(name, "partial") { // devices outside a <cpu> must hang somewhere
		return
	}
	if d := cmp.Diff(g, again.Graph, ignore); d != "" {
		t.Errorf("%s: the XML written gives another graph:\n%s", name, d)
	}
}

// TestSharedMachines: matrices that owners of such machines have published are those computed from the recorded tree of the same kind of machine.
func TestSharedMachines(t *testing.T) {
	for file, name := range map[string]string{
		"a40-8gpu-pcie-nvbridge.txt":            "a40-bridges",
		"pcie-8gpu-plx-pix-phb.txt":             "pcie-plx",
		"pcie-8gpu-mlx4-2017-truncated.txt":     "pcie-plx",
		"gh200-1gpu-4nic.txt":                   "gh200",
		"h100-4gpu-cloud-vm-all-phb.txt":        "vm-flat",
		"dgx-a100-40g-8gpu-12nic-truncated.txt": "dgx-a100",
		"v100-sxm2-8gpu-dgx1-cubemesh.txt":      "dgx1-v100",
	} {
		path := filepath.Join(sharedData, "topo_public", file)
		if _, err := os.Stat(path); err != nil {
			t.Skip("the shared data is not here")
		}
		in, err := readFile(t, path)
		if err != nil {
			t.Fatal(err)
		}
		got, want := machine(t, name).Matrix(), in.Matrices[0]
		compared := 0
		for _, a := range want.Columns {
			for _, b := range want.Columns {
				w := want.Between(a, b)
				if file == "v100-sxm2-8gpu-dgx1-cubemesh.txt" && strings.HasPrefix(a+b, "mlx") || strings.HasSuffix(a, "mlx5_0") || strings.HasSuffix(b, "mlx5_0") || w == "" {
					continue // the NIC of that machine is elsewhere
				}
				if file == "dgx-a100-40g-8gpu-12nic-truncated.txt" && (a > "NIC9" || b > "NIC9" || a == "NIC10" || a == "NIC11" || b == "NIC10" || b == "NIC11") {
					continue // it has two NICs more
				}
				compared++
				if g := got.Between(a, b); g != w {
					t.Errorf("%s: %s to %s is %s, computed %q", file, a, b, w, g)
				}
			}
		}
		if compared < 16 {
			t.Errorf("%s: only %d words compared", file, compared)
		}
	}
}

// TestSharedXMLPaths has what was worked out by hand from published topology files.
func TestSharedXMLPaths(t *testing.T) {
	for _, tt := range []struct {
		file, a, b, smi, nccl string
		gbs, ncclGBs          float64
	}{
		{"oci-bm-gpu-h100-8-topo.xml", "GPU0", "GPU7", "NV18", "NVL", 450, 370.8},
		{"oci-bm-gpu-h100-8-topo.xml", "GPU0", "mlx5_0", "PXB", "PIX", 63.02, 22.5}, // the NIC's 180 Gb/s
		{"oci-bm-gpu-h100-8-topo.xml", "GPU0", "mlx5_3", "PHB|NODE", "PHB", 8, 6},   // its switches say 5 GT/s,
		{"oci-bm-gpu-h100-8-topo.xml", "GPU0", "mlx5_9", "SYS", "SYS", 0, 6},
		{"oci-bm-gpu-h100-8-topo.xml", "mlx5_0", "mlx5_1", "PIX", "LOC", 0, 22.5},
		{"azure-nc48v4-a100pcie-topo.xml", "GPU0", "GPU1", "NV12", "NVL", 300, 240},
		{"azure-nc48v4-a100pcie-topo.xml", "GPU0", "eth0", "?", "PHB", 0, 12},
		{"azure-ndv4-a100-topo.xml", "0003:00:00.0", "0103:00:00.0", "PIX", "PIX", 31.51, 0},
		{"azure-ndv4-a100-topo.xml", "0003:00:00.0", "0101:00:00.0", "SYS", "SYS", 0, 0},
		{"aws-p4d-a100-topo.xml", "0000:10:1c.0", "0000:10:1b.0", "PIX", "PIX", 15.75, 0},
		{"azure-ndv2-v100-topo.xml", "0001:00:00.0", "0101:00:00.0", "PHB|NODE", "PHB", 31.51, 0},
	} {
		path := filepath.Join(sharedData, "topo_public", tt.file)
		if _, err := os.Stat(path); err != nil {
			t.Skip("the shared data is not here")
		}
		in, err := readFile(t, path)
		if err != nil {
			t.Fatal(err)
		}
		p, err := in.Graph.Path(tt.a, tt.b)
		if err != nil {
			t.Fatal(err)
		}
		v := func(x *float64) float64 {
			if x == nil {
				return 0
			}
			return *x
		}
		if p.SMI != tt.smi || p.NCCL != tt.nccl || v(p.GBs) != tt.gbs || v(p.NCCLGBs) != tt.ncclGBs {
			t.Errorf("%s %s to %s: %s %s %v %v, want %s %s %v %v (%s)", tt.file, tt.a, tt.b, p.SMI, p.NCCL, v(p.GBs), v(p.NCCLGBs), tt.smi, tt.nccl, tt.gbs, tt.ncclGBs, p.Why)
		}
	}
}
