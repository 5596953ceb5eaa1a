// Element arithmetic of the host engine: the twelve NCCL data types.
//
// Integers wrap around. Half, bfloat16 and the two 8-bit floats are widened to float, combined, and rounded back to nearest even at
// every step, as NCCL's ring does; the 8-bit floats saturate at their largest finite value. min and max prefer a number to a NaN.
#include <string.h>

#include "host.h"

// The default -O2 of GCC 12 leaves loops of unknown length alone, and fear of floating-point traps keeps it from vectorising a choice
// between two values. Set for the whole file, because functions of unlike options are not inlined into each other.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3", "no-trapping-math")
#define HOST_IVDEP _Pragma("GCC ivdep")
#else
#define HOST_IVDEP
#endif

size_t cp_host_type_size(int dtype) {
  static const unsigned char size[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return dtype >= 0 && dtype < (int)sizeof size ? size[dtype] : 0;
}

bool cp_host_type_is_integer(int dtype) { return dtype >= CP_INT8 && dtype <= CP_UINT64; }

// ---- narrow floats ----

static inline float host_bits(uint32_t u) {
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}

static inline uint32_t host_unbits(float f) {
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  return u;
}

// Exponent and mantissa move into place; the exponent is rebiased; infinity and NaN keep an all-ones exponent; a subnormal is made
// normal by subtracting the implied one.
static inline float host_from_half(uint16_t h) {
  uint32_t o = (uint32_t)(h & 0x7fff) << 13, e = o & 0x0f800000u;
  o += 0x38000000u;
  o += e == 0x0f800000u ? 0x38000000u : 0;
  float small = host_bits(o + 0x00800000u) - host_bits(0x38800000u);
  uint32_t u = e == 0 ? host_unbits(small) : o;
  return host_bits(u | (uint32_t)(h & 0x8000) << 16);
}

static inline uint16_t host_to_half(float f) {
  uint32_t u = host_unbits(f), sign = u & 0x80000000u;
  u ^= sign;
  uint32_t special = u > 0x7f800000u ? 0x7e00u : 0x7c00u;
  // Subnormal results: adding 0.5 lets the FPU round at the right bit.
  uint32_t small = host_unbits(host_bits(u < 0x38800000u ? u : 0) + 0.5f) - 0x3f000000u;
  uint32_t normal = (u - 0x38000000u + 0xfffu + ((u >> 13) & 1)) >> 13;
  uint32_t o = u >= 0x47800000u ? special : u < 0x38800000u ? small : normal;
  return (uint16_t)(o | sign >> 16);
}

static inline float host_from_bf16(uint16_t b) { return host_bits((uint32_t)b << 16); }

static inline uint16_t host_to_bf16(float f) {
  uint32_t u = host_unbits(f);
  uint32_t r = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
  return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16 | 0x40u) : r);
}

// An 8-bit float with m mantissa bits and the given bias, without its sign.
static inline float host_from_fp8(uint8_t v, int m, int bias, bool nan, bool inf) {
  uint32_t sign = (uint32_t)(v & 0x80) << 24, e = (v & 0x7fu) >> m, f = v & ((1u << m) - 1);
  if (nan) return host_bits(sign | 0x7fc00000u);
  if (inf) return host_bits(sign | 0x7f800000u);
  if (e != 0) return host_bits(sign | (e + 127u - (uint32_t)bias) << 23 | f << (23 - m));
  float unit = host_bits((uint32_t)(127 + 1 - bias - m) << 23); // one unit of a subnormal
  float x = (float)f * unit;
  return sign ? -x : x;
}

// max is the code of the largest finite value.
static inline uint8_t host_to_fp8(float f, int m, int bias, uint8_t max, uint8_t nan) {
  uint32_t u = host_unbits(f), sign = u >> 24 & 0x80u;
  u &= 0x7fffffffu;
  if (u > 0x7f800000u) return (uint8_t)(sign | nan);
  uint32_t least = (uint32_t)(128 - bias) << 23, o; // smallest normal
  if (u >= 0x47800000u) return (uint8_t)(sign | max);
  if (u < least) {
    // Adding a power of two whose last mantissa bit is one subnormal unit lets the FPU round.
    float magic = host_bits((uint32_t)(127 + 1 - bias - m + 23) << 23);
    o = host_unbits(host_bits(u) + magic) - host_unbits(magic);
  } else {
    int s = 23 - m;
    o = (u - ((uint32_t)(127 - bias) << 23) + (1u << (s - 1)) - 1 + ((u >> s) & 1)) >> s;
  }
  return (uint8_t)(sign | (o > max ? max : o));
}

static inline float host_from_e4m3(uint8_t v) { return host_from_fp8(v, 3, 7, (v & 0x7f) == 0x7f, false); }
static inline uint8_t host_to_e4m3(float f) { return host_to_fp8(f, 3, 7, 0x7e, 0x7f); }
static inline float host_from_e5m2(uint8_t v) { return host_from_fp8(v, 2, 15, (v & 0x7f) > 0x7c, (v & 0x7f) == 0x7c); }
static inline uint8_t host_to_e5m2(float f) { return host_to_fp8(f, 2, 15, 0x7b, 0x7f); }

// ---- loops ----

#define HOST_SAME(x) (x)

// dst may be a or b: element i depends on elements i only, which HOST_IVDEP tells the compiler.
#define HOST_LOOP(name, T, LOAD, STORE, EXPR) \
  static void name(void *dst, const void *a, const void *b, size_t n) { \
    T *o = dst; \
    const T *p = a, *q = b; \
    HOST_IVDEP for (size_t i = 0; i < n; i++) { \
      __auto_type x = LOAD(p[i]); \
      __auto_type y = LOAD(q[i]); \
      o[i] = (T)STORE(EXPR); \
    } \
  }

#define HOST_SCALE(name, T, LOAD, STORE) \
  static void name(void *dst, const void *src, size_t n, const void *scalar) { \
    T *o = dst, raw; \
    const T *p = src; \
    memcpy(&raw, scalar, sizeof raw); \
    __auto_type k = LOAD(raw); \
    HOST_IVDEP for (size_t i = 0; i < n; i++) o[i] = (T)STORE(LOAD(p[i]) * k); \
  }

#define HOST_MINMAX(tag, T) \
  HOST_LOOP(host_max_##tag, T, HOST_SAME, HOST_SAME, y > x ? y : x) \
  HOST_LOOP(host_min_##tag, T, HOST_SAME, HOST_SAME, y < x ? y : x)

// Sums and products of signed integers are done unsigned, because signed overflow is undefined.
#define HOST_RING(tag, T) \
  HOST_LOOP(host_sum_##tag, T, HOST_SAME, HOST_SAME, x + y) \
  HOST_LOOP(host_prod_##tag, T, HOST_SAME, HOST_SAME, x *y) \
  HOST_SCALE(host_scale_##tag, T, HOST_SAME, HOST_SAME)

#define HOST_FLOAT(tag, T, LOAD, STORE) \
  HOST_LOOP(host_sum_##tag, T, LOAD, STORE, x + y) \
  HOST_LOOP(host_prod_##tag, T, LOAD, STORE, x *y) \
  HOST_LOOP(host_max_##tag, T, LOAD, STORE, y > x || x != x ? y : x) \
  HOST_LOOP(host_min_##tag, T, LOAD, STORE, y < x || x != x ? y : x) \
  HOST_SCALE(host_scale_##tag, T, LOAD, STORE)

HOST_RING(8, uint8_t)
HOST_RING(32, uint32_t)
HOST_RING(64, uint64_t)
HOST_MINMAX(i8, int8_t)
HOST_MINMAX(u8, uint8_t)
HOST_MINMAX(i32, int32_t)
HOST_MINMAX(u32, uint32_t)
HOST_MINMAX(i64, int64_t)
HOST_MINMAX(u64, uint64_t)
HOST_FLOAT(f16, uint16_t, host_from_half, host_to_half)
HOST_FLOAT(f32, float, HOST_SAME, HOST_SAME)
HOST_FLOAT(f64, double, HOST_SAME, HOST_SAME)
HOST_FLOAT(bf16, uint16_t, host_from_bf16, host_to_bf16)
HOST_FLOAT(e4m3, uint8_t, host_from_e4m3, host_to_e4m3)
HOST_FLOAT(e5m2, uint8_t, host_from_e5m2, host_to_e5m2)

cp_host_reduce_fn cp_host_reducer(int dtype, int op) {
#define HOST_ROW(sum, minmax) {host_sum_##sum, host_prod_##sum, host_max_##minmax, host_min_##minmax}
  static const cp_host_reduce_fn table[][4] = {
    [CP_INT8] = HOST_ROW(8, i8), [CP_UINT8] = HOST_ROW(8, u8), [CP_INT32] = HOST_ROW(32, i32), [CP_UINT32] = HOST_ROW(32, u32),
    [CP_INT64] = HOST_ROW(64, i64), [CP_UINT64] = HOST_ROW(64, u64), [CP_FLOAT16] = HOST_ROW(f16, f16), [CP_FLOAT32] = HOST_ROW(f32, f32),
    [CP_FLOAT64] = HOST_ROW(f64, f64), [CP_BFLOAT16] = HOST_ROW(bf16, bf16), [CP_FLOAT8E4M3] = HOST_ROW(e4m3, e4m3),
    [CP_FLOAT8E5M2] = HOST_ROW(e5m2, e5m2),
  };
  return table[dtype][op];
}

void cp_host_scale(void *dst, const void *src, size_t n, int dtype, const void *scalar) {
  static void (*const table[])(void *, const void *, size_t, const void *) = {
    [CP_INT8] = host_scale_8, [CP_UINT8] = host_scale_8, [CP_INT32] = host_scale_32, [CP_UINT32] = host_scale_32,
    [CP_INT64] = host_scale_64, [CP_UINT64] = host_scale_64, [CP_FLOAT16] = host_scale_f16, [CP_FLOAT32] = host_scale_f32,
    [CP_FLOAT64] = host_scale_f64, [CP_BFLOAT16] = host_scale_bf16, [CP_FLOAT8E4M3] = host_scale_e4m3, [CP_FLOAT8E5M2] = host_scale_e5m2,
  };
  table[dtype](dst, src, n, scalar);
}

#define HOST_DIVIDE(T) \
  do { \
    T *o = dst; \
    for (size_t i = 0; i < n; i++) o[i] = (T)(o[i] / (T)ranks); \
  } while (0)

// With more than 127 ranks the divisor does not fit an int8, so the narrow types divide as int.
void cp_host_divide(void *dst, size_t n, int dtype, int ranks) {
  int8_t *i8 = dst;
  uint8_t *u8 = dst;
  switch (dtype) {
  case CP_INT8:
    for (size_t i = 0; i < n; i++) i8[i] = (int8_t)(i8[i] / ranks);
    break;
  case CP_UINT8:
    for (size_t i = 0; i < n; i++) u8[i] = (uint8_t)(u8[i] / ranks);
    break;
  case CP_INT32: HOST_DIVIDE(int32_t); break;
  case CP_UINT32: HOST_DIVIDE(uint32_t); break;
  case CP_INT64: HOST_DIVIDE(int64_t); break;
  case CP_UINT64: HOST_DIVIDE(uint64_t); break;
  }
}

void cp_host_reciprocal(void *scalar, int dtype, int ranks) {
  float f = (float)(1.0 / ranks);
  double d = 1.0 / ranks;
  uint16_t h = host_to_half(f), b = host_to_bf16(f);
  uint8_t e4 = host_to_e4m3(f), e5 = host_to_e5m2(f);
  switch (dtype) {
  case CP_FLOAT16: memcpy(scalar, &h, sizeof h); break;
  case CP_FLOAT32: memcpy(scalar, &f, sizeof f); break;
  case CP_FLOAT64: memcpy(scalar, &d, sizeof d); break;
  case CP_BFLOAT16: memcpy(scalar, &b, sizeof b); break;
  case CP_FLOAT8E4M3: memcpy(scalar, &e4, sizeof e4); break;
  case CP_FLOAT8E5M2: memcpy(scalar, &e5, sizeof e5); break;
  }
}
