/* What a CPU kernel is: one function per op, run by every member of the device's team at once.
 *
 *   void pst__cpu_gelu(const pst_cpu_call *c) {
 *     const float *x = c->in[0];
 *     float *y = c->out[0];
 *     for (int64_t i; (i = pst_team_take(c->me, n_pieces)) >= 0;) ...;      // pieces cut by the op's shape
 * alone
 *   }
 *
 * A kernel cuts its work into pieces by the op's shape alone, never by the number of threads; a sum over
 * pieces is formed in a fixed order. So the bits do not depend on threads. A kernel that needs rounds
 * separates them by pst_team_barrier(); after the kernel the device puts a barrier itself. Kernels see fp32
 * operands only (bf16 is widened around them), never allocate and never fail: what they cannot do, supports()
 * has refused.
 */
#ifndef PENSTOCK_BACKENDS_CPU_KERNEL_H
#define PENSTOCK_BACKENDS_CPU_KERNEL_H

#include "core/base/team.h"
#include "core/device/program.h"

struct pst_cpu_set;

/* An op with its operands resolved to memory: NULL where an optional one is absent. */
typedef struct pst_cpu_call {
  const pst_op *op;
  const void *in[PST_OP_MAX_IN];
  void *out[PST_OP_MAX_OUT];
  void *acc[PST_OP_MAX_ACC];
  void *workspace; /* as many bytes as the kernel's workspace function said */
  const pst_ctrl *ctrl;
  const struct pst_cpu_set *set; /* the tables of this instruction set */
  pst_team_member *me;
} pst_cpu_call;

typedef void (*pst_cpu_kernel)(const pst_cpu_call *call);

/* Scratch bytes for `op` run by `n_threads` members; 0 for most. */
typedef int64_t (*pst_cpu_workspace)(const pst_op *op, int n_threads);

#endif
