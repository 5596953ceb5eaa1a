package rdma

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Types of GID as the kernel writes them.
const (
	typeRoCE1 = "IB/RoCE v1"
	typeRoCE2 = "RoCE v2"
)

// Pair is a GID of the client with one of the server, and why it was placed where it is.
type Pair struct {
	Client GID    `json:"client"`
	Server GID    `json:"server"`
	Why    string `json:"why"`
	Global bool   `json:"global"` // packets carry a GRH: always on Ethernet, on InfiniBand where a side asks for it
	score  int
}

// String names both indexes and addresses.
func (p Pair) String() string {
	return fmt.Sprintf("GID %d (%s) to %d (%s)", p.Client.Index, p.Client.Addr, p.Server.Index, p.Server.Addr)
}

// Rejected is a GID that takes part in no pair, and why.
type Rejected struct {
	Side string `json:"side"` // "client" or "server"
	GID  GID    `json:"gid"`
	Why  string `json:"why"`
}

// anyGID asks for no GID in particular.
const anyGID = -1

// pairGIDs lists the pairs that could work on Ethernet, the most promising first: equal type and address family, then not link-local, RoCE v2 before
// v1, IPv4 before IPv6, both in one subnet. An index other than anyGID leaves that side's entry alone. What is in no pair is told with a reason.
func pairGIDs(client, server []GID, clientIndex, serverIndex int) (pairs []Pair, rejected []Rejected, err error) {
	if client, err = only("client", client, clientIndex); err != nil {
		return nil, nil, err
	}
	if server, err = only("server", server, serverIndex); err != nil {
		return nil, nil, err
	}
	for _, c := range client {
		for _, s := range server {
			if p, ok := pair(c, s); ok {
				pairs = append(pairs, p)
			}
		}
	}
	slices.SortStableFunc(pairs, func(a, b Pair) int {
		return cmp.Or(b.score-a.score, (a.Client.Index+a.Server.Index)-(b.Client.Index+b.Server.Index))
	})
	rejected = append(unpaired("client", client, server), unpaired("server", server, client)...)
	if len(pairs) == 0 {
		return nil, rejected, noPair(client, server, clientIndex, serverIndex)
	}
	return pairs, rejected, nil
}

// only keeps the entry that was asked for.
func only(side string, gids []GID, index int) ([]GID, error) {
	if len(gids) == 0 {
		return nil, problem(Unusable, nil, "the GID table of the %s is empty: its network device has no address, or this container may not see it; "+
			"give the network device of the port an IP address and bring it up (rdma link shows which one), or start the container in the host's network", side)
	}
	if index == anyGID {
		return gids, nil
	}
	for _, g := range gids {
		if g.Index == index {
			return []GID{g}, nil
		}
	}
	return nil, problem(Usage, nil, "GID index %d of the %s is empty or not there; it has %s: choose one of them, or leave -x out", index, side, listGIDs(gids))
}

func listGIDs(gids []GID) string {
	const most = 16
	var parts []string
	for i, g := range gids {
		if i == most {
			parts = append(parts, fmt.Sprintf("and %d more", len(gids)-most))
			break
		}
		parts = append(parts, fmt.Sprintf("%d: %s (%s)", g.Index, g.Addr, cmp.Or(g.Type, "type unknown")))
	}
	return strings.Join(parts, ", ")
}

// pair judges one GID of each side. An unknown type fits any: containers often may not read it, and the hand-over of packets then decides.
func pair(c, s GID) (Pair, bool) {
	p := Pair{Client: c, Server: s, Global: true}
	ca, err1 := netip.ParseAddr(c.Addr)
	sa, err2 := netip.ParseAddr(s.Addr)
	switch {
	case err1 != nil || err2 != nil:
		return p, false
	case c.Type != s.Type && c.Type != "" && s.Type != "":
		return p, false
	case ca.Is4() != sa.Is4() || linkLocal(ca) != linkLocal(sa):
		return p, false
	}
	why := []string{cmp.Or(c.Type, s.Type, "type unknown")}
	if cmp.Or(c.Type, s.Type) == typeRoCE2 {
		p.score += 8
	}
	if ca.Is4() {
		p.score += 4
		why = append(why, "IPv4")
	} else {
		why = append(why, "IPv6")
	}
	if linkLocal(ca) {
		why = append(why, "link-local, works on one network segment only")
	} else {
		p.score += 16
		if subnet, ok := sameSubnet(c, s, ca, sa); ok {
			p.score += 2
			why = append(why, "same subnet "+subnet)
		} else {
			why = append(why, "different subnets, needs routing")
		}
	}
	p.Why = strings.Join(why, ", ")
	return p, true
}

// linkLocal covers fe80::/10 and 169.254/16.
func linkLocal(a netip.Addr) bool { return a.IsLinkLocalUnicast() }

// sameSubnet goes by the address's own prefix where the network device was seen, else by the usual width.
func sameSubnet(c, s GID, ca, sa netip.Addr) (string, bool) {
	bits := 64
	if ca.Is4() {
		bits = 24
	}
	if p, err := netip.ParsePrefix(c.Subnet); err == nil {
		bits = p.Bits()
	}
	if p, err := netip.ParsePrefix(s.Subnet); err == nil {
		if _, err := netip.ParsePrefix(c.Subnet); err != nil || p.Bits() > bits {
			bits = p.Bits()
		}
	}
	p, err := ca.Prefix(bits)
	return p.String(), err == nil && p.Contains(sa)
}

// unpaired says for each GID that fits none of the other side's why that is.
func unpaired(side string, mine, theirs []GID) (out []Rejected) {
	for _, g := range mine {
		fits := slices.ContainsFunc(theirs, func(o GID) bool { _, ok := pair(g, o); return ok })
		if fits {
			continue
		}
		a, err := netip.ParseAddr(g.Addr)
		why := "the other side has no " + cmp.Or(g.Type, "entry") + " of the same address family"
		switch {
		case err != nil:
			why = "not an address"
		case linkLocal(a):
			why = "link-local, and the other side has no link-local entry of the same type"
		case !slices.ContainsFunc(theirs, func(o GID) bool { return o.Type == g.Type || o.Type == "" || g.Type == "" }):
			why = "the other side has no entry of type " + g.Type
		}
		out = append(out, Rejected{side, g, why})
	}
	return out
}

// noPair tells what stands against every pair.
func noPair(client, server []GID, clientIndex, serverIndex int) error {
	types := func(gids []GID) string {
		var out []string
		for _, g := range gids {
			if t := cmp.Or(g.Type, "type unknown"); !slices.Contains(out, t) {
				out = append(out, t)
			}
		}
		return strings.Join(out, ", ")
	}
	next := "give both ports an IPv4 address in one network"
	if clientIndex != anyGID || serverIndex != anyGID {
		next = "leave -x out, or choose entries of equal type and address family"
	}
	return problem(Unusable, nil, "no GID of the client fits one of the server: the client has %s (types: %s), the server %s (types: %s); both need the same type and address family: %s",
		listGIDs(client), types(client), listGIDs(server), types(server), next)
}
