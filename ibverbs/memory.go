package ibverbs

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

// hugePageBytes is the size that MAP_HUGETLB means on x86-64 and, with 4 KiB pages, on arm64.
const hugePageBytes = 2 << 20

// HostMemory is zeroed, page-aligned memory outside Go's heap: it never moves, and the garbage collector does not look at it.
type HostMemory struct {
	handle
	mapped []byte
	bytes  int
}

// AllocHost allocates host memory, on request in huge pages. The pages are there at once, so that no timed loop meets their first touch. Errors: ENOMEM, for huge pages
// with how to reserve them.
func AllocHost(bytes int, huge bool) (*HostMemory, error) {
	if bytes < 1 {
		return nil, fmt.Errorf("allocate %d bytes of host memory: %w", bytes, syscall.EINVAL)
	}
	page, flags := os.Getpagesize(), syscall.MAP_PRIVATE|syscall.MAP_ANONYMOUS|syscall.MAP_POPULATE
	if huge {
		page, flags = hugePageBytes, flags|syscall.MAP_HUGETLB
	}
	h := &HostMemory{bytes: bytes}
	err := h.open("host memory", func(ptr *unsafe.Pointer) error {
		b, err := syscall.Mmap(-1, 0, (bytes+page-1)/page*page, syscall.PROT_READ|syscall.PROT_WRITE, flags)
		if huge && errors.Is(err, syscall.ENOMEM) {
			return fmt.Errorf("allocate %d bytes in huge pages: %w: reserve some with sysctl vm.nr_hugepages=%d or more", bytes, err, (bytes+page-1)/page)
		}
		if err != nil {
			return fmt.Errorf("allocate %d bytes of host memory: %w", bytes, err)
		}
		h.mapped, *ptr = b, unsafe.Pointer(&b[0])
		return nil
	})
	return orNil(h, err)
}

// Addr is the address of the first byte.
func (h *HostMemory) Addr() uintptr { return uintptr(h.ptr) }

// Bytes is the memory itself, until Close.
func (h *HostMemory) Bytes() []byte { return h.mapped[:h.bytes] }

// Close gives the memory back. Memory regions on it must have been closed before.
func (h *HostMemory) Close() error {
	return h.close(func(unsafe.Pointer) error {
		err := syscall.Munmap(h.mapped)
		if err == nil {
			h.mapped, h.bytes = nil, 0
		}
		return err
	})
}
