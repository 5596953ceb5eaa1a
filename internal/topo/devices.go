package topo

import (
	"fmt"
	"strings"
)

// Devices is what only the GPU driver's library (NVML) knows. A caller fills it; a recorded tree has it as a JSON file.
type Devices struct {
	Source string   `json:"source,omitempty"` // "NVML 580.82.07"
	GPUs   []Device `json:"gpus"`
}

// Device is one GPU as NVML describes it. A nil field could not be had.
type Device struct {
	Index   int    `json:"index"`
	BusID   string `json:"busid"` // any spelling: it is normalised
	Name    string `json:"name,omitempty"`
	UUID    string `json:"uuid,omitempty"`
	SM      *int   `json:"sm,omitempty"` // compute capability times ten
	MIG     *bool  `json:"mig,omitempty"`
	MemNUMA *int   `json:"memory_numa,omitempty"` // GPU NUMA ID
	GDR     *bool  `json:"gdr,omitempty"`
	// The PCIe link as the GPU sees it now, and at best.
	PCIeGen      *int `json:"pcie_gen,omitempty"`
	PCIeWidth    *int `json:"pcie_width,omitempty"`
	PCIeMaxGen   *int `json:"pcie_max_gen,omitempty"`
	PCIeMaxWidth *int `json:"pcie_max_width,omitempty"`
	// NVLinks are its links one by one. nil: unknown; empty: it has none.
	NVLinks []DeviceLink `json:"nvlinks"`
	C2C     *C2C         `json:"c2c,omitempty"`
}

// DeviceLink is one NVLink of a GPU, or several alike.
type DeviceLink struct {
	Link   int      `json:"link"`
	Count  int      `json:"count,omitempty"` // 0 is 1; more than one link to one peer may be written once
	Active *bool    `json:"active"`          // nil: unknown, taken as working
	Peer   Peer     `json:"peer,omitempty"`
	Target string   `json:"target,omitempty"` // bus id of the far end; empty: the driver does not tell
	GBs    *float64 `json:"gbs,omitempty"`    // one way
}

// apply puts NVML's facts on the GPUs found on the bus, and adds those that were not found.
func (d *Devices) apply(g *Graph) {
	for i := range d.GPUs {
		v := &d.GPUs[i]
		id, ok := BusID(v.BusID)
		if !ok {
			g.note("device-busid", d.Source, fmt.Sprintf("GPU %d has the bus id %q, which is none", v.Index, v.BusID))
			id = ""
		}
		at := gpuAt(g, id)
		if at < 0 {
			g.note("gpu-not-in-sysfs", id, fmt.Sprintf("GPU %d is known to the driver but not in /sys: its place on PCIe is not known", v.Index))
			g.GPUs = append(g.GPUs, GPU{BusID: id})
			at = len(g.GPUs) - 1
		}
		p, index := &g.GPUs[at], v.Index
		p.Index, p.SM, p.MIG, p.MemNUMA, p.GDR, p.C2C = &index, v.SM, v.MIG, v.MemNUMA, v.GDR, v.C2C
		p.Name, p.UUID = first(v.Name, p.Name), first(v.UUID, p.UUID)
		if v.NVLinks != nil {
			p.NVLinks, p.NVLinksDown = groupLinks(v.NVLinks)
		}
		if p.NVLinksDown != nil && *p.NVLinksDown > 0 {
			g.note("nvlink-down", id, fmt.Sprintf("%d NVLinks of GPU %d are down", *p.NVLinksDown, v.Index))
		}
		if v.MIG != nil && *v.MIG {
			g.note("mig", id, fmt.Sprintf("GPU %d is split by MIG: its instances have no NVLink and no P2P to others", v.Index))
		}
		v.link(g.Function(id))
	}
	for i := range g.GPUs {
		if g.GPUs[i].Index == nil {
			g.note("gpu-not-in-driver", g.GPUs[i].BusID, "this GPU is on the bus, but the driver does not list it: no driver on it, passed to a virtual machine, or failed")
		}
	}
}

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// link takes the GPU's view of its PCIe link where /sys has none.
func (v *Device) link(f *Function) {
	if f == nil {
		return
	}
	if f.Link.Speed == nil && v.PCIeGen != nil {
		f.Link.Speed = genSpeed(*v.PCIeGen)
	}
	if f.Link.MaxSpeed == nil && v.PCIeMaxGen != nil {
		f.Link.MaxSpeed = genSpeed(*v.PCIeMaxGen)
	}
	if f.Link.Width == nil {
		f.Link.Width = v.PCIeWidth
	}
	if f.Link.MaxWidth == nil {
		f.Link.MaxWidth = v.PCIeMaxWidth
	}
}

// groupLinks counts working links by peer, in the order of their first link.
func groupLinks(links []DeviceLink) (out []NVLink, down *int) {
	out = []NVLink{}
	dead := 0
	for _, l := range links {
		n := max(l.Count, 1)
		if l.Active != nil && !*l.Active {
			dead += n
			continue
		}
		target := strings.ToLower(l.Target)
		if id, ok := BusID(target); ok {
			target = id
		}
		peer := l.Peer
		if target == HiddenTarget || target == "" && peer == PeerUnknown {
			peer, target = PeerSwitch, HiddenTarget // NCCL takes it for a switch, and nothing else hides itself
		}
		i := 0
		for i < len(out) && (out[i].Target != target || out[i].Peer != peer) {
			i++
		}
		if i == len(out) {
			out = append(out, NVLink{Peer: peer, Target: target, GBs: l.GBs})
		}
		out[i].Count += n
		out[i].GBs = lower(out[i].GBs, l.GBs)
	}
	return out, &dead
}
