#include "core/schedule/schedule.h"

#include <stdlib.h>

pst_status pst_schedule_create(int workers, int chunks, int64_t microbatches, bool training,
                               pst_schedule **out_schedule) {
  if (workers < 1 || workers > UINT16_MAX)
    return pst_fail(PST_INVALID, "schedule workers: seen %d, wanted 1 to %d", workers, UINT16_MAX);
  if (chunks < 1 || chunks > UINT16_MAX / workers)
    return pst_fail(PST_INVALID, "schedule chunks: seen %d, wanted 1 to %d with %d workers", chunks,
                    UINT16_MAX / workers, workers);
  if (microbatches < 1 || microbatches > INT32_MAX)
    return pst_fail(PST_INVALID, "schedule microbatches: seen %lld, wanted 1 to %d", (long long)microbatches,
                    INT32_MAX);
  pst_schedule *schedule = calloc(1, sizeof *schedule);
  if (schedule == NULL) goto no_memory;
  schedule->workers = workers;
  schedule->chunks = chunks;
  schedule->stages = workers * chunks;
  schedule->microbatches = microbatches;
  schedule->training = training;
  schedule->worker_of = calloc((size_t)schedule->stages, sizeof *schedule->worker_of);
  schedule->lists = calloc((size_t)workers, sizeof *schedule->lists);
  if (schedule->worker_of == NULL || schedule->lists == NULL) goto no_memory;
  for (int s = 0; s < schedule->stages; s++) schedule->worker_of[s] = s % workers;
  *out_schedule = schedule;
  return PST_OK;

no_memory:
  pst_schedule_destroy(schedule);
  return pst_fail(PST_NO_MEMORY, "schedule: no memory for %d workers with %d chunks each", workers, chunks);
}

void pst_schedule_destroy(pst_schedule *schedule) {
  if (schedule == NULL) return;
  for (int w = 0; schedule->lists != NULL && w < schedule->workers; w++) free(schedule->lists[w].items);
  free(schedule->lists);
  free(schedule->worker_of);
  free(schedule);
}

pst_status pst_schedule_place_v(pst_schedule *schedule) {
  if (schedule->chunks != 2)
    return pst_fail(PST_INVALID, "schedule chunks: seen %d, wanted 2 for V placement", schedule->chunks);
  for (int s = 0; s < schedule->stages; s++)
    schedule->worker_of[s] = s < schedule->workers ? s : schedule->stages - 1 - s;
  return PST_OK;
}

pst_status pst_schedule_reserve(pst_schedule *schedule, int worker, size_t count) {
  pst_action_list *list = &schedule->lists[worker];
  if (count <= list->capacity) return PST_OK;
  pst_action *items = count > SIZE_MAX / sizeof *items ? NULL : realloc(list->items, count * sizeof *items);
  if (items == NULL)
    return pst_fail(PST_NO_MEMORY, "schedule: no memory for %zu actions of worker %d", count, worker);
  list->items = items;
  list->capacity = count;
  return PST_OK;
}

pst_status pst_schedule_append(pst_schedule *schedule, int worker, pst_action_kind kind, int chunk,
                               int64_t microbatch) {
  pst_action_list *list = &schedule->lists[worker];
  if (list->count == list->capacity)
    PST_TRY(pst_schedule_reserve(schedule, worker, list->capacity < 8 ? 16 : list->capacity * 2));
  list->items[list->count++] = pst_action_make(kind, chunk, microbatch);
  return PST_OK;
}

size_t pst_schedule_total(const pst_schedule *schedule) {
  size_t total = 0;
  for (int w = 0; w < schedule->workers; w++) total += schedule->lists[w].count;
  return total;
}
