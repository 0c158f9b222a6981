#include "tests/engine/runs.h"

#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/rng.h"
#include "tests/support.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const words[] = {"water", "turns", "the",   "wheel", "and",    "pipe", "runs", "down",
                                    "hill",  "over",  "stone", "under", "bridge", "to",   "mill", "again"};

static void make_text(runs *r) {
  enum { BYTES = 6000 };
  char text[BYTES + 16];
  size_t n = 0;
  for (uint32_t i = 0; n < BYTES; i++) {
    uint32_t x[4];
    pst_rng_philox(pst_rng_key_make(11, 0), (uint32_t[4]){i, 0, 0, 0}, x);
    n += (size_t)snprintf(text + n, sizeof text - n, "%s%c", words[x[0] % 16], x[1] % 9 ? ' ' : '\n');
  }
  runs_write(r, "text.txt", text, BYTES);
}

runs *runs_create(void) {
  runs *r = calloc(1, sizeof *r);
  const char *tmp = getenv("TMPDIR");
  snprintf(r->root, 256, "%s/penstock-runs-XXXXXX", tmp ? tmp : "/tmp");
  assert_non_null(mkdtemp(r->root));
  snprintf(r->text, sizeof r->text, "%.300s/text.txt", r->root);
  snprintf(r->file, sizeof r->file, "%.300s/run.yaml", r->root);
  make_text(r);
  char yaml[2048];
  int n = snprintf(yaml, sizeof yaml,
                   "name: toy\n"
                   "seed: 7\n"
                   "steps: 8\n"
                   "runs: %s/runs\n"
                   "model: {family: gpt2, layers: 3, heads: 2, width: 16, dropout: 0.1}\n"
                   "data: {train: %s, sequence: 16}\n"
                   "batch: {global: 8, micro: 2}\n"
                   "optimizer: {lr: {peak: 1e-2, warmup: 2}}\n"
                   "eval: {every: 4, sequences: 8}\n"
                   "checkpoint: {every: 0, keep: 100}\n"
                   "threads: 1\n",
                   r->root, r->text);
  runs_write(r, "run.yaml", yaml, (size_t)n);
  return r;
}

void runs_destroy(runs *r) {
  if (!r) return;
  char dir[RUNS_PATH];
  snprintf(dir, sizeof dir, "%s", r->root);
  char *slash = strrchr(dir, '/');
  *slash = 0;
  assert_ok(pst_dir_remove(dir, slash + 1));
  free(r);
}

const char *runs_write(runs *r, const char *name, const void *bytes, size_t n) {
  static char path[RUNS_PATH];
  snprintf(path, sizeof path, "%.300s/%.100s", r->root, name);
  assert_ok(pst_file_write(path, bytes, n));
  return path;
}

static void keep_line(void *user, pst_log_level level, const char *line) {
  runs *r = user;
  size_t n = strlen(r->lines);
  snprintf(r->lines + n, sizeof r->lines - n, "%s: %s\n", pst_log_level_name(level), line);
}

pst_status runs_try_open(runs *r, const char *const *sets, int n_sets, pst_run **out_run) {
  pst_run_options o = {.file = r->file, .sets = sets, .n_sets = n_sets, .log = keep_line, .log_user = r};
  return pst_run_open(&o, out_run);
}

pst_run *runs_open(runs *r, const char *const *sets, int n_sets) {
  pst_run *run = NULL;
  assert_ok(runs_try_open(r, sets, n_sets, &run));
  return run;
}

pst_status runs_train(runs *r, const char *const *sets, int n_sets) {
  pst_run *run = runs_open(r, sets, n_sets);
  pst_status st = pst_run_train(run, NULL);
  pst_run_close(run);
  return st;
}

char *runs_read(const char *path) {
  char *text = NULL;
  size_t n;
  assert_ok(pst_file_read(path, (size_t)64 << 20, &text, &n));
  return text;
}

uint64_t runs_weights(const runs *r, const char *name, int64_t step) {
  static const char *const files[] = {"model.safetensors", "optimizer.safetensors"};
  uint64_t hash = 0;
  for (int i = 0; i < 2; i++) {
    char path[1024], *bytes = NULL;
    size_t n;
    snprintf(path, sizeof path, "%s/runs/%s/checkpoints/step-%06lld/%s", r->root, name, (long long)step,
             files[i]);
    assert_ok(pst_file_read(path, (size_t)64 << 20, &bytes, &n));
    hash = pst_hash_bytes(bytes, n, hash);
    free(bytes);
  }
  return hash;
}

const char *runs_shared(const char *file) {
  static char path[RUNS_PATH];
  const char *data = getenv("PENSTOCK_TEST_DATA");
  if (data)
    snprintf(path, sizeof path, "%.300s/%.150s", data, file);
  else
    snprintf(path, sizeof path, "%s/../shared/data/%.150s", PENSTOCK_SOURCE_DIR, file);
  return access(path, R_OK) == 0 ? path : NULL;
}
