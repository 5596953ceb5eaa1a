// Package nccl is a thin binding of NCCL: communicators, groups, collectives, reduction operators, buffer registration. The same calls reach
// libnccl.so.2 or the host engine, whichever provider was chosen.
//
// Load or UseHost must have succeeded before any other function is called. A communicator belongs to one OS thread (cuda.Thread); only Abort
// and AsyncError may be called from another. Group state is per thread as well, so groups exist only as Group(func).
package nccl

import (
	"fmt"

	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/cuda"
)

// Version is NCCL's version code: 22809 for 2.28.9, 2708 for 2.7.8.
type Version int

func (v Version) String() string {
	if v < 10000 {
		return fmt.Sprintf("%d.%d.%d", v/1000, v%1000/100, v%100)
	}
	return fmt.Sprintf("%d.%d.%d", v/10000, v%10000/100, v%100)
}

// The first versions that have a feature.
const (
	Since219 Version = 21900
	Since224 Version = 22400
	Since227 Version = 22700
	Since228 Version = 22800
)

// newestConfig is the newest version whose config layout this program knows.
const newestConfig Version = 22800

var loaded struct {
	version Version
	path    string
	host    bool
}

// Load loads NCCL from path; "" searches the loader's path and Python environments. cuda.Load must have succeeded before.
// Errors: *csrc.LibraryError.
func Load(path string) error {
	got, err := csrc.Load(csrc.NCCL, csrc.Search{
		Library: "NCCL", Names: []string{"libnccl.so.2"}, Explicit: path, Python: []string{"nvidia/nccl/lib"}, CUDA: true, Flag: "--nccl-lib",
		Meaning: "collectives between GPUs need it (Debian/Ubuntu package libnccl2, or the Python package nvidia-nccl-cu13); --engine host still works",
	}, func(string) error {
		var v int32
		if err := check("ncclGetVersion", csrc.NcclGetVersion(&v)); err != nil {
			return err
		}
		loaded.version = Version(v)
		return nil
	})
	if err != nil {
		return err
	}
	loaded.path, loaded.host = got, false
	return nil
}

// UseHost chooses the host engine, which cuda.UseHost has put into the tables.
func UseHost() error {
	var v int32
	if err := check("ncclGetVersion", csrc.NcclGetVersion(&v)); err != nil {
		return err
	}
	loaded.version, loaded.host = Version(v), true
	loaded.path = cuda.Libraries()[0].Path
	return nil
}

// LibraryVersion is the loaded library's version. The host engine answers with the version whose interface it follows.
func LibraryVersion() Version { return loaded.version }

// Library describes what was loaded.
func Library() cuda.Library {
	if loaded.host {
		return cuda.Library{Name: "nccl interface", Path: loaded.path, Version: "host engine"}
	}
	return cuda.Library{Name: "nccl", Path: loaded.path, Version: loaded.version.String()}
}

// Has tells whether the loaded library has the function.
func Has(name string) bool { return csrc.Proc(name) != 0 }

// Result is an ncclResult_t. As an error it is what errors.Is compares with.
type Result int

// The results that callers tell apart. ErrInProgress is a state of non-blocking communicators, not a failure.
const (
	ErrUnhandledCUDA   Result = 1
	ErrSystem          Result = 2
	ErrInternal        Result = 3
	ErrInvalidArgument Result = 4
	ErrInvalidUsage    Result = 5
	ErrRemote          Result = 6
	ErrInProgress      Result = 7
)

var resultNames = map[Result]string{
	0: "ncclSuccess", ErrUnhandledCUDA: "ncclUnhandledCudaError", ErrSystem: "ncclSystemError", ErrInternal: "ncclInternalError",
	ErrInvalidArgument: "ncclInvalidArgument", ErrInvalidUsage: "ncclInvalidUsage", ErrRemote: "ncclRemoteError", ErrInProgress: "ncclInProgress",
}

// Name returns the result's C name.
func (r Result) Name() string {
	if n, ok := resultNames[r]; ok {
		return n
	}
	return fmt.Sprintf("ncclResult %d", int(r))
}

func (r Result) Error() string { return r.Name() }

// Error is an NCCL call that failed. errors.Is(err, ErrRemote) and its like work on it.
type Error struct {
	Func string
	Code Result
	Text string // the library's description of the code
	Last string // ncclGetLastError: process-wide and perhaps stale; a hint, never more
}

func (e *Error) Error() string {
	s := fmt.Sprintf("%s: %s", e.Func, e.Code.Name())
	if e.Text != "" {
		s += " (" + e.Text + ")"
	}
	if e.Last != "" {
		s += "; last message: " + e.Last
	}
	return s
}

// Is reports whether target is this error's code.
func (e *Error) Is(target error) bool {
	c, ok := target.(Result)
	return ok && c == e.Code
}

// NewError describes the result code of a call that was made elsewhere, such as in a timed series. code 0 gives nil.
func NewError(fn string, code int) error { return check(fn, code) }

func check(fn string, code int) error {
	switch code {
	case 0:
		return nil
	case csrc.Missing:
		return &csrc.MissingSymbolError{Func: fn, Library: "NCCL", Path: loaded.path, Version: known(loaded.version), Since: since[fn]}
	}
	return &Error{fn, Result(code), csrc.NCCLErrorString(code), csrc.NCCLLastError(0)}
}

// known is the version's text, "" before the library has told it.
func known(v Version) string {
	if v == 0 {
		return ""
	}
	return v.String()
}

// since names the first version of functions that are newer than 2.18.
var since = map[string]string{
	"ncclMemAlloc": "2.19", "ncclMemFree": "2.19", "ncclCommRegister": "2.19", "ncclCommDeregister": "2.19",
	"ncclCommWindowRegister": "2.27", "ncclCommWindowDeregister": "2.27", "ncclAlltoAll": "2.28", "ncclGather": "2.28", "ncclScatter": "2.28",
}

// VersionError says that the loaded library is older than what was asked for. Older libraries ignore unknown config fields in silence, so
// this program refuses instead.
type VersionError struct {
	What  string
	Since Version
	Have  Version
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("%s needs NCCL %d.%d or newer, the loaded library is %s", e.What, e.Since/10000, e.Since%10000/100, e.Have)
}
