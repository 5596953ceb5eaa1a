package report

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/commprobe/commprobe/bench/result"
)

func tableOf(t *testing.T, run *result.Run, opts Options) string {
	t.Helper()
	var b strings.Builder
	if err := WriteTable(&b, run, opts); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// dataRows are the lines of a table that are no comments.
func dataRows(table string) []string {
	var rows []string
	for line := range strings.Lines(table) {
		if line = strings.TrimSuffix(line, "\n"); line != "" && !strings.HasPrefix(line, "#") {
			rows = append(rows, line)
		}
	}
	return rows
}

// The same numbers must give the same characters as nccl-tests printed, in rows, titles, device lines and footer.
func TestTableIsNCCLTestsToTheColumn(t *testing.T) {
	for _, c := range []struct{ file, collective string }{
		{"ar_mpi2.txt", "all_reduce"}, {"ar_g2.txt", "all_reduce"}, {"ar_check.txt", "all_reduce"}, {"all_gather.txt", "all_gather"},
	} {
		lines, wantRows := ncclTestsLines(t, c.file)
		table := tableOf(t, h200Run(t, c.file, c.collective, false), Options{})
		if diff := cmp.Diff(wantRows, dataRows(table)); diff != "" || len(wantRows) < 7 {
			t.Errorf("%s: rows (-nccl-tests +ours):\n%s", c.file, diff)
		}
		for _, line := range lines {
			anchor := strings.Contains(line, "out-of-place") || strings.HasPrefix(line, "#       size") || strings.HasPrefix(line, "#        (B)") ||
				strings.HasPrefix(line, "# Using") || strings.HasPrefix(line, "# Out of bounds") || c.file == "ar_mpi2.txt" && strings.HasPrefix(line, "#  Rank")
			if anchor && !strings.Contains(table, "\n"+line+"\n") {
				t.Errorf("%s: no line %q in\n%s", c.file, line, table)
			}
		}
	}
}

// nccl-tests' JSON has the figures in full, so that the average too must be what its text says of the same run.
func TestTableAverageIsNCCLTests(t *testing.T) {
	lines, wantRows := ncclTestsLines(t, "ar_check.txt")
	run := emptyH200Run("all_reduce")
	run.Rows = ncclJSONRows(t)
	table := tableOf(t, run, Options{})
	if diff := cmp.Diff(wantRows, dataRows(table)); diff != "" {
		t.Errorf("rows (-nccl-tests +ours):\n%s", diff)
	}
	found := false
	for _, line := range lines {
		if strings.HasPrefix(line, "# Avg bus bandwidth") {
			found = true
			if !strings.Contains(table, "\n"+line+"\n") {
				t.Errorf("no line %q in\n%s", line, table)
			}
		}
	}
	if !found {
		t.Error("the recorded file has no average")
	}
}

func TestTableGolden(t *testing.T) {
	golden(t, "table_mpi2.golden", tableOf(t, h200Run(t, "ar_mpi2.txt", "all_reduce", true), Options{}))
	golden(t, "table_full.golden", tableOf(t, fullRun(), Options{}))
	golden(t, "table_percentiles.golden", tableOf(t, fullRun(), Options{Percentiles: true}))
	golden(t, "table_runs.golden", tableOf(t, hostRun(3), Options{}))
}

func TestTableLinesUp(t *testing.T) {
	for _, opts := range []Options{{}, {Percentiles: true}} {
		lines := strings.Split(tableOf(t, fullRun(), opts), "\n")
		title := ""
		for _, line := range lines {
			if strings.HasPrefix(line, "#       size") {
				title = strings.TrimSuffix(line, " ")
			}
			// An unchecked half is one character short, as in nccl-tests; the percentile columns line up again.
			short := len(title) - len(line)
			if line != "" && line[0] != '#' && short != 0 && (opts.Percentiles || short != strings.Count(line, "    N/A")) {
				t.Errorf("row of %d characters under a title of %d:\n%s\n%s", len(line), len(title), title, line)
			}
		}
	}
}

func TestFixedWidth(t *testing.T) {
	for _, c := range []struct {
		v     float64
		width int
		want  string
	}{
		{6.888, 7, "6.89"}, {9999.99, 7, "9999.99"}, {9999.994, 7, "9999.99"}, {9999.996, 7, "10000.0"}, {12430.4, 7, "12430.4"},
		{123456.7, 7, "123457"}, {9999999, 7, "9999999"}, {10000000, 7, "1.0e+07"}, {345.52, 6, "345.52"}, {999.996, 6, "1000.0"},
		{43046.10, 6, "43046"}, {999999, 6, "999999"}, {1000000, 6, "1e+06"}, {0, 6, "0.00"}, {math.Inf(1), 6, "inf"}, {math.NaN(), 6, "nan"},
	} {
		if got := fixedWidth(c.v, c.width); got != c.want {
			t.Errorf("fixedWidth(%v, %d) = %q, want %q", c.v, c.width, got, c.want)
		}
	}
}

// counter notes the writes that reach it.
type counter struct {
	writes []string
	fail   int // the write of this number fails, 0 never
}

func (c *counter) Write(p []byte) (int, error) {
	c.writes = append(c.writes, string(p))
	if len(c.writes) == c.fail {
		return 0, errors.New("pipe is gone")
	}
	return len(p), nil
}

func TestTableStreamsOneWriteARow(t *testing.T) {
	run := fullRun()
	out := &counter{}
	table := NewTable(out, Options{})
	if err := table.Start(run); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(out.writes, ""), "(elements)") {
		t.Error("the header is not there before the first row")
	}
	for i, row := range run.Rows {
		before := len(out.writes)
		if err := table.Row(row); err != nil {
			t.Fatal(err)
		}
		if len(out.writes) != before+1 || !strings.HasSuffix(out.writes[before], "\n") {
			t.Errorf("row %d: %d writes: %q", i, len(out.writes)-before, out.writes[before:])
		}
	}
	if !strings.Contains(out.writes[3], "\n#   rank 3: 17 wrong elements in [0, 99]; first: index 5 got 1.5 expected 2.5") {
		t.Errorf("no fault line with the row: %q", out.writes[3])
	}
}

func TestTableKeepsTheFirstError(t *testing.T) {
	run := fullRun()
	out := &counter{fail: 2}
	table := NewTable(out, Options{})
	if err := table.Row(run.Rows[0]); err == nil {
		t.Error("a row before the start is taken")
	}
	if err := table.Finish(run); err == nil {
		t.Error("a finish before the start is taken")
	}
	if err := table.Start(run); err != nil {
		t.Fatal(err)
	}
	if err := table.Start(run); err == nil {
		t.Error("a second start is taken")
	}
	first := table.Row(run.Rows[0])
	if first == nil || table.Row(run.Rows[1]) != first || table.Finish(run) != first || len(out.writes) != 2 {
		t.Errorf("errors do not stay: %v, writes %d", first, len(out.writes))
	}
}

func TestTableOfSeveralRunsIsTheMedian(t *testing.T) {
	run := emptyH200Run("all_reduce")
	run.Config.Runs = 3
	row := func(n int, bytes result.Bytes, us result.Micros, wrong int64) result.Row {
		return result.Row{Run: n, Collective: "all_reduce", Type: "float", Op: "sum", Root: -1, Bytes: bytes, Count: result.Count(bytes / 4),
			OutOfPlace: &result.Half{TimeUS: us, AlgBW: result.GBps(us), BusBW: result.GBps(us), Wrong: ptr(wrong),
				LaunchBound: &result.LaunchBound{Rank: 1, EnqueueUS: us}}}
	}
	var b strings.Builder
	table := NewTable(&b, Options{})
	if err := table.Start(run); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "median over runs") {
		t.Error("the header does not say that rows are medians")
	}
	for _, r := range []result.Row{row(1, 8, 7, 0), row(1, 16, 8, 0), row(2, 8, 11, 2), row(2, 16, 9, 0), row(3, 8, 7.5, 1)} {
		if err := table.Row(r); err != nil {
			t.Fatal(err)
		}
	}
	if got := dataRows(b.String()); len(got) != 1 {
		t.Fatalf("rows before the end: %q, want the one that all runs have", got)
	}
	if err := table.Finish(run); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"           8             2     float     sum      -1     7.50    7.50    7.50       3      N/A     N/A     N/A    N/A",
		"          16             4     float     sum      -1     8.50    8.50    8.50       0      N/A     N/A     N/A    N/A",
	}
	if diff := cmp.Diff(want, dataRows(b.String())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, line := range []string{"# Out of bounds values : 2 FAILED\n", "# Avg bus bandwidth    : 8 \n",
		"#   info: rows 8 B … 16 B are launch-bound on rank 1: queueing one operation takes 7.5–8.5 µs; the GPU waits for the CPU\n"} {
		if !strings.Contains(b.String(), line) {
			t.Errorf("no %q in\n%s", line, b.String())
		}
	}
}

func TestTableSections(t *testing.T) {
	run := h200Run(t, "ar_check.txt", "all_reduce", false)
	run.Config.Collectives = []string{"all_reduce", "all_gather"}
	run.Rows = append(run.Rows[:2], h200Run(t, "all_gather.txt", "all_gather", false).Rows[:2]...)
	table := tableOf(t, run, Options{})
	for text, want := range map[string]int{
		"# Collective test starting: ": 2, "# Collective test concluded: all_reduce\n": 1, "# Collective test concluded: all_gather\n": 1,
		"# Using devices\n": 2, "(elements)": 2, "# Avg bus bandwidth ": 2, "# commprobe version ": 1,
	} {
		if got := strings.Count(table, text); got != want {
			t.Errorf("%d × %q, want %d, in\n%s", got, text, want, table)
		}
	}
}

func TestTableOfAnIncompleteRun(t *testing.T) {
	run := h200Run(t, "ar_mpi2.txt", "all_reduce", true)
	run.Outcome = result.Outcome{Status: "time-out", Exit: 4, Message: "no answer\nfor 60 s", Rank: ptr(1), Host: "vm", Phase: "warm-up"}
	table := tableOf(t, run, Options{})
	if strings.Contains(table, "concluded") || strings.Contains(table, "Avg bus") {
		t.Errorf("an incomplete run concludes:\n%s", table)
	}
	if want := "# error: time-out (exit status 4), rank 1, host vm, in warm-up: no answer for 60 s\n"; !strings.Contains(table, want) {
		t.Errorf("no %q in\n%s", want, table)
	}
	run.Rows = nil
	if table := tableOf(t, run, Options{}); len(dataRows(table)) != 0 || !strings.Contains(table, "# Out of bounds values : 0 OK") {
		t.Errorf("a run without rows:\n%s", table)
	}
	// Foreign text must not make a line that looks like a row.
	run.Notes = []result.Note{{Severity: "info", Text: "a\n 8 2 float sum -1 1 1 1 0 1 1 1 0"}}
	if table := tableOf(t, run, Options{}); len(dataRows(table)) != 0 {
		t.Errorf("a note breaks out:\n%s", table)
	}
}

func TestTableOfOneRankHasNoBandwidth(t *testing.T) {
	table := tableOf(t, oneRankRun(), Options{})
	want := "           8             2     float     sum      -1     4.00    0.00    0.00    N/A     0.03   2e+06    0.00    N/A"
	if got := dataRows(table); got[0] != want {
		t.Errorf("got  %q\nwant %q", got[0], want)
	}
	if !strings.Contains(table, "# Avg bus bandwidth    : 0 \n") {
		t.Errorf("average is not 0:\n%s", table)
	}
}

func TestVersionAndBusForms(t *testing.T) {
	for in, want := range map[string]string{"2.28.9": "22809", "2.8.4": "2804", "22809": "22809", "2.30.1+cuda13": "2.30.1+cuda13", "": "none"} {
		if got := versionCode(in); got != want {
			t.Errorf("versionCode(%q) = %q, want %q", in, got, want)
		}
	}
	for in, want := range map[string]string{"0000:0F:00.0": "0000:0f:00", "00000000:0F:00.0": "0000:0f:00", "00010000:0f:00.0": "10000:0f:00", "": "none", "host": "host"} {
		if got := busID(in); got != want {
			t.Errorf("busID(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestLaunchBoundLines(t *testing.T) {
	row := func(bytes result.Bytes, out, in *result.LaunchBound) result.Row {
		return result.Row{Collective: "all_reduce", Type: "float", Op: "sum", Bytes: bytes,
			OutOfPlace: &result.Half{LaunchBound: out}, InPlace: &result.Half{LaunchBound: in}}
	}
	at := func(rank int, us result.Micros) *result.LaunchBound {
		return &result.LaunchBound{Rank: rank, EnqueueUS: us}
	}
	got := launchBoundLines([]result.Row{row(8, at(1, 9.4), at(1, 9.5)), row(64, at(1, 9.4), nil), row(512, at(0, 20), at(1, 9.3)), row(4096, nil, nil)}, &result.Config{Engine: "host"})
	want := []string{
		"rows 8 B … 512 B are launch-bound on rank 1 (4 of 6 row halves): queueing one operation takes 9.4 µs; the stream waits for the thread that queues",
		"row 512 B is launch-bound on rank 0 (1 of 2 row halves): queueing one operation takes 20.0 µs; the stream waits for the thread that queues",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestSharedCoreCure: the advice to look for quiet cores is given only to those who did not.
func TestSharedCoreCure(t *testing.T) {
	share := 0.55
	row := result.Row{Collective: "all_reduce", Type: "float", Op: "sum", Bytes: 8, OutOfPlace: &result.Half{
		LaunchBound: &result.LaunchBound{Rank: 0, EnqueueUS: 9.4, CoreShare: &share}}}
	for _, quiet := range []bool{false, true} {
		got := launchBoundLines([]result.Row{row}, &result.Config{Engine: "native", QuietCores: quiet})
		if len(got) != 1 || !strings.Contains(got[0], "did only 55 %") || strings.Contains(got[0], "--quiet-cores avoids") == quiet {
			t.Errorf("quiet cores %v: %q", quiet, got)
		}
	}
}
