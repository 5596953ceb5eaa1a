package evidence

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/commprobe/commprobe/hanglab/flight"
)

// readBlocks reads what stands over several lines of a text, as the reader of logs does.
func readBlocks(file string, rank int, text string) *Evidence {
	e := &Evidence{}
	ctx := newLogContext(e, file, rank, 2026)
	ctx.prefix.Rank = -1
	n := 0
	var open block
	for line := range strings.Lines(text) {
		n++
		raw, at := []byte(strings.TrimRight(line, "\n")), Where{file, n}
		if open != nil {
			if open.line(raw, at) {
				continue
			}
			open.end()
			open = nil
		}
		if b := openBlock(raw, at, ctx); b != nil && b.line(raw, at) {
			open = b
		}
	}
	if open != nil {
		open.end()
	}
	joinNCCL(e)
	return e
}

// stackText is a stack in short.
func stackText(s *Stack) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s pid %d rank %d (%s) line %d", s.Tool, s.PID, s.Rank, s.RankBy, s.Where.Line)
	if s.State != "" {
		b.WriteString(" state " + s.State)
	}
	for _, t := range s.Threads {
		fmt.Fprintf(&b, "\n  %s %q active=%v gil=%v", t.ID, t.Name, t.Active, t.GIL)
		for _, f := range t.Frames {
			fmt.Fprintf(&b, "\n    %s %s:%d", f.Name, f.File, f.Line)
		}
	}
	return b.String()
}

const pySpyOld = `Process 901: python train.py
Python v3.8.13 (/usr/bin/python3.8)

Thread 0x7FA6E7C01740 (idle): "MainThread"
    wait (threading.py:302)
    get (queue.py:170)
        Arguments:
            block: True
    main (train.py:165)
Thread 0x7FA6E7C01741 (active): "Thread-2"
    _feed (multiprocessing/queues.py:231)

Process 902: python train.py
Thread 0x7FA6E7C02740 (active): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:1322)
a line of something else
`

const pySpyNew = `Process 33: VLLM::Worker_TP2
Python v3.12.3 (/usr/bin/python3.12)

Thread 33 (active+gil): "MainThread"
    forward (model.py:245)
    poll (libc.so.6)
Thread 40 (idle)
    run (threading.py:1012)
`

const gdbText = `[New LWP 4102]
[Thread debugging using libthread_db enabled]
0x00007f12 in pthread_cond_wait () from /lib/x86_64-linux-gnu/libc.so.6

Thread 2 (Thread 0x7f1234 (LWP 4102) "pt_nccl_watchdg"):
#0  0x00007f1200 in __futex_abstimed_wait (expected=0, clockid=1)
    at ./nptl/futex-internal.c:57
#1  0x00007f1300 in ncclGroupEnd () from /usr/lib/libnccl.so.2
#2  main (argc=1, argv=0x7ffd) at main.c:31

Thread 1 (Thread 0x7f1299 (LWP 4100) "python"):
#0  0x00007f1400 in cuStreamSynchronize () from /lib/libcuda.so.1
(More stack frames follow...)
after that
`

const goText = `SIGQUIT: quit
PC=0x47 m=0 sigcode=0

goroutine 1 [select, 5 minutes]:
main.(*lab).run(0xc000012000, {0x1, 0x2})
	/src/lab.go:31 +0x1d
main.main()
	/src/main.go:9 +0x2f

goroutine 7 gp=0xc000002380 m=0 mp=0x1 [running, locked to thread]:
runtime.gopark(...)
	/usr/lib/go/proc.go:402
created by main.start in goroutine 1
	/src/start.go:5 +0x33

rax    0x0
`

func TestStacks(t *testing.T) {
	for _, tt := range []struct {
		name, file, text string
		rank             int
		want             []string
	}{
		{"py-spy before 0.3, two processes", "dump.txt", pySpyOld, -1, []string{
			`py-spy pid 901 rank 0 (order) line 1
  0x7FA6E7C01740 "MainThread" active=false gil=false
    wait threading.py:302
    get queue.py:170
    main train.py:165
  0x7FA6E7C01741 "Thread-2" active=true gil=false
    _feed multiprocessing/queues.py:231`,
			`py-spy pid 902 rank 1 (order) line 13
  0x7FA6E7C02740 "MainThread" active=true gil=false
    all_reduce torch/distributed/distributed_c10d.py:1322`}},
		{"py-spy 0.3, rank in the title", "dump.txt", pySpyNew, -1, []string{
			`py-spy pid 33 rank 2 (name) line 1
  33 "MainThread" active=true gil=true
    forward model.py:245
    poll libc.so.6:0
  40 "" active=false gil=false
    run threading.py:1012`}},
		{"rank of the input", "x.txt", pySpyNew, 6, []string{
			`py-spy pid 33 rank 6 (input) line 1
  33 "MainThread" active=true gil=true
    forward model.py:245
    poll libc.so.6:0
  40 "" active=false gil=false
    run threading.py:1012`}},
		{"gdb", "rank3.gdb", gdbText, -1, []string{
			`gdb pid 4100 rank 3 (input) line 1
  4102 "pt_nccl_watchdg" active=false gil=false
    __futex_abstimed_wait ./nptl/futex-internal.c:57
    ncclGroupEnd /usr/lib/libnccl.so.2:0
    main main.c:31
  4100 "python" active=false gil=false
    cuStreamSynchronize /lib/libcuda.so.1:0`}},
		{"pstack", "a", "Thread 1 (process 77):\n#0  0x00007f in poll () from /lib/libc.so.6\n#1  0x000055 in main ()\n", -1, []string{
			"gdb pid 77 rank -1 () line 1\n  77 \"\" active=false gil=false\n    poll /lib/libc.so.6:0\n    main :0"}},
		{"goroutines", "a", goText, -1, []string{
			`go pid 0 rank -1 () line 4
  1 "select, 5 minutes" active=false gil=false
    main.(*lab).run /src/lab.go:31
    main.main /src/main.go:9
  7 "running, locked to thread" active=true gil=false
    runtime.gopark /usr/lib/go/proc.go:402
    main.start /src/start.go:5`}},
		{"words that only look so", "a", "Process 12: done\nThread 5 (of 7) ended\nGroup of ranks\ngoroutine leak [1]\nThread safety: on\n[\nx\n{\n\"level\": 1\n", -1, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := readBlocks(tt.file, tt.rank, tt.text)
			var got []string
			for i := range e.Stacks {
				got = append(got, stackText(&e.Stacks[i]))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPySpyJSON(t *testing.T) {
	const doc = `some log line before
[
  {
    "pid": 51,
    "thread_id": 140123456789,
    "thread_name": "MainThread",
    "os_thread_id": 51,
    "active": true,
    "owns_gil": true,
    "frames": [
      {"name": "step", "filename": "/app/train \"x\".py", "module": null, "short_filename": "train.py", "line": 7, "locals": null}
    ],
    "process_info": {"pid": 51, "command_line": "train.py --local-rank=3", "parent": null}
  },
  {"pid": 52, "thread_id": 2, "thread_name": null, "active": false, "owns_gil": false, "frames": []}
]
and one behind
`
	e := readBlocks("a", -1, doc)
	want := []Stack{
		{Where: Where{"a", 2}, Tool: "py-spy", PID: 51, Rank: 3, RankBy: "local", Name: "train.py --local-rank=3",
			Threads: []Thread{{ID: "140123456789", Name: "MainThread", Active: true, GIL: true, Frames: []flight.Frame{{Name: "step", File: "train.py", Line: 7}}}}},
		{Where: Where{"a", 2}, Tool: "py-spy", PID: 52, Rank: -1, Threads: []Thread{{ID: "2"}}},
	}
	if diff := cmp.Diff(want, e.Stacks); diff != "" {
		t.Error(diff)
	}
}

func TestProcRoundTrip(t *testing.T) {
	want := Stack{Tool: "proc", Rank: 2, RankBy: "input", PID: 99, Host: "node-a", State: "T", Name: "python train.py", Where: Where{"p", 1}, Threads: []Thread{
		{ID: "99", Name: "python", Frames: []flight.Frame{{Name: "do_signal_stop"}}},
		{ID: "100", Name: "pt nccl watchdog", Active: true},
	}}
	var b bytes.Buffer
	if err := WriteProc(&b, &want); err != nil {
		t.Fatal(err)
	}
	e := readBlocks("p", -1, b.String())
	if diff := cmp.Diff([]Stack{want}, e.Stacks); diff != "" {
		t.Error(diff)
	}
	stopped := 0
	for _, f := range e.Facts {
		if f.Kind == Stopped && f.Rank == 2 && f.PID == 99 {
			stopped++
		}
	}
	// The facts of a context reach the evidence when its log ends; here only their absence for a process that runs is certain.
	if b.Reset(); WriteProc(&b, &Stack{Rank: -1, PID: 5, State: "S"}) != nil || stopped > 1 {
		t.Errorf("%d facts about a stopped process", stopped)
	}
}

const rasText = `== ncclras
NCCL version 2.28.9 compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          2            1          2        2

Communicators... (0.000s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         2         2         2   RUNNING  MISMATCH

Errors
======

Warnings
========

#0-0 (166366344746bfe3) MISMATCH
  Communicator ranks have different AllReduce operation counts
  Rank 0 has launched up to operation 7 -- GPU 0 managed by process 2088 on node 192.0.2.2
  Rank 1 has launched up to operation 6 -- GPU 1 managed by process 2089 on node 192.0.2.2

ncclras: invalid option -- 'f'
#0-0 (166366344746bfe3) MISMATCH
  Communicator ranks have different AllReduce operation counts
  31 ranks have launched up to operation 9
  1 ranks have launched up to operation 8
{
  "nccl_version": "2.29.1",
  "cuda_runtime_version": 13000,
  "timestamp": "2025-12-19 13:06:53",
  "communicators": [
    {"hash": "0xae94", "size": 1, "ranks": [{"rank": 0, "host": "h", "status": {"init_state": 0}, "collective_counts": {"AllReduce": 3}}], "missing_ranks": []}
  ],
  "ras": {"timeouts_count": 0}
}
{"nccl_version": "2.29.1", "communicators": []}
{"version": "2.10", "nccl_version": "2.29.1", "entries": []}
`

func TestRASBlocks(t *testing.T) {
	e := readBlocks("ras.txt", -1, rasText)
	var got []string
	for _, r := range e.RAS {
		text := fmt.Sprintf("line %d NCCL %q", r.Where.Line, r.Report.NCCLVersion)
		for _, c := range r.Report.Communicators {
			text += fmt.Sprintf(" %s %s %v", c.Hash, c.Errors, c.Counts)
		}
		got = append(got, text)
	}
	want := []string{
		`line 2 NCCL "2.28.9" 166366344746bfe3 MISMATCH map[AllReduce:[{7 [0] 1} {6 [1] 1}]]`,
		`line 31 NCCL "" 166366344746bfe3 MISMATCH map[AllReduce:[{9 [] 31} {8 [] 1}]]`,
		`line 35 NCCL "2.29.1" 0xae94 OK map[AllReduce:[{3 [0] 1}]]`,
		`line 44 NCCL "2.29.1"`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestRASKept reads what the command for RAS keeps.
func TestRASKept(t *testing.T) {
	e := readBlocks("kept.json", -1, "{\n \"format\": \"commprobe ras 1\",\n \"samples\": [\n  {\"nccl_version\": \"2.29.1\", \"communicators\": [{\"hash\": \"0xab\", \"size\": 2}]},\n  null,\n  {}\n ]\n}\n")
	if len(e.RAS) != 2 || e.RAS[0].Report.Communicators[0].Hash != "0xab" || e.RAS[0].Where.Line != 1 {
		t.Errorf("%+v", e.RAS)
	}
}

func FuzzBlocks(f *testing.F) {
	for _, s := range []string{pySpyOld, pySpyNew, gdbText, goText, rasText, "commprobe process 4\nstate: T\nthread 4 running x\n    f\nend\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		e := readBlocks("f", -1, text)
		for _, s := range e.Stacks {
			if s.Tool == "" || len(s.Threads) > maxThreads {
				t.Errorf("stack %+v", s)
			}
		}
		for _, r := range e.RAS {
			if r.Report == nil {
				t.Error("a RAS report that is nil")
			}
		}
	})
}
