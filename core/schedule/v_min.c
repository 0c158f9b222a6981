#include "core/schedule/v_blocks.h"

/* Both fronts move one worker in every slot: the shortest way from F to W. */
static void offsets(int k, int r, int64_t out_slot[PST__PASSES]) {
  int shift = k % 3 == 0 ? 2 : 0; /* keeps the four passes in different slots of the period */
  out_slot[PST__F_DOWN] = r;
  out_slot[PST__F_UP] = 2 * (int64_t)k - 1 - r;
  out_slot[PST__I_UP] = 2 * (int64_t)k + shift + r;
  out_slot[PST__I_DOWN] = 4 * (int64_t)k + shift - 1 - r;
}

pst_status pst__generate_v_min(const pst_schedule_options *options, pst_schedule **out_schedule) {
  return pst__generate_blocks(options, offsets, out_schedule);
}
