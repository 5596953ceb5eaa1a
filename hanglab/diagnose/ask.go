package diagnose

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

// ask is what one call asks of all members of its group: what must be equal for the call to be one call. What a source does not say is "" or -1
// and agrees with everything.
type ask struct {
	op       string // "all_reduce"; as called, so that all_gather and _all_gather_base are two
	kind     string // what the library does for it
	size     int64  // elements that must be equal on all ranks, by the operation's own rule
	dtype    string // "float", "bfloat16"
	root     int
	in, out  int64
	p2p      bool
	src, dst int  // ranks within the group
	end      bool // the end of a coalesced group, which has no sizes of its own
}

// kinds are the spellings of operations in every source, without what the library's name adds to them.
var kinds = map[string]string{
	"allreduce": "all_reduce", "allreducecoalesced": "all_reduce", "allgather": "all_gather", "allgatherbase": "all_gather", "allgathercoalesced": "all_gather",
	"allgatherintotensor": "all_gather", "allgatherintotensorcoalesced": "all_gather", "reducescatter": "reduce_scatter", "reducescatterbase": "reduce_scatter",
	"reducescattercoalesced": "reduce_scatter", "reducescattertensor": "reduce_scatter", "reducescattertensorcoalesced": "reduce_scatter",
	"broadcast": "broadcast", "broadcastoop": "broadcast", "bcast": "broadcast", "reduce": "reduce", "reduceoop": "reduce",
	"alltoall": "all_to_all", "alltoallbase": "all_to_all", "alltoallv": "all_to_all", "gather": "gather", "scatter": "scatter",
	"send": "send", "isend": "send", "recv": "recv", "irecv": "recv", "recvanysource": "recv", "barrier": "barrier", "allreducebarrier": "barrier",
}

// kindOf folds the spellings of one operation: "ALLREDUCE", "_all_gather_base", "nccl:all_reduce".
func kindOf(op string) string {
	if _, name, ok := strings.Cut(op, ":"); ok {
		op = name
	}
	op, _, _ = strings.Cut(op, " ")
	plain := strings.ToLower(strings.ReplaceAll(op, "_", ""))
	if k, ok := kinds[plain]; ok {
		return k
	}
	return strings.Trim(strings.ToLower(op), "_")
}

// known tells that a kind is one of the library's operations.
func known(kind string) bool {
	return slices.Contains([]string{"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "gather", "scatter", "send", "recv", "barrier"}, kind)
}

// synchronises tells whether no member can finish before all have begun. A broadcast's root and a reduction's leaves can.
func synchronises(kind string) bool {
	switch kind {
	case "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier":
		return true
	}
	return false
}

// sizeRule picks what must be equal on all ranks from the numbers of elements of one rank's input and output.
func sizeRule(kind string, in, out int64) int64 {
	switch kind {
	case "all_reduce", "all_gather", "gather", "send":
		return in
	case "reduce_scatter", "scatter", "recv":
		return out
	case "broadcast", "reduce":
		return max(in, out)
	}
	return -1 // of an exchange only sums over ranks are equal, a barrier has none
}

// askOf reads a recorded call once; equal calls share their pointer, so it is asked once for each different one.
func askOf(c *evidence.FlightCall) *ask {
	a := &ask{root: -1, size: -1, src: -1, dst: -1}
	name := c.ProfilingName
	_, rest, ok := strings.Cut(name, ":")
	if ok {
		name = rest
	}
	var peers string
	a.op, peers, _ = strings.Cut(name, " ")
	a.kind = kindOf(a.op)
	if !ok && !known(a.kind) { // the program has given the call a name of its own, which does not tell what it is
		a.op, a.kind = name, ""
	}
	a.in, a.out = elements(c.InputSizes), elements(c.OutputSizes)
	a.dtype = strings.ToLower(first(c.InputDtypes, c.OutputDtypes))
	a.end = strings.HasSuffix(strings.ToLower(a.op), "coalesced") && len(c.InputSizes) == 0
	a.size = sizeRule(a.kind, a.in, a.out)
	if a.kind == "" && a.in == a.out && a.in > 0 {
		a.size = a.in
	}
	if a.kind == "all_gather" && len(c.InputSizes) != 1 {
		a.size = a.out
	}
	a.p2p, a.src, a.dst = peersOf(a.kind, peers)
	return a
}

// peersOf reads "0->3" of a send and "3<-0" of a receive.
func peersOf(kind, text string) (p2p bool, src, dst int) {
	if kind != "send" && kind != "recv" {
		return false, -1, -1
	}
	left, right, ok := strings.Cut(text, "->")
	if !ok {
		right, left, ok = strings.Cut(text, "<-")
	}
	if !ok {
		return true, -1, -1
	}
	src, err1 := strconv.Atoi(left)
	dst, err2 := strconv.Atoi(right)
	if err1 != nil || err2 != nil {
		return true, -1, -1
	}
	return true, src, dst
}

func elements(sizes [][]int64) int64 {
	var sum int64
	for _, shape := range sizes {
		n := int64(1)
		for _, d := range shape {
			n *= d
		}
		sum += n
	}
	return sum
}

func first(lists ...[]string) string {
	for _, l := range lists {
		if len(l) > 0 {
			return l[0]
		}
	}
	return ""
}

// differs says in which way two calls are not the same one, the gravest first; "" if they can be.
func (a *ask) differs(b *ask) Class {
	switch {
	case a == b || a == nil || b == nil:
		return ""
	case a.kind != b.kind && a.kind != "" && b.kind != "":
		return OpMismatch
	case a.root >= 0 && b.root >= 0 && a.root != b.root && !a.p2p:
		return OpMismatch
	case a.dtype != "" && b.dtype != "" && a.dtype != b.dtype && (a.size == b.size || a.size*width(a.dtype) == b.size*width(b.dtype)):
		return DTypeMismatch
	case a.size >= 0 && b.size >= 0 && a.size != b.size:
		return SizeMismatch
	case a.dtype != "" && b.dtype != "" && a.dtype != b.dtype:
		return DTypeMismatch
	}
	return ""
}

func (a *ask) same(b *ask) bool { return a.differs(b) == "" }

// width is an element's bytes, 1 for what is not known.
func width(dtype string) int64 {
	switch strings.ToLower(dtype) {
	case "half", "float16", "fp16", "bfloat16", "bf16", "short", "int16":
		return 2
	case "float", "float32", "fp32", "int", "int32", "uint32":
		return 4
	case "double", "float64", "long", "int64", "uint64":
		return 8
	}
	return 1
}

// String is the call in a few words: "all_reduce of 393216 float".
func (a *ask) String() string {
	if a == nil {
		return "nothing"
	}
	s := a.op
	if n := a.shown(); n >= 0 {
		s += fmt.Sprintf(" of %d", n)
	}
	if a.dtype != "" {
		s += " " + a.dtype
	}
	if a.root >= 0 && !a.p2p && (a.kind == "broadcast" || a.kind == "reduce") {
		s += fmt.Sprintf(", root %d", a.root)
	}
	return s
}

func (a *ask) shown() int64 {
	if a.size >= 0 || a.end || a.kind == "barrier" {
		return a.size
	}
	return a.in
}

// sizeText is the size alone, for a cell of the picture: "393216", "64Ki" would hide what differs.
func (a *ask) sizeText() string {
	if n := a.shown(); n >= 0 {
		return strconv.FormatInt(n, 10)
	}
	return ""
}
