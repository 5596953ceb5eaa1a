/* Public face of the data generator and checker: see verify_kernels.h for the
 * scheme and its proofs. Included by C hosts and by the device build. */
#ifndef CP_VERIFY_H
#define CP_VERIFY_H

#ifdef __CUDA__
/* The device build uses no system header, so that it needs only clang. */
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINTPTR_TYPE__ uintptr_t;
#else
#include <stdint.h>
#endif

/* Element types, numbered as in ncclDataType_t. */
enum {
	CP_DT_INT8 = 0,
	CP_DT_UINT8 = 1,
	CP_DT_INT32 = 2,
	CP_DT_UINT32 = 3,
	CP_DT_INT64 = 4,
	CP_DT_UINT64 = 5,
	CP_DT_HALF = 6,
	CP_DT_FLOAT = 7,
	CP_DT_DOUBLE = 8,
	CP_DT_BF16 = 9,
	CP_DT_E4M3 = 10,
	CP_DT_E5M2 = 11
};

/* Operations, numbered as in ncclRedOp_t. CP_OP_SOURCE is data of one rank
 * that is only moved, never combined. CP_OP_UNIFORM is input for any reduction
 * whose results are only compared with each other: floating-point sums of it
 * depend on their order, so it has no expected result and cp_check refuses it.
 * CP_OP_MULSUM stands for an operation made by ncclRedOpCreatePreMulSum: the
 * sum of the ranks' inputs, each first multiplied by the rank's own scalar,
 * cp_mulsum_scalar. NCCL numbers those operations itself, from 5 on. */
enum {
	CP_OP_UNIFORM = -2,
	CP_OP_SOURCE = -1,
	CP_OP_SUM = 0,
	CP_OP_PROD = 1,
	CP_OP_MAX = 2,
	CP_OP_MIN = 3,
	CP_OP_AVG = 4,
	CP_OP_MULSUM = 5
};

/* More ranks than this are refused: nothing is filled, and a check counts
 * every element as wrong. */
#define CP_MAX_RANKS 65536

#define CP_CHECK_SAMPLES 8

/* What cp_check or cp_nan_scan found. Several may add to one result; it must be
 * reset before the first, by cp_check_reset, or by zeroing it and setting firstIndex
 * to UINT64_MAX. Indices count elements in the generator's space: the check's
 * firstIndex plus the position in its buffer. Bit patterns are zero-extended;
 * a scan expects 0.
 * firstIndex and lastIndex mean nothing while wrong is 0. */
typedef struct cp_check_result {
	uint64_t wrong;      /* elements that differ */
	uint64_t firstIndex; /* smallest index of them */
	uint64_t lastIndex;  /* largest index of them */
	uint64_t nSample;    /* entries of sample in use, at most CP_CHECK_SAMPLES */
	struct {
		uint64_t index, got, expected;
	} sample[CP_CHECK_SAMPLES];
} cp_check_result;

#ifndef __CUDA__
/* Host build of a kernel by its device name (cp_fill_input, cp_check,
 * cp_check_reset, cp_poison, cp_corrupt, cp_hash, cp_nan_scan, cp_busy), or null. params points to the
 * arguments as cuLaunchKernel's kernelParams does; the call does all the work
 * in the calling thread. */
void (*cp_host_kernel(const char *name))(void **params);

/* The same as built for every CPU; for the test that compares the two. */
void (*cp_host_kernel_plain(const char *name))(void **params);

/* How many parameters that kernel has, -1 if there is none of that name. */
int cp_host_kernel_params(const char *name);

/* One element of a rank's input (op CP_OP_SOURCE and CP_OP_UNIFORM: of its
 * data), zero-extended. */
uint64_t cp_input_bits(int dtype, int op, int rank, int nranks, uint64_t seed, uint64_t index);

/* One element of the reduction's expected result, zero-extended. For
 * CP_OP_SOURCE use cp_input_bits. */
uint64_t cp_expected_bits(int dtype, int op, int nranks, uint64_t seed, uint64_t index);

/* The scalar that CP_OP_MULSUM multiplies a rank's input by, as bits of the
 * type, zero-extended: 1 on even ranks, 2 on odd ones. 0 for no such type. */
uint64_t cp_mulsum_scalar(int dtype, int rank);
#endif

#endif
