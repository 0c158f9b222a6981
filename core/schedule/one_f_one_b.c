#include "core/schedule/emit.h"

static pst_status emit_worker(pst_schedule *schedule, int worker, const pst_schedule_options *options) {
  pst__rounds rounds = pst__rounds_make(schedule);
  int64_t warmup = (int64_t)schedule->workers - 1 - worker;
  /* Worker r has a round trip of K-1-r links to wait for; more in flight than twice that hides nothing. */
  int64_t extra = options->extra_forwards < warmup ? options->extra_forwards : warmup;
  return pst__emit_in_turn(schedule, worker, &rounds, warmup + extra, PST__NO_SPLIT);
}

pst_status pst__generate_one_f_one_b(const pst_schedule_options *options, pst_schedule **out_schedule) {
  return pst__generate_lists(options, true, false, emit_worker, out_schedule);
}
