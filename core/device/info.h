/* What a device says of itself. Plain data. */
#ifndef PENSTOCK_DEVICE_INFO_H
#define PENSTOCK_DEVICE_INFO_H

#include <stdint.h>

typedef enum pst_memory_kind {
  PST_MEMORY_HOST,
  PST_MEMORY_CUDA,
  PST_MEMORY_ROCM,
  PST_MEMORY_OPAQUE
} pst_memory_kind;

typedef struct pst_device_info {
  char name[64];           /* "cpu", "cuda:0" */
  char description[256];   /* model, core count, library versions, kernel set */
  char reason[256];        /* "" when usable; else why not */
  int64_t memory_bytes;    /* what a run may use; 0: not known */
  int64_t max_block_bytes; /* largest single allocation; 0: no limit */
  pst_memory_kind memory_kind;
  char numerics[128]; /* what decides the bits besides the program: "cpu f32 fma own-gemm"; ranks compare it
                       */
} pst_device_info;

#endif
