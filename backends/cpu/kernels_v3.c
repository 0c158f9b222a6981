/* The kernels for the AVX2 and FMA level of x86-64, to be compiled with -march=x86-64-v3. */
#if defined(__x86_64__)
#define SET_SYMBOL   pst__cpu_set_v3
#define SET_NAME     "v3"
#define SET_NUMERICS "fma"
#define SET_GEMM     &pst__gemm_v3

#include "backends/cpu/kernels.inc"
#else
typedef int pst__cpu_no_set_v3;
#endif
