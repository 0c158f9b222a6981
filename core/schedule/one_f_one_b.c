#include "core/schedule/families.h"

static pst_status emit_worker(pst_schedule *schedule, int r, int64_t warmup) {
  int64_t n = schedule->microbatches, f = 0, b = 0;
  PST_TRY(pst_schedule_reserve(schedule, r, 2 * (size_t)n));
  while (f < warmup) PST_TRY(pst_schedule_append(schedule, r, PST_ACTION_F, r, f++));
  while (f < n) {
    PST_TRY(pst_schedule_append(schedule, r, PST_ACTION_F, r, f++));
    PST_TRY(pst_schedule_append(schedule, r, PST_ACTION_B, r, b++));
  }
  while (b < n) PST_TRY(pst_schedule_append(schedule, r, PST_ACTION_B, r, b++));
  return PST_OK;
}

pst_status pst__generate_one_f_one_b(const pst_schedule_options *options, pst_schedule **out_schedule) {
  int64_t n = options->microbatches;
  pst_schedule *schedule = NULL;
  pst_status st = pst_schedule_create(options->workers, 1, n, true, &schedule);
  for (int r = 0; st == PST_OK && r < options->workers; r++) {
    int64_t warmup = (int64_t)options->workers - 1 - r + options->extra_forwards;
    st = emit_worker(schedule, r, warmup < n ? warmup : n);
  }
  if (st != PST_OK) {
    pst_schedule_destroy(schedule);
    return st;
  }
  *out_schedule = schedule;
  return PST_OK;
}
