#include "backends/cpu/device.h"
#include "core/base/cores.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_THREADS = 1024, LINE = 512 };

/* ---- what is here ---- */

/* The first line of a small file without its end; false when there is none. */
static bool read_line(const char *path, char *line, int size) {
  FILE *f = fopen(path, "r");
  if (!f) return false;
  bool got = fgets(line, size, f) != NULL;
  fclose(f);
  if (got) line[strcspn(line, "\n")] = '\0';
  return got;
}

/* Cores this process may use, at least 1; the reason is lost where they cannot be counted. */
static int usable_cores(void) {
  pst_cores cores;
  return pst_cores_usable(&cores) == PST_OK ? cores.n : 1;
}

static int64_t usable_memory(void) {
  int64_t bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
  char line[LINE];
  long long limit;
  if (read_line("/sys/fs/cgroup/memory.max", line, sizeof line) && sscanf(line, "%lld", &limit) == 1 &&
      limit < bytes)
    bytes = limit;
  return bytes;
}

static void model_name(char *out, size_t size) {
  snprintf(out, size, "unknown processor");
  FILE *f = fopen("/proc/cpuinfo", "r");
  if (!f) return;
  char line[LINE];
  while (fgets(line, sizeof line, f)) {
    if (strncmp(line, "model name", 10) != 0) continue;
    const char *text = strchr(line, ':');
    if (!text) continue;
    text += 1 + strspn(text + 1, " \t");
    snprintf(out, size, "%.*s", (int)strcspn(text, "\n"), text);
    break;
  }
  fclose(f);
}

void pst__cpu_describe(const pst_cpu_set *set, const pst_blas *blas, int n_threads,
                       pst_device_info *out_info) {
  static const char *const names[] = {"baseline", "v3", "v4"};
  char model[96], present[32] = "", gemm[64] = "own";
  model_name(model, sizeof model);
  for (int i = 0; i < 3; i++) {
    const pst_cpu_set *other;
    if (pst__cpu_set_find(names[i], &other) != PST_OK) continue;
    snprintf(present + strlen(present), sizeof present - strlen(present), "%s%s", present[0] ? " " : "",
             names[i]);
  }
  if (blas) {
    char version[16] = "";
    const bool known = sscanf(blas->config, "OpenBLAS %15s", version) == 1;
    snprintf(gemm, sizeof gemm, "openblas %s%s%s", version, known ? " " : "", blas->core);
  }
  *out_info =
      (pst_device_info){.name = "cpu", .memory_bytes = usable_memory(), .memory_kind = PST_MEMORY_HOST};
  snprintf(out_info->description, sizeof out_info->description,
           "%s, %d thread%s of %d usable cores, kernels %s (has %s), products %s", model, n_threads,
           n_threads == 1 ? "" : "s", usable_cores(), set->name, present, gemm);
  snprintf(out_info->numerics, sizeof out_info->numerics, "cpu f32 %s %s%s", set->numerics, gemm,
           blas ? "" : "-gemm");
}

static void cpu_enumerate(void (*visit)(void *user, const pst_device_info *info), void *user) {
  pst_device_info info;
  const pst_cpu_set *set;
  if (pst__cpu_set_find("auto", &set) != PST_OK) set = &pst__cpu_set_baseline;
  pst__cpu_describe(set, NULL, usable_cores(), &info);
  visit(user, &info);
}

/* ---- opening ---- */

static pst_status numa_cores(const char *spec, const char *node, pst_cores *out_cores) {
  pst_cores usable;
  const size_t digits = strspn(node, "0123456789");
  if (digits == 0 || digits > 6 || node[digits] != '\0')
    return pst_fail(PST_INVALID, "device \"%s\": NUMA node \"%s\", wanted a number", spec, node);
  PST_TRY(pst_cores_usable(&usable));
  return pst_cores_numa(&usable, atoi(node), out_cores);
}

/* The cores a spec names; out_cores->n is 0 when it leaves them open. */
static pst_status spec_cores(const char *spec, pst_cores *out_cores) {
  out_cores->n = 0;
  if (!spec || strcmp(spec, "cpu") == 0) return PST_OK;
  if (strncmp(spec, "cpu:cores=", 10) == 0) {
    pst_status st = pst_cores_parse(spec + 10, out_cores);
    return st == PST_OK ? st : pst_fail_prefix(st, "device \"%s\": ", spec);
  }
  if (strncmp(spec, "cpu:numa", 8) == 0) return numa_cores(spec, spec + 8, out_cores);
  return pst_fail(PST_INVALID, "device \"%s\", wanted cpu, cpu:cores=0-3,6 or cpu:numa0", spec);
}

static pst_status read_gemm(const char *name, bool *out_openblas) {
  if (name && strcmp(name, "auto") != 0 && strcmp(name, "own") != 0 && strcmp(name, "openblas") != 0)
    return pst_fail(PST_INVALID, "cpu: gemm \"%s\", wanted auto, own or openblas", name);
  *out_openblas = name && strcmp(name, "openblas") == 0;
  return PST_OK;
}

static pst_status cpu_open(const pst_device_options *options, pst_device **out_device) {
  pst_cores named;
  pst_cpu_plan plan = {.cores = options->cores, .n_threads = options->n_threads};
  PST_TRY(spec_cores(options->spec, &named));
  PST_TRY(pst__cpu_set_find(options->isa, &plan.set));
  PST_TRY(read_gemm(options->gemm, &plan.openblas));
  if (plan.n_threads < 0 || plan.n_threads > MAX_THREADS)
    return pst_fail(PST_INVALID, "cpu: %d threads, wanted 0 (one per core) to %d", plan.n_threads,
                    MAX_THREADS);
  if (plan.cores && plan.n_threads == 0)
    return pst_fail(PST_INVALID, "cpu: a list of cores without n_threads, wanted one core per thread");
  if (!plan.cores && named.n > 0) {
    if (plan.n_threads > named.n)
      return pst_fail(PST_INVALID, "cpu: %d threads on the %d cores of \"%s\"", plan.n_threads, named.n,
                      options->spec);
    plan.cores = named.id;
    if (plan.n_threads == 0) plan.n_threads = named.n;
  }
  if (plan.n_threads == 0) plan.n_threads = usable_cores();
  return pst__cpu_device_create(&plan, out_device);
}

const pst_driver pst_driver_cpu = {.name = "cpu", .enumerate = cpu_enumerate, .open = cpu_open};
