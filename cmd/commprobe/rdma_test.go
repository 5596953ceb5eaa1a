package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/commprobe/commprobe/ibverbs"
	"github.com/commprobe/commprobe/internal/bindtest"
	"github.com/commprobe/commprobe/internal/launch"
	"github.com/commprobe/commprobe/rdma"
)

const rdmaTestToken = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestRDMAUsage(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "none", "r.json")
	for _, c := range []badInput{
		{"rdma", []string{"list, serve, write", "--help"}},
		{"rdma push", []string{"rdma push", "list, serve, write"}},
		{"rdma list x", []string{"no arguments"}},
		{"rdma write", []string{"name the host", "rdma serve"}},
		{"rdma write h x", []string{"one address", `"x"`}},
		{"rdma write h", []string{"COMMPROBE_TOKEN is not set", "rdma serve"}},
		{"rdma write h --once", []string{"--once goes with serve"}},
		{"rdma write h -s 1Q", []string{"-s", `"1Q"`, "K, M, G or T"}},
		{"rdma write h -s 0", []string{"sizes are 1 or more"}},
		{"rdma write h -s 4..2", []string{"first of a range"}},
		{"rdma write h -a -s 4", []string{"-a and -s"}},
		{"rdma write h -n 1", []string{"-n 1", "from 2"}},
		{"rdma write h -n 9 -D 1", []string{"-n and -D"}},
		{"rdma write h -D 0", []string{"-D 0"}},
		{"rdma write h -q 0", []string{"-q 0"}},
		{"rdma write h -t 0", []string{"-t 0"}},
		{"rdma write h -m 1500", []string{"-m 1500", "4096"}},
		{"rdma write h -x y", []string{`-x "y"`, "CLIENT:SERVER"}},
		{"rdma write h -x 1:y", []string{`-x "1:y"`}},
		{"rdma write h -i -1", []string{"-i -1"}},
		{"rdma write h -T 0", []string{"-T 0", "wait without an end"}},
		{"rdma write h --memory disk", []string{"--memory", "host, gpu:N or dmabuf:N"}},
		{"rdma write h --set sl", []string{"--set", "key=value"}},
		{"rdma write h --set foo=1", []string{"--set foo", "no such key"}},
		{"rdma latency h push", []string{`"push"`, "write, read, send and atomic"}},
		{"rdma latency h -q 2", []string{"-b, -q and -t have no meaning"}},
		{"rdma serve a b", []string{"one address"}},
		{"rdma serve -s 4", []string{"--size is the client's"}},
		{"rdma serve --json -", []string{"--once"}},
		{"rdma serve --memory disk", []string{"host, gpu:N or dmabuf:N"}},
		{"rdma write h --json " + missing, []string{"--json", missing, "no such file"}},
		{"rdma write h --bogus", []string{"-bogus", "--help"}},
	} {
		c.isTold(t)
	}
	f := commprobe(t, []string{launch.EnvToken + "=xyz"}, "rdma", "write", "h")
	if f.code != 2 || strings.Contains(f.stderr, "xyz") {
		t.Errorf("exit status %d: %s", f.code, f.stderr)
	}
	has(t, f.stderr, launch.EnvToken, "64 hex digits")
}

// fakeVerbs builds a libibverbs whose devices are loopbacks within the process.
func fakeVerbs(t *testing.T) string {
	t.Helper()
	lib := filepath.Join(t.TempDir(), "libibverbs.so.1")
	bindtest.PutVerbs(t, lib)
	return ibverbs.LibraryEnv + "=" + lib
}

// Without a device there is one message that says what was looked at and what would be needed.
func TestRDMAWithoutDevice(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		env  []string
		says []string
	}{
		{[]string{ibverbs.LibraryEnv + "=/nonexistent/libibverbs.so.1"}, []string{"/nonexistent/libibverbs.so.1", "apt-get install libibverbs1"}},
		{[]string{fakeVerbs(t), "FAKE_DEVICES=0"}, []string{"libibverbs is there ("}},
	} {
		for _, args := range []string{"list", "serve 127.0.0.1:0", "write localhost"} {
			f := commprobe(t, append(c.env, launch.EnvToken+"="+rdmaTestToken), append([]string{"rdma"}, strings.Fields(args)...)...)
			if f.code != 3 || f.stdout != "" {
				t.Errorf("%s: exit status %d, stdout %q", args, f.code, f.stdout)
			}
			oneLine(t, f.stderr)
			has(t, f.stderr, append(c.says, "no RDMA device here", "/sys/class/infiniband", "/dev/infiniband", "Needed: ")...)
		}
	}
}

func TestRDMAList(t *testing.T) {
	t.Parallel()
	env := fakeVerbs(t)
	f := ok(t, []string{env, "FAKE_DEVICES=2"}, "rdma", "list")
	if n := len(regexp.MustCompile(`(?m)^\S+ +1  active `).FindAllString(f.stdout, -1)); n != 2 {
		t.Errorf("%d ports:\n%s", n, f.stdout)
	}
	has(t, f.stdout, "GID", "RoCE v2", "DMA-BUF memory: ")
	f = ok(t, []string{env, "FAKE_DEVICES=2"}, "rdma", "list", "--json", "-")
	var l rdma.List
	if err := json.Unmarshal([]byte(f.stdout), &l); err != nil || len(l.Devices) != 2 || len(l.Devices[0].Ports) != 1 || len(l.Devices[0].Ports[0].GIDs) == 0 || l.Library == "" {
		t.Errorf("%v: %+v", err, l)
	}
}

// What serve prints is the command for the other side, and that works: server and client in one process, whose library is a loopback.
func TestRDMABetweenTwo(t *testing.T) {
	if os.Getenv("FAKE_RDMA_PAIR") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestRDMABetweenTwo$", "-test.v", "-test.timeout=100s")
		cmd.Env = append(os.Environ(), fakeVerbs(t), "FAKE_RDMA_PAIR=1")
		if text, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(text), "--- PASS") {
			t.Errorf("%v\n%s", err, text)
		}
		return
	}
	fault := rdmaPair(t, "write", "-n", "50", "-q", "2", "-s", "2,65537", "--inject-fault")
	if fault.client.code != 6 || fault.server.code != 6 {
		t.Errorf("a planted fault: %d and %d", fault.client.code, fault.server.code)
	}
	has(t, fault.client.stderr, "wrong data", "1 of 2 bytes are wrong")
	has(t, fault.client.stdout, "WRONG")
	good := rdmaPair(t, "write", "-n", "50", "-q", "2", "-s", "2,65537")
	if good.client.code != 0 || good.server.code != 0 {
		t.Errorf("%d and %d: %s%s", good.client.code, good.server.code, good.client.stderr, good.server.stderr)
	}
	row := regexp.MustCompile(`(?m)^   write +65537 +100 +\d+\.\d\d +\d+\.\d\d +\d+\.\d{4} +\d+\.\d{6}  ok \(4\)$`)
	if !row.MatchString(good.client.stdout) || !row.MatchString(good.server.stdout) {
		t.Errorf("client:\n%s\nserver:\n%s", good.client.stdout, good.server.stdout)
	}
	var r rdma.Report
	doc := rdmaPair(t, "sweep", "-n", "200", "-s", "64", "-b", "--json", "-")
	if err := json.Unmarshal([]byte(doc.client.stdout), &r); err != nil || len(r.Rows) != 6 || r.Outcome.Status != "ok" || r.Client == nil || r.Server == nil || r.Rows[0].Directions == nil {
		t.Errorf("%v: %+v", err, r)
	}
}

type rdmaEnds struct{ client, server finished }

// rdmaPair runs serve --once and the client's command beside each other.
func rdmaPair(t *testing.T, args ...string) rdmaEnds {
	t.Helper()
	t.Setenv(launch.EnvToken, rdmaTestToken)
	out, errs := newScreen(), newScreen()
	code := make(chan int, 1)
	go func() { code <- run([]string{"commprobe", "rdma", "serve", "127.0.0.1:0", "--once"}, out, errs) }()
	invitation := regexp.MustCompile(`(?m)^commprobe rdma sweep (127\.0\.0\.1:\d+)$`)
	if !eventually(patience, func() bool { return invitation.MatchString(out.String()) }) {
		t.Fatalf("serve: %s%s", out, errs)
	}
	addr := invitation.FindStringSubmatch(out.String())[1]
	var e rdmaEnds
	e.client = inProcess(append([]string{"rdma", args[0], addr}, args[1:]...)...)
	e.server = finished{<-code, out.String(), errs.String()}
	return e
}
