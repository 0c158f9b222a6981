/* Penstock's public interface: train a model through a pipeline of stages, from C.
 *
 * Two levels. A *trainer* drives a model of your own, recorded through the builder (core/graph/graph.h), with
 * data from your own callback:
 *
 *   pst_trainer_options o;
 *   pst_trainer_options_init(&o);                       // one CPU stage, 1f1b, AdamW
 *   o.build = my_model;  o.fill = my_data;  o.sequence = 32;  o.n_stages = 2;
 *   pst_trainer *t;
 *   if (pst_trainer_create(&o, &t) != PST_OK) fprintf(stderr, "%s\n", pst_error());
 *   for (int i = 0; i < 100; i++) pst_trainer_step(t, &result);
 *   pst_trainer_save(t, "model.safetensors");
 *   pst_trainer_destroy(t);
 *
 * A *run* is a run file: model family, data, stages, checkpoints, logs. The `penstock` command is written
 * with nothing but this header.
 *
 *   pst_run_options o = {.file = "run.yaml"};
 *   pst_run *run;
 *   if (pst_run_open(&o, &run) == PST_OK) pst_run_train(run, &events);
 *   pst_run_close(run);
 *
 * Every fallible function returns a pst_status; the message is in pst_error(), for the calling thread.
 * Nothing here exits, prints or installs signal handlers. An object is used by one thread at a time, but
 * pst_run_stop(), which may be called from a signal handler.
 */
#ifndef PENSTOCK_PENSTOCK_H
#define PENSTOCK_PENSTOCK_H

#include "core/base/log.h"
#include "core/base/status.h"
#include "core/device/info.h"
#include "core/graph/graph.h"

#include <stdio.h>

/* "0.1.0" */
const char *pst_version(void);

/* ---- devices ---- */

/* Calls `visit` for every device, and for every driver that has none with the reason. */
void pst_devices(void (*visit)(void *user, const pst_device_info *info), void *user);

/* ---- trainer ---- */

typedef struct pst_trainer pst_trainer;

/* Records the model: units, parameters, and the result that the graph's purpose asks for. Called once per
 * purpose. */
typedef void (*pst_build_function)(pst_graph *graph, void *user);

/* Writes T tokens and targets (-1: ignored) of sequence `sequence` (0 .. micro * microbatches - 1) of step
 * `step`. Called from a thread of the trainer's, ahead of the step; must return. A status other than OK ends
 * the step that needs it. */
typedef pst_status (*pst_fill_function)(void *user, int64_t step, int64_t sequence, int64_t length,
                                        int32_t *tokens, int32_t *targets);

typedef struct pst_trainer_stage {
  const char *device; /* "cpu", "cpu:cores=0-1"; NULL: cpu */
  int threads;        /* of a CPU stage; 0: its share of the cores this process may use */
  int units;          /* how many units; 0 in all stages: split by cost */
} pst_trainer_stage;

typedef struct pst_trainer_options {
  pst_build_function build; /* required */
  void *build_user;
  pst_fill_function fill; /* required */
  void *fill_user;
  int64_t sequence;                /* 64: T, tokens of a sequence */
  int64_t micro;                   /* 4: b, sequences of a microbatch */
  int64_t microbatches;            /* 8: M; the global batch is b * M */
  int n_stages;                    /* 1: K */
  const pst_trainer_stage *stages; /* K of them; NULL: CPU stages that share the cores */
  const char *schedule;            /* "1f1b"; also "gpipe" */
  const char *backward;            /* "auto"; also "fused", "early", "split": the same bits */
  const char *optimizer;           /* "adamw"; also "sgd" */
  double lr;                       /* 3e-4: constant */
  double beta1, beta2, eps;        /* 0.9, 0.95, 1e-8 */
  double momentum;                 /* 0: sgd's */
  double weight_decay;             /* 0.1: of matrices alone */
  double clip;                     /* 1: largest gradient norm; 0: never */
  uint64_t seed;                   /* 1 */
  bool evaluates;                  /* false: build for PST_PURPOSE_LOSS too, see pst_trainer_loss() */
  const char *isa, *gemm;          /* "auto": see `penstock settings`, cpu.* */
  pst_log_sink log;                /* NULL: silent */
  void *log_user;
} pst_trainer_options;

void pst_trainer_options_init(pst_trainer_options *options);

/* Builds, plans, allocates, and gives the parameters their first values. */
PST_CHECKED pst_status pst_trainer_create(const pst_trainer_options *options, pst_trainer **out_trainer);
void pst_trainer_destroy(pst_trainer *trainer);

typedef struct pst_trainer_result {
  int64_t step;         /* 0 for the first */
  double loss;          /* mean over the step's valid tokens */
  double gradient_norm; /* of the whole model, before clipping */
  int64_t tokens;
  int64_t step_ns;
  int64_t data_wait_ns; /* of it, waiting for the callback's data */
} pst_trainer_result;

/* One step. */
PST_CHECKED pst_status pst_trainer_step(pst_trainer *trainer, pst_trainer_result *out_result);

/* The same in two halves, so that gradients can be looked at in between: the bits are those of
 * pst_trainer_step(). */
PST_CHECKED pst_status pst_trainer_gradients(pst_trainer *trainer, pst_trainer_result *out_result);
PST_CHECKED pst_status pst_trainer_apply(pst_trainer *trainer, pst_trainer_result *out_result);

/* Parameters by position (the model's order) or name. */
typedef struct pst_trainer_param {
  const char *name; /* the trainer's */
  int rank;
  int64_t dim[4];
  int64_t elements;
  int stage; /* the one that owns it */
} pst_trainer_param;
int pst_trainer_params(const pst_trainer *trainer);
void pst_trainer_param_at(const pst_trainer *trainer, int index, pst_trainer_param *out_param);
PST_CHECKED pst_status pst_trainer_find(const pst_trainer *trainer, const char *name, int *out_index);

/* All elements as fp32, row-major, into caller memory of `elements` floats. The gradient is there between the
 * two halves of a step. */
PST_CHECKED pst_status pst_trainer_read(pst_trainer *trainer, int index, float *out_values);
PST_CHECKED pst_status pst_trainer_write(pst_trainer *trainer, int index, const float *values);
PST_CHECKED pst_status pst_trainer_gradient(pst_trainer *trainer, int index, float *out_values);

/* Mean loss over `n` sequences of tokens[n, T] and targets[n, T], dropout off; `evaluates` was set. */
PST_CHECKED pst_status pst_trainer_loss(pst_trainer *trainer, const int32_t *tokens, const int32_t *targets,
                                        int64_t n, double *out_loss);

/* Writes all parameters as one safetensors file; reads them back: every name must be there with its shape. */
PST_CHECKED pst_status pst_trainer_save(pst_trainer *trainer, const char *path);
PST_CHECKED pst_status pst_trainer_load(pst_trainer *trainer, const char *path);

/* ---- runs ---- */

typedef struct pst_run pst_run;

typedef struct pst_run_options {
  const char *file;        /* run file; NULL: only sets and environment */
  const char *const *sets; /* "a.b=c", n_sets of them */
  int n_sets;
  char *const *environment; /* NULL: none; PENSTOCK_* is taken from it */
  pst_log_sink log;         /* NULL: silent */
  void *log_user;
} pst_run_options;

/* Reads and checks everything: settings, model, data (every token id), split, schedule, memory. Nothing is
 * written and nothing is trained. */
PST_CHECKED pst_status pst_run_open(const pst_run_options *options, pst_run **out_run);

/* Opens what a training run left: its directory (runs/NAME) with its best or latest checkpoint, or the one of
 * `step` (-1: latest), or a Hugging Face directory. For evaluation, generation and export. `options` may
 * change settings; its file is not looked at. */
PST_CHECKED pst_status pst_run_open_trained(const char *directory, int64_t step,
                                            const pst_run_options *options, pst_run **out_run);
void pst_run_close(pst_run *run);

/* Where the run keeps itself (runs/NAME), or the directory it was opened from; the run's. */
const char *pst_run_directory(const pst_run *run);

/* Prints what a run will do: stage map with units, parameters, bytes per device and segment, batch
 * arithmetic, schedule, data. */
PST_CHECKED pst_status pst_run_describe(pst_run *run, FILE *out);

typedef struct pst_run_progress {
  int64_t step, steps; /* steps done, of how many */
  double loss;         /* mean over the steps since the last line */
  double gradient_norm, lr;
  double tokens_per_s;
  double eta_s;
} pst_run_progress;

/* What training tells its caller; any may be NULL. Called from the thread in pst_run_train(). */
typedef struct pst_run_events {
  void (*progress)(void *user, const pst_run_progress *progress); /* every log.every steps */
  void (*evaluated)(void *user, int64_t step, double loss);       /* every eval.every steps, and at the end */
  void (*sampled)(void *user, int64_t step, const char *text, size_t bytes); /* every sample.every steps */
  void (*saved)(void *user, int64_t step, const char *directory);
  void (*resumed)(void *user, int64_t step, const char *directory);
  void *user;
} pst_run_events;

/* Trains to the end, resuming from the run directory's last complete checkpoint when there is one.
 * PST_STOPPED after pst_run_stop(): the step was finished and a checkpoint written; the same run continues.
 */
PST_CHECKED pst_status pst_run_train(pst_run *run, const pst_run_events *events);

/* Asks training to finish its step, write a checkpoint and return PST_STOPPED. Async-signal-safe, any thread.
 */
void pst_run_stop(pst_run *run);

/* Where the time went, by stage: busy, waiting, runtime; bubble predicted and measured; and in words what
 * would help. After training. */
PST_CHECKED pst_status pst_run_report(pst_run *run, FILE *out);

/* Mean loss over the whole validation data (or `sequences` > 0 of it). */
PST_CHECKED pst_status pst_run_evaluate(pst_run *run, int64_t sequences, double *out_loss,
                                        int64_t *out_tokens);

typedef struct pst_generate_options {
  const int32_t *prompt; /* token ids; NULL: prompt_text */
  int64_t n_prompt;
  const char *prompt_text; /* for models whose tokens are bytes */
  int64_t tokens;          /* how many to write */
  double temperature;      /* 0: the likeliest token */
  uint64_t seed;
  void (*token)(void *user, int32_t id); /* called for each new token */
  void *user;
} pst_generate_options;
PST_CHECKED pst_status pst_run_generate(pst_run *run, const pst_generate_options *options);

/* True when the model's tokens are bytes, so that ids can be printed. */
bool pst_run_bytes(const pst_run *run);

/* Writes a Hugging Face directory: config.json and model.safetensors. */
PST_CHECKED pst_status pst_run_export(pst_run *run, const char *directory);

/* The table of everything that can be set, with values and where each came from, as `penstock settings`
 * prints it. */
PST_CHECKED pst_status pst_settings_describe(const pst_run_options *options, FILE *out);

/* ---- schedules ---- */

/* A schedule to prove, predict, compare or draw; no model and no device. Files are those of
 * torch.distributed.pipelining (core/schedule/csv.h). Times are in any one unit and those
 * of a worker's whole share of one microbatch: a chunk takes 1/V of them. */
typedef struct pst_prediction_options {
  const char *schedule;          /* "1f1b"; a family's name or a .csv file */
  const char *file;              /* NULL; a schedule's file of any name, in place of `schedule` */
  int workers;                   /* 4: K; a file has its own */
  int chunks;                    /* 0: V; the family's own number, 2 where it takes any */
  int64_t microbatches;          /* 8: M; a file has its own */
  int extra_forwards;            /* 0: of 1f1b */
  double forward, input, weight; /* 1, 1, 1: F, I, W */
  double latency;                /* 0: of each message, one way */
  bool no_early_send; /* false: a full backward sends its input gradient before its weight gradients */
  double memory;      /* 0, none: most microbatches in flight on a worker that `auto` may use */
} pst_prediction_options;

void pst_prediction_options_init(pst_prediction_options *options);

/* Prints makespan, bubble by each definition in use, and for each worker busy and idle time, microbatches in
 * flight and messages. */
PST_CHECKED pst_status pst_schedule_predict(const pst_prediction_options *options, FILE *out);

/* Proves the schedule (core/schedule/check.h), as written and with its messages, and prints one line. */
PST_CHECKED pst_status pst_schedule_prove(const pst_prediction_options *options, FILE *out);

/* Prints a table of all families at these sizes; one that cannot do them is listed with the reason. */
PST_CHECKED pst_status pst_schedule_compare(const pst_prediction_options *options, FILE *out);

/* Writes the schedule as .csv for torch.distributed.pipelining: compute actions, or with `messages` its
 * compute_comms form. */
PST_CHECKED pst_status pst_schedule_export(const pst_prediction_options *options, bool messages,
                                           const char *path);

/* Writes the predicted step as an .svg: a row for each worker, time to the right. */
PST_CHECKED pst_status pst_schedule_draw(const pst_prediction_options *options, const char *path);

#endif
