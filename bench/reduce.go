package bench

import (
	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/nccl"
)

// reduce: the root gets the reduction of all ranks' buffers. In place is one buffer.
//
// busbw = algbw: in a chain each rank but the last sends its partly reduced message once.
var reduce = collective{
	name:    "reduce",
	about:   "the root gets the reduction of all ranks' buffers",
	reduces: true,
	rooted:  true,
	layout: func(s shape, size result.Bytes, t nccl.DataType) layout {
		l := whole(size, t)
		if s.rank != s.root {
			l.recv = 0
		}
		return l
	},
	factor: wholly,
	rounds: func(c call) [][]csrc.Step { return one(c.step(csrc.StepReduce)) },
	expect: func(s shape, l layout) []piece {
		if s.rank != s.root {
			return nil
		}
		return reduced(l, 0)
	},
}
