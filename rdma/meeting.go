package rdma

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/commprobe/commprobe/internal/bootstrap"
)

// DefaultPort of `rdma serve`; perftest's 18515 stays free.
const DefaultPort = "18517"

// Want says which port to open, and what the user fixed on this side.
type Want struct {
	Device    string // "" the first with an active port
	Port      int    // 0 the first that is active
	LinkLayer string // "" any; a server prefers the client's
	Program   string // version of this program
	Library   string // file to load as libibverbs; "" searches
	Memory    string // "" as the options say
	CPU       int    // −1: those near the device
}

// Client is one side's wish to test the link to a server.
type Client struct {
	Addr    string // host:port of the server
	Token   bootstrap.Token
	Want    Want
	Options Options
	Hooks   Hooks

	open func(Want) (device, error)
}

// Server takes one client after the other.
type Server struct {
	Addr  string // to listen at
	Token bootstrap.Token
	Want  Want
	GID   int  // index for this side; −1: any
	Once  bool // end after one client
	Hooks Hooks
	// Listening is told once where the server listens.
	Listening func(addr string)
	// Log is told of refused connections.
	Log func(format string, args ...any)
	// Done is told of each test that ended; err is nil where all went well.
	Done func(r *Report, err error)

	open func(Want) (device, error)
	// Deadline after which a silent client is taken for dead; 0: 10 s. What a test waits for itself, its client says.
	Deadline time.Duration

	handshake time.Duration // limit for a connection to prove itself; 0: the store's own
}

func opener(f func(Want) (device, error)) func(Want) (device, error) {
	if f == nil {
		return openVerbs
	}
	return f
}

// request and answer are the first words of the two sides.
type request struct {
	Options Options `json:"options"`
	Side    Side    `json:"side"`
}

type answer struct {
	Options Options   `json:"options"` // with what the server fixed on its side
	Side    Side      `json:"side"`
	Refused *farewell `json:"refused,omitempty"`
}

const (
	requestKey = "request"
	answerKey  = "answer"
)

// deadAfter is the silence that counts as death: the deadline of the test, within what the heartbeat can tell.
func deadAfter(deadline time.Duration) time.Duration {
	return min(max(deadline, 2*time.Second), time.Minute)
}

// Run tests the link. The report is there on an error as well, as far as the test came. It blocks until the test is over, at most by its deadlines, or
// until ctx is done.
func (c *Client) Run(ctx context.Context) (*Report, error) {
	r := &Report{Schema: Schema, Started: time.Now(), Role: "client", Options: &c.Options}
	err := c.run(ctx, r)
	r.end(err)
	return r, err
}

func (r *Report) end(err error) {
	r.Ended, r.Outcome = time.Now(), Outcome{Status: okStatus}
	if err != nil {
		r.Outcome = Outcome{Status: string(KindOf(err)), Message: err.Error()}
	}
}

func (c *Client) run(ctx context.Context, r *Report) (err error) {
	if err := c.Options.Validate(); err != nil {
		return err
	}
	if c.Options.Seed == 0 {
		c.Options.Seed = newSeed()
	}
	c.Want.CPU = c.Options.CPU
	dev, err := opener(c.open)(c.Want)
	if err != nil {
		return err
	}
	defer closeDevice(dev, &err)
	r.Client = dev.side()
	r.Client.Memory = c.Options.Memory
	store, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer store.Close()
	s := &session{store: store, rank: clientRank, peer: "the server " + c.Addr, phase: "first words", patience: c.Options.patience()}
	end := s.watch(ctx)
	defer end()
	if err := c.introduce(ctx, s, r); err != nil {
		if store.Err() == nil {
			s.abort(err)
		}
		return err
	}
	s.name(r.Server.Host)
	l := &linkTest{session: s, options: &c.Options, report: r, hooks: c.Hooks}
	return l.finish(ctx, dev)
}

// dial joins the server's store. A store that just ends another client's test makes way for the next one, so that is tried again.
func (c *Client) dial(ctx context.Context) (*bootstrap.Client, error) {
	dialing, cancel := context.WithTimeout(ctx, c.Options.Deadline)
	defer cancel()
	dead := deadAfter(c.Options.Deadline)
	cfg := bootstrap.Config{
		World: 2, Token: c.Token, Hello: bootstrap.Hello{Ranks: []int{clientRank}, Program: c.Want.Program}, Heartbeat: dead / 4, DeadAfter: dead,
	}
	for {
		store, err := bootstrap.Dial(dialing, c.Addr, cfg)
		var aborted *bootstrap.AbortedError
		switch {
		case err == nil:
			return store, nil
		case ctx.Err() != nil:
			return nil, problem(Interrupted, ctx.Err(), "interrupted")
		case !errors.As(err, &aborted) && !errors.Is(err, bootstrap.ErrServerClosed):
			return nil, dialProblem(err, c.Addr)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-dialing.Done():
			return nil, dialProblem(err, c.Addr)
		}
	}
}

// introduce tells the server what is asked for and learns what it is.
func (c *Client) introduce(ctx context.Context, s *session, r *Report) error {
	text, err := json.Marshal(request{c.Options, *r.Client})
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	if err := s.store.Set(waiting, requestKey, text); err != nil {
		return s.lost(err)
	}
	if text, err = s.store.Get(waiting, answerKey); err != nil {
		return s.lost(err)
	}
	var a answer
	if err := json.Unmarshal(text, &a); err != nil {
		return problem(Internal, err, "%s answered something else than was asked: %v", s.named(), err)
	}
	if a.Refused != nil {
		return problem(a.Refused.Kind, nil, "%s refuses: %s", s.named(), a.Refused.Text)
	}
	c.Options.ServerGID, r.Server = a.Options.ServerGID, &a.Side
	return nil
}

// finish runs the test and, where it fails on this side, tells the other.
func (l *linkTest) finish(ctx context.Context, dev device) error {
	watching, cancel := context.WithCancel(ctx)
	events := make(chan struct{})
	go func() {
		defer close(events)
		dev.events(watching, func(text string) {
			l.mu.Lock()
			l.report.Events = append(l.report.Events, text)
			l.mu.Unlock()
			l.tell("device event: %s", text)
		})
	}()
	done := make(chan error)
	go func() { done <- l.run(ctx, dev) }() // a goroutine of its own, since a device may bind its thread
	err := <-done
	cancel()
	<-events
	err = l.withEvents(err)
	if err != nil && l.store.Err() == nil {
		l.abort(err)
	}
	return err
}

// withEvents adds what the device reported to an error that it may explain.
func (l *linkTest) withEvents(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if kind := KindOf(err); err == nil || len(l.report.Events) == 0 || kind != Died && kind != TimedOut && kind != Internal {
		return err
	}
	return problem(KindOf(err), err, "%v; the device reported meanwhile: %s", err, strings.Join(l.report.Events, "; "))
}

func closeDevice(dev device, err *error) {
	if cerr := dev.close(); cerr != nil && *err == nil {
		*err = problem(Internal, cerr, "close the device: %v", cerr)
	}
}

// Run serves until ctx is done, which is no error, or after one client with Once; then the error is that test's.
func (s *Server) Run(ctx context.Context) error {
	dev, err := opener(s.open)(s.Want) // what cannot work is said now, not to the first client
	if err != nil {
		return err
	}
	if err := dev.close(); err != nil {
		return problem(Internal, err, "close the device: %v", err)
	}
	addr := s.Addr
	for first := true; ; first = false {
		store, err := s.listen(addr)
		if err != nil {
			return problem(Usage, err, "listen at %s: %v; is another `commprobe rdma serve` running there? Choose another port", addr, err)
		}
		if first && s.Listening != nil {
			s.Listening(store.Addr().String())
		}
		addr = store.Addr().String() // the same port again, should it have been chosen by the system
		r, err := s.one(ctx, store)
		leave(store)
		_ = store.Close() // says goodbye to the client; nothing else can be done about its failure
		if ctx.Err() != nil && r == nil {
			return nil
		}
		if r != nil && s.Done != nil {
			s.Done(r, err)
		}
		if s.Once && r != nil || ctx.Err() != nil {
			return err
		}
	}
}

// listening is a store that was told when its client is lost.
func (s *Server) listen(addr string) (*bootstrap.Server, error) {
	var store *bootstrap.Server
	ready := make(chan struct{})
	dead := deadAfter(cmp.Or(s.Deadline, Defaults().Deadline))
	cfg := bootstrap.Config{
		World: 2, Token: s.Token, Hello: bootstrap.Hello{Program: s.Want.Program}, Log: s.Log, HandshakeTimeout: s.handshake, DeadAfter: dead, Heartbeat: dead / 4,
		OnLost: func(h bootstrap.Hello, err error) {
			<-ready
			text := fmt.Sprintf("%s (pid %d): %v", h.Host, h.PID, err)
			store.Abort(bootstrap.Cause{Rank: clientRank, Host: h.Host, Phase: lostPhase, Reason: farewell{Died, text}.encode()})
		},
		WaitTimeout: 365 * 24 * time.Hour, // for the next client
	}
	store, err := bootstrap.Listen(addr, cfg)
	close(ready)
	return store, err
}

// leave gives the client the time to take what was said last and to go by itself.
func leave(store *bootstrap.Server) {
	for end := time.Now().Add(2 * time.Second); store.Err() == nil && len(store.Members()) > 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
}

// one waits for a client and goes through its test. Without a client the report is nil.
func (s *Server) one(ctx context.Context, store *bootstrap.Server) (r *Report, err error) {
	text, err := store.Get(ctx, requestKey)
	if err != nil {
		return nil, err
	}
	r = &Report{Schema: Schema, Started: time.Now(), Role: "server"}
	defer func() { r.end(err) }()
	var q request
	if err := json.Unmarshal(text, &q); err != nil {
		return r, problem(Internal, err, "a client asked something that is no request: %v", err)
	}
	r.Options, r.Client = &q.Options, &q.Side
	peer := fmt.Sprintf("%s (pid %d)", q.Side.Host, q.Side.PID)
	ses := &session{store: store, rank: serverRank, peer: peer, phase: "first words"}
	dev, err := s.welcome(ctx, ses, &q, r)
	if err != nil {
		return r, err
	}
	defer closeDevice(dev, &err)
	ses.patience = q.Options.patience()
	end := ses.watch(ctx)
	defer end()
	l := &linkTest{session: ses, options: r.Options, report: r, hooks: s.Hooks}
	return r, l.finish(ctx, dev)
}

// welcome opens the device for a client and answers it.
func (s *Server) welcome(ctx context.Context, ses *session, q *request, r *Report) (device, error) {
	want := s.Want
	if want.LinkLayer == "" {
		want.LinkLayer = q.Side.LinkLayer
	}
	var dev device
	err := q.Options.Validate()
	if err == nil {
		dev, err = opener(s.open)(want)
	}
	a := answer{Options: q.Options}
	if err == nil {
		r.Server = dev.side()
		r.Server.Memory = q.Options.Memory
		if want.Memory != "" {
			r.Server.Memory = want.Memory
		}
		if s.GID != anyGID {
			a.Options.ServerGID = s.GID
		}
		q.Options.ServerGID = a.Options.ServerGID
		a.Side = *r.Server
	} else {
		a.Refused = &farewell{KindOf(err), err.Error()}
	}
	text, jerr := json.Marshal(a)
	if jerr == nil {
		jerr = ses.store.Set(ctx, answerKey, text)
	}
	if err == nil && jerr != nil {
		err = errors.Join(ses.lost(jerr), dev.close())
	}
	if err != nil {
		return nil, err
	}
	return dev, nil
}

// CompleteAddr makes host:port of what a user writes: a host, a port, ":port", or nothing (for a server: all addresses).
func CompleteAddr(addr string) string {
	if _, _, err := net.SplitHostPort(addr); err == nil {
		return addr
	}
	digits := addr != ""
	for _, c := range addr {
		digits = digits && c >= '0' && c <= '9'
	}
	if digits {
		return ":" + addr
	}
	if n := len(addr); n > 2 && addr[0] == '[' && addr[n-1] == ']' {
		addr = addr[1 : n-1]
	}
	return net.JoinHostPort(addr, DefaultPort)
}
