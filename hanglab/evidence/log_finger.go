package evidence

import (
	"bytes"
)

// fingerprint takes PyTorch's comparison of calls before each collective (TORCH_DISTRIBUTED_DEBUG=DETAIL), of every era, and the line that it
// writes for each call at level INFO.
func (c *logContext) fingerprint(line []byte, at Where) bool {
	const word = "CollectiveFingerPrint("
	i := bytes.Index(line, []byte(word))
	if i < 0 {
		return false
	}
	before := line[:i]
	call, rest := fingerprintCall(line[i+len(word):])
	if r := bytes.LastIndex(before, []byte("Running collective: ")); r >= 0 {
		f := newFact(Running, at, line)
		f.torchGroup(before[:r])
		f.setCall(call)
		c.add(f)
		return true
	}
	f := newFact(Fingerprint, at, line)
	f.setCall(call)
	if n, ok := rankRunning(before); ok { // each rank speaks of itself first
		if f.GroupRank = n; c.prefix.Rank < 0 {
			f.Rank = n
		}
	}
	if j := bytes.Index(rest, []byte(word)); j >= 0 {
		other, after := fingerprintCall(rest[j+len(word):])
		f.Other = other
		if n, ok := rankRunning(rest[:j]); ok {
			f.OtherRank = n
		}
		rest = after
	} else if bytes.Contains(before, []byte("inconsistent collective")) {
		f.Detail = "inconsistent"
	}
	if _, aspects, ok := bytes.Cut(rest, []byte("differ in the following aspects:")); ok {
		f.Detail = aspectsOf(aspects)
	}
	c.add(f)
	return true
}

func (f *Fact) setCall(call *Call) {
	f.Call, f.Op, f.Seq, f.DType = call, call.Op, call.Seq, call.DType
	if len(call.Shape) > 0 {
		f.NumelIn = 1
		for _, d := range call.Shape {
			f.NumelIn *= d
		}
	}
}

// rankRunning reads the last "Rank 3 is running" of b.
func rankRunning(b []byte) (int, bool) {
	i := bytes.LastIndex(b, []byte(" is running"))
	if i < 0 {
		return -1, false
	}
	r := bytes.LastIndex(b[:i], []byte("Rank "))
	if r < 0 {
		return -1, false
	}
	n, _, ok := leadingNumber(b[r+5 : i])
	return n, ok
}

// fingerprintCall reads what stands between the brackets, whose end is the bracket that closes them. A call without tensors has no comma between its
// number and its name; shapes have commas of their own.
func fingerprintCall(b []byte) (call *Call, rest []byte) {
	in := b
	depth := 1
	for i, ch := range b {
		if ch == '(' {
			depth++
		} else if ch == ')' {
			if depth--; depth == 0 {
				in, rest = b[:i], b[i+1:]
				break
			}
		}
	}
	call = &Call{Seq: -1}
	if n, ok := numberBehind(in, "SequenceNumber="); ok {
		call.Seq = int64(n)
	}
	if _, op, ok := bytes.Cut(in, []byte("OpType=")); ok {
		if end := bytes.IndexAny(op, ",) "); end >= 0 {
			op = op[:end]
		}
		call.Name, call.Op = cutText(op, 64), torchOp(op)
	}
	if _, shape, ok := bytes.Cut(in, []byte("TensorShape=[")); ok {
		shape, _, _ = bytes.Cut(shape, []byte("]"))
		call.Shape = numberList(shape)
	}
	if _, dtype, ok := bytes.Cut(in, []byte("TensorDtypes=")); ok {
		if end := bytes.IndexAny(dtype, ",) "); end >= 0 {
			dtype = dtype[:end]
		}
		call.DType = cutText(dtype, 64)
	}
	return call, rest
}

// aspectsOf names in what calls differ; the values are in the calls.
func aspectsOf(b []byte) string {
	out := ""
	for _, a := range []struct{ word, name string }{
		{"Sequence number", "sequence"}, {"Op type", "op"}, {"Tensor shapes", "shapes"}, {"Tensor dtypes", "dtypes"}, {"Tensor devices", "devices"},
	} {
		if bytes.Contains(b, []byte(a.word)) {
			if out != "" {
				out += ", "
			}
			out += a.name
		}
	}
	return out
}
