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
	{"nvlink-errors", "NVLinks without errors", "recoveries stop traffic for milliseconds and announce a failing link", "nvidia-smi nvlink -e; NVIDIA DCGM, gpu_hardware_limits", nvlinkErrors},
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

// nvlinkErrors judges as NVIDIA's DCGM does (its description of gpu_hardware_limits): one recovery or replay is too many, and CRC errors only matter from 100 a
// second on. Healthy links make some under load, so a count over the driver's life says nothing alone.
func nvlinkErrors(m *machine, v *verdict) {
	if !m.needGPUs(v) {
		return
	}
	gpus := m.gpus()
	var up, told, silent int
	for i := range gpus {
		var bad []string
		for _, l := range gpus[i].Links {
			if l.Active != nil && *l.Active {
				up++
			}
			switch {
			case l.Recoveries != nil && l.Replays != nil:
				told++
			case l.Active != nil && *l.Active:
				silent++
			}
			if t := repeats(&l); t != "" {
				bad = append(bad, fmt.Sprintf("link %d: %s", l.Link, t))
			}
		}
		if len(bad) > 0 {
			v.warn(checkLinks, "%s: %s", called(&gpus[i]), strings.Join(bad, "; "))
		}
	}
	switch {
	case up == 0:
		v.skip("no NVLink is in use")
	case silent > 0:
		v.unknown("nvidia-smi nvlink -e", "%d of %d links in use do not tell their replays and recoveries%s", silent, up, crcErrors(gpus))
	default:
		v.allOK("no recoveries, no replays on %s%s", count(told, "link"), crcErrors(gpus))
	}
}

// repeats says what a link had to do again; "" for nothing.
func repeats(l *nvml.Link) string {
	var out []string
	if n := l.Recoveries; n != nil && *n > 0 {
		out = append(out, fmt.Sprint("recoveries ", *n))
	}
	if n := l.Replays; n != nil && *n > 0 {
		out = append(out, fmt.Sprint("replays ", *n))
	}
	return strings.Join(out, ", ")
}

// crcErrors is the range of the links' counts, as the end of a sentence; "" when no link tells.
func crcErrors(gpus []nvml.GPU) string {
	var counts []uint64
	for _, g := range gpus {
		for _, l := range g.Links {
			n, told := uint64(0), false
			for _, c := range []*uint64{l.CRCFlit, l.CRCData} {
				if c != nil {
					n, told = n+*c, true
				}
			}
			if told {
				counts = append(counts, n)
			}
		}
	}
	if len(counts) == 0 {
		return ""
	}
	least, most := slices.Min(counts), slices.Max(counts)
	span := fmt.Sprintf("%d to %d", least, most)
	switch {
	case most == 0:
		return "; no CRC errors"
	case least == most:
		span = fmt.Sprint(most)
	}
	return "; CRC errors " + span + " a link since the driver was loaded (corrected; they count from 100 a second on: commprobe links measures that)"
}

// switches counts NVSwitches, and tells whether the GPUs are connected to such, which a virtual machine may not see.
func (m *machine) switches() (onBus int, linked bool) {
	for _, g := range m.gpus() {
		for _, l := range g.Links {
			linked = linked || l.RemoteType != nil && *l.RemoteType == "switch"
		}
	}
	return len(m.topology().NVSwitches), linked
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
