package gdr

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

// WriteText prints the facts, a matrix of answers, then each reason once with the pairs that it holds for.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	r.Facts.write(&b)
	r.matrix(&b)
	r.reasons(&b)
	r.causes(&b)
	for _, n := range r.Facts.Notes {
		fmt.Fprintf(&b, "\nnote  %s\n", n)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func yesNo(p *bool) string {
	switch {
	case p == nil:
		return "unknown"
	case *p:
		return "yes"
	}
	return "no"
}

func (f *Facts) write(b *strings.Builder) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(b, "%-22s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("kernel", "%s (5.12 for DMA-BUF: %s)", cmp.Or(f.Kernel, "unknown"), yesNo(f.DMABufKernel))
	line("NVIDIA driver", "%s (open kernel modules: %s)", cmp.Or(f.Driver, "unknown"), yesNo(f.OpenModules))
	switch {
	case f.PeerLoaded == nil:
		line("peer memory module", "unknown: /proc/modules cannot be read")
	case *f.PeerLoaded:
		line("peer memory module", "%s", f.PeerModule)
	default:
		line("peer memory module", "none (nvidia_peermem, nv_peer_mem)")
	}
	if f.Library != "" {
		line("libibverbs", "%s (ibv_reg_dmabuf_mr: %s)", f.Library, yesNo(f.DMABufVerbs))
	} else {
		line("libibverbs", "%s", f.LibraryWhy)
	}
	switch {
	case f.Memlock == nil:
		line("locked memory limit", "unknown")
	case *f.Memlock == ^uint64(0):
		line("locked memory limit", "none")
	default:
		line("locked memory limit", "%d KiB", *f.Memlock>>10)
	}
	line("NCCL uses it up to", "%s (%s)", f.Level, f.LevelFrom)
	for _, g := range f.GPUs {
		bar1 := "BAR1 unknown"
		if g.BAR1 != nil {
			bar1 = fmt.Sprintf("BAR1 %d MiB", *g.BAR1>>20)
		}
		export := cmp.Or(string(g.Export.State), "not tried")
		if g.Export.Text != "" {
			export += " (" + g.Export.Text + ")"
		}
		line(g.ID, "%s  %s  memory %d MiB  %s  DMA-BUF offered: %s, export: %s", g.PCI, g.Name, g.Memory>>20, bar1, yesNo(g.DMABuf), export)
	}
	for _, n := range f.NICs {
		if n.Closed != "" {
			line(n.Name, "%s  cannot be opened: %s", cmp.Or(n.PCI, "-"), n.Closed)
			continue
		}
		line(n.Name, "%s  %s  port %s  takes DMA-BUF: %s  relaxed ordering: %s", cmp.Or(n.PCI, "-"), cmp.Or(n.LinkLayer, "link layer unknown"), cmp.Or(n.Port, "unknown"), yesNo(n.DMABuf), yesNo(n.Relaxed))
	}
	if len(f.NICs) == 0 {
		line("NICs", "no RDMA device: whether memory can be exported is all that can be told")
	}
}

// matrix has a row a GPU and a column a NIC: the answer, and the distance as NCCL names it.
func (r *Report) matrix(b *strings.Builder) {
	f := &r.Facts
	if len(r.Verdicts) == 0 {
		return
	}
	width := 10
	for _, n := range f.NICs {
		width = max(width, len(n.Name)+2)
	}
	fmt.Fprintf(b, "\n%-6s", "")
	for _, n := range f.NICs {
		fmt.Fprintf(b, "%*s", width, n.Name)
	}
	b.WriteByte('\n')
	for _, g := range f.GPUs {
		fmt.Fprintf(b, "%-6s", g.ID)
		for _, n := range f.NICs {
			cell := "-"
			if i := slices.IndexFunc(r.Verdicts, func(v Verdict) bool { return v.GPU == g.ID && v.NIC == n.Name }); i >= 0 {
				cell = map[Answer]string{Yes: "yes", No: "NO", CannotTell: "?"}[r.Verdicts[i].Answer]
			}
			if i := slices.IndexFunc(f.Pairs, func(p Pair) bool { return p.GPU == g.ID && p.NIC == n.Name }); i >= 0 && f.Pairs[i].Distance != "" {
				cell += " " + f.Pairs[i].Distance
			}
			fmt.Fprintf(b, "%*s", width, cell)
		}
		b.WriteByte('\n')
	}
}

// reasons prints each verdict's words once.
func (r *Report) reasons(b *strings.Builder) {
	type said struct {
		v     Verdict
		pairs []string
	}
	var list []*said
	key := func(v Verdict) string { return fmt.Sprint(v.Answer, "|", v.Why, "|", v.Causes, "|", v.NCCLWhy) }
	for _, v := range r.Verdicts {
		pair := v.GPU + " and " + v.NIC
		if i := slices.IndexFunc(list, func(s *said) bool { return key(s.v) == key(v) }); i >= 0 {
			list[i].pairs = append(list[i].pairs, pair)
			continue
		}
		list = append(list, &said{v, []string{pair}})
	}
	for _, a := range []Answer{No, CannotTell, Yes} {
		for _, s := range list {
			if s.v.Answer != a {
				continue
			}
			fmt.Fprintf(b, "\n%s: %s\n  %s\n", s.v.Answer, strings.Join(s.pairs, ", "), s.v.Why)
			writeCauses(b, s.v.Causes)
			if s.v.NCCLWhy != "" {
				fmt.Fprintf(b, "  NCCL uses it: %s; %s\n", yesNo(s.v.NCCL), s.v.NCCLWhy)
			}
		}
	}
}

func writeCauses(b *strings.Builder, causes []Cause) {
	for _, c := range causes {
		fmt.Fprintf(b, "  - %s\n", c.Text)
		if c.Fix != "" {
			fmt.Fprintf(b, "    -> %s\n", c.Fix)
		}
	}
}

func (r *Report) causes(b *strings.Builder) {
	if len(r.Causes) > 0 {
		b.WriteString("\nin the way of exporting GPU memory:\n")
		writeCauses(b, r.Causes)
	}
}
