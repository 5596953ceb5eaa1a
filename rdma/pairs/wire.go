package pairs

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/commprobe/commprobe/rdma"
)

// Protocol is the version of what orchestrator and agent say to each other.
const Protocol = 1

// mark begins each line of an agent. Whatever else comes out of a remote shell (a greeting, a library that prints) is shown, not parsed.
const mark = "commprobe-agent: "

// maxLine bounds a line of either side; a report of one test has some kilobytes.
const maxLine = 4 << 20

// What an orchestrator asks for.
const (
	doHello = "hello" // must be first
	doPing  = "ping"
	doList  = "list"
	doServe = "serve"
	doTest  = "test"
	doStop  = "stop"
)

// request is a line to an agent.
type request struct {
	ID    int           `json:"id,omitempty"` // from 1 on, never used twice; none for hello and ping
	Do    string        `json:"do"`
	Limit time.Duration `json:"limit_ns,omitempty"` // after which the agent itself gives up
	Hello *hello        `json:"hello,omitempty"`
	Serve *ServeJob     `json:"serve,omitempty"`
	Test  *TestJob      `json:"test,omitempty"`
	Of    int           `json:"of,omitempty"` // what to stop
}

// hello is the first word of each side.
type hello struct {
	Protocol int    `json:"protocol"`
	Program  string `json:"program"` // version
	Token    string `json:"token,omitempty"`
	Host     string `json:"host,omitempty"` // the agent's own name for its host
	PID      int    `json:"pid,omitempty"`
}

// answer is a line from an agent. A request has one with Done; a server says before where it listens.
type answer struct {
	ID        int          `json:"id,omitempty"`
	Hello     *hello       `json:"hello,omitempty"`
	Listening string       `json:"listening,omitempty"`
	Done      bool         `json:"done,omitempty"`
	List      *rdma.List   `json:"list,omitempty"`
	Report    *rdma.Report `json:"report,omitempty"`
	Error     *Failure     `json:"error,omitempty"`
}

// Failure is an error that travels: what kind, and what it says.
type Failure struct {
	Kind rdma.Kind `json:"kind"`
	Text string    `json:"text"`
}

func (f *Failure) Error() string { return f.Text }

func failure(err error) *Failure {
	if err == nil {
		return nil
	}
	var f *Failure
	if errors.As(err, &f) {
		return f
	}
	return &Failure{rdma.KindOf(err), err.Error()}
}

// ServeJob asks an agent for the passive side of one test.
type ServeJob struct {
	Device   string        `json:"device"`
	Port     int           `json:"port"`
	Bind     string        `json:"bind"`     // name or address by which the other hosts reach this one
	TCPPort  int           `json:"tcp_port"` // 0: any that is free
	Memory   string        `json:"memory"`
	Deadline time.Duration `json:"deadline_ns"` // silence after which a client is taken for dead
}

// TestJob asks an agent for the active side.
type TestJob struct {
	Addr    string       `json:"addr"` // of the server
	Device  string       `json:"device"`
	Port    int          `json:"port"`
	Options rdma.Options `json:"options"`
}

// errLong is a line that no side of this protocol writes.
var errLong = fmt.Errorf("a line of more than %d MiB", maxLine>>20)

// lines reads one line after the other.
type lines struct{ r *bufio.Reader }

func newLines(r io.Reader) *lines { return &lines{bufio.NewReaderSize(r, 64<<10)} }

// next is the next line without its end; the last may have none. A line that is too long is read to its end and is errLong.
func (l *lines) next() ([]byte, error) {
	var line []byte
	long := false
	for {
		part, err := l.r.ReadSlice('\n')
		if !long {
			line = append(line, part...)
		}
		if len(line) > maxLine {
			long, line = true, nil
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case long:
			return nil, errLong
		case err != nil && len(line) == 0:
			return nil, err
		}
		return bytes.TrimRight(line, "\r\n"), nil
	}
}

// parseRequest reads a line to an agent.
func parseRequest(line []byte) (*request, error) {
	var r request
	if err := json.Unmarshal(line, &r); err != nil {
		return nil, fmt.Errorf("not a request: %w", err)
	}
	var missing bool
	switch r.Do {
	case doPing:
	case doHello:
		missing = r.Hello == nil
	case doList:
		missing = r.ID < 1
	case doServe:
		missing = r.ID < 1 || r.Serve == nil
	case doTest:
		missing = r.ID < 1 || r.Test == nil
	case doStop:
		missing = r.Of < 1
	default:
		return nil, fmt.Errorf("request %q: there is no such thing", r.Do)
	}
	if missing || r.Limit < 0 {
		return nil, fmt.Errorf("request %s: incomplete", r.Do)
	}
	return &r, nil
}

// parseAnswer reads a line of an agent's stdout; ours is false where something else wrote it.
func parseAnswer(line []byte) (a *answer, ours bool, err error) {
	text, ours := bytes.CutPrefix(line, []byte(mark))
	if !ours {
		return nil, false, nil
	}
	a = new(answer)
	if err := json.Unmarshal(text, a); err != nil {
		return nil, true, fmt.Errorf("not an answer: %w", err)
	}
	return a, true, nil
}

func writeRequest(w io.Writer, r *request) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = w.Write(append(text, '\n'))
	return err
}

func writeAnswer(w io.Writer, a *answer) error {
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	_, err = w.Write(append(append([]byte(mark), text...), '\n'))
	return err
}
