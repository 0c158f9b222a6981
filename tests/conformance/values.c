#include "tests/conformance/cases.h"

#include "core/base/rng.h"
#include "tests/reference/reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double *doubles(int64_t n) {
  double *p = calloc((size_t)(n > 0 ? n : 1), sizeof *p);
  if (!p) {
    fprintf(stderr, "conformance: no memory for %lld doubles\n", (long long)n);
    exit(3);
  }
  return p;
}

pst_operand case_operand(pst_dtype dtype, int64_t d0, int64_t d1, int64_t d2, int64_t d3) {
  int64_t dim[PST_MAX_RANK] = {d0, d1, d2, d3};
  pst_operand o = {.segment = PST_SEGMENT_WORK, .dtype = (uint8_t)dtype, .dim = {1, 1, 1, 1}};
  for (int i = 0; i < PST_MAX_RANK && dim[i]; i++) {
    o.dim[i] = dim[i];
    o.rank++;
  }
  return o;
}

/* Box-Muller in double from the project's counter-based generator. */
double *case_normal(uint64_t seed, uint64_t stream, int64_t n, double std) {
  double *x = doubles(n);
  pst_rng_key key = pst_rng_key_make(seed, stream);
  for (int64_t i = 0; i < n; i++) {
    uint32_t r[4];
    pst_rng_philox(key, (uint32_t[4]){(uint32_t)i, 0, 0, 77}, r);
    double u = (r[0] + 1.0) / 4294967297.0, angle = r[1] * (6.283185307179586 / 4294967296.0);
    x[i] = std * sqrt(-2 * log(u)) * cos(angle);
  }
  return x;
}

static int64_t random_below(uint64_t seed, uint64_t stream, int64_t i, int64_t n) {
  uint32_t r[4];
  pst_rng_philox(pst_rng_key_make(seed, stream), (uint32_t[4]){(uint32_t)i, 0, 0, 78}, r);
  return (int64_t)(r[0] % (uint64_t)n);
}

static void round_to(const pst_operand *o, double *x) {
  for (int64_t i = 0, n = pst_operand_elements(o); i < n; i++) {
    if (o->dtype == PST_F32) x[i] = (float)x[i];
    if (o->dtype == PST_BF16) x[i] = pst_bf16_to_f32(pst_f32_to_bf16((float)x[i]));
  }
}

/* Index operands: tokens below the table's rows; targets of which every fifth, the first included, is
 * ignored but the last never; lengths from 0 to T, the first sequence empty when there is another. */
static void fill_indices(const op_case *c, int which, double *x) {
  const pst_op *op = &c->op;
  int64_t n = pst_operand_elements(&op->in[which]), limit = 1;
  switch (op->code) {
  case PST_OP_embedding:
    limit = op->in[1].dim[0];
    break;
  case PST_OP_embedding_grad:
    limit = op->acc[0].dim[0];
    break;
  case PST_OP_cross_entropy:
  case PST_OP_cross_entropy_grad:
    limit = pst_operand_width(&op->in[0]);
    break;
  case PST_OP_linear_cross_entropy:
  case PST_OP_linear_cross_entropy_grad:
    limit = pst_operand_elements(&op->in[1]) / pst_operand_width(&op->in[0]);
    break;
  case PST_OP_take:
    limit = op->in[0].dim[1];
    break;
  default:
    limit = op->in[0].dim[1] + 1;
  }
  bool targets = op->code == PST_OP_cross_entropy || op->code == PST_OP_cross_entropy_grad ||
                 op->code == PST_OP_linear_cross_entropy || op->code == PST_OP_linear_cross_entropy_grad;
  for (int64_t i = 0; i < n; i++) {
    x[i] = (double)random_below(c->seed, 100 + (uint64_t)which, i, limit);
    if (targets && i % 5 == 0 && i + 1 < n) x[i] = -1;
    if (op->code == PST_OP_attention || op->code == PST_OP_attention_grad) {
      if (i == 0 && n > 1) x[i] = 0;
      if (i + 1 == n) x[i] = fmax(x[i], 1);
    }
  }
}

/* What the forward op left for this gradient op: statistics, outputs. */
static void fill_from_forward(const op_case *c, case_values *v) {
  pst_op forward = c->op;
  reference_call call = {.op = &forward, .ctrl = &c->ctrl};
  switch (c->op.code) {
  case PST_OP_layer_norm_grad:
  case PST_OP_rms_norm_grad: {
    bool rms = c->op.code == PST_OP_rms_norm_grad;
    double *y = doubles(pst_operand_elements(&c->op.in[0]));
    forward.code = rms ? PST_OP_rms_norm : PST_OP_layer_norm;
    call.in[0] = v->in[0];
    call.in[1] = v->in[1];
    call.out[0] = y;
    call.out[1] = v->in[2];
    if (!rms) call.out[2] = v->in[3];
    reference_run(&call);
    free(y);
    break;
  }
  case PST_OP_attention_grad:
    forward.code = PST_OP_attention;
    for (int i = 0; i < 4; i++) call.in[i] = v->in[i];
    call.out[0] = v->in[4];
    call.out[1] = v->in[5];
    reference_run(&call);
    break;
  default:
    break;
  }
}

void case_values_make(const op_case *c, case_values *out_values) {
  case_values v = {{0}, {0}, {0}, {0}};
  for (int i = 0; i < PST_OP_MAX_IN; i++) {
    const pst_operand *o = &c->op.in[i];
    if (!pst_operand_present(o)) continue;
    int64_t n = pst_operand_elements(o);
    v.in[i] = o->dtype == PST_I32 ? doubles(n) : case_normal(c->seed, (uint64_t)i, n, 1);
    if (o->dtype == PST_I32) fill_indices(c, i, v.in[i]);
    round_to(o, v.in[i]);
  }
  if (c->special_input >= 0) v.in[c->special_input][c->special_index] = c->special_value;
  fill_from_forward(c, &v);
  for (int i = 0; i < PST_OP_MAX_IN; i++)
    if (v.in[i]) round_to(&c->op.in[i], v.in[i]);
  for (int i = 0; i < PST_OP_MAX_ACC; i++) {
    const pst_operand *o = &c->op.acc[i];
    if (!pst_operand_present(o)) continue;
    int64_t n = pst_operand_elements(o);
    v.acc[i] = case_normal(c->seed, 50 + (uint64_t)i, n, 1);
    if (c->op.code == PST_OP_adamw && i == 2)
      for (int64_t j = 0; j < n; j++) v.acc[i][j] = fabs(v.acc[i][j]);
    round_to(o, v.acc[i]);
    v.acc_result[i] = doubles(n);
    memcpy(v.acc_result[i], v.acc[i], (size_t)n * sizeof(double));
  }
  for (int i = 0; i < PST_OP_MAX_OUT; i++)
    if (pst_operand_present(&c->op.out[i])) v.out[i] = doubles(pst_operand_elements(&c->op.out[i]));
  reference_call call = {.op = &c->op, .ctrl = &c->ctrl};
  for (int i = 0; i < PST_OP_MAX_IN; i++) call.in[i] = v.in[i];
  for (int i = 0; i < PST_OP_MAX_OUT; i++) call.out[i] = v.out[i];
  for (int i = 0; i < PST_OP_MAX_ACC; i++) call.acc[i] = v.acc_result[i];
  if (!reference_run(&call)) {
    fprintf(stderr, "conformance: the reference has no op %d\n", (int)c->op.code);
    exit(70);
  }
  *out_values = v;
}

void case_values_free(case_values *values) {
  for (int i = 0; i < PST_OP_MAX_IN; i++) free(values->in[i]);
  for (int i = 0; i < PST_OP_MAX_OUT; i++) free(values->out[i]);
  for (int i = 0; i < PST_OP_MAX_ACC; i++) {
    free(values->acc[i]);
    free(values->acc_result[i]);
  }
  memset(values, 0, sizeof *values);
}
