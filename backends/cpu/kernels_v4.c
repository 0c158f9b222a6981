/* The kernels for the AVX-512 level of x86-64, to be compiled with -march=x86-64-v4. */
#if defined(__x86_64__)
#define SET_SYMBOL   pst__cpu_set_v4
#define SET_NAME     "v4"
#define SET_NUMERICS "fma"
#define SET_GEMM     &pst__gemm_v4

#include "backends/cpu/kernels.inc"
#else
typedef int pst__cpu_no_set_v4;
#endif
