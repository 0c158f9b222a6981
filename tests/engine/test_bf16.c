/* A whole model in bf16: it learns like fp32, has the same bits for every layout, and its fp32 master weights
 * are the ones that are rounded. */
#include "tests/engine/toy.h"
#include "tests/support.h"

#include "core/base/dtype.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 40, SHORT = 4 };

static toy_options bf16(toy_options o) {
  o.dtype = PST_BF16;
  return o;
}

static void learns_like_fp32(void **state) {
  (void)state;
  for (int model = 0; model < 2; model++) {
    toy_options single = model ? toy_llama() : toy_gpt2(), half = bf16(single);
    single.optimizer.clip = half.optimizer.clip = 1;
    single.n_stages = half.n_stages = 2;
    toy *a = toy_create(&single), *b = toy_create(&half);
    double first = 0, last = 0, worst = 0;
    for (int s = 0; s < (test_quick() ? STEPS / 4 : STEPS); s++) {
      pst_step_result x, y;
      assert_ok(toy_step(a, s, &x));
      assert_ok(toy_step(b, s, &y));
      double apart = fabs(x.loss - y.loss) / x.loss;
      if (apart > worst) worst = apart;
      if (s == 0) first = y.loss;
      last = y.loss;
      assert_true(isfinite(y.loss) && isfinite(y.gradient_norm));
    }
    print_message("%s: loss %.4f to %.4f, at most %.2f %% from fp32\n", model ? "llama" : "gpt2", first, last,
                  worst * 100);
    assert_true(last < (test_quick() ? 1.0 : 0.8) * first);
    assert_true(worst < 0.1);
    toy_destroy(a);
    toy_destroy(b);
  }
}

static void the_bits_do_not_depend_on_the_layout(void **state) {
  (void)state;
  for (int model = 0; model < 2; model++) {
    double loss[SHORT] = {0}, norm[SHORT] = {0};
    uint64_t weights = 0;
    for (int i = 0; i < 3 * 2 * 4; i += test_quick() ? 5 : 1) {
      toy_options o = bf16(model ? toy_llama() : toy_gpt2());
      o.n_stages = 1 + i / 8;
      o.schedule = i % 2 ? "1f1b" : "gpipe";
      o.backward = (pst_backward)(i / 2 % 4);
      o.threads = 1 + i % 3;
      toy *t = toy_create(&o);
      for (int s = 0; s < SHORT; s++) {
        pst_step_result result;
        assert_ok(toy_step(t, s, &result));
        if (i == 0) {
          loss[s] = result.loss;
          norm[s] = result.gradient_norm;
        }
        if (memcmp(&loss[s], &result.loss, 8) != 0 || memcmp(&norm[s], &result.gradient_norm, 8) != 0)
          fail_msg("K=%d %s form %d, step %d: loss %.17g, wanted %.17g", o.n_stages, o.schedule,
                   (int)o.backward, s, result.loss, loss[s]);
      }
      if (i == 0) weights = toy_weights_hash(t);
      assert_true(weights == toy_weights_hash(t));
      toy_destroy(t);
    }
  }
}

/* Every parameter is the rounding of its master, before and after steps, at every user of a tied one. */
static void parameters_are_rounded_masters(void **state) {
  (void)state;
  toy_options o = bf16(toy_gpt2());
  o.n_stages = 3;
  for (int kind = 0; kind < 2; kind++) {
    o.optimizer.kind = kind ? PST_SGD : PST_ADAMW;
    o.optimizer.momentum = 0;
    toy *t = toy_create(&o);
    const char *names[PST_MAX_MOMENTS] = {0};
    int n_moments = pst_pipeline_moments(t->pipeline, names);
    assert_int_equal(n_moments, kind ? 1 : 3);
    assert_string_equal(names[n_moments - 1], "master");
    int64_t unlike = 0;
    for (int s = 0; s <= 2; s++) {
      for (int32_t p = 0; p < t->train->params.n; p++) {
        const int64_t *d = t->train->values.at[t->train->params.at[p].value].dim;
        int64_t n = d[0] * d[1];
        uint16_t *w = malloc((size_t)n * sizeof *w);
        float *master = malloc((size_t)n * sizeof *master);
        assert_ok(pst_pipeline_read(t->pipeline, PST_TENSOR_PARAM, p, 0, 0, w, n * 2));
        assert_ok(pst_pipeline_read(t->pipeline, PST_TENSOR_MOMENT, p, n_moments - 1, 0, master, n * 4));
        for (int64_t i = 0; i < n; i++) {
          assert_int_equal(w[i], pst_f32_to_bf16(master[i]));
          unlike += pst_bf16_to_f32(w[i]) != master[i];
        }
        free(w);
        free(master);
      }
      pst_step_result result;
      assert_ok(toy_step(t, s, &result));
    }
    assert_true(unlike > 1000); /* the masters hold more than the rounding */
    toy_destroy(t);
  }
}

/* Logits are fp32 on the host, whatever the model computes in. */
static void logits_are_those_of_fp32(void **state) {
  (void)state;
  for (int model = 0; model < 2; model++) {
    toy_options single = model ? toy_llama() : toy_gpt2();
    single.evaluates = true;
    toy_options half = bf16(single);
    toy *a = toy_create(&single), *b = toy_create(&half);
    int32_t tokens[32], position = 31;
    for (int i = 0; i < 32; i++) tokens[i] = i * 7 % 90;
    pst_batch batch = {.tokens = tokens, .positions = &position, .sequences = 1};
    float x[128] = {0}, y[128] = {0};
    assert_ok(pst_pipeline_logits(a->pipeline, &batch, x));
    assert_ok(pst_pipeline_logits(b->pipeline, &batch, y));
    double apart = 0, size = 0;
    for (int64_t i = 0; i < single.config.vocab; i++) {
      apart += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
      size += (double)x[i] * (double)x[i];
    }
    print_message("%s: %.2f %% apart\n", model ? "llama" : "gpt2", 100 * sqrt(apart / size));
    assert_true(size > 0 && apart < 0.03 * 0.03 * size);
    toy_destroy(a);
    toy_destroy(b);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(learns_like_fp32),
      cmocka_unit_test(the_bits_do_not_depend_on_the_layout),
      cmocka_unit_test(parameters_are_rounded_masters),
      cmocka_unit_test(logits_are_those_of_fp32),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
