/* The matrix product's kernels for AVX-512 (built with -march=x86-64-v4). */
#include "backends/cpu/gemm.h"

#if defined(__AVX512F__)
#define PST_GEMM_TABLE pst__gemm_v4
#define PST_GEMM_NAME  "v4"
#define PST_GEMM_LANES 16
#include "backends/cpu/gemm_kernels.inc"
#endif
