package csrc

/*
#cgo noescape cp_flight_append
#cgo nocallback cp_flight_append
#cgo noescape cp_flight_append_many
#cgo nocallback cp_flight_append_many
#cgo noescape cp_flight_set_phase
#cgo nocallback cp_flight_set_phase
#include <stdlib.h>
#include "flight.h"
*/
import "C"

import (
	"fmt"
	"math/bits"
	"os"
	"sync"
	"syscall"
	"unsafe"
)

// FlightEventsMax is how many events a FlightEvents can have.
const FlightEventsMax = C.CP_FLIGHT_POOL

// FlightRecord is one NCCL call, as it is recorded when it is made. Units: elements, monotonic nanoseconds.
type FlightRecord struct {
	Group             int32 // from AddGroup, -1: none
	Site              int32 // from AddSite, 0: not known
	Stream            int32 // the caller's own numbering
	Kind              StepKind
	DType, Op         int32 // NCCL's numbers
	Peer              int32 // root or peer, a rank of the group
	P2P               bool  // numbered by P2PSeq
	Coalesced         bool  // inside of ncclGroupStart and ncclGroupEnd
	Joined            bool  // coalesced, and not the first of its NCCL group: has that one's sequence number
	Bounded           bool  // nothing will tell that this very record has started or completed; its state follows from its neighbours
	CollSeq, P2PSeq   uint64
	OpID              uint64 // 0: this and the two sequence numbers are given by the ring, in the order of calls for each group
	Count             uint64
	InCount, OutCount uint64
	CreatedNs         int64 // 0: now
	TimeoutNs         int64
}

// FlightTemplate is what a series cannot know about the records of its steps.
type FlightTemplate struct {
	Group             int32 // from AddGroup
	Site              int32 // from AddSite, 0: not known
	InCount, OutCount uint64
	TimeoutNs         int64
}

func (t FlightTemplate) c() C.cp_flight_template {
	return C.cp_flight_template{
		group: C.int32_t(t.Group), site: C.uint32_t(t.Site), in: C.uint64_t(t.InCount), out: C.uint64_t(t.OutCount), timeout_ns: C.int64_t(t.TimeoutNs),
	}
}

// Flight is a ring of records of NCCL calls in memory that outlives the process. flight.h has its format; package hanglab/flight reads it. All
// methods but Close may be called from any goroutine, also while series append. None but the Add methods allocates.
type Flight struct {
	c     *C.cp_flight
	bytes []byte
	mu    sync.Mutex // for the tables
	sites map[string]int
}

// NewFlight makes a ring for the last entries calls (rounded up to a power of two) in file, which it sets to the right size and maps shared; the
// file may be closed afterwards. Without a file the ring lies in memory of this process. The caller closes it.
func NewFlight(file *os.File, entries int) (*Flight, error) {
	if entries < 1 || entries > C.CP_FLIGHT_MAX_ENTRIES {
		return nil, fmt.Errorf("flight ring of %d entries: must have 1 to %d", entries, C.CP_FLIGHT_MAX_ENTRIES)
	}
	capacity := C.uint32_t(1) << bits.Len(uint(entries-1))
	size, fd, flags := int(C.cp_flight_bytes(capacity)), -1, syscall.MAP_SHARED|syscall.MAP_ANON
	if file != nil {
		if err := file.Truncate(int64(size)); err != nil {
			return nil, fmt.Errorf("flight ring: %w", err)
		}
		fd, flags = int(file.Fd()), syscall.MAP_SHARED
	}
	m, err := syscall.Mmap(fd, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, flags)
	if err != nil {
		return nil, fmt.Errorf("flight ring: map %d bytes: %w", size, err)
	}
	f := &Flight{c: (*C.cp_flight)(C.calloc(1, C.sizeof_cp_flight)), bytes: m, sites: make(map[string]int)}
	C.cp_flight_open(f.c, unsafe.Pointer(unsafe.SliceData(m)), capacity)
	return f, nil
}

// Close unmaps the ring; a file keeps what was recorded. No series may run with it any more, nor any other method or a poll of its events.
func (f *Flight) Close() error {
	C.free(unsafe.Pointer(f.c))
	f.c = nil
	if err := syscall.Munmap(f.bytes); err != nil {
		return fmt.Errorf("flight ring: unmap: %w", err)
	}
	return nil
}

// borrowed is a text and its length for one call: C copies it.
func borrowed(s string) (*C.char, C.uint32_t) {
	return (*C.char)(unsafe.Pointer(unsafe.StringData(s))), C.uint32_t(min(len(s), 1<<30))
}

// SetRank says whose ring this is. library is NCCL's version. Texts are cut to what the ring's header holds: 63 and 31 bytes.
func (f *Flight) SetRank(rank, world int, host, library string) {
	h, hn := borrowed(host)
	l, ln := borrowed(library)
	C.cp_flight_set_rank(f.c, C.int(rank), C.int(world), h, hn, l, ln)
}

// AddGroup adds a communicator under a name with its members' global ranks in order and returns its index, -1 when the ring has room for no more.
func (f *Flight) AddGroup(name, desc string, members []int) int {
	ranks := make([]int32, len(members))
	for i, m := range members {
		ranks[i] = int32(m)
	}
	n, nn := borrowed(name)
	d, dn := borrowed(desc)
	f.mu.Lock()
	defer f.mu.Unlock()
	return int(C.cp_flight_add_group(f.c, n, nn, d, dn, (*C.int32_t)(unsafe.Pointer(unsafe.SliceData(ranks))), C.uint32_t(len(ranks))))
}

// SetComm notes the communicator's identity once it exists: any number that tells communicators apart.
func (f *Flight) SetComm(group int, id uint64) {
	C.cp_flight_set_comm(f.c, C.int(group), C.uint64_t(id))
}

// AddSite adds a call site, "function\tfile\tline\n" for each frame with the innermost first, unless it is known, and returns its number. 0 when
// the ring has room for no more.
func (f *Flight) AddSite(frames string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n, ok := f.sites[frames]; ok {
		return n
	}
	t, tn := borrowed(frames)
	n := int(C.cp_flight_add_site(f.c, t, tn))
	f.sites[frames] = n
	return n
}

func bit(set bool, f C.uint32_t) C.uint32_t {
	if set {
		return f
	}
	return 0
}

func (r *FlightRecord) c() C.cp_flight_record {
	return C.cp_flight_record{
		group: C.int32_t(r.Group), site: C.uint32_t(r.Site), stream: C.uint32_t(r.Stream), kind: C.uint32_t(r.Kind),
		dtype: C.int32_t(r.DType), redop: C.int32_t(r.Op), peer: C.int32_t(r.Peer),
		flags: bit(r.P2P, C.CP_FLIGHT_P2P) | bit(r.Coalesced, C.CP_FLIGHT_COALESCED) | bit(r.Bounded, C.CP_FLIGHT_BOUNDED) |
			bit(r.Joined, C.CP_FLIGHT_JOINED),
		coll_seq: C.uint64_t(r.CollSeq), p2p_seq: C.uint64_t(r.P2PSeq), op_id: C.uint64_t(r.OpID),
		count: C.uint64_t(r.Count), in: C.uint64_t(r.InCount), out: C.uint64_t(r.OutCount),
		created_ns: C.int64_t(r.CreatedNs), timeout_ns: C.int64_t(r.TimeoutNs),
	}
}

// Append records a call that is about to be made and returns the record's number in the ring, from 1.
func (f *Flight) Append(r FlightRecord) uint64 {
	c := r.c()
	return uint64(C.cp_flight_append(f.c, &c))
}

// appendMany is for measuring what a record costs without the way from Go to C.
func (f *Flight) appendMany(r FlightRecord, n int) {
	c := r.c()
	C.cp_flight_append_many(f.c, &c, C.int64_t(n))
}

// flightRun is a run as the series' loop writes it, for tests.
type flightRun struct {
	c  C.cp_flight_run
	id uint64 // of its record
}

func (f *Flight) newRun(r FlightRecord) *flightRun {
	c, run := r.c(), &flightRun{}
	run.id = uint64(C.cp_flight_begin(f.c, &c, C.CP_FLIGHT_REPEATS, &run.c))
	return run
}

func (r *flightRun) repeat() bool     { return C.cp_flight_repeat(&r.c) != 0 }
func (r *flightRun) takeBack() bool   { return C.cp_flight_take_back(&r.c) != 0 }
func (f *Flight) endRun(r *flightRun) { C.cp_flight_end(f.c, &r.c) }

// Start notes that the device was seen to have begun record id at ns. Without effect once the record has left the ring.
func (f *Flight) Start(id uint64, ns int64) { C.cp_flight_start(f.c, C.uint64_t(id), C.int64_t(ns)) }

// Complete notes that record id was seen to be complete at ns; durationNs is the time between events around it, -1 if there are none.
func (f *Flight) Complete(id uint64, ns, durationNs int64) {
	C.cp_flight_complete(f.c, C.uint64_t(id), C.int64_t(ns), C.int64_t(durationNs))
}

// Retire notes that nobody waits for record id any more: its call failed, or its communicator was aborted.
func (f *Flight) Retire(id uint64) { C.cp_flight_retire(f.c, C.uint64_t(id)) }

// SetPhase says what the rank's thread does now, in at most 128 bytes.
func (f *Flight) SetPhase(text string) {
	t, n := borrowed(text)
	C.cp_flight_set_phase(f.c, t, n)
}

// Beat says that the watchdog came round at ns.
func (f *Flight) Beat(ns int64) { C.cp_flight_beat(f.c, C.int64_t(ns)) }

// Heartbeat returns when the watchdog last came round, 0 before its first time.
func (f *Flight) Heartbeat() int64 { return int64(C.cp_flight_heartbeat(f.c)) }

// Snapshot returns the ring's bytes, with each record whole or marked as torn.
func (f *Flight) Snapshot() []byte {
	out := make([]byte, len(f.bytes))
	C.cp_flight_copy(f.c, unsafe.Pointer(unsafe.SliceData(out)))
	return out
}

// FlightEvents are events of one stream by which a series, and any goroutine that polls, learns how far the stream is. It is never freed: a
// series that hangs may look at it until the process ends.
type FlightEvents struct{ c *C.cp_flight_pool }

// NewFlightEvents takes 1 to FlightEventsMax events without timing, which stay the caller's to destroy after the last series and poll. Four
// events a stream are enough to follow it; more keep the steps fine when the stream lags far behind.
func NewFlightEvents(f *Flight, events []uintptr) (*FlightEvents, error) {
	if len(events) < 1 || len(events) > FlightEventsMax {
		return nil, fmt.Errorf("%d flight events: must be 1 to %d", len(events), FlightEventsMax)
	}
	p := (*C.cp_flight_pool)(C.calloc(1, C.sizeof_cp_flight_pool))
	p.flight, p.n = f.c, C.int32_t(len(events))
	for i, e := range events {
		*(*uintptr)(unsafe.Pointer(&p.slot[i].event)) = e
	}
	return &FlightEvents{p}, nil
}

// Poll completes the records whose events are done and returns how many. Any goroutine may poll, also while a series hangs in a call, but not
// while another thread captures a graph in the global mode, which CUDA would not stand.
func (e *FlightEvents) Poll() int { return int(C.cp_flight_pool_poll(e.c)) }
