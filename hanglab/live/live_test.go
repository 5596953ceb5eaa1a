package live

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/commprobe/commprobe/hanglab/evidence"
	"github.com/commprobe/commprobe/hanglab/flight"
)

// TestMain is also the rank processes of the tests: they wait to be ended.
func TestMain(m *testing.M) {
	if os.Getenv("LIVE_TEST_RANK") != "" {
		fmt.Println("ready")
		_, _ = os.Stdin.Read(make([]byte, 1))
		return
	}
	os.Exit(m.Run())
}

// rankProcess starts a process that looks like a rank, until the test ends.
func rankProcess(t *testing.T, env ...string) int {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), "LIVE_TEST_RANK=1"), env...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGCONT)
		_ = in.Close()
		_ = cmd.Wait()
	})
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

// standStill stops a process and waits until it is: the signal takes its threads one after another.
func standStill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	inState(t, pid, 'T')
}

// sleeping waits until a process has nothing to do.
func sleeping(t *testing.T, pid int) {
	t.Helper()
	inState(t, pid, 'S')
}

func inState(t *testing.T, pid int, state byte) {
	t.Helper()
	var stat []byte
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		stat, _ = os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if i := strings.LastIndexByte(string(stat), ')'); i >= 0 && i+2 < len(stat) && stat[i+2] == state {
			return
		}
	}
	t.Fatalf("process %d does not come to state %c: %s", pid, state, stat)
}

// noTools is a host without any program.
func noTools(string) (string, error) { return "", errors.New("none") }

func TestCollectRealProcesses(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("/proc is Linux's")
	}
	job := "MASTER_PORT=" + strconv.Itoa(40000+os.Getpid()%10000)
	one := rankProcess(t, "RANK=0", "MASTER_ADDR=here", job)
	two := rankProcess(t, "RANK=1", "MASTER_ADDR=here", job)
	rankProcess(t, "RANK=1", "MASTER_ADDR=elsewhere", job)
	standStill(t, two)
	sleeping(t, one)
	dir := filepath.Join(t.TempDir(), "kept")
	e, err := Collect(t.Context(), Targets{PIDs: []int{one}, Job: true}, Options{Dir: dir, RASAddr: "-", tools: noTools})
	if err != nil {
		t.Fatal(err)
	}
	states := make(map[int]string)
	for _, s := range e.Stacks {
		if s.Tool != "proc" || len(s.Threads) == 0 {
			t.Errorf("stack %+v", s)
		}
		states[s.Rank] = fmt.Sprintf("%d %s", s.PID, s.State)
	}
	if want := map[int]string{0: fmt.Sprintf("%d S", one), 1: fmt.Sprintf("%d T", two)}; !cmp.Equal(want, states) {
		t.Errorf("states %v, want %v", states, want)
	}
	if !slices.ContainsFunc(e.Facts, func(f evidence.Fact) bool { return f.Kind == evidence.Stopped && f.Rank == 1 && f.PID == two }) {
		t.Errorf("no fact about the stopped process in %v", e.Facts)
	}
	var said []string
	for _, in := range e.Inputs {
		if in.Kind == NotCollected {
			said = append(said, in.Name+": "+in.Err)
		}
	}
	if want := []string{"GPU state: nvidia-smi is not installed", "kernel log: dmesg is not installed"}; !cmp.Equal(want, said) {
		t.Errorf("not collected: %q", said)
	}
	if again, err := evidence.Read([]string{dir}, evidence.Options{}); err != nil || len(again.Stacks) != 2 {
		t.Errorf("reading what was kept: %v", err)
	}
	if state := processState(t, one); state != "S" {
		t.Errorf("process %d is in state %s after the collection", one, state)
	}
	if _, err := Collect(t.Context(), Targets{PIDs: []int{one}}, Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("a folder with files in it: %v", err)
	}
}

func processState(t *testing.T, pid int) string {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	return firstWord(statusField(raw, "State"))
}

// fakeProc is a recorded /proc.
type fakeProc struct {
	t    *testing.T
	root string
}

func (f fakeProc) write(name, text string) {
	f.t.Helper()
	path := filepath.Join(f.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

func (f fakeProc) process(pid, parent int, name, command string, env ...string) {
	dir := fmt.Sprintf("proc/%d/", pid)
	f.write(dir+"status", fmt.Sprintf("Name:\t%s\nState:\tS (sleeping)\nPPid:\t%d\nNSpid:\t%d\t%d\n", name, parent, pid, pid+10000))
	f.write(dir+"cmdline", strings.ReplaceAll(command, " ", "\x00"))
	if env != nil {
		f.write(dir+"environ", strings.Join(env, "\x00")+"\x00")
	}
	task := fmt.Sprintf("%stask/%d/", dir, pid)
	f.write(task+"comm", name+"\n")
	f.write(task+"stat", fmt.Sprintf("%d (a) b) S 1 1 1 0 -1 0 0 0 0 0 55 44 0 0\n", pid))
	f.write(task+"wchan", "futex_wait_queue")
}

func TestFindJob(t *testing.T) {
	rank := func(n int, port string) []string {
		return []string{"RANK=" + strconv.Itoa(n), "MASTER_ADDR=a", "MASTER_PORT=" + port, "HOME=/root"}
	}
	build := func(t *testing.T) fakeProc {
		f := fakeProc{t, t.TempDir()}
		f.process(10, 1, "torchrun", "torchrun train.py", "HOME=/root")
		f.process(20, 10, "sh", "sh -c python train.py", rank(0, "1")...)
		f.process(21, 20, "python", "python train.py", rank(0, "1")...)
		f.process(22, 21, "python", "python train.py", rank(0, "1")...) // a data loader
		f.process(30, 10, "python", "python train.py", rank(1, "1")...)
		f.process(99, 1, "other", "other")
		return f
	}
	for _, tt := range []struct {
		name   string
		more   func(f fakeProc)
		target Targets
		want   string
		err    string
	}{
		{"the only job", nil, Targets{Job: true}, "[21 rank 0] [30 rank 1]", ""},
		{"by a data loader", nil, Targets{Job: true, PIDs: []int{22}}, "[21 rank 0] [30 rank 1]", ""},
		{"by the launcher", nil, Targets{Job: true, PIDs: []int{10}}, "[21 rank 0] [30 rank 1]", ""},
		{"processes as named", nil, Targets{PIDs: []int{30, 22, 30}}, "[22 rank 0] [30 rank 1]", ""},
		{"two jobs", func(f fakeProc) { f.process(50, 1, "python", "python", rank(0, "2")...) }, Targets{Job: true}, "", "2 jobs on this host: name a process of one: process 20"},
		{"the second job", func(f fakeProc) { f.process(50, 1, "python", "python", rank(0, "2")...) }, Targets{Job: true, PIDs: []int{50}}, "[50 rank 0]", ""},
		{"Open MPI", func(f fakeProc) { f.process(60, 1, "app", "app", "OMPI_COMM_WORLD_RANK=5", "PMIX_NAMESPACE=n") }, Targets{Job: true, PIDs: []int{60}}, "[60 rank 5]", ""},
		{"Slurm", func(f fakeProc) { f.process(61, 1, "app", "app", "SLURM_PROCID=7", "SLURM_JOB_ID=4") }, Targets{Job: true, PIDs: []int{61}}, "[61 rank 7]", ""},
		{"several ranks in a process", func(f fakeProc) {
			f.process(62, 1, "commprobe", "commprobe", "COMMPROBE_RANKS=2,3", "COMMPROBE_STORE=s")
		}, Targets{Job: true, PIDs: []int{62}}, "[62 rank 2]", ""},
		{"no rank", nil, Targets{Job: true, PIDs: []int{99}}, "", "environment cannot be read"},
		{"no process", nil, Targets{PIDs: []int{77}}, "", "process 77: there is none"},
		{"nothing", nil, Targets{}, "", "no process named"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := build(t)
			if tt.more != nil {
				tt.more(f)
			}
			opt := Options{Root: f.root}
			opt.fill()
			procs, err := find(t.Context(), tt.target, opt)
			var got []string
			for _, p := range procs {
				got = append(got, fmt.Sprintf("[%d rank %d]", p.pid, p.rank))
			}
			if text := strings.Join(got, " "); text != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%s, %v; want %s, %s", text, err, tt.want, tt.err)
			}
		})
	}
}

// script makes a program that prints text and ends with a status.
func script(t *testing.T, dir, name, body string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+body), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestCollectTools(t *testing.T) {
	f := fakeProc{t, t.TempDir()}
	f.process(30, 1, "python", "python train.py", "RANK=1", "MASTER_PORT=1")
	f.process(31, 1, "python", "python train.py", "RANK=2", "MASTER_PORT=1", "NCCL_RAS_ENABLE=0")
	bin := t.TempDir()
	script(t, bin, "py-spy", `[ "$4" = 31 ] && { echo "Error: Permission Denied: Try running again with elevated permissions" >&2; exit 1; }
printf 'Process %s: python train.py\nPython v3.11.2 (python)\n\nThread 1 (idle): "MainThread"\n    get (queue.py:170)\n' "$4"`)
	script(t, bin, "nvidia-smi", `case "$1" in
*gpu_bus_id*) echo '00000000:01:00.0, 10030';;
*) echo '00000000:01:00.0, 100 %, 70000 MiB, 80000 MiB, 300.5 W, 60, 0'; echo '00000000:02:00.0, 0 %, 1 MiB, 80000 MiB, 60.5 W, 30, [N/A]';; esac`)
	script(t, bin, "dmesg", `echo '2026-01-02T03:04:05,000000+00:00 NVRM: Xid (PCI:0000:01:00): 79, pid=30, name=python, GPU has fallen off the bus.'`)
	e, err := Collect(t.Context(), Targets{Job: true}, Options{Root: f.root, RASAddr: "-", tools: func(name string) (string, error) { return filepath.Join(bin, name), nil }})
	if err != nil {
		t.Fatal(err)
	}
	var stacks []string
	for _, s := range e.Stacks {
		stacks = append(stacks, fmt.Sprintf("%s rank %d pid %d: %s", s.Tool, s.Rank, s.PID, s.Threads[0].Frames[0].Name))
	}
	slices.Sort(stacks)
	if want := []string{"proc rank 1 pid 30: futex_wait_queue", "proc rank 2 pid 31: futex_wait_queue", "py-spy rank 1 pid 30: get"}; !cmp.Equal(want, stacks) {
		t.Errorf("stacks %q", stacks)
	}
	var facts []string
	for _, x := range e.Facts {
		facts = append(facts, fmt.Sprintf("%s %d rank %d", x.Kind, x.Code, x.Rank))
	}
	if want := []string{"xid 79 rank -1", "gpu_state 100 rank 1", "gpu_state 0 rank -1"}; !cmp.Equal(want, facts) {
		t.Errorf("facts %q", facts)
	}
	var said strings.Builder
	for _, in := range e.Inputs {
		if in.Kind == NotCollected {
			fmt.Fprintln(&said, in.Name, in.Err)
		}
		if strings.HasPrefix(in.Name, os.TempDir()) {
			t.Errorf("%s names a folder that is gone", in.Name)
		}
	}
	for _, want := range []string{"Python stacks of rank 2, process 31", "run as root", "flight recorder of rank 1, process 30 no pipe to ask"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("no %q in what could not be had:\n%s", want, said.String())
		}
	}
}

// TestFlightPipe plays PyTorch's monitor thread: a byte in the pipe makes it write its dump.
func TestFlightPipe(t *testing.T) {
	f := fakeProc{t, t.TempDir()}
	f.process(30, 1, "python", "python train.py", "RANK=1", "MASTER_PORT=1", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/p_", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/tmp/dump_")
	f.write("tmp/dump_1", "of an earlier time")
	pipe := filepath.Join(f.root, "tmp/p_1.pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	var dump bytes.Buffer
	d := flight.Dump{Groups: []flight.Group{{Name: "0", Desc: "default_pg", Ranks: []int{0, 1}}}, Status: []flight.GroupStatus{{PGID: 0, LastEnqueued: 4, LastStarted: 4, LastCompleted: 3}}}
	if err := d.WritePickle(&dump); err != nil {
		t.Fatal(err)
	}
	asked := make(chan int, 1)
	go func() {
		in, err := os.Open(pipe)
		if err != nil {
			return
		}
		defer in.Close()
		b := make([]byte, 128)
		n, _ := in.Read(b)
		asked <- n
		_ = os.WriteFile(filepath.Join(f.root, "tmp/dump_1"), dump.Bytes(), 0o600)
	}()
	opt := Options{Root: f.root, RASAddr: "-", tools: noTools, Step: 10 * time.Second}
	e, err := Collect(t.Context(), Targets{PIDs: []int{30}}, opt)
	if err != nil {
		t.Fatal(err)
	}
	if n := <-asked; n != 1 {
		t.Errorf("%d bytes came through the pipe", n)
	}
	if len(e.Dumps) != 1 || e.Dumps[0].Rank != 1 || e.Dumps[0].Data == nil || e.Dumps[0].Data.Status[0].LastEnqueued != 4 {
		t.Fatalf("dumps %+v, inputs %+v", e.Dumps, e.Inputs)
	}
}

func TestKnockRefuses(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(plain, link); err != nil {
		t.Fatal(err)
	}
	deaf := filepath.Join(dir, "deaf")
	if err := syscall.Mkfifo(deaf, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{plain: "is no pipe", link: "is no pipe", deaf: "nobody reads it", filepath.Join(dir, "none"): "no such file"} {
		if err := knock(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if raw, err := os.ReadFile(plain); err != nil || string(raw) != "x" {
		t.Errorf("a file that is no pipe was changed to %q", raw)
	}
}

func TestWithin(t *testing.T) {
	never := make(chan bool)
	if _, err := within(t.Context(), time.Millisecond, func() (bool, error) { return <-never, nil }); !errors.Is(err, errSlow) {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := within(ctx, time.Minute, func() (bool, error) { return <-never, nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	close(never)
}

// TestKeepDumps: the dumps of a job that works are no evidence against the rank that was behind.
func TestKeepDumps(t *testing.T) {
	for _, tt := range []struct {
		name   string
		moving map[int]string
		looked []int
		saved  int
	}{
		{"nothing moved", nil, []int{0, 1}, 2},
		{"all went on", map[int]string{0: "a", 1: "b"}, []int{0, 1}, 0},
		{"one goes on, the other hangs", map[int]string{0: "a"}, []int{0, 1}, 2},
		{"RAS says that it moves", map[int]string{-1: "r"}, nil, 0},
		{"nobody could look twice", nil, nil, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &collector{dir: t.TempDir(), dumps: map[int][]byte{0: {1}, 1: {2}}, moving: tt.moving, looked: map[int]bool{}}
			for _, r := range tt.looked {
				c.looked[r] = true
			}
			c.keepDumps()
			if c.saved != tt.saved || len(c.failed) != 2-tt.saved || len(c.facts) != len(tt.moving) {
				t.Errorf("%d saved, %d left out, %d facts", c.saved, len(c.failed), len(c.facts))
			}
		})
	}
}

// rasJob answers as NCCL's RAS does, with the count of the one rank that rises by step from question to question.
func rasJob(t *testing.T, pid, step int) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for count := 1; ; {
			c, err := l.Accept()
			if err != nil {
				return
			}
			in := bufio.NewScanner(c)
			for in.Scan() {
				switch command := in.Text(); {
				case strings.HasPrefix(command, "CLIENT"):
					fmt.Fprintln(c, "SERVER PROTOCOL 2")
				case command == "VERBOSE STATUS":
					fmt.Fprintf(c, `{"nccl_version":"2.29.1","communicators":[{"hash":"0xab","size":1,"ranks":[{"rank":0,"pid":%d,"host":"h","collective_counts":{"AllReduce":%d}}],"missing_ranks":[]}]}`, pid, count)
					count += step
					_ = c.Close()
				default:
					fmt.Fprintln(c, "OK")
				}
			}
			_ = c.Close()
		}
	}()
	return l.Addr().String()
}

func TestCollectRAS(t *testing.T) {
	for _, tt := range []struct {
		name      string
		pid, step int
		off       bool
		reports   int
		moving    bool
		said      string
	}{
		{"hangs", 10030, 0, false, 2, false, ""},
		{"works", 10030, 3, false, 2, true, ""},
		{"another job's", 4, 0, false, 0, false, "of another job"},
		{"off", 10030, 0, true, 0, false, "NCCL_RAS_ENABLE=0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := fakeProc{t, t.TempDir()}
			env := []string{"RANK=0", "NCCL_RAS_ADDR=" + rasJob(t, tt.pid, tt.step)}
			if tt.off {
				env = append(env, "NCCL_RAS_ENABLE=0")
			}
			f.process(30, 1, "app", "app", env...)
			e, err := Collect(t.Context(), Targets{PIDs: []int{30}}, Options{Root: f.root, tools: noTools, Interval: 10 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			moving := slices.ContainsFunc(e.Facts, func(f evidence.Fact) bool { return f.Kind == evidence.Moving && f.Rank == -1 })
			said := slices.ContainsFunc(e.Inputs, func(in evidence.Input) bool { return in.Kind == NotCollected && strings.Contains(in.Err, tt.said) })
			if len(e.RAS) != tt.reports || moving != tt.moving || !said {
				t.Errorf("%d reports, moving %v; inputs %+v", len(e.RAS), moving, e.Inputs)
			}
		})
	}
}
