/* Once it runs, a training run allocates nothing: counted by standing in front of the C library's malloc. */
#include "tests/engine/runs.h"
#include "tests/support.h"

#include <stdatomic.h>
#include <stdlib.h>

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTS 1
static atomic_llong calls;

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *malloc(size_t n);
void *calloc(size_t n, size_t size);
void *realloc(void *p, size_t n);

void *malloc(size_t n) {
  atomic_fetch_add(&calls, 1);
  return __libc_malloc(n);
}

void *calloc(size_t n, size_t size) {
  atomic_fetch_add(&calls, 1);
  return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n) {
  atomic_fetch_add(&calls, 1);
  return __libc_realloc(p, n);
}

typedef struct counted {
  long long at_two, at_last;
} counted;

static void look(void *user, const pst_run_progress *p) {
  counted *c = user;
  if (p->step == 2) c->at_two = atomic_load(&calls);
  c->at_last = atomic_load(&calls); /* before the end's evaluation and checkpoint */
}
#endif

static void steps_allocate_nothing(void **state) {
#ifdef COUNTS
  runs *r = runs_create();
  const char *sets[] = {"steps=40", "stages=[{}, {}, {}]", "log.every=1", "eval.every=10"};
  pst_run *run = runs_open(r, sets, 4);
  counted c = {0, 0};
  pst_run_events e = {.progress = look, .user = &c};
  assert_ok(pst_run_train(run, &e));
  pst_run_close(run);
  assert_true(c.at_two > 0);
  assert_int_equal(c.at_last - c.at_two, 0);
  runs_destroy(r);
#else
  print_message("skipped: malloc cannot be counted with this C library or under a sanitizer\n");
  skip();
#endif
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(steps_allocate_nothing)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
