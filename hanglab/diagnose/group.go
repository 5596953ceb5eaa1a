package diagnose

import (
	"cmp"
	"slices"
	"sort"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

// issued is one call that a rank made.
type issued struct {
	seq   int64 // collective: its sequence number; send or receive: its p2p sequence number
	coll  int64 // of a send or receive: how many collectives of the group came before it
	ask   *ask
	entry *evidence.FlightEntry // nil: from a log
	pos   int32                 // place in the rank's own order: index in the dump, or line
	open  bool                  // of a send or receive: not known to be complete
}

// member is one rank's part in a group, as one source shows it.
type member struct {
	rank    int
	place   int // in the group, -1 unknown
	where   evidence.Where
	source  string // "dump", "calls", "watchdog", "fingerprint"
	counted bool   // enq and done say something
	enq     int64  // last sequence number enqueued
	begun   int64  // last one that a device began, where the source has such events
	starts  bool
	done    int64 // last one complete
	calls   []issued
	p2p     []issued
	lost    bool   // calls before the first one are not there any more
	text    string // the line that says it, for a log
	log     bool
	cut     bool // its record ends too early
	guessed bool // its counters follow from what it does not complain of
	unused  bool // its record knows nothing of the group: it has not made a call in it
}

// group is one communicator's ranks.
type group struct {
	name, desc string
	ranks      []int // members, ascending; those that are known
	sure       bool  // ranks is all of them
	size       int   // number of members where only that is known
	p2p        bool  // it carries sends and receives, so its counters mean something else on each rank
	by         map[int]*member
	members    []*member // by rank
	source     string
	mismatch   *mismatch // found once
	unnumbered bool      // of early eras' lines, which number no calls: all that is known is that these are the ones that do not finish
	looked     bool
}

func newGroup(name, desc, source string) *group {
	return &group{name: name, desc: desc, source: source, by: map[int]*member{}}
}

// title is what users call it.
func (g *group) title() string {
	if g.name == "" {
		return "(not named)"
	}
	if g.desc != "" && g.desc != "undefined" && g.desc != g.name {
		return g.name + " (" + g.desc + ")"
	}
	return g.name
}

func (g *group) add(m *member) {
	if _, ok := g.by[m.rank]; !ok {
		g.by[m.rank] = m
		g.members = append(g.members, m)
	}
}

func (g *group) finish() {
	slices.SortFunc(g.members, func(a, b *member) int { return cmp.Compare(a.rank, b.rank) })
	if !g.sure {
		g.ranks = g.ranks[:0]
		for _, m := range g.members {
			g.ranks = append(g.ranks, m.rank)
		}
	}
	g.refresh()
}

// refresh mends records that their rank did not look at again: where others have completed a call that needs everybody, a device that is said not to
// have begun with it has in truth done it. Without start events nothing is said, and a device that failed looks the same, so nothing is mended.
func (g *group) refresh() {
	done := g.mostDone()
	for _, m := range g.members {
		if !m.counted || !m.starts || m.begun >= min(m.enq, done) {
			continue
		}
		if a := m.askAt(m.begun + 1); a != nil && synchronises(a.kind) {
			m.done = max(m.done, min(m.enq, done))
			m.begun = m.done
		}
	}
}

// at is the call with a sequence number, nil if the rank did not make it or its record is gone.
func (m *member) at(seq int64) *issued {
	if len(m.calls) == 0 {
		return nil
	}
	if i := seq - m.calls[0].seq; i >= 0 && i < int64(len(m.calls)) && m.calls[i].seq == seq {
		return &m.calls[i]
	}
	i := sort.Search(len(m.calls), func(i int) bool { return m.calls[i].seq >= seq })
	if i < len(m.calls) && m.calls[i].seq == seq {
		return &m.calls[i]
	}
	return nil
}

func (m *member) askAt(seq int64) *ask {
	if c := m.at(seq); c != nil {
		return c.ask
	}
	return nil
}

// low and high are the recorded window.
func (m *member) low() int64  { return m.calls[0].seq }
func (m *member) high() int64 { return m.calls[len(m.calls)-1].seq }

// absent tells whether a rank is known not to have made a call.
func (m *member) absent(seq int64) bool { return m.counted && m.enq < seq }

// waits is the first call that the rank has made and that is not complete, nil if there is none.
func (m *member) waits() (seq int64, ok bool) {
	if !m.counted || m.done >= m.enq {
		return 0, false
	}
	for i := range m.calls {
		if m.calls[i].seq > m.done {
			return m.calls[i].seq, true
		}
	}
	return m.done + 1, true
}

// mostDone and mostEnq are the group's heads.
func (g *group) mostDone() (n int64) {
	n = -1
	for _, m := range g.members {
		if m.counted {
			n = max(n, m.done)
		}
	}
	return n
}

func (g *group) mostEnq() (n int64) {
	n = -1
	for _, m := range g.members {
		if m.counted {
			n = max(n, m.enq)
		}
	}
	return n
}

// leastDone is how far all that are known have come.
func (g *group) leastDone() int64 {
	n := int64(-1)
	for _, m := range g.members {
		if m.counted && (n < 0 || m.done < n) {
			n = m.done
		}
	}
	return n
}

// ask is what most members asked at a place.
func (g *group) askAt(seq int64) *ask {
	var best *ask
	most := 0
	seen := map[*ask]int{}
	for _, m := range g.members {
		if a := m.askAt(seq); a != nil {
			seen[a]++
			if seen[a] > most {
				best, most = a, seen[a]
			}
		}
	}
	return best
}
