#include "core/base/dtype.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* The nearest value of a 16-bit format by search over all of its values, ties to the even code: slow and
 * plainly right. Codes of finite, non-negative values ascend with their value. */
static uint16_t nearest_by_search(double x, float (*value)(uint16_t), uint16_t infinity) {
  double magnitude = fabs(x);
  uint16_t low = 0, high = infinity;
  while (high - low > 1) {
    uint16_t middle = (uint16_t)((low + high) / 2);
    if (value(middle) <= magnitude)
      low = middle;
    else
      high = middle;
  }
  /* for rounding, infinity stands one step above the largest finite value */
  double below = value(low);
  double above = high == infinity ? 2.0 * value((uint16_t)(infinity - 1)) - value((uint16_t)(infinity - 2))
                                  : value(high);
  double to_low = magnitude - below, to_high = above - magnitude;
  uint16_t code = to_low < to_high || (to_low == to_high && low % 2 == 0) ? low : high;
  return (uint16_t)(code | (signbit(x) ? 0x8000u : 0));
}

static float f16_value(uint16_t h) {
  return pst_f16_to_f32(h);
}
static float bf16_value(uint16_t h) {
  return pst_bf16_to_f32(h);
}

static void sizes_and_names(void **state) {
  assert_int_equal(pst_dtype_size(PST_F32), 4);
  assert_int_equal(pst_dtype_size(PST_BF16), 2);
  assert_int_equal(pst_dtype_size(PST_F64), 8);
  assert_int_equal(pst_dtype_size(PST_U8), 1);
  assert_int_equal(pst_dtype_size(PST_DTYPE_COUNT), 0);
  assert_string_equal(pst_dtype_name(PST_BF16), "bf16");
  assert_string_equal(pst_dtype_name((pst_dtype)-1), "unknown");
  for (int i = 0; i < PST_DTYPE_COUNT; i++) {
    assert_int_equal(pst_dtype_by_name(pst_dtype_name((pst_dtype)i)), i);
    assert_int_equal(pst_dtype_by_safetensors_name(pst_dtype_safetensors_name((pst_dtype)i)), i);
  }
  assert_int_equal(pst_dtype_by_name("F32"), PST_DTYPE_COUNT);
  assert_int_equal(pst_dtype_by_safetensors_name("f32"), PST_DTYPE_COUNT);
}

static void f16_values_are_those_of_the_standard(void **state) {
  for (unsigned h = 0; h < 0x7c00; h++) {
    unsigned exponent = h >> 10, fraction = h & 0x3ff;
    double wanted = exponent ? ldexp(1024 + fraction, (int)exponent - 25) : ldexp(fraction, -24);
    assert_true(pst_f16_to_f32((uint16_t)h) == wanted);
    assert_true(pst_f16_to_f32((uint16_t)(h | 0x8000)) == -wanted);
  }
  assert_true(pst_f16_to_f32(0x7c00) == INFINITY);
  assert_true(pst_f16_to_f32(0xfc00) == -INFINITY);
  assert_true(isnan(pst_f16_to_f32(0x7c01)));
  assert_true(signbit(pst_f16_to_f32(0x8000)));
}

static void every_16_bit_value_survives(void **state) {
  for (unsigned h = 0; h < 0x10000; h++) {
    float half = pst_f16_to_f32((uint16_t)h), brain = pst_bf16_to_f32((uint16_t)h);
    if (!isnan(half)) assert_int_equal(pst_f32_to_f16(half), h);
    if (!isnan(brain)) assert_int_equal(pst_f32_to_bf16(brain), h);
  }
}

static void rounding_is_to_nearest_even(void **state) {
  uint64_t seed = 20260101, x = seed;
  print_message("seed %llu\n", (unsigned long long)seed);
  for (int i = 0; i < 300000; i++) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    uint32_t bits = (uint32_t)(x >> 32);
    if (i % 3 == 0)
      bits = (bits & 0x80001fffu) | (uint32_t)(0x33000000u + (x >> 8) % 0x15000000u) / 0x2000 * 0x2000;
    if (i % 5 == 0) bits &= 0xfffff000u;                   /* ties of binary16 */
    if (i % 7 == 0) bits = (bits & 0xffff0000u) | 0x8000u; /* ties of bfloat16 */
    float value = pst_f32_from_bits(bits);
    if (!isfinite(value)) continue;
    assert_int_equal(pst_f32_to_f16(value), nearest_by_search(value, f16_value, 0x7c00));
    assert_int_equal(pst_f32_to_bf16(value), nearest_by_search(value, bf16_value, 0x7f80));
  }
}

static void nan_and_infinity_are_kept(void **state) {
  const uint32_t nans[] = {0x7f800001u, 0x7fc00000u, 0xff800001u, 0x7fffffffu, 0xffffffffu};
  for (size_t i = 0; i < sizeof nans / sizeof *nans; i++) {
    uint16_t half = pst_f32_to_f16(pst_f32_from_bits(nans[i]));
    uint16_t brain = pst_f32_to_bf16(pst_f32_from_bits(nans[i]));
    assert_int_equal(half & 0x7e00, 0x7e00); /* quiet */
    assert_int_equal(brain & 0x7fc0, 0x7fc0);
    assert_int_equal(half >> 15, nans[i] >> 31);
    assert_int_equal(brain >> 15, nans[i] >> 31);
  }
  assert_int_equal(pst_f32_to_f16(INFINITY), 0x7c00);
  assert_int_equal(pst_f32_to_bf16(-INFINITY), 0xff80);
  assert_int_equal(pst_f32_to_f16(65519.0f), 0x7bff);
  assert_int_equal(pst_f32_to_f16(65520.0f), 0x7c00);
}

static void arrays_convert(void **state) {
  const float source[5] = {0.0f, -1.5f, 65504.0f, 1e-7f, 3.14159f};
  const pst_dtype floats[] = {PST_F32, PST_BF16, PST_F16, PST_F64};
  for (size_t d = 0; d < 4; d++) {
    unsigned char stored[1 + 5 * 8];
    float back[5];
    assert_true(pst_dtype_from_f32(floats[d], source, 5, stored + 1)); /* odd address */
    assert_true(pst_dtype_to_f32(floats[d], stored + 1, 5, back));
    for (int i = 0; i < 5; i++) {
      float wanted = source[i];
      if (floats[d] == PST_BF16) wanted = pst_bf16_to_f32(pst_f32_to_bf16(source[i]));
      if (floats[d] == PST_F16) wanted = pst_f16_to_f32(pst_f32_to_f16(source[i]));
      assert_true(back[i] == wanted);
    }
  }
  float untouched = 7.0f;
  assert_false(pst_dtype_to_f32(PST_I32, source, 1, &untouched));
  assert_true(untouched == 7.0f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sizes_and_names),
      cmocka_unit_test(f16_values_are_those_of_the_standard),
      cmocka_unit_test(every_16_bit_value_survives),
      cmocka_unit_test(rounding_is_to_nearest_even),
      cmocka_unit_test(nan_and_infinity_are_kept),
      cmocka_unit_test(arrays_convert),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
