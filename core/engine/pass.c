#include "core/engine/internal.h"

#include "core/graph/ir.h"
#include "core/schedule/check.h"
#include "core/schedule/families.h"

#include <stdio.h>
#include <stdlib.h>

static int64_t workspace_of(void *user, const pst_op *op) {
  pst_device *d = user;
  return d->table->workspace(d, op);
}

/* A stage whose list has W of its own must keep what W reads until then; else the option decides. */
static pst_backward_form form_of(const pst_pipeline *p, const pst__pass *pass, int stage) {
  const pst_action_list *list = &pass->compute->lists[p->worker_of[stage]];
  pst_backward backward = p->options.backward;
  for (size_t i = 0; i < list->count; i++)
    if (list->items[i].chunk == stage && list->items[i].kind == PST_ACTION_W) return PST_BACKWARD_SPLIT;
  if (backward == PST_BACKWARD_EACH_FUSED || (backward == PST_BACKWARD_AUTO && stage == 0))
    return PST_BACKWARD_FUSED;
  return PST_BACKWARD_EARLY;
}

static pst_status check_supported(pst_device *d, const pst_program *program) {
  for (int64_t i = 0; i < program->n_ops; i++) PST_TRY(d->table->supports(d, &program->ops[i]));
  return PST_OK;
}

static pst_status check_boundary(const pst_stage_code *code) {
  int most = code->send_forward.n > code->send_backward.n ? code->send_forward.n : code->send_backward.n;
  if (most <= PST__MAX_PORTS) return PST_OK;
  return pst_fail(PST_UNSUPPORTED, "stage %d: %d tensors cross its boundary, at most %d can: cut elsewhere",
                  code->stage, most, PST__MAX_PORTS);
}

static pst_status lower_stages(pst_pipeline *p, pst__pass *pass) {
  bool training = pass == &p->train;
  for (int s = 0; s < p->n; s++) {
    pst__chunk *w = &p->chunks[s];
    pst_device_info info;
    w->device->table->query(w->device, &info);
    pst_stage_options options = {.form = training ? form_of(p, pass, s) : PST_BACKWARD_FUSED,
                                 .max_block_bytes = info.max_block_bytes,
                                 .workspace = workspace_of,
                                 .user = w->device};
    pst_stage_code **code = &pass->stages[s].code;
    PST_TRY(pst_stage_lower(pass->graph, p->cut, p->n, s, &options, code));
    const pst_program *programs[] = {&(*code)->forward, &(*code)->backward, &(*code)->input_gradient,
                                     &(*code)->weight_gradient};
    for (int i = 0; i < 4; i++) PST_TRY(check_supported(w->device, programs[i]));
    if (training) {
      PST_TRY(pst_optimizer_lower(pass->graph, *code, &p->options.optimizer, &options, &w->update));
      PST_TRY(check_supported(w->device, &w->update->update));
    }
    static const pst_segment_kind lasting[] = {PST_SEGMENT_PARAM, PST_SEGMENT_GRAD, PST_SEGMENT_OPTIM,
                                               PST_SEGMENT_STATE};
    for (size_t i = 0; i < sizeof lasting / sizeof *lasting; i++)
      PST_TRY(pst__layout_cover(&w->layout[lasting[i]], &(*code)->layout[lasting[i]]));
    PST_TRY(pst__layout_cover(&w->worker->layout[PST_SEGMENT_WORK], &(*code)->layout[PST_SEGMENT_WORK]));
    PST_TRY(check_boundary(*code));
  }
  return PST_OK;
}

/* Every B becomes an I and the W right behind it. */
static pst_status separate_backward(pst_schedule **schedule) {
  const pst_schedule *from = *schedule;
  pst_schedule *to = NULL;
  PST_TRY(pst_schedule_create(from->workers, from->chunks, from->microbatches, from->training, &to));
  for (int w = 0; w < from->workers; w++) {
    for (size_t i = 0; i < from->lists[w].count; i++) {
      pst_action a = from->lists[w].items[i];
      bool b = a.kind == PST_ACTION_B;
      pst_status st =
          pst_schedule_append(to, w, b ? PST_ACTION_I : (pst_action_kind)a.kind, a.chunk, a.microbatch);
      if (st == PST_OK && b) st = pst_schedule_append(to, w, PST_ACTION_W, a.chunk, a.microbatch);
      if (st != PST_OK) {
        pst_schedule_destroy(to);
        return st;
      }
    }
  }
  pst_schedule_destroy(*schedule);
  *schedule = to;
  return PST_OK;
}

pst_status pst__pass_compute(const pst_pipeline *p, bool training, int64_t microbatches,
                             pst_schedule **out_compute) {
  const pst_pipeline_options *o = &p->options;
  if (!training && p->n != p->n_workers)
    return pst_schedule_forward_only_like(p->train.compute, microbatches, out_compute);
  pst_schedule_options options;
  pst_schedule_options_init(&options);
  options.name = training ? o->schedule : "forward-only";
  options.workers = p->n_workers;
  options.chunks = p->n / p->n_workers;
  options.microbatches = microbatches;
  options.extra_forwards = training ? o->extra_forwards : 0;
  pst_schedule *compute = NULL;
  PST_TRY(pst_schedule_generate(&options, &compute));
  pst_status st = training && o->backward == PST_BACKWARD_EACH_SPLIT ? separate_backward(&compute) : PST_OK;
  if (st != PST_OK) {
    pst_schedule_destroy(compute);
    return st;
  }
  *out_compute = compute;
  return PST_OK;
}

static bool in_defer(const pst_ports *ports) {
  for (int i = 0; i < ports->n; i++)
    if (ports->at[i].at.segment == PST_SEGMENT_DEFER) return true;
  return false;
}

/* What W reads arrives in a DEFER slot, and may do so before its F or I: an activation as soon as I has freed
 * the STASH slot, a gradient as soon as the ring has room. W of the microbatch before in that slot must be
 * over by then. W runs in ascending order. */
static void cover_early_arrivals(const pst_stage_code *code, const pst_action_list *list, int *defer) {
  bool forward = in_defer(&code->receive_forward), backward = in_defer(&code->receive_backward);
  int64_t over = 0; /* microbatches whose W is over */
  for (size_t i = 0; i < list->count; i++) {
    pst_action a = list->items[i];
    int64_t m = (int64_t)a.microbatch;
    int before =
        a.chunk - code->stage; /* a neighbour of this worker writes straight into this stage's slot */
    bool arrives = before == 0
                       ? (a.kind == PST_ACTION_RECV_F && forward) || (a.kind == PST_ACTION_RECV_B && backward)
                   : before == -1 ? a.kind == PST_ACTION_F && forward
                   : before == 1  ? (a.kind == PST_ACTION_B || a.kind == PST_ACTION_I) && backward
                                  : false;
    if (before == 0 && (a.kind == PST_ACTION_W || a.kind == PST_ACTION_B)) over = m + 1;
    if (arrives && m + 1 - over > *defer) *defer = (int)(m + 1 - over);
  }
}

/* From compute actions to the full list, proved. */
static pst_status finish_schedule(pst_pipeline *p, pst__pass *pass) {
  pst_status st = PST_OK;
  pst_stage_buffers *buffers = calloc((size_t)p->n, sizeof *buffers);
  uint8_t *no_gradient = calloc((size_t)p->n, sizeof *no_gradient);
  if (!buffers || !no_gradient) {
    st = pst_fail(PST_NO_MEMORY, "no memory for a schedule of %d stages", p->n);
    goto done;
  }
  pst_lower_options lower;
  pst_lower_options_init(&lower);
  for (int s = 0; s + 1 < p->n; s++) no_gradient[s] = pass->stages[s].code->receive_backward.n == 0;
  lower.no_gradient = no_gradient;
  PST_GOTO(st, pst_schedule_buffers(pass->compute, &lower, buffers), done);
  PST_GOTO(st, pst_schedule_lower(pass->compute, &lower, buffers, &pass->schedule), done);
  for (int s = 0; s < p->n; s++)
    cover_early_arrivals(pass->stages[s].code, &pass->schedule->lists[p->worker_of[s]], &buffers[s].defer);
  PST_GOTO(st, pst_schedule_check(pass->schedule, &lower, buffers), done);
  for (int s = 0; s < p->n; s++) {
    pst_stage_buffers *b = &buffers[s];
    const pst_layout *l = pass->stages[s].code->layout;
    /* what goes to a stage of the same worker is copied on at once: one entry will do */
    if (b->out_activation == 0 && l[PST_SEGMENT_OUT].bytes > 0) b->out_activation = 1;
    if (b->out_gradient == 0 && l[PST_SEGMENT_GRAD_OUT].bytes > 0) b->out_gradient = 1;
    pass->stages[s].buffers = *b;
  }
done:
  free(buffers);
  free(no_gradient);
  return st;
}

static pst_status open_channels(pst_pipeline *p, pst__pass *pass, const char *name) {
  pst_transport *t = p->options.transport;
  pass->forward = calloc((size_t)p->n, sizeof *pass->forward);
  pass->backward = calloc((size_t)p->n, sizeof *pass->backward);
  if (!pass->forward || !pass->backward)
    return pst_fail(PST_NO_MEMORY, "no memory for %d boundaries", p->n - 1);
  for (int s = 0; s + 1 < p->n; s++) {
    char text[64];
    snprintf(text, sizeof text, "%s %d to %d", name, s, s + 1);
    int from = p->worker_of[s], to = p->worker_of[s + 1];
    if (from == to) continue;
    pst_channel_options o = {.from = from, .to = to, .n_tags = (uint32_t)pass->microbatches, .name = text};
    PST_TRY(t->table->open(t, &o, &pass->forward[s]));
    if (pass != &p->train) continue;
    snprintf(text, sizeof text, "%s %d to %d", name, s + 1, s);
    o.from = to;
    o.to = from;
    PST_TRY(t->table->open(t, &o, &pass->backward[s]));
  }
  return PST_OK;
}

pst_status pst__pass_create(pst_pipeline *p, const pst_graph *graph, int64_t microbatches, pst__pass *pass) {
  const pst_graph_options *go = pst_graph_get_options(graph);
  *pass =
      (pst__pass){.graph = graph, .microbatches = microbatches, .batch = go->batch, .sequence = go->sequence};
  pass->stages = calloc((size_t)p->n, sizeof *pass->stages);
  if (!pass->stages) return pst_fail(PST_NO_MEMORY, "no memory for %d stages", p->n);
  PST_TRY(pst__pass_compute(p, pass == &p->train, microbatches, &pass->compute));
  PST_TRY(lower_stages(p, pass));
  PST_TRY(finish_schedule(p, pass));
  return open_channels(p, pass, pass == &p->train ? "train" : pass == &p->loss ? "loss" : "logits");
}

static pst_status allocate_copies(pst_device *d, const pst_layout *layout, int64_t n, pst_segment **out) {
  *out = calloc((size_t)n + 1, sizeof **out);
  if (!*out) return pst_fail(PST_NO_MEMORY, "no memory for %lld slots", (long long)n);
  for (int64_t i = 0; i < n; i++) PST_TRY(pst__segment_allocate(d, layout, &(*out)[i]));
  return PST_OK;
}

static pst_status allocate_requests(pst__stage *s, int64_t m) {
  pst_request **all[] = {&s->received_forward, &s->sent_forward, &s->received_backward, &s->sent_backward};
  for (int i = 0; i < 4; i++)
    if (!(*all[i] = calloc((size_t)m, sizeof **all[i])))
      return pst_fail(PST_NO_MEMORY, "no memory for %lld messages", (long long)m);
  return PST_OK;
}

pst_status pst__pass_allocate(pst_pipeline *p, pst__pass *pass) {
  if (!pass->graph) return PST_OK;
  for (int i = 0; i < p->n; i++) {
    pst__stage *s = &pass->stages[i];
    pst_device *d = p->chunks[i].device;
    const pst_layout *l = s->code->layout;
    PST_TRY(allocate_copies(d, &l[PST_SEGMENT_STASH], s->buffers.stash, &s->stash));
    PST_TRY(allocate_copies(d, &l[PST_SEGMENT_DEFER], s->buffers.defer, &s->defer));
    PST_TRY(allocate_copies(d, &l[PST_SEGMENT_OUT], s->buffers.out_activation, &s->out));
    PST_TRY(allocate_copies(d, &l[PST_SEGMENT_GRAD_IN], s->buffers.gradient, &s->grad_in));
    PST_TRY(allocate_copies(d, &l[PST_SEGMENT_GRAD_OUT], s->buffers.out_gradient, &s->grad_out));
    PST_TRY(allocate_copies(d, &l[PST_SEGMENT_INPUT], pass->microbatches, &s->input));
    PST_TRY(allocate_copies(d, &l[PST_SEGMENT_LOSS], pass->microbatches, &s->loss));
    PST_TRY(allocate_requests(s, pass->microbatches));
    if (pst_operand_present(&s->code->result)) pass->result_elements = pst_operand_elements(&s->code->result);
  }
  pass->results = calloc((size_t)(pass->microbatches * pass->result_elements) + 1, sizeof *pass->results);
  return pass->results ? PST_OK
                       : pst_fail(PST_NO_MEMORY, "no memory for the results of %lld microbatches",
                                  (long long)pass->microbatches);
}

static void free_copies(pst_device *d, pst_segment *segments, int64_t n) {
  for (int64_t i = 0; segments && i < n; i++) pst__segment_free(d, &segments[i]);
  free(segments);
}

void pst__pass_destroy(pst_pipeline *p, pst__pass *pass) {
  for (int i = 0; pass->stages && i < p->n; i++) {
    pst__stage *s = &pass->stages[i];
    pst_device *d = p->chunks[i].device;
    free_copies(d, s->stash, s->buffers.stash);
    free_copies(d, s->defer, s->buffers.defer);
    free_copies(d, s->out, s->buffers.out_activation);
    free_copies(d, s->grad_in, s->buffers.gradient);
    free_copies(d, s->grad_out, s->buffers.out_gradient);
    free_copies(d, s->input, pass->microbatches);
    free_copies(d, s->loss, pass->microbatches);
    free(s->received_forward);
    free(s->sent_forward);
    free(s->received_backward);
    free(s->sent_backward);
    pst_stage_destroy(s->code);
  }
  free(pass->stages);
  free(pass->forward);
  free(pass->backward);
  free(pass->results);
  pst_schedule_destroy(pass->compute);
  pst_schedule_destroy(pass->schedule);
  *pass = (pst__pass){0};
}
