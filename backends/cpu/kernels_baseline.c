/* The kernels for any processor. */
#define SET_SYMBOL   pst__cpu_set_baseline
#define SET_NAME     "baseline"
#define SET_NUMERICS "mul+add"
#define SET_GEMM     &pst__gemm_base

#include "backends/cpu/kernels.inc"
