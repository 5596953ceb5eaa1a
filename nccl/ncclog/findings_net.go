package ncclog

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/commprobe/commprobe/internal/rankset"
)

// virtualName are interfaces that lead to containers, tunnels and VPNs, not to other nodes of a cluster.
var virtualName = regexp.MustCompile(`(?i)^(docker|veth|virbr|br-|cni|flannel|cali|tunl|tun\d|tap\d|vmnet|tailscale|wg\d|zt|kube-|lxc|lxdbr|cloudflarewarp|utun|podman|dummy)`)

// usesSockets says whether data of r goes by NET/Socket.
func usesSockets(r *Rank) bool {
	if r.Network != nil {
		return r.Network.Value == "Socket"
	}
	return slices.ContainsFunc(r.Edges, func(e Edge) bool { return e.Net == "Socket" })
}

// socketFallback: data over TCP where a faster network was to be expected or cannot be ruled out.
func (f *finder) socketFallback() {
	multi := f.multiNode()
	if multi == no {
		return // within one node no data goes over it
	}
	seen := map[*Process]bool{}
	var g group
	f.ranks(func(c *Comm, r *Rank) {
		if n := nodes(c); !usesSockets(r) || n == 1 || seen[r.Process] {
			return
		}
		seen[r.Process] = true
		if r.Network != nil {
			g.take(hostAt(r.Process), "", r.Network.At)
			return
		}
		i := slices.IndexFunc(r.Edges, func(e Edge) bool { return e.Net == "Socket" })
		g.take(hostAt(r.Process), "", edgeLine(r.Edges[i]))
	})
	for _, p := range f.log.Processes {
		if len(f.ranksOf(p)) == 0 && !seen[p] {
			for _, n := range p.Networks {
				if n.Value == "Socket" {
					g.take(p.Host, "", n.At)
				}
			}
		}
	}
	if len(g.lines) == 0 {
		return
	}
	why, lines, asked := f.socketReason()
	x := Finding{Severity: Odd, ID: "socket-fallback", Evidence: append(g.lines[:1:1], append(lines, g.lines[1:]...)...),
		Cost: "TCP through the CPU and host memory: 1 to 5 GB/s a node and tens of microseconds, against 25 to 50 GB/s for each 200 to 400 Gb/s NIC",
		Next: "`ibv_devinfo` and /dev/infiniband inside the container on these hosts; NCCL_IB_HCA; is an RDMA plugin needed (EFA, Slingshot, GCP)?",
		Fix:  "give the job its RDMA devices, libibverbs and plugin. Where the hosts have no RDMA this is as it should be; then see to a fast NIC in NCCL_SOCKET_IFNAME"}
	x.Title = "Data between nodes goes by TCP sockets" + on(g.hosts) + ": " + why
	if asked {
		x.ID = "socket-asked"
		x.Next = "whether that setting is still wanted"
		x.Fix = "take it away"
	}
	if multi == unknown {
		x.Severity = Info
		x.Title += ". No line says how many nodes take part: with one node it does not matter"
	}
	f.add(tierLink, false, x)
}

// socketReason finds why sockets are used, the most definite reason first. asked means that somebody wanted it so.
func (f *finder) socketReason() (why string, lines []Line, asked bool) {
	if s, ok := f.value("NCCL_NET"); ok && strings.EqualFold(s.Value, "socket") {
		return "NCCL_NET=Socket asks for it", []Line{s.At}, true
	}
	if s, ok := f.isOn("NCCL_IB_DISABLE"); ok {
		return "NCCL_IB_DISABLE=" + strings.TrimSuffix(s.Value, ".") + " switches InfiniBand and RoCE off", []Line{s.At}, true
	}
	for _, p := range f.log.Processes {
		for _, pl := range p.Plugins {
			if pl.Kind == "net" && pl.Outcome == PluginFailed && pl.Name != "IB" && pl.Name != "" {
				return "the network plugin " + pl.Name + " failed", []Line{pl.At}, false
			}
		}
	}
	for _, w := range f.log.Warnings {
		if strings.Contains(w.Text, "NET/OFI") || strings.Contains(strings.ToLower(w.Text), "plugin") {
			return "the network plugin failed", []Line{w.At}, false
		}
	}
	var parts []string
	for _, p := range f.log.Processes {
		for _, n := range p.NoIB {
			switch {
			case strings.Contains(n.At.Text, "ibverbs"), strings.Contains(n.Value, "ibverbs"):
				parts = append(parts, "libibverbs is not installed, so IB was not even tried")
			default:
				parts = append(parts, "NET/IB found no usable device")
			}
			lines = append(lines, n.At)
		}
	}
	if len(parts) > 0 {
		return names(2, parts), clip(lines)[:min(len(lines), 3)], false
	}
	return "the log does not say why", nil, false
}

// missingIB: signs that RDMA was wanted on a process that has none.
func (f *finder) missingIB() {
	var lib, dev group
	for _, p := range f.log.Processes {
		if len(p.NICs) > 0 || f.multiNode() == no {
			continue
		}
		for _, n := range p.NoIB {
			if strings.Contains(n.Value+n.At.Text, "ibverbs") {
				lib.take(p.Host, "", n.At)
			} else if sign := wantsIB(p); sign != "" {
				dev.take(p.Host, sign, n.At)
			}
		}
	}
	if len(lib.lines) > 0 {
		sev := Odd
		if f.multiNode() == unknown {
			sev = Info
		}
		f.add(tierState, false, Finding{Severity: sev, ID: "libibverbs-missing", Title: "libibverbs is not installed in the image" + on(lib.hosts) + ": InfiniBand and RoCE are not tried", Evidence: lib.lines,
			Cost: "sockets instead of RDMA, if the job spans nodes that have it", Next: "`ldconfig -p | grep ibverbs` in the container", Fix: "install rdma-core (libibverbs1, ibverbs-providers)"})
	}
	if len(dev.lines) > 0 {
		f.add(tierState, false, Finding{Severity: Odd, ID: "ib-no-device", Title: "No RDMA device found" + on(dev.hosts) + ", though " + names(3, dev.what), Evidence: dev.lines,
			Cost: "data between nodes would go by sockets", Next: "`ibv_devinfo` and `ls /dev/infiniband` inside the container; `ibstat`: is a port Active? NCCL_IB_HCA{=NCCL_IB_HCA} may match nothing",
			Fix: "docker --device=/dev/infiniband --cap-add=IPC_LOCK, or the RDMA device plugin in Kubernetes; correct NCCL_IB_HCA"})
		last := &f.found[len(f.found)-1]
		last.Next = f.fill(last.Next, nil, nil)
	}
}

// wantsIB is a sign that the process was meant to use InfiniBand.
func wantsIB(p *Process) string {
	for _, s := range p.Env {
		if s.Name == "NCCL_IB_HCA" || s.Name == "NCCL_IB_GID_INDEX" {
			return s.Name + " is set"
		}
	}
	if p.Bootstrap != nil && strings.HasPrefix(p.Bootstrap.Interface, "ib") {
		return "the host has an InfiniBand interface, " + p.Bootstrap.Interface
	}
	for _, pl := range p.Plugins {
		if strings.HasPrefix(pl.Name, "IBext") {
			return "the RDMA plugin of HPC-X is loaded"
		}
	}
	return ""
}

// pluginFailed: a plugin that was wanted and could not be used.
func (f *finder) pluginFailed() {
	var g group
	used := ""
	for _, p := range f.log.Processes {
		wanted := slices.ContainsFunc(p.Env, func(s Setting) bool { return s.Name == "NCCL_NET_PLUGIN" && s.Value != "none" })
		for _, pl := range p.Plugins {
			builtIn := pl.Name == "IB" || pl.Name == "Socket"
			if pl.Outcome == PluginFailed && !builtIn && pl.Name != "" || pl.Outcome == PluginMissing && wanted && pl.Kind == "net" {
				g.take(p.Host, strings.TrimSpace(pl.Kind+" plugin "+pl.Name+reasonText(pl.Reason)), pl.At)
				used = lastNetwork(p, used)
			}
		}
	}
	for _, w := range f.log.Warnings {
		if strings.Contains(w.Text, "NET/OFI Initializing plugin failed") || strings.Contains(w.Text, "External network plugin") && strings.Contains(w.Text, "unsupported") {
			g.take(hostAt(w.Process), "net plugin: "+w.Text, w.At)
			used = lastNetwork(w.Process, used)
		}
	}
	if len(g.lines) == 0 {
		return
	}
	title := "A plugin could not be used" + on(g.hosts) + " (" + names(2, g.what) + ")"
	if used != "" {
		title += "; NCCL took the network " + used + " instead"
	} else {
		title += "; the log does not say what was used instead"
	}
	f.add(tierState, false, Finding{Severity: Odd, ID: "plugin-failed", Title: title, Evidence: g.lines, Cost: "the network that the plugin was for is not used",
		Next: "the plugin's own lines before it; `ldd` on the library; does its interface version fit this NCCL?", Fix: "a plugin built for this NCCL, with its libraries in LD_LIBRARY_PATH"})
}

// lastNetwork is the network a process ended with, or what was known before.
func lastNetwork(p *Process, before string) string {
	if p == nil || len(p.Networks) == 0 {
		return before
	}
	return p.Networks[len(p.Networks)-1].Value
}

// mixedNICs: ports of different kind or speed in one process.
func (f *finder) mixedNICs() {
	var mixed, speed, bond group
	for _, p := range f.log.Processes {
		kinds, speeds := map[string][]string{}, map[int][]string{}
		for _, n := range p.NICs {
			if n.Virtual || len(n.Merged) > 0 {
				continue // fused of the same ports
			}
			if n.Link != "" {
				kinds[strings.SplitN(n.Link, "/", 2)[0]] = append(kinds[strings.SplitN(n.Link, "/", 2)[0]], n.Name)
			}
			if n.SpeedMbps > 0 {
				speeds[n.SpeedMbps] = append(speeds[n.SpeedMbps], n.Name)
			}
			if strings.Contains(n.Name, "bond") {
				bond.take(p.Host, n.Name, n.At)
			}
		}
		if len(kinds) > 1 && len(p.NICs) > 0 {
			var t []string
			for _, k := range sortedKeys(kinds) {
				t = append(t, k+": "+names(8, kinds[k]))
			}
			mixed.take(p.Host, strings.Join(t, "; "), p.NICs[0].At)
		}
		if len(speeds) > 1 {
			var t []string
			for _, k := range slices.Sorted(maps.Keys(speeds)) {
				t = append(t, fmt.Sprintf("%g Gb/s: %s", float64(k)/1000, names(8, speeds[k])))
			}
			for _, n := range p.NICs {
				if n.SpeedMbps > 0 {
					speed.take(p.Host, strings.Join(t, "; "), n.At)
				}
			}
		}
	}
	if len(mixed.lines) > 0 {
		f.add(tierState, false, Finding{Severity: Odd, ID: "nic-mixed-links", Title: "NCCL uses InfiniBand and Ethernet ports together" + on(mixed.hosts) + " (" + names(2, mixed.what) + ")", Evidence: mixed.lines,
			Cost: "a pair of unlike ports cannot connect (status 12), and storage or management ports slow every ring that uses them",
			Next: "which of them belong to the compute fabric?", Fix: "name these in NCCL_IB_HCA, the same on all hosts (a name without = is a prefix: mlx5_1 also takes mlx5_10; `=mlx5_1` is exact)"})
	}
	if len(speed.lines) > 0 && len(mixed.lines) == 0 {
		f.add(tierState, false, Finding{Severity: Odd, ID: "nic-mixed-speed", Title: "NCCL uses NICs of different speed" + on(speed.hosts) + " (" + names(2, speed.what) + ")", Evidence: speed.lines,
			Cost: "the slowest one sets the pace of every ring; the slow ones may be for storage or management, or a link that came up too slow",
			Next: "`ibstat` or `ethtool`: is the slow port one of the compute fabric?", Fix: "name the compute NICs in NCCL_IB_HCA; mend a link that trained low"})
	}
	if len(bond.lines) > 0 {
		f.add(tierState, false, Finding{Severity: Info, ID: "nic-bond", Title: "NCCL uses a bonded RDMA device" + on(bond.hosts) + ": " + names(4, bond.what), Evidence: bond.lines,
			Cost: "a queue pair goes over one port of the bond, so one connection may fill only half of it", Next: "port counters of both ports during a run",
			Fix: "NCCL_IB_QPS_PER_CONNECTION=2 or 4 spreads a connection; compare whole curves before keeping it"})
	}
}

// nicCounts: hosts of one job with different numbers of NICs.
func (f *finder) nicCounts() {
	by := map[string]*group{}
	for _, p := range f.log.Processes {
		n := 0
		var kinds []string
		for _, x := range p.NICs {
			if !x.Virtual {
				n++
				kinds = append(kinds, strings.SplitN(x.Link, "/", 2)[0])
			}
		}
		if n > 0 && p.Host != "" {
			takeBy(by, fmt.Sprintf("%d (%s)", n, names(3, kinds)), p.Host, p.NICs[0].At)
		}
	}
	if len(by) < 2 {
		return
	}
	f.add(tierState, false, Finding{Severity: Odd, ID: "nics-differ", Title: "Hosts of the job do not use the same NICs: " + describe(by), Evidence: linesOf(by),
		Cost: "channels are planned for the poorest host; unlike ports cannot connect", Next: "`ibstat` on the host with fewer: which port is down or hidden?", Fix: "bring the port up, or choose the same NICs everywhere with NCCL_IB_HCA"})
}

// idleNICs: several ranks of a host send over few of its NICs while others carry nothing. Only for hosts of which all ranks are in the log.
func (f *finder) idleNICs() {
	var g group
	for _, c := range f.log.Comms {
		if nodes(c) < 2 || !hasAll(c) {
			continue
		}
		used, senders, ranks, lines := map[string]map[int]bool{}, map[string]int{}, map[string]int{}, map[string][]Line{}
		nics := map[string]int{}
		for _, r := range c.Ranks {
			h := hostAt(r.Process)
			ranks[h]++
			nics[h] = max(nics[h], physical(r.Process))
			if used[h] == nil {
				used[h] = map[int]bool{}
			}
			sends := false
			for _, e := range r.Edges {
				if e.Transport == "NET" && e.Net != "Socket" && e.NetDev >= 0 {
					sends = true
					if !used[h][e.NetDev] {
						lines[h] = append(lines[h], edgeLine(e))
					}
					used[h][e.NetDev] = true
				}
			}
			senders[h] += truth(sends)
		}
		for _, h := range sortedKeys(nics) {
			if n := len(used[h]); n > 0 && n < nics[h] && ranks[h] >= nics[h] {
				g.take(h, fmt.Sprintf("numbers %s of %d", rankset.Fold(slices.Collect(maps.Keys(used[h])), ", "), nics[h]), lines[h][0])
				g.lines = append(g.lines, lines[h]...)
			}
		}
		if len(g.lines) > 0 {
			break
		}
	}
	if len(g.lines) > 0 {
		f.add(tierState, false, Finding{Severity: Odd, ID: "nic-idle", Title: "Only some NICs carry data" + on(g.hosts) + " (" + names(3, g.what) + ")", Evidence: g.lines,
			Cost: "the bandwidth of the idle ones is not used", Next: "`nvidia-smi topo -m`: which GPUs are near the idle NICs? The number of channels; NCCL_CROSS_NIC, NCCL_MAX_NCHANNELS, a topology file",
			Fix: "more channels (NCCL_MIN_NCHANNELS as a test), or the right topology file"})
	}
}

// sharedNICs: many GPUs of a host have few NICs between them. That may be how the machine is built.
func (f *finder) sharedNICs() {
	for _, c := range f.log.Comms {
		if nodes(c) < 2 {
			continue
		}
		var g group
		for _, r := range c.Ranks {
			if n := physical(r.Process); n > 0 && r.LocalRanks >= 4*n && !f.has("nic-idle") {
				g.take(hostAt(r.Process), fmt.Sprintf("%d ranks, %d NIC", r.LocalRanks, n), r.Process.NICs[0].At)
			}
		}
		if len(g.lines) == 0 {
			continue
		}
		x := Finding{Severity: Info, ID: "nic-shared", Title: "Many GPUs share few NICs" + on(g.hosts) + " (" + names(2, g.what) + ")", Evidence: g.lines,
			Cost: "the network bandwidth of the whole node is that of these NICs: one of 400 Gb/s gives 8 GPUs 5 to 6 GB/s of all-reduce", Next: "`ibstat`: has the host more ports than NCCL uses?", Fix: "name all compute NICs in NCCL_IB_HCA, if there are more"}
		if s, ok := f.value("NCCL_IB_HCA"); ok {
			x.Title += "; NCCL_IB_HCA=" + s.Value + " may leave some out"
			x.Evidence = append([]Line{s.At}, x.Evidence...)
		}
		f.add(tierState, false, x)
		return
	}
}

// physical counts the NICs of a process; 0 where ports are fused, as their numbers then mean something else.
func physical(p *Process) int {
	if p == nil {
		return 0
	}
	n := 0
	for _, x := range p.NICs {
		if len(x.Merged) > 1 {
			return 0
		}
		n += 1 - truth(x.Virtual)
	}
	return n
}

// externalPlugin: an RDMA plugin in place of NET/IB, which has switches of its own.
func (f *finder) externalPlugin() {
	var g group
	for _, p := range f.log.Processes {
		for _, n := range p.Networks {
			if strings.HasPrefix(n.Value, "IBext") || strings.HasPrefix(n.Value, "NCCL RDMA Plugin") {
				g.take(p.Host, n.Value, n.At)
			}
		}
	}
	f.pluginDisabled()
	if len(g.lines) == 0 {
		return
	}
	x := Finding{Severity: Info, ID: "ib-disable-ignored", Title: "Data goes by the external plugin " + names(2, g.what) + " of HPC-X" + on(g.hosts) + ". It does not read NCCL_IB_DISABLE; if that is set, it has no effect here", Evidence: g.lines,
		Next: "whether the job sets NCCL_IB_DISABLE: a variable that nobody reads leaves no line in the log", Fix: "to keep off RDMA: NCCL_NET=Socket, NCCL_NET_PLUGIN=none or NCCL_IBEXT_DISABLE=1"}
	if s, ok := f.isOn("NCCL_IB_DISABLE"); ok {
		x.Severity = Odd
		x.Title = "NCCL_IB_DISABLE=" + strings.TrimSuffix(s.Value, ".") + " is set, yet data goes by the external plugin " + names(2, g.what) + on(g.hosts) + ", which does not read it"
		x.Evidence = append([]Line{s.At}, x.Evidence...)
		x.Cost = "the traffic takes the network that it was meant to avoid"
	}
	f.add(tierState, false, x)
}

// pluginDisabled: the plugin of HPC-X is told to stay out, and NCCL's own NET/IB takes its place.
func (f *finder) pluginDisabled() {
	s, ok := f.isOn("NCCL_IBEXT_DISABLE")
	if !ok || len(s.proc.NICs) == 0 {
		return
	}
	f.add(tierState, false, Finding{Severity: Info, ID: "ibext-disabled", Title: "NCCL_IBEXT_DISABLE=1 switches the plugin of HPC-X off, and NCCL uses its own NET/IB" + on([]string{s.proc.Host}) + ": the data still goes by RDMA", Evidence: []Line{s.At, s.proc.NICs[0].At},
		Next: "was sockets meant?", Fix: "to keep off RDMA altogether: NCCL_NET=Socket, or NCCL_IB_DISABLE=1 as well"})
}

// bootstrapInterface looks at the interfaces by which the ranks find each other.
func (f *finder) bootstrapInterface() {
	multi := f.multiNode()
	var virtual, local, lo group
	for _, p := range f.log.Processes {
		b := p.Bootstrap
		switch {
		case b == nil || multi == no:
		case virtualName.MatchString(b.Interface):
			virtual.take(p.Host, b.Interface+" ("+b.Addr+")", b.At)
		case b.Interface == "lo" || strings.HasPrefix(b.Addr, "127."):
			lo.take(p.Host, b.Interface, b.At)
		case strings.HasPrefix(b.Addr, "fe80"):
			local.take(p.Host, b.Interface+" ("+b.Addr+")", b.At)
		}
	}
	ifs := func(id, what string, g group) {
		if len(g.lines) == 0 {
			return
		}
		x := Finding{Severity: Odd, ID: id, Title: "The ranks look for each other over " + what + on(g.hosts) + ": " + names(3, g.what), Evidence: g.lines,
			Cost: "ranks on other hosts cannot be reached: initialisation hangs or fails", Next: "`ip -br addr`; which network do all hosts share?", Fix: "NCCL_SOCKET_IFNAME of that network, e.g. `eth0` or `^docker,veth,lo`"}
		if multi == unknown {
			x.Title += ". Harmless if the job has one node; the log does not say"
			x.Severity = Info
		}
		f.add(tierState, false, x)
	}
	ifs("bootstrap-virtual-interface", "an interface of containers or a tunnel", virtual)
	ifs("bootstrap-loopback", "the loopback interface", lo)
	ifs("bootstrap-link-local", "a link-local address", local)
	f.bootstrapFamilies(multi)
}

// bootstrapFamilies: IPv4 on one host and IPv6 on another cannot meet. Different names of interfaces are common and harmless.
func (f *finder) bootstrapFamilies(multi answer) {
	by := map[string]*group{}
	for _, p := range f.log.Processes {
		if p.Bootstrap == nil || p.Bootstrap.Addr == "" || p.Host == "" {
			continue
		}
		family := "IPv4"
		if strings.Contains(p.Bootstrap.Addr, ":") {
			family = "IPv6"
		}
		takeBy(by, family, p.Host, p.Bootstrap.At)
	}
	if len(by) > 1 && multi != no {
		f.add(tierState, false, Finding{Severity: Odd, ID: "bootstrap-families", Title: "Hosts look for each other by different kinds of address: " + describe(by), Evidence: linesOf(by),
			Cost: "they cannot meet: initialisation hangs", Next: "`ip -br addr`", Fix: "NCCL_SOCKET_FAMILY=AF_INET and one network in NCCL_SOCKET_IFNAME"})
	}
}

// socketInterfaces: NET/Socket spreads over all interfaces that it lists, also those that lead nowhere.
func (f *finder) socketInterfaces() {
	if f.multiNode() == no {
		return
	}
	var g group
	f.ranks(func(c *Comm, r *Rank) {
		if !usesSockets(r) || r.Process == nil || nodes(c) < 2 || len(r.Process.SocketIfs) < 2 {
			return
		}
		for _, a := range r.Process.SocketIfs {
			if virtualName.MatchString(a.Interface) {
				g.take(hostAt(r.Process), a.Interface, a.At)
			}
		}
	})
	if len(g.lines) > 0 {
		f.add(tierState, false, Finding{Severity: Odd, ID: "socket-virtual-interface", Title: "Socket traffic may use interfaces of containers or VPNs" + on(g.hosts) + ": " + names(5, g.what), Evidence: g.lines,
			Cost: "connections over them fail or crawl", Next: "which interface leads to the other hosts?", Fix: "NCCL_SOCKET_IFNAME of that one"})
	}
}

// oneSubnet: two interfaces of a host in one subnet. The kernel then answers for one on the other, and replies take a way of their own.
func (f *finder) oneSubnet() {
	multi := f.multiNode()
	if multi == no {
		return
	}
	var g group
	for _, p := range f.log.Processes {
		seen := map[string]Address{}
		for _, a := range p.SocketIfs {
			i := strings.LastIndex(a.Addr, ".")
			if i < 0 || virtualName.MatchString(a.Interface) {
				continue
			}
			if o, ok := seen[a.Addr[:i]]; ok && o.Interface != a.Interface {
				g.take(p.Host, o.Interface+" "+o.Addr+" and "+a.Interface+" "+a.Addr, a.At)
			}
			seen[a.Addr[:i]] = a
		}
	}
	if len(g.lines) == 0 {
		return
	}
	sev := Info
	if multi == yes {
		sev = Odd
	}
	f.add(tierState, false, Finding{Severity: sev, ID: "interfaces-one-subnet", Title: "Two interfaces of one host look as if they were in one subnet" + on(g.hosts) + ": " + names(3, g.what), Evidence: g.lines,
		Cost: "routes cross: packets leave by one interface and are expected at the other; connections fail or both share one link", Next: "`ip route`; the netmask", Fix: "one subnet for each interface, or name one of them in NCCL_SOCKET_IFNAME; arp_ignore, arp_announce and rules for each source address"})
}

// retries: connections that were refused at first. Fine where the job came up, else a trace of the peer that is missing.
func (f *finder) retries() {
	ok := true
	any := false
	f.ranks(func(_ *Comm, r *Rank) {
		any = true
		ok = ok && passed(r)
	})
	var g group
	n := 0
	for _, p := range f.log.Processes {
		for _, r := range p.Retries {
			g.take(p.Host, f.peerName(r.Peer)+reasonText(r.Reason), r.At)
			n += r.Count
		}
	}
	if len(g.lines) == 0 {
		return
	}
	x := Finding{Severity: Odd, ID: "connect-retries", Evidence: g.lines, Title: fmt.Sprintf("Connections%s had to be tried again, %s in all (%s)", on(g.hosts), amount(n, "time", "s"), names(3, g.what)),
		Cost: "these ranks wait for a peer that does not listen", Next: "is the process at that address alive, and is it the interface that you meant?", Fix: "NCCL_SOCKET_IFNAME; start all ranks at about the same time"}
	if ok && any {
		x.Severity, x.Cost = Info, "none: the ranks came up. Some were just later than others"
	}
	f.add(tierLink, true, x)
}
