#include "core/plan/partition.h"

#include <stdlib.h>

pst_status pst_partition(const int64_t *cost, int32_t n_units, const double *speed, int32_t n_stages,
                         int32_t *out_cut) {
  if (n_stages < 1 || n_units < n_stages)
    return pst_fail(PST_INVALID, "%d units cannot be cut into %d stages: each stage holds at least one unit",
                    n_units, n_stages);
  size_t row = (size_t)n_units + 1;
  double *best = malloc((size_t)(n_stages + 1) * row *
                        sizeof *best); /* best[s][u]: the first u units on the first s stages */
  int32_t *from = malloc((size_t)(n_stages + 1) * row * sizeof *from); /* where the last of them begins */
  double *sum = malloc(row * sizeof *sum);
  pst_status st = PST_OK;
  if (!best || !from || !sum) {
    st = pst_fail(PST_NO_MEMORY, "no memory to cut %d units into %d stages", n_units, n_stages);
    goto done;
  }
  sum[0] = 0;
  for (int32_t u = 0; u < n_units; u++) sum[u + 1] = sum[u] + (double)cost[u];
  for (size_t i = 0; i < (size_t)(n_stages + 1) * row; i++) best[i] = -1; /* not possible */
  best[0] = 0;
  for (int32_t s = 1; s <= n_stages; s++) {
    for (int32_t u = s; u <= n_units - (n_stages - s); u++) {
      for (int32_t v = s - 1; v < u; v++) {
        double before = best[(size_t)(s - 1) * row + (size_t)v];
        if (before < 0) continue;
        double mine = (sum[u] - sum[v]) / speed[s - 1], slowest = before > mine ? before : mine;
        double *at = &best[(size_t)s * row + (size_t)u];
        if (*at >= 0 && *at <= slowest) continue;
        *at = slowest;
        from[(size_t)s * row + (size_t)u] = v;
      }
    }
  }
  out_cut[n_stages] = n_units;
  for (int32_t s = n_stages; s > 0; s--) out_cut[s - 1] = from[(size_t)s * row + (size_t)out_cut[s]];
done:
  free(best);
  free(from);
  free(sum);
  return st;
}
