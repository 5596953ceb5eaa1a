package topo

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ReadSys reads the topology of the machine whose file system is at root: "/" is this machine, another folder a recorded one. devices has what NVML knows; nil: without it
// GPUs are found on the bus, and NVLink stays unknown. It reads files only, and takes well under a second; what cannot be read becomes a Note.
// The error is for a root that is no folder.
func ReadSys(root string, devices *Devices) (*Graph, error) {
	r, err := os.OpenRoot(root)
	if err != nil {
		return nil, fmt.Errorf("topology of %s: %w", root, err)
	}
	defer r.Close()
	s := &sysReader{fs: r.FS(), g: &Graph{Source: "/sys", Form: FormFull}, names: map[string][]string{}, done: map[string]bool{}}
	if root != "/" {
		s.g.Source = path.Join(root, "sys")
	}
	s.host()
	s.numaNodes()
	s.pciDevices()
	s.nics()
	s.gpuFiles()
	if devices != nil {
		devices.apply(s.g)
	}
	s.g.nameAll()
	s.g.checkTree()
	s.g.checkLinks()
	return s.g, nil
}

// sysReader reads below a root. Symbolic links that lead out of it are not followed.
type sysReader struct {
	fs    fs.FS
	g     *Graph
	names map[string][]string // folders already listed
	done  map[string]bool     // PCI functions already added
}

// read is the content of a small file without the end of line; empty: absent, unreadable or empty.
func (s *sysReader) read(name string) string {
	text, err := fs.ReadFile(s.fs, name)
	if err != nil || len(text) > maxLine {
		return ""
	}
	return strings.TrimSpace(string(text))
}

func (s *sysReader) number(name string) *int {
	v, err := strconv.Atoi(s.read(name))
	if err != nil {
		return nil
	}
	return &v
}

// list has the names in a folder, sorted; nil: it is not there.
func (s *sysReader) list(dir string) []string {
	if got, ok := s.names[dir]; ok {
		return got
	}
	var out []string
	if entries, err := fs.ReadDir(s.fs, dir); err == nil {
		out = []string{}
		for _, e := range entries {
			out = append(out, e.Name())
		}
	}
	s.names[dir] = out
	return out
}

func (s *sysReader) exists(name string) bool {
	_, err := fs.Stat(s.fs, name)
	return err == nil
}

// host finds out whether this is a virtual machine or a container.
func (s *sysReader) host() {
	h := &s.g.Host
	vendor := s.read("sys/class/dmi/id/sys_vendor")
	h.Product = strings.TrimSpace(vendor + " " + s.read("sys/class/dmi/id/product_name"))
	cpuinfo := s.readLong("proc/cpuinfo")
	if flags := lineAfter(cpuinfo, "flags"); flags != "" {
		yes := slices.Contains(strings.Fields(flags), "hypervisor")
		h.Virtual = &yes
	} else if s.read("sys/hypervisor/type") != "" {
		h.Virtual = yes()
	}
	switch {
	case s.exists(".dockerenv"), s.exists("run/.containerenv"), s.exists("var/run/secrets/kubernetes.io"):
		h.Container = yes()
	case s.exists("proc/1/cgroup") && strings.ContainsAny(s.read("proc/1/cgroup"), "/"):
		in := strings.Contains(s.read("proc/1/cgroup"), "docker") || strings.Contains(s.read("proc/1/cgroup"), "kubepods")
		h.Container = &in
	}
	if h.Virtual != nil && *h.Virtual {
		s.g.note("virtual-machine", "/proc/cpuinfo", "a virtual machine: its PCIe tree may be invented by the hypervisor; a topology file of the provider (NCCL_TOPO_FILE) may know better")
	}
}

func yes() *bool {
	v := true
	return &v
}

// readLong reads the beginning of a file that may be long: enough of /proc/cpuinfo for one CPU.
func (s *sysReader) readLong(name string) string {
	f, err := s.fs.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	buf := make([]byte, maxLine)
	n := 0
	for n < len(buf) {
		k, err := f.Read(buf[n:])
		n += k
		if err != nil {
			break
		}
	}
	return string(buf[:n])
}

// lineAfter finds "key : value".
func lineAfter(text, key string) string {
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

var nodeName = regexp.MustCompile(`^node(\d{1,4})$`)

func (s *sysReader) numaNodes() {
	cpuinfo := s.readLong("proc/cpuinfo")
	proto := CPU{Vendor: lineAfter(cpuinfo, "vendor_id")}
	switch {
	case proto.Vendor != "":
		proto.Arch = "x86_64"
		proto.Family, proto.Model = atoi(lineAfter(cpuinfo, "cpu family")), atoi(lineAfter(cpuinfo, "model"))
	case lineAfter(cpuinfo, "CPU implementer") != "":
		proto.Arch = "arm64"
	case strings.HasPrefix(lineAfter(cpuinfo, "cpu"), "POWER"):
		proto.Arch = "ppc64"
	default:
		s.g.note("cpu-unknown", "/proc/cpuinfo", "the make of the CPU is not known; NCCL's bandwidth between NUMA nodes depends on it")
	}
	const dir = "sys/devices/system/node"
	for _, name := range s.list(dir) {
		m := nodeName.FindStringSubmatch(name)
		if m == nil {
			continue
		}
		c := proto
		c.NUMA, _ = strconv.Atoi(m[1])
		c.CPUs = s.read(path.Join(dir, name, "cpulist"))
		for _, d := range strings.Fields(s.read(path.Join(dir, name, "distance"))) {
			if v := atoi(d); v != nil {
				c.Distance = append(c.Distance, *v)
			}
		}
		if cpus, err := parseCPUList(c.CPUs); err == nil && len(cpus) > 0 {
			c.Socket = s.number(fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/physical_package_id", cpus[0]))
		} else if err != nil {
			s.g.note("cpulist", "/"+path.Join(dir, name, "cpulist"), err.Error())
			c.CPUs = ""
		}
		s.g.CPUs = append(s.g.CPUs, c)
	}
	if s.list(dir) == nil {
		s.g.note("no-node-folder", "/"+dir, "absent: a kernel without NUMA, or a container whose /sys is cut down")
	}
	slices.SortFunc(s.g.CPUs, func(a, b CPU) int { return a.NUMA - b.NUMA })
}

func atoi(text string) *int {
	v, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		return nil
	}
	return &v
}

const pciDir = "sys/bus/pci/devices"

// pciDevices finds GPUs, NICs and NVSwitches on the bus, and all bridges above them.
func (s *sysReader) pciDevices() {
	names := s.list(pciDir)
	if names == nil {
		s.g.note("no-pci", "/"+pciDir, "absent: no PCI, or a container whose /sys is cut down; devices found otherwise have no place")
		return
	}
	for _, name := range names {
		id, ok := BusID(name)
		if !ok {
			continue
		}
		class, vendor := s.read(path.Join(pciDir, name, "class")), s.read(path.Join(pciDir, name, "vendor"))
		switch role := roleOf(class, vendor); role {
		case RoleGPU:
			if vendor != "0x10de" {
				continue // a console's graphics
			}
			s.function(name, role)
			f := s.g.Function(id)
			s.g.GPUs = append(s.g.GPUs, GPU{BusID: id, NUMA: f.NUMA, CPUs: s.read(path.Join(pciDir, name, "local_cpulist")), Driver: s.driver(name)})
		case RoleNVSwitch:
			s.function(name, role)
			s.g.NVSwitches = append(s.g.NVSwitches, NVSwitch{BusID: id})
		case RoleNIC:
			s.function(name, role)
		}
	}
}

func (s *sysReader) driver(name string) string {
	target, err := fs.ReadLink(s.fs, path.Join(pciDir, name, "driver"))
	if err != nil {
		return ""
	}
	return path.Base(target)
}

var rootName = regexp.MustCompile(`^pci[0-9a-f]{4,8}:[0-9a-f]{2}$`)

// above resolves the link of a device: its host bridge and the bridges from there to it.
func (s *sysReader) above(name string) (root string, chain []string, err error) {
	target, err := fs.ReadLink(s.fs, path.Join(pciDir, name))
	if err != nil {
		return "", nil, errors.New("it is no link here, so its place on PCIe is lost (a copied /sys?)")
	}
	for part := range strings.SplitSeq(target, "/") {
		switch _, ok := BusID(part); {
		case rootName.MatchString(part):
			root, chain = part, nil
		case ok && part != name:
			chain = append(chain, part)
		}
	}
	return root, chain, nil
}

// function adds a device and, before it, the bridges above it.
func (s *sysReader) function(name string, role Role) {
	if s.done[name] {
		return
	}
	s.done[name] = true
	root, chain, err := s.above(name)
	if err != nil {
		s.g.note("no-place", name, err.Error())
	}
	parent := ""
	for i, up := range chain {
		if i >= maxDepth {
			break
		}
		if !s.done[up] {
			s.done[up] = true
			s.add(up, parent, root, portRole(i))
		}
		parent, _ = BusID(up)
	}
	s.add(name, parent, root, role)
}

// portRole is a port's role by its place: root ports and the ports of switches alternate.
func portRole(depth int) Role {
	switch {
	case depth == 0:
		return RoleRootPort
	case depth%2 == 1:
		return RoleUpstream
	}
	return RoleDownstream
}

func (s *sysReader) add(name, parent, root string, role Role) {
	id, _ := BusID(name)
	dir := path.Join(pciDir, name)
	f := Function{BusID: id, Parent: parent, Root: root, Role: role, Class: s.read(path.Join(dir, "class")), Vendor: s.read(path.Join(dir, "vendor")),
		Device: s.read(path.Join(dir, "device")), SubVendor: s.read(path.Join(dir, "subsystem_vendor")), SubDevice: s.read(path.Join(dir, "subsystem_device")),
		NUMA: s.number(path.Join(dir, "numa_node")), Link: s.link(dir)}
	if target, err := fs.ReadLink(s.fs, path.Join(dir, "physfn")); err == nil {
		f.PhysFn, _ = BusID(path.Base(target))
	}
	if target, err := fs.ReadLink(s.fs, path.Join(dir, "iommu_group")); err == nil {
		f.IOMMUGroup = atoi(path.Base(target))
	}
	s.config(&f, dir)
	if up := s.g.Function(parent); up != nil && (role != RoleDownstream) { // both ends of a link
		f.Link.MaxSpeed, f.Link.MaxWidth = lower(f.Link.MaxSpeed, up.Link.MaxSpeed), lower(f.Link.MaxWidth, up.Link.MaxWidth)
	}
	s.g.PCI = append(s.g.PCI, f)
}

func (s *sysReader) link(dir string) PCILink {
	return PCILink{
		Speed: parseSpeed(s.read(path.Join(dir, "current_link_speed"))), Width: parseWidth(s.read(path.Join(dir, "current_link_width"))),
		MaxSpeed: parseSpeed(s.read(path.Join(dir, "max_link_speed"))), MaxWidth: parseWidth(s.read(path.Join(dir, "max_link_width"))),
	}
}

// gpuFiles reads what the driver's folder in /proc says without NVML.
func (s *sysReader) gpuFiles() {
	for i := range s.g.GPUs {
		p := &s.g.GPUs[i]
		text := s.read("proc/driver/nvidia/gpus/" + p.BusID + "/information")
		p.Name = lineAfter(text, "Model")
		if uuid := lineAfter(text, "GPU UUID"); !strings.Contains(uuid, "?") {
			p.UUID = uuid
		}
	}
}

// checkLinks notes PCIe links that run below what both ends can, and devices without a NUMA node.
func (g *Graph) checkLinks() {
	t := newTree(g)
	idle := map[string][]string{} // by text: GPUs that are alike in it
	var homeless []string
	for i := range g.PCI {
		f, l := &g.PCI[i], &g.PCI[i].Link
		if (f.Role == RoleGPU || f.Role == RoleNIC) && f.PhysFn == "" && (f.NUMA == nil || *f.NUMA < 0) {
			homeless = append(homeless, f.BusID)
		}
		c2c := gpuAt(g, f.BusID) >= 0 && g.GPUs[gpuAt(g, f.BusID)].C2C != nil // their PCIe link carries nothing that matters
		if f.PhysFn != "" || !t.upLink(f) || c2c {
			continue
		}
		if l.Width != nil && l.MaxWidth != nil && *l.Width < *l.MaxWidth {
			g.note("link-narrow", f.BusID, fmt.Sprintf("its PCIe link has %d of %d lanes: reseat the card or riser, or the slot has no more", *l.Width, *l.MaxWidth))
		}
		if l.Speed == nil || l.MaxSpeed == nil || *l.Speed >= *l.MaxSpeed {
			continue
		}
		text := fmt.Sprintf("the PCIe link runs at %g of %g GT/s", *l.Speed, *l.MaxSpeed)
		if f.Role == RoleGPU {
			text += "; an idle GPU does that: look again under load"
			idle[text] = append(idle[text], f.BusID)
			continue
		}
		g.note("link-slow", f.BusID, text)
	}
	for _, text := range slices.Sorted(maps.Keys(idle)) {
		g.note("link-slow", strings.Join(idle[text], " "), text)
	}
	if len(homeless) > 0 && len(g.CPUs) > 1 || len(homeless) > 3 {
		g.note("numa-unknown", g.Source, fmt.Sprintf("the kernel gives no NUMA node (-1) for %d devices: %s", len(homeless), shorten(homeless)))
	}
}
