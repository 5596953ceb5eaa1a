package stat

import (
	"math"
	"slices"

	"github.com/commprobe/commprobe/bench/result"
)

// Mode is one group of runs: its median in microseconds, its size and its share of all runs.
type Mode = result.Mode

const (
	maxModes  = 3
	minGap    = 0.08 // of the median of all runs: a smaller difference is not worth a name
	minGapFew = 0.25 // below fewRuns runs, where the spread inside a group is hardly known
	fewRuns   = 5
)

// Modes splits the results of runs into at most three groups, ascending, when they are clearly apart; one entry says that the runs agree.
// Nil without values.
//
// The candidates are the cuts at the one or two largest gaps of the sorted values. A cut counts when each gap is over 8 % of the median of
// all runs and over k times the standard deviation inside the groups (pooled, divisor n − groups). k = 3.5 + 12/n, and 1.6 times that
// where a group is a single run: set by simulation, so that five or more runs from one normal or log-normal distribution with a spread of 3 %
// are split in less than 0.5 % of cases (spread 30 %: 12 % at five runs, 3 % at eight, under 1.5 % from ten on), while 7.5 ± 0.2 and
// 10.7 ± 0.3 are told apart in 98 % of cases at seven runs. Below five runs a gap must be over 25 % of the median and over three times
// the widest group: then it only says that the runs differ, not that they would fall into the same groups again.
func Modes(times []float64) []Mode {
	if len(times) == 0 {
		return nil
	}
	s := sorted(times)
	for groups := min(maxModes, len(s)); groups > 1; groups-- {
		if cuts := largestGaps(s, groups-1); clearlyApart(s, cuts) {
			return modesOf(s, cuts)
		}
	}
	return modesOf(s, nil)
}

// largestGaps returns the indices, ascending, that begin a new group when s is cut at its k widest gaps.
func largestGaps(s []float64, k int) []int {
	cuts := make([]int, 0, len(s)-1)
	for i := 1; i < len(s); i++ {
		cuts = append(cuts, i)
	}
	slices.SortStableFunc(cuts, func(a, b int) int {
		ga, gb := s[a]-s[a-1], s[b]-s[b-1]
		switch {
		case ga > gb:
			return -1
		case ga < gb:
			return 1
		}
		return 0
	})
	cuts = cuts[:k]
	slices.Sort(cuts)
	return cuts
}

func split(s []float64, cuts []int) [][]float64 {
	var groups [][]float64
	from := 0
	for _, c := range cuts {
		groups = append(groups, s[from:c])
		from = c
	}
	return append(groups, s[from:])
}

func clearlyApart(s []float64, cuts []int) bool {
	gap := math.Inf(1)
	for _, c := range cuts {
		gap = min(gap, s[c]-s[c-1])
	}
	groups := split(s, cuts)
	within, widest, smallest := 0.0, 0.0, len(s)
	for _, g := range groups {
		smallest = min(smallest, len(g))
		within += sumSquares(g)
		widest = max(widest, g[len(g)-1]-g[0])
	}
	median := math.Abs(medianSorted(s))
	if len(s) < fewRuns {
		// Three singletons of three runs are no groups; two runs far apart are two facts.
		return len(groups) == 2 && gap > minGapFew*median && gap > 3*widest
	}
	freedom := len(s) - len(groups)
	if freedom < 1 {
		return false
	}
	return gap > minGap*median && gap > gapFactor(len(s), smallest)*math.Sqrt(within/float64(freedom))
}

// gapFactor is k of Modes for n runs: the spread estimated from few runs is itself uncertain, hence the second term. Noise splits off single
// runs far more often than pairs, hence the higher bar for them.
func gapFactor(n, smallest int) float64 {
	k := 3.5 + 12/float64(n)
	if smallest == 1 {
		k *= 1.6
	}
	return k
}

func modesOf(s []float64, cuts []int) []Mode {
	groups := split(s, cuts)
	modes := make([]Mode, 0, len(groups))
	for _, g := range groups {
		modes = append(modes, Mode{
			MedianUS: result.Micros(medianSorted(g)),
			Runs:     len(g),
			Share:    float64(len(g)) / float64(len(s)),
		})
	}
	return modes
}
