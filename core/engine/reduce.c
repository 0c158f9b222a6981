#include "core/engine/internal.h"

#include "core/base/clock.h"
#include "core/graph/ir.h"

#include <math.h>
#include <stdlib.h>

/* The end of a step: tied gradients are added up at their owner, the whole model's norm is formed, every
 * owner updates and sends the new value to the other users. The order of every sum is the model's, so it does
 * not depend on the cut. */

static const pst_stage_code *code_of(const pst__chunk *c) {
  return c->worker->p->train.stages[c->stage].code;
}

static const pst_stage_param *find_param(const pst__chunk *c, int32_t param) {
  const pst_stage_code *code = code_of(c);
  for (int32_t i = 0; i < code->n_params; i++)
    if (code->params[i].param == param) return &code->params[i];
  return NULL;
}

static pst_part part_of(const pst__chunk *c, const pst_operand *o) {
  return (pst_part){.at = pst__operand_host(c->device, &c->segment[o->segment], o),
                    .bytes = pst__operand_bytes(o)};
}

/* Sends or receives one part and waits. */
static pst_status exchange(pst__worker *w, pst_channel *channel, const pst_part *part, bool sends) {
  const pst_transport_table *t = w->p->options.transport->table;
  pst_request request;
  PST_TRY((sends ? t->send : t->receive)(channel, 0, part, 1, &request));
  return pst__wait_message(w, &request);
}

/* From one stage's copy to another's, both of this worker. */
static pst_status copy_local(const pst__chunk *to, const pst_operand *at, const pst__chunk *from,
                             const pst_operand *source) {
  return to->device->table->copy(to->device, to->segment[at->segment].blocks[at->block], at->offset,
                                 from->segment[source->segment].blocks[source->block], source->offset,
                                 pst__operand_bytes(at));
}

/* Moves the gradient of one use to the parameter's owner. */
static pst_status tie_gradient(pst__worker *w, const pst__tie *tie) {
  pst__chunk *owner = &w->p->chunks[tie->owner], *user = &w->p->chunks[tie->user];
  const pst_operand *landing = &find_param(owner, tie->param)->gradient[tie->use],
                    *source = &find_param(user, tie->param)->gradient[tie->use];
  if (tie->local) return owner->worker == w ? copy_local(owner, landing, user, source) : PST_OK;
  if (owner->worker == w) {
    pst_part part = part_of(owner, landing);
    return exchange(w, tie->gradient, &part, false);
  }
  if (user->worker != w) return PST_OK;
  pst_part part = part_of(user, source);
  return exchange(w, tie->gradient, &part, true);
}

/* Moves the updated value to another stage that uses it. */
static pst_status tie_value(pst__worker *w, const pst__tie *tie) {
  if (!tie->carries_value) return PST_OK;
  pst__chunk *owner = &w->p->chunks[tie->owner], *user = &w->p->chunks[tie->user];
  const pst_operand *source = &find_param(owner, tie->param)->value,
                    *landing = &find_param(user, tie->param)->value;
  if (tie->local) return owner->worker == w ? copy_local(user, landing, owner, source) : PST_OK;
  if (owner->worker == w) {
    pst_part part = part_of(owner, source);
    return exchange(w, tie->value, &part, true);
  }
  if (user->worker != w) return PST_OK;
  pst_part part = part_of(user, landing);
  return exchange(w, tie->value, &part, false);
}

pst_status pst__tie_gradients(pst__worker *w) {
  for (int i = 0; i < w->p->n_ties; i++) PST_TRY(tie_gradient(w, &w->p->ties[i]));
  for (pst__chunk *c = pst__next_chunk(w, NULL); c; c = pst__next_chunk(w, c)) {
    pst_binding bind = {0};
    pst__bind_lasting(c, &bind);
    PST_TRY(pst__run(c, &c->update->tie, &bind, &c->stats.update_ns));
  }
  return PST_OK;
}

/* Blocks in ascending order, in double. */
static pst_status sum_blocks(pst__chunk *c, const pst_update_param *u, double *out_sum) {
  int64_t n = pst_operand_elements(&u->sums);
  PST_TRY(c->device->table->download(c->device, c->blocks,
                                     c->segment[PST_SEGMENT_STATE].blocks[u->sums.block], u->sums.offset,
                                     n * (int64_t)sizeof(double)));
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += c->blocks[i];
  *out_sum = sum;
  return PST_OK;
}

static pst_status own_sums(pst__worker *w) {
  for (pst__chunk *c = pst__next_chunk(w, NULL); c; c = pst__next_chunk(w, c)) {
    pst_binding bind = {0};
    pst__bind_lasting(c, &bind);
    PST_TRY(pst__run(c, &c->update->norm, &bind, &c->stats.update_ns));
    for (int32_t i = 0; i < c->update->n_params; i++) {
      const pst_update_param *u = &c->update->params[i];
      PST_TRY(sum_blocks(c, u, &w->sums[code_of(c)->params[u->stage_param].param]));
    }
  }
  return PST_OK;
}

/* Worker 0: takes each owner's sums and forms the norm in the model's order. */
static pst_status judge(pst__worker *w) {
  pst_pipeline *p = w->p;
  int32_t n = p->train.graph->params.n;
  for (int other = 1; other < p->n_workers; other++) {
    pst_part part = {.at = w->sums_received, .bytes = n * (int64_t)sizeof(double)};
    PST_TRY(exchange(w, p->sums[other], &part, false));
    for (pst__chunk *c = pst__next_chunk(&p->workers[other], NULL); c;
         c = pst__next_chunk(&p->workers[other], c)) {
      const pst_stage_code *code = code_of(c);
      for (int32_t i = 0; i < code->n_params; i++)
        if (code->params[i].owner) w->sums[code->params[i].param] = w->sums_received[code->params[i].param];
    }
  }
  double sum = 0;
  int32_t bad = -1;
  for (int32_t i = 0; i < n; i++) {
    if (!isfinite(w->sums[i]) && bad < 0) bad = i;
    sum += w->sums[i];
  }
  double norm = sqrt(sum);
  w->verdict[0] = norm;
  w->verdict[1] = (double)pst_clip_factor(norm, p->options.optimizer.clip);
  w->verdict[2] = bad;
  return PST_OK;
}

static pst_status share_verdict(pst__worker *w) {
  pst_pipeline *p = w->p;
  pst_part verdict = {.at = w->verdict, .bytes = sizeof w->verdict};
  if (w->index == 0) {
    PST_TRY(judge(w));
    for (int other = 1; other < p->n_workers; other++)
      PST_TRY(exchange(w, p->verdicts[other], &verdict, true));
    return PST_OK;
  }
  pst_part sums = {.at = w->sums, .bytes = p->train.graph->params.n * (int64_t)sizeof(double)};
  PST_TRY(exchange(w, p->sums[w->index], &sums, true));
  return exchange(w, p->verdicts[w->index], &verdict, false);
}

static pst_status refuse_nonfinite(const pst__worker *w, const pst__step_job *job) {
  const pst_graph *g = w->p->train.graph;
  int32_t param = (int32_t)w->verdict[2];
  int stage = pst_pipeline_owner(w->p, param);
  return pst_fail(PST_NONFINITE,
                  "step %lld, stage %d: the gradient of %s is not finite; the weights are those of the step "
                  "before. Lower the learning "
                  "rate (it was %g) or look at the data",
                  (long long)job->step + 1, stage, g->params.at[param].name, job->lr);
}

static pst_status norm(pst__worker *w, const pst__step_job *job) {
  PST_TRY(own_sums(w));
  PST_TRY(share_verdict(w));
  return w->verdict[2] >= 0 ? refuse_nonfinite(w, job) : PST_OK;
}

pst_status pst__reduce(pst__worker *w, const pst__step_job *job) {
  PST_TRY(pst__tie_gradients(w));
  return norm(w, job);
}

pst_status pst__worker_apply(pst__worker *w, void *arg) {
  const pst__step_job *job = arg;
  PST_TRY(norm(w, job));
  return pst__update(w, job);
}

static pst_status clear(const pst__chunk *c, const pst_operand *o) {
  return c->device->table->fill(c->device, c->segment[PST_SEGMENT_GRAD].blocks[o->block], o->offset,
                                pst__operand_bytes(o), 0);
}

pst_status pst__clear_gradients(pst__worker *w) {
  for (pst__chunk *c = pst__next_chunk(w, NULL); c; c = pst__next_chunk(w, c)) {
    const pst_stage_code *code = code_of(c);
    for (int32_t i = 0; i < code->n_params; i++)
      for (int32_t u = 0; u < code->params[i].n_uses; u++)
        if (pst_operand_present(&code->params[i].gradient[u]))
          PST_TRY(clear(c, &code->params[i].gradient[u]));
  }
  return PST_OK;
}

/* The update itself clears the first use of each parameter it owns. */
static pst_status clear_other_uses(const pst__chunk *c) {
  const pst_stage_code *code = code_of(c);
  for (int32_t i = 0; i < code->n_params; i++) {
    const pst_stage_param *p = &code->params[i];
    for (int32_t u = 0; u < p->n_uses; u++)
      if (!(p->owner && u == 0) && p->use_stage[u] == c->stage) PST_TRY(clear(c, &p->gradient[u]));
  }
  return PST_OK;
}

pst_status pst__update(pst__worker *w, const pst__step_job *job) {
  pst_ctrl ctrl = job->ctrl;
  pst_optimizer_ctrl(&w->p->options.optimizer, job->step, job->lr, (float)w->verdict[1], &ctrl);
  PST_TRY(pst__set_ctrl(w, &ctrl));
  for (pst__chunk *c = pst__next_chunk(w, NULL); c; c = pst__next_chunk(w, c)) {
    pst_binding bind = {0};
    pst__bind_lasting(c, &bind);
    PST_TRY(pst__run(c, &c->update->update, &bind, &c->stats.update_ns));
    PST_TRY(clear_other_uses(c));
  }
  for (int i = 0; i < w->p->n_ties; i++) PST_TRY(tie_value(w, &w->p->ties[i]));
  return PST_OK;
}
