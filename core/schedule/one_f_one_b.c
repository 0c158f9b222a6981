#include "core/schedule/emit.h"
#include "core/schedule/simulate.h"

static pst_status emit_worker(pst_schedule *schedule, int worker, const pst_schedule_options *options) {
  pst__rounds rounds = pst__rounds_make(schedule);
  int64_t warmup = (int64_t)schedule->workers - 1 - worker;
  /* Worker r has a round trip of K-1-r links to wait for; more in flight than twice that hides nothing. */
  int64_t extra = options->extra_forwards < warmup ? options->extra_forwards : warmup;
  return pst__emit_in_turn(schedule, worker, &rounds, warmup + extra, PST__NO_SPLIT);
}

/* The fewest extra forwards with which a step is as short as with any number. */
static pst_status generate_quickest(const pst_schedule_options *options, pst_schedule **out_schedule) {
  pst_schedule_options own = *options;
  pst_simulate_options clock;
  pst_schedule *best = NULL;
  double best_s = 0;
  pst_simulate_options_init(&clock);
  clock.forward_s = options->forward_s;
  clock.input_s = options->input_s;
  clock.weight_s = options->weight_s;
  clock.latency_s = options->latency_s;
  clock.early_send = !options->no_early_send;
  /* doubled, so that many workers take few runs; K-1 is the last that changes anything */
  for (int64_t n = 0; n < 2 * (int64_t)options->workers; n = n == 0 ? 1 : 2 * n) {
    pst_schedule *made = NULL;
    pst_simulation *r = NULL;
    own.extra_forwards = (int)(n < options->workers ? n : options->workers - 1);
    pst_status st = pst__generate_lists(&own, true, false, emit_worker, &made);
    if (st == PST_OK) st = pst_schedule_simulate(made, &clock, &r);
    if (st != PST_OK) {
      pst_schedule_destroy(made);
      pst_schedule_destroy(best);
      return st;
    }
    bool better = best == NULL || r->makespan_s < best_s * (1 - 1e-9);
    if (better) {
      pst_schedule_destroy(best);
      best = made;
      best_s = r->makespan_s;
    } else {
      pst_schedule_destroy(made);
    }
    pst_simulation_destroy(r);
    if (n == 0 && options->latency_s <= 0) break; /* nothing to hide */
  }
  *out_schedule = best;
  return PST_OK;
}

pst_status pst__generate_one_f_one_b(const pst_schedule_options *options, pst_schedule **out_schedule) {
  if (options->extra_forwards == PST_EXTRA_AUTO) return generate_quickest(options, out_schedule);
  return pst__generate_lists(options, true, false, emit_worker, out_schedule);
}
