/* The kernels of one instruction set: what kernels_<set>.c exports and the device picks from.
 *
 *   const pst_cpu_set *set;
 *   PST_TRY(pst__cpu_set_find("auto", &set));
 *   set->kernel[op->code](&call);
 */
#ifndef PENSTOCK_BACKENDS_CPU_SET_H
#define PENSTOCK_BACKENDS_CPU_SET_H

#include "backends/cpu/blas.h"
#include "backends/cpu/gemm.h"
#include "backends/cpu/kernel.h"

typedef struct pst_cpu_set {
  const char *name;                    /* "v4" */
  const char *numerics;                /* "fma": equal words mean equal bits */
  pst_cpu_kernel kernel[PST_OP_COUNT]; /* fp32 (the optimizers, cast and copy: any dtype they support) */
  pst_cpu_workspace workspace[PST_OP_COUNT]; /* NULL: the op needs none */
  const pst_gemm_kernels *gemm;
  void (*widen)(const uint16_t *bf16, float *out, int64_t n);
  void (*narrow)(const float *x, uint16_t *out_bf16, int64_t n); /* to nearest, ties to even */
} pst_cpu_set;

extern const pst_cpu_set pst__cpu_set_baseline;
#if defined(__x86_64__)
extern const pst_cpu_set pst__cpu_set_v3;
extern const pst_cpu_set pst__cpu_set_v4;
#endif

/* A set by name; NULL or "auto": the widest this machine runs. UNSUPPORTED when the machine lacks it, INVALID
 * when there is none of that name. */
PST_CHECKED pst_status pst__cpu_set_find(const char *name, const pst_cpu_set **out_set);

/* Whether the op's bf16 operands are to be widened to fp32 and its bf16 outputs rounded (widen.c). */
bool pst__cpu_widens(const pst_op *op);

/* Scratch for `op`: its kernel's, and fp32 copies of its bf16 operands. */
int64_t pst__cpu_workspace(const pst_cpu_set *set, const pst_op *op, int n_threads);

/* Runs the op of `call`, whose operands are as the program has them, widened where needed. Every member calls
 * it; a barrier must follow. */
void pst__cpu_run(const pst_cpu_call *call);

#endif
