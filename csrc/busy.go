package csrc

/*
#include "busy.h"
*/
import "C"

import (
	_ "embed"
	"unsafe"
)

//go:generate clang-16 -x cuda --cuda-device-only --cuda-gpu-arch=sm_70 -nocudainc -nocudalib -O3 -S busy.cu -o busy.ptx

//go:embed busy.ptx
var busyPTX string

// BusyPTX returns the kernel cp_busy as PTX for sm_70 and later, with the trailing NUL that cuModuleLoadData wants. Its arguments are the address of
// a uint32 in page-locked host memory and a time in nanoseconds; it ends when the one is not 0 or the other has passed. One thread is enough.
func BusyPTX() []byte {
	return append([]byte(busyPTX), 0)
}

// SetStop ends the kernels that watch the uint32 at the address, or lets new ones run.
func SetStop(address uintptr, stop bool) {
	value := C.int(0)
	if stop {
		value = 1
	}
	C.cp_busy_stop(*(**C.uint32_t)(unsafe.Pointer(&address)), value)
}
