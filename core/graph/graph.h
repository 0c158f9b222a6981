/* The graph: a model recorded once, as values and the operations between them.
 *
 *   pst_graph *g;
 *   PST_TRY(pst_graph_create(&(pst_graph_options){.batch = 4, .sequence = 64}, &g));
 *   pst_graph_unit(g, "embed");
 *   pst_value x = pst_embedding(g, pst_graph_tokens(g), pst_param(g, "wte", 2, (int64_t[]){256, 32}, init),
 * PST_NO_VALUE); pst_graph_unit(g, "head"); pst_graph_loss(g, pst_linear_cross_entropy(g, x, head,
 * pst_graph_targets(g), false)); PST_TRY(pst_graph_status(g));        // the first fault of any call above
 *
 * A builder call that is given something wrong records the first fault in the graph and returns PST_NO_VALUE,
 * as does every later call, so a model is a plain list of calls. Units are the smallest pieces that the
 * pipeline may cut at; every op belongs to the unit opened last. Shapes: b sequences of T positions; a value
 * [b,T,C] is row-major and dense.
 *
 * A graph is used by one thread at a time.
 */
#ifndef PENSTOCK_GRAPH_GRAPH_H
#define PENSTOCK_GRAPH_GRAPH_H

#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/device/ops.h"

typedef struct pst_graph pst_graph;
typedef int32_t pst_value;
enum { PST_NO_VALUE = -1 };

/* What the graph is built for: a model builds its body alike and ends it differently. */
typedef enum pst_purpose {
  PST_PURPOSE_TRAIN,  /* ends in a loss; is differentiated */
  PST_PURPOSE_LOSS,   /* ends in a loss; forward only, no dropout */
  PST_PURPOSE_LOGITS, /* ends in logits of one position of each sequence, see pst_graph_positions; no dropout
                       */
} pst_purpose;

typedef struct pst_graph_options {
  int64_t batch;       /* b: sequences in a microbatch, >= 1 */
  int64_t sequence;    /* T: positions in a sequence, >= 1 */
  pst_purpose purpose; /* default: train */
  pst_dtype dtype;     /* of parameters and activations: PST_F32 (default) or PST_BF16 */
} pst_graph_options;

PST_CHECKED pst_status pst_graph_create(const pst_graph_options *options, pst_graph **out_graph);
void pst_graph_destroy(pst_graph *graph);

/* The first fault of any builder call, with its message; OK when there was none. */
PST_CHECKED pst_status pst_graph_status(const pst_graph *graph);

/* Records a fault of a model's own (a width that does not divide, say); only the first is kept. */
void pst_graph_fault(pst_graph *graph, pst_status status, const char *format, ...) PST_PRINTF(3, 4);

const pst_graph_options *pst_graph_get_options(const pst_graph *graph);

/* Opens a unit; the name is copied. The first op needs one open. */
void pst_graph_unit(pst_graph *graph, const char *name);

/* What the data brings: tokens[b,T], targets[b,T] (-1: ignored), lengths[b], positions[b]; all i32. */
pst_value pst_graph_tokens(pst_graph *graph);
pst_value pst_graph_targets(pst_graph *graph);
pst_value pst_graph_lengths(pst_graph *graph);
pst_value pst_graph_positions(pst_graph *graph);

/* How a parameter starts. Element i of a normal one is drawn by pst_rng_normal from key (seed, hash of the
 * name). */
typedef enum pst_init_kind { PST_INIT_ZEROS, PST_INIT_ONES, PST_INIT_NORMAL } pst_init_kind;
typedef struct pst_init {
  pst_init_kind kind;
  float std; /* normal: standard deviation; mean 0 */
} pst_init;

/* A parameter by its name on disk (copied, unique); a second call with the name gives the same value and must
 * ask for the same shape: that is how weights are tied. Matrices (rank >= 2) take weight decay, vectors do
 * not. Rank 1 to 4. */
pst_value pst_param(pst_graph *graph, const char *name, int rank, const int64_t *dim, pst_init init);

/* The ops, as core/device/ops.h states them. An optional operand is PST_NO_VALUE when absent. */
pst_value pst_embedding(pst_graph *g, pst_value tokens, pst_value table, pst_value positions_table);
pst_value pst_linear(pst_graph *g, pst_value x, pst_value w, pst_value bias, pst_value addend, bool w_in_out);
pst_value pst_layer_norm(pst_graph *g, pst_value x, pst_value gain, pst_value bias, float eps);
pst_value pst_rms_norm(pst_graph *g, pst_value x, pst_value gain, float eps);
pst_value pst_rotary(pst_graph *g, pst_value x, int32_t head_dim, float theta);

typedef struct pst_attention_options {
  int32_t heads, kv_heads, head_dim;
  bool causal;
  float dropout;     /* share of the attention weights dropped; 0 when the graph is not for training */
  pst_value lengths; /* PST_NO_VALUE: every sequence is full */
} pst_attention_options;
/* q alone with k = v = PST_NO_VALUE: q holds q|k|v side by side. Scores are scaled by 1/sqrt(head_dim). */
pst_value pst_attention(pst_graph *g, pst_value q, pst_value k, pst_value v,
                        const pst_attention_options *options);

pst_value pst_gelu(pst_graph *g, pst_value x, bool exact);
pst_value pst_silu_gate(pst_graph *g, pst_value gate, pst_value up);
pst_value pst_add(pst_graph *g, pst_value x, pst_value y);
pst_value pst_scale(pst_graph *g, pst_value x, float factor);
/* dropout(x) + addend. With p = 0, or a graph that is not for training, only the addition is left. */
pst_value pst_dropout(pst_graph *g, pst_value x, pst_value addend, float p);
pst_value pst_cast(pst_graph *g, pst_value x, pst_dtype dtype);
pst_value pst_slice(pst_graph *g, pst_value x, int64_t start, int64_t width);
/* Row positions[i] of sequence i: [b,T,C] -> [b,1,C]. */
pst_value pst_take(pst_graph *g, pst_value x, pst_value positions);
pst_value pst_cross_entropy(pst_graph *g, pst_value logits, pst_value targets);
pst_value pst_linear_cross_entropy(pst_graph *g, pst_value x, pst_value w, pst_value targets, bool w_in_out);

/* Names the result: loss[b,T] of a graph for training or loss, logits[b,1,V] of one for logits. Once. */
void pst_graph_loss(pst_graph *graph, pst_value loss);
void pst_graph_logits(pst_graph *graph, pst_value logits);

#endif
