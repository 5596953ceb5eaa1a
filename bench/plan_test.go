package bench

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/nccl"
)

// goodPlan is one that Validate accepts.
func goodPlan() Plan {
	return Plan{
		Collectives: []string{"all_reduce"}, Types: []string{"float"}, Ops: []string{"sum"}, Engine: "host", Placement: PlaceProcess, World: 2,
		MinBytes: 8, MaxBytes: 64, StepFactor: 2, Iters: 3, Warmup: 1, Check: 1, Timeout: time.Minute, Average: AverageDefault,
		Modes: result.Options{Cycles: 1},
	}
}

func TestParsePlacement(t *testing.T) {
	for _, p := range []Placement{PlaceProcess, PlaceThread, PlaceGroup} {
		if got, err := ParsePlacement(string(p)); got != p || err != nil {
			t.Errorf("%s: %s, %v", p, got, err)
		}
	}
	for _, s := range []string{"", "Process", "threads"} {
		if p, err := ParsePlacement(s); err == nil || p != "" || !strings.Contains(err.Error(), "process, thread or group") {
			t.Errorf("%q: %q, %v", s, p, err)
		}
	}
}

func TestSizes(t *testing.T) {
	for _, c := range []struct {
		name     string
		min, max result.Bytes
		factor   float64
		step     result.Bytes
		want     []result.Bytes
	}{
		{"doubling", 8, 64, 2, 0, []result.Bytes{8, 16, 32, 64}},
		{"the end is not a step", 8, 63, 2, 0, []result.Bytes{8, 16, 32}},
		{"factor 1.5", 8, 40, 1.5, 0, []result.Bytes{8, 12, 18, 27, 40}},
		{"a factor that would stand still", 1, 5, 1.1, 0, []result.Bytes{1, 2, 3, 4, 5}},
		{"bytes", 100, 350, 0, 100, []result.Bytes{100, 200, 300}},
		{"one size", 7, 7, 2, 0, []result.Bytes{7}},
		{"one size without a step", 7, 7, 0, 0, []result.Bytes{7}},
		{"a step beyond the end", 8, 9, 0, math.MaxInt64, []result.Bytes{8}},
		{"up to the largest number", math.MaxInt64 - 1, math.MaxInt64, 0, 1, []result.Bytes{math.MaxInt64 - 1, math.MaxInt64}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := goodPlan()
			p.MinBytes, p.MaxBytes, p.StepFactor, p.StepBytes = c.min, c.max, c.factor, c.step
			got, err := p.Sizes()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	t.Run("a factor past the largest number", func(t *testing.T) {
		p := goodPlan()
		p.MinBytes, p.MaxBytes, p.StepFactor = 1<<61, math.MaxInt64, 3
		got, err := p.Sizes()
		if err != nil || !slices.Equal(got, []result.Bytes{1 << 61, 3 << 61}) {
			t.Errorf("%v, %v", got, err)
		}
	})
	t.Run("too many", func(t *testing.T) {
		p := goodPlan()
		p.MaxBytes, p.StepFactor, p.StepBytes = 1<<30, 0, 1
		if _, err := p.Sizes(); err == nil || !strings.Contains(err.Error(), "-i or -f") {
			t.Errorf("error %v", err)
		}
	})
}

// stepTexts are the rows to be, readable.
func stepTexts(p Plan, steps []step) []string {
	var out []string
	for _, s := range steps {
		l := s.coll.lay(p.shape(s.cell, 0, p.World), s.ask, s.dtype)
		out = append(out, strings.Join([]string{s.coll.name, s.dtype.String(), s.op.String(), digits(int64(l.count)), digits(int64(s.bytes))}, " "))
	}
	return out
}

func digits(n int64) string {
	var b []byte
	for ; n > 9; n /= 10 {
		b = append([]byte{byte('0' + n%10)}, b...)
	}
	return string(append([]byte{byte('0' + n)}, b...))
}

func TestSteps(t *testing.T) {
	p := goodPlan()
	p.Types, p.Ops = []string{"double", "int8"}, []string{"sum", "max"}
	p.MinBytes, p.MaxBytes, p.StepFactor, p.StepBytes = 4, 20, 0, 4
	steps, err := p.steps()
	if err != nil {
		t.Fatal(err)
	}
	// 4 bytes hold no double, 12 as many as 8, and 20 as many as 16.
	want := []string{
		"all_reduce double sum 1 8", "all_reduce double sum 2 16", "all_reduce double max 1 8", "all_reduce double max 2 16",
		"all_reduce int8 sum 4 4", "all_reduce int8 sum 8 8", "all_reduce int8 sum 12 12", "all_reduce int8 sum 16 16", "all_reduce int8 sum 20 20",
		"all_reduce int8 max 4 4", "all_reduce int8 max 8 8", "all_reduce int8 max 12 12", "all_reduce int8 max 16 16", "all_reduce int8 max 20 20",
	}
	if diff := cmp.Diff(want, stepTexts(p, steps)); diff != "" {
		t.Error(diff)
	}
}

// Each size is measured once, and no row is larger than asked for, whatever the factor.
func TestStepsWithoutRepeats(t *testing.T) {
	for _, factor := range []float64{1.0001, 1.1, 1.5, 2, 3.7, 1e300} {
		p := goodPlan()
		p.MaxBytes, p.StepFactor = 4000, factor
		for _, d := range nccl.DataTypes() {
			p.Types = []string{d.String()}
			steps, err := p.steps()
			if err != nil {
				t.Fatal(err)
			}
			last := result.Bytes(0)
			for _, s := range steps {
				l := s.coll.lay(p.shape(s.cell, 0, p.World), s.ask, s.dtype)
				if s.bytes <= last || s.bytes > p.MaxBytes || s.bytes > s.ask || s.bytes != l.bytes || int64(s.bytes) != int64(l.count)*int64(d.Size()) {
					t.Errorf("factor %g, %s: %d bytes (%d elements, %d asked for) after %d", factor, d, s.bytes, l.count, s.ask, last)
				}
				last = s.bytes
			}
		}
	}
}

func TestStepsWithoutAnElement(t *testing.T) {
	p := goodPlan()
	p.MinBytes, p.MaxBytes = 1, 3
	if steps, err := p.steps(); err == nil || len(steps) != 0 || !strings.Contains(err.Error(), "-e 3") {
		t.Errorf("%v, %v", stepTexts(p, steps), err)
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Plan)
		says   string // "": accepted
	}{
		{"good", func(*Plan) {}, ""},
		{"one size needs no step", func(p *Plan) { p.MaxBytes, p.StepFactor = 8, 0 }, ""},
		{"no warm-up, no check", func(p *Plan) { p.Warmup, p.Check = 0, 0 }, ""},
		{"most iterations", func(p *Plan) { p.Iters = MaxIters }, ""},
		{"no collective", func(p *Plan) { p.Collectives = nil }, "no collective"},
		{"unknown collective", func(p *Plan) { p.Collectives = []string{"all_reduce", "x"} }, `"x": use all_reduce`},
		{"no rank", func(p *Plan) { p.World = 0 }, "-g 0"},
		{"negative ranks", func(p *Plan) { p.World = -1 }, "-g -1"},
		{"no bytes", func(p *Plan) { p.MinBytes = 0 }, "-b 0"},
		{"end before begin", func(p *Plan) { p.MaxBytes = 7 }, "-e 7 is smaller than -b 8"},
		{"factor 1", func(p *Plan) { p.StepFactor = 1 }, "-f 1"},
		{"factor below 1", func(p *Plan) { p.StepFactor = 0.5 }, "-f 0.5"},
		{"negative factor", func(p *Plan) { p.StepFactor = -2 }, "-f -2"},
		{"factor NaN", func(p *Plan) { p.StepFactor = math.NaN() }, "-f NaN"},
		{"factor infinite", func(p *Plan) { p.StepFactor = math.Inf(1) }, "-f +Inf"},
		{"no step", func(p *Plan) { p.StepFactor = 0 }, "-i 0"},
		{"negative step", func(p *Plan) { p.StepFactor, p.StepBytes = 0, -4 }, "-i -4"},
		{"no iterations", func(p *Plan) { p.Iters = 0 }, "-n 0"},
		{"too many iterations", func(p *Plan) { p.Iters = MaxIters + 1 }, "-n 1000001"},
		{"negative warm-up", func(p *Plan) { p.Warmup = -1 }, "-w -1"},
		{"too much warm-up", func(p *Plan) { p.Warmup = MaxIters + 1 }, "-w 1000001"},
		{"negative checks", func(p *Plan) { p.Check = -1 }, "-c -1"},
		{"too many checks", func(p *Plan) { p.Check = 1001 }, "-c 1001"},
		{"no time", func(p *Plan) { p.Timeout = 0 }, "-T"},
		{"unknown type", func(p *Plan) { p.Types = []string{"float", "fp4"} }, `"fp4"`},
		{"unknown operator", func(p *Plan) { p.Ops = []string{"mean"} }, `"mean"`},
		{"no type", func(p *Plan) { p.Types = nil }, "no data type"},
		{"no operator", func(p *Plan) { p.Ops = nil }, "no data type or no operator"},
		// What cannot be run must be told before processes are started.
		{"too many sizes", func(p *Plan) { p.MaxBytes, p.StepFactor, p.StepBytes = 1<<30, 0, 1 }, "more than 10000 sizes"},
		{"no element", func(p *Plan) { p.MinBytes, p.MaxBytes = 1, 3 }, "-e 3 is too small"},
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

func TestSupported(t *testing.T) {
	for _, c := range []struct {
		name    string
		version nccl.Version
		compute int
		left    []string
		why     string
	}{
		{"new", 22800, 90, []string{"float", "f8e4m3", "f8e5m2"}, ""},
		{"first version", nccl.Since224, 100, []string{"float", "f8e4m3", "f8e5m2"}, ""},
		{"host engine", 22800, 0, []string{"float", "f8e4m3", "f8e5m2"}, ""},
		{"old library", 22304, 90, []string{"float"}, "2.23.4"},
		{"old GPU", 22800, 89, []string{"float"}, "8.9"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := goodPlan()
			asked := []string{"float", "f8e4m3", "f8e5m2"}
			p.Types = asked
			skipped := p.supported(c.version, c.compute)
			if diff := cmp.Diff(c.left, p.Types); diff != "" {
				t.Error(diff)
			}
			if len(skipped)+len(c.left) != 3 {
				t.Errorf("skipped %v", skipped)
			}
			for _, s := range skipped {
				if !strings.Contains(s.Why, c.why) || !strings.HasPrefix(s.What, "type f8") {
					t.Errorf("skipped %+v, want %q", s, c.why)
				}
			}
			if !slices.Equal(asked, []string{"float", "f8e4m3", "f8e5m2"}) {
				t.Errorf("the caller's list is changed: %v", asked)
			}
		})
	}
}
