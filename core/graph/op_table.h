/* The op table: for each op of core/device/ops.h its shape rule, gradient rule and cost, in one row.
 *
 *   pst_op_row row = pst__op_row(PST_OP_linear);
 *   if (row.shape(g, in, &attrs, out)) ...
 */
#ifndef PENSTOCK_GRAPH_OP_TABLE_H
#define PENSTOCK_GRAPH_OP_TABLE_H

#include "core/graph/ir.h"

typedef struct pst_shape {
  pst_dtype dtype;
  int rank;
  int64_t dim[PST_MAX_RANK];
} pst_shape;

typedef struct pst_differentiation pst_differentiation;

/* Writes the shapes of the outputs; false, with a fault recorded in the graph, when the inputs do not fit.
 * Absent inputs are NULL. */
typedef bool (*pst_shape_rule)(pst_graph *g, const pst_value_info *const in[], const pst_attrs *attrs,
                               pst_shape *out);

/* Emits the nodes that carry the gradient of node `n` to its inputs and parameters. */
typedef void (*pst_gradient_rule)(pst_differentiation *d, const pst_node *n);

/* Multiply-adds count as two. */
typedef int64_t (*pst_flops_rule)(const pst_graph *g, const pst_node *n);

typedef struct pst_op_row {
  const char *name;
  int n_in, n_out, n_acc;
  uint32_t flags;
  pst_shape_rule shape;
  pst_gradient_rule gradient; /* NULL: a gradient or update op, which has none */
  pst_flops_rule flops;       /* NULL: counts as one per output element */
} pst_op_row;

pst_op_row pst__op_row(pst_op_code code);

/* For gradient rules. */

/* The gradient of output `i` of `n`, or PST_NO_VALUE when nothing depends on it. */
pst_value pst__diff_out(pst_differentiation *d, const pst_node *n, int i);
/* Whether anyone wants the gradient of v: not for integers, frozen parameters or absent operands. */
bool pst__diff_wants(const pst_differentiation *d, pst_value v);
/* What is known so far of v's gradient, to be passed as an addend; then pst__diff_set() with the sum. */
pst_value pst__diff_partial(const pst_differentiation *d, pst_value v);
void pst__diff_set(pst_differentiation *d, pst_value v, pst_value gradient);
/* Adds a contribution, by an add op when there is one already. */
void pst__diff_add(pst_differentiation *d, pst_value v, pst_value gradient);
/* Emits a backward node for `n` (same unit); acc[i] is the parameter whose accumulator is added to, or
 * PST_NO_VALUE; may be NULL. Returns output 0, or PST_NO_VALUE on a fault or when it has none. `out_node`
 * (may be NULL) gets the node. */
pst_value pst__diff_emit(pst_differentiation *d, const pst_node *n, pst_op_code code, const pst_value *in,
                         const pst_value *acc, const pst_attrs *attrs, int32_t *out_node);
pst_graph *pst__diff_graph(pst_differentiation *d);

#endif
