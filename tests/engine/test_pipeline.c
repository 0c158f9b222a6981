/* The numbers contract: the same bits for every cut, schedule, number of threads and form of backward. */
#include "tests/engine/toy.h"
#include "tests/support.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STEPS = 20 };

static int n_steps; /* STEPS, or fewer where tests are to be quick */

typedef struct record {
  double loss[STEPS], norm[STEPS];
  uint64_t weights;
} record;

static record train(const toy_options *o, int steps) {
  record r = {0};
  toy *t = toy_create(o);
  for (int s = 0; s < steps; s++) {
    pst_step_result result;
    assert_ok(toy_step(t, s, &result));
    r.loss[s] = result.loss;
    r.norm[s] = result.gradient_norm;
  }
  r.weights = toy_weights_hash(t);
  toy_destroy(t);
  return r;
}

static void assert_same(const record *a, const record *b, const char *what) {
  for (int s = 0; s < n_steps; s++)
    if (memcmp(&a->loss[s], &b->loss[s], 8) != 0 || memcmp(&a->norm[s], &b->norm[s], 8) != 0)
      fail_msg("%s: step %d: loss %.17g and %.17g, norm %.17g and %.17g", what, s, a->loss[s], b->loss[s],
               a->norm[s], b->norm[s]);
  if (a->weights != b->weights) fail_msg("%s: the weights differ", what);
}

static void same_bits(toy_options base, const char *model) {
  record oracle = train(&base, n_steps);
  print_message("%s: loss %.6f to %.6f, norm %.4f, weights %016llx\n", model, oracle.loss[0],
                oracle.loss[n_steps - 1], oracle.norm[0], (unsigned long long)oracle.weights);
  assert_true(test_quick() || oracle.loss[n_steps - 1] < oracle.loss[0]);
  assert_true(oracle.norm[0] > base.optimizer.clip);
  static const char *const schedules[] = {"gpipe", "1f1b"};
  static const pst_backward forms[] = {PST_BACKWARD_AUTO, PST_BACKWARD_EACH_FUSED, PST_BACKWARD_EACH_EARLY,
                                       PST_BACKWARD_EACH_SPLIT};
  static const int32_t uneven3[] = {0, 1, 3, 0};
  int n_units = 0;
  for (int k = 1; k <= 4; k++) {
    for (int s = 0; s < 2; s++) {
      for (int f = 0; f < 4; f++) {
        if (test_quick() && (k + s + f) % 2) continue;
        toy_options o = base;
        o.n_stages = k;
        o.schedule = schedules[s];
        o.backward = forms[f];
        o.threads = 1 + (k + s + f) % 3;
        char what[96];
        snprintf(what, sizeof what, "%s K=%d %s form %d, %d threads", model, k, o.schedule, f, o.threads);
        record r = train(&o, n_steps);
        assert_same(&oracle, &r, what);
      }
    }
  }
  toy *t = toy_create(&base);
  n_units = t->train->units.n;
  toy_destroy(t);
  int32_t cut[4];
  memcpy(cut, uneven3, sizeof cut);
  cut[3] = n_units;
  toy_options o = base;
  o.n_stages = 3;
  o.cut = cut;
  record r = train(&o, n_steps);
  assert_same(&oracle, &r, "uneven split 1, 2, rest");
  cut[1] = n_units - 2;
  cut[2] = n_units - 1;
  r = train(&o, n_steps);
  assert_same(&oracle, &r, "uneven split rest, 1, head alone");
}

static void gpt2_has_the_same_bits_everywhere(void **state) {
  (void)state;
  same_bits(toy_gpt2(), "gpt2");
}

static void llama_has_the_same_bits_everywhere(void **state) {
  (void)state;
  same_bits(toy_llama(), "llama");
}

/* Another grouping of the same 16 sequences agrees to 1e-6 in loss, norm and all weights as one vector. */
static void grouping(toy_options base, double tolerance, bool per_tensor) {
  static const int64_t group[3][2] = {{1, 16}, {2, 8}, {4, 4}};
  float *first = NULL;
  record oracle = {0};
  for (int i = 0; i < 3; i++) {
    base.batch = group[i][0];
    base.microbatches = group[i][1];
    toy *t = toy_create(&base);
    record r = {0};
    for (int s = 0; s < 10; s++) {
      pst_step_result result;
      assert_ok(toy_step(t, s, &result));
      r.loss[s] = result.loss;
      r.norm[s] = result.gradient_norm;
    }
    int64_t n;
    float *w = toy_weights(t, &n);
    if (!first) {
      first = w;
      oracle = r;
      toy_destroy(t);
      continue;
    }
    for (int s = 0; s < 10; s++) {
      assert_true(fabs(r.loss[s] - oracle.loss[s]) <= tolerance * fabs(oracle.loss[s]));
      assert_true(fabs(r.norm[s] - oracle.norm[s]) <= tolerance * fabs(oracle.norm[s]));
    }
    int64_t at = 0;
    double all = 0, all_size = 0;
    for (int32_t p = 0; p < t->train->params.n; p++) {
      const pst_value_info *v = &t->train->values.at[t->train->params.at[p].value];
      int64_t some = v->dim[0] * v->dim[1] * v->dim[2] * v->dim[3];
      double difference = 0, size = 0;
      for (int64_t j = at; j < at + some; j++) {
        difference += ((double)w[j] - (double)first[j]) * ((double)w[j] - (double)first[j]);
        size += (double)first[j] * (double)first[j];
      }
      if (per_tensor && sqrt(difference) > tolerance * sqrt(size) + 1e-9)
        fail_msg("%lld x %lld, %s: %g of %g", (long long)group[i][0], (long long)group[i][1],
                 t->train->params.at[p].name, sqrt(difference), sqrt(size));
      all += difference;
      all_size += size;
      at += some;
    }
    print_message("%lld x %lld: weights differ by %.2e relative\n", (long long)group[i][0],
                  (long long)group[i][1], sqrt(all / all_size));
    assert_true(sqrt(all) <= tolerance * sqrt(all_size));
    free(w);
    toy_destroy(t);
  }
  free(first);
}

static void another_grouping_agrees(void **state) {
  (void)state;
  grouping(toy_gpt2(), 1e-6, false);
  grouping(toy_llama(), 1e-6, false);
}

static void another_grouping_agrees_per_tensor_with_sgd(void **state) {
  (void)state;
  toy_options o = toy_gpt2();
  o.optimizer.kind = PST_SGD;
  o.optimizer.momentum = 0.9f;
  o.optimizer.clip = 1.0f;
  grouping(o, 1e-6, true);
}

/* Fewer microbatches than stages, one, and as many. */
static void any_number_of_microbatches(void **state) {
  (void)state;
  static const char *const schedules[] = {"gpipe", "1f1b"};
  for (int64_t m = 1; m <= 5; m++) {
    toy_options o = toy_gpt2();
    o.microbatches = m;
    record oracle = train(&o, 3);
    for (int k = 2; k <= 5; k++)
      for (int s = 0; s < 2; s++) {
        o.n_stages = k;
        o.schedule = schedules[s];
        record r = train(&o, 3);
        assert_same(&oracle, &r, o.schedule);
      }
    o.n_stages = 1;
  }
}

/* Families whose workers hold several stages, or whose weight gradients come late. */
static void every_family(toy_options base, const char *model) {
  static const struct {
    const char *name;
    int workers, chunks;
  } all[] = {{"zb-h1", 3, 1},       {"zb-h2", 2, 1},       {"zb-h2", 4, 1},          {"interleaved", 2, 2},
             {"interleaved", 2, 3}, {"interleaved", 1, 3}, {"interleaved-zb", 2, 2}, {"zb-v", 1, 2},
             {"zb-v", 2, 2},        {"zb-v", 3, 2},        {"v-half", 2, 2},         {"v-min", 2, 2},
             {"v-min", 3, 2},       {"looped-bfs", 2, 2},  {"dualpipe-v", 2, 2},     {"1f1b", 3, 1},
             {"interleaved", 3, 2}};
  if (test_quick()) base.config.layers = 3;
  base.microbatches = 6; /* as many as any of them wants */
  record oracle = train(&base, n_steps);
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    toy_options o = base;
    o.schedule = all[i].name;
    o.n_stages = all[i].workers * all[i].chunks;
    o.chunks = all[i].chunks;
    o.extra_forwards = strcmp(o.schedule, "1f1b") == 0 ? 2 : 0;
    o.evaluates = all[i].workers == 2;
    char what[96];
    snprintf(what, sizeof what, "%s %s, %d workers x %d stages", model, o.schedule, all[i].workers,
             all[i].chunks);
    record r = train(&o, n_steps);
    assert_same(&oracle, &r, what);
  }
}

static void every_family_has_the_same_bits(void **state) {
  (void)state;
  every_family(toy_gpt2(), "gpt2");
  every_family(toy_llama(), "llama");
}

/* Gradients that are never applied are no part of what comes after. */
static void gradients_left_behind_are_cleared(void **state) {
  (void)state;
  toy_options o = toy_gpt2();
  o.n_stages = 3;
  toy *plain = toy_create(&o), *left = toy_create(&o);
  pst_step_result a, b;
  assert_ok(toy_step(plain, 0, &a));
  pst_batch batch;
  toy_batch(left, 5, &batch);
  for (int i = 0; i < 2; i++)
    assert_ok(pst_pipeline_gradients(left->pipeline, &batch, left->options.seed, 5, &b));
  assert_ok(toy_step(left, 0, &b));
  assert_memory_equal(&a.gradient_norm, &b.gradient_norm, sizeof a.gradient_norm);
  assert_true(toy_weights_hash(plain) == toy_weights_hash(left));
  assert_ok(toy_step(plain, 1, &a));
  assert_ok(toy_step(left, 1, &b));
  assert_true(toy_weights_hash(plain) == toy_weights_hash(left));
  toy_destroy(plain);
  toy_destroy(left);
}

/* The last of three workers begins its first forward only when the middle one is about to begin its fourth.
 */
static pst_status hold_the_last(void *user, int worker, int64_t step, pst_action a) {
  _Atomic int *ahead = user;
  (void)step;
  if (a.kind != PST_ACTION_F) return PST_OK;
  if (worker == 1 && a.microbatch == 3) atomic_store(ahead, 1);
  if (worker != 2 || a.microbatch != 0) return PST_OK;
  for (int ms = 0; ms < 5000; ms++) {
    if (atomic_load(ahead)) return PST_OK;
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
  return pst_fail(PST_HUNG, "the middle worker does not get ahead");
}

/* Two slots and two outgoing buffers: three microbatches may be on their way when the fourth begins. What is
 * waited for is what the plan has, no more. */
static void a_forward_waits_for_its_buffers_alone(void **state) {
  (void)state;
  _Atomic int ahead = 0;
  toy_options o = toy_gpt2();
  o.n_stages = 3;
  o.microbatches = 6;
  o.evaluates = true;
  o.hook = hold_the_last;
  o.hook_user = &ahead;
  toy *t = toy_create(&o);
  pst_batch batch;
  toy_batch(t, 0, &batch);
  double sum;
  int64_t tokens;
  assert_ok(pst_pipeline_loss(t->pipeline, &batch, &sum, &tokens, NULL));
  toy_destroy(t);
}

/* The products by OpenBLAS in their place: other bits, but the same ones everywhere. */
static void openblas_has_the_same_bits_everywhere(void **state) {
  (void)state;
  toy_options o = toy_gpt2();
  o.gemm = "openblas";
  toy *t = NULL;
  if (toy_try_create(&o, &t) == PST_UNSUPPORTED) {
    print_message("skipped: %s\n", pst_error());
    skip();
  }
  toy_destroy(t);
  record oracle = train(&o, n_steps);
  for (int k = 1; k <= 3; k++) {
    o.n_stages = k;
    o.threads = 4 - k;
    record r = train(&o, n_steps);
    assert_same(&oracle, &r, "openblas");
  }
}

int main(void) {
  n_steps = test_quick() ? 3 : STEPS;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gpt2_has_the_same_bits_everywhere),
      cmocka_unit_test(llama_has_the_same_bits_everywhere),
      cmocka_unit_test(every_family_has_the_same_bits),
      cmocka_unit_test(openblas_has_the_same_bits_everywhere),
      cmocka_unit_test(another_grouping_agrees),
      cmocka_unit_test(another_grouping_agrees_per_tensor_with_sgd),
      cmocka_unit_test(any_number_of_microbatches),
      cmocka_unit_test(a_forward_waits_for_its_buffers_alone),
      cmocka_unit_test(gradients_left_behind_are_cleared),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
