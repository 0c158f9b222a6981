#include "core/base/settings.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const pst_setting table[] = {
    {.path = "name", .type = PST_SETTING_STRING, .def = "run", .help = "text"},
    {.path = "steps", .type = PST_SETTING_INT, .min = 1, .max = 1000, .help = "whole"},
    {.path = "bitwise", .type = PST_SETTING_BOOL, .def = "false", .help = "truth"},
    {.path = "data.train", .type = PST_SETTING_STRING, .help = "text in a map"},
    {.path = "optimizer.lr.peak",
     .type = PST_SETTING_FLOAT,
     .def = "3e-4",
     .max = 1,
     .shorthand = true,
     .help = "number"},
    {.path = "optimizer.lr.decay",
     .type = PST_SETTING_ENUM,
     .def = "cosine",
     .words = "cosine|linear",
     .help = "word"},
    {.path = "optimizer.betas[]", .type = PST_SETTING_FLOAT, .def = "[0.9, 0.95]", .help = "list of numbers"},
    {.path = "tags[]", .type = PST_SETTING_STRING, .help = "list of texts"},
    {.path = "stages[].device", .type = PST_SETTING_STRING, .def = "cpu", .help = "text in a list"},
    {.path = "stages[].layers", .type = PST_SETTING_INT, .max = 99, .help = "whole in a list"},
    {.path = "extra", .type = PST_SETTING_INT, .def = "auto", .words = "auto", .help = "whole or a word"},
    {.path = "memory", .type = PST_SETTING_SIZE, .help = "bytes"},
    {.path = "peer", .type = PST_SETTING_TIME, .def = "10s", .min = 1e6, .max = 1e12, .help = "nanoseconds"},
};
enum { N_ROWS = sizeof table / sizeof table[0] };

static pst_settings *fresh(void) {
  pst_settings *s = NULL;
  assert_int_equal(pst_settings_create(table, N_ROWS, &s), PST_OK);
  return s;
}

static pst_status load(pst_settings *s, const char *text) {
  return pst_settings_load_text(s, "run.yaml", text, strlen(text));
}

static void refused(const char *text, const char *message) {
  pst_settings *s = fresh();
  assert_int_equal(load(s, text), PST_INVALID);
  assert_string_equal(pst_error(), message);
  pst_settings_destroy(s);
}

static void test_defaults(void **state) {
  pst_settings *s = fresh();
  assert_string_equal(pst_settings_string(s, "name"), "run");
  assert_string_equal(pst_settings_origin(s, "name"), "default");
  assert_false(pst_settings_is_set(s, "name"));
  assert_int_equal(pst_settings_int(s, "steps"), 0);
  assert_string_equal(pst_settings_origin(s, "steps"), "unset");
  assert_true(pst_settings_float(s, "optimizer.lr.peak") == 3e-4);
  assert_int_equal(pst_settings_count(s, "optimizer.betas"), 2);
  assert_true(pst_settings_float(s, "optimizer.betas.%d", 1) == 0.95);
  assert_int_equal(pst_settings_count(s, "stages"), 0);
  assert_int_equal(pst_settings_word(s, "extra"), 0);
  assert_int_equal(pst_settings_word(s, "steps"), -1);
  assert_int_equal(pst_settings_time_ns(s, "peer"), INT64_C(10000000000));
  assert_int_equal(pst_settings_misuse(s), PST_OK);
  pst_settings_destroy(s);
  pst_settings_destroy(NULL);
}

static void test_file_values_and_origins(void **state) {
  pst_settings *s = fresh();
  assert_int_equal(load(s, "name: \"a: \\u00e9\"\n"
                           "steps: 20\n"
                           "bitwise: true\n"
                           "optimizer:\n"
                           "  lr: {peak: 1e-3, decay: linear}\n"
                           "  betas: [0.8, 0.9]\n"
                           "stages:\n"
                           "  - {layers: 3}\n"
                           "  - {device: cuda:0, layers: 4}\n"
                           "extra: 3\n"
                           "memory: 1.5GiB\n"
                           "peer: 500ms\n"),
                   PST_OK);
  assert_string_equal(pst_settings_string(s, "name"), "a: \xc3\xa9");
  assert_int_equal(pst_settings_int(s, "steps"), 20);
  assert_string_equal(pst_settings_origin(s, "steps"), "run.yaml:2:8");
  assert_true(pst_settings_bool(s, "bitwise"));
  assert_true(pst_settings_float(s, "optimizer.lr.peak") == 1e-3);
  assert_int_equal(pst_settings_word(s, "optimizer.lr.decay"), 1);
  assert_string_equal(pst_settings_origin(s, "optimizer.lr.decay"), "run.yaml:5:27");
  assert_true(pst_settings_float(s, "optimizer.betas.0") == 0.8);
  assert_int_equal(pst_settings_count(s, "stages"), 2);
  assert_string_equal(pst_settings_string(s, "stages.0.device"), "cpu");
  assert_string_equal(pst_settings_string(s, "stages.1.device"), "cuda:0");
  assert_int_equal(pst_settings_int(s, "stages.1.layers"), 4);
  assert_string_equal(pst_settings_origin(s, "stages.1"), "run.yaml:9:14");
  assert_true(pst_settings_is_set(s, "stages"));
  assert_int_equal(pst_settings_int(s, "extra"), 3);
  assert_int_equal(pst_settings_word(s, "extra"), -1);
  assert_int_equal(pst_settings_size_bytes(s, "memory"), INT64_C(3) << 29);
  assert_int_equal(pst_settings_time_ns(s, "peer"), 500000000);
  assert_int_equal(pst_settings_misuse(s), PST_OK);
  pst_settings_destroy(s);
}

static void test_shorthand_null_and_empty(void **state) {
  pst_settings *s = fresh();
  assert_int_equal(load(s, "optimizer: {lr: 2e-3}\nname: other\nstages: [{layers: 1}]\n"), PST_OK);
  assert_true(pst_settings_float(s, "optimizer.lr.peak") == 2e-3);
  assert_int_equal(pst_settings_word(s, "optimizer.lr.decay"), 0);
  assert_int_equal(load(s, "name: null\noptimizer:\n  # all of it left out\nstages: ~\n"), PST_OK);
  assert_string_equal(pst_settings_string(s, "name"), "run");
  assert_int_equal(pst_settings_count(s, "stages"), 0);
  assert_int_equal(load(s, ""), PST_OK);
  assert_int_equal(load(s, "# nothing\n"), PST_OK);
  pst_settings_destroy(s);
  refused("data: x.txt\n", "run.yaml:1:7: data = x.txt: wanted a map of keys");
}

static void test_key_errors(void **state) {
  refused("name: a\n\n  \noptimiser: {}\n", "run.yaml:4:1: unknown key 'optimiser'; nearest is 'optimizer'");
  refused("steps: 1\noptimizer:\n  lr: {\n    peek: 1}\n",
          "run.yaml:4:5: unknown key 'peek' under optimizer.lr; nearest is 'peak'");
  refused("stages: [{}, {layer: 3}]\n",
          "run.yaml:1:15: unknown key 'layer' under stages.1; nearest is 'layers'");
  refused("decay: linear\n", "run.yaml:1:1: unknown key 'decay'; there is 'optimizer.lr.decay'");
  refused("data.train: x\n", "run.yaml:1:1: unknown key 'data.train'; nearest is 'data'");
  refused("steps: 1\nname: x\nsteps: 2\n", "run.yaml:3:1: duplicate key 'steps'; it is already on line 1");
  refused("data: {train: a, \"train\": b}\n",
          "run.yaml:1:18: duplicate key 'train'; it is already on line 1");
  refused("? [a]\n: b\n", "run.yaml:1:3: a key that is a list or a map; wanted a name");
}

static void test_type_errors(void **state) {
  refused("steps: many\n", "run.yaml:1:8: steps = many: wanted a whole number from 1 to 1000");
  refused("steps: 0\n", "run.yaml:1:8: steps = 0: wanted a whole number from 1 to 1000");
  refused("steps: 1.5\n", "run.yaml:1:8: steps = 1.5: wanted a whole number from 1 to 1000");
  refused("steps: \"20\"\n", "run.yaml:1:8: steps = \"20\": wanted a whole number from 1 to 1000");
  refused("steps: 99999999999999999999\n",
          "run.yaml:1:8: steps = 99999999999999999999: wanted a whole number from 1 to 1000");
  refused("steps:\n", "run.yaml:1:7: steps = nothing: wanted a whole number from 1 to 1000");
  refused("steps: [1]\n", "run.yaml:1:8: steps = a list: wanted a whole number from 1 to 1000");
  refused("steps: {a: 1}\n", "run.yaml:1:8: steps = a map: wanted a whole number from 1 to 1000");
  refused("bitwise: yes\n", "run.yaml:1:10: bitwise = yes: wanted true or false");
  refused("optimizer: {lr: {peak: nan}}\n",
          "run.yaml:1:24: optimizer.lr.peak = nan: wanted a number from 0 to 1");
  refused("optimizer: {lr: 0x1}\n", "run.yaml:1:17: optimizer.lr.peak = 0x1: wanted a number from 0 to 1");
  refused("optimizer: {lr: -3e-4}\n",
          "run.yaml:1:17: optimizer.lr.peak = -3e-4: wanted a number from 0 to 1");
  refused("optimizer: {lr: {decay: step}}\n",
          "run.yaml:1:25: optimizer.lr.decay = step: wanted one of cosine, linear");
  refused("optimizer: {betas: [0.9, x]}\n", "run.yaml:1:26: optimizer.betas.1 = x: wanted a number");
  refused("optimizer: {betas: [null]}\n", "run.yaml:1:21: optimizer.betas.0 = null: wanted a number");
  refused("optimizer: {betas: 0.9}\n", "run.yaml:1:20: optimizer.betas = 0.9: wanted a list");
  refused("stages: {device: cpu}\n", "run.yaml:1:9: stages = a map: wanted a list");
  refused("stages: [cpu]\n", "run.yaml:1:10: stages.0 = cpu: wanted a map of keys");
  refused("extra: some\n", "run.yaml:1:8: extra = some: wanted a whole number or auto");
  refused("memory: 6 cows\n", "run.yaml:1:9: memory = 6 cows: wanted a size such as 512MiB or 6GiB");
  refused("memory: 1.5\n", "run.yaml:1:9: memory = 1.5: wanted a size such as 512MiB or 6GiB");
  refused("memory: -1\n", "run.yaml:1:9: memory = -1: wanted a size such as 512MiB or 6GiB");
  refused("memory: 99999999TiB\n",
          "run.yaml:1:9: memory = 99999999TiB: wanted a size such as 512MiB or 6GiB");
  refused("peer: 10\n",
          "run.yaml:1:7: peer = 10: wanted a time such as 10s or 500ms from 1000000 to 1e+12 ns");
  refused("name: \"a\\0b\"\n", "run.yaml:1:7: name = \"a?b\": wanted text");
  refused("just text\n", "run.yaml:1:1: the whole file = just text: wanted a map of keys");
  refused("- a\n", "run.yaml:1:1: the whole file = a list: wanted a map of keys");
}

static void test_units(void **state) {
  static const struct {
    const char *text;
    int64_t bytes;
  } sizes[] = {{"0", 0},
               {"7", 7},
               {"1B", 1},
               {"2KiB", 2048},
               {"512MiB", 512 << 20},
               {"2kB", 2000},
               {"3MB", 3000000},
               {"\"1 GiB\"", 1 << 30},
               {"9007199254740993", INT64_C(9007199254740993)}};
  static const struct {
    const char *text;
    int64_t ns;
  } times[] = {
      {"1ms", 1000000}, {"2.5s", INT64_C(2500000000)}, {"1500us", 1500000}, {"2min", INT64_C(120000000000)}};
  pst_settings *s = fresh();
  char text[64];
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    snprintf(text, sizeof text, "memory=%s", sizes[i].text);
    assert_int_equal(pst_settings_set(s, text), PST_OK);
    assert_int_equal(pst_settings_size_bytes(s, "memory"), sizes[i].bytes);
  }
  for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
    snprintf(text, sizeof text, "peer=%s", times[i].text);
    assert_int_equal(pst_settings_set(s, text), PST_OK);
    assert_int_equal(pst_settings_time_ns(s, "peer"), times[i].ns);
  }
  pst_settings_destroy(s);
}

static void test_yaml_errors(void **state) {
  refused("name: &a x\n", "run.yaml:1:7: anchors and aliases are not taken; write the value out");
  refused("name: *a\n", "run.yaml:1:7: anchors and aliases are not taken; write the value out");
  refused("steps: !!int 3\n", "run.yaml:1:8: tags are not taken; the key says the type");
  refused("steps: 1\n---\nsteps: 2\n", "run.yaml:2:1: a second document; one file describes one run");
  refused("name: [[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]\n",
          "run.yaml:1:22: nested too deep; at most 16 levels are taken");
  refused("steps: 1\nname: ok\xff\n", "run.yaml:2:9: invalid leading UTF-8 octet; wanted UTF-8 text");
  refused("\xff\xfes\0t\0", "run.yaml:1:1: invalid leading UTF-8 octet; wanted UTF-8 text");
  refused("name: a\x01\n", "run.yaml:1:8: control characters are not allowed; wanted UTF-8 text");
  refused("steps: 1\nname: {a\n", "run.yaml:3:1: did not find expected ',' or '}'");
  refused("a: b: c\n", "run.yaml:1:5: mapping values are not allowed in this context");
}

static void test_bounds(void **state) {
  pst_settings *s = fresh();
  size_t n = PST_SETTINGS_MAX_BYTES + 1;
  char *big = malloc(n);
  assert_non_null(big);
  memset(big, '#', n);
  assert_int_equal(pst_settings_load_text(s, "big.yaml", big, n), PST_INVALID);
  assert_non_null(strstr(pst_error(), "1048577 bytes; at most 1048576"));
  assert_int_equal(pst_settings_load_text(s, "big.yaml", big, n - 1), PST_OK);
  char *out = big + sprintf(big, "tags: [");
  for (int i = 0; i <= PST_SETTINGS_MAX_ITEMS; i++) out += sprintf(out, "a,");
  sprintf(out, "]");
  assert_int_equal(load(s, big), PST_INVALID);
  assert_string_equal(pst_error(), "run.yaml:1:7: tags: 4097 items; at most 4096 are taken");
  free(big);
  pst_settings_destroy(s);
}

static void test_files(void **state) {
  pst_settings *s = fresh();
  assert_int_equal(pst_settings_load_file(s, "/nonexistent/run.yaml"), PST_IO);
  assert_string_equal(pst_error(), "/nonexistent/run.yaml: No such file or directory");
  assert_int_equal(pst_settings_load_file(s, "/"), PST_IO);
  char path[] = "/tmp/penstock-settings-XXXXXX";
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, "steps: 9\n", 9), 9);
  close(fd);
  pst_status st = pst_settings_load_file(s, path);
  unlink(path);
  assert_int_equal(st, PST_OK);
  assert_int_equal(pst_settings_int(s, "steps"), 9);
  char origin[64];
  snprintf(origin, sizeof origin, "%s:1:8", path);
  assert_string_equal(pst_settings_origin(s, "steps"), origin);
  pst_settings_destroy(s);
}

static void test_set(void **state) {
  pst_settings *s = fresh();
  assert_int_equal(load(s, "stages: [{layers: 1}, {layers: 2}]\n"), PST_OK);
  assert_int_equal(pst_settings_set(s, "stages.1.layers=7"), PST_OK);
  assert_int_equal(pst_settings_int(s, "stages.0.layers"), 1);
  assert_int_equal(pst_settings_int(s, "stages.1.layers"), 7);
  assert_string_equal(pst_settings_origin(s, "stages.1.layers"), "--set");
  assert_int_equal(pst_settings_set(s, "stages.2.layers=3"), PST_OK);
  assert_int_equal(pst_settings_count(s, "stages"), 3);
  assert_string_equal(pst_settings_string(s, "stages.2.device"), "cpu");
  assert_int_equal(pst_settings_set(s, "optimizer.betas.1=0.5"), PST_OK);
  assert_true(pst_settings_float(s, "optimizer.betas.1") == 0.5);
  assert_int_equal(pst_settings_set(s, "optimizer.lr={peak: 0.5, decay: linear}"), PST_OK);
  assert_true(pst_settings_float(s, "optimizer.lr.peak") == 0.5);
  assert_int_equal(pst_settings_set(s, "stages=[{device: cuda:0}]"), PST_OK);
  assert_int_equal(pst_settings_count(s, "stages"), 1);
  assert_null(pst_settings_text(s, "stages.0.layers"));
  assert_int_equal(pst_settings_set(s, "name=a=b"), PST_OK);
  assert_string_equal(pst_settings_string(s, "name"), "a=b");

  static const struct {
    const char *assignment, *message;
  } wrong[] = {
      {"steps", "--set: steps: wanted path=value, such as optimizer.lr.peak=1e-3"},
      {"=3", "--set: =3: wanted path=value, such as optimizer.lr.peak=1e-3"},
      {"steps=", "--set: steps has no value"},
      {"steps=abc", "--set: steps = abc: wanted a whole number from 1 to 1000"},
      {"step=3", "--set: unknown key 'step'; nearest is 'steps'"},
      {"optimizer.lr.peek=3", "--set: unknown key 'peek' under optimizer.lr; nearest is 'peak'"},
      {"steps.x=3", "--set: unknown key 'x' under steps, which takes no keys"},
      {"stages.5.layers=3", "--set: stages: no item '5'; the list has 1, counted from 0"},
      {"stages.x.layers=3", "--set: stages: no item 'x'; the list has 1, counted from 0"},
      {"stages.-1.layers=3", "--set: stages: no item '-1'; the list has 1, counted from 0"},
      {"stages.=3", "--set: stages: no item ''; the list has 1, counted from 0"},
      {"name=[", "--set: did not find expected node content"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    assert_int_equal(pst_settings_set(s, wrong[i].assignment), PST_INVALID);
    assert_string_equal(pst_error(), wrong[i].message);
  }
  pst_settings_destroy(s);
}

typedef struct warnings {
  int n;
  char last[256];
} warnings;

static void warned(void *context, pst_log_level level, const char *line) {
  warnings *w = context;
  assert_int_equal(level, PST_LOG_WARN);
  w->n++;
  snprintf(w->last, sizeof w->last, "%s", line);
}

static void test_environment(void **state) {
  static const char *const reserved[] = {"PENSTOCK_TEST_DATA", NULL};
  static char *const environment[] = {"HOME=/",
                                      "PENSTOCK_TEST_DATA=/data",
                                      "PENSTOCK_STEPS=30",
                                      "PENSTOCK_OPTIMIZER_LR_DECAY=linear",
                                      "PENSTOCK_OPTIMIZER_LR=0.25",
                                      "PENSTOCK_OPTIMIZER_BETAS=[0.1, 0.2, 0.3]",
                                      "PENSTOCK_STEP=4",
                                      NULL};
  static char *const wrong[] = {"PENSTOCK_STEPS=ten", NULL};
  warnings w = {0};
  pst_logger *logger = NULL;
  assert_int_equal(pst_logger_create(PST_LOG_DEBUG, warned, &w, &logger), PST_OK);
  pst_settings *s = fresh();
  assert_int_equal(pst_settings_load_environment(s, environment, reserved, logger), PST_OK);
  assert_int_equal(pst_settings_int(s, "steps"), 30);
  assert_string_equal(pst_settings_origin(s, "steps"), "PENSTOCK_STEPS");
  assert_int_equal(pst_settings_word(s, "optimizer.lr.decay"), 1);
  assert_true(pst_settings_float(s, "optimizer.lr.peak") == 0.25);
  assert_int_equal(pst_settings_count(s, "optimizer.betas"), 3);
  assert_int_equal(w.n, 1);
  assert_string_equal(w.last,
                      "environment: PENSTOCK_STEP is not known and does nothing; nearest is PENSTOCK_STEPS");
  assert_int_equal(pst_settings_load_environment(s, wrong, NULL, NULL), PST_INVALID);
  assert_string_equal(pst_error(), "PENSTOCK_STEPS: steps = ten: wanted a whole number from 1 to 1000");
  pst_settings_destroy(s);
  pst_logger_destroy(logger);
}

static void test_precedence(void **state) {
  static char *const environment[] = {"PENSTOCK_STEPS=2", "PENSTOCK_NAME=environment", NULL};
  pst_settings *s = fresh();
  assert_int_equal(load(s, "steps: 1\nname: file\nbitwise: true\n"), PST_OK);
  assert_int_equal(pst_settings_load_environment(s, environment, NULL, NULL), PST_OK);
  assert_int_equal(pst_settings_set(s, "steps=3"), PST_OK);
  assert_int_equal(pst_settings_set(s, "steps=4"), PST_OK);
  assert_int_equal(pst_settings_int(s, "steps"), 4);
  assert_string_equal(pst_settings_origin(s, "steps"), "--set");
  assert_string_equal(pst_settings_string(s, "name"), "environment");
  assert_string_equal(pst_settings_origin(s, "bitwise"), "run.yaml:3:10");
  assert_string_equal(pst_settings_origin(s, "peer"), "default");
  assert_int_equal(pst_settings_default(s, "steps", "9"), PST_OK);
  assert_int_equal(pst_settings_int(s, "steps"), 4);
  assert_int_equal(pst_settings_default(s, "memory", "1MiB"), PST_OK);
  assert_int_equal(pst_settings_size_bytes(s, "memory"), 1 << 20);
  assert_false(pst_settings_is_set(s, "memory"));
  pst_settings_destroy(s);
}

static void test_fail_and_misuse(void **state) {
  pst_settings *s = fresh();
  assert_int_equal(load(s, "steps: 7\nstages: [{layers: 2}]\n"), PST_OK);
  assert_int_equal(pst_settings_fail(s, "steps", PST_INVALID, "wanted an %s number", "even"), PST_INVALID);
  assert_string_equal(pst_error(), "run.yaml:1:8: steps = 7: wanted an even number");
  assert_int_equal(pst_settings_fail(s, "stages", PST_UNSUPPORTED, "too few"), PST_UNSUPPORTED);
  assert_string_equal(pst_error(), "run.yaml:2:19: stages: too few");
  assert_int_equal(pst_settings_fail(s, "memory", PST_INVALID, "missing"), PST_INVALID);
  assert_string_equal(pst_error(), "memory: missing");
  assert_int_equal(pst_settings_misuse(s), PST_OK);
  assert_null(pst_settings_string(s, "steps"));
  assert_int_equal(pst_settings_int(s, "stages.4.layers"), 0);
  assert_int_equal(pst_settings_misuse(s), PST_INTERNAL);
  assert_non_null(strstr(pst_error(), "settings: steps was asked for"));
  pst_settings_destroy(s);
  static const pst_setting wrong = {.path = "a[].b[]", .type = PST_SETTING_INT, .help = "two lists"};
  assert_int_equal(pst_settings_create(&wrong, 1, &s), PST_INTERNAL);
  static const pst_setting bad = {.path = "a", .type = PST_SETTING_INT, .def = "x", .help = "no number"};
  assert_int_equal(pst_settings_create(&bad, 1, &s), PST_INVALID);
}

static char *written(pst_settings *s, pst_status (*write_to)(pst_settings *, FILE *)) {
  char *text = NULL;
  size_t n = 0;
  FILE *file = open_memstream(&text, &n);
  assert_non_null(file);
  assert_int_equal(write_to(s, file), PST_OK);
  fclose(file);
  return text;
}

static void test_written_file(void **state) {
  pst_settings *s = fresh();
  assert_int_equal(load(s, "steps: 7\nstages: [{layers: 2}, {device: cuda:0}]\ntags: []\n"), PST_OK);
  char *text = written(s, pst_settings_write);
  assert_string_equal(text, "name: run\n"
                            "steps: 7\n"
                            "bitwise: false\n"
                            "optimizer:\n"
                            "  lr:\n"
                            "    peak: 3e-4\n"
                            "    decay: cosine\n"
                            "  betas: [0.9, 0.95]\n"
                            "stages:\n"
                            "  - {device: cpu, layers: 2}\n"
                            "  - {device: cuda:0}\n"
                            "extra: auto\n"
                            "peer: 10s\n");
  free(text);
  pst_settings_destroy(s);
}

static void test_round_trip(void **state) {
  static const char *const texts[] = {
      "plain",
      "",
      "null",
      "~",
      "true",
      "3",
      "- a",
      "a: b",
      "a #b",
      "#",
      " lead",
      "trail ",
      "{a}",
      "\xc3\xa9t\xc3\xa9",
      "\"quoted\"",
      "back\\slash",
      "two\nlines\n",
      "tab\t",
      "\x07\x7f",
      "\xc2\x85\xe2\x80\xa8\xef\xbb\xbf",
      "\xf0\x9f\x98\x80",
      "a \xe2\x80\xa8 b",
      "cuda:0",
      "a:",
      "@x",
      "'",
  };
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    pst_settings *s = fresh(), *t = fresh();
    assert_int_equal(pst_settings_default(s, "name", texts[i]), PST_OK);
    assert_int_equal(pst_settings_set(s, "tags=['null', '', a, '1, 2', ']']"), PST_OK);
    assert_int_equal(pst_settings_set(s, "stages=[{layers: 3}, {device: 'a, }b'}, {}]"), PST_OK);
    assert_int_equal(pst_settings_set(s, "memory=1.5 GiB"), PST_OK);
    char *first = written(s, pst_settings_write);
    if (load(t, first) != PST_OK) fail_msg("%s in\n%s", pst_error(), first);
    assert_string_equal(pst_settings_string(t, "name"), texts[i]);
    assert_int_equal(pst_settings_count(t, "tags"), 5);
    assert_string_equal(pst_settings_string(t, "tags.0"), "null");
    assert_string_equal(pst_settings_string(t, "tags.1"), "");
    assert_string_equal(pst_settings_string(t, "tags.3"), "1, 2");
    assert_int_equal(pst_settings_count(t, "stages"), 3);
    assert_string_equal(pst_settings_string(t, "stages.1.device"), "a, }b");
    assert_int_equal(pst_settings_size_bytes(t, "memory"), INT64_C(3) << 29);
    char *second = written(t, pst_settings_write);
    assert_string_equal(first, second);
    free(first);
    free(second);
    pst_settings_destroy(s);
    pst_settings_destroy(t);
  }
}

static void test_print(void **state) {
  pst_settings *s = fresh();
  assert_int_equal(load(s, "steps: 7\n"), PST_OK);
  assert_int_equal(pst_settings_set(s, "optimizer.lr.decay=linear"), PST_OK);
  char *text = written(s, pst_settings_print);
  for (size_t i = 0; i < N_ROWS; i++) assert_non_null(strstr(text, table[i].path));
  assert_non_null(strstr(text, "default none; now 7 from run.yaml:1:8"));
  assert_non_null(strstr(text, "word (cosine|linear)"));
  assert_non_null(strstr(text, "default cosine; now linear from --set"));
  free(text);
  pst_settings_destroy(s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_defaults),
      cmocka_unit_test(test_file_values_and_origins),
      cmocka_unit_test(test_shorthand_null_and_empty),
      cmocka_unit_test(test_key_errors),
      cmocka_unit_test(test_type_errors),
      cmocka_unit_test(test_units),
      cmocka_unit_test(test_yaml_errors),
      cmocka_unit_test(test_bounds),
      cmocka_unit_test(test_files),
      cmocka_unit_test(test_set),
      cmocka_unit_test(test_environment),
      cmocka_unit_test(test_precedence),
      cmocka_unit_test(test_fail_and_misuse),
      cmocka_unit_test(test_written_file),
      cmocka_unit_test(test_round_trip),
      cmocka_unit_test(test_print),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
