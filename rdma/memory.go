package rdma

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"syscall"

	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/ibverbs"
)

// buffer is memory that a device can be given.
type buffer interface {
	memory
	register(pd *ibverbs.PD, access ibverbs.Access) (*ibverbs.MR, error)
	Close() error
}

// newBuffer allocates on the host or on a GPU, of which the calling thread becomes a user.
func newBuffer(kind string, bytes int, huge bool) (buffer, error) {
	where, device, err := parseMemory(kind)
	if err != nil {
		return nil, err
	}
	if where != hostMemory {
		g, err := newGPU(device, bytes, where == "dmabuf")
		if err != nil {
			return nil, err // not a nil pointer in an interface
		}
		return g, nil
	}
	m, err := ibverbs.AllocHost(bytes, huge)
	if err != nil {
		return nil, problem(Unusable, err, "%v", err)
	}
	return &hostBuffer{m}, nil
}

// hostBuffer lies outside Go's heap.
type hostBuffer struct{ *ibverbs.HostMemory }

func (h *hostBuffer) register(pd *ibverbs.PD, access ibverbs.Access) (*ibverbs.MR, error) {
	return pd.RegMR(h.Addr(), len(h.Bytes()), access)
}

func (h *hostBuffer) polled() bool { return true }

func (h *hostBuffer) fill(offset, bytes int, seed uint64, stream uint32) error {
	ibverbs.Fill(h.Addr()+uintptr(offset), bytes, seed, stream)
	return nil
}

func (h *hostBuffer) poison(offset, bytes int) error {
	ibverbs.Poison(h.Addr()+uintptr(offset), bytes)
	return nil
}

func (h *hostBuffer) check(offset, bytes int, seed uint64, stream uint32) (wrong, first, last int, err error) {
	wrong, first, last = ibverbs.Check(h.Addr()+uintptr(offset), bytes, seed, stream)
	return wrong, first, last, nil
}

func (h *hostBuffer) at(offset int) (byte, error) { return h.Bytes()[offset], nil }

func (h *hostBuffer) put(offset int, b []byte) error {
	copy(h.Bytes()[offset:], b)
	return nil
}

// gpuBuffer is memory of a GPU, filled and compared by copies. It is registered by its address, which needs peer memory, or as a DMA-BUF.
type gpuBuffer struct {
	device    int
	bytes     int
	dmabuf    bool
	allocated cuda.DevicePtr
	ptr       cuda.DevicePtr // aligned
	staging   []byte
}

// gpuPage is what exported ranges are cut to: pages of the GPU, and a multiple of those of any host.
const gpuPage = 64 << 10

func newGPU(device, bytes int, dmabuf bool) (*gpuBuffer, error) {
	if err := cuda.Load(cuda.Options{}); err != nil {
		return nil, problem(Unusable, err, "gpu:%d: %v", device, err)
	}
	n, err := cuda.DeviceCount()
	if err != nil {
		return nil, problem(Unusable, err, "gpu:%d: %v", device, err)
	}
	if device >= n {
		return nil, problem(Usage, nil, "gpu:%d: there are %d GPUs, numbered from 0", device, n)
	}
	if err := cuda.SetDevice(device); err != nil {
		return nil, problem(Unusable, err, "gpu:%d: %v", device, err)
	}
	whole := (bytes + gpuPage - 1) / gpuPage * gpuPage
	p, err := cuda.Malloc(int64(whole + gpuPage))
	if err != nil {
		return nil, problem(Unusable, err, "gpu:%d: allocate %d bytes: %v", device, whole+gpuPage, err)
	}
	return &gpuBuffer{device: device, bytes: whole, dmabuf: dmabuf, allocated: p, ptr: (p + gpuPage - 1) / gpuPage * gpuPage}, nil
}

func (g *gpuBuffer) register(pd *ibverbs.PD, access ibverbs.Access) (*ibverbs.MR, error) {
	if g.dmabuf {
		return g.registerDMABuf(pd, access)
	}
	m, err := pd.RegMR(uintptr(g.ptr), g.bytes, access)
	if err != nil {
		return nil, refusedGPU(err, g.device)
	}
	return m, nil
}

func (g *gpuBuffer) registerDMABuf(pd *ibverbs.PD, access ibverbs.Access) (*ibverbs.MR, error) {
	fd, err := g.export()
	if err != nil {
		return nil, err
	}
	m, err := pd.RegDMABuf(fd, 0, g.bytes, uint64(g.ptr), access)
	if cerr := syscall.Close(fd); cerr != nil && err == nil {
		err = errors.Join(fmt.Errorf("close the DMA-BUF: %w", cerr), m.Close())
	}
	if err != nil {
		return nil, problem(Unusable, err, "GPU memory registration refused, dmabuf:%d: %v; --memory gpu:%d tries peer memory, --memory host tests the link without the GPU", g.device, err, g.device)
	}
	return m, nil
}

// export makes a file descriptor of the memory, which the caller closes.
func (g *gpuBuffer) export() (int, error) {
	fd, err := cuda.ExportDMABuf(g.ptr, int64(g.bytes))
	if err != nil {
		return 0, problem(Unusable, err, "dmabuf:%d: GPU memory cannot be exported as DMA-BUF: %v; it needs NVIDIA's open kernel modules, Linux 5.12 and CUDA 11.7", g.device, err)
	}
	return fd, nil
}

// exports tries on each GPU whether its memory can be exported as DMA-BUF, a line each; nil without GPUs.
func exports() (lines []string) {
	if cuda.Load(cuda.Options{}) != nil {
		return nil
	}
	n, err := cuda.DeviceCount()
	if err != nil {
		return nil
	}
	runtime.LockOSThread() // the GPU belongs to the thread
	defer runtime.UnlockOSThread()
	for device := range n {
		line := fmt.Sprintf("gpu:%d: memory can be exported as DMA-BUF", device)
		if err := exportOnce(device); err != nil {
			line = err.Error()
		}
		lines = append(lines, line)
	}
	return lines
}

func exportOnce(device int) error {
	g, err := newGPU(device, gpuPage, true)
	if err != nil {
		return err
	}
	fd, err := g.export()
	if err == nil {
		err = syscall.Close(fd)
	}
	return errors.Join(err, g.Close())
}

// refusedGPU says what GPUDirect RDMA needs; the binding's hint has the rest.
func refusedGPU(err error, device int) error {
	return problem(Unusable, err, "GPU memory registration refused, gpu:%d: %v; lsmod | grep nvidia_peermem shows whether the module is there, and --memory host tests the link without the GPU", device, err)
}

func (g *gpuBuffer) polled() bool { return false }

func (g *gpuBuffer) stage(bytes int) []byte {
	g.staging = slices.Grow(g.staging[:0], bytes)[:bytes]
	return g.staging
}

// put waits for the copy: one from pageable memory may go on after the call has returned.
func (g *gpuBuffer) put(offset int, b []byte) error {
	return errors.Join(cuda.CopyIn(g.ptr.Add(int64(offset)), b), cuda.Synchronize())
}

func (g *gpuBuffer) at(offset int) (byte, error) {
	b := g.stage(1)
	err := cuda.CopyOut(b, g.ptr.Add(int64(offset)))
	return b[0], err
}

func (g *gpuBuffer) fill(offset, bytes int, seed uint64, stream uint32) error {
	b := g.stage(bytes)
	ibverbs.PatternInto(b, seed, stream)
	return g.put(offset, b)
}

func (g *gpuBuffer) poison(offset, bytes int) error {
	return errors.Join(cuda.Memset(g.ptr.Add(int64(offset)), gpuPoison, int64(bytes)), cuda.Synchronize())
}

const gpuPoison = 0xa5

func (g *gpuBuffer) check(offset, bytes int, seed uint64, stream uint32) (wrong, first, last int, err error) {
	b := g.stage(bytes)
	if err := cuda.CopyOut(b, g.ptr.Add(int64(offset))); err != nil {
		return 0, 0, 0, fmt.Errorf("gpu:%d: %w", g.device, err)
	}
	wrong, first, last = ibverbs.CheckIn(b, seed, stream)
	return wrong, first, last, nil
}

func (g *gpuBuffer) Close() error { return cuda.Free(g.allocated) }
