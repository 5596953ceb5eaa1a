package main

import (
	"encoding/csv"
	"image/png"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/commprobe/commprobe/bench/report"
)

const fixtureFolder = "../../bench/report/testdata/"

// plotRun runs `commprobe plot` in this process: it starts nothing.
func plotRun(args ...string) finished { return inProcess(append([]string{"plot"}, args...)...) }

func TestPlotInTerminal(t *testing.T) {
	t.Parallel()
	f := plotRun(fixtureFolder + "ar_mpi2.txt")
	if f.code != 0 {
		t.Fatalf("exit status %d: %s", f.code, f.stderr)
	}
	has(t, f.stdout, "ar_mpi2.txt:1: nccl-tests 2.19.6, NCCL 2.28.9, 2 ranks, 2 × NVIDIA H200, 14 rows\n", "busbw, GB/s, all_reduce float sum", "┤", "8 B", "32 MiB")
	if want := regexp.MustCompile(`^\S*ar_mpi2.txt:12: the data was not checked .*\n$`); !want.MatchString(f.stderr) {
		t.Errorf("stderr %q", f.stderr)
	}
	if f := plotRun("--no-draw", "--quiet", fixtureFolder+"ar_mpi2.txt"); f.code != 0 || f.stdout != "" || f.stderr != "" {
		t.Errorf("--no-draw --quiet: %+v", f)
	}
	f = plotRun(fixtureFolder+"read/two_tables.txt", fixtureFolder+"ar.json")
	if n := strings.Count(f.stdout, "busbw, GB/s"); f.code != 0 || n != 3 {
		t.Errorf("%d curves of three runs, exit status %d", n, f.code)
	}
}

func TestPlotCSV(t *testing.T) {
	t.Parallel()
	f := plotRun(fixtureFolder+"ar_g2.txt", "--csv", "-")
	if f.code != 0 {
		t.Fatalf("exit status %d: %s", f.code, f.stderr)
	}
	records, err := csv.NewReader(strings.NewReader(f.stdout)).ReadAll()
	if err != nil || len(records) != 1+2*30 {
		t.Fatalf("%d lines, %v", len(records), err)
	}
	column := map[string]int{}
	for i, name := range records[0] {
		column[name] = i
	}
	last := records[len(records)-1]
	for name, want := range map[string]string{"collective": "all_reduce", "type": "float", "op": "sum", "root": "-1", "bytes": "4294967296", "count": "1073741824",
		"placement": "in", "iters": "50", "time_us": "12430.5", "algbw": "345.52", "busbw": "345.52", "wrong": "", "n": "", "source": "ar_g2", "ranks": "2"} {
		if got := last[column[name]]; got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	// The file that --csv writes is a result file again.
	path := filepath.Join(t.TempDir(), "rows.csv")
	if f := plotRun(fixtureFolder+"ar_g2.txt", fixtureFolder+"all_gather.txt", "--csv", path, "--no-draw"); f.code != 0 || f.stdout != "" {
		t.Fatalf("%+v", f)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	doc, err := report.Read(file, path)
	if err != nil || len(doc.Runs) != 2 || doc.Rows() != 37 {
		t.Errorf("%d runs, %d rows, %v", len(doc.Runs), doc.Rows(), err)
	}
	if f := plotRun(path, "--csv", "-"); f.code != 0 || strings.Count(f.stdout, "\n") != 1+2*37 {
		t.Errorf("exit status %d, %d lines", f.code, strings.Count(f.stdout, "\n"))
	}
}

func TestPlotPictures(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pngPath, svgPath := filepath.Join(dir, "a.png"), filepath.Join(dir, "a.svg")
	args := []string{fixtureFolder + "ar_mpi2.txt", fixtureFolder + "ar_g2.txt", "-o", pngPath, "-o", svgPath, "--no-draw"}
	if f := plotRun(args...); f.code != 0 || f.stdout != "" {
		t.Fatalf("%+v", f)
	}
	file, err := os.Open(pngPath)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if cfg, err := png.DecodeConfig(file); err != nil || cfg.Width != 1600 {
		t.Errorf("%+v, %v", cfg, err)
	}
	svg, err := os.ReadFile(svgPath)
	if err != nil {
		t.Fatal(err)
	}
	has(t, string(svg), "ar_mpi2, out-of-place", "ar_g2, in-place", "2 runs", "NCCL 2.28.9")
	f := plotRun(args...)
	if f.code != 2 {
		t.Errorf("an existing picture was replaced: exit status %d", f.code)
	}
	has(t, f.stderr, "-o", pngPath, "exists", "--force")
	if f := plotRun(append(args, "--force")...); f.code != 0 {
		t.Errorf("--force: %+v", f)
	}
}

// What is no result, or cannot be read, ends with 2 and one line that says what was found instead; warnings come before it.
func TestPlotRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	failed := write("failed.txt", "# nThread 1 nGpus 1 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0\n"+
		"alpha: Test CUDA failure common.cu:892 'invalid device ordinal'\n .. alpha pid 1: Test failure common.cu:842\n")
	for _, c := range []struct {
		args []string
		says []string
	}{
		{nil, []string{"at least one result file", "--help"}},
		{[]string{filepath.Join(dir, "none")}, []string{"none", "no such file"}},
		{[]string{dir}, []string{dir, "is a directory"}},
		{[]string{failed}, []string{"no result rows; it says: CUDA failed on alpha: invalid device ordinal"}},
		{[]string{fixtureFolder + "read/refused.txt"}, []string{"no result rows; it says: ", "invalid option 'q'"}},
		{[]string{write("x.xml", "<system version=\"1\">\n")}, []string{"no result rows", "nothing of a result format", "<system"}},
		{[]string{write("empty", "")}, []string{"no result rows; it is empty"}},
		{[]string{fixtureFolder + "ar_g2.txt", failed}, []string{failed, "no result rows"}},
		{[]string{fixtureFolder + "ar_g2.txt", "-o", "x.bmp"}, []string{"-o", "x.bmp", ".png"}},
		{[]string{fixtureFolder + "ar_g2.txt", "-o", filepath.Join(dir, "no", "x.png")}, []string{"-o", "no such file"}},
		{[]string{fixtureFolder + "ar_g2.txt", "--csv", failed}, []string{"--csv", "exists", "--force"}},
		{[]string{fixtureFolder + "ar_g2.txt", "-o", dir + "/y.png", "-o", dir + "/./y.png"}, []string{"y.png", "twice"}},
		{[]string{"--bogus"}, []string{"-bogus", "--help"}},
	} {
		f := plotRun(append(c.args, "--quiet")...)
		if f.code != 2 || f.stdout != "" {
			t.Errorf("%v: exit status %d, stdout %q", c.args, f.code, f.stdout)
		}
		oneLine(t, f.stderr)
		has(t, f.stderr, append(c.says, "commprobe: plot: ")...)
	}
	f := plotRun(failed)
	if lines := strings.Split(strings.TrimSpace(f.stderr), "\n"); len(lines) != 3 || !strings.HasPrefix(lines[0], failed+":2: CUDA failed") {
		t.Errorf("stderr %q", f.stderr)
	}
}

func TestPlotHelp(t *testing.T) {
	t.Parallel()
	has(t, plotRun("--help").stdout, "commprobe plot run.txt -o run.png", "--csv -", "--no-draw", "--output FILE, -o FILE", "nccl-tests", "--force")
	has(t, ok(t, nil, "--help").stdout, "plot", "draw or convert result files")
}

// Every number of the CSV reads back, whatever the format it came from.
func TestPlotCSVOfAllFixtures(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(fixtureFolder + "read/*")
	if err != nil || len(files) < 20 {
		t.Fatal(len(files), err)
	}
	for _, path := range files {
		if strings.HasSuffix(path, "refused.txt") {
			continue
		}
		f := plotRun(path, "--csv", "-", "--quiet")
		records, err := csv.NewReader(strings.NewReader(f.stdout)).ReadAll()
		if f.code != 0 || err != nil || len(records) < 2 || f.stderr != "" {
			t.Errorf("%s: exit status %d, %d lines, %v, %q", path, f.code, len(records), err, f.stderr)
			continue
		}
		for _, r := range records[1:] {
			if _, err := strconv.ParseFloat(r[9], 64); err != nil {
				t.Errorf("%s: time %q", path, r[9])
			}
		}
	}
}
