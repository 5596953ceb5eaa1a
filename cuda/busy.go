package cuda

import (
	"errors"
	"fmt"
	"time"

	"github.com/commprobe/commprobe/csrc"
)

// Busy keeps streams busy with a kernel that looks as if it never ended: what is queued behind it does not begin. It always ends, by Stop or by its
// fuse, the latter also when this process does not come to it any more.
type Busy struct {
	module Module
	kernel Function
	stop   PinnedPtr
}

// NewBusy loads the kernel into the calling thread's context. The caller closes it on a thread of the same device.
func NewBusy() (*Busy, error) {
	stop, err := HostAlloc(4)
	if err != nil {
		return nil, err
	}
	csrc.SetStop(uintptr(stop), false)
	m, err := LoadModule(csrc.BusyPTX())
	if err != nil {
		return nil, errors.Join(err, FreeHost(stop))
	}
	k, err := m.Function("cp_busy")
	if err != nil {
		return nil, errors.Join(err, m.Unload(), FreeHost(stop))
	}
	return &Busy{m, k, stop}, nil
}

// Start queues the kernel, with a fuse that must be more than nothing. It does not wait.
func (b *Busy) Start(s Stream, fuse time.Duration) error {
	if fuse <= 0 {
		return fmt.Errorf("busy kernel: a fuse of %v: must be longer than nothing", fuse)
	}
	return b.kernel.Launch(1, 1, s, uint64(b.stop), uint64(fuse))
}

// Stop ends all kernels started so far and those started later, at once. Any goroutine may call it.
func (b *Busy) Stop() { csrc.SetStop(uintptr(b.stop), true) }

// Close frees what the kernels use. They must have ended: stop them and wait for their streams first.
func (b *Busy) Close() error { return errors.Join(b.module.Unload(), FreeHost(b.stop)) }
