/* The loader: batches equal the sampler's, several consumers, bounded waits, errors of the source come out of
 * take. */
#include "core/base/clock.h"
#include "core/base/hash.h"
#include "core/data/loader.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { T = 8, GLOBAL = 5, N_TOKENS = 333 };

static const int64_t patience = INT64_C(20000000000);

static void sleep_ms(int ms) {
  nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL);
}

/* A source that any thread can compute again. */
static int32_t token_of(int64_t step, int64_t sequence, int64_t i) {
  return (int32_t)((step * 31 + sequence * 7 + i) % 97);
}

typedef struct source {
  int delay_ms;
  int64_t fail_step, bad_step, bad_target_step;
  pst_status silent; /* what fail_step returns without a message; OK: with one */
  _Atomic int64_t n_calls;
} source;

static source good_source(void) {
  return (source){.fail_step = -1, .bad_step = -1, .bad_target_step = -1};
}

static pst_status fill(void *user, int64_t step, int64_t sequence, int64_t n, int32_t *tokens,
                       int32_t *targets) {
  source *s = user;
  atomic_fetch_add(&s->n_calls, 1);
  if (s->delay_ms) sleep_ms(s->delay_ms);
  if (step == s->fail_step)
    return s->silent != PST_OK ? s->silent
                               : pst_fail(PST_IO, "the disk is gone at step %lld", (long long)step);
  for (int64_t i = 0; i < n; i++) {
    tokens[i] = token_of(step, sequence, i);
    targets[i] = i == n - 1 ? -1 : token_of(step, sequence, i + 1);
  }
  if (step == s->bad_step && sequence == 2) tokens[3] = 97;
  if (step == s->bad_target_step && sequence == 2) targets[3] = -2;
  return PST_OK;
}

static pst_loader *make(pst_loader_options o) {
  pst_loader *loader = NULL;
  o.sequence = T;
  o.global = GLOBAL;
  if (o.fill) o.vocab = 97;
  pst_status st = pst_loader_create(&o, &loader);
  if (st != PST_OK) print_message("%s\n", pst_error());
  assert_int_equal(st, PST_OK);
  return loader;
}

static int wrong_in_batch(const pst_loader_batch *b, int64_t step) {
  int wrong = b->step != step || b->n_valid != GLOBAL * (T - 1);
  for (int64_t s = 0; s < GLOBAL; s++)
    for (int64_t i = 0; i < T; i++) wrong += b->tokens[s * T + i] != token_of(step, s, i);
  return wrong + (b->hash != pst_hash_bytes(b->tokens, GLOBAL * T * sizeof *b->tokens, 0));
}

static void take_good(pst_loader *loader, int consumer, int64_t step) {
  pst_loader_batch b;
  assert_int_equal(pst_loader_take(loader, consumer, step, patience, &b), PST_OK);
  assert_int_equal(wrong_in_batch(&b, step), 0);
}

static void batches_come_in_order(void **state) {
  source s = good_source();
  pst_loader *loader = make((pst_loader_options){.fill = fill, .user = &s, .first_step = 40, .depth = 2});
  for (int64_t step = 40; step < 140; step++) {
    take_good(loader, 0, step);
    assert_int_equal(pst_loader_release(loader, 0, step), PST_OK);
  }
  pst_loader_destroy(loader);
  pst_loader_destroy(NULL);
}

typedef struct consumer {
  pst_loader *loader;
  int number, hold, wrong;
  int64_t n_steps;
} consumer;

/* Holds `hold` steps at once, as a pipeline does whose last stage is behind the first. */
static void *consume(void *arg) {
  consumer *c = arg;
  pst_loader_batch held[4];
  for (int64_t step = 0; step < c->n_steps + c->hold; step++) {
    if (step < c->n_steps) {
      if (pst_loader_take(c->loader, c->number, step, patience, &held[step % 4]) != PST_OK) c->wrong++;
    }
    int64_t old = step - c->hold;
    if (old < 0) continue;
    c->wrong += wrong_in_batch(&held[old % 4], old);
    if (pst_loader_release(c->loader, c->number, old) != PST_OK) c->wrong++;
  }
  return NULL;
}

static void several_consumers_hold_the_same_steps(void **state) {
  source s = good_source();
  pst_loader *loader = make((pst_loader_options){.fill = fill, .user = &s, .depth = 4, .n_consumers = 3});
  consumer c[3];
  pthread_t threads[3];
  for (int i = 0; i < 3; i++) {
    c[i] = (consumer){.loader = loader, .number = i, .hold = i, .n_steps = 300};
    assert_int_equal(pthread_create(&threads[i], NULL, consume, &c[i]), 0);
  }
  for (int i = 0; i < 3; i++) {
    pthread_join(threads[i], NULL);
    assert_int_equal(c[i].wrong, 0);
  }
  pst_loader_destroy(loader);
}

static void a_slow_source_is_waited_for(void **state) {
  source s = good_source();
  s.delay_ms = 4;
  pst_loader *loader = make((pst_loader_options){.fill = fill, .user = &s});
  for (int64_t step = 0; step < 3; step++) {
    take_good(loader, 0, step);
    assert_int_equal(pst_loader_release(loader, 0, step), PST_OK);
  }
  pst_loader_destroy(loader);

  s.delay_ms = 200;
  atomic_store(&s.n_calls, 0);
  loader = make((pst_loader_options){.fill = fill, .user = &s});
  pst_loader_batch b;
  int64_t t0 = pst_clock_ns();
  assert_int_equal(pst_loader_take(loader, 0, 1, 50000000, &b), PST_HUNG);
  double waited = 1e-9 * (double)(pst_clock_ns() - t0);
  assert_true(waited > 0.045 && waited < 5);
  assert_non_null(strstr(pst_error(), "step 1 is not ready after 0.05 s, the loader is still making step 0"));
  pst_loader_destroy(loader); /* waits for the sequence in work, not for its step */
  assert_true(atomic_load(&s.n_calls) < GLOBAL);
}

static void a_consumer_that_keeps_a_step_is_named(void **state) {
  source s = good_source();
  pst_loader *loader = make((pst_loader_options){.fill = fill, .user = &s, .depth = 2, .n_consumers = 2});
  pst_loader_batch b;
  take_good(loader, 0, 0);
  take_good(loader, 0, 1);
  take_good(loader, 1, 0);
  assert_int_equal(pst_loader_release(loader, 0, 0), PST_OK);
  assert_int_equal(pst_loader_take(loader, 0, 2, 20000000, &b), PST_HUNG);
  assert_non_null(strstr(pst_error(), "consumer 1 has not released step 0"));
  assert_int_equal(pst_loader_release(loader, 1, 0), PST_OK);
  take_good(loader, 0, 2);
  assert_true(atomic_load(&s.n_calls) <= 3 * GLOBAL);
  pst_loader_destroy(loader);
}

static void misuse_is_refused(void **state) {
  source s = good_source();
  pst_loader *loader =
      make((pst_loader_options){.fill = fill, .user = &s, .first_step = 3, .n_steps = 4, .depth = 2});
  pst_loader_batch b;
  assert_int_equal(pst_loader_take(loader, 0, 2, patience, &b), PST_INVALID);
  assert_int_equal(pst_loader_take(loader, 0, 7, patience, &b), PST_INVALID);
  assert_int_equal(pst_loader_take(loader, 1, 3, patience, &b), PST_INVALID);
  assert_int_equal(pst_loader_take(loader, -1, 3, patience, &b), PST_INVALID);
  assert_int_equal(pst_loader_release(loader, 0, 3), PST_INTERNAL);
  for (int64_t step = 3; step < 7; step++) {
    take_good(loader, 0, step);
    assert_int_equal(pst_loader_take(loader, 0, step, patience, &b), PST_INVALID);
    assert_non_null(strstr(pst_error(), "has had step"));
    assert_int_equal(pst_loader_release(loader, 1, step), PST_INTERNAL);
    assert_int_equal(pst_loader_release(loader, 0, step), PST_OK);
    assert_int_equal(pst_loader_release(loader, 0, step), PST_INTERNAL);
    assert_int_equal(pst_loader_take(loader, 0, 3, patience, &b), PST_INVALID);
  }
  pst_loader_destroy(loader);
  assert_int_equal(atomic_load(&s.n_calls), 4 * GLOBAL);
}

/* Steps before the failing one are still lent; then the source's words come out, in whichever thread asks. */
static void errors_of_the_source_come_out_of_take(void **state) {
  source s = good_source();
  s.fail_step = 2;
  pst_loader_batch b;
  for (int silent = 0; silent < 2; silent++) {
    s.silent = silent ? PST_LOST : PST_OK;
    pst_loader *loader = make((pst_loader_options){.fill = fill, .user = &s});
    take_good(loader, 0, 0);
    for (int64_t step = 2; step < 5; step++)
      assert_int_equal(pst_loader_take(loader, 0, step, patience, &b), silent ? PST_LOST : PST_IO);
    assert_string_equal(pst_error(), silent ? "data: the callback returned LOST at step 2, sequence 0"
                                            : "the disk is gone at step 2");
    take_good(loader, 0, 1);
    pst_loader_destroy(loader);
  }
}

static void ids_of_the_source_are_checked(void **state) {
  source s = good_source();
  pst_loader_batch b;
  s.bad_step = 1;
  pst_loader *loader = make((pst_loader_options){.fill = fill, .user = &s});
  assert_int_equal(pst_loader_take(loader, 0, 1, patience, &b), PST_INVALID);
  assert_non_null(strstr(pst_error(), "gave token 97 at step 1, sequence 2, position 3, wanted 0 to 96"));
  pst_loader_destroy(loader);
  s.bad_step = -1;
  s.bad_target_step = 0;
  loader = make((pst_loader_options){.fill = fill, .user = &s});
  assert_int_equal(pst_loader_take(loader, 0, 0, patience, &b), PST_INVALID);
  assert_non_null(strstr(pst_error(), "gave target -2 at step 0, sequence 2, position 3, wanted -1 to 96"));
  pst_loader_destroy(loader);
}

/* ---- from a file ---- */

static pst_tokens *text_file(void) {
  char path[] = "/tmp/pst-test-loader-XXXXXX";
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  unsigned char text[N_TOKENS];
  for (int i = 0; i < N_TOKENS; i++) text[i] = (unsigned char)('!' + i * 7 % 90);
  assert_int_equal(write(fd, text, sizeof text), sizeof text);
  close(fd);
  pst_tokens *tokens = NULL;
  pst_tokens_options o = {.paths = (const char *[]){path}, .n_paths = 1, .sequence = T};
  pst_status st = pst_tokens_open(&o, &tokens);
  unlink(path);
  assert_int_equal(st, PST_OK);
  return tokens;
}

static pst_sampler sampler_for(const pst_tokens_view *view, pst_sampler_mode mode, uint64_t seed) {
  pst_sampler s;
  pst_sampler_options o = {
      .mode = mode, .seed = seed, .n_tokens = view->count, .sequence = T, .global = GLOBAL};
  assert_int_equal(pst_sampler_init(&o, &s), PST_OK);
  return s;
}

static void hash_steps(const pst_tokens_view *view, const pst_sampler *sampler, int64_t first, int64_t n,
                       uint64_t *out) {
  pst_loader *loader = make((pst_loader_options){.view = view, .sampler = sampler, .first_step = first});
  for (int64_t i = 0; i < n; i++) {
    pst_loader_batch b;
    assert_int_equal(pst_loader_take(loader, 0, first + i, patience, &b), PST_OK);
    assert_int_equal(b.n_valid, GLOBAL * T);
    int32_t ids[T], targets[T];
    for (int64_t s = 0; s < GLOBAL; s++) {
      assert_int_equal(pst_tokens_window(view, pst_sampler_start(sampler, first + i, s), T, ids, targets), T);
      assert_memory_equal(b.tokens + s * T, ids, sizeof ids);
      assert_memory_equal(b.targets + s * T, targets, sizeof targets);
    }
    out[i] = b.hash;
    assert_int_equal(pst_loader_release(loader, 0, first + i), PST_OK);
  }
  pst_loader_destroy(loader);
}

/* 40 windows, 8 steps an epoch: resumes before, at and after its edge and inside a step that spans it. */
static void a_resumed_run_gets_the_same_batches(void **state) {
  enum { N = 24 };
  pst_tokens *tokens = text_file();
  pst_tokens_view view = pst_tokens_all(tokens);
  view.count -= 1;
  for (int mode = PST_SAMPLER_WINDOWS; mode <= PST_SAMPLER_RANDOM; mode++) {
    pst_sampler sampler = sampler_for(&view, (pst_sampler_mode)mode, 5);
    uint64_t whole[N], rest[N];
    hash_steps(&view, &sampler, 0, N, whole);
    for (int64_t first = 1; first < N; first++) {
      hash_steps(&view, &sampler, first, N - first, rest);
      assert_memory_equal(rest, whole + first, (size_t)(N - first) * sizeof *rest);
    }
    for (int i = 1; i < N; i++) assert_true(whole[i] != whole[i - 1]);
  }
  pst_tokens_close(tokens);
}

static void an_evaluation_counts_every_target(void **state) {
  pst_tokens *tokens = text_file();
  pst_tokens_view view = pst_tokens_all(tokens);
  pst_sampler sampler = sampler_for(&view, PST_SAMPLER_IN_ORDER, 0);
  int64_t n_steps = pst_sampler_steps(&sampler), n_valid = 0;
  pst_loader *loader = make((pst_loader_options){.view = &view, .sampler = &sampler, .n_steps = n_steps});
  for (int64_t step = 0; step < n_steps; step++) {
    pst_loader_batch b;
    assert_int_equal(pst_loader_take(loader, 0, step, patience, &b), PST_OK);
    n_valid += b.n_valid;
    assert_int_equal(pst_loader_release(loader, 0, step), PST_OK);
  }
  assert_int_equal(n_valid, N_TOKENS - 1);
  pst_loader_destroy(loader);
  pst_tokens_close(tokens);
}

/* The file is mapped: what somebody writes to it is seen, and what is cut off must not be touched. */
static void a_file_that_changes_ends_the_loader(void **state) {
  static const char *const texts[] = {"the file, changed while it is in use, has token 200",
                                      "had 333 when it was opened"};
  for (int i = 0; i < 2; i++) {
    char path[] = "/tmp/penstock-loader-XXXXXX", ids[N_TOKENS];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    memset(ids, 9, sizeof ids);
    assert_int_equal(write(fd, ids, sizeof ids), sizeof ids);
    const char *paths[] = {path};
    pst_tokens_options o = {.paths = paths, .n_paths = 1, .format = PST_TOKENS_TEXT, .sequence = T};
    pst_tokens *tokens = NULL;
    assert_int_equal(pst_tokens_open(&o, &tokens), PST_OK);
    assert_int_equal(pst_tokens_whole(tokens), PST_OK);
    pst_tokens_view view = pst_tokens_all(tokens);
    pst_sampler sampler;
    pst_sampler_options so = {
        .mode = PST_SAMPLER_WINDOWS, .n_tokens = N_TOKENS, .sequence = T, .global = GLOBAL};
    assert_int_equal(pst_sampler_init(&so, &sampler), PST_OK);
    memset(ids, 200, sizeof ids);
    if (i == 0) assert_int_equal(pwrite(fd, ids, sizeof ids, 0), sizeof ids);
    if (i == 1) assert_int_equal(ftruncate(fd, 0), 0);
    pst_loader *loader = make((pst_loader_options){.view = &view, .sampler = &sampler, .vocab = 97});
    pst_loader_batch b;
    assert_int_equal(pst_loader_take(loader, 0, 0, patience, &b), i == 0 ? PST_INVALID : PST_IO);
    if (!strstr(pst_error(), texts[i])) fail_msg("%s", pst_error());
    pst_loader_destroy(loader);
    pst_tokens_close(tokens);
    close(fd);
    unlink(path);
  }
}

static void bad_options_are_refused(void **state) {
  source s = good_source();
  pst_tokens *tokens = text_file();
  pst_tokens_view view = pst_tokens_all(tokens);
  pst_sampler sampler = sampler_for(&view, PST_SAMPLER_RANDOM, 0);
  pst_loader_options ok = {.fill = fill, .user = &s, .vocab = 97, .sequence = T, .global = GLOBAL};
  pst_loader_options bad[12];
  for (int i = 0; i < 12; i++) bad[i] = ok;
  bad[0].sequence = 0;
  bad[1].global = 0;
  bad[2].depth = 1;
  bad[3].depth = 65;
  bad[4].n_consumers = 33;
  bad[5].first_step = -1;
  bad[6].vocab = 0;
  bad[7].view = &view;
  bad[8].fill = NULL;
  bad[9] = (pst_loader_options){.view = &view, .sampler = &sampler, .sequence = T, .global = GLOBAL + 1};
  bad[10].n_steps = -1;
  bad[11].sequence = INT64_MAX;
  for (int i = 0; i < 12; i++) {
    pst_loader *loader = NULL;
    assert_int_equal(pst_loader_create(&bad[i], &loader), PST_INVALID);
    assert_null(loader);
  }
  ok.sequence = ok.global = INT32_MAX;
  pst_loader *loader = NULL;
  assert_int_equal(pst_loader_create(&ok, &loader), PST_NO_MEMORY);
  pst_tokens_close(tokens);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(batches_come_in_order),
      cmocka_unit_test(several_consumers_hold_the_same_steps),
      cmocka_unit_test(a_slow_source_is_waited_for),
      cmocka_unit_test(a_consumer_that_keeps_a_step_is_named),
      cmocka_unit_test(misuse_is_refused),
      cmocka_unit_test(errors_of_the_source_come_out_of_take),
      cmocka_unit_test(ids_of_the_source_are_checked),
      cmocka_unit_test(a_resumed_run_gets_the_same_batches),
      cmocka_unit_test(an_evaluation_counts_every_target),
      cmocka_unit_test(a_file_that_changes_ends_the_loader),
      cmocka_unit_test(bad_options_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
