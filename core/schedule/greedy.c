#include <math.h>
#include <stdlib.h>

#include "core/schedule/auto.h"

enum { KINDS = 3 }; /* F, I, W */

typedef struct stage_state {
  int64_t next[KINDS];   /* microbatch to run next */
  double *f_end, *i_end; /* [M] when they were done */
} stage_state;

typedef struct player {
  const pst_schedule_options *options;
  const pst__greedy_rules *rules;
  pst_schedule *schedule;
  stage_state *stages;
  double *room;
  double *free_at;  /* [workers] */
  int64_t *held;    /* [workers] pairs in flight */
  int *own, *place; /* [stages] stages by worker; [stages] which of its worker's chunks a stage is */
} player;

typedef struct choice {
  double start;
  int rank; /* smaller first */
  int stage, kind;
} choice;

static double time_of(const player *p, int stage, int kind) {
  const double *const times[] = {p->options->forward_s, p->options->input_s, p->options->weight_s};
  return times[kind] != NULL ? times[kind][stage] : 1.0;
}

static double arrival(const player *p, int from, int to, double end) {
  bool local = p->schedule->worker_of[from] == p->schedule->worker_of[to];
  return local ? end : end + p->options->latency_s;
}

/* When the inputs of the next action of this kind are there; infinite while that is not known. */
static double ready_at(const player *p, int s, int kind) {
  const stage_state *me = &p->stages[s];
  int64_t m = me->next[kind];
  if (m == p->schedule->microbatches) return INFINITY;
  if (kind == 2) return me->next[1] > m ? me->i_end[m] : INFINITY;
  if (kind == 0) {
    if (s == 0) return 0;
    return p->stages[s - 1].next[0] > m ? arrival(p, s - 1, s, p->stages[s - 1].f_end[m]) : INFINITY;
  }
  if (me->next[0] <= m) return INFINITY;
  if (s + 1 == p->schedule->stages) return me->f_end[m];
  if (p->stages[s + 1].next[1] <= m) return INFINITY;
  return fmax(me->f_end[m], arrival(p, s + 1, s, p->stages[s + 1].i_end[m]));
}

/* May this stage take one more microbatch? Each later chunk of the worker keeps a place, or none could end.
 */
static bool has_room(const player *p, int s, int worker) {
  const pst_schedule *schedule = p->schedule;
  int chunks = schedule->chunks;
  if (p->held[worker] + chunks - p->place[s] > p->rules->limit) return false;
  if (p->rules->ahead == 2) return true;
  /* stages from here to the last one: what 1F1B has in flight */
  int64_t depth = schedule->stages - s, mine = p->stages[s].next[0] - p->stages[s].next[1];
  return mine < (p->rules->ahead == 1 ? 2 * depth - 1 : depth);
}

static choice best_of_worker(const player *p, int worker) {
  int chunks = p->schedule->chunks;
  choice best = {INFINITY, 9, -1, -1};
  double soon = INFINITY; /* the first F or I known to become possible */
  for (int i = 0; i < chunks; i++) {
    int s = p->own[worker * chunks + i];
    for (int kind = 0; kind < 2; kind++) {
      if (kind == 0 && !has_room(p, s, worker)) continue;
      double start = fmax(p->free_at[worker], ready_at(p, s, kind));
      if (start < soon) soon = start;
      /* of forwards the deepest, of backwards the one nearest to the input */
      int rank = (kind == 0) == p->rules->forward_first ? 0 : 1;
      bool better = start < best.start || (start == best.start && rank < best.rank) ||
                    (start == best.start && rank == best.rank && kind == 0 && s > best.stage);
      if (isfinite(start) && better) best = (choice){start, rank, s, kind};
    }
  }
  for (int i = 0; i < chunks; i++) {
    int s = p->own[worker * chunks + i];
    double start = fmax(p->free_at[worker], ready_at(p, s, 2));
    if (!isfinite(start) || start >= best.start) continue;
    if (start + (1 - p->rules->patience) * time_of(p, s, 2) > soon) continue;
    best = (choice){start, 2, s, 2};
  }
  return best;
}

static pst_status run(player *p, int worker, choice c) {
  static const pst_action_kind kinds[KINDS] = {PST_ACTION_F, PST_ACTION_I, PST_ACTION_W};
  stage_state *me = &p->stages[c.stage];
  int64_t m = me->next[c.kind]++;
  double end = c.start + time_of(p, c.stage, c.kind);
  if (c.kind == 0) me->f_end[m] = end, p->held[worker]++;
  if (c.kind == 1) me->i_end[m] = end;
  if (c.kind == 2) p->held[worker]--;
  p->free_at[worker] = end;
  return pst_schedule_append(p->schedule, worker, kinds[c.kind], c.stage, m);
}

static pst_status play(player *p) {
  const pst_schedule *schedule = p->schedule;
  int64_t left = KINDS * (int64_t)schedule->stages * schedule->microbatches;
  for (; left > 0; left--) {
    choice best = {INFINITY, 9, -1, -1};
    int worker = -1;
    for (int w = 0; w < schedule->workers; w++) {
      choice c = best_of_worker(p, w);
      if (c.stage >= 0 && (worker < 0 || c.start < best.start)) best = c, worker = w;
    }
    if (worker < 0)
      return pst_fail(PST_INVALID, "schedule: %lld pairs in flight leave no way on, wanted more",
                      (long long)p->rules->limit);
    PST_TRY(run(p, worker, best));
  }
  return PST_OK;
}

static pst_status prepare(player *p) {
  pst_schedule *schedule = p->schedule;
  size_t stages = (size_t)schedule->stages, workers = (size_t)schedule->workers;
  size_t n = (size_t)schedule->microbatches;
  if (p->rules->v_placed) PST_TRY(pst_schedule_place_v(schedule));
  p->stages = calloc(stages, sizeof *p->stages);
  p->room = calloc(2 * stages * n, sizeof *p->room);
  p->free_at = calloc(workers, sizeof *p->free_at);
  p->held = calloc(workers, sizeof *p->held);
  p->own = calloc(stages, sizeof *p->own);
  p->place = calloc(stages, sizeof *p->place);
  if (!p->stages || !p->room || !p->free_at || !p->held || !p->own || !p->place)
    return pst_fail(PST_NO_MEMORY, "schedule: no memory to lay out %zu stages with %zu microbatches", stages,
                    n);
  for (size_t s = 0; s < stages; s++) {
    p->stages[s].f_end = p->room + 2 * s * n;
    p->stages[s].i_end = p->stages[s].f_end + n;
    int w = schedule->worker_of[s], at = 0;
    for (size_t lower = 0; lower < s; lower++) at += schedule->worker_of[lower] == w;
    p->place[s] = at;
    p->own[w * schedule->chunks + at] = (int)s;
  }
  return PST_OK;
}

pst_status pst__greedy_lists(const pst_schedule_options *options, const pst__greedy_rules *rules,
                             pst_schedule **out_schedule) {
  player p = {.options = options, .rules = rules};
  PST_TRY(pst_schedule_create(options->workers, options->chunks, options->microbatches, true, &p.schedule));
  pst_status st = prepare(&p);
  if (st == PST_OK) st = play(&p);
  if (st == PST_OK) {
    *out_schedule = p.schedule;
    p.schedule = NULL;
  }
  pst_schedule_destroy(p.schedule);
  free(p.stages);
  free(p.room);
  free(p.free_at);
  free(p.held);
  free(p.own);
  free(p.place);
  return st;
}
