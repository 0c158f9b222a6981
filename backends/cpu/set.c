#include "backends/cpu/set.h"

#include <string.h>

/* The narrowest first. */
static const pst_cpu_set *const sets[] = {
    &pst__cpu_set_baseline,
#if defined(__x86_64__)
    &pst__cpu_set_v3,
    &pst__cpu_set_v4,
#endif
};
enum { N_SETS = sizeof sets / sizeof sets[0] };

static bool machine_runs(const pst_cpu_set *set) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  if (set == &pst__cpu_set_v3) return v3;
  if (set == &pst__cpu_set_v4)
    return v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
#endif
  return set == &pst__cpu_set_baseline;
}

pst_status pst__cpu_set_find(const char *name, const pst_cpu_set **out_set) {
  bool any = !name || strcmp(name, "auto") == 0;
  for (int i = N_SETS - 1; i >= 0; i--) {
    if (!any && strcmp(name, sets[i]->name) != 0) continue;
    if (machine_runs(sets[i])) {
      *out_set = sets[i];
      return PST_OK;
    }
    if (!any) return pst_fail(PST_UNSUPPORTED, "cpu: instruction set %s: this processor lacks it", name);
  }
  return pst_fail(PST_INVALID, "cpu: instruction set \"%s\", wanted auto, baseline, v3 or v4", name);
}
