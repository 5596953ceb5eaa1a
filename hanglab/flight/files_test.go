package flight

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWriteFiles(t *testing.T) {
	dir := t.TempDir()
	d := &Dump{CommLibVersion: "2.28.9", Groups: []Group{{Name: "0", Desc: "all ranks", Ranks: []int{0, 1}}}}
	if err := os.WriteFile(filepath.Join(dir, "trace_3"), []byte("an earlier one, which is longer than what replaces it"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.WriteFiles(dir, 3); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Fatalf("%v, %v: want two files", entries, err)
	}
	var pickle bytes.Buffer
	if err := d.WritePickle(&pickle); err != nil {
		t.Fatal(err)
	}
	if raw, err := os.ReadFile(filepath.Join(dir, PicklePrefix+"3")); err != nil || !bytes.Equal(raw, pickle.Bytes()) {
		t.Errorf("trace_3: %q, %v", raw, err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, JSONPrefix+"3"))
	if err != nil || !json.Valid(raw) {
		t.Errorf("json_3: %q, %v", raw, err)
	}
	if err := d.WriteFiles(filepath.Join(dir, "none"), 1); err == nil || !strings.Contains(err.Error(), "dump of rank 1") {
		t.Errorf("into no folder: %v", err)
	}
	// What cannot be written leaves nothing behind.
	bad := &Dump{Groups: []Group{{Name: "0"}, {Name: "0"}}}
	if err := bad.WriteFiles(dir, 4); err == nil {
		t.Error("two groups of one name were written")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 2 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestRingBytes(t *testing.T) {
	for entries, want := range map[int]int64{1: 282624 + 192, 2: 282624 + 2*192, 3: 282624 + 4*192, 2048: 282624 + 2048*192, 0: 282624 + 192} {
		if got := RingBytes(entries); got != want {
			t.Errorf("%d entries: %d bytes, want %d", entries, got, want)
		}
	}
}
