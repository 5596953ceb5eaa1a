package flight

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// sample has every key, every width of integer, a memo of more than 255 places, empty and missing things.
func sample() *Dump {
	d := &Dump{
		CommLibVersion: "2.28.9",
		Groups: []Group{
			{Name: "0", Desc: "default_pg", Ranks: []int{0, 1, 2, 3}}, {Name: "10", Desc: "tensor parallel", Ranks: []int{2, 3}},
			{Name: "2", Desc: "undefined"},
		},
		Status: []GroupStatus{{0, 6, -1, 5}, {2, 70000, 70000, 69999}, {10, -1, -1, -1}},
	}
	at := int64(1795971724858295832)
	for i := range 30 {
		frames := []Frame{{"all_reduce", "distributed_c10d.py", 3068}}
		for depth := range 9 { // so many places that the memo goes beyond 255, and each once more
			frames = append(frames, Frame{"step", "train.py", 10*(i/2) + depth}, Frame{"<module>", "train.py", 65530 + 10*(i/2) + depth})
		}
		d.Entries = append(d.Entries, Entry{
			Frames: frames, RecordID: int64(i), GroupName: "0", GroupDesc: "default_pg", ThreadName: "main", ThreadID: "139692793372992",
			CollectiveSeqID: int64(i + 1), OpID: int64(i + 1), ProfilingName: "nccl:all_reduce", TimeCreatedNs: at + int64(i),
			InputSizes: [][]int64{{int64(i) << 12, 3}}, InputDtypes: []string{"Float"}, OutputSizes: [][]int64{{int64(i) << 12, 3}}, OutputDtypes: []string{"Float"},
			State: Completed, TimeDiscoveredStartedNs: new(at + 1), TimeDiscoveredCompletedNs: new(at + 2), DurationMs: new(0.25 * float64(i)),
			Retired: true, TimeoutMs: 600000,
		})
	}
	d.Entries = append(d.Entries,
		Entry{RecordID: 30, PGID: 2, GroupName: "10", GroupDesc: "tensor parallel", P2PSeqID: 255, OpID: 256, ProfilingName: "nccl:send 0->3",
			InputSizes: [][]int64{{65535, 65536}, {}, {1 << 31, 1<<31 - 1}}, InputDtypes: []string{"BFloat16", "Float", "Long"},
			State: Started, TimeCreatedNs: -1, TimeoutMs: -1 << 31, IsP2P: true},
		Entry{Frames: []Frame{}, RecordID: -1<<31 - 1, ThreadName: "Fäden & <more> \"\\\n", ThreadID: "not \xff UTF-8", State: Scheduled},
	)
	return d
}

func write(t *testing.T, d *Dump) (pickle, text []byte) {
	t.Helper()
	var p, j bytes.Buffer
	if err := d.WritePickle(&p); err != nil {
		t.Fatal(err)
	}
	if err := d.WriteJSON(&j); err != nil {
		t.Fatal(err)
	}
	return p.Bytes(), j.Bytes()
}

func TestGolden(t *testing.T) {
	pickle, text := write(t, sample())
	for name, got := range map[string][]byte{"sample_0.pickle": pickle, "sample_0.json": text} {
		path := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(path, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what is written now; if that is meant, run the test with -update and let Python read the result", path)
		}
	}
}

// dumpsToJSON prints what Python makes of the files, one line each. JSON has no tuples: they are marked.
const dumpsToJSON = `
import json, pickle, sys
def mark(x):
    if isinstance(x, tuple): return {"tuple": [mark(y) for y in x]}
    if isinstance(x, list): return [mark(y) for y in x]
    if isinstance(x, dict): return {k: mark(v) for k, v in x.items()}
    return x
for path in sys.argv[1:]:
    with open(path, "rb") as f:
        d = json.load(f) if path.endswith(".json") else pickle.load(f)
    print(json.dumps(mark(d)))
`

// TestPythonReads compares every value with what Python's own pickle and json read.
func TestPythonReads(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 here to read the dumps with")
	}
	dir := t.TempDir()
	dumps := []*Dump{sample(), {}, {Version: "2.9", Groups: []Group{{}}}}
	args := []string{"-c", dumpsToJSON}
	var want []any
	for i, d := range dumps {
		pickle, text := write(t, d)
		for name, content := range map[string][]byte{"rank_%d": pickle, "rank_%d.json": text} {
			path := filepath.Join(dir, fmt.Sprintf(name, i))
			if err := os.WriteFile(path, content, 0o644); err != nil {
				t.Fatal(err)
			}
			args = append(args, path)
			want = append(want, expect(d, strings.HasSuffix(name, "json")))
		}
	}
	cmd := exec.Command(python, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("python3 does not read the dumps: %v", err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != len(want) {
		t.Fatalf("%d lines for %d files", len(lines), len(want))
	}
	for i, line := range lines {
		if diff := cmp.Diff(plain(t, want[i]), parse(t, []byte(line))); diff != "" {
			t.Errorf("%s (-wrote +python read):\n%s", args[2+i], diff)
		}
	}
}

// expect spells out what a reader must find, without the code under test.
func expect(d *Dump, isJSON bool) map[string]any {
	out := map[string]any{"version": d.Version, "comm_lib_version": d.CommLibVersion}
	if d.Version == "" {
		out["version"] = "2.10"
	}
	groups, status := map[string]any{}, map[string]any{}
	for _, g := range d.Groups {
		groups[g.Name] = map[string]any{"name": g.Name, "desc": g.Desc, "ranks": strings.ReplaceAll(fmt.Sprint(g.Ranks), " ", ", ")}
	}
	for _, s := range d.Status {
		counts := map[string]any{"last_enqueued_collective": s.LastEnqueued, "last_started_collective": s.LastStarted, "last_completed_collective": s.LastCompleted}
		for key, n := range counts {
			if isJSON {
				counts[key] = fmt.Sprint(n)
			}
		}
		status[strconv.FormatInt(s.PGID, 10)] = counts
	}
	out["pg_config"], out["pg_status"] = groups, status
	entries := []any{}
	for _, e := range d.Entries {
		entries = append(entries, expectEntry(e, isJSON))
	}
	if isJSON {
		out["nccl_comm_state"] = map[string]any{}
	}
	if !isJSON || len(entries) > 0 {
		out["entries"] = entries
	}
	return out
}

func expectEntry(e Entry, isJSON bool) map[string]any {
	out := map[string]any{
		"record_id": e.RecordID, "pg_id": e.PGID, "process_group": map[string]any{"tuple": []string{e.GroupName, e.GroupDesc}},
		"thread_name": e.ThreadName, "thread_id": strings.ReplaceAll(e.ThreadID, "\xff", "\uFFFD"),
		"collective_seq_id": e.CollectiveSeqID, "p2p_seq_id": e.P2PSeqID, "op_id": e.OpID, "profiling_name": e.ProfilingName,
		"time_created_ns": e.TimeCreatedNs, "input_sizes": orEmpty(e.InputSizes), "input_dtypes": orEmpty(e.InputDtypes),
		"output_sizes": orEmpty(e.OutputSizes), "output_dtypes": orEmpty(e.OutputDtypes), "state": e.State,
		"time_discovered_started_ns": e.TimeDiscoveredStartedNs, "time_discovered_completed_ns": e.TimeDiscoveredCompletedNs,
		"retired": e.Retired, "timeout_ms": e.TimeoutMs, "is_p2p": e.IsP2P,
	}
	if e.DurationMs != nil {
		out["duration_ms"] = *e.DurationMs
	}
	if !isJSON {
		if e.Frames != nil {
			frames := []any{}
			for _, f := range e.Frames {
				frames = append(frames, map[string]any{"name": f.Name, "filename": f.File, "line": f.Line})
			}
			out["frames"] = frames
		}
		return out
	}
	out["process_group"] = []string{e.GroupName, e.GroupDesc}
	for _, key := range []string{"time_discovered_started_ns", "time_discovered_completed_ns"} {
		if out[key].(*int64) == nil {
			out[key] = 0
		}
	}
	return out
}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// plain and parse bring both sides to what JSON can tell apart; floats that are whole count as such.
func plain(t *testing.T, v any) any {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, b)
}

func parse(t *testing.T, b []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber() // a time has more digits than a float64
	var out any
	if err := d.Decode(&out); err != nil {
		t.Fatalf("%v in %.200q", err, b)
	}
	return wholeNumbers(out)
}

func wholeNumbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		return json.Number(strings.TrimSuffix(v.String(), ".0"))
	case []any:
		for i := range v {
			v[i] = wholeNumbers(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = wholeNumbers(v[key])
		}
	}
	return v
}

// TestMemo: references beyond the 255th have opcodes of their own, and the sample must be long enough to have both.
func TestMemo(t *testing.T) {
	pickle, _ := write(t, sample())
	for _, op := range []byte{opLongBinPut, opLongBinGet} {
		if !bytes.Contains(pickle, []byte{op, 0, 1, 0, 0}) {
			t.Errorf("no opcode %q with argument 256", op)
		}
	}
}

// TestDurationIsFloat: a whole number of milliseconds must not turn into an integer.
func TestDurationIsFloat(t *testing.T) {
	d := &Dump{Entries: []Entry{{DurationMs: new(2.0)}}}
	pickle, text := write(t, d)
	if !bytes.Contains(text, []byte(`"duration_ms":2.0,`)) {
		t.Errorf("JSON has no float: %s", text)
	}
	if !bytes.Contains(pickle, []byte{'G', 0x40, 0, 0, 0, 0, 0, 0, 0}) {
		t.Errorf("pickle has no float: %q", pickle)
	}
}

func TestRefused(t *testing.T) {
	for name, d := range map[string]*Dump{
		"two groups are called \"3\"": {Groups: []Group{{Name: "3"}, {Name: "3", Desc: "other"}}},
		"two statuses for pg_id 7":    {Status: []GroupStatus{{PGID: 7}, {PGID: 7}}},
	} {
		for form, write := range map[string]func(*Dump, *bytes.Buffer) error{
			"pickle": func(d *Dump, w *bytes.Buffer) error { return d.WritePickle(w) },
			"json":   func(d *Dump, w *bytes.Buffer) error { return d.WriteJSON(w) },
		} {
			var w bytes.Buffer
			err := write(d, &w)
			if err == nil || !strings.Contains(err.Error(), name) || w.Len() > 0 {
				t.Errorf("%s: error %v and %d bytes, want an error with %q and nothing written", form, err, w.Len(), name)
			}
		}
	}
}

type fullDisk struct{ room int }

var errFull = errors.New("no space left")

func (w *fullDisk) Write(p []byte) (int, error) {
	if w.room -= len(p); w.room < 0 {
		return 0, errFull
	}
	return len(p), nil
}

// TestWriteError: a dump that does not reach the disk is reported, wherever the disk fills up.
func TestWriteError(t *testing.T) {
	d := sample()
	for range 6 {
		d.Entries = append(d.Entries, d.Entries...)
	}
	for _, room := range []int{0, 100 << 10} {
		if err := d.WritePickle(&fullDisk{room}); !errors.Is(err, errFull) {
			t.Errorf("pickle, %d bytes of room: %v", room, err)
		}
		if err := d.WriteJSON(&fullDisk{room}); !errors.Is(err, errFull) {
			t.Errorf("json, %d bytes of room: %v", room, err)
		}
	}
}
