package evidence

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/hanglab/flight"
)

// torchOps has PyTorch's names of operations as Fact.Op has them.
var torchOps = map[string]string{
	"ALLREDUCE": "all_reduce", "ALLREDUCE_COALESCED": "all_reduce", "_ALLREDUCE_SPARSE": "all_reduce", "ALLREDUCE_SPARSE": "all_reduce",
	"BROADCAST": "broadcast", "_BROADCAST_OOP": "broadcast", "REDUCE": "reduce", "_REDUCE_OOP": "reduce",
	"ALLGATHER": "all_gather", "_ALLGATHER_BASE": "all_gather", "ALLGATHER_BASE": "all_gather", "ALLGATHER_COALESCED": "all_gather",
	"ALLGATHER_INTO_TENSOR_COALESCED": "all_gather",
	"REDUCE_SCATTER":                  "reduce_scatter", "_REDUCE_SCATTER_BASE": "reduce_scatter", "REDUCESCATTER": "reduce_scatter", "REDUCE_SCATTER_TENSOR_COALESCED": "reduce_scatter",
	"ALLTOALL": "all_to_all", "ALLTOALL_BASE": "all_to_all", "GATHER": "gather", "SCATTER": "scatter",
	"SEND": "send", "RECV": "recv", "RECVANYSOURCE": "recv", "BARRIER": "barrier", "MONITORED_BARRIER": "barrier", "COALESCED": "coalesced",
}

func torchOp(name []byte) string {
	if op, ok := torchOps[strings.ToUpper(string(name))]; ok {
		return op
	}
	return strings.ToLower(string(name[:min(len(name), 64)]))
}

// timeoutReader puts together what several lines say about one time-out of one rank.
type timeoutReader struct {
	recent  map[timeoutKey]*storedFact
	said    map[timeoutKey]*storedFact // the last one of whichever rank
	last    map[int]*storedFact        // by rank, else by rank in the group counted from -2 down
	signals map[int]*storedFact
	stackOf *storedFact // whose stack the next lines are
}

type timeoutKey struct {
	rank, groupRank int
	seq             int64
	p2p             bool
}

const maxTimeouts = 1 << 16

// torchGroup reads "[PG ID 0 PG GUID 0(default_pg) Rank 1]", "[PG 0 (default_pg) Rank 3]", "[PG 1 Rank 10]", "[Rank 1]" before at. The rank is the one in
// the group; in the default group that is the global one.
func (f *Fact) torchGroup(line []byte) {
	i := bytes.LastIndex(line, []byte("Rank "))
	if i < 0 {
		return
	}
	n, rest, ok := leadingNumber(line[i+5:])
	if !ok || len(rest) == 0 || rest[0] != ']' {
		return
	}
	f.GroupRank = n
	open := bytes.LastIndexByte(line[:i], '[')
	if open < 0 {
		return
	}
	name, ok := bytes.CutPrefix(line[open+1:i], []byte("PG "))
	if !ok {
		return
	}
	if _, guid, ok := bytes.Cut(name, []byte("GUID ")); ok {
		name = guid
	}
	name = bytes.TrimSpace(name)
	if a, desc, ok := bytes.Cut(name, []byte("(")); ok {
		name = bytes.TrimSpace(a)
		f.GroupDesc = cutText(bytes.TrimRight(desc, ") "), 100)
	}
	f.Group = cutText(name, 100)
}

func cutText(b []byte, most int) string {
	return strings.ToValidUTF8(string(b[:min(len(b), most)]), "?")
}

// isDefault tells that ranks in the group are global ones.
func (f *Fact) isDefault() bool {
	return f.GroupDesc == "default_pg" || f.Group == "0" && f.GroupDesc == ""
}

// timeout takes the watchdog's lines about work that ran out of time.
func (c *logContext) timeout(line []byte, at Where) bool {
	if i := bytes.Index(line, []byte("Stack trace of the failed collective")); i >= 0 {
		return c.failedStack(line, i)
	}
	f := newFact(Timeout, at, line)
	i := bytes.Index(line, []byte("CCL("))
	if i >= 0 && !torchWork(&f, line[i+4:]) {
		return false
	}
	enqueued := bytes.Index(line, []byte("last enqueued"))
	if i < 0 {
		i = enqueued
		seq, ok := numberBehind(line, "work sequence id: ", "at NCCL work: ", "detected by watchdog at work: ", "at work: ")
		if i < 0 || !ok || !bytes.Contains(line, []byte("last completed")) {
			return false
		}
		f.Seq = int64(seq)
	} else if !bytes.Contains(line, []byte("imeout")) && !bytes.Contains(line, []byte("timed out")) && !bytes.Contains(line, []byte("timing out")) {
		return false
	}
	lastWork(&f, line)
	f.torchGroup(line[:i])
	if i := bytes.Index(line, []byte("ran for ")); i > 0 {
		if n, _, ok := leadingNumber(line[i+len("ran for "):]); ok {
			f.RanMs = int64(n)
		}
	}
	c.addTimeout(f)
	return true
}

// torchWork reads "SeqNum=78, OpType=BROADCAST, NumelIn=80, NumelOut=80, Timeout(ms)=600000)", of which early versions have less.
func torchWork(f *Fact, b []byte) bool {
	if end := bytes.Index(b, []byte("Timeout(ms)=")); end >= 0 {
		if n, _, ok := leadingNumber(b[end+len("Timeout(ms)="):]); ok {
			f.TimeoutMs = int64(n)
		}
		b = b[:end]
	}
	for _, field := range []struct {
		name string
		to   *int64
	}{{"SeqNum=", &f.Seq}, {"NumelIn=", &f.NumelIn}, {"NumelOut=", &f.NumelOut}} {
		if n, ok := numberBehind(b, field.name); ok {
			*field.to = int64(n)
		}
	}
	_, op, ok := bytes.Cut(b, []byte("OpType="))
	if !ok {
		return false
	}
	if end := bytes.IndexAny(op, ",) "); end >= 0 {
		op = op[:end]
	}
	f.Op = torchOp(op)
	f.P2P = f.Op == "send" || f.Op == "recv"
	f.GroupSize = sizeOfGroup(string(op), f.NumelIn, f.NumelOut)
	if _, shape, ok := bytes.Cut(b, []byte("TensorShape=[")); ok && f.NumelIn < 0 {
		shape, _, _ = bytes.Cut(shape, []byte("]"))
		if dims := numberList(shape); len(dims) > 0 {
			f.NumelIn = 1
			for _, d := range dims {
				f.NumelIn *= d
			}
		}
	}
	return true
}

// sizeOfGroup is how many ranks take part, from operations whose sides differ by as much; -1 for all others. Lines of early eras name no group, and this tells
// some of them apart.
func sizeOfGroup(op string, in, out int64) int {
	switch strings.ToUpper(op) {
	case "_REDUCE_SCATTER_BASE":
		in, out = out, in
	case "_ALLGATHER_BASE", "ALLGATHER_BASE":
	default:
		return -1
	}
	if in <= 0 || out < in || out%in != 0 || out/in > 1<<20 {
		return -1
	}
	return int(out / in)
}

// lastWork reads the counters of the group in every wording.
func lastWork(f *Fact, line []byte) {
	for _, field := range []struct {
		words []string
		to    *int64
	}{
		{[]string{"last enqueued NCCL work: ", "Last enqueued NCCL work: ", "last enqueued work: ", "Last enqueued work: "}, &f.LastEnqueued},
		{[]string{"last started NCCL work: ", "last started work: "}, &f.LastStarted},
		{[]string{"last completed NCCL work: ", "last completed work: "}, &f.LastCompleted},
	} {
		if n, ok := numberBehind(line, field.words...); ok {
			*field.to = int64(n)
		}
	}
}

// numberList reads numbers with commas between them.
func numberList(b []byte) (out []int64) {
	for part := range bytes.SplitSeq(b, []byte(",")) {
		n, err := strconv.ParseInt(string(bytes.TrimSpace(part)), 10, 64)
		if err != nil || len(out) == 16 {
			return out
		}
		out = append(out, n)
	}
	return out
}

// addTimeout keeps a time-out, or completes the one that an earlier line told of: watchdogs say it in several lines, and again as they end the process.
func (c *logContext) addTimeout(f Fact) *storedFact {
	if f.Rank < 0 && c.prefix.Rank < 0 && c.rank < 0 && f.isDefault() {
		f.Rank = f.GroupRank
	}
	t := &c.timeouts
	if t.recent == nil {
		t.recent, t.last, t.said = map[timeoutKey]*storedFact{}, map[int]*storedFact{}, map[timeoutKey]*storedFact{}
	}
	rank := f.Rank
	if rank < 0 {
		rank = max(c.prefix.Rank, c.rank)
	}
	key := timeoutKey{rank, f.GroupRank, f.Seq, f.P2P}
	old := t.recent[key]
	if old == nil && f.Op == "" { // the line with the counters does not say that it is about a send or receive
		key.p2p = true
		if old = t.recent[key]; old == nil {
			key.p2p = false
		}
	}
	if old != nil && old.Group != "" && f.Group != "" && old.Group != f.Group {
		old = nil
	}
	if rank < 0 && f.RanMs > 0 { // the exception that ends the process says it once more, without a prefix
		if said := t.said[timeoutKey{-1, f.GroupRank, f.Seq, f.P2P}]; said != nil && said.RanMs == f.RanMs && said.Op == f.Op && said.NumelIn == f.NumelIn {
			old = said
		}
	}
	if old != nil {
		old.fill(&f)
	} else {
		old = c.add(f)
		if len(t.recent) < maxTimeouts {
			t.recent[key] = old
			t.said[timeoutKey{-1, f.GroupRank, f.Seq, f.P2P}] = old
		}
	}
	if len(t.last) < maxTimeouts {
		t.last[lastKey(old.Rank, old.GroupRank)] = old
	}
	return old
}

func lastKey(rank, groupRank int) int {
	if rank >= 0 {
		return rank
	}
	return -2 - groupRank
}

// fill takes from g what f does not say.
func (f *Fact) fill(g *Fact) {
	for _, x := range []struct{ to, from *int64 }{
		{&f.Seq, &g.Seq}, {&f.LastEnqueued, &g.LastEnqueued}, {&f.LastStarted, &g.LastStarted}, {&f.LastCompleted, &g.LastCompleted},
		{&f.NumelIn, &g.NumelIn}, {&f.NumelOut, &g.NumelOut}, {&f.TimeoutMs, &g.TimeoutMs}, {&f.RanMs, &g.RanMs},
	} {
		if *x.to < 0 {
			*x.to = *x.from
		}
	}
	for _, x := range []struct{ to, from *string }{
		{&f.Op, &g.Op}, {&f.Group, &g.Group}, {&f.GroupDesc, &g.GroupDesc}, {&f.DType, &g.DType}, {&f.Detail, &g.Detail}, {&f.Phase, &g.Phase},
	} {
		if *x.to == "" {
			*x.to = *x.from
		}
	}
	if f.Peer < 0 {
		f.Peer = g.Peer
	}
	if f.GroupRank < 0 {
		f.GroupRank = g.GroupRank
	}
	if f.GroupSize < 0 {
		f.GroupSize = g.GroupSize
	}
	if f.Time.IsZero() {
		f.Time = g.Time
	}
	f.P2P = f.P2P || g.P2P
}

// failedStack begins the stack of the call that timed out: "#0 all_reduce from /x/train.py:12" on the lines that follow.
func (c *logContext) failedStack(line []byte, at int) bool {
	rest := line[at:]
	if bytes.Contains(rest, []byte("not found")) {
		return true
	}
	var f Fact
	f.Rank, f.GroupRank = max(c.prefix.Rank, c.rank), -1
	f.torchGroup(line[:at])
	if f.Rank < 0 && f.isDefault() {
		f.Rank = f.GroupRank
	}
	c.timeouts.stackOf = c.timeouts.last[lastKey(f.Rank, f.GroupRank)]
	return true
}

// stackLine takes a frame of the stack that has begun.
func (t *timeoutReader) stackLine(c *logContext) bool {
	if t.stackOf == nil {
		return false
	}
	b := skipBlank(c.prefix.text)
	if len(b) == 0 {
		return true
	}
	frame, ok := torchFrame(b)
	if !ok {
		t.stackOf = nil
		return false
	}
	if len(t.stackOf.Stack) < maxTraceFrames {
		t.stackOf.Stack = append(t.stackOf.Stack, frame)
	}
	return true
}

// torchFrame reads "#0 all_reduce from /x/train.py:12".
func torchFrame(b []byte) (f flight.Frame, ok bool) {
	if b[0] != '#' {
		return f, false
	}
	_, rest, ok := leadingNumber(b[1:])
	if !ok || len(rest) < 2 || rest[0] != ' ' {
		return f, false
	}
	i := bytes.LastIndex(rest, []byte(" from "))
	if i < 1 {
		return f, false
	}
	file := rest[i+len(" from "):]
	colon := bytes.LastIndexByte(file, ':')
	if colon < 0 {
		return f, false
	}
	f.Name, f.File = cutText(rest[1:i], 300), cutText(file[:colon], 300)
	f.Line = max(shortNumber(bytes.TrimSpace(file[colon+1:])), 0)
	return f, true
}

// dumpSignal takes the lines of a rank that heard of another's time-out. Last enqueued == last completed there says that it never came to what others wait for.
func (c *logContext) dumpSignal(line []byte, at Where) bool {
	if i := bytes.Index(line, []byte("to signal dumping")); i > 0 {
		f := newFact(FirstToSignal, at, line)
		f.torchGroup(line[:i])
		c.nameDefault(&f)
		c.add(f)
		return true
	}
	i := bytes.Index(line, []byte("dump signal"))
	if i < 0 {
		if i = bytes.Index(line, []byte("global timeout from another")); i < 0 {
			return false
		}
	}
	f := newFact(DumpSignal, at, line)
	f.torchGroup(line[:i])
	c.nameDefault(&f)
	lastWork(&f, line)
	if n, ok := numberBehind(line, "imeout from  rank ", "imeout from rank ", "rror from  rank ", "rror from rank ", "from  rank "); ok {
		f.OtherRank = n
	}
	key := lastKey(f.Rank, f.GroupRank)
	if f.Rank < 0 {
		key = lastKey(max(c.prefix.Rank, c.rank), f.GroupRank)
	}
	if old := c.timeouts.signals[key]; old != nil && old.LastEnqueued < 0 {
		old.fill(&f)
		if old.OtherRank < 0 {
			old.OtherRank = f.OtherRank
		}
		old.Where, old.Text = f.Where, f.Text // the later line is the one that says something
		return true
	}
	if c.timeouts.signals == nil {
		c.timeouts.signals = map[int]*storedFact{}
	}
	s := c.add(f)
	if len(c.timeouts.signals) < maxTimeouts {
		c.timeouts.signals[key] = s
	}
	return true
}

// nameDefault makes the rank in the default group the global one where no prefix says it.
func (c *logContext) nameDefault(f *Fact) {
	if f.Rank < 0 && c.prefix.Rank < 0 && c.rank < 0 && f.isDefault() {
		f.Rank = f.GroupRank
	}
}

// heartbeat takes the monitor's lines about a watchdog that does not come round: this rank's own host side is stuck.
func (c *logContext) heartbeat(line []byte, at Where) bool {
	f := newFact(HostStuck, at, line)
	i := bytes.Index(line, []byte("watchdog got stuck for "))
	if i >= 0 {
		if n, _, ok := leadingNumber(line[i+len("watchdog got stuck for "):]); ok {
			f.RanMs = int64(n) * 1000
		}
	} else if i = bytes.Index(line, []byte("eartbeat monitor timed out")); i < 0 {
		return false
	}
	f.torchGroup(line[:i])
	c.nameDefault(&f)
	c.add(f)
	return true
}

// barrierDevice takes "using GPU 0 to perform barrier as devices used by this process are currently unknown".
func (c *logContext) barrierDevice(line []byte, at Where) bool {
	i := bytes.Index(line, []byte("to perform barrier"))
	if i < 0 {
		return false
	}
	f := newFact(BarrierDevice, at, line)
	f.torchGroup(line[:i])
	c.nameDefault(&f)
	if n, ok := numberBehind(line[:i], "using GPU ", "best-guess GPU ", "using device "); ok {
		f.Code = n
	}
	if n, ok := numberBehind(line[:i], "] Rank "); ok && f.GroupRank < 0 { // "Rank 1 using best-guess GPU 5" of early versions
		f.GroupRank = n
	}
	if f.Rank < 0 && c.prefix.Rank < 0 && c.rank < 0 && f.Group == "" && f.GroupRank >= 0 { // only the first group's barrier does that
		f.Rank = f.GroupRank
	}
	c.add(f)
	return true
}
