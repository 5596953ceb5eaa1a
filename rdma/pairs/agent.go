package pairs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/commprobe/commprobe/internal/bootstrap"
	"github.com/commprobe/commprobe/rdma"
)

// Bench is what an agent measures with.
type Bench interface {
	// Devices lists what this host has.
	Devices() (*rdma.List, error)
	// Serve takes one client through its test, after telling where it listens. It blocks until the test is over or ctx is done.
	Serve(ctx context.Context, token bootstrap.Token, j ServeJob, listening func(addr string)) error
	// Test is that client. The report is there on an error as well, as far as the test came.
	Test(ctx context.Context, token bootstrap.Token, j TestJob) (*rdma.Report, error)
}

// Agent does on one host what an orchestrator asks for.
type Agent struct {
	Program string // version
	Bench   Bench
	// Idle is how long the orchestrator may be silent before it is taken for gone; 0: a minute. It pings every few seconds.
	Idle time.Duration
}

const (
	defaultIdle = time.Minute
	lastWords   = time.Second // for jobs to end in order once nobody listens any more
	maxJobs     = 256
)

// errNoHello is the answer to whatever else comes first.
var errNoHello = errors.New("the first line is not a hello: rdma-agent is started by `commprobe rdma pairs` only")

// served is one conversation of an agent.
type served struct {
	agent *Agent
	token bootstrap.Token
	out   chan *answer
	ctx   context.Context // of all jobs
	jobs  sync.WaitGroup
	mu    sync.Mutex
	stops map[int]context.CancelFunc // of the jobs that run
}

// Run serves one orchestrator until in ends, which is no error, or nothing was heard for Idle. Then all that was asked for is ended; what has not ended a second
// later (a call into a driver that hangs) is an error, and the caller must end the process.
func (a *Agent) Run(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	s := &served{agent: a, out: make(chan *answer, maxJobs), ctx: ctx, stops: map[int]context.CancelFunc{}}
	written := make(chan struct{})
	go func() {
		defer close(written)
		s.write(out)
	}()
	err := s.listen(in)
	cancel()
	ended := make(chan struct{})
	go func() {
		s.jobs.Wait()
		close(s.out)
		<-written
		close(ended)
	}()
	select {
	case <-ended:
		return err
	case <-time.After(lastWords):
		return errors.Join(err, fmt.Errorf("what was asked for has not ended %v after it was stopped", lastWords))
	}
}

// write is the only one that writes, so that a reader who does not read holds up nothing else.
func (s *served) write(out io.Writer) {
	var broken bool
	for a := range s.out {
		if !broken {
			broken = writeAnswer(out, a) != nil
		}
	}
}

// tell queues an answer. Who does not read its answers is as good as gone.
func (s *served) tell(a *answer) {
	select {
	case s.out <- a:
	case <-s.ctx.Done():
		select {
		case s.out <- a:
		default:
		}
	}
}

type incoming struct {
	line []byte
	err  error
}

// listen takes requests until there is nobody any more who would send some.
func (s *served) listen(in io.Reader) error {
	heard := make(chan incoming)
	go func() { // ends with the process where in does not end
		l := newLines(in)
		for {
			line, err := l.next()
			select {
			case heard <- incoming{line, err}:
			case <-s.ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	idle := s.agent.Idle
	if idle == 0 {
		idle = defaultIdle
	}
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for greeted := false; ; {
		select {
		case <-s.ctx.Done():
			return s.ctx.Err()
		case <-timer.C:
			return fmt.Errorf("nothing heard from the orchestrator for %v: it is stopped or cut off", idle)
		case i := <-heard:
			if errors.Is(i.err, io.EOF) {
				return nil
			}
			if i.err != nil {
				return fmt.Errorf("read requests: %w", i.err)
			}
			timer.Reset(idle)
			done, err := s.take(i.line, &greeted)
			if done || err != nil {
				return err
			}
		}
	}
}

// take is one line.
func (s *served) take(line []byte, greeted *bool) (done bool, err error) {
	r, err := parseRequest(line)
	switch {
	case !*greeted && (err != nil || r.Do != doHello):
		return true, errNoHello
	case err != nil:
		return true, err
	case r.Do == doHello:
		*greeted = true
		return s.greet(r.Hello)
	case r.Do == doPing:
		select { // whoever does not read has other worries, and the end of stdin must not wait for it
		case s.out <- &answer{}:
		default:
		}
	case r.Do == doStop:
		s.mu.Lock()
		stop := s.stops[r.Of]
		s.mu.Unlock()
		if stop != nil {
			stop()
		}
	default:
		s.start(r)
	}
	return false, nil
}

// greet answers with what this side is, even where the two do not fit: the orchestrator then names both versions.
func (s *served) greet(h *hello) (done bool, err error) {
	host, err := os.Hostname()
	if err != nil {
		host = "?"
	}
	s.tell(&answer{Hello: &hello{Protocol: Protocol, Program: s.agent.Program, Host: host, PID: os.Getpid()}})
	if h.Protocol != Protocol {
		return true, nil
	}
	s.token, err = bootstrap.ParseToken(h.Token)
	return err != nil, err
}

// start begins a job beside the others.
func (s *served) start(r *request) {
	limit := r.Limit
	if limit == 0 {
		limit = defaultIdle
	}
	ctx, cancel := context.WithTimeout(s.ctx, limit)
	s.mu.Lock()
	full := len(s.stops) >= maxJobs || s.stops[r.ID] != nil
	if !full {
		s.stops[r.ID] = cancel
	}
	s.mu.Unlock()
	if full {
		cancel()
		s.tell(&answer{ID: r.ID, Done: true, Error: &Failure{rdma.Internal, fmt.Sprintf("%d jobs run already, or one has the number %d", maxJobs, r.ID)}})
		return
	}
	s.jobs.Go(func() {
		a := s.do(ctx, r)
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			a.Error = &Failure{rdma.TimedOut, fmt.Sprintf("%s: not done within %v", r.Do, limit)}
		}
		s.mu.Lock()
		delete(s.stops, r.ID)
		s.mu.Unlock()
		cancel()
		a.ID, a.Done = r.ID, true
		s.tell(a)
	})
}

func (s *served) do(ctx context.Context, r *request) *answer {
	var a answer
	var err error
	switch r.Do {
	case doList:
		a.List, err = s.agent.Bench.Devices()
	case doServe:
		err = s.agent.Bench.Serve(ctx, s.token, *r.Serve, func(addr string) { s.tell(&answer{ID: r.ID, Listening: addr}) })
	case doTest:
		a.Report, err = s.agent.Bench.Test(ctx, s.token, *r.Test)
	}
	a.Error = failure(err)
	return &a
}
