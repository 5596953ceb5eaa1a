/* Data generation and checking: one body for the device (verify.cu, clang to
 * PTX) and for the host engine (verify_host.c). Only integer arithmetic is
 * used, so both builds and all devices produce the same bits.
 *
 * The aim. Every input element is a pure function of (seed, rank, index, type,
 * op, ranks), and so is the expected result, at a cost that does not grow with
 * the number of ranks. To this end the result y is drawn first and then
 * divided into shares that combine to exactly y in any order and grouping.
 *
 * Shares. At each index the ranks are renumbered t = (rank - first(index)) mod
 * n. Each t has a hidden random value a(t), and the share of t is
 *
 *     share(t) = a(t) (-) a(t+1 mod n), and t = 0 also carries y,
 *
 * where (-) undoes the operation. Around the circle all a(t) cancel, which
 * leaves y. A lost, doubled or replaced share leaves values of a() behind.
 *
 * Why any order gives the same bits:
 *  - integer sum and prod: arithmetic modulo 2^w is associative and
 *    commutative; for prod all a(t) are odd, hence invertible.
 *  - integer avg: all shares are >= 0 and the total n*c + rest is at most the
 *    type's maximum, so that no partial sum overflows, and 0 <= rest < n makes
 *    the truncated quotient exactly c. rest is 0 (then losing anything shows)
 *    or, room permitting, n-1 (then gaining anything shows). More ranks than
 *    the type's maximum leave c = 0 only: int8 over more than 127 ranks cannot
 *    be averaged visibly by any data.
 *  - float sum: let p be the significand's bits, M = 2^p. Shares are integers
 *    times one power of two 2^k common to all ranks. |a(t) - a(t+1)| <= A and
 *    |y| <= Y with n*A + Y <= M, so any partial sum is an integer of magnitude
 *    <= M times 2^k, and every such number is representable: M*2^k is at most
 *    the largest finite value and 2^k at least the smallest normal one. Where
 *    n > M/2, only t < M/2 take part and the others give +0. An exact zero sum
 *    is +0 in round-to-nearest unless all terms are -0; -0 is never emitted,
 *    so a -0 in the result is wrong and comparison may be bitwise.
 *  - float prod: shares are signs times powers of two; t = 0 alone also has a
 *    random significand; exponents other than 0 occur only at t < 4 and are
 *    bounded by E with 4*E inside the type's normal range. Signs share like
 *    a sum modulo 2.
 *  - mulsum (the sum of scalar * input; the scalar is 1 on even ranks and 2 on
 *    odd ones): the input of an odd rank is half of its share, such that
 *    scalar * input is the share itself, without rounding, whether the library
 *    multiplies in the type or in a wider one. From there on it is a sum.
 *    Integers: 2x is even modulo 2^w, so an odd rank cannot contribute an odd
 *    share. All hidden values are therefore even, a(t) = 2b(t) with b(t)
 *    uniform, and first(index) is an even rank, so that y, which may be odd, is
 *    never on an odd one. Hence an odd rank's input is b(t) - b(t+1), an even
 *    rank's 2(b(t) - b(t+1)) and y if t = 0; 2 * (b(t) - b(t+1)) is a(t) -
 *    a(t+1) modulo 2^w, and the circle cancels for odd n too, since it is over
 *    t, whatever the parity of the ranks. A lost, doubled or replaced share
 *    leaves an even value behind, 0 for one in 2^(w-1); a wrong scalar leaves
 *    the input or half of the share.
 *    Floats: the input is the same integer times 2^(k-1); k starts one higher
 *    than the smallest normal number, so that the input is normal as well, and
 *    2 * input is exact. y may be on any rank.
 *  - max, min: t = 0 has y, the others values strictly on the losing side
 *    (equal only at the end of the range). No NaN, no -0, no subnormals.
 *  - float avg, n a power of two: multiplying by 1/n is exact, so it is the
 *    sum with k lowered by log2 n (k is chosen so that 2^k/n stays normal).
 *  - float avg, other n: only t = 0 and t = 1 are non-zero, both in
 *    [2^(p-1), 2^p - 1] * 2^k. The expected result is V = (x0+x1)/n rounded
 *    once. Let u = 2^-p. Libraries round 1/n, each product (or the sum before
 *    one product) and the last sum. The rounded reciprocal and the rounded
 *    product have relative errors of at most u/(1+u) each, together at most
 *    2u since (1 + u/(1+u))^2 <= 1 + 2u. With V = m*2^e, 1 <= m < 2, 2u*V is m
 *    ulp, less than 2; after the last rounding the two results are less than
 *    3, hence at most 2 steps apart. The tolerance is 2 steps.
 *    Where 1/n is subnormal in the type (e4m3: n > 64) its rounding error has
 *    no such bound. There a result within 2 steps of the one for the rounded
 *    reciprocal is accepted too; e4m3 rounds it to zero for n >= 1024, so that
 *    a zero result must be accepted there.
 *  - source data: any bits but those with an all-ones exponent (no NaN, no
 *    infinity), or all ones for integers.
 *
 * Uniform data is for the opposite purpose: to see in which order a library
 * sums, or whether it always takes the same. Floats have random signs and are
 * uniform over the bit patterns of [2^-3, 1), that is three binades with all
 * significands: signs and exponents differ enough that most partial sums of
 * three and more terms are rounded, and the terms are close enough that
 * rounding does not swallow them. x + y is rounded by at most the smaller of
 * |x| and |y|, for the larger is representable and no nearer, so that one
 * addition gives at most the larger and twice the smaller. By induction any
 * order keeps a sum of n terms below n^(log2 3): 3^16 for CP_MAX_RANKS, finite
 * in float, double and bfloat16; half is safe up to 1024 ranks, e5m2 up to 512,
 * e4m3 up to 32. A product of magnitudes below 1 can only underflow. Integers
 * are source data.
 *
 * Poison is all ones: NaN in every float type at any alignment. No expected
 * result and no source element is all ones, in any type, so an element that
 * was never written is always seen.
 */
#ifndef CP_VERIFY_KERNELS_H
#define CP_VERIFY_KERNELS_H

#include "verify.h"

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "elements are packed into words in little-endian order"
#endif

/* The bound lets any block size launch, at 64 registers a thread. */
#ifdef __CUDA__
#define CPV_FN static inline __attribute__((device, always_inline))
#define CPV_KERNEL extern "C" __attribute__((global, launch_bounds(1024))) void
#define CPV_ROLLED _Pragma("clang loop unroll(disable)")
#define CPV_UNROLLED _Pragma("clang loop unroll(full)")
#else
#define CPV_FN static inline __attribute__((always_inline))
#define CPV_KERNEL static inline __attribute__((always_inline)) void
#define CPV_ROLLED
#define CPV_UNROLLED
#endif

typedef uint16_t __attribute__((may_alias)) cpv_u16;
typedef uint32_t __attribute__((may_alias)) cpv_u32;
typedef uint64_t __attribute__((may_alias)) cpv_u64;
typedef uint32_t cpv_v4 __attribute__((vector_size(16), may_alias));

/* ---- machine ---------------------------------------------------------- */

#ifdef __CUDA__
CPV_FN uint64_t cpv_thread(void)
{
	return (uint64_t)__nvvm_read_ptx_sreg_ctaid_x() * __nvvm_read_ptx_sreg_ntid_x() +
	       __nvvm_read_ptx_sreg_tid_x();
}

CPV_FN uint64_t cpv_threads(void)
{
	return (uint64_t)__nvvm_read_ptx_sreg_nctaid_x() * __nvvm_read_ptx_sreg_ntid_x();
}

CPV_FN uint64_t cpv_mulhi64(uint64_t x, uint64_t y)
{
	return __nvvm_mulhi_ull(x, y);
}

CPV_FN void cpv_add(uint64_t *p, uint64_t v)
{
	__nvvm_atom_add_gen_ll((long long *)p, (long long)v);
}

CPV_FN void cpv_min(uint64_t *p, uint64_t v)
{
	__nvvm_atom_min_gen_ull((unsigned long long *)p, v);
}

CPV_FN void cpv_max(uint64_t *p, uint64_t v)
{
	__nvvm_atom_max_gen_ull((unsigned long long *)p, v);
}

CPV_FN uint64_t cpv_swap(uint64_t *p, uint64_t was, uint64_t v)
{
	return (uint64_t)__nvvm_atom_cas_gen_ll((long long *)p, (long long)was, (long long)v);
}
#else
CPV_FN uint64_t cpv_thread(void) { return 0; }
CPV_FN uint64_t cpv_threads(void) { return 1; }

CPV_FN uint64_t cpv_mulhi64(uint64_t x, uint64_t y)
{
	return (uint64_t)(((unsigned __int128)x * y) >> 64);
}

CPV_FN void cpv_add(uint64_t *p, uint64_t v) { *p += v; }
CPV_FN void cpv_min(uint64_t *p, uint64_t v) { *p = v < *p ? v : *p; }
CPV_FN void cpv_max(uint64_t *p, uint64_t v) { *p = v > *p ? v : *p; }

CPV_FN uint64_t cpv_swap(uint64_t *p, uint64_t was, uint64_t v)
{
	uint64_t old = *p;
	if (old == was)
		*p = v;
	return old;
}
#endif

CPV_FN uint32_t cpv_mulhi32(uint32_t x, uint32_t y)
{
	return (uint32_t)(((uint64_t)x * y) >> 32);
}

/* ---- hashing ---------------------------------------------------------- */

/* A bijection of 32-bit words in which every input bit moves every output bit
 * (the finaliser of MurmurHash3, public domain). 32-bit, because a device
 * multiplies 32-bit words several times faster than 64-bit ones. */
CPV_FN uint32_t cpv_mix(uint32_t x)
{
	x ^= x >> 16;
	x *= 0x85ebca6bu;
	x ^= x >> 13;
	x *= 0xc2b2ae35u;
	x ^= x >> 16;
	return x;
}

/* The same for 64 bits (SplitMix64's step); used once a launch, for keys. */
CPV_FN uint64_t cpv_mix64(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebu;
	x ^= x >> 31;
	return x;
}

/* v if the condition, which is 0 or 1, holds, and else 0. Data is random, so a
 * branch on it is guessed wrong half of the time, at the cost of ten or more
 * multiplications on a CPU; and code with branches is not vectorised. */
CPV_FN uint32_t cpv_when32(int condition, uint32_t v)
{
	return v & -(uint32_t)condition;
}

CPV_FN uint64_t cpv_when64(int condition, uint64_t v)
{
	return v & -(uint64_t)condition;
}

/* Shifts leading zeros out of *v, which is not 0, and returns how many. On the
 * host 32-bit words are done in steps, for want of vector instructions that
 * count zeros or shift each lane by another number. */
CPV_FN int cpv_normalise64(uint64_t *v)
{
	int zeros = __builtin_clzll(*v);
	*v <<= zeros;
	return zeros;
}

CPV_FN int cpv_normalise32(uint32_t *v)
{
#ifdef __CUDA__
	int zeros = __builtin_clz(*v);
	*v <<= zeros;
	return zeros;
#else
	uint32_t x = *v, zeros = 0;
#define CPV_STEP(n) \
	zeros += cpv_when32(x >> (32 - n) == 0, n); \
	x = x >> (32 - n) == 0 ? x << n : x
	CPV_STEP(16);
	CPV_STEP(8);
	CPV_STEP(4);
	CPV_STEP(2);
	CPV_STEP(1);
#undef CPV_STEP
	*v = x;
	return (int)zeros;
#endif
}

/* Inverse of an odd number modulo 2^64 (and so modulo 2^32 and 2^8). 3x^2 is
 * right in 5 bits; each Newton step doubles them: 10, 20, 40, 80. */
CPV_FN uint64_t cpv_inverse64(uint64_t x)
{
	uint64_t v = (3 * x) ^ 2;
	v *= 2 - x * v;
	v *= 2 - x * v;
	v *= 2 - x * v;
	v *= 2 - x * v;
	return v;
}

CPV_FN uint32_t cpv_inverse32(uint32_t x)
{
	uint32_t v = (3 * x) ^ 2;
	v *= 2 - x * v;
	v *= 2 - x * v;
	v *= 2 - x * v;
	return v;
}

/* ---- plan: all that does not depend on the index ----------------------- */

/* How a result is drawn and shared. The first four draw it alike. */
enum cpv_kind {
	CPV_NONE,    /* arguments make no sense */
	CPV_BITS,    /* source data */
	CPV_ISUM,
	CPV_IPROD,
	CPV_IORDER,  /* max, min */
	CPV_IAVG,
	CPV_FSUM,    /* and avg over a power of two */
	CPV_FPROD,
	CPV_FORDER,
	CPV_FPAIR,   /* avg otherwise: two ranks are not zero */
	CPV_FUNIFORM, /* no result is expected */
	CPV_FINITE   /* of a scan: nothing is generated */
};

/* What a float type allows. Exponents are those of value = integer * 2^k. */
struct cpv_format {
	int bytes;
	int p;               /* significand bits with the hidden one, 0: integer */
	int bias;            /* exponent bias; the smallest normal is 2^(1-bias) */
	uint64_t finite;     /* bits of the largest finite value */
	int kMin, kMax;      /* scales of a sum */
	int prodExp;         /* E of a product */
	int pairMin, pairMax; /* scales of an average of two */
};

struct cpv_plan {
	int kind;
	int bytes;
	int p, bias;
	int wantMin;          /* IORDER, FORDER */
	uint32_t key1, key2, key3, key4;
	uint32_t n, rank;
	uint32_t carriers;    /* ranks that may be t = 0 */
	int carrierStep;      /* log2 of the distance between them */
	int doubled;          /* ISUM: 1 where a(t) - a(t+1) is 2(b(t) - b(t+1)) */
	int halved;           /* FSUM: 1 where the input is half of the share */
	uint32_t parts;       /* FSUM: ranks with a share; FPROD: with an exponent */
	int kMin, kDown;      /* smallest scale; log2 of an average's divisor */
	uint32_t kCount;      /* number of scales; FPROD: 2E+1 */
	uint64_t sign;        /* sign bit of floats, and of signed order */
	uint64_t setBits, avoid, flip; /* BITS, ISUM, IPROD, IORDER; avoid: FINITE */
	uint64_t top;         /* IAVG: largest c; FSUM: Y; FORDER: largest key;
	                         FUNIFORM: smallest magnitude */
	uint64_t spread;      /* FSUM: A; IAVG: largest total; FUNIFORM: magnitudes */
	uint32_t recip;       /* FPAIR: 1/n in units of the smallest subnormal */
	int recipExp;         /* that unit is 2^-recipExp; 0: not needed */
};

CPV_FN struct cpv_format cpv_makeFormat(int bytes, int p, int bias, uint64_t finite, int kMin,
                                        int kMax, int prodExp, int pairMin, int pairMax)
{
	struct cpv_format f;
	f.bytes = bytes;
	f.p = p;
	f.bias = bias;
	f.finite = finite;
	f.kMin = kMin;
	f.kMax = kMax;
	f.prodExp = prodExp;
	f.pairMin = pairMin;
	f.pairMax = pairMax;
	return f;
}

/* Limits used: 2^kMin and the least partial product are normal; 2^p * 2^kMax,
 * 2^(4E+1) and a sum of two pairMax values are finite. Wide types use part of
 * their range only, so that products cannot leave it either. */
CPV_FN struct cpv_format cpv_formatOf(int dtype, uint32_t n)
{
	switch (dtype) {
	case CP_DT_INT8:
	case CP_DT_UINT8:
		return cpv_makeFormat(1, 0, 0, 0, 0, 0, 0, 0, 0);
	case CP_DT_INT32:
	case CP_DT_UINT32:
		return cpv_makeFormat(4, 0, 0, 0, 0, 0, 0, 0, 0);
	case CP_DT_INT64:
	case CP_DT_UINT64:
		return cpv_makeFormat(8, 0, 0, 0, 0, 0, 0, 0, 0);
	case CP_DT_HALF:
		return cpv_makeFormat(2, 11, 15, 0x7bff, -14, 4, 3, -8, 3);
	case CP_DT_FLOAT:
		return cpv_makeFormat(4, 24, 127, 0x7f7fffff, -60, 60, 25, -60, 60);
	case CP_DT_DOUBLE:
		return cpv_makeFormat(8, 53, 1023, 0x7fefffffffffffffu, -500, 500, 100, -500, 500);
	case CP_DT_BF16:
		return cpv_makeFormat(2, 8, 127, 0x7f7f, -60, 60, 25, -60, 60);
	case CP_DT_E4M3: /* 448 is 0x7e; with many ranks small values would underflow */
		return cpv_makeFormat(1, 4, 7, 0x7e, -6, 4, 1, n <= 256 ? 0 : 3, 3);
	case CP_DT_E5M2:
		return cpv_makeFormat(1, 3, 15, 0x7b, -14, 12, 3, 0, 7);
	default:
		return cpv_makeFormat(0, 0, 0, 0, 0, 0, 0, 0, 0);
	}
}

CPV_FN void cpv_planInt(struct cpv_plan *s, int dtype, int op)
{
	int isSigned = dtype == CP_DT_INT8 || dtype == CP_DT_INT32 || dtype == CP_DT_INT64;
	uint64_t ones = ~(uint64_t)0 >> (64 - 8 * s->bytes);
	uint64_t largest = isSigned ? ones >> 1 : ones - 1; /* never all ones */

	s->kind = op == CP_OP_SUM || op == CP_OP_MULSUM ? CPV_ISUM
	          : op == CP_OP_PROD                    ? CPV_IPROD
	                                                : CPV_IORDER;
	s->avoid = ones;
	s->flip = 2; /* keeps a product odd */
	s->setBits = op == CP_OP_PROD;
	s->sign = isSigned ? (ones >> 1) + 1 : 0;
	s->top = ones;
	if (op == CP_OP_MULSUM) {
		s->carriers = (s->n + 1) / 2;
		s->carrierStep = 1;
		s->doubled = s->rank % 2 == 0;
	}
	if (op != CP_OP_AVG)
		return;
	s->kind = CPV_IAVG;
	s->spread = largest;
	s->top = largest / s->n;
}

/* Divides the budget M = 2^p into n*A for the shares and Y for the result.
 * 2^room is the largest power of two that a share may be divided by. */
CPV_FN void cpv_planFloatSum(struct cpv_plan *s, const struct cpv_format *f, int room)
{
	uint64_t m = (uint64_t)1 << f->p;
	int lowest = 1 - f->bias + room; /* keeps 2^k / 2^room normal */

	s->kind = CPV_FSUM;
	s->parts = s->n < m / 2 ? s->n : (uint32_t)(m / 2);
	s->spread = s->n == 1 ? 0 : m / 2 / s->parts;
	s->top = m - s->spread * s->parts;
	s->kMin = f->kMin > lowest ? f->kMin : lowest;
	s->kCount = (uint32_t)(f->kMax - s->kMin + 1);
}

CPV_FN void cpv_planPair(struct cpv_plan *s, const struct cpv_format *f)
{
	uint64_t one;

	s->kind = CPV_FPAIR;
	s->kMin = f->pairMin;
	s->kCount = (uint32_t)(f->pairMax - f->pairMin + 1);
	if (f->bias > 15 || s->n <= (uint32_t)1 << (f->bias - 1))
		return; /* 1/n is normal */
	s->recipExp = f->bias + f->p - 2;
	one = (uint64_t)1 << s->recipExp;
	s->recip = (uint32_t)(one / s->n); /* rounded to nearest, ties to even */
	if (2 * (one % s->n) + (s->recip & 1) > s->n)
		s->recip++;
}

CPV_FN void cpv_planFloatAvg(struct cpv_plan *s, const struct cpv_format *f)
{
	int log2n = 31 - __builtin_clz(s->n);
	int powerOfTwo = (s->n & (s->n - 1)) == 0;

	if (!powerOfTwo || log2n > f->bias + f->p - 2) { /* 1/n is not representable */
		cpv_planPair(s, f);
		return;
	}
	cpv_planFloatSum(s, f, log2n);
	s->kDown = log2n;
}

CPV_FN void cpv_planFloat(struct cpv_plan *s, const struct cpv_format *f, int op)
{
	s->p = f->p;
	s->bias = f->bias;
	s->sign = (uint64_t)1 << (8 * f->bytes - 1);
	switch (op) {
	case CP_OP_SUM:
		cpv_planFloatSum(s, f, 0);
		break;
	case CP_OP_MULSUM:
		cpv_planFloatSum(s, f, 1);
		s->halved = s->rank % 2 == 1;
		break;
	case CP_OP_PROD:
		s->kind = CPV_FPROD;
		s->parts = s->n < 4 ? s->n : 4;
		s->kMin = -f->prodExp;
		s->kCount = (uint32_t)(2 * f->prodExp + 1);
		break;
	case CP_OP_AVG:
		cpv_planFloatAvg(s, f);
		break;
	default: /* keys 0..2R stand for -R..R: zero and the normal magnitudes */
		s->kind = CPV_FORDER;
		s->top = 2 * (f->finite - ((uint64_t)1 << (f->p - 1)) + 1);
	}
}

CPV_FN void cpv_planSource(struct cpv_plan *s, const struct cpv_format *f)
{
	uint64_t ones = ~(uint64_t)0 >> (64 - 8 * f->bytes);

	s->kind = CPV_BITS;
	if (f->p == 0) {
		s->avoid = ones;
		s->flip = 2;
		return;
	}
	s->avoid = (ones >> 1) & ~(((uint64_t)1 << (f->p - 1)) - 1); /* the exponent */
	s->flip = (ones >> 2) + 1;                                   /* its top bit */
}

/* Bit patterns of floats grow with their values, so a range of values is one
 * of patterns. */
CPV_FN void cpv_planUniform(struct cpv_plan *s, const struct cpv_format *f)
{
	if (f->p == 0) {
		cpv_planSource(s, f);
		return;
	}
	s->kind = CPV_FUNIFORM;
	s->sign = (uint64_t)1 << (8 * f->bytes - 1);
	s->top = (uint64_t)(f->bias - 3) << (f->p - 1);
	s->spread = (uint64_t)3 << (f->p - 1);
}

CPV_FN struct cpv_plan cpv_makePlan(int dtype, int op, int rank, int nranks, uint64_t seed)
{
	struct cpv_plan s = {0};
	struct cpv_format f = cpv_formatOf(dtype, (uint32_t)nranks);
	uint64_t key = cpv_mix64(seed);

	s.bytes = f.bytes;
	if (f.bytes == 0 || op < CP_OP_UNIFORM || op > CP_OP_MULSUM || rank < 0)
		return s;
	if (op >= 0 && (nranks < 1 || nranks > CP_MAX_RANKS || rank >= nranks))
		return s;
	s.n = (uint32_t)nranks;
	s.rank = (uint32_t)rank;
	s.carriers = s.n;
	s.wantMin = op == CP_OP_MIN;
	if (op < 0) /* ranks have nothing to do with each other */
		key = cpv_mix64(key + (uint64_t)rank + 1);
	if (op == CP_OP_SOURCE) {
		cpv_planSource(&s, &f);
	} else if (op == CP_OP_UNIFORM) {
		cpv_planUniform(&s, &f);
	} else if (f.p == 0) {
		cpv_planInt(&s, dtype, op);
	} else {
		cpv_planFloat(&s, &f, op);
	}
	s.key1 = (uint32_t)key;
	s.key2 = (uint32_t)(key >> 32);
	key = cpv_mix64(key);
	s.key3 = (uint32_t)key;
	s.key4 = (uint32_t)(key >> 32);
	return s;
}

/* Two independent hashes of an index. */
struct cpv_hash {
	uint32_t a, b;
};

CPV_FN struct cpv_hash cpv_hashOf(const struct cpv_plan *s, uint64_t index)
{
	uint32_t lo = (uint32_t)index, hi = (uint32_t)(index >> 32);
	struct cpv_hash h;
	h.a = cpv_mix((lo + hi * 0x9e3779b1u) ^ s->key1);
	h.b = cpv_mix((lo * 0xc2b2ae3du + hi * 0x27d4eb2fu) ^ s->key2);
	return h;
}

/* A third hash; of fields that both sides need. */
CPV_FN uint32_t cpv_third(const struct cpv_plan *s, struct cpv_hash h)
{
	return cpv_mix(h.a ^ s->key4 ^ (h.b * 0x9e3779b1u));
}

/* The rank's number at this index; see "Shares" above. */
CPV_FN uint32_t cpv_renumber(const struct cpv_plan *s, struct cpv_hash h)
{
	uint32_t first = cpv_mulhi32(cpv_mix(h.a + h.b + s->key3), s->carriers) << s->carrierStep;
	return s->rank - first + cpv_when32(s->rank < first, s->n);
}

CPV_FN uint32_t cpv_next(uint32_t t, uint32_t parts)
{
	return cpv_when32(t + 1 < parts, t + 1);
}

/* Exponent of share t of a product, 0 for all but the first few. */
CPV_FN int cpv_prodExp(const struct cpv_plan *s, struct cpv_hash h, uint32_t t)
{
	uint32_t byte = h.b >> (8 * t & 31) & 255;
	return (int)cpv_when32(t < s->parts, (uint32_t)s->kMin + (byte * s->kCount >> 8));
}

/* ---- averages of a pair --------------------------------------------------- */

CPV_FN int cpv_pairScale(const struct cpv_plan *s, struct cpv_hash h)
{
	return s->kMin + (int)cpv_mulhi32(cpv_third(s, h), s->kCount);
}

/* Rounds to nearest, ties to even: q, whose top bit is set and weighs 2^e, plus
 * something smaller than its last bit if more is set. Not finite results do not
 * occur; subnormal ones do for e4m3 with thousands of ranks. */
CPV_FN uint64_t cpv_round(const struct cpv_plan *s, uint64_t q, int more, int e)
{
	int lowest = 1 - s->bias;
	int field = e > lowest ? e : lowest;
	int shift = 64 - s->p + field - e;
	uint64_t kept, rest, half = (uint64_t)1 << 63;

	if (shift > 63)
		return 0;
	kept = q >> shift;
	rest = q << (64 - shift);
	if (rest > half || (rest == half && (more || (kept & 1))))
		kept++; /* a carry goes into the exponent field, as it should */
	return ((uint64_t)(field + s->bias - 1) << (s->p - 1)) + kept;
}

/* sum * 2^k / n, correctly rounded; sum < 2^62, n < 2^32. The quotient's first
 * word has at least 46 bits; the remainder gives the others. */
CPV_FN uint64_t cpv_pairMean(const struct cpv_plan *s, uint64_t sum, int k)
{
	int up = __builtin_clzll(sum) - 1, zeros;
	uint64_t q = (sum << up) / s->n;
	uint64_t r = (sum << up) % s->n;

	zeros = __builtin_clzll(q);
	r <<= zeros;
	return cpv_round(s, q << zeros | r / s->n, r % s->n != 0, 63 - zeros - up + k);
}

/* sum * 2^k times the rounded reciprocal. */
CPV_FN uint64_t cpv_pairScaled(const struct cpv_plan *s, uint64_t sum, int k)
{
	uint64_t v = sum * s->recip;
	int zeros;

	if (v == 0)
		return 0;
	zeros = __builtin_clzll(v);
	return cpv_round(s, v << zeros, 0, 63 - zeros + k - s->recipExp);
}

CPV_FN int cpv_near(uint64_t x, uint64_t y)
{
	return (x > y ? x - y : y - x) <= 2;
}

/* The generators proper, for types of up to 32 bits and of 64 bits. */
#define CPV_BITS_OF_WORD 32
#include "verify_gen.h"
#undef CPV_BITS_OF_WORD
#define CPV_BITS_OF_WORD 64
#include "verify_gen.h"
#undef CPV_BITS_OF_WORD

/* ---- elements, chosen at run time -------------------------------------- */

CPV_FN uint64_t cpv_input(const struct cpv_plan *s, uint64_t index)
{
	if (s->kind == CPV_NONE)
		return 0;
	if (s->bytes == 8)
		return cpv_input64(s, index, s->kind);
	return cpv_input32(s, index, s->kind);
}

CPV_FN uint64_t cpv_expected(const struct cpv_plan *s, uint64_t index)
{
	if (s->kind == CPV_NONE)
		return 0;
	if (s->bytes == 8)
		return cpv_expected64(s, index, s->kind);
	return cpv_expected32(s, index, s->kind);
}

CPV_FN uint64_t cpv_load(const void *base, uint64_t at, int bytes)
{
	switch (bytes) {
	case 1:
		return ((const uint8_t *)base)[at];
	case 2:
		return ((const cpv_u16 *)base)[at];
	case 4:
		return ((const cpv_u32 *)base)[at];
	default:
		return ((const cpv_u64 *)base)[at];
	}
}

CPV_FN void cpv_store(void *base, uint64_t at, int bytes, uint64_t v)
{
	switch (bytes) {
	case 1:
		((uint8_t *)base)[at] = (uint8_t)v;
		break;
	case 2:
		((cpv_u16 *)base)[at] = (uint16_t)v;
		break;
	case 4:
		((cpv_u32 *)base)[at] = (uint32_t)v;
		break;
	default:
		((cpv_u64 *)base)[at] = v;
	}
}

/* Whether got is right; *want is the expected result. */
CPV_FN int cpv_right(const struct cpv_plan *s, uint64_t index, uint64_t got, uint64_t *want)
{
	*want = 0;
	if (s->kind == CPV_FINITE)
		return (got & s->avoid) != s->avoid;
	*want = cpv_expected(s, index);
	if (s->kind != CPV_FPAIR)
		return s->kind != CPV_NONE && got == *want;
	if (cpv_near(got, *want))
		return 1;
	if (s->bytes == 8) /* never has a subnormal reciprocal */
		return 0;
	return cpv_pairRight32(s, index, (uint32_t)got);
}

/* ---- the parts of a buffer --------------------------------------------- */

/* Buffers are aligned to their elements only. The middle is worked on in units
 * of several elements, those left at both ends one by one. */
struct cpv_parts {
	uint64_t head;  /* elements before the first unit */
	uint64_t per;   /* elements of a unit */
	uint64_t units;
	uint64_t ends;  /* elements outside them */
};

CPV_FN struct cpv_parts cpv_splitAt(uint64_t head, uint64_t count, uint64_t per)
{
	struct cpv_parts b;
	b.head = head < count ? head : count;
	b.per = per;
	b.units = (count - b.head) / per;
	b.ends = count - b.units * per;
	return b;
}

/* Into aligned vectors of 16 bytes. */
CPV_FN struct cpv_parts cpv_split(const void *base, uint64_t count, int bytes)
{
	uint64_t head = ((16 - ((uintptr_t)base & 15)) & 15) / (uint64_t)bytes;
	return cpv_splitAt(head, count, 16 / (uint64_t)bytes);
}

/* Into what fill and check do at once. A device's thread takes one vector. The
 * host takes a block of elements, wherever it lies, through loops of a fixed
 * length without branches, which compilers turn into vector instructions. */
#ifdef __CUDA__
#define cpv_splitWork cpv_split
#else
#define CPV_BLOCK 64

CPV_FN struct cpv_parts cpv_splitWork(const void *base, uint64_t count, int bytes)
{
	(void)base, (void)bytes;
	return cpv_splitAt(0, count, CPV_BLOCK);
}
#endif

/* Position of the e-th element outside the units. */
CPV_FN uint64_t cpv_endAt(const struct cpv_parts *b, uint64_t e)
{
	return e < b->head ? e : e + b->units * b->per;
}

CPV_FN char *cpv_middle(const void *base, const struct cpv_parts *b, int bytes)
{
	return (char *)(uintptr_t)base + b->head * (uint64_t)bytes;
}

/* ---- fill --------------------------------------------------------------- */

/* One unit of inputs, the first of them index's, to unit u of the middle. wide
 * says whether elements are of 64 bits; the narrower widths share their code,
 * since on devices its size counts for more than speed here. */
#ifdef __CUDA__
CPV_FN cpv_v4 cpv_fromPair(uint64_t lo, uint64_t hi)
{
	cpv_v4 v = {(uint32_t)lo, (uint32_t)(lo >> 32), (uint32_t)hi, (uint32_t)(hi >> 32)};
	return v;
}

/* The newest element enters at the top while the others move down. */
CPV_FN void cpv_fillUnit(const struct cpv_plan *s, char *mid, uint64_t u, uint64_t index, int kind,
                         int wide)
{
	int bits = 8 * s->bytes, e;
	uint64_t lo = 0, hi = 0;
	if (wide) {
		lo = cpv_input64(s, index, kind);
		hi = cpv_input64(s, index + 1, kind);
		((cpv_v4 *)mid)[u] = cpv_fromPair(lo, hi);
		return;
	}
	CPV_ROLLED
	for (e = 0; e < 128; e += bits) {
		lo = lo >> bits | hi << (64 - bits);
		hi = hi >> bits | (uint64_t)cpv_input32(s, index, kind) << (64 - bits);
		index++;
	}
	((cpv_v4 *)mid)[u] = cpv_fromPair(lo, hi);
}
#else
CPV_FN void cpv_fillUnit(const struct cpv_plan *s, char *mid, uint64_t u, uint64_t index, int kind,
                         int wide)
{
	void *to = mid + u * CPV_BLOCK * (uint64_t)s->bytes;
	uint32_t block[CPV_BLOCK];
	int e;
	if (wide) {
		for (e = 0; e < CPV_BLOCK; e++)
			((cpv_u64 *)to)[e] = cpv_input64(s, index + (uint64_t)e, kind);
		return;
	}
	for (e = 0; e < CPV_BLOCK; e++)
		block[e] = cpv_input32(s, index + (uint64_t)e, kind);
	if (s->bytes == 1)
		for (e = 0; e < CPV_BLOCK; e++)
			((uint8_t *)to)[e] = (uint8_t)block[e];
	else if (s->bytes == 2)
		for (e = 0; e < CPV_BLOCK; e++)
			((cpv_u16 *)to)[e] = (uint16_t)block[e];
	else
		for (e = 0; e < CPV_BLOCK; e++)
			((cpv_u32 *)to)[e] = block[e];
}
#endif

CPV_FN void cpv_fillLoop(const struct cpv_plan *s, char *mid, const struct cpv_parts *b,
                         uint64_t index, int kind, int wide)
{
	uint64_t u;
	CPV_ROLLED
	for (u = cpv_thread(); u < b->units; u += cpv_threads())
		cpv_fillUnit(s, mid, u, index + u * b->per, kind, wide);
}

CPV_KERNEL cp_fill_input(void *dst, uint64_t count, uint64_t firstIndex, int dtype, int op, int rank,
                         int nranks, uint64_t seed)
{
	struct cpv_plan s = cpv_makePlan(dtype, op, rank, nranks, seed);
	struct cpv_parts b;
	uint64_t index, e;
	char *mid;

	if (s.kind == CPV_NONE)
		return;
	b = cpv_splitWork(dst, count, s.bytes);
	mid = cpv_middle(dst, &b, s.bytes);
	index = firstIndex + b.head;
#define CPV_FILL(kind) \
	do { \
		if (s.bytes == 8) \
			cpv_fillLoop(&s, mid, &b, index, kind, 1); \
		else \
			cpv_fillLoop(&s, mid, &b, index, kind, 0); \
	} while (0)
	switch (s.kind) { /* outside the loops, which then do not branch on it */
	case CPV_BITS: CPV_FILL(CPV_BITS); break;
	case CPV_ISUM: CPV_FILL(CPV_ISUM); break;
	case CPV_IPROD: CPV_FILL(CPV_IPROD); break;
	case CPV_IORDER: CPV_FILL(CPV_IORDER); break;
	case CPV_IAVG: CPV_FILL(CPV_IAVG); break;
	case CPV_FSUM: CPV_FILL(CPV_FSUM); break;
	case CPV_FPROD: CPV_FILL(CPV_FPROD); break;
	case CPV_FORDER: CPV_FILL(CPV_FORDER); break;
	case CPV_FUNIFORM: CPV_FILL(CPV_FUNIFORM); break;
	default: CPV_FILL(CPV_FPAIR); break;
	}
#undef CPV_FILL
	CPV_ROLLED
	for (e = cpv_thread(); e < b.ends; e += cpv_threads()) {
		uint64_t at = cpv_endAt(&b, e);
		cpv_store(dst, at, s.bytes, cpv_input(&s, firstIndex + at));
	}
}

/* ---- check -------------------------------------------------------------- */

/* Takes the next free sample slot; which of several wrong elements get one is
 * a race on a device. */
CPV_FN void cpv_sample(cp_check_result *res, uint64_t index, uint64_t got, uint64_t expected)
{
	uint64_t n = *(volatile uint64_t *)&res->nSample;
	while (n < CP_CHECK_SAMPLES) {
		uint64_t old = cpv_swap(&res->nSample, n, n + 1);
		if (old == n) {
			res->sample[n].index = index;
			res->sample[n].got = got;
			res->sample[n].expected = expected;
			return;
		}
		n = old;
	}
}

/* Judges n elements from position at exactly, and reports. Reached for the ends
 * of a buffer and for units in which the fast loop saw a difference. */
CPV_FN void cpv_checkFew(const struct cpv_plan *s, const void *got, uint64_t at, uint64_t n,
                         uint64_t firstIndex, cp_check_result *res)
{
	uint64_t wrong = 0, first = ~(uint64_t)0, last = 0, e;

	CPV_ROLLED
	for (e = at; e < at + n; e++) {
		uint64_t i = firstIndex + e;
		uint64_t g = cpv_load(got, e, s->bytes), want;
		if (cpv_right(s, i, g, &want))
			continue;
		wrong++;
		first = i < first ? i : first;
		last = i > last ? i : last;
		cpv_sample(res, i, g, want);
	}
	if (wrong == 0)
		return;
	cpv_add(&res->wrong, wrong);
	if (first < *(volatile uint64_t *)&res->firstIndex)
		cpv_min(&res->firstIndex, first);
	if (last > *(volatile uint64_t *)&res->lastIndex)
		cpv_max(&res->lastIndex, last);
}

/* The same for unit u, or, past the last, for an element at the ends. */
CPV_FN void cpv_checkPart(const struct cpv_plan *s, const void *got, const struct cpv_parts *b,
                          uint64_t u, uint64_t firstIndex, cp_check_result *res)
{
	int isUnit = u < b->units;
	cpv_checkFew(s, got, isUnit ? b->head + u * b->per : cpv_endAt(b, u - b->units),
	             isUnit ? b->per : 1, firstIndex, res);
}

/* Non-zero if an element is wrong; got is zero-extended. */
CPV_FN uint32_t cpv_differs32(const struct cpv_plan *s, uint64_t index, uint32_t got, int kind)
{
	if (kind == CPV_FPAIR)
		return !cpv_pairRight32(s, index, got);
	return got ^ cpv_expected32(s, index, kind);
}

CPV_FN uint32_t cpv_differs64(const struct cpv_plan *s, uint64_t index, uint64_t got, int kind)
{
	if (kind == CPV_FPAIR)
		return !cpv_pairRight64(s, index, got);
	return got != cpv_expected64(s, index, kind);
}

/* Non-zero if an element of unit u of the middle, the first of them index's, is
 * wrong. On the device bytes is a constant too. */
#ifdef __CUDA__
CPV_FN uint32_t cpv_wordDiffers(const struct cpv_plan *s, uint64_t index, uint32_t got, int kind,
                                int bytes)
{
	uint32_t bad = 0, mask = 0xffffffffu >> (32 - 8 * bytes);
	int e;
	CPV_UNROLLED
	for (e = 0; e < 4 / bytes; e++)
		bad |= cpv_differs32(s, index + (uint64_t)e, got >> (8 * bytes * e) & mask, kind);
	return bad;
}

/* Four copies of the element's code at most: enough independent work for a
 * thread, and code that is small enough to compile at load time. */
CPV_FN uint32_t cpv_unitDiffers(const struct cpv_plan *s, const char *mid, uint64_t u, uint64_t i,
                                int kind, int bytes)
{
	cpv_v4 g = ((const cpv_v4 *)mid)[u];
	uint64_t lo = (uint64_t)g[1] << 32 | g[0], hi = (uint64_t)g[3] << 32 | g[2];
	uint32_t bad = 0;
	int w;
	if (bytes == 8)
		return cpv_differs64(s, i, lo, kind) | cpv_differs64(s, i + 1, hi, kind);
	if (bytes == 4 && kind != CPV_FPAIR) {
		CPV_UNROLLED
		for (w = 0; w < 4; w++)
			bad |= cpv_differs32(s, i + (uint64_t)w, g[w], kind);
		return bad;
	}
	CPV_ROLLED
	for (w = 0; w < 4; w++) {
		bad |= cpv_wordDiffers(s, i + (uint64_t)(w * (4 / bytes)), (uint32_t)lo, kind, bytes);
		lo = lo >> 32 | hi << 32;
		hi >>= 32;
	}
	return bad;
}

#else
CPV_FN uint32_t cpv_unitDiffers(const struct cpv_plan *s, const char *mid, uint64_t u, uint64_t i,
                                int kind, int bytes)
{
	const void *from = mid + u * CPV_BLOCK * (uint64_t)bytes;
	uint32_t block[CPV_BLOCK], bad = 0;
	int e;
	if (bytes == 8) {
		for (e = 0; e < CPV_BLOCK; e++)
			bad |= cpv_differs64(s, i + (uint64_t)e, ((const cpv_u64 *)from)[e], kind);
		return bad;
	}
	if (bytes == 1)
		for (e = 0; e < CPV_BLOCK; e++)
			block[e] = ((const uint8_t *)from)[e];
	else if (bytes == 2)
		for (e = 0; e < CPV_BLOCK; e++)
			block[e] = ((const cpv_u16 *)from)[e];
	else
		for (e = 0; e < CPV_BLOCK; e++)
			block[e] = ((const cpv_u32 *)from)[e];
	for (e = 0; e < CPV_BLOCK; e++)
		bad |= cpv_differs32(s, i + (uint64_t)e, block[e], kind);
	return bad;
}
#endif

/* Advances this thread's unit number u to the first unit that needs a closer
 * look, or past the last. */
CPV_FN uint64_t cpv_scanLoop(const struct cpv_plan *s, const char *mid, const struct cpv_parts *b,
                             uint64_t u, uint64_t index, int kind, int bytes)
{
	CPV_ROLLED
	for (; u < b->units; u += cpv_threads())
		if (cpv_unitDiffers(s, mid, u, index + u * b->per, kind, bytes))
			break;
	return u;
}

/* One loop a kind and width: a check should cost little more than reading the
 * buffer. Integers have no 16-bit type; source data has every width. */
#define CPV_BY_INT_WIDTH(bytes, call, kind) \
	do { \
		if ((bytes) == 1) \
			call(kind, 1); \
		else if ((bytes) == 4) \
			call(kind, 4); \
		else \
			call(kind, 8); \
	} while (0)

#define CPV_BY_WIDTH(bytes, call, kind) \
	do { \
		if ((bytes) == 2) \
			call(kind, 2); \
		else \
			CPV_BY_INT_WIDTH(bytes, call, kind); \
	} while (0)

#ifdef __CUDA__
#define CPV_SCAN_INTS CPV_BY_INT_WIDTH
#define CPV_SCAN_ALL CPV_BY_WIDTH
#else /* where narrow elements are widened first */
#define CPV_SCAN_INTS(bytes, call, kind) \
	do { \
		if ((bytes) == 8) \
			call(kind, 8); \
		else \
			call(kind, bytes); \
	} while (0)
#define CPV_SCAN_ALL CPV_SCAN_INTS
#endif

CPV_FN uint64_t cpv_scan(const struct cpv_plan *s, const char *mid, const struct cpv_parts *b,
                         uint64_t u, uint64_t index)
{
#define CPV_SCAN(kind, bytes) u = cpv_scanLoop(s, mid, b, u, index, kind, bytes)
	switch (s->kind) {
	case CPV_BITS:
	case CPV_ISUM:
	case CPV_IPROD:
	case CPV_IORDER: CPV_SCAN_ALL(s->bytes, CPV_SCAN, CPV_BITS); break;
	case CPV_IAVG: CPV_SCAN_INTS(s->bytes, CPV_SCAN, CPV_IAVG); break;
	case CPV_FSUM: CPV_SCAN_ALL(s->bytes, CPV_SCAN, CPV_FSUM); break;
	case CPV_FPROD: CPV_SCAN_ALL(s->bytes, CPV_SCAN, CPV_FPROD); break;
	case CPV_FORDER: CPV_SCAN_ALL(s->bytes, CPV_SCAN, CPV_FORDER); break;
	default: CPV_SCAN_ALL(s->bytes, CPV_SCAN, CPV_FPAIR); break;
	}
#undef CPV_SCAN
	return u;
}

/* The exact code is reached from one place only, outside the fast loops, and is
 * not a call: a call would take half of the registers from those loops. The
 * elements at the ends are numbered on from the units. */
CPV_KERNEL cp_check(const void *got, uint64_t count, uint64_t firstIndex, int dtype, int op,
                    int source, int nranks, uint64_t seed, cp_check_result *res)
{
	/* A reduction has no source: whatever the caller passed, rank 0 exists. */
	int rank = op == CP_OP_SOURCE ? source : 0;
	struct cpv_plan s = cpv_makePlan(dtype, op, rank, nranks, seed);
	struct cpv_parts b;
	uint64_t u = cpv_thread();

	if (s.kind == CPV_NONE || op == CP_OP_UNIFORM) { /* what cannot be checked is not right */
		if (u == 0)
			cpv_add(&res->wrong, count);
		return;
	}
	b = cpv_splitWork(got, count, s.bytes);
	CPV_ROLLED
	for (;; u += cpv_threads()) {
		u = cpv_scan(&s, cpv_middle(got, &b, s.bytes), &b, u, firstIndex + b.head);
		if (u >= b.units + b.ends)
			return;
		cpv_checkPart(&s, got, &b, u, firstIndex, res);
	}
}

CPV_KERNEL cp_check_reset(cp_check_result *res)
{
	int e;
	if (cpv_thread() != 0)
		return;
	res->wrong = 0;
	res->firstIndex = ~(uint64_t)0;
	res->lastIndex = 0;
	res->nSample = 0;
	for (e = 0; e < CP_CHECK_SAMPLES; e++) {
		res->sample[e].index = 0;
		res->sample[e].got = 0;
		res->sample[e].expected = 0;
	}
}

/* ---- scan for values that are not finite --------------------------------- */

/* A lane's worth of bits in every lane of a word. */
CPV_FN uint64_t cpv_repeat(uint64_t lane, int bytes)
{
	uint64_t all = ~(uint64_t)0;
	return lane * (all / (all >> (64 - 8 * bytes)));
}

/* Whether a word has an element with all bits of mask set; mask is repeated and
 * has no lane's top bit, and low is all bits but those. The set bits are turned
 * to zeros, and a lane that is not zero then carries into its top bit, but never
 * beyond it. */
CPV_FN int cpv_hasAll(uint64_t word, uint64_t mask, uint64_t low)
{
	return ((((word & mask) ^ mask) + low) | low) != ~(uint64_t)0;
}

/* Counts the elements that are NaN or infinite; integers are neither. A float is
 * one if its exponent is all ones; e4m3 has no infinity, and NaN with all other
 * bits set too. */
CPV_KERNEL cp_nan_scan(const void *p, uint64_t count, uint64_t first, int dtype, cp_check_result *res)
{
	struct cpv_format f = cpv_formatOf(dtype, 1);
	struct cpv_plan s = {0};
	struct cpv_parts b;
	uint64_t mask, low, u = cpv_thread();

	if (f.bytes == 0) { /* as in cp_check */
		if (u == 0)
			cpv_add(&res->wrong, count);
		return;
	}
	if (f.p == 0)
		return;
	low = ~(uint64_t)0 >> (65 - 8 * f.bytes);
	s.kind = CPV_FINITE;
	s.bytes = f.bytes;
	s.avoid = dtype == CP_DT_E4M3 ? low : low & ~(((uint64_t)1 << (f.p - 1)) - 1);
	mask = cpv_repeat(s.avoid, f.bytes);
	low = cpv_repeat(low, f.bytes);
	b = cpv_split(p, count, f.bytes);
	CPV_ROLLED
	for (; u < b.units + b.ends; u += cpv_threads()) {
		if (u < b.units) {
			cpv_v4 g = ((const cpv_v4 *)cpv_middle(p, &b, f.bytes))[u];
			if (!cpv_hasAll((uint64_t)g[1] << 32 | g[0], mask, low) &&
			    !cpv_hasAll((uint64_t)g[3] << 32 | g[2], mask, low))
				continue;
		}
		cpv_checkPart(&s, p, &b, u, first, res);
	}
}

/* ---- hash of a buffer ----------------------------------------------------- */

/* Of an element and its place. The product is another one for every index, and
 * mixing is a bijection, so that a changed element always changes its term;
 * exchanged, moved and several changed elements change the sum of terms unless
 * unrelated 64-bit numbers happen to cancel. */
CPV_FN uint64_t cpv_term(uint64_t index, uint64_t bits)
{
	return cpv_mix64(index * 0xd1b54a32d192ed03u + bits);
}

CPV_FN uint64_t cpv_vectorHash(cpv_v4 g, uint64_t index, int bytes)
{
	uint64_t word = (uint64_t)g[1] << 32 | g[0], sum = 0;
	uint64_t mask = ~(uint64_t)0 >> (64 - 8 * bytes);
	int w, e;
	CPV_ROLLED
	for (w = 0; w < 2; w++) {
		CPV_UNROLLED
		for (e = 0; e < 8 / bytes; e++)
			sum += cpv_term(index++, word >> (8 * bytes * e) & mask);
		word = (uint64_t)g[3] << 32 | g[2];
	}
	return sum;
}

CPV_FN uint64_t cpv_hashLoop(const cpv_v4 *mid, uint64_t nVec, uint64_t index, int bytes)
{
	uint64_t per = 16 / (uint64_t)bytes, sum = 0, v;
	CPV_ROLLED
	for (v = cpv_thread(); v < nVec; v += cpv_threads())
		sum += cpv_vectorHash(mid[v], index + v * per, bytes);
	return sum;
}

/* Adds the buffer's hash to *out: a sum, so neither the order of elements nor
 * how a buffer is divided among launches matters. It depends on the elements'
 * bits, width and indices only, not on the address. */
CPV_KERNEL cp_hash(const void *p, uint64_t count, uint64_t first, int dtype, uint64_t *out)
{
	int bytes = cpv_formatOf(dtype, 1).bytes;
	struct cpv_parts b;
	uint64_t sum = 0, e;
	const cpv_v4 *mid;

	if (bytes == 0)
		return;
	b = cpv_split(p, count, bytes);
	mid = (const cpv_v4 *)cpv_middle(p, &b, bytes);
#define CPV_HASH(kind, bytes) sum = cpv_hashLoop(mid, b.units, first + b.head, bytes)
	CPV_BY_WIDTH(bytes, CPV_HASH, CPV_BITS);
#undef CPV_HASH
	CPV_ROLLED
	for (e = cpv_thread(); e < b.ends; e += cpv_threads()) {
		uint64_t at = cpv_endAt(&b, e);
		sum += cpv_term(first + at, cpv_load(p, at, bytes));
	}
	if (sum != 0)
		cpv_add(out, sum);
}

/* ---- poison and planted faults ------------------------------------------ */

/* The pattern does not depend on the seed, which is here because all launches
 * carry one: all ones is the only byte that is NaN in every float type at any
 * alignment, and the generators avoid it. */
CPV_KERNEL cp_poison(void *dst, uint64_t bytes, uint64_t seed)
{
	struct cpv_parts b = cpv_split(dst, bytes, 1);
	cpv_v4 *mid = (cpv_v4 *)cpv_middle(dst, &b, 1);
	cpv_v4 ones = {0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu};
	uint64_t v, e;

	(void)seed;
	CPV_ROLLED
	for (v = cpv_thread(); v < b.units; v += cpv_threads())
		mid[v] = ones;
	CPV_ROLLED
	for (e = cpv_thread(); e < b.ends; e += cpv_threads())
		((uint8_t *)dst)[cpv_endAt(&b, e)] = 0xff;
}

/* Flips the bit below the top one: a float's largest exponent bit, so that the
 * change is beyond any tolerance. */
CPV_KERNEL cp_corrupt(void *buf, uint64_t index, int dtype)
{
	int bytes = cpv_formatOf(dtype, 1).bytes;
	if (cpv_thread() != 0 || bytes == 0)
		return;
	cpv_store(buf, index, bytes, cpv_load(buf, index, bytes) ^ (uint64_t)1 << (8 * bytes - 2));
}

#endif
