// Package topotest makes recorded machines out of short descriptions, for tests of what reads /sys: a folder with the files and symbolic links that the kernel would show.
//
// A description is a text of sections "-- name --". Three of them are drawn up here; every other one is a file of that name below the root.
//
//	-- pci --
//	pci0000:00 numa=0 cpus=0-31            a host bridge; what is indented below it inherits numa and cpus
//	  0000:00:01.1 root gen4x16            ports: root, up, down; link now, and at best after a slash: gen1x16/gen4x16
//	    0000:01:00.0 gpu gen4x16 id=10de:20b0/10de:134f
//	-- nodes --
//	0 cpus=0-31 socket=0 distance=10,32
//	-- net --
//	bond0 slaves=ens1f0,ens1f1 speed=200000
//
// Attributes of PCI functions: id=vendor:device[/subvendor:subdevice] class=0x… numa=N cpus=… iommu=N driver=… vfs=N pf=BDF acs=SV,RR (or acs=off; makes a configuration
// space) ib=NAME layer=IB|Eth rate=N state=ACTIVE guid=… net=NAME,… mtu=N. An ib device gets one port, and on Ethernet the four GIDs of one IPv4 address.
package topotest

import (
	"embed"
	"encoding/binary"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

//go:embed trees
var trees embed.FS

// Names lists the machines there are.
func Names() []string {
	entries, err := trees.ReadDir("trees")
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		out = append(out, strings.TrimSuffix(e.Name(), ".txt"))
	}
	return out
}

// Materialise makes the machine's files in a temporary folder and returns it.
func Materialise(t testing.TB, name string) (root string) {
	t.Helper()
	return Build(t, Text(t, name))
}

// Text is the description of a machine.
func Text(t testing.TB, name string) string {
	t.Helper()
	text, err := trees.ReadFile("trees/" + name + ".txt")
	if err != nil {
		t.Fatalf("topotest: no machine %q: there are %s", name, strings.Join(Names(), " "))
	}
	return string(text)
}

// NVML is what the machine's nvml.json holds, a topo.Devices; nil: it has none.
func NVML(t testing.TB, name string) []byte {
	t.Helper()
	for _, s := range sections(Text(t, name)) {
		if s.name == "nvml.json" {
			return []byte(s.text)
		}
	}
	return nil
}

// Build makes the files of a description in a temporary folder and returns it.
func Build(t testing.TB, text string) (root string) {
	t.Helper()
	b := &builder{t: t, root: t.TempDir(), made: map[string]bool{}}
	for _, s := range sections(text) {
		switch s.name {
		case "pci":
			b.pci(s.text)
		case "nodes":
			b.nodes(s.text)
		case "net":
			b.net(s.text)
		default:
			b.write(s.name, s.text)
		}
	}
	return b.root
}

type section struct{ name, text string }

func sections(text string) (out []section) {
	for line := range strings.Lines(text) {
		head := strings.TrimSpace(line)
		if strings.HasPrefix(head, "-- ") && strings.HasSuffix(head, " --") {
			out = append(out, section{name: strings.TrimSpace(head[3 : len(head)-3])})
		} else if len(out) > 0 {
			out[len(out)-1].text += line
		}
	}
	return out
}

type builder struct {
	t    testing.TB
	root string
	made map[string]bool // folders
}

// folder makes the folder of a file.
func (b *builder) folder(full string) error {
	dir := filepath.Dir(full)
	if b.made[dir] {
		return nil
	}
	b.made[dir] = true
	return os.MkdirAll(dir, 0o755)
}

func (b *builder) write(name, text string) {
	b.t.Helper()
	full := filepath.Join(b.root, filepath.FromSlash(name))
	if err := b.folder(full); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// link makes a relative symbolic link; both names are below the root.
func (b *builder) link(name, target string) {
	b.t.Helper()
	full := filepath.Join(b.root, filepath.FromSlash(name))
	rel, err := filepath.Rel(filepath.Dir(full), filepath.Join(b.root, filepath.FromSlash(target)))
	if err == nil {
		err = b.folder(full)
	}
	if err == nil {
		err = os.Symlink(rel, full)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// place is a line of the pci section on the way down.
type place struct {
	indent     int
	dir        string
	numa, cpus string
}

func (b *builder) pci(text string) {
	b.t.Helper()
	stack := []place{{indent: -1, dir: "sys/devices", numa: "-1"}}
	for line := range strings.Lines(text) {
		words, attr := fields(line)
		if len(words) == 0 {
			continue
		}
		indent := len(line) - len(strings.TrimLeft(line, " "))
		for stack[len(stack)-1].indent >= indent {
			stack = stack[:len(stack)-1]
		}
		up := stack[len(stack)-1]
		p := place{indent: indent, dir: path.Join(up.dir, words[0]), numa: or(attr["numa"], up.numa), cpus: or(attr["cpus"], up.cpus)}
		stack = append(stack, p)
		if strings.HasPrefix(words[0], "pci") {
			continue
		}
		b.function(p, words, attr)
	}
}

// fields splits a line into words and key=value.
func fields(line string) (words []string, attr map[string]string) {
	line, _, _ = strings.Cut(line, "#")
	attr = map[string]string{}
	for _, f := range strings.Fields(line) {
		if k, v, ok := strings.Cut(f, "="); ok {
			attr[k] = v
			continue
		}
		words = append(words, f)
	}
	return words, attr
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

var classes = map[string]string{"root": "0x060400", "up": "0x060400", "down": "0x060400", "gpu": "0x030200", "vga": "0x030000", "nvswitch": "0x068000", "nic": "0x020000", "other": "0x010802"}

var defaultIDs = map[string]string{"root": "1022:1483", "up": "1000:c010", "down": "1000:c010", "gpu": "10de:20b0", "vga": "1a03:2000", "nvswitch": "10de:1af1", "nic": "15b3:101b", "other": "144d:a824"}

func (b *builder) function(p place, words []string, attr map[string]string) {
	b.t.Helper()
	bdf, kind := words[0], words[1]
	class, ok := classes[kind]
	if !ok {
		b.t.Fatalf("topotest: %s: no kind %q", bdf, kind)
	}
	if kind == "nic" && attr["layer"] == "IB" {
		class = "0x020700"
	}
	b.write(path.Join(p.dir, "class"), or(attr["class"], class)+"\n")
	ids, sub, _ := strings.Cut(or(attr["id"], defaultIDs[kind]), "/")
	vendor, device, _ := strings.Cut(ids, ":")
	b.write(path.Join(p.dir, "vendor"), "0x"+vendor+"\n")
	b.write(path.Join(p.dir, "device"), "0x"+device+"\n")
	if vendor, device, ok := strings.Cut(sub, ":"); ok {
		b.write(path.Join(p.dir, "subsystem_vendor"), "0x"+vendor+"\n")
		b.write(path.Join(p.dir, "subsystem_device"), "0x"+device+"\n")
	}
	b.write(path.Join(p.dir, "numa_node"), p.numa+"\n")
	b.write(path.Join(p.dir, "local_cpulist"), p.cpus+"\n")
	for _, w := range words[2:] {
		b.speeds(p.dir, w)
	}
	b.link("sys/bus/pci/devices/"+bdf, p.dir)
	b.extras(p.dir, bdf, kind, attr)
	if attr["ib"] != "" {
		b.rdma(p.dir, attr)
	}
	for name := range strings.SplitSeq(attr["net"], ",") {
		if name != "" {
			b.netdev(path.Join(p.dir, "net", name), name, attr)
		}
	}
}

// speeds writes gen5x16, or gen1x16/gen5x16 for now and best; "unknown" is what a virtual function shows.
func (b *builder) speeds(dir, word string) {
	b.t.Helper()
	now, best, ok := strings.Cut(word, "/")
	if !ok {
		best = now
	}
	for prefix, link := range map[string]string{"current": now, "max": best} {
		speed, width := "Unknown", "0"
		if gen, lanes, ok := strings.Cut(strings.TrimPrefix(link, "gen"), "x"); ok {
			n, err := strconv.Atoi(gen)
			if err != nil || n < 1 || n > 6 {
				b.t.Fatalf("topotest: %s: no link %q", dir, word)
			}
			speed, width = []string{"2.5", "5.0", "8.0", "16.0", "32.0", "64.0"}[n-1]+" GT/s PCIe", lanes
		}
		b.write(path.Join(dir, prefix+"_link_speed"), speed+"\n")
		b.write(path.Join(dir, prefix+"_link_width"), width+"\n")
	}
}

func (b *builder) extras(dir, bdf, kind string, attr map[string]string) {
	b.t.Helper()
	if group := attr["iommu"]; group != "" {
		b.write("sys/kernel/iommu_groups/"+group+"/type", "DMA\n")
		b.link(path.Join(dir, "iommu_group"), "sys/kernel/iommu_groups/"+group)
	}
	if driver := attr["driver"]; driver != "" {
		b.write("sys/bus/pci/drivers/"+driver+"/bind", "")
		b.link(path.Join(dir, "driver"), "sys/bus/pci/drivers/"+driver)
	}
	if n := attr["vfs"]; n != "" {
		b.write(path.Join(dir, "sriov_numvfs"), n+"\n")
	}
	if pf := attr["pf"]; pf != "" {
		b.link(path.Join(dir, "physfn"), path.Join(path.Dir(dir), pf))
	}
	if bits := attr["acs"]; bits != "" {
		b.write(path.Join(dir, "config"), string(config(kind, bits)))
	}
}

// config is a configuration space with a PCI Express capability at 0x40 and ACS at 0x100.
func config(kind, bits string) []byte {
	c := make([]byte, 4096)
	c[0x34] = 0x40
	c[0x40] = 0x10
	types := map[string]uint16{"root": 4, "up": 5, "down": 6}
	binary.LittleEndian.PutUint16(c[0x42:], 2|types[kind]<<4)
	binary.LittleEndian.PutUint16(c[0x48:], 2<<12|1<<4) // requests of 512 bytes, relaxed ordering
	binary.LittleEndian.PutUint32(c[0x100:], 0xd|1<<16)
	control := uint16(0)
	for i, bit := range []string{"SV", "TB", "RR", "CR", "UF", "EC", "DT"} {
		if slices.Contains(strings.Split(bits, ","), bit) {
			control |= 1 << i
		}
	}
	binary.LittleEndian.PutUint16(c[0x104:], 0x5f)
	binary.LittleEndian.PutUint16(c[0x106:], control)
	return c
}

func (b *builder) rdma(pciDir string, attr map[string]string) {
	b.t.Helper()
	name := attr["ib"]
	dir := path.Join(pciDir, "infiniband", name)
	n := 0
	for _, c := range name {
		n = n*31 + int(c)
	}
	guid := or(strings.ReplaceAll(attr["guid"], ".", ":"), fmt.Sprintf("b8ce:f603:00%02x:%04x", n>>16&0xff, n&0xffff))
	b.write(path.Join(dir, "node_guid"), guid+"\n")
	b.link(path.Join(dir, "device"), pciDir)
	b.link("sys/class/infiniband/"+name, dir)
	state := or(attr["state"], "ACTIVE")
	states := map[string]string{"DOWN": "1: DOWN", "INIT": "2: INIT", "ARMED": "3: ARMED", "ACTIVE": "4: ACTIVE"}
	phys := map[string]string{"DOWN": "3: Disabled"}
	port := path.Join(dir, "ports/1")
	b.write(port+"/state", states[state]+"\n")
	b.write(port+"/phys_state", or(phys[state], "5: LinkUp")+"\n")
	rate := or(attr["rate"], "200")
	words := map[string]string{"25": "1X EDR", "100": "4X EDR", "200": "4X HDR", "400": "4X NDR", "800": "4X XDR"}
	b.write(port+"/rate", rate+" Gb/sec ("+words[rate]+")\n")
	layer := map[string]string{"IB": "InfiniBand", "Eth": "Ethernet"}[or(attr["layer"], "IB")]
	b.write(port+"/link_layer", layer+"\n")
	b.gids(port, layer, n, strings.Split(attr["net"], ",")[0], or(attr["bond"], ""))
}

// gids fills the first places of a table: one for InfiniBand, four for an Ethernet port with an IPv4 address, then empty ones.
func (b *builder) gids(port, layer string, n int, netdev, bond string) {
	b.t.Helper()
	values := []string{fmt.Sprintf("fe80:0000:0000:0000:b8ce:f603:%04x:%04x", n>>16&0xffff, n&0xffff)}
	types := []string{"IB/RoCE v1"}
	if layer == "Ethernet" {
		v4 := fmt.Sprintf("0000:0000:0000:0000:0000:ffff:0a0a:%04x", n&0xffff|1)
		values, types = []string{values[0], values[0], v4, v4}, []string{"IB/RoCE v1", "RoCE v2", "IB/RoCE v1", "RoCE v2"}
	}
	for i := range 8 {
		at := strconv.Itoa(i)
		if i >= len(values) {
			b.write(path.Join(port, "gids", at), "0000:0000:0000:0000:0000:0000:0000:0000\n")
			continue
		}
		b.write(path.Join(port, "gids", at), values[i]+"\n")
		if layer == "Ethernet" {
			b.write(path.Join(port, "gid_attrs/types", at), types[i]+"\n")
			b.write(path.Join(port, "gid_attrs/ndevs", at), or(bond, netdev)+"\n")
		}
	}
}

func (b *builder) netdev(dir, name string, attr map[string]string) {
	b.t.Helper()
	b.write(path.Join(dir, "operstate"), map[string]string{"DOWN": "down"}[attr["state"]]+map[bool]string{true: "up"}[attr["state"] != "DOWN"]+"\n")
	b.write(path.Join(dir, "mtu"), or(attr["mtu"], "1500")+"\n")
	b.write(path.Join(dir, "speed"), or(attr["speed"], or(attr["rate"], "25")+"000")+"\n")
	b.link("sys/class/net/"+name, dir)
	if bond := attr["bond"]; bond != "" {
		b.link(path.Join(dir, "master"), "sys/devices/virtual/net/"+bond)
	}
}

func (b *builder) net(text string) {
	b.t.Helper()
	for line := range strings.Lines(text) {
		words, attr := fields(line)
		if len(words) == 0 {
			continue
		}
		dir := "sys/devices/virtual/net/" + words[0]
		b.netdev(dir, words[0], attr)
		if s := attr["slaves"]; s != "" {
			b.write(path.Join(dir, "bonding/slaves"), strings.ReplaceAll(s, ",", " ")+"\n")
		}
	}
}

func (b *builder) nodes(text string) {
	b.t.Helper()
	for line := range strings.Lines(text) {
		words, attr := fields(line)
		if len(words) == 0 {
			continue
		}
		dir := "sys/devices/system/node/node" + words[0]
		b.write(dir+"/cpulist", attr["cpus"]+"\n")
		b.write(dir+"/distance", strings.ReplaceAll(attr["distance"], ",", " ")+"\n")
		cpu, _, _ := strings.Cut(attr["cpus"], "-")
		if cpu, _, _ = strings.Cut(cpu, ","); cpu != "" && attr["socket"] != "" {
			b.write("sys/devices/system/cpu/cpu"+cpu+"/topology/physical_package_id", attr["socket"]+"\n")
		}
	}
}
