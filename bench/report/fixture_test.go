package report

import (
	"bufio"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/commprobe/commprobe/bench/costmodel"
	"github.com/commprobe/commprobe/bench/result"
)

var update = flag.Bool("update", false, "rewrite golden files")

// golden compares got with testdata/name, or rewrites it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (make it with go test -update)", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

func number(t *testing.T, s string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func ptr[T any](v T) *T { return &v }

// ncclTestsLines returns the lines of a file in testdata, and which of them are rows.
func ncclTestsLines(t *testing.T, name string) (lines, rows []string) {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for scan := bufio.NewScanner(f); scan.Scan(); {
		lines = append(lines, scan.Text())
		if fields := strings.Fields(scan.Text()); len(fields) == 13 && fields[0] != "#" {
			rows = append(rows, scan.Text())
		}
	}
	return lines, rows
}

// h200Run is a run with the rows of a recorded nccl-tests file. Bandwidths are computed from size and time where exact is set, since the file has
// two decimals only; else they are the printed ones.
func h200Run(t *testing.T, name, collective string, exact bool) *result.Run {
	t.Helper()
	_, lines := ncclTestsLines(t, name)
	factor, err := costmodel.Factor(collective, 2)
	if err != nil {
		t.Fatal(err)
	}
	run := emptyH200Run(collective)
	for _, line := range lines {
		f := strings.Fields(line)
		row := result.Row{Run: 1, Collective: collective, Type: f[2], Op: f[3], Root: int(number(t, f[4])),
			Bytes: result.Bytes(number(t, f[0])), Count: result.Count(number(t, f[1]))}
		half := func(f []string) *result.Half {
			h := &result.Half{Iters: 50, TimeUS: result.Micros(number(t, f[0])), AlgBW: result.GBps(number(t, f[1])), BusBW: result.GBps(number(t, f[2]))}
			if exact {
				h.AlgBW = result.GBps(float64(row.Bytes) / float64(h.TimeUS) / 1e3)
				h.BusBW = h.AlgBW * result.GBps(factor)
			}
			if f[3] != "N/A" {
				h.Wrong = ptr(int64(number(t, f[3])))
			}
			return h
		}
		row.OutOfPlace, row.InPlace = half(f[5:9]), half(f[9:13])
		run.Rows = append(run.Rows, row)
	}
	run.Config.MinBytes, run.Config.MaxBytes = run.Rows[0].Bytes, run.Rows[len(run.Rows)-1].Bytes
	return run
}

func emptyH200Run(collective string) *result.Run {
	run := &result.Run{
		Schema:  result.Schema,
		Program: result.Program{Name: "commprobe", Version: "0.1.0", Go: "go1.26.8"},
		Command: []string{"commprobe", "sweep", collective, "-g", "2"},
		Started: time.Date(2026, 11, 29, 17, 0, 0, 0, time.UTC),
		Ended:   time.Date(2026, 11, 29, 17, 1, 30, 0, time.UTC),
		Config: result.Config{Collectives: []string{collective}, Types: []string{"float"}, Ops: []string{"sum"}, Engine: "native",
			Placement: "process", World: 2, StepFactor: 4, Iters: 50, ItersExact: true, Warmup: 10, TimeoutS: 60, Runs: 1,
			Parity: result.Parity{NCCLMemAlloc: true, NVLinkCentricSched: true, OffsetRotation: true, Average: "mean"}},
		Environment: result.Environment{
			Hosts:     []result.Host{{Name: "vm", Kernel: "6.8.0", CPUModel: "a CPU", CPUs: 32, NUMANodes: 1, MemTotal: 256 << 30, Driver: "580.159.04"}},
			Libraries: []result.Library{{Name: "nccl", Path: "/usr/lib/libnccl.so.2", Version: "2.28.9"}},
			Env:       map[string]string{"NCCL_NVLS_ENABLE": "0"},
		},
		Outcome: result.Outcome{Status: "ok"},
	}
	for rank, pid := range []int{1417, 1418} {
		run.Ranks = append(run.Ranks, result.Rank{Rank: rank, Host: "vm", PID: pid, Device: rank, DeviceName: "NVIDIA H200",
			PCIBusID: "00000000:00:0" + strconv.Itoa(6+rank) + ".0", Compute: "9.0", MemTotal: 150754820096, CPUs: "0-31"})
	}
	return run
}

// ncclJSON is the part of nccl-tests' own JSON that has the figures in full.
type ncclJSON struct {
	Results []struct {
		Size, Count int64
		Type, Redop string
		OutOfPlace  ncclHalf `json:"out_of_place"`
		InPlace     ncclHalf `json:"in_place"`
	}
}

type ncclHalf struct {
	Time   float64
	AlgBW  float64 `json:"alg_bw"`
	BusBW  float64 `json:"bus_bw"`
	NWrong float64
}

func (h ncclHalf) half() *result.Half {
	return &result.Half{Iters: 20, TimeUS: result.Micros(h.Time), AlgBW: result.GBps(h.AlgBW), BusBW: result.GBps(h.BusBW), Wrong: ptr(int64(h.NWrong))}
}

func ncclJSONRows(t *testing.T) []result.Row {
	t.Helper()
	data, err := os.ReadFile("testdata/ar.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc ncclJSON
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	var rows []result.Row
	for _, r := range doc.Results {
		rows = append(rows, result.Row{Run: 1, Collective: "all_reduce", Type: r.Type, Op: r.Redop, Root: -1, Bytes: result.Bytes(r.Size),
			Count: result.Count(r.Count), OutOfPlace: r.OutOfPlace.half(), InPlace: r.InPlace.half()})
	}
	return rows
}

// fullRun has something in every field that a writer looks at: wrong data, percentiles with and without P99, launch-bound rows, several runs'
// modes, notes, skipped items, an outcome.
func fullRun() *result.Run {
	run := emptyH200Run("all_reduce")
	run.Config.Check, run.Config.ItersExact = 1, false
	run.Config.MinBytes, run.Config.MaxBytes, run.Config.Iters = 8, 1<<20, 20
	for i, bytes := range []result.Bytes{8, 1024, 128 << 10, 1 << 20} {
		time := result.Micros(9.5 + float64(bytes)/3e5)
		row := result.Row{Run: 1, Collective: "all_reduce", Type: "float", Op: "sum", Root: -1, Bytes: bytes, Count: result.Count(bytes / 4)}
		row.OutOfPlace = &result.Half{Iters: 20, TimeUS: time, AlgBW: result.GBps(float64(bytes) / float64(time) / 1e3),
			BusBW: result.GBps(float64(bytes) / float64(time) / 1e3), Wrong: ptr(int64(0)),
			Ranks: []result.RankTime{
				{Rank: 0, TimeUS: time, EnqueueUS: 3.1, EventUS: []float64{9.1, 9.25, 9.5}, BatchUS: 9.3, CPU: 2},
				{Rank: 1, TimeUS: time, EnqueueUS: 9.4, EventUS: []float64{9.2, 9.25, 9.75}, BatchUS: 9.4, CPU: 3, Switches: 1},
			},
			Iter: &result.IterStats{N: 20, MinUS: 9.1, P50US: time - 0.25, P95US: ptr(time + 1), MaxUS: time + 4, MeanUS: time, StdevUS: 0.5}}
		if i < 3 {
			row.OutOfPlace.LaunchBound = &result.LaunchBound{Rank: 1, EnqueueUS: 9.4}
		}
		if i == 1 {
			row.OutOfPlace.SlowestRank = ptr(1)
		}
		in := *row.OutOfPlace
		in.Iter = &result.IterStats{N: 200, MinUS: 9, P50US: time - 0.5, P95US: ptr(time + 1), P99US: ptr(time + 2.5), MaxUS: time + 6, MeanUS: time, StdevUS: 0.5}
		row.InPlace = &in
		run.Rows = append(run.Rows, row)
	}
	run.Rows[2].OutOfPlace.Wrong = ptr(int64(17))
	run.Rows[2].OutOfPlace.Faults = []result.Fault{{Rank: 3, Wrong: 17, First: 0, Last: 99,
		Samples: []result.Sample{{Index: 5, Got: "1.5", Expected: "2.5"}, {Index: 6, Got: "1.5", Expected: "2.5"}}, Analysis: "the contribution of rank 2\nis missing"}}
	run.Rows[3].InPlace.Wrong = nil
	run.Skipped = []result.Skipped{{What: "all_reduce f8e4m3", Why: "needs NCCL 2.24"}}
	run.Notes = []result.Note{{Severity: "warning", Text: "rank 1 shares its processors with another process"}}
	run.Modes = []result.Modes{
		{Collective: "all_reduce", Type: "float", Op: "sum", Bytes: 8, Runs: 7, MedianUS: 7.5, MinUS: 7.3, MaxUS: 10.9,
			Groups: []result.Mode{{MedianUS: 7.5, Runs: 5, Share: 5.0 / 7}, {MedianUS: 10.7, Runs: 2, Share: 2.0 / 7}}},
		{Collective: "all_reduce", Type: "float", Op: "sum", Bytes: 128 << 10, InPlace: true, Runs: 7, MedianUS: 12430.4, MinUS: 12001, MaxUS: 12900,
			Groups: []result.Mode{{MedianUS: 12430.4, Runs: 7, Share: 1}}},
	}
	run.Outcome = result.Outcome{Status: "wrong data", Exit: 6, Message: "17 wrong elements in one row half", Rank: ptr(3), Host: "vm", Phase: "verification"}
	return run
}

// hostRun is what a small sweep of the host engine looks like.
func hostRun(runs int) *result.Run {
	run := emptyH200Run("all_reduce")
	run.Config.Engine, run.Config.World, run.Config.StepFactor, run.Config.Runs = "host", 4, 2, runs
	run.Config.MinBytes, run.Config.MaxBytes = 8, 16<<20
	run.Config.Parity = result.Parity{Average: "mean"}
	run.Environment.Libraries = []result.Library{{Name: "host engine", Path: "/usr/bin/commprobe", Version: "0.1.0"}}
	run.Ranks = nil
	for r := range 4 {
		run.Ranks = append(run.Ranks, result.Rank{Rank: r, Host: "laptop", PID: 4000 + r, Device: r, DeviceName: "host device"})
	}
	for n := 1; n <= runs; n++ {
		for bytes := result.Bytes(8); bytes <= 16<<20; bytes *= 2 {
			wobble := 1 + 0.08*float64((int(bytes)%7+n*3)%5-2)
			us := result.Micros((45 + float64(bytes)/900) * wobble)
			half := func(us result.Micros) *result.Half {
				bw := result.GBps(float64(bytes) / float64(us) / 1e3)
				return &result.Half{Iters: 20, TimeUS: us, AlgBW: bw, BusBW: bw * 1.5, Wrong: ptr(int64(0)),
					Iter: &result.IterStats{N: 100, MinUS: us * 0.9, P50US: us * 0.97, P95US: ptr(us * 1.3), P99US: ptr(us * 1.8), MaxUS: us * 2.5, MeanUS: us, StdevUS: 3}}
			}
			run.Rows = append(run.Rows, result.Row{Run: n, Collective: "all_reduce", Type: "float", Op: "sum", Root: -1, Bytes: bytes,
				Count: result.Count(bytes / 4), OutOfPlace: half(us), InPlace: half(us * 1.05)})
		}
	}
	return run
}

// oneRankRun has busbw 0 everywhere.
func oneRankRun() *result.Run {
	run := emptyH200Run("all_reduce")
	run.Config.World, run.Ranks = 1, run.Ranks[:1]
	for bytes := result.Bytes(8); bytes <= 1<<20; bytes *= 8 {
		run.Rows = append(run.Rows, result.Row{Run: 1, Collective: "all_reduce", Type: "float", Op: "sum", Root: -1, Bytes: bytes, Count: result.Count(bytes / 4),
			OutOfPlace: &result.Half{TimeUS: 4, AlgBW: result.GBps(float64(bytes) / 4e3)}, InPlace: &result.Half{TimeUS: 0.03, AlgBW: 1.5e6}})
	}
	return run
}
