#include "core/schedule/families.h"

#include <stdio.h>
#include <string.h>

static const pst_schedule_family families[] = {
    {"1f1b", "one forward, one backward in turn; K-r microbatches in flight on worker r", false, true,
     pst__generate_one_f_one_b},
    {"gpipe", "all forwards, then all backwards; M microbatches in flight", false, false,
     pst__generate_gpipe},
    {"forward-only", "evaluation: forwards alone", false, false, pst__generate_forward_only},
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

pst_status pst_schedule_generate(const pst_schedule_options *options, pst_schedule **out_schedule) {
  const char *name = options->name != NULL ? options->name : "";
  const pst_schedule_family *family = NULL;
  for (size_t i = 0; i < N_FAMILIES; i++)
    if (strcmp(families[i].name, name) == 0) family = &families[i];
  if (family == NULL) return refuse_name(name);
  if (options->chunks != 1 && !family->takes_chunks)
    return pst_fail(PST_INVALID, "schedule chunks: seen %d, wanted 1 for %s", options->chunks, name);
  if (options->extra_forwards != 0 && !family->takes_extra)
    return pst_fail(PST_INVALID, "schedule extra_forwards: seen %d, wanted 0 for %s", options->extra_forwards,
                    name);
  if (options->extra_forwards < 0)
    return pst_fail(PST_INVALID, "schedule extra_forwards: seen %d, wanted 0 or more",
                    options->extra_forwards);
  return family->generate(options, out_schedule);
}
