/* The checker refuses what would hang or give wrong numbers, and nothing else: named faults by hand, then
 * thousands of random ones judged by an independent executor. */
#include "tests/schedule/fixture.h"

static void refuse_texts(int64_t microbatches, const char *first, const char *second, const char *part) {
  const char *texts[] = {first, second};
  pst_schedule *s = from_text(2, 1, microbatches, false, texts);
  assert_refused(pst_schedule_check(s, NULL, NULL), part);
  pst_schedule_destroy(s);
}

static void test_named_faults(void **state) {
  static const struct {
    int64_t microbatches;
    const char *first, *second, *part;
  } rows[] = {
      {2, "0F0 0F1 0B0", "1F0 1B0 1F1 1B1",
       "worker 0, position 3 (end of list): B or I of stage 0, microbatch 1"},
      {2, "0F0 0B0 0B1", "1F0 1B0 1F1 1B1", "worker 0, position 2 (0B1): wanted behind 0F1"},
      {1, "0F0 0F0 0B0", "1F0 1B0", "position 1 (0F0): stands a second time"},
      {1, "0F0 0B0 0B0", "1F0 1B0", "position 2 (0B0): stands a second time"},
      {2, "0F1 0F0 0B0 0B1", "1F0 1B0 1F1 1B1", "position 0 (0F1): out of order, wanted 0F0"},
      {2, "0F0 0F1 0B1 0B0", "1F0 1B0 1F1 1B1", "position 2 (0B1): out of order, wanted 0B0"},
      {1, "0B0 0F0", "1F0 1B0", "position 0 (0B0): wanted behind 0F0"},
      {1, "0F0 0W0 0I0", "1F0 1B0", "position 1 (0W0): wanted behind 0I0"},
      {1, "0F0 0I0", "1F0 1B0", "W of stage 0, microbatch 0 is missing"},
      {1, "0F0 0B0 0W0", "1F0 1B0", "position 2 (0W0): stands a second time"},
      {1, "0F0 0I0 0B0 0W0", "1F0 1B0", "position 2 (0B0): stands a second time"},
      {2, "0F0 0F1 0I0 0B1 0W0", "1F0 1B0 1F1 1B1", "position 3 (0B1): wanted behind 0W0"},
      {1, "0F0 1F0 0B0", "1B0", "worker 0, position 1 (1F0): stage 1 stands on worker 1"},
      {1, "0F0 0F1 0B0", "1F0 1B0", "position 1 (0F1): wanted stage 0 to 1, microbatch 0 to 0"},
      {1, "0F0 2F0 0B0", "1F0 1B0", "position 1 (2F0): wanted stage 0 to 1"},
      {1, "0F0 0SEND_F0 0B0", "1F0 1B0", "position 1 (0SEND_F0): a message, wanted compute actions alone"},
      {1, "0F0 0B0 REDUCE", "1F0 1B0", "position 2 (REDUCE): wanted in full training lists alone"},
      {1, "", "1F0 1B0", "worker 0, position 0 (end of list): F of stage 0"},
      {2, "0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1",
       "worker 0, position 1 (0B0): deadlock: waits for the gradient of stage "
       "1, but worker 1 stands at position 1 (1F1)"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
    refuse_texts(rows[i].microbatches, rows[i].first, rows[i].second, rows[i].part);
}

static void refuse_full(int64_t microbatches, const char *first, const char *second,
                        const pst_lower_options *o, const pst_stage_buffers *b, const char *part) {
  const char *texts[] = {first, second};
  pst_schedule *s = from_text(2, 1, microbatches, false, texts);
  s->lowered = true;
  assert_refused(pst_schedule_check(s, o, b), part);
  pst_schedule_destroy(s);
}

static void pass_full(int64_t microbatches, const char *first, const char *second,
                      const pst_stage_buffers *b) {
  const char *texts[] = {first, second};
  pst_schedule *s = from_text(2, 1, microbatches, false, texts);
  s->lowered = true;
  assert_ok(pst_schedule_check(s, NULL, b));
  pst_schedule_destroy(s);
}

static void test_faults_of_full_lists(void **state) {
  static const struct {
    const char *first, *second, *part;
  } rows[] = {
      {"0RECV_B0 0F0 0B0 REDUCE UPDATE", "1RECV_F0 1F0 1B0 1SEND_B0 REDUCE UPDATE",
       "worker 0, position 5 (end of list): SEND_F of stage 0, microbatch 0 is missing"},
      {"0RECV_B0 0F0 0SEND_F0 0B0 REDUCE UPDATE", "1F0 1B0 1SEND_B0 REDUCE UPDATE",
       "worker 1, position 0 (1F0): wanted behind its 1RECV_F0"},
      {"0F0 0SEND_F0 0B0 0RECV_B0 REDUCE UPDATE", "1RECV_F0 1F0 1B0 1SEND_B0 REDUCE UPDATE",
       "position 2 (0B0): wanted behind its 0RECV_B0"},
      {"0RECV_B0 0SEND_F0 0F0 0B0 REDUCE UPDATE", "1RECV_F0 1F0 1B0 1SEND_B0 REDUCE UPDATE",
       "position 1 (0SEND_F0): wanted behind the F of stage 0"},
      {"0RECV_B0 0F0 0SEND_F0 0SEND_F0 0B0 REDUCE UPDATE", "1RECV_F0 1F0 1B0 1SEND_B0 REDUCE UPDATE",
       "position 3 (0SEND_F0): stands a second time"},
      {"0RECV_B0 0F0 0SEND_F0 0B0 REDUCE UPDATE", "1RECV_F0 1F0 1SEND_B0 1B0 REDUCE UPDATE",
       "position 2 (1SEND_B0): wanted behind the B or I of stage 1"},
      {"0RECV_F0 0RECV_B0 0F0 0SEND_F0 0B0 REDUCE UPDATE", "1RECV_F0 1F0 1B0 1SEND_B0 REDUCE UPDATE",
       "position 0 (0RECV_F0): no such message belongs to stage 0"},
      {"0RECV_B0 0F0 0SEND_F0 0B0 UPDATE", "1RECV_F0 1F0 1B0 1SEND_B0 REDUCE UPDATE",
       "wanted REDUCE, then UPDATE"},
      {"0RECV_B0 0F0 0SEND_F0 0B0 REDUCE", "1RECV_F0 1F0 1B0 1SEND_B0 REDUCE UPDATE", "UPDATE is missing"},
      {"0RECV_B0 0F0 0SEND_F0 REDUCE 0B0 UPDATE", "1RECV_F0 1F0 1B0 1SEND_B0 REDUCE UPDATE",
       "stands behind REDUCE"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
    refuse_full(1, rows[i].first, rows[i].second, NULL, NULL, rows[i].part);
}

static void test_slots_in_use(void **state) {
  const pst_stage_buffers b[] = {{2, 1, 2, 2, 0}, {1, 1, 0, 0, 2}};
  refuse_full(2, "0RECV_B0 0RECV_B1 0F0 0SEND_F0 0F1 0SEND_F1 0B0 0B1 REDUCE UPDATE",
              "1RECV_F0 1RECV_F1 1F0 1B0 1SEND_B0 1F1 1B1 1SEND_B1 REDUCE UPDATE", NULL, b,
              "worker 1, position 1 (1RECV_F1): the STASH slot of stage 1, microbatch 1 is in use: 2 in "
              "flight, wanted "
              "at most 1");
  const pst_stage_buffers one[] = {{2, 1, 1, 2, 0}, {1, 1, 0, 0, 2}};
  refuse_full(2, "0RECV_B0 0RECV_B1 0F0 0SEND_F0 0F1 0SEND_F1 0B0 0B1 REDUCE UPDATE",
              "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1 REDUCE UPDATE", NULL, one,
              "position 1 (0RECV_B1): the gradient buffer of stage 0");
  const char *texts[] = {"0F0 0F1 0I0 0I1 0W0 0W1", "1F0 1I0 1F1 1I1 1W0 1W1"};
  pst_schedule *s = from_text(2, 1, 2, false, texts);
  const pst_stage_buffers defer[] = {{2, 1, 2, 2, 0}, {2, 2, 0, 0, 2}};
  assert_refused(pst_schedule_check(s, NULL, defer), "worker 0, position 1 (0F1): 2 DEFER slots of stage 0");
  pst_schedule_destroy(s);
}

/* Worker 0 offers its gradient buffer only behind all forwards. Its last F waits until stage 1 takes the
 * third activation; with one outgoing gradient buffer stage 1 cannot, as B1 waits for the gradient of B0 to
 * leave. */
static void test_deadlock_from_small_rings(void **state) {
  const char *late =
      "0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2 0F3 0SEND_F3 0RECV_B0 0B0 0RECV_B1 0B1 0RECV_B2 0B2 "
      "0RECV_B3 0B3 REDUCE UPDATE";
  const char *early =
      "0RECV_B0 0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2 0F3 0SEND_F3 0B0 0RECV_B1 0B1 0RECV_B2 0B2 "
      "0RECV_B3 0B3 REDUCE UPDATE";
  const char *second =
      "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1 1RECV_F2 1F2 1B2 1SEND_B2 1RECV_F3 1F3 1B3 "
      "1SEND_B3 REDUCE UPDATE";
  pst_stage_buffers b[] = {{4, 1, 1, 1, 0}, {1, 1, 0, 0, 1}};
  refuse_full(4, late, second, NULL, b,
              "worker 0, position 6 (0F3): deadlock: waits for its outgoing activation buffer to be emptied "
              "by stage 1, "
              "but worker 1 stands at position 6 (1B1)");
  b[1].out_gradient = 2;
  pass_full(4, late, second, b);
  b[1].out_gradient = 1;
  b[0].out_activation = 2;
  pass_full(4, late, second, b);
  b[0].out_activation = 1;
  pass_full(4, early, second, b);
}

static void test_wrong_placement(void **state) {
  pst_schedule *s = generate("1f1b", 2, 2, 0);
  s->worker_of[1] = 0;
  assert_refused(pst_schedule_check(s, NULL, NULL), "worker 0 has more than 1 stages");
  s->worker_of[1] = 2;
  assert_refused(pst_schedule_check(s, NULL, NULL), "stage 1 stands on worker 2, wanted 0 to 1");
  pst_schedule_destroy(s);
}

static void test_no_backward_in_forward_only(void **state) {
  pst_schedule *s = generate("forward-only", 1, 1, 0);
  append_text(s, 0, "0B0");
  assert_refused(pst_schedule_check(s, NULL, NULL), "position 1 (0B0): a backward, wanted F alone");
  pst_schedule_destroy(s);
}

/* ---- an executor of its own: sets instead of counters, polling instead of a worklist ---- */

enum { MAX_K = 4, MAX_M = 8 };

typedef struct world {
  int done[PST_ACTION_COUNT][MAX_K][MAX_M]; /* how often */
  int64_t last[2][MAX_K];                   /* forward, gradient: the microbatch before, for the order */
} world;

static bool can_run(const world *w, const pst_schedule *s, pst_action a) {
  int k = a.chunk, m = (int)a.microbatch, out = m - 2;
  bool full = s->lowered, first = k == 0, last = k == s->stages - 1;
  if (a.kind == PST_ACTION_F) {
    bool in = first || (full ? w->done[PST_ACTION_SEND_F][k - 1][m] && w->done[PST_ACTION_RECV_F][k][m]
                             : w->done[PST_ACTION_F][k - 1][m]);
    bool ring = !full || last || out < 0 ||
                (w->done[PST_ACTION_SEND_F][k][out] && w->done[PST_ACTION_RECV_F][k + 1][out]);
    return in && ring;
  }
  if (a.kind == PST_ACTION_B) {
    bool in = last || (full ? w->done[PST_ACTION_SEND_B][k + 1][m] && w->done[PST_ACTION_RECV_B][k][m]
                            : w->done[PST_ACTION_B][k + 1][m]);
    bool ring = !full || first || out < 0 ||
                (w->done[PST_ACTION_SEND_B][k][out] && w->done[PST_ACTION_RECV_B][k - 1][out]);
    return in && ring;
  }
  return true;
}

/* Is what `a` does at this point of its own list sound? */
static bool is_sound(world *w, const pst_schedule *s, const pst_stage_buffers *b, pst_action a) {
  int k = a.chunk, m = (int)a.microbatch, held = 0;
  if (a.kind == PST_ACTION_REDUCE || a.kind == PST_ACTION_UPDATE) {
    for (int i = 0; i < s->microbatches; i++) held += w->done[PST_ACTION_B][k][i];
    return held == s->microbatches;
  }
  if (a.kind == PST_ACTION_B) {
    if (!w->done[PST_ACTION_F][k][m] || w->last[1][k] != m - 1) return false;
    w->last[1][k] = m;
  }
  if (a.kind == PST_ACTION_F) {
    if (w->last[0][k] != m - 1) return false;
    w->last[0][k] = m;
  }
  if (a.kind == PST_ACTION_SEND_F && !w->done[PST_ACTION_F][k][m]) return false;
  if (a.kind == PST_ACTION_SEND_B && !w->done[PST_ACTION_B][k][m]) return false;
  int frees = s->training ? PST_ACTION_B : PST_ACTION_F;
  if (a.kind == PST_ACTION_RECV_F || (a.kind == PST_ACTION_F && (!s->lowered || k == 0)))
    return m < b[k].stash || w->done[frees][k][m - b[k].stash];
  if (a.kind == PST_ACTION_RECV_B) return m < b[k].gradient || w->done[frees][k][m - b[k].gradient];
  return true;
}

/* Runs to the end or to a standstill; true when each thing was done exactly once, soundly. */
static bool runs_right(const pst_schedule *s, const pst_stage_buffers *b) {
  static world w;
  size_t at[MAX_K] = {0};
  memset(&w, 0, sizeof w);
  for (int k = 0; k < MAX_K; k++) w.last[0][k] = w.last[1][k] = -1;
  for (bool moved = true; moved;) {
    moved = false;
    for (int r = 0; r < s->workers; r++)
      while (at[r] < s->lists[r].count) {
        pst_action a = s->lists[r].items[at[r]];
        if (a.kind >= PST_ACTION_REDUCE) a.chunk = (uint16_t)r;
        if (!can_run(&w, s, a)) break;
        if (!is_sound(&w, s, b, a)) return false;
        if (++w.done[a.kind][a.chunk][a.microbatch] > 1) return false;
        at[r]++;
        moved = true;
      }
  }
  for (int r = 0; r < s->workers; r++) {
    if (at[r] < s->lists[r].count) return false;
    for (int m = 0; m < s->microbatches; m++) {
      if (!w.done[PST_ACTION_F][r][m] || (s->training && !w.done[PST_ACTION_B][r][m])) return false;
      if (s->lowered && r > 0 && !w.done[PST_ACTION_RECV_F][r][m]) return false;
      if (s->lowered && r + 1 < s->workers && !w.done[PST_ACTION_SEND_F][r][m]) return false;
      if (s->lowered && s->training && r > 0 && !w.done[PST_ACTION_SEND_B][r][m]) return false;
      if (s->lowered && s->training && r + 1 < s->workers && !w.done[PST_ACTION_RECV_B][r][m]) return false;
    }
    if (s->lowered && s->training && (!w.done[PST_ACTION_REDUCE][r][0] || !w.done[PST_ACTION_UPDATE][r][0]))
      return false;
  }
  return true;
}

static uint64_t next_random(uint64_t *state) {
  *state += 0x9e3779b97f4a7c15u;
  uint64_t z = *state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/* Drops, doubles or swaps actions of one list. */
static void mutate(pst_schedule *s, uint64_t *random) {
  int worker = (int)(next_random(random) % (uint64_t)s->workers);
  pst_action_list *list = &s->lists[worker];
  size_t i = next_random(random) % list->count, j = next_random(random) % list->count;
  pst_action a = list->items[i];
  switch (next_random(random) % 4) {
  case 0: /* drop */
    memmove(&list->items[i], &list->items[i + 1], (list->count - i - 1) * sizeof a);
    list->count--;
    break;
  case 1: /* double, at another place */
    assert_ok(pst_schedule_append(s, worker, PST_ACTION_F, 0, 0));
    memmove(&list->items[j + 1], &list->items[j], (list->count - j - 1) * sizeof a);
    list->items[j] = a;
    break;
  case 2: /* swap any two */
    list->items[i] = list->items[j];
    list->items[j] = a;
    break;
  default: /* swap neighbours: most often harmless */
    j = i + 1 < list->count ? i + 1 : i;
    list->items[i] = list->items[j];
    list->items[j] = a;
    break;
  }
}

static void mutate_family(const char *name, bool full_form, uint64_t seed) {
  uint64_t random = seed;
  int refused = 0, harmless = 0, held_back = 0;
  for (int i = 0; i < 1000; i++) {
    int k = 1 + (int)(next_random(&random) % MAX_K);
    int64_t m = 1 + (int64_t)(next_random(&random) % MAX_M);
    pst_schedule *s = generate(name, k, m, 0);
    pst_stage_buffers b[MAX_K];
    assert_ok(pst_schedule_buffers(s, NULL, b));
    if (full_form) {
      pst_schedule *full = NULL;
      assert_ok(pst_schedule_lower(s, NULL, b, &full));
      pst_schedule_destroy(s);
      s = full;
    }
    assert_true(runs_right(s, b));
    mutate(s, &random);
    bool right = runs_right(s, b);
    pst_status st = pst_schedule_check(s, NULL, b);
    if (st == PST_OK && !right)
      fail_msg("seed %llu, mutation %d of %s was let through", (unsigned long long)seed, i, name);
    if (st == PST_OK) {
      pst_simulate_options o;
      pst_simulation *r = NULL;
      pst_simulate_options_init(&o);
      o.buffers = b;
      assert_ok(pst_schedule_simulate(s, &o, &r));
      assert_close(r->workers[0].busy_s, (double)m * (s->training ? 3 : 1), "busy");
      pst_simulation_destroy(r);
      harmless++;
    } else {
      assert_int_equal(st, PST_INVALID);
      refused++;
      /* refused though it would run: only where the order of sends or receives of one boundary is broken */
      held_back += right;
    }
    pst_schedule_destroy(s);
  }
  print_message("%s, %s form, seed %llu: %d refused (%d of them for order alone), %d harmless\n", name,
                full_form ? "full" : "normal", (unsigned long long)seed, refused, held_back, harmless);
  assert_true(refused > 300 && harmless > 10);
  if (!full_form) assert_int_equal(held_back, 0);
}

static void test_random_mutations(void **state) {
  static const char *const names[] = {"gpipe", "1f1b", "forward-only"};
  for (int i = 0; i < 3; i++)
    for (int full = 0; full < 2; full++) mutate_family(names[i], full != 0, 20261130u + (uint64_t)i);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_named_faults),     cmocka_unit_test(test_faults_of_full_lists),
      cmocka_unit_test(test_slots_in_use),     cmocka_unit_test(test_deadlock_from_small_rings),
      cmocka_unit_test(test_wrong_placement),  cmocka_unit_test(test_no_backward_in_forward_only),
      cmocka_unit_test(test_random_mutations),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
