/* What the families share: making the lists worker by worker, and the common shape "warmup, then forward and
 * backward in turn".
 *
 *   static pst_status emit_worker(pst_schedule *schedule, int worker, const pst_schedule_options *options) {
 *     pst__rounds rounds = pst__rounds_make(schedule);
 *     int64_t warmup = schedule->workers - 1 - worker;
 *     return pst__emit_in_turn(schedule, worker, &rounds, warmup, PST__NO_SPLIT);    // 1F1B
 *   }
 */
#ifndef PENSTOCK_SCHEDULE_EMIT_H
#define PENSTOCK_SCHEDULE_EMIT_H

#include "core/schedule/families.h"

/* Emits the list of one worker. */
typedef pst_status (*pst__emit_worker)(pst_schedule *schedule, int worker,
                                       const pst_schedule_options *options);

/* Makes a schedule of options->chunks chunks with loop placement, or V placement, and emits every list. */
PST_CHECKED pst_status pst__generate_lists(const pst_schedule_options *options, bool training, bool v_placed,
                                           pst__emit_worker emit, pst_schedule **out_schedule);

/* The order in which a worker with several chunks goes through its (chunk, microbatch) pairs: the
 * microbatches fall into groups, and each group goes through all chunks before the next one starts (Narayanan
 * et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters", section 2.2). */
typedef struct pst__rounds {
  int chunks;
  int64_t pairs;   /* M * V */
  int64_t largest; /* microbatches of the first n_larger groups; the others have one less */
  int64_t n_larger;
} pst__rounds;

/* floor(M / K) groups, at least one, as even as possible, the larger first. */
pst__rounds pst__rounds_make(const pst_schedule *schedule);

enum { PST__NO_SPLIT = -1 };

/* Loop placement: `warmup` forwards (fewer where there are fewer), then forward and backward in turn, then
 * the backwards left. Backwards go through the rounds with the chunks mirrored. `lag` PST__NO_SPLIT: B. Else
 * I, and behind each I the W of `lag` pairs before, the W left at the end. */
PST_CHECKED pst_status pst__emit_in_turn(pst_schedule *schedule, int worker, const pst__rounds *rounds,
                                         int64_t warmup, int64_t lag);

#endif
