/* Any graph in a pipeline, for tests: built from a function, stepped on made-up tokens, read back.
 *
 *   rig_options o = {.build = two_streams, .batch = 2, .sequence = 6, .microbatches = 4, .n_stages = 3};
 *   rig *r;
 *   assert_ok(rig_create(&o, &r));
 *   assert_ok(rig_step(r, 0, &result));
 *   uint64_t h = rig_weights_hash(r);
 *   rig_destroy(r);
 */
#ifndef PENSTOCK_TESTS_GRAPH_RIG_H
#define PENSTOCK_TESTS_GRAPH_RIG_H

#include "core/engine/pipeline.h"
#include "core/graph/ir.h"

#include <stdbool.h>

typedef struct rig_options {
  void (*build)(pst_graph *graph, void *user);
  void *user;
  int64_t batch, sequence, microbatches;
  int32_t vocab; /* tokens and targets are below it */
  pst_dtype dtype;
  int n_stages;         /* 0: 1 */
  int chunks;           /* V, stages of each worker; 0: 1 */
  const int32_t *cut;   /* NULL: as even as can be */
  const char *schedule; /* NULL: 1f1b */
  pst_backward backward;
  pst_optimizer_options optimizer; /* all zero: AdamW's defaults */
  bool evaluates;
  int64_t max_block_bytes; /* what the devices say their largest allocation is; 0: as they are */
  pst_action_hook hook;
  void *hook_user;
} rig_options;

typedef struct rig {
  rig_options options;
  pst_graph *train, *loss;
  pst_device **devices;
  pst_transport *transport;
  pst_pipeline *pipeline;
  int32_t *tokens, *targets;
} rig;

/* Builds, starts and initialises; the first error comes back. */
pst_status rig_create(const rig_options *options, rig **out_rig);
void rig_destroy(rig *r);

/* The tokens of a step: uniform below the vocabulary; every fifth target is ignored. */
void rig_batch(rig *r, int64_t step, pst_batch *out_batch);
pst_status rig_step(rig *r, int64_t step, pst_step_result *out_result);
uint64_t rig_weights_hash(rig *r);
int64_t rig_elements(const rig *r, int32_t param);

/* Two streams and a value used two units later; tokens and targets on middle and last units; one matrix
 * tied over three units of which two are in the middle; received values that weight gradients read.
 * 7 units, vocabulary 11. `user` is NULL or a float: the share that is dropped, 0.2 else. */
void rig_two_streams(pst_graph *graph, void *user);
enum { RIG_TWO_STREAMS_UNITS = 7, RIG_TWO_STREAMS_VOCAB = 11 };

#endif
