#include <math.h>
#include <stdlib.h>

#include "core/schedule/internal.h"

/* When the actions of one stage write and free its buffers, on the clock of unit times; all [microbatches].
 */
typedef struct stage_times {
  double *write_f, *made_f; /* start and end of F */
  double *write_g, *made_g; /* start of B or I; when the input gradient is there */
  double *freed;            /* end of the action that frees the STASH slot and the incoming gradient */
} stage_times;

typedef struct demand {
  const pst_schedule *schedule;
  const uint16_t *wire;
  pst_action_span *spans; /* of all lists, one behind the other */
  size_t *first;          /* [workers] */
  double *room;
  stage_times lower, upper; /* of the boundary that is looked at */
} demand;

static void gather(const demand *d, int stage, const stage_times *out) {
  int worker = d->schedule->worker_of[stage];
  const pst_action_list *list = &d->schedule->lists[worker];
  const pst_action_span *spans = d->spans + d->first[worker];
  for (size_t i = 0; i < list->count; i++) {
    pst_action a = list->items[i];
    if (a.chunk != stage) continue;
    if (a.kind == PST_ACTION_F) {
      out->write_f[a.microbatch] = spans[i].start_s;
      out->made_f[a.microbatch] = spans[i].end_s;
    }
    if (pst__is_backward(a.kind)) {
      out->write_g[a.microbatch] = spans[i].start_s;
      out->made_g[a.microbatch] = a.kind == PST_ACTION_B ? spans[i].start_s + 1 : spans[i].end_s;
    }
    if (pst__frees_stash(d->wire[stage], a.kind)) out->freed[a.microbatch] = spans[i].end_s;
  }
}

/* Buffers on the way, beyond the receiver's `slots`, so that no writer waits: of the tensors written before
 * m, how many the receiver has not yet taken when m is written. */
static int64_t ring_demand(int64_t n, int64_t slots, const double *write, const double *made,
                           const double *freed) {
  int64_t most = 1, taken = 0;
  for (int64_t m = 0; m < n; m++) {
    for (; taken < m; taken++) {
      double posted = taken < slots ? 0 : freed[taken - slots];
      if (fmax(made[taken], posted) > write[m]) break;
    }
    if (m - taken + 1 > most) most = m - taken + 1;
  }
  return most;
}

/* Gradients that the receiver holds at once when each is sent as soon as it is made. */
static int64_t held_demand(int64_t n, const double *made, const double *freed) {
  int64_t most = 1, done = 0;
  for (int64_t m = 0; m < n; m++) {
    while (done < m && freed[done] <= made[m]) done++;
    if (m - done + 1 > most) most = m - done + 1;
  }
  return most;
}

static void widen_boundary(demand *d, int below, pst_stage_buffers *buffers) {
  int64_t n = d->schedule->microbatches;
  pst_stage_buffers *from = &buffers[below], *to = &buffers[below + 1];
  gather(d, below, &d->lower);
  gather(d, below + 1, &d->upper);
  if (d->wire[below] & PST__OUT_MESSAGE) {
    int64_t need = ring_demand(n, to->stash, d->lower.write_f, d->lower.made_f, d->upper.freed);
    if (need > from->out_activation) from->out_activation = (int)need;
  }
  if (d->wire[below] & PST__GIN_MESSAGE) {
    int64_t need = held_demand(n, d->upper.made_g, d->lower.freed);
    if (need > from->gradient) from->gradient = (int)need;
    need = ring_demand(n, from->gradient, d->upper.write_g, d->upper.made_g, d->lower.freed);
    if (need > to->out_gradient) to->out_gradient = (int)need;
  }
}

static pst_status allocate(demand *d) {
  const pst_schedule *s = d->schedule;
  size_t n = (size_t)s->microbatches, total = 0;
  d->first = calloc((size_t)s->workers, sizeof *d->first);
  d->spans = calloc(pst_schedule_total(s) + 1, sizeof *d->spans);
  d->room = calloc(n, 10 * sizeof *d->room);
  if (d->first == NULL || d->spans == NULL || d->room == NULL)
    return pst_fail(PST_NO_MEMORY, "schedule: no memory to size the rings of %d stages", s->stages);
  for (int w = 0; w < s->workers; w++) {
    d->first[w] = total;
    total += s->lists[w].count;
  }
  stage_times *times[] = {&d->lower, &d->upper};
  for (int i = 0; i < 2; i++) {
    double *at = d->room + 5 * n * (size_t)i;
    *times[i] = (stage_times){at, at + n, at + 2 * n, at + 3 * n, at + 4 * n};
  }
  return PST_OK;
}

static bool has_boundary(const pst_schedule *schedule, const uint16_t *wire) {
  for (int s = 0; s < schedule->stages; s++)
    if (wire[s] & (PST__OUT_MESSAGE | PST__GIN_MESSAGE)) return true;
  return false;
}

/* The order of the timed run obeys the rings so found, and whatever order obeys them once, comes to its end
 * under any times: each worker's order is fixed, so progress does not depend on who is quick. */
pst_status pst__widen_rings(const pst_schedule *schedule, const uint16_t *wire, pst_stage_buffers *buffers) {
  if (!has_boundary(schedule, wire)) return PST_OK;
  demand d = {.schedule = schedule, .wire = wire};
  pst_simulation *result = NULL;
  pst_simulate_options clock;
  pst_simulate_options_init(&clock);
  pst_status st = allocate(&d);
  if (st != PST_OK) goto done;
  clock.spans = d.spans;
  result = calloc(1, sizeof *result + (size_t)schedule->workers * sizeof result->workers[0]);
  if (result == NULL) {
    st = pst_fail(PST_NO_MEMORY, "schedule: no memory to size the rings of %d stages", schedule->stages);
    goto done;
  }
  st = pst__run_machine(schedule, wire, NULL, &clock, result);
  for (int s = 0; st == PST_OK && s + 1 < schedule->stages; s++)
    if (wire[s] & (PST__OUT_MESSAGE | PST__GIN_MESSAGE)) widen_boundary(&d, s, buffers);
  /* Lists that come to a standstill with endless buffers are pst_schedule_check()'s to refuse. */
  if (st == PST_INVALID) st = PST_OK;

done:
  free(result);
  free(d.room);
  free(d.spans);
  free(d.first);
  return st;
}

/* Full lists say where they receive; only the outgoing rings are open. */
pst_status pst__widen_full_rings(const pst_schedule *schedule, const uint16_t *wire,
                                 pst_stage_buffers *buffers) {
  pst_status st = PST_OK;
  int64_t n = schedule->microbatches;
  pst_stage_buffers *wider = calloc((size_t)schedule->stages, sizeof *wider);
  if (wider == NULL) return pst_fail(PST_NO_MEMORY, "schedule: no memory for %d stages", schedule->stages);
  for (int64_t times = 1; times < 2 * n; times *= 2) {
    for (int s = 0; s < schedule->stages; s++) {
      wider[s] = buffers[s];
      wider[s].out_activation = (int)fmin((double)n, (double)times * buffers[s].out_activation);
      wider[s].out_gradient = (int)fmin((double)n, (double)times * buffers[s].out_gradient);
    }
    st = pst__run_machine(schedule, wire, wider, NULL, NULL);
    if (st != PST_INVALID) break;
  }
  for (int s = 0; st == PST_OK && s < schedule->stages; s++) buffers[s] = wider[s];
  if (st == PST_INVALID) st = PST_OK;
  free(wider);
  return st;
}
