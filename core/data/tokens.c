#include "core/data/tokens.h"

#include "core/base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LLMC_HEADER_BYTES = 1024, SCAN_BLOCK = 4096, WIDTH_EVIDENCE = 8 };

#define LLMC_MAGIC_U16 20240520u
#define LLMC_MAGIC_U32 20240801u

typedef struct part {
  char *path;
  const unsigned char *map;
  size_t map_bytes;
  int fd;          /* open as long as there is a map */
  const void *ids; /* in map */
  int64_t count;
  int width; /* bytes of an id: 1, 2, 4 */
  pst_tokens_format format;
} part;

struct pst_tokens {
  int64_t count;
  int n_parts;
  part parts[];
};

/* ---- formats ---- */

static const struct {
  const char *name;
  int width;
} formats[] = {
#define PST_TOKENS_ROW(name, text, width) [PST_TOKENS_##name] = {text, width},
    PST_TOKENS_FORMAT_LIST(PST_TOKENS_ROW)
#undef PST_TOKENS_ROW
};

pst_status pst_tokens_format_parse(const char *text, pst_tokens_format *out_format) {
  for (int f = 0; f < PST_TOKENS_FORMAT_COUNT; f++) {
    if (strcmp(text, formats[f].name) != 0) continue;
    *out_format = (pst_tokens_format)f;
    return PST_OK;
  }
  return pst_fail(PST_INVALID, "token format \"%s\", wanted auto, text, u16, u32, nanogpt or llmc", text);
}

const char *pst_tokens_format_name(pst_tokens_format format) {
  return (unsigned)format < PST_TOKENS_FORMAT_COUNT ? formats[format].name : "unknown";
}

/* ---- little-endian ids in memory ---- */

static uint16_t le16(uint16_t x) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  return __builtin_bswap16(x);
#else
  return x;
#endif
}

static uint32_t le32(uint32_t x) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  return __builtin_bswap32(x);
#else
  return x;
#endif
}

static uint32_t id_at(const part *p, int64_t i) {
  if (p->width == 1) return ((const unsigned char *)p->ids)[i];
  if (p->width == 2) return le16(((const uint16_t *)p->ids)[i]);
  return le32(((const uint32_t *)p->ids)[i]);
}

/* Simple loops that compilers turn into vector maxima. */
static uint32_t largest_id(const part *p, int64_t first, int64_t n) {
  uint32_t most = 0;
  if (p->width == 1) {
    const unsigned char *x = (const unsigned char *)p->ids + first;
    unsigned char m = 0;
    for (int64_t i = 0; i < n; i++) m = x[i] > m ? x[i] : m;
    most = m;
  } else if (p->width == 2) {
    const uint16_t *x = (const uint16_t *)p->ids + first;
    uint16_t m = 0;
    for (int64_t i = 0; i < n; i++) m = le16(x[i]) > m ? le16(x[i]) : m;
    most = m;
  } else {
    const uint32_t *x = (const uint32_t *)p->ids + first;
    for (int64_t i = 0; i < n; i++) most = le32(x[i]) > most ? le32(x[i]) : most;
  }
  return most;
}

/* ---- opening a file ---- */

static const char *kind_of_file(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

static pst_status map_file(part *p) {
  pst_status st = PST_OK;
  int fd = open(p->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO without a writer must not block */
  if (fd < 0) return pst_fail(PST_IO, "%s: cannot be opened: %s", p->path, strerror(errno));
  struct stat info;
  if (fstat(fd, &info) != 0) {
    st = pst_fail(PST_IO, "%s: cannot be examined: %s", p->path, strerror(errno));
  } else if (!S_ISREG(info.st_mode)) {
    st = pst_fail(PST_INVALID, "%s: is %s, wanted a regular file of tokens", p->path,
                  kind_of_file(info.st_mode));
  } else if (info.st_size == 0) {
    st = pst_fail(PST_INVALID, "%s: is empty (0 bytes), wanted tokens", p->path);
  } else if ((uintmax_t)info.st_size > SIZE_MAX / 2) {
    st = pst_fail(PST_UNSUPPORTED, "%s: %lld bytes do not fit this machine's addresses", p->path,
                  (long long)info.st_size);
  }
  if (st != PST_OK) goto close_file;
  void *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (map == MAP_FAILED) {
    st = pst_fail(PST_IO, "%s: cannot be mapped (%lld bytes): %s", p->path, (long long)info.st_size,
                  strerror(errno));
    goto close_file;
  }
  p->map = map;
  p->map_bytes = (size_t)info.st_size;
  p->fd = fd;
  return PST_OK;
close_file:
  close(fd);
  return st;
}

static uint32_t header_word(const part *p, int i) {
  uint32_t word;
  memcpy(&word, p->map + 4 * (size_t)i, sizeof word);
  return le32(word);
}

static bool has_llmc_magic(const part *p) {
  if (p->map_bytes < 4) return false;
  uint32_t magic = header_word(p, 0);
  return magic == LLMC_MAGIC_U16 || magic == LLMC_MAGIC_U32;
}

static bool ends_in_bin(const char *path) {
  size_t n = strlen(path);
  return n >= 4 && strcasecmp(path + n - 4, ".bin") == 0;
}

static pst_status pick_format(part *p, pst_tokens_format wanted) {
  if (has_llmc_magic(p)) {
    if (wanted != PST_TOKENS_AUTO && wanted != PST_TOKENS_LLMC)
      return pst_fail(PST_INVALID,
                      "%s: begins with llm.c's header but is declared as %s, wanted llmc or auto", p->path,
                      formats[wanted].name);
    p->format = PST_TOKENS_LLMC;
    return PST_OK;
  }
  if (wanted == PST_TOKENS_LLMC)
    return pst_fail(PST_INVALID, "%s: declared as llmc but does not begin with its magic number (%u or %u)",
                    p->path, LLMC_MAGIC_U16, LLMC_MAGIC_U32);
  if (wanted != PST_TOKENS_AUTO) {
    p->format = wanted;
    return PST_OK;
  }
  if (ends_in_bin(p->path))
    return pst_fail(
        PST_INVALID,
        "%s: a .bin without llm.c's header does not say how wide its ids are, wanted format u16, u32 or "
        "nanogpt declared",
        p->path);
  size_t look = p->map_bytes < SCAN_BLOCK ? p->map_bytes : SCAN_BLOCK;
  const unsigned char *zero = memchr(p->map, 0, look);
  if (zero)
    return pst_fail(PST_INVALID,
                    "%s: taken for text by its name but byte %lld is zero, wanted a format declared", p->path,
                    (long long)(zero - p->map));
  p->format = PST_TOKENS_TEXT;
  return PST_OK;
}

static pst_status lay_out_llmc(part *p) {
  if (p->map_bytes < LLMC_HEADER_BYTES)
    return pst_fail(PST_INVALID, "%s: %zu bytes, wanted llm.c's header of %d", p->path, p->map_bytes,
                    LLMC_HEADER_BYTES);
  bool wide = header_word(p, 0) == LLMC_MAGIC_U32;
  uint32_t version = header_word(p, 1), count = header_word(p, 2);
  if (version != (wide ? 7u : 1u))
    return pst_fail(PST_INVALID, "%s: llm.c header of version %u, wanted %d with magic %u", p->path, version,
                    wide ? 7 : 1, header_word(p, 0));
  p->width = wide ? 4 : 2;
  uint64_t need = LLMC_HEADER_BYTES + (uint64_t)count * (unsigned)p->width;
  if (count > INT32_MAX || need != p->map_bytes)
    return pst_fail(PST_INVALID,
                    "%s: header counts %u tokens of %d bytes, so %llu bytes, but the file has %zu", p->path,
                    count, p->width, (unsigned long long)need, p->map_bytes);
  p->ids = p->map + LLMC_HEADER_BYTES;
  p->count = count;
  return PST_OK;
}

static pst_status lay_out_raw(part *p) {
  p->width = formats[p->format].width;
  if (p->map_bytes % (size_t)p->width != 0)
    return pst_fail(PST_INVALID, "%s: %zu bytes, wanted a multiple of %d for format %s", p->path,
                    p->map_bytes, p->width, formats[p->format].name);
  p->ids = p->map;
  p->count = (int64_t)(p->map_bytes / (size_t)p->width);
  return PST_OK;
}

/* 32-bit ids below 65,536 read as 16-bit ones: every second one is zero, and not all of the others. */
static bool looks_twice_as_wide(const part *p) {
  if (p->width != 2 || p->count % 2 != 0 || p->count < WIDTH_EVIDENCE) return false;
  bool any = false;
  for (int64_t i = 0; i < p->count; i += 2) {
    if (id_at(p, i + 1) != 0) return false;
    any = any || id_at(p, i) != 0;
  }
  return any;
}

/* 16-bit ids read as 32-bit ones: no id has an upper half of zero. A vocabulary of more than 65,536 whose
 * first 65,536 ids never occur is not met in practice. */
static bool looks_half_as_wide(const part *p) {
  if (p->width != 4 || p->count < WIDTH_EVIDENCE) return false;
  for (int64_t i = 0; i < p->count; i++)
    if (id_at(p, i) >> 16 == 0) return false;
  return true;
}

static pst_status open_part(part *p, const char *path, pst_tokens_format wanted) {
  p->path = strdup(path);
  if (!p->path) return pst_fail(PST_NO_MEMORY, "%s: no memory for its name", path);
  PST_TRY(map_file(p));
  PST_TRY(pick_format(p, wanted));
  PST_TRY(p->format == PST_TOKENS_LLMC ? lay_out_llmc(p) : lay_out_raw(p));
  if (looks_twice_as_wide(p))
    return pst_fail(PST_INVALID,
                    "%s: read as 16-bit ids every second one is 0: a file of 32-bit ids? wanted u32", path);
  if (looks_half_as_wide(p))
    return pst_fail(PST_INVALID,
                    "%s: read as 32-bit ids all are 65536 or more: a file of 16-bit ids? wanted u16", path);
  return PST_OK;
}

pst_status pst_tokens_open(const pst_tokens_options *options, pst_tokens **out_tokens) {
  int n = options->n_paths;
  if (n < 1) return pst_fail(PST_INVALID, "tokens: %d files, wanted at least 1", n);
  if (options->sequence < 1 || options->sequence == INT64_MAX)
    return pst_fail(PST_INVALID, "tokens: sequence %lld, wanted at least 1", (long long)options->sequence);
  if ((unsigned)options->format >= PST_TOKENS_FORMAT_COUNT)
    return pst_fail(PST_INVALID, "tokens: format number %d is unknown", (int)options->format);
  pst_tokens *tokens = calloc(1, sizeof *tokens + (size_t)n * sizeof *tokens->parts);
  if (!tokens) return pst_fail(PST_NO_MEMORY, "tokens: no memory for %d files", n);
  tokens->n_parts = n;

  pst_status st = PST_OK;
  for (int i = 0; i < n; i++) {
    part *p = &tokens->parts[i];
    PST_GOTO(st, open_part(p, options->paths[i], options->format), close_tokens);
    if (p->format != tokens->parts[0].format || p->width != tokens->parts[0].width) {
      st = pst_fail(PST_INVALID, "%s: is %s of %d bytes an id but %s is %s of %d, wanted one format", p->path,
                    formats[p->format].name, p->width, tokens->parts[0].path,
                    formats[tokens->parts[0].format].name, tokens->parts[0].width);
      goto close_tokens;
    }
    tokens->count += p->count;
  }
  if (tokens->count < options->sequence + 1) {
    st = pst_fail(PST_INVALID, "%s%s: %lld tokens, needs at least %lld (sequence %lld + 1)",
                  options->paths[0], n > 1 ? " and the files after it" : "", (long long)tokens->count,
                  (long long)options->sequence + 1, (long long)options->sequence);
    goto close_tokens;
  }
  *out_tokens = tokens;
  return PST_OK;

close_tokens:
  pst_tokens_close(tokens);
  return st;
}

void pst_tokens_close(pst_tokens *tokens) {
  if (!tokens) return;
  for (int i = 0; i < tokens->n_parts; i++) {
    part *p = &tokens->parts[i];
    if (p->map) {
      munmap((void *)(uintptr_t)p->map, p->map_bytes);
      close(p->fd);
    }
    free(p->path);
  }
  free(tokens);
}

int64_t pst_tokens_count(const pst_tokens *tokens) {
  return tokens->count;
}

pst_tokens_format pst_tokens_kind(const pst_tokens *tokens) {
  return tokens->parts[0].format;
}

int64_t pst_tokens_id_limit(const pst_tokens *tokens) {
  int width = tokens->parts[0].width;
  return width == 1 ? 256 : width == 2 ? 65536 : INT32_MAX;
}

/* ---- looking at every token ---- */

/* True when all ids would fit, were they of half the width. */
static bool halves_fit(const part *p, int64_t vocab) {
  if (p->width != 4) return false;
  part halves = *p;
  halves.width = 2;
  halves.count = 2 * p->count;
  return largest_id(&halves, 0, halves.count) < vocab;
}

static pst_status check_part(const part *p, int64_t vocab) {
  for (int64_t first = 0; first < p->count; first += SCAN_BLOCK) {
    int64_t n = p->count - first < SCAN_BLOCK ? p->count - first : SCAN_BLOCK;
    if (largest_id(p, first, n) < vocab) continue;
    int64_t at = first;
    while (id_at(p, at) < vocab) at++;
    return pst_fail(PST_INVALID, "%s: token %lld has id %u, wanted below the vocabulary %lld%s", p->path,
                    (long long)at, id_at(p, at), (long long)vocab,
                    halves_fit(p, vocab) ? " (as 16-bit ids all would fit: is it a u16 file?)" : "");
  }
  return PST_OK;
}

pst_status pst_tokens_check(const pst_tokens *tokens, int64_t vocab) {
  if (vocab < 1 || vocab > INT32_MAX)
    return pst_fail(PST_INVALID, "%s: vocabulary %lld, wanted 1 to %d", tokens->parts[0].path,
                    (long long)vocab, INT32_MAX);
  if (tokens->parts[0].width == 2 && vocab > 65536)
    return pst_fail(PST_INVALID,
                    "%s: holds 16-bit ids, which cannot name a vocabulary of %lld, wanted 32-bit ids (u32)",
                    tokens->parts[0].path, (long long)vocab);
  for (int i = 0; i < tokens->n_parts; i++) PST_TRY(check_part(&tokens->parts[i], vocab));
  return PST_OK;
}

uint64_t pst_tokens_hash(const pst_tokens *tokens) {
  pst_hash h;
  pst_hash_init(&h, (uint64_t)tokens->count);
  for (int i = 0; i < tokens->n_parts; i++) {
    const part *p = &tokens->parts[i];
    pst_hash_update(&h, p->ids, (size_t)p->count * (size_t)p->width);
  }
  unsigned char width = (unsigned char)tokens->parts[0].width;
  pst_hash_update(&h, &width, 1);
  return pst_hash_value(&h);
}

/* ---- reading ---- */

pst_status pst_tokens_whole(const pst_tokens *tokens) {
  for (int i = 0; i < tokens->n_parts; i++) {
    const part *p = &tokens->parts[i];
    struct stat info;
    if (fstat(p->fd, &info) != 0)
      return pst_fail(PST_IO, "%s: cannot be examined: %s", p->path, strerror(errno));
    if ((uintmax_t)info.st_size < p->map_bytes)
      return pst_fail(PST_IO,
                      "%s: has %lld bytes, had %zu when it was opened; it must not change while it is in use",
                      p->path, (long long)info.st_size, p->map_bytes);
  }
  return PST_OK;
}

static void read_part(const part *p, int64_t first, int64_t n, int32_t *out) {
  if (p->width == 1) {
    const unsigned char *x = (const unsigned char *)p->ids + first;
    for (int64_t i = 0; i < n; i++) out[i] = x[i];
  } else if (p->width == 2) {
    const uint16_t *x = (const uint16_t *)p->ids + first;
    for (int64_t i = 0; i < n; i++) out[i] = le16(x[i]);
  } else {
    const uint32_t *x = (const uint32_t *)p->ids + first;
    for (int64_t i = 0; i < n; i++) out[i] = (int32_t)le32(x[i]);
  }
}

void pst_tokens_read(const pst_tokens *tokens, int64_t first, int64_t n, int32_t *out) {
  for (const part *p = tokens->parts; n > 0; p++) {
    if (first >= p->count) {
      first -= p->count;
      continue;
    }
    int64_t here = p->count - first < n ? p->count - first : n;
    read_part(p, first, here, out);
    out += here;
    n -= here;
    first = 0;
  }
}

pst_tokens_view pst_tokens_all(const pst_tokens *tokens) {
  return (pst_tokens_view){.tokens = tokens, .first = 0, .count = tokens->count};
}

pst_status pst_tokens_split(const pst_tokens *tokens, double valid_share, int64_t sequence,
                            pst_tokens_view *out_train, pst_tokens_view *out_valid) {
  const char *path = tokens->parts[0].path;
  if (!(valid_share > 0 && valid_share < 1))
    return pst_fail(PST_INVALID, "%s: validation share %g, wanted above 0 and below 1", path, valid_share);
  int64_t n_valid = (int64_t)((double)tokens->count * valid_share);
  int64_t n_train = tokens->count - n_valid;
  if (n_valid <= sequence || n_train <= sequence)
    return pst_fail(
        PST_INVALID,
        "%s: a validation share of %g leaves %lld tokens to train on and %lld to validate, each needs at "
        "least %lld (sequence %lld + 1)",
        path, valid_share, (long long)n_train, (long long)n_valid, (long long)sequence + 1,
        (long long)sequence);
  *out_train = (pst_tokens_view){.tokens = tokens, .first = 0, .count = n_train};
  *out_valid = (pst_tokens_view){.tokens = tokens, .first = n_train, .count = n_valid};
  return PST_OK;
}

int64_t pst_tokens_window(const pst_tokens_view *view, int64_t start, int64_t sequence, int32_t *ids,
                          int32_t *targets) {
  int64_t left = start < 0 ? 0 : view->count - start - 1; /* ids that have a successor */
  int64_t n = left < 0 ? 0 : left < sequence ? left : sequence;
  if (n > 0) {
    pst_tokens_read(view->tokens, view->first + start, n, ids);
    pst_tokens_read(view->tokens, view->first + start + 1, n, targets);
  }
  for (int64_t i = n; i < sequence; i++) {
    ids[i] = 0;
    targets[i] = -1;
  }
  return n;
}
