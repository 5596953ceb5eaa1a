package topo

import (
	"fmt"
	"slices"
	"strings"
)

// tree finds functions and what is above them.
type tree struct {
	g    *Graph
	byID map[string]*Function
	kids map[string][]*Function // by parent; those below a host bridge under ""
}

const maxDepth = 64 // bridges above a device; more is a loop or a damaged file

func newTree(g *Graph) *tree {
	t := &tree{g: g, byID: map[string]*Function{}, kids: map[string][]*Function{}}
	for i := range g.PCI {
		f := &g.PCI[i]
		if _, ok := t.byID[f.BusID]; !ok {
			t.byID[f.BusID] = f
			t.kids[f.Parent] = append(t.kids[f.Parent], f)
		}
	}
	return t
}

// above lists the bridges over a function, nearest first.
func (t *tree) above(f *Function) []*Function {
	var out []*Function
	for p := t.byID[f.Parent]; p != nil && len(out) < maxDepth; p = t.byID[p.Parent] {
		out = append(out, p)
	}
	return out
}

// endpoint is a GPU or NIC, the ends of paths.
type endpoint struct {
	id    string
	busID string
	numa  *int
	gpu   *GPU
	nic   *NIC
}

func (g *Graph) endpoints() []endpoint {
	var out []endpoint
	for i := range g.GPUs {
		p := &g.GPUs[i]
		out = append(out, endpoint{id: p.ID, busID: p.BusID, numa: p.NUMA, gpu: p})
	}
	for i := range g.NICs {
		n := &g.NICs[i]
		out = append(out, endpoint{id: n.ID, busID: n.BusID, numa: n.NUMA, nic: n})
	}
	return out
}

// endpoint finds a GPU or NIC by id, name, UUID or bus id.
func (g *Graph) endpoint(name string) (endpoint, error) {
	busID, _ := BusID(name)
	all := g.endpoints()
	for _, match := range []func(endpoint) bool{
		func(e endpoint) bool { return e.id == name },
		func(e endpoint) bool { return e.nic != nil && e.nic.Name == name },
		func(e endpoint) bool { return e.gpu != nil && e.gpu.UUID == name },
		func(e endpoint) bool { return e.busID == busID },
	} {
		if i := slices.IndexFunc(all, match); i >= 0 && name != "" {
			return all[i], nil
		}
	}
	ids := make([]string, len(all))
	for i, e := range all {
		ids[i] = e.id
	}
	return endpoint{}, fmt.Errorf("no GPU or NIC %q: there are %s", name, strings.Join(ids, ", "))
}

// Function finds a PCI function by its address; nil: it is not in the graph.
func (g *Graph) Function(busID string) *Function {
	id, _ := BusID(busID)
	for i := range g.PCI {
		if g.PCI[i].BusID == id {
			return &g.PCI[i]
		}
	}
	return nil
}

// Above lists the bridges over a PCI function, nearest first.
func (g *Graph) Above(busID string) []*Function {
	if f := g.Function(busID); f != nil {
		return newTree(g).above(f)
	}
	return nil
}

// CPU finds a NUMA node; nil: it is not in the graph. Where /sys has one node only, every device is there, though the kernel may not say so (-1).
func (g *Graph) CPU(numa *int) *CPU {
	if (numa == nil || *numa < 0) && g.Form == FormFull && len(g.CPUs) == 1 {
		return &g.CPUs[0]
	}
	for i := range g.CPUs {
		if numa != nil && g.CPUs[i].NUMA == *numa {
			return &g.CPUs[i]
		}
	}
	return nil
}

// upLink says whether the link attributes of f belong to a link between f and its parent. Those of root ports and downstream ports belong to the link below them,
// and what lies between the ports of one switch is not a link.
func (t *tree) upLink(f *Function) bool {
	if t.g.Form == FormNCCL {
		return true
	}
	switch f.Role {
	case RoleRootPort, RoleDownstream:
		return false
	case RoleBridge:
		return len(t.above(f))%2 == 1 // ports alternate: root, upstream, downstream, upstream …
	}
	return true
}
