package evidence

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/hanglab/flight"
)

// Limits of tracebacks.
const (
	maxTraceFrames = 64
	maxTraces      = 4096 // open at once: one a rank
	traceMiss      = 50   // lines of others in between
	traceWait      = 40   // lines after its end in which it may turn out to be the first of a chain
)

// traceReader reads tracebacks of Python and panics of Go, those of several ranks at once.
type traceReader struct {
	open  map[string]*trace // by whose line it is
	spawn int               // rank + 1 of the process that the next traceback is about
}

// trace is one that has begun.
type trace struct {
	goCode  bool
	inner   bool // frames come innermost first
	crash   bool // of C++: the next line says what it was
	at      Where
	rank    int // -1: the line's own
	message string
	name    string         // of the exception, where the message does not begin with it
	frames  []flight.Frame // in the order of the text
	indent  int            // of lines that name a file
	chained bool           // it follows from the one before
	done    bool           // its last line has come
	left    int            // lines that it may still wait
	pending string         // function whose file comes next
	running bool           // Go: in the stack
}

// key tells writers apart.
func (p *linePrefix) key() string {
	switch {
	case p.Rank >= 0:
		return strconv.Itoa(p.Rank)
	case p.Label != "":
		return p.Label
	}
	return p.Host
}

// take offers a line to the traces. It takes the lines that say nothing outside a traceback.
func (r *traceReader) take(c *logContext, line []byte, found uint32, at Where) bool {
	key := c.prefix.key()
	if found&(1<<topicTrace) != 0 && r.begins(c, key, at) {
		return true
	}
	t := r.open[key]
	if t == nil {
		return false
	}
	if t.left--; t.left < 0 {
		if !t.done {
			t.breakOff(c)
		}
		delete(r.open, key)
		return false
	}
	text := c.prefix.text
	if t.done {
		t.chained = t.chained || bytes.Contains(text, []byte("above exception"))
		return t.chained && len(text) == 0
	}
	switch {
	case t.goCode:
		return t.goLine(c, text)
	case t.crash:
		return t.crashLine(c, text, at)
	case t.inner:
		return t.fatalLine(c, text)
	}
	return t.pythonLine(c, text, at)
}

// begins opens a trace if the line is the first of one.
func (r *traceReader) begins(c *logContext, key string, at Where) bool {
	text := c.prefix.text
	if i := bytes.Index(text, []byte("-- Process ")); i >= 0 && bytes.Contains(text[i:], []byte("terminated with the following")) {
		if n, _, ok := leadingNumber(text[i+len("-- Process "):]); ok {
			r.spawn = n + 1
		}
		return true
	}
	goCode := bytes.HasPrefix(text, []byte("panic: ")) || bytes.HasPrefix(text, []byte("fatal error: "))
	crash := bytes.HasPrefix(text, []byte("terminate called after throwing"))
	fatal := bytes.HasPrefix(text, []byte("Fatal Python error: "))
	if !goCode && !crash && !fatal && !bytes.Contains(text, []byte("Traceback (most recent call last)")) {
		return false
	}
	t := &trace{goCode: goCode, crash: crash, inner: goCode || fatal, at: at, rank: -1, indent: -1, left: traceMiss}
	if goCode || crash || fatal {
		t.message = cutText(text, factBytes)
	}
	if old := r.open[key]; old != nil {
		if t.chained = old.done && old.chained; !old.done {
			old.breakOff(c)
		}
	}
	if r.spawn > 0 && c.prefix.Rank < 0 {
		t.rank = r.spawn - 1
	}
	r.spawn = 0
	if c.elastic.open && c.elastic.rank >= 0 {
		t.rank = c.elastic.rank
	}
	if r.open == nil {
		r.open = map[string]*trace{}
	}
	if len(r.open) < maxTraces {
		r.open[key] = t
	}
	return true
}

// pythonLine takes frames, the code between them, and the exception.
func (t *trace) pythonLine(c *logContext, text []byte, at Where) bool {
	body := bytes.TrimLeft(text, " |+\t")
	indent := len(text) - len(body)
	if frame, ok := pythonFrame(body); ok {
		t.indent, t.left = indent, traceMiss
		if len(t.frames) == maxTraceFrames { // the innermost matter
			t.frames = append(t.frames[:0], t.frames[1:]...)
		}
		t.frames = append(t.frames, frame)
		return true
	}
	if len(body) == 0 {
		return true
	}
	if t.indent >= 0 && (t.indent == 0 || indent == max(t.indent-2, 0)) && isException(body) {
		t.at, t.message = at, cutText(body, factBytes)
		t.finish(c)
		return false // others read what the exception says
	}
	return indent > 0 && t.indent >= 0 && indent > t.indent
}

// crashLine takes "  what():  text" after "terminate called after throwing an instance of 'std::runtime_error'".
func (t *trace) crashLine(c *logContext, text []byte, at Where) bool {
	body := bytes.TrimLeft(text, " ")
	if what, ok := bytes.CutPrefix(body, []byte("what():")); ok {
		name := "C++ exception"
		if _, quoted, ok := strings.Cut(t.message, "'"); ok {
			name, _, _ = strings.Cut(quoted, "'")
		}
		t.at, t.message = at, name+" "+cutText(bytes.TrimSpace(what), factBytes)
		t.name = name
		if isEcho(t.message) { // a watchdog's, which has said it before
			t.done, t.left = true, 0
		} else {
			t.finish(c)
		}
		return false // others read what it says
	}
	return len(body) == 0
}

// fatalLine takes the stack that Python prints when it is ended by a signal: `File "x.py", line 3 in f`, innermost first.
func (t *trace) fatalLine(c *logContext, text []byte) bool {
	body := bytes.TrimLeft(text, " ")
	if frame, ok := pythonFrame(body); ok {
		if t.left = traceMiss; len(t.frames) < maxTraceFrames {
			t.frames = append(t.frames, frame)
		}
		return true
	}
	if len(t.frames) > 0 || len(body) == 0 && t.running { // the first thread is the one
		t.finish(c)
		return len(body) == 0
	}
	t.running = bytes.Contains(body, []byte("hread 0x"))
	return len(body) == 0 || t.running || bytes.HasPrefix(body, []byte("Python runtime state"))
}

// pythonFrame reads `File "/x/train.py", line 49, in <module>`.
func pythonFrame(b []byte) (f flight.Frame, ok bool) {
	rest, ok := bytes.CutPrefix(b, []byte(`File "`))
	if !ok {
		return f, false
	}
	file, rest, ok := bytes.Cut(rest, []byte(`", line `))
	if !ok {
		return f, false
	}
	n, rest, ok := leadingNumber(rest)
	if !ok || n < 0 {
		return f, false
	}
	f.File, f.Line = cutText(file, 300), n
	if name, ok := skipAny(rest, ", in ", " in "); ok {
		f.Name = cutText(bytes.TrimSpace(name), 300)
	}
	return f, true
}

// isException tells "RuntimeError: text" and "KeyboardInterrupt" from other lines.
func isException(b []byte) bool {
	name := b
	if i := bytes.IndexByte(b, ':'); i >= 0 {
		name = b[:i]
	}
	if len(name) == 0 || len(name) > 200 {
		return false
	}
	for _, c := range name {
		if c-'0' > 9 && (c|0x20)-'a' > 25 && c != '.' && c != '_' {
			return false
		}
	}
	last := name[bytes.LastIndexByte(name, '.')+1:]
	return len(last) > 0 && last[0] >= 'A' && last[0] <= 'Z'
}

// goLine takes the lines after "panic: …".
func (t *trace) goLine(c *logContext, text []byte) bool {
	switch {
	case !t.running:
		if bytes.HasPrefix(text, []byte("goroutine ")) {
			t.running = true
			return true
		}
		return len(text) == 0 || text[0] == '[' || text[0] == '\t' || bytes.HasPrefix(text, []byte("panic: "))
	case len(text) == 0:
		t.finish(c)
		return true
	case text[0] == '\t':
		file := bytes.TrimSpace(text)
		file, _, _ = bytes.Cut(file, []byte(" "))
		if i := bytes.LastIndexByte(file, ':'); i > 0 && t.pending != "" && len(t.frames) < maxTraceFrames {
			t.frames = append(t.frames, flight.Frame{Name: t.pending, File: cutText(file[:i], 300), Line: max(shortNumber(file[i+1:]), 0)})
		}
		t.pending, t.left = "", traceMiss
		return true
	}
	name := text
	if i := bytes.LastIndexByte(text, '('); i > 0 {
		name = text[:i]
	}
	if rest, ok := bytes.CutPrefix(name, []byte("created by ")); ok {
		name, _, _ = bytes.Cut(rest, []byte(" in goroutine"))
	} else if len(name) == len(text) && !bytes.HasPrefix(text, []byte("...")) {
		t.finish(c)
		return false
	}
	t.pending = cutText(name, 300)
	return true
}

// finish makes the fact. The trace stays for a while: the next one may say that it follows from it.
func (t *trace) finish(c *logContext) {
	t.done, t.left = true, traceWait
	f := newFact(Traceback, t.at, nil)
	f.Text = t.message
	if f.Op = t.name; f.Op == "" {
		f.Op, _, _ = strings.Cut(t.message, ":")
	}
	f.Stack = t.frames
	if !t.inner {
		slices.Reverse(f.Stack)
	}
	t.frames = nil
	if slices.ContainsFunc(f.Stack, func(x flight.Frame) bool { return strings.Contains(x.File, "flight_recorder/") }) {
		t.chained = false
		return // the analyser's own
	}
	f.Rank = t.rank
	f.Consequence = t.chained || isEcho(t.message)
	if isLauncher(&f) {
		f.Consequence = true
		c.addOther(f)
	} else {
		c.add(f)
	}
	t.chained = false
}

// end finishes what the log breaks off in.
func (r *traceReader) end(c *logContext) {
	for _, key := range sortedKeys(r.open) {
		if t := r.open[key]; !t.done {
			c.prefix = linePrefix{Rank: -1, Local: -1, Weak: -1}
			if n, err := strconv.Atoi(key); err == nil {
				c.prefix.Rank = n
			} else {
				c.prefix.Label = key
			}
			t.breakOff(c)
		}
	}
}

// breakOff keeps what there is of one whose end never came.
func (t *trace) breakOff(c *logContext) {
	if t.message == "" && len(t.frames) == 0 {
		return
	}
	if t.message == "" {
		t.message = "Traceback: its end is not in the log"
	}
	t.finish(c)
}

func sortedKeys[T any](m map[string]T) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// echoes are what exceptions say that come from another rank's failure, from a time-out, or from being told to end. Fingerprints have facts of their own.
var echoes = []string{
	"ncclRemoteError", "ncclSystemError", "remote process exited", "Watchdog caught", "watchdog", "communicator was aborted", "ncclCommAbort", "Detected mismatch between collectives",
	"is running inconsistent collective", "Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out waiting", "recvValue failed", "Socket Timeout", "TCPStore",
	"KeyboardInterrupt", "SignalException", "SIGTERM", "ChildFailedError", "CalledProcessError", "ProcessExitedException", "RendezvousConnectionError", "DistStoreError",
	"timed out in blocking wait", "NCCL operations have failed or timed out", "DistNetworkError", "ActorDiedError", "RayActorError", "EngineDeadError",
}

func isEcho(message string) bool {
	return slices.ContainsFunc(echoes, func(s string) bool { return strings.Contains(message, s) })
}

var launcherFiles = []string{
	"torch/distributed/run.py", "torch/distributed/launcher/", "torch/distributed/elastic/", "accelerate/commands/", "deepspeed/launcher/", "torch/multiprocessing/spawn.py",
	"torch/distributed/launch.py",
}

// isLauncher tells the launcher's own traceback, in which it reports what happened to the ranks.
func isLauncher(f *Fact) bool {
	if f.Rank >= 0 {
		return false
	}
	last := f.Op[strings.LastIndexByte(f.Op, '.')+1:]
	if last != "ChildFailedError" && last != "SignalException" && last != "CalledProcessError" && last != "ProcessExitedException" && last != "ProcessRaisedException" {
		return false
	}
	return slices.ContainsFunc(f.Stack, func(x flight.Frame) bool {
		return slices.ContainsFunc(launcherFiles, func(s string) bool { return strings.Contains(x.File, s) })
	})
}
