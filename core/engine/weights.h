/* Parameters and moments between a pipeline and safetensors files: one tensor at a time, nothing whole in
 * memory.
 *
 *   PST_TRY(pst_weights_save(a, "model.safetensors", &checksum));
 *   PST_TRY(pst_moments_save(a, "optimizer.safetensors", &checksum));
 *   PST_TRY(pst_weights_load(a, "hf/gpt2", notes, sizeof notes));       // a file, an index, or a directory
 *
 * The files do not know about stages: names are the model's, as Hugging Face has them; moments are
 * "m.<name>", "v.<name>" and so on.
 */
#ifndef PENSTOCK_ENGINE_WEIGHTS_H
#define PENSTOCK_ENGINE_WEIGHTS_H

#include "core/engine/assembly.h"

/* Writes every parameter in the model's order, in the graph's dtype, with the metadata {"format": "pt"}. A
 * tied weight is written once. `out_checksum` (may be NULL): pst_hash of the file. The file appears
 * complete or not at all. PST_NONFINITE names a weight that is not finite; nothing is written then. */
PST_CHECKED pst_status pst_weights_save(pst_assembly *assembly, const char *path, uint64_t *out_checksum);
PST_CHECKED pst_status pst_moments_save(pst_assembly *assembly, const char *path, uint64_t *out_checksum);

/* Fills every parameter from the file or directory (F32, BF16, F16 or F64 there). Every parameter must be
 * there with its shape, and every tensor of the file must be the model's, but for buffers that carry no
 * weights ("attn.bias", "attn.masked_bias", "rotary_emb.inv_freq"). Names may lack or have the family's outer
 * prefix ("transformer." for GPT-2, "model." for Llama). Of a tied head stored beside its embedding: equal
 * bytes load; different ones load the embedding, with a line in `notes`. An untied head that is absent is
 * refused by name. `notes` (may be NULL) gets lines to be logged; "" when there are none. */
PST_CHECKED pst_status pst_weights_load(pst_assembly *assembly, const char *path, char *notes,
                                        size_t notes_bytes);
PST_CHECKED pst_status pst_moments_load(pst_assembly *assembly, const char *path);

#endif
