/* Programs: straight-line lists of ops whose operands are a segment and an offset, never a pointer.
 *
 *   pst_binding bind = {.base[PST_SEGMENT_PARAM] = &param, .base[PST_SEGMENT_STASH] = &stash[slot], ...};
 *   device->table->run(device, &program, &bind);          // the same program, another microbatch: another
 * STASH base
 */
#ifndef PENSTOCK_DEVICE_PROGRAM_H
#define PENSTOCK_DEVICE_PROGRAM_H

#include "core/base/dtype.h"
#include "core/device/ops.h"

#include <stddef.h>

/* Memory that programs address by offset. */
typedef enum pst_segment_kind {
  PST_SEGMENT_NONE,       /* an absent optional operand */
  PST_SEGMENT_PARAM,      /* parameters as compute uses them */
  PST_SEGMENT_PARAM_NEXT, /* parameters as the update writes them; the same memory as PARAM when synchronous
                           */
  PST_SEGMENT_GRAD,       /* gradient accumulators, fp32 */
  PST_SEGMENT_OPTIM,      /* moments, fp32 master weights */
  PST_SEGMENT_STASH, /* values of one microbatch whose last reader is its backward (or input-gradient) program
                      */
  PST_SEGMENT_DEFER, /* values of one microbatch whose last reader is its weight-gradient program */
  PST_SEGMENT_WORK,  /* scratch inside one program */
  PST_SEGMENT_INPUT, /* tokens, targets of one microbatch */
  PST_SEGMENT_LOSS,  /* losses of one microbatch */
  PST_SEGMENT_OUT,   /* outgoing activations of one microbatch */
  PST_SEGMENT_GRAD_IN,  /* incoming gradients of one microbatch */
  PST_SEGMENT_GRAD_OUT, /* outgoing gradients of one microbatch */
  PST_SEGMENT_STATE,    /* what programs keep between runs */
  PST_SEGMENT_CTRL,     /* one pst_ctrl */
  PST_SEGMENT_COUNT
} pst_segment_kind;

/* "param"; "unknown" for a value that is none. */
const char *pst_segment_name(pst_segment_kind segment);

/* Tensors start at multiples of this many bytes of their block. */
enum { PST_ALIGN = 64 };

typedef struct pst_operand {
  int64_t offset;            /* bytes into the block */
  int64_t dim[PST_MAX_RANK]; /* row-major, dense; unused ones are 1 */
  uint16_t block;            /* which block of the segment */
  uint8_t segment;           /* pst_segment_kind */
  uint8_t dtype;             /* pst_dtype */
  uint8_t rank;
} pst_operand;

typedef struct pst_op {
  pst_op_code code;
  pst_operand
      in[PST_OP_MAX_IN]; /* by position as core/device/ops.h lists them; absent ones are segment NONE */
  pst_operand out[PST_OP_MAX_OUT];
  pst_operand acc[PST_OP_MAX_ACC];
  pst_operand workspace; /* u8 scratch of the size the device asked for, aligned to PST_ALIGN; NONE when it
                            asked for none */
  pst_attrs attrs;
  int32_t unit; /* the model's unit this op came from, for messages and traces; -1: none */
} pst_op;

typedef struct pst_program {
  const char *name; /* "F", "B", "I", "W", "update", ... */
  pst_op *ops;
  int64_t n_ops;
} pst_program;

static inline int64_t pst_operand_elements(const pst_operand *o) {
  return o->dim[0] * o->dim[1] * o->dim[2] * o->dim[3];
}

static inline bool pst_operand_present(const pst_operand *o) {
  return o->segment != PST_SEGMENT_NONE;
}

/* The last used dimension, and how many rows of it there are. */
static inline int64_t pst_operand_width(const pst_operand *o) {
  return o->rank ? o->dim[o->rank - 1] : 1;
}
static inline int64_t pst_operand_rows(const pst_operand *o) {
  int64_t w = pst_operand_width(o);
  return w ? pst_operand_elements(o) / w : 0;
}

typedef struct pst_buffer pst_buffer; /* device memory: a handle that its backend defines */

/* One copy of a segment: a base for each of its blocks. */
typedef struct pst_segment {
  pst_buffer **blocks;
  int n_blocks;
  int64_t bytes; /* of all blocks */
} pst_segment;

/* Which copy of each segment a run uses; NULL where the program does not touch the segment. */
typedef struct pst_binding {
  const pst_segment *base[PST_SEGMENT_COUNT];
} pst_binding;

#endif
