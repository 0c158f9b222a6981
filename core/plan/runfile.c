#include "core/plan/runfile.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Keys that are part of the run file and have no effect in this version, with the value that asks for
 * nothing: a trailing * takes any ending, NULL takes no value at all. */
static const struct {
  const char *path;
  const char *allowed;
} not_yet[] = {
    {"stages[].host", NULL},      {"stages[].device", "cpu*"}, {"stages[].recompute", "none"},
    {"stages[].offload", "none"}, {"recompute", "none"},       {"offload", "none"},
    {"batch.replicas", "1"},      {"precision", "fp32"},       {"checkpoint.shared", "false"},
};

static pst_status refuse_not_yet(pst_settings *s, const char *path, const char *allowed) {
  if (!pst_settings_is_set(s, "%s", path)) return PST_OK;
  const char *text = pst_settings_text(s, "%s", path);
  size_t n = allowed ? strlen(allowed) : 0;
  bool open = n > 0 && allowed[n - 1] == '*';
  if (n > 0 && (open ? strncmp(text, allowed, n - 1) == 0 : strcmp(text, allowed) == 0)) return PST_OK;
  if (!allowed)
    return pst_settings_fail(s, path, PST_UNSUPPORTED, "this version does not take the key; leave it out");
  return pst_settings_fail(s, path, PST_UNSUPPORTED, "this version takes only %.*s here",
                           (int)(open ? n - 1 : n), allowed);
}

static pst_status check_not_yet(pst_settings *s) {
  size_t n_stages = pst_settings_count(s, "stages");
  for (size_t i = 0; i < sizeof not_yet / sizeof not_yet[0]; i++) {
    const char *path = not_yet[i].path;
    if (strncmp(path, "stages[].", 9) != 0) {
      PST_TRY(refuse_not_yet(s, path, not_yet[i].allowed));
      continue;
    }
    for (size_t j = 0; j < n_stages; j++) {
      char name[64];
      snprintf(name, sizeof name, "stages.%zu.%s", j, path + 9);
      PST_TRY(refuse_not_yet(s, name, not_yet[i].allowed));
    }
  }
  return PST_OK;
}

/* ---- devices ---------------------------------------------------------------------------------------------
 */

/* A decimal number below `limit`; the byte after it, or NULL. */
static const char *read_number(const char *text, long limit, int *out) {
  long value = 0;
  if (*text < '0' || *text > '9') return NULL;
  for (; *text >= '0' && *text <= '9'; text++) {
    value = value * 10 + (*text - '0');
    if (value >= limit) return NULL;
  }
  *out = (int)value;
  return text;
}

/* "0-3,8": every core at most once. */
static bool read_cores(const char *text, pst_run_device *device) {
  for (;; text++) {
    int first = 0, last = 0;
    if (!(text = read_number(text, PST_RUN_MAX_CORES, &first))) return false;
    last = first;
    if (*text == '-' && !(text = read_number(text + 1, PST_RUN_MAX_CORES, &last))) return false;
    if (last < first) return false;
    for (int c = first; c <= last; c++) {
      uint64_t bit = UINT64_C(1) << (c % 64);
      if (device->cores[c / 64] & bit) return false;
      device->cores[c / 64] |= bit;
      device->n_cores++;
    }
    if (*text != ',') return *text == '\0';
  }
}

pst_status pst_run_device_parse(const char *text, pst_run_device *out_device) {
  static const struct {
    const char *prefix;
    pst_run_device_kind kind;
  } indexed[] = {
      {"opencl:", PST_RUN_DEVICE_OPENCL}, {"cuda:", PST_RUN_DEVICE_CUDA}, {"hip:", PST_RUN_DEVICE_HIP}};
  pst_run_device device = {.kind = PST_RUN_DEVICE_ANY, .numa = -1};
  const char *end = NULL;
  if (strcmp(text, "cpu") == 0) {
    device.kind = PST_RUN_DEVICE_CPU;
  } else if (strncmp(text, "cpu:numa", 8) == 0) {
    end = read_number(text + 8, PST_RUN_MAX_CORES, &device.numa);
    if (end && !*end) device.kind = PST_RUN_DEVICE_CPU;
  } else if (strncmp(text, "cpu:cores=", 10) == 0) {
    if (read_cores(text + 10, &device)) device.kind = PST_RUN_DEVICE_CPU;
  }
  for (size_t i = 0; i < sizeof indexed / sizeof indexed[0]; i++) {
    size_t n = strlen(indexed[i].prefix);
    if (strncmp(text, indexed[i].prefix, n) != 0) continue;
    end = read_number(text + n, 65536, &device.index);
    if (end && !*end) device.kind = indexed[i].kind;
  }
  if (device.kind == PST_RUN_DEVICE_ANY)
    return pst_fail(
        PST_INVALID,
        "no device is written like this; wanted cpu, cpu:numa1, cpu:cores=0-3, opencl:0, cuda:0 or hip:0");
  *out_device = device;
  return PST_OK;
}

static bool overlap(const pst_run_stage *a, const pst_run_stage *b) {
  const pst_run_device *p = &a->device, *q = &b->device;
  if (p->kind != q->kind || p->kind == PST_RUN_DEVICE_ANY) return false;
  if ((a->host == NULL) != (b->host == NULL) || (a->host && strcmp(a->host, b->host) != 0)) return false;
  if (p->kind != PST_RUN_DEVICE_CPU) return p->index == q->index;
  bool p_whole = p->numa < 0 && p->n_cores == 0, q_whole = q->numa < 0 && q->n_cores == 0;
  if (p_whole && q_whole) return false; /* shared out between them */
  if (p_whole || q_whole) return true;
  if (p->numa >= 0 || q->numa >= 0) return p->numa == q->numa; /* a node's cores are known only on its host */
  for (size_t i = 0; i < PST_RUN_MAX_CORES / 64; i++)
    if (p->cores[i] & q->cores[i]) return true;
  return false;
}

static pst_status check_overlap(pst_settings *s, const pst_runfile *run) {
  for (size_t j = 1; j < run->n_stages; j++) {
    for (size_t i = 0; i < j; i++) {
      if (!overlap(&run->stages[i], &run->stages[j])) continue;
      char path[64];
      snprintf(path, sizeof path, "stages.%zu.device", j);
      return pst_settings_fail(s, path, PST_INVALID, "overlaps stages.%zu.device = %s (%s)", i,
                               pst_settings_text(s, "stages.%zu.device", i),
                               pst_settings_origin(s, "stages.%zu.device", i));
    }
  }
  return PST_OK;
}

/* ---- batch -----------------------------------------------------------------------------------------------
 */

static const char *text_or_unset(pst_settings *s, const char *path) {
  const char *text = pst_settings_text(s, "%s", path);
  return text ? text : "unset";
}

static pst_status refuse_batch(pst_settings *s, const char *why) {
  static const char *const keys[] = {"global", "micro", "microbatches", "replicas"};
  char values[512];
  size_t used = 0;
  for (size_t i = 0; i < 4; i++) {
    char path[32];
    snprintf(path, sizeof path, "batch.%s", keys[i]);
    const char *text = text_or_unset(s, path);
    bool set = strcmp(text, "unset") != 0;
    int n = snprintf(values + used, sizeof values - used, "%s%s %.20s%s%.80s%s", i ? ", " : "", keys[i], text,
                     set ? " (" : "", set ? pst_settings_origin(s, "%s", path) : "", set ? ")" : "");
    used += n > 0 ? (size_t)n : 0;
    if (used >= sizeof values) break;
  }
  return pst_settings_fail(s, "batch", PST_INVALID, "global = micro x microbatches x replicas: %s: %s",
                           values, why);
}

static pst_status set_default_int(pst_settings *s, const char *path, int64_t value) {
  char text[32];
  snprintf(text, sizeof text, "%lld", (long long)value);
  return pst_settings_default(s, path, text);
}

/* Any two of global, micro and microbatches give the third; what is missing to two gets its default. */
static pst_status load_batch(pst_settings *s, pst_runfile *run) {
  char why[160];
  bool has_global = pst_settings_is_set(s, "batch.global");
  bool has_micro = pst_settings_is_set(s, "batch.micro");
  bool has_count = pst_settings_is_set(s, "batch.microbatches");
  int64_t replicas = pst_settings_int(s, "batch.replicas");
  if (!has_global && !(has_micro && has_count)) {
    PST_TRY(set_default_int(s, "batch.global", 32));
    has_global = true;
  }
  int64_t global = pst_settings_int(s, "batch.global");
  int64_t micro = pst_settings_int(s, "batch.micro"), count = pst_settings_int(s, "batch.microbatches");
  if (!has_global) global = micro * count * replicas;
  if (global > 1000000000) return refuse_batch(s, "global comes to more than 1e9");
  if (global % replicas) return refuse_batch(s, "global is no multiple of replicas");
  int64_t share = global / replicas; /* micro x microbatches */
  if (!has_micro && !has_count) {
    for (micro = share < 4 ? share : 4; share % micro;) micro--;
    PST_TRY(set_default_int(s, "batch.micro", micro));
    has_micro = true;
  }
  if (has_micro && has_count && micro * count != share) {
    snprintf(why, sizeof why, "%lld is not %lld x %lld x %lld = %lld", (long long)global, (long long)micro,
             (long long)count, (long long)replicas, (long long)(micro * count * replicas));
    return refuse_batch(s, why);
  }
  if (has_micro && share % micro) return refuse_batch(s, "microbatches would be no whole number");
  if (!has_micro && share % count) return refuse_batch(s, "micro would be no whole number");
  if (!has_micro) micro = share / count;
  count = share / micro;
  if (micro > 1000000 || count > 1000000)
    return refuse_batch(s, "micro or microbatches comes to more than 1e6");
  run->batch.global = global;
  run->batch.micro = (int)micro;
  run->batch.microbatches = (int)count;
  run->batch.replicas = (int)replicas;
  return PST_OK;
}

/* ---- filling in ------------------------------------------------------------------------------------------
 */

/* Copies a text that the settings own; NULL stays NULL. */
static pst_status copy_text(pst_runfile *run, const char *text, const char **out) {
  if (!text) return PST_OK;
  char **grown = realloc(run->texts, (run->n_texts + 1) * sizeof *grown);
  if (!grown) return pst_fail(PST_NO_MEMORY, "run file: no memory for its text");
  run->texts = grown;
  char *copy = strdup(text);
  if (!copy) return pst_fail(PST_NO_MEMORY, "run file: no memory for its text");
  run->texts[run->n_texts++] = copy;
  *out = copy;
  return PST_OK;
}

static pst_status load_texts(pst_settings *s, pst_runfile *run) {
  const struct {
    const char *path;
    const char **out;
    bool filled; /* must not be empty */
  } texts[] = {
      {"name", &run->name, true},
      {"model.family", &run->model.family, true},
      {"model.from", &run->model.from, true},
      {"data.train", &run->data.train, true},
      {"data.valid", &run->data.valid, true},
      {"schedule.name", &run->schedule.name, true},
      {"sample.prompt", &run->sample.prompt, false},
      {"checkpoint.resume", &run->checkpoint.resume, true},
      {"checkpoint.directory", &run->checkpoint.directory, true},
      {"runs", &run->runs, true},
  };
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    const char *text = pst_settings_string(s, "%s", texts[i].path);
    if (text && !*text && texts[i].filled)
      return pst_settings_fail(s, texts[i].path, PST_INVALID, "is empty");
    PST_TRY(copy_text(run, text, texts[i].out));
  }
  if (strchr(run->name, '/') || run->name[0] == '.')
    return pst_settings_fail(s, "name", PST_INVALID,
                             "wanted the name of a directory, without / and no dot in front");
  return PST_OK;
}

static pst_status require(pst_settings *s, const char *path, const char *why) {
  return pst_settings_text(s, "%s", path) ? PST_OK : pst_fail(PST_INVALID, "%s: missing; %s", path, why);
}

static pst_status load_model(pst_settings *s, pst_runfile *run) {
  if (!run->model.from) {
    static const char why[] = "the run file gives it, or model.from does";
    PST_TRY(require(s, "model.family", why));
    PST_TRY(require(s, "model.layers", why));
    PST_TRY(require(s, "model.width", why));
  }
  int init = pst_settings_word(s, "model.init");
  run->model.init = init >= 0         ? (pst_run_init)init
                    : run->model.from ? PST_RUN_INIT_PRETRAINED
                                      : PST_RUN_INIT_RANDOM;
  if (run->model.init == PST_RUN_INIT_PRETRAINED && !run->model.from)
    return pst_settings_fail(s, "model.init", PST_INVALID, "there are no weights without model.from");
  run->model.layers = (int)pst_settings_int(s, "model.layers");
  run->model.width = (int)pst_settings_int(s, "model.width");
  run->model.heads = (int)pst_settings_int(s, "model.heads");
  run->model.kv_heads = (int)pst_settings_int(s, "model.kv_heads");
  run->model.hidden = (int)pst_settings_int(s, "model.hidden");
  run->model.vocab = (int)pst_settings_int(s, "model.vocab");
  run->model.dropout = pst_settings_float(s, "model.dropout");
  run->model.tied = pst_settings_text(s, "model.tied") ? pst_settings_bool(s, "model.tied") : -1;
  run->init_std = pst_settings_float(s, "init.std");
  int heads = run->model.heads, kv_heads = run->model.kv_heads, width = run->model.width;
  if (heads && width && width % heads)
    return pst_settings_fail(s, "model.heads", PST_INVALID, "wanted a divisor of model.width = %d (%s)",
                             width, pst_settings_origin(s, "model.width"));
  if (heads && kv_heads && heads % kv_heads)
    return pst_settings_fail(s, "model.kv_heads", PST_INVALID, "wanted a divisor of model.heads = %d (%s)",
                             heads, pst_settings_origin(s, "model.heads"));
  if (!kv_heads) run->model.kv_heads = heads;
  return PST_OK;
}

static pst_status load_data(pst_settings *s, pst_runfile *run) {
  PST_TRY(require(s, "data.train", "wanted a token file, .txt or .jsonl"));
  int sequence = (int)pst_settings_int(s, "data.sequence"),
      context = (int)pst_settings_int(s, "model.context");
  run->data.sequence = sequence ? sequence : context ? context : 128;
  run->model.context = context ? context : run->model.from ? 0 : run->data.sequence;
  if (context && run->data.sequence > context)
    return pst_settings_fail(s, "data.sequence", PST_INVALID, "longer than model.context = %d (%s)", context,
                             pst_settings_origin(s, "model.context"));
  run->data.split = pst_settings_float(s, "data.split");
  run->data.format = (pst_run_format)pst_settings_word(s, "data.format");
  run->data.eot = pst_settings_text(s, "data.eot") ? pst_settings_int(s, "data.eot") : -1;
  if (run->model.vocab && run->data.eot >= run->model.vocab)
    return pst_settings_fail(s, "data.eot", PST_INVALID, "wanted a token below model.vocab = %d (%s)",
                             run->model.vocab, pst_settings_origin(s, "model.vocab"));
  return PST_OK;
}

static pst_status load_optimizer(pst_settings *s, pst_runfile *run) {
  run->optimizer.name = (pst_run_optimizer)pst_settings_word(s, "optimizer.name");
  run->optimizer.peak = pst_settings_float(s, "optimizer.lr.peak");
  bool has_final = pst_settings_text(s, "optimizer.lr.final") != NULL;
  run->optimizer.final = has_final ? pst_settings_float(s, "optimizer.lr.final") : run->optimizer.peak / 10;
  run->optimizer.decay = (pst_run_decay)pst_settings_word(s, "optimizer.lr.decay");
  run->optimizer.warmup = pst_settings_int(s, "optimizer.lr.warmup");
  run->optimizer.decay_steps = pst_settings_int(s, "optimizer.lr.steps");
  if (!run->optimizer.decay_steps) run->optimizer.decay_steps = run->steps;
  size_t n = pst_settings_count(s, "optimizer.betas");
  if (n != 2) return pst_settings_fail(s, "optimizer.betas", PST_INVALID, "%zu numbers; wanted 2", n);
  run->optimizer.betas[0] = pst_settings_float(s, "optimizer.betas.0");
  run->optimizer.betas[1] = pst_settings_float(s, "optimizer.betas.1");
  run->optimizer.eps = pst_settings_float(s, "optimizer.eps");
  run->optimizer.momentum = pst_settings_float(s, "optimizer.momentum");
  run->optimizer.weight_decay = pst_settings_float(s, "optimizer.weight_decay");
  run->optimizer.clip = pst_settings_float(s, "optimizer.clip");
  return PST_OK;
}

static pst_status load_stage(pst_settings *s, pst_runfile *run, size_t i) {
  pst_run_stage *stage = &run->stages[i];
  PST_TRY(copy_text(run, pst_settings_string(s, "stages.%zu.host", i), &stage->host));
  const char *device = pst_settings_string(s, "stages.%zu.device", i);
  stage->device.numa = -1;
  if (device && pst_run_device_parse(device, &stage->device) != PST_OK) {
    char path[64], message[256];
    snprintf(path, sizeof path, "stages.%zu.device", i);
    snprintf(message, sizeof message, "%s", pst_error());
    return pst_settings_fail(s, path, PST_INVALID, "%s", message);
  }
  bool split = pst_settings_text(s, "stages.%zu.layers", i) != NULL;
  int recompute = pst_settings_word(s, "stages.%zu.recompute", i);
  int offload = pst_settings_word(s, "stages.%zu.offload", i);
  int threads = (int)pst_settings_int(s, "stages.%zu.threads", i);
  stage->layers = split ? (int)pst_settings_int(s, "stages.%zu.layers", i) : -1;
  stage->recompute = recompute >= 0 ? (pst_run_recompute)recompute : run->recompute;
  stage->offload = offload >= 0 ? (pst_run_offload)offload : run->offload;
  stage->threads = threads ? threads : run->threads;
  return PST_OK;
}

static pst_status load_stages(pst_settings *s, pst_runfile *run) {
  run->recompute = (pst_run_recompute)pst_settings_word(s, "recompute");
  run->offload = (pst_run_offload)pst_settings_word(s, "offload");
  run->threads = (int)pst_settings_int(s, "threads");
  size_t n = pst_settings_count(s, "stages");
  run->stages = calloc(n ? n : 1, sizeof *run->stages);
  if (!run->stages) return pst_fail(PST_NO_MEMORY, "stages: no memory for %zu of them", n);
  run->n_stages = n;
  for (size_t i = 0; i < n; i++) PST_TRY(load_stage(s, run, i));
  PST_TRY(check_overlap(s, run));
  return pst_runfile_check_split(s, run, run->model.layers);
}

pst_status pst_runfile_check_split(pst_settings *s, const pst_runfile *run, int n_layers) {
  int64_t total = 0;
  size_t n_given = 0, n = run->n_stages, missing = 0;
  char list[160] = "";
  size_t used = 0;
  for (size_t i = 0; i < n; i++) {
    int layers = run->stages[i].layers;
    if (layers < 0) {
      missing = i;
      continue;
    }
    n_given++;
    total += layers;
    if (used < sizeof list)
      used += (size_t)snprintf(list + used, sizeof list - used, "%s%d", used ? " + " : "", layers);
    if (layers == 0 && i > 0 && i + 1 < n) {
      char path[64];
      snprintf(path, sizeof path, "stages.%zu.layers", i);
      return pst_settings_fail(s, path, PST_INVALID, "0 is for the first and the last stage only, of %zu", n);
    }
  }
  if (n_given == 0) return PST_OK;
  if (n_given < n)
    return pst_settings_fail(s, "stages", PST_INVALID,
                             "stages.%zu has no layers; wanted on every stage or on none", missing);
  if (n_layers > 0 && total != n_layers) {
    if (n > 1 && used < sizeof list) snprintf(list + used, sizeof list - used, " = %lld", (long long)total);
    if (n > 1 && used >= sizeof list) snprintf(list, sizeof list, "%lld", (long long)total);
    return pst_settings_fail(s, "stages", PST_INVALID, "layers add up to %s; wanted model.layers = %d (%s)",
                             list, n_layers, pst_settings_origin(s, "model.layers"));
  }
  return PST_OK;
}

static void load_rest(pst_settings *s, pst_runfile *run) {
  run->seed = pst_settings_int(s, "seed");
  run->schedule.chunks = (int)pst_settings_int(s, "schedule.chunks");
  bool automatic = pst_settings_word(s, "schedule.extra_forwards") >= 0;
  run->schedule.extra_forwards = automatic ? -1 : (int)pst_settings_int(s, "schedule.extra_forwards");
  run->precision = (pst_run_precision)pst_settings_word(s, "precision");
  run->backward = (pst_run_backward)pst_settings_word(s, "backward");
  run->eval.every = pst_settings_int(s, "eval.every");
  run->eval.sequences = pst_settings_int(s, "eval.sequences");
  run->sample.every = pst_settings_int(s, "sample.every");
  run->sample.tokens = (int)pst_settings_int(s, "sample.tokens");
  run->sample.temperature = pst_settings_float(s, "sample.temperature");
  run->checkpoint.every = pst_settings_int(s, "checkpoint.every");
  run->checkpoint.keep = (int)pst_settings_int(s, "checkpoint.keep");
  run->checkpoint.shared = pst_settings_bool(s, "checkpoint.shared");
  run->log_every = pst_settings_int(s, "log.every");
  run->limits.peer_ns = pst_settings_time_ns(s, "limits.peer");
  run->limits.op_ns = pst_settings_time_ns(s, "limits.op");
  run->limits.memory_bytes = pst_settings_size_bytes(s, "limits.memory");
  run->bitwise = (pst_run_bitwise)pst_settings_word(s, "bitwise");
  run->cpu.isa = (pst_run_isa)pst_settings_word(s, "cpu.isa");
  run->cpu.gemm = (pst_run_gemm)pst_settings_word(s, "cpu.gemm");
}

pst_status pst_runfile_load(pst_settings *s, pst_runfile *out_run) {
  pst_runfile run = {.name = NULL};
  pst_status st = PST_OK;
  PST_GOTO(st, check_not_yet(s), fail);
  PST_GOTO(st, require(s, "steps", "wanted the optimizer steps of the whole run"), fail);
  run.steps = pst_settings_int(s, "steps");
  PST_GOTO(st, load_texts(s, &run), fail);
  load_rest(s, &run);
  PST_GOTO(st, load_model(s, &run), fail);
  PST_GOTO(st, load_data(s, &run), fail);
  PST_GOTO(st, load_batch(s, &run), fail);
  PST_GOTO(st, load_stages(s, &run), fail);
  PST_GOTO(st, load_optimizer(s, &run), fail);
  PST_GOTO(st, pst_settings_misuse(s), fail);
  *out_run = run;
  return PST_OK;
fail:
  pst_runfile_free(&run);
  return st;
}

void pst_runfile_free(pst_runfile *run) {
  if (!run) return;
  for (size_t i = 0; i < run->n_texts; i++) free(run->texts[i]);
  free(run->texts);
  free(run->stages);
  *run = (pst_runfile){.name = NULL};
}
