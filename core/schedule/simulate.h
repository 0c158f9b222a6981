/* A clock simulation of a schedule: how long a step takes and who waits.
 *
 *   pst_simulate_options options;
 *   pst_simulate_options_init(&options);                          // no latency, early send
 *   options.forward_s = f; options.input_s = i; options.weight_s = w;      // [stages] seconds
 *   pst_simulation *result = NULL;
 *   PST_TRY(pst_schedule_simulate(schedule, &options, &result));
 *   printf("%.3f s, %.1f %% idle\n", result->makespan_s, 100 * result->bubble_makespan);
 *   pst_simulation_destroy(result);
 *
 * A worker runs its list in order; an action starts when the worker is free and its inputs are there. A
 * message takes `latency_s` and does not occupy the worker. In normal form a message leaves at once and
 * buffers are endless; the full form obeys the machine of lower.h: a transfer begins when both sides have
 * posted, and an action waits for its ring.
 */
#ifndef PENSTOCK_SCHEDULE_SIMULATE_H
#define PENSTOCK_SCHEDULE_SIMULATE_H

#include "core/schedule/lower.h"

/* Start and end of one action, seconds from the start of the step. Posts take no time. */
typedef struct pst_action_span {
  double start_s, end_s;
} pst_action_span;

typedef struct pst_simulate_options {
  const double *forward_s;          /* [stages] seconds of F; NULL: 1. Borrowed, like the others */
  const double *input_s;            /* [stages] seconds of I, the first part of B; NULL: 1 */
  const double *weight_s;           /* [stages] seconds of W, the second part of B; NULL: 1 */
  double latency_s;                 /* 0; one way, each message */
  bool early_send;                  /* true; B lets its input gradient go between its two parts */
  const pst_lower_options *lower;   /* NULL: the defaults */
  const pst_stage_buffers *buffers; /* [stages]; NULL as for pst_schedule_check() */
  pst_action_span *spans; /* NULL, or [pst_schedule_total()]: worker 0's list, then worker 1's, ... */
} pst_simulate_options;

typedef struct pst_worker_simulation {
  double busy_s;         /* sum of its actions */
  double idle_s;         /* makespan - busy */
  double idle_in_span_s; /* idle between the start of its first and the end of its last compute action */
  double span_s;         /* end of the last - start of the first compute action */
  int64_t peak_stash; /* (stage, microbatch) pairs in flight at once, F to end of B or I; forward only: 1 */
  int64_t peak_defer; /* the same, F to end of B or W */
  int64_t sends;      /* messages it sends */
} pst_worker_simulation;

/* Bubble rates differ between papers; each is named by its definition. With work_r the sum of worker r's
 * actions: bubble_makespan    1 - mean(work_r) / makespan: GPipe, Hanayo, Chimera; K-1 / (M+K-1) for 1F1B
 * bubble_bottleneck  1 - max(work_r) / makespan: what the schedule loses beyond the slowest worker's own work
 * bubble_relative    mean idle / mean work: Megatron, PyTorch; K-1 / M for 1F1B
 * bubble_span        1 - max(work_r) / max(span_r): Zero Bubble; honest only where steps follow without
 * barrier */
typedef struct pst_simulation {
  double makespan_s;
  double bubble_makespan;
  double bubble_bottleneck;
  double bubble_relative;
  double bubble_span;
  int64_t messages; /* all workers */
  int n_workers;
  pst_worker_simulation workers[]; /* [n_workers] */
} pst_simulation;

void pst_simulate_options_init(pst_simulate_options *options);

/* Runs the clock; the schedule is checked on the way (check.h), so a broken one is PST_INVALID with that
 * message. PST_INVALID also for a time that is negative or not finite. PST_NO_MEMORY. O(actions) time; memory
 * 16 bytes for each (stage, microbatch). The caller owns *out_result. Any thread. */
PST_CHECKED pst_status pst_schedule_simulate(const pst_schedule *schedule,
                                             const pst_simulate_options *options,
                                             pst_simulation **out_result);

void pst_simulation_destroy(pst_simulation *simulation); /* NULL is legal */

#endif
