package diagnose

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/commprobe/commprobe/hanglab/evidence"
	"github.com/commprobe/commprobe/hanglab/flight"
)

// world builds dumps from a few words, for cases that no recorded run has.
type world struct {
	ranks  int
	dumps  []*evidence.FlightDump
	groups map[string][]int
	desc   map[string]string
	pgid   map[string]int64
	order  []string
}

func newWorld(ranks int) *world {
	w := &world{ranks: ranks, groups: map[string][]int{}, desc: map[string]string{}, pgid: map[string]int64{}}
	for r := range ranks {
		w.dumps = append(w.dumps, &evidence.FlightDump{Name: fmt.Sprintf("trace_%d", r), Rank: r, Form: "json", Version: "2.10"})
	}
	var all []int
	for r := range ranks {
		all = append(all, r)
	}
	return w.group("0", "default_pg", all...)
}

func (w *world) group(name, desc string, ranks ...int) *world {
	w.groups[name], w.desc[name], w.pgid[name] = ranks, desc, int64(len(w.order))
	w.order = append(w.order, name)
	for _, r := range ranks {
		d := w.dumps[r]
		d.Groups = append(d.Groups, flight.Group{Name: name, Desc: desc, Ranks: ranks})
		d.Status = append(d.Status, flight.GroupStatus{PGID: w.pgid[name], LastEnqueued: -1, LastStarted: -1, LastCompleted: -1})
	}
	return w
}

var (
	worldCalls   = map[string]*evidence.FlightCall{}
	worldOrigins = map[string]*evidence.FlightOrigin{}
)

func callOf(op string, n int64) *evidence.FlightCall {
	key := fmt.Sprint(op, n)
	if worldCalls[key] == nil {
		worldCalls[key] = &evidence.FlightCall{ProfilingName: "nccl:" + op, InputSizes: [][]int64{{n}}, InputDtypes: []string{"Float"}, OutputSizes: [][]int64{{n}},
			OutputDtypes: []string{"Float"}}
	}
	return worldCalls[key]
}

// call appends a collective to a rank's record.
func (w *world) call(r int, group string, seq int64, op string, n int64, done bool) {
	key := fmt.Sprint(group, w.pgid[group])
	if worldOrigins[key] == nil {
		worldOrigins[key] = &evidence.FlightOrigin{}
	}
	o := &evidence.FlightOrigin{PGID: w.pgid[group], GroupName: group, GroupDesc: w.desc[group]}
	d := w.dumps[r]
	e := evidence.FlightEntry{RecordID: int64(len(d.Entries)), CollectiveSeqID: seq, OpID: seq, Call: callOf(op, n), Origin: o, State: "scheduled", DurationMs: -1,
		TimeCreatedNs: 1_700_000_000_000_000_000 + int64(len(d.Entries))*1_000_000}
	if done {
		e.State, e.Retired, e.TimeCompletedNs = "completed", true, e.TimeCreatedNs+500_000
	}
	d.Entries = append(d.Entries, e)
	for i := range d.Status {
		if s := &d.Status[i]; s.PGID == w.pgid[group] {
			s.LastEnqueued = max(s.LastEnqueued, seq)
			if done {
				s.LastCompleted = max(s.LastCompleted, seq)
			}
		}
	}
}

// steps makes calls 1 to n of a group on all its members, complete.
func (w *world) steps(group string, n int64) *world {
	for seq := int64(1); seq <= n; seq++ {
		for _, r := range w.groups[group] {
			w.call(r, group, seq, "all_reduce", 1000*seq, true)
		}
	}
	return w
}

// evidence leaves out the dumps of some ranks. Names of groups are found as they are in files.
func (w *world) evidence(without ...int) *evidence.Evidence {
	e := &evidence.Evidence{}
	for r, d := range w.dumps {
		if !slices.Contains(without, r) {
			e.Dumps = append(e.Dumps, evidence.Dump{Where: evidence.Where{File: d.Name}, Rank: r, Data: d})
		}
	}
	return e
}

func expect(t *testing.T, name string, e *evidence.Evidence, want string) *Verdict {
	t.Helper()
	v := Diagnose(e)
	checkVerdict(t, name, v)
	if short(v) != want {
		t.Errorf("%s: %s, want %s: %s", name, short(v), want, v.Summary)
	}
	return v
}

// TestNearMisses: what looks like a hang and is none, or has no culprit.
func TestNearMisses(t *testing.T) {
	expect(t, "all complete", newWorld(4).steps("0", 20).evidence(), "not_a_hang")

	w := newWorld(4).steps("0", 20)
	for r := range 4 {
		w.call(r, "0", 21, "all_reduce", 500, false)
	}
	expect(t, "all at the same call", w.evidence(), "gpu_stuck_or_network")

	w = newWorld(4).steps("0", 20)
	w.dumps[2].Entries = w.dumps[2].Entries[15:]
	expect(t, "one ring has wrapped", w.evidence(), "not_a_hang")

	w = newWorld(4).steps("0", 20)
	for r, d := range w.dumps {
		for i := range d.Entries {
			d.Entries[i].TimeCreatedNs += int64(r) * 3 * 3600 * 1_000_000_000
		}
	}
	if v := expect(t, "clocks hours apart", w.evidence(), "not_a_hang"); len(v.Alternatives) > 0 {
		t.Errorf("clocks hours apart: %v", v.Alternatives)
	}

	w = newWorld(4).steps("0", 20)
	for i := 12; i < 20; i++ { // from call 13 on all are two seconds later, rank 3 a little before them
		for r, d := range w.dumps {
			d.Entries[i].TimeCreatedNs += 2_000_000_000
			if r == 3 && i == 12 {
				continue
			}
			if i == 12 {
				d.Entries[i].TimeCreatedNs -= 2_000_000_000
			}
		}
	}
	v := expect(t, "a straggler that came", w.evidence(), "not_a_hang")
	if len(v.Alternatives) != 1 || v.Alternatives[0].Class != Straggler || !slices.Equal(v.Alternatives[0].Ranks, []int{3}) {
		t.Errorf("a straggler that came: alternatives %v", v.Alternatives)
	}

	w = newWorld(4).steps("0", 20)
	expect(t, "nothing waits, and one dump is missing", w.evidence(1), "not_a_hang")

	w = newWorld(4).steps("0", 20)
	w.call(0, "0", 21, "all_reduce", 500, false)
	expect(t, "one dump of four", w.evidence(1, 2, 3), "undecided")
	expect(t, "no evidence", &evidence.Evidence{}, "undecided")
	expect(t, "nil", nil, "undecided")
}

// TestCauses: faults in groups, whose victims are elsewhere.
func TestCauses(t *testing.T) {
	// Rank 5 sleeps; its pair {4,5} waits for it, and the pair's other half keeps the group of all.
	w := newWorld(8).group("1", "tp", 4, 5).steps("0", 5).steps("1", 5)
	w.call(4, "1", 6, "all_reduce", 77, false)
	for _, r := range []int{0, 1, 2, 3, 6, 7} {
		w.call(r, "0", 6, "all_reduce", 88, false)
	}
	expect(t, "the sink of two groups", w.evidence(), "skipped_collective 5")

	// The same without its dump: the only rank that left nothing.
	expect(t, "the sink has no dump", w.evidence(5), "rank_crash 5")

	// Two groups of one name with different members are two groups.
	w = newWorld(4)
	w.group("9", "ep", 0, 1).group("9", "ep", 2, 3).steps("0", 3)
	for r := range 4 {
		w.call(r, "9", 1, "all_reduce", int64(100+r/2), true)
	}
	expect(t, "one name, two groups", w.evidence(), "not_a_hang")

	// Two of four disagree with two: no majority.
	w = newWorld(4).steps("0", 3)
	for r := range 4 {
		w.call(r, "0", 4, "all_reduce", int64(10+r%2), false)
	}
	v := expect(t, "a tie", w.evidence(), "size_mismatch 0 1 2 3")
	if v.Confidence > probable {
		t.Errorf("a tie with confidence %v", v.Confidence)
	}

	// A dump that is empty: the rank was ended while it wrote it.
	w = newWorld(4).steps("0", 3)
	for r := range 3 {
		w.call(r, "0", 4, "all_reduce", 10, false)
	}
	e := w.evidence(3)
	e.Dumps = append(e.Dumps, evidence.Dump{Where: evidence.Where{File: "trace_3"}, Rank: 3, Err: evidence.ErrEmpty})
	if v := expect(t, "an empty dump", e, "rank_crash 3"); v.Confidence != probable {
		t.Errorf("an empty dump: confidence %v", v.Confidence)
	}

	// A program that repeats itself: rank 1 calls what follows, and the others have not come to that yet.
	w = newWorld(4)
	sizes := []int64{100, 200, 300}
	for seq := int64(1); seq <= 8; seq++ {
		for r := range 4 {
			w.call(r, "0", seq, "all_reduce", sizes[seq%3], true)
		}
	}
	for r := range 4 {
		w.call(r, "0", 9, "all_reduce", sizes[(9+int64(map[bool]int{true: 1}[r == 1]))%3], false)
	}
	expect(t, "a skip that only the repetition shows", w.evidence(), "skipped_collective 1")
}

// TestMissingCulprit: without the culprit's dump nobody else is accused with confidence.
func TestMissingCulprit(t *testing.T) {
	for _, name := range []string{"size", "dtype", "op", "order", "skip", "skip_same", "sendrecv_large", "crossed", "kill", "stuck", "stop", "gpu_busy"} {
		v := Diagnose(readAll(t, filepath.Join("testdata", "lab", name, "json_[012]")))
		if v.Confidence > byAbsence && slices.ContainsFunc(v.Ranks, func(r int) bool { return r != 3 }) {
			t.Errorf("%s without rank 3's dump: %s %v (%.2f): %s", name, v.Class, v.Ranks, v.Confidence, v.Summary)
		}
	}
}

// TestPermuted: other numbers for the ranks give the same verdict with those numbers.
func TestPermuted(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, name := range []string{"size", "dtype", "op", "order", "skip", "skip_same", "crossed", "kill", "gpu_busy", "netcut", "straggler"} {
		e := readAll(t, filepath.Join("testdata", "lab", name, "json_*"))
		want := Diagnose(e)
		for range 5 {
			to := rng.Perm(4)
			p := &evidence.Evidence{}
			for _, d := range e.Dumps {
				data := *d.Data
				data.Groups = slices.Clone(data.Groups)
				data.Rank = to[d.Rank]
				p.Dumps = append(p.Dumps, evidence.Dump{Where: d.Where, Rank: to[d.Rank], Data: &data})
			}
			rng.Shuffle(len(p.Dumps), func(i, j int) { p.Dumps[i], p.Dumps[j] = p.Dumps[j], p.Dumps[i] })
			got := Diagnose(p)
			var ranks []int
			for _, r := range want.Ranks {
				ranks = append(ranks, to[r])
			}
			slices.Sort(ranks)
			if got.Class != want.Class || !slices.Equal(got.Ranks, ranks) && len(ranks)+len(got.Ranks) > 0 || got.Confidence != want.Confidence {
				t.Errorf("%s with ranks %v: %s %v (%.2f), want %s %v (%.2f)", name, to, got.Class, got.Ranks, got.Confidence, want.Class, ranks, want.Confidence)
			}
		}
	}
}

// TestHealthyGroupAdded: another group in which all is well changes nothing.
func TestHealthyGroupAdded(t *testing.T) {
	for _, name := range []string{"size", "skip", "kill", "gpu_busy", "crossed", "control"} {
		e := readAll(t, filepath.Join("testdata", "lab", name, "json_*"))
		want := Diagnose(e)
		for i := range e.Dumps {
			d := e.Dumps[i].Data
			d.Groups = append(slices.Clone(d.Groups), flight.Group{Name: "77", Desc: "healthy", Ranks: []int{0, 1, 2, 3}})
			o := &evidence.FlightOrigin{PGID: 77, GroupName: "77", GroupDesc: "healthy"}
			var more []evidence.FlightEntry
			for seq := int64(1); seq <= 5; seq++ {
				more = append(more, evidence.FlightEntry{CollectiveSeqID: seq, Call: callOf("all_gather", 64), Origin: o, State: "completed", Retired: true,
					TimeCreatedNs: 1_700_000_000_000_000_000 + seq, DurationMs: -1})
			}
			d.Entries = append(more, d.Entries...)
		}
		got := Diagnose(e)
		if short(got) != short(want) || got.Confidence != want.Confidence || got.Sequence != want.Sequence {
			t.Errorf("%s: %s (%.2f) became %s (%.2f)", name, short(want), want.Confidence, short(got), got.Confidence)
		}
	}
}
