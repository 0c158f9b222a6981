#include "core/engine/run_internal.h"

#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/checkpoint/config.h"
#include "core/engine/weights.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char weights_file[] = "model.safetensors", moments_file[] = "optimizer.safetensors",
                  config_file[] = "config.json";

void pst__run_numerics(const pst_run *run, char *text, size_t bytes) {
  size_t n = 0;
  text[0] = 0;
  for (int s = 0; s < run->assembly->n_stages; s++) {
    pst_device_info info;
    pst_device *d = run->assembly->devices[run->assembly->worker_of[s]];
    d->table->query(d, &info);
    if (strstr(text, info.numerics) || n >= bytes) continue;
    n += (size_t)snprintf(text + n, bytes - n, "%s%s", n ? "; " : "", info.numerics);
  }
}

/* ---- one run at a time ---- */

pst_status pst__run_claim(pst_run *run) {
  PST_TRY(pst_dir_create(run->directory));
  PST_TRY(pst_dir_lock(run->directory, &run->locks[0]));
  return pst_checkpoint_lock(run->checkpoints, &run->locks[1]);
}

void pst__run_unclaim(pst_run *run) {
  for (int i = 0; i < 2; i++) {
    if (run->locks[i] >= 0) close(run->locks[i]);
    run->locks[i] = -1;
  }
}

/* ---- saving ---- */

typedef pst_status (*save_function)(pst_assembly *assembly, const char *path, uint64_t *out_checksum);

static pst_status save_tensors(pst_run *run, pst_checkpoint_save *save, const char *name,
                               save_function function) {
  char *path = NULL;
  uint64_t checksum;
  PST_TRY(pst_checkpoint_save_path(save, name, &path));
  pst_status st = function(run->assembly, path, &checksum);
  free(path);
  return st == PST_OK ? pst_checkpoint_save_add(save, name, checksum) : st;
}

/* With it a checkpoint is a Hugging Face directory too. */
static pst_status save_config(const pst_run *run, pst_checkpoint_save *save) {
  char *path = NULL, *text = NULL;
  pst_status st = PST_OK;
  pst_hash sum;
  PST_GOTO(st, pst_checkpoint_save_path(save, config_file, &path), done);
  PST_GOTO(st, pst_model_config_format(&run->config, &text), done);
  PST_GOTO(st, pst_file_write(path, text, strlen(text)), done);
  pst_hash_init(&sum, 0);
  pst_hash_update(&sum, text, strlen(text));
  st = pst_checkpoint_save_add(save, config_file, pst_hash_value(&sum));
done:
  free(text);
  free(path);
  return st;
}

static pst_status note_int(pst_checkpoint_save *save, const char *key, int64_t value) {
  char text[32];
  snprintf(text, sizeof text, "%" PRId64, value);
  return pst_checkpoint_save_note(save, key, text);
}

static pst_status note_loss(pst_checkpoint_save *save, const char *key, double value) {
  char text[48];
  snprintf(text, sizeof text, "%.17g", value);
  return pst_checkpoint_save_note(save, key, text);
}

/* By what it keeps from step to step. */
static const char *optimizer_of(const pst_runfile *f) {
  if (f->optimizer.name != PST_RUN_SGD) return "adamw";
  return f->optimizer.momentum > 0 ? "sgd with momentum" : "sgd";
}

static pst_status add_notes(const pst_run *run, pst_checkpoint_save *save) {
  char numerics[1024];
  const pst_runfile *f = &run->file;
  pst__run_numerics(run, numerics, sizeof numerics);
  PST_TRY(pst_checkpoint_save_note(save, "penstock", pst_version()));
  PST_TRY(pst_checkpoint_save_note(save, "numerics", numerics));
  PST_TRY(pst_checkpoint_save_note(save, "optimizer", optimizer_of(f)));
  PST_TRY(pst_checkpoint_save_note(save, "tokens_are", run->bytes ? "bytes" : "ids"));
  PST_TRY(note_int(save, "sequence", f->data.sequence));
  PST_TRY(note_int(save, "global", f->batch.global));
  PST_TRY(note_int(save, "micro", f->batch.micro));
  PST_TRY(note_int(save, "train_tokens", run->train.count));
  if (run->last_loss_step == run->step) PST_TRY(note_loss(save, "valid_loss", run->last_loss));
  if (run->best_step < 0) return PST_OK;
  PST_TRY(note_loss(save, "best_valid_loss", run->best_loss));
  return note_int(save, "best_valid_step", run->best_step);
}

static pst_status write_checkpoint(pst_run *run, pst_checkpoint_save *save) {
  const char *names[PST_MAX_MOMENTS];
  PST_TRY(save_tensors(run, save, weights_file, pst_weights_save));
  if (pst_pipeline_moments(run->assembly->pipeline, names) > 0)
    PST_TRY(save_tensors(run, save, moments_file, pst_moments_save));
  PST_TRY(save_config(run, save));
  PST_TRY(add_notes(run, save));
  pst_checkpoint_facts facts = {.seed = (uint64_t)run->file.seed,
                                .tokens = run->tokens,
                                .data_bytes = run->data_bytes,
                                .data_checksum = run->data_hash};
  return pst_checkpoint_save_commit(save, &facts);
}

pst_status pst__run_save(pst_run *run, const pst_run_events *events) {
  pst_checkpoint_save *save = NULL;
  char *dir = NULL;
  pst_status st = PST_OK;
  PST_GOTO(st, pst_checkpoint_save_begin(run->checkpoints, run->step, &save), done);
  PST_GOTO(st, write_checkpoint(run, save), done);
  run->saved_step = run->step;
  PST_GOTO(st, pst_checkpoint_prune(run->checkpoints, run->file.checkpoint.keep, NULL), done);
  PST_GOTO(st, pst_checkpoint_dir(run->checkpoints, run->step, &dir), done);
  PST_GOTO(st, pst__run_log_event(run, "save", ""), done);
  if (events && events->saved) events->saved(events->user, run->step, dir);
done:
  free(dir);
  pst_checkpoint_save_destroy(save);
  return st;
}

/* ---- resuming ---- */

static const char else_do[] = "start anew under another name, or from these weights with model.from";

/* What makes it another run is refused: its steps would not be a continuation of any. */
static pst_status check_facts(const pst_run *run, const pst_manifest *m, const char *dir) {
  if (m->facts.seed != (uint64_t)run->file.seed)
    return pst_settings_fail(run->settings, "seed", PST_INVALID, "%s was written with seed %" PRIu64 "; %s",
                             dir, m->facts.seed, else_do);
  if (m->facts.data_bytes != run->data_bytes || m->facts.data_checksum != run->data_hash)
    return pst_settings_fail(run->settings, "data.train", PST_INVALID,
                             "%s was written with other data: %" PRIu64 " bytes with hash %016" PRIx64
                             ", here %" PRIu64 " with %016" PRIx64 "; %s",
                             dir, m->facts.data_bytes, m->facts.data_checksum, run->data_bytes,
                             run->data_hash, else_do);
  return PST_OK;
}

/* The model that the checkpoint is of; most of what may differ does not show in the shapes of its tensors. */
static pst_status check_model(const pst_run *run, const char *dir) {
  const pst_model_config *now = &run->config;
  pst_model_config then;
  char *path = NULL;
  PST_TRY(pst_path_join(dir, config_file, &path));
  pst_status st = pst_model_config_load(path, &then, NULL);
  free(path);
  PST_TRY(st);
  if (then.family != now->family)
    return pst_settings_fail(run->settings, "model.family", PST_INVALID, "%s was written with %s; %s", dir,
                             pst_family_name(then.family), else_do);
  bool positions = now->family == PST_FAMILY_GPT2; /* has a table of them */
  const struct {
    const char *key;
    int64_t then, now;
  } sizes[] = {{"model.layers", then.layers, now->layers},
               {"model.width", then.width, now->width},
               {"model.heads", then.heads, now->heads},
               {"model.kv_heads", then.kv_heads, now->kv_heads},
               {"model.hidden", then.hidden, now->hidden},
               {"model.vocab", then.vocab, now->vocab},
               {"model.tied", then.tied, now->tied},
               {"model.context", positions ? then.context : 0, positions ? now->context : 0}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    if (sizes[i].then != sizes[i].now)
      return pst_settings_fail(run->settings, sizes[i].key, PST_INVALID,
                               "%s was written with %" PRId64 ", here it is %" PRId64 "; %s", dir,
                               sizes[i].then, sizes[i].now, else_do);
  if (then.head_dim != now->head_dim || then.norm_eps != now->norm_eps ||
      then.rope_theta != now->rope_theta || then.activation != now->activation)
    return pst_settings_fail(run->settings, "model.from", PST_INVALID,
                             "%s was written with another head size, norm epsilon, rotary base or "
                             "activation; %s",
                             dir, else_do);
  return PST_OK;
}

/* Its state is of no use to another one. */
static pst_status check_optimizer(const pst_run *run, const pst_manifest *m, const char *dir) {
  const char *then = pst_manifest_note_get(m, "optimizer"), *now = optimizer_of(&run->file);
  if (!then || strcmp(then, now) == 0) return PST_OK;
  return pst_settings_fail(run->settings, "optimizer.name", PST_INVALID,
                           "%s was written with another optimizer: %s, here it is %s; %s", dir, then, now,
                           else_do);
}

/* What changes the numbers but leaves a sensible run is said, or refused where bitwise is required. */
static pst_status check_notes(const pst_run *run, const pst_manifest *m, const char *dir) {
  const pst_runfile *f = &run->file;
  char numerics[1024], sequence[32], global[32], micro[32], train[32];
  pst__run_numerics(run, numerics, sizeof numerics);
  snprintf(sequence, sizeof sequence, "%d", f->data.sequence);
  snprintf(global, sizeof global, "%" PRId64, f->batch.global);
  snprintf(micro, sizeof micro, "%d", f->batch.micro);
  snprintf(train, sizeof train, "%" PRId64, run->train.count);
  const struct {
    const char *key, *now;
  } notes[] = {{"numerics", numerics},
               {"sequence", sequence},
               {"global", global},
               {"micro", micro},
               {"train_tokens", train}};
  for (size_t i = 0; i < sizeof notes / sizeof *notes; i++) {
    const char *then = pst_manifest_note_get(m, notes[i].key);
    if (!then || strcmp(then, notes[i].now) == 0) continue;
    if (f->bitwise == PST_RUN_BITWISE_REQUIRE)
      return pst_fail(PST_INVALID, "bitwise: require: %s was written with %s = %s, here it is %s", dir,
                      notes[i].key, then, notes[i].now);
    pst_log(run->logger, PST_LOG_WARN,
            "%s was written with %s = %s, here it is %s: the run goes on, but not bit for bit", dir,
            notes[i].key, then, notes[i].now);
  }
  return PST_OK;
}

static pst_status load_checkpoint(pst_run *run, const pst_manifest *m, const char *dir) {
  const char *names[PST_MAX_MOMENTS];
  char *weights = NULL, *moments = NULL, notes[2048];
  pst_status st = PST_OK;
  PST_GOTO(st, pst_path_join(dir, weights_file, &weights), done);
  PST_GOTO(st, pst_path_join(dir, moments_file, &moments), done);
  PST_GOTO(st, pst_weights_load(run->assembly, weights, notes, sizeof notes), done);
  if (notes[0]) pst_log(run->logger, PST_LOG_WARN, "%s", notes);
  if (pst_pipeline_moments(run->assembly->pipeline, names) > 0)
    PST_GOTO(st, pst_moments_load(run->assembly, moments), done);
  run->step = run->saved_step = m->step;
  run->tokens = m->facts.tokens;
  const char *best = pst_manifest_note_get(m, "best_valid_loss");
  const char *best_step = pst_manifest_note_get(m, "best_valid_step");
  run->best_step = best && best_step ? strtoll(best_step, NULL, 10) : -1;
  run->best_loss = best ? strtod(best, NULL) : 0;
done:
  free(weights);
  free(moments);
  return st;
}

static pst_status first_weights(pst_run *run) {
  char notes[2048];
  run->step = 0;
  run->tokens = 0;
  run->best_step = run->last_loss_step = run->saved_step = -1;
  PST_TRY(pst_pipeline_init(run->assembly->pipeline, (uint64_t)run->file.seed));
  if (run->file.model.init != PST_RUN_INIT_PRETRAINED) return PST_OK;
  PST_TRY(pst_weights_load(run->assembly, run->file.model.from, notes, sizeof notes));
  if (notes[0]) pst_log(run->logger, PST_LOG_WARN, "%s", notes);
  return PST_OK;
}

void pst__run_log_choice(const pst_run *run, char *notes) {
  char *rest = NULL;
  for (char *line = strtok_r(notes, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
    pst_log(run->logger, strncmp(line, "took ", 5) == 0 ? PST_LOG_INFO : PST_LOG_WARN, "%s", line);
}

/* The checkpoint to go on from; *out_dir NULL: none. */
static pst_status choose(pst_run *run, char **out_dir, pst_manifest **out_manifest) {
  const char *resume = run->file.checkpoint.resume;
  char *dir = NULL, *notes = NULL;
  pst_manifest *latest = NULL;
  pst_status st = PST_OK;
  PST_GOTO(st, pst_checkpoint_latest(run->checkpoints, 1, &dir, &latest, &notes), done);
  if (strcmp(resume, "auto") == 0) {
    if (dir || strchr(notes, '\n')) pst__run_log_choice(run, notes);
    *out_dir = dir;
    *out_manifest = latest;
    dir = NULL;
    latest = NULL;
    goto done;
  }
  bool never = strcmp(resume, "never") == 0;
  if (!never) {
    PST_GOTO(st, pst_checkpoint_read(resume, 1, out_manifest), done);
    PST_GOTO(st, pst__run_text(out_dir, "%s", resume), done);
  }
  /* older steps would be pruned as they are written, and a later resume would take the wrong branch */
  int64_t step = never ? -1 : (*out_manifest)->step;
  if (latest && latest->step > step)
    st = pst_settings_fail(run->settings, "checkpoint.resume", PST_INVALID,
                           "%s is there already, of step %" PRId64
                           "; move it away or give the run another name",
                           dir, latest->step);
done:
  pst_manifest_destroy(latest);
  free(notes);
  free(dir);
  return st;
}

pst_status pst__run_resume(pst_run *run, const pst_run_events *events) {
  char *dir = NULL;
  pst_manifest *m = NULL;
  pst_status st = PST_OK;
  PST_GOTO(st, choose(run, &dir, &m), done);
  if (dir) {
    PST_GOTO(st, check_facts(run, m, dir), done);
    PST_GOTO(st, check_model(run, dir), done);
    PST_GOTO(st, check_optimizer(run, m, dir), done);
    PST_GOTO(st, check_notes(run, m, dir), done);
  }
  PST_GOTO(st, pst__run_start(run), done);
  if (!dir) {
    st = first_weights(run);
    goto done;
  }
  PST_GOTO(st, load_checkpoint(run, m, dir), done);
  if (events && events->resumed) events->resumed(events->user, run->step, dir);
done:
  pst_manifest_destroy(m);
  free(dir);
  return st;
}
