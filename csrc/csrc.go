// Package csrc holds all of this program's C: the function tables of the CUDA runtime, the CUDA driver, NCCL and NVML, the loader that fills
// them from shared objects, the host engine that fills them with functions of this binary, the timed series, and the data kernels.
//
// The Go functions here are the tables' callers and nothing more: they take and return the C interface's own numbers. Packages cuda and
// nccl give them types and errors. The tables belong to the process: a provider is chosen once, before the first call.
package csrc

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra
#cgo LDFLAGS: -lpthread -ldl -lm
#include <stdlib.h>
#include "load.h"
*/
import "C"

import "unsafe"

// Missing is what a caller answers when the loaded library lacks the function.
const Missing = C.CP_MISSING

// Lib names one of the function tables.
type Lib int

// The function tables.
const (
	CUDART Lib = C.CP_LIB_CUDART // CUDA runtime API
	CUDRV  Lib = C.CP_LIB_CUDRV  // CUDA driver API
	NCCL   Lib = C.CP_LIB_NCCL
	NVML   Lib = C.CP_LIB_NVML // NVIDIA management library; the host engine has none
)

// Handle is an opened shared object. It is never closed.
type Handle uintptr

// Open loads the shared object at path (a file, or a bare name that the loader searches for). text is the loader's own message when it fails.
// Blocks for the library's initialisers.
func Open(path string) (h Handle, text string) {
	p := C.CString(path)
	defer C.free(unsafe.Pointer(p))
	var buf [1024]C.char
	got := C.cp_open(p, &buf[0], C.int(len(buf)))
	if got == nil {
		return 0, C.GoString(&buf[0])
	}
	return Handle(uintptr(got)), ""
}

// Fill empties the table of lib and fills it from the object. It returns how many of the table's functions the object has.
// No call through the table may run at the same time.
func Fill(lib Lib, h Handle) int {
	return int(C.cp_fill(C.int(lib), *(*unsafe.Pointer)(unsafe.Pointer(&h))))
}

// FillHost fills the tables of CUDA and NCCL with the host engine, which then shows the given number of virtual devices.
// No call through the tables may run at the same time.
func FillHost(devices int) {
	C.cp_host_fill(&C.cp_cudart, &C.cp_cudrv, &C.cp_nccl, C.int(devices))
}

// LoadedPath returns the file that the functions in lib's table come from, "" when the table is empty.
func LoadedPath(lib Lib) string {
	var buf [4096]C.char
	if C.cp_loaded_path(C.int(lib), &buf[0], C.int(len(buf))) == 0 {
		return ""
	}
	return C.GoString(&buf[0])
}

// Proc returns the address of a table entry by its C name, 0 when the loaded library lacks it.
func Proc(name string) uintptr {
	p := C.CString(name)
	defer C.free(unsafe.Pointer(p))
	return uintptr(C.cp_proc(p))
}

// Functions lists the C names in lib's table, each with whether the loaded library has it.
func Functions(lib Lib) map[string]bool {
	out := make(map[string]bool)
	for i := range int(C.cp_count(C.int(lib))) {
		out[C.GoString(C.cp_name(C.int(lib), C.int(i)))] = C.cp_present(C.int(lib), C.int(i)) != 0
	}
	return out
}
