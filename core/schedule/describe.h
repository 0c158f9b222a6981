/* A schedule with the times it is to be predicted for: what the printing and drawing of penstock.h start
 * from.
 *
 *   pst__prediction p;
 *   PST_TRY(pst__prediction_make(options, &p));
 *   PST_GOTO(st, pst_schedule_simulate(p.schedule, &p.clock, &result), done);
 *   ...
 *   pst__prediction_clear(&p);
 */
#ifndef PENSTOCK_SCHEDULE_DESCRIBE_H
#define PENSTOCK_SCHEDULE_DESCRIBE_H

#include "core/penstock.h"
#include "core/schedule/simulate.h"

typedef struct pst__prediction {
  pst_schedule *schedule; /* normal form */
  pst_schedule *given;    /* the full lists of a file that holds messages, else NULL */
  bool renumbered;        /* a file whose backwards got ascending numbers */
  double *times;          /* [3][stages] F, I, W */
  double *limits;         /* [workers] */
  pst_simulate_options clock;
} pst__prediction;

PST_CHECKED pst_status pst__prediction_make(const pst_prediction_options *options, pst__prediction *out);
/* The family or file. */
const char *pst__prediction_name(const pst_prediction_options *options);
void pst__prediction_clear(pst__prediction *prediction);

#endif
