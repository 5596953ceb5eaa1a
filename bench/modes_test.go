package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/nccl"
)

func TestValidateModes(t *testing.T) {
	x := func(n int) *int { return &n }
	for _, c := range []struct {
		name   string
		change func(*Plan)
		says   string // "": accepted
	}{
		{"all of it", func(p *Plan) {
			p.Root, p.Average = 1, AverageMax
			p.Modes = result.Options{Aggregate: 4096, Register: 2, CTAPolicy: x(2), Blocking: 3, Cycles: 5, Comms: 16, Spread: 0.5}
		}, ""},
		{"graph", func(p *Plan) { p.Modes.Graph, p.Modes.Aggregate, p.Iters = 100_000, 100, 1000 }, ""},
		{"all roots", func(p *Plan) { p.Root = AllRoots }, ""},
		{"until stopped", func(p *Plan) { p.Modes.Cycles = 0 }, ""},
		{"shift and registration", func(p *Plan) { p.Modes.Unalign, p.Modes.Register = 1<<20, 1 }, ""},
		{"no spread", func(p *Plan) { p.Modes.Spread = 0 }, ""},
		{"root beyond the ranks", func(p *Plan) { p.Root = 2 }, "-r 2: a rank from 0 to 1, or all"},
		{"root below all", func(p *Plan) { p.Root = -2 }, "-r -2: a rank from 0 to 1"},
		{"average", func(p *Plan) { p.Average = 4 }, "-a 4: use 0 (rank 0), 1 (mean)"},
		{"negative average", func(p *Plan) { p.Average = -2 }, "-a -2"},
		{"negative graph", func(p *Plan) { p.Modes.Graph = -1 }, "-G -1"},
		{"too many launches", func(p *Plan) { p.Modes.Graph = 100_001 }, "-G 100001"},
		{"too large a graph", func(p *Plan) { p.Modes.Graph, p.Iters = 1, 100_001 }, "-n 100001 -m 0: a graph of more than 100000"},
		{"too large a graph of groups", func(p *Plan) { p.Modes.Graph, p.Iters, p.Modes.Aggregate = 1, 1000, 101 }, "-n 1000 -m 101"},
		{"graph on the NULL stream", func(p *Plan) { p.Modes.Graph, p.Modes.NullStream = 1, true }, "-G with -y 1"},
		{"graph and blocking", func(p *Plan) { p.Modes.Graph, p.Modes.Blocking = 1, 2 }, "-G with -z"},
		{"negative group", func(p *Plan) { p.Modes.Aggregate = -1 }, "-m -1"},
		{"too large a group", func(p *Plan) { p.Modes.Aggregate = 4097 }, "-m 4097: operations in a group must be between 1 and 4096"},
		{"registration", func(p *Plan) { p.Modes.Register = 3 }, "-R 3: use 0 (no), 1 (ncclCommRegister) or 2"},
		{"negative registration", func(p *Plan) { p.Modes.Register = -1 }, "-R -1"},
		{"policy", func(p *Plan) { p.Modes.CTAPolicy = x(3) }, "-x 3: use 0 (default)"},
		{"negative policy", func(p *Plan) { p.Modes.CTAPolicy = x(-1) }, "-x -1"},
		{"blocking", func(p *Plan) { p.Modes.Blocking = 4 }, "-z 4: use 0 (no), 1"},
		{"negative blocking", func(p *Plan) { p.Modes.Blocking = -1 }, "-z -1"},
		{"cycles", func(p *Plan) { p.Modes.Cycles = -1 }, "-N -1: cycles must be 1 or more, or 0"},
		{"shift", func(p *Plan) { p.Modes.Unalign = -1 }, "-u -1"},
		{"too large a shift", func(p *Plan) { p.Modes.Unalign = 1<<20 + 1 }, "-u 1048577"},
		{"shift in symmetric windows", func(p *Plan) { p.Modes.Unalign, p.Modes.Register = 1, 2 }, "-u with -R 2"},
		{"communicators", func(p *Plan) { p.Modes.Comms = 17 }, "--comms 17: communicators over the same GPUs must be between 1 and 16"},
		{"negative communicators", func(p *Plan) { p.Modes.Comms = -1 }, "--comms -1"},
		{"communicators on the NULL stream", func(p *Plan) { p.Modes.Comms, p.Modes.NullStream = 2, true }, "--comms with -y 1"},
		{"spread", func(p *Plan) { p.Modes.Spread = 1.1 }, "--spread 1.1: from 0"},
		{"negative spread", func(p *Plan) { p.Modes.Spread = -0.1 }, "--spread -0.1"},
		{"spread NaN", func(p *Plan) { p.Modes.Spread = math.NaN() }, "--spread NaN"},
		{"too small to divide", func(p *Plan) { p.Collectives, p.MinBytes, p.MaxBytes = []string{"all_gather"}, 8, 31 },
			"-e 31 is too small: each of 2 ranks' part is a multiple of 16 bytes where a message is divided, so it must have at least 32 bytes"},
		{"too small to divide, in groups", func(p *Plan) {
			p.Collectives, p.MinBytes, p.MaxBytes, p.Modes.Split = []string{"all_gather"}, 8, 31, "mod:2"
		}, ""}, // one rank in each group: known only later
		{"nothing fits", func(p *Plan) { p.Collectives, p.World = []string{"hypercube"}, 3 }, "nothing to measure: hypercube: needs a power of two of ranks, not 3"},
		{"nothing fits in one group", func(p *Plan) { p.Collectives, p.Modes.Aggregate = []string{"pairwise"}, 2 }, "nothing to measure: pairwise: its rounds follow each other, and -m"},
		{"one rank has no partner", func(p *Plan) { p.Collectives, p.World = []string{"pingpong"}, 1 }, "pingpong: needs at least two ranks"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := goodPlan()
			c.change(&p)
			err := p.Validate()
			switch {
			case c.says == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
				t.Errorf("error %v, want one with %q", err, c.says)
			}
		})
	}
}

// cellNames are the combinations of a plan.
func cellNames(t *testing.T, p *Plan) []string {
	t.Helper()
	cells, _, err := p.cells()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, c := range cells {
		out = append(out, c.name())
	}
	return out
}

func TestCells(t *testing.T) {
	p := goodPlan()
	p.World, p.Collectives, p.Types, p.Ops = 3, []string{"all_reduce", "broadcast", "reduce", "sendrecv"}, []string{"half", "int8"}, []string{"max", "mulsum"}
	p.Root = AllRoots
	want := []string{
		"all_reduce half max", "all_reduce half mulsum", "all_reduce int8 max", "all_reduce int8 mulsum",
		"broadcast half root 0", "broadcast half root 1", "broadcast half root 2", "broadcast int8 root 0", "broadcast int8 root 1", "broadcast int8 root 2",
		"reduce half max root 0", "reduce half max root 1", "reduce half max root 2", "reduce half mulsum root 0", "reduce half mulsum root 1", "reduce half mulsum root 2",
		"reduce int8 max root 0", "reduce int8 max root 1", "reduce int8 max root 2", "reduce int8 mulsum root 0", "reduce int8 mulsum root 1", "reduce int8 mulsum root 2",
		"sendrecv half", "sendrecv int8",
	}
	if diff := cmp.Diff(want, cellNames(t, &p)); diff != "" {
		t.Error(diff)
	}
	p.Collectives, p.Types, p.Ops, p.Root = []string{"scatter", "reduce"}, []string{"half"}, []string{"max"}, 2
	if diff := cmp.Diff([]string{"scatter half root 2", "reduce half max root 2"}, cellNames(t, &p)); diff != "" {
		t.Error(diff)
	}
}

// Everything: 3 collectives with operators, 2 of them without a root; 11 without, 4 of them with one.
func TestEverythingAtOnce(t *testing.T) {
	p := goodPlan()
	p.World, p.Collectives, p.Ops, p.Types, p.Root = 4, CollectiveNames(), Ops(), nil, AllRoots
	for _, d := range nccl.DataTypes() {
		p.Types = append(p.Types, d.String())
	}
	if len(p.Types) != 12 || len(p.Ops) != 6 {
		t.Fatalf("types %v, operators %v", p.Types, p.Ops)
	}
	if n := len(cellNames(t, &p)); n != 12*(6*(1+1+4)+4*4+7) {
		t.Errorf("%d combinations", n)
	}
	p.Root, p.MinBytes, p.MaxBytes, p.StepFactor = 0, 64, 128, 2
	steps, err := p.steps()
	if err != nil || len(steps) != 12*(6*3+11)*2 {
		t.Errorf("%d rows, %v", len(steps), err)
	}
	p.World, p.MinBytes = 3, 8
	_, skipped, err := p.cells()
	if err != nil || len(skipped) != 1 || skipped[0].What != "hypercube" || skipped[0].Why != "needs a power of two of ranks, not 3" {
		t.Errorf("skipped %+v, %v", skipped, err)
	}
	p.Modes.Aggregate = 2
	if _, skipped, _ = p.cells(); len(skipped) != 3 || skipped[1].What != "pairwise" || skipped[2].What != "pingpong" || !strings.Contains(skipped[2].Why, "-m") {
		t.Errorf("with -m 2 skipped %+v", skipped)
	}
	p.Modes.Aggregate, p.World = 1, 1
	if _, skipped, _ = p.cells(); len(skipped) != 2 || skipped[0].What != "bisection" || skipped[1].What != "pingpong" {
		t.Errorf("on one rank skipped %+v", skipped)
	}
}

// Sizes asked for that have no row are told with their reason, each collective with its own limit.
func TestLeftOut(t *testing.T) {
	for _, c := range []struct {
		name     string
		change   func(*Plan)
		want     []string
		measured map[string]result.Bytes // the first size of some
	}{
		{"nothing", func(p *Plan) { p.MinBytes = 64 }, nil, nil},
		{"divided ones", func(p *Plan) { p.Collectives = []string{"all_reduce", "all_gather", "scatter"} },
			[]string{"all_gather, scatter below 64 bytes: each of 4 ranks' part is a multiple of 16 bytes where a message is divided, so it must have at least 64 bytes"},
			map[string]result.Bytes{"all_reduce": 8, "scatter": 64}},
		// By distance the largest of 4 parts is half of the message: 32 bytes have one of 16.
		{"unequal parts", func(p *Plan) { p.Collectives, p.Modes.Spread = []string{"alltoall", "alltoallv"}, 1 },
			[]string{"alltoall below 64 bytes: each of 4 ranks'", "alltoallv below 32 bytes: parts are multiples of 16 bytes, and all would be empty"},
			map[string]result.Bytes{"alltoallv": 32}},
		{"less than an element", func(p *Plan) { p.Types, p.MinBytes, p.MaxBytes = []string{"double"}, 2, 64 },
			[]string{"all_reduce below 8 bytes: an element of double has 8 bytes"}, map[string]result.Bytes{"all_reduce": 8}},
		{"a factor below 2", func(p *Plan) { p.Collectives, p.MinBytes, p.StepFactor = []string{"gather"}, 50, 1.3 },
			[]string{"gather below 65 bytes: each of 4 ranks'"}, map[string]result.Bytes{"gather": 65}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := goodPlan()
			p.World, p.MaxBytes = 4, 128
			c.change(&p)
			steps, err := p.steps()
			if err != nil {
				t.Fatal(err)
			}
			first := map[string]result.Bytes{}
			for _, st := range slices.Backward(steps) {
				first[st.coll.name] = st.ask
			}
			for name, want := range c.measured {
				if first[name] != want {
					t.Errorf("%s begins at %d bytes, want %d", name, first[name], want)
				}
			}
			got := p.leftOut(steps)
			if len(got) != len(c.want) {
				t.Fatalf("%+v", got)
			}
			for i, s := range got {
				if text := s.What + ": " + s.Why; !strings.HasPrefix(text, c.want[i]) {
					t.Errorf("%q, want %q", text, c.want[i])
				}
			}
		})
	}
}

// What a version lacks is told before anything is started.
func TestNeeds(t *testing.T) {
	two := 2
	for _, c := range []struct {
		modes   result.Options
		version nccl.Version
		says    string
	}{
		{result.Options{}, 21800, ""},
		{result.Options{Register: 1}, nccl.Since219, ""},
		{result.Options{Register: 1}, 21800, "-R 1 (ncclCommRegister) needs NCCL 2.19"},
		{result.Options{Register: 2}, 22603, "-R 2 (symmetric windows) needs NCCL 2.27"},
		{result.Options{Register: 2}, nccl.Since227, ""},
		{result.Options{CTAPolicy: new(int)}, 22603, "-x (CTA policy) needs NCCL 2.27"},
		{result.Options{CTAPolicy: &two}, nccl.Since227, "-x 2 (zero CTA) needs NCCL 2.28"},
		{result.Options{CTAPolicy: &two}, nccl.Since228, ""},
	} {
		got := (&Plan{Modes: c.modes}).needs(c.version)
		if c.says == "" && got != "" || !strings.HasPrefix(got, c.says) || got != "" && !strings.Contains(got, c.version.String()) {
			t.Errorf("%+v with %s: %q, want %q", c.modes, c.version, got, c.says)
		}
	}
}

func TestBufferParts(t *testing.T) {
	for names, want := range map[string]int{"all_reduce gather": 2, "all_reduce sendrecv": 3, "alltoallv": 3, "hypercube": 2} {
		if got := (&Plan{Collectives: strings.Fields(names)}).bufferParts(); got != want {
			t.Errorf("%s: %d", names, got)
		}
	}
	o := reported("native", 8, 30<<30, deviceReport{HostKey: "a", Free: 80 << 30})
	o.plan.Collectives, o.plan.Modes.Comms = []string{"alltoall"}, 2
	if note, err := o.limitMemory(); err != nil || o.plan.MaxBytes != 13<<30 || !strings.Contains(note, "÷ 6 buffers") {
		t.Errorf("-e %d, %q, %v; want (80 − 2) GiB in 6 parts", o.plan.MaxBytes, note, err)
	}
}

func TestAverages(t *testing.T) {
	ranks := ranksOf(rankHalf{TimeNS: 4000, QueuedNS: 400}, rankHalf{TimeNS: 1000, QueuedNS: 100}, rankHalf{TimeNS: 10000, QueuedNS: 700})
	for _, c := range []struct {
		how  Average
		coll *collective
		us   result.Micros
		cpu  result.Micros
		text string
	}{
		{AverageRank0, &allReduce, 4, 0.4, "rank 0"},
		{AverageMean, &allReduce, 5, 0.4, "mean"},
		{AverageMin, &allReduce, 1, 0.1, "min"},
		{AverageMax, &allReduce, 10, 0.7, "max"},
		{AverageDefault, &allReduce, 5, 0.4, "mean"},
		{AverageDefault, &allToAllV, 10, 0.7, "mean"}, // its ranks have different amounts to do
		{AverageMean, &allToAllV, 5, 0.4, "mean"},
		{AverageRank0, &allToAllV, 4, 0.4, "rank 0"},
	} {
		p := goodPlan()
		p.World, p.Average = 3, c.how
		st := floatStep(3 << 10)
		st.coll = c.coll
		row := mergeOne(t, &p, st, stepMsg{Iters: 1}, ranks)
		h := row.OutOfPlace
		if math.Abs(float64(h.TimeUS-c.us)) > 1e-9 || math.Abs(float64(h.CPUTimeUS-c.cpu)) > 1e-9 || c.how.String() != c.text {
			t.Errorf("%s -a %d (%s): %g µs, %g queueing; want %g, %g, %q", c.coll.name, c.how, c.how, h.TimeUS, h.CPUTimeUS, c.us, c.cpu, c.text)
		}
		if alg := 3072 / (float64(c.us) * 1e3); math.Abs(float64(h.AlgBW)-alg) > 1e-9 {
			t.Errorf("%s -a %d: algbw %g, want %g", c.coll.name, c.how, h.AlgBW, alg)
		}
	}
}

// alltoallv's busbw counts what the busiest rank exchanges with the others; hypercube's algbw what a rank receives.
func TestMergeBandwidths(t *testing.T) {
	p := goodPlan()
	p.Average, p.Traffic = AverageDefault, Matrix{{1600, 800}, {320, 0}}
	st := step{cell: cell{coll: &allToAllV, dtype: nccl.Float32}, ask: 2400, bytes: 2400}
	h := mergeOne(t, &p, st, stepMsg{}, ranksOf(rankHalf{TimeNS: 100}, rankHalf{TimeNS: 200})).OutOfPlace
	if h.AlgBW != 12 || h.BusBW != 4 {
		t.Errorf("algbw %g, busbw %g; want 2400 and 800 bytes in 200 ns", h.AlgBW, h.BusBW)
	}
	p = goodPlan()
	p.World = 4
	st = step{cell: cell{coll: &hypercube, dtype: nccl.Float32}, ask: 4096, bytes: 4096}
	one := rankHalf{TimeNS: 1000}
	h = mergeOne(t, &p, st, stepMsg{}, ranksOf(one, one, one, one)).OutOfPlace
	if math.Abs(float64(h.AlgBW)-3.072) > 1e-12 || h.BusBW != h.AlgBW {
		t.Errorf("algbw %g, busbw %g; want 3072 bytes in a microsecond", h.AlgBW, h.BusBW)
	}
}

// Ranks that rest have no part in a row: not in the mean, not among the ranks, not in the single operations.
func TestMergeIdle(t *testing.T) {
	p := goodPlan()
	p.World = 4
	st := step{cell: cell{coll: &pingPong, dtype: nccl.Float32, root: 2}, ask: 64, bytes: 64}
	rest := rankHalf{Idle: true, TimeNS: 1e6, EventUS: []float64{999, 999}, Checked: true}
	for how, want := range map[Average]result.Micros{AverageDefault: 3, AverageRank0: 2, AverageMin: 2, AverageMax: 4} {
		p.Average = how
		row := mergeOne(t, &p, st, stepMsg{}, ranksOf(rest, rest, rankHalf{TimeNS: 2000, EventUS: []float64{1, 5}, Checked: true}, rankHalf{TimeNS: 4000, EventUS: []float64{2, 2}, Checked: true}))
		h := row.OutOfPlace
		if h.TimeUS != want || len(h.Ranks) != 2 || h.Ranks[0].Rank != 2 || h.Ranks[1].Rank != 3 || row.Root != 2 {
			t.Errorf("-a %d: %g µs of ranks %+v, root %d", how, h.TimeUS, h.Ranks, row.Root)
		}
		if h.Iter == nil || h.Iter.N != 2 || h.Iter.MinUS != 2 || h.Iter.MaxUS != 5 || h.Wrong == nil || *h.Wrong != 0 {
			t.Errorf("-a %d: single operations %+v, wrong %v", how, h.Iter, h.Wrong)
		}
	}
}

func TestPaceOfModes(t *testing.T) {
	saw := func(p *pace, us float64) { p.saw(result.Row{OutOfPlace: &result.Half{TimeUS: result.Micros(us)}}) }
	for _, c := range []struct {
		name          string
		modes         result.Options
		exact         bool
		us            float64 // an operation, in the row before
		first, second stepMsg
	}{
		// An iteration is ten operations: 100 µs; 20 ms are 200 of them.
		{"groups", result.Options{Aggregate: 10}, false, 10, stepMsg{Iters: 20, EventIters: 20}, stepMsg{Iters: 200, EventIters: 100}},
		{"groups, exact", result.Options{Aggregate: 10}, true, 10, stepMsg{Iters: 20, EventIters: 20}, stepMsg{Iters: 20, EventIters: 100}},
		{"slow groups", result.Options{Aggregate: 10}, false, 2000, stepMsg{Iters: 20, EventIters: 20}, stepMsg{Iters: 20, EventIters: 15}},
		// A graph has -n operations whatever they take, and a launch is one sample.
		{"graph", result.Options{Graph: 3}, false, 1, stepMsg{Iters: 20, EventIters: 3}, stepMsg{Iters: 20, EventIters: 20}},
		{"many launches", result.Options{Graph: 500}, false, 1, stepMsg{Iters: 20, EventIters: 20}, stepMsg{Iters: 20, EventIters: 500}},
		{"many slow launches", result.Options{Graph: 500}, false, 1000, stepMsg{Iters: 20, EventIters: 20}, stepMsg{Iters: 20, EventIters: 15}},
		{"graph of groups", result.Options{Graph: 500, Aggregate: 10}, false, 100, stepMsg{Iters: 20, EventIters: 20}, stepMsg{Iters: 20, EventIters: 15}},
		{"very slow graph", result.Options{Graph: 2}, false, 1e6, stepMsg{Iters: 20, EventIters: 2}, stepMsg{Iters: 20, EventIters: 5}},
	} {
		p := pace{plan: &Plan{Iters: 20, ItersExact: c.exact, Modes: c.modes}}
		first := p.next(floatStep(8))
		saw(&p, c.us)
		if second := p.next(floatStep(16)); first != c.first || second != c.second {
			t.Errorf("%s: %+v and %+v, want %+v and %+v", c.name, first, second, c.first, c.second)
		}
	}
}

// cycled is a row of a cycle.
func cycled(cycle int, bytes result.Bytes, out, in float64, wrong int64) result.Row {
	half := func(us float64) *result.Half {
		return &result.Half{TimeUS: result.Micros(us), Wrong: &wrong, Ranks: []result.RankTime{{EventUS: []float64{us}}}}
	}
	return result.Row{Cycle: cycle, Collective: "all_reduce", Type: "float", Op: "sum", Root: -1, Bytes: bytes, OutOfPlace: half(out), InPlace: half(in)}
}

func TestHistory(t *testing.T) {
	var h history
	// 40 cycles: the first four take 10, 12, 11 and 10 µs, the last four 20; in between 15, but one of 99.
	for c := 1; c <= 40; c++ {
		us := 15.0
		switch {
		case c <= 4:
			us = []float64{10, 12, 11, 10}[c-1]
		case c > 36:
			us = 20
		case c == 23:
			us = 99
		}
		h.add(cycled(c, 8, us, 5, only(c%10 == 0, 3)))
		h.add(cycled(c, 16, 7, 7, 0))
	}
	got := h.summary()
	if len(got) != 4 {
		t.Fatalf("%+v", got)
	}
	want := result.Cycles{
		Collective: "all_reduce", Type: "float", Op: "sum", Root: -1, Bytes: 8, N: 40, MedianUS: 15, MinUS: 10, MaxUS: 99, MaxCycle: 23, FirstUS: 10.5, LastUS: 20, Wrong: 12,
	}
	if diff := cmp.Diff(want, got[0]); diff != "" {
		t.Error(diff)
	}
	if c := got[1]; !c.InPlace || c.Bytes != 8 || c.MedianUS != 5 || c.MaxCycle != 1 || c.FirstUS != 5 || c.LastUS != 5 {
		t.Errorf("in place %+v", c)
	}
	if c := got[2]; c.InPlace || c.Bytes != 16 || c.N != 40 || c.Wrong != 0 {
		t.Errorf("16 bytes %+v", c)
	}
}

func TestHistoryKeys(t *testing.T) {
	var h history
	a := cycled(1, 8, 1, 1, 0)
	b := a
	b.Root = 1
	c := a
	c.Group = 1
	for _, r := range []result.Row{a, b, c} {
		h.add(r)
	}
	if got := h.summary(); got != nil {
		t.Errorf("after one cycle: %+v", got)
	}
	d := cycled(2, 8, 3, 0, 0)
	d.InPlace = nil
	h.add(d)
	got := h.summary()
	if len(got) != 6 || got[0].N != 2 || got[0].MaxCycle != 2 || got[1].N != 1 || got[2].Root != 1 || got[4].Group != 1 {
		t.Errorf("%+v", got)
	}
	var none history
	none.add(cycled(0, 8, 1, 1, 0)) // a row of a plan with one cycle
	if none.summary() != nil || len(none.halves) != 0 {
		t.Errorf("%+v", none)
	}
}

// A run that lasts for days keeps its first rows and its last ones, and of later cycles no single samples.
func TestHistoryBounds(t *testing.T) {
	h := history{cycles: true}
	var rows []result.Row
	most := 0
	for c := 1; c <= 4*keepLast; c++ {
		rows = h.keep(append(rows, result.Row{Cycle: c}))
		most = max(most, len(rows))
	}
	if most > keepFirst+2*keepLast || len(rows) < keepFirst+keepLast {
		t.Errorf("up to %d rows, %d at the end", most, len(rows))
	}
	if rows[0].Cycle != 1 || rows[keepFirst-1].Cycle != keepFirst || rows[len(rows)-1].Cycle != 4*keepLast || rows[len(rows)-keepLast].Cycle != 3*keepLast+1 {
		t.Errorf("rows %d, %d … %d, %d", rows[0].Cycle, rows[keepFirst-1].Cycle, rows[len(rows)-keepLast].Cycle, rows[len(rows)-1].Cycle)
	}
	once := history{}
	if got := once.keep(make([]result.Row, keepFirst+2*keepLast+1)); len(got) != keepFirst+2*keepLast+1 {
		t.Errorf("one cycle keeps %d rows", len(got))
	}
	row := cycled(3, 8, 1, 1, 0)
	h.thin(&row)
	half := result.Row{OutOfPlace: cycled(3, 8, 1, 1, 0).OutOfPlace}
	h.thin(&half)
	for _, x := range []*result.Half{row.OutOfPlace, row.InPlace, half.OutOfPlace} {
		if len(x.Ranks) != 1 || x.Ranks[0].EventUS != nil {
			t.Errorf("%+v", x.Ranks)
		}
	}
}

// A pingpong's time is one way: with the round trip in its place the operations would take longer than the whole run did.
func TestHalfARoundTrip(t *testing.T) {
	w := newCouple(t, PlaceThread, 2)
	if w.sweep.Plan.World < 2 {
		t.Skip("one GPU")
	}
	p := &w.sweep.Plan
	p.Collectives, p.MinBytes, p.MaxBytes, p.Iters, p.Warmup, p.Check = []string{"pingpong"}, 8, 8, 3000, 0, 0
	var at time.Time
	var took time.Duration
	w.sweep.OnStep = func(int, int, string, result.Bytes) { at = time.Now() }
	w.sweep.OnRow = func(result.Row) { took = time.Since(at) }
	w.run(t, t.Context())
	w.outcome(t, "ok", ExitOK)
	if len(w.result.Rows) != 1 {
		t.Fatalf("%d rows", len(w.result.Rows))
	}
	row := w.result.Rows[0]
	ways := 0.0 // microseconds that all timed ways together took
	for _, h := range []*result.Half{row.OutOfPlace, row.InPlace} {
		ways += 2 * float64(h.Iters) * float64(h.TimeUS)
		if len(h.Ranks) != 2 || h.Iters != 3000 || h.TimeUS <= 0 {
			t.Errorf("%+v", h)
		}
		// Events have been a whole trip apart; their half is of the order of the other figure.
		if ratio := float64(h.Ranks[0].BatchUS / h.TimeUS); ratio > 20 || ratio < 0.05 {
			t.Errorf("%g µs by events, %g by the clock", h.Ranks[0].BatchUS, h.TimeUS)
		}
	}
	if ways > float64(took.Microseconds()) {
		t.Errorf("%s: the ways take %.0f µs together, the whole row took %v", fmt.Sprint(row.OutOfPlace.TimeUS), ways, took)
	}
}
