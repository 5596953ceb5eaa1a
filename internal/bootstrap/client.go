package bootstrap

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

// Client is one process's connection to the store, for all ranks that live in
// it. It must be closed.
type Client struct {
	addr    string
	cfg     Config // Heartbeat and MaxFrameBytes as agreed with the server
	hello   Hello
	world   int
	link    *link
	done    chan struct{}
	closeMu sync.Once
	wg      sync.WaitGroup // reader and pinger
	stop    chan struct{}  // ends the pinger
	gone    chan struct{}  // closed when the reader has ended

	mu      sync.Mutex
	err     error
	nextID  uint64
	pending map[uint64]chan message
}

const (
	dialFirstPause = 50 * time.Millisecond
	dialMaxPause   = time.Second
	clockSamples   = 8
)

// Dial joins the store at addr ("host:port") as cfg.Hello. It tries again
// while nothing answers there, until ctx is done (or, if ctx has no deadline,
// for Config.WaitTimeout), because the server may start later; then it returns
// a *[DialError]. What cannot get better is returned at once: [ErrWrongToken],
// [ErrNotStore], *[VersionError], *[RefusedError], *[AbortedError].
func Dial(ctx context.Context, addr string, cfg Config) (*Client, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("join store at %s: %w", addr, err)
	}
	cfg.Hello.Ranks = slices.Sorted(slices.Values(cfg.Hello.Ranks))
	if cfg.Hello.Host == "" {
		cfg.Hello.Host = hostname()
	}
	if cfg.Hello.PID == 0 {
		cfg.Hello.PID = os.Getpid()
	}
	ctx, cancel := bounded(ctx, cfg.WaitTimeout)
	defer cancel()
	start := time.Now()
	pause := dialFirstPause
	var last error = errors.New("not tried")
	for attempt := 1; ; attempt++ {
		c, err := dialOnce(ctx, addr, cfg)
		if err == nil {
			return c, nil
		}
		if isFinal(err) {
			return nil, fmt.Errorf("%s: join store at %s: %w", NameRanks(cfg.Hello.Ranks), addr, err)
		}
		if ctx.Err() == nil || attempt == 1 {
			last = err // an attempt that ctx cut short says less than the one before
		}
		// Jitter keeps a thousand ranks from knocking in step.
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("%s: %w", NameRanks(cfg.Hello.Ranks), &DialError{
				Addr: addr, Attempts: attempt, Waited: time.Since(start), Last: last, Ctx: ctx.Err(),
			})
		}
		pause = min(2*pause, dialMaxPause)
	}
}

// isFinal tells errors that another attempt cannot mend.
func isFinal(err error) bool {
	var version *VersionError
	var refused *RefusedError
	var aborted *AbortedError
	return errors.Is(err, ErrWrongToken) || errors.Is(err, ErrNotStore) || errors.Is(err, ErrServerClosed) ||
		errors.As(err, &version) || errors.As(err, &refused) || errors.As(err, &aborted)
}

// dialOnce makes one attempt, bounded by ctx and by the handshake timeout.
func dialOnce(ctx context.Context, addr string, cfg Config) (*Client, error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.HandshakeTimeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if conn.LocalAddr().String() == conn.RemoteAddr().String() {
		// On one host a dial to an ephemeral port at which nobody listens can
		// meet itself (simultaneous open), and would then occupy that port.
		_ = conn.Close()
		return nil, errors.New("connection refused (the port is free and the dial met itself)")
	}
	unhook := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer unhook()
	l := newLink(conn)
	w, err := joinOver(l, cfg)
	if err == nil && !unhook() {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, handshakeReason(err, cfg.HandshakeTimeout)
	}
	return newClient(addr, cfg, l, w)
}

// joinOver does the client's side of the handshake.
func joinOver(l *link, cfg Config) (welcome, error) {
	var w welcome
	if err := openAuth(l, cfg.Token); err != nil {
		return w, err
	}
	if err := l.sendJSON(opHello, 0, 0, joinRequest{Hello: cfg.Hello, World: cfg.World}); err != nil {
		return w, err
	}
	msg, err := l.read(cfg.MaxFrameBytes)
	if err != nil {
		return w, err
	}
	switch msg.op {
	case opWelcome:
		err = json.Unmarshal(msg.value, &w)
		return w, err
	case opReject:
		var we wireError
		if err := json.Unmarshal(msg.value, &we); err != nil {
			return w, fmt.Errorf("read refusal: %w", err)
		}
		return w, we.err()
	case opAbort: // an abort may overtake the welcome
		var cause Cause
		if err := json.Unmarshal(msg.value, &cause); err != nil {
			return w, fmt.Errorf("read abort: %w", err)
		}
		return w, &AbortedError{Cause: cause}
	case opGoodbye:
		return w, ErrServerClosed
	}
	return w, errMalformed
}

func newClient(addr string, cfg Config, l *link, w welcome) (*Client, error) {
	if w.DeadAfter > 0 {
		// The server's patience counts, not what this process was told.
		cfg.Heartbeat = min(cfg.Heartbeat, w.DeadAfter/4)
	}
	if w.MaxFrameBytes > 0 {
		cfg.MaxFrameBytes = min(cfg.MaxFrameBytes, w.MaxFrameBytes)
	}
	cfg.Heartbeat = max(cfg.Heartbeat, time.Millisecond)
	err := l.establish(cfg.DeadAfter)
	if err == nil {
		err = l.send(&message{op: opPing}) // confirms that the welcome has come
	}
	if err != nil {
		_ = l.conn.Close()
		return nil, err
	}
	c := &Client{
		addr: addr, cfg: cfg, hello: cfg.Hello, world: w.World, link: l,
		done: make(chan struct{}), stop: make(chan struct{}), gone: make(chan struct{}),
		pending: map[uint64]chan message{},
	}
	c.wg.Go(c.reader)
	c.wg.Go(c.pinger)
	return c, nil
}

// World returns the number of ranks of the job, as the server says.
func (c *Client) World() int { return c.world }

// Hello returns how this client presented itself, ranks in ascending order.
func (c *Client) Hello() Hello {
	h := c.hello
	h.Ranks = slices.Clone(h.Ranks)
	return h
}

// Close leaves the job in good order: the server frees the ranks and does not
// report them lost. It blocks for at most about half a second (longer only if
// the server takes no more data), and may be called again.
func (c *Client) Close() error {
	c.closeMu.Do(func() {
		c.fail(ErrClosed)
		close(c.stop)
		force := time.AfterFunc(closeDrainWait, func() { _ = c.link.conn.Close() })
		defer force.Stop()
		if c.link.send(&message{op: opGoodbye}) == nil {
			c.link.closeWrite()
			<-c.gone // the server closes its side, or the timer ours
		}
		_ = c.link.conn.Close()
	})
	c.wg.Wait()
	return nil
}

// fail records why the store is over for this process; the first reason wins.
func (c *Client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		close(c.done)
	}
}

func (c *Client) lost(err error) {
	c.fail(&LostError{Addr: c.addr, Err: lossReason(err, c.cfg.DeadAfter)})
}

func (c *Client) reader() {
	defer close(c.gone)
	for {
		// The server keeps to its own limit; a reply it could send is welcome.
		msg, err := c.link.read(maxMaxFrameBytes)
		if err != nil {
			c.lost(err)
			_ = c.link.conn.Close()
			return
		}
		switch msg.op {
		case opReply:
			c.mu.Lock()
			if reply := c.pending[msg.id]; reply != nil {
				reply <- msg // has room for one, and is removed with it
				delete(c.pending, msg.id)
			}
			c.mu.Unlock()
		case opAbort:
			var cause Cause
			if err := json.Unmarshal(msg.value, &cause); err != nil {
				cause = Cause{Rank: -1, Reason: "unreadable cause: " + err.Error()}
			}
			c.fail(&AbortedError{Cause: cause})
		case opGoodbye:
			c.fail(ErrServerClosed)
			_ = c.link.conn.Close()
			return
		}
	}
}

func (c *Client) pinger() {
	tick := time.NewTicker(c.cfg.Heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-c.stop:
			return
		case <-c.gone:
			return
		case <-tick.C:
		}
		if err := c.link.send(&message{op: opPing}); err != nil {
			c.lost(err)
			_ = c.link.conn.Close()
			return
		}
	}
}

// Done implements [Store].
func (c *Client) Done() <-chan struct{} { return c.done }

// Err implements [Store].
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// request registers a call and sends it.
func (c *Client) request(m *message) (chan message, error) {
	if m.op != opClock {
		if err := checkKey(m.key); err != nil {
			return nil, err
		}
	}
	if n := m.size(); n > c.cfg.MaxFrameBytes {
		return nil, fmt.Errorf("message of %d bytes exceeds the frame limit of %d", n, c.cfg.MaxFrameBytes)
	}
	reply := make(chan message, 1)
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return nil, c.err
	}
	c.nextID++
	m.id = c.nextID
	c.pending[m.id] = reply
	c.mu.Unlock()
	if err := c.link.send(m); err != nil {
		c.lost(err)
		_ = c.link.conn.Close()
		c.forget(m.id)
		return nil, c.Err()
	}
	return reply, nil
}

func (c *Client) forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, id)
}

// call does one request and waits for its reply. On an error reply the message
// is returned too: it may hold the parts that are there.
func (c *Client) call(ctx context.Context, m *message) (message, error) {
	ctx, cancel := bounded(ctx, c.cfg.WaitTimeout)
	defer cancel()
	start := time.Now()
	reply, err := c.request(m)
	if err != nil {
		return message{}, err
	}
	defer c.forget(m.id)
	select {
	case r := <-reply:
		return c.result(r)
	case <-c.done:
		return c.afterEnd(reply)
	case <-ctx.Done():
	}
	// The server knows who is missing: cancel there, and give it a moment.
	if err := c.link.send(&message{op: opCancel, id: m.id}); err != nil {
		c.lost(err)
		_ = c.link.conn.Close()
	}
	timer := time.NewTimer(cancelReplyWait)
	defer timer.Stop()
	select {
	case r := <-reply:
		out, err := c.result(r)
		var missing *MissingRanksError
		switch {
		case errors.As(err, &missing):
			missing.Err = ctx.Err()
		case err != nil && m.op == opGet && c.Err() == nil:
			err = fmt.Errorf("nobody set key %q within %s: %w", m.key, formatSeconds(time.Since(start)), ctx.Err())
		}
		return out, err
	case <-c.done:
		return c.afterEnd(reply)
	case <-timer.C:
		return message{}, fmt.Errorf("no answer from the store within %s: %w", formatSeconds(time.Since(start)), ctx.Err())
	}
}

// afterEnd prefers a reply that came together with the end of the store.
func (c *Client) afterEnd(reply chan message) (message, error) {
	select {
	case r := <-reply:
		return c.result(r)
	default:
		return message{}, c.Err()
	}
}

func (c *Client) result(r message) (message, error) {
	if r.flag != replyError {
		return r, nil
	}
	var we wireError
	if err := json.Unmarshal(r.value, &we); err != nil {
		return r, fmt.Errorf("read error reply: %w", err)
	}
	err := we.err()
	if we.Code == codeAborted || we.Code == codeClosed {
		// Together with the push of the same news, so that Err agrees.
		c.fail(err)
		return r, c.Err()
	}
	return r, err
}

// wrap names the operation and the ranks on whose behalf it failed. The end of
// the store is passed on as it is.
func (c *Client) wrap(op, key string, err error) error {
	var aborted *AbortedError
	if err == nil || errors.As(err, &aborted) {
		return err
	}
	return fmt.Errorf("%s on %s: %s %q: %w", NameRanks(c.hello.Ranks), c.hello.Host, op, key, err)
}

// Set implements [Store].
func (c *Client) Set(ctx context.Context, key string, value []byte) error {
	_, err := c.call(ctx, &message{op: opSet, key: key, value: value})
	return c.wrap("set", key, err)
}

// Get implements [Store].
func (c *Client) Get(ctx context.Context, key string) ([]byte, error) {
	r, err := c.call(ctx, &message{op: opGet, key: key})
	if err != nil {
		return nil, c.wrap("get", key, err)
	}
	return r.value, nil
}

// TryGet implements [Store].
func (c *Client) TryGet(ctx context.Context, key string) ([]byte, bool, error) {
	r, err := c.call(ctx, &message{op: opTryGet, key: key})
	if err != nil {
		return nil, false, c.wrap("get", key, err)
	}
	return r.value, r.flag == replyOK, nil
}

// Delete implements [Store].
func (c *Client) Delete(ctx context.Context, key string) error {
	_, err := c.call(ctx, &message{op: opDelete, key: key})
	return c.wrap("delete", key, err)
}

// Barrier implements [Store]. The ranks must be among this client's.
func (c *Client) Barrier(ctx context.Context, name string, ranks []int) error {
	parts := make(map[int][]byte, len(ranks))
	for _, rank := range ranks {
		parts[rank] = nil
	}
	_, err := c.gather(ctx, modeBarrier, "barrier", name, parts)
	return err
}

// Gather implements [Store]. The ranks must be among this client's.
func (c *Client) Gather(ctx context.Context, name string, parts map[int][]byte) (map[int][]byte, error) {
	all, err := c.gather(ctx, modeGather, "gather", name, parts)
	if err != nil {
		return nil, err
	}
	return all, nil
}

// Contribute implements [Store]. The ranks must be among this client's.
func (c *Client) Contribute(ctx context.Context, name string, parts map[int][]byte) error {
	_, err := c.gather(ctx, modeContribute, "contribute", name, parts)
	return err
}

// Collect implements [Store].
func (c *Client) Collect(ctx context.Context, name string) (map[int][]byte, error) {
	return c.gather(ctx, modeCollect, "collect", name, nil)
}

func (c *Client) gather(ctx context.Context, mode byte, op, name string, parts map[int][]byte) (map[int][]byte, error) {
	for rank := range parts {
		// Checked here too: a rank that is negative has no place in the message.
		if !slices.Contains(c.hello.Ranks, rank) {
			return nil, c.wrap(op, name, fmt.Errorf("rank %d is not one of this process's", rank))
		}
	}
	r, err := c.call(ctx, &message{op: opGather, flag: mode, key: name, parts: parts})
	return r.parts, c.wrap(op, name, err)
}

// Abort implements [Store].
func (c *Client) Abort(cause Cause) {
	cause = cause.clipped()
	if cause.Host == "" && slices.Contains(c.hello.Ranks, cause.Rank) {
		cause.Host = c.hello.Host
	}
	if c.Err() != nil {
		return
	}
	// In the background, as the write may hang; it ends with the connection.
	go func() {
		if err := c.link.sendJSON(opAbort, 0, 0, cause); err != nil {
			c.lost(err)
			_ = c.link.conn.Close()
		}
	}()
	timer := time.NewTimer(abortEchoWait)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.C:
		// The server does not answer; at least this process must stop.
		c.fail(&AbortedError{Cause: cause})
	}
}

// ClockOffset estimates the server's clock minus this process's: the sample
// with the shortest round trip out of eight, taken at its middle. The error of
// the estimate is at most rtt/2.
func (c *Client) ClockOffset(ctx context.Context) (offset, rtt time.Duration, err error) {
	for i := range clockSamples {
		before := time.Now()
		r, err := c.call(ctx, &message{op: opClock})
		took := time.Since(before)
		if err == nil && len(r.value) != 8 {
			err = errMalformed
		}
		if err != nil {
			return 0, 0, c.wrap("clock offset of", c.addr, err)
		}
		if i > 0 && took >= rtt {
			continue
		}
		rtt = took
		server := time.Unix(0, int64(binary.BigEndian.Uint64(r.value)))
		offset = server.Sub(before.Add(took / 2).Round(0))
	}
	return offset, rtt, nil
}
