package evidence

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Limits of what is kept of one log: the first and the last facts of each kind.
const (
	factsFirst = 8192
	factsLast  = 8192
	factBytes  = 400 // of a fact's text
)

// logContext is one log while it is read: what every reader of lines may ask, and where it puts what it finds.
type logContext struct {
	out     *Evidence // of this input alone: Comms, RAS, Stacks are appended here; facts go through add
	file    string
	rank    int // that the whole input belongs to, -1: unknown
	year    int // for times that are written without one
	prefix  linePrefix
	coll    *collReader
	block   block        // that is open
	heading stackHeading // "Process 4100: …", which the stacks that follow belong to

	facts  map[FactKind]*factList
	added  int
	labels map[string]int // rank of a launcher's label; -1: of several
	bases  map[int]bool   // ranks of hosts' first processes, as lines say that have both numbers
	agents bool           // a task of the launcher is several ranks
	past   bool           // in a text that is no evidence

	traces   traceReader
	elastic  elasticReader
	desync   desyncReader
	timeouts timeoutReader
	exits    exitReader
	checked  map[checkedCall]bool // calls that a comparison has named
	steps    map[int]*storedFact  // last progress by rank
	low      []byte               // scratch: a line in lower case
}

// block is a text of several lines that may stand in a log: a RAS report, the stacks of a process. A reader of blocks offers
//
//	func openBlock(line []byte, at Where, ctx *logContext) block
//
// which is asked about every line while no block is open, so it decides by the first bytes, and gives nil for most.
type block interface {
	// line takes the next line, the opening one first, and tells whether it belongs to the block. The first one that does not ends it.
	line(line []byte, at Where) bool
	// end puts what was read into ctx.out.
	end()
}

// storedFact is a fact with what is needed to put it in order and to find its rank when the log has ended.
type storedFact struct {
	Fact
	order int
	label string // of the process, where the line names no rank
	guess int    // its rank, if the label was never seen with one; -1
	task  bool   // its rank is the number of a launcher's task, which may be a host's agent
	done  bool   // progress: the one that is moved along
	raw   []byte // progress: its line
}

// factList holds the first facts of a kind, and the last ones in a ring.
type factList struct {
	first, last []*storedFact
	n           int
}

func newLogContext(out *Evidence, file string, rank, year int) *logContext {
	c := &logContext{
		out: out, file: file, rank: rank, year: year,
		facts: map[FactKind]*factList{}, labels: map[string]int{}, steps: map[int]*storedFact{},
	}
	c.coll = newCollReader(func(f Fact) { c.add(f) })
	return c
}

// newFact is a fact about nothing yet.
func newFact(kind FactKind, at Where, line []byte) Fact {
	return Fact{
		Kind: kind, Where: at, Text: factText(line), Rank: -1, GroupRank: -1,
		Seq: -1, LastEnqueued: -1, LastStarted: -1, LastCompleted: -1, Peer: -1, NumelIn: -1, NumelOut: -1, TimeoutMs: -1, RanMs: -1,
		Code: -1, OtherRank: -1, LocalRank: -1, GroupSize: -1,
	}
}

// factText is a line as evidence: without blanks around it, cut.
func factText(line []byte) string {
	s := strings.TrimSpace(string(line[:min(len(line), 4*factBytes)]))
	if len(s) > factBytes {
		s = s[:factBytes]
	}
	return strings.ToValidUTF8(s, "?")
}

// add keeps a fact. What it does not say itself it has from the line's prefix, then from the input. The pointer is good until the next add.
func (c *logContext) add(f Fact) *storedFact {
	p := &c.prefix
	s := &storedFact{Fact: f, order: c.added, guess: -1}
	if s.Rank < 0 {
		switch {
		case p.Rank >= 0:
			s.Rank = p.Rank
		case c.rank >= 0 && p.Label == "":
			s.Rank = c.rank
		default:
			s.label, s.guess = p.Label, p.Weak
		}
	}
	s.task = p.Task >= 0 && s.Rank == p.Task && f.Rank < 0
	if s.LocalRank < 0 {
		s.LocalRank = p.Local
	}
	if s.Time.IsZero() {
		s.Time = p.Time
	}
	s.Host = cmp.Or(s.Host, p.Host)
	s.PID = cmp.Or(s.PID, p.PID)
	c.store(s)
	return s
}

// addOther keeps a fact that is not about the rank that the line or the input belongs to.
func (c *logContext) addOther(f Fact) *storedFact {
	s := &storedFact{Fact: f, order: c.added, guess: -1}
	if s.Time.IsZero() {
		s.Time = c.prefix.Time
	}
	c.store(s)
	return s
}

func (c *logContext) store(s *storedFact) {
	c.added++
	list := c.facts[s.Kind]
	if list == nil {
		list = &factList{}
		c.facts[s.Kind] = list
	}
	list.n++
	switch {
	case len(list.first) < factsFirst:
		list.first = append(list.first, s)
	case len(list.last) < factsLast:
		list.last = append(list.last, s)
	default:
		list.last[(list.n-factsFirst-1)%factsLast] = s
	}
}

// learn remembers which rank a launcher's label belongs to.
func (c *logContext) learn() {
	p := &c.prefix
	if p.Rank >= 0 {
		c.agents = c.agents || p.Task >= 0 && p.Task != p.Rank
		c.pair(p.Rank, p.Local)
	}
	if p.Label == "" || p.Rank < 0 {
		return
	}
	have, ok := c.labels[p.Label]
	switch {
	case !ok && len(c.labels) < 1<<16:
		c.labels[p.Label] = p.Rank
	case ok && have != p.Rank:
		c.labels[p.Label] = -1
	}
}

// pair notes that a rank has a number on its host.
func (c *logContext) pair(rank, local int) {
	if local < 0 || local > rank || len(c.bases) > 64 {
		return
	}
	if c.bases == nil {
		c.bases = map[int]bool{}
	}
	c.bases[rank-local] = true
}

// localRank is the rank of a process of the host that this log is of, -1 if it does not say; certain tells that nothing else can say it either.
func (c *logContext) localRank(f *Fact) (rank int, certain bool) {
	if len(c.bases) == 1 {
		for base := range c.bases {
			return base + f.LocalRank, true
		}
	}
	return -1, len(c.bases) > 1 && f.Host == ""
}

// place finds the rank of a fact whose line names another thing than a rank.
func (c *logContext) place(s *storedFact, pids map[int]int, pods bool) {
	if s.task && c.agents {
		s.Rank, s.task = -1, false
	}
	if s.Rank >= 0 {
		return
	}
	if s.label != "" {
		if rank, ok := c.labels[s.label]; ok {
			s.Rank = rank
		} else if rank, ok := pids[s.PID]; ok {
			s.Rank = rank
		} else if pods {
			s.Rank = s.guess
		}
	}
	if s.Rank < 0 && s.LocalRank >= 0 {
		rank, certain := c.localRank(&s.Fact)
		if s.Rank = rank; certain && rank < 0 {
			s.LocalRank = -1
		}
	}
}

// finish gives what was found to the evidence, in the order of lines.
func (c *logContext) finish(in *Input) {
	if c.block != nil {
		c.block.end()
	}
	c.traces.end(c)
	c.elastic.end(c)
	c.out.Comms = append(c.out.Comms, c.coll.finish()...)
	var all []*storedFact
	for _, kind := range slices.Sorted(maps.Keys(c.facts)) {
		list := c.facts[kind]
		all = append(append(all, list.first...), list.last...)
		if left := list.n - len(list.first) - len(list.last); left > 0 {
			in.Notes = append(in.Notes, fmt.Sprintf("%d facts of kind %s between the first %d and the last %d were left out", left, kind, factsFirst, factsLast))
		}
	}
	slices.SortFunc(all, func(a, b *storedFact) int { return cmp.Or(a.Where.Line-b.Where.Line, a.order-b.order) })
	pids := map[int]int{} // agents know a process's local rank, reports its global one
	for _, s := range all {
		if s.PID > 0 && s.Rank >= 0 {
			pids[s.PID] = s.Rank
		}
	}
	pods := true // one has one rank, as far as lines say
	for _, rank := range c.labels {
		pods = pods && rank >= 0
	}
	for _, s := range all {
		if s.raw != nil {
			s.Text = factText(s.raw)
		}
		c.place(s, pids, pods)
		c.out.Facts = append(c.out.Facts, s.Fact)
	}
}
