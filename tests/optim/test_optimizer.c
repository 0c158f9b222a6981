/* Learning rates, clipping, and the optimizers' arithmetic through a whole pipeline against plain C in
 * double. */
#include "core/optim/optimizer.h"

#include "tests/engine/toy.h"
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 3 };

/* ---- the learning rate ---- */

static void close_to(double seen, double wanted) {
  if (!(fabs(seen - wanted) <= 1e-12 * (1 + fabs(wanted)))) fail_msg("%.17g, wanted %.17g", seen, wanted);
}

static void learning_rates_at_their_edges(void **state) {
  (void)state;
  pst_learning_rate lr = {.peak = 1.0, .final = 0.1, .warmup = 4, .steps = 14, .decay = PST_DECAY_COSINE};
  close_to(pst_learning_rate_at(&lr, 0), 0.2);
  close_to(pst_learning_rate_at(&lr, 3), 0.8);
  close_to(pst_learning_rate_at(&lr, 4), 1.0);
  close_to(pst_learning_rate_at(&lr, 9), 0.55); /* half way */
  assert_true(pst_learning_rate_at(&lr, 13) > 0.1);
  close_to(pst_learning_rate_at(&lr, 14), 0.1);
  close_to(pst_learning_rate_at(&lr, 1000000), 0.1);
  for (int s = 4; s < 14; s++) assert_true(pst_learning_rate_at(&lr, s) > pst_learning_rate_at(&lr, s + 1));
  lr.decay = PST_DECAY_LINEAR;
  close_to(pst_learning_rate_at(&lr, 4), 1.0);
  close_to(pst_learning_rate_at(&lr, 5), 0.91);
  close_to(pst_learning_rate_at(&lr, 9), 0.55);
  close_to(pst_learning_rate_at(&lr, 13), 0.19);
  close_to(pst_learning_rate_at(&lr, 14), 0.1);
  lr.decay = PST_DECAY_CONSTANT;
  close_to(pst_learning_rate_at(&lr, 0), 0.2);
  close_to(pst_learning_rate_at(&lr, 4), 1.0);
  close_to(pst_learning_rate_at(&lr, 500), 1.0);
  lr = (pst_learning_rate){.peak = 2, .final = 0.5, .steps = 1, .decay = PST_DECAY_COSINE};
  close_to(pst_learning_rate_at(&lr, 0), 2);
  close_to(pst_learning_rate_at(&lr, 1), 0.5);
  lr.warmup = 10; /* all warm-up: what is left is final, never a division by nothing */
  lr.steps = 10;
  close_to(pst_learning_rate_at(&lr, 9), 2.0 * 10 / 11);
  close_to(pst_learning_rate_at(&lr, 10), 0.5);
}

static void clip_factors(void **state) {
  (void)state;
  assert_true(pst_clip_factor(0.5, 1) == 1.0f);
  assert_true(pst_clip_factor(1.0, 1) == 1.0f);
  assert_true(pst_clip_factor(4.0, 1) == 0.25f);
  assert_true(pst_clip_factor(1e30, 0) == 1.0f);
  assert_true(pst_clip_factor(0, 1) == 1.0f);
  assert_true(pst_clip_factor(10, 0.05f) == (float)((double)0.05f / 10));
}

static void control_numbers(void **state) {
  (void)state;
  pst_optimizer_options o;
  pst_optimizer_options_init(&o);
  pst_ctrl c = {.seed = 5, .step = 7, .gradient_scale = 3};
  pst_optimizer_ctrl(&o, 0, 0.25, 0.5f, &c);
  assert_true(c.lr == 0.25f && c.clip == 0.5f);
  assert_true(fabsf(c.bias1 - 10.0f) < 1e-5f && fabsf(c.bias2 - 20.0f) < 1e-4f);
  pst_optimizer_ctrl(&o, 100000, 0.25, 0.5f, &c);
  assert_true(c.bias1 == 1.0f && c.bias2 == 1.0f);
  assert_true(c.seed == 5 && c.step == 7 && c.gradient_scale == 3);
}

/* ---- updates ---- */

/* p, m, v of one tensor in double. */
typedef struct tensor {
  int64_t n;
  bool matrix;
  double *p, *m, *v;
} tensor;

static float *read(toy *t, pst_tensor_kind kind, int32_t param, int moment, int64_t n) {
  float *x = malloc((size_t)n * sizeof *x);
  assert_ok(pst_pipeline_read(t->pipeline, kind, param, moment, 0, x, n * 4));
  return x;
}

static void advance(const pst_optimizer_options *o, tensor *x, const float *gradient, double clip, double lr,
                    int step) {
  double decay = x->matrix ? (double)o->weight_decay : 0, b1 = (double)o->beta1, b2 = (double)o->beta2;
  for (int64_t i = 0; i < x->n; i++) {
    double g = (double)gradient[i] * clip;
    if (o->kind == PST_SGD) {
      double d = g + decay * x->p[i];
      x->v[i] = (double)o->momentum * x->v[i] + d;
      x->p[i] -= lr * x->v[i];
      continue;
    }
    x->m[i] = b1 * x->m[i] + (1 - b1) * g;
    x->v[i] = b2 * x->v[i] + (1 - b2) * g * g;
    double m = x->m[i] / (1 - pow(b1, step + 1)), v = x->v[i] / (1 - pow(b2, step + 1));
    x->p[i] -= lr * decay * x->p[i] + lr * m / (sqrt(v) + (double)o->eps);
  }
}

static void assert_near(const float *seen, const double *wanted, int64_t n, const char *name,
                        const char *what) {
  double difference = 0, size = 0;
  for (int64_t i = 0; i < n; i++) {
    difference += ((double)seen[i] - wanted[i]) * ((double)seen[i] - wanted[i]);
    size += wanted[i] * wanted[i];
  }
  if (!(sqrt(difference) <= 1e-6 * sqrt(size) + 1e-12))
    fail_msg("%s of %s: apart by %g of %g", what, name, sqrt(difference), sqrt(size));
}

/* Takes the gradients as the pipeline formed them, and follows what the update makes of them. */
static void follow(toy_options o) {
  toy *t = toy_create(&o);
  int32_t n = t->train->params.n;
  tensor *x = calloc((size_t)n, sizeof *x);
  for (int32_t i = 0; i < n; i++) {
    const pst_value_info *v = &t->train->values.at[t->train->params.at[i].value];
    x[i].n = v->dim[0] * v->dim[1] * v->dim[2] * v->dim[3];
    x[i].matrix = v->rank >= 2;
    x[i].p = calloc((size_t)x[i].n, sizeof(double));
    x[i].m = calloc((size_t)x[i].n, sizeof(double));
    x[i].v = calloc((size_t)x[i].n, sizeof(double));
    float *w = read(t, PST_TENSOR_PARAM, i, 0, x[i].n);
    for (int64_t j = 0; j < x[i].n; j++) x[i].p[j] = (double)w[j];
    free(w);
  }
  for (int s = 0; s < STEPS; s++) {
    pst_batch batch;
    pst_step_result result;
    toy_batch(t, s, &batch);
    assert_ok(pst_pipeline_gradients(t->pipeline, &batch, o.seed, s, &result));
    double square = 0, norm;
    float **gradients = calloc((size_t)n, sizeof *gradients);
    for (int32_t i = 0; i < n; i++) {
      gradients[i] = read(t, PST_TENSOR_GRADIENT, i, 0, x[i].n);
      for (int64_t j = 0; j < x[i].n; j++) square += (double)gradients[i][j] * (double)gradients[i][j];
    }
    assert_ok(pst_pipeline_apply(t->pipeline, s, o.lr, &norm));
    if (!(fabs(norm - sqrt(square)) <= 1e-10 * norm))
      fail_msg("norm %.12g, the parameters' gradients have %.12g: each counts once", norm, sqrt(square));
    double clip =
        o.optimizer.clip > 0 && norm > (double)o.optimizer.clip ? (double)o.optimizer.clip / norm : 1;
    for (int32_t i = 0; i < n; i++) {
      advance(&o.optimizer, &x[i], gradients[i], clip, o.lr, s);
      const char *name = t->train->params.at[i].name;
      float *w = read(t, PST_TENSOR_PARAM, i, 0, x[i].n);
      assert_near(w, x[i].p, x[i].n, name, "value");
      for (int64_t j = 0; j < x[i].n; j++) x[i].p[j] = (double)w[j]; /* errors do not add up */
      free(w);
      if (o.optimizer.kind == PST_ADAMW) {
        float *m = read(t, PST_TENSOR_MOMENT, i, 0, x[i].n), *v = read(t, PST_TENSOR_MOMENT, i, 1, x[i].n);
        assert_near(m, x[i].m, x[i].n, name, "m");
        assert_near(v, x[i].v, x[i].n, name, "v");
        free(m);
        free(v);
      } else if (o.optimizer.momentum != 0) {
        float *v = read(t, PST_TENSOR_MOMENT, i, 0, x[i].n);
        assert_near(v, x[i].v, x[i].n, name, "velocity");
        free(v);
      }
      float *cleared = read(t, PST_TENSOR_GRADIENT, i, 0, x[i].n);
      for (int64_t j = 0; j < x[i].n; j++) assert_true(cleared[j] == 0);
      free(cleared);
      free(gradients[i]);
    }
    free(gradients);
  }
  for (int32_t i = 0; i < n; i++) {
    free(x[i].p);
    free(x[i].m);
    free(x[i].v);
  }
  free(x);
  toy_destroy(t);
}

static void adamw_steps(void **state) {
  (void)state;
  for (int k = 1; k <= 3; k++) {
    toy_options o = toy_gpt2(); /* tied over the first and the last stage */
    o.n_stages = k;
    o.optimizer.clip = k == 2 ? 0 : 0.05f;
    o.optimizer.eps = 1e-6f;
    follow(o);
  }
}

static void sgd_steps(void **state) {
  (void)state;
  for (int k = 1; k <= 3; k++) {
    toy_options o = k == 1 ? toy_llama() : toy_gpt2();
    o.n_stages = k;
    o.optimizer.kind = PST_SGD;
    o.optimizer.momentum = k == 3 ? 0 : 0.9f;
    o.optimizer.clip = k == 2 ? 0 : 0.5f;
    follow(o);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(learning_rates_at_their_edges),
      cmocka_unit_test(clip_factors),
      cmocka_unit_test(control_numbers),
      cmocka_unit_test(adamw_steps),
      cmocka_unit_test(sgd_steps),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
