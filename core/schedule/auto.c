#include "core/schedule/auto.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/schedule/internal.h"

enum {
  STARTS = 3,
  MOVE_REACH = 6,
  MOST_MOVES = 10000,
  WORK_OF_MOVES = 1500000,
  LEAST_MOVES = 200,
  GREEDY_LIMIT = 500000
};

/* One candidate and what it costs. */
typedef struct layout {
  pst_schedule *schedule;
  double seconds; /* makespan, and a trace of idle time to tell equals apart */
} layout;

typedef struct search {
  const pst_schedule_options *options;
  pst_simulate_options clock;
  pst_lower_options lower;
  pst_stage_buffers *peaks; /* [stages] */
  double *memory;           /* [workers] */
  pst_simulation *result;
  layout best[STARTS]; /* the quickest first */
  bool v_only;         /* no other placement */
  double least_over;   /* how far over its limit the smallest candidate is, bytes */
  uint64_t random;
} search;

/* Splitmix64 (Steele, Lea, Flood 2014): the search is the same in every process. */
static uint64_t next_random(uint64_t *state, uint64_t below) {
  *state += 0x9e3779b97f4a7c15u;
  uint64_t z = *state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return (z ^ (z >> 31)) % below;
}

/* Memory of each worker as the plan lays it out: slots of each stage, or pairs in flight when no bytes are
 * given.
 */
static void count_memory(const search *k, const pst_schedule *schedule) {
  const pst_schedule_options *o = k->options;
  bool bytes = o->stash_bytes != NULL || o->defer_bytes != NULL;
  for (int w = 0; w < schedule->workers; w++) k->memory[w] = 0;
  for (int s = 0; bytes && s < schedule->stages; s++)
    k->memory[schedule->worker_of[s]] += k->peaks[s].stash * (o->stash_bytes ? o->stash_bytes[s] : 0) +
                                         k->peaks[s].defer * (o->defer_bytes ? o->defer_bytes[s] : 1);
  for (int w = 0; !bytes && w < schedule->workers; w++) {
    int64_t held = 0, most = 0;
    for (size_t i = 0; i < schedule->lists[w].count; i++) {
      unsigned kind = schedule->lists[w].items[i].kind;
      if (kind == PST_ACTION_F && ++held > most) most = held;
      if (kind == PST_ACTION_B || kind == PST_ACTION_W) held--;
    }
    k->memory[w] = (double)most;
  }
}

/* Seconds of a list; infinite when it breaks a rule, comes to a standstill or does not fit. */
static pst_status judge(search *k, const pst_schedule *schedule, double *out_seconds) {
  uint16_t *wire = NULL;
  *out_seconds = INFINITY;
  PST_TRY(pst__wire_stages(schedule, &k->lower, &wire));
  pst_status st = pst__check_rules(schedule, wire, NULL, k->peaks);
  if (st == PST_OK) {
    double over = 0;
    count_memory(k, schedule);
    for (int w = 0; k->options->memory_bytes != NULL && w < schedule->workers; w++)
      over = fmax(over, k->memory[w] - k->options->memory_bytes[w]);
    if (over > 0) {
      k->least_over = fmin(k->least_over, over);
      goto done;
    }
    memset(k->result, 0, sizeof *k->result + (size_t)schedule->workers * sizeof k->result->workers[0]);
    st = pst__run_machine(schedule, wire, NULL, &k->clock, k->result);
  }
  if (st == PST_OK) {
    double idle = 0;
    for (int w = 0; w < schedule->workers; w++) idle += k->result->workers[w].idle_in_span_s;
    *out_seconds = k->result->makespan_s + 1e-7 * idle / schedule->workers;
  }
  if (st == PST_INVALID) st = PST_OK;

done:
  free(wire);
  return st;
}

/* Keeps the schedule, which it takes over, if it is among the best. */
static pst_status consider(search *k, pst_schedule *schedule) {
  double seconds;
  pst_status st = judge(k, schedule, &seconds);
  int at = STARTS;
  while (st == PST_OK && at > 0 && (k->best[at - 1].schedule == NULL || seconds < k->best[at - 1].seconds))
    at--;
  if (st != PST_OK || at == STARTS || !isfinite(seconds)) {
    pst_schedule_destroy(schedule);
    return st;
  }
  pst_schedule_destroy(k->best[STARTS - 1].schedule);
  memmove(&k->best[at + 1], &k->best[at], (size_t)(STARTS - 1 - at) * sizeof k->best[0]);
  k->best[at] = (layout){schedule, seconds};
  return PST_OK;
}

/* Every full backward as I and W, side by side. */
static pst_status split(const pst_schedule *from, pst_schedule **out_schedule) {
  pst_schedule *to = NULL;
  pst_status st = pst_schedule_create(from->workers, from->chunks, from->microbatches, true, &to);
  if (st != PST_OK) return st;
  for (int s = 0; s < from->stages; s++) to->worker_of[s] = from->worker_of[s];
  for (int w = 0; w < from->workers && st == PST_OK; w++)
    for (size_t i = 0; i < from->lists[w].count && st == PST_OK; i++) {
      pst_action a = from->lists[w].items[i];
      bool whole = a.kind == PST_ACTION_B;
      st = pst_schedule_append(to, w, whole ? PST_ACTION_I : (pst_action_kind)a.kind, a.chunk, a.microbatch);
      if (st == PST_OK && whole) st = pst_schedule_append(to, w, PST_ACTION_W, a.chunk, a.microbatch);
    }
  if (st != PST_OK) {
    pst_schedule_destroy(to);
    return st;
  }
  *out_schedule = to;
  return PST_OK;
}

/* The families with as many chunks, as they are and split. What they refuse is no candidate. */
static pst_status try_families(search *k) {
  size_t n = 0;
  const pst_schedule_family *rows = pst_schedule_families(&n);
  for (size_t i = 0; i < n; i++) {
    pst_schedule_options o = *k->options;
    pst_schedule *made = NULL, *halves = NULL;
    if (rows[i].generate == pst__generate_auto || rows[i].generate == pst__generate_forward_only) continue;
    if (rows[i].chunks > 0 && rows[i].chunks != o.chunks) continue;
    for (int extra = 0; extra < (rows[i].takes_extra && o.workers > 1 ? 2 : 1); extra++) {
      o.extra_forwards = extra * (o.workers - 1);
      pst_status st = rows[i].generate(&o, &made);
      if (st == PST_INVALID) break;
      if (st == PST_OK) st = split(made, &halves);
      if (st != PST_OK) {
        pst_schedule_destroy(made);
        return st;
      }
      st = consider(k, made);
      if (st != PST_OK) {
        pst_schedule_destroy(halves);
        return st;
      }
      PST_TRY(consider(k, halves));
    }
  }
  return PST_OK;
}

static pst_status try_greedy(search *k) {
  const pst_schedule_options *o = k->options;
  int64_t actions = 3 * (int64_t)o->workers * o->chunks * o->microbatches, widest = INT64_MAX;
  if (actions * o->workers * o->chunks > GREEDY_LIMIT) return PST_OK;
  bool bytes = o->stash_bytes != NULL || o->defer_bytes != NULL;
  for (int w = 0; o->memory_bytes != NULL && w < o->workers; w++) {
    double unit = 1; /* smallest pair of the worker: the list is judged by its real memory afterwards */
    for (int s = w; bytes && s < o->workers * o->chunks; s += o->workers)
      unit = fmax(unit, (o->stash_bytes ? o->stash_bytes[s] : 0) + (o->defer_bytes ? o->defer_bytes[s] : 1));
    widest = (int64_t)fmin((double)widest, floor(o->memory_bytes[w] / unit));
  }
  for (int v_placed = k->v_only; v_placed < (o->chunks == 2 ? 2 : 1); v_placed++)
    for (int ahead = 0; ahead < 3; ahead++)
      for (int forward_first = 0; forward_first < 2; forward_first++)
        for (int step = 0; step < 3; step++) {
          pst__greedy_rules rules = {v_placed != 0, forward_first != 0, ahead, step / 2.0, widest};
          pst_schedule *made = NULL;
          pst_status st = pst__greedy_lists(o, &rules, &made);
          if (st == PST_INVALID) continue;
          if (st != PST_OK) return st;
          PST_TRY(consider(k, made));
        }
  return PST_OK;
}

/* Moves one action from place i to place j of a list. */
static void move(pst_action_list *list, size_t i, size_t j) {
  pst_action a = list->items[i];
  if (i < j)
    memmove(&list->items[i], &list->items[i + 1], (j - i) * sizeof a);
  else
    memmove(&list->items[j + 1], &list->items[j], (i - j) * sizeof a);
  list->items[j] = a;
}

/* Would the move break an order that no list may break? Saves asking the judge. */
static bool crosses(const pst_action_list *list, size_t i, size_t j) {
  pst_action a = list->items[i];
  for (size_t at = i < j ? i + 1 : j; at < (i < j ? j + 1 : i); at++) {
    pst_action b = list->items[at];
    if (b.chunk == a.chunk && (b.kind == a.kind || b.microbatch == a.microbatch)) return true;
  }
  return false;
}

/* Simulated annealing (Kirkpatrick et al. 1983): moves single actions; a worse list is kept now and then,
 * less and less often. The best one seen stays in `from`. */
static pst_status anneal(search *k, layout *from, int64_t moves) {
  pst_schedule *now = NULL;
  PST_TRY(split(from->schedule, &now));
  double seconds, start;
  pst_status st = judge(k, now, &seconds);
  start = seconds;
  for (int64_t i = 0; st == PST_OK && i < moves && isfinite(start); i++) {
    int w = (int)next_random(&k->random, (uint64_t)now->workers);
    pst_action_list *list = &now->lists[w];
    size_t a = next_random(&k->random, list->count), reach = 1 + next_random(&k->random, MOVE_REACH);
    bool back = next_random(&k->random, 2) != 0;
    if (back ? a < reach : a + reach >= list->count) continue;
    size_t b = back ? a - reach : a + reach;
    if (crosses(list, a, b)) continue;
    double next, chance = (double)next_random(&k->random, 1u << 20) / (1u << 20);
    double heat = 0.01 * start * (1 - (double)i / (double)moves);
    move(list, a, b);
    st = judge(k, now, &next);
    if (st == PST_OK && next <= seconds - heat * log(chance + 1e-9) * (i % 2)) {
      seconds = next;
      if (seconds < from->seconds) {
        pst_schedule *copy = NULL;
        st = split(now, &copy);
        if (st != PST_OK) break;
        pst_schedule_destroy(from->schedule);
        *from = (layout){copy, seconds};
      }
    } else {
      move(list, b, a);
    }
  }
  pst_schedule_destroy(now);
  return st;
}

static pst_status prepare(search *k) {
  const pst_schedule_options *o = k->options;
  size_t stages = (size_t)o->workers * (size_t)o->chunks, workers = (size_t)o->workers;
  pst_lower_options_init(&k->lower);
  pst_simulate_options_init(&k->clock);
  k->clock.forward_s = o->forward_s;
  k->clock.input_s = o->input_s;
  k->clock.weight_s = o->weight_s;
  k->clock.latency_s = o->latency_s;
  k->clock.early_send = !o->no_early_send;
  k->least_over = INFINITY;
  k->peaks = calloc(stages, sizeof *k->peaks);
  k->memory = calloc(workers, sizeof *k->memory);
  k->result = calloc(1, sizeof *k->result + workers * sizeof k->result->workers[0]);
  if (k->peaks == NULL || k->memory == NULL || k->result == NULL)
    return pst_fail(PST_NO_MEMORY, "schedule: no memory to search for %zu workers", workers);
  return PST_OK;
}

static pst_status anneal_best(search *k) {
  const pst_schedule_options *o = k->options;
  int64_t actions = 3 * (int64_t)o->workers * o->chunks * o->microbatches, moves = WORK_OF_MOVES / actions;
  if (moves > MOST_MOVES) moves = MOST_MOVES;
  if (moves < LEAST_MOVES) return PST_OK;
  for (int i = 0; i < STARTS && k->best[i].schedule != NULL; i++) PST_TRY(anneal(k, &k->best[i], moves));
  return PST_OK;
}

/* Hands out the best; NULL when there is none. */
static layout take_best(search *k) {
  int best = 0;
  for (int i = 1; i < STARTS; i++)
    if (k->best[i].schedule != NULL && k->best[i].seconds < k->best[best].seconds) best = i;
  layout taken = k->best[best];
  k->best[best].schedule = NULL;
  return taken;
}

static void clear(search *k) {
  for (int i = 0; i < STARTS; i++) pst_schedule_destroy(k->best[i].schedule);
  free(k->peaks);
  free(k->memory);
  free(k->result);
}

pst_status pst__generate_auto(const pst_schedule_options *options, pst_schedule **out_schedule) {
  search k = {.options = options, .random = 1};
  pst_schedule *probe = NULL; /* for the ranges of the sizes */
  PST_TRY(pst_schedule_create(options->workers, options->chunks, options->microbatches, true, &probe));
  pst_schedule_destroy(probe);
  pst_status st = prepare(&k);
  if (st == PST_OK) st = try_families(&k);
  if (st == PST_OK) st = try_greedy(&k);
  if (st == PST_OK && k.best[0].schedule == NULL)
    st = pst_fail(PST_INVALID,
                  "schedule memory: auto found no order of %d workers and %lld microbatches that fits, the "
                  "smallest takes %g more than a worker has",
                  options->workers, (long long)options->microbatches, k.least_over);
  if (st == PST_OK) st = anneal_best(&k);
  if (st == PST_OK) *out_schedule = take_best(&k).schedule;
  clear(&k);
  return st;
}

pst_status pst__quicken_v(const pst_schedule_options *options, int64_t limit, pst_schedule **schedule) {
  pst_schedule_options own = *options;
  double *limits = malloc((size_t)options->workers * sizeof *limits), seconds;
  if (limits == NULL) return pst_fail(PST_NO_MEMORY, "schedule: no memory for %d workers", options->workers);
  for (int w = 0; w < options->workers; w++) limits[w] = (double)limit;
  own.memory_bytes = limits;
  own.stash_bytes = own.defer_bytes = NULL;
  search k = {.options = &own, .random = 1, .v_only = true};
  pst_schedule *copy = NULL;
  pst_status st = prepare(&k);
  if (st == PST_OK) st = judge(&k, *schedule, &seconds);
  if (st == PST_OK) st = split(*schedule, &copy);
  if (st == PST_OK) st = consider(&k, copy);
  if (st == PST_OK) st = try_greedy(&k);
  layout best = st == PST_OK ? take_best(&k) : (layout){NULL, INFINITY};
  if (best.schedule != NULL && best.seconds < seconds * (1 - 1e-6)) {
    pst_schedule_destroy(*schedule);
    *schedule = best.schedule;
  } else {
    pst_schedule_destroy(best.schedule);
  }
  clear(&k);
  free(limits);
  return st;
}
