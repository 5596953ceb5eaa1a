package ibverbs

// #include "binding.h"
import "C"

import (
	"errors"
	"fmt"
	"syscall"
	"time"
)

// PingPong measures latency on one queue pair. Writes, sends and writes with immediate go back and forth, and both sides call Run; of reads and atomics only the
// initiator knows, and each sample is from post to completion. A write's receiver polls the last byte of its buffer, which must therefore be host memory without relaxed
// ordering, unless CQE is set: then it is a write with immediate, which tells by a completion.
type PingPong struct {
	Lane              Lane
	Op                Op
	Bytes, Iterations int // at least one byte where the last one is polled
	Initiator         bool
	CQE               bool
	Inline            bool
	CompareAdd, Swap  uint64
	Deadline          time.Duration // longest wait for one step; 0: 10 s
	Stop              *Flag
}

// op is what goes over the wire.
func (p *PingPong) op() Op {
	if p.Op == OpWrite && p.CQE {
		return OpWriteImm
	}
	return p.Op
}

// receives is how many receives PostReceives posts: further ones are posted as these complete.
func (p *PingPong) receives() int {
	if !p.op().receives() {
		return 0
	}
	return min(p.Iterations, p.Lane.QP.MaxRecv())
}

func (p *PingPong) prepare() (*C.iv_pingpong, []C.iv_lane, error) {
	lanes, err := cLanes([]Lane{p.Lane})
	if err != nil {
		return nil, nil, fmt.Errorf("%v ping-pong: %w", p.Op, err)
	}
	q, bytes := p.Lane.QP, p.Bytes
	if p.Op.atomic() {
		bytes = 8
	}
	oneSided := p.Op == OpRead || p.Op.atomic()
	switch {
	case bytes < 0 || p.Iterations < 1:
		err = syscall.EINVAL
	case p.op() == OpWrite && bytes == 0:
		err = errors.New("a write of no bytes changes nothing that could be polled")
	case oneSided && !p.Initiator:
		err = errors.New("only the initiator runs it")
	case p.op().receives() && q.MaxRecv() < 1:
		err = errors.New("the queue pair takes no receives")
	case p.Inline && (bytes > q.MaxInline() || oneSided):
		err = fmt.Errorf("%d bytes cannot go inline, the queue pair allows %d", bytes, q.MaxInline())
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%v ping-pong of %d bytes, %d iterations: %w", p.Op, p.Bytes, p.Iterations, err)
	}
	return &C.iv_pingpong{op: C.int(p.op()), initiator: cBool(p.Initiator), cqe: cBool(p.CQE), inlined: cBool(p.Inline), ud: cBool(q.config.Type == UD),
		recv_posted: C.int(p.receives()), bytes: C.uint32_t(bytes), iterations: C.int64_t(p.Iterations), deadline_ns: C.int64_t(deadline(p.Deadline)),
		compare_add: C.uint64_t(p.CompareAdd), swap: C.uint64_t(p.Swap), send_cq: q.config.SendCQ.ptr, recv_cq: q.config.RecvCQ.ptr, stop: p.Stop.c()}, lanes, nil
}

// PostReceives makes this side ready: it posts receives, or clears the byte that the peer's writes change. It must be done before the peer starts.
func (p *PingPong) PostReceives() error {
	c, lanes, err := p.prepare()
	if err != nil {
		return err
	}
	if p.op() == OpWrite {
		C.iv_clear_last(C.uint64_t(p.Lane.RecvAddr), c.bytes)
		return nil
	}
	if p.receives() == 0 {
		return nil
	}
	s := C.iv_series{lanes: 1, op: c.op, bytes: c.bytes, ud: c.ud}
	return check("ibv_post_recv", C.iv_post_receives(&s, &lanes[0], C.int64_t(p.receives())), "%d bytes", p.Bytes)
}

// Run runs the ping-pong and returns Iterations+1 stamps of CLOCK_MONOTONIC_RAW in nanoseconds: one as each operation is posted, the last at the end. A difference of two is a
// round trip of writes and sends, and the whole operation of reads and atomics. It blocks like Series.Run and has its errors; the stamps until then come with the error.
func (p *PingPong) Run() ([]int64, error) {
	c, lanes, err := p.prepare()
	if err != nil {
		return nil, err
	}
	stamps := make([]int64, p.Iterations+1)
	C.iv_pingpong_run(c, &lanes[0], (*C.int64_t)(&stamps[0]))
	err = faultError(&c.fault, p.op(), fmt.Sprintf("%v ping-pong of %d bytes", p.op(), p.Bytes), deadline(p.Deadline), int(c.done), p.Iterations)
	if err != nil {
		stamps = stamps[:c.done]
	}
	return stamps, err
}
