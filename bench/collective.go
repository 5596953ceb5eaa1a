// Package bench measures collectives: what to run (a Plan), the ranks that run it, verification, and the coordinator that drives the ranks
// and gathers their samples.
//
// One process is one Worker and holds one or several ranks. The Coordinator sits in the parent of local workers or beside rank 0 and steps
// all workers through the plan, so that a stop, a failure or a time-out takes effect at one place and the rows measured so far are kept.
package bench

import (
	"fmt"
	"strings"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/nccl"
)

// collective is one thing to measure. Adding one is adding a file with one of these and a line in collectives.
type collective struct {
	name    string
	about   string // one line for --help
	reduces bool   // has an operator
	rooted  bool   // has a root
	// exchange: ranks send and receive through the same place when send and receive buffer are one. NCCL promises nothing for that, so the
	// in-place half lays input and result out side by side in one buffer.
	exchange bool
	agree    bool // all ranks get the same result
	slowest  bool // the time is that of the slowest rank unless -a says otherwise: ranks have different amounts to do
	chained  bool // an iteration has several rounds that follow each other
	trips    int  // an iteration is so many operations one after the other, and the time of one is shown; 0 is 1
	// fits says why that many ranks cannot do it, "" when they can; nil: any number can.
	fits func(world int) string
	// layout says how many elements a rank's buffers hold for a message of the given size, as nccl-tests counts it.
	layout func(s shape, size result.Bytes, t nccl.DataType) layout
	// factor is busbw / algbw.
	factor func(world int) float64
	// rounds are one rank's calls in one iteration. The calls of one round are grouped; rounds follow each other. Every rank that is not
	// idle has the same number of rounds.
	rounds func(c call) [][]csrc.Step
	// expect says what the rank's result must be; nil: the rank has no result.
	expect func(s shape, l layout) []piece
	// idle tells whether the rank has nothing to do; nil: none is.
	idle func(s shape) bool
}

// shape is where a rank stands in its communicator.
type shape struct {
	world, rank int
	root        int      // 0 where the collective has none
	traffic     *traffic // alltoallv only
}

// layout is what one size means for one rank, in elements.
type layout struct {
	count          result.Count // as the call and the table have it
	send, recv     result.Count // elements in each of the rank's buffers
	sendAt, recvAt result.Count // in place: where its parts begin in the shared buffer
	bytes          result.Bytes // the size column: the larger buffer's bytes, the same on all ranks
	moved          result.Bytes // what algbw counts; 0: bytes
	crossing       result.Bytes // what busbw counts, where no factor tells; 0: algbw times the factor
	ask            result.Bytes // the size and type that it was made for
	dtype          nccl.DataType
}

// lay is the layout of a collective for one rank.
func (c *collective) lay(s shape, size result.Bytes, t nccl.DataType) layout {
	l := c.layout(s, size, t)
	l.ask, l.dtype = size, t
	if l.moved == 0 {
		l.moved = l.bytes
	}
	return l
}

// call is one rank's part of one iteration.
type call struct {
	shape
	layout
	lane       int
	send, recv uintptr
	op         nccl.RedOp
}

// step is one call with everything filled in that most have in common.
func (c call) step(kind csrc.StepKind) csrc.Step {
	return csrc.Step{
		Kind: kind, Lane: c.lane, Send: c.send, Recv: c.recv, Count: uint64(c.count), DType: int(c.dtype), Op: int(c.op), Peer: c.root,
	}
}

// part is a call of kind with count elements from (or to) element at of the buffer, with peer.
func (c call) part(kind csrc.StepKind, at, count result.Count, peer int) csrc.Step {
	s := csrc.Step{Kind: kind, Lane: c.lane, Count: uint64(count), DType: int(c.dtype), Peer: peer}
	off := uintptr(int64(at) * int64(c.dtype.Size()))
	if kind == csrc.StepSend {
		s.Send = c.send + off
	} else {
		s.Recv = c.recv + off
	}
	return s
}

// copyTo copies count elements from element from of the send buffer to element to of the receive buffer; nothing where that is one place.
func (c call) copyTo(to, from, count result.Count) []csrc.Step {
	size := int64(c.dtype.Size())
	s := csrc.Step{
		Kind: csrc.StepCopy, Lane: c.lane, Count: uint64(count), DType: int(c.dtype),
		Send: c.send + uintptr(int64(from)*size), Recv: c.recv + uintptr(int64(to)*size),
	}
	if s.Send == s.Recv || count == 0 {
		return nil
	}
	return []csrc.Step{s}
}

// whole is the layout of collectives whose buffers both hold the message.
func whole(size result.Bytes, t nccl.DataType) layout {
	n := result.Count(int64(size) / int64(t.Size()))
	return layout{count: n, send: n, recv: n, bytes: result.Bytes(int64(n) * int64(t.Size()))}
}

// partAlign is the multiple of bytes that each rank's part of a divided message is, as in nccl-tests.
const partAlign = 16

// parts is the layout of collectives that divide the message by ranks: count is one part, and bytes are all of them.
func parts(s shape, size result.Bytes, t nccl.DataType) layout {
	elt := int64(t.Size())
	part := int64(size) / elt / int64(s.world) &^ (partAlign/elt - 1)
	all := result.Count(part * int64(s.world))
	return layout{count: result.Count(part), send: all, recv: all, bytes: result.Bytes(int64(all) * elt)}
}

// offset is where a rank's part begins.
func (l layout) offset(rank int) result.Count { return l.count * result.Count(rank) }

// The factors that several collectives share. A message of which each rank keeps its own part crosses a link for (n−1)/n of its bytes; one
// that goes whole from rank to rank crosses it once (nccl-tests doc/PERFORMANCE.md).
func otherParts(n int) float64 { return float64(n-1) / float64(n) }
func wholly(int) float64       { return 1 }

// one is a round of a single call.
func one(s csrc.Step) [][]csrc.Step { return [][]csrc.Step{{s}} }

// fromAll is a result that has each rank's data, in the order of the ranks.
func fromAll(s shape, l layout) []piece {
	out := make([]piece, s.world)
	for r := range out {
		out[r] = piece{at: int64(l.offset(r)), count: int64(l.count), source: r}
	}
	return out
}

// reduced is a result that is the reduction over all ranks from element first on.
func reduced(l layout, first result.Count) []piece {
	return []piece{{count: int64(l.count), source: -1, first: int64(first)}}
}

// from is a result that is one rank's data from element first on.
func from(rank int, l layout, first result.Count) []piece {
	return []piece{{count: int64(l.count), source: rank, first: int64(first)}}
}

// collectives are all that can be measured.
var collectives = []*collective{
	&allReduce, &allGather, &reduceScatter, &broadcast, &reduce, &gather, &scatter, &allToAll, &allToAllV, &sendRecv, &hypercube, &pairwise,
	&bisection, &pingPong,
}

// CollectiveNames lists what can be measured.
func CollectiveNames() []string {
	out := make([]string, len(collectives))
	for i, c := range collectives {
		out[i] = c.name
	}
	return out
}

// DescribeCollectives has a line for each collective.
func DescribeCollectives() string {
	var b strings.Builder
	for _, c := range collectives {
		fmt.Fprintf(&b, "%-15s %s\n", c.name, c.about)
	}
	return b.String()
}

// ParseCollective finds a collective by its name or by nccl-tests' (all_reduce_perf), with or without underscores, and returns its own name.
func ParseCollective(name string) (string, error) {
	c, err := findCollective(name)
	if err != nil {
		return "", err
	}
	return c.name, nil
}

func findCollective(name string) (*collective, error) {
	plain := strings.NewReplacer("_", "", "-", "")
	want := plain.Replace(strings.TrimSuffix(strings.ToLower(name), "_perf"))
	for _, c := range collectives {
		if plain.Replace(c.name) == want {
			return c, nil
		}
	}
	return nil, fmt.Errorf("unknown collective %q: use %s or all", name, strings.Join(CollectiveNames(), ", "))
}
