#include "core/graph/stage.h"

#include "core/graph/memory_plan.h"
#include "core/graph/op_table.h"

#include <stdlib.h>
#include <string.h>

enum { FORWARD, BACKWARD, WEIGHT, N_PROGRAMS, OUTSIDE = -1 };

/* What lowering knows of one value in one stage. */
typedef struct place {
  bool seen; /* this stage touches it */
  bool received_forward, sent_forward, received_backward, sent_backward;
  int made_by;     /* program, or OUTSIDE */
  int32_t made_at; /* op position in it */
  bool read_by[N_PROGRAMS];
  int32_t last_read; /* in the program that made it */
  uint8_t segment;
  int32_t span; /* WORK: which span; -1: none yet */
  pst_operand at;
} place;

typedef struct lowering {
  const pst_graph *g;
  const pst_stage_options *options;
  pst_stage_code *code;
  const int32_t *cut;
  place *places; /* per value of the graph */
  const pst_node **nodes[N_PROGRAMS];
  int32_t n_nodes[N_PROGRAMS];
} lowering;

static int64_t bytes_of(const pst_value_info *v) {
  return v->dim[0] * v->dim[1] * v->dim[2] * v->dim[3] * (int64_t)pst_dtype_size(v->dtype);
}

static pst_operand operand_of(const pst_value_info *v, uint8_t segment) {
  pst_operand o = {.segment = segment, .dtype = (uint8_t)v->dtype, .rank = (uint8_t)v->rank};
  memcpy(o.dim, v->dim, sizeof o.dim);
  return o;
}

static int32_t stage_of(const lowering *l, int32_t unit) {
  int32_t s = 0;
  while (s + 1 < l->code->n_stages && unit >= l->cut[s + 1]) s++;
  return s;
}

/* ---- which nodes, which values ---- */

static int program_of(const lowering *l, const pst_node *n) {
  if (n->phase == PST_PHASE_FORWARD) return FORWARD;
  bool weight = pst__op_row(n->code).flags & PST_OP_WEIGHT_GRADIENT;
  return weight && l->options->form == PST_BACKWARD_SPLIT ? WEIGHT : BACKWARD;
}

static pst_status pick_nodes(lowering *l) {
  const pst_graph *g = l->g;
  for (int p = 0; p < N_PROGRAMS; p++)
    if (!(l->nodes[p] = calloc((size_t)g->nodes.n + 1, sizeof *l->nodes[p])))
      return pst_fail(PST_NO_MEMORY, "no memory to lower a stage");
  for (int32_t i = 0; i < g->nodes.n; i++) {
    const pst_node *n = &g->nodes.at[i];
    if (n->unit < l->code->first_unit || n->unit >= l->code->end_unit) continue;
    int p = program_of(l, n);
    int32_t at = l->n_nodes[p]++;
    l->nodes[p][at] = n;
    for (int k = 0; k < PST_OP_MAX_IN; k++) {
      if (n->in[k] == PST_NO_VALUE) continue;
      place *v = &l->places[n->in[k]];
      v->seen = v->read_by[p] = true;
      if (v->made_by == p) v->last_read = at;
    }
    for (int k = 0; k < PST_OP_MAX_OUT; k++) {
      if (n->out[k] == PST_NO_VALUE) continue;
      place *v = &l->places[n->out[k]];
      v->seen = true;
      v->made_by = p;
      v->made_at = v->last_read = at;
    }
  }
  return PST_OK;
}

/* A value crosses a boundary when it is made on one side and read on the other: forward by the forward nodes
 * of later units, backward (gradients) by the backward nodes of earlier units. Stages in between pass it
 * through. */
static void find_crossings(lowering *l) {
  const pst_graph *g = l->g;
  int32_t first = l->code->first_unit, end = l->code->end_unit;
  for (int32_t i = 0; i < g->nodes.n; i++) {
    const pst_node *n = &g->nodes.at[i];
    for (int k = 0; k < PST_OP_MAX_IN; k++) {
      pst_value v = n->in[k];
      if (v == PST_NO_VALUE || pst__value(g, v)->kind != PST_VALUE_COMPUTED) continue;
      int32_t maker = g->nodes.at[pst__value(g, v)->index].unit;
      place *p = &l->places[v];
      if (n->phase == PST_PHASE_FORWARD && maker < n->unit) {
        if (maker < first && n->unit >= first) p->received_forward = p->seen = true;
        if (maker < end && n->unit >= end) p->sent_forward = p->seen = true;
      } else if (n->phase == PST_PHASE_BACKWARD && maker > n->unit) {
        if (maker >= end && n->unit < end) p->received_backward = p->seen = true;
        if (maker >= first && n->unit < first) p->sent_backward = p->seen = true;
      }
    }
  }
}

static uint8_t segment_of(const lowering *l, pst_value v) {
  const pst_value_info *info = pst__value(l->g, v);
  const place *p = &l->places[v];
  if (info->kind == PST_VALUE_PARAM) return PST_SEGMENT_PARAM;
  if (info->kind == PST_VALUE_INPUT) return PST_SEGMENT_INPUT;
  if (v == l->g->result) return PST_SEGMENT_LOSS;
  if (p->received_forward) return p->read_by[WEIGHT] ? PST_SEGMENT_DEFER : PST_SEGMENT_STASH;
  if (p->received_backward) return p->read_by[WEIGHT] ? PST_SEGMENT_DEFER : PST_SEGMENT_GRAD_IN;
  if (p->made_by != WEIGHT && p->read_by[WEIGHT]) return PST_SEGMENT_DEFER;
  if (p->made_by == FORWARD && (p->read_by[BACKWARD] || p->sent_backward)) return PST_SEGMENT_STASH;
  if (p->sent_forward) return PST_SEGMENT_OUT;
  if (p->sent_backward) return PST_SEGMENT_GRAD_OUT;
  return PST_SEGMENT_WORK;
}

/* ---- places ---- */

static pst_status place_fixed(lowering *l, pst_operand *o) {
  int64_t bytes = pst_operand_elements(o) * (int64_t)pst_dtype_size((pst_dtype)o->dtype);
  return pst_layout_place(&l->code->layout[o->segment], bytes, l->options->max_block_bytes, &o->block,
                          &o->offset);
}

static pst_status place_values(lowering *l) {
  for (pst_value v = 0; v < l->g->values.n; v++) {
    place *p = &l->places[v];
    if (!p->seen) continue;
    p->segment = segment_of(l, v);
    p->at = operand_of(pst__value(l->g, v), p->segment);
    if (p->segment != PST_SEGMENT_WORK) PST_TRY(place_fixed(l, &p->at));
    if (p->segment == PST_SEGMENT_INPUT) l->code->inputs[pst__value(l->g, v)->index] = p->at;
    if (p->segment == PST_SEGMENT_LOSS) l->code->result = p->at;
  }
  return PST_OK;
}

static pst_status place_params(lowering *l) {
  const pst_graph *g = l->g;
  pst_stage_code *code = l->code;
  code->params = calloc((size_t)g->params.n + 1, sizeof *code->params);
  if (!code->params) return pst_fail(PST_NO_MEMORY, "no memory for %d parameters", g->params.n);
  for (int32_t i = 0; i < g->params.n; i++) {
    const pst_param_info *info = &g->params.at[i];
    if (!l->places[info->value].seen) continue;
    pst_stage_param *p = &code->params[code->n_params++];
    *p = (pst_stage_param){
        .param = i, .value = l->places[info->value].at, .owner = true, .n_uses = info->n_uses};
    p->gradient = calloc((size_t)info->n_uses + 1, sizeof *p->gradient);
    p->use_stage = calloc((size_t)info->n_uses + 1, sizeof *p->use_stage);
    if (!p->gradient || !p->use_stage)
      return pst_fail(PST_NO_MEMORY, "no memory for parameter %s", info->name);
    for (int32_t a = 0; a < g->accumulators.n; a++)
      if (g->accumulators.at[a].param == i)
        p->use_stage[g->accumulators.at[a].use] = stage_of(l, g->accumulators.at[a].unit);
    p->owner = info->n_uses == 0 || p->use_stage[0] == code->stage;
    for (int32_t u = 0; u < info->n_uses; u++) {
      if (!p->owner && p->use_stage[u] != code->stage) continue;
      p->gradient[u] = operand_of(pst__value(g, info->value), PST_SEGMENT_GRAD);
      p->gradient[u].dtype = PST_F32;
      PST_TRY(place_fixed(l, &p->gradient[u]));
    }
  }
  return PST_OK;
}

static const pst_operand *gradient_of(const lowering *l, int32_t accumulator) {
  const pst_accumulator *a = &l->g->accumulators.at[accumulator];
  for (int32_t i = 0; i < l->code->n_params; i++)
    if (l->code->params[i].param == a->param) return &l->code->params[i].gradient[a->use];
  return NULL;
}

/* ---- programs ---- */

/* The dying input that output 0 of the op may lie on, or PST_NO_VALUE. */
static pst_value reusable_input(const lowering *l, const pst_node *n, int program, int32_t at) {
  pst_op_row row = pst__op_row(n->code);
  if (n->out[0] == PST_NO_VALUE || l->places[n->out[0]].segment != PST_SEGMENT_WORK) return PST_NO_VALUE;
  for (int k = row.n_in - 1; k >= 0; k--) {
    bool addend = (row.flags & PST_OP_ADDEND) && k == row.n_in - 1;
    pst_value v = n->in[k];
    if (v == PST_NO_VALUE || !(addend || (row.flags & PST_OP_IN_PLACE))) continue;
    const place *p = &l->places[v];
    const pst_value_info *a = pst__value(l->g, v), *b = pst__value(l->g, n->out[0]);
    if (p->segment != PST_SEGMENT_WORK || p->made_by != program || p->last_read != at ||
        a->dtype != b->dtype || bytes_of(a) != bytes_of(b))
      continue;
    bool twice = false; /* an op that reads the value at another operand too must not overwrite it */
    for (int j = 0; j < row.n_in; j++) twice = twice || (j != k && n->in[j] == v);
    if (!twice) return v;
  }
  return PST_NO_VALUE;
}

/* Spans of the values of WORK; an op's output joins the span of the input it overwrites. */
static int32_t make_spans(lowering *l, int program, pst_span *spans) {
  int32_t n = 0;
  for (int32_t i = 0; i < l->n_nodes[program]; i++) {
    const pst_node *node = l->nodes[program][i];
    pst_value onto = reusable_input(l, node, program, i);
    for (int k = 0; k < PST_OP_MAX_OUT; k++) {
      if (node->out[k] == PST_NO_VALUE) continue;
      place *p = &l->places[node->out[k]];
      if (p->segment != PST_SEGMENT_WORK) continue;
      if (k == 0 && onto != PST_NO_VALUE) {
        p->span = l->places[onto].span;
        if (p->last_read > spans[p->span].last) spans[p->span].last = p->last_read;
        continue;
      }
      p->span = n;
      spans[n++] =
          (pst_span){.bytes = bytes_of(pst__value(l->g, node->out[k])), .first = i, .last = p->last_read};
    }
  }
  return n;
}

static pst_operand workspace_operand(int64_t bytes) {
  return (pst_operand){.segment = PST_SEGMENT_WORK, .dtype = PST_U8, .rank = 1, .dim = {bytes, 1, 1, 1}};
}

static void fill_operands(const lowering *l, const pst_node *n, const pst_span *spans, pst_op *op) {
  for (int k = 0; k < PST_OP_MAX_IN; k++)
    if (n->in[k] != PST_NO_VALUE) op->in[k] = l->places[n->in[k]].at;
  for (int k = 0; k < PST_OP_MAX_OUT; k++)
    if (n->out[k] != PST_NO_VALUE) op->out[k] = l->places[n->out[k]].at;
  for (int k = 0; k < PST_OP_MAX_ACC; k++)
    if (n->acc[k] >= 0) op->acc[k] = *gradient_of(l, n->acc[k]);
}

static pst_status lower_program(lowering *l, int which, const char *name, pst_program *out) {
  int32_t n = l->n_nodes[which];
  pst_status st = PST_OK;
  pst_span *spans = malloc(((size_t)n * (PST_OP_MAX_OUT + 1) + 1) * sizeof *spans);
  out->name = name;
  out->ops = calloc((size_t)n + 1, sizeof *out->ops);
  out->n_ops = n;
  if (!spans || !out->ops) {
    st = pst_fail(PST_NO_MEMORY, "no memory for a program of %d ops", n);
    goto done;
  }
  int32_t n_spans = make_spans(l, which, spans);
  for (int32_t i = 0; i < n; i++) {
    const pst_node *node = l->nodes[which][i];
    pst_op *op = &out->ops[i];
    *op = (pst_op){.code = node->code, .attrs = node->attrs, .unit = node->unit};
    fill_operands(l, node, spans, op);
    int64_t scratch = l->options->workspace ? l->options->workspace(l->options->user, op) : 0;
    if (scratch <= 0) continue;
    op->workspace = workspace_operand(scratch);
    op->workspace.offset = n_spans; /* which span, until it is placed */
    spans[n_spans++] = (pst_span){.bytes = scratch, .first = i, .last = i};
  }
  PST_GOTO(st,
           pst_memory_plan(spans, n_spans, l->options->max_block_bytes, &l->code->layout[PST_SEGMENT_WORK]),
           done);
  for (pst_value v = 0; v < l->g->values.n; v++) {
    place *p = &l->places[v];
    if (!p->seen || p->segment != PST_SEGMENT_WORK || p->made_by != which) continue;
    p->at.block = spans[p->span].block;
    p->at.offset = spans[p->span].offset;
  }
  for (int32_t i = 0; i < n; i++) {
    pst_op *op = &out->ops[i];
    fill_operands(l, l->nodes[which][i], spans, op);
    if (!pst_operand_present(&op->workspace)) continue;
    const pst_span *s = &spans[op->workspace.offset];
    op->workspace.block = s->block;
    op->workspace.offset = s->offset;
  }
done:
  free(spans);
  return st;
}

pst_status pst_program_place_workspace(pst_program *program, pst_layout *work,
                                       const pst_stage_options *options) {
  for (int64_t i = 0; i < program->n_ops; i++) {
    int64_t scratch = options->workspace ? options->workspace(options->user, &program->ops[i]) : 0;
    if (scratch <= 0) continue;
    pst_span s = {.bytes = scratch};
    PST_TRY(pst_memory_plan(&s, 1, options->max_block_bytes, work));
    program->ops[i].workspace = workspace_operand(scratch);
    program->ops[i].workspace.block = s.block;
    program->ops[i].workspace.offset = s.offset;
  }
  return PST_OK;
}

/* ---- boundaries ---- */

static pst_status collect_ports(const lowering *l, size_t flag_offset, pst_ports *out) {
  out->at = calloc((size_t)l->g->values.n + 1, sizeof *out->at);
  if (!out->at) return pst_fail(PST_NO_MEMORY, "no memory for a stage's boundary");
  for (pst_value v = 0; v < l->g->values.n; v++) {
    const place *p = &l->places[v];
    if (*(const bool *)((const char *)p + flag_offset))
      out->at[out->n++] = (pst_port){.value = v, .at = p->at};
  }
  return PST_OK;
}

static pst_status check_cut(const pst_graph *g, const int32_t *cut, int32_t n_stages, int32_t stage) {
  if (n_stages < 1 || stage < 0 || stage >= n_stages || cut[0] != 0 || cut[n_stages] != g->units.n)
    return pst_fail(PST_INVALID, "a cut into %d stages must begin at unit 0 and end at unit %d", n_stages,
                    g->units.n);
  for (int32_t s = 0; s < n_stages; s++)
    if (cut[s] >= cut[s + 1]) return pst_fail(PST_INVALID, "stage %d would hold no unit", s);
  return PST_OK;
}

pst_status pst_stage_lower(const pst_graph *g, const int32_t *cut, int32_t n_stages, int32_t stage,
                           const pst_stage_options *options, pst_stage_code **out_code) {
  PST_TRY(pst_graph_status(g));
  PST_TRY(check_cut(g, cut, n_stages, stage));
  if (g->result == PST_NO_VALUE)
    return pst_fail(PST_INVALID, "the graph names no result: call pst_graph_loss() or pst_graph_logits()");
  if (g->options.purpose == PST_PURPOSE_TRAIN && !g->differentiated)
    return pst_fail(PST_INVALID, "a graph for training must be differentiated before it is lowered");
  pst_status st = PST_OK;
  lowering l = {.g = g, .options = options, .cut = cut};
  l.code = calloc(1, sizeof *l.code);
  l.places = calloc((size_t)g->values.n + 1, sizeof *l.places);
  if (!l.code || !l.places) {
    st = pst_fail(PST_NO_MEMORY, "no memory to lower stage %d", stage);
    goto done;
  }
  for (pst_value v = 0; v < g->values.n; v++) l.places[v].made_by = OUTSIDE, l.places[v].span = -1;
  *l.code = (pst_stage_code){.stage = stage,
                             .n_stages = n_stages,
                             .first_unit = cut[stage],
                             .end_unit = cut[stage + 1],
                             .form = options->form};
  PST_GOTO(st, pick_nodes(&l), done);
  find_crossings(&l);
  PST_GOTO(st, place_values(&l), done);
  PST_GOTO(st, place_params(&l), done);
  bool split = options->form == PST_BACKWARD_SPLIT;
  PST_GOTO(st, lower_program(&l, FORWARD, "F", &l.code->forward), done);
  PST_GOTO(
      st, lower_program(&l, BACKWARD, split ? "I" : "B", split ? &l.code->input_gradient : &l.code->backward),
      done);
  if (split) PST_GOTO(st, lower_program(&l, WEIGHT, "W", &l.code->weight_gradient), done);
  PST_GOTO(st, collect_ports(&l, offsetof(place, received_forward), &l.code->receive_forward), done);
  PST_GOTO(st, collect_ports(&l, offsetof(place, sent_forward), &l.code->send_forward), done);
  PST_GOTO(st, collect_ports(&l, offsetof(place, received_backward), &l.code->receive_backward), done);
  PST_GOTO(st, collect_ports(&l, offsetof(place, sent_backward), &l.code->send_backward), done);
  *out_code = l.code;
  l.code = NULL;
done:
  pst_stage_destroy(l.code);
  for (int p = 0; p < N_PROGRAMS; p++) free(l.nodes[p]);
  free(l.places);
  return st;
}

void pst_stage_destroy(pst_stage_code *code) {
  if (!code) return;
  free(code->forward.ops);
  free(code->backward.ops);
  free(code->input_gradient.ops);
  free(code->weight_gradient.ops);
  for (int s = 0; s < PST_SEGMENT_COUNT; s++) free(code->layout[s].block_bytes);
  free(code->receive_forward.at);
  free(code->send_forward.at);
  free(code->receive_backward.at);
  free(code->send_backward.at);
  for (int32_t i = 0; i < code->n_params; i++) {
    free(code->params[i].gradient);
    free(code->params[i].use_stage);
  }
  free(code->params);
  free(code);
}
