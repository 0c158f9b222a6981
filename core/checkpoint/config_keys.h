/* The keys of config.json, as tables: what each one sets, or which values of it are accepted.
 *
 *   size_t n;
 *   const pst__config_key *keys = pst__config_keys(PST_FAMILY_LLAMA, &n);
 *
 * Internal to core/checkpoint.
 */
#ifndef PENSTOCK_CHECKPOINT_CONFIG_KEYS_H
#define PENSTOCK_CHECKPOINT_CONFIG_KEYS_H

#include "core/checkpoint/config.h"

typedef enum pst__config_kind {
  PST__CONFIG_INTEGER, /* int64_t at `offset`; null leaves the default */
  PST__CONFIG_NUMBER,  /* double at `offset`; null leaves the default */
  PST__CONFIG_BOOL,    /* int64_t at `offset` */
  PST__CONFIG_ONLY     /* refused unless null or equal to the JSON text `only` */
} pst__config_kind;

typedef struct pst__config_key {
  const char *name;
  const char *alias; /* a second spelling that transformers takes, or NULL */
  pst__config_kind kind;
  size_t offset;
  double low, high; /* NUMBER and INTEGER: the accepted range, ends included */
  const char *only;
} pst__config_key;

/* The rows of one family; *out_n of them. */
const pst__config_key *pst__config_keys(pst_family family, size_t *out_n);

/* Whether the key changes nothing in training or evaluation here. */
int pst__config_key_harmless(const char *name);

/* How config.json of the family spells the field at `offset` of pst_model_config; "?" when no row has it. */
const char *pst__config_key_name(pst_family family, size_t offset);

#endif
