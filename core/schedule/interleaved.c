#include "core/schedule/emit.h"

static pst_status emit_worker(pst_schedule *schedule, int worker, const pst_schedule_options *options) {
  pst__rounds rounds = pst__rounds_make(schedule);
  int64_t warmup = 2 * ((int64_t)schedule->workers - 1 - worker);
  /* One chunk is plain 1F1B: nothing comes round again that more forwards would wait for. */
  if (schedule->chunks == 1) warmup /= 2;
  warmup += (schedule->chunks - 1) * rounds.largest;
  return pst__emit_in_turn(schedule, worker, &rounds, warmup, PST__NO_SPLIT);
}

pst_status pst__generate_interleaved(const pst_schedule_options *options, pst_schedule **out_schedule) {
  return pst__generate_lists(options, true, false, emit_worker, out_schedule);
}
