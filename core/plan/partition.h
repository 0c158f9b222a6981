/* Cutting a row of units into stages so that the slowest stage is as fast as can be.
 *
 *   int64_t cost[] = {1, 4, 4, 4, 2};
 *   double speed[] = {1, 1};                                      // of each stage
 *   int32_t cut[3];
 *   PST_TRY(pst_partition(cost, 5, speed, 2, cut));               // {0, 3, 5}
 *
 * Dynamic programming over (units, stages); exact. Among cuts that are equally good the earlier stages get
 * the fewer units.
 */
#ifndef PENSTOCK_PLAN_PARTITION_H
#define PENSTOCK_PLAN_PARTITION_H

#include "core/base/status.h"

#include <stdint.h>

/* `cost` of n_units units, `speed` of n_stages stages (> 0); writes n_stages + 1 ascending unit numbers, each
 * stage at least one unit. INVALID when there are fewer units than stages. */
PST_CHECKED pst_status pst_partition(const int64_t *cost, int32_t n_units, const double *speed,
                                     int32_t n_stages, int32_t *out_cut);

#endif
