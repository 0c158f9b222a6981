#include "core/schedule/simulate.h"

#include <math.h>
#include <stdlib.h>

#include "core/schedule/internal.h"

void pst_simulate_options_init(pst_simulate_options *options) {
  *options = (pst_simulate_options){.early_send = true};
}

static pst_status check_times(const char *name, const double *times, int stages) {
  for (int s = 0; times != NULL && s < stages; s++)
    if (!isfinite(times[s]) || times[s] < 0)
      return pst_fail(PST_INVALID, "simulate %s of stage %d: seen %g s, wanted 0 or more", name, s, times[s]);
  return PST_OK;
}

pst_status pst_schedule_simulate(const pst_schedule *schedule, const pst_simulate_options *options,
                                 pst_simulation **out_result) {
  PST_TRY(check_times("forward_s", options->forward_s, schedule->stages));
  PST_TRY(check_times("input_s", options->input_s, schedule->stages));
  PST_TRY(check_times("weight_s", options->weight_s, schedule->stages));
  if (!isfinite(options->latency_s) || options->latency_s < 0)
    return pst_fail(PST_INVALID, "simulate latency_s: seen %g s, wanted 0 or more", options->latency_s);
  pst_simulation *result = calloc(1, sizeof *result + (size_t)schedule->workers * sizeof result->workers[0]);
  if (result == NULL) return pst_fail(PST_NO_MEMORY, "simulate: no memory for %d workers", schedule->workers);
  pst_status st = pst__prove(schedule, options, true, result);
  if (st != PST_OK) {
    pst_simulation_destroy(result);
    return st;
  }
  *out_result = result;
  return PST_OK;
}

void pst_simulation_destroy(pst_simulation *simulation) {
  free(simulation);
}
