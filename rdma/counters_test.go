package rdma

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

func TestCounters(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	put := func(path, text string) {
		t.Helper()
		path = filepath.Join(root, "class/infiniband/mlx5_0", path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("ports/1/hw_counters/out_of_sequence", "5\n")
	put("ports/1/hw_counters/duplicate_request", "7\n")
	put("ports/1/hw_counters/lifespan", "12\n")                 // tells nothing
	put("ports/1/counters/symbol_error", "3\n")                 //
	put("ports/1/counters/port_xmit_wait", "N/A (no PMA)\n")    // not supported
	put("ports/1/counters/port_xmit_data", "123456\n")          // traffic
	put("ports/2/hw_counters/out_of_sequence", "1000\n")        // another port
	put("hw_counters/rx_discards_phy", "18446744073709551615x") // no number
	before := readCounters(root, "mlx5_0", 1)
	if want := map[string]int64{"out_of_sequence": 5, "duplicate_request": 7, "symbol_error": 3}; !reflect.DeepEqual(before, want) {
		t.Errorf("%v, want %v", before, want)
	}
	put("ports/1/hw_counters/out_of_sequence", "9\n")
	put("ports/1/hw_counters/duplicate_request", "0\n") // reset
	put("ports/1/hw_counters/packet_seq_err", "2\n")    // was not there before
	got := moved("server", before, readCounters(root, "mlx5_0", 1))
	if want := []Moved{{"server", "out_of_sequence", 4, meansGap}}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if c := readCounters(root, "rxe0", 1); len(c) != 0 {
		t.Errorf("a device that is not there has counters: %v", c)
	}
}
