/* Runs from run files: what is refused and how, what is printed and logged, evaluation, generation, export.
 */
#include "core/base/file.h"
#include "core/checkpoint/config.h"
#include "core/checkpoint/safetensors.h"
#include "tests/engine/runs.h"
#include "tests/support.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

enum { MAX_SETS = 8 };

static int setup(void **state) {
  *state = runs_create();
  return 0;
}

static int teardown(void **state) {
  runs_destroy(*state);
  return 0;
}

static int count(const char *const *sets) {
  int n = 0;
  while (n < MAX_SETS && sets[n]) n++;
  return n;
}

static void assert_no_directory(const runs *r) {
  char path[1024];
  snprintf(path, sizeof path, "%s/runs", r->root);
  assert_int_not_equal(access(path, F_OK), 0);
}

/* ---- refusals ---- */

static void bad_settings_are_refused(void **state) {
  runs *r = *state;
  static const struct {
    const char *sets[MAX_SETS];
    pst_status status;
    const char *text;
  } cases[] = {
      /* splits */
      {{"model.layers=4", "stages=[{layers: 3}]"}, PST_INVALID, "wanted model.layers = 4"},
      {{"model.layers=4", "stages=[{layers: 2}, {layers: 1}]"}, PST_INVALID, "2 + 1 = 3"},
      {{"model.layers=4", "stages=[{layers: 2}, {layers: 2}, {layers: 1}]"}, PST_INVALID, "2 + 2 + 1 = 5"},
      {{"model.layers=4", "stages=[{layers: -1}, {layers: 5}]"}, PST_INVALID, "layers"},
      {{"model.layers=4", "stages=[{layers: 2}, {layers: x}]"}, PST_INVALID, "layers"},
      {{"model.layers=4", "stages=[{layers: 2}, {layers: 0}, {layers: 2}]"},
       PST_INVALID,
       "first and the last"},
      {{"model.layers=1", "stages=[{}, {}, {}, {}, {}]"}, PST_INVALID, "can be cut into 4 at most"},
      /* batch */
      {{"batch={global: 8, microbatches: 3}"}, PST_INVALID, "global = micro x microbatches x replicas"},
      {{"batch={global: 10, micro: 4, microbatches: 3}"}, PST_INVALID, "10 is not 4 x 3 x 1 = 12"},
      {{"batch={global: 10, microbatches: 0}"}, PST_INVALID, "batch.microbatches"},
      {{"batch={global: 1000000000, micro: 2}"}, PST_INVALID, "more than 1e6"},
      {{"optimizer.lr.peak=-1"}, PST_INVALID, "optimizer.lr.peak"},
      /* model */
      {{"model.family=bert"}, PST_UNSUPPORTED, "this build has gpt2, llama"},
      {{"model.heads=3"}, PST_INVALID, "wanted a divisor of model.width = 16"},
      {{"model.kv_heads=1"}, PST_INVALID, "gpt2 has as many as model.heads = 2"},
      {{"model.from=/nowhere"}, PST_IO, "model.from: /nowhere/config.json"},
      {{"data.sequence=32", "model.context=16"}, PST_INVALID, "longer than model.context = 16"},
      /* data */
      {{"data.train=/nowhere.txt"}, PST_IO, "data.train: /nowhere.txt"},
      {{"data.eot=0"}, PST_UNSUPPORTED, "data.eot = 0"},
      {{"data.split=0.001"}, PST_INVALID, "data.split"},
      {{"data.format=u16", "model.vocab=70000"}, PST_INVALID, "cannot name a vocabulary of 70000"},
      {{"model.vocab=100"}, PST_INVALID, "100"},
      /* what is not there */
      {{"precision=bf16"}, PST_UNSUPPORTED, "precision"},
      {{"schedule=nonsense"}, PST_INVALID, "nonsense"},
      {{"schedule=forward-only"}, PST_INVALID, "forward-only has no backwards"},
      {{"stages=[{device: 'cuda:0'}]"}, PST_UNSUPPORTED, "stages.0.device"},
      {{"limits.memory=10kB"}, PST_NO_MEMORY, "stage 0 is the heaviest"},
  };
  for (int i = 0; i < COUNT(cases); i++) {
    pst_run *run = NULL;
    pst_status st = runs_try_open(r, cases[i].sets, count(cases[i].sets), &run);
    if (st != cases[i].status || !strstr(pst_error(), cases[i].text))
      fail_msg("%s: %s: '%s', wanted %s and '%s'", cases[i].sets[0], pst_status_name(st),
               st == PST_OK ? "" : pst_error(), pst_status_name(cases[i].status), cases[i].text);
    assert_no_directory(r);
  }
}

static pst_status open_data(runs *r, const char *path, const char *format) {
  char train[700], as[64];
  snprintf(train, sizeof train, "data.train=%s", path);
  snprintf(as, sizeof as, "data.format=%s", format);
  const char *sets[] = {train, as, "model.vocab=256", "steps=1"};
  pst_run *run = NULL;
  pst_status st = runs_try_open(r, sets, COUNT(sets), &run);
  if (st == PST_OK) st = pst_run_train(run, NULL);
  pst_run_close(run);
  return st;
}

static void bad_data_is_refused(void **state) {
  runs *r = *state;
  char bytes[64];
  memset(bytes, 'a', sizeof bytes);
  assert_fails(open_data(r, runs_write(r, "empty.txt", bytes, 0), "text"), PST_INVALID, "is empty");
  assert_fails(open_data(r, runs_write(r, "one.txt", bytes, 1), "text"), PST_INVALID, "17");
  assert_fails(open_data(r, runs_write(r, "odd.bin", bytes, 33), "u16"), PST_INVALID, "multiple of 2");
  assert_fails(open_data(r, runs_write(r, "short.txt", bytes, 16), "text"), PST_INVALID, "17");
  assert_fails(open_data(r, r->root, "text"), PST_INVALID, "is a directory");
  char fifo[600];
  snprintf(fifo, sizeof fifo, "%s/fifo", r->root);
  assert_int_equal(mkfifo(fifo, 0600), 0);
  assert_fails(open_data(r, fifo, "text"), PST_INVALID, "is a FIFO");
  assert_fails(open_data(r, runs_write(r, "x.jsonl", bytes, 64), "auto"), PST_UNSUPPORTED, "tokenize");
  assert_no_directory(r);
  assert_ok(open_data(r, runs_write(r, "just.txt", bytes, 17), "text"));
  assert_non_null(strstr(r->lines, "no validation"));
}

static void tokens_beyond_the_vocabulary_are_refused(void **state) {
  runs *r = *state;
  enum { N = 3000 };
  static const int at[] = {1234, N - 1, 0};
  for (int i = 0; i < COUNT(at); i++) {
    uint16_t ids[N];
    for (int j = 0; j < N; j++) ids[j] = (uint16_t)(j % 97);
    ids[at[i]] = 97;
    char train[700], where[32];
    snprintf(train, sizeof train, "data.train=%s", runs_write(r, "ids.bin", ids, sizeof ids));
    snprintf(where, sizeof where, "%d", at[i]);
    const char *sets[] = {train, "data.format=u16", "model.vocab=97"};
    pst_run *run = NULL;
    assert_fails(runs_try_open(r, sets, COUNT(sets), &run), PST_INVALID, "97");
    assert_non_null(strstr(pst_error(), where));
    assert_non_null(strstr(pst_error(), "ids.bin"));
    const char *more[] = {train, "data.format=u16", "model.vocab=98"};
    assert_ok(runs_try_open(r, more, COUNT(more), &run));
    pst_run_close(run);
  }
}

/* ---- what training does ---- */

/* Every tensor of the first file differs from the second's. */
static void assert_all_moved(const char *a, const char *b) {
  pst_safetensors *x, *y;
  assert_ok(pst_safetensors_open(a, &x));
  assert_ok(pst_safetensors_open(b, &y));
  assert_int_equal(pst_safetensors_count(x), pst_safetensors_count(y));
  for (size_t i = 0; i < pst_safetensors_count(x); i++) {
    const pst_safetensors_tensor *t = pst_safetensors_at(x, i), *u = pst_safetensors_find(y, t->name);
    char *p = malloc(t->bytes), *q = malloc(t->bytes);
    assert_ok(pst_safetensors_read(x, t, 0, t->bytes, p));
    assert_ok(pst_safetensors_read(y, u, 0, t->bytes, q));
    if (memcmp(p, q, t->bytes) == 0) fail_msg("%s has not moved", t->name);
    free(p);
    free(q);
  }
  pst_safetensors_close(x);
  pst_safetensors_close(y);
}

static void no_layer_is_lost(void **state) {
  runs *r = *state;
  static const struct {
    const char *layers, *stages;
  } cases[] = {{"model.layers=7", "stages=[{}, {}, {}]"}, {"model.layers=5", "stages=[{}, {}, {}, {}]"}};
  for (int i = 0; i < COUNT(cases); i++) {
    char many[32], one[32], before[700], after[700];
    snprintf(many, sizeof many, "name=many%d", i);
    snprintf(one, sizeof one, "name=one%d", i);
    const char *llama[] = {one, cases[i].layers, "model.family=llama", "steps=1", "model.kv_heads=1"};
    const char *cut[] = {many,      cases[i].layers,    "model.family=llama",
                         "steps=1", "model.kv_heads=1", cases[i].stages};
    snprintf(before, sizeof before, "%s/%s-before", r->root, many + 5);
    snprintf(after, sizeof after, "%s/%s-after", r->root, many + 5);
    assert_ok(runs_train(r, llama, COUNT(llama)));
    pst_run *run = runs_open(r, cut, COUNT(cut));
    assert_ok(pst_run_export(run, before)); /* what training would start from */
    assert_ok(pst_run_train(run, NULL));
    assert_ok(pst_run_export(run, after));
    pst_run_close(run);
    assert_all_moved(after, before);
    assert_int_equal(runs_weights(r, one + 5, 1), runs_weights(r, many + 5, 1));
  }
}

static void used_up_data_begins_again(void **state) {
  runs *r = *state;
  char bytes[16 * 28 + 1]; /* 28 windows: 3.5 steps of 8 */
  for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)('a' + i % 7);
  char train[700];
  snprintf(train, sizeof train, "data.train=%s", runs_write(r, "small.txt", bytes, sizeof bytes));
  const char *one[] = {train, "data.split=0", "steps=7", "name=one"};
  const char *four[] = {train, "data.split=0", "steps=7", "name=four", "stages=[{}, {}, {}, {}]"};
  assert_ok(runs_train(r, one, COUNT(one)));
  assert_non_null(strstr(r->lines, "step 4: the training data of 27 windows is used up and begins again"));
  assert_ok(runs_train(r, four, COUNT(four)));
  assert_int_equal(runs_weights(r, "one", 7), runs_weights(r, "four", 7));
}

typedef struct seen {
  int64_t steps[16];
  double losses[16];
  int n, evaluated, saved;
  double last_eval;
} seen;

static void on_progress(void *user, const pst_run_progress *p) {
  seen *s = user;
  assert_true(s->n < 16);
  s->steps[s->n] = p->step;
  s->losses[s->n++] = p->loss;
}

static void on_evaluated(void *user, int64_t step, double loss) {
  seen *s = user;
  s->evaluated++;
  s->last_eval = loss;
}

static void on_saved(void *user, int64_t step, const char *directory) {
  seen *s = user;
  s->saved++;
}

static char *read_in(const runs *r, const char *name) {
  char path[1024];
  snprintf(path, sizeof path, "%s/%s", r->root, name);
  return runs_read(path);
}

static void log_and_progress_agree(void **state) {
  runs *r = *state;
  static const char *const keys[] = {"step",         "tokens",  "loss",         "grad_norm", "lr",
                                     "tokens_per_s", "step_ms", "data_wait_ms", "busy_ms",   "wait_ms"};
  const char *sets[] = {"steps=7", "log.every=3", "stages=[{}, {}, {}]", "eval.every=2",
                        "checkpoint.every=2"};
  seen s = {.n = 0};
  pst_run_events e = {.progress = on_progress, .evaluated = on_evaluated, .saved = on_saved, .user = &s};
  pst_run *run = runs_open(r, sets, COUNT(sets));
  assert_ok(pst_run_train(run, &e));
  pst_run_close(run);
  assert_int_equal(s.n, 3);
  assert_int_equal(s.steps[0], 3);
  assert_int_equal(s.steps[1], 6);
  assert_int_equal(s.steps[2], 7);
  assert_int_equal(s.evaluated, 4);
  assert_int_equal(s.saved, 4);
  char *text = read_in(r, "runs/toy/log.jsonl");
  double losses[8] = {0};
  int n = 0, evals = 0, saves = 0;
  for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
    json_t *record = json_loads(line, 0, NULL);
    assert_non_null(record);
    const char *event = json_string_value(json_object_get(record, "event"));
    if (event) {
      evals += strcmp(event, "eval") == 0;
      saves += strcmp(event, "save") == 0;
    } else {
      assert_int_equal(json_object_size(record), COUNT(keys));
      for (int i = 0; i < COUNT(keys); i++) assert_non_null(json_object_get(record, keys[i]));
      n++;
      assert_int_equal(json_integer_value(json_object_get(record, "step")), n);
      assert_int_equal(json_integer_value(json_object_get(record, "tokens")), n * 8 * 16);
      assert_int_equal(json_array_size(json_object_get(record, "busy_ms")), 3);
      losses[n] = json_real_value(json_object_get(record, "loss"));
      assert_true(losses[n] > 1);
    }
    json_decref(record);
  }
  free(text);
  assert_int_equal(n, 7);
  assert_int_equal(evals, 4);
  assert_int_equal(saves, 4);
  assert_true(fabs(s.losses[0] - (losses[1] + losses[2] + losses[3]) / 3) < 1e-12);
  assert_true(fabs(s.losses[1] - (losses[4] + losses[5] + losses[6]) / 3) < 1e-12);
  assert_true(fabs(s.losses[2] - losses[7]) < 1e-12);
}

static void the_resolved_file_runs_again(void **state) {
  runs *r = *state;
  const char *sets[] = {"stages=[{}, {}]", "batch={global: 6}"};
  assert_ok(runs_train(r, sets, 2));
  char file[1024];
  snprintf(file, sizeof file, "%s/runs/toy/run.yaml", r->root);
  const char *again[] = {"name=again"};
  pst_run *run = NULL;
  assert_ok(pst_run_open(&(pst_run_options){.file = file, .sets = again, .n_sets = 1}, &run));
  assert_ok(pst_run_train(run, NULL));
  pst_run_close(run);
  assert_int_equal(runs_weights(r, "toy", 8), runs_weights(r, "again", 8));
  char *env = read_in(r, "runs/again/env.json");
  json_t *root = json_loads(env, 0, NULL);
  assert_int_equal(json_array_size(json_object_get(root, "stages")), 2);
  json_decref(root);
  free(env);
}

static void too_high_a_rate_stops_the_run(void **state) {
  runs *r = *state;
  const char *sets[] = {"optimizer={name: sgd, lr: {peak: 1e30}, clip: 0}", "checkpoint.every=1"};
  assert_fails(runs_train(r, sets, 2), PST_NONFINITE, "step");
  char *text = read_in(r, "runs/toy/checkpoints/step-000001/manifest.json"); /* the last good one is there */
  free(text);
}

/* The weights of step 1 are finite, what they compute is not. */
static void a_validation_that_is_not_finite_stops_the_run(void **state) {
  runs *r = *state;
  const char *sets[] = {"optimizer={name: sgd, lr: {peak: 1e38, final: 1e38, decay: constant}, clip: 0}",
                        "checkpoint.every=1", "eval.every=1"};
  assert_fails(runs_train(r, sets, COUNT(sets)), PST_NONFINITE, "the validation loss of step 1 is");
  char path[1024], **names = NULL;
  size_t n;
  snprintf(path, sizeof path, "%s/runs/toy/checkpoints", r->root);
  assert_ok(pst_dir_list(path, &names, &n));
  assert_int_equal(n, 0);
  pst_dir_list_free(names, n);
  char *text = read_in(r, "runs/toy/log.jsonl"); /* no number in it that JSON does not have */
  assert_null(strstr(text, "nan"));
  free(text);
}

/* ---- evaluation ---- */

static void evaluation_does_not_know_stages(void **state) {
  runs *r = *state;
  char bytes[16 * 12 + 9]; /* 13 sequences, the last one of 8 targets */
  for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)('a' + (i * i) % 23);
  char valid[700];
  snprintf(valid, sizeof valid, "data.valid=%s", runs_write(r, "valid.txt", bytes, sizeof bytes));
  double losses[2];
  static const char *const stages[] = {"stages=[{}]", "stages=[{}, {}, {}]"};
  for (int i = 0; i < 2; i++) {
    char name[32];
    snprintf(name, sizeof name, "name=every%d", i);
    const char *sets[] = {name, valid, stages[i], "eval={every: 1, sequences: 13}"};
    pst_run *run = runs_open(r, sets, COUNT(sets));
    int64_t tokens;
    assert_ok(pst_run_train(run, NULL));
    assert_ok(pst_run_evaluate(run, 0, &losses[i], &tokens));
    assert_int_equal(tokens, sizeof bytes - 1);
    pst_run_close(run);
  }
  assert_true(losses[0] == losses[1]);
  const char *never[] = {"name=never", valid, "eval.every=0"};
  assert_ok(runs_train(r, never, 3));
  assert_int_equal(runs_weights(r, "never", 8), runs_weights(r, "every0", 8));
  assert_int_equal(runs_weights(r, "never", 8), runs_weights(r, "every1", 8));
  /* what the run left gives the same loss, at another split */
  char directory[700];
  snprintf(directory, sizeof directory, "%s/runs/every1", r->root);
  const char *one[] = {"stages=[{}, {}]"};
  pst_run *run;
  double loss;
  int64_t tokens;
  assert_ok(pst_run_open_trained(directory, -1, &(pst_run_options){.sets = one, .n_sets = 1}, &run));
  assert_ok(pst_run_evaluate(run, 0, &loss, &tokens));
  assert_true(loss == losses[0]);
  assert_ok(pst_run_evaluate(run, 2, &loss, &tokens));
  assert_int_equal(tokens, 2 * 16);
  assert_fails(pst_run_train(run, NULL), PST_INVALID, "training needs the run file");
  pst_run_close(run);
  /* nor does the number of batches that it takes */
  const char *whole[] = {"batch={global: 16, micro: 16}"};
  assert_ok(pst_run_open_trained(directory, -1, &(pst_run_options){.sets = whole, .n_sets = 1}, &run));
  assert_ok(pst_run_evaluate(run, 0, &loss, &tokens));
  assert_int_equal(tokens, sizeof bytes - 1);
  assert_true(fabs(loss / losses[0] - 1) < 1e-6);
  pst_run_close(run);
}

/* ---- generation and export ---- */

typedef struct ids {
  int32_t at[256];
  int n;
} ids;

static void keep(void *user, int32_t id) {
  ids *x = user;
  x->at[x->n++] = id;
}

static void write_text(pst_run *run, const char *prompt, double temperature, uint64_t seed, ids *out) {
  out->n = 0;
  pst_generate_options g = {.prompt_text = prompt,
                            .tokens = 40,
                            .temperature = temperature,
                            .seed = seed,
                            .token = keep,
                            .user = out};
  assert_ok(pst_run_generate(run, &g));
  assert_int_equal(out->n, 40);
}

static bool same(const ids *a, const ids *b) {
  return a->n == b->n && memcmp(a->at, b->at, (size_t)a->n * sizeof a->at[0]) == 0;
}

static void text_depends_on_seed_alone(void **state) {
  runs *r = *state;
  const char *sets[] = {"steps=30", "stages=[{}, {}]", "sample={every: 15, tokens: 20, prompt: the wheel}"};
  assert_ok(runs_train(r, sets, 3));
  char *samples = read_in(r, "runs/toy/samples.txt");
  assert_non_null(strstr(samples, "=== step 15 ===\nthe wheel"));
  assert_non_null(strstr(samples, "=== step 30 ===\nthe wheel"));
  free(samples);
  char directory[700], out[700];
  snprintf(directory, sizeof directory, "%s/runs/toy", r->root);
  snprintf(out, sizeof out, "%s/hf", r->root);
  pst_run *a, *b;
  const char *three[] = {"stages=[{}, {}, {}]"}, *like[] = {"data.sequence=16"};
  assert_ok(pst_run_open_trained(directory, -1, NULL, &a));
  assert_true(pst_run_bytes(a));
  assert_ok(pst_run_export(a, out));
  ids x, y;
  assert_ok(pst_run_open_trained(directory, 30, &(pst_run_options){.sets = three, .n_sets = 1}, &b));
  write_text(a, "pipe", 0, 0, &x);
  write_text(b, "pipe", 0, 1, &y);
  assert_true(same(&x, &y));
  write_text(a, "################ turns the wheel", 0.9, 3, &x); /* longer than the window */
  write_text(b, " turns the wheel", 0.9, 3, &y);
  assert_true(same(&x, &y));
  write_text(b, "pipe", 0.9, 4, &y);
  assert_false(same(&x, &y));
  pst_run_close(b);
  assert_ok(pst_run_open_trained(out, -1, &(pst_run_options){.sets = like, .n_sets = 1}, &b));
  assert_true(pst_run_bytes(b));
  write_text(a, "", 0.9, 3, &x);
  write_text(b, "", 0.9, 3, &y);
  assert_true(same(&x, &y));
  pst_run_close(a);
  pst_run_close(b);
  assert_fails(pst_run_open_trained(directory, 7, NULL, &a), PST_IO, "step-000007");
  assert_fails(pst_run_open_trained(r->root, -1, NULL, &a), PST_INVALID, "no complete checkpoint");
  assert_fails(pst_run_open_trained("/nowhere", -1, NULL, &a), PST_IO, "/nowhere/config.json");
}

static void a_run_starts_from_an_export(void **state) {
  runs *r = *state;
  char out[700], from[720], width[] = "model.width=32";
  snprintf(out, sizeof out, "%s/hf", r->root);
  snprintf(from, sizeof from, "model={from: %s}", out);
  pst_run *run = runs_open(r, NULL, 0);
  assert_ok(pst_run_train(run, NULL));
  assert_ok(pst_run_export(run, out));
  pst_run_close(run);
  char again[700];
  snprintf(again, sizeof again, "%s/again", r->root);
  const char *sets[] = {"name=tuned", from, "stages=[{}, {}]"};
  pst_run *tuned = NULL;
  char file[1024];
  int n = snprintf(file, sizeof file, "steps: 3\nruns: %s/runs\ndata: {train: %s, sequence: 16}\n", r->root,
                   r->text);
  char path[600];
  snprintf(path, sizeof path, "%s", runs_write(r, "tune.yaml", file, (size_t)n));
  assert_ok(pst_run_open(&(pst_run_options){.file = path, .sets = sets, .n_sets = 3}, &tuned));
  assert_ok(pst_run_export(tuned, again));
  pst_run_close(tuned);
  char *a = read_in(r, "hf/model.safetensors"), *b = read_in(r, "again/model.safetensors");
  assert_memory_equal(a, b, 4096);
  free(a);
  free(b);
  const char *wrong[] = {"name=tuned", from, width};
  assert_fails(pst_run_open(&(pst_run_options){.file = path, .sets = wrong, .n_sets = 3}, &tuned),
               PST_INVALID, "model.width = 32");
}

/* ---- what is printed ---- */

static char *print(pst_run *run, pst_status (*function)(pst_run *, FILE *)) {
  char *text = NULL;
  size_t n;
  FILE *f = open_memstream(&text, &n);
  assert_ok(function(run, f));
  fclose(f);
  return text;
}

static void the_plan_and_the_report_say_what_is(void **state) {
  runs *r = *state;
  static const char *const wanted[] = {"gpt2: 3 layers, width 16",
                                       "8 sequences a step = 2 a microbatch x 4",
                                       "K = 4 stages, M = 4 microbatches, bubble (K-1)/(M+K-1) = 43 %",
                                       "M = 4, K = 4: bubble 43 %; M = 16 gives 16 %",
                                       "embedding, layer 0",
                                       "head",
                                       "heaviest",
                                       "hash ",
                                       "numerics cpu"};
  const char *sets[] = {"stages=[{layers: 1}, {layers: 1}, {layers: 1}, {layers: 0}]"};
  pst_run *run = runs_open(r, sets, 1);
  char *text = print(run, pst_run_describe);
  for (int i = 0; i < COUNT(wanted); i++)
    if (!strstr(text, wanted[i])) fail_msg("'%s' is not in\n%s", wanted[i], text);
  free(text);
  assert_no_directory(r);
  assert_fails(pst_run_report(run, stdout), PST_INVALID, "no step was trained");
  assert_ok(pst_run_train(run, NULL));
  text = print(run, pst_run_report);
  assert_non_null(strstr(text, "8 steps of"));
  assert_non_null(strstr(text, "bubble    predicted"));
  assert_non_null(strstr(text, "M = 16 gives 16 %"));
  free(text);
  pst_run_close(run);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(bad_settings_are_refused, setup, teardown),
      cmocka_unit_test_setup_teardown(bad_data_is_refused, setup, teardown),
      cmocka_unit_test_setup_teardown(tokens_beyond_the_vocabulary_are_refused, setup, teardown),
      cmocka_unit_test_setup_teardown(no_layer_is_lost, setup, teardown),
      cmocka_unit_test_setup_teardown(used_up_data_begins_again, setup, teardown),
      cmocka_unit_test_setup_teardown(log_and_progress_agree, setup, teardown),
      cmocka_unit_test_setup_teardown(the_resolved_file_runs_again, setup, teardown),
      cmocka_unit_test_setup_teardown(too_high_a_rate_stops_the_run, setup, teardown),
      cmocka_unit_test_setup_teardown(a_validation_that_is_not_finite_stops_the_run, setup, teardown),
      cmocka_unit_test_setup_teardown(evaluation_does_not_know_stages, setup, teardown),
      cmocka_unit_test_setup_teardown(text_depends_on_seed_alone, setup, teardown),
      cmocka_unit_test_setup_teardown(a_run_starts_from_an_export, setup, teardown),
      cmocka_unit_test_setup_teardown(the_plan_and_the_report_say_what_is, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
