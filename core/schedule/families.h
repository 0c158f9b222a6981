/* The schedule families by name, and the one call that makes a schedule from options.
 *
 *   pst_schedule_options options;
 *   pst_schedule_options_init(&options);                          // 1f1b, one worker, one microbatch
 *   options.workers = 4;
 *   options.microbatches = 8;
 *   pst_schedule *schedule = NULL;
 *   PST_TRY(pst_schedule_generate(&options, &schedule));          // normal form
 *
 * A family is one file that emits the compute actions of each worker and one row in families.c. Checking,
 * lowering, simulating and running are not told about it.
 */
#ifndef PENSTOCK_SCHEDULE_FAMILIES_H
#define PENSTOCK_SCHEDULE_FAMILIES_H

#include "core/schedule/schedule.h"

typedef struct pst_schedule_options {
  const char *name;     /* "1f1b"; borrowed for the call */
  int workers;          /* 1; K */
  int chunks;           /* 1; V, stages on each worker */
  int64_t microbatches; /* 1; M */
  int extra_forwards;   /* 0; microbatches in flight beyond the family's own number, hides latency (1f1b) */
} pst_schedule_options;

typedef struct pst_schedule_family {
  const char *name;
  const char *help;  /* one line */
  bool takes_chunks; /* V > 1 makes sense */
  bool takes_extra;  /* extra_forwards makes sense */
  /* Emits the lists. Options have been checked against the two flags and for range. The caller owns *out. */
  pst_status (*generate)(const pst_schedule_options *options, pst_schedule **out_schedule);
} pst_schedule_family;

void pst_schedule_options_init(pst_schedule_options *options);

/* The table, in the order in which it is to be listed; *out_count rows. Static. */
const pst_schedule_family *pst_schedule_families(size_t *out_count);

/* Makes the schedule in normal form. PST_INVALID names the option, the value seen and the values wanted; an
 * unknown name is answered with the known ones, nearest first. PST_NO_MEMORY. Any thread. The caller owns
 * *out_schedule. */
PST_CHECKED pst_status pst_schedule_generate(const pst_schedule_options *options,
                                             pst_schedule **out_schedule);

/* Forward only: every worker runs F of all microbatches. */
pst_status pst__generate_forward_only(const pst_schedule_options *options, pst_schedule **out_schedule);

/* GPipe (Huang et al. 2019, "GPipe", section 2.3): all forwards, then all backwards. The backwards run in
 * ascending order, not in the paper's descending one: same makespan, and gradients add up as in one process.
 */
pst_status pst__generate_gpipe(const pst_schedule_options *options, pst_schedule **out_schedule);

/* 1F1B (Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training", PipeDream-Flush; Fan et al.
 * 2021, "DAPPLE"): warmup of min(M, K-1-r+extra_forwards) forwards on worker r, then one forward and one
 * backward in turn, then the backwards left. At most min(M, K-r+extra_forwards) microbatches are in flight.
 */
pst_status pst__generate_one_f_one_b(const pst_schedule_options *options, pst_schedule **out_schedule);

#endif
