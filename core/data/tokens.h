/* Token files: opened by mmap, checked as a whole, read as 32-bit ids.
 *
 *   pst_tokens *tokens;
 *   pst_tokens_options options = {.paths = (const char *[]){"train.bin"}, .n_paths = 1, .sequence = 1024};
 *   PST_TRY(pst_tokens_open(&options, &tokens));    // by llm.c's header, as text, or as `format` declares
 *   PST_TRY(pst_tokens_check(tokens, 50257));       // every id of every file, before the first step
 *   pst_tokens_view train, valid;
 *   PST_TRY(pst_tokens_split(tokens, 0.1, 1024, &train, &valid));    // the last tenth is for validation
 *   pst_tokens_window(&train, start, 1024, ids, targets);
 *   pst_tokens_close(tokens);
 *
 * Formats (all little-endian):
 *
 *   text     every byte is a token, 256 ids
 *   u16      nothing but 16-bit ids
 *   u32      nothing but 32-bit ids
 *   nanogpt  nanoGPT's train.bin: the same as u16
 *   llmc     llm.c's .bin (its dev/data/data_common.py): 256 int32 of header, magic, version and count first;
 *            magic 20240520 version 1, then u16 ids, or magic 20240801 version 7, then u32 ids
 *   auto     llmc by its magic; else text if the name does not end in .bin; any other .bin must be declared
 *
 * A file must not shrink while it is open.
 */
#ifndef PENSTOCK_DATA_TOKENS_H
#define PENSTOCK_DATA_TOKENS_H

#include "core/base/status.h"

#include <stdint.h>

/* name, bytes of an id (0: the file says) */
#define PST_TOKENS_FORMAT_LIST(X)                                                                            \
  X(AUTO, "auto", 0)                                                                                         \
  X(TEXT, "text", 1)                                                                                         \
  X(U16, "u16", 2)                                                                                           \
  X(U32, "u32", 4)                                                                                           \
  X(NANOGPT, "nanogpt", 2)                                                                                   \
  X(LLMC, "llmc", 0)

typedef enum pst_tokens_format {
#define PST_TOKENS_ENUM(name, text, width) PST_TOKENS_##name,
  PST_TOKENS_FORMAT_LIST(PST_TOKENS_ENUM)
#undef PST_TOKENS_ENUM
      PST_TOKENS_FORMAT_COUNT
} pst_tokens_format;

/* "u16" to PST_TOKENS_U16; INVALID lists the names. */
PST_CHECKED pst_status pst_tokens_format_parse(const char *text, pst_tokens_format *out_format);
const char *pst_tokens_format_name(pst_tokens_format format);

typedef struct pst_tokens pst_tokens;

typedef struct pst_tokens_options {
  const char *const *paths; /* n_paths regular files of one format, read as one after the other */
  int n_paths;
  pst_tokens_format format; /* 0: auto */
  int64_t sequence;         /* T: all files together must hold at least T + 1 tokens; at least 1 */
} pst_tokens_options;

/* Maps the files. INVALID by file name for: no regular file (a directory, a FIFO), empty, a byte count that
 * is no multiple of the width, a header at odds with the file, ids that were plainly written at another
 * width, too few tokens (need and have). IO when a file cannot be opened. Close with pst_tokens_close(). */
PST_CHECKED pst_status pst_tokens_open(const pst_tokens_options *options, pst_tokens **out_tokens);

/* NULL is legal. */
void pst_tokens_close(pst_tokens *tokens);

/* The functions below only read; any thread may call them. */

int64_t pst_tokens_count(const pst_tokens *tokens);

/* What auto came to. */
pst_tokens_format pst_tokens_kind(const pst_tokens *tokens);

/* Ids that the files could name: 256, 65,536 or 2^31 - 1. For text it is the vocabulary. */
int64_t pst_tokens_id_limit(const pst_tokens *tokens);

/* Looks at every token: INVALID with file, token offset, id and vocabulary for the first id that is not below
 * `vocab` (1 to 2^31 - 1). A vocabulary of more than 65,536 with 16-bit ids is refused as well: they cannot
 * name all of it, so larger ids would have been wrapped when the file was written. Nothing may be read before
 * this has said OK. */
PST_CHECKED pst_status pst_tokens_check(const pst_tokens *tokens, int64_t vocab);

/* Hash of all ids' bytes, their width and their number: equal on two hosts when their data are. Reads
 * everything. */
uint64_t pst_tokens_hash(const pst_tokens *tokens);

/* IO when a file has been cut short since it was opened: what is gone can no longer be read, trying to would
 * end the process. */
PST_CHECKED pst_status pst_tokens_whole(const pst_tokens *tokens);

/* out[0..n) = ids first .. first + n - 1, which must exist. */
void pst_tokens_read(const pst_tokens *tokens, int64_t first, int64_t n, int32_t *out);

/* A run of consecutive tokens; valid as long as the tokens are open. */
typedef struct pst_tokens_view {
  const pst_tokens *tokens;
  int64_t first, count;
} pst_tokens_view;

pst_tokens_view pst_tokens_all(const pst_tokens *tokens);

/* The last `valid_share` (above 0, below 1) of the tokens, rounded down, is for validation, the rest for
 * training. INVALID when either holds fewer than sequence + 1 tokens. */
PST_CHECKED pst_status pst_tokens_split(const pst_tokens *tokens, double valid_share, int64_t sequence,
                                        pst_tokens_view *out_train, pst_tokens_view *out_valid);

/* One sequence: ids[0..T) from token `start` of the view, targets[i] the id after ids[i]. Where the view
 * ends, targets are -1 and ids 0; so it is throughout for start < 0. Returns the number of targets that are
 * not -1. */
int64_t pst_tokens_window(const pst_tokens_view *view, int64_t start, int64_t sequence, int32_t *ids,
                          int32_t *targets);

#endif
