package bench

import (
	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/nccl"
)

// sendRecv: in a ring every rank sends its buffer to the next rank and receives the previous one's.
//
// busbw = algbw: each link carries the message once in its direction.
var sendRecv = collective{
	name:     "sendrecv",
	about:    "every rank sends to the next and receives from the previous",
	exchange: true,
	layout:   func(_ shape, size result.Bytes, t nccl.DataType) layout { return whole(size, t) },
	factor:   wholly,
	rounds: func(c call) [][]csrc.Step {
		return [][]csrc.Step{{
			c.part(csrc.StepSend, 0, c.count, (c.rank+1)%c.world), c.part(csrc.StepRecv, 0, c.count, (c.rank+c.world-1)%c.world),
		}}
	},
	expect: func(s shape, l layout) []piece { return from((s.rank+s.world-1)%s.world, l, 0) },
}
