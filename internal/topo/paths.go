package topo

import (
	"fmt"
	"strings"
)

// Paths are the ways between all pairs of GPUs and NICs, each pair once.
func (g *Graph) Paths() []Path {
	ends := g.endpoints()
	if len(ends) < 2 {
		return nil
	}
	p := newPather(g)
	out := make([]Path, 0, len(ends)*(len(ends)-1)/2)
	for i, a := range ends {
		for _, b := range ends[i+1:] {
			out = append(out, p.path(a, b))
		}
	}
	return out
}

// Path is the way between two endpoints, named by id (GPU0, NIC3), device name (mlx5_0), UUID or bus id.
func (g *Graph) Path(a, b string) (Path, error) {
	from, err := g.endpoint(a)
	if err != nil {
		return Path{}, err
	}
	to, err := g.endpoint(b)
	if err != nil {
		return Path{}, err
	}
	return newPather(g).path(from, to), nil
}

// pather has what all paths of one graph need.
type pather struct {
	g    *Graph
	tree *tree
	nccl *ncclSystem
}

func newPather(g *Graph) *pather { return &pather{g, newTree(g), newNCCLSystem(g)} }

func (p *pather) path(a, b endpoint) Path {
	out := Path{A: a.id, B: b.id}
	if a.id == b.id {
		out.SMI, out.PCI, out.NCCL = SMISelf, SMISelf, "LOC"
		return out
	}
	var why []string
	out.PCI = p.pciWord(a, b, &why)
	out.SMI = out.PCI
	nv, nvWhy := p.nvlinks(a, b)
	switch {
	case nv.count > 0:
		out.SMI, why = fmt.Sprintf("NV%d", nv.count), nil
		p.nvlinkRate(&out, nv)
	case nvWhy != "":
		out.SMI, why = SMIUnknown, append(why, nvWhy)
	default:
		p.pciRate(&out, a, b)
	}
	p.nccl.fill(&out, a, b, &why)
	out.Why = strings.Join(why, "; ")
	return out
}

// nvlink is what joins two GPUs.
type nvlink struct {
	count int
	gbs   *float64 // one link
	via   string   // "", or the switches
}

// nvlinks counts the links between two GPUs, direct ones, or those that both have to switches. why is set where NVLink is unknown.
func (p *pather) nvlinks(a, b endpoint) (l nvlink, why string) {
	if a.gpu == nil || b.gpu == nil {
		return nvlink{}, ""
	}
	for _, e := range []endpoint{a, b} {
		if e.gpu.NVLinks == nil {
			return nvlink{}, "the NVLinks of " + e.id + " are not known"
		}
	}
	toA, toB := 0, 0 // links into the switches
	for _, x := range a.gpu.NVLinks {
		switch {
		case x.Peer == PeerSwitch:
			toA += x.Count
			l.gbs = linkRate(x, a.gpu)
		case x.Target != "" && x.Target == b.busID:
			l.count += x.Count
			l.gbs = linkRate(x, a.gpu)
		}
	}
	if l.count > 0 {
		return l, ""
	}
	for _, x := range b.gpu.NVLinks {
		if x.Peer == PeerSwitch {
			toB += x.Count
			l.gbs = lower(l.gbs, linkRate(x, b.gpu))
		}
	}
	l.count, l.via = min(toA, toB), "NVSwitch"
	return l, ""
}

func linkRate(l NVLink, gpu *GPU) *float64 {
	if l.GBs != nil {
		return l.GBs
	}
	return nvlinkGBs(gpu.SM)
}

func (p *pather) nvlinkRate(out *Path, l nvlink) {
	out.Hops = []string{out.A, out.B}
	if l.via != "" {
		out.Hops = []string{out.A, l.via, out.B}
	}
	if l.gbs == nil {
		out.Unknown = []string{"NVLink"}
		return
	}
	v := round(*l.gbs*float64(l.count), 1)
	out.GBs, out.NowGBs = &v, &v
	out.Narrow = fmt.Sprintf("%d NVLinks of %g GB/s", l.count, *l.gbs)
}

// pciWord is nvidia-smi's word for the PCIe path. The rule follows the descriptions that nvidia-smi prints and was checked against published matrices of machines
// whose PCIe tree is known: a switch is an upstream port and its downstream ports, so what has at most two bridges between it and the common
// ancestor is behind one switch.
func (p *pather) pciWord(a, b endpoint, why *[]string) string {
	fa, fb := p.tree.byID[a.busID], p.tree.byID[b.busID]
	for _, e := range []struct {
		endpoint
		f *Function
	}{{a, fa}, {b, fb}} {
		if e.f == nil {
			*why = append(*why, "the place of "+e.id+" on PCIe is not known")
			return SMIUnknown
		}
	}
	if card(fa.BusID) == card(fb.BusID) {
		return SMIPIX // two ports of one card
	}
	up, down, common := p.common(fa, fb)
	if common != nil {
		limit := 2
		if p.g.Form == FormNCCL {
			limit = 0
		}
		if max(up, down) <= limit {
			return SMIPIX
		}
		return SMIPXB
	}
	return p.hostWord(a, b, fa, fb, why)
}

// common finds the nearest bridge above both, and how many bridges are below it on either side.
func (p *pather) common(a, b *Function) (na, nb int, bridge *Function) {
	upA, upB := p.tree.above(a), p.tree.above(b)
	if a.BusID == b.Parent || b.BusID == a.Parent { // a bridge and what is below it: not endpoints
		return 0, 0, a
	}
	for i, x := range upA {
		for j, y := range upB {
			if x == y {
				return i, j, x
			}
		}
	}
	return 0, 0, nil
}

// hostWord is the word for two functions with no bridge in common.
func (p *pather) hostWord(a, b endpoint, fa, fb *Function, why *[]string) string {
	sameRoot := fa.Root != "" && fa.Root == fb.Root ||
		fa.Root == "" && fa.Parent == "" && fb.Parent == "" && rootBus(fa.BusID) == rootBus(fb.BusID)
	if p.g.Form == FormFull && (fa.Root == "" || fb.Root == "") {
		*why = append(*why, "the place of one of them on PCIe is not known")
		return SMIUnknown
	}
	switch na, nb := a.numa, b.numa; {
	case sameRoot:
		return SMIPHB
	case na != nil && nb != nil && *na >= 0 && *nb >= 0 && *na != *nb:
		return SMISYS
	case na != nil && nb != nil && *na >= 0 && *nb >= 0:
		if fa.Root == "" || fb.Root == "" {
			*why = append(*why, "an XML of NCCL has no host bridges: PHB if it is one, NODE if they are two")
			return SMIHostOrNode
		}
		return SMINODE
	case fa.Root == "" || fb.Root == "":
		*why = append(*why, "neither the host bridges nor the NUMA nodes are known")
		return SMIUnknown
	case len(p.g.CPUs) > 1 && na != nil && nb != nil:
		*why = append(*why, "the kernel gives no NUMA node for one of them; nvidia-smi calls that SYS")
		return SMISYS
	}
	*why = append(*why, "two host bridges, and the NUMA nodes are not known")
	return SMINodeOrSys
}

// pciRate finds the narrowest PCIe link between two endpoints.
func (p *pather) pciRate(out *Path, a, b endpoint) {
	fa, fb := p.tree.byID[a.busID], p.tree.byID[b.busID]
	if fa == nil || fb == nil {
		out.Unknown = append(out.Unknown, "the way over PCIe")
		return
	}
	na, nb, common := p.common(fa, fb)
	upA, upB := append([]*Function{fa}, p.tree.above(fa)...), append([]*Function{fb}, p.tree.above(fb)...)
	if fa == fb {
		upA, upB = nil, nil
	} else if common != nil {
		upA, upB = upA[:na+1], upB[:nb+1]
	}
	out.Hops = hopList(upA, upB, common)
	var now, best narrowest
	if common == nil { // to the CPU a GPU with C2C does not use its PCIe link
		upA, upB = best.takeC2C(a, upA), best.takeC2C(b, upB)
		now.takeC2C(a, nil)
		now.takeC2C(b, nil)
	}
	for _, f := range append(upA, upB...) {
		if !p.tree.upLink(f) {
			continue
		}
		now.take(f, f.Link.GBs())
		best.take(f, f.Link.MaxGBs())
	}
	if common == nil {
		out.Unknown = append(out.Unknown, hostHop(out.PCI, fa, fb))
	}
	if fa == fb || out.PCI == SMISYS || out.PCI == SMINodeOrSys || out.PCI == SMIUnknown {
		return
	}
	if best.unknown != "" {
		out.Unknown = append(out.Unknown, best.unknown)
		return
	}
	out.GBs = best.gbs
	if best.c2c {
		out.Narrow = "NVLink-C2C"
	} else if best.f != nil {
		out.Narrow = "the link above " + best.f.BusID + ": " + linkText(best.f.Link.MaxSpeed, best.f.Link.MaxWidth)
	}
	if now.unknown == "" {
		out.NowGBs = now.gbs
	}
}

// narrowest is the slowest link seen, and the first whose rate is unknown.
type narrowest struct {
	gbs     *float64
	f       *Function
	unknown string
	c2c     bool // it is the C2C link
}

// takeC2C puts the C2C links of a GPU in the place of its way over PCIe.
func (n *narrowest) takeC2C(e endpoint, up []*Function) []*Function {
	if e.gpu == nil || e.gpu.C2C == nil {
		return up
	}
	c := e.gpu.C2C
	switch {
	case c.GBs == nil && n.unknown == "":
		n.unknown = "NVLink-C2C"
	case c.GBs != nil:
		v := round(*c.GBs*float64(c.Count), 2)
		n.gbs, n.c2c = &v, true
	}
	return nil
}

func (n *narrowest) take(f *Function, gbs *float64) {
	switch {
	case gbs == nil && n.unknown == "":
		n.unknown = "the link above " + f.BusID
	case gbs != nil && (n.gbs == nil || *gbs < *n.gbs):
		n.gbs, n.f, n.c2c = gbs, f, false
	}
}

func hostHop(word string, a, b *Function) string {
	switch word {
	case SMIPHB:
		return "inside the host bridge " + a.Root
	case SMISYS:
		return "between the NUMA nodes"
	}
	return strings.TrimSpace("between the host bridges " + strings.TrimSpace(a.Root+" "+b.Root))
}

func hopList(a, b []*Function, common *Function) []string {
	var out []string
	for _, f := range a {
		out = append(out, f.BusID)
	}
	if common != nil {
		out = append(out, common.BusID)
	}
	for i := len(b) - 1; i >= 0; i-- {
		out = append(out, b[i].BusID)
	}
	return out
}

// Edges are all connections of the graph with their bandwidth.
func (g *Graph) Edges() []Edge {
	t := newTree(g)
	var out []Edge
	for i := range g.PCI {
		out = append(out, g.pciEdge(t, &g.PCI[i]))
	}
	for i := range g.GPUs {
		out = append(out, g.gpuEdges(i)...)
	}
	for i := range g.CPUs {
		for j := i + 1; j < len(g.CPUs); j++ {
			out = append(out, Edge{A: g.CPUs[i].ID, B: g.CPUs[j].ID, Kind: EdgeNUMA})
		}
	}
	return out
}

func (g *Graph) pciEdge(t *tree, f *Function) Edge {
	e := Edge{A: f.Parent, B: f.BusID, Kind: EdgePCI}
	if f.Parent == "" {
		e.Kind, e.A, e.Text = EdgeHost, f.Root, f.Root
		if cpu := g.CPU(f.NUMA); cpu != nil {
			e.A = cpu.ID
		}
	}
	if !t.upLink(f) {
		if f.Parent != "" {
			e.Text = "inside the switch"
		}
		return e
	}
	e.Text, e.Gen, e.MaxGen = f.Link.String(), pcieGen(f.Link.Speed), pcieGen(f.Link.MaxSpeed)
	e.Width, e.MaxW, e.GBs, e.MaxGBs = f.Link.Width, f.Link.MaxWidth, f.Link.GBs(), f.Link.MaxGBs()
	return e
}

func (g *Graph) gpuEdges(n int) (out []Edge) {
	gpu := &g.GPUs[n]
	total := func(rate *float64, n int) *float64 {
		if rate == nil {
			return nil
		}
		v := round(*rate*float64(n), 2)
		return &v
	}
	for _, l := range gpu.NVLinks {
		to := l.Target
		if i := gpuAt(g, l.Target); i >= 0 {
			if to = g.GPUs[i].ID; i < n { // the other end lists it as well
				continue
			}
		}
		if to == "" && l.Peer == PeerSwitch {
			to = HiddenTarget
		}
		rate := total(linkRate(l, gpu), l.Count)
		out = append(out, Edge{A: gpu.ID, B: to, Kind: EdgeNVLink, Text: fmt.Sprintf("%d links", l.Count), GBs: rate, MaxGBs: rate})
	}
	if c := gpu.C2C; c != nil {
		to := ""
		if cpu := g.CPU(gpu.NUMA); cpu != nil {
			to = cpu.ID
		}
		rate := total(c.GBs, c.Count)
		out = append(out, Edge{A: gpu.ID, B: to, Kind: EdgeC2C, Text: fmt.Sprintf("%d links", c.Count), GBs: rate, MaxGBs: rate})
	}
	return out
}

func gpuAt(g *Graph, busID string) int {
	for i := range g.GPUs {
		if busID != "" && g.GPUs[i].BusID == busID {
			return i
		}
	}
	return -1
}
