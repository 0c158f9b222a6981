/* The tables a backend fills: driver (what is here), device (memory, copies, runs) and ops (which op it can
 * do).
 *
 *   const pst_driver *cpu = pst_driver_find("cpu");
 *   pst_device *dev;
 *   PST_TRY(cpu->open(&(pst_device_options){.spec = "cpu:cores=0-1"}, &dev));
 *   PST_TRY(dev->table->alloc(dev, bytes, &buffer));
 *   PST_TRY(dev->table->run(dev, &program, &binding));      // may return before the work is done
 *   PST_TRY(dev->table->wait(dev));
 *   dev->table->close(dev);
 *
 * A table is checked by name when its backend registers: a required entry that is NULL is named. Optional
 * entries may be NULL; core then falls back (a peer copy goes through the host) and counts it.
 *
 * One worker owns a device and calls it from one thread; enumerate may be called from any.
 */
#ifndef PENSTOCK_DEVICE_DEVICE_H
#define PENSTOCK_DEVICE_DEVICE_H

#include "core/base/status.h"
#include "core/device/program.h"

typedef struct pst_device pst_device;

typedef enum pst_memory_kind {
  PST_MEMORY_HOST,
  PST_MEMORY_CUDA,
  PST_MEMORY_ROCM,
  PST_MEMORY_OPAQUE
} pst_memory_kind;

typedef struct pst_device_info {
  char name[64];           /* "cpu", "cuda:0" */
  char description[256];   /* model, core count, library versions, kernel set */
  char reason[256];        /* "" when usable; else why not */
  int64_t memory_bytes;    /* what a run may use; 0: not known */
  int64_t max_block_bytes; /* largest single allocation; 0: no limit */
  pst_memory_kind memory_kind;
  char numerics[128]; /* what decides the bits besides the program: "cpu fp32 own-gemm fma"; ranks compare it
                       */
} pst_device_info;

typedef struct pst_device_options {
  const char *spec; /* "cpu", "cpu:cores=0-3", "opencl:1" */
  const int *cores; /* CPU: logical cores of this device; NULL: not bound */
  int n_threads;    /* CPU: threads, the worker's own included; 0: one per core */
  const char *isa;  /* CPU: "auto", "baseline", "v3", "v4"; NULL: auto */
  const char *gemm; /* CPU: "auto", "own", "openblas"; NULL: auto */
} pst_device_options;

typedef struct pst_driver {
  const char *name;
  /* Calls `visit` once per device, usable or not, and once with a reason when the driver as a whole has none.
   * Cheap; never fails the listing. */
  void (*enumerate)(void (*visit)(void *user, const pst_device_info *info), void *user);
  /* Opens one device. INVALID for a spec it cannot read, UNSUPPORTED when the device is absent (the reason in
   * the message). */
  pst_status (*open)(const pst_device_options *options, pst_device **out_device);
} pst_driver;

typedef struct pst_device_table {
  /* required */
  void (*close)(pst_device *);
  void (*query)(pst_device *, pst_device_info *out_info);
  pst_status (*alloc)(pst_device *, int64_t bytes,
                      pst_buffer **out_buffer); /* zeroed; aligned to PST_ALIGN or more */
  void (*free)(pst_device *, pst_buffer *);
  pst_status (*fill)(pst_device *, pst_buffer *, int64_t offset, int64_t bytes, uint8_t value);
  pst_status (*upload)(pst_device *, pst_buffer *to, int64_t offset, const void *from, int64_t bytes);
  pst_status (*download)(pst_device *, void *to, const pst_buffer *from, int64_t offset, int64_t bytes);
  pst_status (*copy)(pst_device *, pst_buffer *to, int64_t to_offset, const pst_buffer *from,
                     int64_t from_offset, int64_t bytes);
  /* PST_OK, or UNSUPPORTED with the op, dtype and shape in the message. Answers before training starts. */
  pst_status (*supports)(pst_device *, const pst_op *);
  /* Scratch this op wants, in bytes; core places it in WORK and fills op.workspace. */
  int64_t (*workspace)(pst_device *, const pst_op *);
  /* Runs the ops in order, after everything queued before. */
  pst_status (*run)(pst_device *, const pst_program *, const pst_binding *);
  /* Returns when all that was queued is done. */
  pst_status (*wait)(pst_device *);
  /* optional */
  void *(*host_pointer)(
      pst_device *, pst_buffer *); /* memory that the host may address as it is; NULL entry or result: none */
  void (*set_progress)(pst_device *, void (*progress)(void *user),
                       void *user); /* called between ops and long pieces, by the worker's thread */
} pst_device_table;

struct pst_device {
  const pst_device_table *table;
  const pst_driver *driver;
};

/* A required entry that is missing is INTERNAL and named. */
PST_CHECKED pst_status pst_device_table_check(const char *driver, const pst_device_table *table);

#endif
