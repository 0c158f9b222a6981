#include "core/engine/run_internal.h"

#include "core/base/rng.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- prompts ---- */

typedef struct prompt {
  int32_t *ids;
  int64_t n;
} prompt;

/* Ids between blanks, for models whose tokens are no bytes. */
static pst_status parse_ids(const char *text, int64_t vocab, prompt *p) {
  for (const char *at = text; *at;) {
    while (isspace((unsigned char)*at)) at++;
    if (!*at) break;
    char *end;
    errno = 0;
    long long id = strtoll(at, &end, 10);
    if (end == at || errno || (*end && !isspace((unsigned char)*end)) || id < 0 || id >= vocab)
      return pst_fail(
          PST_INVALID,
          "prompt: \"%.40s\": this model's tokens are no bytes; wanted ids below %lld between blanks", at,
          (long long)vocab);
    p->ids[p->n++] = (int32_t)id;
    at = end;
  }
  return PST_OK;
}

static pst_status parse_bytes(const char *text, int64_t vocab, prompt *p) {
  for (const char *at = text; *at; at++) {
    if ((unsigned char)*at >= vocab)
      return pst_fail(PST_INVALID, "prompt: byte %d is no token of a vocabulary of %lld", (unsigned char)*at,
                      (long long)vocab);
    p->ids[p->n++] = (unsigned char)*at;
  }
  return PST_OK;
}

/* An empty prompt becomes what begins a text: a line's end, or the model's own first token. */
static int32_t first_token(const pst_run *run) {
  if (run->bytes && run->config.vocab > '\n') return '\n';
  return run->config.bos_id >= 0 && run->config.bos_id < run->config.vocab ? (int32_t)run->config.bos_id : 0;
}

static pst_status read_prompt(const pst_run *run, const pst_generate_options *o, prompt *p) {
  const char *text = o->prompt_text ? o->prompt_text : "";
  size_t room = o->prompt ? (size_t)o->n_prompt : strlen(text);
  p->ids = malloc((room + 1) * sizeof *p->ids);
  if (!p->ids) return pst_fail(PST_NO_MEMORY, "no memory for a prompt of %zu tokens", room);
  if (!o->prompt) {
    PST_TRY((run->bytes ? parse_bytes : parse_ids)(text, run->config.vocab, p));
  } else {
    for (int64_t i = 0; i < o->n_prompt; i++) {
      if (o->prompt[i] < 0 || o->prompt[i] >= run->config.vocab)
        return pst_fail(PST_INVALID, "prompt: token %lld is %d; wanted 0 to %lld", (long long)i, o->prompt[i],
                        (long long)run->config.vocab - 1);
      p->ids[p->n++] = o->prompt[i];
    }
  }
  if (p->n == 0) p->ids[p->n++] = first_token(run);
  return PST_OK;
}

pst_status pst__run_prompt_check(pst_run *run) {
  if (run->file.sample.every == 0 || !run->file.sample.prompt) return PST_OK;
  prompt p = {.n = 0};
  pst_status st = read_prompt(run, &(pst_generate_options){.prompt_text = run->file.sample.prompt}, &p);
  free(p.ids);
  return st == PST_OK
             ? PST_OK
             : pst_fail_prefix(st, "%s: sample.", pst_settings_origin(run->settings, "sample.prompt"));
}

/* ---- choosing a token ---- */

static int32_t likeliest(const float *logits, int64_t n) {
  int64_t best = 0;
  for (int64_t i = 1; i < n; i++)
    if (logits[i] > logits[best]) best = i;
  return (int32_t)best;
}

/* The token where the running sum of probabilities passes a uniform number; sums in double, in the order of
 * ids. */
static int32_t draw(const float *logits, int64_t n, double temperature, uint64_t seed, int64_t index) {
  uint32_t r[4];
  pst_rng_key key = pst_rng_key_make(seed, pst_rng_hash_text("generate"));
  pst_rng_philox(key, (uint32_t[4]){(uint32_t)index, (uint32_t)((uint64_t)index >> 32), 0, 0}, r);
  double u = ((double)(r[0] >> 5) * 67108864.0 + (double)(r[1] >> 6)) / 9007199254740992.0;
  double most = (double)logits[likeliest(logits, n)], sum = 0, at = 0;
  for (int64_t i = 0; i < n; i++) sum += exp(((double)logits[i] - most) / temperature);
  for (int64_t i = 0; i < n; i++) {
    at += exp(((double)logits[i] - most) / temperature);
    if (at > u * sum) return (int32_t)i;
  }
  return likeliest(logits, n);
}

/* ---- generating ---- */

static pst_status make_room(pst_run *run) {
  if (!run->window) run->window = malloc((size_t)run->file.data.sequence * sizeof *run->window);
  if (!run->logits) run->logits = malloc((size_t)run->config.vocab * sizeof *run->logits);
  return run->window && run->logits ? PST_OK : pst_fail(PST_NO_MEMORY, "no memory to generate text");
}

static pst_status next_token(pst_run *run, int64_t used, const pst_generate_options *o, int64_t index,
                             int32_t *out_id) {
  const int64_t length = run->file.data.sequence;
  int32_t position = (int32_t)(used - 1);
  memset(run->window + used, 0, (size_t)(length - used) * sizeof *run->window);
  pst_batch b = {.tokens = run->window, .positions = &position, .sequences = 1};
  PST_TRY(pst_pipeline_logits(run->assembly->pipeline, &b, run->logits));
  for (int64_t i = 0; i < run->config.vocab; i++)
    if (!isfinite(run->logits[i]))
      return pst_fail(PST_NONFINITE, "token %lld of the text: the logit of id %lld is %g", (long long)index,
                      (long long)i, (double)run->logits[i]);
  *out_id = o->temperature > 0 ? draw(run->logits, run->config.vocab, o->temperature, o->seed, index)
                               : likeliest(run->logits, run->config.vocab);
  return PST_OK;
}

static pst_status generate(pst_run *run, const pst_generate_options *o, const prompt *p) {
  const int64_t length = run->file.data.sequence;
  int64_t used = p->n < length ? p->n : length;
  memcpy(run->window, p->ids + (p->n - used), (size_t)used * sizeof *run->window);
  for (int64_t i = 0; i < o->tokens; i++) {
    int32_t id = 0;
    PST_TRY(next_token(run, used, o, i, &id));
    if (used == length) {
      memmove(run->window, run->window + 1, (size_t)(length - 1) * sizeof *run->window);
      used--;
    }
    run->window[used++] = id;
    if (o->token) o->token(o->user, id);
  }
  return PST_OK;
}

pst_status pst_run_generate(pst_run *run, const pst_generate_options *o) {
  if (o->tokens < 0 || !(o->temperature >= 0) || !isfinite(o->temperature))
    return pst_fail(PST_INVALID, "generate: %lld tokens at temperature %g; wanted 0 or more of both",
                    (long long)o->tokens, o->temperature);
  prompt p = {.n = 0};
  pst_status st = PST_OK;
  PST_GOTO(st, pst__run_ready(run), done);
  PST_GOTO(st, make_room(run), done);
  PST_GOTO(st, read_prompt(run, o, &p), done);
  st = generate(run, o, &p);
done:
  free(p.ids);
  return st;
}

/* ---- samples of a training run: the prompt and what follows ---- */

typedef struct text {
  char *at;
  size_t n, room;
  bool bytes;
} text;

static void append(void *user, int32_t id) {
  text *t = user;
  if (t->bytes && id < 256) {
    t->at[t->n++] = (char)id;
    return;
  }
  int n = snprintf(t->at + t->n, t->room - t->n, "%s%d", t->n ? " " : "", id);
  if (n > 0 && t->n + (size_t)n < t->room) t->n += (size_t)n;
}

pst_status pst__run_sample(pst_run *run, const pst_run_events *events) {
  const pst_runfile *f = &run->file;
  enum { ID_BYTES = 12 };
  size_t prompt_bytes = strlen(f->sample.prompt);
  text t = {.bytes = run->bytes, .room = prompt_bytes + (size_t)f->sample.tokens * ID_BYTES + ID_BYTES};
  t.at = malloc(t.room);
  if (!t.at) return pst_fail(PST_NO_MEMORY, "no memory for a sample of %d tokens", f->sample.tokens);
  memcpy(t.at, f->sample.prompt, prompt_bytes);
  t.n = prompt_bytes;
  pst_generate_options o = {.prompt_text = f->sample.prompt,
                            .tokens = f->sample.tokens,
                            .temperature = f->sample.temperature,
                            .seed = (uint64_t)f->seed + (uint64_t)run->step,
                            .token = append,
                            .user = &t};
  pst_status st = pst_run_generate(run, &o);
  if (st == PST_OK) st = pst__run_log_sample(run, t.at, t.n);
  if (st == PST_OK && events && events->sampled) events->sampled(events->user, run->step, t.at, t.n);
  free(t.at);
  return st;
}
