package cuda

import (
	"context"
	"fmt"
	"runtime"
)

// Thread is an OS thread that is bound to one device. Work that must stay on one thread (a communicator, a capture) runs on it, a phase at a
// time. A call that never returns keeps the thread; Do then ends by its context and the thread is lost with everything it holds.
type Thread struct {
	device int
	work   chan func()
	done   chan struct{}
}

// NewThread starts a thread and makes device its current device.
func NewThread(device int) (*Thread, error) {
	t := &Thread{device: device, work: make(chan func()), done: make(chan struct{})}
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
	for f := range t.work {
		f()
	}
}

// Device is the thread's device.
func (t *Thread) Device() int { return t.device }

// Do runs f on the thread and returns its error. When ctx ends first, Do returns the context's error and f goes on by itself: whatever f uses
// is then lost to the caller.
func (t *Thread) Do(ctx context.Context, f func() error) error {
	result := make(chan error, 1)
	select {
	case t.work <- func() { result <- f() }:
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

// Close ends the thread after its present phase and waits for that until ctx ends.
func (t *Thread) Close(ctx context.Context) error {
	close(t.work)
	select {
	case <-t.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
