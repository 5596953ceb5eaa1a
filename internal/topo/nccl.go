package topo

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// NCCL's reckoning of a topology, after src/graph/topo.h, topo.cc and paths.cc of NCCL 2.30: bandwidths in GB/s.
const (
	ncclLocal    = 5000 // inside a device
	ncclUnknownX = 5000 // between CPUs of a make it does not know
)

// Indexes of NCCLTypes; link types have the numbers of path types.
const (
	typeLOC = 0
	typeNVL = 1
	typeNVB = 2
	typeC2C = 3
	typePIX = 4
	typePXB = 5
	typeP2C = 6
	typePXN = 7
	typePHB = 8
	typeSYS = 9
	typeNET = 10
	typeDIS = 11
)

type ncclKind int

const (
	ncclGPU ncclKind = iota
	ncclPCI
	ncclNVS
	ncclCPU
	ncclNIC
	ncclNET
)

type ncclNode struct {
	kind  ncclKind
	id    string
	chip  string // vendor, device, subsystem: for Broadcom's switches
	links []ncclLink
}

type ncclLink struct {
	to      *ncclNode
	kind    int // typeNVL, typeC2C, typePIX, typeSYS, typeNET
	bw      float64
	assumed bool // the bandwidth is NCCL's fallback for something that the input does not say
}

type ncclPath struct {
	kind    int
	bw      float64
	hops    int
	assumed bool
}

// ncclSystem is a graph as NCCL builds it.
type ncclSystem struct {
	g     *Graph
	tree  *tree
	nodes []*ncclNode
	ends  map[string]*ncclNode // by endpoint id
	cpus  map[int]*ncclNode
	pci   map[string]*ncclNode
	nvs   *ncclNode
	from  map[*ncclNode]map[*ncclNode]ncclPath
}

func newNCCLSystem(g *Graph) *ncclSystem {
	s := &ncclSystem{g: g, tree: newTree(g), ends: map[string]*ncclNode{}, cpus: map[int]*ncclNode{}, pci: map[string]*ncclNode{}, from: map[*ncclNode]map[*ncclNode]ncclPath{}}
	for i := range g.CPUs {
		s.cpu(g.CPUs[i].NUMA)
	}
	for i := range g.GPUs {
		s.addGPU(&g.GPUs[i])
	}
	for i := range g.NICs {
		s.addNIC(&g.NICs[i])
	}
	for i := range g.GPUs {
		s.addNVLinks(&g.GPUs[i])
	}
	s.flattenBroadcom()
	s.connectCPUs()
	return s
}

func (s *ncclSystem) node(kind ncclKind, id string) *ncclNode {
	n := &ncclNode{kind: kind, id: id}
	s.nodes = append(s.nodes, n)
	return n
}

func (s *ncclSystem) cpu(numa int) *ncclNode {
	if s.cpus[numa] == nil {
		s.cpus[numa] = s.node(ncclCPU, "CPU"+strconv.Itoa(numa))
	}
	return s.cpus[numa]
}

// connect adds one direction; links to one node add up and the fastest comes first, which decides between equal ways.
func connect(from, to *ncclNode, kind int, bw float64, assumed bool) {
	i := slices.IndexFunc(from.links, func(l ncclLink) bool { return l.to == to && l.kind == kind })
	if i < 0 {
		from.links = append(from.links, ncclLink{to, kind, 0, false})
		i = len(from.links) - 1
	}
	from.links[i].bw += bw
	from.links[i].assumed = from.links[i].assumed || assumed
	slices.SortStableFunc(from.links, func(a, b ncclLink) int { return cmp.Compare(b.bw, a.bw) })
}

func connectBoth(a, b *ncclNode, kind int, bw float64, assumed bool) {
	connect(a, b, kind, bw, assumed)
	connect(b, a, kind, bw, assumed)
}

// upper is the bridge that stands above f in NCCL's tree. From /sys it goes up two levels at a time, so that a switch is one bridge and a root port is none.
func (s *ncclSystem) upper(f *Function) *Function {
	p := s.tree.byID[f.Parent]
	if p == nil || s.g.Form == FormNCCL {
		return p
	}
	return s.tree.byID[p.Parent]
}

// pciBW is NCCL's bandwidth of a function's link: lanes times 100 Mb/s steps over 80.
func (s *ncclSystem) pciBW(f *Function) (bw float64, assumed bool) {
	perLane, lanes := 60.0, 16.0 // what NCCL takes when the files are empty: gen3 x16
	steps := map[float64]float64{2.5: 15, 5: 30, 8: 60, 16: 120, 32: 240, 64: 480}
	if f.Link.MaxSpeed != nil {
		if v, ok := steps[*f.Link.MaxSpeed]; ok {
			perLane = v
		}
	}
	// /sys has no width for the port above a device that hangs right at the root bus, and NCCL takes the smaller of both.
	if f.Link.MaxWidth != nil && (s.g.Form == FormNCCL || f.Parent != "") {
		lanes = float64(*f.Link.MaxWidth)
	}
	_, saidSpeed := f.Attrs["link_speed"]
	_, saidWidth := f.Attrs["link_width"]
	if s.g.Form == FormNCCL { // from /sys NCCL sees what we see
		assumed = f.Link.MaxSpeed == nil && !saidSpeed || f.Link.MaxWidth == nil && !saidWidth
	}
	return lanes * perLane / 80, assumed
}

// attach hangs a node for f below its bridges, up to the CPU.
func (s *ncclSystem) attach(n *ncclNode, f *Function) {
	for depth := 0; depth < maxDepth; depth++ {
		bw, assumed := s.pciBW(f)
		up := s.upper(f)
		if up == nil {
			numa := -1
			if f.NUMA != nil {
				numa = *f.NUMA
			}
			connectBoth(n, s.cpu(numa), typePIX, bw, assumed)
			return
		}
		bridge, known := s.pci[up.BusID], true
		if bridge == nil {
			bridge, known = s.node(ncclPCI, up.BusID), false
			bridge.chip = chip(up)
			s.pci[up.BusID] = bridge
		}
		connectBoth(n, bridge, typePIX, bw, assumed)
		if known {
			return
		}
		n, f = bridge, up
	}
}

func chip(f *Function) string {
	hex := func(s string) string { return strings.TrimPrefix(strings.ToLower(s), "0x") }
	return hex(f.Vendor) + hex(f.Device) + hex(f.SubVendor) + hex(f.SubDevice)
}

func (s *ncclSystem) addGPU(gpu *GPU) {
	f := s.tree.byID[gpu.BusID]
	if f == nil && (s.g.Form == FormNCCL || gpu.BusID == "") {
		return
	}
	n := s.node(ncclGPU, gpu.ID)
	s.ends[gpu.ID] = n
	if f == nil { // without /sys it hangs at an unknown CPU, with the bandwidth of gen3 x16
		connectBoth(n, s.cpu(-1), typePIX, 12, false)
		return
	}
	s.attach(n, f)
}

// addNIC adds the card, which the ports of one card share, and its network side.
func (s *ncclSystem) addNIC(nic *NIC) {
	f := s.tree.byID[nic.BusID]
	var dev *ncclNode
	switch {
	case f != nil:
		if dev = s.pci["nic "+card(f.BusID)]; dev == nil {
			dev = s.node(ncclNIC, f.BusID)
			s.pci["nic "+card(f.BusID)] = dev
			s.attach(dev, f)
		}
	case nic.BusID == "" && nic.NUMA != nil: // an XML may have NICs right below a CPU
		dev = s.node(ncclNIC, nic.ID)
		connectBoth(dev, s.cpu(*nic.NUMA), typePIX, ncclLocal, false)
	default:
		return
	}
	net := s.node(ncclNET, nic.ID)
	s.ends[nic.ID] = net
	bw, known := 1.25, false // 10 Gb/s: for a NIC that does not say its speed
	for _, p := range nic.Ports {
		if p.Gbps != nil && *p.Gbps > 0 && (!known || *p.Gbps/8 > bw) {
			bw, known = *p.Gbps/8, true
		}
	}
	connectBoth(dev, net, typeNET, bw, !known)
}

// nvlinkBW is NCCL's bandwidth of one NVLink (topo.h).
func nvlinkBW(sm int) float64 {
	switch {
	case sm >= 100:
		return 40.1
	case sm >= 90:
		return 20.6
	case sm == 86:
		return 12
	case sm >= 70:
		return 20
	case sm >= 60:
		return 18
	}
	return 20
}

func (s *ncclSystem) addNVLinks(gpu *GPU) {
	n := s.ends[gpu.ID]
	if n == nil {
		return
	}
	bw, assumed := 20.0, true
	if gpu.SM != nil {
		bw, assumed = nvlinkBW(*gpu.SM), false
	}
	cpu := s.localCPU(n)
	for _, l := range gpu.NVLinks {
		total := bw * float64(l.Count)
		switch l.Peer {
		case PeerSwitch:
			if s.nvs == nil {
				s.nvs = s.node(ncclNVS, "NVSwitch")
			}
			connectBoth(n, s.nvs, typeNVL, total, assumed)
		case PeerCPU:
			if cpu != nil {
				connectBoth(n, cpu, typeNVL, total, assumed)
			}
		case PeerGPU:
			if i := gpuAt(s.g, l.Target); i >= 0 && s.ends[s.g.GPUs[i].ID] != nil && s.ends[s.g.GPUs[i].ID] != n {
				connect(n, s.ends[s.g.GPUs[i].ID], typeNVL, total, assumed) // the peer lists the other direction
			}
		}
	}
	if c := gpu.C2C; c != nil && cpu != nil {
		rate, assumed := 40.0, c.GBs == nil
		if c.GBs != nil {
			rate = *c.GBs
		}
		connectBoth(n, cpu, typeC2C, rate*float64(c.Count), assumed)
	}
}

// localCPU follows PCIe up to the CPU.
func (s *ncclSystem) localCPU(n *ncclNode) *ncclNode {
	seen := map[*ncclNode]bool{}
	for n != nil && !seen[n] {
		seen[n] = true
		var next *ncclNode
		for _, l := range n.links {
			if l.kind != typePIX || seen[l.to] {
				continue
			}
			if l.to.kind == ncclCPU {
				return l.to
			}
			if l.to.kind == ncclPCI && s.isAbove(l.to, n) {
				next = l.to
			}
		}
		n = next
	}
	return nil
}

// isAbove tells the bridge above a node from those below it.
func (s *ncclSystem) isAbove(up, n *ncclNode) bool {
	f := s.tree.byID[n.id]
	if n.kind == ncclGPU {
		if i := slices.IndexFunc(s.g.GPUs, func(g GPU) bool { return g.ID == n.id }); i >= 0 {
			f = s.tree.byID[s.g.GPUs[i].BusID]
		}
	}
	return f != nil && s.upper(f) != nil && s.upper(f).BusID == up.id
}

// broadcomGen recognises PEX switches that show themselves as two levels although they have full bandwidth between all ports.
func broadcomGen(chip string, level int) int {
	switch {
	case len(chip) != 16:
		return 0
	case strings.HasPrefix(chip, "1000c0101000a"):
		return 4
	case strings.HasPrefix(chip, "1000c0301000"+strconv.Itoa(level)):
		return 5
	}
	return 0
}

// flattenBroadcom joins the second level of such a switch with the first, as NCCL does: from the top, and each switch once.
func (s *ncclSystem) flattenBroadcom() {
	gone := map[*ncclNode]bool{}
	for i := range s.g.PCI {
		sw := s.pci[s.g.PCI[i].BusID]
		if sw == nil || gone[sw] || broadcomGen(sw.chip, 0) == 0 {
			continue
		}
		gen := broadcomGen(sw.chip, 0)
		for _, l := range slices.Clone(sw.links) {
			if sub := l.to; sub.kind == ncclPCI && broadcomGen(sub.chip, 1) == gen && s.isAbove(sw, sub) {
				merge(sw, sub)
				gone[sub] = true
			}
		}
		sw.chip = ""
	}
	s.nodes = slices.DeleteFunc(s.nodes, func(n *ncclNode) bool { return gone[n] })
}

// merge hangs what is below sub at sw.
func merge(sw, sub *ncclNode) {
	sw.links = slices.DeleteFunc(sw.links, func(l ncclLink) bool { return l.to == sub })
	for _, l := range sub.links {
		if l.to == sw {
			continue
		}
		sw.links = append(sw.links, l)
		for i := range l.to.links {
			if l.to.links[i].to == sub {
				l.to.links[i].to = sw
			}
		}
	}
	sub.links = nil
}

func (s *ncclSystem) connectCPUs() {
	for i := range s.g.CPUs {
		for j := range s.g.CPUs {
			a, b := &s.g.CPUs[i], &s.g.CPUs[j]
			if a.NUMA == b.NUMA || a.HostHash != b.HostHash {
				continue
			}
			bw, assumed := interCPU(a)
			connect(s.cpu(a.NUMA), s.cpu(b.NUMA), typeSYS, bw, assumed)
		}
	}
}

// interCPU is NCCL's bandwidth between two CPUs (topo.h of 2.30; 2.31 raises AMD's to 24 from Zen 3 and 32 from Zen 5).
func interCPU(c *CPU) (bw float64, assumed bool) {
	switch {
	case c.Arch == "ppc64":
		return 32, false
	case c.Arch == "arm64":
		return 6, false
	case c.Arch == "x86_64" && c.Vendor == "AuthenticAMD":
		return 16, false
	case c.Arch == "x86_64" && c.Vendor == "GenuineIntel":
		if c.Family == nil || c.Model == nil {
			return 6, true
		}
		return intelQPI(*c.Family, *c.Model), false
	case c.Arch == "x86_64" && (c.Vendor == "CentaurHauls" || strings.TrimSpace(c.Vendor) == "Shanghai"):
		return 6, false
	}
	return ncclUnknownX, c.Arch == "" || c.Vendor == ""
}

func intelQPI(family, model int) float64 {
	switch {
	case family != 6:
		return 6
	case model >= 0xCF:
		return 40
	case model >= 0x8F:
		return 22
	case model >= 0x55:
		return 10
	}
	return 6
}
