#include "core/base/hash.h"

#include <string.h>

#define P1 UINT64_C(0x9e3779b185ebca87)
#define P2 UINT64_C(0xc2b2ae3d27d4eb4f)
#define P3 UINT64_C(0x165667b19e3779f9)
#define P4 UINT64_C(0x85ebca77c2b2ae63)
#define P5 UINT64_C(0x27d4eb2f165667c5)

enum { STRIPE = 32 };

static uint64_t rotate(uint64_t x, int bits) {
  return (x << bits) | (x >> (64 - bits));
}

/* Compilers make one load of these on a little-endian machine. */
static uint32_t load32(const unsigned char *p) {
  return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t load64(const unsigned char *p) {
  return (uint64_t)load32(p) | (uint64_t)load32(p + 4) << 32;
}

static uint64_t lane_round(uint64_t lane, uint64_t input) {
  return rotate(lane + input * P2, 31) * P1;
}

static void take_stripe(uint64_t lane[4], const unsigned char *p) {
  for (int i = 0; i < 4; i++) lane[i] = lane_round(lane[i], load64(p + 8 * i));
}

void pst_hash_init(pst_hash *h, uint64_t seed) {
  *h = (pst_hash){.lane = {seed + P1 + P2, seed + P2, seed, seed - P1}, .seed = seed};
}

void pst_hash_update(pst_hash *h, const void *data, size_t n_bytes) {
  const unsigned char *p = data;
  size_t held = (size_t)(h->n_bytes % STRIPE);
  h->n_bytes += n_bytes;
  if (held > 0) {
    size_t take = n_bytes < STRIPE - held ? n_bytes : STRIPE - held;
    if (take > 0) memcpy(h->tail + held, p, take);
    p += take;
    n_bytes -= take;
    if (held + take < STRIPE) return;
    take_stripe(h->lane, h->tail);
  }
  uint64_t lane[4] = {h->lane[0], h->lane[1], h->lane[2], h->lane[3]};
  for (; n_bytes >= STRIPE; n_bytes -= STRIPE, p += STRIPE) take_stripe(lane, p);
  memcpy(h->lane, lane, sizeof lane);
  if (n_bytes > 0) memcpy(h->tail, p, n_bytes);
}

static uint64_t merge_lanes(const uint64_t lane[4]) {
  uint64_t x = rotate(lane[0], 1) + rotate(lane[1], 7) + rotate(lane[2], 12) + rotate(lane[3], 18);
  for (int i = 0; i < 4; i++) x = (x ^ lane_round(0, lane[i])) * P1 + P4;
  return x;
}

static uint64_t take_tail(uint64_t x, const unsigned char *p, size_t n) {
  for (; n >= 8; n -= 8, p += 8) x = rotate(x ^ lane_round(0, load64(p)), 27) * P1 + P4;
  if (n >= 4) {
    x = rotate(x ^ load32(p) * P1, 23) * P2 + P3;
    n -= 4;
    p += 4;
  }
  for (; n > 0; n--, p++) x = rotate(x ^ *p * P5, 11) * P1;
  return x;
}

uint64_t pst_hash_value(const pst_hash *h) {
  uint64_t x = h->n_bytes >= STRIPE ? merge_lanes(h->lane) : h->seed + P5;
  x = take_tail(x + h->n_bytes, h->tail, (size_t)(h->n_bytes % STRIPE));
  x = (x ^ (x >> 33)) * P2;
  x = (x ^ (x >> 29)) * P3;
  return x ^ (x >> 32);
}

uint64_t pst_hash_bytes(const void *data, size_t n_bytes, uint64_t seed) {
  pst_hash h;
  pst_hash_init(&h, seed);
  pst_hash_update(&h, data, n_bytes);
  return pst_hash_value(&h);
}
