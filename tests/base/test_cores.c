/* Sets of cores: text and back, sharing among stages, quotas of made-up cgroup files, NUMA nodes. */
#include "core/base/cores.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void usable_cores_lie_within_the_affinity(void **state) {
  pst_cores cores;
  cpu_set_t set;
  assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
  assert_int_equal(pst_cores_usable(&cores), PST_OK);
  assert_in_range(cores.n, 1, CPU_COUNT(&set));
  assert_int_equal(cores.by_quota, cores.n < CPU_COUNT(&set));
  for (int i = 0; i < cores.n; i++) assert_true(CPU_ISSET(cores.id[i], &set));
}

static void usable_cores_are_kept_when_a_thread_is_bound(void **state) {
  pst_cores before, after;
  cpu_set_t set, one;
  assert_int_equal(pst_cores_usable(&before), PST_OK);
  assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
  CPU_ZERO(&one);
  CPU_SET(before.id[0], &one);
  assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
  pst_status st = pst_cores_usable(&after);
  assert_int_equal(sched_setaffinity(0, sizeof set, &set), 0);
  assert_int_equal(st, PST_OK);
  assert_int_equal(after.n, before.n);
}

static void text_is_parsed_and_written_back(void **state) {
  static const char *const cases[][2] = {{"0", "0"},       {"0-3,7", "0-3,7"},     {"7,0-3", "0-3,7"},
                                         {"1,2,3", "1-3"}, {"5-5", "5"},           {"0-1023", "0-1023"},
                                         {"1023", "1023"}, {"0,2,4-5", "0,2,4-5"}, {"10-11,8-9", "8-11"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    pst_cores cores;
    char text[64];
    assert_int_equal(pst_cores_parse(cases[i][0], &cores), PST_OK);
    assert_string_equal(pst_cores_format(&cores, text, sizeof text), cases[i][1]);
  }
  pst_cores cores;
  char small[4];
  assert_int_equal(pst_cores_parse("0-3,7", &cores), PST_OK);
  assert_string_equal(pst_cores_format(&cores, small, sizeof small), "0-3");
}

static void bad_text_is_refused_by_place(void **state) {
  static const char *const cases[][2] = {
      {"", "character 1"},          {"a", "character 1"},
      {"1,", "character 3"},        {"3-1", "descends"},
      {"1-", "character 3"},        {"-1", "character 1"},
      {"0,0", "named twice"},       {"0-3,2", "named twice"},
      {"1024", "0 to 1023"},        {"0-99999999999999999999", "0 to 1023"},
      {"0 1", "unknown character"}, {"1--2", "character 3"}};
  pst_cores cores = {.n = -7};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    assert_int_equal(pst_cores_parse(cases[i][0], &cores), PST_INVALID);
    assert_non_null(strstr(pst_error(), cases[i][1]));
    assert_int_equal(cores.n, -7);
  }
}

static pst_cores range(int n) {
  pst_cores cores = {.n = n};
  for (int i = 0; i < n; i++) cores.id[i] = 2 * i;
  return cores;
}

static void shares_are_contiguous_and_disjoint(void **state) {
  for (int n = 1; n <= 12; n++) {
    for (int stages = 1; stages <= n; stages++) {
      pst_cores all = range(n), share;
      bool shared = true;
      int next = 0, largest = 0, smallest = n;
      for (int s = 0; s < stages; s++) {
        assert_int_equal(pst_cores_share(&all, stages, s, &share, &shared), PST_OK);
        assert_false(shared);
        for (int i = 0; i < share.n; i++) assert_int_equal(share.id[i], all.id[next++]);
        if (share.n > largest) largest = share.n;
        if (share.n < smallest) smallest = share.n;
      }
      assert_int_equal(next, n);
      assert_true(largest - smallest <= 1);
    }
  }
}

static void too_few_cores_are_dealt_round_robin(void **state) {
  pst_cores all = range(2), share;
  bool shared = false;
  for (int s = 0; s < 5; s++) {
    assert_int_equal(pst_cores_share(&all, 5, s, &share, &shared), PST_OK);
    assert_true(shared);
    assert_int_equal(share.n, 1);
    assert_int_equal(share.id[0], all.id[s % 2]);
  }
  pst_cores none = {0};
  assert_int_equal(pst_cores_share(&none, 2, 0, &share, &shared), PST_INVALID);
  assert_int_equal(pst_cores_share(&all, 2, 2, &share, &shared), PST_INVALID);
  assert_int_equal(pst_cores_share(&all, 2, -1, &share, &shared), PST_INVALID);
}

static void overlap_is_found(void **state) {
  pst_cores a, b, c;
  assert_int_equal(pst_cores_parse("0-3", &a), PST_OK);
  assert_int_equal(pst_cores_parse("3-5", &b), PST_OK);
  assert_int_equal(pst_cores_parse("4,9", &c), PST_OK);
  assert_int_equal(pst_cores_overlap(&a, &b), 3);
  assert_int_equal(pst_cores_overlap(&a, &c), -1);
  assert_true(pst_cores_has(&c, 9) && !pst_cores_has(&c, 5));
}

static void put(const char *root, const char *name, const char *text) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", root, name);
  for (char *p = path + strlen(root) + 1; *p; p++) {
    if (*p != '/') continue;
    *p = 0;
    mkdir(path, 0700);
    *p = '/';
  }
  FILE *f = fopen(path, "w");
  assert_non_null(f);
  fputs(text, f);
  fclose(f);
}

static void check_quota(const char *root, const char *groups, double want) {
  char path[512];
  put(root, "groups", groups);
  snprintf(path, sizeof path, "%s/groups", root);
  assert_true(pst_cores_quota(path, root) == want);
}

static void quotas_of_both_cgroup_versions_are_read(void **state) {
  char root[] = "/tmp/pst-test-cores-XXXXXX";
  assert_non_null(mkdtemp(root));
  put(root, "two/cpu.max", "150000 100000\n");
  put(root, "two/inner/cpu.max", "max 100000\n");
  put(root, "two/tight/cpu.max", "50000 100000\n");
  put(root, "cpu,cpuacct/one/cpu.cfs_quota_us", "300000\n");
  put(root, "cpu,cpuacct/one/cpu.cfs_period_us", "100000\n");
  put(root, "cpu,cpuacct/free/cpu.cfs_quota_us", "-1\n");
  put(root, "cpu,cpuacct/free/cpu.cfs_period_us", "100000\n");
  check_quota(root, "0::/two\n", 1.5);
  check_quota(root, "0::/two/inner\n", 1.5);
  check_quota(root, "0::/two/tight\n", 0.5);
  check_quota(root, "0::/elsewhere\n", 0);
  check_quota(root, "0::/\n", 0);
  check_quota(root, "4:cpu,cpuacct:/one\n0::/\n", 3);
  check_quota(root, "4:cpu,cpuacct:/one/deeper\n1:cpuset:/two\n", 3);
  check_quota(root, "4:cpu,cpuacct:/free\n", 0);
  check_quota(root, "4:cpu,cpuacct:/one\n0::/two\n", 1.5);
  check_quota(root, "nonsense\n\n4:\n", 0);
  put(root, "cpu.max", "200000 100000\n");
  check_quota(root, "0::/\n", 2);
  check_quota(root, "0::/../sibling\n", 2);
  assert_true(pst_cores_quota("/nowhere/groups", root) == 0);
  char command[64];
  snprintf(command, sizeof command, "rm -r %s", root);
  assert_int_equal(system(command), 0);
}

static void numa_nodes_are_cut_to_the_usable_cores(void **state) {
  if (access("/sys/devices/system/node/node0/cpulist", R_OK) != 0) {
    print_message("skipped: this machine shows no NUMA node\n");
    skip();
  }
  pst_cores usable, node, none;
  assert_int_equal(pst_cores_usable(&usable), PST_OK);
  if (pst_cores_numa(&usable, 0, &node) != PST_OK) {
    print_message("skipped: %s\n", pst_error());
    skip();
  }
  for (int i = 0; i < node.n; i++) assert_true(pst_cores_has(&usable, node.id[i]));
  assert_int_equal(pst_cores_numa(&usable, 999, &none), PST_INVALID);
  assert_non_null(strstr(pst_error(), "no NUMA node 999"));
  pst_cores empty = {0};
  assert_int_equal(pst_cores_numa(&empty, 0, &none), PST_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(usable_cores_lie_within_the_affinity),
      cmocka_unit_test(usable_cores_are_kept_when_a_thread_is_bound),
      cmocka_unit_test(text_is_parsed_and_written_back),
      cmocka_unit_test(bad_text_is_refused_by_place),
      cmocka_unit_test(shares_are_contiguous_and_disjoint),
      cmocka_unit_test(too_few_cores_are_dealt_round_robin),
      cmocka_unit_test(overlap_is_found),
      cmocka_unit_test(quotas_of_both_cgroup_versions_are_read),
      cmocka_unit_test(numa_nodes_are_cut_to_the_usable_cores),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
