#include "core/schedule/emit.h"

static pst_status emit_worker(pst_schedule *schedule, int worker, const pst_schedule_options *options) {
  int64_t n = schedule->microbatches;
  PST_TRY(pst_schedule_reserve(schedule, worker, 2 * (size_t)n));
  for (int64_t m = 0; m < n; m++) PST_TRY(pst_schedule_append(schedule, worker, PST_ACTION_F, worker, m));
  for (int64_t m = 0; m < n; m++) PST_TRY(pst_schedule_append(schedule, worker, PST_ACTION_B, worker, m));
  return PST_OK;
}

pst_status pst__generate_gpipe(const pst_schedule_options *options, pst_schedule **out_schedule) {
  return pst__generate_lists(options, true, false, emit_worker, out_schedule);
}
