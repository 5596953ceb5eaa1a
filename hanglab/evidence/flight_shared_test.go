package evidence

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sharedDumps are real dumps (PyTorch 2.11 with NCCL 2.28.9 and with Gloo, NVRx's published ones) and hand-made ones, which lie beside the repository.
func sharedDumps(t *testing.T) []string {
	t.Helper()
	root := filepath.Join("..", "..", "..", "shared", "data")
	if _, err := os.Stat(root); err != nil {
		t.Skipf("no recorded dumps here: %v", err)
	}
	var files []string
	for _, pattern := range []string{"torch_nccl/*/trace_*", "torch_nccl/*/json_*", "torch_gloo/*/trace_*", "torch_gloo/*/json_*", "nvrx/*/_dump_*",
		"hang_samples/handmade/*/trace_rank_*", "hang_samples/handmade/*/rank_*.json"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("no file like %s (%v)", pattern, err)
		}
		files = append(files, found...)
	}
	return files
}

func readFile(t *testing.T, pool *FlightPool, path string) *FlightDump {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d, err := pool.Read(f, path)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// dumpsToJSON prints what Python makes of the files, one line each, without what the JSON form of a dump leaves out.
const dumpsToJSON = `
import json, pickle, sys
for path in sys.argv[1:]:
    with open(path, "rb") as f:
        raw = f.read()
    d = pickle.loads(raw) if raw[:1] == b"\x80" else json.loads(raw)
    d["comm_lib_version"] = d.pop("nccl_version", d.get("comm_lib_version"))
    d["nccl_comm_state"] = {}
    d["pg_status"] = {g: {k: str(v) for k, v in s.items()} for g, s in d["pg_status"].items()}
    for e in d.get("entries", []):
        e.pop("frames", None)
        for key in ("time_discovered_started_ns", "time_discovered_completed_ns"):
            e[key] = e[key] or 0
    if not d.get("entries"):
        d.pop("entries", None)
    print(json.dumps(d))
`

// TestSharedAgainstPython compares every value of every dump with what Python's own readers find.
func TestSharedAgainstPython(t *testing.T) {
	files := sharedDumps(t)
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 here to read the dumps with")
	}
	cmd := exec.Command(python, append([]string{"-c", dumpsToJSON}, files...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != len(files) {
		t.Fatalf("%d lines for %d files", len(lines), len(files))
	}
	pool := NewFlightPool()
	for i, path := range files {
		d := readFile(t, pool, path)
		if len(d.Warnings) > 0 || d.Cut || d.Rank < 0 || !strings.HasSuffix(strings.TrimSuffix(path, ".json"), fmt.Sprintf("_%d", d.Rank)) {
			t.Errorf("%s: rank %d, cut %t, warnings %v", path, d.Rank, d.Cut, d.Warnings)
		}
		if diff := cmp.Diff(generic(t, []byte(lines[i])), generic(t, jsoned(t, d.Dump()))); diff != "" {
			t.Errorf("%s (-python +here):\n%s", path, diff)
		}
	}
}

func generic(t *testing.T, b []byte) map[string]any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber() // a time has more digits than a float64
	var out map[string]any
	if err := d.Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestSharedRewritten: what PyTorch wrote in the newest format, read and written again, is the same file, byte for byte.
func TestSharedRewritten(t *testing.T) {
	n := 0
	for _, path := range sharedDumps(t) {
		if !strings.Contains(path, "torch_") {
			continue // an older format, or not written by PyTorch
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		d := readFile(t, NewFlightPool(), path)
		got := pickled(t, d.Dump())
		if d.Form == "json" {
			got = jsoned(t, d.Dump())
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes became %d others", path, len(want), len(got))
		}
		n++
	}
	if n < 40 {
		t.Errorf("only %d files", n)
	}
}

// TestSharedGroupNames: in real dumps the order of groups and counters gives the names that the entries give.
func TestSharedGroupNames(t *testing.T) {
	pool := NewFlightPool()
	agree, onlyOrder := 0, 0
	for _, path := range sharedDumps(t) {
		d := readFile(t, pool, path)
		for i := range d.Entries {
			if name, by := d.GroupName(d.Entries[i].Origin.PGID); name != d.Entries[i].Origin.GroupName || by != NameByEntries {
				t.Fatalf("%s: entry %d: %q by %d", path, i, name, by)
			}
		}
		if !strings.Contains(path, "nvrx") {
			continue
		}
		bare := *d
		bare.Entries = nil
		bare.nameGroups()
		for _, s := range d.Status {
			name, by := d.GroupName(s.PGID)
			other, _ := bare.GroupName(s.PGID)
			switch {
			case by == NameByEntries && name == other:
				agree++
			case by == NameByOrder:
				onlyOrder++
			default:
				t.Errorf("%s: pg_id %d is %q by %d and %q by order alone", path, s.PGID, name, by, other)
			}
		}
	}
	if agree < 100 || onlyOrder < 100 {
		t.Errorf("%d names from entries agree with the order, %d have only the order: too few to say anything", agree, onlyOrder)
	}
}
