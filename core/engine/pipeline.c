#include "core/engine/internal.h"

#include "core/base/clock.h"
#include "core/base/rng.h"
#include "core/graph/ir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const pst__pass *pst__main_pass(const pst_pipeline *p) {
  return p->train.graph ? &p->train : p->loss.graph ? &p->loss : &p->logits;
}

/* ---- creation ---- */

static pst_status check_options(const pst_pipeline_options *o) {
  if (!o->train && !o->loss && !o->logits) return pst_fail(PST_INVALID, "a pipeline without a graph");
  if (o->n_stages < 1 || o->microbatches < 1)
    return pst_fail(PST_INVALID, "a pipeline of %d stages with %lld microbatches: wanted at least 1 of each",
                    o->n_stages, (long long)o->microbatches);
  if (o->chunks > 0 && o->n_stages % o->chunks != 0)
    return pst_fail(PST_INVALID, "%d stages cannot be %d on each worker", o->n_stages, o->chunks);
  return PST_OK;
}

static pst_status open_tie(pst_pipeline *p, pst__tie *tie) {
  pst_transport *t = p->options.transport;
  int owner = p->worker_of[tie->owner], user = p->worker_of[tie->user];
  tie->local = owner == user;
  tie->carries_value = !(p->n_ties > 0 && tie[-1].param == tie->param && tie[-1].user == tie->user);
  if (tie->local) return PST_OK;
  pst_channel_options o = {.from = user, .to = owner, .n_tags = 1, .name = "tied gradient"};
  PST_TRY(t->table->open(t, &o, &tie->gradient));
  o = (pst_channel_options){.from = owner, .to = user, .n_tags = 1, .name = "tied value"};
  return tie->carries_value ? t->table->open(t, &o, &tie->value) : PST_OK;
}

static pst_status open_ties(pst_pipeline *p) {
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
        p->ties[p->n_ties] = (pst__tie){.param = sp->param, .use = u, .owner = s, .user = sp->use_stage[u]};
        PST_TRY(open_tie(p, &p->ties[p->n_ties]));
        p->n_ties++;
      }
    }
  }
  return PST_OK;
}

static pst_status open_sums(pst_pipeline *p) {
  pst_transport *t = p->options.transport;
  p->sums = calloc((size_t)p->n_workers, sizeof *p->sums);
  p->verdicts = calloc((size_t)p->n_workers, sizeof *p->verdicts);
  if (!p->sums || !p->verdicts) return pst_fail(PST_NO_MEMORY, "no memory for the norm's channels");
  for (int w = 1; w < p->n_workers; w++) {
    pst_channel_options o = {.from = w, .to = 0, .n_tags = 1, .name = "sums"};
    PST_TRY(t->table->open(t, &o, &p->sums[w]));
    o = (pst_channel_options){.from = 0, .to = w, .n_tags = 1, .name = "norm"};
    PST_TRY(t->table->open(t, &o, &p->verdicts[w]));
  }
  size_t n = (size_t)p->train.graph->params.n + 1;
  for (int i = 0; i < p->n_workers; i++) {
    pst__worker *w = &p->workers[i];
    w->sums = calloc(n, sizeof *w->sums);
    w->sums_received = calloc(n, sizeof *w->sums_received);
    if (!w->sums || !w->sums_received)
      return pst_fail(PST_NO_MEMORY, "no memory for the norm of %zu parameters", n - 1);
  }
  for (int i = 0; i < p->n; i++) {
    pst__chunk *c = &p->chunks[i];
    int64_t most = 1;
    for (int32_t u = 0; u < c->update->n_params; u++)
      if (pst_operand_elements(&c->update->params[u].sums) > most)
        most = pst_operand_elements(&c->update->params[u].sums);
    c->blocks = calloc((size_t)most, sizeof *c->blocks);
    if (!c->blocks) return pst_fail(PST_NO_MEMORY, "no memory for the norm of stage %d", i);
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

/* Which worker holds which stage: the training schedule says. */
static pst_status place_stages(pst_pipeline *p) {
  pst_schedule *compute = NULL;
  PST_TRY(pst__pass_compute(p, p->options.train != NULL, p->options.microbatches, &compute));
  memcpy(p->worker_of, compute->worker_of, (size_t)p->n * sizeof *p->worker_of);
  pst_schedule_destroy(compute);
  for (int s = 0; s < p->n; s++) {
    pst__worker *w = &p->workers[p->worker_of[s]];
    p->chunks[s] = (pst__chunk){.worker = w, .stage = s, .device = w->device};
  }
  return PST_OK;
}

static pst_status build(pst_pipeline *p) {
  const pst_pipeline_options *o = &p->options;
  PST_TRY(place_stages(p));
  if (o->train) PST_TRY(pst__pass_create(p, o->train, o->microbatches, &p->train));
  if (o->loss) PST_TRY(pst__pass_create(p, o->loss, o->microbatches, &p->loss));
  if (o->logits) PST_TRY(pst__pass_create(p, o->logits, 1, &p->logits));
  PST_TRY(check_params_agree(p, pst__main_pass(p), &p->loss));
  PST_TRY(check_params_agree(p, pst__main_pass(p), &p->logits));
  for (int i = 0; i < p->n_workers; i++) {
    uint16_t block;
    int64_t offset;
    PST_TRY(pst_layout_place(&p->workers[i].layout[PST_SEGMENT_CTRL], sizeof(pst_ctrl), 0, &block, &offset));
  }
  if (!o->train) return PST_OK;
  PST_TRY(open_ties(p));
  return open_sums(p);
}

static pst_status check_memory(const pst_pipeline *p);

pst_status pst_pipeline_create(const pst_pipeline_options *options, pst_pipeline **out_pipeline) {
  PST_TRY(check_options(options));
  pst_status st = PST_OK;
  pst_pipeline *p = calloc(1, sizeof *p);
  if (!p) return pst_fail(PST_NO_MEMORY, "no memory for a pipeline");
  p->options = *options;
  p->n = options->n_stages;
  p->n_workers = options->n_stages / (options->chunks > 0 ? options->chunks : 1);
  p->cut = malloc((size_t)(p->n + 1) * sizeof *p->cut);
  p->worker_of = calloc((size_t)p->n, sizeof *p->worker_of);
  p->chunks = calloc((size_t)p->n, sizeof *p->chunks);
  p->workers = calloc((size_t)p->n_workers, sizeof *p->workers);
  if (!p->cut || !p->worker_of || !p->chunks || !p->workers) {
    st = pst_fail(PST_NO_MEMORY, "no memory for %d stages", p->n);
    goto done;
  }
  memcpy(p->cut, options->cut, (size_t)(p->n + 1) * sizeof *p->cut);
  for (int i = 0; i < p->n_workers; i++) {
    p->workers[i].p = p;
    p->workers[i].index = i;
    p->workers[i].device = options->devices[i];
  }
  PST_GOTO(st, build(p), done);
  PST_GOTO(st, check_memory(p), done);
  *out_pipeline = p;
  p = NULL;
done:
  pst_pipeline_destroy(p);
  return st;
}

void pst_pipeline_memory(const pst_pipeline *p, int stage, pst_stage_memory *out) {
  const pst__chunk *c = &p->chunks[stage];
  bool first =
      pst__next_chunk(c->worker, NULL) == c; /* scratch is the worker's: counted with its first stage */
  *out = (pst_stage_memory){0};
  for (int s = 0; s < PST_SEGMENT_COUNT; s++) {
    out->bytes[s] = c->layout[s].bytes + (first ? c->worker->layout[s].bytes : 0);
    out->copies[s] = out->bytes[s] > 0;
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
    p->chunks[i].device->table->query(p->chunks[i].device, &info);
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

static pst_status allocate(pst_device *d, const pst_layout *layouts, pst_segment *segments) {
  for (int s = 0; s < PST_SEGMENT_COUNT; s++)
    if (layouts[s].bytes > 0) PST_TRY(pst__segment_allocate(d, &layouts[s], &segments[s]));
  return PST_OK;
}

static void release(pst_device *d, pst_layout *layouts, pst_segment *segments) {
  for (int s = 0; s < PST_SEGMENT_COUNT; s++) {
    if (segments[s].blocks) pst__segment_free(d, &segments[s]);
    free(layouts[s].block_bytes);
  }
}

pst_status pst_pipeline_start(pst_pipeline *p) {
  if (p->started) return pst_fail(PST_INVALID, "the pipeline is started already");
  for (int i = 0; i < p->n; i++)
    PST_TRY(allocate(p->chunks[i].device, p->chunks[i].layout, p->chunks[i].segment));
  for (int i = 0; i < p->n_workers; i++)
    PST_TRY(allocate(p->workers[i].device, p->workers[i].layout, p->workers[i].segment));
  PST_TRY(pst__pass_allocate(p, &p->train));
  PST_TRY(pst__pass_allocate(p, &p->loss));
  PST_TRY(pst__pass_allocate(p, &p->logits));
  for (int i = 0; i < p->n_workers; i++) {
    pst__worker *w = &p->workers[i];
    int err = pthread_create(&w->thread, NULL, pst__worker_main, w);
    if (err) return pst_fail(PST_NO_MEMORY, "worker %d of %d: no thread: %s", i, p->n_workers, strerror(err));
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
  for (int i = 0; p->workers && i < p->n_workers; i++) {
    pst__worker *w = &p->workers[i];
    if (!w->started) continue;
    atomic_store(&w->ending, true);
    pst_event_signal(&w->wake);
    pthread_join(w->thread, NULL);
  }
  if (p->chunks) {
    pst__pass_destroy(p, &p->train);
    pst__pass_destroy(p, &p->loss);
    pst__pass_destroy(p, &p->logits);
  }
  for (int i = 0; p->chunks && i < p->n; i++) {
    release(p->chunks[i].device, p->chunks[i].layout, p->chunks[i].segment);
    pst_update_code_destroy(p->chunks[i].update);
    free(p->chunks[i].blocks);
  }
  for (int i = 0; p->workers && i < p->n_workers; i++) {
    release(p->workers[i].device, p->workers[i].layout, p->workers[i].segment);
    free(p->workers[i].sums);
    free(p->workers[i].sums_received);
  }
  free(p->chunks);
  free(p->workers);
  free(p->worker_of);
  free(p->cut);
  free(p->ties);
  free(p->sums);
  free(p->verdicts);
  free(p);
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
  pst__step_job job = {.pass = &p->train,
                       .batch = *batch,
                       .step = step,
                       .lr = lr,
                       .update = update,
                       .clear = p->gradients_left};
  job.ctrl = (pst_ctrl){.seed = seed, .step = (uint64_t)step, .clip = 1.0f};
  job.ctrl.gradient_scale = valid > 0 ? (float)(1.0 / (double)valid) : 0.0f;
  PST_TRY(pst__run_job(p, -1, pst__worker_step, &job, sizeof job));
  p->gradients_left = !update;
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
  PST_TRY(pst__run_job(p, -1, pst__worker_apply, &job, sizeof job));
  p->gradients_left = false;
  *out_norm = p->workers[0].verdict[0];
  return PST_OK;
}

pst_status pst_pipeline_loss(pst_pipeline *p, const pst_batch *batch, double *out_sum, int64_t *out_tokens,
                             float *out_losses) {
  PST_TRY(check_batch(&p->loss, batch, "evaluation"));
  pst__step_job job = {.pass = &p->loss, .batch = *batch};
  PST_TRY(pst__run_job(p, -1, pst__worker_step, &job, sizeof job));
  int64_t n = batch->sequences * p->loss.sequence;
  *out_sum = sum_losses(&p->loss, batch->sequences);
  *out_tokens = count_valid(batch->targets, n);
  if (out_losses) memcpy(out_losses, p->loss.results, (size_t)n * sizeof *out_losses);
  return PST_OK;
}

pst_status pst_pipeline_logits(pst_pipeline *p, const pst_batch *batch, float *out_logits) {
  PST_TRY(check_batch(&p->logits, batch, "generation"));
  pst__step_job job = {.pass = &p->logits, .batch = *batch};
  PST_TRY(pst__run_job(p, -1, pst__worker_step, &job, sizeof job));
  memcpy(out_logits, p->logits.results,
         (size_t)(batch->sequences * (p->logits.result_elements / p->logits.batch)) * sizeof *out_logits);
  return PST_OK;
}

/* ---- what it did ---- */

void pst_pipeline_stats(const pst_pipeline *p, int stage, pst_worker_stats *out) {
  const pst__chunk *c = &p->chunks[stage];
  *out = c->stats;
  out->steps = c->worker->steps;
  out->total_ns = c->worker->total_ns;
  out->wait_ns = c->worker->wait_ns;
}

void pst_pipeline_stats_reset(pst_pipeline *p) {
  for (int i = 0; i < p->n; i++) p->chunks[i].stats = (pst_worker_stats){0};
  for (int i = 0; i < p->n_workers; i++)
    p->workers[i].steps = p->workers[i].total_ns = p->workers[i].wait_ns = 0;
}

const pst_schedule *pst_pipeline_schedule(const pst_pipeline *p) {
  return p->train.schedule;
}
