package doctor

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// pciDevice is what sysfs says about one function.
type pciDevice struct {
	bdf, class, vendor, device string
	node                       *int64
	speed, maxSpeed            float64 // GT/s; 0: not told
	width, maxWidth            int64   // lanes; 0: not told
	above                      []string
}

var bdfPattern = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// pci reads all functions once.
func (m *machine) pci() []pciDevice {
	if m.devices != nil {
		return *m.devices
	}
	list := []pciDevice{}
	const dir = "sys/bus/pci/devices/"
	for _, bdf := range m.list(dir) {
		if bdfPattern.MatchString(bdf) {
			list = append(list, m.pciAt(dir+bdf, bdf))
		}
	}
	m.devices = &list
	return list
}

func (m *machine) pciAt(dir, bdf string) pciDevice {
	d := pciDevice{bdf: bdf, class: m.text(dir + "/class"), vendor: m.text(dir + "/vendor"), device: m.text(dir + "/device"), node: m.number(dir + "/numa_node")}
	d.speed, d.maxSpeed = gigatransfers(m.text(dir+"/current_link_speed")), gigatransfers(m.text(dir+"/max_link_speed"))
	if w := m.number(dir + "/current_link_width"); w != nil {
		d.width = *w
	}
	if w := m.number(dir + "/max_link_width"); w != nil && *w != 255 { // 255: a virtual function
		d.maxWidth = *w
	}
	real, err := filepath.EvalSymlinks(m.at(dir))
	if err != nil {
		return d
	}
	for part := range strings.SplitSeq(filepath.ToSlash(real), "/") {
		if bdfPattern.MatchString(part) && part != bdf {
			d.above = append(d.above, part)
		}
	}
	return d
}

// gigatransfers reads "16.0 GT/s PCIe"; 0 for "Unknown".
func gigatransfers(s string) float64 {
	f, _ := strconv.ParseFloat(strings.Fields(s + " ?")[0], 64)
	return f
}

// gbps is what a link carries one way, after its line code.
func gbps(speed float64, width int64) float64 {
	code := 128. / 130
	if speed < 8 {
		code = 0.8
	}
	return speed * float64(width) * code
}

func (d *pciDevice) isGPU() bool {
	return d.vendor == "0x10de" && strings.HasPrefix(d.class, "0x03")
}

// isNVSwitch: NVIDIA's bridges of class "other".
func (d *pciDevice) isNVSwitch() bool {
	return d.vendor == "0x10de" && strings.HasPrefix(d.class, "0x0680")
}

func (m *machine) gpuDevices() int {
	n := 0
	for _, d := range m.pci() {
		if d.isGPU() {
			n++
		}
	}
	return n
}

func (m *machine) pciDevice(bdf string) *pciDevice {
	list := m.pci()
	if i := slices.IndexFunc(list, func(d pciDevice) bool { return d.bdf == bdf }); i >= 0 {
		return &list[i]
	}
	return nil
}

// Bits of the ACS control register that turn peer-to-peer traffic away from the shortest way (PCIe base specification, 7.7.8.3).
const (
	acsRequestRedirect    = 0x04
	acsCompletionRedirect = 0x08
)

// acs reads the access control register of a bridge from its configuration space: the extended capability 0x000d, at offset 6. has is false where the
// bridge has none; the error says why it could not be seen (only root sees beyond the first 64 bytes).
func (m *machine) acs(bdf string) (control uint16, has bool, err error) {
	name := "sys/bus/pci/devices/" + bdf + "/config"
	b, err := m.bytes(name, 4096)
	if err != nil {
		return 0, false, err
	}
	if len(b) <= 256 {
		return 0, false, fmt.Errorf("only %d bytes of /%s can be read", len(b), name)
	}
	word := func(at int) uint32 {
		if at < 0 || at+4 > len(b) {
			return 0
		}
		return uint32(b[at]) | uint32(b[at+1])<<8 | uint32(b[at+2])<<16 | uint32(b[at+3])<<24
	}
	for at, hops := 0x100, 0; at >= 0x100 && hops < 48; hops++ {
		head := word(at)
		if head&0xffff == 0x000d {
			return uint16(word(at+4) >> 16), true, nil
		}
		at = int(head >> 20)
	}
	return 0, false, nil
}
