package evidence

import (
	"bytes"
	"strconv"
	"strings"
)

// initLine takes "ncclCommInitRank comm 0x… rank 3 nranks 8 cudaDev 3 … commId 0x… - Init COMPLETE" and its relatives: START, splits, Abort, Destroy; and
// "comm 0x… rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0".
func (c *collReader) initLine(p *ncclProc, msg, before, line []byte, at Where) bool {
	i := bytes.Index(msg[:min(len(msg), 64)], []byte("comm 0x"))
	if i < 0 {
		return false
	}
	s := callScan{b: msg, i: i + len("comm 0x"), ok: true}
	ptr := s.hex()
	rank := s.number(" rank ")
	if !s.try(" nranks ") {
		s.lit(" nRanks ")
	}
	nranks := s.number("")
	if !s.ok {
		return false
	}
	rest := msg[s.i:]
	if nodes, ok := numberBehind(rest, " nNodes "); ok {
		if x := p.comms[ptr]; x != nil {
			x.Nodes = nodes
			x.LocalRank, _ = numberBehind(rest, " localRank ")
		}
		return true
	}
	head, state, ok := lastDash(rest)
	if !ok {
		return false
	}
	init := commInit{ptr: ptr, rank: int(rank), nranks: int(nranks), id: wordBehind(head, " commId "), parent: wordBehind(head, " parent "), bus: ncclBus(wordBehind(head, " busId "))}
	switch state {
	case "Init START":
		c.begun(p, init, before, line, at)
	case "Init COMPLETE":
		c.complete(p, init, before, line, at)
	case "Destroy COMPLETE", "Abort COMPLETE", "Finalize COMPLETE":
		if x := p.comms[ptr]; x != nil {
			x.Ended = map[byte]string{'D': "destroyed", 'A': "aborted", 'F': "destroyed"}[state[0]]
			x.EndedLine, x.ended = at.Line, true
		}
	case "Abort START":
		if x := p.comms[ptr]; x != nil && x.Ended == "" {
			x.Ended, x.EndedLine = "aborted", at.Line
		}
	default:
		return false
	}
	return true
}

// commInit is what an Init line says.
type commInit struct {
	ptr          uint64
	rank, nranks int
	id, parent   string
	bus          string
}

// lastDash splits "… key 3- Init START" at its dash.
func lastDash(b []byte) (head []byte, state string, ok bool) {
	i := bytes.LastIndex(b, []byte("- "))
	if i < 0 {
		return nil, "", false
	}
	return b[:i], strings.TrimRight(string(b[i+2:min(len(b), i+40)]), " \r"), true
}

func wordBehind(b []byte, words string) string {
	_, rest, ok := bytes.Cut(b, []byte(words))
	if !ok {
		return ""
	}
	word, _, _ := bytes.Cut(rest, []byte(" "))
	return string(bytes.TrimSpace(word[:min(len(word), 64)]))
}

// begun starts a communicator. An address that was used before belongs to a new one now.
func (c *collReader) begun(p *ncclProc, init commInit, before, line []byte, at Where) {
	x := c.newComm(p, init.ptr, init.nranks, at)
	if x == nil {
		return
	}
	p.last = nil
	x.identify(p, init)
	x.InitOnly = true
	c.emitInit(InitBegun, p, x, before, line, at)
}

// complete ends the making of a communicator; old versions of NCCL log nothing before that.
func (c *collReader) complete(p *ncclProc, init commInit, before, line []byte, at Where) {
	x := p.comms[init.ptr]
	if x == nil || x.ended || x.Rank >= 0 && !x.InitOnly {
		if x = c.newComm(p, init.ptr, init.nranks, at); x == nil {
			return
		}
		p.last = nil
	}
	x.identify(p, init)
	x.InitOnly = false
	c.emitInit(InitDone, p, x, before, line, at)
}

func (x *collComm) identify(p *ncclProc, init commInit) {
	x.Rank, x.NRanks = init.rank, init.nranks
	if init.id != "" {
		x.ID = init.id
	}
	if init.parent != "" {
		x.Parent = init.parent
	}
	if init.bus != "" {
		x.BusID = init.bus
	}
}

func (c *collReader) emitInit(kind FactKind, p *ncclProc, x *collComm, before, line []byte, at Where) {
	f := ncclFact(kind, p, before, line, at)
	f.Group, f.GroupRank, f.Seq, f.GroupSize, f.BusID = x.ID, x.Rank, int64(x.NRanks), x.NRanks, x.BusID
	if f.Group == "" {
		f.Group = x.Pointer
	}
	if x.Parent != "" {
		f.Detail = "split from " + x.Parent
	}
	c.emit(f)
}

// numbersIn is every decimal number that follows one of the words, in order.
func numbersIn(b []byte, word string) []int {
	var out []int
	for len(out) < 64 {
		_, rest, ok := bytes.Cut(b, []byte(word))
		if !ok {
			return out
		}
		if n, _, ok := leadingNumber(rest); ok {
			out = append(out, n)
		}
		b = rest
	}
	return out
}

func hexText(n uint64) string { return "0x" + strconv.FormatUint(n, 16) }
