package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/commprobe/commprobe/bench"
)

// Each bad input is told in one line that names the flag and says what would do, before anything is started.
func TestBadInput(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "none", "r.json")
	for _, c := range []badInput{
		{"sweep -b 0", []string{"-b 0", "at least 1"}},
		{"sweep -b -4", []string{"-b", `"-4"`, "negative"}},
		{"sweep -b 1Q", []string{"-b", `"1Q"`, "K, M, G or T"}},
		{"sweep -b 8 -e 4", []string{"-e 4", "-b 8"}},
		{"sweep -f 1", []string{"-f", `"1"`, "above 1"}},
		{"sweep -f nan", []string{"-f", `"nan"`, "above 1"}},
		{"sweep -f x", []string{"-f", `"x"`, "above 1"}},
		{"sweep -i 0", []string{"-i 0", "at least 1"}},
		{"sweep -i 1 -e 1G", []string{"-i", "10000"}},
		{"sweep -f 2 -i 8", []string{"-f", "-i", "one"}},
		{"sweep -n 0", []string{"-n 0", "between 1 and"}},
		{"sweep -n 1.5", []string{"-n", `"1.5"`}},
		{"sweep -w -1", []string{"-w -1", "between 0 and"}},
		{"sweep -c -1", []string{"-c -1", "between 0 and"}},
		{"sweep -g 0", []string{"-g 0", "at least one"}},
		{"sweep -g 5000", []string{"-g 5000", "1024"}},
		{"sweep -T 0", []string{"-T", "more than 0"}},
		{"sweep -T -1", []string{"-T", "more than 0"}},
		{"sweep --runs 0", []string{"--runs 0", "between 1 and"}},
		{"sweep -d foo", []string{"-d", `"foo"`, "bfloat16", "all"}},
		{"sweep -d float,", []string{"-d", `""`, "bfloat16"}},
		{"sweep -o foo", []string{"-o", `"foo"`, "avg", "all"}},
		{"sweep all_reduc", []string{`"all_reduc"`, "all_reduce, all_gather, reduce_scatter, broadcast, reduce, gather, scatter, alltoall, alltoallv, sendrecv, hypercube, pairwise, bisection, pingpong or all"}},
		{"sweep --engine foo", []string{"--engine", `"foo"`, "auto, native or host"}},
		{"sweep --placement foo", []string{"--placement", `"foo"`, "process, thread or group"}},
		{"sweep --inject-fault -c 0", []string{"--inject-fault", "-c 1"}},
		{"sweep --inject-drop -c 0", []string{"--inject-drop", "-c 1"}},
		{"sweep --inject-nan -c 0", []string{"--inject-nan", "-c 1"}},
		{"sweep --engine host --inject-hang --placement group", []string{"--inject-hang", "threads of their own"}},
		{"sweep --engine host --record -1", []string{"--record -1", "between 0 (no record) and 1048576"}},
		{"sweep --engine host --dump=", []string{"--dump", "--record 0"}},
		{"sweep --json - --csv -", []string{"--json", "--csv", "stdout"}},
		{"sweep --json - --plot -", []string{"--json", "--plot", "stdout"}},
		{"sweep --json " + missing, []string{"--json", missing, "no such file"}},
		{"sweep --csv " + os.TempDir(), []string{"--csv", os.TempDir(), "folder"}},
		{"sweep --plot r.bmp", []string{"--plot", "r.bmp", ".png"}},
		{"sweep --bogus", []string{"-bogus", "--help"}},
		{"sweep --force=maybe", []string{"-force", `"maybe"`}},
		{"sweep -e", []string{"-e", "argument"}},
		{"sweep -- --bogus", []string{`"--bogus"`}},
		{"version extra", []string{"version", "no arguments"}},
		{"version --engine foo", []string{"--engine", `"foo"`, "auto, native or host"}},
		{"bogus", []string{`"bogus"`, "--help"}},
		{"--bogus sweep", []string{"-bogus"}},
		{"rank-worker", []string{"rank-worker", "other commands"}},
	} {
		c.isTold(t)
	}
}

// The same for collectives and ways of calling.
func TestBadModes(t *testing.T) {
	t.Parallel()
	missing, square := filepath.Join(t.TempDir(), "none"), filepath.Join(t.TempDir(), "matrix")
	if err := os.WriteFile(square, []byte("0 64\n64 0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []badInput{
		{"sweep all_gather_perfs", []string{`"all_gather_perfs"`, "all_gather"}},
		{"sweep broadcast -r 9", []string{"-r 9", "from 0 to 3, or all"}},
		{"sweep broadcast -r -2", []string{"-r -2", "from 0 to 3, or all"}},
		{"sweep broadcast -r x", []string{"-r", `"x"`, "a rank or all"}},
		{"sweep -G 2 -z 1", []string{"-G with -z", "wait for the host"}},
		{"sweep -G 2 -y 1", []string{"-G with -y 1", "NULL stream"}},
		{"sweep -G -1", []string{"-G -1", "between 0"}},
		{"sweep -m 0", []string{"-m", "1 or more"}},
		{"sweep -m 5000", []string{"-m 5000", "between 1 and 4096"}},
		{"sweep -R 3", []string{"-R 3", "2 (symmetric window)"}},
		{"sweep -R 2 -u 1", []string{"-u with -R 2"}},
		{"sweep -x 3", []string{"-x 3", "2 (zero CTA)"}},
		{"sweep -z 4", []string{"-z 4", "3 (wait and barrier"}},
		{"sweep -y 2", []string{"--stream-null 2", "0 or 1"}},
		{"sweep -p -1", []string{"--parallel-init -1", "0 or 1"}},
		{"sweep -C 2", []string{"--report-cputime 2", "0 or 1"}},
		{"sweep -u -1", []string{"-u -1", "a shift of 0 to"}},
		{"sweep -a 4", []string{"-a 4", "3 (max)"}},
		{"sweep -a -1", []string{"-a -1", "3 (max)"}},
		{"sweep -N -1", []string{"-N -1", "until stopped"}},
		{"sweep -N 2 --runs 2", []string{"-N", "--runs", "choose one"}},
		{"sweep --split foo", []string{"--split", `"foo"`, "node, local, mod:N, div:N, and:N or or:N"}},
		{"sweep --split mod:0", []string{"--split mod:0", "1 or more"}},
		{"sweep --split node -g 4 -r 4", []string{"-r 4"}},
		{"sweep --comms 0", []string{"--comms", "1 or more"}},
		{"sweep --comms 99", []string{"--comms 99", "between 1 and 16"}},
		{"sweep --comms 2 -y 1", []string{"--comms with -y 1"}},
		{"sweep alltoallv --spread 2", []string{"--spread 2", "from 0 (equal parts) to 1"}},
		{"sweep alltoallv --matrix " + missing, []string{"--matrix", missing, "no such file"}},
		{"sweep alltoallv --matrix " + os.DevNull, []string{"--matrix", os.DevNull, "not a square matrix"}},
		{"sweep all_reduce -g 2 --matrix " + square, []string{"--matrix", "alltoallv alone"}},
		{"sweep alltoallv --matrix " + square + " -g 3", []string{"--matrix", square, "a matrix of 2 ranks, but there are 3"}},
		{"sweep hypercube -g 3", []string{"hypercube", "a power of two of ranks, not 3"}},
		{"sweep pingpong -g 1", []string{"pingpong", "at least two ranks"}},
		{"sweep pairwise -m 2", []string{"pairwise", "-m"}},
		{"sweep scatter -b 8 -e 32", []string{"-e 32", "at least 64 bytes"}},
	} {
		c.isTold(t)
	}
}

// badInput is a command line and what its refusal must say.
type badInput struct {
	args string
	says []string
}

func (c badInput) isTold(t *testing.T) {
	t.Helper()
	t.Run(c.args, func(t *testing.T) {
		args := strings.Fields(c.args)
		if args[0] == "sweep" && !strings.Contains(c.args, "--engine") {
			args = append([]string{"--engine", "host"}, args...)
		}
		f := commprobe(t, nil, args...)
		if f.code != 2 {
			t.Errorf("exit status %d, want 2", f.code)
		}
		if f.stdout != "" {
			t.Errorf("stdout has %d bytes: %.200q", len(f.stdout), f.stdout)
		}
		oneLine(t, f.stderr)
		has(t, f.stderr, append(c.says, "commprobe: ")...)
	})
}

// Two results cannot have one name: the second would be refused, or replace the first, after everything was measured.
func TestSameFileTwice(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "r.out")
	f := commprobe(t, nil, "sweep", "--engine", "host", "-g", "1", "-b", "8", "-e", "8", "--json", path, "--csv", path)
	if f.code != 2 || f.stdout != "" {
		t.Errorf("exit status %d, %d bytes on stdout; want 2 before anything is measured: %s", f.code, len(f.stdout), f.stderr)
	}
	has(t, f.stderr, "--json and --csv both write "+path)
	ok(t, nil, "sweep", "--engine", "host", "-g", "1", "-b", "8", "-e", "8", "--json", os.DevNull, "--csv", os.DevNull)
}

func TestNativeWithoutGPU(t *testing.T) {
	t.Parallel()
	if bench.UseEngine("native", "", "", 0) == nil {
		t.Skip("a GPU is here")
	}
	for _, args := range [][]string{{"sweep", "--engine", "native"}, {"--engine", "native", "sweep", "-g", "2"}} {
		f := commprobe(t, nil, args...)
		if f.code != 3 || f.stdout != "" {
			t.Errorf("%v: exit status %d, stdout %q", args, f.code, f.stdout)
		}
		oneLine(t, f.stderr)
		has(t, f.stderr, "libcuda", "--engine host still works")
	}
	// auto goes on with the host engine and says why.
	f := ok(t, nil, "sweep", "-g", "2", "-b", "8", "-e", "8", "-n", "2")
	goodTable(t, f.stdout, 8)
	oneLine(t, f.stderr)
	has(t, f.stderr, "host", "libcuda")
	if f := ok(t, nil, "sweep", "-g", "2", "-b", "8", "-e", "8", "-n", "2", "--quiet"); f.stderr != "" {
		t.Errorf("--quiet, and stderr has %q", f.stderr)
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f := ok(t, nil, "version")
	for _, re := range []string{`(?m)^commprobe +\S+`, `(?m)^go +\d+\.\d+\S* +linux/\w+$`, `(?m)^host engine +built in +` + regexp.QuoteMeta(self) + `$`} {
		if !regexp.MustCompile(re).MatchString(f.stdout) {
			t.Errorf("no %s in\n%s", re, f.stdout)
		}
	}
	if f := ok(t, nil, "version", "--engine", "host"); strings.Contains(f.stdout, "libcuda") {
		t.Errorf("--engine host looked for a GPU:\n%s", f.stdout)
	}
	if !onGPU() {
		return
	}
	engine(t, 1, 1)
	f = ok(t, nil, "version", "--engine", "native")
	for _, re := range []string{`(?m)^nccl +\d+\.\d+\.\d+ +/\S+$`, `(?m)^cudart +\d+\.\d+\S* +/\S+$`, `(?m)^cuda driver +\S+ +/\S+$`} {
		if !regexp.MustCompile(re).MatchString(f.stdout) {
			t.Errorf("no %s in\n%s", re, f.stdout)
		}
	}
}

// Flags are understood after the collective's name, and the global ones on both sides of the command.
func TestOrderOfArguments(t *testing.T) {
	t.Parallel()
	for _, args := range []string{
		"sweep all_reduce --engine E -g 1 -b 8 -e 8 -n 2 --quiet",
		"--engine E --quiet sweep -g 1 -b 8 -e 8 -n 2 all_reduce",
		"--quiet --engine=E sweep -b 8 all_reduce -e 8 -g 1 -n 2",
		"sweep -b=8 --max-bytes 8 --ranks=1 -n 2 --engine E --quiet allreduce_perf",
	} {
		t.Run(args, func(t *testing.T) {
			sit(t)
			e, _ := engine(t, 1, 1)
			f := ok(t, nil, strings.Fields(strings.ReplaceAll(args, "E", e))...)
			goodTable(t, f.stdout, 8)
			has(t, f.stdout, "engine="+e)
			if f.stderr != "" {
				t.Errorf("--quiet, and stderr has %q", f.stderr)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	top := ok(t, nil, "--help").stdout
	has(t, top, "sweep", "version", "--engine", "--nccl-lib FILE", "--cudart-lib FILE", "--quiet", "--no-color", "EXIT STATUS", "130 interrupted")
	for _, args := range [][]string{nil, {"-h"}, {"help"}} {
		if ok(t, nil, args...).stdout != top {
			t.Errorf("%v is not --help", args)
		}
	}
	if strings.Contains(top, workerName) {
		t.Errorf("%s is for the program itself", workerName)
	}
	sweep := ok(t, nil, "sweep", "--help").stdout
	for _, l := range "befignwcdoTrNGmRxzyuapCSMJ" {
		if !regexp.MustCompile(`(?m)^   --[a-z-]+ \S+, -` + string(l) + ` `).MatchString(sweep) {
			t.Errorf("no -%c in\n%s", l, sweep)
		}
	}
	for _, name := range []string{"iters-exact", "placement", "runs", "quiet-cores", "percentiles", "json", "csv", "plot", "force", "inject-fault", "inject-drop", "inject-nan", "inject-hang", "nan-check", "record", "dump", "split", "comms", "spread", "matrix", "engine", "nccl-lib", "cudart-lib", "quiet", "no-color"} {
		if !strings.Contains(sweep, "\n   --"+name+" ") {
			t.Errorf("no --%s in\n%s", name, sweep)
		}
	}
	has(t, sweep, "commprobe sweep -b 8 -e 4G -n 50 -w 10", "commprobe sweep all -d all -o all", "torchrun --nproc-per-node", "busbw is algbw times a factor (2(n-1)/n for all_reduce)")
	for _, name := range bench.CollectiveNames() {
		if !regexp.MustCompile(`(?m)^      ` + name + ` +\w+`).MatchString(sweep) {
			t.Errorf("no line on %s in\n%s", name, sweep)
		}
	}
}
