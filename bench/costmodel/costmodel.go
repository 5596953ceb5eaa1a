// Package costmodel predicts the time of a collective from latency and bandwidth, and finds both from a measured curve.
//
// The model is Hockney's (R. Hockney, Parallel Computing 20, 1994): a message of S bytes takes T = α + S/β. α (alpha) is the latency of one
// step in microseconds, β (beta) the bandwidth of one rank in one direction in GB/s (10^9 bytes a second). An algorithm is two numbers: how
// many steps it takes one after the other, and how many times S each rank's link carries, so that T = steps·α + traffic·S/β.
package costmodel

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Algorithm names how a collective moves its data.
type Algorithm string

const (
	// Ring sends pieces around a ring; for alltoall, gather, scatter and sendrecv the name stands for their direct exchange.
	Ring Algorithm = "ring"
	// Tree is a plain binary tree, pipelined: an inner node receives from two children, so half the bandwidth of the double tree.
	Tree Algorithm = "tree"
	// DoubleTree is two complementary binary trees with half of the data each, as NCCL builds them (Sanders, Speck and Träff, Parallel
	// Computing 35, 2009): the inner nodes of one are the leaves of the other.
	DoubleTree Algorithm = "double-tree"
)

// Collectives lists the names that this package knows, as the sweep command spells them.
func Collectives() []string {
	return []string{"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall", "gather", "scatter", "sendrecv"}
}

// Factor returns busbw/algbw of a collective over n ranks: what makes the figure comparable with the bandwidth of a link. With S the size
// that nccl-tests prints, each rank's link must carry at least factor·S bytes in one direction:
//
//   - all_reduce 2(n−1)/n: a reduce_scatter and an all_gather, each of n−1 pieces of S/n through every link.
//   - all_gather, reduce_scatter, alltoall, gather, scatter (n−1)/n: of S bytes in all, a rank's own S/n does not travel.
//   - broadcast, reduce, sendrecv 1: every byte crosses each link once.
//
// With one rank nothing travels and the first two kinds give 0. Source: nccl-tests, doc/PERFORMANCE.md. An unknown collective or n < 1 is an
// error. alltoallv counts as alltoall.
func Factor(collective string, n int) (float64, error) {
	if n < 1 {
		return 0, fmt.Errorf("factor of %s: %d ranks, need at least 1", collective, n)
	}
	part := float64(n-1) / float64(n)
	switch collective {
	case "all_reduce":
		return 2 * part, nil
	case "all_gather", "reduce_scatter", "alltoall", "alltoallv", "gather", "scatter":
		return part, nil
	case "broadcast", "reduce", "sendrecv":
		return 1, nil
	}
	return 0, fmt.Errorf("factor: no collective %q; known: %s", collective, strings.Join(Collectives(), ", "))
}

// Terms returns the two numbers of an algorithm over n ranks: steps, the count of α, and traffic, the count of S/β.
//
//	ring         all_reduce 2(n−1), 2(n−1)/n · all_gather, reduce_scatter, alltoall, gather, scatter n−1, (n−1)/n
//	             broadcast, reduce n−1, 1 (pipelined) · sendrecv 1, 1
//	tree         all_reduce 2·log2 n, 4 · broadcast, reduce log2 n, 2
//	double-tree  all_reduce 2·log2 n, 2 · broadcast, reduce log2 n, 1
//
// log2 n is rounded up: the depth of the tree. The trees' traffic is that of many ranks; with two ranks there are no inner nodes and a tree
// does better than this. One rank has no steps and no traffic. Source: R. Thakur, R. Rabenseifner and W. Gropp, Int. J. High Performance
// Computing Applications 19, 2005 (ring); Sanders, Speck and Träff 2009 (trees). Errors: unknown collective or algorithm, n < 1, a tree for a
// collective that has none.
func Terms(collective string, algo Algorithm, n int) (steps, traffic float64, err error) {
	traffic, err = Factor(collective, n)
	if err != nil {
		return 0, 0, err
	}
	if !slices.Contains([]Algorithm{Ring, Tree, DoubleTree}, algo) {
		return 0, 0, fmt.Errorf("no algorithm %q; known: %s, %s, %s", algo, Ring, Tree, DoubleTree)
	}
	phases := 1.0
	switch collective {
	case "all_reduce":
		phases = 2
	case "broadcast", "reduce":
	default:
		if algo != Ring {
			return 0, 0, fmt.Errorf("%s has no %s algorithm; use %s", collective, algo, Ring)
		}
	}
	if n == 1 {
		return 0, 0, nil
	}
	switch {
	case collective == "sendrecv":
		return 1, traffic, nil
	case algo == Ring:
		return phases * float64(n-1), traffic, nil
	case algo == Tree:
		return phases * math.Ceil(math.Log2(float64(n))), 2 * phases, nil
	}
	return phases * math.Ceil(math.Log2(float64(n))), phases, nil
}

// Model is a collective with its two parameters.
type Model struct {
	Collective string
	Algorithm  Algorithm
	N          int     // ranks
	AlphaUS    float64 // latency of one step, microseconds
	BetaGBps   float64 // bandwidth of one rank in one direction, 10^9 bytes a second
	Fit        *Report // how well it describes the points it was fitted to; nil when the parameters were given
}

// New returns a model with given parameters: alphaUS ≥ 0 in microseconds, betaGBps > 0 in GB/s. Errors: those of Terms, and parameters that
// are no such numbers.
func New(collective string, algo Algorithm, n int, alphaUS, betaGBps float64) (Model, error) {
	if _, _, err := Terms(collective, algo, n); err != nil {
		return Model{}, err
	}
	if !(alphaUS >= 0) || math.IsInf(alphaUS, 0) {
		return Model{}, fmt.Errorf("alpha %v µs: need a number ≥ 0", alphaUS)
	}
	if !(betaGBps > 0) || math.IsInf(betaGBps, 0) {
		return Model{}, fmt.Errorf("beta %v GB/s: need a number > 0", betaGBps)
	}
	return Model{Collective: collective, Algorithm: algo, N: n, AlphaUS: alphaUS, BetaGBps: betaGBps}, nil
}

// Time returns the time of a ring all_reduce of bytes over n ranks in microseconds: 2(n−1)·α + 2(n−1)/n · S/β, α in microseconds, β in
// GB/s. Other collectives and algorithms: New and Model.TimeUS. NaN for n < 1.
func Time(n int, bytes, alphaUS, betaGBps float64) float64 {
	return Model{Collective: "all_reduce", Algorithm: Ring, N: n, AlphaUS: alphaUS, BetaGBps: betaGBps}.TimeUS(bytes)
}

// bytesPerUS converts GB/s to bytes a microsecond.
const bytesPerUS = 1e3

// TimeUS returns steps·α + traffic·S/β in microseconds for a message of bytes. NaN for a model that Terms refuses.
func (m Model) TimeUS(bytes float64) float64 {
	steps, traffic, err := Terms(m.Collective, m.Algorithm, m.N)
	if err != nil {
		return math.NaN()
	}
	return steps*m.AlphaUS + traffic*bytes/(m.BetaGBps*bytesPerUS)
}

// AlgBW returns S/T in GB/s. NaN for one rank, where the model has no time.
func (m Model) AlgBW(bytes float64) float64 {
	us := m.TimeUS(bytes)
	if us == 0 {
		return math.NaN()
	}
	return bytes / us / bytesPerUS
}

// BusBW returns Factor·S/T in GB/s. NaN for one rank, where the model has no time.
func (m Model) BusBW(bytes float64) float64 {
	factor, err := Factor(m.Collective, m.N)
	if err != nil {
		return math.NaN()
	}
	return factor * m.AlgBW(bytes)
}

// PlateauGBps returns the busbw that very large messages approach: β for ring and double tree of many ranks, half of it for the plain tree.
// NaN for one rank.
func (m Model) PlateauGBps() float64 {
	_, traffic, err := Terms(m.Collective, m.Algorithm, m.N)
	factor, ferr := Factor(m.Collective, m.N)
	if err != nil || ferr != nil || traffic == 0 {
		return math.NaN()
	}
	return factor / traffic * m.BetaGBps
}

// KneeBytes returns the size at which both terms are equal, so that busbw is half of the plateau: α·β·steps/traffic, which is n·α·β for a ring
// all_reduce. NaN for one rank.
func (m Model) KneeBytes() float64 {
	steps, traffic, err := Terms(m.Collective, m.Algorithm, m.N)
	if err != nil || traffic == 0 {
		return math.NaN()
	}
	return m.AlphaUS * m.BetaGBps * bytesPerUS * steps / traffic
}

// BytesAt returns the size at which busbw is the given share of the plateau, 0 < share < 1: share/(1−share) knees, so 0.9 is at nine knees.
// NaN outside that range.
func (m Model) BytesAt(share float64) float64 {
	if !(share > 0 && share < 1) {
		return math.NaN()
	}
	return share / (1 - share) * m.KneeBytes()
}
