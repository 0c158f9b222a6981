/* Schedules made by repeating a building block on V placement (Qi et al. 2024, "Pipeline Parallelism with
 * Controllable Memory", section 3 and appendix): on a clock of slots, one forward or one half of a backward
 * of a chunk each, the four passes of a microbatch have fixed offsets, and microbatch m follows six slots
 * behind m-1. The distance from F to W over six is the memory. */
#ifndef PENSTOCK_SCHEDULE_V_BLOCKS_H
#define PENSTOCK_SCHEDULE_V_BLOCKS_H

#include "core/schedule/families.h"

enum { PST__F_DOWN, PST__F_UP, PST__I_UP, PST__I_DOWN, PST__PASSES };

/* Slots of microbatch 0 on `worker` of `workers`. */
typedef void (*pst__block_offsets)(int workers, int worker, int64_t out_slot[PST__PASSES]);

/* Repeats the block, gives every free slot to the oldest W that is ready, moves the passes of warmup and
 * cooldown to earlier free slots where the worker's peak in flight does not rise (for K * M up to 16,384),
 * and keeps the order in which each worker then meets its passes. With times in the options, a list that is
 * quicker with these times and has no more in flight takes its place where a search finds one. */
PST_CHECKED pst_status pst__generate_blocks(const pst_schedule_options *options, pst__block_offsets offsets,
                                            pst_schedule **out_schedule);

#endif
