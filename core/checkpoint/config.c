#include "core/checkpoint/config.h"

#include "core/base/file.h"
#include "core/checkpoint/config_keys.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  FILE_BYTES_MAX = 1 << 20,
  SHOWN_MAX = 120 /* of a refused value, in a message */
};

static const struct {
  const char *type, *architecture;
} families[PST_FAMILY_COUNT] = {
#define FAMILY_ROW(name, type, architecture) {type, architecture},
    PST_FAMILY_LIST(FAMILY_ROW)
#undef FAMILY_ROW
};

/* The first name of each activation is the one that is written. */
static const struct {
  const char *name;
  pst_activation activation;
} activations[] = {
    {"gelu_new", PST_ACTIVATION_GELU_TANH}, {"gelu_pytorch_tanh", PST_ACTIVATION_GELU_TANH},
    {"gelu", PST_ACTIVATION_GELU},          {"silu", PST_ACTIVATION_SILU},
    {"swish", PST_ACTIVATION_SILU},
};

#define ROWS(table) (sizeof(table) / sizeof *(table))

const char *pst_family_name(pst_family family) {
  return (unsigned)family < PST_FAMILY_COUNT ? families[family].type : "unknown";
}

const char *pst_activation_name(pst_activation activation) {
  for (size_t i = 0; i < ROWS(activations); i++)
    if (activations[i].activation == activation) return activations[i].name;
  return "unknown";
}

void pst_model_config_init(pst_model_config *config, pst_family family) {
  static const pst_model_config gpt2 = {.family = PST_FAMILY_GPT2,
                                        .layers = 12,
                                        .heads = 12,
                                        .kv_heads = 12,
                                        .width = 768,
                                        .hidden = 3072,
                                        .vocab = 50257,
                                        .context = 1024,
                                        .head_dim = 64,
                                        .tied = 1,
                                        .norm_eps = 1e-5,
                                        .activation = PST_ACTIVATION_GELU_TANH,
                                        .dropout_embedding = 0.1,
                                        .dropout_attention = 0.1,
                                        .dropout_residual = 0.1,
                                        .initializer_range = 0.02,
                                        .bos_id = 50256,
                                        .eos_ids = {50256},
                                        .n_eos_ids = 1};
  static const pst_model_config llama = {.family = PST_FAMILY_LLAMA,
                                         .layers = 32,
                                         .heads = 32,
                                         .kv_heads = 32,
                                         .width = 4096,
                                         .hidden = 11008,
                                         .vocab = 32000,
                                         .context = 2048,
                                         .head_dim = 128,
                                         .tied = 0,
                                         .norm_eps = 1e-6,
                                         .rope_theta = 10000.0,
                                         .activation = PST_ACTIVATION_SILU,
                                         .initializer_range = 0.02,
                                         .bos_id = 1,
                                         .eos_ids = {2},
                                         .n_eos_ids = 1};
  *config = family == PST_FAMILY_GPT2 ? gpt2 : llama;
}

/* What one parse carries along. */
typedef struct reading {
  const char *where;
  const json_t *root;
  pst_model_config config;
  json_t *warnings; /* array of strings */
} reading;

static void warn(reading *r, const char *format, const char *key, const char *rest) {
  /* a warning that finds no memory is dropped: the model is right without it */
  json_array_append_new(r->warnings, json_sprintf(format, r->where, key, rest));
}

static pst_status refuse(const reading *r, pst_status status, const char *key, const json_t *value,
                         const char *wanted) {
  char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
  pst_status st =
      pst_fail(status, "%s: %.80s is %.*s, wanted %s", r->where, key, SHOWN_MAX, text ? text : "?", wanted);
  free(text);
  return st;
}

static pst_status refuse_range(const reading *r, const pst__config_key *row, const json_t *value) {
  char wanted[80];
  snprintf(wanted, sizeof wanted, "%s from %g to %g",
           row->kind == PST__CONFIG_INTEGER ? "an integer" : "a number", row->low, row->high);
  return refuse(r, PST_INVALID, row->name, value, wanted);
}

static int equal_numbers(const json_t *a, const json_t *b) {
  return json_is_number(a) && json_is_number(b) && json_number_value(a) == json_number_value(b);
}

static pst_status read_key(reading *r, const pst__config_key *row, const json_t *value) {
  char *field = (char *)&r->config + row->offset;
  if (json_is_null(value)) return PST_OK;
  if (row->kind == PST__CONFIG_ONLY) {
    json_t *only = json_loads(row->only, JSON_DECODE_ANY, NULL);
    if (!only) return pst_fail(PST_NO_MEMORY, "%s: no memory for key %s", r->where, row->name);
    int same = json_equal(value, only) || equal_numbers(value, only);
    json_decref(only);
    return same ? PST_OK : refuse(r, PST_UNSUPPORTED, row->name, value, row->only);
  }
  if (row->kind == PST__CONFIG_BOOL) {
    if (!json_is_boolean(value)) return refuse(r, PST_INVALID, row->name, value, "true or false");
    *(int64_t *)(void *)field = json_is_true(value);
    return PST_OK;
  }
  double x = json_number_value(value);
  int right = row->kind == PST__CONFIG_INTEGER ? json_is_integer(value) : json_is_number(value);
  if (!right || !(x >= row->low && x <= row->high)) return refuse_range(r, row, value);
  if (row->kind == PST__CONFIG_INTEGER)
    *(int64_t *)(void *)field = json_integer_value(value);
  else
    *(double *)(void *)field = x;
  return PST_OK;
}

static pst_status read_table(reading *r, const pst__config_key *keys, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const json_t *value = json_object_get(r->root, keys[i].name);
    const json_t *other = keys[i].alias ? json_object_get(r->root, keys[i].alias) : NULL;
    if (value && other && !json_equal(value, other)) {
      pst_status st = refuse(r, PST_INVALID, keys[i].alias, other, "the same value as under its other name");
      return pst_fail_prefix(st, "%s: ", keys[i].name);
    }
    if (!value) value = other;
    if (value) PST_TRY(read_key(r, &keys[i], value));
  }
  return PST_OK;
}

static int present(const reading *r, const char *key) {
  const json_t *value = json_object_get(r->root, key);
  return value && !json_is_null(value);
}

/* Sizes that follow from others unless they are given. */
static pst_status derive(reading *r) {
  pst_model_config *c = &r->config;
  if (c->family == PST_FAMILY_GPT2) {
    if (!present(r, "n_inner")) c->hidden = 4 * c->width;
    c->kv_heads = c->heads;
    c->head_dim = c->width / c->heads;
    return PST_OK;
  }
  if (!present(r, "num_key_value_heads")) c->kv_heads = c->heads;
  if (present(r, "head_dim")) return PST_OK;
  c->head_dim = c->width / c->heads;
  if (c->width % c->heads == 0) return PST_OK;
  return pst_fail(PST_INVALID,
                  "%s: hidden_size is %lld, wanted a multiple of num_attention_heads, %lld, or head_dim",
                  r->where, (long long)c->width, (long long)c->heads);
}

static pst_status read_activation(reading *r) {
  const char *key = r->config.family == PST_FAMILY_GPT2 ? "activation_function" : "hidden_act";
  const char *wanted = r->config.family == PST_FAMILY_GPT2 ? "gelu_new, gelu_pytorch_tanh or gelu" : "silu";
  const json_t *value = json_object_get(r->root, key);
  if (!value) return PST_OK;
  const char *name = json_string_value(value);
  for (size_t i = 0; name && i < ROWS(activations); i++) {
    if (strcmp(activations[i].name, name) != 0) continue;
    int silu = activations[i].activation == PST_ACTIVATION_SILU;
    if (silu != (r->config.family == PST_FAMILY_LLAMA)) break;
    r->config.activation = activations[i].activation;
    return PST_OK;
  }
  return refuse(r, PST_UNSUPPORTED, key, value, wanted);
}

static pst_status read_token_id(const reading *r, const char *key, const json_t *value, int64_t *out) {
  json_int_t id = json_integer_value(value);
  if (!json_is_integer(value) || id < 0 || id > INT32_MAX)
    return refuse(r, PST_INVALID, key, value, "a token id from 0 to 2147483647");
  *out = id;
  return PST_OK;
}

static pst_status read_tokens(reading *r) {
  pst_model_config *c = &r->config;
  const json_t *bos = json_object_get(r->root, "bos_token_id");
  const json_t *eos = json_object_get(r->root, "eos_token_id");
  const json_t *pad = json_object_get(r->root, "pad_token_id");
  if (json_is_null(bos))
    c->bos_id = -1;
  else if (bos)
    PST_TRY(read_token_id(r, "bos_token_id", bos, &c->bos_id));
  if (json_is_null(eos)) {
    c->n_eos_ids = 0;
  } else if (json_is_array(eos)) {
    if (json_array_size(eos) > PST_EOS_IDS_MAX)
      return refuse(r, PST_INVALID, "eos_token_id", eos, "at most 8 ids");
    c->n_eos_ids = (int64_t)json_array_size(eos);
    for (int64_t i = 0; i < c->n_eos_ids; i++)
      PST_TRY(read_token_id(r, "eos_token_id", json_array_get(eos, (size_t)i), &c->eos_ids[i]));
  } else if (eos) {
    PST_TRY(read_token_id(r, "eos_token_id", eos, &c->eos_ids[0]));
    c->n_eos_ids = 1;
  }
  /* torch freezes the embedding row of a padding id; Penstock ignores padding by its targets instead */
  if (c->family == PST_FAMILY_LLAMA && json_is_integer(pad) && json_integer_value(pad) >= 0)
    warn(r, "%s: %s%s", "pad_token_id", ": its embedding row is trained like any other");
  return PST_OK;
}

/* rope_scaling (older) and rope_parameters (newer): only the plain kind, with nothing that bends the angles.
 */
static pst_status read_rope(reading *r, const char *name) {
  const json_t *rope = json_object_get(r->root, name);
  if (!rope || json_is_null(rope)) return PST_OK;
  if (!json_is_object(rope)) return refuse(r, PST_INVALID, name, rope, "an object or null");
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)rope, key, value) {
    char full[160];
    snprintf(full, sizeof full, "%s.%.80s", name, key);
    if (strcmp(key, "rope_type") == 0 || strcmp(key, "type") == 0) {
      const char *type = json_string_value(value);
      if (!type || strcmp(type, "default") != 0)
        return refuse(r, PST_UNSUPPORTED, full, value, "\"default\"");
    } else if (strcmp(key, "rope_theta") == 0) {
      const pst__config_key row = {
          full, NULL, PST__CONFIG_NUMBER, offsetof(pst_model_config, rope_theta), 1.0, 1e18, NULL};
      const json_t *outer = json_object_get(r->root, "rope_theta");
      if (outer && !json_is_null(outer) && !equal_numbers(outer, value))
        return refuse(r, PST_INVALID, full, value, "the same value as rope_theta");
      PST_TRY(read_key(r, &row, value));
    } else if (strcmp(key, "partial_rotary_factor") == 0) {
      if (json_number_value(value) != 1.0) return refuse(r, PST_UNSUPPORTED, full, value, "1.0");
    } else {
      return refuse(r, PST_UNSUPPORTED, full, value, "no such key");
    }
  }
  return PST_OK;
}

static pst_status read_layer_types(const reading *r) {
  const json_t *types = json_object_get(r->root, "layer_types");
  size_t i;
  json_t *type;
  json_array_foreach(types, i, type) {
    const char *name = json_string_value(type);
    if (!name || strcmp(name, "full_attention") != 0)
      return refuse(r, PST_UNSUPPORTED, "layer_types", type, "full_attention in every layer");
  }
  return PST_OK;
}

static void warn_of_architectures(reading *r) {
  const json_t *list = json_object_get(r->root, "architectures");
  const char *wanted = families[r->config.family].architecture;
  const char *seen = json_string_value(json_array_get(list, 0));
  if (seen && strcmp(seen, wanted) != 0) warn(r, "%s: architectures is %s, taken for %s", seen, wanted);
}

static void warn_of_unknown(reading *r, const pst__config_key *keys, size_t n) {
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)r->root, key, value) {
    int known = pst__config_key_harmless(key);
    for (size_t i = 0; i < n && !known; i++)
      known = strcmp(keys[i].name, key) == 0 || (keys[i].alias && strcmp(keys[i].alias, key) == 0);
    if (!known) warn(r, "%s: key %s%s", key, " is not known here and was passed over");
  }
}

static pst_status read_family(reading *r) {
  const json_t *type = json_object_get(r->root, "model_type");
  const char *name = json_string_value(type);
  if (!type) return pst_fail(PST_INVALID, "%s: model_type is missing, wanted gpt2 or llama", r->where);
  for (int i = 0; name && i < PST_FAMILY_COUNT; i++)
    if (strcmp(families[i].type, name) == 0) {
      pst_model_config_init(&r->config, (pst_family)i);
      return PST_OK;
    }
  return refuse(r, PST_UNSUPPORTED, "model_type", type, "gpt2 or llama");
}

static pst_status read_all(reading *r) {
  PST_TRY(read_family(r));
  size_t n;
  const pst__config_key *keys = pst__config_keys(r->config.family, &n);
  PST_TRY(read_table(r, keys, n));
  PST_TRY(derive(r));
  PST_TRY(read_activation(r));
  PST_TRY(read_tokens(r));
  if (r->config.family == PST_FAMILY_LLAMA) {
    PST_TRY(read_rope(r, "rope_scaling"));
    PST_TRY(read_rope(r, "rope_parameters"));
  }
  PST_TRY(read_layer_types(r));
  PST_TRY(pst_model_config_check(&r->config, r->where));
  warn_of_architectures(r);
  warn_of_unknown(r, keys, n);
  return PST_OK;
}

/* The warnings as lines of one text, NULL when there are none. */
static pst_status join_lines(const reading *r, char **out) {
  size_t i, bytes = 1;
  json_t *line;
  *out = NULL;
  if (json_array_size(r->warnings) == 0) return PST_OK;
  json_array_foreach(r->warnings, i, line) bytes += json_string_length(line) + 1;
  char *text = malloc(bytes), *end = text;
  if (!text) return pst_fail(PST_NO_MEMORY, "%s: no memory for %zu bytes of warnings", r->where, bytes);
  json_array_foreach(r->warnings, i, line) end +=
      sprintf(end, "%s%s", i ? "\n" : "", json_string_value(line));
  *out = text;
  return PST_OK;
}

pst_status pst_model_config_parse(const char *json, size_t n, const char *where, pst_model_config *out,
                                  char **out_warnings) {
  reading r = {.where = where};
  char *warnings = NULL;
  pst_status st = PST_OK;
  json_error_t error;
  json_t *root = json_loadb(json, n, JSON_REJECT_DUPLICATES, &error);
  if (!root) return pst_fail(PST_INVALID, "%s:%d:%d: %s", where, error.line, error.column, error.text);
  r.root = root;
  r.warnings = json_array();
  if (!json_is_object(root)) {
    st = pst_fail(PST_INVALID, "%s: is no JSON object", where);
    goto done;
  }
  if (!r.warnings) {
    st = pst_fail(PST_NO_MEMORY, "%s: no memory for a list of warnings", where);
    goto done;
  }
  PST_GOTO(st, read_all(&r), done);
  PST_GOTO(st, join_lines(&r, &warnings), done);
  *out = r.config;
  *out_warnings = warnings;
done:
  json_decref(r.warnings);
  json_decref(root);
  return st;
}

pst_status pst_model_config_load(const char *path, pst_model_config *out, char **out_warnings) {
  char *text = NULL;
  size_t n = 0;
  PST_TRY(pst_file_read(path, FILE_BYTES_MAX, &text, &n));
  pst_status st = pst_model_config_parse(text, n, path, out, out_warnings);
  free(text);
  return st;
}

pst_status pst_model_config_check(const pst_model_config *config, const char *where) {
  if ((unsigned)config->family >= PST_FAMILY_COUNT)
    return pst_fail(PST_INVALID, "%s: family is %d, wanted gpt2 or llama", where, (int)config->family);
  size_t n;
  const pst__config_key *keys = pst__config_keys(config->family, &n);
  for (size_t i = 0; i < n; i++) {
    if (keys[i].kind == PST__CONFIG_ONLY) continue;
    const char *field = (const char *)config + keys[i].offset;
    double x = keys[i].kind == PST__CONFIG_NUMBER ? *(const double *)(const void *)field
                                                  : (double)*(const int64_t *)(const void *)field;
    if (!(x >= keys[i].low && x <= keys[i].high))
      return pst_fail(PST_INVALID, "%s: %s is %g, wanted %g to %g", where, keys[i].name, x, keys[i].low,
                      keys[i].high);
  }
  const char *width = pst__config_key_name(config->family, offsetof(pst_model_config, width));
  const char *heads = pst__config_key_name(config->family, offsetof(pst_model_config, heads));
  if (config->family == PST_FAMILY_GPT2 && config->width % config->heads != 0)
    return pst_fail(PST_INVALID, "%s: %s is %lld, wanted a multiple of %s, %lld", where, width,
                    (long long)config->width, heads, (long long)config->heads);
  if (config->family == PST_FAMILY_GPT2 &&
      (config->kv_heads != config->heads || config->head_dim != config->width / config->heads))
    return pst_fail(PST_INVALID, "%s: %lld key-value heads of %lld elements, wanted %s = %lld of %lld", where,
                    (long long)config->kv_heads, (long long)config->head_dim, heads, (long long)config->heads,
                    (long long)(config->width / config->heads));
  if (config->heads % config->kv_heads != 0)
    return pst_fail(PST_INVALID, "%s: num_key_value_heads is %lld, wanted a divisor of %s, %lld", where,
                    (long long)config->kv_heads, heads, (long long)config->heads);
  if (config->family == PST_FAMILY_LLAMA && config->head_dim % 2 != 0)
    return pst_fail(PST_INVALID, "%s: head_dim is %lld, wanted an even number", where,
                    (long long)config->head_dim);
  return PST_OK;
}

static json_t *eos_value(const pst_model_config *config) {
  if (config->n_eos_ids == 0) return json_null();
  if (config->n_eos_ids == 1) return json_integer(config->eos_ids[0]);
  json_t *list = json_array();
  for (int64_t i = 0; i < config->n_eos_ids; i++)
    json_array_append_new(list, json_integer(config->eos_ids[i]));
  return list;
}

/* Every row of the family's table that holds a field, under the name it was read by. */
static int set_fields(json_t *root, const pst_model_config *config) {
  size_t n;
  int failed = 0;
  const pst__config_key *keys = pst__config_keys(config->family, &n);
  for (size_t i = 0; i < n; i++) {
    const char *field = (const char *)config + keys[i].offset;
    json_t *value = NULL;
    if (keys[i].kind == PST__CONFIG_ONLY) continue;
    if (keys[i].kind == PST__CONFIG_NUMBER)
      value = json_real(*(const double *)(const void *)field);
    else if (keys[i].kind == PST__CONFIG_BOOL)
      value = json_boolean(*(const int64_t *)(const void *)field);
    else
      value = json_integer(*(const int64_t *)(const void *)field);
    failed |= json_object_set_new(root, keys[i].name, value);
  }
  return failed;
}

pst_status pst_model_config_format(const pst_model_config *config, char **out_json) {
  PST_TRY(pst_model_config_check(config, "model configuration"));
  int gpt2 = config->family == PST_FAMILY_GPT2;
  pst_status st = PST_OK;
  char *text = NULL;
  json_t *root = json_pack("{s:[s], s:s}", "architectures", families[config->family].architecture,
                           "model_type", families[config->family].type);
  int failed = !root || set_fields(root, config);
  failed = failed || json_object_set_new(root, gpt2 ? "activation_function" : "hidden_act",
                                         json_string(pst_activation_name(config->activation)));
  failed = failed || json_object_set_new(root, "bos_token_id",
                                         config->bos_id < 0 ? json_null() : json_integer(config->bos_id));
  failed = failed || json_object_set_new(root, "eos_token_id", eos_value(config));
  failed = failed || json_object_set_new(root, "torch_dtype", json_string("float32"));
  /* 17 digits bring every double back */
  if (!failed) text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
  json_decref(root);
  if (!text) return pst_fail(PST_NO_MEMORY, "no memory for the text of config.json");
  *out_json = text;
  return st;
}

pst_status pst_model_config_save(const pst_model_config *config, const char *path) {
  char *text = NULL;
  PST_TRY(pst_model_config_format(config, &text));
  pst_status st = pst_file_write(path, text, strlen(text));
  free(text);
  return st;
}
