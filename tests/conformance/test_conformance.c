/* Every op on every device that is here, against the double-precision reference.
 *
 *   test_conformance                         all of it
 *   test_conformance attention               the cases whose name holds "attention" (or PENSTOCK_TEST_CASE)
 *   PENSTOCK_TEST_SEED=7 test_conformance    other values
 *
 * One test per op. A device whose `numerics` equal another's of the same driver must give the same bits; the
 * CPU is opened with every instruction set and 1, 2 and 3 threads. A device that compared nothing fails.
 */
#include "core/device/registry.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_DEVICES = 64, MAX_PRINTED = 10 };

typedef struct bench_device {
  pst_device *device;
  char label[128];
  pst_device_info info;
  bool must_support; /* every op: an unsupported one is a failure */
  int n_compared, n_unsupported;
} bench_device;

typedef struct suite {
  bench_device at[MAX_DEVICES];
  int n;
  case_list cases;
  const char *filter;
} suite;

static void add_device(suite *s, const pst_driver *driver, const pst_device_options *options,
                       bool must_support, const char *label) {
  if (s->n == MAX_DEVICES) return;
  bench_device *d = &s->at[s->n];
  memset(d, 0, sizeof *d);
  snprintf(d->label, sizeof d->label, "%s", label);
  if (driver->open(options, &d->device) != PST_OK) {
    print_message("left out: %s: %s\n", label, pst_error());
    return;
  }
  d->device->table->query(d->device, &d->info);
  d->must_support = must_support;
  print_message("device: %s: %s; numerics \"%s\"\n", label, d->info.description, d->info.numerics);
  s->n++;
}

static void add_cpus(suite *s, const pst_driver *driver) {
  static const char *const sets[] = {"baseline", "v3", "v4"};
  char label[128];
  for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
    for (int threads = 1; threads <= 3; threads++) {
      snprintf(label, sizeof label, "cpu %s, %d threads", sets[i], threads);
      add_device(s, driver,
                 &(pst_device_options){.spec = "cpu", .n_threads = threads, .isa = sets[i], .gemm = "own"},
                 true, label);
    }
  add_device(s, driver, &(pst_device_options){.spec = "cpu", .n_threads = 2, .gemm = "openblas"}, true,
             "cpu with openblas, 2 threads");
}

typedef struct listing {
  suite *suite;
  const pst_driver *driver;
} listing;

static void visit(void *user, const pst_device_info *info) {
  listing *l = user;
  if (info->reason[0]) {
    print_message("left out: %s: %s\n", info->name[0] ? info->name : l->driver->name, info->reason);
    return;
  }
  add_device(l->suite, l->driver, &(pst_device_options){.spec = info->name}, false, info->name);
}

static void open_all(suite *s) {
  for (const pst_driver *const *d = pst_drivers; *d; d++) {
    if (!strcmp((*d)->name, "cpu"))
      add_cpus(s, *d);
    else
      (*d)->enumerate(visit, &(listing){s, *d});
  }
}

static void close_all(suite *s) {
  for (int i = 0; i < s->n; i++) s->at[i].device->table->close(s->at[i].device);
  cases_free(&s->cases);
}

static bool selected(const suite *s, const op_case *c) {
  return !s->filter || strstr(c->name, s->filter);
}

/* One case on every device; the number of failures. */
static int run_case(suite *s, const op_case *c, const char **inout_unsupported) {
  case_values values;
  harness_result first[MAX_DEVICES];
  int failures = 0;
  case_values_make(c, &values);
  for (int i = 0; i < s->n; i++) {
    bench_device *d = &s->at[i];
    harness_result *r = &first[i];
    harness_run(d->device, c, &values, r);
    if (r->verdict == HARNESS_UNSUPPORTED) {
      d->n_unsupported++;
      if (d->must_support) {
        print_error("%s: \"%s\" (seed %llu): not supported: %s\n", d->label, c->name,
                    (unsigned long long)c->seed, r->message);
        failures++;
      } else if (*inout_unsupported != d->label) {
        print_message("%s does not support \"%s\": %s\n", d->label, c->name, r->message);
        *inout_unsupported = d->label;
      }
      continue;
    }
    d->n_compared++;
    if (r->verdict == HARNESS_WRONG) {
      print_error("%s: \"%s\" (seed %llu): %s\n", d->label, c->name, (unsigned long long)c->seed, r->message);
      failures++;
      continue;
    }
    for (int j = 0; j < i; j++) {
      if (s->at[j].device->driver != d->device->driver || strcmp(s->at[j].info.numerics, d->info.numerics))
        continue;
      if (first[j].verdict != HARNESS_RIGHT) continue;
      if (memcmp(first[j].bits, r->bits, (size_t)r->n_bits)) {
        print_error("%s: \"%s\" (seed %llu): other bits than on %s\n", d->label, c->name,
                    (unsigned long long)c->seed, s->at[j].label);
        failures++;
      }
      break;
    }
  }
  for (int i = 0; i < s->n; i++) free(first[i].bits);
  case_values_free(&values);
  return failures;
}

static void run_op(void **state, pst_op_code code) {
  suite *s = *state;
  const char *unsupported = NULL;
  int n = 0, failures = 0;
  for (int i = 0; i < s->cases.n && failures < MAX_PRINTED; i++) {
    if (s->cases.at[i].op.code != code || !selected(s, &s->cases.at[i])) continue;
    failures += run_case(s, &s->cases.at[i], &unsupported);
    n++;
  }
  if (!n && s->filter) {
    print_message("no case of this op holds \"%s\"\n", s->filter);
    skip();
  }
  assert_int_equal(failures, 0);
  assert_true(n > 0);
}

#define OP_TEST(name, n_in, n_out, n_acc, flags)                                                             \
  static void op_##name(void **state) {                                                                      \
    run_op(state, PST_OP_##name);                                                                            \
  }
PST_OP_LIST(OP_TEST)
#undef OP_TEST

static void every_device_compared_something(void **state) {
  suite *s = *state;
  assert_true(s->n > 0);
  for (int i = 0; i < s->n; i++) {
    print_message("%s: %d cases compared, %d not supported\n", s->at[i].label, s->at[i].n_compared,
                  s->at[i].n_unsupported);
    assert_true(s->at[i].n_compared > 0);
  }
}

int main(int argc, char **argv) {
  static suite s;
  const char *seed_text = getenv("PENSTOCK_TEST_SEED");
  uint64_t seed = seed_text ? strtoull(seed_text, NULL, 0) : 1;
  s.filter = argc > 1 ? argv[1] : getenv("PENSTOCK_TEST_CASE");
  cases_build(&s.cases, seed);
  print_message("seed %llu (PENSTOCK_TEST_SEED), %d cases\n", (unsigned long long)seed, s.cases.n);
  const struct CMUnitTest tests[] = {
#define OP_ROW(name, n_in, n_out, n_acc, flags) cmocka_unit_test_prestate(op_##name, &s),
      PST_OP_LIST(OP_ROW)
#undef OP_ROW
          cmocka_unit_test_prestate(every_device_compared_something, &s)};
  open_all(&s);
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  close_all(&s);
  return failed;
}
