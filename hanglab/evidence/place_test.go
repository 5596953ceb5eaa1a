package evidence

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// readFiles reads texts as if they were files, in the order of their names.
func readFiles(t *testing.T, files map[string]string) *Evidence {
	t.Helper()
	root := fstest.MapFS{}
	for name, text := range files {
		root["in/"+name] = &fstest.MapFile{Data: []byte(text)}
	}
	return mustRead(t, []string{"in"}, Options{FS: root})
}

// whoSaid lists the facts of a kind: whom they are about, and whom they name.
func whoSaid(e *Evidence, kind FactKind) string {
	var out []string
	for i := range e.Facts {
		if f := &e.Facts[i]; f.Kind == kind {
			s := fmt.Sprint(f.Rank)
			if len(f.Ranks) > 0 {
				s += fmt.Sprint(f.Ranks)
			}
			out = append(out, s)
		}
	}
	return strings.Join(out, " ")
}

const (
	agentFailed = "E0203 04:05:06.000000 77 torch/distributed/elastic/multiprocessing/api.py:986] failed (exitcode: 7) local_rank: %d (pid: %d) of binary: /usr/bin/python3\n"
	initDone    = "%s:%d:%d [%d] NCCL INFO ncclCommInitRank comm 0xa%d rank %d nranks 16 cudaDev %d nvmlDev %d busId %x000 commId 0x77 - Init COMPLETE\n"
)

// A number on a host is a rank where the rest leaves one answer.
func TestLocalRanks(t *testing.T) {
	failed := fmt.Sprintf(agentFailed, 5, 901)
	for name, tt := range map[string]struct {
		files map[string]string
		want  string
	}{
		"nothing else":         {map[string]string{"a.log": failed}, "5"},
		"first host":           {map[string]string{"a.log": "[rank1]: step 3\n[rank7]: step 3\n" + failed}, "5"},
		"second host":          {map[string]string{"a.log": "[rank8]: step 3\n[rank14]: step 3\n" + failed}, "13"},
		"two hosts in one":     {map[string]string{"a.log": "[rank0]: step 3\n[rank14]: step 3\n" + failed}, "-1"},
		"ranks elsewhere":      {map[string]string{"a.log": failed, "b.log": "[rank24]: step 3\n[rank31]: step 3\n"}, "29"},
		"too few to tell":      {map[string]string{"a.log": "[rank4]: step 3\n" + fmt.Sprintf(agentFailed, 1, 901)}, "-1"},
		"a pair says it":       {map[string]string{"a.log": "[default2]:[rank22]: step 3\n" + failed}, "25"},
		"pairs of two hosts":   {map[string]string{"a.log": "[default2]:[rank2]: step 3\n[default2]:[rank10]: step 3\n" + failed}, "-1"},
		"two with that number": {map[string]string{"a.log": failed + fmt.Sprintf(agentFailed, 5, 902)}, "-1 -1"},
		"a report joins it": {map[string]string{"a.log": failed + "Failures:\n[0]:\n  time      : 2026-02-03_04:05:06\n  host      : n2\n  rank      : 45 (local_rank: 5)\n  exitcode  : 7 (pid: 901)\n" +
			"============================================================\n"}, "45 45"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := whoSaid(readFiles(t, tt.files), Ended); got != tt.want {
				t.Errorf("ranks %s, want %s", got, tt.want)
			}
		})
	}
}

// "localRank 2" of NCCL's service thread is on the host whose line it is.
func TestClosedByLocalRank(t *testing.T) {
	const closed = "%s:%d:%d [0] NCCL INFO [Service thread] Connection closed by localRank 2\n"
	both := fmt.Sprintf(closed, "n1", 11, 12) + fmt.Sprintf(closed, "n2", 11, 12)
	for text, want := range map[string]string{
		fmt.Sprintf(closed, "n1", 11, 12):                                         "-1[2]",
		fmt.Sprintf(closed, "n1", 11, 12) + "[rank9]: step 1\n[rank12]: step 1\n": "-1[10]",
		both + "[rank1]: step 1\n[rank3]: step 1\n":                               "-1 -1", // whose of the two hosts these are is not said
	} {
		if got := whoSaid(readFiles(t, map[string]string{"a.log": text}), PeerClosed); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// The kernel knows a GPU by its address, which hosts of one kind have in common.
func TestGPUsByBus(t *testing.T) {
	inits := ""
	for r := range 16 {
		inits += fmt.Sprintf(initDone, fmt.Sprintf("n%d", 1+r/8), 100+r%8, 100, r%8, r, r, r%8, r%8, 0x10+r%8)
	}
	one, _, _ := strings.Cut(inits, "n2:")
	const syslog, dmesg = "Feb  3 04:05:06 %s kernel: NVRM: Xid (PCI:0000:13:00): 79, pid='<unknown>', name=<unknown>, gone\n", "[Tue Feb  3 04:05:06 2026] NVRM: Xid (PCI:0000:13:00): 79, gone\n"
	for name, tt := range map[string]struct {
		files map[string]string
		want  string
	}{
		"host of the line":   {map[string]string{"kern.log": fmt.Sprintf(syslog, "n2.cluster.example"), "job.log": inits}, "11"},
		"no host":            {map[string]string{"kern.log": dmesg, "job.log": inits}, "-1"},
		"host of the folder": {map[string]string{"n1/dmesg": dmesg, "job.log": inits}, "3"},
		"host of the file":   {map[string]string{"dmesg.n2.txt": dmesg, "job.log": inits}, "11"},
		"another host":       {map[string]string{"kern.log": fmt.Sprintf(syslog, "n9"), "job.log": inits}, "-1"},
		"one host":           {map[string]string{"kern.log": dmesg, "job.log": one}, "3"},
		"its other name":     {map[string]string{"kern.log": fmt.Sprintf(syslog, "gpu-17"), "job.log": one}, "3"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := whoSaid(readFiles(t, tt.files), Xid); got != tt.want {
				t.Errorf("rank %s, want %s", got, tt.want)
			}
		})
	}
	for word, want := range map[string]string{"c3000": "0000:c3:00.0", "1b000": "0000:1b:00.0", "100000": "0001:00:00.0", "0000:C3:00.1": "0000:c3:00.1", "": "", "x": ""} {
		if got := ncclBus(word); got != want {
			t.Errorf("busId %q is %q, want %q", word, got, want)
		}
	}
}

// A process id is one host's.
func TestProcessesOfHosts(t *testing.T) {
	inits := fmt.Sprintf(initDone, "n1", 502, 502, 2, 1, 2, 2, 2, 0x12) + fmt.Sprintf(initDone, "n2", 777, 777, 2, 2, 10, 2, 2, 0x12)
	const kill = "Feb  3 04:05:06 %s kernel: Out of memory: Killed process 502 (python3) total-vm:1kB\n"
	for host, want := range map[string]string{"n1": "2", "n2": "-1"} {
		if got := whoSaid(readFiles(t, map[string]string{"kern.log": fmt.Sprintf(kill, host), "job.log": inits}), OOMKill); got != want {
			t.Errorf("%s: rank %s, want %s", host, got, want)
		}
	}
}

// Tools name files by process ids.
func TestProcessIDsInNames(t *testing.T) {
	dump := func(pid int) string {
		return fmt.Sprintf("Process %d: python train.py\nPython v3.11.2 (/usr/bin/python)\n\nThread %d (idle): \"MainThread\"\n    wait (x.py:3)\n", pid, pid)
	}
	for name, tt := range map[string]struct {
		files map[string]string
		want  []int
		by    string
	}{
		"ids of one host":   {map[string]string{"node1_7100.txt": dump(7100), "node1_7102.txt": dump(7102), "node1_7101.txt": dump(7101)}, []int{0, 1, 2}, "order"},
		"ids of two hosts":  {map[string]string{"node1_7100.txt": dump(7100), "node2_7100.txt": dump(7100)}, []int{-1, -1}, ""},
		"ids after a word":  {map[string]string{"proc_7100.txt": dump(7100)}, []int{-1}, ""},
		"ranks":             {map[string]string{"node1_0.txt": dump(7100), "node1_1.txt": dump(7101)}, []int{0, 1}, "input"},
		"a container's own": {map[string]string{"node1_1.txt": dump(1)}, []int{1}, "input"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []int
			for _, s := range readFiles(t, tt.files).Stacks {
				if got = append(got, s.Rank); s.RankBy != tt.by {
					t.Errorf("rank by %q, want %q", s.RankBy, tt.by)
				}
			}
			if slices.Sort(got); !slices.Equal(got, tt.want) {
				t.Errorf("ranks %v, want %v", got, tt.want)
			}
		})
	}
}

// A task of a launcher may be an agent, which is a host's and ends because a rank did.
func TestAgentsAsTasks(t *testing.T) {
	const task = "srun: error: n2: task 1: Exited with exit code 1\n"
	for text, want := range map[string]string{
		task: "1 false",
		"[rank12]: step 1\n" + fmt.Sprintf(agentFailed, 4, 901) + task: "-1 true",
	} {
		e := readFiles(t, map[string]string{"a.log": text})
		f := e.Facts[len(e.Facts)-1]
		if got := fmt.Sprint(f.Rank, f.Consequence); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	if got := whoSaid(readFiles(t, map[string]string{"a.log": "1: [rank12]: step 1\n1: Killed\n"}), Ended); got != "-1" {
		t.Errorf("a line of task 1, which has rank 12: rank %s", got)
	}
}

// Folders of torchrun's logs are numbered on each host.
func TestAttemptFolders(t *testing.T) {
	const killed = "Killed\n"
	one := readFiles(t, map[string]string{"x/attempt_0/3/stderr.log": killed, "x/attempt_1/3/stderr.log": killed})
	two := readFiles(t, map[string]string{"n1/x/attempt_0/3/stderr.log": killed, "n2/x/attempt_0/3/stderr.log": "[rank11]: step 1\n" + killed, "n2/x/attempt_0/5/stderr.log": killed})
	if got := whoSaid(one, Ended); got != "3 3" {
		t.Errorf("one host: %s", got)
	}
	if got := whoSaid(two, Ended); got != "-1 11 13" {
		t.Errorf("two hosts: %s", got)
	}
}

// Whoever names a folder and a file in it means the file once; and an answer of RAS that was kept twice is one sample.
func TestReadOnce(t *testing.T) {
	root := fstest.MapFS{"in/rank_1.log": {Data: []byte("Killed\n")}}
	e := mustRead(t, []string{"in", "in/rank_1.log"}, Options{FS: root})
	if got := whoSaid(e, Ended); got != "1" || len(e.Inputs) != 1 {
		t.Errorf("facts %s of %d inputs", got, len(e.Inputs))
	}
	report := func(second int) string {
		return fmt.Sprintf(`{"nccl_version": "2.28.9", "timestamp": "2026-02-03 04:05:%02d", "communicators_count": 1, "communicators": [{"hash": "0x1", "size": 2, "ranks_count": 2,
"ranks": [{"rank": 0, "host": "n1", "pid": 1}, {"rank": 1, "host": "n1", "pid": 2}]}]}`, second)
	}
	e = readFiles(t, map[string]string{"a.json": report(1), "b.json": report(1), "c.json": report(9)})
	if len(e.RAS) != 2 {
		t.Errorf("%d samples, want 2; %v", len(e.RAS), told(e))
	}
}

func TestPrograms(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{{"python3.10", "python3", true}, {"pt_main_thread", "python", true}, {"postgres", "python3", false}, {"nccl-all-reduce", "nccl-all-reduce-perf", true}, {"all_reduce_perf", "all_reduce_per", false}, {"", "x", true}} {
		if SameProgram(tt.a, tt.b) != tt.want || SameProgram(tt.b, tt.a) != tt.want {
			t.Errorf("%s and %s: want %v", tt.a, tt.b, tt.want)
		}
	}
	e := readFiles(t, map[string]string{"a.log": fmt.Sprintf(agentFailed, 1, 9), "kern.log": "[Tue Feb  3 04:05:06 2026] Out of memory: Killed process 5 (postgres) total-vm:1kB\n"})
	if diff := cmp.Diff([]string{"python3"}, e.Programs()); diff != "" {
		t.Error(diff)
	}
}

func TestTensorRank(t *testing.T) {
	for name, want := range map[string]int{
		"VLLM::Worker_TP3": 3, "Worker_DP0_TP2 pid=9": 2, "Worker_DP1_TP2 pid=9": -1, "sglang::scheduler_PP1_TP0": -1, "VLLM::EngineCore": -1, "HTTP2": -1,
	} {
		if rank, _ := tensorRank(name); rank != want {
			t.Errorf("%s: %d, want %d", name, rank, want)
		}
	}
}
