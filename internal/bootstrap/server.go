package bootstrap

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

// Server hosts the store of one job and is the coordinator's own view of it.
// It must be closed.
type Server struct {
	cfg Config
	hub *hub
	ln  net.Listener

	refusals refusalLog

	mu      sync.Mutex
	closing bool
	pending map[net.Conn]struct{} // connections that have not joined
	wg      sync.WaitGroup        // accept loop, connections, broadcasts; Add only under mu while not closing
}

// joinRequest and welcome are what the two sides tell each other on joining.
type joinRequest struct {
	Hello Hello
	World int
}

type welcome struct {
	World         int
	DeadAfter     time.Duration // silence after which the server gives the client up
	MaxFrameBytes int
}

// Listen starts a store at addr ("host:port", "[::1]:0", ":0") and returns at
// once; it accepts workers in the background until Close.
func Listen(addr string, cfg Config) (*Server, error) {
	s, err := newServer(cfg)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", addr, err)
	}
	s.ln, err = net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("start store: %w", err)
	}
	s.wg.Go(s.accept)
	return s, nil
}

func newServer(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if cfg.World == 0 {
		return nil, errors.New("config: no world size")
	}
	if cfg.Hello.Host == "" {
		cfg.Hello.Host = hostname()
	}
	return &Server{cfg: cfg, hub: newHub(cfg), pending: map[net.Conn]struct{}{}}, nil
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown host"
	}
	return name
}

// Addr returns the address on which the server listens.
func (s *Server) Addr() net.Addr { return s.ln.Addr() }

// Close says goodbye to all clients, gives them half a second to take what was
// sent to them, and frees everything. Pending calls return [ErrClosed], those
// of clients [ErrServerClosed] (or the earlier abort). It may be called again,
// and from OnLost.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		s.wg.Wait()
		return nil
	}
	s.closing = true
	for conn := range s.pending {
		_ = conn.Close()
	}
	s.mu.Unlock()

	var err error
	if s.ln != nil {
		err = s.ln.Close()
	}
	s.hub.end(ErrClosed)
	var told sync.WaitGroup
	var aborted *AbortedError
	isAborted := errors.As(s.hub.failure(), &aborted)
	for _, m := range s.hub.members() {
		told.Go(func() {
			// Also bounds a write that is stuck in a client that reads nothing.
			force := time.AfterFunc(closeDrainWait, func() { _ = m.link.conn.Close() })
			if isAborted {
				// The broadcast of Abort may come after our goodbye. The cause
				// must not; to hear it twice does no harm.
				_ = m.link.sendJSON(opAbort, 0, 0, aborted.Cause)
			}
			if m.link.send(&message{op: opGoodbye}) != nil {
				force.Reset(0)
				return
			}
			m.link.closeWrite()
		})
	}
	told.Wait()
	s.wg.Wait()
	return err
}

// spawn runs f in a goroutine that Close waits for, unless closing already.
func (s *Server) spawn(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.wg.Go(f)
	return true
}

func (s *Server) accept() {
	for {
		conn, err := s.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of file descriptors, for example: it may pass.
			s.cfg.Log("accept: %v", err)
			select {
			case <-s.hub.done:
				return
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		if !s.admit(conn) {
			_ = conn.Close()
		}
	}
}

// admit starts the handler of a new connection if there is room for one more
// that has not proved itself.
func (s *Server) admit(conn net.Conn) bool {
	s.mu.Lock()
	waiting, closing := len(s.pending), s.closing
	ok := !closing && waiting < s.cfg.MaxPending
	if ok {
		s.pending[conn] = struct{}{}
		s.wg.Go(func() { s.serve(conn) })
	}
	s.mu.Unlock()
	if !ok && !closing {
		s.refuse(conn, fmt.Errorf("%d connections are already waiting to join", waiting))
	}
	return ok
}

// serve runs one connection from its first byte to its end.
func (s *Server) serve(conn net.Conn) {
	defer conn.Close()
	m, err := s.admitMember(newLink(conn))
	s.mu.Lock()
	delete(s.pending, conn)
	closing := s.closing
	s.mu.Unlock()
	if err != nil {
		if !closing {
			s.refuse(conn, err)
		}
		return
	}
	if closing {
		// Close may have listed the members before this one was among them.
		_ = m.link.send(&message{op: opGoodbye})
		s.hub.leave(m, true)
		return
	}
	w := welcome{World: s.cfg.World, DeadAfter: s.cfg.DeadAfter, MaxFrameBytes: s.cfg.MaxFrameBytes}
	if err = m.link.sendJSON(opWelcome, 0, 0, w); err == nil {
		err = s.session(m)
	}
	counted := s.hub.leave(m, err == nil)
	s.mu.Lock()
	closing = s.closing
	s.mu.Unlock()
	switch {
	case err == nil || closing:
	case !counted:
		s.refuse(conn, handshakeReason(err, s.cfg.DeadAfter))
	case s.cfg.OnLost != nil:
		// Not in s.wg, so that the callback may call Close.
		go s.cfg.OnLost(m.hello, lossReason(err, s.cfg.DeadAfter))
	}
}

// admitMember takes a connection through the handshake and lets it join.
func (s *Server) admitMember(l *link) (*member, error) {
	if err := l.conn.SetDeadline(time.Now().Add(s.cfg.HandshakeTimeout)); err != nil {
		return nil, err
	}
	if err := acceptAuth(l, s.cfg.Token); err != nil {
		return nil, handshakeReason(err, s.cfg.HandshakeTimeout)
	}
	msg, err := l.read(s.cfg.MaxFrameBytes)
	if err != nil {
		return nil, handshakeReason(err, s.cfg.HandshakeTimeout)
	}
	var req joinRequest
	if msg.op != opHello || json.Unmarshal(msg.value, &req) != nil {
		return nil, errors.New("no hello after authentication")
	}
	slices.Sort(req.Hello.Ranks)
	m := &member{hello: req.Hello, link: l}
	// Before it becomes visible to broadcasts: they write on this link.
	if err := l.establish(s.cfg.DeadAfter); err != nil {
		return nil, err
	}
	if err := s.hub.join(m, req.World); err != nil {
		_ = l.sendJSON(opReject, 0, 0, toWire(err))
		return nil, err
	}
	return m, nil
}

// refuse logs one line about a connection that was turned away.
func (s *Server) refuse(conn net.Conn, reason error) {
	ok, last := s.refusals.allow(time.Now())
	if !ok {
		return
	}
	s.cfg.Log("refused connection from %v: %v", conn.RemoteAddr(), reason)
	if last {
		s.cfg.Log("more than %d connections refused within %v: further ones are not logged for a while",
			refusalsPerWindow, refusalWindow)
	}
}

const (
	refusalWindow     = 10 * time.Second
	refusalsPerWindow = 100
)

// refusalLog bounds the log that a flood of connections can cause.
type refusalLog struct {
	mu    sync.Mutex
	start time.Time
	count int
}

func (r *refusalLog) allow(now time.Time) (ok, last bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.start) > refusalWindow {
		r.start, r.count = now, 0
	}
	r.count++
	return r.count <= refusalsPerWindow, r.count == refusalsPerWindow
}

// session is the joined life of one connection.
type session struct {
	s      *Server
	m      *member
	ctx    context.Context // ends with the connection
	wg     sync.WaitGroup
	mu     sync.Mutex
	cancel map[uint64]context.CancelFunc // waiting calls by id
}

// session serves a member until it says goodbye (nil) or is lost.
func (s *Server) session(m *member) error {
	ctx, cancel := context.WithCancel(context.Background())
	ses := &session{s: s, m: m, ctx: ctx, cancel: map[uint64]context.CancelFunc{}}
	defer ses.wg.Wait()
	defer m.link.conn.Close() // frees a handler that is stuck in a write
	defer cancel()
	for {
		msg, err := m.link.read(s.cfg.MaxFrameBytes)
		if err != nil {
			return err
		}
		if msg.op == opGoodbye {
			return nil
		}
		s.hub.confirm(m) // the first message, a ping, says that the welcome has come
		if err := ses.handle(msg); err != nil {
			return err
		}
	}
}

// handle serves one request. An error ends the connection; what the caller did
// wrong goes into the reply instead.
func (ses *session) handle(msg message) error {
	hub := ses.s.hub
	switch msg.op {
	case opPing:
		return ses.m.link.send(&message{op: opPong})
	case opClock:
		now := binary.BigEndian.AppendUint64(nil, uint64(time.Now().UnixNano()))
		return ses.reply(msg.id, now, nil, nil)
	case opSet:
		return ses.reply(msg.id, nil, nil, hub.set(msg.key, msg.value))
	case opTryGet:
		v, ok, err := hub.tryGet(msg.key)
		if err == nil && !ok {
			return ses.m.link.send(&message{op: opReply, flag: replyAbsent, id: msg.id})
		}
		return ses.reply(msg.id, v, nil, err)
	case opDelete:
		return ses.reply(msg.id, nil, nil, hub.remove(msg.key))
	case opGet:
		return ses.later(msg.id, func(ctx context.Context) ([]byte, map[int][]byte, error) {
			v, err := hub.get(ctx, msg.key)
			return v, nil, err
		})
	case opGather:
		return ses.gather(msg)
	case opCancel:
		ses.mu.Lock()
		defer ses.mu.Unlock()
		if stop := ses.cancel[msg.id]; stop != nil {
			stop()
		}
		return nil
	case opAbort:
		var cause Cause
		if err := json.Unmarshal(msg.value, &cause); err != nil {
			return fmt.Errorf("read abort: %w", err)
		}
		ses.s.Abort(cause)
		return nil
	}
	return fmt.Errorf("unexpected message of kind %d", msg.op)
}

func (ses *session) gather(msg message) error {
	hub, mode := ses.s.hub, msg.flag
	if mode < modeBarrier || mode > modeCollect {
		return fmt.Errorf("unexpected gather mode %d", mode)
	}
	for rank := range msg.parts {
		if !slices.Contains(ses.m.hello.Ranks, rank) {
			return ses.reply(msg.id, nil, nil, fmt.Errorf("gather %q: rank %d is not one of this process's (%s)",
				msg.key, rank, FormatRanks(ses.m.hello.Ranks)))
		}
	}
	// The contribution is made here, in the order of arrival; only the wait
	// moves to another goroutine.
	r, err := hub.gatherEnter(mode, msg.key, msg.parts, ses.m.hello.Host)
	if err != nil || mode == modeContribute {
		return ses.reply(msg.id, nil, nil, err)
	}
	return ses.later(msg.id, func(ctx context.Context) ([]byte, map[int][]byte, error) {
		parts, err := hub.wait(ctx, r, mode == modeCollect)
		switch {
		case mode == modeBarrier:
			parts = nil
		case err != nil && mode != modeCollect:
			parts = nil
		}
		return nil, parts, err
	})
}

// later runs a call that may wait, until it ends, is cancelled, or the
// connection ends. Its goroutine counts against the connection's limit.
func (ses *session) later(id uint64, call func(context.Context) ([]byte, map[int][]byte, error)) error {
	ctx, stop := context.WithCancel(ses.ctx)
	ses.mu.Lock()
	_, twice := ses.cancel[id]
	full := len(ses.cancel) >= maxCallsPerConn
	if !twice && !full {
		ses.cancel[id] = stop
	}
	ses.mu.Unlock()
	if twice || full {
		stop()
		// The call may hold a place in a round; let it see that it is over.
		_, _, _ = call(ctx)
		return ses.reply(id, nil, nil, fmt.Errorf("too many calls at once: limit %d", maxCallsPerConn))
	}
	ses.wg.Go(func() {
		defer stop()
		value, parts, err := call(ctx)
		ses.mu.Lock()
		delete(ses.cancel, id)
		ses.mu.Unlock()
		if ses.reply(id, value, parts, err) != nil {
			_ = ses.m.link.conn.Close() // the reader reports the loss
		}
	})
	return nil
}

// reply sends the result of a call. A result that exceeds the frame limit
// becomes an error, rather than the end of the connection.
func (ses *session) reply(id uint64, value []byte, parts map[int][]byte, err error) error {
	m := message{op: opReply, flag: replyOK, id: id, value: value, parts: parts}
	limit := ses.s.cfg.MaxFrameBytes
	if n := m.size(); n > limit {
		m.value, m.parts = nil, nil
		if err == nil { // else that error matters more than the partial result
			err = fmt.Errorf("result of %d bytes exceeds the frame limit of %d", n, limit)
		}
	}
	if err != nil {
		text, jerr := json.Marshal(toWire(err))
		if jerr != nil {
			return jerr
		}
		m.flag, m.value = replyError, text
		if m.size() > limit {
			m.parts = nil
		}
	}
	return ses.m.link.send(&m)
}

// WaitJoined waits until all ranks are joined by live connections. Past the
// deadline it returns a *[MissingRanksError].
func (s *Server) WaitJoined(ctx context.Context) error {
	ctx, cancel := bounded(ctx, s.cfg.WaitTimeout)
	defer cancel()
	return s.hub.waitJoined(ctx)
}

// Members returns what the processes that are joined now have said of
// themselves, in the order of their first ranks.
func (s *Server) Members() []Hello {
	var out []Hello
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	for _, m := range s.hub.membersLocked() {
		if !m.confirmed {
			continue
		}
		h := m.hello
		h.Ranks = slices.Clone(h.Ranks)
		out = append(out, h)
	}
	return out
}

// Abort implements [Store]. It does not block: the clients are told in the
// background.
func (s *Server) Abort(cause Cause) {
	cause = cause.clipped()
	if cause.Host == "" && cause.Rank < 0 {
		cause.Host = s.cfg.Hello.Host
	}
	members, _ := s.hub.end(&AbortedError{Cause: cause})
	for _, m := range members {
		s.spawn(func() {
			if m.link.sendJSON(opAbort, 0, 0, cause) != nil {
				_ = m.link.conn.Close()
			}
		})
	}
}

// Done implements [Store].
func (s *Server) Done() <-chan struct{} { return s.hub.done }

// Err implements [Store].
func (s *Server) Err() error { return s.hub.failure() }

// Set implements [Store]. It does not block.
func (s *Server) Set(_ context.Context, key string, value []byte) error {
	return s.hub.set(key, bytes.Clone(value))
}

// Get implements [Store].
func (s *Server) Get(ctx context.Context, key string) ([]byte, error) {
	ctx, cancel := bounded(ctx, s.cfg.WaitTimeout)
	defer cancel()
	v, err := s.hub.get(ctx, key)
	return bytes.Clone(v), err
}

// TryGet implements [Store]. It does not block.
func (s *Server) TryGet(_ context.Context, key string) ([]byte, bool, error) {
	v, ok, err := s.hub.tryGet(key)
	return bytes.Clone(v), ok, err
}

// Delete implements [Store]. It does not block.
func (s *Server) Delete(_ context.Context, key string) error { return s.hub.remove(key) }

// Barrier implements [Store]. The coordinator usually passes no ranks.
func (s *Server) Barrier(ctx context.Context, name string, ranks []int) error {
	parts := make(map[int][]byte, len(ranks))
	for _, rank := range ranks {
		parts[rank] = nil
	}
	_, err := s.gather(ctx, modeBarrier, name, parts)
	return err
}

// Gather implements [Store].
func (s *Server) Gather(ctx context.Context, name string, parts map[int][]byte) (map[int][]byte, error) {
	all, err := s.gather(ctx, modeGather, name, parts)
	if err != nil {
		return nil, err
	}
	return all, nil
}

// Contribute implements [Store]. It does not block.
func (s *Server) Contribute(ctx context.Context, name string, parts map[int][]byte) error {
	_, err := s.gather(ctx, modeContribute, name, parts)
	return err
}

// Collect implements [Store].
func (s *Server) Collect(ctx context.Context, name string) (map[int][]byte, error) {
	return s.gather(ctx, modeCollect, name, nil)
}

func (s *Server) gather(ctx context.Context, mode byte, name string, parts map[int][]byte) (map[int][]byte, error) {
	ctx, cancel := bounded(ctx, s.cfg.WaitTimeout)
	defer cancel()
	r, err := s.hub.gatherEnter(mode, name, cloneParts(parts), s.cfg.Hello.Host)
	if err != nil || mode == modeContribute {
		return nil, err
	}
	all, err := s.hub.wait(ctx, r, mode == modeCollect)
	return cloneParts(all), err
}
