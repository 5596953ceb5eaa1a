package ncclog

import (
	"bytes"
	"strings"
)

// networkForms are messages about networks and plugins.
var networkForms = []infoForm{
	{"NET/IB : Using ", func(r *Reader, t *thread, msg, rest []byte) { r.ibUsing(t, msg, rest) }},
	{"NET/IB : No device found", noIB("no device")},
	{"NET/IB : Made virtual device ", virtualNIC}, {"NET/IB: Made virtual device ", virtualNIC},
	{"NET/IB: [", ibPort},
	{"NET/IB : GPU Direct RDMA ", nicGDR}, {"NET/Socket : GPU Direct RDMA ", nicGDR},
	{"NET/IB: Dev ", qp}, {"NET/IB : Dev ", qp}, {"NET/IB: NCCL Dev", qp},
	{"NET/IB", ibOther},
	{"NET/Socket : Using ", socketUsing}, {"NET/Socket: Using ", nil}, {"NET/Socket", nil},
	{"NET/OFI ", ofi},
	{"NET/", netOther},
	{"Failed to open libibverbs", noIB("libibverbs missing")}, {"Count not open ", noIB("libibverbs missing")},
	{"Could not get speed from ", nil}, {"Found network interface ", nil},
	{"Failed to initialize NET plugin ", plugin("net", PluginFailed)},
	{"Initialized NET plugin ", plugin("net", PluginReady)}, {"Assigned NET plugin ", plugin("net", PluginUsed)},
	{"Assigned GIN plugin ", plugin("gin", PluginUsed)}, {"Assigned RMA plugin ", plugin("rma", PluginUsed)},
	{"Initialized GIN plugin ", plugin("gin", PluginReady)}, {"Initialized RMA plugin ", plugin("rma", PluginReady)},
	{"Failed to initialize GIN plugin ", plugin("gin", PluginFailed)}, {"Failed to initialize RMA plugin ", plugin("rma", PluginFailed)},
	{"Successfully loaded external ", func(r *Reader, t *thread, msg, rest []byte) {
		w := rest[bytes.LastIndexByte(rest, ' ')+1:]
		kind := "net"
		if contains(rest, "tuner") {
			kind = "tuner"
		} else if contains(rest, "profiler") {
			kind = "profiler"
		}
		r.plugin(t, Plugin{Kind: kind, Name: r.str(w), Outcome: PluginLoaded}, msg)
	}},
	{"External ", func(r *Reader, t *thread, msg, _ []byte) {
		r.plugin(t, Plugin{Kind: "net", Outcome: PluginFailed, Reason: r.str(msg)}, msg)
	}},
	{"P2P plugin ", func(r *Reader, t *thread, msg, rest []byte) {
		r.plugin(t, Plugin{Kind: "net", Name: r.str(bytes.TrimSpace(rest)), Outcome: PluginLoaded}, msg)
	}},
	{"Plugin name set by env to ", func(r *Reader, t *thread, msg, rest []byte) {
		r.addSetting(&t.proc.Env, Setting{Name: "NCCL_NET_PLUGIN", Value: r.str(bytes.TrimSpace(rest)), From: FromEnvironment}, msg)
	}},
	{"Using tuner plugin: ", plugin("tuner", PluginUsed)}, {"Using tuner plugin ", plugin("tuner", PluginUsed)},
	{"TUNER/Plugin", pluginLine("tuner")}, {"PROFILER/Plugin", pluginLine("profiler")}, {"ENV/Plugin", pluginLine("env")},
	{"GIN/Plugin", pluginLine("gin")}, {"RMA/Plugin", pluginLine("rma")},
	{"ncclOsDlopen(", nil}, {"TOPO/NET", nil}, {"SHARP", noticeForm("sharp")}, {"Force-fusing", nil}, {"Tried merging", nil},
	{"Call to connect returned ", retry}, {"socketFinalizeAccept from ", noticeForm("stray-connection")},
	{"CPU/", systemRoot}, {"PCI/", nil}, {"GPU/", nil}, {"NVS/", nil}, {"NIC/", nil},
}

func noIB(why string) func(*Reader, *thread, []byte, []byte) {
	return func(r *Reader, t *thread, msg, _ []byte) { addFact(r, &t.proc.NoIB, []byte(why), msg) }
}

func plugin(kind, outcome string) func(*Reader, *thread, []byte, []byte) {
	return func(r *Reader, t *thread, msg, rest []byte) {
		if kind == "net" {
			t.proc.form(27, 99)
		}
		name := bytes.Trim(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte(" to comm")), "'")
		r.plugin(t, Plugin{Kind: kind, Name: r.str(name), Outcome: outcome}, msg)
	}
}

func (r *Reader) plugin(t *thread, p Plugin, msg []byte) {
	for i := range t.proc.Plugins {
		if old := &t.proc.Plugins[i]; old.Kind == p.Kind && old.Name == p.Name && old.Outcome == p.Outcome {
			return
		}
	}
	if len(t.proc.Plugins) >= maxList {
		r.drop("plugins")
		return
	}
	p.At = r.evidence(msg)
	t.proc.Plugins = append(t.proc.Plugins, p)
}

// pluginLine takes "TUNER/Plugin: Could not find: libnccl-tuner.so. Using internal tuner plugin." and its kin of all versions.
func pluginLine(kind string) func(*Reader, *thread, []byte, []byte) {
	return func(r *Reader, t *thread, msg, _ []byte) { r.pluginSearch(t, kind, msg) }
}

func (r *Reader) pluginSearch(t *thread, kind string, msg []byte) {
	p := Plugin{Kind: kind}
	word := func(after_ string) string {
		w := bytes.TrimSpace(after(msg, after_))
		return r.str(bytes.TrimRight(cutAt(w, " "), ". "))
	}
	switch {
	case contains(msg, "Could not find: "):
		p.Outcome, p.Name = PluginMissing, word("Could not find: ")
	case contains(msg, "No plugin found ("):
		p.Outcome, p.Name = PluginMissing, r.str(cutAt(after(msg, "No plugin found ("), ")"))
	case contains(msg, "No plugin found"):
		p.Outcome = PluginMissing
	case contains(msg, "load") && contains(msg, "returned"):
		p.Outcome, p.Reason = PluginMissing, r.str(msg)
		if contains(msg, "undefined symbol") || contains(msg, "not found") {
			p.Outcome = PluginFailed
		}
	case contains(msg, "Plugin name set by env to "):
		r.addSetting(&t.proc.Env, Setting{Name: "NCCL_" + strings.ToUpper(kind) + "_PLUGIN", Value: word("set by env to "), From: FromEnvironment}, msg)
		return
	case contains(msg, "Failed to find "):
		p.Outcome, p.Name = PluginProbe, word("Failed to find ")
		if contains(msg, "ncclCollNet") {
			p.Kind = "collnet"
		}
	case contains(msg, "Loaded collnet plugin "):
		p.Kind, p.Outcome, p.Name = "collnet", PluginLoaded, r.str(bytes.TrimSpace(after(msg, "Loaded collnet plugin ")))
	case contains(msg, "Loaded "):
		p.Outcome = PluginLoaded
		p.Name = r.str(bytes.TrimSpace(after(msg, " plugin ")))
	case contains(msg, "Using internal"):
		p.Outcome = PluginInternal
	case contains(msg, "Using tuner plugin "):
		p.Outcome, p.Name = PluginUsed, word("Using tuner plugin ")
	case contains(msg, "dlerror") || contains(msg, "rror"):
		p.Outcome, p.Reason = PluginFailed, r.str(msg)
	default:
		return
	}
	r.plugin(t, p, msg)
}

// netOther takes lines of plugins and the search for them.
func netOther(r *Reader, t *thread, msg, rest []byte) {
	switch {
	case hasPrefix(rest, "Plugin"):
		r.pluginSearch(t, "net", msg)
	case contains(rest, "GPU Direct RDMA "):
		nicGDR(r, t, msg, after(msg, "GPU Direct RDMA "))
	case contains(rest, " : Using [") || contains(rest, ": Using ["):
		r.nics(t, msg, after(msg, "Using "))
	}
}

// ofi takes lines of aws-ofi-nccl, which changes the environment.
func ofi(r *Reader, t *thread, msg, rest []byte) {
	i := bytes.Index(rest, []byte("Setting "))
	if i >= 0 {
		c := at(rest[i+len("Setting "):])
		name := c.word()
		s := Setting{From: FromPlugin, Plugin: "aws-ofi-nccl"}
		if j := bytes.IndexByte(name, '='); j > 0 {
			s.Name, s.Value = r.str(name[:j]), r.str(name[j+1:])
		} else if c.try(" environment variable"); c.try(" to ") && !c.bad {
			s.Name, s.Value = r.str(name), r.str(bytes.TrimRight(c.b, " "))
		}
		if strings.Contains(s.Name, "_") {
			r.addSetting(&t.proc.Env, s, msg)
		}
		return
	}
	switch {
	case hasPrefix(rest, "Initializing "):
		r.plugin(t, Plugin{Kind: "net", Name: r.str(bytes.TrimSpace(rest[len("Initializing "):])), Outcome: PluginLoaded}, msg)
	case hasPrefix(rest, "Selected Provider"), hasPrefix(rest, "Selected provider"):
		r.notice(t, "ofi-provider", msg)
	case hasPrefix(rest, "No eligible providers"):
		r.notice(t, "ofi-no-provider", msg)
	case hasPrefix(rest, "Using transport protocol"):
		r.notice(t, "ofi-protocol", msg)
	}
}

func ibOther(r *Reader, t *thread, msg, rest []byte) {
	switch {
	case contains(rest, "Got completion") || contains(rest, "sync event") || contains(rest, "sync fatal") || contains(rest, "GID table changed") || contains(rest, "sync error"):
		r.ibError(t, msg)
	case contains(rest, " qpn ") && contains(rest, " mtu "):
		qp(r, t, msg, rest)
	case contains(rest, "retrying"):
		retry(r, t, msg, rest)
	case contains(rest, "Data Direct"):
		r.notice(t, "data-direct", msg)
	}
}

// ibUsing takes "[0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>", also with merged devices in braces.
func (r *Reader) ibUsing(t *thread, msg, rest []byte) {
	if i := bytes.Index(rest, []byte("; OOB ")); i >= 0 {
		if ifname, addr, port, ok := parseAddr(bytes.TrimSpace(rest[i+len("; OOB "):])); ok && t.proc.OOB == nil {
			t.proc.OOB = &Address{r.str(ifname), r.str(addr), port, r.evidence(msg)}
		}
		rest = rest[:i]
	}
	r.nics(t, msg, rest)
}

// nics reads the list of devices.
func (r *Reader) nics(t *thread, msg, list []byte) {
	relaxed := contains(list, "[RO]")
	c := at(list)
	for c.blanks(); len(c.b) > 0; c.blanks() {
		if !c.lit("[") {
			return
		}
		n := NIC{Index: c.num(), Relaxed: relaxed}
		if !c.lit("]") {
			return
		}
		if c.try("={") {
			n.merged(r, c.until("}"))
		} else {
			n.port(r, c.word())
		}
		if !c.bad {
			r.addNIC(t.proc, n, msg)
		}
	}
}

// port reads "mlx5_0:1/IB/SHARP".
func (n *NIC) port(r *Reader, b []byte) {
	b = bytes.TrimRight(b, ",")
	name := cutAt(b, ":")
	c := at(after(b, ":"))
	n.Name = r.str(name)
	if i := bytes.LastIndexByte(c.b, ':'); i >= 0 { // with the uverbs device between
		c.b = c.b[i+1:]
	}
	n.Port = c.num()
	if c.try("/") {
		n.SHARP = contains(c.b, "/SHARP")
		n.Link = r.str(cutAt(c.b, "/"))
	}
}

// merged reads "[0] mlx5_2:1/RoCE, [1] mlx5_3:1/RoCE".
func (n *NIC) merged(r *Reader, b []byte) {
	for _, part := range bytes.Split(b, []byte(", ")) {
		c := at(part)
		if c.lit("[") {
			c.until("] ")
		}
		var one NIC
		one.port(r, c.word())
		n.Merged = append(n.Merged, one.Name)
		n.Port, n.Link, n.SHARP = one.Port, one.Link, one.SHARP
	}
	n.Name = strings.Join(n.Merged, "+")
}

// addNIC adds a device or fills in what another line said about it.
func (r *Reader) addNIC(p *process, n NIC, msg []byte) {
	for i := range p.NICs {
		old := &p.NICs[i]
		if old.Name != n.Name || old.Port != n.Port && n.Port > 0 && old.Port > 0 {
			continue
		}
		old.Relaxed = old.Relaxed || n.Relaxed
		old.SHARP = old.SHARP || n.SHARP
		if old.Link == "" {
			old.Link = n.Link
		}
		if old.SpeedMbps == 0 {
			old.SpeedMbps = n.SpeedMbps
		}
		if old.PCIPath == "" {
			old.PCIPath, old.Provider, old.Adaptive = n.PCIPath, n.Provider, n.Adaptive
		}
		return
	}
	if len(p.NICs) >= maxKinds {
		r.drop("NICs")
		return
	}
	n.At = r.evidence(msg)
	p.NICs = append(p.NICs, n)
}

// ibPort takes "NET/IB: [0] mlx5_0:uverbs0:1/RoCE provider=Mlx5 speed=200000 context=… pciPath=… ar=0".
func ibPort(r *Reader, t *thread, msg, rest []byte) {
	c := at(rest)
	n := NIC{Index: c.num()}
	c.lit("] ")
	n.port(r, c.word())
	t.proc.form(27, 99)
	for !c.bad && len(c.b) > 0 {
		w := c.word()
		key, value := cutAt(w, "="), after(w, "=")
		v := at(value)
		switch string(key) {
		case "provider":
			n.Provider = r.str(value)
		case "speed":
			n.SpeedMbps = v.num()
		case "pciPath":
			n.PCIPath = r.str(value)
		case "ar":
			on := v.num() != 0
			n.Adaptive = &on
		}
		c.blanks()
	}
	if !c.bad {
		r.addNIC(t.proc, n, msg)
	}
}

// virtualNIC takes "[2] name=mlx5_0+mlx5_1 speed=400000 ndevs=2". A device of one port is not a new one.
func virtualNIC(r *Reader, t *thread, msg, rest []byte) {
	c := at(rest)
	n := NIC{Virtual: true}
	c.lit("[")
	n.Index = c.num()
	c.lit("] name=")
	n.Name = r.str(c.word())
	c.lit(" speed=")
	n.SpeedMbps = c.num()
	if c.bad {
		return
	}
	t.proc.form(24, 99)
	if strings.Contains(n.Name, "+") {
		n.Merged = strings.Split(n.Name, "+")
	}
	r.addNIC(t.proc, n, msg)
}

// nicGDR takes "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'".
func nicGDR(r *Reader, t *thread, msg, rest []byte) {
	g := NICGDR{Enabled: hasPrefix(rest, "Enabled"), Index: -1, Net: r.str(bytes.TrimSpace(cutAt(msg[len("NET/"):], " :")))}
	c := at(rest)
	if !c.find("for HCA ") {
		return
	}
	g.Index = c.num()
	if c.find("'") {
		g.NIC = r.str(c.until("'"))
	}
	for _, old := range t.proc.NICGDR {
		if old.Index == g.Index && old.NIC == g.NIC && old.Net == g.Net && old.Enabled == g.Enabled {
			return
		}
	}
	if !c.bad && len(t.proc.NICGDR) < maxKinds {
		g.At = r.evidence(msg)
		t.proc.NICGDR = append(t.proc.NICGDR, g)
	}
}

// gdr takes the decision for a GPU and a NIC, in its five wordings.
func gdr(r *Reader, t *thread, msg, rest []byte) {
	g := GDR{Enabled: hasPrefix(rest, "Enabled")}
	c := at(rest)
	if !c.find("for GPU") {
		return
	}
	switch {
	case c.try(" "):
		g.GPU = r.str(c.until(" / HCA "))
		g.NIC = r.str(c.until(" ("))
	case c.try("/"):
		g.GPU = r.str(c.until(" - NET/"))
		g.NIC = r.str(c.until(" ("))
		t.proc.form(29, 29)
	}
	g.PXN = contains(c.b, "PXN")
	if !c.find("distance ") {
		return
	}
	g.Distance = c.num()
	if !c.try(" <= ") {
		c.lit(" > ")
	}
	g.Limit = c.num()
	if c.find("read ") {
		read := c.num()
		g.Read = &read
	}
	if c.find("mode ") {
		g.Mode = r.str(c.word())
	}
	if c.bad {
		return
	}
	x := r.rankOf(t)
	for _, old := range x.GDR {
		if old.GPU == g.GPU && old.NIC == g.NIC && old.Enabled == g.Enabled {
			return
		}
	}
	if len(x.GDR) >= maxList {
		r.drop("GDR decisions")
		return
	}
	g.At = r.evidence(msg)
	x.GDR = append(x.GDR, g)
}

func socketUsing(r *Reader, t *thread, msg, rest []byte) {
	c := at(rest)
	for c.blanks(); len(c.b) > 0; c.blanks() {
		c.lit("[")
		c.num()
		c.lit("]")
		w := c.word()
		if c.bad {
			return
		}
		ifname, addr, port, ok := parseAddr(w)
		if !ok {
			continue
		}
		seen := false
		for _, a := range t.proc.SocketIfs {
			seen = seen || a.Interface == string(ifname) && a.Addr == string(addr)
		}
		if !seen && len(t.proc.SocketIfs) < maxKinds {
			t.proc.SocketIfs = append(t.proc.SocketIfs, Address{r.str(ifname), r.str(addr), port, r.evidence(msg)})
		}
	}
}

var mtuBytes = [...]int{0, 256, 512, 1024, 2048, 4096}

// qp takes the line of a connection of NET/IB: "… Dev 0 Port 1 qpn 1234 mtu 5 GID 3 (…)" or "… LID 12".
func qp(r *Reader, t *thread, msg, _ []byte) {
	q := QP{Dev: -1, GID: -1}
	c := at(msg)
	if c.find("IbDev ") || c.find("Dev ") {
		q.Dev = c.num()
	}
	if c.find("Port ") {
		q.Port = c.num()
	}
	if c.find("mtu ") {
		if n := c.num(); n > 0 && n < len(mtuBytes) {
			q.MTU = mtuBytes[n]
		}
	}
	if c.find("GID ") {
		q.GID = c.num()
	}
	if c.bad {
		return
	}
	for i := range t.proc.QPs {
		if o := &t.proc.QPs[i]; o.Dev == q.Dev && o.Port == q.Port && o.MTU == q.MTU && o.GID == q.GID {
			o.Count++
			return
		}
	}
	if len(t.proc.QPs) < maxKinds {
		q.Count, q.At = 1, r.evidence(msg)
		t.proc.QPs = append(t.proc.QPs, q)
	}
}

// retry takes "Call to connect returned Connection refused, retrying" and its kin.
func retry(r *Reader, t *thread, msg, _ []byte) {
	why := cutAt(after(msg, " returned "), ", retrying")
	peer := cutAt(after(msg, "connect to "), " returned ")
	if i := bytes.IndexByte(peer, '<'); i > 0 {
		peer = peer[:i]
	}
	for i := range t.proc.Retries {
		if o := &t.proc.Retries[i]; o.Peer == string(peer) && o.Reason == string(why) {
			o.Count++
			return
		}
	}
	if len(t.proc.Retries) < maxKinds {
		t.proc.Retries = append(t.proc.Retries, Retry{r.str(peer), r.str(why), 1, r.evidence(msg)})
	}
}

// oddShapes takes messages whose first word is a name.
func (r *Reader) oddShapes(t *thread, msg []byte) bool {
	switch {
	case contains(msg, ": connect returned ") || contains(msg, ": connect to ") || contains(msg, "retrying"):
		retry(r, t, msg, nil)
	case contains(msg, "sync event") || contains(msg, "sync fatal event") || contains(msg, "Got completion"):
		r.ibError(t, msg)
	case contains(msg, " is empty, ignoring"):
		r.notice(t, "affinity-empty", msg)
	default:
		return false
	}
	return true
}
