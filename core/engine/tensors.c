#include "core/engine/internal.h"

#include "core/base/rng.h"
#include "core/graph/ir.h"

#include <stdlib.h>
#include <string.h>

/* Parameters, gradients and moments: read, written, and their first values. */

enum { CHUNK_ELEMENTS = 1 << 18 };

typedef struct tensor_job {
  pst_tensor_kind kind;
  int32_t param;
  int moment;
  int64_t offset, bytes;
  void *to;
  const void *from;
  int owner; /* stage */
} tensor_job;

static const pst_stage_param *param_of(const pst__chunk *c, int32_t param) {
  const pst_stage_code *code = pst__main_pass(c->worker->p)->stages[c->stage].code;
  for (int32_t i = 0; i < code->n_params; i++)
    if (code->params[i].param == param) return &code->params[i];
  return NULL;
}

static const pst_operand *operand_of(const pst__chunk *c, const tensor_job *job) {
  const pst_stage_param *p = param_of(c, job->param);
  if (!p) return NULL;
  if (job->kind == PST_TENSOR_PARAM) return &p->value;
  if (!p->owner || !c->update) return NULL;
  if (job->kind == PST_TENSOR_GRADIENT) return &p->gradient[0];
  const pst_stage_param *all = c->worker->p->train.stages[c->stage].code->params;
  for (int32_t i = 0; i < c->update->n_params; i++) {
    const pst_update_param *u = &c->update->params[i];
    if (all[u->stage_param].param == job->param && job->moment >= 0 && job->moment < u->n_moments)
      return &u->moments[job->moment];
  }
  return NULL;
}

static pst_status transfer_one(const pst__chunk *c, const tensor_job *job) {
  const pst_operand *o = operand_of(c, job);
  if (!o) return PST_OK; /* this stage does not hold it */
  pst_buffer *b = c->segment[o->segment].blocks[o->block];
  if (job->to) return c->device->table->download(c->device, job->to, b, o->offset + job->offset, job->bytes);
  return c->device->table->upload(c->device, b, o->offset + job->offset, job->from, job->bytes);
}

/* Reading goes to the owning stage alone; a written value goes to every stage that has a copy. */
static pst_status transfer(pst__worker *w, void *arg) {
  const tensor_job *job = arg;
  for (pst__chunk *c = pst__next_chunk(w, NULL); c; c = pst__next_chunk(w, c))
    if (!job->to || c->stage == job->owner) PST_TRY(transfer_one(c, job));
  return PST_OK;
}

int pst_pipeline_owner(const pst_pipeline *p, int32_t param) {
  for (int i = 0; i < p->n; i++) {
    const pst_stage_param *sp = param_of(&p->chunks[i], param);
    if (sp && sp->owner) return i;
  }
  return -1;
}

static pst_status check_range(pst_pipeline *p, tensor_job *job) {
  const pst_graph *g = pst__main_pass(p)->graph;
  int owner = job->param >= 0 && job->param < g->params.n ? pst_pipeline_owner(p, job->param) : -1;
  const pst_operand *o = owner < 0 ? NULL : operand_of(&p->chunks[owner], job);
  if (!o)
    return pst_fail(PST_INVALID, "parameter %d has no such tensor here (moment %d)", job->param, job->moment);
  if (job->offset < 0 || job->bytes < 0 || job->offset > pst__operand_bytes(o) - job->bytes)
    return pst_fail(PST_INVALID, "%s: %lld bytes from byte %lld on, of %lld", g->params.at[job->param].name,
                    (long long)job->bytes, (long long)job->offset, (long long)pst__operand_bytes(o));
  job->owner = owner;
  return PST_OK;
}

pst_status pst_pipeline_read(pst_pipeline *p, pst_tensor_kind kind, int32_t param, int moment, int64_t offset,
                             void *to, int64_t bytes) {
  tensor_job job = {
      .kind = kind, .param = param, .moment = moment, .offset = offset, .bytes = bytes, .to = to};
  PST_TRY(check_range(p, &job));
  return pst__run_job(p, p->worker_of[job.owner], transfer, &job, sizeof job);
}

pst_status pst_pipeline_write(pst_pipeline *p, pst_tensor_kind kind, int32_t param, int moment,
                              int64_t offset, const void *from, int64_t bytes) {
  tensor_job job = {
      .kind = kind, .param = param, .moment = moment, .offset = offset, .bytes = bytes, .from = from};
  PST_TRY(check_range(p, &job));
  return pst__run_job(p, kind == PST_TENSOR_PARAM ? -1 : p->worker_of[job.owner], transfer, &job, sizeof job);
}

int pst_pipeline_moments(const pst_pipeline *p, const char *out_names[PST_MAX_MOMENTS]) {
  for (int i = 0; i < p->n; i++) {
    const pst_update_code *u = p->chunks[i].update;
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

static pst_status upload_values(const pst__chunk *w, const pst_operand *o, int64_t first, int64_t n,
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
static const pst_operand *master_of(const pst__chunk *w, int32_t param) {
  for (int m = 0; w->update && m < PST_MAX_MOMENTS; m++) {
    const pst_stage_param *all = w->worker->p->train.stages[w->stage].code->params;
    for (int32_t i = 0; i < w->update->n_params; i++) {
      const pst_update_param *u = &w->update->params[i];
      if (all[u->stage_param].param == param && m < u->n_moments && strcmp(u->names[m], "master") == 0)
        return &u->moments[m];
    }
  }
  return NULL;
}

static pst_status init_param(const pst__chunk *c, const pst_stage_param *p, uint64_t seed, float *x,
                             uint16_t *half) {
  const pst_graph *g = pst__main_pass(c->worker->p)->graph;
  const pst_operand *master = master_of(c, p->param);
  int64_t n = pst_operand_elements(&p->value);
  for (int64_t first = 0; first < n; first += CHUNK_ELEMENTS) {
    int64_t some = n - first < CHUNK_ELEMENTS ? n - first : CHUNK_ELEMENTS;
    draw(&g->params.at[p->param], seed, first, some, x);
    PST_TRY(upload_values(c, &p->value, first, some, x, half));
    if (master) PST_TRY(upload_values(c, master, first, some, x, half));
    atomic_fetch_add_explicit(&c->worker->heartbeat, 1, memory_order_relaxed);
  }
  return PST_OK;
}

static pst_status init_job(pst__worker *w, void *arg) {
  uint64_t seed = *(const uint64_t *)arg;
  pst_status st = PST_OK;
  float *x = malloc(CHUNK_ELEMENTS * sizeof *x);
  uint16_t *half = malloc(CHUNK_ELEMENTS * sizeof *half);
  if (!x || !half) st = pst_fail(PST_NO_MEMORY, "no memory to draw first weights");
  for (pst__chunk *c = pst__next_chunk(w, NULL); st == PST_OK && c; c = pst__next_chunk(w, c)) {
    const pst_stage_code *code = pst__main_pass(w->p)->stages[c->stage].code;
    for (int32_t i = 0; st == PST_OK && i < code->n_params; i++)
      st = init_param(c, &code->params[i], seed, x, half);
  }
  free(x);
  free(half);
  return st;
}

pst_status pst_pipeline_init(pst_pipeline *p, uint64_t seed) {
  return pst__run_job(p, -1, init_job, &seed, sizeof seed);
}
