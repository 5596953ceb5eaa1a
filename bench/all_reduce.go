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
	reduces: true,
	layout: func(_ int, size result.Bytes, t nccl.DataType) layout {
		n := result.Count(int64(size) / int64(t.Size()))
		return layout{count: n, send: n, recv: n, bytes: result.Bytes(int64(n) * int64(t.Size()))}
	},
	factor: func(n int) float64 { return 2 * float64(n-1) / float64(n) },
	steps: func(c call) []csrc.Step {
		return []csrc.Step{{
			Kind: csrc.StepAllReduce, Lane: c.lane, Send: c.send, Recv: c.recv, Count: uint64(c.count), DType: int(c.dtype), Op: int(c.op),
		}}
	},
}
