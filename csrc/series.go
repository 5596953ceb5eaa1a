package csrc

/*
#include <stdlib.h>
#include "series.h"
*/
import "C"

import (
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// StepKind is what one call of a timed iteration does.
type StepKind int32

// The calls that a timed series can make.
const (
	StepGroupStart    StepKind = C.CP_STEP_GROUP_START
	StepGroupEnd      StepKind = C.CP_STEP_GROUP_END
	StepAllReduce     StepKind = C.CP_STEP_ALL_REDUCE
	StepBroadcast     StepKind = C.CP_STEP_BROADCAST
	StepReduce        StepKind = C.CP_STEP_REDUCE
	StepAllGather     StepKind = C.CP_STEP_ALL_GATHER
	StepReduceScatter StepKind = C.CP_STEP_REDUCE_SCATTER
	StepSend          StepKind = C.CP_STEP_SEND
	StepRecv          StepKind = C.CP_STEP_RECV
	StepAllToAll      StepKind = C.CP_STEP_ALL_TO_ALL
	StepGather        StepKind = C.CP_STEP_GATHER
	StepCopy          StepKind = C.CP_STEP_COPY // by the CUDA runtime, on the lane's device and stream
	StepScatter       StepKind = C.CP_STEP_SCATTER
	StepGraph         StepKind = C.CP_STEP_GRAPH // no step, but what a FlightRecord calls the launch of a graph
)

// Step is one call of an iteration. Send and Recv are device addresses; the series' rotation is added to them. Count is in elements.
type Step struct {
	Kind       StepKind
	Lane       int // index into the series' lanes
	Send, Recv uintptr
	Count      uint64
	DType, Op  int
	Peer       int // root or peer rank
	Flight     FlightTemplate
}

// Lane is one rank that a series drives: its communicator, its stream and, for an event series, iters + 1 timing events.
type Lane struct {
	Comm, Stream uintptr // stream 0: the legacy default stream
	Events       []uintptr
	RotStride    uint64 // bytes added to the addresses from one operation to the next
	RotSlots     uint64 // after so many operations the addresses start again; 0 and 1: no rotation

	// With Series.Flight:
	FlightStream int           // the stream's number in records
	FlightEvents *FlightEvents // tell how far the stream is while a series runs; nil: its records complete at the end only
	FlightGraph  FlightTemplate
}

// Blocking says what happens after each iteration of a series.
type Blocking int32

// The ways, numbered as nccl-tests' -z.
const (
	BlockingNo       Blocking = C.CP_BLOCKING_NO       // nothing: iterations queue up
	BlockingBarrier  Blocking = C.CP_BLOCKING_BARRIER  // wait for the streams, then for all at the barrier
	BlockingWait     Blocking = C.CP_BLOCKING_WAIT     // wait for the streams
	BlockingExcluded Blocking = C.CP_BLOCKING_EXCLUDED // as BlockingBarrier; SeriesResult.ExcludedNS has the barrier's time
)

// SeriesStatus tells how a series ended.
type SeriesStatus int

// The ends of a series.
const (
	SeriesOK      SeriesStatus = C.CP_SERIES_OK
	SeriesTimeout SeriesStatus = C.CP_SERIES_TIMEOUT // the deadline passed
	SeriesAborted SeriesStatus = C.CP_SERIES_ABORTED // the abort flag was set
	SeriesCall    SeriesStatus = C.CP_SERIES_CALL    // a call failed: Code is an ncclResult_t or Missing
	SeriesAsync   SeriesStatus = C.CP_SERIES_ASYNC   // a communicator reported Code
	SeriesCUDA    SeriesStatus = C.CP_SERIES_CUDA    // a stream or event call failed: Code is a cudaError_t
	SeriesBarrier SeriesStatus = C.CP_SERIES_BARRIER // another rank gave up at the barrier
)

// SeriesPhase tells what a series was doing when it ended.
type SeriesPhase int

// The phases of a series.
const (
	PhaseBarrier  SeriesPhase = C.CP_PHASE_BARRIER
	PhaseEnqueue  SeriesPhase = C.CP_PHASE_ENQUEUE
	PhaseComplete SeriesPhase = C.CP_PHASE_COMPLETE
)

func (p SeriesPhase) String() string {
	switch p {
	case PhaseBarrier:
		return "waiting for the other ranks"
	case PhaseEnqueue:
		return "queueing operations"
	default:
		return "waiting for the operations to finish"
	}
}

// Series describes a timed series. Iters operations of Steps are queued back to back, then all lanes are waited for.
type Series struct {
	Steps     []Step
	Lanes     []Lane
	Graphs    []uintptr // executable graphs, one a lane, launched instead of the steps
	Iters     int
	Aggregate int // operations in one group that make an iteration; 0 and 1: one, without that group
	Blocking  Blocking
	Capture   bool // the streams are being captured into graphs: queue only, wait for nothing
	Probe     bool // measure the core's issue rate before the barrier and after the end
	Barrier   *Barrier
	Parties   int // members of the barrier
	Abort     *Flag
	Timeout   time.Duration // 0: none
	Flight    *Flight       // records every NCCL call and every graph launch, but for what is captured; nil: nothing
}

// EnqueueSample is how many operations the cost of queueing is taken from: few enough that the launch queue is never full, where queueing
// takes as long as the operations themselves.
const EnqueueSample = C.CP_ENQUEUE_SAMPLE

// SeriesResult is what a series measured; times are CLOCK_MONOTONIC nanoseconds.
type SeriesResult struct {
	Status     SeriesStatus
	Code       int
	Phase      SeriesPhase
	Lane       int   // of the failure, -1: none in particular
	Iter       int64 // iteration reached
	StartNS    int64
	MarkedNS   int64   // the first EnqueueSample operations (or all, if fewer) queued
	EnqueuedNS int64   // all operations queued
	DoneNS     int64   // all operations complete
	ExcludedNS int64   // of start to done, with BlockingExcluded
	RateBefore float64 // with Probe: additions a nanosecond, see IssueRate
	RateAfter  float64
	Switches   int64 // involuntary context switches of the thread
	CPU        int   // processor at the end
}

// Run runs the series on the calling goroutine's thread, which must be the thread that owns the lanes' devices. One cgo call; blocks until
// the operations are complete, the timeout passes, the abort flag is set, or a call inside NCCL never returns.
func (s *Series) Run() SeriesResult {
	c := (*C.cp_series)(C.calloc(1, C.sizeof_cp_series))
	defer C.free(unsafe.Pointer(c))
	steps := cSteps(s.Steps)
	defer C.free(unsafe.Pointer(steps))
	lanes, free := cLanes(s.Lanes)
	defer free()
	c.steps, c.nsteps = steps, C.int32_t(len(s.Steps))
	c.lanes, c.nlanes = lanes, C.int32_t(len(s.Lanes))
	c.iters = C.int64_t(s.Iters)
	c.aggregate, c.blocking = C.int64_t(max(1, s.Aggregate)), C.int32_t(s.Blocking)
	if s.Capture {
		c.capture = 1
	}
	if len(s.Graphs) > 0 {
		graphs := cHandles(s.Graphs)
		defer C.free(unsafe.Pointer(graphs))
		c.graphs = (*C.cp_graph_exec)(unsafe.Pointer(graphs))
	}
	if len(s.Lanes) > 0 && len(s.Lanes[0].Events) > 0 {
		c.use_events = 1
	}
	if s.Barrier != nil {
		c.barrier, c.parties = s.Barrier.p, C.int32_t(s.Parties)
	}
	if s.Probe {
		c.probe = 1
	}
	if s.Abort != nil {
		c.abort = s.Abort.p
	}
	if s.Timeout > 0 {
		c.deadline_ns = C.cp_now_ns() + C.int64_t(s.Timeout)
	}
	if s.Flight != nil {
		c.flight = s.Flight.c
	}
	C.cp_series_run(c)
	return SeriesResult{
		Status: SeriesStatus(c.status), Code: int(c.code), Phase: SeriesPhase(c.phase), Lane: int(c.lane), Iter: int64(c.iter),
		RateBefore: float64(c.rate_before), RateAfter: float64(c.rate_after), StartNS: int64(c.start_ns), MarkedNS: int64(c.marked_ns), EnqueuedNS: int64(c.enqueued_ns), DoneNS: int64(c.done_ns), ExcludedNS: int64(c.excluded_ns), Switches: int64(c.switches), CPU: int(c.cpu),
	}
}

func cSteps(steps []Step) *C.cp_step {
	p := (*C.cp_step)(C.calloc(C.size_t(max(1, len(steps))), C.sizeof_cp_step))
	for i, t := range steps {
		unsafe.Slice(p, len(steps))[i] = C.cp_step{
			kind: C.int32_t(t.Kind), lane: C.int32_t(t.Lane), send: C.uint64_t(t.Send), recv: C.uint64_t(t.Recv),
			count: C.uint64_t(t.Count), dtype: C.int32_t(t.DType), op: C.int32_t(t.Op), peer: C.int32_t(t.Peer), flight: t.Flight.c(),
		}
	}
	return p
}

func cHandles(h []uintptr) *C.uintptr_t {
	p := (*C.uintptr_t)(C.calloc(C.size_t(max(1, len(h))), C.sizeof_uintptr_t))
	for i, x := range h {
		unsafe.Slice(p, len(h))[i] = C.uintptr_t(x)
	}
	return p
}

func cLanes(lanes []Lane) (*C.cp_lane, func()) {
	p := (*C.cp_lane)(C.calloc(C.size_t(max(1, len(lanes))), C.sizeof_cp_lane))
	out := unsafe.Slice(p, len(lanes))
	var events []*C.uintptr_t
	for i, l := range lanes {
		*(*uintptr)(unsafe.Pointer(&out[i].comm)) = l.Comm
		*(*uintptr)(unsafe.Pointer(&out[i].stream)) = l.Stream
		out[i].rot_stride, out[i].rot_slots = C.uint64_t(l.RotStride), C.uint64_t(max(1, l.RotSlots))
		out[i].flight_stream, out[i].graph = C.uint32_t(l.FlightStream), l.FlightGraph.c()
		if l.FlightEvents != nil {
			out[i].pool = l.FlightEvents.c
		}
		if len(l.Events) > 0 {
			e := cHandles(l.Events)
			events = append(events, e)
			out[i].events = (*C.cp_event)(unsafe.Pointer(e))
		}
	}
	return p, func() {
		for _, e := range events {
			C.free(unsafe.Pointer(e))
		}
		C.free(unsafe.Pointer(p))
	}
}

// IssueRate returns how many independent additions a nanosecond the calling thread's core does at present, 0 where this is not known how to
// measure. It takes about 50 µs. A core whose other hardware thread is busy does markedly fewer, and nothing else shows it.
func IssueRate() float64 { return float64(C.cp_issue_rate()) }

// QuietCore binds the calling thread, which must be locked, to one of the processors whose issue rate is within a tenth of *best, the best
// seen so far (0: not known, updated). It tries at most tries processors from cpus[start] on and keeps the last one if none is quiet. It
// returns the rate there; about 50 µs a try.
func QuietCore(cpus []int32, start, tries int, best *float64) float64 {
	return float64(C.cp_quiet_core((*C.int32_t)(unsafe.Pointer(unsafe.SliceData(cpus))), C.int(len(cpus)), C.int(start), C.int(tries), (*C.double)(unsafe.Pointer(best))))
}

// Spin keeps the calling thread's processor busy for d, outside Go's scheduler.
func Spin(d time.Duration) { C.cp_spin(C.int64_t(d)) }

// Flag is an abort flag in C memory that running series look at. Any goroutine may set it.
type Flag struct{ p *C.int32_t }

// NewFlag returns a flag that is not set. It is never freed: a series that hangs may look at it until the process ends.
func NewFlag() *Flag {
	return &Flag{(*C.int32_t)(C.calloc(1, 4))}
}

// Set sets the flag.
func (f *Flag) Set() { C.cp_flag_set(f.p) }

// IsSet tells whether the flag is set.
func (f *Flag) IsSet() bool { return C.cp_flag_get(f.p) != 0 }

// BarrierBytes is the size of the file that a barrier between processes needs.
const BarrierBytes = 4096

// Barrier aligns the threads and processes of one host to about a microsecond. Its memory is shared by all of them and starts zeroed.
type Barrier struct{ p *C.cp_barrier }

// NewBarrier returns a barrier between the threads of this process. It is never freed: a thread that hangs may still look at it.
func NewBarrier() *Barrier { return &Barrier{(*C.cp_barrier)(C.calloc(1, C.sizeof_cp_barrier))} }

// MapBarrier returns the barrier that lies in f, a file of BarrierBytes zero bytes that other processes of this host map too. The file may be
// closed and removed afterwards; the mapping lasts as long as the process.
func MapBarrier(f *os.File) (*Barrier, error) {
	m, err := syscall.Mmap(int(f.Fd()), 0, BarrierBytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map barrier %s: %w", f.Name(), err)
	}
	return &Barrier{(*C.cp_barrier)(unsafe.Pointer(unsafe.SliceData(m)))}, nil
}

// Wait waits until parties threads have arrived, the flag is set (may be nil) or the timeout passes (0: none). A wait that fails breaks the
// barrier for all.
func (b *Barrier) Wait(parties int, abort *Flag, timeout time.Duration) SeriesStatus {
	var f *C.int32_t
	if abort != nil {
		f = abort.p
	}
	var deadline C.int64_t
	if timeout > 0 {
		deadline = C.cp_now_ns() + C.int64_t(timeout)
	}
	return SeriesStatus(C.cp_barrier_wait(b.p, C.int(parties), f, deadline))
}

// Break makes every present and later wait end with SeriesBarrier.
func (b *Barrier) Break() { C.cp_barrier_break(b.p) }
