package csrc

/*
#include "abi.h"

// Texts are null when the library lacks the function.
static const char *cp_text_rt(int code, int name) {
  const char *(*f)(int) = name ? cp_cudart.cudaGetErrorName : cp_cudart.cudaGetErrorString;
  return f ? f(code) : NULL;
}
static const char *cp_text_drv(int code, int name) {
  const char *text = NULL;
  int got = name ? cp_cuGetErrorName(code, &text) : cp_cuGetErrorString(code, &text);
  return got == 0 ? text : NULL;
}
// Device addresses and handles cross as integers: Go never holds them as pointers.
#define P(x) ((void *)(uintptr_t)(x))
static int raw_cudaMalloc(uintptr_t *out, size_t n) { void *p = NULL; int c = cp_cudaMalloc(&p, n); *out = (uintptr_t)p; return c; }
static int raw_cudaFree(uintptr_t p) { return cp_cudaFree(P(p)); }
static int raw_cudaHostAlloc(uintptr_t *out, size_t n, unsigned flags) { void *p = NULL; int c = cp_cudaHostAlloc(&p, n, flags); *out = (uintptr_t)p; return c; }
static int raw_cudaFreeHost(uintptr_t p) { return cp_cudaFreeHost(P(p)); }
static int raw_cudaMemset(uintptr_t p, int v, size_t n) { return cp_cudaMemset(P(p), v, n); }
static int raw_cudaMemsetAsync(uintptr_t p, int v, size_t n, uintptr_t s) { return cp_cudaMemsetAsync(P(p), v, n, P(s)); }
static int raw_cudaMemcpy(uintptr_t d, uintptr_t s, size_t n, int kind) { return cp_cudaMemcpy(P(d), P(s), n, kind); }
static int raw_cudaMemcpyAsync(uintptr_t d, uintptr_t s, size_t n, int kind, uintptr_t st) { return cp_cudaMemcpyAsync(P(d), P(s), n, kind, P(st)); }
static int raw_copyOut(void *d, uintptr_t s, size_t n) { return cp_cudaMemcpy(d, P(s), n, CP_MEMCPY_DEVICE_TO_HOST); }
static int raw_copyIn(uintptr_t d, void *s, size_t n) { return cp_cudaMemcpy(P(d), s, n, CP_MEMCPY_HOST_TO_DEVICE); }
static int raw_cudaMemcpyPeer(uintptr_t d, int dd, uintptr_t s, int sd, size_t n) { return cp_cudaMemcpyPeer(P(d), dd, P(s), sd, n); }
static int raw_cudaMemcpyPeerAsync(uintptr_t d, int dd, uintptr_t s, int sd, size_t n, uintptr_t st) { return cp_cudaMemcpyPeerAsync(P(d), dd, P(s), sd, n, P(st)); }
static int raw_streamCreate(uintptr_t *out, unsigned flags, int priority, int with) { cp_stream s = NULL; int c = with ? cp_cudaStreamCreateWithPriority(&s, flags, priority) : cp_cudaStreamCreateWithFlags(&s, flags); *out = (uintptr_t)s; return c; }
static int raw_cudaStreamDestroy(uintptr_t s) { return cp_cudaStreamDestroy(P(s)); }
static int raw_cudaStreamQuery(uintptr_t s) { return cp_cudaStreamQuery(P(s)); }
static int raw_cudaStreamSynchronize(uintptr_t s) { return cp_cudaStreamSynchronize(P(s)); }
static int raw_cudaStreamWaitEvent(uintptr_t s, uintptr_t e, unsigned f) { return cp_cudaStreamWaitEvent(P(s), P(e), f); }
static int raw_cudaEventCreateWithFlags(uintptr_t *out, unsigned f) { cp_event e = NULL; int c = cp_cudaEventCreateWithFlags(&e, f); *out = (uintptr_t)e; return c; }
static int raw_cudaEventDestroy(uintptr_t e) { return cp_cudaEventDestroy(P(e)); }
static int raw_cudaEventRecord(uintptr_t e, uintptr_t s) { return cp_cudaEventRecord(P(e), P(s)); }
static int raw_cudaEventQuery(uintptr_t e) { return cp_cudaEventQuery(P(e)); }
static int raw_cudaEventSynchronize(uintptr_t e) { return cp_cudaEventSynchronize(P(e)); }
static int raw_cudaEventElapsedTime(float *ms, uintptr_t a, uintptr_t b) { return cp_cudaEventElapsedTime(ms, P(a), P(b)); }
static int raw_cudaStreamBeginCapture(uintptr_t s, int mode) { return cp_cudaStreamBeginCapture(P(s), mode); }
static int raw_cudaStreamEndCapture(uintptr_t s, uintptr_t *out) { cp_graph g = NULL; int c = cp_cudaStreamEndCapture(P(s), &g); *out = (uintptr_t)g; return c; }
static int raw_cudaGraphInstantiate(uintptr_t *out, uintptr_t g) { cp_graph_exec x = NULL; int c = cp_cudaGraphInstantiateWithFlags(&x, P(g), 0); *out = (uintptr_t)x; return c; }
static int raw_cudaGraphLaunch(uintptr_t x, uintptr_t s) { return cp_cudaGraphLaunch(P(x), P(s)); }
static int raw_cudaGraphExecDestroy(uintptr_t x) { return cp_cudaGraphExecDestroy(P(x)); }
static int raw_cudaGraphDestroy(uintptr_t g) { return cp_cudaGraphDestroy(P(g)); }
static int raw_ipcGetMem(char *h, uintptr_t p) { return cp_cudaIpcGetMemHandle((cp_ipc_handle *)h, P(p)); }
static int raw_ipcOpenMem(uintptr_t *out, char *h, unsigned f) { void *p = NULL; int c = cp_cudaIpcOpenMemHandle(&p, *(cp_ipc_handle *)h, f); *out = (uintptr_t)p; return c; }
static int raw_ipcCloseMem(uintptr_t p) { return cp_cudaIpcCloseMemHandle(P(p)); }
static int raw_ipcGetEvent(char *h, uintptr_t e) { return cp_cudaIpcGetEventHandle((cp_ipc_handle *)h, P(e)); }
static int raw_ipcOpenEvent(uintptr_t *out, char *h) { cp_event e = NULL; int c = cp_cudaIpcOpenEventHandle(&e, *(cp_ipc_handle *)h); *out = (uintptr_t)e; return c; }
static int raw_cuModuleLoadData(uintptr_t *out, const void *image) { cp_module m = NULL; int c = cp_cuModuleLoadData(&m, image); *out = (uintptr_t)m; return c; }
static int raw_cuModuleUnload(uintptr_t m) { return cp_cuModuleUnload(P(m)); }
static int raw_cuModuleGetFunction(uintptr_t *out, uintptr_t m, const char *name) { cp_function f = NULL; int c = cp_cuModuleGetFunction(&f, P(m), name); *out = (uintptr_t)f; return c; }
// Every parameter lies in a slot of 8 bytes; the driver reads as many of them as the kernel's parameter has.
static int raw_cuLaunchKernel(uintptr_t f, unsigned grid, unsigned block, uintptr_t s, uint64_t *slots, int n) {
  void *params[16];
  if (n > 16) return CP_CUDA_INVALID_VALUE;
  for (int i = 0; i < n; i++) params[i] = &slots[i];
  return cp_cuLaunchKernel(P(f), grid, 1, 1, block, 1, 1, 0, P(s), params, NULL);
}
*/
import "C"

import "unsafe"

// IPCHandleBytes is the size of a memory or event handle that another process can open.
const IPCHandleBytes = C.sizeof_cp_ipc_handle

// MaxKernelParams is how many parameters LaunchKernel passes at most.
const MaxKernelParams = 16

func uptr(p *uintptr) *C.uintptr_t { return (*C.uintptr_t)(unsafe.Pointer(p)) }
func iptr(p *int32) *C.int         { return (*C.int)(unsafe.Pointer(p)) }
func up(p uintptr) C.uintptr_t     { return C.uintptr_t(p) }

// CUDAText returns a runtime error's name and description, "" where the library does not say.
func CUDAText(code int) (name, text string) {
	return C.GoString(C.cp_text_rt(C.int(code), 1)), C.GoString(C.cp_text_rt(C.int(code), 0))
}

// DriverText returns a driver error's name and description, "" where the library does not say.
func DriverText(code int) (name, text string) {
	return C.GoString(C.cp_text_drv(C.int(code), 1)), C.GoString(C.cp_text_drv(C.int(code), 0))
}

// CudaDriverGetVersion calls cudaDriverGetVersion.
func CudaDriverGetVersion(v *int32) int { return int(C.cp_cudaDriverGetVersion(iptr(v))) }

// CudaRuntimeGetVersion calls cudaRuntimeGetVersion.
func CudaRuntimeGetVersion(v *int32) int { return int(C.cp_cudaRuntimeGetVersion(iptr(v))) }

// CudaGetDeviceCount calls cudaGetDeviceCount.
func CudaGetDeviceCount(n *int32) int { return int(C.cp_cudaGetDeviceCount(iptr(n))) }

// CudaSetDevice calls cudaSetDevice.
func CudaSetDevice(d int) int { return int(C.cp_cudaSetDevice(C.int(d))) }

// CudaGetDevice calls cudaGetDevice.
func CudaGetDevice(d *int32) int { return int(C.cp_cudaGetDevice(iptr(d))) }

// CudaDeviceGetAttribute calls cudaDeviceGetAttribute.
func CudaDeviceGetAttribute(v *int32, attr, d int) int {
	return int(C.cp_cudaDeviceGetAttribute(iptr(v), C.int(attr), C.int(d)))
}

// CudaDeviceGetPCIBusID calls cudaDeviceGetPCIBusId.
func CudaDeviceGetPCIBusID(d int) (string, int) {
	var buf [64]C.char
	code := C.cp_cudaDeviceGetPCIBusId(&buf[0], C.int(len(buf)), C.int(d))
	return C.GoString(&buf[0]), int(code)
}

// CudaDeviceSynchronize calls cudaDeviceSynchronize.
func CudaDeviceSynchronize() int { return int(C.cp_cudaDeviceSynchronize()) }

// CudaDeviceCanAccessPeer calls cudaDeviceCanAccessPeer.
func CudaDeviceCanAccessPeer(can *int32, d, peer int) int {
	return int(C.cp_cudaDeviceCanAccessPeer(iptr(can), C.int(d), C.int(peer)))
}

// CudaDeviceEnablePeerAccess calls cudaDeviceEnablePeerAccess.
func CudaDeviceEnablePeerAccess(peer int) int {
	return int(C.cp_cudaDeviceEnablePeerAccess(C.int(peer), 0))
}

// CudaDeviceDisablePeerAccess calls cudaDeviceDisablePeerAccess.
func CudaDeviceDisablePeerAccess(peer int) int {
	return int(C.cp_cudaDeviceDisablePeerAccess(C.int(peer)))
}

// CudaGetLastError calls cudaGetLastError, which also clears the thread's last error.
func CudaGetLastError() int { return int(C.cp_cudaGetLastError()) }

// CudaMalloc calls cudaMalloc.
func CudaMalloc(p *uintptr, n uintptr) int { return int(C.raw_cudaMalloc(uptr(p), C.size_t(n))) }

// CudaFree calls cudaFree.
func CudaFree(p uintptr) int { return int(C.raw_cudaFree(up(p))) }

// CudaHostAlloc calls cudaHostAlloc.
func CudaHostAlloc(p *uintptr, n uintptr, flags uint32) int {
	return int(C.raw_cudaHostAlloc(uptr(p), C.size_t(n), C.uint(flags)))
}

// CudaFreeHost calls cudaFreeHost.
func CudaFreeHost(p uintptr) int { return int(C.raw_cudaFreeHost(up(p))) }

// CudaMemGetInfo calls cudaMemGetInfo.
func CudaMemGetInfo(free, total *uintptr) int {
	return int(C.cp_cudaMemGetInfo((*C.size_t)(unsafe.Pointer(free)), (*C.size_t)(unsafe.Pointer(total))))
}

// CudaMemset calls cudaMemset.
func CudaMemset(p uintptr, v int, n uintptr) int {
	return int(C.raw_cudaMemset(up(p), C.int(v), C.size_t(n)))
}

// CudaMemsetAsync calls cudaMemsetAsync.
func CudaMemsetAsync(p uintptr, v int, n, s uintptr) int {
	return int(C.raw_cudaMemsetAsync(up(p), C.int(v), C.size_t(n), up(s)))
}

// CudaMemcpy calls cudaMemcpy; kind is cudaMemcpyKind.
func CudaMemcpy(dst, src, n uintptr, kind int) int {
	return int(C.raw_cudaMemcpy(up(dst), up(src), C.size_t(n), C.int(kind)))
}

// CudaMemcpyAsync calls cudaMemcpyAsync. Host memory must not be Go memory.
func CudaMemcpyAsync(dst, src, n uintptr, kind int, s uintptr) int {
	return int(C.raw_cudaMemcpyAsync(up(dst), up(src), C.size_t(n), C.int(kind), up(s)))
}

// CudaCopyOut copies device memory into dst with a blocking cudaMemcpy.
func CudaCopyOut(dst []byte, src uintptr) int {
	return int(C.raw_copyOut(unsafe.Pointer(unsafe.SliceData(dst)), up(src), C.size_t(len(dst))))
}

// CudaCopyIn copies src to device memory with a blocking cudaMemcpy.
func CudaCopyIn(dst uintptr, src []byte) int {
	return int(C.raw_copyIn(up(dst), unsafe.Pointer(unsafe.SliceData(src)), C.size_t(len(src))))
}

// CudaMemcpyPeer calls cudaMemcpyPeer.
func CudaMemcpyPeer(dst uintptr, dstDev int, src uintptr, srcDev int, n uintptr) int {
	return int(C.raw_cudaMemcpyPeer(up(dst), C.int(dstDev), up(src), C.int(srcDev), C.size_t(n)))
}

// CudaMemcpyPeerAsync calls cudaMemcpyPeerAsync.
func CudaMemcpyPeerAsync(dst uintptr, dstDev int, src uintptr, srcDev int, n, s uintptr) int {
	return int(C.raw_cudaMemcpyPeerAsync(up(dst), C.int(dstDev), up(src), C.int(srcDev), C.size_t(n), up(s)))
}

// CudaStreamCreateWithFlags calls cudaStreamCreateWithFlags.
func CudaStreamCreateWithFlags(s *uintptr, flags uint32) int {
	return int(C.raw_streamCreate(uptr(s), C.uint(flags), 0, 0))
}

// CudaStreamCreateWithPriority calls cudaStreamCreateWithPriority.
func CudaStreamCreateWithPriority(s *uintptr, flags uint32, priority int) int {
	return int(C.raw_streamCreate(uptr(s), C.uint(flags), C.int(priority), 1))
}

// CudaDeviceGetStreamPriorityRange calls cudaDeviceGetStreamPriorityRange.
func CudaDeviceGetStreamPriorityRange(least, greatest *int32) int {
	return int(C.cp_cudaDeviceGetStreamPriorityRange(iptr(least), iptr(greatest)))
}

// CudaStreamDestroy calls cudaStreamDestroy.
func CudaStreamDestroy(s uintptr) int { return int(C.raw_cudaStreamDestroy(up(s))) }

// CudaStreamQuery calls cudaStreamQuery.
func CudaStreamQuery(s uintptr) int { return int(C.raw_cudaStreamQuery(up(s))) }

// CudaStreamSynchronize calls cudaStreamSynchronize.
func CudaStreamSynchronize(s uintptr) int { return int(C.raw_cudaStreamSynchronize(up(s))) }

// CudaStreamWaitEvent calls cudaStreamWaitEvent.
func CudaStreamWaitEvent(s, e uintptr) int { return int(C.raw_cudaStreamWaitEvent(up(s), up(e), 0)) }

// CudaEventCreateWithFlags calls cudaEventCreateWithFlags.
func CudaEventCreateWithFlags(e *uintptr, flags uint32) int {
	return int(C.raw_cudaEventCreateWithFlags(uptr(e), C.uint(flags)))
}

// CudaEventDestroy calls cudaEventDestroy.
func CudaEventDestroy(e uintptr) int { return int(C.raw_cudaEventDestroy(up(e))) }

// CudaEventRecord calls cudaEventRecord.
func CudaEventRecord(e, s uintptr) int { return int(C.raw_cudaEventRecord(up(e), up(s))) }

// CudaEventQuery calls cudaEventQuery.
func CudaEventQuery(e uintptr) int { return int(C.raw_cudaEventQuery(up(e))) }

// CudaEventSynchronize calls cudaEventSynchronize.
func CudaEventSynchronize(e uintptr) int { return int(C.raw_cudaEventSynchronize(up(e))) }

// CudaEventElapsedTime calls cudaEventElapsedTime; the time is in milliseconds.
func CudaEventElapsedTime(ms *float32, start, end uintptr) int {
	return int(C.raw_cudaEventElapsedTime((*C.float)(unsafe.Pointer(ms)), up(start), up(end)))
}

// CudaStreamBeginCapture calls cudaStreamBeginCapture.
func CudaStreamBeginCapture(s uintptr, mode int) int {
	return int(C.raw_cudaStreamBeginCapture(up(s), C.int(mode)))
}

// CudaStreamEndCapture calls cudaStreamEndCapture.
func CudaStreamEndCapture(s uintptr, g *uintptr) int {
	return int(C.raw_cudaStreamEndCapture(up(s), uptr(g)))
}

// CudaGraphInstantiate calls cudaGraphInstantiateWithFlags with no flags.
func CudaGraphInstantiate(x *uintptr, g uintptr) int {
	return int(C.raw_cudaGraphInstantiate(uptr(x), up(g)))
}

// CudaGraphLaunch calls cudaGraphLaunch.
func CudaGraphLaunch(x, s uintptr) int { return int(C.raw_cudaGraphLaunch(up(x), up(s))) }

// CudaGraphExecDestroy calls cudaGraphExecDestroy.
func CudaGraphExecDestroy(x uintptr) int { return int(C.raw_cudaGraphExecDestroy(up(x))) }

// CudaGraphDestroy calls cudaGraphDestroy.
func CudaGraphDestroy(g uintptr) int { return int(C.raw_cudaGraphDestroy(up(g))) }

func ipc(h *[IPCHandleBytes]byte) *C.char { return (*C.char)(unsafe.Pointer(&h[0])) }

// CudaIpcGetMemHandle calls cudaIpcGetMemHandle.
func CudaIpcGetMemHandle(h *[IPCHandleBytes]byte, p uintptr) int {
	return int(C.raw_ipcGetMem(ipc(h), up(p)))
}

// CudaIpcOpenMemHandle calls cudaIpcOpenMemHandle.
func CudaIpcOpenMemHandle(p *uintptr, h *[IPCHandleBytes]byte, flags uint32) int {
	return int(C.raw_ipcOpenMem(uptr(p), ipc(h), C.uint(flags)))
}

// CudaIpcCloseMemHandle calls cudaIpcCloseMemHandle.
func CudaIpcCloseMemHandle(p uintptr) int { return int(C.raw_ipcCloseMem(up(p))) }

// CudaIpcGetEventHandle calls cudaIpcGetEventHandle.
func CudaIpcGetEventHandle(h *[IPCHandleBytes]byte, e uintptr) int {
	return int(C.raw_ipcGetEvent(ipc(h), up(e)))
}

// CudaIpcOpenEventHandle calls cudaIpcOpenEventHandle.
func CudaIpcOpenEventHandle(e *uintptr, h *[IPCHandleBytes]byte) int {
	return int(C.raw_ipcOpenEvent(uptr(e), ipc(h)))
}

// CuInit calls cuInit.
func CuInit() int { return int(C.cp_cuInit(0)) }

// CuDriverGetVersion calls cuDriverGetVersion.
func CuDriverGetVersion(v *int32) int { return int(C.cp_cuDriverGetVersion(iptr(v))) }

// CuDeviceGet calls cuDeviceGet.
func CuDeviceGet(dev *int32, ordinal int) int {
	return int(C.cp_cuDeviceGet(iptr(dev), C.int(ordinal)))
}

// CuDeviceGetName calls cuDeviceGetName.
func CuDeviceGetName(dev int32) (string, int) {
	var buf [256]C.char
	code := C.cp_cuDeviceGetName(&buf[0], C.int(len(buf)), C.int(dev))
	return C.GoString(&buf[0]), int(code)
}

// CuDeviceGetAttribute calls cuDeviceGetAttribute.
func CuDeviceGetAttribute(v *int32, attr int, dev int32) int {
	return int(C.cp_cuDeviceGetAttribute(iptr(v), C.int(attr), C.int(dev)))
}

// CuMemGetDMABuf calls cuMemGetHandleForAddressRange (CUDA 11.7) for a DMA-BUF file descriptor, which the caller closes. p and n are multiples of
// the host's page size.
func CuMemGetDMABuf(fd *int32, p, n uintptr) int {
	return int(C.cp_cuMemGetHandleForAddressRange(unsafe.Pointer(fd), C.cp_device_ptr(p), C.size_t(n), C.CP_RANGE_DMA_BUF_FD, 0))
}

// CuDeviceTotalMem calls cuDeviceTotalMem_v2.
func CuDeviceTotalMem(n *uintptr, dev int32) int {
	return int(C.cp_cuDeviceTotalMem_v2((*C.size_t)(unsafe.Pointer(n)), C.int(dev)))
}

// CuDeviceGetUUID calls cuDeviceGetUuid_v2 (CUDA 11.4): under MIG it names the instance.
func CuDeviceGetUUID(uuid *[16]byte, dev int32) int {
	return int(C.cp_cuDeviceGetUuid_v2((*C.cp_uuid)(unsafe.Pointer(uuid)), C.int(dev)))
}

// CuModuleLoadData calls cuModuleLoadData; image must end with a zero byte when it is PTX.
func CuModuleLoadData(m *uintptr, image []byte) int {
	return int(C.raw_cuModuleLoadData(uptr(m), unsafe.Pointer(unsafe.SliceData(image))))
}

// CuModuleUnload calls cuModuleUnload.
func CuModuleUnload(m uintptr) int { return int(C.raw_cuModuleUnload(up(m))) }

// CuModuleGetFunction calls cuModuleGetFunction; name must end with a zero byte.
func CuModuleGetFunction(f *uintptr, m uintptr, name []byte) int {
	return int(C.raw_cuModuleGetFunction(uptr(f), up(m), (*C.char)(unsafe.Pointer(unsafe.SliceData(name)))))
}

// CuLaunchKernel calls cuLaunchKernel with a one-dimensional grid. Each parameter is the low bytes of one slot; at most MaxKernelParams.
func CuLaunchKernel(f uintptr, grid, block uint32, s uintptr, slots []uint64) int {
	return int(C.raw_cuLaunchKernel(up(f), C.uint(grid), C.uint(block), up(s), (*C.uint64_t)(unsafe.Pointer(unsafe.SliceData(slots))), C.int(len(slots))))
}
