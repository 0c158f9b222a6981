/* Every op of core/device/ops.h in plain double-precision C: what a device's result is judged against.
 *
 *   reference_call call = {.op = &op, .in = {x, w, bias}, .out = {y}, .ctrl = &ctrl};
 *   reference_run(&call);                      // y now holds x w^T + bias, formed in double
 *
 * Written to be read beside the mathematics, never to be fast. Every operand is an array of doubles, whatever
 * the dtype of the op's operand (tokens, targets and lengths too), dense and row-major with the operand's
 * dims; an absent optional operand is NULL. Outputs never lie on inputs. Results are not rounded to the
 * operand's dtype. Dropout masks are those of core/base/rng.h, bit for bit, since the mask is part of an op's
 * contract. The caller owns all arrays; no global state, any thread.
 */
#ifndef PENSTOCK_TESTS_REFERENCE_REFERENCE_H
#define PENSTOCK_TESTS_REFERENCE_REFERENCE_H

#include "core/device/program.h"

typedef struct reference_call {
  const pst_op *op; /* shapes, dtypes (of PARAM only: see adamw) and attributes */
  const double *in[PST_OP_MAX_IN];
  double *out[PST_OP_MAX_OUT]; /* written; one that the op produces may be NULL when it is not wanted */
  double *acc[PST_OP_MAX_ACC]; /* read and added to */
  const pst_ctrl *ctrl;
} reference_call;

/* Runs the op; false when the reference has none for it. Allocates scratch with calloc and ends the process
 * when there is none. */
bool reference_run(const reference_call *call);

/* Whether element `e` of sequence `sequence` (of the microbatch) survives dropout `site` with share `p`. */
bool reference_keeps(const pst_ctrl *ctrl, uint32_t site, float p, int64_t sequence, int64_t e);

#endif
