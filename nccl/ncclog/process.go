package ncclog

import (
	"bytes"
	"fmt"
)

// processForms are messages about what a process decides once.
var processForms = []infoForm{
	{"NCCL version ", versionLine},
	{"NCCL git version ", func(r *Reader, t *thread, msg, rest []byte) {
		t.proc.form(29, 99)
		if t.proc.Git == nil {
			t.proc.Git = &Fact[string]{r.str(rest), r.evidence(msg)}
		}
	}},
	{"cudaDriverVersion ", func(r *Reader, t *thread, msg, rest []byte) {
		c := at(rest)
		if n := c.num(); !c.bad && t.proc.Driver == nil {
			t.proc.Driver = &Fact[string]{fmt.Sprintf("%d.%d", n/1000, n%1000/10), r.evidence(msg)}
		}
	}},
	{"Bootstrap : Using ", func(r *Reader, t *thread, msg, rest []byte) { t.proc.form(10, 23); r.bootstrapAddr(t, msg, rest) }},
	{"Bootstrap: Using ", func(r *Reader, t *thread, msg, rest []byte) { t.proc.form(24, 99); r.bootstrapAddr(t, msg, rest) }},
	{"Comm config ", commConfig},
	{"DMA-BUF is available on GPU device ", func(r *Reader, t *thread, msg, rest []byte) {
		c := at(rest)
		dev := c.num()
		for _, d := range t.proc.DMABUF {
			if d.Value == dev {
				return
			}
		}
		if !c.bad && len(t.proc.DMABUF) < maxList {
			t.proc.DMABUF = append(t.proc.DMABUF, Fact[int]{dev, r.evidence(msg)})
		}
	}},
	{"NVLS multicast support is ", multicast},
	{"Setting affinity for GPU ", func(r *Reader, t *thread, msg, rest []byte) {
		r.milestone(r.rankOf(t), "topology", msg)
		r.affinity(t, msg, rest, " to ")
	}},
	{"ncclTopoGetCpuAffinity: Affinity for GPU ", func(r *Reader, t *thread, msg, rest []byte) { r.affinity(t, msg, rest, " is ") }},
	{"MNNVL busId ", fabric},
	{"RAS client listening socket at ", func(r *Reader, t *thread, msg, rest []byte) {
		t.proc.form(24, 99)
		if t.proc.RAS == nil {
			t.proc.RAS = &Fact[string]{r.str(rest), r.evidence(msg)}
		}
	}},
	{"RAS declaring peer ", rasEvent}, {"RAS collective", rasEvent}, {"RAS connect timeout", rasEvent}, {"RAS connect", nil}, {"RAS termination", rasEvent},
	{"Could not enable P2P between", p2pOff}, {"P2P is disabled between", p2pOff}, {"peer query failed between", p2pOff},
	{"Loaded NVML from ", func(r *Reader, t *thread, msg, rest []byte) { r.library(t, "NVML", rest, msg) }},
	{"Plugin Path : ", func(r *Reader, t *thread, msg, rest []byte) { r.library(t, "net plugin", rest, msg) }},
	{"Symmetric memory is not supported", func(r *Reader, t *thread, msg, _ []byte) {
		t.proc.form(29, 99)
		r.notice(t, "no-symmetric-memory", msg)
	}},
	{"cuMem host allocations do not appear", noticeForm("cumem-host-fallback")},
	{"ncclMaxSharedMem ", noticeForm("max-shared-memory")},
	{"CollNet is not supported", noticeForm("collnet-off")},
	{"Cannot initialize CollNet", noticeForm("collnet-off")},
	{"Could not find a path for pattern", noticeForm("no-path-for-pattern")},
	{"Could not find NIC for rank", noticeForm("no-nic-for-rank")},
	{"Could not find any local path", noticeForm("no-local-path")},
	{"Could not open XML", noticeForm("topology-file-unreadable")},
	{"Loading topology file ", noticeForm("topology-file")},
	{"Invalid value ", noticeForm("invalid-value")},
	{"Unknown CTA policy", noticeForm("invalid-value")},
	{"NCCL_CTA_POLICY", noticeForm("cta-policy")},
	{"Failed to bind NVLink SHARP", noticeForm("nvls-bind-failed")},
	{"Detected mixed local Net device counts", noticeForm("mixed-net-devices")},
	{"Setting NCCL_", nil},
}

func versionLine(r *Reader, t *thread, msg, rest []byte) {
	number, cuda, ok := splitVersion(rest)
	if !ok {
		return
	}
	p := t.proc
	if p.Version == nil {
		p.Version = &Fact[string]{r.str(number), r.evidence(msg)}
		p.CUDABuild = r.str(cuda)
		c := at(number)
		c.num()
		c.lit(".")
		p.minor = c.num()
	}
	r.sawVersion(number, cuda, p.Index, msg)
}

// splitVersion takes apart "2.27.7+cuda12.8" and what else may follow.
func splitVersion(b []byte) (number, cuda []byte, ok bool) {
	c := at(b)
	w := c.word()
	if c.bad || len(w) == 0 || w[0]-'0' >= 10 {
		return nil, nil, false
	}
	number = cutAt(w, "+")
	return number, after(w, "+cuda"), true
}

func (r *Reader) bareVersion(msg []byte) {
	if number, cuda, ok := splitVersion(bytes.TrimPrefix(msg, []byte("version "))); ok {
		r.sawVersion(number, cuda, -1, msg)
	}
}

func (r *Reader) sawVersion(number, cuda []byte, proc int, msg []byte) {
	for i := range r.log.Versions {
		v := &r.log.Versions[i]
		if v.NCCL != string(number) || v.CUDA != string(cuda) {
			continue
		}
		v.Count++
		if proc >= 0 {
			v.Bare = false
			for _, p := range v.Processes {
				if p == proc {
					return
				}
			}
			v.Processes = append(v.Processes, proc)
		}
		return
	}
	if len(r.log.Versions) >= maxKinds {
		r.drop("versions")
		return
	}
	v := Version{NCCL: r.str(number), CUDA: r.str(cuda), Bare: proc < 0, Count: 1, At: r.evidence(msg)}
	if proc >= 0 {
		v.Processes = []int{proc}
	}
	r.log.Versions = append(r.log.Versions, v)
}

// parseAddr takes apart "eth0:10.0.4.51<0>". A net device has no "<".
func parseAddr(b []byte) (ifname, addr []byte, port int, ok bool) {
	i := bytes.IndexByte(b, ':')
	if i <= 0 {
		return nil, nil, 0, false
	}
	ifname, addr = b[:i], b[i+1:]
	if j := bytes.IndexByte(addr, '<'); j >= 0 {
		c := at(addr[j+1:])
		port = c.num()
		addr = addr[:j]
	}
	return ifname, addr, port, true
}

func (r *Reader) bootstrapAddr(t *thread, msg, rest []byte) {
	ifname, addr, port, ok := parseAddr(bytes.TrimSpace(rest))
	if ok && t.proc.Bootstrap == nil {
		t.proc.Bootstrap = &Address{r.str(ifname), r.str(addr), port, r.evidence(msg)}
	}
}

// setting takes "X set by environment to Y", "X set to Y" and the like.
func (r *Reader) setting(t *thread, msg []byte) bool {
	i := bytes.IndexByte(msg, ' ')
	if i <= 0 {
		return false
	}
	name, rest := msg[:i], msg[i:]
	from := FromEcho
	var value []byte
	switch {
	case hasPrefix(rest, " set by environment to "):
		from, value = FromEnvironment, rest[len(" set by environment to "):]
	case hasPrefix(rest, " set to ") && isUpper(name):
		value = rest[len(" set to "):]
	case isUpper(name) && (contains(rest, "too low") || contains(rest, "too high") || contains(rest, "invalid") || contains(rest, "ignor") || contains(rest, "unknown")):
		from, value = FromRefused, bytes.TrimSpace(rest)
	default:
		return false
	}
	value = bytes.TrimRight(value, " ")
	if from == FromEnvironment && hasSuffix(value, ".") && isNumber(value[:len(value)-1]) { // only numbers are printed with a full stop
		value = value[:len(value)-1]
	}
	r.addSetting(&t.proc.Env, Setting{Name: r.str(name), Value: r.str(value), From: from}, msg)
	return true
}

func isUpper(b []byte) bool {
	for _, c := range b {
		if (c < 'A' || c > 'Z') && c-'0' >= 10 && c != '_' {
			return false
		}
	}
	return len(b) > 3
}

func isNumber(b []byte) bool {
	if len(b) > 1 && b[0] == '-' {
		b = b[1:]
	}
	for _, c := range b {
		if c-'0' >= 10 {
			return false
		}
	}
	return len(b) > 0
}

func (r *Reader) addSetting(list *[]Setting, s Setting, msg []byte) {
	for i := range *list {
		if old := &(*list)[i]; old.Name == s.Name && old.Value == s.Value && old.From == s.From {
			return
		}
	}
	if len(*list) >= maxList {
		r.drop("settings")
		return
	}
	s.At = r.evidence(msg)
	*list = append(*list, s)
}

func commConfig(r *Reader, t *thread, msg, rest []byte) {
	c := at(rest)
	s := Setting{Name: r.str(c.word()), From: FromProgram}
	switch {
	case c.try(" set to "):
		s.Value = r.str(bytes.TrimRight(c.b, " "))
	case c.try(" reset to "):
		s.Value, s.From = r.str(bytes.TrimRight(c.b, " ")), FromOverride
	default:
		return
	}
	t.proc.form(18, 99)
	p := t.proc
	if p.configUsed { // these are about the next communicator
		p.config, p.configUsed = nil, false
	}
	r.addSetting(&p.config, s, msg)
}

func multicast(r *Reader, t *thread, msg, rest []byte) {
	c := at(rest)
	m := Multicast{Available: !c.try("not ")}
	t.proc.form(18, 99)
	if !c.lit("available on dev ") {
		return
	}
	m.Dev = c.num()
	if c.try(" (NVLS_NCHANNELS ") {
		m.Channels = c.num()
	}
	for _, old := range t.proc.Multicast {
		if old.Dev == m.Dev && old.Available == m.Available {
			return
		}
	}
	if !c.bad && len(t.proc.Multicast) < maxList {
		m.At = r.evidence(msg)
		t.proc.Multicast = append(t.proc.Multicast, m)
	}
}

// affinity keeps "GPU 0: 0-63".
func (r *Reader) affinity(t *thread, msg, rest []byte, sep string) {
	i := bytes.Index(rest, []byte(sep))
	if i < 0 || i > 10 {
		return
	}
	mask := rest[i+len(sep):]
	if hasPrefix(mask, "empty, ignoring") {
		r.notice(t, "affinity-empty", msg)
		mask = []byte("empty")
	}
	if len(mask) > 200 {
		mask = mask[:200]
	}
	var buf [256]byte
	value := append(append(append(buf[:0], "GPU "...), rest[:i]...), ": "...)
	addFact(r, &t.proc.Affinity, append(value, mask...), msg)
}

func (r *Reader) proxyCore(t *thread, msg, name, rest []byte) {
	c := at(rest)
	if !c.lit("Device ") {
		return
	}
	p := ProxyCore{Dev: c.num()}
	c.lit(" CPU core ")
	p.Core = c.num()
	t.proc.form(23, 99)
	for _, old := range t.proc.ProxyCores {
		if old.Dev == p.Dev && old.Core == p.Core && old.Thread == string(name) {
			return
		}
	}
	if !c.bad && len(t.proc.ProxyCores) < maxList {
		p.Thread, p.At = r.str(name), r.evidence(msg)
		t.proc.ProxyCores = append(t.proc.ProxyCores, p)
	}
}

func fabric(r *Reader, t *thread, msg, rest []byte) {
	c := at(rest)
	m := MNNVL{State: -1}
	bus := c.word()
	c.lit(" fabric UUID ")
	uuid := c.word()
	c.lit(" cliqueId ")
	clique := c.word()
	if c.bad {
		return
	}
	if c.try(" state ") {
		m.State = c.num()
	}
	if c.try(" healthMask ") {
		m.HealthMask = r.str(c.word())
	}
	m.BusID = r.str(bytes.TrimPrefix(bus, []byte("0x")))
	for _, old := range t.proc.MNNVL {
		if old.BusID == m.BusID {
			return
		}
	}
	if len(t.proc.MNNVL) < maxList {
		m.FabricUUID, m.CliqueID, m.At = r.str(uuid), r.str(clique), r.evidence(msg)
		t.proc.MNNVL = append(t.proc.MNNVL, m)
	}
}

func rasEvent(r *Reader, t *thread, msg, _ []byte) { addFact(r, &t.proc.RASEvents, msg, msg) }

func p2pOff(r *Reader, t *thread, msg, _ []byte) { addFact(r, &t.proc.P2POff, msg, msg) }

func (r *Reader) library(t *thread, name string, path, msg []byte) {
	path = bytes.TrimSpace(path)
	for _, l := range t.proc.Libraries {
		if l.Name == name && l.Path == string(path) {
			return
		}
	}
	if len(t.proc.Libraries) < maxList {
		t.proc.Libraries = append(t.proc.Libraries, Library{name, r.str(path), r.evidence(msg)})
	}
}
