// Data that tells where it belongs.
#include <string.h>

#include "binding.h"

// The poison's byte. No pattern contains it: one that came out so is mirrored.
#define POISON 0xa5
#define EVERY(byte) (0x0101010101010101ull * (byte))

// A bijection of 64 bits (the finaliser of splitmix64, public domain by S. Vigna): different words go to different words.
static uint64_t mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

static uint64_t key(uint64_t seed, uint32_t stream) { return mix(seed ^ mix(stream + 0x9e3779b97f4a7c15ull)); }

static uint64_t word(uint64_t key, uint64_t index) {
  uint64_t w = mix(key + index);
  uint64_t same = w ^ EVERY(POISON);
  if (((same - EVERY(1)) & ~same & EVERY(0x80)) == 0) return w; // no byte is the poison's
  for (int i = 0; i < 64; i += 8)
    if ((w >> i & 0xff) == POISON) w ^= 0xffull << i;
  return w;
}

void iv_fill_pattern(void *p, size_t bytes, uint64_t seed, uint32_t stream) {
  uint64_t k = key(seed, stream), i = 0;
  unsigned char *at = p;
  for (; bytes >= 8; bytes -= 8, at += 8) {
    uint64_t w = word(k, i++);
    memcpy(at, &w, 8);
  }
  uint64_t w = word(k, i);
  memcpy(at, &w, bytes);
}

size_t iv_check_pattern(const void *p, size_t bytes, uint64_t seed, uint32_t stream, size_t *first, size_t *last) {
  uint64_t k = key(seed, stream);
  const unsigned char *at = p;
  size_t wrong = 0;
  for (size_t off = 0; off < bytes; off += 8) {
    uint64_t want = word(k, off / 8), got = want;
    size_t n = bytes - off < 8 ? bytes - off : 8;
    memcpy(&got, at + off, n);
    if (got == want) continue;
    for (size_t b = 0; b < n; b++) {
      if (((const unsigned char *)&got)[b] == ((const unsigned char *)&want)[b]) continue;
      if (wrong++ == 0) *first = off + b;
      *last = off + b;
    }
  }
  return wrong;
}

void iv_poison(void *p, size_t bytes) { memset(p, POISON, bytes); }
