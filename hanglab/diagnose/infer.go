package diagnose

import (
	"slices"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

// infer adds to groups of logs what lines say between them: sizes of calls that completed with wrong results, and that a rank whose watchdog complains of
// something else, or of nothing, has nothing overdue in this group.
func (b *logGroups) infer() {
	for _, f := range b.j.logs.by[evidence.WrongData] {
		b.wrongData(f)
	}
	for _, g := range slices.Clone(b.all) {
		if g.source == "watchdog" {
			b.others(g)
		}
	}
}

// wrongData: a result that was compared tells which call it was. One of the step before the present one is the last that completed.
func (b *logGroups) wrongData(f *evidence.Fact) {
	call, of := fieldOf(f.Detail, "call"), fieldOf(f.Detail, "of")
	n, err := strconv.ParseInt(of, 10, 64)
	p := b.j.logs.progs[f.Rank]
	g := b.at["watchdog"+b.name(f)]
	if err != nil || call == "" || call == "recv" || p == nil || g == nil || g.by[f.Rank] == nil {
		return
	}
	at, open := p.open()
	m := g.by[f.Rank]
	if !open || at != f.Seq+1 || m.done < 0 {
		return
	}
	m.call(m.done, b.j.asks.keep(nil, ask{op: call, kind: kindOf(call), size: n, in: n, out: n, root: -1, src: -1, dst: -1}), f)
}

func fieldOf(detail, name string) string {
	for word := range strings.FieldsSeq(detail) {
		if v, ok := strings.CutPrefix(word, name+"="); ok {
			return v
		}
	}
	return ""
}

// others adds members that complain of something else, so that they have nothing overdue here: they have not made the call that others wait for.
func (b *logGroups) others(g *group) {
	waits := int64(-1)
	for _, m := range g.members {
		if seq, ok := m.waits(); ok && (waits < 0 || seq < waits) {
			waits = seq
		}
	}
	if waits < 0 {
		return
	}
	for _, r := range b.membersOf(g) {
		m := g.by[r]
		switch {
		case m == nil && b.complainsElsewhere(g, r):
			f := b.j.logs.progs[r].trouble[0]
			g.add(&member{rank: r, place: -1, where: f.Where, source: "watchdog", counted: true, enq: waits - 1, begun: waits - 1, done: waits - 1, log: true,
				text: f.Text, guessed: true})
		case m != nil && !m.counted && len(m.p2p) > 0:
			m.counted, m.enq, m.done, m.begun, m.guessed = true, waits-1, waits-1, waits-1, true
		}
	}
}

// membersOf are ranks that are known to be in a group: who has made it, or everybody for the group of all.
func (b *logGroups) membersOf(g *group) (ranks []int) {
	if g.name == "0" {
		return b.j.logs.ranks
	}
	for _, f := range b.j.logs.by[evidence.InitDone] {
		if f.Group == g.name && rankOf(f) >= 0 {
			ranks = append(ranks, rankOf(f))
		}
	}
	for _, m := range g.members {
		ranks = append(ranks, m.rank)
	}
	slices.Sort(ranks)
	return slices.Compact(ranks)
}

// complainsElsewhere tells that a rank's own watchdog has fired in another group.
func (b *logGroups) complainsElsewhere(g *group, r int) bool {
	for _, o := range b.all {
		m := o.by[r]
		if o == g || o.source != "watchdog" || m == nil || m.guessed {
			continue
		}
		if _, waits := m.waits(); waits {
			return true
		}
	}
	return false
}
