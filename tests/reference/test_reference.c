/* The reference itself: its gradients against central differences of its forward ops, a few values by hand.
 */
#include "tests/conformance/cases.h"
#include "tests/reference/reference.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Forward op of a gradient op, and where things are: input `in` of forward has its gradient in out or acc
 * `slot` of the gradient op, dy is its input `dy`. */
typedef struct pairing {
  pst_op_code gradient, forward;
  int dy; /* -1: the loss is the sum of out[0] times ctrl.gradient_scale */
  struct {
    int input, slot;
    bool accumulated;
  } wanted[3];
  int n_wanted;
} pairing;

static const pairing pairings[] = {
    {PST_OP_embedding_grad, PST_OP_embedding, 1, {{1, 0, true}, {2, 1, true}}, 2},
    {PST_OP_linear_wgrad, PST_OP_linear, 1, {{1, 0, true}, {2, 1, true}}, 2},
    {PST_OP_layer_norm_grad, PST_OP_layer_norm, 4, {{0, 0, false}, {1, 0, true}, {2, 1, true}}, 3},
    {PST_OP_rms_norm_grad, PST_OP_rms_norm, 3, {{0, 0, false}, {1, 0, true}}, 2},
    {PST_OP_attention_grad, PST_OP_attention, 6, {{0, 0, false}, {1, 1, false}, {2, 2, false}}, 3},
    {PST_OP_gelu_grad, PST_OP_gelu, 1, {{0, 0, false}}, 1},
    {PST_OP_silu_gate_grad, PST_OP_silu_gate, 2, {{0, 0, false}, {1, 1, false}}, 2},
    {PST_OP_slice_grad, PST_OP_slice, 0, {{0, 0, false}}, 1},
    {PST_OP_cross_entropy_grad, PST_OP_cross_entropy, -1, {{0, 0, false}}, 1},
    {PST_OP_linear_cross_entropy_grad, PST_OP_linear_cross_entropy, -1, {{0, 1, false}, {1, 0, true}}, 2},
};

/* The forward op and its inputs, made from a gradient op's case. */
typedef struct forward {
  pst_op op;
  double *in[PST_OP_MAX_IN];
  double *out[PST_OP_MAX_OUT];
  const pst_ctrl *ctrl;
} forward;

static double *copy_of(const double *x, int64_t n) {
  double *y = calloc((size_t)n + 1, sizeof *y);
  assert_non_null(y);
  if (x) memcpy(y, x, (size_t)n * sizeof *y);
  return y;
}

static void give(forward *f, int i, const pst_operand *o, const double *x, uint64_t seed) {
  int64_t n = pst_operand_elements(o);
  f->op.in[i] = *o;
  f->in[i] = x ? copy_of(x, n) : case_normal(seed, 900 + (uint64_t)i, n, 1);
}

static forward forward_of(const op_case *c, const case_values *v, const pairing *p) {
  forward f = {.op = {.code = p->forward, .attrs = c->op.attrs}, .ctrl = &c->ctrl};
  const pst_operand *in = c->op.in;
  switch (p->forward) {
  case PST_OP_embedding: /* tokens, table, position */
    give(&f, 0, &in[0], v->in[0], 0);
    give(&f, 1, &c->op.acc[0], NULL, c->seed);
    if (v->acc[1]) give(&f, 2, &c->op.acc[1], NULL, c->seed);
    f.op.out[0] = in[1];
    break;
  case PST_OP_linear: /* x, w, bias */
    give(&f, 0, &in[0], v->in[0], 0);
    give(&f, 1, &c->op.acc[0], NULL, c->seed);
    if (v->acc[1]) give(&f, 2, &c->op.acc[1], NULL, c->seed);
    f.op.out[0] = in[1];
    break;
  case PST_OP_layer_norm:
  case PST_OP_rms_norm:
    give(&f, 0, &in[0], v->in[0], 0);
    give(&f, 1, &in[1], v->in[1], 0);
    if (p->forward == PST_OP_layer_norm && v->acc[1]) give(&f, 2, &c->op.acc[1], NULL, c->seed);
    f.op.out[0] = in[0];
    f.op.out[1] = in[2];
    if (p->forward == PST_OP_layer_norm) f.op.out[2] = in[3];
    break;
  case PST_OP_slice:
    give(&f, 0, &c->op.out[0], NULL, c->seed);
    f.op.out[0] = in[0];
    break;
  default: /* the inputs of forward come first, in its order */
    for (int i = 0; i < 4; i++)
      if (v->in[i] && i != p->dy) give(&f, i, &in[i], v->in[i], 0);
    f.op.out[0] = p->forward == PST_OP_attention ? in[4] : in[0];
    if (p->forward == PST_OP_attention) f.op.out[1] = in[5];
    if (p->dy < 0) f.op.out[0] = case_operand(PST_F32, pst_operand_rows(&in[0]), 0, 0, 0);
  }
  for (int i = 0; i < PST_OP_MAX_OUT; i++)
    if (pst_operand_present(&f.op.out[i])) f.out[i] = copy_of(NULL, pst_operand_elements(&f.op.out[i]));
  return f;
}

static void forward_free(forward *f) {
  for (int i = 0; i < PST_OP_MAX_IN; i++) free(f->in[i]);
  for (int i = 0; i < PST_OP_MAX_OUT; i++) free(f->out[i]);
}

/* The loss whose gradient the op forms: the sum of dy * y, or of the losses times their factor. */
static double loss_of(forward *f, const double *dy) {
  reference_call call = {.op = &f->op, .ctrl = f->ctrl};
  for (int i = 0; i < PST_OP_MAX_IN; i++) call.in[i] = f->in[i];
  for (int i = 0; i < PST_OP_MAX_OUT; i++) call.out[i] = f->out[i];
  assert_true(reference_run(&call));
  double loss = 0;
  for (int64_t i = 0, n = pst_operand_elements(&f->op.out[0]); i < n; i++)
    loss += f->out[0][i] * (dy ? dy[i] : (double)f->ctrl->gradient_scale);
  return loss;
}

/* Analytic gradients from unrounded forward results, against differences at up to 40 elements of each input.
 * The number of elements compared. */
static int check_case(const op_case *c, const pairing *p) {
  case_values v;
  case_values_make(c, &v);
  forward f = forward_of(c, &v, p);
  const double *dy = p->dy >= 0 ? v.in[p->dy] : NULL;
  loss_of(&f, dy);
  reference_call call = {.op = &c->op, .ctrl = &c->ctrl};
  for (int i = 0; i < PST_OP_MAX_IN; i++) call.in[i] = v.in[i];
  if (p->forward == PST_OP_layer_norm || p->forward == PST_OP_rms_norm) {
    call.in[2] = f.out[1];
    if (p->forward == PST_OP_layer_norm) call.in[3] = f.out[2];
  }
  if (p->forward == PST_OP_attention) {
    call.in[4] = f.out[0];
    call.in[5] = f.out[1];
  }
  double *acc[PST_OP_MAX_ACC] = {0};
  for (int i = 0; i < PST_OP_MAX_OUT; i++) call.out[i] = v.out[i];
  for (int i = 0; i < PST_OP_MAX_ACC; i++)
    if (v.acc[i]) call.acc[i] = acc[i] = copy_of(NULL, pst_operand_elements(&c->op.acc[i]));
  double *saved_out = NULL;
  if (p->forward == PST_OP_attention || f.out[1])
    saved_out = copy_of(f.out[0], pst_operand_elements(&f.op.out[0]));
  if (p->forward == PST_OP_attention) call.in[4] = saved_out;
  assert_true(reference_run(&call));
  int compared = 0;
  for (int w = 0; w < p->n_wanted; w++) {
    int input = p->wanted[w].input, slot = p->wanted[w].slot;
    const double *seen = p->wanted[w].accumulated ? acc[slot] : v.out[slot];
    if (!f.in[input] || !seen) continue;
    int64_t n = pst_operand_elements(&f.op.in[input]), stride = n / 40 + 1;
    for (int64_t i = 0; i < n; i += stride) {
      const double h = 1e-5, x = f.in[input][i];
      f.in[input][i] = x + h;
      double above = loss_of(&f, dy);
      f.in[input][i] = x - h;
      double below = loss_of(&f, dy);
      f.in[input][i] = x;
      double wanted = (above - below) / (2 * h);
      double addend = p->forward == PST_OP_slice && c->op.in[1].segment ? v.in[1][i] : 0;
      addend += (p->forward == PST_OP_layer_norm && input == 0 && v.in[5]) ? v.in[5][i] : 0;
      addend += (p->forward == PST_OP_rms_norm && input == 0 && v.in[4]) ? v.in[4][i] : 0;
      if (!(fabs(seen[i] - addend - wanted) <= 2e-6 * (1 + fabs(wanted)) + 2e-6 * fabs(above)))
        fail_msg("%s: gradient of input %d, element %lld: seen %.10g, by differences %.10g", c->name, input,
                 (long long)i, seen[i] - addend, wanted);
      compared++;
    }
  }
  for (int i = 0; i < PST_OP_MAX_ACC; i++) free(acc[i]);
  free(saved_out);
  forward_free(&f);
  case_values_free(&v);
  return compared;
}

/* Small fp32 cases without NaNs; one-element norms have a curvature of rstd^3 that differences cannot follow.
 */
static bool usable(const op_case *c) {
  if (c->special_input >= 0 || c->alias >= 0 || strstr(c->name, "bf16")) return false;
  if (strstr(c->name, "norm") && pst_operand_width(&c->op.in[0]) < 3) return false;
  if (c->op.attrs.packed) return c->op.in[0].dim[1] <= 70;
  return pst_operand_elements(&c->op.in[0]) < 9000;
}

static void gradients_match_differences(void **state) {
  case_list list = {0};
  cases_build(&list, 1);
  for (size_t k = 0; k < sizeof pairings / sizeof *pairings; k++) {
    int compared = 0;
    for (int i = 0; i < list.n; i++)
      if (list.at[i].op.code == pairings[k].gradient && usable(&list.at[i]))
        compared += check_case(&list.at[i], &pairings[k]);
    print_message("pairing %d: %d elements compared\n", (int)k, compared);
    assert_true(compared > 0);
  }
  cases_free(&list);
}

/* Ops that are their own gradients: linear with the other layout, rotary turned back. */
static void rotary_turns_back(void **state) {
  pst_op op = {.code = PST_OP_rotary, .attrs = {.heads = 2, .head_dim = 6, .theta = 100}};
  op.in[0] = op.out[0] = case_operand(PST_F32, 2, 5, 12, 0);
  double *x = case_normal(3, 0, 120, 1), y[120], z[120];
  assert_true(reference_run(&(reference_call){.op = &op, .in = {x}, .out = {y}}));
  op.attrs.inverse = true;
  assert_true(reference_run(&(reference_call){.op = &op, .in = {y}, .out = {z}}));
  int moved = 0;
  for (int i = 0; i < 120; i++) {
    assert_true(fabs(x[i] - z[i]) < 1e-12);
    moved += fabs(x[i] - y[i]) > 1e-3;
  }
  assert_true(moved > 50);
  free(x);
}

/* Two keys with scores 0 and ln 3: weights 1/4 and 3/4, the log-sum-exp ln 4. */
static void attention_by_hand(void **state) {
  pst_op op = {.code = PST_OP_attention,
               .attrs = {.heads = 1, .kv_heads = 1, .head_dim = 1, .scale = 1, .causal = true}};
  op.in[0] = case_operand(PST_F32, 1, 2, 1, 0);
  double q[] = {5, 1}, k[] = {0, log(3)}, v[] = {8, 16}, o[2], lse[2];
  assert_true(reference_run(&(reference_call){.op = &op, .in = {q, k, v}, .out = {o, lse}}));
  assert_true(fabs(o[0] - 8) < 1e-12 && fabs(o[1] - 14) < 1e-12);
  assert_true(fabs(lse[0]) < 1e-12 && fabs(lse[1] - log(4)) < 1e-12);
}

/* One step by hand: m = 0.1, v = 0.1, both corrected to 1; p = 1 - 0.1 * 0.5 - 0.1 * 1. */
static void adamw_by_hand(void **state) {
  pst_op op = {.code = PST_OP_adamw, .attrs = {.beta1 = 0.9f, .beta2 = 0.9f, .weight_decay = 0.5f}};
  op.in[0] = op.out[0] = case_operand(PST_F32, 1, 0, 0, 0);
  pst_ctrl ctrl = {.lr = 0.1f, .bias1 = 10, .bias2 = 10, .clip = 0.5f};
  double p[] = {1}, next[1], grad[] = {2}, m[] = {0}, v[] = {0};
  assert_true(reference_run(
      &(reference_call){.op = &op, .in = {p}, .out = {next}, .acc = {grad, m, v}, .ctrl = &ctrl}));
  assert_true(fabs(next[0] - 0.85) < 1e-6 && grad[0] == 0 && fabs(m[0] - 0.1) < 1e-6 &&
              fabs(v[0] - 0.1) < 1e-6);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(gradients_match_differences),
                                     cmocka_unit_test(rotary_turns_back), cmocka_unit_test(attention_by_hand),
                                     cmocka_unit_test(adamw_by_hand)};
  print_message("seed 1\n");
  return cmocka_run_group_tests(tests, NULL, NULL);
}
