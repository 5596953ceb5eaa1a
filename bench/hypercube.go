package bench

import (
	"fmt"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/nccl"
)

// hypercube: an all-gather in log2 n rounds, in each of which partners at twice the distance exchange all that they have. In place a rank's
// part is where it will be in the result.
//
// algbw counts the n−1 parts that a rank receives, as nccl-tests does, and busbw = algbw: each of them crosses its link once.
var hypercube = collective{
	name:    "hypercube",
	about:   "all_gather by exchanges with partners at distance 1, 2, 4 …",
	chained: true,
	agree:   true,
	fits: func(n int) string {
		if n&(n-1) == 0 {
			return ""
		}
		return fmt.Sprintf("needs a power of two of ranks, not %d", n)
	},
	layout: func(s shape, size result.Bytes, t nccl.DataType) layout {
		l := parts(s, size, t)
		l.send, l.sendAt = l.count, l.offset(s.rank)
		l.moved = l.bytes / result.Bytes(s.world) * result.Bytes(s.world-1)
		return l
	},
	factor: wholly,
	rounds: func(c call) [][]csrc.Step {
		own := c.copyTo(c.offset(c.rank), 0, c.count)
		out := [][]csrc.Step{own}
		for mask := 1; mask < c.world; mask <<= 1 {
			mine := c.rank &^ (mask - 1)
			from := c
			from.send = c.recv // what is passed on lies in the result
			n := c.count * result.Count(mask)
			out = append(out, []csrc.Step{
				from.part(csrc.StepSend, c.offset(mine), n, c.rank^mask), c.part(csrc.StepRecv, c.offset(mine^mask), n, c.rank^mask),
			})
		}
		return out
	},
	expect: fromAll,
}
