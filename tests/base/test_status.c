#include "core/base/status.h"

#include "tests/support.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static void a_message_is_kept_until_the_next(void **state) {
  (void)state;
  assert_int_equal(pst_fail(PST_INVALID, "lr = %g: wanted above 0", -1.5), PST_INVALID);
  assert_string_equal(pst_error(), "lr = -1.5: wanted above 0");
  assert_int_equal(pst_fail(PST_IO, "next"), PST_IO);
  assert_string_equal(pst_error(), "next");
}

static void a_prefix_stands_in_front(void **state) {
  (void)state;
  pst_status st = pst_fail(PST_INVALID, "unknown key");
  assert_int_equal(pst_fail_prefix(st, "run.yaml:%d: ", 3), PST_INVALID);
  assert_string_equal(pst_error(), "run.yaml:3: unknown key");
  pst_status again = pst_fail(PST_IO, "seen: %s", pst_error()); /* the old message may be an argument */
  assert_int_equal(again, PST_IO);
  assert_string_equal(pst_error(), "seen: run.yaml:3: unknown key");
  again = pst_fail_prefix(again, "%s / ", pst_error());
  assert_string_equal(pst_error(), "seen: run.yaml:3: unknown key / seen: run.yaml:3: unknown key");
}

static void long_messages_are_cut_at_their_end(void **state) {
  (void)state;
  char text[3000];
  memset(text, 'x', sizeof text);
  text[sizeof text - 1] = '\0';
  assert_int_equal(pst_fail(PST_INVALID, "begin %s", text), PST_INVALID);
  assert_int_equal(strlen(pst_error()), 1023);
  assert_memory_equal(pst_error(), "begin x", 7);
  assert_int_equal(pst_fail_prefix(PST_INVALID, "first: "), PST_INVALID);
  assert_int_equal(strlen(pst_error()), 1023);
  assert_memory_equal(pst_error(), "first: begin x", 14);
  assert_int_equal(pst_fail_prefix(PST_INVALID, "%s", text), PST_INVALID);
  assert_int_equal(strlen(pst_error()), 1023);
  pst_error_set(text);
  assert_int_equal(strlen(pst_error()), 1023);
}

static void *other_thread(void *arg) {
  char *seen = arg;
  snprintf(seen, 64, "%s", pst_error());
  pst_status st = pst_fail(PST_LOST, "theirs");
  return (void *)(intptr_t)st;
}

static void messages_belong_to_threads(void **state) {
  (void)state;
  assert_int_equal(pst_fail(PST_INVALID, "mine"), PST_INVALID);
  pthread_t t;
  char seen[64] = "?";
  void *status = NULL;
  assert_int_equal(pthread_create(&t, NULL, other_thread, seen), 0);
  pthread_join(t, &status);
  assert_int_equal((intptr_t)status, PST_LOST);
  assert_string_equal(seen, "");
  assert_string_equal(pst_error(), "mine");
  pst_error_set("carried over");
  assert_string_equal(pst_error(), "carried over");
}

static void codes_have_names_and_exit_statuses(void **state) {
  (void)state;
  static const struct {
    pst_status status;
    const char *name;
    int exit_status;
  } rows[] = {{PST_OK, "OK", 0},
              {PST_FAILED, "FAILED", 1},
              {PST_INVALID, "INVALID", 2},
              {PST_UNSUPPORTED, "UNSUPPORTED", 2},
              {PST_IO, "IO", 2},
              {PST_NO_MEMORY, "NO_MEMORY", 3},
              {PST_LOST, "LOST", 4},
              {PST_HUNG, "HUNG", 4},
              {PST_NONFINITE, "NONFINITE", 5},
              {PST_INTERNAL, "INTERNAL", 70},
              {PST_STOPPED, "STOPPED", 75}};
  assert_int_equal(sizeof rows / sizeof *rows, PST_STATUS_COUNT);
  assert_int_equal(PST_OK, 0);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    assert_string_equal(pst_status_name(rows[i].status), rows[i].name);
    assert_int_equal(pst_status_exit(rows[i].status), rows[i].exit_status);
  }
  assert_string_equal(pst_status_name((pst_status)PST_STATUS_COUNT), "UNKNOWN");
  assert_string_equal(pst_status_name((pst_status)-1), "UNKNOWN");
  assert_int_equal(pst_status_exit((pst_status)-1), 70);
}

static pst_status tries(pst_status inner, int *steps) {
  PST_TRY(inner);
  (*steps)++;
  pst_status st = PST_OK;
  PST_GOTO(st, inner == PST_OK ? pst_fail(PST_IO, "later") : PST_OK, done);
  (*steps) += 10;
done:
  (*steps) += 100;
  return st;
}

static void errors_pass_up_untouched(void **state) {
  (void)state;
  int steps = 0;
  assert_int_equal(tries(pst_fail(PST_LOST, "early"), &steps), PST_LOST);
  assert_int_equal(steps, 0);
  assert_string_equal(pst_error(), "early");
  assert_int_equal(tries(PST_OK, &steps), PST_IO);
  assert_int_equal(steps, 101);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_message_is_kept_until_the_next),   cmocka_unit_test(a_prefix_stands_in_front),
      cmocka_unit_test(long_messages_are_cut_at_their_end), cmocka_unit_test(messages_belong_to_threads),
      cmocka_unit_test(codes_have_names_and_exit_statuses), cmocka_unit_test(errors_pass_up_untouched),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
