#include <stdlib.h>

#include "core/schedule/internal.h"

/* How far a stage has come; the rules have proved that every kind runs in ascending order. */
typedef struct stage_state {
  uint32_t f, g;               /* done */
  uint32_t sent_f, sent_b;     /* posted by this stage */
  uint32_t posted_f, posted_b; /* receives posted by this stage */
} stage_state;

typedef struct worker_state {
  size_t at; /* position in the list */
  bool queued, started;
  double clock_s; /* free from here on */
  double early_s; /* when the input gradient of the action just done was ready */
  pst_action early_of;
  double first_s, last_s; /* start of the first, end of the last compute action */
  int64_t stash, defer;
  size_t first_span;
} worker_state;

/* Times of the messages into a stage, one direction: when one side has posted, that time; when both have, the
 * arrival. Indexed stage * M + microbatch. */
typedef struct machine {
  const pst_schedule *schedule;
  const uint16_t *wire;
  const pst_stage_buffers *buffers;
  const pst_simulate_options *clock; /* NULL: no times */
  pst_simulation *result;            /* NULL: no times */
  stage_state *stages;
  worker_state *workers;
  double *activation_s, *gradient_s; /* NULL without clock */
  int *queue;                        /* ring of workers that may be able to go on */
  int queue_head, queue_count;
} machine;

static void wake(machine *k, int worker) {
  worker_state *w = &k->workers[worker];
  if (w->queued || w->at == k->schedule->lists[worker].count) return;
  w->queued = true;
  int tail = k->queue_head + k->queue_count++;
  k->queue[tail < k->schedule->workers ? tail : tail - k->schedule->workers] = worker;
}

static size_t cell(const machine *k, int stage, uint32_t microbatch) {
  return (size_t)stage * (size_t)k->schedule->microbatches + microbatch;
}

static void later(double *t, const double *times, size_t at) {
  if (times != NULL && times[at] > *t) *t = times[at];
}

/* Has the activation of microbatch m come from stage s to s + 1? In normal form sending and posting are free.
 */
static bool activation_arrived(const machine *k, int s, uint32_t m) {
  if (!k->schedule->lowered) return k->stages[s].f > m;
  return k->stages[s].sent_f > m && k->stages[s + 1].posted_f > m;
}

/* Has the gradient of microbatch m come from stage s to s - 1? */
static bool gradient_arrived(const machine *k, int s, uint32_t m) {
  if (!k->schedule->lowered) return k->stages[s].g > m;
  return k->stages[s].sent_b > m && k->stages[s - 1].posted_b > m;
}

/* What a compute action is waiting for. */
typedef enum wait { WAIT_NONE, WAIT_ACTIVATION, WAIT_GRADIENT, WAIT_OUT_ACTIVATION, WAIT_OUT_GRADIENT } wait;

/* Says what `a` waits for; where that is nothing, *start is moved to the time from which it can run. */
static wait compute_ready(const machine *k, pst_action a, double *start) {
  int s = a.chunk;
  unsigned wire = k->wire[s];
  uint32_t m = a.microbatch;
  bool full = k->schedule->lowered;
  if (a.kind == PST_ACTION_F) {
    if (wire & PST__IN_MESSAGE) {
      if (!activation_arrived(k, s - 1, m)) return WAIT_ACTIVATION;
      later(start, k->activation_s, cell(k, s, m));
    }
    if (full && (wire & PST__OUT_MESSAGE) && m >= (uint32_t)k->buffers[s].out_activation) {
      uint32_t last = m - (uint32_t)k->buffers[s].out_activation;
      if (!activation_arrived(k, s, last)) return WAIT_OUT_ACTIVATION;
      later(start, k->activation_s, cell(k, s + 1, last));
    }
    return WAIT_NONE;
  }
  if ((wire & PST__GIN_MESSAGE) && pst__frees_stash(wire, a.kind)) {
    if (!gradient_arrived(k, s + 1, m)) return WAIT_GRADIENT;
    later(start, k->gradient_s, cell(k, s, m));
  }
  if (full && (wire & PST__GOUT_MESSAGE) && pst__is_backward(a.kind) &&
      m >= (uint32_t)k->buffers[s].out_gradient) {
    uint32_t last = m - (uint32_t)k->buffers[s].out_gradient;
    if (!gradient_arrived(k, s, last)) return WAIT_OUT_GRADIENT;
    later(start, k->gradient_s, cell(k, s - 1, last));
  }
  return WAIT_NONE;
}

/* One side of a message has posted at `t`; with the other side there already, it arrives one latency later.
 */
static void post(const machine *k, double *times, size_t at, bool other_side, double t) {
  if (times == NULL) return;
  if (other_side)
    times[at] = (times[at] > t ? times[at] : t) + k->clock->latency_s;
  else
    times[at] = t;
}

static void run_message(machine *k, worker_state *w, pst_action a) {
  int s = a.chunk;
  uint32_t m = a.microbatch;
  stage_state *state = &k->stages[s];
  bool just_made =
      w->early_of.chunk == a.chunk && w->early_of.microbatch == m && w->early_of.kind == PST_ACTION_B;
  switch (a.kind) {
  case PST_ACTION_SEND_F:
    state->sent_f = m + 1;
    post(k, k->activation_s, cell(k, s + 1, m), k->stages[s + 1].posted_f > m, w->clock_s);
    wake(k, k->schedule->worker_of[s + 1]);
    break;
  case PST_ACTION_RECV_F:
    state->posted_f = m + 1;
    post(k, k->activation_s, cell(k, s, m), k->stages[s - 1].sent_f > m, w->clock_s);
    wake(k, k->schedule->worker_of[s - 1]);
    break;
  case PST_ACTION_SEND_B:
    state->sent_b = m + 1;
    post(k, k->gradient_s, cell(k, s - 1, m), k->stages[s - 1].posted_b > m,
         just_made ? w->early_s : w->clock_s);
    wake(k, k->schedule->worker_of[s - 1]);
    break;
  default:
    state->posted_b = m + 1;
    post(k, k->gradient_s, cell(k, s, m), k->stages[s + 1].sent_b > m, w->clock_s);
    wake(k, k->schedule->worker_of[s + 1]);
    break;
  }
}

static double part_s(const double *times, int stage) {
  return times != NULL ? times[stage] : 1.0;
}

/* Seconds of an action, and of the part after which its input gradient is ready. */
static double duration(const machine *k, pst_action a, double *out_early) {
  const pst_simulate_options *c = k->clock;
  unsigned empty = c->lower != NULL && c->lower->empty != NULL ? c->lower->empty[a.chunk] : 0;
  double total = 0, early = 0;
  if (a.kind == PST_ACTION_F) total = early = part_s(c->forward_s, a.chunk);
  if (a.kind == PST_ACTION_I) total = early = part_s(c->input_s, a.chunk);
  if (a.kind == PST_ACTION_W) total = early = part_s(c->weight_s, a.chunk);
  if (a.kind == PST_ACTION_B) {
    early = part_s(c->input_s, a.chunk);
    total = early + part_s(c->weight_s, a.chunk);
    if (!c->early_send) early = total;
  }
  if (empty & (1u << a.kind)) total = early = 0;
  *out_early = early;
  return total;
}

static void count_flight(machine *k, worker_state *w, pst_worker_simulation *seen, pst_action a) {
  unsigned wire = k->wire[a.chunk];
  if (a.kind == PST_ACTION_F) {
    if (++w->stash > seen->peak_stash) seen->peak_stash = w->stash;
    if (++w->defer > seen->peak_defer) seen->peak_defer = w->defer;
  }
  if (pst__frees_stash(wire, a.kind)) w->stash--;
  if (a.kind == PST_ACTION_B || a.kind == PST_ACTION_W || (wire & PST__FORWARD_ONLY)) w->defer--;
}

static void run_compute(machine *k, int worker, pst_action a, double start) {
  worker_state *w = &k->workers[worker];
  stage_state *state = &k->stages[a.chunk];
  unsigned wire = k->wire[a.chunk];
  double early = 0;
  if (k->clock != NULL) {
    pst_worker_simulation *seen = &k->result->workers[worker];
    double length = duration(k, a, &early);
    if (!w->started) w->first_s = start;
    w->started = true;
    seen->busy_s += length;
    w->clock_s = w->last_s = start + length;
    w->early_s = early = start + early;
    w->early_of = a;
    count_flight(k, w, seen, a);
  }
  bool normal = !k->schedule->lowered;
  double latency = k->clock != NULL ? k->clock->latency_s : 0;
  if (a.kind == PST_ACTION_F) {
    state->f = a.microbatch + 1;
    if (!normal || !(wire & PST__OUT_MESSAGE)) return;
    if (k->activation_s != NULL) k->activation_s[cell(k, a.chunk + 1, a.microbatch)] = early + latency;
    wake(k, k->schedule->worker_of[a.chunk + 1]);
  } else if (pst__is_backward(a.kind)) {
    state->g = a.microbatch + 1;
    if (!normal || !(wire & PST__GOUT_MESSAGE)) return;
    if (k->gradient_s != NULL) k->gradient_s[cell(k, a.chunk - 1, a.microbatch)] = early + latency;
    wake(k, k->schedule->worker_of[a.chunk - 1]);
  }
}

static void count_send(const machine *k, int worker, pst_action a) {
  unsigned wire = k->wire[a.chunk];
  bool sends = k->schedule->lowered ? a.kind == PST_ACTION_SEND_F || a.kind == PST_ACTION_SEND_B
                                    : (a.kind == PST_ACTION_F && (wire & PST__OUT_MESSAGE)) ||
                                          (pst__is_backward(a.kind) && (wire & PST__GOUT_MESSAGE));
  if (sends) k->result->workers[worker].sends++;
}

/* Goes on with one worker until it waits or ends. */
static void run_worker(machine *k, int worker) {
  worker_state *w = &k->workers[worker];
  const pst_action_list *list = &k->schedule->lists[worker];
  for (; w->at < list->count; w->at++) {
    pst_action a = list->items[w->at];
    double start = w->clock_s;
    if (a.kind <= PST_ACTION_W) {
      if (compute_ready(k, a, &start) != WAIT_NONE) return;
      run_compute(k, worker, a, start);
    } else if (a.kind <= PST_ACTION_RECV_B) {
      run_message(k, w, a);
    }
    if (k->clock == NULL) continue;
    count_send(k, worker, a);
    if (k->clock->spans != NULL)
      k->clock->spans[w->first_span + w->at] = (pst_action_span){start, w->clock_s};
  }
}

static pst_status refuse_standstill(const machine *k) {
  const pst_schedule *schedule = k->schedule;
  int worker = 0;
  while (k->workers[worker].at == schedule->lists[worker].count) worker++;
  pst_action a = schedule->lists[worker].items[k->workers[worker].at];
  double start = 0;
  wait why = compute_ready(k, a, &start);
  bool from_below = why == WAIT_ACTIVATION || why == WAIT_OUT_GRADIENT;
  int peer = a.chunk + (from_below ? -1 : 1), other = schedule->worker_of[peer];
  static const char *const wants[] = {
      [WAIT_NONE] = "",
      [WAIT_ACTIVATION] = "the activation of",
      [WAIT_GRADIENT] = "the gradient of",
      [WAIT_OUT_ACTIVATION] = "its outgoing activation buffer to be emptied by",
      [WAIT_OUT_GRADIENT] = "its outgoing gradient buffer to be emptied by",
  };
  char text[PST_ACTION_TEXT];
  size_t at = k->workers[other].at;
  bool ended = at == schedule->lists[other].count;
  return pst__refuse(
      schedule, worker, k->workers[worker].at,
      "deadlock: waits for %s stage %d, but worker %d stands at position %zu (%s); wanted an order in "
      "which one of them can go on",
      wants[why], peer, other, at,
      ended ? "end of list" : pst_action_format(schedule->lists[other].items[at], text));
}

static void finish(const machine *k) {
  pst_simulation *out = k->result;
  int n = k->schedule->workers;
  double work = 0, most = 0, longest = 0;
  out->n_workers = n;
  for (int i = 0; i < n; i++)
    if (k->workers[i].last_s > out->makespan_s) out->makespan_s = k->workers[i].last_s;
  for (int i = 0; i < n; i++) {
    pst_worker_simulation *seen = &out->workers[i];
    seen->span_s = k->workers[i].last_s - k->workers[i].first_s;
    seen->idle_s = out->makespan_s - seen->busy_s;
    seen->idle_in_span_s = seen->span_s - seen->busy_s;
    out->messages += seen->sends;
    work += seen->busy_s;
    if (seen->busy_s > most) most = seen->busy_s;
    if (seen->span_s > longest) longest = seen->span_s;
  }
  if (work <= 0) return;
  out->bubble_makespan = 1 - work / (n * out->makespan_s);
  out->bubble_bottleneck = 1 - most / out->makespan_s;
  out->bubble_relative = (n * out->makespan_s - work) / work;
  out->bubble_span = 1 - most / longest;
}

pst_status pst__run_machine(const pst_schedule *schedule, const uint16_t *wire,
                            const pst_stage_buffers *buffers, const pst_simulate_options *clock,
                            pst_simulation *result) {
  pst_status st = PST_OK;
  machine k = {.schedule = schedule, .wire = wire, .buffers = buffers, .clock = clock, .result = result};
  size_t n_cells = (size_t)schedule->stages * (size_t)schedule->microbatches, first = 0;
  k.stages = calloc((size_t)schedule->stages, sizeof *k.stages);
  k.workers = calloc((size_t)schedule->workers, sizeof *k.workers);
  k.queue = calloc((size_t)schedule->workers, sizeof *k.queue);
  if (clock != NULL) {
    k.activation_s = calloc(n_cells, sizeof *k.activation_s);
    k.gradient_s = calloc(n_cells, sizeof *k.gradient_s);
  }
  if (k.stages == NULL || k.workers == NULL || k.queue == NULL ||
      (clock != NULL && (k.activation_s == NULL || k.gradient_s == NULL))) {
    st = pst_fail(PST_NO_MEMORY, "schedule: no memory to run %d stages with %lld microbatches",
                  schedule->stages, (long long)schedule->microbatches);
    goto done;
  }
  for (int w = 0; w < schedule->workers; w++) {
    k.workers[w].first_span = first;
    first += schedule->lists[w].count;
    wake(&k, w);
  }
  while (k.queue_count > 0) {
    int worker = k.queue[k.queue_head];
    k.queue_head = k.queue_head + 1 < schedule->workers ? k.queue_head + 1 : 0;
    k.queue_count--;
    k.workers[worker].queued = false;
    run_worker(&k, worker);
  }
  for (int w = 0; w < schedule->workers; w++)
    if (k.workers[w].at < schedule->lists[w].count) PST_GOTO(st, refuse_standstill(&k), done);
  if (clock != NULL) finish(&k);

done:
  free(k.stages);
  free(k.workers);
  free(k.queue);
  free(k.activation_s);
  free(k.gradient_s);
  return st;
}
