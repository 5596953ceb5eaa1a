package evidence

import (
	"bytes"
	"strconv"
	"strings"
)

// opNames has NCCL's operations as Fact.Op has them.
var opNames = map[string]string{
	"AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter", "Broadcast": "broadcast", "Reduce": "reduce",
	"AlltoAll": "all_to_all", "AllToAll": "all_to_all", "Gather": "gather", "Scatter": "scatter", "Send": "send", "Recv": "recv", "Bcast": "broadcast",
}

// NCCL's numbers of data types and operators, by the names that nccl-tests gives them.
var (
	ncclTypes  = []string{"int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float", "double", "bfloat16", "fp8_e4m3", "fp8_e5m2"}
	ncclRedOps = []string{"sum", "prod", "max", "min", "avg"}
)

// call takes a call: op is its name, b what follows "opCount ". A record that was torn is still a call, if it is clear whose.
func (c *collReader) call(p *ncclProc, op, b []byte, at Where) bool {
	s := callScan{b: b, ok: true}
	call := CommCall{Line: int32(min(at.Line, 1<<31-1)), Op: c.operation(op), Count: -1, Root: -1}
	call.OpCount = int64(s.hex())
	s.skipWord(" sendbuff ")
	s.skipWord(" recvbuff ")
	count := s.number(" count ")
	typ := s.number(" datatype ")
	red := s.number(" op ")
	s.oneOf(" root ", " peer ")
	root := s.number("")
	s.lit(" comm ")
	s.try("0x")
	ptr := s.hex()
	if !s.ok {
		p.torn(call)
		return true
	}
	call.Count, call.DType, call.RedOp, call.Root = count, c.numbered(ncclTypes, typ), c.numbered(ncclRedOps, red), int(root)
	nranks := 0
	if s.try(" [nranks=") {
		nranks = int(s.number(""))
	}
	x := p.last
	if x == nil || p.lastPtr != ptr {
		if x = c.commAt(p, ptr, nranks, at); x == nil {
			return true
		}
		p.last, p.lastPtr = x, ptr
	}
	x.add(c, call)
	return true
}

// torn keeps a call whose line is cut before it names its communicator, if the process has only one.
func (p *ncclProc) torn(call CommCall) {
	for _, x := range p.comms {
		x.Torn++
		if len(p.comms) == 1 {
			x.add(nil, call)
		}
	}
}

func (c *collReader) operation(b []byte) string {
	switch string(b) { // without a look-up
	case "AllReduce":
		return "all_reduce"
	case "AllGather":
		return "all_gather"
	case "ReduceScatter":
		return "reduce_scatter"
	case "Broadcast":
		return "broadcast"
	case "Send":
		return "send"
	case "Recv":
		return "recv"
	}
	if s, ok := opNames[string(b)]; ok {
		return s
	}
	return c.name([]byte(strings.ToLower(string(b))))
}

func (c *collReader) numbered(names []string, n int64) string {
	if n >= 0 && n < int64(len(names)) {
		return names[n]
	}
	return c.name(strconv.AppendInt(nil, n, 10))
}

// commAt is the communicator at an address, made where no Init line came before. nil: too many.
func (c *collReader) commAt(p *ncclProc, ptr uint64, nranks int, at Where) *collComm {
	if x := p.comms[ptr]; x != nil {
		return x
	}
	return c.newComm(p, ptr, nranks, at)
}

func (c *collReader) newComm(p *ncclProc, ptr uint64, nranks int, at Where) *collComm {
	if len(c.comms) >= collComms {
		return nil
	}
	x := &collComm{proc: p, limit: commCallsEnd, Comm: &Comm{
		Where: at, Host: p.host, PID: p.pid, Pointer: hexText(ptr), Rank: -1, NRanks: nranks, LocalRank: -1,
		Global: c.rank, Device: p.device,
	}}
	if c.kept > commCallsAll {
		x.limit = commCallsFew
	}
	p.comms[ptr] = x
	c.comms = append(c.comms, x)
	return x
}

// add keeps a call; c is nil where the number of those kept does not matter.
func (x *collComm) add(c *collReader, call CommCall) {
	x.HasOp = x.HasOp || call.OpCount > 0
	x.n++
	if x.n <= x.limit {
		x.Calls = append(x.Calls, call)
	} else if len(x.end) < x.limit {
		x.end = append(x.end, call)
	} else {
		x.end[(x.n-1)%x.limit] = call
		return
	}
	if c != nil {
		c.kept++
	}
}

// settle puts the last calls behind the first ones.
func (x *collComm) settle() {
	if len(x.end) == 0 {
		return
	}
	x.Left = x.n - len(x.Calls) - len(x.end)
	first := x.n % x.limit
	if x.Left == 0 {
		first = 0
	}
	x.Calls = append(append(x.Calls, x.end[first:]...), x.end[:first]...)
	x.end = nil
}

// callScan goes through a line of which everything is expected; ok turns false when it is something else.
type callScan struct {
	b  []byte
	i  int
	ok bool
}

func (s *callScan) try(text string) bool {
	if n := s.i + len(text); s.ok && n <= len(s.b) && string(s.b[s.i:n]) == text {
		s.i = n
		return true
	}
	return false
}

func (s *callScan) lit(text string) { s.ok = s.try(text) && s.ok }

func (s *callScan) oneOf(a, b string) {
	if !s.try(a) {
		s.lit(b)
	}
}

// skipWord passes over a word behind text; nobody asks for addresses.
func (s *callScan) skipWord(text string) {
	s.lit(text)
	if i := bytes.IndexByte(s.b[min(s.i, len(s.b)):], ' '); s.ok && i > 0 {
		s.i += i
		return
	}
	s.ok = false
}

// number is a number of at most 18 digits behind text.
func (s *callScan) number(text string) int64 {
	s.lit(text)
	if !s.ok {
		return 0
	}
	n, rest, ok := leadingNumber(s.b[s.i:])
	s.i = len(s.b) - len(rest)
	s.ok = ok
	return int64(n)
}

// hex is a hexadecimal number of at most 16 digits, as opCount and addresses are.
func (s *callScan) hex() uint64 {
	if !s.ok {
		return 0
	}
	from, v := s.i, uint64(0)
	for s.i < len(s.b) && hexDigit[s.b[s.i]] < 16 {
		v = v<<4 | uint64(hexDigit[s.b[s.i]])
		s.i++
	}
	s.ok = s.i > from && s.i-from <= 16
	return v
}

// hexDigit has the value of each hexadecimal digit, 16 for everything else.
var hexDigit = func() (t [256]byte) {
	for i := range t {
		t[i] = 16
	}
	for i, c := range "0123456789abcdef" {
		t[c] = byte(i)
	}
	for i, c := range "ABCDEF" {
		t[c] = byte(10 + i)
	}
	return t
}()
