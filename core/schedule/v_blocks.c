#include "core/schedule/v_blocks.h"

#include <stdlib.h>

#include "core/schedule/auto.h"

enum { PERIOD = 6, FREE = 0, MOVE_LIMIT = 16384, MOVE_ROUNDS = 2 };

typedef struct pass_place {
  int64_t slot;
  int worker, pass;
  int64_t microbatch;
} pass_place;

typedef struct board {
  int workers;
  int64_t n, slots;
  int64_t *slot;        /* [workers][PST__PASSES][n] */
  unsigned char *taken; /* [workers][slots] pass + 1, or FREE */
  pass_place *order;    /* [workers * PST__PASSES * n] */
} board;

static int64_t *slots_of(const board *b, int worker, int pass) {
  return b->slot + ((int64_t)worker * PST__PASSES + pass) * b->n;
}

static unsigned char *row_of(const board *b, int worker) {
  return b->taken + (int64_t)worker * b->slots;
}

static bool is_forward(int pass) {
  return pass == PST__F_DOWN || pass == PST__F_UP;
}

/* Most (chunk, microbatch) pairs in flight, F to W, when free slots go to the W that are ready. */
static int64_t peak(const board *b, int worker) {
  const unsigned char *row = row_of(b, worker);
  int64_t held = 0, ready = 0, most = 0;
  for (int64_t t = 0; t < b->slots; t++) {
    if (row[t] == FREE) {
      if (ready > 0) ready--, held--;
    } else if (is_forward(row[t] - 1)) {
      if (++held > most) most = held;
    } else {
      ready++;
    }
  }
  return most;
}

/* The slot behind which a pass can stand: its input, the pass before it here, the microbatch before it. */
static int64_t earliest(const board *b, const pass_place *p) {
  int64_t behind = -1, others[3] = {-1, -1, -1};
  bool downwards = p->pass == PST__F_DOWN || p->pass == PST__I_UP;
  if (downwards && p->worker > 0) others[0] = slots_of(b, p->worker - 1, p->pass)[p->microbatch];
  if (!downwards && p->worker + 1 < b->workers)
    others[0] = slots_of(b, p->worker + 1, p->pass)[p->microbatch];
  if (p->pass > 0) others[1] = slots_of(b, p->worker, p->pass - 1)[p->microbatch];
  if (p->microbatch > 0) others[2] = slots_of(b, p->worker, p->pass)[p->microbatch - 1];
  for (int i = 0; i < 3; i++)
    if (others[i] > behind) behind = others[i];
  return behind + 1;
}

static void move_pass(board *b, const pass_place *p, int64_t limit) {
  unsigned char *row = row_of(b, p->worker);
  int64_t *slot = &slots_of(b, p->worker, p->pass)[p->microbatch], old = *slot;
  for (int64_t t = earliest(b, p); t < old; t++) {
    if (row[t] != FREE) continue;
    row[old] = FREE;
    row[t] = (unsigned char)(p->pass + 1);
    if (peak(b, p->worker) <= limit) {
      *slot = t;
      return;
    }
    row[t] = FREE;
    row[old] = (unsigned char)(p->pass + 1);
  }
}

static int by_slot(const void *a, const void *b) {
  const pass_place *x = a, *y = b;
  if (x->slot != y->slot) return x->slot < y->slot ? -1 : 1;
  return x->worker - y->worker;
}

static int64_t highest_peak(const board *b) {
  int64_t most = 0;
  for (int w = 0; w < b->workers; w++) {
    int64_t own = peak(b, w);
    if (own > most) most = own;
  }
  return most;
}

static void tighten(board *b, int64_t limit) {
  for (int round = 0; round < MOVE_ROUNDS; round++) {
    size_t count = 0;
    for (int w = 0; w < b->workers; w++)
      for (int pass = 0; pass < PST__PASSES; pass++)
        for (int64_t m = 0; m < b->n; m++)
          b->order[count++] = (pass_place){slots_of(b, w, pass)[m], w, pass, m};
    qsort(b->order, count, sizeof *b->order, by_slot);
    for (size_t i = 0; i < count; i++) move_pass(b, &b->order[i], limit);
  }
}

/* Walks the slots; a free one takes the oldest W owed. */
static pst_status emit_worker(const board *b, pst_schedule *schedule, int worker) {
  const unsigned char *row = row_of(b, worker);
  int stage[PST__PASSES] = {worker, 2 * b->workers - 1 - worker, 2 * b->workers - 1 - worker, worker};
  int64_t next[PST__PASSES] = {0}, next_w[2] = {0}, owed = 0, seen = 0;
  pst_action_list *list = &schedule->lists[worker];
  PST_TRY(pst_schedule_reserve(schedule, worker, 6 * (size_t)b->n));
  for (int64_t t = 0; list->count < 6 * (size_t)b->n; t++) {
    int pass = t < b->slots && row[t] != FREE ? row[t] - 1 : -1;
    if (pass >= 0) {
      pst_action_kind kind = is_forward(pass) ? PST_ACTION_F : PST_ACTION_I;
      PST_TRY(pst_schedule_append(schedule, worker, kind, stage[pass], next[pass]++));
      owed += !is_forward(pass);
    } else if (owed > 0) {
      /* the I seen so far are in the list; the oldest whose W is not is the next to run */
      while (list->items[seen].kind != PST_ACTION_I) seen++;
      int chunk = list->items[seen++].chunk, way = chunk == worker ? 0 : 1;
      PST_TRY(pst_schedule_append(schedule, worker, PST_ACTION_W, chunk, next_w[way]++));
      owed--;
    }
  }
  return PST_OK;
}

pst_status pst__generate_blocks(const pst_schedule_options *options, pst__block_offsets offsets,
                                pst_schedule **out_schedule) {
  pst_status st = PST_OK;
  pst_schedule *schedule = NULL;
  board b = {.workers = options->workers, .n = options->microbatches};
  PST_TRY(pst_schedule_create(options->workers, 2, options->microbatches, true, &schedule));
  PST_GOTO(st, pst_schedule_place_v(schedule), done);
  b.slots = PERIOD * (b.n + 2 * (int64_t)b.workers);
  size_t places = (size_t)b.workers * PST__PASSES * (size_t)b.n;
  b.slot = calloc(places, sizeof *b.slot);
  b.taken = calloc((size_t)b.workers * (size_t)b.slots, 1);
  bool tightens = b.n <= MOVE_LIMIT / b.workers;
  b.order = calloc(tightens ? places : 1, sizeof *b.order);
  if (b.slot == NULL || b.taken == NULL || b.order == NULL) {
    st = pst_fail(PST_NO_MEMORY, "schedule: no memory to lay out %d workers and %lld microbatches", b.workers,
                  (long long)b.n);
    goto done;
  }
  for (int w = 0; w < b.workers; w++) {
    int64_t first[PST__PASSES];
    offsets(b.workers, w, first);
    for (int pass = 0; pass < PST__PASSES; pass++)
      for (int64_t m = 0; m < b.n; m++) {
        int64_t t = first[pass] + PERIOD * m;
        slots_of(&b, w, pass)[m] = t;
        row_of(&b, w)[t] = (unsigned char)(pass + 1);
      }
  }
  int64_t limit = highest_peak(&b);
  if (tightens) tighten(&b, limit);
  for (int w = 0; w < b.workers; w++) PST_GOTO(st, emit_worker(&b, schedule, w), done);
  if (options->forward_s != NULL) PST_GOTO(st, pst__quicken_v(options, limit, &schedule), done);
  *out_schedule = schedule;
  schedule = NULL;

done:
  free(b.order);
  free(b.taken);
  free(b.slot);
  pst_schedule_destroy(schedule);
  return st;
}
