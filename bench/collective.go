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
	reduces bool // has an operator
	rooted  bool // has a root
	// layout says how many elements each buffer holds for a message of the given size, as nccl-tests counts it.
	layout func(world int, size result.Bytes, t nccl.DataType) layout
	// factor is busbw / algbw.
	factor func(world int) float64
	// steps are the calls of one iteration by one rank, without the group around several ranks.
	steps func(c call) []csrc.Step
}

// layout is what one size means for one rank, in elements.
type layout struct {
	count                    result.Count // as the call and the table have it
	send, recv               result.Count // elements in each buffer
	sendInPlace, recvInPlace result.Count // element offset of a rank's part in the shared buffer, times the rank
	bytes                    result.Bytes // the size column: the larger buffer's bytes
}

// call is one rank's part of one iteration.
type call struct {
	lane       int
	send, recv uintptr
	count      result.Count
	dtype      nccl.DataType
	op         nccl.RedOp
	root       int
	rank       int
	world      int
}

// collectives are all that can be measured.
var collectives = []*collective{&allReduce}

// CollectiveNames lists what can be measured.
func CollectiveNames() []string {
	out := make([]string, len(collectives))
	for i, c := range collectives {
		out[i] = c.name
	}
	return out
}

func findCollective(name string) (*collective, error) {
	for _, c := range collectives {
		if c.name == name {
			return c, nil
		}
	}
	return nil, fmt.Errorf("unknown collective %q: use %s", name, strings.Join(CollectiveNames(), ", "))
}
