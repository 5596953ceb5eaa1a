package watch

import (
	"slices"
	"time"
)

// Stage is how far a rank is with an alarm.
type Stage int

// The stages, in their order.
const (
	Watching   Stage = iota // no alarm, or its dumps are done and the job goes on (ReportOnly)
	Dumping                 // the own dump is being written
	Collecting              // the own dump is done or has failed, others' are awaited
	Aborting
	Ended // the process was told to exit, or its communicators are gone (AbortOnly); events change nothing any more
)

func (s Stage) String() string {
	return [...]string{"watching", "dumping", "collecting", "aborting", "ended"}[s]
}

// Machine is the watchdog of one rank, for one life of its communicators: after Ended in AbortOnly, new communicators take a new Machine.
type Machine struct {
	cfg   Config
	now   time.Duration
	out   []Action
	comms map[int]*comm
	ops   ops

	lastError  map[int]string
	startsSeen bool // there are start events, so that "not started" can be told from "not known"
	phase      string
	phaseSince time.Duration
	finished   bool
	sayOpen    bool // at the end of this round: what completed just before the program returned is still to be delivered
	ticked     bool
	lastTick   time.Duration

	stage   Stage
	reason  *Reason // of the alarm; stays when the job goes on, so that there is only one dump
	until   time.Duration
	ownDump bool // done or failed
	dumped  []bool
	toAbort []int
	lateOps int // operations that completed after their deadline had been noticed
}

// New returns a machine that watches.
func New(c Config) (*Machine, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	m := &Machine{cfg: c, comms: map[int]*comm{}, lastError: map[int]string{}, ops: newOps(c.MaxOpen), dumped: make([]bool, c.World)}
	m.dumped[c.Rank] = true // the list is of the others; the stage says how far the own dump is
	return m, nil
}

// Step takes in what happened at that time and returns what is to be done, in order. It never blocks.
func (m *Machine) Step(at time.Duration, e Event) []Action {
	if m.stage == Ended {
		return nil
	}
	m.now = max(m.now, at)
	m.out = nil
	switch e := e.(type) {
	case InitBegun, InitDone, InitFailed, Aborted, AllAborted, AsyncError:
		m.commEvent(e)
	case Enqueued:
		m.enqueued(e)
	case Started:
		m.started(e.ID)
	case Completed:
		m.completed(e.ID)
	case DumpRequested:
		m.heard(e)
	case Dumped:
		if e.Rank >= 0 && e.Rank < m.cfg.World {
			m.dumped[e.Rank] = true
			m.advance()
		}
	case DumpDone:
		m.dumpOver()
	case DumpFailed:
		m.report(DumpError, m.dumpFailedLine(e.Text))
		m.dumpOver()
	case Phase:
		m.phase, m.phaseSince = e.Text, m.now
	case Tick:
		m.tick()
	case Finished:
		m.finished, m.sayOpen = true, true
	}
	return m.out
}

// Stage is how far the machine is. AbortOnly ends without an action, so the caller has to look.
func (m *Machine) Stage() Stage { return m.stage }

// CommStatus is what a machine knows of one communicator.
type CommStatus struct {
	Comm      int
	Name      string
	Making    bool // it is being created
	Coll, P2P Counters
	Open      []OpStatus // oldest first
}

// OpStatus is an open operation.
type OpStatus struct {
	ID       uint64
	Seq      int64
	P2P      bool
	What     string
	Enqueued time.Duration
	Started  bool
	Overdue  bool
}

// Comms is the state of all communicators, by their numbers: for a dump or a status line.
func (m *Machine) Comms() []CommStatus {
	var out []CommStatus
	for _, c := range m.sortedComms() {
		s := CommStatus{Comm: c.id, Name: c.name, Making: c.making, Coll: c.coll, P2P: c.p2p}
		for p := m.ops.oldest; p != nil; p = p.next {
			if p.comm == c {
				s.Open = append(s.Open, OpStatus{p.id, p.seq, p.p2p, p.what, p.enqueued, p.started, p.overdue})
			}
		}
		out = append(out, s)
	}
	return out
}

func (m *Machine) do(a Action) { m.out = append(m.out, a) }

func (m *Machine) report(kind ReportKind, line string) {
	m.do(Report{Kind: kind, Line: line, Comm: -1, Seq: -1})
}

func (m *Machine) commEvent(e Event) {
	switch e := e.(type) {
	case InitBegun:
		m.initBegun(e)
	case InitDone:
		m.initDone(m.comm(e.Comm))
	case InitFailed:
		m.do(Report{Kind: InitError, Line: m.initFailedLine(m.known(e.Comm), e.Text), Comm: e.Comm, Seq: -1})
		m.aborted(e.Comm)
	case Aborted:
		m.aborted(e.Comm)
	case AllAborted:
		for _, c := range m.sortedComms() {
			m.aborted(c.id)
		}
	case AsyncError:
		m.asyncError(e)
	}
}

// comm is the communicator of that number. One that was never announced is known from now on: a report without its name is better than none.
func (m *Machine) comm(id int) *comm {
	c := m.comms[id]
	if c == nil {
		c = &comm{id: id, coll: noneYet, p2p: noneYet, untracked: noUntracked}
		m.comms[id] = c
	}
	return c
}

// known is for reports: it does not bring a communicator that has ended back to life.
func (m *Machine) known(id int) *comm {
	if c := m.comms[id]; c != nil {
		return c
	}
	return &comm{id: id, coll: noneYet, p2p: noneYet, untracked: noUntracked}
}

func (m *Machine) initBegun(e InitBegun) {
	if old := m.comms[e.Comm]; old != nil {
		m.gone(old) // the number is used again
	}
	c := m.comm(e.Comm)
	delete(m.lastError, e.Comm)
	c.name, c.making, c.begun = e.Name, true, m.now
	if m.stage == Aborting && !slices.Contains(m.toAbort, c.id) { // the program has not noticed yet
		m.toAbort = append(m.toAbort, c.id)
		m.do(Abort{[]int{c.id}})
	}
}

func (m *Machine) initDone(c *comm) {
	if c.making && c.overdue && m.stage < Aborting {
		late := m.now - c.begun - m.cfg.Init
		m.do(Report{Kind: InitLate, Line: m.initLateLine(c, late), Comm: c.id, Seq: -1, For: late})
	}
	c.making, c.overdue = false, false
}

func (m *Machine) gone(c *comm) {
	m.ops.drop(c)
	delete(m.comms, c.id)
}

func (m *Machine) enqueued(e Enqueued) {
	if m.stage == Aborting || m.ops.byID[e.ID] != nil { // nothing will come of it, or told twice
		return
	}
	if m.ops.add(m.comm(e.Comm), e, m.now) == nil && !m.ops.extraSaid {
		m.ops.extraSaid = true
		m.report(Untracked, m.untrackedLine())
	}
}

func (m *Machine) started(id uint64) {
	m.startsSeen = true
	p := m.ops.byID[id]
	if p == nil || m.stage == Aborting {
		return
	}
	p.started = true
	n := p.comm.counters(p.p2p)
	n.Started = max(n.Started, p.seq)
}

func (m *Machine) completed(id uint64) {
	p := m.ops.byID[id]
	if p == nil {
		m.ops.uncount(id, m.comms)
		return
	}
	if m.stage == Aborting {
		m.ops.remove(p) // an aborted kernel ends as well: that completes nothing
		return
	}
	n := p.comm.counters(p.p2p)
	n.Completed = max(n.Completed, p.seq)
	n.Started = max(n.Started, p.seq)
	late := *p
	m.ops.remove(p)
	if !late.overdue {
		return
	}
	m.lateOps++
	by := m.now - late.enqueued - m.cfg.Op
	if late.named {
		m.do(Report{Kind: OpLate, Line: m.opLateLine(&late, by), Comm: late.comm.id, Seq: late.seq, Op: late.id, For: by})
	}
	m.recovered(by)
}

// recovered says so when the last operation over its deadline has completed, unless it was the only one.
func (m *Machine) recovered(by time.Duration) {
	for _, c := range m.comms {
		if c.overdueOpen > 0 {
			return
		}
	}
	if m.lateOps > 1 && !m.ops.extraOverdue {
		m.do(Report{Kind: OpLate, Line: m.recoveredLine(by), Comm: -1, Seq: -1, For: by})
	}
	m.lateOps = 0
}

func (m *Machine) asyncError(e AsyncError) {
	if m.stage == Aborting {
		return // what is being aborted reports errors
	}
	if m.lastError[e.Comm] == e.Text {
		return // libraries repeat an error at every question
	}
	m.lastError[e.Comm] = e.Text
	c := m.known(e.Comm)
	line := m.asyncErrorLine(c, e)
	m.do(Report{Kind: CommError, Line: line, Comm: c.id, Seq: -1})
	kind := ReasonError
	if e.Remote {
		kind = ReasonRemote
	}
	m.raise(Reason{Kind: kind, Rank: m.cfg.Rank, Comm: c.name, Seq: -1, Text: line}, false)
}

func (m *Machine) heard(e DumpRequested) {
	if e.From == m.cfg.Rank || m.reason != nil {
		return
	}
	m.report(Heard, m.heardLine(e))
	m.raise(e.Reason, true)
}

// raise starts what follows an alarm; it does so once.
func (m *Machine) raise(r Reason, heard bool) {
	if m.reason != nil {
		return
	}
	m.reason = &r
	m.stage, m.ownDump = Dumping, false
	m.until = m.now + m.cfg.DumpWait
	if !heard {
		m.do(RequestDump{r})
	}
	m.do(Dump{r})
}

func (m *Machine) dumpOver() {
	m.ownDump = true
	if m.stage == Dumping {
		m.stage = Collecting
	}
	m.advance()
}

func (m *Machine) missingDumps() (ranks []int) {
	for r, ok := range m.dumped {
		if !ok {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// advance goes on when what a stage waits for has come.
func (m *Machine) advance() {
	switch {
	case m.stage == Collecting && !slices.Contains(m.dumped, false):
		m.dumpsOver()
	case m.stage == Aborting && len(m.toAbort) == 0:
		m.abortOver(true)
	}
}

func (m *Machine) dumpsOver() {
	switch m.cfg.Mode {
	case ReportOnly:
		m.stage = Watching
	case ExitAtOnce:
		m.exit(false)
	default:
		m.abort()
	}
}

func (m *Machine) abort() {
	for _, c := range m.sortedComms() {
		m.toAbort = append(m.toAbort, c.id)
	}
	m.stage = Aborting
	m.until = m.now + m.cfg.AbortWait
	if len(m.toAbort) > 0 {
		m.do(Abort{slices.Clone(m.toAbort)})
	}
	m.advance()
}

// aborted takes note that a communicator is gone, also one that the program itself has ended.
func (m *Machine) aborted(id int) {
	c := m.comms[id]
	if c == nil {
		return
	}
	m.gone(c)
	m.toAbort = slices.DeleteFunc(m.toAbort, func(x int) bool { return x == id })
	if m.stage == Aborting {
		m.advance()
	}
}

func (m *Machine) abortOver(clean bool) {
	if m.cfg.Mode == AbortOnly {
		m.stage = Ended
		return
	}
	m.exit(clean)
}

func (m *Machine) exit(clean bool) {
	m.stage = Ended
	m.do(Exit{Code: m.reason.exitCode(), Clean: clean, Reason: *m.reason})
}

func (m *Machine) tick() {
	if gap := m.now - m.lastTick; m.ticked && m.cfg.Heartbeat > 0 && gap >= m.cfg.Heartbeat {
		m.do(Report{Kind: RoundLate, Line: m.roundLateLine(gap), Comm: -1, Seq: -1, For: gap})
	}
	m.ticked, m.lastTick = true, m.now
	if n := m.ops.open(); m.sayOpen && n > 0 && m.stage < Aborting {
		m.report(OpenAtEnd, m.openAtEndLine(n))
	}
	m.sayOpen = false
	if m.stage < Aborting {
		m.expire()
	}
	if m.now < m.until {
		return
	}
	switch m.stage {
	case Dumping, Collecting:
		m.report(DumpsMissing, m.dumpsMissingLine())
		m.dumpsOver()
	case Aborting:
		m.report(AbortHangs, m.abortHangsLine())
		m.abortOver(false)
	}
}

// expiry is the oldest of what has passed its deadline in one round.
type expiry struct {
	op   *op
	comm *comm // a creation, if op is nil
	at   time.Duration
	n    int // all of this round
}

// take counts one more, and names it if it is older than what is named so far. One whose communicator is already known to be stuck is a
// consequence and only counted.
func (x *expiry) take(p *op, c *comm, at time.Duration, known bool) {
	x.n++
	if !known && (x.comm == nil || at < x.at) {
		x.op, x.comm, x.at = p, c, at
	}
}

// expire finds what has passed its deadline since the last round, says so, and raises the alarm.
func (m *Machine) expire() {
	var x expiry
	for _, c := range m.sortedComms() {
		if c.making && !c.overdue && m.cfg.Init > 0 && m.now-c.begun >= m.cfg.Init {
			c.overdue = true
			x.take(nil, c, c.begun, false)
		}
	}
	if m.cfg.Op > 0 {
		m.expireOps(&x)
	}
	if x.comm == nil {
		m.expireExtra()
		return
	}
	line, kind, why := "", InitTimeout, Reason{Kind: ReasonInit, Rank: m.cfg.Rank, Comm: x.comm.name, Seq: -1}
	r := Report{Comm: x.comm.id, Seq: -1, For: m.now - x.at}
	if x.op == nil {
		line = m.initTimeoutLine(x.comm, x.n-1)
	} else {
		x.op.named = true
		line, kind = m.opTimeoutLine(x.op, x.n-1), OpTimeout
		why.Kind, why.Seq, why.P2P = ReasonOp, x.op.seq, x.op.p2p
		r.Seq, r.Op = x.op.seq, x.op.id
	}
	r.Kind, r.Line, why.Text = kind, line, line
	m.do(r)
	m.raise(why, false)
}

func (m *Machine) expireOps(x *expiry) {
	var fresh []*op
	for p := m.ops.oldest; p != nil && m.now-p.enqueued >= m.cfg.Op; p = p.next {
		if !p.overdue {
			p.overdue = true
			fresh = append(fresh, p)
			x.take(p, p.comm, p.enqueued, p.comm.overdueOpen > 0)
		}
	}
	for _, p := range fresh { // after the choice: those of this round do not hide each other
		p.comm.overdueOpen++
	}
}

// expireExtra raises the alarm for operations that are only counted, when nothing that has a name does.
func (m *Machine) expireExtra() {
	o := &m.ops
	if o.extra == 0 || o.extraOverdue || m.cfg.Op == 0 || m.now-o.extraSince < m.cfg.Op {
		return
	}
	o.extraOverdue = true
	if m.reason != nil {
		return
	}
	line := m.extraTimeoutLine()
	m.do(Report{Kind: OpTimeout, Line: line, Comm: -1, Seq: -1, For: m.now - o.extraSince})
	m.raise(Reason{Kind: ReasonOp, Rank: m.cfg.Rank, Seq: -1, Text: line}, false)
}
