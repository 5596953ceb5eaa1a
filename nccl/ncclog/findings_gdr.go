package ncclog

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// carries says whether a network can do GPUDirect RDMA at all.
func carries(net string) bool { return net != "" && net != "Socket" }

// gdrCount counts the network connections of ranks, with and without GPUDirect RDMA.
type gdrCount struct {
	on, off   int
	offRanks  []int
	mixed     []int
	lines     []Line
	hosts     []string
	ringsLack []int
	ringLines []Line
}

func (f *finder) countGDR() (n gdrCount) {
	f.ranks(func(c *Comm, r *Rank) {
		if nodes(c) == 1 {
			return
		}
		on, off := 0, 0
		for _, e := range r.Edges {
			if e.Transport != "NET" || !carries(e.Net) {
				continue
			}
			if e.GDR {
				on++
				continue
			}
			if off == 0 {
				n.lines = append(n.lines, edgeLine(e))
				n.hosts = append(n.hosts, hostAt(r.Process))
			}
			off++
		}
		n.on, n.off = n.on+on, n.off+off
		if off > 0 {
			n.offRanks = append(n.offRanks, r.Rank)
			if on > 0 {
				n.mixed = append(n.mixed, r.Rank)
			}
		}
		if r.RingGDR != nil && *r.RingGDR == 0 && !usesSockets(r) && r.Network != nil {
			for _, m := range r.Milestones {
				if m.Value == "rings" {
					n.ringsLack = append(n.ringsLack, r.Rank)
					n.ringLines = append(n.ringLines, m.At)
				}
			}
		}
	})
	return n
}

// gdrDriver are the lines in which a NIC does not offer GPUDirect RDMA: nvidia_peermem or DMA-BUF is missing, or the NIC's driver cannot.
func (f *finder) gdrDriver() (off, on group) {
	for _, p := range f.log.Processes {
		for _, n := range p.NICGDR {
			switch {
			case !carries(n.Net):
			case n.Enabled:
				on.take(p.Host, n.NIC, n.At)
			default:
				off.take(p.Host, n.NIC, n.At)
			}
		}
	}
	return off, on
}

// gdrOff: data for the network goes through host memory. The distance is gdrDistance's.
func (f *finder) gdrOff() {
	n := f.countGDR()
	off, on1 := f.gdrDriver()
	apart := f.farGDR()
	multi := f.multiNode()
	if n.off == 0 && len(off.lines) == 0 && len(n.ringsLack) == 0 || len(n.offRanks) == 0 && len(off.lines) == 0 && len(apart) > 0 {
		return
	}
	x := Finding{Severity: Odd, ID: "gdr-off", Evidence: n.lines,
		Cost: "every byte for the network passes through host memory and takes the CPU's PCIe paths twice: often half of the NIC's bandwidth or less. With it, one 200 Gb/s NIC fills a Gen4 x16 slot and gives at most 24 GB/s",
		Next: "`lsmod | grep nvidia_peermem`, or DMA-BUF: open kernel modules and kernel 5.12 or newer; `nvidia-smi topo -m`; ACS and IOMMU",
		Fix:  "modprobe nvidia_peermem (once after the NIC's driver), or a driver that offers DMA-BUF"}
	level, leveled := f.value("NCCL_NET_GDR_LEVEL")
	switch {
	case leveled && (strings.EqualFold(level.Value, "LOC") || strings.TrimSuffix(level.Value, ".") == "0"):
		x.Title = "GPUDirect RDMA is switched off by NCCL_NET_GDR_LEVEL=" + level.Value
		x.Evidence = append([]Line{level.At}, x.Evidence...)
		x.Next, x.Fix = "was it a test (PCIe ACS)?", "take NCCL_NET_GDR_LEVEL away"
	case len(off.lines) > 0:
		x.Title = "GPUDirect RDMA is off: the NIC side does not offer it" + on(off.hosts) + " (" + names(4, off.what) + "), so neither nvidia_peermem nor DMA-BUF works there"
		if leveled {
			x.Title += ". NCCL_NET_GDR_LEVEL=" + level.Value + " cannot help: it only moves the limit of distance"
		}
		x.Evidence = append(off.lines, x.Evidence...)
		x.Next += ". If nvidia_peermem is loaded, it may not fit this kernel and RDMA stack: was it built against the installed one?"
		if len(f.log.Comms) > 0 && n.on > 0 {
			x.Title += ". Other NICs of the job have it"
		}
	case len(apart) > 0: // gdrDistance says it better
		return
	default:
		x.Title = fmt.Sprintf("Network connections of %s go without GPUDirect RDMA%s; the log does not say why", rankList(n.offRanks), on(n.hosts))
		if len(n.offRanks) == 0 {
			x.Evidence = n.ringLines
			x.Title = fmt.Sprintf("The rings of %s have a network connection without GPUDirect RDMA; the log does not say which and why", rankList(n.ringsLack))
		}
		if len(on1.lines) > 0 {
			x.Title += ". The NIC side offers it, so the distance is the likely reason"
		}
		if f.omniPath() {
			x.Title += ". The NICs are Omni-Path (hfi1), which offers it only through its own plugin (PSM2, OPX), not through verbs"
			x.Fix = "the Omni-Path plugin for NCCL with a CUDA-enabled driver"
		}
		x.Next = "run with NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH: NCCL then prints a reason for each GPU and NIC (to 2.29). " + x.Next
	}
	if len(n.mixed) > 0 {
		x.Title += fmt.Sprintf(". With and without it on %s: some NIC is too far", rankList(n.mixed))
	}
	f.place(x, multi, n.off > 0)
}

// place lowers a finding about the network where the network carries nothing, or where nobody knows.
func (f *finder) place(x Finding, multi answer, used bool) {
	switch {
	case used:
	case multi == no:
		x.Severity, x.Cost = Info, "none in this log: the job has one node"
	case multi == unknown:
		x.Title += ". No line says whether the job has more than one node; with one it does not matter"
	}
	if x.Title != "" {
		f.add(tierLink, false, x)
	}
}

func (f *finder) omniPath() bool {
	for _, p := range f.log.Processes {
		for _, n := range p.NICs {
			if strings.HasPrefix(n.Name, "hfi1") {
				return true
			}
		}
	}
	return false
}

// farPair is a GPU and a NIC that are too far apart.
type farPair struct {
	host string
	rank *Rank // that drives the GPU; nil: not known
	gdr  GDR
	near *GDR // a nearer NIC of the same GPU in the log
}

// far says that a pair is beyond the limit, or beyond PXB and only let through by a raised limit.
func far(g GDR) bool { return !g.PXN && (!g.Enabled || g.Path == "SYS" || g.Path == "PHB") }

// farGDR are the pairs that matter. NCCL prints every GPU of a node with every NIC, so most far pairs are healthy: they count only where
// the GPU has no nearer NIC in the log, or where the connections show that the far one is used.
func (f *finder) farGDR() (out []farPair) {
	seen := map[string]bool{}
	f.ranks(func(c *Comm, r *Rank) {
		best := map[string]*GDR{}
		for i := range r.GDR {
			if g := &r.GDR[i]; best[g.GPU] == nil || g.Distance < best[g.GPU].Distance {
				best[g.GPU] = g
			}
		}
		for _, g := range r.GDR {
			key := hostAt(r.Process) + " " + g.GPU + " " + g.NIC
			if !far(g) || seen[key] {
				continue
			}
			p := farPair{host: hostAt(r.Process), rank: driver(c, r, g.GPU), gdr: g}
			if n := best[g.GPU]; n.Distance < g.Distance {
				p.near = n
			}
			if p.near == nil || sendsBy(p.rank, g.NIC) {
				seen[key] = true
				out = append(out, p)
			}
		}
	})
	return out
}

// driver is the rank of c that drives a GPU, named by bus id (to 2.23) or rank, on the host of r.
func driver(c *Comm, r *Rank, gpu string) *Rank {
	for _, x := range c.Ranks {
		if hostAt(x.Process) == hostAt(r.Process) && x.BusID != "" && (x.BusID == gpu || len(gpu) < 4 && strconv.Itoa(x.Rank) == gpu) {
			return x
		}
	}
	return nil
}

// sendsBy says whether connections of a rank go by a NIC, where the log numbers NICs alike in both places (to 2.20).
func sendsBy(r *Rank, nic string) bool {
	if r == nil {
		return false
	}
	n, err := strconv.Atoi(nic)
	return err == nil && slices.ContainsFunc(r.Edges, func(e Edge) bool { return e.Transport == "NET" && e.NetDev == n && e.ProxyRank < 0 })
}

var pathWords = map[string]string{"SYS": "on different CPU sockets", "PHB": "under different root ports of one CPU", "PXB": "behind several PCIe switches", "NODE": "on one socket, apart"}

// gdrDistance: a GPU and the NIC it uses are far apart.
func (f *finder) gdrDistance() {
	pairs := f.farGDR()
	if len(pairs) == 0 {
		return
	}
	var off, forced group
	var ranks, forcedRanks []int // known ones only
	nearer := false
	add := func(to []int, r *Rank) []int {
		if r != nil && r.Rank >= 0 {
			return append(to, r.Rank)
		}
		return to
	}
	for _, p := range pairs {
		what := fmt.Sprintf("GPU %s and NIC %s", p.gdr.GPU, p.gdr.NIC)
		path := firstOf(p.gdr.Path, "distance "+strconv.Itoa(p.gdr.Distance))
		what += " (" + path
		if w := pathWords[p.gdr.Path]; w != "" {
			what += ", " + w
		}
		if p.gdr.LimitIs != "" {
			what += "; the limit is " + p.gdr.LimitIs
		} else {
			what += fmt.Sprintf("; the limit is %d", p.gdr.Limit)
		}
		what += ")"
		if p.near != nil {
			nearer = true
			what += ", nearer would be NIC " + p.near.NIC
		}
		if p.gdr.Enabled {
			forced.take(p.host, what, p.gdr.At)
			forcedRanks = add(forcedRanks, p.rank)
			continue
		}
		off.take(p.host, what, p.gdr.At)
		ranks = add(ranks, p.rank)
	}
	dis, on1 := f.gdrDriver()
	if len(off.lines) > 0 {
		x := Finding{Severity: Odd, ID: "gdr-distance", Title: "GPUDirect RDMA is off by distance" + forRanks(ranks) + on(off.hosts) + ": " + names(3, off.what), Evidence: append(off.lines[:1:1], append(on1.lines, off.lines[1:]...)...),
			Cost: "data of these ranks goes through host memory",
			Next: "`nvidia-smi topo -m`: which NIC is on the GPU's side? NCCL_IB_HCA may hide it",
			Fix:  "give the job a NIC on the GPU's side; NCCL_NET_GDR_LEVEL=SYS forces it, which may not be faster, so compare"}
		if len(on1.lines) > 0 && len(dis.lines) == 0 {
			x.Title += ". Not a fault of the driver: the NICs themselves have it on"
		}
		if !nearer {
			x.Title += ". The log shows no nearer NIC"
		}
		f.place(x, f.multiNode(), false)
	}
	if len(forced.lines) > 0 {
		f.place(Finding{Severity: Odd, ID: "nic-not-local", Title: "The NIC is not local to its GPU" + forRanks(forcedRanks) + on(forced.hosts) + ": " + names(3, forced.what), Evidence: forced.lines,
			Cost: "GPUDirect RDMA crosses the CPU, where writes of one device to another are slow", Next: "`nvidia-smi topo -m`; was NCCL_NET_GDR_LEVEL raised{=NCCL_NET_GDR_LEVEL}?",
			Fix: "a NIC on the GPU's side, or without the raised limit: compare both"}, f.multiNode(), false)
		last := &f.found[len(f.found)-1]
		last.Next = f.fill(last.Next, nil, nil)
	}
}

// forRanks is " for ranks 0-3", or "" where none is known.
func forRanks(in []int) string {
	if len(in) == 0 {
		return ""
	}
	return " for " + rankList(in)
}

// rankWords is rankList, or a word for ranks without a number.
func rankWords(in []int) string {
	for _, r := range in {
		if r < 0 {
			return "ranks without a number in the log"
		}
	}
	return rankList(in)
}
