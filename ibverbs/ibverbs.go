// Package ibverbs is a thin binding of libibverbs: devices, ports, GIDs, memory regions, queue pairs, and a data path in C whose loops run a
// whole series of operations in one call.
//
// The library is opened at run time. Its exported functions come from a table; the data path goes through the tables of the provider, as in
// the inline functions of the header. Whoever makes a handle closes it, children before parents: closing what still has children is a
// *BusyError that names them. A handle may be used from several goroutines, but not while it is being closed.
package ibverbs

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "binding.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/commprobe/commprobe/csrc"
)

// LibraryEnv is the environment variable that names the file to load.
const LibraryEnv = "COMMPROBE_IBVERBS_LIB"

// Library is the loaded libibverbs.
type Library struct {
	Path    string // with links resolved
	Version string // rdma-core's, from the file's name: "44.0" of libibverbs.so.1.14.44.0; "" when the name does not tell
	DMABuf  bool   // it has ibv_reg_dmabuf_mr
}

var loaded struct {
	sync.Mutex
	lib *Library
}

// Load finds and opens libibverbs.so.1: explicit and nothing else, or the file that LibraryEnv names, or what the loader finds. It happens once
// a process; later calls return the same library, or an error when they name another file. Errors: *csrc.LibraryError.
func Load(explicit string) (Library, error) {
	loaded.Lock()
	defer loaded.Unlock()
	if loaded.lib != nil {
		return *loaded.lib, loaded.lib.is(explicit)
	}
	if explicit == "" {
		explicit = os.Getenv(LibraryEnv)
	}
	path, err := csrc.Find(csrc.Search{
		Library: "libibverbs", Names: []string{"libibverbs.so.1"}, Explicit: explicit, Flag: LibraryEnv,
		Meaning: "RDMA cannot be used without it: install libibverbs1 and ibverbs-providers (Debian, Ubuntu) or libibverbs (Fedora, RHEL)",
	}, fill)
	if err != nil {
		return Library{}, err
	}
	loaded.lib = &Library{Path: path, Version: versionIn(path), DMABuf: has("ibv_reg_dmabuf_mr")}
	return *loaded.lib, nil
}

// is tells of a second Load that names another file than the first took.
func (l *Library) is(explicit string) error {
	if explicit == "" {
		return nil
	}
	if real, err := filepath.EvalSymlinks(explicit); err == nil && real == l.Path {
		return nil
	}
	return fmt.Errorf("load %s: %s is loaded already, and a process keeps its first libibverbs", explicit, l.Path)
}

func fill(h csrc.Handle, path string) (string, error) {
	if C.iv_fill(C.uintptr_t(h)) == 0 {
		return "", fmt.Errorf("%s has none of the functions of libibverbs", path)
	}
	if !has("ibv_get_device_list") {
		return "", errors.New("ibv_get_device_list: not in " + path)
	}
	var buf [4096]C.char
	C.iv_loaded_path(&buf[0], C.int(len(buf)))
	got := C.GoString(&buf[0])
	if real, err := filepath.EvalSymlinks(got); err == nil {
		got = real
	}
	return got, nil
}

// versionIn takes rdma-core's version from a name such as libibverbs.so.1.14.44.0: after the soname's number and the ABI's.
func versionIn(path string) string {
	_, numbers, ok := strings.Cut(filepath.Base(path), ".so.1.")
	if !ok {
		return ""
	}
	_, version, _ := strings.Cut(numbers, ".")
	return version
}

// Functions lists the functions that this package uses of the library, each with whether the loaded one has it.
func Functions() map[string]bool {
	out := make(map[string]bool)
	for i := range C.iv_count() {
		out[C.GoString(C.iv_name(i))] = C.iv_present(i) != 0
	}
	return out
}

func has(name string) bool { return Functions()[name] }
