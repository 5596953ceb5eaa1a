package bench

import (
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/nccl"
)

// allToAll: rank r gives a part for each rank and gets the r-th part of each. From NCCL 2.28 it is one call, before that sends and receives.
//
// busbw = algbw · (n−1)/n: each rank sends the n−1 parts for the others.
var allToAll = collective{
	name:     "alltoall",
	about:    "every rank gets a part from each rank",
	exchange: true,
	layout:   parts,
	factor:   otherParts,
	rounds: func(c call) [][]csrc.Step {
		if nccl.Has("ncclAlltoAll") {
			return one(c.step(csrc.StepAllToAll))
		}
		var round []csrc.Step
		for r := range c.world {
			round = append(round, c.part(csrc.StepSend, c.offset(r), c.count, r), c.part(csrc.StepRecv, c.offset(r), c.count, r))
		}
		return [][]csrc.Step{round}
	},
	expect: transposed,
}

// transposed is a result that has the rank's part of each rank's data.
func transposed(s shape, l layout) []piece {
	out := fromAll(s, l)
	for r := range out {
		out[r].first = int64(l.offset(s.rank))
	}
	return out
}
