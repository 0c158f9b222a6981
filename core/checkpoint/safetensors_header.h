/* The header of one safetensors file: from bytes to a checked list of tensors.
 *
 *   pst__safetensors_header header;
 *   PST_TRY(pst__safetensors_header_parse(json, n, file_bytes, "model.safetensors", &header));
 *   ... header.tensors[0 .. header.n_tensors) in order of offset ...
 *   pst__safetensors_header_destroy(&header);
 *
 * Internal to core/checkpoint; the reader and the fuzz target call it.
 */
#ifndef PENSTOCK_CHECKPOINT_SAFETENSORS_HEADER_H
#define PENSTOCK_CHECKPOINT_SAFETENSORS_HEADER_H

#include "core/checkpoint/safetensors.h"

#include <jansson.h>

typedef struct pst__safetensors_header {
  pst_safetensors_tensor
      *tensors; /* names point into `root`; offset counts from the start of the file; file is 0 */
  size_t n_tensors;
  json_t *metadata; /* object of strings inside `root`, or NULL */
  json_t *root;
} pst__safetensors_header;

/* Checks the header length that a file of `file_bytes` states in its first 8 bytes: at most
 * PST_SAFETENSORS_HEADER_MAX and what the file holds. */
pst_status pst__safetensors_header_length(const unsigned char first[8], uint64_t file_bytes, const char *path,
                                          size_t *out_n) PST_CHECKED;

/* Parses the n header bytes of a file of `file_bytes` (>= 8 + n) bytes. Memory is at most proportional to n.
 * PST_INVALID names `path`, the tensor, the value seen and the value wanted; PST_NO_MEMORY. */
pst_status pst__safetensors_header_parse(const char *json, size_t n, uint64_t file_bytes, const char *path,
                                         pst__safetensors_header *out) PST_CHECKED;

/* Frees what parse filled; legal on a zeroed struct. */
void pst__safetensors_header_destroy(pst__safetensors_header *header);

#endif
