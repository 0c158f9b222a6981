#include "core/schedule/v_blocks.h"

/* Forward and backward fronts move one worker every two slots downwards and every slot upwards. */
static void offsets(int k, int r, int64_t out_slot[PST__PASSES]) {
  int shift = k % 2 == 0 ? 3 : 0; /* keeps the four passes in different slots of the period */
  out_slot[PST__F_DOWN] = 2 * (int64_t)r;
  out_slot[PST__F_UP] = 3 * (int64_t)k - 2 - r;
  out_slot[PST__I_UP] = 3 * (int64_t)k - 1 + shift + 2 * r;
  out_slot[PST__I_DOWN] = 6 * (int64_t)k + shift - 2 - r;
}

pst_status pst__generate_v_half(const pst_schedule_options *options, pst_schedule **out_schedule) {
  return pst__generate_blocks(options, offsets, out_schedule);
}
