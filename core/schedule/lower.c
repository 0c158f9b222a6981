#include "core/schedule/lower.h"

#include <stdlib.h>

#include "core/schedule/check.h"
#include "core/schedule/internal.h"

void pst_lower_options_init(pst_lower_options *options) {
  *options = (pst_lower_options){.n_out = 2, .n_grad = 2};
}

static int at_most(int64_t value, int64_t limit) {
  return (int)(value < limit ? value : limit);
}

pst_status pst_schedule_buffers(const pst_schedule *schedule, const pst_lower_options *options,
                                pst_stage_buffers *out_buffers) {
  pst_status st = PST_OK;
  uint16_t *wire = NULL;
  pst_stage_buffers *peaks = calloc((size_t)schedule->stages, sizeof *peaks);
  pst_lower_options defaults;
  pst_lower_options_init(&defaults);
  if (options == NULL) options = &defaults;
  if (peaks == NULL) return pst_fail(PST_NO_MEMORY, "schedule: no memory for %d stages", schedule->stages);
  PST_GOTO(st, pst__wire_stages(schedule, options, &wire), done);
  PST_GOTO(st, pst__check_rules(schedule, wire, NULL, peaks), done);
  int64_t n = schedule->microbatches;
  for (int s = 0; s < schedule->stages; s++) {
    int64_t stash = peaks[s].stash;
    /* a full list has its receives placed: what it takes is what it needs */
    if (!schedule->lowered) {
      if (!schedule->training && stash < 2) stash = 2;
      stash += options->extra_slots;
    }
    int64_t gradient = schedule->lowered || (wire[s] & PST__GIN_LOCAL) ? peaks[s].gradient
                       : (wire[s] & PST__GIN_MESSAGE)                  ? options->n_grad
                                                                       : 0;
    out_buffers[s] = (pst_stage_buffers){
        .stash = at_most(stash, n),
        .defer = peaks[s].defer,
        .gradient = at_most(gradient, n),
        .out_activation = wire[s] & PST__OUT_MESSAGE ? at_most(options->n_out, n) : 0,
        .out_gradient = wire[s] & PST__GOUT_MESSAGE ? at_most(options->n_out, n) : 0,
    };
  }

done:
  free(wire);
  free(peaks);
  return st;
}

typedef struct lowering {
  const pst_schedule *from;
  const uint16_t *wire;
  const pst_stage_buffers *buffers;
  pst_schedule *to; /* lists have the room they need */
} lowering;

static void emit(const lowering *l, int worker, pst_action_kind kind, pst_action of, int64_t microbatch) {
  pst_action_list *list = &l->to->lists[worker];
  list->items[list->count++] = pst_action_make(kind, of.chunk, microbatch);
}

static pst_status make_room(const lowering *l) {
  for (int w = 0; w < l->from->workers; w++)
    PST_TRY(pst_schedule_reserve(l->to, w, l->from->lists[w].count + (l->from->training ? 2 : 0)));
  for (int s = 0; s < l->from->stages; s++) {
    const unsigned messages[] = {PST__IN_MESSAGE, PST__OUT_MESSAGE, PST__GIN_MESSAGE, PST__GOUT_MESSAGE};
    size_t more = 0;
    for (int i = 0; i < 4; i++)
      if (l->wire[s] & messages[i]) more += (size_t)l->from->microbatches;
    int w = l->from->worker_of[s];
    PST_TRY(pst_schedule_reserve(l->to, w, l->to->lists[w].capacity + more));
  }
  return PST_OK;
}

/* The receives whose buffers are free from the start, in the order in which the list needs them. */
static void emit_head(const lowering *l, int worker) {
  const pst_action_list *list = &l->from->lists[worker];
  int64_t left = 0;
  for (int s = 0; s < l->from->stages; s++) {
    if (l->from->worker_of[s] != worker) continue;
    if (l->wire[s] & PST__IN_MESSAGE) left += l->buffers[s].stash;
    if (l->wire[s] & PST__GIN_MESSAGE) left += l->buffers[s].gradient;
  }
  for (size_t i = 0; i < list->count && left > 0; i++) {
    pst_action a = list->items[i];
    unsigned wire = l->wire[a.chunk];
    if (a.kind == PST_ACTION_F && (wire & PST__IN_MESSAGE) &&
        (int64_t)a.microbatch < l->buffers[a.chunk].stash) {
      emit(l, worker, PST_ACTION_RECV_F, a, a.microbatch);
      left--;
    }
    if (a.kind != PST_ACTION_F && pst__frees_stash(wire, a.kind) && (wire & PST__GIN_MESSAGE) &&
        (int64_t)a.microbatch < l->buffers[a.chunk].gradient) {
      emit(l, worker, PST_ACTION_RECV_B, a, a.microbatch);
      left--;
    }
  }
}

/* The action itself; its result leaves first, then the buffers that it freed are offered to the neighbours.
 */
static void emit_compute(const lowering *l, int worker, pst_action a) {
  unsigned wire = l->wire[a.chunk];
  emit(l, worker, (pst_action_kind)a.kind, a, a.microbatch);
  if (a.kind == PST_ACTION_F && (wire & PST__OUT_MESSAGE))
    emit(l, worker, PST_ACTION_SEND_F, a, a.microbatch);
  if (pst__is_backward(a.kind) && (wire & PST__GOUT_MESSAGE))
    emit(l, worker, PST_ACTION_SEND_B, a, a.microbatch);
  if (!pst__frees_stash(wire, a.kind)) return;
  int64_t input = (int64_t)a.microbatch + l->buffers[a.chunk].stash;
  int64_t gradient = (int64_t)a.microbatch + l->buffers[a.chunk].gradient;
  if ((wire & PST__IN_MESSAGE) && input < l->from->microbatches) emit(l, worker, PST_ACTION_RECV_F, a, input);
  if ((wire & PST__GIN_MESSAGE) && gradient < l->from->microbatches)
    emit(l, worker, PST_ACTION_RECV_B, a, gradient);
}

static void emit_worker(const lowering *l, int worker) {
  emit_head(l, worker);
  for (size_t i = 0; i < l->from->lists[worker].count; i++)
    emit_compute(l, worker, l->from->lists[worker].items[i]);
  if (!l->from->training) return;
  emit(l, worker, PST_ACTION_REDUCE, (pst_action){0}, 0);
  emit(l, worker, PST_ACTION_UPDATE, (pst_action){0}, 0);
}

/* More buffers than microbatches are never filled; emit_head() counts on the smaller number. */
static void copy_buffers(const pst_schedule *schedule, const pst_stage_buffers *given,
                         pst_stage_buffers *out_buffers) {
  for (int s = 0; s < schedule->stages; s++) {
    out_buffers[s] = given[s];
    out_buffers[s].stash = at_most(given[s].stash, schedule->microbatches);
    out_buffers[s].gradient = at_most(given[s].gradient, schedule->microbatches);
  }
}

pst_status pst_schedule_lower(const pst_schedule *schedule, const pst_lower_options *options,
                              const pst_stage_buffers *buffers, pst_schedule **out_schedule) {
  pst_status st = PST_OK;
  uint16_t *wire = NULL;
  lowering l = {.from = schedule};
  pst_lower_options defaults;
  pst_lower_options_init(&defaults);
  if (options == NULL) options = &defaults;
  if (schedule->lowered)
    return pst_fail(PST_INVALID, "schedule: seen full lists, wanted normal form to lower");
  pst_stage_buffers *sizes = calloc((size_t)schedule->stages, sizeof *sizes);
  if (sizes == NULL) return pst_fail(PST_NO_MEMORY, "schedule: no memory for %d stages", schedule->stages);
  if (buffers != NULL)
    copy_buffers(schedule, buffers, sizes);
  else
    PST_GOTO(st, pst_schedule_buffers(schedule, options, sizes), done);
  PST_GOTO(st, pst__wire_stages(schedule, options, &wire), done);
  PST_GOTO(st, pst__check_rules(schedule, wire, sizes, NULL), done);
  PST_GOTO(st,
           pst_schedule_create(schedule->workers, schedule->chunks, schedule->microbatches,
                               schedule->training, &l.to),
           done);
  l.to->lowered = true;
  for (int s = 0; s < schedule->stages; s++) l.to->worker_of[s] = schedule->worker_of[s];
  l.wire = wire;
  l.buffers = sizes;
  PST_GOTO(st, make_room(&l), done);
  for (int w = 0; w < schedule->workers; w++) emit_worker(&l, w);
  *out_schedule = l.to;
  l.to = NULL;

done:
  pst_schedule_destroy(l.to);
  free(wire);
  free(sizes);
  return st;
}
