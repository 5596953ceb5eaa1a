package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/bench/report"
	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/cuda"
)

// These tests run the program itself: the test binary is commprobe when actAs is in its environment. So it needs no Go tool where it runs, and
// since the launcher starts os.Executable() again, the workers are the same binary, race detector included.
const (
	actAs  = "COMMPROBE_TEST_ACT_AS"
	marker = "COMMPROBE_TEST_JOB" // a random name, inherited by every process of a job, so that none can hide
)

func TestMain(m *testing.M) {
	if os.Getenv(actAs) == "commprobe" {
		os.Exit(run(os.Args, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// seats bounds how many jobs run at once. On GPUs it is one: kernels of two jobs that wait for their peers would take turns.
var seats = sync.OnceValue(func() chan struct{} {
	if onGPU() {
		return make(chan struct{}, 1)
	}
	return make(chan struct{}, max(2, runtime.NumCPU()/2))
})

func onGPU() bool { return os.Getenv("COMMPROBE_TEST_ENGINE") == "native" }

// gpus is how many GPUs the native engine sees in this process.
var gpus = sync.OnceValues(func() (int, error) {
	if err := bench.UseEngine("native", "", "", 0); err != nil {
		return 0, err
	}
	return cuda.DeviceCount()
})

// engine is what a test sweeps with: the engine, and how many ranks of those wanted. A test that makes no sense below a number of ranks gets
// the host engine where there are fewer GPUs, rather than being left out.
func engine(t *testing.T, want, atLeast int) (name string, ranks int) {
	t.Helper()
	if !onGPU() {
		return "host", want
	}
	n, err := gpus()
	if err != nil {
		if os.Getenv("REQUIRE_GPU") == "1" {
			t.Fatalf("REQUIRE_GPU=1: %v", err)
		}
		t.Skipf("no GPU: %v", err)
	}
	if n = min(n, want, 2); n < atLeast {
		t.Logf("%d GPU, %d needed: with the host engine", n, atLeast)
		return "host", want
	}
	return "native", n
}

// sweepArgs is "sweep --engine E -g N" and args.
func sweepArgs(engine string, ranks int, args ...string) []string {
	return append([]string{"sweep", "--engine", engine, "-g", strconv.Itoa(ranks)}, args...)
}

// longSweep lasts for minutes with rows of some milliseconds to some hundred, so that it is always in the middle of something.
func longSweep(engine string, ranks int, args ...string) []string {
	sizes := []string{"-b", "64K", "-e", "4M", "-i", "1K", "-n", "40", "-w", "1", "--iters-exact"}
	if engine == "native" {
		sizes = []string{"-b", "1M", "-e", "256M", "-i", "64K", "-n", "200", "-w", "1", "--iters-exact"}
	}
	return sweepArgs(engine, ranks, append(sizes, args...)...)
}

// screen collects what a process prints and lets a test wait for something in it.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{} // closed and replaced by each Write
}

func newScreen() *screen { return &screen{more: make(chan struct{})} }

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.Write(p)
	close(s.more)
	s.more = make(chan struct{})
	return len(p), nil
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// job is one started commprobe and all processes below it.
type job struct {
	name           string
	cmd            *exec.Cmd
	stdout, stderr *screen
	done           chan struct{}
	err            error // of Wait, after done
}

// foreign are the variables that would change what a job does.
var foreign = regexp.MustCompile(`^(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|TORCHELASTIC_.*|OMPI_.*|PMI.*|SLURM_.*|COMMPROBE_.*)=`)

func jobEnv(name string, env []string) []string {
	out := slices.DeleteFunc(os.Environ(), foreign.MatchString)
	// The race detector would sleep a second at every process's end.
	return append(append(out, actAs+"=commprobe", marker+"="+name, "GORACE=atexit_sleep_ms=20"), env...)
}

// start starts commprobe. Whatever of it is left at the end of the test is killed.
func start(t *testing.T, env []string, args ...string) *job {
	t.Helper()
	return startTo(t, nil, env, args...)
}

// startTo is start with a stdout of the test's own, if it is not nil.
func startTo(t *testing.T, stdout *os.File, env []string, args ...string) *job {
	t.Helper()
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	j := &job{name: hex.EncodeToString(b[:]), stdout: newScreen(), stderr: newScreen(), done: make(chan struct{})}
	if len(args) > 0 && args[0] == "sweep" && !strings.Contains(strings.Join(args, " "), "--dump") {
		args = append(slices.Clip(args), "--dump", filepath.Join(t.TempDir(), "dump")) // not into this folder
	}
	j.cmd = exec.Command(self, args...)
	j.cmd.Env = jobEnv(j.name, env)
	j.cmd.Stdout, j.cmd.Stderr = j.stdout, j.stderr
	if stdout != nil {
		j.cmd.Stdout = stdout
	}
	j.cmd.WaitDelay = 5 * time.Second // for a process left behind that holds the pipes
	if err := j.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		j.err = j.cmd.Wait()
		close(j.done)
	}()
	t.Cleanup(func() {
		for _, p := range j.processes() {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
		<-j.done
		if strings.Contains(j.stderr.String(), "WARNING: DATA RACE") { // an exit status other than 0 hides it
			t.Error("the race detector has found something")
		}
		if t.Failed() {
			t.Logf("commprobe %s\nstdout:\n%s\nstderr:\n%s", strings.Join(args, " "), j.stdout, j.stderr)
		}
	})
	return j
}

// process is one living process of a job.
type process struct {
	pid  int
	env  map[string]string
	rank int // -1: the parent
}

// processes finds the living processes of the job, wherever they hang in the tree: they have the marker in the environment they started with.
func (j *job) processes() []process {
	files, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is well-formed
	var out []process
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil || !bytes.Contains(raw, []byte(marker+"="+j.name)) {
			continue // another user's, or ended
		}
		p := process{env: map[string]string{}, rank: -1}
		p.pid, _ = strconv.Atoi(filepath.Base(filepath.Dir(f)))
		for _, kv := range strings.Split(string(raw), "\x00") {
			k, v, _ := strings.Cut(kv, "=")
			p.env[k] = v
		}
		if first, _, _ := strings.Cut(p.env[envRanks], ","); first != "" {
			p.rank, _ = strconv.Atoi(first)
		}
		out = append(out, p)
	}
	return out
}

// worker is the process that is the given rank (the first of its ranks).
func (j *job) worker(t *testing.T, rank int) process {
	t.Helper()
	for _, p := range j.processes() {
		if p.rank == rank {
			return p
		}
	}
	t.Fatalf("no process is rank %d; there are %v", rank, j.processes())
	return process{}
}

// exit waits for the job's end and returns its status: 128 + the signal that killed it, as a shell says it.
func (j *job) exit(t *testing.T, within time.Duration) int {
	t.Helper()
	select {
	case <-j.done:
	case <-time.After(within):
		t.Fatalf("still running after %v", within)
	}
	var e *exec.ExitError
	if j.err != nil && !errors.As(j.err, &e) {
		t.Fatalf("wait: %v", j.err)
	}
	state := j.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if state.Signaled() {
		return 128 + int(state.Signal())
	}
	return state.ExitStatus()
}

// nothingLeft fails if a process of the job lives on.
func (j *job) nothingLeft(t *testing.T, within time.Duration) {
	t.Helper()
	var left []process
	if !eventually(within, func() bool { left = j.processes(); return len(left) == 0 }) {
		for _, p := range left {
			t.Errorf("process %d (rank %d) is left after %v", p.pid, p.rank, within)
		}
	}
}

func eventually(within time.Duration, is func() bool) bool {
	for end := time.Now().Add(within); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// sees waits for a pattern on a screen.
func (j *job) sees(t *testing.T, s *screen, pattern string, within time.Duration) {
	t.Helper()
	re := regexp.MustCompile(pattern)
	timeout := time.After(within)
	for ended := false; ; {
		s.mu.Lock()
		found, more := re.Match(s.text.Bytes()), s.more
		s.mu.Unlock()
		if found {
			return
		}
		if ended {
			t.Fatalf("ended without %q", pattern)
		}
		select {
		case <-more:
		case <-j.done:
			ended = true // look once more: all has been copied now
		case <-timeout:
			t.Fatalf("no %q within %v", pattern, within)
		}
	}
}

// rowPattern is a line of the table with figures.
const rowPattern = `(?m)^ +\d+ +\d+ +\w+ +\w+ +-?\d+ .*\n`

// patience is how long a test waits for what is a matter of a second on an idle machine.
const patience = time.Minute

// running starts a job and returns when its first row is printed.
func running(t *testing.T, env []string, args ...string) *job {
	t.Helper()
	j := start(t, env, args...)
	j.sees(t, j.stdout, rowPattern, patience)
	return j
}

// sit takes a seat for the rest of the test.
func sit(t *testing.T) {
	t.Helper()
	seats() <- struct{}{}
	t.Cleanup(func() { <-seats() })
}

// finished is a job that came to its end.
type finished struct {
	code           int
	stdout, stderr string
}

// oneRun is held while the program runs within the test: cli keeps its help flag and help command in package variables and writes to them.
var oneRun sync.Mutex

// inProcess runs the program within the test: for what needs no processes of its own.
func inProcess(args ...string) finished {
	return inProcessWith(strings.NewReader(""), args...)
}

// inProcessWith runs it with something on stdin.
func inProcessWith(stdin io.Reader, args ...string) finished {
	oneRun.Lock()
	defer oneRun.Unlock()
	var stdout, stderr strings.Builder
	app := newApp(&stdout, &stderr)
	app.Reader = stdin
	code := runApp(app, append([]string{"commprobe"}, args...), &stderr)
	return finished{code, stdout.String(), stderr.String()}
}

// commprobe runs the program to its end and sees that nothing of it is left.
func commprobe(t *testing.T, env []string, args ...string) finished {
	t.Helper()
	j := start(t, env, args...)
	code := j.exit(t, 2*patience)
	j.nothingLeft(t, time.Second)
	return finished{code, j.stdout.String(), j.stderr.String()}
}

// ok is commprobe that must succeed.
func ok(t *testing.T, env []string, args ...string) finished {
	t.Helper()
	f := commprobe(t, env, args...)
	if f.code != 0 {
		t.Fatalf("exit status %d\n%s", f.code, f.stderr)
	}
	return f
}

// tableRow is a row of nccl-tests' table, taken apart at nccl-tests' columns.
type tableRow struct {
	bytes, count int64
	dtype, op    string
	root         int
	time         [2]float64 // out-of-place, in-place
	algbw, busbw [2]float64
	wrong        [2]string
}

// columns are where nccl-tests 2.17 and later prints what: first and last+1.
var columns = [][2]int{{0, 12}, {14, 26}, {28, 36}, {38, 44}, {46, 52}, {54, 61}, {63, 69}, {71, 77}, {79, 85}, {87, 94}, {96, 102}, {104, 110}, {112, 118}}

func parseTable(t *testing.T, text string) []tableRow {
	t.Helper()
	var out []tableRow
	for _, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		cells := cut(line)
		if !slices.Equal(cells, strings.Fields(line)) {
			t.Fatalf("a line of stdout is no comment and not in the columns: %q", line)
		}
		r := tableRow{dtype: cells[2], op: cells[3], wrong: [2]string{cells[8], cells[12]}}
		r.bytes, r.count, r.root = int64(number(t, cells[0])), int64(number(t, cells[1])), int(number(t, cells[4]))
		for h, at := range []int{5, 9} {
			r.time[h], r.algbw[h], r.busbw[h] = number(t, cells[at]), number(t, cells[at+1]), number(t, cells[at+2])
		}
		out = append(out, r)
	}
	return out
}

// cut takes a row apart at the columns; nccl-tests' N/A in place of #wrong is one narrower than its column.
func cut(line string) []string {
	line = strings.ReplaceAll(line, "    N/A", "     N/A")
	var cells []string
	for _, c := range columns {
		if c[1] <= len(line) {
			cells = append(cells, strings.TrimSpace(line[c[0]:c[1]]))
		}
	}
	return cells
}

func number(t *testing.T, s string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || v != v {
		t.Fatalf("%q is not a number", s)
	}
	return v
}

// goodTable fails unless the table has the sizes and nothing wrong in it.
func goodTable(t *testing.T, text string, sizes ...int64) []tableRow {
	t.Helper()
	rows := parseTable(t, text)
	var have []int64
	for _, r := range rows {
		have = append(have, r.bytes)
		if r.wrong != [2]string{"0", "0"} {
			t.Errorf("%d bytes %s %s: #wrong %v", r.bytes, r.dtype, r.op, r.wrong)
		}
		if r.time[0] <= 0 || r.time[1] <= 0 {
			t.Errorf("%d bytes: time %v", r.bytes, r.time)
		}
	}
	if len(sizes) > 0 && !slices.Equal(have, sizes) {
		t.Errorf("sizes %v, want %v", have, sizes)
	}
	if !strings.Contains(text, "# Out of bounds values : 0 OK\n") || !strings.Contains(text, "\n# Avg bus bandwidth    : ") {
		t.Errorf("the footer is not nccl-tests':\n%s", text)
	}
	return rows
}

// readRun reads a JSON result.
func readRun(t *testing.T, doc string) *result.Run {
	t.Helper()
	run, err := report.ReadJSON(strings.NewReader(doc))
	if err != nil {
		t.Fatal(err)
	}
	return run
}

func readRunFile(t *testing.T, path string) *result.Run {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return readRun(t, string(raw))
}

// outcomeIs compares how a run ended; rank -1 is no rank.
func outcomeIs(t *testing.T, run *result.Run, status string, exit, rank int) {
	t.Helper()
	have := -1
	if run.Outcome.Rank != nil {
		have = *run.Outcome.Rank
	}
	if run.Outcome.Status != status || run.Outcome.Exit != exit || have != rank {
		t.Errorf("outcome %q exit %d rank %d, want %q exit %d rank %d (%s)", run.Outcome.Status, run.Outcome.Exit, have, status, exit, rank, run.Outcome.Message)
	}
}

// oneLine fails unless text is one line.
func oneLine(t *testing.T, text string) {
	t.Helper()
	if strings.Count(text, "\n") != 1 || !strings.HasSuffix(text, "\n") {
		t.Errorf("not one line: %q", text)
	}
}

// has fails unless text contains all parts.
func has(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("no %q in %q", p, text)
		}
	}
}

// within is a context of a test that also ends by itself.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func (p process) String() string { return fmt.Sprintf("pid %d rank %d", p.pid, p.rank) }
