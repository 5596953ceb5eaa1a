package topo

import (
	"fmt"
	"image/color"
	"slices"
	"strings"
)

// The colours of a picture, light fills with dark text: those of Okabe and Ito, which colour-blind readers can tell apart, where lines must differ.
var (
	inkText   = color.RGBA{0x20, 0x20, 0x20, 0xff}
	inkSoft   = color.RGBA{0x60, 0x60, 0x60, 0xff}
	inkLine   = color.RGBA{0x90, 0x90, 0x90, 0xff}
	inkBad    = color.RGBA{0xc6, 0x1a, 0x1a, 0xff}
	inkIdle   = color.RGBA{0xa0, 0x60, 0x00, 0xff}
	inkNVLink = color.RGBA{0x7a, 0x3e, 0x9d, 0xff}
	inkC2C    = color.RGBA{0x00, 0x72, 0xb2, 0xff}
	fillGPU   = color.RGBA{0xdc, 0xf0, 0xd8, 0xff}
	fillNIC   = color.RGBA{0xd9, 0xe8, 0xf8, 0xff}
	fillDown  = color.RGBA{0xec, 0xec, 0xec, 0xff}
	fillSw    = color.RGBA{0xf4, 0xec, 0xd8, 0xff}
	fillRoot  = color.RGBA{0xf7, 0xf7, 0xf7, 0xff}
	fillCPU   = color.RGBA{0xff, 0xe6, 0xb3, 0xff}
	fillNVSw  = color.RGBA{0xe8, 0xdc, 0xf2, 0xff}
	fillFrame = color.RGBA{0xfb, 0xfb, 0xf8, 0xff}
)

// Sizes in pixels.
const (
	sizeText  = 12.5
	sizeHead  = 14.0
	sizeTitle = 21.0
	padBox    = 5.0
	indent    = 14.0
	itemGap   = 7.0
)

// words is one line of text with its look.
type words struct {
	s     string
	bold  bool
	color color.Color
}

// item is one box of the tree, with the link above it.
type item struct {
	level  int
	parent int  // item of the same block; -1: the host bridge
	only   bool // the one thing below its parent: it stands right below it
	label  []words
	text   []words
	fill   color.Color
	stroke color.Color
	link   color.Color // of the line to the parent
	gpu    *GPU
}

// block is a root port, or what hangs right at a host bridge, with all below it: it stays together.
type block []item

// linkWords describes a link: red where it is worse than both ends can do, amber where a GPU has only lowered its speed, as idle ones do.
func linkWords(l PCILink, gpu bool) (w words, line color.Color) {
	w, line = words{s: l.String(), color: inkSoft}, inkLine
	if w.s == "unknown" {
		return words{s: "link unknown", color: inkSoft}, line
	}
	switch {
	case l.Width != nil && l.MaxWidth != nil && *l.Width < *l.MaxWidth:
		w.color, line = inkBad, inkBad
	case l.Speed != nil && l.MaxSpeed != nil && *l.Speed < *l.MaxSpeed && gpu:
		w.color, line = inkIdle, inkIdle
	case l.Speed != nil && l.MaxSpeed != nil && *l.Speed < *l.MaxSpeed:
		w.color, line = inkBad, inkBad
	}
	return w, line
}

// blocks makes the blocks of a NUMA node, in the order of the bus.
func (p *picture) blocks(roots []*Function) (out []block) {
	for _, f := range roots {
		if f.Role == RoleRootPort && len(p.kids[f.BusID]) == 0 {
			continue
		}
		var b block
		p.add(&b, []*Function{f}, 0, -1)
		out = append(out, b)
	}
	return out
}

// add puts a function and all below it on a block; several functions are one box.
func (p *picture) add(b *block, fs []*Function, level, parent int) {
	if level > maxDepth {
		return
	}
	f := fs[0]
	kids := p.below(f)
	chain := []*Function{f}
	for isSwitch(f) && len(kids) == 1 && isSwitch(kids[0]) { // switches in a row are one box
		f = kids[0]
		chain = append(chain, f)
		kids = p.below(f)
	}
	*b = append(*b, p.item(fs, chain, level, parent))
	me := len(*b) - 1
	for _, group := range groups(kids) {
		if len(kids) == len(group) {
			p.add(b, group, level, me)
			(*b)[me+1].only = true
			break
		}
		p.add(b, group, level+1, me)
	}
}

func isSwitch(f *Function) bool { return f.Role == RoleUpstream || f.Role == RoleBridge }

// below lists what a picture shows below a bridge. Downstream ports are left out: the link below them belongs to the device.
func (p *picture) below(f *Function) (out []*Function) {
	for _, k := range p.kids[f.BusID] {
		if k.Role == RoleDownstream || k.Role == RoleBridge && p.g.Form == FormFull && !p.tree.upLink(k) {
			out = append(out, p.below(k)...)
			continue
		}
		out = append(out, k)
	}
	return out
}

// groups joins NVSwitches, and virtual functions of one card, that stand side by side.
func groups(fs []*Function) (out [][]*Function) {
	for _, f := range fs {
		if n := len(out); n > 0 && alike(out[n-1][0], f) {
			out[n-1] = append(out[n-1], f)
			continue
		}
		out = append(out, []*Function{f})
	}
	return out
}

func alike(a, b *Function) bool {
	return a.Role == b.Role && a.Link.String() == b.Link.String() && (a.Role == RoleNVSwitch || a.PhysFn != "" && a.PhysFn == b.PhysFn && a.Role == RoleNIC)
}

// item makes the box of one function, of several alike, or of a chain of switches.
func (p *picture) item(fs, chain []*Function, level, parent int) item {
	f := fs[0]
	it := item{level: level, parent: parent, stroke: inkLine, link: inkLine}
	if level == 0 && parent < 0 && f.Root != "" {
		it.label = append(it.label, words{s: f.Root, color: inkSoft})
	}
	if p.tree.upLink(f) {
		label, line := linkWords(f.Link, f.Role == RoleGPU)
		now, best, _ := strings.Cut(label.s, " (") // the best on a line of its own: columns are narrow
		it.label, it.link = append(it.label, words{s: now, color: label.color}), line
		if best != "" && line != color.Color(inkLine) {
			it.label = append(it.label, words{s: "(" + best, color: label.color})
		}
	}
	id := words{s: f.BusID, color: inkSoft}
	gpu := gpuAt(p.g, f.BusID)
	nics := p.nicsAt(f.BusID)
	switch {
	case gpu >= 0:
		it.gpu, it.fill = &p.g.GPUs[gpu], fillGPU
		it.text = gpuWords(it.gpu, id)
	case len(fs) > 1 && f.Role == RoleNIC:
		it.fill, it.text = fillNIC, p.functionsWords(fs)
	case len(nics) > 0:
		it.fill = fillNIC
		for i, n := range nics {
			it.text = append(it.text, nicWords(n, i == 0)...)
			if n.down() {
				it.fill, it.stroke = fillDown, inkBad
			}
		}
	case f.Role == RoleNVSwitch:
		it.fill, it.text = fillNVSw, []words{{fmt.Sprintf("%d × NVSwitch", len(fs)), true, inkText}, {rangeText(fs), false, inkSoft}}
		if len(fs) == 1 {
			it.text = []words{{"NVSwitch", true, inkText}, id}
		}
	case f.Role == RoleRootPort:
		it.fill, it.text = fillRoot, []words{{"root port", false, inkText}, id}
	case isSwitch(f):
		it.fill, it.text = fillSw, switchWords(chain)
	default:
		it.fill, it.text = fillDown, otherWords(f)
	}
	it.text = append(it.text, acsWords(f)...)
	return it
}

func (p *picture) nicsAt(busID string) (out []*NIC) {
	for i := range p.g.NICs {
		if n := &p.g.NICs[i]; n.BusID != "" && n.BusID == busID {
			out = append(out, n)
		}
	}
	return out
}

func rangeText(fs []*Function) string { return fs[0].BusID + " … " + fs[len(fs)-1].BusID }

// functionsWords describes several virtual functions of one card.
func (p *picture) functionsWords(fs []*Function) []words {
	var names []string
	for _, f := range fs {
		for _, n := range p.nicsAt(f.BusID) {
			names = append(names, n.Name)
		}
	}
	out := []words{{fmt.Sprintf("%d virtual functions", len(fs)), true, inkText}, {rangeText(fs), false, inkSoft}}
	if len(names) > 0 {
		out = append(out, words{shorten(names), false, inkText})
	}
	return append(out, words{"of " + fs[0].PhysFn, false, inkSoft})
}

func switchWords(chain []*Function) []words {
	head := "switch"
	if id := strings.TrimPrefix(chain[0].Vendor, "0x"); id != "" {
		head += " " + id + ":" + strings.TrimPrefix(chain[0].Device, "0x")
	}
	if len(chain) > 1 {
		head = fmt.Sprintf("%d switches", len(chain))
	}
	out := []words{{head, false, inkText}}
	for i, f := range chain {
		w := words{f.BusID, false, inkSoft}
		if i > 0 {
			link, _ := linkWords(f.Link, false)
			w.s, w.color = f.BusID+" "+link.s, link.color
		}
		out = append(out, w)
	}
	return out
}

func acsWords(f *Function) []words {
	if f.ACS.State != "on" {
		return nil
	}
	return []words{{"ACS on: " + strings.Join(f.ACS.Enabled, " "), false, inkBad}}
}

func otherWords(f *Function) []words {
	head := map[Role]string{RoleNIC: "network card, unused", RoleOther: "device"}[f.Role]
	if f.PhysFn != "" {
		head = "virtual function"
	}
	out := []words{{first(head, string(f.Role)), false, inkText}, {f.BusID, false, inkSoft}}
	if f.Vendor != "" {
		out[0].s += " " + strings.TrimPrefix(f.Vendor, "0x") + ":" + strings.TrimPrefix(f.Device, "0x")
	}
	return out
}

func gpuWords(p *GPU, id words) []words {
	out := []words{{p.ID, true, inkText}}
	if name := strings.TrimPrefix(p.Name, "NVIDIA "); name != "" {
		out = append(out, words{name, false, inkText})
	}
	if id.s != "" {
		out = append(out, id)
	}
	total := 0
	for _, l := range p.NVLinks {
		total += l.Count
	}
	switch {
	case p.NVLinks == nil:
		out = append(out, words{"NVLink unknown", false, inkSoft})
	case total > 0:
		out = append(out, words{fmt.Sprintf("%d NVLinks", total), false, inkNVLink})
	}
	if p.NVLinksDown != nil && *p.NVLinksDown > 0 {
		out = append(out, words{fmt.Sprintf("%d NVLinks down", *p.NVLinksDown), false, inkBad})
	}
	if c := p.C2C; c != nil {
		text := "C2C to the CPU"
		if c.GBs != nil {
			text = fmt.Sprintf("C2C %g GB/s", round(*c.GBs*float64(c.Count), 0))
		}
		out = append(out, words{text, false, inkC2C})
	}
	if p.MemNUMA != nil {
		out = append(out, words{fmt.Sprintf("memory is NUMA %d", *p.MemNUMA), false, inkSoft})
	}
	if p.MIG != nil && *p.MIG {
		out = append(out, words{"MIG on", false, inkIdle})
	}
	return out
}

// nicWords describes a NIC: name, interfaces, address, ports.
func nicWords(n *NIC, withID bool) []words {
	head := n.ID
	if n.Name != "" {
		head = n.Name
	}
	out := []words{{head, true, inkText}}
	if len(n.Netdevs) > 0 && !slices.Equal(n.Netdevs, []string{n.Name}) {
		out = append(out, words{strings.Join(n.Netdevs, " "), false, inkText})
	}
	if withID && n.BusID != "" {
		out = append(out, words{n.BusID, false, inkSoft})
	}
	for i := range n.Ports {
		out = append(out, portWords(n, &n.Ports[i], len(n.Ports) > 1)...)
	}
	if n.Bond != "" {
		out = append(out, words{"in " + n.Bond, false, inkText})
	}
	if n.PF != "" {
		out = append(out, words{"VF of " + n.PF, false, inkSoft})
	}
	return out
}

func portWords(n *NIC, p *Port, several bool) (out []words) {
	text := ""
	if several && p.Num != nil {
		text = fmt.Sprintf("port %d ", *p.Num)
	}
	if p.Gbps != nil {
		text += fmt.Sprintf("%g Gb/s ", *p.Gbps)
	}
	text += map[string]string{"InfiniBand": "IB", "Ethernet": "Eth"}[p.LinkLayer]
	if text = strings.TrimSpace(text); text != "" {
		out = append(out, words{text, false, inkText})
	}
	switch {
	case p.State != "" && p.State != "ACTIVE":
		out = append(out, words{p.State, true, inkBad})
	case n.RDMA != nil && *n.RDMA && p.State == "ACTIVE":
		out = append(out, words{p.State, false, inkText})
	case n.RDMA != nil && !*n.RDMA:
		out = append(out, words{strings.TrimSuffix("no RDMA, "+map[string]string{"ACTIVE": "up"}[p.State], ", "), false, inkSoft})
	}
	return out
}
