/* A thousand random mutations of each family, in both forms: what the checker lets through must run, judged
 * by an executor of its own that knows sets instead of counters and polls instead of waking. */
#include "tests/schedule/fixture.h"

enum { MAX_S = 9, MAX_M = 8, MUTATIONS = 1000 };

typedef struct world {
  const pst_schedule *s;
  const pst_stage_buffers *b;
  bool split[MAX_S];
  int done[PST_ACTION_COUNT][MAX_S][MAX_M];
  int ended[2][MAX_S]; /* REDUCE, UPDATE of each worker */
} world;

static int did(const world *w, int kind, int stage, int m) {
  return w->done[kind][stage][m];
}

static bool went_back(const world *w, int stage, int m) {
  return did(w, PST_ACTION_B, stage, m) || did(w, PST_ACTION_I, stage, m);
}

static bool local(const world *w, int stage, int other) {
  return w->s->worker_of[stage] == w->s->worker_of[other];
}

/* All below m of this kind, and m not yet: ascending and once. A full backward stands for its W. */
static bool is_next(const world *w, pst_action a) {
  for (int m = 0; m < w->s->microbatches; m++) {
    bool gone = did(w, a.kind, a.chunk, m) || (a.kind == PST_ACTION_W && did(w, PST_ACTION_B, a.chunk, m));
    if (gone != (m < (int)a.microbatch)) return false;
  }
  return true;
}

static bool moved(const world *w, int from, int to, int m) {
  int send = from < to ? PST_ACTION_SEND_F : PST_ACTION_SEND_B;
  int receive = from < to ? PST_ACTION_RECV_F : PST_ACTION_RECV_B;
  if (local(w, from, to) || !w->s->lowered)
    return from < to ? did(w, PST_ACTION_F, from, m) : went_back(w, from, m);
  return did(w, send, from, m) && did(w, receive, to, m);
}

static bool can_run(const world *w, pst_action a) {
  int s = a.chunk, m = (int)a.microbatch, last = w->s->stages - 1, out;
  if (a.kind == PST_ACTION_F) {
    if (s > 0 && !moved(w, s - 1, s, m)) return false;
    out = m - w->b[s].out_activation;
    return !w->s->lowered || s == last || local(w, s, s + 1) || out < 0 || moved(w, s, s + 1, out);
  }
  if (a.kind == PST_ACTION_B || a.kind == PST_ACTION_I) {
    if (s < last && !moved(w, s + 1, s, m)) return false;
    out = m - w->b[s].out_gradient;
    return !w->s->lowered || s == 0 || local(w, s, s - 1) || out < 0 || moved(w, s, s - 1, out);
  }
  return true;
}

static bool freed(const world *w, int stage, int m) {
  if (m < 0) return true;
  return w->s->training ? went_back(w, stage, m) : did(w, PST_ACTION_F, stage, m) != 0;
}

static bool is_sound(const world *w, int worker, pst_action a) {
  int s = a.chunk, m = (int)a.microbatch, last = w->s->stages - 1;
  if (a.kind >= PST_ACTION_REDUCE) {
    bool all = true;
    for (int k = 0; k <= last; k++)
      for (int i = 0; i < w->s->microbatches && w->s->worker_of[k] == worker; i++)
        all = all && went_back(w, k, i) && (did(w, PST_ACTION_B, k, i) || did(w, PST_ACTION_W, k, i));
    return all && (a.kind == PST_ACTION_REDUCE || w->ended[0][worker]);
  }
  if (w->s->worker_of[s] != worker || w->ended[0][worker]) return false;
  if (a.kind != PST_ACTION_B && a.kind != PST_ACTION_I && !is_next(w, a)) return false;
  for (int i = 0; (a.kind == PST_ACTION_B || a.kind == PST_ACTION_I) && i < w->s->microbatches; i++)
    if (went_back(w, s, i) != (i < m)) return false;
  switch (a.kind) {
  case PST_ACTION_F:
    if (w->split[s] && m >= w->b[s].defer && !did(w, PST_ACTION_W, s, m - w->b[s].defer) &&
        !did(w, PST_ACTION_B, s, m - w->b[s].defer))
      return false;
    if (s < last && local(w, s, s + 1) && !freed(w, s + 1, m - w->b[s + 1].stash)) return false;
    return (s > 0 && !local(w, s - 1, s) && w->s->lowered) || freed(w, s, m - w->b[s].stash);
  case PST_ACTION_B:
    for (int i = 0; i < m; i++)
      if (!did(w, PST_ACTION_B, s, i) && !did(w, PST_ACTION_W, s, i)) return false;
    /* fall through */
  case PST_ACTION_I:
    if (s > 0 && local(w, s, s - 1) && !freed(w, s - 1, m - w->b[s - 1].gradient)) return false;
    return did(w, PST_ACTION_F, s, m) != 0;
  case PST_ACTION_W:
    return did(w, PST_ACTION_I, s, m) != 0;
  case PST_ACTION_SEND_F:
    return did(w, PST_ACTION_F, s, m) != 0;
  case PST_ACTION_SEND_B:
    return went_back(w, s, m);
  case PST_ACTION_RECV_F:
    return freed(w, s, m - w->b[s].stash);
  default:
    return freed(w, s, m - w->b[s].gradient);
  }
}

static bool is_complete(const world *w, int s, int m) {
  bool training = w->s->training, full = w->s->lowered, up = s < w->s->stages - 1 && !local(w, s, s + 1);
  bool down = s > 0 && !local(w, s, s - 1);
  int whole = did(w, PST_ACTION_B, s, m), half = did(w, PST_ACTION_I, s, m),
      weight = did(w, PST_ACTION_W, s, m);
  if (did(w, PST_ACTION_F, s, m) != 1) return false;
  if (whole + half != (training ? 1 : 0) || weight != half) return false;
  return did(w, PST_ACTION_SEND_F, s, m) == (full && up) &&
         did(w, PST_ACTION_RECV_F, s, m) == (full && down) &&
         did(w, PST_ACTION_SEND_B, s, m) == (full && training && down) &&
         did(w, PST_ACTION_RECV_B, s, m) == (full && training && up);
}

/* Runs to the end or to a standstill. */
static bool runs_right(const pst_schedule *s, const pst_stage_buffers *b) {
  static world w;
  size_t at[MAX_S] = {0};
  w = (world){.s = s, .b = b};
  for (int r = 0; r < s->workers; r++)
    for (size_t i = 0; i < s->lists[r].count; i++)
      if (s->lists[r].items[i].kind == PST_ACTION_I) w.split[s->lists[r].items[i].chunk] = true;
  for (bool went = true; went;) {
    went = false;
    for (int r = 0; r < s->workers; r++)
      while (at[r] < s->lists[r].count) {
        pst_action a = s->lists[r].items[at[r]];
        if (!can_run(&w, a)) break;
        if (!is_sound(&w, r, a)) return false;
        int *count = a.kind >= PST_ACTION_REDUCE ? &w.ended[a.kind - PST_ACTION_REDUCE][r]
                                                 : &w.done[a.kind][a.chunk][a.microbatch];
        if (++*count > 1) return false;
        at[r]++;
        went = true;
      }
  }
  for (int r = 0; r < s->workers; r++) {
    if (at[r] < s->lists[r].count) return false;
    if (s->lowered && s->training && (!w.ended[0][r] || !w.ended[1][r])) return false;
  }
  for (int k = 0; k < s->stages; k++)
    for (int m = 0; m < s->microbatches; m++)
      if (!is_complete(&w, k, m)) return false;
  return true;
}

static uint64_t next_random(uint64_t *state, uint64_t below) {
  *state += 0x9e3779b97f4a7c15u;
  uint64_t z = *state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return (z ^ (z >> 31)) % below;
}

/* Drops, doubles or swaps actions of one list. */
static void mutate(pst_schedule *s, uint64_t *random) {
  int worker = (int)next_random(random, (uint64_t)s->workers);
  pst_action_list *list = &s->lists[worker];
  size_t i = next_random(random, list->count), j = next_random(random, list->count);
  pst_action a = list->items[i];
  switch (next_random(random, 4)) {
  case 0:
    memmove(&list->items[i], &list->items[i + 1], (list->count - i - 1) * sizeof a);
    list->count--;
    return;
  case 1:
    assert_ok(pst_schedule_append(s, worker, PST_ACTION_F, 0, 0));
    memmove(&list->items[j + 1], &list->items[j], (list->count - j - 1) * sizeof a);
    list->items[j] = a;
    return;
  case 2:
    break;
  default:
    j = i + 1 < list->count ? i + 1 : i; /* neighbours: most often harmless */
    break;
  }
  list->items[i] = list->items[j];
  list->items[j] = a;
}

static void mutate_family(const pst_schedule_family *family, bool full_form, uint64_t seed) {
  uint64_t random = seed;
  int refused = 0, harmless = 0, held_back = 0;
  for (int i = 0; i < MUTATIONS; i++) {
    pst_schedule_options o;
    pst_schedule *s = NULL;
    pst_stage_buffers b[MAX_S];
    pst_schedule_options_init(&o);
    o.name = family->name;
    o.chunks = family->chunks > 0 ? family->chunks : 1 + (int)next_random(&random, 3);
    o.workers = 1 + (int)next_random(&random, o.chunks == 1 ? 4 : 3);
    o.microbatches = 1 + (int64_t)next_random(&random, MAX_M);
    if (strcmp(family->name, "dualpipe-v") == 0 && o.microbatches < 2 * o.workers)
      o.microbatches = 2 * o.workers;
    assert_ok(pst_schedule_generate(&o, &s));
    assert_ok(pst_schedule_buffers(s, NULL, b));
    if (full_form) {
      pst_schedule *full = NULL;
      assert_ok(pst_schedule_lower(s, NULL, b, &full));
      pst_schedule_destroy(s);
      s = full;
    }
    if (!runs_right(s, b))
      fail_msg("%s, K = %d, V = %d, M = %d does not run", o.name, o.workers, o.chunks, (int)o.microbatches);
    mutate(s, &random);
    bool right = runs_right(s, b);
    pst_status st = pst_schedule_check(s, NULL, b);
    if (st == PST_OK && !right)
      fail_msg("seed %llu, mutation %d of %s was let through", (unsigned long long)seed, i, o.name);
    if (st != PST_OK) assert_int_equal(st, PST_INVALID);
    harmless += st == PST_OK;
    refused += st != PST_OK;
    held_back += st != PST_OK && right;
    pst_schedule_destroy(s);
  }
  print_message("%-15s %-6s seed %llu: %d refused (%d of them would run), %d harmless\n", family->name,
                full_form ? "full" : "normal", (unsigned long long)seed, refused, held_back, harmless);
  assert_true(refused > MUTATIONS / 4 && harmless > MUTATIONS / 100);
  assert_true(full_form || held_back == 0);
}

static void test_random_mutations(void **state) {
  size_t n = 0;
  const pst_schedule_family *rows = pst_schedule_families(&n);
  for (size_t i = 0; i < n; i++)
    for (int full = 0; full < 2; full++)
      if (strcmp(rows[i].name, "auto") != 0) mutate_family(&rows[i], full != 0, 20261130u + (uint64_t)i);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_mutations)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
