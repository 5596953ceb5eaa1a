package bench

import (
	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/nccl"
)

// allReduce: every rank gives count elements and gets their reduction. In place is one buffer.
//
// busbw = algbw · 2(n−1)/n: in a ring each rank sends (and receives) n−1 of n parts twice, once reduced onwards and once finished, whatever
// the algorithm really in use (nccl-tests doc/PERFORMANCE.md).
var allReduce = collective{
	name:    "all_reduce",
	about:   "every rank gets the reduction of all ranks' buffers",
	agree:   true,
	reduces: true,
	layout:  func(_ shape, size result.Bytes, t nccl.DataType) layout { return whole(size, t) },
	factor:  func(n int) float64 { return 2 * otherParts(n) },
	rounds:  func(c call) [][]csrc.Step { return one(c.step(csrc.StepAllReduce)) },
	expect:  func(_ shape, l layout) []piece { return reduced(l, 0) },
}
