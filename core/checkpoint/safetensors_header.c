#include "core/checkpoint/safetensors_header.h"

#include <stdlib.h>
#include <string.h>

#define METADATA_KEY "__metadata__"

/* Dtypes of the format beyond pst_dtype, so that a file that holds a mask or a counter of one still opens. */
static const struct {
  const char *name;
  unsigned size;
} listed_dtypes[] = {
    {"BOOL", 1}, {"I8", 1}, {"I16", 2}, {"U32", 4}, {"U64", 8}, {"F8_E4M3", 1}, {"F8_E5M2", 1},
};

/* A failure at one tensor, with the file and the tensor in front. */
typedef struct place {
  const char *path;
  const char *tensor;
} place;

/* Names come from the file: long ones are cut so that the message keeps its end. */
#define AT_TENSOR   "%s: tensor \"%.200s\": "
#define AT_ARGS(at) (at)->path, (at)->tensor

pst_status pst__safetensors_header_length(const unsigned char first[8], uint64_t file_bytes, const char *path,
                                          size_t *out_n) {
  uint64_t n = 0;
  for (int i = 7; i >= 0; i--) n = (n << 8) | first[i];
  if (file_bytes < 8)
    return pst_fail(PST_INVALID, "%s: holds %llu bytes, wanted at least the 8 of a header length", path,
                    (unsigned long long)file_bytes);
  if (n > PST_SAFETENSORS_HEADER_MAX)
    return pst_fail(PST_INVALID, "%s: header length is %llu, wanted at most %d", path, (unsigned long long)n,
                    PST_SAFETENSORS_HEADER_MAX);
  if (n > file_bytes - 8)
    return pst_fail(PST_INVALID, "%s: header length is %llu, wanted at most %llu (the file holds %llu bytes)",
                    path, (unsigned long long)n, (unsigned long long)(file_bytes - 8),
                    (unsigned long long)file_bytes);
  if (n < 2)
    return pst_fail(PST_INVALID, "%s: header length is %llu, wanted at least 2 for a JSON object", path,
                    (unsigned long long)n);
  *out_n = (size_t)n;
  return PST_OK;
}

/* What a walk over the raw text finds: the top-level key in force at `stop`, and a minus sign outside
 * strings. */
typedef struct text_walk {
  const char *key;
  int key_bytes;
  size_t minus_at; /* n when there is none */
} text_walk;

/* jansson reports neither the member in which it failed nor that a zero was written as -0; a walk by bracket
 * depth and quotes, before `stop`, tells both. It also runs over text that is no JSON. */
static text_walk walk_text(const char *json, size_t n, size_t stop) {
  text_walk walk = {"", 0, n};
  int depth = 0;
  int key_next = 0; /* at depth 1 the string after '{' or ',' is a key */
  for (size_t i = 0; i < n && i < stop; i++) {
    char c = json[i];
    if (c == '"') {
      size_t begin = i + 1;
      for (i = begin; i < n && json[i] != '"'; i++)
        if (json[i] == '\\') i++;
      if (depth == 1 && key_next && begin < n) {
        size_t end = i < n ? i : n;
        walk.key = json + begin;
        walk.key_bytes = (int)(end - begin < 200 ? end - begin : 200);
        key_next = 0;
      }
    } else if (c == '{' || c == '[') {
      if (++depth == 1) key_next = 1;
    } else if (c == '}' || c == ']') {
      depth--;
    } else if (c == ',' && depth == 1) {
      key_next = 1;
    } else if (c == '-') {
      walk.minus_at = i;
      return walk;
    }
  }
  return walk;
}

static pst_status check_integer(const place *at, const char *what, const json_t *value, int64_t *out) {
  if (json_is_real(value))
    return pst_fail(PST_INVALID, AT_TENSOR "%s is %g written as a real number, wanted a plain integer",
                    AT_ARGS(at), what, json_real_value(value));
  if (!json_is_integer(value))
    return pst_fail(PST_INVALID, AT_TENSOR "%s is no number, wanted a plain integer", AT_ARGS(at), what);
  json_int_t x = json_integer_value(value);
  if (x < 0)
    return pst_fail(PST_INVALID, AT_TENSOR "%s is %lld, wanted at least 0", AT_ARGS(at), what, (long long)x);
  *out = x;
  return PST_OK;
}

static pst_status parse_dtype(const place *at, const json_t *value, pst_dtype *out_dtype,
                              unsigned *out_size) {
  const char *name = json_string_value(value);
  if (!name) return pst_fail(PST_INVALID, AT_TENSOR "dtype is missing or no string", AT_ARGS(at));
  pst_dtype dtype = pst_dtype_by_safetensors_name(name);
  if (dtype != PST_DTYPE_COUNT) {
    *out_dtype = dtype;
    *out_size = (unsigned)pst_dtype_size(dtype);
    return PST_OK;
  }
  for (size_t i = 0; i < sizeof listed_dtypes / sizeof *listed_dtypes; i++)
    if (strcmp(listed_dtypes[i].name, name) == 0) {
      *out_dtype = PST_DTYPE_COUNT;
      *out_size = listed_dtypes[i].size;
      return PST_OK;
    }
  return pst_fail(PST_INVALID, AT_TENSOR "dtype is \"%.40s\", wanted one of F32 BF16 F16 F64 I32 I64 U8 U16",
                  AT_ARGS(at), name);
}

static pst_status parse_shape(const place *at, const json_t *value, unsigned size,
                              pst_safetensors_tensor *tensor, uint64_t *out_bytes) {
  if (!json_is_array(value))
    return pst_fail(PST_INVALID, AT_TENSOR "shape is missing or no list", AT_ARGS(at));
  size_t n_dims = json_array_size(value);
  if (n_dims > PST_SAFETENSORS_DIMS_MAX)
    return pst_fail(PST_INVALID, AT_TENSOR "shape has %zu dimensions, wanted at most %d", AT_ARGS(at), n_dims,
                    PST_SAFETENSORS_DIMS_MAX);
  /* the product without zeros has to fit as well, so that no stride of an empty tensor overflows */
  uint64_t bytes = size;
  int empty = 0;
  for (size_t i = 0; i < n_dims; i++) {
    PST_TRY(check_integer(at, "a dimension", json_array_get(value, i), &tensor->dims[i]));
    uint64_t dim = (uint64_t)tensor->dims[i];
    if (dim == 0) empty = 1;
    if (dim != 0 && bytes > (uint64_t)INT64_MAX / dim)
      return pst_fail(PST_INVALID,
                      AT_TENSOR "shape overflows at dimension %zu = %llu, wanted less than 2^63 bytes",
                      AT_ARGS(at), i, (unsigned long long)dim);
    if (dim != 0) bytes *= dim;
  }
  tensor->n_dims = (int)n_dims;
  tensor->elements = empty ? 0 : bytes / size;
  *out_bytes = empty ? 0 : bytes;
  return PST_OK;
}

static pst_status parse_tensor(const place *at, const json_t *value, uint64_t data_bytes,
                               uint64_t data_offset, pst_safetensors_tensor *out) {
  pst_safetensors_tensor tensor = {.name = at->tensor};
  unsigned size = 0;
  uint64_t wanted = 0;
  if (!json_is_object(value)) return pst_fail(PST_INVALID, AT_TENSOR "entry is no JSON object", AT_ARGS(at));
  const char *key;
  json_t *member;
  json_object_foreach((json_t *)value, key, member) {
    if (strcmp(key, "dtype") && strcmp(key, "shape") && strcmp(key, "data_offsets"))
      return pst_fail(PST_INVALID, AT_TENSOR "has a key \"%.80s\", wanted dtype, shape and data_offsets",
                      AT_ARGS(at), key);
  }
  PST_TRY(parse_dtype(at, json_object_get(value, "dtype"), &tensor.dtype, &size));
  PST_TRY(parse_shape(at, json_object_get(value, "shape"), size, &tensor, &wanted));

  const json_t *offsets = json_object_get(value, "data_offsets");
  if (!json_is_array(offsets) || json_array_size(offsets) != 2)
    return pst_fail(PST_INVALID, AT_TENSOR "data_offsets is missing or no list of two integers", AT_ARGS(at));
  int64_t begin = 0, end = 0;
  PST_TRY(check_integer(at, "data_offsets[0]", json_array_get(offsets, 0), &begin));
  PST_TRY(check_integer(at, "data_offsets[1]", json_array_get(offsets, 1), &end));
  if (end < begin)
    return pst_fail(PST_INVALID, AT_TENSOR "data_offsets is [%lld, %lld], wanted begin <= end", AT_ARGS(at),
                    (long long)begin, (long long)end);
  if ((uint64_t)end > data_bytes)
    return pst_fail(PST_INVALID,
                    AT_TENSOR "data_offsets is [%lld, %lld], wanted at most the %llu bytes of data in "
                              "the file",
                    AT_ARGS(at), (long long)begin, (long long)end, (unsigned long long)data_bytes);
  if ((uint64_t)(end - begin) != wanted)
    return pst_fail(PST_INVALID,
                    AT_TENSOR "data_offsets is [%lld, %lld], %lld bytes, wanted %llu for its shape and "
                              "dtype",
                    AT_ARGS(at), (long long)begin, (long long)end, (long long)(end - begin),
                    (unsigned long long)wanted);
  tensor.bytes = wanted;
  tensor.offset = data_offset + (uint64_t)begin;
  *out = tensor;
  return PST_OK;
}

static pst_status check_metadata(const char *path, json_t *metadata) {
  if (!json_is_object(metadata)) return pst_fail(PST_INVALID, "%s: " METADATA_KEY " is no JSON object", path);
  const char *key;
  json_t *value;
  json_object_foreach(metadata, key, value) {
    if (!json_is_string(value))
      return pst_fail(PST_INVALID, "%s: " METADATA_KEY " \"%.200s\" is no string", path, key);
  }
  return PST_OK;
}

static int by_offset(const void *a, const void *b) {
  const pst_safetensors_tensor *x = a, *y = b;
  if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
  if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
  return strcmp(x->name, y->name);
}

/* Sorted tensors have to tile [begin, end) of the file. */
static pst_status check_tiling(const char *path, const pst_safetensors_tensor *tensors, size_t n,
                               uint64_t begin, uint64_t end) {
  uint64_t next = begin;
  for (size_t i = 0; i < n; i++) {
    place at = {path, tensors[i].name};
    uint64_t seen = tensors[i].offset;
    if (seen < next)
      return pst_fail(PST_INVALID,
                      AT_TENSOR "begins at byte %llu of the data, inside tensor \"%.200s\" that ends "
                                "at %llu",
                      AT_ARGS(&at), (unsigned long long)(seen - begin), tensors[i - 1].name,
                      (unsigned long long)(next - begin));
    if (seen > next)
      return pst_fail(PST_INVALID, AT_TENSOR "begins at byte %llu of the data, wanted %llu: a hole before it",
                      AT_ARGS(&at), (unsigned long long)(seen - begin), (unsigned long long)(next - begin));
    next = seen + tensors[i].bytes;
  }
  if (next != end)
    return pst_fail(PST_INVALID, "%s: %llu bytes after the last tensor%s%.200s%s belong to none, wanted 0",
                    path, (unsigned long long)(end - next), n ? " \"" : "", n ? tensors[n - 1].name : "",
                    n ? "\"" : "");
  return PST_OK;
}

static pst_status refuse_text(const char *path, const char *json, size_t n, const json_error_t *error) {
  size_t at = error->position > 0 ? (size_t)error->position : 0;
  text_walk walk = walk_text(json, n, at);
  if (json_error_code(error) == json_error_out_of_memory)
    return pst_fail(PST_NO_MEMORY, "%s: no memory for a header of %zu bytes", path, n);
  if (walk.key_bytes)
    return pst_fail(PST_INVALID, "%s: tensor \"%.*s\": header is no JSON at byte %zu: %s", path,
                    walk.key_bytes, walk.key, at, error->text);
  return pst_fail(PST_INVALID, "%s: header is no JSON at byte %zu: %s", path, at, error->text);
}

pst_status pst__safetensors_header_parse(const char *json, size_t n, uint64_t file_bytes, const char *path,
                                         pst__safetensors_header *out) {
  pst__safetensors_header header = {0};
  uint64_t data_offset = 8 + (uint64_t)n;
  uint64_t data_bytes = file_bytes - data_offset;
  pst_status st = PST_OK;
  if (n < 2 || json[0] != '{')
    return pst_fail(PST_INVALID, "%s: header begins with byte 0x%02x, wanted '{'", path,
                    n ? (unsigned)(unsigned char)json[0] : 0u);
  json_error_t error;
  header.root = json_loadb(json, n, JSON_REJECT_DUPLICATES, &error);
  if (!header.root) return refuse_text(path, json, n, &error);

  size_t members = json_object_size(header.root);
  header.tensors = calloc(members ? members : 1, sizeof *header.tensors);
  if (!header.tensors) {
    st = pst_fail(PST_NO_MEMORY, "%s: no memory for a list of %zu tensors", path, members);
    goto done;
  }
  const char *name;
  json_t *value;
  json_object_foreach(header.root, name, value) {
    if (strcmp(name, METADATA_KEY) == 0) {
      PST_GOTO(st, check_metadata(path, value), done);
      header.metadata = value;
      continue;
    }
    place at = {path, name};
    PST_GOTO(st, parse_tensor(&at, value, data_bytes, data_offset, &header.tensors[header.n_tensors]), done);
    header.n_tensors++;
  }
  /* a number below zero was refused above, by name; what is left is a zero in another reader's eyes only */
  text_walk walk = walk_text(json, n, n);
  if (walk.minus_at < n) {
    st = pst_fail(PST_INVALID, "%s: tensor \"%.*s\": a number is written as -0 at byte %zu, wanted 0", path,
                  walk.key_bytes, walk.key, walk.minus_at);
    goto done;
  }
  qsort(header.tensors, header.n_tensors, sizeof *header.tensors, by_offset);
  PST_GOTO(st, check_tiling(path, header.tensors, header.n_tensors, data_offset, file_bytes), done);
  *out = header;
  header = (pst__safetensors_header){0};
done:
  pst__safetensors_header_destroy(&header);
  return st;
}

void pst__safetensors_header_destroy(pst__safetensors_header *header) {
  free(header->tensors);
  json_decref(header->root);
  *header = (pst__safetensors_header){0};
}
