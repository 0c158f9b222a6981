#include "core/graph/op_table.h"

#include <string.h>

/* ---- shape rules ---- */

typedef const pst_value_info *const *inputs;

static bool is_float(const pst_value_info *v) {
  return v && (v->dtype == PST_F32 || v->dtype == PST_BF16);
}
static bool is_index(const pst_value_info *v) {
  return v && v->dtype == PST_I32;
}
static int64_t width(const pst_value_info *v) {
  return v->dim[v->rank - 1];
}

static int64_t elements(const pst_value_info *v) {
  return v->dim[0] * v->dim[1] * v->dim[2] * v->dim[3];
}
static int64_t rows(const pst_value_info *v) {
  return elements(v) / width(v);
}

static bool same_shape(const pst_value_info *a, const pst_value_info *b) {
  return a->rank == b->rank && memcmp(a->dim, b->dim, sizeof a->dim) == 0;
}

static bool is_vector(const pst_value_info *v, int64_t n) {
  return is_float(v) && v->rank == 1 && v->dim[0] == n;
}

static pst_shape like(const pst_value_info *v) {
  pst_shape s = {.dtype = v->dtype, .rank = v->rank};
  memcpy(s.dim, v->dim, sizeof s.dim);
  return s;
}

/* The shape of v with another last dimension. */
static pst_shape like_with_width(const pst_value_info *v, int64_t w) {
  pst_shape s = like(v);
  s.dim[s.rank - 1] = w;
  return s;
}

/* One fp32 number per row of v. */
static pst_shape per_row(const pst_value_info *v) {
  pst_shape s = {.dtype = PST_F32, .rank = v->rank - 1};
  memcpy(s.dim, v->dim, sizeof s.dim);
  s.dim[v->rank - 1] = 1;
  return s;
}

static bool shape_embedding(pst_graph *g, inputs in, const pst_attrs *a, pst_shape *out) {
  const pst_value_info *tokens = in[0], *table = in[1], *pos = in[2];
  if (!is_index(tokens) || tokens->rank != 2 || !is_float(table) || table->rank != 2) return false;
  if (pos && (!is_float(pos) || pos->rank != 2 || pos->dim[1] != table->dim[1])) return false;
  if (pos && pos->dim[0] < tokens->dim[1]) {
    pst_graph_fault(g, PST_INVALID, "a sequence of %lld tokens is longer than the model's context of %lld",
                    (long long)tokens->dim[1], (long long)pos->dim[0]);
    return false;
  }
  out[0] =
      (pst_shape){.dtype = table->dtype, .rank = 3, .dim = {tokens->dim[0], tokens->dim[1], table->dim[1]}};
  return true;
}

static bool shape_none(pst_graph *g, inputs in, const pst_attrs *a, pst_shape *out) {
  return in[0] && in[1];
}

static bool shape_linear(pst_graph *g, inputs in, const pst_attrs *a, pst_shape *out) {
  const pst_value_info *x = in[0], *w = in[1], *bias = in[2], *addend = in[3];
  if (!is_float(x) || x->rank < 2 || !is_float(w) || w->rank != 2) return false;
  int64_t from = w->dim[a->w_in_out ? 0 : 1], to = w->dim[a->w_in_out ? 1 : 0];
  if (width(x) != from) {
    pst_graph_fault(g, PST_INVALID, "linear %s: the input is %lld wide, the weight takes %lld",
                    w->kind == PST_VALUE_PARAM ? g->params.at[w->index].name : "", (long long)width(x),
                    (long long)from);
    return false;
  }
  if (bias && !is_vector(bias, to)) return false;
  out[0] = like_with_width(x, to);
  return !addend || (addend->rank == x->rank && width(addend) == to && rows(addend) == rows(x) &&
                     addend->dtype == x->dtype);
}

static bool shape_layer_norm(pst_graph *g, inputs in, const pst_attrs *a, pst_shape *out) {
  const pst_value_info *x = in[0];
  if (!is_float(x) || x->rank < 2 || !is_vector(in[1], width(x)) || (in[2] && !is_vector(in[2], width(x))))
    return false;
  out[0] = like(x);
  out[1] = out[2] = per_row(x);
  return true;
}

static bool shape_rms_norm(pst_graph *g, inputs in, const pst_attrs *a, pst_shape *out) {
  const pst_value_info *x = in[0];
  if (!is_float(x) || x->rank < 2 || !is_vector(in[1], width(x))) return false;
  out[0] = like(x);
  out[1] = per_row(x);
  return true;
}

static bool shape_like_first(pst_graph *g, inputs in, const pst_attrs *a, pst_shape *out) {
  if (!is_float(in[0])) return false;
  out[0] = like(in[0]);
  return true;
}

/* Both operands, where the second is given, of one shape and dtype. */
static bool shape_elementwise(pst_graph *g, inputs in, const pst_attrs *a, pst_shape *out) {
  if (!is_float(in[0]) || (in[1] && (!same_shape(in[0], in[1]) || in[0]->dtype != in[1]->dtype)))
    return false;
  out[0] = like(in[0]);
  return true;
}

static bool shape_pair(pst_graph *g, inputs in, const pst_attrs *a, pst_shape *out) {
  return in[1] && shape_elementwise(g, in, a, out);
}

static bool shape_silu_gate_grad(pst_graph *g, inputs in, const pst_attrs *a, pst_shape *out) {
  if (!shape_pair(g, in, a, out)) return false;
  out[1] = out[0];
  return true;
}

static bool shape_rotary(pst_graph *g, inputs in, const pst_attrs *a, pst_shape *out) {
  if (!shape_elementwise(g, in, a, out) || in[0]->rank != 3) return false;
  if (a->head_dim >= 2 && a->head_dim % 2 == 0 && a->heads >= 1 &&
      (int64_t)a->heads * a->head_dim == width(in[0]))
    return true;
  pst_graph_fault(g, PST_INVALID,
                  "rotary: %lld columns in heads of %d, wanted an even head size that divides the width",
                  (long long)width(in[0]), a->head_dim);
  return false;
}

static bool shape_attention(pst_graph *g, inputs in, const pst_attrs *a, pst_shape *out) {
  const pst_value_info *q = in[0], *k = in[1], *v = in[2], *lengths = in[3];
  if (a->heads < 1 || a->kv_heads < 1 || a->head_dim < 1 || a->heads % a->kv_heads != 0) {
    pst_graph_fault(
        g, PST_INVALID,
        "attention: %d heads, %d key/value heads of %d: wanted heads a multiple of key/value heads", a->heads,
        a->kv_heads, a->head_dim);
    return false;
  }
  if (!is_float(q) || q->rank != 3) return false;
  int64_t own = (int64_t)a->heads * a->head_dim, shared = (int64_t)a->kv_heads * a->head_dim;
  if (a->packed ? k || v || width(q) != own + 2 * shared
                : width(q) != own || !is_float(k) || !is_float(v) || k->rank != 3 || width(k) != shared ||
                      !same_shape(k, v) || rows(k) != rows(q)) {
    pst_graph_fault(g, PST_INVALID, "attention: q, k and v do not hold %d, %d and %d heads of %d", a->heads,
                    a->kv_heads, a->kv_heads, a->head_dim);
    return false;
  }
  if (lengths && (!is_index(lengths) || lengths->rank != 1 || lengths->dim[0] != q->dim[0])) return false;
  out[0] = like_with_width(q, own);
  out[1] = (pst_shape){.dtype = PST_F32, .rank = 3, .dim = {q->dim[0], a->heads, q->dim[1], 1}};
  return true;
}

static bool shape_attention_grad(pst_graph *g, inputs in, const pst_attrs *a, pst_shape *out) {
  out[0] = like(in[0]);
  if (a->packed) return true;
  out[1] = like(in[1]);
  out[2] = like(in[2]);
  return true;
}

static bool shape_cast(pst_graph *g, inputs in, const pst_attrs *a, pst_shape *out) {
  if (!is_float(in[0]) || (a->dtype != PST_F32 && a->dtype != PST_BF16)) return false;
  out[0] = like(in[0]);
  out[0].dtype = (pst_dtype)a->dtype;
  return true;
}

static bool shape_slice(pst_graph *g, inputs in, const pst_attrs *a, pst_shape *out) {
  if (!is_float(in[0]) || in[0]->rank < 1 || a->start < 0 || a->width < 1 ||
      a->start > width(in[0]) - a->width)
    return false;
  out[0] = like_with_width(in[0], a->width);
  return true;
}

static bool shape_slice_grad(pst_graph *g, inputs in, const pst_attrs *a, pst_shape *out) {
  if (!is_float(in[0])) return false;
  out[0] = like_with_width(in[0], a->width);
  return true;
}

static bool shape_take(pst_graph *g, inputs in, const pst_attrs *a, pst_shape *out) {
  if (!is_float(in[0]) || in[0]->rank != 3 || !is_index(in[1]) || in[1]->rank != 1 ||
      in[1]->dim[0] != in[0]->dim[0])
    return false;
  out[0] = like(in[0]);
  out[0].dim[1] = 1;
  return true;
}

static bool shape_cross_entropy(pst_graph *g, inputs in, const pst_attrs *a, pst_shape *out) {
  if (!is_float(in[0]) || in[0]->rank < 2 || !is_index(in[1]) || elements(in[1]) != rows(in[0])) return false;
  out[0] = per_row(in[0]);
  return true;
}

static bool shape_linear_cross_entropy(pst_graph *g, inputs in, const pst_attrs *a, pst_shape *out) {
  const pst_value_info *x = in[0], *w = in[1], *targets = in[2];
  if (!is_float(x) || x->rank < 2 || !is_float(w) || w->rank != 2 || !is_index(targets)) return false;
  if (w->dim[a->w_in_out ? 0 : 1] != width(x) || elements(targets) != rows(x)) return false;
  out[0] = per_row(x);
  return true;
}

static bool shape_linear_cross_entropy_grad(pst_graph *g, inputs in, const pst_attrs *a, pst_shape *out) {
  if (!shape_linear_cross_entropy(g, in, a, out)) return false;
  out[1] = like(in[0]);
  return true;
}

/* Ops that lowering makes itself, never through a graph. */
static bool shape_lowered_only(pst_graph *g, inputs in, const pst_attrs *a, pst_shape *out) {
  return false;
}

/* ---- gradient rules ---- */

#define IN(...) ((pst_value[PST_OP_MAX_IN]){__VA_ARGS__})
#define NONE    PST_NO_VALUE

static void gradient_embedding(pst_differentiation *d, const pst_node *n) {
  pst__diff_emit(d, n, PST_OP_embedding_grad, IN(n->in[0], pst__diff_out(d, n, 0)),
                 (pst_value[]){n->in[1], n->in[2], NONE, NONE}, &n->attrs, NULL);
}

static void gradient_linear(pst_differentiation *d, const pst_node *n) {
  pst_value dy = pst__diff_out(d, n, 0), x = n->in[0], w = n->in[1];
  pst__diff_add(d, n->in[3], dy);
  if (pst__diff_wants(d, x)) {
    pst_attrs flipped = n->attrs;
    flipped.w_in_out = !flipped.w_in_out;
    pst__diff_set(
        d, x,
        pst__diff_emit(d, n, PST_OP_linear, IN(dy, w, NONE, pst__diff_partial(d, x)), NULL, &flipped, NULL));
  }
  if (pst__diff_wants(d, w) || pst__diff_wants(d, n->in[2]))
    pst__diff_emit(d, n, PST_OP_linear_wgrad, IN(x, dy), (pst_value[]){w, n->in[2], NONE, NONE}, &n->attrs,
                   NULL);
}

static void gradient_layer_norm(pst_differentiation *d, const pst_node *n) {
  pst_value x = n->in[0];
  pst__diff_set(
      d, x,
      pst__diff_emit(d, n, PST_OP_layer_norm_grad,
                     IN(x, n->in[1], n->out[1], n->out[2], pst__diff_out(d, n, 0), pst__diff_partial(d, x)),
                     (pst_value[]){n->in[1], n->in[2], NONE, NONE}, &n->attrs, NULL));
}

static void gradient_rms_norm(pst_differentiation *d, const pst_node *n) {
  pst_value x = n->in[0];
  pst__diff_set(d, x,
                pst__diff_emit(d, n, PST_OP_rms_norm_grad,
                               IN(x, n->in[1], n->out[1], pst__diff_out(d, n, 0), pst__diff_partial(d, x)),
                               (pst_value[]){n->in[1], NONE, NONE, NONE}, &n->attrs, NULL));
}

static void gradient_rotary(pst_differentiation *d, const pst_node *n) {
  pst_attrs back = n->attrs;
  back.inverse = !back.inverse;
  pst__diff_add(d, n->in[1], pst__diff_out(d, n, 0));
  pst__diff_set(d, n->in[0],
                pst__diff_emit(d, n, PST_OP_rotary,
                               IN(pst__diff_out(d, n, 0), pst__diff_partial(d, n->in[0])), NULL, &back,
                               NULL));
}

static void gradient_attention(pst_differentiation *d, const pst_node *n) {
  int32_t made;
  pst__diff_emit(d, n, PST_OP_attention_grad,
                 IN(n->in[0], n->in[1], n->in[2], n->in[3], n->out[0], n->out[1], pst__diff_out(d, n, 0)),
                 NULL, &n->attrs, &made);
  if (made < 0) return;
  for (int i = 0; i < 3; i++) pst__diff_add(d, n->in[i], pst__diff_graph(d)->nodes.at[made].out[i]);
}

static void gradient_gelu(pst_differentiation *d, const pst_node *n) {
  pst__diff_add(
      d, n->in[0],
      pst__diff_emit(d, n, PST_OP_gelu_grad, IN(n->in[0], pst__diff_out(d, n, 0)), NULL, &n->attrs, NULL));
}

static void gradient_silu_gate(pst_differentiation *d, const pst_node *n) {
  int32_t made;
  pst__diff_emit(d, n, PST_OP_silu_gate_grad, IN(n->in[0], n->in[1], pst__diff_out(d, n, 0)), NULL, &n->attrs,
                 &made);
  if (made < 0) return;
  for (int i = 0; i < 2; i++) pst__diff_add(d, n->in[i], pst__diff_graph(d)->nodes.at[made].out[i]);
}

static void gradient_add(pst_differentiation *d, const pst_node *n) {
  for (int i = 0; i < 2; i++) pst__diff_add(d, n->in[i], pst__diff_out(d, n, 0));
}

/* scale and dropout: the same op carries the gradient back. */
static void gradient_self(pst_differentiation *d, const pst_node *n) {
  pst_value x = n->in[0];
  pst__diff_add(d, n->in[1], pst__diff_out(d, n, 0));
  if (pst__diff_wants(d, x))
    pst__diff_set(d, x,
                  pst__diff_emit(d, n, n->code, IN(pst__diff_out(d, n, 0), pst__diff_partial(d, x)), NULL,
                                 &n->attrs, NULL));
}

static void gradient_cast(pst_differentiation *d, const pst_node *n) {
  pst_attrs back = {.dtype = (int32_t)pst__value(pst__diff_graph(d), n->in[0])->dtype};
  pst__diff_add(d, n->in[0],
                pst__diff_emit(d, n, PST_OP_cast, IN(pst__diff_out(d, n, 0)), NULL, &back, NULL));
}

static void gradient_copy(pst_differentiation *d, const pst_node *n) {
  pst__diff_add(d, n->in[0], pst__diff_out(d, n, 0));
}

static void gradient_slice(pst_differentiation *d, const pst_node *n) {
  pst_value x = n->in[0];
  pst_attrs a = {.start = n->attrs.start, .width = width(pst__value(pst__diff_graph(d), x))};
  pst__diff_set(d, x,
                pst__diff_emit(d, n, PST_OP_slice_grad, IN(pst__diff_out(d, n, 0), pst__diff_partial(d, x)),
                               NULL, &a, NULL));
}

static void gradient_cross_entropy(pst_differentiation *d, const pst_node *n) {
  pst__diff_add(
      d, n->in[0],
      pst__diff_emit(d, n, PST_OP_cross_entropy_grad, IN(n->in[0], n->in[1]), NULL, &n->attrs, NULL));
}

/* ---- costs ---- */

static int64_t flops_matrix(const pst_graph *g, const pst_node *n) {
  const pst_value_info *w = n->code == PST_OP_linear ? pst__value(g, n->in[1])
                                                     : pst__value(g, n->in[n->code == PST_OP_linear_wgrad]);
  const pst_value_info *x = pst__value(g, n->in[0]);
  int64_t other = n->code == PST_OP_linear ? elements(w) : width(w) * width(x);
  return 2 * rows(x) * other;
}

/* Two products forward and five backward, half of each when causal. */
static int64_t flops_attention(const pst_graph *g, const pst_node *n) {
  const pst_value_info *q = pst__value(g, n->in[0]);
  int64_t b = q->dim[0], t = q->dim[1];
  int64_t product = 2 * b * t * t * n->attrs.heads * n->attrs.head_dim / (n->attrs.causal ? 2 : 1);
  return product * (n->code == PST_OP_attention ? 2 : 5);
}

static int64_t flops_loss(const pst_graph *g, const pst_node *n) {
  int64_t product = 2 * rows(pst__value(g, n->in[0])) * elements(pst__value(g, n->in[1]));
  return product * (n->code == PST_OP_linear_cross_entropy ? 1 : 3);
}

/* ---- the table ---- */

typedef struct rules {
  pst_shape_rule shape;
  pst_gradient_rule gradient;
  pst_flops_rule flops;
} rules;

static const rules rule_of[PST_OP_COUNT] = {
    [PST_OP_embedding] = {shape_embedding, gradient_embedding, NULL},
    [PST_OP_embedding_grad] = {shape_none, NULL, NULL},
    [PST_OP_linear] = {shape_linear, gradient_linear, flops_matrix},
    [PST_OP_linear_wgrad] = {shape_none, NULL, flops_matrix},
    [PST_OP_layer_norm] = {shape_layer_norm, gradient_layer_norm, NULL},
    [PST_OP_layer_norm_grad] = {shape_like_first, NULL, NULL},
    [PST_OP_rms_norm] = {shape_rms_norm, gradient_rms_norm, NULL},
    [PST_OP_rms_norm_grad] = {shape_like_first, NULL, NULL},
    [PST_OP_rotary] = {shape_rotary, gradient_rotary, NULL},
    [PST_OP_attention] = {shape_attention, gradient_attention, flops_attention},
    [PST_OP_attention_grad] = {shape_attention_grad, NULL, flops_attention},
    [PST_OP_gelu] = {shape_like_first, gradient_gelu, NULL},
    [PST_OP_gelu_grad] = {shape_pair, NULL, NULL},
    [PST_OP_silu_gate] = {shape_pair, gradient_silu_gate, NULL},
    [PST_OP_silu_gate_grad] = {shape_silu_gate_grad, NULL, NULL},
    [PST_OP_add] = {shape_pair, gradient_add, NULL},
    [PST_OP_scale] = {shape_elementwise, gradient_self, NULL},
    [PST_OP_dropout] = {shape_elementwise, gradient_self, NULL},
    [PST_OP_cast] = {shape_cast, gradient_cast, NULL},
    [PST_OP_copy] = {shape_like_first, gradient_copy, NULL},
    [PST_OP_slice] = {shape_slice, gradient_slice, NULL},
    [PST_OP_slice_grad] = {shape_slice_grad, NULL, NULL},
    [PST_OP_take] = {shape_take, NULL, NULL},
    [PST_OP_cross_entropy] = {shape_cross_entropy, gradient_cross_entropy, NULL},
    [PST_OP_cross_entropy_grad] = {shape_like_first, NULL, NULL},
    [PST_OP_linear_cross_entropy] = {shape_linear_cross_entropy, NULL, flops_loss},
    [PST_OP_linear_cross_entropy_grad] = {shape_linear_cross_entropy_grad, NULL, flops_loss},
    [PST_OP_sum_squares] = {shape_lowered_only, NULL, NULL},
    [PST_OP_adamw] = {shape_lowered_only, NULL, NULL},
    [PST_OP_sgd] = {shape_lowered_only, NULL, NULL},
};

pst_op_row pst__op_row(pst_op_code code) {
  static const pst_op_row rows_of[PST_OP_COUNT] = {
#define ROW(op, in, out, acc, bits)                                                                          \
  [PST_OP_##op] = {.name = #op, .n_in = in, .n_out = out, .n_acc = acc, .flags = bits},
      PST_OP_LIST(ROW)
#undef ROW
  };
  pst_op_row row = rows_of[code];
  row.shape = rule_of[code].shape;
  row.gradient = rule_of[code].gradient;
  row.flops = rule_of[code].flops;
  return row;
}

void pst_node_cost(const pst_graph *g, const pst_node *n, int64_t *out_flops, int64_t *out_bytes) {
  int64_t bytes = 0, made = 0;
  for (int i = 0; i < PST_OP_MAX_IN; i++) {
    if (n->in[i] == NONE) continue;
    const pst_value_info *v = pst__value(g, n->in[i]);
    bytes += elements(v) * (int64_t)pst_dtype_size(v->dtype);
  }
  for (int i = 0; i < PST_OP_MAX_OUT; i++) {
    if (n->out[i] == NONE) continue;
    const pst_value_info *v = pst__value(g, n->out[i]);
    made += elements(v);
    bytes += elements(v) * (int64_t)pst_dtype_size(v->dtype);
  }
  for (int i = 0; i < PST_OP_MAX_ACC; i++) {
    if (n->acc[i] < 0) continue;
    const pst_value_info *v = pst__value(g, g->params.at[g->accumulators.at[n->acc[i]].param].value);
    bytes += 2 * elements(v) * (int64_t)sizeof(float);
  }
  pst_flops_rule flops = rule_of[n->code].flops;
  *out_flops = flops ? flops(g, n) : made;
  *out_bytes = bytes;
}
