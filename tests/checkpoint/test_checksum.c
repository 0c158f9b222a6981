#include "core/checkpoint/checksum.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t sum_of(const void *bytes, size_t n) {
  pst_checksum sum;
  pst_checksum_init(&sum);
  pst_checksum_add(&sum, bytes, n);
  return pst_checksum_value(&sum);
}

/* Published XXH64 values (seed 0). */
static void known_values(void **state) {
  const char *text = "Nobody inspects the spammish repetition";
  assert_true(sum_of("", 0) == 0xef46db3751d8e999u);
  assert_true(sum_of("a", 1) == 0xd24ec4f1a98c6e5bu);
  assert_true(sum_of("abc", 3) == 0x44bc2cf5ad770999u);
  assert_true(sum_of(text, strlen(text)) == 0xfbcea83c8a378bf1u);
}

static void grouping_does_not_matter(void **state) {
  unsigned char bytes[301];
  for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * 37 + (i >> 3));
  uint64_t whole = sum_of(bytes, sizeof bytes);
  for (size_t piece = 1; piece <= sizeof bytes; piece++) {
    pst_checksum sum;
    pst_checksum_init(&sum);
    for (size_t at = 0; at < sizeof bytes; at += piece)
      pst_checksum_add(&sum, bytes + at, piece < sizeof bytes - at ? piece : sizeof bytes - at);
    assert_true(pst_checksum_value(&sum) == whole);
  }
}

static void one_bit_is_seen(void **state) {
  unsigned char bytes[100] = {0};
  uint64_t clean = sum_of(bytes, sizeof bytes);
  for (size_t bit = 0; bit < 8 * sizeof bytes; bit++) {
    bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
    assert_true(sum_of(bytes, sizeof bytes) != clean);
    bytes[bit / 8] = 0;
  }
  assert_true(sum_of(bytes, 99) != clean);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(known_values),
      cmocka_unit_test(grouping_does_not_matter),
      cmocka_unit_test(one_bit_is_seen),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
