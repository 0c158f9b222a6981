/* From a model and a layout to a pipeline ready to step: graphs, split into stages, devices, transport,
 * pipeline. What the trainer and the run have in common.
 *
 *   pst_assembly *a;
 *   PST_TRY(pst_assembly_create(&options, &a));      // plans only: pst_pipeline_memory() is known
 *   PST_TRY(pst_assembly_start(a));                  // allocates, starts the workers
 *   pst_pipeline_init(a->pipeline, seed);
 *   pst_assembly_destroy(a);
 */
#ifndef PENSTOCK_ENGINE_ASSEMBLY_H
#define PENSTOCK_ENGINE_ASSEMBLY_H

#include "core/engine/pipeline.h"

typedef struct pst_assembly_worker {
  const char *device; /* "cpu", "cpu:cores=0-1"; NULL: cpu */
  int threads;        /* 0: its share of the cores this process may use */
  int units;          /* of its stage; 0 for all: split by cost; else all add up to the model's units */
} pst_assembly_worker;

typedef struct pst_assembly_options {
  void (*build)(pst_graph *graph, void *user); /* as pst_build_function of penstock.h */
  void *build_user;
  bool trains, evaluates, generates; /* which passes to build */
  int64_t sequence, micro, microbatches;
  pst_dtype dtype;
  int n_workers; /* K */
  int chunks;    /* V: stages of each worker; 0: 1. With more, `units` is 0 for all */
  const pst_assembly_worker
      *workers; /* K of them, borrowed for the call; NULL: CPU workers that share the cores */
  const char *schedule;
  int extra_forwards;
  pst_backward backward;
  pst_optimizer_options optimizer;
  int64_t op_limit_ns, memory_limit_bytes; /* 0: defaults */
  const char *isa, *gemm;                  /* NULL: auto */
  pst_logger *logger;
  pst_action_hook hook;
  void *hook_user;
} pst_assembly_options;

typedef struct pst_assembly {
  pst_graph *train, *loss, *logits; /* NULL where not built */
  const pst_graph *any;             /* one of them: for parameters and units */
  int n_workers;
  int n_stages;         /* n_workers * chunks */
  int32_t *cut;         /* n_stages + 1 */
  int *worker_of;       /* n_stages */
  pst_device **devices; /* per worker */
  int *threads;         /* per worker; 0: the device's own choice */
  pst_transport *transport;
  pst_pipeline *pipeline;
} pst_assembly;

PST_CHECKED pst_status pst_assembly_create(const pst_assembly_options *options, pst_assembly **out_assembly);
PST_CHECKED pst_status pst_assembly_start(pst_assembly *assembly);
void pst_assembly_destroy(pst_assembly *assembly);

/* Elements and bytes of a parameter of the graph. */
int64_t pst_assembly_elements(const pst_assembly *assembly, int32_t param);

#endif
