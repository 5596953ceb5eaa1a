package bench

import (
	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/nccl"
)

// scatter: every rank gets its part of the root's buffer. In place the result is where the rank's part is in a buffer of all parts. From NCCL
// 2.28 it is one call, before that sends and receives.
//
// busbw = algbw · (n−1)/n: the root sends the n−1 parts of the others over its link.
var scatter = collective{
	name:   "scatter",
	about:  "every rank gets its part of the root's buffer",
	rooted: true,
	layout: func(s shape, size result.Bytes, t nccl.DataType) layout {
		l := parts(s, size, t)
		l.recv, l.recvAt = l.count, l.offset(s.rank)
		if s.rank != s.root {
			l.send = 0
		}
		return l
	},
	factor: otherParts,
	rounds: func(c call) [][]csrc.Step {
		if nccl.Has("ncclScatter") {
			return one(c.step(csrc.StepScatter))
		}
		round := []csrc.Step{c.part(csrc.StepRecv, 0, c.count, c.root)}
		for r := 0; c.rank == c.root && r < c.world; r++ {
			round = append(round, c.part(csrc.StepSend, c.offset(r), c.count, r))
		}
		return [][]csrc.Step{round}
	},
	expect: func(s shape, l layout) []piece { return from(s.root, l, l.offset(s.rank)) },
}
