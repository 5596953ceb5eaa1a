package nvml

import (
	"fmt"

	"github.com/commprobe/commprobe/csrc"
)

func readGPU(g *GPU, d csrc.NvmlDevice) {
	m := g.Missing
	g.Name = get(m, "name", "nvmlDeviceGetName", d.GetName)
	g.UUID = get(m, "uuid", "nvmlDeviceGetUUID", d.GetUUID)
	g.PCI = busID(m, "pci", get(m, "pci", "nvmlDeviceGetPciInfo_v3", d.GetPciInfo))
	g.Minor = get(m, "minor", "nvmlDeviceGetMinorNumber", d.GetMinorNumber)
	g.SM = get(m, "sm", "nvmlDeviceGetCudaComputeCapability", func() (string, int) {
		major, minor, code := d.GetCudaComputeCapability()
		return fmt.Sprintf("%d.%d", major, minor), code
	})
	space := func(v csrc.NvmlMemory) Space { return Space{v.Total, v.Used} }
	g.Memory = as(get(m, "memory", "nvmlDeviceGetMemoryInfo", d.GetMemoryInfo), space)
	g.BAR1 = as(get(m, "bar1", "nvmlDeviceGetBAR1MemoryInfo", d.GetBAR1MemoryInfo), space)
	readPCIe(g, d)
	readMemoryErrors(g, d)
	readState(g, d)
	readLinks(g, d)
	g.Fabric = readFabric(m, d)
	cpus := get(m, "cpu_affinity", "nvmlDeviceGetCpuAffinity", func() ([]uint, int) {
		words := make([]uint, 128) // more CPUs than a kernel knows
		return words, d.GetCpuAffinity(words)
	})
	g.CPUs = as(cpus, cpuList)
	if processes := get(m, "processes", "nvmlDeviceGetComputeRunningProcesses_v3", func() ([]csrc.NvmlProcess, int) { return growing(d.GetComputeRunningProcesses) }); processes != nil {
		for _, p := range *processes {
			g.Processes = append(g.Processes, process(p))
		}
	}
}

// maxEntries bounds a list that a library never finds room enough for.
const maxEntries = 1 << 20

// growing calls for a list with more room until it fits.
func growing[T any](call func(room int) (list []T, n, code int)) ([]T, int) {
	for room := 1; ; {
		list, n, code := call(room)
		if code == csrc.NvmlSuccess && n <= room {
			return list, code
		}
		if code != csrc.NvmlSuccess && code != csrc.NvmlInsufficientSize {
			return nil, code
		}
		if room = 2 * max(room, n); room > maxEntries {
			return nil, csrc.NvmlInsufficientSize
		}
	}
}

func process(p csrc.NvmlProcess) Process {
	out := Process{PID: p.PID}
	if p.UsedBytes != ^uint64(0) { // NVML_VALUE_NOT_AVAILABLE
		out.UsedBytes = &p.UsedBytes
	}
	return out
}

// busID writes an address as sysfs does, or says in missing why it is none.
func busID(missing map[string]string, field string, id *string) *string {
	if id == nil {
		return nil
	}
	if n := NormalPCI(*id); n != "" {
		return &n
	}
	missing[field] = fmt.Sprintf("no address: %q", *id)
	return nil
}

func readPCIe(g *GPU, d csrc.NvmlDevice) {
	m, p := g.Missing, &g.PCIe
	p.Gen = get(m, "pcie.generation", "nvmlDeviceGetCurrPcieLinkGeneration", d.GetCurrPcieLinkGeneration)
	p.Width = get(m, "pcie.width", "nvmlDeviceGetCurrPcieLinkWidth", d.GetCurrPcieLinkWidth)
	p.MaxGen = get(m, "pcie.max_generation", "nvmlDeviceGetMaxPcieLinkGeneration", d.GetMaxPcieLinkGeneration)
	p.MaxWidth = get(m, "pcie.max_width", "nvmlDeviceGetMaxPcieLinkWidth", d.GetMaxPcieLinkWidth)
	p.DeviceMaxGen = get(m, "pcie.device_max_generation", "nvmlDeviceGetGpuMaxPcieLinkGeneration", d.GetGpuMaxPcieLinkGeneration)
	p.Replays = get(m, "pcie.replays", "nvmlDeviceGetPcieReplayCounter", d.GetPcieReplayCounter)
}

func readMemoryErrors(g *GPU, d csrc.NvmlDevice) {
	m, e := g.Missing, &g.ECC
	type modes struct{ now, pending int }
	mode := get(m, "ecc.on", "nvmlDeviceGetEccMode", func() (modes, int) {
		now, pending, code := d.GetEccMode()
		return modes{now, pending}, code
	})
	e.On = as(mode, func(v modes) bool { return isOn(v.now) })
	e.Pending = as(mode, func(v modes) bool { return isOn(v.pending) })
	total := func(field string, kind, since int) *uint64 {
		return get(m, "ecc."+field, "nvmlDeviceGetTotalEccErrors", func() (uint64, int) { return d.GetTotalEccErrors(kind, since) })
	}
	e.VolatileCorrected = total("volatile_corrected", csrc.NvmlCorrected, csrc.NvmlVolatile)
	e.VolatileUncorrected = total("volatile_uncorrected", csrc.NvmlUncorrected, csrc.NvmlVolatile)
	e.AggregateCorrected = total("aggregate_corrected", csrc.NvmlCorrected, csrc.NvmlAggregate)
	e.AggregateUncorrected = total("aggregate_uncorrected", csrc.NvmlUncorrected, csrc.NvmlAggregate)
	g.Retired.SingleBit = retired(m, "single_bit", d, csrc.NvmlRetiredSingleBit)
	g.Retired.DoubleBit = retired(m, "double_bit", d, csrc.NvmlRetiredDoubleBit)
	g.Retired.Pending = as(get(m, "retired_pages.pending", "nvmlDeviceGetRetiredPagesPendingStatus", d.GetRetiredPagesPendingStatus), isOn)
	rows := get(m, "remapped_rows", "nvmlDeviceGetRemappedRows", d.GetRemappedRows)
	g.Rows = as(rows, func(v [4]uint32) Rows { return Rows{int(v[0]), int(v[1]), v[2] != 0, v[3] != 0} })
}

func retired(missing map[string]string, field string, d csrc.NvmlDevice, cause int) *int {
	return get(missing, "retired_pages."+field, "nvmlDeviceGetRetiredPages", func() (int, int) {
		list, code := growing(func(room int) ([]uint64, int, int) {
			pages := make([]uint64, room)
			n, code := d.GetRetiredPages(cause, pages)
			return pages[:min(n, room)], n, code
		})
		return len(list), code
	})
}

func readState(g *GPU, d csrc.NvmlDevice) {
	m := g.Missing
	g.Clocks = get(m, "clock_event_mask", "nvmlDeviceGetCurrentClocksEventReasons", d.GetCurrentClocksEventReasons)
	g.Temperature = get(m, "temperature_c", "nvmlDeviceGetTemperature", d.GetTemperature)
	g.Power = get(m, "power_mw", "nvmlDeviceGetPowerUsage", d.GetPowerUsage)
	g.PowerLimit = get(m, "power_limit_mw", "nvmlDeviceGetEnforcedPowerLimit", d.GetEnforcedPowerLimit)
	g.Persistence = as(get(m, "persistence", "nvmlDeviceGetPersistenceMode", d.GetPersistenceMode), isOn)
	modes := []string{"default", "exclusive-thread", "prohibited", "exclusive-process"}
	g.ComputeMode = as(get(m, "compute_mode", "nvmlDeviceGetComputeMode", d.GetComputeMode), func(v int) string {
		if v >= 0 && v < len(modes) {
			return modes[v]
		}
		return fmt.Sprint("mode ", v)
	})
	g.Recovery = recovery(m, d)
	g.MIG = get(m, "mig", "nvmlDeviceGetMigMode", func() (bool, int) {
		now, _, code := d.GetMigMode()
		return now == csrc.NvmlMIGOn, code
	})
}

// recovery reads the field in which the driver (from 570 on) says whether errors of the past still need a reset.
func recovery(missing map[string]string, d csrc.NvmlDevice) *string {
	actions := []string{"none", "GPU reset", "node reboot", "drain P2P", "drain and reset", "recover IMEX domain", "bus reset", "system reboot"}
	v := get(missing, "recovery_action", "nvmlDeviceGetFieldValues", func() (uint32, int) { return d.GetFieldValue(csrc.NvmlFieldRecoveryAction) })
	return as(v, func(n uint32) string {
		if int(n) < len(actions) {
			return actions[n]
		}
		return fmt.Sprint("action ", n)
	})
}

// readFabric takes the newest of the forms that the driver knows.
func readFabric(missing map[string]string, d csrc.NvmlDevice) *Fabric {
	v, code := d.GetGpuFabricInfoV()
	switch code {
	case csrc.NvmlSuccess:
		f := newFabric(v)
		f.Health = &v.Health
		return &f
	case csrc.Missing, csrc.NvmlArgumentVersionMismatch:
		return as(get(missing, "fabric", "nvmlDeviceGetGpuFabricInfo", d.GetGpuFabricInfo), newFabric)
	}
	missing["fabric"] = codeText(code)
	return nil
}

func newFabric(v csrc.NvmlFabric) Fabric {
	states := []string{"not supported", "not started", "in progress", "completed"}
	f := Fabric{State: fmt.Sprint("state ", v.State), Status: v.Status, Clique: v.Clique}
	if int(v.State) < len(states) {
		f.State = states[v.State]
	}
	u := v.Cluster
	f.Cluster = fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
	return f
}
