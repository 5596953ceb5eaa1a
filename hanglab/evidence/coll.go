package evidence

import (
	"bytes"
	"strconv"
	"strings"
	"time"
)

// Limits of what is kept of NCCL's logs.
const (
	commCallsEnd  = 4096    // calls kept of a communicator, at its beginning and at its end
	commCallsFew  = 256     // the same once commCallsAll are kept
	commCallsAll  = 2 << 20 // calls of one input
	collProcesses = 1 << 16
	collComms     = 1 << 16
	collNames     = 1 << 12 // different names of operations, hosts
)

// collReader takes the lines that NCCL itself writes, of one input: calls, the making and ending of communicators, warnings. It holds a bounded part
// of the calls; facts go to emit at once.
type collReader struct {
	emit  func(Fact)
	procs map[string]*ncclProc // by everything up to the level: "host:pid:tid [dev]"
	ids   map[procKey]*ncclProc
	hosts map[string]bool
	names map[string]string
	comms []*collComm
	kept  int // calls
	rank  int // of whom the present line is, by its prefix or the input; -1
}

// procKey is a process; NCCL cuts its host's name at the first dot.
type procKey struct {
	host string
	pid  int
}

// ncclProc is a process that writes NCCL's lines.
type ncclProc struct {
	procKey
	version  string
	comms    map[uint64]*collComm // that live, by their address
	last     *collComm            // of the latest call
	lastPtr  uint64
	settings []CommSetting
	device   int
}

// collComm is a Comm while it is read: the last calls are in a ring.
type collComm struct {
	*Comm
	proc  *ncclProc
	end   []CommCall
	n     int // calls
	limit int
	ended bool
}

// newCollReader makes a reader for one input.
func newCollReader(emit func(Fact)) *collReader {
	return &collReader{emit: emit, procs: map[string]*ncclProc{}, ids: map[procKey]*ncclProc{}, hosts: map[string]bool{},
		names: map[string]string{}, rank: -1}
}

// line takes one line of a log, whatever is in it, and tells whether anything of it was NCCL's. Writers that share a stream leave several records on a line.
func (c *collReader) line(line []byte, at Where) bool {
	i, warn := ncclLevel(line)
	if i < 0 {
		return false
	}
	before := line[:i]
	for {
		rest := line[i+len("NCCL INFO"):]
		next, nextWarn := ncclLevel(rest)
		msg := rest
		if next >= 0 {
			cut := recordStart(rest[:next])
			msg = rest[:cut]
			c.record(before, msg, warn, line, at)
			before = rest[cut:next]
			i, warn, line = next, nextWarn, rest
			continue
		}
		c.record(before, msg, warn, line, at)
		return true
	}
}

// ncclLevel finds "NCCL INFO" or "NCCL WARN", -1: neither.
func ncclLevel(b []byte) (at int, warn bool) {
	for from := 0; ; {
		i := bytes.Index(b[from:], []byte("NCCL "))
		if i < 0 || from+i+9 > len(b) {
			return -1, false
		}
		i += from
		switch string(b[i+5 : i+9]) {
		case "INFO":
			return i, false
		case "WARN":
			return i, true
		}
		from = i + 5
	}
}

// recordStart is where in b the "host:pid:tid [dev]" of the next record begins: what stands before that level, seen from its end.
func recordStart(b []byte) int {
	_, start, _, _ := splitNCCLPrefix(b)
	if start < 0 {
		return len(b)
	}
	return start
}

// splitNCCLPrefix finds "host:pid:tid [dev] place" at the end of b: the key that is equal for all lines of a thread, where it begins, and host and pid.
func splitNCCLPrefix(b []byte) (key []byte, start int, host []byte, pid int) {
	end := len(b)
	for { // the last "[n]" with "host:pid:tid " before it; a warning has its place in the source behind that
		i := bytes.LastIndexByte(b[:end], ']')
		if i < 0 {
			break
		}
		open := bytes.LastIndexByte(b[:i], '[')
		if open > 1 && b[open-1] == ' ' && isNumber(b[open+1:i]) {
			if start, host, pid, ok := hostPidTid(b[:open-1]); ok {
				return b[start : i+1], start, host, pid
			}
		}
		end = i
	}
	trimmed := bytes.TrimRight(b, " ") // old lines and calls have no device
	if start, host, pid, ok := hostPidTid(trimmed); ok {
		return trimmed[start:], start, host, pid
	}
	return nil, -1, nil, 0
}

func isNumber(b []byte) bool {
	if len(b) > 0 && b[0] == '-' {
		b = b[1:]
	}
	for _, c := range b {
		if c-'0' > 9 {
			return false
		}
	}
	return len(b) > 0
}

// hostPidTid reads "host:pid:tid" at the end of b.
func hostPidTid(b []byte) (start int, host []byte, pid int, ok bool) {
	i := len(b)
	for i > 0 && b[i-1]-'0' < 10 {
		i--
	}
	if i == len(b) || i < 3 || b[i-1] != ':' {
		return 0, nil, 0, false
	}
	j := i - 1
	for j > 0 && b[j-1]-'0' < 10 {
		j--
	}
	if j == i-1 || j < 2 || b[j-1] != ':' || i-1-j > 10 {
		return 0, nil, 0, false
	}
	for _, d := range b[j : i-1] {
		pid = pid*10 + int(d-'0')
	}
	start = j - 1
	for start > 0 && !endsHostName(b[start-1]) {
		start--
	}
	return start, b[start : j-1], pid, start < j-1
}

// endsHostName tells what cannot be in a host's name, but in a label in front of it.
func endsHostName(c byte) bool {
	return c <= ' ' || bytes.IndexByte([]byte(":>|][)(\"'=,"), c) >= 0
}

// record takes one record: what stands before its level, its message, and the whole line for evidence.
func (c *collReader) record(before, msg []byte, warn bool, line []byte, at Where) {
	p := c.process(before)
	msg = bytes.TrimPrefix(msg, []byte(" "))
	if warn {
		c.warn(p, before, msg, line, at)
		return
	}
	if len(msg) > 0 {
		c.info(p, before, msg, line, at)
	}
}

// process finds whose line it is; lines without a prefix share one that has no name.
func (c *collReader) process(before []byte) *ncclProc {
	key, _, host, pid := splitNCCLPrefix(before)
	if p := c.procs[string(key)]; p != nil {
		return p
	}
	id := procKey{host: c.name(host), pid: pid}
	if key == nil {
		id.pid = -1
	}
	p := c.ids[id]
	if p == nil {
		p = c.glued(id)
	}
	if p == nil {
		p = &ncclProc{procKey: id, comms: map[uint64]*collComm{}, device: device(key)}
		if len(c.ids) < collProcesses {
			c.ids[id] = p
			c.hosts[id.host] = true
		}
	}
	if len(c.procs) < 4*collProcesses {
		c.procs[string(key)] = p
	}
	return p
}

// glued finds the process when the end of a torn record stands right before the host's name.
func (c *collReader) glued(id procKey) *ncclProc {
	for host := range c.hosts {
		if host == "" || len(host) >= len(id.host) || !strings.HasSuffix(id.host, host) {
			continue
		}
		if p := c.ids[procKey{host, id.pid}]; p != nil {
			return p
		}
	}
	return nil
}

// name is b as a string; equal ones share their memory.
func (c *collReader) name(b []byte) string {
	if s, ok := c.names[string(b)]; ok {
		return s
	}
	s := strings.ToValidUTF8(string(b[:min(len(b), 200)]), "?")
	if len(c.names) < collNames {
		c.names[s] = s
	}
	return s
}

// info takes a message of level INFO.
func (c *collReader) info(p *ncclProc, before, msg, line []byte, at Where) bool {
	if i := bytes.IndexByte(msg[:min(len(msg), 32)], ':'); i > 0 && bytes.HasPrefix(msg[i:], []byte(": opCount ")) {
		return c.call(p, msg[:i], msg[i+len(": opCount "):], at)
	}
	if msg[0] >= 'a' && msg[0] <= 'z' {
		if msg = withoutPlace(msg); len(msg) == 0 {
			return false
		}
		if i := bytes.IndexByte(msg[:min(len(msg), 32)], ':'); i > 0 && bytes.HasPrefix(msg[i:], []byte(": opCount ")) {
			return c.call(p, msg[:i], msg[i+len(": opCount "):], at)
		}
	}
	switch msg[0] {
	case 'C': // "Channel …": the most frequent lines that say nothing here
		return false
	case '[':
		if rest, ok := bytes.CutPrefix(msg, []byte("[Service thread] Connection closed by localRank ")); ok {
			f := ncclFact(PeerClosed, p, before, line, at)
			if n, _, ok := leadingNumber(rest); ok {
				f.Detail = "localRank " + strconv.Itoa(n)
			}
			c.emit(f)
			return true
		}
		if bytes.HasPrefix(msg, []byte("[Rank ")) {
			return c.initLine(p, msg, before, line, at)
		}
	case 'c', 'n':
		return c.initLine(p, msg, before, line, at)
	case 'N':
		return c.setting(p, msg)
	}
	return false
}

// withoutPlace takes "init.cc:1234 (function) " from the front of a message: NCCL 2.30 begins some messages with it.
func withoutPlace(msg []byte) []byte {
	word, rest, _ := bytes.Cut(msg, []byte(" "))
	i := bytes.LastIndexByte(word, ':')
	if i < 3 || !isNumber(word[i+1:]) || !bytes.ContainsRune(word[:i], '.') || len(rest) == 0 || rest[0] != '(' {
		return msg
	}
	_, rest, ok := bytes.Cut(rest, []byte(") "))
	if !ok {
		return msg
	}
	return rest
}

// setting takes "NCCL version 2.28.9+cuda13.0" and "NCCL_ALGO set by environment to Ring.".
func (c *collReader) setting(p *ncclProc, msg []byte) bool {
	if rest, ok := bytes.CutPrefix(msg, []byte("NCCL version ")); ok {
		word, _, _ := bytes.Cut(rest, []byte("+"))
		p.version = c.name(bytes.TrimSpace(word))
		return true
	}
	name, value, ok := bytes.Cut(msg, []byte(" set by environment to "))
	if !ok || !bytes.HasPrefix(name, []byte("NCCL_")) || len(p.settings) >= 256 {
		return false
	}
	value = bytes.TrimSuffix(bytes.TrimSpace(value), []byte("."))
	s := CommSetting{c.name(name), c.name(value)}
	for _, old := range p.settings {
		if old.Name == s.Name {
			return true
		}
	}
	p.settings = append(p.settings, s)
	return true
}

// finish gives the communicators in the order in which they appeared.
func (c *collReader) finish() []*Comm {
	out := make([]*Comm, 0, len(c.comms))
	for _, x := range c.comms {
		x.settle()
		x.Version, x.Settings = x.proc.version, x.proc.settings
		out = append(out, x.Comm)
	}
	return out
}

// device is the number in "host:pid:tid [3]", -1: none.
func device(key []byte) int {
	if i := bytes.LastIndexByte(key, '['); i >= 0 {
		if n, _, ok := leadingNumber(key[i+1:]); ok {
			return n
		}
	}
	return -1
}

// ncclFact starts a fact of a line of NCCL.
func ncclFact(kind FactKind, p *ncclProc, before, line []byte, at Where) Fact {
	f := newFact(kind, at, line)
	f.Time, f.Host, f.PID = stampIn(before), p.host, max(p.pid, 0)
	return f
}

// stampIn finds a time such as "[2026-01-02 10:24:28]" or "2026-01-02T10:24:28" in what stands before a message.
func stampIn(b []byte) time.Time {
	for i := 0; i+19 <= len(b); i++ {
		if b[i] != '2' || b[i+4] != '-' || b[i+7] != '-' || b[i+13] != ':' {
			continue
		}
		text := string(b[i : i+19])
		for _, layout := range []string{time.DateTime, "2006-01-02T15:04:05"} {
			if t, err := time.Parse(layout, text); err == nil {
				return t
			}
		}
	}
	return time.Time{}
}

// leadingNumber reads a decimal number at the beginning of b, after blanks.
func leadingNumber(b []byte) (n int, rest []byte, ok bool) {
	b = bytes.TrimLeft(b, " ")
	i, sign := 0, 1
	if len(b) > 0 && b[0] == '-' {
		i, sign = 1, -1
	}
	from := i
	for i < len(b) && b[i]-'0' < 10 && i-from < 18 {
		n = n*10 + int(b[i]-'0')
		i++
	}
	return n * sign, b[i:], i > from
}

// numberBehind is the number that follows the first of the words that is there.
func numberBehind(b []byte, words ...string) (int, bool) {
	for _, w := range words {
		if _, rest, ok := bytes.Cut(b, []byte(w)); ok {
			if n, _, ok := leadingNumber(rest); ok {
				return n, true
			}
		}
	}
	return -1, false
}
