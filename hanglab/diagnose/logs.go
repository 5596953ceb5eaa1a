package diagnose

import (
	"cmp"
	"slices"
	"strings"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

// logs are the facts by kind, and what they say of each rank's program.
type logs struct {
	by    map[evidence.FactKind][]*evidence.Fact
	ranks []int // that have a word of their own
	progs map[int]*program

	earlier []*evidence.Fact // of attempts before the last one
	mild    []*evidence.Fact // say themselves that they are not to blame
}

// program is how far a rank's program is, as its own lines tell.
type program struct {
	rank     int
	entered  *evidence.Fact   // last step entered
	done     int64            // last step done, -1 none
	finished *evidence.Fact   // it ended as it should
	ending   *evidence.Fact   // it is at its end, whether as it should or not
	phase    *evidence.Fact   // the last word on what its thread does in host code
	trouble  []*evidence.Fact // time-outs, requests to dump, lost peers: why it may have ended
	last     *evidence.Fact
}

// open is the step that the program has entered and not done.
func (p *program) open() (int64, bool) {
	if p == nil || p.entered == nil || p.entered.Seq <= p.done || p.finished != nil {
		return -1, false
	}
	return p.entered.Seq, true
}

func readLogs(e *evidence.Evidence) *logs {
	l := &logs{by: map[evidence.FactKind][]*evidence.Fact{}, progs: map[int]*program{}}
	facts := make([]*evidence.Fact, 0, len(e.Facts))
	for i := range e.Facts {
		facts = append(facts, &e.Facts[i])
	}
	facts, l.earlier = lastAttempt(facts)
	endedComms(facts)
	for _, f := range facts {
		if f.Mild {
			l.mild = append(l.mild, f)
			continue
		}
		l.by[f.Kind] = append(l.by[f.Kind], f)
		if f.Rank >= 0 && f.Kind != evidence.Fingerprint {
			l.prog(f.Rank).take(f)
		}
	}
	for r := range l.progs {
		l.ranks = append(l.ranks, r)
	}
	slices.Sort(l.ranks)
	return l
}

func (l *logs) prog(rank int) *program {
	p := l.progs[rank]
	if p == nil {
		p = &program{rank: rank, done: -1}
		l.progs[rank] = p
	}
	return p
}

// take follows a rank's program. Marks that say which fault was planted are not looked at.
func (p *program) take(f *evidence.Fact) {
	if f.Phase != "" {
		p.phase = f
	}
	switch f.Kind {
	case evidence.Marker:
		switch f.Op {
		case "enter":
			if p.entered == nil || f.Seq >= p.entered.Seq {
				p.entered = f
			}
		case "done":
			p.done = max(p.done, f.Seq)
		case "exit_ok":
			p.finished = f
		case "inject":
			return
		}
	case evidence.Timeout, evidence.DumpSignal, evidence.RemoteError, evidence.PeerClosed, evidence.Gloo:
		p.trouble = append(p.trouble, f)
	case evidence.Finished:
		p.finished = f
	case evidence.Ending:
		p.ending = f
	case evidence.Ended:
		if f.Code == 0 && f.Signal == 0 {
			p.finished = f
		}
	}
	p.last = f
}

// isDefault tells the group of all ranks.
func isDefault(f *evidence.Fact) bool {
	return f.GroupDesc == "default_pg" || f.Group == "0" || f.Group == "default_pg"
}

// groupsOfLogs aligns what the ranks' logs say: watchdogs' counters, and the making of communicators.
func (j *job) groupsOfLogs() []*group {
	b := &logGroups{j: j, at: map[string]*group{}}
	named := map[string]bool{}
	facts := slices.Concat(j.logs.by[evidence.Timeout], j.logs.by[evidence.DumpSignal])
	for _, f := range facts {
		if f.Group != "" {
			named[b.name(f)] = true
		}
	}
	if len(named) == 1 {
		for n := range named {
			b.only = n
		}
	}
	slices.SortStableFunc(facts, func(x, y *evidence.Fact) int {
		return cmp.Or(cmp.Compare(x.Where.File, y.Where.File), cmp.Compare(x.Where.Line, y.Where.Line))
	})
	several := severalUnnamed(facts)
	for _, f := range facts {
		if !several || f.Group != "" || isDefault(f) {
			b.take(f)
		}
	}
	for _, g := range b.all {
		for _, m := range g.members {
			m.settle()
		}
	}
	b.infer()
	b.inits()
	for _, g := range b.all {
		g.finish()
	}
	return b.all
}

// severalUnnamed tells that lines which name no group are of several: a rank's number in its group is another than in the job. They cannot be laid side by side.
func severalUnnamed(facts []*evidence.Fact) bool {
	return slices.ContainsFunc(facts, func(f *evidence.Fact) bool {
		return f.Group == "" && !isDefault(f) && f.Rank >= 0 && f.GroupRank >= 0 && f.Rank != f.GroupRank
	})
}

type logGroups struct {
	j    *job
	at   map[string]*group
	all  []*group
	only string
}

// name is the key of a fact's group; lines of early eras name none.
func (b *logGroups) name(f *evidence.Fact) string {
	switch {
	case isDefault(f):
		return "0"
	case f.Group == "":
		return b.only
	}
	return f.Group
}

func (b *logGroups) group(key, desc, source string) *group {
	g := b.at[source+key]
	if g == nil {
		g = newGroup(key, desc, source)
		b.at[source+key] = g
		b.all = append(b.all, g)
	}
	if g.desc == "" {
		g.desc = desc
	}
	return g
}

func rankOf(f *evidence.Fact) int {
	if f.Rank >= 0 {
		return f.Rank
	}
	return f.GroupRank
}

// take puts a watchdog's word into its group.
func (b *logGroups) take(f *evidence.Fact) {
	rank := rankOf(f)
	if rank < 0 || f.Op == "init" {
		return
	}
	if f.Kind == evidence.DumpSignal && f.LastEnqueued < 0 && f.Seq < 0 {
		return
	}
	key, seq := b.name(f), f.Seq
	unnumbered := f.Kind == evidence.Timeout && f.Seq < 0 && f.LastEnqueued < 0
	if unnumbered {
		key, seq = "without numbers", 1
	}
	g := b.group(key, f.GroupDesc, "watchdog")
	g.size = max(g.size, f.GroupSize)
	g.unnumbered = unnumbered
	m := g.by[rank]
	if m == nil {
		m = &member{rank: rank, place: f.GroupRank, where: f.Where, source: "watchdog", enq: -1, begun: -1, done: -1, log: true, text: f.Text}
		g.add(m)
	}
	if f.P2P {
		b.p2p(g, m, f)
		return
	}
	m.counted = true
	first := m.done < 0
	if f.LastEnqueued >= 0 {
		m.enq = max(m.enq, f.LastEnqueued)
	}
	if f.LastCompleted >= 0 && (first || f.LastCompleted < m.done) {
		m.done = f.LastCompleted
	}
	if f.LastStarted >= 0 {
		m.begun, m.starts = max(m.begun, f.LastStarted), true
	}
	if f.Kind == evidence.DumpSignal {
		seq = -1
		if f.Op != "" && f.LastCompleted < f.LastEnqueued {
			seq = f.LastCompleted + 1
		}
	}
	if seq >= 0 {
		m.call(seq, b.j.asks.keep(nil, askOfFact(f)), f)
	}
}

// call records an operation that a line names.
func (m *member) call(seq int64, a *ask, f *evidence.Fact) {
	i, have := slices.BinarySearchFunc(m.calls, seq, func(c issued, s int64) int { return cmp.Compare(c.seq, s) })
	if have {
		if m.calls[i].ask.size < 0 && a.size >= 0 {
			m.calls[i].ask = a
		}
		return
	}
	m.calls = slices.Insert(m.calls, i, issued{seq: seq, ask: a, pos: int32(f.Where.Line)})
}

// settle fills in what lines without counters imply: work that is watched is enqueued, and work before it is complete.
func (m *member) settle() {
	if len(m.calls) > 0 {
		m.enq = max(m.enq, m.high())
		if m.done < 0 {
			m.done = m.low() - 1
		}
	}
	m.begun = max(m.begun, m.done)
	m.counted = m.counted && m.enq >= 0
}

func askOfFact(f *evidence.Fact) ask {
	a := ask{op: f.Op, kind: kindOf(f.Op), dtype: strings.ToLower(f.DType), root: -1, in: f.NumelIn, out: f.NumelOut, src: -1, dst: -1, p2p: f.P2P}
	in, out := f.NumelIn, f.NumelOut
	if out < 0 {
		out = in
	}
	a.size = sizeRule(a.kind, in, out)
	return a
}

func (b *logGroups) p2p(g *group, m *member, f *evidence.Fact) {
	g.p2p = true
	if f.Seq < 0 || f.Op == "" {
		return
	}
	a := askOfFact(f)
	if f.Peer >= 0 {
		a.src, a.dst = m.rank, f.Peer
		if a.kind == "recv" {
			a.src, a.dst = f.Peer, m.rank
		}
	}
	m.p2p = append(m.p2p, issued{seq: f.Seq, ask: b.j.asks.keep(nil, a), pos: int32(f.Where.Line), open: true})
}

// inits makes a group of each communicator that is not finished being made on some rank: its creation is a call in which all members meet.
func (b *logGroups) inits() {
	type state struct {
		begun, done, never map[int]*evidence.Fact
		size               int
		desc               string
	}
	at := map[string]*state{}
	get := func(f *evidence.Fact) *state {
		key := initKey(f)
		if at[key] == nil {
			at[key] = &state{begun: map[int]*evidence.Fact{}, done: map[int]*evidence.Fact{}, never: map[int]*evidence.Fact{}}
		}
		return at[key]
	}
	for _, f := range b.j.logs.by[evidence.InitBegun] {
		if r := rankOf(f); r >= 0 {
			s := get(f)
			s.begun[r] = f
			s.size = max(s.size, int(f.Seq))
		}
	}
	for _, f := range b.j.logs.by[evidence.InitDone] {
		if r := rankOf(f); r >= 0 {
			get(f).done[r] = f
		}
	}
	for _, f := range slices.Concat(b.j.logs.by[evidence.Timeout], b.j.logs.by[evidence.DumpSignal]) {
		if r := rankOf(f); r >= 0 && f.Op == "init" {
			if strings.Contains(f.Detail, "never began") {
				get(f).never[r] = f
			} else if s := get(f); s.begun[r] == nil {
				s.begun[r] = f
			}
		}
	}
	for _, key := range slices.Sorted(mapsKeys(at)) {
		s := at[key]
		open := 0
		for r := range s.begun {
			if s.done[r] == nil {
				open++
			}
		}
		if open == 0 {
			continue
		}
		g := b.group(key, s.desc, "init")
		if whole(s.begun, s.size) {
			g.size, g.sure = s.size, true
			for r := range s.size {
				g.ranks = append(g.ranks, r)
			}
		}
		for r, f := range s.begun {
			m := &member{rank: r, place: -1, where: f.Where, source: "init", counted: true, enq: 1, begun: 0, done: 0, log: true, text: f.Text}
			if d := s.done[r]; d != nil {
				m.done, m.begun = 1, 1
			}
			m.calls = []issued{{seq: 1, ask: b.j.asks.keep(nil, ask{op: "creation of the communicator", kind: "init", size: -1, root: -1, in: -1, out: -1, src: -1, dst: -1}), pos: int32(f.Where.Line)}}
			g.add(m)
		}
		for _, r := range b.j.logs.ranks {
			f := s.never[r]
			if f == nil {
				f = b.j.logs.progs[r].last
			}
			if s.begun[r] == nil && f != nil && (s.size == 0 || r < s.size) {
				g.add(&member{rank: r, place: -1, where: f.Where, source: "init", counted: true, enq: 0, done: 0, log: true, text: f.Text})
			}
		}
	}
}

// whole tells that a communicator is that of the whole job: its ranks are the job's.
func whole(begun map[int]*evidence.Fact, size int) bool {
	for r, f := range begun {
		if f.GroupRank != r {
			return false
		}
	}
	return size > 1 && len(begun) > 0
}

func mapsKeys[V any](m map[string]V) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// groupsOfRunning are the calls that PyTorch's comparison announces at level INFO: a record of each rank's calls, without how far they came.
func (j *job) groupsOfRunning() []*group {
	g := newGroup("compared calls", "", "fingerprint")
	for _, f := range j.logs.by[evidence.Running] {
		r := rankOf(f)
		if r < 0 || f.Call == nil || f.Call.Seq < 0 {
			continue
		}
		m := g.by[r]
		if m == nil {
			m = &member{rank: r, place: -1, where: f.Where, source: "fingerprint", enq: -1, begun: -1, done: -1, log: true, text: f.Text}
			g.add(m)
		}
		m.call(f.Call.Seq, j.asks.keep(nil, askOfFact(f)), f)
	}
	if len(g.members) < 2 {
		return nil
	}
	g.finish()
	return []*group{g}
}
