/* Sixteen fp32 lanes in the compiler's own vectors, and exp, log, sigmoid and the normal distribution on
 * them.
 *
 *   v16 sum = v16_zero();
 *   int64_t i = 0;
 *   for (; i + 16 <= n; i += 16) sum = v16_fma(v16_load(x + i), v16_load(y + i), sum);
 *   if (i < n) sum = v16_fma(v16_load_n(x + i, n - i), v16_load_n(y + i, n - i), sum);   // absent lanes are
 * 0 float dot = v16_sum(sum);                                                        // one fixed tree
 *
 * A v16 is as many registers as the instruction set needs: one with AVX-512, two with AVX2, four with 128-bit
 * vectors. Lanes, their order and the order of sums are the same in all, and every function is built of
 * correctly rounded operations in one order, so all sets with fused multiply-add give the same bits. Without
 * it v16_fma() rounds twice and results differ in the last place.
 *
 * Included by files that are compiled once per instruction set: everything here is inlined.
 */
#ifndef PENSTOCK_BACKENDS_CPU_SIMD_H
#define PENSTOCK_BACKENDS_CPU_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define V16_BYTES 64
#elif defined(__AVX2__) && defined(__FMA__)
#define V16_BYTES 32
#else
#define V16_BYTES 16
#endif

#define V16_INLINE static inline __attribute__((always_inline, unused))

enum { V16_PARTS = 64 / V16_BYTES, V16_PART = V16_BYTES / 4 };

typedef float v16_part __attribute__((vector_size(V16_BYTES)));
typedef int32_t v16i_part __attribute__((vector_size(V16_BYTES)));

typedef struct v16 {
  v16_part part[V16_PARTS];
} v16;

/* Sixteen 32-bit integers; as a mask, a lane is 0 or -1. */
typedef struct v16i {
  v16i_part part[V16_PARTS];
} v16i;

#define V16_EACH for (int v_ = 0; v_ < V16_PARTS; v_++)

V16_INLINE v16 v16_set1(float x) {
  v16 r;
  V16_EACH r.part[v_] = x - (v16_part){0};
  return r;
}
V16_INLINE v16 v16_zero(void) {
  v16 r;
  V16_EACH r.part[v_] = (v16_part){0};
  return r;
}
V16_INLINE v16i v16i_set1(int32_t x) {
  v16i r;
  V16_EACH r.part[v_] = x - (v16i_part){0};
  return r;
}

/* No alignment is needed. */
V16_INLINE v16 v16_load(const float *p) {
  v16 r;
  V16_EACH memcpy(&r.part[v_], p + v_ * V16_PART, V16_BYTES);
  return r;
}
V16_INLINE void v16_store(float *p, v16 x) {
  V16_EACH memcpy(p + v_ * V16_PART, &x.part[v_], V16_BYTES);
}

/* The first n lanes, 0 <= n <= 16: no more is touched; the lanes after them are loaded as 0. */
V16_INLINE v16 v16_load_n(const float *p, int64_t n) {
#if defined(__AVX512F__)
  return (v16){{(v16_part)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p)}};
#else
  float lanes[16] = {0};
  memcpy(lanes, p, (size_t)n * sizeof *p);
  return v16_load(lanes);
#endif
}
V16_INLINE void v16_store_n(float *p, v16 x, int64_t n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)x.part[0]);
#else
  float lanes[16];
  v16_store(lanes, x);
  memcpy(p, lanes, (size_t)n * sizeof *p);
#endif
}

V16_INLINE v16 v16_add(v16 a, v16 b) {
  V16_EACH a.part[v_] += b.part[v_];
  return a;
}
V16_INLINE v16 v16_sub(v16 a, v16 b) {
  V16_EACH a.part[v_] -= b.part[v_];
  return a;
}
V16_INLINE v16 v16_mul(v16 a, v16 b) {
  V16_EACH a.part[v_] *= b.part[v_];
  return a;
}
V16_INLINE v16 v16_div(v16 a, v16 b) {
  V16_EACH a.part[v_] /= b.part[v_];
  return a;
}

/* a * b + c, rounded once where the instruction set can. */
V16_INLINE v16 v16_fma(v16 a, v16 b, v16 c) {
#if V16_BYTES == 64
  V16_EACH a.part[v_] = (v16_part)_mm512_fmadd_ps((__m512)a.part[v_], (__m512)b.part[v_], (__m512)c.part[v_]);
#elif V16_BYTES == 32
  V16_EACH a.part[v_] = (v16_part)_mm256_fmadd_ps((__m256)a.part[v_], (__m256)b.part[v_], (__m256)c.part[v_]);
#else
  V16_EACH a.part[v_] = a.part[v_] * b.part[v_] + c.part[v_];
#endif
  return a;
}

V16_INLINE v16i v16_gt(v16 a, v16 b) {
  v16i r;
  V16_EACH r.part[v_] = (v16i_part)(a.part[v_] > b.part[v_]);
  return r;
}
V16_INLINE v16i v16_ge(v16 a, v16 b) {
  v16i r;
  V16_EACH r.part[v_] = (v16i_part)(a.part[v_] >= b.part[v_]);
  return r;
}

/* mask ? a : b */
V16_INLINE v16 v16_select(v16i mask, v16 a, v16 b) {
  V16_EACH a.part[v_] =
      (v16_part)((mask.part[v_] & (v16i_part)a.part[v_]) | (~mask.part[v_] & (v16i_part)b.part[v_]));
  return a;
}

/* The larger one; b where either is NaN. */
V16_INLINE v16 v16_max(v16 a, v16 b) {
#if V16_BYTES == 64
  V16_EACH a.part[v_] = (v16_part)_mm512_max_ps((__m512)a.part[v_], (__m512)b.part[v_]);
  return a;
#elif V16_BYTES == 32
  V16_EACH a.part[v_] = (v16_part)_mm256_max_ps((__m256)a.part[v_], (__m256)b.part[v_]);
  return a;
#elif defined(__SSE2__)
  V16_EACH a.part[v_] = (v16_part)_mm_max_ps((__m128)a.part[v_], (__m128)b.part[v_]);
  return a;
#else
  return v16_select(v16_gt(a, b), a, b);
#endif
}

/* The smaller one; b where either is NaN. */
V16_INLINE v16 v16_min(v16 a, v16 b) {
#if V16_BYTES == 64
  V16_EACH a.part[v_] = (v16_part)_mm512_min_ps((__m512)a.part[v_], (__m512)b.part[v_]);
  return a;
#elif V16_BYTES == 32
  V16_EACH a.part[v_] = (v16_part)_mm256_min_ps((__m256)a.part[v_], (__m256)b.part[v_]);
  return a;
#elif defined(__SSE2__)
  V16_EACH a.part[v_] = (v16_part)_mm_min_ps((__m128)a.part[v_], (__m128)b.part[v_]);
  return a;
#else
  return v16_select(v16_gt(b, a), a, b);
#endif
}

/* Correctly rounded square root. */
V16_INLINE v16 v16_sqrt(v16 a) {
#if V16_BYTES == 64
  V16_EACH a.part[v_] = (v16_part)_mm512_sqrt_ps((__m512)a.part[v_]);
#elif V16_BYTES == 32
  V16_EACH a.part[v_] = (v16_part)_mm256_sqrt_ps((__m256)a.part[v_]);
#elif defined(__SSE2__)
  V16_EACH a.part[v_] = (v16_part)_mm_sqrt_ps((__m128)a.part[v_]);
#else
  V16_EACH for (int i = 0; i < V16_PART; i++) a.part[v_][i] = sqrtf(a.part[v_][i]);
#endif
  return a;
}

V16_INLINE v16 v16_abs(v16 a) {
  V16_EACH a.part[v_] = (v16_part)((v16i_part)a.part[v_] & 0x7fffffff);
  return a;
}

/* Reinterprets bits. */
V16_INLINE v16i v16_bits(v16 a) {
  v16i r;
  V16_EACH r.part[v_] = (v16i_part)a.part[v_];
  return r;
}
V16_INLINE v16 v16_from_bits(v16i a) {
  v16 r;
  V16_EACH r.part[v_] = (v16_part)a.part[v_];
  return r;
}
V16_INLINE v16 v16_from_int(v16i a) {
  v16 r;
  V16_EACH r.part[v_] = __builtin_convertvector(a.part[v_], v16_part);
  return r;
}
V16_INLINE v16i v16i_add(v16i a, v16i b) {
  V16_EACH a.part[v_] += b.part[v_];
  return a;
}
V16_INLINE v16i v16i_sub(v16i a, v16i b) {
  V16_EACH a.part[v_] -= b.part[v_];
  return a;
}

typedef uint16_t v16_half_part __attribute__((vector_size(V16_BYTES / 2)));

/* bf16: the upper half of an fp32, exact one way, to nearest (ties to even) the other; NaN stays a quiet NaN.
 */
V16_INLINE v16 v16_load_bf16(const uint16_t *p) {
  v16i r;
  V16_EACH {
    v16_half_part half;
    memcpy(&half, p + v_ * V16_PART, sizeof half);
    r.part[v_] = __builtin_convertvector(half, v16i_part) << 16;
  }
  return v16_from_bits(r);
}
V16_INLINE void v16_store_bf16(uint16_t *p, v16 x) {
  v16i bits = v16_bits(x);
  V16_EACH {
    v16i_part b = bits.part[v_], nan = (v16i_part)(x.part[v_] != x.part[v_]);
    v16i_part upper = (b >> 16) & 0xffff;
    v16i_part rounded = ((b + (0x7fff + (upper & 1))) >> 16) & 0xffff;
    v16i_part r = (nan & (upper | 0x40)) | (~nan & rounded);
    v16_half_part half = __builtin_convertvector(r, v16_half_part);
    memcpy(p + v_ * V16_PART, &half, sizeof half);
  }
}

/* Lanes i and i + 8 first, then i and i + 4, i + 2, i + 1. */
V16_INLINE float v16_sum(v16 a) {
#if defined(__SSE2__)
#if V16_BYTES == 64
  __m256 half =
      _mm256_add_ps(_mm512_castps512_ps256((__m512)a.part[0]),
                    _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd((__m512)a.part[0]), 1)));
  __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
#elif V16_BYTES == 32
  __m256 half = _mm256_add_ps((__m256)a.part[0], (__m256)a.part[1]);
  __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
#else
  __m128 quarter = (__m128)((a.part[0] + a.part[2]) + (a.part[1] + a.part[3]));
#endif
  __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_shuffle_ps(pair, pair, 1)));
#else
  float lanes[16];
  v16_store(lanes, a);
  for (int step = 8; step > 0; step /= 2)
    for (int i = 0; i < step; i++) lanes[i] += lanes[i + step];
  return lanes[0];
#endif
}

V16_INLINE float v16_first(v16 a) {
  return a.part[0][0];
}

/* The largest lane (NaN lanes are passed over or returned). */
V16_INLINE float v16_hmax(v16 a) {
  float lanes[16];
  v16_store(lanes, a);
  for (int step = 8; step > 0; step /= 2)
    for (int i = 0; i < step; i++) lanes[i] = lanes[i] > lanes[i + step] ? lanes[i] : lanes[i + step];
  return lanes[0];
}

/* c[0] + x (c[1] + x (...)), n coefficients. */
V16_INLINE v16 v16_poly(v16 x, const float *c, int n) {
  v16 y = v16_set1(c[n - 1]);
  for (int i = n - 2; i >= 0; i--) y = v16_fma(y, x, v16_set1(c[i]));
  return y;
}

/* e^x, within 1 unit in the last place; 0 below -104, infinity above 88.73, gradual underflow; NaN stays NaN.
 * x = n ln 2 + r with ln 2 in two parts (W. J. Cody, W. Waite, "Software manual for the elementary
 * functions", 1980, chapter 6); e^r = 1 + r + r^2 P(r), P minimax of degree 4 on |r| <= 0.35 (relative
 * error 3.3e-9). */
V16_INLINE v16 v16_exp(v16 x) {
  static const float p[] = {0.4999999305f, 0.1666651479f, 0.04166845674f, 0.008369419047f, 0.001381314788f};
  const v16 round = v16_set1(0x1.8p23f);
  x = v16_max(v16_set1(-104.0f), v16_min(v16_set1(89.0f), x));
  v16 shifted = v16_fma(x, v16_set1(0x1.715476p0f), round); /* its low bits are n */
  v16 n = v16_sub(shifted, round);
  v16 r = v16_fma(n, v16_set1(-0.693359375f), x);
  r = v16_fma(n, v16_set1(2.12194440e-4f), r);
  v16 y = v16_fma(v16_mul(r, r), v16_poly(r, p, 5), r);
  y = v16_add(y, v16_set1(1.0f));
#if V16_BYTES == 64
  return (v16){{(v16_part)_mm512_scalef_ps((__m512)y.part[0], (__m512)n.part[0])}};
#else
  /* 2^n as two factors, each a normal number: one rounding, also where the result is subnormal */
  v16i k = v16i_sub(v16_bits(shifted), v16_bits(round));
  v16i first, second;
  V16_EACH {
    first.part[v_] = k.part[v_] >> 1;
    second.part[v_] = ((k.part[v_] - first.part[v_]) + 127) << 23;
    first.part[v_] = (first.part[v_] + 127) << 23;
  }
  return v16_mul(v16_mul(y, v16_from_bits(first)), v16_from_bits(second));
#endif
}

/* Natural logarithm, within 2 units in the last place; -infinity at 0, NaN below, infinity stays. x = 2^e m
 * with m in [sqrt(1/2), sqrt(2)), f = m - 1: log m = f - f^2/2 + f^3 P(f), P minimax of degree 8 (8e-10). */
V16_INLINE v16 v16_log(v16 x) {
  static const float p[] = {0.3333331131f,  -0.2500000778f, 0.2000221637f,  -0.1666818755f, 0.1421754535f,
                            -0.1240054076f, 0.1189887398f,  -0.1171311595f, 0.0676855925f};
  v16i tiny = v16_gt(v16_set1(0x1p-126f), x); /* subnormal, zero or negative */
  v16 normal = v16_select(tiny, v16_mul(x, v16_set1(0x1p24f)), x);
  v16i bits = v16_bits(normal), e;
  V16_EACH {
    e.part[v_] = (bits.part[v_] - 0x3f3504f3) >> 23;
    bits.part[v_] -= e.part[v_] << 23;
  }
  v16 f = v16_sub(v16_from_bits(bits), v16_set1(1.0f));
  v16 scale = v16_sub(v16_from_int(e), v16_select(tiny, v16_set1(24.0f), v16_zero()));
  v16 square = v16_mul(f, f);
  v16 y = v16_mul(v16_mul(square, f), v16_poly(f, p, 9));
  y = v16_fma(scale, v16_set1(-2.12194440e-4f), y);
  y = v16_fma(square, v16_set1(-0.5f), y);
  y = v16_fma(scale, v16_set1(0.693359375f), v16_add(f, y));
  const v16 zero = v16_zero();
  v16i finite = v16_gt(v16_set1(INFINITY), x), positive = v16_gt(x, zero);
  y = v16_select(finite, y, x); /* infinity and NaN as they came */
  v16 below = v16_select(v16_ge(x, zero), v16_set1(-INFINITY), v16_set1(NAN));
  return v16_select(positive, y, v16_select(finite, below, x));
}

/* 1 / (1 + e^-x) */
V16_INLINE v16 v16_sigmoid(v16 x) {
  const v16 one = v16_set1(1.0f);
  return v16_div(one, v16_add(one, v16_exp(v16_sub(v16_zero(), x))));
}

/* The normal distribution, erf's other face: *out_density = exp(-x^2/2) (times 1/sqrt(2 pi) it is the
 * density), result the integral of the density up to x, (1 + erf(x/sqrt 2)) / 2, to 1e-7 relative for
 * |x| < 1, growing with x^2 as the rounding of x^2/2 does, in both tails. The tail beyond q = |x| is
 * exp(-q^2/2) t P(t) with t = 1/(1 + 0.3 q), the form of C. Hastings, "Approximations for digital computers",
 * 1955, with P minimax of degree 9 on 0 <= q <= 14 (relative error 3.5e-9). */
V16_INLINE v16 v16_normal(v16 x, v16 *out_density) {
  static const float p[] = {0.1196866341f,   0.11957284f,   0.1102273349f,  0.07842552237f, 0.09605801418f,
                            -0.07924772107f, 0.1915821979f, -0.2280679243f, 0.1123759664f,  -0.02061286633f};
  const v16 one = v16_set1(1.0f);
  v16 q = v16_abs(x);
  v16 density = v16_exp(v16_mul(v16_mul(q, q), v16_set1(-0.5f)));
  v16 t = v16_div(one, v16_fma(q, v16_set1(0.3f), one));
  v16 tail = v16_mul(v16_mul(density, t), v16_poly(t, p, 10));
  *out_density = density;
  return v16_select(v16_gt(x, v16_zero()), v16_sub(one, tail), tail);
}

#endif
