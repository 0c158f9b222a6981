/* Tensors in safetensors files: reading one file or a sharded set, and writing.
 *
 *   pst_safetensors *weights;
 *   PST_TRY(pst_safetensors_open("hf/gpt2", &weights));       // a file, an index file, or a directory with
 * either const pst_safetensors_tensor *t = pst_safetensors_find(weights, "wte.weight"); if (t) st =
 * pst_safetensors_read_f32(weights, t, 0, t->elements, table); pst_safetensors_close(weights);
 *
 *   pst_safetensors_writer *w;
 *   PST_TRY(pst_safetensors_writer_create("out/model.safetensors", &w));
 *   st = pst_safetensors_writer_metadata(w, "format", "pt");
 *   st = pst_safetensors_writer_declare(w, "wte.weight", PST_F32, 2, (int64_t[]){vocab, width});
 *   st = pst_safetensors_writer_write(w, "wte.weight", table, bytes);   // in declared order, in any pieces
 *   st = pst_safetensors_writer_finish(w, NULL);                        // only now is the file there
 *   pst_safetensors_writer_destroy(w);
 *
 * Format (Hugging Face safetensors, "Format" section of its README): 8 bytes of header length, little-endian;
 * a JSON object that maps each name to dtype, shape and [begin, end) within the bytes that follow, plus
 * string pairs under
 * "__metadata__"; then the tensors' bytes, little-endian, row-major, without holes. Everything in a header is
 * checked against the file's size before it is used, and what fails is refused with the tensor's name. All
 * memory is host memory.
 */
#ifndef PENSTOCK_CHECKPOINT_SAFETENSORS_H
#define PENSTOCK_CHECKPOINT_SAFETENSORS_H

#include "core/base/dtype.h"
#include "core/base/status.h"

#include <stddef.h>
#include <stdint.h>

enum {
  PST_SAFETENSORS_DIMS_MAX = 8,
  PST_SAFETENSORS_HEADER_MAX = 100000000 /* bytes; the limit of the reference reader */
};

/* One tensor of a set. Owned by the set it came from. */
typedef struct pst_safetensors_tensor {
  const char *name;
  pst_dtype
      dtype;  /* PST_DTYPE_COUNT: a dtype of the format that Penstock does not compute with (BOOL, I8, ...) */
  int n_dims; /* 0: a scalar */
  int64_t dims[PST_SAFETENSORS_DIMS_MAX];
  uint64_t elements; /* product of dims */
  uint32_t file;     /* which file of the set, from 0 */
  uint64_t offset;   /* bytes from the start of that file */
  uint64_t bytes;
} pst_safetensors_tensor;

typedef struct pst_safetensors pst_safetensors;

/* Opens a .safetensors file, a *.index.json file (its shards lie beside it), or a directory that holds
 * model.safetensors or model.safetensors.index.json (the first wins). Reads headers, no tensor. PST_INVALID:
 * a malformed header; PST_IO; PST_NO_MEMORY. */
pst_status pst_safetensors_open(const char *path, pst_safetensors **out) PST_CHECKED;

/* Legal with NULL. Tensor pointers and metadata of the set end here. */
void pst_safetensors_close(pst_safetensors *set);

/* Tensors in order of file, then offset. `index` < count. */
size_t pst_safetensors_count(const pst_safetensors *set);
const pst_safetensors_tensor *pst_safetensors_at(const pst_safetensors *set, size_t index);

/* The tensor with this name, or NULL. */
const pst_safetensors_tensor *pst_safetensors_find(const pst_safetensors *set, const char *name);

/* The string under `key` in the metadata (of the first file that has it), or NULL. */
const char *pst_safetensors_metadata(const pst_safetensors *set, const char *key);

/* Path of file `tensor->file`, for messages. */
const char *pst_safetensors_path(const pst_safetensors *set, uint32_t file);

/* Copies n bytes from byte `from` of the tensor, as stored, to out. Any thread, several at once. PST_INVALID:
 * beyond the tensor's end; PST_IO. */
pst_status pst_safetensors_read(const pst_safetensors *set, const pst_safetensors_tensor *tensor,
                                uint64_t from, uint64_t n, void *out) PST_CHECKED;

/* Converts n elements from element `from` on, in row-major order, to fp32 out[n]. Any thread, several at
 * once. PST_UNSUPPORTED: the stored dtype is none of F32, BF16, F16, F64. */
pst_status pst_safetensors_read_f32(const pst_safetensors *set, const pst_safetensors_tensor *tensor,
                                    uint64_t from, uint64_t n, float *out) PST_CHECKED;

typedef struct pst_safetensors_writer pst_safetensors_writer;

/* Starts a file that appears at `path` when it is finished, and not before. One thread. */
pst_status pst_safetensors_writer_create(const char *path, pst_safetensors_writer **out) PST_CHECKED;

/* Adds a metadata string, or a tensor of the given shape (dims[n_dims], copied). Tensors are stored in the
 * order in which they are declared; both calls come before the first write. PST_INVALID: a name given twice
 * or not UTF-8, more than PST_SAFETENSORS_DIMS_MAX dimensions, a negative one, more than 2^63 - 1 bytes. */
pst_status pst_safetensors_writer_metadata(pst_safetensors_writer *writer, const char *key,
                                           const char *value) PST_CHECKED;
pst_status pst_safetensors_writer_declare(pst_safetensors_writer *writer, const char *name, pst_dtype dtype,
                                          int n_dims, const int64_t *dims) PST_CHECKED;

/* Appends n bytes to tensor `name`, which has to be the one whose turn it is: the first declared that is not
 * complete. Large pieces go to the system as they are, without a copy. PST_INVALID: another tensor's turn,
 * more bytes than declared, or a header above the limit. */
pst_status pst_safetensors_writer_write(pst_safetensors_writer *writer, const char *name, const void *bytes,
                                        uint64_t n) PST_CHECKED;

/* Syncs the file and renames it to its path. `out_checksum` (may be NULL): pst_checksum of the whole file.
 * PST_INVALID: a tensor lacks bytes. */
pst_status pst_safetensors_writer_finish(pst_safetensors_writer *writer, uint64_t *out_checksum) PST_CHECKED;

/* Legal with NULL. A file that was not finished is removed. */
void pst_safetensors_writer_destroy(pst_safetensors_writer *writer);

#endif
