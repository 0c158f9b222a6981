/* Llama (H. Touvron et al., "LLaMA: open and efficient foundation language models", 2023): rotary positions,
 * RMS norm before each sublayer, gated feed-forward, grouped heads, no biases, weights stored [out, in].
 * Tensor names are those of Hugging Face's LlamaForCausalLM. */
#include "core/graph/model.h"

#include <stdio.h>

typedef struct llama {
  pst_graph *g;
  const pst_model_config *c;
  int64_t layer;
} llama;

static const char *name_of(const llama *m, const char *tensor, char text[96]) {
  snprintf(text, 96, "model.layers.%lld.%s.weight", (long long)m->layer, tensor);
  return text;
}

static pst_value rms_norm(const llama *m, const char *norm, pst_value x) {
  char text[96];
  pst_value gain = pst_param(m->g, name_of(m, norm, text), 1, &m->c->width, (pst_init){PST_INIT_ONES, 0});
  return pst_rms_norm(m->g, x, gain, (float)m->c->norm_eps);
}

/* x * W^T (+ addend); W is [out, in]. */
static pst_value dense(const llama *m, const char *name, pst_value x, int64_t in, int64_t out,
                       pst_value addend) {
  char text[96];
  pst_init init = {PST_INIT_NORMAL, (float)m->c->initializer_range};
  pst_value w = pst_param(m->g, name_of(m, name, text), 2, (int64_t[]){out, in}, init);
  return pst_linear(m->g, x, w, PST_NO_VALUE, addend, false);
}

static pst_value attention_sublayer(const llama *m, pst_value x) {
  const pst_model_config *c = m->c;
  int32_t d = (int32_t)c->head_dim;
  int64_t own = c->heads * d, shared = c->kv_heads * d;
  pst_value n = rms_norm(m, "input_layernorm", x);
  pst_value q =
      pst_rotary(m->g, dense(m, "self_attn.q_proj", n, c->width, own, PST_NO_VALUE), d, (float)c->rope_theta);
  pst_value k = pst_rotary(m->g, dense(m, "self_attn.k_proj", n, c->width, shared, PST_NO_VALUE), d,
                           (float)c->rope_theta);
  pst_value v = dense(m, "self_attn.v_proj", n, c->width, shared, PST_NO_VALUE);
  pst_attention_options o = {.heads = (int32_t)c->heads,
                             .kv_heads = (int32_t)c->kv_heads,
                             .head_dim = d,
                             .causal = true,
                             .dropout = (float)c->dropout_attention,
                             .lengths = PST_NO_VALUE};
  return dense(m, "self_attn.o_proj", pst_attention(m->g, q, k, v, &o), own, c->width, x);
}

static pst_value feed_forward_sublayer(const llama *m, pst_value x) {
  const pst_model_config *c = m->c;
  pst_value n = rms_norm(m, "post_attention_layernorm", x);
  pst_value gate = dense(m, "mlp.gate_proj", n, c->width, c->hidden, PST_NO_VALUE);
  pst_value up = dense(m, "mlp.up_proj", n, c->width, c->hidden, PST_NO_VALUE);
  return dense(m, "mlp.down_proj", pst_silu_gate(m->g, gate, up), c->hidden, c->width, x);
}

static void head(const llama *m, pst_value x, pst_value table) {
  const pst_model_config *c = m->c;
  pst_init init = {PST_INIT_NORMAL, (float)c->initializer_range};
  bool logits = pst_graph_get_options(m->g)->purpose == PST_PURPOSE_LOGITS;
  if (logits) x = pst_take(m->g, x, pst_graph_positions(m->g));
  pst_value gain = pst_param(m->g, "model.norm.weight", 1, &c->width, (pst_init){PST_INIT_ONES, 0});
  x = pst_rms_norm(m->g, x, gain, (float)c->norm_eps);
  pst_value w = c->tied ? table : pst_param(m->g, "lm_head.weight", 2, (int64_t[]){c->vocab, c->width}, init);
  if (logits)
    pst_graph_logits(m->g, pst_linear(m->g, x, w, PST_NO_VALUE, PST_NO_VALUE, false));
  else
    pst_graph_loss(m->g, pst_linear_cross_entropy(m->g, x, w, pst_graph_targets(m->g), false));
}

static void build(pst_graph *g, const pst_model_config *c) {
  llama m = {.g = g, .c = c};
  pst_graph_unit(g, "embed");
  pst_value table = pst_param(g, "model.embed_tokens.weight", 2, (int64_t[]){c->vocab, c->width},
                              (pst_init){PST_INIT_NORMAL, (float)c->initializer_range});
  pst_value x = pst_embedding(g, pst_graph_tokens(g), table, PST_NO_VALUE);
  for (m.layer = 0; m.layer < c->layers; m.layer++) {
    char unit[48];
    snprintf(unit, sizeof unit, "layers.%lld.attn", (long long)m.layer);
    pst_graph_unit(g, unit);
    x = attention_sublayer(&m, x);
    snprintf(unit, sizeof unit, "layers.%lld.mlp", (long long)m.layer);
    pst_graph_unit(g, unit);
    x = feed_forward_sublayer(&m, x);
  }
  pst_graph_unit(g, "head");
  head(&m, x, table);
}

const pst_model pst_model_llama = {.name = "llama", .family = PST_FAMILY_LLAMA, .build = build};
