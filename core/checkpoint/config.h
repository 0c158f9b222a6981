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
#include "core/graph/model.h"

#include <stddef.h>
#include <stdint.h>

/* "gpt2", "llama"; "unknown" for a value that is no family. */
const char *pst_family_name(pst_family family);

/* "gelu_new", "gelu", "silu"; "unknown" for a value that is none. */
const char *pst_activation_name(pst_activation activation);

/* The values that transformers has for a config.json with nothing in it but model_type. */
void pst_model_config_init(pst_model_config *config, pst_family family);

/* Ranges and what has to divide what; `where` stands in front of the message, which names the key as
 * config.json of the family spells it. PST_INVALID. */
pst_status pst_model_config_check(const pst_model_config *config, const char *where) PST_CHECKED;

/* Parses n bytes of JSON (pst_model_config_load: a file of at most 1 MiB). `out_warnings` (may be NULL) gets
 * NULL, or lines that the caller prints and frees. PST_INVALID: malformed, or a value out of range;
 * PST_UNSUPPORTED: a key that asks for mathematics which Penstock does not have; PST_IO; PST_NO_MEMORY. */
pst_status pst_model_config_parse(const char *json, size_t n, const char *where, pst_model_config *out,
                                  char **out_warnings) PST_CHECKED;
pst_status pst_model_config_load(const char *path, pst_model_config *out, char **out_warnings) PST_CHECKED;

/* The text of a config.json that transformers opens; the caller frees it. save replaces the file in one move.
 */
pst_status pst_model_config_format(const pst_model_config *config, char **out_json) PST_CHECKED;
pst_status pst_model_config_save(const pst_model_config *config, const char *path) PST_CHECKED;

#endif
