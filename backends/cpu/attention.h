/* Attention on the CPU: how it is cut, and the scratch it takes.
 *
 * The kernels (attention.inc) never hold a T x T matrix: a block of ATTENTION_BLOCK queries of one head meets
 * all its visible keys at once. Scores lie transposed, S^T[key][query], so a lane is a query: the softmax is
 * plain arithmetic down the lanes, keys are read as they are, and probabilities feed the second product in
 * the order in which they lie. Forward keeps o and the log-sum-exp of each row, backward forms the
 * probabilities again from it (T. Dao, "FlashAttention-2: faster attention with better parallelism and work
 * partitioning", ICLR 2024, section 3.1; there keys are taken in blocks with a running maximum, here T is
 * moderate and a block's scores fit the cache).
 *
 * Forward's pieces are (sequence, key/value head, ATTENTION_PIECE queries); backward's are (sequence,
 * key/value head), inside which the heads of the group and their query blocks go in ascending order, so the
 * sums that make dk and dv have one order, whoever takes the piece.
 */
#ifndef PENSTOCK_BACKENDS_CPU_ATTENTION_H
#define PENSTOCK_BACKENDS_CPU_ATTENTION_H

#include "core/device/program.h"

enum {
  ATTENTION_BLOCK = 32,  /* queries that are worked on together */
  ATTENTION_ROWS = 8,    /* keys are padded to a multiple of this */
  ATTENTION_PIECE = 256, /* queries of a forward piece */
};

/* Where q, k, v and their gradients lie, in elements. */
typedef struct attention_shape {
  int64_t b, T, H, G, d;
  int64_t T_pad, d_pad;   /* multiples of ATTENTION_ROWS and 16 */
  int64_t q_step, k_step; /* from one position to the next, of q, and of k and v */
} attention_shape;

static inline attention_shape attention_shape_of(const pst_op *op) {
  const pst_attrs *a = &op->attrs;
  attention_shape s = {
      .b = op->in[0].dim[0], .T = op->in[0].dim[1], .H = a->heads, .G = a->kv_heads, .d = a->head_dim};
  s.T_pad = (s.T + ATTENTION_ROWS - 1) / ATTENTION_ROWS * ATTENTION_ROWS;
  s.d_pad = (s.d + 15) / 16 * 16;
  s.q_step = a->packed ? (s.H + 2 * s.G) * s.d : s.H * s.d;
  s.k_step = a->packed ? s.q_step : s.G * s.d;
  return s;
}

/* Floats of scratch that one member takes: k, v [T_pad][d_pad], scores [T_pad][BLOCK], q^T and o
 * [d_pad][BLOCK]. */
static inline int64_t attention_scratch(const attention_shape *s) {
  return 2 * s->T_pad * s->d_pad + (s->T_pad + 2 * s->d_pad) * ATTENTION_BLOCK;
}

/* k, v, dk, dv; scores and their gradients; q^T, do^T, q, do, dq of a block. */
static inline int64_t attention_grad_scratch(const attention_shape *s) {
  return 4 * s->T_pad * s->d_pad + (2 * s->T_pad + 5 * s->d_pad) * ATTENTION_BLOCK;
}

#endif
