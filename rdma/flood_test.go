package rdma

import (
	"context"
	"crypto/rand"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/commprobe/commprobe/internal/bootstrap"
)

// 2,000 connections that say nothing, garbage, or hold another token are refused, in few lines; a client that comes in the middle of them is served.
func TestFlood(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.server.handshake = 300 * time.Millisecond
	var mu sync.Mutex
	var log []string
	r.server.Log = func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		log = append(log, format)
	}
	r.client.Options.Deadline = 20 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	listening, served := make(chan string, 1), make(chan error, 1)
	r.server.Listening = func(a string) { listening <- a }
	go func() { served <- r.server.Run(ctx) }()
	addr := <-listening
	stranger, err := bootstrap.NewToken()
	if err != nil {
		t.Fatal(err)
	}
	var flood sync.WaitGroup
	next := make(chan int)
	var opened int
	for range 100 {
		flood.Go(func() {
			for i := range next {
				if intrude(ctx, addr, i, stranger) {
					mu.Lock()
					opened++
					mu.Unlock()
				}
			}
		})
	}
	half := make(chan struct{})
	go func() {
		for i := range 2000 {
			if i == 1000 {
				close(half)
			}
			next <- i
		}
		close(next)
	}()
	<-half
	r.client.Addr = addr
	rep, err := r.client.Run(ctx)
	if err != nil || len(rep.Rows) != len(r.client.Options.Sizes) {
		t.Errorf("the client in the flood: %v", err)
	}
	if err := <-served; err != nil {
		t.Errorf("the server: %v", err)
	}
	flood.Wait()
	mu.Lock()
	defer mu.Unlock()
	if opened < 1000 || len(log) == 0 || len(log) > 400 {
		t.Errorf("%d connections were opened, %d lines logged", opened, len(log))
	}
	for _, line := range log {
		if !strings.Contains(line, "refused") {
			t.Errorf("log: %s", line)
		}
	}
}

// intrude opens one connection of the flood and tells whether it could.
func intrude(ctx context.Context, addr string, i int, token bootstrap.Token) bool {
	if i%3 == 2 {
		short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		defer cancel()
		c, err := bootstrap.Dial(short, addr, bootstrap.Config{World: 2, Token: token, Hello: bootstrap.Hello{Ranks: []int{clientRank}, Program: "v1"}})
		if err == nil {
			c.Close() // would be a hole: the test's client is then not served, and fails
		}
		return true
	}
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false
	}
	defer c.Close()
	if i%3 == 0 {
		junk := make([]byte, 4096)
		_, _ = rand.Read(junk)
		_, _ = c.Write(junk)
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	buf := make([]byte, 512)
	for {
		if _, err := c.Read(buf); err != nil {
			return true
		}
	}
}
