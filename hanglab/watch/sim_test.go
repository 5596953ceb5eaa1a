package watch

import (
	"container/heap"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

var oneSeed = flag.Uint64("seed", 0, "run only the random schedule of this seed, and print all that happens")

// TestSchedules runs jobs of simulated ranks, each with its machine and monitor, through faults drawn from a seed. The simulation keeps its own
// account of what is true (sim_check_test.go) and compares after every step.
func TestSchedules(t *testing.T) {
	if *oneSeed != 0 {
		s := newSim(*oneSeed)
		s.trace = t.Logf
		if bad := s.run(); bad != "" {
			t.Errorf("seed %d: %s", *oneSeed, bad)
		}
		return
	}
	n := uint64(schedules)
	if testing.Short() {
		n /= 20
	}
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		total tally
		fails int
	)
	workers := uint64(runtime.GOMAXPROCS(0))
	for w := range workers {
		wg.Go(func() {
			for seed := w + 1; seed <= n; seed += workers {
				s := newSim(seed)
				bad := s.run()
				mu.Lock()
				total.add(s)
				if bad != "" {
					if fails++; fails <= 5 {
						t.Errorf("seed %d (%d ranks, %v): %s\nonce more, with all that happens: go test ./hanglab/watch -run TestSchedules -seed %d -v",
							seed, s.n, s.cfg.Mode, bad, seed)
					}
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if fails > 5 {
		t.Errorf("%d of %d schedules failed", fails, n)
	}
	t.Log(total.String())
	if n >= 500 {
		total.check(t)
	}
}

// tally shows that the schedules reach what they are meant to reach.
type tally struct {
	schedules, quiet, steps int
	kinds                   map[string]int
}

func (a *tally) add(s *sim) {
	if a.kinds == nil {
		a.kinds = map[string]int{}
	}
	a.schedules++
	a.steps += s.steps
	if len(s.kinds) == 0 {
		a.quiet++
	}
	for k, n := range s.kinds {
		a.kinds[k] += n
	}
}

func (a *tally) String() string {
	return fmt.Sprintf("%d schedules, %d steps of machines; nothing to say in %d; %v", a.schedules, a.steps, a.quiet, a.kinds)
}

func (a *tally) check(t *testing.T) {
	for _, k := range []ReportKind{OpTimeout, InitTimeout, CommError, Heard, OpLate, InitLate, DumpsMissing, DumpError, AbortHangs, RoundLate, Stuck} {
		if a.kinds[string(k)] < 3 {
			t.Errorf("line %q came up %d times in %d schedules: the schedules no longer reach it", k, a.kinds[string(k)], a.schedules)
		}
	}
	for _, k := range []string{"exit clean", "exit unclean", "monitor exit", "abort", "heard: never joined", "heard: waits for nothing", "many ranks"} {
		if a.kinds[k] < 3 {
			t.Errorf("%q came up %d times in %d schedules: the schedules no longer reach it", k, a.kinds[k], a.schedules)
		}
	}
	if a.quiet < a.schedules/20 {
		t.Errorf("only %d of %d schedules are healthy: false alarms have too few chances", a.quiet, a.schedules)
	}
}

// todo is something that will happen; the clock jumps from one to the next.
type todo struct {
	at    time.Duration
	order int // of two at one time, the one that was planned first
	f     func()
}

type todos []todo

func (q todos) Len() int { return len(q) }
func (q todos) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].order < q[j].order
}
func (q todos) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *todos) Push(x any)   { *q = append(*q, x.(todo)) }
func (q *todos) Pop() any {
	old := *q
	x := old[len(old)-1]
	*q = old[:len(old)-1]
	return x
}

// sim is one job.
type sim struct {
	rng     *rand.Rand
	cfg     Config
	n       int
	now     time.Duration
	queue   todos
	planned int
	ranks   []*simRank
	inits   map[int]*gathering // by communicator
	ops     map[opKey]*gathering
	keys    []storeKey

	poll, monitorPoll, storeDelay, horizon time.Duration
	errorsFollow                           bool // a lost peer shows as an asynchronous error
	firstAsk                               time.Duration

	bad   string
	steps int
	kinds map[string]int
	trace func(format string, args ...any)
}

// opKey is what makes the operations of several ranks one: the communicator and the position in it; for p2p the position between two ranks.
type opKey struct {
	comm     int
	p2p      bool
	from, to int
	k        int
}

// gathering is a collective, a pair of send and receive, or the creation of a communicator: it begins when all have come.
type gathering struct {
	members int
	here    []*visit
	takes   time.Duration
	never   bool // the device hangs in it
}

// visit is one rank's part in it: what is true about an operation or a creation.
type visit struct {
	r              *simRank
	comm           int
	op             bool
	p2p            bool
	seq            int64
	id             uint64
	begun          time.Duration
	started        bool
	startTold      bool
	done           time.Duration // -1: not
	told           bool          // the machine knows that it is done, or that it is gone
	named          bool          // a report of a time-out has named it
	droppedByAbort bool
}

// storeKey is one key of the store, seen by each rank after a delay of its own.
type storeKey struct {
	request bool
	from    int
	reason  Reason
	visible []time.Duration
}

type instruction struct {
	kind  string // init, coll, p2p, sleep, wait, phase
	comm  int
	peer  int
	sends bool
	d     time.Duration
}

type simRank struct {
	s       *sim
	rank    int
	machine *Machine
	monitor *Monitor
	program []instruction
	next    int
	visits  []*visit
	lastID  uint64
	seqs    map[[2]int]int64 // next sequence, by communicator and kind
	pairs   map[opKey]int
	comms   map[int]bool // created or being created
	waiting bool         // the host waits for its operations

	dead, exited, finished bool
	stopped, everStopped   bool
	stuck, everStuck       bool // the watchdog
	deferred               []func()
	seen                   []bool
	errs                   map[int]string

	account
}

func (s *sim) say(format string, args ...any) {
	if s.trace != nil {
		s.trace("%10v  "+format, append([]any{s.now}, args...)...)
	}
}

func (s *sim) fail(format string, args ...any) {
	if s.bad == "" {
		s.bad = fmt.Sprintf("at %v: ", s.now) + fmt.Sprintf(format, args...)
	}
}

func (s *sim) after(d time.Duration, f func()) {
	s.planned++
	heap.Push(&s.queue, todo{s.now + max(d, 0), s.planned, f})
}

func (s *sim) upTo(d time.Duration) time.Duration { return time.Duration(s.rng.Int64N(int64(d) + 1)) }
func (s *sim) chance(percent int) bool            { return s.rng.IntN(100) < percent }

func newSim(seed uint64) *sim {
	s := &sim{rng: rand.New(rand.NewPCG(seed, 1)), inits: map[int]*gathering{}, ops: map[opKey]*gathering{}, kinds: map[string]int{}, firstAsk: -1}
	s.n = 2 + s.rng.IntN(3)
	switch p := s.rng.IntN(100); {
	case p == 0:
		s.n = 64
		s.kinds["many ranks"]++
	case p < 20:
		s.n = 2 + s.rng.IntN(15)
	}
	s.cfg = Config{World: s.n, Mode: Mode(s.rng.IntN(4)), Op: time.Second + s.upTo(4*time.Second), Init: time.Second + s.upTo(9*time.Second),
		Heartbeat: 4*time.Second + s.upTo(4*time.Second), DumpWait: 200*time.Millisecond + s.upTo(2*time.Second), AbortWait: 200*time.Millisecond + s.upTo(3*time.Second)}
	s.poll = 50*time.Millisecond + s.upTo(450*time.Millisecond)
	s.monitorPoll = s.cfg.Heartbeat / time.Duration(10+s.rng.IntN(10))
	s.storeDelay = s.upTo(300 * time.Millisecond)
	s.errorsFollow = s.chance(50)
	script := s.program()
	for i := range s.n {
		s.addRank(i, script)
	}
	s.plantFaults()
	s.horizon = 60*time.Second + 3*(s.cfg.Op+s.cfg.Init+s.cfg.Heartbeat) + 2*(s.cfg.DumpWait+s.cfg.AbortWait)
	return s
}

// program is what all ranks are meant to do.
func (s *sim) program() (list []instruction) {
	comms := 1 + s.rng.IntN(2)
	lazy := s.chance(30)
	for c := range comms {
		if !lazy || c == 0 {
			list = append(list, instruction{kind: "init", comm: c})
		}
	}
	made := map[int]bool{0: true, 1: !lazy}
	for range 2 + s.rng.IntN(16) {
		c := s.rng.IntN(comms)
		if !made[c] {
			made[c] = true
			list = append(list, instruction{kind: "init", comm: c})
		}
		switch p := s.rng.IntN(10); {
		case p < 2:
			list = append(list, instruction{kind: "p2p", comm: c})
		case p < 3:
			list = append(list, instruction{kind: "wait"})
		case p < 4:
			list = append(list, instruction{kind: "sleep", d: s.upTo(300 * time.Millisecond)})
		default:
			list = append(list, instruction{kind: "coll", comm: c})
		}
	}
	return append(list, instruction{kind: "wait"})
}

func (s *sim) addRank(i int, script []instruction) {
	c := s.cfg
	c.Rank = i
	r := &simRank{s: s, rank: i, seqs: map[[2]int]int64{}, pairs: map[opKey]int{}, comms: map[int]bool{}, errs: map[int]string{}}
	r.account = newAccount(s.n)
	var err, err2 error
	r.machine, err = New(c)
	r.monitor, err2 = NewMonitor(c)
	if err != nil || err2 != nil {
		s.fail("%v %v", err, err2)
		return
	}
	for _, in := range script {
		if in.kind == "p2p" { // even ranks send to the next one, the last of an odd number has no partner
			in.peer, in.sends = i^1, i%2 == 0
			if in.peer >= s.n {
				continue
			}
		}
		r.program = append(r.program, in)
	}
	s.ranks = append(s.ranks, r)
	s.after(s.upTo(300*time.Millisecond), r.host)
	s.after(s.upTo(s.poll), r.pollOnce)
	s.after(s.upTo(s.monitorPoll), r.monitorOnce)
}

func (s *sim) plantFaults() {
	if s.chance(25) {
		return
	}
	for range 1 + s.rng.IntN(2) {
		r := s.ranks[s.rng.IntN(s.n)]
		when := s.upTo(1500 * time.Millisecond)
		long := s.upTo(3 * (s.cfg.Op + s.cfg.Heartbeat))
		switch s.rng.IntN(9) {
		case 0:
			s.after(when, r.die)
		case 1:
			s.after(when, r.stop)
			if s.chance(70) {
				s.after(when+long, r.resume)
			}
		case 2: // in host code, for a while or for good
			if s.chance(30) {
				long = time.Hour
			}
			r.insert(instruction{kind: "phase", d: long})
		case 3, 4: // leaves out one operation
			k := s.rng.IntN(len(r.program))
			if in := r.program[k]; in.kind == "coll" || in.kind == "p2p" {
				r.program = append(r.program[:k:k], r.program[k+1:]...)
			}
		case 5: // never comes to a creation, or late
			d := s.upTo(2 * s.cfg.Init)
			if s.chance(30) {
				d = time.Hour
			}
			r.program = append([]instruction{{kind: "sleep", d: d}}, r.program...)
		case 6: // an operation that hangs or is slow on all devices
			key := opKey{comm: 0, from: -1, to: -1, k: s.rng.IntN(4)}
			g := s.gather(key, s.n)
			g.takes, g.never = s.upTo(3*s.cfg.Op), s.chance(40)
		case 7:
			s.after(when, func() { r.stuck, r.everStuck = true, true; s.say("rank %d: its watchdog is stuck", r.rank) })
			if s.chance(50) {
				s.after(when+long, func() {
					r.stuck = false
					s.say("rank %d: its watchdog is free", r.rank)
					r.whenRunning(r.pollOnce)
				})
			}
		case 8:
			s.after(when, func() { r.errs[0] = "ncclSystemError" })
		}
	}
}

func (r *simRank) insert(in instruction) {
	k := r.s.rng.IntN(len(r.program))
	r.program = append(r.program[:k:k], append([]instruction{in}, r.program[k:]...)...)
}

func (s *sim) run() string {
	for len(s.queue) > 0 && s.bad == "" && s.now < s.horizon && !s.settled() {
		t := heap.Pop(&s.queue).(todo)
		s.now = t.at
		t.f()
	}
	if s.bad == "" {
		s.checkEnd()
	}
	return s.bad
}

// settled: nothing can happen any more that is not just one more round.
func (s *sim) settled() bool {
	if s.planned%16 != 0 {
		return false
	}
	for _, r := range s.ranks {
		if !r.over() && (s.firstAsk >= 0 || !r.finished || r.openVisits > 0 || r.stuck || r.stopped || len(r.errs) > 0) {
			return false
		}
	}
	return true
}

func (r *simRank) over() bool { return r.dead || r.exited || r.machine.stage == Ended && !r.stuck }

// whenRunning postpones what a stopped process cannot do.
func (r *simRank) whenRunning(f func()) {
	switch {
	case r.dead || r.exited:
	case r.stopped:
		r.deferred = append(r.deferred, f)
	default:
		f()
	}
}

func (r *simRank) die() {
	if r.dead || r.exited {
		return
	}
	r.s.say("rank %d: dies", r.rank)
	r.dead = true
	r.peerErrors()
}

// peerErrors is what the others' libraries notice of a lost peer.
func (r *simRank) peerErrors() {
	if !r.s.errorsFollow {
		return
	}
	for _, p := range r.s.ranks {
		if p != r {
			r.s.after(r.s.upTo(500*time.Millisecond), func() {
				if p.comms[0] && p.errs[0] == "" {
					p.errs[0] = "ncclRemoteError"
				}
			})
		}
	}
}

func (r *simRank) stop() {
	if !r.dead && !r.exited {
		r.s.say("rank %d: stopped", r.rank)
		r.stopped, r.everStopped = true, true
	}
}

func (r *simRank) resume() {
	if !r.stopped {
		return
	}
	r.s.say("rank %d: goes on", r.rank)
	r.stopped = false
	todo := r.deferred
	r.deferred = nil
	r.s.rng.Shuffle(len(todo), func(i, j int) { todo[i], todo[j] = todo[j], todo[i] })
	for _, f := range todo {
		r.s.after(0, func() { r.whenRunning(f) })
	}
}

// host carries out the rank's program.
func (r *simRank) host() { r.whenRunning(r.hostStep) }

func (r *simRank) hostStep() {
	if r.machine.stage == Ended { // AbortOnly: calls fail, the program ends
		return
	}
	if r.next == len(r.program) {
		r.finished = true
		r.tell(Finished{})
		return
	}
	in := r.program[r.next]
	if in.kind == "wait" && r.openOps() > 0 {
		r.waiting = true
		return
	}
	r.next++
	gap := r.s.upTo(50 * time.Millisecond)
	switch in.kind {
	case "init":
		r.comms[in.comm] = true
		r.begin(&visit{comm: in.comm, seq: -1}, r.s.creation(in.comm))
		return // it blocks
	case "coll":
		key := opKey{comm: in.comm, from: -1, to: -1, k: int(r.seqs[[2]int{in.comm, 0}])}
		r.enqueue(in, r.s.gather(key, r.s.n))
	case "p2p":
		key := opKey{comm: in.comm, p2p: true, from: min(r.rank, in.peer), to: max(r.rank, in.peer)}
		pair := key
		key.k = r.pairs[pair]
		r.pairs[pair]++
		r.enqueue(in, r.s.gather(key, 2))
	case "phase":
		r.tell(Phase{"save checkpoint"})
		r.s.after(in.d, func() { r.whenRunning(func() { r.tell(Phase{}) }) })
		gap = in.d
	default:
		gap = in.d
	}
	r.s.after(gap, r.host)
}

func (s *sim) creation(comm int) *gathering {
	if s.inits[comm] == nil {
		s.inits[comm] = &gathering{members: s.n, takes: s.upTo(200 * time.Millisecond)}
	}
	return s.inits[comm]
}

func (s *sim) gather(k opKey, members int) *gathering {
	if s.ops[k] == nil {
		s.ops[k] = &gathering{members: members, takes: s.upTo(30 * time.Millisecond)}
	}
	return s.ops[k]
}

func (r *simRank) enqueue(in instruction, g *gathering) {
	kind := 0
	if in.kind == "p2p" {
		kind = 1
	}
	key := [2]int{in.comm, kind}
	r.lastID++
	r.begin(&visit{comm: in.comm, op: true, p2p: kind == 1, seq: r.seqs[key], id: r.lastID}, g)
	r.seqs[key]++
}

func (r *simRank) begin(v *visit, g *gathering) {
	v.r, v.begun, v.done = r, r.s.now, -1
	r.visits = append(r.visits, v)
	r.openVisits++
	g.here = append(g.here, v)
	if v.op {
		r.tell(Enqueued{v.comm, v.seq, v.id, "all_reduce of 4 float", v.p2p})
	} else {
		r.tell(InitBegun{v.comm, commName(v.comm)})
	}
	if len(g.here) < g.members || g.never {
		return
	}
	for _, v := range g.here {
		v.started = true
		r.s.after(g.takes+r.s.upTo(2*time.Millisecond), func() { v.finish(g) })
	}
}

func commName(c int) string { return [...]string{"world", "second"}[c] }

// finish ends a visit if all who take part are still there.
func (v *visit) finish(g *gathering) {
	for _, o := range g.here {
		if o.r.dead || o.r.exited || o.droppedByAbort {
			return
		}
	}
	r := v.r
	v.done = r.s.now
	if !v.op {
		r.whenRunning(func() {
			r.tellDone(v, InitDone{v.comm})
			r.s.after(r.s.upTo(20*time.Millisecond), r.host)
		})
	}
}

// openOps counts operations that have not completed in truth.
func (r *simRank) openOps() (n int) {
	for _, v := range r.visits {
		if v.op && v.done < 0 {
			n++
		}
	}
	return n
}

// pollOnce is one round of the watchdog.
func (r *simRank) pollOnce() {
	r.whenRunning(func() {
		if r.stuck || r.machine.stage == Ended {
			return
		}
		for _, v := range r.visits {
			if !v.op || v.told {
				continue
			}
			if v.started && !v.startTold {
				v.startTold = true
				r.tell(Started{v.id})
			}
			if v.done >= 0 {
				r.tellDone(v, Completed{v.id})
			}
		}
		if r.waiting && r.openOps() == 0 {
			r.waiting = false
			r.s.after(0, r.host)
		}
		for c, text := range r.errs {
			r.tell(AsyncError{c, text, text == "ncclRemoteError"})
		}
		r.readStore()
		r.tell(Tick{})
		for _, a := range r.monitor.Step(r.s.now, Beat{}) {
			r.monitorDoes(a)
		}
		r.lastBeat = r.s.now
		gap := r.s.poll + r.s.upTo(r.s.poll/4)
		r.s.after(gap, r.pollOnce)
	})
}

func (r *simRank) readStore() {
	for len(r.seen) < len(r.s.keys) {
		r.seen = append(r.seen, false)
	}
	for i, k := range r.s.keys {
		if r.seen[i] || k.visible[r.rank] > r.s.now {
			continue
		}
		r.seen[i] = true
		if k.request {
			r.tell(DumpRequested{k.from, k.reason})
		} else {
			r.knownDumps[k.from] = true
			r.tell(Dumped{k.from})
		}
	}
}

func (s *sim) publish(k storeKey) {
	for range s.n {
		k.visible = append(k.visible, s.now+s.upTo(s.storeDelay))
	}
	s.keys = append(s.keys, k)
}

func (r *simRank) monitorOnce() {
	r.whenRunning(func() {
		if !r.over() {
			if !r.monitor.begun {
				r.lastBeat = r.s.now // it cannot know better
			}
			for _, a := range r.monitor.Step(r.s.now, Tick{}) {
				r.monitorDoes(a)
			}
			r.checkMonitorTick()
			r.s.after(r.s.monitorPoll, r.monitorOnce)
		}
	})
}

// tell gives the machine an event, checks what it says, and does it.
func (r *simRank) tell(e Event) {
	if r.machine.stage == Ended {
		return
	}
	r.s.steps++
	r.before(e)
	actions := r.machine.Step(r.s.now, e)
	if r.s.trace != nil {
		r.s.say("rank %d: %T %+v -> %+v", r.rank, e, e, actions)
	}
	r.checkStep(e, actions)
	for _, a := range actions {
		r.carryOut(a)
	}
}

// tellDone is tell for the end of an operation or a creation.
func (r *simRank) tellDone(v *visit, e Event) {
	if v.told {
		return
	}
	v.told = true
	r.openVisits--
	r.tell(e)
}

func (r *simRank) carryOut(a Action) {
	s := r.s
	switch a := a.(type) {
	case RequestDump:
		if s.firstAsk < 0 {
			s.firstAsk = s.now
		}
		s.publish(storeKey{request: true, from: r.rank, reason: a.Reason})
	case Dump:
		if s.chance(10) {
			return // the dump hangs
		}
		fails := s.chance(10)
		s.after(s.upTo(s.cfg.DumpWait*6/5), func() {
			r.whenRunning(func() {
				if fails {
					r.tell(DumpFailed{"no space left"})
					return
				}
				s.publish(storeKey{from: r.rank})
				r.tell(DumpDone{})
			})
		})
	case Abort:
		for _, v := range r.visits {
			v.droppedByAbort = v.droppedByAbort || v.done < 0
		}
		for _, c := range a.Comms {
			if s.chance(10) {
				continue // it hangs
			}
			s.after(s.upTo(s.cfg.AbortWait*6/5), func() { r.whenRunning(func() { r.commGone(c); r.tell(Aborted{c}) }) })
		}
	case Exit:
		r.exited = true
		r.peerErrors()
	}
}

func (r *simRank) commGone(c int) {
	delete(r.comms, c)
	for _, v := range r.visits {
		if v.comm == c && !v.told {
			v.told = true
			r.openVisits--
		}
	}
}

func (r *simRank) monitorDoes(a Action) {
	s := r.s
	s.say("rank %d: monitor -> %+v", r.rank, a)
	r.checkMonitor(a)
	switch a.(type) {
	case Dump:
		if s.chance(10) {
			return
		}
		var e Event = DumpDone{}
		if s.chance(20) {
			e = DumpFailed{"no space left"}
		}
		s.after(s.upTo(s.cfg.DumpWait*6/5), func() {
			r.whenRunning(func() {
				for _, a := range r.monitor.Step(s.now, e) {
					r.monitorDoes(a)
				}
			})
		})
	case Exit:
		s.kinds["monitor exit"]++
		r.exited = true
		r.peerErrors()
	}
}

// parseRanks reads "0-2, 4" after the given words.
func parseRanks(line, words string) map[int]bool {
	out := map[int]bool{}
	_, rest, ok := strings.Cut(line, words)
	if !ok {
		return out
	}
	rest, _, _ = strings.Cut(strings.TrimPrefix(strings.TrimPrefix(rest, "s "), " "), " (")
	for part := range strings.SplitSeq(rest, ", ") {
		var from, to int
		if n, _ := fmt.Sscanf(part, "%d-%d", &from, &to); n == 1 {
			to = from
		}
		for r := from; r <= to; r++ {
			out[r] = true
		}
	}
	return out
}
