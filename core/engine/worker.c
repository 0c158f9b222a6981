#include "core/engine/internal.h"

#include "core/base/clock.h"
#include "core/graph/ir.h"

#include <string.h>

/* ---- small steps ---- */

pst__chunk *pst__next_chunk(const pst__worker *w, const pst__chunk *after) {
  pst_pipeline *p = w->p;
  for (int s = after ? after->stage + 1 : 0; s < p->n; s++)
    if (p->chunks[s].worker == w) return &p->chunks[s];
  return NULL;
}

pst_status pst__run(pst__chunk *c, const pst_program *program, const pst_binding *bind, int64_t *part) {
  if (program->n_ops == 0) return PST_OK;
  int64_t begin = pst_clock_ns();
  PST_TRY(c->device->table->run(c->device, program, bind));
  PST_TRY(c->device->table->wait(c->device));
  int64_t took = pst_clock_ns() - begin;
  c->stats.busy_ns += took;
  *part += took;
  return PST_OK;
}

pst_status pst__wait_message(pst__worker *w, const pst_request *request) {
  pst_transport *t = w->p->options.transport;
  if (!request->channel || t->table->test(request)) return PST_OK;
  int64_t begin = pst_clock_ns();
  pst_status st = pst_transport_wait(t, w->index, request);
  w->wait_ns += pst_clock_ns() - begin;
  return st;
}

void pst__bind_lasting(const pst__chunk *c, pst_binding *bind) {
  static const pst_segment_kind own[] = {PST_SEGMENT_PARAM, PST_SEGMENT_GRAD, PST_SEGMENT_OPTIM,
                                         PST_SEGMENT_STATE};
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) bind->base[own[i]] = &c->segment[own[i]];
  bind->base[PST_SEGMENT_PARAM_NEXT] = &c->segment[PST_SEGMENT_PARAM];
  bind->base[PST_SEGMENT_WORK] = &c->worker->segment[PST_SEGMENT_WORK];
  bind->base[PST_SEGMENT_CTRL] = &c->worker->segment[PST_SEGMENT_CTRL];
}

pst_status pst__set_ctrl(pst__worker *w, const pst_ctrl *ctrl) {
  return w->device->table->upload(w->device, w->segment[PST_SEGMENT_CTRL].blocks[0], 0, ctrl, sizeof *ctrl);
}

/* ---- one microbatch's place in memory ---- */

static const pst_segment *copy_of(const pst_segment *copies, int n, int64_t microbatch) {
  return n > 0 ? &copies[microbatch % n] : NULL;
}

static pst_binding bind_microbatch(const pst__chunk *c, const pst__stage *s, int64_t m) {
  pst_binding bind = {0};
  pst__bind_lasting(c, &bind);
  bind.base[PST_SEGMENT_STASH] = copy_of(s->stash, s->buffers.stash, m);
  bind.base[PST_SEGMENT_DEFER] = copy_of(s->defer, s->buffers.defer, m);
  bind.base[PST_SEGMENT_OUT] = copy_of(s->out, s->buffers.out_activation, m);
  bind.base[PST_SEGMENT_GRAD_IN] = copy_of(s->grad_in, s->buffers.gradient, m);
  bind.base[PST_SEGMENT_GRAD_OUT] = copy_of(s->grad_out, s->buffers.out_gradient, m);
  bind.base[PST_SEGMENT_INPUT] = &s->input[m];
  bind.base[PST_SEGMENT_LOSS] = &s->loss[m];
  return bind;
}

static int ports_to_parts(const pst__chunk *c, const pst_ports *ports, const pst_binding *bind,
                          pst_part *parts) {
  for (int i = 0; i < ports->n; i++) {
    const pst_operand *o = &ports->at[i].at;
    parts[i] = (pst_part){.at = pst__operand_host(c->device, bind->base[o->segment], o),
                          .bytes = pst__operand_bytes(o)};
  }
  return ports->n;
}

static pst_status post(pst__chunk *c, pst__stage *s, pst_channel *channel, const pst_ports *ports, int64_t m,
                       bool sends, pst_request *request) {
  const pst_transport_table *t = c->worker->p->options.transport->table;
  pst_part parts[PST__MAX_PORTS];
  pst_binding bind = bind_microbatch(c, s, m);
  int n = ports_to_parts(c, ports, &bind, parts);
  if (sends)
    for (int i = 0; i < n; i++) c->stats.message_bytes += parts[i].bytes;
  return (sends ? t->send : t->receive)(channel, (uint32_t)m, parts, n, request);
}

/* Between two stages of one worker: from the one's ports straight to the other's. */
static pst_status copy_ports(const pst__step_job *job, const pst__chunk *from, const pst_ports *out,
                             const pst__chunk *to, const pst_ports *in, int64_t m) {
  pst_binding source = bind_microbatch(from, &job->pass->stages[from->stage], m),
              target = bind_microbatch(to, &job->pass->stages[to->stage], m);
  for (int i = 0; i < in->n; i++) {
    const pst_operand *a = &out->at[i].at, *b = &in->at[i].at;
    PST_TRY(to->device->table->copy(to->device, target.base[b->segment]->blocks[b->block], b->offset,
                                    source.base[a->segment]->blocks[a->block], a->offset,
                                    pst__operand_bytes(b)));
  }
  return PST_OK;
}

/* ---- inputs and results ---- */

/* Copies one microbatch's share of the batch to the device; sequences that the batch lacks are empty: token
 * 0, target -1. */
static pst_status upload_input(pst__chunk *w, const pst__pass *pass, pst__stage *s, const pst_batch *batch,
                               pst_input which, int64_t m) {
  const pst_operand *o = &s->code->inputs[which];
  if (!pst_operand_present(o)) return PST_OK;
  const int32_t *from = which == PST_INPUT_TOKENS      ? batch->tokens
                        : which == PST_INPUT_TARGETS   ? batch->targets
                        : which == PST_INPUT_POSITIONS ? batch->positions
                                                       : NULL;
  int64_t row = pst_operand_elements(o) / pass->batch, first = m * pass->batch;
  int64_t given = batch->sequences - first < pass->batch ? batch->sequences - first : pass->batch;
  if (given < 0 || !from) given = 0;
  pst_buffer *to = s->input[m].blocks[o->block];
  const pst_device_table *t = w->device->table;
  if (given > 0)
    PST_TRY(t->upload(w->device, to, o->offset, from + first * row, given * row * (int64_t)sizeof *from));
  if (given == pass->batch) return PST_OK;
  uint8_t empty = which == PST_INPUT_TARGETS ? 0xff : 0; /* -1 byte by byte */
  return t->fill(w->device, to, o->offset + given * row * (int64_t)sizeof *from,
                 (pass->batch - given) * row * (int64_t)sizeof *from, empty);
}

static pst_status upload_batch(pst__chunk *c, const pst__pass *pass, pst__stage *s, const pst_batch *batch) {
  for (int64_t m = 0; m < pass->microbatches; m++)
    for (int i = 0; i < PST_INPUT_COUNT; i++) PST_TRY(upload_input(c, pass, s, batch, (pst_input)i, m));
  return PST_OK;
}

static pst_status download_result(pst__chunk *c, pst__pass *pass, const pst__stage *s, int64_t m) {
  const pst_operand *o = &s->code->result;
  if (!pst_operand_present(o)) return PST_OK;
  return c->device->table->download(c->device, pass->results + m * pass->result_elements,
                                    s->loss[m].blocks[o->block], o->offset, pst__operand_bytes(o));
}

/* ---- actions ---- */

static pst_status set_microbatch(pst__worker *w, const pst__step_job *job, int64_t m) {
  pst_ctrl ctrl = job->ctrl;
  ctrl.first_sequence = m * job->pass->batch;
  return pst__set_ctrl(w, &ctrl);
}

/* The ring entry that microbatch m writes was last sent for microbatch m - n. */
static pst_status wait_ring(pst__worker *w, const pst_request *sent, int n, int64_t m) {
  return n > 0 && m >= n ? pst__wait_message(w, &sent[m - n]) : PST_OK;
}

static bool neighbours(const pst__chunk *c, int other) {
  const pst_pipeline *p = c->worker->p;
  return other >= 0 && other < p->n && p->chunks[other].worker == c->worker;
}

static pst_status forward(pst__chunk *c, const pst__step_job *job, pst__stage *s, int64_t m) {
  pst__worker *w = c->worker;
  PST_TRY(pst__wait_message(w, &s->received_forward[m]));
  PST_TRY(wait_ring(w, s->sent_forward, s->buffers.out_activation, m));
  /* what is sent from a slot must be gone before the slot is written again */
  PST_TRY(wait_ring(w, s->sent_forward, s->buffers.stash, m));
  PST_TRY(wait_ring(w, s->sent_backward, s->buffers.stash, m));
  PST_TRY(set_microbatch(w, job, m));
  pst_binding bind = bind_microbatch(c, s, m);
  PST_TRY(pst__run(c, &s->code->forward, &bind, &c->stats.forward_ns));
  if (neighbours(c, c->stage + 1)) {
    const pst__chunk *next = c + 1;
    PST_TRY(copy_ports(job, c, &s->code->send_forward, next,
                       &job->pass->stages[next->stage].code->receive_forward, m));
  }
  return download_result(c, job->pass, s, m);
}

static pst_status send_backward(pst__chunk *c, const pst__step_job *job, pst__stage *s, int64_t m) {
  if (c->stage == 0 || s->code->send_backward.n == 0) return PST_OK;
  if (neighbours(c, c->stage - 1)) {
    const pst__chunk *before = c - 1;
    return copy_ports(job, c, &s->code->send_backward, before,
                      &job->pass->stages[before->stage].code->receive_backward, m);
  }
  if (s->sent_backward[m].channel) return PST_OK; /* left early */
  return post(c, s, job->pass->backward[c->stage - 1], &s->code->send_backward, m, true,
              &s->sent_backward[m]);
}

/* Fused: all at once. Else the input's gradient, which leaves as soon as it is there, and the weights'
 * gradients. */
static pst_status run_backward(pst__chunk *c, const pst__step_job *job, pst__stage *s, int64_t m,
                               unsigned kind) {
  pst_binding bind = bind_microbatch(c, s, m);
  bool local = neighbours(c, c->stage - 1);
  if (s->code->form == PST_BACKWARD_FUSED) {
    PST_TRY(pst__run(c, &s->code->backward, &bind, &c->stats.backward_ns));
    return local ? send_backward(c, job, s, m) : PST_OK;
  }
  if (kind != PST_ACTION_W) PST_TRY(pst__run(c, &s->code->input_gradient, &bind, &c->stats.input_ns));
  if (kind == PST_ACTION_B || (kind == PST_ACTION_I && local)) PST_TRY(send_backward(c, job, s, m));
  if (kind != PST_ACTION_I) PST_TRY(pst__run(c, &s->code->weight_gradient, &bind, &c->stats.weight_ns));
  return PST_OK;
}

/* Gradients that W reads too are sent from their DEFER slot: it is written again only when they are gone. */
static pst_status wait_deferred(pst__worker *w, const pst__stage *s, int64_t m) {
  for (int i = 0; i < s->code->send_backward.n; i++)
    if (s->code->send_backward.at[i].at.segment == PST_SEGMENT_DEFER)
      return wait_ring(w, s->sent_backward, s->buffers.defer, m);
  return PST_OK;
}

static pst_status backward(pst__chunk *c, const pst__step_job *job, pst__stage *s, int64_t m, unsigned kind) {
  pst__worker *w = c->worker;
  if (kind != PST_ACTION_W) {
    PST_TRY(pst__wait_message(w, &s->received_backward[m]));
    PST_TRY(wait_ring(w, s->sent_backward, s->buffers.out_gradient, m));
    PST_TRY(wait_deferred(w, s, m));
  }
  PST_TRY(set_microbatch(w, job, m));
  return run_backward(c, job, s, m, kind);
}

static pst_status receive_forward(pst__chunk *c, const pst__step_job *job, pst__stage *s, int64_t m) {
  /* a value passed through is sent from the slot it came to */
  PST_TRY(wait_ring(c->worker, s->sent_forward, s->buffers.stash, m));
  return post(c, s, job->pass->forward[c->stage - 1], &s->code->receive_forward, m, false,
              &s->received_forward[m]);
}

static pst_status receive_backward(pst__chunk *c, const pst__step_job *job, pst__stage *s, int64_t m) {
  for (int i = 0; i < s->code->send_backward.n; i++)
    if (s->code->send_backward.at[i].at.segment == PST_SEGMENT_GRAD_IN)
      PST_TRY(wait_ring(c->worker, s->sent_backward, s->buffers.gradient, m));
  return post(c, s, job->pass->backward[c->stage], &s->code->receive_backward, m, false,
              &s->received_backward[m]);
}

static pst_status act(pst__worker *w, const pst__step_job *job, pst_action a) {
  pst__chunk *c = &w->p->chunks[a.chunk];
  pst__stage *s = &job->pass->stages[a.chunk];
  int64_t m = a.microbatch;
  switch (a.kind) {
  case PST_ACTION_F:
    return forward(c, job, s, m);
  case PST_ACTION_B:
  case PST_ACTION_I:
  case PST_ACTION_W:
    return backward(c, job, s, m, a.kind);
  case PST_ACTION_SEND_F:
    return post(c, s, job->pass->forward[a.chunk], &s->code->send_forward, m, true, &s->sent_forward[m]);
  case PST_ACTION_RECV_F:
    return receive_forward(c, job, s, m);
  case PST_ACTION_SEND_B:
    return send_backward(c, job, s, m);
  case PST_ACTION_RECV_B:
    return receive_backward(c, job, s, m);
  case PST_ACTION_REDUCE:
    return job->update ? pst__reduce(w, job) : pst__tie_gradients(w);
  case PST_ACTION_UPDATE:
    return job->update ? pst__update(w, job) : PST_OK;
  default:
    return pst_fail(PST_INTERNAL, "action kind %u is none", a.kind);
  }
}

/* All that was sent has arrived: the next step may write it again. */
static pst_status settle(pst__worker *w, pst__stage *s, int64_t microbatches) {
  for (int64_t m = 0; m < microbatches; m++) {
    PST_TRY(pst__wait_message(w, &s->sent_forward[m]));
    PST_TRY(pst__wait_message(w, &s->sent_backward[m]));
  }
  size_t bytes = (size_t)microbatches * sizeof(pst_request);
  memset(s->received_forward, 0, bytes);
  memset(s->sent_forward, 0, bytes);
  memset(s->received_backward, 0, bytes);
  memset(s->sent_backward, 0, bytes);
  return PST_OK;
}

/* Steps are counted from 1 in messages, as in the progress of a run. */
static pst_status where(const pst__worker *w, const pst__step_job *job, pst_action a, pst_status st) {
  char text[PST_ACTION_TEXT];
  if (st == PST_NONFINITE) return st; /* says where by itself */
  return pst_fail_prefix(st, "worker %d, step %lld, %s: ", w->index, (long long)job->step + 1,
                         pst_action_format(a, text));
}

pst_status pst__worker_step(pst__worker *w, void *arg) {
  const pst__step_job *job = arg;
  pst_pipeline *p = w->p;
  const pst_action_list *list = &job->pass->schedule->lists[w->index];
  int64_t begin = pst_clock_ns();
  for (pst__chunk *c = pst__next_chunk(w, NULL); c; c = pst__next_chunk(w, c))
    PST_TRY(upload_batch(c, job->pass, &job->pass->stages[c->stage], &job->batch));
  if (!job->update && job->pass == &p->train) PST_TRY(pst__clear_gradients(w));
  for (size_t i = 0; i < list->count; i++) {
    pst_action a = list->items[i];
    atomic_store_explicit(&w->doing, (uint64_t)a.kind << 48 | (uint64_t)a.chunk << 32 | a.microbatch,
                          memory_order_relaxed);
    pst_status st = p->options.hook ? p->options.hook(p->options.hook_user, w->index, job->step, a) : PST_OK;
    if (st == PST_OK) st = act(w, job, a);
    if (st != PST_OK) {
      pst_status health = p->options.transport->table->health(p->options.transport);
      return health != PST_OK ? health : where(w, job, a, st); /* another's failure is passed on as it is */
    }
    atomic_fetch_add_explicit(&w->heartbeat, 1, memory_order_relaxed);
  }
  for (pst__chunk *c = pst__next_chunk(w, NULL); c; c = pst__next_chunk(w, c))
    PST_TRY(settle(w, &job->pass->stages[c->stage], job->pass->microbatches));
  if (job->pass == &p->train) {
    w->steps++;
    w->total_ns += pst_clock_ns() - begin;
  }
  return PST_OK;
}
