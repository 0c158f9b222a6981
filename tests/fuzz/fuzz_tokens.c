/* Any bytes as a token file: opened in every format, checked, and read in full when they pass. The first byte
 * chooses the sequence length, the second the vocabulary. */
#include "core/data/tokens.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const int64_t vocabularies[] = {1, 97, 256, 257, 50257, 65536, 65537, INT32_MAX};

static void require(int truth, const char *what) {
  if (truth) return;
  fprintf(stderr, "fuzz_tokens: %s\n", what);
  abort();
}

/* What passed the check must be readable everywhere and lie below the vocabulary. */
static void read_all(const pst_tokens *tokens, int64_t sequence, int64_t vocab) {
  pst_tokens_view view = pst_tokens_all(tokens);
  int32_t ids[64], targets[64], again[64];
  int64_t head = view.count < 64 ? view.count : 64;
  require(view.count == pst_tokens_count(tokens), "a view of all that is not all");
  pst_tokens_format format;
  require(pst_tokens_format_parse(pst_tokens_format_name(pst_tokens_kind(tokens)), &format) == PST_OK &&
              format == pst_tokens_kind(tokens),
          "a format that its name does not give");
  require(pst_tokens_id_limit(tokens) > 0 && pst_tokens_whole(tokens) == PST_OK, "tokens that are not whole");
  pst_tokens_view train, valid;
  if (pst_tokens_split(tokens, 0.1, sequence, &train, &valid) == PST_OK)
    require(train.count + valid.count == view.count && valid.first == train.count,
            "a split that loses tokens");
  pst_tokens_read(tokens, 0, head, again);
  for (int64_t i = 0; i < head; i++)
    require(again[i] >= 0 && again[i] < vocab, "an id outside the vocabulary");
  for (int64_t start = -1; start <= view.count + 1; start += start < 0 ? 1 : sequence) {
    int64_t n = pst_tokens_window(&view, start, sequence, ids, targets);
    require(n >= 0 && n <= sequence, "a window longer than its sequence");
    for (int64_t i = 0; i < sequence; i++) {
      require(ids[i] >= 0 && ids[i] < vocab, "an id outside the vocabulary");
      require(targets[i] >= -1 && targets[i] < vocab, "a target outside the vocabulary");
      require((targets[i] == -1) == (i >= n), "a target where there is none");
    }
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 2) return 0;
  int64_t sequence = 1 + data[0] % 64;
  int64_t vocab = vocabularies[data[1] % 8];
  int fd = memfd_create("fuzz", MFD_CLOEXEC);
  if (fd < 0) return 0;
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  if (write(fd, data + 2, size - 2) != (ssize_t)(size - 2)) goto close_file;
  for (int format = 0; format < PST_TOKENS_FORMAT_COUNT; format++) {
    pst_tokens *tokens = NULL;
    pst_tokens_options options = {.paths = (const char *[]){path, path},
                                  .n_paths = 1 + (data[1] >> 7),
                                  .format = (pst_tokens_format)format,
                                  .sequence = sequence};
    pst_status st = pst_tokens_open(&options, &tokens);
    require((st == PST_OK) == (tokens != NULL), "tokens handed out with an error, or none without");
    require(st == PST_OK || pst_error()[0] != 0, "an error without a message");
    if (st != PST_OK) continue;
    pst_tokens_hash(tokens);
    if (pst_tokens_check(tokens, vocab) == PST_OK) read_all(tokens, sequence, vocab);
    pst_tokens_close(tokens);
  }
close_file:
  close(fd);
  return 0;
}
