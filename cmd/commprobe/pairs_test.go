package main

import (
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/commprobe/commprobe/internal/launch"
	"github.com/commprobe/commprobe/rdma/pairs"
)

func TestRDMAPairsUsage(t *testing.T) {
	t.Parallel()
	for _, c := range []badInput{
		{"rdma pairs", []string{"name the hosts", "--hosts a,b,c"}},
		{"rdma --all-pairs", []string{"name the hosts"}},
		{"rdma pairs a b", []string{"no arguments but flags", `"a"`}},
		{"rdma pairs --hosts a", []string{"--hosts", "two hosts"}},
		{"rdma pairs --hosts a,-oProxyCommand=x", []string{"no name of a host"}},
		{"rdma pairs --hosts a,b --test push", []string{`--test "push"`, "write, read, send and latency"}},
		{"rdma pairs --hosts a,b -s 2,4", []string{"-s 2,4", "one size"}},
		{"rdma pairs --hosts a,b --test latency -b", []string{"-b, -q and -t have no meaning"}},
		{"rdma pairs --hosts a,b --below 2", []string{"--below 2"}},
		{"rdma pairs --hosts a,b --below 0", []string{"--below 0"}},
		{"rdma pairs --hosts a,b -d mlx5_0", []string{"--device has no meaning here", "--devices"}},
		{"rdma pairs --hosts a,b --tcp-port 70000", []string{"--tcp-port 70000"}},
		{"rdma write h --rails", []string{"rdma write: --rails goes with pairs"}},
		{"rdma list --hosts a,b", []string{"rdma list: --hosts goes with pairs"}},
		{"rdma pairs --hosts a,b -T 0", []string{"-T 0"}},
	} {
		c.isTold(t)
	}
}

// remoteShell is a script that runs the command here, whatever the host: two hosts on one machine.
func remoteShell(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rsh")
	text := "#!/bin/sh\n" + strings.Join(lines, "\n") + "\nexec sh -c \"$2\"\n"
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

const twoHosts = "a=127.0.0.1,b=127.0.0.1"

// Agents are processes of their own here, and the library finds no way from one to the other: everything up to the link works, and the link's failure is told.
func TestRDMAPairsAgents(t *testing.T) {
	t.Parallel()
	rsh := remoteShell(t, `echo "Welcome to $1"`, `echo "last login: never" >&2`)
	f := commprobe(t, []string{fakeVerbs(t), "FAKE_FAIL=ibv_modify_qp:2=110"}, "rdma", "pairs", "--hosts", twoHosts, "--rsh", rsh, "-n", "2", "-T", "2")
	if f.code != 8 {
		t.Errorf("exit status %d\n%s", f.code, f.stderr)
	}
	has(t, f.stderr, "a says: Welcome to a", "b: last login: never", "2 measurements (write, 65536 bytes) between 2 NICs of 2 hosts")
	has(t, f.stdout, "# a (", "fake0 (Ethernet, ", "FAIL", "a:fake0 to b:fake0: failed: ", "VERDICT: path between a:fake0 and b:fake0: bad in both directions; 2 failed of 2 pairs")
}

// A host that cannot be reached, or has another version, is named; so is the phase.
func TestRDMAPairsHostsThatFail(t *testing.T) {
	t.Parallel()
	env := fakeVerbs(t)
	for _, c := range []struct {
		shell []string
		says  []string
	}{
		{[]string{`[ "$1" = b ] && { echo "ssh: connect to host b port 22: No route to host" >&2; exit 255; }`}, []string{"b: first words: exit status 255", "No route to host", "--rsh"}},
		{[]string{`[ "$1" = b ] && exec sh -c "exec /nonexistent/commprobe"`}, []string{"b: first words: exit status 127", "--remote-binary"}},
		{[]string{`[ "$1" = b ] && { echo 'commprobe-agent: {"hello":{"protocol":1,"program":"v0.1"}}'; exec cat >/dev/null; }`}, []string{"b: compare versions: version skew", "v0.1"}},
		{[]string{`[ "$1" = b ] && export FAKE_STATE=1`}, []string{"b: list devices: no port", "port is down"}},
		{[]string{`[ "$1" = b ] && export FAKE_DEVICES=0`}, []string{"b: list devices: no RDMA device here"}},
	} {
		f := commprobe(t, []string{env}, "rdma", "--all-pairs", "--hosts", twoHosts, "--rsh", remoteShell(t, c.shell...))
		if f.code != 5 {
			t.Errorf("%q: exit status %d", c.says, f.code)
		}
		has(t, f.stderr, append(c.says, "1 of 2 hosts can take part")...)
	}
}

// measuring starts a run that hangs in its first measurement, and waits until it is there.
func measuring(t *testing.T) *job {
	t.Helper()
	j := start(t, []string{fakeVerbs(t), "FAKE_SILENT=1"}, "rdma", "pairs", "--hosts", twoHosts, "--rsh", remoteShell(t), "-T", "60")
	j.sees(t, j.stderr, "2 measurements", patience)
	if !eventually(patience, func() bool { return len(j.processes()) >= 3 }) {
		t.Fatalf("%d processes", len(j.processes()))
	}
	time.Sleep(300 * time.Millisecond) // into the measurement
	return j
}

// Whoever kills the orchestrator leaves no process behind, on any host.
func TestRDMAPairsKilled(t *testing.T) {
	t.Parallel()
	j := measuring(t)
	if err := j.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	j.nothingLeft(t, 10*time.Second)
}

func TestRDMAPairsInterrupted(t *testing.T) {
	t.Parallel()
	j := measuring(t)
	if err := j.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := j.exit(t, 20*time.Second); code != 130 {
		t.Errorf("exit status %d", code)
	}
	j.nothingLeft(t, 5*time.Second)
	has(t, j.stdout.String(), "# interrupted", "from \\ to", "not measured: ")
}

// The token is in no command line and in no environment of any process.
func TestRDMAPairsTokenIsSecret(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	seen := filepath.Join(dir, "stdin")
	// What goes to the agent of a is kept, to know the token.
	rsh := remoteShell(t, `[ "$1" = a ] && { tee `+seen+` | sh -c "$2"; exit; }`)
	j := start(t, []string{fakeVerbs(t), "FAKE_SILENT=1"}, "rdma", "pairs", "--hosts", twoHosts, "--rsh", rsh, "-T", "60")
	j.sees(t, j.stderr, "2 measurements", patience)
	text, err := os.ReadFile(seen)
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	var r struct{ Hello struct{ Token string } }
	if err := json.Unmarshal([]byte(first), &r); err != nil || len(r.Hello.Token) != 64 {
		t.Fatalf("%q: %v", first, err)
	}
	looked := 0
	for _, p := range j.processes() {
		for _, f := range []string{"cmdline", "environ"} {
			b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.pid), f))
			if err != nil {
				continue // ended meanwhile
			}
			if looked++; strings.Contains(string(b), r.Hello.Token) {
				t.Errorf("the token is in %s of process %d", f, p.pid)
			}
		}
	}
	if looked < 6 {
		t.Errorf("looked into %d files only", looked)
	}
	if out := j.stdout.String() + j.stderr.String(); strings.Contains(out, r.Hello.Token) {
		t.Error("the token was printed")
	}
	_ = j.cmd.Process.Signal(os.Interrupt)
	j.exit(t, 20*time.Second)
}

// An agent whose stdin closes ends at once, in the middle of a measurement that hangs as well.
func TestRDMAAgentEndsWithStdin(t *testing.T) {
	t.Parallel()
	j := startAgent(t)
	j.say(t, `{"do":"hello","hello":{"protocol":1,"program":"x","token":"`+rdmaTestToken+`"}}`)
	j.say(t, `{"do":"serve","id":1,"serve":{"device":"fake0","port":1,"bind":"127.0.0.1","deadline_ns":10000000000}}`)
	j.sees(t, j.stdout, `"listening":"127\.0\.0\.1:\d+"`, patience)
	if err := j.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if code := j.exit(t, 5*time.Second); code != 0 {
		t.Errorf("exit status %d", code)
	}
	j.nothingLeft(t, time.Second)
}

func TestRDMAAgentByHand(t *testing.T) {
	t.Parallel()
	j := startAgent(t)
	j.say(t, "help")
	if code := j.exit(t, 5*time.Second); code != 1 {
		t.Errorf("exit status %d", code)
	}
	has(t, j.stderr.String(), "started by `commprobe rdma pairs` only")
}

type agentJob struct {
	*job
	stdin io.WriteCloser
}

func startAgent(t *testing.T) *agentJob {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	j := &agentJob{job: &job{name: t.Name(), stdout: newScreen(), stderr: newScreen(), done: make(chan struct{})}}
	j.cmd = exec.Command(self, pairs.AgentCommand)
	j.cmd.Env = jobEnv(j.name, []string{fakeVerbs(t)})
	j.cmd.Stdout, j.cmd.Stderr = j.stdout, j.stderr
	if j.stdin, err = j.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := j.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		j.err = j.cmd.Wait()
		close(j.done)
	}()
	t.Cleanup(func() {
		_ = j.cmd.Process.Kill()
		<-j.done
	})
	return j
}

func (j *agentJob) say(t *testing.T, line string) {
	t.Helper()
	if _, err := io.WriteString(j.stdin, line+"\n"); err != nil {
		t.Fatal(err)
	}
}

// ---- the whole: what the link carries works when all agents live in one process, whose library is a loopback

const rshSocket = "FAKE_RSH_SOCKET"

// connectToRack is what the remote shell of that test does: it connects its stdin and stdout with an agent in the test's process.
func connectToRack(t *testing.T, path string) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _ = io.Copy(conn, os.Stdin)
		_ = conn.(*net.UnixConn).CloseWrite()
	}()
	_, _ = io.Copy(os.Stdout, conn)
	os.Exit(0) // without a word of the test
}

func TestRDMAPairsMeasured(t *testing.T) {
	if path := os.Getenv(rshSocket); path != "" {
		connectToRack(t, path)
	}
	if os.Getenv("FAKE_RDMA_PAIRS") == "" {
		t.Parallel()
		cmd := exec.Command(os.Args[0], "-test.run=^TestRDMAPairsMeasured$", "-test.v", "-test.timeout=100s")
		cmd.Env = append(os.Environ(), fakeVerbs(t), "FAKE_DEVICES=2", "FAKE_RDMA_PAIRS=1")
		if text, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(text), "--- PASS: TestRDMAPairsMeasured") {
			t.Errorf("%v\n%s", err, text)
		}
		return
	}
	rsh := rack(t)
	measure := func(args ...string) finished {
		return inProcess(append([]string{"rdma", "pairs", "--hosts", "a=127.0.0.1,b=127.0.0.1,c=127.0.0.1", "--rsh", rsh, "-n", "20", "--below", "0.000001"}, args...)...)
	}
	// A loopback has no rate to be held against, and a busy machine makes any; what counts is that each pair was measured and is in its place.
	f := measure()
	if f.code != 0 {
		t.Fatalf("exit status %d\n%s%s", f.code, f.stdout, f.stderr)
	}
	has(t, f.stderr, "24 measurements (write, 65536 bytes) between 6 NICs of 3 hosts, 1 host pairs at a time")
	has(t, f.stdout, "from \\ to", "# measured 24 of 24 pairs", "VERDICT: good")
	for _, c := range []struct {
		args     []string
		measured int
		unit     string
	}{
		{[]string{"--test", "read", "--rails"}, 12, "Gb/s"},
		{[]string{"--test", "send", "-b", "--devices", "fake1"}, 6, "Gb/s"},
		{[]string{"--test", "latency", "--rails"}, 12, "us"},
	} {
		f := measure(append(c.args, "--json", "-")...)
		var r pairs.Result
		if err := json.Unmarshal([]byte(f.stdout), &r); err != nil || f.code != 0 || r.Schema != pairs.Schema || r.Unit != c.unit || r.Count(pairs.Measured) != c.measured {
			t.Errorf("%v: exit status %d, %v, %d measured: %s", c.args, f.code, err, r.Count(pairs.Measured), f.stderr)
			continue
		}
		for _, p := range r.Pairs {
			if p.Value == nil || *p.Value <= 0 || p.GIDs == "" {
				t.Errorf("%v: %+v", c.args, p)
			}
		}
	}
	if f := measure("--rails", "--devices", "fake0", "--inject-fault"); f.code != 6 {
		t.Errorf("a planted fault: exit status %d\n%s%s", f.code, f.stdout, f.stderr)
	} else {
		has(t, f.stdout, "WRONG", "wrong data: ", "with wrong data of")
	}
}

// rack runs an agent for each connection in this process, and answers the command line that connects to it.
func rack(t *testing.T) (rsh string) {
	t.Helper()
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var agents sync.WaitGroup
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			agents.Go(func() {
				defer c.Close()
				if err := rdmaAgent(c, c); err != nil {
					t.Errorf("agent: %v", err)
				}
			})
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		agents.Wait()
	})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return "env -u FAKE_RDMA_PAIRS -u " + launch.EnvToken + " " + rshSocket + "=" + pairs.Quote(socket) + " " + pairs.Quote(self) + " -test.run='^TestRDMAPairsMeasured$'"
}
