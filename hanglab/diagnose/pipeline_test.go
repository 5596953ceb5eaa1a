package diagnose

import (
	"slices"
	"testing"

	"github.com/commprobe/commprobe/hanglab/evidence"
	"github.com/commprobe/commprobe/hanglab/flight"
)

// p2p appends a send or receive ("send 0->1") to a rank's record: with its own number, after so many collectives of the group.
func (w *world) p2p(r int, group, op string, seq, colls, n int64, done bool) {
	w.call(r, group, colls, op, n, done)
	d := w.dumps[r]
	e := &d.Entries[len(d.Entries)-1]
	e.IsP2P, e.P2PSeqID = true, seq
}

// forget takes a group out of a rank's configuration, as it is before the rank has used it.
func (w *world) forget(r int, group string) *world {
	d := w.dumps[r]
	d.Groups = slices.DeleteFunc(d.Groups, func(g flight.Group) bool { return g.Name == group })
	d.Status = slices.DeleteFunc(d.Status, func(s flight.GroupStatus) bool { return s.PGID == w.pgid[group] })
	return w
}

// stages are two stages of two ranks each: tensor groups 1 (0, 1) and 2 (2, 3), pipeline groups 3 (0, 2) and 4 (1, 3). Each stage has made some tensor calls, and
// messages have gone down the pipeline.
func stages(collectiveFirst bool) *world {
	w := newWorld(4).group("1", "tp", 0, 1).group("2", "tp", 2, 3).group("3", "pp", 0, 2).group("4", "pp", 1, 3)
	colls := int64(0)
	if collectiveFirst {
		w.steps("3", 1).steps("4", 1)
		colls = 1
	}
	w.steps("1", 2)
	for seq := int64(1); seq <= 2; seq++ {
		for r := range 2 {
			w.p2p(r, []string{"3", "4"}[r], "send 0->1", seq, colls, 64, true)
			w.p2p(r+2, []string{"3", "4"}[r], "recv 1<-0", seq, colls, 64, true)
		}
	}
	w.steps("2", 2)
	for r := range 2 {
		w.p2p(r+2, []string{"3", "4"}[r], "recv 1<-0", 3, colls, 64, false)
	}
	return w
}

// TestPipelines: what sends and receives wait for is found through them, not in them.
func TestPipelines(t *testing.T) {
	for _, first := range []bool{false, true} {
		w := stages(first)
		w.call(0, "1", 3, "all_reduce", 3000, false)
		expect(t, "a rank of the first stage never comes to its tensor group's call", w.evidence(), "skipped_collective 1")

		w = stages(first)
		expect(t, "both ranks of the first stage are silent in host code", w.evidence(), "skipped_collective 0 1")
	}
	w := newWorld(4).steps("0", 3).group("5", "dp", 0, 1, 2, 3)
	for r := range 3 {
		w.call(r, "5", 1, "all_reduce", 77, false)
	}
	w.forget(3, "5")
	expect(t, "a group that a rank has not used yet", w.evidence(), "skipped_collective 3")

	w = newWorld(2).steps("0", 3)
	for r := range 2 {
		w.p2p(r, "0", []string{"send 0->1", "recv 1<-0"}[r], 9, 3, []int64{100, 200}[r], false)
	}
	w.dumps[0].Entries, w.dumps[1].Entries = w.dumps[0].Entries[3:], w.dumps[1].Entries[3:]
	expect(t, "only open calls were recorded, and they meet with two sizes", w.evidence(), "size_mismatch 0 1")

	w = newWorld(2).steps("0", 3)
	for r := range 2 {
		w.p2p(r, "0", []string{"send 0->1", "send 1->0"}[r], 1, 3, 1<<20, false)
		w.p2p(r, "0", []string{"recv 0<-1", "recv 1<-0"}[r], 2, 3, 1<<20, false)
	}
	v := expect(t, "both send before they receive", w.evidence(), "order_mismatch 0 1")
	if v.Confidence > probable {
		t.Errorf("both send first: %.2f", v.Confidence)
	}
}

// TestLeftOutMessage: one message of several was not received, and later ones were, so each receive got the one before.
func TestLeftOutMessage(t *testing.T) {
	w := newWorld(2)
	recvs := int64(0)
	for step := int64(1); step <= 5; step++ {
		for r := range 2 {
			w.call(r, "0", step, "all_reduce", 100*step, true)
		}
		w.p2p(0, "0", "send 0->1", step, step, 64, step < 5)
		if step != 3 {
			recvs++
			w.p2p(1, "0", "recv 1<-0", recvs, step, 64, step < 5)
		}
	}
	v := expect(t, "a receive was left out", w.evidence(), "unpaired_p2p 1")
	if v.Sequence != 3 {
		t.Errorf("sequence %d, want the third message", v.Sequence)
	}
}

// TestMissingFiles: of several ranks without a dump, the one for which most others wait is named, and not for sure.
func TestMissingFiles(t *testing.T) {
	w := newWorld(6).steps("0", 2).group("1", "dp", 0, 1, 2, 5).group("2", "dp", 3, 4)
	for _, r := range []int{0, 1, 2} {
		w.call(r, "1", 1, "all_reduce", 10, false)
	}
	w.call(3, "2", 1, "all_reduce", 10, false)
	v := expect(t, "two files are missing", w.evidence(4, 5), "rank_crash 5")
	if v.Confidence > oneView {
		t.Errorf("two files are missing: %.2f", v.Confidence)
	}

	w = newWorld(6).steps("0", 2).group("1", "tp", 0, 1, 2).group("2", "dp", 3, 4)
	for _, r := range []int{0, 1, 2} {
		w.call(r, "1", 1, "all_reduce", 10, false)
	}
	w.call(3, "2", 1, "all_reduce", 10, false)
	expect(t, "a whole group is stuck by itself", w.evidence(4), "gpu_stuck_or_network")
}

// TestDeviceOrProgram: a rank that is in a call which others have finished. Whether it has made as many calls as they tells if its device or its program is odd.
func TestDeviceOrProgram(t *testing.T) {
	started := func(w *world, r int, seq int64) {
		e := w.dumps[r].Entries
		e[len(e)-1].State = "started"
		w.dumps[r].Status[0].LastStarted = seq
	}
	w := newWorld(4)
	for seq := int64(1); seq <= 9; seq++ {
		for r := range 4 {
			if r < 3 || seq < 9 {
				w.call(r, "0", seq, "all_reduce", 512, seq < 8 || r < 3 && seq == 8)
			}
		}
	}
	for r := range 4 {
		started(w, r, min(9, 9-int64(r/3)))
	}
	expect(t, "inside of a call, and one call less", w.evidence(), "skipped_collective 3")
	w.call(3, "0", 9, "all_reduce", 512, false)
	w.dumps[3].Status[0].LastStarted = 7
	w.dumps[3].Entries[7].State = "scheduled"
	expect(t, "not begun, and as many calls", w.evidence(), "rank_stuck_gpu 3")

	w = newWorld(4).steps("0", 5)
	for r := range 4 {
		w.call(r, "0", 6, "all_reduce", 600, r < 2)
		w.call(r, "0", 7, "all_reduce", 700, false)
	}
	expect(t, "half are a call further: two moments of a running job", w.evidence(), "undecided")
}

// TestNotTheSame: what looks the same on all ranks and is not.
func TestNotTheSame(t *testing.T) {
	exchange := func(in, out int64) *evidence.FlightCall {
		return &evidence.FlightCall{ProfilingName: "nccl:all_to_all", InputSizes: [][]int64{{in}}, InputDtypes: []string{"Float"}, OutputSizes: [][]int64{{out}}, OutputDtypes: []string{"Float"}}
	}
	w := newWorld(4).steps("0", 3)
	for r := range 4 {
		w.call(r, "0", 4, "all_to_all", 80, false)
		w.dumps[r].Entries[3].Call = exchange(80, 80+int64(r/3)*20)
	}
	expect(t, "an exchange whose sums differ", w.evidence(), "size_mismatch 3")
	for r := range 4 {
		w.dumps[r].Entries[3].Call = exchange(int64(60+20*(r%2)), int64(80-20*(r%2)))
	}
	expect(t, "an uneven exchange whose sums are equal", w.evidence(), "gpu_stuck_or_network")

	w = newWorld(4).steps("0", 3)
	for r := range 4 {
		w.call(r, "0", 4, "bucket", 80, false)
		n := int64(80 + 8*(r/3))
		w.dumps[r].Entries[3].Call = &evidence.FlightCall{ProfilingName: "flush of bucket", InputSizes: [][]int64{{n}}, OutputSizes: [][]int64{{n}}}
	}
	v := expect(t, "a call that the program has named itself", w.evidence(), "size_mismatch 3")
	if v.Confidence > probable {
		t.Errorf("a named call: %.2f", v.Confidence)
	}

	w = newWorld(2)
	for seq := int64(1); seq <= 5; seq++ {
		for r := range 2 {
			w.call(r, "0", seq, "all_reduce", 64+int64(r)*(seq/5)*64, seq < 5)
		}
	}
	expect(t, "two ranks, calls all alike, the last one twice as large on one", w.evidence(), "size_mismatch 1")
}

// TestTwoJobs: dumps of an earlier, larger job were left in the folder.
func TestTwoJobs(t *testing.T) {
	old, now := newWorld(8).steps("0", 4), newWorld(4).steps("0", 9)
	for r := range 8 {
		old.call(r, "0", 5, "broadcast", 3, false)
	}
	for r := range 3 {
		now.call(r, "0", 10, "all_reduce", 5, false)
	}
	e := now.evidence()
	for _, d := range old.evidence().Dumps[4:] {
		e.Dumps = append(e.Dumps, d)
	}
	v := expect(t, "files of another job", e, "skipped_collective 3")
	if !slices.ContainsFunc(v.Evidence, func(x Item) bool { return x.Text == "a job of 8 ranks" }) {
		t.Errorf("it is not told that files of another job are left out: %+v", v.Evidence)
	}
}

// TestCircleNamesThoseInIt: who only waits in one of the two calls has taken nothing in another order.
func TestCircleNamesThoseInIt(t *testing.T) {
	w := newWorld(4).group("1", "tp", 0, 1).steps("0", 3).steps("1", 3)
	for _, r := range []int{0, 2, 3} {
		w.call(r, "0", 4, "all_reduce", 40, false)
	}
	w.call(1, "1", 4, "all_reduce", 41, false)
	v := expect(t, "two calls in two orders", w.evidence(), "crossed_comms 0 1")
	if v.Confidence > probable {
		t.Errorf("nothing tells which of the two is wrong: %.2f", v.Confidence)
	}
}
