#include "core/checkpoint/config_keys.h"

#include <string.h>

/* Upper ends keep every product of two sizes below 2^63. */
#define COUNT_MAX 1048576.0
#define INDEX_MAX 2147483647.0
#define DROP_MAX  0.999 /* what is kept is scaled by 1 / (1 - p) */

#define INTEGER(name, alias, field, low, high)                                                               \
  { name, alias, PST__CONFIG_INTEGER, offsetof(pst_model_config, field), low, high, NULL }
#define NUMBER(name, field, low, high)                                                                       \
  { name, NULL, PST__CONFIG_NUMBER, offsetof(pst_model_config, field), low, high, NULL }
#define BOOL(name, field)                                                                                    \
  { name, NULL, PST__CONFIG_BOOL, offsetof(pst_model_config, field), 0, 1, NULL }
#define ONLY(name, text)                                                                                     \
  { name, NULL, PST__CONFIG_ONLY, 0, 0, 0, text }

/* Keys that any family of transformers may carry. "null": accepted when absent or null only. */
#define COMMON_KEYS                                                                                          \
  BOOL("tie_word_embeddings", tied), NUMBER("initializer_range", initializer_range, 0.0, 100.0),             \
      ONLY("quantization_config", "null"), ONLY("is_encoder_decoder", "false"),                              \
      ONLY("add_cross_attention", "false"), ONLY("cross_attention_hidden_size", "null"),                     \
      ONLY("tie_encoder_decoder", "false"), ONLY("pruned_heads", "{}"), ONLY("sliding_window", "null"),      \
      ONLY("use_sliding_window", "false"), ONLY("attn_logit_softcapping", "null"),                           \
      ONLY("final_logit_softcapping", "null"), ONLY("logit_scale", "null"), ONLY("num_experts", "null"),     \
      ONLY("num_local_experts", "null"), ONLY("adapters", "null")

static const pst__config_key gpt2_keys[] = {
    INTEGER("n_layer", "num_hidden_layers", layers, 1, COUNT_MAX),
    INTEGER("n_head", "num_attention_heads", heads, 1, COUNT_MAX),
    INTEGER("n_embd", "hidden_size", width, 1, COUNT_MAX),
    INTEGER("n_inner", NULL, hidden, 1, 16 * COUNT_MAX),
    INTEGER("vocab_size", NULL, vocab, 1, INDEX_MAX),
    INTEGER("n_positions", "max_position_embeddings", context, 1, INDEX_MAX),
    NUMBER("layer_norm_epsilon", norm_eps, 0.0, 1.0),
    NUMBER("embd_pdrop", dropout_embedding, 0.0, DROP_MAX),
    NUMBER("attn_pdrop", dropout_attention, 0.0, DROP_MAX),
    NUMBER("resid_pdrop", dropout_residual, 0.0, DROP_MAX),
    ONLY("scale_attn_weights", "true"),
    ONLY("scale_attn_by_inverse_layer_idx", "false"),
    ONLY("reorder_and_upcast_attn", "false"),
    COMMON_KEYS,
};

static const pst__config_key llama_keys[] = {
    INTEGER("num_hidden_layers", NULL, layers, 1, COUNT_MAX),
    INTEGER("num_attention_heads", NULL, heads, 1, COUNT_MAX),
    INTEGER("num_key_value_heads", NULL, kv_heads, 1, COUNT_MAX),
    INTEGER("hidden_size", NULL, width, 1, COUNT_MAX),
    INTEGER("intermediate_size", NULL, hidden, 1, 16 * COUNT_MAX),
    INTEGER("vocab_size", NULL, vocab, 1, INDEX_MAX),
    INTEGER("max_position_embeddings", NULL, context, 1, INDEX_MAX),
    INTEGER("head_dim", NULL, head_dim, 2, COUNT_MAX),
    NUMBER("rms_norm_eps", norm_eps, 0.0, 1.0),
    NUMBER("rope_theta", rope_theta, 1.0, 1e18),
    NUMBER("attention_dropout", dropout_attention, 0.0, DROP_MAX),
    ONLY("attention_bias", "false"),
    ONLY("mlp_bias", "false"),
    ONLY("pretraining_tp", "1"),
    ONLY("partial_rotary_factor", "1.0"),
    ONLY("rope_interleaved", "false"),
    ONLY("use_qk_norm", "false"),
    ONLY("embedding_multiplier", "1.0"),
    ONLY("residual_multiplier", "1.0"),
    ONLY("logits_scaling", "1.0"),
    COMMON_KEYS,
};

/* Storage, bookkeeping, generation and heads that a language model does not use; and the keys that config.c
 * reads by itself. */
static const char *const harmless[] = {
    "model_type",
    "architectures",
    "activation_function",
    "hidden_act",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "rope_scaling",
    "rope_parameters",
    "layer_types",
    "_name_or_path",
    "name_or_path",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "use_cache",
    "n_ctx",
    "task_specific_params",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "gradient_checkpointing",
    "attn_implementation",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "finetuning_task",
    "classifier_dropout",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "output_scores",
    "return_dict",
    "return_dict_in_generate",
    "torchscript",
    "use_bfloat16",
    "tf_legacy_loss",
    "is_decoder",
    "chunk_size_feed_forward",
    "prefix",
    "sep_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "unk_token_id",
    "tokenizer_class",
    "bad_words_ids",
    "begin_suppress_tokens",
    "suppress_tokens",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "length_penalty",
    "max_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "remove_invalid_values",
    "repetition_penalty",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "auto_map",
    "max_sequence_length",
    "base_model_tp_plan",
    "generation_config",
};

#define ROWS(table) (sizeof(table) / sizeof *(table))

const pst__config_key *pst__config_keys(pst_family family, size_t *out_n) {
  if (family == PST_FAMILY_GPT2) {
    *out_n = ROWS(gpt2_keys);
    return gpt2_keys;
  }
  *out_n = ROWS(llama_keys);
  return llama_keys;
}

int pst__config_key_harmless(const char *name) {
  for (size_t i = 0; i < ROWS(harmless); i++)
    if (strcmp(harmless[i], name) == 0) return 1;
  return 0;
}

const char *pst__config_key_name(pst_family family, size_t offset) {
  size_t n;
  const pst__config_key *keys = pst__config_keys(family, &n);
  for (size_t i = 0; i < n; i++)
    if (keys[i].kind != PST__CONFIG_ONLY && keys[i].offset == offset) return keys[i].name;
  return "?";
}
