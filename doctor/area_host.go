package doctor

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

var hostChecks = []check{
	{"host-kernel", "kernel", "nodes of a job should run the same one", "/proc/sys/kernel/osrelease", hostKernel},
	{"host-numa-balancing", "automatic NUMA balancing is off", "it moves pages while transfers run, and takes them away from pinned threads for a moment", "NVIDIA and AMD tuning guides: kernel.numa_balancing=0", hostNUMABalancing},
	{"host-numa-memory", "NUMA nodes have equal memory", "a node with less has lost a module: less memory and fewer channels for its GPUs", "/sys/devices/system/node/node*/meminfo", hostNUMAMemory},
	{"host-clock", "clock source", "a slow clock source costs microseconds each time a program asks for the time", "Linux clocksource", hostClock},
	{"host-governor", "processors at full clock", "small messages depend on single-thread speed; a sleepy core adds microseconds to each", "Linux cpufreq scaling_governor", hostGovernor},
	{"host-smt", "hardware threads", "two ranks' threads on one core halve each other's pace", "/sys/devices/system/cpu/smt", hostSMT},
	{"host-hugepages", "transparent huge pages and reserved ones", "compaction in the middle of an allocation stalls a rank; reserved pages are memory that nobody else gets", "Linux transhuge, hugetlbpage", hostHugepages},
	{"host-time", "the clock is kept in time", "logs of several nodes can only be put in order when clocks agree", "chrony, ntpd, systemd-timesyncd, PTP", hostTime},
	{"host-errors", "no hardware errors in the kernel log", "machine checks and PCIe errors come before a node fails", "Linux RAS: mce, EDAC, AER", hostErrors},
}

func hostKernel(m *machine, v *verdict) {
	_, _, text := m.kernelVersion()
	if text == "" {
		v.unknown("", "/proc/sys/kernel/osrelease cannot be read")
		return
	}
	v.fact("kernel", text)
	v.fact("kernel options", interestingOptions(m.text("proc/cmdline")))
	v.fact("memory", memoryText(m))
	v.fact("processors", processors(m))
	v.ok("%s; %s; %s", text, processors(m), memoryText(m))
}

// interestingOptions are those of the kernel's command line that change how a node performs; the others name disks and consoles.
func interestingOptions(line string) string {
	var out []string
	for _, w := range strings.Fields(line) {
		name, _, _ := strings.Cut(w, "=")
		if slices.Contains([]string{"iommu", "intel_iommu", "amd_iommu", "pci", "pcie_aspm", "isolcpus", "nohz_full", "rcu_nocbs", "mitigations", "numa_balancing", "transparent_hugepage", "default_hugepagesz", "hugepages",
			"processor.max_cstate", "intel_idle.max_cstate", "tsc", "clocksource", "nosmt", "init_on_alloc"}, name) {
			out = append(out, w)
		}
	}
	return strings.Join(out, " ")
}

func processors(m *machine) string {
	model, n := "", 0
	for line := range strings.Lines(m.text("proc/cpuinfo")) {
		name, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(name) {
		case "processor":
			n++
		case "model name":
			model = strings.TrimSpace(value)
		}
	}
	if online := m.text("sys/devices/system/cpu/online"); online != "" {
		n = countList(online)
	}
	return strings.TrimSpace(fmt.Sprintf("%d × %s", n, model))
}

// memTotal is the machine's memory in bytes; 0: not told.
func (m *machine) memTotal(file string) uint64 {
	for line := range strings.Lines(m.text(file)) {
		_, rest, ok := strings.Cut(line, "MemTotal:")
		if f := strings.Fields(rest); ok && len(f) > 0 {
			n, err := strconv.ParseUint(f[0], 10, 54)
			if err == nil {
				return n << 10
			}
		}
	}
	return 0
}

func memoryText(m *machine) string {
	n := m.memTotal("proc/meminfo")
	if n == 0 {
		return "memory unknown"
	}
	return fmt.Sprintf("%d GiB", (n+1<<29)>>30)
}

func hostNUMABalancing(m *machine, v *verdict) {
	on := m.number("proc/sys/kernel/numa_balancing")
	switch nodes := len(m.cpuNodes()); {
	case nodes < 2:
		v.skip("%s", count(nodes, "NUMA node"))
	case on == nil:
		v.ok("not in this kernel, or not visible here")
	case *on != 0:
		v.warn("sysctl -w kernel.numa_balancing=0 (and in /etc/sysctl.d)", "on, with %d NUMA nodes", nodes)
	default:
		v.ok("off")
	}
}

func hostNUMAMemory(m *machine, v *verdict) {
	nodes := m.cpuNodes()
	if len(nodes) < 2 {
		v.skip("%s", count(len(nodes), "NUMA node"))
		return
	}
	sizes, most := map[string]uint64{}, uint64(0)
	for _, n := range nodes {
		if b := m.memTotal("sys/devices/system/node/" + n + "/meminfo"); b > 0 {
			sizes[n] = b
			most = max(most, b)
		}
	}
	if len(sizes) == 0 {
		v.unknown("numactl -H", "no node tells its memory")
		return
	}
	for _, n := range nodes {
		if b, ok := sizes[n]; ok && b < most/10*9 {
			v.warn("dmidecode -t memory shows slots and modules; look for a module that is missing or switched off", "%s has %s, another node %s", n, sizeText(b), sizeText(most))
		}
	}
	v.allOK("%d nodes, %s each", len(sizes), sizeText(most))
}

func hostClock(m *machine, v *verdict) {
	const dir = "sys/devices/system/clocksource/clocksource0/"
	now := m.text(dir + "current_clocksource")
	v.fact("clock source", now)
	switch {
	case now == "":
		v.unknown("", "/%scurrent_clocksource cannot be read", dir)
	case slices.Contains([]string{"tsc", "arch_sys_counter", "kvm-clock", "timebase"}, now) || strings.HasPrefix(now, "hyperv_clocksource_tsc"):
		v.ok("%s", now)
	case slices.Contains(strings.Fields(m.text(dir+"available_clocksource")), "tsc"):
		v.warn("echo tsc > /"+dir+"current_clocksource; the kernel log says why it was left", "%s, although tsc is available", now)
	default:
		v.warn("dmesg | grep -i -e tsc -e clocksource says why: BIOS, or a kernel option", "%s: the processor's own counter is not in use", now)
	}
}

func hostGovernor(m *machine, v *verdict) {
	governors := map[string][]string{}
	for _, f := range m.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor") {
		// The drivers that choose by themselves call it powersave, and their preference says how eagerly they do.
		if m.text(strings.TrimSuffix(f, "scaling_governor")+"energy_performance_preference") == "performance" {
			governors["performance by preference"] = append(governors["performance by preference"], f)
		} else if g := m.text(f); g != "" {
			governors[g] = append(governors[g], strings.TrimPrefix(strings.Split(f, "/")[4], "cpu"))
		}
	}
	if len(governors) == 0 {
		v.ok("the kernel does not scale frequencies here (BIOS or host decide)")
		return
	}
	for _, g := range mostFrequent(governors) {
		if g == "powersave" || g == "conservative" || g == "ondemand" {
			v.warn("cpupower frequency-set -g performance", "%s on %d processors", g, len(governors[g]))
		} else {
			v.ok("%s on %d processors", g, len(governors[g]))
		}
	}
	v.fact("governor", strings.Join(mostFrequent(governors), ", "))
}

func hostSMT(m *machine, v *verdict) {
	switch m.text("sys/devices/system/cpu/smt/active") {
	case "1":
		v.ok("two or more a core: bind ranks to cores, not to threads (commprobe sweep --quiet-cores does)")
		v.fact("smt", "on")
	case "0":
		v.ok("one a core")
		v.fact("smt", "off")
	default:
		v.unknown("lscpu", "the kernel does not tell")
	}
}

func hostHugepages(m *machine, v *verdict) {
	enabled := chosen(m.text("sys/kernel/mm/transparent_hugepage/enabled"))
	defrag := chosen(m.text("sys/kernel/mm/transparent_hugepage/defrag"))
	v.fact("transparent huge pages", strings.TrimSpace(enabled+" "+defrag))
	if enabled == "always" && defrag == "always" {
		v.warn("echo madvise > /sys/kernel/mm/transparent_hugepage/defrag", "enabled and defrag are both always")
	}
	total := m.memTotal("proc/meminfo")
	reserved := uint64(0)
	for _, d := range m.glob("sys/kernel/mm/hugepages/hugepages-*kB") {
		var kib uint64
		if _, err := fmt.Sscanf(path.Base(d), "hugepages-%dkB", &kib); err != nil {
			continue
		}
		if n := m.number(d + "/free_hugepages"); n != nil && *n > 0 {
			reserved += uint64(*n) * kib << 10
		}
	}
	if total > 0 && reserved > total/4 {
		v.warn("sysctl -w vm.nr_hugepages=0, unless the job uses them", "%s of %s are reserved as huge pages that nobody uses", sizeText(reserved), sizeText(total))
	}
	switch {
	case enabled == "" && !v.bad():
		v.unknown("", "/sys/kernel/mm/transparent_hugepage cannot be read")
	default:
		v.allOK("%s, defrag %s; %s reserved and unused", enabled, defrag, sizeText(reserved))
	}
}

func hostTime(m *machine, v *verdict) {
	keeper := m.running("chronyd", "ntpd", "systemd-timesyncd", "ptp4l", "phc2sys", "openntpd")
	switch {
	case keeper != "":
		v.ok("%s runs", keeper)
	case m.exists("run/systemd/timesync/synchronized"):
		v.ok("systemd-timesyncd has synchronised")
	case m.container() != "" || len(m.processes()) == 0:
		v.unknown("timedatectl on the host", "what keeps the clock runs on the host")
	case m.isVirtual() && m.exists("dev/ptp0"):
		v.unknown("timedatectl", "nothing runs that keeps the clock, but the host may set it (/dev/ptp0)")
	default:
		v.warn("systemctl enable --now chronyd (or systemd-timesyncd)", "nothing runs that keeps the clock")
	}
}

// manyCorrected PCIe errors are more than one now and then.
const manyCorrected = 100

func hostErrors(m *machine, v *verdict) {
	k := m.kernel()
	if k.why != "" {
		v.unknown("run as root, or look at dmesg on the host", "%s", k.why)
		return
	}
	checks, corrected, uncorrected, oom := 0, 0, 0, 0
	for _, l := range k.lines {
		switch {
		case strings.Contains(l, "[Hardware Error]: Machine check") || strings.Contains(l, "Machine check events logged") || strings.Contains(l, "Uncorrected error") && strings.Contains(l, "EDAC"):
			checks++
		case strings.Contains(l, "PCIe Bus Error") && strings.Contains(l, "severity=Corrected"):
			corrected++
		case strings.Contains(l, "PCIe Bus Error") && strings.Contains(l, "severity=Uncorrect"):
			uncorrected++
		case strings.Contains(l, "Out of memory: Killed process") || strings.Contains(l, "oom-kill:"):
			oom++
		}
	}
	if checks > 0 {
		v.warn("rasdaemon or mcelog and the board's event log (ipmitool sel list) name the part", "%s in %s", count(checks, "machine check"), k.from)
	}
	if uncorrected > 0 {
		v.warn("dmesg | grep -A 5 'PCIe Bus Error' names the device: reseat it and its riser", "%d uncorrected PCIe errors in %s", uncorrected, k.from)
	}
	if corrected >= manyCorrected {
		v.warn("dmesg | grep -A 5 'PCIe Bus Error' names the device: reseat it and its riser", "%d corrected PCIe errors in %s", corrected, k.from)
	}
	v.allOK("none in %s; %d corrected PCIe errors, %d kills for want of memory", k.from, corrected, oom)
}
