package topo

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// settings derives the variables from what was chosen.
func (a *adviser) settings() {
	a.setHCA()
	a.setSocket()
	a.setGID()
	a.setCrossNIC()
	a.setGDR()
	a.setP2P()
	a.notes()
}

func (a *adviser) set(variable, value, when string, c Confidence, format string, args ...any) {
	s := Setting{Variable: variable, When: when, Confidence: c, Reason: fmt.Sprintf(format, args...)}
	if value != "" {
		s.Value = &value
	}
	a.out.Settings = append(a.out.Settings, s)
}

func (a *adviser) setHCA() {
	use := a.usable()
	if len(use) == 0 {
		why, c := a.noNIC()
		a.set("NCCL_IB_HCA", "", "", c, "%s", why)
		return
	}
	left, named := 0, []string{}
	for _, c := range use {
		named = append(named, c.name())
	}
	for _, c := range a.ports {
		if c.why != "" && c.nic.RDMA != nil && *c.nic.RDMA {
			left++
		}
	}
	conf, why := Sure, fmt.Sprintf("what serves GPUs (%s), in exact form: without = a name is a prefix, and mlx5_1 also takes mlx5_10", count(len(use), "port"))
	if left > 0 {
		conf = Likely
		why += fmt.Sprintf("; %s left out, each with its reason above", count(left, "RDMA port"))
	}
	if slices.ContainsFunc(use, func(c *advPort) bool { return c.port.State == "" || len(a.gpus) > 0 && a.best(c) == unknownRank }) || len(a.gpus) == 0 {
		conf, why = Depends, why+"; states or distances are not all known here"
	}
	a.set("NCCL_IB_HCA", "="+strings.Join(named, ","), "", conf, "%s", why)
}

// best is a port's distance to its nearest GPU.
func (a *adviser) best(c *advPort) int {
	rank := unknownRank
	for _, d := range c.dist {
		rank = min(rank, d.rank)
	}
	return rank
}

func count(n int, what string) string {
	if n == 1 {
		return "one " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

func (a *adviser) setSocket() {
	name, why, c := a.socketInterface()
	if name != "" {
		name = "=" + name
	}
	a.set("NCCL_SOCKET_IFNAME", name, "", c, "%s; NCCL's bootstrap goes by it even where data goes by RDMA", why)
}

// setGID: from NCCL 2.21 on the index is found for each port, before it was one number for all ports.
func (a *adviser) setGID() {
	indexes, ipv6, missing := map[int]bool{}, 0, 0
	eth := 0
	last := 0
	for _, c := range a.usable() {
		if c.port.LinkLayer != "Ethernet" {
			continue
		}
		eth++
		if c.gid == nil {
			missing++
			continue
		}
		if addr, ok := c.gid.addr(); ok && !addr.Is4() {
			ipv6++
		}
		indexes[c.gid.Index], last = true, c.gid.Index
	}
	switch {
	case eth == 0:
		return
	case missing > 0:
		a.set("NCCL_IB_GID_INDEX", "", "", Depends, "%s of %d Ethernet ports without a RoCE v2 address that can be seen (reasons above): look at show_gids or commprobe rdma list on the host", strconv.Itoa(missing), eth)
		return
	case ipv6 == eth:
		a.set("NCCL_IB_ADDR_FAMILY", "AF_INET6", "", Sure, "the ports have RoCE v2 addresses of IPv6 alone, and NCCL looks for IPv4 unless it is told")
	case ipv6 > 0:
		a.set("NCCL_IB_ADDR_FAMILY", "", "", Depends, "%d of %d Ethernet ports have RoCE v2 addresses of IPv6 alone: one variable cannot serve both kinds, give all an IPv4 address", ipv6, eth)
	}
	older := "NCCL is older than 2.21"
	if len(indexes) > 1 {
		a.set("NCCL_IB_GID_INDEX", "", "", Sure, "the RoCE v2 address has different indexes on the ports, which one number cannot say; NCCL from 2.21 on finds each by NCCL_IB_ROCE_VERSION_NUM (2) and NCCL_IB_ADDR_FAMILY")
		return
	}
	known := nccl221(a.o.NCCL)
	if known == nil || *known {
		a.set("NCCL_IB_GID_INDEX", "", "", Sure, "NCCL from 2.21 on finds the RoCE v2 address itself by NCCL_IB_ROCE_VERSION_NUM (2) and NCCL_IB_ADDR_FAMILY (AF_INET); here that is index %d on every port", last)
	}
	if known == nil || !*known {
		a.set("NCCL_IB_GID_INDEX", strconv.Itoa(last), older, Sure, "older versions start at index 0, which is RoCE v1; %d is RoCE v2 on every port used here. Other nodes may have another index", last)
	}
}

// nccl221 says whether a version is 2.21 or newer; nil: unknown.
func nccl221(version string) *bool {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return nil
	}
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	if err1 != nil || err2 != nil {
		return nil
	}
	v := major > 2 || major == 2 && minor >= 21
	return &v
}

func (a *adviser) setCrossNIC() {
	use := a.usable()
	if len(use) < 2 {
		return
	}
	own := map[string]int{}
	for i := range a.out.GPUs {
		own[a.out.GPUs[i].NIC+":"+show(a.out.GPUs[i].Port)]++
	}
	oneEach := len(a.gpus) > 1 && len(own) == len(a.gpus)
	shape := fmt.Sprintf("%d ports for %s", len(use), count(len(a.gpus), "GPU"))
	if oneEach {
		shape = "a port for each GPU, the shape of rail-wired clusters"
	}
	a.set("NCCL_CROSS_NIC", "", "", Depends, "%s, but one node cannot show how the switches are wired: leave it unset (2: NCCL decides) unless the fabric is known", shape)
	a.set("NCCL_CROSS_NIC", "0", "port k of every node is on switch k (rails) and the rails are not, or thinly, connected", Depends, "traffic stays on its rail; the rails here are in the order of NCCL_IB_HCA, which must be the same on every node")
	a.set("NCCL_CROSS_NIC", "1", "all ports of all nodes are on one non-blocking fabric", Depends, "rings may leave by one port and enter by another, which balances ports of unequal distance")
}

// gdrDefault is the distance up to which NCCL uses GPUDirect RDMA unless it is told otherwise.
const gdrDefault = "PXB"

// setGDR compares the distance of every GPU to its NIC with NCCL's level.
func (a *adviser) setGDR() {
	var far, across, unknown []string
	near, c2c := 0, 0
	for i := range a.out.GPUs {
		v := &a.out.GPUs[i]
		switch d := NCCLDistance(v.NCCL); {
		case v.NIC == "":
			return
		case d < 0:
			unknown = append(unknown, v.GPU)
		case d <= NCCLDistance(gdrDefault):
			near++
		case v.NCCL == "P2C":
			c2c++
		case v.NCCL == "PHB":
			far = append(far, v.GPU)
		default:
			across = append(across, v.GPU)
		}
	}
	if len(unknown) > 0 {
		a.set("NCCL_NET_GDR_LEVEL", "", "", Depends, "NCCL's distance between %s and its NIC is not known here; above %s it stages through host memory", idList(unknown), gdrDefault)
	}
	if near+c2c > 0 && len(far)+len(across)+len(unknown) == 0 {
		why := "every GPU has a NIC within " + gdrDefault + ", NCCL's default level: GPUDirect RDMA is used where the driver allows it"
		if c2c > 0 {
			why = "GPU and NIC meet at the CPU, joined to the GPU by C2C (P2C), which NCCL allows by default from 2.27 on (NCCL_NET_GDR_C2C)"
		}
		a.set("NCCL_NET_GDR_LEVEL", "", "", Sure, "%s", why)
	}
	if len(far) > 0 {
		a.set("NCCL_NET_GDR_LEVEL", "PHB", "GPUDirect RDMA through the CPU was measured at full rate and with right data on this machine", Depends,
			"%s and the nearest NIC meet at the CPU only (PHB, above the default %s), so NCCL stages through host memory; many CPUs forward such traffic slowly, some virtual machines not at all", idList(far), gdrDefault)
	}
	if len(across) > 0 {
		a.set("NCCL_NET_GDR_LEVEL", "", "", Sure, "%s has no NIC in its NUMA node: GPUDirect RDMA across the CPUs' link is mostly slower than staging; a NIC nearer to it is the remedy, not a looser level", idList(across))
	}
}

// setP2P looks at the GPU pairs without NVLink.
func (a *adviser) setP2P() {
	if len(a.gpus) < 2 {
		return
	}
	words := map[string]int{}
	for i, x := range a.gpus {
		for _, y := range a.gpus[i+1:] {
			path := a.p.path(endpoint{id: x.ID, busID: x.BusID, numa: x.NUMA, gpu: x}, endpoint{id: y.ID, busID: y.BusID, numa: y.NUMA, gpu: y})
			words[first(path.NCCL, "?")]++
		}
	}
	beyond, nv, total := 0, words["NVL"]+words["NVB"]+words["C2C"], 0
	for w, n := range words {
		total += n
		if d := NCCLDistance(w); d > NCCLDistance(gdrDefault) && d < NCCLDistance("NET") {
			beyond += n
		}
	}
	switch {
	case words["?"] > 0:
		a.set("NCCL_P2P_LEVEL", "", "", Depends, "how %d of %d pairs of GPUs are joined is not known here", words["?"], total)
	case nv == total:
		a.set("NCCL_P2P_LEVEL", "", "", Sure, "all pairs of GPUs are joined by NVLink: any level allows it")
	case beyond == 0:
		a.set("NCCL_P2P_LEVEL", "", "", Sure, "all pairs of GPUs are within PXB, NCCL's default level: direct copies are used where the driver allows them")
	case words["PHB"] > 0:
		a.set("NCCL_P2P_LEVEL", "PHB", "copies between GPUs through the CPU were measured faster than through host memory, with right data", Depends,
			"%d of %d pairs meet at a CPU (PHB), %d are in different NUMA nodes (SYS): above the default PXB they go through host memory (SHM), which is often as fast%s", words["PHB"], total, words["SYS"], a.amdRemark())
	default:
		a.set("NCCL_P2P_LEVEL", "", "", Likely, "%d of %d pairs of GPUs are in different NUMA nodes (SYS) and go through host memory (SHM): the default is right there%s", words["SYS"], total, a.amdRemark())
	}
}

func (a *adviser) amdRemark() string {
	if len(a.g.GPUs) <= 2 && slices.ContainsFunc(a.g.CPUs, func(c CPU) bool { return c.Vendor == "AuthenticAMD" }) {
		return "; with two GPUs on an AMD CPU NCCL allows SYS by itself"
	}
	return ""
}

// redirects are the bridges above GPUs whose ACS redirects requests (RR) or completions (CR) between devices.
func (a *adviser) redirects() (out []string) {
	for _, gpu := range a.gpus {
		for _, f := range a.g.Above(gpu.BusID) {
			if f.ACS.State == "on" && (slices.Contains(f.ACS.Enabled, "RR") || slices.Contains(f.ACS.Enabled, "CR")) && !slices.Contains(out, f.BusID) {
				out = append(out, f.BusID)
			}
		}
	}
	return out
}

// notes says what the advice as a whole lacks.
func (a *adviser) notes() {
	say := func(format string, args ...any) { a.out.Notes = append(a.out.Notes, fmt.Sprintf(format, args...)) }
	if len(a.g.GPUs) == 0 {
		say("no GPU is known here: which NIC serves which GPU cannot be told")
	}
	rates := map[float64]int{}
	for _, c := range a.usable() {
		if v := gbps(c); v > 0 {
			rates[v]++
		}
	}
	if len(rates) > 1 {
		say("the ports used have different rates: a ring is as fast as its slowest port")
	}
	var unbound []string
	for i := range a.out.GPUs {
		if v := &a.out.GPUs[i]; v.Command == "" {
			unbound = append(unbound, v.GPU)
		}
	}
	switch {
	case len(unbound) > 0 && a.g.Form == FormFull && len(a.g.CPUs) == 1:
		say("there is one NUMA node: all its cores are as near to every GPU, as far as this machine shows")
	case len(unbound) > 0:
		say("%s: no NUMA node is known, so ranks cannot be bound near it", idList(unbound))
	}
	if redirect := a.redirects(); len(redirect) > 0 {
		say("ACS is on at %s and may send what goes from device to device below a switch up through the CPU: GPUDirect RDMA and P2P are slow or fail there", shorten(redirect))
	}
	if a.env["NCCL_TOPO_FILE"] != "" {
		say("NCCL_TOPO_FILE is set: NCCL believes that file, this advice is from %s. Compare: commprobe topo --diff %s", first(a.g.Source, "the input"), a.env["NCCL_TOPO_FILE"])
	}
	if a.g.Host.Virtual != nil && *a.g.Host.Virtual {
		say("a virtual machine: the PCIe tree may be invented, so distances are what it shows, not what is wired; the provider's NCCL_TOPO_FILE knows better")
	}
}
