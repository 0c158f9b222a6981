#include "core/schedule/emit.h"

static pst_status emit_worker(pst_schedule *schedule, int worker, const pst_schedule_options *options) {
  pst__rounds rounds = pst__rounds_make(schedule);
  int64_t warmup = 2 * ((int64_t)schedule->workers - 1 - worker);
  return pst__emit_in_turn(schedule, worker, &rounds, warmup, 2 * (int64_t)worker);
}

pst_status pst__generate_zb_h2(const pst_schedule_options *options, pst_schedule **out_schedule) {
  return pst__generate_lists(options, true, false, emit_worker, out_schedule);
}
