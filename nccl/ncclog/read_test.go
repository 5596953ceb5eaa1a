package ncclog

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func open(t *testing.T, paths ...string) *Log {
	t.Helper()
	l, err := Open(paths, strings.NewReader(""))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func read(t *testing.T, text string) *Log {
	t.Helper()
	l, err := Read(strings.NewReader(text), "t.log")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// The reports are without findings, which have tests of their own.
func TestReportGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.log")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d logs in testdata: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			var out bytes.Buffer
			if err := WriteReport(&out, open(t, file), nil); err != nil {
				t.Fatal(err)
			}
			golden(t, file[:len(file)-len(".log")]+".golden", out.Bytes())
		})
	}
}

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (-update rewrites it); got:\n%s", file, got)
	}
}

// equal compares one fact at a time, so that a failure names it.
func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func TestTwoNodes(t *testing.T) {
	l := open(t, "testdata/two_nodes_2.20.log")
	equal(t, "communicators", len(l.Comms), 1)
	c := l.Comms[0]
	equal(t, "id", c.ID, "77aa1100ccdd")
	equal(t, "ranks", []int{c.NRanks, len(c.Ranks)}, []int{4, 4})
	r := c.Ranks[1]
	equal(t, "host, pid, tid", []any{r.Process.Host, r.Process.PID, r.TID}, []any{"alpha", 1101, 1141})
	equal(t, "label", r.Process.Label, "[1,1]<stdout>:")
	equal(t, "GPU", []any{r.CudaDev, r.NvmlDev, r.BusID, r.Pointer}, []any{1, 5, "1c000", "0x56000001a000"})
	equal(t, "version", []any{r.Process.Version, l.Versions[0].NCCL, l.Versions[0].Bare, r.Process.Form}, []any{(*Fact[string])(nil), "2.20.3", true, "2.20"})
	equal(t, "driver", r.Process.Driver.Value, "12.4")
	equal(t, "bootstrap", []any{r.Process.Bootstrap.Interface, r.Process.Bootstrap.Addr}, []any{"ens3", "192.0.2.1"})
	equal(t, "bootstrap is at", r.Process.Bootstrap.At, Line{File: "testdata/two_nodes_2.20.log", N: 11, Text: "Bootstrap : Using ens3:192.0.2.1<0>"})
	equal(t, "NICs", len(r.Process.NICs), 2)
	equal(t, "merged NIC", []any{r.Process.NICs[0].Merged, r.Process.NICs[0].Link, r.Process.NICs[0].Relaxed}, []any{[]string{"mlx5_2", "mlx5_3"}, "RoCE", true})
	equal(t, "settings of rank 0", settings(c.Ranks[0].Process.Env), "NCCL_IB_HCA=mlx5 (echo) NCCL_IB_GID_INDEX=3 (environment)")
	equal(t, "settings of rank 3", settings(c.Ranks[3].Process.Env), "NCCL_IB_HCA=mlx5 (echo)")
	equal(t, "place", []int{r.NNodes, r.LocalRanks, r.LocalRank}, []int{2, 2, 1})
	equal(t, "GDR on", []any{r.GDR[0].Enabled, r.GDR[0].Path, r.GDR[0].LimitIs, *r.GDR[0].Read}, []any{true, "PXB", "PXB", 1})
	equal(t, "GDR off", []any{r.GDR[1].Enabled, r.GDR[1].Path, r.GDR[1].NIC, r.GDR[1].Read}, []any{false, "SYS", "1", (*int)(nil)})
	equal(t, "totals", *c.Ranks[2].Totals, Totals{2, 0, 0, 4, 2, c.Ranks[2].Totals.At})
	equal(t, "PXN send", c.Ranks[1].Edges[0], Edge{Channel: 0, Conn: 0, From: 1, To: 2, Transport: "NET", Via: "NET/IB/1(0)", Dir: "send", Net: "IB", NetDev: 1, ProxyRank: 0,
		At: Line{File: "testdata/two_nodes_2.20.log", N: 77}})
	equal(t, "SHM", []any{c.Ranks[2].Edges[1].Transport, c.Ranks[2].Edges[1].Conn, c.Ranks[2].Edges[1].NetDev}, []any{"SHM", -1, -1})
	equal(t, "GDR on a shared connection", []bool{c.Ranks[3].Edges[0].GDR, c.Ranks[3].Edges[0].Shared}, []bool{true, true})
	equal(t, "ring", c.Rings[1].Order, []int{0, 1, 2, 3})
	equal(t, "tree", []any{c.Trees[0].Root, c.Trees[0].Parent}, []any{0, []int{-1, 0, 0, 2}})
	equal(t, "state", r.State(), "ready")
	equal(t, "unknown", l.Counts.Unknown, []UnknownKind(nil))
}

func settings(list []Setting) string {
	var out []string
	for _, s := range list {
		out = append(out, fmt.Sprintf("%s=%s (%s)", s.Name, s.Value, s.From))
	}
	return strings.Join(out, " ")
}

func TestOldestForm(t *testing.T) {
	l := open(t, "testdata/socket_2.10.log")
	equal(t, "communicators", len(l.Comms), 1)
	c := l.Comms[0]
	equal(t, "id and ranks", []any{c.ID, c.NRanks, len(c.Ranks)}, []any{"", 2, 2})
	equal(t, "form", c.Ranks[1].Process.Form, "up to 2.14")
	equal(t, "bus", []string{c.Ranks[0].BusID, c.Ranks[1].BusID}, []string{"3b000", "4000"})
	equal(t, "network", c.Ranks[0].Network.Value, "Socket")
	equal(t, "sockets", c.Ranks[0].Process.SocketIfs[1].Interface, "docker0")
	equal(t, "roots", []int{c.Trees[0].Root, c.Trees[1].Root}, []int{0, 1})
	equal(t, "ends", []string{c.Ranks[0].State(), c.Ranks[1].State()}, []string{"destroy complete", "ready"})
	equal(t, "NVLS not printed", c.Ranks[0].Totals.NVLS, -1)
}

func TestTornRecords(t *testing.T) {
	l := open(t, "testdata/torn_2.27.log")
	equal(t, "communicators and processes", []int{len(l.Comms), len(l.Processes)}, []int{1, 4})
	c := l.Comms[0]
	equal(t, "ranks", len(c.Ranks), 4)
	equal(t, "bus of the torn record", c.Ranks[1].BusID, "2b000")
	if c.Ranks[1].Start == nil {
		t.Error("Init START of rank 1 is lost")
	}
	equal(t, "edges", []int{len(c.Ranks[0].Edges), len(c.Ranks[1].Edges), len(c.Ranks[2].Edges), len(c.Ranks[3].Edges)}, []int{1, 1, 1, 1})
	equal(t, "timings of rank 0", []float64{c.Ranks[0].Init.Total, c.Ranks[0].Init.Alloc}, []float64{1.5, 0.3})
	equal(t, "timings of rank 2", []float64{c.Ranks[2].Init.Total, c.Ranks[2].Init.Alloc}, []float64{1.6, 0.4})
	equal(t, "the file is cut", l.Files[0].Cut, true)
}

func TestPasted(t *testing.T) {
	l := open(t, "testdata/pasted_2.24.log")
	p := l.Processes[0]
	equal(t, "processes", []any{len(l.Processes), p.Host, p.PID}, []any{1, "", 0})
	equal(t, "version", []any{p.Version.Value, p.CUDABuild, len(l.Versions)}, []any{"2.24.3", "12.6", 1})
	equal(t, "plugins", []string{p.Plugins[0].Name, p.Plugins[1].Name}, []string{"NCCL RDMA Plugin v8 (v8)", "IBext_v8"})
	equal(t, "library", p.Libraries[0].Path, "/opt/plugins/libnccl-net.so")
	equal(t, "SHARP", []any{p.NICs[1].Name, p.NICs[1].Link, p.NICs[1].SHARP}, []any{"ibp1", "IB", true})
	equal(t, "program's config", settings(l.Comms[0].Ranks[0].Config), "Blocking=1 (program)")
	equal(t, "bootstrap timings", l.Comms[0].Ranks[0].Bootstrap.Recv, 0.605137)
	if len(l.Counts.Unknown) != 1 || l.Counts.Unknown[0].Count != 2 || l.Counts.Unknown[0].First.N != 14 {
		t.Errorf("unknown: %+v, want one kind, twice, first at line 14", l.Counts.Unknown)
	}
}

func TestErrors(t *testing.T) {
	l := open(t, "testdata/errors_2.28.log")
	var ids []string
	for _, w := range l.Warnings {
		ids = append(ids, w.ID)
	}
	equal(t, "warnings", ids, []string{"ib-port-event", "ib-retry", "ib-flush", "ib-local-protection", "ib-rnr", "shm-full", ""})
	equal(t, "time", l.Warnings[1].At.Time, "2026-03-04 05:06:09")
	equal(t, "place and peer", []string{l.Warnings[1].Place, l.Warnings[1].Peer}, []string{"transport/net_ib.cc:2380", "192.0.2.12<44206>"})
	e := l.Processes[0].IBErrors
	equal(t, "event", []any{e[0].Kind, e[0].HCA, e[0].Port, e[0].Event, e[0].Fatal}, []any{"event", "mlx5_0", 1, "port error", false})
	equal(t, "completion", []any{e[1].Status, e[1].StatusName, e[1].VendorErr, e[1].Request, e[1].HCA, e[1].RemoteGID}, []any{12, "RETRY_EXC", 129, "Send", "mlx5_0", "::ffff:192.0.2.12"})
	old := l.Processes[1].IBErrors
	equal(t, "old wording", []any{old[0].Status, old[0].VendorErr, old[0].Opcode, old[0].Len, old[0].Peer}, []any{4, 81, 2, int64(1), "ca1<37948>"})
	equal(t, "new wording", []any{old[1].Status, old[1].StatusName, old[1].VendorErr, old[1].Request}, []any{13, "RNR_RETRY_EXC_ERR", 7, "Recv"})
	equal(t, "traces", []any{len(l.Processes[0].Traces), l.Processes[0].Traces[1].Place, l.Processes[0].Traces[1].Count}, []any{3, "proxy.cc:694", 2})
	equal(t, "connection", l.Processes[0].QPs[0], QP{Dev: 0, Port: 1, MTU: 1024, GID: 3, Count: 2, At: l.Processes[0].QPs[0].At})
	equal(t, "NIC", []any{l.Processes[0].NICs[0].SpeedMbps, *l.Processes[0].NICs[0].Adaptive, len(l.Processes[0].NICs)}, []any{200000, true, 2})
	equal(t, "retries", []any{l.Processes[1].Retries[0].Peer, l.Processes[1].Retries[0].Reason, l.Processes[1].Retries[0].Count}, []any{"192.0.2.11", "Connection refused", 2})
	equal(t, "program", []any{len(l.Failures), l.Failures[0].Kind}, []any{1, "watchdog"})
}

func TestTuning(t *testing.T) {
	l := open(t, "testdata/tuning_2.28.log")
	c := l.Comms[0]
	equal(t, "estimates", len(c.Tuning), 18)
	i := slices.IndexFunc(c.Tuning, func(x TuningCell) bool { return x.Func == "ReduceScatter" && x.Algo == "Ring" && x.Proto == "LL128" })
	equal(t, "estimate behind another thread's line", []float64{c.Tuning[i].LatencyUS, c.Tuning[i].BWGBs}, []float64{15.9, 662.4})
	equal(t, "threads", c.MaxThreads[1], TuningMax{"Tree", "LL128", 640})
	equal(t, "matrix", []any{len(c.Matrix), c.Matrix[7].Func, c.Matrix[7].Proto, c.Matrix[7].State, c.Matrix[11].Algo, c.Matrix[11].State}, []any{12, "AllReduce", "LL128", 0, "NVLS", 0})
	var chosen []string
	for _, s := range c.Selections {
		chosen = append(chosen, fmt.Sprintf("%s/%s %d: %s%s %d x%d", s.Func, s.Kind, s.Bytes, s.Algo+s.Proto, s.Kernel, s.Channels, s.Count))
	}
	equal(t, "choices", chosen, []string{"AllReduce/ 8: RingLL 1 x2", "AllReduce/ 1048576: NVLSTreeSimple 24 x1", "AllReduce/Symmetric 65536: AllReduce_RSxLD_AGxST 16 x1",
		"AllGather/Copy Engine 33554432:  0 x1", "/ 262144: TreeLL128 0 x1"})
	equal(t, "ring from neighbours", c.Rings[0].Order, []int{0, 1})
	equal(t, "tree from GRAPH", c.Trees[0].Parent, []int{-1, 0})
	s := l.Processes[0].System
	equal(t, "topology", []any{len(s.Links), s.Links[1].From, s.Links[1].To, s.Links[2].From, s.Links[2].BW}, []any{3, "GPU/0-60", "NVS/0-0", "CPU/0-0", 0.2})
	m := c.Mismatches
	equal(t, "mismatch", []any{len(m), m[0].N, m[0].Rank, m[0].Call.Op, m[0].Ref, m[0].Want.Op, m[0].Same}, []any{1, 1, 1, "AllReduce", 0, "Broadcast", []int{0}})
	equal(t, "calls", []int{c.Ranks[0].Calls.Collectives, c.Ranks[0].Calls.P2P, c.Ranks[0].Calls.LastOf.N}, []int{2, 1, 1})
}

func TestSplits(t *testing.T) {
	l := open(t, "testdata/split_2.27.log")
	equal(t, "communicators", len(l.Comms), 3)
	for i, color := range []int{0, 1} {
		c := l.Comms[i+1]
		equal(t, "parent, size, color", []int{c.Parent, c.NRanks, len(c.Ranks), *c.Color}, []int{0, 2, 2, color})
		equal(t, "processes", []int{c.Ranks[0].Process.PID, c.Ranks[1].Process.PID}, []int{60 + color, 62 + color})
	}
}

// The same job as one stream, as a file a rank, compressed, and through time stamps and labels must be the same log.
func TestSameThroughEveryPipe(t *testing.T) {
	text, err := os.ReadFile("testdata/two_nodes_2.20.log")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	byRank := map[string]*bytes.Buffer{}
	var stamped bytes.Buffer
	for line := range strings.Lines(string(text)) {
		label, rest, ok := strings.Cut(line, "<stdout>:")
		if !ok {
			t.Fatalf("no label in %q", line)
		}
		if byRank[label] == nil {
			byRank[label] = &bytes.Buffer{}
		}
		byRank[label].WriteString(rest)
		fmt.Fprintf(&stamped, "2026-01-02T03:04:05.123456Z (Worker pid=7, ip=192.0.2.1) \x1b[36m[2026-01-02 03:04:05] %s\x1b[0m\r\n", strings.TrimSuffix(rest, "\n"))
	}
	for label, b := range byRank {
		name := filepath.Join(dir, strings.Trim(label, "[]")+".log.gz")
		var z bytes.Buffer
		w := gzip.NewWriter(&z)
		if _, err := w.Write(b.Bytes()); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(w.Close(), os.WriteFile(name, z.Bytes(), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "core.1"), []byte("\x7fELF\x00NCCL INFO x"), 0o644); err != nil {
		t.Fatal(err)
	}
	want := facts4(open(t, "testdata/two_nodes_2.20.log"))
	equal(t, "a folder with a file a rank", facts4(open(t, dir)), want)
	equal(t, "stamps, labels and colours", facts4(read(t, stamped.String())), want)
}

// facts4 is a log without its places.
func facts4(l *Log) []string {
	var out []string
	for _, c := range l.Comms {
		out = append(out, c.ID, fmt.Sprint(c.NRanks, len(c.Rings), c.Trees))
		for _, r := range c.Ranks {
			out = append(out, fmt.Sprint(r.Rank, r.Process.Host, r.Process.PID, r.BusID, r.ways(), r.Totals.Coll, settings(r.Process.Env), r.State(), len(r.GDR), len(r.Milestones)))
		}
	}
	return out
}

func TestReadErrors(t *testing.T) {
	broken := errors.New("disk on fire")
	l, err := Read(iotest.TimeoutReader(strings.NewReader(strings.Repeat("h:1:2 [0] NCCL INFO cudaDriverVersion 12040\n", 5000))), "x")
	if !errors.Is(err, iotest.ErrTimeout) || l.Counts.NCCL == 0 || l.Files[0].Error == "" {
		t.Errorf("error %v, %d lines, file %+v", err, l.Counts.NCCL, l.Files[0])
	}
	if _, err := Read(iotest.ErrReader(broken), "x"); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	if _, err := Open([]string{"testdata/none.log"}, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	if _, err := Open([]string{t.TempDir()}, nil); err == nil {
		t.Error("an empty folder is no error")
	}
	gz := filepath.Join(t.TempDir(), "cut.gz")
	if err := os.WriteFile(gz, []byte("\x1f\x8b\x08\x00broken"), 0o644); err != nil {
		t.Fatal(err)
	}
	if l := open(t, gz); l.Files[0].Error == "" {
		t.Error("a damaged gz has no error")
	}
}

// A log that ends in the middle of a word must not turn a START into a COMPLETE.
func TestCutInitLine(t *testing.T) {
	line := "h:1:2 [0] NCCL INFO ncclCommInitRank comm 0xaa rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId 0x51 - Init START"
	for n := len(line); n >= len(line)-len("START"); n-- {
		l := read(t, line[:n])
		if len(l.Comms) != 1 || len(l.Comms[0].Ranks) != 1 {
			t.Fatalf("%q: %d communicators", line[:n], len(l.Comms))
		}
		if r := l.Comms[0].Ranks[0]; r.Complete != nil || (r.Start != nil) != (n > len(line)-len("START")) {
			t.Errorf("%q: start %v, complete %v", line[:n], r.Start, r.Complete)
		}
	}
}

// Lines of any length pass; only their beginning is looked at.
func TestLongLines(t *testing.T) {
	long := "h:1:2 [0] NCCL INFO Channel 00/01 :" + strings.Repeat(" 7", 100000) + "\n"
	l := read(t, long+"h:1:2 [0] NCCL INFO Using network IB\n")
	equal(t, "lines", []int{l.Counts.Lines, l.Counts.Long, l.Counts.NCCL}, []int{2, 1, 2})
	equal(t, "network behind it", l.Processes[0].Networks[0].Value, "IB")
}

// Sentences about NCCL are not lines of NCCL.
func TestNotNCCL(t *testing.T) {
	for _, line := range []string{
		"ncclInternalError: Internal check failed, NCCL version 2.22.3", "# h says NCCL INFO nothing", "please run with NCCL_DEBUG=INFO and look for NCCL WARN lines",
		"frame #3: c10d::NCCLComm (0x1)", "", "\x00\x01", "NCCL", "NCCL ", "NCCL INF",
	} {
		l := read(t, line+"\n")
		if l.Counts.NCCL != 0 || len(l.Versions) != 0 {
			t.Errorf("%q was taken for a line of NCCL", line)
		}
	}
}

func TestPathNames(t *testing.T) {
	for _, c := range []struct {
		lo, hi, n int
		want      string
	}{{10, 10, 6, "SYS"}, {12, 14, 6, "PHB"}, {18, 25, 7, "SYS"}, {26, 26, 8, "SYS"}, {27, 27, 7, "P2C"}, {28, 30, 7, "PXN"}, {10, 99, 0, "LOC"}, {18, 99, 7, ""}, {18, 20, 99, ""}, {18, 20, -1, ""}} {
		if got := pathName(c.lo, c.hi, c.n); got != c.want {
			t.Errorf("distance %d of 2.%d to 2.%d: got %q, want %q", c.n, c.lo, c.hi, got, c.want)
		}
	}
}

func TestNames(t *testing.T) {
	equal(t, "ranks", ranksText([]int{5, 3, 1, 2, 8, 9}), "1-3,5,8,9")
	equal(t, "hosts", hostList([]string{"n03", "n01", "n02", "login", "n10"}), "login, n[01-03,10]")
	equal(t, "host without a number", hostList([]string{"vm"}), "vm")
	equal(t, "sizes", sizeName(8)+sizeName(65536)+sizeName(1572864), "8 B64 KiB1.5 MiB")
	host := map[int]string{0: "a", 1: "a", 2: "a", 3: "a", 4: "b", 5: "b", 6: "b", 7: "b"}
	equal(t, "ring", ringText([]int{0, 1, 2, 3, 7, 6, 5, 4}, host, false), "0..3 => 7..4 => 0")
	tree := Tree{Parent: []int{-1, 0, 0, 2}}
	equal(t, "tree", tree.text(nil), "0\n+- 1\n`- 2 - 3")
}

func TestDiff(t *testing.T) {
	text, err := os.ReadFile("testdata/two_nodes_2.20.log")
	if err != nil {
		t.Fatal(err)
	}
	old := read(t, string(text))
	if d := Diff(old, read(t, string(text))); len(d) != 0 {
		t.Errorf("a log differs from itself: %+v", d)
	}
	changed := strings.NewReplacer("NET/IB/0/GDRDMA/Shared", "NET/IB/0", "set by environment to 3.", "set by environment to 5.", "2 coll channels", "4 coll channels").Replace(string(text))
	got := map[string]string{}
	for _, d := range Diff(old, read(t, changed)) {
		got[d.What] = fmt.Sprintf("%s -> %s %v", d.Old, d.New, d.Ranks)
	}
	equal(t, "setting", got["setting NCCL_IB_GID_INDEX"], "3 -> 5 [0 1 2]")
	equal(t, "transports", got["transports"], "2 NET/IB GDRDMA shared send -> 2 NET/IB send [3]")
	equal(t, "channels", got["channels"], "2 collectives, 0 NVLS, 4 p2p, 2 per peer -> 4 collectives, 0 NVLS, 4 p2p, 2 per peer [0 1 2 3]")
	if len(got) < 3 || got["network"] != "" {
		t.Errorf("differences: %v", got)
	}
}

func TestDiffGolden(t *testing.T) {
	old, new := open(t, "testdata/tuning_2.28.log"), open(t, "testdata/h200x2_shm_2.28.log")
	var list []Difference
	for _, d := range Diff(old, new) {
		if d.Comm != "" { // findings have tests of their own
			list = append(list, d)
		}
	}
	var out bytes.Buffer
	if err := WriteDiff(&out, list, "tuning", "shm"); err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/diff.golden", out.Bytes())
}

func TestJSON(t *testing.T) {
	for _, name := range []string{"errors_2.28", "two_nodes_2.20", "tuning_2.28"} {
		l := open(t, "testdata/"+name+".log")
		b, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		var back Log
		if err := json.Unmarshal(b, &back); err != nil {
			t.Fatal(err)
		}
		again, err := json.Marshal(&back)
		if err != nil || !bytes.Equal(b, again) {
			t.Errorf("%s: the document does not survive a round trip: %v", name, err)
		}
	}
}

func FuzzRead(f *testing.F) {
	files, err := filepath.Glob("testdata/*.log")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("h:1:2 [0] NCCL INFO Tree 99999999999 : -1 -> 4 -> 7/-1/-1\nh:1:2 [0] NCCL INFO Ring 00 : 1 -> 0 -> 0\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := Read(bytes.NewReader(text), "fuzz")
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := WriteReport(&out, l, l.Findings()); err != nil {
			t.Fatal(err)
		}
		if d := Diff(l, l); len(d) != 0 {
			t.Errorf("a log differs from itself: %+v", d)
		}
		if _, err := json.Marshal(l); err != nil {
			t.Fatal(err)
		}
	})
}
