/* What the schedule tests share: making schedules from options and from text. */
#ifndef PENSTOCK_TESTS_SCHEDULE_FIXTURE_H
#define PENSTOCK_TESTS_SCHEDULE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/schedule/check.h"
#include "core/schedule/families.h"
#include "core/schedule/simulate.h"

#define assert_ok(expr)                                                                                      \
  do {                                                                                                       \
    if ((expr) != PST_OK) fail_msg("%s: %s", #expr, pst_error());                                            \
  } while (0)

/* Refused as bad input, with `part` in the message. */
#define assert_refused(expr, part)                                                                           \
  do {                                                                                                       \
    pst_status refused_ = (expr);                                                                            \
    if (refused_ != PST_INVALID)                                                                             \
      fail_msg("%s: status %s, wanted INVALID", #expr, pst_status_name(refused_));                           \
    if (strstr(pst_error(), part) == NULL) fail_msg("\"%s\" not in \"%s\"", part, pst_error());              \
  } while (0)

static inline pst_schedule *generate(const char *name, int workers, int64_t microbatches,
                                     int extra_forwards) {
  pst_schedule_options options;
  pst_schedule *schedule = NULL;
  pst_schedule_options_init(&options);
  options.name = name;
  options.workers = workers;
  options.microbatches = microbatches;
  options.extra_forwards = extra_forwards;
  assert_ok(pst_schedule_generate(&options, &schedule));
  return schedule;
}

/* Adds the actions of a text such as "0F0 0F1 0B0" to a worker's list. */
static inline void append_text(pst_schedule *schedule, int worker, const char *text) {
  char word[PST_ACTION_TEXT];
  int used = 0;
  for (; sscanf(text, "%31s%n", word, &used) == 1; text += used) {
    pst_action a;
    assert_ok(pst_action_parse(word, &a));
    assert_ok(pst_schedule_append(schedule, worker, (pst_action_kind)a.kind, a.chunk, a.microbatch));
  }
}

/* A schedule from one text per worker. */
static inline pst_schedule *from_text(int workers, int chunks, int64_t microbatches, bool v_placement,
                                      const char *const *texts) {
  pst_schedule *schedule = NULL;
  assert_ok(pst_schedule_create(workers, chunks, microbatches, true, &schedule));
  if (v_placement) assert_ok(pst_schedule_place_v(schedule));
  for (int w = 0; w < workers; w++) append_text(schedule, w, texts[w]);
  return schedule;
}

/* The list as text, for comparing and for messages. The caller frees it. */
static inline char *to_text(const pst_schedule *schedule, int worker) {
  const pst_action_list *list = &schedule->lists[worker];
  char *text = calloc(list->count + 1, PST_ACTION_TEXT + 1), word[PST_ACTION_TEXT];
  assert_non_null(text);
  size_t used = 0;
  for (size_t i = 0; i < list->count; i++)
    used += (size_t)sprintf(text + used, "%s%s", i > 0 ? " " : "", pst_action_format(list->items[i], word));
  return text;
}

static inline void assert_list(const pst_schedule *schedule, int worker, const char *wanted) {
  char *text = to_text(schedule, worker);
  assert_string_equal(text, wanted);
  free(text);
}

static inline void assert_close(double seen, double wanted, const char *what) {
  if (!(fabs(seen - wanted) <= 1e-9 * (1 + fabs(wanted))))
    fail_msg("%s: seen %.12g, wanted %.12g", what, seen, wanted);
}

#endif
