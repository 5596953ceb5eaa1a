package ibverbs

// #include "binding.h"
import "C"

import (
	"fmt"
	"net/netip"
	"unsafe"
)

// QPType is the kind of connection of a queue pair.
type QPType int

// The queue pair types.
const (
	RC QPType = 2 // reliable connection: all operations
	UC QPType = 3 // unreliable connection: SEND and WRITE
	UD QPType = 4 // unreliable datagram: SEND up to the MTU
)

func (t QPType) String() string { return pick([]string{"", "", "RC", "UC", "UD"}, int(t)) }

// QPConfig says what a queue pair is made for. Segments of 0 count as 1.
type QPConfig struct {
	Type                                                QPType
	SendCQ, RecvCQ                                      *CQ
	MaxSend, MaxRecv, MaxSendSGE, MaxRecvSGE, MaxInline int
}

// QP is a queue pair.
type QP struct {
	handle
	config  QPConfig
	granted C.iv_qp_config
}

// CreateQP makes a queue pair in state reset. Errors: *Error.
//
// Implements: struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *qp_init_attr)
func (p *PD) CreateQP(c QPConfig) (*QP, error) {
	if c.SendCQ == nil || c.RecvCQ == nil {
		return nil, fmt.Errorf("make queue pair: a completion queue for sends and one for receives is needed; they may be the same")
	}
	q := &QP{config: c, granted: C.iv_qp_config{
		_type: C.int(c.Type), max_send: C.int(c.MaxSend), max_recv: C.int(c.MaxRecv), max_send_sge: C.int(max(1, c.MaxSendSGE)),
		max_recv_sge: C.int(max(1, c.MaxRecvSGE)), max_inline: C.int(c.MaxInline),
	}}
	parents := []*handle{&p.handle, &c.SendCQ.handle}
	if c.RecvCQ != c.SendCQ {
		parents = append(parents, &c.RecvCQ.handle)
	}
	err := q.open("queue pair", func(ptr *unsafe.Pointer) error {
		return check("ibv_create_qp", C.iv_create_qp(p.ptr, c.SendCQ.ptr, c.RecvCQ.ptr, &q.granted, ptr),
			"queue pair of type %v, %d sends, %d receives, %d bytes inline", c.Type, c.MaxSend, c.MaxRecv, c.MaxInline)
	}, parents...)
	return orNil(q, err)
}

// Num is the number by which the peer addresses this queue pair.
func (q *QP) Num() uint32 { return uint32(q.granted.num) }

// MaxInline is how many bytes may go inline, as granted.
func (q *QP) MaxInline() int { return int(q.granted.max_inline) }

// MaxSend is how many sends the queue takes, as granted.
func (q *QP) MaxSend() int { return int(q.granted.max_send) }

// MaxRecv is how many receives the queue takes, as granted.
func (q *QP) MaxRecv() int { return int(q.granted.max_recv) }

// Close destroys the queue pair, in whatever state. What it had outstanding is gone without a completion.
//
// Implements: int ibv_destroy_qp(struct ibv_qp *qp)
func (q *QP) Close() error {
	return q.close(func(ptr unsafe.Pointer) error {
		return check("ibv_destroy_qp", C.iv_destroy_qp(ptr), "queue pair %d", q.Num())
	})
}

// QPState is a queue pair's state.
type QPState int

// The states, in the order in which a queue pair goes through them.
const (
	StateReset QPState = iota
	StateInit
	StateRTR // ready to receive
	StateRTS // ready to send
	StateSQD
	StateSQE
	StateErr
)

func (s QPState) String() string {
	return pick([]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}, int(s))
}

// State asks for the state.
//
// Implements: int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask, struct ibv_qp_init_attr *init_attr)
func (q *QP) State() (QPState, error) {
	p, err := q.use()
	if err != nil {
		return StateReset, err
	}
	var s C.int
	err = check("ibv_query_qp", C.iv_qp_state(p, &s), "queue pair %d", q.Num())
	return QPState(s), err
}

// modify runs one change of state.
func (q *QP) modify(to QPState, call func(p unsafe.Pointer) C.int, what string, args ...any) error {
	p, err := q.use()
	if err != nil {
		return err
	}
	return check("ibv_modify_qp to "+to.String(), call(p), what, args...)
}

// ToInit brings the queue pair from reset to init. access is what the peer may do (RC, UC), qkey the key of datagrams (UD).
//
// Implements: int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask)
func (q *QP) ToInit(port, pkeyIndex int, access Access, qkey uint32) error {
	// The bits for optional behaviour belong to memory regions.
	rights := access & (AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic)
	return q.modify(StateInit, func(p unsafe.Pointer) C.int {
		return C.iv_qp_init(p, C.int(q.config.Type), C.int(port), C.int(pkeyIndex), C.int(rights), C.uint32_t(qkey))
	}, "queue pair %d, port %d, partition key index %d", q.Num(), port, pkeyIndex)
}

// Path is the way to the peer.
type Path struct {
	Port         int
	SGIDIndex    int // this side's GID
	DGID         [16]byte
	DLID         uint16 // InfiniBand
	Global       bool   // with a global route header: always on Ethernet
	ServiceLevel int
	TrafficClass int
	HopLimit     int // 0 means 255
	FlowLabel    uint32
}

func (p Path) String() string {
	if !p.Global {
		return fmt.Sprintf("port %d, to LID %d", p.Port, p.DLID)
	}
	return fmt.Sprintf("port %d, GID index %d, to GID %v", p.Port, p.SGIDIndex, netip.AddrFrom16(p.DGID).Unmap())
}

func (p Path) c() C.iv_path {
	hops := p.HopLimit
	if hops == 0 {
		hops = 255
	}
	c := C.iv_path{sgid_index: C.int(p.SGIDIndex), sl: C.int(p.ServiceLevel), traffic_class: C.int(p.TrafficClass), hop_limit: C.int(hops),
		port: C.int(p.Port), dlid: C.int(p.DLID), flow_label: C.uint32_t(p.FlowLabel)}
	if p.Global {
		c.global = 1
	}
	for i, b := range p.DGID {
		c.dgid[i] = C.uint8_t(b)
	}
	return c
}

// RTR is what a queue pair needs to know to receive. MaxDestRdAtomic and MinRNRTimer are RC's; UD needs nothing of it.
type RTR struct {
	Path                Path
	MTU                 MTU
	RemoteQP, RemotePSN uint32
	MaxDestRdAtomic     int // READs and atomics of the peer that are answered at a time
	MinRNRTimer         int // code of how long the peer shall wait when no receive is posted; 12 is 0.64 ms
}

// ToRTR brings the queue pair from init to ready to receive. Errors: *Error: EINVAL, ETIMEDOUT and ENODEV come with what they mean here.
//
// Implements: int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask)
func (q *QP) ToRTR(a RTR) error {
	if a.MTU.code() == 0 && q.config.Type != UD {
		return fmt.Errorf("queue pair %d to RTR: MTU of %d bytes: must be 256, 512, 1024, 2048 or 4096", q.Num(), a.MTU)
	}
	path := a.Path.c()
	return q.modify(StateRTR, func(p unsafe.Pointer) C.int {
		return C.iv_qp_rtr(p, C.int(q.config.Type), &path, a.MTU.code(), C.uint32_t(a.RemoteQP), C.uint32_t(a.RemotePSN), C.int(a.MaxDestRdAtomic), C.int(a.MinRNRTimer))
	}, "queue pair %d, %v, MTU %d", q.Num(), a.Path, a.MTU)
}

// RTS is what a queue pair needs to know to send. All but PSN is RC's.
type RTS struct {
	PSN         uint32
	Timeout     int // code: 4.096 µs × 2^Timeout until a packet is repeated
	RetryCount  int // up to 7
	RNRRetry    int // 7: for ever
	MaxRdAtomic int // READs and atomics outstanding at a time
}

// ToRTS brings the queue pair from ready to receive to ready to send.
//
// Implements: int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask)
func (q *QP) ToRTS(a RTS) error {
	return q.modify(StateRTS, func(p unsafe.Pointer) C.int {
		return C.iv_qp_rts(p, C.int(q.config.Type), C.uint32_t(a.PSN), C.int(a.Timeout), C.int(a.RetryCount), C.int(a.RNRRetry), C.int(a.MaxRdAtomic))
	}, "queue pair %d, timeout %d, %d retries", q.Num(), a.Timeout, a.RetryCount)
}

// ToErr breaks the queue pair: everything outstanding completes with a flush error.
func (q *QP) ToErr() error { return q.set(StateErr) }

// ToReset brings the queue pair back to where it was when made. What was outstanding is gone.
func (q *QP) ToReset() error { return q.set(StateReset) }

func (q *QP) set(s QPState) error {
	return q.modify(s, func(p unsafe.Pointer) C.int { return C.iv_qp_set_state(p, C.int(s)) }, "queue pair %d", q.Num())
}
