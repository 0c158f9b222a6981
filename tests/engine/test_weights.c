/* Parameters and moments in safetensors files: the same bytes for every split, the file variants that are met
 * in practice, and a trained model with known numbers. */
#include "core/base/file.h"
#include "core/checkpoint/config.h"
#include "core/checkpoint/safetensors.h"
#include "core/engine/weights.h"
#include "core/graph/ir.h"
#include "core/graph/model.h"
#include "tests/engine/runs.h"
#include "tests/support.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int setup(void **state) {
  *state = runs_create();
  return 0;
}

static int teardown(void **state) {
  runs_destroy(*state);
  return 0;
}

static const char *in(const runs *r, const char *name) {
  static char path[4][1024];
  static int next;
  char *p = path[next++ % 4];
  snprintf(p, sizeof path[0], "%s/%s", r->root, name);
  return p;
}

/* ---- small models ---- */

static pst_model_config small(pst_family family, bool tied) {
  pst_model_config c;
  pst_model_config_init(&c, family);
  c.layers = 3;
  c.heads = c.kv_heads = 2;
  c.width = 16;
  c.head_dim = 8;
  c.hidden = 48;
  c.context = 16;
  c.vocab = family == PST_FAMILY_GPT2 ? 97 : 101;
  c.tied = tied;
  return c;
}

static void build(pst_graph *g, void *user) {
  const pst_model_config *c = user;
  pst_model_find(pst_family_name(c->family))->build(g, c);
}

static pst_assembly *assemble_at(pst_model_config *c, int k, int64_t sequence, int64_t micro, int64_t m) {
  pst_assembly_options o = {.build = build,
                            .build_user = c,
                            .trains = true,
                            .evaluates = true,
                            .sequence = sequence,
                            .micro = micro,
                            .microbatches = m,
                            .n_workers = k,
                            .schedule = "1f1b"};
  pst_optimizer_options_init(&o.optimizer);
  pst_assembly_worker *stages = calloc((size_t)k, sizeof *stages);
  for (int s = 0; s < k; s++) stages[s].threads = 1;
  o.workers = stages;
  pst_assembly *a = NULL;
  assert_ok(pst_assembly_create(&o, &a));
  assert_ok(pst_assembly_start(a));
  free(stages);
  return a;
}

static pst_assembly *assemble(pst_model_config *c, int k, uint64_t seed) {
  pst_assembly *a = assemble_at(c, k, 8, 2, 2);
  assert_ok(pst_pipeline_init(a->pipeline, seed));
  return a;
}

static void assert_same_file(const char *a, const char *b) {
  char *x, *y;
  size_t n, m;
  assert_ok(pst_file_read(a, 64 << 20, &x, &n));
  assert_ok(pst_file_read(b, 64 << 20, &y, &m));
  assert_int_equal(n, m);
  assert_memory_equal(x, y, n);
  free(x);
  free(y);
}

static void files_do_not_know_stages(void **state) {
  runs *r = *state;
  static const struct {
    pst_family family;
    bool tied;
  } models[] = {{PST_FAMILY_GPT2, true}, {PST_FAMILY_LLAMA, false}};
  for (int i = 0; i < 2; i++) {
    pst_model_config c = small(models[i].family, models[i].tied);
    for (int k = 1; k <= 4; k++) {
      pst_assembly *a = assemble(&c, k, 5);
      uint64_t sum = 0;
      assert_ok(pst_weights_save(a, in(r, k == 1 ? "one" : "many"), &sum));
      assert_ok(pst_moments_save(a, in(r, k == 1 ? "one.m" : "many.m"), NULL));
      assert_true(sum != 0);
      if (k > 1) assert_same_file(in(r, "one"), in(r, "many"));
      if (k > 1) assert_same_file(in(r, "one.m"), in(r, "many.m"));
      pst_assembly_destroy(a);
      a = assemble(&c, k, 6); /* other weights, to be replaced */
      assert_ok(pst_weights_load(a, in(r, "one"), NULL, 0));
      assert_ok(pst_moments_load(a, in(r, "one.m")));
      assert_ok(pst_weights_save(a, in(r, "again"), NULL));
      assert_same_file(in(r, "one"), in(r, "again"));
      pst_assembly_destroy(a);
    }
  }
}

/* ---- files as others write them ---- */

typedef struct edit {
  const char *drop;       /* a tensor that is left out */
  const char *strip;      /* a prefix taken from every name */
  const char *copy, *as;  /* a tensor stored again under another name */
  float change;           /* added to the copy's first element */
  const char *key, *text; /* metadata */
  const char *extra;      /* a tensor of two zeros */
  const char *cut;        /* a tensor that loses its last row */
} edit;

static void put(pst_safetensors_writer *w, const pst_safetensors *set, const pst_safetensors_tensor *t,
                const char *name, float change) {
  float *x = malloc(t->bytes + 4);
  assert_ok(pst_safetensors_read_f32(set, t, 0, t->elements, x));
  if (change != 0) x[0] += change;
  assert_ok(pst_safetensors_writer_write(w, name, x, t->bytes));
  free(x);
}

static const char *stripped(const edit *e, const char *name) {
  size_t n = e->strip ? strlen(e->strip) : 0;
  return n && strncmp(name, e->strip, n) == 0 ? name + n : name;
}

static const char *rewrite(const runs *r, const char *from, const edit *e) {
  const char *path = in(r, "edited.safetensors");
  static const float zeros[2];
  pst_safetensors *set;
  pst_safetensors_writer *w;
  assert_ok(pst_safetensors_open(from, &set));
  assert_ok(pst_safetensors_writer_create(path, &w));
  if (e->key) assert_ok(pst_safetensors_writer_metadata(w, e->key, e->text));
  const pst_safetensors_tensor *copy = e->copy ? pst_safetensors_find(set, e->copy) : NULL;
  for (int pass = 0; pass < 2; pass++) {
    for (size_t i = 0; i < pst_safetensors_count(set); i++) {
      const pst_safetensors_tensor *t = pst_safetensors_at(set, i);
      if (e->drop && strcmp(t->name, e->drop) == 0) continue;
      int64_t dims[PST_SAFETENSORS_DIMS_MAX];
      memcpy(dims, t->dims, sizeof dims);
      pst_safetensors_tensor less = *t;
      if (e->cut && strcmp(t->name, e->cut) == 0) {
        less.bytes -= less.bytes / (uint64_t)dims[0];
        dims[0]--;
      }
      if (pass == 0) {
        assert_ok(pst_safetensors_writer_declare(w, stripped(e, t->name), t->dtype, t->n_dims, dims));
      } else {
        float *x = malloc(t->bytes);
        assert_ok(pst_safetensors_read_f32(set, t, 0, t->elements, x));
        assert_ok(pst_safetensors_writer_write(w, stripped(e, t->name), x, less.bytes));
        free(x);
      }
    }
    if (copy && pass == 0)
      assert_ok(pst_safetensors_writer_declare(w, e->as, copy->dtype, copy->n_dims, copy->dims));
    if (copy && pass == 1) put(w, set, copy, e->as, e->change);
    if (e->extra && pass == 0)
      assert_ok(pst_safetensors_writer_declare(w, e->extra, PST_F32, 1, (int64_t[]){2}));
    if (e->extra && pass == 1) assert_ok(pst_safetensors_writer_write(w, e->extra, zeros, sizeof zeros));
  }
  assert_ok(pst_safetensors_writer_finish(w, NULL));
  pst_safetensors_writer_destroy(w);
  pst_safetensors_close(set);
  return path;
}

/* Loads the edited file over other weights: the model's file must come out again. */
static void assert_loads(runs *r, pst_model_config *c, const edit *e, const char *noted) {
  char notes[512];
  pst_assembly *a = assemble(c, 2, 6);
  assert_ok(pst_weights_load(a, rewrite(r, in(r, "one"), e), notes, sizeof notes));
  if (noted ? !strstr(notes, noted) : notes[0] != 0) fail_msg("notes '%s', wanted '%s'", notes, noted);
  assert_ok(pst_weights_save(a, in(r, "again"), NULL));
  assert_same_file(in(r, "one"), in(r, "again"));
  pst_assembly_destroy(a);
}

static void assert_refused(runs *r, pst_model_config *c, const edit *e, const char *text) {
  pst_assembly *a = assemble(c, 2, 6);
  assert_ok(pst_weights_save(a, in(r, "before"), NULL));
  assert_fails(pst_weights_load(a, rewrite(r, in(r, "one"), e), NULL, 0), PST_INVALID, text);
  assert_ok(pst_weights_save(a, in(r, "after"), NULL)); /* nothing was touched */
  assert_same_file(in(r, "before"), in(r, "after"));
  pst_assembly_destroy(a);
}

static void write_one(runs *r, pst_model_config *c) {
  pst_assembly *a = assemble(c, 1, 5);
  assert_ok(pst_weights_save(a, in(r, "one"), NULL));
  pst_assembly_destroy(a);
}

static void gpt2_file_variants(void **state) {
  runs *r = *state;
  static const char table[] = "transformer.wte.weight", head[] = "lm_head.weight";
  pst_model_config tied = small(PST_FAMILY_GPT2, true), untied = small(PST_FAMILY_GPT2, false);
  write_one(r, &tied);
  assert_loads(r, &tied, &(edit){.drop = NULL}, NULL);
  assert_loads(r, &tied, &(edit){.strip = "transformer."}, NULL);
  assert_loads(r, &tied, &(edit){.copy = table, .as = head}, NULL);
  assert_loads(r, &tied, &(edit){.copy = table, .as = head, .change = 1}, "differ although the model ties");
  assert_loads(r, &tied, &(edit){.copy = table, .as = head, .drop = table}, NULL);
  assert_loads(r, &tied,
               &(edit){.copy = table,
                       .as = "other.weight",
                       .drop = table,
                       .key = "wte.weight",
                       .text = "other.weight",
                       .extra = NULL},
               NULL);
  assert_loads(r, &tied, &(edit){.extra = "transformer.h.0.attn.bias"}, NULL);
  assert_loads(r, &tied, &(edit){.extra = "h.1.attn.masked_bias"}, NULL);
  assert_refused(r, &tied, &(edit){.extra = "transformer.h.3.ln_1.weight"},
                 "transformer.h.3.ln_1.weight is none of the model's");
  assert_refused(r, &tied, &(edit){.drop = "transformer.h.2.mlp.c_fc.weight"},
                 "transformer.h.2.mlp.c_fc.weight is missing");
  assert_refused(r, &tied, &(edit){.cut = "transformer.wpe.weight"}, "has shape [15, 16], wanted [16, 16]");
  assert_refused(r, &tied, &(edit){.copy = "transformer.ln_f.bias", .as = "ln_f.bias"},
                 "are the same parameter");
  write_one(r, &untied);
  assert_refused(r, &untied, &(edit){.drop = head},
                 "lm_head.weight is missing: the model's head is not tied");
  pst_assembly *a = assemble(&untied, 2, 6);
  edit alias = {.drop = head, .key = head, .text = table};
  assert_ok(pst_weights_load(a, rewrite(r, in(r, "one"), &alias), NULL, 0));
  pst_assembly_destroy(a);
}

static void llama_file_variants(void **state) {
  runs *r = *state;
  pst_model_config c = small(PST_FAMILY_LLAMA, false);
  write_one(r, &c);
  assert_loads(r, &c, &(edit){.strip = "model."}, NULL);
  assert_loads(r, &c, &(edit){.extra = "model.layers.0.self_attn.rotary_emb.inv_freq"}, NULL);
  assert_refused(r, &c, &(edit){.drop = "lm_head.weight"}, "lm_head.weight is missing");
  assert_refused(r, &c, &(edit){.cut = "model.layers.1.mlp.up_proj.weight"}, "model.layers.1.mlp.up_proj");
}

static void moments_are_checked(void **state) {
  runs *r = *state;
  pst_model_config c = small(PST_FAMILY_GPT2, true);
  pst_assembly *a = assemble(&c, 2, 5);
  assert_ok(pst_moments_save(a, in(r, "one.m"), NULL));
  edit drop = {.drop = "v.transformer.ln_f.bias"}, extra = {.extra = "velocity.x"};
  assert_fails(pst_moments_load(a, rewrite(r, in(r, "one.m"), &drop)), PST_INVALID,
               "v.transformer.ln_f.bias is missing");
  assert_fails(pst_moments_load(a, rewrite(r, in(r, "one.m"), &extra)), PST_INVALID, "another optimizer");
  pst_assembly_destroy(a);
}

static void weights_that_are_not_finite_take_no_place(void **state) {
  runs *r = *state;
  static const float bad[] = {NAN, INFINITY, -INFINITY};
  pst_model_config c = small(PST_FAMILY_GPT2, true);
  pst_assembly *a = assemble(&c, 2, 5);
  assert_ok(pst_weights_save(a, in(r, "good"), NULL));
  assert_ok(pst_weights_save(a, in(r, "one"), NULL));
  int32_t last = a->any->params.n - 1;
  int64_t at = (pst_assembly_elements(a, last) - 1) * (int64_t)sizeof(float);
  for (int i = 0; i < 3; i++) {
    assert_ok(pst_pipeline_write(a->pipeline, PST_TENSOR_PARAM, last, 0, at, &bad[i], sizeof(float)));
    assert_fails(pst_weights_save(a, in(r, "one"), NULL), PST_NONFINITE, a->any->params.at[last].name);
    assert_same_file(in(r, "good"), in(r, "one"));
  }
  pst_assembly_destroy(a);
}

/* ---- a trained model with known numbers ---- */

static const char *stories(const char *file) {
  static char path[1024];
  const char *dir = runs_shared("stories260k");
  if (!dir) {
    print_message("skipped: no shared/data/stories260k beside the repository, nor PENSTOCK_TEST_DATA\n");
    skip();
  }
  snprintf(path, sizeof path, "%s%s%s", dir, *file ? "/" : "", file);
  return path;
}

/* Four sequences of 128 of the reference. */
static void read_batch(int32_t tokens[4 * 128], int32_t targets[4 * 128]) {
  char *bytes;
  size_t n;
  assert_ok(pst_file_read(stories("stories.u16.bin"), 1 << 20, &bytes, &n));
  for (int i = 0; i < 4; i++)
    for (int j = 0; j <= 128; j++) {
      const unsigned char *at = (const unsigned char *)bytes + 2 * (129 * i + j);
      int32_t id = at[0] | at[1] << 8;
      if (j < 128) tokens[i * 128 + j] = id;
      if (j > 0) targets[i * 128 + j - 1] = id;
    }
  free(bytes);
}

static double gradient_norm(pst_assembly *a, int32_t p) {
  int64_t n = pst_assembly_elements(a, p);
  float *g = malloc((size_t)n * sizeof *g);
  assert_ok(pst_pipeline_read(a->pipeline, PST_TENSOR_GRADIENT, p, 0, 0, g, n * (int64_t)sizeof *g));
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += (double)g[i] * (double)g[i];
  free(g);
  return sqrt(sum);
}

static void stories_match_the_reference(void **state) {
  json_t *reference = json_load_file(stories("reference.json"), 0, NULL);
  assert_non_null(reference);
  double want = json_number_value(json_object_get(reference, "mean_cross_entropy"));
  const json_t *norms = json_object_get(reference, "grad_l2");
  static int32_t tokens[4 * 128], targets[4 * 128];
  read_batch(tokens, targets);
  pst_batch b = {.tokens = tokens, .targets = targets, .sequences = 4};
  pst_model_config c;
  assert_ok(pst_model_config_load(stories("config.json"), &c, NULL));
  for (int k = 1; k <= 3; k += 2) {
    pst_assembly *a = assemble_at(&c, k, 128, 2, 2);
    assert_ok(pst_weights_load(a, stories(""), NULL, 0));
    double sum;
    int64_t n;
    assert_ok(pst_pipeline_loss(a->pipeline, &b, &sum, &n, NULL));
    assert_int_equal(n, 4 * 128);
    if (!(fabs(sum / (double)n / want - 1) < 1e-5)) fail_msg("loss %.9f, wanted %.9f", sum / (double)n, want);
    pst_step_result result;
    assert_ok(pst_pipeline_gradients(a->pipeline, &b, 1, 0, &result));
    assert_true(fabs(result.loss / want - 1) < 1e-5);
    assert_int_equal(json_object_size(norms), a->any->params.n);
    for (int32_t p = 0; p < a->any->params.n; p++) {
      const char *name = a->any->params.at[p].name;
      double wanted = json_number_value(json_object_get(norms, name)), seen = gradient_norm(a, p);
      if (!(fabs(seen / wanted - 1) < 1e-4)) fail_msg("%s: norm %.9g, wanted %.9g", name, seen, wanted);
    }
    pst_assembly_destroy(a);
  }
  json_decref(reference);
}

static void stories_come_out_as_they_went_in(void **state) {
  runs *r = *state;
  const char *sets[] = {"stages=[{}, {}, {}]", "threads=1", "data.sequence=32"};
  pst_run *run;
  pst_safetensors *a, *b;
  assert_ok(pst_run_open_trained(stories(""), -1, &(pst_run_options){.sets = sets, .n_sets = 3}, &run));
  assert_ok(pst_run_export(run, in(r, "out")));
  pst_run_close(run);
  assert_ok(pst_safetensors_open(stories(""), &a));
  assert_ok(pst_safetensors_open(in(r, "out"), &b));
  assert_int_equal(pst_safetensors_count(a), pst_safetensors_count(b));
  for (size_t i = 0; i < pst_safetensors_count(a); i++) {
    const pst_safetensors_tensor *x = pst_safetensors_at(a, i), *y = pst_safetensors_find(b, x->name);
    assert_non_null(y);
    assert_int_equal(x->bytes, y->bytes);
    char *p = malloc(x->bytes), *q = malloc(x->bytes);
    assert_ok(pst_safetensors_read(a, x, 0, x->bytes, p));
    assert_ok(pst_safetensors_read(b, y, 0, x->bytes, q));
    assert_memory_equal(p, q, x->bytes);
    free(p);
    free(q);
  }
  pst_safetensors_close(a);
  pst_safetensors_close(b);
  pst_model_config c, d;
  memset(&c, 0, sizeof c);
  memset(&d, 0, sizeof d);
  char config[1100];
  snprintf(config, sizeof config, "%s/config.json", in(r, "out"));
  assert_ok(pst_model_config_load(stories("config.json"), &c, NULL));
  assert_ok(pst_model_config_load(config, &d, NULL));
  assert_memory_equal(&c, &d, sizeof c);
}

typedef struct ids {
  int32_t at[300];
  int n;
} ids;

static void keep(void *user, int32_t id) {
  ids *x = user;
  x->at[x->n++] = id;
}

static void stories_continue_greedily(void **state) {
  char *text = runs_read(stories("greedy_ids.txt"));
  static ids want, seen;
  want.n = seen.n = 0;
  for (char *at = strtok(text, " \n"); at; at = strtok(NULL, " \n")) keep(&want, (int32_t)atoi(at));
  free(text);
  const char *sets[] = {"stages=[{}, {}]", "threads=1", "data.sequence=260"};
  pst_run *run;
  assert_ok(pst_run_open_trained(stories(""), -1, &(pst_run_options){.sets = sets, .n_sets = 3}, &run));
  assert_false(pst_run_bytes(run));
  pst_generate_options g = {
      .prompt = want.at, .n_prompt = 1, .tokens = want.n - 1, .token = keep, .user = &seen};
  assert_ok(pst_run_generate(run, &g));
  assert_int_equal(seen.n, want.n - 1);
  for (int i = 0; i < seen.n; i++)
    if (seen.at[i] != want.at[i + 1])
      fail_msg("token %d is %d, wanted %d", i + 1, seen.at[i], want.at[i + 1]);
  pst_run_close(run);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(files_do_not_know_stages, setup, teardown),
      cmocka_unit_test_setup_teardown(gpt2_file_variants, setup, teardown),
      cmocka_unit_test_setup_teardown(llama_file_variants, setup, teardown),
      cmocka_unit_test_setup_teardown(moments_are_checked, setup, teardown),
      cmocka_unit_test_setup_teardown(weights_that_are_not_finite_take_no_place, setup, teardown),
      cmocka_unit_test(stories_match_the_reference),
      cmocka_unit_test_setup_teardown(stories_come_out_as_they_went_in, setup, teardown),
      cmocka_unit_test(stories_continue_greedily),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
