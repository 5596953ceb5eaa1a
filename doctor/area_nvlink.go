package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/commprobe/commprobe/internal/nvml"
)

var nvlinkChecks = []check{
	{"nvlink-active", "all NVLinks are up", "a ring goes at the rate of its narrowest link; NCCL plans anew around a lost one", "nvidia-smi nvlink -s", nvlinkActive},
	{"nvlink-errors", "NVLinks without errors", "recoveries stop traffic for milliseconds and announce a failing link", "nvidia-smi nvlink -e", nvlinkErrors},
	{"fabric-manager", "fabric manager has set the NVSwitches up", "until then CUDA fails with error 802 (system not yet initialised)", "NVIDIA Fabric Manager user guide", fabricManager},
	{"fabric-health", "NVLink fabric is healthy", "a degraded fabric routes traffic over fewer links", "nvmlGpuFabricInfoV healthMask", fabricHealth},
	{"imex", "IMEX runs for NVLink between nodes", "without it memory cannot be shared with GPUs of other nodes, and NCCL's multi-node NVLink fails or is not used", "NVIDIA IMEX guide; NCCL mnnvl.cc", imex},
}

// active counts the links of a GPU that are up.
func active(g *nvml.GPU) int {
	n := 0
	for _, l := range g.Links {
		if l.Active != nil && *l.Active {
			n++
		}
	}
	return n
}

func nvlinkActive(m *machine, v *verdict) {
	if !m.needGPUs(v) {
		return
	}
	most, links := 0, 0
	counts := map[string]string{}
	gpus := m.gpus()
	for i := range gpus {
		links = max(links, len(gpus[i].Links))
		most = max(most, active(&gpus[i]))
	}
	if most == 0 {
		v.skip("no NVLink is in use on any GPU")
		return
	}
	for i := range gpus {
		g := &gpus[i]
		n := active(g)
		counts[fmt.Sprint("GPU ", g.Index)] = fmt.Sprintf("%d of %d", n, len(g.Links))
		if n < most {
			v.fault(checkLinks, "%s: %d links are up, other GPUs have %d; down: %s", called(g), n, most, shorten(down(g), 8))
		}
	}
	v.fact("nvlinks", groups(counts))
	v.allOK("%s", groups(counts))
}

func down(g *nvml.GPU) []string {
	var out []string
	for _, l := range g.Links {
		if l.Active != nil && !*l.Active {
			out = append(out, fmt.Sprint(l.Link))
		}
	}
	if len(g.Links) == 0 {
		out = append(out, "all")
	}
	return out
}

// manyCRC is more corrected flit errors than a good link makes in months.
const manyCRC = 1000

func nvlinkErrors(m *machine, v *verdict) {
	if !m.needGPUs(v) {
		return
	}
	told := false
	gpus := m.gpus()
	for i := range gpus {
		for _, l := range gpus[i].Links {
			told = told || l.Replays != nil || l.CRCFlit != nil
			value := func(n *uint64) uint64 {
				if n == nil {
					return 0
				}
				return *n
			}
			if value(l.Recoveries) > 0 || value(l.Replays) > 0 || value(l.CRCFlit) >= manyCRC || value(l.CRCData) >= manyCRC {
				v.warn(checkLinks, "%s link %d: %d recoveries, %d replays, %d CRC errors", called(&gpus[i]), l.Link, value(l.Recoveries), value(l.Replays), value(l.CRCFlit)+value(l.CRCData))
			}
		}
	}
	switch {
	case !slices.ContainsFunc(gpus, func(g nvml.GPU) bool { return active(&g) > 0 }):
		v.skip("no NVLink is in use")
	case !told:
		v.unknown("nvidia-smi nvlink -e", "no link tells its error counters")
	default:
		v.allOK("none")
	}
}

// switches counts NVSwitches, and tells whether the GPUs are connected to such, which a virtual machine may not see.
func (m *machine) switches() (onBus int, linked bool) {
	for _, d := range m.pci() {
		if d.isNVSwitch() {
			onBus++
		}
	}
	for _, g := range m.gpus() {
		for _, l := range g.Links {
			linked = linked || l.RemoteType != nil && *l.RemoteType == "switch"
		}
	}
	return onBus, linked
}

func fabricManager(m *machine, v *verdict) {
	onBus, linked := m.switches()
	if onBus == 0 && !linked {
		v.skip("no NVSwitch")
		return
	}
	m.fabricVersion(v)
	const fix = "systemctl enable --now nvidia-fabricmanager; journalctl -u nvidia-fabricmanager"
	states := map[string]string{}
	for _, g := range m.gpus() {
		if g.Fabric == nil || g.Fabric.State == "not supported" {
			continue
		}
		states[fmt.Sprint("GPU ", g.Index)] = g.Fabric.State
		switch {
		case g.Fabric.State != "completed":
			v.fault(fix, "%s: registration with the fabric is %s", called(&g), g.Fabric.State)
		case g.Fabric.Status != 0:
			v.fault(fix, "%s: registration with the fabric failed with NVML code %d", called(&g), g.Fabric.Status)
		}
	}
	running := m.running("nv-fabricmanager")
	switch {
	case v.bad():
	case running != "":
		v.ok("%s runs", running)
	case len(states) > 0:
		v.ok("every GPU is registered with the fabric")
	case onBus == 0 || m.container() != "":
		v.unknown("systemctl status nvidia-fabricmanager on the host", "it runs on the host, which cannot be seen from here")
	default:
		v.fault(fix, "%d NVSwitches, and no nv-fabricmanager runs", onBus)
	}
}

var fabricPackage = regexp.MustCompile(`^Package: nvidia-fabricmanager(?:-\d+)?\n(?:.+\n)*?Version: (?:\d+:)?(\d+\.\d+(?:\.\d+)?)`)

// fabricVersion compares the package with the module: the fabric manager refuses a driver of another version.
func (m *machine) fabricVersion(v *verdict) {
	module, _ := m.moduleVersion()
	b, err := m.bytes("var/lib/dpkg/status", 32<<20)
	if err != nil || module == "" || m.container() != "" {
		return
	}
	var found []string
	for entry := range strings.SplitSeq(string(b), "\n\n") {
		if !strings.HasPrefix(entry, "Package: nvidia-fabricmanager") || !strings.Contains(entry, "\nStatus: install ok installed\n") {
			continue // another one, or one that was removed
		}
		if f := fabricPackage.FindStringSubmatch(entry); f != nil {
			found = append(found, f[1])
		}
	}
	if len(found) > 0 && !slices.Contains(found, module) {
		v.fault("install the fabric manager of version "+module, "fabric manager %s, driver %s: it starts only with its own version", strings.Join(found, ", "), module)
	}
}

func fabricHealth(m *machine, v *verdict) {
	told := false
	for _, g := range m.gpus() {
		if g.Fabric == nil || g.Fabric.Health == nil || *g.Fabric.Health == 0 || g.Fabric.State == "not supported" { // 0: none of its fields is supported
			continue
		}
		told = true
		if t := nvml.FabricTroubles(*g.Fabric.Health); len(t) > 0 {
			v.fault("nvidia-smi -q -i GPU | grep -A 12 Fabric; "+checkLinks, "%s: %s", called(&g), strings.Join(t, ", "))
		}
	}
	if !told {
		v.skip("no GPU tells the health of a fabric")
	}
	v.allOK("no trouble reported")
}

// zeroCluster is the cluster of a node that shares no NVLink with others; NCCL takes it as "no multi-node NVLink", too.
const zeroCluster = "00000000-0000-0000-0000-000000000000"

func imex(m *machine, v *verdict) {
	cluster := ""
	for _, g := range m.gpus() {
		if f := g.Fabric; f != nil && f.State == "completed" && f.Cluster != zeroCluster && f.Cluster != "" {
			cluster = fmt.Sprintf("%s, clique %d", f.Cluster, f.Clique)
		}
	}
	if cluster == "" {
		v.skip("no NVLink to other nodes")
		return
	}
	v.fact("nvlink cluster", cluster)
	if running := m.running("nvidia-imex"); running != "" {
		v.ok("%s", running)
	} else if m.container() != "" {
		v.unknown("systemctl status nvidia-imex on the host", "it runs on the host, which cannot be seen from here")
	} else {
		v.fault("systemctl enable --now nvidia-imex; /etc/nvidia-imex/nodes_config.cfg lists the nodes", "GPUs are in NVLink cluster %s, and no nvidia-imex runs", cluster)
	}
	if len(m.list("dev/nvidia-caps-imex-channels")) == 0 {
		v.fault("nvidia-modprobe -i 0:1 (or the driver's option NVreg_CreateImexChannel0=1); in a container pass /dev/nvidia-caps-imex-channels on", "there is no /dev/nvidia-caps-imex-channels/channel0")
	}
}
