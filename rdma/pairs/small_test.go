package pairs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/commprobe/commprobe/internal/bootstrap"
	"github.com/commprobe/commprobe/rdma"
)

// In a tournament each meets each other once, and in a round nobody plays twice.
func TestRounds(t *testing.T) {
	for n := range 20 {
		met := map[[2]int]bool{}
		list := rounds(n)
		if want := n - 1 + n%2; n >= 2 && len(list) != want {
			t.Errorf("%d hosts: %d rounds, want %d", n, len(list), want)
		}
		for _, round := range list {
			plays := map[int]bool{}
			for _, p := range round {
				if met[p] || p[0] >= p[1] || plays[p[0]] || plays[p[1]] {
					t.Errorf("%d hosts: %v again, in %v", n, p, round)
				}
				met[p], plays[p[0]], plays[p[1]] = true, true, true
			}
		}
		if len(met) != n*(n-1)/2 {
			t.Errorf("%d hosts: %d pairs", n, len(met))
		}
	}
}

func TestDispatch(t *testing.T) {
	var work [][2]int
	for _, r := range rounds(7) {
		work = append(work, r...)
	}
	var mu sync.Mutex
	busy, ran, at, most := map[int]bool{}, make([]int, len(work)), 0, 0
	run := func(i int) {
		mu.Lock()
		for _, h := range work[i] {
			if busy[h] {
				t.Errorf("host %d twice", h)
			}
			busy[h] = true
		}
		ran[i]++
		at++
		most = max(most, at)
		mu.Unlock()
		time.Sleep(time.Duration(i%4) * time.Millisecond)
		mu.Lock()
		busy[work[i][0]], busy[work[i][1]] = false, false
		at--
		mu.Unlock()
	}
	dispatch(nil, work, 2, run)
	if most != 2 || slices.ContainsFunc(ran, func(n int) bool { return n != 1 }) {
		t.Errorf("%d at once, %v", most, ran)
	}
	stop := make(chan struct{})
	n := 0
	dispatch(stop, work, 1, func(int) {
		if n++; n == 3 {
			close(stop)
		}
	})
	if n != 3 {
		t.Errorf("%d begun, stopped at the third", n)
	}
	dispatch(nil, nil, 1, run)
}

func TestParseHosts(t *testing.T) {
	got, err := ParseHosts("a, root@b,c=10.0.0.3,u@d=fd00::4,10.0.0.5")
	want := []Host{{"a", "a"}, {"root@b", "b"}, {"c", "10.0.0.3"}, {"u@d", "fd00::4"}, {"10.0.0.5", "10.0.0.5"}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v: %v", err, got)
	}
	for text, says := range map[string]string{
		"": "empty", "a": "two hosts", "a,,b": "empty", "a,a": "twice", "a,-oProxyCommand=x": "no name of a host", "a,b c": "no name", "a,b;reboot": "no name", "a,b=": "empty", "a,$(x)": "no name",
		strings.Repeat("x", 3) + strings.Repeat(",y", 2): "twice",
	} {
		if _, err := ParseHosts(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", text, err)
		}
	}
	own, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParseHosts("localhost,b"); err != nil || got[0] != (Host{"localhost", own}) {
		t.Errorf("localhost beside others: %v, %v", got, err)
	}
	if got, err := ParseHosts("localhost,b=127.0.0.1"); err != nil || got[0].Addr != "localhost" {
		t.Errorf("localhost by itself: %v, %v", got, err)
	}
}

func FuzzParseHosts(f *testing.F) {
	f.Add("a,root@b,c=10.0.0.3")
	f.Add("a,[::1]")
	f.Fuzz(func(t *testing.T, text string) {
		hosts, err := ParseHosts(text)
		if (err == nil) != (len(hosts) >= 2) {
			t.Fatalf("%v and %v", hosts, err)
		}
		for _, h := range hosts {
			if h.Name == "" || h.Name[0] == '-' || strings.ContainsAny(h.Name+h.Addr, " \t\n'\";$`") {
				t.Errorf("%q", h)
			}
		}
	})
}

func TestBindTo(t *testing.T) {
	addrs := func(list ...string) (out []netip.Addr) {
		for _, a := range list {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	local := addrs("127.0.0.1", "10.0.0.5", "fd00::5")
	for _, c := range []struct {
		name     string
		resolved []netip.Addr
		want     string
	}{
		{"hosta", addrs("10.0.0.5"), "10.0.0.5"},
		{"hosta", addrs("127.0.1.1", "::ffff:10.0.0.5"), "10.0.0.5"},
		{"hosta", addrs("127.0.1.1"), ""}, // its own name in /etc/hosts
		{"hosta", addrs("127.0.0.1"), ""},
		{"hosta", addrs("192.0.2.9"), ""}, // translated on the way
		{"hosta", nil, ""},
		{"fd00::5", addrs("fd00::5"), "fd00::5"},
		{"localhost", addrs("127.0.0.1"), "localhost"},
		{"127.0.0.1", addrs("127.0.0.1"), "127.0.0.1"},
		{"::1", addrs("::1"), "::1"},
	} {
		if got := bindTo(c.name, c.resolved, local); got != c.want {
			t.Errorf("%s %v: %q, want %q", c.name, c.resolved, got, c.want)
		}
	}
}

func TestShared(t *testing.T) {
	side := func(subnets ...string) *rdma.Side {
		s := &rdma.Side{}
		for _, n := range subnets {
			s.GIDs = append(s.GIDs, rdma.GID{Subnet: n})
		}
		return s
	}
	for _, c := range []struct {
		a, b       *rdma.Side
		yes, known bool
	}{
		{side("10.0.0.0/24"), side("10.0.0.0/24"), true, true},
		{side("10.0.0.0/16"), side("10.0.3.0/24"), true, true},
		{side("10.0.0.0/24"), side("10.1.0.0/24"), false, true},
		{side("fe80::/64"), side("fe80::/64"), false, false},
		{side("fe80::/64", "10.0.0.0/24"), side("fe80::/64", "10.1.0.0/24"), false, true},
		{side(""), side("10.1.0.0/24"), false, false},
	} {
		if yes, known, _ := shared(c.a, c.b); yes != c.yes || known != c.known {
			t.Errorf("%v %v: %v, known %v", c.a.GIDs, c.b.GIDs, yes, known)
		}
	}
}

// ---- agent

// talk sends lines to an agent and returns what it says until it ends.
func talk(t *testing.T, a *Agent, in io.Reader) (answers []answer, err error) {
	t.Helper()
	var out locked // an agent that leaves a job behind leaves its writer too
	err = a.Run(t.Context(), in, &out)
	for line := range bytes.Lines(out.copy()) {
		got, ours, err := parseAnswer(bytes.TrimSpace(line))
		if !ours || err != nil {
			t.Errorf("%q: %v", line, err)
			continue
		}
		answers = append(answers, *got)
	}
	return answers, err
}

// locked is a buffer for several goroutines.
type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *locked) copy() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.b.Bytes())
}

// hangBench never ends by itself; deaf, not even when it is told to.
type hangBench struct {
	deaf  bool
	ended chan struct{}
}

func (b *hangBench) Devices() (*rdma.List, error) { return &rdma.List{Library: "x"}, nil }
func (b *hangBench) Serve(ctx context.Context, _ bootstrap.Token, _ ServeJob, listening func(string)) error {
	if b.deaf {
		select {}
	}
	listening("[::]:1")
	<-ctx.Done()
	b.ended <- struct{}{}
	return ctx.Err()
}
func (b *hangBench) Test(ctx context.Context, _ bootstrap.Token, _ TestJob) (*rdma.Report, error) {
	<-ctx.Done()
	b.ended <- struct{}{}
	return nil, ctx.Err()
}

const testToken = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func requests(t *testing.T, list ...request) io.Reader {
	t.Helper()
	var b bytes.Buffer
	for _, r := range append([]request{{Do: doHello, Hello: &hello{Protocol: Protocol, Program: "v1", Token: testToken}}}, list...) {
		if err := writeRequest(&b, &r); err != nil {
			t.Fatal(err)
		}
	}
	return &b
}

// When nobody listens any more, all that was asked for ends, and the agent with it.
func TestAgentEndsWithStdin(t *testing.T) {
	t.Parallel()
	b := &hangBench{ended: make(chan struct{}, 2)}
	in := requests(t, request{Do: doList, ID: 1}, request{Do: doServe, ID: 2, Serve: &ServeJob{}}, request{Do: doTest, ID: 3, Test: &TestJob{}}, request{Do: doPing})
	begin := time.Now()
	answers, err := talk(t, &Agent{Program: "v1", Bench: b}, in)
	if err != nil || len(b.ended) != 2 || time.Since(begin) > 900*time.Millisecond {
		t.Errorf("%v: %d jobs ended after %v", err, len(b.ended), time.Since(begin))
	}
	if answers[0].Hello == nil || answers[0].Hello.Program != "v1" || answers[0].Hello.Token != "" {
		t.Errorf("%+v", answers[0])
	}
	if !slices.ContainsFunc(answers, func(a answer) bool { return a.ID == 1 && a.Done && a.List != nil }) {
		t.Errorf("no list in %+v", answers)
	}
	_, err = talk(t, &Agent{Bench: &hangBench{deaf: true}}, requests(t, request{Do: doServe, ID: 1, Serve: &ServeJob{}}))
	if err == nil || !strings.Contains(err.Error(), "has not ended") {
		t.Errorf("a job that hangs: %v", err)
	}
}

// A job ends when it is stopped, and after its limit; an agent to which nobody speaks ends too.
func TestAgentStops(t *testing.T) {
	t.Parallel()
	b := &hangBench{ended: make(chan struct{}, 2)}
	r, w := io.Pipe()
	out, said := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := (&Agent{Bench: b, Idle: 500 * time.Millisecond}).Run(context.Background(), r, said)
		_ = said.Close()
		done <- err
	}()
	go func() {
		_, _ = io.Copy(w, requests(t, request{Do: doServe, ID: 1, Serve: &ServeJob{}}, request{Do: doTest, ID: 2, Limit: 50 * time.Millisecond, Test: &TestJob{}},
			request{Do: doStop, Of: 1}, request{Do: doStop, Of: 7}))
	}()
	ends := map[int]string{}
	for in := newLines(out); ; {
		line, err := in.next()
		if err != nil {
			break
		}
		if a, _, err := parseAnswer(line); err == nil && a.Done {
			ends[a.ID] = fmt.Sprint(a.Error)
		}
	}
	if err := <-done; err == nil || !strings.Contains(err.Error(), "nothing heard from the orchestrator for 500ms") {
		t.Errorf("silence: %v", err)
	}
	if !strings.Contains(ends[1], "canceled") || !strings.Contains(ends[2], "not done within 50ms") {
		t.Errorf("%v", ends)
	}
}

func TestAgentWantsHello(t *testing.T) {
	b := &hangBench{ended: make(chan struct{}, 2)}
	for in, says := range map[string]string{
		"\n": "not a hello", `{"do":"list","id":1}` + "\n": "not a hello", "GET / HTTP/1.0\n": "not a hello",
		`{"do":"hello","hello":{"protocol":1,"token":"` + testToken[:63] + `x"}}` + "\n": "token",
	} {
		_, err := talk(t, &Agent{Bench: b}, strings.NewReader(in))
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), testToken[:16]) {
			t.Errorf("%q: %v", in, err)
		}
	}
	answers, err := talk(t, &Agent{Program: "v9", Bench: b}, strings.NewReader(`{"do":"hello","hello":{"protocol":99}}`+"\n"))
	if err != nil || len(answers) != 1 || answers[0].Hello.Protocol != Protocol || answers[0].Hello.Program != "v9" {
		t.Errorf("another protocol: %v, %+v", err, answers)
	}
}

// ---- lines

func TestLines(t *testing.T) {
	long := strings.Repeat("x", maxLine+1)
	l := newLines(strings.NewReader("a\r\n\n" + long + "\nb"))
	var got []string
	for range 4 {
		line, err := l.next()
		if err != nil {
			line = []byte(err.Error())
		}
		got = append(got, string(line))
	}
	if !slices.Equal(got, []string{"a", "", errLong.Error(), "b"}) {
		t.Errorf("%.200q", got)
	}
	if _, err := l.next(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"do":"hello","hello":{"protocol":1,"program":"v1","token":"x"}}`))
	f.Add([]byte(`{"id":2,"do":"serve","limit_ns":5,"serve":{"device":"m0","port":1,"bind":"a","tcp_port":0}}`))
	f.Add([]byte(`{"id":3,"do":"test","test":{"addr":"a:1","options":{"tests":["write"]}}}`))
	f.Add([]byte(`{"do":"stop","of":3}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		r, err := parseRequest(line)
		if (r == nil) != (err != nil) {
			t.Fatalf("%v and %v", r, err)
		}
		if err != nil {
			return
		}
		var b bytes.Buffer
		if err := writeRequest(&b, r); err != nil {
			t.Fatal(err)
		}
		again, err := parseRequest(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
		if err != nil || !sameJSON(r, again) {
			t.Errorf("%+v became %+v, %v", r, again, err)
		}
	})
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte(mark + `{"hello":{"protocol":1,"program":"v1","host":"a","pid":7}}`))
	f.Add([]byte(mark + `{"id":1,"done":true,"error":{"kind":"died","text":"x"}}`))
	f.Add([]byte(mark + `{"id":1,"listening":"[::]:7"}`))
	f.Add([]byte("Last login: today"))
	f.Fuzz(func(t *testing.T, line []byte) {
		a, ours, err := parseAnswer(line)
		if (a == nil) != (err != nil || !ours) || !ours && err != nil {
			t.Fatalf("%v, %v and %v", a, ours, err)
		}
		if a == nil {
			return
		}
		var b bytes.Buffer
		if err := writeAnswer(&b, a); err != nil {
			return // a time that JSON cannot write again
		}
		again, ours, err := parseAnswer(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
		if err != nil || !ours || !sameJSON(a, again) {
			t.Errorf("%+v became %+v, %v", a, again, err)
		}
	})
}

func sameJSON(a, b any) bool {
	x, err1 := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && bytes.Equal(x, y)
}

// ---- remote shell

// Host and command reach the remote shell as one word each, and sh there takes the program's path as it is.
func TestShellQuotes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a dir; with 'quotes' $HOME")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "probe")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nprintf '%s|' \"$0\" \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	rsh := filepath.Join(dir, "rsh")
	if err := os.WriteFile(rsh, []byte("#!/bin/sh\necho \"$#|$1|$2|$3\"\nexec sh -c \"$4\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := Shell{Command: Quote(rsh) + " -x 'y z'", Binary: program}
	r, err := s.Start(t.Context(), Host{Name: "u@h"})
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(r.Stdout)
	if want := "4|-x|y z|u@h\n" + program + "|" + AgentCommand + "|"; err != nil || string(out) != want {
		t.Errorf("%q, want %q, %v", out, want, err)
	}
	if err := r.End(); err != nil {
		t.Error(err)
	}
	for word, want := range map[string]string{"/a/b-c_d.e": "/a/b-c_d.e", "": "''", "a b": "'a b'", "it's": `'it'\''s'`} {
		if got := Quote(word); got != want {
			t.Errorf("%q: %s, want %s", word, got, want)
		}
		if out, err := exec.Command("sh", "-c", "printf %s "+Quote(word)).Output(); err != nil || string(out) != word {
			t.Errorf("%q: %q, %v", word, out, err)
		}
	}
}

// How a remote shell ended is in the error, with its last words; one that does not end is ended.
func TestShellEnds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		command string
		says    []string
	}{
		{"sh -c 'echo one >&2; echo two >&2; exit 3' #", []string{"exit status 3", "one / two"}},
		{"sh -c 'exit 255' #", []string{"255", "--rsh"}},
		{"/nonexistent/rsh", []string{"127", "/nonexistent/rsh", "--remote-binary"}},
	} {
		var mu sync.Mutex
		var told []string
		s := Shell{Command: c.command, Binary: "x", Stderr: func(host, line string) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, host+": "+line)
		}}
		r, err := s.Start(t.Context(), Host{Name: "h"})
		if err != nil {
			t.Fatal(err)
		}
		err = r.End()
		if err == nil {
			t.Fatalf("%s: no error", c.command)
		}
		has(t, err.Error(), c.says...)
		if strings.Contains(c.command, "two") && !slices.Equal(told, []string{"h: one", "h: two"}) {
			t.Errorf("%q", told)
		}
	}
	s := Shell{Command: "sh -c 'sleep 100 & wait' #", Binary: "x"}
	r, err := s.Start(t.Context(), Host{Name: "h"})
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Stdin.Close()
	begin := time.Now()
	if err := r.End(); err == nil || !strings.Contains(err.Error(), "was killed") || time.Since(begin) > endGrace+3*time.Second {
		t.Errorf("after %v: %v", time.Since(begin), err)
	}
	if _, err := r.Stdout.Read(make([]byte, 1)); err == nil {
		t.Error("its stdout is still open")
	}
}

// An agent that is gone is noticed though something it left behind holds its stdout, as a shared connection of ssh may.
func TestShellLeavesSomethingBehind(t *testing.T) {
	t.Parallel()
	pid := filepath.Join(t.TempDir(), "pid")
	s := Shell{Command: "sh -c 'sleep 100 & echo $! >" + pid + "; exit 0' #", Binary: "x"}
	begin := time.Now()
	_, _, err := connect(t.Context(), Host{Name: "h"}, s.Start, hello{Protocol: Protocol}, quick, func(string) {})
	if err == nil || !strings.Contains(err.Error(), "h: first words: the agent ended by itself") || time.Since(begin) > 4*time.Second {
		t.Errorf("after %v: %v", time.Since(begin), err)
	}
	text, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
		_ = syscall.Kill(n, syscall.SIGKILL)
	}
}
