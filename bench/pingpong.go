package bench

import (
	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/nccl"
)

// pingPong: the root sends its buffer to the next rank, which sends what it received back; the others rest. The time shown is half a round
// trip: one way, one operation after the other, so that nothing overlaps. -r all takes every rank in turn.
//
// busbw = algbw: the message crosses the link once each way.
var pingPong = collective{
	name:    "pingpong",
	about:   "root and next rank send a buffer to and fro; half the round trip",
	chained: true,
	rooted:  true,
	trips:   2,
	fits:    atLeastTwo,
	layout: func(s shape, size result.Bytes, t nccl.DataType) layout {
		l := whole(size, t)
		if s.rank != s.root {
			l.send = 0
		}
		return l
	},
	factor: wholly,
	rounds: func(c call) [][]csrc.Step {
		next := (c.root + 1) % c.world
		if c.rank == c.root {
			return [][]csrc.Step{{c.part(csrc.StepSend, 0, c.count, next)}, {c.part(csrc.StepRecv, 0, c.count, next)}}
		}
		back := c
		back.send = c.recv
		return [][]csrc.Step{{c.part(csrc.StepRecv, 0, c.count, c.root)}, {back.part(csrc.StepSend, 0, c.count, c.root)}}
	},
	expect: func(s shape, l layout) []piece { return from(s.root, l, 0) },
	idle:   func(s shape) bool { return s.rank != s.root && s.rank != (s.root+1)%s.world },
}
