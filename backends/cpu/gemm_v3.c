/* The matrix product's kernels for AVX2 with FMA (built with -march=x86-64-v3). */
#include "backends/cpu/gemm.h"

#if defined(__AVX2__) && defined(__FMA__)
#define PST_GEMM_TABLE pst__gemm_v3
#define PST_GEMM_NAME  "v3"
#define PST_GEMM_LANES 8
#include "backends/cpu/gemm_kernels.inc"
#endif
