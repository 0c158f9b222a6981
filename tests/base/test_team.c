/* The thread team: every member runs, pieces are taken once each, barriers order memory, and nobody spins for
 * ever. */
#include "core/base/clock.h"
#include "core/base/team.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { N_PIECES = 257, N_ROUNDS = 50 };

typedef struct job {
  int n_rounds;
  int64_t n_pieces;
  int taken[N_ROUNDS]
           [N_PIECES]; /* not atomic: a piece taken twice at once is a race that the sanitizer reports */
  int64_t sums[N_ROUNDS];
  atomic_int wrong;
  atomic_int ran[64];
} job;

static pst_team *make_team(int n, int64_t spin_ns) {
  pst_team *team = NULL;
  assert_int_equal(pst_team_create(&(pst_team_options){.n_threads = n, .spin_ns = spin_ns}, &team), PST_OK);
  assert_int_equal(pst_team_size(team), n);
  return team;
}

static void take_rounds(pst_team_member *me, void *arg) {
  job *j = arg;
  atomic_fetch_add(&j->ran[pst_team_rank(me)], 1);
  for (int round = 0; round < j->n_rounds; round++) {
    for (int64_t i; (i = pst_team_take(me, j->n_pieces)) >= 0;) j->taken[round][i]++;
    pst_team_barrier(me);
    if (pst_team_rank(me) == 0)
      for (int64_t i = 0; i < j->n_pieces; i++) j->sums[round] += j->taken[round][i];
    pst_team_barrier(me);
    if (j->sums[round] != j->n_pieces) atomic_fetch_add(&j->wrong, 1);
  }
}

static void check_rounds(int n_threads, int64_t spin_ns) {
  job *j = calloc(1, sizeof *j);
  assert_non_null(j);
  pst_team *team = make_team(n_threads, spin_ns);
  for (int run = 1; run <= 3; run++) {
    memset(j->taken, 0, sizeof j->taken);
    memset(j->sums, 0, sizeof j->sums);
    j->n_rounds = N_ROUNDS;
    j->n_pieces = N_PIECES - run;
    pst_team_run(team, take_rounds, j);
    assert_int_equal(atomic_load(&j->wrong), 0);
    for (int r = 0; r < n_threads; r++) assert_int_equal(atomic_load(&j->ran[r]), run);
    for (int round = 0; round < N_ROUNDS; round++)
      for (int64_t i = 0; i < j->n_pieces; i++) assert_int_equal(j->taken[round][i], 1);
  }
  pst_team_destroy(team);
  free(j);
}

static void every_piece_is_taken_once(void **state) {
  for (int n = 1; n <= 5; n++) {
    check_rounds(n, 0);
    check_rounds(n, -1);
    check_rounds(n, 20000);
  }
}

static void take_in_order(pst_team_member *me, void *arg) {
  int64_t *last = arg;
  for (int64_t i; (i = pst_team_take(me, 100)) >= 0;) {
    if (i != *last + 1) *last = -1000;
    *last = i;
  }
}

static void one_member_takes_pieces_in_order(void **state) {
  pst_team *team = make_team(1, 0);
  for (int run = 0; run < 2; run++) {
    int64_t last = -1;
    pst_team_run(team, take_in_order, &last);
    assert_int_equal(last, 99);
  }
  pst_team_destroy(team);
}

static void add_one(pst_team_member *me, void *arg) {
  ((int64_t *)arg)[pst_team_rank(me) * 8]++;
}

static void members_sleep_between_runs_and_wake(void **state) {
  int64_t counts[3 * 8] = {0};
  pst_team *team = make_team(3, 1000);
  for (int i = 0; i < 5; i++) {
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    pst_team_run(team, add_one, counts);
  }
  struct timespec before, after;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  double busy = (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
  assert_true(busy < 0.02);
  for (int r = 0; r < 3; r++) assert_int_equal(counts[r * 8], 5);
  pst_team_destroy(team);
}

static void barriers(pst_team_member *me, void *arg) {
  for (int i = 0; i < *(int *)arg; i++) pst_team_barrier(me);
}

/* Far more threads than cores: time is shared by sleeping, so this ends soon. */
static void more_members_than_cores_do_not_melt(void **state) {
  int n = 200;
  pst_team *team = make_team(16, 0);
  int64_t t0 = pst_clock_ns();
  pst_team_run(team, barriers, &n);
  double s = 1e-9 * (double)(pst_clock_ns() - t0);
  print_message("16 members, %d barriers: %.1f us each\n", n, s / n * 1e6);
  assert_true(s < 20);
  pst_team_destroy(team);
}

static void bad_options_are_refused(void **state) {
  pst_team *team = NULL;
  int bad[] = {0, -1, 1025};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    assert_int_equal(pst_team_create(&(pst_team_options){.n_threads = bad[i]}, &team), PST_INVALID);
    assert_non_null(strstr(pst_error(), "wanted 1 to 1024"));
  }
  cpu_set_t before, after;
  assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
  int core = 0;
  while (!CPU_ISSET(core, &before)) core++;
  int cores[3][2] = {{core, 1023}, {1023, core}, {core, -1}};
  for (int i = 0; i < 3; i++) {
    assert_int_equal(pst_team_create(&(pst_team_options){.n_threads = 2, .cores = cores[i]}, &team),
                     PST_INVALID);
    assert_non_null(strstr(pst_error(), "core"));
  }
  assert_null(team);
  assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
  assert_true(CPU_EQUAL(&before, &after));
  pst_team_destroy(NULL);
}

static void note_core(pst_team_member *me, void *arg) {
  ((int *)arg)[pst_team_rank(me)] = sched_getcpu();
}

static void members_are_bound_and_the_caller_is_given_back(void **state) {
  cpu_set_t before, after;
  assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
  int core = CPU_SETSIZE - 1;
  while (!CPU_ISSET(core, &before)) core--;
  pst_team *team = NULL;
  int seen[2] = {-1, -1};
  pst_team_options options = {.n_threads = 2, .cores = (int[]){core, core}};
  assert_int_equal(pst_team_create(&options, &team), PST_OK);
  pst_team_run(team, note_core, seen);
  assert_int_equal(seen[0], core);
  assert_int_equal(seen[1], core);
  pst_team_destroy(team);
  assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
  assert_true(CPU_EQUAL(&before, &after));
}

static void nothing(pst_team_member *me, void *arg) {}

static void dispatch_and_barrier_cost_is_printed(void **state) {
  pst_team *team = make_team(2, 200000);
  int64_t best_run = INT64_MAX, best_barrier = INT64_MAX;
  int n = 200;
  for (int i = 0; i < 50; i++) {
    int64_t t0 = pst_clock_ns();
    for (int k = 0; k < n; k++) pst_team_run(team, nothing, NULL);
    int64_t t1 = pst_clock_ns();
    pst_team_run(team, barriers, &n);
    int64_t t2 = pst_clock_ns();
    if (t1 - t0 < best_run) best_run = t1 - t0;
    if (t2 - t1 < best_barrier) best_barrier = t2 - t1;
  }
  print_message("2 members: run %.3f us, barrier %.3f us\n", (double)best_run / n / 1e3,
                (double)best_barrier / n / 1e3);
  assert_true(best_run > 0 && best_barrier > 0);
  pst_team_destroy(team);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_piece_is_taken_once),
      cmocka_unit_test(one_member_takes_pieces_in_order),
      cmocka_unit_test(members_sleep_between_runs_and_wake),
      cmocka_unit_test(more_members_than_cores_do_not_melt),
      cmocka_unit_test(bad_options_are_refused),
      cmocka_unit_test(members_are_bound_and_the_caller_is_given_back),
      cmocka_unit_test(dispatch_and_barrier_cost_is_printed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
