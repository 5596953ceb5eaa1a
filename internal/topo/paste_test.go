package topo_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/commprobe/commprobe/internal/topo"
	"github.com/commprobe/commprobe/internal/topo/topotest"
)

// bigNode is a matrix of 16 GPUs and 76 NICs.
func bigNode() *topo.Matrix {
	m := &topo.Matrix{Kind: topo.MatrixTopo, Affinity: []string{topo.AffinityCPU, topo.AffinityNUMA, topo.AffinityGPUNUMA}, Legend: map[string]string{}}
	for i := range 16 {
		m.Columns = append(m.Columns, fmt.Sprintf("GPU%d", i))
	}
	for i := range 76 {
		m.Columns = append(m.Columns, fmt.Sprintf("NIC%d", i))
		m.Legend[fmt.Sprintf("NIC%d", i)] = fmt.Sprintf("mlx5_%d", i)
	}
	for i, label := range m.Columns {
		r := topo.Row{Label: label}
		for j := range m.Columns {
			w := "SYS"
			switch {
			case i == j:
				w = "X"
			case i < 16 && j < 16:
				w = "NV18"
			case i%4 == j%4:
				w = "PXB"
			case i%2 == j%2:
				w = "NODE"
			}
			r.Words = append(r.Words, w)
		}
		if i < 16 {
			cpus, numa, own := fmt.Sprintf("%d-%d,%d-%d", 12*(i%4), 12*(i%4)+11, 48+12*(i%4), 59+12*(i%4)), fmt.Sprint(i%2), "N/A"
			r.CPUs, r.NUMA, r.GPUNUMA = &cpus, &numa, &own
		}
		m.Rows = append(m.Rows, r)
	}
	return m
}

func written(t *testing.T, m *topo.Matrix) string {
	t.Helper()
	var b strings.Builder
	if err := m.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// blanks puts blanks for tabs, as a terminal does when text is copied from it.
func blanks(s string) string {
	var b strings.Builder
	col := 0
	for _, c := range s {
		switch c {
		case '\t':
			n := 8 - col%8
			b.WriteString(strings.Repeat(" ", n))
			col += n
		case '\n':
			b.WriteByte('\n')
			col = 0
		default:
			b.WriteRune(c)
			col++
		}
	}
	return b.String()
}

func eachLine(f func(string) string) func(string) string {
	return func(s string) string {
		lines := strings.Split(strings.TrimSuffix(s, "\n"), "\n")
		for i := range lines {
			lines[i] = f(lines[i])
		}
		return strings.Join(lines, "\n") + "\n"
	}
}

// wrapAt breaks lines after a number of columns, as copying from some terminals does.
func wrapAt(n int, trim bool) func(string) string {
	return eachLine(func(line string) string {
		var parts []string
		for len(line) > n {
			parts = append(parts, line[:n])
			line = line[n:]
		}
		parts = append(parts, line)
		for i := range parts {
			if trim {
				parts[i] = strings.TrimRight(parts[i], " ")
			}
		}
		return strings.Join(parts, "\n")
	})
}

var headLine = regexp.MustCompile(`(?m)^(\t?[^\n]*GPU0[^\n]*Affinity[^\n]*)$`)

// TestPastes reads each machine's matrix after what happens to it on the way into a ticket; the same matrix must come out.
func TestPastes(t *testing.T) {
	ways := map[string]func(string) string{
		"as printed":      func(s string) string { return s },
		"blanks":          blanks,
		"no trailing":     eachLine(func(l string) string { return strings.TrimRight(blanks(l), " ") }),
		"carriage return": func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") },
		"underlined":      func(s string) string { return headLine.ReplaceAllString(s, "\x1b[4m$1\x1b[0m") },
		"lost escapes":    func(s string) string { return headLine.ReplaceAllString(s, "[4m$1[0m") },
		"indented":        eachLine(func(l string) string { return "    " + blanks(l) }),
		"quoted":          eachLine(func(l string) string { return "> " + l }),
		"quoted twice":    eachLine(func(l string) string { return "> > " + blanks(l) }),
		"prompt":          func(s string) string { return "root@node1:~# nvidia-smi topo -m\n" + s + "root@node1:~# exit\n" },
		"between others": func(s string) string {
			return "Wed Jan  1 10:00:00 2025\n| NVIDIA-SMI 550.54 |\nGPU 0: NVIDIA H100 (UUID: GPU-1)\n\n```\n" + s + "```\nThanks, GPU0 looks fine to me.\n"
		},
		"each line named": eachLine(func(l string) string { return "node1: " + blanks(l) }),
		"time stamps":     eachLine(func(l string) string { return "2025-01-01T10:00:00Z " + l }),
		"fixed blanks":    func(s string) string { return strings.ReplaceAll(blanks(s), " ", "\u00a0") },
		"double spaced":   func(s string) string { return strings.ReplaceAll(s, "\n", "\n\n") },
		"head to the left": func(s string) string {
			return headLine.ReplaceAllStringFunc(blanks(s), func(l string) string { return strings.TrimLeft(l, " ") })
		},
		"markdown": eachLine(func(l string) string {
			if !strings.Contains(l, "\t") {
				return l
			}
			return "| " + strings.ReplaceAll(l, "\t", " | ") + " |"
		}),
		"html": eachLine(func(l string) string {
			if !strings.Contains(l, "\t") {
				return l
			}
			return "<tr><td>" + strings.ReplaceAll(l, "\t", "</td><td>") + "</td></tr>"
		}),
		"comments":              func(s string) string { return "# from a ticket\n# GPU0 is slow\n" + s },
		"BOM":                   func(s string) string { return "\ufeff" + s },
		"windows":               func(s string) string { return "\ufeff" + strings.ReplaceAll(blanks(s), "\n", "\r\n") },
		"wrapped":               func(s string) string { return wrapAt(100, false)(blanks(s)) },
		"wrap 80":               func(s string) string { return wrapAt(80, false)(blanks(s)) },
		"wrap 132":              func(s string) string { return wrapAt(132, false)(blanks(s)) },
		"wrap 80, no trailing":  func(s string) string { return wrapAt(80, true)(blanks(s)) },
		"wrap 100, no trailing": func(s string) string { return wrapAt(100, true)(blanks(s)) },
		"wrap 97, no trailing":  func(s string) string { return wrapAt(97, true)(blanks(s)) },
		"wrap 77":               func(s string) string { return wrapAt(77, false)(blanks(s)) },
	}
	matrices := map[string]*topo.Matrix{"big": bigNode()}
	for _, name := range topotest.Names() {
		if m := machine(t, name).Matrix(); len(m.Rows) > 0 {
			matrices[name] = m
		}
	}
	for name, m := range matrices {
		for way, do := range ways {
			in, err := topo.Read(strings.NewReader(do(written(t, m))), name)
			if err != nil {
				t.Errorf("%s, %s: %v", name, way, err)
				continue
			}
			if len(in.Matrices) != 1 {
				t.Errorf("%s, %s: %d matrices", name, way, len(in.Matrices))
				continue
			}
			ignore := cmpopts.IgnoreFields(topo.Matrix{}, "Notes", "Source", "Kind")
			line := cmpopts.IgnoreFields(topo.Row{}, "Line")
			if d := cmp.Diff(m, in.Matrices[0], ignore, line, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("%s, %s: another matrix:\n%s", name, way, d)
			}
			if wrap := strings.HasPrefix(way, "wrap"); !wrap {
				if got := codes(in.AllNotes()); strings.Trim(strings.NewReplacer("numa-na", "", "no-legend", "", "column-twice", "").Replace(got), " ") != "" {
					t.Errorf("%s, %s: notes %v", name, way, in.AllNotes())
				}
			}
		}
	}
}

// TestMatrixForms has the forms of old and new drivers, and damage.
func TestMatrixForms(t *testing.T) {
	tests := []struct {
		name, text       string
		kind             topo.MatrixKind
		gpus, nics, rows int
		notes            string
		words            string // "a b word; …"
		affinity         string // of the first row: cpus|numa|gpu numa
	}{
		{"2017", "        GPU0    GPU1    mlx5_0  CPU Affinity\nGPU0     X      PIX     SOC     0-9,20-29\nGPU1    PIX      X      SOC     0-9,20-29\nmlx5_0  SOC     SOC      X\n",
			"m", 2, 1, 3, "", "GPU0 mlx5_0 SOC; mlx5_0 GPU1 SOC", "0-9,20-29||"},
		{"no affinity", "\tGPU0\tGPU1\nGPU0\t X \tPHB\nGPU1\tPHB\t X \n", "m", 2, 0, 2, "", "GPU0 GPU1 PHB", "||"},
		{"one GPU", "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-7\t0\t\tN/A\n", "m", 1, 0, 1, "", "GPU0 GPU0 X", "0-7|0|N/A"},
		{"empty CPU column", "        GPU0    GPU1    CPU Affinity    NUMA Affinity   GPU NUMA ID\nGPU0     X      NV4                     0               N/A\nGPU1    NV4      X                      0               N/A\n",
			"m", 2, 0, 2, "", "GPU0 GPU1 NV4", "|0|N/A"},
		{"CPU list with blanks", "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t6, 14, 22,30\t1\nGPU1\tSYS\t X \t0-5\t0\n", "m", 2, 0, 2, "", "", "6,14,22,30|1|"},
		{"NUMA list", "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-71\t0,2-17\t\t1\n", "m", 1, 0, 1, "", "", "0-71|0,2-17|1"},
		{"hidden NICs", "76 NICs found in the topology, only displaying 56 in the matrix.\n\tGPU0\tGPU1\nGPU0\t X \tNV6\nGPU1\tNV6\t X \n", "m", 2, 0, 2, "nics-hidden", "", "||"},
		{"glued", "        GPU0    NIC0NIC1    CPU Affinity\nGPU0     X      PIXNODE     0-3\nNIC0    PIX     X NODE\nNIC1    NODE    NODEX\n",
			"m", 1, 2, 3, "glued no-legend", "GPU0 NIC0 PIX; GPU0 NIC1 NODE; NIC1 NIC1 X", "0-3||"},
		{"row cut", "\tGPU0\tGPU1\tNIC0\nGPU0\t X \tNV4\nGPU1\tNV4\t X \tPIX\n", "m", 2, 1, 2, "row-short rows-missing no-legend", "GPU0 GPU1 NV4; GPU0 NIC0 ; GPU1 NIC0 PIX", "||"},
		{"cell missing, tabs", "\tGPU0\tGPU1\tNIC0\tCPU Affinity\nGPU0\t X \t\tPIX\t0-3\nGPU1\tNV4\t X \tPIX\t0-3\n", "m", 2, 1, 2, "row-short rows-missing no-legend", "GPU0 GPU1 ; GPU0 NIC0 PIX", "0-3||"},
		{"cell missing, blanks", "        GPU0    GPU1    NIC0    CPU Affinity\nGPU0     X              PIX     0-3\nGPU1    NV4      X      PIX     0-3\n", "m", 2, 1, 2, "row-short rows-missing no-legend", "GPU0 GPU1 ; GPU0 NIC0 PIX", "0-3||"},
		{"no heading", "GPU1\tNV4\t X \tPIX\tNODE\t0-3\t0\nNIC0\tPIX\tPIX\t X \tNODE\nNIC1\tNODE\tNODE\tNODE\t X \n", "m", 2, 2, 3, "no-header rows-missing no-legend", "GPU1 NIC1 NODE; NIC0 GPU0 PIX", "0-3|0|"},
		{"heading cut", "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-3\t1\nGPU1\tNV4\t X \t0-3\t1\n", "m", 2, 0, 2, "header-short", "", "0-3|1|"},
		{"asymmetric", "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tPHB\t X \n", "m", 2, 0, 2, "asymmetric", "GPU0 GPU1 NV4; GPU1 GPU0 PHB", "||"},
		{"GPU without NVLink", "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tNV4\tSYS\nGPU1\tNV4\t X \tSYS\nGPU2\tSYS\tSYS\t X \n", "m", 3, 0, 3, "nvlink-missing", "", "||"},
		{"shifted", "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tPIX\tPIX\nGPU1\tPIX\tPIX\t X \nGPU2\tPIX\tPIX\t X \n", "m", 3, 0, 3, "shifted", "", "||"},
		{"row twice", "\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU0\t X \tPHB\nGPU1\tPIX\t X \n", "m", 2, 0, 2, "row-twice", "GPU0 GPU1 PIX", "||"},
		{"unknown word", "\tGPU0\tGPU1\nGPU0\t X \tXGMI\nGPU1\tXGMI\t X \n", "m", 2, 0, 2, "unknown-word", "GPU0 GPU1 XGMI", "||"},
		{"SYS in one node", "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t0-3\t0\nGPU1\tSYS\t X \t0-3\t0\n", "m", 2, 0, 2, "sys-in-numa", "", "0-3|0|"},
		{"-mp", "$ nvidia-smi topo -mp\n\tGPU0\tGPU1\nGPU0\t X \tNODE\nGPU1\tNODE\t X \n", "mp", 2, 0, 2, "", "", "||"},
		{"-p2p r", "# nvidia-smi topo -p2p r\n        GPU0    GPU1\n GPU0   X       GNS\n GPU1   GNS     X\n\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n", "p2p r", 2, 0, 2, "", "GPU0 GPU1 GNS", "||"},
		{"-p2p of unknown kind", " \tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tNS\tX\n", "p2p", 2, 0, 2, "asymmetric", "GPU0 GPU1 OK", "||"},
		{"legend names", "\tGPU0\tNIC0\tCPU Affinity\nGPU0\t X \tPIX\t0-3\nNIC0\tPIX\t X \n\nNIC Legend:\n\n  NIC0: mlx5_bond_0\n", "m", 1, 1, 2, "", "GPU0 mlx5_bond_0 PIX", "0-3||"},
		{"other makers", "\tGPU0\tbnxt_re0\trocep12s0f1\tCPU Affinity\nGPU0\t X \tPIX\tNODE\t0-3\nbnxt_re0\tPIX\t X \tNODE\nrocep12s0f1\tNODE\tNODE\t X \n", "m", 1, 2, 3, "", "bnxt_re0 rocep12s0f1 NODE", "0-3||"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in, err := topo.Read(strings.NewReader(tt.text), "t")
			if err != nil {
				t.Fatal(err)
			}
			m := in.Matrices[0]
			if m.Kind != tt.kind || m.GPUs() != tt.gpus || m.NICs() != tt.nics || len(m.Rows) != tt.rows {
				t.Errorf("kind %s, %d GPUs, %d NICs, %d rows: %v", m.Kind, m.GPUs(), m.NICs(), len(m.Rows), m.Columns)
			}
			if got := codes(in.AllNotes()); got != tt.notes {
				t.Errorf("notes %q, want %q\n%v", got, tt.notes, in.AllNotes())
			}
			for pair := range strings.SplitSeq(tt.words, "; ") {
				f := strings.Split(pair+"  ", " ")
				if tt.words != "" && m.Word(f[0], f[1]) != f[2] {
					t.Errorf("%s to %s is %q, want %q", f[0], f[1], m.Word(f[0], f[1]), f[2])
				}
			}
			r := m.Rows[0]
			if got := deref(r.CPUs) + "|" + deref(r.NUMA) + "|" + deref(r.GPUNUMA); got != tt.affinity {
				t.Errorf("affinity %q, want %q", got, tt.affinity)
			}
			for _, n := range in.AllNotes() {
				if !strings.HasPrefix(n.Where, "t:") {
					t.Errorf("a note without a place: %v", n)
				}
			}
		})
	}
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func TestTwoMatrices(t *testing.T) {
	text := "$ nvidia-smi topo -m\n\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-63\nGPU1\tPHB\t X \t0-63\n\n$ nvidia-smi topo -p2p rw\n \tGPU0\tGPU1\n GPU0\tX\tGNS\n GPU1\tGNS\tX\n"
	in, err := topo.Read(strings.NewReader(text), "t")
	if err != nil || len(in.Matrices) != 2 || in.Matrices[0].Kind != topo.MatrixTopo || in.Matrices[1].Kind != "p2p rw" || in.Matrices[1].Word("GPU0", "GPU1") != "GNS" {
		t.Errorf("%+v, %v", in, err)
	}
}

func TestCompareMatrices(t *testing.T) {
	a, b := machine(t, "a40-bridges").Matrix(), machine(t, "a40-bridges").Matrix()
	if d := a.Compare(b); len(d) != 0 {
		t.Errorf("%q", d)
	}
	b.Source = "b"
	b.Rows[2].Words[8] = "PXB"
	b.Legend["NIC1"] = "mlx5_9"
	want := []string{"GPU2 to mlx5_0: PIX in a40-bridges, PXB in b", "mlx5_1 is only in a40-bridges", "mlx5_9 is only in b"}
	got := a.Compare(b)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestMatrixLegend(t *testing.T) {
	text := written(t, machine(t, "vm-flat").MatrixPCI())
	for _, want := range []string{"GPU0\t X \tPHB", "\nLegend:\n", "  PHB  = ", "\nNIC Legend:\n\n  NIC0: mlx5_0\n", "CPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "NV#") || strings.Contains(text, "?") {
		t.Errorf("words that do not occur are explained:\n%s", text)
	}
	g, err := topo.ReadSys(topotest.Materialise(t, "container-cutdown"), nil)
	if err != nil || len(g.Matrix().Rows) != 0 {
		t.Errorf("%v", err)
	}
}
