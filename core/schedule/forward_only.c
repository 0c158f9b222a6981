#include "core/schedule/check.h"
#include "core/schedule/emit.h"

/* Microbatches in groups of K; each group goes through the worker's stages, the lowest first. */
static pst_status emit_worker(pst_schedule *schedule, int worker, const pst_schedule_options *options) {
  int64_t n = schedule->microbatches, group = schedule->workers;
  PST_TRY(pst_schedule_reserve(schedule, worker, (size_t)n * (size_t)schedule->chunks));
  for (int64_t first = 0; first < n; first += group)
    for (int s = 0; s < schedule->stages; s++) {
      if (schedule->worker_of[s] != worker) continue;
      for (int64_t m = first; m < n && m < first + group; m++)
        PST_TRY(pst_schedule_append(schedule, worker, PST_ACTION_F, s, m));
    }
  return PST_OK;
}

pst_status pst__generate_forward_only(const pst_schedule_options *options, pst_schedule **out_schedule) {
  return pst__generate_lists(options, false, false, emit_worker, out_schedule);
}

pst_status pst_schedule_forward_only_like(const pst_schedule *like, int64_t microbatches,
                                          pst_schedule **out_schedule) {
  pst_status st = PST_OK;
  pst_schedule *schedule = NULL;
  PST_TRY(pst_schedule_create(like->workers, like->chunks, microbatches, false, &schedule));
  for (int s = 0; s < like->stages; s++) schedule->worker_of[s] = like->worker_of[s];
  for (int w = 0; w < like->workers; w++) PST_GOTO(st, emit_worker(schedule, w, NULL), done);
  PST_GOTO(st, pst_schedule_check(schedule, NULL, NULL), done);
  *out_schedule = schedule;
  schedule = NULL;

done:
  pst_schedule_destroy(schedule);
  return st;
}
