/* The order of the data: epochs that hold each window once, exact resume and epoch edges, an evaluation of
 * the whole. */
#include "core/data/sampler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static pst_sampler make(pst_sampler_options options) {
  pst_sampler s;
  assert_int_equal(pst_sampler_init(&options, &s), PST_OK);
  return s;
}

/* Every window of an epoch comes exactly once, with one phase for all, and lies within the tokens. */
static void check_epochs(int64_t n_tokens, int64_t T, int64_t global, bool fixed) {
  pst_sampler s = make((pst_sampler_options){
      .seed = 3, .n_tokens = n_tokens, .sequence = T, .global = global, .fixed_phase = fixed});
  int64_t n = s.n_windows;
  assert_true(n >= 1);
  char *hit = malloc((size_t)n);
  assert_non_null(hit);
  for (int64_t epoch = 0; epoch < 4; epoch++) {
    int64_t phase = -1;
    memset(hit, 0, (size_t)n);
    for (int64_t g = epoch * n; g < (epoch + 1) * n; g++) {
      int64_t start = pst_sampler_start(&s, g / global, g % global);
      assert_int_equal(pst_sampler_epoch(&s, g / global, g % global), epoch);
      assert_in_range(start, 0, n_tokens - T - 1);
      if (phase < 0) phase = start % T;
      assert_int_equal(start % T, phase);
      if (!s.phase) assert_int_equal(phase, 0);
      assert_int_equal(hit[start / T], 0);
      hit[start / T] = 1;
    }
  }
  free(hit);
}

static void an_epoch_holds_every_window_once(void **state) {
  for (int64_t n = 2; n < 60; n++)
    for (int64_t T = 1; T < n && T < 9; T++)
      for (int64_t global = 1; global < 8; global += 3) {
        check_epochs(n, T, global, false);
        check_epochs(n, T, global, true);
      }
  check_epochs(100000, 64, 7, false);
}

static void the_number_of_windows_is_as_stated(void **state) {
  /* T + 1 tokens make one window, 2 T just one, 2 T + 1 two. */
  assert_int_equal(make((pst_sampler_options){.n_tokens = 33, .sequence = 32, .global = 1}).n_windows, 1);
  assert_int_equal(make((pst_sampler_options){.n_tokens = 64, .sequence = 32, .global = 1}).n_windows, 1);
  assert_int_equal(make((pst_sampler_options){.n_tokens = 65, .sequence = 32, .global = 1}).n_windows, 2);
  pst_sampler s = make((pst_sampler_options){.n_tokens = 32 * 9, .sequence = 32, .global = 1});
  assert_true(s.phase && s.n_windows == 8);
  s = make((pst_sampler_options){.n_tokens = 32 * 9 - 1, .sequence = 32, .global = 1});
  assert_true(!s.phase && s.n_windows == 8);
}

static void epochs_differ_in_order_and_phase(void **state) {
  pst_sampler s = make((pst_sampler_options){.seed = 1, .n_tokens = 6400, .sequence = 64, .global = 99});
  assert_int_equal(s.n_windows, 99);
  int same_place = 0, phases[64] = {0}, distinct = 0;
  for (int64_t i = 0; i < 99; i++)
    same_place += pst_sampler_start(&s, 0, i) / 64 == pst_sampler_start(&s, 1, i) / 64;
  assert_true(same_place < 10);
  for (int64_t epoch = 0; epoch < 200; epoch++) phases[pst_sampler_start(&s, epoch, 0) % 64]++;
  for (int i = 0; i < 64; i++) distinct += phases[i] > 0;
  assert_true(distinct > 50);
}

/* 3.5 steps of data, 7 steps asked: the fourth step holds the end of one epoch and the beginning of the next.
 */
static void data_that_is_used_up_begins_again(void **state) {
  pst_sampler s = make((pst_sampler_options){.seed = 1, .n_tokens = 7 * 32 + 1, .sequence = 32, .global = 2});
  assert_int_equal(s.n_windows, 7);
  int seen[2][7] = {{0}};
  for (int64_t step = 0; step < 7; step++) {
    for (int64_t i = 0; i < 2; i++) {
      int64_t epoch = pst_sampler_epoch(&s, step, i);
      assert_int_equal(epoch, (step * 2 + i) / 7);
      seen[epoch][pst_sampler_start(&s, step, i) / 32]++;
    }
  }
  for (int e = 0; e < 2; e++)
    for (int w = 0; w < 7; w++) assert_int_equal(seen[e][w], 1);
}

/* The grouping into steps does not change the order of sequences. */
static void the_order_does_not_depend_on_the_batch(void **state) {
  pst_sampler_options o = {.seed = 9, .n_tokens = 5000, .sequence = 16, .global = 4};
  pst_sampler four = make(o);
  o.global = 6;
  pst_sampler six = make(o);
  for (int64_t g = 0; g < 1000; g++)
    assert_int_equal(pst_sampler_start(&four, g / 4, g % 4), pst_sampler_start(&six, g / 6, g % 6));
}

static void random_starts_are_uniform_and_in_range(void **state) {
  enum { N = 40, T = 8, STARTS = N - T };
  pst_sampler s = make((pst_sampler_options){
      .mode = PST_SAMPLER_RANDOM, .seed = 2, .n_tokens = N, .sequence = T, .global = 100});
  int count[STARTS] = {0};
  for (int64_t step = 0; step < 320; step++) {
    for (int64_t i = 0; i < 100; i++) {
      int64_t start = pst_sampler_start(&s, step, i);
      assert_in_range(start, 0, STARTS - 1);
      count[start]++;
    }
  }
  for (int i = 0; i < STARTS; i++) assert_in_range(count[i], 1000 - 160, 1000 + 160);
  s.n_tokens = T + 1;
  assert_int_equal(pst_sampler_start(&s, 5, 5), 0);
}

static void the_seed_changes_the_order(void **state) {
  pst_sampler_options o = {.n_tokens = 100000, .sequence = 10, .global = 100};
  for (int mode = PST_SAMPLER_WINDOWS; mode <= PST_SAMPLER_RANDOM; mode++) {
    o.mode = (pst_sampler_mode)mode;
    o.seed = 1;
    pst_sampler a = make(o);
    o.seed = 2;
    pst_sampler b = make(o);
    int same = 0;
    for (int64_t i = 0; i < 100; i++) same += pst_sampler_start(&a, 0, i) == pst_sampler_start(&b, 0, i);
    assert_true(same < 5);
  }
}

static void an_evaluation_covers_every_target_once(void **state) {
  for (int64_t n = 2; n < 40; n++) {
    for (int64_t T = 1; T < 9; T++) {
      pst_sampler s = make(
          (pst_sampler_options){.mode = PST_SAMPLER_IN_ORDER, .n_tokens = n, .sequence = T, .global = 3});
      int64_t targets = 0;
      for (int64_t g = 0; g < 3 * pst_sampler_steps(&s); g++) {
        int64_t start = pst_sampler_start(&s, g / 3, g % 3);
        assert_int_equal(start, g < s.n_windows ? g * T : -1);
        if (start >= 0) {
          int64_t here = n - 1 - start < T ? n - 1 - start : T;
          assert_true(here >= 1);
          targets += here;
        }
      }
      assert_int_equal(targets, n - 1);
      assert_int_equal(pst_sampler_start(&s, pst_sampler_steps(&s), 0), -1);
    }
  }
  pst_sampler s = make((pst_sampler_options){
      .mode = PST_SAMPLER_IN_ORDER, .n_tokens = 1000, .sequence = 10, .global = 5, .n_windows = 13});
  assert_int_equal(pst_sampler_steps(&s), 3);
  assert_int_equal(pst_sampler_start(&s, 2, 2), 120);
  assert_int_equal(pst_sampler_start(&s, 2, 3), -1);
}

static void bad_options_are_refused(void **state) {
  pst_sampler s;
  pst_sampler_options ok = {.n_tokens = 33, .sequence = 32, .global = 1}, o = ok;
  assert_int_equal(pst_sampler_init(&o, &s), PST_OK);
  o.n_tokens = 32;
  assert_int_equal(pst_sampler_init(&o, &s), PST_INVALID);
  assert_non_null(strstr(pst_error(), "32 tokens, needs at least 33"));
  o = ok, o.sequence = 0;
  assert_int_equal(pst_sampler_init(&o, &s), PST_INVALID);
  o = ok, o.sequence = INT64_MAX;
  assert_int_equal(pst_sampler_init(&o, &s), PST_INVALID);
  o = ok, o.global = 0;
  assert_int_equal(pst_sampler_init(&o, &s), PST_INVALID);
  o = ok, o.mode = (pst_sampler_mode)9;
  assert_int_equal(pst_sampler_init(&o, &s), PST_INVALID);
  o = ok, o.n_windows = -1;
  assert_int_equal(pst_sampler_init(&o, &s), PST_INVALID);
}

/* Pinned, so that a checkpoint of today finds the same data with the program of tomorrow; computed
 * independently. */
static void starts_are_the_pinned_ones(void **state) {
  static const int64_t at[6][2] = {{0, 0}, {0, 1}, {0, 7}, {12, 2}, {12, 3}, {500, 5}};
  static const int64_t windows[6] = {78, 978, 8, 328, 2, 236};
  static const int64_t random[6] = {893, 240, 248, 940, 493, 207};
  pst_sampler_options o = {.seed = 7, .n_tokens = 1000, .sequence = 10, .global = 8};
  pst_sampler w = make(o);
  o.mode = PST_SAMPLER_RANDOM;
  pst_sampler r = make(o);
  for (int i = 0; i < 6; i++) {
    assert_int_equal(pst_sampler_start(&w, at[i][0], at[i][1]), windows[i]);
    assert_int_equal(pst_sampler_start(&r, at[i][0], at[i][1]), random[i]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_epoch_holds_every_window_once),
      cmocka_unit_test(the_number_of_windows_is_as_stated),
      cmocka_unit_test(epochs_differ_in_order_and_phase),
      cmocka_unit_test(data_that_is_used_up_begins_again),
      cmocka_unit_test(the_order_does_not_depend_on_the_batch),
      cmocka_unit_test(random_starts_are_uniform_and_in_range),
      cmocka_unit_test(the_seed_changes_the_order),
      cmocka_unit_test(an_evaluation_covers_every_target_once),
      cmocka_unit_test(bad_options_are_refused),
      cmocka_unit_test(starts_are_the_pinned_ones),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
