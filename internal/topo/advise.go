package topo

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// AdviseOptions is what Advise has to know beside the graph and the environment. The zero value is good: what it leaves out is called unknown.
type AdviseOptions struct {
	NCCL string // version as 2.27.3; empty: unknown, and what depends on it says so
	Net  HostNet
	// Devices are the GPUs that count, by index, as CUDA_VISIBLE_DEVICES has them; nil: all.
	Devices []int
}

// Confidence is how far a piece of advice can be trusted.
type Confidence string

// The steps of confidence.
const (
	Sure    Confidence = "sure"    // follows from what this node shows
	Likely  Confidence = "likely"  // a rule that mostly holds; the reason names it
	Depends Confidence = "depends" // on something that this node does not show; the reason says what
)

// Advice is how a job should use this node's devices, and what in the environment is against it.
type Advice struct {
	GPUs           []GPUAdvice     `json:"gpus"`
	NICs           []NICAdvice     `json:"nics"`
	Settings       []Setting       `json:"settings"`
	Contradictions []Contradiction `json:"contradictions"`
	Notes          []string        `json:"notes,omitempty"`
}

// GPUAdvice is the NIC and the cores for one GPU, that is for one rank.
type GPUAdvice struct {
	GPU        string     `json:"gpu"`
	BusID      string     `json:"busid,omitempty"`
	NIC        string     `json:"nic,omitempty"`     // "mlx5_0"; empty: none can be named, Reason says why
	Port       *int       `json:"port,omitempty"`    // nil: the NIC's ports are not known
	SMI        string     `json:"smi,omitempty"`     // distance in nvidia-smi's words
	NCCL       string     `json:"nccl,omitempty"`    // distance in NCCL's words
	GBs        *float64   `json:"gbs"`               // PCIe between them, one way; nil: unknown
	EqualNICs  []string   `json:"equal,omitempty"`   // as near and as fast
	CPUs       string     `json:"cpus,omitempty"`    // cores near the GPU; empty: unknown
	NUMA       *int       `json:"numa"`              // nil: unknown
	Command    string     `json:"command,omitempty"` // what binds a rank there
	Reason     string     `json:"reason"`
	Confidence Confidence `json:"confidence"`
}

// NICAdvice says of one port whether NCCL should use it.
type NICAdvice struct {
	NIC    string `json:"nic"`
	Port   *int   `json:"port,omitempty"`
	Use    bool   `json:"use"`
	Rail   *int   `json:"rail,omitempty"` // position among those used, in the order of the bus
	Reason string `json:"reason"`
	// GIDIndex is the first RoCE v2 address of IPv4 (or, where there is none, the first of IPv6 that is not link-local), which NCCL from 2.21 on takes. nil: InfiniBand, or none.
	GIDIndex *int   `json:"gid_index,omitempty"`
	GIDText  string `json:"gid_reason,omitempty"`
}

// Setting is a variable of the environment. A nil Value: leave it unset.
type Setting struct {
	Variable   string     `json:"variable"`
	Value      *string    `json:"value"`
	When       string     `json:"when,omitempty"` // the value is only for this case: "NCCL before 2.21"
	Reason     string     `json:"reason"`
	Confidence Confidence `json:"confidence"`
}

// Contradiction is something set in the present environment that works against the node.
type Contradiction struct {
	Variable string `json:"variable"`
	Value    string `json:"value"`
	Text     string `json:"text"`
	Fix      string `json:"fix"`
}

// Advise says how NCCL should use the node of g, and what in env, the NCCL_* variables of the environment, works against it. It reads nothing else.
func Advise(g *Graph, env map[string]string, o AdviseOptions) Advice {
	a := &adviser{g: g, env: env, o: o, p: newPather(g)}
	a.out.GPUs, a.out.NICs, a.out.Settings, a.out.Contradictions = []GPUAdvice{}, []NICAdvice{}, []Setting{}, []Contradiction{}
	a.findGPUs()
	a.findPorts()
	a.choosePorts()
	a.pairGPUs()
	a.report()
	a.settings()
	a.contradictions()
	return a.out
}

// advPort is one port of a NIC that NCCL could use.
type advPort struct {
	nic  *NIC
	end  endpoint
	port *Port
	num  *int
	why  string       // not to be used, and why; empty: use it
	keep string       // why it is used
	dist map[int]near // by position in adviser.gpus
	rail int
	load int // GPUs that have it
	gid  *GID
	gidT string
}

// near is the way between a GPU and a NIC.
type near struct {
	path Path
	rank int // SMIDistance, or a distance of NCCL's on the same scale; unknown is the largest
	hops int
}

type adviser struct {
	g     *Graph
	env   map[string]string
	o     AdviseOptions
	p     *pather
	gpus  []*GPU
	ports []*advPort
	out   Advice
}

const unknownRank = 99

func (a *adviser) findGPUs() {
	for i := range a.g.GPUs {
		p := &a.g.GPUs[i]
		if a.o.Devices != nil && p.Index != nil && !slices.Contains(a.o.Devices, *p.Index) {
			continue
		}
		a.gpus = append(a.gpus, p)
	}
}

// findPorts lists every port of every NIC, with what excludes it by itself.
func (a *adviser) findPorts() {
	for _, e := range a.g.endpoints() {
		if e.nic == nil {
			continue
		}
		ports := e.nic.Ports
		if len(ports) == 0 {
			ports = []Port{{}}
		}
		for i := range ports {
			c := &advPort{nic: e.nic, end: e, port: &ports[i], num: ports[i].Num, dist: map[int]near{}, rail: -1}
			c.why = a.unusable(c)
			c.gid, c.gidT = firstRoCE2(c.port)
			for k, gpu := range a.gpus {
				c.dist[k] = a.between(endpoint{id: gpu.ID, busID: gpu.BusID, numa: gpu.NUMA, gpu: gpu}, e)
			}
			a.ports = append(a.ports, c)
		}
	}
}

func (a *adviser) between(gpu, nic endpoint) near {
	path := a.p.path(gpu, nic)
	n := near{path: path, rank: SMIDistance(path.SMI), hops: len(path.Hops)}
	if n.rank < 0 {
		switch path.SMI {
		case SMIHostOrNode:
			n.rank = SMIDistance(SMINODE)
		case SMINodeOrSys:
			n.rank = SMIDistance(SMISYS)
		default:
			n.rank = unknownRank
		}
	}
	return n
}

// unusable says why a port cannot be used, whatever the others are; empty: it can.
func (a *adviser) unusable(c *advPort) string {
	n := c.nic
	switch {
	case n.RDMA != nil && !*n.RDMA:
		return "no RDMA device: NCCL reaches it by sockets only"
	case n.Name == "":
		return "its RDMA device has no name here"
	case c.port.State == "INIT" || c.port.State == "ARMED":
		return "port is " + c.port.State + ", not ACTIVE: on InfiniBand the subnet manager has not configured it"
	case c.port.State != "" && c.port.State != "ACTIVE":
		return "port is " + c.port.State + ", not ACTIVE"
	case n.PF != "":
		for i := range a.g.NICs {
			if pf := &a.g.NICs[i]; pf.BusID == n.PF {
				return "virtual function of " + first(pf.Name, pf.BusID) + ": made for virtual machines and containers, shares its wire"
			}
		}
	}
	return ""
}

func (a *adviser) usable() (out []*advPort) {
	for _, c := range a.ports {
		if c.why == "" {
			out = append(out, c)
		}
	}
	return out
}

// choosePorts leaves out what serves storage and management.
func (a *adviser) choosePorts() {
	a.leaveFar()
	a.leaveSlow()
	a.leaveOtherLayer()
	a.leaveBonds()
	a.leaveDefaultRoute()
	rail := 0
	for _, c := range a.usable() {
		c.rail = rail
		rail++
		c.keep = a.keepText(c)
	}
}

// leaveFar excludes ports that are the nearest to no GPU, where others are nearer to all.
func (a *adviser) leaveFar() {
	if len(a.gpus) == 0 {
		return
	}
	wanted := map[*advPort]bool{}
	best := unknownRank
	for k := range a.gpus {
		lowest := unknownRank
		for _, c := range a.usable() {
			lowest = min(lowest, c.dist[k].rank)
		}
		best = min(best, lowest)
		for _, c := range a.usable() {
			wanted[c] = wanted[c] || c.dist[k].rank == lowest
		}
	}
	for _, c := range a.usable() {
		if wanted[c] {
			continue
		}
		word, rank := "", unknownRank
		for k := range a.gpus {
			if d := c.dist[k]; d.rank < rank {
				word, rank = d.path.SMI, d.rank
			}
		}
		c.why = fmt.Sprintf("%s at best to any GPU while every GPU has a nearer NIC: looks like storage or management", first(word, SMIUnknown))
	}
}

func gbps(c *advPort) float64 {
	if c.port.Gbps == nil {
		return 0
	}
	return *c.port.Gbps
}

// leaveSlow excludes ports with a quarter of the fastest one's rate or less.
func (a *adviser) leaveSlow() {
	top := 0.0
	for _, c := range a.usable() {
		top = max(top, gbps(c))
	}
	for _, c := range a.usable() {
		if v := gbps(c); v > 0 && v*4 <= top {
			c.why = fmt.Sprintf("%g Gb/s beside ports of %g: looks like storage or management, and NCCL would send as much through it as its share", v, top)
		}
	}
}

// leaveOtherLayer keeps one of InfiniBand and Ethernet: NCCL does not connect one with the other.
func (a *adviser) leaveOtherLayer() {
	sum := map[string]float64{}
	for _, c := range a.usable() {
		if c.port.LinkLayer != "" {
			sum[c.port.LinkLayer] += max(gbps(c), 1)
		}
	}
	if len(sum) < 2 {
		return
	}
	best := "InfiniBand"
	for _, layer := range []string{"InfiniBand", "Ethernet"} {
		if sum[layer] > sum[best] {
			best = layer
		}
	}
	for _, c := range a.usable() {
		if l := c.port.LinkLayer; l != "" && l != best {
			c.why = fmt.Sprintf("%s beside %s, which gives more together: NCCL cannot connect one with the other", l, best)
		}
	}
}

// leaveBonds excludes single members of a bond: what their wires carry is the bond's business. One RDMA device for the whole bond is good.
func (a *adviser) leaveBonds() {
	members := map[string]int{}
	for _, c := range a.ports {
		if c.nic.Bond != "" && c.nic.RDMA != nil && *c.nic.RDMA {
			members[c.nic.Bond]++
		}
	}
	for _, c := range a.usable() {
		if n := members[c.nic.Bond]; c.nic.Bond != "" && n > 1 && a.replaceable(c) {
			c.why = fmt.Sprintf("one of %d RDMA devices whose interfaces are in %s: traffic may leave by another member", n, c.nic.Bond)
		}
	}
}

// leaveDefaultRoute excludes the NIC with the node's own traffic where others do as well.
func (a *adviser) leaveDefaultRoute() {
	route := a.o.Net.DefaultRoute
	if route == "" {
		return
	}
	for _, c := range a.usable() {
		if (slices.Contains(c.nic.Netdevs, route) || c.nic.Bond == route) && a.replaceable(c) {
			c.why = "its interface " + route + " has the default route (ssh, storage, bootstrap), and each GPU has another NIC as near"
		}
	}
}

// replaceable says whether every GPU has another port that is as near and as fast.
func (a *adviser) replaceable(c *advPort) bool {
	others := slices.DeleteFunc(a.usable(), func(x *advPort) bool { return x == c })
	if len(others) == 0 {
		return false
	}
	for k := range a.gpus {
		if !slices.ContainsFunc(others, func(x *advPort) bool { return x.dist[k].rank <= c.dist[k].rank && gbps(x) >= gbps(c) }) {
			return false
		}
	}
	return len(a.gpus) > 0
}

// keepText is why a port is used: the GPUs that it is nearest to.
func (a *adviser) keepText(c *advPort) string {
	words := map[string][]string{}
	for k, gpu := range a.gpus {
		if d := c.dist[k]; d.rank != unknownRank && d.rank == a.lowest(k) {
			words[d.path.SMI] = append(words[d.path.SMI], gpu.ID)
		}
	}
	var parts []string
	for _, w := range []string{SMIPIX, SMIPXB, SMIPHB, SMIHostOrNode, SMINODE, SMINodeOrSys, SMISYS} {
		if len(words[w]) > 0 {
			parts = append(parts, w+" to "+idList(words[w]))
		}
	}
	text := strings.Join(parts, ", ")
	if text == "" {
		text = "distance to GPUs unknown"
	}
	if c.port.Gbps != nil {
		text += fmt.Sprintf("; %g Gb/s", *c.port.Gbps)
	}
	if c.port.LinkLayer != "" {
		text += " " + c.port.LinkLayer
	}
	if c.port.State == "" {
		text += "; port state unknown"
	}
	return text
}

// idList shortens GPU0 GPU1 GPU2 to GPU0-2 where they follow each other.
func idList(ids []string) string {
	var nums []int
	for _, id := range ids {
		n, err := strconv.Atoi(strings.TrimPrefix(id, "GPU"))
		if err != nil {
			return strings.Join(ids, ", ")
		}
		nums = append(nums, n)
	}
	slices.Sort(nums)
	return "GPU" + formatCPUList(nums)
}

func (a *adviser) lowest(k int) int {
	lowest := unknownRank
	for _, c := range a.usable() {
		lowest = min(lowest, c.dist[k].rank)
	}
	return lowest
}

// pairGPUs gives each GPU the nearest NIC, then the fastest, then the one with the fewest GPUs, which spreads equal ones as NCCL does.
func (a *adviser) pairGPUs() {
	for k, gpu := range a.gpus {
		v := GPUAdvice{GPU: gpu.ID, BusID: gpu.BusID, Confidence: Sure}
		a.cpus(gpu, &v)
		cards := a.usable()
		if len(cards) == 0 {
			v.Reason, v.Confidence = a.noNIC()
			a.out.GPUs = append(a.out.GPUs, v)
			continue
		}
		slices.SortStableFunc(cards, func(x, y *advPort) int {
			return cmp.Or(cmp.Compare(x.dist[k].rank, y.dist[k].rank), cmp.Compare(gbps(y), gbps(x)), cmp.Compare(x.load, y.load), cmp.Compare(x.dist[k].hops, y.dist[k].hops))
		})
		best := cards[0]
		best.load++
		for _, c := range cards {
			if c.dist[k].rank == best.dist[k].rank && gbps(c) == gbps(best) && c != best {
				v.EqualNICs = append(v.EqualNICs, c.name())
			}
		}
		path := best.dist[k].path
		v.NIC, v.Port, v.SMI, v.NCCL, v.GBs = best.nic.Name, best.num, path.SMI, path.NCCL, path.GBs
		v.Reason, v.Confidence = a.pairText(best, k, v)
		v.Reason += a.ncclPrefers(best, gpu, cards)
		a.out.GPUs = append(a.out.GPUs, v)
	}
	for i := range a.out.GPUs { // whether a NIC is shared is known at the end
		for _, c := range a.usable() {
			if v := &a.out.GPUs[i]; c.nic.Name == v.NIC && c.load > 1 && show(c.num) == show(v.Port) {
				v.Reason += fmt.Sprintf("; shared by %d GPUs", c.load)
			}
		}
	}
}

// ncclPrefers says which NIC NCCL itself takes for a GPU where that is another one: bandwidth counts for it before distance.
func (a *adviser) ncclPrefers(best *advPort, gpu *GPU, use []*advPort) string {
	n := a.p.nccl.ends[gpu.ID]
	if n == nil {
		return ""
	}
	var ids, names []string
	for _, c := range use {
		ids = append(ids, c.end.id)
	}
	near := a.p.nccl.nearest(n, ids)
	if len(near) == 0 || slices.Contains(near, best.end.id) {
		return ""
	}
	for _, c := range use {
		if slices.Contains(near, c.end.id) {
			names = append(names, c.name())
		}
	}
	return "; NCCL by itself takes " + shorten(names) + ", since bandwidth counts for it before distance"
}

func (a *adviser) noNIC() (string, Confidence) {
	if len(a.g.NICs) == 0 {
		return "no NIC is seen here; a container may hide those that there are", Depends
	}
	return "no RDMA port can be used: NCCL will use sockets", Sure
}

func (c *advPort) name() string {
	if c.num == nil {
		return c.nic.Name
	}
	return c.nic.Name + ":" + strconv.Itoa(*c.num)
}

func (a *adviser) pairText(c *advPort, k int, v GPUAdvice) (string, Confidence) {
	d := c.dist[k]
	text := map[string]string{SMIPIX: "behind one PCIe switch", SMIPXB: "behind the same PCIe switches", SMIPHB: "at the same host bridge", SMINODE: "in the same NUMA node",
		SMIHostOrNode: "in the same NUMA node", SMISYS: "in another NUMA node", SMINodeOrSys: "NUMA node not known", SMIUnknown: "distance unknown"}[d.path.SMI]
	text = strings.TrimSpace(d.path.SMI + ": " + text)
	if c.port.Gbps != nil {
		text += fmt.Sprintf(", %g Gb/s", *c.port.Gbps)
	}
	if n := len(v.EqualNICs); n > 0 {
		text += fmt.Sprintf("; %d more just as near (%s), spread over the GPUs", n, shorten(v.EqualNICs))
	}
	switch {
	case d.rank == unknownRank || d.path.SMI == SMINodeOrSys:
		return text, Depends
	case d.path.SMI == SMISYS:
		return text + "; no nearer NIC is usable", Sure
	case len(v.EqualNICs) > 0 && d.rank > SMIDistance(SMIPXB):
		return text, Likely
	}
	return text, Sure
}

// cpus adds the cores near a GPU and how to bind to them.
func (a *adviser) cpus(gpu *GPU, v *GPUAdvice) {
	v.CPUs, v.NUMA = gpu.CPUs, gpu.NUMA
	if c := a.g.CPU(gpu.NUMA); v.CPUs == "" && c != nil {
		v.CPUs = c.CPUs
	}
	if v.NUMA != nil && *v.NUMA >= 0 && v.CPUs != "" {
		v.Command = fmt.Sprintf("numactl --physcpubind=%s --membind=%d", v.CPUs, *v.NUMA)
	}
}

// report copies what was found about the ports.
func (a *adviser) report() {
	for _, c := range a.ports {
		n := NICAdvice{NIC: first(c.nic.Name, c.nic.ID), Port: c.num, Use: c.why == "", Reason: first(c.why, c.keep)}
		if n.Use {
			rail := c.rail
			n.Rail = &rail
		}
		if c.port.LinkLayer == "Ethernet" && c.nic.RDMA != nil && *c.nic.RDMA {
			n.GIDText = c.gidT
			if c.gid != nil {
				i := c.gid.Index
				n.GIDIndex = &i
			}
		}
		a.out.NICs = append(a.out.NICs, n)
	}
}
