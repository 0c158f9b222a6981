/* Placing values that live for a part of a program into shared memory.
 *
 *   pst_span spans[] = {{.bytes = 4096, .first = 0, .last = 3}, {.bytes = 512, .first = 4, .last = 9}};
 *   PST_TRY(pst_memory_plan(spans, 2, 0, &layout));      // both at offset 0: they are never alive together
 *
 * Greedy by size: the largest first, each at the lowest offset where no span that is alive at the same time
 * lies (Y. Pisarchyk, J. Lee, "Efficient memory management for deep neural net inference", 2020,
 * section 5.2).
 */
#ifndef PENSTOCK_GRAPH_MEMORY_PLAN_H
#define PENSTOCK_GRAPH_MEMORY_PLAN_H

#include "core/graph/stage.h"

typedef struct pst_span {
  int64_t bytes;
  int32_t first, last; /* op positions, both included */
  uint16_t block;      /* out */
  int64_t offset;      /* out; a multiple of PST_ALIGN */
} pst_span;

/* Places all spans and grows `layout` to hold them. */
PST_CHECKED pst_status pst_memory_plan(pst_span *spans, int32_t n, int64_t max_block_bytes,
                                       pst_layout *layout);

/* Makes block `block` at least `bytes` large. */
PST_CHECKED pst_status pst_layout_grow(pst_layout *layout, uint16_t block, int64_t bytes);

#endif
