#include "core/base/rng.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)

/* The output function of splitmix64 (G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number
 * generators", OOPSLA 2014, figure 17; constants of its mix64 variant 13 by D. Stafford): a bijection of
 * 64-bit words. */
static uint64_t mix64(uint64_t z) {
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

pst_rng_key pst_rng_key_make(uint64_t seed, uint64_t stream) {
  uint64_t z = mix64(mix64(seed + GOLDEN) + stream + GOLDEN);
  return (pst_rng_key){{(uint32_t)z, (uint32_t)(z >> 32)}};
}

void pst_rng_philox(pst_rng_key key, const uint32_t counter[4], uint32_t out[4]) {
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  uint32_t k0 = key.k[0], k1 = key.k[1];
  for (int round = 0; round < 10; round++) {
    uint64_t p0 = UINT64_C(0xd2511f53) * c0;
    uint64_t p1 = UINT64_C(0xcd9e8d57) * c2;
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)p1;
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)p0;
    k0 += UINT32_C(0x9e3779b9);
    k1 += UINT32_C(0xbb67ae85);
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

/* ---- normal values ----
 * Only + - * / and sqrt of IEEE double, each correctly rounded, in a fixed order: the same bits on every
 * machine, which no libm promises for log, sin and cos. */

/* Natural logarithm of a positive normal double: x = m 2^e with m in [sqrt(1/2), sqrt(2)), log m = 2 atanh(f)
 * with f = (m - 1) / (m + 1), |f| < 0.172, by its series to f^21 (next term below 2e-18). */
static double log_fixed(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  int e = (int)(bits >> 52) - 1023;
  bits = (bits & UINT64_C(0x000fffffffffffff)) | UINT64_C(0x3ff0000000000000);
  double m;
  memcpy(&m, &bits, sizeof m);
  if (m > 0x1.6a09e667f3bcdp+0) {
    m *= 0.5;
    e++;
  }
  double f = (m - 1.0) / (m + 1.0);
  double s = f * f;
  double sum = 1.0 / 21.0;
  for (int k = 19; k >= 1; k -= 2) sum = sum * s + 1.0 / k;
  return (double)e * 0x1.62e42fefa39efp-1 + 2.0 * f * sum;
}

/* cos and sin of 2 pi u for u in [0, 1): the nearest quarter turn is taken out exactly, the rest is a Taylor
 * series on
 * [-pi/4, pi/4], to t^17 and t^18 (next terms below 1e-19). */
static void turn_fixed(double u, double *out_cos, double *out_sin) {
  int quarter = (int)(u * 4.0 + 0.5);
  double t = (u - quarter * 0.25) * 0x1.921fb54442d18p+2;
  double s = t * t;
  double sin_t = 1.0, cos_t = 1.0;
  for (int k = 16; k >= 2; k -= 2) sin_t = 1.0 - sin_t * s / (double)(k * (k + 1));
  for (int k = 17; k >= 1; k -= 2) cos_t = 1.0 - cos_t * s / (double)(k * (k + 1));
  sin_t *= t;
  const double cos_of[4] = {cos_t, -sin_t, -cos_t, sin_t};
  const double sin_of[4] = {sin_t, cos_t, -sin_t, -cos_t};
  *out_cos = cos_of[quarter & 3];
  *out_sin = sin_of[quarter & 3];
}

/* 52 bits of two words: exact in double. */
static double word_pair(uint32_t high, uint32_t low) {
  return (double)((((uint64_t)high << 32) | low) >> 12);
}

/* Box-Muller (G. Box, M. Muller, 1958): elements 2 pair and 2 pair + 1. */
static void normal_pair(pst_rng_key key, int64_t pair, double out[2]) {
  uint32_t r[4];
  pst_rng_philox(key, (uint32_t[4]){(uint32_t)pair, (uint32_t)((uint64_t)pair >> 32), 0, 0}, r);
  double radius = sqrt(-2.0 * log_fixed((word_pair(r[0], r[1]) + 0.5) * 0x1p-52));
  double c, s;
  turn_fixed(word_pair(r[2], r[3]) * 0x1p-52, &c, &s);
  out[0] = radius * c;
  out[1] = radius * s;
}

void pst_rng_normal(pst_rng_key key, int64_t first, int64_t n, float mean, float std, float *x) {
  double z[2];
  for (int64_t i = 0; i < n; i++) {
    int64_t element = first + i;
    if (i == 0 || (element & 1) == 0) normal_pair(key, element >> 1, z);
    x[i] = (float)((double)mean + (double)std * z[element & 1]);
  }
}

uint64_t pst_rng_hash_text(const char *text) {
  /* FNV-1a, 64 bits (G. Fowler, L. C. Noll, K.-P. Vo). */
  uint64_t h = UINT64_C(0xcbf29ce484222325);
  for (const unsigned char *p = (const unsigned char *)text; *p; p++) h = (h ^ *p) * UINT64_C(0x100000001b3);
  return mix64(h + GOLDEN);
}

int64_t pst_rng_permute(pst_rng_key key, int64_t n, int64_t i) {
  int half_bits = 0;
  while (half_bits < 32 && ((uint64_t)(n - 1) >> (2 * half_bits)) != 0) half_bits++;
  const uint64_t mask = (UINT64_C(1) << half_bits) - 1;
  const uint64_t k = ((uint64_t)key.k[1] << 32) | key.k[0];
  uint64_t x = (uint64_t)i;
  do {
    uint64_t left = x >> half_bits, right = x & mask;
    for (uint64_t round = 1; round <= 4; round++) {
      uint64_t f = mix64(right + mix64(k + round * GOLDEN)) & mask;
      uint64_t swapped = left ^ f;
      left = right;
      right = swapped;
    }
    x = (left << half_bits) | right;
  } while (x >= (uint64_t)n);
  return (int64_t)x;
}
