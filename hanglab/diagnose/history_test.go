package diagnose

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/commprobe/commprobe/hanglab/evidence"
	"github.com/commprobe/commprobe/hanglab/flight"
)

// said is a call of a program: an operation and a size.
type said struct {
	op string
	n  int64
}

func sizes(list ...int64) (out []said) {
	for _, n := range list {
		out = append(out, said{"all_reduce", n})
	}
	return out
}

// steady makes the same calls on all ranks of a group, complete, from its first sequence number on.
func (w *world) steady(group string, calls ...said) *world {
	for i, c := range calls {
		for _, r := range w.groups[group] {
			w.call(r, group, int64(i+1), c.op, c.n, true)
		}
	}
	return w
}

// last makes one rank's calls after the first so many, of which the given number completes.
func (w *world) last(r int, group string, after, done int, calls ...said) {
	for i, c := range calls {
		w.call(r, group, int64(after+i+1), c.op, c.n, i < done)
	}
}

// TestHistory: two ranks disagree, and the calls before tell whose was due, or do not.
func TestHistory(t *testing.T) {
	grown := sizes(1, 100, 200, 300, 400, 500)
	layers := sizes(7, 30, 20, 10, 30, 20, 10, 30)
	mixed := []said{{"all_gather", 8}, {"reduce_scatter", 8}, {"all_reduce", 8}, {"all_gather", 8}, {"reduce_scatter", 8}, {"all_reduce", 8}}
	const a, g = "all_reduce", "all_gather"
	for _, c := range []struct {
		name   string
		before []said
		zero   []said // what rank 0 calls next
		one    []said
		done   int // of these
		want   string
		most   float64
	}{
		{"sizes that grow, one left out", grown, sizes(600), sizes(700), 0, "skipped_collective 1", probable},
		{"the same, on the other side", grown, sizes(700), sizes(600), 0, "skipped_collective 0", probable},
		{"the same, and what follows lies one apart", grown, sizes(600, 700), sizes(700, 800), 1, "skipped_collective 1", inferred},
		{"sizes that shrink", sizes(900, 800, 700), sizes(600), sizes(500), 0, "skipped_collective 1", probable},
		{"a size that fits nowhere", grown, sizes(600), sizes(601), 0, "size_mismatch 1", probable},
		{"the same, complete, and a later call hangs", grown, sizes(600, 700), sizes(601, 700), 1, "size_mismatch 1", probable},
		{"the size of the next call, and the calls after it agree", grown, sizes(600, 700, 800), sizes(700, 700, 800), 2, "size_mismatch 1", probable},
		{"neither was due", grown, sizes(650), sizes(750), 0, "size_mismatch 0 1", probable},
		{"a size that was called before may be another step's", grown, sizes(600), sizes(500), 0, "order_mismatch 0 1", probable},
		{"too short to tell", sizes(1, 100), sizes(200), sizes(300), 0, "size_mismatch 0 1", probable},
		{"a pattern that repeats, one left out", layers, sizes(20), sizes(10), 0, "skipped_collective 1", probable},
		{"the same, on the other side", layers, sizes(10), sizes(20), 0, "skipped_collective 0", probable},
		{"a pattern that repeats, and a size that fits nowhere", layers, sizes(21), sizes(20), 0, "size_mismatch 0", probable},
		{"a pattern of operations, one left out", mixed, []said{{g, 8}}, []said{{"reduce_scatter", 8}}, 0, "skipped_collective 1", probable},
		{"an operation that was never called may be due now", mixed, []said{{"broadcast", 8}}, []said{{g, 8}}, 0, "op_mismatch 0 1", probable},
		{"a call at the end of a period that has come once", sizes(5, 5, 5, 5, 9, 5, 5, 5, 5), sizes(9), sizes(5), 0, "skipped_collective 0 1", probable},
		{"the same calls in another order", grown, []said{{a, 600}, {g, 600}}, []said{{g, 600}, {a, 600}}, 0, "order_mismatch 0 1", probable},
	} {
		n := len(c.before)
		w := newWorld(2).steady("0", c.before...)
		w.last(0, "0", n, c.done, c.zero...)
		w.last(1, "0", n, c.done, c.one...)
		v := expect(t, c.name, w.evidence(), c.want)
		if v.Confidence > c.most {
			t.Errorf("%s: confidence %.2f, at most %.2f", c.name, v.Confidence, c.most)
		}
		if len(v.Ranks) == 1 && !strings.Contains(v.Summary, "inference") {
			t.Errorf("%s: it is not said that this is an inference: %s", c.name, v.Summary)
		}
		if v.Class == SkippedCollective && c.done == 0 && !slices.ContainsFunc(v.Alternatives, func(x Alternative) bool { return x.Class != SkippedCollective && len(x.Ranks) == 2 }) {
			t.Errorf("%s: no other reading: %v", c.name, v.Alternatives)
		}

		// The same in a group of two of a job of eight: the others wait for them in the group of all.
		w = newWorld(8).group("5", "tp", 2, 3).steady("0", sizes(64, 64)...).steady("5", c.before...)
		w.last(2, "5", n, c.done, c.zero...)
		w.last(3, "5", n, c.done, c.one...)
		for _, r := range []int{0, 1, 4, 5, 6, 7} {
			w.last(r, "0", 2, 0, said{a, 64})
		}
		to := strings.NewReplacer(" 0", " 2", " 1", " 3")
		expect(t, c.name+", in a group of two of eight", w.evidence(), to.Replace(c.want))

		// Of eight that share the call a majority decides, whatever the calls before say.
		w = newWorld(8).steady("0", c.before...)
		for r := range 8 {
			if r == 6 {
				w.last(r, "0", n, c.done, c.zero...)
			} else {
				w.last(r, "0", n, c.done, c.one...)
			}
		}
		if v := Diagnose(w.evidence()); !slices.Equal(v.Ranks, []int{6}) {
			t.Errorf("%s, seven against one: %s: %s", c.name, short(v), v.Summary)
		}
	}
}

// TestHistoryOfHalves: two against two. A call that is early is one that was left out; another size may be either side's.
func TestHistoryOfHalves(t *testing.T) {
	for n, want := range map[int64]string{700: "skipped_collective 2 3", 650: "size_mismatch 0 1 2 3"} {
		w := newWorld(4).steady("0", sizes(100, 200, 300, 400, 500)...)
		for r := range 4 {
			w.last(r, "0", 5, 0, sizes([]int64{600, n}[r/2])...)
		}
		expect(t, fmt.Sprintf("two against two, %d", n), w.evidence(), want)
	}
}

// TestHistoryNamesNoInnocent: programs of two ranks with random sizes in which one rank leaves a call out, makes one more, or passes another size. Who is named alone
// must be that rank.
func TestHistoryNamesNoInnocent(t *testing.T) {
	alone := 0
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 3))
		period := 1 + rng.IntN(6)
		var unit []int64
		for range period {
			unit = append(unit, int64(1+rng.IntN(4))*64)
		}
		grows := rng.IntN(4) == 0
		due := func(i int) int64 {
			if grows {
				return int64(i+1) * 64
			}
			return unit[i%period]
		}
		n, odd := 1+rng.IntN(4*period+2), rng.IntN(2)
		fault := rng.IntN(3)
		w := newWorld(2)
		for r := range 2 {
			for i := range n {
				w.call(r, "0", int64(i+1), "all_reduce", due(i), true)
			}
			next := due(n)
			if r == odd {
				next = []int64{due(n + 1), due(max(n-1, 0)), due(n) + 7}[fault]
			}
			w.call(r, "0", int64(n+1), "all_reduce", next, false)
		}
		v := Diagnose(w.evidence())
		if len(v.Ranks) == 1 {
			alone++
			if v.Ranks[0] != odd {
				t.Errorf("seed %d: fault %d on rank %d after %d calls of period %v: %s (%.2f): %s", seed, fault, odd, n, unit, short(v), v.Confidence, v.Summary)
			}
		}
	}
	if alone < 50 {
		t.Errorf("only %d of 400 programs showed who it was", alone)
	}
}

// labTimeout and labHeard are the laboratory's watchdog lines.
func labTimeout(rank int, c said, dtype string, seq int) string {
	return fmt.Sprintf("rank %d: time-out: communicator 0 (default_pg): %s of %d %s, sequence %d, is not complete 2 s after its enqueue (deadline 2 s), the device has begun with it; "+
		"last enqueued %d, started %d, completed %d; the rank's thread is in host code: step %d: waiting for %s of %d %s, for 2 s", rank, c.op, c.n, dtype, seq, seq, seq, seq-1, seq-2, c.op, c.n, dtype)
}

func labHeard(rank int, from, own string) string {
	return fmt.Sprintf("rank %d: heard from rank 0: time-out or error there, not here: %s | this rank: %s", rank, from, own)
}

// withLogs adds what logs say to records of calls.
func withLogs(t *testing.T, e *evidence.Evidence, files map[string]string) *evidence.Evidence {
	t.Helper()
	e.Facts = logsOf(t, files).Facts
	return e
}

// started gives the last call of each rank that is not complete the state that devices tell.
func (w *world) started() *world {
	for _, d := range w.dumps {
		for i := range d.Entries {
			if d.Entries[i].State == "scheduled" {
				d.Entries[i].State = "started"
				d.Status[0].LastStarted = d.Status[0].LastEnqueued
			}
		}
	}
	return w
}

// TestCompletedMismatch: calls that differ complete, and the next one hangs on one rank: what differs first is the cause, also where logs tell of the later call alone.
func TestCompletedMismatch(t *testing.T) {
	typed := func(n int64, dtype string) *evidence.FlightCall {
		return &evidence.FlightCall{ProfilingName: "nccl:all_reduce", InputSizes: [][]int64{{n}}, InputDtypes: []string{dtype}, OutputSizes: [][]int64{{n}}, OutputDtypes: []string{dtype}}
	}
	for _, ranks := range []int{2, 8} {
		for _, c := range []struct {
			name string
			odd  *evidence.FlightCall
			two  string // what two ranks give
			many string
		}{
			{"dtype", typed(600, "BFloat16"), "dtype_mismatch 0 1", "dtype_mismatch 1"},
			{"size", typed(601, "Float"), "size_mismatch 1", "size_mismatch 1"},
			{"op", callOf("reduce_scatter", 600), "op_mismatch 0 1", "op_mismatch 1"},
		} {
			w := newWorld(ranks).steady("0", sizes(1, 100, 200, 300, 400, 500)...)
			first := labTimeout(0, said{"all_reduce", 700}, "float", 8)
			files := map[string]string{"rank_0.log": first + "\n"}
			for r := range ranks {
				w.last(r, "0", 6, 1, sizes(600)...)
				if r == 1 {
					d := w.dumps[r]
					d.Entries[len(d.Entries)-1].Call = c.odd
				}
				w.last(r, "0", 7, min(r, 1), sizes(700)...)
				if r > 0 {
					w.last(r, "0", 8, 0, sizes(800)...)
					wrong := fmt.Sprintf("LAB_EVENT rank=%d event=enter step=6\nLAB_EVENT rank=%d event=wrong_data step=6 group=0 call=all_reduce elements=700 of=700 first=0 want=3 got=4\n"+
						"LAB_EVENT rank=%d event=done step=6\nLAB_EVENT rank=%d event=enter step=7\n", r, r, r, r)
					files[fmt.Sprintf("rank_%d.log", r)] = wrong + labHeard(r, first, "has completed sequence 8 of communicator 0 (default_pg); communicator 0 (default_pg): "+
						"waits for all_reduce of 800 float, sequence 9, for 1.999 s; last enqueued 9, started 9, completed 8; the rank's thread is in host code: step 7: waiting for all_reduce of 800 float, for 1.999 s") + "\n"
				}
			}
			w.started()
			want := c.two
			if ranks > 2 {
				want = c.many
			}
			v := expect(t, fmt.Sprintf("%s completed, %d ranks", c.name, ranks), withLogs(t, w.evidence(), files), want)
			if v.Sequence != 7 {
				t.Errorf("%s, %d ranks: sequence %d, want 7", c.name, ranks, v.Sequence)
			}
			expect(t, c.name+", logs alone, which say of the later call alone", logsOf(t, files), "rank_stuck_gpu 0")
			if slices.ContainsFunc(v.Against, func(x Item) bool { return strings.Contains(x.Says, "stuck") }) {
				t.Errorf("%s, %d ranks: what follows speaks against it: %v", c.name, ranks, v.Against)
			}
		}
	}
}

// TestMismatchAndAStuckRank: a difference that completed is no reason for a rank that says that it saves a checkpoint.
func TestMismatchAndAStuckRank(t *testing.T) {
	w := newWorld(2).steady("0", sizes(1, 100, 200, 300, 400, 500)...)
	w.last(0, "0", 6, 2, sizes(600, 700, 800)...)
	w.last(1, "0", 6, 2, sizes(650, 700)...)
	first := labTimeout(0, said{"all_reduce", 800}, "float", 9)
	expect(t, "stuck after a difference", withLogs(t, w.started().evidence(), map[string]string{"rank_0.log": first + "\n",
		"rank_1.log": labHeard(1, first, "never joined sequence 9 of communicator 0 (default_pg): last enqueued == last completed == 8; waits for nothing; "+
			"the rank's thread is in host code: step 7: saving a checkpoint, for 2 s") + "\n"}), "rank_stuck_host 1")
}

// TestProgramOver: a rank whose program is over while others wait for one call more has left one out, whatever it does in its end.
func TestProgramOver(t *testing.T) {
	const tail = "waits for nothing; the rank's thread is in host code: ending, for 1.5 s"
	made := func(r int) string {
		return fmt.Sprintf("LAB_EVENT rank=%d event=init_begin mono_ns=1 group=0\nLAB_EVENT rank=%d event=init_done mono_ns=2 group=0\n", r, r)
	}
	const warned = "[rank1]:[W1129 17:04:21.241858603 ProcessGroupNCCL.cpp:1575] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources. (function operator())\n"
	stack := func(names ...string) evidence.Stack {
		s := evidence.Stack{Where: evidence.Where{File: "stack_1.txt", Line: 1}, Tool: "py-spy", Rank: 1, RankBy: "input", Threads: []evidence.Thread{{Name: "MainThread"}}}
		for _, n := range names {
			s.Threads[0].Frames = append(s.Threads[0].Frames, flight.Frame{Name: n, File: "/usr/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", Line: 9})
		}
		return s
	}
	for _, ranks := range []int{2, 8} {
		records := func(before []said, zero, one []said, done int) *world {
			w := newWorld(ranks).steady("0", before...)
			for r := range ranks {
				if r == 1 {
					w.last(r, "0", len(before), len(one), one...)
				} else {
					w.last(r, "0", len(before), done, zero...)
				}
			}
			return w.started()
		}
		same, grown := sizes(64, 64, 64, 64), sizes(30, 10, 50, 20)
		shiftedZero, shiftedOne := sizes(70, 60, 90), sizes(60, 90)
		first := labTimeout(0, said{"all_reduce", 64}, "float", 7)
		for _, c := range []struct {
			name  string
			w     *world
			log   string
			stack []evidence.Stack
			want  string
			seq   int64
		}{
			{"it takes down what it has made", records(same, sizes(64, 64, 64), sizes(64, 64), 2), made(1) + labHeard(1, first, `has no communicator "default_pg": not a member, never began its creation, or has ended it; `+tail) + "\n", nil, "skipped_collective 1", 7},
			{"its communicator is still there", records(same, sizes(64, 64, 64), sizes(64, 64), 2), made(1) + labHeard(1, first, "never joined sequence 7 of communicator 0 (default_pg): last enqueued == last completed == 6; "+tail) + "\n", nil, "skipped_collective 1", 7},
			{"its calls lie one apart", records(grown, shiftedZero, shiftedOne, 2), made(1) + labHeard(1, first, `has no communicator "default_pg": not a member, never began its creation, or has ended it; `+tail) + "\n", nil, "skipped_collective 1", 5},
			{"its interpreter ends", records(same, sizes(64, 64, 64), sizes(64, 64), 2), warned, nil, "skipped_collective 1", 7},
			{"its stack is in destroy_process_group", records(same, sizes(64, 64, 64), sizes(64, 64), 2), "", []evidence.Stack{stack("synchronize", "destroy_process_group", "main")}, "skipped_collective 1", 7},
			{"its stack is in the interpreter's end", records(same, sizes(64, 64, 64), sizes(64, 64), 2), "", []evidence.Stack{stack("wait", "_shutdown", "Py_FinalizeEx")}, "skipped_collective 1", 7},
			{"its stack is in its own program", records(same, sizes(64, 64, 64), sizes(64, 64), 2), "", []evidence.Stack{stack("save", "main")}, "rank_stuck_host 1", 7},
			{"its interpreter ends by an exception", records(same, sizes(64, 64, 64), sizes(64, 64), 2), strings.ReplaceAll(broken, "[rank3]", "[rank1]") + warned, nil, "rank_crash 1", 7},
		} {
			e := withLogs(t, c.w.evidence(), map[string]string{"rank_0.log": made(0) + first + "\n", "rank_1.log": c.log})
			e.Stacks = c.stack
			v := expect(t, fmt.Sprintf("%s, %d ranks", c.name, ranks), e, c.want)
			if v.Class == SkippedCollective && (v.Confidence < inferred || v.Sequence != c.seq) {
				t.Errorf("%s, %d ranks: %.2f, sequence %d, want %d", c.name, ranks, v.Confidence, v.Sequence, c.seq)
			}
			for _, x := range v.Against {
				t.Errorf("%s, %d ranks: against it: %s", c.name, ranks, x.Says)
			}
		}
	}
}

// TestOverByStacksAlone: whatever a program waits for in its end, it makes no call any more.
func TestOverByStacksAlone(t *testing.T) {
	at := func(rank int, names ...string) evidence.Stack {
		s := evidence.Stack{Where: evidence.Where{File: fmt.Sprintf("stack_%d.txt", rank), Line: 1}, Tool: "py-spy", Rank: rank, RankBy: "input", PID: 100 + rank, Threads: []evidence.Thread{{Name: "MainThread"}}}
		for _, n := range names {
			s.Threads[0].Frames = append(s.Threads[0].Frames, flight.Frame{Name: n, File: "/home/u/train.py", Line: 40 + rank})
		}
		return s
	}
	e := &evidence.Evidence{Stacks: []evidence.Stack{at(0, "all_reduce", "train"), at(1, "synchronize", "destroy_process_group", "main"), at(2, "all_reduce", "train")}}
	expect(t, "one is in destroy_process_group", e, "skipped_collective 1")
	e.Stacks[1] = at(1, "synchronize", "main")
	if v := Diagnose(e); v.Class == SkippedCollective {
		t.Errorf("one waits for its device: %s: %s", short(v), v.Summary)
	}
}

// TestThrownOut: ranks that are thrown out of a call by an exception come to their program's end as well, and have left nothing out.
func TestThrownOut(t *testing.T) {
	out := func(rank string) string {
		return strings.ReplaceAll(`[rankN]: Traceback (most recent call last):
[rankN]:   File "/home/u/train.py", line 91, in <module>
[rankN]:     main()
[rankN]: torch.distributed.DistBackendError: NCCL communicator was aborted on rank N.
[rankN]:[W1129 17:04:21.241858603 ProcessGroupNCCL.cpp:1575] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources.
`, "N", rank)
	}
	v := Diagnose(logsOf(t, map[string]string{"job.log": watchdog(0, "10:00:00", "ALLREDUCE", 50, 52, 49, 1024) + out("1") + out("2")}))
	checkVerdict(t, "thrown out", v)
	if v.Class == SkippedCollective || len(v.Ranks) > 0 {
		t.Errorf("thrown out: %s (%.2f): %s", short(v), v.Confidence, v.Summary)
	}
}

// TestNeverBegan: a rank without that communicator that has not made it before is still one that never came to its creation.
func TestNeverBegan(t *testing.T) {
	from := "rank 0: time-out: communicator 0 (default_pg) is not created 5 s after the beginning (deadline 5 s); the rank's thread is in host code: creating communicator 0, for 5 s"
	expect(t, "never began", logsOf(t, map[string]string{
		"rank_0.log": "LAB_EVENT rank=0 event=init_begin mono_ns=1 group=0\n" + from + "\n",
		"rank_1.log": labHeard(1, from, `has no communicator "default_pg": not a member, never began its creation, or has ended it; waits for nothing; the rank's thread is in host code: step 0: loading data, for 5 s`) + "\n",
	}), "lazy_init 1")
}

// TestInCreation: one side waits in a call, the other in the creation of another communicator, which is no program of its own.
func TestInCreation(t *testing.T) {
	for _, c := range []struct {
		ranks  int
		making []int
		want   string
	}{{2, []int{0}, "lazy_init 0 1"}, {8, []int{0, 1, 2, 4, 5, 6, 7}, "lazy_init 3"}, {8, []int{3}, "lazy_init 3"}} {
		w := newWorld(c.ranks).steady("0", sizes(1, 100, 200, 300)...)
		files := map[string]string{}
		var first string
		for r := range c.ranks {
			if !slices.Contains(c.making, r) {
				w.last(r, "0", 4, 0, sizes(400)...)
				first = labTimeout(r, said{"all_reduce", 400}, "float", 5)
				files[fmt.Sprintf("rank_%d.log", r)] = first + "\n"
			}
		}
		for _, r := range c.making {
			files[fmt.Sprintf("rank_%d.log", r)] = fmt.Sprintf("LAB_EVENT rank=%d event=init_begin mono_ns=5 group=1\n", r) + labHeard(r, first,
				"never joined sequence 5 of communicator 0 (default_pg): last enqueued == last completed == 4; waits in the creation of communicator 1 (second) for 2.0 s; "+
					"the rank's thread is in host code: creating communicator 1, for 2.0 s") + "\n"
		}
		v := expect(t, fmt.Sprintf("%v of %d make a communicator", c.making, c.ranks), withLogs(t, w.started().evidence(), files), c.want)
		if v.Confidence > inferred {
			t.Errorf("%v of %d make a communicator: %.2f", c.making, c.ranks, v.Confidence)
		}
	}
}

// TestDuplicateGPU: NCCL's refusal is read wherever its last error is told.
func TestDuplicateGPU(t *testing.T) {
	const said = "Duplicate GPU detected : rank 5 and rank 3 both on CUDA device 60"
	for name, text := range map[string]string{
		"in the laboratory's log": "2026-11-30 03:43:56.857 communicator 0: ncclCommInitRank: ncclInvalidUsage (invalid usage (run with NCCL_DEBUG=WARN for details)); last message: " + said + "\n",
		"in PyTorch's exception":  "[rank5]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:92, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.27.5\n[rank5]: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n[rank5]: Last error:\n[rank5]: " + said + "\n",
	} {
		expect(t, name, logsOf(t, map[string]string{"rank_5.log": text}), "env_mismatch 3 5")
	}
}

// TestInferenceStaysOne: the same history in two records is no second opinion on whose call was due.
func TestInferenceStaysOne(t *testing.T) {
	for name, want := range map[string]string{"size": "size_mismatch 1", "skip": "skipped_collective 1"} {
		v := Diagnose(readAll(t, "testdata/native/"+name+"/*"))
		if short(v) != want || v.Confidence > probable {
			t.Errorf("%s: %s (%.2f), want %s, %.2f at most", name, short(v), v.Confidence, want, probable)
		}
	}
	w := newWorld(2).steady("0", sizes(100, 200, 300, 400)...)
	w.last(0, "0", 4, 0, sizes(500)...)
	w.last(1, "0", 4, 0, sizes(501)...)
	j := newJob(w.evidence())
	f := j.align(j.groups, "dump")[0]
	again := *f
	again.kinds = []string{"calls"}
	f.join([]*finding{&again})
	if f.Confidence > probable {
		t.Errorf("two sources with one history: %.2f", f.Confidence)
	}
}
