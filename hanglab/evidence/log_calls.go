package evidence

import (
	"bytes"

	"github.com/commprobe/commprobe/hanglab/flight"
)

// maxSideRanks is of how many ranks of one side a fact is made: the laboratory's world is smaller, and a vote needs no more.
const maxSideRanks = 512

// checkedCall is one rank's call as the comparison names it; all ranks say the same.
type checkedCall struct {
	group string
	seq   int64
	rank  int
}

// callSide is what ranks that agree were about to call.
type callSide struct {
	ranks []int
	call  *Call
	at    flight.Frame
}

// callCheck takes the laboratory's comparison of calls before they are made: "call 7 of communicator 0: rank 3 differs in op: all_reduce of 4 float
// (sequence 7, root 0, sum) at x.go:10; ranks 0-2 of 4: broadcast of …", or "rank 3 did not come to call 7 of communicator 0 (all_reduce of 4 float) within 1s".
// Each rank that is named has a fact about its own call, as in PyTorch's fingerprints.
func (c *logContext) callCheck(b []byte, at Where, m *markerEvent) bool {
	f := newFact(Fingerprint, at, b)
	f.Group = communicatorName(b)
	if m != nil {
		f.MonoNs = m.mono
	}
	if who, rest, ok := bytes.Cut(b, []byte(" did not come to call ")); ok {
		f.Kind, f.Ranks = Silent, namedRanks(who)
		if n, _, ok := leadingNumber(rest); ok {
			f.Seq = int64(n)
		}
		f.operation(rest)
		f.Detail = "did not come to the call"
		if m != nil {
			f.Rank = m.rank
		}
		if len(f.Ranks) > 0 && !c.sameOurs(&f) {
			c.add(f)
		}
		return len(f.Ranks) > 0
	}
	_, rest, ok := bytes.Cut(b, []byte("call "))
	n, rest, isNumber := leadingNumber(rest)
	_, rest, more := bytes.Cut(rest, []byte(": "))
	if !ok || !isNumber || !more {
		return false
	}
	f.Seq = int64(n)
	rest = bytes.TrimPrefix(rest, []byte("these disagree, without a majority: "))
	f.Detail = cutText(rest, factBytes)
	var sides []callSide
	for part := range bytes.SplitSeq(rest, []byte("; ")) {
		if s, ok := readSide(part); ok && len(sides) < 64 {
			sides = append(sides, s)
		}
	}
	if len(sides) < 2 {
		return false
	}
	for i := range sides {
		c.sideFacts(f, sides, i)
	}
	return true
}

// sideFacts makes the facts of one side's ranks, once for each in a log.
func (c *logContext) sideFacts(f Fact, sides []callSide, i int) {
	s, other := &sides[i], &sides[len(sides)-1] // the majority stands last
	if i == len(sides)-1 {
		other = &sides[0]
	}
	f.Call, f.Other, f.OtherRank = s.call, other.call, other.ranks[0]
	f.Op, f.DType = s.call.Op, s.call.DType
	if len(s.call.Shape) > 0 {
		f.NumelIn = s.call.Shape[0]
	}
	if s.at.File != "" {
		f.Stack = []flight.Frame{s.at}
	}
	for _, r := range s.ranks[:min(len(s.ranks), maxSideRanks)] {
		key := checkedCall{f.Group, f.Seq, r}
		if c.checked[key] || len(c.checked) >= maxTimeouts {
			continue
		}
		if c.checked == nil {
			c.checked = map[checkedCall]bool{}
		}
		c.checked[key] = true
		f.Rank = r
		c.addOther(f)
	}
}

// readSide reads "rank 3 differs in op: all_reduce of 4 float (sequence 7, root 0, sum) at x.go:10".
func readSide(part []byte) (callSide, bool) {
	who, what, ok := bytes.Cut(part, []byte(": "))
	if !ok {
		return callSide{}, false
	}
	s := callSide{ranks: namedRanks(who)}
	x := newFact(Fingerprint, Where{}, nil)
	x.operation(what)
	x.seqBehind(what, "(sequence ")
	s.call = &Call{Seq: x.Seq, Op: x.Op, Name: x.Op, DType: x.DType}
	if x.NumelIn >= 0 {
		s.call.Shape = []int64{x.NumelIn}
	}
	if i := bytes.LastIndex(what, []byte(" at ")); i > 0 {
		place := what[i+len(" at "):]
		if colon := bytes.LastIndexByte(place, ':'); colon > 0 {
			s.at = flight.Frame{File: cutText(place[:colon], 300), Line: max(shortNumber(place[colon+1:]), 0)}
		}
	}
	return s, len(s.ranks) > 0 && x.Op != ""
}

// namedRanks reads "rank 3", "ranks 0-2 of 4", "ranks 1, 3 differ in op".
func namedRanks(b []byte) []int {
	i := bytes.LastIndex(b, []byte("rank"))
	if i < 0 {
		return nil
	}
	b = bytes.TrimLeft(b[i+len("rank"):], "s ")
	end := 0
	for end < len(b) && (b[end]-'0' < 10 || b[end] == '-' || b[end] == ',' || b[end] == ' ') {
		end++
	}
	return ranksIn(b[:end])
}
