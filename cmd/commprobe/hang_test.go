package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/commprobe/commprobe/hanglab"
	"github.com/commprobe/commprobe/hanglab/evidence"
	"github.com/commprobe/commprobe/hanglab/flight"
)

// hangRunOf is a finished `hang run` and what it left.
type hangRunOf struct {
	finished
	dir    string
	report hanglab.Report
	dumps  []*evidence.FlightDump // by rank
}

// runHang runs a scenario and reads everything that it wrote.
func runHang(t *testing.T, name string, args ...string) *hangRunOf {
	t.Helper()
	h := &hangRunOf{dir: t.TempDir()}
	h.finished = commprobe(t, nil, append([]string{"hang", "run", name, "--out", h.dir}, args...)...)
	if h.code == 3 && strings.Contains(h.stderr, "two network namespaces are needed") {
		t.Skip(h.stderr)
	}
	h.read(t)
	if h.code != h.report.Exit {
		t.Errorf("exit status %d, the report says %d", h.code, h.report.Exit)
	}
	return h
}

// read reads the report and all dumps of a run's folder.
func (h *hangRunOf) read(t *testing.T) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(h.dir, "run.json"))
	if err != nil {
		t.Fatalf("exit status %d: %s\n%s%v", h.code, h.stdout, h.stderr, err)
	}
	if err := json.Unmarshal(raw, &h.report); err != nil {
		t.Fatal(err)
	}
	pool := evidence.NewFlightPool()
	for r := range h.report.World {
		for _, form := range []string{"json_", "trace_"} { // the pickle, which has the frames, is kept
			f, err := os.Open(filepath.Join(h.dir, form+strconv.Itoa(r)))
			if err != nil {
				t.Fatal(err)
			}
			d, err := pool.Read(f, f.Name())
			f.Close()
			if err != nil {
				t.Fatal(err)
			}
			if form == "trace_" {
				h.dumps = append(h.dumps, d)
			}
		}
	}
}

// at is a rank's entry of a sequence number in a group, as "all_reduce 393216 started"; "" if there is none.
func (h *hangRunOf) at(rank int, group string, seq int64, p2p bool) string {
	for _, e := range h.dumps[rank].Entries {
		s := e.CollectiveSeqID
		if p2p {
			s = e.P2PSeqID
		}
		if e.Origin.GroupName != group || s != seq || e.IsP2P != p2p {
			continue
		}
		state := string(e.State)
		if e.State != flight.Completed {
			state = "open"
		}
		return fmt.Sprintf("%s %s %d %s", strings.TrimPrefix(e.Call.ProfilingName, "nccl:"), e.Call.InputDtypes[0], e.Call.InputSizes[0][0], state)
	}
	return ""
}

// hangCase is what a scenario does on the host engine with rank 3 of 4, or 63 of 64, odd in step 5: sequence 7.
type hangCase struct {
	outcome hanglab.Outcome
	odd     string // the odd rank's entry at sequence 7 of group 0
	others  string // that of the rank before it
	text    string // part of the report's sentence
}

func hangCases(world int) map[string]hangCase {
	const usual, done = "all_reduce Float 393216 open", "all_reduce Float 393216 completed"
	odd := world - 1
	raced := fmt.Sprintf("all_reduce Float %d completed", 8<<20*4/world)
	return map[string]hangCase{
		"control":        {hanglab.Finished, done, done, "every rank ran to its end"},
		"size":           {hanglab.Hung, "all_reduce Float 394240 open", "all_reduce Float 393216", "time-out"},
		"dtype":          {hanglab.Hung, "all_reduce BFloat16 393216", usual, "time-out"},
		"op":             {hanglab.Hung, usual, "broadcast Float 393216", "time-out"},
		"order":          {hanglab.Hung, "all_reduce Float 393216", fmt.Sprintf("_all_gather_base Float %d", 393216/world), "time-out"},
		"skip":           {hanglab.Hung, "all_reduce Float 458752 open", "all_reduce Float 393216", "time-out"},
		"skip_stop":      {hanglab.Hung, "", usual, "time-out"},
		"skip_same":      {hanglab.Hung, "all_reduce Float 65536 completed", "all_reduce Float 65536 completed", ""},
		"sendrecv_small": {hanglab.WrongData, done, done, fmt.Sprintf("wrong on rank %d, first in step 6", odd)},
		"sendrecv_large": {hanglab.Hung, done, done, "time-out"},
		"crossed":        {hanglab.Hung, "", usual, "time-out"},
		"kill":           {hanglab.Died, "", usual, fmt.Sprintf("rank %d: killed by SIGKILL", odd)},
		"exit":           {hanglab.Died, "", usual, fmt.Sprintf("rank %d: exit status 42", odd)},
		"panic":          {hanglab.Died, "", usual, fmt.Sprintf("rank %d: exit status 2", odd)},
		"stuck":          {hanglab.Hung, "", usual, "time-out"},
		"stop":           {hanglab.Hung, "", usual, "time-out"},
		"gpu_busy":       {hanglab.Hung, usual, usual, "time-out"},
		"lazy_skip":      {hanglab.Hung, "", "", "is not created"},
		"cold_comm":      {hanglab.Hung, usual, "", "time-out"},
		"wrong_device":   {hanglab.Refused, "", "", "duplicate device"},
		"straggler":      {hanglab.Finished, done, done, ""},
		"netcut":         {hanglab.Hung, usual, usual, "time-out"},
		"nan":            {hanglab.WrongData, done, done, fmt.Sprintf("NaN from rank %d's input, element 131072", odd)},
		"race":           {"", raced, raced, ""}, // wrong data, or not
	}
}

// TestHangAll4 runs every scenario with 4 ranks: what really happened, what the dumps hold, and nothing is left.
func TestHangAll4(t *testing.T) {
	t.Parallel()
	cases := hangCases(4)
	for _, s := range hanglab.Scenarios() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			c, ok := cases[s.Name]
			if !ok {
				t.Fatal("no expectation for this scenario")
			}
			h := runHang(t, s.Name, "--engine", "host", "-g", "4", "-T", "3")
			h.check(t, c)
			h.diagnosed(t)
		})
	}
}

// TestHangAll64 is the laboratory exercise as a user runs it, with 64 processes; the Makefile runs it without the race detector, which 64
// processes on two processors do not stand.
func TestHangAll64(t *testing.T) {
	if raceDetector {
		t.Skip("runs without the race detector: make test does")
	}
	cases := hangCases(64)
	dir := t.TempDir()
	out := filepath.Join(dir, "all.json")
	sit(t)
	j := start(t, nil, "hang", "run", "all", "--engine", "host", "-g", "64", "-T", "8", "-j", "2", "--out", dir, "--json", out)
	if code := j.exit(t, 8*time.Minute); code != 0 {
		t.Errorf("exit status %d", code)
	}
	j.nothingLeft(t, 10*time.Second)
	for _, s := range hanglab.Scenarios() {
		t.Run(s.Name, func(t *testing.T) {
			h := &hangRunOf{dir: filepath.Join(dir, s.Name)}
			h.read(t)
			h.check(t, cases[s.Name])
			h.diagnosed(t)
		})
	}
}

func (h *hangRunOf) check(t *testing.T, c hangCase) {
	t.Helper()
	r := &h.report
	if r.Outcome != c.outcome && (c.outcome != "" || r.Outcome != hanglab.WrongData && r.Outcome != hanglab.Finished) {
		t.Errorf("outcome %q, want %q: %s", r.Outcome, c.outcome, r.Text)
	}
	has(t, r.Text, c.text)
	odd := r.World - 1
	for _, x := range []struct {
		rank int
		want string
	}{{odd, c.odd}, {odd - 1, c.others}} {
		got := h.at(x.rank, "0", 7, false)
		if x.want == "" && got != "" || !strings.HasPrefix(got, x.want) {
			t.Errorf("rank %d's dump has %q at sequence 7, want %q", x.rank, got, x.want)
		}
	}
	for _, rr := range r.Ranks {
		if rr.DumpBy == "" || rr.End == "" {
			t.Errorf("rank %d: dump by %q, end %q", rr.Rank, rr.DumpBy, rr.End)
		}
	}
	h.special(t, odd)
	for _, e := range h.dumps[0].Entries {
		if e.Stack == nil || !strings.Contains(e.Stack.Frames[0].File, "hanglab/") {
			t.Fatalf("%s has no call site of the laboratory: %v", e.Call.ProfilingName, e.Stack)
		}
	}
	if line := r.Timeline; (r.Outcome == hanglab.Hung || r.Outcome == hanglab.Died) && r.Scenario != "control" {
		if len(line.Causes) != 1 || line.Entries[line.Causes[0]].About != odd {
			t.Errorf("the time line's causes %v are not the odd rank's fault", line.Causes)
		}
	}
}

// special is what only one scenario's evidence shows.
func (h *hangRunOf) special(t *testing.T, odd int) {
	t.Helper()
	expect := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	switch h.report.Scenario {
	case "skip_same":
		expect("the odd rank's call 9", h.at(odd, "0", 9, false), "")
		expect("the others' call 9", h.at(0, "0", 9, false), "all_reduce Float 65536 open")
	case "sendrecv_small", "sendrecv_large":
		n, state := "4096", "completed"
		if h.report.Scenario == "sendrecv_large" {
			n, state = strconv.Itoa(max(4<<20*4/h.report.World, 512<<10)), "open"
		}
		name := fmt.Sprintf("send %d->%d", odd-1, odd)
		if h.report.World > 2 { // a rank between sends and receives
			expect("the sender's", h.at(odd-1, "0", 11, true), name+" Float "+n+" "+state)
		}
	case "crossed":
		expect("the odd rank on the second", h.at(odd, "1", 2, false), "all_reduce Float 786432 open")
		expect("the others on the second", h.at(0, "1", 2, false), "")
	case "gpu_busy":
		for _, x := range []struct {
			rank int
			want flight.State
		}{{odd, flight.Scheduled}, {0, flight.Started}} {
			last := h.dumps[x.rank].Entries[len(h.dumps[x.rank].Entries)-1]
			if last.State != x.want {
				t.Errorf("rank %d's last call is %s, want %s", x.rank, last.State, x.want)
			}
		}
	case "kill", "stop":
		expect("who wrote the odd rank's dump", h.report.Ranks[odd].DumpBy, "supervisor")
	case "straggler":
		for _, e := range h.dumps[0].Entries {
			if e.CollectiveSeqID == 7 && e.DurationMs < h.report.OpS*1000/4 {
				t.Errorf("the others' call took %.1f ms on the device, less than the straggler was late", e.DurationMs)
			}
		}
	}
}

func TestHangCheckCalls(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, text string }{
		{"size", "rank 1 differs in count: all_reduce of 394240 float"},
		{"op", "rank 1 differs in op: all_reduce of 393216 float"},
		{"dtype", "rank 1 differs in dtype: all_reduce of 393216 bfloat16"},
		{"order", "rank 1 differs in op, count"},
		{"skip", "rank 1 differs in count: all_reduce of 458752 float"},
		{"skip_stop", "rank 1 did not come to call 7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := runHang(t, c.name, "--engine", "host", "-g", "4", "-T", "3", "--rank", "1", "--check-calls")
			if h.code != 8 || h.report.Outcome != hanglab.Named {
				t.Errorf("exit status %d, outcome %q: %s", h.code, h.report.Outcome, h.report.Text)
			}
			has(t, h.report.Text, c.text)
			if len(h.report.Named) != 1 || h.report.Named[0] != 1 {
				t.Errorf("named %v, want rank 1", h.report.Named)
			}
			if got := h.at(0, "0", 7, false); got != "" {
				t.Errorf("rank 0 made the call all the same: %s", got)
			}
			if h.report.CheckCost == nil || h.report.CheckCost.EachUS <= 0 {
				t.Error("what it cost is not said")
			}
		})
	}
}

// TestHangSupervisorKilled: ranks do not outlive it, and the next run removes what it left in memory.
func TestHangSupervisorKilled(t *testing.T) {
	t.Parallel()
	j := start(t, nil, "hang", "run", "stuck", "--engine", "host", "-g", "3", "-T", "60", "--out", t.TempDir())
	folder := ""
	for end := time.Now().Add(20 * time.Second); folder == "" && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", j.cmd.Process.Pid))
		for _, fd := range fds {
			to, _ := os.Readlink(fd)
			if dir, ok := strings.CutSuffix(to, "/lock"); ok && strings.Contains(dir, "commprobe-hang-") && len(j.processes()) == 4 {
				folder = dir
			}
		}
	}
	if folder == "" {
		t.Fatal("no folder with a lock, or not all ranks")
	}
	if err := j.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if got := j.exit(t, 20*time.Second); got != 128+int(syscall.SIGKILL) {
		t.Errorf("exit status %d", got)
	}
	j.nothingLeft(t, 20*time.Second)
	if h := runHang(t, "control", "--engine", "host", "-g", "2"); h.code != 0 {
		t.Errorf("exit status %d", h.code)
	}
	if _, err := os.Stat(folder); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the next run left %s: %v", folder, err)
	}
}

func TestHangModes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mode int
		end  string // of the ranks that waited
	}{{0, "killed by SIGKILL"}, {1, "exit status 4"}, {2, "exit status 4"}, {3, "exit status 4"}} {
		t.Run(strconv.Itoa(c.mode), func(t *testing.T) {
			t.Parallel()
			args := []string{"--engine", "host", "-g", "3", "-T", "2", "--mode", strconv.Itoa(c.mode)}
			if c.mode == 0 {
				args = append(args, "--fuse", "8")
			}
			h := runHang(t, "stuck", args...)
			if h.code != 4 || h.report.Ranks[0].End != c.end || h.report.Fused != (c.mode == 0) {
				t.Errorf("exit status %d, rank 0: %s, fuse %v", h.code, h.report.Ranks[0].End, h.report.Fused)
			}
			log, err := os.ReadFile(filepath.Join(h.dir, "rank_0.log"))
			if err != nil {
				t.Fatal(err)
			}
			if aborts := strings.Contains(string(log), "event=abort"); aborts != (c.mode == 1 || c.mode == 2) {
				t.Errorf("mode %d aborted: %v", c.mode, aborts)
			}
		})
	}
}

// TestHangDumpOnSignal: a rank that is asked writes its dump and goes on.
func TestHangDumpOnSignal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	sit(t)
	j := start(t, nil, "hang", "run", "stuck", "--engine", "host", "-g", "2", "-T", "20", "--out", dir)
	log := filepath.Join(dir, "rank_0.log")
	logged := func(what string) bool {
		text, err := os.ReadFile(log)
		return err == nil && strings.Contains(string(text), what)
	}
	if !eventually(patience, func() bool { return logged("event=enter mono_ns=") && logged("step=5") }) {
		t.Fatal("step 5 was not reached")
	}
	if err := syscall.Kill(j.worker(t, 0).pid, syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if !eventually(patience, func() bool { return logged("event=dump") && logged("reason=signal") }) {
		t.Fatal("no dump on SIGUSR1")
	}
	if _, err := os.Stat(filepath.Join(dir, "trace_0")); err != nil {
		t.Error(err)
	}
	if err := syscall.Kill(j.cmd.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := j.exit(t, patience); code != 130 {
		t.Errorf("exit status %d after an interrupt", code)
	}
	j.nothingLeft(t, 10*time.Second)
}

func TestHangListAndExplain(t *testing.T) {
	t.Parallel()
	f := inProcess("hang", "list")
	if f.code != 0 {
		t.Fatal(f.stderr)
	}
	for _, s := range hanglab.Scenarios() {
		has(t, f.stdout, s.Name+" ", s.Line)
		if page := inProcess("hang", "explain", s.Name); page.code != 0 || !strings.HasPrefix(page.stdout, "# "+s.Name+":") {
			t.Errorf("hang explain %s: exit status %d, %.60q", s.Name, page.code, page.stdout)
		}
	}
}

func TestHangUsage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"hang"}, "say list, explain or run"},
		{[]string{"hang", "up"}, "there are list, explain and run"},
		{[]string{"hang", "run"}, "say which scenario"},
		{[]string{"hang", "run", "sized"}, "no scenario \"sized\"; there are: control, size"},
		{[]string{"hang", "explain"}, "say which"},
		{[]string{"hang", "run", "size", "-g", "1"}, "needs 2 to 1024 ranks"},
		{[]string{"hang", "run", "size", "--rank", "4"}, "there are ranks 0 to 3"},
		{[]string{"hang", "run", "size", "--step", "8"}, "there are steps 0 to 7"},
		{[]string{"hang", "run", "size", "-T", "0.01"}, "ends healthy runs too"},
		{[]string{"hang", "run", "size", "--mode", "4"}, "use 0 (nothing)"},
		{[]string{"hang", "run", "size", "--entries", "3"}, "use 16 to"},
		{[]string{"hang", "run", "sendrecv-large", "--rank", "0"}, "rank 0 receives nothing"},
		{[]string{"hang", "run", "size", "-j", "0"}, "at least 1"},
	} {
		args := append(c.args, "--engine", "host")
		if f := inProcess(args...); f.code != 2 || !strings.Contains(f.stderr, c.want) {
			t.Errorf("%v: exit status %d, %q does not say %q", c.args, f.code, f.stderr, c.want)
		}
	}
}
