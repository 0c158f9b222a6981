/* Against an independent implementation: the toys that make_goldens.py trained in double precision. Gradients
 * of step 0, ten steps of AdamW and SGD, and the weights after them. */
#include "core/checkpoint/config.h"
#include "core/checkpoint/safetensors.h"
#include "tests/engine/toy.h"
#include "tests/support.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEQUENCES = 4, STEPS = 10 };

typedef struct golden {
  char directory[512];
  toy_options options;
  int32_t *ids; /* STEPS * SEQUENCES * (T + 1) */
  int32_t tokens[SEQUENCES * 64], targets[SEQUENCES * 64];
} golden;

static const char *path_of(const golden *g, const char *file) {
  static char path[600];
  snprintf(path, sizeof path, "%s/%s", g->directory, file);
  return path;
}

static void open_golden(const char *name, int64_t sequence, golden *g) {
  memset(g, 0, sizeof *g);
  snprintf(g->directory, sizeof g->directory, "%s/tests/golden/%s", PENSTOCK_SOURCE_DIR, name);
  g->options = toy_gpt2();
  char *warnings = NULL;
  assert_ok(pst_model_config_load(path_of(g, "config.json"), &g->options.config, &warnings));
  free(warnings);
  g->options.sequence = sequence;
  int64_t n = STEPS * SEQUENCES * (sequence + 1);
  uint16_t *raw = malloc((size_t)n * sizeof *raw);
  g->ids = malloc((size_t)n * sizeof *g->ids);
  FILE *f = fopen(path_of(g, "tokens.u16.bin"), "rb");
  assert_non_null(f);
  assert_int_equal(fread(raw, sizeof *raw, (size_t)n, f), n);
  fclose(f);
  for (int64_t i = 0; i < n; i++) g->ids[i] = raw[i];
  free(raw);
}

static void batch_of(golden *g, int step, pst_batch *out) {
  int64_t t = g->options.sequence;
  for (int64_t i = 0; i < SEQUENCES; i++) {
    const int32_t *row = g->ids + (step * SEQUENCES + i) * (t + 1);
    memcpy(g->tokens + i * t, row, (size_t)t * sizeof *row);
    memcpy(g->targets + i * t, row + 1, (size_t)t * sizeof *row);
  }
  *out = (pst_batch){.tokens = g->tokens, .targets = g->targets, .sequences = SEQUENCES};
}

static int64_t elements_of(const toy *t, int32_t param) {
  const int64_t *d = t->train->values.at[t->train->params.at[param].value].dim;
  return d[0] * d[1] * d[2] * d[3];
}

/* The tensor of a parameter's name, as fp32; the shape must agree. */
static float *tensor_of(const pst_safetensors *set, const toy *t, int32_t param) {
  const pst_param_info *info = &t->train->params.at[param];
  const pst_value_info *v = &t->train->values.at[info->value];
  const pst_safetensors_tensor *s = pst_safetensors_find(set, info->name);
  if (!s) fail_msg("no tensor %s", info->name);
  assert_int_equal(s->n_dims, v->rank);
  for (int i = 0; i < v->rank; i++) assert_int_equal(s->dims[i], v->dim[i]);
  float *x = malloc((size_t)s->elements * sizeof *x);
  assert_ok(pst_safetensors_read_f32(set, s, 0, s->elements, x));
  return x;
}

/* A pipeline that starts from the golden weights. */
static toy *load(golden *g, int stages, int64_t microbatches) {
  toy_options o = g->options;
  o.n_stages = stages;
  o.microbatches = microbatches;
  o.batch = SEQUENCES / microbatches;
  toy *t = toy_create(&o);
  pst_safetensors *set = NULL;
  assert_ok(pst_safetensors_open(path_of(g, "model.safetensors"), &set));
  assert_int_equal(pst_safetensors_count(set), t->train->params.n);
  for (int32_t i = 0; i < t->train->params.n; i++) {
    float *x = tensor_of(set, t, i);
    assert_ok(pst_pipeline_write(t->pipeline, PST_TENSOR_PARAM, i, 0, 0, x, elements_of(t, i) * 4));
    free(x);
  }
  pst_safetensors_close(set);
  return t;
}

/* |a - b| / |b| of vectors. */
static double apart(const float *a, const float *b, int64_t n, double *out_size) {
  double difference = 0, size = 0;
  for (int64_t i = 0; i < n; i++) {
    difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    size += (double)b[i] * (double)b[i];
  }
  if (out_size) *out_size = sqrt(size);
  return sqrt(difference) / (size > 0 ? sqrt(size) : 1);
}

static json_t *curve_of(golden *g, const char *file) {
  json_error_t error;
  json_t *curve = json_load_file(path_of(g, file), 0, &error);
  if (!curve) fail_msg("%s: %s", file, error.text);
  return curve;
}

static double number(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  assert_true(json_is_number(value));
  return json_number_value(value);
}

static void check_gradients(golden *g, int stages, int64_t microbatches) {
  toy *t = load(g, stages, microbatches);
  pst_batch batch;
  batch_of(g, 0, &batch);
  pst_step_result result;
  assert_ok(pst_pipeline_gradients(t->pipeline, &batch, 1, 0, &result));
  json_t *curve = curve_of(g, "curve.json");
  double loss = json_number_value(json_array_get(json_object_get(curve, "losses"), 0));
  assert_true(fabs(result.loss - loss) <= 1e-6 * loss);
  json_decref(curve);
  pst_safetensors *set = NULL;
  assert_ok(pst_safetensors_open(path_of(g, "grads.safetensors"), &set));
  double worst = 0;
  for (int32_t i = 0; i < t->train->params.n; i++) {
    int64_t n;
    float *mine = toy_gradient(t, i, &n), *theirs = tensor_of(set, t, i);
    double size, d = apart(mine, theirs, n, &size);
    if (!(d <= 1e-4)) fail_msg("%s: gradient apart by %.2e of %.3g", t->train->params.at[i].name, d, size);
    if (d > worst) worst = d;
    free(mine);
    free(theirs);
  }
  print_message("%s, K=%d, M=%lld: %d gradients, worst apart by %.1e\n",
                g->directory + strlen(PENSTOCK_SOURCE_DIR), stages, (long long)microbatches,
                t->train->params.n, worst);
  pst_safetensors_close(set);
  toy_destroy(t);
}

/* Trains as the curve's file says; returns the pipeline for what it holds. */
static toy *check_curve(golden *g, const char *file, int stages, int64_t microbatches, double tolerance) {
  json_t *curve = curve_of(g, file);
  pst_optimizer_options *o = &g->options.optimizer;
  pst_optimizer_options_init(o);
  o->clip = (float)number(curve, "clip");
  o->weight_decay = 0;
  if (strcmp(json_string_value(json_object_get(curve, "optimizer")), "sgd") == 0) {
    o->kind = PST_SGD;
    o->momentum = (float)number(curve, "momentum");
  } else {
    o->beta1 = (float)number(curve, "beta1");
    o->beta2 = (float)number(curve, "beta2");
    o->eps = (float)number(curve, "eps");
    o->weight_decay = (float)number(curve, "weight_decay");
  }
  toy *t = load(g, stages, microbatches);
  const json_t *losses = json_object_get(curve, "losses"), *norms = json_object_get(curve, "grad_norms");
  assert_int_equal(json_array_size(losses), STEPS);
  double worst_loss = 0, worst_norm = 0;
  for (int s = 0; s < STEPS; s++) {
    pst_batch batch;
    batch_of(g, s, &batch);
    pst_step_result result;
    assert_ok(pst_pipeline_step(t->pipeline, &batch, 1, s, number(curve, "lr"), &result));
    double loss = json_number_value(json_array_get(losses, (size_t)s));
    double norm = json_number_value(json_array_get(norms, (size_t)s));
    double d = fabs(result.loss - loss) / loss, e = fabs(result.gradient_norm - norm) / norm;
    if (!(d <= tolerance) || !(e <= 10 * tolerance))
      fail_msg("%s, step %d: loss %.9f, wanted %.9f; norm %.9f, wanted %.9f", file, s, result.loss, loss,
               result.gradient_norm, norm);
    if (d > worst_loss) worst_loss = d;
    if (e > worst_norm) worst_norm = e;
    assert_int_equal(result.tokens, SEQUENCES * g->options.sequence);
  }
  print_message("%s/%s, K=%d: losses apart by %.1e, norms by %.1e\n",
                g->directory + strlen(PENSTOCK_SOURCE_DIR), file, stages, worst_loss, worst_norm);
  json_decref(curve);
  return t;
}

/* AdamW turns the rounding noise of gradients that are zero in mathematics (the key's bias) into whole steps,
 * so weights are compared as one vector without those. */
static void check_final(golden *g, toy *t) {
  pst_safetensors *set = NULL;
  assert_ok(pst_safetensors_open(path_of(g, "final.safetensors"), &set));
  double difference = 0, all = 0;
  for (int32_t i = 0; i < t->train->params.n; i++) {
    int64_t n = elements_of(t, i);
    float *mine = malloc((size_t)n * sizeof *mine), *theirs = tensor_of(set, t, i);
    assert_ok(pst_pipeline_read(t->pipeline, PST_TENSOR_PARAM, i, 0, 0, mine, n * 4));
    bool packed_bias = strstr(t->train->params.at[i].name, "c_attn.bias") != NULL;
    double size, d = apart(mine, theirs, packed_bias ? n / 3 : n, &size);
    difference += d * size * d * size;
    all += size * size;
    free(mine);
    free(theirs);
  }
  print_message("weights after %d steps apart by %.1e\n", STEPS, sqrt(difference / all));
  assert_true(sqrt(difference / all) < 1e-4);
  pst_safetensors_close(set);
}

static void gradients_of_step_0(void **state) {
  (void)state;
  static const struct {
    const char *name;
    int64_t sequence;
  } toys[] = {{"gpt2-toy", 12}, {"llama-toy", 16}};
  for (int i = 0; i < 2; i++) {
    golden g;
    open_golden(toys[i].name, toys[i].sequence, &g);
    check_gradients(&g, 1, 1);
    check_gradients(&g, 1, 4);
    check_gradients(&g, 2, 2);
    free(g.ids);
  }
}

static void adamw_curves(void **state) {
  (void)state;
  golden g;
  open_golden("gpt2-toy", 12, &g);
  for (int k = 1; k <= 2; k++) {
    toy *t = check_curve(&g, "curve.json", k, k == 1 ? 4 : 2, 1e-5);
    check_final(&g, t);
    toy_destroy(t);
  }
  free(g.ids);
  open_golden("llama-toy", 16, &g);
  for (int k = 1; k <= 2; k++) {
    toy *t = check_curve(&g, "curve.json", k, k == 1 ? 1 : 4, 1e-5);
    check_final(&g, t);
    toy_destroy(t);
  }
  free(g.ids);
}

static void sgd_curve(void **state) {
  (void)state;
  golden g;
  open_golden("gpt2-toy", 12, &g);
  for (int k = 1; k <= 2; k++) toy_destroy(check_curve(&g, "curve_sgd.json", k, k == 1 ? 4 : 2, 1e-6));
  free(g.ids);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gradients_of_step_0),
      cmocka_unit_test(adamw_curves),
      cmocka_unit_test(sgd_curve),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
