package costmodel

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Point is one measured size.
type Point struct {
	Bytes  float64
	TimeUS float64 // microseconds an operation
}

// MinPoints is the least number of different sizes for a fit: two determine the line, the third shows whether it is one.
const MinPoints = 3

// Errors of Fit and FitRing, for errors.Is.
var (
	ErrTooFewPoints = errors.New("too few points for a fit")
	ErrNoBandwidth  = errors.New("time does not grow with size: the bandwidth cannot be told from these points")
)

// Report says how a fitted line and its points agree.
type Report struct {
	Points       int        // used
	Dropped      int        // not used: time or size not a positive number
	Outliers     int        // used with less than half of their weight
	RMSRel       float64    // root mean square of the weighted relative residuals, 0.05 = 5 %
	MedianAbsRel float64    // median of |relative residual| over all points
	MaxAbsRel    float64    // largest |relative residual|
	MaxAtBytes   float64    // where that is
	AlphaSeen    bool       // latency is at least a third of the time at the smallest size; else α is extrapolated
	BetaSeen     bool       // bandwidth is at least half of the time at the largest size; else β is extrapolated
	Residuals    []Residual // ascending by size
}

// Residual is one point beside the line.
type Residual struct {
	Bytes   float64
	TimeUS  float64 // measured
	ModelUS float64 // predicted
	Rel     float64 // (measured − predicted)/measured
	Weight  float64 // 0 … 1, what the last pass left of its weight
}

// FitRing fits α and β of a ring all_reduce over n ranks: Fit with "all_reduce" and Ring.
func FitRing(points []Point, n int) (Model, error) {
	return Fit(points, "all_reduce", Ring, n)
}

// Fit finds α ≥ 0 and β > 0 for which steps·α + traffic·S/β is closest to the measured times.
//
// Closest is in relative error, since times span four decades and noise is a share of the time: weighted least squares with weight 1/T², then
// iteratively reweighted so that sizes off the line (a protocol switch, a disturbed row) count less: first Huber's weight, which
// always converges, then Tukey's bisquare, which lets far points go altogether (P. Huber, Robust Statistics, 1981, ch. 7; constants 1.345 and
// 4.685 give 95 % efficiency for normal noise). The spread is the scaled median of absolute residuals.
//
// The model's Fit holds the residuals; look at AlphaSeen and BetaSeen before printing a parameter. Errors: ErrTooFewPoints below MinPoints
// different usable sizes, ErrNoBandwidth, one rank, and those of Terms.
func Fit(points []Point, collective string, algo Algorithm, n int) (Model, error) {
	steps, traffic, err := Terms(collective, algo, n)
	if err != nil {
		return Model{}, fmt.Errorf("fit: %w", err)
	}
	if n < 2 {
		return Model{}, fmt.Errorf("fit: %s over one rank moves no data", collective)
	}
	used := usable(points)
	if sizes := distinctSizes(used); sizes < MinPoints {
		return Model{}, fmt.Errorf("fit: %d different sizes with a time, need %d: %w", sizes, MinPoints, ErrTooFewPoints)
	}
	line, weights := robustLine(used)
	if !(line.slope > 0) {
		return Model{}, fmt.Errorf("fit: %w; measure larger sizes", ErrNoBandwidth)
	}
	m := Model{
		Collective: collective, Algorithm: algo, N: n,
		AlphaUS:  line.base / steps,
		BetaGBps: traffic / line.slope / bytesPerUS,
	}
	m.Fit = report(used, weights, line, len(points)-len(used))
	return m, nil
}

// line is T = base + slope·S, microseconds and microseconds a byte, both ≥ 0.
type line struct{ base, slope float64 }

func (l line) at(bytes float64) float64 { return l.base + l.slope*bytes }

func usable(points []Point) []Point {
	used := slices.DeleteFunc(slices.Clone(points), func(p Point) bool {
		return !(p.Bytes > 0 && p.TimeUS > 0) || math.IsInf(p.Bytes, 0) || math.IsInf(p.TimeUS, 0)
	})
	slices.SortStableFunc(used, func(a, b Point) int {
		if a.Bytes < b.Bytes {
			return -1
		} else if a.Bytes > b.Bytes {
			return 1
		}
		return 0
	})
	return used
}

func distinctSizes(sortedPoints []Point) int {
	n := 0
	for i, p := range sortedPoints {
		if i == 0 || p.Bytes != sortedPoints[i-1].Bytes {
			n++
		}
	}
	return n
}

// robustLine runs the reweighting; weights are the last ones, without the factor 1/T².
func robustLine(points []Point) (line, []float64) {
	weights := make([]float64, len(points))
	for i := range weights {
		weights[i] = 1
	}
	l := weightedLine(points, weights)
	for pass := range 60 {
		scale := residualScale(points, l)
		if scale < 1e-12 {
			break // exact
		}
		for i, p := range points {
			weights[i] = robustWeight(relResidual(p, l)/scale, pass >= 30)
		}
		next := weightedLine(points, weights)
		settled := near(next.base, l.base) && near(next.slope, l.slope)
		l = next
		if settled && pass >= 30 {
			break
		}
	}
	return l, weights
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-10*math.Abs(b) }

func relResidual(p Point, l line) float64 { return (p.TimeUS - l.at(p.Bytes)) / p.TimeUS }

// residualScale is the median absolute relative residual, scaled to the standard deviation of normal noise.
func residualScale(points []Point, l line) float64 {
	abs := make([]float64, len(points))
	for i, p := range points {
		abs[i] = math.Abs(relResidual(p, l))
	}
	return 1.4826 * median(abs)
}

// robustWeight is Huber's weight of a scaled residual, or Tukey's bisquare.
func robustWeight(u float64, bisquare bool) float64 {
	u = math.Abs(u)
	if bisquare {
		const c = 4.685
		if u >= c {
			return 0
		}
		w := 1 - (u/c)*(u/c)
		return w * w
	}
	const k = 1.345
	return min(1, k/max(u, k))
}

// weightedLine minimises Σ w·((T − base − slope·S)/T)² over base, slope ≥ 0. With x = 1/T and y = S/T that is 1 = base·x + slope·y.
func weightedLine(points []Point, weights []float64) line {
	size := points[len(points)-1].Bytes // scales y, so that the two columns are of one order
	var xx, xy, yy, x1, y1 float64
	for i, p := range points {
		w, x, y := weights[i], 1/p.TimeUS, p.Bytes/size/p.TimeUS
		xx += w * x * x
		xy += w * x * y
		yy += w * y * y
		x1 += w * x
		y1 += w * y
	}
	det := xx*yy - xy*xy
	if det > 1e-14*xx*yy {
		base, slope := (x1*yy-y1*xy)/det, (y1*xx-x1*xy)/det
		if base >= 0 && slope >= 0 {
			return line{base, slope / size}
		}
	}
	// The unconstrained best has a negative parameter: the best allowed one lies on that edge.
	flat, steep := line{base: x1 / xx}, line{slope: y1 / yy / size}
	if cost(points, weights, flat) < cost(points, weights, steep) {
		return flat
	}
	return steep
}

func cost(points []Point, weights []float64, l line) float64 {
	sum := 0.0
	for i, p := range points {
		r := relResidual(p, l)
		sum += weights[i] * r * r
	}
	return sum
}

func report(points []Point, weights []float64, l line, dropped int) *Report {
	r := &Report{Points: len(points), Dropped: dropped}
	abs := make([]float64, 0, len(points))
	sum, total := 0.0, 0.0
	for i, p := range points {
		rel := relResidual(p, l)
		r.Residuals = append(r.Residuals, Residual{Bytes: p.Bytes, TimeUS: p.TimeUS, ModelUS: l.at(p.Bytes), Rel: rel, Weight: weights[i]})
		abs = append(abs, math.Abs(rel))
		sum += weights[i] * rel * rel
		total += weights[i]
		if weights[i] < 0.5 {
			r.Outliers++
		}
		if math.Abs(rel) >= r.MaxAbsRel {
			r.MaxAbsRel, r.MaxAtBytes = math.Abs(rel), p.Bytes
		}
	}
	if total > 0 {
		r.RMSRel = math.Sqrt(sum / total)
	}
	r.MedianAbsRel = median(abs)
	first, last := points[0].Bytes, points[len(points)-1].Bytes
	r.AlphaSeen = l.base >= l.at(first)/3
	r.BetaSeen = l.slope*last >= l.at(last)/2
	return r
}

func median(values []float64) float64 {
	s := slices.Clone(values)
	slices.Sort(s)
	n := len(s)
	if n == 0 {
		return 0
	}
	return (s[(n-1)/2] + s[n/2]) / 2
}
