/* Small runs in a directory of their own, for tests.
 *
 *   runs *r = runs_create();                             // a directory under TMPDIR with text.txt in it
 *   const char *sets[] = {"steps=8", "stages=[{}, {}]"};
 *   pst_run *run = runs_open(r, sets, 2);                // a toy GPT-2 with these settings on top
 *   ...
 *   pst_run_close(run);
 *   runs_destroy(r);
 */
#ifndef PENSTOCK_TESTS_ENGINE_RUNS_H
#define PENSTOCK_TESTS_ENGINE_RUNS_H

#include "core/penstock.h"

#include <stdint.h>

enum { RUNS_PATH = 512 };

typedef struct runs {
  char root[RUNS_PATH];  /* the directory */
  char text[RUNS_PATH];  /* ROOT/text.txt: 6,000 bytes of made-up words */
  char file[RUNS_PATH];  /* ROOT/run.yaml */
  char lines[64 * 1024]; /* what was logged, newline after each */
} runs;

runs *runs_create(void);
void runs_destroy(runs *r);

/* Writes `bytes` to ROOT/name and gives the path (static memory, next call reuses it). */
const char *runs_write(runs *r, const char *name, const void *bytes, size_t n);

/* Opens ROOT/run.yaml with these settings on top. */
pst_status runs_try_open(runs *r, const char *const *sets, int n_sets, pst_run **out_run);
pst_run *runs_open(runs *r, const char *const *sets, int n_sets);

/* The same, trained and closed: what pst_run_train() gave. */
pst_status runs_train(runs *r, const char *const *sets, int n_sets);

/* Hash of the file ROOT/runs/NAME/checkpoints/step-NNNNNN/model.safetensors and its optimizer's. */
uint64_t runs_weights(const runs *r, const char *name, int64_t step);

/* Whole text file; the caller frees. */
char *runs_read(const char *path);

/* PENSTOCK_TEST_DATA, or shared/data beside the repository; NULL when `file` is not there. */
const char *runs_shared(const char *file);

#endif
