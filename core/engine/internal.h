/* The inside of a pipeline, for the files of core/engine.
 *
 * A *pass* is one graph lowered for all stages with its schedule: training, loss or logits. A *chunk* is one
 * stage as its worker holds it, with what outlives a pass (parameters, gradients, moments). A *worker* is a
 * thread with one device and one or more chunks. A *job* is one call that the owner's thread hands to
 * workers.
 */
#ifndef PENSTOCK_ENGINE_INTERNAL_H
#define PENSTOCK_ENGINE_INTERNAL_H

#include "core/base/event.h"
#include "core/engine/pipeline.h"
#include "core/schedule/lower.h"

#include <pthread.h>

enum { PST__MAX_PORTS = 16 }; /* tensors of one boundary */
enum { PST__JOB_BYTES = 256 };

/* One stage of one pass: its programs, and its copies of the segments that belong to a microbatch. */
typedef struct pst__stage {
  pst_stage_code *code;
  pst_stage_buffers buffers;                             /* copies */
  pst_segment *stash, *defer, *out, *grad_in, *grad_out; /* [buffers.x]; a slot is microbatch mod count */
  pst_segment *input, *loss;                             /* [microbatches] */
  pst_request *received_forward, *sent_forward, *received_backward,
      *sent_backward; /* [microbatches], of the step running */
} pst__stage;

typedef struct pst__pass {
  const pst_graph *graph;
  int64_t microbatches, batch, sequence;
  pst_schedule *compute;  /* normal form */
  pst_schedule *schedule; /* full form */
  pst__stage *stages;     /* [n_stages] */
  pst_channel **forward,
      **backward; /* [n_stages - 1]: boundary s lies between stages s and s + 1; NULL within one worker */
  float *results; /* [microbatches * elements of one result]: losses or logits on the host */
  int64_t result_elements; /* of one microbatch */
} pst__pass;

typedef struct pst__worker pst__worker;
typedef pst_status (*pst__job_function)(pst__worker *worker, void *arg);

typedef struct pst__chunk {
  pst__worker *worker;
  int stage;
  pst_device *device;
  pst_layout layout[PST_SEGMENT_COUNT]; /* PARAM GRAD OPTIM STATE */
  pst_segment segment[PST_SEGMENT_COUNT];
  pst_update_code *update;
  double *blocks;         /* host copy of one parameter's block sums */
  pst_worker_stats stats; /* its programs' times and its messages */
} pst__chunk;

struct pst__worker {
  pst_pipeline *p;
  int index;
  pst_device *device;
  pthread_t thread;
  bool started;
  pst_event wake;                 /* a job, or the end */
  _Atomic(pst__job_function) job; /* written last: what it needs is there by then */
  _Atomic bool ending;
  pst_layout layout[PST_SEGMENT_COUNT]; /* WORK CTRL: shared by its chunks */
  pst_segment segment[PST_SEGMENT_COUNT];
  double *sums; /* [parameters of the model] sums of squares of what this worker owns; worker 0: of the whole
                   model */
  double *sums_received; /* worker 0 */
  double verdict[3];     /* norm, clip factor, first parameter that is not finite or -1 */
  int64_t steps, total_ns, wait_ns;
  _Atomic uint64_t heartbeat;
  _Atomic uint64_t doing; /* action, for messages: kind << 48 | chunk << 32 | microbatch */
};

/* A tied parameter's way between its owner and another stage that uses it. */
typedef struct pst__tie {
  int32_t param, use;
  int owner, user;               /* stages */
  pst_channel *gradient, *value; /* NULL: both stages are of one worker, or the value goes with another use */
  bool local, carries_value;
} pst__tie;

struct pst_pipeline {
  pst_pipeline_options options;
  int32_t *cut;
  int n; /* stages */
  int n_workers;
  int *worker_of;                /* [n] */
  pst__chunk *chunks;            /* [n] */
  pst__worker *workers;          /* [n_workers] */
  pst__pass train, loss, logits; /* graph NULL: none */
  pst__tie *ties;
  int n_ties;
  pst_channel **sums, **verdicts; /* [n_workers]: worker w to 0 and back; [0] unused */
  pst_event done;
  _Atomic int n_busy;
  _Alignas(16) unsigned char job_arg[PST__JOB_BYTES]; /* here and not the caller's: a worker that hangs may
                                                         look at it long after the call has given up */
  bool started;
  bool gradients_left; /* by pst_pipeline_gradients() */
  pst_status dead;
  char dead_error[1024];
};

/* jobs.c */
void *pst__worker_main(void *worker);
/* Runs `function` on worker `only`, or on all when it is -1, with a copy of the `bytes` at `arg`; the first
 * failure of any kills the pipeline. */
pst_status pst__run_job(pst_pipeline *p, int only, pst__job_function function, const void *arg, size_t bytes);

/* The pass that says where parameters are: training, else another. */
const pst__pass *pst__main_pass(const pst_pipeline *p);

/* pass.c */
pst_status pst__pass_compute(const pst_pipeline *p, bool training, int64_t microbatches,
                             pst_schedule **out_compute);
pst_status pst__pass_create(pst_pipeline *p, const pst_graph *graph, int64_t microbatches,
                            pst__pass *out_pass);
pst_status pst__pass_allocate(pst_pipeline *p, pst__pass *pass);
void pst__pass_destroy(pst_pipeline *p, pst__pass *pass);

/* memory.c */
pst_status pst__segment_allocate(pst_device *device, const pst_layout *layout, pst_segment *out_segment);
void pst__segment_free(pst_device *device, pst_segment *segment);
pst_status pst__layout_cover(pst_layout *layout,
                             const pst_layout *other); /* at least as large, block by block */
void *pst__operand_host(pst_device *device, const pst_segment *segment, const pst_operand *operand);
static inline int64_t pst__operand_bytes(const pst_operand *o) {
  return pst_operand_elements(o) * (int64_t)pst_dtype_size((pst_dtype)o->dtype);
}

/* worker.c: one pass over its list */
typedef struct pst__step_job {
  pst__pass *pass;
  pst_batch batch;
  pst_ctrl ctrl; /* what all microbatches share */
  int64_t step;
  double lr;
  bool update; /* false: gradients are left as they are */
  bool clear;  /* gradients of an earlier call are there: not part of this step */
} pst__step_job;
pst_status pst__worker_step(pst__worker *w, void *step_job);
/* The end of a step whose gradients are there: norm and update. */
pst_status pst__worker_apply(pst__worker *w, void *step_job);

/* reduce.c */
pst_status pst__reduce(pst__worker *w, const pst__step_job *job);
pst_status pst__update(pst__worker *w, const pst__step_job *job);
/* Leaves each tied parameter's whole gradient with its owner and clears nothing. */
pst_status pst__tie_gradients(pst__worker *w);
pst_status pst__clear_gradients(pst__worker *w);

/* The chunks of a worker, in the order of their stages: for (c = pst__next_chunk(w, NULL); c; c =
 * pst__next_chunk(w, c)). */
pst__chunk *pst__next_chunk(const pst__worker *w, const pst__chunk *after);

/* Runs a program and counts its time into the chunk's busy_ns and *part. */
pst_status pst__run(pst__chunk *c, const pst_program *program, const pst_binding *bind, int64_t *part);
pst_status pst__wait_message(pst__worker *w, const pst_request *request);
void pst__bind_lasting(const pst__chunk *c, pst_binding *bind);
pst_status pst__set_ctrl(pst__worker *w, const pst_ctrl *ctrl);

#endif
