/* The matrix product's kernels in the compiler's own vectors, for any processor: multiply, round, add, round.
 */
#include "backends/cpu/gemm.h"

#define PST_GEMM_TABLE pst__gemm_base
#define PST_GEMM_NAME  "base"
#define PST_GEMM_LANES 4
#include "backends/cpu/gemm_kernels.inc"
