package rdma

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/commprobe/commprobe/ibverbs"
	"github.com/commprobe/commprobe/internal/bootstrap"
)

func says(t *testing.T, err error, kind Kind, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %v %q", kind, parts)
	}
	if KindOf(err) != kind {
		t.Errorf("kind %q, want %q: %v", KindOf(err), kind, err)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%q is not in: %v", p, err)
		}
	}
}

func allTests() (names []string) {
	for _, t := range tests {
		names = append(names, t.Name)
	}
	return names
}

// Every test, both ways, passes, and both sides hold the same rows.
func TestEveryTest(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(*Options)
	}{
		{"plain", func(*Options) {}},
		{"four QPs, both directions", func(o *Options) { o.QPs, o.Bidirectional = 4, true }},
		{"by duration", func(o *Options) {
			o.Duration, o.Margin = 20*time.Millisecond, time.Millisecond
			o.Tests = []string{"write", "read", "read latency"}
		}},
		{"send by duration", func(o *Options) {
			o.Duration, o.Margin = 10*time.Millisecond, time.Millisecond
			o.Tests = []string{"send"}
		}},
		{"no warm-up", func(o *Options) { o.Warmup = 0 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.client.Options.Tests = allTests()
			c.change(&r.client.Options)
			e := r.run(t, nil)
			if e.clientErr != nil || e.serverErr != nil {
				t.Fatalf("client: %v; server: %v", e.clientErr, e.serverErr)
			}
			want := len(r.client.Options.Tests) * 2
			if n := len(e.client.Rows); strings.Contains(strings.Join(r.client.Options.Tests, " "), "atomic") && n != want-1 || len(e.server.Rows) != n {
				t.Errorf("%d and %d rows", n, len(e.server.Rows))
			}
			for i, row := range e.client.Rows {
				other := e.server.Rows[i]
				if row.Fault != nil || row.Checked == 0 || other.Checked != row.Checked || (row.Latency == nil) == (row.Bandwidth == nil) || row.Iterations == 0 {
					t.Errorf("client %+v, server %+v", row, other)
				}
				if b := row.Bandwidth; b != nil && *b.peakOrAverage() <= 0 {
					t.Errorf("%s: %+v", row.Test, b)
				}
				if m := row.Counters; row.Test != "atomic latency" && (len(m) != 1 || m[0].Side != "server" || m[0].Name != "out_of_sequence" || m[0].By < 1) || !reflect.DeepEqual(m, other.Counters) {
					t.Errorf("%s: counters %+v, the server's report has %+v", row.Test, m, other.Counters)
				}
				if two := len(row.Directions) == 2; two != (r.client.Options.Bidirectional && row.Bandwidth != nil) {
					t.Errorf("%s: directions %v", row.Test, row.Directions)
				}
			}
			if r.fabric.built != 2 || r.fabric.closed != 2 {
				t.Errorf("%d stations built, %d closed", r.fabric.built, r.fabric.closed)
			}
		})
	}
}

func (b *Bandwidth) peakOrAverage() *float64 {
	if b.PeakMiB != nil {
		return b.PeakMiB
	}
	return &b.AverageMiB
}

// A byte that is wrong in any of the ways data can be wrong ends the test on both sides, and both say where.
func TestWrongData(t *testing.T) {
	t.Parallel()
	flip := func(at int) func(work, []byte) {
		return func(w work, b []byte) {
			if at < len(b) {
				b[at] ^= 1
			}
		}
	}
	var mu sync.Mutex
	var before []byte
	stale := func(w work, b []byte) { // what arrives is what was sent a message earlier
		mu.Lock()
		defer mu.Unlock()
		now := bytes.Clone(b)
		if len(before) == len(b) {
			copy(b, before)
		}
		before = now
	}
	for _, c := range []struct {
		name, test string
		inject     bool
		corrupt    func(work, []byte)
		want       []string
	}{
		{"planted, write", "write", true, nil, []string{"wrong data: write of 64 bytes, QP 0, checked round 3, found on hostb: 1 of 64 bytes are wrong, the first at offset 32"}},
		{"planted, read", "read", true, nil, []string{"found on hosta", "1 of 64 bytes are wrong"}},
		{"planted, send", "send", true, nil, []string{"wrong data: send", "found on hostb"}},
		{"planted, latency", "write latency", true, nil, []string{"wrong data: write latency", "found on hostb"}},
		{"on the way", "write", false, flip(63), []string{"checked round 1", "1 of 64 bytes are wrong, the first at offset 63"}},
		{"only in the timed series", "write", false, func(w work, b []byte) {
			if w.send == 20 {
				b[5]++
			}
		}, []string{"timed series", "offset 5"}},
		{"stale", "write", false, stale, []string{"checked round 2", "stale", "64 bytes are wrong"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.client.Options.Tests, r.client.Options.Sizes, r.client.Options.InjectFault = []string{c.test}, []int{64}, c.inject
			r.fabric.corrupt = c.corrupt
			if r.fabric.corrupt != nil {
				r.fabric.corrupt = func(w work, b []byte) {
					if len(b) == 64 { // not the first messages of the connection
						c.corrupt(w, b)
					}
				}
			}
			e := r.run(t, nil)
			says(t, e.clientErr, WrongData, c.want...)
			says(t, e.serverErr, WrongData, c.want...)
			if rows := e.server.Rows; len(rows) != 1 || rows[0].Fault == nil || e.server.Outcome.Status != string(WrongData) {
				t.Errorf("server's report: %+v", e.server)
			}
		})
	}
}

// A pair that does not connect, or does not carry a message, is passed over for the next one, which is named.
func TestPairFallback(t *testing.T) {
	t.Parallel()
	retries := &ibverbs.WCError{Status: wcRetriesExceeded, Text: "transport retry counter exceeded", Op: "write"}
	noAnswer := &ibverbs.Error{Func: "ibv_modify_qp to RTR", Errno: syscall.ETIMEDOUT, Hint: "no answer to ARP"}
	for _, c := range []struct {
		name    string
		connect func(rank int, p Pair) error
		failure func(rank int, w work) error
		chosen  int
		note    string
	}{
		{"the client cannot resolve the first", func(rank int, p Pair) error {
			if rank == clientRank && p.Client.Index == 1 {
				return noAnswer
			}
			return nil
		}, nil, 1, "no answer to ARP"},
		{"nor can the server", func(rank int, p Pair) error {
			if rank == serverRank && p.Client.Index == 1 {
				return &ibverbs.Error{Func: "ibv_modify_qp to RTR", Errno: syscall.EINVAL}
			}
			return nil
		}, nil, 1, "ibv_modify_qp to RTR"},
		{"the first message is lost", nil, failFirst(1, retries), 1, "transport retry counter exceeded"},
		{"full packets are lost", nil, failFirst(2, retries), 1, "try -m 512"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.fabric.connectErr, r.fabric.failure = c.connect, c.failure
			var told []string
			r.client.Hooks.Tell = func(s string) { told = append(told, s) }
			e := r.run(t, nil)
			if e.clientErr != nil || e.serverErr != nil {
				t.Fatalf("client: %v; server: %v", e.clientErr, e.serverErr)
			}
			a := e.client.Agreement
			if a.Chosen != c.chosen || e.server.Agreement.Chosen != c.chosen {
				t.Errorf("chosen %d and %d, want %d", a.Chosen, e.server.Agreement.Chosen, c.chosen)
			}
			if r.fabric.renewed != 2 {
				t.Errorf("QPs were replaced %d times, want once on each side", r.fabric.renewed)
			}
			if len(told) != 1 || !strings.Contains(told[0], "GID 1 (10.77.0.1) to 1 (10.77.0.2) does not work") || !strings.Contains(told[0], c.note) {
				t.Errorf("told %q", told)
			}
			if len(a.Notes) != 1 || !strings.Contains(a.Notes[0], "GID 0 (fe80::1) to 0 (fe80::2) works") {
				t.Errorf("notes %q", a.Notes)
			}
		})
	}
}

// failFirst lets the client's n-th series fail.
func failFirst(n int, err error) func(int, work) error {
	var mu sync.Mutex
	calls := 0
	return func(rank int, w work) error {
		mu.Lock()
		defer mu.Unlock()
		if rank == clientRank {
			if calls++; calls == n {
				return err
			}
		}
		return nil
	}
}

func TestNoPairWorks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fabric.connectErr = func(int, Pair) error {
		return &ibverbs.Error{Func: "ibv_modify_qp to RTR", Errno: syscall.ETIMEDOUT, Hint: "no answer to ARP"}
	}
	e := r.run(t, nil)
	for _, err := range []error{e.clientErr, e.serverErr} {
		says(t, err, Died, "peer unreachable over RDMA, though the control connection works", "GID 1 (10.77.0.1) to 1 (10.77.0.2)", "GID 0 (fe80::1) to 0 (fe80::2)", "no answer to ARP", "UDP port 4791", "(fe80::2): the same")
	}
}

// What ends one side ends the other as well, each with a reason, and soon.
func TestOneSideFails(t *testing.T) {
	t.Parallel()
	memlock := &ibverbs.Error{Func: "ibv_reg_mr", Errno: syscall.ENOMEM, What: "131072 bytes", Hint: "RLIMIT_MEMLOCK is 64 KiB: ulimit -l unlimited"}
	broken := &ibverbs.WCError{Status: wcRetriesExceeded, Text: "transport retry counter exceeded", Vendor: 0x81, QPNum: 17, Op: "write", Cause: "the peer does not answer"}
	for _, c := range []struct {
		name           string
		change         func(*rig)
		client, server Kind
		says           []string
	}{
		{"memlock of the server", func(r *rig) { r.fabric.buildErr[serverRank] = memlock }, Unusable, Unusable, []string{"make QPs and register memory", "RLIMIT_MEMLOCK is 64 KiB: ulimit -l unlimited"}},
		{"memlock of the client", func(r *rig) { r.fabric.buildErr[clientRank] = memlock }, Unusable, Unusable, []string{"RLIMIT_MEMLOCK is 64 KiB"}},
		{"QP of the client", func(r *rig) { r.fabric.failure = failFirst(6, broken) }, Died, Died, []string{"transport retry counter exceeded", "the peer does not answer", "GID 1 (10.77.0.1) to 1 (10.77.0.2)"}},
		{"no completion", func(r *rig) {
			r.fabric.failure = failFirst(5, &ibverbs.TimeoutError{What: "write", After: time.Second, Done: 3, Of: 20})
		}, TimedOut, TimedOut, []string{"checked round, GID 1 (10.77.0.1) to 1 (10.77.0.2)", "no completion", "(towards hostb)"}},
		{"device of the server", func(r *rig) {
			opened := 0
			good := r.server.open
			r.server.open = func(w Want) (device, error) {
				if opened++; opened > 1 {
					return nil, problem(Unusable, nil, "open rxe0: permission denied")
				}
				return good(w)
			}
		}, Unusable, Unusable, []string{"open rxe0: permission denied"}},
		{"server's port is down", func(r *rig) {
			r.sides[serverRank].Active, r.sides[serverRank].State, r.sides[serverRank].PhysState = false, "down", physDisabled
		}, Unusable, Unusable, []string{"port down: rxe0 port 1 of hostb is down", "ip link set DEV up"}},
		{"other link layer", func(r *rig) { r.sides[serverRank].LinkLayer = infiniband }, Unusable, Unusable, []string{"wrong link layer", "hosta is Ethernet", "hostb is InfiniBand"}},
		{"other protocol", func(r *rig) { r.sides[serverRank].Protocol, r.sides[serverRank].Program = 2, "v2" }, Usage, Usage, []string{"version skew", "version 1 of the test's protocol (commprobe v1)", "version 2 (commprobe v2)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			c.change(r)
			e := r.run(t, nil)
			says(t, e.clientErr, c.client, c.says...)
			says(t, e.serverErr, c.server, c.says...)
			if r.fabric.built != r.fabric.closed {
				t.Errorf("%d stations built, %d closed", r.fabric.built, r.fabric.closed)
			}
		})
	}
}

// A side that is interrupted while the other's series stands still ends both.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	stuck := make(chan struct{})
	var once sync.Once
	r.fabric.failure = func(rank int, w work) error {
		if w.send == 20 {
			once.Do(func() { close(stuck) })
			return errHang
		}
		return nil
	}
	e := r.run(t, func(_ context.Context, endClient context.CancelFunc) { <-stuck; endClient() })
	says(t, e.clientErr, Interrupted, "interrupted")
	says(t, e.serverErr, Died, "hosta (pid 101) ended the test", "interrupted")
}

// A peer that vanishes without a word is named as dead, and ends a series that stands still.
func TestPeerDies(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.server.Deadline, r.client.Options.Deadline = 2*time.Second, 2*time.Second
	r.client.Options.Tests = []string{"send"}
	proxy := newProxy(t)
	stuck := make(chan struct{})
	var once sync.Once
	r.fabric.failure = func(rank int, w work) error {
		if w.send == 20 || w.recv == 20 {
			once.Do(func() { close(stuck) })
			return errHang
		}
		return nil
	}
	r.client.Hooks.Tell = nil
	listening := r.client.open
	r.client.open = func(w Want) (device, error) { // the last moment before the client dials
		r.client.Addr = proxy.to(t, r.client.Addr)
		return listening(w)
	}
	e := r.run(t, func(context.Context, context.CancelFunc) { <-stuck; proxy.cut() })
	says(t, e.clientErr, Died, "peer died", "hostb")
	says(t, e.serverErr, Died, "peer died", "hosta (pid 101)")
}

// proxy forwards one connection until it is cut.
type proxy struct {
	ln    net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func newProxy(t *testing.T) *proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return &proxy{ln: ln}
}

func (p *proxy) to(t *testing.T, addr string) string {
	go func() {
		a, err := p.ln.Accept()
		if err != nil {
			return
		}
		b, err := net.Dial("tcp", addr)
		if err != nil {
			t.Errorf("proxy: %v", err)
			return
		}
		p.mu.Lock()
		p.conns = append(p.conns, a, b)
		p.mu.Unlock()
		pump := func(to, from net.Conn) {
			buf := make([]byte, 4096)
			for {
				n, err := from.Read(buf)
				if err != nil {
					return
				}
				if _, err := to.Write(buf[:n]); err != nil {
					return
				}
			}
		}
		go pump(a, b)
		pump(b, a)
	}()
	return p.ln.Addr().String()
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
}

// The store turns away who runs another version, and says both.
func TestVersionSkew(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.server.Once = false
	r.client.Want.Program = "v0"
	e := r.run(t, nil)
	says(t, e.clientErr, Usage, `"v0"`, `"v1"`, "install the same commprobe on both hosts")
	if e.serverErr != nil {
		t.Errorf("the server ended with %v", e.serverErr)
	}
}

// A second client hears why it is not served, and by whom the place is taken; the first one is not disturbed.
func TestSecondClient(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var second error
	var once sync.Once
	r.client.Hooks.Row = func(*Report, *Row) {
		once.Do(func() {
			other := Client{Addr: r.client.Addr, Token: r.client.Token, Options: r.client.Options, Want: r.client.Want, open: r.opener(clientRank)}
			_, second = other.Run(context.Background())
		})
	}
	e := r.run(t, nil)
	if e.clientErr != nil || e.serverErr != nil {
		t.Errorf("client: %v; server: %v", e.clientErr, e.serverErr)
	}
	says(t, second, Usage, "already held by", "one client at a time")
}

// A server goes on after a test that failed, and serves the next client on the same port.
func TestClientAfterClient(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.server.Once = false
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	listening, done := make(chan string, 1), make(chan error, 1)
	r.server.Listening = func(a string) { listening <- a }
	results := make(chan error, 3)
	r.server.Done = func(_ *Report, err error) { results <- err }
	go func() { done <- r.server.Run(ctx) }()
	r.client.Addr = <-listening
	for i := range 3 {
		r.fabric.failure = nil
		if i == 1 {
			r.fabric.failure = failFirst(3, &ibverbs.WCError{Status: 10, Text: "remote access error"})
		}
		_, err := r.client.Run(ctx)
		if got := <-results; (err == nil) != (i != 1) || (got == nil) != (i != 1) {
			t.Errorf("test %d: client %v, server %v", i, err, got)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("an interrupted server ended with %v", err)
	}
}

func TestTCPFailures(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.client.Options.Deadline = 200 * time.Millisecond
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.client.Addr = ln.Addr().String()
	ln.Close()
	_, err = r.client.Run(context.Background())
	says(t, err, Died, "no control connection to "+r.client.Addr+" (TCP, not RDMA)", "rdma serve", "firewall")

	other, err := bootstrap.NewToken()
	if err != nil {
		t.Fatal(err)
	}
	r = newRig(t)
	r.server.Once = false
	r.client.Token = other
	e := r.run(t, nil)
	says(t, e.clientErr, Usage, "refused the token", "COMMPROBE_TOKEN")

	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer web.Close()
	go func() {
		for {
			c, err := web.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
			c.Close()
		}
	}()
	r = newRig(t)
	r.client.Addr = web.Addr().String()
	_, err = r.client.Run(context.Background())
	says(t, err, Usage, "is not `commprobe rdma serve`")
}

// What devices say while a test runs is told and kept.
func TestEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fabric.events <- "rxe0 port 1 of hosta: port 1: port down"
	r.fabric.failure = failFirst(5, &ibverbs.TimeoutError{What: "write", After: time.Second})
	e := r.run(t, nil)
	if text := fmt.Sprint(e.clientErr, e.serverErr); !strings.Contains(text, "the device reported meanwhile: rxe0 port 1 of hosta: port 1: port down") {
		t.Errorf("not told as part of the error: %s", text)
	}
	if n := len(e.client.Events) + len(e.server.Events); n != 1 {
		t.Errorf("events %q and %q", e.client.Events, e.server.Events)
	}
}

// A client that comes while the store still ends another's test is served by the next store.
func TestDialAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	old, err := bootstrap.Listen("127.0.0.1:0", bootstrap.Config{World: 2, Token: r.client.Token})
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	old.Abort(bootstrap.Cause{Reason: farewell{Died, "the one before"}.encode()})
	r.client.Addr = old.Addr().String()
	r.client.Options.Deadline = 300 * time.Millisecond
	_, err = r.client.Run(context.Background())
	says(t, err, Died, "is just ending a test: the one before")

	r.client.Options.Deadline = 10 * time.Second
	done := make(chan error, 1)
	go func() {
		_, err := r.client.Run(context.Background())
		done <- err
	}()
	time.Sleep(50 * time.Millisecond) // likely to have been turned away by then; the outcome is the same if not
	old.Close()
	r.server.Addr = old.Addr().String()
	if err := r.server.Run(context.Background()); err != nil {
		t.Errorf("server: %v", err)
	}
	if err := <-done; err != nil {
		t.Errorf("client: %v", err)
	}
}
