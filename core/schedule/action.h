/* One step of a worker: run a program for a (chunk, microbatch), start a message, or end the training step.
 *
 *   pst_action a = pst_action_make(PST_ACTION_B, 2, 1);
 *   char text[PST_ACTION_TEXT];
 *   puts(pst_action_format(a, text));                             // 2B1: full backward of stage 2,
 * microbatch 1 pst_status st = pst_action_parse("1RECV_F3", &a);             // the way back
 *
 * The text form is the one PyTorch's pipeline schedules print: stage, kind, microbatch. REDUCE and UPDATE
 * stand for a whole worker and carry no numbers.
 */
#ifndef PENSTOCK_SCHEDULE_ACTION_H
#define PENSTOCK_SCHEDULE_ACTION_H

#include <stdint.h>

#include "core/base/status.h"

/* kind, text.
 * F       forward.
 * B       full backward: input gradient, then weight gradients. The SEND_B behind it leaves between the two
 *         parts where the stage has an early form.
 * I, W    the two parts of a backward as two actions; I ends the use of STASH, W that of DEFER.
 * SEND_F  posts the activation of this stage to the next one; RECV_F posts the receive of this stage's input.
 * SEND_B  posts the input gradient of this stage to the one before; RECV_B posts the receive of the gradient
 *         of this stage's output. Stage and microbatch are always those of the worker that holds the action:
 *         `s SEND_F m` pairs with `s+1 RECV_F m`, `s SEND_B m` with `s-1 RECV_B m`.
 * REDUCE  whole-model sums of the gradients (tied parameters, norm, replicas).
 * UPDATE  optimizer step. */
#define PST_ACTION_LIST(X)                                                                                   \
  X(F, "F")                                                                                                  \
  X(B, "B")                                                                                                  \
  X(I, "I")                                                                                                  \
  X(W, "W")                                                                                                  \
  X(SEND_F, "SEND_F")                                                                                        \
  X(RECV_F, "RECV_F")                                                                                        \
  X(SEND_B, "SEND_B")                                                                                        \
  X(RECV_B, "RECV_B")                                                                                        \
  X(REDUCE, "REDUCE")                                                                                        \
  X(UPDATE, "UPDATE")

typedef enum pst_action_kind {
#define PST_ACTION_ENUM(name, text) PST_ACTION_##name,
  PST_ACTION_LIST(PST_ACTION_ENUM)
#undef PST_ACTION_ENUM
      PST_ACTION_COUNT
} pst_action_kind;

/* Eight bytes, so that the lists of 1,024 workers and 4,096 microbatches stay near 200 MB. */
typedef struct pst_action {
  uint32_t microbatch; /* 0..M-1; 0 for REDUCE and UPDATE */
  uint16_t chunk;      /* global stage index 0..S-1; 0 for REDUCE and UPDATE */
  uint16_t kind;       /* a pst_action_kind */
} pst_action;

/* Bytes that hold any action's text and its end. */
enum { PST_ACTION_TEXT = 32 };

static inline pst_action pst_action_make(pst_action_kind kind, int chunk, int64_t microbatch) {
  return (pst_action){(uint32_t)microbatch, (uint16_t)chunk, (uint16_t)kind};
}

/* "F", "SEND_B"; for a value that is no kind, "?". */
const char *pst_action_kind_name(int kind);

/* Writes the action's text into `text` and returns it. Any thread. */
const char *pst_action_format(pst_action action, char text[PST_ACTION_TEXT]);

/* Reads one action from the whole of `text`. PST_INVALID names the text and the wanted form. Any thread. */
PST_CHECKED pst_status pst_action_parse(const char *text, pst_action *out_action);

#endif
