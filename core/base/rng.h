/* Counter-based random numbers: a value depends on its key and counter alone, not on what was drawn before.
 *
 *   pst_rng_key key = pst_rng_key_make(seed, step);
 *   uint32_t r[4]; // four values, for elements 4i .. 4i + 3
 *   pst_rng_philox(key, (uint32_t[4]){i, 0, sequence, site}, r);
 *
 * Philox4x32-10 (J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3): any
 * worker can draw any value by itself, so dropout, data order and initial weights do not depend on how a run
 * is laid out.
 */
#ifndef PENSTOCK_BASE_RNG_H
#define PENSTOCK_BASE_RNG_H

#include <stdint.h>

typedef struct pst_rng_key {
  uint32_t k[2];
} pst_rng_key;

/* A key for (seed, stream): both 64-bit values are mixed (splitmix64) into the 64 key bits. */
pst_rng_key pst_rng_key_make(uint64_t seed, uint64_t stream);

/* Ten rounds on the 128-bit counter; the paper's test vectors hold. */
void pst_rng_philox(pst_rng_key key, const uint32_t counter[4], uint32_t out[4]);

/* Uniform in [0, 1) with 24 bits; exact in fp32. */
static inline float pst_rng_uniform(uint32_t bits) {
  return (float)(bits >> 8) * 0x1p-24f;
}

/* Fills x[0..n) with normal values of the given mean and standard deviation: element i takes words of counter
 * {i / 2 low, i / 2 high, 0, 0} and Box-Muller in double, so any part of a tensor can be filled alone.
 * `first` is the index of x[0] in the tensor. */
void pst_rng_normal(pst_rng_key key, int64_t first, int64_t n, float mean, float std, float *x);

/* A 64-bit hash of text (FNV-1a, finished by splitmix64), for keys by name. */
uint64_t pst_rng_hash_text(const char *text);

/* A bijection of [0, n): position i of a shuffle keyed by `key`, by cycle-walking a 4-round Feistel network
 * over the smallest even power of two that holds n. Constant memory, any position alone. n >= 1, 0 <= i < n.
 */
int64_t pst_rng_permute(pst_rng_key key, int64_t n, int64_t i);

#endif
