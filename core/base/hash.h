/* A fast 64-bit content hash, for telling files and blocks of data apart; no defence against an adversary.
 *
 *   pst_hash h;
 *   pst_hash_init(&h, 0);
 *   pst_hash_update(&h, header, sizeof header);
 *   pst_hash_update(&h, data, n_bytes);             // any slicing gives the same value
 *   uint64_t value = pst_hash_value(&h);            // may be asked for at any time; more updates may follow
 *
 * XXH64, by the xxHash specification of Y. Collet (xxhash_spec.md, version 0.1.1, section "XXH64 algorithm
 * description"): the values are those of every other implementation, on every byte order.
 */
#ifndef PENSTOCK_BASE_HASH_H
#define PENSTOCK_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct pst_hash {
  uint64_t lane[4];
  uint64_t seed;
  uint64_t n_bytes;       /* taken in so far */
  unsigned char tail[32]; /* the last n_bytes % 32 of them */
} pst_hash;

void pst_hash_init(pst_hash *h, uint64_t seed);
void pst_hash_update(pst_hash *h, const void *data, size_t n_bytes);
uint64_t pst_hash_value(const pst_hash *h);

/* All three at once. */
uint64_t pst_hash_bytes(const void *data, size_t n_bytes, uint64_t seed);

#endif
