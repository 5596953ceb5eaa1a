package topo

import (
	"cmp"
	"encoding/binary"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

const (
	ibDir  = "sys/class/infiniband"
	netDir = "sys/class/net"
)

// nics lists RDMA devices and then the network interfaces on PCI that belong to none.
func (s *sysReader) nics() {
	names := s.list(ibDir)
	if names == nil {
		s.g.note("no-infiniband", "/"+ibDir, "absent: no RDMA driver is loaded, or a container whose /sys is cut down")
	}
	names = slices.Clone(names)
	slices.SortFunc(names, natural)
	for _, name := range names {
		s.g.NICs = append(s.g.NICs, s.rdmaDevice(name))
	}
	s.plainInterfaces()
}

// natural compares names so that mlx5_2 comes before mlx5_10.
func natural(a, b string) int {
	for a != "" && b != "" {
		da, db := digits(a), digits(b)
		if da > 0 && db > 0 {
			x, y := strings.TrimLeft(a[:da], "0"), strings.TrimLeft(b[:db], "0")
			if c := cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y)); c != 0 {
				return c
			}
			a, b = a[da:], b[db:]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

func digits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}

// busOf is the PCI function that a class entry hangs below; empty: none, or it cannot be told.
func (s *sysReader) busOf(entry string) string {
	target, err := fs.ReadLink(s.fs, entry)
	if err == nil {
		id := ""
		for part := range strings.SplitSeq(target, "/") {
			if b, ok := BusID(part); ok {
				id = b
			}
		}
		if id != "" {
			return id
		}
	}
	if id, ok := BusID(lineEq(s.read(path.Join(entry, "device", "uevent")), "PCI_SLOT_NAME")); ok {
		return id
	}
	return ""
}

// lineEq finds KEY=value.
func lineEq(text, key string) string {
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), key+"="); ok {
			return v
		}
	}
	return ""
}

func (s *sysReader) rdmaDevice(name string) NIC {
	dir := path.Join(ibDir, name)
	n := NIC{Name: name, RDMA: yes(), BusID: s.busOf(dir), GUID: s.read(path.Join(dir, "node_guid"))}
	s.place(&n)
	for _, net := range s.list(path.Join(dir, "device", "net")) {
		n.Netdevs = append(n.Netdevs, net)
	}
	nums := slices.Clone(s.list(path.Join(dir, "ports")))
	slices.SortFunc(nums, natural)
	for _, num := range nums {
		p := s.port(path.Join(dir, "ports", num), num)
		for _, gid := range p.GIDs {
			if gid.Netdev != "" && !slices.Contains(n.Netdevs, gid.Netdev) && s.read(path.Join(netDir, gid.Netdev, "bonding", "slaves")) != "" {
				n.Bond = gid.Netdev
			}
		}
		n.Ports = append(n.Ports, p)
	}
	s.bond(&n)
	return n
}

// place adds what the PCI function of a NIC says.
func (s *sysReader) place(n *NIC) {
	if n.BusID == "" {
		s.g.note("nic-without-pci", n.Name, "it has no PCI function that can be seen: a software device (rxe, siw), or a cut-down /sys")
		return
	}
	dir := path.Join(pciDir, n.BusID)
	f := s.g.Function(n.BusID)
	if f == nil {
		if !s.exists(dir) {
			s.g.note("nic-without-pci", n.Name, n.BusID+" is not in /"+pciDir+": its place on PCIe is not known")
			return
		}
		s.function(n.BusID, RoleNIC)
		f = s.g.Function(n.BusID)
	}
	f.Role = RoleNIC
	n.NUMA, n.PF, n.VFs, n.Driver = f.NUMA, f.PhysFn, s.number(path.Join(dir, "sriov_numvfs")), s.driver(n.BusID)
	n.CPUs = s.read(path.Join(dir, "local_cpulist"))
	if n.PF != "" && n.NUMA != nil && *n.NUMA < 0 {
		if pf := s.number(path.Join(pciDir, n.PF, "numa_node")); pf != nil {
			n.NUMA = pf
		}
	}
}

// bond finds the bond that the interfaces of a NIC belong to.
func (s *sysReader) bond(n *NIC) {
	for _, net := range n.Netdevs {
		if target, err := fs.ReadLink(s.fs, path.Join(netDir, net, "master")); err == nil && s.exists(path.Join(netDir, path.Base(target), "bonding")) {
			n.Bond = path.Base(target)
		}
	}
}

// afterColon takes the word of "4: ACTIVE".
func afterColon(s string) string {
	if _, word, ok := strings.Cut(s, ":"); ok {
		return strings.TrimSpace(word)
	}
	return s
}

func (s *sysReader) port(dir, num string) Port {
	p := Port{Num: atoi(num), LinkLayer: s.read(path.Join(dir, "link_layer")), Rate: s.read(path.Join(dir, "rate")),
		State: afterColon(s.read(path.Join(dir, "state"))), Phys: afterColon(s.read(path.Join(dir, "phys_state")))}
	word, _, _ := strings.Cut(p.Rate, " ")
	if v, err := strconv.ParseFloat(word, 64); err == nil && v > 0 && v < 1e5 {
		p.Gbps = &v
	}
	const gap = 16 // a table has 128 or 256 places and is filled from the front
	for i, empty := 0, 0; empty < gap && i < 256; i++ {
		at := strconv.Itoa(i)
		gid := s.read(path.Join(dir, "gids", at))
		if gid == "" && !s.exists(path.Join(dir, "gids", at)) {
			break
		}
		if strings.Trim(gid, "0:") == "" || strings.TrimPrefix(gid, "fe80:0000:0000:0000:") == "0000:0000:0000:0000" {
			empty++
			continue
		}
		empty = 0
		p.GIDs = append(p.GIDs, GID{Index: i, Value: gid, Type: s.read(path.Join(dir, "gid_attrs", "types", at)), Netdev: s.read(path.Join(dir, "gid_attrs", "ndevs", at))})
	}
	return p
}

// plainInterfaces adds interfaces on PCI without an RDMA device: NCCL uses them by sockets.
func (s *sysReader) plainInterfaces() {
	taken := map[string]bool{}
	for i := range s.g.NICs {
		taken[s.g.NICs[i].BusID] = true
		for _, n := range s.g.NICs[i].Netdevs {
			taken[n] = true
		}
	}
	names := slices.Clone(s.list(netDir))
	slices.SortFunc(names, natural)
	for _, name := range names {
		id := s.busOf(path.Join(netDir, name))
		if id == "" || taken[name] || taken[id] {
			continue
		}
		no := false
		n := NIC{Name: name, RDMA: &no, BusID: id, Netdevs: []string{name}}
		s.place(&n)
		p := Port{LinkLayer: "Ethernet", State: map[string]string{"up": "ACTIVE", "down": "DOWN"}[s.read(path.Join(netDir, name, "operstate"))]}
		if mbps := s.number(path.Join(netDir, name, "speed")); mbps != nil && *mbps > 0 {
			v := float64(*mbps) / 1000
			p.Gbps = &v
		}
		n.Ports = []Port{p}
		s.bond(&n)
		s.g.NICs = append(s.g.NICs, n)
	}
	s.dropIdle()
}

// dropIdle leaves out network functions that no driver made an interface or RDMA device of; they stay in the PCI list.
func (s *sysReader) dropIdle() {
	for i := range s.g.PCI {
		f := &s.g.PCI[i]
		if f.Role == RoleNIC && !slices.ContainsFunc(s.g.NICs, func(n NIC) bool { return n.BusID == f.BusID }) && f.PhysFn == "" {
			s.g.note("nic-unused", f.BusID, "a network card without interface and RDMA device: no driver on it, in another network namespace, or passed to a virtual machine")
		}
	}
}

var acsBits = []string{"SV", "TB", "RR", "CR", "UF", "EC", "DT"} // PCI Express Base Specification 6.0, 7.7.11.3

// config reads the configuration space: the kind of port, ACS and request sizes. Without root only the first 64 bytes can be read.
func (s *sysReader) config(f *Function, dir string) {
	port := f.Role == RoleRootPort || f.Role == RoleUpstream || f.Role == RoleDownstream || f.Role == RoleBridge
	c, err := fs.ReadFile(s.fs, path.Join(dir, "config"))
	if err != nil || len(c) <= 64 {
		if port {
			f.ACS = ACS{State: "cannot tell", Why: "reading the configuration space needs root"}
		}
		return
	}
	if express := pcieCapability(c); express > 0 && express+10 <= len(c) {
		flags, control := binary.LittleEndian.Uint16(c[express+2:]), binary.LittleEndian.Uint16(c[express+8:])
		if port {
			f.Role = map[uint16]Role{4: RoleRootPort, 5: RoleUpstream, 6: RoleDownstream}[flags>>4&0xf]
			if f.Role == "" {
				f.Role = RoleBridge
			}
		}
		size, relaxed := 128<<(control>>12&7), control&(1<<4) != 0
		f.MaxReadReq, f.Relaxed = &size, &relaxed
	}
	if port {
		f.ACS = acs(c)
	}
}

// pcieCapability walks the list of capabilities; 0: not found.
func pcieCapability(c []byte) int {
	at := int(c[0x34]) &^ 3
	for range 48 {
		if at < 0x40 || at+2 > len(c) || at >= 256 {
			return 0
		}
		if c[at] == 0x10 {
			return at
		}
		at = int(c[at+1]) &^ 3
	}
	return 0
}

// acs walks the list of extended capabilities.
func acs(c []byte) ACS {
	if len(c) < 260 {
		return ACS{State: "cannot tell", Why: "the extended configuration space cannot be read"}
	}
	at := 0x100
	for range 960 {
		if at < 0x100 || at+8 > len(c) {
			break
		}
		head := binary.LittleEndian.Uint32(c[at:])
		if head == 0 || head == 0xffffffff {
			break
		}
		if head&0xffff == 0xd {
			out := ACS{State: "off"}
			control := binary.LittleEndian.Uint16(c[at+6:])
			for bit, name := range acsBits {
				if control&(1<<bit) != 0 {
					out.State, out.Enabled = "on", append(out.Enabled, name)
				}
			}
			return out
		}
		at = int(head >> 20)
	}
	return ACS{State: "absent"}
}
