package pairs

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/commprobe/commprobe/rdma"
)

// Plan says what to measure between which hosts.
type Plan struct {
	Hosts      []Host
	Program    string       // version; the agents must be the same
	Options    rdma.Options // one test, one size
	Devices    []string     // NICs to take, as DEVICE or DEVICE/PORT; none: all that are active
	Rails      bool         // pair only NICs of the same rail
	Below      float64      // fraction below which a pair is slow; 0: BelowBandwidth or BelowLatency
	OneAtATime bool         // one host pair at a time
	TCPPort    int          // of each host's server; 0: any that is free
	NoSecond   bool         // do not measure again what looked slow
}

func (p *Plan) latency() bool { return strings.HasSuffix(p.Options.Tests[0], " latency") }

// pull says that the side that asks gets the data.
func (p *Plan) pull() bool { return strings.HasPrefix(p.Options.Tests[0], "read") }

func (p *Plan) below() float64 {
	switch {
	case p.Below > 0:
		return p.Below
	case p.latency():
		return BelowLatency
	}
	return BelowBandwidth
}

// check refuses what cannot be a matrix.
func (p *Plan) check() error {
	if err := p.Options.Validate(); err != nil {
		return err
	}
	switch {
	case len(p.Options.Tests) != 1 || len(p.Options.Sizes) != 1:
		return &Failure{rdma.Usage, fmt.Sprintf("%d tests and %d sizes: a matrix shows one test at one size", len(p.Options.Tests), len(p.Options.Sizes))}
	case !(p.Below >= 0 && p.Below <= 1):
		return &Failure{rdma.Usage, fmt.Sprintf("--below %g: a fraction, 0 to 1", p.Below)}
	case len(p.Hosts) < 2:
		return &Failure{rdma.Usage, "a pair takes two hosts"}
	}
	return nil
}

// nic is a port that takes part.
type nic struct {
	NIC
	host int // index
	side rdma.Side
	ok   bool // something was measured with it
	mute int  // partners with which others can talk and it could not, while it has none
}

// portsOf lists the ports of a host, and why some take no part.
func portsOf(l *rdma.List, devices []string) (ports []Port, sides []rdma.Side) {
	for _, d := range l.Devices {
		if d.Error != "" && len(d.Ports) == 0 {
			ports = append(ports, Port{Device: d.Name, NUMANode: d.NUMANode, PCI: d.PCI, Why: d.Error})
			sides = append(sides, rdma.Side{})
		}
		for _, s := range d.Ports {
			p := Port{Device: d.Name, Port: s.Port, LinkLayer: s.LinkLayer, State: s.State, RateGbps: s.RateGbps, MTU: s.MTU, PCI: d.PCI, NUMANode: d.NUMANode, Used: true}
			named := slices.ContainsFunc(devices, func(n string) bool {
				return n == d.Name || n == fmt.Sprintf("%s/%d", d.Name, s.Port)
			})
			switch {
			case len(devices) > 0 && !named:
				p.Used, p.Why = false, "not named by --devices"
			case !s.Active:
				p.Used, p.Why = false, "port is "+cmp.Or(s.State, "in an unknown state")
			}
			ports, sides = append(ports, p), append(sides, s)
		}
	}
	return ports, sides
}

// assignRails calls NICs of the same name a rail, where each host has the same names; else those at the same place in the hosts' lists.
func assignRails(nics []nic) (by string) {
	names, count := map[string]map[int]bool{}, map[int]int{}
	hosts := map[int]bool{}
	for _, n := range nics {
		name := portName(n.Device, n.Port)
		if names[name] == nil {
			names[name] = map[int]bool{}
		}
		names[name][n.host], hosts[n.host] = true, true
	}
	by = "device name"
	for _, at := range names {
		if len(at) != len(hosts) {
			by = "position"
		}
	}
	for i := range nics {
		n := &nics[i]
		n.Rail = portName(n.Device, n.Port)
		if by == "position" {
			n.Rail = fmt.Sprintf("#%d", count[n.host])
		}
		count[n.host]++
	}
	return by
}

// work is all measurements between two hosts, one after the other.
type work struct {
	hosts [2]int
	jobs  []job
}

// job is one measurement: of one direction, or with -b of both at the same time.
type job struct {
	client, server int    // NICs
	pairs          [2]int // that what client and server posted fills; −1: none
}

// lay lists the pairs of all NICs of different hosts, and the work that fills them, in the order of a tournament.
func (p *Plan) lay(hosts int, nics []nic) (pairs []Pair, todo []work, err error) {
	byHost := make([][]int, hosts)
	for i, n := range nics {
		byHost[n.host] = append(byHost[n.host], i)
	}
	total := 0
	for a := range byHost {
		total += len(byHost[a]) * (len(nics) - len(byHost[a]))
	}
	if total > maxPairs && !p.Rails {
		return nil, nil, &Failure{rdma.Usage, fmt.Sprintf("%d pairs of NICs: at most %d; --rails pairs only NICs of the same rail, --devices takes fewer", total, maxPairs)}
	}
	for _, round := range rounds(hosts) {
		for _, h := range round {
			w := work{hosts: h}
			for _, ends := range p.couples(nics, byHost[h[0]], byHost[h[1]]) {
				jobs, made := p.layPair(nics, ends[0], ends[1], len(pairs))
				pairs, w.jobs = append(pairs, made...), append(w.jobs, jobs...)
			}
			if len(w.jobs) > 0 {
				todo = append(todo, w)
			}
		}
	}
	return pairs, todo, nil
}

// couples lists the NICs of two hosts with each other. Those of the same rail come first: they can talk if any can, and what they find out saves vain attempts.
func (p *Plan) couples(nics []nic, as, bs []int) (same [][2]int) {
	var other [][2]int
	for _, a := range as {
		for _, b := range bs {
			if nics[a].Rail == nics[b].Rail {
				same = append(same, [2]int{a, b})
			} else {
				other = append(other, [2]int{a, b})
			}
		}
	}
	if p.Rails {
		return same
	}
	return append(same, other...)
}

// layPair makes both directions between two NICs, and the jobs for them, unless it is known that there is no path.
func (p *Plan) layPair(nics []nic, a, b, at int) (jobs []job, made []Pair) {
	for _, d := range [][2]int{{a, b}, {b, a}} {
		f, t := &nics[d[0]], &nics[d[1]]
		pair := Pair{From: f.NIC, To: t.NIC, LinkLayer: f.side.LinkLayer, Status: NotMeasured}
		if rate := min(f.side.RateGbps, t.side.RateGbps); rate > 0 {
			pair.PortGbps = &rate
		}
		made = append(made, pair)
	}
	if err := rdma.CanMeet(&nics[a].side, &nics[b].side, p.Options); err != nil {
		status := NoPath
		if rdma.KindOf(err) == rdma.Usage { // these options do not fit these devices
			status = Failed
		}
		for i := range made {
			made[i].Status, made[i].Reason = status, err.Error()
		}
		return nil, made
	}
	forth, back := at, at+1
	if p.pull() {
		forth, back = back, forth
	}
	if p.Options.Bidirectional {
		return []job{{a, b, [2]int{forth, back}}}, made
	}
	return []job{{a, b, [2]int{forth, -1}}, {b, a, [2]int{back, -1}}}, made
}

// expect is about how long one measurement takes.
func (p *Plan) expect(rateGbps float64) time.Duration {
	const overhead, unknown = 600 * time.Millisecond, 10 // opening devices, exchange, checks; Gb/s
	o := &p.Options
	if o.Duration > 0 {
		return overhead + o.Duration
	}
	if p.latency() {
		return overhead + time.Duration(o.Iterations)*10*time.Microsecond
	}
	if rateGbps <= 0 {
		rateGbps = unknown
	}
	bits := float64(o.Iterations) * float64(o.QPs) * float64(o.Sizes[0]) * 8
	return overhead + time.Duration(bits/rateGbps)
}

// limit is when a measurement that still moves is given up: one slower than 8 Mb/s.
func (p *Plan) limit() time.Duration {
	o := &p.Options
	const slowest = 1e6 // bytes a second
	bytes := float64(o.Iterations) * float64(o.QPs) * float64(o.Sizes[0])
	if o.Duration > 0 {
		bytes = 0
	}
	return 30*time.Second + 6*o.Deadline + 3*o.Duration + min(time.Duration(bytes/slowest*float64(time.Second)), 24*time.Hour)
}

// shared says whether two ports have addresses in one subnet, link-local ones aside; false for known where a subnet could not be read.
func shared(a, b *rdma.Side) (yes, known bool, text string) {
	subnets := func(s *rdma.Side) (out []netip.Prefix) {
		for _, g := range s.GIDs {
			if p, err := netip.ParsePrefix(g.Subnet); err == nil && !p.Addr().IsLinkLocalUnicast() && !slices.Contains(out, p.Masked()) {
				out = append(out, p.Masked())
			}
		}
		return out
	}
	x, y := subnets(a), subnets(b)
	for _, p := range x {
		for _, q := range y {
			if p.Overlaps(q) {
				return true, true, p.String()
			}
		}
	}
	join := func(list []netip.Prefix) string {
		var out []string
		for _, p := range list {
			out = append(out, p.String())
		}
		return strings.Join(out, ", ")
	}
	return false, len(x) > 0 && len(y) > 0, join(x) + " and " + join(y)
}
