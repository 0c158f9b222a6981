/* The content hash gives the values of the reference library, whatever the slicing. */
#include "core/base/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { N = 1000 };

static unsigned char data[N];

static int fill_data(void **state) {
  for (unsigned i = 0; i < N; i++) data[i] = (unsigned char)(i * i * 7 + i * 3 + 1);
  return 0;
}

static void values_are_those_of_the_reference_library(void **state) {
  /* XXH64 of the first n bytes of `data`, as libxxhash 0.8.1 gives it. */
  static const struct {
    size_t n;
    uint64_t seed, value;
  } want[] = {
      {0, 0, UINT64_C(0xef46db3751d8e999)},    {0, 0x9e3779b1, UINT64_C(0xac75fda2929b17ef)},
      {1, 0, UINT64_C(0x8a4127811b21e730)},    {1, 0x9e3779b1, UINT64_C(0x211ae13247ce135f)},
      {3, 0, UINT64_C(0xb7539f641e85bd3e)},    {3, 0x9e3779b1, UINT64_C(0x69678820735cacf7)},
      {4, 0, UINT64_C(0xf3aee04bb871f546)},    {4, 0x9e3779b1, UINT64_C(0xae79948f3c052bb8)},
      {7, 0, UINT64_C(0x632cfa84d0adfb57)},    {7, 0x9e3779b1, UINT64_C(0x984488445f0139af)},
      {8, 0, UINT64_C(0x54ef376ae5a9899a)},    {8, 0x9e3779b1, UINT64_C(0x9fce88389fd08520)},
      {14, 0, UINT64_C(0xc3fc110e2f4c95b2)},   {14, 0x9e3779b1, UINT64_C(0x730500505208cf8d)},
      {31, 0, UINT64_C(0x102f84529b518a71)},   {31, 0x9e3779b1, UINT64_C(0xd608aa910fd227f6)},
      {32, 0, UINT64_C(0x2bcbae78024c9961)},   {32, 0x9e3779b1, UINT64_C(0x7cfef178afc45e3d)},
      {33, 0, UINT64_C(0xe0c96bb34f6a125a)},   {33, 0x9e3779b1, UINT64_C(0x4f2d05dbafb78341)},
      {63, 0, UINT64_C(0xc2f526b3be2c3ef1)},   {63, 0x9e3779b1, UINT64_C(0xb4fa38006df85aee)},
      {64, 0, UINT64_C(0xc952d1a584fb9cdb)},   {64, 0x9e3779b1, UINT64_C(0x836c1909b490d1ff)},
      {101, 0, UINT64_C(0xda7fe5fe5d442edf)},  {101, 0x9e3779b1, UINT64_C(0x5c785aa180877513)},
      {1000, 0, UINT64_C(0xaa126ee8718cd38e)}, {1000, 0x9e3779b1, UINT64_C(0xfc605665afb7158c)},
  };
  for (size_t i = 0; i < sizeof want / sizeof *want; i++)
    assert_true(pst_hash_bytes(data, want[i].n, want[i].seed) == want[i].value);
  assert_true(pst_hash_bytes("abc", 3, 0) == UINT64_C(0x44bc2cf5ad770999));
}

static void slicing_does_not_matter(void **state) {
  uint64_t whole = pst_hash_bytes(data, N, 5);
  for (size_t step = 1; step < 80; step++) {
    pst_hash h;
    pst_hash_init(&h, 5);
    for (size_t at = 0; at < N; at += step) {
      assert_true(pst_hash_value(&h) == pst_hash_bytes(data, at, 5));
      pst_hash_update(&h, data + at, at + step <= N ? step : N - at);
      pst_hash_update(&h, data, 0);
    }
    assert_true(pst_hash_value(&h) == whole);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(values_are_those_of_the_reference_library),
      cmocka_unit_test(slicing_does_not_matter),
  };
  return cmocka_run_group_tests(tests, fill_data, NULL);
}
