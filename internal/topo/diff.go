package topo

import (
	"fmt"
	"slices"
	"strings"
)

// Diff says in words in what two nodes differ that should be alike: devices, their places, links, ports, and the words of the matrices. Nothing for what one of them does
// not know. Serial numbers, GUIDs and addresses are not compared.
func Diff(a, b *Graph) []string {
	d := &differ{a: a, b: b}
	if a.Source == b.Source {
		d.nameA, d.nameB = "the first", "the second"
	} else {
		d.nameA, d.nameB = a.Source, b.Source
	}
	d.count("GPUs", len(a.GPUs), len(b.GPUs))
	d.count("NICs", len(a.NICs), len(b.NICs))
	d.count("NUMA nodes", len(a.CPUs), len(b.CPUs))
	d.count("NVSwitches", len(a.NVSwitches), len(b.NVSwitches))
	d.gpus()
	d.nics()
	d.cpus()
	d.links()
	d.paths()
	return d.out
}

type differ struct {
	a, b         *Graph
	nameA, nameB string
	out          []string
}

func (d *differ) say(format string, args ...any) {
	if len(d.out) < 1000 {
		d.out = append(d.out, fmt.Sprintf(format, args...))
	}
}

func (d *differ) count(what string, x, y int) {
	if x != y {
		d.say("%s: %d in %s, %d in %s", what, x, d.nameA, y, d.nameB)
	}
}

// differ compares two values of one property; empty is unknown.
func (d *differ) differ(thing, what, x, y string) {
	if x != y && x != "" && y != "" {
		d.say("%s: %s %s in %s, %s in %s", thing, what, x, d.nameA, y, d.nameB)
	}
}

func show[T any](v *T) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(*v)
}

func (d *differ) gpus() {
	for i := range d.a.GPUs {
		x := &d.a.GPUs[i]
		j := slices.IndexFunc(d.b.GPUs, func(p GPU) bool { return p.ID == x.ID })
		if j < 0 {
			d.say("%s is only in %s", x.ID, d.nameA)
			continue
		}
		y := &d.b.GPUs[j]
		d.differ(x.ID, "model", x.Name, y.Name)
		d.differ(x.ID, "SM", show(x.SM), show(y.SM))
		d.differ(x.ID, "bus id", x.BusID, y.BusID)
		d.differ(x.ID, "NUMA node", show(x.NUMA), show(y.NUMA))
		d.differ(x.ID, "CPUs near it", x.CPUs, y.CPUs)
		d.differ(x.ID, "MIG", show(x.MIG), show(y.MIG))
		d.differ(x.ID, "NVLinks", nvlinkText(x), nvlinkText(y))
		d.differ(x.ID, "driver", x.Driver, y.Driver)
	}
	for i := range d.b.GPUs {
		if id := d.b.GPUs[i].ID; !slices.ContainsFunc(d.a.GPUs, func(p GPU) bool { return p.ID == id }) {
			d.say("%s is only in %s", id, d.nameB)
		}
	}
}

// nvlinkText counts links by kind of peer; empty: unknown.
func nvlinkText(p *GPU) string {
	if p.NVLinks == nil {
		return ""
	}
	counts := map[Peer]int{}
	for _, l := range p.NVLinks {
		counts[l.Peer] += l.Count
	}
	var parts []string
	for _, peer := range []Peer{PeerGPU, PeerSwitch, PeerCPU, PeerUnknown} {
		if counts[peer] > 0 {
			parts = append(parts, strings.TrimRight(fmt.Sprintf("%d to %s", counts[peer], first(string(peer), "unknown peers")), " "))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, " and ")
}

func nicKey(n *NIC) string { return first(n.Name, n.BusID) }

func (d *differ) nics() {
	for i := range d.a.NICs {
		x := &d.a.NICs[i]
		j := slices.IndexFunc(d.b.NICs, func(n NIC) bool { return nicKey(&n) == nicKey(x) })
		if j < 0 {
			d.say("NIC %s is only in %s", nicKey(x), d.nameA)
			continue
		}
		y, name := &d.b.NICs[j], nicKey(x)
		d.differ(name, "bus id", x.BusID, y.BusID)
		d.differ(name, "NUMA node", show(x.NUMA), show(y.NUMA))
		d.differ(name, "bond", first(x.Bond, "none"), first(y.Bond, "none"))
		d.differ(name, "number of virtual functions", show(x.VFs), show(y.VFs))
		for k := range min(len(x.Ports), len(y.Ports)) {
			p, q := &x.Ports[k], &y.Ports[k]
			port := fmt.Sprintf("%s port %s", name, first(show(p.Num), fmt.Sprint(k+1)))
			d.differ(port, "state", p.State, q.State)
			d.differ(port, "link layer", p.LinkLayer, q.LinkLayer)
			d.differ(port, "rate in Gb/s", show(p.Gbps), show(q.Gbps))
		}
	}
	for i := range d.b.NICs {
		if key := nicKey(&d.b.NICs[i]); !slices.ContainsFunc(d.a.NICs, func(n NIC) bool { return nicKey(&n) == key }) {
			d.say("NIC %s is only in %s", key, d.nameB)
		}
	}
}

func (d *differ) cpus() {
	for i := range d.a.CPUs {
		x := &d.a.CPUs[i]
		y := d.b.CPU(&x.NUMA)
		if y == nil {
			continue
		}
		thing := fmt.Sprintf("NUMA node %d", x.NUMA)
		d.differ(thing, "CPUs", x.CPUs, y.CPUs)
		d.differ(thing, "vendor", x.Vendor, y.Vendor)
		d.differ(thing, "model", show(x.Model), show(y.Model))
	}
}

// links compares PCIe links of functions at the same address.
func (d *differ) links() {
	for i := range d.a.PCI {
		x := &d.a.PCI[i]
		y := d.b.Function(x.BusID)
		if y == nil || x.Role != y.Role {
			continue
		}
		d.differ(x.BusID, "PCIe width", show(x.Link.Width), show(y.Link.Width))
		d.differ(x.BusID, "best PCIe width", show(x.Link.MaxWidth), show(y.Link.MaxWidth))
		d.differ(x.BusID, "best PCIe speed in GT/s", show(x.Link.MaxSpeed), show(y.Link.MaxSpeed))
		if x.Role != RoleGPU { // an idle GPU lowers it
			d.differ(x.BusID, "PCIe speed in GT/s", show(x.Link.Speed), show(y.Link.Speed))
		}
		if x.ACS.State != "cannot tell" && y.ACS.State != "cannot tell" {
			d.differ(x.BusID, "ACS", strings.TrimSpace(x.ACS.State+" "+strings.Join(x.ACS.Enabled, " ")), strings.TrimSpace(y.ACS.State+" "+strings.Join(y.ACS.Enabled, " ")))
		}
	}
}

// paths compares the words between devices that both have.
func (d *differ) paths() {
	a, b := d.a.Matrix(), d.b.Matrix()
	a.Source, b.Source = d.nameA, d.nameB
	for _, line := range a.Compare(b) {
		if !strings.Contains(line, " is only in ") && !strings.Contains(line, SMIUnknown) {
			d.say("%s", line)
		}
	}
}
