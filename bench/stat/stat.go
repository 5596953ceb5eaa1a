// Package stat holds the small statistics of a measurement: percentiles, summaries, groups of runs, the interval of a median.
//
// Every function takes finite values in any order and leaves its argument as it was. Values are times in microseconds where a doc comment
// names no other unit. No function guesses: what the sample is too small for is absent (nil or NaN).
package stat

import (
	"math"
	"slices"

	"github.com/commprobe/commprobe/bench/result"
)

// Fewest samples with which a percentile says something: below them P95 or P99 would only be another name for the maximum.
const (
	MinSamplesP95 = 20
	MinSamplesP99 = 100
)

func sorted(values []float64) []float64 {
	s := slices.Clone(values)
	slices.Sort(s)
	return s
}

// Percentile returns the p-th percentile, 0 < p ≤ 100, by nearest rank: the smallest value with at least p % of all values at or below it
// (ISO 3534-1 sample quantile without interpolation; the rule of nccl-tests' p95 and p99). NaN without values or with p out of range.
func Percentile(values []float64, p float64) float64 {
	return percentileSorted(sorted(values), p)
}

func percentileSorted(s []float64, p float64) float64 {
	if len(s) == 0 || !(p > 0 && p <= 100) {
		return math.NaN()
	}
	// The small term keeps 95 % of 20 at rank 19: 0.95·20 is not exact in binary.
	rank := int(math.Ceil(p/100*float64(len(s)) - 1e-9))
	return s[min(max(rank, 1), len(s))-1]
}

// Median returns the middle value, or the mean of the two middle values of an even number. NaN without values.
func Median(values []float64) float64 {
	return medianSorted(sorted(values))
}

func medianSorted(s []float64) float64 {
	n := len(s)
	if n == 0 {
		return math.NaN()
	}
	if n%2 == 1 {
		return s[n/2]
	}
	return s[n/2-1] + (s[n/2]-s[n/2-1])/2
}

// Mean returns the arithmetic mean. NaN without values.
func Mean(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// PopulationStdev returns the standard deviation with divisor n: the spread of exactly these values. nccl-tests prints this one.
// NaN without values.
func PopulationStdev(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	return math.Sqrt(sumSquares(values) / float64(len(values)))
}

// SampleStdev returns the standard deviation with divisor n−1: the estimate for what the values were drawn from. NaN below two values.
func SampleStdev(values []float64) float64 {
	if len(values) < 2 {
		return math.NaN()
	}
	return math.Sqrt(sumSquares(values) / float64(len(values)-1))
}

// sumSquares returns the sum of squared distances from the mean, in two passes.
func sumSquares(values []float64) float64 {
	mean, sum := Mean(values), 0.0
	for _, v := range values {
		sum += (v - mean) * (v - mean)
	}
	return sum
}

// Summary summarises per-iteration times in microseconds: percentiles by nearest rank, population standard deviation, P95 from 20 samples
// on and P99 from 100 on. Nil without values.
func Summary(times []float64) *result.IterStats {
	if len(times) == 0 {
		return nil
	}
	s := sorted(times)
	st := &result.IterStats{
		N:       len(s),
		MinUS:   result.Micros(s[0]),
		P50US:   result.Micros(percentileSorted(s, 50)),
		MaxUS:   result.Micros(s[len(s)-1]),
		MeanUS:  result.Micros(Mean(s)),
		StdevUS: result.Micros(PopulationStdev(s)),
	}
	if len(s) >= MinSamplesP95 {
		p95 := result.Micros(percentileSorted(s, 95))
		st.P95US = &p95
	}
	if len(s) >= MinSamplesP99 {
		p99 := result.Micros(percentileSorted(s, 99))
		st.P99US = &p99
	}
	return st
}

// Interval is a confidence interval of a median, in the unit of the values.
type Interval struct {
	Lo, Hi     float64
	Confidence float64 // reached, 0 … 1: at least the one asked for
}

// MedianInterval returns the narrowest symmetric pair of order statistics that holds the median with at least the given confidence
// (0 < confidence < 1), whatever the distribution: the number of values below the median is binomial with p = ½, so
// P(x(j) ≤ median ≤ x(n+1−j)) = 1 − 2·P(B(n, ½) ≤ j−1) (David and Nagaraja, Order Statistics, §7.1). Nil when even the whole range does
// not reach the confidence: 95 % needs 6 values.
func MedianInterval(values []float64, confidence float64) *Interval {
	n := len(values)
	if n == 0 || !(confidence > 0 && confidence < 1) {
		return nil
	}
	s := sorted(values)
	lnFact := func(k int) float64 { v, _ := math.Lgamma(float64(k) + 1); return v }
	var found *Interval
	tail := 0.0 // P(B ≤ j−1)
	for j := 1; j <= (n+1)/2; j++ {
		k := j - 1
		tail += math.Exp(lnFact(n) - lnFact(k) - lnFact(n-k) - float64(n)*math.Ln2)
		reached := 1 - 2*tail
		if reached < confidence {
			break
		}
		found = &Interval{Lo: s[j-1], Hi: s[n-j], Confidence: reached}
	}
	return found
}
