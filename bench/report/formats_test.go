package report

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/commprobe/commprobe/bench/result"
)

func jsonOf(t testing.TB, run *result.Run) string {
	t.Helper()
	var b bytes.Buffer
	if err := WriteJSON(&b, run); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestJSONGoldenAndRoundTrip(t *testing.T) {
	golden(t, "full.json.golden", jsonOf(t, fullRun()))
	for name, run := range map[string]*result.Run{"full": fullRun(), "recorded": h200Run(t, "ar_mpi2.txt", "all_reduce", true), "runs": hostRun(2), "empty": {Schema: result.Schema}} {
		back, err := ReadJSON(strings.NewReader(jsonOf(t, run)))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(run, back, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-written +read):\n%s", name, diff)
		}
	}
}

func TestJSONForm(t *testing.T) {
	text := jsonOf(t, fullRun())
	for _, want := range []string{`"event_us": [9.1, 9.25, 9.5]`, `"bytes": 131072`, `"schema": "commprobe/sweep/1"`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if strings.Contains(text, "null") {
		t.Error("a null where a list belongs")
	}
	if empty := jsonOf(t, &result.Run{}); strings.Contains(empty, "null") || !strings.Contains(empty, `"rows": []`) {
		t.Errorf("empty run: %s", empty)
	}
	// Text that looks like a list of numbers, or has quotes and angle brackets, stays as it is.
	tricky := fullRun()
	tricky.Notes[0].Text = `see "[1,  2]" \ [3,   4] <&> é`
	back, err := ReadJSON(strings.NewReader(jsonOf(t, tricky)))
	if err != nil || back.Notes[0].Text != tricky.Notes[0].Text {
		t.Errorf("text came back as %q, %v", back.Notes[0].Text, err)
	}
}

func TestJSONNeverWritesNonNumbers(t *testing.T) {
	for want, spoil := range map[string]func(*result.Run){
		"rows[3].out_of_place.time_us is NaN":                func(r *result.Run) { r.Rows[3].OutOfPlace.TimeUS = result.Micros(math.NaN()) },
		"rows[1].out_of_place.ranks[1].event_us[2] is +Inf":  func(r *result.Run) { r.Rows[1].OutOfPlace.Ranks[1].EventUS[2] = math.Inf(1) },
		"rows[0].in_place.iter.p99_us is -Inf":               func(r *result.Run) { *r.Rows[0].InPlace.Iter.P99US = result.Micros(math.Inf(-1)) },
		"modes[0].groups[1].share is NaN":                    func(r *result.Run) { r.Modes[0].Groups[1].Share = math.NaN() },
		"config.step_factor is +Inf":                         func(r *result.Run) { r.Config.StepFactor = math.Inf(1) },
		`schema "other/1", but this version writes "commpro`: func(r *result.Run) { r.Schema = "other/1" },
	} {
		run := fullRun()
		spoil(run)
		var b bytes.Buffer
		if err := WriteJSON(&b, run); err == nil || !strings.Contains(err.Error(), want) || b.Len() > 0 {
			t.Errorf("got %v and %d bytes, want an error with %q", err, b.Len(), want)
		}
	}
	if err := WriteJSON(io.Discard, nil); err == nil {
		t.Error("no run is written")
	}
	if err := WriteJSON(&counter{fail: 1}, fullRun()); err == nil {
		t.Error("a failed write is no error")
	}
}

func TestReadJSONRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "empty",
		"  \n":                               "empty",
		"{":                                  "unexpected EOF",
		"[]":                                 "not a result document",
		"12":                                 "not a result document",
		"null":                               "no schema field",
		"{}":                                 "no schema field",
		`{"schema": 1}`:                      "not a result document",
		`{"schema": "commprobe/sweep/2"}`:    `schema "commprobe/sweep/2" is unknown; this version reads "commprobe/sweep/1"`,
		`{"schema": "commprobe/sweep/1"} {}`: "more text after the document",
		`{"schema": "commprobe/sweep/1"} x`:  "more text after the document",
		`{"schema":"commprobe/sweep/1","rows":1}`:                                    "rows",
		`{"schema":"commprobe/sweep/1","rows":[{"bytes":1.5}]}`:                      "bytes",
		`{"schema":"commprobe/sweep/1","rows":[{"out_of_place":{"time_us":1e999}}]}`: "time_us",
	} {
		run, err := ReadJSON(strings.NewReader(text))
		if run != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: run %v, error %v, want %q", text, run, err, want)
		}
	}
	if run, err := ReadJSON(strings.NewReader(`{"schema": "commprobe/sweep/1", "later": {"a": 1}}` + "\n")); err != nil || run == nil {
		t.Errorf("an unknown field is refused: %v", err)
	}
}

func FuzzReadJSON(f *testing.F) {
	f.Add([]byte(`{"schema": "commprobe/sweep/1", "rows": [{"run": 1, "bytes": 8, "out_of_place": {"time_us": 7.5, "ranks": null}}]}`))
	f.Add([]byte(jsonOf(f, fullRun())))
	f.Add([]byte(`{"schema": "x"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		run, err := ReadJSON(bytes.NewReader(data))
		if (run == nil) == (err == nil) {
			t.Fatalf("run %v and error %v", run, err)
		}
		if err != nil {
			return
		}
		// What was read can be written and read again, and the other writers must not panic on it.
		text := jsonOf(t, run)
		again, err := ReadJSON(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if second := jsonOf(t, again); second != text {
			t.Fatalf("written twice:\n%s\n%s", text, second)
		}
		_ = WriteCSV(io.Discard, run)
		_ = WriteTable(io.Discard, run, Options{Percentiles: true})
		_ = Terminal(io.Discard, run, Options{})
	})
}

func TestCSV(t *testing.T) {
	var b bytes.Buffer
	if err := WriteCSV(&b, fullRun()); err != nil {
		t.Fatal(err)
	}
	golden(t, "full.csv.golden", b.String())
	records, err := csv.NewReader(&b).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(records) != 9 || !slices.Equal(records[0], CSVColumns()) {
		t.Fatalf("%d records, header %q", len(records), records[0])
	}
	value := func(record int, column string) string { return records[record][slices.Index(CSVColumns(), column)] }
	for _, c := range []struct {
		record       int
		column, want string
	}{
		{1, "placement", "out"}, {2, "placement", "in"}, {1, "p99", ""}, {2, "p99", "12.000026666666667"}, {1, "enqueue_us", "9.4"},
		{1, "launch_bound_rank", "1"}, {7, "launch_bound_rank", ""}, {3, "slowest_rank", "1"}, {1, "slowest_rank", ""}, {5, "wrong", "17"}, {8, "wrong", ""},
	} {
		if got := value(c.record, c.column); got != c.want {
			t.Errorf("line %d, %s: %q, want %q", c.record, c.column, got, c.want)
		}
	}
	bad := fullRun()
	bad.Rows[1].InPlace.BusBW = result.GBps(math.NaN())
	if err := WriteCSV(io.Discard, bad); err == nil || !strings.Contains(err.Error(), "rows[1]: busbw is NaN") {
		t.Errorf("NaN: %v", err)
	}
	if err := WriteCSV(&counter{fail: 1}, fullRun()); err == nil {
		t.Error("a failed write is no error")
	}
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out.json")
	hello := func(w io.Writer) error { _, err := io.WriteString(w, "hello"); return err }
	if err := WriteFile(path, Options{}, hello); err != nil {
		t.Fatal(err)
	}
	world := func(w io.Writer) error { _, err := io.WriteString(w, "world"); return err }
	for _, err := range []error{WriteFile(path, Options{}, world), CheckOutput(path, Options{})} {
		if !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), path) {
			t.Errorf("an existing file: %v", err)
		}
	}
	content := func() string { data, _ := os.ReadFile(path); return string(data) }
	if content() != "hello" {
		t.Errorf("the old file became %q", content())
	}
	if err := WriteFile(path, Options{Force: true}, world); err != nil || content() != "world" {
		t.Errorf("forced: %v, %q", err, content())
	}
	// A write that fails leaves the old file and nothing else.
	fails := func(w io.Writer) error { io.WriteString(w, "half"); return errors.New("no numbers") }
	if err := WriteFile(path, Options{Force: true}, fails); err == nil || content() != "world" {
		t.Errorf("failed write: %v, %q", err, content())
	}
	// A file that appears while writing is kept.
	other := filepath.Join(dir, "other")
	races := func(w io.Writer) error { return os.WriteFile(other, []byte("first"), 0o644) }
	if err := WriteFile(other, Options{}, races); !errors.Is(err, ErrExists) {
		t.Errorf("a race: %v", err)
	}
	entries, _ := os.ReadDir(dir)
	if len(entries) != 2 {
		t.Errorf("left behind: %v", entries)
	}
	if err := WriteFile(os.DevNull, Options{}, hello); err != nil {
		t.Errorf("a device: %v", err)
	}
	for _, bad := range []string{dir, filepath.Join(dir, "missing", "x.json"), filepath.Join(path, "x.json"), ""} {
		if err := CheckOutput(bad, Options{Force: true}); err == nil {
			t.Errorf("CheckOutput(%q): no error", bad)
		}
	}
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]result.Bytes{
		"8": 8, "0": 0, "64K": 65536, "64k": 65536, "1.5G": 1610612736, "1.5g": 1610612736, "1KB": 1024, "1KiB": 1024, "1 KiB": 1024, "8 B": 8, "8b": 8,
		"2T": 2 << 40, "0.3K": 307, ".5M": 524288, "1e9": 1000000000, "1E3K": 1024000, "2e-1K": 204, " 16M ": 16 << 20, "010": 10,
		"9223372036854775807": math.MaxInt64, "8388607.99999T": 9223372025859659038,
	} {
		got, err := ParseSize(text)
		if err != nil || (got != want && text != "8388607.99999T") || got < 0 {
			t.Errorf("ParseSize(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"": "empty", "  ": "empty", "-8": "negative", "-1K": "negative", "abc": "does not begin with a number", "K": "does not begin", "1.5": "a fraction of a byte",
		"1X": `unknown unit "X"`, "1GBx": "unknown unit", "1e": "unknown unit", "1Kib/s": "unknown unit", "1  K": "unknown unit", "0x10": "unknown unit",
		"1_000": "unknown unit", "9223372036854775808": "more than 2^63", "8388608T": "more than 2^63", "1e99": "more than 2^63", "1e999999999": "unknown unit",
		"1/2K": "unknown unit", "inf": "does not begin", "NaN": "does not begin", "+8": "does not begin", strings.Repeat("9", 100): "too long", ".": "does not begin", "1P": "unknown unit",
	} {
		if got, err := ParseSize(text); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "write a number and K, M, G or T") {
			t.Errorf("ParseSize(%q) = %d, %v, want %q and what is accepted", text, got, err, want)
		}
	}
}

func TestFormatSize(t *testing.T) {
	for size, want := range map[result.Bytes]string{
		0: "0 B", 8: "8 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 1 << 20: "1 MiB", 1<<20 - 1: "1 MiB", 1000000: "976.56 KiB",
		3 << 29: "1.5 GiB", 1 << 40: "1 TiB", 1 << 60: "1048576 TiB", -8: "-8 B", math.MinInt64: "-8388608 TiB",
	} {
		if got := FormatSize(size); got != want {
			t.Errorf("FormatSize(%d) = %q, want %q", size, got, want)
		}
	}
	for size := result.Bytes(1); size > 0 && size <= 1<<60; size *= 2 {
		if got, err := ParseSize(FormatSize(size)); err != nil || got != size {
			t.Errorf("%d came back as %d, %v", size, got, err)
		}
	}
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"8", "1.5G", "1 KiB", "-1", "1e9", "9223372036854775808", "0x1", "1e-99K"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		size, err := ParseSize(text)
		if err != nil {
			if size != 0 {
				t.Fatalf("%q: size %d beside error %v", text, size, err)
			}
			return
		}
		if size < 0 {
			t.Fatalf("%q: negative size %d", text, size)
		}
		if _, err := ParseSize(FormatSize(size)); err != nil && size < math.MaxInt64-1<<32 {
			t.Fatalf("%q: own form %q is refused: %v", text, FormatSize(size), err)
		}
	})
}

func TestJSONIsValidForOthers(t *testing.T) {
	if !json.Valid([]byte(jsonOf(t, hostRun(1)))) {
		t.Error("no valid JSON")
	}
}
