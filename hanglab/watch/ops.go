package watch

import (
	"maps"
	"slices"
	"time"
)

// Counters are the highest sequence numbers of one communicator, -1 before the first.
type Counters struct {
	Enqueued, Started, Completed int64
}

var (
	noneYet     = Counters{-1, -1, -1}
	noUntracked = [2]int64{-1, -1}
)

// comm is a communicator that exists or is being created.
type comm struct {
	id      int
	name    string
	making  bool
	begun   time.Duration // of its creation
	overdue bool          // its creation's deadline has passed

	coll, p2p   Counters
	untracked   [2]int64 // highest sequence that was not watched by itself: collectives, p2p; -1: none
	overdueOpen int      // open operations whose deadline has passed
}

func (c *comm) counters(p2p bool) *Counters {
	if p2p {
		return &c.p2p
	}
	return &c.coll
}

// op is an open operation.
type op struct {
	comm     *comm
	seq      int64
	id       uint64
	what     string
	p2p      bool
	enqueued time.Duration
	started  bool
	overdue  bool // its deadline has passed
	named    bool // and a report has said so

	prev, next *op
}

// ops holds the open operations in the order of their enqueue, at most max of them one by one. Those beyond are counted: a launch queue holds
// a thousand or so, so this is for a caller that does not deliver completions. They count as completed together, when the last one has.
type ops struct {
	max    int
	byID   map[uint64]*op
	oldest *op
	newest *op
	free   *op // reused, so that a steady stream of operations allocates nothing

	extra              int // open operations that are not watched one by one
	extraFrom, extraTo uint64
	extraSince         time.Duration // of the latest: an alarm may be late, never false
	extraOverdue       bool
	extraSaid          bool
}

func newOps(limit int) ops { return ops{max: limit, byID: map[uint64]*op{}} }

// add returns nil if the operation is only counted.
func (o *ops) add(c *comm, e Enqueued, now time.Duration) *op {
	n := c.counters(e.P2P)
	n.Enqueued = max(n.Enqueued, e.Seq)
	if len(o.byID) >= o.max {
		o.count(c, e, now)
		return nil
	}
	p := o.free
	if p == nil {
		p = &op{}
	} else {
		o.free = p.next
	}
	*p = op{comm: c, seq: e.Seq, id: e.ID, what: e.What, p2p: e.P2P, enqueued: now, prev: o.newest}
	if o.newest == nil {
		o.oldest = p
	} else {
		o.newest.next = p
	}
	o.newest = p
	o.byID[e.ID] = p
	return p
}

func (o *ops) count(c *comm, e Enqueued, now time.Duration) {
	if o.extra == 0 {
		o.extraFrom = e.ID
	}
	o.extra++
	o.extraTo, o.extraSince = e.ID, now
	kind := 0
	if e.P2P {
		kind = 1
	}
	c.untracked[kind] = max(c.untracked[kind], e.Seq)
}

// uncount takes off one completed operation that was only counted. The last one shows that all before it have completed.
func (o *ops) uncount(id uint64, comms map[int]*comm) {
	if o.extra == 0 || id < o.extraFrom || id > o.extraTo {
		return
	}
	if o.extra--; o.extra > 0 {
		return
	}
	o.extraOverdue = false
	for _, c := range comms {
		c.coll.Completed = max(c.coll.Completed, c.untracked[0])
		c.p2p.Completed = max(c.p2p.Completed, c.untracked[1])
		c.untracked = noUntracked
	}
}

func (o *ops) remove(p *op) {
	if p.prev == nil {
		o.oldest = p.next
	} else {
		p.prev.next = p.next
	}
	if p.next == nil {
		o.newest = p.prev
	} else {
		p.next.prev = p.prev
	}
	delete(o.byID, p.id)
	if p.overdue {
		p.comm.overdueOpen--
	}
	p.prev, p.next, o.free = nil, o.free, p
}

// drop forgets the operations of a communicator that is gone. Which of the merely counted ones were its own is not known, so all of them are
// forgotten if any may be: better no alarm than a false one.
func (o *ops) drop(c *comm) {
	if c.untracked != noUntracked {
		o.extra, o.extraOverdue = 0, false
	}
	for p := o.oldest; p != nil; {
		next := p.next
		if p.comm == c {
			o.remove(p)
		}
		p = next
	}
}

func (o *ops) open() int { return len(o.byID) + o.extra }

// oldestOf is the oldest open operation of a communicator.
func (o *ops) oldestOf(c *comm) *op {
	for p := o.oldest; p != nil; p = p.next {
		if p.comm == c {
			return p
		}
	}
	return nil
}

func (m *Machine) sortedComms() []*comm {
	out := make([]*comm, 0, len(m.comms))
	for _, id := range slices.Sorted(maps.Keys(m.comms)) {
		out = append(out, m.comms[id])
	}
	return out
}
