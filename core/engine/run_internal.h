/* The inside of a run, for core/engine/run*.c: what a run file became, and the pipeline that it drives.
 *
 * run.c opens and closes; run_model.c and run_data.c turn settings into a shape and token views; run_train.c
 * is the loop, with run_checkpoint.c and run_log.c beside it; run_generate.c, run_export.c and run_report.c
 * do what their names say.
 */
#ifndef PENSTOCK_ENGINE_RUN_INTERNAL_H
#define PENSTOCK_ENGINE_RUN_INTERNAL_H

#include "core/checkpoint/directory.h"
#include "core/data/loader.h"
#include "core/data/sampler.h"
#include "core/data/tokens.h"
#include "core/engine/assembly.h"
#include "core/graph/model.h"
#include "core/penstock.h"
#include "core/plan/runfile.h"

#include <stdatomic.h>

/* Where one stage's time went, summed over the training steps of this process. */
typedef struct pst__run_time {
  int64_t total_ns, busy_ns, wait_ns;
  int64_t forward_ns, backward_ns, input_ns, weight_ns, update_ns;
  int64_t message_bytes;
} pst__run_time;

/* log.jsonl and samples.txt, open for appending. */
typedef struct pst__run_log {
  int fd, samples_fd; /* -1: closed */
  char *line;         /* room for one line */
  size_t room;
} pst__run_log;

struct pst_run {
  pst_logger *logger;
  pst_settings *settings;
  pst_runfile file;

  /* model */
  const pst_model *model;
  pst_model_config config;
  bool bytes; /* tokens are bytes */

  /* data */
  bool has_data, has_valid;
  pst_tokens *train_tokens, *valid_tokens; /* valid_tokens NULL: held out of train_tokens */
  pst_tokens_view train, valid;
  uint64_t data_bytes, data_hash; /* of the training file */
  pst_sampler sampler;            /* training */

  /* pipeline */
  pst_assembly *assembly;
  bool started; /* allocated, workers up */
  bool trained; /* opened for what a training run left: no training */

  /* on disk */
  char *directory;   /* RUNS/NAME */
  char *checkpoints; /* its "checkpoints" holds them: the same, or checkpoint.directory */
  int locks[2];      /* of both, while training; -1: not held */

  /* training */
  int64_t step;    /* steps done */
  uint64_t tokens; /* valid ones seen in them */
  int64_t best_step;
  double best_loss; /* of validation; best_step -1: none yet */
  double last_loss; /* of validation at last_loss_step; -1: none */
  int64_t last_loss_step;
  int64_t saved_step;   /* of the newest checkpoint; -1: none */
  pst__run_time *times; /* [stages] */
  int64_t time_steps, data_wait_ns, time_ns;
  pst_worker_stats *before, *after;    /* [stages], of one step */
  int32_t *eval_tokens, *eval_targets; /* [global, T] */
  int64_t eval_room;                   /* sequences */
  int32_t *window;                     /* [T], generation */
  float *logits;                       /* [vocab] */
  pst__run_log log;
  atomic_int stop;
};

/* run_model.c: the shape, from the run file's keys, model.from, or config.json of `directory` (NULL: not
 * from there). Also holds the stages' layers against it. */
PST_CHECKED pst_status pst__run_model(pst_run *run, const char *directory);
/* Units of each stage, from its layers; all 0 where they are split by cost. */
void pst__run_units(const pst_run *run, pst_assembly_worker *workers, int n_workers);

/* run_data.c: opens and checks the token files and splits them. `training`: sets up the sampler too. */
PST_CHECKED pst_status pst__run_data(pst_run *run, bool training);
/* Whether the training file is text, before it is opened. */
bool pst__run_data_is_text(const pst_run *run);
/* Memory for one evaluation batch, taken once. */
PST_CHECKED pst_status pst__run_eval_room(pst_run *run);
/* Mean loss over `sequences` (0: all) of the validation data, dropout off. */
PST_CHECKED pst_status pst__run_validate(pst_run *run, int64_t sequences, double *out_loss,
                                         int64_t *out_tokens);

/* run.c: allocates and starts the workers; ready also loads the weights that training would go on from. Once.
 */
PST_CHECKED pst_status pst__run_start(pst_run *run);
PST_CHECKED pst_status pst__run_ready(pst_run *run);
PST_CHECKED pst_status pst__run_text(char **out, const char *format, ...) PST_PRINTF(2, 3);

/* run_checkpoint.c: claim makes the directories that training writes to and takes them for this run
 * alone, until unclaim. */
PST_CHECKED pst_status pst__run_claim(pst_run *run);
void pst__run_unclaim(pst_run *run);
PST_CHECKED pst_status pst__run_save(pst_run *run, const pst_run_events *events);
/* Loads the checkpoint that checkpoint.resume asks for; where there is none, gives the weights their first
 * values. Sets step, tokens and best. */
PST_CHECKED pst_status pst__run_resume(pst_run *run, const pst_run_events *events);
/* Logs the notes of pst_checkpoint_latest(), which it cuts into lines: that a checkpoint was passed over is a
 * warning. */
void pst__run_log_choice(const pst_run *run, char *notes);
/* The devices' numerics, each once, joined by "; ". */
void pst__run_numerics(const pst_run *run, char *text, size_t bytes);

/* run_log.c */
/* Makes the run directory with run.yaml and env.json, opens the logs and drops what they hold beyond `step`.
 */
PST_CHECKED pst_status pst__run_log_open(pst_run *run);
void pst__run_log_close(pst_run *run);
PST_CHECKED pst_status pst__run_log_step(pst_run *run, const pst_step_result *result, double lr,
                                         int64_t data_wait_ns);
/* `more`: further members of the line's object, ", \"loss\": 1.5"; "" for none. */
PST_CHECKED pst_status pst__run_log_event(pst_run *run, const char *event, const char *more);
PST_CHECKED pst_status pst__run_log_sample(pst_run *run, const char *text, size_t bytes);

/* run_generate.c */
PST_CHECKED pst_status pst__run_sample(pst_run *run, const pst_run_events *events);
/* Refuses a sample.prompt that is no prompt for this model. */
PST_CHECKED pst_status pst__run_prompt_check(pst_run *run);

/* run_report.c: share of a step in which a stage idles, (K-1) / (M+K-1); and the advice on M, "" when M is
 * large enough for K. */
double pst__run_bubble(int64_t stages, int64_t microbatches);
void pst__run_advise_microbatches(int64_t stages, int64_t microbatches, char *text, size_t bytes);

#endif
