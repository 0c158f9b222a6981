/* The public trainer: a model and data of the caller's own. */
#include "core/penstock.h"

#include "core/base/rng.h"
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { T = 8, V = 13, C = 16, LAYERS = 3 };

static pst_value matrix(pst_graph *g, const char *name, int64_t rows, int64_t columns) {
  return pst_param(g, name, 2, (int64_t[]){rows, columns}, (pst_init){PST_INIT_NORMAL, 0.2f});
}

/* An embedding, gated layers on a residual stream, and a tied head. */
static void gated(pst_graph *g, void *user) {
  const int *layers = user;
  pst_graph_unit(g, "embed");
  pst_value table = matrix(g, "table", V, C);
  pst_value x = pst_embedding(g, pst_graph_tokens(g), table, PST_NO_VALUE);
  for (int i = 0; i < (layers ? *layers : LAYERS); i++) {
    char unit[32], name[48];
    snprintf(unit, sizeof unit, "layer.%d", i);
    pst_graph_unit(g, unit);
    snprintf(name, sizeof name, "%s.gain", unit);
    pst_value n =
        pst_rms_norm(g, x, pst_param(g, name, 1, (int64_t[]){C}, (pst_init){PST_INIT_ONES, 0}), 1e-5f);
    snprintf(name, sizeof name, "%s.gate", unit);
    pst_value gate = pst_linear(g, n, matrix(g, name, C, C), PST_NO_VALUE, PST_NO_VALUE, false);
    snprintf(name, sizeof name, "%s.up", unit);
    pst_value up = pst_linear(g, n, matrix(g, name, C, C), PST_NO_VALUE, PST_NO_VALUE, false);
    snprintf(name, sizeof name, "%s.down", unit);
    x = pst_linear(g, pst_silu_gate(g, gate, up), matrix(g, name, C, C), PST_NO_VALUE, x, false);
  }
  pst_graph_unit(g, "head");
  pst_graph_loss(g, pst_linear_cross_entropy(g, x, table, pst_graph_targets(g), false));
}

/* The next token is the last one plus 1 or 2, by sequence. */
static pst_status counting(void *user, int64_t step, int64_t sequence, int64_t length, int32_t *tokens,
                           int32_t *targets) {
  (void)user;
  uint32_t r[4];
  pst_rng_philox(pst_rng_key_make((uint64_t)step, (uint64_t)sequence), (uint32_t[4]){0}, r);
  for (int64_t i = 0; i <= length; i++) {
    int32_t id = (int32_t)((r[0] % V + (uint32_t)i * (1 + r[1] % 2)) % V);
    if (i < length) tokens[i] = id;
    if (i > 0) targets[i - 1] = id;
  }
  return PST_OK;
}

static pst_trainer_options options(void) {
  pst_trainer_options o;
  pst_trainer_options_init(&o);
  o.build = gated;
  o.fill = counting;
  o.sequence = T;
  o.micro = 2;
  o.microbatches = 4;
  o.lr = 1e-2;
  return o;
}

static pst_trainer *create(const pst_trainer_options *o) {
  pst_trainer *t = NULL;
  assert_ok(pst_trainer_create(o, &t));
  return t;
}

/* All parameters, one behind the other; the caller frees. */
static float *weights(pst_trainer *t, int64_t *out_n) {
  int64_t n = 0, at = 0;
  pst_trainer_param p;
  for (int i = 0; i < pst_trainer_params(t); i++) {
    pst_trainer_param_at(t, i, &p);
    n += p.elements;
  }
  float *all = malloc((size_t)n * sizeof *all);
  for (int i = 0; i < pst_trainer_params(t); i++) {
    pst_trainer_param_at(t, i, &p);
    assert_ok(pst_trainer_read(t, i, all + at));
    at += p.elements;
  }
  *out_n = n;
  return all;
}

static void learns(void **state) {
  (void)state;
  pst_trainer_options o = options();
  o.n_stages = 2;
  pst_trainer *t = create(&o);
  pst_trainer_result first = {0}, r = {0};
  for (int s = 0; s < 60; s++) {
    assert_ok(pst_trainer_step(t, &r));
    assert_int_equal(r.step, s);
    assert_int_equal(r.tokens, 8 * T);
    assert_true(r.step_ns > 0 && r.data_wait_ns >= 0 && r.data_wait_ns <= r.step_ns);
    if (s == 0) first = r;
  }
  print_message("loss %.4f to %.4f\n", first.loss, r.loss);
  assert_true(fabs(first.loss - log(V)) < 1.0);
  assert_true(r.loss < 0.5 * first.loss);
  pst_trainer_destroy(t);
  pst_trainer_destroy(NULL);
}

/* Whole steps at one stage against halves at every layout: the same bits. */
static void two_halves_are_one_step(void **state) {
  (void)state;
  pst_trainer_options o = options();
  pst_trainer *whole = create(&o);
  pst_trainer_result one[5];
  for (int s = 0; s < 5; s++) assert_ok(pst_trainer_step(whole, &one[s]));
  int64_t n, m;
  float *wanted = weights(whole, &n);
  pst_trainer_destroy(whole);
  static const char *const backwards[] = {"auto", "fused", "early", "split"};
  for (int k = 1; k <= 4; k++) {
    o.n_stages = k;
    o.schedule = k % 2 ? "gpipe" : "1f1b";
    o.backward = backwards[k - 1];
    pst_trainer *halves = create(&o);
    pst_trainer_result two;
    for (int s = 0; s < 5; s++) {
      if (s % 2 == 0) {
        assert_ok(pst_trainer_gradients(halves, &two));
        assert_true(two.gradient_norm == 0 && two.loss == one[s].loss);
        assert_ok(pst_trainer_apply(halves, &two));
      } else {
        assert_ok(pst_trainer_step(halves, &two));
      }
      assert_int_equal(two.step, s);
      assert_true(two.loss == one[s].loss && two.gradient_norm == one[s].gradient_norm);
    }
    float *seen = weights(halves, &m);
    assert_int_equal(m, n);
    assert_memory_equal(seen, wanted, (size_t)n * sizeof *seen);
    free(seen);
    pst_trainer_destroy(halves);
  }
  free(wanted);
}

static void halves_come_in_order(void **state) {
  (void)state;
  pst_trainer_options o = options();
  pst_trainer *t = create(&o);
  pst_trainer_result r;
  float x[V * C];
  assert_fails(pst_trainer_apply(t, &r), PST_INVALID, "no gradients to apply");
  assert_fails(pst_trainer_gradient(t, 0, x), PST_INVALID, "between");
  assert_ok(pst_trainer_gradients(t, &r));
  assert_fails(pst_trainer_gradients(t, &r), PST_INVALID, "its update is owed");
  assert_fails(pst_trainer_step(t, &r), PST_INVALID, "its update is owed");
  assert_ok(pst_trainer_gradient(t, 0, x));
  assert_ok(pst_trainer_apply(t, &r));
  assert_fails(pst_trainer_gradient(t, 0, x), PST_INVALID, "between");
  assert_ok(pst_trainer_step(t, &r));
  assert_int_equal(r.step, 1);
  pst_trainer_destroy(t);
}

static void parameters_by_name_and_position(void **state) {
  (void)state;
  pst_trainer_options o = options();
  o.n_stages = 3;
  pst_trainer_stage stages[] = {{.units = 1, .threads = 1}, {.units = 3, .threads = 2}, {.units = 1}};
  o.stages = stages;
  pst_trainer *t = create(&o);
  assert_int_equal(pst_trainer_params(t), 1 + 4 * LAYERS);
  pst_trainer_param p;
  int i = -1;
  assert_ok(pst_trainer_find(t, "layer.1.gain", &i));
  pst_trainer_param_at(t, i, &p);
  assert_string_equal(p.name, "layer.1.gain");
  assert_int_equal(p.rank, 1);
  assert_int_equal(p.dim[0], C);
  assert_int_equal(p.elements, C);
  assert_int_equal(p.stage, 1);
  assert_ok(pst_trainer_find(t, "table", &i));
  pst_trainer_param_at(t, i, &p);
  assert_int_equal(p.stage, 0); /* of its first use */
  assert_int_equal(p.rank, 2);
  assert_int_equal(p.elements, V * C);
  int before = i;
  assert_fails(pst_trainer_find(t, "tabel", &i), PST_INVALID, "tabel");
  assert_int_equal(i, before);
  float x[V * C], y[V * C];
  assert_fails(pst_trainer_read(t, -1, x), PST_INVALID, "parameter -1");
  assert_fails(pst_trainer_write(t, 99, x), PST_INVALID, "the model has 13");
  for (int j = 0; j < V * C; j++) x[j] = (float)j / 1000;
  assert_ok(pst_trainer_write(t, i, x));
  assert_ok(pst_trainer_read(t, i, y));
  assert_memory_equal(x, y, sizeof x);
  pst_trainer_destroy(t);
}

/* A write reaches every stage that uses the parameter: the loss is the one of a single stage. */
static void writing_a_tied_parameter_reaches_its_users(void **state) {
  (void)state;
  double loss[2];
  for (int k = 0; k < 2; k++) {
    pst_trainer_options o = options();
    o.n_stages = 1 + 2 * k;
    pst_trainer *t = create(&o);
    float x[V * C];
    for (int j = 0; j < V * C; j++) x[j] = (float)((j * 7919) % 101) / 100 - 0.5f;
    assert_ok(pst_trainer_write(t, 0, x));
    pst_trainer_result r;
    assert_ok(pst_trainer_step(t, &r));
    loss[k] = r.loss;
    pst_trainer_destroy(t);
  }
  assert_true(loss[0] == loss[1]);
}

static void gradients_are_those_of_the_loss(void **state) {
  (void)state;
  pst_trainer_options o = options();
  o.n_stages = 2;
  o.evaluates = true;
  pst_trainer *t = create(&o);
  int32_t tokens[8 * T], targets[8 * T];
  for (int64_t i = 0; i < 8; i++) assert_ok(counting(NULL, 0, i, T, tokens + i * T, targets + i * T));
  double loss;
  pst_trainer_result r;
  assert_ok(pst_trainer_loss(t, tokens, targets, 8, &loss));
  assert_ok(pst_trainer_gradients(t, &r));
  assert_true(fabs(loss - r.loss) < 1e-6);
  for (int i = 0; i < pst_trainer_params(t); i++) {
    pst_trainer_param p;
    pst_trainer_param_at(t, i, &p);
    float *w = malloc((size_t)p.elements * 4), *g = malloc((size_t)p.elements * 4);
    assert_ok(pst_trainer_read(t, i, w));
    assert_ok(pst_trainer_gradient(t, i, g));
    int64_t top = 0;
    for (int64_t j = 0; j < p.elements; j++)
      if (fabsf(g[j]) > fabsf(g[top])) top = j;
    double side[2];
    float own = w[top];
    for (int s = 0; s < 2; s++) {
      w[top] = own + (s ? -2e-2f : 2e-2f);
      assert_ok(pst_trainer_write(t, i, w));
      assert_ok(pst_trainer_loss(t, tokens, targets, 8, &side[s]));
    }
    double slope = (side[0] - side[1]) / 4e-2;
    if (fabs(slope - (double)g[top]) > 2e-3 * fabs((double)g[top]) + 1e-4)
      fail_msg("%s: slope %g, gradient %g", p.name, slope, (double)g[top]);
    w[top] = own;
    assert_ok(pst_trainer_write(t, i, w));
    free(w);
    free(g);
  }
  assert_ok(pst_trainer_loss(t, tokens, targets, 3, &loss)); /* fewer than a batch, more than one */
  double parts[2];
  assert_ok(pst_trainer_loss(t, tokens, targets, 1, &parts[0]));
  assert_ok(pst_trainer_loss(t, tokens + T, targets + T, 2, &parts[1]));
  assert_true(fabs(loss - (parts[0] + 2 * parts[1]) / 3) < 1e-12);
  pst_trainer_destroy(t);
}

static void weights_go_to_a_file_and_back(void **state) {
  (void)state;
  char path[] = "/tmp/penstock-trainer-XXXXXX";
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  close(fd);
  pst_trainer_options o = options();
  o.n_stages = 3;
  pst_trainer *a = create(&o);
  pst_trainer_result r;
  for (int s = 0; s < 3; s++) assert_ok(pst_trainer_step(a, &r));
  assert_ok(pst_trainer_save(a, path));
  int64_t n, m;
  float *saved = weights(a, &n);
  o.n_stages = 1;
  o.seed = 77;
  pst_trainer *b = create(&o);
  float *other = weights(b, &m);
  assert_memory_not_equal(saved, other, (size_t)n * sizeof *saved);
  free(other);
  assert_ok(pst_trainer_load(b, path));
  other = weights(b, &m);
  assert_int_equal(m, n);
  assert_memory_equal(saved, other, (size_t)n * sizeof *saved);
  free(other);
  pst_trainer_destroy(b);
  int layers = LAYERS + 1; /* another model: what is missing is named */
  o.build_user = &layers;
  b = create(&o);
  assert_fails(pst_trainer_load(b, path), PST_INVALID, "layer.3.");
  pst_trainer_destroy(b);
  layers = LAYERS - 1; /* and so is what is too much */
  b = create(&o);
  assert_fails(pst_trainer_load(b, path), PST_INVALID, "layer.2.");
  assert_fails(pst_trainer_load(b, "/nonexistent/model.safetensors"), PST_IO, "/nonexistent");
  pst_trainer_destroy(b);
  free(saved);
  pst_trainer_destroy(a);
  unlink(path);
}

/* ---- what is refused ---- */

static void set_build(pst_trainer_options *o) {
  o->build = NULL;
}
static void set_fill(pst_trainer_options *o) {
  o->fill = NULL;
}
static void set_micro(pst_trainer_options *o) {
  o->micro = 0;
}
static void set_microbatches(pst_trainer_options *o) {
  o->microbatches = -1;
}
static void set_sequence(pst_trainer_options *o) {
  o->sequence = 0;
}
static void set_stages(pst_trainer_options *o) {
  o->n_stages = 0;
}
static void set_many_stages(pst_trainer_options *o) {
  o->n_stages = LAYERS + 3;
}
static void set_schedule(pst_trainer_options *o) {
  o->schedule = "1f2b";
}
static void set_backward(pst_trainer_options *o) {
  o->backward = "forward";
}
static void set_optimizer(pst_trainer_options *o) {
  o->optimizer = "adam";
}
static void set_lr(pst_trainer_options *o) {
  o->lr = -1e-3;
}
static void set_lr_nan(pst_trainer_options *o) {
  o->lr = NAN;
}
static void set_clip(pst_trainer_options *o) {
  o->clip = -1;
}
static void set_isa(pst_trainer_options *o) {
  o->isa = "v9";
}
static void set_gemm(pst_trainer_options *o) {
  o->gemm = "mkl";
}
static pst_trainer_stage given[2];
static void set_device(pst_trainer_options *o) {
  given[0] = (pst_trainer_stage){.device = "abacus:0"};
  o->stages = given;
}
static void set_units(pst_trainer_options *o) {
  o->n_stages = 2;
  given[0] = (pst_trainer_stage){.units = 2};
  given[1] = (pst_trainer_stage){.units = 2};
  o->stages = given;
}
static void set_some_units(pst_trainer_options *o) {
  o->n_stages = 2;
  given[0] = (pst_trainer_stage){.units = 2};
  given[1] = (pst_trainer_stage){.units = 0};
  o->stages = given;
}

static void bad_options_are_refused(void **state) {
  (void)state;
  static const struct {
    void (*set)(pst_trainer_options *);
    pst_status status;
    const char *text;
  } rows[] = {{set_build, PST_INVALID, "a build and a fill function"},
              {set_fill, PST_INVALID, "a build and a fill function"},
              {set_micro, PST_INVALID, "micro = 0"},
              {set_microbatches, PST_INVALID, "microbatches = -1"},
              {set_sequence, PST_INVALID, "sequence = 0"},
              {set_stages, PST_INVALID, "a pipeline of 0 stages"},
              {set_many_stages, PST_INVALID, "5 units cannot be cut into 6 stages"},
              {set_schedule, PST_INVALID, "seen \"1f2b\", wanted one of 1f1b"},
              {set_backward, PST_INVALID, "backward = forward: wanted auto, fused, early or split"},
              {set_optimizer, PST_INVALID, "optimizer = adam: wanted adamw or sgd"},
              {set_lr, PST_INVALID, "lr = -0.001"},
              {set_lr_nan, PST_INVALID, "lr = nan"},
              {set_clip, PST_INVALID, "clip = -1"},
              {set_isa, PST_INVALID, "v9"},
              {set_gemm, PST_INVALID, "mkl"},
              {set_device, PST_UNSUPPORTED, "abacus:0"},
              {set_units, PST_INVALID, "the stages hold 4 units together, the model has 5"},
              {set_some_units, PST_INVALID, "stage 1: units = 0"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    pst_trainer_options o = options();
    rows[i].set(&o);
    pst_trainer *t = NULL;
    assert_fails(pst_trainer_create(&o, &t), rows[i].status, rows[i].text);
    assert_null(t);
  }
}

/* ---- data that is wrong ---- */

typedef struct spoiled {
  int64_t step, sequence, at;
  int32_t token, target;
  pst_status status;
} spoiled;

static pst_status spoil(void *user, int64_t step, int64_t sequence, int64_t length, int32_t *tokens,
                        int32_t *targets) {
  const spoiled *s = user;
  PST_TRY(counting(NULL, step, sequence, length, tokens, targets));
  if (step != s->step || sequence != s->sequence) return PST_OK;
  if (s->status != PST_OK) return pst_fail(s->status, "the tape tore");
  tokens[s->at] = s->token;
  targets[s->at] = s->target;
  return PST_OK;
}

static void ids_beyond_the_vocabulary_are_refused(void **state) {
  (void)state;
  static const struct {
    spoiled data;
    const char *text;
  } rows[] = {{{.step = 2, .sequence = 3, .at = T - 1, .token = V, .target = 0}, "13"},
              {{.step = 0, .sequence = 0, .at = 0, .token = -1, .target = 0}, "-1"},
              {{.step = 2, .sequence = 7, .at = 1, .token = 0, .target = V}, "13"},
              {{.step = 1, .sequence = 7, .at = 1, .token = 0, .target = -2}, "-2"},
              {{.step = 1, .sequence = 0, .at = 1, .token = INT32_MAX, .target = 0}, "2147483647"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    pst_trainer_options o = options();
    spoiled data = rows[i].data;
    o.fill = spoil;
    o.fill_user = &data;
    o.n_stages = 2;
    pst_trainer *t = create(&o);
    pst_trainer_result r;
    for (int64_t s = 0; s < data.step; s++) assert_ok(pst_trainer_step(t, &r));
    int64_t n;
    float *before = weights(t, &n);
    assert_fails(pst_trainer_step(t, &r), PST_INVALID, rows[i].text);
    print_message("%s\n", pst_error());
    char step[32], sequence[32];
    snprintf(step, sizeof step, "step %lld", (long long)data.step);
    snprintf(sequence, sizeof sequence, "sequence %lld", (long long)data.sequence);
    assert_non_null(strstr(pst_error(), step));
    assert_non_null(strstr(pst_error(), sequence));
    float *after = weights(t, &n);
    assert_memory_equal(before, after, (size_t)n * sizeof *before);
    free(before);
    free(after);
    pst_trainer_destroy(t);
  }
}

/* Evaluation takes its tokens as they come: they are checked too. */
static void evaluation_refuses_wrong_ids(void **state) {
  (void)state;
  pst_trainer_options o = options();
  o.evaluates = true;
  pst_trainer *t = create(&o);
  int32_t tokens[3 * T] = {0}, targets[3 * T] = {0};
  double loss = -7;
  tokens[2 * T + 3] = V;
  assert_fails(pst_trainer_loss(t, tokens, targets, 3, &loss), PST_INVALID,
               "token 13 at sequence 2, position 3, wanted 0 to 12");
  tokens[2 * T + 3] = -1;
  assert_fails(pst_trainer_loss(t, tokens, targets, 3, &loss), PST_INVALID, "token -1");
  tokens[2 * T + 3] = 0;
  targets[T - 1] = V;
  assert_fails(pst_trainer_loss(t, tokens, targets, 3, &loss), PST_INVALID,
               "target 13 at sequence 0, position 7, wanted -1 to 12");
  assert_true(loss == -7);
  targets[T - 1] = -1;
  assert_ok(pst_trainer_loss(t, tokens, targets, 3, &loss));
  assert_fails(pst_trainer_loss(t, tokens, targets, -1, &loss), PST_INVALID, "-1 sequences");
  pst_trainer_destroy(t);
  o.evaluates = false;
  t = create(&o);
  assert_fails(pst_trainer_loss(t, tokens, targets, 3, &loss), PST_INVALID, "not built for evaluation");
  pst_trainer_destroy(t);
}

/* More rows in the table than classes in a loss of whole logits: targets must be classes. */
static void wide_table(pst_graph *g, void *user) {
  (void)user;
  pst_graph_unit(g, "all");
  pst_value x = pst_embedding(g, pst_graph_tokens(g), matrix(g, "table", V + 7, C), PST_NO_VALUE);
  pst_value logits = pst_linear(g, x, matrix(g, "head", V, C), PST_NO_VALUE, PST_NO_VALUE, false);
  pst_graph_loss(g, pst_cross_entropy(g, logits, pst_graph_targets(g)));
}

static void targets_must_be_classes(void **state) {
  (void)state;
  pst_trainer_options o = options();
  spoiled data = {.step = 1, .sequence = 2, .at = 3, .token = 0, .target = V};
  o.build = wide_table;
  o.fill = spoil;
  o.fill_user = &data;
  pst_trainer *t = create(&o);
  pst_trainer_result r;
  assert_ok(pst_trainer_step(t, &r));
  assert_fails(pst_trainer_step(t, &r), PST_INVALID, "target 13 at step 1, sequence 2, position 3");
  pst_trainer_destroy(t);
}

static void ignored_targets_and_errors_of_the_source(void **state) {
  (void)state;
  pst_trainer_options o = options();
  spoiled data = {.step = 0, .sequence = 1, .at = 2, .token = 0, .target = -1};
  o.fill = spoil;
  o.fill_user = &data;
  pst_trainer *t = create(&o);
  pst_trainer_result r;
  assert_ok(pst_trainer_step(t, &r));
  assert_int_equal(r.tokens, 8 * T - 1);
  pst_trainer_destroy(t);
  data = (spoiled){.step = 1, .sequence = 4, .status = PST_IO};
  t = create(&o);
  assert_ok(pst_trainer_step(t, &r));
  assert_fails(pst_trainer_step(t, &r), PST_IO, "the tape tore");
  pst_trainer_destroy(t);
}

static void the_library_says_what_it_is(void **state) {
  (void)state;
  assert_true(strlen(pst_version()) >= 5);
}

static void count_cpu(void *user, const pst_device_info *info) {
  int *n = user;
  *n += strncmp(info->name, "cpu", 3) == 0 && info->reason[0] == '\0';
}

static void a_cpu_is_always_there(void **state) {
  (void)state;
  int n = 0;
  pst_devices(count_cpu, &n);
  assert_true(n >= 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(learns),
      cmocka_unit_test(two_halves_are_one_step),
      cmocka_unit_test(halves_come_in_order),
      cmocka_unit_test(parameters_by_name_and_position),
      cmocka_unit_test(writing_a_tied_parameter_reaches_its_users),
      cmocka_unit_test(gradients_are_those_of_the_loss),
      cmocka_unit_test(weights_go_to_a_file_and_back),
      cmocka_unit_test(bad_options_are_refused),
      cmocka_unit_test(ids_beyond_the_vocabulary_are_refused),
      cmocka_unit_test(evaluation_refuses_wrong_ids),
      cmocka_unit_test(targets_must_be_classes),
      cmocka_unit_test(ignored_targets_and_errors_of_the_source),
      cmocka_unit_test(the_library_says_what_it_is),
      cmocka_unit_test(a_cpu_is_always_there),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
