package diagnose

import (
	"path/filepath"
	"testing"
)

// TestNative: recorded runs on two GPUs with NCCL 2.28 over NVLink, rank 1 odd, without the marks of what was planted. Calls that differ may complete there.
func TestNative(t *testing.T) {
	const cannot = "undecided"
	for _, c := range []struct{ name, dumps, logs, all string }{
		{"control", "not_a_hang", "not_a_hang", "not_a_hang"},
		{"size", "size_mismatch 1", "size_mismatch 0 1", "size_mismatch 1"},
		{"dtype", "dtype_mismatch 0 1", "op_mismatch 0 1", "dtype_mismatch 0 1"},
		{"op", "op_mismatch 0 1", "op_mismatch 0 1", "op_mismatch 0 1"},
		{"order", "order_mismatch 0 1", "not_a_hang", "order_mismatch 0 1"}, // it completed
		{"skip", "skipped_collective 1", "size_mismatch 0 1", "skipped_collective 1"},
		{"skip_stop", "skipped_collective 1", "rank_stuck_host 1", "rank_stuck_host 1"},
		{"skip_same", "skipped_collective 1", "skipped_collective 1", "skipped_collective 1"},
		{"sendrecv_small", "unpaired_p2p 1", "unpaired_p2p 1", "unpaired_p2p 1"},
		{"sendrecv_large", "unpaired_p2p 1", "unpaired_p2p 1", "unpaired_p2p 1"},
		{"crossed", "crossed_comms 0 1", "crossed_comms 0 1", "crossed_comms 0 1"},
		{"kill", "skipped_collective 1", "rank_crash 1", "rank_crash 1"},
		{"exit", "skipped_collective 1", "rank_crash 1", "rank_crash 1"},
		{"panic", "skipped_collective 1", "rank_crash 1", "rank_crash 1"},
		{"stuck", "skipped_collective 1", "rank_stuck_host 1", "rank_stuck_host 1"},
		{"stop", "skipped_collective 1", cannot, "rank_stuck_host 1"}, // of two, one that is silent is no minority
		{"straggler", "not_a_hang", "not_a_hang", "not_a_hang"},
		{"gpu_busy", "rank_stuck_gpu 1", "rank_stuck_gpu 1", "rank_stuck_gpu 1"},
		{"lazy_skip", cannot, "lazy_init 1", "lazy_init 1"},
		{"cold_comm", "skipped_collective 0", "lazy_init 0 1", "lazy_init 0 1"},
		{"wrong_device", cannot, "env_mismatch 0 1", "env_mismatch 0 1"},
		{"nan", "not_a_hang", "nan_source 1", "nan_source 1"},
		{"race", "not_a_hang", "not_a_hang", "not_a_hang"},
	} {
		dir := filepath.Join("testdata", "native", c.name)
		for _, from := range []struct{ what, files, want string }{{"dumps", "json_*", c.dumps}, {"logs", "*.log", c.logs}, {"all", "*", c.all}} {
			v := Diagnose(readAll(t, filepath.Join(dir, from.files)))
			if short(v) != from.want {
				t.Errorf("%s from %s: %s (%.2f), want %s: %s", c.name, from.what, short(v), v.Confidence, from.want, v.Summary)
			}
			checkVerdict(t, c.name+" from "+from.what, v)
			for _, x := range v.Against { // one run, one fault: what one source shows of it does not contradict what another does
				if true {
					t.Errorf("%s from %s: against it: %s", c.name, from.what, x.Says)
				}
			}
		}
	}
}
