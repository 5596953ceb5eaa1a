package costmodel

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
)

func close(a, b, rel float64) bool { return math.Abs(a-b) <= rel*math.Abs(b) }

func TestFactor(t *testing.T) {
	for _, c := range []struct {
		collective string
		n          int
		want       float64
	}{
		{"all_reduce", 2, 1}, {"all_reduce", 8, 1.75}, {"all_reduce", 1, 0},
		{"all_gather", 2, 0.5}, {"reduce_scatter", 8, 0.875}, {"alltoall", 4, 0.75}, {"alltoallv", 4, 0.75}, {"gather", 1, 0}, {"scatter", 5, 0.8},
		{"broadcast", 8, 1}, {"reduce", 8, 1}, {"sendrecv", 2, 1},
	} {
		if got, err := Factor(c.collective, c.n); err != nil || got != c.want {
			t.Errorf("Factor(%s, %d) = %v, %v, want %v", c.collective, c.n, got, err, c.want)
		}
	}
	for _, c := range Collectives() {
		if _, err := Factor(c, 4); err != nil {
			t.Errorf("listed, but: %v", err)
		}
	}
	if _, err := Factor("all_reduce", 0); err == nil {
		t.Error("a factor of no ranks")
	}
	if _, err := Factor("allreduce", 2); err == nil {
		t.Error("a factor of an unknown collective")
	}
}

func TestWorkedExamples(t *testing.T) {
	// 8 ranks, 1 GB, 25 GB/s one way, ring: 70 ms.
	if us := Time(8, 1e9, 0, 25); !close(us, 70e3, 1e-12) {
		t.Errorf("8 ranks, 1 GB, 25 GB/s: %v µs, want 70000", us)
	}
	// 64 KiB there: 14 steps of 3 µs and 4.6 µs of bandwidth.
	if us := Time(8, 65536, 3, 25); !close(us, 14*3+1.75*65536/25e3, 1e-12) {
		t.Errorf("8 ranks, 64 KiB: %v µs", us)
	}
	m, err := New("all_reduce", Ring, 8, 3, 400)
	if err != nil {
		t.Fatal(err)
	}
	if !close(m.KneeBytes(), 9.6e6, 1e-12) {
		t.Errorf("knee %v, want n·α·β = 9.6e6", m.KneeBytes())
	}
	if !close(m.BusBW(m.KneeBytes()), 200, 1e-12) {
		t.Errorf("busbw at the knee %v, want half of 400", m.BusBW(m.KneeBytes()))
	}
	if nine := m.BytesAt(0.9); !close(nine, 9*9.6e6, 1e-9) || !close(m.BusBW(nine), 360, 1e-9) {
		t.Errorf("90 %% of the plateau at %v: busbw %v", nine, m.BusBW(nine))
	}
	if !close(m.PlateauGBps(), 400, 1e-12) || !close(m.BusBW(1e15), 400, 1e-3) {
		t.Errorf("plateau %v, busbw of a huge message %v", m.PlateauGBps(), m.BusBW(1e15))
	}
}

func TestTerms(t *testing.T) {
	for _, c := range []struct {
		collective     string
		algo           Algorithm
		n              int
		steps, traffic float64
	}{
		{"all_reduce", Ring, 4, 6, 1.5}, {"all_gather", Ring, 4, 3, 0.75}, {"reduce_scatter", Ring, 4, 3, 0.75}, {"broadcast", Ring, 4, 3, 1},
		{"alltoall", Ring, 4, 3, 0.75}, {"sendrecv", Ring, 4, 1, 1}, {"all_reduce", Tree, 8, 6, 4}, {"all_reduce", DoubleTree, 8, 6, 2},
		{"all_reduce", DoubleTree, 6, 6, 2}, {"reduce", Tree, 8, 3, 2}, {"broadcast", DoubleTree, 8, 3, 1}, {"all_reduce", Ring, 1, 0, 0},
	} {
		steps, traffic, err := Terms(c.collective, c.algo, c.n)
		if err != nil || steps != c.steps || traffic != c.traffic {
			t.Errorf("Terms(%s, %s, %d) = %v, %v, %v, want %v, %v", c.collective, c.algo, c.n, steps, traffic, err, c.steps, c.traffic)
		}
	}
	for _, c := range []struct {
		collective string
		algo       Algorithm
		n          int
	}{{"all_gather", Tree, 4}, {"all_reduce", "star", 4}, {"all_reduce", Ring, 0}, {"nonsense", Ring, 2}} {
		if _, _, err := Terms(c.collective, c.algo, c.n); err == nil {
			t.Errorf("Terms(%s, %s, %d): no error", c.collective, c.algo, c.n)
		}
	}
	// A ring wins for large messages, the tree for small ones on many ranks.
	ring, _ := New("all_reduce", Ring, 64, 10, 48)
	tree, _ := New("all_reduce", DoubleTree, 64, 10, 48)
	if !(tree.TimeUS(1024) < ring.TimeUS(1024)/5 && ring.TimeUS(1e10) < tree.TimeUS(1e10)) {
		t.Error("tree and ring compare the wrong way round")
	}
	one := Model{Collective: "all_reduce", Algorithm: Ring, N: 1, AlphaUS: 1, BetaGBps: 1}
	if one.TimeUS(8) != 0 || !math.IsNaN(one.BusBW(8)) || !math.IsNaN(one.KneeBytes()) || !math.IsNaN(one.PlateauGBps()) {
		t.Error("one rank has figures")
	}
	for _, bad := range [][2]float64{{-1, 1}, {math.NaN(), 1}, {1, 0}, {1, math.Inf(1)}} {
		if _, err := New("all_reduce", Ring, 2, bad[0], bad[1]); err == nil {
			t.Errorf("New with α %v, β %v: no error", bad[0], bad[1])
		}
	}
}

// curve makes points from 8 B to 4 GiB with relative noise.
func curve(m Model, noise float64, rng *rand.Rand) []Point {
	var points []Point
	for bytes := 8.0; bytes <= 1<<32; bytes *= 2 {
		points = append(points, Point{bytes, m.TimeUS(bytes) * (1 + noise*rng.NormFloat64())})
	}
	return points
}

func TestFitRecoversParameters(t *testing.T) {
	const seed = 7
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, collective := range []string{"all_reduce", "all_gather", "broadcast", "sendrecv"} {
		for _, n := range []int{2, 8, 64} {
			for _, p := range [][2]float64{{3, 400}, {10, 48}, {0.5, 5}} {
				truth, _ := New(collective, Ring, n, p[0], p[1])
				m, err := Fit(curve(truth, 0, rng), collective, Ring, n)
				if err != nil || !close(m.AlphaUS, p[0], 1e-6) || !close(m.BetaGBps, p[1], 1e-6) {
					t.Errorf("exact %s n=%d α=%v β=%v: got %v, %v, %v", collective, n, p[0], p[1], m.AlphaUS, m.BetaGBps, err)
				}
				if m.Fit == nil || m.Fit.RMSRel > 1e-9 || !m.Fit.AlphaSeen || !m.Fit.BetaSeen || m.Fit.Points != 30 {
					t.Errorf("exact %s n=%d: report %+v", collective, n, m.Fit)
				}
				for range 50 {
					m, err := Fit(curve(truth, 0.03, rng), collective, Ring, n)
					if err != nil || !close(m.AlphaUS, p[0], 0.05) || !close(m.BetaGBps, p[1], 0.05) {
						t.Errorf("seed %d: noisy %s n=%d α=%v β=%v: got %v, %v, %v", seed, collective, n, p[0], p[1], m.AlphaUS, m.BetaGBps, err)
					}
				}
			}
		}
	}
}

func TestFitIgnoresOutliers(t *testing.T) {
	const seed = 11
	rng := rand.New(rand.NewPCG(seed, 0))
	truth, _ := New("all_reduce", Ring, 8, 3, 400)
	for range 100 {
		points := curve(truth, 0.02, rng)
		points[rng.IntN(15)].TimeUS *= 3
		points[15+rng.IntN(14)].TimeUS *= 2
		points[29].TimeUS *= 0.4
		m, err := FitRing(points, 8)
		if err != nil || !close(m.AlphaUS, 3, 0.05) || !close(m.BetaGBps, 400, 0.05) || m.Fit.Outliers < 3 {
			t.Errorf("seed %d: α %v, β %v, %v, report %+v", seed, m.AlphaUS, m.BetaGBps, err, m.Fit)
		}
	}
}

func TestFitRefusesAndWarns(t *testing.T) {
	good := []Point{{8, 7}, {1 << 20, 20}, {1 << 30, 3000}}
	if _, err := FitRing(good, 2); err != nil {
		t.Errorf("three points: %v", err)
	}
	for name, points := range map[string][]Point{
		"none": nil, "two": good[:2], "one size thrice": {{8, 7}, {8, 7.1}, {8, 6.9}, {16, 7}},
		"unusable": {{8, 7}, {16, 0}, {32, math.NaN()}, {0, 7}, {64, math.Inf(1)}, {128, 7}},
	} {
		if _, err := FitRing(points, 2); !errors.Is(err, ErrTooFewPoints) {
			t.Errorf("%s: %v, want ErrTooFewPoints", name, err)
		}
	}
	if _, err := FitRing([]Point{{8, 9}, {1024, 8}, {65536, 7}}, 2); !errors.Is(err, ErrNoBandwidth) {
		t.Errorf("falling times: %v, want ErrNoBandwidth", err)
	}
	if _, err := FitRing(good, 1); err == nil {
		t.Error("a fit of one rank")
	}
	// Only large messages: α may not be claimed. Only small ones: β may not.
	truth, _ := New("all_reduce", Ring, 8, 3, 400)
	all := curve(truth, 0, rand.New(rand.NewPCG(1, 1)))
	if m, err := FitRing(all[26:], 8); err != nil || m.Fit.AlphaSeen || !m.Fit.BetaSeen {
		t.Errorf("only large: %v, %+v", err, m.Fit)
	}
	if m, err := FitRing(all[:16], 8); err != nil || !m.Fit.AlphaSeen || m.Fit.BetaSeen {
		t.Errorf("only small: %v, %+v", err, m.Fit)
	}
	// A line through the origin and below: α stays at 0.
	if m, err := FitRing([]Point{{1e6, 1}, {2e6, 3}, {4e6, 7}, {8e6, 15}}, 2); err != nil || m.AlphaUS < 0 || !(m.BetaGBps > 0) {
		t.Errorf("negative intercept: α %v, β %v, %v", m.AlphaUS, m.BetaGBps, err)
	}
}

// Two H200 over NVLink, NCCL 2.28.9, one process a GPU, in-place (our run, nccl-tests 2.19.6): a real curve is no line, but the parameters must
// be those that one reads off it: about 6.8 µs at the left end, 315 GB/s at the right end.
func TestFitOfRealCurve(t *testing.T) {
	bytes, times := 8.0, []float64{6.64, 6.65, 6.75, 6.88, 6.80, 6.93, 6.99, 7.56, 10.46, 29.26, 48.29, 138.01, 468.67, 1699.57}
	var points []Point
	for _, us := range times {
		points = append(points, Point{bytes, us})
		bytes *= 4
	}
	m, err := FitRing(points, 2)
	if err != nil {
		t.Fatal(err)
	}
	if !close(2*m.AlphaUS, 6.8, 0.05) || m.BetaGBps < 230 || m.BetaGBps > 345 {
		t.Errorf("α %v µs, β %v GB/s, report %+v", m.AlphaUS, m.BetaGBps, m.Fit)
	}
	t.Logf("α %.2f µs, β %.1f GB/s, knee %.0f bytes, %d outliers, rms %.3f", m.AlphaUS, m.BetaGBps, m.KneeBytes(), m.Fit.Outliers, m.Fit.RMSRel)
}
