package topo

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
)

// nameAll numbers GPUs, NICs and CPUs as nvidia-smi does: GPUs by NVML's index, NICs in the order given. GPUs without an index come after, in the order of the bus.
func (g *Graph) nameAll() {
	used := map[int]bool{}
	number := make([]int, len(g.GPUs)) // -1: none
	order := make([]int, len(g.GPUs))
	for i := range g.GPUs {
		order[i], number[i] = i, -1
		if x := g.GPUs[i].Index; x != nil && *x >= 0 && !used[*x] {
			used[*x], number[i] = true, *x
		}
	}
	slices.SortStableFunc(order, func(i, j int) int {
		if number[i] >= 0 && number[j] >= 0 {
			return number[i] - number[j]
		}
		return cmp.Or(cmp.Compare(min(number[j], 0), min(number[i], 0)), cmp.Compare(g.GPUs[i].BusID, g.GPUs[j].BusID))
	})
	gpus, next := make([]GPU, len(g.GPUs)), 0
	for k, i := range order {
		gpus[k] = g.GPUs[i]
		for number[i] < 0 {
			if !used[next] {
				number[i] = next
			}
			next++
		}
		gpus[k].ID = "GPU" + strconv.Itoa(number[i])
	}
	g.GPUs = gpus
	for i := range g.NICs {
		g.NICs[i].ID = "NIC" + strconv.Itoa(i)
	}
	seenNUMA := map[string]bool{}
	for i := range g.CPUs {
		id := "CPU" + strconv.Itoa(g.CPUs[i].NUMA)
		if seenNUMA[id] { // of another host
			id += "#" + strconv.Itoa(i)
		}
		seenNUMA[id] = true
		g.CPUs[i].ID = id
	}
}

// checkTree notes what the whole lacks.
func (g *Graph) checkTree() {
	if len(g.GPUs) == 0 {
		g.note("no-gpu", g.Source, "no GPU is listed")
	}
	if len(g.NICs) == 0 {
		g.note("no-nic", g.Source, "no NIC is listed")
	}
	if len(g.CPUs) == 0 {
		g.note("no-numa", g.Source, "no NUMA node is listed: what is near to what cannot be told")
	} else if !slices.ContainsFunc(g.CPUs, func(c CPU) bool { return c.NUMA >= 0 }) {
		g.note("no-numa", g.Source, "the kernel gives no NUMA nodes (numa_node -1): what is near to what cannot be told")
	}
	unknown := 0
	for i := range g.GPUs {
		if g.GPUs[i].NVLinks == nil {
			unknown++
		}
	}
	if unknown > 0 {
		g.note("nvlink-unknown", g.Source, fmt.Sprintf("NVLink of %d of %d GPUs is not known: only NVML, and files written with it, have it", unknown, len(g.GPUs)))
	}
	if slices.ContainsFunc(g.GPUs, func(p GPU) bool {
		return slices.ContainsFunc(p.NVLinks, func(l NVLink) bool { return l.Target == HiddenTarget })
	}) {
		g.note("nvlink-hidden", g.Source, "the driver does not tell where NVLinks end (a virtual machine, or a domain of several nodes); they are taken to end at NVSwitches, as NCCL does")
	}
	g.checkFlat()
	g.checkUneven()
	var bare []string
	for i := range g.PCI {
		if f := &g.PCI[i]; f.Role == RoleOther && f.Class == "" && g.Form == FormNCCL {
			bare = append(bare, f.BusID)
		}
	}
	if len(bare) > 0 {
		g.note("class-unknown", g.Source, fmt.Sprintf("%d functions have no class (%s): GPUs or NICs, the file does not say which; NCCL asks the machine", len(bare), shorten(bare)))
	}
}

// checkFlat finds trees without any bridge above several GPUs and NICs, as virtual machines show them.
func (g *Graph) checkFlat() {
	ends := 0
	for i := range g.PCI {
		switch f := &g.PCI[i]; f.Role {
		case RoleGPU, RoleNIC:
			ends++
		case RoleRootPort, RoleBridge, RoleUpstream, RoleDownstream:
			return
		}
	}
	if slices.ContainsFunc(g.GPUs, func(p GPU) bool { return p.C2C != nil }) {
		return
	}
	if len(g.GPUs) > 1 && ends > len(g.GPUs) && ends >= 4 {
		g.note("flat-pci", g.Source, "no PCIe switch is seen above GPUs and NICs (a virtual machine, a cut-down /sys, or a machine without switches): no NIC is nearer to a GPU than the others of its NUMA node")
	}
}

// checkUneven finds GPUs with fewer NVLinks than their peers.
func (g *Graph) checkUneven() {
	best := 0
	counts := make([]int, len(g.GPUs))
	for i := range g.GPUs {
		if g.GPUs[i].NVLinks == nil {
			return
		}
		for _, l := range g.GPUs[i].NVLinks {
			counts[i] += l.Count
		}
		best = max(best, counts[i])
	}
	for i, n := range counts {
		if n < best {
			g.note("nvlink-uneven", g.GPUs[i].ID, fmt.Sprintf("%s has %d working NVLinks, others have %d", g.GPUs[i].ID, n, best))
		}
	}
}
