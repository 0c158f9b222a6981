/* A model's shape as a Hugging Face config.json states it, for the families GPT-2 and Llama.
 *
 *   pst_model_config config;
 *   char *warnings;
 *   PST_TRY(pst_model_config_load("hf/gpt2/config.json", &config, &warnings));
 *   if (warnings) pst_log_warning("%s", warnings);             // one line per key that nothing here knows
 *   free(warnings);
 *   PST_TRY(pst_model_config_save(&config, "export/config.json"));
 *
 * Every key that changes the mathematics is either in the struct or refused by name with the value seen; a
 * key that is known to change nothing is passed over; any other key is passed over with a warning. Missing
 * keys take the defaults of transformers' GPT2Config and LlamaConfig. All functions are pure; any thread.
 */
#ifndef PENSTOCK_CHECKPOINT_CONFIG_H
#define PENSTOCK_CHECKPOINT_CONFIG_H

#include "core/base/status.h"

#include <stddef.h>
#include <stdint.h>

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

/* "gpt2", "llama"; "unknown" for a value that is no family. */
const char *pst_family_name(pst_family family);

/* "gelu_new", "gelu", "silu"; "unknown" for a value that is none. */
const char *pst_activation_name(pst_activation activation);

/* The values that transformers has for a config.json with nothing in it but model_type. */
void pst_model_config_init(pst_model_config *config, pst_family family);

/* Ranges and what has to divide what; `where` stands in front of the message, which names the key as
 * config.json of the family spells it. PST_INVALID. */
pst_status pst_model_config_check(const pst_model_config *config, const char *where) PST_CHECKED;

/* Parses n bytes of JSON (pst_model_config_load: a file of at most 1 MiB). `out_warnings`: NULL, or lines
 * that the caller prints and frees. PST_INVALID: malformed, or a value out of range; PST_UNSUPPORTED: a key
 * that asks for mathematics which Penstock does not have; PST_IO; PST_NO_MEMORY. */
pst_status pst_model_config_parse(const char *json, size_t n, const char *where, pst_model_config *out,
                                  char **out_warnings) PST_CHECKED;
pst_status pst_model_config_load(const char *path, pst_model_config *out, char **out_warnings) PST_CHECKED;

/* The text of a config.json that transformers opens; the caller frees it. save replaces the file in one move.
 */
pst_status pst_model_config_format(const pst_model_config *config, char **out_json) PST_CHECKED;
pst_status pst_model_config_save(const pst_model_config *config, const char *path) PST_CHECKED;

#endif
