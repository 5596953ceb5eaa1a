package ncclenv

import (
	"regexp"
	"slices"
	"strings"
)

var (
	logSet     = regexp.MustCompile(`\b([A-Z][A-Z0-9_]+) set (?:by environment )?to (.*)$`)
	logInvalid = regexp.MustCompile(`\bInvalid value (.*) for ([A-Z][A-Z0-9_]+), using default`)
	logReset   = regexp.MustCompile(`\breset to (NCCL_[A-Z0-9_]+)=(.*)$`)
	logVersion = regexp.MustCompile(`\bNCCL version (\d+\.\d+\.\d+)`)
	wholeStop  = regexp.MustCompile(`^-?\d+\.$`)
	ansi       = regexp.MustCompile("\x1b\\[[0-9;]*m")
)

// logReader takes from an NCCL log what it says about settings, host by host. A log shows a variable only when a process first needed it, and numbers
// as they were understood, so what is missing is not known.
type logReader struct {
	name   string
	seen   bool
	byHost map[string]*collector
	hosts  []string
}

func newLogReader(name string) *logReader {
	return &logReader{name: name, byHost: map[string]*collector{}}
}

// line tells whether it is one of NCCL's.
func (l *logReader) line(line string, n int) bool {
	if !strings.Contains(line, "NCCL INFO") && !strings.Contains(line, "NCCL WARN") && !strings.Contains(line, "NCCL version") &&
		!strings.Contains(line, " set by environment to ") {
		return false
	}
	l.seen = true
	if !slices.ContainsFunc([]string{" set ", "Invalid value", " reset to ", "NCCL version"}, func(w string) bool { return strings.Contains(line, w) }) {
		return true
	}
	if strings.ContainsRune(line, '\x1b') {
		line = ansi.ReplaceAllString(line, "")
	}
	c := l.of(logHost(line))
	if strings.Contains(line, "NCCL version") {
		if m := logVersion.FindStringSubmatch(line); m != nil {
			c.src.NCCL, _ = ParseVersion(m[1])
			return true
		}
	}
	for _, f := range []struct {
		key         string // the regular expressions take much longer than looking for this
		re          *regexp.Regexp
		name, value int
	}{{" reset to ", logReset, 1, 2}, {"Invalid value ", logInvalid, 2, 1}, {" set ", logSet, 1, 2}} {
		if !strings.Contains(line, f.key) {
			continue
		}
		m := f.re.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		name, value := m[f.name], m[f.value]
		if name == "NCCL_MAX_P2P_PEERS" { // the log's own name for it
			name = "NCCL_P2P_MAX_PEERS"
		}
		if v := Lookup(name); wholeStop.MatchString(value) && (v == nil || v.integer()) {
			value = strings.TrimSuffix(value, ".")
		}
		if !Interesting(name) {
			return true
		}
		s := Setting{Name: name, Value: value, From: l.name, Line: n}
		if was := c.set(s); was != nil && was.Value != value && f.re != logReset {
			l.differ(c, was, s)
		}
		return true
	}
	return true
}

// logHost finds the host in "… host:pid:tid [device] NCCL INFO …", whatever a launcher put in front. By hand, because logs are long.
func logHost(line string) string {
	i := strings.Index(line, "NCCL INFO")
	if i < 0 {
		return ""
	}
	front := strings.TrimRight(line[:i], " ")
	if open := strings.LastIndexByte(front, '['); open >= 0 && strings.HasSuffix(front, "]") {
		front = strings.TrimRight(front[:open], " ")
	}
	front = front[strings.LastIndexAny(front, " \t>]|")+1:]
	parts := strings.Split(front, ":")
	n := len(parts)
	if n < 3 || parts[n-3] == "" || strings.Trim(parts[n-1]+parts[n-2], "0123456789") != "" {
		return ""
	}
	return parts[n-3]
}

// differ tells that processes of one host have different values. A NIC list a rank is usual, so that one may.
func (l *logReader) differ(c *collector, was *Setting, s Setting) {
	if slices.ContainsFunc(c.src.Found, func(f Finding) bool { return f.Name == s.Name }) || s.Name == "NCCL_IB_HCA" {
		return
	}
	c.src.Found = append(c.src.Found, s.about(Odd, "differs-within", "processes disagree: %s in line %d, %s here", show(was.Value), was.Line, show(s.Value)).
		do("start all ranks with the same settings"))
}

func (l *logReader) of(host string) *collector {
	c := l.byHost[host]
	if c == nil && len(l.hosts) > 4096 {
		return l.byHost[l.hosts[0]]
	}
	if c == nil {
		c = newCollector(host, "log", false)
		c.src.Partial = true
		l.byHost[host] = c
		l.hosts = append(l.hosts, host)
	}
	return c
}

func (l *logReader) sources() []*Source {
	if len(l.hosts) == 0 {
		l.of("")
	}
	// The bare version line carries no host: it holds for all.
	var version Version
	for _, h := range l.hosts {
		if v := l.byHost[h].src.NCCL; !v.IsZero() {
			version = v
		}
	}
	slices.Sort(l.hosts)
	// A host that tells nothing is silent or made up by a torn line: it does not count beside others.
	anySet := slices.ContainsFunc(l.hosts, func(h string) bool { return len(l.byHost[h].src.Settings) > 0 })
	var out []*Source
	for _, h := range l.hosts {
		src := l.byHost[h].finish()
		if h == "" {
			src.Name = l.name
		}
		if len(src.Settings) == 0 && (anySet || len(out) > 0) {
			continue
		}
		if src.NCCL.IsZero() {
			src.NCCL = version
		}
		out = append(out, src)
	}
	return out
}
