package diagnose

import (
	"cmp"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

// bestDumps picks one dump a rank: a folder often holds the pickle and the JSON form of the same. -1 is a file whose name has no rank.
func bestDumps(dumps []evidence.Dump) (best []*evidence.Dump) {
	at := map[int]int{}
	for i := range dumps {
		d := &dumps[i]
		j, seen := at[d.Rank]
		switch {
		case d.Rank < 0:
			continue
		case !seen:
			at[d.Rank] = len(best)
			best = append(best, d)
		case better(d, best[j]):
			best[j] = d
		}
	}
	slices.SortFunc(best, func(a, b *evidence.Dump) int { return a.Rank - b.Rank })
	return best
}

func better(a, b *evidence.Dump) bool {
	switch {
	case a.Data == nil || b.Data == nil:
		return a.Data != nil && b.Data == nil
	case a.Data.Cut != b.Data.Cut:
		return b.Data.Cut
	case len(a.Data.Entries) != len(b.Data.Entries):
		return len(a.Data.Entries) > len(b.Data.Entries)
	}
	return a.Data.Form == "pickle" && b.Data.Form != "pickle"
}

// worldOf is the group of all ranks as a dump has it.
func worldOf(d *evidence.Dump) []int {
	if d.Data == nil {
		return nil
	}
	for _, g := range d.Data.Groups {
		if g.Desc == "default_pg" || g.Name == "0" {
			return g.Ranks
		}
	}
	return nil
}

// oneJob takes dumps of one job from what may be those of two, of different size, in one folder: files of an earlier run are left over. The job all of whose ranks
// are there is taken, else the later one.
func oneJob(dumps []*evidence.Dump) (mine, others []*evidence.Dump) {
	type world struct {
		ranks []int
		dumps int
		last  int64
	}
	var worlds []*world
	in := make([]*world, len(dumps))
	for i, d := range dumps {
		ranks := worldOf(d)
		if ranks == nil || !slices.Contains(ranks, d.Rank) {
			continue
		}
		k := slices.IndexFunc(worlds, func(w *world) bool { return slices.Equal(w.ranks, ranks) })
		if k < 0 {
			k = len(worlds)
			worlds = append(worlds, &world{ranks: ranks})
		}
		w := worlds[k]
		in[i], w.dumps = w, w.dumps+1
		if n := len(d.Data.Entries); n > 0 {
			w.last = max(w.last, d.Data.Entries[n-1].TimeCreatedNs)
		}
	}
	if len(worlds) < 2 {
		return dumps, nil
	}
	slices.SortStableFunc(worlds, func(a, b *world) int {
		return cmp.Or(boolInt(b.dumps == len(b.ranks))-boolInt(a.dumps == len(a.ranks)), cmp.Compare(b.last, a.last))
	})
	for i, d := range dumps {
		if in[i] == nil || in[i] == worlds[0] {
			mine = append(mine, d)
		} else {
			others = append(others, d)
		}
	}
	return mine, others
}

// asks reads each different recorded call once.
type asks struct {
	mu   sync.RWMutex
	have map[*evidence.FlightCall]*ask
	one  map[ask]*ask
}

func newAsks() *asks {
	return &asks{have: map[*evidence.FlightCall]*ask{}, one: map[ask]*ask{}}
}

func (x *asks) of(c *evidence.FlightCall) *ask {
	x.mu.RLock()
	a := x.have[c]
	x.mu.RUnlock()
	if a != nil {
		return a
	}
	return x.keep(c, *askOf(c))
}

// keep makes equal asks one pointer, whatever dump or file they come from.
func (x *asks) keep(c *evidence.FlightCall, a ask) *ask {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.one[a]
	if p == nil {
		p = &a
		x.one[a] = p
	}
	if c != nil {
		x.have[c] = p
	}
	return p
}

// part is a dump's share in one group, before groups are joined.
type part struct {
	name, desc string
	ranks      []int
	p2p        bool
	m          *member
	status     *[3]int64
}

// splitDump sorts a dump's entries by group.
func splitDump(d *evidence.Dump, x *asks) []*part {
	parts := map[string]*part{}
	var order []*part
	get := func(name, desc string) *part {
		p := parts[name]
		if p == nil {
			p = &part{name: name, desc: desc, m: &member{rank: d.Rank, place: -1, where: d.Where, source: "dump", cut: d.Data.Cut, enq: -1, begun: -1, done: -1}}
			parts[name] = p
			order = append(order, p)
		}
		if p.desc == "" {
			p.desc = desc
		}
		return p
	}
	for _, g := range d.Data.Groups {
		p := get(g.Name, g.Desc)
		p.ranks = g.Ranks
	}
	counts := map[*evidence.FlightOrigin]int{}
	var last *evidence.FlightOrigin
	n := 0
	for i := range d.Data.Entries {
		o := d.Data.Entries[i].Origin
		if o != last {
			if last != nil {
				counts[last] += n
			}
			last, n = o, 0
		}
		n++
	}
	var p *part
	last = nil
	for i := range d.Data.Entries {
		e := &d.Data.Entries[i]
		if e.Origin != last {
			last = e.Origin
			p = get(e.Origin.GroupName, e.Origin.GroupDesc)
			p.m.calls = slices.Grow(p.m.calls, min(counts[last], len(d.Data.Entries)))
			counts[last] = 0
		}
		p.take(e, int32(i), x)
	}
	for i := range d.Data.Status {
		s := &d.Data.Status[i]
		if name, by := d.Data.GroupName(s.PGID); by != evidence.NameUnknown {
			get(name, "").status = &[3]int64{s.LastEnqueued, s.LastStarted, s.LastCompleted}
		} else if len(d.Data.Status) == 1 && len(order) == 1 {
			order[0].status = &[3]int64{s.LastEnqueued, s.LastStarted, s.LastCompleted}
		}
	}
	return order
}

// take puts an entry at the end of the part's calls. Calls of a coalesced group share a sequence number and become one.
func (p *part) take(e *evidence.FlightEntry, pos int32, x *asks) {
	a := x.of(e.Call)
	seq := e.CollectiveSeqID
	if e.IsP2P || a.p2p {
		p.p2p = true
		if e.P2PSeqID > 0 {
			seq = e.P2PSeqID
		}
		open := e.State != "completed" && !(e.Retired && strings.HasPrefix(e.Call.ProfilingName, "gloo:"))
		if a.end { // the states of what it holds are here
			for i := len(p.m.p2p) - 1; i >= 0 && p.m.p2p[i].seq == seq; i-- {
				p.m.p2p[i].open = open
			}
			return
		}
		p.m.p2p = append(p.m.p2p, issued{seq: seq, coll: e.CollectiveSeqID, ask: a, entry: e, pos: pos, open: open})
		return
	}
	if n := len(p.m.calls); n > 0 && p.m.calls[n-1].seq == seq {
		p.m.calls[n-1] = joined(p.m.calls[n-1], e, a, pos, x)
		return
	}
	p.m.calls = append(p.m.calls, issued{seq: seq, ask: a, entry: e, pos: pos})
}

// joined is one call for all of a coalesced group: its sizes are sums, its state is the last entry's.
func joined(c issued, e *evidence.FlightEntry, a *ask, pos int32, x *asks) issued {
	sum := *c.ask
	if a.end {
		sum.op, sum.kind, sum.dtype = a.op, kindOf(strings.TrimSuffix(strings.ToLower(a.op), "_coalesced")), ""
		sum.size = sum.out
		if sum.kind == "all_reduce" {
			sum.size = sum.in
		}
	} else {
		sum.in, sum.out = sum.in+a.in, sum.out+a.out
		sum.size = sizeRule(sum.kind, sum.in, sum.out)
	}
	return issued{seq: c.seq, ask: x.keep(nil, sum), entry: e, pos: pos}
}

// count fills the counters from entries and the group's status, as far as the latter means collectives here.
func (p *part) count(p2p bool) {
	m := p.m
	for i := range m.calls {
		c := &m.calls[i]
		m.enq = max(m.enq, c.seq)
		switch c.entry.State {
		case "completed":
			m.done = max(m.done, c.seq)
		case "started":
			m.begun, m.starts = max(m.begun, c.seq), true
		}
	}
	for i := range m.p2p {
		m.enq = max(m.enq, m.p2p[i].coll)
	}
	m.counted = m.enq >= 0 && !m.cut // what is missing are the latest entries
	if p.status != nil && !p2p {
		m.enq, m.done, m.begun = max(m.enq, p.status[0]), max(m.done, p.status[2]), max(m.begun, p.status[1])
		m.starts = m.starts || p.status[1] >= 0
		m.counted = m.enq >= 0 || p.status[0] == -1
	}
	if m.done < 0 && m.enq >= 0 && p2p { // only what is active was recorded, or sends and receives alone
		m.done = m.enq
		if len(m.calls) > 0 {
			m.done = m.low() - 1
		}
	}
	m.begun = max(m.begun, m.done)
	m.lost = len(m.calls) > 0 && m.low() > 1
	if !slices.IsSortedFunc(m.calls, func(a, b issued) int { return int(a.seq - b.seq) }) {
		slices.SortStableFunc(m.calls, func(a, b issued) int { return int(a.seq - b.seq) })
	}
}

// absentees: a whole dump that has nothing of a call which others have open is of a rank that has not made it: what is open is recent, so it would be there. It matters
// where the counters do not say it: for groups that carry sends and receives, and for those that a rank has not used yet.
func (g *group) absentees() {
	open := int64(-1)
	for _, m := range g.members {
		if seq, ok := m.waits(); ok && (open < 0 || seq < open) {
			open = seq
		}
	}
	if open < 0 {
		return
	}
	for _, m := range g.members {
		if !m.counted && !m.cut {
			m.counted, m.guessed = true, true
			m.enq, m.done, m.begun = open-1, open-1, open-1
		}
	}
}

// unused adds members whose dump is whole and does not know the group: a group is listed from its first use on, so they have not made a call in it yet. It is not so
// of a dump that lists no groups at all while it has entries, as old versions write them.
func (g *group) unused(dumps map[int]*evidence.Dump) {
	if !g.sure {
		return
	}
	for i, r := range g.ranks {
		d := dumps[r]
		if g.by[r] != nil || d == nil || d.Data == nil || d.Data.Cut || len(d.Data.Groups) == 0 && len(d.Data.Entries) > 0 {
			continue
		}
		g.add(&member{rank: r, place: i, where: d.Where, source: "dump", counted: true, unused: true})
	}
}

// parallel runs fn for 0 to n-1 on all cores.
func parallel(n int, fn func(i int)) {
	var wg sync.WaitGroup
	next := make(chan int)
	for range min(n, runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for i := range next {
				fn(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

// groupsOfDumps aligns dumps: one group for each name and set of members.
func groupsOfDumps(dumps []*evidence.Dump, x *asks) []*group {
	parts := make([][]*part, len(dumps))
	parallel(len(dumps), func(i int) {
		if dumps[i].Data != nil {
			parts[i] = splitDump(dumps[i], x)
		}
	})
	b := &joiner{byKey: map[string][]*group{}}
	for _, list := range parts {
		only := onlyNameless(list)
		for _, p := range list {
			if p != only {
				b.put(p, only)
			}
		}
	}
	b.p2pByDesc()
	byRank := map[int]*evidence.Dump{}
	for _, d := range dumps {
		byRank[d.Rank] = d
	}
	for _, g := range b.all {
		g.unused(byRank)
	}
	parallel(len(b.all), func(i int) {
		g := b.all[i]
		for _, p := range b.parts[g] {
			p.count(g.p2p)
		}
		g.absentees()
		g.finish()
	})
	return b.all
}

// onlyNameless is the configuration of Gloo's default group, which has no name while its entries have one.
func onlyNameless(list []*part) *part {
	var nameless *part
	configured := 0
	for _, p := range list {
		if p.ranks != nil {
			configured++
			if p.name == "" && p.desc == "" && len(p.m.calls) == 0 {
				nameless = p
			}
		}
	}
	if configured == 1 && len(list) > 1 {
		return nameless
	}
	return nil
}

type joiner struct {
	byKey map[string][]*group
	all   []*group
	parts map[*group][]*part
}

func (b *joiner) put(p, only *part) {
	if b.parts == nil {
		b.parts = map[*group][]*part{}
	}
	ranks := p.ranks
	if ranks == nil && only != nil {
		ranks = only.ranks
	}
	g := b.find(p.name, ranks, p.m.rank)
	if g == nil {
		g = newGroup(p.name, p.desc, "dump")
		b.byKey[p.name] = append(b.byKey[p.name], g)
		b.all = append(b.all, g)
	}
	if g.desc == "" {
		g.desc = p.desc
	}
	if ranks != nil && !g.sure {
		g.ranks, g.sure = ranks, true
		g.size = len(ranks)
	}
	p.m.place = slices.Index(g.ranks, p.m.rank)
	g.p2p = g.p2p || p.p2p
	g.add(p.m)
	b.parts[g] = append(b.parts[g], p)
}

// find is the group of that name that a rank belongs to: its members decide, since different groups may have one name.
func (b *joiner) find(name string, ranks []int, rank int) *group {
	for _, g := range b.byKey[name] {
		switch {
		case !g.sure || ranks == nil:
			if ranks == nil && g.sure && !slices.Contains(g.ranks, rank) {
				continue
			}
			return g
		case len(ranks) > 0 && len(g.ranks) > 0 && &ranks[0] == &g.ranks[0] || slices.Equal(ranks, g.ranks):
			return g
		case slices.ContainsFunc(ranks, func(r int) bool { return slices.Contains(g.ranks, r) }):
			return g // members that overlap are one group that its ranks see differently
		}
	}
	return nil
}

// p2pByDesc: which groups carry sends and receives is seen from entries alone. A dump of only active operations may have none of them, so what holds for
// one group holds for those with the same description.
func (b *joiner) p2pByDesc() {
	carries := map[string]bool{}
	for _, g := range b.all {
		if g.p2p && g.desc != "" && g.desc != "undefined" {
			carries[g.desc] = true
		}
	}
	for _, g := range b.all {
		g.p2p = g.p2p || carries[g.desc]
	}
}
