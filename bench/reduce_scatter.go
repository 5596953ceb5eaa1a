package bench

import (
	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/nccl"
)

// reduceScatter: every rank gives all parts and gets the reduction of its own part. In place the result is where the rank's part was.
//
// busbw = algbw · (n−1)/n: in a ring each rank sends n−1 partly reduced parts.
var reduceScatter = collective{
	name:    "reduce_scatter",
	about:   "every rank gets its part of the reduction",
	reduces: true,
	layout: func(s shape, size result.Bytes, t nccl.DataType) layout {
		l := parts(s, size, t)
		l.recv, l.recvAt = l.count, l.offset(s.rank)
		return l
	},
	factor: otherParts,
	rounds: func(c call) [][]csrc.Step { return one(c.step(csrc.StepReduceScatter)) },
	expect: func(s shape, l layout) []piece { return reduced(l, l.offset(s.rank)) },
}
