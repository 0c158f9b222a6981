/* A signal is never lost, a wait ends in time, and waiting costs no core. */
#include "core/base/event.h"

#include "core/base/clock.h"
#include "tests/support.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

static void a_wait_times_out(void **state) {
  (void)state;
  pst_event e = {0};
  int64_t begin = pst_clock_ns();
  pst_event_wait(&e, pst_event_now(&e), 0, 30000000);
  int64_t took = pst_clock_ns() - begin;
  assert_true(took >= 29000000 && took < 1000000000);
}

static void a_signal_since_is_not_waited_for(void **state) {
  (void)state;
  pst_event e = {0};
  uint32_t seen = pst_event_now(&e);
  pst_event_signal(&e);
  int64_t begin = pst_clock_ns();
  pst_event_wait(&e, seen, 0, 5000000000);
  pst_event_wait(&e, seen, 1000000000, 5000000000);
  assert_true(pst_clock_ns() - begin < 500000000);
}

typedef struct pair {
  pst_event there, back;
  _Atomic int64_t ping, pong;
  int64_t rounds, spin_ns, late;
} pair;

/* Returns false when the value did not come within 5 s: a signal was lost. */
static bool wait_for(pst_event *e, _Atomic int64_t *value, int64_t wanted, int64_t spin_ns) {
  for (;;) {
    uint32_t seen = pst_event_now(e);
    if (atomic_load(value) >= wanted) return true;
    int64_t begin = pst_clock_ns();
    pst_event_wait(e, seen, spin_ns, 5000000000);
    if (pst_clock_ns() - begin > 4000000000) return false;
  }
}

static void *answer(void *arg) {
  pair *p = arg;
  for (int64_t i = 1; i <= p->rounds; i++) {
    if (!wait_for(&p->there, &p->ping, i, p->spin_ns)) p->late++;
    atomic_store(&p->pong, i);
    pst_event_signal(&p->back);
  }
  return NULL;
}

static void no_signal_is_lost(void **state) {
  (void)state;
  static const int64_t spins[] = {0, 2000};
  for (int s = 0; s < 2; s++) {
    pair p = {.rounds = 5000, .spin_ns = spins[s]};
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, answer, &p), 0);
    int64_t late = 0;
    for (int64_t i = 1; i <= p.rounds; i++) {
      atomic_store(&p.ping, i);
      pst_event_signal(&p.there);
      if (!wait_for(&p.back, &p.pong, i, spins[s])) late++;
    }
    pthread_join(t, NULL);
    assert_int_equal(late + p.late, 0);
    assert_int_equal(atomic_load(&p.there.sleepers), 0);
  }
}

typedef struct crowd {
  pst_event e;
  _Atomic int awake;
  _Atomic int64_t cpu_ns;
} crowd;

static void *crowd_main(void *arg) {
  crowd *c = arg;
  uint32_t seen = 0;
  pst_event_wait(&c->e, seen, 10000, 5000000000);
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  atomic_fetch_add(&c->cpu_ns, (int64_t)t.tv_sec * 1000000000 + t.tv_nsec);
  atomic_fetch_add(&c->awake, 1);
  return NULL;
}

static void a_signal_wakes_all_who_slept_without_a_core(void **state) {
  (void)state;
  enum { N = 6 };
  crowd c = {0};
  pthread_t t[N];
  for (int i = 0; i < N; i++) assert_int_equal(pthread_create(&t[i], NULL, crowd_main, &c), 0);
  nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
  assert_int_equal(atomic_load(&c.awake), 0);
  int64_t begin = pst_clock_ns();
  pst_event_signal(&c.e);
  for (int i = 0; i < N; i++) pthread_join(t[i], NULL);
  assert_true(pst_clock_ns() - begin < 1000000000);
  assert_int_equal(atomic_load(&c.awake), N);
  print_message("%d sleepers: %.2f ms of a core in 200 ms\n", N, (double)atomic_load(&c.cpu_ns) / 1e6);
  assert_true(atomic_load(&c.cpu_ns) < N * 5000000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_wait_times_out),
      cmocka_unit_test(a_signal_since_is_not_waited_for),
      cmocka_unit_test(no_signal_is_lost),
      cmocka_unit_test(a_signal_wakes_all_who_slept_without_a_core),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
