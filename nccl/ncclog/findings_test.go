package ncclog_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/commprobe/commprobe/nccl/ncclog"
)

const (
	fault = ncclog.Fault
	odd   = ncclog.Odd
	note  = ncclog.Info
)

// rankLog writes the log of one rank of a made-up job, 2.27 form, in which nothing is wrong.
type rankLog struct {
	host          string
	rank, of      int
	nodes         int    // 0: the line is left out
	local, dev    int    // ranks on the host, and which of them
	net           string // "Using network"; "" IB
	version       string // "" 2.27.7
	nic           string // the line after "NET/IB : "; "" two IB ports
	early         []string
	mid           []string // before Init COMPLETE
	late          []string
	noEnd, noInit bool // stops before Init COMPLETE; stops before Init START
	noBoot        bool // stops before the bootstrap is through
	addr, ifname  string
	coll, nvls    int // channels; 0 and 0: 16 and 0
	waited        int // seconds in the bootstrap
	driver        int
	pid           int
}

func (r rankLog) String() string {
	or := func(s, d string) string {
		if s == "" {
			return d
		}
		return s
	}
	pid := 1000 + r.rank
	if r.pid > 0 {
		pid = r.pid
	}
	var b strings.Builder
	put := func(format string, args ...any) {
		fmt.Fprintf(&b, "%s:%d:%d [%d] NCCL INFO "+format+"\n", append([]any{r.host, pid, pid, r.dev}, args...)...)
	}
	all := func(lines []string) {
		for _, l := range lines {
			switch {
			case strings.HasPrefix(l, "WARN "): // WARN file:line text
				place, text, _ := strings.Cut(l[5:], " ")
				fmt.Fprintf(&b, "\n%s:%d:%d [%d] %s NCCL WARN %s\n", r.host, pid, pid, r.dev, place, text)
			case strings.HasPrefix(l, "RAW "):
				b.WriteString(l[4:] + "\n")
			default:
				put("%s", l)
			}
		}
	}
	driver := 12080
	if r.driver > 0 {
		driver = r.driver
	}
	put("cudaDriverVersion %d", driver)
	put("NCCL version %s+cuda12.8", or(r.version, "2.27.7"))
	addr := or(r.addr, fmt.Sprintf("10.0.0.%d", 10+int(r.host[len(r.host)-1])))
	put("Bootstrap: Using %s:%s<0>", or(r.ifname, "eth0"), addr)
	all(r.early)
	if nic := or(r.nic, "Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:"+addr+"<0>"); nic != "-" {
		put("NET/IB : %s", nic)
	}
	put("Using network %s", or(r.net, "IB"))
	if r.noInit {
		return b.String()
	}
	id := fmt.Sprintf("comm 0x55%04x rank %d nranks %d cudaDev %d nvmlDev %d busId %d000 commId 0xabc123", r.rank, r.rank, r.of, r.dev, r.dev, r.dev+1)
	put("ncclCommInitRank %s - Init START", id)
	if r.noBoot {
		return b.String()
	}
	put("Bootstrap timings total %d.01 (create 0.00, send 0.00, recv %d.01, ring 0.00, delay 0.00)", r.waited, r.waited)
	if r.nodes > 0 {
		put("comm 0x55%04x rank %d nRanks %d nNodes %d localRanks %d localRank %d MNNVL 0", r.rank, r.rank, r.of, r.nodes, r.local, r.dev)
	}
	all(r.mid)
	coll := 16
	if r.coll > 0 {
		coll = r.coll
	}
	put("%d coll channels, %d collnet channels, %d nvls channels, %d p2p channels, 2 p2p channels per peer", coll, coll, r.nvls, coll)
	if r.noEnd {
		return b.String()
	}
	put("ncclCommInitRank %s - Init COMPLETE", id)
	all(r.late)
	return b.String()
}

// pair is a job of two nodes with a rank each; edit changes both ranks.
func pair(edit func(r *rankLog)) string {
	a, b := rankLog{host: "node-a", rank: 0, of: 2, nodes: 2, local: 1}, rankLog{host: "node-b", rank: 1, of: 2, nodes: 2, local: 1}
	if edit != nil {
		edit(&a)
		edit(&b)
	}
	return a.String() + b.String()
}

// node is a job of two ranks on one host.
func node(edit func(r *rankLog)) string {
	a, b := rankLog{host: "node-a", rank: 0, of: 2, nodes: 1, local: 2}, rankLog{host: "node-a", rank: 1, of: 2, nodes: 1, local: 2, dev: 1}
	if edit != nil {
		edit(&a)
		edit(&b)
	}
	return a.String() + b.String()
}

func early(lines ...string) func(*rankLog) { return func(r *rankLog) { r.early = lines } }
func mid(lines ...string) func(*rankLog)   { return func(r *rankLog) { r.mid = lines } }
func late(lines ...string) func(*rankLog)  { return func(r *rankLog) { r.late = lines } }

// only makes an edit of one rank.
func only(rank int, edit func(*rankLog)) func(*rankLog) {
	return func(r *rankLog) {
		if r.rank == rank {
			edit(r)
		}
	}
}

// both joins edits.
func both(edits ...func(*rankLog)) func(*rankLog) {
	return func(r *rankLog) {
		for _, e := range edits {
			e(r)
		}
	}
}

func findingsIn(t *testing.T, text string) []ncclog.Finding {
	t.Helper()
	l, err := ncclog.Read(strings.NewReader(text), "job.log")
	if err != nil {
		t.Fatal(err)
	}
	return l.Findings()
}

func get(all []ncclog.Finding, id string) *ncclog.Finding {
	for i := range all {
		if all[i].ID == id {
			return &all[i]
		}
	}
	return nil
}

func list(all []ncclog.Finding) string {
	var b strings.Builder
	for _, x := range all {
		fmt.Fprintf(&b, "  [%s effect=%v of=%s] %s: %s\n", x.Severity, x.Effect, x.Of, x.ID, x.Title)
	}
	return b.String()
}

// example is a finding with a log that has it and one that nearly has it.
type example struct {
	id       string
	severity string
	yes      string
	words    []string // parts of the title
	no       string
}

func TestFindings(t *testing.T) {
	covered := map[string]bool{}
	for _, set := range [][]example{warnExamples(), ibExamples(), jobExamples(), netExamples(), nodeExamples(), stateExamples()} {
		for _, x := range set {
			covered[x.id] = true
			t.Run(x.id, func(t *testing.T) {
				all := findingsIn(t, x.yes)
				got := get(all, x.id)
				if got == nil {
					t.Fatalf("not found; found:\n%slog:\n%s", list(all), x.yes)
				}
				if got.Severity != x.severity {
					t.Errorf("severity %s, want %s", got.Severity, x.severity)
				}
				for _, w := range x.words {
					if !strings.Contains(got.Title, w) {
						t.Errorf("title lacks %q: %s", w, got.Title)
					}
				}
				checkFinding(t, *got, x.yes)
				if x.no == "" {
					t.Fatal("an example without a near miss proves little")
				}
				if all := findingsIn(t, x.no); get(all, x.id) != nil {
					t.Errorf("found in the near miss: %s\nlog:\n%s", get(all, x.id).Title, x.no)
				}
			})
		}
	}
	for _, id := range allIDs(t) {
		if !covered[id] {
			t.Errorf("finding %s has no example", id)
		}
	}
}

// checkFinding holds for every finding: it rests on lines that are there.
func checkFinding(t *testing.T, x ncclog.Finding, text string) {
	t.Helper()
	lines := strings.Split(text, "\n")
	if len(x.Evidence) == 0 {
		t.Errorf("%s rests on no line", x.ID)
	}
	for _, e := range x.Evidence {
		if e.N < 1 || e.N > len(lines) || e.File == "" {
			t.Errorf("%s: evidence %s:%d is not in the log of %d lines", x.ID, e.File, e.N, len(lines))
		} else if e.Text == "" {
			t.Errorf("%s: evidence %s:%d has no text", x.ID, e.File, e.N)
		}
	}
	if x.Next == "" && x.Fix == "" && !x.Effect {
		t.Errorf("%s says neither what to check nor what to do", x.ID)
	}
	for _, s := range []string{x.Title, x.Cost, x.Next, x.Fix} {
		if strings.ContainsAny(s, "{}") && !strings.Contains(s, "<") || strings.Contains(s, "%!") || strings.Contains(s, "  ") {
			t.Errorf("%s: template not filled: %s", x.ID, s)
		}
	}
}

var idLiteral = regexp.MustCompile(`"([a-z0-9]+(?:-[a-z0-9]+)+)"`)

// allIDs reads them from the source, so that a new finding cannot come without an example.
func allIDs(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("findings*.go")
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range idLiteral.FindAllStringSubmatch(string(text), -1) {
			if m[1] != "oom-kill" && m[1] != "aws-ofi-nccl" && !slices.Contains(ids, m[1]) { // these are words to look for
				ids = append(ids, m[1])
			}
		}
	}
	if len(ids) < 100 {
		t.Fatalf("found only %d ids in the source", len(ids))
	}
	return ids
}

// A job in which nothing is wrong has no finding at all.
func TestFindingsHealthy(t *testing.T) {
	for name, text := range map[string]string{
		"two nodes": pair(late("Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA", "Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/1/GDRDMA")),
		"one node":  node(late("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM")),
		"sockets on one node": node(func(r *rankLog) {
			r.net, r.nic = "Socket", "No device found."
			r.early = []string{"NET/Socket : Using [0]eth0:10.0.0.5<0> [1]docker0:172.17.0.1<0>", "NET/Plugin: Could not find: libnccl-net.so"}
		}),
		"empty":      "",
		"not a log":  "hello\nworld\n",
		"only calls": "node-a:1:1 [0] NCCL INFO AllReduce: opCount 5 sendbuff 0x1 recvbuff 0x2 count 8 datatype 7 op 0 root 0 comm 0x55 [nranks=2] stream 0x9\n",
	} {
		if all := findingsIn(t, text); len(all) > 0 {
			t.Errorf("%s:\n%s", name, list(all))
		}
	}
}

// What is wrong with the network must not be held against a job of one node.
func TestFindingsOneNode(t *testing.T) {
	text := node(both(func(r *rankLog) {
		r.ifname, r.addr, r.nic = "docker0", "172.17.0.1", "Using [0]mlx5_0:1/IB [1]mlx5_8:1/RoCE [RO]; OOB docker0:172.17.0.1<0>"
		r.late = []string{"NCCL_PXN_DISABLE set by environment to 0", "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", "NET/Socket : Using [0]docker0:172.17.0.1<0> [1]eth0:172.17.0.2<0>"}
	}, early("WARN int:166 NET/OFI Initializing plugin failed", "WARN graph/topo.cc:7 Detected mixed local Net device counts across ranks (min 3, max 4). Set NCCL_IGNORE_NET_MISMATCH=1 to ignore")))
	all := findingsIn(t, text)
	if len(all) == 0 {
		t.Fatal("nothing found at all: the lines were not read")
	}
	for _, x := range all {
		if x.Severity != note {
			t.Errorf("%s %s: %s", x.Severity, x.ID, x.Title)
		}
	}
}

// Causes stand before what follows from them, whatever the order of lines and files.
func TestFindingsOrder(t *testing.T) {
	tests := []struct {
		name, text string
		want       []string // ids in this order
		cause      string   // of the effects
	}{
		{"full /dev/shm", pair(only(0, both(func(r *rankLog) { r.noEnd = true }, mid(
			"WARN proxy.cc:1519 [Proxy Service 0] Failed to execute operation Connect from rank 0, retcode 2",
			"WARN misc/shmutils.cc:71 Error: failed to extend /dev/shm/nccl-AbCdEf to 9637892 bytes, error: No space left on device (28)",
			"WARN misc/socket.cc:49 socketProgress: Connection closed by remote peer node-b<4242>")))),
			[]string{"shm-full", "peer-closed", "init-incomplete", "proxy-failed"}, "shm-full"},
		{"flush error", pair(late(
			"WARN transport/net_ib.cc:1 NET/IB : Got completion from peer 10.0.0.107<4242> with status=5 opcode=0 len=0 vendor err 249 (Recv)",
			"WARN transport/net_ib.cc:1 NET/IB : Got completion from peer 10.0.0.107<4242> with status=12 opcode=0 len=0 vendor err 129 (Send)")),
			[]string{"ib-retry-exceeded", "ib-flush"}, "ib-retry-exceeded"},
		{"port down", pair(both(only(0, late("WARN transport/net_ib.cc:1 NET/IB : Got completion from peer node-b<4242> with status=12 opcode=0 len=0 vendor err 129 (Send)")),
			only(1, late("WARN transport/net_ib.cc:93 NET/IB : Got async event : port error")))),
			[]string{"ib-port-error", "ib-retry-exceeded"}, "ib-port-error"},
		{"out of step", "node-a:1:1 [0] NCCL INFO AllReduce: opCount 5 sendbuff 0x1 recvbuff 0x2 count 8 datatype 7 op 0 root 0 comm 0x55 [nranks=2] stream 0x9\n" +
			"[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600050 milliseconds before timing out.\n" +
			"node-a:2:2 [1] NCCL INFO AllGather: opCount 5 sendbuff 0x1 recvbuff 0x2 count 8 datatype 7 op 0 root 0 comm 0x56 [nranks=2] stream 0x9\n",
			[]string{"coll-mismatch", "hang-after-init"}, "coll-mismatch"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			all := findingsIn(t, tt.text)
			var got []string
			for _, x := range all {
				if x.Severity == fault {
					got = append(got, x.ID)
				}
				if x.Effect && x.Of != tt.cause {
					t.Errorf("%s follows from %q, want %q", x.ID, x.Of, tt.cause)
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("faults %v, want %v\n%s", got, tt.want, list(all))
			}
			if len(all) == 0 || all[0].Effect {
				t.Error("the first finding is a consequence")
			}
		})
	}
}

// With time stamps the earlier of two faults of one kind stands first, also from a later file.
func TestFindingsByTime(t *testing.T) {
	r := ncclog.NewReader()
	for i, text := range []string{
		"\n[2026-01-02 10:00:09] node-a:1:1 [0] init.cc:1 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000\n",
		"\n[2026-01-02 10:00:01] node-b:2:2 [0] bootstrap.cc:48 NCCL WARN Bootstrap : no socket interface found\n",
	} {
		if err := r.Add(strings.NewReader(text), fmt.Sprintf("%d.log", i)); err != nil {
			t.Fatal(err)
		}
	}
	all := r.Finish().Findings()
	if len(all) != 2 || all[0].ID != "bootstrap-no-interface" {
		t.Errorf("want the earlier one first:\n%s", list(all))
	}
}

// The real logs of our own healthy runs, where the folder of inputs lies beside the repository.
func TestFindingsOwnRuns(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(sharedData(t), "nccltests_h200x2", "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no logs in nccltests_h200x2 (%v)", err)
	}
	for _, name := range files {
		warnings := 0
		all := findingsOf(t, name)
		for _, x := range all {
			if x.Severity == fault {
				t.Errorf("%s: fault in a healthy log: %s: %s", filepath.Base(name), x.ID, x.Title)
			}
			if x.Severity == odd {
				warnings++
			}
		}
		// Both logs with INFO lines were run with NVLS off, one with P2P off as well; that is what may be said.
		if warnings > 2 {
			t.Errorf("%s: %d warnings in a healthy log:\n%s", filepath.Base(name), warnings, list(all))
		}
	}
}

func findingsOf(t *testing.T, name string) []ncclog.Finding {
	t.Helper()
	in, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	l, err := ncclog.Read(in, filepath.Base(name))
	if err != nil {
		t.Fatal(err)
	}
	return l.Findings()
}

// sharedData is the folder of real inputs. Without it a test skips, except where CI must have it.
func sharedData(t *testing.T) string {
	t.Helper()
	dir := filepath.Join("..", "..", "..", "shared", "data")
	if _, err := os.Stat(dir); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%v: CI must have the real inputs", err)
		}
		t.Skipf("no real inputs in %s: run where the folder lies beside the repository", dir)
	}
	return dir
}

// FuzzFindings: whatever the log, a finding rests on lines of it, and a consequence never stands first.
func FuzzFindings(f *testing.F) {
	for _, set := range [][]example{warnExamples(), ibExamples(), jobExamples(), netExamples(), nodeExamples(), stateExamples()} {
		for _, x := range set {
			f.Add(x.yes)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		l, err := ncclog.Read(strings.NewReader(text), "job.log")
		if err != nil {
			t.Fatal(err)
		}
		all := l.Findings()
		lines := strings.Count(text, "\n") + 1
		for _, x := range all {
			if x.Severity != fault && x.Severity != odd && x.Severity != note || x.ID == "" || x.Title == "" || len(x.Evidence) == 0 {
				t.Errorf("incomplete: %+v", x)
			}
			for _, e := range x.Evidence {
				if e.N < 1 || e.N > lines {
					t.Errorf("%s rests on line %d of %d", x.ID, e.N, lines)
				}
			}
		}
		if len(all) > 0 && all[0].Effect && slices.ContainsFunc(all, func(x ncclog.Finding) bool { return x.Severity == fault && !x.Effect }) {
			t.Errorf("a consequence stands before its cause:\n%s", list(all))
		}
	})
}
