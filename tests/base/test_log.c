#include "core/base/log.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

typedef struct heard {
  int n;
  pst_log_level level;
  char line[1100];
  int inside; /* not atomic: calls that overlap show up here */
  int overlapped;
} heard;

static void hear(void *context, pst_log_level level, const char *line) {
  heard *h = context;
  if (h->inside++) h->overlapped = 1;
  sched_yield(); /* gives others the chance to overlap */
  h->n++;
  h->level = level;
  size_t n = strlen(line);
  assert_true(n < sizeof h->line);
  memcpy(h->line, line, n + 1);
  h->inside--;
}

static void test_level_and_text(void **state) {
  heard h = {0};
  pst_logger *logger = NULL;
  assert_int_equal(pst_logger_create(PST_LOG_INFO, hear, &h, &logger), PST_OK);
  pst_log(logger, PST_LOG_WARN, "%d stages", 3);
  assert_int_equal(h.n, 1);
  assert_int_equal(h.level, PST_LOG_WARN);
  assert_string_equal(h.line, "3 stages");
  pst_log(logger, PST_LOG_DEBUG, "hidden");
  assert_int_equal(h.n, 1);
  assert_false(pst_log_enabled(logger, PST_LOG_DEBUG));
  pst_logger_set_level(logger, PST_LOG_DEBUG);
  pst_log(logger, PST_LOG_DEBUG, "shown");
  assert_int_equal(h.n, 2);
  pst_logger_destroy(logger);
  assert_string_equal(pst_log_level_name(PST_LOG_ERROR), "error");
  assert_string_equal(pst_log_level_name(PST_LOG_DEBUG), "debug");
}

static void test_place(void **state) {
  heard h = {0};
  pst_logger *logger = NULL;
  assert_int_equal(pst_logger_create(PST_LOG_INFO, hear, &h, &logger), PST_OK);
  pst_log_at(logger, PST_LOG_INFO, &(pst_log_place){1, 2, 7}, "lost");
  assert_string_equal(h.line, "worker 1 stage 2 microbatch 7: lost");
  pst_log_at(logger, PST_LOG_INFO, &(pst_log_place){-1, 2, -1}, "lost");
  assert_string_equal(h.line, "stage 2: lost");
  pst_log_at(logger, PST_LOG_INFO, &(pst_log_place){-1, -1, -1}, "lost");
  assert_string_equal(h.line, "lost");
  pst_log_at(logger, PST_LOG_INFO, NULL, "lost");
  assert_string_equal(h.line, "lost");
  pst_logger_destroy(logger);
}

static void test_long_lines_are_cut(void **state) {
  heard h = {0};
  pst_logger *logger = NULL;
  assert_int_equal(pst_logger_create(PST_LOG_INFO, hear, &h, &logger), PST_OK);
  char text[3000];
  memset(text, 'x', sizeof text - 1);
  text[sizeof text - 1] = '\0';
  pst_log_at(logger, PST_LOG_INFO, &(pst_log_place){1, 2, 7}, "%s", text);
  assert_int_equal(strlen(h.line), 1023);
  pst_logger_destroy(logger);
}

static void test_nobody_listens(void **state) {
  pst_log(NULL, PST_LOG_ERROR, "no logger");
  pst_logger_set_level(NULL, PST_LOG_ERROR);
  pst_logger_destroy(NULL);
  assert_false(pst_log_enabled(NULL, PST_LOG_ERROR));
  pst_logger *logger = NULL;
  assert_int_equal(pst_logger_create(PST_LOG_DEBUG, NULL, NULL, &logger), PST_OK);
  assert_false(pst_log_enabled(logger, PST_LOG_ERROR));
  pst_log(logger, PST_LOG_ERROR, "no sink");
  pst_logger_destroy(logger);
}

static void *talk(void *argument) {
  for (int i = 0; i < 5000; i++) pst_log(argument, PST_LOG_INFO, "line %d", i);
  return NULL;
}

static void test_threads(void **state) {
  heard h = {0};
  pst_logger *logger = NULL;
  assert_int_equal(pst_logger_create(PST_LOG_INFO, hear, &h, &logger), PST_OK);
  pthread_t threads[3];
  for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&threads[i], NULL, talk, logger), 0);
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
  assert_int_equal(h.n, 15000);
  assert_false(h.overlapped);
  pst_logger_destroy(logger);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_level_and_text),
      cmocka_unit_test(test_place),
      cmocka_unit_test(test_long_lines_are_cut),
      cmocka_unit_test(test_nobody_listens),
      cmocka_unit_test(test_threads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
