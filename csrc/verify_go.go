package csrc

/*
#include <stdlib.h>
#include "verify.h"

static uintptr_t cpv_find(const char *name)
{
	return (uintptr_t)cp_host_kernel(name);
}

static int cpv_run_as(int plain, const char *name, void **params)
{
	void (*launch)(void **) = plain ? cp_host_kernel_plain(name) : cp_host_kernel(name);
	if (launch == 0)
		return 0;
	launch(params);
	return 1;
}

static int cpv_run(const char *name, void **params) { return cpv_run_as(0, name, params); }

static int cpv_run_fill(int plain, void *dst, uint64_t count, uint64_t first, int dtype, int op, int rank,
                        int nranks, uint64_t seed)
{
	void *params[] = {&dst, &count, &first, &dtype, &op, &rank, &nranks, &seed};
	return cpv_run_as(plain, "cp_fill_input", params);
}

static int cpv_run_check(int plain, const void *got, uint64_t count, uint64_t first, int dtype, int op,
                         int source, int nranks, uint64_t seed, void *res)
{
	void *params[] = {&got, &count, &first, &dtype, &op, &source, &nranks, &seed, &res};
	return cpv_run_as(plain, "cp_check", params);
}

static int cpv_run_check_reset(void *res)
{
	void *params[] = {&res};
	return cpv_run("cp_check_reset", params);
}

static int cpv_run_poison(void *dst, uint64_t bytes, uint64_t seed)
{
	void *params[] = {&dst, &bytes, &seed};
	return cpv_run("cp_poison", params);
}

static int cpv_run_corrupt(void *buf, uint64_t index, int dtype)
{
	void *params[] = {&buf, &index, &dtype};
	return cpv_run("cp_corrupt", params);
}

static int cpv_run_hash(const void *p, uint64_t count, uint64_t first, int dtype, void *out)
{
	void *params[] = {&p, &count, &first, &dtype, &out};
	return cpv_run("cp_hash", params);
}

static int cpv_run_nan_scan(const void *p, uint64_t count, uint64_t first, int dtype, void *res)
{
	void *params[] = {&p, &count, &first, &dtype, &res};
	return cpv_run("cp_nan_scan", params);
}

// For the test of CheckResult's layout.
enum {
	CPV_SIZE = sizeof(cp_check_result),
	CPV_SAMPLE_SIZE = sizeof(((cp_check_result *)0)->sample[0]),
	CPV_AT_WRONG = __builtin_offsetof(cp_check_result, wrong),
	CPV_AT_FIRST = __builtin_offsetof(cp_check_result, firstIndex),
	CPV_AT_LAST = __builtin_offsetof(cp_check_result, lastIndex),
	CPV_AT_NSAMPLE = __builtin_offsetof(cp_check_result, nSample),
	CPV_AT_SAMPLE = __builtin_offsetof(cp_check_result, sample),
	CPV_AT_INDEX = __builtin_offsetof(cp_check_result, sample[0].index),
	CPV_AT_GOT = __builtin_offsetof(cp_check_result, sample[0].got),
	CPV_AT_EXPECTED = __builtin_offsetof(cp_check_result, sample[0].expected),
};
*/
import "C"

import (
	"encoding/binary"
	"unsafe"
)

// HostKernel returns the address of a kernel's host build by its device name, 0 if there is none. It is a C function that takes the array
// of argument pointers which cuLaunchKernel takes, and returns when the work is done.
func HostKernel(name string) uintptr {
	p := C.CString(name)
	defer C.free(unsafe.Pointer(p))
	return uintptr(C.cpv_find(p))
}

// VerifyInputBits returns one element of a rank's input for a reduction over nranks ranks, zero-extended; for op OpSource and OpUniform,
// one of the rank's own data, and nranks does not matter. It is 0 where the arguments make no sense.
func VerifyInputBits(dtype, op, rank, nranks int, seed, index uint64) uint64 {
	return uint64(C.cp_input_bits(C.int(dtype), C.int(op), C.int(rank), C.int(nranks), C.uint64_t(seed), C.uint64_t(index)))
}

// VerifyExpectedBits returns one element of a reduction's result, zero-extended; 0 where the arguments make no sense. An average of floats
// over a number of ranks that is not a power of two may differ from it by two steps of the last place, and by more where 1/nranks is
// subnormal in the type; all other results must be equal to it.
func VerifyExpectedBits(dtype, op, nranks int, seed, index uint64) uint64 {
	return uint64(C.cp_expected_bits(C.int(dtype), C.int(op), C.int(nranks), C.uint64_t(seed), C.uint64_t(index)))
}

// MulSumScalar returns what OpMulSum multiplies a rank's input by, in the binary form of the element type, padded with zeros: 1 on even
// ranks, 2 on odd ones. It is what ncclRedOpCreatePreMulSum wants from that rank. All zeros for an unknown type.
func MulSumScalar(dtype, rank int) (scalar [8]byte) {
	binary.LittleEndian.PutUint64(scalar[:], uint64(C.cp_mulsum_scalar(C.int(dtype), C.int(rank))))
	return scalar
}

// The functions below run the host kernels on Go memory, for tests. They go through the lookup by name, as the host engine does, and
// answer whether the kernel exists.

func hostFillInput(dst unsafe.Pointer, count, first uint64, dtype, op, rank, nranks int, seed uint64) bool {
	return C.cpv_run_fill(0, dst, C.uint64_t(count), C.uint64_t(first), C.int(dtype), C.int(op), C.int(rank), C.int(nranks), C.uint64_t(seed)) != 0
}

func hostCheck(got unsafe.Pointer, count, first uint64, dtype, op, source, nranks int, seed uint64, res *CheckResult) bool {
	return C.cpv_run_check(0, got, C.uint64_t(count), C.uint64_t(first), C.int(dtype), C.int(op), C.int(source), C.int(nranks), C.uint64_t(seed),
		unsafe.Pointer(res)) != 0
}

// plainFillInput and plainCheck run what CPUs without wide vectors run.

func plainFillInput(dst unsafe.Pointer, count, first uint64, dtype, op, rank, nranks int, seed uint64) bool {
	return C.cpv_run_fill(1, dst, C.uint64_t(count), C.uint64_t(first), C.int(dtype), C.int(op), C.int(rank), C.int(nranks), C.uint64_t(seed)) != 0
}

func plainCheck(got unsafe.Pointer, count, first uint64, dtype, op, source, nranks int, seed uint64, res *CheckResult) bool {
	return C.cpv_run_check(1, got, C.uint64_t(count), C.uint64_t(first), C.int(dtype), C.int(op), C.int(source), C.int(nranks), C.uint64_t(seed),
		unsafe.Pointer(res)) != 0
}

func hostCheckReset(res *CheckResult) bool {
	return C.cpv_run_check_reset(unsafe.Pointer(res)) != 0
}

func hostPoison(dst unsafe.Pointer, bytes, seed uint64) bool {
	return C.cpv_run_poison(dst, C.uint64_t(bytes), C.uint64_t(seed)) != 0
}

func hostCorrupt(buf unsafe.Pointer, index uint64, dtype int) bool {
	return C.cpv_run_corrupt(buf, C.uint64_t(index), C.int(dtype)) != 0
}

func hostHash(p unsafe.Pointer, count, first uint64, dtype int, out *uint64) bool {
	return C.cpv_run_hash(p, C.uint64_t(count), C.uint64_t(first), C.int(dtype), unsafe.Pointer(out)) != 0
}

func hostNaNScan(p unsafe.Pointer, count, first uint64, dtype int, res *CheckResult) bool {
	return C.cpv_run_nan_scan(p, C.uint64_t(count), C.uint64_t(first), C.int(dtype), unsafe.Pointer(res)) != 0
}

// checkResultLayout is C's layout of CheckResult in bytes: the sizes of the whole and of a sample, then the offsets in order.
func checkResultLayout() []uintptr {
	return []uintptr{C.CPV_SIZE, C.CPV_SAMPLE_SIZE, C.CPV_AT_WRONG, C.CPV_AT_FIRST, C.CPV_AT_LAST, C.CPV_AT_NSAMPLE, C.CPV_AT_SAMPLE,
		C.CPV_AT_INDEX, C.CPV_AT_GOT, C.CPV_AT_EXPECTED}
}
