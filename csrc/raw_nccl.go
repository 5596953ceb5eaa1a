package csrc

/*
#include <stdlib.h>
#include <string.h>
#include "abi.h"
#define P(x) ((void *)(uintptr_t)(x))
static const char *raw_ncclErrorString(int code) { return cp_nccl.ncclGetErrorString ? cp_nccl.ncclGetErrorString(code) : NULL; }
static const char *raw_ncclLastError(uintptr_t comm) { return cp_nccl.ncclGetLastError ? cp_nccl.ncclGetLastError(P(comm)) : NULL; }
static int raw_ncclGetUniqueId(char *id) { return cp_ncclGetUniqueId((cp_unique_id *)id); }

// Fields that the loaded library does not know lie beyond the size it reads, or are undefined values, so one struct serves all.
static void raw_config(cp_nccl_config *c, const int *v, const char *net, const char *name) {
  memset(c, 0, sizeof *c);
  c->size = sizeof *c;
  c->magic = CP_NCCL_CONFIG_MAGIC;
  c->version = (unsigned)v[0];
  c->blocking = v[1];
  c->cga_cluster_size = v[2];
  c->min_ctas = v[3];
  c->max_ctas = v[4];
  c->net_name = net;
  c->split_share = v[5];
  c->traffic_class = v[6];
  c->comm_name = name;
  c->collnet_enable = v[7];
  c->cta_policy = v[8];
  c->shrink_share = v[9];
  c->nvls_ctas = v[10];
  c->channels_per_net_peer = v[11];
  c->nvlink_centric_sched = v[12];
}

// A communicator handle is written by NCCL when the group ends or the side thread finishes, so the place must outlive the call: out is C memory.
static int raw_ncclCommInitRank(void **out, int n, const char *id, int rank, const int *v, const char *net, const char *name) {
  cp_unique_id u;
  memcpy(&u, id, sizeof u);
  if (v == NULL) return cp_ncclCommInitRank(out, n, u, rank);
  cp_nccl_config c;
  raw_config(&c, v, net, name);
  return cp_ncclCommInitRankConfig(out, n, u, rank, &c);
}
static int raw_ncclCommSplit(uintptr_t comm, int color, int key, void **out, const int *v, const char *net, const char *name) {
  if (v == NULL) return cp_ncclCommSplit(P(comm), color, key, out, NULL);
  cp_nccl_config c;
  raw_config(&c, v, net, name);
  return cp_ncclCommSplit(P(comm), color, key, out, &c);
}
static int raw_ncclCommFinalize(uintptr_t c) { return cp_ncclCommFinalize(P(c)); }
static int raw_ncclCommDestroy(uintptr_t c) { return cp_ncclCommDestroy(P(c)); }
static int raw_ncclCommAbort(uintptr_t c) { return cp_ncclCommAbort(P(c)); }
static int raw_ncclCommGetAsyncError(uintptr_t c, int *e) { return cp_ncclCommGetAsyncError(P(c), e); }
static int raw_ncclCommCount(uintptr_t c, int *n) { return cp_ncclCommCount(P(c), n); }
static int raw_ncclCommCuDevice(uintptr_t c, int *n) { return cp_ncclCommCuDevice(P(c), n); }
static int raw_ncclCommUserRank(uintptr_t c, int *n) { return cp_ncclCommUserRank(P(c), n); }
static int raw_ncclAllReduce(uintptr_t s, uintptr_t r, size_t n, int t, int op, uintptr_t c, uintptr_t st) { return cp_ncclAllReduce(P(s), P(r), n, t, op, P(c), P(st)); }
static int raw_ncclBroadcast(uintptr_t s, uintptr_t r, size_t n, int t, int root, uintptr_t c, uintptr_t st) { return cp_ncclBroadcast(P(s), P(r), n, t, root, P(c), P(st)); }
static int raw_ncclReduce(uintptr_t s, uintptr_t r, size_t n, int t, int op, int root, uintptr_t c, uintptr_t st) { return cp_ncclReduce(P(s), P(r), n, t, op, root, P(c), P(st)); }
static int raw_ncclAllGather(uintptr_t s, uintptr_t r, size_t n, int t, uintptr_t c, uintptr_t st) { return cp_ncclAllGather(P(s), P(r), n, t, P(c), P(st)); }
static int raw_ncclReduceScatter(uintptr_t s, uintptr_t r, size_t n, int t, int op, uintptr_t c, uintptr_t st) { return cp_ncclReduceScatter(P(s), P(r), n, t, op, P(c), P(st)); }
static int raw_ncclSend(uintptr_t s, size_t n, int t, int peer, uintptr_t c, uintptr_t st) { return cp_ncclSend(P(s), n, t, peer, P(c), P(st)); }
static int raw_ncclRecv(uintptr_t r, size_t n, int t, int peer, uintptr_t c, uintptr_t st) { return cp_ncclRecv(P(r), n, t, peer, P(c), P(st)); }
static int raw_ncclAlltoAll(uintptr_t s, uintptr_t r, size_t n, int t, uintptr_t c, uintptr_t st) { return cp_ncclAlltoAll(P(s), P(r), n, t, P(c), P(st)); }
static int raw_ncclGather(uintptr_t s, uintptr_t r, size_t n, int t, int root, uintptr_t c, uintptr_t st) { return cp_ncclGather(P(s), P(r), n, t, root, P(c), P(st)); }
static int raw_ncclScatter(uintptr_t s, uintptr_t r, size_t n, int t, int root, uintptr_t c, uintptr_t st) { return cp_ncclScatter(P(s), P(r), n, t, root, P(c), P(st)); }
static int raw_ncclMemAlloc(uintptr_t *out, size_t n) { void *p = NULL; int c = cp_ncclMemAlloc(&p, n); *out = (uintptr_t)p; return c; }
static int raw_ncclMemFree(uintptr_t p) { return cp_ncclMemFree(P(p)); }
static int raw_ncclCommRegister(uintptr_t c, uintptr_t p, size_t n, uintptr_t *out) { void *h = NULL; int r = cp_ncclCommRegister(P(c), P(p), n, &h); *out = (uintptr_t)h; return r; }
static int raw_ncclCommDeregister(uintptr_t c, uintptr_t h) { return cp_ncclCommDeregister(P(c), P(h)); }
static int raw_ncclCommWindowRegister(uintptr_t c, uintptr_t p, size_t n, void **out, int flags) { return cp_ncclCommWindowRegister(P(c), P(p), n, out, flags); }
static int raw_ncclCommWindowDeregister(uintptr_t c, uintptr_t w) { return cp_ncclCommWindowDeregister(P(c), P(w)); }
static int raw_ncclRedOpCreatePreMulSum(int *op, void *scalar, int t, int res, uintptr_t c) { return cp_ncclRedOpCreatePreMulSum(op, scalar, t, res, P(c)); }
static int raw_ncclRedOpDestroy(int op, uintptr_t c) { return cp_ncclRedOpDestroy(op, P(c)); }
*/
import "C"

import (
	"unsafe"
)

// UniqueIDBytes is the size of an ncclUniqueId.
const UniqueIDBytes = C.sizeof_cp_unique_id

// NCCLConfigUndef is the value of a config field that keeps the library's default.
const NCCLConfigUndef = C.CP_NCCL_CONFIG_UNDEF_INT

// NCCLConfig is ncclConfig_t in Go. Ints holds, in this order: version, blocking, cgaClusterSize, minCTAs, maxCTAs, splitShare, trafficClass,
// collnetEnable, CTAPolicy, shrinkShare, nvlsCTAs, nChannelsPerNetPeer, nvlinkCentricSched. Texts that are "" are undefined.
type NCCLConfig struct {
	Ints              [13]int32
	NetName, CommName string
}

// Cell is one pointer-sized place in C memory, for handles that a library writes after the call that asked for them has returned.
type Cell struct{ p *unsafe.Pointer }

// NewCell allocates a place that holds 0. Free it once no library may write it any more.
func NewCell() Cell { return Cell{(*unsafe.Pointer)(C.calloc(1, C.sizeof_uintptr_t))} }

// Value reads the place.
func (c Cell) Value() uintptr { return uintptr(*c.p) }

// Free releases the place.
func (c Cell) Free() { C.free(unsafe.Pointer(c.p)) }

func cText(s string) *C.char {
	if s == "" {
		return nil
	}
	return C.CString(s)
}

// with calls f with the config's C form; a nil config gives nil pointers. NCCL copies the texts during the call or, inside a group, at its
// end; they are small and few, and are left to the process.
func (c *NCCLConfig) with(f func(v *C.int, net, name *C.char) C.int) int {
	if c == nil {
		return int(f(nil, nil, nil))
	}
	return int(f((*C.int)(unsafe.Pointer(&c.Ints[0])), cText(c.NetName), cText(c.CommName)))
}

// NCCLErrorString calls ncclGetErrorString, "" where the library lacks it.
func NCCLErrorString(code int) string { return C.GoString(C.raw_ncclErrorString(C.int(code))) }

// NCCLLastError calls ncclGetLastError, "" where the library lacks it. The text is process-wide and may be stale.
func NCCLLastError(comm uintptr) string { return C.GoString(C.raw_ncclLastError(up(comm))) }

// NcclGetVersion calls ncclGetVersion.
func NcclGetVersion(v *int32) int { return int(C.cp_ncclGetVersion(iptr(v))) }

// NcclGetUniqueID calls ncclGetUniqueId.
func NcclGetUniqueID(id *[UniqueIDBytes]byte) int {
	return int(C.raw_ncclGetUniqueId((*C.char)(unsafe.Pointer(&id[0]))))
}

// NcclCommInitRank calls ncclCommInitRankConfig, or ncclCommInitRank when config is nil. out receives the handle: at once, at the end of the
// group, or when a non-blocking initialisation is under way. Blocks until all ranks have joined, without a limit of its own.
func NcclCommInitRank(out Cell, nranks int, id *[UniqueIDBytes]byte, rank int, config *NCCLConfig) int {
	return config.with(func(v *C.int, net, name *C.char) C.int {
		return C.raw_ncclCommInitRank(out.p, C.int(nranks), (*C.char)(unsafe.Pointer(&id[0])), C.int(rank), v, net, name)
	})
}

// NcclCommInitAll calls ncclCommInitAll for the given devices; comms has one place a device.
func NcclCommInitAll(comms []uintptr, devices []int32) int {
	cells := (*C.cp_comm)(C.calloc(C.size_t(len(comms)), C.sizeof_uintptr_t))
	defer C.free(unsafe.Pointer(cells))
	code := C.cp_ncclCommInitAll(cells, C.int(len(devices)), (*C.int)(unsafe.Pointer(unsafe.SliceData(devices))))
	for i, h := range unsafe.Slice((*uintptr)(unsafe.Pointer(cells)), len(comms)) {
		comms[i] = h
	}
	return int(code)
}

// NcclCommSplit calls ncclCommSplit; out as for NcclCommInitRank.
func NcclCommSplit(comm uintptr, color, key int, out Cell, config *NCCLConfig) int {
	return config.with(func(v *C.int, net, name *C.char) C.int {
		return C.raw_ncclCommSplit(up(comm), C.int(color), C.int(key), out.p, v, net, name)
	})
}

// NcclCommFinalize calls ncclCommFinalize.
func NcclCommFinalize(c uintptr) int { return int(C.raw_ncclCommFinalize(up(c))) }

// NcclCommDestroy calls ncclCommDestroy.
func NcclCommDestroy(c uintptr) int { return int(C.raw_ncclCommDestroy(up(c))) }

// NcclCommAbort calls ncclCommAbort.
func NcclCommAbort(c uintptr) int { return int(C.raw_ncclCommAbort(up(c))) }

// NcclCommGetAsyncError calls ncclCommGetAsyncError.
func NcclCommGetAsyncError(c uintptr, e *int32) int {
	return int(C.raw_ncclCommGetAsyncError(up(c), iptr(e)))
}

// NcclCommCount calls ncclCommCount.
func NcclCommCount(c uintptr, n *int32) int { return int(C.raw_ncclCommCount(up(c), iptr(n))) }

// NcclCommCuDevice calls ncclCommCuDevice.
func NcclCommCuDevice(c uintptr, n *int32) int { return int(C.raw_ncclCommCuDevice(up(c), iptr(n))) }

// NcclCommUserRank calls ncclCommUserRank.
func NcclCommUserRank(c uintptr, n *int32) int { return int(C.raw_ncclCommUserRank(up(c), iptr(n))) }

// NcclGroupStart calls ncclGroupStart.
func NcclGroupStart() int { return int(C.cp_ncclGroupStart()) }

// NcclGroupEnd calls ncclGroupEnd.
func NcclGroupEnd() int { return int(C.cp_ncclGroupEnd()) }

// NcclAllReduce calls ncclAllReduce; count is in elements.
func NcclAllReduce(send, recv, count uintptr, dtype, op int, comm, s uintptr) int {
	return int(C.raw_ncclAllReduce(up(send), up(recv), C.size_t(count), C.int(dtype), C.int(op), up(comm), up(s)))
}

// NcclBroadcast calls ncclBroadcast.
func NcclBroadcast(send, recv, count uintptr, dtype, root int, comm, s uintptr) int {
	return int(C.raw_ncclBroadcast(up(send), up(recv), C.size_t(count), C.int(dtype), C.int(root), up(comm), up(s)))
}

// NcclReduce calls ncclReduce.
func NcclReduce(send, recv, count uintptr, dtype, op, root int, comm, s uintptr) int {
	return int(C.raw_ncclReduce(up(send), up(recv), C.size_t(count), C.int(dtype), C.int(op), C.int(root), up(comm), up(s)))
}

// NcclAllGather calls ncclAllGather; count is one rank's.
func NcclAllGather(send, recv, count uintptr, dtype int, comm, s uintptr) int {
	return int(C.raw_ncclAllGather(up(send), up(recv), C.size_t(count), C.int(dtype), up(comm), up(s)))
}

// NcclReduceScatter calls ncclReduceScatter; count is one rank's.
func NcclReduceScatter(send, recv, count uintptr, dtype, op int, comm, s uintptr) int {
	return int(C.raw_ncclReduceScatter(up(send), up(recv), C.size_t(count), C.int(dtype), C.int(op), up(comm), up(s)))
}

// NcclSend calls ncclSend.
func NcclSend(send, count uintptr, dtype, peer int, comm, s uintptr) int {
	return int(C.raw_ncclSend(up(send), C.size_t(count), C.int(dtype), C.int(peer), up(comm), up(s)))
}

// NcclRecv calls ncclRecv.
func NcclRecv(recv, count uintptr, dtype, peer int, comm, s uintptr) int {
	return int(C.raw_ncclRecv(up(recv), C.size_t(count), C.int(dtype), C.int(peer), up(comm), up(s)))
}

// NcclAlltoAll calls ncclAlltoAll; count is one pair's.
func NcclAlltoAll(send, recv, count uintptr, dtype int, comm, s uintptr) int {
	return int(C.raw_ncclAlltoAll(up(send), up(recv), C.size_t(count), C.int(dtype), up(comm), up(s)))
}

// NcclGather calls ncclGather; count is one rank's.
func NcclGather(send, recv, count uintptr, dtype, root int, comm, s uintptr) int {
	return int(C.raw_ncclGather(up(send), up(recv), C.size_t(count), C.int(dtype), C.int(root), up(comm), up(s)))
}

// NcclScatter calls ncclScatter; count is one rank's.
func NcclScatter(send, recv, count uintptr, dtype, root int, comm, s uintptr) int {
	return int(C.raw_ncclScatter(up(send), up(recv), C.size_t(count), C.int(dtype), C.int(root), up(comm), up(s)))
}

// NcclMemAlloc calls ncclMemAlloc.
func NcclMemAlloc(p *uintptr, n uintptr) int { return int(C.raw_ncclMemAlloc(uptr(p), C.size_t(n))) }

// NcclMemFree calls ncclMemFree.
func NcclMemFree(p uintptr) int { return int(C.raw_ncclMemFree(up(p))) }

// NcclCommRegister calls ncclCommRegister.
func NcclCommRegister(c, p, n uintptr, h *uintptr) int {
	return int(C.raw_ncclCommRegister(up(c), up(p), C.size_t(n), uptr(h)))
}

// NcclCommDeregister calls ncclCommDeregister.
func NcclCommDeregister(c, h uintptr) int { return int(C.raw_ncclCommDeregister(up(c), up(h))) }

// NcclCommWindowRegister calls ncclCommWindowRegister; out as for NcclCommInitRank.
func NcclCommWindowRegister(c, p, n uintptr, out Cell, flags int) int {
	return int(C.raw_ncclCommWindowRegister(up(c), up(p), C.size_t(n), out.p, C.int(flags)))
}

// NcclCommWindowDeregister calls ncclCommWindowDeregister.
func NcclCommWindowDeregister(c, w uintptr) int {
	return int(C.raw_ncclCommWindowDeregister(up(c), up(w)))
}

// NcclRedOpCreatePreMulSum calls ncclRedOpCreatePreMulSum; scalar holds one element of dtype in host memory.
func NcclRedOpCreatePreMulSum(op *int32, scalar *[8]byte, dtype int, comm uintptr) int {
	return int(C.raw_ncclRedOpCreatePreMulSum(iptr(op), unsafe.Pointer(scalar), C.int(dtype), C.CP_SCALAR_HOST_IMMEDIATE, up(comm)))
}

// NcclRedOpDestroy calls ncclRedOpDestroy.
func NcclRedOpDestroy(op int, comm uintptr) int {
	return int(C.raw_ncclRedOpDestroy(C.int(op), up(comm)))
}
