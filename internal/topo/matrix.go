package topo

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Matrix is a table that nvidia-smi topo prints: words between devices, and the CPUs near them. It has no graph in it: how devices are wired is not known.
type Matrix struct {
	Source  string     `json:"source"`
	Kind    MatrixKind `json:"kind"`
	Columns []string   `json:"columns"` // labels: GPU0, NIC3, mlx5_0
	Rows    []Row      `json:"rows"`
	// Affinity says which of the columns after the words there are: CPU, NUMA, GPU NUMA ID. Older drivers print fewer.
	Affinity []string          `json:"affinity,omitempty"`
	Legend   map[string]string `json:"legend,omitempty"` // device name by label: NIC0 is mlx5_0
	Notes    []Note            `json:"notes,omitempty"`
}

// MatrixKind is the command that prints a matrix.
type MatrixKind string

// The matrices of nvidia-smi topo.
const (
	MatrixTopo MatrixKind = "m"  // topo -m: NVLink and PCIe
	MatrixPCI  MatrixKind = "mp" // topo -mp: PCIe alone
	// MatrixP2P is topo -p2p; a letter follows where it is known: "p2p r" (read), w, n (NVLink), a (atomics), p (PCIe).
	MatrixP2P MatrixKind = "p2p"
)

// The columns after the words.
const (
	AffinityCPU     = "CPU Affinity"
	AffinityNUMA    = "NUMA Affinity"
	AffinityGPUNUMA = "GPU NUMA ID"
)

// Row is one device of a matrix. A word that is not there (cut off) is empty.
type Row struct {
	Label   string   `json:"label"`
	Words   []string `json:"words"`          // one a column
	CPUs    *string  `json:"cpus,omitempty"` // "0-31,64-95"; nil: not printed or cut
	NUMA    *string  `json:"numa,omitempty"` // "0", "0,2-17", "N/A"
	GPUNUMA *string  `json:"gpu_numa,omitempty"`
	Line    int      `json:"line,omitempty"` // where it stood
}

// Word is what stands between two devices, by label or by device name; empty: not in the matrix.
func (m *Matrix) Word(a, b string) string {
	col := slices.IndexFunc(m.Columns, func(c string) bool { return c == b || m.Legend[c] == b })
	for i := range m.Rows {
		r := &m.Rows[i]
		if (r.Label == a || m.Legend[r.Label] == a) && col >= 0 && col < len(r.Words) {
			return r.Words[col]
		}
	}
	return ""
}

// Between is Word, with the other direction where the row is not there: matrices are symmetric, and people cut them.
func (m *Matrix) Between(a, b string) string {
	if w := m.Word(a, b); w != "" {
		return w
	}
	return m.Word(b, a)
}

// GPUs and NICs count the columns of either kind.
func (m *Matrix) GPUs() (n int) {
	for _, c := range m.Columns {
		if isGPU(c) {
			n++
		}
	}
	return n
}

// NICs counts the columns that are not GPUs.
func (m *Matrix) NICs() int { return len(m.Columns) - m.GPUs() }

func isGPU(label string) bool {
	digits, ok := strings.CutPrefix(label, "GPU")
	_, err := strconv.Atoi(digits)
	return ok && err == nil
}

// Matrix is what nvidia-smi topo -m would print on this node.
func (g *Graph) Matrix() *Matrix { return g.matrix(MatrixTopo, func(p Path) string { return p.SMI }) }

// MatrixPCI is what nvidia-smi topo -mp would print on this node: NVLink is not looked at.
func (g *Graph) MatrixPCI() *Matrix {
	return g.matrix(MatrixPCI, func(p Path) string { return p.PCI })
}

// MatrixNCCL has NCCL's path types (rules of NCCLRules) in the form of a matrix; empty: cannot tell.
func (g *Graph) MatrixNCCL() *Matrix {
	return g.matrix(MatrixTopo, func(p Path) string { return p.NCCL })
}

func (g *Graph) matrix(kind MatrixKind, word func(Path) string) *Matrix {
	m := &Matrix{Source: g.Source, Kind: kind, Affinity: []string{AffinityCPU, AffinityNUMA, AffinityGPUNUMA}}
	var ends []endpoint
	for _, e := range g.endpoints() {
		if e.nic != nil && e.nic.RDMA != nil && !*e.nic.RDMA {
			continue // nvidia-smi lists RDMA devices only
		}
		ends = append(ends, e)
		m.Columns = append(m.Columns, e.id)
		if e.nic != nil && e.nic.Name != "" {
			if m.Legend == nil {
				m.Legend = map[string]string{}
			}
			m.Legend[e.id] = e.nic.Name
		}
	}
	p := newPather(g)
	for _, a := range ends {
		r := Row{Label: a.id}
		for _, b := range ends {
			path := p.path(a, b)
			w := word(path)
			if a.id == b.id {
				w = SMISelf
			}
			r.Words = append(r.Words, w)
			if path.Why != "" && a.id < b.id {
				m.Notes = appendOnce(m.Notes, Note{Code: "cannot-tell", Where: g.Source, Text: path.Why})
			}
		}
		if a.gpu != nil {
			r.CPUs, r.NUMA, r.GPUNUMA = g.affinity(a.gpu)
		}
		m.Rows = append(m.Rows, r)
	}
	return m
}

func appendOnce(notes []Note, n Note) []Note {
	if len(notes) >= maxNotes || slices.Contains(notes, n) {
		return notes
	}
	return append(notes, n)
}

const notAvailable = "N/A"

func (g *Graph) affinity(p *GPU) (cpus, numa, gpuNUMA *string) {
	list, node := p.CPUs, p.NUMA
	if c := g.CPU(p.NUMA); c != nil {
		list, node = first(list, c.CPUs), &c.NUMA
	}
	near, own := notAvailable, notAvailable
	if node != nil && *node >= 0 {
		near = strconv.Itoa(*node)
	}
	if list != "" {
		cpus = &list
	}
	if p.MemNUMA != nil {
		own = strconv.Itoa(*p.MemNUMA)
	}
	return cpus, &near, &own
}

// Compare lists where two matrices differ: cells that both have, and devices that only one has. Names count, not labels, where both know them.
func (m *Matrix) Compare(other *Matrix) []string {
	var out []string
	name := func(x *Matrix, label string) string {
		if n := x.Legend[label]; n != "" && len(m.Legend) > 0 && len(other.Legend) > 0 {
			return n
		}
		return label
	}
	index := map[string]string{} // label in other by name
	for _, c := range other.Columns {
		index[name(other, c)] = c
	}
	for i, a := range m.Columns {
		la, ok := index[name(m, a)]
		if !ok {
			out = append(out, fmt.Sprintf("%s is only in %s", name(m, a), m.Source))
			continue
		}
		delete(index, name(m, a))
		for _, b := range m.Columns[i+1:] {
			lb := labelOf(other, name, name(m, b))
			if lb == "" {
				continue
			}
			x, y := m.Between(a, b), other.Between(la, lb)
			if x != "" && y != "" && x != y {
				out = append(out, fmt.Sprintf("%s to %s: %s in %s, %s in %s", name(m, a), name(m, b), x, m.Source, y, other.Source))
			}
		}
	}
	for _, c := range other.Columns {
		if _, ok := index[name(other, c)]; ok {
			out = append(out, fmt.Sprintf("%s is only in %s", name(other, c), other.Source))
		}
	}
	return out
}

func labelOf(m *Matrix, name func(*Matrix, string) string, want string) string {
	for _, c := range m.Columns {
		if name(m, c) == want {
			return c
		}
	}
	return ""
}

// WriteText prints the matrix as nvidia-smi does, with tabs, legend and the names of the NICs.
func (m *Matrix) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, c := range m.Columns {
		b.WriteString("\t" + c)
	}
	for _, a := range m.Affinity {
		b.WriteString("\t" + a)
	}
	b.WriteByte('\n')
	for i := range m.Rows {
		m.writeRow(&b, &m.Rows[i])
	}
	b.WriteString(m.legend())
	if len(m.Legend) > 0 {
		b.WriteString("\nNIC Legend:\n\n")
		for _, c := range m.Columns {
			if n := m.Legend[c]; n != "" {
				fmt.Fprintf(&b, "  %s: %s\n", c, n)
			}
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (m *Matrix) writeRow(b *strings.Builder, r *Row) {
	b.WriteString(r.Label)
	for _, w := range r.Words {
		if w == SMISelf {
			w = " X "
		}
		b.WriteString("\t" + w)
	}
	if r.CPUs == nil && r.NUMA == nil && r.GPUNUMA == nil {
		b.WriteByte('\n')
		return
	}
	for _, a := range m.Affinity {
		v := map[string]*string{AffinityCPU: r.CPUs, AffinityNUMA: r.NUMA, AffinityGPUNUMA: r.GPUNUMA}[a]
		b.WriteByte('\t')
		if v != nil {
			b.WriteString(*v)
		}
		if a == AffinityNUMA && len(m.Affinity) > 2 && (v == nil || len(*v) < 8) {
			b.WriteByte('\t') // the heading is wider than a tab stop
		}
	}
	b.WriteByte('\n')
}

var meanings = []struct {
	p2p        bool
	word, text string
}{
	{false, "X", "itself"},
	{false, "SYS", "over PCIe and the link between NUMA nodes (UPI, Infinity Fabric)"},
	{false, "NODE", "over PCIe and the link between the host bridges of one NUMA node"},
	{false, "PHB", "over PCIe and a host bridge (mostly the CPU)"},
	{false, "PXB", "over several PCIe switches, without a host bridge"},
	{false, "PIX", "over one PCIe switch at most"},
	{false, "NV#", "over # NVLinks together"},
	{true, "X", "itself"},
	{true, "OK", "works"},
	{true, "CNS", "chipset does not support it"},
	{true, "GNS", "GPU does not support it"},
	{true, "TNS", "topology does not support it"},
	{true, "NS", "not supported"},
	{true, "DR", "disabled by a key of the driver"},
	{true, "U", "unknown"},
}

// legend explains the words; those that say that something cannot be told only where they occur.
func (m *Matrix) legend() string {
	var b strings.Builder
	b.WriteString("\nLegend:\n\n")
	p2p := strings.HasPrefix(string(m.Kind), string(MatrixP2P))
	for _, x := range meanings {
		if x.p2p == p2p && !(x.word == "NV#" && m.Kind == MatrixPCI) {
			fmt.Fprintf(&b, "  %-4s = %s\n", x.word, x.text)
		}
	}
	for _, x := range []struct{ word, text string }{
		{SMIUnknown, "cannot tell from " + m.Source},
		{SMIHostOrNode, "one of the two: the input has no host bridges"},
		{SMINodeOrSys, "one of the two: the NUMA nodes are not known"},
	} {
		if slices.ContainsFunc(m.Rows, func(r Row) bool { return slices.Contains(r.Words, x.word) }) {
			fmt.Fprintf(&b, "  %-4s = %s\n", x.word, x.text)
		}
	}
	return b.String()
}
