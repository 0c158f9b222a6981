/* The optimizer: from its options to the programs that end a step of one stage.
 *
 *   pst_optimizer_options o;
 *   pst_optimizer_options_init(&o);                                       // AdamW, clip 1
 *   PST_TRY(pst_optimizer_lower(graph, stage, &o, &stage_options, &code));
 *   // step: code->tie, code->norm, then, once the whole model's norm is known, code->update
 *
 * Tied parameters: the stage of a parameter's earliest use owns it. `tie` adds the other uses' gradients to
 * the first one's, in ascending order of use; `norm` forms sums of squares; `update` reads PARAM and writes
 * PARAM_NEXT. Gradients of use 0 are cleared by the update; those of other uses are cleared by whoever holds
 * them.
 */
#ifndef PENSTOCK_OPTIM_OPTIMIZER_H
#define PENSTOCK_OPTIM_OPTIMIZER_H

#include "core/graph/stage.h"

typedef enum pst_optimizer_kind { PST_ADAMW, PST_SGD } pst_optimizer_kind;

typedef struct pst_optimizer_options {
  pst_optimizer_kind kind; /* adamw */
  float beta1, beta2;      /* 0.9, 0.95; adamw */
  float eps;               /* 1e-8; adamw */
  float momentum;          /* 0; sgd: 0 keeps no velocity */
  float weight_decay;      /* 0.1; on matrices alone */
  float clip;              /* 1; largest norm of the whole model's gradient; 0: never clipped */
} pst_optimizer_options;

void pst_optimizer_options_init(pst_optimizer_options *options);

/* Sums of squares are formed in double over blocks of this many elements (core/device/ops.h, sum_squares). */
enum { PST_NORM_BLOCK = 4096, PST_MAX_MOMENTS = 3 };

/* One parameter that this stage owns. */
typedef struct pst_update_param {
  int32_t stage_param; /* index into the stage's params */
  pst_operand sums;    /* STATE: f64, one per block */
  int n_moments;
  pst_operand moments[PST_MAX_MOMENTS]; /* OPTIM, fp32, shaped like the parameter */
  const char *names[PST_MAX_MOMENTS];   /* "m", "v", "velocity", "master" */
} pst_update_param;

typedef struct pst_update_code {
  pst_program tie, norm, update;
  pst_update_param *params; /* in the model's order */
  int32_t n_params;
} pst_update_code;

/* Also grows the stage's layouts of OPTIM, STATE and WORK. The code is the caller's. */
PST_CHECKED pst_status pst_optimizer_lower(const pst_graph *graph, pst_stage_code *stage,
                                           const pst_optimizer_options *options,
                                           const pst_stage_options *stage_options,
                                           pst_update_code **out_code);
void pst_update_code_destroy(pst_update_code *code);

/* The learning rate over time: linear warm-up, then a decay to `final`. */
typedef enum pst_decay { PST_DECAY_COSINE, PST_DECAY_LINEAR, PST_DECAY_CONSTANT } pst_decay;
typedef struct pst_learning_rate {
  double peak, final;
  int64_t warmup; /* steps; step s of them runs at peak * (s + 1) / (warmup + 1) */
  int64_t steps;  /* the decay ends here; later steps stay at `final` */
  pst_decay decay;
} pst_learning_rate;

/* For step 0, 1, ...: cosine as I. Loshchilov, F. Hutter, "SGDR", ICLR 2017, eq. 5, without restarts. */
double pst_learning_rate_at(const pst_learning_rate *lr, int64_t step);

/* The factor that clipping puts on every gradient: 1, or clip / norm where the norm is larger (R. Pascanu et
 * al., "On the difficulty of training recurrent neural networks", ICML 2013, algorithm 1). */
float pst_clip_factor(double norm, float clip);

/* Fills the fields of a pst_ctrl that the update reads; `step` counts from 0. */
void pst_optimizer_ctrl(const pst_optimizer_options *options, int64_t step, double lr, float clip_factor,
                        pst_ctrl *ctrl);

#endif
