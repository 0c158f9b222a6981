/* The CPU as a device: a team of threads and memory of this process.
 *
 *   static pst_status open_cpu(const pst_device_options *options, pst_device **out_device) {
 *     pst_cpu_plan plan = {.n_threads = 2, .set = set};
 *     return pst__cpu_device_create(&plan, out_device);
 *   }
 *
 * A program is one run of the team: every member walks the ops and meets the others at a barrier after each.
 *
 * While a program runs, subnormal numbers count as zero on every member, on the processors that can (x86-64,
 * AArch64). Moments of parameters without gradient decay into subnormals and stay there, and sharp softmaxes
 * make them; each costs the processor some hundred cycles, and products full of them were ten times slower.
 */
#ifndef PENSTOCK_BACKENDS_CPU_DEVICE_H
#define PENSTOCK_BACKENDS_CPU_DEVICE_H

#include "backends/cpu/set.h"
#include "core/device/device.h"

/* What the driver has made of a spec and its options. */
typedef struct pst_cpu_plan {
  const int *cores; /* n_threads long, copied; NULL: not bound */
  int n_threads;
  const pst_cpu_set *set;
  bool openblas; /* products by OpenBLAS; it is opened here */
} pst_cpu_plan;

extern const pst_driver pst_driver_cpu;

/* Starts the team. */
PST_CHECKED pst_status pst__cpu_device_create(const pst_cpu_plan *plan, pst_device **out_device);

/* Fills what a machine and a kernel set say about a device: description, memory, numerics; blas: NULL for our
 * own products. */
void pst__cpu_describe(const pst_cpu_set *set, const pst_blas *blas, int n_threads,
                       pst_device_info *out_info);

/* UNSUPPORTED, with op, dtype and shape, when the kernels cannot do `op`. */
PST_CHECKED pst_status pst__cpu_supports(const pst_cpu_set *set, const pst_op *op);

#endif
