package bootstrap

import (
	"bytes"
	"io"
	"net"
	"reflect"
	"testing"
	"time"
)

// feed gives the server's side of a pipe and writes data into the other, then
// hangs up.
func feed(data []byte) (net.Conn, func()) {
	near, far := net.Pipe()
	done := make(chan struct{}, 2)
	go func() {
		_, _ = io.Copy(io.Discard, far)
		done <- struct{}{}
	}()
	go func() {
		_, _ = far.Write(data)
		time.Sleep(time.Millisecond) // let replies out before the end
		_ = far.Close()
		done <- struct{}{}
	}()
	return near, func() { _ = near.Close(); <-done; <-done }
}

func fuzzServer(t testing.TB) *Server {
	s, err := newServer(Config{
		World: 4, Token: newTestToken(t), MaxStoreBytes: 1 << 20, MaxKeys: 100, DeadAfter: time.Second,
		Heartbeat: 100 * time.Millisecond, HandshakeTimeout: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// FuzzHandshake feeds what a stranger may send.
func FuzzHandshake(f *testing.F) {
	s := fuzzServer(f)
	pre := string(preamble(protocolVersion))
	for _, seed := range []string{
		"", "GET / HTTP/1.1\r\n", pre, pre + "\x00\x00\x00\x01\x02", pre + "\xff\xff\xff\xff", string(preamble(9)),
		pre + "\x00\x00\x00\x41\x02" + string(make([]byte, nonceBytes+proofBytes)),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		conn, stop := feed(data)
		defer stop()
		s.serve(conn)
		if got := s.Members(); len(got) != 0 {
			t.Errorf("a stranger joined: %v", got)
		}
	})
}

// FuzzSession feeds what an authenticated but broken client may send.
func FuzzSession(f *testing.F) {
	var all []byte
	for op := opSet; op <= opLast; op++ {
		for _, m := range []message{
			{op: op, id: uint64(op), key: "k", value: []byte("v")},
			{op: op, flag: modeGather, key: "k", parts: map[int][]byte{1: []byte("p")}},
		} {
			f.Add(m.frame())
			if op != opGoodbye && op != opAbort {
				all = append(all, m.frame()...)
			}
		}
	}
	f.Add(all)
	f.Add([]byte("\x7f\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := fuzzServer(t)
		conn, stop := feed(data)
		defer stop()
		m := &member{hello: Hello{Ranks: []int{0, 1}, Host: "h"}, link: newLink(conn)}
		if err := m.link.establish(time.Second); err != nil {
			t.Fatal(err)
		}
		if err := s.hub.join(m, 0); err != nil {
			t.Fatal(err)
		}
		_ = s.session(m)
		s.hub.leave(m, false)
		_ = s.Close()
		h := s.hub
		if h.joined != 0 || len(h.live) != 0 || len(h.waiters) != 0 || h.bytes < 0 || h.bytes > s.cfg.MaxStoreBytes {
			t.Errorf("left behind: joined %d, live %d, waiters %d, bytes %d", h.joined, len(h.live), len(h.waiters), h.bytes)
		}
		for key, r := range h.rounds {
			if r.users != 0 || len(r.parts) == 0 {
				t.Errorf("%s: %d users, %d parts", key.phase(), r.users, len(r.parts))
			}
		}
	})
}

// FuzzMessage checks that parsing never panics, and the round trip.
func FuzzMessage(f *testing.F) {
	full := message{op: opGather, flag: 2, id: 7, key: "name", value: []byte("v"), parts: map[int][]byte{0: {}, 3: []byte("x")}}
	f.Add(full.frame())
	f.Add([]byte("\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		body, err := readFrame(bytes.NewReader(data), 1<<16)
		if err != nil {
			return
		}
		m, err := decodeMessage(body)
		if err != nil {
			if !reflect.DeepEqual(m, message{}) {
				t.Error("both a message and an error")
			}
			return
		}
		again, err := readFrame(bytes.NewReader(m.frame()), 1<<16)
		if err != nil {
			t.Fatal(err)
		}
		back, err := decodeMessage(again)
		if err != nil || !reflect.DeepEqual(m, back) {
			t.Errorf("%+v became %+v, %v", m, back, err)
		}
	})
}
