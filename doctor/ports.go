package doctor

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/commprobe/commprobe/internal/topo"
)

// bytes is the beginning of a file, as it is.
func (m *machine) bytes(name string, limit int64) ([]byte, error) {
	f, err := os.Open(m.at(name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit))
	if len(b) > 0 {
		return b, nil // configuration space ends with an error where it may not be read
	}
	return b, err
}

// port is one port of an RDMA device.
type port struct {
	dev       string
	num       string
	dir       string
	state     string // ACTIVE, INIT, ARMED, DOWN; "" unknown
	phys      string // LinkUp, Polling, Disabled, …
	linkLayer string // InfiniBand, Ethernet; "" unknown
	rate      float64
	rateText  string
	model     string // type of the adapter, and board where it is told
	firmware  string
	bdf       string
	netdevs   []string
}

func (p *port) name() string {
	if p.num == "1" {
		return p.dev
	}
	return p.dev + ":" + p.num
}

func (p *port) roce() bool { return p.linkLayer == "Ethernet" }

// ports are those of all RDMA devices of the topology, with what it has no place for.
func (m *machine) ports() []port {
	if m.nics != nil {
		return *m.nics
	}
	list := []port{}
	for _, n := range m.topology().NICs {
		dev := "sys/class/infiniband/" + n.Name
		model := strings.TrimSpace(m.text(dev+"/hca_type") + " " + m.text(dev+"/board_id"))
		firmware := m.text(dev + "/fw_ver")
		for _, t := range n.Ports {
			if t.Num == nil {
				continue // a network interface without RDMA
			}
			num := strconv.Itoa(*t.Num)
			p := port{dev: n.Name, num: num, dir: dev + "/ports/" + num, model: model, firmware: firmware, bdf: n.BusID,
				state: t.State, phys: t.Phys, linkLayer: t.LinkLayer, rateText: t.Rate, netdevs: interfaces(&n, &t)}
			if t.Gbps != nil {
				p.rate = *t.Gbps
			} else if t.Rate != "" {
				m.complain(p.dir+"/rate", 1, "is no rate: %.40q", t.Rate)
			}
			list = append(list, p)
		}
	}
	m.nics = &list
	return list
}

// interfaces are the network interfaces of a port: of its GIDs, or else of its device.
func interfaces(n *topo.NIC, p *topo.Port) []string {
	var out []string
	for _, g := range p.GIDs {
		if g.Netdev != "" && !slices.Contains(out, g.Netdev) {
			out = append(out, g.Netdev)
		}
	}
	if len(out) == 0 {
		return n.Netdevs
	}
	return out
}

// usable are the ports that carry data; a port whose state cannot be read is none.
func (m *machine) usable() []port {
	return slices.DeleteFunc(slices.Clone(m.ports()), func(p port) bool { return p.state != "ACTIVE" })
}

func (m *machine) roce() []port {
	return slices.DeleteFunc(m.usable(), func(p port) bool { return !p.roce() })
}

// gid is one entry of a port's table.
type gid struct {
	index int
	addr  netip.Addr
	kind  string // "RoCE v2", "IB/RoCE v1"; "" not told
}

// gids reads a port's table without its empty slots, and to its end: that an address is nowhere in it is a fault, and the topology stops after a gap. A type that exists but cannot be read (a slot of another network name space) leaves kind "" and sets
// hidden.
func (m *machine) gids(p *port) (list []gid, hidden bool) {
	for _, i := range m.list(p.dir + "/gids") {
		n, err := strconv.Atoi(i)
		addr, bad := netip.ParseAddr(m.text(p.dir + "/gids/" + i))
		if err != nil || bad != nil || addr.IsUnspecified() || strings.HasSuffix(addr.StringExpanded(), ":0000:0000:0000:0000") {
			continue // an empty slot, or only a subnet's prefix
		}
		kind, err := m.read(p.dir + "/gid_attrs/types/" + i)
		if errors.Is(err, syscall.EINVAL) || errors.Is(err, fs.ErrPermission) {
			hidden = true
		}
		list = append(list, gid{n, addr, kind})
	}
	return list, hidden
}

// firstIPv4 is the GID that NCCL chooses by itself: the first of RoCE v2 with an IPv4 address; nil if there is none.
func firstIPv4(list []gid) *gid {
	if i := slices.IndexFunc(list, func(g gid) bool { return g.kind == "RoCE v2" && g.addr.Is4In6() }); i >= 0 {
		return &list[i]
	}
	return nil
}

// Counters of a port that should stand still. The first group counts errors of the link, the second retransmission and refusal (drivers mlx5, bnxt_re, rxe; irdma's
// count packets of all kinds and say nothing).
var (
	linkErrors = []string{"symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_rcv_remote_physical_errors", "local_link_integrity_errors", "excessive_buffer_overrun_errors"}
	dataErrors = []string{"out_of_sequence", "packet_seq_err", "implied_nak_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "req_cqe_error", "resp_cqe_error", "roce_adp_retrans",
		"to_retransmits", "seq_err_naks_rcvd", "max_retry_exceeded", "rnr_naks_rcvd", "rx_roce_errors", "retry_exceeded_err", "rx_icrc_encapsulated", "completer_retry_err", "out_of_seq_request", "rcvd_seq_err", "send_err"}
)

func counterFiles(p *port) (link, data []string) {
	for _, c := range linkErrors {
		link = append(link, p.dir+"/counters/"+c)
	}
	for _, c := range dataErrors {
		data = append(data, p.dir+"/hw_counters/"+c)
	}
	return link, data
}

// movedCounter is an error counter that grew while the report was made.
type movedCounter struct {
	port, counter string
	by            int64
	link          bool
}

// between is the time between two samples: well above the 10 ms for which mlx5 keeps its counters (hw_counters/lifespan).
const between = time.Second

// movedCounters samples all error counters of all usable ports twice.
func (m *machine) movedCounters() []movedCounter {
	if m.moved != nil || m.Sleep == nil {
		if m.moved == nil {
			return nil
		}
		return *m.moved
	}
	type sample struct {
		value int64
		port  string
		link  bool
	}
	first := map[string]sample{}
	for _, p := range m.usable() {
		link, data := counterFiles(&p)
		for i, f := range append(link, data...) {
			if v := m.number(f); v != nil {
				first[f] = sample{*v, p.name(), i < len(link)}
			}
		}
	}
	moved := []movedCounter{}
	if len(first) > 0 {
		m.Sleep(between)
	}
	for f, s := range first {
		if v := m.number(f); v != nil && *v > s.value {
			moved = append(moved, movedCounter{s.port, path.Base(f), *v - s.value, s.link})
		}
	}
	slices.SortFunc(moved, func(a, b movedCounter) int { return naturally(a.port+" "+a.counter, b.port+" "+b.counter) })
	m.moved = &moved
	return moved
}

func (c movedCounter) String() string {
	return fmt.Sprintf("%s: %s grew by %d within %v", c.port, c.counter, c.by, between)
}
