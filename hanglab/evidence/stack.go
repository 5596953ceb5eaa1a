package evidence

import (
	"bytes"
	"encoding/json"
	"path"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/hanglab/flight"
)

// Limits of what is kept of the stacks of one process.
const (
	maxThreads = 4096
	maxFrames  = 512 // of a thread
)

// stackHeading is what stands before a process's threads, and belongs to them if they follow: "Process 4100: python train.py", "Python v3.8.13 (…)".
type stackHeading struct {
	pid  int
	name string
	at   Where
}

// near tells whether the heading stands right before a line.
func (h *stackHeading) near(at Where) bool {
	return h.pid > 0 && h.at.File == at.File && at.Line > h.at.Line && at.Line-h.at.Line <= 8
}

// stackBlock is the stacks of one process.
type stackBlock struct {
	ctx    *logContext
	stack  Stack
	take   func(b *stackBlock, line []byte) bool
	thread *Thread // that frames belong to
	lines  int
}

// openStack begins the stacks of a process.
func openStack(line []byte, at Where, ctx *logContext) block {
	s := strings.TrimSpace(string(line[:min(len(line), 400)]))
	if h, ok := readHeading(s, at); ok {
		ctx.heading = h
		return nil
	}
	b := &stackBlock{ctx: ctx, stack: Stack{Where: at, Rank: -1}}
	if ctx.heading.near(at) {
		b.stack.PID, b.stack.Name, b.stack.Where = ctx.heading.pid, ctx.heading.name, ctx.heading.at
	}
	_, isPySpy := pySpyThread(s)
	_, _, isGDB := gdbThread(s)
	_, isGo := goThread(s)
	switch {
	case isPySpy:
		b.stack.Tool, b.take = "py-spy", (*stackBlock).pySpy
	case isGDB, strings.HasPrefix(s, "#0  0x"), strings.HasPrefix(s, "[New LWP "):
		b.stack.Tool, b.take = "gdb", (*stackBlock).gdb
	case isGo:
		b.stack.Tool, b.take = "go", (*stackBlock).goroutine
	case strings.HasPrefix(s, procHead):
		b.stack.Tool, b.take = "proc", (*stackBlock).proc
	default:
		return nil
	}
	ctx.heading = stackHeading{}
	return b
}

// readHeading takes the lines of py-spy and gdb that name the process.
func readHeading(s string, at Where) (stackHeading, bool) {
	if rest, ok := strings.CutPrefix(s, "Process "); ok {
		id, name, ok := strings.Cut(rest, ": ")
		pid, err := strconv.Atoi(id)
		return stackHeading{pid, name, at}, ok && err == nil && pid > 0
	}
	if strings.HasPrefix(s, "Attaching to ") { // "Attaching to program: /usr/bin/python3, process 4100", "Attaching to process 4100"
		_, id, ok := strings.Cut(s, "process ")
		pid, err := strconv.Atoi(id)
		return stackHeading{pid, "", at}, ok && err == nil && pid > 0
	}
	return stackHeading{}, false
}

func (b *stackBlock) line(line []byte, _ Where) bool {
	b.lines++
	return b.take(b, line)
}

// begin starts the next thread.
func (b *stackBlock) begin(t Thread) {
	if len(b.stack.Threads) >= maxThreads {
		b.thread = nil
		return
	}
	b.stack.Threads = append(b.stack.Threads, t)
	b.thread = &b.stack.Threads[len(b.stack.Threads)-1]
}

func (b *stackBlock) frame(f flight.Frame) {
	if b.thread != nil && len(b.thread.Frames) < maxFrames {
		b.thread.Frames = append(b.thread.Frames, f)
	}
}

func (b *stackBlock) end() {
	if len(b.stack.Threads) == 0 && b.stack.State == "" {
		return
	}
	b.ctx.addStack(b.stack)
}

// addStack keeps a process's stacks with the rank that they can be told to be of.
func (c *logContext) addStack(s Stack) {
	if len(c.out.Stacks) >= 1<<16 {
		return
	}
	switch {
	case s.Rank >= 0:
	case c.rank >= 0:
		s.Rank, s.RankBy = c.rank, "input"
	default:
		if rank, ok := rankInName(s.Name); ok {
			s.Rank, s.RankBy = rank, "name"
		} else if n, ok := localInName(s.Name); ok {
			s.Rank, s.RankBy = n, "local"
		} else if rank, ok := rankOfStackFile(s.Where.File); ok {
			s.Rank, s.RankBy = rank, "input"
		}
	}
	c.out.Stacks = append(c.out.Stacks, s)
	switch s.State {
	case "T": // by a signal; "t" is a tracer's doing
		c.stateFact(Stopped, s)
	case "Z", "X":
		c.stateFact(Ended, s)
	}
}

// stateFact says that a process is stopped, or is no more than an entry that its parent has not asked about.
func (c *logContext) stateFact(kind FactKind, s Stack) {
	f := newFact(kind, s.Where, []byte("state: "+s.State))
	f.Rank, f.PID, f.Host, f.Detail = s.Rank, s.PID, s.Host, "state "+s.State
	c.addOther(f)
}

// rankInName finds the rank in the title that a process gave itself: "VLLM::Worker_TP3", "sglang::scheduler_TP1", "train.py --rank=2". A rank on its host is
// none in the job.
func rankInName(name string) (int, bool) {
	for _, word := range []string{"global_rank", "global-rank", "rank", "Rank"} {
		i := strings.LastIndex(name, word)
		if i < 0 || i >= 6 && strings.EqualFold(name[i-6:i-1], "local") || i > 0 && partOfName(name[i-1]) {
			continue
		}
		rest := strings.TrimLeft(name[i+len(word):], "=_- :")
		if n, _, ok := leadingNumber([]byte(rest)); ok && n >= 0 && (len(rest) > 0 && rest[0] != '-') {
			return n, true
		}
	}
	return tensorRank(name)
}

// localInName finds the rank on its host that a process was started with, as old launchers do: "train.py --local-rank=2".
func localInName(name string) (int, bool) {
	for _, word := range []string{"local_rank", "local-rank"} {
		if i := strings.LastIndex(name, word); i >= 0 {
			if n, _, ok := leadingNumber([]byte(strings.TrimLeft(name[i+len(word):], "= :"))); ok && n >= 0 {
				return n, true
			}
		}
	}
	return -1, false
}

// tensorRank reads the "TP3" of a worker's name. With data or pipeline parallelism it is a rank in a smaller group, unless those numbers are 0.
func tensorRank(name string) (int, bool) {
	rank, found := -1, false
	for _, word := range []string{"TP", "DP", "PP"} {
		for from := 0; ; {
			i := strings.Index(name[from:], word)
			if i < 0 {
				break
			}
			i += from
			from = i + len(word)
			if i > 0 && name[i-1] != '_' && name[i-1] != ' ' {
				continue
			}
			n, _, ok := leadingNumber([]byte(name[from:]))
			switch {
			case !ok || n < 0 || name[from] == ' ' || name[from] == '-':
			case word == "TP":
				rank, found = n, true
			case n > 0:
				return -1, false
			}
		}
	}
	return rank, found
}

// rankOfStackFile finds the rank in a file's name that says "rank": others' numbers are process ids.
func rankOfStackFile(name string) (int, bool) {
	base := path.Base(name)
	i := strings.LastIndex(base, "rank")
	if i < 0 {
		return -1, false
	}
	n, _, ok := leadingNumber([]byte(strings.TrimLeft(base[i+len("rank"):], "_-.")))
	return n, ok && n >= 0 && n < 1<<24
}

// pySpyThread takes `Thread 0x7FA6E7C01740 (idle): "MainThread"` and `Thread 4100 (active+gil)`.
func pySpyThread(s string) (Thread, bool) {
	rest, ok := strings.CutPrefix(s, "Thread ")
	id, rest, ok2 := strings.Cut(rest, " (")
	state, name, ok3 := strings.Cut(rest, ")")
	if !ok || !ok2 || !ok3 || id == "" || strings.Contains(id, " ") {
		return Thread{}, false
	}
	t := Thread{ID: id, Active: strings.HasPrefix(state, "active"), GIL: strings.Contains(state, "gil")}
	if word, _, _ := strings.Cut(state, "+"); word != "active" && word != "idle" && word != "unknown" {
		return Thread{}, false
	}
	t.Name = strings.Trim(strings.TrimPrefix(name, ":"), " \"")
	return t, true
}

// pySpy takes a line of py-spy's text: frames have four blanks in front, arguments and local variables more.
func (b *stackBlock) pySpy(line []byte) bool {
	s := strings.TrimRight(string(line[:min(len(line), 4000)]), " \r")
	if t, ok := pySpyThread(s); ok {
		b.begin(t)
		return true
	}
	switch {
	case s == "":
		return true
	case strings.HasPrefix(s, "Python v"):
		return len(b.stack.Threads) == 0
	case strings.HasPrefix(s, "     "), strings.HasPrefix(s, "    Arguments:"), strings.HasPrefix(s, "    Locals:"):
		return true
	case !strings.HasPrefix(s, "    ") && !strings.HasPrefix(s, "\t"):
		return false
	}
	if f, ok := pySpyFrame(strings.TrimSpace(s)); ok {
		b.frame(f)
		return true
	}
	return b.thread != nil
}

// pySpyFrame takes "get (queue.py:170)", and "poll (libc.so.6)" of native code.
func pySpyFrame(s string) (flight.Frame, bool) {
	i := strings.LastIndex(s, " (")
	if i < 0 || !strings.HasSuffix(s, ")") {
		return flight.Frame{}, false
	}
	f := flight.Frame{Name: s[:i], File: s[i+2 : len(s)-1]}
	if j := strings.LastIndexByte(f.File, ':'); j > 0 {
		if n, err := strconv.Atoi(f.File[j+1:]); err == nil {
			f.File, f.Line = f.File[:j], n
		}
	}
	return f, true
}

// readPySpyJSON takes what `py-spy dump --json` writes; several processes may be in one list.
func readPySpyJSON(raw []byte, at Where) []Stack {
	type frame struct {
		Name     string `json:"name"`
		File     string `json:"filename"`
		Short    string `json:"short_filename"`
		Line     int    `json:"line"`
		Function string `json:"function"`
	}
	type thread struct {
		PID     int             `json:"pid"`
		ID      json.Number     `json:"thread_id"`
		Name    *string         `json:"thread_name"`
		Active  bool            `json:"active"`
		GIL     bool            `json:"owns_gil"`
		Frames  []frame         `json:"frames"`
		Process json.RawMessage `json:"process_info"`
	}
	var threads []thread
	d := json.NewDecoder(bytes.NewReader(raw))
	if d.Decode(&threads) != nil {
		return nil
	}
	var out []Stack
	byPID := make(map[int]int)
	for _, t := range threads {
		i, ok := byPID[t.PID]
		if !ok {
			i = len(out)
			byPID[t.PID] = i
			out = append(out, Stack{Where: at, Tool: "py-spy", Rank: -1, PID: t.PID, Name: commandOf(t.Process)})
		}
		if len(out[i].Threads) >= maxThreads {
			continue
		}
		x := Thread{ID: t.ID.String(), Active: t.Active, GIL: t.GIL}
		if t.Name != nil {
			x.Name = *t.Name
		}
		for _, f := range t.Frames[:min(len(t.Frames), maxFrames)] {
			file := f.File
			if f.Short != "" {
				file = f.Short
			}
			x.Frames = append(x.Frames, flight.Frame{Name: f.Name, File: file, Line: f.Line})
		}
		out[i].Threads = append(out[i].Threads, x)
	}
	return out
}

// commandOf is the command line in py-spy's process_info, "" where there is none.
func commandOf(raw json.RawMessage) string {
	var p struct {
		Command string `json:"command_line"`
	}
	if len(raw) == 0 || json.Unmarshal(raw, &p) != nil {
		return ""
	}
	return p.Command
}
