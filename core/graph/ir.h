/* The inside of a graph, for the files of core/graph and those that read a finished graph.
 *
 * Values are numbered in the order of their making; nodes too. After pst_graph_differentiate() the backward
 * nodes follow the forward ones, in the order they must run; both belong to units, so cutting into stages is
 * picking nodes by unit.
 */
#ifndef PENSTOCK_GRAPH_IR_H
#define PENSTOCK_GRAPH_IR_H

#include "core/graph/graph.h"

typedef enum pst_value_kind { PST_VALUE_PARAM, PST_VALUE_INPUT, PST_VALUE_COMPUTED } pst_value_kind;

/* What the data brings, in this order in an INPUT segment. */
typedef enum pst_input {
  PST_INPUT_TOKENS,
  PST_INPUT_TARGETS,
  PST_INPUT_LENGTHS,
  PST_INPUT_POSITIONS,
  PST_INPUT_COUNT
} pst_input;

typedef struct pst_value_info {
  pst_value_kind kind;
  pst_dtype dtype;
  int rank;
  int64_t dim[PST_MAX_RANK]; /* unused ones are 1 */
  int32_t index;             /* param: which; input: pst_input; computed: the node that makes it */
  bool needs_gradient;
} pst_value_info;

typedef struct pst_param_info {
  char *name;
  pst_value value;
  pst_init init;
  bool decay;           /* takes weight decay */
  int32_t n_uses;       /* accumulators; known after differentiation */
  int32_t use_units[2]; /* the unit of each use, ascending */
} pst_param_info;

/* A parameter's gradient is added up in one accumulator per use; the uses are added in ascending order. */
typedef struct pst_accumulator {
  int32_t param;
  int32_t unit; /* where the use is */
  int32_t use;  /* 0 for the earliest use in the model; known after differentiation */
} pst_accumulator;

typedef enum pst_phase { PST_PHASE_FORWARD, PST_PHASE_BACKWARD } pst_phase;

typedef struct pst_node {
  pst_op_code code;
  pst_phase phase;
  int32_t unit;
  pst_value in[PST_OP_MAX_IN];
  pst_value out[PST_OP_MAX_OUT];
  int32_t acc[PST_OP_MAX_ACC]; /* accumulators; -1: absent */
  pst_attrs attrs;
} pst_node;

typedef struct pst_unit {
  char *name;
  int64_t
      flops_forward; /* of one microbatch, multiply and add counted as two; known after pst_graph_cost() */
  int64_t flops_backward;
  int64_t param_bytes; /* parameters first used here */
} pst_unit;

#define PST_ARRAY(type)                                                                                      \
  struct {                                                                                                   \
    type *at;                                                                                                \
    int32_t n, room;                                                                                         \
  }

struct pst_graph {
  pst_graph_options options;
  PST_ARRAY(pst_value_info) values;
  PST_ARRAY(pst_node) nodes;
  PST_ARRAY(pst_param_info) params;
  PST_ARRAY(pst_accumulator) accumulators;
  PST_ARRAY(pst_unit) units;
  pst_value inputs[PST_INPUT_COUNT];
  pst_value result; /* loss or logits */
  uint32_t n_sites; /* dropouts so far */
  bool differentiated;
  pst_status status;
  char *fault;
};

/* Room for one more element in one of the arrays above: true, or false and the fault recorded. */
#define pst__graph_room(g, array)                                                                            \
  ((array).n < (array).room ||                                                                               \
   pst__graph_grown((g),                                                                                     \
                    ((array).at = pst__graph_realloc((g), (array).at, &(array).room, sizeof *(array).at))))
void *pst__graph_realloc(pst_graph *g, void *at, int32_t *room,
                         size_t element_bytes); /* `at` itself without memory */
bool pst__graph_grown(const pst_graph *g, const void *at);

/* Adds a node and the values it makes, by the op table's shape rule. Returns its index, -1 on a fault. `in`
 * holds n_in values. */
int32_t pst__graph_node(pst_graph *g, pst_phase phase, int32_t unit, pst_op_code code, const pst_value *in,
                        const pst_attrs *attrs);

static inline const pst_value_info *pst__value(const pst_graph *g, pst_value v) {
  return &g->values.at[v];
}

/* "h.3.attn: linear" for messages. */
const char *pst__graph_unit_name(const pst_graph *g, int32_t unit);

/* Writes the backward nodes (reverse mode), by the op table's gradient rules, and the accumulators. A
 * linear_cross_entropy becomes linear_cross_entropy_grad in the forward phase: its loss, its input's gradient
 * and its weight's are formed at once, so logits are never whole and never formed twice. Once per graph; the
 * graph's result must be a loss. */
PST_CHECKED pst_status pst_graph_differentiate(pst_graph *graph);

/* Fills the units' costs from the op table. */
void pst_graph_cost(pst_graph *graph);

/* FLOPs and bytes one node moves. */
void pst_node_cost(const pst_graph *g, const pst_node *node, int64_t *out_flops, int64_t *out_bytes);

#endif
