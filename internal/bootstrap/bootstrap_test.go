package bootstrap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// logBook collects the server's refusals.
type logBook struct {
	mu    sync.Mutex
	lines []string
}

func (b *logBook) printf(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, fmt.Sprintf(format, args...))
}

func (b *logBook) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.lines, "\n")
}

func (b *logBook) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.lines)
}

func newTestToken(t testing.TB) Token {
	t.Helper()
	token, err := NewToken()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func startServer(t testing.TB, cfg Config) *Server {
	t.Helper()
	if cfg.Token.IsZero() {
		cfg.Token = newTestToken(t)
	}
	s, err := Listen("127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// clientConfig is that of a worker which belongs to s.
func clientConfig(s *Server, host string, ranks ...int) Config {
	cfg := s.cfg
	cfg.Log, cfg.OnLost = nil, nil
	cfg.Hello = Hello{Ranks: ranks, Host: host, PID: 100 + ranks[0], Program: s.cfg.Hello.Program}
	return cfg
}

func join(t testing.TB, s *Server, host string, ranks ...int) *Client {
	t.Helper()
	c, err := Dial(within(t, 5*time.Second), s.Addr().String(), clientConfig(s, host, ranks...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if cond() {
			return
		}
	}
	t.Fatalf("never happened: %s", what)
}

func TestFormatRanks(t *testing.T) {
	for _, c := range []struct {
		in   []int
		want string
	}{
		{nil, "none"},
		{[]int{3}, "3"},
		{[]int{7, 6, 4, 2, 1, 0, 1}, "0-2, 4, 6-7"},
		{[]int{0, 1}, "0-1"},
		{[]int{5, 3}, "3, 5"},
	} {
		if got := FormatRanks(c.in); got != c.want {
			t.Errorf("FormatRanks(%v) = %q, want %q", c.in, got, c.want)
		}
	}
}

func TestMissingRanksMessage(t *testing.T) {
	e := &MissingRanksError{
		Phase: "join", World: 8, Missing: []int{3, 7}, Waited: 60 * time.Second, Err: context.DeadlineExceeded,
		Present: map[string][]int{"host-b": {5, 6}, "host-a": {0, 1, 2, 4}},
	}
	want := "ranks 3, 7 of 8 did not join within 60 s; present: host-a has ranks 0-2, 4; host-b has 5-6"
	if e.Error() != want {
		t.Errorf("got  %s\nwant %s", e, want)
	}
	e = &MissingRanksError{
		Phase: `barrier "x"`, World: 2, Missing: []int{1}, Waited: 250 * time.Millisecond, Err: context.Canceled,
		MissingOn: map[string][]int{"host-b": {1}}, Lost: []int{1},
	}
	want = `rank 1 of 2 did not reach barrier "x" within 250 ms (wait cancelled); missing: host-b has rank 1; ` +
		`connection lost: rank 1; present: none`
	if e.Error() != want {
		t.Errorf("got  %s\nwant %s", e, want)
	}
}

func TestTokenNeverPrinted(t *testing.T) {
	token := newTestToken(t)
	secret := token.String()
	back, err := ParseToken(secret)
	if err != nil || back != token {
		t.Fatalf("ParseToken(String()) = %v, %v", back, err)
	}
	j, err := json.Marshal(Config{Token: token, Log: nil}.Token)
	if err != nil {
		t.Fatal(err)
	}
	var logged strings.Builder
	slog.New(slog.NewTextHandler(&logged, nil)).Info("x", "token", token)
	for _, text := range []string{
		fmt.Sprint(token), fmt.Sprintf("%v %+v %#v %s %x %q %d", token, token, token, token, token, token, token),
		fmt.Sprintf("%v %+v %#v", Config{Token: token}, &Config{Token: token}, Config{Token: token}),
		string(j), logged.String(),
	} {
		if strings.Contains(text, secret[:16]) || !strings.Contains(text, "redacted") {
			t.Errorf("token printed: %s", text)
		}
	}
	for _, bad := range []string{"", "abc", strings.Repeat("0", 64), strings.Repeat("z", 64), secret + "00"} {
		if _, err := ParseToken(bad); err == nil {
			t.Errorf("ParseToken(%q) accepted", bad)
		}
	}
}

func TestJoinStoreBarrierGather(t *testing.T) {
	s := startServer(t, Config{World: 4, Hello: Hello{Program: "v1", Host: "head"}})
	a, b := join(t, s, "host-a", 0, 1, 2), join(t, s, "host-b", 3)
	ctx := within(t, 10*time.Second)
	if err := s.WaitJoined(ctx); err != nil {
		t.Fatal(err)
	}
	if got := s.Members(); len(got) != 2 || got[0].Host != "host-a" || a.World() != 4 {
		t.Fatalf("members %v, world %d", got, a.World())
	}
	if _, ok, err := a.TryGet(ctx, "id"); ok || err != nil {
		t.Fatalf("TryGet of nothing: %v, %v", ok, err)
	}
	time.AfterFunc(20*time.Millisecond, func() { _ = s.Set(ctx, "id", []byte("unique")) })
	if v, err := b.Get(ctx, "id"); err != nil || string(v) != "unique" {
		t.Fatalf("Get: %q, %v", v, err)
	}
	if err := a.Set(ctx, "empty", nil); err != nil {
		t.Fatal(err)
	}
	if v, ok, err := s.TryGet(ctx, "empty"); !ok || err != nil || len(v) != 0 {
		t.Fatalf("empty value: %q %v %v", v, ok, err)
	}
	for step := range 3 { // the same name again and again
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := a.Barrier(ctx, "step", []int{0, 1, 2}); err != nil {
				t.Errorf("step %d: %v", step, err)
			}
		})
		if err := b.Barrier(ctx, "step", []int{3}); err != nil {
			t.Errorf("step %d: %v", step, err)
		}
		wg.Wait()
	}
	want := map[int][]byte{0: []byte("p0"), 1: []byte("p1"), 2: {}, 3: []byte("p3")}
	var wg sync.WaitGroup
	wg.Go(func() {
		got, err := a.Gather(ctx, "g", map[int][]byte{0: []byte("p0"), 1: []byte("p1"), 2: {}})
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("gather: %v %v", got, err)
		}
	})
	if got, err := b.Gather(ctx, "g", map[int][]byte{3: []byte("p3")}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("gather: %v %v", got, err)
	}
	wg.Wait()
	// The coordinator may come late.
	if got, err := s.Collect(ctx, "g"); err != nil || string(got[1]) != "p1" || len(got) != 4 {
		t.Errorf("late collect: %v %v", got, err)
	}
	offset, rtt, err := b.ClockOffset(ctx)
	if err != nil || rtt <= 0 || offset.Abs() > time.Second {
		t.Errorf("clock offset %v, rtt %v, %v", offset, rtt, err)
	}
}

func TestContributeCollect(t *testing.T) {
	s := startServer(t, Config{World: 2})
	a, b := join(t, s, "host-a", 0), join(t, s, "host-b", 1)
	ctx := within(t, 10*time.Second)
	for step := range 300 {
		name := fmt.Sprintf("step/%d", step)
		for i, c := range []*Client{a, b} {
			if err := c.Contribute(ctx, name, map[int][]byte{i: make([]byte, 1000)}); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := s.Collect(ctx, name); err != nil || len(got) != 2 {
			t.Fatal(got, err)
		}
		if err := a.Contribute(ctx, name+"/del", map[int][]byte{0: make([]byte, 1000)}); err != nil {
			t.Fatal(err)
		}
		if err := s.Delete(ctx, name+"/del"); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = a.Gather(ctx, name+"/g", map[int][]byte{0: make([]byte, 1000)}) })
		if _, err := b.Gather(ctx, name+"/g", map[int][]byte{1: make([]byte, 1000)}); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
	}
	s.hub.mu.Lock()
	rounds, held, kept := len(s.hub.rounds), s.hub.bytes, s.hub.kept
	s.hub.mu.Unlock()
	if rounds > retainedRounds || held > retainedRounds*2000 || held != kept {
		t.Errorf("memory grows: %d rounds, %d bytes (%d retained)", rounds, held, kept)
	}

	// Missing rank at the deadline: the parts that are there, and who is missing.
	if err := a.Contribute(ctx, "half", map[int][]byte{0: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	for _, view := range []Store{s, b} {
		got, err := view.Collect(within(t, 50*time.Millisecond), "half")
		var missing *MissingRanksError
		if !errors.As(err, &missing) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%T: %v", view, err)
		}
		if string(got[0]) != "x" || len(got) != 1 || !reflect.DeepEqual(missing.Missing, []int{1}) ||
			!strings.Contains(err.Error(), `rank 1 of 2 did not reach gather "half"`) ||
			!strings.Contains(err.Error(), "missing: host-b has rank 1; present: host-a has rank 0") {
			t.Errorf("%T: %v, %v", view, got, err)
		}
	}
	if err := b.Contribute(ctx, "half", map[int][]byte{0: nil}); err == nil || !strings.Contains(err.Error(), "not one of") {
		t.Errorf("foreign rank: %v", err)
	}
	if err := a.Contribute(ctx, "half", map[int][]byte{0: nil}); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("twice: %v", err)
	}
}

func TestDeleteEndsWait(t *testing.T) {
	s := startServer(t, Config{World: 2})
	a := join(t, s, "host-a", 0)
	got := make(chan error, 1)
	go func() { got <- a.Barrier(within(t, 5*time.Second), "b", []int{0}) }()
	eventually(t, "arrival", func() bool { s.hub.mu.Lock(); defer s.hub.mu.Unlock(); return len(s.hub.rounds) == 1 })
	_ = s.Delete(context.Background(), "b")
	if err := <-got; !errors.Is(err, ErrDeleted) {
		t.Error(err)
	}
}

func TestBarrierTimeoutAndLostRank(t *testing.T) {
	lost := make(chan error, 1)
	s := startServer(t, Config{World: 3, OnLost: func(h Hello, err error) {
		lost <- fmt.Errorf("%s %v: %w", h.Host, h.Ranks, err)
	}})
	a, b := join(t, s, "host-a", 0), join(t, s, "host-b", 2, 1)
	if err := s.WaitJoined(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	_ = b.link.conn.Close() // no goodbye
	if err := <-lost; !strings.Contains(err.Error(), "host-b [1 2]: connection ") ||
		!strings.Contains(err.Error(), " without a goodbye") {
		t.Error(err)
	}
	if s.Err() != nil {
		t.Error("server aborted by itself")
	}
	<-b.Done()
	var gone *LostError
	if !errors.As(b.Err(), &gone) || !errors.As(b.Set(context.Background(), "k", nil), &gone) {
		t.Error(b.Err())
	}
	err := a.Barrier(within(t, 50*time.Millisecond), "x", []int{0})
	want := "missing: host-b has ranks 1-2; connection lost: ranks 1-2; present: host-a has rank 0"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v", err)
	}
	// The rank is free again.
	b2 := join(t, s, "host-c", 1, 2)
	if err := b2.Barrier(within(t, 5*time.Second), "x", []int{1, 2}); err != nil {
		t.Error(err)
	}
	_ = b2.Close()
	select {
	case err := <-lost:
		t.Errorf("goodbye reported as loss: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
}

func TestWaitJoinedNamesMissing(t *testing.T) {
	s := startServer(t, Config{World: 8})
	join(t, s, "host-a", 0, 1, 2, 4)
	join(t, s, "host-b", 5, 6)
	eventually(t, "joined", func() bool { return len(s.Members()) == 2 })
	err := s.WaitJoined(within(t, 30*time.Millisecond))
	var missing *MissingRanksError
	if !errors.As(err, &missing) || !reflect.DeepEqual(missing.Missing, []int{3, 7}) {
		t.Fatal(err)
	}
	if !strings.HasPrefix(err.Error(), "ranks 3, 7 of 8 did not join within ") ||
		!strings.HasSuffix(err.Error(), "; present: host-a has ranks 0-2, 4; host-b has 5-6") {
		t.Error(err)
	}
}

func TestRefusals(t *testing.T) {
	book := &logBook{}
	s := startServer(t, Config{World: 4, Log: book.printf, Hello: Hello{Program: "v1"}})
	join(t, s, "host-a", 0, 1)
	for _, c := range []struct {
		name string
		edit func(*Config)
		want string
	}{
		{"out of range", func(c *Config) { c.Hello.Ranks = []int{4} }, "rank 4 of host-z (pid 7) is out of range: the world has ranks 0-3"},
		{"negative", func(c *Config) { c.Hello.Ranks = []int{-1} }, "out of range"},
		{"none", func(c *Config) { c.Hello.Ranks = nil }, "names no rank"},
		{"twice", func(c *Config) { c.Hello.Ranks = []int{2, 2} }, "names rank 2 twice"},
		{"held", func(c *Config) { c.Hello.Ranks = []int{1, 2} }, "rank 1 of host-z (pid 7) is already held by host-a (pid 100)"},
		{"program", func(c *Config) { c.Hello.Program = "v2" }, `runs program version "v2", the coordinator "v1"`},
		{"world", func(c *Config) { c.World = 5 }, "expects a world of 5 ranks, the coordinator has 4"},
	} {
		before := book.count()
		cfg := clientConfig(s, "host-z", 3)
		cfg.Hello.PID = 7
		c.edit(&cfg)
		_, err := Dial(within(t, 5*time.Second), s.Addr().String(), cfg)
		var refused *RefusedError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		eventually(t, "one log line", func() bool { return book.count() == before+1 })
	}
	if !strings.Contains(book.text(), "refused connection from 127.0.0.1:") {
		t.Error(book.text())
	}
	join(t, s, "host-b", 2, 3) // and the job goes on
	if err := s.WaitJoined(within(t, 5*time.Second)); err != nil {
		t.Error(err)
	}
}

func TestWrongTokenIsFinal(t *testing.T) {
	book := &logBook{}
	s := startServer(t, Config{World: 1, Log: book.printf})
	cfg := clientConfig(s, "host-a", 0)
	cfg.Token = newTestToken(t)
	start := time.Now()
	_, err := Dial(within(t, 10*time.Second), s.Addr().String(), cfg)
	if !errors.Is(err, ErrWrongToken) || time.Since(start) > 5*time.Second {
		t.Fatal(err)
	}
	eventually(t, "log line", func() bool { return book.count() == 1 && strings.Contains(book.text(), "wrong token") })
}

// A server that does not hold the token must not be believed.
func TestImpostorServer(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		l := newLink(conn)
		_ = readPreamble(l)
		_, _ = conn.Write(preamble(protocolVersion))
		_ = writeAuth(l, authChallenge, make([]byte, nonceBytes))
		answer, err := readAuth(l, authResponse, nonceBytes+proofBytes)
		if err != nil {
			return
		}
		_ = writeAuth(l, authProof, answer[nonceBytes:]) // reflects the client's own proof
	}()
	cfg := Config{Token: newTestToken(t), Hello: Hello{Ranks: []int{0}}}
	if _, err := Dial(within(t, 5*time.Second), ln.Addr().String(), cfg); !errors.Is(err, ErrWrongToken) {
		t.Error(err)
	}
}

func TestVersionMismatch(t *testing.T) {
	book := &logBook{}
	s := startServer(t, Config{World: 1, Log: book.printf})
	conn, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = conn.Write(preamble(77))
	err = readPreamble(newLink(conn))
	if err != nil {
		t.Fatalf("the server must still name its version: %v", err)
	}
	eventually(t, "log", func() bool { return strings.Contains(book.text(), "ours is 1, the peer's is 77") })

	for _, c := range []struct {
		reply string
		check func(error) bool
	}{
		{string(preamble(77)), func(err error) bool {
			var v *VersionError
			return errors.As(err, &v) && v.Local == protocolVersion && v.Remote == 77
		}},
		{"HTTP/1.1 400 Bad Request\r\n", func(err error) bool { return errors.Is(err, ErrNotStore) }},
	} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if conn, err := ln.Accept(); err == nil {
				_, _ = conn.Write([]byte(c.reply))
				time.Sleep(50 * time.Millisecond)
				_ = conn.Close()
			}
		}()
		_, err = Dial(within(t, 5*time.Second), ln.Addr().String(), clientConfig(s, "h", 0))
		if !c.check(err) {
			t.Errorf("%q: %v", c.reply, err)
		}
		_ = ln.Close()
	}
}

func TestStrangersDoNotDisturb(t *testing.T) {
	book := &logBook{}
	s := startServer(t, Config{World: 1, Log: book.printf, HandshakeTimeout: 200 * time.Millisecond, MaxPending: 5})
	dial := func(send string) net.Conn {
		conn, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_, _ = conn.Write([]byte(send))
		return conn
	}
	steps := []struct{ name, send, want string }{
		{"garbage", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "does not speak the commprobe protocol"},
		{"half open", "", "handshake not finished within 200 ms"},
		{"half a preamble", "CMPR", "handshake not finished"},
		{"oversized frame", string(preamble(protocolVersion)) + "\xff\xff\xff\xff", "outside the limit of 4096"},
		{"malformed answer", string(preamble(protocolVersion)) + "\x00\x00\x00\x01\x09", "malformed"},
	}
	for i, step := range steps {
		conn := dial(step.send)
		eventually(t, step.name, func() bool { return book.count() == i+1 && strings.Contains(book.text(), step.want) })
		_ = conn.Close()
	}
	_ = dial("").Close() // port scan
	eventually(t, "scan", func() bool { return strings.Contains(book.text(), "closed before the handshake was finished") })

	// More half-open connections than there are slots: the slots come free
	// again, and a worker that knocks meanwhile gets in.
	for range 20 {
		dial("")
	}
	eventually(t, "full", func() bool { return strings.Contains(book.text(), "5 connections are already waiting to join") })
	join(t, s, "host-a", 0)
	if err := s.WaitJoined(within(t, 5*time.Second)); err != nil {
		t.Error(err)
	}
	eventually(t, "slots free", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.pending) == 0 })
}

func TestRefusalLogIsBounded(t *testing.T) {
	var r refusalLog
	now := time.Now()
	logged := 0
	for range 10 * refusalsPerWindow {
		if ok, _ := r.allow(now); ok {
			logged++
		}
	}
	if logged != refusalsPerWindow {
		t.Error(logged)
	}
	if ok, _ := r.allow(now.Add(refusalWindow + time.Second)); !ok {
		t.Error("silent for ever")
	}
}

func TestFrameAndStoreLimits(t *testing.T) {
	s := startServer(t, Config{World: 2, MaxFrameBytes: minMaxFrameBytes, MaxStoreBytes: 100 << 10, MaxKeys: 4})
	a, b := join(t, s, "host-a", 0), join(t, s, "host-b", 1)
	ctx := within(t, 10*time.Second)
	if err := a.Set(ctx, "big", make([]byte, minMaxFrameBytes)); err == nil || !strings.Contains(err.Error(), "exceeds the frame limit") {
		t.Error(err)
	}
	if err := a.Set(ctx, strings.Repeat("k", maxKeyBytes+1), nil); err == nil {
		t.Error("long key accepted")
	}
	if err := a.Set(ctx, "", nil); err == nil {
		t.Error("empty key accepted")
	}
	half := make([]byte, 40<<10)
	for i, c := range []*Client{a, b} {
		if err := c.Contribute(ctx, "g", map[int][]byte{i: half}); err != nil {
			t.Fatal(err)
		}
	}
	// Each part fits into a frame, the whole does not; the connection lives on.
	if _, err := a.Collect(ctx, "g"); err == nil || !strings.Contains(err.Error(), "result of") {
		t.Error(err)
	}
	for range 2 { // room for both only one after the other
		if err := a.Set(ctx, "v", make([]byte, 60<<10)); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Set(ctx, "w", make([]byte, 60<<10)); err == nil || !strings.Contains(err.Error(), "store full") {
		t.Error(err)
	}
	for _, key := range []string{"1", "2", "3"} {
		if err := a.Set(ctx, key, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Set(ctx, "5", nil); err == nil || !strings.Contains(err.Error(), "store full") {
		t.Error(err)
	}
	if err := a.Barrier(ctx, "5", []int{0}); err == nil || !strings.Contains(err.Error(), "store full") {
		t.Error(err)
	}
}

func TestAbortReachesEveryone(t *testing.T) {
	s := startServer(t, Config{World: 3})
	a, b, c := join(t, s, "host-a", 0), join(t, s, "host-b", 1), join(t, s, "host-c", 2)
	ctx := within(t, 10*time.Second)
	if err := s.WaitJoined(ctx); err != nil {
		t.Fatal(err)
	}
	waits := []func() error{
		func() error { _, err := a.Get(ctx, "never"); return err },
		func() error { return a.Barrier(ctx, "never", []int{0}) },
		func() error { _, err := b.Collect(ctx, "never"); return err },
		func() error { _, err := b.Gather(ctx, "never", map[int][]byte{1: nil}); return err },
		func() error { _, err := s.Collect(ctx, "never"); return err },
		func() error { _, err := s.Get(ctx, "never"); return err },
		func() error { return s.Barrier(ctx, "never", nil) },
	}
	errs := make(chan error, len(waits))
	for _, w := range waits {
		go func() { errs <- w() }()
	}
	eventually(t, "waiting", func() bool {
		s.hub.mu.Lock()
		defer s.hub.mu.Unlock()
		return len(s.hub.waiters) == 1 && len(s.hub.rounds) == 2
	})
	want := Cause{Rank: 2, Host: "host-c", Phase: "warm-up", Reason: "out of memory"}
	c.Abort(Cause{Rank: 2, Phase: "warm-up", Reason: "out of memory"})
	a.Abort(Cause{Rank: 0, Reason: "later"})
	s.Abort(Cause{Rank: -1, Reason: "later"})
	check := func(what string, err error) {
		t.Helper()
		var aborted *AbortedError
		if !errors.As(err, &aborted) || aborted.Cause != want {
			t.Errorf("%s: %v", what, err)
		}
	}
	for range waits {
		check("pending", <-errs)
	}
	for i, view := range []Store{a, b, c, s} {
		<-view.Done()
		check(fmt.Sprint("err of ", i), view.Err())
		check(fmt.Sprint("later call of ", i), view.Set(ctx, "k", nil))
	}
	_ = c.Close()
	_, err := Dial(ctx, s.Addr().String(), clientConfig(s, "host-d", 2))
	check("late joiner", err)
	_ = s.Close()
	check("after close", a.Err())
	if got, want := want.String(), "rank 2 on host-c, phase warm-up: out of memory"; got != want {
		t.Errorf("got %q want %q", got, want)
	}
}

// A coordinator that aborts and closes at once must not hide the cause.
func TestAbortThenCloseAtOnce(t *testing.T) {
	for range 20 {
		s := startServer(t, Config{World: 4})
		var clients []*Client
		for rank := range 4 {
			clients = append(clients, join(t, s, "host-a", rank))
		}
		s.Abort(Cause{Rank: -1, Host: "head", Phase: "plan", Reason: "no"})
		_ = s.Close()
		for _, c := range clients {
			<-c.Done()
			var aborted *AbortedError
			if err := c.Err(); !errors.As(err, &aborted) || err.Error() != "job aborted by coordinator on head, phase plan: no" {
				t.Fatal(err)
			}
			_ = c.Close()
		}
	}
}

func TestServerCloses(t *testing.T) {
	s := startServer(t, Config{World: 2})
	a := join(t, s, "host-a", 0)
	got := make(chan error, 1)
	go func() { _, err := a.Get(within(t, 5*time.Second), "never"); got <- err }()
	time.Sleep(20 * time.Millisecond)
	_ = s.Close()
	_ = s.Close()
	if err := <-got; !errors.Is(err, ErrServerClosed) {
		t.Error(err)
	}
	if err := s.Set(context.Background(), "k", nil); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// relay forwards between a client and the server until frozen: then the
// connection stays open and silent, as if a host had lost its power.
func relay(t *testing.T, to string) (addr string, freeze func()) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	frozen := make(chan struct{})
	var conns []net.Conn
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		in, err := ln.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", to)
		if err != nil {
			return
		}
		conns = append(conns, in, out)
		pump := func(dst, src net.Conn) {
			buf := make([]byte, 4096)
			for {
				n, err := src.Read(buf)
				if err != nil {
					return
				}
				select {
				case <-frozen:
					return
				default:
				}
				_, _ = dst.Write(buf[:n])
			}
		}
		go pump(in, out)
		go pump(out, in)
	}()
	t.Cleanup(func() {
		_ = ln.Close()
		<-accepted
		for _, c := range conns {
			_ = c.Close()
		}
	})
	return ln.Addr().String(), sync.OnceFunc(func() { close(frozen) })
}

func TestSilentDeathIsNoticedOnBothSides(t *testing.T) {
	lost := make(chan error, 1)
	s := startServer(t, Config{
		World: 1, Heartbeat: 30 * time.Millisecond, DeadAfter: 300 * time.Millisecond,
		OnLost: func(_ Hello, err error) { lost <- err },
	})
	addr, freeze := relay(t, s.Addr().String())
	c, err := Dial(within(t, 5*time.Second), addr, clientConfig(s, "host-a", 0))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	time.Sleep(500 * time.Millisecond) // longer than DeadAfter: pings keep it alive
	if c.Err() != nil || len(lost) != 0 {
		t.Fatal("lost while alive: ", c.Err())
	}
	freeze()
	_, err = c.Get(within(t, 5*time.Second), "never")
	var gone *LostError
	if !errors.As(err, &gone) || !strings.Contains(err.Error(), "nothing heard for 300 ms") ||
		!strings.Contains(err.Error(), "rank 0 on host-a") {
		t.Error(err)
	}
	if err := <-lost; !strings.Contains(err.Error(), "nothing heard for 300 ms") {
		t.Error(err)
	}
}

func TestServerVanishes(t *testing.T) {
	s := startServer(t, Config{World: 1})
	c := join(t, s, "host-a", 0)
	eventually(t, "joined", func() bool { return len(s.Members()) == 1 })
	_ = s.hub.members()[0].link.conn.Close() // as the kernel does for a killed process
	select {
	case <-c.Done():
	case <-time.After(2 * time.Second):
		t.Fatal("not noticed at once")
	}
	var gone *LostError
	if !errors.As(c.Err(), &gone) || gone.Addr != s.Addr().String() {
		t.Error(c.Err())
	}
}

func TestDialWaitsForServer(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	_ = ln.Close()
	cfg := Config{World: 1, Token: newTestToken(t), Hello: Hello{Ranks: []int{0}, Host: "h"}}
	_, err = Dial(within(t, 150*time.Millisecond), addr, cfg)
	var de *DialError
	if !errors.As(err, &de) || de.Addr != addr || de.Attempts < 2 || !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "refused") || !strings.Contains(err.Error(), "rank 0: no store answered at "+addr) {
		t.Fatalf("%v", err)
	}
	got := make(chan error, 1)
	go func() {
		c, err := Dial(within(t, 5*time.Second), addr, cfg)
		if err == nil {
			_ = c.Close()
		}
		got <- err
	}()
	time.Sleep(100 * time.Millisecond)
	s, err := Listen(addr, cfg)
	if err != nil {
		t.Skipf("port taken meanwhile: %v", err)
	}
	defer s.Close()
	if err := <-got; err != nil {
		t.Error(err)
	}
}

func TestIPv6(t *testing.T) {
	token := newTestToken(t)
	s, err := Listen("[::1]:0", Config{World: 1, Token: token})
	if err != nil {
		t.Skipf("no IPv6 loopback: %v", err)
	}
	defer s.Close()
	join(t, s, "host-a", 0)
	if err := s.WaitJoined(within(t, 5*time.Second)); err != nil {
		t.Error(err)
	}
}

func TestConfigErrors(t *testing.T) {
	token := newTestToken(t)
	for name, cfg := range map[string]Config{
		"no token":  {World: 1},
		"no world":  {Token: token},
		"big world": {Token: token, World: maxWorld + 1},
		"dead":      {Token: token, World: 1, DeadAfter: time.Second, Heartbeat: time.Second},
		"frame":     {Token: token, World: 1, MaxFrameBytes: 1},
		"negative":  {Token: token, World: 1, MaxKeys: -1},
	} {
		if s, err := Listen("127.0.0.1:0", cfg); err == nil {
			_ = s.Close()
			t.Errorf("%s accepted", name)
		}
	}
}

func TestManyRanksAtOnceLeaveNothingBehind(t *testing.T) {
	before := runtime.NumGoroutine()
	const world = 48
	s, err := Listen("127.0.0.1:0", Config{World: world, Token: newTestToken(t)})
	if err != nil {
		t.Fatal(err)
	}
	ctx := within(t, 20*time.Second)
	var wg sync.WaitGroup
	for rank := range world {
		wg.Go(func() {
			c, err := Dial(ctx, s.Addr().String(), clientConfig(s, fmt.Sprint("host-", rank/8), rank))
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			for step := range 5 {
				name := fmt.Sprint("step/", step)
				all, err := c.Gather(ctx, name, map[int][]byte{rank: []byte(fmt.Sprint(rank))})
				if err != nil || len(all) != world || string(all[7]) != "7" {
					t.Errorf("rank %d: %d parts, %v", rank, len(all), err)
				}
				if err := c.Barrier(ctx, name, []int{rank}); err != nil {
					t.Error(err)
				}
			}
			_, err = c.Get(within(t, time.Millisecond), "never")
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		})
	}
	if err := s.WaitJoined(ctx); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "goroutines gone", func() bool { return runtime.NumGoroutine() <= before })
}
