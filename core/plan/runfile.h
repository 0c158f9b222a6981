/* The run file: everything a run is, as one plain structure.
 *
 *   size_t n_rows;
 *   const pst_setting *table = pst_runfile_table(&n_rows);
 *   PST_GOTO(st, pst_settings_create(table, n_rows, &settings), done);
 *   PST_GOTO(st, pst_settings_load_file(settings, "run.yaml"), done);
 *   PST_GOTO(st, pst_settings_set(settings, "steps=100"), done);
 *   pst_runfile run;
 *   PST_GOTO(st, pst_runfile_load(settings, &run), done);
 *   printf("%d microbatches of %d sequences\n", run.batch.microbatches, run.batch.micro);
 *   pst_runfile_free(&run);
 *
 * The smallest file that loads:
 *
 *   model: {family: gpt2, layers: 4, heads: 4, width: 128}
 *   data:  {train: notes.txt}
 *   steps: 200
 *
 * Text in the structure is its own copy; a text nobody gave is NULL. The members follow the file's keys, so
 * `penstock settings` describes them too.
 */
#ifndef PENSTOCK_PLAN_RUNFILE_H
#define PENSTOCK_PLAN_RUNFILE_H

#include "core/base/settings.h"
#include "core/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The orders below are those of the words in the table. */
typedef enum pst_run_init { PST_RUN_INIT_RANDOM, PST_RUN_INIT_PRETRAINED } pst_run_init;
typedef enum pst_run_format {
  PST_RUN_FORMAT_AUTO,
  PST_RUN_FORMAT_TEXT,
  PST_RUN_FORMAT_U16,
  PST_RUN_FORMAT_U32,
  PST_RUN_FORMAT_LLMC,
  PST_RUN_FORMAT_NANOGPT
} pst_run_format;
typedef enum pst_run_precision { PST_RUN_FP32, PST_RUN_BF16, PST_RUN_FP16 } pst_run_precision;
typedef enum pst_run_optimizer { PST_RUN_ADAMW, PST_RUN_SGD } pst_run_optimizer;
typedef enum pst_run_decay {
  PST_RUN_DECAY_COSINE,
  PST_RUN_DECAY_LINEAR,
  PST_RUN_DECAY_CONSTANT
} pst_run_decay;
typedef enum pst_run_recompute {
  PST_RUN_RECOMPUTE_NONE,
  PST_RUN_RECOMPUTE_SELECTIVE,
  PST_RUN_RECOMPUTE_FULL
} pst_run_recompute;
typedef enum pst_run_offload { PST_RUN_OFFLOAD_NONE, PST_RUN_OFFLOAD_OPTIMIZER } pst_run_offload;
typedef enum pst_run_backward {
  PST_RUN_BACKWARD_AUTO,
  PST_RUN_BACKWARD_FUSED,
  PST_RUN_BACKWARD_EARLY,
  PST_RUN_BACKWARD_SPLIT
} pst_run_backward;
typedef enum pst_run_bitwise { PST_RUN_BITWISE_WARN, PST_RUN_BITWISE_REQUIRE } pst_run_bitwise;
typedef enum pst_run_isa {
  PST_RUN_ISA_AUTO,
  PST_RUN_ISA_BASELINE,
  PST_RUN_ISA_V3,
  PST_RUN_ISA_V4
} pst_run_isa;
typedef enum pst_run_gemm { PST_RUN_GEMM_AUTO, PST_RUN_GEMM_OWN, PST_RUN_GEMM_OPENBLAS } pst_run_gemm;

typedef enum pst_run_device_kind {
  PST_RUN_DEVICE_ANY, /* none named */
  PST_RUN_DEVICE_CPU,
  PST_RUN_DEVICE_OPENCL,
  PST_RUN_DEVICE_CUDA,
  PST_RUN_DEVICE_HIP
} pst_run_device_kind;

enum { PST_RUN_MAX_CORES = 1024 };

/* A device as it is written: cpu, cpu:numa1, cpu:cores=0-3,8, opencl:N, cuda:N, hip:N. */
typedef struct pst_run_device {
  pst_run_device_kind kind;
  int index;                              /* of an opencl, cuda or hip device; else 0 */
  int numa;                               /* of cpu:numaN; -1: none named */
  int n_cores;                            /* of cpu:cores=...; 0: every core there is */
  uint64_t cores[PST_RUN_MAX_CORES / 64]; /* bit c % 64 of word c / 64: core c is named */
} pst_run_device;

typedef struct pst_run_stage {
  const char *host;
  pst_run_device device;
  int layers; /* -1: split by cost, then so for every stage */
  pst_run_recompute recompute;
  pst_run_offload offload;
  int threads; /* of a CPU stage; 0: its share of the cores */
} pst_run_stage;

typedef struct pst_runfile {
  const char *name;
  int64_t seed;
  int64_t steps;
  struct {
    const char *family; /* NULL only with `from` */
    int layers, width;  /* 0 only with `from` */
    int heads;          /* 0: not given */
    int kv_heads;       /* as many as heads when not given */
    int hidden;         /* width of the feed-forward; 0: the family's own */
    int vocab;          /* 0: the data's */
    int context;        /* longest sequence the model takes, in tokens */
    double dropout;
    int tied; /* embedding and head share their weights: 0, 1; -1: the family's own */
    const char *from;
    pst_run_init init;
  } model;
  double init_std;
  struct {
    const char *train, *valid;
    double split; /* share of train held out when there is no valid */
    int sequence; /* tokens */
    pst_run_format format;
    int64_t eot; /* token between documents; -1: none */
  } data;
  struct {
    int64_t global; /* sequences of a step: micro x microbatches x replicas */
    int micro, microbatches, replicas;
  } batch;
  pst_run_stage *stages; /* n_stages of them; 0: one for each device found */
  size_t n_stages;
  struct {
    const char *name;
    int chunks;
    int extra_forwards; /* -1: auto */
  } schedule;
  pst_run_precision precision;
  pst_run_backward backward;
  pst_run_recompute recompute; /* where no stage says otherwise, as the next two */
  pst_run_offload offload;
  int threads;
  struct {
    pst_run_optimizer name;
    double peak, final; /* final: a tenth of peak when not given */
    pst_run_decay decay;
    int64_t warmup, decay_steps; /* steps; the decay ends at decay_steps: all of them when not given */
    double betas[2], eps, momentum, weight_decay;
    double clip; /* norm; 0: none */
  } optimizer;
  struct {
    int64_t every; /* steps, as below; 0: only at the end */
    int64_t sequences;
  } eval;
  struct {
    int64_t every; /* 0: never */
    const char *prompt;
    int tokens;
    double temperature; /* 0: the likeliest token */
  } sample;
  struct {
    int64_t every; /* 0: only at the end */
    int keep;
    const char *resume;    /* "auto", "never" or a path */
    const char *directory; /* NULL: in the run's own */
    bool shared;
  } checkpoint;
  int64_t log_every;
  const char *runs; /* directory in which the run's own is made */
  struct {
    int64_t peer_ns, op_ns;
    int64_t memory_bytes; /* of a device; 0: what it has */
  } limits;
  pst_run_bitwise bitwise;
  struct {
    pst_run_isa isa;
    pst_run_gemm gemm;
  } cpu;
  char **texts; /* every text above, owned */
  size_t n_texts;
} pst_runfile;

/* The run file's keys, for pst_settings_create(). */
const pst_setting *pst_runfile_table(size_t *out_n_rows);

/* Checks the settings, works out what is left open, and fills `out_run`, which the caller frees. What is
 * worked out of the batch goes back into the settings, so that the written file holds it. PST_INVALID with
 * path, origin, the value seen and wanted; PST_UNSUPPORTED for a key that has no effect in this version. */
pst_status pst_runfile_load(pst_settings *settings, pst_runfile *out_run) PST_CHECKED;

/* Frees what `run` owns and zeroes it; NULL and a zeroed structure are legal. */
void pst_runfile_free(pst_runfile *run);

/* Holds the stages' layers against a total that only became known with the model (model.from). Every stage
 * gives its layers or none does; they add up to n_layers; 0 only on the first and the last stage. */
pst_status pst_runfile_check_split(pst_settings *settings, const pst_runfile *run, int n_layers) PST_CHECKED;

/* Reads a device as it is written in a run file. */
pst_status pst_run_device_parse(const char *text, pst_run_device *out_device) PST_CHECKED;

#endif
