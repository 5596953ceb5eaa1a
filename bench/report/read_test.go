package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/commprobe/commprobe/bench/result"
)

func readFixture(t testing.TB, name string) *Document {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	doc, err := Read(f, name)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func readText(t testing.TB, text string) *Document {
	t.Helper()
	doc, err := Read(strings.NewReader(text), "text")
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// fixtures are small files in the shapes of all eras and launchers, with invented figures.
var fixtures = []struct {
	name string
	rows int
	runs string
	code string
}{
	{"alltoall_small.txt", 6, "alltoall 6 rows, 8 ranks by size over count, -",
		"collective-inferred duplicate-size in-place-not-checked no-footer zero-size"},
	{"blank_half.txt", 4, "all_reduce 4 rows, 4 ranks by rank list, 2.29.7",
		""},
	{"broken.txt", 2, "all_reduce 2 rows, 2 ranks by rank list, 2.29.7",
		"cancelled cuda-failure exit-code failure-trace no-footer row-cut time-out"},
	{"cpu_time.txt", 4, "all_reduce 4 rows, 2 ranks by rank list, 2.29.7",
		"cpu-time"},
	{"edited.txt", 2, "all_reduce 2 rows, 2 ranks by rank list, -",
		"average-mismatch bandwidth-mismatch collective-inferred"},
	{"era2019.txt", 2, "all_reduce 2 rows, 2 ranks by rank list, 2.4.8",
		"collective-inferred milliseconds no-footer not-checked"},
	{"era2020.txt", 2, "- 2 rows, 8 ranks by size over count, -",
		"collective-unknown failed-check old-bandwidth wrong-data"},
	{"era2020_sendrecv.txt", 1, "sendrecv 1 rows, 2 ranks by rank list, -",
		"collective-inferred in-place-error-void"},
	{"fork.json", 1, "alltoall 1 rows, 4 ranks by size over count, 2.26.6",
		"collective-inferred in-place-not-checked json-truncated row-cut"},
	{"hypercube.txt", 2, "hypercube 2 rows, 4 ranks by rank list, 2.29.7",
		""},
	{"in_place_first.txt", 3, "all_reduce 3 rows, 8 ranks by busbw over algbw, -",
		"collective-inferred no-footer"},
	{"iterations.txt", 2, "all_reduce 2 rows, 4 ranks by rank list, 2.29.7",
		""},
	{"labels_cut.txt", 4, "all_reduce 4 rows, 24 ranks by busbw over algbw, -",
		"collective-inferred no-footer no-header row-cut row-rejoined"},
	{"list_marks.txt", 2, "all_reduce 2 rows, 2 ranks by rank list, 2.29.7",
		"no-footer"},
	{"log_in_rows.txt", 4, "all_reduce 4 rows, 2 ranks by rank list, 2.29.7",
		"nccl-log nccl-warn not-checked row-rejoined"},
	{"mixed_versions.txt", 4, "all_reduce 4 rows, 2 ranks by rank list, 2.29.7",
		"built-for-other mixed-versions nccl-log"},
	{"mscclpp.jsonl", 2, "all_reduce 2 rows, 8 ranks by file, -",
		"not-checked"},
	{"nccl1.txt", 2, "all_reduce 2 rows, unknown ranks, -",
		"collective-inferred milliseconds no-footer"},
	{"openmpi_tags.txt", 4, "all_reduce 4 rows, 2 ranks by rank list, 2.29.7",
		"other-text row-rejoined"},
	{"openmpi_times.txt", 4, "all_reduce 4 rows, 40 ranks by busbw over algbw, -",
		"collective-inferred no-footer"},
	{"rccl.csv", 2, "all_reduce 2 rows, 4 ranks by file, -",
		"csv-header-short half-missing in-place-not-checked other-text wrong-data"},
	{"rccl.json", 1, "all_gather 1 rows, 4 ranks by file, -",
		"in-place-not-checked"},
	{"refused.txt", 0, "",
		"bad-argument gpu-count launch-refused missing-library signal"},
	{"singletons.txt", 4, "all_reduce 4 rows, 1 ranks by rank list, 2.29.7",
		"duplicate-size one-rank singletons"},
	{"split.txt", 4, "all_reduce 4 rows, 4 ranks by rank list, 2.29.7",
		""},
	{"tests_inf.json", 2, "all_reduce 2 rows, 4 ranks by file, 2.29.7",
		"env-secrets half-missing in-place-not-checked json-devices json-not-finite last-error row-cut"},
	{"tests_v1.json", 3, "all_reduce 3 rows, 4 ranks by file, 2.29.7",
		"duplicate-size env-secrets in-place-not-checked json-devices json-misspelt last-error"},
	{"tests_v2_cut.json", 2, "all_reduce 2 rows, 4 ranks by file, 2.29.7",
		"env-secrets in-place-not-checked json-devices json-truncated no-footer p99-few-samples"},
	{"two_tables.txt", 6, "all_reduce 4 rows, 8 ranks by busbw over algbw, 2.27.3; all_reduce 2 rows, 8 ranks by busbw over algbw, -",
		"collective-inferred×2 no-footer×2 version-from-title"},
	{"wide.txt", 1, "all_reduce 1 rows, 2 ranks by rank list, 2.29.7",
		"not-checked"},
	{"wrong.txt", 4, "all_reduce 4 rows, 4 ranks by rank list, 2.29.7",
		"failed-bandwidth failed-check reduced-max-bytes wrong-data"},
}

func TestReadFixtures(t *testing.T) {
	for _, tt := range fixtures {
		t.Run(tt.name, func(t *testing.T) {
			doc := readFixture(t, "read/"+tt.name)
			if doc.Rows() != tt.rows {
				t.Errorf("%d rows, want %d", doc.Rows(), tt.rows)
			}
			if got := runsOf(doc); got != tt.runs {
				t.Errorf("runs\n %s, want\n %s", got, tt.runs)
			}
			if diff := cmp.Diff(tt.code, codesOf(doc)); diff != "" {
				t.Errorf("warnings (-want +got):\n%s%v", diff, doc.Warnings)
			}
			for i := range doc.Runs {
				checkRun(t, &doc.Runs[i])
			}
		})
	}
	files, err := os.ReadDir("testdata/read")
	if err != nil || len(files) != len(fixtures) {
		t.Errorf("%d files, %d in the table; %v", len(files), len(fixtures), err)
	}
}

// figures writes a half as "time algbw busbw wrong".
func figures(h *result.Half) string {
	if h == nil {
		return "none"
	}
	data, _ := json.Marshal([]any{h.TimeUS, h.AlgBW, h.BusBW, h.Wrong, h.Unchecked})
	return string(data)
}

func TestReadFigures(t *testing.T) {
	for _, tt := range []struct {
		name    string
		row     int
		want    string // size, count, type, op, root
		out, in string
	}{
		{"wrong.txt", 2, "65536 16384 float sum -1", `[31.52,2.08,3.12,4096,""]`, `[30.08,2.18,3.27,0,""]`},
		{"iterations.txt", 1, "1048576 262144 float sum -1", `[84.13,12.46,18.7,0,""]`, `[82.77,12.67,19,0,""]`},
		{"era2019.txt", 0, "1048576 262144 float sum -1", `[1250,0.84,0.84,null,"not checked"]`, `[1375,0.76,0.76,null,"not checked"]`},
		{"era2020.txt", 1, "134217728 4194304 float none -1", `[990,118.63,118.63,null,"largest relative error 3e+00, not a count"]`, `[995,118.03,118.03,0,""]`},
		{"era2020_sendrecv.txt", 0, "1048576 1048576 uint8 none -1", `[200,5.24,5.24,0,""]`, `[210,4.99,4.99,null,"the in-place error of sendrecv has no meaning in this version"]`},
		{"nccl1.txt", 1, "8000000 8000000 char max -1", `[50,160,120,0,""]`, `[40,200,150,0,""]`},
		{"labels_cut.txt", 3, "1048576 262144 float sum -1", `[84.13,12.46,23.89,0,""]`, `[82.77,12.67,24.28,0,""]`},
		{"openmpi_tags.txt", 1, "8192 2048 float sum -1", `[22.86,0.36,0.36,0,""]`, `[21.93,0.37,0.37,0,""]`},
		{"openmpi_tags.txt", 2, "65536 16384 float sum -1", `[31.52,2.08,2.08,0,""]`, `[30.08,2.18,2.18,0,""]`},
		{"openmpi_times.txt", 3, "1048576 262144 float sum -1", `[84.13,12.46,24.3,0,""]`, `[82.77,12.67,24.7,0,""]`},
		{"list_marks.txt", 1, "8192 2048 float sum -1", `[22.86,0.36,0.36,0,""]`, `[21.93,0.37,0.37,0,""]`},
		{"log_in_rows.txt", 0, "1024 256 float sum -1", `[21.37,0.05,0.05,null,"not checked"]`, `[20.11,0.05,0.05,null,"not checked"]`},
		{"hypercube.txt", 0, "1024 64 float none -1", `[30,0.03,0.03,0,""]`, `[31,0.03,0.03,0,""]`},
		{"in_place_first.txt", 0, "1024 256  none -1", "none", `[8,0.13,0.22,0,""]`},
		{"in_place_first.txt", 2, "4096 1024  none -1", `[9,0.46,0.8,0,""]`, "none"},
		{"blank_half.txt", 0, "1024 256 float sum -1", "none", `[20.11,0.05,0.08,0,""]`},
		{"wide.txt", 0, "68719476736 17179869184 float sum -1", `[12000000,5.57,5.57,null,"not checked"]`, `[12000000,5.59,5.59,null,"not checked"]`},
		{"edited.txt", 0, "1048576 262144 float sum -1", `[50,20.97,20.97,0,""]`, "none"},
		{"broken.txt", 1, "8192 2048 float sum -1", `[22.86,0.36,0.36,0,""]`, "none"},
		{"rccl.csv", 0, "1024 256 float sum -1", `[20.48,0.05,0.075,0,""]`, `[25.6,0.04,0.06,null,"not checked"]`},
		{"rccl.csv", 1, "2048 512 float sum -1", `[20.48,0.1,0.15,3,""]`, "none"},
		{"rccl.json", 0, "4096 0 half none -1", `[16,0.256,0.192,0,""]`, `[12.8,0.32,0.24,null,"not checked"]`},
		{"mscclpp.jsonl", 1, "2048 0  none -1", `[10,0.2048,0.3584,null,"not checked"]`, "none"},
		{"tests_v1.json", 0, "1024 256 float sum -1", `[20,0.0512,0.0768,0,""]`, `[16,0.064,0.096,null,"not checked"]`},
		{"tests_inf.json", 0, "1024 256 float sum -1", `[20,0.0512,0.0768,0,""]`, "none"},
		{"fork.json", 0, "4096 256 float none -1", `[16,0.256,0.192,0,""]`, `[12.8,0.32,0.24,null,"not checked"]`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			doc := readFixture(t, "read/"+tt.name)
			row := doc.Runs[0].Run.Rows[tt.row]
			if got := strings.Join([]string{itoa(int64(row.Bytes)), itoa(int64(row.Count)), row.Type, row.Op, itoa(int64(row.Root))}, " "); got != tt.want {
				t.Errorf("row %q, want %q", got, tt.want)
			}
			if got := figures(row.OutOfPlace); got != tt.out {
				t.Errorf("out-of-place %s, want %s", got, tt.out)
			}
			if got := figures(row.InPlace); got != tt.in {
				t.Errorf("in-place %s, want %s", got, tt.in)
			}
		})
	}
}

func itoa(v int64) string { data, _ := json.Marshal(v); return string(data) }

func TestReadIterations(t *testing.T) {
	run := readFixture(t, "read/iterations.txt").Runs[0].Run
	want := &result.IterStats{N: 200, MinUS: 75.72, MaxUS: 252.39, P99US: ptr(result.Micros(168.26)), Lacks: []string{"p50_us", "mean_us", "stdev_us"}}
	if diff := cmp.Diff(want, run.Rows[1].OutOfPlace.Iter); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
	if want := time.Date(2026, 7, 1, 12, 0, 1, 0, time.Local); !run.Rows[1].Time.Equal(want) {
		t.Errorf("time %v, want %v", run.Rows[1].Time, want)
	}
	var b bytes.Buffer
	if err := WriteCSV(&b, run); err != nil || !strings.Contains(b.String(), ",200,,,168.26,252.39,") {
		t.Errorf("CSV has a figure that is not there: %v\n%s", err, &b)
	}
	run = readFixture(t, "read/tests_v2_cut.json").Runs[0].Run
	want = &result.IterStats{N: 20, MinUS: 18, P50US: 19.5, P95US: ptr(result.Micros(30)), MaxUS: 44, MeanUS: 20, StdevUS: 2}
	if diff := cmp.Diff(want, run.Rows[0].OutOfPlace.Iter); diff != "" {
		t.Errorf("JSON (-want +got):\n%s", diff)
	}
}

func TestReadConfigAndPlace(t *testing.T) {
	run := readFixture(t, "ar_g2.txt").Runs[0].Run
	want := result.Config{Collectives: []string{"all_reduce"}, Types: []string{"float"}, Ops: []string{"sum"}, Placement: "group", World: 2, MinBytes: 8, MaxBytes: 4 << 30,
		StepFactor: 2, Iters: 50, ItersExact: true, Warmup: 10, Runs: 1, Modes: result.Options{Aggregate: 1, Cycles: 1}}
	if diff := cmp.Diff(want, run.Config); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
	rank := result.Rank{Rank: 1, Host: "vm", PID: 1462, Device: 1, DeviceName: "NVIDIA H200", PCIBusID: "0000:00:07"}
	if diff := cmp.Diff(rank, run.Ranks[1]); diff != "" {
		t.Errorf("rank (-want +got):\n%s", diff)
	}
	doc := readFixture(t, "read/tests_v1.json")
	run = doc.Runs[0].Run
	if !run.Config.Modes.ParallelInit || run.Config.StepFactor != 2 || run.Config.Placement != "group" || len(run.Ranks) != 2 || run.Rows[0].Root != -1 {
		t.Errorf("JSON: %+v, %d ranks", run.Config, len(run.Ranks))
	}
	if f := doc.Runs[0].Footer; f == nil || f.AvgBusBW == nil || !f.Concluded {
		t.Errorf("JSON: footer %+v: the misspelt keys were not read", f)
	}
	if diff := cmp.Diff(map[string]string{"NCCL_ALGO": "Ring"}, run.Environment.Env); diff != "" {
		t.Errorf("JSON: environment (-want +got):\n%s", diff)
	}
	if run := readFixture(t, "read/log_in_rows.txt").Runs[0].Run; run.Environment.Env["NCCL_ALGO"] != "Ring" {
		t.Errorf("log: environment %v", run.Environment.Env)
	}
	if o := readFixture(t, "read/broken.txt").Runs[0].Run.Outcome; o.Status != "failed" || !strings.Contains(o.Message, "illegal memory access") {
		t.Errorf("outcome %+v", o)
	}
}

// A secret of the environment must come out nowhere.
func TestReadKeepsSecrets(t *testing.T) {
	doc := readFixture(t, "read/tests_v1.json")
	var b bytes.Buffer
	if err := WriteJSON(&b, doc.Runs[0].Run); err != nil {
		t.Fatal(err)
	}
	for _, w := range doc.Warnings {
		b.WriteString(w.Text)
	}
	if strings.Contains(b.String(), "do-not-print") {
		t.Error("a secret of the environment was passed on")
	}
}

func TestExact(t *testing.T) {
	r := &readFixture(t, "ar_mpi2.txt").Runs[0]
	printed, exact := r.Run.Rows[0].OutOfPlace, r.Exact().Rows[0].OutOfPlace
	if printed.BusBW != 0 || math.Abs(float64(exact.BusBW)-8/6.89/1e3) > 1e-12 {
		t.Errorf("8 B: printed %v, exact %v", printed.BusBW, exact.BusBW)
	}
	if r.Run.Rows[0].OutOfPlace.BusBW != 0 {
		t.Error("Exact changed the run")
	}
	// What does not agree stays as printed.
	edited := &readFixture(t, "read/edited.txt").Runs[0]
	if got := edited.Exact().Rows[1].OutOfPlace.BusBW; got != 33.3 {
		t.Errorf("edited figure became %v", got)
	}
	// The number of ranks is not printed, but the largest size shows the factor.
	labels := &readFixture(t, "read/labels_cut.txt").Runs[0]
	if got := float64(labels.Exact().Rows[0].OutOfPlace.BusBW); math.Abs(got-1024/21.37/1e3*23/12) > 1e-4 {
		t.Errorf("1 KiB of 24 ranks: %v", got)
	}
}

func TestReadWorldFromRounding(t *testing.T) {
	// 1023/1024·2 is 1.998: two decimals of a few GB/s leave a range, more digits a narrower one.
	for _, tt := range []struct {
		line   string
		lo, hi int
	}{
		{"1048576 262144 float sum -1 1048.6 1.00 2.00 0 1048.6 1.00 2.00 0", 397, 0},
		{"1048576 262144 float sum -1 104.86 10.00 15.00 0 104.86 10.00 15.00 0", 4, 4},
		{"1048576 262144 float sum -1 104.86 10.00 19.17 0 104.86 10.00 19.17 0", 24, 24},
	} {
		w := readText(t, tt.line+"\n").Runs[0].World
		if w.Lo != tt.lo || w.Hi != tt.hi || (w.Ranks != 0) != (w.Lo == w.Hi) {
			t.Errorf("%s: %+v, want %d to %d", tt.line, w, tt.lo, tt.hi)
		}
	}
}

func TestReadOwnJSON(t *testing.T) {
	for name, run := range map[string]*result.Run{"full": fullRun(), "runs": hostRun(2)} {
		doc := readText(t, jsonOf(t, run))
		if len(doc.Runs) != 1 {
			t.Fatalf("%s: %d runs, %v", name, len(doc.Runs), doc.Warnings)
		}
		if diff := cmp.Diff(run, doc.Runs[0].Run, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-written +read):\n%s", name, diff)
		}
	}
	// A document that ends in the middle keeps its rows.
	text := jsonOf(t, hostRun(1))
	doc := readText(t, text[:len(text)*2/3])
	if n := doc.Rows(); n < 5 || n >= 22 || !strings.Contains(codesOf(doc), "json-truncated") {
		t.Errorf("cut document: %d rows, %s", n, codesOf(doc))
	}
	if doc := readText(t, `{"schema": "commprobe/sweep/9", "rows": []}`); codesOf(doc) != "unknown-schema" || len(doc.Runs) != 0 {
		t.Errorf("another schema: %d runs, %s", len(doc.Runs), codesOf(doc))
	}
	if doc := readText(t, `{"schema": "commprobe/sweep/1", "environment": {"env": {"TOKEN": "x", "NCCL_ALGO": "Ring"}}}`); len(doc.Runs[0].Run.Environment.Env) != 1 {
		t.Errorf("environment %v", doc.Runs[0].Run.Environment.Env)
	}
}

// csvView keeps what CSV carries of a row.
func csvView(rows []result.Row) []result.Row {
	out := slices.Clone(rows)
	for i := range out {
		for _, half := range []**result.Half{&out[i].OutOfPlace, &out[i].InPlace} {
			if *half == nil {
				continue
			}
			h := **half
			h = result.Half{Iters: h.Iters, TimeUS: h.TimeUS, AlgBW: h.AlgBW, BusBW: h.BusBW, Wrong: h.Wrong, SlowestRank: h.SlowestRank, LaunchBound: h.LaunchBound, Iter: h.Iter}
			if h.Iter != nil {
				h.Iter = &result.IterStats{N: h.Iter.N, P50US: h.Iter.P50US, P95US: h.Iter.P95US, P99US: h.Iter.P99US, MaxUS: h.Iter.MaxUS}
			}
			*half = &h
		}
	}
	return out
}

func TestReadOwnCSV(t *testing.T) {
	ignoreLacks := cmpopts.IgnoreFields(result.IterStats{}, "Lacks")
	for name, run := range map[string]*result.Run{"full": fullRun(), "runs": hostRun(3), "recorded": h200Run(t, "ar_mpi2.txt", "all_reduce", true)} {
		var b bytes.Buffer
		if err := WriteCSV(&b, run); err != nil {
			t.Fatal(err)
		}
		doc := readText(t, b.String())
		if len(doc.Runs) != 1 || doc.Runs[0].Format != formatCSV {
			t.Fatalf("%s: %d runs, %v", name, len(doc.Runs), doc.Formats)
		}
		if diff := cmp.Diff(csvView(run.Rows), csvView(doc.Runs[0].Run.Rows), ignoreLacks, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-written +read):\n%s", name, diff)
		}
		var again bytes.Buffer
		if name == "full" {
			continue // the largest queueing time is of ranks that the CSV does not list
		}
		if err := WriteCSV(&again, doc.Runs[0].Run); err != nil || again.String() != b.String() {
			t.Errorf("%s: written again it differs (%v):\n%s", name, err, cmp.Diff(b.String(), again.String()))
		}
	}
	curves := []Curve{{"a", h200Run(t, "ar_mpi2.txt", "all_reduce", true)}, {"b", h200Run(t, "all_gather.txt", "all_gather", true)}}
	var b bytes.Buffer
	if err := WriteCurvesCSV(&b, curves); err != nil {
		t.Fatal(err)
	}
	doc := readText(t, b.String())
	if len(doc.Runs) != 2 || doc.Runs[0].Title != "a" || doc.Runs[1].Title != "b" || doc.Runs[1].World.Ranks != 2 || len(doc.Runs[1].Run.Rows) != len(curves[1].Run.Rows) {
		t.Errorf("two sources: %s, %v", runsOf(doc), doc.Warnings)
	}
}

// Our table gives back what it shows.
func TestReadOwnTable(t *testing.T) {
	for name, run := range map[string]*result.Run{"full": fullRun(), "recorded": h200Run(t, "ar_mpi2.txt", "all_reduce", true), "host": hostRun(1)} {
		for _, opts := range []Options{{}, {Percentiles: true}} {
			var b bytes.Buffer
			if err := WriteTable(&b, run, opts); err != nil {
				t.Fatal(err)
			}
			doc := readText(t, b.String())
			if len(doc.Runs) != 1 {
				t.Fatalf("%s: %d runs\n%s%v", name, len(doc.Runs), &b, doc.Warnings)
			}
			got := doc.Runs[0].Run
			for i := range run.Rows {
				tableRowsAgree(t, name, &run.Rows[i], &got.Rows[i], opts)
			}
			if got.Program.Version != run.Program.Version || got.Config.Engine != run.Config.Engine || got.Config.Placement != run.Config.Placement ||
				got.Config.World != run.Config.World || got.Outcome.Status != run.Outcome.Status || len(got.Notes) < len(run.Notes) || len(got.Skipped) != len(run.Skipped) {
				t.Errorf("%s: read %+v, %+v, %+v, %d notes, %d skipped", name, got.Program, got.Config, got.Outcome, len(got.Notes), len(got.Skipped))
			}
			for _, w := range doc.Warnings {
				if w.Code != "wrong-data" && w.Code != "failed-check" && w.Code != "not-checked" && w.Code != "outcome" && w.Code != "in-place-not-checked" {
					t.Errorf("%s: %+v", name, w)
				}
			}
		}
	}
	full := readTable(t, fullRun())
	if f := full.Rows[2].OutOfPlace.Faults; len(f) != 1 || f[0].Rank != 3 || f[0].Wrong != 17 || f[0].Last != 99 || f[0].Samples[0].Got != "1.5" || !strings.Contains(f[0].Analysis, "rank 2") {
		t.Errorf("faults %+v", f)
	}
	if o := full.Outcome; o.Rank == nil || *o.Rank != 3 || o.Exit != 6 || o.Host != "vm" || o.Phase != "verification" || !strings.Contains(o.Message, "17 wrong") {
		t.Errorf("outcome %+v", o)
	}
}

func readTable(t *testing.T, run *result.Run) *result.Run {
	t.Helper()
	var b bytes.Buffer
	if err := WriteTable(&b, run, Options{}); err != nil {
		t.Fatal(err)
	}
	return readText(t, b.String()).Runs[0].Run
}

func tableRowsAgree(t *testing.T, name string, want, got *result.Row, opts Options) {
	t.Helper()
	if want.Bytes != got.Bytes || want.Count != got.Count || want.Type != got.Type || want.Op != got.Op || want.Root != got.Root || want.Collective != got.Collective {
		t.Fatalf("%s: row %+v became %+v", name, want, got)
	}
	for _, inPlace := range []bool{false, true} {
		w, g := halfOf(want, inPlace), halfOf(got, inPlace)
		if (w == nil) != (g == nil) {
			t.Fatalf("%s: %d B: a half comes or goes", name, want.Bytes)
		}
		if w == nil {
			continue
		}
		if math.Abs(float64(w.TimeUS-g.TimeUS)) > 0.005+1e-3*float64(w.TimeUS) || math.Abs(float64(w.BusBW-g.BusBW)) > 0.005+1e-3*float64(w.BusBW) || !cmp.Equal(w.Wrong, g.Wrong) {
			t.Errorf("%s: %d B: %s became %s", name, want.Bytes, figures(w), figures(g))
		}
		if opts.Percentiles && w.Iter != nil && (g.Iter == nil || math.Abs(float64(w.Iter.P50US-g.Iter.P50US)) > 0.006+1e-4*float64(w.Iter.P50US) || (w.Iter.P99US == nil) != (g.Iter.P99US == nil)) {
			t.Errorf("%s: %d B: iterations %+v became %+v", name, want.Bytes, w.Iter, g.Iter)
		}
	}
}

func TestReadSeveralSections(t *testing.T) {
	run := h200Run(t, "ar_mpi2.txt", "all_reduce", true)
	run.Rows = append(run.Rows, h200Run(t, "all_gather.txt", "all_gather", true).Rows...)
	run.Config.Collectives = append(run.Config.Collectives, "all_gather")
	var b bytes.Buffer
	if err := WriteTable(&b, run, Options{}); err != nil {
		t.Fatal(err)
	}
	doc := readText(t, b.String())
	if want := "all_reduce 14 rows, 2 ranks by rank list, 2.28.9; all_gather 7 rows, 2 ranks by rank list, 2.28.9"; runsOf(doc) != want {
		t.Errorf("got %s, want %s; %v", runsOf(doc), want, doc.Warnings)
	}
}

func TestReadLimits(t *testing.T) {
	long := strings.Repeat("x ", maxLine) + "\n1024 256 float sum -1 8.00 0.13 0.19 0 8.00 0.13 0.19 0\n"
	doc := readText(t, long)
	if doc.Rows() != 1 || doc.Runs[0].details[0].line != 2 || !strings.Contains(codesOf(doc), "long-line") {
		t.Errorf("long line: %d rows, %s", doc.Rows(), codesOf(doc))
	}
	doc = readText(t, strings.Repeat(`{"a":`, 1<<16)+"\n1024 256 float sum -1 8.00 0.13 0.19 0 8.00 0.13 0.19 0\n")
	if doc.Rows() != 1 {
		t.Errorf("deep document: %d rows, %v", doc.Rows(), doc.Warnings)
	}
	var many strings.Builder
	for i := range 3000 {
		many.WriteString("host" + itoa(int64(i)) + ": Test CUDA failure a.cu:1 'error " + itoa(int64(i)) + "'\n")
	}
	if doc := readText(t, many.String()); len(doc.Warnings) > maxWarnings+1 {
		t.Errorf("%d warnings", len(doc.Warnings))
	}
	for _, text := range []string{"", "\n\n", "\x00\x01", "{", "{\"", "[", "{}", "\xff\xfe", "# ", "1 1 float", "1 1 float sum", ",,,,,,", "[1,0]<stdout>:"} {
		if doc := readText(t, text); doc.Rows() != 0 {
			t.Errorf("%q has %d rows", text, doc.Rows())
		}
	}
	if doc := readText(t, "\xef\xbb\xbf1024 256 float sum -1 8.00 0.13 0.19 0 8.00 0.13 0.19 0\r\n"); doc.Rows() != 1 {
		t.Error("byte order mark and carriage return")
	}
	failing := io.MultiReader(strings.NewReader("1024 256 float sum -1 8.00 0.13 0.19 0 8.00 0.13 0.19 0\n"), iotest.ErrReader(errors.New("disk gone")))
	doc, err := Read(failing, "f")
	if err == nil || !strings.Contains(err.Error(), "read f: disk gone") || doc.Rows() != 1 {
		t.Errorf("failing reader: %v, %d rows", err, doc.Rows())
	}
}

// TestReadOddities holds small cases, each with the codes of its warnings.
func TestReadOddities(t *testing.T) {
	const config = "# nThread 1 nGpus 1 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0\n"
	const header = "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong\n"
	const old = "#       size         count      type     time   algbw   busbw  error     time   algbw   busbw  error\n"
	const row = "1048576 262144 float sum -1 100.0 10.49 10.49 0 100.0 10.49 10.49 0\n"
	for _, tt := range []struct{ name, text, runs, code string }{
		{"infinite", header + "1048576 262144 float sum -1 0.00 inf inf 0 100.0 10.49 10.49 0\n", "all_reduce 1 rows, 2 ranks by busbw over algbw, -", "collective-inferred no-footer not-finite"},
		{"second start after a hang", config + header + config + header + row, "- 0 rows, unknown ranks, -; all_reduce 1 rows, 2 ranks by busbw over algbw, -",
			"collective-inferred config-mismatch no-footer×2"},
		{"second start after a failure", config + "alpha: Test NCCL failure a.cu:1 'no'\n" + config + header + row,
			"- 0 rows, unknown ranks, -; all_reduce 1 rows, 2 ranks by busbw over algbw, -", "collective-inferred config-mismatch nccl-failure no-footer"},
		{"old in-place error of an unnamed alltoall", old + "1048576 65536 float 100.0 7.86 7.86 0e+00 100.0 7.86 7.86 3e+02\n", "- 1 rows, 4 ranks by size over count, -",
			"collective-unknown in-place-error-void no-footer old-bandwidth"},
		{"old error out-of-place", old + "1048576 65536 float 100.0 7.86 7.86 3e+02 100.0 7.86 7.86 3e+02\n", "- 1 rows, 4 ranks by size over count, -",
			"collective-unknown no-footer old-bandwidth wrong-data"},
		{"command line", "$ mpirun -np 2 ./build/all_gather_perf -b 1M\n" + header + "1048576 131072 float none -1 100.0 10.49 5.24 0 100.0 10.49 5.24 0\n",
			"all_gather 1 rows, 2 ranks by size over count, -", "collective-inferred no-footer"},
		{"a command line that does not fit", "$ ./broadcast_perf\n" + header + row, "all_reduce 1 rows, 2 ranks by busbw over algbw, -", "collective-inferred no-footer"},
		{"a type of the future", header + "1048576 262144 float6 sum -1 100.0 10.49 10.49 0 100.0 10.49 10.49 0\n", "- 1 rows, unknown ranks, -", "collective-unknown no-footer"},
		{"cut message", "alpha: Test NCCL failure a.cu:1 'remote pro", "", "nccl-failure"},
		{"two shared devices", "#  Rank  0 Group  0 Pid 1 on a device  0 [0000:01:00] X\n#  Rank  1 Group  0 Pid 2 on a device  0 [0000:01:00] X\n" + header + row,
			"all_reduce 1 rows, 2 ranks by rank list, -", "collective-inferred no-footer shared-device"},
		{"comments are not data", "# note: 8 2 float sum -1 1.0 1.0 1.0 0 1.0 1.0 1.0 0\n# see Avg bus bandwidth : 3 and nccl-tests version 9\n", "", ""},
	} {
		doc := readText(t, tt.text)
		if runsOf(doc) != tt.runs || codesOf(doc) != tt.code {
			t.Errorf("%s:\n got %s | %s\nwant %s | %s", tt.name, runsOf(doc), codesOf(doc), tt.runs, tt.code)
		}
		for i := range doc.Runs {
			checkRun(t, &doc.Runs[i])
		}
	}
}

func TestRepairJSON(t *testing.T) {
	for in, want := range map[string]string{
		`{"a":1}`:                    `{"a":1}`,
		`{"a": [1, inf, -nan, NaN]}`: `{"a":[1,null,null,null]}`,
		`{"a":1,"b":2`:               `{"a":1}`,
		`{"a":1,"b":"x`:              `{"a":1}`,
		`{"a":[{"b":1},{"c`:          `{"a":[{"b":1},{}]}`,
		`{"a":tru`:                   `{}`,
		`{"a":1 x`:                   `{"a":1}`,
		`{"a":"b` + "\n" + `c"}`:     `{"a":"bc"}`,
		`{"a":"\q"}`:                 `{"a":""}`,
		`[1,2,`:                      `[1,2]`,
		`{"a":{"b":{}},`:             `{"a":{"b":{}}}`,
	} {
		got, _ := repairJSON([]byte(in))
		if string(got) != want {
			t.Errorf("%s became %s, want %s", in, got, want)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, pattern := range []string{"testdata/read/*", "testdata/*.txt", "testdata/*.json", "testdata/*.golden"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			f.Fatal(pattern, err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		doc, err := Read(bytes.NewReader(data), "fuzz")
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range doc.Warnings {
			if w.Line < 0 || w.Code == "" || w.Text == "" || w.Run >= len(doc.Runs) {
				t.Errorf("warning %+v", w)
			}
		}
		for i := range doc.Runs {
			checkRun(t, &doc.Runs[i])
			_ = doc.Runs[i].Summary()
		}
		var b bytes.Buffer
		curves := Curves([]*Document{doc}, true)
		if err := WriteCurvesCSV(&b, curves); err != nil {
			t.Fatal(err)
		}
		for _, c := range curves {
			if err := Terminal(io.Discard, c.Run, Options{}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func FuzzRepairJSON(f *testing.F) {
	for _, s := range []string{`{"a":[1,inf,{"b":"\u00e9\""}]}`, `{"a":1,"b":`, `[[[`, `{"x":"` + "\x80" + `"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		fixed, r := repairJSON(data)
		if len(fixed) > 0 && !json.Valid(fixed) {
			t.Errorf("%q became %q, which is no JSON", data, fixed)
		}
		if json.Valid(data) && r == (repairs{}) && len(bytes.TrimSpace(data)) > 0 {
			var want, got any
			if json.Unmarshal(data, &want) == nil && json.Unmarshal(fixed, &got) == nil && !cmp.Equal(want, got) {
				t.Errorf("%q changed its meaning: %q", data, fixed)
			}
		}
	})
}
