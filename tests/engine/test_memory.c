/* Memory and cores: nothing is allocated in steady state, what is planned is what is taken, nothing is kept,
 * and who waits does not burn a core. */
#include "core/base/clock.h"
#include "tests/engine/toy.h"
#include "tests/support.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

/* ---- counting: these definitions take the place of libc's in this executable ---- */

static _Atomic int64_t n_taken;
static _Atomic int64_t n_given;

#if !SANITIZED && defined(__GLIBC__)
#define COUNTS 1
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

void *malloc(size_t n) {
  n_taken++;
  return __libc_malloc(n);
}
void *calloc(size_t n, size_t size) {
  n_taken++;
  return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n) {
  n_taken++;
  return __libc_realloc(p, n);
}
void *aligned_alloc(size_t align, size_t n) {
  n_taken++;
  return __libc_memalign(align, n);
}
void *memalign(size_t align, size_t n) {
  n_taken++;
  return __libc_memalign(align, n);
}
int posix_memalign(void **out, size_t align, size_t n) {
  n_taken++;
  void *p = __libc_memalign(align, n);
  if (!p) return 12; /* ENOMEM */
  *out = p;
  return 0;
}
void free(void *p) {
  if (p) n_given++;
  __libc_free(p);
}
void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset) {
  n_taken++;
  return (void *)syscall(SYS_mmap, at, n, protection, flags, fd, offset);
}
int munmap(void *at, size_t n) {
  n_given++;
  return (int)syscall(SYS_munmap, at, n);
}
#else
#define COUNTS 0
#endif

static void steps_allocate_nothing(void **state) {
  (void)state;
  if (!COUNTS) {
    print_message("skipped: allocations cannot be counted under a sanitizer or without glibc\n");
    skip();
  }
  for (int i = 0; i < 2 * 3 * 2; i++) {
    toy_options o = i % 2 ? toy_gpt2() : toy_llama();
    o.n_stages = 1 << i / 2 % 3;
    o.dtype = i / 6 ? PST_BF16 : PST_F32;
    o.backward = i / 6 ? PST_BACKWARD_EACH_SPLIT : PST_BACKWARD_AUTO;
    o.threads = 2;
    o.evaluates = true;
    toy *t = toy_create(&o);
    pst_step_result result;
    for (int s = 0; s < 3; s++) assert_ok(toy_step(t, s, &result));
    pst_batch batch;
    double loss, norm;
    int64_t n;
    toy_batch(t, 0, &batch);
    assert_ok(pst_pipeline_loss(t->pipeline, &batch, &loss, &n, NULL));
    int64_t taken = n_taken, given = n_given;
    for (int s = 3; s < 8; s++) assert_ok(toy_step(t, s, &result));
    assert_ok(pst_pipeline_gradients(t->pipeline, &batch, 1, 8, &result));
    assert_ok(pst_pipeline_apply(t->pipeline, 8, 0.01, &norm));
    assert_ok(pst_pipeline_loss(t->pipeline, &batch, &loss, &n, NULL));
    taken = n_taken - taken;
    given = n_given - given;
    if (taken || given)
      fail_msg("K=%d, %s: %lld allocations, %lld frees in steps 3 to 8", o.n_stages, pst_dtype_name(o.dtype),
               (long long)taken, (long long)given);
    int64_t seen = n_taken;
    free(toy_weights(t, &n));
    assert_true(n_taken > seen); /* the counter counts */
    toy_destroy(t);
  }
}

/* ---- the plan ---- */

static int64_t planned(const char *schedule, int64_t microbatches, int stage, int stages,
                       pst_stage_memory *m) {
  toy_options o = toy_gpt2();
  o.schedule = schedule;
  o.microbatches = microbatches;
  o.n_stages = stages;
  toy *t = toy_create(&o);
  pst_pipeline_memory(t->pipeline, stage, m);
  int64_t sum = 0;
  for (int s = 0; s < PST_SEGMENT_COUNT; s++) sum += m->bytes[s];
  assert_int_equal(sum, m->total_bytes);
  toy_destroy(t);
  return m->total_bytes;
}

/* All but tokens, targets and losses, 8 bytes or 4 a token, which the batch itself takes. */
static int64_t without_data(const pst_stage_memory *m) {
  return m->total_bytes - m->bytes[PST_SEGMENT_INPUT] - m->bytes[PST_SEGMENT_LOSS];
}

static void one_f_one_b_does_not_grow_with_microbatches(void **state) {
  (void)state;
  enum { K = 4 };
  for (int s = 0; s < K; s++) {
    pst_stage_memory few, many;
    planned("1f1b", 8, s, K, &few);
    planned("1f1b", 64, s, K, &many);
    assert_int_equal(without_data(&few), without_data(&many));
    assert_int_equal(few.copies[PST_SEGMENT_STASH], K - s);
    assert_true((double)many.total_bytes < 1.02 * (double)few.total_bytes + 64 * 3 * 64 * 4);
    assert_int_equal(many.copies[PST_SEGMENT_STASH], K - s);
    planned("gpipe", 8, s, K, &few);
    planned("gpipe", 64, s, K, &many);
    assert_int_equal(few.copies[PST_SEGMENT_STASH], 8);
    assert_int_equal(many.copies[PST_SEGMENT_STASH], 64);
    assert_int_equal(many.bytes[PST_SEGMENT_STASH], 8 * few.bytes[PST_SEGMENT_STASH]);
    assert_int_equal(without_data(&many) - without_data(&few), 7 * few.bytes[PST_SEGMENT_STASH]);
    assert_int_equal(many.bytes[PST_SEGMENT_PARAM], few.bytes[PST_SEGMENT_PARAM]);
  }
}

static void the_optimizers_memory_is_its_moments(void **state) {
  (void)state;
  pst_stage_memory m;
  planned("1f1b", 4, 0, 1, &m);
  int64_t rounding = 2 * 64 * 64; /* each tensor starts at a multiple of 64 bytes */
  assert_in_range(m.bytes[PST_SEGMENT_OPTIM], 2 * m.bytes[PST_SEGMENT_PARAM] - rounding,
                  2 * m.bytes[PST_SEGMENT_PARAM] + rounding);
  assert_in_range(m.bytes[PST_SEGMENT_GRAD], m.bytes[PST_SEGMENT_PARAM],
                  m.bytes[PST_SEGMENT_PARAM] + 97 * 32 * 4 + rounding); /* and a second use of the table */
}

/* ---- the process ---- */

static int64_t resident_bytes(void) {
  long pages = 0, total = 0;
  FILE *f = fopen("/proc/self/statm", "r");
  if (f && fscanf(f, "%ld %ld", &total, &pages) != 2) pages = 0;
  if (f) fclose(f);
  return (int64_t)pages * sysconf(_SC_PAGESIZE);
}

/* In the child: trains a model of about 100 MB and returns its plan in MiB, or a number above 60000. */
static void train_large(int to) {
  toy_options o = toy_gpt2();
  o.config.layers = 4;
  o.config.width = 256;
  o.config.hidden = 1024;
  o.config.vocab = 12000;
  o.sequence = o.config.context = 64;
  o.config.head_dim = 64;
  o.n_stages = 2;
  toy *t = NULL;
  int64_t report[2] = {-1, 0};
  if (toy_try_create(&o, &t) == PST_OK) {
    pst_step_result result;
    pst_status st = PST_OK;
    for (int s = 0; s < 2 && st == PST_OK; s++) st = toy_step(t, s, &result);
    report[0] = st == PST_OK ? 0 : -1;
    for (int s = 0; s < 2; s++) {
      pst_stage_memory m;
      pst_pipeline_memory(t->pipeline, s, &m);
      if (report[0] >= 0) report[0] += m.total_bytes;
    }
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    report[1] = (int64_t)use.ru_maxrss * 1024;
    toy_destroy(t);
  }
  _exit(write(to, report, sizeof report) == (ssize_t)sizeof report ? 0 : 1);
}

static void the_process_takes_what_is_planned(void **state) {
  (void)state;
  if (SANITIZED) {
    print_message("skipped: a sanitizer's shadow memory is resident too\n");
    skip();
  }
  int pipes[2];
  assert_int_equal(pipe(pipes), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) train_large(pipes[1]);
  close(pipes[1]);
  int64_t report[2] = {-1, 0};
  assert_int_equal(read(pipes[0], report, sizeof report), sizeof report);
  close(pipes[0]);
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  double plan = (double)report[0] / 1048576, peak = (double)report[1] / 1048576;
  print_message("planned %.1f MiB, peak resident %.1f MiB\n", plan, peak);
  assert_true(plan > 80);
  assert_true(peak <= plan * 1.1 + 64);
  assert_true(peak >= plan * 0.9);
}

static void pipelines_give_everything_back(void **state) {
  (void)state;
  if (SANITIZED) {
    print_message("skipped: a sanitizer keeps what is freed; the leak check covers this\n");
    skip();
  }
  int64_t before = 0;
  for (int i = 0; i < 60; i++) {
    if (i == 10) before = resident_bytes();
    toy_options o = i % 2 ? toy_gpt2() : toy_llama();
    o.n_stages = 1 + i % 4;
    o.evaluates = i % 3 == 0;
    toy *t = toy_create(&o);
    pst_step_result result;
    assert_ok(toy_step(t, 0, &result));
    toy_destroy(t);
  }
  double grown = (double)(resident_bytes() - before) / 1048576;
  print_message("50 pipelines: resident memory grew by %.2f MiB\n", grown);
  assert_true(grown < 2);
}

static double cpu_seconds(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void idle_workers_sleep(void **state) {
  (void)state;
  toy_options o = toy_gpt2();
  o.n_stages = 8;
  o.threads = 2;
  toy *t = toy_create(&o);
  pst_step_result result;
  assert_ok(toy_step(t, 0, &result));
  double before = cpu_seconds();
  nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
  double used = cpu_seconds() - before;
  print_message("8 idle workers: %.2f %% of a core\n", used * 100);
  assert_true(used < 0.02);
  toy_destroy(t);
}

/* One worker is slow; the others wait for it in the middle of a step. */
static pst_status slow_first(void *user, int worker, int64_t step, pst_action a) {
  (void)user;
  (void)step;
  if (worker == 0 && a.kind == PST_ACTION_F) nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
  return PST_OK;
}

static void waiting_workers_sleep(void **state) {
  (void)state;
  toy_options o = toy_gpt2();
  o.n_stages = 8;
  o.microbatches = 6;
  toy *t = toy_create(&o);
  pst_step_result result;
  assert_ok(toy_step(t, 0, &result));
  double base = cpu_seconds();
  assert_ok(toy_step(t, 1, &result));
  base = cpu_seconds() - base;
  toy_destroy(t);
  o.hook = slow_first;
  t = toy_create(&o);
  int64_t begin = pst_clock_ns();
  double before = cpu_seconds();
  assert_ok(toy_step(t, 0, &result));
  double used = cpu_seconds() - before, took = (double)(pst_clock_ns() - begin) / 1e9;
  print_message("a step of %.2f s, %.3f s of a core; without the wait %.3f s\n", took, used, base);
  assert_true(took > 0.6);
  assert_true(used - base < 0.1 * took);
  toy_destroy(t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_process_takes_what_is_planned),
      cmocka_unit_test(steps_allocate_nothing),
      cmocka_unit_test(one_f_one_b_does_not_grow_with_microbatches),
      cmocka_unit_test(the_optimizers_memory_is_its_moments),
      cmocka_unit_test(pipelines_give_everything_back),
      cmocka_unit_test(idle_workers_sleep),
      cmocka_unit_test(waiting_workers_sleep),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
