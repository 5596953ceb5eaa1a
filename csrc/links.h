// Kernels that move data over a link: one body for the device (links.cu, clang to PTX) and for the host engine (links_host.c).
//
// cp_link_copy moves in 16-byte vectors, four of them on their way in each thread, because remote memory is far: with one load at a time the
// latency of NVLink would be measured, not its bandwidth. cp_link_ping sends 8-byte words to and fro, flag and data in one store, as NCCL's LL
// protocol does, so that one store is the whole message.
#ifndef CP_LINKS_H
#define CP_LINKS_H

#include "verify.h"

// What cp_link_ping leaves: the initiator's time for the timed rounds, replies with wrong data, and rounds that were completed (warm-up
// included). Fewer of them than asked: the fuse ended it.
typedef struct cp_link_pinged {
	uint64_t ns, wrong, rounds;
} cp_link_pinged;

#ifdef __CUDA__
#define CPL_KERNEL extern "C" __attribute__((global)) void
#define CPL_FN static inline __attribute__((device, always_inline))

CPL_FN uint64_t cpl_thread(void)
{
	return (uint64_t)__nvvm_read_ptx_sreg_ctaid_x() * (uint64_t)__nvvm_read_ptx_sreg_ntid_x() + (uint64_t)__nvvm_read_ptx_sreg_tid_x();
}

CPL_FN uint64_t cpl_threads(void)
{
	return (uint64_t)__nvvm_read_ptx_sreg_nctaid_x() * (uint64_t)__nvvm_read_ptx_sreg_ntid_x();
}

// The device's clock in nanoseconds. It advances in steps of a microsecond or so, hence many rounds are timed together.
CPL_FN uint64_t cpl_now(void)
{
	uint64_t t;
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	return t;
}

CPL_FN void cpl_put(volatile uint64_t *to, uint64_t word) { *to = word; }
CPL_FN uint64_t cpl_get(const volatile uint64_t *from) { return *from; }
CPL_FN void cpl_pause(void) {}
#else
#include <sched.h>
#include <string.h>
#include <time.h>

// The kernels' launches on the host, with their arguments as for cuLaunchKernel.
void cp_host_launch_link_copy(void **params);
void cp_host_launch_link_ping(void **params);

#define CPL_KERNEL static inline void
#define CPL_FN static inline

CPL_FN uint64_t cpl_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

CPL_FN void cpl_put(volatile uint64_t *to, uint64_t word) { __atomic_store_n(to, word, __ATOMIC_RELEASE); }
CPL_FN uint64_t cpl_get(const volatile uint64_t *from) { return __atomic_load_n(from, __ATOMIC_ACQUIRE); }

// The other side may need this very core.
CPL_FN void cpl_pause(void) { sched_yield(); }
#endif

#ifdef __CUDA__
typedef uint32_t cpl_v4 __attribute__((vector_size(16)));

// Copies bytes from src to dst, both on 16-byte boundaries and apart. Any grid in one dimension works.
CPL_KERNEL cp_link_copy(void *dst, const void *src, uint64_t bytes)
{
	cpl_v4 *d = (cpl_v4 *)dst;
	const cpl_v4 *s = (const cpl_v4 *)src;
	uint64_t step = cpl_threads(), units = bytes / 16, v = cpl_thread(), e;

	_Pragma("clang loop unroll(disable)")
	for (; v + 3 * step < units; v += 4 * step) {
		cpl_v4 a = s[v], b = s[v + step], c = s[v + 2 * step], f = s[v + 3 * step];
		d[v] = a;
		d[v + step] = b;
		d[v + 2 * step] = c;
		d[v + 3 * step] = f;
	}
	_Pragma("clang loop unroll(disable)")
	for (; v < units; v += step)
		d[v] = s[v];
	for (e = units * 16 + cpl_thread(); e < bytes; e += step)
		((uint8_t *)dst)[e] = ((const uint8_t *)src)[e];
}
#else
CPL_KERNEL cp_link_copy(void *dst, const void *src, uint64_t bytes) { memcpy(dst, src, bytes); }
#endif

// The word of a round: the flag below, data that depends on round and sender above.
CPL_FN uint64_t cpl_word(uint32_t round, uint32_t sender)
{
	return (uint64_t)(round * 2654435761u + sender * 40503u) << 32 | round;
}

// How often is looked between two looks at the clock, which is not free.
enum { CPL_LOOKS = 1024 };

// Waits for the flag of a round; 0: the fuse came first.
CPL_FN int cpl_await(const volatile uint64_t *mine, uint32_t round, uint64_t start, uint64_t fuseNS, uint64_t *got)
{
	uint32_t looks = 0;
	for (;;) {
		*got = cpl_get(mine);
		if ((uint32_t)*got == round)
			return 1;
		if (++looks % CPL_LOOKS == 0 && cpl_now() - start >= fuseNS)
			return 0;
		cpl_pause();
	}
}

// One side of a ping-pong of warm + rounds words. mine is where the other side's words arrive, in this device's memory; theirs is its own in the
// other device's memory. Both must be 0 before either side starts. first says which side begins (1) and which answers (0). It always ends:
// after fuseNS nanoseconds without being done. One thread.
CPL_KERNEL cp_link_ping(volatile uint64_t *mine, volatile uint64_t *theirs, uint32_t warm, uint32_t rounds, uint32_t first, uint64_t fuseNS,
                        cp_link_pinged *result)
{
	uint64_t start = cpl_now(), timed = start, wrong = 0, got = 0;
	uint32_t r;

#ifdef __CUDA__
	if (cpl_thread() != 0)
		return;
#endif
	for (r = 1; r <= warm + rounds; r++) {
		if (r == warm + 1)
			timed = cpl_now();
		if (first)
			cpl_put(theirs, cpl_word(r, 1));
		if (!cpl_await(mine, r, start, fuseNS, &got))
			break;
		if (got != cpl_word(r, first ? 2 : 1))
			wrong++;
		if (!first)
			cpl_put(theirs, cpl_word(r, 2));
	}
	result->ns = cpl_now() - timed;
	result->wrong = wrong;
	result->rounds = r - 1;
}

#endif
