#include "core/base/cores.h"

#include <ctype.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef PST_HAVE_HWLOC
#include <hwloc.h>
#endif

/* What the process may use, kept from the first call (see the header). */
static pthread_once_t usable_once = PTHREAD_ONCE_INIT;
static pst_cores usable_cores;
static bool usable_known;

/* ---- cgroup quota ---- */

/* The first line of `mount` + `path` + `/` + `name`; false when there is none. */
static bool read_line(const char *mount, const char *path, const char *name, char *line, int size) {
  char file[4096];
  int n = snprintf(file, sizeof file, "%s%s/%s", mount, path, name);
  if (n < 0 || (size_t)n >= sizeof file) return false;
  FILE *f = fopen(file, "re");
  if (!f) return false;
  bool ok = fgets(line, size, f) != NULL;
  fclose(f);
  return ok;
}

/* v2: "max 100000" or "150000 100000". */
static double quota_v2(const char *mount, const char *path) {
  char line[128];
  long long quota, period;
  if (!read_line(mount, path, "cpu.max", line, sizeof line)) return 0;
  if (sscanf(line, "%lld %lld", &quota, &period) != 2 || quota <= 0 || period <= 0) return 0;
  return (double)quota / (double)period;
}

/* v1: two files, quota -1 for no limit. */
static double quota_v1(const char *mount, const char *path) {
  char quota[64], period[64];
  if (!read_line(mount, path, "cpu.cfs_quota_us", quota, sizeof quota)) return 0;
  if (!read_line(mount, path, "cpu.cfs_period_us", period, sizeof period)) return 0;
  long long q = atoll(quota), p = atoll(period);
  return q > 0 && p > 0 ? (double)q / (double)p : 0;
}

static double tighter(double a, double b) {
  if (a <= 0) return b;
  return b > 0 && b < a ? b : a;
}

/* The tightest quota of the group at `path` and of all above it, the mount's own root included (all that a
 * container with a namespace of its own can see). Cuts `path` down as it climbs. */
static double quota_up(double (*quota)(const char *, const char *), const char *mount, char *path) {
  double least = 0;
  for (;;) {
    size_t n = strlen(path);
    if (n > 0 && path[n - 1] == '/') path[n - 1] = 0;
    least = tighter(least, quota(mount, path));
    char *slash = strrchr(path, '/');
    if (!slash) return least;
    *slash = 0;
  }
}

static bool lists_cpu(const char *controllers) {
  for (const char *p = controllers; *p;) {
    size_t n = strcspn(p, ",");
    if (n == 3 && strncmp(p, "cpu", 3) == 0) return true;
    p += n + (p[n] == ',');
  }
  return false;
}

double pst_cores_quota(const char *proc_cgroup, const char *mount) {
  double least = 0;
  FILE *f = fopen(proc_cgroup, "re");
  if (!f) return 0;
  char line[4096];
  while (fgets(line, sizeof line, f)) {
    line[strcspn(line, "\n")] = 0;
    char *controllers = strchr(line, ':');
    char *path = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!path) continue;
    controllers++;
    *path++ = 0;
    if (*controllers == 0) {
      least = tighter(least, quota_up(quota_v2, mount, path));
    } else if (lists_cpu(controllers)) {
      char v1_mount[1024];
      int n = snprintf(v1_mount, sizeof v1_mount, "%s/%s", mount, controllers);
      if (n > 0 && (size_t)n < sizeof v1_mount) least = tighter(least, quota_up(quota_v1, v1_mount, path));
    }
  }
  fclose(f);
  return least;
}

/* ---- the process's cores ---- */

#ifdef __linux__
static bool read_affinity(pst_cores *cores) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return false;
  for (int core = 0; core < PST_CORES_MAX && core < CPU_SETSIZE; core++)
    if (CPU_ISSET(core, &set)) cores->id[cores->n++] = core;
  return cores->n > 0;
}
#else
static bool read_affinity(pst_cores *cores) {
  long n = sysconf(_SC_NPROCESSORS_ONLN);
  if (n < 1 || n > PST_CORES_MAX) return false;
  for (int core = 0; core < n; core++) cores->id[cores->n++] = core;
  return true;
}
#endif

static void learn_usable(void) {
  usable_known = read_affinity(&usable_cores);
  double quota = pst_cores_quota("/proc/self/cgroup", "/sys/fs/cgroup");
  if (quota <= 0 || quota >= usable_cores.n) return;
  usable_cores.n = quota < 1 ? 1 : (int)quota;
  usable_cores.by_quota = true;
}

pst_status pst_cores_usable(pst_cores *out_cores) {
  pthread_once(&usable_once, learn_usable);
  if (!usable_known)
    return pst_fail(PST_UNSUPPORTED,
                    "cores: the affinity of this process cannot be read (core numbers up to %d are known)",
                    PST_CORES_MAX - 1);
  *out_cores = usable_cores;
  return PST_OK;
}

/* ---- text ---- */

static pst_status parse_fail(const char *text, const char *at, const char *why) {
  return pst_fail(PST_INVALID,
                  "cores \"%s\": %s at character %d, wanted core numbers and ranges such as 0-3,7", text, why,
                  (int)(at - text) + 1);
}

/* A number at *at, which moves behind it; -1 when there is none or it is no core number. */
static int parse_core(const char **at) {
  int core = 0;
  if (!isdigit((unsigned char)**at)) return -1;
  for (; isdigit((unsigned char)**at); ++*at) {
    core = core * 10 + (**at - '0');
    if (core >= PST_CORES_MAX) return -1;
  }
  return core;
}

pst_status pst_cores_parse(const char *text, pst_cores *out_cores) {
  bool in[PST_CORES_MAX] = {false};
  const char *at = text;
  for (;;) {
    const char *item = at;
    int first = parse_core(&at), last = first;
    if (first < 0) return parse_fail(text, item, "no core number from 0 to 1023");
    if (*at == '-') {
      const char *end = ++at;
      last = parse_core(&at);
      if (last < 0) return parse_fail(text, end, "no core number from 0 to 1023");
      if (last < first) return parse_fail(text, item, "a range that descends");
    }
    for (int core = first; core <= last; core++) {
      if (in[core]) return parse_fail(text, item, "a core named twice");
      in[core] = true;
    }
    if (*at == 0) break;
    if (*at != ',') return parse_fail(text, at, "an unknown character");
    at++;
  }
  out_cores->n = 0;
  out_cores->by_quota = false;
  for (int core = 0; core < PST_CORES_MAX; core++)
    if (in[core]) out_cores->id[out_cores->n++] = core;
  return PST_OK;
}

char *pst_cores_format(const pst_cores *cores, char *buffer, size_t size) {
  if (size > 0) buffer[0] = 0;
  size_t used = 0;
  for (int i = 0; i < cores->n;) {
    int last = i;
    while (last + 1 < cores->n && cores->id[last + 1] == cores->id[last] + 1) last++;
    char item[32];
    if (last > i)
      snprintf(item, sizeof item, "%s%d-%d", i ? "," : "", cores->id[i], cores->id[last]);
    else
      snprintf(item, sizeof item, "%s%d", i ? "," : "", cores->id[i]);
    size_t n = strlen(item);
    if (used + n >= size) break;
    memcpy(buffer + used, item, n + 1);
    used += n;
    i = last + 1;
  }
  return buffer;
}

/* ---- sets ---- */

bool pst_cores_has(const pst_cores *cores, int core) {
  for (int i = 0; i < cores->n; i++)
    if (cores->id[i] == core) return true;
  return false;
}

int pst_cores_overlap(const pst_cores *a, const pst_cores *b) {
  for (int i = 0; i < a->n; i++)
    if (pst_cores_has(b, a->id[i])) return a->id[i];
  return -1;
}

pst_status pst_cores_share(const pst_cores *all, int n_stages, int stage, pst_cores *out_cores,
                           bool *out_shared) {
  if (all->n < 1)
    return pst_fail(PST_INVALID, "cores: none to share among %d stages, wanted at least 1", n_stages);
  if (stage < 0 || stage >= n_stages)
    return pst_fail(PST_INVALID, "cores: share of stage %d, wanted 0 to %d", stage, n_stages - 1);
  bool shared = all->n < n_stages;
  int base = all->n / n_stages, larger = all->n % n_stages;
  int first = shared ? stage % all->n : stage * base + (stage < larger ? stage : larger);
  int n = shared ? 1 : base + (stage < larger);
  pst_cores share = {.n = n, .by_quota = all->by_quota};
  memcpy(share.id, all->id + first, (size_t)n * sizeof *share.id);
  *out_cores = share;
  *out_shared = shared;
  return PST_OK;
}

/* ---- NUMA nodes ---- */

#ifdef PST_HAVE_HWLOC
static pst_status node_cores(int node, pst_cores *out_cores) {
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0) return pst_fail(PST_NO_MEMORY, "cores: hwloc cannot start");
  pst_status st = PST_OK;
  if (hwloc_topology_load(topology) != 0) {
    st = pst_fail(PST_UNSUPPORTED, "cores: hwloc cannot read this machine's layout");
    goto destroy_topology;
  }
  hwloc_obj_t object = NULL;
  while ((object = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, object)) != NULL)
    if (object->os_index == (unsigned)node) break;
  if (!object) {
    st = pst_fail(PST_INVALID, "cores: no NUMA node %d, this machine has %d", node,
                  hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE));
    goto destroy_topology;
  }
  out_cores->n = 0;
  for (int core = hwloc_bitmap_first(object->cpuset); core >= 0 && core < PST_CORES_MAX;
       core = hwloc_bitmap_next(object->cpuset, core))
    out_cores->id[out_cores->n++] = core;
destroy_topology:
  hwloc_topology_destroy(topology);
  return st;
}
#else
static pst_status node_cores(int node, pst_cores *out_cores) {
  char name[64], line[4096];
  snprintf(name, sizeof name, "node%d/cpulist", node);
  if (!read_line("/sys/devices/system", "/node", name, line, sizeof line)) {
    if (!read_line("/sys/devices/system", "/node", "online", line, sizeof line))
      snprintf(line, sizeof line, "unknown");
    line[strcspn(line, "\n")] = 0;
    return pst_fail(PST_INVALID, "cores: no NUMA node %d, this machine's nodes: %.64s", node, line);
  }
  line[strcspn(line, "\n")] = 0;
  if (line[0] == 0) { /* a node of memory alone */
    out_cores->n = 0;
    return PST_OK;
  }
  return pst_cores_parse(line, out_cores);
}
#endif

pst_status pst_cores_numa(const pst_cores *usable, int node, pst_cores *out_cores) {
  pst_cores all = {0}, both = {.by_quota = usable->by_quota};
  PST_TRY(node_cores(node, &all));
  for (int i = 0; i < all.n; i++)
    if (pst_cores_has(usable, all.id[i])) both.id[both.n++] = all.id[i];
  if (both.n == 0) {
    char text[128];
    return pst_fail(PST_INVALID, "cores: NUMA node %d has no core that this process may use (%s)", node,
                    pst_cores_format(usable, text, sizeof text));
  }
  *out_cores = both;
  return PST_OK;
}
