#include "core/schedule/emit.h"

static pst_status emit_worker(pst_schedule *schedule, int worker, const pst_schedule_options *options) {
  pst__rounds rounds = pst__rounds_make(schedule);
  return pst__emit_in_turn(schedule, worker, &rounds, schedule->workers - 1 - worker, worker);
}

pst_status pst__generate_zb_h1(const pst_schedule_options *options, pst_schedule **out_schedule) {
  return pst__generate_lists(options, true, false, emit_worker, out_schedule);
}
