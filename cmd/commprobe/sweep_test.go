package main

import (
	"encoding/csv"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/bench/report"
	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/nccl"
)

// doubling are the sizes from a to b.
func doubling(a, b int64) []int64 {
	var out []int64
	for ; a <= b; a *= 2 {
		out = append(out, a)
	}
	return out
}

func TestSweepPrintsTable(t *testing.T) {
	t.Parallel()
	sit(t)
	e, g := engine(t, 4, 1)
	f := ok(t, nil, sweepArgs(e, g, "-b", "8", "-e", "1M", "-n", "5", "-w", "2", "-c", "1", "--quiet")...)
	for _, r := range goodTable(t, f.stdout, doubling(8, 1<<20)...) {
		if r.count != r.bytes/4 || r.dtype != "float" || r.op != "sum" || r.root != -1 {
			t.Errorf("row %+v", r)
		}
		for h := range 2 {
			// The table has two decimals of each.
			alg := float64(r.bytes) / r.time[h] / 1e3
			if math.Abs(alg-r.algbw[h]) > 0.006+0.01*alg {
				t.Errorf("%d bytes in %g µs: algbw %g, want %g", r.bytes, r.time[h], r.algbw[h], alg)
			}
			if bus := alg * 2 * float64(g-1) / float64(g); math.Abs(bus-r.busbw[h]) > 0.006+0.01*bus {
				t.Errorf("%d bytes in %g µs on %d ranks: busbw %g, want %g", r.bytes, r.time[h], g, r.busbw[h], bus)
			}
		}
	}
	if f.stderr != "" {
		t.Errorf("--quiet, and stderr has %q", f.stderr)
	}
}

// A run without -c says so and does not claim 0 wrong.
func TestSweepUnchecked(t *testing.T) {
	t.Parallel()
	sit(t)
	e, g := engine(t, 2, 1)
	f := ok(t, nil, sweepArgs(e, g, "-b", "1K", "-e", "1K", "-n", "2", "-c", "0")...)
	if rows := parseTable(t, f.stdout); len(rows) != 1 || rows[0].wrong != [2]string{"N/A", "N/A"} {
		t.Errorf("%+v", rows)
	}
}

func TestSweepJSON(t *testing.T) {
	t.Parallel()
	sit(t)
	e, g := engine(t, 4, 1)
	f := ok(t, []string{"SECRET=hunter2", "NCCL_FOO=1", "XNCCL_BAR=1"}, sweepArgs(e, g, "-b", "8", "-e", "4K", "-f", "8", "-n", "3", "-c", "2", "--json", "-")...)
	run := readRun(t, f.stdout) // refuses anything after the document
	if strings.Contains(f.stdout, "hunter2") || strings.Contains(f.stdout, "SECRET") || strings.Contains(f.stdout, "XNCCL") {
		t.Error("a variable that is not NCCL's is in the result")
	}
	want := map[string]string{}
	for _, kv := range append(os.Environ(), "NCCL_FOO=1") {
		if k, v, _ := strings.Cut(kv, "="); strings.HasPrefix(k, "NCCL_") {
			want[k] = v
		}
	}
	if len(run.Environment.Env) != len(want) {
		t.Errorf("environment %v, want %v", run.Environment.Env, want)
	}
	for k, v := range want {
		if run.Environment.Env[k] != v {
			t.Errorf("environment %v, want %s=%s", run.Environment.Env, k, v)
		}
	}
	checkFacts(t, run, e, g)
	checkRows(t, run, g)
	numbersAreNumbers(t, f.stdout)
}

func checkFacts(t *testing.T, run *result.Run, e string, g int) {
	t.Helper()
	outcomeIs(t, run, "ok", 0, -1)
	c := run.Config
	if run.Schema != result.Schema || c.Engine != e || c.World != g || c.Iters != 3 || c.Check != 2 || c.MinBytes != 8 || c.MaxBytes != 4096 || c.StepFactor != 8 {
		t.Errorf("schema %q, config %+v", run.Schema, c)
	}
	if run.Program.Name != "commprobe" || run.Program.Version == "" || run.Program.Go == "" || len(run.Command) == 0 || !run.Ended.After(run.Started) {
		t.Errorf("program %+v, command %v, %v … %v", run.Program, run.Command, run.Started, run.Ended)
	}
	host, _ := os.Hostname()
	if len(run.Environment.Hosts) != 1 || run.Environment.Hosts[0].Name != host || run.Environment.Hosts[0].CPUs < 1 || run.Environment.Hosts[0].MemTotal < 1<<20 {
		t.Errorf("hosts %+v", run.Environment.Hosts)
	}
	for _, l := range run.Environment.Libraries {
		if l.Name == "" || l.Path == "" || l.Version == "" {
			t.Errorf("library %+v", l)
		}
	}
	if len(run.Environment.Libraries) == 0 {
		t.Error("no libraries")
	}
	pids := map[int]bool{}
	for i, r := range run.Ranks {
		if r.Rank != i || r.Device != i || r.Host != host || r.PID == 0 || r.DeviceName == "" || r.MemTotal == 0 || r.CPUs == "" {
			t.Errorf("rank %+v", r)
		}
		pids[r.PID] = true
	}
	if len(run.Ranks) != g || len(pids) != g {
		t.Errorf("%d ranks in %d processes, want %d", len(run.Ranks), len(pids), g)
	}
}

func checkRows(t *testing.T, run *result.Run, g int) {
	t.Helper()
	if len(run.Rows) != 4 {
		t.Fatalf("%d rows", len(run.Rows))
	}
	for _, r := range run.Rows {
		for _, h := range []*result.Half{r.OutOfPlace, r.InPlace} {
			if h == nil || h.Wrong == nil || *h.Wrong != 0 || len(h.Ranks) != g || h.Iter == nil || h.TimeUS <= 0 {
				t.Fatalf("%d bytes: half %+v", r.Bytes, h)
			}
			sum := 0.0
			for i, k := range h.Ranks {
				sum += float64(k.TimeUS)
				if k.Rank != i || len(k.EventUS) != h.Iter.N || k.EnqueueUS <= 0 {
					t.Errorf("%d bytes: rank %+v", r.Bytes, k)
				}
			}
			if mean := sum / float64(g); math.Abs(mean-float64(h.TimeUS)) > 1e-6*mean {
				t.Errorf("%d bytes: %g µs is not the mean %g over ranks", r.Bytes, h.TimeUS, mean)
			}
		}
	}
}

// numbersAreNumbers looks for a number in quotes where no version, address or name is.
func numbersAreNumbers(t *testing.T, doc string) {
	t.Helper()
	var all map[string]any
	if err := json.Unmarshal([]byte(doc), &all); err != nil {
		t.Fatal(err)
	}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, x := range v {
				walk(path+"."+k, x)
			}
		case []any:
			for _, x := range v {
				walk(path, x)
			}
		case string:
			if _, err := strconv.ParseFloat(v, 64); err == nil && path != ".config.modes.root" { // which may be "all"
				t.Errorf("%s is %q, a text", path, v)
			}
		}
	}
	walk(".config", all["config"])
	walk(".rows", all["rows"])
	walk(".outcome", all["outcome"])
}

func TestSweepCSV(t *testing.T) {
	t.Parallel()
	sit(t)
	e, g := engine(t, 2, 1)
	f := ok(t, nil, sweepArgs(e, g, "-b", "8", "-e", "64", "-n", "2", "--csv", "-")...)
	records, err := csv.NewReader(strings.NewReader(f.stdout)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(records) != 1+2*4 || !slices.Equal(records[0], report.CSVColumns()) {
		t.Fatalf("%d lines, the first %v", len(records), records[0])
	}
	for i, r := range records[1:] {
		if r[5] != strconv.Itoa(8<<(i/2)) || r[7] != []string{"out", "in"}[i%2] || r[12] != "0" || number(t, r[9]) <= 0 {
			t.Errorf("line %v", r)
		}
	}
}

func TestSweepFiles(t *testing.T) {
	t.Parallel()
	sit(t)
	e, g := engine(t, 2, 1)
	dir := t.TempDir()
	js, cs, png, svg := filepath.Join(dir, "r.json"), filepath.Join(dir, "r.csv"), filepath.Join(dir, "r.png"), filepath.Join(dir, "r.svg")
	args := sweepArgs(e, g, "-b", "8", "-e", "1K", "-n", "2", "--json", js, "--csv", cs, "--plot", png, "--plot", svg, "--plot", "-")
	f := ok(t, nil, args...)
	if !strings.Contains(f.stdout, "# Out of bounds values : 0 OK") {
		t.Error("no table on stdout beside the files")
	}
	if run := readRunFile(t, js); len(run.Rows) != 8 {
		t.Errorf("%d rows in %s", len(run.Rows), js)
	}
	for path, head := range map[string]string{cs: "run,collective,", png: "\x89PNG\r\n\x1a\n", svg: "<?xml"} {
		raw, err := os.ReadFile(path)
		if err != nil || !strings.HasPrefix(string(raw), head) {
			t.Errorf("%s begins with %.20q (%v)", path, raw, err)
		}
	}
	if names := folder(t, dir); len(names) != 4 {
		t.Errorf("in the folder: %v", names)
	}

	t.Run("existing file", func(t *testing.T) {
		before, err := os.ReadFile(js)
		if err != nil {
			t.Fatal(err)
		}
		f := commprobe(t, nil, sweepArgs(e, g, "-b", "8", "-e", "8", "--json", js)...)
		if f.code != 2 || f.stdout != "" {
			t.Errorf("exit status %d, stdout %q", f.code, f.stdout)
		}
		oneLine(t, f.stderr)
		has(t, f.stderr, js, "exists", "--force")
		if after, err := os.ReadFile(js); err != nil || string(after) != string(before) {
			t.Errorf("the file was touched (%v)", err)
		}
	})
	t.Run("force", func(t *testing.T) {
		ok(t, nil, sweepArgs(e, g, "-b", "16", "-e", "16", "-n", "2", "--json", js, "--force")...)
		if run := readRunFile(t, js); len(run.Rows) != 1 || run.Rows[0].Bytes != 16 {
			t.Errorf("not replaced: %d rows", len(run.Rows))
		}
		if names := folder(t, dir); len(names) != 4 {
			t.Errorf("in the folder: %v", names)
		}
	})
}

func folder(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestSweepAllTypesAndOperators(t *testing.T) {
	t.Parallel()
	sit(t)
	e, g := engine(t, 3, 1)
	js := filepath.Join(t.TempDir(), "r.json")
	f := ok(t, nil, sweepArgs(e, g, "-d", "all", "-o", "all", "-b", "1K", "-e", "4K", "-f", "4", "-n", "2", "-w", "1", "--iters-exact", "--json", js)...)
	have := map[[2]string]int{}
	for _, r := range goodTable(t, f.stdout) {
		have[[2]string{r.dtype, r.op}]++
	}
	skipped := 0
	for _, d := range nccl.DataTypes() {
		if slices.ContainsFunc(readRunFile(t, js).Skipped, func(s result.Skipped) bool { return s.What == "type "+d.String() && s.Why != "" }) {
			skipped++
			continue
		}
		for _, o := range bench.Ops() {
			if have[[2]string{d.String(), o}] != 2 {
				t.Errorf("%s %s: %d rows, want 2", d, o, have[[2]string{d.String(), o}])
			}
		}
	}
	if skipped > 0 && e == "host" || skipped > 2 {
		t.Errorf("%d types left out", skipped)
	}
	if want := 6 * (12 - skipped); len(have) != want {
		t.Errorf("%d combinations, want %d", len(have), want)
	}
}

func TestSweepPlacements(t *testing.T) {
	t.Parallel()
	for _, p := range []string{"process", "thread", "group"} {
		t.Run(p, func(t *testing.T) {
			sit(t)
			e, g := engine(t, 3, 1)
			js := filepath.Join(t.TempDir(), "r.json")
			f := ok(t, nil, sweepArgs(e, g, "--placement", p, "-b", "8", "-e", "64K", "-f", "16", "-n", "5", "--json", js)...)
			goodTable(t, f.stdout, 8, 128, 2048, 32768)
			has(t, f.stdout, "placement "+p)
			pids := map[int]bool{}
			for _, r := range readRunFile(t, js).Ranks {
				pids[r.PID] = true
			}
			want := 1
			if p == "process" {
				want = g
			}
			if len(pids) != want {
				t.Errorf("%d processes, want %d", len(pids), want)
			}
		})
	}
}

func TestSweepOneRank(t *testing.T) {
	t.Parallel()
	sit(t)
	e, _ := engine(t, 1, 1)
	f := ok(t, nil, sweepArgs(e, 1, "-b", "8", "-e", "1K", "-f", "8", "-n", "3")...)
	for _, r := range goodTable(t, f.stdout, 8, 64, 512) {
		if r.busbw != [2]float64{} {
			t.Errorf("%d bytes: busbw %v on one rank", r.bytes, r.busbw)
		}
	}
	has(t, f.stdout, "# Avg bus bandwidth    : 0 ")
}

func TestSweepSteps(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		args  []string
		sizes []int64
	}{
		{"bytes", []string{"-b", "100", "-e", "500", "-i", "100"}, []int64{100, 200, 300, 400, 500}},
		{"bytes of one element and a half", []string{"-b", "4", "-e", "16", "-i", "2"}, []int64{4, 8, 12, 16}},
		{"factor 1.5", []string{"-b", "8", "-e", "64", "-f", "1.5"}, []int64{8, 12, 16, 24, 40, 60}},
		{"fractions of units", []string{"-b", "0.5K", "-e", "1.5K", "-i", "0.5K"}, []int64{512, 1024, 1536}},
		{"one size", []string{"-b", "4K", "-e", "4K"}, []int64{4096}},
	} {
		t.Run(c.name, func(t *testing.T) {
			sit(t)
			e, g := engine(t, 2, 1)
			goodTable(t, ok(t, nil, sweepArgs(e, g, append(c.args, "-n", "2", "-w", "0")...)...).stdout, c.sizes...)
		})
	}
}

// Small sizes run longer unless told not to.
func TestSweepIterations(t *testing.T) {
	t.Parallel()
	for _, exact := range []bool{true, false} {
		t.Run("exact "+strconv.FormatBool(exact), func(t *testing.T) {
			sit(t)
			e, g := engine(t, 2, 1)
			args := sweepArgs(e, g, "-b", "8", "-e", "64", "-n", "7", "--json", "-")
			if exact {
				args = append(args, "--iters-exact")
			}
			for _, r := range readRun(t, ok(t, nil, args...).stdout).Rows {
				if n := r.OutOfPlace.Iters; exact && n != 7 || n < 7 || n > 140 {
					t.Errorf("%d bytes: %d iterations", r.Bytes, n)
				}
				if n := r.OutOfPlace.Iter.N; n < 5 || n > 100 {
					t.Errorf("%d bytes: %d iterations with events", r.Bytes, n)
				}
			}
		})
	}
}

func TestSweepPercentiles(t *testing.T) {
	t.Parallel()
	sit(t)
	e, g := engine(t, 2, 1)
	f := ok(t, nil, sweepArgs(e, g, "-b", "8", "-e", "8", "-n", "100", "--percentiles")...)
	lines := 0
	for _, line := range strings.Split(f.stdout, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		lines++
		goodTable(t, line[:118]+"\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : ", 8)
		c := strings.Fields(line[118:])
		if len(c) != 6 {
			t.Fatalf("columns %v", c)
		}
		for h := range 2 {
			if p50, p99, most := number(t, c[3*h]), number(t, c[3*h+1]), number(t, c[3*h+2]); p50 <= 0 || p99 < p50 || most < p99 {
				t.Errorf("p50 %g, p99 %g, max %g", p50, p99, most)
			}
		}
	}
	if lines != 1 {
		t.Errorf("%d rows", lines)
	}
}

func TestSweepRuns(t *testing.T) {
	t.Parallel()
	sit(t)
	e, g := engine(t, 2, 1)
	js := filepath.Join(t.TempDir(), "r.json")
	f := ok(t, nil, sweepArgs(e, g, "-b", "8", "-e", "1K", "-f", "8", "-n", "5", "--runs", "3", "--json", js)...)
	rows := goodTable(t, f.stdout, 8, 64, 512)
	has(t, f.stdout, "# Modes:")
	run := readRunFile(t, js)
	if len(run.Rows) != 9 || run.Config.Runs != 3 || len(run.Modes) != 6 {
		t.Fatalf("%d rows of %d runs, %d modes", len(run.Rows), run.Config.Runs, len(run.Modes))
	}
	times := map[result.Bytes][]float64{}
	for i, r := range run.Rows {
		if r.Run != i/3+1 {
			t.Errorf("row %d is of run %d", i, r.Run)
		}
		times[r.Bytes] = append(times[r.Bytes], float64(r.OutOfPlace.TimeUS))
	}
	for _, r := range rows {
		three := times[result.Bytes(r.bytes)]
		slices.Sort(three)
		if math.Abs(r.time[0]-three[1]) > 0.051+0.001*three[1] {
			t.Errorf("%d bytes: %g µs printed, the runs took %v", r.bytes, r.time[0], three)
		}
	}
	for _, m := range run.Modes {
		total := 0
		for _, group := range m.Groups {
			total += group.Runs
		}
		if m.Runs != 3 || total != 3 || m.MinUS > m.MedianUS || m.MedianUS > m.MaxUS {
			t.Errorf("modes %+v", m)
		}
	}
}

func TestInjectedFaultIsFound(t *testing.T) {
	t.Parallel()
	for _, p := range []string{"process", "thread", "group"} {
		t.Run(p, func(t *testing.T) {
			sit(t)
			e, g := engine(t, 3, 1)
			js := filepath.Join(t.TempDir(), "r.json")
			f := commprobe(t, nil, sweepArgs(e, g, "--placement", p, "--inject-fault", "-b", "256", "-e", "1K", "-f", "4", "-n", "2", "--json", js)...)
			last := g - 1
			if f.code != 6 {
				t.Errorf("exit status %d", f.code)
			}
			has(t, f.stderr, "wrong data: rank "+strconv.Itoa(last))
			has(t, f.stdout, "rank "+strconv.Itoa(last)+": 1 wrong element in [32, 32]", "index 32 got", "rank "+strconv.Itoa(last)+": 1 wrong element in [128, 128]",
				"# Out of bounds values : 4 FAILED")
			for _, r := range parseTable(t, f.stdout) {
				if r.wrong != [2]string{"1", "1"} {
					t.Errorf("%d bytes: #wrong %v", r.bytes, r.wrong)
				}
			}
			run := readRunFile(t, js)
			outcomeIs(t, run, "wrong data", 6, last)
			for _, r := range run.Rows {
				for _, h := range []*result.Half{r.OutOfPlace, r.InPlace} {
					if len(h.Faults) != 1 || h.Faults[0].Rank != last || h.Faults[0].First != int64(r.Count)/2 || h.Faults[0].Samples[0].Got == h.Faults[0].Samples[0].Expected {
						t.Errorf("%d bytes: %+v", r.Bytes, h.Faults)
					}
				}
			}
		})
	}
}
