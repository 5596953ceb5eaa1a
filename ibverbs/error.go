package ibverbs

// #include "binding.h"
import "C"

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/commprobe/commprobe/csrc"
)

// ErrStopped says that the series ended because its Flag was set.
var ErrStopped = errors.New("stopped")

// Error is a verbs call that failed. errors.Is(err, syscall.ENOMEM) and its like work on it.
type Error struct {
	Func  string // "ibv_create_qp"
	Errno syscall.Errno
	What  string // "QP of type RC, 128 sends"
	Hint  string // what is likely and what to do, "" when nothing is known
}

func (e *Error) Error() string {
	s := e.Func
	if e.What != "" {
		s += " (" + e.What + ")"
	}
	s = fmt.Sprintf("%s: %v (errno %d)", s, e.Errno, int(e.Errno))
	if e.Hint != "" {
		s += ": " + e.Hint
	}
	return s
}

// Unwrap is the errno.
func (e *Error) Unwrap() error { return e.Errno }

// check turns the answer of the C side into an error. what is formatted only when there is one.
func check(fn string, code C.int, what string, args ...any) error {
	switch code {
	case 0:
		return nil
	case C.IV_MISSING:
		fn, _, _ = strings.Cut(fn, " ") // "ibv_modify_qp to RTR"
		e := &csrc.MissingSymbolError{Func: fn, Library: "libibverbs", Since: since[fn]}
		loaded.Lock()
		defer loaded.Unlock()
		if loaded.lib != nil {
			e.Path, e.Version = loaded.lib.Path, loaded.lib.Version
		}
		return e
	}
	errno := syscall.Errno(code)
	return &Error{fn, errno, fmt.Sprintf(what, args...), Hint(fn, errno)}
}

// since is the rdma-core that brought a function, of those that not every library has.
var since = map[string]string{
	"ibv_reg_mr_iova2": "rdma-core 28", "_ibv_query_gid_ex": "rdma-core 33", "ibv_reg_dmabuf_mr": "rdma-core 34",
}

// TimeoutError says that no operation completed for as long as the deadline allows.
type TimeoutError struct {
	What     string // "write, 4 queue pairs"
	After    time.Duration
	Done, Of int // operations; Of is 0 where no number was asked for
}

func (e *TimeoutError) Error() string {
	progress := fmt.Sprintf("%d of %d operations had completed", e.Done, e.Of)
	if e.Of == 0 {
		progress = fmt.Sprintf("%d operations had completed", e.Done)
	}
	return fmt.Sprintf("%s: no completion for %v; %s: the peer has stopped, or a link lost packets and the adapter still retries", e.What, e.After, progress)
}

// Timeout tells net.Error's users what this is.
func (e *TimeoutError) Timeout() bool { return true }

// WCError is a work completion that failed.
type WCError struct {
	Status int
	Text   string // "transport retry counter exceeded"
	Vendor uint32 // the adapter's own number for it
	QPNum  uint32
	Op     string // "write", "receive"
	Lane   int    // index in Series.Lanes
	Index  int    // of the operation on its lane
	Cause  string // what is likely, and what to look at
}

func (e *WCError) Error() string {
	s := fmt.Sprintf("%s %d on queue pair %d: completion status %d (%s), vendor error %#x", e.Op, e.Index, e.QPNum, e.Status, e.Text, e.Vendor)
	if e.Cause != "" {
		s += ": " + e.Cause
	}
	return s
}
