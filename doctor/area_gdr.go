package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/internal/topo"
)

var gdrChecks = []check{
	{"gdr-path", "GPU memory can be registered for RDMA", "without nvidia_peermem or DMA-BUF every byte goes through host memory", "NCCL transport/net_ib/gdr.cc; NVIDIA GPUDirect RDMA guide", gdrPath},
	{"gdr-acs", "ACS does not redirect peer-to-peer traffic", "ACS sends GPU-to-NIC traffic up to the processor: slow, or completion error 4, or a hang", "NCCL troubleshooting guide, PCI Access Control Services", gdrACS},
	{"gdr-iommu", "IOMMU does not translate", "a translating IOMMU breaks or slows traffic between PCIe devices", "NCCL troubleshooting guide; Linux iommu=pt", gdrIOMMU},
	{"gdr-copy", "GDRCopy, where it is asked for", "NCCL_GDRCOPY_ENABLE without the driver does nothing", "NCCL gdrwrap; github.com/NVIDIA/gdrcopy", gdrCopy},
}

// needGDR skips what matters only where there are GPUs and RDMA devices.
func (m *machine) needGDR(v *verdict) bool {
	gpus := max(m.gpuDevices(), len(m.gpus()))
	if gpus > 0 && len(m.ports()) > 0 {
		return true
	}
	v.skip("%s and %s", count(gpus, "GPU"), count(len(m.ports()), "RDMA port"))
	return false
}

// kernelVersion is 5.15 of "5.15.0-1042-nvidia".
func (m *machine) kernelVersion() (major, minor int, text string) {
	text = m.text("proc/sys/kernel/osrelease")
	parts := strings.FieldsFunc(text, func(r rune) bool { return r < '0' || r > '9' })
	if len(parts) >= 2 {
		major, _ = strconv.Atoi(parts[0])
		minor, _ = strconv.Atoi(parts[1])
	}
	return major, minor, text
}

func gdrPath(m *machine, v *verdict) {
	if !m.needGDR(v) {
		return
	}
	peermem := ""
	for _, f := range []string{"sys/module/nvidia_peermem", "sys/kernel/mm/memory_peers/nv_mem", "sys/kernel/mm/memory_peers/nv_mem_nc", "sys/module/nv_peer_mem", "sys/module/efa_nv_peermem"} {
		if m.exists(f) {
			peermem = "/" + f
			break
		}
	}
	version, open := m.moduleVersion()
	kMajor, kMinor, kernel := m.kernelVersion()
	newKernel := kMajor > 5 || kMajor == 5 && kMinor >= 12
	dmabuf := open && newKernel && major(version) >= 515
	v.fact("gdr", fmt.Sprintf("peermem %t, DMA-BUF %t", peermem != "", dmabuf))
	const fix = "modprobe nvidia-peermem (and name it in /etc/modules-load.d), or install the open kernel modules for DMA-BUF"
	switch {
	case peermem != "" && dmabuf:
		v.ok("%s, and DMA-BUF (open module %s, kernel %s)", peermem, version, kernel)
	case peermem != "":
		v.ok("%s", peermem)
	case dmabuf:
		v.ok("DMA-BUF (open module %s, kernel %s); the adapter's driver must support it, too", version, kernel)
	case len(m.list("sys/module")) == 0:
		v.unknown("", "/sys/module cannot be seen here; NCCL will not see nvidia_peermem either")
	case version == "":
		v.unknown("", "no driver is loaded")
	case open:
		v.fault(fix, "no nvidia_peermem, and DMA-BUF needs kernel 5.12 and driver 515: here %s and %s", kernel, version)
	default:
		v.fault(fix, "no nvidia_peermem, and the proprietary module %s has no DMA-BUF", version)
	}
}

// gdrBridges are the bridges above GPUs and RDMA adapters.
func (m *machine) gdrBridges() []*topo.Function {
	var out []*topo.Function
	for _, d := range m.gpusAndAdapters() {
		for _, b := range m.topology().Above(d.BusID) {
			if !slices.Contains(out, b) {
				out = append(out, b)
			}
		}
	}
	slices.SortFunc(out, func(a, b *topo.Function) int { return strings.Compare(a.BusID, b.BusID) })
	return out
}

func gdrACS(m *machine, v *verdict) {
	if !m.needGDR(v) {
		return
	}
	if m.isVirtual() {
		v.skip("a virtual machine: the host needs ACS to keep guests apart")
		return
	}
	var redirects, hidden, off []string
	bridges := m.gdrBridges()
	for _, b := range bridges {
		switch on := b.ACS.Enabled; {
		case b.ACS.State == "cannot tell":
			hidden = append(hidden, b.BusID)
		case slices.Contains(on, "RR") || slices.Contains(on, "CR"): // requests and completions: the bits that turn traffic away from the shortest way
			redirects = append(redirects, fmt.Sprintf("%s (%s)", b.BusID, strings.Join(on, " ")))
			off = append(off, "setpci -s "+b.BusID+" ECAP_ACS+0x6.w=0000")
		}
	}
	switch {
	case len(bridges) == 0:
		v.unknown("", "the PCI tree above GPUs and adapters cannot be seen here")
	case len(redirects) > 0:
		v.fault("turn ACS off in the BIOS, or until the next start: "+strings.Join(off, "; "), "redirection is on in %d of %d bridges above GPUs and adapters: %s", len(redirects), len(bridges), shorten(redirects, 4))
	case len(hidden) > 0:
		v.unknown("run as root on the host, or: sudo lspci -vvv | grep ACSCtl (SrcValid+ and ReqRedir+ mean on)", "the configuration of %d of %d bridges cannot be read by this user", len(hidden), len(bridges))
	default:
		v.ok("off in all of %d bridges above GPUs and adapters", len(bridges))
	}
}

// commandLine tells whether the kernel was started with one of the words.
func (m *machine) commandLine(words ...string) string {
	for _, w := range strings.Fields(m.text("proc/cmdline")) {
		if slices.Contains(words, w) {
			return w
		}
	}
	return ""
}

func gdrIOMMU(m *machine, v *verdict) {
	if !m.needGDR(v) {
		return
	}
	types, translated := map[string]string{}, false
	for _, d := range m.gpusAndAdapters() {
		if t := m.text("sys/bus/pci/devices/" + d.BusID + "/iommu_group/type"); t != "" {
			types[d.BusID] = t
			translated = translated || strings.HasPrefix(t, "DMA")
		}
	}
	groupCount := len(m.list("sys/kernel/iommu_groups"))
	const fix = "start the kernel with iommu=pt (Intel: intel_iommu=on iommu=pt), or turn the IOMMU off in the BIOS: /etc/default/grub, update-grub, reboot"
	pt := m.commandLine("iommu=pt", "iommu.passthrough=1", "iommu=off", "intel_iommu=off", "amd_iommu=off")
	v.fact("iommu", groups(types))
	switch {
	case translated && m.arm():
		v.ok("%s; usual for this processor", groups(types))
	case translated && m.isVirtual():
		v.ok("%s; a virtual machine", groups(types))
	case translated:
		v.warn(fix, "%s", groups(types))
	case len(types) > 0:
		v.ok("%s", groups(types))
	case pt != "":
		v.ok("%s on the kernel's command line", pt)
	case m.exists("sys/kernel/iommu_groups") && groupCount == 0:
		v.ok("off: no IOMMU groups")
	case groupCount > 0 && !m.isVirtual():
		v.warn(fix, "on (%d groups), and the command line does not say iommu=pt", groupCount)
	default:
		v.unknown("on the host: cat /proc/cmdline; ls /sys/kernel/iommu_groups", "IOMMU groups cannot be seen here")
	}
}

func gdrCopy(m *machine, v *verdict) {
	loaded := m.exists("dev/gdrdrv") || m.exists("sys/module/gdrdrv")
	switch {
	case m.env["NCCL_GDRCOPY_ENABLE"] == "" || m.env["NCCL_GDRCOPY_ENABLE"] == "0":
		v.skip("NCCL_GDRCOPY_ENABLE is not set")
	case !loaded:
		v.warn("install gdrcopy and modprobe gdrdrv, or unset NCCL_GDRCOPY_ENABLE", "NCCL_GDRCOPY_ENABLE=%s, but gdrdrv is not loaded", m.env["NCCL_GDRCOPY_ENABLE"])
	default:
		v.ok("gdrdrv is loaded")
	}
}
