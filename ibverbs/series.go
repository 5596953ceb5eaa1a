package ibverbs

// #include <stdlib.h>
// #include "binding.h"
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// Flag stops a running series from another goroutine: the peer died, or the user has had enough.
type Flag struct {
	handle
	mu sync.Mutex
}

// NewFlag makes a flag that is not set. Close it after the series that look at it.
func NewFlag() *Flag {
	f := new(Flag)
	// C's memory: the loops look at it while Go may move on.
	_ = f.open("flag", func(p *unsafe.Pointer) error { *p = unsafe.Pointer(C.iv_flag_new()); return nil })
	return f
}

// Set stops the series, which then returns ErrStopped. It may come at any time, even after Close.
func (f *Flag) Set() { f.set(C.IV_FLAG_STOP) }

// Finish tells a series with Recv below 0 that the peer has sent all it will: it ends without an error when its own operations are done. Others do not look at it.
func (f *Flag) Finish() { f.set(C.IV_FLAG_FINISH) }

func (f *Flag) set(value C.int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ptr != nil {
		C.iv_flag_set((*C.int)(f.ptr), value)
	}
}

// Close frees the flag.
func (f *Flag) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	_ = f.close(func(p unsafe.Pointer) error { C.free(p); return nil })
}

func (f *Flag) c() *C.int {
	if f == nil {
		return nil
	}
	return (*C.int)(f.ptr)
}

// Op is an operation of the data path.
type Op int

// The operations.
const (
	OpWrite Op = iota
	OpWriteImm
	OpRead
	OpSend
	OpFetchAdd
	OpCmpSwap
)

func (o Op) String() string {
	return pick([]string{"write", "write with immediate", "read", "send", "fetch and add", "compare and swap"}, int(o))
}

// receives tells whether the peer must have posted a receive.
func (o Op) receives() bool { return o == OpSend || o == OpWriteImm }

func (o Op) atomic() bool { return o == OpFetchAdd || o == OpCmpSwap }

// grhBytes precede a datagram in its receive buffer.
const grhBytes = 40

// Lane is one queue pair's part in a series. Receives of UD need 40 bytes more than the message, which lies behind them.
type Lane struct {
	QP                   *QP
	LocalAddr            uint64 // this side's data: source of writes and sends, target of reads and atomics
	LKey                 uint32
	RemoteAddr           uint64 // the peer's, for writes, reads and atomics
	RKey                 uint32
	RecvAddr             uint64 // where receives land
	RecvLKey             uint32
	AH                   *AH // UD: where sends go
	RemoteQP, RemoteQKey uint32
}

// Series is a run of equal operations on one or more queue pairs, which share their completion queues. Each lane's queue is kept full. After an error the queue
// pairs and completion queues must not be used again: what was outstanding may still arrive.
type Series struct {
	Lanes []Lane
	Op    Op
	Bytes int // of one operation; atomics have 8
	Send  int // operations that this side posts on every lane, 0 none

	// Recv is how many receives this side expects on every lane (OpSend, OpWriteImm), 0 none. Below 0: as many as come until Stop.Finish, which
	// must come after the peer's last operation has completed there. PostReceives must have been called before the peer starts.
	Recv int

	// For, when not 0, stands instead of Send: post until this long has passed, then drain. Margin is what the sampled part leaves out at both ends.
	For, Margin time.Duration

	Depth     int // outstanding operations of a lane, at most the queue pair's MaxSend; 0: 128 or MaxSend
	RecvDepth int // receives that are kept posted on a lane, at most MaxRecv; 0: MaxRecv

	// Signal is after how many operations of a lane one completion is asked for; the last one always has one. 0: 100 up to 8 KiB, else 1; never above Depth.
	Signal int

	Inline           bool          // data goes into the work request: Bytes within the queue pair's MaxInline
	CompareAdd, Swap uint64        // atomics: what is added, or compared and stored
	Deadline         time.Duration // longest time without any progress; 0: 10 s
	Stop             *Flag         // may be nil
}

// SeriesResult is what a series did. Times are CLOCK_MONOTONIC_RAW in nanoseconds.
type SeriesResult struct {
	Posted       []int64 // one an operation in posting order, just before it was posted; empty with For
	Completed    []int64 // one a signalled completion, as it was found; empty with For
	CompletedOps []int32 // how many operations of all lanes had completed with it
	First, Last  int64   // first post and last completion; of receives where nothing was sent
	Ops          int64   // completed operations of all lanes
	Received     int64

	// With For: the operations that completed between the first and the last completion inside the margins, and the time between these.
	SampledOps int64
	Sampled    time.Duration
}

const (
	defaultDepth    = 128
	defaultDeadline = 10 * time.Second
	// manyOps is the size up to which operations are so short that the completions would count. perftest draws the line at the same size.
	manyOpsBytes  = 8192
	manyOpsSignal = 100
)

// lanes translates the lanes and checks that they fit together.
func cLanes(lanes []Lane) ([]C.iv_lane, error) {
	if len(lanes) == 0 || len(lanes) > C.IV_MAX_LANES {
		return nil, fmt.Errorf("a series of %d lanes: 1 to %d are possible", len(lanes), C.IV_MAX_LANES)
	}
	out := make([]C.iv_lane, len(lanes))
	first := lanes[0].QP
	for i, l := range lanes {
		p, err := queuePair(l.QP)
		if err != nil {
			return nil, fmt.Errorf("lane %d: %w", i, err)
		}
		if l.QP.config.SendCQ != first.config.SendCQ || l.QP.config.RecvCQ != first.config.RecvCQ || l.QP.config.Type != first.config.Type {
			return nil, fmt.Errorf("lane %d: its queue pair is of another type or has other completion queues than lane 0's", i)
		}
		out[i] = C.iv_lane{qp: p, local_addr: C.uint64_t(l.LocalAddr), lkey: C.uint32_t(l.LKey), remote_addr: C.uint64_t(l.RemoteAddr), rkey: C.uint32_t(l.RKey),
			recv_addr: C.uint64_t(l.RecvAddr), recv_lkey: C.uint32_t(l.RecvLKey), remote_qp: C.uint32_t(l.RemoteQP), remote_qkey: C.uint32_t(l.RemoteQKey)}
		if l.AH != nil {
			if out[i].ah, err = l.AH.use(); err != nil {
				return nil, fmt.Errorf("lane %d: %w", i, err)
			}
		}
	}
	return out, nil
}

func queuePair(q *QP) (unsafe.Pointer, error) {
	if q == nil {
		return nil, errors.New("no queue pair")
	}
	return q.use()
}

// prepare checks the series and fills in what was left open.
func (s *Series) prepare() (*C.iv_series, []C.iv_lane, error) {
	lanes, err := cLanes(s.Lanes)
	if err != nil {
		return nil, nil, fmt.Errorf("%v: %w", s.Op, err)
	}
	q := s.Lanes[0].QP
	bytes := s.Bytes
	if s.Op.atomic() {
		bytes = 8
	}
	depth, recvDepth := s.Depth, s.RecvDepth
	if depth == 0 {
		depth = min(defaultDepth, q.MaxSend())
	}
	if recvDepth == 0 {
		recvDepth = q.MaxRecv()
	}
	signal := s.Signal
	if signal == 0 && bytes <= manyOpsBytes {
		signal = manyOpsSignal
	}
	signal = min(max(signal, 1), depth)
	switch sends := s.Send > 0 || s.For > 0; {
	case s.Bytes < 0 || s.Send < 0 || s.For < 0 || s.Margin < 0 || depth < 0 || recvDepth < 0:
		err = syscall.EINVAL
	case s.Send > 0 && s.For > 0:
		err = errors.New("a number of operations and a duration exclude each other")
	case s.Recv != 0 && !s.Op.receives():
		err = fmt.Errorf("nothing is received by %v", s.Op)
	case s.Recv < 0 && s.Stop == nil:
		err = errors.New("receiving without a number needs a Flag that ends it")
	case sends && (depth < 1 || depth > q.MaxSend()):
		err = fmt.Errorf("%d outstanding operations do not fit the send queue of %d", depth, q.MaxSend())
	case s.Recv != 0 && (recvDepth < 1 || recvDepth > q.MaxRecv()):
		err = fmt.Errorf("%d outstanding receives do not fit the receive queue of %d", recvDepth, q.MaxRecv())
	case s.Inline && (bytes > q.MaxInline() || s.Op == OpRead || s.Op.atomic()):
		err = fmt.Errorf("%d bytes of %v cannot go inline, the queue pair allows %d", bytes, s.Op, q.MaxInline())
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%v of %d bytes: %w", s.Op, s.Bytes, err)
	}
	c := &C.iv_series{lanes: C.int(len(lanes)), op: C.int(s.Op), depth: C.int(depth), recv_depth: C.int(recvDepth), signal: C.int(signal),
		inlined: cBool(s.Inline), ud: cBool(q.config.Type == UD), bytes: C.uint32_t(bytes), send: C.int64_t(s.Send), recv: C.int64_t(s.Recv), for_ns: C.int64_t(s.For),
		margin_ns: C.int64_t(s.Margin), deadline_ns: C.int64_t(deadline(s.Deadline)), compare_add: C.uint64_t(s.CompareAdd), swap: C.uint64_t(s.Swap),
		send_cq: q.config.SendCQ.ptr, recv_cq: q.config.RecvCQ.ptr, stop: s.Stop.c()}
	return c, lanes, nil
}

func deadline(d time.Duration) time.Duration {
	if d == 0 {
		return defaultDeadline
	}
	return d
}

func cBool(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// PostReceives fills the receive queues of the lanes: with Recv receives, at most RecvDepth; Run posts the rest as they complete. Errors: *Error.
//
// Implements: int ibv_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
func (s *Series) PostReceives() error {
	c, lanes, err := s.prepare()
	if err != nil || s.Recv == 0 {
		return err
	}
	return check("ibv_post_recv", C.iv_post_receives(c, &lanes[0], firstReceives(c)), "%d bytes on %d queue pairs", s.Bytes, len(s.Lanes))
}

// firstReceives is how many receives PostReceives posts on a lane.
func firstReceives(c *C.iv_series) C.int64_t {
	if c.recv < 0 {
		return C.int64_t(c.recv_depth)
	}
	return min(c.recv, C.int64_t(c.recv_depth))
}

// Run runs the series and blocks until it is done, fails, makes no progress for Deadline, or Stop is set. The result is there on error too, with what was done until then, unless
// the series was not well formed. Errors: *WCError (the first failing completion, not a flush that followed), *TimeoutError, ErrStopped, *Error.
func (s *Series) Run() (*SeriesResult, error) {
	c, lanes, err := s.prepare()
	if err != nil {
		return nil, err
	}
	out := new(SeriesResult)
	var posted, completed *C.int64_t
	var completedOps *C.int32_t
	room := 0
	if s.For == 0 && s.Send > 0 {
		// Each lane has a completion every Signal operations and one at the end; on an error also unsignalled ones complete, but that ends the run.
		room = len(lanes) * (s.Send/int(c.signal) + 1)
		out.Posted, out.Completed, out.CompletedOps = make([]int64, len(lanes)*s.Send), make([]int64, room), make([]int32, room)
		posted, completed = (*C.int64_t)(&out.Posted[0]), (*C.int64_t)(&out.Completed[0])
		completedOps = (*C.int32_t)(&out.CompletedOps[0])
	}
	C.iv_series_run(c, &lanes[0], posted, completed, completedOps, C.int64_t(room))
	if posted != nil {
		out.Posted, out.Completed, out.CompletedOps = out.Posted[:c.posts], out.Completed[:c.completions], out.CompletedOps[:c.completions]
	}
	out.First, out.Last, out.Ops, out.Received = int64(c.first_ns), int64(c.last_ns), int64(c.ops), int64(c.received)
	out.SampledOps, out.Sampled = int64(c.sampled_ops), time.Duration(c.sampled_ns)
	want := s.Send + max(0, s.Recv)
	what := fmt.Sprintf("%v of %d bytes, %d queue pairs", s.Op, s.Bytes, len(lanes))
	return out, faultError(&c.fault, s.Op, what, deadline(s.Deadline), int(out.Ops+out.Received), len(lanes)*want)
}

// faultError is how a run of the C side ended: nil, or what went wrong with what it was, after so many operations.
func faultError(f *C.iv_fault, op Op, what string, after time.Duration, done, of int) error {
	switch f.kind {
	case C.IV_OK:
		return nil
	case C.IV_FAULT_STOPPED:
		return fmt.Errorf("%s: %w after %d operations", what, ErrStopped, done)
	case C.IV_FAULT_TIMEOUT:
		return &TimeoutError{what, after, done, of}
	case C.IV_FAULT_POST_SEND:
		return check("ibv_post_send", f.err, "%s", what)
	case C.IV_FAULT_POST_RECV:
		return check("ibv_post_recv", f.err, "%s", what)
	case C.IV_FAULT_POLL:
		return check("ibv_poll_cq", f.err, "%s", what)
	}
	id := uint64(f.wr_id)
	name := op.String()
	if id>>63 != 0 {
		name = "receive"
	}
	status, vendor := int(f.status), uint32(f.vendor)
	return &WCError{Status: status, Text: WCText(status), Vendor: vendor, QPNum: uint32(f.qp_num), Op: name,
		Lane: int(id >> C.IV_LANE_SHIFT & (C.IV_MAX_LANES - 1)), Index: int(id & (1<<C.IV_LANE_SHIFT - 1)), Cause: WCCause(status, vendor)}
}
