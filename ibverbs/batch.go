package ibverbs

// #include "binding.h"
import "C"

import (
	"errors"
	"fmt"
	"time"
)

// BatchEntry is one piece of scattered work: a write of Bytes bytes.
type BatchEntry struct {
	LocalAddr  uint64
	LKey       uint32
	RemoteAddr uint64
	RKey       uint32
	Bytes      uint32
}

// BatchResult tells when a batch's first entry was posted and its last one had completed, CLOCK_MONOTONIC_RAW in nanoseconds.
type BatchResult struct{ Posted, Done int64 }

// WriteBatch writes all entries, posting up to 64 a call, and waits until the last has completed. With imm the last one carries it and takes a receive of the peer, which
// then knows that all of them have arrived. The queue pair must have nothing else outstanding. Errors as of Series.Run.
func (q *QP) WriteBatch(entries []BatchEntry, imm *uint32, wait time.Duration, stop *Flag) (BatchResult, error) {
	p, err := queuePair(q)
	if err != nil {
		return BatchResult{}, fmt.Errorf("write batch: %w", err)
	}
	if len(entries) == 0 {
		return BatchResult{}, errors.New("write batch: no entries")
	}
	if q.MaxSend() < 1 {
		return BatchResult{}, errors.New("write batch: the queue pair takes no sends")
	}
	list := make([]C.iv_entry, len(entries))
	for i, e := range entries {
		list[i] = C.iv_entry{local_addr: C.uint64_t(e.LocalAddr), remote_addr: C.uint64_t(e.RemoteAddr), lkey: C.uint32_t(e.LKey), rkey: C.uint32_t(e.RKey),
			bytes: C.uint32_t(e.Bytes)}
	}
	c := C.iv_batch{qp: p, send_cq: q.config.SendCQ.ptr, depth: C.int(q.MaxSend()), deadline_ns: C.int64_t(deadline(wait)), stop: stop.c()}
	op := OpWrite
	if imm != nil {
		c.with_imm, c.imm, op = 1, C.uint32_t(*imm), OpWriteImm
	}
	C.iv_batch_run(&c, &list[0], C.int64_t(len(list)))
	err = faultError(&c.fault, op, fmt.Sprintf("write batch of %d entries", len(entries)), deadline(wait), int(c.done), len(entries))
	return BatchResult{int64(c.posted_ns), int64(c.done_ns)}, err
}

// ImmEvent is the arrival of a write with immediate, CLOCK_MONOTONIC_RAW in nanoseconds.
type ImmEvent struct {
	Imm uint32
	At  int64
}

// WaitImm waits for n writes with immediate and posts an empty receive for each that came; PostEmptyReceives posts the first ones. It needs a completion queue that
// serves receives only. What came before an error is returned with it. Errors as of Series.Run.
func (q *QP) WaitImm(n int, wait time.Duration, stop *Flag) ([]ImmEvent, error) {
	p, err := queuePair(q)
	if err != nil {
		return nil, fmt.Errorf("wait for immediates: %w", err)
	}
	if q.config.RecvCQ == q.config.SendCQ {
		return nil, errors.New("wait for immediates: receives need a completion queue of their own, or completions of sends would be lost")
	}
	if n < 1 {
		return nil, nil
	}
	imm, at := make([]C.uint32_t, n), make([]C.int64_t, n)
	c := C.iv_imm{qp: p, recv_cq: q.config.RecvCQ.ptr, deadline_ns: C.int64_t(deadline(wait)), stop: stop.c()}
	C.iv_wait_imm(&c, C.int64_t(n), &imm[0], &at[0])
	out := make([]ImmEvent, c.done)
	for i := range out {
		out[i] = ImmEvent{uint32(imm[i]), int64(at[i])}
	}
	return out, faultError(&c.fault, OpWriteImm, "wait for immediates", deadline(wait), int(c.done), n)
}

// PostEmptyReceives posts n receives without a buffer, for writes with immediate.
//
// Implements: int ibv_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
func (q *QP) PostEmptyReceives(n int) error {
	p, err := queuePair(q)
	if err != nil {
		return fmt.Errorf("post receives: %w", err)
	}
	return check("ibv_post_recv", C.iv_post_empty_receives(p, C.int(n)), "%d empty receives on queue pair %d", n, q.Num())
}

// NowNs is the clock of all stamps of this package: CLOCK_MONOTONIC_RAW in nanoseconds.
func NowNs() int64 { return int64(C.iv_now_ns()) }
