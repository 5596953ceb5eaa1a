package ncclog

import (
	"fmt"
	"slices"
	"strings"
)

// p2pReason is what switches peer-to-peer access off by setting.
func (f *finder) p2pReason() (string, []Line) {
	if s, ok := f.isOn("NCCL_P2P_DISABLE"); ok {
		return "NCCL_P2P_DISABLE=" + strings.TrimSuffix(s.Value, "."), []Line{s.At}
	}
	for _, s := range f.settings("NCCL_P2P_LEVEL") {
		if v := strings.TrimSuffix(s.Value, "."); strings.EqualFold(v, "LOC") || v == "0" {
			return "NCCL_P2P_LEVEL=" + v, []Line{s.At}
		}
	}
	return "", nil
}

// shmEdges are pairs of ranks that exchange data through host memory.
func (f *finder) shmEdges() (pairs []string, ranks []int, hosts []string, lines []Line) {
	seen := map[[2]int]bool{}
	f.ranks(func(_ *Comm, r *Rank) {
		for _, e := range r.Edges {
			if e.Transport != "SHM" {
				continue
			}
			if k := [2]int{min(e.From, e.To), max(e.From, e.To)}; !seen[k] {
				seen[k] = true
				pair := fmt.Sprintf("%d-%d", k[0], k[1])
				pairs, ranks, hosts = append(pairs, pair), append(ranks, e.From, e.To), append(hosts, hostAt(r.Process))
				lines = append(lines, edgeLine(e))
			}
		}
	})
	return pairs, ranks, hosts, lines
}

// p2pOff: access between GPUs is switched off by setting, or refused by the driver.
func (f *finder) p2pOff() {
	_, _, hosts, lines := f.shmEdges()
	if why, at := f.p2pReason(); why != "" {
		title := "Direct access between GPUs is switched off by " + why
		if len(lines) > 0 {
			title += "; data within a node goes through host memory (SHM)" + on(hosts)
		}
		f.add(tierLink, false, Finding{Severity: Odd, ID: "p2p-disabled", Title: title, Evidence: append(at, lines...),
			Cost: "the bandwidth of host memory and PCIe instead of NVLink: 10 to 40 GB/s instead of hundreds",
			Next: "was it set to get round a hang (ACS, IOMMU)? Then that is the thing to mend", Fix: "take it away and compare whole curves"})
	}
	var g group
	for _, p := range f.log.Processes {
		for _, x := range p.P2POff {
			if !isKnown(x.At.Text) {
				g.take(p.Host, x.Value, x.At)
			}
		}
	}
	if len(g.lines) > 0 {
		f.add(tierLink, false, Finding{Severity: Odd, ID: "p2p-refused", Title: "The driver refuses direct access between GPUs" + on(g.hosts) + ": " + names(2, g.what), Evidence: g.lines,
			Cost: "data between them goes through host memory", Next: "`nvidia-smi topo -p2p r`; do the ranks see different GPUs (containers, CUDA_VISIBLE_DEVICES)? IOMMU, MIG, vGPU, GeForce",
			Fix: "all GPUs of the node visible to each container; IOMMU off or pt; GeForce cards have no P2P over PCIe"})
	}
}

// hasNVLink says whether the logs show NVLink between GPUs.
func (f *finder) hasNVLink() answer {
	a := unknown
	for _, p := range f.log.Processes {
		if p.System != nil {
			a = max(a, no)
			for _, l := range p.System.Links {
				if l.Type == "NVL" {
					return yes
				}
			}
		}
	}
	f.ranks(func(_ *Comm, r *Rank) {
		for _, g := range r.Graphs {
			if g.TypeIntra == "NVL" || g.TypeIntra == "NVB" {
				a = yes
			} else if g.Pattern == 4 && a == unknown && r.LocalRanks > 1 {
				a = no
			}
		}
		if r.NVLS != nil || r.Totals != nil && r.Totals.NVLS > 0 {
			a = yes
		}
	})
	return a
}

// p2pShared: ranks of one node that use host memory though nobody asked for it.
func (f *finder) p2pShared() {
	if why, _ := f.p2pReason(); why != "" {
		return
	}
	pairs, ranks, hosts, lines := f.shmEdges()
	if len(pairs) == 0 {
		return
	}
	x := Finding{Severity: Odd, ID: "p2p-shm", Evidence: lines, Title: fmt.Sprintf("%s exchange data through host memory (SHM)%s, not directly", capital(rankWords(ranks)), on(hosts)),
		Cost: "10 to 30 GB/s at most, and load on the CPU's memory; the slowest link sets the pace of the ring",
		Next: "`nvidia-smi topo -m` and `nvidia-smi topo -p2p r`; do the ranks run in containers of their own?",
		Fix:  "where the GPUs can reach each other: all GPUs visible in each container, --ipc=host, IOMMU off or pt; NCCL_P2P_LEVEL=SYS as a test"}
	switch f.hasNVLink() {
	case yes:
		x.Title += ", though the machine has NVLink"
	case no:
		x.Severity = Info
		x.Title += ". There is no NVLink; between PCIe root ports or sockets that is NCCL's choice and not a fault"
	case unknown:
		x.Title += ". The log does not show the topology: GeForce cards and GPUs under different PCIe root ports have no other way"
	}
	f.add(tierLink, false, x)
}

func capital(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// hostSplit: NCCL counts more nodes than there are hosts.
func (f *finder) hostSplit() {
	for _, c := range f.log.Comms {
		hosts := map[string]bool{}
		var line Line
		n := 0
		for _, r := range c.Ranks {
			hosts[hostAt(r.Process)] = true
			if r.Placed != nil && r.NNodes > n {
				line, n = *r.Placed, r.NNodes
			}
		}
		if !hasAll(c) || n == 0 || hosts[""] || n <= len(hosts) {
			continue
		}
		f.add(tierState, false, Finding{Severity: Odd, ID: "host-split", Title: fmt.Sprintf("%s: NCCL counts %d nodes, but the lines come from %s (%s)", commName(c), n, amount(len(hosts), "host", "s"), names(4, sortedKeys(hosts))), Evidence: []Line{line},
			Cost: "ranks on one machine talk over the network instead of NVLink or shared memory",
			Next: "does each rank run in a container with its own host name, /proc/sys/kernel/random/boot_id or UTS name space? NCCL_HOSTID{=NCCL_HOSTID}", Fix: "the same NCCL_HOSTID for all containers of a machine that share /dev/shm, or one container a machine"})
		last := &f.found[len(f.found)-1]
		last.Next = f.fill(last.Next, nil, nil)
		return
	}
}

// channelCauses are settings in the log that can keep the number of channels down.
func (f *finder) channelCauses() (text []string, lines []Line) {
	for _, name := range []string{"NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS", "NCCL_MAX_NRINGS", "NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_CTA_POLICY"} {
		if s, ok := f.value(name); ok && s.From != FromPlugin {
			text, lines = append(text, name+"="+strings.TrimSuffix(s.Value, ".")), append(lines, s.At)
		}
	}
	f.ranks(func(_ *Comm, r *Rank) {
		for _, s := range r.Config {
			if low := strings.ToLower(s.Name); strings.Contains(low, "maxctas") || strings.Contains(low, "max cta") {
				text, lines = append(text, "the program's "+s.Name+"="+s.Value), append(lines, s.At)
			}
		}
	})
	return text, lines
}

// channels: totals that differ between ranks, or few where the machine has much to give.
func (f *finder) channels() {
	for _, c := range f.log.Comms {
		by := map[string]*group{}
		few := 1 << 30
		var line Line
		local := 0
		for _, r := range c.Ranks {
			if r.Totals == nil {
				continue
			}
			takeBy(by, fmt.Sprint(r.Totals.Coll), rankName(r.Rank), r.Totals.At)
			if r.Totals.Coll < few {
				few, line = r.Totals.Coll, r.Totals.At
			}
			local = max(local, r.LocalRanks)
		}
		if len(by) > 1 {
			f.add(tierState, false, Finding{Severity: Odd, ID: "channels-differ", Title: commName(c) + ": the ranks have different numbers of channels: " + describe(by), Evidence: linesOf(by),
				Cost: "a hang or wrong data, if they really use them so", Next: "environment and NCCL version of these ranks", Fix: "the same environment and library for all"})
			return
		}
		if len(by) == 0 || c.NRanks < 2 {
			continue
		}
		why, more := f.channelCauses()
		switch nics := f.leastNICs(c); {
		case few <= 4 && f.hasNVLink() == yes && nodes(c) <= 1 && (local > 1 || nodes(c) == 1):
			f.few(c, few, "NVLink is there; nodes of NVLink GPUs mostly have 16 to 24 or more", why, append([]Line{line}, more...))
			return
		case nodes(c) > 1 && nics > 1 && few < nics:
			f.few(c, few, fmt.Sprintf("each node has %d NICs, so some carry nothing", nics), why, append([]Line{line}, more...))
			return
		}
	}
}

// leastNICs is the smallest number of NICs of a node of c, 0 unknown.
func (f *finder) leastNICs(c *Comm) int {
	n := 0
	for _, r := range c.Ranks {
		if k := physical(r.Process); k > 0 && (n == 0 || k < n) {
			n = k
		}
	}
	return n
}

func (f *finder) few(c *Comm, n int, expected string, why []string, lines []Line) {
	title := fmt.Sprintf("%s has only %s for collectives. %s", commName(c), amount(n, "channel", "s"), capital(expected))
	if len(why) > 0 {
		title += ". In the log: " + names(4, why)
	} else {
		title += ". The log shows no setting that explains it"
	}
	f.add(tierState, false, Finding{Severity: Odd, ID: "few-channels", Title: title, Evidence: lines, Cost: "bandwidth in proportion: a channel gives about 20 GB/s over NVLink, and one or two a NIC",
		Next: "the `=== System` dump and the Pattern lines (NCCL_DEBUG_SUBSYS=GRAPH): which link limits the search?", Fix: "take the setting away; correct or drop the topology file"})
}

// ll128: the low-latency protocol for middle sizes is not used by the ring, though the plain one is.
func (f *finder) ll128() {
	for _, c := range f.log.Comms {
		var simple, ll128 float64
		var line Line
		for _, t := range c.Tuning {
			if t.Algo != "Ring" || t.Func != "AllReduce" {
				continue
			}
			switch t.Proto {
			case "Simple":
				simple = t.BWGBs
			case "LL128":
				ll128 = t.BWGBs
				line = t.At
				line.Text = fmt.Sprintf("AllReduce, Ring, LL128: %.1f us / %.1f GB/s", t.LatencyUS, t.BWGBs)
			}
		}
		if simple < 1 || line.N == 0 || ll128 > 0 { // below 1 GB/s 0.0 may be rounded
			continue
		}
		x := Finding{Severity: Info, ID: "ll128-off", Evidence: []Line{line}, Title: commName(c) + ": LL128 is not used by the ring (0.0 in NCCL's table)",
			Cost: "messages of about 64 KB to a few MB are slower", Next: "the path types in the Pattern lines: LL128 wants NVLink within the node and at most PXB to the NIC, and one kind of GPU", Fix: "none, if the topology does not allow it"}
		if s, ok := f.value("NCCL_PROTO"); ok {
			x.Title += ": NCCL_PROTO=" + s.Value
			x.Evidence = append(x.Evidence, s.At)
			x.Fix = "take NCCL_PROTO away"
		} else if t := worstPath(c); t != "" {
			x.Title += "; the paths are " + t
		} else if f.hasNVLink() == yes {
			x.Severity = Odd
			x.Title += ", though there is NVLink; the log does not say why"
		}
		f.add(tierState, false, x)
		return
	}
}

// worstPath is the path type of the ring, where it forbids LL128.
func worstPath(c *Comm) string {
	for _, r := range c.Ranks {
		for _, g := range r.Graphs {
			bad := func(t string, ok ...string) bool { return t != "" && !slices.Contains(ok, t) }
			if g.Pattern == 4 && (bad(g.TypeIntra, "LOC", "NVL", "NVB") || nodes(c) > 1 && bad(g.TypeInter, "LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "PXN", "P2C")) {
				return g.TypeIntra + " within and " + g.TypeInter + " between nodes"
			}
		}
	}
	return ""
}

// hopperOrNewer says whether the topology shows NVSwitch with the bandwidth of Hopper's NVLink or more (A100: 240 GB/s, H800: 206, H100: 370).
func hopperOrNewer(p *Process) bool {
	return p != nil && p.System != nil && slices.ContainsFunc(p.System.Links, func(l SystemLink) bool {
		return l.Type == "NVL" && l.BW > 300 && strings.HasPrefix(l.To, "NVS")
	})
}

// nvls: NVLink SHARP off on a machine that has it.
func (f *finder) nvls() {
	s, off := f.isOff("NCCL_NVLS_ENABLE")
	var not, zero group
	algo := ""
	for _, p := range f.log.Processes {
		avail := false
		for _, m := range p.Multicast {
			if m.Available {
				avail = true
			} else if hopperOrNewer(p) {
				not.take(p.Host, fmt.Sprintf("GPU %d", m.Dev), m.At)
			}
		}
		for _, r := range f.ranksOf(p) {
			if avail && r.Totals != nil && r.Totals.NVLS == 0 && r.LocalRanks > 1 && !off {
				zero.take(p.Host, rankName(r.Rank), r.Totals.At)
			}
		}
	}
	if a, ok := f.value("NCCL_ALGO"); ok {
		algo = " NCCL_ALGO=" + a.Value
	}
	if off && (f.hasNVLink() == yes || len(f.log.Comms) > 0) {
		x := Finding{Severity: Odd, ID: "nvls-off", Title: "NVLink SHARP (NVLS) is switched off by NCCL_NVLS_ENABLE=" + strings.TrimSuffix(s.Value, "."), Evidence: []Line{s.At},
			Cost: "on NVSwitch machines from Hopper on: less bandwidth of all-reduce within a node; elsewhere none", Next: "was it set because of a failure in nvls.cc? Then see to the Fabric Manager", Fix: "take it away and compare whole curves"}
		if f.hasNVLink() == no {
			x.Severity, x.Cost = Info, "none: this machine has no NVLink"
		}
		f.add(tierState, false, x)
	}
	if len(not.lines) > 0 {
		f.add(tierState, false, Finding{Severity: Odd, ID: "nvls-off", Title: "NVLS multicast is not available" + on(not.hosts) + " (" + names(8, not.what) + "), though this is an NVSwitch machine of Hopper or newer", Evidence: not.lines,
			Cost: "less bandwidth of all-reduce within a node", Next: nvlsNext, Fix: "start the Fabric Manager that belongs to the driver; in a VM or partition all GPUs of the switch must be given"})
	}
	if len(zero.lines) > 0 {
		f.add(tierState, false, Finding{Severity: Odd, ID: "nvls-off", Title: "NVLS is available and yet has 0 channels for " + names(4, zero.what) + on(zero.hosts) + ":" + firstOf(algo, " the log does not say why"), Evidence: zero.lines,
			Cost: "less bandwidth of all-reduce within a node", Next: "NCCL_NVLS_ENABLE, NCCL_NVLS_NCHANNELS, NCCL_ALGO, the program's configuration", Fix: "take the setting away"})
	}
}

// nvlsExcluded: NVLS is set up, and NCCL_ALGO forbids it for every function.
func (f *finder) nvlsExcluded() {
	for _, c := range f.log.Comms {
		up := slices.ContainsFunc(c.Ranks, func(r *Rank) bool { return r.NVLS != nil || r.Totals != nil && r.Totals.NVLS > 0 })
		var line Line
		open := false
		for _, m := range c.Matrix {
			if m.Algo == "NVLS" {
				open = open || m.State != 0
				line = m.At
			}
		}
		if !up || open || line.N == 0 {
			continue
		}
		if line.Text == "" {
			line.Text = "Enabled NCCL Func/Proto/Algo Matrix: NVLS 0"
		}
		lines := []Line{line}
		title := commName(c) + ": NVLS is set up but no function may use it"
		if s, ok := f.value("NCCL_ALGO"); ok {
			title += ": NCCL_ALGO=" + s.Value + " leaves it out"
			lines = append([]Line{s.At}, lines...)
		}
		f.add(tierState, false, Finding{Severity: Odd, ID: "nvls-excluded", Title: title, Evidence: lines, Cost: "the memory for NVLS is taken, and all-reduce within the node is slower than it could be",
			Next: "one curve with NCCL_ALGO and one without", Fix: "unset NCCL_ALGO, or add nvls to it"})
		return
	}
}

// noAlgorithmFor: a row of NCCL's table in which nothing is left.
func (f *finder) noAlgorithmFor() {
	for _, c := range f.log.Comms {
		open, at := map[string]bool{}, map[string]Line{}
		for _, t := range c.Tuning {
			open[t.Func] = open[t.Func] || t.BWGBs > 0 || t.LatencyUS > 0
			at[t.Func] = t.At
		}
		for _, fn := range sortedKeys(open) {
			if open[fn] {
				continue
			}
			line := at[fn]
			if line.Text == "" {
				line.Text = fn + ": 0.0/ 0.0 in all cells"
			}
			lines := []Line{line}
			title := fmt.Sprintf("%s: no algorithm is left for %s", commName(c), fn)
			for _, name := range []string{"NCCL_ALGO", "NCCL_PROTO"} {
				if s, ok := f.value(name); ok {
					title += ", " + name + "=" + s.Value
					lines = append(lines, s.At)
				}
			}
			f.add(tierState, false, Finding{Severity: Odd, ID: "algorithm-excluded", Title: title, Evidence: lines, Cost: "such a call fails with \"no algorithm/protocol available\", if the program makes one",
				Next: "does the program call it?", Fix: "unset NCCL_ALGO and NCCL_PROTO, or give them for one function only (2.24 and newer)"})
			return
		}
	}
}

// mnnvl: GPUs of several hosts in one NVLink fabric, and NCCL does not use it.
func (f *finder) mnnvl() {
	by := map[string]map[string]Line{} // fabric and clique -> host
	for _, p := range f.log.Processes {
		for _, m := range p.MNNVL {
			if strings.Trim(m.FabricUUID, "0.x") == "" || p.Host == "" {
				continue // no fabric: all zeros
			}
			k := m.FabricUUID + "/" + m.CliqueID
			if by[k] == nil {
				by[k] = map[string]Line{}
			}
			if _, ok := by[k][p.Host]; !ok {
				by[k][p.Host] = m.At
			}
		}
	}
	used := false
	placed := false
	f.ranks(func(_ *Comm, r *Rank) {
		used = used || r.MNNVL > 0 || slices.ContainsFunc(r.Edges, func(e Edge) bool { return strings.HasPrefix(e.Via, "P2P/MNNVL") })
		placed = placed || r.NNodes > 1
	})
	if used || !placed {
		return
	}
	for _, k := range sortedKeys(by) {
		if len(by[k]) < 2 {
			continue
		}
		var lines []Line
		for _, h := range sortedKeys(by[k]) {
			lines = append(lines, by[k][h])
		}
		title := fmt.Sprintf("The GPUs of %s are in one NVLink fabric, but NCCL does not use NVLink between these hosts", names(4, sortedKeys(by[k])))
		if s, ok := f.isOff("NCCL_MNNVL_ENABLE"); ok {
			title += ": NCCL_MNNVL_ENABLE=0"
			lines = append(lines, s.At)
		}
		f.add(tierState, false, Finding{Severity: Odd, ID: "mnnvl-unused", Title: title, Evidence: lines, Cost: "the data between these hosts goes over the network instead of NVLink",
			Next: "`nvidia-imex-ctl -N`; NCCL_MNNVL_ENABLE, NCCL_CUMEM_ENABLE; is every rank of the job in the fabric?", Fix: "IMEX on all nodes of the domain and its channel device in each container"})
		return
	}
}

// collnet: SHARP was asked for and is not there.
func (f *finder) collnet() {
	var asked []Line
	what := ""
	if s, ok := f.isOn("NCCL_COLLNET_ENABLE"); ok {
		asked, what = []Line{s.At}, "NCCL_COLLNET_ENABLE=1"
	} else if s, ok := f.value("NCCL_ALGO"); ok && strings.Contains(strings.ToLower(s.Value), "collnet") && !strings.HasPrefix(s.Value, "^") {
		asked, what = []Line{s.At}, "NCCL_ALGO="+s.Value
	}
	if what == "" {
		return
	}
	looked := false
	for _, p := range f.log.Processes {
		for _, pl := range p.Plugins {
			looked = looked || pl.Kind == "net" || pl.Kind == "collnet"
			if pl.Kind == "collnet" && pl.Outcome != PluginProbe && pl.Outcome != PluginMissing && pl.Outcome != PluginFailed {
				return
			}
			if pl.Kind == "collnet" && len(asked) < 3 {
				asked = append(asked, pl.At)
			}
		}
		if slices.ContainsFunc(p.NICs, func(n NIC) bool { return n.SHARP }) {
			return
		}
	}
	used := false
	f.ranks(func(_ *Comm, r *Rank) {
		used = used || slices.ContainsFunc(r.Edges, func(e Edge) bool { return e.Transport == "COLLNET" })
	})
	if used || !looked || slices.ContainsFunc(f.found, func(c candidate) bool { return c.ID == "collnet-off" || c.ID == "sharp-tree-lock" }) {
		return
	}
	f.add(tierState, false, Finding{Severity: Odd, ID: "collnet-missing", Title: "CollNet (SHARP) is asked for by " + what + ", but no plugin that can do it was loaded", Evidence: asked,
		Cost: "no reduction in the switches", Next: "the NET/Plugin lines; HPC-X's nccl_rdma_sharp_plugin in LD_LIBRARY_PATH; sharp_am on the fabric", Fix: "load the plugin, or take the setting away"})
}

// pxn: the way through a neighbour's NIC is closed.
func (f *finder) pxn() {
	s, ok := f.isOn("NCCL_PXN_DISABLE")
	if !ok || f.multiNode() == no {
		return
	}
	x := Finding{Severity: Odd, ID: "pxn-off", Title: "PXN is switched off by NCCL_PXN_DISABLE=" + strings.TrimSuffix(s.Value, "."), Evidence: []Line{s.At},
		Cost: "all-to-all and send/receive between nodes cross rails and the CPU; ranks without a NIC near them lose GPUDirect RDMA", Next: "was it set for a test?", Fix: "take it away and compare whole curves"}
	if f.multiNode() == unknown {
		x.Severity = Info
		x.Title += ". With one node it does not matter; the log does not say"
	}
	f.add(tierState, false, x)
}

// narrowPCI: a PCIe link in NCCL's plan that no real slot of a GPU or NIC has.
func (f *finder) narrowPCI() {
	var g group
	for _, p := range f.log.Processes {
		if p.System == nil {
			continue
		}
		for _, l := range p.System.Links {
			if l.Type == "PCI" && l.BW > 0 && l.BW < 3 && leads(p.System, l.To) {
				g.take(p.Host, fmt.Sprintf("%.1f GB/s between %s and %s", l.BW, firstOf(l.From, "the CPU"), l.To), l.At)
			}
		}
	}
	if len(g.lines) > 0 {
		f.add(tierLink, false, Finding{Severity: Odd, ID: "pci-narrow", Title: "NCCL plans with a very slow PCIe link" + on(g.hosts) + ": " + names(3, g.what) + ". That is a link of one lane, as hypervisors show it", Evidence: g.lines,
			Cost: "rings are planned at a fraction of the real bandwidth, with few channels, and GPU and NIC may count as far apart (no GPUDirect RDMA)",
			Next: "`lspci -vvv` LnkSta of that bridge; is this a VM? ATS and ACS in the VM", Fix: "a topology file that shows the true switch and widths (NCCL_TOPO_FILE; clouds provide one); on bare metal reseat the card"})
	}
}

// leads says whether a GPU or NIC hangs below a node of the topology.
func leads(s *System, node string) bool {
	if strings.HasPrefix(node, "GPU") || strings.HasPrefix(node, "NIC") {
		return true
	}
	for _, l := range s.Links {
		if l.From == node && l.To != node && l.Type == "PCI" && leads2(s, l.To, 0) {
			return true
		}
	}
	return false
}

func leads2(s *System, node string, depth int) bool {
	if strings.HasPrefix(node, "GPU") || strings.HasPrefix(node, "NIC") {
		return true
	}
	return depth < 8 && slices.ContainsFunc(s.Links, func(l SystemLink) bool {
		return l.From == node && l.To != node && l.Type == "PCI" && leads2(s, l.To, depth+1)
	})
}

// unevenLinks: an NVLink with different bandwidth in its two directions, or GPUs with unlike links to the switch.
func (f *finder) unevenLinks() {
	var asym, uneven group
	for _, p := range f.log.Processes {
		if p.System == nil {
			continue
		}
		bw := map[[2]string]SystemLink{}
		sw := map[string]SystemLink{}
		var lo, hi SystemLink
		for _, l := range p.System.Links {
			if l.Type != "NVL" {
				continue
			}
			bw[[2]string{l.From, l.To}] = l
			if back, ok := bw[[2]string{l.To, l.From}]; ok && l.From != l.To && !close2(back.BW, l.BW) {
				asym.take(p.Host, fmt.Sprintf("%s to %s %.0f GB/s, back %.0f", back.From, back.To, back.BW, l.BW), l.At)
				asym.lines = append(asym.lines, back.At)
			}
			if strings.HasPrefix(l.To, "NVS") && sw[l.From].n() == 0 {
				sw[l.From] = l
				if lo.n() == 0 || l.BW < lo.BW {
					lo = l
				}
				if l.BW > hi.BW {
					hi = l
				}
			}
		}
		if lo.n() > 0 && !close2(lo.BW, hi.BW) {
			uneven.take(p.Host, fmt.Sprintf("%s %.0f GB/s, %s %.0f", lo.From, lo.BW, hi.From, hi.BW), lo.At)
			uneven.lines = append(uneven.lines, hi.At)
		}
	}
	if len(asym.lines) > 0 {
		x := Finding{Severity: Odd, ID: "nvlink-asymmetric", Title: "An NVLink has different bandwidth in its two directions" + on(asym.hosts) + ": " + names(2, asym.what), Evidence: asym.lines,
			Cost: "the search for channels goes by the smaller: few channels, low bandwidth", Next: "`nvidia-smi nvlink -s`: are all links up at full speed?", Fix: "mend or reset the links"}
		if s, ok := f.value("NCCL_TOPO_FILE"); ok {
			x.Title += ". Real links are alike both ways: the topology file NCCL_TOPO_FILE=" + s.Value + " is wrong"
			x.Evidence = append([]Line{s.At}, x.Evidence...)
			x.Next, x.Fix = "compare the file with a dump made without it (NCCL_TOPO_DUMP_FILE)", "unset NCCL_TOPO_FILE or correct the link counts in it"
		}
		f.add(tierLink, false, x)
	}
	if len(uneven.lines) > 0 {
		f.add(tierLink, false, Finding{Severity: Odd, ID: "nvlink-uneven", Title: "GPUs have different NVLink bandwidth to the switch" + on(uneven.hosts) + ": " + names(2, uneven.what), Evidence: uneven.lines,
			Cost: "the slowest GPU sets the pace", Next: "`nvidia-smi nvlink -s` and -e: links that are down or with errors", Fix: "reset or replace the GPU or board"})
	}
}

// n is the line of a link, 0 for none.
func (l SystemLink) n() int { return l.At.N }

// slowPlan: the ring that NCCL found is slow, and no other finding says why.
func (f *finder) slowPlan() {
	if f.has("pci-narrow") || f.has("socket-fallback") || f.has("socket-asked") || f.has("nvlink-asymmetric") || f.multiNode() == no {
		return
	}
	var g group
	f.ranks(func(_ *Comm, r *Rank) {
		for _, x := range r.Graphs {
			if x.Pattern == 4 && x.BWIntra > 0 && x.BWIntra < 3 && x.Channels > 0 {
				g.take(hostAt(r.Process), fmt.Sprintf("%d channels of %.1f GB/s, worst path %s within and %s between nodes", x.Channels, x.BWIntra, x.TypeIntra, x.TypeInter), x.At)
			}
		}
	})
	if len(g.lines) > 0 {
		f.add(tierState, false, Finding{Severity: Odd, ID: "slow-plan", Title: "NCCL plans a slow ring" + on(g.hosts) + ": " + names(2, g.what), Evidence: g.lines,
			Cost: "about that bandwidth is what all-reduce can reach", Next: "the `=== System` dump: which link has that figure, a NIC of 10 Gb/s (1.2), sockets, or a PCIe bridge?", Fix: "a faster NIC in NCCL_SOCKET_IFNAME or NCCL_IB_HCA; RDMA where there is some"})
	}
}

func close2(a, b float64) bool { return a == b || a > 0 && b > 0 && a/b < 1.02 && b/a < 1.02 }
