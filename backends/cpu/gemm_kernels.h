/* What one instruction set brings to the matrix product: register tiles and packing (filled by
 * gemm_kernels.inc).
 *
 *   set->tile[by_row][vecs - 1][rows - 1](k, a, lda, b, ldb, c, ldc, from, ldfrom, bias, width);
 */
#ifndef PENSTOCK_BACKENDS_CPU_GEMM_KERNELS_H
#define PENSTOCK_BACKENDS_CPU_GEMM_KERNELS_H

#include <stdint.h>

enum { PST_GEMM_MAX_ROWS = 14 };

/* C[0..rows)[0..width) = the chain over k that starts from `from` (NULL: none) and `bias` (NULL: none).
 * a: by_row 1: element (i, p) at a[i * lda + p]; 0: at a[p * lda + i].
 * b: element (p, j) at b[p * ldb + j]; whole vectors are read, so a row holds vecs * lanes readable floats.
 * width: (vecs - 1) * lanes < width <= vecs * lanes. */
typedef void (*pst_gemm_tile)(int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb, float *c,
                              int64_t ldc, const float *from, int64_t ldfrom, const float *bias,
                              int64_t width);

struct pst_gemm_kernels {
  const char *name;
  int rows;     /* tallest tile */
  int lanes;    /* floats in a vector; a panel of B is two vectors wide */
  int a_stride; /* floats between the columns of a packed strip of A */
  pst_gemm_tile tile[2][2][PST_GEMM_MAX_ROWS];

  /* out[p * stride + i] = src[p * ld + i] for i < width, 0 for width <= i < stride; k rows. */
  void (*pack)(float *out, int64_t stride, const float *src, int64_t ld, int64_t width, int64_t k);
  /* out[p * stride + i] = src[i * ld + p] for i < width, 0 for width <= i < stride; k columns. */
  void (*pack_transposed)(float *out, int64_t stride, const float *src, int64_t ld, int64_t width, int64_t k);
};

#endif
