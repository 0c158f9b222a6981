#include "core/base/dtype.h"

static const struct {
  size_t size;
  const char *name;
  const char *safetensors_name;
} dtypes[PST_DTYPE_COUNT] = {
#define DTYPE_ROW(name, bytes, text, st_text) {bytes, text, st_text},
    PST_DTYPE_LIST(DTYPE_ROW)
#undef DTYPE_ROW
};

static int known(pst_dtype dtype) {
  return (unsigned)dtype < PST_DTYPE_COUNT;
}

size_t pst_dtype_size(pst_dtype dtype) {
  return known(dtype) ? dtypes[dtype].size : 0;
}

const char *pst_dtype_name(pst_dtype dtype) {
  return known(dtype) ? dtypes[dtype].name : "unknown";
}

const char *pst_dtype_safetensors_name(pst_dtype dtype) {
  return known(dtype) ? dtypes[dtype].safetensors_name : "UNKNOWN";
}

pst_dtype pst_dtype_by_name(const char *name) {
  for (int i = 0; i < PST_DTYPE_COUNT; i++)
    if (strcmp(dtypes[i].name, name) == 0) return (pst_dtype)i;
  return PST_DTYPE_COUNT;
}

pst_dtype pst_dtype_by_safetensors_name(const char *name) {
  for (int i = 0; i < PST_DTYPE_COUNT; i++)
    if (strcmp(dtypes[i].safetensors_name, name) == 0) return (pst_dtype)i;
  return PST_DTYPE_COUNT;
}
