#include "core/engine/run_internal.h"

#include "core/schedule/families.h"

#include "core/base/file.h"
#include "core/checkpoint/config.h"
#include "core/engine/weights.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Variables of the tests and tools, which are no settings. */
static const char *const reserved[] = {"PENSTOCK_TEST_DATA", NULL};

pst_status pst__run_text(char **out, const char *format, ...) {
  va_list args;
  va_start(args, format);
  int n = vasprintf(out, format, args);
  va_end(args);
  if (n >= 0) return PST_OK;
  *out = NULL;
  return pst_fail(PST_NO_MEMORY, "no memory for a line of text");
}

/* ---- settings ---- */

static pst_status load_settings(const pst_run_options *o, const char *file, pst_logger *logger,
                                pst_settings **out) {
  size_t n_rows;
  const pst_setting *table = pst_runfile_table(&n_rows);
  pst_settings *s = NULL;
  pst_status st = PST_OK;
  PST_GOTO(st, pst_settings_create(table, n_rows, &s), done);
  if (file) PST_GOTO(st, pst_settings_load_file(s, file), done);
  if (o->environment) PST_GOTO(st, pst_settings_load_environment(s, o->environment, reserved, logger), done);
  for (int i = 0; i < o->n_sets; i++) PST_GOTO(st, pst_settings_set(s, o->sets[i]), done);
  *out = s;
  s = NULL;
done:
  pst_settings_destroy(s);
  return st;
}

pst_status pst_settings_describe(const pst_run_options *options, FILE *out) {
  pst_settings *s = NULL;
  PST_TRY(load_settings(options, options->file, NULL, &s));
  pst_status st = pst_settings_print(s, out);
  pst_settings_destroy(s);
  return st;
}

/* ---- the pipeline ---- */

static void build_model(pst_graph *graph, void *user) {
  const pst_run *run = user;
  run->model->build(graph, &run->config);
}

static pst_optimizer_options optimizer_of(const pst_runfile *f) {
  return (pst_optimizer_options){.kind = f->optimizer.name == PST_RUN_SGD ? PST_SGD : PST_ADAMW,
                                 .beta1 = (float)f->optimizer.betas[0],
                                 .beta2 = (float)f->optimizer.betas[1],
                                 .eps = (float)f->optimizer.eps,
                                 .momentum = (float)f->optimizer.momentum,
                                 .weight_decay = (float)f->optimizer.weight_decay,
                                 .clip = (float)f->optimizer.clip};
}

/* Stages on each worker: as set, else what the schedule's family is made for. */
static int chunks_of(const pst_run *run) {
  enum { DEFAULT_CHUNKS = 2 }; /* of a family that takes any number of them */
  if (pst_settings_is_set(run->settings, "schedule.chunks")) return run->file.schedule.chunks;
  size_t n;
  const pst_schedule_family *families = pst_schedule_families(&n);
  for (size_t i = 0; i < n; i++)
    if (strcmp(families[i].name, run->file.schedule.name) == 0)
      return families[i].chunks > 0 ? families[i].chunks : DEFAULT_CHUNKS;
  return 1;
}

static pst_status assemble(pst_run *run) {
  static const pst_backward backward[] = {[PST_RUN_BACKWARD_AUTO] = PST_BACKWARD_AUTO,
                                          [PST_RUN_BACKWARD_FUSED] = PST_BACKWARD_EACH_FUSED,
                                          [PST_RUN_BACKWARD_EARLY] = PST_BACKWARD_EACH_EARLY,
                                          [PST_RUN_BACKWARD_SPLIT] = PST_BACKWARD_EACH_SPLIT};
  static const char *const isa[] = {"auto", "baseline", "v3", "v4"};
  static const char *const gemm[] = {"auto", "own", "openblas"};
  const pst_runfile *f = &run->file;
  int n = f->n_stages ? (int)f->n_stages : 1;
  if (f->schedule.extra_forwards < 0)
    return pst_settings_fail(run->settings, "schedule.extra_forwards", PST_UNSUPPORTED,
                             "this version takes a number here");
  pst_assembly_worker *workers = calloc((size_t)n, sizeof *workers);
  if (!workers) return pst_fail(PST_NO_MEMORY, "no memory for %d stages", n);
  for (int s = 0; s < n; s++) {
    bool given = f->n_stages > 0;
    workers[s].device = given ? pst_settings_string(run->settings, "stages.%d.device", s) : NULL;
    workers[s].threads = given ? f->stages[s].threads : f->threads;
  }
  pst__run_units(run, workers, n);
  pst_assembly_options o = {.build = build_model,
                            .build_user = run,
                            .trains = !run->trained,
                            .evaluates = true,
                            .generates = true,
                            .sequence = f->data.sequence,
                            .micro = f->batch.micro,
                            .microbatches = f->batch.microbatches,
                            .dtype = PST_F32,
                            .n_workers = n,
                            .chunks = chunks_of(run),
                            .workers = workers,
                            .schedule = f->schedule.name,
                            .extra_forwards = f->schedule.extra_forwards,
                            .backward = backward[f->backward],
                            .optimizer = optimizer_of(f),
                            .op_limit_ns = f->limits.op_ns,
                            .memory_limit_bytes = f->limits.memory_bytes,
                            .isa = isa[f->cpu.isa],
                            .gemm = gemm[f->cpu.gemm],
                            .logger = run->logger};
  pst_status st = pst_assembly_create(&o, &run->assembly);
  free(workers);
  return st;
}

pst_status pst__run_start(pst_run *run) {
  if (run->started) return PST_OK;
  PST_TRY(pst_assembly_start(run->assembly));
  run->started = true;
  return PST_OK;
}

pst_status pst__run_ready(pst_run *run) {
  return run->started ? PST_OK : pst__run_resume(run, NULL);
}

/* ---- open and close ---- */

static pst_status create(const pst_run_options *o, pst_run **out) {
  pst_run *run = calloc(1, sizeof *run);
  if (!run) return pst_fail(PST_NO_MEMORY, "no memory for a run");
  run->log = (pst__run_log){.fd = -1, .samples_fd = -1};
  run->locks[0] = run->locks[1] = -1;
  run->best_step = run->last_loss_step = run->saved_step = -1;
  atomic_init(&run->stop, 0);
  pst_status st = o->log ? pst_logger_create(PST_LOG_INFO, o->log, o->log_user, &run->logger) : PST_OK;
  if (st != PST_OK) {
    pst_run_close(run);
    return st;
  }
  *out = run;
  return PST_OK;
}

static pst_status make_times(pst_run *run) {
  size_t n = (size_t)run->assembly->n_stages;
  run->times = calloc(n, sizeof *run->times);
  run->before = calloc(n, sizeof *run->before);
  run->after = calloc(n, sizeof *run->after);
  return run->times && run->before && run->after
             ? PST_OK
             : pst_fail(PST_NO_MEMORY, "no memory for the times of %zu stages", n);
}

pst_status pst_run_open(const pst_run_options *options, pst_run **out_run) {
  pst_run *run = NULL;
  pst_status st = PST_OK;
  PST_GOTO(st, create(options, &run), done);
  PST_GOTO(st, load_settings(options, options->file, run->logger, &run->settings), done);
  PST_GOTO(st, pst_runfile_load(run->settings, &run->file), done);
  PST_GOTO(st, pst__run_model(run, NULL), done);
  PST_GOTO(st, pst__run_data(run, true), done);
  PST_GOTO(st, pst__run_prompt_check(run), done);
  PST_GOTO(st, pst_path_join(run->file.runs, run->file.name, &run->directory), done);
  PST_GOTO(st,
           pst__run_text(&run->checkpoints, "%s",
                         run->file.checkpoint.directory ? run->file.checkpoint.directory : run->directory),
           done);
  PST_GOTO(st, assemble(run), done);
  PST_GOTO(st, make_times(run), done);
  *out_run = run;
  run = NULL;
done:
  pst_run_close(run);
  return st;
}

void pst_run_close(pst_run *run) {
  if (!run) return;
  pst__run_log_close(run);
  pst_assembly_destroy(run->assembly);
  pst_tokens_close(run->train_tokens);
  pst_tokens_close(run->valid_tokens);
  pst_runfile_free(&run->file);
  pst_settings_destroy(run->settings);
  pst_logger_destroy(run->logger);
  free(run->directory);
  free(run->checkpoints);
  free(run->times);
  free(run->before);
  free(run->after);
  free(run->eval_tokens);
  free(run->eval_targets);
  free(run->window);
  free(run->logits);
  free(run);
}

void pst_run_stop(pst_run *run) {
  atomic_store(&run->stop, 1);
}

bool pst_run_bytes(const pst_run *run) {
  return run->bytes;
}

/* ---- what a training run left ---- */

static pst_status find_checkpoint(pst_run *run, const char *directory, int64_t step, char **out_dir,
                                  pst_manifest **out_manifest) {
  const char *root = run->file.checkpoint.directory ? run->file.checkpoint.directory : directory;
  if (step >= 0) {
    PST_TRY(pst_checkpoint_dir(root, step, out_dir));
    return pst_checkpoint_read(*out_dir, 1, out_manifest);
  }
  char *notes = NULL;
  PST_TRY(pst_checkpoint_latest(root, 1, out_dir, out_manifest, &notes));
  pst_status st = *out_dir ? PST_OK : pst_fail(PST_INVALID, "%s: %s", directory, notes);
  if (st == PST_OK) pst__run_log_choice(run, notes);
  free(notes);
  return st;
}

/* A Hugging Face directory lacks what a run file requires; none of it matters to evaluation. */
static pst_status default_hf_settings(pst_run *run, const char *directory) {
  pst_settings *s = run->settings;
  char text[32];
  PST_TRY(pst_settings_default(s, "steps", "1"));
  PST_TRY(pst_settings_default(s, "model.from", directory));
  if (!pst_settings_is_set(s, "data.train"))
    PST_TRY(pst_settings_default(
        s, "data.train", pst_settings_text(s, "data.valid") ? pst_settings_text(s, "data.valid") : "unset"));
  pst_model_config c;
  char *path = NULL;
  PST_TRY(pst_path_join(directory, "config.json", &path));
  pst_status st = pst_model_config_load(path, &c, NULL);
  free(path);
  if (st != PST_OK) return st;
  /* programs have one shape, so a long context would be paid for by every token of a short text */
  snprintf(text, sizeof text, "%lld", (long long)(c.context < 1024 ? c.context : 1024));
  return pst_settings_default(s, "data.sequence", text);
}

static pst_status load_weights(pst_run *run, const char *path) {
  char notes[2048];
  PST_TRY(pst__run_start(run));
  PST_TRY(pst_weights_load(run->assembly, path, notes, sizeof notes));
  if (notes[0]) pst_log(run->logger, PST_LOG_WARN, "%s", notes);
  return PST_OK;
}

static pst_status open_directory(pst_run *run, const char *directory, const char *runfile, int64_t step,
                                 const pst_run_options *options) {
  bool is_run = access(runfile, F_OK) == 0;
  char *dir = NULL;
  pst_manifest *manifest = NULL;
  pst_status st = PST_OK;
  PST_GOTO(st, load_settings(options, is_run ? runfile : NULL, run->logger, &run->settings), done);
  if (!is_run) PST_GOTO(st, default_hf_settings(run, directory), done);
  PST_GOTO(st, pst_runfile_load(run->settings, &run->file), done);
  if (is_run) PST_GOTO(st, find_checkpoint(run, directory, step, &dir, &manifest), done);
  PST_GOTO(st, pst__run_model(run, dir ? dir : directory), done);
  const char *tokens = manifest ? pst_manifest_note_get(manifest, "tokens_are") : NULL;
  run->bytes = tokens ? strcmp(tokens, "bytes") == 0 : run->config.vocab == 256;
  if (manifest) run->step = manifest->step;
  PST_GOTO(st, pst__run_text(&run->directory, "%s", directory), done);
  PST_GOTO(st, assemble(run), done);
  PST_GOTO(st, make_times(run), done);
  PST_GOTO(st, load_weights(run, dir ? dir : directory), done);
done:
  pst_manifest_destroy(manifest);
  free(dir);
  return st;
}

pst_status pst_run_open_trained(const char *directory, int64_t step, const pst_run_options *options,
                                pst_run **out_run) {
  static const pst_run_options none = {.file = NULL};
  if (!options) options = &none;
  pst_run *run = NULL;
  char *runfile = NULL;
  pst_status st = PST_OK;
  PST_GOTO(st, create(options, &run), done);
  run->trained = true;
  PST_GOTO(st, pst_path_join(directory, "run.yaml", &runfile), done);
  PST_GOTO(st, open_directory(run, directory, runfile, step, options), done);
  *out_run = run;
  run = NULL;
done:
  free(runfile);
  pst_run_close(run);
  return st;
}

const char *pst_run_directory(const pst_run *run) {
  return run->directory;
}
