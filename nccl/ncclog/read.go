package ncclog

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
)

// Limits keep a long, broken or hostile log from taking the memory of the machine. What is left out is counted in Counts.Dropped.
const (
	maxLine      = 64 << 10 // bytes looked at in a line
	maxText      = 1000     // bytes kept as evidence
	maxProcesses = 1 << 16
	maxComms     = 1 << 14
	maxList      = 4096    // of a list of one process or rank
	maxEdges     = 1 << 16 // of one rank
	maxWarnings  = 1 << 14
	maxKinds     = 512 // unknown kinds of message, kinds of calls
	maxStrings   = 1 << 16
	maxOpen      = 64 // records whose tail has not come yet
	lastCalls    = 16
	maxRanks     = 1 << 20 // larger numbers are not ranks, but torn or made up
	maxChannels  = 1 << 10
)

// Reader puts logs together: one Add for each input, then Finish. It is not safe for concurrent use.
type Reader struct {
	log   *Log
	file  string
	n     int             // present line
	label []byte          // what stands before the prefix of the present record
	torn  bool            // the present record ends where another one begins
	nofix map[int]*thread // of the present file, by device: lines without a prefix

	threads map[string]*thread
	procs   map[procKey]*process
	list    []*process // in order
	hosts   []string
	byID    map[string]*comm
	comms   []*comm
	strings map[string]string
	unknown map[string]int // index in Counts.Unknown
	warned  map[warnKey]*Warning
	failed  map[string]int
	open    []openRecord
	matrix  *thread // whose table without prefixes is being printed
	scratch []byte
	forms   *[256][]infoForm
}

type procKey struct {
	host string
	pid  int
	file string // for lines without a prefix
}

// process is a Process while it is being read.
type process struct {
	*Process
	byPtr map[uint64]*rank // communicators by their address
	ranks []*rank
	last  *rank // of the latest call
	lastN int
	lastF string
	lo    int // versions 2.lo to 2.hi that the form of the lines allows
	hi    int
	minor int // of the printed version, 0 unknown

	config     []Setting // of the communicators that are made next
	configUsed bool
}

// thread is one thread of a process as far as its current device stays the same: several ranks of a process may share a thread.
type thread struct {
	proc *process
	tid  int
	dev  int
	cur  *rank // the communicator it works on
	next *rank // facts about one whose identity has not been printed yet
	cols []column

	sys   *System // the drawing that is being printed
	node  string
	stack []treeNode
}

// openRecord is a record that was cut and whose tail may follow on a later line.
type openRecord struct {
	t    *thread
	kind byte
	msg  []byte
}

// NewReader starts an empty log.
func NewReader() *Reader {
	return &Reader{
		log:     &Log{Counts: Counts{Dropped: map[string]int{}}},
		threads: map[string]*thread{}, procs: map[procKey]*process{}, byID: map[string]*comm{}, strings: map[string]string{},
		unknown: map[string]int{}, warned: map[warnKey]*Warning{}, failed: map[string]int{}, forms: formsByFirst(),
	}
}

// Read reads one log. The error is one of in; what came before it is returned too.
func Read(in io.Reader, name string) (*Log, error) {
	r := NewReader()
	err := r.Add(in, name)
	return r.Finish(), err
}

// Add reads one input to its end. name is for evidence. A line that it cannot read is counted and not the end. The error is one of in.
func (r *Reader) Add(in io.Reader, name string) error {
	r.file, r.n, r.nofix, r.matrix = name, 0, map[int]*thread{}, nil
	r.open = r.open[:0]
	file := File{Name: name}
	before := r.log.Counts.NCCL
	buf := bufio.NewReaderSize(in, maxLine)
	var err error
	for {
		var line []byte
		line, err = buf.ReadSlice('\n')
		file.Bytes += int64(len(line))
		if len(line) > 0 {
			r.n++
			r.log.Counts.Lines++
			full := errors.Is(err, bufio.ErrBufferFull)
			file.Cut = !full && line[len(line)-1] != '\n'
			r.line(line)
			if full {
				r.log.Counts.Long++
				err = skipLine(buf, &file.Bytes)
			}
		}
		if err != nil {
			break
		}
	}
	file.Lines, file.NCCL = r.n, r.log.Counts.NCCL-before
	if errors.Is(err, io.EOF) {
		err = nil
	} else if err != nil {
		file.Error = err.Error()
	}
	r.log.Files = append(r.log.Files, file)
	return err
}

func skipLine(buf *bufio.Reader, bytes *int64) error {
	for {
		rest, err := buf.ReadSlice('\n')
		*bytes += int64(len(rest))
		if !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
}

// line takes one raw line, which may hold several records or none.
func (r *Reader) line(line []byte) {
	for len(line) > 0 && (line[len(line)-1] == '\n' || line[len(line)-1] == '\r') {
		line = line[:len(line)-1]
	}
	if bytes.IndexByte(line, 0x1b) >= 0 {
		line = r.plain(line)
	}
	level, i := anchor(line)
	if level == noLevel {
		r.foreign(line)
		return
	}
	rest := line[i+level.len():]
	if level == levelBare {
		r.log.Counts.NCCL++
		r.bareVersion(rest)
		return
	}
	p := r.prefix(line[:i], level, false)
	if p.t == nil {
		r.foreign(line)
		return
	}
	for {
		nextLevel, j := anchor(rest)
		var next prefix
		if nextLevel != noLevel && nextLevel != levelBare {
			next = r.prefix(rest[:j], nextLevel, true)
		}
		if next.t == nil {
			r.record(p, level, rest)
			return
		}
		r.torn = true
		r.record(p, level, rest[:next.start])
		r.torn = false
		r.log.Counts.Torn++
		p, level, rest = next, nextLevel, rest[j+nextLevel.len():]
	}
}

// plain is the line without colours and other escape sequences.
func (r *Reader) plain(line []byte) []byte {
	out := r.scratch[:0]
	for i := 0; i < len(line); i++ {
		if line[i] != 0x1b {
			out = append(out, line[i])
			continue
		}
		if i+1 < len(line) && line[i+1] == '[' {
			for i += 2; i < len(line) && (line[i] < 0x40 || line[i] > 0x7e); i++ {
			}
		}
	}
	r.scratch = out
	return out
}

// level is what kind of line it is.
type level byte

const (
	noLevel level = iota
	levelInfo
	levelWarn
	levelTrace // also CALL
	levelBare  // the version on a line of its own
)

func (l level) len() int {
	if l == levelBare {
		return len("NCCL ")
	}
	return len("NCCL INFO")
}

var anchorText = []byte("NCCL ")

// anchor finds the word that makes a line one of NCCL.
func anchor(b []byte) (level, int) {
	from := 0
	for {
		i := bytes.Index(b[from:], anchorText)
		if i < 0 {
			return noLevel, 0
		}
		i += from
		w := b[i+len(anchorText):]
		if len(w) >= 4 {
			switch {
			case string(w[:4]) == "INFO":
				return levelInfo, i
			case string(w[:4]) == "WARN":
				return levelWarn, i
			case string(w[:4]) == "CALL", hasPrefix(w, "TRACE"):
				return levelTrace, i
			case from == 0 && hasPrefix(w, "version ") && len(w) > 8 && w[8]-'0' < 10 && contains(w, "+") && bareBefore(b[:i]):
				return levelBare, i
			}
		}
		from = i + len(anchorText)
	}
}

// bareBefore tells the version line from a sentence that mentions a version: only a launcher's label may stand before it.
func bareBefore(b []byte) bool {
	b = bytes.TrimRight(b, " ")
	return len(b) == 0 || b[len(b)-1] == ':' || b[len(b)-1] == ']' || b[len(b)-1] == '|' || b[len(b)-1] == ')'
}

// prefix is what stands before the level.
type prefix struct {
	t     *thread
	start int    // where it begins
	place []byte // source file and line of a WARN
}

// prefix takes apart "label host:pid:tid [dev] place". inside says that it stands in the middle of another record: then it must be complete,
// and letters may be glued to the host's name.
func (r *Reader) prefix(b []byte, l level, inside bool) prefix {
	end := len(b)
	for end > 0 && b[end-1] == ' ' {
		end--
	}
	b = b[:end]
	if l == levelInfo && end > 0 && b[end-1] == ']' {
		if p, ok := r.withDev(b, end-1, inside); ok {
			return p
		}
	}
	if l != levelInfo {
		for i := 0; i < len(b); i++ {
			if b[i] != ']' || i+1 < len(b) && b[i+1] != ' ' {
				continue
			}
			if p, ok := r.withDev(b, i, inside); ok {
				p.place = bytes.TrimSpace(b[i+1:])
				return p
			}
		}
	}
	if inside {
		return prefix{}
	}
	if start, pidAt, ok := hostPart(b, end); ok { // CALL lines and old ones have no device
		return prefix{t: r.threadOf(b[start:end], b[start:pidAt-1], b[pidAt:end], -1, b[:start]), start: start}
	}
	return r.noPrefix(b, l)
}

// withDev reads "host:pid:tid [dev]" that ends with the bracket at i.
func (r *Reader) withDev(b []byte, i int, inside bool) (prefix, bool) {
	open := i - 1
	for open >= 0 && (b[open]-'0' < 10 || b[open] == '-') {
		open--
	}
	if open < 2 || b[open] != '[' || open == i-1 || b[open-1] != ' ' {
		return prefix{}, false
	}
	start, pidAt, ok := hostPart(b, open-1)
	if !ok {
		return prefix{}, false
	}
	if inside {
		start = r.unglue(b, start, pidAt-1)
	}
	if t := r.threads[string(b[start:i])]; t != nil {
		r.label = b[:start]
		return prefix{t: t, start: start}, true
	}
	if pid := at(b[pidAt:]); !inside { // the program's own output may be glued to a name, too; then the process is a known one
		glued := r.unglue(b, start, pidAt-1)
		if glued > start && r.procs[procKey{host: string(b[glued : pidAt-1]), pid: pid.num()}] != nil {
			start = glued
		}
	}
	dev := at(b[open+1:])
	return prefix{t: r.threadOf(b[start:i], b[start:pidAt-1], b[pidAt:open-1], dev.num(), b[:start]), start: start}, true
}

// hostPart finds "host:pid:tid" that ends at end: where the host begins and where the process id does.
func hostPart(b []byte, end int) (start, pidAt int, ok bool) {
	i := end
	for i > 0 && b[i-1]-'0' < 10 {
		i--
	}
	if i == end || i < 2 || b[i-1] != ':' {
		return 0, 0, false
	}
	tid := i - 1
	i = tid
	for i > 0 && b[i-1]-'0' < 10 {
		i--
	}
	if i == tid || i < 2 || b[i-1] != ':' {
		return 0, 0, false
	}
	pidAt = i
	i--
	for i > 0 && !endsHost(b[i-1]) {
		i--
	}
	if i == pidAt-1 {
		return 0, 0, false
	}
	return i, pidAt, true
}

// endsHost: labels of launchers that are glued to the host end in one of these.
func endsHost(c byte) bool {
	switch c {
	case ':', '>', '|', ']', ')', '[', '(', '"', '\'', '=', ',':
		return true
	}
	return c <= ' '
}

// unglue finds where a known host's name begins inside a word whose first part belongs to another record.
func (r *Reader) unglue(b []byte, start, end int) int {
	best := 0
	for _, h := range r.hosts {
		if len(h) > best && hasSuffix(b[start:end], h) {
			best = len(h)
		}
	}
	if best > 0 {
		return end - best
	}
	return start
}

// threadOf makes the thread of a prefix that was not seen before.
func (r *Reader) threadOf(key, host, ids []byte, dev int, label []byte) *thread {
	r.label = label
	if t := r.threads[string(key)]; t != nil {
		return t
	}
	c := at(ids)
	pid := c.num()
	c.lit(":")
	tid := c.num()
	p := r.process(procKey{host: r.str(host), pid: pid}, label)
	t := &thread{proc: p, tid: tid, dev: dev}
	if len(r.threads) < maxProcesses*4 {
		r.threads[string(key)] = t
	} else {
		r.drop("threads")
	}
	return t
}

// noPrefix is the process of lines that were pasted without one: each file has its own. A sentence that mentions NCCL's words is none.
func (r *Reader) noPrefix(b []byte, l level) prefix {
	var p prefix
	dev := -1
	switch {
	case len(b) > 0 && b[0] == '#':
		return p
	case l == levelWarn:
		p.place = bytes.TrimSpace(b)
		if len(b) > 0 && !isPlace(b) {
			return p
		}
	case len(b) > 64 || !bareBefore(b):
		return p
	default:
		if i := bytes.LastIndexByte(b, '['); i >= 0 {
			if c := at(b[i+1:]); c.num() >= 0 && c.lit("]") && len(c.b) == 0 {
				c = at(b[i+1:])
				dev = c.num()
			}
		}
	}
	r.label = nil
	if p.t = r.nofix[dev]; p.t == nil {
		p.t = &thread{proc: r.process(procKey{file: r.file}, nil), dev: dev}
		if len(r.nofix) < maxKinds {
			r.nofix[dev] = p.t
		}
	}
	return p
}

// isPlace tells "transport/net.cc:12", "socket.cc:12 (func)" and "int f(t**):12" from a sentence.
func isPlace(b []byte) bool {
	if len(b) > 200 || b[len(b)-1] == ')' {
		return len(b) <= 200
	}
	i := len(b)
	for i > 0 && b[i-1]-'0' < 10 {
		i--
	}
	return i < len(b) && i > 1 && b[i-1] == ':'
}

func (r *Reader) process(k procKey, label []byte) *process {
	if p := r.procs[k]; p != nil {
		return p
	}
	p := &process{Process: &Process{Index: len(r.log.Processes), Host: k.host, PID: k.pid}, byPtr: map[uint64]*rank{}, lo: 10, hi: 99}
	p.Label = launcherLabel(label)
	if len(r.list) >= maxProcesses { // counted, but not kept
		r.drop("processes")
		p.Index = -1
		return p
	}
	if k.host != "" && !containsString(r.hosts, k.host) && len(r.hosts) < maxProcesses {
		r.hosts = append(r.hosts, k.host)
	}
	r.procs[k] = p
	r.list = append(r.list, p)
	r.log.Processes = append(r.log.Processes, p.Process)
	return p
}

func containsString(list []string, s string) bool {
	for _, v := range list {
		if v == s {
			return true
		}
	}
	return false
}

// launcherLabel is what a launcher put in front of a line, without time stamps; "" for other text that happens to stand there.
func launcherLabel(b []byte) string {
	if i := stampAt(b); i >= 0 {
		b = b[:i]
	}
	b = bytes.TrimSpace(b)
	if len(b) == 0 || len(b) > 40 || !bareBefore(b) || contains(b, "NCCL") || contains(b, "%|") {
		return ""
	}
	return strings.ToValidUTF8(string(b), "?")
}

// stampAt finds a time stamp "[2026-01-02 10:24:28] " or "2026-01-02T10:24:28Z " at the end of a label, -1: none.
func stampAt(b []byte) int {
	b = bytes.TrimRight(b, " ")
	if len(b) == 0 {
		return -1
	}
	i := bytes.LastIndexByte(b, ' ') + 1
	if b[len(b)-1] == ']' {
		if i = bytes.LastIndexByte(b, '['); i < 0 {
			return -1
		}
	}
	word := b[i:]
	if len(word) < 8 || bytes.Count(word, []byte(":")) < 2 {
		return -1
	}
	for _, c := range word {
		if c-'0' >= 10 && bytes.IndexByte([]byte("[]:.,-+/TZ "), c) < 0 {
			return -1
		}
	}
	return i
}

// evidence is the present line with its message.
func (r *Reader) evidence(msg []byte) Line {
	l := r.place()
	if len(msg) > maxText {
		msg = msg[:maxText]
	}
	l.Text = strings.ToValidUTF8(string(msg), "?")
	if i := stampAt(r.label); i >= 0 {
		l.Time = strings.Trim(string(r.label[i:]), "[] ")
	}
	return l
}

// place is the present line without its text.
func (r *Reader) place() Line { return Line{File: r.file, N: r.n} }

// str is b as a string; equal ones share their memory.
func (r *Reader) str(b []byte) string {
	if s, ok := r.strings[string(b)]; ok {
		return s
	}
	if len(b) > maxText {
		b = b[:maxText]
	}
	s := strings.ToValidUTF8(string(b), "?")
	if len(r.strings) < maxStrings {
		r.strings[s] = s
	}
	return s
}

func (r *Reader) drop(list string) { r.log.Counts.Dropped[list]++ }

// record takes one message of NCCL.
func (r *Reader) record(p prefix, l level, msg []byte) {
	t := p.t
	r.log.Counts.NCCL++
	proc := t.proc
	proc.Lines++
	proc.lastN, proc.lastF = r.n, r.file
	if len(msg) > 0 && msg[0] == ' ' {
		msg = msg[1:]
	}
	if proc.Lines == 1 {
		proc.First = r.evidence(msg)
	}
	switch l {
	case levelWarn:
		r.warn(t, p.place, msg)
	case levelInfo:
		r.info(t, msg)
	}
}
