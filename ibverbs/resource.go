package ibverbs

// #include "binding.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"unsafe"

	"github.com/commprobe/commprobe/csrc"
)

// PD is a protection domain: memory regions and queue pairs work together within one.
type PD struct{ handle }

// AllocPD makes a protection domain.
//
// Implements: struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
func (c *Context) AllocPD() (*PD, error) {
	p := new(PD)
	err := p.open("protection domain", func(ptr *unsafe.Pointer) error {
		return check("ibv_alloc_pd", C.iv_alloc_pd(c.ptr, ptr), "%s", c.name)
	}, &c.handle)
	return orNil(p, err)
}

// Close frees the domain. Errors: *BusyError while memory regions, queue pairs or address handles of it exist.
//
// Implements: int ibv_dealloc_pd(struct ibv_pd *pd)
func (p *PD) Close() error {
	return p.close(func(ptr unsafe.Pointer) error { return check("ibv_dealloc_pd", C.iv_dealloc_pd(ptr), "") })
}

func orNil[T any](v *T, err error) (*T, error) {
	if err != nil {
		return nil, err
	}
	return v, nil
}

// CompChannel tells of completion queues that have something, so that a waiting thread need not poll.
type CompChannel struct {
	handle
	mu     sync.Mutex
	queues map[unsafe.Pointer]*CQ
}

// CreateCompChannel makes a completion channel.
//
// Implements: struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
func (c *Context) CreateCompChannel() (*CompChannel, error) {
	ch := &CompChannel{queues: make(map[unsafe.Pointer]*CQ)}
	err := ch.open("completion channel", func(ptr *unsafe.Pointer) error {
		return check("ibv_create_comp_channel", C.iv_create_channel(c.ptr, ptr), "%s", c.name)
	}, &c.handle)
	return orNil(ch, err)
}

// Wait blocks until a completion queue of this channel that was armed has a completion, or ctx ends, and acknowledges the event. The queue must be
// armed again before it tells of more, and polled after that: what came between is not told. Errors: ctx's, *Error.
//
// Implements: int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
func (ch *CompChannel) Wait(ctx context.Context) (*CQ, error) {
	var cq unsafe.Pointer
	err := waitFor(ctx, &ch.handle, "ibv_get_cq_event", func(p unsafe.Pointer, waker C.int) C.int { return C.iv_wait_channel(p, waker, &cq) })
	if err != nil {
		return nil, err
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return ch.queues[cq], nil
}

// Close destroys the channel. Errors: *BusyError while completion queues use it.
//
// Implements: int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
func (ch *CompChannel) Close() error {
	return ch.close(func(ptr unsafe.Pointer) error {
		return check("ibv_destroy_comp_channel", C.iv_destroy_channel(ptr), "")
	})
}

// CQ is a completion queue.
type CQ struct {
	handle
	channel *CompChannel
}

// CreateCQ makes a completion queue of at least depth entries. It must have room for everything that may be outstanding on its queue pairs, receives and operations
// that are not signalled included: when a queue pair breaks, all of that completes, and an overrun breaks the queue. channel may be nil.
//
// Implements: struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel, int comp_vector)
func (c *Context) CreateCQ(depth int, channel *CompChannel) (*CQ, error) {
	q := &CQ{channel: channel}
	parents := []*handle{&c.handle}
	if channel != nil {
		parents = append(parents, &channel.handle)
	}
	err := q.open("completion queue", func(ptr *unsafe.Pointer) error {
		var ch unsafe.Pointer
		if channel != nil {
			ch = channel.ptr
		}
		return check("ibv_create_cq", C.iv_create_cq(c.ptr, C.int(depth), ch, ptr), "%s, %d entries", c.name, depth)
	}, parents...)
	if err == nil && channel != nil {
		channel.mu.Lock()
		channel.queues[q.ptr] = q
		channel.mu.Unlock()
	}
	return orNil(q, err)
}

// Close destroys the queue. Errors: *BusyError while queue pairs use it.
//
// Implements: int ibv_destroy_cq(struct ibv_cq *cq)
func (q *CQ) Close() error {
	return q.close(func(ptr unsafe.Pointer) error {
		if q.channel != nil {
			q.channel.mu.Lock()
			defer q.channel.mu.Unlock()
		}
		err := check("ibv_destroy_cq", C.iv_destroy_cq(ptr), "")
		if err == nil && q.channel != nil {
			delete(q.channel.queues, ptr)
		}
		return err
	})
}

// Arm asks for an event on the channel at the next completion.
//
// Implements: int ibv_req_notify_cq(struct ibv_cq *cq, int solicited_only)
func (q *CQ) Arm() error {
	p, err := q.use()
	if err != nil {
		return err
	}
	return check("ibv_req_notify_cq", C.iv_arm_cq(p), "")
}

// Completion is one entry of a completion queue.
type Completion struct {
	WRID   uint64
	Status int // 0: good; of others only WRID, QPNum and Vendor hold
	Vendor uint32
	QPNum  uint32
	Bytes  int // of a receive
	Imm    uint32
	HasImm bool
}

// Poll takes up to max completions without waiting. The data path polls by itself; this is for what it leaves.
//
// Implements: int ibv_poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc)
func (q *CQ) Poll(max int) ([]Completion, error) {
	p, err := q.use()
	if err != nil || max < 1 {
		return nil, err
	}
	wc := make([]C.iv_wc, max)
	var n C.int
	if err := check("ibv_poll_cq", C.iv_poll(p, C.int(max), &wc[0], &n), ""); err != nil {
		return nil, err
	}
	out := make([]Completion, 0, n)
	for _, w := range wc[:n] {
		out = append(out, Completion{uint64(w.wr_id), int(w.status), uint32(w.vendor), uint32(w.qp_num), int(w.bytes), uint32(w.imm), w.has_imm != 0})
	}
	return out, nil
}

// Access says who may do what with a memory region or a queue pair.
type Access int

// The access rights. Remote write and atomics need local write as well.
const (
	AccessLocalWrite   Access = 1 << 0
	AccessRemoteWrite  Access = 1 << 1
	AccessRemoteRead   Access = 1 << 2
	AccessRemoteAtomic Access = 1 << 3
	// AccessRelaxedOrdering lets writes to one region land in any order; a completion still means that all of them are visible. Polling the last byte of
	// a buffer does not work then. Libraries and devices that do not know it leave it out.
	AccessRelaxedOrdering Access = 1 << 20
)

// MR is a memory region: memory that a device may reach.
type MR struct {
	handle
	lkey, rkey uint32
	addr       uint64
	bytes      int
}

// RegMR registers memory: host memory of this process, or memory of a GPU where its driver's peer-memory module is loaded. The memory must stay until Close,
// and must not be Go's heap beyond what cgo allows: take AllocHost. Errors: *Error with ENOMEM (limit of locked memory) or EFAULT (GPU memory without peer
// memory).
//
// Implements: struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
func (p *PD) RegMR(addr uintptr, bytes int, access Access) (*MR, error) {
	m := &MR{addr: uint64(addr), bytes: bytes}
	return m.register(p, func(ptr *unsafe.Pointer) error {
		return check("ibv_reg_mr", C.iv_reg_mr(p.ptr, C.uintptr_t(addr), C.size_t(bytes), C.int(access), ptr), "%d bytes at %#x", bytes, addr)
	})
}

// RegDMABuf registers a part of a DMA-BUF. iova is the address by which it is used in work requests; offset and iova must have the same place within a page. The
// file may be closed afterwards.
//
// Implements: struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
func (p *PD) RegDMABuf(fd int, offset uint64, bytes int, iova uint64, access Access) (*MR, error) {
	m := &MR{addr: iova, bytes: bytes}
	return m.register(p, func(ptr *unsafe.Pointer) error {
		return check("ibv_reg_dmabuf_mr", C.iv_reg_dmabuf(p.ptr, C.uint64_t(offset), C.size_t(bytes), C.uint64_t(iova), C.int(fd), C.int(access), ptr),
			"%d bytes of DMA-BUF %d from %d", bytes, fd, offset)
	})
}

func (m *MR) register(p *PD, create func(ptr *unsafe.Pointer) error) (*MR, error) {
	if err := m.open("memory region", create, &p.handle); err != nil {
		return nil, err
	}
	var l, r C.uint32_t
	C.iv_mr_keys(m.ptr, &l, &r)
	m.lkey, m.rkey = uint32(l), uint32(r)
	return m, nil
}

// DMABufProbe tells whether kernel and provider can register DMA-BUFs, by trying one that does not exist: they complain about the file only if they can. An
// error means that it could not be told.
func DMABufProbe(p *PD) (supported bool, err error) {
	m, err := p.RegDMABuf(-1, 0, 0, 0, 0)
	var lacking *csrc.MissingSymbolError
	switch {
	case err == nil: // nothing that works does this
		return false, errors.Join(errors.New("ibv_reg_dmabuf_mr took a file descriptor of -1"), m.Close())
	case errors.Is(err, syscall.EBADF):
		return true, nil
	case errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.EPROTONOSUPPORT), errors.As(err, &lacking):
		return false, nil
	}
	return false, fmt.Errorf("cannot tell whether DMA-BUFs can be registered: %w", err)
}

// LKey is the key for this side's work requests.
func (m *MR) LKey() uint32 { return m.lkey }

// RKey is the key for the peer's.
func (m *MR) RKey() uint32 { return m.rkey }

// Addr is the address of the region's first byte in work requests.
func (m *MR) Addr() uint64 { return m.addr }

// Bytes is the region's length.
func (m *MR) Bytes() int { return m.bytes }

// Close ends the registration.
//
// Implements: int ibv_dereg_mr(struct ibv_mr *mr)
func (m *MR) Close() error {
	return m.close(func(ptr unsafe.Pointer) error { return check("ibv_dereg_mr", C.iv_dereg_mr(ptr), "") })
}

// AH is an address handle: where a datagram goes.
type AH struct{ handle }

// CreateAH makes an address handle for queue pairs of type UD.
//
// Implements: struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
func (p *PD) CreateAH(path Path) (*AH, error) {
	a := new(AH)
	c := path.c()
	err := a.open("address handle", func(ptr *unsafe.Pointer) error {
		return check("ibv_create_ah", C.iv_create_ah(p.ptr, &c, ptr), "%v", path)
	}, &p.handle)
	return orNil(a, err)
}

// Close destroys the address handle.
//
// Implements: int ibv_destroy_ah(struct ibv_ah *ah)
func (a *AH) Close() error {
	return a.close(func(ptr unsafe.Pointer) error { return check("ibv_destroy_ah", C.iv_destroy_ah(ptr), "") })
}
