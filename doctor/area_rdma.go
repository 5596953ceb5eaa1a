package doctor

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/nccl/ncclenv"
)

var rdmaChecks = []check{
	{"rdma-devices", "RDMA devices", "without them NCCL goes through sockets", "/sys/class/infiniband", rdmaDevices},
	{"rdma-state", "ports are up", "a port that is down or half up (no subnet manager) makes its rank the slow or the hanging one", "/sys/class/infiniband/*/ports/*/state, phys_state", rdmaState},
	{"rdma-rate", "ports of a kind have one rate", "one link that trained low slows every collective", "/sys/class/infiniband/*/ports/*/rate", rdmaRate},
	{"rdma-link-layer", "one link layer", "NCCL takes ports of both kinds and then cannot connect them", "NCCL warning: Attempted to connect incompatible devices", rdmaLinkLayer},
	{"rdma-errors", "error counters stand still", "a counter that moves is a link, cable or switch that loses data now", "IBTA port counters; mlx5, bnxt_re hw_counters", rdmaErrors},
	{"rdma-pcie", "adapters' PCIe links are as wide and fast as possible", "a link that trained narrow or slow is the cap of the port behind it", "sysfs current_link_speed, current_link_width", rdmaPCIe},
	{"rdma-numa", "devices know their NUMA node", "without it NCCL and launchers place buffers and threads blindly", "sysfs numa_node", rdmaNUMA},
	{"rdma-firmware", "one firmware", "adapters of one kind with different firmware differ in behaviour", "/sys/class/infiniband/*/fw_ver", rdmaFirmware},
	{"rdma-mtu", "RoCE interfaces have a large and equal MTU", "RDMA packets of 4096 bytes need an interface MTU above that; at 1500 they are 1024", "/sys/class/net/*/mtu", rdmaMTU},
	{"rdma-gid", "a usable GID on every RoCE port", "with no RoCE v2 GID of an IPv4 address NCCL stays at index 0, which is not routed", "NCCL net_ib/connect.cc, choice of the GID index", rdmaGID},
	{"rdma-lossless", "ECN for the priority of the traffic", "RoCE without congestion control loses packets under load, and each loss costs milliseconds", "/sys/class/net/*/ecn, /sys/class/infiniband/*/tc (MLNX_OFED)", rdmaLossless},
	{"rdma-verbs", "libibverbs and the adapters' provider are installed", "without them NCCL sees no RDMA device although the kernel has it", "NCCL loads libibverbs.so.1; /etc/libibverbs.d", rdmaVerbs},
}

// needPorts skips a check of ports.
func (m *machine) needPorts(v *verdict, list []port, what string) bool {
	if len(list) == 0 {
		v.skip("no %s", what)
	}
	return len(list) > 0
}

func rdmaDevices(m *machine, v *verdict) {
	var nics []string
	for _, d := range m.topology().PCI {
		if strings.HasPrefix(d.Class, "0x0207") || d.Vendor == "0x15b3" && strings.HasPrefix(d.Class, "0x0200") {
			nics = append(nics, d.BusID)
		}
	}
	list := m.ports()
	names := map[string]string{}
	for _, p := range list {
		names[p.dev] = strings.TrimSpace(p.model + " " + p.linkLayer)
	}
	v.fact("rdma devices", groups(names))
	switch {
	case len(names) > 0:
		v.ok("%d: %s", len(names), groups(names))
	case len(nics) > 0 && m.container() != "":
		v.warn("share the host's devices: --network host --device /dev/infiniband, or the RDMA device plugin in Kubernetes", "adapters %s are on the bus, and this container sees no RDMA device", shorten(nics, 8))
	case len(nics) > 0:
		v.fault("modprobe mlx5_ib (the packages rdma-core or DOCA-OFED have it)", "adapters %s are on the bus, and no RDMA device is there", shorten(nics, 8))
	default:
		v.skip("no RDMA adapter")
	}
}

func rdmaState(m *machine, v *verdict) {
	list := m.ports()
	if !m.needPorts(v, list, "RDMA device") {
		return
	}
	up := len(m.usable())
	for _, p := range list {
		switch {
		case p.state == "ACTIVE" && p.phys != "" && p.phys != "LinkUp":
			v.warn("check the cable: ibstat "+p.dev, "%s: active, but its physical state is %s", p.name(), p.phys)
		case p.state == "ACTIVE":
		case p.state == "":
			v.unknown("", "%s: state cannot be read", p.name())
		case p.state == "INIT" || p.state == "ARMED":
			v.fault("sminfo; a subnet manager must run on a switch or as opensm", "%s: %s: no subnet manager has set it up", p.name(), p.state)
		case p.phys == "Disabled":
			v.ok("%s: switched off on purpose", p.name())
		case up == 0:
			v.fault("ibstat; check cables and switch ports", "%s: %s (%s), and no port is up", p.name(), p.state, p.phys)
		default:
			v.warn("check the cable, or leave it out: NCCL_IB_HCA=^="+p.dev+":"+p.num, "%s: %s (%s)", p.name(), p.state, p.phys)
		}
	}
	v.fact("rdma ports up", strconv.Itoa(up))
	if !v.bad() {
		v.ok("%d up", up)
	}
}

func rdmaRate(m *machine, v *verdict) {
	list := m.usable()
	if !m.needPorts(v, list, "active RDMA port") {
		return
	}
	rates, kinds, all := map[string]map[string][]string{}, []string{}, map[string]string{}
	for _, p := range list {
		if p.rate == 0 {
			v.unknown("", "%s: rate cannot be read (%q)", p.name(), p.rateText)
			continue
		}
		kind := p.model + " " + p.linkLayer
		if rates[kind] == nil {
			rates[kind], kinds = map[string][]string{}, append(kinds, kind)
		}
		rates[kind][p.rateText] = append(rates[kind][p.rateText], p.name())
		all[p.name()] = p.rateText
		if p.linkLayer == "InfiniBand" && strings.Contains(p.rateText, "(1X") {
			v.fault("reseat or change the cable; ibdiagnet, mlxlink -d "+p.dev, "%s: one lane of four: %s", p.name(), p.rateText)
		}
	}
	v.fact("rdma rates", groups(all))
	for _, kind := range kinds {
		if len(rates[kind]) < 2 {
			continue
		}
		usual := mostFrequent(rates[kind])[0]
		for _, p := range list {
			if p.model+" "+p.linkLayer == kind && p.rateText != usual && p.rate > 0 && !(p.linkLayer == "InfiniBand" && strings.Contains(p.rateText, "(1X")) {
				v.fault("reseat or change the cable, compare the switch's port: mlxlink -d "+p.dev+" -m", "%s: %s; adapters of its kind have %s", p.name(), p.rateText, usual)
			}
		}
	}
	v.allOK("%s", groups(all))
}

func rdmaLinkLayer(m *machine, v *verdict) {
	list := m.usable()
	if !m.needPorts(v, list, "active RDMA port") {
		return
	}
	layers := map[string]string{}
	kinds := map[string]bool{}
	for _, p := range list {
		if m.selected(&p) {
			layers[p.name()] = p.linkLayer
			kinds[p.linkLayer] = true
		}
	}
	if len(kinds) > 1 {
		v.warn("name the ports of the compute network: NCCL_IB_HCA="+suggestion(list), "%s", groups(layers))
		return
	}
	v.allOK("%s", groups(layers))
}

// selected tells whether NCCL_IB_HCA lets a port in.
func (m *machine) selected(p *port) bool {
	setting := m.env["NCCL_IB_HCA"]
	if setting == "" {
		return true
	}
	return len(ncclenv.Selected(setting, []string{p.dev})) > 0 // by device; a port in the setting is not looked at
}

// suggestion names the ports of the fastest kind.
func suggestion(list []port) string {
	best := list[0]
	for _, p := range list {
		if p.rate > best.rate {
			best = p
		}
	}
	var names []string
	for _, p := range list {
		if p.linkLayer == best.linkLayer && p.rate == best.rate {
			names = append(names, p.name())
		}
	}
	return "=" + strings.Join(names, ",")
}

// manyDowns is more than starts of host and switch explain.
const manyDowns = 20

// suspicious are the counters that mean a bad link also when they stand still. The others of a link count what starts of neighbours leave behind, too.
var suspicious = []string{"symbol_error", "link_error_recovery", "local_link_integrity_errors"}

// full is where counters stop, by their width (InfiniBand specification, PortCounters); adapters with the extended ones go on.
var full = map[string]int64{"symbol_error": 1<<16 - 1, "link_error_recovery": 1<<8 - 1, "link_downed": 1<<8 - 1, "local_link_integrity_errors": 15}

func rdmaErrors(m *machine, v *verdict) {
	list := m.usable()
	if !m.needPorts(v, list, "active RDMA port") {
		return
	}
	for _, c := range m.movedCounters() {
		if c.link {
			v.fault("clean or change cable and transceiver; mlxlink -d DEVICE -c shows the eye and errors", "%s", c.String())
		} else {
			v.warn("look for loss on the way: PFC and ECN on hosts and switches, the GID in use; a job that runs now may show its own congestion", "%s", c.String())
		}
	}
	told := 0
	for _, p := range list {
		link, data := counterFiles(&p)
		for _, f := range data { // those that stand still say nothing of now
			if m.number(f) != nil {
				told++
			}
		}
		for _, f := range link {
			n := m.number(f)
			if n == nil {
				continue
			}
			told++
			name := path.Base(f)
			if name == "link_downed" && *n > manyDowns || *n > 0 && slices.Contains(suspicious, name) {
				stops := ""
				if *n == full[name] {
					stops = ", where it stops counting"
				}
				v.warn("clear them (perfquery -R) and look again after a day; a count that grows is a cable or transceiver", "%s: %s is %d%s", p.name(), name, *n, stops)
			}
		}
	}
	switch {
	case told == 0 && !v.bad():
		v.unknown("perfquery, ethtool -S", "no port shows its counters here (virtual functions and virtual machines often do not)")
	case m.Sleep == nil:
		v.allOK("none that matters; looked at once")
	default:
		v.allOK("none that matters, none moved within %v", between)
	}
}

func rdmaPCIe(m *machine, v *verdict) {
	list := m.ports()
	if !m.needPorts(v, list, "RDMA device") {
		return
	}
	told, said := map[string]string{}, map[string]bool{}
	for _, p := range list {
		d := m.topology().Function(p.bdf)
		if d == nil || d.Link.Width == nil || d.Link.MaxWidth == nil || d.Link.Speed == nil {
			continue // a virtual function, or a machine that does not say
		}
		link, carries := d.Link, *d.Link.GBs()*8
		told[p.dev] = fmt.Sprintf("%g GT/s x%d", *link.Speed, *link.Width)
		slow := link.MaxSpeed != nil && *link.Speed < *link.MaxSpeed
		fix := "reseat the adapter; lspci -vv -s " + d.BusID + " | grep -E 'LnkCap|LnkSta'"
		switch {
		case said[p.dev]:
			continue
		case *link.Width < *link.MaxWidth:
			v.fault(fix, "%s (%s): x%d of x%d lanes", p.dev, d.BusID, *link.Width, *link.MaxWidth)
		case slow && carries < p.rate:
			v.fault(fix, "%s (%s): %g of %g GT/s, which carries %.0f Gb/s, and its port has %g", p.dev, d.BusID, *link.Speed, *link.MaxSpeed, carries, p.rate)
		case slow:
			v.warn(fix, "%s (%s): %g of %g GT/s", p.dev, d.BusID, *link.Speed, *link.MaxSpeed)
		case carries < p.rate && p.state == "ACTIVE":
			v.warn("use a slot with more lanes or of a newer generation", "%s (%s): the slot carries %.0f Gb/s, the port %g", p.dev, d.BusID, carries, p.rate)
		default:
			continue
		}
		said[p.dev] = true
	}
	if len(told) == 0 {
		v.unknown("lspci -vv on the host", "no adapter tells its link")
		return
	}
	v.fact("rdma pcie", groups(told))
	v.allOK("%s", groups(told))
}

func rdmaNUMA(m *machine, v *verdict) {
	if nodes := m.cpuNodes(); len(nodes) < 2 {
		v.skip("%s", count(len(nodes), "NUMA node"))
		return
	}
	devices, without := m.gpusAndAdapters(), []string{}
	for _, d := range devices {
		if d.NUMA != nil && *d.NUMA < 0 {
			without = append(without, d.BusID)
		}
	}
	switch {
	case len(devices) == 0:
		v.skip("no GPU and no RDMA adapter on the bus")
	case len(without) > 0:
		v.warn("BIOS: update it or check ACPI settings; virtual machine: let the provider pass the topology on, or give NCCL_TOPO_FILE", "no NUMA node for %s", shorten(without, 8))
	default:
		v.ok("all of %d GPUs and adapters", len(devices))
	}
}

func rdmaFirmware(m *machine, v *verdict) {
	byModel, all := map[string]map[string][]string{}, map[string]string{}
	for _, p := range m.ports() {
		if p.firmware == "" || all[p.dev] != "" {
			continue
		}
		if byModel[p.model] == nil {
			byModel[p.model] = map[string][]string{}
		}
		byModel[p.model][p.firmware] = append(byModel[p.model][p.firmware], p.dev)
		all[p.dev] = p.firmware
	}
	if len(all) == 0 {
		v.skip("no adapter tells its firmware")
		return
	}
	v.fact("rdma firmware", groups(all))
	for model, versions := range byModel {
		if len(versions) > 1 {
			v.warn("mlxfwmanager, or mlxup, on this host", "%s: %s", model, groups(all))
		}
	}
	v.allOK("%s", groups(all))
}

// roceMTU is what an interface needs for RDMA packets of 4096 bytes: they carry up to 58 bytes of headers more (NVIDIA, RoCE MTU notes).
const roceMTU = 4096 + 58

func rdmaMTU(m *machine, v *verdict) {
	list := m.roce()
	if !m.needPorts(v, list, "active RoCE port") {
		return
	}
	mtus, values := map[string]string{}, map[string][]string{}
	for _, p := range list {
		if !m.selected(&p) {
			continue
		}
		for _, dev := range p.netdevs {
			n := m.number("sys/class/net/" + dev + "/mtu")
			if n == nil || mtus[dev] != "" {
				continue
			}
			mtus[dev] = strconv.FormatInt(*n, 10)
			values[mtus[dev]] = append(values[mtus[dev]], dev)
			if *n < roceMTU {
				v.warn("ip link set "+dev+" mtu 9000, and the switch's port as well", "%s: MTU %d", dev, *n)
			}
		}
	}
	v.fact("roce mtu", groups(mtus))
	switch {
	case len(mtus) == 0:
		v.unknown("ip -d link", "no interface of a RoCE port is visible here")
	case len(values) > 1:
		v.warn("give all the same MTU", "they differ: %s", groups(mtus))
	default:
		v.allOK("%s", groups(mtus))
	}
}

func rdmaGID(m *machine, v *verdict) {
	list := m.roce()
	if !m.needPorts(v, list, "active RoCE port") {
		return
	}
	chosen := map[string]string{}
	forced := m.env["NCCL_IB_GID_INDEX"]
	for _, p := range list {
		if !m.selected(&p) {
			continue
		}
		table, hidden := m.gids(&p)
		g := firstIPv4(table)
		switch {
		case g == nil && hidden:
			v.unknown("run where the interfaces are: the host, or --network host", "%s: types of GIDs cannot be read in this network name space", p.name())
			continue
		case len(m.list(p.dir+"/gids")) == 0:
			v.unknown("", "%s: its table of GIDs cannot be seen", p.name())
			continue
		case g == nil && slices.ContainsFunc(table, routableV6):
			v.warn("NCCL_IB_ADDR_FAMILY=AF_INET6", "%s: RoCE v2 only with IPv6 addresses, which NCCL does not choose by itself", p.name())
			continue
		case g == nil:
			v.fault("give its interface an IPv4 address: ip addr add ADDRESS dev "+cmp.Or(strings.Join(p.netdevs, ","), "INTERFACE"), "%s: no GID of RoCE v2 with an IPv4 address", p.name())
			continue
		}
		chosen[p.name()] = strconv.Itoa(g.index)
		if i, err := strconv.Atoi(forced); err == nil && i >= 0 {
			m.forcedGID(v, &p, table, i, g.index)
		}
	}
	v.fact("roce gid index", groups(chosen))
	if len(chosen) > 0 {
		v.allOK("NCCL takes index %s", groups(chosen))
	}
}

// routableV6 tells whether a GID is RoCE v2 with an address that is not only of its link.
func routableV6(g gid) bool {
	return g.kind == "RoCE v2" && g.addr.Is6() && !g.addr.Is4In6() && !g.addr.IsLinkLocalUnicast()
}

// forcedGID looks at the index that a setting names for all ports alike.
func (m *machine) forcedGID(v *verdict, p *port, table []gid, index, auto int) {
	const fix = "unset NCCL_IB_GID_INDEX: NCCL 2.21 and later choose by themselves, per port"
	at := slices.IndexFunc(table, func(g gid) bool { return g.index == index })
	switch {
	case at < 0:
		v.fault(fix, "%s: NCCL_IB_GID_INDEX=%d names an empty slot; the right one is %d", p.name(), index, auto)
	case table[at].kind != "RoCE v2":
		v.fault(fix, "%s: NCCL_IB_GID_INDEX=%d is %s; the one of RoCE v2 and IPv4 is %d", p.name(), index, table[at].kind, auto)
	case !table[at].addr.Is4In6() && !routableV6(table[at]):
		v.fault(fix, "%s: NCCL_IB_GID_INDEX=%d is a link-local address, which no router passes; the right one is %d", p.name(), index, auto)
	}
}

// rdmaLossless looks whether ECN is on for the priority of the traffic: that of NCCL_IB_TC, or of the class that the driver forces.
func rdmaLossless(m *machine, v *verdict) {
	list := m.roce()
	if !m.needPorts(v, list, "active RoCE port") {
		return
	}
	classes := map[string]string{}
	for _, p := range list {
		if !m.selected(&p) {
			continue
		}
		class := m.trafficClass(&p)
		if class < 0 {
			continue
		}
		classes[p.name()] = strconv.Itoa(class)
		priority := strconv.Itoa(class >> 5) // the default mapping of DSCP (class >> 2) to priorities: eight values each
		for _, dev := range p.netdevs {
			for _, side := range []string{"roce_np", "roce_rp"} {
				if on := m.number("sys/class/net/" + dev + "/ecn/" + side + "/enable/" + priority); on != nil && *on == 0 {
					v.warn("echo 1 > /sys/class/net/"+dev+"/ecn/"+side+"/enable/"+priority, "%s: traffic class %d is priority %s, and ECN (%s) is off for it on %s", p.name(), class, priority, side, dev)
				}
			}
		}
	}
	v.fact("roce traffic class", groups(classes))
	if len(classes) == 0 {
		v.unknown("ask the fabric's people for the traffic class, and set NCCL_IB_TC on all nodes; mlnx_qos -i INTERFACE shows PFC", "neither NCCL_IB_TC nor the driver sets a traffic class; PFC cannot be read from files")
		return
	}
	v.allOK("traffic class %s; PFC cannot be read from files: mlnx_qos -i INTERFACE", groups(classes))
}

// trafficClass is that of the setting, or of the driver's file "Global tclass=106"; −1: none.
func (m *machine) trafficClass(p *port) int {
	if n, err := strconv.Atoi(m.env["NCCL_IB_TC"]); err == nil && n >= 0 && n < 256 {
		return n
	}
	_, value, ok := strings.Cut(m.text("sys/class/infiniband/"+p.dev+"/tc/"+p.num+"/traffic_class"), "=")
	if n, err := strconv.Atoi(strings.TrimSpace(value)); ok && err == nil && n >= 0 && n < 256 {
		return n
	}
	return -1
}

// providers are the user-space drivers of device names.
var providers = map[string]string{"mlx5": "mlx5", "mlx4": "mlx4", "bnxt_re": "bnxt_re", "irdma": "irdma", "rdmap": "efa", "efa": "efa", "rxe": "rxe", "hfi1": "hfi1verbs"}

func rdmaVerbs(m *machine, v *verdict) {
	if !m.needPorts(v, m.ports(), "RDMA device") {
		return
	}
	if !m.exists("usr") {
		v.unknown("", "/usr cannot be seen")
		return
	}
	if len(m.versioned(libraryDirs, "libibverbs.so.1")) == 0 {
		v.fault("apt install libibverbs1 ibverbs-providers, or dnf install libibverbs (rdma-core)", "no libibverbs.so.1 in the usual folders")
		return
	}
	drivers := m.list("etc/libibverbs.d")
	if len(drivers) == 0 {
		v.unknown("", "libibverbs is there; /etc/libibverbs.d, which names its providers, is not")
		return
	}
	for _, p := range m.ports() {
		for prefix, provider := range providers {
			if strings.HasPrefix(p.dev, prefix) && !slices.Contains(drivers, provider+".driver") {
				v.fault("apt install ibverbs-providers, or dnf install libibverbs", "%s needs the provider %s, which /etc/libibverbs.d does not name", p.dev, provider)
			}
		}
	}
	v.allOK("with providers")
}
