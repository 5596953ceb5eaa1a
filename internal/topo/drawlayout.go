package topo

import (
	"fmt"
	"slices"
	"strings"
)

// Sizes of the layout in pixels.
const (
	pictureWidth = 1600.0
	leastWidth   = 1100.0
	margin       = 24.0
	columnLeast  = 138.0
	columnMost   = 270.0
	columnGap    = 10.0
	frameGap     = 22.0
	framePad     = 10.0
	laneGap      = 6.0
	cpuHeight    = 48.0
)

// picture lays a graph out.
type picture struct {
	g     *Graph
	tree  *tree
	kids  map[string][]*Function
	nodes []*nodeBox
	empty []string // NUMA nodes without devices
	s     scene
	top   float64 // of the frames
	low   float64 // end of the columns
	lanes []lane
}

// nodeBox is one NUMA node with its devices.
type nodeBox struct {
	cpu    *CPU // nil: the node is not known
	socket string
	title  string
	sub    string
	blocks []block
	cols   [][]block
	x, w   float64
	rectAt int // of the scene's rectangles
}

// lane is the way of a GPU's NVLinks beside its column.
type lane struct {
	gpu  *GPU
	x, y float64
	top  float64 // end of the CPU's box, for C2C
}

func newPicture(g *Graph) *picture {
	p := &picture{g: g, tree: newTree(g), kids: map[string][]*Function{}}
	for i := range g.PCI {
		f := &g.PCI[i]
		if up := p.tree.byID[f.Parent]; up != nil && up != f {
			p.kids[up.BusID] = append(p.kids[up.BusID], f)
		}
	}
	p.findNodes()
	return p
}

// findNodes makes a box for each NUMA node that has devices, for all where none has, and one for what has no place.
func (p *picture) findNodes() {
	roots := map[string][]*Function{}
	for i := range p.g.PCI {
		f := &p.g.PCI[i]
		if p.tree.byID[f.Parent] != nil {
			continue
		}
		key := ""
		if cpu := p.g.CPU(f.NUMA); cpu != nil {
			key = cpu.ID
		}
		roots[key] = append(roots[key], f)
	}
	for i := range p.g.CPUs {
		c := &p.g.CPUs[i]
		n := &nodeBox{cpu: c, title: fmt.Sprintf("NUMA %d", c.NUMA), sub: "CPUs unknown", blocks: p.blocks(roots[c.ID])}
		if c.NUMA < 0 {
			n.title = "no NUMA nodes"
		}
		if p.g.Form == FormFull { // the kernel lists none
			n.sub = "no CPUs"
		}
		if c.CPUs != "" {
			n.sub = "CPUs " + c.CPUs
		}
		if c.Socket != nil {
			n.socket = fmt.Sprintf("socket %d", *c.Socket)
		}
		n.blocks = append(n.blocks, p.bareNICs(c)...)
		p.nodes = append(p.nodes, n)
	}
	p.dropEmpty()
	lost := &nodeBox{title: "NUMA node unknown", sub: "what is near cannot be told", blocks: append(p.blocks(roots[""]), p.lost()...)}
	if len(lost.blocks) > 0 {
		p.nodes = append(p.nodes, lost)
	}
	slices.SortStableFunc(p.nodes, func(a, b *nodeBox) int { // nodes of one socket side by side
		if a.cpu == nil || b.cpu == nil || a.cpu.Socket == nil || b.cpu.Socket == nil {
			return 0
		}
		return *a.cpu.Socket - *b.cpu.Socket
	})
}

func (p *picture) dropEmpty() {
	has := func(n *nodeBox) bool { return len(n.blocks) > 0 }
	if !slices.ContainsFunc(p.nodes, has) && len(p.g.PCI)+len(p.g.GPUs) == 0 {
		return
	}
	var kept []*nodeBox
	for _, n := range p.nodes {
		if has(n) {
			kept = append(kept, n)
			continue
		}
		p.empty = append(p.empty, strings.TrimPrefix(n.title, "NUMA ")+" ("+n.sub+")")
	}
	p.nodes = kept
}

// bareNICs are those that an XML has right below a CPU.
func (p *picture) bareNICs(c *CPU) (out []block) {
	for i := range p.g.NICs {
		n := &p.g.NICs[i]
		if n.BusID == "" && n.NUMA != nil && *n.NUMA == c.NUMA {
			out = append(out, block{{parent: -1, text: nicWords(n, false), fill: fillNIC, stroke: inkLine, link: inkLine}})
		}
	}
	return out
}

// lost are GPUs and NICs with no known place on PCIe.
func (p *picture) lost() (out []block) {
	for i := range p.g.GPUs {
		g := &p.g.GPUs[i]
		if p.tree.byID[g.BusID] == nil {
			out = append(out, block{{parent: -1, text: gpuWords(g, words{g.BusID, false, inkSoft}), fill: fillGPU, stroke: inkLine, link: inkLine, gpu: g}})
		}
	}
	for i := range p.g.NICs {
		n := &p.g.NICs[i]
		if p.tree.byID[n.BusID] == nil && (n.BusID != "" || n.NUMA == nil || p.g.CPU(n.NUMA) == nil) {
			out = append(out, block{{parent: -1, text: nicWords(n, true), fill: fillNIC, stroke: inkLine, link: inkLine}})
		}
	}
	return out
}

func (it *item) height() float64 {
	h := float64(len(it.text))*lineHeight(sizeText) + 2*padBox + itemGap
	return h + it.labelHeight()
}

func (it *item) labelHeight() float64 { return float64(len(it.label)) * lineHeight(sizeText) }

func (b block) height() (h float64) {
	for i := range b {
		h += b[i].height()
	}
	return h
}

// pack puts blocks into columns of at most a height, in order.
func pack(blocks []block, most float64) (cols [][]block) {
	h := most + 1
	for _, b := range blocks {
		if h += b.height(); h > most {
			cols, h = append(cols, nil), b.height()
		}
		cols[len(cols)-1] = append(cols[len(cols)-1], b)
	}
	if cols == nil {
		cols = [][]block{nil}
	}
	return cols
}

// arrange chooses the lowest columns that fit side by side in the width of the picture; more NUMA nodes than that make it wider.
func (p *picture) arrange() {
	tallest := 330.0
	for _, n := range p.nodes {
		for _, b := range n.blocks {
			tallest = max(tallest, b.height())
		}
	}
	for h := tallest; ; h += 12 {
		cols := 0
		for _, n := range p.nodes {
			n.cols = pack(n.blocks, h)
			cols += len(n.cols)
		}
		if free := pictureWidth - p.frames(); float64(cols)*(columnLeast+columnGap) <= free || cols == len(p.nodes) {
			p.place(cols, free)
			return
		}
	}
}

// frames is the width that is not for columns.
func (p *picture) frames() float64 {
	return 2*margin + float64(len(p.nodes))*2*framePad + float64(max(len(p.nodes)-1, 0))*frameGap
}

func (p *picture) place(cols int, free float64) {
	w := columnMost
	if cols > 0 {
		w = min(columnMost, max(columnLeast, free/float64(cols)-columnGap))
	}
	x := margin
	for _, n := range p.nodes {
		n.x, n.w = x, float64(len(n.cols))*(w+columnGap)-columnGap+2*framePad
		x += n.w + frameGap
	}
	p.s.width = max(leastWidth, x-frameGap+margin)
}

// scene draws everything.
func (p *picture) scene() *scene {
	p.arrange()
	p.head()
	for i, n := range p.nodes {
		p.frame(i, n)
	}
	p.low = p.top
	for _, n := range p.nodes {
		p.low = max(p.low, p.columns(n))
	}
	for _, n := range p.nodes {
		p.s.rects[n.rectAt].h = p.low - p.top
	}
	p.socketFrames()
	y := p.nvlinkBand(p.low + 18)
	y = p.legend(y + 14)
	p.s.height = p.notes(y+6) + margin
	return &p.s
}
