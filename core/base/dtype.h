/* The element types of tensors and files: one list, their sizes and names, and 16-bit float conversions.
 *
 *   float x = pst_bf16_to_f32(stored);                        // exact
 *   uint16_t y = pst_f32_to_bf16(x * 2.0f);                   // rounded to nearest, ties to even
 *   size_t bytes = n * pst_dtype_size(PST_BF16);
 *   printf("%s\n", pst_dtype_name(PST_BF16));                 // "bf16"
 *
 * Host side, little-endian memory, any thread. PST_U16 and PST_U8 serve token files and masks.
 */
#ifndef PENSTOCK_BASE_DTYPE_H
#define PENSTOCK_BASE_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* enum suffix, bytes of one element, our name, the name in a safetensors header */
#define PST_DTYPE_LIST(X)                                                                                    \
  X(F32, 4, "f32", "F32")                                                                                    \
  X(BF16, 2, "bf16", "BF16")                                                                                 \
  X(F16, 2, "f16", "F16")                                                                                    \
  X(F64, 8, "f64", "F64")                                                                                    \
  X(I32, 4, "i32", "I32")                                                                                    \
  X(I64, 8, "i64", "I64")                                                                                    \
  X(U8, 1, "u8", "U8")                                                                                       \
  X(U16, 2, "u16", "U16")

typedef enum pst_dtype {
#define PST_DTYPE_ENUM(name, bytes, text, st_text) PST_##name,
  PST_DTYPE_LIST(PST_DTYPE_ENUM)
#undef PST_DTYPE_ENUM
      PST_DTYPE_COUNT
} pst_dtype;

/* Bytes of one element; 0 for a value that is no dtype. */
size_t pst_dtype_size(pst_dtype dtype);

/* "bf16"; "unknown" for a value that is no dtype. */
const char *pst_dtype_name(pst_dtype dtype);

/* "BF16", as safetensors headers spell it; "UNKNOWN" for a value that is no dtype. */
const char *pst_dtype_safetensors_name(pst_dtype dtype);

/* The dtype with this name ("bf16") or this safetensors name ("BF16"); PST_DTYPE_COUNT when there is none. */
pst_dtype pst_dtype_by_name(const char *name);
pst_dtype pst_dtype_by_safetensors_name(const char *name);

/* Converts n elements between fp32 and a float dtype (F32, BF16, F16, F64), rounding to nearest even. Returns
 * 1; 0, with nothing written, for a dtype that is not a float. `source` and `out` do not overlap and need no
 * alignment on the non-fp32 side. */
int pst_dtype_to_f32(pst_dtype dtype, const void *source, size_t n, float *out);
int pst_dtype_from_f32(pst_dtype dtype, const float *source, size_t n, void *out);

static inline uint32_t pst_f32_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline float pst_f32_from_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* bfloat16 is the upper half of an fp32: exact. A signalling NaN keeps its payload. */
static inline float pst_bf16_to_f32(uint16_t h) {
  return pst_f32_from_bits((uint32_t)h << 16);
}

/* Rounds to nearest, ties to even; what is too large becomes infinity; a NaN stays a NaN, made quiet, with
 * its sign and the upper bits of its payload. */
static inline uint16_t pst_f32_to_bf16(float x) {
  uint32_t bits = pst_f32_bits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x0040u);
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* IEEE binary16 to binary32: exact for every value, subnormals included; a NaN is made quiet. */
static inline float pst_f16_to_f32(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
  uint32_t exponent = (h >> 10) & 0x1fu;
  uint32_t fraction = h & 0x3ffu;
  if (exponent == 31) {
    uint32_t quiet = fraction ? 0x00400000u : 0;
    return pst_f32_from_bits(sign | 0x7f800000u | quiet | (fraction << 13));
  }
  if (exponent == 0) {
    /* fraction x 2^-24; both factors and the product are exact in fp32 and normal there */
    float magnitude = (float)fraction * 0x1p-24f;
    return pst_f32_from_bits(sign | pst_f32_bits(magnitude));
  }
  return pst_f32_from_bits(sign | ((exponent + 112u) << 23) | (fraction << 13));
}

/* Rounds to nearest, ties to even, subnormals included; 65520 and above become infinity; a NaN stays a NaN,
 * made quiet. Integer arithmetic only, so the caller's rounding mode does not matter. */
static inline uint16_t pst_f32_to_f16(float x) {
  uint32_t bits = pst_f32_bits(x);
  uint32_t sign = (bits >> 16) & 0x8000u;
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x47800000u) return (uint16_t)(sign | 0x7c00u); /* 65536 and above */
  if (magnitude < 0x33000000u) return (uint16_t)sign;              /* below half of the least subnormal */
  uint32_t kept, dropped, shift;
  if (magnitude >= 0x38800000u) { /* normal in binary16: from 2^-14 */
    shift = 13;
    kept = (magnitude >> shift) - (112u << 10);
    dropped = magnitude & ((1u << shift) - 1);
  } else {
    uint32_t significand = (magnitude & 0x007fffffu) | 0x00800000u;
    shift = 126u - (magnitude >> 23); /* the unit in the last place is 2^-24 */
    kept = significand >> shift;
    dropped = significand & ((1u << shift) - 1);
  }
  uint32_t half = 1u << (shift - 1);
  /* a carry out of the fraction steps the exponent, up to infinity, which is the right result */
  if (dropped > half || (dropped == half && (kept & 1u))) kept++;
  return (uint16_t)(sign | kept);
}

#endif
