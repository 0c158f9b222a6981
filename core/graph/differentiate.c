#include "core/graph/op_table.h"

#include <stdlib.h>
#include <string.h>

/* Reverse mode over the recorded nodes. The order in which contributions to one value's gradient are added is
 * that of the reversed forward nodes, whatever the cuts, which is what makes a cut graph give the same bits.
 */
struct pst_differentiation {
  pst_graph *g;
  pst_value *gradient; /* per forward value, PST_NO_VALUE: none yet */
  int32_t n_values;
  int32_t unit; /* of the forward node whose contributions are being added */
};

pst_graph *pst__diff_graph(pst_differentiation *d) {
  return d->g;
}

static pst_value gradient_of(const pst_differentiation *d, pst_value v) {
  return v >= 0 && v < d->n_values ? d->gradient[v] : PST_NO_VALUE;
}

pst_value pst__diff_out(pst_differentiation *d, const pst_node *n, int i) {
  return gradient_of(d, n->out[i]);
}

bool pst__diff_wants(const pst_differentiation *d, pst_value v) {
  return v != PST_NO_VALUE && pst__value(d->g, v)->needs_gradient;
}

pst_value pst__diff_partial(const pst_differentiation *d, pst_value v) {
  return gradient_of(d, v);
}

void pst__diff_set(pst_differentiation *d, pst_value v, pst_value gradient) {
  if (pst__diff_wants(d, v)) d->gradient[v] = gradient;
}

void pst__diff_add(pst_differentiation *d, pst_value v, pst_value gradient) {
  if (!pst__diff_wants(d, v) || gradient == PST_NO_VALUE) return;
  if (d->gradient[v] == PST_NO_VALUE) {
    d->gradient[v] = gradient;
    return;
  }
  int32_t n = pst__graph_node(d->g, PST_PHASE_BACKWARD, d->unit, PST_OP_add,
                              (pst_value[PST_OP_MAX_IN]){gradient, d->gradient[v]}, &(pst_attrs){0});
  if (n >= 0) d->gradient[v] = d->g->nodes.at[n].out[0];
}

static int32_t accumulator(pst_graph *g, pst_value param, int32_t unit) {
  if (param == PST_NO_VALUE || !pst__value(g, param)->needs_gradient) return -1;
  if (pst__value(g, param)->kind != PST_VALUE_PARAM) {
    pst_graph_fault(g, PST_UNSUPPORTED,
                    "unit %s: a weight that is computed, not a parameter, has no gradient here",
                    pst__graph_unit_name(g, unit));
    return -1;
  }
  if (!pst__graph_room(g, g->accumulators)) return -1;
  g->accumulators.at[g->accumulators.n] =
      (pst_accumulator){.param = pst__value(g, param)->index, .unit = unit};
  return g->accumulators.n++;
}

pst_value pst__diff_emit(pst_differentiation *d, const pst_node *n, pst_op_code code, const pst_value *in,
                         const pst_value *acc, const pst_attrs *attrs, int32_t *out_node) {
  pst_graph *g = d->g;
  int32_t unit = n->unit;
  int32_t made = pst__graph_node(g, PST_PHASE_BACKWARD, unit, code, in, attrs);
  if (out_node) *out_node = made;
  if (made < 0) return PST_NO_VALUE;
  for (int i = 0; acc && i < PST_OP_MAX_ACC; i++) {
    int32_t a = accumulator(g, acc[i], unit);
    g->nodes.at[made].acc[i] = a;
  }
  return g->nodes.at[made].out[0];
}

/* The loss that is fused with its linear layer forms its gradients in the forward phase. */
static void fuse_loss(pst_differentiation *d, int32_t index) {
  pst_graph *g = d->g;
  pst_node node = g->nodes.at[index];
  if (pst__diff_wants(d, node.in[0])) {
    if (!pst__graph_room(g, g->values)) return;
    pst_value_info dx = *pst__value(g, node.in[0]);
    dx.kind = PST_VALUE_COMPUTED;
    dx.index = index;
    dx.needs_gradient = false;
    g->values.at[g->values.n] = dx;
    node.out[1] = g->values.n++;
  }
  node.code = PST_OP_linear_cross_entropy_grad;
  node.acc[0] = accumulator(g, node.in[1], node.unit);
  g->nodes.at[index] = node;
  pst__diff_set(d, node.in[0], node.out[1]);
}

static int by_use(const void *a, const void *b) {
  const pst_accumulator *x = a, *y = b;
  return x->unit < y->unit ? -1 : x->unit > y->unit;
}

/* Numbers each parameter's uses in the model's order. A parameter has few, so a search per accumulator will
 * do. */
static void number_uses(pst_graph *g) {
  for (int32_t i = 0; i < g->accumulators.n; i++) {
    pst_accumulator *a = &g->accumulators.at[i];
    g->params.at[a->param].n_uses++;
    a->use = 0;
    for (int32_t j = 0; j < g->accumulators.n; j++) {
      const pst_accumulator *b = &g->accumulators.at[j];
      if (b->param == a->param && (by_use(b, a) < 0 || (by_use(b, a) == 0 && j > i)))
        a->use++; /* later made is earlier used */
    }
  }
}

pst_status pst_graph_differentiate(pst_graph *g) {
  PST_TRY(pst_graph_status(g));
  if (g->result == PST_NO_VALUE || g->options.purpose != PST_PURPOSE_TRAIN)
    return pst_fail(PST_INVALID,
                    "a graph without a loss, or not built for training, cannot be differentiated");
  if (g->differentiated) return pst_fail(PST_INVALID, "the graph is differentiated already");
  pst_differentiation d = {.g = g, .n_values = g->values.n};
  d.gradient = malloc((size_t)d.n_values * sizeof *d.gradient);
  if (!d.gradient) return pst_fail(PST_NO_MEMORY, "no memory to differentiate %d values", d.n_values);
  for (int32_t i = 0; i < d.n_values; i++) d.gradient[i] = PST_NO_VALUE;
  int32_t n_forward = g->nodes.n, root = pst__value(g, g->result)->index;
  for (int32_t i = n_forward - 1; i >= 0 && g->status == PST_OK; i--) {
    pst_node n = g->nodes.at[i]; /* a copy: the array moves as nodes are added */
    bool reached = i == root;
    for (int o = 0; o < PST_OP_MAX_OUT; o++) reached = reached || gradient_of(&d, n.out[o]) != PST_NO_VALUE;
    bool wanted = false;
    for (int k = 0; k < PST_OP_MAX_IN; k++) wanted = wanted || pst__diff_wants(&d, n.in[k]);
    if (!reached || !wanted) continue;
    d.unit = n.unit;
    pst_op_row row = pst__op_row(n.code);
    if (n.code == PST_OP_linear_cross_entropy)
      fuse_loss(&d, i);
    else if (row.gradient)
      row.gradient(&d, &n);
    else
      pst_graph_fault(g, PST_UNSUPPORTED, "unit %s: %s has no gradient", pst__graph_unit_name(g, n.unit),
                      row.name);
  }
  free(d.gradient);
  PST_TRY(pst_graph_status(g));
  number_uses(g);
  for (int32_t p = 0; p < g->params.n; p++)
    if (g->params.at[p].n_uses == 0)
      return pst_fail(PST_INVALID, "parameter %s does not reach the loss: it would never be trained",
                      g->params.at[p].name);
  g->differentiated = true;
  return PST_OK;
}

void pst_graph_cost(pst_graph *g) {
  for (int32_t u = 0; u < g->units.n; u++)
    g->units.at[u].flops_forward = g->units.at[u].flops_backward = g->units.at[u].param_bytes = 0;
  for (int32_t i = 0; i < g->nodes.n; i++) {
    const pst_node *n = &g->nodes.at[i];
    int64_t flops, bytes;
    pst_node_cost(g, n, &flops, &bytes);
    pst_unit *u = &g->units.at[n->unit];
    *(n->phase == PST_PHASE_FORWARD ? &u->flops_forward : &u->flops_backward) += flops;
  }
  for (int32_t p = 0; p < g->params.n; p++) {
    const pst_value_info *v = pst__value(g, g->params.at[p].value);
    for (int32_t i = 0; i < g->nodes.n; i++) {
      bool uses = false;
      for (int k = 0; k < PST_OP_MAX_IN; k++) uses = uses || g->nodes.at[i].in[k] == g->params.at[p].value;
      if (!uses) continue;
      g->units.at[g->nodes.at[i].unit].param_bytes +=
          v->dim[0] * v->dim[1] * v->dim[2] * v->dim[3] * (int64_t)pst_dtype_size(v->dtype);
      break;
    }
  }
}
