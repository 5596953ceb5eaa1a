package bench

import (
	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/nccl"
)

// bisection: the ranks of the lower half exchange buffers with those of the upper half, all at once, so that everything crosses the middle of
// the machine. With an odd number of ranks the last one rests.
//
// busbw = algbw: each rank's link carries the message once in each direction. The middle carries busbw · ⌊n/2⌋ in each direction.
var bisection = collective{
	name:     "bisection",
	about:    "the lower half of the ranks exchanges with the upper half",
	exchange: true,
	fits:     atLeastTwo,
	layout:   func(_ shape, size result.Bytes, t nccl.DataType) layout { return whole(size, t) },
	factor:   wholly,
	rounds: func(c call) [][]csrc.Step {
		p := opposite(c.shape)
		return [][]csrc.Step{{c.part(csrc.StepSend, 0, c.count, p), c.part(csrc.StepRecv, 0, c.count, p)}}
	},
	expect: func(s shape, l layout) []piece { return from(opposite(s), l, 0) },
	idle:   func(s shape) bool { return s.world%2 == 1 && s.rank == s.world-1 },
}

// opposite is the rank's partner in the other half.
func opposite(s shape) int {
	half := s.world / 2
	if s.rank < half {
		return s.rank + half
	}
	return s.rank - half
}

func atLeastTwo(n int) string {
	if n >= 2 {
		return ""
	}
	return "needs at least two ranks"
}
