#include "core/schedule/families.h"

#include <stdio.h>
#include <string.h>

#include "core/schedule/csv.h"

static const pst_schedule_family families[] = {
    {"1f1b", "one forward, one backward in turn; K-r microbatches in flight on worker r", 1, true,
     pst__generate_one_f_one_b},
    {"gpipe", "all forwards, then all backwards; M microbatches in flight", 1, false, pst__generate_gpipe},
    {"interleaved", "1f1b through V chunks on each worker; 1/V of the bubble", 0, false,
     pst__generate_interleaved},
    {"looped-bfs", "chunk by chunk, all forwards up, all backwards down; M microbatches in flight", 0, false,
     pst__generate_looped_bfs},
    {"zb-h1", "1f1b with weight gradients put off into the bubble; K microbatches in flight", 1, false,
     pst__generate_zb_h1},
    {"zb-h2", "more in flight for less bubble; 2K-1 microbatches in flight", 1, false, pst__generate_zb_h2},
    {"interleaved-zb", "zb-h1 through V chunks on each worker", 0, false, pst__generate_interleaved_zb},
    {"zb-v", "down and back up through two chunks on each worker; K microbatches in flight", 2, false,
     pst__generate_zb_v},
    {"v-half", "down and up at half of 1f1b's memory, (K+2)/2 microbatches in flight", 2, false,
     pst__generate_v_half},
    {"v-min", "down and up at a third of 1f1b's memory, (K+4)/3 microbatches in flight", 2, false,
     pst__generate_v_min},
    {"dualpipe-v", "forward and backward side by side, down and up; K + 1/2 microbatches in flight", 2, false,
     pst__generate_dualpipe_v},
    {"auto", "laid out for the stages' own times and memory", 0, false, pst__generate_auto},
    {"forward-only", "evaluation: forwards alone", 0, false, pst__generate_forward_only},
};

enum { N_FAMILIES = sizeof families / sizeof families[0], NAME_LIMIT = 32 };

void pst_schedule_options_init(pst_schedule_options *options) {
  *options = (pst_schedule_options){.name = "1f1b", .workers = 1, .chunks = 1, .microbatches = 1};
}

const pst_schedule_family *pst_schedule_families(size_t *out_count) {
  *out_count = N_FAMILIES;
  return families;
}

/* Edit distance of two names; what lies beyond NAME_LIMIT characters counts as different. */
static size_t name_distance(const char *a, const char *b) {
  size_t n = strnlen(a, NAME_LIMIT), m = strnlen(b, NAME_LIMIT), row[NAME_LIMIT + 1];
  for (size_t j = 0; j <= m; j++) row[j] = j;
  for (size_t i = 1; i <= n; i++) {
    size_t corner = row[0];
    row[0] = i;
    for (size_t j = 1; j <= m; j++) {
      size_t best = corner + (a[i - 1] != b[j - 1]);
      if (row[j] + 1 < best) best = row[j] + 1;
      if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
      corner = row[j];
      row[j] = best;
    }
  }
  return row[m];
}

static pst_status refuse_name(const char *name) {
  const pst_schedule_family *order[N_FAMILIES];
  for (size_t i = 0; i < N_FAMILIES; i++) {
    size_t at = i;
    for (; at > 0 && name_distance(name, order[at - 1]->name) > name_distance(name, families[i].name); at--)
      order[at] = order[at - 1];
    order[at] = &families[i];
  }
  char list[N_FAMILIES * (NAME_LIMIT + 2) + 1] = "";
  size_t used = 0;
  for (size_t i = 0; i < N_FAMILIES; i++)
    used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "", order[i]->name);
  return pst_fail(PST_INVALID, "schedule name: seen \"%.64s\", wanted one of %s", name, list);
}

/* A file's list, without its messages: lowering places its own. */
static pst_status read_file(const pst_schedule_options *options, pst_schedule **out_schedule) {
  pst_schedule *file = NULL;
  bool renumbered;
  PST_TRY(pst_schedule_read_csv(options->name, &file, &renumbered));
  pst_status st = PST_OK;
  if (file->workers != options->workers || file->microbatches != options->microbatches)
    st = pst_fail(PST_INVALID,
                  "schedule %s: seen %d workers and %lld microbatches, wanted the run's %d and %lld",
                  options->name, file->workers, (long long)file->microbatches, options->workers,
                  (long long)options->microbatches);
  else if (options->chunks != 1 && options->chunks != file->chunks)
    st = pst_fail(PST_INVALID, "schedule %s: seen %d chunks on each worker, wanted the run's %d",
                  options->name, file->chunks, options->chunks);
  else
    st = pst_schedule_strip(file, out_schedule);
  pst_schedule_destroy(file);
  return st;
}

pst_status pst_schedule_generate(const pst_schedule_options *options, pst_schedule **out_schedule) {
  const char *name = options->name != NULL ? options->name : "";
  const pst_schedule_family *family = NULL;
  for (size_t i = 0; i < N_FAMILIES; i++)
    if (strcmp(families[i].name, name) == 0) family = &families[i];
  size_t length = strlen(name);
  if (family == NULL && length > 4 && strcmp(name + length - 4, ".csv") == 0)
    return read_file(options, out_schedule);
  if (family == NULL) return refuse_name(name);
  if (family->chunks > 0 && options->chunks != 1 && options->chunks != family->chunks)
    return pst_fail(PST_INVALID, "schedule chunks: seen %d, wanted %d for %s", options->chunks,
                    family->chunks, name);
  if (options->extra_forwards != 0 && !family->takes_extra)
    return pst_fail(PST_INVALID, "schedule extra_forwards: seen %d, wanted 0 for %s", options->extra_forwards,
                    name);
  if (options->extra_forwards < PST_EXTRA_AUTO)
    return pst_fail(PST_INVALID, "schedule extra_forwards: seen %d, wanted 0 or more, or auto",
                    options->extra_forwards);
  pst_schedule_options own = *options;
  if (family->chunks > 0) own.chunks = family->chunks;
  return family->generate(&own, out_schedule);
}
