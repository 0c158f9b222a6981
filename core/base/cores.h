/* The logical cores that this process may use, and how the CPU stages of a host share them.
 *
 *   pst_cores all, mine;
 *   bool shared;
 *   PST_TRY(pst_cores_usable(&all));
 *   PST_TRY(pst_cores_share(&all, n_cpu_stages, stage, &mine, &shared)); // disjoint unless shared
 *   const int *bind = mine.by_quota ? NULL : mine.id;
 *   PST_TRY(pst_team_create(&(pst_team_options){.n_threads = mine.n, .cores = bind}, &team));
 *
 * A set is a value: ascending core numbers without repeats. All functions may be called from any thread.
 */
#ifndef PENSTOCK_BASE_CORES_H
#define PENSTOCK_BASE_CORES_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stddef.h>

#define PST_CORES_MAX 1024

typedef struct pst_cores {
  int n;
  int id[PST_CORES_MAX]; /* ascending; id[0..n) hold */
  bool by_quota; /* usable() only: fewer than the affinity allows, for a cgroup limits processor time. Which
                    cores are then used is the kernel's choice: do not bind to them */
} pst_cores;

/* The cores of the affinity mask, at most as many as the cgroup's processor time pays for (v2 cpu.max, v1 cfs
 * quota, of the process's group and all above it; rounded down, at least 1: a thread more would be stopped in
 * mid-barrier). Read at the first call and kept, so that a thread bound to one core later still learns what
 * the process has. UNSUPPORTED on a machine with core numbers of PST_CORES_MAX and above. */
PST_CHECKED pst_status pst_cores_usable(pst_cores *out_cores);

/* "0-3,7": core numbers and ascending ranges between commas, no repeats, no blanks; INVALID names the text,
 * what is wrong and where. */
PST_CHECKED pst_status pst_cores_parse(const char *text, pst_cores *out_cores);

/* The inverse of parse; "" for an empty set. Cut to size, always ended by 0. Returns `buffer`. */
char *pst_cores_format(const pst_cores *cores, char *buffer, size_t size);

/* The cores of a NUMA node that are also in `usable`. INVALID when there is no such node or none of its cores
 * are usable; the message lists the nodes' number. hwloc where it was built in, else
 * /sys/devices/system/node. */
PST_CHECKED pst_status pst_cores_numa(const pst_cores *usable, int node, pst_cores *out_cores);

/* The share of `stage` among `n_stages`: contiguous pieces of `all`, disjoint, sizes differing by at most
 * one, larger ones first. With fewer cores than stages each stage has one, dealt round-robin, and *out_shared
 * is true (it is then true for all stages). INVALID for an empty set or a stage outside 0 .. n_stages - 1. */
PST_CHECKED pst_status pst_cores_share(const pst_cores *all, int n_stages, int stage, pst_cores *out_cores,
                                       bool *out_shared);

bool pst_cores_has(const pst_cores *cores, int core);

/* The lowest core in both sets, -1 when they are disjoint. */
int pst_cores_overlap(const pst_cores *a, const pst_cores *b);

/* Processor time in cores that the cgroups allow, 0 when nothing limits it. `proc_cgroup` is a file like
 * /proc/self/cgroup, `mount` a directory like /sys/fs/cgroup: given so that it can be tested on made-up
 * files. */
double pst_cores_quota(const char *proc_cgroup, const char *mount);

#endif
