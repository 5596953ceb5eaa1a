package topo

import (
	"net/netip"
	"strconv"
	"strings"
)

// roce2 is how /sys names the version of a GID that is sent over UDP and IP.
const roce2 = "RoCE v2"

// family tells what kind of address a GID is; ok is false for what is none.
func (g GID) addr() (netip.Addr, bool) {
	a, err := netip.ParseAddr(g.Value)
	if err != nil {
		return netip.Addr{}, false
	}
	return a.Unmap(), true
}

// firstRoCE2 is the address that NCCL from 2.21 on takes without NCCL_IB_GID_INDEX: the first RoCE v2 of IPv4. Without one, the first of IPv6 that is not link-local, which
// NCCL takes with NCCL_IB_ADDR_FAMILY=AF_INET6 (connect.cc of NCCL 2.30).
func firstRoCE2(p *Port) (gid *GID, why string) {
	if p.LinkLayer != "Ethernet" {
		return nil, ""
	}
	unread, v6 := 0, (*GID)(nil)
	for i := range p.GIDs {
		x := &p.GIDs[i]
		addr, ok := x.addr()
		switch {
		case x.Type == "":
			unread++
		case x.Type != roce2 || !ok || addr.IsLinkLocalUnicast() && !addr.Is4():
		case addr.Is4():
			return x, "RoCE v2 of " + addr.String() + onNetdev(x)
		case v6 == nil:
			v6 = x
		}
	}
	switch {
	case v6 != nil:
		return v6, "RoCE v2 of IPv6 alone" + onNetdev(v6) + ": NCCL needs NCCL_IB_ADDR_FAMILY=AF_INET6 to take it"
	case len(p.GIDs) == 0:
		return nil, "its address table is empty or cannot be read"
	case unread > 0:
		return nil, strconv.Itoa(unread) + " addresses have no type that can be read: another network namespace, or an old kernel"
	}
	return nil, "no RoCE v2 address beside link-local ones: give the interface an IP address"
}

func onNetdev(g *GID) string {
	if g.Netdev == "" {
		return ""
	}
	return " on " + g.Netdev
}

// gidAt finds an entry of the table; nil: it is empty.
func gidAt(p *Port, index int) *GID {
	for i := range p.GIDs {
		if p.GIDs[i].Index == index {
			return &p.GIDs[i]
		}
	}
	return nil
}

// gidTrouble says what is wrong with an entry as the local end of RoCE v2; empty: nothing.
func gidTrouble(g *GID) string {
	switch addr, ok := g.addr(); {
	case g.Type != "" && !strings.EqualFold(g.Type, roce2):
		return "is " + g.Type + ", not RoCE v2"
	case ok && addr.IsLinkLocalUnicast() && !addr.Is4():
		return "is link-local (" + addr.String() + "): it works on one subnet at most"
	}
	return ""
}
