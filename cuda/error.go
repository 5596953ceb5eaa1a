package cuda

import (
	"fmt"

	"github.com/commprobe/commprobe/csrc"
)

// Code is a cudaError_t. As an error it is what errors.Is compares with.
type Code int

// The codes that callers tell apart.
const (
	ErrInvalidValue       Code = 1
	ErrOutOfMemory        Code = 2
	ErrInsufficientDriver Code = 35
	ErrNoDevice           Code = 100
	ErrInvalidDevice      Code = 101
	ErrNotReady           Code = 600
	ErrNotSupported       Code = 801
	errPeerAlreadyEnabled Code = 704
)

func (c Code) Error() string {
	name, text := csrc.CUDAText(int(c))
	if name == "" {
		return fmt.Sprintf("CUDA error %d", int(c))
	}
	return name + ": " + text
}

// Error is a CUDA call that failed. errors.Is(err, ErrNotReady) and its like work on it.
type Error struct {
	Func string
	Code Code
	Name string // "cudaErrorMemoryAllocation"
	Text string // the library's description
}

func (e *Error) Error() string {
	if e.Name == "" {
		return fmt.Sprintf("%s: CUDA error %d", e.Func, int(e.Code))
	}
	return fmt.Sprintf("%s: %s (%d: %s)", e.Func, e.Name, int(e.Code), e.Text)
}

// Is reports whether target is this error's code.
func (e *Error) Is(target error) bool {
	c, ok := target.(Code)
	return ok && c == e.Code
}

// check turns the answer of a runtime call into an error.
func check(fn string, code int) error {
	switch code {
	case 0:
		return nil
	case csrc.Missing:
		return missing(fn, "CUDA runtime", "cudart")
	}
	name, text := csrc.CUDAText(code)
	csrc.CudaGetLastError() // the runtime keeps it for the next caller to trip over
	return &Error{fn, Code(code), name, text}
}

// checkDriver turns the answer of a driver call into an error.
func checkDriver(fn string, code int) error {
	switch code {
	case 0:
		return nil
	case csrc.Missing:
		return missing(fn, "CUDA driver", "cuda driver")
	}
	name, text := csrc.DriverText(code)
	return &Error{fn, Code(code), name, text}
}

func missing(fn, what, lib string) error {
	e := &csrc.MissingSymbolError{Func: fn, Library: what}
	for _, l := range provider.libs {
		if l.Name == lib {
			e.Path, e.Version = l.Path, l.Version
		}
	}
	return e
}
