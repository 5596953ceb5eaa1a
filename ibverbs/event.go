package ibverbs

// #include "binding.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"unsafe"
)

// AsyncEvent is something that the device tells by itself.
type AsyncEvent struct {
	Type  int
	Text  string // "port down"
	Port  int    // of events of a port, else 0
	QPNum uint32 // of events of a queue pair, else 0
	Fatal bool   // what it concerns cannot be used any more as things are
}

type eventKind struct {
	text  string
	fatal bool
}

// eventKinds is indexed by the interface's number.
var eventKinds = []eventKind{
	{"completion queue overrun or broken", true},
	{"queue pair broken by a local fault", true},
	{"queue pair broken by an invalid request of the peer", true},
	{"queue pair broken by a local access violation", true},
	{"first packet arrived before the queue pair was ready to send", false},
	{"send queue drained", false},
	{"path migrated", false},
	{"path migration failed", true},
	{"device broken", true},
	{"port active", false},
	{"port down", true},
	{"LID changed", false},
	{"partition keys changed", false},
	{"subnet manager changed", false},
	{"shared receive queue broken", true},
	{"shared receive queue low", false},
	{"last work request of a broken queue pair reached", false},
	{"subnet manager asks for registration", false},
	{"GID table changed", false},
	{"work queue broken", true},
}

func describe(e C.iv_event) AsyncEvent {
	out := AsyncEvent{Type: int(e._type), Port: int(e.port), QPNum: uint32(e.qp_num), Text: fmt.Sprintf("unknown event %d", int(e._type))}
	if out.Type >= 0 && out.Type < len(eventKinds) {
		out.Text, out.Fatal = eventKinds[out.Type].text, eventKinds[out.Type].fatal
	}
	return out
}

func (e AsyncEvent) String() string {
	switch {
	case e.Port != 0:
		return fmt.Sprintf("port %d: %s", e.Port, e.Text)
	case e.QPNum != 0:
		return fmt.Sprintf("queue pair %d: %s", e.QPNum, e.Text)
	}
	return e.Text
}

// NextEvent waits for the device's next asynchronous event and acknowledges it. It blocks until ctx ends; end it before Close. Only one goroutine
// may wait at a time. Errors: ctx's, *Error.
//
// Implements: int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
func (c *Context) NextEvent(ctx context.Context) (AsyncEvent, error) {
	var e C.iv_event
	err := waitFor(ctx, &c.handle, "ibv_get_async_event", func(p unsafe.Pointer, waker C.int) C.int { return C.iv_next_event(p, waker, &e) })
	return describe(e), err
}

// waitFor calls a wait of the C side until it has something, fails, or ctx ends, which wakes it. Nothing runs meanwhile: a thread that looks at ctx now and then
// takes its share of the processor from the loop that is measured.
func waitFor(ctx context.Context, h *handle, fn string, wait func(p unsafe.Pointer, waker C.int) C.int) error {
	waker := C.iv_waker_open()
	if waker < 0 {
		return check("eventfd", -waker, "")
	}
	defer C.iv_waker_close(waker)
	woken := make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		C.iv_waker_wake(waker)
		close(woken)
	})
	defer func() {
		if !unhook() {
			<-woken // before the descriptor is closed
		}
	}()
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("wait for an event: %w", context.Cause(ctx))
		}
		p, err := h.use()
		if err != nil {
			return err
		}
		if err := check(fn, wait(p, waker), ""); !errors.Is(err, syscall.EAGAIN) {
			return err
		}
	}
}
