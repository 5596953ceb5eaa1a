package cuda

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
)

// Thread is an OS thread that is bound to one device. Work that must stay on one thread (a communicator, a capture) runs on it, a phase at a
// time. A call that never returns keeps the thread; Do then ends by its context and the thread is lost with everything it holds.
type Thread struct {
	device int
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
	for {
		select {
		case f := <-t.work:
			f()
		case <-t.closed:
			return
		}
	}
}

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
