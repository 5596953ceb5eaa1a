package links

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// WriteText prints what was measured as matrices and lists, then what is wrong.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	r.writeHead(&b)
	r.writeMatrices(&b)
	r.writeHost(&b)
	r.writeLocal(&b)
	r.writeFindings(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func number(v *float64, digits int) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.*f", digits, *v)
}

func (r *Report) writeHead(b *strings.Builder) {
	fmt.Fprintf(b, "%d GPUs, engine %s, copies of %d bytes, median of %d repetitions\n%s\n\n", len(r.GPUs), r.Engine, r.Bytes, r.Repetitions, r.Convention)
	for _, g := range r.GPUs {
		fmt.Fprintf(b, "%-5s %s  %s  PCIe %s", g.ID, g.PCI, g.Name, g.PCIe.text())
		if g.NVLinks != nil {
			fmt.Fprintf(b, "  NVLinks %d", *g.NVLinks)
			if g.NVLinksDown != nil && *g.NVLinksDown > 0 {
				fmt.Fprintf(b, " (%d down)", *g.NVLinksDown)
			}
		}
		if g.CPUs != "" {
			fmt.Fprintf(b, "  host memory near CPUs %s", g.CPUs)
		}
		b.WriteByte('\n')
	}
}

func (p *PCIe) text() string {
	part := func(gen, width *int) string {
		s := "gen?"
		if gen != nil {
			s = fmt.Sprintf("gen%d", *gen)
		}
		if width != nil {
			return fmt.Sprintf("%s x%d", s, *width)
		}
		return s + " x?"
	}
	now, best := part(p.Gen, p.Width), part(p.MaxGen, p.MaxWidth)
	switch {
	case p.Gen == nil && p.Width == nil && p.MaxGen == nil && p.MaxWidth == nil:
		return "unknown"
	case now == best || p.MaxGen == nil && p.MaxWidth == nil:
		return now
	}
	return now + " of " + best
}

// matrices are the tables of GPU pairs, in the order in which they are printed.
var matrices = []struct {
	title   string
	method  Method
	both    bool
	latency bool
}{
	{"copy engine, one way, GB/s", CopyEngine, false, false},
	{"copy engine, both ways at once, GB/s each way", CopyEngine, true, false},
	{"kernel reads far memory, one way, GB/s", KernelRead, false, false},
	{"kernels read far memory, both ways at once, GB/s each way", KernelRead, true, false},
	{"kernel writes far memory, one way, GB/s", KernelWrite, false, false},
	{"kernels write far memory, both ways at once, GB/s each way", KernelWrite, true, false},
	{"latency between kernels (8-byte word with its flag, half a round trip), µs", FlagPing, false, true},
	{"latency of the copy engine (8-byte copies one after the other), µs", SmallCopy, false, true},
}

// between finds a cell.
func (r *Report) between(from, to string, method Method, both bool) *Measured {
	i := slices.IndexFunc(r.Measured, func(m Measured) bool {
		return m.Kind == GPUToGPU && m.From == from && m.To == to && m.Method == method && m.Both == both
	})
	if i < 0 {
		return nil
	}
	return &r.Measured[i]
}

func (r *Report) writeMatrices(b *strings.Builder) {
	if slices.ContainsFunc(r.Pairs, func(p Pair) bool { return p.MaxGBs != nil || p.Word != "" }) {
		r.writeWords(b)
	}
	for _, x := range matrices {
		if !slices.ContainsFunc(r.Measured, func(m Measured) bool { return m.Kind == GPUToGPU && m.Method == x.method && m.Both == x.both }) {
			continue
		}
		r.writeTable(b, x.title, func(from, to string) string {
			m := r.between(from, to, x.method, x.both)
			switch {
			case m == nil:
				return "-"
			case x.latency:
				return number(m.LatencyUS, 2)
			case m.Staged:
				return number(m.GBs, 1) + "*"
			}
			return number(m.GBs, 1)
		})
	}
	if slices.ContainsFunc(r.Measured, func(m Measured) bool { return m.Kind == GPUToGPU && m.Efficiency != nil }) {
		r.writeTable(b, "copy engine, one way, of the nominal", func(from, to string) string { return percent(r.between(from, to, CopyEngine, false)) })
	}
	if slices.ContainsFunc(r.Measured, func(m Measured) bool { return m.Staged }) {
		b.WriteString("* no peer access: staged through host memory\n")
	}
}

// writeWords prints what connects the pairs, and what that should give.
func (r *Report) writeWords(b *strings.Builder) {
	r.writeTable(b, "nominal, one way, GB/s (topology)", func(from, to string) string {
		p := r.pair(from, to)
		if p == nil || p.MaxGBs == nil && p.Word == "" {
			return "-"
		}
		if p.Word == "" {
			return number(p.MaxGBs, 0)
		}
		return number(p.MaxGBs, 0) + " " + p.Word
	})
}

// writeTable prints a matrix: rows are where data comes from, columns where it goes.
func (r *Report) writeTable(b *strings.Builder, title string, cell func(from, to string) string) {
	width := 8
	rows := make([][]string, len(r.GPUs))
	for i, from := range r.GPUs {
		for j, to := range r.GPUs {
			text := "x"
			if i != j {
				text = cell(from.ID, to.ID)
			}
			rows[i], width = append(rows[i], text), max(width, len(text)+1)
		}
	}
	fmt.Fprintf(b, "\n%s\n%-10s", title, "from \\ to")
	for _, to := range r.GPUs {
		fmt.Fprintf(b, "%*s", width, to.ID)
	}
	b.WriteByte('\n')
	for i, from := range r.GPUs {
		fmt.Fprintf(b, "%-10s", from.ID)
		for _, text := range rows[i] {
			fmt.Fprintf(b, "%*s", width, text)
		}
		b.WriteByte('\n')
	}
}

// percent is an efficiency, "-" without a nominal.
func percent(m *Measured) string {
	if m == nil || m.Efficiency == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", 100**m.Efficiency)
}

func (r *Report) writeHost(b *strings.Builder) {
	if !slices.ContainsFunc(r.Measured, func(m Measured) bool { return m.Kind == HostToGPU }) {
		return
	}
	fmt.Fprintf(b, "\nhost memory (page-locked), GB/s\n%-6s %8s %8s %9s %9s %9s %10s %6s %6s %9s %9s\n",
		"", "to GPU", "from GPU", "both: to", "from", "together", "line rate", "to", "from", "to, µs", "from, µs")
	for _, g := range r.GPUs {
		find := func(from, to string, method Method, both bool) *Measured {
			i := slices.IndexFunc(r.Measured, func(m Measured) bool { return m.From == from && m.To == to && m.Method == method && m.Both == both })
			if i < 0 {
				return &Measured{}
			}
			return &r.Measured[i]
		}
		in, out := find("host", g.ID, CopyEngine, false), find(g.ID, "host", CopyEngine, false)
		bothIn, bothOut := find("host", g.ID, CopyEngine, true), find(g.ID, "host", CopyEngine, true)
		fmt.Fprintf(b, "%-6s %8s %8s %9s %9s %9s %10s %6s %6s %9s %9s\n", g.ID, number(in.GBs, 1), number(out.GBs, 1), number(bothIn.GBs, 1), number(bothOut.GBs, 1), number(bothIn.TotalGBs, 1),
			number(g.PCIe.MaxGBs, 1), percent(in), percent(out), number(find("host", g.ID, SmallCopy, false).LatencyUS, 2), number(find(g.ID, "host", SmallCopy, false).LatencyUS, 2))
	}
}

func (r *Report) writeLocal(b *strings.Builder) {
	if !slices.ContainsFunc(r.Measured, func(m Measured) bool { return m.Kind == Local }) {
		return
	}
	fmt.Fprintf(b, "\nthe GPU's own memory, GB/s read and written\n%-6s %12s %8s %9s %7s %7s\n", "", "cudaMemcpy", "kernel", "nominal", "copy", "kernel")
	for _, g := range r.GPUs {
		local := func(method Method) *Measured {
			if m := r.find(g.ID, g.ID, method); m != nil {
				return m
			}
			return &Measured{}
		}
		c, k := local(CopyEngine), local(KernelCopy)
		fmt.Fprintf(b, "%-6s %12s %8s %9s %7s %7s\n", g.ID, number(c.GBs, 0), number(k.GBs, 0), number(g.MemoryGBs, 0), percent(c), percent(k))
	}
}

// writeFindings prints what is wrong, what the data check found, and what is to be known.
func (r *Report) writeFindings(b *strings.Builder) {
	b.WriteByte('\n')
	for _, s := range []Severity{Fault, Warn, Usual} {
		for _, f := range r.Findings {
			if f.Severity != s {
				continue
			}
			fmt.Fprintf(b, "%-5s %s: %s\n", f.Severity, f.Where, f.Text)
			if f.Fix != "" {
				fmt.Fprintf(b, "      -> %s\n", f.Fix)
			}
		}
	}
	checked, wrong := 0, 0
	for _, m := range r.Measured {
		if m.Wrong != nil {
			checked++
			if *m.Wrong > 0 {
				wrong++
			}
		}
		if m.Why != "" {
			fmt.Fprintf(b, "note  %s: no figure: %s\n", m.way(), m.Why)
		}
	}
	switch {
	case wrong > 0:
		fmt.Fprintf(b, "data: WRONG in %d of %d measurements\n", wrong, checked)
	default:
		fmt.Fprintf(b, "data: right in all of %d measurements\n", checked)
	}
	if r.count(Fault)+r.count(Warn) == 0 {
		b.WriteString("nothing is wrong with what could be looked at\n")
	}
	for _, n := range r.Notes {
		fmt.Fprintf(b, "note  %s\n", n)
	}
	if r.Ended != "" {
		fmt.Fprintf(b, "ended early: %s\n", r.Ended)
	}
}
