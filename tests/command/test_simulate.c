/* `penstock simulate` as a person or a script meets it: the built binary, judged by output and exit status.
 */
#include "tests/support.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TEXT_BYTES = 1 << 20 };

static char binary[PATH_MAX];
static char text[TEXT_BYTES]; /* of the latest child, both streams */
static char top[] = "/tmp/penstock-simulate-XXXXXX";

static int run(const char *arguments) {
  char line[2 * PATH_MAX];
  snprintf(line, sizeof line, "timeout 60 %s simulate %s 2>&1", binary, arguments);
  FILE *child = popen(line, "r");
  assert_non_null(child);
  size_t n = fread(text, 1, sizeof text - 1, child);
  text[n] = '\0';
  int status = pclose(child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void expect(const char *arguments, int status, const char *part) {
  int seen = run(arguments);
  if (seen != status || strstr(text, part) == NULL)
    fail_msg("simulate %s: exit status %d, wanted %d with \"%s\" in:\n%s", arguments, seen, status, part,
             text);
}

static void test_predicts(void **state) {
  expect("1f1b -K 4 -M 8 --no-early-send", 0, "makespan   33\n");
  assert_non_null(strstr(text, "27.3 %  idle share of the makespan"));
  assert_non_null(strstr(text, "37.5 %  idle to work"));
  assert_non_null(strstr(text, "messages   48\n"));
  expect("1f1b -K 4 -M 8", 0, "makespan   30\n");
  expect("1f1b -K 4 -M 8 --no-early-send --latency 0.5", 0, "makespan   41\n");
  expect("1f1b -K 4 -M 8 --no-early-send --latency 0.5 --extra-forwards 3", 0, "makespan   36\n");
  expect("interleaved -K 4 -V 2 -M 8 --no-early-send --forward 1 --input 2 --weight 1", 0, "makespan   38\n");
  expect("zb-v -K 4 -M 8", 0, "makespan   25.5\n");
  expect("auto -K 4 -V 2 -M 8 --memory 4 --forward 2 --input 3", 0, "makespan   53.5\n");
}

static void test_proves(void **state) {
  expect("zb-h1 -K 4 -M 8 --check", 0,
         "proved: zb-h1, K = 4 workers, V = 1 chunk each, M = 8 microbatches: 96 ");
  expect("--check --csv " PENSTOCK_SOURCE_DIR "/tests/golden/schedule/zb_v_comms.csv", 0,
         "with its own messages");
  expect("--check --csv " PENSTOCK_SOURCE_DIR "/tests/golden/schedule/looped_bfs.csv", 0,
         "got ascending numbers");
  expect("--check --csv " PENSTOCK_SOURCE_DIR "/tests/golden/schedule/1f1b.csv", 2,
         "penstock: schedule: worker 2, position 0 (2F1): out of order");
}

static void test_compares(void **state) {
  expect("--compare -K 4 -M 8 --no-early-send", 0, "1f1b              1         33");
  assert_non_null(strstr(text, "interleaved-zb    2       25.5"));
  assert_non_null(strstr(text, "forward-only      1         11"));
  expect("--compare -K 4 -M 5", 0, "dualpipe-v        - schedule microbatches: seen 5, wanted 8 or more");
}

static void test_files(void **state) {
  char arguments[512], path[128];
  snprintf(path, sizeof path, "%s/order", top);
  snprintf(arguments, sizeof arguments, "v-half -K 3 -M 7 --export %s", path);
  expect(arguments, 0, "makespan");
  snprintf(arguments, sizeof arguments, "--csv %s --check", path);
  expect(arguments, 0, "K = 3 workers, V = 2 chunks each, M = 7 microbatches");
  snprintf(arguments, sizeof arguments, "zb-h2 -K 3 -M 7 --export %s --messages", path);
  expect(arguments, 0, "makespan");
  snprintf(arguments, sizeof arguments, "--csv %s --check", path);
  expect(arguments, 0, "with its own messages");
  unlink(path);
}

static void test_draws(void **state) {
  char arguments[512], path[128], *svg = malloc(TEXT_BYTES);
  assert_non_null(svg);
  snprintf(path, sizeof path, "%s/step.svg", top);
  snprintf(arguments, sizeof arguments, "zb-v -K 4 -M 8 --svg %s", path);
  expect(arguments, 0, "makespan");
  FILE *f = fopen(path, "r");
  assert_non_null(f);
  svg[fread(svg, 1, TEXT_BYTES - 1, f)] = '\0';
  fclose(f);
  unlink(path);
  assert_int_equal(strncmp(svg, "<svg ", 5), 0);
  assert_non_null(strstr(svg, "worker 3</text>"));
  assert_non_null(strstr(svg, "zb-v: K = 4, V = 2, M = 8; makespan 25.5"));
  int bars = 0;
  for (const char *at = svg; (at = strstr(at, "fill=\"#56b4e9\"")) != NULL; at++) bars++;
  assert_int_equal(bars, 4 * 2 * 8 + 1); /* every forward, and the legend */
  free(svg);
}

static void test_refuses(void **state) {
  expect("2f2b", 2, "penstock: schedule name: seen \"2f2b\", wanted one of");
  expect("zb-v -V 3", 2, "chunks: seen 3, wanted 2 for zb-v");
  expect("dualpipe-v -K 4 -M 7", 2, "seen 7, wanted 8 or more");
  expect("1f1b --csv x.csv", 2, "wanted one of them");
  expect("1f1b --messages", 2, "--messages goes with --export");
  expect("--csv nowhere.csv", 2, "nowhere.csv");
  expect("1f1b -K 0", 2, "wanted 1 to");
  expect("auto -K 4 -M 8 --memory 0.4", 2, "found no order");
}

static int open_top(void **state) {
  return mkdtemp(top) ? 0 : -1;
}

static int remove_top(void **state) {
  return rmdir(top);
}

int main(void) {
  const char *given = getenv("PENSTOCK_COMMAND") ? getenv("PENSTOCK_COMMAND") : "../penstock";
  if (!realpath(given, binary) || access(binary, X_OK) != 0) {
    fprintf(stderr, "the command is not built at %s\n", given);
    return 1;
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_predicts), cmocka_unit_test(test_proves), cmocka_unit_test(test_compares),
      cmocka_unit_test(test_files),    cmocka_unit_test(test_draws),  cmocka_unit_test(test_refuses),
  };
  return cmocka_run_group_tests(tests, open_top, remove_top);
}
