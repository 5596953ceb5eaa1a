package links

import (
	"fmt"
	"slices"
	"strings"
)

const (
	slowShare     = 0.6  // of the nominal: less than this is worth a look; 80 to 95 % is usual
	outlierShare  = 0.85 // of the equals' median
	enoughEquals  = 3
	impossible    = 1.05 // of the line rate
	hostEngine    = "host"
	acsFix        = "ACS or an IOMMU that translates sends peer traffic through the processor: commprobe doctor --area gdr says which, and how to turn it off"
	reseatFix     = "reseat the card or cable, look at the slot's wiring and the BIOS (speed limits, bifurcation); swap with a good neighbour to see whether the fault moves with the card"
	nvlinkDownFix = "nvidia-smi nvlink --status names the link; nvidia-smi -q and dmesg (Xid 74) say more; drain the node and reset the GPU, then have the baseboard or bridge replaced"
)

// Judge compares every figure with its nominal and its equals, and lists what is wrong. It changes NominalGBs, Efficiency, Model and Findings only, and gives
// the same again when called again.
func Judge(r *Report) {
	r.Findings, r.Model = []Finding{}, []Model{}
	for i := range r.Measured {
		r.compare(&r.Measured[i])
	}
	r.model()
	r.wrongData()
	for i := range r.GPUs {
		r.degraded(&r.GPUs[i])
	}
	r.staged()
	if r.Engine == hostEngine {
		return // processors and memory differ from copy to copy: that says nothing of links
	}
	r.slow()
	r.outliers()
}

func (r *Report) add(s Severity, code, where, fix, format string, args ...any) {
	r.Findings = append(r.Findings, Finding{s, code, where, fmt.Sprintf(format, args...), fix})
}

func (r *Report) gpu(id string) *GPU {
	for i := range r.GPUs {
		if r.GPUs[i].ID == id {
			return &r.GPUs[i]
		}
	}
	return nil
}

func (r *Report) pair(a, b string) *Pair {
	x, y := r.gpu(a), r.gpu(b)
	if x == nil || y == nil {
		return nil
	}
	for i := range r.Pairs {
		p := &r.Pairs[i]
		if p.A == x.Device && p.B == y.Device || p.A == y.Device && p.B == x.Device {
			return p
		}
	}
	return nil
}

// nominal is the line rate of the way at best, nil where it is not known.
func (r *Report) nominal(m *Measured) *float64 {
	switch m.Kind {
	case GPUToGPU:
		if p := r.pair(m.From, m.To); p != nil && !m.Staged {
			return p.MaxGBs
		}
	case HostToGPU:
		if g := r.gpu(m.To); g != nil {
			return g.PCIe.MaxGBs
		}
	case GPUToHost:
		if g := r.gpu(m.From); g != nil {
			return g.PCIe.MaxGBs
		}
	case Local:
		if g := r.gpu(m.From); g != nil {
			return g.MemoryGBs
		}
	}
	return nil
}

func (r *Report) compare(m *Measured) {
	m.NominalGBs, m.Efficiency = nil, nil
	if m.GBs == nil {
		return
	}
	m.NominalGBs = r.nominal(m)
	if m.NominalGBs != nil && *m.NominalGBs > 0 {
		e := *m.GBs / *m.NominalGBs
		m.Efficiency = &e
		if e > impossible {
			r.add(Warn, "nominal", m.way(), "compare with nvidia-smi -q and lspci -vv; efficiencies of this way mean nothing", "%.1f GB/s is more than the line rate of %.1f: what the system says of the link cannot be right", *m.GBs, *m.NominalGBs)
		}
	}
}

// find is the measurement of a direction alone, nil where there is none.
func (r *Report) find(from, to string, method Method) *Measured {
	for i := range r.Measured {
		m := &r.Measured[i]
		if m.From == from && m.To == to && m.Method == method && !m.Both && m.Why == "" {
			return m
		}
	}
	return nil
}

// model joins latency and rate of each direction: what a kernel writes with the ping-pong of flags, what the copy engine moves with its small copies.
func (r *Report) model() {
	for _, m := range r.Measured {
		alpha := map[Method]Method{CopyEngine: SmallCopy, KernelWrite: FlagPing}[m.Method]
		if alpha == "" || m.Both || m.Kind == Local || m.GBs == nil {
			continue
		}
		line := Model{From: m.From, To: m.To, Method: m.Method, BetaGBs: m.GBs}
		if a := r.find(m.From, m.To, alpha); a != nil {
			line.AlphaUS = a.LatencyUS
		}
		r.Model = append(r.Model, line)
	}
}

// way names a measurement in words.
func (m *Measured) way() string {
	s := m.From + " to " + m.To
	if m.Kind == Local {
		s = m.From + "'s own memory"
	}
	s += " by " + string(m.Method)
	if m.Both {
		s += ", both ways at once"
	}
	return s
}

func (r *Report) wrongData() {
	for i := range r.Measured {
		if m := &r.Measured[i]; m.Wrong != nil && *m.Wrong > 0 {
			r.add(Fault, "wrong-data", m.way(), "do not use this node: run it again with NCCL_P2P_DISABLE=1 for the job as a stop-gap; look for Xid and machine checks in dmesg, then for ACS and IOMMU (commprobe doctor)",
				"%d of the 8-byte elements that arrived are wrong or never arrived", *m.Wrong)
		}
	}
}

// degraded looks at a GPU's own links.
func (r *Report) degraded(g *GPU) {
	if !r.fasterThanNow(g) {
		r.degradedPCIe(g)
	}
	if g.NVLinksDown != nil && *g.NVLinksDown > 0 {
		r.add(Fault, "nvlink-down", g.ID, nvlinkDownFix, "%d of %d NVLinks are down", *g.NVLinksDown, *g.NVLinksDown+orZero(g.NVLinks))
	}
	r.countersMoved(g)
}

// fasterThanNow tells whether more was measured than the link could give in the state that was read afterwards: it had gone to sleep by then.
func (r *Report) fasterThanNow(g *GPU) bool {
	return g.PCIe.NowGBs != nil && slices.ContainsFunc(r.Measured, func(m Measured) bool {
		return (m.Kind == HostToGPU && m.To == g.ID || m.Kind == GPUToHost && m.From == g.ID) && m.GBs != nil && *m.GBs > *g.PCIe.NowGBs
	})
}

func (r *Report) degradedPCIe(g *GPU) {
	p := &g.PCIe
	if p.Width != nil && p.MaxWidth != nil && *p.Width < *p.MaxWidth {
		r.add(Fault, "pcie-width", g.ID, reseatFix, "PCIe runs with %d of %d lanes", *p.Width, *p.MaxWidth)
	}
	if p.Gen != nil && p.MaxGen != nil && *p.Gen < *p.MaxGen {
		r.add(Fault, "pcie-gen", g.ID, reseatFix, "PCIe runs at generation %d of %d, and under load it was no faster: idle power saving does not explain it", *p.Gen, *p.MaxGen)
	}
	if p.NowGBs != nil && p.MaxGBs != nil && *p.NowGBs < *p.MaxGBs && strings.HasPrefix(p.Narrow, "the link above") {
		r.add(Fault, "pcie-above", g.ID, reseatFix, "on the way to the processor %s gives %.1f GB/s, %.1f would be possible", p.Narrow, *p.NowGBs, *p.MaxGBs)
	}
}

func orZero(n *int) int {
	if n == nil {
		return 0
	}
	return *n
}

func (r *Report) staged() {
	for _, p := range r.Pairs {
		if p.Peer != nil && !*p.Peer {
			r.add(Warn, "no-peer-access", fmt.Sprintf("GPU%d and GPU%d", p.A, p.B),
				"nvidia-smi topo -p2p r names the cause: another socket, a card without P2P (GeForce), MIG, a driver setting, confidential computing",
				"cannot reach each other's memory (%s): copies are staged through host memory, and NCCL uses SHM or the network", p.Why)
		}
	}
}

// slow names ways far below what the link can give, once for each way.
func (r *Report) slow() {
	for i := range r.Measured {
		m := &r.Measured[i]
		if m.Efficiency == nil || *m.Efficiency >= slowShare || m.Both {
			continue
		}
		fix := acsFix
		switch {
		case m.Kind == Local:
			fix = "other work on the GPU, throttling (nvidia-smi -q -d PERFORMANCE), or a size that is too small: try --size 1G"
		case m.Kind != GPUToGPU:
			fix = "host memory on the far NUMA node, power saving of the processor, or a busy PCIe switch: see bound_to_cpus in the JSON, and try with the node idle"
		}
		r.add(Warn, "slow", m.way(), fix, "%.1f GB/s is %.0f %% of the nominal %.1f", *m.GBs, 100**m.Efficiency, *m.NominalGBs)
	}
}

// equals names what must be alike: ways of one kind, method and nominal (or topology word, where the nominal is not known).
func (r *Report) equals(m *Measured) string {
	key := fmt.Sprint(m.Kind, "|", m.Method, "|", m.Both, "|", m.Staged)
	if p := r.pair(m.From, m.To); m.Kind == GPUToGPU && p != nil {
		key += "|" + p.Word
	}
	if n := r.nominal(m); n != nil {
		key += fmt.Sprintf("|%.1f", *n)
	}
	return key
}

// outliers names ways that are slower than their equals. Of two that differ it says only that.
func (r *Report) outliers() {
	groups, order := map[string][]*Measured{}, []string{}
	for i := range r.Measured {
		m := &r.Measured[i]
		if m.GBs == nil {
			continue
		}
		key := r.equals(m)
		if groups[key] == nil {
			order = append(order, key)
		}
		groups[key] = append(groups[key], m)
	}
	const fix = "the way that is slower than its equals has the fault: look at its links (commprobe topo), counters, and at what else runs there"
	for _, key := range order {
		g := groups[key]
		var rates []float64
		for _, m := range g {
			rates = append(rates, *m.GBs)
		}
		if len(g) == 2 {
			a, b := g[0], g[1]
			if *a.GBs > *b.GBs {
				a, b = b, a
			}
			if *a.GBs < outlierShare**b.GBs {
				r.add(Warn, "uneven", a.way(), fix, "%.1f GB/s, but %s gives %.1f", *a.GBs, b.way(), *b.GBs)
			}
		}
		if len(g) < enoughEquals {
			continue
		}
		mid := median(rates)
		for _, m := range g {
			if *m.GBs < outlierShare*mid {
				r.add(Warn, "outlier", m.way(), fix, "%.1f GB/s, %.0f %% less than the median %.1f of %d equal ways", *m.GBs, 100*(1-*m.GBs/mid), mid, len(g))
			}
		}
	}
}

// median of at least one value.
func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	n := len(s)
	if n%2 == 1 {
		return s[n/2]
	}
	return (s[n/2-1] + s[n/2]) / 2
}
