#include "core/schedule/emit.h"

static pst_status emit_worker(pst_schedule *schedule, int worker, const pst_schedule_options *options) {
  pst__rounds rounds = pst__rounds_make(schedule);
  int64_t warmup = schedule->workers - 1 - worker + (schedule->chunks - 1) * rounds.largest;
  return pst__emit_in_turn(schedule, worker, &rounds, warmup, worker);
}

pst_status pst__generate_interleaved_zb(const pst_schedule_options *options, pst_schedule **out_schedule) {
  return pst__generate_lists(options, true, false, emit_worker, out_schedule);
}
