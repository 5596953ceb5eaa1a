/* Host build of the kernels, for the host engine and for diagnosis. */
#include "verify_kernels.h"

#include <string.h>

/* Argument i of a launch, as its type. */
#define ARG(type, i) (*(type *)params[i])

static void launchFillInput(void **params)
{
	cp_fill_input(ARG(void *, 0), ARG(uint64_t, 1), ARG(uint64_t, 2), ARG(int, 3), ARG(int, 4),
	              ARG(int, 5), ARG(int, 6), ARG(uint64_t, 7));
}

static void launchCheck(void **params)
{
	cp_check(ARG(const void *, 0), ARG(uint64_t, 1), ARG(uint64_t, 2), ARG(int, 3), ARG(int, 4),
	         ARG(int, 5), ARG(int, 6), ARG(uint64_t, 7), ARG(cp_check_result *, 8));
}

static void launchCheckReset(void **params) { cp_check_reset(ARG(cp_check_result *, 0)); }

static void launchPoison(void **params)
{
	cp_poison(ARG(void *, 0), ARG(uint64_t, 1), ARG(uint64_t, 2));
}

static void launchCorrupt(void **params)
{
	cp_corrupt(ARG(void *, 0), ARG(uint64_t, 1), ARG(int, 2));
}

struct kernel {
	const char *name;
	int nparams;
	void (*launch)(void **params);
};

static const struct kernel *findKernel(const char *name)
{
	static const struct kernel table[] = {
	    {"cp_fill_input", 8, launchFillInput}, {"cp_check", 9, launchCheck},
	    {"cp_check_reset", 1, launchCheckReset}, {"cp_poison", 3, launchPoison},
	    {"cp_corrupt", 3, launchCorrupt},
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
	return op == CP_OP_SOURCE ? 0 : cpv_expected(&s, index);
}
