#include "core/graph/ir.h"

#include "core/graph/op_table.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void pst_graph_fault(pst_graph *g, pst_status status, const char *format, ...) {
  if (g->status != PST_OK) return;
  char text[512];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  g->status = status;
  g->fault = strdup(text);
}

pst_status pst_graph_status(const pst_graph *g) {
  if (g->status == PST_OK) return PST_OK;
  return pst_fail(g->status, "%s", g->fault ? g->fault : "the model could not be recorded: out of memory");
}

void *pst__graph_realloc(pst_graph *g, void *at, int32_t *room, size_t element_bytes) {
  int32_t more = *room ? *room * 2 : 64;
  void *grown = g->status == PST_OK && *room < (1 << 28) ? realloc(at, (size_t)more * element_bytes) : NULL;
  if (!grown) {
    pst_graph_fault(g, PST_NO_MEMORY, "the model could not be recorded: no memory for %d entries", more);
    return at;
  }
  *room = more;
  return grown;
}

bool pst__graph_grown(const pst_graph *g, const void *at) {
  return at != NULL && g->status == PST_OK;
}

pst_status pst_graph_create(const pst_graph_options *options, pst_graph **out_graph) {
  if (options->batch < 1 || options->sequence < 1 || options->batch > INT32_MAX / options->sequence)
    return pst_fail(PST_INVALID,
                    "a microbatch of %lld sequences of %lld tokens: wanted at least 1 of each, at most %d "
                    "tokens together",
                    (long long)options->batch, (long long)options->sequence, INT32_MAX);
  if (options->dtype != PST_F32 && options->dtype != PST_BF16)
    return pst_fail(PST_UNSUPPORTED, "precision %s: wanted f32 or bf16", pst_dtype_name(options->dtype));
  pst_graph *g = calloc(1, sizeof *g);
  if (!g) return pst_fail(PST_NO_MEMORY, "no memory for a graph");
  g->options = *options;
  g->result = PST_NO_VALUE;
  for (int i = 0; i < PST_INPUT_COUNT; i++) g->inputs[i] = PST_NO_VALUE;
  *out_graph = g;
  return PST_OK;
}

void pst_graph_destroy(pst_graph *g) {
  if (!g) return;
  for (int32_t i = 0; i < g->params.n; i++) free(g->params.at[i].name);
  for (int32_t i = 0; i < g->units.n; i++) free(g->units.at[i].name);
  free(g->values.at);
  free(g->nodes.at);
  free(g->params.at);
  free(g->accumulators.at);
  free(g->units.at);
  free(g->fault);
  free(g);
}

const pst_graph_options *pst_graph_get_options(const pst_graph *g) {
  return &g->options;
}

const char *pst__graph_unit_name(const pst_graph *g, int32_t unit) {
  return unit >= 0 && unit < g->units.n ? g->units.at[unit].name : "-";
}

void pst_graph_unit(pst_graph *g, const char *name) {
  if (!pst__graph_room(g, g->units)) return;
  char *copy = strdup(name);
  if (!copy) {
    pst_graph_fault(g, PST_NO_MEMORY, "no memory for unit %s", name);
    return;
  }
  g->units.at[g->units.n++] = (pst_unit){.name = copy};
}

static pst_value value_add(pst_graph *g, pst_value_info info) {
  if (!pst__graph_room(g, g->values)) return PST_NO_VALUE;
  for (int i = info.rank; i < PST_MAX_RANK; i++) info.dim[i] = 1;
  g->values.at[g->values.n] = info;
  return g->values.n++;
}

static pst_value input(pst_graph *g, pst_input which, int rank) {
  if (g->inputs[which] != PST_NO_VALUE || g->status != PST_OK) return g->inputs[which];
  pst_value_info info = {.kind = PST_VALUE_INPUT, .dtype = PST_I32, .rank = rank, .index = (int32_t)which};
  info.dim[0] = g->options.batch;
  info.dim[1] = rank > 1 ? g->options.sequence : 1;
  return g->inputs[which] = value_add(g, info);
}

pst_value pst_graph_tokens(pst_graph *g) {
  return input(g, PST_INPUT_TOKENS, 2);
}
pst_value pst_graph_targets(pst_graph *g) {
  return input(g, PST_INPUT_TARGETS, 2);
}
pst_value pst_graph_lengths(pst_graph *g) {
  return input(g, PST_INPUT_LENGTHS, 1);
}
pst_value pst_graph_positions(pst_graph *g) {
  return input(g, PST_INPUT_POSITIONS, 1);
}

pst_value pst_param(pst_graph *g, const char *name, int rank, const int64_t *dim, pst_init init) {
  if (g->status != PST_OK) return PST_NO_VALUE;
  if (rank < 1 || rank > PST_MAX_RANK) {
    pst_graph_fault(g, PST_INVALID, "parameter %s: rank %d, wanted 1 to %d", name, rank, PST_MAX_RANK);
    return PST_NO_VALUE;
  }
  int64_t elements = 1;
  for (int i = 0; i < rank; i++) {
    if (dim[i] < 1 || elements > INT64_MAX / 16 / dim[i]) {
      pst_graph_fault(
          g, PST_INVALID,
          "parameter %s: dimension %d is %lld, wanted at least 1 and fewer than 2^59 elements in all", name,
          i, (long long)dim[i]);
      return PST_NO_VALUE;
    }
    elements *= dim[i];
  }
  for (int32_t p = 0; p < g->params.n; p++) {
    if (strcmp(g->params.at[p].name, name) != 0) continue;
    const pst_value_info *known = pst__value(g, g->params.at[p].value);
    bool same = known->rank == rank;
    for (int i = 0; same && i < rank; i++) same = known->dim[i] == dim[i];
    if (same) return g->params.at[p].value;
    pst_graph_fault(g, PST_INVALID, "parameter %s is asked for twice with unlike shapes", name);
    return PST_NO_VALUE;
  }
  if (!pst__graph_room(g, g->params)) return PST_NO_VALUE;
  pst_value_info info = {.kind = PST_VALUE_PARAM,
                         .dtype = g->options.dtype,
                         .rank = rank,
                         .index = g->params.n,
                         .needs_gradient = true};
  memcpy(info.dim, dim, (size_t)rank * sizeof *dim);
  char *copy = strdup(name);
  pst_value v = copy ? value_add(g, info) : PST_NO_VALUE;
  if (v == PST_NO_VALUE) {
    pst_graph_fault(g, PST_NO_MEMORY, "no memory for parameter %s", name);
    free(copy);
    return PST_NO_VALUE;
  }
  g->params.at[g->params.n++] = (pst_param_info){.name = copy, .value = v, .init = init, .decay = rank >= 2};
  return v;
}

int32_t pst__graph_node(pst_graph *g, pst_phase phase, int32_t unit, pst_op_code code, const pst_value *in,
                        const pst_attrs *attrs) {
  pst_op_row row = pst__op_row(code);
  if (g->status != PST_OK) return -1;
  if (unit < 0) {
    pst_graph_fault(g, PST_INVALID, "%s stands before the first pst_graph_unit()", row.name);
    return -1;
  }
  pst_node node = {.code = code, .phase = phase, .unit = unit, .attrs = *attrs};
  const pst_value_info *info[PST_OP_MAX_IN] = {0};
  bool gradient = false;
  for (int i = 0; i < PST_OP_MAX_IN; i++) {
    node.in[i] = i < row.n_in ? in[i] : PST_NO_VALUE;
    if (node.in[i] == PST_NO_VALUE) continue;
    if (node.in[i] < 0 || node.in[i] >= g->values.n) {
      pst_graph_fault(g, PST_INVALID, "%s in unit %s: input %d is not a value of this graph", row.name,
                      pst__graph_unit_name(g, unit), i);
      return -1;
    }
    info[i] = pst__value(g, node.in[i]);
    gradient = gradient || info[i]->needs_gradient;
  }
  pst_shape shape[PST_OP_MAX_OUT] = {{0}};
  if (!row.shape(g, info, attrs, shape)) {
    pst_graph_fault(g, PST_INVALID, "%s in unit %s: its inputs' shapes or types do not fit", row.name,
                    pst__graph_unit_name(g, unit));
    return -1;
  }
  if (!pst__graph_room(g, g->nodes)) return -1;
  for (int i = 0; i < PST_OP_MAX_ACC; i++) node.acc[i] = -1;
  for (int i = 0; i < PST_OP_MAX_OUT; i++) {
    node.out[i] = PST_NO_VALUE;
    if (i >= row.n_out || shape[i].rank == 0) continue;
    pst_value_info made = {
        .kind = PST_VALUE_COMPUTED, .dtype = shape[i].dtype, .rank = shape[i].rank, .index = g->nodes.n};
    memcpy(made.dim, shape[i].dim, sizeof made.dim);
    made.needs_gradient =
        phase == PST_PHASE_FORWARD && gradient && (made.dtype == PST_F32 || made.dtype == PST_BF16);
    if ((node.out[i] = value_add(g, made)) == PST_NO_VALUE) return -1;
  }
  g->nodes.at[g->nodes.n] = node;
  return g->nodes.n++;
}

/* A forward node in the unit opened last; its first output. */
static pst_value forward(pst_graph *g, pst_op_code code, const pst_value *in, const pst_attrs *attrs) {
  pst_op_row row = pst__op_row(code);
  if (g->status != PST_OK) return PST_NO_VALUE;
  for (int i = 0; i < row.n_in && g->status == PST_OK; i++)
    if (in[i] != PST_NO_VALUE && (in[i] < 0 || in[i] >= g->values.n))
      pst_graph_fault(g, PST_INVALID, "%s: input %d is not a value of this graph", row.name, i);
  int32_t n = pst__graph_node(g, PST_PHASE_FORWARD, g->units.n - 1, code, in, attrs);
  return n < 0 ? PST_NO_VALUE : g->nodes.at[n].out[0];
}

#define IN(...) ((pst_value[PST_OP_MAX_IN]){__VA_ARGS__})
#define NONE    PST_NO_VALUE

pst_value pst_embedding(pst_graph *g, pst_value tokens, pst_value table, pst_value positions_table) {
  return forward(g, PST_OP_embedding, IN(tokens, table, positions_table), &(pst_attrs){0});
}

pst_value pst_linear(pst_graph *g, pst_value x, pst_value w, pst_value bias, pst_value addend,
                     bool w_in_out) {
  return forward(g, PST_OP_linear, IN(x, w, bias, addend), &(pst_attrs){.w_in_out = w_in_out});
}

pst_value pst_layer_norm(pst_graph *g, pst_value x, pst_value gain, pst_value bias, float eps) {
  return forward(g, PST_OP_layer_norm, IN(x, gain, bias), &(pst_attrs){.eps = eps});
}

pst_value pst_rms_norm(pst_graph *g, pst_value x, pst_value gain, float eps) {
  return forward(g, PST_OP_rms_norm, IN(x, gain), &(pst_attrs){.eps = eps});
}

pst_value pst_rotary(pst_graph *g, pst_value x, int32_t head_dim, float theta) {
  if (g->status != PST_OK || x < 0 || x >= g->values.n) return PST_NO_VALUE;
  const pst_value_info *info = pst__value(g, x);
  int32_t heads = head_dim > 0 && info->rank ? (int32_t)(info->dim[info->rank - 1] / head_dim) : 0;
  return forward(g, PST_OP_rotary, IN(x, NONE),
                 &(pst_attrs){.heads = heads, .head_dim = head_dim, .theta = theta});
}

static bool trains(const pst_graph *g) {
  return g->options.purpose == PST_PURPOSE_TRAIN;
}

pst_value pst_attention(pst_graph *g, pst_value q, pst_value k, pst_value v,
                        const pst_attention_options *options) {
  pst_attrs attrs = {.heads = options->heads,
                     .kv_heads = options->kv_heads,
                     .head_dim = options->head_dim,
                     .causal = options->causal,
                     .packed = k == NONE && v == NONE};
  if (options->head_dim > 0) attrs.scale = (float)(1.0 / __builtin_sqrt((double)options->head_dim));
  if (trains(g) && options->dropout > 0) {
    attrs.p = options->dropout;
    attrs.site = g->n_sites++;
  }
  return forward(g, PST_OP_attention, IN(q, k, v, options->lengths), &attrs);
}

pst_value pst_gelu(pst_graph *g, pst_value x, bool exact) {
  return forward(g, PST_OP_gelu, IN(x), &(pst_attrs){.exact = exact});
}

pst_value pst_silu_gate(pst_graph *g, pst_value gate, pst_value up) {
  return forward(g, PST_OP_silu_gate, IN(gate, up), &(pst_attrs){0});
}

pst_value pst_add(pst_graph *g, pst_value x, pst_value y) {
  return forward(g, PST_OP_add, IN(x, y), &(pst_attrs){0});
}

pst_value pst_scale(pst_graph *g, pst_value x, float factor) {
  return forward(g, PST_OP_scale, IN(x, NONE), &(pst_attrs){.scale = factor});
}

pst_value pst_dropout(pst_graph *g, pst_value x, pst_value addend, float p) {
  if (!(p >= 0 && p < 1)) {
    pst_graph_fault(g, PST_INVALID, "dropout: share %g, wanted 0 <= p < 1", (double)p);
    return NONE;
  }
  if (!trains(g) || p == 0) return addend == NONE ? x : pst_add(g, x, addend);
  return forward(g, PST_OP_dropout, IN(x, addend), &(pst_attrs){.p = p, .site = g->n_sites++});
}

pst_value pst_cast(pst_graph *g, pst_value x, pst_dtype dtype) {
  if (g->status != PST_OK || x < 0 || x >= g->values.n) return NONE;
  if (pst__value(g, x)->dtype == dtype) return x;
  return forward(g, PST_OP_cast, IN(x), &(pst_attrs){.dtype = (int32_t)dtype});
}

pst_value pst_slice(pst_graph *g, pst_value x, int64_t start, int64_t width) {
  return forward(g, PST_OP_slice, IN(x), &(pst_attrs){.start = start, .width = width});
}

pst_value pst_take(pst_graph *g, pst_value x, pst_value positions) {
  return forward(g, PST_OP_take, IN(x, positions), &(pst_attrs){0});
}

pst_value pst_cross_entropy(pst_graph *g, pst_value logits, pst_value targets) {
  return forward(g, PST_OP_cross_entropy, IN(logits, targets), &(pst_attrs){0});
}

pst_value pst_linear_cross_entropy(pst_graph *g, pst_value x, pst_value w, pst_value targets, bool w_in_out) {
  return forward(g, PST_OP_linear_cross_entropy, IN(x, w, targets), &(pst_attrs){.w_in_out = w_in_out});
}

static void result(pst_graph *g, pst_value v, bool loss) {
  if (g->status != PST_OK) return;
  const char *what = loss ? "loss" : "logits";
  if (v < 0 || v >= g->values.n || pst__value(g, v)->kind != PST_VALUE_COMPUTED)
    pst_graph_fault(g, PST_INVALID, "the %s named is not a value that this graph computes", what);
  else if (g->result != NONE)
    pst_graph_fault(g, PST_INVALID, "the graph's result is named twice");
  else if (loss != (g->options.purpose != PST_PURPOSE_LOGITS))
    pst_graph_fault(g, PST_INVALID, "a %s was named in a graph built for %s", what,
                    loss ? "logits" : "a loss");
  else
    g->result = v;
}

void pst_graph_loss(pst_graph *g, pst_value loss) {
  result(g, loss, true);
}
void pst_graph_logits(pst_graph *g, pst_value logits) {
  result(g, logits, false);
}
