/* The cut is the best there is: compared with all cuts. */
#include "core/plan/partition.h"

#include "core/base/rng.h"
#include "tests/support.h"

#include <stdlib.h>
#include <string.h>

enum { SEED = 17, ROUNDS = 500, UNITS = 11, STAGES = 5 };

static uint32_t draw(uint32_t round, uint32_t i) {
  uint32_t r[4];
  pst_rng_philox(pst_rng_key_make(SEED, round), (uint32_t[4]){i, 0, 0, 0}, r);
  return r[0];
}

static double slowest(const int64_t *cost, const double *speed, const int32_t *cut, int32_t n_stages) {
  double most = 0;
  for (int32_t s = 0; s < n_stages; s++) {
    double sum = 0;
    for (int32_t u = cut[s]; u < cut[s + 1]; u++) sum += (double)cost[u];
    if (sum / speed[s] > most) most = sum / speed[s];
  }
  return most;
}

/* Every way to place the cuts behind stage s. */
static double best_of_all(const int64_t *cost, int32_t n_units, const double *speed, int32_t n_stages,
                          int32_t s, int32_t *cut) {
  if (s == n_stages) {
    cut[s] = n_units;
    return slowest(cost, speed, cut, n_stages);
  }
  double best = -1;
  for (int32_t u = cut[s - 1] + 1; u <= n_units - (n_stages - s); u++) {
    cut[s] = u;
    double one = best_of_all(cost, n_units, speed, n_stages, s + 1, cut);
    if (best < 0 || one < best) best = one;
  }
  return best;
}

static void equals_the_best_of_all_cuts(void **state) {
  (void)state;
  print_message("seed %d\n", SEED);
  for (uint32_t round = 0; round < ROUNDS; round++) {
    int32_t n_stages = 1 + (int32_t)(draw(round, 0) % STAGES);
    int32_t n_units = n_stages + (int32_t)(draw(round, 1) % (uint32_t)(UNITS - n_stages + 1));
    int64_t cost[UNITS];
    double speed[STAGES];
    int32_t cut[STAGES + 1], all[STAGES + 1] = {0};
    for (int32_t u = 0; u < n_units; u++)
      cost[u] = draw(round, 10 + (uint32_t)u) % (round % 3 ? 1000 : 4); /* zeros too */
    for (int32_t s = 0; s < n_stages; s++)
      speed[s] = round % 2 ? 1 : 0.25 + draw(round, 50 + (uint32_t)s) % 16;
    assert_ok(pst_partition(cost, n_units, speed, n_stages, cut));
    assert_int_equal(cut[0], 0);
    assert_int_equal(cut[n_stages], n_units);
    for (int32_t s = 0; s < n_stages; s++) assert_true(cut[s] < cut[s + 1]);
    double mine = slowest(cost, speed, cut, n_stages);
    double best = best_of_all(cost, n_units, speed, n_stages, 1, all);
    if (mine > best * (1 + 1e-12)) fail_msg("round %u: %g, the best cut has %g", round, mine, best);
  }
}

static void the_example_of_the_header(void **state) {
  (void)state;
  int32_t cut[3];
  assert_ok(pst_partition((int64_t[]){1, 4, 4, 4, 2}, 5, (double[]){1, 1}, 2, cut));
  assert_memory_equal(cut, ((int32_t[]){0, 3, 5}), sizeof cut);
  assert_ok(pst_partition((int64_t[]){1, 1, 1, 1, 1, 1}, 6, (double[]){1, 5}, 2, cut));
  assert_memory_equal(cut, ((int32_t[]){0, 1, 6}), sizeof cut);
}

static void more_stages_than_units_are_refused(void **state) {
  (void)state;
  int32_t cut[4] = {-1, -1, -1, -1};
  assert_fails(pst_partition((int64_t[]){1, 2}, 2, (double[]){1, 1, 1}, 3, cut), PST_INVALID,
               "2 units cannot be cut into 3 stages");
  assert_fails(pst_partition((int64_t[]){1, 2}, 2, (double[]){1}, 0, cut), PST_INVALID, "into 0 stages");
  assert_int_equal(cut[0], -1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(equals_the_best_of_all_cuts),
      cmocka_unit_test(the_example_of_the_header),
      cmocka_unit_test(more_stages_than_units_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
