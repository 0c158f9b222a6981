/* A fast 64-bit checksum for checkpoint and data files; it finds damage, it is no defence against forgery.
 *
 *   pst_checksum sum;
 *   pst_checksum_init(&sum);
 *   pst_checksum_add(&sum, bytes, n);                          // any number of times
 *   uint64_t value = pst_checksum_value(&sum);
 *
 * Algorithm: XXH64 with seed 0, from the xxHash specification by Yann Collet (doc/xxhash_spec.md, "XXH64
 * algorithm description"), so that `xxhsum -H64` prints the same number. The grouping into calls does not
 * matter.
 */
#ifndef PENSTOCK_CHECKPOINT_CHECKSUM_H
#define PENSTOCK_CHECKPOINT_CHECKSUM_H

#include "core/base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Plain data: may be copied; one thread at a time. */
typedef struct pst_checksum {
  uint64_t lanes[4];
  uint64_t total_bytes;
  unsigned char pending[32]; /* the last total_bytes % 32 bytes */
} pst_checksum;

void pst_checksum_init(pst_checksum *sum);

/* Takes n more host bytes. */
void pst_checksum_add(pst_checksum *sum, const void *bytes, size_t n);

/* The checksum of all bytes so far; more may be added afterwards. */
uint64_t pst_checksum_value(const pst_checksum *sum);

/* Size and checksum of a regular file, read from front to end. PST_IO, PST_INVALID, PST_NO_MEMORY. */
pst_status pst_checksum_file(const char *path, uint64_t *out_bytes, uint64_t *out_checksum) PST_CHECKED;

#endif
