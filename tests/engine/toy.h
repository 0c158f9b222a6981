/* Small models in a pipeline, for tests: built, stepped and read back in a few lines.
 *
 *   toy_options o = toy_gpt2();
 *   o.n_stages = 2;
 *   o.schedule = "gpipe";
 *   toy *t = toy_create(&o);
 *   toy_step(t, step, &result);
 *   uint64_t h = toy_weights_hash(t);
 *   toy_destroy(t);
 */
#ifndef PENSTOCK_TESTS_ENGINE_TOY_H
#define PENSTOCK_TESTS_ENGINE_TOY_H

#include "core/device/device.h"
#include "core/engine/pipeline.h"
#include "core/graph/ir.h"
#include "core/graph/model.h"

typedef struct toy_options {
  pst_model_config config;
  int64_t batch, sequence, microbatches;
  int n_stages;
  int chunks;         /* stages of each worker; 0: 1 */
  const int32_t *cut; /* units; NULL: as even as can be */
  int threads;        /* of each device */
  const char *schedule, *isa, *gemm;
  int extra_forwards;
  pst_backward backward;
  pst_optimizer_options optimizer;
  pst_dtype dtype;
  uint64_t seed;
  double lr;
  bool evaluates; /* builds the loss and logits passes too */
  pst_action_hook hook;
  void *hook_user;
  int64_t op_limit_ns, memory_limit_bytes;
} toy_options;

/* 4 layers, 4 heads, width 32, vocabulary 97, 32 positions, tied, dropout 0.1, clip always active; global
 * batch 8 as 4 x 2. */
toy_options toy_gpt2(void);
/* 6 layers, 4 heads of which 2 key/value, width 32, vocabulary 101, untied. */
toy_options toy_llama(void);

typedef struct toy {
  toy_options options;
  pst_graph *train, *loss, *logits;
  pst_device **devices;
  pst_transport *transport;
  pst_pipeline *pipeline;
  int32_t *tokens, *targets;
} toy;

/* Fails the test on any error. */
toy *toy_create(const toy_options *options);
/* The same, but an error of pst_pipeline_create/start comes back (the toy is destroyed). */
pst_status toy_try_create(const toy_options *options, toy **out_toy);
void toy_destroy(toy *t);

/* Draws the batch of `step` from the seed: each sequence counts up by 1, 2 or 3 from anywhere, so there is
 * something to learn; targets are the tokens shifted by one. */
void toy_batch(toy *t, int64_t step, pst_batch *out_batch);
pst_status toy_step(toy *t, int64_t step, pst_step_result *out_result);

/* All parameters, in the model's order, as fp32; the caller frees. */
float *toy_weights(toy *t, int64_t *out_n);
uint64_t toy_weights_hash(toy *t);
/* The gradient of parameter i, as left by pst_pipeline_gradients(); the caller frees. */
float *toy_gradient(toy *t, int32_t param, int64_t *out_n);

#endif
