/* The checker refuses what would hang or give wrong numbers: named faults by hand (random ones:
 * test_mutations.c).
 */
#include "tests/schedule/fixture.h"

static void refuse_texts(int64_t microbatches, const char *first, const char *second, const char *part) {
  const char *texts[] = {first, second};
  pst_schedule *s = from_text(2, 1, microbatches, false, texts);
  assert_refused(pst_schedule_check(s, NULL, NULL), part);
  pst_schedule_destroy(s);
}

static void test_named_faults(void **state) {
  static const struct {
    int64_t microbatches;
    const char *first, *second, *part;
  } rows[] = {
      {2, "0F0 0F1 0B0", "1F0 1B0 1F1 1B1",
       "worker 0, position 3 (end of list): B or I of stage 0, microbatch 1"},
      {2, "0F0 0B0 0B1", "1F0 1B0 1F1 1B1", "worker 0, position 2 (0B1): wanted behind 0F1"},
      {1, "0F0 0F0 0B0", "1F0 1B0", "position 1 (0F0): stands a second time"},
      {1, "0F0 0B0 0B0", "1F0 1B0", "position 2 (0B0): stands a second time"},
      {2, "0F1 0F0 0B0 0B1", "1F0 1B0 1F1 1B1", "position 0 (0F1): out of order, wanted 0F0"},
      {2, "0F0 0F1 0B1 0B0", "1F0 1B0 1F1 1B1", "position 2 (0B1): out of order, wanted 0B0"},
      {1, "0B0 0F0", "1F0 1B0", "position 0 (0B0): wanted behind 0F0"},
      {1, "0F0 0W0 0I0", "1F0 1B0", "position 1 (0W0): wanted behind 0I0"},
      {1, "0F0 0I0", "1F0 1B0", "W of stage 0, microbatch 0 is missing"},
      {1, "0F0 0B0 0W0", "1F0 1B0", "position 2 (0W0): stands a second time"},
      {1, "0F0 0I0 0B0 0W0", "1F0 1B0", "position 2 (0B0): stands a second time"},
      {2, "0F0 0F1 0I0 0B1 0W0", "1F0 1B0 1F1 1B1", "position 3 (0B1): wanted behind 0W0"},
      {1, "0F0 1F0 0B0", "1B0", "worker 0, position 1 (1F0): stage 1 stands on worker 1"},
      {1, "0F0 0F1 0B0", "1F0 1B0", "position 1 (0F1): wanted stage 0 to 1, microbatch 0 to 0"},
      {1, "0F0 2F0 0B0", "1F0 1B0", "position 1 (2F0): wanted stage 0 to 1"},
      {1, "0F0 0SEND_F0 0B0", "1F0 1B0", "position 1 (0SEND_F0): a message, wanted compute actions alone"},
      {1, "0F0 0B0 REDUCE", "1F0 1B0", "position 2 (REDUCE): wanted in full training lists alone"},
      {1, "", "1F0 1B0", "worker 0, position 0 (end of list): F of stage 0"},
      {2, "0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1",
       "worker 0, position 1 (0B0): deadlock: waits for the gradient of stage "
       "1, but worker 1 stands at position 1 (1F1)"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
    refuse_texts(rows[i].microbatches, rows[i].first, rows[i].second, rows[i].part);
}

static void refuse_full(int64_t microbatches, const char *first, const char *second,
                        const pst_lower_options *o, const pst_stage_buffers *b, const char *part) {
  const char *texts[] = {first, second};
  pst_schedule *s = from_text(2, 1, microbatches, false, texts);
  s->lowered = true;
  assert_refused(pst_schedule_check(s, o, b), part);
  pst_schedule_destroy(s);
}

static void pass_full(int64_t microbatches, const char *first, const char *second,
                      const pst_stage_buffers *b) {
  const char *texts[] = {first, second};
  pst_schedule *s = from_text(2, 1, microbatches, false, texts);
  s->lowered = true;
  assert_ok(pst_schedule_check(s, NULL, b));
  pst_schedule_destroy(s);
}

static void test_faults_of_full_lists(void **state) {
  static const struct {
    const char *first, *second, *part;
  } rows[] = {
      {"0RECV_B0 0F0 0B0 REDUCE UPDATE", "1RECV_F0 1F0 1B0 1SEND_B0 REDUCE UPDATE",
       "worker 0, position 5 (end of list): SEND_F of stage 0, microbatch 0 is missing"},
      {"0RECV_B0 0F0 0SEND_F0 0B0 REDUCE UPDATE", "1F0 1B0 1SEND_B0 REDUCE UPDATE",
       "worker 1, position 0 (1F0): wanted behind its 1RECV_F0"},
      {"0F0 0SEND_F0 0B0 0RECV_B0 REDUCE UPDATE", "1RECV_F0 1F0 1B0 1SEND_B0 REDUCE UPDATE",
       "position 2 (0B0): wanted behind its 0RECV_B0"},
      {"0RECV_B0 0SEND_F0 0F0 0B0 REDUCE UPDATE", "1RECV_F0 1F0 1B0 1SEND_B0 REDUCE UPDATE",
       "position 1 (0SEND_F0): wanted behind the F of stage 0"},
      {"0RECV_B0 0F0 0SEND_F0 0SEND_F0 0B0 REDUCE UPDATE", "1RECV_F0 1F0 1B0 1SEND_B0 REDUCE UPDATE",
       "position 3 (0SEND_F0): stands a second time"},
      {"0RECV_B0 0F0 0SEND_F0 0B0 REDUCE UPDATE", "1RECV_F0 1F0 1SEND_B0 1B0 REDUCE UPDATE",
       "position 2 (1SEND_B0): wanted behind the B or I of stage 1"},
      {"0RECV_F0 0RECV_B0 0F0 0SEND_F0 0B0 REDUCE UPDATE", "1RECV_F0 1F0 1B0 1SEND_B0 REDUCE UPDATE",
       "position 0 (0RECV_F0): no such message belongs to stage 0"},
      {"0RECV_B0 0F0 0SEND_F0 0B0 UPDATE", "1RECV_F0 1F0 1B0 1SEND_B0 REDUCE UPDATE",
       "wanted REDUCE, then UPDATE"},
      {"0RECV_B0 0F0 0SEND_F0 0B0 REDUCE", "1RECV_F0 1F0 1B0 1SEND_B0 REDUCE UPDATE", "UPDATE is missing"},
      {"0RECV_B0 0F0 0SEND_F0 REDUCE 0B0 UPDATE", "1RECV_F0 1F0 1B0 1SEND_B0 REDUCE UPDATE",
       "stands behind REDUCE"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
    refuse_full(1, rows[i].first, rows[i].second, NULL, NULL, rows[i].part);
}

static void test_slots_in_use(void **state) {
  const pst_stage_buffers b[] = {{2, 1, 2, 2, 0}, {1, 1, 0, 0, 2}};
  refuse_full(2, "0RECV_B0 0RECV_B1 0F0 0SEND_F0 0F1 0SEND_F1 0B0 0B1 REDUCE UPDATE",
              "1RECV_F0 1RECV_F1 1F0 1B0 1SEND_B0 1F1 1B1 1SEND_B1 REDUCE UPDATE", NULL, b,
              "worker 1, position 1 (1RECV_F1): the STASH slot of stage 1, microbatch 1 is in use: 2 in "
              "flight, wanted "
              "at most 1");
  const pst_stage_buffers one[] = {{2, 1, 1, 2, 0}, {1, 1, 0, 0, 2}};
  refuse_full(2, "0RECV_B0 0RECV_B1 0F0 0SEND_F0 0F1 0SEND_F1 0B0 0B1 REDUCE UPDATE",
              "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1 REDUCE UPDATE", NULL, one,
              "position 1 (0RECV_B1): the gradient buffer of stage 0");
  const char *texts[] = {"0F0 0F1 0I0 0I1 0W0 0W1", "1F0 1I0 1F1 1I1 1W0 1W1"};
  pst_schedule *s = from_text(2, 1, 2, false, texts);
  const pst_stage_buffers defer[] = {{2, 1, 2, 2, 0}, {2, 2, 0, 0, 2}};
  assert_refused(pst_schedule_check(s, NULL, defer), "worker 0, position 1 (0F1): 2 DEFER slots of stage 0");
  pst_schedule_destroy(s);
}

/* Worker 0 offers its gradient buffer only behind all forwards. Its last F waits until stage 1 takes the
 * third activation; with one outgoing gradient buffer stage 1 cannot, as B1 waits for the gradient of B0 to
 * leave. */
static void test_deadlock_from_small_rings(void **state) {
  const char *late =
      "0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2 0F3 0SEND_F3 0RECV_B0 0B0 0RECV_B1 0B1 0RECV_B2 0B2 "
      "0RECV_B3 0B3 REDUCE UPDATE";
  const char *early =
      "0RECV_B0 0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2 0F3 0SEND_F3 0B0 0RECV_B1 0B1 0RECV_B2 0B2 "
      "0RECV_B3 0B3 REDUCE UPDATE";
  const char *second =
      "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1 1RECV_F2 1F2 1B2 1SEND_B2 1RECV_F3 1F3 1B3 "
      "1SEND_B3 REDUCE UPDATE";
  pst_stage_buffers b[] = {{4, 1, 1, 1, 0}, {1, 1, 0, 0, 1}};
  refuse_full(4, late, second, NULL, b,
              "worker 0, position 6 (0F3): deadlock: waits for its outgoing activation buffer to be emptied "
              "by stage 1, "
              "but worker 1 stands at position 6 (1B1)");
  b[1].out_gradient = 2;
  pass_full(4, late, second, b);
  b[1].out_gradient = 1;
  b[0].out_activation = 2;
  pass_full(4, late, second, b);
  b[0].out_activation = 1;
  pass_full(4, early, second, b);
}

/* Two stages on one worker: the list itself must have the order that a message would else force. */
static void test_faults_between_local_stages(void **state) {
  static const struct {
    const char *text, *part;
  } rows[] = {
      {"1F0 0F0 1B0 0B0 0F1 1F1 1B1 0B1", "position 0 (1F0): wanted behind 0F0 on this worker"},
      {"0F0 1F0 0B0 1B0 0F1 1F1 1B1 0B1",
       "position 2 (0B0): wanted behind the backward of stage 1, microbatch 0"},
      {"0F0 0F1 1F0 1B0 0B0 1F1 1B1 0B1",
       "position 1 (0F1): the STASH slot of stage 1, microbatch 1 is in use"},
  };
  const pst_stage_buffers b[] = {{2, 1, 2, 0, 0}, {1, 1, 0, 0, 0}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    pst_schedule *s = from_text(1, 2, 2, false, &rows[i].text);
    assert_refused(pst_schedule_check(s, NULL, b), rows[i].part);
    pst_schedule_destroy(s);
  }
}

static void test_wrong_placement(void **state) {
  pst_schedule *s = generate("1f1b", 2, 2, 0);
  s->worker_of[1] = 0;
  assert_refused(pst_schedule_check(s, NULL, NULL), "worker 0 has more than 1 stages");
  s->worker_of[1] = 2;
  assert_refused(pst_schedule_check(s, NULL, NULL), "stage 1 stands on worker 2, wanted 0 to 1");
  pst_schedule_destroy(s);
}

static void test_no_backward_in_forward_only(void **state) {
  pst_schedule *s = generate("forward-only", 1, 1, 0);
  append_text(s, 0, "0B0");
  assert_refused(pst_schedule_check(s, NULL, NULL), "position 1 (0B0): a backward, wanted F alone");
  pst_schedule_destroy(s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_named_faults),
      cmocka_unit_test(test_faults_of_full_lists),
      cmocka_unit_test(test_slots_in_use),
      cmocka_unit_test(test_deadlock_from_small_rings),
      cmocka_unit_test(test_faults_between_local_stages),
      cmocka_unit_test(test_wrong_placement),
      cmocka_unit_test(test_no_backward_in_forward_only),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
