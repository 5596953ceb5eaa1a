package links

import (
	"strings"

	"github.com/commprobe/commprobe/internal/nvml"
	"github.com/commprobe/commprobe/internal/topo"
)

// Machine is what NVML and /sys say at one moment. Either may be nil.
type Machine struct {
	NVML    *nvml.Node
	NVMLWhy string // why NVML is nil
	Graph   *topo.Graph
}

// gpu finds a device in NVML by its PCI address.
func (m Machine) gpu(pci string) *nvml.GPU {
	if m.NVML == nil {
		return nil
	}
	for i := range m.NVML.GPUs {
		if p := m.NVML.GPUs[i].PCI; p != nil && *p == pci {
			return &m.NVML.GPUs[i]
		}
	}
	return nil
}

// node finds a device in the graph.
func (m Machine) node(pci string) *topo.GPU {
	if m.Graph == nil {
		return nil
	}
	for i := range m.Graph.GPUs {
		if m.Graph.GPUs[i].BusID == pci {
			return &m.Graph.GPUs[i]
		}
	}
	return nil
}

// genGTs are the speeds of the PCIe generations in GT/s a lane.
var genGTs = []float64{1: 2.5, 2: 5, 3: 8, 4: 16, 5: 32, 6: 64, 7: 128}

func gts(gen *int) *float64 {
	if gen == nil || *gen < 1 || *gen >= len(genGTs) {
		return nil
	}
	return &genGTs[*gen]
}

func genOf(gts *float64) *int {
	for gen, v := range genGTs {
		if gts != nil && gen > 0 && v == *gts {
			return &gen
		}
	}
	return nil
}

func or[T any](a, b *T) *T {
	if a != nil {
		return a
	}
	return b
}

// pcie describes the way up to the processor. NVML's word on the GPU's own link goes before that of /sys, which virtual machines invent.
func (m Machine) pcie(pci string) PCIe {
	var out PCIe
	var link topo.PCILink
	if m.Graph != nil {
		if f := m.Graph.Function(pci); f != nil {
			link = f.Link
		}
	}
	if g := m.gpu(pci); g != nil {
		link.Speed, link.Width = or(gts(g.PCIe.Gen), link.Speed), or(g.PCIe.Width, link.Width)
		link.MaxSpeed, link.MaxWidth = or(gts(g.PCIe.MaxGen), link.MaxSpeed), or(g.PCIe.MaxWidth, link.MaxWidth)
	}
	out.Gen, out.Width, out.MaxGen, out.MaxWidth = genOf(link.Speed), link.Width, genOf(link.MaxSpeed), link.MaxWidth
	out.NowGBs, out.MaxGBs = link.GBs(), link.MaxGBs()
	out.Narrow = "its own link, " + link.String()
	if m.Graph == nil || m.virtual() {
		return out // the bridges of a virtual machine are made up: QEMU's say 2.5 GT/s x1
	}
	for _, f := range m.Graph.Above(pci) {
		if now := f.Link.GBs(); now != nil && out.NowGBs != nil && *now < *out.NowGBs {
			out.NowGBs, out.Narrow = now, "the link above "+f.BusID+", "+f.Link.String()
		}
		if best := f.Link.MaxGBs(); best != nil && out.MaxGBs != nil && *best < *out.MaxGBs {
			out.MaxGBs = best
		}
	}
	return out
}

func (m Machine) virtual() bool { return m.Graph.Host.Virtual != nil && *m.Graph.Host.Virtual }

// learn fills what is known of a GPU apart from CUDA.
func (g *GPU) learn(m Machine) {
	g.PCIe = m.pcie(g.PCI)
	if n := m.node(g.PCI); n != nil {
		g.NUMA = n.NUMA
	}
	v := m.gpu(g.PCI)
	if v == nil || v.Links == nil {
		return
	}
	up, down, unknown := 0, 0, false
	for _, l := range v.Links {
		switch {
		case l.Active == nil:
			unknown = true
		case *l.Active:
			up++
		default:
			down++
		}
	}
	if !unknown {
		g.NVLinks, g.NVLinksDown = &up, &down
	}
}

// learn fills what is known of the way between two GPUs.
func (p *Pair) learn(m Machine, a, b *GPU) {
	if m.Graph == nil {
		return
	}
	w, err := m.Graph.Path(a.PCI, b.PCI)
	if err != nil {
		return
	}
	if w.SMI != topo.SMIUnknown && !strings.Contains(w.SMI, "|") {
		p.Word = w.SMI
	}
	if _, nvlink := topo.NVLinkCount(w.SMI); nvlink || !m.virtual() {
		p.MaxGBs, p.NowGBs = w.GBs, w.NowGBs
	}
}
