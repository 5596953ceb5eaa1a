package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/nccl/ncclenv"
)

var networkChecks = []check{
	{"net-interface", "the interface that NCCL takes for its start-up", "on a bridge of containers or virtual machines, or an interface to the board's controller, ranks of other nodes cannot be reached: the job hangs at the start", "NCCL socket.cc: names beginning with ib, else all but docker, lo and virbr, else docker, lo, virbr; each in the kernel's order", netInterface},
	{"net-rails", "several RoCE interfaces in one subnet answer for themselves", "with the kernel's defaults one interface answers for another's address, and traffic of all rails takes one", "Linux ip-sysctl: arp_ignore, arp_announce, rp_filter", netRails},
	{"net-firewall", "no firewall between ranks", "NCCL and its start-up take any free port; a filter makes the start hang", "NCCL troubleshooting guide, networking issues", netFirewall},
	{"net-ports", "enough ports", "each connection of the start-up needs one, a large job thousands", "Linux ip_local_port_range", netPorts},
}

// nic is a network interface that could carry a job's sockets.
type nic struct {
	name  string
	index int64
	state string
	local bool // it has no address but an IPv6 one of its own link
}

// addressed lists interfaces with an IPv4 route or an IPv6 address that are up, in the kernel's order.
func (m *machine) addressed() []nic {
	have := map[string]bool{} // and whether an address reaches beyond the link
	for _, r := range m.routes() {
		have[r.dev] = true
	}
	for line := range strings.Lines(m.text("proc/net/if_inet6")) {
		if f := strings.Fields(line); len(f) == 6 {
			have[f[5]] = have[f[5]] || !strings.HasPrefix(f[0], "fe8")
		}
	}
	var out []nic
	for name := range have {
		dir := "sys/class/net/" + name
		n := nic{name: name, state: m.text(dir + "/operstate"), local: !have[name]}
		if i := m.number(dir + "/ifindex"); i != nil && n.state != "down" {
			n.index = *i
			out = append(out, n)
		}
	}
	slices.SortFunc(out, func(a, b nic) int { return int(a.index - b.index) })
	return out
}

// route is a row of /proc/net/route.
type route struct {
	dev      string
	net      netip.Prefix
	isGlobal bool
}

func (m *machine) routes() []route {
	const name = "proc/net/route"
	var out []route
	line := 0
	for text := range strings.Lines(m.text(name)) {
		f := strings.Fields(text)
		if line++; line == 1 || len(f) < 8 {
			continue
		}
		dst, errD := strconv.ParseUint(f[1], 16, 32)
		mask, errM := strconv.ParseUint(f[7], 16, 32)
		if errD != nil || errM != nil {
			m.complain(name, line, "is no route: %.60q", strings.TrimSpace(text))
			continue
		}
		addr := netip.AddrFrom4([4]byte{byte(dst), byte(dst >> 8), byte(dst >> 16), byte(dst >> 24)}) // the file has network order as this machine's number
		bits := 0
		for ; mask&1 == 1; mask >>= 1 {
			bits++
		}
		if p := netip.PrefixFrom(addr, bits); p.IsValid() {
			out = append(out, route{f[0], p, bits == 0})
		}
	}
	return out
}

// inner says what an interface is for that leads to no other node; "" when it may lead there.
func (m *machine) inner(name string) string {
	for _, p := range []struct{ prefix, is string }{
		{"docker", "a bridge of Docker"}, {"br-", "a bridge of Docker"}, {"virbr", "a bridge of virtual machines"}, {"veth", "one end of a container's link"}, {"cni", "a bridge of Kubernetes"},
		{"cali", "a link of Calico"}, {"flannel", "an overlay of Kubernetes"}, {"lxc", "a bridge of containers"}, {"podman", "a bridge of Podman"}, {"tun", "a tunnel"}, {"tap", "a tap"}, {"wg", "a tunnel"},
		{"tailscale", "a tunnel"}, {"vnet", "a tap of a virtual machine"}, {"usb", "a link to the board's controller"}, {"bmc", "a link to the board's controller"}, {"idrac", "a link to the board's controller"},
		{"kube-ipvs", "an internal device of Kubernetes"}, {"nodelocaldns", "an internal device of Kubernetes"},
	} {
		if strings.HasPrefix(name, p.prefix) {
			return p.is
		}
	}
	real := m.link("sys/class/net/" + name + "/device/driver")
	if real == "cdc_ether" || real == "rndis_host" || real == "cdc_ncm" {
		return "a USB link, usually to the board's controller"
	}
	return ""
}

// ncclInterfaces are those that NCCL takes for sockets, in its order.
func (m *machine) ncclInterfaces() []nic {
	all := m.addressed()
	pick := func(keep func(string) bool) []nic {
		return slices.DeleteFunc(slices.Clone(all), func(n nic) bool { return !keep(n.name) })
	}
	if setting := m.env["NCCL_SOCKET_IFNAME"]; setting != "" {
		return pick(func(s string) bool { return len(ncclenv.Selected(setting, []string{s})) > 0 })
	}
	for _, keep := range []func(string) bool{
		func(s string) bool { return strings.HasPrefix(s, "ib") },
		func(s string) bool {
			return !strings.HasPrefix(s, "docker") && !strings.HasPrefix(s, "lo") && !strings.HasPrefix(s, "virbr")
		},
		func(s string) bool { return strings.HasPrefix(s, "docker") },
		func(s string) bool { return strings.HasPrefix(s, "lo") },
		func(s string) bool { return strings.HasPrefix(s, "virbr") },
	} {
		if list := pick(keep); len(list) > 0 {
			return list
		}
	}
	return nil
}

func netInterface(m *machine, v *verdict) {
	list := m.ncclInterfaces()
	setting := m.env["NCCL_SOCKET_IFNAME"]
	main := ""
	for _, r := range m.routes() {
		if r.isGlobal {
			main = r.dev
			break
		}
	}
	if len(list) == 0 && setting != "" {
		v.fault("choose one of ip -br addr", "NCCL_SOCKET_IFNAME=%s names no interface that is up and has an address", setting)
		return
	}
	if len(list) == 0 {
		v.unknown("ip -br addr", "no interface with an address was found")
		return
	}
	fix := "ip -br addr; export NCCL_SOCKET_IFNAME==INTERFACE on all nodes"
	if main != "" {
		fix = fmt.Sprintf("export NCCL_SOCKET_IFNAME==%s (it has the default route), and GLOO_SOCKET_IFNAME=%s", main, main)
	}
	var names []string
	for _, n := range list {
		names = append(names, n.name)
	}
	v.fact("socket interface", list[0].name)
	by := "by itself"
	if setting != "" {
		by = "by NCCL_SOCKET_IFNAME"
	}
	switch is := m.inner(list[0].name); {
	case is != "" && m.container() == "":
		v.warn(fix, "%s, chosen %s, is %s", list[0].name, by, is)
	case list[0].local:
		v.warn(fix, "%s, chosen %s, has only a link-local IPv6 address, over which NCCL's start-up fails or hangs", list[0].name, by)
	case list[0].name == "lo" && len(list) == 1:
		v.ok("lo alone: jobs on this node only")
	default:
		v.ok("%s, chosen %s (candidates in order: %s)", list[0].name, by, shorten(names, 6))
	}
	if all := m.addressed(); setting == "" && m.container() == "" && !strings.HasPrefix(list[0].name, "ib") {
		for _, n := range all {
			if strings.HasPrefix(n.name, "virbr") && n.index < list[0].index {
				v.warn(fix, "older versions of NCCL do not leave %s out, and it comes before %s", n.name, list[0].name)
			}
		}
	}
}

func netRails(m *machine, v *verdict) {
	var devs []string
	for _, p := range m.roce() {
		for _, d := range p.netdevs {
			if m.selected(&p) && !slices.Contains(devs, d) {
				devs = append(devs, d)
			}
		}
	}
	if len(devs) < 2 {
		v.skip("%s", count(len(devs), "RoCE interface"))
		return
	}
	subnets := map[string][]string{}
	for _, r := range m.routes() {
		if slices.Contains(devs, r.dev) && !r.isGlobal && !slices.Contains(subnets[r.net.String()], r.dev) {
			subnets[r.net.String()] = append(subnets[r.net.String()], r.dev)
		}
	}
	if len(subnets) == 0 {
		v.unknown("ip route", "RoCE interfaces have no routes that can be seen here")
		return
	}
	shared := false
	for _, net := range mostFrequent(subnets) {
		if list := subnets[net]; len(list) > 1 {
			shared = true
			m.sharedSubnet(v, net, list)
		}
	}
	if !shared {
		v.ok("%d interfaces, each in a subnet of its own", len(devs))
	}
	v.allOK("%d interfaces, set up to share subnets", len(devs))
}

func (m *machine) sharedSubnet(v *verdict, net string, devs []string) {
	effective := func(name, dev string) int64 { // the kernel takes the larger of the two
		n := int64(-1)
		for _, at := range []string{"all", dev} {
			if x := m.number("proc/sys/net/ipv4/conf/" + at + "/" + name); x != nil {
				n = max(n, *x)
			}
		}
		return n
	}
	const fix = "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2 net.ipv4.conf.all.rp_filter=0, or better a subnet for each rail"
	for _, d := range devs {
		ignore, announce, filter := effective("arp_ignore", d), effective("arp_announce", d), effective("rp_filter", d)
		var wrong []string
		if ignore == 0 {
			wrong = append(wrong, "arp_ignore 0")
		}
		if announce == 0 || announce == 1 {
			wrong = append(wrong, fmt.Sprint("arp_announce ", announce))
		}
		if filter == 1 {
			wrong = append(wrong, "rp_filter 1 (strict)")
		}
		if len(wrong) > 0 {
			v.warn(fix, "%s shares subnet %s with %d others: %s", d, net, len(devs)-1, strings.Join(wrong, ", "))
		}
	}
}

func netFirewall(m *machine, v *verdict) {
	const fix = "let all ports through between the job's nodes: ufw allow from SUBNET; firewall-cmd --zone=trusted --add-source=SUBNET; or switch it off on the cluster's network"
	for line := range strings.Lines(m.text("etc/ufw/ufw.conf")) {
		if strings.EqualFold(strings.ReplaceAll(strings.TrimSpace(line), " ", ""), "ENABLED=yes") {
			v.warn(fix, "ufw is on (/etc/ufw/ufw.conf)")
		}
	}
	if p := m.running("firewalld"); p != "" {
		v.warn(fix, "%s runs", p)
	}
	for _, f := range []string{"etc/iptables/rules.v4", "etc/sysconfig/iptables", "etc/nftables.conf", "etc/sysconfig/nftables.conf"} {
		n := 0
		for line := range strings.Lines(m.text(f)) {
			n++
			line = strings.TrimSpace(line)
			drops := strings.HasPrefix(line, ":INPUT DROP") || strings.HasPrefix(line, "-A INPUT") && (strings.Contains(line, "-j DROP") || strings.Contains(line, "-j REJECT")) ||
				strings.HasPrefix(line, "type filter hook input") && strings.Contains(line, "policy drop")
			if drops {
				v.warn(fix, "/%s:%d drops what comes in: %s", f, n, line)
				break
			}
		}
	}
	if !v.bad() {
		v.ok("no sign of one in files and processes; rules that were loaded by hand are not seen: nft list ruleset, iptables -S")
	}
}

// fewPorts is too few for a job of a thousand ranks.
const fewPorts = 5000

func netPorts(m *machine, v *verdict) {
	const name = "proc/sys/net/ipv4/ip_local_port_range"
	f := strings.Fields(m.text(name))
	if len(f) != 2 {
		v.unknown("", "/%s cannot be read", name)
		return
	}
	from, errA := strconv.Atoi(f[0])
	to, errB := strconv.Atoi(f[1])
	if errA != nil || errB != nil || to < from {
		m.complain(name, 1, "is no range: %q", strings.Join(f, " "))
		v.unknown("", "/%s cannot be understood", name)
		return
	}
	if to-from+1 < fewPorts {
		v.warn("sysctl -w net.ipv4.ip_local_port_range='32768 60999'", "%d ports (%d to %d)", to-from+1, from, to)
		return
	}
	v.ok("%d (%d to %d)", to-from+1, from, to)
}
