package watch

import (
	"maps"
	"reflect"
	"strings"
	"time"
)

// account is what the simulation knows of one rank's watchdog, apart from the machine.
type account struct {
	openVisits int // told to have begun, not told to have ended

	dumpAt, abortAt, endAt time.Duration // -1: not yet
	lastTick, lastBeat     time.Duration
	ownDumpOver            bool
	knownDumps             map[int]bool
	aborts                 map[int]bool // asked for, not done
	heard                  bool
	dumps, requests        int
	timeouts               int // reports of an own time-out
	counts                 map[int][2]Counters
	gaps                   time.Duration // longest time between two rounds

	monitorDump, stuckAt time.Duration
}

func newAccount(n int) account {
	return account{dumpAt: -1, abortAt: -1, endAt: -1, lastTick: -1, knownDumps: make(map[int]bool, n), aborts: map[int]bool{},
		counts: map[int][2]Counters{}, monitorDump: -1, stuckAt: -1}
}

// before books an event that the machine is about to be told.
func (r *simRank) before(e Event) {
	switch e := e.(type) {
	case InitBegun:
		r.counts[e.Comm] = [2]Counters{noneYet, noneYet}
	case Enqueued:
		r.book(r.visits[len(r.visits)-1], func(c *Counters, seq int64) { c.Enqueued = max(c.Enqueued, seq) })
	case Started:
		r.book(r.visit(e.ID), func(c *Counters, seq int64) { c.Started = max(c.Started, seq) })
	case Completed:
		r.book(r.visit(e.ID), func(c *Counters, seq int64) { c.Completed, c.Started = max(c.Completed, seq), max(c.Started, seq) })
	case DumpDone, DumpFailed:
		r.ownDumpOver = true
	case Aborted:
		delete(r.aborts, e.Comm)
	case Tick:
		if r.lastTick >= 0 {
			r.gaps = max(r.gaps, r.s.now-r.lastTick)
		}
	}
}

func (r *simRank) visit(id uint64) *visit {
	for _, v := range r.visits {
		if v.op && v.id == id {
			return v
		}
	}
	return nil
}

func (r *simRank) book(v *visit, f func(*Counters, int64)) {
	if r.abortAt >= 0 { // from the abort on, nothing counts
		return
	}
	both := r.counts[v.comm]
	kind := 0
	if v.p2p {
		kind = 1
	}
	f(&both[kind], v.seq)
	r.counts[v.comm] = both
}

// checkStep holds what the machine answers against what is true.
func (r *simRank) checkStep(e Event, actions []Action) {
	s, m := r.s, r.machine
	last := 0
	for i, a := range actions {
		order := r.checkAction(a)
		if order < last {
			s.fail("rank %d: order: %T comes too late in %+v", r.rank, a, actions)
		}
		last = max(last, order)
		if _, ok := a.(Dump); ok && i == 0 {
			s.fail("rank %d: order: a dump without a word why", r.rank)
		}
	}
	if _, ok := e.(Tick); ok {
		r.checkTick()
		r.lastTick = s.now
	}
	if _, ok := e.(AsyncError); ok && m.reason == nil {
		s.fail("rank %d: an asynchronous error raised no alarm", r.rank)
	}
	if _, ok := e.(DumpRequested); ok && m.reason == nil {
		if e.(DumpRequested).From != r.rank {
			s.fail("rank %d: heard a request and does not dump", r.rank)
		}
	}
	if m.stage == Ended {
		r.endAt = s.now
		return
	}
	for c, want := range r.counts {
		got := m.comms[c]
		if got != nil && (got.coll != want[0] || got.p2p != want[1]) {
			s.fail("rank %d: counters: communicator %d has %v %v, want %v", r.rank, c, got.coll, got.p2p, want)
		}
	}
	if r.abortAt < 0 {
		if open := len(m.ops.byID); open != r.toldOpen() {
			s.fail("rank %d: open operations: the machine has %d, want %d", r.rank, open, r.toldOpen())
		}
	}
}

func (r *simRank) toldOpen() (n int) {
	for _, v := range r.visits {
		if v.op && !v.told {
			n++
		}
	}
	return n
}

// checkAction returns the place of an action in the order that all alarms have.
func (r *simRank) checkAction(a Action) int {
	s := r.s
	mode := s.cfg.Mode
	switch a := a.(type) {
	case Report:
		s.kinds[string(a.Kind)]++
		r.checkReport(a)
		return 0
	case RequestDump:
		if r.requests++; r.requests > 1 || r.heard {
			s.fail("rank %d: request: asks for dumps %d times, heard %t", r.rank, r.requests, r.heard)
		}
		return 1
	case Dump:
		if r.dumps++; r.dumps > 1 {
			s.fail("rank %d: dumps %d times", r.rank, r.dumps)
		}
		r.dumpAt = s.now
		return 2
	case Abort:
		s.kinds["abort"]++
		if mode == ReportOnly || mode == ExitAtOnce {
			s.fail("rank %d: mode: aborts in mode %d", r.rank, mode)
		}
		if r.abortAt < 0 {
			r.checkWaited("aborts")
			r.abortAt = s.now
			if got, want := len(a.Comms), len(r.comms); got != want {
				s.fail("rank %d: mode: aborts %v of the communicators %v", r.rank, a.Comms, r.comms)
			}
		}
		for _, c := range a.Comms {
			r.aborts[c] = true
		}
		return 3
	case Exit:
		r.checkExit(a)
		return 4
	}
	return 0
}

// checkWaited: nobody goes on before its own dump and all others' are done, or the wait for them is over.
func (r *simRank) checkWaited(does string) {
	r.knownDumps[r.rank] = true
	if r.dumpAt < 0 || r.s.now < r.dumpAt+r.s.cfg.DumpWait && (!r.ownDumpOver || len(r.knownDumps) < r.s.n) {
		r.s.fail("rank %d: wait: %s with own dump over %t, known %v, dump begun at %v", r.rank, does, r.ownDumpOver, r.knownDumps, r.dumpAt)
	}
}

func (r *simRank) checkExit(a Exit) {
	s := r.s
	switch s.cfg.Mode {
	case ReportOnly, AbortOnly:
		s.fail("rank %d: mode: exits in mode %d", r.rank, s.cfg.Mode)
	case ExitAtOnce:
		r.checkWaited("exits")
		if a.Clean {
			s.fail("rank %d: mode: clean without an abort", r.rank)
		}
	case AbortAndExit:
		if r.abortAt < 0 && len(r.comms) > 0 {
			s.fail("rank %d: mode: exits with communicators %v not aborted", r.rank, r.comms)
		}
		if r.abortAt < 0 {
			r.checkWaited("exits")
		}
		if a.Clean != (len(r.aborts) == 0) {
			s.fail("rank %d: mode: clean %t with aborts open: %v", r.rank, a.Clean, r.aborts)
		}
		if len(r.aborts) > 0 && s.now < r.abortAt+s.cfg.AbortWait {
			s.fail("rank %d: wait: exits before the abort is over", r.rank)
		}
	}
	if a.Clean {
		s.kinds["exit clean"]++
	} else {
		s.kinds["exit unclean"]++
	}
	if (a.Code == ExitTimeout) != (a.Reason.Kind == ReasonOp || a.Reason.Kind == ReasonInit) {
		s.fail("rank %d: exit code %d for %v", r.rank, a.Code, a.Reason.Kind)
	}
}

func (r *simRank) checkReport(a Report) {
	s := r.s
	switch a.Kind {
	case OpTimeout, InitTimeout:
		r.checkTimeout(a)
	case OpLate:
		if a.Seq < 0 {
			return
		}
		v := r.visit(a.Op)
		if v == nil || !v.named || v.done < 0 || a.For != s.now-v.begun-s.cfg.Op || a.For < 0 {
			s.fail("rank %d: late: %q of %+v", r.rank, a.Line, v)
		}
	case Heard:
		r.heard = true
		r.checkHeard(a)
	case DumpsMissing:
		got := parseRanks(a.Line, "no dump from rank")
		want := map[int]bool{}
		for i := range s.n {
			if i != r.rank && !r.knownDumps[i] {
				want[i] = true
			}
		}
		if !maps.Equal(got, want) || r.ownDumpOver == strings.Contains(a.Line, "own dump is not finished") {
			s.fail("rank %d: missing: %q, want %v, own over %t", r.rank, a.Line, want, r.ownDumpOver)
		}
	case RoundLate:
		if !r.everStopped && !r.everStuck {
			s.fail("rank %d: false alarm: %q", r.rank, a.Line)
		}
	case AbortHangs:
		if len(r.aborts) == 0 {
			s.fail("rank %d: false alarm: %q", r.rank, a.Line)
		}
	}
}

// checkTimeout: what is named is open and over its deadline, no older one is forgotten, and the round before it was not over yet.
func (r *simRank) checkTimeout(a Report) {
	s := r.s
	limit := s.cfg.Op
	if a.Kind == InitTimeout {
		limit = s.cfg.Init
	}
	var v *visit
	for _, o := range r.visits {
		if a.Kind == OpTimeout && o.op && o.id == a.Op && o.seq == a.Seq || a.Kind == InitTimeout && !o.op && o.comm == a.Comm {
			v = o
		}
	}
	if v == nil || v.comm != a.Comm {
		s.fail("rank %d: named: %q: there is no such operation", r.rank, a.Line)
		return
	}
	if v.told || v.done >= 0 && v.done <= s.now && v.op || v.named {
		s.fail("rank %d: named: %q: it is not open, or was named before", r.rank, a.Line)
	}
	if s.now-v.begun < limit || a.For != s.now-v.begun {
		s.fail("rank %d: false alarm: %q after %v", r.rank, a.Line, s.now-v.begun)
	}
	if v.begun+limit <= r.lastTick {
		s.fail("rank %d: detection: %q was due at %v, before the round at %v", r.rank, a.Line, v.begun+limit, r.lastTick)
	}
	for _, o := range r.visits {
		if o.op && !o.told && a.Kind == OpTimeout && r.timeouts == 0 && o.begun < v.begun {
			s.fail("rank %d: named: %q, but an older one is open since %v", r.rank, a.Line, o.begun)
		}
	}
	v.named = true
	r.timeouts++
}

func (r *simRank) checkHeard(a Report) {
	s := r.s
	nothing := true
	for _, v := range r.visits {
		if !v.told {
			nothing = false
		}
	}
	if strings.Contains(a.Line, "waits for nothing") {
		s.kinds["heard: waits for nothing"]++
	}
	if strings.Contains(a.Line, "waits for nothing") != nothing {
		s.fail("rank %d: heard: %q, waits for nothing: %t", r.rank, a.Line, nothing)
	}
	_, own, _ := strings.Cut(a.Line, "this rank: ")
	says := strings.Contains(own, "never joined sequence")
	if says {
		s.kinds["heard: never joined"]++
	}
	never := false
	for _, k := range s.keys { // the request that it has just seen first
		if k.request && strings.Contains(a.Line, k.reason.Text) && k.reason.Kind == ReasonOp && !k.reason.P2P {
			for c := range r.comms {
				if commName(c) == k.reason.Comm && r.counts[c][0].Enqueued < k.reason.Seq {
					never = true
				}
			}
		}
	}
	if says != never {
		s.fail("rank %d: heard: %q, never joined: %t", r.rank, a.Line, never)
	}
}

// checkTick: after a round nothing over its deadline is unsaid, and no wait is longer than configured.
func (r *simRank) checkTick() {
	s, m := r.s, r.machine
	if m.stage < Aborting {
		for _, v := range r.visits {
			limit := s.cfg.Op
			if !v.op {
				limit = s.cfg.Init
			}
			if !v.told && s.now-v.begun >= limit && r.timeouts == 0 {
				s.fail("rank %d: detection: open since %v, and no word after the round", r.rank, v.begun)
			}
		}
	}
	if r.timeouts > 0 && m.reason == nil {
		s.fail("rank %d: a time-out raised no alarm", r.rank)
	}
	if (m.stage == Dumping || m.stage == Collecting) && s.now >= r.dumpAt+s.cfg.DumpWait {
		s.fail("rank %d: bound: %v for longer than the wait for dumps", r.rank, m.stage)
	}
	if m.stage == Aborting && s.now >= r.abortAt+s.cfg.AbortWait {
		s.fail("rank %d: bound: aborting for longer than its wait", r.rank)
	}
}

func (r *simRank) checkMonitor(a Action) {
	s := r.s
	switch a := a.(type) {
	case Report:
		s.kinds[string(a.Kind)]++
		if a.Kind == Stuck && (!r.stuck || s.now-r.lastBeat < s.cfg.Heartbeat) {
			s.fail("rank %d: false alarm of the monitor: %q", r.rank, a.Line)
		}
		if a.Kind == DumpsMissing && s.now < r.monitorDump+s.cfg.DumpWait {
			s.fail("rank %d: the monitor gives its dump up too early", r.rank)
		}
	case Dump:
		r.monitorDump = s.now
	case Exit:
		if s.cfg.Mode == ReportOnly || !r.stuck || r.monitorDump < 0 {
			s.fail("rank %d: the monitor ends the process in mode %d, stuck %t, dump at %v", r.rank, s.cfg.Mode, r.stuck, r.monitorDump)
		}
	}
}

func (r *simRank) checkMonitorTick() {
	s := r.s
	if r.everStopped || !r.stuck {
		return
	}
	if s.now-r.lastBeat >= s.cfg.Heartbeat && !r.monitor.dumping && !r.monitor.ended {
		s.fail("rank %d: detection: the watchdog is stuck since %v, and the monitor says nothing", r.rank, r.lastBeat)
	}
	if s.cfg.Mode != ReportOnly && r.monitor.dumping && s.now >= r.monitorDump+s.cfg.DumpWait && !r.exited && !r.monitor.ended {
		s.fail("rank %d: bound: the monitor still waits for its dump", r.rank)
	}
}

// checkEnd looks at the whole run: who had to end has ended in time, and a healthy job was left alone.
func (s *sim) checkEnd() {
	healthy := true
	gap := s.poll * 5 / 4
	for _, r := range s.ranks {
		healthy = healthy && !r.everStuck && !r.everStopped && len(r.errs) == 0 && !r.dead
		for _, v := range r.visits {
			limit := s.cfg.Op
			if !v.op {
				limit = s.cfg.Init
			}
			healthy = healthy && v.done >= 0 && v.done-v.begun < limit-gap // it is noticed up to a round later
		}
		if r.dead || r.stopped || r.stuck || s.firstAsk < 0 {
			continue
		}
		steady := !r.everStopped && !r.everStuck
		if steady && r.dumpAt < 0 {
			s.fail("rank %d: bound: rank(s) asked for dumps at %v, this one never dumped", r.rank, s.firstAsk)
		}
		if steady && r.dumpAt > s.firstAsk+s.storeDelay+gap {
			s.fail("rank %d: bound: dumped at %v, asked at %v", r.rank, r.dumpAt, s.firstAsk)
		}
		if s.cfg.Mode == ReportOnly {
			if steady && r.machine.stage != Watching {
				s.fail("rank %d: mode: the job goes on, but the machine is %v", r.rank, r.machine.stage)
			}
			continue
		}
		if r.machine.stage != Ended && !r.exited {
			s.fail("rank %d: bound: has not ended: %v", r.rank, r.machine.stage)
		}
		if limit := r.dumpAt + s.cfg.DumpWait + s.cfg.AbortWait + 2*gap; steady && r.endAt > limit {
			s.fail("rank %d: bound: ended at %v, at the latest it had to at %v", r.rank, r.endAt, limit)
		}
	}
	if healthy && !reflect.DeepEqual(s.kinds, map[string]int{}) && !(len(s.kinds) == 1 && s.kinds["many ranks"] > 0) {
		s.fail("false alarm: a healthy job, and %v", s.kinds)
	}
}
