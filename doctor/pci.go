package doctor

import (
	"slices"

	"github.com/commprobe/commprobe/internal/topo"
)

// topology reads /sys once. It is asked without NVML's facts, so that it holds what is on the bus, with which some checks compare NVML. A machine whose root
// cannot be opened has an empty one.
func (m *machine) topology() *topo.Graph {
	if m.graph == nil {
		g, err := topo.ReadSys(m.Root, nil)
		if err != nil {
			g = &topo.Graph{}
		}
		m.graph = g
	}
	return m.graph
}

// gpuDevices counts NVIDIA's GPUs on the bus.
func (m *machine) gpuDevices() int { return len(m.topology().GPUs) }

// gpusAndAdapters are the PCI functions between which data goes: of GPUs and of RDMA devices.
func (m *machine) gpusAndAdapters() []*topo.Function {
	g := m.topology()
	var out []*topo.Function
	for i := range g.PCI {
		f := &g.PCI[i]
		if f.Role == topo.RoleGPU || slices.ContainsFunc(m.ports(), func(p port) bool { return p.bdf == f.BusID }) {
			out = append(out, f)
		}
	}
	return out
}
