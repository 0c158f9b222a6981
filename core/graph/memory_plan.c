#include "core/graph/memory_plan.h"

#include <stdlib.h>

static int64_t aligned(int64_t bytes) {
  return (bytes + PST_ALIGN - 1) / PST_ALIGN * PST_ALIGN;
}

pst_status pst_layout_grow(pst_layout *layout, uint16_t block, int64_t bytes) {
  if (block >= layout->n_blocks) {
    int64_t *more = realloc(layout->block_bytes, (size_t)(block + 1) * sizeof *more);
    if (!more) return pst_fail(PST_NO_MEMORY, "no memory for the memory plan");
    for (int32_t i = layout->n_blocks; i <= block; i++) more[i] = 0;
    layout->block_bytes = more;
    layout->n_blocks = block + 1;
  }
  if (bytes > layout->block_bytes[block]) {
    layout->bytes += bytes - layout->block_bytes[block];
    layout->block_bytes[block] = bytes;
  }
  return PST_OK;
}

static pst_status too_large(int64_t bytes, int64_t max_block_bytes) {
  return pst_fail(PST_NO_MEMORY,
                  "a tensor of %lld bytes is larger than the device's largest allocation of %lld",
                  (long long)bytes, (long long)max_block_bytes);
}

pst_status pst_layout_place(pst_layout *layout, int64_t bytes, int64_t max_block_bytes, uint16_t *out_block,
                            int64_t *out_offset) {
  int64_t size = aligned(bytes);
  if (max_block_bytes > 0 && size > max_block_bytes) return too_large(bytes, max_block_bytes);
  int32_t block = layout->n_blocks ? layout->n_blocks - 1 : 0;
  int64_t offset = layout->n_blocks ? layout->block_bytes[block] : 0;
  if (max_block_bytes > 0 && offset + size > max_block_bytes) {
    block++;
    offset = 0;
  }
  if (block > UINT16_MAX) return pst_fail(PST_NO_MEMORY, "a segment of more than %d blocks", UINT16_MAX);
  PST_TRY(pst_layout_grow(layout, (uint16_t)block, offset + size));
  *out_block = (uint16_t)block;
  *out_offset = offset;
  return PST_OK;
}

static int larger_first(const void *a, const void *b) {
  const pst_span *x = *(const pst_span *const *)a, *y = *(const pst_span *const *)b;
  if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
  return x->first < y->first ? -1 : x->first > y->first ? 1 : x < y ? -1 : x > y;
}

static int by_offset(const void *a, const void *b) {
  const pst_span *x = *(const pst_span *const *)a, *y = *(const pst_span *const *)b;
  return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* The lowest offset in `block` that keeps clear of the placed spans which are alive together with s. */
static int64_t lowest_gap(const pst_span *s, pst_span *const *placed, int32_t n_placed, uint16_t block,
                          pst_span **alive) {
  int32_t n = 0;
  for (int32_t i = 0; i < n_placed; i++)
    if (placed[i]->block == block && placed[i]->first <= s->last && s->first <= placed[i]->last)
      alive[n++] = placed[i];
  qsort(alive, (size_t)n, sizeof *alive, by_offset);
  int64_t offset = 0;
  for (int32_t i = 0; i < n && alive[i]->offset < offset + aligned(s->bytes); i++) {
    int64_t end = alive[i]->offset + aligned(alive[i]->bytes);
    if (end > offset) offset = end;
  }
  return offset;
}

pst_status pst_memory_plan(pst_span *spans, int32_t n, int64_t max_block_bytes, pst_layout *layout) {
  pst_status st = PST_OK;
  pst_span **order = malloc((size_t)(n + 1) * sizeof *order),
           **alive = malloc((size_t)(n + 1) * sizeof *alive);
  if (!order || !alive) {
    st = pst_fail(PST_NO_MEMORY, "no memory to plan %d values", n);
    goto done;
  }
  for (int32_t i = 0; i < n; i++) order[i] = &spans[i];
  qsort(order, (size_t)n, sizeof *order, larger_first);
  for (int32_t i = 0; i < n; i++) {
    pst_span *s = order[i];
    if (max_block_bytes > 0 && aligned(s->bytes) > max_block_bytes) {
      st = too_large(s->bytes, max_block_bytes);
      goto done;
    }
    s->block = 0;
    while ((s->offset = lowest_gap(s, order, i, s->block, alive)) + aligned(s->bytes) > max_block_bytes &&
           max_block_bytes > 0)
      s->block++;
    PST_GOTO(st, pst_layout_grow(layout, s->block, s->offset + aligned(s->bytes)), done);
  }
done:
  free(order);
  free(alive);
  return st;
}
