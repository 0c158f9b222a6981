/* The parts of the `auto` family: a list scheduler that lays out one candidate, the judge, and the search. */
#ifndef PENSTOCK_SCHEDULE_AUTO_H
#define PENSTOCK_SCHEDULE_AUTO_H

#include "core/schedule/families.h"
#include "core/schedule/simulate.h"

/* How the list scheduler decides; every combination gives a sound list, some good ones. */
typedef struct pst__greedy_rules {
  bool v_placed;
  bool forward_first; /* of a forward and a backward that can both start */
  int ahead;          /* microbatches in flight: 0: K-r of a chunk, 1: about twice that, 2: whatever fits */
  double patience;    /* 0..1: part of a W that may delay an input known to arrive */
  int64_t limit;      /* most (chunk, microbatch) pairs in flight on a worker */
} pst__greedy_rules;

/* Plays the step forward in time: whichever worker can start something first does so. Split backwards. The
 * times are options' own. PST_INVALID when the limit leaves no way on, PST_NO_MEMORY. */
PST_CHECKED pst_status pst__greedy_lists(const pst_schedule_options *options, const pst__greedy_rules *rules,
                                         pst_schedule **out_schedule);

/* Replaces *schedule, on V placement, by a list that is quicker with the options' times and has at most
 * `limit` (chunk, microbatch) pairs in flight on a worker, where the search finds one. */
PST_CHECKED pst_status pst__quicken_v(const pst_schedule_options *options, int64_t limit,
                                      pst_schedule **schedule);

#endif
