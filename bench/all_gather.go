package bench

import (
	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/nccl"
)

// allGather: every rank gives one part and gets all parts in the order of the ranks. In place the rank's part is where it will be in the result.
//
// busbw = algbw · (n−1)/n: each rank receives the n−1 parts of the others.
var allGather = collective{
	name:  "all_gather",
	about: "every rank gets all ranks' parts",
	agree: true,
	layout: func(s shape, size result.Bytes, t nccl.DataType) layout {
		l := parts(s, size, t)
		l.send, l.sendAt = l.count, l.offset(s.rank)
		return l
	},
	factor: otherParts,
	rounds: func(c call) [][]csrc.Step { return one(c.step(csrc.StepAllGather)) },
	expect: fromAll,
}
