#include "core/engine/internal.h"

#include "core/graph/memory_plan.h"

#include <stdlib.h>

pst_status pst__segment_allocate(pst_device *device, const pst_layout *layout, pst_segment *out_segment) {
  pst_segment s = {.bytes = layout->bytes};
  if (layout->n_blocks) {
    s.blocks = calloc((size_t)layout->n_blocks, sizeof *s.blocks);
    if (!s.blocks) return pst_fail(PST_NO_MEMORY, "no memory for a segment of %d blocks", layout->n_blocks);
  }
  for (int i = 0; i < layout->n_blocks; i++) {
    pst_status st = device->table->alloc(device, layout->block_bytes[i], &s.blocks[i]);
    if (st != PST_OK) {
      pst__segment_free(device, &s);
      return st;
    }
    s.n_blocks++;
  }
  *out_segment = s;
  return PST_OK;
}

void pst__segment_free(pst_device *device, pst_segment *segment) {
  for (int i = 0; i < segment->n_blocks; i++) device->table->free(device, segment->blocks[i]);
  free(segment->blocks);
  *segment = (pst_segment){0};
}

pst_status pst__layout_cover(pst_layout *layout, const pst_layout *other) {
  for (int32_t i = 0; i < other->n_blocks; i++)
    PST_TRY(pst_layout_grow(layout, (uint16_t)i, other->block_bytes[i]));
  return PST_OK;
}

void *pst__operand_host(pst_device *device, const pst_segment *segment, const pst_operand *operand) {
  if (!device->table->host_pointer || operand->block >= segment->n_blocks) return NULL;
  char *base = device->table->host_pointer(device, segment->blocks[operand->block]);
  return base ? base + operand->offset : NULL;
}
