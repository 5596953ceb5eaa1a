package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/internal/bootstrap"
)

// kill sends a signal to one process of a job.
func kill(t *testing.T, p process, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(p.pid, sig); err != nil {
		t.Fatalf("signal %v to %v: %v", sig, p, err)
	}
}

func TestKilledRank(t *testing.T) {
	t.Parallel()
	_, g := engine(t, 4, 1)
	for victim := range g {
		t.Run(fmt.Sprintf("rank %d", victim), func(t *testing.T) {
			sit(t)
			e, g := engine(t, 4, 1)
			js := filepath.Join(t.TempDir(), "r.json")
			j := running(t, nil, longSweep(e, g, "--json", js)...)
			killed := j.worker(t, victim)
			at := time.Now()
			kill(t, killed, syscall.SIGKILL)
			code := j.exit(t, 30*time.Second)
			took := time.Since(at)
			j.nothingLeft(t, 0)
			if code != 5 {
				t.Errorf("exit status %d, want 5", code)
			}
			if took > 5*time.Second {
				t.Errorf("the others were gone after %v only", took)
			}
			has(t, j.stderr.String(), fmt.Sprintf("rank died: rank %d", victim), fmt.Sprintf("(pid %d)", killed.pid), "signal 9 (SIGKILL)")
			keptRows(t, j, readRunFile(t, js), "rank died", 5, victim)
		})
	}
}

// keptRows compares a result that was cut off with the table, which has the same rows.
func keptRows(t *testing.T, j *job, run *result.Run, status string, exit, rank int) {
	t.Helper()
	outcomeIs(t, run, status, exit, rank)
	rows := parseTable(t, j.stdout.String())
	if len(rows) == 0 || len(rows) != len(run.Rows) {
		t.Errorf("%d rows in the table, %d in the result", len(rows), len(run.Rows))
	}
	has(t, j.stdout.String(), fmt.Sprintf("# error: %s (exit status %d)", status, exit))
	if strings.Contains(j.stdout.String(), "concluded") {
		t.Error("the table says that the test was concluded")
	}
}

// A rank that dies before anything is measured is named as well, in whatever phase it is.
func TestKilledWhileStarting(t *testing.T) {
	t.Parallel()
	sit(t)
	e, g := engine(t, 3, 1)
	for _, delay := range []time.Duration{0, 5 * time.Millisecond, 20 * time.Millisecond} {
		j := start(t, nil, longSweep(e, g)...)
		var victim process
		if !eventually(patience, func() bool {
			for _, p := range j.processes() {
				if p.rank == g-1 {
					victim = p
				}
			}
			return victim.pid != 0
		}) {
			t.Fatal("no process is the last rank")
		}
		time.Sleep(delay)
		kill(t, victim, syscall.SIGKILL)
		if code := j.exit(t, 30*time.Second); code != 5 {
			t.Errorf("after %v: exit status %d, want 5", delay, code)
		}
		j.nothingLeft(t, 0)
		if !regexp.MustCompile(fmt.Sprintf(`(?m)^commprobe: rank died: rank %d on .*SIGKILL\)(; dumps of .*)?\n\z`, g-1)).MatchString(j.stderr.String()) {
			t.Errorf("after %v: stderr %q", delay, j.stderr)
		}
	}
}

// One process with all ranks, killed: it is named by its ranks.
func TestKilledProcessOfAllRanks(t *testing.T) {
	t.Parallel()
	sit(t)
	e, g := engine(t, 3, 2)
	j := running(t, nil, longSweep(e, g, "--placement", "thread")...)
	kill(t, j.worker(t, 0), syscall.SIGKILL)
	if code := j.exit(t, 30*time.Second); code != 5 {
		t.Errorf("exit status %d, want 5", code)
	}
	j.nothingLeft(t, 0)
	has(t, j.stderr.String(), fmt.Sprintf("ranks 0-%d (pid ", g-1), "SIGKILL")
}

func TestStoppedRank(t *testing.T) {
	t.Parallel()
	sit(t)
	e, g := engine(t, 3, 2)
	victim := g - 1
	js := filepath.Join(t.TempDir(), "r.json")
	j := running(t, nil, longSweep(e, g, "-T", "2", "--json", js)...)
	at := time.Now()
	kill(t, j.worker(t, victim), syscall.SIGSTOP)
	code := j.exit(t, patience)
	took := time.Since(at)
	j.nothingLeft(t, 0)
	if code != 4 {
		t.Errorf("exit status %d, want 4", code)
	}
	if took < 2*time.Second || took > 12*time.Second {
		t.Errorf("ended after %v with -T 2", took)
	}
	if !regexp.MustCompile(fmt.Sprintf(`(?m)^commprobe: time-out: .*no word from ranks? %d\b`, victim)).MatchString(j.stderr.String()) {
		t.Errorf("rank %d is not named: %s", victim, j.stderr)
	}
	run := readRunFile(t, js)
	if run.Outcome.Status != "time-out" || run.Outcome.Exit != 4 || len(run.Rows) == 0 || !strings.Contains(run.Outcome.Phase, "bytes") {
		t.Errorf("%d rows, outcome %+v", len(run.Rows), run.Outcome)
	}
}

// A rank that is stopped for a moment is no failure.
func TestPausedRank(t *testing.T) {
	t.Parallel()
	sit(t)
	e, g := engine(t, 2, 2)
	j := running(t, nil, sweepArgs(e, g, "-b", "8", "-e", "2K", "-i", "8", "-n", "20", "--iters-exact")...)
	p := j.worker(t, 1)
	kill(t, p, syscall.SIGSTOP)
	time.Sleep(1500 * time.Millisecond)
	kill(t, p, syscall.SIGCONT)
	if code := j.exit(t, 2*patience); code != 0 {
		t.Errorf("exit status %d", code)
	}
	goodTable(t, j.stdout.String())
}

func TestInterrupt(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			sit(t)
			e, g := engine(t, 3, 1)
			js := filepath.Join(t.TempDir(), "r.json")
			j := running(t, nil, longSweep(e, g, "--json", js)...)
			kill(t, process{pid: j.cmd.Process.Pid}, sig)
			if code := j.exit(t, patience); code != 130 {
				t.Errorf("exit status %d, want 130", code)
			}
			j.nothingLeft(t, 0)
			has(t, j.stderr.String(), "stopping after the present size", "interrupted: ")
			keptRows(t, j, readRunFile(t, js), "interrupted", 130, -1)
		})
	}
}

// The second interrupt does not wait for a size that takes minutes.
func TestInterruptTwice(t *testing.T) {
	t.Parallel()
	sit(t)
	e, g := engine(t, 2, 1)
	js := filepath.Join(t.TempDir(), "r.json")
	j := start(t, nil, sweepArgs(e, g, "-b", "64M", "-e", "64M", "-n", "100000", "--iters-exact", "-T", "600", "--json", js)...)
	j.sees(t, j.stdout, `#wrong`, patience)
	time.Sleep(300 * time.Millisecond)
	parent := process{pid: j.cmd.Process.Pid}
	kill(t, parent, syscall.SIGINT)
	j.sees(t, j.stderr, "interrupt once more to end at once", patience)
	select {
	case <-j.done:
		t.Fatal("did not finish the present size")
	case <-time.After(500 * time.Millisecond):
	}
	kill(t, parent, syscall.SIGINT)
	at := time.Now()
	if code := j.exit(t, 30*time.Second); code != 130 {
		t.Errorf("exit status %d, want 130", code)
	}
	if took := time.Since(at); took > 8*time.Second {
		t.Errorf("took %v", took)
	}
	j.nothingLeft(t, 0)
	if run := readRunFile(t, js); run.Outcome.Exit != 130 || len(run.Rows) != 0 {
		t.Errorf("%d rows, outcome %+v", len(run.Rows), run.Outcome)
	}
}

func TestKilledParent(t *testing.T) {
	t.Parallel()
	for _, p := range []string{"process", "thread"} {
		t.Run(p, func(t *testing.T) {
			sit(t)
			e, g := engine(t, 3, 1)
			dir := t.TempDir()
			j := running(t, nil, longSweep(e, g, "--placement", p, "--json", filepath.Join(dir, "r.json"))...)
			if p == "process" && len(j.processes()) != g+1 {
				t.Fatalf("%d ranks, and these processes: %v", g, j.processes())
			}
			kill(t, process{pid: j.cmd.Process.Pid}, syscall.SIGKILL)
			if code := j.exit(t, 10*time.Second); code != 128+9 {
				t.Errorf("exit status %d", code)
			}
			j.nothingLeft(t, 6*time.Second)
			if names := folder(t, dir); len(names) != 0 {
				t.Errorf("half a result is left: %v", names)
			}
		})
	}
}

// A worker that is stopped when its parent is killed must not stay for ever.
func TestKilledParentOfStoppedRank(t *testing.T) {
	t.Parallel()
	sit(t)
	e, g := engine(t, 2, 1)
	j := running(t, nil, longSweep(e, g)...)
	kill(t, j.worker(t, g-1), syscall.SIGSTOP)
	kill(t, process{pid: j.cmd.Process.Pid}, syscall.SIGKILL)
	j.exit(t, 10*time.Second)
	j.nothingLeft(t, 8*time.Second)
}

func TestTwoAtOnce(t *testing.T) {
	t.Parallel()
	sit(t)
	e, g := engine(t, 2, 1)
	args := sweepArgs(e, g, "-b", "8", "-e", "256K", "-f", "4", "-n", "10", "-c", "2")
	a, b := start(t, nil, args...), start(t, nil, args...)
	for _, j := range []*job{a, b} {
		if code := j.exit(t, 2*patience); code != 0 {
			t.Errorf("exit status %d", code)
		}
		goodTable(t, j.stdout.String(), 8, 32, 128, 512, 2048, 8192, 32768, 131072)
		j.nothingLeft(t, 0)
	}
}

// The barrier's file has a name only while a job starts, so that a job that is killed leaves none.
func TestNoFilesInSharedMemory(t *testing.T) {
	t.Parallel()
	sit(t)
	e, g := engine(t, 2, 2)
	j := running(t, nil, longSweep(e, g)...)
	for _, p := range j.processes() {
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(string(maps), "\n") {
			if strings.Contains(line, "/commprobe-") && !strings.HasSuffix(line, "(deleted)") {
				t.Errorf("rank %d: the barrier's file has a name while rows are measured: %s", p.rank, line)
			}
		}
	}
}

// Whoever comes to the store's port without the token is turned away and named in the log; the job goes on.
func TestStoreUnderAttack(t *testing.T) {
	t.Parallel()
	sit(t)
	e, g := engine(t, 2, 1)
	j := start(t, nil, sweepArgs(e, g, "-b", "8", "-e", "1600", "-i", "8", "-n", "20", "-c", "1", "--iters-exact")...)
	var addr string
	if !eventually(patience, func() bool {
		for _, p := range j.processes() {
			addr = p.env[envStore]
			if addr != "" {
				return true
			}
		}
		return false
	}) {
		t.Fatal("no worker was started")
	}
	silent := dial(t, addr) // held open to the end
	defer silent.Close()
	j.sees(t, j.stdout, rowPattern, patience)
	// The sweep stands still while it is attacked, so that it is there to the end of it whatever the machine's speed.
	for r := range g {
		kill(t, j.worker(t, r), syscall.SIGSTOP)
	}
	garbage := dial(t, addr)
	defer garbage.Close()
	if _, err := garbage.Write(bytes.Repeat([]byte("GET / HTTP/1.1\r\n"), 100)); err != nil {
		t.Errorf("garbage: %v", err)
	}
	strangers(t, addr, g)
	j.sees(t, j.stderr, `refused connection from .*handshake not finished within 5 s`, 8*time.Second)
	for r := range g {
		kill(t, j.worker(t, r), syscall.SIGCONT)
	}
	for range 200 {
		dial(t, addr).Close()
	}
	if code := j.exit(t, 2*patience); code != 0 {
		t.Errorf("exit status %d", code)
	}
	var sizes []int64
	for s := int64(8); s <= 1600; s += 8 {
		sizes = append(sizes, s)
	}
	goodTable(t, j.stdout.String(), sizes...)
	has(t, j.stderr.String(), "does not speak the commprobe protocol", "refused connection from 127.0.0.1:", "wrong token", "closed before the handshake was finished")
	if n := strings.Count(j.stderr.String(), "\n"); n > 250 {
		t.Errorf("%d lines on stderr: a port scan must not flood it", n)
	}
}

// strangers try to be ranks of the job, without its token.
func strangers(t *testing.T, addr string, world int) {
	t.Helper()
	token, err := bootstrap.NewToken()
	if err != nil {
		t.Fatal(err)
	}
	for _, rank := range []int{0, world - 1} {
		_, err := bootstrap.Dial(within(t, 10*time.Second), addr, bootstrap.Config{
			Token: token, World: world, Hello: bootstrap.Hello{Ranks: []int{rank}, Program: programVersion()},
		})
		if !errors.Is(err, bootstrap.ErrWrongToken) {
			t.Errorf("wrong token: %v, want ErrWrongToken", err)
		}
	}
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// The store of a local job is not open to other hosts, and its token is in no command line.
func TestStoreIsPrivate(t *testing.T) {
	t.Parallel()
	sit(t)
	e, g := engine(t, 2, 1)
	j := running(t, nil, longSweep(e, g)...)
	for _, p := range j.processes() {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
		if err != nil {
			t.Fatal(err)
		}
		if token := p.env["COMMPROBE_TOKEN"]; p.rank >= 0 && (len(token) != 64 || strings.Contains(string(raw), token)) {
			t.Errorf("rank %d: token %d characters, command line %q", p.rank, len(token), raw)
		}
		if host, _, err := net.SplitHostPort(p.env[envStore]); p.rank >= 0 && (err != nil || !net.ParseIP(host).IsLoopback()) {
			t.Errorf("rank %d: store at %q", p.rank, p.env[envStore])
		}
	}
	if text := j.stdout.String() + j.stderr.String(); strings.Contains(text, j.worker(t, 0).env["COMMPROBE_TOKEN"]) {
		t.Error("the token is printed")
	}
}

// torchrun is the environment that torchrun gives a rank; the port is free, and so is the next, where the store listens.
func torchrun(t *testing.T, rank, world, port int) []string {
	t.Helper()
	return []string{
		"RANK=" + strconv.Itoa(rank), "WORLD_SIZE=" + strconv.Itoa(world), "LOCAL_RANK=" + strconv.Itoa(rank), "LOCAL_WORLD_SIZE=" + strconv.Itoa(world),
		"MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + strconv.Itoa(port),
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	for range 100 {
		a, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := a.Addr().(*net.TCPAddr).Port
		b, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port+1)))
		a.Close()
		if err == nil {
			b.Close()
			return port
		}
	}
	t.Fatal("no two free ports")
	return 0
}

func TestTorchrun(t *testing.T) {
	t.Parallel()
	sit(t)
	e, _ := engine(t, 2, 2)
	port := freePort(t)
	args := []string{"sweep", "--engine", e, "-b", "8", "-e", "64K", "-f", "8", "-n", "5"}
	one := start(t, torchrun(t, 1, 2, port), args...) // before the one with the store
	time.Sleep(200 * time.Millisecond)
	zero := start(t, torchrun(t, 0, 2, port), args...)
	for r, j := range []*job{zero, one} {
		if code := j.exit(t, patience); code != 0 {
			t.Errorf("rank %d: exit status %d", r, code)
		}
		j.nothingLeft(t, 0)
	}
	goodTable(t, zero.stdout.String(), 8, 64, 512, 4096, 32768)
	if one.stdout.String() != "" {
		t.Errorf("rank 1 prints %q", one.stdout)
	}
	has(t, zero.stdout.String(), fmt.Sprintf("Pid %6d", zero.cmd.Process.Pid), fmt.Sprintf("Pid %6d", one.cmd.Process.Pid))
}

func TestTorchrunKilledRank(t *testing.T) {
	t.Parallel()
	for victim := range 2 {
		t.Run(fmt.Sprintf("rank %d", victim), func(t *testing.T) {
			sit(t)
			e, _ := engine(t, 2, 2)
			port := freePort(t)
			args := longSweep(e, 2)
			jobs := []*job{start(t, torchrun(t, 0, 2, port), args...), start(t, torchrun(t, 1, 2, port), args...)}
			jobs[0].sees(t, jobs[0].stdout, rowPattern, patience)
			kill(t, process{pid: jobs[victim].cmd.Process.Pid}, syscall.SIGKILL)
			other := jobs[1-victim]
			code := other.exit(t, 15*time.Second)
			if victim == 1 {
				if code != 5 {
					t.Errorf("rank 0: exit status %d, want 5", code)
				}
				has(t, other.stderr.String(), "rank died: rank 1", fmt.Sprintf("pid %d", jobs[1].cmd.Process.Pid))
				return
			}
			if code == 0 {
				t.Error("rank 1 ended well without rank 0")
			}
			if other.stderr.String() == "" {
				t.Error("rank 1 says nothing")
			}
		})
	}
}

// torchrun passes a signal on to all ranks, as a terminal does. That is one interrupt, not the death of rank 1.
func TestTorchrunInterrupt(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			sit(t)
			e, _ := engine(t, 2, 2)
			port := freePort(t)
			args := longSweep(e, 2)
			jobs := []*job{start(t, torchrun(t, 0, 2, port), args...), start(t, torchrun(t, 1, 2, port), args...)}
			jobs[0].sees(t, jobs[0].stdout, rowPattern, patience)
			for _, j := range []*job{jobs[1], jobs[0]} {
				kill(t, process{pid: j.cmd.Process.Pid}, sig)
			}
			if code := jobs[0].exit(t, 30*time.Second); code != 130 {
				t.Errorf("rank 0: exit status %d, want 130", code)
			}
			jobs[1].exit(t, 10*time.Second)
			has(t, jobs[0].stdout.String(), "# error: interrupted (exit status 130)")
		})
	}
}

// A reader of the table that goes away, as head does, takes the job with it.
func TestBrokenPipe(t *testing.T) {
	t.Parallel()
	sit(t)
	e, g := engine(t, 2, 1)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	j := startTo(t, w, nil, longSweep(e, g)...)
	w.Close()
	var first [1]byte
	if _, err := r.Read(first[:]); err != nil {
		t.Fatal(err)
	}
	r.Close()
	if code := j.exit(t, patience); code == 0 {
		t.Error("exit status 0")
	}
	j.nothingLeft(t, 6*time.Second)
}

// Rank 1 that never comes is named.
func TestTorchrunMissingRank(t *testing.T) {
	t.Parallel()
	f := commprobe(t, torchrun(t, 0, 2, freePort(t)), "sweep", "--engine", "host", "-T", "1", "-b", "8", "-e", "8")
	if f.code != 4 || f.stdout != "" {
		t.Errorf("exit status %d, want 4; stdout %q", f.code, f.stdout)
	}
	has(t, f.stderr, "time-out: rank 1: join", "rank 1 of 2 did not join within 1 s")
	// And rank 1 alone does not wait for ever either.
	f = commprobe(t, torchrun(t, 1, 2, freePort(t)), "sweep", "--engine", "host", "-T", "1", "-b", "8", "-e", "8")
	if f.code == 0 || f.stdout != "" {
		t.Errorf("exit status %d; stdout %q", f.code, f.stdout)
	}
	has(t, f.stderr, "rank 1", "no store answered at 127.0.0.1:")
}

func TestLauncherEnvironment(t *testing.T) {
	t.Parallel()
	whole := torchrun(t, 0, 2, 29500)
	for _, c := range []struct {
		name string
		env  []string
		args string
		says []string
	}{
		{"no MASTER_ADDR", []string{"RANK=0", "WORLD_SIZE=2", "MASTER_PORT=29500"}, "", []string{"torchrun", "MASTER_ADDR is not set"}},
		{"no MASTER_PORT", []string{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1"}, "", []string{"torchrun", "MASTER_PORT is not set"}},
		{"no RANK", []string{"WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29500"}, "", []string{"torchrun", "RANK is not set"}},
		{"rank beyond the world", []string{"RANK=2", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29500"}, "", []string{`RANK="2"`, "below WORLD_SIZE=2"}},
		{"port", []string{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=x"}, "", []string{`MASTER_PORT="x"`}},
		{"Open MPI", []string{"OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=0"}, "", []string{"Open MPI", "one of 2 ranks", "not supported", "OMPI_COMM_WORLD_SIZE"}},
		{"MPICH", []string{"PMI_SIZE=4", "PMI_RANK=0"}, "", []string{"PMI", "one of 4 ranks"}},
		{"srun", []string{"SLURM_PROCID=1", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=8"}, "", []string{"Slurm", "one of 8 ranks"}},
		{"-g", whole, "-g 4", []string{"-g 4", "torchrun started 2 ranks"}},
		{"--placement", whole, "--placement thread", []string{"--placement", "torchrun"}},
		{"--runs", whole, "--runs 2", []string{"--runs", "torchrun"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := commprobe(t, c.env, append([]string{"sweep", "--engine", "host", "-b", "8", "-e", "8"}, strings.Fields(c.args)...)...)
			if f.code != 2 || f.stdout != "" {
				t.Errorf("exit status %d, stdout %q", f.code, f.stdout)
			}
			oneLine(t, f.stderr)
			has(t, f.stderr, c.says...)
		})
	}
	// One rank of Open MPI, and a batch script of Slurm, are alone and may run.
	for _, env := range [][]string{{"OMPI_COMM_WORLD_SIZE=1"}, {"SLURM_PROCID=0", "SLURM_NTASKS=8"}} {
		goodTable(t, ok(t, env, "sweep", "--engine", "host", "-g", "1", "-b", "8", "-e", "8", "-n", "2").stdout, 8)
	}
}
