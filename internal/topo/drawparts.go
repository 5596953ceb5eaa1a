package topo

import (
	"fmt"
	"image/color"
	"slices"
	"strings"
)

// Summary is the machine in one line: "8 × NVIDIA H100 80GB HBM3, 10 RDMA NICs, 2 NUMA nodes on 2 sockets, 4 NVSwitches; DGXH100 …".
func (g *Graph) Summary() string {
	var parts []string
	models := map[string]int{}
	var order []string
	for i := range g.GPUs {
		name := first(g.GPUs[i].Name, "GPU")
		if models[name] == 0 {
			order = append(order, name)
		}
		models[name]++
	}
	for _, m := range order {
		parts = append(parts, fmt.Sprintf("%d × %s", models[m], m))
	}
	if len(order) == 0 {
		parts = append(parts, "no GPU seen")
	}
	rdma, plain := 0, 0
	for i := range g.NICs {
		if n := &g.NICs[i]; n.RDMA != nil && !*n.RDMA {
			plain++
		} else {
			rdma++
		}
	}
	switch {
	case rdma > 0:
		parts = append(parts, count(rdma, "RDMA NIC"))
	case plain == 0:
		parts = append(parts, "no NIC seen")
	}
	if plain > 0 {
		parts = append(parts, count(plain, "NIC")+" without RDMA")
	}
	sockets, nodes := map[int]bool{}, 0
	for i := range g.CPUs {
		if g.CPUs[i].NUMA >= 0 {
			nodes++
		}
		if s := g.CPUs[i].Socket; s != nil {
			sockets[*s] = true
		}
	}
	where := count(nodes, "NUMA node")
	if nodes == 0 {
		where = "NUMA nodes unknown"
	}
	if len(sockets) > 0 {
		where += " on " + count(len(sockets), "socket")
	}
	parts = append(parts, where)
	if n := len(g.NVSwitches); n > 0 {
		parts = append(parts, strings.Replace(count(n, "NVSwitche"), "one NVSwitche", "one NVSwitch", 1))
	}
	out := strings.Join(parts, ", ")
	if g.Host.Product != "" {
		out += "; " + g.Host.Product
	}
	for _, f := range []struct {
		is   *bool
		text string
	}{{g.Host.Virtual, "virtual machine"}, {g.Host.Container, "container"}} {
		if f.is != nil && *f.is {
			out += "; " + f.text
		}
	}
	return out
}

func (p *picture) head() {
	s, y := &p.s, margin
	wide := s.width - 2*margin
	for _, line := range wrapText(p.g.Summary(), sizeTitle, true, wide, 2) {
		s.say(margin, y, wide, sizeTitle, true, inkText, line)
		y += lineHeight(sizeTitle)
	}
	text := "PCIe links as they run now, in brackets the best that both ends can do; NVLink in GB/s one way"
	if d := p.distances(); d != "" {
		text += "; " + d
	}
	s.say(margin, y, wide, sizeText, false, inkSoft, text)
	y += lineHeight(sizeText)
	if len(p.empty) > 0 {
		s.say(margin, y, wide, sizeText, false, inkSoft, "NUMA nodes without devices: "+strings.Join(p.empty, ", "))
		y += lineHeight(sizeText)
	}
	p.top = y + 26 // the names of the sockets go there
}

// distances are the kernel's between NUMA nodes: "NUMA distances 10, 12 and 32 (10: itself)".
func (p *picture) distances() string {
	var seen []int
	for i := range p.g.CPUs {
		for _, d := range p.g.CPUs[i].Distance {
			if d > 10 && !slices.Contains(seen, d) {
				seen = append(seen, d)
			}
		}
	}
	if len(seen) == 0 {
		return ""
	}
	slices.Sort(seen)
	return "distances between NUMA nodes: " + strings.Trim(fmt.Sprint(seen), "[]") + " (10 is inside one)"
}

// frame draws a NUMA node's area and its box of CPUs.
func (p *picture) frame(i int, n *nodeBox) {
	s := &p.s
	n.rectAt = len(s.rects)
	s.rect(n.x, p.top, n.w, 0, fillFrame, inkLine, 1)
	fill := color.Color(fillCPU)
	if n.cpu == nil {
		fill = fillDown
	}
	x, w := n.x+framePad, n.w-2*framePad
	s.rect(x, p.top+framePad, w, cpuHeight, fill, inkLine, 1)
	s.say(x+8, p.top+framePad+5, w-16, sizeHead, true, inkText, n.title)
	s.say(x+8, p.top+framePad+7+lineHeight(sizeHead), w-16, sizeText, false, inkText, n.sub)
	if i > 0 { // the way between NUMA nodes
		y := p.top + framePad + cpuHeight/2
		before := p.nodes[i-1]
		s.path(inkLine, 4, n.cpu == nil || before.cpu == nil, before.x+before.w-framePad, y, x, y)
	}
}

// columns draws the devices of a NUMA node and returns where the lowest of them ends.
func (p *picture) columns(n *nodeBox) float64 {
	low := p.top + framePad + cpuHeight + framePad
	w := (n.w-2*framePad+columnGap)/float64(len(n.cols)) - columnGap
	from := p.top + framePad + cpuHeight
	for i, col := range n.cols {
		x := n.x + framePad + float64(i)*(w+columnGap)
		gutter := p.gutter(col)
		y, trunk := from+8, from
		lane := x + w - gutter + laneGap
		for _, b := range col {
			trunkEnd := y
			y, trunkEnd = p.block(b, x, y, w-gutter, &lane, from)
			p.s.path(inkLine, 1.5, false, x+6, trunk, x+6, trunkEnd)
			trunk = trunkEnd
		}
		low = max(low, y+framePad-itemGap)
	}
	return low
}

// gutter is the room right of a column for the NVLinks and C2C of its GPUs.
func (p *picture) gutter(col []block) float64 {
	n := 0
	for _, b := range col {
		for i := range b {
			if g := b[i].gpu; g != nil && (len(g.NVLinks) > 0 || g.C2C != nil) {
				n++
			}
		}
	}
	if n == 0 {
		return 0
	}
	return laneGap * float64(n+1)
}

// block draws boxes below each other. It returns where they end, and where the line from the host bridge enters the first one.
func (p *picture) block(b block, x, y, w float64, laneX *float64, cpu float64) (end, entry float64) {
	s := &p.s
	mid := make([]float64, len(b)) // where the line to the parent enters
	bottom := make([]float64, len(b))
	for i := range b {
		it := &b[i]
		bx := x + indent*float64(it.level+1)
		bw := x + w - bx
		lx := bx
		if it.only {
			lx += 16 // the line from above runs beside it
		}
		for _, l := range it.label {
			s.say(lx, y, x+w-lx, sizeText, false, l.color, l.s)
			y += lineHeight(sizeText)
		}
		h := it.height() - itemGap - it.labelHeight()
		line := 1.0
		if it.stroke != inkLine {
			line = 2
		}
		s.rect(bx, y, bw, h, it.fill, it.stroke, line)
		for k, t := range it.text {
			s.say(bx+padBox+1, y+padBox+float64(k)*lineHeight(sizeText), bw-2*padBox-2, sizeText, t.bold, t.color, t.s)
		}
		mid[i], bottom[i] = y+min(h/2, padBox+lineHeight(sizeText)/2), y+h
		p.link(b, i, x, y, mid, bottom)
		if g := it.gpu; g != nil && (len(g.NVLinks) > 0 || g.C2C != nil) {
			p.lanes = append(p.lanes, lane{g, *laneX, mid[i], cpu})
			side := inkNVLink
			if len(g.NVLinks) == 0 {
				side = inkC2C
			}
			s.path(side, 1.5, false, bx+bw, mid[i], *laneX, mid[i])
			*laneX += laneGap
		}
		y += h + itemGap
	}
	return y, mid[0]
}

// link draws the line from a box to what is above it.
func (p *picture) link(b block, i int, x, top float64, mid, bottom []float64) {
	it := &b[i]
	width := 1.5
	if it.link != color.Color(inkLine) {
		width = 3
	}
	bx := x + indent*float64(it.level+1)
	if it.parent < 0 {
		p.s.path(it.link, width, false, x+6, mid[i], bx, mid[i])
		return
	}
	if it.only {
		p.s.path(it.link, width, false, bx+8, bottom[it.parent], bx+8, top)
		return
	}
	up := &b[it.parent]
	ux := x + indent*float64(up.level+1) + 8
	p.s.path(inkLine, 1.5, false, ux, bottom[it.parent], ux, mid[i])
	p.s.path(it.link, width, false, ux, mid[i], bx, mid[i])
}

// socketFrames names the sockets over their NUMA nodes.
func (p *picture) socketFrames() {
	for i := 0; i < len(p.nodes); {
		j := i
		for j+1 < len(p.nodes) && p.nodes[j+1].socket == p.nodes[i].socket {
			j++
		}
		x, end := p.nodes[i].x, p.nodes[j].x+p.nodes[j].w
		if name := p.nodes[i].socket; name != "" {
			if c := p.nodes[i].cpu; c.Vendor != "" {
				name += "  " + c.Vendor
			}
			p.s.say(x, p.top-22, end-x, sizeHead, true, inkSoft, name)
			p.s.path(inkSoft, 2, false, x, p.top-3, end, p.top-3)
		}
		i = j + 1
	}
}

// swatch is one entry of the legend.
type swatch struct {
	fill, line color.Color
	dashed     bool
	text       string
}

// swatches are the entries of the legend that occur in the picture.
func (p *picture) swatches() []swatch {
	all := []swatch{{fill: fillCPU, text: "NUMA node"}, {fill: fillRoot, text: "root port"}, {fill: fillSw, text: "PCIe switch"}, {fill: fillGPU, text: "GPU"}, {fill: fillNIC, text: "NIC"},
		{fill: fillDown, line: inkBad, text: "NIC with no active port"}, {fill: fillDown, line: inkLine, text: "unknown or unused"}, {line: inkLine, text: "PCIe link"}, {line: inkBad, text: "PCIe link below its best (speed or width)"},
		{line: inkIdle, text: "GPU link at lower speed: usual when idle"}, {line: inkNVLink, text: "NVLink"}, {line: inkC2C, text: "NVLink-C2C to the CPU"}}
	return slices.DeleteFunc(all, func(e swatch) bool {
		if e.fill != nil {
			return !slices.ContainsFunc(p.s.rects, func(r sceneRect) bool { return r.fill == e.fill && (e.line == nil || r.stroke == e.line) })
		}
		return !slices.ContainsFunc(p.s.lines, func(l sceneLine) bool { return l.color == e.line })
	})
}

func (p *picture) legend(y float64) float64 {
	entries := p.swatches()
	x := margin
	for _, e := range entries {
		w := 26 + 6 + textWidth(e.text, sizeText, false) + 18
		if x+w > p.s.width-margin {
			x, y = margin, y+lineHeight(sizeText)+6
		}
		if e.fill != nil {
			stroke := e.line
			if stroke == nil {
				stroke = inkLine
			}
			p.s.rect(x, y+1, 26, 14, e.fill, stroke, 1.5)
		} else {
			p.s.path(e.line, 3, e.dashed, x, y+8, x+26, y+8)
		}
		p.s.say(x+32, y, w, sizeText, false, inkText, e.text)
		x += w
	}
	return y + lineHeight(sizeText) + 6
}

// noteText is a note without its place where that is the whole input.
func noteText(n Note, source string) string {
	if n.Where == "" || n.Where == source {
		return n.Text
	}
	return n.Where + ": " + n.Text
}

const mostNotes = 6 // in a picture; all of them are in the text

func (p *picture) notes(y float64) float64 {
	wide := p.s.width - 2*margin
	for i, n := range p.g.Notes {
		if i == mostNotes {
			p.s.say(margin, y, wide, sizeText, false, inkSoft, fmt.Sprintf("and %s more", count(len(p.g.Notes)-i, "note")))
			return y + lineHeight(sizeText)
		}
		c := inkSoft
		if slices.Contains([]string{"link-degraded", "nvlink-down", "nvlink-uneven"}, n.Code) {
			c = inkBad
		}
		for _, line := range wrapText(noteText(n, p.g.Source), sizeText, false, wide, 2) {
			p.s.say(margin, y, wide, sizeText, false, c, line)
			y += lineHeight(sizeText)
		}
	}
	return y
}
