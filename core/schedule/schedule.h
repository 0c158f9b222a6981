/* A schedule: what each worker does in one step, as one list of actions per worker. Pure data.
 *
 *   pst_schedule *s = NULL;
 *   PST_TRY(pst_schedule_create(2, 1, 1, true, &s));              // K=2 workers, V=1, M=1, training
 *   PST_TRY(pst_schedule_append(s, 0, PST_ACTION_F, 0, 0));       // worker 0: 0F0 0B0
 *   PST_TRY(pst_schedule_append(s, 0, PST_ACTION_B, 0, 0));
 *   PST_TRY(pst_schedule_append(s, 1, PST_ACTION_F, 1, 0));       // worker 1: 1F0 1B0
 *   PST_TRY(pst_schedule_append(s, 1, PST_ACTION_B, 1, 0));
 *   ...
 *   pst_schedule_destroy(s);
 *
 * In *normal form* a list holds compute actions only (F, B, I, W); that is what a family emits. Lowering
 * (lower.h) makes the full list, which a worker runs. Both are read by check, simulate and trace alike.
 */
#ifndef PENSTOCK_SCHEDULE_SCHEDULE_H
#define PENSTOCK_SCHEDULE_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/schedule/action.h"

typedef struct pst_action_list {
  pst_action *items; /* [capacity], the first `count` are the list; owned by the schedule */
  size_t count;
  size_t capacity;
} pst_action_list;

typedef struct pst_schedule {
  int workers;            /* K, 1..65535 */
  int chunks;             /* V stages on each worker */
  int stages;             /* S = K * V, at most 65535 */
  int64_t microbatches;   /* M, 1..2^31-1 */
  bool training;          /* false: forward only */
  bool lowered;           /* false: normal form */
  int *worker_of;         /* [stages] the worker of each stage; owned. Starts as stage mod K (loop) */
  pst_action_list *lists; /* [workers]; owned */
} pst_schedule;

/* Makes a schedule with empty lists and loop placement. PST_INVALID when a count is out of range,
 * PST_NO_MEMORY. The caller owns *out_schedule. */
PST_CHECKED pst_status pst_schedule_create(int workers, int chunks, int64_t microbatches, bool training,
                                           pst_schedule **out_schedule);

/* NULL is legal. */
void pst_schedule_destroy(pst_schedule *schedule);

/* V placement (two chunks per worker): stage s on worker s, then back: 2K-1-s. PST_INVALID unless chunks = 2.
 */
PST_CHECKED pst_status pst_schedule_place_v(pst_schedule *schedule);

/* Makes room for `count` actions in all in one worker's list. PST_NO_MEMORY. */
PST_CHECKED pst_status pst_schedule_reserve(pst_schedule *schedule, int worker, size_t count);

/* Adds an action at the end of a worker's list. Nothing but memory is checked here; pst_schedule_check() says
 * whether the whole makes sense. PST_NO_MEMORY. */
PST_CHECKED pst_status pst_schedule_append(pst_schedule *schedule, int worker, pst_action_kind kind,
                                           int chunk, int64_t microbatch);

/* Number of actions in all lists. */
size_t pst_schedule_total(const pst_schedule *schedule);

#endif
