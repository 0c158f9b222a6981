/* manifest.json of a checkpoint: between the struct and its text.
 *
 *   char *json;
 *   PST_TRY(pst__manifest_format(&manifest, &json));
 *   PST_TRY(pst__manifest_parse(json, strlen(json), "manifest.json", &copy));
 *
 * Internal to core/checkpoint. Numbers of 64 unsigned bits are strings in the JSON (decimal for the seed, 16
 * hexadecimal digits for checksums): JSON readers keep 53 bits or 63.
 */
#ifndef PENSTOCK_CHECKPOINT_MANIFEST_H
#define PENSTOCK_CHECKPOINT_MANIFEST_H

#include "core/checkpoint/directory.h"

#define PST__MANIFEST_NAME "manifest.json"

/* The caller frees the text. */
pst_status pst__manifest_format(const pst_manifest *manifest, char **out_json) PST_CHECKED;

/* PST_INVALID names the key that is missing or wrong, `where` in front. */
pst_status pst__manifest_parse(const char *json, size_t n, const char *where, pst_manifest **out) PST_CHECKED;

/* Whether a file of a checkpoint may bear this name. */
int pst__manifest_name_ok(const char *name);

#endif
