package diagnose

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

func readAll(t testing.TB, patterns ...string) *evidence.Evidence {
	t.Helper()
	var paths []string
	for _, p := range patterns {
		found, err := filepath.Glob(p)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, found...)
	}
	if len(paths) == 0 {
		t.Fatalf("no files like %v", patterns)
	}
	e, err := evidence.Read(paths, evidence.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func short(v *Verdict) string {
	s := string(v.Class)
	for _, r := range v.Ranks {
		s += fmt.Sprintf(" %d", r)
	}
	return s
}

// TestLab: recorded runs of the laboratory at 4 ranks, rank 3 odd, without the marks of what was planted: what follows from dumps alone, from all logs
// alone, from a victim's log alone, from the odd rank's log alone, and from everything.
func TestLab(t *testing.T) {
	const cannot = "undecided"
	for _, c := range []struct{ name, dumps, logs, victim, odd, all string }{
		{"control", "not_a_hang", "not_a_hang", "not_a_hang", "not_a_hang", "not_a_hang"},
		{"size", "size_mismatch 3", "size_mismatch 3", cannot, cannot, "size_mismatch 3"},
		// Logs name no data types, and of a call that has completed no operation: they show that the sides differ, not in what.
		{"dtype", "dtype_mismatch 3", "op_mismatch 3", cannot, cannot, "dtype_mismatch 3"},
		{"op", "op_mismatch 3", "op_mismatch 3", cannot, cannot, "op_mismatch 3"},
		{"order", "order_mismatch 3", "order_mismatch 3", cannot, cannot, "order_mismatch 3"},
		{"skip", "skipped_collective 3", "skipped_collective 3", cannot, cannot, "skipped_collective 3"},
		// Who stops after leaving a call out and who is stuck before it leave the same records; a dump that was written for a dead rank as well.
		{"skip_stop", "skipped_collective 3", "rank_stuck_host 3", cannot, "rank_stuck_host 3", "rank_stuck_host 3"},
		{"skip_same", "skipped_collective 3", "skipped_collective 3", cannot, "skipped_collective 3", "skipped_collective 3"},
		{"sendrecv_small", "unpaired_p2p 3", "unpaired_p2p 3", "not_a_hang", "unpaired_p2p 3", "unpaired_p2p 3"},
		{"sendrecv_large", "unpaired_p2p 3", "unpaired_p2p 3", cannot, cannot, "unpaired_p2p 3"},
		{"crossed", "crossed_comms 3", "crossed_comms 3", cannot, cannot, "crossed_comms 3"},
		{"kill", "skipped_collective 3", "rank_crash 3", cannot, cannot, "rank_crash 3"},
		{"exit", "skipped_collective 3", "rank_crash 3", cannot, cannot, "rank_crash 3"},
		{"panic", "skipped_collective 3", "rank_crash 3", cannot, "rank_crash 3", "rank_crash 3"},
		{"stuck", "skipped_collective 3", "rank_stuck_host 3", cannot, "rank_stuck_host 3", "rank_stuck_host 3"},
		{"stop", "skipped_collective 3", "rank_stuck_host 3", cannot, cannot, "rank_stuck_host 3"},
		{"gpu_busy", "rank_stuck_gpu 3", "rank_stuck_gpu 3", cannot, "rank_stuck_gpu 3", "rank_stuck_gpu 3"},
		{"lazy_skip", cannot, "lazy_init 3", cannot, "lazy_init 3", "lazy_init 3"}, // no communicator, no dump of one
		{"cold_comm", "skipped_collective 3", "lazy_init 3", cannot, cannot, "lazy_init 3"},
		{"wrong_device", cannot, "env_mismatch 2 3", "env_mismatch 2 3", "env_mismatch 2 3", "env_mismatch 2 3"},
		{"straggler", "not_a_hang", "not_a_hang", "not_a_hang", "not_a_hang", "not_a_hang"},
		{"netcut", "gpu_stuck_or_network", "gpu_stuck_or_network", cannot, cannot, "gpu_stuck_or_network"},
		{"nan", "not_a_hang", "nan_source 3", "not_a_hang", "nan_source 3", "nan_source 3"},
		{"race", "not_a_hang", "not_a_hang", "not_a_hang", "not_a_hang", "not_a_hang"},
	} {
		dir := filepath.Join("testdata", "lab", c.name)
		for _, from := range []struct{ what, files, want string }{
			{"dumps", "json_*", c.dumps}, {"logs", "rank_*.log", c.logs}, {"one victim's log", "rank_0.log", c.victim},
			{"the odd rank's log", "rank_3.log", c.odd}, {"all", "*", c.all},
		} {
			v := Diagnose(readAll(t, filepath.Join(dir, from.files)))
			if short(v) != from.want {
				t.Errorf("%s from %s: %s, want %s: %s", c.name, from.what, short(v), from.want, v.Summary)
			}
			checkVerdict(t, c.name+" from "+from.what, v)
		}
	}
}

// checkVerdict holds for every verdict.
func checkVerdict(t *testing.T, name string, v *Verdict) {
	t.Helper()
	if v.Summary == "" {
		t.Errorf("%s: no summary", name)
	}
	if v.Accuses() && (len(v.Evidence) == 0 || v.Fix == "" || v.Confidence <= 0 || len(v.Next) == 0) {
		t.Errorf("%s: %s with %d lines of evidence, confidence %v, fix %q, next %q", name, v.Class, len(v.Evidence), v.Confidence, v.Fix, v.Next)
	}
	if !v.Accuses() && len(v.Ranks) > 0 || v.Class == GPUStuckOrNetwork && len(v.Ranks) > 0 {
		t.Errorf("%s: %s accuses %v", name, v.Class, v.Ranks)
	}
	if !slices.IsSorted(v.Ranks) {
		t.Errorf("%s: ranks %v", name, v.Ranks)
	}
	for _, x := range v.Evidence {
		if x.File == "" || x.Text == "" || x.Says == "" {
			t.Errorf("%s: evidence without place, text or meaning: %+v", name, x)
		}
	}
	for _, a := range v.Alternatives {
		if a.Confidence > v.Confidence || a.Ranks == nil {
			t.Errorf("%s: alternative %+v of a verdict with confidence %v", name, a, v.Confidence)
		}
	}
}

// TestPlantedMarksAreNotRead: a mark of what was planted changes nothing.
func TestPlantedMarksAreNotRead(t *testing.T) {
	for _, name := range []string{"control", "stuck", "kill"} {
		e := readAll(t, filepath.Join("testdata", "lab", name, "rank_*.log"))
		want := Diagnose(e)
		e.Facts = append(e.Facts, evidence.Fact{Kind: evidence.Marker, Op: "inject", Rank: 1, Seq: 99, Detail: `text="size: count 1 instead of 2"`, GroupRank: -1})
		if got := Diagnose(e); short(got) != short(want) || got.Confidence != want.Confidence {
			t.Errorf("%s: %s became %s", name, short(want), short(got))
		}
	}
}
