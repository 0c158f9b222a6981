/* What the kernel files share: cutting work into pieces, and sums over a row.
 *
 *   for (int64_t from, to; next_piece(c, n, PIECE, &from, &to);)
 *     for (int64_t i = from; i < to; i++) ...
 *
 * Included by kernels.inc, which is compiled once per instruction set.
 */
#ifndef PENSTOCK_BACKENDS_CPU_KERNEL_COMMON_H
#define PENSTOCK_BACKENDS_CPU_KERNEL_COMMON_H

#include "backends/cpu/kernel.h"
#include "backends/cpu/simd.h"

enum { PIECE = 8192 }; /* elements of a piece of elementwise work: 32 KiB of each operand */

static inline int64_t min_i64(int64_t a, int64_t b) {
  return a < b ? a : b;
}
static inline int64_t max_i64(int64_t a, int64_t b) {
  return a > b ? a : b;
}
static inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
static inline int64_t align_up(int64_t bytes) {
  return ceil_div(bytes, PST_ALIGN) * PST_ALIGN;
}

/* The next [from, to) of [0, n) in pieces of `size`; false when all are taken. */
static inline bool next_piece(const pst_cpu_call *c, int64_t n, int64_t size, int64_t *out_from,
                              int64_t *out_to) {
  int64_t piece = pst_team_take(c->me, ceil_div(n, size));
  if (piece < 0) return false;
  *out_from = piece * size;
  *out_to = min_i64(n, *out_from + size);
  return true;
}

/* Rows of `width` elements that make about a piece. */
static inline int64_t piece_rows(int64_t width) {
  return max_i64(1, PIECE / max_i64(1, width));
}

/* Runs the statements for i = 0, 16, 32, ... below n: with `lanes` the constant 16, and once more with fewer
 * at the end. */
#define EACH_16(n, ...)                                                                                      \
  do {                                                                                                       \
    const int64_t n_ = (n);                                                                                  \
    int64_t i = 0;                                                                                           \
    for (; i + 16 <= n_; i += 16) {                                                                          \
      enum { lanes = 16 };                                                                                   \
      __VA_ARGS__                                                                                            \
    }                                                                                                        \
    if (i < n_) {                                                                                            \
      const int64_t lanes = n_ - i;                                                                          \
      __VA_ARGS__                                                                                            \
    }                                                                                                        \
  } while (0)

V16_INLINE v16 load_lanes(const float *p, int64_t lanes) {
  return lanes == 16 ? v16_load(p) : v16_load_n(p, lanes);
}
V16_INLINE void store_lanes(float *p, v16 x, int64_t lanes) {
  if (lanes == 16)
    v16_store(p, x);
  else
    v16_store_n(p, x, lanes);
}

/* The sum over a row of a term formed from vectors of it; lanes after the end must come out as 0. */
typedef v16 (*row_term)(const void *context, int64_t i, int64_t lanes);

/* In four chains of sixteen lanes (element i in chain i / 16 % 4), combined as (0 + 1) + (2 + 3), then by
 * v16_sum().
 */
V16_INLINE float row_sum(int64_t n, row_term term, const void *context) {
  v16 a = v16_zero(), b = a, c = a, d = a;
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    a = v16_add(a, term(context, i, 16));
    b = v16_add(b, term(context, i + 16, 16));
    c = v16_add(c, term(context, i + 32, 16));
    d = v16_add(d, term(context, i + 48, 16));
  }
  if (i < n) a = v16_add(a, term(context, i, min_i64(16, n - i)));
  if (i + 16 < n) b = v16_add(b, term(context, i + 16, min_i64(16, n - i - 16)));
  if (i + 32 < n) c = v16_add(c, term(context, i + 32, min_i64(16, n - i - 32)));
  if (i + 48 < n) d = v16_add(d, term(context, i + 48, n - i - 48));
  return v16_sum(v16_add(v16_add(a, b), v16_add(c, d)));
}

#endif
