/* libFuzzer target: config.json on any bytes.
 *
 *   clang -fsanitize=fuzzer,address,undefined ... && ./fuzz_config -max_total_time=60 -max_len=4096 corpus/
 *
 * What is accepted has to pass the check, and has to come back the same from its own text.
 */
#include "core/checkpoint/config.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void require(int truth) {
  if (!truth) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
  pst_model_config config, again;
  char *warnings = NULL, *text = NULL;
  memset(&config, 0, sizeof config);
  memset(&again, 0, sizeof again);
  if (pst_model_config_parse((const char *)bytes, n, "fuzz", &config, &warnings) != PST_OK) {
    require(warnings == NULL && pst_error()[0] != 0);
    return 0;
  }
  free(warnings);
  require(pst_model_config_check(&config, "fuzz") == PST_OK);
  require(pst_model_config_format(&config, &text) == PST_OK);
  require(pst_model_config_parse(text, strlen(text), "fuzz", &again, &warnings) == PST_OK);
  require(warnings == NULL);
  require(again.layers == config.layers && again.hidden == config.hidden &&
          again.head_dim == config.head_dim);
  require(again.tied == config.tied && again.activation == config.activation);
  require(again.norm_eps == config.norm_eps && again.rope_theta == config.rope_theta);
  require(again.bos_id == config.bos_id && again.n_eos_ids == config.n_eos_ids);
  free(text);
  return 0;
}
