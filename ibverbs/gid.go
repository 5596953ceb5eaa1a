package ibverbs

// #include "binding.h"
import "C"

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"unsafe"

	"github.com/commprobe/commprobe/csrc"
)

// GIDType is what packets sent from a GID look like.
type GIDType int

// The GID types.
const (
	GIDUnknown GIDType = iota
	GIDInfiniBand
	GIDRoCEv1
	GIDRoCEv2
)

// String is the kernel's word, which is one for InfiniBand and RoCE v1.
func (t GIDType) String() string {
	return pick([]string{"unknown", "IB/RoCE v1", "IB/RoCE v1", "RoCE v2"}, int(t))
}

// GID is an entry of a port's table of addresses.
type GID struct {
	Index  int
	Raw    [16]byte
	Type   GIDType
	NetDev string // "eth0"; "" unknown, always so on InfiniBand
}

// Addr is the GID as an IP address: IPv6, or IPv4 where it is a mapped one.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g.Raw).Unmap() }

// LinkLocal tells whether the address is valid on one link only: fe80::/10 or 169.254.0.0/16.
func (g GID) LinkLocal() bool { return g.Addr().IsLinkLocalUnicast() }

// GIDs lists the entries of the port's table that are not empty, by ascending index. Where the library lacks the query that tells types and network
// interfaces, they come from sysfs.
//
// Implements: int ibv_query_gid_ex(struct ibv_context *context, uint32_t port_num, uint32_t gid_index, struct ibv_gid_entry *entry, uint32_t flags)
func (c *Context) GIDs(port int) ([]GID, error) {
	a, err := c.Port(port)
	if err != nil {
		return nil, err
	}
	p, err := c.use()
	if err != nil {
		return nil, err
	}
	var out []GID
	for i := range a.GIDs {
		g, err := c.gid(p, port, i, a.LinkLayer)
		if err != nil {
			return nil, err
		}
		if g.Raw != [16]byte{} {
			out = append(out, g)
		}
	}
	return out, nil
}

// gid is one entry; empty ones are zero.
func (c *Context) gid(p unsafe.Pointer, port, index int, link LinkLayer) (GID, error) {
	var e C.iv_gid
	err := check("_ibv_query_gid_ex", C.iv_query_gid(p, C.int(port), C.int(index), &e), "%s, port %d, index %d", c.name, port, index)
	if errors.Is(err, syscall.ENODATA) {
		return GID{Index: index}, nil
	}
	var lacking *csrc.MissingSymbolError
	if errors.As(err, &lacking) || errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
		return c.gidPlain(p, port, index, link)
	}
	if err != nil {
		return GID{}, err
	}
	g := GID{Index: index, Type: gidTypeOf(e._type, link), NetDev: interfaceName(e.ifindex)}
	copyRaw(&g, &e)
	return g, nil
}

// gidPlain is for older libraries.
func (c *Context) gidPlain(p unsafe.Pointer, port, index int, link LinkLayer) (GID, error) {
	var e C.iv_gid
	err := check("ibv_query_gid", C.iv_query_gid_plain(p, C.int(port), C.int(index), &e), "%s, port %d, index %d", c.name, port, index)
	if err != nil {
		return GID{}, err
	}
	g := GID{Index: index}
	copyRaw(&g, &e)
	g.Type = sysGIDType(c.portFile(port, fmt.Sprint("gid_attrs/types/", index)), link)
	if b, err := os.ReadFile(c.portFile(port, fmt.Sprint("gid_attrs/ndevs/", index))); err == nil {
		g.NetDev = strings.TrimSpace(string(b))
	}
	return g, nil
}

func copyRaw(g *GID, e *C.iv_gid) {
	for i, b := range e.raw {
		g.Raw[i] = byte(b)
	}
}

func gidTypeOf(code C.int, link LinkLayer) GIDType {
	switch {
	case code == 2:
		return GIDRoCEv2
	case code != 0 && code != 1:
		return GIDUnknown
	case link == LinkEthernet:
		return GIDRoCEv1
	case link == LinkInfiniBand:
		return GIDInfiniBand
	case code == 1:
		return GIDRoCEv1
	}
	return GIDInfiniBand
}

// sysGIDType reads the kernel's word. Reading it fails for InfiniBand, for an empty slot, and for one of another network namespace.
func sysGIDType(path string, link LinkLayer) GIDType {
	b, err := os.ReadFile(path)
	word := strings.TrimSpace(string(b))
	switch {
	case link == LinkInfiniBand:
		return GIDInfiniBand
	case err != nil:
		return GIDUnknown
	case word == GIDRoCEv2.String():
		return GIDRoCEv2
	case word == GIDRoCEv1.String():
		return GIDRoCEv1
	}
	return GIDUnknown
}

func interfaceName(index C.uint32_t) string {
	if index == 0 {
		return ""
	}
	i, err := net.InterfaceByIndex(int(index))
	if err != nil { // of another network namespace
		return ""
	}
	return i.Name
}
