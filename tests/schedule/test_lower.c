/* Full lists: exact ones by hand, buffers, and the options that take messages away. */
#include "tests/schedule/fixture.h"

static pst_schedule *lower(const pst_schedule *s, const pst_lower_options *o) {
  pst_schedule *full = NULL;
  assert_ok(pst_schedule_lower(s, o, NULL, &full));
  assert_ok(pst_schedule_check(full, o, NULL));
  return full;
}

static void test_one_f_one_b(void **state) {
  pst_schedule *s = generate("1f1b", 2, 3, 0), *full = lower(s, NULL);
  assert_true(full->lowered);
  assert_list(full, 0,
              "0RECV_B0 0RECV_B1 0F0 0SEND_F0 0F1 0SEND_F1 0B0 0RECV_B2 0F2 0SEND_F2 0B1 0B2 REDUCE UPDATE");
  assert_list(full, 1,
              "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1 1RECV_F2 1F2 1B2 1SEND_B2 REDUCE UPDATE");
  pst_schedule_destroy(full);
  pst_schedule_destroy(s);
}

static void test_forward_only(void **state) {
  pst_schedule *s = generate("forward-only", 2, 3, 0), *full = lower(s, NULL);
  assert_list(full, 0, "0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2");
  assert_list(full, 1, "1RECV_F0 1RECV_F1 1F0 1RECV_F2 1F1 1F2");
  pst_schedule_destroy(full);
  pst_schedule_destroy(s);
}

static void test_one_worker_has_no_messages(void **state) {
  pst_schedule *s = generate("1f1b", 1, 2, 0), *full = lower(s, NULL);
  assert_list(full, 0, "0F0 0B0 0F1 0B1 REDUCE UPDATE");
  pst_schedule_destroy(full);
  pst_schedule_destroy(s);
}

/* Middle of three: head receives in order of need, freed buffers offered behind the send. */
static void test_middle_worker(void **state) {
  pst_schedule *s = generate("1f1b", 3, 3, 0), *full = lower(s, NULL);
  assert_list(
      full, 1,
      "1RECV_F0 1RECV_F1 1RECV_B0 1RECV_B1 1F0 1SEND_F0 1F1 1SEND_F1 1B0 1SEND_B0 1RECV_F2 1RECV_B2 1F2 "
      "1SEND_F2 1B1 1SEND_B1 1B2 1SEND_B2 REDUCE UPDATE");
  pst_schedule_destroy(full);
  pst_schedule_destroy(s);
}

/* At the turn of a V nothing is sent, the slot of the second stage is taken from the first one's F on. */
static void test_v_turn(void **state) {
  const char *const texts[] = {"0F0 0F1 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 0I1 0W1",
                               "1F0 1F1 2F0 2F1 2I0 2W0 2I1 1I0 1I1 2W1 1W0 1W1"};
  pst_schedule *s = from_text(2, 2, 2, true, texts), *full = lower(s, NULL);
  pst_stage_buffers b[4];
  assert_ok(pst_schedule_buffers(s, NULL, b));
  assert_int_equal(b[2].stash, 2);
  assert_int_equal(b[3].stash, 1);
  assert_int_equal(b[1].gradient, 2); /* 2I0 and 2I1 both stand before 1I0 */
  assert_int_equal(b[1].out_activation, 0);
  assert_int_equal(b[2].out_gradient, 0);
  assert_int_equal(b[2].defer, 2);
  assert_int_equal(b[3].defer, 1);
  assert_list(
      full, 1,
      "1RECV_F0 1RECV_F1 2RECV_B0 2RECV_B1 1F0 1F1 2F0 2SEND_F0 2F1 2SEND_F1 2I0 2W0 2I1 1I0 1SEND_B0 1I1 "
      "1SEND_B1 2W1 1W0 1W1 REDUCE UPDATE");
  b[1].gradient = 1;
  assert_refused(pst_schedule_check(s, NULL, b),
                 "position 6 (2I1): the gradient buffer of stage 1, microbatch 1");
  pst_schedule_destroy(full);
  pst_schedule_destroy(s);
}

/* A frozen first stage: its backward is empty, nothing flows back to it. */
static void test_no_gradient(void **state) {
  const uint8_t no_gradient[] = {1, 0}, empty[] = {PST_EMPTY_B, 0, 0};
  for (int way = 0; way < 2; way++) {
    pst_lower_options o;
    pst_lower_options_init(&o);
    if (way == 0) o.no_gradient = no_gradient;
    if (way == 1) o.empty = empty;
    pst_schedule *s = generate("1f1b", 3, 2, 0), *full = lower(s, &o);
    pst_stage_buffers b[3];
    assert_ok(pst_schedule_buffers(s, &o, b));
    assert_int_equal(b[0].gradient, 0);
    assert_int_equal(b[1].out_gradient, 0);
    assert_int_equal(b[1].gradient, 2);
    assert_list(full, 0, "0F0 0SEND_F0 0F1 0SEND_F1 0B0 0B1 REDUCE UPDATE");
    assert_list(full, 1,
                "1RECV_F0 1RECV_F1 1RECV_B0 1RECV_B1 1F0 1SEND_F0 1F1 1SEND_F1 1B0 1B1 REDUCE UPDATE");
    /* the full list of one wiring is refused by the other */
    assert_refused(pst_schedule_check(full, NULL, NULL), "RECV_B");
    pst_schedule_destroy(full);
    pst_schedule_destroy(s);
  }
}

/* The first stage of a split schedule: I does nothing, W reads the gradient and frees the slot. */
static void test_whole_backward_in_w(void **state) {
  const char *const texts[] = {"0F0 0F1 0I0 0W0 0I1 0W1", "1F0 1I0 1F1 1I1 1W0 1W1"};
  const uint8_t empty[] = {PST_EMPTY_I, 0};
  pst_lower_options o;
  pst_lower_options_init(&o);
  o.empty = empty;
  o.n_grad = 1;
  pst_schedule *s = from_text(2, 1, 2, false, texts), *full = lower(s, &o);
  assert_list(full, 0, "0RECV_B0 0F0 0SEND_F0 0F1 0SEND_F1 0I0 0W0 0RECV_B1 0I1 0W1 REDUCE UPDATE");
  pst_simulate_options clock;
  pst_simulation *r = NULL;
  pst_simulate_options_init(&clock);
  clock.lower = &o;
  assert_ok(pst_schedule_simulate(full, &clock, &r));
  assert_close(r->workers[0].busy_s, 4, "busy, I is free of cost");
  pst_simulation_destroy(r);
  pst_schedule_destroy(full);
  pst_schedule_destroy(s);
}

static void test_more_slots_than_microbatches(void **state) {
  pst_schedule *s = generate("1f1b", 2, 3, 0), *full = NULL;
  pst_stage_buffers b[2];
  assert_ok(pst_schedule_buffers(s, NULL, b));
  b[0].gradient = b[1].stash = 50;
  assert_ok(pst_schedule_lower(s, NULL, b, &full));
  assert_ok(pst_schedule_check(full, NULL, b));
  pst_schedule_destroy(full);
  pst_schedule_destroy(s);
}

static void test_refusals(void **state) {
  pst_schedule *s = generate("1f1b", 2, 3, 0), *full = NULL, *again = NULL;
  pst_stage_buffers b[2];
  pst_lower_options o;
  pst_lower_options_init(&o);
  o.n_out = 0;
  assert_refused(pst_schedule_lower(s, &o, NULL, &full), "n_out: seen 0");
  o.n_out = 1, o.n_grad = 0;
  assert_refused(pst_schedule_lower(s, &o, NULL, &full), "n_grad: seen 0");
  o.n_grad = 1, o.extra_slots = -1;
  assert_refused(pst_schedule_lower(s, &o, NULL, &full), "extra_slots: seen -1");
  const uint8_t empty[] = {1u << PST_ACTION_F, 0};
  o.extra_slots = 0, o.empty = empty;
  assert_refused(pst_schedule_lower(s, &o, NULL, &full), "empty programs of stage 0");
  assert_ok(pst_schedule_buffers(s, NULL, b));
  b[0].stash = 1;
  assert_refused(pst_schedule_lower(s, NULL, b, &full),
                 "worker 0, position 1 (0F1): the STASH slot of stage 0");
  b[0].stash = 0;
  assert_refused(pst_schedule_lower(s, NULL, b, &full), "STASH slots of stage 0: seen 0");
  assert_null(full);
  assert_ok(pst_schedule_lower(s, NULL, NULL, &full));
  assert_refused(pst_schedule_lower(full, NULL, NULL, &again), "wanted normal form");
  pst_schedule_destroy(full);
  pst_schedule_destroy(s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_one_f_one_b),
      cmocka_unit_test(test_forward_only),
      cmocka_unit_test(test_one_worker_has_no_messages),
      cmocka_unit_test(test_middle_worker),
      cmocka_unit_test(test_v_turn),
      cmocka_unit_test(test_no_gradient),
      cmocka_unit_test(test_whole_backward_in_w),
      cmocka_unit_test(test_more_slots_than_microbatches),
      cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
