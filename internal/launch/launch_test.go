//go:build linux

package launch

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const envMode = "COMMPROBE_LAUNCH_TEST_MODE"

// TestMain lets the test binary play the worker as well.
func TestMain(m *testing.M) {
	if mode := os.Getenv(envMode); mode != "" {
		syscall.Exit(playWorker(mode))
	}
	syscall.Exit(m.Run())
}

// fuse ends a forgotten test process.
const fuse = 60 * time.Second

func playWorker(mode string) int {
	time.AfterFunc(fuse, KillOwnGroup)
	arg := os.Getenv("ARG")
	switch mode {
	case "talk":
		for i := range 50 {
			fmt.Printf("line %d of %s\n", i, arg)
		}
		fmt.Fprint(os.Stderr, "partial "+arg)
	case "exit":
		code, _ := strconv.Atoi(arg)
		for i := range 30 {
			fmt.Fprintln(os.Stderr, "complaint", i)
		}
		return code
	case "stdin":
		b, err := io.ReadAll(os.Stdin)
		fmt.Println(len(b), err, os.Getenv("BASE"), os.Getenv("OVER"), syscall.Getpgrp() == os.Getpid())
	case "long":
		fmt.Print(strings.Repeat("x", 3*maxLineBytes/2))
	case "die":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "sleep":
		fmt.Println("ready", os.Getpid())
		time.Sleep(fuse)
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("ready", os.Getpid())
		time.Sleep(fuse)
	case "offspring": // starts a child in its group and ends
		startHelper("stubborn")
	case "orphanage": // the same, but stays and watches its parent
		gone, err := WatchParent(os.Getenv)
		if err != nil {
			fmt.Println(err)
			return 1
		}
		startHelper("stubborn")
		fmt.Println("ready", os.Getpid())
		<-gone
		KillOwnGroup()
	case "parent":
		g, err := Start(context.Background(), helperSpec("orphanage", os.Stdout, []int{0}, []int{1, 2}))
		if err != nil {
			fmt.Println(err)
			return 1
		}
		<-g.Done()
	}
	return 0
}

// startHelper starts a grandchild and waits until it is ready; it says so on
// our own stdout.
func startHelper(mode string) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envMode+"="+mode)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	fmt.Print(line)
}

func helperSpec(mode string, out io.Writer, ranks ...[]int) Spec {
	s := Spec{Path: os.Args[0], Env: append(os.Environ(), envMode+"="+mode), Stdout: out, Stderr: out}
	for _, r := range ranks {
		s.Workers = append(s.Workers, Worker{Ranks: r, Env: []string{"ARG=" + fmt.Sprint(r[0])}})
	}
	return s
}

// safeBuffer checks as well that each Write is one line.
type safeBuffer struct {
	mu    sync.Mutex
	buf   bytes.Buffer
	split bool
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if bytes.Count(p, []byte("\n")) != 1 || p[len(p)-1] != '\n' {
		b.split = true
	}
	return b.buf.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// readyPIDs waits for n processes to report and returns their numbers.
func readyPIDs(t *testing.T, out func() string, n int) []int {
	t.Helper()
	var pids []int
	eventually(t, "processes ready", func() bool {
		pids = nil
		for line := range strings.Lines(out()) {
			if _, after, ok := strings.Cut(line, "ready "); ok && strings.HasSuffix(line, "\n") {
				pid, err := strconv.Atoi(strings.TrimSpace(after))
				if err != nil {
					t.Fatal(err)
				}
				pids = append(pids, pid)
			}
		}
		return len(pids) == n
	})
	return pids
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if cond() {
			return
		}
	}
	t.Fatalf("never happened: %s", what)
}

// procState returns the state letter of a process, 0 if there is none.
func procState(pid int) byte {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, after, _ := bytes.Cut(b, []byte(") "))
	if len(after) == 0 {
		return 0
	}
	return after[0]
}

// expectGone accepts a zombie for processes that are init's to reap.
func expectGone(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		eventually(t, fmt.Sprintf("process %d gone", pid), func() bool {
			s := procState(pid)
			return s == 0 || s == 'Z' || s == 'X'
		})
	}
}

func expectNoChildren(t *testing.T) {
	t.Helper()
	if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); !errors.Is(err, syscall.ECHILD) {
		t.Errorf("a child is left: wait4 gives %d, %v", pid, err)
	}
}

func mustStart(t *testing.T, spec Spec) *Group {
	t.Helper()
	g, err := Start(context.Background(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Shutdown(0) })
	return g
}

func collect(g *Group) []Exit {
	var all []Exit
	for e := range g.Exits() {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b Exit) int { return a.Worker - b.Worker })
	return all
}

func TestOutputLinesWithPrefix(t *testing.T) {
	var out safeBuffer
	spec := helperSpec("talk", &out, []int{3}, []int{0, 1, 2})
	spec.Prefix = true
	for _, e := range collect(mustStart(t, spec)) {
		if !e.OK() || !strings.HasPrefix(e.LastStderr, "partial ") {
			t.Errorf("%v: %q", e, e.LastStderr)
		}
	}
	if out.split {
		t.Error("a Write was not one line")
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 102 {
		t.Errorf("%d lines", len(lines))
	}
	for _, want := range []string{
		"[rank 3] line 49 of 3", "[ranks 0-2] line 0 of 0", "[rank 3] partial 3", "[ranks 0-2] partial 0",
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("no line %q", want)
		}
	}
	expectNoChildren(t)
}

func TestLongLineIsBroken(t *testing.T) {
	var out safeBuffer
	collect(mustStart(t, helperSpec("long", &out, []int{0})))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || len(lines[0]) != maxLineBytes || len(lines[1]) != maxLineBytes/2 {
		t.Errorf("%d lines", len(lines))
	}
}

func TestStreamBrokenWriterKeepsReading(t *testing.T) {
	s := stream{lock: &lineWriter{}, out: failingWriter{}, tail: &tail{}}
	s.copyFrom(strings.NewReader("a\n\nb"))
	if got := s.tail.String(); got != "a\n\nb" {
		t.Errorf("%q", got)
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestStdinEnvironmentGroup(t *testing.T) {
	var out safeBuffer
	spec := helperSpec("stdin", &out, []int{0})
	spec.Env = append(spec.Env, "BASE=base", "OVER=base")
	spec.Workers[0].Env = []string{"OVER=worker"}
	collect(mustStart(t, spec))
	if got := out.String(); got != "0 <nil> base worker true\n" {
		t.Errorf("%q", got)
	}
}

func TestExitCodesAndSignals(t *testing.T) {
	exits := collect(mustStart(t, helperSpec("exit", nil, []int{2}, []int{0})))
	if e := exits[0]; e.OK() || e.Code != 2 || e.String() != fmt.Sprintf("rank 2 (pid %d) exited with status 2", e.PID) {
		t.Error(e)
	}
	if e := exits[0]; strings.Count(e.LastStderr, "\n") != tailLines-1 || !strings.HasSuffix(e.LastStderr, "complaint 29") {
		t.Errorf("%q", e.LastStderr)
	}
	if !exits[1].OK() {
		t.Error(exits[1])
	}
	e := collect(mustStart(t, helperSpec("die", nil, []int{3})))[0]
	if e.OK() || e.Signal != syscall.SIGKILL || e.Code != -1 ||
		e.String() != fmt.Sprintf("rank 3 (pid %d) was killed by signal 9 (SIGKILL)", e.PID) {
		t.Error(e)
	}
	if got := (Exit{Ranks: []int{0, 1}, PID: 5, Signal: syscall.SIGSEGV, CoreDump: true}).String(); got !=
		"ranks 0-1 (pid 5) was killed by signal 11 (SIGSEGV, core dumped)" {
		t.Error(got)
	}
	expectNoChildren(t)
}

func TestStartFailure(t *testing.T) {
	before := runtime.NumGoroutine()
	spec := helperSpec("sleep", nil, []int{0}, []int{1})
	spec.Path = filepath.Join(t.TempDir(), "absent")
	if _, err := Start(context.Background(), spec); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "rank 0: start ") {
		t.Error(err)
	}
	// The second worker cannot start: its environment is not acceptable.
	spec = helperSpec("stubborn", nil, []int{0}, []int{1, 2}, []int{3})
	spec.Workers[1].Env = []string{"BAD=a\x00b"}
	_, err := Start(context.Background(), spec)
	if err == nil || !strings.Contains(err.Error(), "ranks 1-2: start ") {
		t.Error(err)
	}
	expectNoChildren(t)
	if _, err := Start(context.Background(), Spec{Path: "/bin/true"}); err == nil {
		t.Error("no workers accepted")
	}
	eventually(t, "goroutines gone", func() bool { return runtime.NumGoroutine() <= before })
}

// A worker that ends takes along what it has started.
func TestGrandchildrenAreKilled(t *testing.T) {
	var out safeBuffer
	start := time.Now()
	g := mustStart(t, helperSpec("offspring", &out, []int{0}))
	if e := collect(g)[0]; !e.OK() {
		t.Error(e)
	}
	expectGone(t, readyPIDs(t, out.String, 1))
	if time.Since(start) > fuse/2 {
		t.Error("waited for the grandchild instead")
	}
	if err := g.SignalWorker(0, syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal after the end: %v", err)
	}
}

func TestShutdown(t *testing.T) {
	var out safeBuffer
	g := mustStart(t, helperSpec("sleep", &out, []int{0}, []int{1}))
	pids := readyPIDs(t, out.String, 2)
	// A stopped worker still gets its chance to end by SIGTERM.
	if err := g.SignalWorker(0, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "stopped", func() bool { return procState(g.PID(0)) == 'T' })
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := g.Shutdown(10 * time.Second); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, e := range collect(g) {
		if e.Signal != syscall.SIGTERM {
			t.Error(e)
		}
	}
	expectGone(t, pids)
	expectNoChildren(t)
	if err := g.Shutdown(time.Second); err != nil {
		t.Error(err)
	}
}

func TestShutdownOfStubbornWorker(t *testing.T) {
	var out safeBuffer
	g := mustStart(t, helperSpec("stubborn", &out, []int{0}))
	readyPIDs(t, out.String, 1)
	if err := g.Shutdown(100 * time.Millisecond); err != nil {
		t.Error(err)
	}
	if e := collect(g)[0]; e.Signal != syscall.SIGKILL {
		t.Error(e)
	}
	expectNoChildren(t)
}

func TestContextEndsGroup(t *testing.T) {
	var out safeBuffer
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	spec := helperSpec("stubborn", &out, []int{0})
	spec.Grace = 50 * time.Millisecond
	g, err := Start(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	readyPIDs(t, out.String, 1)
	cancel()
	if e := collect(g)[0]; e.Signal != syscall.SIGKILL {
		t.Error(e)
	}
	if _, err := Start(ctx, spec); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestParentKilled(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), envMode+"=parent")
	parent.Stdout = w
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	var out safeBuffer
	go func() {
		s := stream{lock: &lineWriter{}, out: &out}
		s.copyFrom(r)
	}()
	pids := readyPIDs(t, out.String, 4) // two workers, each with a child
	stopped := 0
	for _, pid := range pids {
		if pgid, err := syscall.Getpgid(pid); err == nil && pgid == pid && stopped == 0 {
			stopped = pid // one of the workers cannot even notice by itself
			_ = syscall.Kill(pid, syscall.SIGSTOP)
			eventually(t, "stopped", func() bool { return procState(pid) == 'T' })
		}
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	expectGone(t, pids)
}

func TestWatchParentErrors(t *testing.T) {
	env := func(v string) func(string) string { return func(string) string { return v } }
	if gone, err := WatchParent(env("")); gone != nil || err != nil {
		t.Error(gone, err)
	}
	file, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, bad := range []string{"x", "-1", "1", "1000000", strconv.Itoa(int(file.Fd()))} {
		if _, err := WatchParent(env(bad)); err == nil || !strings.Contains(err.Error(), EnvParentFD) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	gone, err := WatchParent(env(strconv.Itoa(fds[0])))
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-gone:
		t.Error("gone too early")
	case <-time.After(30 * time.Millisecond):
	}
	_ = syscall.Close(fds[1])
	<-gone
}
