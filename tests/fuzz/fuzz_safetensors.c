/* libFuzzer target: the header parser on any bytes.
 *
 *   clang -fsanitize=fuzzer,address,undefined ... && ./fuzz_safetensors -max_total_time=60 -max_len=4096
 * corpus/
 *
 * The first 8 bytes of the input are read twice: as a header length, and as the size of the data that follow
 * the header. What the parser accepts has to hold: tensors tile the data and their products fit.
 */
#include "core/checkpoint/safetensors_header.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void require(int truth) {
  if (!truth) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
  if (n < 8) return 0;
  size_t length = 0;
  if (pst__safetensors_header_length(bytes, n, "fuzz", &length) == PST_OK)
    require(length >= 2 && length <= n - 8);

  uint64_t data_bytes = 0;
  for (int i = 7; i >= 0; i--) data_bytes = (data_bytes << 8) | bytes[i];
  uint64_t file_bytes = n + (data_bytes & (((uint64_t)1 << 62) - 1));
  pst__safetensors_header header = {0};
  if (pst__safetensors_header_parse((const char *)bytes + 8, n - 8, file_bytes, "fuzz", &header) != PST_OK) {
    require(header.root == NULL && pst_error()[0] != 0);
    return 0;
  }
  uint64_t next = n;
  for (size_t i = 0; i < header.n_tensors; i++) {
    const pst_safetensors_tensor *tensor = &header.tensors[i];
    uint64_t elements = 1;
    for (int d = 0; d < tensor->n_dims; d++) {
      require(tensor->dims[d] >= 0);
      require(!__builtin_mul_overflow(elements, (uint64_t)tensor->dims[d], &elements));
    }
    require(elements == tensor->elements);
    if (tensor->dtype != PST_DTYPE_COUNT) require(elements * pst_dtype_size(tensor->dtype) == tensor->bytes);
    require(tensor->offset == next);
    next += tensor->bytes;
  }
  require(next == file_bytes);
  pst__safetensors_header_destroy(&header);
  return 0;
}
