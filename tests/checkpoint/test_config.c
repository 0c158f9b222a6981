#include "core/checkpoint/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#ifndef PENSTOCK_SOURCE_DIR
#define PENSTOCK_SOURCE_DIR "."
#endif

static pst_status parse(const char *json, pst_model_config *out, char **out_warnings) {
  return pst_model_config_parse(json, strlen(json), "config.json", out, out_warnings);
}

static pst_model_config parse_quietly(const char *json) {
  pst_model_config config;
  char *warnings = NULL;
  if (parse(json, &config, &warnings) != PST_OK) fail_msg("%s", pst_error());
  if (warnings) fail_msg("unexpected warning: %s", warnings);
  return config;
}

static void defaults_are_those_of_transformers(void **state) {
  pst_model_config gpt2 = parse_quietly("{\"model_type\": \"gpt2\"}");
  assert_int_equal(gpt2.layers, 12);
  assert_int_equal(gpt2.hidden, 3072);
  assert_int_equal(gpt2.tied, 1);
  assert_true(gpt2.norm_eps == 1e-5);
  assert_int_equal(gpt2.eos_ids[0], 50256);
  pst_model_config llama = parse_quietly("{\"model_type\": \"llama\"}");
  assert_int_equal(llama.kv_heads, 32);
  assert_int_equal(llama.head_dim, 128);
  assert_int_equal(llama.tied, 0);
  assert_true(llama.norm_eps == 1e-6);
  assert_true(llama.rope_theta == 10000.0);
}

static void keys_are_honoured(void **state) {
  pst_model_config c = parse_quietly(
      "{\"model_type\":\"gpt2\",\"num_hidden_layers\":3,\"n_head\":5,\"n_embd\":20,\"n_inner\":36,\"vocab_"
      "size\":97,"
      "\"n_positions\":32,\"activation_function\":\"gelu\",\"layer_norm_epsilon\":1e-3,\"embd_pdrop\":0,"
      "\"attn_pdrop\":0.25,\"resid_pdrop\":0.5,\"tie_word_embeddings\":false,\"initializer_range\":0.3,"
      "\"bos_token_id\":null,\"eos_token_id\":[3,4],\"use_cache\":true,\"n_ctx\":32,\"pad_token_id\":0}");
  assert_int_equal(c.layers, 3);
  assert_int_equal(c.heads, 5);
  assert_int_equal(c.kv_heads, 5);
  assert_int_equal(c.head_dim, 4);
  assert_int_equal(c.hidden, 36);
  assert_int_equal(c.vocab, 97);
  assert_int_equal(c.context, 32);
  assert_int_equal(c.tied, 0);
  assert_int_equal(c.activation, PST_ACTIVATION_GELU);
  assert_true(c.norm_eps == 1e-3 && c.dropout_embedding == 0.0 && c.dropout_attention == 0.25);
  assert_true(c.dropout_residual == 0.5 && c.initializer_range == 0.3);
  assert_int_equal(c.bos_id, -1);
  assert_int_equal(c.n_eos_ids, 2);
  assert_int_equal(c.eos_ids[1], 4);

  c = parse_quietly(
      "{\"model_type\":\"llama\",\"hidden_size\":48,\"num_attention_heads\":5,\"head_dim\":16,"
      "\"num_key_value_heads\":1,\"intermediate_size\":7,\"rms_norm_eps\":1e-5,\"rope_scaling\":null,"
      "\"rope_parameters\":{\"rope_theta\":500000.0,\"rope_type\":\"default\"},\"pretraining_tp\":1,"
      "\"attention_bias\":false,\"attention_dropout\":0.125,\"layer_types\":[\"full_attention\"]}");
  assert_int_equal(c.head_dim, 16);
  assert_int_equal(c.kv_heads, 1);
  assert_true(c.rope_theta == 500000.0 && c.dropout_attention == 0.125 && c.dropout_residual == 0.0);
}

/* {members after model_type, key that the message names, value seen} */
static void what_changes_the_mathematics_is_refused_by_name(void **state) {
  static const struct {
    const char *family, *members, *key, *seen;
    pst_status status;
  } rows[] = {
      {"llama", "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0}", "rope_scaling.rope_type",
       "\"llama3\"", PST_UNSUPPORTED},
      {"llama", "\"rope_scaling\":{\"type\":\"linear\"}", "rope_scaling.type", "\"linear\"", PST_UNSUPPORTED},
      {"llama", "\"rope_parameters\":{\"factor\":2.0}", "rope_parameters.factor", "2.0", PST_UNSUPPORTED},
      {"llama", "\"rope_parameters\":{\"partial_rotary_factor\":0.5}", "partial_rotary_factor", "0.5",
       PST_UNSUPPORTED},
      {"llama", "\"rope_theta\":1e4,\"rope_parameters\":{\"rope_theta\":5e5}", "rope_parameters.rope_theta",
       "500000.0", PST_INVALID},
      {"llama", "\"partial_rotary_factor\":0.25", "partial_rotary_factor", "0.25", PST_UNSUPPORTED},
      {"llama", "\"attention_bias\":true", "attention_bias", "true", PST_UNSUPPORTED},
      {"llama", "\"mlp_bias\":true", "mlp_bias", "true", PST_UNSUPPORTED},
      {"llama", "\"pretraining_tp\":2", "pretraining_tp", "2", PST_UNSUPPORTED},
      {"llama", "\"sliding_window\":4096", "sliding_window", "4096", PST_UNSUPPORTED},
      {"llama", "\"layer_types\":[\"sliding_attention\"]", "layer_types", "sliding_attention",
       PST_UNSUPPORTED},
      {"llama", "\"quantization_config\":{\"bits\":4}", "quantization_config", "{\"bits\":4}",
       PST_UNSUPPORTED},
      {"llama", "\"hidden_act\":\"gelu\"", "hidden_act", "\"gelu\"", PST_UNSUPPORTED},
      {"llama", "\"num_key_value_heads\":5", "num_key_value_heads", "5", PST_INVALID},
      {"llama", "\"num_attention_heads\":31", "hidden_size", "4096", PST_INVALID},
      {"llama", "\"head_dim\":7", "head_dim", "7", PST_INVALID},
      {"gpt2", "\"scale_attn_by_inverse_layer_idx\":true", "scale_attn_by_inverse_layer_idx", "true",
       PST_UNSUPPORTED},
      {"gpt2", "\"reorder_and_upcast_attn\":true", "reorder_and_upcast_attn", "true", PST_UNSUPPORTED},
      {"gpt2", "\"scale_attn_weights\":false", "scale_attn_weights", "false", PST_UNSUPPORTED},
      {"gpt2", "\"add_cross_attention\":true", "add_cross_attention", "true", PST_UNSUPPORTED},
      {"gpt2", "\"activation_function\":\"relu\"", "activation_function", "\"relu\"", PST_UNSUPPORTED},
      {"gpt2", "\"n_head\":7", "n_embd", "768", PST_INVALID},
      {"gpt2", "\"n_layer\":2,\"num_hidden_layers\":3", "num_hidden_layers", "3", PST_INVALID},
      {"gpt2", "\"n_layer\":0", "n_layer", "0", PST_INVALID},
      {"gpt2", "\"n_layer\":-1", "n_layer", "-1", PST_INVALID},
      {"gpt2", "\"n_layer\":2.0", "n_layer", "2.0", PST_INVALID},
      {"gpt2", "\"n_layer\":\"2\"", "n_layer", "\"2\"", PST_INVALID},
      {"gpt2", "\"n_embd\":9223372036854775807", "n_embd", "9223372036854775807", PST_INVALID},
      {"gpt2", "\"attn_pdrop\":1.5", "attn_pdrop", "1.5", PST_INVALID},
      {"gpt2", "\"tie_word_embeddings\":1", "tie_word_embeddings", "1", PST_INVALID},
      {"gpt2", "\"eos_token_id\":-1", "eos_token_id", "-1", PST_INVALID},
      {"gpt2", "\"eos_token_id\":[1,2,3,4,5,6,7,8,9]", "eos_token_id", "[1,2", PST_INVALID},
      {"bert", "\"n_layer\":2", "model_type", "\"bert\"", PST_UNSUPPORTED},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char json[512];
    pst_model_config config;
    char *warnings = NULL;
    snprintf(json, sizeof json, "{\"model_type\":\"%s\",%s}", rows[i].family, rows[i].members);
    pst_status st = parse(json, &config, &warnings);
    if (st != rows[i].status || !strstr(pst_error(), rows[i].key) || !strstr(pst_error(), rows[i].seen) ||
        !strstr(pst_error(), "wanted"))
      fail_msg("%s: status %s, message \"%s\"", json, pst_status_name(st), pst_error());
  }
}

static void malformed_text_is_refused(void **state) {
  static const char *const texts[] = {"",
                                      "{",
                                      "[]",
                                      "{}",
                                      "null",
                                      "{\"model_type\":7}",
                                      "{\"model_type\":\"gpt2\",\"n_layer\":1,\"n_layer\":2}",
                                      "{\"model_type\":\"gpt2\"} x",
                                      "{\"model_type\":\"gpt2\",\"n_layer\":1e999}"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    pst_model_config config;
    char *warnings = NULL;
    assert_int_not_equal(parse(texts[i], &config, &warnings), PST_OK);
    assert_non_null(strstr(pst_error(), "config.json"));
  }
}

static void an_unknown_key_is_a_warning(void **state) {
  pst_model_config config;
  char *warnings = NULL;
  assert_int_equal(parse("{\"model_type\":\"llama\",\"use_flux\":3,\"pad_token_id\":0,"
                         "\"architectures\":[\"LlamaForTokenClassification\"]}",
                         &config, &warnings),
                   PST_OK);
  assert_non_null(warnings);
  assert_non_null(strstr(warnings, "use_flux is not known"));
  assert_non_null(strstr(warnings, "pad_token_id"));
  assert_non_null(strstr(warnings, "LlamaForTokenClassification"));
  free(warnings);
}

static void what_is_written_is_read_back(void **state) {
  for (int family = 0; family < PST_FAMILY_COUNT; family++) {
    pst_model_config config, back;
    char *json = NULL, *warnings = NULL;
    pst_model_config_init(&config, (pst_family)family);
    config.layers = 7;
    config.norm_eps = 1.0 / 3.0;
    config.initializer_range = 0.1;
    config.tied = !config.tied;
    config.n_eos_ids = 2;
    config.eos_ids[1] = 9;
    config.bos_id = -1;
    if (family == PST_FAMILY_LLAMA)
      config.kv_heads = 4, config.head_dim = 96;
    else
      config.hidden = 100;
    assert_int_equal(pst_model_config_format(&config, &json), PST_OK);
    if (parse(json, &back, &warnings) != PST_OK) fail_msg("%s in %s", pst_error(), json);
    assert_null(warnings);
    assert_memory_equal(&config, &back, sizeof config);
    free(json);
  }
  pst_model_config bad;
  char *json = NULL;
  pst_model_config_init(&bad, PST_FAMILY_GPT2);
  bad.heads = 7;
  assert_int_equal(pst_model_config_format(&bad, &json), PST_INVALID);
}

static void a_real_file_opens(void **state) {
  const char *data = getenv("PENSTOCK_TEST_DATA");
  char path[4096];
  snprintf(path, sizeof path, "%s/stories260k/config.json",
           data ? data : PENSTOCK_SOURCE_DIR "/../shared/data");
  if (access(path, R_OK) != 0) {
    print_message("skipped: %s is not there\n", path);
    skip();
  }
  pst_model_config config;
  char *warnings = NULL;
  if (pst_model_config_load(path, &config, &warnings) != PST_OK) fail_msg("%s", pst_error());
  assert_null(warnings);
  assert_int_equal(config.layers, 5);
  assert_int_equal(config.kv_heads, 4);
  assert_int_equal(config.hidden, 172);
  assert_int_equal(config.tied, 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(defaults_are_those_of_transformers),
      cmocka_unit_test(keys_are_honoured),
      cmocka_unit_test(what_changes_the_mathematics_is_refused_by_name),
      cmocka_unit_test(malformed_text_is_refused),
      cmocka_unit_test(an_unknown_key_is_a_warning),
      cmocka_unit_test(what_is_written_is_read_back),
      cmocka_unit_test(a_real_file_opens),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
