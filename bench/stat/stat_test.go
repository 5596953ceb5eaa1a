package stat

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestPercentileNearestRank(t *testing.T) {
	twenty := make([]float64, 20)
	for i := range twenty {
		twenty[i] = float64(20 - i) // 20 … 1, unsorted on purpose
	}
	for _, c := range []struct {
		values []float64
		p      float64
		want   float64
	}{
		{twenty, 95, 19}, {twenty, 99, 20}, {twenty, 50, 10}, {twenty, 100, 20}, {twenty, 0.1, 1},
		{[]float64{15, 20, 35, 40, 50}, 30, 20}, {[]float64{15, 20, 35, 40, 50}, 40, 20}, {[]float64{7}, 99, 7},
	} {
		if got := Percentile(c.values, c.p); got != c.want {
			t.Errorf("Percentile(%v, %v) = %v, want %v", c.values, c.p, got, c.want)
		}
	}
	for _, bad := range []float64{0, -1, 100.5, math.NaN()} {
		if got := Percentile(twenty, bad); !math.IsNaN(got) {
			t.Errorf("Percentile(…, %v) = %v, want NaN", bad, got)
		}
	}
	if got := Percentile(nil, 50); !math.IsNaN(got) {
		t.Errorf("Percentile(nil) = %v, want NaN", got)
	}
	if twenty[0] != 20 {
		t.Error("Percentile reordered its argument")
	}
}

func TestMomentsAndMedian(t *testing.T) {
	v := []float64{2, 4, 4, 4, 5, 5, 7, 9}
	if Mean(v) != 5 || PopulationStdev(v) != 2 || Median(v) != 4.5 {
		t.Errorf("mean %v, population stdev %v, median %v, want 5, 2, 4.5", Mean(v), PopulationStdev(v), Median(v))
	}
	if want := math.Sqrt(32.0 / 7); SampleStdev(v) != want {
		t.Errorf("sample stdev %v, want %v", SampleStdev(v), want)
	}
	if Median([]float64{3, 1, 2}) != 2 {
		t.Error("median of three is not the middle one")
	}
	for name, got := range map[string]float64{
		"Mean": Mean(nil), "Median": Median(nil), "PopulationStdev": PopulationStdev(nil), "SampleStdev of one": SampleStdev([]float64{1}),
	} {
		if !math.IsNaN(got) {
			t.Errorf("%s without enough values = %v, want NaN", name, got)
		}
	}
}

func TestSummaryLeavesOutWhatTheSampleIsTooSmallFor(t *testing.T) {
	series := func(n int) []float64 {
		s := make([]float64, n)
		for i := range s {
			s[i] = float64(i + 1)
		}
		return s
	}
	if Summary(nil) != nil {
		t.Error("a summary of nothing")
	}
	if s := Summary(series(19)); s.P95US != nil || s.P99US != nil || s.N != 19 || s.P50US != 10 || s.MinUS != 1 || s.MaxUS != 19 {
		t.Errorf("19 samples: %+v", *s)
	}
	if s := Summary(series(20)); s.P95US == nil || *s.P95US != 19 || s.P99US != nil {
		t.Errorf("20 samples: %+v", *s)
	}
	if s := Summary(series(100)); s.P99US == nil || *s.P99US != 99 || *s.P95US != 95 || s.MeanUS != 50.5 {
		t.Errorf("100 samples: %+v", *s)
	}
}

func TestMedianInterval(t *testing.T) {
	ten := []float64{10, 9, 8, 7, 6, 5, 4, 3, 2, 1}
	if got := MedianInterval(ten[:5], 0.95); got != nil {
		t.Errorf("five values reach 95 %%: %+v", got)
	}
	// Published table values: n = 6 → ranks 1 and 6, 96.9 %; n = 10 → ranks 2 and 9, 97.9 %; n = 20 → ranks 6 and 15, 95.9 %.
	if got := MedianInterval(ten[4:], 0.95); got == nil || got.Lo != 1 || got.Hi != 6 || math.Abs(got.Confidence-0.96875) > 1e-9 {
		t.Errorf("n = 6: %+v", got)
	}
	if got := MedianInterval(ten, 0.95); got == nil || got.Lo != 2 || got.Hi != 9 || math.Abs(got.Confidence-0.978515625) > 1e-9 {
		t.Errorf("n = 10: %+v", got)
	}
	twenty := make([]float64, 20)
	for i := range twenty {
		twenty[i] = float64(i + 1)
	}
	if got := MedianInterval(twenty, 0.95); got == nil || got.Lo != 6 || got.Hi != 15 || math.Abs(got.Confidence-0.9586) > 1e-4 {
		t.Errorf("n = 20: %+v", got)
	}
	if MedianInterval(nil, 0.95) != nil || MedianInterval(ten, 1) != nil || MedianInterval(ten, 0) != nil {
		t.Error("an interval without values or with an impossible confidence")
	}
	big := make([]float64, 20001)
	for i := range big {
		big[i] = float64(i)
	}
	if got := MedianInterval(big, 0.95); got == nil || got.Confidence < 0.95 || got.Confidence > 0.96 || got.Hi-got.Lo > 300 {
		t.Errorf("n = 20001: %+v", got)
	}
}

func TestModesKnownGroups(t *testing.T) {
	for _, c := range []struct {
		name  string
		times []float64
		want  []int // runs a group
	}{
		{"none", nil, nil},
		{"one", []float64{7.5}, []int{1}},
		{"tight", []float64{7.5, 7.6, 7.4, 7.55, 7.45, 7.5}, []int{6}},
		{"equal", []float64{7, 7, 7, 7, 7}, []int{5}},
		{"two clusters", []float64{7.5, 10.7, 7.3, 7.7, 10.9, 7.45, 7.6}, []int{5, 2}},
		{"two clusters without spread", []float64{7, 7, 7, 9, 9, 9}, []int{3, 3}},
		{"three clusters", []float64{5, 5.1, 5.05, 9.9, 10, 10.1, 15, 15.1, 15.05}, []int{3, 3, 3}},
		{"outlier of six", []float64{7.5, 7.6, 7.4, 7.5, 7.55, 30}, []int{5, 1}},
		{"steps of 5 %", []float64{10, 10.01, 10.02, 10.5, 10.51, 10.52}, []int{6}},
		{"two runs apart", []float64{7.5, 10.7}, []int{1, 1}},
		{"two runs alike", []float64{7.5, 8.1}, []int{2}},
		{"three runs, one apart", []float64{7.5, 7.6, 10.7}, []int{2, 1}},
		{"three runs anywhere", []float64{7, 9, 12}, []int{3}},
		{"zero", []float64{0, 0, 0, 0, 0, 0}, []int{6}},
	} {
		var got []int
		share, last := 0.0, math.Inf(-1)
		for _, m := range Modes(c.times) {
			got = append(got, m.Runs)
			share += m.Share
			if float64(m.MedianUS) <= last {
				t.Errorf("%s: groups not ascending", c.name)
			}
			last = float64(m.MedianUS)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: groups of %v, want %v", c.name, got, c.want)
		}
		if len(c.want) > 0 && math.Abs(share-1) > 1e-9 {
			t.Errorf("%s: shares add up to %v", c.name, share)
		}
	}
	two := Modes([]float64{7.5, 10.7, 7.3, 7.7, 10.9, 7.45, 7.6})
	if two[0].MedianUS != 7.5 || math.Abs(float64(two[1].MedianUS)-10.8) > 1e-9 || math.Abs(two[0].Share-5.0/7) > 1e-9 {
		t.Errorf("two clusters: %+v", two)
	}
}

func TestModesOfNoiseIsOne(t *testing.T) {
	const seed, draws = 20261129, 3000
	rng := rand.New(rand.NewPCG(seed, 1))
	for name, draw := range map[string]func() float64{
		"normal":     func() float64 { return 10 * (1 + 0.03*rng.NormFloat64()) },
		"log-normal": func() float64 { return 10 * math.Exp(0.03*rng.NormFloat64()) },
	} {
		for _, n := range []int{2, 3, 4, 5, 6, 7, 10, 20, 50} {
			splits := 0
			times := make([]float64, n)
			for range draws {
				for i := range times {
					times[i] = draw()
				}
				if len(Modes(times)) > 1 {
					splits++
				}
			}
			if rate := float64(splits) / draws; rate > 0.01 {
				t.Errorf("seed %d: %s noise of 3 %%, %d runs: split in %.2f %% of draws", seed, name, n, 100*rate)
			}
		}
	}
}

func TestModesFindsTwoClusters(t *testing.T) {
	const seed, draws = 20261129, 1000
	rng := rand.New(rand.NewPCG(seed, 2))
	for _, n := range []int{7, 10, 20, 50} {
		found, second := 0, max(2, n*3/10)
		times := make([]float64, n)
		for range draws {
			for i := range times {
				times[i] = 7.5 + 0.2*rng.NormFloat64()
				if i < second {
					times[i] = 10.7 + 0.3*rng.NormFloat64()
				}
			}
			if m := Modes(times); len(m) == 2 && m[1].Runs == second {
				found++
			}
		}
		if float64(found) < 0.95*draws {
			t.Errorf("seed %d: %d runs: found both groups in %d of %d draws", seed, n, found, draws)
		}
	}
}
