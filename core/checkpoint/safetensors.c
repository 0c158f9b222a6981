#include "core/checkpoint/safetensors.h"

#include "core/base/file.h"
#include "core/checkpoint/safetensors_header.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ONE_FILE_NAME "model.safetensors"
#define INDEX_NAME    "model.safetensors.index.json"
#define INDEX_SUFFIX  ".index.json"

enum { CONVERT_BYTES = 1 << 16 };

typedef struct set_file {
  char *path;
  int fd;
  pst__safetensors_header header;
} set_file;

struct pst_safetensors {
  set_file *files;
  size_t n_files, files_room;
  pst_safetensors_tensor *tensors; /* by file, then offset */
  size_t n_tensors;
  const pst_safetensors_tensor **sorted; /* by name */
};

void pst_safetensors_close(pst_safetensors *set) {
  if (!set) return;
  for (size_t i = 0; i < set->n_files; i++) {
    pst__safetensors_header_destroy(&set->files[i].header);
    free(set->files[i].path);
    close(set->files[i].fd);
  }
  free(set->files);
  free(set->tensors);
  free(set->sorted);
  free(set);
}

static pst_status read_header(int fd, uint64_t file_bytes, const char *path, pst__safetensors_header *out) {
  unsigned char first[8] = {0};
  size_t n = 0;
  if (file_bytes >= sizeof first) PST_TRY(pst_file_pread(fd, first, sizeof first, 0, path));
  PST_TRY(pst__safetensors_header_length(first, file_bytes, path, &n));
  char *json = malloc(n);
  if (!json) return pst_fail(PST_NO_MEMORY, "%s: no memory for a header of %zu bytes", path, n);
  pst_status st = pst_file_pread(fd, json, n, sizeof first, path);
  if (st == PST_OK) st = pst__safetensors_header_parse(json, n, file_bytes, path, out);
  free(json);
  return st;
}

static pst_status add_file(pst_safetensors *set, const char *path) {
  if (set->n_files == set->files_room) {
    size_t room = set->files_room ? 2 * set->files_room : 4;
    set_file *grown = realloc(set->files, room * sizeof *grown);
    if (!grown) return pst_fail(PST_NO_MEMORY, "%s: no memory for a list of %zu files", path, room);
    set->files = grown;
    set->files_room = room;
  }
  set_file file = {.fd = -1};
  uint64_t bytes = 0;
  pst_status st = PST_OK;
  PST_TRY(pst_file_open(path, &file.fd, &bytes));
  file.path = strdup(path);
  if (!file.path) {
    st = pst_fail(PST_NO_MEMORY, "%s: no memory for a copy of the path", path);
    goto fail;
  }
  PST_GOTO(st, read_header(file.fd, bytes, path, &file.header), fail);
  set->files[set->n_files++] = file;
  return PST_OK;
fail:
  free(file.path);
  close(file.fd);
  return st;
}

static int by_name(const void *a, const void *b) {
  const pst_safetensors_tensor *const *x = a, *const *y = b;
  return strcmp((*x)->name, (*y)->name);
}

/* Merges the files' lists. `weight_map` (NULL for one file) says which file has the say over a name: what a
 * shard holds beyond the map is left out. */
static pst_status merge_lists(pst_safetensors *set, const json_t *weight_map, const size_t *map_files) {
  size_t total = 0;
  for (size_t f = 0; f < set->n_files; f++) total += set->files[f].header.n_tensors;
  set->tensors = calloc(total ? total : 1, sizeof *set->tensors);
  set->sorted = calloc(total ? total : 1, sizeof *set->sorted);
  if (!set->tensors || !set->sorted)
    return pst_fail(PST_NO_MEMORY, "no memory for a list of %zu tensors", total);
  for (size_t f = 0; f < set->n_files; f++) {
    const pst__safetensors_header *header = &set->files[f].header;
    for (size_t i = 0; i < header->n_tensors; i++) {
      const json_t *slot = json_object_get(weight_map, header->tensors[i].name);
      if (weight_map && (!slot || map_files[json_integer_value(slot)] != f)) continue;
      pst_safetensors_tensor *tensor = &set->tensors[set->n_tensors];
      *tensor = header->tensors[i];
      tensor->file = (uint32_t)f;
      set->sorted[set->n_tensors++] = tensor;
    }
  }
  qsort(set->sorted, set->n_tensors, sizeof *set->sorted, by_name);
  return PST_OK;
}

static pst_status check_shard_name(const char *path, const char *tensor, const json_t *value) {
  const char *shard = json_string_value(value);
  if (!shard) return pst_fail(PST_INVALID, "%s: weight_map \"%.200s\" is no string", path, tensor);
  if (!*shard || *shard == '.' || strchr(shard, '/'))
    return pst_fail(PST_INVALID,
                    "%s: weight_map \"%.200s\" is \"%.200s\", wanted the name of a file beside the index",
                    path, tensor, shard);
  return PST_OK;
}

/* Opens each file that the map names, once, and replaces the map's strings by positions in `map_files`, which
 * give the file of the set. */
static pst_status open_shards(pst_safetensors *set, const char *path, json_t *weight_map, size_t *map_files) {
  const char *slash = strrchr(path, '/');
  char *dir = slash ? strndup(path, (size_t)(slash - path)) : strdup(".");
  json_t *seen = json_object(); /* shard name -> file of the set */
  pst_status st = PST_OK;
  size_t position = 0;
  const char *name;
  json_t *value;
  if (!dir || !seen) {
    st = pst_fail(PST_NO_MEMORY, "%s: no memory for its directory's path", path);
    goto done;
  }
  json_object_foreach(weight_map, name, value) {
    PST_GOTO(st, check_shard_name(path, name, value), done);
    const char *shard = json_string_value(value);
    json_t *known = json_object_get(seen, shard);
    if (!known) {
      char *shard_path = NULL;
      PST_GOTO(st, pst_path_join(dir, shard, &shard_path), done);
      st = add_file(set, shard_path);
      free(shard_path);
      if (st != PST_OK) goto done;
      known = json_integer((json_int_t)set->n_files - 1);
      if (json_object_set_new(seen, shard, known) != 0) {
        st = pst_fail(PST_NO_MEMORY, "%s: no memory for a list of %zu files", path, set->n_files);
        goto done;
      }
    }
    map_files[position] = (size_t)json_integer_value(known);
    if (json_object_set_new(weight_map, name, json_integer((json_int_t)position)) != 0) {
      st = pst_fail(PST_NO_MEMORY, "%s: no memory for its map", path);
      goto done;
    }
    position++;
  }
done:
  json_decref(seen);
  free(dir);
  return st;
}

static pst_status open_index(pst_safetensors *set, const char *path) {
  char *text = NULL;
  size_t n = 0;
  json_t *root = NULL;
  size_t *map_files = NULL;
  pst_status st = PST_OK;
  PST_GOTO(st, pst_file_read(path, PST_SAFETENSORS_HEADER_MAX, &text, &n), done);
  json_error_t error;
  root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
  if (!root) {
    st = pst_fail(PST_INVALID, "%s:%d:%d: %s", path, error.line, error.column, error.text);
    goto done;
  }
  json_t *weight_map = json_object_get(root, "weight_map");
  if (!json_is_object(weight_map) || json_object_size(weight_map) == 0) {
    st = pst_fail(PST_INVALID, "%s: weight_map is missing, empty or no JSON object", path);
    goto done;
  }
  size_t wanted = json_object_size(weight_map);
  map_files = calloc(wanted, sizeof *map_files);
  if (!map_files) {
    st = pst_fail(PST_NO_MEMORY, "%s: no memory for a map of %zu tensors", path, wanted);
    goto done;
  }
  PST_GOTO(st, open_shards(set, path, weight_map, map_files), done);
  PST_GOTO(st, merge_lists(set, weight_map, map_files), done);
  if (set->n_tensors == wanted) goto done;
  const char *name;
  json_t *value;
  json_object_foreach(weight_map, name, value) {
    if (pst_safetensors_find(set, name)) continue;
    st = pst_fail(PST_INVALID, "%s: tensor \"%.200s\": is not in %s, where weight_map puts it", path, name,
                  set->files[map_files[json_integer_value(value)]].path);
    goto done;
  }
done:
  free(map_files);
  json_decref(root);
  free(text);
  return st;
}

static int ends_with(const char *text, const char *suffix) {
  size_t n = strlen(text), m = strlen(suffix);
  return n >= m && strcmp(text + n - m, suffix) == 0;
}

/* The file that stands for `path`: itself, or what lies in it when it is a directory. The caller frees it. */
static pst_status resolve(const char *path, char **out_path) {
  struct stat info;
  if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) {
    char *copy = strdup(path);
    if (!copy) return pst_fail(PST_NO_MEMORY, "%s: no memory for a copy of the path", path);
    *out_path = copy;
    return PST_OK;
  }
  static const char *const names[] = {ONE_FILE_NAME, INDEX_NAME};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char *candidate = NULL;
    PST_TRY(pst_path_join(path, names[i], &candidate));
    if (access(candidate, F_OK) == 0) {
      *out_path = candidate;
      return PST_OK;
    }
    free(candidate);
  }
  return pst_fail(PST_INVALID, "%s: holds neither " ONE_FILE_NAME " nor " INDEX_NAME, path);
}

pst_status pst_safetensors_open(const char *path, pst_safetensors **out) {
  char *resolved = NULL;
  pst_status st = PST_OK;
  pst_safetensors *set = calloc(1, sizeof *set);
  if (!set) return pst_fail(PST_NO_MEMORY, "%s: no memory for %zu bytes", path, sizeof *set);
  PST_GOTO(st, resolve(path, &resolved), done);
  if (ends_with(resolved, INDEX_SUFFIX)) {
    PST_GOTO(st, open_index(set, resolved), done);
  } else {
    PST_GOTO(st, add_file(set, resolved), done);
    PST_GOTO(st, merge_lists(set, NULL, NULL), done);
  }
  *out = set;
  set = NULL;
done:
  pst_safetensors_close(set);
  free(resolved);
  return st;
}

size_t pst_safetensors_count(const pst_safetensors *set) {
  return set->n_tensors;
}

const pst_safetensors_tensor *pst_safetensors_at(const pst_safetensors *set, size_t index) {
  return &set->tensors[index];
}

const pst_safetensors_tensor *pst_safetensors_find(const pst_safetensors *set, const char *name) {
  size_t low = 0, high = set->n_tensors;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    int order = strcmp(name, set->sorted[middle]->name);
    if (order == 0) return set->sorted[middle];
    if (order < 0)
      high = middle;
    else
      low = middle + 1;
  }
  return NULL;
}

const char *pst_safetensors_metadata(const pst_safetensors *set, const char *key) {
  for (size_t f = 0; f < set->n_files; f++) {
    const char *value = json_string_value(json_object_get(set->files[f].header.metadata, key));
    if (value) return value;
  }
  return NULL;
}

const char *pst_safetensors_path(const pst_safetensors *set, uint32_t file) {
  return set->files[file].path;
}

static pst_status check_range(const pst_safetensors *set, const pst_safetensors_tensor *tensor,
                              const char *unit, uint64_t from, uint64_t n, uint64_t limit) {
  if (from <= limit && n <= limit - from) return PST_OK;
  return pst_fail(PST_INVALID, "%s: tensor \"%.200s\": %llu %s from %llu on asked for, it holds %llu",
                  pst_safetensors_path(set, tensor->file), tensor->name, (unsigned long long)n, unit,
                  (unsigned long long)from, (unsigned long long)limit);
}

pst_status pst_safetensors_read(const pst_safetensors *set, const pst_safetensors_tensor *tensor,
                                uint64_t from, uint64_t n, void *out) {
  PST_TRY(check_range(set, tensor, "bytes", from, n, tensor->bytes));
  const set_file *file = &set->files[tensor->file];
  pst_status st = pst_file_pread(file->fd, out, (size_t)n, tensor->offset + from, file->path);
  if (st != PST_OK) return pst_fail_prefix(st, "tensor \"%.200s\": ", tensor->name);
  return PST_OK;
}

pst_status pst_safetensors_read_f32(const pst_safetensors *set, const pst_safetensors_tensor *tensor,
                                    uint64_t from, uint64_t n, float *out) {
  PST_TRY(check_range(set, tensor, "elements", from, n, tensor->elements));
  if (tensor->dtype == PST_F32) return pst_safetensors_read(set, tensor, 4 * from, 4 * n, out);
  if (!pst_dtype_to_f32(tensor->dtype, NULL, 0, out))
    return pst_fail(PST_UNSUPPORTED, "%s: tensor \"%.200s\": dtype is %s, wanted F32, BF16, F16 or F64",
                    pst_safetensors_path(set, tensor->file), tensor->name,
                    pst_dtype_safetensors_name(tensor->dtype));
  uint64_t buffer[CONVERT_BYTES / sizeof(uint64_t)];
  size_t size = pst_dtype_size(tensor->dtype), room = sizeof buffer / size;
  for (uint64_t done = 0; done < n;) {
    size_t now = n - done < room ? (size_t)(n - done) : room;
    PST_TRY(pst_safetensors_read(set, tensor, (from + done) * size, now * size, buffer));
    pst_dtype_to_f32(tensor->dtype, buffer, now, out + done);
    done += now;
  }
  return PST_OK;
}
