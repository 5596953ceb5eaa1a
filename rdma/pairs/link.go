package pairs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/commprobe/commprobe/rdma"
)

// Host is one of those that take part.
type Host struct {
	Name string `json:"name"` // as the remote shell takes it
	Addr string `json:"addr"` // as the others reach it
}

// Remote is an agent that was started.
type Remote struct {
	Stdin  io.WriteCloser
	Stdout io.Reader
	// End waits a moment for the agent to end, then ends it. What it returns says how it ended, with its last words on stderr; nil: in order.
	End func() error
}

// Starter starts the agent of a host. It returns once something was started; whether it is an agent shows later.
type Starter func(ctx context.Context, h Host) (*Remote, error)

// Phases in which a host can fail.
const (
	phaseStart   = "start the agent"
	phaseHello   = "first words"
	phaseVersion = "compare versions"
	phaseList    = "list devices"
	phaseMeasure = "measure"
)

// HostError says which host failed, and in which phase.
type HostError struct {
	Host  string    `json:"host"`
	Phase string    `json:"phase"`
	Kind  rdma.Kind `json:"kind"`
	Text  string    `json:"text"`
}

func (e *HostError) Error() string { return fmt.Sprintf("%s: %s: %s", e.Host, e.Phase, e.Text) }

// rhythm is how long what may take. Tests have a quicker one.
type rhythm struct {
	ping  time.Duration // between two of them
	dead  time.Duration // silence after which an agent is given up
	start time.Duration // until an agent's first word, and for its list of devices
	serve time.Duration // to open a device and listen
	leave time.Duration // to end a job that was stopped
}

var usualRhythm = rhythm{ping: 5 * time.Second, dead: 30 * time.Second, start: 30 * time.Second, serve: 30 * time.Second, leave: 15 * time.Second}

// link is the orchestrator's end of the conversation with one agent.
type link struct {
	host   Host
	remote *Remote
	rhythm rhythm
	noise  func(line string) // what on its stdout is not ours
	out    chan *request
	done   chan struct{}

	mu    sync.Mutex
	err   error // why it ended
	heard time.Time
	next  int
	calls map[int]chan *answer
	hello chan *hello
}

// connect starts an agent and hears its first words. Errors are HostErrors.
func connect(ctx context.Context, h Host, start Starter, greeting hello, r rhythm, noise func(string)) (*link, *hello, error) {
	remote, err := start(ctx, h)
	if err != nil {
		return nil, nil, &HostError{h.Name, phaseStart, rdma.Died, err.Error()}
	}
	l := &link{host: h, remote: remote, rhythm: r, noise: noise, out: make(chan *request, 64), done: make(chan struct{}), heard: time.Now(),
		calls: map[int]chan *answer{}, hello: make(chan *hello, 1)}
	go l.write()
	go l.read()
	l.send(&request{Do: doHello, Hello: &greeting})
	timer := time.NewTimer(r.start)
	defer timer.Stop()
	select {
	case first := <-l.hello:
		go l.watch()
		if err := skew(h, &greeting, first); err != nil {
			l.close(err)
			return nil, nil, err
		}
		return l, first, nil
	case <-l.done:
		return nil, nil, &HostError{h.Name, phaseHello, rdma.Died, l.Err().Error()}
	case <-timer.C:
		err = &HostError{h.Name, phaseHello, rdma.TimedOut, fmt.Sprintf("no word of an agent within %v: does the remote shell wait for a password, or the host not answer?", r.start)}
	case <-ctx.Done():
		err = &HostError{h.Name, phaseHello, rdma.Interrupted, "interrupted"}
	}
	l.close(err)
	return nil, nil, err
}

// skew compares what the two sides are.
func skew(h Host, mine, theirs *hello) error {
	switch {
	case mine.Protocol != theirs.Protocol:
		return &HostError{h.Name, phaseVersion, rdma.Usage, fmt.Sprintf("version skew: its commprobe %s speaks version %d of the agents' protocol, this one (%s) version %d: install the same commprobe there, or name it with --remote-binary",
			theirs.Program, theirs.Protocol, mine.Program, mine.Protocol)}
	case mine.Program != theirs.Program:
		return &HostError{h.Name, phaseVersion, rdma.Usage, fmt.Sprintf("version skew: it has commprobe %s, this one is %s: install the same there, or name it with --remote-binary", theirs.Program, mine.Program)}
	}
	return nil
}

// Err is why the conversation ended; nil while it goes on.
func (l *link) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// close ends the agent. It returns when it is gone or was killed; only the first reason counts.
func (l *link) close(reason error) error {
	l.mu.Lock()
	first := l.err == nil
	if first {
		l.err = reason
		if reason == nil {
			l.err = errors.New("the conversation was ended")
		}
		close(l.done)
	}
	l.mu.Unlock()
	if !first {
		return nil
	}
	_ = l.remote.Stdin.Close() // the agent ends by that; that it did is seen next
	return l.remote.End()
}

// send queues a line. An agent that does not read is seen by its silence.
func (l *link) send(r *request) {
	select {
	case l.out <- r:
	case <-l.done:
	}
}

func (l *link) write() {
	for {
		select {
		case r := <-l.out:
			if writeRequest(l.remote.Stdin, r) != nil {
				return // reading tells why
			}
		case <-l.done:
			return
		}
	}
}

// read takes answers until there are none.
func (l *link) read() {
	in := newLines(l.remote.Stdout)
	for {
		line, err := in.next()
		if err != nil {
			l.ended(err)
			return
		}
		a, ours, err := parseAnswer(line)
		switch {
		case !ours:
			l.noise(string(line))
		case err != nil:
			_ = l.close(fmt.Errorf("the agent said something that is no answer: %w", err))
			return
		default:
			l.dispatch(a)
		}
	}
}

// ended finds out how the agent ended.
func (l *link) ended(err error) {
	if l.Err() != nil {
		return
	}
	_ = l.remote.Stdin.Close()
	switch how := l.remote.End(); {
	case how != nil:
		err = how
	case errors.Is(err, io.EOF), errors.Is(err, os.ErrDeadlineExceeded):
		err = errors.New("the agent ended by itself")
	}
	_ = l.close(err)
}

func (l *link) dispatch(a *answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard = time.Now()
	if a.Hello != nil {
		select {
		case l.hello <- a.Hello:
		default:
		}
	}
	if c := l.calls[a.ID]; c != nil {
		select {
		case c <- a:
		default: // it has room for all that a call may have
		}
		if a.Done {
			delete(l.calls, a.ID)
		}
	}
}

// watch pings, and ends the conversation with an agent that has fallen silent.
func (l *link) watch() {
	tick := time.NewTicker(l.rhythm.ping)
	defer tick.Stop()
	for {
		select {
		case <-l.done:
			return
		case <-tick.C:
		}
		l.mu.Lock()
		silent := time.Since(l.heard)
		l.mu.Unlock()
		if silent > l.rhythm.dead {
			_ = l.close(fmt.Errorf("nothing heard from the agent for %v: the host or the connection to it hangs", silent.Round(time.Second)))
			return
		}
		l.send(&request{Do: doPing})
	}
}

// call is a request whose answers are awaited.
type call struct {
	link    *link
	id      int
	what    string
	answers chan *answer
}

// begin sends a request. limit is for the agent; 0: none of its own.
func (l *link) begin(r *request, what string) *call {
	l.mu.Lock()
	l.next++
	r.ID = l.next
	c := &call{l, r.ID, what, make(chan *answer, 4)}
	l.calls[r.ID] = c.answers
	l.mu.Unlock()
	l.send(r)
	return c
}

// await is the next answer. An agent that does not give one in time hangs, and is ended.
func (c *call) await(ctx context.Context, limit time.Duration) (*answer, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case a := <-c.answers:
		return a, nil
	default:
	}
	select {
	case a := <-c.answers:
		return a, nil
	case <-c.link.done:
		return nil, c.link.Err()
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-timer.C:
		err := fmt.Errorf("%s: no answer of the agent within %v", c.what, limit)
		_ = c.link.close(err)
		return nil, err
	}
}

// stop asks the agent to end the job.
func (c *call) stop() { c.link.send(&request{Do: doStop, Of: c.id}) }
