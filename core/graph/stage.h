/* Lowering: the units of one stage become programs whose operands are segment + offset, and a static memory
 * plan.
 *
 *   int32_t cut[] = {0, 5, 9};                       // two stages: units 0..4 and 5..8
 *   PST_TRY(pst_stage_lower(graph, cut, 2, 0, &options, &code));
 *   code->forward, code->backward ...                // run by core/engine with one binding per microbatch
 *   code->layout[PST_SEGMENT_STASH].bytes            // of one slot
 *
 * What a value's segment is follows from who reads it last (core/device/program.h names the segments): W of a
 * split backward: DEFER; the backward or the input-gradient program: STASH; the next stage: OUT; the program
 * itself: WORK, where values share memory by liveness and an op may write onto an input that dies there.
 * Lowering a unit does not depend on where the cuts fall: the ops and their order are the graph's.
 */
#ifndef PENSTOCK_GRAPH_STAGE_H
#define PENSTOCK_GRAPH_STAGE_H

#include "core/device/program.h"
#include "core/graph/ir.h"

/* How backward is lowered; the same bits either way. */
typedef enum pst_backward_form {
  PST_BACKWARD_FUSED, /* one program, gradients of inputs and weights op by op; nothing is deferred */
  PST_BACKWARD_EARLY, /* input gradients (I), then at once weight gradients (W), two programs so that the
                         input's gradient can leave in between; DEFER holds what I makes for W: one slot. What
                         F makes for W is in STASH */
  PST_BACKWARD_SPLIT, /* I and W apart: W may run any time later, so DEFER holds all it reads, whoever wrote
                         it */
} pst_backward_form;

/* The memory of one segment. */
typedef struct pst_layout {
  int32_t n_blocks;
  int64_t *block_bytes; /* n_blocks; each at most the device's largest allocation */
  int64_t bytes;        /* their sum */
} pst_layout;

/* Gives `bytes` a place: a new offset in the last block, or a new block when it would grow past
 * `max_block_bytes` (0: no limit). NO_MEMORY when one tensor alone is larger than a block may be. */
PST_CHECKED pst_status pst_layout_place(pst_layout *layout, int64_t bytes, int64_t max_block_bytes,
                                        uint16_t *out_block, int64_t *out_offset);

/* One tensor of a boundary and where this stage keeps it. */
typedef struct pst_port {
  pst_value value;
  pst_operand at;
} pst_port;

typedef struct pst_ports {
  pst_port *at;
  int32_t n;
} pst_ports;

/* A parameter that this stage uses. */
typedef struct pst_stage_param {
  int32_t param; /* in the graph */
  bool owner; /* the stage of the earliest use adds up the uses, updates, and sends the value to the others */
  pst_operand value;     /* PARAM */
  int32_t n_uses;        /* of the whole model */
  pst_operand *gradient; /* GRAD, one per use of the model: accumulators of this stage's uses; for its owner
                            also a landing place for those of other stages; absent otherwise */
  int32_t *use_stage;    /* which stage each use is in */
} pst_stage_param;

typedef struct pst_stage_code {
  int32_t stage, n_stages;
  int32_t first_unit, end_unit;
  pst_backward_form form;
  pst_program forward;
  pst_program backward;                 /* fused form */
  pst_program input_gradient;           /* early and split form */
  pst_program weight_gradient;          /* early and split form */
  pst_layout layout[PST_SEGMENT_COUNT]; /* of one copy */
  pst_ports receive_forward, send_forward, receive_backward, send_backward;
  pst_operand inputs[PST_INPUT_COUNT]; /* INPUT; absent where the stage does not read it */
  pst_operand result;                  /* LOSS; absent but on the stage that makes it */
  pst_stage_param *params;             /* in the model's order */
  int32_t n_params;
} pst_stage_code;

typedef struct pst_stage_options {
  pst_backward_form form;
  int64_t max_block_bytes;                            /* 0: no limit */
  int64_t (*workspace)(void *user, const pst_op *op); /* scratch an op wants; NULL: none */
  void *user;
} pst_stage_options;

/* Lowers stage `stage` of `n_stages`; `cut` holds n_stages + 1 ascending unit numbers from 0 to the number of
 * units. A graph for training must be differentiated. The code is the caller's; it keeps no pointer into the
 * graph. */
PST_CHECKED pst_status pst_stage_lower(const pst_graph *graph, const int32_t *cut, int32_t n_stages,
                                       int32_t stage, const pst_stage_options *options,
                                       pst_stage_code **out_code);
void pst_stage_destroy(pst_stage_code *code);

/* Places scratch of a program's ops in WORK and fills op.workspace; for programs that are made outside
 * pst_stage_lower(). */
PST_CHECKED pst_status pst_program_place_workspace(pst_program *program, pst_layout *work,
                                                   const pst_stage_options *options);

#endif
