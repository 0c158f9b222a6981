/* The builder, the shape rules and differentiation: what is refused and how it is said, how gradients add
 * up, what a unit costs, and the gradient of a whole model against differences of its loss. */
#include "core/graph/graph.h"

#include "core/graph/ir.h"
#include "tests/engine/toy.h"
#include "tests/graph/rig.h"
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { B = 2, T = 4, C = 8, V = 11 };

static pst_graph *open_graph(pst_purpose purpose) {
  pst_graph *g = NULL;
  assert_ok(pst_graph_create(&(pst_graph_options){.batch = B, .sequence = T, .purpose = purpose}, &g));
  return g;
}

static pst_value matrix(pst_graph *g, const char *name, int64_t rows, int64_t columns) {
  return pst_param(g, name, 2, (int64_t[]){rows, columns}, (pst_init){PST_INIT_NORMAL, 0.1f});
}

static pst_value vector(pst_graph *g, const char *name, int64_t n) {
  return pst_param(g, name, 1, &n, (pst_init){PST_INIT_ONES, 0});
}

/* A graph with x[B,T,C] in unit "embed". */
static pst_value stream(pst_graph *g) {
  pst_graph_unit(g, "embed");
  return pst_embedding(g, pst_graph_tokens(g), matrix(g, "table", V, C), PST_NO_VALUE);
}

/* ---- the builder ---- */

static void the_first_fault_is_kept(void **state) {
  (void)state;
  pst_graph *g = open_graph(PST_PURPOSE_TRAIN);
  pst_value x = stream(g);
  pst_graph_unit(g, "h.0.mlp");
  pst_value y = pst_linear(g, x, matrix(g, "fc.weight", 5, C + 1), PST_NO_VALUE, PST_NO_VALUE, false);
  assert_int_equal(y, PST_NO_VALUE);
  assert_int_equal(pst_add(g, y, x), PST_NO_VALUE);
  assert_int_equal(pst_param(g, "bad", 0, NULL, (pst_init){0}), PST_NO_VALUE);
  pst_graph_fault(g, PST_INTERNAL, "a later one");
  pst_graph_loss(g, y);
  assert_fails(pst_graph_status(g), PST_INVALID, "linear fc.weight: the input is 8 wide, the weight takes 9");
  assert_fails(pst_graph_differentiate(g), PST_INVALID, "fc.weight");
  pst_graph_destroy(g);
}

/* Each function gives one fault in unit "here"; the message holds `text`. */
typedef struct fault {
  const char *text;
  void (*make)(pst_graph *g, pst_value x);
} fault;

static void f_add(pst_graph *g, pst_value x) {
  pst_add(g, x, pst_slice(g, x, 0, 3));
}
static void f_slice(pst_graph *g, pst_value x) {
  pst_slice(g, x, 5, 4);
}
static void f_slice_negative(pst_graph *g, pst_value x) {
  pst_slice(g, x, -1, 2);
}
static void f_bias(pst_graph *g, pst_value x) {
  pst_linear(g, x, matrix(g, "w", 5, C), vector(g, "b", 6), PST_NO_VALUE, false);
}
static void f_addend(pst_graph *g, pst_value x) {
  pst_linear(g, x, matrix(g, "w", 5, C), PST_NO_VALUE, x, false);
}
static void f_norm(pst_graph *g, pst_value x) {
  pst_layer_norm(g, x, vector(g, "gain", C + 1), PST_NO_VALUE, 1e-5f);
}
static void f_rms(pst_graph *g, pst_value x) {
  pst_rms_norm(g, x, matrix(g, "gain", 1, C), 1e-5f);
}
static void f_rotary(pst_graph *g, pst_value x) {
  pst_rotary(g, x, 3, 1e4f);
}
static void f_gate(pst_graph *g, pst_value x) {
  pst_silu_gate(g, x, PST_NO_VALUE);
}
static void f_tokens_as_floats(pst_graph *g, pst_value x) {
  pst_gelu(g, pst_graph_tokens(g), false);
}
static void f_floats_as_tokens(pst_graph *g, pst_value x) {
  pst_embedding(g, x, matrix(g, "t2", V, C), PST_NO_VALUE);
}
static void f_context(pst_graph *g, pst_value x) {
  pst_embedding(g, pst_graph_tokens(g), matrix(g, "t2", V, C), matrix(g, "pos", T - 1, C));
}
static void attention(pst_graph *g, pst_value q, pst_value k, int heads, int kv_heads, int d) {
  pst_attention(
      g, q, k, k,
      &(pst_attention_options){.heads = heads, .kv_heads = kv_heads, .head_dim = d, .lengths = PST_NO_VALUE});
}
static void f_heads(pst_graph *g, pst_value x) {
  attention(g, x, x, 4, 3, 2);
}
static void f_head_width(pst_graph *g, pst_value x) {
  attention(g, x, x, 4, 2, 2);
}
static void f_packed(pst_graph *g, pst_value x) {
  attention(g, x, PST_NO_VALUE, 4, 4, 2);
}
static void f_lengths(pst_graph *g, pst_value x) {
  pst_attention(
      g, x, x, x,
      &(pst_attention_options){.heads = 4, .kv_heads = 4, .head_dim = 2, .lengths = pst_graph_targets(g)});
}
static void f_targets(pst_graph *g, pst_value x) {
  pst_cross_entropy(g, x, pst_graph_lengths(g));
}
static void f_loss_width(pst_graph *g, pst_value x) {
  pst_linear_cross_entropy(g, x, matrix(g, "head", V, C + 1), pst_graph_targets(g), false);
}
static void f_dropout(pst_graph *g, pst_value x) {
  pst_dropout(g, x, PST_NO_VALUE, 1.0f);
}
static void f_dropout_nan(pst_graph *g, pst_value x) {
  pst_dropout(g, x, PST_NO_VALUE, NAN);
}
static void f_no_value(pst_graph *g, pst_value x) {
  pst_add(g, x, 9999);
}
/* What is missing must not turn into an optional operand left out. */
static void f_rotary_missing(pst_graph *g, pst_value x) {
  pst_linear(g, x, matrix(g, "w", C, C), PST_NO_VALUE, pst_rotary(g, PST_NO_VALUE, 2, 1e4f), false);
}
static void f_cast_missing(pst_graph *g, pst_value x) {
  pst_linear(g, x, matrix(g, "w", C, C), PST_NO_VALUE, pst_cast(g, PST_NO_VALUE, PST_F32), false);
}
static void f_dropout_missing(pst_graph *g, pst_value x) {
  pst_linear(g, x, matrix(g, "w", C, C), PST_NO_VALUE, pst_dropout(g, PST_NO_VALUE, PST_NO_VALUE, 0), false);
}
static void f_shape_twice(pst_graph *g, pst_value x) {
  matrix(g, "table", V, C + 1);
}
static void f_dimension(pst_graph *g, pst_value x) {
  matrix(g, "wide", 0, C);
}
static void f_overflow(pst_graph *g, pst_value x) {
  matrix(g, "wide", INT64_MAX / 2, 4);
}
static void f_loss_of_input(pst_graph *g, pst_value x) {
  pst_graph_loss(g, pst_graph_tokens(g));
}
static void f_two_results(pst_graph *g, pst_value x) {
  pst_value loss = pst_cross_entropy(g, x, pst_graph_targets(g));
  pst_graph_loss(g, loss);
  pst_graph_loss(g, loss);
}
static void f_loss_of_rows(pst_graph *g, pst_value x) {
  pst_graph_loss(g, pst_cross_entropy(g, pst_take(g, x, pst_graph_positions(g)), pst_graph_positions(g)));
}
static void f_half_loss(pst_graph *g, pst_value x) {
  pst_graph_loss(g, pst_cast(g, pst_cross_entropy(g, x, pst_graph_targets(g)), PST_BF16));
}
static void drop_attention(pst_graph *g, pst_value x, float share) {
  pst_attention(g, x, x, x,
                &(pst_attention_options){
                    .heads = 4, .kv_heads = 4, .head_dim = 2, .dropout = share, .lengths = PST_NO_VALUE});
}
static void f_attention_dropout(pst_graph *g, pst_value x) {
  drop_attention(g, x, 1.0f);
}
static void f_attention_dropout_nan(pst_graph *g, pst_value x) {
  drop_attention(g, x, NAN);
}
static void f_logits(pst_graph *g, pst_value x) {
  pst_graph_logits(g, x);
}

static void faults_say_what_is_wrong(void **state) {
  (void)state;
  static const fault faults[] = {
      {"add in unit here: its inputs' shapes or types do not fit: f32[2,4,8], f32[2,4,3]", f_add},
      {"slice in unit here: its inputs' shapes or types do not fit: f32[2,4,8]", f_slice},
      {"slice in unit here", f_slice_negative},
      {"linear in unit here: its inputs' shapes or types do not fit: f32[2,4,8], f32[5,8], f32[6]", f_bias},
      {"linear in unit here: its inputs' shapes or types do not fit: f32[2,4,8], f32[5,8], -, f32[2,4,8]",
       f_addend},
      {"layer_norm in unit here: its inputs' shapes or types do not fit: f32[2,4,8], f32[9]", f_norm},
      {"rms_norm in unit here", f_rms},
      {"8 columns in heads of 3", f_rotary},
      {"silu_gate in unit here: its inputs' shapes or types do not fit: f32[2,4,8]", f_gate},
      {"gelu in unit here: its inputs' shapes or types do not fit: i32[2,4]", f_tokens_as_floats},
      {"embedding in unit here", f_floats_as_tokens},
      {"a sequence of 4 tokens is longer than the model's context of 3", f_context},
      {"4 heads, 3 key/value heads", f_heads},
      {"q, k and v do not hold 4, 2 and 2 heads of 2", f_head_width},
      {"do not hold 4, 4 and 4 heads", f_packed},
      {"attention in unit here", f_lengths},
      {"cross_entropy in unit here", f_targets},
      {"linear_cross_entropy in unit here", f_loss_width},
      {"dropout: share 1,", f_dropout},
      {"dropout: share", f_dropout_nan},
      {"add: input 1 is not a value of this graph", f_no_value},
      {"rotary: input 0 is not a value of this graph", f_rotary_missing},
      {"cast: input 0 is not a value of this graph", f_cast_missing},
      {"dropout: input 0 is not a value of this graph", f_dropout_missing},
      {"parameter table is asked for twice with unlike shapes", f_shape_twice},
      {"parameter wide: dimension 0 is 0", f_dimension},
      {"fewer than 2^59 elements in all", f_overflow},
      {"the loss named is not a value that this graph computes", f_loss_of_input},
      {"result is named twice", f_two_results},
      {"the loss named is not one number per token: wanted [2,4]", f_loss_of_rows},
      {"the loss named is bf16, wanted f32", f_half_loss},
      {"attention: share 1 dropped", f_attention_dropout},
      {"attention: share", f_attention_dropout_nan},
      {"a logits was named in a graph built for a loss", f_logits},
  };
  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
    pst_graph *g = open_graph(PST_PURPOSE_TRAIN);
    pst_value x = stream(g);
    pst_graph_unit(g, "here");
    assert_ok(pst_graph_status(g));
    faults[i].make(g, x);
    assert_fails(pst_graph_status(g), PST_INVALID, faults[i].text);
    pst_graph_destroy(g);
  }
}

static void options_are_checked(void **state) {
  (void)state;
  pst_graph *g = NULL;
  assert_fails(pst_graph_create(&(pst_graph_options){.batch = 0, .sequence = 4}, &g), PST_INVALID,
               "0 sequences");
  assert_fails(pst_graph_create(&(pst_graph_options){.batch = 1 << 20, .sequence = 1 << 20}, &g), PST_INVALID,
               "1048576 tokens");
  assert_fails(pst_graph_create(&(pst_graph_options){.batch = 1, .sequence = 1, .dtype = PST_F16}, &g),
               PST_UNSUPPORTED, "f16");
  assert_null(g);
  g = open_graph(PST_PURPOSE_TRAIN);
  pst_embedding(g, pst_graph_tokens(g), matrix(g, "table", V, C), PST_NO_VALUE);
  assert_fails(pst_graph_status(g), PST_INVALID, "embedding stands before the first pst_graph_unit()");
  pst_graph_destroy(g);
  pst_graph_destroy(NULL);
}

static void a_name_is_one_parameter(void **state) {
  (void)state;
  pst_graph *g = open_graph(PST_PURPOSE_TRAIN);
  pst_value a = matrix(g, "w", 3, 4), b = matrix(g, "w2", 3, 4);
  assert_int_equal(matrix(g, "w", 3, 4), a);
  assert_int_not_equal(a, b);
  assert_int_equal(g->params.n, 2);
  assert_true(g->params.at[0].decay);
  vector(g, "v", 4);
  assert_false(g->params.at[2].decay);
  assert_int_equal(pst_graph_tokens(g), pst_graph_tokens(g));
  pst_graph_destroy(g);
}

static void dropout_is_for_training_alone(void **state) {
  (void)state;
  pst_graph *g = open_graph(PST_PURPOSE_LOSS);
  pst_value x = stream(g);
  int32_t n = g->nodes.n;
  assert_int_equal(pst_dropout(g, x, PST_NO_VALUE, 0.5f), x);
  assert_int_equal(g->nodes.n, n);
  pst_dropout(g, x, x, 0.5f);
  assert_int_equal(g->nodes.at[n].code, PST_OP_add);
  pst_graph_destroy(g);
  g = open_graph(PST_PURPOSE_TRAIN);
  x = stream(g);
  x = pst_dropout(g, x, PST_NO_VALUE, 0.5f);
  pst_dropout(g, x, PST_NO_VALUE, 0.5f);
  assert_int_equal(g->nodes.at[1].attrs.site, 0);
  assert_int_equal(g->nodes.at[2].attrs.site, 1);
  pst_graph_destroy(g);
}

/* ---- differentiation ---- */

static void end(pst_graph *g, pst_value x) {
  pst_graph_unit(g, "head");
  pst_graph_loss(g, pst_linear_cross_entropy(g, x, matrix(g, "head", V, C), pst_graph_targets(g), false));
}

static void what_does_not_reach_the_loss_is_refused(void **state) {
  (void)state;
  pst_graph *g = open_graph(PST_PURPOSE_TRAIN);
  pst_value x = stream(g);
  pst_linear(g, x, matrix(g, "lonely", 3, C), PST_NO_VALUE, PST_NO_VALUE, false);
  end(g, x);
  assert_fails(pst_graph_differentiate(g), PST_INVALID, "parameter lonely does not reach the loss");
  pst_graph_destroy(g);
  g = open_graph(PST_PURPOSE_TRAIN);
  x = stream(g);
  vector(g, "unused", 3);
  end(g, x);
  assert_fails(pst_graph_differentiate(g), PST_INVALID, "parameter unused does not reach the loss");
  pst_graph_destroy(g);
}

static void only_a_loss_is_differentiated_and_once(void **state) {
  (void)state;
  pst_graph *g = open_graph(PST_PURPOSE_TRAIN);
  pst_value x = stream(g);
  assert_fails(pst_graph_differentiate(g), PST_INVALID, "without a loss");
  end(g, x);
  assert_ok(pst_graph_differentiate(g));
  assert_fails(pst_graph_differentiate(g), PST_INVALID, "already");
  pst_graph_destroy(g);
  g = open_graph(PST_PURPOSE_LOSS);
  end(g, stream(g));
  assert_fails(pst_graph_differentiate(g), PST_INVALID, "not built for training");
  pst_graph_destroy(g);
  assert_ok(pst_graph_create(&(pst_graph_options){.batch = B, .sequence = 1}, &g));
  x = stream(g);
  pst_graph_loss(g, pst_cross_entropy(g, pst_take(g, x, pst_graph_positions(g)), pst_graph_positions(g)));
  assert_fails(pst_graph_differentiate(g), PST_UNSUPPORTED, "take has no gradient");
  pst_graph_destroy(g);
  g = open_graph(PST_PURPOSE_TRAIN);
  x = pst_cross_entropy(g, stream(g), pst_graph_targets(g));
  pst_graph_loss(g, pst_scale(g, x, 2));
  assert_fails(pst_graph_differentiate(g), PST_INVALID, "the loss is made by scale, wanted a cross entropy");
  pst_graph_destroy(g);
}

/* The accumulators of each use of parameter `p`, in order of use; their units and the ops that add to them.
 */
static void uses_are_numbered_by_the_models_order(void **state) {
  (void)state;
  pst_graph *g = open_graph(PST_PURPOSE_TRAIN);
  pst_value x = stream(g);
  pst_graph_unit(g, "twice");
  pst_value w = matrix(g, "w", C, C);
  x = pst_linear(g, x, w, PST_NO_VALUE, PST_NO_VALUE, false); /* use 0 */
  pst_value first = x;
  x = pst_linear(g, x, w, PST_NO_VALUE, PST_NO_VALUE, true); /* use 1 */
  pst_value second = x;
  pst_graph_unit(g, "again");
  x = pst_linear(g, x, w, PST_NO_VALUE, PST_NO_VALUE, false); /* use 2 */
  pst_graph_unit(g, "head");
  pst_graph_loss(g, pst_linear_cross_entropy(g, x, matrix(g, "table", V, C), pst_graph_targets(g), false));
  assert_ok(pst_graph_differentiate(g));
  assert_string_equal(g->params.at[1].name, "w");
  assert_int_equal(g->params.at[1].n_uses, 3);
  assert_int_equal(g->params.at[0].n_uses, 2); /* the table, tied to the head */
  int seen = 0, table_seen = 0;
  for (int32_t i = 0; i < g->nodes.n; i++) {
    const pst_node *n = &g->nodes.at[i];
    for (int k = 0; k < PST_OP_MAX_ACC; k++) {
      if (n->acc[k] < 0) continue;
      const pst_accumulator *a = &g->accumulators.at[n->acc[k]];
      assert_int_equal(a->unit, n->unit);
      if (a->param == 0) {
        assert_int_equal(a->use, n->unit == 0 ? 0 : 1);
        table_seen++;
        continue;
      }
      int want = n->in[0] == first ? 1 : n->in[0] == second ? 2 : 0;
      assert_int_equal(a->use, want);
      assert_int_equal(n->code, PST_OP_linear_wgrad);
      seen |= 1 << a->use;
    }
  }
  assert_int_equal(seen, 7);
  assert_int_equal(table_seen, 2);
  pst_graph_destroy(g);
}

/* x is read three times: its gradient is (third + second) + first, whatever the cut. */
static void contributions_add_up_in_reverse_order(void **state) {
  (void)state;
  pst_graph *g = open_graph(PST_PURPOSE_TRAIN);
  pst_value x = stream(g), y[3];
  for (int i = 0; i < 3; i++) y[i] = pst_gelu(g, x, false);
  pst_value sum = pst_add(g, pst_add(g, y[0], y[1]), y[2]);
  end(g, sum);
  assert_ok(pst_graph_differentiate(g));
  pst_value gelu_grad[3] = {-1, -1, -1}, sums[2] = {-1, -1};
  int n_grads = 0, n_sums = 0;
  for (int32_t i = 0; i < g->nodes.n; i++) {
    const pst_node *n = &g->nodes.at[i];
    if (n->phase != PST_PHASE_BACKWARD) continue;
    if (n->code == PST_OP_gelu_grad) gelu_grad[n_grads++] = n->out[0];
    if (n->code != PST_OP_add) continue;
    assert_in_range(n_sums, 0, 1);
    assert_int_equal(n->in[0], gelu_grad[n_sums + 1]);                         /* the new one */
    assert_int_equal(n->in[1], n_sums == 0 ? gelu_grad[0] : sums[n_sums - 1]); /* what was known */
    sums[n_sums++] = n->out[0];
  }
  assert_int_equal(n_grads, 3);
  assert_int_equal(n_sums, 2);
  const pst_node *last = &g->nodes.at[g->nodes.n - 1];
  assert_int_equal(last->code, PST_OP_embedding_grad);
  assert_int_equal(last->in[1], sums[1]);
  pst_graph_destroy(g);
}

static void the_loss_forms_its_gradient_at_once(void **state) {
  (void)state;
  pst_graph *g = open_graph(PST_PURPOSE_TRAIN);
  end(g, stream(g));
  int32_t forward = g->nodes.n;
  assert_ok(pst_graph_differentiate(g));
  const pst_node *loss = &g->nodes.at[forward - 1];
  assert_int_equal(loss->code, PST_OP_linear_cross_entropy_grad);
  assert_int_equal(loss->phase, PST_PHASE_FORWARD);
  assert_true(loss->acc[0] >= 0);
  assert_int_equal(g->nodes.n, forward + 1); /* the embedding's gradient is all that is left */
  assert_int_equal(g->nodes.at[forward].in[1], loss->out[1]);
  pst_graph_destroy(g);
}

static void units_cost_what_their_ops_cost(void **state) {
  (void)state;
  pst_graph *g = open_graph(PST_PURPOSE_TRAIN);
  pst_value x = stream(g);
  pst_graph_unit(g, "dense");
  x = pst_linear(g, x, matrix(g, "w", C, C), PST_NO_VALUE, x, false);
  pst_graph_unit(g, "attention");
  x = pst_attention(
      g, x, x, x,
      &(pst_attention_options){
          .heads = 2, .kv_heads = 2, .head_dim = C / 2, .causal = true, .lengths = PST_NO_VALUE});
  pst_graph_unit(g, "head");
  pst_graph_loss(g, pst_linear_cross_entropy(g, x, matrix(g, "table", V, C), pst_graph_targets(g), false));
  assert_ok(pst_graph_differentiate(g));
  pst_graph_cost(g);
  pst_graph_cost(g); /* counts anew */
  const pst_unit *u = g->units.at;
  int64_t rows = B * T;
  assert_int_equal(u[1].flops_forward, 2 * rows * C * C);
  assert_int_equal(u[1].flops_backward, 2 * 2 * rows * C * C);
  int64_t product = 2 * B * T * T * C / 2;
  assert_int_equal(u[2].flops_forward, 2 * product);
  assert_in_range(u[2].flops_backward, 5 * product,
                  5 * product + 2 * rows * C); /* and two sums of gradients */
  assert_int_equal(u[3].flops_forward, 3 * 2 * rows * C * V);
  assert_int_equal(u[3].flops_backward, 0);
  assert_int_equal(u[0].param_bytes, V * C * 4);
  assert_int_equal(u[1].param_bytes, C * C * 4);
  assert_int_equal(u[3].param_bytes, 0); /* the table is counted where it is used first */
  pst_graph_destroy(g);
}

/* ---- a whole model's gradient against its loss ---- */

static double mean_loss(pst_pipeline *p, const pst_batch *batch) {
  double sum;
  int64_t n;
  assert_ok(pst_pipeline_loss(p, batch, &sum, &n, NULL));
  return sum / (double)n;
}

static double loss_along(pst_pipeline *p, const pst_batch *batch, int32_t param, const float *w,
                         const float *d, int64_t n, double by) {
  float *moved = malloc((size_t)n * sizeof *moved);
  for (int64_t i = 0; i < n; i++) moved[i] = (float)((double)w[i] + by * (double)d[i]);
  assert_ok(pst_pipeline_write(p, PST_TENSOR_PARAM, param, 0, 0, moved, n * 4));
  free(moved);
  return mean_loss(p, batch);
}

/* Central differences of two widths, extrapolated (L. F. Richardson 1911): the error is of fourth order. */
static double slope(pst_pipeline *p, const pst_batch *batch, int32_t param, const float *w, const float *d,
                    int64_t n, double h) {
  double s[2];
  for (int i = 0; i < 2; i++) {
    double by = h * (i + 1);
    s[i] = (loss_along(p, batch, param, w, d, n, by) - loss_along(p, batch, param, w, d, n, -by)) / (2 * by);
  }
  return (4 * s[0] - s[1]) / 3;
}

/* Along each tensor's gradient, where the slope is the gradient's length, and at its largest elements. The
 * loss is fp32, so differences know it to about 1e-7 / h. */
static double check_tensor(pst_pipeline *p, const pst_batch *batch, const char *name, int32_t param,
                           const float *gradient, int64_t n) {
  float *w = malloc((size_t)n * sizeof *w), *d = malloc((size_t)n * sizeof *d);
  assert_ok(pst_pipeline_read(p, PST_TENSOR_PARAM, param, 0, 0, w, n * 4));
  double size = 0, worst = 0;
  int64_t top = 0;
  for (int64_t i = 0; i < n; i++) {
    size += (double)gradient[i] * (double)gradient[i];
    if (fabsf(gradient[i]) > fabsf(gradient[top])) top = i;
  }
  size = sqrt(size);
  for (int round = 0; round < 2 && size > 1e-4; round++) {
    double want = round == 0 ? size : (double)gradient[top];
    for (int64_t i = 0; i < n; i++)
      d[i] = round == 0 ? (float)((double)gradient[i] / size) : (float)(i == top);
    double seen = slope(p, batch, param, w, d, n, 2e-2);
    double apart = fabs(seen - want) / (fabs(want) + 1e-2);
    if (apart > 1e-3)
      fail_msg("%s, %s: slope %.6g, gradient %.6g", name, round ? "element" : "whole", seen, want);
    if (apart > worst) worst = apart;
  }
  assert_ok(pst_pipeline_write(p, PST_TENSOR_PARAM, param, 0, 0, w, n * 4));
  free(w);
  free(d);
  return worst;
}

static void toy_gradient_matches_differences(toy_options o, const char *model) {
  o.config.layers = 2;
  o.config.dropout_embedding = o.config.dropout_attention = o.config.dropout_residual = 0;
  o.config.initializer_range = 0.15;
  o.batch = 2;
  o.sequence = 12;
  o.microbatches = 2;
  o.n_stages = 2;
  o.evaluates = true;
  toy *t = toy_create(&o);
  pst_batch batch;
  toy_batch(t, 0, &batch);
  pst_step_result result;
  assert_ok(pst_pipeline_gradients(t->pipeline, &batch, 1, 0, &result));
  assert_true(fabs(result.loss - mean_loss(t->pipeline, &batch)) < 1e-6);
  double worst = 0;
  for (int32_t i = 0; i < t->train->params.n; i++) {
    int64_t n;
    float *gradient = toy_gradient(t, i, &n);
    double apart = check_tensor(t->pipeline, &batch, t->train->params.at[i].name, i, gradient, n);
    if (apart > worst) worst = apart;
    free(gradient);
  }
  print_message("%s: %d tensors, worst relative difference %.1e\n", model, t->train->params.n, worst);
  toy_destroy(t);
}

static void gpt2_gradient_matches_differences(void **state) {
  (void)state;
  toy_gradient_matches_differences(toy_gpt2(), "gpt2");
}

static void llama_gradient_matches_differences(void **state) {
  (void)state;
  toy_gradient_matches_differences(toy_llama(), "llama");
}

/* A dag, tied over the middle: sums of gradients along every path. */
static void two_streams_gradient_matches_differences(void **state) {
  (void)state;
  float dropout = 0;
  rig_options o = {.build = rig_two_streams,
                   .user = &dropout,
                   .batch = 2,
                   .sequence = 6,
                   .microbatches = 3,
                   .vocab = RIG_TWO_STREAMS_VOCAB,
                   .n_stages = 3,
                   .evaluates = true};
  rig *r = NULL;
  assert_ok(rig_create(&o, &r));
  pst_batch batch;
  rig_batch(r, 0, &batch);
  pst_step_result result;
  assert_ok(pst_pipeline_gradients(r->pipeline, &batch, 1, 0, &result));
  double worst = 0;
  for (int32_t i = 0; i < r->train->params.n; i++) {
    int64_t n = rig_elements(r, i);
    float *gradient = malloc((size_t)n * sizeof *gradient);
    assert_ok(pst_pipeline_read(r->pipeline, PST_TENSOR_GRADIENT, i, 0, 0, gradient, n * 4));
    double apart = check_tensor(r->pipeline, &batch, r->train->params.at[i].name, i, gradient, n);
    if (apart > worst) worst = apart;
    free(gradient);
  }
  print_message("two streams: %d tensors, worst relative difference %.1e\n", r->train->params.n, worst);
  rig_destroy(r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_first_fault_is_kept),
      cmocka_unit_test(faults_say_what_is_wrong),
      cmocka_unit_test(options_are_checked),
      cmocka_unit_test(a_name_is_one_parameter),
      cmocka_unit_test(dropout_is_for_training_alone),
      cmocka_unit_test(what_does_not_reach_the_loss_is_refused),
      cmocka_unit_test(only_a_loss_is_differentiated_and_once),
      cmocka_unit_test(uses_are_numbered_by_the_models_order),
      cmocka_unit_test(contributions_add_up_in_reverse_order),
      cmocka_unit_test(the_loss_forms_its_gradient_at_once),
      cmocka_unit_test(units_cost_what_their_ops_cost),
      cmocka_unit_test(gpt2_gradient_matches_differences),
      cmocka_unit_test(llama_gradient_matches_differences),
      cmocka_unit_test(two_streams_gradient_matches_differences),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
