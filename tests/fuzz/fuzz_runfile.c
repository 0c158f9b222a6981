/* Any bytes as a run file: refused or loaded, and what loads writes a file that loads to the same.
 *
 *   fuzz_runfile -max_total_time=60 -max_len=4096 corpus/
 */
#include "core/plan/runfile.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *written(pst_settings *s, pst_status (*write_to)(pst_settings *, FILE *)) {
  char *text = NULL;
  size_t n = 0;
  FILE *file = open_memstream(&text, &n);
  if (!file) return NULL;
  pst_status st = write_to(s, file);
  fclose(file);
  if (st != PST_OK) abort();
  return text;
}

static void check_round_trip(pst_settings *s) {
  size_t n_rows;
  const pst_setting *table = pst_runfile_table(&n_rows);
  pst_settings *again = NULL;
  char *first = written(s, pst_settings_write), *second = NULL;
  if (!first || pst_settings_create(table, n_rows, &again) != PST_OK) goto done;
  if (pst_settings_load_text(again, "written.yaml", first, strlen(first)) != PST_OK) {
    fprintf(stderr, "%s in\n%s", pst_error(), first);
    abort();
  }
  second = written(again, pst_settings_write);
  if (second && strcmp(first, second) != 0) {
    fprintf(stderr, "%s\nis not\n%s", second, first);
    abort();
  }
done:
  free(first);
  free(second);
  pst_settings_destroy(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  size_t n_rows;
  const pst_setting *table = pst_runfile_table(&n_rows);
  pst_settings *s = NULL;
  if (pst_settings_create(table, n_rows, &s) != PST_OK) abort();
  if (pst_settings_load_text(s, "run.yaml", (const char *)data, size) == PST_OK) {
    pst_runfile run = {.name = NULL};
    pst_status st = pst_runfile_load(s, &run);
    if (st == PST_INTERNAL) abort();
    if (st != PST_OK && !*pst_error()) abort();
    pst_runfile_free(&run);
    check_round_trip(s);
    free(written(s, pst_settings_print));
  }
  pst_settings_destroy(s);
  return 0;
}
