// A kernel that keeps its stream busy: one body for the device (busy.cu, clang to PTX) and for the host engine (busy_host.c).
//
// It looks like a kernel that never ends, and yet always does: a fault that is planted must not outlive the test by more than its fuse, not even
// when whoever planted it has died. stop lies in page-locked host memory, which kernels of every device read.
#ifndef CP_BUSY_H
#define CP_BUSY_H

#include "verify.h"

#ifdef __CUDA__
#define CP_BUSY_KERNEL extern "C" __attribute__((global)) void
#define CP_BUSY_FN static inline __attribute__((device, always_inline))

// The device's clock in nanoseconds. It advances in steps of a microsecond or so.
CP_BUSY_FN uint64_t cp_busyNow(void)
{
	uint64_t t;
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	return t;
}

// There is nothing to sleep with before PTX 6.3; one thread that spins leaves a device's other units to others.
CP_BUSY_FN void cp_busyPause(void) {}

CP_BUSY_FN int cp_busyFirst(void)
{
	return __nvvm_read_ptx_sreg_tid_x() == 0 && __nvvm_read_ptx_sreg_ctaid_x() == 0;
}
#else
#include <time.h>

// The kernel's launch on the host, with its arguments as for cuLaunchKernel.
void cp_host_launch_busy(void **params);

// Sets what kernels watch, wherever they run.
void cp_busy_stop(uint32_t *stop, int value);

#define CP_BUSY_KERNEL static inline void
#define CP_BUSY_FN static inline

CP_BUSY_FN uint64_t cp_busyNow(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

CP_BUSY_FN void cp_busyPause(void)
{
	struct timespec t = {0, 500000};
	nanosleep(&t, 0);
}

CP_BUSY_FN int cp_busyFirst(void) { return 1; }
#endif

// Ends when *stop is not 0 or fuseNS nanoseconds have passed.
CP_BUSY_KERNEL cp_busy(const volatile uint32_t *stop, uint64_t fuseNS)
{
	uint64_t start = cp_busyNow();
	if (!cp_busyFirst())
		return;
	while (*stop == 0 && cp_busyNow() - start < fuseNS)
		cp_busyPause();
}

#endif
