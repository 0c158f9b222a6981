#include "core/base/file.h"
#include "core/checkpoint/checksum.h"
#include "core/checkpoint/safetensors.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
  SLICE_BYTES = 1 << 19, /* summed, then written while it is still in the cache */
  ALIGN = 8              /* of the first tensor's bytes within the file */
};

typedef struct declared {
  char *name;
  uint64_t bytes;
} declared;

struct pst_safetensors_writer {
  char *path, *temp;
  int fd; /* -1 once the file is finished */
  json_t *header, *metadata;
  declared *tensors;
  size_t n_tensors, room;
  uint64_t data_bytes;
  int begun;       /* the header is written */
  size_t current;  /* the first tensor that is not complete */
  uint64_t filled; /* bytes of it so far */
  uint64_t offset; /* end of what is written */
  pst_checksum sum;
};

void pst_safetensors_writer_destroy(pst_safetensors_writer *writer) {
  if (!writer) return;
  if (writer->fd >= 0) {
    close(writer->fd);
    unlink(writer->temp);
  }
  for (size_t i = 0; i < writer->n_tensors; i++) free(writer->tensors[i].name);
  free(writer->tensors);
  json_decref(writer->header);
  json_decref(writer->metadata);
  free(writer->path);
  free(writer->temp);
  free(writer);
}

pst_status pst_safetensors_writer_create(const char *path, pst_safetensors_writer **out) {
  pst_status st = PST_OK;
  pst_safetensors_writer *writer = calloc(1, sizeof *writer);
  if (!writer) return pst_fail(PST_NO_MEMORY, "%s: no memory for %zu bytes", path, sizeof *writer);
  writer->fd = -1;
  pst_checksum_init(&writer->sum);
  writer->path = strdup(path);
  writer->header = json_object();
  writer->metadata = json_object();
  if (!writer->path || !writer->header || !writer->metadata) {
    st = pst_fail(PST_NO_MEMORY, "%s: no memory for its header", path);
    goto done;
  }
  PST_GOTO(st, pst_file_temp_path(path, &writer->temp), done);
  PST_GOTO(st, pst_file_create(writer->temp, &writer->fd), done);
  *out = writer;
  writer = NULL;
done:
  pst_safetensors_writer_destroy(writer);
  return st;
}

static pst_status require_not_begun(const pst_safetensors_writer *writer, const char *what) {
  if (!writer->begun) return PST_OK;
  return pst_fail(PST_INVALID, "%s: \"%.200s\" is declared after the first write", writer->path, what);
}

pst_status pst_safetensors_writer_metadata(pst_safetensors_writer *writer, const char *key,
                                           const char *value) {
  PST_TRY(require_not_begun(writer, key));
  if (json_object_get(writer->metadata, key))
    return pst_fail(PST_INVALID, "%s: metadata \"%.200s\" is given twice", writer->path, key);
  json_t *text = json_string(value);
  if (!text || json_object_set_new(writer->metadata, key, text) != 0)
    return pst_fail(PST_INVALID, "%s: metadata \"%.200s\": key or value is no UTF-8", writer->path, key);
  return PST_OK;
}

static pst_status tensor_bytes(const pst_safetensors_writer *writer, const char *name, pst_dtype dtype,
                               int n_dims, const int64_t *dims, uint64_t *out) {
  uint64_t bytes = pst_dtype_size(dtype);
  int empty = 0;
  if (bytes == 0)
    return pst_fail(PST_INVALID, "%s: tensor \"%.200s\": dtype is %d, wanted one of pst_dtype", writer->path,
                    name, (int)dtype);
  if (n_dims < 0 || n_dims > PST_SAFETENSORS_DIMS_MAX)
    return pst_fail(PST_INVALID, "%s: tensor \"%.200s\": %d dimensions, wanted 0 to %d", writer->path, name,
                    n_dims, PST_SAFETENSORS_DIMS_MAX);
  for (int i = 0; i < n_dims; i++) {
    if (dims[i] < 0)
      return pst_fail(PST_INVALID, "%s: tensor \"%.200s\": dimension %d is %lld, wanted at least 0",
                      writer->path, name, i, (long long)dims[i]);
    if (dims[i] == 0) empty = 1;
    if (dims[i] != 0 && bytes > (uint64_t)INT64_MAX / (uint64_t)dims[i])
      return pst_fail(PST_INVALID, "%s: tensor \"%.200s\": shape overflows at dimension %d = %lld",
                      writer->path, name, i, (long long)dims[i]);
    if (dims[i] != 0) bytes *= (uint64_t)dims[i];
  }
  if (empty) bytes = 0;
  if (bytes > (uint64_t)INT64_MAX - PST_SAFETENSORS_HEADER_MAX - 8 - writer->data_bytes)
    return pst_fail(PST_INVALID, "%s: tensor \"%.200s\": the file would pass 2^63 bytes", writer->path, name);
  *out = bytes;
  return PST_OK;
}

static json_t *header_entry(pst_dtype dtype, int n_dims, const int64_t *dims, uint64_t begin, uint64_t end) {
  json_t *shape = json_array();
  for (int i = 0; i < n_dims; i++)
    if (json_array_append_new(shape, json_integer(dims[i])) != 0) {
      json_decref(shape);
      return NULL;
    }
  return json_pack("{s:s, s:o, s:[I, I]}", "dtype", pst_dtype_safetensors_name(dtype), "shape", shape,
                   "data_offsets", (json_int_t)begin, (json_int_t)end);
}

pst_status pst_safetensors_writer_declare(pst_safetensors_writer *writer, const char *name, pst_dtype dtype,
                                          int n_dims, const int64_t *dims) {
  uint64_t bytes = 0;
  PST_TRY(require_not_begun(writer, name));
  PST_TRY(tensor_bytes(writer, name, dtype, n_dims, dims, &bytes));
  if (!*name || strcmp(name, "__metadata__") == 0)
    return pst_fail(PST_INVALID, "%s: a tensor cannot be named \"%s\"", writer->path, name);
  if (json_object_get(writer->header, name))
    return pst_fail(PST_INVALID, "%s: tensor \"%.200s\" is declared twice", writer->path, name);
  if (writer->n_tensors == writer->room) {
    size_t room = writer->room ? 2 * writer->room : 64;
    declared *grown = realloc(writer->tensors, room * sizeof *grown);
    if (!grown) return pst_fail(PST_NO_MEMORY, "%s: no memory for a list of %zu tensors", writer->path, room);
    writer->tensors = grown;
    writer->room = room;
  }
  char *copy = strdup(name);
  json_t *entry = header_entry(dtype, n_dims, dims, writer->data_bytes, writer->data_bytes + bytes);
  if (!copy || !entry) {
    free(copy);
    json_decref(entry);
    return pst_fail(PST_NO_MEMORY, "%s: no memory for tensor \"%.200s\"", writer->path, name);
  }
  if (json_object_set_new(writer->header, name, entry) != 0) {
    free(copy);
    return pst_fail(PST_INVALID, "%s: tensor \"%.200s\": name is no UTF-8", writer->path, name);
  }
  writer->tensors[writer->n_tensors++] = (declared){copy, bytes};
  writer->data_bytes += bytes;
  return PST_OK;
}

static pst_status append(pst_safetensors_writer *writer, const void *bytes, uint64_t n) {
  const char *from = bytes;
  while (n) {
    size_t now = n < SLICE_BYTES ? (size_t)n : SLICE_BYTES;
    pst_checksum_add(&writer->sum, from, now);
    PST_TRY(pst_file_pwrite(writer->fd, from, now, writer->offset, writer->temp));
    writer->offset += now;
    from += now;
    n -= now;
  }
  return PST_OK;
}

/* The metadata member comes first, as other writers place it. */
static char *dump_header(pst_safetensors_writer *writer) {
  if (json_object_size(writer->metadata) == 0) return json_dumps(writer->header, JSON_COMPACT);
  json_t *all = json_object();
  char *text = NULL;
  if (all && json_object_set(all, "__metadata__", writer->metadata) == 0 &&
      json_object_update(all, writer->header) == 0)
    text = json_dumps(all, JSON_COMPACT);
  json_decref(all);
  return text;
}

static pst_status begin(pst_safetensors_writer *writer) {
  if (writer->begun) return PST_OK;
  char *text = dump_header(writer);
  if (!text) return pst_fail(PST_NO_MEMORY, "%s: no memory for its header", writer->path);
  static const char spaces[ALIGN] = "        ";
  size_t n = strlen(text), padding = (ALIGN - n % ALIGN) % ALIGN;
  uint64_t length = n + padding;
  unsigned char first[8];
  for (int i = 0; i < 8; i++) first[i] = (unsigned char)(length >> 8 * i);
  pst_status st = PST_OK;
  if (length > PST_SAFETENSORS_HEADER_MAX) {
    st = pst_fail(PST_INVALID,
                  "%s: header takes %llu bytes, wanted at most %d, which is what readers accept: write "
                  "fewer tensors a file",
                  writer->path, (unsigned long long)length, PST_SAFETENSORS_HEADER_MAX);
    goto done;
  }
  PST_GOTO(st, append(writer, first, sizeof first), done);
  PST_GOTO(st, append(writer, text, n), done);
  PST_GOTO(st, append(writer, spaces, padding), done);
  writer->begun = 1;
done:
  free(text);
  return st;
}

static void skip_complete(pst_safetensors_writer *writer) {
  while (writer->current < writer->n_tensors && writer->filled == writer->tensors[writer->current].bytes) {
    writer->current++;
    writer->filled = 0;
  }
}

pst_status pst_safetensors_writer_write(pst_safetensors_writer *writer, const char *name, const void *bytes,
                                        uint64_t n) {
  PST_TRY(begin(writer));
  if (n == 0) return PST_OK;
  skip_complete(writer);
  if (writer->current == writer->n_tensors)
    return pst_fail(PST_INVALID, "%s: tensor \"%.200s\": %llu bytes too many, every tensor is complete",
                    writer->path, name, (unsigned long long)n);
  const declared *turn = &writer->tensors[writer->current];
  if (strcmp(turn->name, name) != 0)
    return pst_fail(
        PST_INVALID, "%s: tensor \"%.200s\" is written, wanted \"%.200s\": it has %llu of %llu bytes",
        writer->path, name, turn->name, (unsigned long long)writer->filled, (unsigned long long)turn->bytes);
  if (n > turn->bytes - writer->filled)
    return pst_fail(PST_INVALID, "%s: tensor \"%.200s\": %llu bytes are written, wanted at most %llu more",
                    writer->path, name, (unsigned long long)n,
                    (unsigned long long)(turn->bytes - writer->filled));
  PST_TRY(append(writer, bytes, n));
  writer->filled += n;
  return PST_OK;
}

pst_status pst_safetensors_writer_finish(pst_safetensors_writer *writer, uint64_t *out_checksum) {
  PST_TRY(begin(writer));
  skip_complete(writer);
  if (writer->current < writer->n_tensors)
    return pst_fail(PST_INVALID, "%s: tensor \"%.200s\": has %llu bytes, wanted %llu", writer->path,
                    writer->tensors[writer->current].name, (unsigned long long)writer->filled,
                    (unsigned long long)writer->tensors[writer->current].bytes);
  PST_TRY(pst_file_sync(writer->fd, writer->temp));
  PST_TRY(pst_file_publish(writer->temp, writer->path));
  close(writer->fd);
  writer->fd = -1;
  if (out_checksum) *out_checksum = pst_checksum_value(&writer->sum);
  return PST_OK;
}
