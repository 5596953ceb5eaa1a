package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/commprobe/commprobe/bench/stat"
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/hanglab/flight"
	"github.com/commprobe/commprobe/internal/bindtest"
	"github.com/commprobe/commprobe/nccl"
)

// recorded reads the JSON dumps of a folder as far as these tests need them.
func recorded(t *testing.T, dir string, rank int) (names []string, seqs []int, groups map[string]string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("json_%d", rank)))
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Groups map[string]struct{ Desc, Ranks string } `json:"pg_config"`
		Calls  []struct {
			Name  string   `json:"profiling_name"`
			Seq   int      `json:"collective_seq_id"`
			Group []string `json:"process_group"`
		} `json:"entries"`
	}
	if err := json.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	groups = make(map[string]string)
	for name, g := range d.Groups {
		groups[name] = g.Desc + " " + g.Ranks
	}
	for _, c := range d.Calls {
		names, seqs = append(names, c.Group[0]+" "+strings.TrimPrefix(c.Name, "nccl:")), append(seqs, c.Seq)
	}
	return names, seqs, groups
}

// A worker that somebody else started dumps what its ranks did before it leaves, each communicator by its name.
func TestRecordOfHang(t *testing.T) {
	if !bindtest.Isolated(t, func(string) []string { return nil }) { // what hangs is never released
		return
	}
	t.Setenv("COMMPROBE_TEST_ENGINE", "") // four ranks, and no libraries
	w := newCouple(t, PlaceThread, 4)
	p := &w.sweep.Plan
	p.Record, p.Dump, p.Inject, p.Timeout = 64, filepath.Join(t.TempDir(), "d"), Inject{Hang: true}, time.Second
	p.Modes.Split, p.Modes.Comms = "mod:2", 2
	w.run(t, t.Context())
	w.outcome(t, "time-out", ExitTimeout)
	if m := w.result.Outcome.Message; !strings.Contains(m, "dumps what it recorded into "+p.Dump) {
		t.Errorf("message %q", m)
	}
	for rank := range 4 {
		names, seqs, groups := recorded(t, p.Dump, rank)
		first := rank % 2 * 2
		want := map[string]string{
			fmt.Sprint(first):     fmt.Sprintf("split mod:2, group %d, communicator 1 of 2 [%d, %d]", rank%2, rank%2, rank%2+2),
			fmt.Sprint(first + 1): fmt.Sprintf("split mod:2, group %d, communicator 2 of 2 [%d, %d]", rank%2, rank%2, rank%2+2),
		}
		if diff := cmp.Diff(want, groups); diff != "" {
			t.Errorf("rank %d: groups (-want +got):\n%s", rank, diff)
		}
		ops := 1 + 1 + p.Iters // warm-up, untimed, timed
		if rank >= 2 {         // the higher rank of its group
			ops--
		}
		for _, g := range []int{first, first + 1} {
			name := fmt.Sprintf("%d all_reduce", g)
			last := 0
			for i, n := range names {
				if n == name {
					last = seqs[i]
				}
			}
			if last != ops {
				t.Errorf("rank %d: the last call in %d is number %d, want %d of %v", rank, g, last, ops, names)
			}
		}
	}
}

// Every series is recorded, in all placements and for calls of all kinds; a run that goes well leaves neither dumps nor handles.
func TestRecordOfGoodRun(t *testing.T) {
	for _, place := range []Placement{PlaceGroup, PlaceThread} {
		w := newCouple(t, place, 4)
		p := &w.sweep.Plan
		p.Collectives, p.MinBytes, p.MaxBytes, p.Consistency = CollectiveNames(), 1<<10, 1<<10, true
		p.Record, p.Dump = 16, filepath.Join(t.TempDir(), "d")
		w.run(t, t.Context())
		w.outcome(t, "ok", ExitOK)
		if _, err := os.Stat(p.Dump); w.err != nil || !os.IsNotExist(err) {
			t.Errorf("%s: worker: %v, dumps: %v", place, w.err, err)
		}
	}
}

// rankInRing is what a ring that nobody told its rank says: the names of groups do when there are several.
func rankInRing(r, n int) int {
	if n == 1 {
		return -1
	}
	return r
}

// The calls of one row in the ring of a thread that has all ranks, taken apart by rank: every series is there.
func TestRecordOfGroup(t *testing.T) {
	engine, n := testEngine(t, 3)
	p := goodPlan()
	p.Engine, p.Placement, p.World, p.MaxBytes, p.Warmup, p.Consistency = engine, PlaceGroup, n, 8, 2, true
	if err := UseEngine(engine, "", "", n); err != nil {
		t.Fatal(err)
	}
	ranks := make([]int, n)
	for r := range ranks {
		ranks[r] = r
	}
	drivers, err := newDrivers(p.Placement, ranks, ranks, csrc.NewFlag(), p.Timeout)
	if err != nil {
		t.Fatal(err)
	}
	w, d, ctx := &worker{plan: p, drivers: drivers}, drivers[0], t.Context()
	d.spread(&p)
	d.barrier, d.parties = csrc.NewBarrier(), 1
	id, err := nccl.NewUniqueID()
	if err != nil {
		t.Fatal(err)
	}
	ids := map[commKey]nccl.UniqueID{{0, 0}: id}
	if d.rec, err = newRecorder("", DefaultRecord, 0); err != nil {
		t.Fatal(err)
	}
	d.rec.addGroups(d, &p, ids)
	steps, err := p.steps()
	if err != nil {
		t.Fatal(err)
	}
	task := &task{step: steps[0], plan: &p, iters: 4, eventIters: 5}
	err = errors.Join(d.init(ctx, ids, &p.Modes), w.buffers(ctx, d), d.follow(ctx))
	if err == nil {
		err = d.thread.Do(ctx, func() error {
			_, err := d.measure(task)
			return err
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	ring, err := d.rec.snapshot()
	if err != nil {
		t.Fatal(err)
	}
	ended := errors.Join(d.rec.unfollow(ctx), d.each(ctx, (*lane).close), d.destroy(ctx), d.thread.Close(ctx), d.rec.close())
	if left := cuda.Live(); ended != nil || len(left) != 0 || nccl.Live() != 0 {
		t.Errorf("%v; left behind: %v, communicators %d", ended, left, nccl.Live())
	}
	split := byRank(ring)
	if len(split) != n {
		t.Fatalf("%d ranks", len(split))
	}
	for r, one := range split {
		phases := make(map[string]int)
		for _, x := range one.Records {
			if x.Kind == flight.RingGroupEnd {
				continue
			}
			if x.Kind != flight.RingAllReduce || x.State != flight.Completed || x.InCount != 2 || x.OutCount != 2 || x.TimeoutNs != int64(time.Minute) || x.Coalesced != (n > 1) {
				t.Errorf("rank %d: %+v", r, x)
			}
			phases[strings.TrimPrefix(x.Frames[0].Name, "all_reduce, ")+" "+strings.TrimPrefix(x.Frames[1].Name, "bench.(*half).")]++
		}
		want := make(map[string]int)
		for _, where := range []string{"out-of-place", "in-place"} {
			for phase, calls := range map[string]int{"warm": p.Warmup, "poise": 1, "timed": 4, "events": 5, "runOnce": p.Check} {
				want[where+" "+phase] = calls
			}
		}
		want["out-of-place hashes"] = consistencyRepeats
		if diff := cmp.Diff(want, phases); diff != "" || one.Rank != rankInRing(r, n) || one.Groups[0].Name != "0" {
			t.Errorf("rank %d %+v: calls (-want +got):\n%s", one.Rank, one.Groups, diff)
		}
	}
}

func TestByRankAndSettle(t *testing.T) {
	call := func(id uint64, group int, seq uint64, kind flight.RingKind, state flight.State) flight.RingRecord {
		return flight.RingRecord{ID: id, Group: group, CollSeq: seq, Kind: kind, State: state, Bounded: true, DurationNs: -1}
	}
	ring := &flight.Ring{
		Rank: 4, World: 6,
		Groups: []flight.RingGroup{{Name: "4/0", Members: []int{4, 5}}, {Name: "5/0", Members: []int{4, 5}}, {Name: "4/1"}, {Name: "x/1"}},
		Records: []flight.RingRecord{
			call(1, 0, 1, flight.RingAllReduce, flight.Scheduled), call(2, 1, 1, flight.RingAllReduce, flight.Scheduled),
			call(3, 0, 2, flight.RingAllReduce, flight.Scheduled), call(4, 1, 2, flight.RingAllReduce, flight.Completed),
			call(5, -1, 1, flight.RingAllReduce, flight.Scheduled), call(6, 0, 3, flight.RingBroadcast, flight.Scheduled),
			call(7, 2, 1, flight.RingAllReduce, flight.Scheduled), call(8, 1, 3, flight.RingBroadcast, flight.Completed),
		},
	}
	ring.Records[3].CompletedNs = 77
	ring.Groups[0].Coll = flight.RingLast{Enqueued: 3, Started: -1, Completed: -1}
	ranks := byRank(ring)
	settle(ranks)
	var got []string
	for _, r := range ranks {
		for _, x := range r.Records {
			got = append(got, fmt.Sprintf("rank %d, %s of %d: %d %s %s %d", r.Rank, r.Groups[x.Group].Name, len(r.Groups), x.CollSeq, x.Kind, x.State, x.CompletedNs))
		}
	}
	// Rank 5 has completed its second all_reduce, so rank 4 has begun it and is through with the first. A broadcast tells nothing of the kind.
	want := []string{
		"rank 4, 0 of 2: 1 all_reduce completed 77", "rank 4, 0 of 2: 2 all_reduce scheduled 0", "rank 4, 0 of 2: 3 broadcast scheduled 0",
		"rank 4, 1 of 2: 1 all_reduce scheduled 0",
		"rank 5, 0 of 1: 1 all_reduce completed 77", "rank 5, 0 of 1: 2 all_reduce completed 77", "rank 5, 0 of 1: 3 broadcast completed 0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if c := ranks[0].Groups[0].Coll.Completed; c != 1 {
		t.Errorf("rank 4 has completed %d", c)
	}
	// A driver of one rank: names without ranks.
	one := byRank(&flight.Ring{Rank: 2, Groups: []flight.RingGroup{{Name: "0"}}, Records: []flight.RingRecord{{ID: 1}}})
	if len(one) != 1 || one[0].Rank != 2 || one[0].Groups[0].Name != "0" || len(one[0].Records) != 1 {
		t.Errorf("%+v", one)
	}
}

func TestStuck(t *testing.T) {
	now := csrc.NowNs()
	at := func(s flight.State, ago time.Duration) flight.RingRecord {
		r := flight.RingRecord{State: s}
		if s == flight.Completed {
			r.CompletedNs = now - int64(ago)
		}
		return r
	}
	retired := at(flight.Scheduled, 0)
	retired.Retired = true
	for _, c := range []struct {
		name    string
		records []flight.RingRecord
		want    bool
	}{
		{"nothing", nil, false},
		{"all done", []flight.RingRecord{at(flight.Completed, time.Hour)}, false},
		{"open since long", []flight.RingRecord{at(flight.Completed, time.Minute), at(flight.Scheduled, 0)}, true},
		{"nothing ever done", []flight.RingRecord{at(flight.Started, 0)}, true},
		{"goes on", []flight.RingRecord{at(flight.Completed, 100*time.Millisecond), at(flight.Scheduled, 0)}, false},
		{"given up", []flight.RingRecord{at(flight.Completed, time.Minute), retired}, false},
	} {
		if got := stuck([]*flight.Ring{{}, {Records: c.records}}); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestElements(t *testing.T) {
	for kind, want := range map[csrc.StepKind][2]uint64{
		csrc.StepAllReduce: {5, 5}, csrc.StepBroadcast: {5, 5}, csrc.StepReduce: {5, 5}, csrc.StepAllGather: {5, 20}, csrc.StepReduceScatter: {20, 5},
		csrc.StepSend: {5, 0}, csrc.StepRecv: {0, 5}, csrc.StepAllToAll: {20, 20}, csrc.StepGather: {5, 20}, csrc.StepScatter: {20, 5},
	} {
		if in, out := elements(&csrc.Step{Kind: kind, Count: 5}, 4); in != want[0] || out != want[1] {
			t.Errorf("kind %d: %d in, %d out, want %v", kind, in, out, want)
		}
	}
}

// A call site names files as they are in the source tree, wherever the program was built.
func TestCallSite(t *testing.T) {
	pc, _, line, _ := runtime.Caller(0)
	got := allGather.site(true) + frameOf(pc)
	lines := strings.Split(strings.TrimSuffix(got, "\n"), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "all_gather, in-place\tbench/all_gather.go\t") || lines[1] != fmt.Sprintf("bench.TestCallSite\tbench/record_test.go\t%d", line) {
		t.Errorf("%q", got)
	}
}

// Where the ring has no room as a file, the sweep goes on with one of its own.
func TestRecorderFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "ring")
	for _, c := range []struct{ path, want string }{{path, path}, {"", ""}, {filepath.Join(dir, "no", "ring"), ""}, {path, ""}} {
		r, err := newRecorder(c.path, 100, 3)
		if err != nil || r.path != c.want {
			t.Fatalf("%q: path %q, %v", c.path, r.path, err)
		}
		if c.want != "" {
			if s, err := os.Stat(path); err != nil || s.Size() != flight.RingBytes(100) || s.Mode().Perm() != 0o600 {
				t.Errorf("%v, %v", s, err)
			}
		}
		if err := errors.Join(r.close()); err != nil {
			t.Error(err)
		}
		if ring, err := r.snapshot(); ring != nil || err != nil {
			t.Errorf("a closed ring: %v, %v", ring, err)
		}
	}
}

func TestRecordIsValidated(t *testing.T) {
	for _, c := range []struct {
		change func(*Plan)
		want   string
	}{
		{func(p *Plan) { p.Record = -1 }, "--record -1"},
		{func(p *Plan) { p.Record, p.Dump = MaxRecord+1, "d" }, "--record 1048577"},
		{func(p *Plan) { p.Record = 1 }, "--dump"},
		{func(p *Plan) { p.Inject.Hang, p.Placement = true, PlaceGroup }, "--inject-hang"},
		{func(p *Plan) { p.Inject.Hang, p.World = true, 1 }, "--inject-hang"},
	} {
		p := goodPlan()
		c.change(&p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

// BenchmarkRecord is what the record costs an all_reduce of 8 bytes: medians of sweeps with and without it, taken in turn.
func BenchmarkRecord(b *testing.B) {
	var us [2][]float64
	for range b.N {
		for i := range 2 {
			us[i] = append(us[i], smallSweep(b, i*DefaultRecord)...)
		}
		for i := 1; i >= 0; i-- {
			us[i] = append(us[i], smallSweep(b, i*DefaultRecord)...)
		}
	}
	off, on := stat.Median(us[0]), stat.Median(us[1])
	b.ReportMetric(off, "µs/op-off")
	b.ReportMetric(on, "µs/op-on")
	b.ReportMetric((on/off-1)*100, "%overhead")
	b.ReportMetric((slices.Min(us[1])/slices.Min(us[0])-1)*100, "%overhead-of-min")
}

func smallSweep(b *testing.B, record int) []float64 {
	w := newCouple(b, PlaceThread, 2)
	p := &w.sweep.Plan
	p.MinBytes, p.MaxBytes, p.Iters, p.Warmup, p.Check, p.Modes.Cycles = 8, 8, 400, 20, 0, 10
	p.Record, p.Dump = record, b.TempDir()
	w.run(b, context.Background())
	var out []float64
	for _, h := range allHalves(w.result.Rows) {
		out = append(out, float64(h.TimeUS))
	}
	return out
}
