#include "core/schedule/families.h"

pst_status pst__generate_forward_only(const pst_schedule_options *options, pst_schedule **out_schedule) {
  int64_t n = options->microbatches;
  pst_schedule *schedule = NULL;
  pst_status st = pst_schedule_create(options->workers, 1, n, false, &schedule);
  for (int r = 0; st == PST_OK && r < options->workers; r++) {
    st = pst_schedule_reserve(schedule, r, (size_t)n);
    for (int64_t m = 0; st == PST_OK && m < n; m++) st = pst_schedule_append(schedule, r, PST_ACTION_F, r, m);
  }
  if (st != PST_OK) {
    pst_schedule_destroy(schedule);
    return st;
  }
  *out_schedule = schedule;
  return PST_OK;
}
