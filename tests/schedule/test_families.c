/* The families' lists against published ones, formulas and the checker. */
#include "tests/schedule/fixture.h"

static void test_one_f_one_b_lists(void **state) {
  static const char *const wanted[] = {
      "0F0 0F1 0F2 0F3 0B0 0F4 0B1 0F5 0B2 0F6 0B3 0F7 0B4 0B5 0B6 0B7",
      "1F0 1F1 1F2 1B0 1F3 1B1 1F4 1B2 1F5 1B3 1F6 1B4 1F7 1B5 1B6 1B7",
      "2F0 2F1 2B0 2F2 2B1 2F3 2B2 2F4 2B3 2F5 2B4 2F6 2B5 2F7 2B6 2B7",
      "3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5 3F6 3B6 3F7 3B7",
  };
  pst_schedule *s = generate("1f1b", 4, 8, 0);
  for (int w = 0; w < 4; w++) assert_list(s, w, wanted[w]);
  assert_int_equal(pst_schedule_total(s), 64);
  pst_schedule_destroy(s);
}

static void test_extra_forwards_list(void **state) {
  pst_schedule *s = generate("1f1b", 2, 4, 1);
  assert_list(s, 0, "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3");
  assert_list(s, 1, "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3");
  pst_schedule_destroy(s);
}

static void test_gpipe_and_forward_only_lists(void **state) {
  pst_schedule *s = generate("gpipe", 2, 3, 0);
  assert_list(s, 1, "1F0 1F1 1F2 1B0 1B1 1B2");
  pst_schedule_destroy(s);
  s = generate("forward-only", 2, 3, 0);
  assert_false(s->training);
  assert_list(s, 1, "1F0 1F1 1F2");
  pst_schedule_destroy(s);
}

static void test_refusals(void **state) {
  pst_schedule_options o;
  pst_schedule *s = NULL;
  pst_schedule_options_init(&o);
  o.name = "1f2b";
  assert_refused(pst_schedule_generate(&o, &s), "seen \"1f2b\", wanted one of 1f1b,");
  o.name = "gpip";
  assert_refused(pst_schedule_generate(&o, &s), "wanted one of gpipe,");
  o.name = NULL;
  assert_refused(pst_schedule_generate(&o, &s), "seen \"\"");
  pst_schedule_options_init(&o);
  o.workers = 0;
  assert_refused(pst_schedule_generate(&o, &s), "workers: seen 0");
  o.workers = 65536;
  assert_refused(pst_schedule_generate(&o, &s), "workers: seen 65536");
  pst_schedule_options_init(&o);
  o.microbatches = 0;
  assert_refused(pst_schedule_generate(&o, &s), "microbatches: seen 0");
  o.microbatches = 1;
  o.chunks = 2;
  assert_refused(pst_schedule_generate(&o, &s), "chunks: seen 2, wanted 1 for 1f1b");
  o.chunks = 1;
  o.extra_forwards = -2;
  assert_refused(pst_schedule_generate(&o, &s), "extra_forwards: seen -2");
  o.name = "gpipe";
  o.extra_forwards = 1;
  assert_refused(pst_schedule_generate(&o, &s), "extra_forwards: seen 1, wanted 0 for gpipe");
  assert_null(s);
}

typedef struct case_sizes {
  const char *name;
  int workers, extra;
  int64_t microbatches;
} case_sizes;

static int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* Slots that the memory plan gets, checked against the closed form. */
static void check_slots(const case_sizes *c, const pst_schedule *s, const pst_stage_buffers *b) {
  int64_t m = c->microbatches;
  for (int r = 0; r < c->workers; r++) {
    int64_t stash = strcmp(c->name, "gpipe") == 0 ? m
                    : strcmp(c->name, "1f1b") == 0
                        ? least(m, c->workers - r + least(c->extra, c->workers - 1 - r))
                        : least(m, 2);
    assert_int_equal(b[r].stash, stash);
    assert_int_equal(b[r].defer, s->training ? 1 : 0);
    assert_int_equal(b[r].gradient, s->training && r + 1 < c->workers ? least(m, 2) : 0);
    assert_int_equal(b[r].out_activation, r + 1 < c->workers ? least(m, 2) : 0);
    assert_int_equal(b[r].out_gradient, s->training && r > 0 ? least(m, 2) : 0);
  }
}

/* Makespan and messages of both forms, with and without early send. F, I, W = 2, 3, 1. */
static void check_clock(const case_sizes *c, const pst_schedule *s, const pst_schedule *full,
                        const pst_stage_buffers *b) {
  double forward[8], input[8], weight[8];
  for (int r = 0; r < 8; r++) forward[r] = 2, input[r] = 3, weight[r] = 1;
  double k = c->workers, m = (double)c->microbatches;
  for (int early = 0; early < 2; early++)
    for (int is_full = 0; is_full < 2; is_full++) {
      pst_simulate_options o;
      pst_simulation *r = NULL;
      pst_simulate_options_init(&o);
      o.forward_s = forward, o.input_s = input, o.weight_s = weight;
      o.early_send = early != 0;
      o.buffers = b;
      assert_ok(pst_schedule_simulate(is_full ? full : s, &o, &r));
      double wanted = s->training ? m * 6 + (k - 1) * (early ? 5 : 6) : (m + k - 1) * 2;
      assert_close(r->makespan_s, wanted, c->name);
      assert_int_equal(r->messages, (c->workers - 1) * c->microbatches * (s->training ? 2 : 1));
      assert_close(r->bubble_makespan, 1 - m * (s->training ? 6 : 2) / wanted, "bubble_makespan");
      for (int w = 0; w < c->workers; w++) {
        assert_close(r->workers[w].busy_s, m * (s->training ? 6 : 2), "busy");
        assert_int_equal(r->workers[w].peak_stash, s->training ? b[w].stash : 1);
      }
      pst_simulation_destroy(r);
    }
}

static void check_case(const case_sizes *c) {
  pst_schedule *s = generate(c->name, c->workers, c->microbatches, c->extra), *full = NULL;
  pst_stage_buffers b[8];
  assert_ok(pst_schedule_check(s, NULL, NULL));
  assert_ok(pst_schedule_buffers(s, NULL, b));
  assert_ok(pst_schedule_check(s, NULL, b));
  assert_ok(pst_schedule_lower(s, NULL, NULL, &full));
  assert_ok(pst_schedule_check(full, NULL, b));
  assert_ok(pst_schedule_check(full, NULL, NULL));
  check_slots(c, s, b);
  check_clock(c, s, full, b);
  pst_schedule_destroy(full);
  pst_schedule_destroy(s);
}

/* Every K to 8 and M to 24: M = 1, K-1, K, K+1 and M < K are all among them. */
static void test_all_small_sizes(void **state) {
  static const char *const names[] = {"gpipe", "1f1b", "forward-only"};
  int n = 0;
  for (int f = 0; f < 3; f++)
    for (int k = 1; k <= 8; k++)
      for (int64_t m = 1; m <= 24; m++)
        for (int extra = 0; extra <= (f == 1 ? 3 : 0); extra++, n++)
          check_case(&(case_sizes){names[f], k, extra, m});
  assert_int_equal(n, 8 * 24 * 6);
}

/* Rings of one buffer stall, but must never hang. */
static void test_smallest_rings_do_not_hang(void **state) {
  pst_lower_options o;
  pst_lower_options_init(&o);
  o.n_out = o.n_grad = 1;
  for (int k = 1; k <= 6; k++)
    for (int64_t m = 1; m <= 14; m++)
      for (int extra = 0; extra <= 3; extra++) {
        pst_schedule *s = generate("1f1b", k, m, extra), *full = NULL;
        assert_ok(pst_schedule_lower(s, &o, NULL, &full));
        assert_ok(pst_schedule_check(full, &o, NULL));
        pst_schedule_destroy(full);
        pst_schedule_destroy(s);
      }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_one_f_one_b_lists),
      cmocka_unit_test(test_extra_forwards_list),
      cmocka_unit_test(test_gpipe_and_forward_only_lists),
      cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_all_small_sizes),
      cmocka_unit_test(test_smallest_rings_do_not_hang),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
