/* The search of `auto` against the families and against the optimum that trying all orders finds. */
#include "tests/schedule/fixture.h"

enum { MAX_STAGES = 16, MAX_WORKERS = 8 };

typedef struct instance {
  pst_schedule_options options;
  double forward[MAX_STAGES], input[MAX_STAGES], weight[MAX_STAGES];
  double stash[MAX_STAGES], defer[MAX_STAGES], memory[MAX_WORKERS];
} instance;

static uint64_t next_random(uint64_t *state, uint64_t below) {
  *state += 0x9e3779b97f4a7c15u;
  uint64_t z = *state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return (z ^ (z >> 31)) % below;
}

static double seconds_of(const instance *in, const pst_schedule *s) {
  pst_simulate_options o;
  pst_simulation *r = NULL;
  pst_simulate_options_init(&o);
  o.forward_s = in->forward, o.input_s = in->input, o.weight_s = in->weight;
  o.latency_s = in->options.latency_s;
  o.early_send = !in->options.no_early_send;
  assert_ok(pst_schedule_simulate(s, &o, &r));
  double seconds = r->makespan_s;
  pst_simulation_destroy(r);
  return seconds;
}

/* Bytes over the limit of the worst worker, with the slots that the memory plan gets. */
static double bytes_over(const instance *in, const pst_schedule *s) {
  pst_stage_buffers b[MAX_STAGES];
  double used[MAX_WORKERS] = {0}, over = -INFINITY;
  assert_ok(pst_schedule_buffers(s, NULL, b));
  for (int i = 0; i < s->stages; i++)
    used[s->worker_of[i]] += b[i].stash * in->stash[i] + b[i].defer * in->defer[i];
  for (int w = 0; w < s->workers; w++) over = fmax(over, used[w] - in->memory[w]);
  return over;
}

static void fill_instance(instance *in, int workers, int chunks, int64_t microbatches, uint64_t *random) {
  pst_schedule_options *o = &in->options;
  pst_schedule_options_init(o);
  o->name = "auto";
  o->workers = workers, o->chunks = chunks, o->microbatches = microbatches;
  o->latency_s = 0.25 * (double)next_random(random, 3);
  o->no_early_send = next_random(random, 2) != 0;
  o->forward_s = in->forward, o->input_s = in->input, o->weight_s = in->weight;
  o->stash_bytes = in->stash, o->defer_bytes = in->defer, o->memory_bytes = in->memory;
  for (int s = 0; s < workers * chunks; s++) {
    in->forward[s] = 1 + 0.25 * (double)next_random(random, 9);
    in->input[s] = 1 + 0.25 * (double)next_random(random, 9);
    in->weight[s] = 0.5 + 0.25 * (double)next_random(random, 9);
    in->stash[s] = 1 + (double)next_random(random, 3);
    in->defer[s] = 1 + (double)next_random(random, 3);
  }
  for (int w = 0; w < workers; w++)
    in->memory[w] =
        (double)(chunks * (workers + 1 + (int)next_random(random, 2 * (uint64_t)workers + 2))) * 4;
}

/* The quickest family with as many chunks that fits; infinite when none does. */
static double best_family(const instance *in, const char **out_name) {
  size_t n = 0;
  const pst_schedule_family *rows = pst_schedule_families(&n);
  double best = INFINITY;
  for (size_t i = 0; i < n; i++) {
    pst_schedule_options o = in->options;
    pst_schedule *s = NULL;
    o.name = rows[i].name;
    if (strcmp(o.name, "auto") == 0 || strcmp(o.name, "forward-only") == 0) continue;
    if (rows[i].chunks > 0 && rows[i].chunks != o.chunks) continue;
    if (pst_schedule_generate(&o, &s) != PST_OK) continue;
    double seconds = bytes_over(in, s) <= 0 ? seconds_of(in, s) : INFINITY;
    if (seconds < best) best = seconds, *out_name = o.name;
    pst_schedule_destroy(s);
  }
  return best;
}

static void check_lists(const pst_schedule *s) {
  pst_schedule *full = NULL;
  assert_ok(pst_schedule_check(s, NULL, NULL));
  assert_ok(pst_schedule_lower(s, NULL, NULL, &full));
  assert_ok(pst_schedule_check(full, NULL, NULL));
  pst_schedule_destroy(full);
}

static void test_never_slower_than_families(void **state) {
  uint64_t seed = 20261130, random = seed;
  int quicker = 0, only = 0, nothing = 0;
  double gain = 0;
  print_message("seed %llu\n", (unsigned long long)seed);
  for (int i = 0; i < 200; i++) {
    instance in;
    int k = 2 + (int)next_random(&random, 7);
    fill_instance(&in, k, 1 + (int)next_random(&random, 2), 1 + (int64_t)next_random(&random, 10), &random);
    const char *name = "";
    double best = best_family(&in, &name);
    pst_schedule *s = NULL;
    pst_status st = pst_schedule_generate(&in.options, &s);
    if (st == PST_INVALID && isinf(best)) {
      nothing++;
      continue;
    }
    assert_ok(st);
    check_lists(s);
    assert_true(bytes_over(&in, s) <= 0);
    double seconds = seconds_of(&in, s);
    if (seconds > best * (1 + 1e-6)) fail_msg("instance %d: %g, but %s takes %g", i, seconds, name, best);
    quicker += isfinite(best) && seconds < best * (1 - 1e-9);
    only += isinf(best);
    if (isfinite(best)) gain += 1 - seconds / best;
    pst_schedule_destroy(s);
  }
  print_message("quicker than every family on %d of 200, %.1f %% on average; alone in fitting on %d; none "
                "fits on %d\n",
                quicker, 100 * gain / 200, only, nothing);
  assert_true(quicker > 100);
}

/* ---- the optimum of small ones: every order that could matter, cut by a bound ---- */

typedef struct tree {
  const instance *in;
  int k;
  int n;
  int64_t limit;
  double best;
  long nodes;
} tree;

typedef struct node {
  int next[3][3]; /* F, I, W of each stage */
  double end[2][3][4];
  double free_at[3];
} node;

static double tree_ready(const tree *t, const node *x, int s, int kind) {
  int m = x->next[kind][s];
  double c = t->in->options.latency_s;
  if (m == t->n) return INFINITY;
  if (kind == 0) {
    if (x->next[0][s] - x->next[2][s] >= t->limit) return INFINITY;
    if (s == 0) return 0;
    return x->next[0][s - 1] > m ? x->end[0][s - 1][m] + c : INFINITY;
  }
  if (kind == 2) return x->next[1][s] > m ? x->end[1][s][m] : INFINITY;
  if (x->next[0][s] <= m) return INFINITY;
  if (s + 1 == t->k) return x->end[0][s][m];
  return x->next[1][s + 1] > m ? fmax(x->end[0][s][m], x->end[1][s + 1][m] + c) : INFINITY;
}

static void tree_search(tree *t, const node *x) {
  const double *times[] = {t->in->forward, t->in->input, t->in->weight};
  double bound = 0, made = 0, soonest = INFINITY;
  int worker = -1;
  bool all = true;
  t->nodes++;
  for (int s = 0; s < t->k; s++) {
    double left = 0;
    for (int kind = 0; kind < 3; kind++) {
      left += (t->n - x->next[kind][s]) * times[kind][s];
      if (x->next[kind][s] < t->n) all = false;
      double ready = tree_ready(t, x, s, kind), end = fmax(ready, x->free_at[s]) + times[kind][s];
      if (end < soonest) soonest = end, worker = s;
    }
    bound = fmax(bound, x->free_at[s] + left);
    made = fmax(made, x->free_at[s]);
  }
  if (bound >= t->best - 1e-9) return;
  if (all) {
    t->best = made;
    return;
  }
  if (worker < 0) return;
  for (int kind = 2; kind >= 0; kind--) {
    double start = fmax(tree_ready(t, x, worker, kind), x->free_at[worker]);
    if (!isfinite(start)) continue;
    if (start >= soonest && t->limit >= t->n) continue; /* active schedules hold an optimum without memory */
    node y = *x;
    int m = y.next[kind][worker]++;
    y.free_at[worker] = start + times[kind][worker];
    if (kind < 2) y.end[kind][worker][m] = y.free_at[worker];
    tree_search(t, &y);
  }
}

/* Stages that take the same time in all, but not for the same part of it: no family has an order for them. */
static void test_uneven_example(void **state) {
  instance in;
  uint64_t random = 1;
  fill_instance(&in, 4, 1, 8, &random);
  static const double forward[] = {2, 1, 2, 1}, input[] = {1, 2, 1, 2}, weight[] = {1, 1, 2, 1};
  for (int s = 0; s < 4; s++)
    in.forward[s] = forward[s], in.input[s] = input[s], in.weight[s] = weight[s], in.memory[s] = 4;
  in.options.latency_s = 0;
  in.options.stash_bytes = in.options.defer_bytes = NULL;
  for (int s = 0; s < 4; s++) in.stash[s] = 0, in.defer[s] = 1;
  const char *name = "";
  double best = best_family(&in, &name);
  pst_schedule *s = NULL;
  assert_ok(pst_schedule_generate(&in.options, &s));
  double seconds = seconds_of(&in, s);
  print_message("stages with unlike parts, four in flight: auto %g, %s %g\n", seconds, name, best);
  assert_true(seconds < best - 0.5);
  pst_schedule_destroy(s);
}

static void test_near_the_optimum(void **state) {
  uint64_t seed = 77, random = seed;
  double worst = 0;
  int optimal = 0, count = 0;
  long nodes = 0;
  print_message("seed %llu\n", (unsigned long long)seed);
  for (int i = 0; i < 40; i++) {
    instance in;
    int k = 2 + (int)next_random(&random, 2);
    int64_t m = 2 + (int64_t)next_random(&random, 3);
    fill_instance(&in, k, 1, m, &random);
    in.options.no_early_send = false;
    in.options.stash_bytes = in.options.defer_bytes = NULL;
    int64_t limit = 1 + (int64_t)next_random(&random, (uint64_t)m);
    for (int w = 0; w < k; w++) in.memory[w] = (double)limit;
    pst_schedule *s = NULL;
    assert_ok(pst_schedule_generate(&in.options, &s));
    double seconds = seconds_of(&in, s);
    tree t = {.in = &in, .k = k, .n = (int)m, .limit = limit, .best = seconds + 1e-6};
    node root = {0};
    tree_search(&t, &root);
    nodes += t.nodes;
    double over = seconds / t.best - 1;
    if (over > worst) worst = over;
    optimal += over < 1e-6;
    count++;
    if (over > 0.02) fail_msg("instance %d: %g, but %g can be had", i, seconds, t.best);
    pst_schedule_destroy(s);
  }
  print_message("%d of %d optimal, worst %.2f %% above; %ld nodes\n", optimal, count, 100 * worst, nodes);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_never_slower_than_families),
      cmocka_unit_test(test_near_the_optimum),
      cmocka_unit_test(test_uneven_example),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
