/* Training that is stopped or killed and goes on, also on another layout, ends with the bytes of the unbroken
 * run. */
#include "core/base/clock.h"
#include "core/base/rng.h"
#include "tests/engine/runs.h"
#include "tests/support.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

static int setup(void **state) {
  *state = runs_create();
  return 0;
}

static int teardown(void **state) {
  runs_destroy(*state);
  return 0;
}

static void sleep_ns(int64_t ns) {
  struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
  nanosleep(&t, NULL);
}

typedef struct stopper {
  pst_run *run;
  int64_t at;
} stopper;

static void stop_at(void *user, const pst_run_progress *p) {
  const stopper *s = user;
  if (p->step == s->at) pst_run_stop(s->run);
}

/* Trains until step `at`, stops there. */
static void train_to(runs *r, const char *const *sets, int n_sets, int64_t at) {
  stopper s = {.run = runs_open(r, sets, n_sets), .at = at};
  pst_run_events events = {.progress = stop_at, .user = &s};
  assert_fails(pst_run_train(s.run, &events), PST_STOPPED, "stopped after step");
  pst_run_close(s.run);
}

static void another_layout_goes_on(void **state) {
  runs *r = *state;
  static const char *const layouts[][5] = {
      {"stages=[{}]", "threads=2"},
      {"stages=[{layers: 0}, {layers: 2}, {layers: 1}]", "schedule=gpipe"},
      {"stages=[{}, {}, {}, {}, {}]", "backward=split", "threads=2"},
  };
  const char *whole[] = {"name=whole", "stages=[{}, {}]", "log.every=1"};
  assert_ok(runs_train(r, whole, COUNT(whole)));
  uint64_t want = runs_weights(r, "whole", 8);
  for (int i = 0; i < COUNT(layouts); i++) {
    char name[32];
    snprintf(name, sizeof name, "name=broken%d", i);
    const char *first[] = {name, "stages=[{}, {}]", "log.every=1"};
    train_to(r, first, COUNT(first), 5);
    const char *then[8] = {name, "log.every=1"};
    int n = 2;
    for (int j = 0; j < 5 && layouts[i][j]; j++) then[n++] = layouts[i][j];
    assert_ok(runs_train(r, then, n));
    assert_non_null(strstr(r->lines, "step 5, complete"));
    if (runs_weights(r, name + 5, 8) != want) fail_msg("layout %d differs from the unbroken run", i);
  }
}

static void *stop_later(void *arg) {
  stopper *s = arg;
  sleep_ns(s->at);
  pst_run_stop(s->run);
  return NULL;
}

static void stops_at_any_moment(void **state) {
  runs *r = *state;
  enum { ROUNDS = 20 };
  uint64_t seed = (uint64_t)time(NULL);
  print_message("seed %llu\n", (unsigned long long)seed);
  const char *whole[] = {"name=whole", "stages=[{}, {}]", "steps=40"};
  int64_t begin = pst_clock_ns();
  assert_ok(runs_train(r, whole, COUNT(whole)));
  int64_t took = pst_clock_ns() - begin;
  uint64_t want = runs_weights(r, "whole", 40);
  const char *sets[] = {"name=broken", "stages=[{}, {}]", "steps=40"};
  int stopped = 0;
  for (int i = 0; i < ROUNDS; i++) {
    uint32_t x[4];
    pst_rng_philox(pst_rng_key_make(seed, 1), (uint32_t[4]){(uint32_t)i, 0, 0, 0}, x);
    stopper s = {.run = runs_open(r, sets, COUNT(sets)), .at = x[0] % (took / 6 + 1)};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, stop_later, &s), 0);
    pst_status st = pst_run_train(s.run, NULL);
    pthread_join(thread, NULL);
    pst_run_close(s.run);
    if (st == PST_OK) break; /* reached the end */
    assert_int_equal(st, PST_STOPPED);
    stopped++;
  }
  print_message("stopped %d times\n", stopped);
  assert_true(stopped > 0);
  assert_ok(runs_train(r, sets, COUNT(sets)));
  assert_int_equal(runs_weights(r, "broken", 40), want);
}

static void child(runs *r, const char *const *sets, int n_sets) {
  pst_run *run = NULL;
  pst_run_options o = {.file = r->file, .sets = sets, .n_sets = n_sets};
  pst_status st = pst_run_open(&o, &run);
  if (st == PST_OK) st = pst_run_train(run, NULL);
  pst_run_close(run);
  _exit(st == PST_OK ? 0 : 1);
}

/* The steps in log.jsonl, in order and each once. */
static void check_log(const runs *r, const char *name, int64_t steps) {
  char path[1024];
  snprintf(path, sizeof path, "%s/runs/%s/log.jsonl", r->root, name);
  char *text = runs_read(path);
  int64_t next = 1;
  for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
    if (strncmp(line, "{\"step\": ", 9) != 0) continue;
    assert_int_equal(strtoll(line + 9, NULL, 10), next);
    next++;
  }
  assert_int_equal(next, steps + 1);
  free(text);
}

static void killed_at_any_moment(void **state) {
  runs *r = *state;
  enum { ROUNDS = 20 };
  uint64_t seed = (uint64_t)time(NULL);
  print_message("seed %llu\n", (unsigned long long)seed);
  const char *whole[] = {"name=whole", "stages=[{}, {}]", "steps=100"};
  assert_ok(runs_train(r, whole, COUNT(whole)));
  uint64_t want = runs_weights(r, "whole", 100);
  const char *sets[] = {"name=broken", "stages=[{}, {}]", "steps=100", "checkpoint.every=1",
                        "checkpoint.keep=2"};
  int killed = 0;
  bool ended = false;
  for (int i = 0; i < ROUNDS && !ended; i++) {
    uint32_t x[4];
    pst_rng_philox(pst_rng_key_make(seed, 2), (uint32_t[4]){(uint32_t)i, 0, 0, 0}, x);
    pid_t pid = fork();
    if (pid == 0) child(r, sets, COUNT(sets));
    sleep_ns(5000000 + x[0] % 40000000);
    kill(pid, SIGKILL);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFSIGNALED(status)) killed++;
    ended = WIFEXITED(status);
    if (ended) assert_int_equal(WEXITSTATUS(status), 0);
  }
  print_message("killed %d times\n", killed);
  assert_true(killed > 0);
  assert_ok(runs_train(r, sets, COUNT(sets)));
  assert_int_equal(runs_weights(r, "broken", 100), want);
  check_log(r, "broken", 100);
}

static void done_is_said(void **state) {
  runs *r = *state;
  assert_ok(runs_train(r, NULL, 0));
  r->lines[0] = 0;
  assert_ok(runs_train(r, NULL, 0));
  assert_non_null(strstr(r->lines, "step 8 of 8: nothing is left to train"));
  const char *more[] = {"steps=10"};
  assert_ok(runs_train(r, more, 1));
  check_log(r, "toy", 10);
}

static void another_run_is_refused(void **state) {
  runs *r = *state;
  assert_ok(runs_train(r, NULL, 0));
  const char *seed[] = {"steps=10", "seed=8"};
  assert_fails(runs_train(r, seed, 2), PST_INVALID, "seed = 8");
  const char *never[] = {"steps=10", "checkpoint.resume=never"};
  assert_fails(runs_train(r, never, 2), PST_INVALID, "is there already, of step 8");
  const char *optimizer[] = {"steps=10", "optimizer={name: sgd, momentum: 0.9}"};
  assert_fails(runs_train(r, optimizer, 2), PST_INVALID, "another optimizer: adamw");
  optimizer[1] = "optimizer.name=sgd"; /* which would need nothing of what is there */
  assert_fails(runs_train(r, optimizer, 2), PST_INVALID, "another optimizer: adamw");
  static const char *const models[][2] = {{"model.layers=2", "model.layers = 2: "},
                                          {"model.width=32", "model.width = 32: "},
                                          {"model.heads=4", "model.heads = 4: "},
                                          {"model.context=32", "model.context = 32: "},
                                          {"model.tied=false", "model.tied = false: "}};
  for (int i = 0; i < COUNT(models); i++) {
    const char *model[] = {"steps=10", models[i][0]};
    assert_fails(runs_train(r, model, 2), PST_INVALID, models[i][1]);
  }
  const char *family[] = {"steps=10", "model.family=llama"};
  assert_fails(runs_train(r, family, 2), PST_INVALID, "was written with gpt2");
  const char *bitwise[] = {"steps=10", "bitwise=require", "batch.micro=4"};
  assert_fails(runs_train(r, bitwise, 3), PST_INVALID, "micro = 2, here it is 4");
  char other[6001];
  memset(other, 'x', sizeof other);
  runs_write(r, "text.txt", other, 6000);
  const char *data[] = {"steps=10"};
  assert_fails(runs_train(r, data, 1), PST_INVALID, "was written with other data");
}

static void keep_line(void *user, pst_log_level level, const char *line) {
  runs *r = user;
  if (!r->lines[0]) snprintf(r->lines, sizeof r->lines, "%s: %.1000s\n", pst_log_level_name(level), line);
}

static void a_damaged_checkpoint_is_warned_about(void **state) {
  runs *r = *state;
  const char *sets[] = {"checkpoint.every=4", "steps=8"};
  assert_ok(runs_train(r, sets, 2));
  uint64_t want = runs_weights(r, "toy", 8);
  char name[64] = "runs/toy/checkpoints/step-000008/model.safetensors";
  runs_write(r, name, "half", 4);
  r->lines[0] = 0;
  assert_ok(runs_train(r, sets, 2));
  assert_non_null(strstr(r->lines, "warn: passed over "));
  assert_non_null(strstr(r->lines, "info: took "));
  assert_int_equal(runs_weights(r, "toy", 8), want);
  runs_write(r, name, "half", 4);
  r->lines[0] = 0;
  char directory[700];
  snprintf(directory, sizeof directory, "%s/runs/toy", r->root);
  pst_run *run;
  pst_run_options o = {.log = keep_line, .log_user = r};
  assert_ok(pst_run_open_trained(directory, -1, &o, &run));
  pst_run_close(run);
  assert_non_null(strstr(r->lines, "warn: passed over "));
}

/* ---- where a run keeps itself ---- */

static void train_the_other(void *user, const pst_run_progress *p) {
  pst_run *other = user;
  assert_fails(pst_run_train(other, NULL), PST_INVALID, "is in use by another run");
}

static void one_run_at_a_time(void **state) {
  runs *r = *state;
  const char *sets[] = {"log.every=1"}, *apart[] = {"name=apart", "checkpoint.directory=", "steps=9"};
  char directory[700];
  snprintf(directory, sizeof directory, "checkpoint.directory=%s/runs/toy", r->root);
  apart[1] = directory;
  pst_run *first = runs_open(r, sets, 1), *same = runs_open(r, sets, 1),
          *checkpoints = runs_open(r, apart, COUNT(apart));
  pst_run_events events = {.progress = train_the_other, .user = same};
  assert_ok(pst_run_train(first, &events));
  pst_run_close(first);
  check_log(r, "toy", 8);
  /* another directory, the same checkpoints */
  const char *more[] = {"log.every=1", "steps=9"};
  first = runs_open(r, more, COUNT(more));
  events.user = checkpoints;
  assert_ok(pst_run_train(first, &events));
  pst_run_close(first);
  assert_ok(pst_run_train(same, NULL)); /* now it is free */
  pst_run_close(same);
  pst_run_close(checkpoints);
}

static void no_step_without_a_place_for_checkpoints(void **state) {
  runs *r = *state;
  char link[700], directory[750], log[700];
  snprintf(link, sizeof link, "%s/link", r->root);
  assert_int_equal(symlink("nowhere/there", link), 0); /* nothing is there, and nothing can be made */
  snprintf(directory, sizeof directory, "checkpoint.directory=%s", link);
  snprintf(log, sizeof log, "%s/runs/toy/log.jsonl", r->root);
  const char *sets[] = {directory};
  assert_fails(runs_train(r, sets, 1), PST_IO, "link: cannot make directory");
  assert_int_not_equal(access(log, F_OK), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(another_layout_goes_on, setup, teardown),
      cmocka_unit_test_setup_teardown(stops_at_any_moment, setup, teardown),
      cmocka_unit_test_setup_teardown(killed_at_any_moment, setup, teardown),
      cmocka_unit_test_setup_teardown(done_is_said, setup, teardown),
      cmocka_unit_test_setup_teardown(another_run_is_refused, setup, teardown),
      cmocka_unit_test_setup_teardown(a_damaged_checkpoint_is_warned_about, setup, teardown),
      cmocka_unit_test_setup_teardown(one_run_at_a_time, setup, teardown),
      cmocka_unit_test_setup_teardown(no_step_without_a_place_for_checkpoints, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
