package hanglab

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/nccl"
)

// openOps is how many operations can have events of their own at the same time. One that finds none free is recorded all the same; its state then
// follows from its neighbours on the stream.
const openOps = 256

// recorder writes every NCCL call of a rank into its ring and finds out from events when operations begin and end. The rank's thread calls begin
// and end around each call, the watcher's thread polls.
type recorder struct {
	ring *csrc.Flight

	mu     sync.Mutex
	groups []*group
	sites  map[[siteDepth]uintptr]int32
	fresh  []opRecord // since the last poll
	found  []change   // the same, by refresh
	free   []int      // places of events that no operation uses
	events [openOps][2]cuda.Event
	lost   bool // communicators were aborted: what completes now does not mean that it was done
}

// group is a communicator as the recorder sees it: counters of its calls, and the operations on its stream that are not complete.
type group struct {
	index     int32
	name      string
	coll, p2p uint64
	ops       uint64
	open      []opRecord
}

// opRecord is one recorded operation.
type opRecord struct {
	id      uint64 // in the ring
	group   int32
	seq     uint64 // of its kind, collective or p2p
	call    call
	created time.Duration
	started bool
	made    bool // the call has returned: only then does its end event stand for it
	events  int  // place of its events, -1: none
}

// change is what a poll found out about an operation.
type change struct {
	op      opRecord
	at      time.Duration
	started bool // otherwise it is complete
}

// newRecorder makes the ring in the file and the events on the calling thread's device.
func newRecorder(file *os.File, entries int, plan *Plan, rank int) (*recorder, error) {
	ring, err := csrc.NewFlight(file, entries)
	if err != nil {
		return nil, fmt.Errorf("flight ring: %w", err)
	}
	host, _ := os.Hostname() // a name is only for reading
	ring.SetRank(rank, plan.World, host, libraryVersion())
	r := &recorder{ring: ring, sites: make(map[[siteDepth]uintptr]int32), fresh: make([]opRecord, 0, openOps)}
	for i := range r.events {
		for k := range r.events[i] {
			if r.events[i][k], err = cuda.NewEvent(cuda.EventTiming); err != nil {
				return nil, fmt.Errorf("event: %w", err)
			}
		}
		r.free = append(r.free, i)
	}
	return r, nil
}

func libraryVersion() string {
	return strings.TrimPrefix(nccl.LibraryVersion().String(), "v")
}

// close destroys the events and unmaps the ring.
func (r *recorder) close() error {
	var errs []error
	for i := range r.events {
		for _, e := range r.events[i] {
			errs = append(errs, e.Destroy())
		}
	}
	return errors.Join(append(errs, r.ring.Close())...)
}

// addGroup makes a communicator known under the name that PyTorch gives to groups: "0" is the one of all ranks.
func (r *recorder) addGroup(name, desc string, members []int) *group {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := &group{index: int32(r.ring.AddGroup(name, desc, members)), name: name, open: make([]opRecord, 0, openOps)}
	r.groups = append(r.groups, g)
	return g
}

// begin records a call that is about to be made on a stream. It does not allocate once its call site is known.
func (r *recorder) begin(g *group, c call, world int, s cuda.Stream, timeout time.Duration) (opRecord, error) {
	site := r.site()
	r.mu.Lock()
	defer r.mu.Unlock()
	op := opRecord{group: g.index, call: c, created: now(), events: -1}
	g.ops++
	if c.fn.p2p() {
		g.p2p++
		op.seq = g.p2p
	} else {
		g.coll++
		op.seq = g.coll
	}
	if n := len(r.free); n > 0 {
		op.events, r.free = r.free[n-1], r.free[:n-1]
	}
	in, out := c.elements(world)
	op.id = r.ring.Append(csrc.FlightRecord{
		Group: g.index, Site: site, Kind: csrc.StepKind(c.fn), DType: int32(c.dtype()), CollSeq: g.coll, P2PSeq: g.p2p, OpID: g.ops,
		P2P: c.fn.p2p(), Bounded: op.events < 0, Count: uint64(c.count), Peer: int32(c.peer), InCount: uint64(in), OutCount: uint64(out),
		CreatedNs: int64(op.created), TimeoutNs: int64(timeout), Stream: g.index,
	})
	var err error
	if op.events >= 0 {
		err = r.events[op.events][0].Record(s)
	}
	// Known from now on: the call may hang inside the library, while it makes connections, and never return.
	g.open = append(g.open, op)
	r.fresh = append(r.fresh, op)
	return op, err
}

// end records that the call has returned: everything that it queued lies before the stream's present end.
func (r *recorder) end(g *group, op opRecord, s cuda.Stream) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var err error
	if op.events >= 0 {
		err = r.events[op.events][1].Record(s)
	}
	for i := len(g.open) - 1; i >= 0; i-- { // it is the last, unless it was given up
		if g.open[i].id == op.id {
			g.open[i].made = true
			break
		}
	}
	return err
}

// poll looks at the oldest operations of each group and returns what was queued and what has changed since the last poll.
func (r *recorder) poll() (fresh []opRecord, changes []change, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fresh = append(fresh, r.fresh...)
	r.fresh = r.fresh[:0]
	if r.lost {
		return fresh, nil, nil
	}
	changes, r.found = r.found, nil
	for _, g := range r.groups {
		if err := r.pollGroup(g, &changes); err != nil {
			return fresh, changes, fmt.Errorf("group %s: %w", g.name, err)
		}
	}
	return fresh, changes, nil
}

// refresh brings the states in the ring up to date when the program knows that something has changed: the process may end before the next poll,
// which hears of the changes all the same.
func (r *recorder) refresh() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost {
		return nil
	}
	for _, g := range r.groups {
		if err := r.pollGroup(g, &r.found); err != nil {
			return fmt.Errorf("group %s: %w", g.name, err)
		}
	}
	return nil
}

// pollGroup goes along the group's stream until something is not complete. An operation without events is complete when a later one is.
func (r *recorder) pollGroup(g *group, changes *[]change) error {
	done := 0
	for i := range g.open {
		op := &g.open[i]
		if op.events < 0 {
			continue
		}
		if !op.started {
			ok, err := r.events[op.events][0].Done()
			if err != nil || !ok {
				r.drop(g, done)
				return err
			}
			op.started = true
			at := now()
			r.ring.Start(op.id, int64(at))
			*changes = append(*changes, change{*op, at, true})
		}
		if !op.made {
			break
		}
		ok, err := r.events[op.events][1].Done()
		if err != nil || !ok {
			r.drop(g, done)
			return err
		}
		for ; done <= i; done++ {
			r.complete(g.open[done], changes)
		}
	}
	r.drop(g, done)
	return nil
}

func (r *recorder) complete(op opRecord, changes *[]change) {
	at := now()
	took := int64(-1)
	if op.events >= 0 {
		if d, err := r.events[op.events][1].Since(r.events[op.events][0]); err == nil {
			took = int64(d)
		}
		r.free = append(r.free, op.events)
	}
	r.ring.Complete(op.id, int64(at), took)
	*changes = append(*changes, change{op, at, false})
}

// drop forgets the first n open operations of a group.
func (r *recorder) drop(g *group, n int) {
	g.open = g.open[:copy(g.open, g.open[n:])]
}

// retire marks everything that is open as given up: the communicators are about to be aborted, after which their streams run empty.
func (r *recorder) retire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost = true
	for _, g := range r.groups {
		for _, op := range g.open {
			r.ring.Retire(op.id)
		}
	}
}

// openCount is how many operations are not complete as far as is known.
func (r *recorder) openCount() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, g := range r.groups {
		n += len(g.open)
	}
	return n
}

// siteDepth is how many frames of a call site are kept.
const siteDepth = 12

// site is the index of the call's Go frames in the ring, innermost first.
func (r *recorder) site() int32 {
	var pcs [siteDepth]uintptr
	n := runtime.Callers(4, pcs[:]) // without Callers, site, begin and the lab's enqueue
	r.mu.Lock()
	i, ok := r.sites[pcs]
	r.mu.Unlock()
	if ok {
		return i
	}
	return r.newSite(pcs, n)
}

// wrappers are the laboratory's functions around a call; what calls them is the place that is looked for.
var wrappers = map[string]bool{"call": true, "pass": true, "calls": true, "allReduce": true, "enqueue": true}

// newSite has the frames in a copy of its own, so that those of a known site need not be on the heap.
func (r *recorder) newSite(pcs [siteDepth]uintptr, n int) int32 {
	var b strings.Builder
	frames := runtime.CallersFrames(pcs[:n])
	for {
		f, more := frames.Next()
		if f.Function != "" && !strings.HasPrefix(f.Function, "runtime.") && !wrappers[f.Function[strings.LastIndexByte(f.Function, '.')+1:]] {
			b.WriteString(f.Function + "\t" + f.File + "\t" + strconv.Itoa(f.Line) + "\n")
		}
		if !more {
			break
		}
	}
	i := int32(r.ring.AddSite(b.String()))
	r.mu.Lock()
	r.sites[pcs] = i
	r.mu.Unlock()
	return i
}

// now is the monotonic clock that markers and records carry, the same as C's CLOCK_MONOTONIC.
func now() time.Duration { return time.Duration(csrc.NowNs()) }
