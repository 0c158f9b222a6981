/* Values placed by liveness: never two in one place at one time, never past a block, not larger than needed
 * by more than their sum. */
#include "core/graph/memory_plan.h"

#include "core/base/rng.h"
#include "tests/support.h"

#include <stdlib.h>
#include <string.h>

enum { SEED = 41, ROUNDS = 400, SPANS = 60, TIMES = 50 };

static uint32_t draw(uint32_t round, uint32_t i) {
  uint32_t r[4];
  pst_rng_philox(pst_rng_key_make(SEED, round), (uint32_t[4]){i, 0, 0, 0}, r);
  return r[0];
}

static int64_t aligned(int64_t bytes) {
  return (bytes + PST_ALIGN - 1) / PST_ALIGN * PST_ALIGN;
}

static void check(const pst_span *s, int n, int64_t limit, const pst_layout *layout, uint32_t round) {
  for (int i = 0; i < n; i++) {
    if (s[i].offset < 0 || s[i].offset % PST_ALIGN || s[i].block >= layout->n_blocks ||
        s[i].offset + s[i].bytes > layout->block_bytes[s[i].block])
      fail_msg("seed %d, round %u: span %d lies at %lld of block %d", SEED, round, i, (long long)s[i].offset,
               s[i].block);
    for (int j = 0; j < i; j++)
      if (s[i].block == s[j].block && s[i].first <= s[j].last && s[j].first <= s[i].last &&
          s[i].offset < s[j].offset + s[j].bytes && s[j].offset < s[i].offset + s[i].bytes)
        fail_msg("seed %d, round %u: spans %d and %d overlap", SEED, round, i, j);
  }
  int64_t all = 0, peak = 0, sum = 0;
  for (int t = 0; t < TIMES; t++) {
    int64_t alive = 0;
    for (int i = 0; i < n; i++)
      if (s[i].first <= t && t <= s[i].last) alive += aligned(s[i].bytes);
    if (alive > peak) peak = alive;
  }
  for (int i = 0; i < n; i++) all += aligned(s[i].bytes);
  for (int b = 0; b < layout->n_blocks; b++) {
    if (limit > 0) assert_true(layout->block_bytes[b] <= limit);
    sum += layout->block_bytes[b];
  }
  assert_int_equal(sum, layout->bytes);
  assert_true(layout->bytes >= peak);
  assert_true(layout->bytes <= all);
}

static void random_spans_keep_clear(void **state) {
  (void)state;
  print_message("seed %d\n", SEED);
  double used = 0, needed = 0;
  for (uint32_t round = 0; round < ROUNDS; round++) {
    pst_span s[SPANS];
    int n = 1 + (int)(draw(round, 0) % SPANS);
    int64_t limit = round % 2 ? 4096 : 0, peak = 0;
    for (int i = 0; i < n; i++) {
      uint32_t at = 1 + 3 * (uint32_t)i;
      int32_t first = (int32_t)(draw(round, at) % TIMES);
      s[i] = (pst_span){.bytes = 1 + draw(round, at + 1) % 4000,
                        .first = first,
                        .last = first + (int32_t)(draw(round, at + 2) % (uint32_t)(TIMES - first))};
    }
    pst_layout layout = {0};
    assert_ok(pst_memory_plan(s, n, limit, &layout));
    check(s, n, limit, &layout, round);
    for (int t = 0; t < TIMES; t++) {
      int64_t alive = 0;
      for (int i = 0; i < n; i++)
        if (s[i].first <= t && t <= s[i].last) alive += aligned(s[i].bytes);
      if (alive > peak) peak = alive;
    }
    if (limit == 0) used += (double)layout.bytes, needed += (double)peak;
    free(layout.block_bytes);
  }
  print_message("%.1f %% above the most that is alive at once\n", (used / needed - 1) * 100);
  assert_true(used < needed * 1.25);
}

static void values_never_alive_together_share(void **state) {
  (void)state;
  pst_span s[] = {{.bytes = 4096, .first = 0, .last = 3}, {.bytes = 512, .first = 4, .last = 9}};
  pst_layout layout = {0};
  assert_ok(pst_memory_plan(s, 2, 0, &layout));
  assert_int_equal(s[0].offset, 0);
  assert_int_equal(s[1].offset, 0);
  assert_int_equal(layout.bytes, 4096);
  free(layout.block_bytes);
}

static void what_is_larger_than_a_block_is_refused(void **state) {
  (void)state;
  pst_span s[] = {{.bytes = 64}, {.bytes = 4097}};
  pst_layout layout = {0};
  assert_fails(pst_memory_plan(s, 2, 4096, &layout), PST_NO_MEMORY, "a tensor of 4097 bytes");
  free(layout.block_bytes);
  layout = (pst_layout){0};
  uint16_t block = 9;
  int64_t offset = -7;
  assert_fails(pst_layout_place(&layout, 4097, 4096, &block, &offset), PST_NO_MEMORY, "of 4096");
  assert_int_equal(block, 9);
  assert_ok(pst_layout_place(&layout, 4000, 4096, &block, &offset));
  assert_ok(pst_layout_place(&layout, 65, 4096, &block, &offset));
  assert_int_equal(block, 1);
  assert_int_equal(offset, 0);
  assert_int_equal(layout.bytes, 4032 + 128);
  free(layout.block_bytes);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_spans_keep_clear),
      cmocka_unit_test(values_never_alive_together_share),
      cmocka_unit_test(what_is_larger_than_a_block_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
