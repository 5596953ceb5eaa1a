package bench

import (
	"github.com/commprobe/commprobe/csrc"
)

// pairwise: an all-to-all in rounds, in each of which every rank exchanges its part with one partner, so that never more than one pair shares
// a rank's link. Every two ranks meet once; with an odd number of ranks one rests in each round.
//
// busbw = algbw · (n−1)/n, as for the all-to-all: each rank sends n−1 parts.
var pairwise = collective{
	name:     "pairwise",
	about:    "alltoall in rounds of pairs, for any number of ranks",
	chained:  true,
	exchange: true,
	layout:   parts,
	factor:   otherParts,
	rounds: func(c call) [][]csrc.Step {
		out := [][]csrc.Step{c.copyTo(c.offset(c.rank), c.offset(c.rank), c.count)}
		for round := range pairRounds(c.world) {
			var calls []csrc.Step
			if p := partner(c.world, c.rank, round); p >= 0 {
				calls = []csrc.Step{c.part(csrc.StepSend, c.offset(p), c.count, p), c.part(csrc.StepRecv, c.offset(p), c.count, p)}
			}
			out = append(out, calls)
		}
		return out
	},
	expect: transposed,
}

// pairRounds is in how many rounds every two of n ranks meet.
func pairRounds(n int) int {
	if n%2 == 0 {
		return n - 1
	}
	return n
}

// partner is whom a rank meets in a round, -1 when it rests (the circle method of tournaments: m = n, or n+1 with a bye; the last stands still
// and the others turn).
func partner(n, rank, round int) int {
	m := n + n%2
	p := 0
	switch {
	case n < 2:
		return -1
	case rank == m-1:
		// r + r = round (mod m−1) has the one solution round · m/2, since m−1 is odd.
		p = round * (m / 2) % (m - 1)
	default:
		p = ((round-rank)%(m-1) + m - 1) % (m - 1)
		if p == rank {
			p = m - 1
		}
	}
	if p >= n {
		return -1
	}
	return p
}
