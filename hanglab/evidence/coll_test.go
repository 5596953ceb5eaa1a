package evidence

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// readNCCL feeds lines to a reader and gives its communicators and facts.
func readNCCL(text string) ([]*Comm, []Fact) {
	var facts []Fact
	c := newCollReader(func(f Fact) { facts = append(facts, f) })
	n := 0
	for line := range strings.Lines(text) {
		n++
		c.line([]byte(strings.TrimRight(line, "\n")), Where{"a.log", n})
	}
	return c.finish(), facts
}

func callsText(x *Comm) string {
	var b strings.Builder
	for _, c := range x.Calls {
		fmt.Fprintf(&b, "%d:%s#%x %d %s %s %d; ", c.Line, c.Op, c.OpCount, c.Count, c.DType, c.RedOp, c.Root)
	}
	return strings.TrimSuffix(b.String(), "; ")
}

func TestCollCalls(t *testing.T) {
	const line = "node-a:10:10 [1] NCCL INFO AllReduce: opCount 1f sendbuff 0x7f00 recvbuff (nil) count 512 datatype 7 op 0 root 0 comm 0x55 [nranks=4] stream 0x1"
	for _, tt := range []struct{ name, text, want string }{
		{"plain", line, "1:all_reduce#1f 512 float sum 0"},
		{"place in the source in front", strings.Replace(line, "AllReduce", "enqueue.cc:77 (ncclEnqueueCheck) AllReduce", 1), "1:all_reduce#1f 512 float sum 0"},
		{"old %zi without nranks", strings.Replace(line, " [nranks=4] stream 0x1", "", 1), "1:all_reduce#1f 512 float sum 0"},
		{"srun -l", "3: " + line, "1:all_reduce#1f 512 float sum 0"},
		{"mpirun", "[1,3]<stderr>:" + line, "1:all_reduce#1f 512 float sum 0"},
		{"ray and a time", "(Worker pid=5, ip=1.2.3.4) 2026-01-02T03:04:05 " + line, "1:all_reduce#1f 512 float sum 0"},
		{"progress bar in front", "step 3: 10%|#  | 3/30\r" + line, "1:all_reduce#1f 512 float sum 0"},
		{"bfloat16, other operator and operation", strings.NewReplacer("AllReduce", "AlltoAll", "datatype 7 op 0", "datatype 9 op 17").Replace(line), "1:all_to_all#1f 512 bfloat16 17 0"},
		{"send: peer in root", strings.NewReplacer("AllReduce", "Send", "root 0", "root 3").Replace(line), "1:send#1f 512 float sum 3"},
		{"two records on a line", line + line, "1:all_reduce#1f 512 float sum 0; 1:all_reduce#1f 512 float sum 0"},
		{"torn before its communicator", line + "\nnode-a:10:10 [1] NCCL INFO AllGather: opCount 20 sendbuff 0x7f" + line,
			"1:all_reduce#1f 512 float sum 0; 2:all_gather#20 -1   -1; 2:all_reduce#1f 512 float sum 0"},
		{"no NCCL line at all", "nothing NCCL wrote: opCount 1", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			comms, _ := readNCCL(tt.text)
			got := ""
			for _, x := range comms {
				got += callsText(x)
				if x.Host != "node-a" || x.PID != 10 || x.Device != 1 || x.Pointer != "0x55" {
					t.Errorf("communicator of %s:%d, device %d, at %s", x.Host, x.PID, x.Device, x.Pointer)
				}
			}
			if got != tt.want {
				t.Errorf("calls\n got %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestCollJoin(t *testing.T) {
	const text = `h:7:7 [0] NCCL INFO NCCL version 2.27.3+cuda12.9
h:7:7 [0] NCCL INFO NCCL_ALGO set by environment to Tree
h:7:7 [0] NCCL INFO ncclCommInitRank comm 0xaa rank 2 nranks 4 cudaDev 0 nvmlDev 0 busId 60 commId 0x1234 - Init START
h:7:7 [0] NCCL INFO comm 0xaa rank 2 nRanks 4 nNodes 2 localRanks 2 localRank 0 MNNVL 0
h:7:7 [0] NCCL INFO ncclCommInitRank comm 0xaa rank 2 nranks 4 cudaDev 0 nvmlDev 0 busId 60 commId 0x1234 - Init COMPLETE
h:7:7 [0] NCCL INFO AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x1 count 1 datatype 7 op 0 root 0 comm 0xaa [nranks=4] stream (nil)
h:7:7 [0] NCCL INFO ncclCommSplit comm 0xbb rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 60 parent 0xaa splitCount 1 color 3 key 1- Init START
h:7:7 [0] NCCL INFO [Service thread] Connection closed by localRank 1
h:7:7 [0] NCCL INFO init.cc:9 (commReclaim) comm 0xaa rank 2 nranks 4 cudaDev 0 busId 60 - Abort COMPLETE
h:7:7 [0] NCCL INFO [Rank 0] ncclCommInitRank comm 0xaa rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 60 commId 0x99 - Init START
`
	comms, facts := readNCCL(text)
	want := []*Comm{
		{Where: Where{"a.log", 3}, Host: "h", PID: 7, Pointer: "0xaa", ID: "0x1234", BusID: "0000:00:06.0", Rank: 2, NRanks: 4, Global: -1, LocalRank: 0, Nodes: 2, Ended: "aborted", EndedLine: 9,
			Calls: []CommCall{{Line: 6, Op: "all_reduce", Count: 1, DType: "float", RedOp: "sum"}}},
		{Where: Where{"a.log", 7}, Host: "h", PID: 7, Pointer: "0xbb", BusID: "0000:00:06.0", Rank: 1, NRanks: 2, Global: -1, LocalRank: -1, Parent: "0xaa", InitOnly: true},
		{Where: Where{"a.log", 10}, Host: "h", PID: 7, Pointer: "0xaa", ID: "0x99", BusID: "0000:00:06.0", Rank: 0, NRanks: 1, Global: -1, LocalRank: -1, InitOnly: true},
	}
	for i := range comms {
		if i == 0 && comms[i].Version != "2.27.3" {
			t.Errorf("version %q", comms[i].Version)
		}
		comms[i].Version, comms[i].Settings = "", nil
	}
	if diff := cmp.Diff(want, comms); diff != "" {
		t.Error(diff)
	}
	e := &Evidence{Comms: comms, Facts: facts}
	joinNCCL(e)
	kinds := ""
	for _, f := range e.Facts {
		kinds += fmt.Sprintf("%s rank %d group %s/%d ranks %v; ", f.Kind, f.Rank, f.Group, f.GroupRank, f.Ranks)
	}
	wantKinds := "init_begun rank 2 group 0x1234/2 ranks []; init_done rank 2 group 0x1234/2 ranks []; init_begun rank 2 group 0xbb/1 ranks []; " +
		"peer_closed rank 2 group /-1 ranks [3]; init_begun rank 2 group 0x99/0 ranks []; "
	if kinds != wantKinds {
		t.Errorf("facts\n got %s\nwant %s", kinds, wantKinds)
	}
}

func TestCollWarnings(t *testing.T) {
	const old, stamped, newer = "\nn1:20:31 [3] %s NCCL WARN %s", "[2026-01-02 10:24:28] n1:20:31 [3] %s NCCL WARN %s", "n1:20:31 [3] %s (function) NCCL WARN %s"
	type want struct {
		Kind    FactKind
		Code    int
		Ranks   []int
		Detail  string
		Follows bool
	}
	for _, tt := range []struct {
		text string
		want want
	}{
		{"NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129", want{IBError, 12, nil, "RETRY_EXC_ERR, vendor error 129", false}},
		{"NET/IB : Got completion from peer 192.0.2.7<4791> with status=5 opcode=0 len=0 vendor err 249 (Recv) localGid fd00::1 remoteGidsfd00::2 hca mlx5_2",
			want{IBError, 5, nil, "WR_FLUSH_ERR, peer 192.0.2.7<4791>, vendor error 249, device mlx5_2", true}},
		{"NET/IB: Got completion from peer 192.0.2.7<4791> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) reqSize=4 vendor_err=129",
			want{IBError, 12, nil, "RETRY_EXC_ERR, peer 192.0.2.7<4791>, vendor error 129", false}},
		{"socketProgress: Connection closed by remote peer node9<40404>", want{PeerClosed, -1, nil, "node9<40404>", false}},
		{"Net : Connection closed by remote peer vm-3<999>", want{PeerClosed, -1, nil, "vm-3<999>", false}},
		{"[Service thread] Could not receive type from localRank 5, res=6, closed=1", want{PeerClosed, 6, nil, "localRank 5", false}},
		{"NET/IB : req 0/1 tag 7 peer 192.0.2.3<50000> collective mismatch error, local size 81920 remote size 4096",
			want{Mismatch, -1, nil, "local size 81920 remote size 4096, peer 192.0.2.3<50000>", false}},
		{"Mismatched collective detected, please check your collective calls at and around rank 17. You can use …", want{Mismatch, -1, []int{17}, "different calls", false}},
		{"Message truncated : received 2048 bytes instead of 1024", want{Mismatch, -1, nil, "truncated message: 2048 bytes instead of 1024", false}},
		{"NET/Socket : peer 192.0.2.9<3> message truncated : receiving 64 bytes instead of 32",
			want{Mismatch, -1, nil, "truncated message: 64 bytes instead of 32, peer 192.0.2.9<3>", false}},
		{"Mismatched NCCL version detected : rank 0 version 22304 rank 6 version 21805", want{Version, -1, []int{0, 6}, "rank 0: 2.23.4, rank 6: 2.18.5", false}},
		{"Duplicate GPU detected : rank 4 and rank 0 both on CUDA device 1c000", want{NCCLWarn, -1, []int{4, 0}, "duplicate GPU 1c000", false}},
		{"Cuda failure 'out of memory'", want{CUDAOOM, -1, nil, "out of memory", false}},
		{"Cuda failure 2 'out of memory'", want{CUDAOOM, 2, nil, "out of memory", false}},
		{"Cuda failure 719 'unspecified launch failure'", want{CUDAError, 719, nil, "unspecified launch failure", false}},
		{"NET/IB : mlx5_1:1 Got async error event: port error", want{LinkDown, -1, nil, "port error, device mlx5_1:1", false}},
		{"NET/IB : Got async event : port error", want{LinkDown, -1, nil, "port error", false}},
		{"NET/IB : mlx5_1:1 async fatal event on QP (0xabc): invalid request", want{IBError, -1, nil, "fatal event, device mlx5_1:1", false}},
		{"socketStartConnect: Connect to 192.0.2.5<33000> failed : Software caused connection abort", want{NCCLWarn, -1, nil, "peer 192.0.2.5<33000>", false}},
		{"NET/IB : mlx5_1:1 Got non-fatal async event: port error(10)", want{LinkDown, -1, nil, "port error, device mlx5_1:1", false}},
		{"NET/IB : mlx5_1:1 Got non-fatal async event: port active(9)", want{LinkUp, -1, nil, "port active, device mlx5_1:1", false}},
		{"NET/IB : mlx5_1:1 Got non-fatal async event: LID change(11)", want{NCCLWarn, -1, nil, "event without consequences, device mlx5_1:1", false}},
		{"NET/IB : mlx5_1:1 GID table changed", want{NCCLWarn, -1, nil, "", false}},
		{"Bootstrap : no socket interface found", want{Setup, -1, nil, "interface: Bootstrap : no socket interface found", false}},
		{"Error while creating shared memory segment /dev/shm/nccl-0Qx (size 9637888)",
			want{Setup, -1, nil, "shared memory: Error while creating shared memory segment /dev/shm/nccl-0Qx (size 9637888)", false}},
		{"Call to ibv_reg_mr failed with error Cannot allocate memory", want{Setup, -1, nil, "memory lock: Call to ibv_reg_mr failed with error Cannot allocate memory", false}},
	} {
		for _, form := range []string{old, stamped, newer} {
			_, facts := readNCCL(fmt.Sprintf(form, "transport/net_ib.cc:1295", tt.text))
			if len(facts) != 1 {
				t.Errorf("%s: %d facts", tt.text, len(facts))
				continue
			}
			f := facts[0]
			if diff := cmp.Diff(tt.want, want{f.Kind, f.Code, f.Ranks, f.Detail, f.Consequence}); diff != "" {
				t.Errorf("%s: %s", tt.text, diff)
			}
			if f.Host != "n1" || f.PID != 20 || f.Op != "transport/net_ib.cc:1295" {
				t.Errorf("%s: host %q, process %d, place %q", tt.text, f.Host, f.PID, f.Op)
			}
			if stamp := time.Date(2026, 1, 2, 10, 24, 28, 0, time.UTC); form == stamped && !f.Time.Equal(stamp) {
				t.Errorf("%s: time %v", tt.text, f.Time)
			}
		}
	}
}

func TestCollBounded(t *testing.T) {
	var facts []Fact
	c := newCollReader(func(f Fact) { facts = append(facts, f) })
	const n = 3*commCallsEnd + 17
	for i := range n {
		line := fmt.Sprintf("h:1:1 [0] NCCL INFO AllReduce: opCount %x sendbuff 0x1 recvbuff 0x1 count %d datatype 7 op 0 root 0 comm 0x5 [nranks=2] stream 0x1", i, i)
		c.line([]byte(line), Where{"a", i + 1})
	}
	x := c.finish()[0]
	if len(x.Calls) != 2*commCallsEnd || x.Left != n-2*commCallsEnd {
		t.Fatalf("%d calls kept and %d left out of %d", len(x.Calls), x.Left, n)
	}
	for i, call := range x.Calls {
		want := int64(i)
		if i >= commCallsEnd {
			want += int64(x.Left)
		}
		if call.Count != want || call.OpCount != want {
			t.Fatalf("call %d has count %d, want %d", i, call.Count, want)
		}
	}
}

func TestCollDifferences(t *testing.T) {
	var text strings.Builder
	for rank := range 4 {
		version, algo := "2.28.9", "Ring"
		if rank == 2 {
			version, algo = "2.27.3", "Tree"
		}
		fmt.Fprintf(&text, "h%d:5:5 [0] NCCL INFO NCCL version %s+cuda13.0\nh%d:5:5 [0] NCCL INFO NCCL_ALGO set by environment to %s\n", rank, version, rank, algo)
		fmt.Fprintf(&text, "h%d:5:5 [0] NCCL INFO ncclCommInitRank comm 0xaa rank %d nranks 4 cudaDev 0 nvmlDev 0 busId 60 commId 0x1 - Init COMPLETE\n", rank, rank)
	}
	comms, _ := readNCCL(text.String())
	e := &Evidence{Comms: comms}
	joinNCCL(e)
	got := ""
	for _, f := range e.Facts {
		got += fmt.Sprintf("%s %s %v %s\n", f.Kind, f.Op, f.Ranks, f.Detail)
	}
	want := "nccl_version NCCL [2] 2.28.9: ranks 0-1,3; 2.27.3: ranks 2\nenv_differs NCCL_ALGO [2] Ring: ranks 0-1,3; Tree: ranks 2\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// TestCollShared reads NCCL's logs of real runs: calls of the two ranks, and what ended.
func TestCollShared(t *testing.T) {
	files, err := filepath.Glob("../../../shared/data/torch_nccl/*/nccl.*.log")
	if err != nil || len(files) == 0 {
		t.Skip("no folder with the real runs here")
	}
	want := map[string]string{
		"control": "9+9", "size": "7+7", "skip": "7+7", "skip_same": "9+8", "op": "8+7", "stuck": "7+6", "exit": "7+6", "lazy_skip": "2+1",
	}
	counts := make(map[string][]int)
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		comms, _ := readNCCL(string(raw))
		dir := filepath.Base(filepath.Dir(name))
		if len(comms) != 1 || comms[0].NRanks != 2 || comms[0].ID == "" {
			t.Errorf("%s: %d communicators", name, len(comms))
			continue
		}
		for len(counts[dir]) < 2 {
			counts[dir] = append(counts[dir], -1)
		}
		counts[dir][comms[0].Rank] = len(comms[0].Calls)
	}
	for dir, w := range want {
		if got := fmt.Sprintf("%d+%d", counts[dir][0], counts[dir][1]); got != w {
			t.Errorf("%s: %s calls, want %s", dir, got, w)
		}
	}
}

func FuzzColl(f *testing.F) {
	f.Add("h:1:1 [0] NCCL INFO AllReduce: opCount 1 sendbuff 0x1 recvbuff 0x1 count 1 datatype 7 op 0 root 0 comm 0x5 [nranks=2] stream 0x1\n")
	f.Add("h:1:1 [0] NCCL INFO ncclCommInitRank comm 0xaa rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 60 commId 0x1 - Init COMPLETE\n")
	f.Add("[2026-01-02 10:24:28] n1:20:31 [3] a.cc:1 NCCL WARN NET/IB : Got completion from peer 1.2.3.4<1> with status=A(12) vendor_err=1\n")
	f.Add("h:1:1 [0] NCCL INFO AllReduce: opCount 1 sendbufh:1:1 [0] NCCL INFO [Service thread] Connection closed by localRank 9\n")
	f.Fuzz(func(t *testing.T, text string) {
		comms, facts := readNCCL(text)
		e := &Evidence{Comms: comms, Facts: facts}
		joinNCCL(e)
		for _, f := range e.Facts {
			if f.Kind == "" || len(f.Text) > 1200 {
				t.Errorf("fact %+v", f)
			}
		}
	})
}

func BenchmarkColl(b *testing.B) {
	var text bytes.Buffer
	for i := range 20000 {
		rank := i % 8
		fmt.Fprintf(&text, "node-a:%d:%d [%d] NCCL INFO AllReduce: opCount %x sendbuff 0x7f73da76b57e recvbuff 0x7f73da76b57e count 9984512 datatype 7 op 0 root 0 comm 0x55bef020137%d [nranks=8] stream 0x55bef0208bd0\n",
			5000+rank, 5000+rank, rank, i/8, rank)
	}
	raw := text.Bytes()
	b.SetBytes(int64(len(raw)))
	for b.Loop() {
		c := newCollReader(func(Fact) {})
		rest, n := raw, 0
		for len(rest) > 0 {
			i := bytes.IndexByte(rest, '\n')
			n++
			c.line(rest[:i], Where{"a", n})
			rest = rest[i+1:]
		}
		c.finish()
	}
}
