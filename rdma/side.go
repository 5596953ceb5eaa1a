package rdma

import (
	"cmp"
	"fmt"
)

// Protocol is the version of what the two sides tell each other. The store demands equal program versions already; this catches a description that
// was written by something else.
const Protocol = 1

// Side is what one side says of itself: everything that the agreement and the report need.
type Side struct {
	Protocol    int     `json:"protocol"`
	Program     string  `json:"program"` // version
	Host        string  `json:"host"`
	PID         int     `json:"pid"`
	Library     string  `json:"library"` // libibverbs: version and path
	Device      string  `json:"device"`
	Firmware    string  `json:"firmware,omitempty"`
	Port        int     `json:"port"`
	LinkLayer   string  `json:"link_layer"` // "Ethernet" or "InfiniBand"
	State       string  `json:"state"`      // "active" …
	Active      bool    `json:"active"`
	PhysState   int     `json:"phys_state"`
	MTU         int     `json:"mtu_bytes"` // active MTU
	MaxMTU      int     `json:"max_mtu_bytes"`
	LID         uint16  `json:"lid,omitempty"`
	RateGbps    float64 `json:"rate_gbps,omitempty"` // 0: unknown
	GRHRequired bool    `json:"grh_required,omitempty"`
	GIDs        []GID   `json:"gids"`
	MaxReads    int     `json:"max_reads"`     // READs and atomics that it answers at a time, a QP
	MaxReadsOut int     `json:"max_reads_out"` // and that it may have outstanding
	MaxQPs      int     `json:"max_qps"`
	MaxDepth    int     `json:"max_depth"`
	MaxCQE      int     `json:"max_cqe"`
	Memory      string  `json:"memory"`    // "host", "gpu:0" …
	NUMANode    int     `json:"numa_node"` // −1: unknown
	PCI         string  `json:"pci,omitempty"`
	CPUs        string  `json:"cpus"` // where the measuring thread may run, and why
}

// GID is one entry of a port's table.
type GID struct {
	Index  int    `json:"index"`
	Addr   string `json:"gid"`              // as an IPv6 address, or an IPv4 address for ::ffff:a.b.c.d
	Type   string `json:"type"`             // "RoCE v2", "IB/RoCE v1", or "" where the kernel does not say
	NetDev string `json:"netdev,omitempty"` // network device that it belongs to
	Subnet string `json:"subnet,omitempty"` // of that device's address, such as 10.77.0.0/24
}

// name is how messages call a side.
func (s *Side) name() string {
	return fmt.Sprintf("%s port %d of %s", cmp.Or(s.Device, "?"), s.Port, cmp.Or(s.Host, "?"))
}
