#include "core/engine/run_internal.h"

#include "core/base/file.h"
#include "core/checkpoint/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- from the run file's keys ---- */

static pst_status find_family(pst_run *run, const char *name) {
  run->model = pst_model_find(name);
  if (run->model) return PST_OK;
  char known[160] = "";
  size_t n = 0;
  for (const pst_model *const *m = pst_models; *m && n < sizeof known; m++)
    n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", (*m)->name);
  return pst_settings_fail(run->settings, "model.family", PST_UNSUPPORTED, "this build has %s", known);
}

static int64_t own_hidden(pst_family family, int64_t width) {
  if (family == PST_FAMILY_GPT2) return 4 * width;
  return (8 * width / 3 + 15) / 16 * 16;
}

static pst_status from_keys(pst_run *run) {
  const pst_runfile *f = &run->file;
  pst_model_config *c = &run->config;
  PST_TRY(find_family(run, f->model.family));
  if (f->model.heads == 0)
    return pst_fail(PST_INVALID, "model.heads: missing; wanted a divisor of model.width = %d",
                    f->model.width);
  pst_model_config_init(c, run->model->family);
  c->layers = f->model.layers;
  c->width = f->model.width;
  c->heads = f->model.heads;
  c->kv_heads = f->model.kv_heads;
  c->head_dim = c->width / c->heads;
  c->hidden = f->model.hidden ? f->model.hidden : own_hidden(c->family, c->width);
  c->context = f->model.context;
  if (f->model.tied >= 0) c->tied = f->model.tied;
  c->dropout_attention = f->model.dropout;
  c->dropout_embedding = c->dropout_residual = c->family == PST_FAMILY_GPT2 ? f->model.dropout : 0;
  c->initializer_range = run->file.init_std;
  c->bos_id = -1;
  c->n_eos_ids = 0;
  if (f->model.vocab) {
    c->vocab = f->model.vocab;
  } else if (pst__run_data_is_text(run)) {
    c->vocab = 256;
    PST_TRY(pst_settings_default(run->settings, "model.vocab", "256"));
  } else {
    return pst_fail(PST_INVALID, "model.vocab: missing; wanted the number of tokens that %s is written in",
                    f->data.train);
  }
  if (c->family == PST_FAMILY_GPT2 && c->kv_heads != c->heads)
    return pst_settings_fail(run->settings, "model.kv_heads", PST_INVALID,
                             "gpt2 has as many as model.heads = %d", (int)c->heads);
  return pst_model_config_check(c, "model");
}

/* ---- from a Hugging Face directory ---- */

static pst_status load_config(pst_run *run, const char *directory) {
  char *path = NULL, *warnings = NULL;
  PST_TRY(pst_path_join(directory, "config.json", &path));
  pst_status st = pst_model_config_load(path, &run->config, &warnings);
  free(path);
  if (st != PST_OK) return st;
  for (char *line = warnings; line && *line;) {
    char *end = strchr(line, '\n');
    if (end) *end = 0;
    pst_log(run->logger, PST_LOG_WARN, "%s", line);
    if (!end) break;
    line = end + 1;
  }
  free(warnings);
  run->model = pst_model_find(pst_family_name(run->config.family));
  if (!run->model)
    return pst_fail(PST_UNSUPPORTED, "%s: model_type is %s, which this build does not have", directory,
                    pst_family_name(run->config.family));
  return PST_OK;
}

/* Keys that say what the directory says too must say the same. */
static pst_status check_keys(pst_run *run) {
  const pst_runfile *f = &run->file;
  const pst_model_config *c = &run->config;
  const struct {
    const char *path;
    int64_t given, has;
  } sizes[] = {
      {"model.layers", f->model.layers, c->layers},   {"model.width", f->model.width, c->width},
      {"model.heads", f->model.heads, c->heads},      {"model.kv_heads", f->model.kv_heads, c->kv_heads},
      {"model.hidden", f->model.hidden, c->hidden},   {"model.vocab", f->model.vocab, c->vocab},
      {"model.context", f->model.context, c->context}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    if (pst_settings_is_set(run->settings, "%s", sizes[i].path) && sizes[i].given != sizes[i].has)
      return pst_settings_fail(run->settings, sizes[i].path, PST_INVALID, "%s has %lld; leave the key out",
                               f->model.from, (long long)sizes[i].has);
  if (f->model.family && strcmp(f->model.family, run->model->name) != 0)
    return pst_settings_fail(run->settings, "model.family", PST_INVALID, "%s is %s", f->model.from,
                             run->model->name);
  if (f->model.tied >= 0 && f->model.tied != c->tied)
    return pst_settings_fail(run->settings, "model.tied", PST_INVALID, "%s has %s", f->model.from,
                             c->tied ? "true" : "false");
  return PST_OK;
}

static pst_status from_directory(pst_run *run) {
  const pst_runfile *f = &run->file;
  pst_model_config *c = &run->config;
  pst_status st = load_config(run, f->model.from);
  if (st != PST_OK)
    return pst_fail_prefix(st, "%s: model.from: ", pst_settings_origin(run->settings, "model.from"));
  PST_TRY(check_keys(run));
  if (pst_settings_is_set(run->settings, "model.dropout")) {
    c->dropout_attention = f->model.dropout;
    if (c->family == PST_FAMILY_GPT2) c->dropout_embedding = c->dropout_residual = f->model.dropout;
  }
  if (pst_settings_is_set(run->settings, "init.std")) c->initializer_range = f->init_std;
  return PST_OK;
}

/* ---- both ---- */

/* What was left open goes into the resolved run file. */
static pst_status resolve(pst_run *run) {
  pst_settings *s = run->settings;
  char text[32], path[64];
  snprintf(text, sizeof text, "%d", run->file.data.sequence);
  PST_TRY(pst_settings_default(s, "data.sequence", text));
  for (size_t i = 0; i < run->file.n_stages; i++) {
    snprintf(path, sizeof path, "stages.%zu.device", i);
    PST_TRY(pst_settings_default(s, path, "cpu"));
  }
  return PST_OK;
}

static pst_status check_layout(pst_run *run) {
  const pst_runfile *f = &run->file;
  const pst_model_config *c = &run->config;
  if (f->data.sequence > c->context)
    return pst_settings_fail(run->settings, "data.sequence", PST_INVALID,
                             "wanted at most the model's context of %lld tokens", (long long)c->context);
  if (f->data.eot >= c->vocab)
    return pst_settings_fail(run->settings, "data.eot", PST_INVALID,
                             "wanted a token below the model's vocabulary of %lld", (long long)c->vocab);
  PST_TRY(pst_runfile_check_split(run->settings, f, (int)c->layers));
  int64_t units = 2 * c->layers + 2;
  if ((int64_t)f->n_stages > units)
    return pst_settings_fail(run->settings, "stages", PST_INVALID,
                             "%zu stages, but a model of %lld layers can be cut into %lld at most",
                             f->n_stages, (long long)c->layers, (long long)units);
  return PST_OK;
}

pst_status pst__run_model(pst_run *run, const char *directory) {
  if (directory)
    PST_TRY(load_config(run, directory));
  else if (run->file.model.from)
    PST_TRY(from_directory(run));
  else
    PST_TRY(from_keys(run));
  PST_TRY(check_layout(run));
  return resolve(run);
}

/* The embedding belongs to the first stage, the head to the last; a layer is two units. */
void pst__run_units(const pst_run *run, pst_assembly_worker *workers, int n_workers) {
  for (int s = 0; s < n_workers; s++) {
    int layers = run->file.n_stages ? run->file.stages[s].layers : -1;
    workers[s].units = layers < 0 ? 0 : 2 * layers + (s == 0) + (s == n_workers - 1);
  }
}
