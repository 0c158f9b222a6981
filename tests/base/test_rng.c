/* Random numbers: the paper's vectors, values checked against an independent computation, shuffles that are
 * bijections. */
#include "core/base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void philox_gives_the_published_vectors(void **state) {
  /* Random123's kat_vectors, philox4x32 10 rounds: counter, key, output. */
  static const uint32_t v[3][10] = {{0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
                                    {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff,
                                     0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
                                    {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0,
                                     0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}};
  for (int i = 0; i < 3; i++) {
    uint32_t out[4];
    pst_rng_philox((pst_rng_key){{v[i][4], v[i][5]}}, v[i], out);
    for (int j = 0; j < 4; j++) assert_int_equal(out[j], v[i][6 + j]);
  }
}

static void keys_differ_by_seed_and_stream(void **state) {
  pst_rng_key k = pst_rng_key_make(1, 2), zero = pst_rng_key_make(0, 0);
  assert_true(k.k[0] == 0x9673066b && k.k[1] == 0xbcd9dbb4);
  assert_true(zero.k[0] == 0x4d197e6f && zero.k[1] == 0xa706dd2f);
  enum { SIDE = 64 };
  uint64_t seen[SIDE * SIDE];
  for (uint64_t s = 0; s < SIDE; s++) {
    for (uint64_t t = 0; t < SIDE; t++) {
      pst_rng_key key = pst_rng_key_make(s, t);
      seen[s * SIDE + t] = ((uint64_t)key.k[1] << 32) | key.k[0];
      for (uint64_t p = 0; p < s * SIDE + t; p++) assert_true(seen[p] != seen[s * SIDE + t]);
    }
  }
}

static void uniform_is_in_the_half_open_interval(void **state) {
  assert_true(pst_rng_uniform(0) == 0.0f);
  assert_true(pst_rng_uniform(UINT32_MAX) == 1.0f - 0x1p-24f);
  assert_true(pst_rng_uniform(0x80000000u) == 0.5f);
}

/* Computed in Python from the same definition, with the log, cos and sin of its libm, rounded to float. */
static void normal_gives_the_independent_values(void **state) {
  static const float want[8] = {0x1.bede88p-1f, -0x1.6d3beep-1f, 0x1.d08052p+0f, -0x1.91f8cep-1f,
                                0x1.17ca84p+0f, 0x1.115446p+1f,  0x1.8ff24cp-2f, 0x1.bf34d2p-1f};
  static const float far[2] = {0x1.f401fep-2f, 0x1.e68b20p-2f};
  float x[8];
  pst_rng_key key = pst_rng_key_make(1, 2);
  pst_rng_normal(key, 0, 8, 0.0f, 1.0f, x);
  assert_memory_equal(x, want, sizeof want);
  pst_rng_normal(key, (INT64_C(1) << 40) + 1, 2, 0.5f, 0.02f, x);
  assert_memory_equal(x, far, sizeof far);
}

static void any_part_of_a_tensor_can_be_filled_alone(void **state) {
  enum { N = 101 };
  float whole[N], part[N];
  pst_rng_key key = pst_rng_key_make(7, pst_rng_hash_text("h.0.attn.weight"));
  pst_rng_normal(key, 0, N, 0.0f, 0.02f, whole);
  for (int first = 0; first < N; first++) {
    for (int n = 0; n <= 3 && first + n <= N; n++) {
      pst_rng_normal(key, first, n, 0.0f, 0.02f, part);
      assert_true(n == 0 || memcmp(part, whole + first, (size_t)n * sizeof *part) == 0);
    }
  }
}

static void normal_has_the_moments_of_a_normal(void **state) {
  enum { N = 1 << 20 };
  float *x = malloc(N * sizeof *x);
  assert_non_null(x);
  pst_rng_normal(pst_rng_key_make(11, 0), 0, N, 0.0f, 1.0f, x);
  double m[5] = {0}, pair = 0;
  int beyond_two = 0;
  for (int i = 0; i < N; i++) {
    double p = 1;
    for (int k = 1; k <= 4; k++) m[k] += (p *= x[i]) / N;
    if (fabsf(x[i]) > 2) beyond_two++;
    if (i & 1) pair += (double)x[i] * x[i - 1] * 2 / N;
  }
  free(x);
  /* five standard errors of each */
  assert_true(fabs(m[1]) < 5 / 1024.0);
  assert_true(fabs(m[2] - 1) < 5 * sqrt(2) / 1024);
  assert_true(fabs(m[3]) < 5 * sqrt(15) / 1024);
  assert_true(fabs(m[4] - 3) < 5 * sqrt(96) / 1024);
  assert_true(fabs(pair) < 5 * sqrt(2) / 1024);
  assert_true(fabs((double)beyond_two / N - 0.0455003) < 5 * 0.2084 / 1024);
}

static void names_hash_as_computed_by_hand(void **state) {
  assert_true(pst_rng_hash_text("foobar") == UINT64_C(0x5df295413403de4f));
  assert_true(pst_rng_hash_text("") == UINT64_C(0xc3817c016ba4ff30));
}

static void check_bijection(pst_rng_key key, int64_t n) {
  unsigned char *hit = calloc(1, (size_t)n);
  assert_non_null(hit);
  for (int64_t i = 0; i < n; i++) {
    int64_t p = pst_rng_permute(key, n, i);
    assert_in_range(p, 0, n - 1);
    assert_int_equal(hit[p], 0);
    hit[p] = 1;
  }
  free(hit);
}

static void permute_is_a_bijection(void **state) {
  pst_rng_key key = pst_rng_key_make(3, 4);
  for (int64_t n = 1; n <= 300; n++) check_bijection(key, n);
  check_bijection(key, 65536);
  check_bijection(key, 65537);
  check_bijection(pst_rng_key_make(5, 6), 200001);
}

static void permute_gives_the_independent_values(void **state) {
  static const int64_t ten[10] = {1, 4, 8, 2, 5, 3, 6, 9, 7, 0};
  static const int64_t big[3] = {788512026920350, 63502085626993, 926889784331298};
  pst_rng_key key = pst_rng_key_make(1, 2);
  for (int i = 0; i < 10; i++) assert_int_equal(pst_rng_permute(key, 10, i), ten[i]);
  for (int i = 0; i < 3; i++) assert_true(pst_rng_permute(key, INT64_C(1000000000000000), i) == big[i]);
  int64_t last = pst_rng_permute(key, INT64_MAX, INT64_MAX - 1);
  assert_true(last >= 0 && last < INT64_MAX);
}

/* Over many keys each value comes first about equally often. */
static void permute_is_even_over_keys(void **state) {
  enum { N = 13, KEYS = 13000 };
  int first[N] = {0};
  for (uint64_t k = 0; k < KEYS; k++) first[pst_rng_permute(pst_rng_key_make(9, k), N, 0)]++;
  for (int i = 0; i < N; i++) assert_in_range(first[i], 1000 - 160, 1000 + 160);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(philox_gives_the_published_vectors),
      cmocka_unit_test(keys_differ_by_seed_and_stream),
      cmocka_unit_test(uniform_is_in_the_half_open_interval),
      cmocka_unit_test(normal_gives_the_independent_values),
      cmocka_unit_test(any_part_of_a_tensor_can_be_filled_alone),
      cmocka_unit_test(normal_has_the_moments_of_a_normal),
      cmocka_unit_test(names_hash_as_computed_by_hand),
      cmocka_unit_test(permute_is_a_bijection),
      cmocka_unit_test(permute_gives_the_independent_values),
      cmocka_unit_test(permute_is_even_over_keys),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
