package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/bench/result"
)

// smallSweep is every collective at 4 KiB, few times.
func smallSweep(engine string, ranks int, args ...string) []string {
	return sweepArgs(engine, ranks, append([]string{"all", "-b", "4K", "-e", "4K", "-n", "3", "-w", "1", "--quiet"}, args...)...)
}

// halves are both halves of a row.
func halves(r result.Row) []*result.Half { return []*result.Half{r.OutOfPlace, r.InPlace} }

// allGood fails unless every half was checked and is right, and returns how many rows each collective has.
func allGood(t *testing.T, run *result.Run) map[string]int {
	t.Helper()
	outcomeIs(t, run, "ok", 0, -1)
	have := map[string]int{}
	for _, r := range run.Rows {
		have[r.Collective]++
		for i, h := range halves(r) {
			if h == nil || h.Wrong == nil || *h.Wrong != 0 || len(h.Faults) != 0 || h.TimeUS <= 0 || len(h.Ranks) == 0 {
				t.Errorf("%s %s %s, root %d, half %d: %+v", r.Collective, r.Type, r.Op, r.Root, i, h)
			}
		}
	}
	return have
}

// each is so many rows of every collective but some.
func each(n int, but ...string) map[string]int {
	out := map[string]int{}
	for _, name := range bench.CollectiveNames() {
		if !slices.Contains(but, name) {
			out[name] = n
		}
	}
	return out
}

// busFactors are nccl-tests' busbw over algbw.
var busFactors = map[string]func(n float64) float64{
	"all_reduce": func(n float64) float64 { return 2 * (n - 1) / n }, "all_gather": others, "reduce_scatter": others, "gather": others, "scatter": others,
	"alltoall": others, "pairwise": others, "broadcast": same, "reduce": same, "sendrecv": same, "hypercube": same, "bisection": same, "pingpong": same,
	// By distance a rank keeps nothing: all of the message crosses.
	"alltoallv": same,
}

func others(n float64) float64 { return (n - 1) / n }
func same(float64) float64     { return 1 }

func TestEveryCollective(t *testing.T) {
	t.Parallel()
	sit(t)
	e, g := engine(t, 4, 2)
	js := filepath.Join(t.TempDir(), "r.json")
	f := ok(t, nil, sweepArgs(e, g, "all", "-b", "8", "-e", "32K", "-f", "16", "-n", "3", "-w", "1", "--json", js)...)
	rows := goodTable(t, f.stdout)
	run := readRunFile(t, js)
	have := allGood(t, run)
	if len(rows) != len(run.Rows) {
		t.Errorf("%d rows in the table, %d in the result", len(rows), len(run.Rows))
	}
	// 8, 128, 2048 and 32768 bytes; where the message is divided, 8 are too few.
	for name, n := range have {
		want := 3
		if slices.Contains([]string{"all_reduce", "broadcast", "reduce", "sendrecv", "bisection", "pingpong"}, name) {
			want = 4
		}
		if n != want {
			t.Errorf("%s: %d rows, want %d", name, n, want)
		}
	}
	if len(have) != len(bench.CollectiveNames()) {
		t.Errorf("%v", have)
	}
	n := float64(g)
	for _, r := range run.Rows {
		if rooted := slices.Contains([]string{"broadcast", "reduce", "gather", "scatter", "pingpong"}, r.Collective); rooted != (r.Root == 0) || !rooted && r.Root != -1 {
			t.Errorf("%s: root %d", r.Collective, r.Root)
		}
		for _, h := range halves(r) {
			alg := float64(r.Bytes) / float64(h.TimeUS) / 1e3
			if r.Collective == "hypercube" {
				alg *= (n - 1) / n
			}
			if math.Abs(float64(h.AlgBW)-alg) > 1e-9*alg {
				t.Errorf("%s %d bytes in %g µs: algbw %g, want %g", r.Collective, r.Bytes, h.TimeUS, h.AlgBW, alg)
			}
			if bus := alg * busFactors[r.Collective](n); math.Abs(float64(h.BusBW)-bus) > 1e-9*bus {
				t.Errorf("%s %d bytes on %d ranks: busbw %g, want %g", r.Collective, r.Bytes, g, h.BusBW, bus)
			}
		}
	}
	has(t, f.stdout, "all_gather, reduce_scatter, gather, scatter, alltoall, hypercube, pairwise below 128 bytes", "alltoallv below 128 bytes")
	for _, name := range bench.CollectiveNames() {
		has(t, f.stdout, "# Collective test starting: "+name+"\n", "# Collective test concluded: "+name+"\n")
	}
}

// Each way of calling, with all collectives: right data in every half, and what else the way changes.
func TestModes(t *testing.T) {
	t.Parallel()
	grouped := []string{"hypercube", "pairwise", "pingpong"} // cannot be with -m
	for _, c := range []struct {
		args  string
		rows  map[string]int
		check func(t *testing.T, run *result.Run)
	}{
		{"-G 3 -R 1", each(1), func(t *testing.T, run *result.Run) {
			for _, r := range run.Rows {
				for _, h := range halves(r) {
					if h.Iters != 3 || h.Iter == nil || h.Iter.N < 3 || h.Iter.N > 20 {
						t.Errorf("%s: %d iterations, %+v", r.Collective, h.Iters, h.Iter)
					}
				}
			}
		}},
		{"-G 2 -m 4 -R 2", each(1, grouped...), nil},
		{"-m 4 -z 1", each(1, grouped...), func(t *testing.T, run *result.Run) {
			for _, s := range run.Skipped {
				if !slices.Contains(grouped, s.What) || !strings.Contains(s.Why, "-m") {
					t.Errorf("skipped %+v", s)
				}
			}
			if len(run.Skipped) != 3 {
				t.Errorf("skipped %+v", run.Skipped)
			}
			waitsWhileQueueing(t, run)
		}},
		{"-z 2 -R 2", each(1), waitsWhileQueueing},
		{"-z 3 -u 1", each(1), waitsWhileQueueing},
		{"-y 1 -u 3 -i 4K -e 12K", each(3), nil},
		{"--comms 2 -G 2", each(1), nil},
		{"--comms 3 -u 1 -c 2", each(1), nil},
		{"--placement group -p 1 -u 5", each(1), onePID},
		{"--placement group -G 2 --comms 2", each(1), onePID},
		{"--placement group -m 3 -R 2", each(1, grouped...), onePID},
		{"--placement thread -p 1 -z 1 -R 1", each(1), onePID},
		{"--placement thread -G 2", each(1), onePID},
		{"-d int8,double -o premulsum -G 1", each(2), func(t *testing.T, run *result.Run) {
			for _, r := range run.Rows {
				if reduces := slices.Contains([]string{"all_reduce", "reduce_scatter", "reduce"}, r.Collective); reduces && r.Op != "mulsum" || !reduces && r.Op != "none" {
					t.Errorf("%s: operator %s", r.Collective, r.Op)
				}
			}
		}},
	} {
		t.Run(c.args, func(t *testing.T) {
			sit(t)
			e, g := engine(t, 2, 2)
			run := readRun(t, ok(t, nil, append(smallSweep(e, g, "--json", "-"), strings.Fields(c.args)...)...).stdout)
			if have := allGood(t, run); fmt.Sprint(have) != fmt.Sprint(c.rows) {
				t.Errorf("rows %v, want %v", have, c.rows)
			}
			if c.check != nil {
				c.check(t, run)
			}
		})
	}
}

// A queueing that waits for the operations says nothing of queueing.
func waitsWhileQueueing(t *testing.T, run *result.Run) {
	t.Helper()
	for _, r := range run.Rows {
		for _, h := range halves(r) {
			if h.LaunchBound != nil || slices.ContainsFunc(h.Ranks, func(k result.RankTime) bool { return k.EnqueueUS != 0 }) {
				t.Errorf("%s: %+v", r.Collective, h.Ranks)
			}
		}
	}
}

func onePID(t *testing.T, run *result.Run) {
	t.Helper()
	for _, r := range run.Ranks {
		if r.PID != run.Ranks[0].PID {
			t.Errorf("ranks %+v", run.Ranks)
		}
	}
}

// Every rank in turn is the root, with more than one communicator too.
func TestAllRoots(t *testing.T) {
	t.Parallel()
	sit(t)
	e, g := engine(t, 3, 2)
	run := readRun(t, ok(t, nil, smallSweep(e, g, "-r", "all", "--comms", "2", "--json", "-")...).stdout)
	allGood(t, run)
	roots := map[string][]int{}
	for _, r := range run.Rows {
		roots[r.Collective] = append(roots[r.Collective], r.Root)
		if r.Collective != "pingpong" {
			continue
		}
		two := []int{r.Root, (r.Root + 1) % g}
		slices.Sort(two)
		for _, h := range halves(r) {
			if len(h.Ranks) != 2 || h.Ranks[0].Rank != two[0] || h.Ranks[1].Rank != two[1] {
				t.Errorf("pingpong, root %d: ranks %+v", r.Root, h.Ranks)
			}
		}
	}
	var all []int
	for r := range g {
		all = append(all, r)
	}
	for name, list := range roots {
		want := []int{-1}
		if slices.Contains([]string{"broadcast", "reduce", "gather", "scatter", "pingpong"}, name) {
			want = all
		}
		if !slices.Equal(list, want) {
			t.Errorf("%s: roots %v, want %v", name, list, want)
		}
	}
}

// Groups sweep at the same time, each with rows of its own; what one of them cannot is left out with the reason.
func TestSplit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		split  string
		worlds []int
		groups []int // of the ranks
		rows   map[string]int
	}{
		{"mod:2", []int{2, 2}, []int{0, 1, 0, 1}, each(2)},
		{"/3", []int{3, 1}, []int{0, 0, 0, 1}, each(2, "hypercube", "bisection", "pingpong")},
		{"local", []int{1, 1, 1, 1}, []int{0, 1, 2, 3}, each(4, "bisection", "pingpong")},
	} {
		for _, p := range []string{"process", "group"} {
			t.Run(c.split+" "+p, func(t *testing.T) {
				sit(t)
				run := readRun(t, ok(t, nil, smallSweep("host", 4, "--split", c.split, "--placement", p, "--json", "-")...).stdout)
				if have := allGood(t, run); fmt.Sprint(have) != fmt.Sprint(c.rows) {
					t.Errorf("rows %v, want %v", have, c.rows)
				}
				if want := 14 - len(c.rows); len(run.Skipped) != want {
					t.Errorf("skipped %+v", run.Skipped)
				}
				for r, group := range c.groups {
					if run.Ranks[r].Group != group {
						t.Errorf("rank %d is in group %d, want %d", r, run.Ranks[r].Group, group)
					}
				}
				for _, r := range run.Rows {
					for _, k := range r.OutOfPlace.Ranks {
						if c.groups[k.Rank] != r.Group {
							t.Errorf("%s, group %d: rank %d", r.Collective, r.Group, k.Rank)
						}
					}
					if n := c.worlds[r.Group]; r.Collective == "all_gather" && int(r.Bytes) != 4096/4/n&^3*n*4 || r.Collective == "all_reduce" && len(r.InPlace.Ranks) != n {
						t.Errorf("%s, group %d: %d bytes, %d ranks", r.Collective, r.Group, r.Bytes, len(r.InPlace.Ranks))
					}
				}
			})
		}
	}
}

// -a chooses among the ranks' times; without it alltoallv's is the slowest's.
func TestAverage(t *testing.T) {
	t.Parallel()
	for _, a := range []string{"", "0", "1", "2", "3"} {
		t.Run("-a "+a, func(t *testing.T) {
			sit(t)
			e, g := engine(t, 3, 2)
			args := sweepArgs(e, g, "all_reduce", "alltoallv", "-b", "4K", "-e", "4K", "-n", "3", "--json", "-")
			if a != "" {
				args = append(args, "-a", a)
			}
			for _, r := range readRun(t, ok(t, nil, args...).stdout).Rows {
				for _, h := range halves(r) {
					var all []float64
					sum := 0.0
					for _, k := range h.Ranks {
						all = append(all, float64(k.TimeUS))
						sum += float64(k.TimeUS)
					}
					want := map[string]float64{"0": all[0], "1": sum / float64(g), "2": slices.Min(all), "3": slices.Max(all), "": sum / float64(g)}[a]
					if a == "" && r.Collective == "alltoallv" {
						want = slices.Max(all)
					}
					if math.Abs(float64(h.TimeUS)-want) > 1e-6*want {
						t.Errorf("%s: %g µs of %v", r.Collective, h.TimeUS, all)
					}
				}
			}
		})
	}
}

// Cycles repeat the table in the same processes. -S adds two words to a row and -C shows the processor's times, which have no bandwidth.
func TestCycles(t *testing.T) {
	t.Parallel()
	sit(t)
	e, g := engine(t, 2, 1)
	js := filepath.Join(t.TempDir(), "r.json")
	f := ok(t, nil, sweepArgs(e, g, "all_reduce", "broadcast", "-b", "4K", "-e", "32K", "-f", "8", "-n", "3", "-N", "2", "-S", "1", "-C", "1", "--json", js)...)
	run := readRunFile(t, js)
	if have := allGood(t, run); have["all_reduce"] != 4 || have["broadcast"] != 4 || len(run.Cycles) != 8 {
		t.Errorf("rows %v, %d summaries", have, len(run.Cycles))
	}
	has(t, f.stdout, "# Cycle 1\n", "# Cycle 2\n", "# Cycles: ", "cputime", "timestamp")
	var lines []string
	for _, line := range strings.Split(strings.TrimSuffix(f.stdout, "\n"), "\n") {
		if line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	if len(lines) != len(run.Rows) {
		t.Fatalf("%d lines of %d rows", len(lines), len(run.Rows))
	}
	for i, r := range run.Rows {
		if r.Cycle != 1+i/4 || r.Time.IsZero() || r.Time.Before(run.Started) || r.Time.After(run.Ended) {
			t.Errorf("row %d: cycle %d, at %v", i, r.Cycle, r.Time)
		}
		c := strings.Fields(lines[i])
		if len(c) != 15 || c[13]+" "+c[14] != r.Time.Local().Format("2006-01-02 15:04:05") {
			t.Errorf("row %d: %q, done at %v", i, lines[i], r.Time)
			continue
		}
		for k, h := range halves(r) {
			cpu, bus := number(t, c[5+4*k]), number(t, c[7+4*k])
			if math.Abs(cpu-float64(h.CPUTimeUS)) > 0.006+0.01*cpu || math.Abs(bus-float64(h.BusBW)) > 0.006+0.01*bus || h.CPUTimeUS <= 0 {
				t.Errorf("row %d, half %d: %g µs and %g GB/s printed, %g and %g measured", i, k, cpu, bus, h.CPUTimeUS, h.BusBW)
			}
		}
	}
	for _, c := range run.Cycles {
		if c.N != 2 || c.MinUS > c.MedianUS || c.MedianUS > c.MaxUS || c.MaxCycle < 1 || c.MaxCycle > 2 || c.Wrong != 0 {
			t.Errorf("%+v", c)
		}
	}
}

// Until stopped: the stop is the end that was asked for.
func TestCyclesUntilStopped(t *testing.T) {
	t.Parallel()
	sit(t)
	e, g := engine(t, 2, 1)
	js := filepath.Join(t.TempDir(), "r.json")
	j := start(t, nil, sweepArgs(e, g, "sendrecv", "-b", "4K", "-e", "4K", "-n", "3", "-N", "0", "--json", js)...)
	j.sees(t, j.stdout, `(?m)^# Cycle 3\n`, patience)
	kill(t, process{pid: j.cmd.Process.Pid}, syscall.SIGINT)
	if code := j.exit(t, 30*time.Second); code != 0 {
		t.Errorf("exit status %d", code)
	}
	j.nothingLeft(t, 0)
	has(t, j.stdout.String(), "# Cycles: ", "sendrecv float", "# Out of bounds values : 0 OK", "# Collective test concluded: sendrecv")
	if strings.Contains(j.stdout.String(), "error") {
		t.Error("the table speaks of an error")
	}
	run := readRunFile(t, js)
	allGood(t, run)
	if len(run.Rows) < 3 || len(run.Cycles) != 2 || run.Cycles[0].N != len(run.Rows) || run.Rows[len(run.Rows)-1].Cycle != len(run.Rows) {
		t.Errorf("%d rows, %+v", len(run.Rows), run.Cycles)
	}
	for _, r := range run.Rows {
		for _, k := range r.OutOfPlace.Ranks {
			if r.Cycle > 1 && k.EventUS != nil {
				t.Errorf("cycle %d keeps its single samples", r.Cycle)
			}
		}
	}
}

func TestMatrix(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "matrix")
	if err := os.WriteFile(path, []byte("# bytes\n0 4096 64\n512 0 64\n1 1 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		args  []string
		sizes []result.Bytes
	}{
		{"as it is", nil, []result.Bytes{4096}},
		{"scaled", []string{"-b", "1K", "-e", "64K", "-f", "8"}, []result.Bytes{1024, 8192, 65536}},
		{"only -e", []string{"-b", "8K", "-e", "8K", "-G", "2", "--placement", "group"}, []result.Bytes{8192}},
	} {
		t.Run(c.name, func(t *testing.T) {
			sit(t)
			e, _ := engine(t, 2, 2)
			args := sweepArgs(e, 2, append([]string{"alltoallv_perf", "--matrix", path, "-n", "3", "--json", "-"}, c.args...)...)
			run := readRun(t, ok(t, nil, args...).stdout)
			allGood(t, run)
			var have []result.Bytes
			for _, r := range run.Rows {
				have = append(have, r.Bytes)
				for _, h := range halves(r) { // all of it crosses
					if math.Abs(float64(h.BusBW-h.AlgBW)) > 1e-9*float64(h.AlgBW) || len(h.Ranks) != 2 || h.TimeUS != max(h.Ranks[0].TimeUS, h.Ranks[1].TimeUS) {
						t.Errorf("%d bytes: %+v", r.Bytes, h)
					}
				}
			}
			if !slices.Equal(have, c.sizes) {
				t.Errorf("sizes %v, want %v", have, c.sizes)
			}
		})
	}
}

// Old hands' names.
func TestNamesOfNCCLTests(t *testing.T) {
	t.Parallel()
	sit(t)
	e, g := engine(t, 2, 1)
	run := readRun(t, ok(t, nil, sweepArgs(e, g, "allgather", "reduce_scatter_perf", "AllReduce", "all-gather", "-b", "64", "-e", "64", "-n", "2", "--json", "-")...).stdout)
	var have []string
	for _, r := range run.Rows {
		have = append(have, r.Collective)
	}
	if want := []string{"all_gather", "reduce_scatter", "all_reduce"}; !slices.Equal(have, want) {
		t.Errorf("%v, want %v", have, want)
	}
}

// victims says, for n ranks and root 1, which rank a planted fault must be on: of those with a result, and of those that give data.
func victims(coll string, n int) (result, giving int) {
	result, giving = n-1, n-1
	switch coll {
	case "reduce", "gather":
		result = 1
	case "broadcast", "scatter":
		giving = 1
	case "pingpong":
		result, giving = max(1, 2%n), 1
	}
	if coll == "bisection" && n%2 == 1 {
		result, giving = n-2, n-2
	}
	return result, giving
}

// received is how many floats of a row's message rank r of n, with root 1, has in its result; given how many in its input.
func received(row result.Row, n int) int64 {
	all := int64(row.Bytes) / 4
	switch row.Collective {
	case "reduce_scatter", "scatter":
		return all / int64(n)
	}
	return all // by distance every rank of an alltoallv receives as much as it sends
}

func given(row result.Row, n int) int64 {
	all := int64(row.Bytes) / 4
	switch row.Collective {
	case "all_gather", "gather", "hypercube":
		return all / int64(n)
	}
	return all
}

// One wrong element is found wherever it is, in each collective and half, and named to the element.
func TestInjectedFaultInEveryCollective(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"", "--placement group -G 2", "-u 1 --comms 2"} {
		t.Run(args, func(t *testing.T) {
			sit(t)
			e, g := engine(t, 4, 2)
			js := filepath.Join(t.TempDir(), "r.json")
			f := commprobe(t, nil, append(smallSweep(e, g, "-r", "1", "--inject-fault", "--json", js), strings.Fields(args)...)...)
			if f.code != 6 {
				t.Errorf("exit status %d", f.code)
			}
			has(t, f.stderr, "wrong data: rank ")
			run := readRunFile(t, js)
			if len(run.Rows) != 14 || run.Outcome.Exit != 6 || run.Outcome.Status != "wrong data" {
				t.Fatalf("%d rows, outcome %+v", len(run.Rows), run.Outcome)
			}
			comms := 1 + strings.Count(args, "--comms 2")
			for _, r := range run.Rows {
				victim, _ := victims(r.Collective, g)
				at := received(r, g) / 2
				has(t, f.stdout, fmt.Sprintf("rank %d: 1 wrong element in [%d, %d]", victim, at, at))
				for i, h := range halves(r) {
					if h.Wrong == nil || *h.Wrong != int64(comms) || len(h.Faults) != comms {
						t.Errorf("%s, half %d: wrong %v, %+v", r.Collective, i, h.Wrong, h.Faults)
					}
					for _, k := range h.Faults {
						if k.Rank != victim || k.Wrong != 1 || k.First != at || k.Last != at || len(k.Samples) != 1 || k.Samples[0].Got == k.Samples[0].Expected {
							t.Errorf("%s, half %d: %+v, want element %d of rank %d", r.Collective, i, k, at, victim)
						}
					}
				}
			}
		})
	}
}

// The rank whose data is not there is named, in each collective and half, on every rank that misses it.
func TestInjectedDropInEveryCollective(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"", "-d bfloat16 -o max --placement thread", "-d int32 -o prod -G 2"} {
		t.Run(args, func(t *testing.T) {
			sit(t)
			e, g := engine(t, 4, 2)
			js := filepath.Join(t.TempDir(), "r.json")
			f := commprobe(t, nil, append(smallSweep(e, g, "-r", "1", "--inject-drop", "--json", js), strings.Fields(args)...)...)
			if f.code != 6 {
				t.Errorf("exit status %d", f.code)
			}
			run := readRunFile(t, js)
			if len(run.Rows) != 14 || run.Outcome.Exit != 6 {
				t.Fatalf("%d rows, outcome %+v", len(run.Rows), run.Outcome)
			}
			for _, r := range run.Rows {
				_, giver := victims(r.Collective, g)
				names := regexp.MustCompile(fmt.Sprintf(`rank %d's (data|contribution)`, giver))
				for i, h := range halves(r) {
					if len(h.Faults) == 0 {
						t.Errorf("%s, half %d: rank %d gives nothing, and nobody misses it", r.Collective, i, giver)
					}
					for _, k := range h.Faults {
						if !names.MatchString(k.Analysis) || !strings.Contains(f.stdout, k.Analysis) {
							t.Errorf("%s, half %d, rank %d: %q does not name rank %d", r.Collective, i, k.Rank, k.Analysis, giver)
						}
					}
				}
			}
		})
	}
}

// A NaN in the input is told as such, with rank and index, before the wrong result that it makes.
func TestNaN(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"all", "all -d half --placement group -G 2", "all_reduce -d half,bfloat16,double,f8e4m3,f8e5m2 -o max"} {
		t.Run(args, func(t *testing.T) {
			sit(t)
			e, g := engine(t, 4, 2)
			js := filepath.Join(t.TempDir(), "r.json")
			list := sweepArgs(e, g, append(strings.Fields(args), "-b", "4K", "-e", "4K", "-n", "2", "-w", "1", "-r", "1", "--nan-check", "--json", js)...)
			allGood(t, readRun(t, ok(t, nil, append(slices.Clone(list[:len(list)-1]), "-")...).stdout))
			f := commprobe(t, nil, append(list, "--inject-nan")...)
			if f.code != 6 {
				t.Errorf("exit status %d", f.code)
			}
			run := readRunFile(t, js)
			for _, r := range run.Rows {
				_, giver := victims(r.Collective, g)
				at := given(r, g) * 4 / int64(elementBytes(t, r.Type)) / 2
				has(t, f.stdout, fmt.Sprintf("the first at index %d", at))
				for i, h := range halves(r) {
					n := 0
					for _, k := range h.Faults {
						if k.Kind != result.FaultInput {
							continue
						}
						n++
						if k.Rank != giver || k.Wrong != 1 || k.First != at || k.Last != at || len(k.Samples) != 1 || !strings.HasPrefix(k.Samples[0].Got, "NaN") {
							t.Errorf("%s %s, half %d: %+v, want element %d of rank %d", r.Collective, r.Type, i, k, at, giver)
						}
					}
					if n != 1 {
						t.Errorf("%s %s, half %d: %d inputs with NaN in %+v", r.Collective, r.Type, i, n, h.Faults)
					}
				}
			}
			if want := 14; strings.HasPrefix(args, "all ") && len(run.Rows) != want {
				t.Errorf("%d rows, want %d", len(run.Rows), want)
			}
		})
	}
}

func elementBytes(t *testing.T, name string) int {
	t.Helper()
	for suffix, n := range map[string]int{"double": 8, "float": 4, "half": 2, "bfloat16": 2, "f8e4m3": 1, "f8e5m2": 1} {
		if name == suffix {
			return n
		}
	}
	t.Fatalf("type %s", name)
	return 0
}

// -M's figures are a GPU's; the host engine says that it has none.
func TestMemory(t *testing.T) {
	t.Parallel()
	sit(t)
	e, g := engine(t, 2, 1)
	js := filepath.Join(t.TempDir(), "r.json")
	f := ok(t, nil, sweepArgs(e, g, "-b", "4K", "-e", "1M", "-f", "256", "-n", "2", "-M", "1", "--json", js)...)
	goodTable(t, f.stdout, 4096, 1<<20)
	run := readRunFile(t, js)
	if e == "host" {
		has(t, f.stdout, "-M: the host engine's devices have no memory of their own")
		if run.Ranks[0].Memory != nil || strings.Contains(f.stdout, "GPU memory usage") {
			t.Errorf("%+v", run.Ranks[0].Memory)
		}
		return
	}
	for r := range g {
		if m := run.Ranks[r].Memory; m == nil || m.Init <= 0 || m.User < 2<<20 || m.Total != m.Init+m.User+m.Collective {
			t.Errorf("rank %d: %+v", r, m)
		}
		has(t, f.stdout, "(rank "+strconv.Itoa(r)+")")
	}
}
