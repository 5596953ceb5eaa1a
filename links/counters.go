package links

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/commprobe/commprobe/internal/nvml"
)

// Moved is one error counter that moved.
type Moved struct {
	Counter string `json:"counter"`        // one of the names below
	Link    *int   `json:"link,omitempty"` // number of the NVLink; nil: the GPU's PCIe link
	By      int64  `json:"by"`             // negative: it was reset meanwhile
}

// The counters' names.
const (
	pcieReplays = "PCIe replays"
	replays     = "NVLink replays"
	recoveries  = "NVLink recoveries"
	crcFlit     = "NVLink CRC errors (flits)"
	crcData     = "NVLink CRC errors (data)"
)

// crcLimit is from where on CRC errors matter, a second on one link: DCGM's health checks use it, on the word of the driver's makers (DCGM,
// DCGM_LIMIT_MAX_NVLINK_CRC_ERROR). Two healthy H200 had 5 to 110 on each of 36 links in some seconds of full load, and no replay.
const crcLimit = 100

const (
	counterFix = "errors on the wire that were repeated: watch whether they go on; if so, reseat or replace cable, bridge, riser or card"
	retrainFix = "the link was lost and trained anew: NVIDIA's own checks fail a GPU for one of these; drain the node, reset the GPU, and have the baseboard, bridge or cable replaced if it happens again"
	crcFix     = "nothing: the link repairs them, and they count from 100 a second on a link (the limit of NVIDIA's DCGM)"
)

// counterAt is one counter of one link; link -1 is PCIe.
type counterAt struct {
	counter string
	link    int
}

// counters are a GPU's error counters; those that cannot be read are left out.
func (m Machine) counters(pci string) map[counterAt]uint64 {
	out := map[counterAt]uint64{}
	g := m.gpu(pci)
	if g == nil {
		return out
	}
	if n := g.PCIe.Replays; n != nil && *n >= 0 {
		out[counterAt{pcieReplays, -1}] = uint64(*n)
	}
	for _, l := range g.Links {
		for name, v := range countersOf(&l) {
			if v != nil {
				out[counterAt{name, l.Link}] = *v
			}
		}
	}
	return out
}

func countersOf(l *nvml.Link) map[string]*uint64 {
	return map[string]*uint64{replays: l.Replays, recoveries: l.Recoveries, crcFlit: l.CRCFlit, crcData: l.CRCData}
}

// moved lists the counters that both readings have and that differ, in the order of counter and link.
func moved(before, after map[counterAt]uint64) (out []Moved) {
	order := func(a, b counterAt) int { return cmp.Or(cmp.Compare(a.counter, b.counter), a.link-b.link) }
	for _, at := range slices.SortedFunc(maps.Keys(before), order) {
		a, ok := after[at]
		if !ok || a == before[at] {
			continue
		}
		m := Moved{Counter: at.counter, By: int64(a - before[at])}
		if at.link >= 0 {
			m.Link = &at.link
		}
		out = append(out, m)
	}
	return out
}

// countersMoved judges a GPU's counters, one finding a counter.
func (r *Report) countersMoved(g *GPU) {
	groups := map[string][]Moved{}
	for _, m := range g.Moved {
		if m.By > 0 {
			groups[m.Counter] = append(groups[m.Counter], m)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		list := groups[name]
		during, limit := " in an unknown time", ""
		if r.CounterSecs != nil {
			during, limit = fmt.Sprintf(" in %.1f s", *r.CounterSecs), fmt.Sprintf(", more than %d a second", crcLimit)
		}
		switch name {
		case recoveries:
			r.add(Fault, "nvlink-recovered", g.ID, retrainFix, "%s moved%s: %s", name, during, perLink(list))
		case crcFlit, crcData:
			if fast := r.tooFast(list); len(fast) > 0 {
				r.add(Warn, "crc-errors", g.ID, counterFix, "%s%s%s: %s", name, during, limit, perLink(fast))
				continue
			}
			r.add(Usual, "crc-errors", g.ID, crcFix, "%s%s: %s", name, during, spread(list))
		default:
			r.add(Warn, "counter-moved", g.ID, counterFix, "%s moved%s: %s", name, during, perLink(list))
		}
	}
}

// tooFast are those above the limit; all, when the time is not known.
func (r *Report) tooFast(list []Moved) (out []Moved) {
	for _, m := range list {
		if r.CounterSecs == nil || float64(m.By) >= crcLimit**r.CounterSecs {
			out = append(out, m)
		}
	}
	return out
}

// perLink is "3 on link 0, 5 on link 7"; without a link "3".
func perLink(list []Moved) string {
	var out []string
	for _, m := range list {
		if m.Link == nil {
			out = append(out, fmt.Sprint(m.By))
			continue
		}
		out = append(out, fmt.Sprintf("%d on link %d", m.By, *m.Link))
	}
	return strings.Join(out, ", ")
}

// spread is "5 to 110 on each of 18 links"; a few links are listed.
func spread(list []Moved) string {
	if len(list) < 4 {
		return perLink(list)
	}
	order := func(a, b Moved) int { return cmp.Compare(a.By, b.By) }
	return fmt.Sprintf("%d to %d on each of %d links", slices.MinFunc(list, order).By, slices.MaxFunc(list, order).By, len(list))
}
