/* What check, lower and simulate share: how the stages hang together, the rules, and the machine. */
#ifndef PENSTOCK_SCHEDULE_INTERNAL_H
#define PENSTOCK_SCHEDULE_INTERNAL_H

#include "core/schedule/simulate.h"

/* What one stage exchanges with its neighbours; _LOCAL where the neighbour lives on the same worker. */
enum {
  PST__IN_MESSAGE = 1u << 0, /* activation in */
  PST__IN_LOCAL = 1u << 1,
  PST__OUT_MESSAGE = 1u << 2, /* activation out */
  PST__OUT_LOCAL = 1u << 3,
  PST__GIN_MESSAGE = 1u << 4, /* gradient of the output in */
  PST__GIN_LOCAL = 1u << 5,
  PST__GOUT_MESSAGE = 1u << 6, /* gradient of the input out */
  PST__GOUT_LOCAL = 1u << 7,
  PST__LATE = 1u << 8, /* I is empty, W is the whole backward */
  PST__FORWARD_ONLY = 1u << 9,
};

/* Does this action read the incoming gradient and, at its end, free the STASH slot (and that gradient)? */
static inline bool pst__frees_stash(unsigned wire, unsigned kind) {
  switch (kind) {
  case PST_ACTION_F:
    return wire & PST__FORWARD_ONLY;
  case PST_ACTION_B:
    return true;
  case PST_ACTION_I:
    return !(wire & PST__LATE);
  case PST_ACTION_W:
    return wire & PST__LATE;
  default:
    return false;
  }
}

/* Is it the action that makes the input gradient? */
static inline bool pst__is_backward(unsigned kind) {
  return kind == PST_ACTION_B || kind == PST_ACTION_I;
}

/* Checks placement and options; makes the [stages] flags. The caller frees *out_wire. */
PST_CHECKED pst_status pst__wire_stages(const pst_schedule *schedule, const pst_lower_options *options,
                                        uint16_t **out_wire);

/* All that can be said of each list by itself and of the counts, without running (the rules of check.h but
 * progress). `buffers` NULL: no limit on slots. Where `out_peaks` [stages] is given, it receives the peaks of
 * stash, defer and gradient, without extra slots or rings. */
PST_CHECKED pst_status pst__check_rules(const pst_schedule *schedule, const uint16_t *wire,
                                        const pst_stage_buffers *buffers, pst_stage_buffers *out_peaks);

/* Records "worker w, position p (text): ..." and returns PST_INVALID. */
pst_status pst__refuse(const pst_schedule *schedule, int worker, size_t position, const char *format, ...)
    PST_PRINTF(4, 5);

/* Rules, then the machine: what pst_schedule_check() and pst_schedule_simulate() are made of. `result` (with
 * room for the workers) is filled when `timed`. */
PST_CHECKED pst_status pst__prove(const pst_schedule *schedule, const pst_simulate_options *clock, bool timed,
                                  pst_simulation *result);

/* Runs the lists to their end on the machine of lower.h. `clock` NULL: progress alone, no times kept. A
 * schedule that passed pst__check_rules() is wanted. PST_INVALID when it comes to a standstill. */
PST_CHECKED pst_status pst__run_machine(const pst_schedule *schedule, const uint16_t *wire,
                                        const pst_stage_buffers *buffers, const pst_simulate_options *clock,
                                        pst_simulation *result);

#endif
