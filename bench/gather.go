package bench

import (
	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/nccl"
)

// gather: the root gets all ranks' parts in the order of the ranks. In place a rank's part is where it will be in the result. From NCCL 2.28
// it is one call, before that sends and receives.
//
// busbw = algbw · (n−1)/n: the root receives the n−1 parts of the others over its link.
var gather = collective{
	name:   "gather",
	about:  "the root gets all ranks' parts",
	rooted: true,
	layout: func(s shape, size result.Bytes, t nccl.DataType) layout {
		l := parts(s, size, t)
		l.send, l.sendAt = l.count, l.offset(s.rank)
		if s.rank != s.root {
			l.recv = 0
		}
		return l
	},
	factor: otherParts,
	rounds: func(c call) [][]csrc.Step {
		if nccl.Has("ncclGather") {
			return one(c.step(csrc.StepGather))
		}
		round := []csrc.Step{c.part(csrc.StepSend, 0, c.count, c.root)}
		for r := 0; c.rank == c.root && r < c.world; r++ {
			round = append(round, c.part(csrc.StepRecv, c.offset(r), c.count, r))
		}
		return [][]csrc.Step{round}
	},
	expect: func(s shape, l layout) []piece {
		if s.rank != s.root {
			return nil
		}
		return fromAll(s, l)
	},
}
