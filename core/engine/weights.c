#include "core/engine/weights.h"

#include "core/checkpoint/safetensors.h"
#include "core/graph/ir.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 8 << 20, NAME_BYTES = 512 };

static const pst_value_info *shape_of(const pst_assembly *a, int32_t param) {
  return pst__value(a->any, a->any->params.at[param].value);
}

/* ---- saving ---- */

/* Weights that are not finite make no model: a file of them must not take the place of a good one. */
static pst_status check_finite(const char *path, const char *name, pst_dtype dtype, const void *piece,
                               int64_t bytes) {
  int64_t n = bytes / (int64_t)pst_dtype_size(dtype), i = 0;
  if (dtype == PST_F32)
    while (i < n && isfinite(((const float *)piece)[i])) i++;
  else if (dtype == PST_BF16)
    while (i < n && (((const uint16_t *)piece)[i] & 0x7f80) != 0x7f80) i++;
  else
    return PST_OK;
  if (i == n) return PST_OK;
  return pst_fail(PST_NONFINITE, "%s: not written: %s has values that are not finite", path, name);
}

/* One tensor from the pipeline to the file, in pieces. */
static pst_status save_tensor(pst_assembly *a, pst_safetensors_writer *w, const char *path, const char *name,
                              pst_tensor_kind kind, pst_dtype dtype, int32_t param, int moment, int64_t bytes,
                              void *piece) {
  for (int64_t at = 0; at < bytes; at += CHUNK_BYTES) {
    int64_t some = bytes - at < CHUNK_BYTES ? bytes - at : CHUNK_BYTES;
    PST_TRY(pst_pipeline_read(a->pipeline, kind, param, moment, at, piece, some));
    if (kind == PST_TENSOR_PARAM) PST_TRY(check_finite(path, name, dtype, piece, some));
    PST_TRY(pst_safetensors_writer_write(w, name, piece, (uint64_t)some));
  }
  return PST_OK;
}

/* What a file holds: parameters, or every moment of each. */
typedef struct contents {
  pst_tensor_kind kind;
  int n;                              /* tensors of each parameter */
  const char *names[PST_MAX_MOMENTS]; /* moments */
} contents;

static void tensor_name(const pst_assembly *a, const contents *c, int32_t param, int i, char *name) {
  const char *own = a->any->params.at[param].name;
  if (c->kind == PST_TENSOR_PARAM)
    snprintf(name, NAME_BYTES, "%s", own);
  else
    snprintf(name, NAME_BYTES, "%s.%s", c->names[i], own);
}

static pst_dtype tensor_dtype(const pst_assembly *a, const contents *c, int32_t param) {
  return c->kind == PST_TENSOR_PARAM ? shape_of(a, param)->dtype : PST_F32;
}

static pst_status write_all(pst_assembly *a, const contents *c, const char *path, pst_safetensors_writer *w,
                            void *piece) {
  char name[NAME_BYTES];
  PST_TRY(pst_safetensors_writer_metadata(w, "format", "pt"));
  for (int32_t p = 0; p < a->any->params.n; p++) {
    const pst_value_info *v = shape_of(a, p);
    for (int i = 0; i < c->n; i++) {
      tensor_name(a, c, p, i, name);
      PST_TRY(pst_safetensors_writer_declare(w, name, tensor_dtype(a, c, p), v->rank, v->dim));
    }
  }
  for (int32_t p = 0; p < a->any->params.n; p++) {
    pst_dtype dtype = tensor_dtype(a, c, p);
    int64_t bytes = pst_assembly_elements(a, p) * (int64_t)pst_dtype_size(dtype);
    for (int i = 0; i < c->n; i++) {
      tensor_name(a, c, p, i, name);
      PST_TRY(save_tensor(a, w, path, name, c->kind, dtype, p, i, bytes, piece));
    }
  }
  return PST_OK;
}

static pst_status save(pst_assembly *a, const contents *c, const char *path, uint64_t *out_checksum) {
  pst_safetensors_writer *w = NULL;
  pst_status st = PST_OK;
  void *piece = malloc(CHUNK_BYTES);
  if (!piece) return pst_fail(PST_NO_MEMORY, "%s: no memory for a piece of %d bytes", path, CHUNK_BYTES);
  PST_GOTO(st, pst_safetensors_writer_create(path, &w), done);
  PST_GOTO(st, write_all(a, c, path, w, piece), done);
  PST_GOTO(st, pst_safetensors_writer_finish(w, out_checksum), done);
done:
  pst_safetensors_writer_destroy(w);
  free(piece);
  return st;
}

pst_status pst_weights_save(pst_assembly *a, const char *path, uint64_t *out_checksum) {
  return save(a, &(contents){.kind = PST_TENSOR_PARAM, .n = 1}, path, out_checksum);
}

pst_status pst_moments_save(pst_assembly *a, const char *path, uint64_t *out_checksum) {
  contents c = {.kind = PST_TENSOR_MOMENT};
  c.n = pst_pipeline_moments(a->pipeline, c.names);
  return save(a, &c, path, out_checksum);
}

/* ---- finding a parameter's tensor ---- */

typedef struct loading {
  pst_assembly *a;
  pst_safetensors *set;
  const char *path;
  const pst_safetensors_tensor **tensor; /* [params]: where each parameter is read from */
  char *notes;
  size_t notes_bytes;
} loading;

static void note(loading *l, const char *format, ...) PST_PRINTF(2, 3);

static void note(loading *l, const char *format, ...) {
  if (!l->notes) return;
  size_t used = strlen(l->notes);
  if (used + 2 >= l->notes_bytes) return;
  if (used) l->notes[used++] = '\n';
  va_list args;
  va_start(args, format);
  vsnprintf(l->notes + used, l->notes_bytes - used, format, args);
  va_end(args);
}

static const char *const prefixes[] = {"transformer.", "model."};
enum { N_PREFIXES = sizeof prefixes / sizeof *prefixes };

/* Names agree when they are equal, or become so by an outer prefix that one of them lacks. */
static bool same_name(const char *a, const char *b) {
  if (strcmp(a, b) == 0) return true;
  for (int i = 0; i < N_PREFIXES; i++) {
    size_t n = strlen(prefixes[i]);
    if (strncmp(a, prefixes[i], n) == 0 && strcmp(a + n, b) == 0) return true;
    if (strncmp(b, prefixes[i], n) == 0 && strcmp(b + n, a) == 0) return true;
  }
  return false;
}

static int32_t find_param(const pst_assembly *a, const char *name) {
  for (int32_t p = 0; p < a->any->params.n; p++)
    if (same_name(a->any->params.at[p].name, name)) return p;
  return -1;
}

static bool ends_with(const char *text, const char *end) {
  size_t n = strlen(text), m = strlen(end);
  return n >= m && strcmp(text + n - m, end) == 0;
}

/* Buffers that older files carry beside the weights. */
static bool is_buffer(const char *name) {
  return ends_with(name, "attn.bias") || ends_with(name, "attn.masked_bias") ||
         ends_with(name, "rotary_emb.inv_freq");
}

static bool is_embedding(const char *name) {
  return ends_with(name, "wte.weight") || ends_with(name, "embed_tokens.weight");
}

/* The parameter that a head of its own name is tied to; -1 for an untied model. */
static int32_t tied_table(const pst_assembly *a) {
  int32_t table = -1;
  for (int32_t p = 0; p < a->any->params.n; p++) {
    if (strcmp(a->any->params.at[p].name, "lm_head.weight") == 0) return -1;
    if (is_embedding(a->any->params.at[p].name)) table = p;
  }
  return table;
}

static pst_status fits(const loading *l, const pst_safetensors_tensor *t, const char *name, int rank,
                       const int64_t *dim) {
  const char *file = pst_safetensors_path(l->set, t->file);
  bool same = t->n_dims == rank;
  for (int i = 0; same && i < rank; i++) same = t->dims[i] == dim[i];
  if (same && (t->dtype == PST_F32 || t->dtype == PST_BF16 || t->dtype == PST_F16 || t->dtype == PST_F64))
    return PST_OK;
  if (same)
    return pst_fail(PST_UNSUPPORTED, "%s: tensor %s is %s, wanted F32, BF16, F16 or F64", file, t->name,
                    pst_dtype_safetensors_name(t->dtype));
  char seen[160] = "", wanted[160] = "";
  size_t n = 0;
  for (int i = 0; i < t->n_dims && n < sizeof seen; i++)
    n += (size_t)snprintf(seen + n, sizeof seen - n, "%s%lld", i ? ", " : "", (long long)t->dims[i]);
  n = 0;
  for (int i = 0; i < rank && n < sizeof wanted; i++)
    n += (size_t)snprintf(wanted + n, sizeof wanted - n, "%s%lld", i ? ", " : "", (long long)dim[i]);
  return pst_fail(PST_INVALID, "%s: tensor %s has shape [%s], wanted [%s] of %s", file, t->name, seen, wanted,
                  name);
}

static pst_status fits_param(const loading *l, const pst_safetensors_tensor *t, int32_t p) {
  const pst_value_info *v = shape_of(l->a, p);
  return fits(l, t, l->a->any->params.at[p].name, v->rank, v->dim);
}

/* A shared tensor that was stored once, under its other name: the file's metadata maps the name that is not
 * there to the one that is. */
static const pst_safetensors_tensor *find_alias(const loading *l, const char *name) {
  const char *other = pst_safetensors_metadata(l->set, name);
  for (int i = 0; i < N_PREFIXES && !other; i++) {
    size_t n = strlen(prefixes[i]);
    char longer[NAME_BYTES];
    if (strncmp(name, prefixes[i], n) == 0) other = pst_safetensors_metadata(l->set, name + n);
    if (other) break;
    snprintf(longer, sizeof longer, "%s%s", prefixes[i], name);
    other = pst_safetensors_metadata(l->set, longer);
  }
  return other ? pst_safetensors_find(l->set, other) : NULL;
}

static bool is_alias(const loading *l, const pst_safetensors_tensor *t) {
  for (int32_t p = 0; p < l->a->any->params.n; p++)
    if (find_alias(l, l->a->any->params.at[p].name) == t) return true;
  return false;
}

/* Gives every tensor of the file to its parameter; `out_head` gets a head stored beside a tied embedding. */
static pst_status assign(loading *l, const pst_safetensors_tensor **out_head) {
  *out_head = NULL;
  for (size_t i = 0; i < pst_safetensors_count(l->set); i++) {
    const pst_safetensors_tensor *t = pst_safetensors_at(l->set, i);
    int32_t p = find_param(l->a, t->name);
    if (p >= 0 && l->tensor[p])
      return pst_fail(PST_INVALID, "%s: tensors %s and %s are the same parameter, %s; wanted one of them",
                      l->path, l->tensor[p]->name, t->name, l->a->any->params.at[p].name);
    if (p >= 0) {
      PST_TRY(fits_param(l, t, p));
      l->tensor[p] = t;
    } else if (same_name(t->name, "lm_head.weight") && tied_table(l->a) >= 0) {
      PST_TRY(fits_param(l, t, tied_table(l->a)));
      *out_head = t;
    } else if (!is_buffer(t->name) && !is_alias(l, t)) {
      return pst_fail(PST_INVALID, "%s: tensor %s is none of the model's (%d parameters, the first is %s)",
                      pst_safetensors_path(l->set, t->file), t->name, l->a->any->params.n,
                      l->a->any->params.at[0].name);
    }
  }
  return PST_OK;
}

/* Chunk by chunk; NaN compares by its bits. */
static pst_status same_bytes(const loading *l, const pst_safetensors_tensor *a,
                             const pst_safetensors_tensor *b, bool *out_same) {
  enum { PIECE = 1 << 16 };
  *out_same = a->dtype == b->dtype && a->bytes == b->bytes;
  char *x = malloc(2 * PIECE);
  if (!x) return pst_fail(PST_NO_MEMORY, "%s: no memory to compare %s and %s", l->path, a->name, b->name);
  pst_status st = PST_OK;
  for (uint64_t at = 0; st == PST_OK && *out_same && at < a->bytes; at += PIECE) {
    uint64_t some = a->bytes - at < PIECE ? a->bytes - at : PIECE;
    st = pst_safetensors_read(l->set, a, at, some, x);
    if (st == PST_OK) st = pst_safetensors_read(l->set, b, at, some, x + PIECE);
    if (st == PST_OK) *out_same = memcmp(x, x + PIECE, some) == 0;
  }
  free(x);
  return st;
}

static pst_status resolve(loading *l) {
  const pst_safetensors_tensor *head = NULL;
  PST_TRY(assign(l, &head));
  int32_t table = tied_table(l->a);
  if (head && l->tensor[table]) {
    bool same;
    PST_TRY(same_bytes(l, l->tensor[table], head, &same));
    if (!same)
      note(l, "%s: %s and %s differ although the model ties them: %s is taken", l->path,
           l->tensor[table]->name, head->name, l->tensor[table]->name);
  } else if (head) {
    l->tensor[table] = head;
  }
  for (int32_t p = 0; p < l->a->any->params.n; p++) {
    const char *name = l->a->any->params.at[p].name;
    if (l->tensor[p]) continue;
    const pst_safetensors_tensor *alias = find_alias(l, name);
    if (!alias)
      return pst_fail(PST_INVALID, "%s: tensor %s is missing%s", l->path, name,
                      strcmp(name, "lm_head.weight") == 0
                          ? ": the model's head is not tied, so it needs weights of its own"
                          : "");
    PST_TRY(fits_param(l, alias, p));
    l->tensor[p] = alias;
  }
  return PST_OK;
}

/* ---- loading ---- */

static pst_status load_param(loading *l, int32_t p, int master, float *piece, void *narrow) {
  const pst_safetensors_tensor *t = l->tensor[p];
  pst_dtype dtype = shape_of(l->a, p)->dtype;
  int64_t size = (int64_t)pst_dtype_size(dtype), n = (int64_t)t->elements;
  int64_t most = CHUNK_BYTES / (int64_t)sizeof *piece;
  for (int64_t at = 0; at < n; at += most) {
    int64_t some = n - at < most ? n - at : most;
    const void *from = piece;
    PST_TRY(pst_safetensors_read_f32(l->set, t, (uint64_t)at, (uint64_t)some, piece));
    if (dtype != PST_F32) {
      if (!pst_dtype_from_f32(dtype, piece, (size_t)some, narrow))
        return pst_fail(PST_INTERNAL, "%s: no conversion to %s", t->name, pst_dtype_name(dtype));
      from = narrow;
    }
    PST_TRY(pst_pipeline_write(l->a->pipeline, PST_TENSOR_PARAM, p, 0, at * size, from, some * size));
    if (master >= 0)
      PST_TRY(pst_pipeline_write(l->a->pipeline, PST_TENSOR_MOMENT, p, master, at * (int64_t)sizeof *piece,
                                 piece, some * (int64_t)sizeof *piece));
  }
  return PST_OK;
}

pst_status pst_weights_load(pst_assembly *a, const char *path, char *notes, size_t notes_bytes) {
  loading l = {.a = a, .path = path, .notes = notes, .notes_bytes = notes_bytes};
  pst_status st = PST_OK;
  const char *names[PST_MAX_MOMENTS];
  int master = -1;
  float *piece = malloc(CHUNK_BYTES);
  void *narrow = malloc(CHUNK_BYTES);
  if (notes && notes_bytes) notes[0] = 0;
  l.tensor = calloc((size_t)a->any->params.n + 1, sizeof *l.tensor);
  if (!piece || !narrow || !l.tensor) {
    st = pst_fail(PST_NO_MEMORY, "%s: no memory to load %d parameters", path, a->any->params.n);
    goto done;
  }
  for (int i = pst_pipeline_moments(a->pipeline, names) - 1; i >= 0; i--)
    if (strcmp(names[i], "master") == 0) master = i;
  PST_GOTO(st, pst_safetensors_open(path, &l.set), done);
  PST_GOTO(st, resolve(&l), done); /* all is known to be there before the first byte is changed */
  for (int32_t p = 0; p < a->any->params.n; p++) PST_GOTO(st, load_param(&l, p, master, piece, narrow), done);
done:
  pst_safetensors_close(l.set);
  free(l.tensor);
  free(narrow);
  free(piece);
  return st;
}

static pst_status load_moment(loading *l, const contents *c, int32_t p, int moment, float *piece,
                              bool checks) {
  char name[NAME_BYTES];
  tensor_name(l->a, c, p, moment, name);
  const pst_safetensors_tensor *t = pst_safetensors_find(l->set, name);
  if (!t)
    return pst_fail(PST_INVALID, "%s: tensor %s is missing; was it written with another optimizer?", l->path,
                    name);
  const pst_value_info *v = shape_of(l->a, p);
  if (checks) return fits(l, t, name, v->rank, v->dim);
  int64_t n = (int64_t)t->elements, most = CHUNK_BYTES / (int64_t)sizeof *piece;
  for (int64_t at = 0; at < n; at += most) {
    int64_t some = n - at < most ? n - at : most;
    PST_TRY(pst_safetensors_read_f32(l->set, t, (uint64_t)at, (uint64_t)some, piece));
    PST_TRY(pst_pipeline_write(l->a->pipeline, PST_TENSOR_MOMENT, p, moment, at * (int64_t)sizeof *piece,
                               piece, some * (int64_t)sizeof *piece));
  }
  return PST_OK;
}

pst_status pst_moments_load(pst_assembly *a, const char *path) {
  loading l = {.a = a, .path = path};
  contents c = {.kind = PST_TENSOR_MOMENT};
  pst_status st = PST_OK;
  float *piece = malloc(CHUNK_BYTES);
  if (!piece) return pst_fail(PST_NO_MEMORY, "%s: no memory for a piece of %d bytes", path, CHUNK_BYTES);
  c.n = pst_pipeline_moments(a->pipeline, c.names);
  PST_GOTO(st, pst_safetensors_open(path, &l.set), done);
  size_t wanted = (size_t)c.n * (size_t)a->any->params.n;
  for (int pass = 0; pass < 2; pass++) {
    for (int32_t p = 0; p < a->any->params.n; p++)
      for (int i = 0; i < c.n; i++) PST_GOTO(st, load_moment(&l, &c, p, i, piece, pass == 0), done);
    if (pst_safetensors_count(l.set) == wanted) continue;
    st = pst_fail(PST_INVALID, "%s: holds %zu tensors, wanted %zu; was it written with another optimizer?",
                  path, pst_safetensors_count(l.set), wanted);
    goto done;
  }
done:
  pst_safetensors_close(l.set);
  free(piece);
  return st;
}
