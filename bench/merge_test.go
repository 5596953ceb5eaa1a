package bench

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/nccl"
)

func floatStep(bytes result.Bytes) step {
	return step{cell: cell{coll: &allReduce, dtype: nccl.Float32, op: nccl.Sum}, ask: bytes, bytes: bytes}
}

// mergeOne is the row of a plan without groups.
func mergeOne(t *testing.T, plan *Plan, st step, msg stepMsg, ranks []rankRow) result.Row {
	t.Helper()
	rows := mergeRows(plan, st, msg, ranks)
	if len(rows) != 1 || rows[0].Group != 0 {
		t.Fatalf("%d rows of one group, the first of group %d", len(rows), rows[0].Group)
	}
	return rows[0]
}

func TestPace(t *testing.T) {
	saw := func(p *pace, us float64) { p.saw(result.Row{OutOfPlace: &result.Half{TimeUS: result.Micros(us)}}) }
	double := floatStep(8)
	double.dtype = nccl.Float64

	t.Run("exact", func(t *testing.T) {
		p := pace{plan: &Plan{Iters: 7, ItersExact: true}}
		for range 3 {
			if m := p.next(floatStep(8)); m.Iters != 7 || m.EventIters < 7 || m.EventIters > eventMin {
				t.Errorf("%+v", m)
			}
			saw(&p, 1)
		}
	})
	t.Run("exact, many", func(t *testing.T) {
		p := pace{plan: &Plan{Iters: 5000, ItersExact: true}}
		if m := p.next(floatStep(8)); m.Iters != 5000 || m.EventIters != 1000 {
			t.Errorf("%+v", m)
		}
	})
	t.Run("from the time of the size before", func(t *testing.T) {
		for _, c := range []struct {
			us            float64
			iters, events int
		}{
			{1, 400, 100},          // 20 times, not 20,000
			{50, 400, 100},         // exactly 20 ms
			{100, 200, 100},        // 20 ms
			{1e3, 20, 100},         // 20 ms
			{eventUS / 60, 20, 60}, // the event series stays below eventUS, and the timed one never below -n
			{eventUS / 15, 20, 15},
			{1e6, 20, 5},       // but has a few samples
			{1e9, 20, 5},       //
			{0, 20, 20},        // no figure
			{-1, 20, 20},       //
			{1e-300, 400, 100}, // no overflow
		} {
			p := pace{plan: &Plan{Iters: 20}}
			if m := p.next(floatStep(8)); m.Iters != 20 || m.EventIters != 20 {
				t.Errorf("first size: %+v", m)
			}
			saw(&p, c.us)
			if m := p.next(floatStep(16)); m.Iters != c.iters || m.EventIters != c.events {
				t.Errorf("after %g µs: %+v, want %d and %d", c.us, m, c.iters, c.events)
			}
		}
	})
	t.Run("another type begins anew", func(t *testing.T) {
		p := pace{plan: &Plan{Iters: 20}}
		p.next(floatStep(8))
		saw(&p, 1)
		if m := p.next(double); m.Iters != 20 {
			t.Errorf("%+v", m)
		}
		saw(&p, 1)
		if m := p.next(double); m.Iters != 400 {
			t.Errorf("%+v", m)
		}
	})
	t.Run("never more than 20 times", func(t *testing.T) {
		for _, n := range []int{1, 2, 20, 999, 1000, 1001, MaxIters} {
			for us := 1e-9; us < 1e9; us *= 3 {
				p := pace{plan: &Plan{Iters: n}}
				p.next(floatStep(8))
				saw(&p, us)
				if m := p.next(floatStep(16)); m.Iters < n || m.Iters > 20*n || m.EventIters < 1 || m.EventIters > 1000 {
					t.Errorf("-n %d after %g µs: %+v", n, us, m)
				}
			}
		}
	})
}

// ranksOf builds what ranks measured out of place: time and queueing in nanoseconds an operation, and event times.
func ranksOf(halves ...rankHalf) []rankRow {
	out := make([]rankRow, len(halves))
	for i, h := range halves {
		out[i].Halves = [2]rankHalf{h, {TimeNS: 1000, EnqueueNS: 1, Checked: true}}
	}
	return out
}

func TestMergeRow(t *testing.T) {
	plan := &Plan{World: 4, Average: AverageDefault}
	fault := result.Fault{Rank: 2, Wrong: 3, First: 5, Last: 9}
	row := mergeOne(t, plan, floatStep(4000), stepMsg{Iters: 50}, ranksOf(
		rankHalf{TimeNS: 1000, EnqueueNS: 100, EventUS: []float64{1, 9, 3}, Checked: true, CPU: 3},
		rankHalf{TimeNS: 2000, EnqueueNS: 300, EventUS: []float64{2, 2, 2}, Checked: true, Switches: 4},
		rankHalf{TimeNS: 3000, EnqueueNS: 200, EventUS: []float64{3, 1, 8}, Checked: true, Faults: []result.Fault{fault}},
		rankHalf{TimeNS: 2000, EnqueueNS: 100, EventUS: []float64{1, 1, 1}, Checked: true, Faults: []result.Fault{{Rank: 3, Wrong: 1}}},
	))
	if row.Collective != "all_reduce" || row.Type != "float" || row.Op != "sum" || row.Root != -1 || row.Bytes != 4000 || row.Count != 1000 {
		t.Errorf("row %+v", row)
	}
	h := row.OutOfPlace
	// Mean over ranks 2 µs; 4000 bytes in 2000 ns are 2 GB/s; 4 ranks move 1.5 times as much.
	if h.TimeUS != 2 || h.AlgBW != 2 || h.BusBW != 3 || h.Iters != 50 {
		t.Errorf("half %+v", h)
	}
	if h.Wrong == nil || *h.Wrong != 4 || len(h.Faults) != 2 || h.Faults[0].Rank != 2 {
		t.Errorf("wrong %v, faults %+v", h.Wrong, h.Faults)
	}
	if r := h.Ranks[1]; r.Rank != 1 || r.TimeUS != 2 || r.EnqueueUS != 0.3 || r.BatchUS != 2 || r.Switches != 4 || h.Ranks[0].CPU != 3 {
		t.Errorf("ranks %+v", h.Ranks)
	}
	// Of each iteration the slowest rank: 3, 9, 8.
	if i := h.Iter; i == nil || i.N != 3 || i.MinUS != 3 || i.P50US != 8 || i.MaxUS != 9 || i.P95US != nil || i.P99US != nil {
		t.Errorf("iterations %+v", i)
	}
	if h.LaunchBound != nil {
		t.Errorf("launch-bound %+v", h.LaunchBound)
	}
	if in := row.InPlace; in.TimeUS != 1 || in.Wrong == nil || *in.Wrong != 0 || in.Iter != nil {
		t.Errorf("in place %+v", in)
	}
}

// A half is checked only if every rank has checked.
func TestMergeUnchecked(t *testing.T) {
	row := mergeOne(t, &Plan{World: 2}, floatStep(8), stepMsg{}, ranksOf(rankHalf{TimeNS: 1, Checked: true}, rankHalf{TimeNS: 1}))
	if row.OutOfPlace.Wrong != nil {
		t.Errorf("wrong %d", *row.OutOfPlace.Wrong)
	}
}

func TestMergeOneRank(t *testing.T) {
	h := mergeOne(t, &Plan{World: 1}, floatStep(8), stepMsg{}, ranksOf(rankHalf{TimeNS: 8, EventUS: []float64{1}})).OutOfPlace
	if h.AlgBW != 1 || h.BusBW != 0 || math.IsNaN(float64(h.BusBW)) || h.SlowestRank != nil {
		t.Errorf("half %+v", h)
	}
}

func TestSlowest(t *testing.T) {
	rank := func(i int, us ...float64) result.RankTime { return result.RankTime{Rank: i, EventUS: us} }
	for _, c := range []struct {
		name  string
		ranks []result.RankTime
		want  int // -1: none
	}{
		{"stands out", []result.RankTime{rank(0, 10), rank(1, 10), rank(2, 11), rank(3, 10)}, 2},
		{"nearly", []result.RankTime{rank(0, 10), rank(1, 10), rank(2, 10.9), rank(3, 10)}, -1},
		{"by the median, not by one iteration", []result.RankTime{rank(0, 10, 10, 10), rank(1, 10, 10, 99), rank(2, 10, 10, 10)}, -1},
		{"no events", []result.RankTime{rank(0, 10), rank(1)}, -1},
		{"one rank", []result.RankTime{rank(0, 10)}, -1},
		{"its number, not its place", []result.RankTime{rank(7, 10), rank(9, 20), rank(8, 10)}, 9},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := -1
			if p := slowest(c.ranks); p != nil {
				got = *p
			}
			if got != c.want {
				t.Errorf("rank %d, want %d", got, c.want)
			}
		})
	}
}

func TestLaunchBound(t *testing.T) {
	for _, c := range []struct {
		name    string
		time    result.Micros
		enqueue []result.Micros
		want    int // -1: not
	}{
		{"the slowest rank's queueing", 10, []result.Micros{6, 9.5}, 1},
		{"at the margin", 11, []result.Micros{10, 6}, 0},
		{"beyond it", 11.1, []result.Micros{10, 6}, -1},
		{"queueing takes longer than the operation", 10, []result.Micros{6, 12}, 1},
		{"large messages", 3000, []result.Micros{10, 6}, -1},
		{"not measured", 0, []result.Micros{0, 0}, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := &result.Half{TimeUS: c.time}
			for i, e := range c.enqueue {
				h.Ranks = append(h.Ranks, result.RankTime{Rank: i, EnqueueUS: e})
			}
			got := launchBound(h)
			if c.want < 0 {
				if got != nil {
					t.Errorf("%+v", got)
				}
				return
			}
			if got == nil || got.Rank != c.want || got.EnqueueUS != c.enqueue[c.want] {
				t.Errorf("%+v, want rank %d", got, c.want)
			}
		})
	}
}

// A rank's core is compared with the best core of its own host, over all rows.
func TestCoreShares(t *testing.T) {
	half := func(bound int, rates ...float64) *result.Half {
		h := &result.Half{}
		for r, rate := range rates {
			h.Ranks = append(h.Ranks, result.RankTime{Rank: r, IssueRate: rate})
		}
		if bound >= 0 {
			h.LaunchBound = &result.LaunchBound{Rank: bound}
		}
		return h
	}
	run := &result.Run{
		Ranks: []result.Rank{{Rank: 0, Host: "a"}, {Rank: 1, Host: "a"}, {Rank: 2, Host: "b"}},
		Rows: []result.Row{
			{OutOfPlace: half(1, 8, 4, 2), InPlace: half(-1, 6, 0, 1)},
			{OutOfPlace: half(2, 8, 10, 1)},
		},
	}
	coreShares(run, make(map[string]float64), allHalves(run.Rows))
	var got [][]float64
	for _, h := range allHalves(run.Rows) {
		var shares []float64
		for _, r := range h.Ranks {
			if r.CoreShare == nil {
				shares = append(shares, -1)
				continue
			}
			shares = append(shares, *r.CoreShare)
		}
		got = append(got, shares)
	}
	// The best core is 10 on host a and 2 on host b; a rate of 0 was not measured.
	if diff := cmp.Diff([][]float64{{0.8, 0.4, 1}, {0.6, -1, 0.5}, {0.8, 1, 0.5}}, got); diff != "" {
		t.Error(diff)
	}
	if s := run.Rows[0].OutOfPlace.LaunchBound.CoreShare; s == nil || *s != 0.4 {
		t.Errorf("launch-bound on rank 1: share %v", s)
	}
	if s := run.Rows[1].OutOfPlace.LaunchBound.CoreShare; s == nil || *s != 0.5 {
		t.Errorf("launch-bound on rank 2: share %v", s)
	}
}

func runRows(times [][2]float64, bound func(i int) *result.LaunchBound) []result.Row {
	var out []result.Row
	for i, t := range times {
		out = append(out, result.Row{
			Run: i + 1, Collective: "all_reduce", Type: "float", Op: "sum", Bytes: 8,
			OutOfPlace: &result.Half{TimeUS: result.Micros(t[0]), LaunchBound: bound(i)}, InPlace: &result.Half{TimeUS: result.Micros(t[1])},
		})
	}
	return out
}

func TestFindModes(t *testing.T) {
	busy, idle := 0.6, 0.99
	// Three slow runs: one on a shared core, one on a core of its own, one not launch-bound.
	rows := runRows([][2]float64{{7.5, 5}, {7.4, 5}, {10.7, 5}, {7.6, 5}, {10.8, 5}, {10.6, 5}, {7.5, 5}}, func(i int) *result.LaunchBound {
		switch i {
		case 0, 2:
			return &result.LaunchBound{CoreShare: &busy}
		case 4:
			return &result.LaunchBound{CoreShare: &idle}
		}
		return nil
	})
	modes := findModes(rows, 7)
	if len(modes) != 2 {
		t.Fatalf("%+v", modes)
	}
	m := modes[0]
	if m.InPlace || m.Bytes != 8 || m.Runs != 7 || m.MedianUS != 7.6 || m.MinUS != 7.4 || m.MaxUS != 10.8 {
		t.Errorf("%+v", m)
	}
	if len(m.Groups) != 2 || m.Groups[0].Runs != 4 || m.Groups[1].Runs != 3 || m.Groups[1].MedianUS != 10.7 || math.Abs(m.Groups[0].Share-4.0/7) > 1e-9 {
		t.Errorf("groups %+v", m.Groups)
	}
	if m.SlowRuns != 3 || m.SlowSharedCore != 1 {
		t.Errorf("%d slow runs, %d on a shared core; want 3 and 1", m.SlowRuns, m.SlowSharedCore)
	}
	if m := modes[1]; !m.InPlace || len(m.Groups) != 1 || m.SlowRuns != 0 || m.SlowSharedCore != 0 {
		t.Errorf("in place %+v", m)
	}
	if modes := findModes(rows, 1); modes != nil {
		t.Errorf("one run: %+v", modes)
	}
}

// Each size, type and placement has modes of its own, in the order of the rows, also where a run was cut off.
func TestFindModesKeys(t *testing.T) {
	var rows []result.Row
	for run := 1; run <= 2; run++ {
		for _, typ := range []string{"half", "float"} {
			for _, b := range []result.Bytes{16, 8} {
				if run == 2 && typ == "float" && b == 8 {
					continue
				}
				rows = append(rows, result.Row{Run: run, Collective: "all_reduce", Type: typ, Op: "sum", Bytes: b, OutOfPlace: &result.Half{TimeUS: 1}})
			}
		}
	}
	var got []string
	for _, m := range findModes(rows, 2) {
		got = append(got, fmt.Sprint(m.Type, m.Bytes, " ×", m.Runs))
	}
	if want := []string{"half16 ×2", "half8 ×2", "float16 ×2", "float8 ×1"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestOutcome(t *testing.T) {
	fault := []result.Fault{{Rank: 3}, {Rank: 1}}
	good := []result.Row{{OutOfPlace: &result.Half{}, InPlace: &result.Half{}}}
	bad := []result.Row{{OutOfPlace: &result.Half{}}, {OutOfPlace: &result.Half{Faults: fault}, InPlace: &result.Half{Faults: fault[:1]}}}
	for _, c := range []struct {
		name   string
		rows   []result.Row
		err    error
		status string
		exit   int
		rank   int
		says   string
	}{
		{"good", good, nil, "ok", 0, -1, ""},
		{"nothing measured", nil, nil, "ok", 0, -1, ""},
		{"wrong data", bad, nil, "wrong data", 6, 1, "2 row halves"},
		{"interrupted", good, errInterrupted, "interrupted", 130, -1, "1 rows"},
		{"interrupted after wrong data", bad, errInterrupted, "wrong data", 6, 1, "2 rows"}, // the graver news
		{"died", good, &Failure{Kind: FailDied, Rank: 2, Host: "a", Phase: "p", Text: "gone"}, "rank died", 5, 2, "gone"},
		{"remote", good, &Failure{Kind: FailRemote, Rank: 0}, "remote error", 5, 0, ""},
		{"time-out", good, &Failure{Kind: FailTimeout, Rank: -1}, "time-out", 4, -1, ""},
		{"no device", nil, &Failure{Kind: FailNoDevice, Rank: 0}, "no device", 3, 0, ""},
		{"usage", nil, &Failure{Kind: FailUsage, Rank: -1}, "usage", 2, -1, ""},
		{"failed", nil, &Failure{Kind: FailInternal, Rank: 1}, "failed", 1, 1, ""},
		{"wrapped", nil, fmt.Errorf("x: %w", &Failure{Kind: FailTimeout, Rank: 1}), "time-out", 4, 1, ""},
		{"other error", nil, errors.New("odd"), "failed", 1, -1, "odd"},
		{"wrong data, then died", bad, &Failure{Kind: FailDied, Rank: 2, Text: "gone"}, "wrong data", 6, 1, "then gone"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := outcome(&result.Run{Rows: c.rows}, c.err)
			rank := -1
			if o.Rank != nil {
				rank = *o.Rank
			}
			if o.Status != c.status || o.Exit != c.exit || rank != c.rank || !strings.Contains(o.Message, c.says) {
				t.Errorf("%+v (rank %d), want %q exit %d rank %d and %q", o, rank, c.status, c.exit, c.rank, c.says)
			}
		})
	}
}

func TestVerdict(t *testing.T) {
	f := func(k FailKind, rank int) *Failure {
		return &Failure{Kind: k, Rank: rank, Text: string(k) + " of " + digits(int64(rank))}
	}
	t.Run("precedence", func(t *testing.T) {
		order := []FailKind{FailDied, FailNoDevice, FailUsage, FailInternal, FailTimeout, FailRemote}
		for i, grave := range order {
			for _, light := range order[i+1:] {
				a, b := f(grave, 1), f(light, 0)
				for _, all := range [][]*Failure{{a, b}, {b, a}} {
					if v := verdict(all, 2, "here"); v.Kind != grave || v.Rank != 1 || v.Phase != "here" {
						t.Errorf("%s and %s: %+v", all[0].Kind, all[1].Kind, v)
					}
				}
			}
		}
	})
	t.Run("the first of equals", func(t *testing.T) {
		if v := verdict([]*Failure{f(FailInternal, 3), f(FailInternal, 0)}, 4, ""); v.Rank != 3 {
			t.Errorf("%+v", v)
		}
	})
	t.Run("its own phase", func(t *testing.T) {
		a := f(FailTimeout, 0)
		a.Phase = "join"
		if v := verdict([]*Failure{a}, 2, "later"); v.Phase != "join" {
			t.Errorf("%+v", v)
		}
		if strings.Contains(a.Text, "no word") {
			t.Errorf("the report itself is changed: %q", a.Text)
		}
	})
	for _, c := range []struct {
		name  string
		ranks []int
		world int
		want  string
		blame int
	}{
		{"one is silent", []int{2, 0, 3}, 4, "no word from rank 1; reported by ranks 0, 2-3: time-out of 2", 1},
		{"most are silent", []int{1}, 8, "no word from ranks 0, 2-7; reported by rank 1: time-out of 1", -1},
		{"none is silent", []int{0, 1}, 2, "time-out of 0; reported by ranks 0-1", 0},
		{"one rank in all", []int{0}, 1, "time-out of 0", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var all []*Failure
			for _, r := range c.ranks {
				all = append(all, f(FailTimeout, r))
			}
			if v := verdict(all, c.world, ""); v.Text != c.want || v.Rank != c.blame {
				t.Errorf("rank %d: %q, want rank %d: %q", v.Rank, v.Text, c.blame, c.want)
			}
		})
	}
	t.Run("a remote error is a word too", func(t *testing.T) {
		v := verdict([]*Failure{f(FailRemote, 1), f(FailTimeout, 0)}, 3, "")
		if v.Kind != FailTimeout || v.Rank != 2 || !strings.HasPrefix(v.Text, "no word from rank 2; reported by rank 0: ") {
			t.Errorf("%+v", v)
		}
	})
}

func TestFailureText(t *testing.T) {
	for _, c := range []struct {
		f    Failure
		want string
	}{
		{Failure{Rank: -1, Text: "x"}, "x"},
		{Failure{Rank: -1, Phase: "join", Text: "x"}, "join: x"},
		{Failure{Rank: 3, Phase: "join", Text: "x"}, "rank 3: join: x"},
		{Failure{Rank: 0, Host: "h", Text: "x"}, "rank 0 on h: x"},
	} {
		if got := c.f.Error(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	if (&Failure{Kind: "odd"}).severity() <= (&Failure{Kind: FailRemote}).severity() {
		t.Error("an unknown kind outweighs a known one")
	}
}

func TestWorst(t *testing.T) {
	died, slow, plain := &Failure{Kind: FailDied}, &Failure{Kind: FailTimeout}, errors.New("plain")
	for _, c := range []struct {
		errs []error
		want error
	}{
		{nil, nil},
		{[]error{nil, nil}, nil},
		{[]error{errStopped, nil, slow}, slow},
		{[]error{slow, plain, errStopped}, plain},
		{[]error{plain, died}, died},
		{[]error{errStopped}, errStopped},
	} {
		if got := worst(c.errs); got != c.want {
			t.Errorf("%v: %v, want %v", c.errs, got, c.want)
		}
	}
}
