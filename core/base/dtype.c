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

int pst_dtype_to_f32(pst_dtype dtype, const void *source, size_t n, float *out) {
  const char *from = source;
  uint16_t half;
  double wide;
  switch (dtype) {
  case PST_F32:
    if (n) memcpy(out, source, n * sizeof *out);
    return 1;
  case PST_BF16:
    for (size_t i = 0; i < n; i++) {
      memcpy(&half, from + i * sizeof half, sizeof half);
      out[i] = pst_bf16_to_f32(half);
    }
    return 1;
  case PST_F16:
    for (size_t i = 0; i < n; i++) {
      memcpy(&half, from + i * sizeof half, sizeof half);
      out[i] = pst_f16_to_f32(half);
    }
    return 1;
  case PST_F64:
    for (size_t i = 0; i < n; i++) {
      memcpy(&wide, from + i * sizeof wide, sizeof wide);
      out[i] = (float)wide;
    }
    return 1;
  default:
    return 0;
  }
}

int pst_dtype_from_f32(pst_dtype dtype, const float *source, size_t n, void *out) {
  char *to = out;
  uint16_t half;
  double wide;
  switch (dtype) {
  case PST_F32:
    if (n) memcpy(out, source, n * sizeof *source);
    return 1;
  case PST_BF16:
    for (size_t i = 0; i < n; i++) {
      half = pst_f32_to_bf16(source[i]);
      memcpy(to + i * sizeof half, &half, sizeof half);
    }
    return 1;
  case PST_F16:
    for (size_t i = 0; i < n; i++) {
      half = pst_f32_to_f16(source[i]);
      memcpy(to + i * sizeof half, &half, sizeof half);
    }
    return 1;
  case PST_F64:
    for (size_t i = 0; i < n; i++) {
      wide = source[i];
      memcpy(to + i * sizeof wide, &wide, sizeof wide);
    }
    return 1;
  default:
    return 0;
  }
}
