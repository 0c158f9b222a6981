/* Proves a schedule before it runs.
 *
 *   pst_status st = pst_schedule_check(schedule, &options, buffers);
 *   // worker 1, position 4 (1B0): no gradient of stage 2 can arrive, worker 2 stands at position 1 (2F1) ...
 *
 * What is proved, in either form: each stage stands on one worker and only there; each (stage, microbatch)
 * has one F, and in training either one B, or one I and behind it one W; F stands before B or I; F, B/I, W
 * and the messages of each boundary run through the microbatches in ascending order, and no B runs while the
 * W of an earlier microbatch is owed (gradients add up in ascending order); no slot is written while it is in
 * use; every list comes to its end. Of the full form also: each receive has its send and the other way round,
 * posted before the action that reads it and behind the action that writes it, none where no message belongs,
 * and REDUCE and UPDATE once at the end. Progress is proved by running the machine of lower.h: the transport
 * buffers nothing, the rings have the sizes given.
 */
#ifndef PENSTOCK_SCHEDULE_CHECK_H
#define PENSTOCK_SCHEDULE_CHECK_H

#include "core/schedule/lower.h"

/* `options` NULL: the defaults. `buffers` [stages], NULL: in-flight counts are not limited (normal form) or
 * those of pst_schedule_buffers() (full form). PST_INVALID: the message names the worker, the position in its
 * list (from 0), the action and what was wanted. PST_NO_MEMORY. O(actions) time, O(stages) memory. Any
 * thread. */
PST_CHECKED pst_status pst_schedule_check(const pst_schedule *schedule, const pst_lower_options *options,
                                          const pst_stage_buffers *buffers);

#endif
