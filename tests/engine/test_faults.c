/* What a step does when something goes wrong, by injection: the first cause is the message, all threads end,
 * nothing is written over. Messages count steps from 1, calls from 0. */
#include "core/base/clock.h"
#include "core/engine/internal.h"
#include "tests/engine/toy.h"
#include "tests/support.h"

#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int count_threads(void) {
  DIR *d = opendir("/proc/self/task");
  if (!d) return -1;
  int n = 0;
  for (struct dirent *e = readdir(d); e; e = readdir(d)) n += e->d_name[0] != '.';
  closedir(d);
  return n;
}

/* A joined thread may be listed for a moment more. */
static void assert_threads(int wanted) {
  for (int i = 0; i < 100 && count_threads() != wanted; i++)
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  assert_int_equal(count_threads(), wanted);
}

static void sleep_ms(int64_t ms) {
  nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

typedef enum wrong { ERRS, DELAYS, HANGS } wrong;

typedef struct injection {
  wrong what;
  int worker;
  int64_t step, microbatch;
  unsigned kind; /* pst_action_kind */
  int64_t ms;
  _Atomic int hits;
  _Atomic bool let_go;
} injection;

static pst_status inject(void *user, int worker, int64_t step, pst_action a) {
  injection *i = user;
  bool here = i->worker == worker && i->step == step && i->kind == a.kind && i->microbatch == a.microbatch;
  if (i->what == DELAYS) here = i->worker == worker && (a.microbatch + a.kind) % 3 == 0;
  if (!here) return PST_OK;
  atomic_fetch_add(&i->hits, 1);
  switch (i->what) {
  case ERRS:
    return pst_fail(PST_LOST, "device unplugged");
  case DELAYS:
    sleep_ms(i->ms);
    return PST_OK;
  default:
    for (int64_t waited = 0; waited < i->ms && !atomic_load(&i->let_go); waited += 10) sleep_ms(10);
    return PST_OK;
  }
}

static void an_error_is_the_first_cause_and_ends_the_step(void **state) {
  (void)state;
  int threads = count_threads();
  static const unsigned kinds[] = {PST_ACTION_F, PST_ACTION_B, PST_ACTION_UPDATE, PST_ACTION_REDUCE};
  for (int k = 1; k <= 4; k++) {
    for (int i = 0; i < 4; i++) {
      injection x = {.what = ERRS, .worker = (k + i) % k, .step = 2, .kind = kinds[i]};
      x.microbatch = i < 2 ? 3 : 0;
      toy_options o = i % 2 ? toy_gpt2() : toy_llama();
      o.n_stages = k;
      o.schedule = i % 2 ? "1f1b" : "gpipe";
      o.hook = inject;
      o.hook_user = &x;
      toy *t = toy_create(&o);
      pst_step_result result = {.loss = -7};
      for (int s = 0; s < 2; s++) assert_ok(toy_step(t, s, &result));
      result.loss = -7;
      char text[96], action[PST_ACTION_TEXT];
      pst_action_format(pst_action_make((pst_action_kind)x.kind, i < 2 ? x.worker : 0, x.microbatch), action);
      snprintf(text, sizeof text, "worker %d, step 3, %s: device unplugged", x.worker, action);
      int64_t begin = pst_clock_ns();
      assert_fails(toy_step(t, 2, &result), PST_LOST, text);
      assert_true(strncmp(pst_error(), text, strlen(text)) == 0); /* nothing stands before the cause */
      assert_true(pst_clock_ns() - begin < 2000000000);
      assert_true(result.loss == -7);
      assert_int_equal(atomic_load(&x.hits), 1);
      assert_fails(toy_step(t, 3, &result), PST_LOST, text); /* dead: the first cause again */
      uint64_t none;
      assert_fails(pst_pipeline_read(t->pipeline, PST_TENSOR_PARAM, 0, 0, 0, &none, 4), PST_LOST, text);
      assert_false(pst_pipeline_lost(t->pipeline));
      toy_destroy(t);
    }
  }
  assert_threads(threads);
}

static void a_delayed_worker_does_not_change_bits(void **state) {
  (void)state;
  for (int model = 0; model < 2; model++) {
    toy_options o = model ? toy_gpt2() : toy_llama();
    toy *t = toy_create(&o);
    double loss[3], norm[3];
    pst_step_result result;
    for (int s = 0; s < 3; s++) {
      assert_ok(toy_step(t, s, &result));
      loss[s] = result.loss;
      norm[s] = result.gradient_norm;
    }
    uint64_t weights = toy_weights_hash(t);
    toy_destroy(t);
    for (int w = 0; w < 3; w++) {
      for (int form = 0; form < 4; form++) {
        injection x = {.what = DELAYS, .worker = w, .ms = 1};
        o.n_stages = 3;
        o.schedule = form % 2 ? "1f1b" : "gpipe";
        o.backward = (pst_backward)form;
        o.hook = inject;
        o.hook_user = &x;
        t = toy_create(&o);
        for (int s = 0; s < 3; s++) {
          assert_ok(toy_step(t, s, &result));
          assert_memory_equal(&loss[s], &result.loss, sizeof(double));
          assert_memory_equal(&norm[s], &result.gradient_norm, sizeof(double));
        }
        assert_true(atomic_load(&x.hits) > 10);
        assert_true(toy_weights_hash(t) == weights);
        toy_destroy(t);
      }
    }
  }
}

static void a_hang_that_ends_is_named(void **state) {
  (void)state;
  int threads = count_threads();
  for (int k = 1; k <= 3; k++) {
    injection x = {
        .what = HANGS, .worker = k - 1, .step = 1, .kind = PST_ACTION_B, .microbatch = 2, .ms = 1500};
    toy_options o = toy_gpt2();
    o.n_stages = k;
    o.hook = inject;
    o.hook_user = &x;
    o.op_limit_ns = 300000000;
    toy *t = toy_create(&o);
    pst_step_result result;
    assert_ok(toy_step(t, 0, &result));
    char text[64];
    snprintf(text, sizeof text, "worker %d at %dB2", k - 1, k - 1);
    assert_fails(toy_step(t, 1, &result), PST_HUNG, text);
    assert_non_null(strstr(pst_error(), "no action ended for 0.3 s"));
    assert_false(pst_pipeline_lost(t->pipeline));
    toy_destroy(t);
  }
  assert_threads(threads);
}

/* Time in which the whole process was stopped (SIGSTOP, Ctrl-Z, a debugger) is nobody's fault. */
static void a_stopped_process_does_not_hang(void **state) {
  (void)state;
  pid_t pid = fork();
  if (pid == 0) {
    injection x = {.what = HANGS, .worker = 1, .kind = PST_ACTION_B, .microbatch = 2, .ms = 400};
    toy_options o = toy_gpt2();
    o.n_stages = 2;
    o.hook = inject;
    o.hook_user = &x;
    o.op_limit_ns = 1200000000;
    toy *t = toy_create(&o);
    pst_step_result result;
    raise(SIGSTOP); /* the parent times from here on */
    pst_status st = toy_step(t, 0, &result);
    if (st != PST_OK) print_message("%s\n", pst_error());
    _exit(st == PST_OK && atomic_load(&x.hits) == 1 ? 0 : 1);
  }
  int status;
  assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
  assert_true(WIFSTOPPED(status));
  kill(pid, SIGCONT);
  sleep_ms(200); /* into the delay */
  kill(pid, SIGSTOP);
  sleep_ms(1800);
  kill(pid, SIGCONT);
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* A thread that never comes back: the step still returns, destroy leaves its memory alone. */
static void a_hang_for_good_is_given_up(void **state) {
  (void)state;
  int threads = count_threads();
  injection x = {.what = HANGS, .worker = 1, .step = 0, .kind = PST_ACTION_F, .microbatch = 1, .ms = 60000};
  toy_options o = toy_gpt2();
  o.n_stages = 3;
  o.hook = inject;
  o.hook_user = &x;
  o.op_limit_ns = 300000000;
  toy *t = toy_create(&o);
  pst_step_result result;
  int64_t begin = pst_clock_ns();
  assert_fails(toy_step(t, 0, &result), PST_HUNG, "worker 1 at 1F1");
  double took = (double)(pst_clock_ns() - begin) / 1e9;
  print_message("given up after %.1f s\n", took);
  assert_true(took < 15);
  assert_true(pst_pipeline_lost(t->pipeline));
  begin = pst_clock_ns();
  toy_destroy(t);
  assert_true(pst_clock_ns() - begin < 100000000);
  assert_fails(toy_step(t, 1, &result), PST_HUNG, "worker 1 at 1F1");
  atomic_store(&x.let_go, true); /* so that the test leaves nothing behind */
  for (int i = 0; i < 300 && pst_pipeline_lost(t->pipeline); i++) sleep_ms(10);
  assert_false(pst_pipeline_lost(t->pipeline));
  toy_destroy(t);
  assert_threads(threads);
}

/* The weights of a dead pipeline, straight from the devices' memory. */
static float *weights_inside(toy *t, int64_t *out_n) {
  int64_t n = 0, at = 0;
  for (int i = 0; i < t->options.n_stages; i++)
    n += t->pipeline->workers[i].segment[PST_SEGMENT_PARAM].bytes / 4;
  float *all = calloc((size_t)n, sizeof *all);
  for (int i = 0; i < t->options.n_stages; i++) {
    pst__worker *w = &t->pipeline->workers[i];
    const pst_segment *s = &w->segment[PST_SEGMENT_PARAM];
    for (int b = 0; b < s->n_blocks; b++) {
      int64_t bytes = w->layout[PST_SEGMENT_PARAM].block_bytes[b];
      assert_ok(w->device->table->download(w->device, all + at, s->blocks[b], 0, bytes));
      at += bytes / 4;
    }
  }
  *out_n = n;
  return all;
}

static void a_gradient_that_is_not_finite_stops_the_run(void **state) {
  (void)state;
  static const float bad[] = {INFINITY, NAN};
  for (int k = 1; k <= 3; k++) {
    for (int i = 0; i < 2; i++) {
      toy_options o = toy_llama();
      o.n_stages = k;
      toy *t = toy_create(&o);
      pst_step_result result;
      assert_ok(toy_step(t, 0, &result));
      int32_t param = -1;
      for (int32_t p = 0; p < t->train->params.n; p++)
        if (strcmp(t->train->params.at[p].name, "model.norm.weight") == 0) param = p;
      assert_in_range(param, 0, t->train->params.n);
      assert_ok(pst_pipeline_write(t->pipeline, PST_TENSOR_PARAM, param, 0, 4, &bad[i], 4));
      int64_t n;
      float *before = weights_inside(t, &n);
      assert_fails(toy_step(t, 1, &result), PST_NONFINITE,
                   "step 2, stage 0: the gradient of model.embed_tokens");
      assert_non_null(strstr(pst_error(), "is not finite"));
      assert_non_null(strstr(pst_error(), "0.01"));
      float *after = weights_inside(t, &n);
      assert_memory_equal(before, after, (size_t)n * sizeof *before);
      free(before);
      free(after);
      toy_destroy(t);
    }
  }
}

static void a_huge_learning_rate_stops_the_run(void **state) {
  (void)state;
  for (int model = 0; model < 2; model++) {
    toy_options o = model ? toy_gpt2() : toy_llama();
    o.optimizer.kind = PST_SGD;
    o.optimizer.clip = 0;
    o.lr = 1e4;
    o.n_stages = 2;
    toy *t = toy_create(&o);
    pst_status st = PST_OK;
    int64_t n, s;
    float *before = NULL;
    for (s = 0; s < 500 && st == PST_OK; s++) {
      pst_step_result result;
      free(before);
      before = weights_inside(t, &n);
      st = toy_step(t, s, &result);
    }
    char text[32];
    snprintf(text, sizeof text, "step %lld, stage", (long long)s);
    print_message("%s\n", st == PST_OK ? "still finite" : pst_error());
    assert_int_equal(st, PST_NONFINITE);
    assert_non_null(strstr(pst_error(), text));
    float *after = weights_inside(t, &n);
    assert_memory_equal(before, after, (size_t)n * sizeof *before);
    free(before);
    free(after);
    toy_destroy(t);
  }
}

static void too_little_memory_is_refused_before_it_is_taken(void **state) {
  (void)state;
  for (int k = 1; k <= 3; k++) {
    toy_options o = toy_gpt2();
    o.n_stages = k;
    toy *t = toy_create(&o);
    int64_t need = 0;
    for (int s = 0; s < k; s++) {
      pst_stage_memory m;
      pst_pipeline_memory(t->pipeline, s, &m);
      need += m.total_bytes;
    }
    toy_destroy(t);
    o.memory_limit_bytes = need;
    toy_destroy(toy_create(&o));
    o.memory_limit_bytes = need - 1;
    char text[96];
    snprintf(text, sizeof text, "the plan needs %.1f MiB for all stages on the host, %.1f MiB are to be had",
             (double)need / 1048576, (double)(need - 1) / 1048576);
    int threads = count_threads();
    assert_fails(toy_try_create(&o, &t), PST_NO_MEMORY, text);
    assert_non_null(strstr(pst_error(), "is the heaviest with"));
    assert_non_null(strstr(pst_error(), "would help"));
    assert_threads(threads);
  }
}

static void bad_calls_leave_the_pipeline_alive(void **state) {
  (void)state;
  toy_options o = toy_gpt2();
  o.n_stages = 2;
  toy *t = toy_create(&o);
  pst_batch batch;
  pst_step_result result;
  toy_batch(t, 0, &batch);
  batch.sequences++;
  assert_fails(pst_pipeline_step(t->pipeline, &batch, 1, 0, 0.1, &result), PST_INVALID,
               "a batch of 9 sequences");
  batch.sequences = 0;
  assert_fails(pst_pipeline_step(t->pipeline, &batch, 1, 0, 0.1, &result), PST_INVALID, "wanted 1 to 8");
  double sum;
  int64_t n;
  batch.sequences = 8;
  assert_fails(pst_pipeline_loss(t->pipeline, &batch, &sum, &n, NULL), PST_INVALID,
               "not built for evaluation");
  float x;
  assert_fails(pst_pipeline_read(t->pipeline, PST_TENSOR_PARAM, 9999, 0, 0, &x, 4), PST_INVALID,
               "parameter 9999");
  assert_fails(pst_pipeline_read(t->pipeline, PST_TENSOR_PARAM, -1, 0, 0, &x, 4), PST_INVALID,
               "parameter -1");
  assert_fails(pst_pipeline_read(t->pipeline, PST_TENSOR_MOMENT, 0, 2, 0, &x, 4), PST_INVALID, "moment 2");
  assert_fails(pst_pipeline_read(t->pipeline, PST_TENSOR_PARAM, 0, 0, 97 * 32 * 4, &x, 4), PST_INVALID,
               "wte.weight: 4 bytes from byte 12416 on, of 12416");
  assert_fails(pst_pipeline_read(t->pipeline, PST_TENSOR_PARAM, 0, 0, INT64_MAX, &x, 4), PST_INVALID,
               "of 12416");
  assert_fails(pst_pipeline_start(t->pipeline), PST_INVALID, "started already");
  assert_ok(toy_step(t, 0, &result));
  toy_destroy(t);
  pst_pipeline_destroy(NULL);
  o.microbatches = 0;
  o.schedule = "zigzag";
  o.microbatches = 4;
  assert_fails(toy_try_create(&o, &t), PST_INVALID, "zigzag");
}

/* Sequences that a batch lacks are empty: they change nothing. */
static void a_short_batch_weighs_each_token_once(void **state) {
  (void)state;
  uint64_t weights = 0;
  double loss = 0;
  for (int k = 1; k <= 3; k++) {
    toy_options o = toy_gpt2();
    o.n_stages = k;
    toy *t = toy_create(&o);
    pst_batch batch;
    pst_step_result result;
    toy_batch(t, 0, &batch);
    batch.sequences = 5;
    assert_ok(pst_pipeline_step(t->pipeline, &batch, 1, 0, 0.01, &result));
    assert_int_equal(result.tokens, 5 * 32);
    if (k == 1) {
      weights = toy_weights_hash(t);
      loss = result.loss;
    }
    assert_true(weights == toy_weights_hash(t));
    assert_memory_equal(&loss, &result.loss, sizeof loss);
    toy_destroy(t);
  }
}

static void *nothing(void *arg) {
  return arg;
}

int main(void) {
  pthread_t first; /* with it comes the thread that a sanitizer keeps for itself */
  if (pthread_create(&first, NULL, nothing, NULL) == 0) pthread_join(first, NULL);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_error_is_the_first_cause_and_ends_the_step),
      cmocka_unit_test(a_delayed_worker_does_not_change_bits),
      cmocka_unit_test(a_hang_that_ends_is_named),
      cmocka_unit_test(a_stopped_process_does_not_hang),
      cmocka_unit_test(a_hang_for_good_is_given_up),
      cmocka_unit_test(a_gradient_that_is_not_finite_stops_the_run),
      cmocka_unit_test(a_huge_learning_rate_stops_the_run),
      cmocka_unit_test(too_little_memory_is_refused_before_it_is_taken),
      cmocka_unit_test(bad_calls_leave_the_pipeline_alive),
      cmocka_unit_test(a_short_batch_weighs_each_token_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
