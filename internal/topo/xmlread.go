package topo

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Limits of what a reader takes: no machine has more.
const (
	maxXMLNodes = 1 << 13
	maxNotes    = 200
)

// ErrGraphFile is returned for a NCCL_GRAPH_FILE, which holds the rings and trees that NCCL chose, not the machine.
var ErrGraphFile = errors.New("is a NCCL graph file (rings and trees that NCCL chose, NCCL_GRAPH_DUMP_FILE); the topology is what NCCL_TOPO_DUMP_FILE writes")

// ErrNoTopology is returned for an input that has no topology in it.
var ErrNoTopology = errors.New("no topology found: neither NCCL's XML, nor a matrix of nvidia-smi topo, nor lspci -tv")

// element is an open tag.
type element struct {
	name string
	line int
	pci  string // bus id, of a pci tag
	gpu  int    // index into Graph.GPUs of a gpu tag, else -1
}

type xmlReader struct {
	dec   *xml.Decoder
	name  string
	g     *Graph
	stack []element
	seen  map[string]bool // bus ids
	count int
	cpu   int  // index into Graph.CPUs, -1 outside
	other bool // inside a <cpu> of another host
	hosts bool // there are others
}

// readXML reads NCCL's topology XML. Fragments, as people paste them, are read as far as they go.
func readXML(r io.Reader, name string) (*Graph, error) {
	x := &xmlReader{dec: xml.NewDecoder(r), name: name, seen: map[string]bool{}, cpu: -1,
		g: &Graph{Source: name, Form: FormNCCL}}
	x.dec.Strict = false
	for {
		tok, err := x.dec.RawToken()
		if err == io.EOF {
			break
		}
		if err != nil {
			x.note("xml-damaged", "reading stopped here: "+strings.TrimPrefix(err.Error(), "XML syntax error on "))
			break
		}
		switch t := tok.(type) {
		case xml.StartElement:
			if t.Name.Local == "graphs" || t.Name.Local == "graph" {
				return nil, fmt.Errorf("%s:%d: %w", name, x.line(), ErrGraphFile)
			}
			if x.count++; x.count > maxXMLNodes {
				return nil, fmt.Errorf("%s: more than %d tags: this is no topology of one node", name, maxXMLNodes)
			}
			x.start(t)
		case xml.EndElement:
			x.end(t.Name.Local)
		}
	}
	if len(x.g.PCI)+len(x.g.GPUs)+len(x.g.NICs)+len(x.g.CPUs) == 0 {
		return nil, fmt.Errorf("%s: %w", name, ErrNoTopology)
	}
	for _, e := range x.stack {
		x.note("xml-open", fmt.Sprintf("<%s> of line %d is not closed: the file is cut", e.name, e.line))
	}
	x.finish()
	return x.g, nil
}

func (x *xmlReader) line() int {
	line, _ := x.dec.InputPos()
	return line
}

func (x *xmlReader) note(code, text string) {
	if len(x.g.Notes) < maxNotes {
		x.g.note(code, where(x.name, x.line()), text)
	}
}

func (x *xmlReader) end(name string) {
	if x.other && name != "cpu" {
		return
	}
	i := len(x.stack) - 1
	for i >= 0 && x.stack[i].name != name {
		i--
	}
	if i < 0 {
		x.note("xml-unopened", fmt.Sprintf("</%s> closes nothing: the beginning is missing", name))
		return
	}
	for _, e := range x.stack[i+1:] {
		x.note("xml-open", fmt.Sprintf("<%s> of line %d is not closed", e.name, e.line))
	}
	x.stack = x.stack[:i]
	if name == "cpu" {
		x.cpu, x.other = -1, false
	}
}

// attrs takes attributes out as they are understood; what remains is kept as it is.
type attrs map[string]string

func (a attrs) take(key string) string {
	v := a[key]
	delete(a, key)
	return v
}

// number takes a decimal or 0x number; one that is absent or no number is nil, and the latter stays as text.
func (a attrs) number(key string) *int {
	s, ok := a[key]
	if !ok {
		return nil
	}
	v, err := strconv.ParseInt(strings.TrimSpace(s), 0, 32)
	if err != nil {
		return nil
	}
	delete(a, key)
	n := int(v)
	return &n
}

func (a attrs) flag(key string) *bool {
	v := a[key]
	if v != "0" && v != "1" {
		return nil
	}
	delete(a, key)
	yes := v == "1"
	return &yes
}

func (a attrs) rest() map[string]string {
	if len(a) == 0 {
		return nil
	}
	return a
}

func (x *xmlReader) start(t xml.StartElement) {
	a := attrs{}
	for _, at := range t.Attr {
		if len(at.Value) > 4096 || !plainName(at.Name.Local) {
			x.note("xml-attribute", "an attribute of <"+t.Name.Local+"> is not one of NCCL's")
			continue
		}
		a[at.Name.Local] = plainText(at.Value)
	}
	if x.other && t.Name.Local != "cpu" {
		return
	}
	e := element{name: t.Name.Local, line: x.line(), gpu: -1}
	switch t.Name.Local {
	case "system":
	case "cpu":
		x.startCPU(a)
	case "pci":
		e.pci = x.startPCI(a)
	case "gpu":
		e.gpu = x.startGPU(a)
	case "nic":
	case "net":
		x.startNet(a)
	case "nvlink":
		x.startNVLink(a)
	case "c2c":
		x.startC2C(a)
	case "pcilink":
		x.startPeerLink(a)
	default:
		x.note("xml-tag", "<"+plainText(t.Name.Local)+"> is not read")
	}
	if len(x.stack) < 4*maxDepth {
		x.stack = append(x.stack, e)
	}
}

func plainName(s string) bool {
	return s != "" && len(s) < 64 && !strings.ContainsFunc(s, func(r rune) bool {
		return r != '_' && r != '-' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9')
	}) && strings.IndexByte("0123456789-", s[0]) < 0
}

// plainText makes white space what an XML writer can give back.
func plainText(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\r' || r == '\t':
			return ' '
		case r < ' ' || r == 0x7f || r == 0xFFFD || r == 0xFFFE || r == 0xFFFF:
			return -1
		}
		return r
	}, s)
}

func (x *xmlReader) startCPU(a attrs) {
	c := CPU{NUMA: -1, HostHash: a.take("host_hash"), Arch: a.take("arch"), Vendor: a.take("vendor"), Family: a.number("familyid"), Model: a.number("modelid")}
	if numa := a.number("numaid"); numa != nil {
		c.NUMA = *numa
	} else {
		x.note("xml-no-numaid", "<cpu> without numaid")
	}
	if c.Vendor == "AuthenticAMD" && c.Family != nil && *c.Family >= 0x8f {
		real := 15 + *c.Family>>4 // NCCL writes 15 + (extended family << 4): 143 is family 23
		c.Family = &real
	}
	if mask, ok := a["affinity"]; ok {
		cpus, err := parseCPUMask(mask)
		if err != nil {
			x.note("xml-affinity", "affinity: "+err.Error())
		} else {
			x.checkMask(mask)
			c.CPUs = formatCPUList(cpus)
			delete(a, "affinity")
		}
	}
	c.Attrs = a.rest()
	for i := range x.g.CPUs {
		if x.g.CPUs[i].NUMA == c.NUMA && x.g.CPUs[i].HostHash == c.HostHash {
			x.note("xml-twice", fmt.Sprintf("<cpu numaid=%q> occurs twice; the first counts", strconv.Itoa(c.NUMA)))
			x.cpu = i
			return
		}
		if x.g.CPUs[i].HostHash != c.HostHash {
			if !x.hosts {
				x.note("xml-hosts", "the file has several hosts (one NVLink domain over many nodes); only the first is read")
			}
			x.hosts, x.other = true, true
			return
		}
	}
	x.g.CPUs = append(x.g.CPUs, c)
	x.cpu = len(x.g.CPUs) - 1
}

// checkMask finds groups that lost a digit, which shifts the CPUs meant.
func (x *xmlReader) checkMask(mask string) {
	for i, g := range strings.Split(mask, ",") {
		if len(g) != 8 && (i > 0 || strings.Contains(mask, ",") && len(g) == 7) {
			x.note("xml-affinity", fmt.Sprintf("affinity: the group %q has %d digits, not 8: are these the CPUs that were meant?", g, len(g)))
			return
		}
	}
}

// parent is the pci tag around, and the NUMA node.
func (x *xmlReader) parent() (busID string, numa *int) {
	for i := len(x.stack) - 1; i >= 0 && busID == ""; i-- {
		busID = x.stack[i].pci
	}
	if x.cpu >= 0 {
		n := x.g.CPUs[x.cpu].NUMA
		numa = &n
	}
	return busID, numa
}

func (x *xmlReader) startPCI(a attrs) string {
	text := a.take("busid")
	id, ok := BusID(text)
	if !ok {
		x.note("xml-busid", fmt.Sprintf("busid=%q is not a PCI address such as 0000:07:00.0: left out", text))
		return ""
	}
	if x.seen[id] {
		x.note("xml-twice", id+" occurs twice; the first counts")
		return id
	}
	x.seen[id] = true
	f := Function{BusID: id, Class: a.take("class"), Vendor: a.take("vendor"), Device: a.take("device"), SubVendor: a.take("subsystem_vendor"), SubDevice: a.take("subsystem_device")}
	f.Parent, f.NUMA = x.parent()
	if f.Link.MaxSpeed = parseSpeed(a["link_speed"]); f.Link.MaxSpeed != nil {
		delete(a, "link_speed")
	}
	if f.Link.MaxWidth = parseWidth(a["link_width"]); f.Link.MaxWidth != nil {
		delete(a, "link_width")
	}
	f.Role = roleOf(f.Class, f.Vendor)
	f.Attrs = a.rest()
	x.g.PCI = append(x.g.PCI, f)
	switch f.Role {
	case RoleGPU:
		x.g.GPUs = append(x.g.GPUs, GPU{BusID: id, NUMA: f.NUMA})
	case RoleNVSwitch:
		x.g.NVSwitches = append(x.g.NVSwitches, NVSwitch{BusID: id})
	}
	return id
}

// roleOf goes by class, as NCCL does.
func roleOf(class, vendor string) Role {
	c := strings.TrimPrefix(strings.ToLower(class), "0x")
	switch {
	case strings.HasPrefix(c, "0680") && strings.TrimPrefix(vendor, "0x") == "10de", c == "068000" && vendor == "":
		return RoleNVSwitch
	case strings.HasPrefix(c, "0604"):
		return RoleBridge
	case strings.HasPrefix(c, "03"):
		return RoleGPU
	case strings.HasPrefix(c, "02"):
		return RoleNIC
	}
	return RoleOther
}

func (x *xmlReader) startGPU(a attrs) int {
	busID, numa := x.parent()
	i := gpuAt(x.g, busID)
	if i < 0 {
		if busID == "" {
			x.note("xml-gpu-alone", "<gpu> stands outside a <pci>: its bus id is not known")
		}
		x.g.GPUs = append(x.g.GPUs, GPU{BusID: busID, NUMA: numa})
		i = len(x.g.GPUs) - 1
	} else if x.g.GPUs[i].NVLinks != nil {
		x.note("xml-twice", busID+" has two <gpu>; the first counts")
		return -1
	}
	p := &x.g.GPUs[i]
	p.Index, p.SM, p.Rank, p.GDR = a.number("dev"), a.number("sm"), a.number("rank"), a.flag("gdr")
	p.NVLinks = []NVLink{} // a dump lists all links there are
	p.Attrs = a.rest()
	return i
}

// gpu is the gpu tag around; nil: there is none.
func (x *xmlReader) gpu() *GPU {
	for i := len(x.stack) - 1; i >= 0; i-- {
		if x.stack[i].name == "gpu" {
			if x.stack[i].gpu < 0 {
				return nil
			}
			return &x.g.GPUs[x.stack[i].gpu]
		}
	}
	return nil
}

func (x *xmlReader) startNVLink(a attrs) {
	p := x.gpu()
	if p == nil {
		x.note("xml-nvlink-alone", "<nvlink> stands outside a <gpu>: left out")
		return
	}
	count := a.number("count")
	if count == nil || *count < 0 || *count > 1000 {
		x.note("xml-nvlink-count", "<nvlink> without a count: left out")
		return
	}
	l := NVLink{Count: *count, Target: strings.ToLower(a.take("target"))}
	if id, ok := BusID(l.Target); ok {
		l.Target = id
	}
	if class, ok := a["tclass"]; ok {
		l.Peer = peerOf(class)
		if tclassOf(l.Peer) == class {
			delete(a, "tclass")
		}
	}
	l.Attrs = a.rest()
	p.NVLinks = append(p.NVLinks, l)
}

func peerOf(class string) Peer {
	switch c := strings.TrimPrefix(strings.ToLower(class), "0x"); {
	case strings.HasPrefix(c, "068001"):
		return PeerCPU
	case strings.HasPrefix(c, "0680"):
		return PeerSwitch
	case strings.HasPrefix(c, "03"):
		return PeerGPU
	}
	return PeerUnknown
}

// tclassOf is the class that an XML has for a peer.
func tclassOf(p Peer) string {
	return map[Peer]string{PeerGPU: "0x030200", PeerSwitch: "0x068000", PeerCPU: "0x068001"}[p]
}

func (x *xmlReader) startC2C(a attrs) {
	p := x.gpu()
	if p == nil {
		x.note("xml-c2c-alone", "<c2c> stands outside a <gpu>: left out")
		return
	}
	count, bw := a.number("count"), a.number("bw")
	if count == nil || *count < 0 {
		x.note("xml-c2c-count", "<c2c> without a count: left out")
		return
	}
	p.C2C = &C2C{Count: *count}
	if bw != nil && *bw >= 0 {
		v := float64(*bw) / 1000 // MB/s
		p.C2C.GBs = &v
	}
}

func (x *xmlReader) startPeerLink(a attrs) {
	from, _ := x.parent()
	to, ok := BusID(a.take("target"))
	if from == "" || !ok {
		x.note("xml-pcilink", "<pcilink> without two ends: left out")
		return
	}
	x.g.Links = append(x.g.Links, PeerLink{from, to})
}

func (x *xmlReader) startNet(a attrs) {
	n := NIC{Name: a.take("name"), GUID: a.take("guid"), Index: a.number("dev"), GDR: a.flag("gdr")}
	n.BusID, n.NUMA = x.parent()
	p := Port{Num: a.number("port")}
	if mbps := a.number("speed"); mbps != nil {
		v := float64(*mbps) / 1000
		if p.Gbps = &v; v <= 0 {
			p.Gbps = nil
			a["speed"] = strconv.Itoa(*mbps)
		}
	}
	n.Ports = []Port{p}
	if rdma := n.GUID != "0x0" || n.GDR != nil && *n.GDR; n.GUID != "" {
		n.RDMA = &rdma // NCCL's socket interfaces have the GUID 0
	}
	n.Attrs = a.rest()
	x.g.NICs = append(x.g.NICs, n)
}

// finish names things and says what is odd about the whole.
func (x *xmlReader) finish() {
	x.addBareNICs()
	for i := range x.g.PCI { // a file without classes: what has children is a bridge
		f := &x.g.PCI[i]
		if f.Role == RoleOther && slices.ContainsFunc(x.g.PCI, func(c Function) bool { return c.Parent == f.BusID }) {
			f.Role = RoleBridge
		}
	}
	x.checkNVLinks()
	x.g.nameAll()
	x.g.checkTree()
}

// addBareNICs adds network functions that have no <nic>: NCCL completes such files from /sys.
func (x *xmlReader) addBareNICs() {
	for i := range x.g.PCI {
		f := &x.g.PCI[i]
		if slices.ContainsFunc(x.g.NICs, func(n NIC) bool { return n.BusID == f.BusID }) {
			f.Role = RoleNIC
		} else if f.Role == RoleNIC {
			x.g.NICs = append(x.g.NICs, NIC{BusID: f.BusID, NUMA: f.NUMA})
		}
		if gpuAt(x.g, f.BusID) >= 0 {
			f.Role = RoleGPU
		}
	}
}

func (x *xmlReader) checkNVLinks() {
	for i := range x.g.GPUs {
		p := &x.g.GPUs[i]
		for j := range p.NVLinks {
			l := &p.NVLinks[j]
			if l.Peer == PeerUnknown && gpuAt(x.g, l.Target) >= 0 {
				l.Peer = PeerGPU
			}
			if l.Target != "" && l.Target == p.BusID {
				x.g.note("nvlink-to-itself", p.BusID, fmt.Sprintf("%d NVLinks of %s end at itself: the file is wrong about NVLink", l.Count, p.BusID))
			}
		}
	}
}

func where(name string, line int) string { return fmt.Sprintf("%s:%d", name, line) }
