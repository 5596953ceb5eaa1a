package live

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/commprobe/commprobe/hanglab/evidence"
	"github.com/commprobe/commprobe/hanglab/flight"
)

const (
	maxThreads = 256
	maxProc    = 1 << 20 // bytes of a file in /proc
	activeFor  = 300 * time.Millisecond
)

// readProcess reads who a process is. A nil env means that it may not be read.
func readProcess(ctx context.Context, opt Options, pid int) (*process, error) {
	return within(ctx, opt.Step, func() (*process, error) {
		dir := filepath.Join(opt.Root, "proc", strconv.Itoa(pid))
		status, err := readProc(filepath.Join(dir, "status"))
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				err = errors.New("there is none")
			}
			return nil, err
		}
		p := &process{pid: pid, inner: pid, rank: -1, name: statusField(status, "Name")}
		p.parent, _ = strconv.Atoi(statusField(status, "PPid"))
		if f := strings.Fields(statusField(status, "NSpid")); len(f) > 1 {
			p.inner, _ = strconv.Atoi(f[len(f)-1])
		}
		if raw, err := readProc(filepath.Join(dir, "cmdline")); err == nil {
			p.command = strings.TrimSpace(strings.ReplaceAll(string(raw), "\x00", " "))
		}
		if raw, err := readProc(filepath.Join(dir, "environ")); err == nil {
			p.env = make(map[string]string)
			for pair := range bytes.SplitSeq(raw, []byte{0}) {
				if name, value, ok := strings.Cut(string(pair), "="); ok {
					p.env[name] = value
				}
			}
			p.place()
		}
		return p, nil
	})
}

func readProc(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var buf bytes.Buffer
	_, err = buf.ReadFrom(&limited{f, maxProc})
	return buf.Bytes(), err
}

// limited ends a file that does not end by itself.
type limited struct {
	f    *os.File
	left int
}

func (l *limited) Read(b []byte) (int, error) {
	if l.left <= 0 {
		return 0, errors.New("larger than any file of its kind")
	}
	n, err := l.f.Read(b[:min(len(b), l.left)])
	l.left -= n
	return n, err
}

// statusField is the value of "Name:\tvalue".
func statusField(status []byte, name string) string {
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// kernelState saves what the kernel says of a process: its state, and where each thread waits.
func (c *collector) kernelState(ctx context.Context, p *process) {
	s, err := within(ctx, c.opt.Step, func() (*evidence.Stack, error) { return c.threads(p) })
	if err != nil {
		c.fail("state of "+p.String(), p.rank, err)
		return
	}
	var buf bytes.Buffer
	if err := evidence.WriteProc(&buf, s); err == nil {
		c.save(p.file("proc", ".txt"), buf.Bytes())
	}
}

func (c *collector) threads(p *process) (*evidence.Stack, error) {
	dir := filepath.Join(c.opt.Root, "proc", strconv.Itoa(p.pid))
	status, err := readProc(filepath.Join(dir, "status"))
	if err != nil {
		return nil, errors.New("it has ended")
	}
	host, _ := os.Hostname()
	s := &evidence.Stack{Tool: "proc", Rank: p.rank, PID: p.pid, Host: host, Name: p.command, State: firstWord(statusField(status, "State"))}
	tasks, err := os.ReadDir(filepath.Join(dir, "task"))
	if err != nil {
		return nil, fmt.Errorf("threads: %w", err)
	}
	slices.SortFunc(tasks, func(a, b os.DirEntry) int { return number(a.Name()) - number(b.Name()) })
	tasks = tasks[:min(len(tasks), maxThreads)]
	before := make([]int64, len(tasks))
	for i, t := range tasks {
		before[i] = ticks(filepath.Join(dir, "task", t.Name()))
	}
	time.Sleep(activeFor)
	for i, t := range tasks {
		task := filepath.Join(dir, "task", t.Name())
		s.Threads = append(s.Threads, evidence.Thread{
			ID: t.Name(), Name: fileText(filepath.Join(task, "comm")), Frames: kernelFrames(task),
			Active: ticks(task)-before[i] >= int64(activeFor/(4*10*time.Millisecond)),
		})
	}
	return s, nil
}

func number(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

func firstWord(s string) string {
	word, _, _ := strings.Cut(s, " ")
	return word
}

func fileText(name string) string {
	raw, err := readProc(name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// ticks is the processor time of a thread, in hundredths of a second.
func ticks(task string) int64 {
	raw := fileText(filepath.Join(task, "stat"))
	i := strings.LastIndexByte(raw, ')') // the name before that may hold anything
	f := strings.Fields(raw[i+1:])
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	return user + system
}

// kernelFrames is a thread's stack in the kernel, which only root may read, else the function it waits in.
func kernelFrames(task string) []flight.Frame {
	var out []flight.Frame
	for line := range strings.Lines(fileText(filepath.Join(task, "stack"))) {
		_, name, ok := strings.Cut(strings.TrimSpace(line), "] ") // "[<0>] futex_wait+0x5c/0x90"
		if name, _, _ = strings.Cut(name, "+"); ok && name != "" {
			out = append(out, flight.Frame{Name: name})
		}
	}
	if wchan := fileText(filepath.Join(task, "wchan")); len(out) == 0 && wchan != "" && wchan != "0" {
		out = append(out, flight.Frame{Name: wchan})
	}
	return out
}
