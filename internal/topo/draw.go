package topo

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const drawWidth = 120

// Tree draws the PCIe tree below each NUMA node with the bandwidth of every link one way, at most 120 columns wide. Root ports and downstream ports are left out: a
// switch is one line.
func (g *Graph) Tree(w io.Writer) error {
	d := &drawing{g: g, tree: newTree(g), kids: map[string][]*Function{}}
	for i := range g.PCI {
		f := &g.PCI[i]
		if !d.shown(f) {
			continue
		}
		d.kids[d.over(f)] = append(d.kids[d.over(f)], f)
	}
	for i := range g.CPUs {
		d.cpu(&g.CPUs[i])
	}
	d.homeless()
	for _, n := range g.Notes {
		d.wrap("note: "+strings.TrimPrefix(n.Where+": "+n.Text, ": "), "      ")
	}
	_, err := io.WriteString(w, d.out.String())
	return err
}

type drawing struct {
	g    *Graph
	tree *tree
	kids map[string][]*Function // by the key of over
	out  strings.Builder
}

func (d *drawing) shown(f *Function) bool { return d.tree.upLink(f) }

// over is what a function is drawn below: a bridge, or its host bridge and NUMA node.
func (d *drawing) over(f *Function) string {
	top := f
	for _, up := range d.tree.above(f) {
		if d.shown(up) {
			return up.BusID
		}
		top = up
	}
	return d.home(top)
}

func (d *drawing) home(f *Function) string {
	numa := "?"
	if cpu := d.g.CPU(f.NUMA); cpu != nil {
		numa = strconv.Itoa(cpu.NUMA)
	}
	return "numa " + numa + " " + f.Root
}

func (d *drawing) line(prefix, text string) {
	s := strings.TrimRight(prefix+text, " ")
	if utf8.RuneCountInString(s) > drawWidth {
		s = string([]rune(s)[:drawWidth-1]) + "…"
	}
	d.out.WriteString(s + "\n")
}

func (d *drawing) wrap(text, indent string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && line != indent && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > drawWidth {
			d.line("", line)
			line = indent
		}
		if line != "" && line != indent {
			line += " "
		}
		line += word
	}
	d.line("", line)
}

func (d *drawing) cpu(c *CPU) {
	text := fmt.Sprintf("NUMA %d", c.NUMA)
	if c.NUMA < 0 {
		text = "no NUMA nodes"
	}
	if c.Socket != nil {
		text += fmt.Sprintf("  socket %d", *c.Socket)
	}
	if c.CPUs != "" {
		text += "  CPUs " + c.CPUs
	}
	d.line("", text+strings.TrimRight("  "+c.Vendor, " "))
	d.home1("numa " + strconv.Itoa(c.NUMA) + " ")
}

// home1 draws what hangs at one NUMA node, host bridge by host bridge.
func (d *drawing) home1(prefix string) {
	var roots []string
	for key := range d.kids {
		if strings.HasPrefix(key, prefix) {
			roots = append(roots, key)
		}
	}
	slices.Sort(roots)
	var bare []string
	for i := range d.g.NICs {
		if n := &d.g.NICs[i]; n.BusID == "" && n.NUMA != nil && prefix == "numa "+strconv.Itoa(*n.NUMA)+" " {
			bare = append(bare, d.nic(n))
		}
	}
	for i, key := range roots {
		branch, next := arms(i == len(roots)-1 && len(bare) == 0)
		root := strings.TrimPrefix(key, prefix)
		if root == "" { // NCCL's XML has no host bridges
			d.below(key, "", i < len(roots)-1 || len(bare) > 0)
			continue
		}
		d.line(branch, root)
		d.below(key, next, false)
	}
	for i, text := range bare {
		branch, _ := arms(i == len(bare)-1)
		d.line(branch, text)
	}
}

func arms(last bool) (branch, next string) {
	if last {
		return "└─ ", "   "
	}
	return "├─ ", "│  "
}

// below draws what hangs below a bridge; more: something else follows at this level.
func (d *drawing) below(key, prefix string, more bool) {
	kids := d.kids[key]
	if len(prefix) > 4*maxDepth {
		return
	}
	for i, f := range kids {
		branch, next := arms(i == len(kids)-1 && !more)
		d.line(prefix+branch, d.function(f))
		d.below(f.BusID, prefix+next, false)
	}
}

func (d *drawing) function(f *Function) string {
	link := f.Link.String()
	if v := f.Link.MaxGBs(); v != nil {
		link += fmt.Sprintf(" %.1f GB/s", *v)
	}
	var what []string
	for i := range d.g.GPUs {
		if d.g.GPUs[i].BusID == f.BusID {
			what = append(what, d.gpu(&d.g.GPUs[i]))
		}
	}
	for i := range d.g.NICs {
		if d.g.NICs[i].BusID == f.BusID {
			what = append(what, d.nic(&d.g.NICs[i]))
		}
	}
	if len(what) == 0 {
		name := string(f.Role)
		if f.Role == RoleUpstream || f.Role == RoleBridge {
			name = "switch"
		}
		what = []string{strings.TrimSpace(name + " " + strings.TrimPrefix(f.Vendor, "0x") + ":" + strings.TrimPrefix(f.Device, "0x"))}
		what[0] = strings.TrimSuffix(what[0], " :")
		if f.ACS.State == "on" {
			what = append(what, "ACS on: "+strings.Join(f.ACS.Enabled, " "))
		}
	}
	return f.BusID + "  " + strings.Join(what, ", ") + "  " + link
}

func (d *drawing) gpu(p *GPU) string {
	text := strings.TrimSpace(p.ID + " " + p.Name)
	total := 0
	var rate *float64
	for _, l := range p.NVLinks {
		total += l.Count
		rate = linkRate(l, p)
	}
	switch {
	case p.NVLinks == nil:
		text += ", NVLink unknown"
	case total > 0 && rate != nil:
		text += fmt.Sprintf(", %d NVLinks %g GB/s", total, round(*rate*float64(total), 0))
	case total > 0:
		text += fmt.Sprintf(", %d NVLinks", total)
	}
	if p.C2C != nil {
		text += ", C2C"
	}
	return text
}

func (d *drawing) nic(n *NIC) string {
	text := strings.TrimSpace(n.ID + " " + n.Name)
	if len(n.Netdevs) > 0 && n.Netdevs[0] != n.Name {
		text += " (" + strings.Join(n.Netdevs, " ") + ")"
	}
	for i := range n.Ports {
		p := &n.Ports[i]
		if p.Gbps != nil {
			text += fmt.Sprintf(" %g Gb/s", *p.Gbps)
		}
		text += strings.TrimRight(" "+p.LinkLayer, " ")
		if p.State != "" && p.State != "ACTIVE" {
			text += " " + p.State
		}
	}
	if n.Bond != "" {
		text += " in " + n.Bond
	}
	if n.PF != "" {
		text += " VF of " + n.PF
	}
	return text
}

// homeless draws what belongs to no NUMA node.
func (d *drawing) homeless() {
	if slices.ContainsFunc(mapKeys(d.kids), func(k string) bool { return strings.HasPrefix(k, "numa ? ") }) {
		d.line("", "NUMA node unknown")
		d.home1("numa ? ")
	}
	for i := range d.g.GPUs {
		if p := &d.g.GPUs[i]; d.tree.byID[p.BusID] == nil {
			d.line("", "place unknown: "+d.gpu(p))
		}
	}
	for i := range d.g.NICs {
		if n := &d.g.NICs[i]; d.tree.byID[n.BusID] == nil && (n.BusID != "" || n.NUMA == nil) {
			d.line("", "place unknown: "+d.nic(n))
		}
	}
}

func mapKeys[V any](m map[string]V) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	return out
}
