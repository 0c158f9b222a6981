/* Any bytes as a schedule's file: read, and when they make one, checked, written and read again the same. */
#include "core/schedule/check.h"
#include "core/schedule/csv.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int truth, const char *what) {
  if (truth) return;
  fprintf(stderr, "fuzz_schedule_csv: %s\n", what);
  abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = malloc(size + 1), *again = NULL;
  pst_schedule *schedule = NULL, *back = NULL;
  bool renumbered;
  size_t n = 0;
  if (text == NULL) return 0;
  if (size > 0) memcpy(text, data, size);
  text[size] = 0;
  pst_status st = pst_schedule_parse_csv(text, size, "input", &schedule, &renumbered);
  require((st == PST_OK) == (schedule != NULL), "a schedule handed out with an error, or none without");
  require(st == PST_OK || pst_error()[0] != 0, "an error without a message");
  if (st == PST_OK && pst_schedule_check(schedule, NULL, NULL) == PST_OK) {
    require(pst_schedule_format_csv(schedule, PST_CSV_COMPUTE, &again, &n) == PST_OK, "not written");
    require(pst_schedule_parse_csv(again, n, "again", &back, &renumbered) == PST_OK, "not read again");
    require(pst_schedule_check(back, NULL, NULL) == PST_OK && !renumbered, "another schedule read again");
  }
  pst_schedule_destroy(back);
  pst_schedule_destroy(schedule);
  free(again);
  free(text);
  return 0;
}
