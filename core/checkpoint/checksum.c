#include "core/checkpoint/checksum.h"

#include "core/base/file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK_BYTES = 32, READ_BYTES = 1 << 20 };

static const uint64_t prime_1 = 0x9e3779b185ebca87u;
static const uint64_t prime_2 = 0xc2b2ae3d27d4eb4fu;
static const uint64_t prime_3 = 0x165667b19e3779f9u;
static const uint64_t prime_4 = 0x85ebca77c2b2ae63u;
static const uint64_t prime_5 = 0x27d4eb2f165667c5u;

static uint64_t rotate_left(uint64_t x, int bits) {
  return (x << bits) | (x >> (64 - bits));
}

/* Byte by byte, so that the value is the same on every byte order; compilers make one load of it. */
static uint64_t load_64(const unsigned char *p) {
  uint64_t x = 0;
  for (int i = 7; i >= 0; i--) x = (x << 8) | p[i];
  return x;
}

static uint64_t load_32(const unsigned char *p) {
  return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24;
}

static uint64_t round_of(uint64_t lane, uint64_t word) {
  return rotate_left(lane + word * prime_2, 31) * prime_1;
}

static uint64_t merge(uint64_t value, uint64_t lane) {
  return (value ^ round_of(0, lane)) * prime_1 + prime_4;
}

void pst_checksum_init(pst_checksum *sum) {
  memset(sum, 0, sizeof *sum);
  sum->lanes[0] = prime_1 + prime_2;
  sum->lanes[1] = prime_2;
  sum->lanes[3] = 0 - prime_1;
}

static void take_blocks(pst_checksum *sum, const unsigned char *p, size_t n_blocks) {
  uint64_t a = sum->lanes[0], b = sum->lanes[1], c = sum->lanes[2], d = sum->lanes[3];
  for (; n_blocks; n_blocks--, p += BLOCK_BYTES) {
    a = round_of(a, load_64(p));
    b = round_of(b, load_64(p + 8));
    c = round_of(c, load_64(p + 16));
    d = round_of(d, load_64(p + 24));
  }
  sum->lanes[0] = a, sum->lanes[1] = b, sum->lanes[2] = c, sum->lanes[3] = d;
}

void pst_checksum_add(pst_checksum *sum, const void *bytes, size_t n) {
  const unsigned char *p = bytes;
  size_t held = (size_t)(sum->total_bytes % BLOCK_BYTES);
  if (!n) return;
  sum->total_bytes += n;
  if (held) {
    size_t take = n < BLOCK_BYTES - held ? n : BLOCK_BYTES - held;
    memcpy(sum->pending + held, p, take);
    p += take;
    n -= take;
    if (held + take < BLOCK_BYTES) return;
    take_blocks(sum, sum->pending, 1);
  }
  take_blocks(sum, p, n / BLOCK_BYTES);
  memcpy(sum->pending, p + n / BLOCK_BYTES * BLOCK_BYTES, n % BLOCK_BYTES);
}

uint64_t pst_checksum_value(const pst_checksum *sum) {
  uint64_t value = prime_5; /* seed 0 */
  if (sum->total_bytes >= BLOCK_BYTES) {
    value = rotate_left(sum->lanes[0], 1) + rotate_left(sum->lanes[1], 7) + rotate_left(sum->lanes[2], 12) +
            rotate_left(sum->lanes[3], 18);
    for (int i = 0; i < 4; i++) value = merge(value, sum->lanes[i]);
  }
  value += sum->total_bytes;

  const unsigned char *p = sum->pending;
  size_t n = (size_t)(sum->total_bytes % BLOCK_BYTES);
  for (; n >= 8; n -= 8, p += 8) value = rotate_left(value ^ round_of(0, load_64(p)), 27) * prime_1 + prime_4;
  for (; n >= 4; n -= 4, p += 4) value = rotate_left(value ^ (load_32(p) * prime_1), 23) * prime_2 + prime_3;
  for (; n; n--, p++) value = rotate_left(value ^ (*p * prime_5), 11) * prime_1;

  value = (value ^ (value >> 33)) * prime_2;
  value = (value ^ (value >> 29)) * prime_3;
  return value ^ (value >> 32);
}

pst_status pst_checksum_file(const char *path, uint64_t *out_bytes, uint64_t *out_checksum) {
  int fd = -1;
  uint64_t bytes = 0;
  unsigned char *buffer = NULL;
  pst_checksum sum;
  pst_status st = PST_OK;
  pst_checksum_init(&sum);
  PST_GOTO(st, pst_file_open(path, &fd, &bytes), done);
  buffer = malloc(READ_BYTES);
  if (!buffer) {
    st = pst_fail(PST_NO_MEMORY, "%s: no memory for a buffer of %d bytes", path, READ_BYTES);
    goto done;
  }
  for (uint64_t at = 0; at < bytes;) {
    size_t n = bytes - at < READ_BYTES ? (size_t)(bytes - at) : READ_BYTES;
    PST_GOTO(st, pst_file_pread(fd, buffer, n, at, path), done);
    pst_checksum_add(&sum, buffer, n);
    at += n;
  }
  *out_bytes = bytes;
  *out_checksum = pst_checksum_value(&sum);
done:
  free(buffer);
  if (fd >= 0) close(fd);
  return st;
}
