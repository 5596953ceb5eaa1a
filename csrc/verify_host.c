/* Host build of the kernels, for the host engine and for diagnosis. */
#include "busy.h"
#include "links.h"
#include "verify_kernels.h"

#include <string.h>

/* Argument i of a launch, as its type. */
#define ARG(type, i) (*(type *)params[i])

CPV_FN void fillInput(void **params)
{
	cp_fill_input(ARG(void *, 0), ARG(uint64_t, 1), ARG(uint64_t, 2), ARG(int, 3), ARG(int, 4),
	              ARG(int, 5), ARG(int, 6), ARG(uint64_t, 7));
}

CPV_FN void check(void **params)
{
	cp_check(ARG(const void *, 0), ARG(uint64_t, 1), ARG(uint64_t, 2), ARG(int, 3), ARG(int, 4),
	         ARG(int, 5), ARG(int, 6), ARG(uint64_t, 7), ARG(cp_check_result *, 8));
}

static void launchFillInput(void **params) { fillInput(params); }
static void launchCheck(void **params) { check(params); }

/* The two that cost most once more, for CPUs with wider vectors: twice as fast,
 * and the same bits, since it is the same code. */
#ifdef __x86_64__
static __attribute__((target("avx2"))) void launchFillInputWide(void **params) { fillInput(params); }
static __attribute__((target("avx2"))) void launchCheckWide(void **params) { check(params); }
static int haveWide(void) { return __builtin_cpu_supports("avx2"); }
#else
#define launchFillInputWide 0
#define launchCheckWide 0
static int haveWide(void) { return 0; }
#endif

static void launchCheckReset(void **params) { cp_check_reset(ARG(cp_check_result *, 0)); }

static void launchPoison(void **params)
{
	cp_poison(ARG(void *, 0), ARG(uint64_t, 1), ARG(uint64_t, 2));
}

static void launchCorrupt(void **params)
{
	cp_corrupt(ARG(void *, 0), ARG(uint64_t, 1), ARG(int, 2));
}

static void launchHash(void **params)
{
	cp_hash(ARG(const void *, 0), ARG(uint64_t, 1), ARG(uint64_t, 2), ARG(int, 3), ARG(uint64_t *, 4));
}

static void launchNanScan(void **params)
{
	cp_nan_scan(ARG(const void *, 0), ARG(uint64_t, 1), ARG(uint64_t, 2), ARG(int, 3),
	            ARG(cp_check_result *, 4));
}

struct kernel {
	const char *name;
	int nparams;
	void (*launch)(void **params);
	void (*wide)(void **params); /* null: none */
};

static const struct kernel *findKernel(const char *name)
{
	static const struct kernel table[] = {
	    {"cp_fill_input", 8, launchFillInput, launchFillInputWide},
	    {"cp_check", 9, launchCheck, launchCheckWide},
	    {"cp_check_reset", 1, launchCheckReset, 0},
	    {"cp_poison", 3, launchPoison, 0},
	    {"cp_corrupt", 3, launchCorrupt, 0},
	    {"cp_hash", 5, launchHash, 0},
	    {"cp_nan_scan", 5, launchNanScan, 0},
	    {"cp_busy", 2, cp_host_launch_busy, 0},
	    {"cp_link_copy", 3, cp_host_launch_link_copy, 0},
	    {"cp_link_ping", 7, cp_host_launch_link_ping, 0},
	};
	unsigned i;
	for (i = 0; i < sizeof table / sizeof *table; i++)
		if (strcmp(table[i].name, name) == 0)
			return &table[i];
	return 0;
}

void (*cp_host_kernel(const char *name))(void **params)
{
	const struct kernel *k = findKernel(name);
	return k && k->wide && haveWide() ? k->wide : cp_host_kernel_plain(name);
}

void (*cp_host_kernel_plain(const char *name))(void **params)
{
	const struct kernel *k = findKernel(name);
	return k ? k->launch : 0;
}

int cp_host_kernel_params(const char *name)
{
	const struct kernel *k = findKernel(name);
	return k ? k->nparams : -1;
}

uint64_t cp_input_bits(int dtype, int op, int rank, int nranks, uint64_t seed, uint64_t index)
{
	struct cpv_plan s = cpv_makePlan(dtype, op, rank, nranks, seed);
	return cpv_input(&s, index);
}

uint64_t cp_expected_bits(int dtype, int op, int nranks, uint64_t seed, uint64_t index)
{
	struct cpv_plan s = cpv_makePlan(dtype, op, 0, nranks, seed);
	return op < 0 ? 0 : cpv_expected(&s, index);
}

uint64_t cp_mulsum_scalar(int dtype, int rank)
{
	struct cpv_format f = cpv_formatOf(dtype, 1);
	uint64_t odd = (uint64_t)rank & 1;
	if (f.p == 0)
		return f.bytes == 0 ? 0 : 1 + odd;
	return ((uint64_t)f.bias + odd) << (f.p - 1); /* 2^0 and 2^1 */
}
