package topo

import (
	"fmt"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// HostNet is what advice on interfaces and cores needs of a node beside its topology. The zero value: nothing is known.
type HostNet struct {
	DefaultRoute string   `json:"default_route,omitempty"` // interface; empty: unknown or none
	Netdevs      []Netdev `json:"netdevs,omitempty"`       // nil: unknown
	Allowed      string   `json:"cpus_allowed,omitempty"`  // cores that the process may use: "0-15"; empty: unknown
}

// Netdev is one network interface.
type Netdev struct {
	Name    string   `json:"name"`
	State   string   `json:"state,omitempty"` // the kernel's operstate: up, down, unknown; empty: cannot be read
	Virtual bool     `json:"virtual"`         // no device behind it: bridges, tunnels, containers' pairs; bonds and VLANs too
	Bond    bool     `json:"bond"`
	Gbps    *float64 `json:"gbps,omitempty"`
}

// ReadHostNet reads the interfaces, the default route and the cores that this process may use from the files below root. What is not there stays unknown.
// The error is for a root that is no folder.
func ReadHostNet(root string) (HostNet, error) {
	r, err := os.OpenRoot(root)
	if err != nil {
		return HostNet{}, fmt.Errorf("network of %s: %w", root, err)
	}
	defer r.Close()
	s := &sysReader{fs: r.FS(), names: map[string][]string{}}
	var h HostNet
	names := slices.Clone(s.list(netDir))
	slices.SortFunc(names, natural)
	for _, name := range names {
		dir := path.Join(netDir, name)
		if !s.exists(dir + "/operstate") { // bonding_masters and the like
			continue
		}
		n := Netdev{Name: name, State: s.read(dir + "/operstate"), Virtual: !s.exists(dir+"/device") && s.busOf(dir) == "", Bond: s.exists(dir + "/bonding")}
		if mbps := s.number(dir + "/speed"); mbps != nil && *mbps > 0 {
			v := float64(*mbps) / 1000
			n.Gbps = &v
		}
		h.Netdevs = append(h.Netdevs, n)
	}
	h.DefaultRoute = defaultRoute(s.readLong("proc/net/route"))
	h.Allowed = lineAfter(s.readLong("proc/self/status"), "Cpus_allowed_list")
	return h, nil
}

// defaultRoute finds the interface of the default route with the lowest metric in /proc/net/route.
func defaultRoute(text string) string {
	best, metric := "", math.MaxInt
	for line := range strings.Lines(text) {
		f := strings.Fields(line) // Iface Destination Gateway Flags RefCnt Use Metric Mask …
		if len(f) < 8 || f[1] != "00000000" || f[7] != "00000000" {
			continue
		}
		if m, err := strconv.Atoi(f[6]); err == nil && m < metric {
			best, metric = f[0], m
		}
	}
	return best
}

// inner are the prefixes of interfaces that lead nowhere outside this node.
var inner = []string{"lo", "docker", "veth", "virbr", "br-", "cni", "flannel", "cali", "lxc", "tunl", "cilium", "kube", "dummy", "tap", "vnet"}

// isInner says whether an interface by its name leads to no other node. "lo" is a name, the others begin one.
func isInner(name string) bool {
	return slices.ContainsFunc(inner, func(p string) bool { return name == p || p != "lo" && strings.HasPrefix(name, p) })
}

// socketInterface chooses the interface for NCCL's bootstrap and sockets.
func (a *adviser) socketInterface() (name, why string, c Confidence) {
	net := a.o.Net
	if r := net.DefaultRoute; r != "" && !isInner(r) {
		return r, "it has the default route, so other nodes are reached by it", Sure
	}
	for _, plain := range []bool{true, false} { // Ethernet without RDMA first: that is the management network
		for i := range a.g.NICs {
			n := &a.g.NICs[i]
			if (n.RDMA != nil && !*n.RDMA) != plain || len(n.Netdevs) == 0 || n.down() || !ethernet(n) {
				continue
			}
			name := first(n.Bond, n.Netdevs[0])
			return name, "the default route is not known; this is the first Ethernet interface that is up. Other nodes must be reachable by it", Likely
		}
	}
	var up []string
	for _, d := range net.Netdevs {
		if !isInner(d.Name) && d.State != "down" {
			up = append(up, d.Name)
		}
	}
	if len(up) == 1 {
		return up[0], "the only interface here that is up and is no bridge or tunnel", Likely
	}
	if len(up) > 1 {
		return up[0], fmt.Sprintf("the default route is not known; this is the first of %d interfaces that are up (%s), all over InfiniBand or of a kind not known. Other nodes must be reachable by it", len(up), shorten(up)), Depends
	}
	return "", "no interface is known that leads to other nodes", Depends
}

func ethernet(n *NIC) bool {
	return slices.ContainsFunc(n.Ports, func(p Port) bool { return p.LinkLayer == "Ethernet" }) || len(n.Ports) == 0
}
