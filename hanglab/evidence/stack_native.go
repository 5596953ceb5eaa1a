package evidence

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/hanglab/flight"
)

// gdbThread takes `Thread 3 (Thread 0x7f12 (LWP 4102) "pt_nccl_watchdg"):`, `Thread 1 (LWP 4100):` and `Thread 2 (process 4101):`.
func gdbThread(s string) (t Thread, lwp int, ok bool) {
	rest, ok := strings.CutPrefix(s, "Thread ")
	number, rest, ok2 := strings.Cut(rest, " (")
	if _, err := strconv.Atoi(number); !ok || !ok2 || err != nil || !strings.HasSuffix(s, ":") {
		return Thread{}, 0, false
	}
	for _, word := range []string{"LWP ", "process "} {
		_, id, found := strings.Cut(rest, word)
		if n, _, isNumber := leadingNumber([]byte(id)); found && isNumber && n > 0 {
			lwp = n
			break
		}
	}
	if lwp == 0 {
		return Thread{}, 0, false
	}
	t.ID = strconv.Itoa(lwp)
	if _, name, found := strings.Cut(rest, `"`); found {
		t.Name, _, _ = strings.Cut(name, `"`)
	}
	return t, lwp, true
}

// gdb takes a line of "thread apply all bt", or of pstack.
func (b *stackBlock) gdb(line []byte) bool {
	s := strings.TrimRight(string(line[:min(len(line), 4000)]), " \r")
	if t, lwp, ok := gdbThread(strings.TrimSpace(s)); ok {
		if b.stack.PID == 0 || lwp < b.stack.PID { // the main thread has the lowest number, and the process's
			b.stack.PID = lwp
		}
		b.begin(t)
		return true
	}
	trimmed := strings.TrimSpace(s)
	switch {
	case trimmed == "", strings.HasPrefix(trimmed, "[New LWP "), strings.HasPrefix(trimmed, "[Thread debugging"), strings.HasPrefix(trimmed, "Using host lib"),
		strings.HasPrefix(trimmed, "Backtrace stopped"), strings.HasPrefix(trimmed, "(More stack frames"), strings.HasPrefix(trimmed, "warning: "):
		return true
	case strings.HasPrefix(trimmed, "#"):
		if b.thread == nil && len(b.stack.Threads) == 0 {
			b.begin(Thread{})
		}
		f, ok := gdbFrame(trimmed)
		if ok {
			b.frame(f)
		}
		return ok
	case strings.HasPrefix(s, " ") && b.thread != nil && len(b.thread.Frames) > 0: // the rest of a frame that was too long for its line
		last := &b.thread.Frames[len(b.thread.Frames)-1]
		if last.File == "" {
			last.File, last.Line = gdbPlace(trimmed)
		}
		return true
	}
	return len(b.stack.Threads) == 0 && b.lines < 200 && strings.HasPrefix(trimmed, "0x") // "0x00007f12 in poll () from …" after attaching
}

// gdbFrame takes "#1  0x00007f12 in poll () from /lib/libc.so.6" and "#2  main (argc=1) at main.c:3".
func gdbFrame(s string) (flight.Frame, bool) {
	_, rest, ok := strings.Cut(s, " ")
	if !ok {
		return flight.Frame{}, false
	}
	if _, err := strconv.Atoi(s[1:strings.IndexByte(s, ' ')]); err != nil {
		return flight.Frame{}, false
	}
	rest = strings.TrimSpace(rest)
	if strings.HasPrefix(rest, "0x") {
		_, rest, _ = strings.Cut(rest, " in ")
	}
	name, _, _ := strings.Cut(rest, " (")
	f := flight.Frame{Name: strings.TrimSpace(name)}
	f.File, f.Line = gdbPlace(rest)
	return f, f.Name != ""
}

// gdbPlace finds "at FILE:LINE" or "from LIBRARY" at the end of a frame.
func gdbPlace(s string) (file string, line int) {
	if i := strings.LastIndex(" "+s, " at "); i >= 0 {
		file, number, _ := cutLast(s[i+len("at "):], ":")
		line, _ = strconv.Atoi(number)
		return file, line
	}
	if i := strings.LastIndex(" "+s, " from "); i >= 0 {
		return s[i+len("from "):], 0
	}
	return "", 0
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// goThread takes "goroutine 34 [chan receive, 5 minutes, locked to thread]:" and Go 1.23's "goroutine 1 gp=0xc000002380 m=0 mp=0x1 [running]:".
func goThread(s string) (Thread, bool) {
	rest, ok := strings.CutPrefix(s, "goroutine ")
	if !ok || !strings.HasSuffix(s, "]:") {
		return Thread{}, false
	}
	id, rest, ok := strings.Cut(rest, " ")
	if _, err := strconv.Atoi(id); err != nil || !ok {
		return Thread{}, false
	}
	i := strings.IndexByte(rest, '[')
	if i < 0 {
		return Thread{}, false
	}
	state := strings.TrimSuffix(rest[i+1:], "]:")
	return Thread{ID: id, Name: state, Active: strings.HasPrefix(state, "running") || strings.HasPrefix(state, "runnable") || strings.HasPrefix(state, "syscall")}, true
}

// goroutine takes a line of a dump of goroutines: a call, then its place behind a tab.
func (b *stackBlock) goroutine(line []byte) bool {
	s := strings.TrimRight(string(line[:min(len(line), 4000)]), " \r")
	if t, ok := goThread(s); ok {
		b.begin(t)
		return true
	}
	switch {
	case s == "", strings.HasPrefix(s, "...additional frames elided"):
		return true
	case strings.HasPrefix(s, "\t"), strings.HasPrefix(s, "        "):
		place, _, _ := strings.Cut(strings.TrimSpace(s), " ")
		file, number, ok := cutLast(place, ":")
		n, err := strconv.Atoi(number)
		if b.thread == nil || len(b.thread.Frames) == 0 || !ok || err != nil {
			return ok && err == nil
		}
		last := &b.thread.Frames[len(b.thread.Frames)-1]
		last.File, last.Line = file, n
		return true
	}
	name := strings.TrimPrefix(s, "created by ")
	if name == s && !strings.HasSuffix(s, ")") || strings.Contains(s, " ") && name == s && !strings.Contains(s, "(") {
		return false
	}
	if i := strings.LastIndexByte(name, '('); i > 0 && strings.HasSuffix(name, ")") {
		name = name[:i]
	}
	name, _, _ = strings.Cut(name, " in goroutine ")
	if b.thread == nil || name == "" || strings.ContainsAny(name, " \t") {
		return false
	}
	b.frame(flight.Frame{Name: name})
	return true
}

// procHead begins what WriteProc writes.
const procHead = "commprobe process "

// WriteProc writes what /proc says about a process, in the form that Read reads: a stack of Tool "proc".
func WriteProc(w io.Writer, s *Stack) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s%d\n", procHead, s.PID)
	oneLine := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	for _, f := range []struct{ key, value string }{{"host", s.Host}, {"state", s.State}, {"command", oneLine(s.Name)}} {
		if f.value != "" {
			fmt.Fprintf(&b, "%s: %s\n", f.key, f.value)
		}
	}
	if s.Rank >= 0 {
		fmt.Fprintf(&b, "rank: %d\n", s.Rank)
	}
	for _, t := range s.Threads {
		state := "sleeping"
		if t.Active {
			state = "running"
		}
		fmt.Fprintf(&b, "thread %s %s %s\n", t.ID, state, oneLine(t.Name))
		for _, f := range t.Frames {
			fmt.Fprintf(&b, "    %s\n", oneLine(f.Name))
		}
	}
	b.WriteString("end\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// proc takes a line of what WriteProc wrote.
func (b *stackBlock) proc(line []byte) bool {
	s := strings.TrimRight(string(line[:min(len(line), 4000)]), " \r")
	if b.lines == 1 {
		pid, err := strconv.Atoi(strings.TrimPrefix(s, procHead))
		b.stack.PID = pid
		return err == nil
	}
	if strings.HasPrefix(s, "    ") {
		b.frame(flight.Frame{Name: strings.TrimSpace(s)})
		return true
	}
	if rest, ok := strings.CutPrefix(s, "thread "); ok {
		id, rest, _ := strings.Cut(rest, " ")
		state, name, _ := strings.Cut(rest, " ")
		b.begin(Thread{ID: id, Name: name, Active: state == "running"})
		return true
	}
	key, value, ok := strings.Cut(s, ": ")
	switch key {
	case "host":
		b.stack.Host = value
	case "state":
		b.stack.State = value
	case "command":
		b.stack.Name = value
	case "rank":
		if n, err := strconv.Atoi(value); err == nil {
			b.stack.Rank, b.stack.RankBy = n, "input"
		}
	default:
		return false
	}
	return ok
}
