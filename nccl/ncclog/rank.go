package ncclog

import (
	"bytes"
	"strconv"
)

// rank is a Rank while it is being read. What only one rank of a communicator prints is kept here until Finish.
type rank struct {
	*Rank
	proc  *process
	comm  *comm // nil: its identity has not been printed
	ptr   uint64
	edges map[edgeKey]struct{}
	calls *callState

	rings      []Ring
	heads      []NVLSHead
	tuning     []TuningCell
	tuned      map[tuneKey]struct{}
	max        []TuningMax
	matrix     []MatrixCell
	selections map[selKey]*Selection
	chosen     []*Selection
	cc         *Fact[bool]
	direct     *Fact[string]
	forced     []Fact[string]
}

// comm is a Comm while it is being read.
type comm struct {
	*Comm
	key     string // for those without an id
	id      uint64
	members []*rank
	byRank  map[int]*rank
	seq     sequence
}

// rankForms are messages about one rank of one communicator.
var rankForms = []infoForm{
	{"Channel ", channel},
	{"comm 0x", initLine},
	{"comm ", initLine},
	{"ncclCommInitRank ", initLine}, {"ncclCommInitRankConfig ", initLine}, {"ncclCommInitAll ", initLine}, {"ncclCommInitRankScalable ", initLine},
	{"ncclCommSplit ", initLine}, {"ncclCommShrink ", initLine}, {"ncclCommGrow ", initLine},
	{"Using network ", func(r *Reader, t *thread, msg, rest []byte) {
		x := r.fresh(t)
		if x.Network == nil {
			x.Network = &Fact[string]{r.str(bytes.TrimSpace(rest)), r.evidence(msg)}
		}
		addFact(r, &t.proc.Networks, bytes.TrimSpace(rest), msg)
		r.milestone(x, "network", msg)
	}},
	{"Trees [", trees}, {"NVLS Trees : ", nvlsTrees}, {"Tree ", treeLine}, {"Ring ", ringLine}, {"NVLS Head ", nvlsHead}, {"NVLS comm ", nvlsLine},
	{"CollNet ", collnetChannel}, {"CollNetDirect channel ", nil}, {"CollNetChain channel", nil},
	{"Connected to proxy localRank ", nil}, {"Connected ", connected}, {"rank ", connected},
	{"P2P Chunksize set to ", func(r *Reader, t *thread, msg, rest []byte) {
		c := at(rest)
		n := c.num()
		if x := r.rankOf(t); x.P2PChunk == nil && !c.bad {
			x.P2PChunk = &Fact[int]{n, r.evidence(msg)}
			r.milestone(x, "channels", msg)
		}
	}},
	{"threadThresholds ", func(r *Reader, t *thread, msg, rest []byte) {
		if x := r.rankOf(t); x.Thresholds == nil {
			x.Thresholds = &Fact[string]{r.str(rest), r.evidence(msg)}
		}
	}},
	{"Pattern ", pattern},
	{"Init timings", initTimings},
	{"Bootstrap timings total ", bootstrapTimings},
	{"bootstrapSplit: ", nil},
	{"GPU Direct RDMA ", gdr},
	{"GPU ", func(r *Reader, t *thread, msg, _ []byte) {
		if contains(msg, "C2C link") {
			r.notice(t, "c2c-link", msg)
		} else {
			r.unknownKind(msg)
		}
	}},
	{"MNNVL ", func(r *Reader, t *thread, msg, rest []byte) {
		if x := r.rankOf(t); x.Clique == nil {
			x.Clique = &Fact[string]{r.str(rest), r.evidence(msg)}
		}
	}},
	{"Rank ", func(r *Reader, t *thread, msg, rest []byte) {
		c := at(rest)
		me := c.num()
		c.lit(": ")
		n := c.num()
		if c.lit(" Net devices") {
			if x := r.rankOf(t); x.Rank.Rank < 0 || x.Rank.Rank == me {
				x.NetDevs = &Fact[int]{n, r.evidence(msg)}
			}
		}
	}},
	{"CC On", ccLine}, {"CC Off", ccLine},
	{"Check P2P Type ", func(r *Reader, t *thread, msg, rest []byte) {
		if x := r.rankOf(t); x.direct == nil {
			x.direct = &Fact[string]{r.str(rest), r.evidence(msg)}
			switch {
			case contains(rest, "isAllCudaP2p"):
				t.proc.form(28, 99)
			case contains(rest, "isAllDirectP2p"):
				t.proc.form(27, 28)
			default:
				t.proc.form(24, 26)
			}
		}
	}},
	{"Disabling LL128", forced}, {"User asked for a ", forced}, {"Enabled LL128", forced}, {"NVLS tuning", forced},
	{"Enabled NCCL Func/Proto/Algo Matrix:", func(r *Reader, t *thread, _, _ []byte) { r.matrix = t }},
}

func newRank(p *process) *rank {
	x := &rank{Rank: &Rank{Rank: -1, Process: p.Process, Proc: p.Index, CudaDev: -1, NvmlDev: -1}, proc: p}
	p.ranks = append(p.ranks, x)
	return x
}

// fresh is the rank that a line about the beginning of an initialisation belongs to.
func (r *Reader) fresh(t *thread) *rank {
	if t.next == nil {
		if t.cur != nil && t.cur.Complete == nil && t.cur.Start != nil && t.cur.Network == nil {
			return t.cur
		}
		t.next = newRank(t.proc)
		t.next.TID = t.tid
	}
	return t.next
}

// rankOf is the rank that a line in the middle of an initialisation, or after it, belongs to.
func (r *Reader) rankOf(t *thread) *rank {
	if t.next != nil {
		return t.next
	}
	if t.cur != nil {
		return t.cur
	}
	for i := len(t.proc.ranks) - 1; i >= 0; i-- { // connections are made later, by other threads
		if x := t.proc.ranks[i]; x.comm != nil && (t.dev < 0 || x.CudaDev == t.dev) {
			t.cur = x
			return x
		}
	}
	return r.fresh(t)
}

// rankNumber is the rank with this number that a line of t belongs to; a connection names its ranks, but not its communicator.
func (r *Reader) rankNumber(t *thread, me int) *rank {
	for _, x := range [...]*rank{t.next, t.cur, t.proc.last} {
		if x != nil && (x.Rank.Rank == me || x == t.next && x.Rank.Rank < 0) {
			x.Rank.Rank = me
			return x
		}
	}
	for i := len(t.proc.ranks) - 1; i >= 0; i-- {
		if x := t.proc.ranks[i]; x.Rank.Rank == me {
			if x.comm == nil {
				t.next = x
			} else {
				t.cur = x
			}
			return x
		}
	}
	if t.cur != nil && t.cur.Rank.Rank < 0 {
		t.cur.Rank.Rank = me
		return t.cur
	}
	t.next = nil
	x := r.fresh(t)
	if x.Rank.Rank < 0 {
		x.Rank.Rank = me
	}
	return x
}

func (r *Reader) milestone(x *rank, name string, msg []byte) {
	for i := range x.Milestones {
		if x.Milestones[i].Value == name {
			return
		}
	}
	x.Milestones = append(x.Milestones, Fact[string]{name, r.evidence(msg)})
}

// identity is what an Init, Destroy or nRanks line says.
type identity struct {
	ptr, id, parent                      uint64
	rank, nranks, cuda, nvml             int
	bus                                  []byte
	api                                  []byte
	color, split                         int
	hasID, hasParent, hasColor, hasSplit bool
	nodes, localRanks, localRank, mnnvl  int
	state                                []byte // "Init START"; nil: the line was cut, or has none
	tail                                 []byte // the tail of another record that got into this one
}

// parseIdentity reads "[api ]comm 0x… rank 3 nranks 8 … - Init COMPLETE" of every version.
func parseIdentity(msg []byte) (id identity, ok bool) {
	id.rank, id.nranks, id.cuda, id.nvml = -1, 0, -1, -1
	c := at(msg)
	w := c.word()
	if string(w) != "comm" {
		id.api = w
		if string(c.word()) != "comm" {
			return id, false
		}
	}
	c.blanks()
	id.ptr = c.hex()
	if c.bad {
		return id, false
	}
	for {
		c.blanks()
		if c.try("- ") {
			id.state = bytes.TrimRight(c.b, " ")
			break
		}
		if c.bad || len(c.b) == 0 {
			break
		}
		id.field(c)
	}
	if id.rank >= maxRanks || id.nranks > maxRanks {
		return id, false
	}
	return id, id.rank >= 0 || id.state != nil
}

// field reads one "name value". What it does not know it steps over.
func (id *identity) field(c *cursor) {
	switch w := c.word(); string(w) {
	case "rank":
		id.rank = c.num()
	case "nranks", "nRanks":
		id.nranks = c.num()
	case "cudaDev":
		id.cuda = c.num()
	case "nvmlDev":
		id.nvml = c.num()
	case "busId":
		id.bus = c.word()
		if hasSuffix(id.bus, ",") && hasPrefix(c.b, " bootstrap ") { // the tail of a line of timings got into this one; its first number has one digit before the point
			if dot := bytes.IndexByte(id.bus, '.'); dot > 0 {
				id.tail = append(append([]byte(nil), id.bus[dot-1:]...), c.b...)
				id.bus = id.bus[:dot-1]
			}
			c.b = nil
		}
	case "commId":
		c.blanks()
		id.id, id.hasID = c.hex(), true
	case "parent":
		c.blanks()
		id.parent, id.hasParent = c.hex(), true
	case "color":
		id.color, id.hasColor = c.num(), true
	case "splitCount", "childCount":
		id.split, id.hasSplit = c.num(), true
	case "key":
		c.num()
	case "nNodes":
		id.nodes = c.num()
	case "localRanks":
		id.localRanks = c.num()
	case "localRank":
		id.localRank = c.num()
	case "MNNVL":
		id.mnnvl = c.num()
	}
}

func initLine(r *Reader, t *thread, msg, _ []byte) {
	id, ok := parseIdentity(msg)
	if !ok {
		r.log.Counts.Torn++
		return
	}
	if id.tail != nil {
		r.tail(id.tail)
	}
	switch {
	case id.nodes > 0:
		r.placed(t, id, msg)
	case hasPrefix(id.state, "Init S"), hasPrefix(id.state, "Init C"):
		r.bind(t, id, msg)
	case len(id.state) > len("Init "):
		r.ended(t, id, msg)
	case id.bus != nil || id.nranks > 0: // cut
		r.keepOpen(t, 'i', msg[:len(msg)-len(id.tail)])
	}
}

// bind gives a rank its identity, at Init START or COMPLETE.
func (r *Reader) bind(t *thread, id identity, msg []byte) {
	p := t.proc
	start := hasPrefix(id.state, "Init S") // the end may be cut
	x := p.byPtr[id.ptr]
	same := x != nil && x.Rank.Rank == id.rank && id.hasID && x.comm != nil && x.comm.id == id.id                     // e.g. stdout and NCCL_DEBUG_FILE of one process
	if x != nil && !same && (x.End != nil || start && x.Complete != nil && t.next != nil || x.Rank.Rank != id.rank) { // the address is used again
		x = nil
	}
	if x == nil {
		if x = t.next; x == nil || x.Rank.Rank >= 0 && x.Rank.Rank != id.rank {
			t.next = nil
			x = r.fresh(t)
		}
		r.identify(x, id)
		p.byPtr[id.ptr] = x
	} else if t.next != nil && t.next != x {
		x.adopt(t.next)
		p.forget(t.next)
	}
	t.next, t.cur = nil, x
	x.TID = t.tid
	r.initForm(t, id)
	line := r.evidence(msg)
	if start && x.Start == nil {
		x.Start = &line
		x.Milestones = append(x.Milestones, Fact[string]{"start", line})
	} else if !start && x.Complete == nil {
		x.Complete = &line
		x.Milestones = append(x.Milestones, Fact[string]{"complete", line})
	}
}

// forget drops a rank whose facts another one has taken over.
func (p *process) forget(x *rank) {
	if n := len(p.ranks); n > 0 && p.ranks[n-1] == x {
		p.ranks = p.ranks[:n-1]
	}
}

func (r *Reader) identify(x *rank, id identity) {
	x.Rank.Rank, x.CudaDev, x.NvmlDev = id.rank, id.cuda, id.nvml
	x.BusID, x.ptr = r.str(id.bus), id.ptr
	x.Pointer = "0x" + strconv.FormatUint(id.ptr, 16)
	x.Config = append(x.Config, x.proc.config...)
	x.proc.configUsed = true
	r.join(x, id)
}

// adopt takes over what was read before the rank's identity was known.
func (x *rank) adopt(y *rank) {
	if x.Network == nil {
		x.Network = y.Network
	}
	if len(x.Trees) == 0 {
		x.Trees = y.Trees
	}
	if len(x.Edges) == 0 {
		x.Edges, x.edges = y.Edges, y.edges
	}
	if x.Totals == nil {
		x.Totals = y.Totals
	}
	if x.P2PChunk == nil {
		x.P2PChunk = y.P2PChunk
	}
	if len(x.rings) == 0 {
		x.rings = y.rings
	}
	if len(x.tuning) == 0 {
		x.tuning, x.max = y.tuning, y.max
	}
	if len(x.GDR) == 0 {
		x.GDR = y.GDR
	}
	if len(x.Graphs) == 0 {
		x.Graphs, x.RingLinks = y.Graphs, y.RingLinks
	}
	if len(x.chosen) == 0 {
		x.chosen, x.selections = y.chosen, y.selections
	}
	y.Rank.Rank = -2 // taken
}

// initForm narrows the version by the form of the line.
func (r *Reader) initForm(t *thread, id identity) {
	switch {
	case len(id.api) > 0 && string(id.api) != "ncclCommInitRank" && string(id.api) != "ncclCommSplit":
		t.proc.form(23, 99)
	case len(id.api) > 0:
		t.proc.form(21, 99)
	case string(id.state) == "Init START":
		t.proc.form(18, 20)
	case id.hasID && id.nvml < 0:
		t.proc.form(16, 18)
	case id.hasID:
		t.proc.form(18, 20)
	case string(id.state) == "Init COMPLETE":
		t.proc.form(10, 14)
	}
}

// join puts a rank into its communicator.
func (r *Reader) join(x *rank, id identity) {
	parent := -1
	if id.hasParent {
		if p := x.proc.byPtr[id.parent]; p != nil && p.comm != nil {
			parent = p.comm.Index
		}
	}
	c := r.commFor(x, id, parent)
	if c == nil {
		r.drop("communicators")
		return
	}
	if c.NRanks == 0 {
		c.NRanks = id.nranks
	}
	if c.Parent < 0 {
		c.Parent = parent
	}
	if c.API == "" {
		c.API = r.str(id.api)
	}
	if id.hasColor && c.Color == nil {
		c.Color = &id.color
	}
	if id.hasSplit && c.Split == nil {
		c.Split = &id.split
	}
	c.add(x)
}

func (c *comm) add(x *rank) {
	x.comm = c
	c.members = append(c.members, x)
	if x.Rank.Rank >= 0 {
		c.byRank[x.Rank.Rank] = x
	}
}

func (r *Reader) commFor(x *rank, id identity, parent int) *comm {
	var key [96]byte
	k := key[:0]
	if id.hasID {
		k = strconv.AppendUint(k, id.id, 16)
		if c := r.byID[string(k)]; c != nil {
			return c
		}
		c := r.newComm(parent)
		if c != nil {
			c.ID, c.id = string(k), id.id
			r.byID[c.ID] = c
		}
		return c
	}
	if !id.hasParent && id.state == nil { // cut before the id: the latest one that lacks this rank
		for i := len(r.comms) - 1; i >= 0; i-- {
			if c := r.comms[i]; c.NRanks == id.nranks && c.byRank[id.rank] == nil {
				return c
			}
		}
	}
	k = strconv.AppendInt(append(k, 'n'), int64(id.nranks), 10)
	if id.hasParent {
		k = strconv.AppendInt(append(k, 'p'), int64(parent), 10)
		k = strconv.AppendInt(append(k, 'c'), int64(id.color), 10)
		k = strconv.AppendInt(append(k, 's'), int64(id.split), 10)
	}
	for _, c := range r.comms {
		if c.key == string(k) && c.byRank[id.rank] == nil {
			return c
		}
	}
	c := r.newComm(parent)
	if c != nil {
		c.key = string(k)
	}
	return c
}

func (r *Reader) newComm(parent int) *comm {
	if len(r.comms) >= maxComms {
		return nil
	}
	c := &comm{Comm: &Comm{Index: len(r.comms), Parent: parent}, byRank: map[int]*rank{}}
	r.comms = append(r.comms, c)
	return c
}

// placed takes "comm … rank … nRanks … nNodes … localRanks …".
func (r *Reader) placed(t *thread, id identity, msg []byte) {
	x := t.proc.byPtr[id.ptr]
	if x == nil {
		if x = r.rankOf(t); x.comm != nil || x.Rank.Rank >= 0 && x.Rank.Rank != id.rank {
			t.next = nil
			x = r.fresh(t)
		}
		x.Rank.Rank = id.rank
	}
	if x.Placed == nil {
		line := r.evidence(msg)
		x.NNodes, x.LocalRanks, x.LocalRank, x.MNNVL, x.Placed = id.nodes, id.localRanks, id.localRank, id.mnnvl, &line
		t.proc.form(20, 99)
		x.Milestones = append(x.Milestones, Fact[string]{"topology", line})
	}
}

// ended takes Destroy, Abort and Revoke lines.
func (r *Reader) ended(t *thread, id identity, msg []byte) {
	x := t.proc.byPtr[id.ptr]
	if x == nil { // pasted logs may have other addresses at the end
		for _, c := range r.comms {
			if y := c.byRank[id.rank]; y != nil && c.NRanks == id.nranks && y.End == nil && y.BusID == string(id.bus) && y.proc.Host == t.proc.Host {
				x = y
				break
			}
		}
	}
	if x != nil {
		x.End = &Fact[string]{r.str(id.state), r.evidence(msg)}
	}
}

// keepOpen remembers a record whose tail may come later. Without an end of its own it says too little.
func (r *Reader) keepOpen(t *thread, kind byte, msg []byte) {
	if len(r.open) == maxOpen {
		r.settle(r.open[0])
		r.open = append(r.open[:0], r.open[1:]...)
	}
	r.open = append(r.open, openRecord{t, kind, append([]byte(nil), msg...)})
}

// settle takes an open record whose tail never came for what it is.
func (r *Reader) settle(o openRecord) {
	if o.kind != 'i' {
		return
	}
	id, ok := parseIdentity(o.msg)
	if !ok || id.nranks == 0 || id.rank < 0 || id.rank >= id.nranks {
		return
	}
	if x := o.t.proc.byPtr[id.ptr]; x != nil {
		return
	}
	x := o.t.next
	if x == nil || x.Rank.Rank >= 0 && x.Rank.Rank != id.rank {
		o.t.next = nil
		x = r.fresh(o.t)
	}
	r.identify(x, id)
	o.t.proc.byPtr[id.ptr] = x
	o.t.next, o.t.cur = nil, x
}

// tail completes an open record with the rest of it. It reports whether there was one that it fits.
func (r *Reader) tail(b []byte) bool {
	kind := byte(0)
	switch {
	case hasSuffix(b, "- Init COMPLETE") || hasSuffix(b, "- Init START"):
		kind = 'i'
	case contains(b, ", rest ") && hasSuffix(b, ")"):
		kind = 't'
	case contains(b, "nvlsTotalSize "):
		kind = 'n'
	default:
		return false
	}
	for i, o := range r.open {
		if o.kind != kind {
			continue
		}
		r.open = append(r.open[:i], r.open[i+1:]...)
		r.info(o.t, append(o.msg, b...))
		return true
	}
	return false
}

func ccLine(r *Reader, t *thread, msg, rest []byte) {
	t.proc.form(22, 99)
	if x := r.rankOf(t); x.cc == nil {
		x.cc = &Fact[bool]{hasPrefix(msg, "CC On"), r.evidence(msg)}
	}
}

func forced(r *Reader, t *thread, msg, _ []byte) { addFact(r, &r.rankOf(t).forced, msg, msg) }

func initTimings(r *Reader, t *thread, msg, rest []byte) {
	x := InitTimings{Alloc: -1}
	c := at(rest)
	if !c.find("rank ") {
		return
	}
	me := c.num()
	if c.bad || !c.find("total ") {
		return
	}
	x.Total = c.float()
	c.find("(")
	if i := bytes.Index(c.b, []byte(" commId ")); i >= 0 { // the tail of an Init line got in: what is left of this one ends at a number
		if j := bytes.Index(c.b, []byte("alloc ")); j >= 0 && j < i {
			r.tail(c.b[j+len("alloc "):])
			r.keepOpen(t, 't', msg[:bytes.Index(msg, []byte("alloc "))+len("alloc ")])
			return
		}
	}
	if !contains(c.b, "rest ") {
		r.keepOpen(t, 't', msg)
		return
	}
	for len(c.b) > 0 && !c.bad {
		name := string(c.word())
		v := c.float()
		switch name {
		case "kernels":
			x.Kernels = v
		case "alloc":
			x.Alloc = v
		case "bootstrap":
			x.Bootstrap = v
		case "allgathers":
			x.AllGathers = v
		case "topo":
			x.Topo = v
		case "graphs":
			x.Graphs = v
		case "connections":
			x.Connections = v
		case "rest":
			x.Rest = v
		}
		if !c.try(", ") {
			break
		}
	}
	t.proc.form(22, 99)
	if me < 0 || me >= maxRanks || c.bad {
		return
	}
	if y := r.rankNumber(t, me); y.Init == nil {
		x.At = r.evidence(msg)
		y.Init = &x
	}
}

func bootstrapTimings(r *Reader, t *thread, msg, rest []byte) {
	c := at(rest)
	x := BootstrapTimings{Total: c.float()}
	c.lit(" (create ")
	x.Create = c.float()
	c.lit(", send ")
	x.Send = c.float()
	c.lit(", recv ")
	x.Recv = c.float()
	c.lit(", ring ")
	x.Ring = c.float()
	if c.try(", delay ") {
		x.Delay = c.float()
	}
	if c.bad {
		return
	}
	t.proc.form(23, 99)
	if y := r.rankOf(t); y.Bootstrap == nil {
		x.At = r.evidence(msg)
		y.Bootstrap = &x
		r.milestone(y, "bootstrap", msg)
	}
}
