/* GPT-2 (A. Radford et al., "Language models are unsupervised multitask learners", 2019): learned positions,
 * layer norm before each sublayer, biases, weights stored [in, out]. Tensor names are those of Hugging Face's
 * GPT2LMHeadModel. */
#include "core/graph/model.h"

#include <math.h>
#include <stdio.h>

typedef struct gpt2 {
  pst_graph *g;
  const pst_model_config *c;
  int64_t layer;
} gpt2;

static const char *name_of(const gpt2 *m, const char *tensor, char text[96]) {
  snprintf(text, 96, "transformer.h.%lld.%s", (long long)m->layer, tensor);
  return text;
}

static pst_value vector(const gpt2 *m, const char *name, int64_t n, pst_init_kind kind) {
  char text[96];
  return pst_param(m->g, name_of(m, name, text), 1, &n, (pst_init){.kind = kind});
}

static pst_value layer_norm(const gpt2 *m, const char *norm, pst_value x) {
  char gain[48], bias[48];
  snprintf(gain, sizeof gain, "%s.weight", norm);
  snprintf(bias, sizeof bias, "%s.bias", norm);
  return pst_layer_norm(m->g, x, vector(m, gain, m->c->width, PST_INIT_ONES),
                        vector(m, bias, m->c->width, PST_INIT_ZEROS), (float)m->c->norm_eps);
}

/* x * W + bias (+ addend); W is [in, out]. */
static pst_value dense(const gpt2 *m, const char *name, pst_value x, int64_t in, int64_t out, double std,
                       pst_value addend) {
  char weight[48], bias[48], text[96];
  snprintf(weight, sizeof weight, "%s.weight", name);
  snprintf(bias, sizeof bias, "%s.bias", name);
  pst_value w = pst_param(m->g, name_of(m, weight, text), 2, (int64_t[]){in, out},
                          (pst_init){PST_INIT_NORMAL, (float)std});
  return pst_linear(m->g, x, w, vector(m, bias, out, PST_INIT_ZEROS), addend, true);
}

/* The projection back onto the residual stream; without dropout the product starts from it. Its first weights
 * are smaller by sqrt(2 * layers), as the stream adds up that many of them. */
static pst_value onto_stream(const gpt2 *m, const char *name, pst_value x, int64_t in, pst_value stream) {
  double std = m->c->initializer_range / sqrt(2.0 * (double)m->c->layers);
  float p = pst_graph_get_options(m->g)->purpose == PST_PURPOSE_TRAIN ? (float)m->c->dropout_residual : 0.0f;
  if (p == 0) return dense(m, name, x, in, m->c->width, std, stream);
  return pst_dropout(m->g, dense(m, name, x, in, m->c->width, std, PST_NO_VALUE), stream, p);
}

static pst_value attention_sublayer(const gpt2 *m, pst_value x) {
  const pst_model_config *c = m->c;
  pst_value qkv = dense(m, "attn.c_attn", layer_norm(m, "ln_1", x), c->width, 3 * c->width,
                        c->initializer_range, PST_NO_VALUE);
  pst_attention_options o = {.heads = (int32_t)c->heads,
                             .kv_heads = (int32_t)c->heads,
                             .head_dim = (int32_t)(c->width / c->heads),
                             .causal = true,
                             .dropout = (float)c->dropout_attention,
                             .lengths = PST_NO_VALUE};
  pst_value a = pst_attention(m->g, qkv, PST_NO_VALUE, PST_NO_VALUE, &o);
  return onto_stream(m, "attn.c_proj", a, c->width, x);
}

static pst_value feed_forward_sublayer(const gpt2 *m, pst_value x) {
  const pst_model_config *c = m->c;
  pst_value h =
      dense(m, "mlp.c_fc", layer_norm(m, "ln_2", x), c->width, c->hidden, c->initializer_range, PST_NO_VALUE);
  return onto_stream(m, "mlp.c_proj", pst_gelu(m->g, h, c->activation == PST_ACTIVATION_GELU), c->hidden, x);
}

static void head(const gpt2 *m, pst_value x, pst_value table) {
  const pst_model_config *c = m->c;
  pst_init init = {PST_INIT_NORMAL, (float)c->initializer_range};
  bool logits = pst_graph_get_options(m->g)->purpose == PST_PURPOSE_LOGITS;
  if (logits) x = pst_take(m->g, x, pst_graph_positions(m->g));
  x = pst_layer_norm(m->g, x,
                     pst_param(m->g, "transformer.ln_f.weight", 1, &c->width, (pst_init){PST_INIT_ONES, 0}),
                     pst_param(m->g, "transformer.ln_f.bias", 1, &c->width, (pst_init){PST_INIT_ZEROS, 0}),
                     (float)c->norm_eps);
  pst_value w = c->tied ? table : pst_param(m->g, "lm_head.weight", 2, (int64_t[]){c->vocab, c->width}, init);
  if (logits)
    pst_graph_logits(m->g, pst_linear(m->g, x, w, PST_NO_VALUE, PST_NO_VALUE, false));
  else
    pst_graph_loss(m->g, pst_linear_cross_entropy(m->g, x, w, pst_graph_targets(m->g), false));
}

static void build(pst_graph *g, const pst_model_config *c) {
  gpt2 m = {.g = g, .c = c};
  pst_init init = {PST_INIT_NORMAL, (float)c->initializer_range};
  pst_graph_unit(g, "embed");
  pst_value table = pst_param(g, "transformer.wte.weight", 2, (int64_t[]){c->vocab, c->width}, init);
  pst_value positions = pst_param(g, "transformer.wpe.weight", 2, (int64_t[]){c->context, c->width}, init);
  pst_value x = pst_embedding(g, pst_graph_tokens(g), table, positions);
  if (c->dropout_embedding > 0) x = pst_dropout(g, x, PST_NO_VALUE, (float)c->dropout_embedding);
  for (m.layer = 0; m.layer < c->layers; m.layer++) {
    char unit[48];
    snprintf(unit, sizeof unit, "h.%lld.attn", (long long)m.layer);
    pst_graph_unit(g, unit);
    x = attention_sublayer(&m, x);
    snprintf(unit, sizeof unit, "h.%lld.mlp", (long long)m.layer);
    pst_graph_unit(g, unit);
    x = feed_forward_sublayer(&m, x);
  }
  pst_graph_unit(g, "head");
  head(&m, x, table);
}

const pst_model pst_model_gpt2 = {.name = "gpt2", .family = PST_FAMILY_GPT2, .build = build};
