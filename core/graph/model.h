/* A model: its shape, and the function that records it in a graph.
 *
 *   const pst_model *m = pst_model_find("gpt2");
 *   PST_TRY(pst_graph_create(&options, &g));
 *   m->build(g, &config);                               // a short list of builder calls
 *   PST_TRY(pst_graph_status(g));
 *
 * A model is one file in models/ that defines `const pst_model pst_model_<file>`; the build lists them. Its
 * parameters are named as they are on disk in a Hugging Face directory of the family.
 */
#ifndef PENSTOCK_GRAPH_MODEL_H
#define PENSTOCK_GRAPH_MODEL_H

#include "core/graph/graph.h"

/* enum suffix, model_type, architecture that transformers writes */
#define PST_FAMILY_LIST(X)                                                                                   \
  X(GPT2, "gpt2", "GPT2LMHeadModel")                                                                         \
  X(LLAMA, "llama", "LlamaForCausalLM")

typedef enum pst_family {
#define PST_FAMILY_ENUM(name, type, architecture) PST_FAMILY_##name,
  PST_FAMILY_LIST(PST_FAMILY_ENUM)
#undef PST_FAMILY_ENUM
      PST_FAMILY_COUNT
} pst_family;

typedef enum pst_activation {
  PST_ACTIVATION_GELU_TANH, /* gelu_new, gelu_pytorch_tanh */
  PST_ACTIVATION_GELU,      /* with the error function */
  PST_ACTIVATION_SILU,      /* silu, swish */
  PST_ACTIVATION_COUNT
} pst_activation;

enum { PST_EOS_IDS_MAX = 8 };

/* Plain data. GPT-2: layer norm, learned positions, biases everywhere, feed-forward of two matrices. Llama:
 * RMS norm, rotary positions, no biases, gated feed-forward of three. */
typedef struct pst_model_config {
  pst_family family;
  int64_t layers;
  int64_t heads;    /* of queries */
  int64_t kv_heads; /* divides heads; GPT-2: equal to heads */
  int64_t width;
  int64_t hidden; /* of the feed-forward sublayer */
  int64_t vocab;
  int64_t context;  /* positions the model was made for; GPT-2: rows of its position table */
  int64_t head_dim; /* Llama: may differ from width / heads; even */
  int64_t tied;     /* 1: the head uses the embedding's matrix */
  double norm_eps;
  double rope_theta; /* Llama */
  pst_activation activation;
  double dropout_embedding; /* probabilities; Llama has the one on attention only */
  double dropout_attention;
  double dropout_residual;
  double initializer_range; /* standard deviation of initial weights */
  int64_t bos_id;           /* -1: none */
  int64_t eos_ids[PST_EOS_IDS_MAX];
  int64_t n_eos_ids;
} pst_model_config;

typedef struct pst_model {
  const char *name; /* "gpt2": the run file's model.family */
  pst_family family;
  /* Records units, parameters and the result that the graph's purpose asks for. Faults stay in the graph. */
  void (*build)(pst_graph *graph, const pst_model_config *config);
} pst_model;

/* All models of this build, NULL at the end. */
extern const pst_model *const pst_models[];

/* NULL when there is none of that name. */
const pst_model *pst_model_find(const char *name);

#endif
