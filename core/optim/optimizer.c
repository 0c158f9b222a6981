#include "core/optim/optimizer.h"

#include <math.h>
#include <stdlib.h>

void pst_optimizer_options_init(pst_optimizer_options *o) {
  *o = (pst_optimizer_options){
      .kind = PST_ADAMW, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .clip = 1.0f};
}

double pst_learning_rate_at(const pst_learning_rate *lr, int64_t step) {
  if (step < lr->warmup) return lr->peak * (double)(step + 1) / (double)(lr->warmup + 1);
  if (lr->decay == PST_DECAY_CONSTANT) return lr->peak;
  if (step >= lr->steps) return lr->final;
  double gone = (double)(step - lr->warmup) / (double)(lr->steps - lr->warmup);
  double left = lr->decay == PST_DECAY_LINEAR ? 1.0 - gone : 0.5 * (1.0 + cos(3.14159265358979323846 * gone));
  return lr->final + left * (lr->peak - lr->final);
}

float pst_clip_factor(double norm, float clip) {
  return clip > 0 && norm > (double)clip ? (float)((double)clip / norm) : 1.0f;
}

void pst_optimizer_ctrl(const pst_optimizer_options *o, int64_t step, double lr, float clip_factor,
                        pst_ctrl *ctrl) {
  ctrl->lr = (float)lr;
  ctrl->clip = clip_factor;
  ctrl->bias1 = (float)(1.0 / (1.0 - pow((double)o->beta1, (double)(step + 1))));
  ctrl->bias2 = (float)(1.0 / (1.0 - pow((double)o->beta2, (double)(step + 1))));
}

typedef struct building {
  const pst_graph *g;
  pst_stage_code *stage;
  const pst_optimizer_options *options;
  const pst_stage_options *stage_options;
  pst_update_code *code;
} building;

static pst_status place(building *b, pst_operand *o, uint8_t segment) {
  o->segment = segment;
  int64_t bytes = pst_operand_elements(o) * (int64_t)pst_dtype_size((pst_dtype)o->dtype);
  return pst_layout_place(&b->stage->layout[segment], bytes, b->stage_options->max_block_bytes, &o->block,
                          &o->offset);
}

static pst_status add_moment(building *b, pst_update_param *p, const char *name) {
  pst_operand o = b->stage->params[p->stage_param].value;
  o.dtype = PST_F32;
  PST_TRY(place(b, &o, PST_SEGMENT_OPTIM));
  p->names[p->n_moments] = name;
  p->moments[p->n_moments++] = o;
  return PST_OK;
}

/* Operands of adamw: grad, m, v, [master]; of sgd: grad, [velocity], [master]. */
static pst_status add_update(building *b, pst_update_param *p) {
  const pst_stage_param *sp = &b->stage->params[p->stage_param];
  const pst_optimizer_options *o = b->options;
  bool adamw = o->kind == PST_ADAMW, master = sp->value.dtype != PST_F32;
  pst_op op = {.code = adamw ? PST_OP_adamw : PST_OP_sgd, .unit = -1};
  op.in[0] = op.out[0] = sp->value;
  op.out[0].segment = PST_SEGMENT_PARAM_NEXT;
  op.acc[0] = sp->gradient[0];
  if (adamw) {
    PST_TRY(add_moment(b, p, "m"));
    PST_TRY(add_moment(b, p, "v"));
    op.acc[1] = p->moments[0];
    op.acc[2] = p->moments[1];
  } else if (o->momentum != 0) {
    PST_TRY(add_moment(b, p, "velocity"));
    op.acc[1] = p->moments[0];
  }
  if (master) {
    PST_TRY(add_moment(b, p, "master"));
    op.acc[adamw ? 3 : 2] = p->moments[p->n_moments - 1];
  }
  op.attrs = (pst_attrs){.beta1 = o->beta1, .beta2 = o->beta2, .eps = o->eps, .momentum = o->momentum};
  if (b->g->params.at[sp->param].decay) op.attrs.weight_decay = o->weight_decay;
  b->code->update.ops[b->code->update.n_ops++] = op;
  return PST_OK;
}

static void add_tie(building *b, const pst_stage_param *sp, int32_t use) {
  pst_op op = {.code = PST_OP_add, .unit = -1};
  op.in[0] = op.out[0] = sp->gradient[0];
  op.in[1] = sp->gradient[use];
  b->code->tie.ops[b->code->tie.n_ops++] = op;
}

static pst_status add_param(building *b, int32_t index) {
  const pst_stage_param *sp = &b->stage->params[index];
  pst_update_param *p = &b->code->params[b->code->n_params++];
  *p = (pst_update_param){.stage_param = index};
  for (int32_t u = 1; u < sp->n_uses; u++) add_tie(b, sp, u);
  int64_t blocks = (pst_operand_elements(&sp->value) + PST_NORM_BLOCK - 1) / PST_NORM_BLOCK;
  p->sums = (pst_operand){.dtype = PST_F64, .rank = 1, .dim = {blocks, 1, 1, 1}};
  PST_TRY(place(b, &p->sums, PST_SEGMENT_STATE));
  pst_op norm = {.code = PST_OP_sum_squares, .unit = -1};
  norm.in[0] = sp->gradient[0];
  norm.out[0] = p->sums;
  b->code->norm.ops[b->code->norm.n_ops++] = norm;
  return add_update(b, p);
}

pst_status pst_optimizer_lower(const pst_graph *g, pst_stage_code *stage,
                               const pst_optimizer_options *options, const pst_stage_options *stage_options,
                               pst_update_code **out_code) {
  pst_status st = PST_OK;
  building b = {.g = g, .stage = stage, .options = options, .stage_options = stage_options};
  size_t n = (size_t)stage->n_params + 1, n_uses = 1;
  for (int32_t i = 0; i < stage->n_params; i++) n_uses += (size_t)stage->params[i].n_uses;
  b.code = calloc(1, sizeof *b.code);
  if (b.code) {
    b.code->tie = (pst_program){.name = "tie", .ops = calloc(n_uses, sizeof(pst_op))};
    b.code->norm = (pst_program){.name = "norm", .ops = calloc(n, sizeof(pst_op))};
    b.code->update = (pst_program){.name = "update", .ops = calloc(n, sizeof(pst_op))};
    b.code->params = calloc(n, sizeof *b.code->params);
  }
  if (!b.code || !b.code->tie.ops || !b.code->norm.ops || !b.code->update.ops || !b.code->params) {
    st = pst_fail(PST_NO_MEMORY, "no memory for the optimizer of %d parameters", stage->n_params);
    goto done;
  }
  for (int32_t i = 0; i < stage->n_params; i++)
    if (stage->params[i].owner) PST_GOTO(st, add_param(&b, i), done);
  pst_layout *work = &stage->layout[PST_SEGMENT_WORK];
  PST_GOTO(st, pst_program_place_workspace(&b.code->tie, work, stage_options), done);
  PST_GOTO(st, pst_program_place_workspace(&b.code->norm, work, stage_options), done);
  PST_GOTO(st, pst_program_place_workspace(&b.code->update, work, stage_options), done);
  *out_code = b.code;
  b.code = NULL;
done:
  pst_update_code_destroy(b.code);
  return st;
}

void pst_update_code_destroy(pst_update_code *code) {
  if (!code) return;
  free(code->tie.ops);
  free(code->norm.ops);
  free(code->update.ops);
  free(code->params);
  free(code);
}
