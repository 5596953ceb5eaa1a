package topo

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// contradictions compares the environment with the node.
func (a *adviser) contradictions() {
	a.checkHCA()
	a.checkGIDIndex()
	a.checkSocket()
	a.checkGDRLevel()
	a.checkP2PLevel()
	a.checkSwitches()
	a.checkAffinity()
}

func (a *adviser) against(variable, fix, format string, args ...any) {
	a.out.Contradictions = append(a.out.Contradictions, Contradiction{Variable: variable, Value: a.env[variable], Text: fmt.Sprintf(format, args...), Fix: fix})
}

// value is what a setting advises; empty: to leave it unset.
func (a *adviser) value(variable string) string {
	for _, s := range a.out.Settings {
		if s.Variable == variable && s.Value != nil && s.When == "" {
			return *s.Value
		}
	}
	return ""
}

func (a *adviser) fix(variable string) string {
	if v := a.value(variable); v != "" {
		return "export " + variable + "=" + v
	}
	return "unset " + variable
}

// matcher is NCCL's grammar of lists of names: ^ excludes, = is exact, else an entry is a prefix (parseStringList and matchIfList of src/misc/utils.cc).
type matcher struct {
	not, exact bool
	entries    []matchEntry
}

type matchEntry struct {
	name string
	port int // -1: any
}

func parseMatcher(s string) matcher {
	var m matcher
	s, m.not = strings.CutPrefix(s, "^")
	s, m.exact = strings.CutPrefix(s, "=")
	for part := range strings.SplitSeq(s, ",") {
		name, port, found := strings.Cut(strings.TrimSpace(part), ":")
		if name == "" {
			continue
		}
		e := matchEntry{name, -1}
		if n, err := strconv.Atoi(port); found && err == nil {
			e.port = n
		}
		m.entries = append(m.entries, e)
	}
	return m
}

func (m matcher) hits(e matchEntry, name string, port *int) bool {
	if e.port >= 0 && port != nil && e.port != *port {
		return false
	}
	return name == e.name || !m.exact && strings.HasPrefix(name, e.name)
}

// selects says whether NCCL would use a device of that name.
func (m matcher) selects(name string, port *int) bool {
	if len(m.entries) == 0 {
		return true
	}
	return m.not != slices.ContainsFunc(m.entries, func(e matchEntry) bool { return m.hits(e, name, port) })
}

func (a *adviser) checkHCA() {
	const name = "NCCL_IB_HCA"
	text, ok := a.env[name]
	if !ok || text == "" || len(a.ports) == 0 {
		return
	}
	m := parseMatcher(text)
	for _, e := range m.entries {
		a.checkEntry(m, e)
	}
	var wrong, missing []string
	selected := 0
	for _, c := range a.ports {
		if c.nic.RDMA != nil && !*c.nic.RDMA || c.nic.Name == "" {
			continue
		}
		in := m.selects(c.nic.Name, c.num)
		active := c.port.State == "" || c.port.State == "ACTIVE"
		switch {
		case in && active && c.why != "" && !a.caught(m, c):
			wrong = append(wrong, c.name()+" ("+c.why+")")
		case !in && c.why == "":
			missing = append(missing, c.name())
		}
		if in && active {
			selected++
		}
	}
	if len(wrong) > 0 {
		a.against(name, a.fix(name), "it also takes in %s", strings.Join(wrong, ", "))
	}
	if selected == 0 {
		a.against(name, a.fix(name), "no active port of this node fits it: NCCL will say \"NET/IB : No device found\" and use sockets")
	} else if len(missing) > 0 {
		a.against(name, a.fix(name), "it leaves out %s, which %s near GPUs", strings.Join(missing, " "), map[bool]string{true: "is", false: "are"}[len(missing) == 1])
	}
}

// caught says whether checkEntry has already spoken about a port: an entry that is the whole name of another device is also the beginning of this one's.
func (a *adviser) caught(m matcher, c *advPort) bool {
	return !m.not && !m.exact && slices.ContainsFunc(m.entries, func(e matchEntry) bool {
		return e.name != c.nic.Name && strings.HasPrefix(c.nic.Name, e.name) && slices.ContainsFunc(a.ports, func(x *advPort) bool { return x.nic.Name == e.name })
	})
}

// checkEntry looks at one name of NCCL_IB_HCA.
func (a *adviser) checkEntry(m matcher, e matchEntry) {
	const name = "NCCL_IB_HCA"
	var exact, more []string
	var states []string
	active := false
	for _, c := range a.ports {
		if c.nic.RDMA != nil && !*c.nic.RDMA || !m.hits(e, c.nic.Name, c.num) {
			continue
		}
		if c.nic.Name == e.name {
			exact = append(exact, c.name())
		} else {
			more = append(more, c.name())
		}
		active = active || c.port.State == "" || c.port.State == "ACTIVE"
		states = append(states, c.name()+" "+c.port.State)
	}
	switch {
	case len(exact)+len(more) == 0:
		var all []string
		for _, c := range a.ports {
			if c.nic.RDMA == nil || *c.nic.RDMA {
				all = append(all, c.name())
			}
		}
		a.against(name, a.fix(name), "%s does not exist on this node: there are %s", e.name+portText(e), strings.Join(all, " "))
	case !active && !m.not:
		a.against(name, a.fix(name), "%s is not active (%s): NCCL skips it", e.name+portText(e), strings.Join(states, ", "))
	case len(exact) > 0 && len(more) > 0:
		a.against(name, a.fix(name), "%s is a prefix and also matches %s: write = before the list for exact names", e.name, strings.Join(more, " "))
	}
}

func portText(e matchEntry) string {
	if e.port < 0 {
		return ""
	}
	return ":" + strconv.Itoa(e.port)
}

func (a *adviser) checkGIDIndex() {
	const name = "NCCL_IB_GID_INDEX"
	text, ok := a.env[name]
	if !ok || text == "" {
		return
	}
	index, err := strconv.Atoi(text)
	if err != nil {
		a.against(name, "unset "+name, "%q is no number", text)
		return
	}
	if index < 0 {
		return
	}
	for _, c := range a.usable() {
		if c.port.LinkLayer != "Ethernet" || len(c.port.GIDs) == 0 {
			continue
		}
		better := "unset " + name + " (NCCL from 2.21 on finds it)"
		if c.gid != nil {
			better += fmt.Sprintf(", or %d for older versions", c.gid.Index)
		}
		g := gidAt(c.port, index)
		if g == nil {
			a.against(name, better, "%s has no address at index %d: queue pairs cannot be connected (errno 22 or 61)", c.name(), index)
			continue
		}
		if trouble := gidTrouble(g); trouble != "" {
			a.against(name, better, "index %d of %s %s", index, c.name(), trouble)
		}
	}
}

func (a *adviser) checkSocket() {
	const name = "NCCL_SOCKET_IFNAME"
	text, ok := a.env[name]
	if !ok || text == "" {
		return
	}
	m := parseMatcher(text)
	if !m.not {
		for _, e := range m.entries {
			a.checkInterface(m, e)
		}
		return
	}
	left := slices.ContainsFunc(a.o.Net.Netdevs, func(d Netdev) bool { return d.State != "down" && d.Name != "lo" && m.selects(d.Name, nil) })
	if a.o.Net.Netdevs != nil && !left {
		a.against(name, a.fix(name), "it excludes every interface of this node that is up")
	}
}

func (a *adviser) checkInterface(m matcher, e matchEntry) {
	const name = "NCCL_SOCKET_IFNAME"
	if isInner(e.name) {
		a.against(name, a.fix(name), "%s leads to no other node: ranks of several nodes hang in initialisation or fail with \"Connection refused\"", e.name)
		return
	}
	if a.o.Net.Netdevs == nil {
		return
	}
	var up, down, caught []string
	for _, d := range a.o.Net.Netdevs {
		if !m.hits(e, d.Name, nil) {
			continue
		}
		if d.Name != e.name {
			caught = append(caught, d.Name)
		}
		if d.State == "down" {
			down = append(down, d.Name)
		} else {
			up = append(up, d.Name)
		}
	}
	exact := slices.ContainsFunc(a.o.Net.Netdevs, func(d Netdev) bool { return d.Name == e.name })
	switch {
	case len(up)+len(down) == 0:
		var all []string
		for _, d := range a.o.Net.Netdevs {
			all = append(all, d.Name)
		}
		a.against(name, a.fix(name), "no interface of this node fits %s: there are %s", e.name, strings.Join(all, " "))
	case len(up) == 0:
		a.against(name, a.fix(name), "%s is down", strings.Join(down, " "))
	case exact && len(caught) > 0:
		a.against(name, "export "+name+"==… with the exact name", "%s is a prefix and also matches %s: write = before the list for exact names", e.name, strings.Join(caught, " "))
	}
}

// level reads a distance of NCCL: a word, or a number from 0 to 5 of older forms (ncclGetLevel of src/graph/paths.cc). -1: neither.
func level(s string) int {
	if n, err := strconv.Atoi(s); err == nil {
		if n < 0 {
			return -1
		}
		return NCCLDistance([]string{"LOC", "PIX", "PXB", "PHB", "SYS", "SYS"}[min(n, 5)])
	}
	return NCCLDistance(strings.ToUpper(s))
}

// levelOf reads a variable that holds a distance. Not ok: it is not set, or holds none, which is said.
func (a *adviser) levelOf(name string) (at int, ok bool) {
	text := a.env[name]
	if text == "" {
		return 0, false
	}
	if at = level(text); at < 0 {
		a.against(name, "unset "+name, "%q is no level of NCCL (%s)", text, strings.Join(NCCLTypes[:10], " "))
		return 0, false
	}
	return at, true
}

func (a *adviser) checkGDRLevel() {
	const name = "NCCL_NET_GDR_LEVEL"
	at, ok := a.levelOf(name)
	if !ok {
		return
	}
	var off, across []string
	for i := range a.out.GPUs {
		v := &a.out.GPUs[i]
		d := NCCLDistance(v.NCCL)
		switch {
		case d < 0 || v.NIC == "":
		case d > at && d <= NCCLDistance(gdrDefault):
			off = append(off, v.GPU+" ("+v.NCCL+")")
		case v.NCCL == "SYS" && at >= d:
			across = append(across, v.GPU)
		}
	}
	if len(off) > 0 {
		a.against(name, a.fix(name), "it switches GPUDirect RDMA off for %s, whose NIC is near enough by default", strings.Join(off, ", "))
	}
	if len(across) > 0 {
		a.against(name, a.fix(name), "it sends GPUDirect RDMA across the CPUs' link for %s: mostly slower than staging through host memory", idList(across))
	}
}

func (a *adviser) checkP2PLevel() {
	const name = "NCCL_P2P_LEVEL"
	at, ok := a.levelOf(name)
	if !ok {
		return
	}
	if at < NCCLDistance("NVL") && a.hasNVLink() {
		a.against(name, a.fix(name), "it forbids NVLink, which these GPUs have")
	}
}

func (a *adviser) hasNVLink() bool {
	return len(a.gpus) > 1 && slices.ContainsFunc(a.gpus, func(p *GPU) bool { return len(p.NVLinks) > 0 })
}

// checkSwitches looks at variables that switch a part of NCCL off.
func (a *adviser) checkSwitches() {
	on := func(name string) bool { v := a.env[name]; return v != "" && v != "0" }
	usable := len(a.usable()) > 0
	if on("NCCL_IB_DISABLE") && usable {
		a.against("NCCL_IB_DISABLE", "unset NCCL_IB_DISABLE", "it switches RDMA off, and this node has ports that can be used: everything goes by sockets")
	}
	if v := a.env["NCCL_NET"]; strings.EqualFold(v, "socket") && usable {
		a.against("NCCL_NET", "unset NCCL_NET", "it chooses sockets, and this node has RDMA ports that can be used")
	}
	if on("NCCL_P2P_DISABLE") && a.hasNVLink() {
		a.against("NCCL_P2P_DISABLE", "unset NCCL_P2P_DISABLE", "it forbids copies between GPUs, NVLink among them: all traffic goes through host memory")
	}
	if v, ok := a.env["NCCL_CROSS_NIC"]; ok && v != "" && !slices.Contains([]string{"0", "1", "2"}, v) {
		a.against("NCCL_CROSS_NIC", "unset NCCL_CROSS_NIC", "%q is none of 0, 1, 2", v)
	}
	if v := a.env["NCCL_IB_ADDR_FAMILY"]; v != "" {
		want := map[bool]string{true: "AF_INET", false: "AF_INET6"}
		for _, c := range a.usable() {
			if c.gid == nil {
				continue
			}
			if addr, ok := c.gid.addr(); ok && v != want[addr.Is4()] {
				a.against("NCCL_IB_ADDR_FAMILY", "export NCCL_IB_ADDR_FAMILY="+want[addr.Is4()], "the first RoCE v2 address of %s is %s", c.name(), addr)
			}
		}
	}
}

// checkAffinity finds GPUs with no core near them among those that the process may use.
func (a *adviser) checkAffinity() {
	allowed, err := parseCPUList(a.o.Net.Allowed)
	if err != nil || len(allowed) == 0 {
		return
	}
	var cut []string
	for i := range a.out.GPUs {
		v := &a.out.GPUs[i]
		near, err := parseCPUList(v.CPUs)
		if err != nil || len(near) == 0 {
			continue
		}
		if !slices.ContainsFunc(near, func(c int) bool { _, ok := slices.BinarySearch(allowed, c); return ok }) {
			cut = append(cut, v.GPU)
		}
	}
	if len(cut) == 0 {
		return
	}
	a.out.Contradictions = append(a.out.Contradictions, Contradiction{Variable: "CPU affinity", Value: a.o.Net.Allowed,
		Text: fmt.Sprintf("no core near %s is among those that this process may use: ranks for them run in another NUMA node", idList(cut)),
		Fix:  "bind each rank to the cores listed with its GPU, or ask the scheduler (Slurm: --cpu-bind, --gpus-per-task) for them"})
}
