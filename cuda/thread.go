package cuda

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/commprobe/commprobe/csrc"
)

// Thread is an OS thread that is bound to one device. Work that must stay on one thread (a communicator, a capture) runs on it, a phase at a
// time. A call that never returns keeps the thread; Do then ends by its context and the thread is lost with everything it holds.
type Thread struct {
	device int
	awake  atomic.Bool
	work   chan func()
	close  sync.Once
	closed chan struct{} // the thread is to end; work is never closed, because others may be sending
	done   chan struct{} // the thread has ended
}

var errThreadClosed = errors.New("the thread is closed")

// NewThread starts a thread and makes device its current device.
func NewThread(device int) (*Thread, error) {
	t := &Thread{device: device, work: make(chan func()), closed: make(chan struct{}), done: make(chan struct{})}
	ready := make(chan error)
	go t.run(ready)
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("device %d: %w", device, err)
	}
	return t, nil
}

func (t *Thread) run(ready chan<- error) {
	// Never unlocked: the thread carries CUDA state and must end with the goroutine.
	runtime.LockOSThread()
	defer close(t.done)
	err := SetDevice(t.device)
	ready <- err
	if err != nil {
		return
	}
	for t.next() {
	}
}

// awakeStep is how long a thread that stays awake spins between two looks for work: the delay that this adds to a phase's start at most.
const awakeStep = 20 * time.Microsecond

// next waits for one phase and runs it; false: the thread is to end.
func (t *Thread) next() bool {
	for t.awake.Load() {
		select {
		case f := <-t.work:
			f()
			return true
		case <-t.closed:
			return false
		default:
			csrc.Spin(awakeStep)
		}
	}
	select {
	case f := <-t.work:
		f()
		return true
	case <-t.closed:
		return false
	}
}

// StayAwake makes the thread spin between phases instead of sleeping, from the end of its next phase on. A thread that sleeps gives up its
// place: the system (and below it a hypervisor) may wake it elsewhere, beside a busy hardware thread, and what is timed then differs from
// phase to phase.
func (t *Thread) StayAwake(on bool) { t.awake.Store(on) }

// Device is the thread's device.
func (t *Thread) Device() int { return t.device }

// Do runs f on the thread and returns its error. When ctx ends first, Do returns the context's error and f goes on by itself: whatever f uses
// is then lost to the caller. A thread that was closed runs nothing more; that is an error as well.
func (t *Thread) Do(ctx context.Context, f func() error) error {
	result := make(chan error, 1)
	select {
	case t.work <- func() { result <- f() }:
	case <-t.closed:
		return errThreadClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close ends the thread after its present phase and waits for that until ctx ends. It may be called again.
func (t *Thread) Close(ctx context.Context) error {
	t.close.Do(func() { close(t.closed) })
	select {
	case <-t.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
