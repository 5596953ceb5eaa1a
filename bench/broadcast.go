package bench

import (
	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/nccl"
)

// broadcast: every rank gets the root's buffer. In place is one buffer.
//
// busbw = algbw: in a chain each rank receives the message once and passes it on once.
var broadcast = collective{
	name:   "broadcast",
	about:  "every rank gets the root's buffer",
	agree:  true,
	rooted: true,
	layout: func(s shape, size result.Bytes, t nccl.DataType) layout {
		l := whole(size, t)
		if s.rank != s.root {
			l.send = 0
		}
		return l
	},
	factor: wholly,
	rounds: func(c call) [][]csrc.Step { return one(c.step(csrc.StepBroadcast)) },
	expect: func(s shape, l layout) []piece { return from(s.root, l, 0) },
}
