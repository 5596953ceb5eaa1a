package topo

import (
	"bufio"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// WriteXML writes a graph as NCCL_TOPO_FILE takes it. What is unknown is left out, so that NCCL completes it from the machine, except where it only fails: see
// linkAttrs. A graph with all bridges is brought into NCCL's form, one bridge a switch.
func (g *Graph) WriteXML(w io.Writer) error {
	if len(g.CPUs) == 0 {
		return errors.New("no NUMA node is known, and NCCL's XML hangs everything below one: nothing to write")
	}
	out := &xmlWriter{w: bufio.NewWriter(w), g: g, tree: newTree(g)}
	out.sys = &ncclSystem{g: g, tree: out.tree}
	out.tag("system", []string{"version", "1"}, nil, func() {
		for i := range g.CPUs {
			out.cpu(i)
		}
	})
	return out.w.Flush()
}

type xmlWriter struct {
	w      *bufio.Writer
	g      *Graph
	tree   *tree
	sys    *ncclSystem
	indent int
}

// tag writes an element with attributes as pairs; pairs with an empty value are left out; extra, in the order of its names, is not.
func (x *xmlWriter) tag(name string, pairs []string, extra map[string]string, inside func()) {
	pad := strings.Repeat("  ", x.indent)
	x.w.WriteString(pad + "<" + name)
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			x.attr(pairs[i], pairs[i+1])
		}
	}
	for _, k := range slices.Sorted(maps.Keys(extra)) {
		x.attr(k, extra[k])
	}
	if inside == nil {
		x.w.WriteString("/>\n")
		return
	}
	x.w.WriteString(">\n")
	x.indent++
	inside()
	x.indent--
	x.w.WriteString(pad + "</" + name + ">\n")
}

func (x *xmlWriter) attr(key, value string) {
	x.w.WriteString(" " + key + `="`)
	_ = xml.EscapeText(x.w, []byte(value)) // the buffered writer keeps its error until Flush
	x.w.WriteString(`"`)
}

func text(v *int) string {
	if v == nil {
		return ""
	}
	return strconv.Itoa(*v)
}

func flagText(v *bool) string {
	switch {
	case v == nil:
		return ""
	case *v:
		return "1"
	}
	return "0"
}

func (x *xmlWriter) cpu(i int) {
	c := &x.g.CPUs[i]
	family := c.Family
	if family != nil && *family > 15 && c.Vendor == "AuthenticAMD" {
		v := 15 + (*family-15)<<4
		family = &v
	}
	mask := ""
	if cpus, err := parseCPUList(c.CPUs); err == nil && len(cpus) > 0 {
		mask = formatCPUMask(cpus)
	}
	pairs := []string{"host_hash", c.HostHash, "numaid", strconv.Itoa(c.NUMA), "affinity", mask, "arch", c.Arch, "vendor", c.Vendor, "familyid", text(family), "modelid", text(c.Model)}
	x.tag("cpu", pairs, c.Attrs, func() {
		for j := range x.g.PCI {
			if f := &x.g.PCI[j]; x.top(f) && x.cpuOf(f.NUMA) == i {
				x.pci(f)
			}
		}
		for j := range x.g.NICs {
			if n := &x.g.NICs[j]; n.BusID == "" && n.NUMA != nil && x.cpuOf(n.NUMA) == i {
				x.tag("nic", nil, nil, func() { x.net(n) })
			}
		}
	})
}

// cpuOf is the index of a NUMA node; what has none hangs at the first, as everything must hang somewhere.
func (x *xmlWriter) cpuOf(numa *int) int {
	for i := range x.g.CPUs {
		if numa != nil && x.g.CPUs[i].NUMA == *numa {
			return i
		}
	}
	return 0
}

// top says whether f hangs right below a CPU in NCCL's form, and is of use there.
func (x *xmlWriter) top(f *Function) bool { return x.wanted(f) && x.sys.upper(f) == nil }

// wanted leaves out ports that NCCL's form has not: in a full tree those are every other bridge.
func (x *xmlWriter) wanted(f *Function) bool {
	if x.g.Form == FormNCCL || f.Role == RoleGPU || f.Role == RoleNIC {
		return true
	}
	for i := range x.g.PCI {
		e := &x.g.PCI[i]
		if e.Role != RoleGPU && e.Role != RoleNIC {
			continue
		}
		for up, n := x.sys.upper(e), 0; up != nil && n < maxDepth; up, n = x.sys.upper(up), n+1 {
			if up == f {
				return true
			}
		}
	}
	return false
}

// linkAttrs are the attributes of f's link. NCCL completes them from /sys for GPUs and what is above them, not for NICs that the file names, and ends with an
// internal error when they are missing. Where /sys was read and has none, NCCL would find none: it writes an empty speed and no lanes then, and reckons with
// 16 lanes at its usual speed.
func (x *xmlWriter) linkAttrs(f *Function) map[string]string {
	out := map[string]string{}
	if x.g.Form == FormFull && f.Role != RoleGPU {
		out["link_speed"], out["link_width"] = "", "0"
	}
	if f.Link.MaxSpeed != nil {
		out["link_speed"] = formatSpeed(*f.Link.MaxSpeed)
	}
	if f.Link.MaxWidth != nil {
		out["link_width"] = text(f.Link.MaxWidth)
	}
	maps.Copy(out, f.Attrs)
	return out
}

func (x *xmlWriter) pci(f *Function) {
	pairs := []string{"busid", f.BusID, "class", f.Class, "vendor", f.Vendor, "device", f.Device, "subsystem_vendor", f.SubVendor, "subsystem_device", f.SubDevice}
	attrs := x.linkAttrs(f)
	var inside []func()
	for i := range x.g.GPUs {
		if p := &x.g.GPUs[i]; p.BusID == f.BusID && p.NVLinks != nil {
			inside = append(inside, func() { x.gpu(p) })
		}
	}
	var nets []*NIC
	for i := range x.g.NICs {
		if n := &x.g.NICs[i]; n.BusID == f.BusID && len(n.Ports) > 0 {
			nets = append(nets, n)
		}
	}
	if len(nets) > 0 {
		inside = append(inside, func() {
			x.tag("nic", nil, nil, func() {
				for _, n := range nets {
					x.net(n)
				}
			})
		})
	}
	for i := range x.g.PCI {
		if c := &x.g.PCI[i]; x.sys.upper(c) == f && x.wanted(c) {
			inside = append(inside, func() { x.pci(c) })
		}
	}
	for _, l := range x.g.Links {
		if l.A == f.BusID {
			inside = append(inside, func() { x.tag("pcilink", []string{"target", l.B}, nil, nil) })
		}
	}
	if len(inside) == 0 {
		x.tag("pci", pairs, attrs, nil)
		return
	}
	x.tag("pci", pairs, attrs, func() {
		for _, write := range inside {
			write()
		}
	})
}

func (x *xmlWriter) gpu(p *GPU) {
	pairs := []string{"dev", text(p.Index), "sm", text(p.SM), "rank", text(p.Rank), "gdr", flagText(p.GDR)}
	if len(p.NVLinks) == 0 && p.C2C == nil {
		x.tag("gpu", pairs, p.Attrs, nil)
		return
	}
	x.tag("gpu", pairs, p.Attrs, func() {
		for _, l := range p.NVLinks {
			class := tclassOf(l.Peer)
			if _, ok := l.Attrs["tclass"]; ok {
				class = ""
			}
			target := l.Target
			if target == "" && l.Peer == PeerSwitch {
				target = HiddenTarget // what NCCL writes itself of a switch that the machine hides
			}
			x.tag("nvlink", []string{"target", target, "count", strconv.Itoa(l.Count), "tclass", class}, l.Attrs, nil)
		}
		if p.C2C != nil {
			bw := ""
			if p.C2C.GBs != nil {
				bw = fmt.Sprintf("%.0f", *p.C2C.GBs*1000)
			}
			x.tag("c2c", []string{"bw", bw, "count", strconv.Itoa(p.C2C.Count)}, nil, nil)
		}
	})
}

func (x *xmlWriter) net(n *NIC) {
	for i := range n.Ports {
		p := &n.Ports[i]
		speed := ""
		if p.Gbps != nil {
			speed = fmt.Sprintf("%.0f", *p.Gbps*1000)
		}
		x.tag("net", []string{"name", n.Name, "dev", text(n.Index), "speed", speed, "port", text(p.Num), "guid", xmlGUID(n.GUID), "gdr", flagText(n.GDR)}, n.Attrs, nil)
	}
}

// xmlGUID turns the kernel's 946d:ae03:0050:709a into NCCL's 0x9a70500003ae6d94, which has the bytes the other way round.
func xmlGUID(guid string) string {
	b, err := hex.DecodeString(strings.ReplaceAll(guid, ":", ""))
	if err != nil || len(b) != 8 || !strings.Contains(guid, ":") {
		return guid
	}
	slices.Reverse(b)
	return "0x" + strings.TrimLeft(hex.EncodeToString(b[:7]), "0") + hex.EncodeToString(b[7:])
}
