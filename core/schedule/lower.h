/* From compute actions to the full list of each worker: receives, sends, and the end of the step.
 *
 *   pst_lower_options options;
 *   pst_lower_options_init(&options);
 *   pst_stage_buffers *buffers = calloc(schedule->stages, sizeof *buffers);
 *   PST_TRY(pst_schedule_buffers(schedule, &options, buffers));            // slots for the memory plan
 *   PST_TRY(pst_schedule_lower(schedule, &options, buffers, &full));
 *   PST_TRY(pst_schedule_check(full, &options, buffers));                  // check.h
 *
 * The machine that runs the full list:
 *
 * - RECV_x(s, m) posts a receive into the buffer of microbatch m and goes on; the compute action that reads
 * the buffer waits until it is full. SEND_x(s, m) posts a send and goes on. The transport buffers nothing:
 * the data stays in the sender's ring until the receiver has posted. Messages meet by (direction, stage,
 *   microbatch), not by order.
 * - An activation lands in the STASH slot of its microbatch, slot m mod `stash`; its RECV_F stands as early
 * as that slot is surely free: at the head of the list for the first `stash` microbatches, else right behind
 *   the action that frees the slot. A gradient lands in entry m mod `gradient` of a ring, RECV_B by the same
 *   rule. The receives at the head stand in the order in which they are needed.
 * - An outgoing tensor is written into entry m mod `out_x` of a ring: the action that writes it first waits
 * for the send of microbatch m - out_x.
 * - Between two stages of one worker there is no message: F of the first writes the STASH slot of the second,
 * so the slot is taken from there on, and likewise for the gradient.
 * - A training list ends with REDUCE and UPDATE.
 */
#ifndef PENSTOCK_SCHEDULE_LOWER_H
#define PENSTOCK_SCHEDULE_LOWER_H

#include "core/schedule/schedule.h"

/* Bits of pst_lower_options.empty. */
enum {
  PST_EMPTY_B = 1u << PST_ACTION_B,
  PST_EMPTY_I = 1u << PST_ACTION_I,
  PST_EMPTY_W = 1u << PST_ACTION_W,
};

typedef struct pst_lower_options {
  int n_out;       /* 2; buffers of each outgoing ring, activation and gradient alike */
  int n_grad;      /* 2; buffers that receive gradients, per stage */
  int extra_slots; /* 0; STASH slots beyond the in-flight peak: 1 lets the next input arrive during a step
                      that would else wait for it */
  /* [stages - 1] or NULL (all carry one): nonzero where nothing flows back from stage b + 1 to stage b,
   * because all below is frozen or the boundary holds integers only. Borrowed. */
  const uint8_t *no_gradient;
  /* [stages] or NULL (none): PST_EMPTY_x bits of the kinds whose program is empty. The action stays in the
   * list, costs nothing and moves nothing: where B or I of a stage is empty no gradient leaves it, where B is
   * empty none is brought to it. I empty and W not: W is the whole backward (the first stage of a split
   * schedule) and it is W that ends the use of STASH. Borrowed. */
  const uint8_t *empty;
} pst_lower_options;

/* Buffers of one stage, in tensors-of-one-microbatch; the memory plan multiplies them by bytes. */
typedef struct pst_stage_buffers {
  int stash;    /* STASH slots: in-flight peak from F (or the local write) to the end of B or I, plus
                   extra_slots; forward only: room for one more input than in use, as F frees its own */
  int defer;    /* DEFER slots: peak from F to the end of W where the stage splits; 1 where it runs B alone;
                   0 forward only */
  int gradient; /* incoming gradients: n_grad; on one worker the peak that the list needs; 0: none comes */
  int out_activation; /* outgoing ring: n_out, 0 where no activation is sent */
  int out_gradient;   /* outgoing ring: n_out, 0 where no gradient is sent */
} pst_stage_buffers;  /* none is ever above M */

void pst_lower_options_init(pst_lower_options *options);

/* Counts the buffers that a schedule needs; `out_buffers` is [stages], written only on success. The schedule
 * may be in either form; its rules are checked first (all of check.h but progress). PST_INVALID,
 * PST_NO_MEMORY. */
PST_CHECKED pst_status pst_schedule_buffers(const pst_schedule *schedule, const pst_lower_options *options,
                                            pst_stage_buffers *out_buffers);

/* Makes the full lists of a schedule in normal form. `options` NULL: the defaults; `buffers` is [stages],
 * NULL: those of pst_schedule_buffers(). PST_INVALID when the schedule breaks a rule or needs more slots than
 * given, PST_NO_MEMORY. The caller owns *out_schedule. O(actions). Any thread. */
PST_CHECKED pst_status pst_schedule_lower(const pst_schedule *schedule, const pst_lower_options *options,
                                          const pst_stage_buffers *buffers, pst_schedule **out_schedule);

#endif
