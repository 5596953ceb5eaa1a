package ibverbs

// #include "binding.h"
import "C"

import "unsafe"

// Fill writes the pattern of (seed, stream) to host memory. Its content at an offset differs by seed, by stream and by offset, and no byte of it is Poison's.
func Fill(addr uintptr, bytes int, seed uint64, stream uint32) {
	C.iv_fill_pattern(pointer(addr), C.size_t(bytes), C.uint64_t(seed), C.uint32_t(stream))
}

// Check compares host memory with the pattern and tells how many bytes are wrong, and the offsets of the first and the last of them (-1 when none is).
func Check(addr uintptr, bytes int, seed uint64, stream uint32) (wrong int, first, last int) {
	return checkPattern(pointer(addr), bytes, seed, stream)
}

// CheckIn is Check for a copy of memory in b.
func CheckIn(b []byte, seed uint64, stream uint32) (wrong int, first, last int) {
	return checkPattern(unsafe.Pointer(unsafe.SliceData(b)), len(b), seed, stream)
}

func checkPattern(p unsafe.Pointer, bytes int, seed uint64, stream uint32) (wrong int, first, last int) {
	var f, l C.size_t
	n := C.iv_check_pattern(p, C.size_t(bytes), C.uint64_t(seed), C.uint32_t(stream), &f, &l)
	if n == 0 {
		return 0, -1, -1
	}
	return int(n), int(f), int(l)
}

// Poison overwrites host memory with what no pattern contains, so that a byte that never arrived shows.
func Poison(addr uintptr, bytes int) { C.iv_poison(pointer(addr), C.size_t(bytes)) }

// PatternInto writes the pattern into b, for memory that is filled by copying.
func PatternInto(b []byte, seed uint64, stream uint32) {
	if len(b) > 0 {
		C.iv_fill_pattern(unsafe.Pointer(&b[0]), C.size_t(len(b)), C.uint64_t(seed), C.uint32_t(stream))
	}
}

// pointer makes C's pointer of an address outside Go's heap.
func pointer(addr uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }
