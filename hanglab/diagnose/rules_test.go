package diagnose

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

// logsOf reads texts as files of these names.
func logsOf(t testing.TB, files map[string]string) *evidence.Evidence {
	t.Helper()
	fs := fstest.MapFS{}
	var paths []string
	for name, text := range files {
		fs[name] = &fstest.MapFile{Data: []byte(text)}
		paths = append(paths, name)
	}
	e, err := evidence.Read(paths, evidence.Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// watchdog is one rank's time-out as PyTorch 2.6 and later print it.
func watchdog(rank int, at, op string, seq, enq, done, numel int) string {
	r := strings.NewReplacer("RANK", itoa(rank), "AT", at, "OP", op, "SEQ", itoa(seq), "ENQ", itoa(enq), "DONE", itoa(done), "NUMEL", itoa(numel))
	return r.Replace(`[rankRANK]:[E612 AT.100000000 ProcessGroupNCCL.cpp:685] [Rank RANK] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=SEQ, OpType=OP, NumelIn=NUMEL, NumelOut=NUMEL, Timeout(ms)=600000) ran for 600040 milliseconds before timing out.
[rankRANK]:[E612 AT.200000000 ProcessGroupNCCL.cpp:2250] [PG ID 0 PG GUID 0(default_pg) Rank RANK]  failure detected by watchdog at work sequence id: SEQ PG status: last enqueued work: ENQ, last completed work: DONE
`)
}

func itoa(n int) string { return string(appendInt(nil, n)) }

func appendInt(b []byte, n int) []byte {
	if n >= 10 {
		b = appendInt(b, n/10)
	}
	return append(b, byte('0'+n%10))
}

func signal(rank, enq, done int) string {
	return strings.NewReplacer("RANK", itoa(rank), "ENQ", itoa(enq), "DONE", itoa(done)).Replace(
		`[rankRANK]:[E612 10:00:02.100000000 ProcessGroupNCCL.cpp:1860] [PG ID 0 PG GUID 0(default_pg) Rank RANK] Received a dump signal due to a collective timeout from  rank 0 and we will try our best to dump the debug info. Last enqueued NCCL work: ENQ, last completed NCCL work: DONE.
`)
}

// three ranks of four wait in the same call.
var threeWait = watchdog(0, "10:00:00", "ALLREDUCE", 50, 52, 49, 1024) + watchdog(1, "10:00:00", "ALLREDUCE", 50, 52, 49, 1024) + watchdog(2, "10:00:01", "ALLREDUCE", 50, 52, 49, 1024)

// TestLogRules: one text a rule, in the forms of programs and launchers.
func TestLogRules(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"three wait, the fourth says it never came", threeWait + signal(3, 49, 49), "skipped_collective 3"},
		{"all wait in one call", threeWait + watchdog(3, "10:00:01", "ALLREDUCE", 50, 52, 49, 1024), "gpu_stuck_or_network"},
		{"one has another size", threeWait + watchdog(3, "10:00:01", "ALLREDUCE", 50, 52, 49, 2048), "size_mismatch 3"},
		{"one has another operation", threeWait + watchdog(3, "10:00:01", "BROADCAST", 50, 52, 49, 1024), "op_mismatch 3"},
		{"one is inside a call that the others have finished", threeWait + watchdog(3, "10:00:01", "ALLREDUCE", 49, 52, 48, 77), "op_mismatch 3"},
		{"one log alone", watchdog(2, "10:00:00", "ALLREDUCE", 50, 52, 49, 1024), "undecided"},
		{"only the laggard's log", signal(3, 49, 49), "skipped_collective 3"},
		{"no numbers", `[E ProcessGroupNCCL.cpp:325] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1806986 milliseconds before timing out.
[E ProcessGroupNCCL.cpp:325] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(OpType=BROADCAST, Timeout(ms)=1800000) ran for 1806987 milliseconds before timing out.
`, "op_mismatch 0 1"},
		{"killed for memory, the others time out", threeWait + "srun: error: node7: task 3: Out Of Memory\n", "oom_host 3"},
		{"killed, no word of memory", threeWait + "srun: error: node7: task 3: Killed\n", "rank_crash 3"},
		{"only echoes", threeWait + watchdog(3, "10:00:01", "ALLREDUCE", 50, 52, 49, 1024) + `torch.distributed.elastic.multiprocessing.errors.ChildFailedError: 
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-06-12_10:00:30
  host      : node-a
  rank      : 2 (local_rank: 2)
  exitcode  : -6 (pid: 4002)
  error_file: <N/A>
  traceback : Signal 6 (SIGABRT) received by PID 4002
============================================================
`, "gpu_stuck_or_network"},
		{"an exception, then lost peers", `[rank3]: Traceback (most recent call last):
[rank3]:   File "/home/u/train.py", line 91, in <module>
[rank3]:     main()
[rank3]:   File "/home/u/data.py", line 17, in load
[rank3]:     raise KeyError(name)
[rank3]: KeyError: 'label'
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/u/train.py", line 91, in <module>
[rank0]:     main()
[rank0]: torch.distributed.DistBackendError: NCCL communicator was aborted on rank 0.
`, "rank_crash 3"},
		{"a remote error alone is not the network", "[rank1]: torch.distributed.DistBackendError: NCCL error in: /x/NCCLUtils.hpp:268, remote process exited or there was a network error, NCCL version 2.27.3\n" +
			"[rank1]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n", "undecided"},
		{"a GPU fell off the bus", "[Fri Jun 12 09:58:00 2026] NVRM: Xid (PCI:0000:4c:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n" +
			"[Fri Jun 12 09:58:01 2026] NVRM: Xid (PCI:0000:5d:00): 45, pid=4001, name=python3, Ch 00000008 caused by previous Xid 79\n", "gpu_fault"},
		{"out of GPU memory", "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 2 has a total capacity of 79.11 GiB\n" + threeWait, "oom_gpu 2"},
		{"different versions", "node-a:100:200 [0] init.cc:900 NCCL WARN Mismatched NCCL version detected : rank 0 version 22703 rank 3 version 21805\n", "env_mismatch 0 3"},
		{"one GPU for two", "node-a:100:200 [0] init.cc:1200 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1c000\n", "env_mismatch 0 1"},
		{"a watchdog that stands still", watchdog(0, "10:00:00", "ALLREDUCE", 50, 52, 49, 1024) +
			"[rank3]:[E612 10:08:00.000000000 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank 3] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives.\n",
			"rank_stuck_host 3"},
		{"compared calls at level INFO", running(0, 1, "ALLREDUCE", 8) + running(1, 1, "ALLREDUCE", 8) + running(2, 1, "ALLREDUCE", 8) + running(0, 2, "ALLREDUCE", 16) +
			running(1, 2, "ALLREDUCE", 17) + running(2, 2, "ALLREDUCE", 16), "size_mismatch 1"},
		{"a loss that is not a number on one rank", "[rank0]: iteration 12 loss 2.31\n[rank1]: iteration 12 loss nan\n[rank2]: iteration 12 loss 2.30\n", "nan_source 1"},
		{"plain progress", "[rank0]: iteration 12 loss 2.31\n[rank1]: iteration 12 loss 2.29\n", "undecided"},
	} {
		v := Diagnose(logsOf(t, map[string]string{"job.log": c.text}))
		checkVerdict(t, c.name, v)
		if short(v) != c.want {
			t.Errorf("%s: %s (%.2f), want %s: %s", c.name, short(v), v.Confidence, c.want, v.Summary)
		}
	}
}

func running(rank, seq int, op string, n int) string {
	return strings.NewReplacer("RANK", itoa(rank), "SEQ", itoa(seq), "OP", op, "NUMEL", itoa(n)).Replace(
		"[I ProcessGroupWrapper.cpp:562] [Rank RANK] Running collective: CollectiveFingerPrint(SequenceNumber=SEQ, OpType=OP, TensorShape=[NUMEL], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda, layout=Strided (default), requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt)))\n")
}

// TestKernelWindow: a fault of the day before has nothing to do with a time-out of today, one within the deadline has.
func TestKernelWindow(t *testing.T) {
	alarm := threeWait + watchdog(3, "10:00:01", "ALLREDUCE", 50, 52, 49, 1024)
	for at, want := range map[string]string{"Fri Jun 12 09:55:00 2026": "gpu_fault", "Tue Jun  9 09:55:17 2026": "gpu_stuck_or_network"} {
		v := Diagnose(logsOf(t, map[string]string{"job.log": alarm, "dmesg.txt": "[" + at + "] NVRM: Xid (PCI:0000:4c:00): 79, GPU has fallen off the bus.\n"}))
		if short(v) != want {
			t.Errorf("Xid at %s: %s, want %s", at, short(v), want)
		}
	}
}

// TestRASSamples: counts that differ and stand still accuse, counts that move do not.
func TestRASSamples(t *testing.T) {
	sample := func(behind, ahead string) string {
		return `NCCL version 2.28.9 compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          8            1          8        8

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         8         8         8   RUNNING  MISMATCH

Errors
======

Warnings
========

#0-0 (4492b87cd2a2155b) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation ` + ahead + `
  1 rank has launched up to operation ` + behind + `
  Rank 5 -- GPU 5 managed by process 4005 on node 192.0.2.7

`
	}
	for _, c := range []struct{ name, text, want string }{
		{"stands still", sample("640", "641") + sample("640", "641"), "skipped_collective 5"},
		{"moves", sample("640", "641") + sample("652", "653"), "not_a_hang"},
	} {
		if c.name == "stands still" { // one sample that was copied is no two samples
			one := sample("640", "641")
			if v := Diagnose(logsOf(t, map[string]string{"a/ras.txt": one, "b/ras.txt": one})); v.Confidence > oneView {
				t.Errorf("a copied sample: %s (%.2f): %s", short(v), v.Confidence, v.Summary)
			}
		}
		v := Diagnose(logsOf(t, map[string]string{"ras.txt": c.text}))
		if short(v) != c.want {
			t.Errorf("%s: %s, want %s: %s", c.name, short(v), c.want, v.Summary)
		}
	}
}
