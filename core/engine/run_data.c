#include "core/engine/run_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool ends_in(const char *path, const char *end) {
  size_t n = strlen(path), m = strlen(end);
  return n >= m && strcasecmp(path + n - m, end) == 0;
}

/* The run file's formats, in its own order. */
static pst_tokens_format format_of(const pst_run *run) {
  static const pst_tokens_format formats[] = {
      [PST_RUN_FORMAT_AUTO] = PST_TOKENS_AUTO, [PST_RUN_FORMAT_TEXT] = PST_TOKENS_TEXT,
      [PST_RUN_FORMAT_U16] = PST_TOKENS_U16,   [PST_RUN_FORMAT_U32] = PST_TOKENS_U32,
      [PST_RUN_FORMAT_LLMC] = PST_TOKENS_LLMC, [PST_RUN_FORMAT_NANOGPT] = PST_TOKENS_NANOGPT};
  return formats[run->file.data.format];
}

bool pst__run_data_is_text(const pst_run *run) {
  pst_run_format format = run->file.data.format;
  return format == PST_RUN_FORMAT_TEXT ||
         (format == PST_RUN_FORMAT_AUTO && !ends_in(run->file.data.train, ".bin"));
}

static pst_status open_file(pst_run *run, const char *key, const char *path, int64_t sequence,
                            pst_tokens **out) {
  const char *origin = pst_settings_origin(run->settings, "%s", key);
  if (ends_in(path, ".jsonl") && run->file.data.format == PST_RUN_FORMAT_AUTO)
    return pst_settings_fail(run->settings, key, PST_UNSUPPORTED,
                             "turn it into a token file with `penstock tokenize` first, or say data.format: "
                             "text to train on its bytes");
  pst_tokens_options o = {.paths = &path, .n_paths = 1, .format = format_of(run), .sequence = sequence};
  pst_status st = pst_tokens_open(&o, out);
  if (st == PST_OK) st = pst_tokens_check(*out, run->config.vocab);
  return st == PST_OK ? PST_OK : pst_fail_prefix(st, "%s: %s: ", origin, key);
}

/* Holds out the end of the training file. A default share of a file too short for it is none. */
static pst_status hold_out(pst_run *run) {
  const pst_runfile *f = &run->file;
  run->train = pst_tokens_all(run->train_tokens);
  if (f->data.split <= 0) return PST_OK;
  pst_tokens_view train, valid;
  pst_status st = pst_tokens_split(run->train_tokens, f->data.split, f->data.sequence, &train, &valid);
  if (st != PST_OK && pst_settings_is_set(run->settings, "data.split"))
    return pst_fail_prefix(st, "%s: data.split: ", pst_settings_origin(run->settings, "data.split"));
  if (st != PST_OK) {
    pst_log(run->logger, PST_LOG_WARN, "no validation: %s: too short to hold out a share of %g",
            f->data.train, f->data.split);
    return pst_settings_default(run->settings, "data.split", "0");
  }
  run->train = train;
  run->valid = valid;
  run->has_valid = true;
  return PST_OK;
}

static int64_t width_of(const pst_tokens *tokens) {
  int64_t limit = pst_tokens_id_limit(tokens);
  return limit <= 256 ? 1 : limit <= 65536 ? 2 : 4;
}

pst_status pst__run_data(pst_run *run, bool training) {
  const pst_runfile *f = &run->file;
  if (f->data.eot >= 0)
    return pst_settings_fail(run->settings, "data.eot", PST_UNSUPPORTED,
                             "training takes the token file as it is; leave the key out");
  if (training || !f->data.valid) {
    PST_TRY(open_file(run, "data.train", f->data.train, f->data.sequence, &run->train_tokens));
    run->bytes = pst_tokens_kind(run->train_tokens) == PST_TOKENS_TEXT;
    run->data_bytes = (uint64_t)(pst_tokens_count(run->train_tokens) * width_of(run->train_tokens));
  }
  if (training) run->data_hash = pst_tokens_hash(run->train_tokens);
  if (f->data.valid) {
    PST_TRY(open_file(run, "data.valid", f->data.valid, 1, &run->valid_tokens));
    run->valid = pst_tokens_all(run->valid_tokens);
    run->has_valid = true;
    if (run->train_tokens) run->train = pst_tokens_all(run->train_tokens);
    if (!training) run->bytes = pst_tokens_kind(run->valid_tokens) == PST_TOKENS_TEXT;
  } else {
    PST_TRY(hold_out(run));
  }
  run->has_data = true;
  if (!training) return PST_OK;
  pst_sampler_options o = {.mode = PST_SAMPLER_WINDOWS,
                           .seed = (uint64_t)f->seed,
                           .n_tokens = run->train.count,
                           .sequence = f->data.sequence,
                           .global = f->batch.global};
  return pst_sampler_init(&o, &run->sampler);
}

/* ---- evaluation ---- */

pst_status pst__run_eval_room(pst_run *run) {
  int64_t n = run->file.batch.global * run->file.data.sequence;
  if (run->eval_room) return PST_OK;
  run->eval_tokens = malloc((size_t)n * sizeof *run->eval_tokens);
  run->eval_targets = malloc((size_t)n * sizeof *run->eval_targets);
  if (!run->eval_tokens || !run->eval_targets)
    return pst_fail(PST_NO_MEMORY, "no memory for an evaluation batch of %lld tokens", (long long)n);
  run->eval_room = run->file.batch.global;
  return PST_OK;
}

pst_status pst__run_validate(pst_run *run, int64_t sequences, double *out_loss, int64_t *out_tokens) {
  const int64_t length = run->file.data.sequence, batch = run->file.batch.global;
  if (!run->has_valid)
    return pst_fail(PST_INVALID,
                    "no validation data: wanted data.valid, or data.split above 0 and a data.train long "
                    "enough for it");
  PST_TRY(pst__run_eval_room(run));
  PST_TRY(pst_tokens_whole(run->valid.tokens));
  pst_sampler sampler;
  pst_sampler_options o = {.mode = PST_SAMPLER_IN_ORDER,
                           .n_tokens = run->valid.count,
                           .sequence = length,
                           .global = batch,
                           .n_windows = sequences > 0 ? sequences : 0};
  PST_TRY(pst_sampler_init(&o, &sampler));
  double sum = 0;
  int64_t tokens = 0;
  for (int64_t step = 0; step < pst_sampler_steps(&sampler); step++) {
    int64_t n = 0;
    for (; n < batch; n++) {
      int64_t start = pst_sampler_start(&sampler, step, n);
      if (start < 0) break;
      pst_tokens_window(&run->valid, start, length, run->eval_tokens + n * length,
                        run->eval_targets + n * length);
    }
    pst_batch b = {.tokens = run->eval_tokens, .targets = run->eval_targets, .sequences = n};
    double part;
    int64_t valid;
    PST_TRY(pst_pipeline_loss(run->assembly->pipeline, &b, &part, &valid, NULL));
    if (!isfinite(part))
      return pst_fail(PST_NONFINITE, "%s: the validation loss of step %lld is %g", run->directory,
                      (long long)run->step, part);
    sum += part;
    tokens += valid;
  }
  *out_loss = tokens > 0 ? sum / (double)tokens : 0.0;
  *out_tokens = tokens;
  return PST_OK;
}

pst_status pst_run_evaluate(pst_run *run, int64_t sequences, double *out_loss, int64_t *out_tokens) {
  if (!run->has_data) {
    if (!run->file.data.valid && !pst_settings_is_set(run->settings, "data.train"))
      return pst_fail(PST_INVALID,
                      "no validation data: wanted data.valid, or data.train to hold some out of");
    PST_TRY(pst__run_data(run, false));
  }
  PST_TRY(pst__run_ready(run));
  return pst__run_validate(run, sequences, out_loss, out_tokens);
}
