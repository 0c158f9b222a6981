/* A pipeline: stages of one model on their devices, and the workers that run them.
 *
 *   pst_pipeline *p;
 *   PST_TRY(pst_pipeline_create(&options, &p));          // lowers and plans: no device memory is taken yet
 *   pst_pipeline_memory(p, stage, &memory);              // what it will take
 *   PST_TRY(pst_pipeline_start(p));                      // allocates, starts one thread per worker
 *   PST_TRY(pst_pipeline_init(p, seed));
 *   for (step = 0; step < n; step++) PST_TRY(pst_pipeline_step(p, &batch, seed, step, lr, &r));
 *   pst_pipeline_destroy(p);
 *
 * All calls come from one thread, the owner's. A failed step leaves the pipeline dead: every later call gives
 * the first cause again.
 */
#ifndef PENSTOCK_ENGINE_PIPELINE_H
#define PENSTOCK_ENGINE_PIPELINE_H

#include "core/base/log.h"
#include "core/device/device.h"
#include "core/graph/graph.h"
#include "core/optim/optimizer.h"
#include "core/schedule/schedule.h"
#include "core/transport/transport.h"

typedef struct pst_pipeline pst_pipeline;

/* How backward runs; the same bits. */
typedef enum pst_backward {
  PST_BACKWARD_AUTO, /* fused on the first stage, where nobody waits for a gradient; early on the others */
  PST_BACKWARD_EACH_FUSED, /* fused everywhere */
  PST_BACKWARD_EACH_EARLY, /* early everywhere: input gradients, send, weight gradients */
  PST_BACKWARD_EACH_SPLIT, /* the schedule's B becomes I and W */
} pst_backward;

/* Called by a worker before each action of a step; a status other than OK is that worker's failure. For tests
 * and faults. */
typedef pst_status (*pst_action_hook)(void *user, int worker, int64_t step, pst_action action);

typedef struct pst_pipeline_options {
  pst_graph *train;  /* differentiated; NULL: no training. Graphs are borrowed. */
  pst_graph *loss;   /* for evaluation; may be NULL */
  pst_graph *logits; /* for generation; may be NULL */
  int n_stages;
  int chunks;                 /* V: stages of each worker; 0: 1. The schedule says which stage is whose */
  const int32_t *cut;         /* n_stages + 1 unit numbers */
  pst_device *const *devices; /* one per worker, borrowed */
  pst_transport *transport;   /* borrowed; carries n_stages / chunks workers */
  const char *schedule;       /* "1f1b" */
  int extra_forwards;
  int64_t microbatches; /* of a step and of an evaluation; logits take one */
  pst_backward backward;
  pst_optimizer_options optimizer;
  int64_t op_limit_ns;        /* no worker finished an action for so long: HUNG; 0: 60 s */
  int64_t memory_limit_bytes; /* of each device; 0: what the device has */
  pst_logger *logger;
  pst_action_hook hook;
  void *hook_user;
} pst_pipeline_options;

/* Checks, lowers and plans; NO_MEMORY when the plan needs more than the devices have. */
PST_CHECKED pst_status pst_pipeline_create(const pst_pipeline_options *options, pst_pipeline **out_pipeline);
PST_CHECKED pst_status pst_pipeline_start(pst_pipeline *pipeline);
void pst_pipeline_destroy(pst_pipeline *pipeline);

/* True when a worker hangs and cannot be ended: then destroy does nothing, and the pipeline's devices, graphs
 * and transport must stay.
 */
bool pst_pipeline_lost(const pst_pipeline *pipeline);

/* Planned bytes of one stage, all copies counted. */
typedef struct pst_stage_memory {
  int64_t bytes[PST_SEGMENT_COUNT];
  int64_t copies[PST_SEGMENT_COUNT]; /* of training: slots of STASH and DEFER, rings */
  int64_t total_bytes;
} pst_stage_memory;
void pst_pipeline_memory(const pst_pipeline *pipeline, int stage, pst_stage_memory *out_memory);

/* Gives every parameter its first value, keyed by (seed, its name). */
PST_CHECKED pst_status pst_pipeline_init(pst_pipeline *pipeline, uint64_t seed);

/* A global batch: `sequences` of T tokens each, row-major; targets of -1 are ignored. Missing sequences, up
 * to microbatches * b, are filled with empty ones. Host memory, the caller's, read during the call. */
typedef struct pst_batch {
  const int32_t *tokens;
  const int32_t *targets;   /* NULL for logits */
  const int32_t *positions; /* logits: one per sequence */
  int64_t sequences;
} pst_batch;

typedef struct pst_step_result {
  double loss;          /* mean over the valid tokens */
  double gradient_norm; /* of the whole model, before clipping */
  int64_t tokens;       /* valid ones */
  int64_t step_ns;
} pst_step_result;

/* One step: forward, backward, update. `step` counts from 0; messages name it as the step being done, from 1.
 * `seed` keys dropout. NONFINITE (parameters untouched) when the norm is not finite, naming step, stage and
 * tensor. */
PST_CHECKED pst_status pst_pipeline_step(pst_pipeline *pipeline, const pst_batch *batch, uint64_t seed,
                                         int64_t step, double lr, pst_step_result *out_result);

/* Forward and backward alone: gradients are left where pst_pipeline_read() finds them, until
 * pst_pipeline_apply(), or until the next step or gradients call clears them. The norm is not formed yet:
 * result's is 0. */
PST_CHECKED pst_status pst_pipeline_gradients(pst_pipeline *pipeline, const pst_batch *batch, uint64_t seed,
                                              int64_t step, pst_step_result *out_result);

/* The update that pst_pipeline_gradients() left out: norm, clip, optimizer; clears the gradients. The two
 * calls together give the bits of one pst_pipeline_step(). */
PST_CHECKED pst_status pst_pipeline_apply(pst_pipeline *pipeline, int64_t step, double lr,
                                          double *out_gradient_norm);

/* Forward only: the sum of the valid tokens' losses, formed in double, sequence by sequence; `out_losses`
 * (may be NULL) gets sequences * T losses. */
PST_CHECKED pst_status pst_pipeline_loss(pst_pipeline *pipeline, const pst_batch *batch, double *out_loss_sum,
                                         int64_t *out_tokens, float *out_losses);

/* logits[sequences, V] at the given positions. */
PST_CHECKED pst_status pst_pipeline_logits(pst_pipeline *pipeline, const pst_batch *batch, float *out_logits);

/* What can be read and written, by the parameter's index in the graph. */
typedef enum pst_tensor_kind {
  PST_TENSOR_PARAM,    /* the graph's dtype */
  PST_TENSOR_GRADIENT, /* fp32; of a tied parameter the sum of its uses; as left by pst_pipeline_gradients()
                        */
  PST_TENSOR_MOMENT,   /* fp32; 0 .. pst_pipeline_moments() - 1 */
} pst_tensor_kind;

/* Copies `bytes` at `offset` of the tensor from or to host memory. Writing a tied parameter writes all its
 * copies. */
PST_CHECKED pst_status pst_pipeline_read(pst_pipeline *pipeline, pst_tensor_kind kind, int32_t param,
                                         int moment, int64_t offset, void *to, int64_t bytes);
PST_CHECKED pst_status pst_pipeline_write(pst_pipeline *pipeline, pst_tensor_kind kind, int32_t param,
                                          int moment, int64_t offset, const void *from, int64_t bytes);

/* The stage that owns a parameter: that of its earliest use; -1 for none. */
int pst_pipeline_owner(const pst_pipeline *pipeline, int32_t param);

/* Moments the optimizer keeps for each parameter, and their names ("m", "v", "velocity", "master"). */
int pst_pipeline_moments(const pst_pipeline *pipeline, const char *out_names[PST_MAX_MOMENTS]);

/* Where a stage's time went (busy and its parts) and its worker's (total, wait), summed over the steps since
 * the last call of pst_pipeline_stats_reset(). */
typedef struct pst_worker_stats {
  int64_t steps;
  int64_t total_ns;
  int64_t busy_ns;                                                 /* inside the device */
  int64_t wait_ns;                                                 /* for messages */
  int64_t forward_ns, backward_ns, input_ns, weight_ns, update_ns; /* parts of busy */
  int64_t message_bytes;
} pst_worker_stats;
void pst_pipeline_stats(const pst_pipeline *pipeline, int stage, pst_worker_stats *out_stats);
void pst_pipeline_stats_reset(pst_pipeline *pipeline);

/* The training schedule as it runs, for printing and simulation. */
const pst_schedule *pst_pipeline_schedule(const pst_pipeline *pipeline);

#endif
