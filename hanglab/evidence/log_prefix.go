package evidence

import (
	"bytes"
	"strconv"
	"time"
)

// linePrefix is what launchers and loggers put in front of a line.
type linePrefix struct {
	Rank  int    // global; -1: not said
	Local int    // rank within its host, -1
	Task  int    // number of a launcher's task, which is its rank where no more is said, -1
	Weak  int    // number of a pod or worker, which is its rank only where a pod has one, -1
	Label string // of a process, where it names no rank: "pid 5085", "default3", "pod-3"
	Host  string
	PID   int // 0: not said
	Time  time.Time
	text  []byte // what follows
}

const maxPrefixes = 6 // that stand before one another

// parsePrefix takes prefixes off a line, one after the other.
func parsePrefix(line []byte, year int) linePrefix {
	p := linePrefix{Rank: -1, Local: -1, Weak: -1, Task: -1, text: line}
	for range maxPrefixes {
		if !p.one(year) {
			break
		}
	}
	return p
}

// one takes the next prefix off p.text.
func (p *linePrefix) one(year int) bool {
	b := p.text
	if len(b) < 3 {
		return false
	}
	switch c := b[0]; {
	case c == '[':
		return p.bracket(b, year)
	case c == '(':
		return p.paren(b)
	case c-'0' < 10:
		return p.number(b)
	case c == '{':
		return p.dockerJSON(b)
	case c == '<':
		if rest, ok := skipAny(b, "<stderr>:", "<stdout>:"); ok {
			p.text = rest
			return true
		}
		return false
	case isGlogLevel(c) && b[1]-'0' < 10:
		return p.glog(b, year)
	case c >= 'A' && c <= 'Z':
		return p.level(b, year)
	case c >= 'a' && c <= 'z':
		return p.word(b)
	}
	return false
}

// bracket takes what begins with "[".
func (p *linePrefix) bracket(b []byte, year int) bool {
	end := bytes.IndexByte(b[:min(len(b), 120)], ']')
	if end < 2 {
		return false
	}
	in, rest := b[1:end], b[end+1:]
	if n, ok := numberAfter(in, "rank"); ok {
		p.Rank = n
		p.text = skipColon(rest)
		return true
	}
	if n, ok := numberAfter(in, "default"); ok {
		return p.local(n, in, rest)
	}
	if n, ok := numberAfter(in, "trainer"); ok {
		return p.local(n, in, rest)
	}
	if out, ok := skipAny(rest, "<stderr>:", "<stdout>:", "<stderr>", "<stdout>", ":"); ok {
		if n, ok := mpiTag(in); ok { // [1,3]<stderr>:
			p.Rank, p.Task, p.text = n, n, out
			return true
		}
	}
	if name, ok := bytes.CutPrefix(in, []byte("pod/")); ok { // kubectl logs --prefix
		pod, _, _ := bytes.Cut(name, []byte("/"))
		p.pod(pod)
		p.text = skipColon(rest)
		return true
	}
	if isGlogLevel(in[0]) && len(in) > 5 && in[1]-'0' < 10 {
		p.Time = glogTime(in[1:], year)
		p.text = skipBlank(rest)
		return true
	}
	if t, ok := stampTime(in, year); ok {
		p.Time, p.text = t, skipBlank(rest)
		return true
	}
	if isSeconds(in) { // of the kernel, since boot
		p.text = skipBlank(rest)
		return true
	}
	if n, err := strconv.Atoi(string(in)); err == nil && n >= 0 && n < 1<<20 && len(rest) > 2 && rest[0] == ' ' && rest[1]-'0' > 9 && rest[1] != '+' && rest[1] != ' ' &&
		p.Rank < 0 && len(in) < 7 { // mpiexec -prepend-rank
		p.Rank, p.Task, p.text = n, n, rest[1:]
		return true
	}
	return false
}

func (p *linePrefix) local(n int, label, rest []byte) bool {
	p.Local, p.Label = n, string(label)
	p.text = skipColon(rest)
	return true
}

func (p *linePrefix) pod(name []byte) {
	p.Host, p.Label = string(name), string(name)
	p.Weak = trailingNumber(name)
}

// mpiTag reads "1,3", "[1,3" and "prterun-host-1@1,3": the last number is the rank.
func mpiTag(in []byte) (int, bool) {
	i := bytes.LastIndexByte(in, ',')
	if i < 1 || in[i-1]-'0' > 9 && in[i-1] != ']' {
		return 0, false
	}
	n, err := strconv.Atoi(string(in[i+1:]))
	return n, err == nil && n >= 0
}

// paren takes Ray's and vLLM's "(RayWorker pid=5085, ip=10.0.0.2) ".
func (p *linePrefix) paren(b []byte) bool {
	end := bytes.IndexByte(b[:min(len(b), 200)], ')')
	if end < 0 {
		return false
	}
	in := b[1:end]
	i := bytes.Index(in, []byte("pid="))
	if i < 0 {
		return false
	}
	n, rest, ok := leadingNumber(in[i+4:])
	if !ok {
		return false
	}
	p.PID, p.Label = n, "pid "+strconv.Itoa(n)
	if _, ip, ok := bytes.Cut(rest, []byte("ip=")); ok {
		p.Host = string(ip)
	}
	if rank, ok := tensorRank(string(in)); ok {
		p.Weak = rank
	}
	p.text = skipColon(b[end+1:])
	return true
}

// number takes a time, "3: " of srun --label, "10.0.0.1: " of pdsh.
func (p *linePrefix) number(b []byte) bool {
	if n := stampLen(b); n > 0 {
		t, ok := stampTime(b[:n], 0)
		if !ok {
			return false
		}
		rest := b[n:]
		p.Time = t
		if cut, ok := skipAny(rest, " stderr F ", " stdout F ", " stderr P ", " stdout P "); ok { // the container runtime's
			rest = cut
		} else if cut, ok := skipAny(rest, " - ", ": ", " | ", " "); ok {
			rest = cut
		}
		p.text = rest
		return true
	}
	i := 0
	for i < len(b) && (b[i]-'0' < 10 || b[i] == '.') {
		i++
	}
	if i > 15 || i+1 >= len(b) || b[i] != ':' || b[i+1] != ' ' && b[i+1] != '[' {
		return false
	}
	word := b[:i]
	if bytes.Count(word, []byte(".")) == 3 {
		p.Host, p.text = string(word), skipColon(b[i:])
		return true
	}
	n, err := strconv.Atoi(string(word))
	if err != nil || i > 6 || p.Rank >= 0 {
		return false
	}
	p.Rank, p.Task, p.text = n, n, b[i+1:]
	if p.text[0] == ' ' {
		p.text = p.text[1:]
	}
	return true
}

// dockerJSON takes the container's log file: {"log":"text\n","stream":"stderr","time":"…"}. Escapes are undone.
func (p *linePrefix) dockerJSON(b []byte) bool {
	rest, ok := bytes.CutPrefix(b, []byte(`{"log":"`))
	if !ok {
		return false
	}
	i := bytes.LastIndex(rest, []byte(`","stream":`))
	if i < 0 {
		return false
	}
	if _, stamp, ok := bytes.Cut(rest[i:], []byte(`"time":"`)); ok {
		if t, ok := stampTime(stamp[:min(len(stamp), stampLen(stamp))], 0); ok {
			p.Time = t
		}
	}
	text, err := strconv.Unquote(`"` + string(rest[:i]) + `"`)
	if err != nil {
		return false
	}
	p.text = bytes.TrimRight([]byte(text), "\n")
	return true
}

// glog takes "E1129 17:03:04.401000 2258 torch/…/api.py:986] ".
func (p *linePrefix) glog(b []byte, year int) bool {
	end := bytes.IndexByte(b[:min(len(b), 200)], ']')
	if end < 12 || b[5] != ' ' && b[4] != ' ' {
		return false
	}
	t := glogTime(b[1:end], year)
	if t.IsZero() {
		return false
	}
	p.Time = t
	p.text = skipBlank(b[end+1:])
	return true
}

// level takes "ERROR:name:" of Python's logging, "INFO 08-10 03:04:05 [file.py:10] " and the "Jan  2 03:04:05 host kernel: " of syslog.
func (p *linePrefix) level(b []byte, year int) bool {
	if t, rest, ok := syslogTime(b, year); ok {
		p.Time = t
		host, after, ok := bytes.Cut(rest, []byte(" "))
		if ok && len(host) < 100 {
			p.Host = string(host)
			rest = after
		}
		p.text = rest
		return true
	}
	return false
}

// word takes "pod-3 " and "service-1  | ", "kernel: ".
func (p *linePrefix) word(b []byte) bool {
	i := 0
	for i < len(b) && i < 100 && (b[i]-'0' < 10 || b[i] >= 'a' && b[i] <= 'z' || b[i] == '-' || b[i] == '_' || b[i] == '.') {
		i++
	}
	if i+1 >= len(b) || i == 100 || p.Host != "" {
		return false
	}
	word, rest := b[:i], b[i:]
	n := trailingNumber(word)
	if n < 0 || bytes.IndexByte(word, '-') < 0 || bytes.HasPrefix(word, []byte("nvidia-")) {
		return false
	}
	if cut, ok := bytes.CutPrefix(bytes.TrimLeft(rest, " "), []byte("| ")); ok { // docker compose
		p.pod(word)
		p.text = cut
		return true
	}
	if bytes.HasPrefix(rest, []byte(": ")) || rest[0] == ' ' {
		next := skipColon(rest)
		if rest[0] == ' ' && (bytes.Count(word, []byte("-")) == 0 || len(next) == 0) {
			return false
		}
		p.pod(word)
		p.text = next
		return true
	}
	return false
}

func isGlogLevel(c byte) bool { return c == 'E' || c == 'W' || c == 'I' || c == 'F' }

// numberAfter reads word, an optional blank, and a number, which must be all of b.
func numberAfter(b []byte, word string) (int, bool) {
	rest, ok := bytes.CutPrefix(b, []byte(word))
	if !ok || len(rest) == 0 || len(rest) > 8 || rest[0]-'0' > 9 {
		return 0, false // "[Rank 3]" and "[rank 3]" are the rank in a group
	}
	n, err := strconv.Atoi(string(rest))
	return n, err == nil
}

// trailingNumber is the number at the end of a name, -1: none.
func trailingNumber(name []byte) int {
	i := len(name)
	for i > 0 && name[i-1]-'0' < 10 {
		i--
	}
	if i == len(name) || len(name)-i > 6 {
		return -1
	}
	n, _ := strconv.Atoi(string(name[i:]))
	return n
}

func skipAny(b []byte, words ...string) ([]byte, bool) {
	for _, w := range words {
		if rest, ok := bytes.CutPrefix(b, []byte(w)); ok {
			return rest, true
		}
	}
	return b, false
}

func skipBlank(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	return b
}

// skipColon takes ":" and one blank: more of them are the text's own, as in a traceback.
func skipColon(b []byte) []byte {
	if len(b) > 0 && b[0] == ':' {
		b = b[1:]
	}
	if len(b) > 0 && b[0] == ' ' {
		b = b[1:]
	}
	return b
}

// isSeconds tells "12345.678901", with blanks before it.
func isSeconds(b []byte) bool {
	b = bytes.TrimLeft(b, " ")
	dot := bytes.IndexByte(b, '.')
	return dot > 0 && len(b)-dot == 7 && isNumber(b[:dot]) && isNumber(b[dot+1:])
}
