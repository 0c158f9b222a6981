#include "core/engine/internal.h"

#include "core/base/clock.h"
#include "core/base/rng.h"
#include "core/graph/ir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_OP_LIMIT_S = 60, GIVE_UP_S = 10, CHUNK_ELEMENTS = 1 << 18 };

static const pst__pass *main_pass(const pst_pipeline *p) {
  return p->train.graph ? &p->train : p->loss.graph ? &p->loss : &p->logits;
}

/* ---- jobs ---- */

static void *worker_main(void *arg) {
  pst__worker *w = arg;
  pst_pipeline *p = w->p;
  for (;;) {
    uint32_t seen = pst_event_now(&w->wake);
    if (w->ending) return NULL;
    if (!w->job) {
      pst_event_wait(&w->wake, seen, 0, 1000000000);
      continue;
    }
    w->job_status = w->job(w, w->job_arg);
    if (w->job_status != PST_OK) {
      snprintf(w->job_error, sizeof w->job_error, "%s", pst_error());
      p->options.transport->table->abort(p->options.transport, w->job_status, w->job_error);
    }
    w->job = NULL;
    if (atomic_fetch_sub(&p->n_busy, 1) == 1) pst_event_signal(&p->done);
  }
}

static uint64_t heartbeats(const pst_pipeline *p) {
  uint64_t sum = 0;
  for (int i = 0; i < p->n; i++) sum += atomic_load_explicit(&p->workers[i].heartbeat, memory_order_relaxed);
  return sum;
}

/* Names the workers that are inside an action, for the message of a hang. */
static void name_doing(const pst_pipeline *p, char *text, size_t bytes) {
  size_t n = 0;
  for (int i = 0; i < p->n && n < bytes; i++) {
    uint64_t d = atomic_load_explicit(&p->workers[i].doing, memory_order_relaxed);
    pst_action a = {.kind = (uint16_t)(d >> 48), .chunk = (uint16_t)(d >> 32), .microbatch = (uint32_t)d};
    char action[PST_ACTION_TEXT];
    int wrote =
        snprintf(text + n, bytes - n, "%sworker %d at %s", i ? ", " : "", i, pst_action_format(a, action));
    n += wrote > 0 ? (size_t)wrote : 0;
  }
}

/* Waits for the job's end. A job in which no action ends for the op limit is given up. */
static void wait_done(pst_pipeline *p) {
  int64_t limit =
      p->options.op_limit_ns > 0 ? p->options.op_limit_ns : (int64_t)DEFAULT_OP_LIMIT_S * 1000000000;
  int64_t last = pst_clock_ns(), aborted = 0;
  uint64_t beats = heartbeats(p);
  for (;;) {
    uint32_t seen = pst_event_now(&p->done);
    if (atomic_load(&p->n_busy) == 0) return;
    pst_event_wait(&p->done, seen, 0, 100000000);
    int64_t now = pst_clock_ns();
    uint64_t beat = heartbeats(p);
    if (beat != beats) {
      beats = beat;
      last = now;
    } else if (aborted && now - aborted > (int64_t)GIVE_UP_S * 1000000000) {
      return; /* a thread that cannot be ended: the pipeline is dead, its memory is not given back */
    } else if (!aborted && now - last > limit) {
      char doing[512], text[640];
      name_doing(p, doing, sizeof doing);
      snprintf(text, sizeof text, "no action ended for %.1f s: %s", (double)limit / 1e9, doing);
      p->options.transport->table->abort(p->options.transport, PST_HUNG, text);
      aborted = now;
    }
  }
}

/* Runs `function` on worker `only`, or on all when it is -1. */
static pst_status run_job(pst_pipeline *p, int only, pst__job_function function, void *arg) {
  if (p->dead != PST_OK) return pst_fail(p->dead, "%s", p->dead_error);
  if (!p->started) return pst_fail(PST_INVALID, "the pipeline is not started");
  int n = only < 0 ? p->n : 1;
  atomic_store(&p->n_busy, n);
  for (int i = 0; i < p->n; i++) {
    if (only >= 0 && i != only) continue;
    pst__worker *w = &p->workers[i];
    w->job_status = PST_OK;
    w->job_arg = arg;
    w->job = function;
    pst_event_signal(&w->wake);
  }
  wait_done(p);
  pst_status st = p->options.transport->table->health(p->options.transport);
  if (st != PST_OK) {
    p->dead = st;
    snprintf(p->dead_error, sizeof p->dead_error, "%s", pst_error());
  }
  return st;
}

/* ---- creation ---- */

static pst_status check_options(const pst_pipeline_options *o) {
  if (!o->train && !o->loss && !o->logits) return pst_fail(PST_INVALID, "a pipeline without a graph");
  if (o->n_stages < 1 || o->microbatches < 1)
    return pst_fail(PST_INVALID, "a pipeline of %d stages with %lld microbatches: wanted at least 1 of each",
                    o->n_stages, (long long)o->microbatches);
  return PST_OK;
}

static pst_status open_ties(pst_pipeline *p) {
  pst_transport *t = p->options.transport;
  int32_t room = 0;
  for (int s = 0; s < p->n; s++)
    for (int32_t i = 0; i < p->train.stages[s].code->n_params; i++)
      room += p->train.stages[s].code->params[i].n_uses;
  p->ties = calloc((size_t)room + 1, sizeof *p->ties);
  if (!p->ties) return pst_fail(PST_NO_MEMORY, "no memory for tied parameters");
  for (int s = 0; s < p->n; s++) {
    const pst_stage_code *code = p->train.stages[s].code;
    for (int32_t i = 0; i < code->n_params; i++) {
      const pst_stage_param *sp = &code->params[i];
      for (int32_t u = 1; sp->owner && u < sp->n_uses; u++) {
        if (sp->use_stage[u] == s) continue;
        pst__tie *tie = &p->ties[p->n_ties];
        *tie = (pst__tie){.param = sp->param, .use = u, .owner = s, .user = sp->use_stage[u]};
        pst_channel_options o = {.from = tie->user, .to = s, .n_tags = 1, .name = "tied gradient"};
        PST_TRY(t->table->open(t, &o, &tie->gradient));
        bool known = p->n_ties > 0 && tie[-1].param == tie->param && tie[-1].user == tie->user;
        o = (pst_channel_options){.from = s, .to = tie->user, .n_tags = 1, .name = "tied value"};
        if (!known) PST_TRY(t->table->open(t, &o, &tie->value));
        p->n_ties++;
      }
    }
  }
  return PST_OK;
}

static pst_status open_sums(pst_pipeline *p) {
  pst_transport *t = p->options.transport;
  p->sums = calloc((size_t)p->n, sizeof *p->sums);
  p->verdicts = calloc((size_t)p->n, sizeof *p->verdicts);
  if (!p->sums || !p->verdicts) return pst_fail(PST_NO_MEMORY, "no memory for the norm's channels");
  for (int w = 1; w < p->n; w++) {
    pst_channel_options o = {.from = w, .to = 0, .n_tags = 1, .name = "sums"};
    PST_TRY(t->table->open(t, &o, &p->sums[w]));
    o = (pst_channel_options){.from = 0, .to = w, .n_tags = 1, .name = "norm"};
    PST_TRY(t->table->open(t, &o, &p->verdicts[w]));
  }
  int32_t n = p->train.graph->params.n;
  for (int i = 0; i < p->n; i++) {
    pst__worker *w = &p->workers[i];
    int64_t most = 1;
    for (int32_t u = 0; u < w->update->n_params; u++)
      if (pst_operand_elements(&w->update->params[u].sums) > most)
        most = pst_operand_elements(&w->update->params[u].sums);
    w->sums = calloc((size_t)n + 1, sizeof *w->sums);
    w->sums_received = calloc((size_t)n + 1, sizeof *w->sums_received);
    w->blocks = calloc((size_t)most, sizeof *w->blocks);
    if (!w->sums || !w->sums_received || !w->blocks)
      return pst_fail(PST_NO_MEMORY, "no memory for the norm of %d parameters", n);
  }
  return PST_OK;
}

/* Every pass finds the parameters where the first one put them. */
static pst_status check_params_agree(const pst_pipeline *p, const pst__pass *a, const pst__pass *b) {
  if (!a->graph || !b->graph || a == b) return PST_OK;
  for (int s = 0; s < p->n; s++) {
    const pst_stage_code *x = a->stages[s].code, *y = b->stages[s].code;
    bool same = x->n_params == y->n_params;
    for (int32_t i = 0; same && i < x->n_params; i++)
      same = x->params[i].param == y->params[i].param &&
             memcmp(&x->params[i].value, &y->params[i].value, sizeof(pst_operand)) == 0;
    if (!same)
      return pst_fail(PST_INVALID,
                      "stage %d: the graphs for training and evaluation do not hold the same parameters", s);
  }
  return PST_OK;
}

static pst_status build(pst_pipeline *p) {
  const pst_pipeline_options *o = &p->options;
  if (o->train) PST_TRY(pst__pass_create(p, o->train, o->microbatches, &p->train));
  if (o->loss) PST_TRY(pst__pass_create(p, o->loss, o->microbatches, &p->loss));
  if (o->logits) PST_TRY(pst__pass_create(p, o->logits, 1, &p->logits));
  PST_TRY(check_params_agree(p, main_pass(p), &p->loss));
  PST_TRY(check_params_agree(p, main_pass(p), &p->logits));
  for (int i = 0; i < p->n; i++) {
    uint16_t block;
    int64_t offset;
    PST_TRY(pst_layout_place(&p->workers[i].layout[PST_SEGMENT_CTRL], sizeof(pst_ctrl), 0, &block, &offset));
  }
  if (!o->train) return PST_OK;
  PST_TRY(open_ties(p));
  return open_sums(p);
}

pst_status pst_pipeline_create(const pst_pipeline_options *options, pst_pipeline **out_pipeline) {
  PST_TRY(check_options(options));
  pst_status st = PST_OK;
  pst_pipeline *p = calloc(1, sizeof *p);
  if (!p) return pst_fail(PST_NO_MEMORY, "no memory for a pipeline");
  p->options = *options;
  p->n = options->n_stages;
  p->cut = malloc((size_t)(p->n + 1) * sizeof *p->cut);
  p->workers = calloc((size_t)p->n, sizeof *p->workers);
  if (!p->cut || !p->workers) {
    st = pst_fail(PST_NO_MEMORY, "no memory for %d stages", p->n);
    goto done;
  }
  memcpy(p->cut, options->cut, (size_t)(p->n + 1) * sizeof *p->cut);
  for (int i = 0; i < p->n; i++) {
    p->workers[i].p = p;
    p->workers[i].index = i;
    p->workers[i].device = options->devices[i];
  }
  PST_GOTO(st, build(p), done);
  *out_pipeline = p;
  p = NULL;
done:
  pst_pipeline_destroy(p);
  return st;
}

void pst_pipeline_memory(const pst_pipeline *p, int stage, pst_stage_memory *out) {
  const pst__worker *w = &p->workers[stage];
  *out = (pst_stage_memory){0};
  for (int s = 0; s < PST_SEGMENT_COUNT; s++) {
    out->bytes[s] = w->layout[s].bytes;
    out->copies[s] = w->layout[s].bytes > 0;
  }
  const pst__pass *passes[] = {&p->train, &p->loss, &p->logits};
  for (int i = 0; i < 3; i++) {
    if (!passes[i]->graph) continue;
    const pst__stage *st = &passes[i]->stages[stage];
    const int64_t copies[PST_SEGMENT_COUNT] = {
        [PST_SEGMENT_STASH] = st->buffers.stash,           [PST_SEGMENT_DEFER] = st->buffers.defer,
        [PST_SEGMENT_OUT] = st->buffers.out_activation,    [PST_SEGMENT_GRAD_IN] = st->buffers.gradient,
        [PST_SEGMENT_GRAD_OUT] = st->buffers.out_gradient, [PST_SEGMENT_INPUT] = passes[i]->microbatches,
        [PST_SEGMENT_LOSS] = passes[i]->microbatches};
    for (int s = 0; s < PST_SEGMENT_COUNT; s++) {
      out->bytes[s] += copies[s] * st->code->layout[s].bytes * (copies[s] > 0);
      if (copies[s] > out->copies[s]) out->copies[s] = copies[s];
    }
  }
  for (int s = 0; s < PST_SEGMENT_COUNT; s++) out->total_bytes += out->bytes[s];
}

/* ---- start and end ---- */

static pst_status out_of_memory(const pst_pipeline *p, int64_t need, int64_t have, int heaviest, bool host) {
  pst_stage_memory m;
  pst_pipeline_memory(p, heaviest, &m);
  int most = PST_SEGMENT_PARAM;
  for (int s = 0; s < PST_SEGMENT_COUNT; s++)
    if (m.bytes[s] > m.bytes[most]) most = s;
  return pst_fail(PST_NO_MEMORY,
                  "memory: the plan needs %.1f MiB%s, %.1f MiB are to be had; stage %d is the heaviest with "
                  "%.1f MiB, of that %.1f MiB %s. A "
                  "smaller batch.micro, the 1f1b schedule or another split of the layers would help",
                  (double)need / 1048576.0, host ? " for all stages on the host" : "",
                  (double)have / 1048576.0, heaviest, (double)m.total_bytes / 1048576.0,
                  (double)m.bytes[most] / 1048576.0, pst_segment_name((pst_segment_kind)most));
}

/* Stages in host memory share it. */
static pst_status check_memory(const pst_pipeline *p) {
  int64_t host_need = 0, host_have = 0, heaviest_bytes = -1;
  int heaviest = 0;
  for (int i = 0; i < p->n; i++) {
    pst_device_info info;
    pst_stage_memory m;
    p->workers[i].device->table->query(p->workers[i].device, &info);
    pst_pipeline_memory(p, i, &m);
    int64_t have = p->options.memory_limit_bytes > 0 ? p->options.memory_limit_bytes : info.memory_bytes;
    if (info.memory_kind != PST_MEMORY_HOST) {
      if (have > 0 && m.total_bytes > have) return out_of_memory(p, m.total_bytes, have, i, false);
      continue;
    }
    host_need += m.total_bytes;
    host_have = have;
    if (m.total_bytes > heaviest_bytes) heaviest_bytes = m.total_bytes, heaviest = i;
  }
  return host_have > 0 && host_need > host_have ? out_of_memory(p, host_need, host_have, heaviest, true)
                                                : PST_OK;
}

static pst_status allocate_job(pst__worker *w) {
  for (int s = 0; s < PST_SEGMENT_COUNT; s++)
    if (w->layout[s].bytes > 0) PST_TRY(pst__segment_allocate(w->device, &w->layout[s], &w->segment[s]));
  return PST_OK;
}

pst_status pst_pipeline_start(pst_pipeline *p) {
  if (p->started) return pst_fail(PST_INVALID, "the pipeline is started already");
  PST_TRY(check_memory(p));
  for (int i = 0; i < p->n; i++) PST_TRY(allocate_job(&p->workers[i]));
  PST_TRY(pst__pass_allocate(p, &p->train));
  PST_TRY(pst__pass_allocate(p, &p->loss));
  PST_TRY(pst__pass_allocate(p, &p->logits));
  for (int i = 0; i < p->n; i++) {
    pst__worker *w = &p->workers[i];
    int err = pthread_create(&w->thread, NULL, worker_main, w);
    if (err) return pst_fail(PST_NO_MEMORY, "worker %d of %d: no thread: %s", i, p->n, strerror(err));
    w->started = true;
    char name[16];
    snprintf(name, sizeof name, "pst-worker-%d", i % 10000);
#ifdef __linux__
    pthread_setname_np(w->thread, name);
#endif
  }
  p->started = true;
  return PST_OK;
}

bool pst_pipeline_lost(const pst_pipeline *p) {
  return p && p->started && atomic_load(&p->n_busy) > 0;
}

void pst_pipeline_destroy(pst_pipeline *p) {
  if (!p || pst_pipeline_lost(p)) return;
  for (int i = 0; p->workers && i < p->n; i++) {
    pst__worker *w = &p->workers[i];
    if (!w->started) continue;
    w->ending = true;
    pst_event_signal(&w->wake);
    pthread_join(w->thread, NULL);
  }
  if (p->workers) {
    pst__pass_destroy(p, &p->train);
    pst__pass_destroy(p, &p->loss);
    pst__pass_destroy(p, &p->logits);
  }
  for (int i = 0; p->workers && i < p->n; i++) {
    pst__worker *w = &p->workers[i];
    for (int s = 0; s < PST_SEGMENT_COUNT; s++) {
      if (w->segment[s].blocks) pst__segment_free(w->device, &w->segment[s]);
      free(w->layout[s].block_bytes);
    }
    pst_update_code_destroy(w->update);
    free(w->sums);
    free(w->sums_received);
    free(w->blocks);
  }
  free(p->workers);
  free(p->cut);
  free(p->ties);
  free(p->sums);
  free(p->verdicts);
  free(p);
}

/* ---- tensors ---- */

typedef struct tensor_job {
  pst_tensor_kind kind;
  int32_t param;
  int moment;
  int64_t offset, bytes;
  void *to;
  const void *from;
} tensor_job;

static const pst_stage_param *param_of(const pst__worker *w, int32_t param) {
  const pst_stage_code *code = main_pass(w->p)->stages[w->index].code;
  for (int32_t i = 0; i < code->n_params; i++)
    if (code->params[i].param == param) return &code->params[i];
  return NULL;
}

static const pst_operand *operand_of(pst__worker *w, const tensor_job *job) {
  const pst_stage_param *p = param_of(w, job->param);
  if (!p) return NULL;
  if (job->kind == PST_TENSOR_PARAM) return &p->value;
  if (!p->owner || !w->update) return NULL;
  if (job->kind == PST_TENSOR_GRADIENT) return &p->gradient[0];
  const pst_stage_param *all = w->p->train.stages[w->index].code->params;
  for (int32_t i = 0; i < w->update->n_params; i++) {
    const pst_update_param *u = &w->update->params[i];
    if (all[u->stage_param].param == job->param && job->moment >= 0 && job->moment < u->n_moments)
      return &u->moments[job->moment];
  }
  return NULL;
}

static pst_status transfer(pst__worker *w, void *arg) {
  const tensor_job *job = arg;
  const pst_operand *o = operand_of(w, job);
  if (!o) return PST_OK; /* this worker does not hold it */
  pst_buffer *b = w->segment[o->segment].blocks[o->block];
  if (job->to) return w->device->table->download(w->device, job->to, b, o->offset + job->offset, job->bytes);
  return w->device->table->upload(w->device, b, o->offset + job->offset, job->from, job->bytes);
}

int pst_pipeline_owner(const pst_pipeline *p, int32_t param) {
  for (int i = 0; i < p->n; i++) {
    const pst_stage_param *sp = param_of(&p->workers[i], param);
    if (sp && sp->owner) return i;
  }
  return -1;
}

static pst_status check_range(pst_pipeline *p, const tensor_job *job, int *out_owner) {
  const pst_graph *g = main_pass(p)->graph;
  int owner = job->param >= 0 && job->param < g->params.n ? pst_pipeline_owner(p, job->param) : -1;
  const pst_operand *o = owner < 0 ? NULL : operand_of(&p->workers[owner], job);
  if (!o)
    return pst_fail(PST_INVALID, "parameter %d has no such tensor here (moment %d)", job->param, job->moment);
  if (job->offset < 0 || job->bytes < 0 || job->offset > pst__operand_bytes(o) - job->bytes)
    return pst_fail(PST_INVALID, "%s: bytes %lld to %lld of %lld", g->params.at[job->param].name,
                    (long long)job->offset, (long long)(job->offset + job->bytes),
                    (long long)pst__operand_bytes(o));
  *out_owner = owner;
  return PST_OK;
}

pst_status pst_pipeline_read(pst_pipeline *p, pst_tensor_kind kind, int32_t param, int moment, int64_t offset,
                             void *to, int64_t bytes) {
  tensor_job job = {
      .kind = kind, .param = param, .moment = moment, .offset = offset, .bytes = bytes, .to = to};
  int owner = -1;
  PST_TRY(check_range(p, &job, &owner));
  return run_job(p, owner, transfer, &job);
}

pst_status pst_pipeline_write(pst_pipeline *p, pst_tensor_kind kind, int32_t param, int moment,
                              int64_t offset, const void *from, int64_t bytes) {
  tensor_job job = {
      .kind = kind, .param = param, .moment = moment, .offset = offset, .bytes = bytes, .from = from};
  int owner = -1;
  PST_TRY(check_range(p, &job, &owner));
  return run_job(p, kind == PST_TENSOR_PARAM ? -1 : owner, transfer, &job);
}

int pst_pipeline_moments(const pst_pipeline *p, const char *out_names[PST_MAX_MOMENTS]) {
  for (int i = 0; i < p->n; i++) {
    const pst_update_code *u = p->workers[i].update;
    if (!u || u->n_params == 0) continue;
    for (int m = 0; m < u->params[0].n_moments; m++) out_names[m] = u->params[0].names[m];
    return u->params[0].n_moments;
  }
  return 0;
}

/* ---- first values ---- */

static void draw(const pst_param_info *info, uint64_t seed, int64_t first, int64_t n, float *x) {
  if (info->init.kind == PST_INIT_NORMAL) {
    pst_rng_normal(pst_rng_key_make(seed, pst_rng_hash_text(info->name)), first, n, 0.0f, info->init.std, x);
    return;
  }
  float value = info->init.kind == PST_INIT_ONES ? 1.0f : 0.0f;
  for (int64_t i = 0; i < n; i++) x[i] = value;
}

static pst_status upload_values(pst__worker *w, const pst_operand *o, int64_t first, int64_t n,
                                const float *x, uint16_t *half) {
  const void *from = x;
  if (o->dtype == PST_BF16) {
    for (int64_t i = 0; i < n; i++) half[i] = pst_f32_to_bf16(x[i]);
    from = half;
  }
  int64_t size = (int64_t)pst_dtype_size((pst_dtype)o->dtype);
  return w->device->table->upload(w->device, w->segment[o->segment].blocks[o->block],
                                  o->offset + first * size, from, n * size);
}

/* The fp32 master, where there is one, starts as the value before rounding. */
static const pst_operand *master_of(const pst__worker *w, int32_t param) {
  for (int m = 0; w->update && m < PST_MAX_MOMENTS; m++) {
    const pst_stage_param *all = w->p->train.stages[w->index].code->params;
    for (int32_t i = 0; i < w->update->n_params; i++) {
      const pst_update_param *u = &w->update->params[i];
      if (all[u->stage_param].param == param && m < u->n_moments && strcmp(u->names[m], "master") == 0)
        return &u->moments[m];
    }
  }
  return NULL;
}

static pst_status init_job(pst__worker *w, void *arg) {
  uint64_t seed = *(const uint64_t *)arg;
  const pst__pass *pass = main_pass(w->p);
  const pst_stage_code *code = pass->stages[w->index].code;
  pst_status st = PST_OK;
  float *x = malloc(CHUNK_ELEMENTS * sizeof *x);
  uint16_t *half = malloc(CHUNK_ELEMENTS * sizeof *half);
  if (!x || !half) st = pst_fail(PST_NO_MEMORY, "no memory to draw first weights");
  for (int32_t i = 0; st == PST_OK && i < code->n_params; i++) {
    const pst_stage_param *p = &code->params[i];
    const pst_operand *master = master_of(w, p->param);
    int64_t n = pst_operand_elements(&p->value);
    for (int64_t first = 0; st == PST_OK && first < n; first += CHUNK_ELEMENTS) {
      int64_t some = n - first < CHUNK_ELEMENTS ? n - first : CHUNK_ELEMENTS;
      draw(&pass->graph->params.at[p->param], seed, first, some, x);
      st = upload_values(w, &p->value, first, some, x, half);
      if (st == PST_OK && master) st = upload_values(w, master, first, some, x, half);
      atomic_fetch_add_explicit(&w->heartbeat, 1, memory_order_relaxed);
    }
  }
  free(x);
  free(half);
  return st;
}

pst_status pst_pipeline_init(pst_pipeline *p, uint64_t seed) {
  return run_job(p, -1, init_job, &seed);
}

/* ---- steps ---- */

static int64_t count_valid(const int32_t *targets, int64_t n) {
  int64_t valid = 0;
  for (int64_t i = 0; i < n; i++) valid += targets[i] != -1;
  return valid;
}

static pst_status check_batch(const pst__pass *pass, const pst_batch *batch, const char *what) {
  if (!pass->graph) return pst_fail(PST_INVALID, "this pipeline was not built for %s", what);
  if (batch->sequences < 1 || batch->sequences > pass->microbatches * pass->batch)
    return pst_fail(PST_INVALID, "a batch of %lld sequences for %s: wanted 1 to %lld",
                    (long long)batch->sequences, what, (long long)(pass->microbatches * pass->batch));
  return PST_OK;
}

/* In double, token by token within a sequence, sequence by sequence: the same whatever the microbatches. */
static double sum_losses(const pst__pass *pass, int64_t sequences) {
  double sum = 0;
  for (int64_t i = 0; i < sequences; i++) {
    double one = 0;
    for (int64_t t = 0; t < pass->sequence; t++) one += (double)pass->results[i * pass->sequence + t];
    sum += one;
  }
  return sum;
}

static pst_status train_step(pst_pipeline *p, const pst_batch *batch, uint64_t seed, int64_t step, double lr,
                             bool update, pst_step_result *out) {
  PST_TRY(check_batch(&p->train, batch, "training"));
  int64_t begin = pst_clock_ns(), valid = count_valid(batch->targets, batch->sequences * p->train.sequence);
  pst__step_job job = {.pass = &p->train, .batch = batch, .step = step, .lr = lr, .update = update};
  job.ctrl = (pst_ctrl){.seed = seed, .step = (uint64_t)step, .clip = 1.0f};
  job.ctrl.gradient_scale = valid > 0 ? (float)(1.0 / (double)valid) : 0.0f;
  PST_TRY(run_job(p, -1, pst__worker_step, &job));
  *out = (pst_step_result){.tokens = valid, .step_ns = pst_clock_ns() - begin};
  out->loss = valid > 0 ? sum_losses(&p->train, batch->sequences) / (double)valid : 0.0;
  out->gradient_norm = update ? p->workers[0].verdict[0] : 0.0;
  return PST_OK;
}

pst_status pst_pipeline_step(pst_pipeline *p, const pst_batch *batch, uint64_t seed, int64_t step, double lr,
                             pst_step_result *out) {
  return train_step(p, batch, seed, step, lr, true, out);
}

pst_status pst_pipeline_gradients(pst_pipeline *p, const pst_batch *batch, uint64_t seed, int64_t step,
                                  pst_step_result *out) {
  return train_step(p, batch, seed, step, 0.0, false, out);
}

pst_status pst_pipeline_apply(pst_pipeline *p, int64_t step, double lr, double *out_norm) {
  if (!p->train.graph) return pst_fail(PST_INVALID, "this pipeline was not built for training");
  pst__step_job job = {
      .pass = &p->train, .step = step, .lr = lr, .update = true, .ctrl = {.step = (uint64_t)step}};
  PST_TRY(run_job(p, -1, pst__worker_apply, &job));
  *out_norm = p->workers[0].verdict[0];
  return PST_OK;
}

pst_status pst_pipeline_loss(pst_pipeline *p, const pst_batch *batch, double *out_sum, int64_t *out_tokens,
                             float *out_losses) {
  PST_TRY(check_batch(&p->loss, batch, "evaluation"));
  pst__step_job job = {.pass = &p->loss, .batch = batch};
  PST_TRY(run_job(p, -1, pst__worker_step, &job));
  int64_t n = batch->sequences * p->loss.sequence;
  *out_sum = sum_losses(&p->loss, batch->sequences);
  *out_tokens = count_valid(batch->targets, n);
  if (out_losses) memcpy(out_losses, p->loss.results, (size_t)n * sizeof *out_losses);
  return PST_OK;
}

pst_status pst_pipeline_logits(pst_pipeline *p, const pst_batch *batch, float *out_logits) {
  PST_TRY(check_batch(&p->logits, batch, "generation"));
  pst__step_job job = {.pass = &p->logits, .batch = batch};
  PST_TRY(run_job(p, -1, pst__worker_step, &job));
  memcpy(out_logits, p->logits.results,
         (size_t)(batch->sequences * (p->logits.result_elements / p->logits.batch)) * sizeof *out_logits);
  return PST_OK;
}

/* ---- what it did ---- */

void pst_pipeline_stats(const pst_pipeline *p, int stage, pst_worker_stats *out) {
  *out = p->workers[stage].stats;
}

void pst_pipeline_stats_reset(pst_pipeline *p) {
  for (int i = 0; i < p->n; i++) p->workers[i].stats = (pst_worker_stats){0};
}

const pst_schedule *pst_pipeline_schedule(const pst_pipeline *p) {
  return p->train.schedule;
}
