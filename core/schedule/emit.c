#include "core/schedule/emit.h"

pst_status pst__generate_lists(const pst_schedule_options *options, bool training, bool v_placed,
                               pst__emit_worker emit, pst_schedule **out_schedule) {
  pst_schedule *schedule = NULL;
  pst_status st =
      pst_schedule_create(options->workers, options->chunks, options->microbatches, training, &schedule);
  if (st == PST_OK && v_placed) st = pst_schedule_place_v(schedule);
  for (int w = 0; st == PST_OK && w < options->workers; w++) st = emit(schedule, w, options);
  if (st != PST_OK) {
    pst_schedule_destroy(schedule);
    return st;
  }
  *out_schedule = schedule;
  return PST_OK;
}

pst__rounds pst__rounds_make(const pst_schedule *schedule) {
  int64_t n = schedule->microbatches, groups = n / schedule->workers;
  if (groups < 1) groups = 1;
  int64_t largest = (n + groups - 1) / groups;
  return (pst__rounds){.chunks = schedule->chunks,
                       .pairs = n * schedule->chunks,
                       .largest = largest,
                       .n_larger = n - groups * (largest - 1)};
}

static pst_status append_pair(pst_schedule *schedule, int worker, const pst__rounds *rounds,
                              pst_action_kind kind, int64_t index) {
  int64_t size = rounds->largest, larger = rounds->n_larger * size, before = 0;
  if (index >= larger * rounds->chunks) {
    index -= larger * rounds->chunks;
    before = larger;
    size--;
  }
  int64_t group = index / (size * rounds->chunks), within = index % (size * rounds->chunks);
  int chunk = (int)(within / size);
  if (kind != PST_ACTION_F) chunk = rounds->chunks - 1 - chunk;
  return pst_schedule_append(schedule, worker, kind, chunk * schedule->workers + worker,
                             before + group * size + within % size);
}

pst_status pst__emit_in_turn(pst_schedule *schedule, int worker, const pst__rounds *rounds, int64_t warmup,
                             int64_t lag) {
  int64_t n = rounds->pairs, f = 0, w = 0;
  bool split = lag != PST__NO_SPLIT;
  PST_TRY(pst_schedule_reserve(schedule, worker,
                               (split ? 3 : 2) * (size_t)schedule->chunks * (size_t)schedule->microbatches));
  while (f < warmup && f < n) PST_TRY(append_pair(schedule, worker, rounds, PST_ACTION_F, f++));
  for (int64_t b = 0; b < n; b++) {
    if (f < n) PST_TRY(append_pair(schedule, worker, rounds, PST_ACTION_F, f++));
    PST_TRY(append_pair(schedule, worker, rounds, split ? PST_ACTION_I : PST_ACTION_B, b));
    if (split && b >= lag) PST_TRY(append_pair(schedule, worker, rounds, PST_ACTION_W, w++));
  }
  while (split && w < n) PST_TRY(append_pair(schedule, worker, rounds, PST_ACTION_W, w++));
  return PST_OK;
}
