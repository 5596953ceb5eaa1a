package cuda

import (
	"fmt"

	"github.com/commprobe/commprobe/csrc"
)

// DevicePtr is an address in device memory. It is a number, never a Go pointer.
type DevicePtr uintptr

// Add returns the address n bytes further.
func (p DevicePtr) Add(n int64) DevicePtr { return p + DevicePtr(n) }

// PinnedPtr is an address in page-locked host memory.
type PinnedPtr uintptr

func size(n int64) (uintptr, error) {
	if n < 0 {
		return 0, fmt.Errorf("negative size %d", n)
	}
	return uintptr(n), nil
}

// Malloc allocates n bytes on the calling thread's device. The caller frees them with Free.
//
// Implements: cudaError_t cudaMalloc(void **devPtr, size_t size)
func Malloc(n int64) (DevicePtr, error) {
	b, err := size(n)
	if err != nil {
		return 0, err
	}
	var p uintptr
	if err := check("cudaMalloc", csrc.CudaMalloc(&p, b)); err != nil {
		return 0, err
	}
	live.memory.Add(1)
	return DevicePtr(p), nil
}

// Free frees what Malloc returned. It may wait for the device.
//
// Implements: cudaError_t cudaFree(void *devPtr)
func Free(p DevicePtr) error {
	err := check("cudaFree", csrc.CudaFree(uintptr(p)))
	if err == nil {
		live.memory.Add(-1)
	}
	return err
}

// DMABufSupported tells whether the driver can give out a device's memory as a DMA-BUF: the open kernel modules, Linux 5.12 and CUDA 11.7 or later.
//
// Implements: CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev)
func DMABufSupported(device int) (bool, error) {
	var dev, can int32
	if err := checkDriver("cuDeviceGet", csrc.CuDeviceGet(&dev, device)); err != nil {
		return false, err
	}
	err := checkDriver("cuDeviceGetAttribute", csrc.CuDeviceGetAttribute(&can, attrDMABuf, dev))
	return can != 0, err
}

// ExportDMABuf gives out n bytes of device memory from p on as a DMA-BUF file descriptor, with which a NIC can register them. p and n must be
// multiples of the host's page size. The caller closes the descriptor, before it frees the memory. CUDA 11.7.
//
// Implements: CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr dptr, size_t size, CUmemRangeHandleType type, unsigned long long flags)
func ExportDMABuf(p DevicePtr, n int64) (fd int, err error) {
	b, err := size(n)
	if err != nil {
		return -1, err
	}
	var f int32
	if err := checkDriver("cuMemGetHandleForAddressRange", csrc.CuMemGetDMABuf(&f, uintptr(p), b)); err != nil {
		return -1, err
	}
	return int(f), nil
}

// HostAlloc allocates n bytes of page-locked host memory, usable from every device. The caller frees them with FreeHost.
//
// Implements: cudaError_t cudaHostAlloc(void **pHost, size_t size, unsigned int flags)
func HostAlloc(n int64) (PinnedPtr, error) {
	b, err := size(n)
	if err != nil {
		return 0, err
	}
	var p uintptr
	const portable = 1
	if err := check("cudaHostAlloc", csrc.CudaHostAlloc(&p, b, portable)); err != nil {
		return 0, err
	}
	live.memory.Add(1)
	return PinnedPtr(p), nil
}

// FreeHost frees what HostAlloc returned.
//
// Implements: cudaError_t cudaFreeHost(void *ptr)
func FreeHost(p PinnedPtr) error {
	err := check("cudaFreeHost", csrc.CudaFreeHost(uintptr(p)))
	if err == nil {
		live.memory.Add(-1)
	}
	return err
}

// MemInfo returns the free and total memory of the calling thread's device in bytes.
//
// Implements: cudaError_t cudaMemGetInfo(size_t *free, size_t *total)
func MemInfo() (free, total int64, err error) {
	var f, t uintptr
	err = check("cudaMemGetInfo", csrc.CudaMemGetInfo(&f, &t))
	return int64(f), int64(t), err
}

// Memset fills n bytes with value.
//
// Implements: cudaError_t cudaMemset(void *devPtr, int value, size_t count)
func Memset(p DevicePtr, value byte, n int64) error {
	return check("cudaMemset", csrc.CudaMemset(uintptr(p), int(value), uintptr(n)))
}

// MemsetAsync fills n bytes with value, in stream order.
//
// Implements: cudaError_t cudaMemsetAsync(void *devPtr, int value, size_t count, cudaStream_t stream)
func MemsetAsync(p DevicePtr, value byte, n int64, s Stream) error {
	return check("cudaMemsetAsync", csrc.CudaMemsetAsync(uintptr(p), int(value), uintptr(n), s.h))
}

const deviceToDevice, memcpyDefault = 3, 4

// Copy copies n bytes within device memory. It may return before the copy is done, in the NULL stream's order.
//
// Implements: cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind)
func Copy(dst, src DevicePtr, n int64) error {
	return check("cudaMemcpy", csrc.CudaMemcpy(uintptr(dst), uintptr(src), uintptr(n), deviceToDevice))
}

// CopyAsync copies n bytes within device memory in stream order.
//
// Implements: cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind, cudaStream_t stream)
func CopyAsync(dst, src DevicePtr, n int64, s Stream) error {
	return check("cudaMemcpyAsync", csrc.CudaMemcpyAsync(uintptr(dst), uintptr(src), uintptr(n), deviceToDevice, s.h))
}

// CopyPinnedAsync copies n bytes between device and page-locked host memory in stream order; the direction follows from the addresses.
//
// Implements: cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind, cudaStream_t stream)
func CopyPinnedAsync[D, S DevicePtr | PinnedPtr](dst D, src S, n int64, s Stream) error {
	return check("cudaMemcpyAsync", csrc.CudaMemcpyAsync(uintptr(dst), uintptr(src), uintptr(n), memcpyDefault, s.h))
}

// CopyOut fills dst from device memory. It blocks until the data is there.
//
// Implements: cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind)
func CopyOut(dst []byte, src DevicePtr) error {
	if len(dst) == 0 {
		return nil
	}
	return check("cudaMemcpy", csrc.CudaCopyOut(dst, uintptr(src)))
}

// CopyIn writes src to device memory. src may be reused when it returns.
//
// Implements: cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind)
func CopyIn(dst DevicePtr, src []byte) error {
	if len(src) == 0 {
		return nil
	}
	return check("cudaMemcpy", csrc.CudaCopyIn(uintptr(dst), src))
}

// CopyPeer copies n bytes between the memory of two devices.
//
// Implements: cudaError_t cudaMemcpyPeer(void *dst, int dstDevice, const void *src, int srcDevice, size_t count)
func CopyPeer(dst DevicePtr, dstDevice int, src DevicePtr, srcDevice int, n int64) error {
	return check("cudaMemcpyPeer", csrc.CudaMemcpyPeer(uintptr(dst), dstDevice, uintptr(src), srcDevice, uintptr(n)))
}

// CopyPeerAsync copies n bytes between the memory of two devices in stream order.
//
// Implements: cudaError_t cudaMemcpyPeerAsync(void *dst, int dstDevice, const void *src, int srcDevice, size_t count, cudaStream_t stream)
func CopyPeerAsync(dst DevicePtr, dstDevice int, src DevicePtr, srcDevice int, n int64, s Stream) error {
	return check("cudaMemcpyPeerAsync", csrc.CudaMemcpyPeerAsync(uintptr(dst), dstDevice, uintptr(src), srcDevice, uintptr(n), s.h))
}

// IPCHandle names a device allocation or an event so that another process of this host can open it.
type IPCHandle [csrc.IPCHandleBytes]byte

// IPCExport names the allocation that p begins.
//
// Implements: cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *devPtr)
func IPCExport(p DevicePtr) (IPCHandle, error) {
	var h [csrc.IPCHandleBytes]byte
	err := check("cudaIpcGetMemHandle", csrc.CudaIpcGetMemHandle(&h, uintptr(p)))
	return h, err
}

// IPCOpen maps an allocation of another process. The caller closes it with IPCClose.
//
// Implements: cudaError_t cudaIpcOpenMemHandle(void **devPtr, cudaIpcMemHandle_t handle, unsigned int flags)
func IPCOpen(h IPCHandle) (DevicePtr, error) {
	var p uintptr
	b := [csrc.IPCHandleBytes]byte(h)
	const lazyPeerAccess = 1
	if err := check("cudaIpcOpenMemHandle", csrc.CudaIpcOpenMemHandle(&p, &b, lazyPeerAccess)); err != nil {
		return 0, err
	}
	live.ipc.Add(1)
	return DevicePtr(p), nil
}

// IPCClose unmaps what IPCOpen mapped.
//
// Implements: cudaError_t cudaIpcCloseMemHandle(void *devPtr)
func IPCClose(p DevicePtr) error {
	err := check("cudaIpcCloseMemHandle", csrc.CudaIpcCloseMemHandle(uintptr(p)))
	if err == nil {
		live.ipc.Add(-1)
	}
	return err
}
