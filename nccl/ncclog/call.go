package ncclog

import (
	"bytes"
	"strconv"
)

// callState sums up the calls of one rank.
type callState struct {
	Calls
	kinds    map[callSig]int // index in Kinds
	after    []int           // by kind, the kind that followed it last time: programs repeat themselves, and this saves the look-up
	kind     int             // of the latest call
	ring     [lastCalls]Call
	n        int
	base     int // place of the first collective
	mismatch *Mismatch
	ref      *rank // that it differs from
}

// callSig is what two ranks' calls must have in common.
type callSig struct {
	op                string
	count             int64
	typ, redOp, root_ int
}

// window is how many calls of a communicator are kept to compare with: ranks further apart than that are not compared.
const window = 1 << 18

// sequence is what the first rank that came to each place called there.
type sequence struct {
	sigs  []callSig
	ids   map[callSig]uint32
	calls []seqCall // a ring buffer once it has reached window
	first int       // place of the first call
	n     int       // places filled so far
}

// unknownSig stands for a call that is not kept because there are too many different ones.
const (
	unknownSig = 1<<32 - 1
	maxSigs    = 1 << 16
)

type seqCall struct {
	sig  uint32
	line uint32
	file string
	by   *rank
	op   uint64
}

// callForms are the operations by name, for speed; other names are found by shape.
var callForms = []infoForm{
	{"AllReduce: ", takeCall}, {"Broadcast: ", takeCall}, {"AllGather: ", takeCall}, {"ReduceScatter: ", takeCall}, {"Reduce: ", takeCall},
	{"Send: ", takeCall}, {"Recv: ", takeCall},
}

func takeCall(r *Reader, t *thread, msg, rest []byte) {
	if !r.call(t, msg) && !r.selection(t, msg) && !r.torn {
		r.unknownKind(msg)
	}
}

// call takes "AllReduce: opCount 28c sendbuff … count 9984512 datatype 7 op 0 root 0 comm 0x… [nranks=4] stream …".
func (r *Reader) call(t *thread, msg []byte) bool {
	i := bytes.IndexByte(msg, ':')
	if i <= 0 || !hasPrefix(msg[i:], ": opCount ") {
		return false
	}
	call, ptr, nranks, ok := parseCall(msg[i+len(": opCount "):])
	if !ok {
		return true
	}
	call.Op = r.operation(msg[:i])
	x := t.proc.byPtr[ptr]
	if x == nil {
		x = r.strayRank(t, ptr, nranks)
	}
	t.proc.last = x
	r.count(x, call)
	return true
}

// operation is the name of an operation; the common ones need no look-up.
func (r *Reader) operation(b []byte) string {
	switch string(b) {
	case "AllReduce":
		return "AllReduce"
	case "AllGather":
		return "AllGather"
	case "ReduceScatter":
		return "ReduceScatter"
	case "Broadcast":
		return "Broadcast"
	case "Send":
		return "Send"
	case "Recv":
		return "Recv"
	}
	return r.str(b)
}

// parseCall reads "28c sendbuff 0x… recvbuff 0x… count 1 datatype 7 op 0 root 0 comm 0x… [nranks=4] stream 0x…". The order of the fields never
// changed.
func parseCall(b []byte) (call Call, ptr uint64, nranks int, ok bool) {
	if call, ptr, nranks, ok = wholeCall(b); ok {
		return call, ptr, nranks, true
	}
	call = Call{}
	c := cursor{b: b}
	call.OpCount = c.hex()
	c.lit(" sendbuff ")
	c.skip()
	c.lit(" recvbuff ")
	c.skip()
	c.lit(" count ")
	call.Count = int64(c.num())
	c.lit(" datatype ")
	call.Type = c.num()
	c.lit(" op ")
	call.RedOp = c.num()
	if !c.try(" root ") {
		c.lit(" peer ")
	}
	call.Root = c.num()
	c.lit(" comm ")
	ptr = c.hex()
	if c.try(" [nranks=") {
		nranks = c.num()
	}
	return call, ptr, nranks, !c.bad
}

// wholeCall is parseCall for lines that are just as NCCL wrote them, as nearly all are; logs of calls are the large ones.
func wholeCall(b []byte) (call Call, ptr uint64, nranks int, ok bool) {
	s := scan{b: b, ok: true}
	call.OpCount = s.hex()
	s.pointer(" sendbuff 0x")
	s.pointer(" recvbuff 0x")
	call.Count = int64(s.number(" count "))
	call.Type = s.number(" datatype ")
	call.RedOp = s.number(" op ")
	call.Root = s.number(" root ")
	s.lit(" comm 0x")
	ptr = s.hex()
	nranks = s.number(" [nranks=")
	return call, ptr, nranks, s.ok
}

// scan goes through a line of which everything is expected; ok turns false when it is something else.
type scan struct {
	b  []byte
	i  int
	ok bool
}

func (s *scan) lit(text string) {
	if n := s.i + len(text); n <= len(s.b) && string(s.b[s.i:n]) == text {
		s.i = n
		return
	}
	s.ok = false
}

// number is a number of at most 18 digits after text, -1 included.
func (s *scan) number(text string) int {
	s.lit(text)
	i, v, sign := s.i, 0, 1
	if i < len(s.b) && s.b[i] == '-' {
		i, sign = i+1, -1
	}
	from := i
	for i < len(s.b) && s.b[i]-'0' < 10 {
		v = v*10 + int(s.b[i]-'0')
		i++
	}
	s.ok = s.ok && i > from && i-from <= 18
	s.i = i
	return v * sign
}

// nibble has the value of each hexadecimal digit, 16 for everything else.
var nibble = func() (t [256]byte) {
	for i := range t {
		t[i] = 16
	}
	for i, c := range "0123456789abcdef" {
		t[c] = byte(i)
	}
	return t
}()

func (s *scan) hex() uint64 {
	i, v := s.i, uint64(0)
	for i < len(s.b) && nibble[s.b[i]] < 16 {
		v = v<<4 | uint64(nibble[s.b[i]])
		i++
	}
	s.ok = s.ok && i > s.i && i-s.i <= 16
	s.i = i
	return v
}

// pointer passes over an address, whose value nobody asks for.
func (s *scan) pointer(text string) {
	s.lit(text)
	i := s.i
	for i < len(s.b) && nibble[s.b[i]] < 16 {
		i++
	}
	s.ok = s.ok && i > s.i
	s.i = i
}

// strayRank makes a rank of a communicator whose Init lines are not in the log. A rank that is the only one missing from a communicator of the
// same size is taken to be that one.
func (r *Reader) strayRank(t *thread, ptr uint64, nranks int) *rank {
	for _, p := range r.list { // the host's name may be torn
		if p.PID == t.proc.PID && p.byPtr[ptr] != nil {
			return p.byPtr[ptr]
		}
	}
	x := t.next
	if x == nil || x.Rank.Rank >= 0 {
		x = newRank(t.proc)
	}
	t.next = nil
	x.TID, x.CudaDev, x.ptr, x.Guessed = t.tid, t.dev, ptr, true
	x.Pointer = "0x" + strconv.FormatUint(ptr, 16)
	t.proc.byPtr[ptr] = x
	if x.comm != nil {
		return x
	}
	for _, c := range r.comms {
		if c.NRanks == nranks && nranks > 0 && len(c.members) < nranks && !c.has(t.proc) {
			c.add(x)
			return x
		}
	}
	if c := r.newComm(-1); c != nil {
		c.NRanks = nranks
		c.add(x)
	}
	return x
}

func (c *comm) has(p *process) bool {
	for _, m := range c.members {
		if m.proc == p {
			return true
		}
	}
	return false
}

func (r *Reader) count(x *rank, call Call) {
	s := x.calls
	if s == nil {
		s = &callState{kinds: map[callSig]int{}}
		if x.Start == nil && x.Complete == nil { // the log begins in the middle: only opCount says where
			s.base = int(min(call.OpCount, 1<<40))
		}
		x.calls = s
	}
	call.At = r.place()
	call.N = -1
	if call.Op == "Send" || call.Op == "Recv" {
		s.P2P++
	} else {
		call.N = s.base + s.Collectives
		s.Collectives++
	}
	if s.n == 0 {
		s.First = call
	}
	s.ring[s.n%lastCalls] = call
	s.n++
	s.countKind(r, &call)
	if call.N >= 0 && x.comm != nil {
		r.compare(x, call)
	}
}

func (s *callState) countKind(r *Reader, call *Call) {
	if s.kind < len(s.after) {
		i := s.after[s.kind]
		if k := &s.Kinds[i]; k.Count == call.Count && k.Type == call.Type && k.Op == call.Op {
			k.Calls++
			s.kind = i
			return
		}
	}
	sig := callSig{op: call.Op, count: call.Count, typ: call.Type}
	i, ok := s.kinds[sig]
	if !ok {
		if len(s.Kinds) >= maxKinds {
			r.drop("kinds of calls")
			return
		}
		i = len(s.Kinds)
		s.kinds[sig] = i
		s.Kinds = append(s.Kinds, CallKind{Op: call.Op, Type: call.Type, Count: call.Count})
		s.after = append(s.after, i)
	}
	s.Kinds[i].Calls++
	s.after[s.kind], s.kind = i, i
}

// compare holds a call against the one that the first rank made at the same place.
func (r *Reader) compare(x *rank, call Call) {
	q := &x.comm.seq
	sig := callSig{call.Op, call.Count, call.Type, call.RedOp, call.Root}
	if q.n == 0 {
		q.start(call.N)
	}
	place := call.N - q.first
	switch {
	case place == q.n:
		q.add(sig, call, x, r)
	case place < 0 || place > q.n || place < q.n-window:
		r.drop("calls that could not be compared")
	default:
		other := q.calls[place%window]
		if x.calls.mismatch == nil && other.sig != unknownSig && q.sigs[other.sig] != sig {
			w := q.sigs[other.sig]
			x.calls.ref = other.by
			x.calls.mismatch = &Mismatch{N: call.N, Call: call, Want: Call{OpCount: other.op, Op: w.op, Count: w.count,
				Type: w.typ, RedOp: w.redOp, Root: w.root_, N: call.N, At: Line{File: other.file, N: int(other.line)}}}
		}
	}
}

func (q *sequence) start(first int) {
	q.first = first
	q.ids = map[callSig]uint32{}
}

func (q *sequence) add(sig callSig, call Call, x *rank, r *Reader) {
	id, ok := q.ids[sig]
	if !ok && len(q.sigs) < maxSigs {
		id = uint32(len(q.sigs))
		q.sigs = append(q.sigs, sig)
		q.ids[sig] = id
	} else if !ok {
		id = unknownSig
		r.drop("different calls")
	}
	c := seqCall{id, uint32(call.At.N), call.At.File, x, call.OpCount}
	if len(q.calls) < window {
		q.calls = append(q.calls, c)
	} else {
		q.calls[q.n%window] = c
	}
	q.n++
}

// sum is the rank's Calls for the model.
func (s *callState) sum() *Calls {
	out := s.Calls
	for i := max(0, s.n-lastCalls); i < s.n; i++ {
		c := s.ring[i%lastCalls]
		out.Last = append(out.Last, c)
		if c.N >= 0 {
			last := c
			out.LastOf = &last
		}
	}
	return &out
}
