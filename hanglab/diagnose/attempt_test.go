package diagnose

import (
	"fmt"
	"strings"
	"testing"

	"github.com/commprobe/commprobe/hanglab/evidence"
	"github.com/commprobe/commprobe/hanglab/flight"
)

// stepLines are a program's words about its steps, without saying which rank speaks.
func stepLines(from, to int) string {
	var b strings.Builder
	for i := from; i <= to; i++ {
		fmt.Fprintf(&b, "iteration %d | loss 2.%03d\n", i, 900-i)
	}
	return b.String()
}

const (
	broken = `[rank3]: Traceback (most recent call last):
[rank3]:   File "/home/u/data.py", line 17, in load
[rank3]:     raise OSError(name)
[rank3]: OSError: cannot read shard 12
`
	noMemory = "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.00 GiB.\n"
)

// TestCaught: an error that the program got over is not what a job ended by, unless the job ends soon after it.
func TestCaught(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"an exception, and many steps after it", stepLines(1, 60) + broken + stepLines(61, 160), "not_a_hang"},
		{"the same, and the rank itself goes on", "[rank3]: iteration 4\n" + broken + "[rank3]: iteration 5\n[rank3]: iteration 6\n", "not_a_hang"},
		{"memory ran out, the batch was halved", stepLines(1, 60) + noMemory + stepLines(61, 160), "not_a_hang"},
		{"the exception ends it, with lines of other ranks on their way", stepLines(1, 160) + broken + stepLines(161, 161), "rank_crash 3"},
		{"the exception is the last word", stepLines(1, 160) + broken, "rank_crash 3"},
		{"an error that was caught, and a hang later", stepLines(1, 60) + noMemory + stepLines(61, 160) + threeWait + signal(3, 49, 49), "oom_gpu 0"},
		{"a line about memory in something that is no job", "test_big_batch XFAIL (torch.OutOfMemoryError: CUDA out of memory.)\n120 passed, 1 xfailed\n", "undecided"},
	} {
		v := Diagnose(logsOf(t, map[string]string{"job.log": c.text}))
		checkVerdict(t, c.name, v)
		if short(v) != c.want {
			t.Errorf("%s: %s (%.2f), want %s: %s", c.name, short(v), v.Confidence, c.want, v.Summary)
		}
		if c.want == "oom_gpu 0" && v.Confidence > byAbsence {
			t.Errorf("%s: %.2f, although the job went on", c.name, v.Confidence)
		}
	}
}

// factsOf makes evidence of facts alone, each a line of one file.
func factsOf(list ...evidence.Fact) *evidence.Evidence {
	for i := range list {
		f := &list[i]
		f.Where = evidence.Where{File: "job.log", Line: i + 1}
		f.Text = fmt.Sprintf("line %d: %s", i+1, f.Kind)
	}
	return &evidence.Evidence{Facts: list}
}

// told is a fact with what it does not say set to nothing.
func told(kind evidence.FactKind, rank int, set func(*evidence.Fact)) evidence.Fact {
	f := evidence.Fact{Kind: kind, Rank: rank, GroupRank: -1, Seq: -1, LastEnqueued: -1, LastStarted: -1, LastCompleted: -1, Peer: -1, NumelIn: -1, NumelOut: -1, Code: -1,
		OtherRank: -1, LocalRank: -1, GroupSize: -1}
	if set != nil {
		set(&f)
	}
	return f
}

// TestFactRules: one case a rule that rests on a single kind of line.
func TestFactRules(t *testing.T) {
	ended := func(rank, code, sig int) evidence.Fact {
		return told(evidence.Ended, rank, func(f *evidence.Fact) { f.Code, f.Signal, f.PID = code, sig, 70+rank })
	}
	oom := func(program string) evidence.Fact {
		return told(evidence.OOMKill, -1, func(f *evidence.Fact) { f.PID, f.PIDOutside, f.Program, f.Signal = 220441, true, program, 9 })
	}
	detail := func(kind evidence.FactKind, rank int, text string, ranks ...int) evidence.Fact {
		return told(kind, rank, func(f *evidence.Fact) { f.Detail, f.Ranks = text, ranks })
	}
	lost := told(evidence.RemoteError, 0, nil)
	for _, c := range []struct {
		name string
		e    *evidence.Evidence
		want string
	}{
		{"a kill for memory in a container, and the only rank that was killed", factsOf(oom("python3.10"), ended(2, -1, 9), ended(0, -1, 15)), "oom_host 2"},
		{"a kill of a database beside the job", factsOf(oom("postgres"), ended(2, -1, 9)), "rank_crash 2"},
		{"a kill of a database, and a job that is well", factsOf(oom("postgres"), told(evidence.Finished, -1, nil)), "not_a_hang"},
		{"two attempts: the first ran out of memory, the second lost a rank", factsOf(told(evidence.CUDAOOM, 1, nil), told(evidence.Restarted, -1, nil), ended(3, 1, 0)), "rank_crash 3"},
		{"a restart after which nothing is known", factsOf(told(evidence.CUDAOOM, 1, nil), told(evidence.Restarted, -1, nil)), "oom_gpu 1"},
		{"a line that says itself that it is harmless", factsOf(told(evidence.LinkDown, -1, func(f *evidence.Fact) { f.Mild = true })), "undecided"},
		{"no interface, and the rank whose library failed", factsOf(detail(evidence.Setup, -1, "interface: none found"), told(evidence.NCCLWarn, 3, nil), lost), "env_mismatch 3"},
		{"no interface, and all is well", factsOf(detail(evidence.Setup, 3, "interface: none found"), told(evidence.Finished, -1, nil)), "not_a_hang"},
		{"the library met with another size", factsOf(detail(evidence.Mismatch, -1, "truncated message: 512 bytes instead of 256"), lost), "size_mismatch"},
		{"the library met with another call", factsOf(detail(evidence.Mismatch, -1, "different calls", 4)), "op_mismatch"},
		{"the job was cancelled, and then its ranks were killed", factsOf(detail(evidence.Cancelled, -1, "cancelled"), ended(0, -1, 9), ended(1, -1, 9)), "undecided"},
		{"a rank's own check of its gradients", factsOf(detail(evidence.NaN, 0, "loss"), detail(evidence.NaN, 1, "loss")), "undecided"},
		{"all ranks exit alike after a duplicate GPU", factsOf(detail(evidence.NCCLWarn, 0, "duplicate GPU", 1, 2), ended(0, 1, 0), ended(1, 1, 0), ended(2, 1, 0)), "env_mismatch 1 2"},
		{"a rank came late, with a later call", factsOf(told(evidence.Silent, 0, func(f *evidence.Fact) { f.Ranks, f.Seq = []int{2}, 7 }), compared(0, 100), compared(1, 100), compared(2, 200)),
			"skipped_collective 2"},
		{"compared calls alone", factsOf(compared(0, 100), compared(1, 100), compared(2, 200)), "size_mismatch 2"},
	} {
		v := Diagnose(c.e)
		checkVerdict(t, c.name, v)
		if short(v) != c.want {
			t.Errorf("%s: %s (%.2f), want %s: %s", c.name, short(v), v.Confidence, c.want, v.Summary)
		}
	}
}

func compared(rank int, n int64) evidence.Fact {
	return told(evidence.Fingerprint, rank, func(f *evidence.Fact) {
		f.Seq, f.Op = 7, "all_reduce"
		f.Call = &evidence.Call{Seq: 7, Op: "all_reduce", Shape: []int64{n}, DType: "float"}
	})
}

// TestOwnCheck: an exception about a value that is not a number, at the line that says so.
func TestOwnCheck(t *testing.T) {
	text := "[rank0]: iteration 9 loss nan\n[rank1]: iteration 9 loss nan\n" + strings.ReplaceAll(`R Traceback (most recent call last):
R   File "/home/u/train.py", line 9, in step
R     check(grads)
R AssertionError: found NaN in local grad norm before the reduction
`, "R ", "[rank2]: ")
	v := Diagnose(logsOf(t, map[string]string{"job.log": text}))
	if short(v) != "nan_source 2" {
		t.Errorf("%s: %s", short(v), v.Summary)
	}
}

// TestStackDecides: records show who never came, its stack shows where it is.
func TestStackDecides(t *testing.T) {
	w := newWorld(4).steps("0", 5)
	for r := range 3 {
		w.call(r, "0", 6, "all_reduce", 600, false)
	}
	e := w.evidence()
	stack := func(rank int, fn string) evidence.Stack {
		return evidence.Stack{Where: evidence.Where{File: fmt.Sprintf("gdb_%d.txt", rank)}, Tool: "gdb", Rank: rank, PID: 100 + rank, Threads: []evidence.Thread{
			{ID: fmt.Sprint(500 + rank), Name: "watchdog", Frames: []flight.Frame{{Name: "pthread_cond_timedwait"}}},
			{ID: fmt.Sprint(100 + rank), Name: "python3", Frames: []flight.Frame{{Name: fn, File: "/home/u/io.py", Line: 31}}},
		}}
	}
	e.Stacks = []evidence.Stack{stack(3, "read_shard")}
	v := expect(t, "records and one stack", e, "rank_stuck_host 3")
	if v.Location != "/home/u/io.py:31" {
		t.Errorf("location %q", v.Location)
	}
	e.Stacks = []evidence.Stack{stack(3, "cudaStreamSynchronize")}
	expect(t, "a stack that waits says nothing new", e, "skipped_collective 3")
	e.Dumps = nil
	e.Stacks = []evidence.Stack{stack(0, "cudaStreamSynchronize"), stack(1, "cudaStreamSynchronize"), stack(2, "read_shard")}
	expect(t, "stacks alone, the main thread not the first", e, "rank_stuck_host 2")
}

// TestLinkNamed: launched everywhere and finished nowhere, and a log that names a link.
func TestLinkNamed(t *testing.T) {
	w := newWorld(4).steps("0", 5)
	for r := range 4 {
		w.call(r, "0", 6, "all_reduce", 600, false)
	}
	e := w.evidence()
	e.Facts = factsOf(told(evidence.LinkDown, -1, func(f *evidence.Fact) { f.Detail = "mlx5_1 port 1" })).Facts
	expect(t, "a link that went down", e, "network")
}

// TestUnevenComms: communicators of NCCL's logs that cannot be told apart, and a send without its receive.
func TestUnevenComms(t *testing.T) {
	comm := func(pid, rank, n int, calls ...evidence.CommCall) *evidence.Comm {
		return &evidence.Comm{Where: evidence.Where{File: "nccl.log", Line: pid}, Host: "a", PID: pid, Pointer: fmt.Sprint(pid), Rank: rank, NRanks: n, Calls: calls, Global: -1, LocalRank: -1,
			Device: -1, HasOp: true}
	}
	call := func(op string, count, n int64, root int) evidence.CommCall {
		return evidence.CommCall{Line: int32(count + 1), Op: op, OpCount: count, Count: n, DType: "float", Root: root}
	}
	e := &evidence.Evidence{}
	for pid := range 4 {
		e.Comms = append(e.Comms, comm(pid+10, -1, 2, call("all_reduce", 0, int64(100+100*(pid/2)), 0)))
	}
	if v := Diagnose(e); len(v.Ranks) > 0 {
		t.Errorf("two communicators of two ranks without their ids: %s: %s", short(v), v.Summary)
	}
	e.Comms = nil
	for r := range 4 {
		calls := []evidence.CommCall{call("all_reduce", 0, 8, 0)}
		switch r {
		case 0:
			calls = append(calls, call("send", 1, 64, 1), call("send", 2, 64, 1))
		case 1:
			calls = append(calls, call("recv", 1, 64, 0), call("all_reduce", 2, 16, 0))
		default:
			calls = append(calls, call("all_reduce", 1, 16, 0))
		}
		c := comm(r+10, r, 4, calls...)
		c.ID = "0xabc"
		e.Comms = append(e.Comms, c)
	}
	expect(t, "two sends, one receive, and all others go on", e, "unpaired_p2p 1")
}
