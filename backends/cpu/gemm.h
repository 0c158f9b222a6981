/* Matrix products in fp32 whose bits depend on the numbers alone: not on slicing, threads or vector width.
 *
 *   // y[tokens, out] = x[tokens, in] * w[in, out] + bias, all row-major, by every member of a team
 *   pst_gemm g = {.m = tokens, .n = out, .k = in, .a = x, .lda = in, .b = w, .ldb = out, .c = y, .ldc = out,
 *                 .bias = bias};
 *   const pst_gemm_kernels *set = pst__gemm_best();
 *   void *workspace = aligned_alloc(64, pst__gemm_workspace_bytes(set, &g, pst_team_size(team)));
 *   ... in the team's function:  pst__gemm_team(me, set, &g, workspace);
 *
 * Definition. With A[i][p] the left operand after transposition and B[p][j] the right one, element (i, j) is
 *
 *   s = start(i, j);  for p = 0, 1, ... k - 1:  s = fma(A[i][p], B[p][j], s);  C[i][j] = s
 *
 * one chain of fused multiply-adds in ascending p. start(i, j) is 0; or the addend's element (C's own with
 * `accumulate`); or bias[j]; or, with both, their rounded sum addend + bias. So any cut of m or n, any
 * register tile, any number of threads and every set with fma gives the same bits; the set "base" multiplies
 * and adds in two roundings and agrees with itself only. A product may be cut along k too: the later part
 * accumulates onto the earlier one.
 *
 * The blocking follows K. Goto and R. van de Geijn, "Anatomy of high-performance matrix multiplication", ACM
 * TOMS 34 (2008), section 4, with the roles of the operands exchanged: a strip of A stays in the L1 cache
 * while panels of B, packed or read in place, stream from L2.
 */
#ifndef PENSTOCK_BACKENDS_CPU_GEMM_H
#define PENSTOCK_BACKENDS_CPU_GEMM_H

#include "core/base/team.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One product. All matrices are row-major fp32 in host memory, owned by the caller; ld* is the distance
 * between rows in elements, at least the row's width. C overlaps no operand but the addend, which may be C
 * itself. */
typedef struct pst_gemm {
  int64_t m, n, k; /* any of them may be 0 */
  const float *a;  /* [m, k]; a_transposed: stored [k, m] */
  int64_t lda;
  bool a_transposed;
  const float *b; /* [k, n]; b_transposed: stored [n, k] */
  int64_t ldb;
  bool b_transposed;
  float *c; /* [m, n], written */
  int64_t ldc;
  bool accumulate;     /* start from what is in C; excludes addend */
  const float *addend; /* [m, n] to start from, or NULL */
  int64_t ldadd;
  const float *bias; /* [n], or NULL */
} pst_gemm;

/* The inner kernels of one instruction set. */
typedef struct pst_gemm_kernels pst_gemm_kernels;

extern const pst_gemm_kernels pst__gemm_base; /* plain vectors: x86-64 (SSE2), AArch64, others */
#if defined(__x86_64__)
extern const pst_gemm_kernels pst__gemm_v3; /* AVX2 + FMA */
extern const pst_gemm_kernels pst__gemm_v4; /* AVX-512 */
#endif

/* The widest set that this machine runs. */
const pst_gemm_kernels *pst__gemm_best(void);

/* A set by name ("base", "v3", "v4"); NULL when unknown or when this machine lacks it. */
const pst_gemm_kernels *pst__gemm_find(const char *name);

const char *pst__gemm_name(const pst_gemm_kernels *kernels);

/* Bytes of scratch for a product of this shape with `n_threads` members; only m, n, k, the transpositions,
 * lda and ldb are read. At most 1.5 MiB and 32 KiB per member, a multiple of 64. The largest over several
 * products serves each. */
size_t pst__gemm_workspace_bytes(const pst_gemm_kernels *kernels, const pst_gemm *g, int n_threads);

/* The whole product by the calling thread. `workspace`: 64-byte aligned, pst__gemm_workspace_bytes(.., 1)
 * long, not shared with a concurrent call. Nothing is allocated. For a block of a larger product pass a
 * pst_gemm with moved pointers. */
void pst__gemm_run(const pst_gemm_kernels *kernels, const pst_gemm *g, void *workspace);

/* The whole product by a team: every member calls it with the same arguments, between two rounds of pieces of
 * its own (a barrier must lie behind the last pst_team_take()). C is complete for all members when it
 * returns. `workspace`: 64-byte aligned, shared by the members, sized for pst_team_members(me). */
void pst__gemm_team(pst_team_member *me, const pst_gemm_kernels *kernels, const pst_gemm *g, void *workspace);

#endif
