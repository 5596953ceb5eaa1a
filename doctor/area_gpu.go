package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/commprobe/commprobe/internal/nvml"
)

var gpuChecks = []check{
	{"gpu-count", "all GPUs are there", "a GPU that the driver does not see is broken or off the bus; a job that expects it fails or hangs", "PCI bus against NVML", gpuCount},
	{"gpu-answers", "each GPU answers", "a lost GPU makes every collective hang", "nvmlReturn_t: GPU is lost, reset required; field GPU_RECOVERY_ACTION", gpuAnswers},
	{"gpu-same", "GPUs are alike", "the slowest or smallest GPU sets the pace of all", "collectives wait for the last rank", gpuSame},
	{"gpu-xid", "no GPU errors in the kernel log", "after these errors a GPU or link is unreliable until it is reset or replaced", "NVIDIA, XID Errors", gpuXid},
	{"gpu-ecc", "ECC is on, no uncorrected errors", "without ECC a flipped bit becomes a wrong gradient; uncorrected errors end programs", "NVML ECC counters; DCGM health checks", gpuECC},
	{"gpu-rows", "memory repair is complete", "a replacement that is pending needs a reset, one that failed needs a new GPU", "NVIDIA, GPU Memory Error Management", gpuRows},
	{"gpu-clocks", "nothing holds the clocks down", "one slow GPU slows all ranks", "nvmlClocksEventReasons", gpuClocks},
	{"gpu-temperature", "temperature", "near the limit the GPU slows itself down once work starts", "most data-centre GPUs slow down between 85 and 90 °C", gpuTemperature},
	{"gpu-pcie", "PCIe link as wide and fast as possible", "a link that trained narrow or slow halves host and NIC traffic; NCCL also plans with it", "NCCL xml.cc takes NVML's current width and generation", gpuPCIe},
	{"gpu-replays", "PCIe link without replays", "replays are transmission errors: a riser, cable or contact", "nvmlDeviceGetPcieReplayCounter", gpuReplays},
	{"gpu-persistence", "persistence mode", "without it the driver starts the GPU anew for each job, and settings and first calls take seconds", "NVIDIA driver persistence guide", gpuPersistence},
	{"gpu-mig", "MIG is off", "between MIG instances there is no P2P, and NCCL takes one rank a GPU only", "NVIDIA MIG user guide", gpuMIG},
	{"gpu-compute-mode", "compute mode", "prohibited refuses every job; exclusive refuses a second process, such as a profiler or another rank", "nvidia-smi -c", gpuComputeMode},
	{"gpu-free", "nobody else uses the GPUs", "left-over processes hold memory and slow the job", "nvmlDeviceGetComputeRunningProcesses", gpuFree},
	{"gpu-p2p", "GPUs reach each other's memory", "without P2P NCCL goes through host memory at a fraction of the rate", "nvidia-smi topo -p2p r", gpuP2P},
	{"gpu-bar1", "BAR1 is large enough for RDMA", "GPUDirect RDMA maps GPU memory through BAR1", "NVIDIA GPUDirect RDMA guide", gpuBAR1},
}

// called names a GPU as people and the PCI bus do.
func called(g *nvml.GPU) string {
	if g.PCI == nil {
		return fmt.Sprint("GPU ", g.Index)
	}
	return fmt.Sprintf("GPU %d (%s)", g.Index, *g.PCI)
}

// each looks at every GPU; a GPU that does not tell makes the check one that cannot tell, unless something worse was found.
func (m *machine) each(v *verdict, what string, look func(g *nvml.GPU) bool) {
	if !m.needGPUs(v) {
		return
	}
	var silent []string
	reason := ""
	gpus := m.gpus()
	for i := range gpus {
		if !look(&gpus[i]) {
			silent = append(silent, fmt.Sprint(gpus[i].Index))
			reason = cmp.Or(reason, missing(&gpus[i]))
		}
	}
	switch {
	case len(silent) == len(gpus):
		v.unknown("", "no GPU tells its %s%s", what, reason)
	case len(silent) > 0:
		v.unknown("", "GPU %s does not tell its %s%s", shorten(silent, 16), what, reason)
	}
}

func missing(g *nvml.GPU) string {
	if s := g.Missing["all"]; s != "" {
		return ": " + s
	}
	return ""
}

// allOK is said when every GPU was fine.
func (v *verdict) allOK(format string, args ...any) {
	if len(v.notes) == 0 && v.skipped == "" {
		v.ok(format, args...)
	}
}

func gpuCount(m *machine, v *verdict) {
	if !m.needGPUs(v) {
		return
	}
	bus, seen := m.gpuDevices(), len(m.gpus())
	switch {
	case bus == 0:
		v.unknown("", "NVML sees %d GPUs; the PCI bus cannot be read here", seen)
	case seen == bus:
		v.ok("%d", seen)
	case seen < bus && m.container() != "":
		v.ok("%d of the %d on the bus are given to this container", seen, bus)
	case seen < bus:
		v.fault("dmesg | grep -i nvrm; nvidia-smi; a reboot, then hardware service, if it stays away", "%d GPUs on the PCI bus, NVML sees %d: %s not there", bus, seen, shorten(m.unseen(), 4))
	default:
		v.ok("%d (the PCI bus shows %d)", seen, bus)
	}
}

// unseen are the GPUs that are on the bus but not in NVML.
func (m *machine) unseen() []string {
	var out []string
	for _, d := range m.topology().GPUs {
		if !slices.ContainsFunc(m.gpus(), func(g nvml.GPU) bool { return g.PCI != nil && *g.PCI == d.BusID }) {
			out = append(out, d.BusID)
		}
	}
	return out
}

func gpuAnswers(m *machine, v *verdict) {
	m.each(v, "state", func(g *nvml.GPU) bool {
		if s := g.Missing["all"]; s != "" {
			v.fault(resetGPU, "%s: %s", called(g), s)
			return true
		}
		if r := g.Recovery; r != nil && *r != "none" {
			v.fault("do it before a job: drain the node; nvidia-smi -q -i GPU | grep -i recovery", "%s: the driver asks for %s", called(g), *r)
			return true
		}
		for field, s := range g.Missing {
			if strings.Contains(s, "fallen off the bus") || strings.Contains(s, "needs a reset") {
				v.fault(resetGPU, "%s: %s (asked for %s)", called(g), s, field)
				return true
			}
		}
		return true
	})
	v.allOK("all of %d", len(m.gpus()))
}

func gpuSame(m *machine, v *verdict) {
	models := map[string]string{}
	m.each(v, "name", func(g *nvml.GPU) bool {
		if g.Name == nil {
			return false
		}
		models[fmt.Sprint("GPU ", g.Index)] = *g.Name
		if g.Memory != nil {
			models[fmt.Sprint("GPU ", g.Index)] += " with " + sizeText(g.Memory.TotalBytes)
		}
		return true
	})
	if len(models) == 0 {
		return
	}
	names := map[string]bool{}
	for _, s := range models {
		names[s] = true
	}
	v.fact("gpu model", groups(models))
	if len(names) > 1 {
		v.warn("choose GPUs of one kind: CUDA_VISIBLE_DEVICES", "%s", groups(models))
		return
	}
	for s := range names {
		v.allOK("%d × %s", len(models), s)
	}
}

func gpuXid(m *machine, v *verdict) {
	k := m.kernel()
	if m.gpuDevices() == 0 && len(m.gpus()) == 0 {
		v.skip("no GPU")
		return
	}
	if k.why != "" {
		v.unknown("run as root, or look at dmesg on the host", "%s", k.why)
		return
	}
	type key struct {
		what   string
		status Status
		fix    string
	}
	count := map[key]int{}
	var order []key
	for _, x := range settled(k.xids()) {
		status, means, fix := xidMeaning(x)
		if status == Fault && !x.isSXid && m.recovered(x.bus) {
			status, means = Warn, means+"; the driver asks for no recovery now"
		}
		name := "Xid"
		if x.isSXid {
			name = "SXid"
		}
		at := key{fmt.Sprintf("%s %d on %s: %s", name, x.code, x.bus, means), status, fix}
		if count[at]++; count[at] == 1 {
			order = append(order, at)
		}
	}
	for _, at := range order {
		times := ""
		if n := count[at]; n > 1 {
			times = fmt.Sprintf(" (%d times)", n)
		}
		v.add(at.status, at.fix, "%s%s since the start of the kernel", []any{at.what, times})
	}
	v.allOK("none in %s since the start of the kernel", k.from)
}

// recovered tells whether the driver says that a GPU needs nothing any more; drivers before 570 say nothing.
func (m *machine) recovered(bus string) bool {
	return slices.ContainsFunc(m.gpus(), func(g nvml.GPU) bool {
		return g.PCI != nil && strings.HasPrefix(*g.PCI, strings.ToLower(bus)) && g.Recovery != nil && *g.Recovery == "none"
	})
}

func gpuECC(m *machine, v *verdict) {
	corrected := uint64(0)
	m.each(v, "ECC mode", func(g *nvml.GPU) bool {
		e := &g.ECC
		if e.On == nil {
			return false
		}
		if !*e.On {
			v.warn("nvidia-smi -e 1, then reset the GPU", "%s: ECC is off", called(g))
		}
		if e.Pending != nil && *e.Pending != *e.On {
			v.warn(resetGPU, "%s: the ECC mode changes at the next reset", called(g))
		}
		if n := e.VolatileUncorrected; n != nil && *n > 0 {
			v.fault(resetGPU, "%s: %d uncorrected errors since the driver was loaded", called(g), *n)
		}
		if n := e.VolatileCorrected; n != nil {
			corrected += *n
		}
		return true
	})
	v.allOK("on; %d corrected errors since the driver was loaded, none uncorrected", corrected)
}

// maxRetired is the number of retired pages from which NVIDIA replaces a GPU (Dynamic Page Retirement guide: 64 can be stored, 60 qualify).
const maxRetired = 60

func gpuRows(m *machine, v *verdict) {
	replaced := 0
	m.each(v, "repaired memory", func(g *nvml.GPU) bool {
		told := false
		if r := g.Rows; r != nil {
			told = true
			replaced += r.Corrected + r.Uncorrected
			if r.Failure {
				v.fault(replaceGPU, "%s: a memory row could not be replaced", called(g))
			}
			if r.Pending {
				v.warn(resetGPU, "%s: a memory row is replaced at the next reset", called(g))
			}
		}
		if r := &g.Retired; r.Pending != nil {
			told = true
			if *r.Pending {
				v.warn(resetGPU, "%s: a memory page is retired at the next reset", called(g))
			}
			if n := deref(r.SingleBit) + deref(r.DoubleBit); n >= maxRetired {
				v.fault(replaceGPU, "%s: %d memory pages are retired", called(g), n)
			}
		}
		return told
	})
	v.allOK("nothing pending, nothing failed; %d rows replaced in the GPUs' lives", replaced)
}

func deref(n *int) int {
	if n == nil {
		return 0
	}
	return *n
}

func gpuClocks(m *machine, v *verdict) {
	const hardware, software = 0x8 | 0x40 | 0x80, 0x20
	m.each(v, "clock limits", func(g *nvml.GPU) bool {
		if g.Clocks == nil {
			return false
		}
		mask := *g.Clocks
		switch {
		case mask&hardware != 0:
			v.fault("power brake: check power supplies and their cables; thermal: check fans, air flow, coolant; nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER", "%s is slowed down: %s", called(g), strings.Join(nvml.ClockReasons(mask&hardware), ", "))
		case mask&software != 0:
			v.warn("check fans and air flow: nvidia-smi -q -d TEMPERATURE", "%s is slowed down: %s", called(g), strings.Join(nvml.ClockReasons(mask&software), ", "))
		}
		return true
	})
	v.allOK("idle or at full clocks")
}

// hot is when a GPU before a job has hardly any room left.
const hot = 85

func gpuTemperature(m *machine, v *verdict) {
	warmest := -1
	m.each(v, "temperature", func(g *nvml.GPU) bool {
		if g.Temperature == nil {
			return false
		}
		warmest = max(warmest, *g.Temperature)
		if *g.Temperature >= hot {
			v.warn("check fans, air flow and coolant before starting: nvidia-smi -q -d TEMPERATURE", "%s: %d °C", called(g), *g.Temperature)
		}
		return true
	})
	v.allOK("%d °C at most", warmest)
}

func gpuPCIe(m *machine, v *verdict) {
	links := map[string]string{}
	m.each(v, "PCIe link", func(g *nvml.GPU) bool {
		p := &g.PCIe
		if p.Width == nil || p.MaxWidth == nil || *p.MaxWidth == 0 {
			return false
		}
		if *p.Width < *p.MaxWidth {
			v.fault("reseat the card or riser; lspci -vv -s "+bus(g)+" | grep LnkSta", "%s: x%d of x%d lanes", called(g), *p.Width, *p.MaxWidth)
		}
		if p.Gen != nil && p.MaxGen != nil && *p.Gen < *p.MaxGen && busy(g) {
			v.warn("lspci -vv -s "+bus(g)+" | grep LnkSta while it works", "%s: generation %d of %d although it is in use", called(g), *p.Gen, *p.MaxGen)
		}
		links[fmt.Sprint("GPU ", g.Index)] = fmt.Sprintf("gen%d x%d", deref(p.MaxGen), *p.MaxWidth)
		return true
	})
	if len(links) == 0 {
		return
	}
	v.fact("gpu pcie", groups(links))
	different := map[string]bool{}
	for _, l := range links {
		different[l] = true
	}
	if len(different) > 1 {
		v.warn("compare slots and BIOS settings of the GPUs", "they can reach different rates: %s", groups(links))
	}
	v.allOK("%s (an idle GPU lowers its generation)", groups(links))
}

func bus(g *nvml.GPU) string {
	if g.PCI == nil {
		return "ADDRESS"
	}
	return *g.PCI
}

// busy tells whether something computes: a link at rest runs slowly on purpose.
func busy(g *nvml.GPU) bool {
	return len(g.Processes) > 0 && g.Clocks != nil && *g.Clocks&1 == 0
}

// manyReplays is far above what plugging and training leave behind.
const manyReplays = 100

func gpuReplays(m *machine, v *verdict) {
	most := 0
	m.each(v, "replays", func(g *nvml.GPU) bool {
		if g.PCIe.Replays == nil {
			return false
		}
		most = max(most, *g.PCIe.Replays)
		if *g.PCIe.Replays >= manyReplays {
			v.warn("reseat card, riser and cables; see dmesg for AER messages", "%s: %d replays since the driver was loaded", called(g), *g.PCIe.Replays)
		}
		return true
	})
	v.allOK("%d at most", most)
}

func gpuPersistence(m *machine, v *verdict) {
	var off []string
	m.each(v, "persistence mode", func(g *nvml.GPU) bool {
		if g.Persistence == nil {
			return false
		}
		if !*g.Persistence {
			off = append(off, fmt.Sprint(g.Index))
		}
		return true
	})
	if len(off) > 0 {
		v.warn("systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1", "off on GPU %s", shorten(off, 16))
	}
	v.allOK("on")
}

func gpuMIG(m *machine, v *verdict) {
	var on []string
	m.each(v, "MIG mode", func(g *nvml.GPU) bool {
		if g.MIG == nil {
			return g.Missing["mig"] != "" && g.Missing["all"] == "" // a GPU without MIG
		}
		if *g.MIG {
			on = append(on, fmt.Sprint(g.Index))
		}
		return true
	})
	if len(on) > 0 {
		v.warn("nvidia-smi -i GPU -mig 0, then reset the GPU, unless the job is made for instances", "on for GPU %s", shorten(on, 16))
	}
	v.allOK("off")
}

func gpuComputeMode(m *machine, v *verdict) {
	m.each(v, "compute mode", func(g *nvml.GPU) bool {
		if g.ComputeMode == nil {
			return false
		}
		const fix = "nvidia-smi -c DEFAULT"
		switch *g.ComputeMode {
		case "prohibited":
			v.fault(fix, "%s: prohibited", called(g))
		case "default":
		default:
			v.warn(fix, "%s: %s", called(g), *g.ComputeMode)
		}
		return true
	})
	v.allOK("default")
}

// leftOver is more memory than driver and fabric keep on an idle GPU.
const leftOver = 4 << 30

func gpuFree(m *machine, v *verdict) {
	m.each(v, "use", func(g *nvml.GPU) bool {
		switch {
		case len(g.Processes) > 0:
			var pids []string
			for _, p := range g.Processes {
				pids = append(pids, fmt.Sprint(p.PID))
			}
			v.warn("end them if they are left over: ps -fp PID", "%s: process %s", called(g), shorten(pids, 6))
		case g.Memory != nil && g.Memory.UsedBytes > leftOver:
			v.warn("look for left-over processes on the host and in other containers: nvidia-smi, fuser -v /dev/nvidia*", "%s: %s are in use by nobody that can be seen here", called(g), sizeText(g.Memory.UsedBytes))
		}
		return g.Memory != nil
	})
	v.allOK("no process, memory is free")
}

func gpuP2P(m *machine, v *verdict) {
	if !m.needGPUs(v) {
		return
	}
	if len(m.gpus()) == 1 {
		v.skip("one GPU")
		return
	}
	linked := slices.ContainsFunc(m.gpus(), func(g nvml.GPU) bool { return active(&g) > 0 })
	bad := map[string]string{}
	told := 0
	for _, p := range m.NVML.Pairs {
		s := p.P2P["read"]
		if s == "" {
			continue
		}
		told++
		if s != "OK" {
			bad[fmt.Sprintf("%d-%d", p.A, p.B)] = s
		}
	}
	switch {
	case told == 0:
		v.unknown("nvidia-smi topo -p2p r", "no pair tells")
	case len(bad) == 0:
		v.ok("all of %s", count(told, "pair"))
	case linked:
		v.fault("nvidia-smi topo -p2p r and nvidia-smi nvlink -s; restart the fabric manager where there are NVSwitches", "%d of %d pairs cannot, although there is NVLink: %s", len(bad), told, groups(bad))
	default:
		v.warn("nvidia-smi topo -p2p r; CNS and TNS: IOMMU and ACS in BIOS and kernel; GNS: this GPU or virtual machine does not offer it", "%d of %d pairs cannot: %s", len(bad), told, groups(bad))
	}
}

// smallBAR1 is what GPUs have that are not made for RDMA.
const smallBAR1 = 256 << 20

func gpuBAR1(m *machine, v *verdict) {
	if len(m.ports()) == 0 {
		v.skip("no RDMA device")
		return
	}
	smallest := uint64(0)
	m.each(v, "BAR1", func(g *nvml.GPU) bool {
		b := g.BAR1
		if b == nil || b.TotalBytes == 0 {
			return false
		}
		if smallest == 0 || b.TotalBytes < smallest {
			smallest = b.TotalBytes
		}
		switch {
		case b.TotalBytes <= smallBAR1:
			v.warn("turn on Above 4G Decoding and Resizable BAR in the BIOS where card and board have it", "%s: %s", called(g), sizeText(b.TotalBytes))
		case b.UsedBytes > b.TotalBytes/10*9:
			v.warn("look for left-over processes: nvidia-smi", "%s: %s of %s are mapped", called(g), sizeText(b.UsedBytes), sizeText(b.TotalBytes))
		}
		return true
	})
	v.allOK("%s", sizeText(smallest))
}
