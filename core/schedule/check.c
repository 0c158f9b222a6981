#include "core/schedule/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/schedule/internal.h"

pst_status pst__refuse(const pst_schedule *schedule, int worker, size_t position, const char *format, ...) {
  char what[512], text[PST_ACTION_TEXT];
  va_list args;
  va_start(args, format);
  vsnprintf(what, sizeof what, format, args);
  va_end(args);
  return pst_fail(PST_INVALID, "schedule: worker %d, position %zu (%s): %s", worker, position,
                  pst_action_format(schedule->lists[worker].items[position], text), what);
}

static pst_status check_placement(const pst_schedule *schedule) {
  int *owned = calloc((size_t)schedule->workers, sizeof *owned);
  if (owned == NULL) return pst_fail(PST_NO_MEMORY, "schedule: no memory to check the placement");
  pst_status st = PST_OK;
  for (int s = 0; s < schedule->stages && st == PST_OK; s++) {
    int w = schedule->worker_of[s];
    if (w < 0 || w >= schedule->workers)
      st = pst_fail(PST_INVALID, "schedule: stage %d stands on worker %d, wanted 0 to %d", s, w,
                    schedule->workers - 1);
    else if (++owned[w] > schedule->chunks)
      st = pst_fail(PST_INVALID, "schedule: worker %d has more than %d stages (stage %d is one too many)", w,
                    schedule->chunks, s);
  }
  free(owned);
  return st;
}

pst_status pst__wire_stages(const pst_schedule *schedule, const pst_lower_options *options,
                            uint16_t **out_wire) {
  PST_TRY(check_placement(schedule));
  if (options->n_out < 1)
    return pst_fail(PST_INVALID, "schedule n_out: seen %d, wanted 1 or more", options->n_out);
  if (options->n_grad < 1)
    return pst_fail(PST_INVALID, "schedule n_grad: seen %d, wanted 1 or more", options->n_grad);
  if (options->extra_slots < 0)
    return pst_fail(PST_INVALID, "schedule extra_slots: seen %d, wanted 0 or more", options->extra_slots);
  uint16_t *wire = calloc((size_t)schedule->stages, sizeof *wire);
  if (wire == NULL) return pst_fail(PST_NO_MEMORY, "schedule: no memory for %d stages", schedule->stages);
  for (int s = 0; s < schedule->stages; s++) {
    unsigned empty = options->empty != NULL ? options->empty[s] : 0;
    if (empty & ~(unsigned)(PST_EMPTY_B | PST_EMPTY_I | PST_EMPTY_W)) {
      free(wire);
      return pst_fail(PST_INVALID, "schedule: empty programs of stage %d: seen bits %#x, wanted B, I, W only",
                      s, empty);
    }
    if ((empty & PST_EMPTY_I) && !(empty & PST_EMPTY_W)) wire[s] |= PST__LATE;
    if (!schedule->training) wire[s] |= PST__FORWARD_ONLY;
  }
  for (int b = 0; b + 1 < schedule->stages; b++) {
    bool local = schedule->worker_of[b] == schedule->worker_of[b + 1];
    wire[b] |= local ? PST__OUT_LOCAL : PST__OUT_MESSAGE;
    wire[b + 1] |= local ? PST__IN_LOCAL : PST__IN_MESSAGE;
    bool made = options->empty == NULL || !(options->empty[b + 1] & (PST_EMPTY_B | PST_EMPTY_I));
    bool read = options->empty == NULL || !(options->empty[b] & PST_EMPTY_B);
    bool carried = options->no_gradient == NULL || !options->no_gradient[b];
    if (!schedule->training || !made || !read || !carried) continue;
    wire[b] |= local ? PST__GIN_LOCAL : PST__GIN_MESSAGE;
    wire[b + 1] |= local ? PST__GOUT_LOCAL : PST__GOUT_MESSAGE;
  }
  *out_wire = wire;
  return PST_OK;
}

/* How far each stage has come, as the next microbatch wanted: ascending order makes one number enough. */
typedef struct progress {
  int64_t f, g, w;           /* F; B or I; W owed or B, I wanted next */
  int64_t freed;             /* STASH slots freed */
  int64_t stash_in, grad_in; /* first microbatch whose slot / gradient buffer is not yet taken */
  int64_t recv_f, recv_b, send_f, send_b;
  int64_t peak_stash, peak_defer, peak_gradient;
  bool split; /* some microbatch runs I and W */
} progress;

typedef struct rules {
  const pst_schedule *schedule;
  const uint16_t *wire;
  const pst_stage_buffers *buffers;
  progress *stages;
  int worker;
  size_t at;
  bool reduced, updated;
} rules;

/* The next microbatch of a kind must be `wanted`. */
static pst_status in_order(const rules *r, pst_action a, int64_t wanted) {
  if (a.microbatch == wanted) return PST_OK;
  const char *kind = pst_action_kind_name(a.kind);
  if (a.microbatch < wanted)
    return pst__refuse(r->schedule, r->worker, r->at,
                       "stands a second time or too late, %s of stage %u is past it", kind, a.chunk);
  return pst__refuse(r->schedule, r->worker, r->at, "out of order, wanted %u%s%lld here (or before)", a.chunk,
                     kind, (long long)wanted);
}

/* Stage `s` gets the input of microbatch `m`: its slot must have been freed by microbatch m - slots. */
static pst_status take_stash(const rules *r, int s, int64_t m) {
  progress *p = &r->stages[s];
  if (m < p->stash_in) return PST_OK;
  p->stash_in = m + 1;
  int64_t in_flight = p->stash_in - p->freed;
  if (in_flight > p->peak_stash) p->peak_stash = in_flight;
  if (r->buffers == NULL || in_flight <= r->buffers[s].stash) return PST_OK;
  return pst__refuse(
      r->schedule, r->worker, r->at,
      "the STASH slot of stage %d, microbatch %lld is in use: %lld in flight, wanted at most %d", s,
      (long long)m, (long long)in_flight, r->buffers[s].stash);
}

static pst_status take_gradient(const rules *r, int s, int64_t m) {
  progress *p = &r->stages[s];
  p->grad_in = m + 1;
  int64_t held = p->grad_in - p->freed;
  if (held > p->peak_gradient) p->peak_gradient = held;
  if (r->buffers == NULL || held <= r->buffers[s].gradient) return PST_OK;
  return pst__refuse(
      r->schedule, r->worker, r->at,
      "the gradient buffer of stage %d, microbatch %lld is in use: %lld held, wanted at most %d", s,
      (long long)m, (long long)held, r->buffers[s].gradient);
}

static pst_status rule_forward(const rules *r, pst_action a, unsigned wire) {
  progress *p = &r->stages[a.chunk];
  PST_TRY(in_order(r, a, p->f));
  if ((wire & PST__IN_LOCAL) && r->stages[a.chunk - 1].f <= a.microbatch)
    return pst__refuse(r->schedule, r->worker, r->at, "wanted behind %uF%u on this worker", a.chunk - 1u,
                       a.microbatch);
  if (r->schedule->lowered && (wire & PST__IN_MESSAGE) && p->recv_f <= a.microbatch)
    return pst__refuse(r->schedule, r->worker, r->at, "wanted behind its %uRECV_F%u", a.chunk, a.microbatch);
  PST_TRY(take_stash(r, a.chunk, a.microbatch));
  if (wire & PST__OUT_LOCAL) PST_TRY(take_stash(r, a.chunk + 1, a.microbatch));
  p->f++;
  if (wire & PST__FORWARD_ONLY) return PST_OK;
  int64_t deferred = p->f - p->w;
  if (deferred > p->peak_defer) p->peak_defer = deferred;
  if (r->buffers != NULL && p->split && deferred > r->buffers[a.chunk].defer)
    return pst__refuse(r->schedule, r->worker, r->at,
                       "%lld DEFER slots of stage %u in use, wanted at most %d", (long long)deferred, a.chunk,
                       r->buffers[a.chunk].defer);
  return PST_OK;
}

static pst_status need_gradient(const rules *r, pst_action a, unsigned wire) {
  if ((wire & PST__GIN_LOCAL) && r->stages[a.chunk + 1].g <= a.microbatch)
    return pst__refuse(r->schedule, r->worker, r->at, "wanted behind the backward of stage %u, microbatch %u",
                       a.chunk + 1u, a.microbatch);
  if (r->schedule->lowered && (wire & PST__GIN_MESSAGE) && r->stages[a.chunk].recv_b <= a.microbatch)
    return pst__refuse(r->schedule, r->worker, r->at, "wanted behind its %uRECV_B%u", a.chunk, a.microbatch);
  return PST_OK;
}

static pst_status rule_backward(const rules *r, pst_action a, unsigned wire) {
  progress *p = &r->stages[a.chunk];
  if (wire & PST__FORWARD_ONLY)
    return pst__refuse(r->schedule, r->worker, r->at,
                       "a backward, wanted F alone in a forward-only schedule");
  PST_TRY(in_order(r, a, p->g));
  if (p->f <= a.microbatch)
    return pst__refuse(r->schedule, r->worker, r->at, "wanted behind %uF%u", a.chunk, a.microbatch);
  if (a.kind == PST_ACTION_B && p->w != a.microbatch)
    return pst__refuse(r->schedule, r->worker, r->at,
                       "wanted behind %uW%lld, gradients add up in ascending order", a.chunk,
                       (long long)p->w);
  if (wire & PST__GOUT_LOCAL) PST_TRY(take_gradient(r, a.chunk - 1, a.microbatch));
  p->g++;
  if (a.kind == PST_ACTION_B) p->w++;
  return PST_OK;
}

static pst_status rule_weight(const rules *r, pst_action a, unsigned wire) {
  progress *p = &r->stages[a.chunk];
  if (wire & PST__FORWARD_ONLY)
    return pst__refuse(r->schedule, r->worker, r->at,
                       "a backward, wanted F alone in a forward-only schedule");
  PST_TRY(in_order(r, a, p->w));
  if (p->g <= a.microbatch)
    return pst__refuse(r->schedule, r->worker, r->at, "wanted behind %uI%u", a.chunk, a.microbatch);
  p->w++;
  return PST_OK;
}

static pst_status rule_compute(const rules *r, pst_action a, unsigned wire) {
  bool reads = (wire & (PST__GIN_LOCAL | PST__GIN_MESSAGE)) && pst__frees_stash(wire, a.kind);
  if (reads) PST_TRY(need_gradient(r, a, wire));
  if (a.kind == PST_ACTION_F)
    PST_TRY(rule_forward(r, a, wire));
  else if (a.kind == PST_ACTION_W)
    PST_TRY(rule_weight(r, a, wire));
  else
    PST_TRY(rule_backward(r, a, wire));
  if (pst__frees_stash(wire, a.kind)) r->stages[a.chunk].freed++;
  return PST_OK;
}

/* One row for each kind of message: what must carry it, and the compute action that a send stands behind. */
static pst_status rule_message(const rules *r, pst_action a, unsigned wire) {
  progress *p = &r->stages[a.chunk];
  struct {
    unsigned wanted_wire;
    int64_t *next, made;
    const char *maker;
  } row = {0, NULL, INT64_MAX, ""};
  switch (a.kind) {
  case PST_ACTION_SEND_F:
    row.wanted_wire = PST__OUT_MESSAGE, row.next = &p->send_f, row.made = p->f, row.maker = "F";
    break;
  case PST_ACTION_SEND_B:
    row.wanted_wire = PST__GOUT_MESSAGE, row.next = &p->send_b, row.made = p->g, row.maker = "B or I";
    break;
  case PST_ACTION_RECV_F:
    row.wanted_wire = PST__IN_MESSAGE, row.next = &p->recv_f;
    break;
  default:
    row.wanted_wire = PST__GIN_MESSAGE, row.next = &p->recv_b;
    break;
  }
  if (!r->schedule->lowered)
    return pst__refuse(r->schedule, r->worker, r->at,
                       "a message, wanted compute actions alone in normal form");
  if (!(wire & row.wanted_wire))
    return pst__refuse(r->schedule, r->worker, r->at,
                       "no such message belongs to stage %u (no neighbour on another worker, or no gradient)",
                       a.chunk);
  PST_TRY(in_order(r, a, *row.next));
  if (row.made <= a.microbatch)
    return pst__refuse(r->schedule, r->worker, r->at, "wanted behind the %s of stage %u, microbatch %u",
                       row.maker, a.chunk, a.microbatch);
  if (a.kind == PST_ACTION_RECV_F) PST_TRY(take_stash(r, a.chunk, a.microbatch));
  if (a.kind == PST_ACTION_RECV_B) PST_TRY(take_gradient(r, a.chunk, a.microbatch));
  ++*row.next;
  return PST_OK;
}

static pst_status rule_step_end(rules *r, pst_action a) {
  bool *done = a.kind == PST_ACTION_REDUCE ? &r->reduced : &r->updated;
  if (!r->schedule->lowered || !r->schedule->training)
    return pst__refuse(r->schedule, r->worker, r->at, "wanted in full training lists alone");
  if (*done || (a.kind == PST_ACTION_UPDATE && !r->reduced))
    return pst__refuse(r->schedule, r->worker, r->at, "wanted REDUCE, then UPDATE, once each");
  *done = true;
  return PST_OK;
}

static pst_status rule_action(rules *r, pst_action a) {
  if (a.kind == PST_ACTION_REDUCE || a.kind == PST_ACTION_UPDATE) return rule_step_end(r, a);
  if (a.kind >= PST_ACTION_COUNT)
    return pst__refuse(r->schedule, r->worker, r->at, "kind %u is none, wanted 0 to %d", a.kind,
                       PST_ACTION_COUNT - 1);
  if (a.chunk >= r->schedule->stages || a.microbatch >= r->schedule->microbatches)
    return pst__refuse(r->schedule, r->worker, r->at, "wanted stage 0 to %d, microbatch 0 to %lld",
                       r->schedule->stages - 1, (long long)r->schedule->microbatches - 1);
  if (r->schedule->worker_of[a.chunk] != r->worker)
    return pst__refuse(r->schedule, r->worker, r->at, "stage %u stands on worker %d", a.chunk,
                       r->schedule->worker_of[a.chunk]);
  if (r->reduced) return pst__refuse(r->schedule, r->worker, r->at, "stands behind REDUCE, wanted before it");
  unsigned wire = r->wire[a.chunk];
  return a.kind <= PST_ACTION_W ? rule_compute(r, a, wire) : rule_message(r, a, wire);
}

/* Everything has been seen M times, or never where it does not belong. */
static pst_status rule_ends(const rules *r, int s) {
  const progress *p = &r->stages[s];
  int64_t n = r->schedule->microbatches;
  unsigned wire = r->wire[s];
  bool training = r->schedule->training, full = r->schedule->lowered;
  const struct {
    bool wanted;
    int64_t seen;
    const char *kind;
  } rows[] = {
      {true, p->f, "F"},
      {training, p->g, "B or I"},
      {training, p->w, "W"},
      {full && (wire & PST__OUT_MESSAGE), p->send_f, "SEND_F"},
      {full && (wire & PST__IN_MESSAGE), p->recv_f, "RECV_F"},
      {full && (wire & PST__GOUT_MESSAGE), p->send_b, "SEND_B"},
      {full && (wire & PST__GIN_MESSAGE), p->recv_b, "RECV_B"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
    if (rows[i].wanted && rows[i].seen != n)
      return pst_fail(
          PST_INVALID,
          "schedule: worker %d, position %zu (end of list): %s of stage %d, microbatch %lld is missing",
          r->schedule->worker_of[s], r->schedule->lists[r->schedule->worker_of[s]].count, rows[i].kind, s,
          (long long)rows[i].seen);
  return PST_OK;
}

static pst_status check_buffers(const pst_schedule *schedule, const uint16_t *wire,
                                const pst_stage_buffers *buffers, const progress *stages) {
  for (int s = 0; s < schedule->stages; s++) {
    const pst_stage_buffers *b = &buffers[s];
    const struct {
      bool wanted;
      int seen;
      const char *name;
    } rows[] = {
        {true, b->stash, "STASH slots"},
        {stages[s].split, b->defer, "DEFER slots"},
        {wire[s] & (PST__GIN_LOCAL | PST__GIN_MESSAGE), b->gradient, "gradient buffers"},
        {wire[s] & PST__OUT_MESSAGE, b->out_activation, "outgoing activation buffers"},
        {wire[s] & PST__GOUT_MESSAGE, b->out_gradient, "outgoing gradient buffers"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
      if (rows[i].wanted && rows[i].seen < 1)
        return pst_fail(PST_INVALID, "schedule: %s of stage %d: seen %d, wanted 1 or more", rows[i].name, s,
                        rows[i].seen);
  }
  return PST_OK;
}

static void mark_split_stages(const pst_schedule *schedule, progress *stages) {
  for (int w = 0; w < schedule->workers; w++)
    for (size_t i = 0; i < schedule->lists[w].count; i++) {
      pst_action a = schedule->lists[w].items[i];
      if (a.kind == PST_ACTION_I && a.chunk < schedule->stages) stages[a.chunk].split = true;
    }
}

pst_status pst__check_rules(const pst_schedule *schedule, const uint16_t *wire,
                            const pst_stage_buffers *buffers, pst_stage_buffers *out_peaks) {
  pst_status st = PST_OK;
  progress *stages = calloc((size_t)schedule->stages, sizeof *stages);
  if (stages == NULL) return pst_fail(PST_NO_MEMORY, "schedule: no memory for %d stages", schedule->stages);
  mark_split_stages(schedule, stages);
  if (buffers != NULL) PST_GOTO(st, check_buffers(schedule, wire, buffers, stages), done);
  for (int w = 0; w < schedule->workers; w++) {
    const pst_action_list *list = &schedule->lists[w];
    rules r = {.schedule = schedule, .wire = wire, .buffers = buffers, .stages = stages, .worker = w};
    for (; r.at < list->count; r.at++) PST_GOTO(st, rule_action(&r, list->items[r.at]), done);
    if (schedule->lowered && schedule->training && !r.updated) {
      st = pst_fail(PST_INVALID, "schedule: worker %d, position %zu (end of list): %s is missing", w,
                    list->count, r.reduced ? "UPDATE" : "REDUCE");
      goto done;
    }
  }
  for (int s = 0; s < schedule->stages; s++) {
    rules r = {.schedule = schedule, .wire = wire, .stages = stages};
    PST_GOTO(st, rule_ends(&r, s), done);
  }
  for (int s = 0; out_peaks != NULL && s < schedule->stages; s++)
    out_peaks[s] = (pst_stage_buffers){
        .stash = (int)stages[s].peak_stash,
        .defer = !schedule->training ? 0
                 : stages[s].split   ? (int)stages[s].peak_defer
                                     : 1,
        .gradient = (int)stages[s].peak_gradient,
    };

done:
  free(stages);
  return st;
}

pst_status pst__prove(const pst_schedule *schedule, const pst_simulate_options *clock, bool timed,
                      pst_simulation *result) {
  pst_status st = PST_OK;
  pst_lower_options defaults;
  pst_lower_options_init(&defaults);
  const pst_lower_options *options = clock->lower != NULL ? clock->lower : &defaults;
  const pst_stage_buffers *buffers = clock->buffers;
  pst_stage_buffers *counted = NULL;
  uint16_t *wire = NULL;
  PST_GOTO(st, pst__wire_stages(schedule, options, &wire), done);
  if (schedule->lowered && buffers == NULL) {
    counted = calloc((size_t)schedule->stages, sizeof *counted);
    st = counted == NULL ? pst_fail(PST_NO_MEMORY, "schedule: no memory for %d stages", schedule->stages)
                         : pst_schedule_buffers(schedule, options, counted);
    if (st != PST_OK) goto done;
    buffers = counted;
  }
  PST_GOTO(st, pst__check_rules(schedule, wire, buffers, NULL), done);
  st = pst__run_machine(schedule, wire, buffers, timed ? clock : NULL, result);

done:
  free(counted);
  free(wire);
  return st;
}

pst_status pst_schedule_check(const pst_schedule *schedule, const pst_lower_options *options,
                              const pst_stage_buffers *buffers) {
  pst_simulate_options clock;
  pst_simulate_options_init(&clock);
  clock.lower = options;
  clock.buffers = buffers;
  return pst__prove(schedule, &clock, false, NULL);
}
