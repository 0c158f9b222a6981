/* Token files: what is taken, what is refused and with which words, and that ids come out as they went in. */
#include "core/data/tokens.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/pst-test-tokens-XXXXXX";

static int make_folder(void **state) {
  return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
  char command[64];
  snprintf(command, sizeof command, "rm -r %s", folder);
  return system(command);
}

static char *at(const char *name) {
  static char paths[4][256];
  static int next;
  char *path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", folder, name);
  return path;
}

static char *put(const char *name, const void *data, size_t n_bytes) {
  char *path = at(name);
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(data, 1, n_bytes, f), n_bytes);
  assert_int_equal(fclose(f), 0);
  return path;
}

static pst_status open_as(const char *path, pst_tokens_format format, int64_t sequence, pst_tokens **out) {
  pst_tokens_options options = {.paths = &path, .n_paths = 1, .format = format, .sequence = sequence};
  return pst_tokens_open(&options, out);
}

static pst_tokens *opened(const char *path, pst_tokens_format format, int64_t sequence) {
  pst_tokens *tokens = NULL;
  pst_status st = open_as(path, format, sequence, &tokens);
  if (st != PST_OK) print_message("%s\n", pst_error());
  assert_int_equal(st, PST_OK);
  return tokens;
}

/* Refused, with the path and `words` in the message and nothing handed out. */
static void refused(const char *path, pst_tokens_format format, int64_t sequence, const char *words) {
  pst_tokens *tokens = NULL;
  assert_int_equal(open_as(path, format, sequence, &tokens), PST_INVALID);
  assert_null(tokens);
  if (!strstr(pst_error(), words)) print_message("message: %s\n", pst_error());
  assert_non_null(strstr(pst_error(), words));
  assert_non_null(strstr(pst_error(), path));
}

static void check_ids(const pst_tokens *tokens, const uint32_t *ids, int64_t n) {
  int32_t out[64];
  assert_int_equal(pst_tokens_count(tokens), n);
  for (int64_t first = 0; first < n; first++) {
    memset(out, 0x5a, sizeof out);
    pst_tokens_read(tokens, first, n - first, out);
    for (int64_t i = 0; i < n - first; i++) assert_int_equal(out[i], ids[first + i]);
    assert_int_equal(out[n - first], 0x5a5a5a5a);
  }
}

static const uint32_t some[] = {5, 65535, 0, 7, 300, 1, 2, 3, 4, 9};
enum { N_SOME = sizeof some / sizeof *some };

static size_t encode(unsigned char *out, const uint32_t *ids, size_t n, int width) {
  for (size_t i = 0; i < n; i++)
    for (int b = 0; b < width; b++) out[i * (size_t)width + (size_t)b] = (unsigned char)(ids[i] >> (8 * b));
  return n * (size_t)width;
}

static size_t encode_llmc(unsigned char *out, uint32_t magic, uint32_t version, uint32_t count, int width) {
  memset(out, 0, 1024);
  encode(out, (uint32_t[]){magic, version, count}, 3, 4);
  return 1024 + encode(out + 1024, some, N_SOME, width);
}

static void every_format_is_read(void **state) {
  unsigned char raw[2048];
  size_t n = encode(raw, some, N_SOME, 2);
  pst_tokens *t = opened(put("a.bin", raw, n), PST_TOKENS_U16, 4);
  check_ids(t, some, N_SOME);
  assert_int_equal(pst_tokens_id_limit(t), 65536);
  pst_tokens_close(t);
  t = opened(put("a.bin", raw, n), PST_TOKENS_NANOGPT, N_SOME - 1);
  check_ids(t, some, N_SOME);
  pst_tokens_close(t);

  n = encode(raw, some, N_SOME, 4);
  t = opened(put("b.bin", raw, n), PST_TOKENS_U32, 4);
  check_ids(t, some, N_SOME);
  assert_int_equal(pst_tokens_id_limit(t), INT32_MAX);
  pst_tokens_close(t);

  n = encode_llmc(raw, 20240520, 1, N_SOME, 2);
  t = opened(put("c.bin", raw, n), PST_TOKENS_AUTO, 4);
  assert_int_equal(pst_tokens_kind(t), PST_TOKENS_LLMC);
  assert_int_equal(pst_tokens_id_limit(t), 65536);
  check_ids(t, some, N_SOME);
  pst_tokens_close(t);

  n = encode_llmc(raw, 20240801, 7, N_SOME, 4);
  t = opened(put("d.bin", raw, n), PST_TOKENS_LLMC, 4);
  assert_int_equal(pst_tokens_id_limit(t), INT32_MAX);
  check_ids(t, some, N_SOME);
  pst_tokens_close(t);

  t = opened(put("notes.txt", "he\xff!", 4), PST_TOKENS_AUTO, 3);
  assert_int_equal(pst_tokens_kind(t), PST_TOKENS_TEXT);
  assert_int_equal(pst_tokens_id_limit(t), 256);
  check_ids(t, (uint32_t[]){'h', 'e', 255, '!'}, 4);
  pst_tokens_close(t);
  pst_tokens_close(NULL);
}

static void several_files_are_read_as_one(void **state) {
  const char *paths[] = {put("p1.txt", "abc", 3), put("p2.md", "d", 1), put("p3.c", "efgh", 4)};
  pst_tokens_options options = {.paths = paths, .n_paths = 3, .sequence = 7};
  pst_tokens *t = NULL;
  assert_int_equal(pst_tokens_open(&options, &t), PST_OK);
  check_ids(t, (uint32_t[]){'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'}, 8);
  assert_int_equal(pst_tokens_check(t, 'g'), PST_INVALID);
  assert_non_null(strstr(pst_error(), "p3.c: token 2 has id 103, wanted below the vocabulary 103"));
  pst_tokens_close(t);
  t = NULL;

  unsigned char raw[2048];
  paths[1] = put("p2.bin", raw, encode_llmc(raw, 20240520, 1, N_SOME, 2));
  assert_int_equal(pst_tokens_open(&options, &t), PST_INVALID);
  assert_non_null(strstr(pst_error(), "wanted one format"));
  options.n_paths = 0;
  assert_int_equal(pst_tokens_open(&options, &t), PST_INVALID);
  assert_null(t);
}

static void sizes_are_judged_with_need_and_have(void **state) {
  unsigned char raw[64] = {0};
  for (int i = 0; i < 64; i++) raw[i] = (unsigned char)(i + 1);
  refused(put("e.bin", raw, 0), PST_TOKENS_U16, 4, "is empty (0 bytes)");
  refused(put("e.txt", raw, 0), PST_TOKENS_AUTO, 4, "is empty (0 bytes)");
  refused(put("one.bin", raw, 1), PST_TOKENS_U16, 4, "1 bytes, wanted a multiple of 2");
  refused(put("odd.bin", raw, 11), PST_TOKENS_U16, 4, "11 bytes, wanted a multiple of 2");
  refused(put("odd4.bin", raw, 14), PST_TOKENS_U32, 2, "14 bytes, wanted a multiple of 4");
  refused(put("short.bin", raw, 8), PST_TOKENS_U16, 4, "4 tokens, needs at least 5 (sequence 4 + 1)");
  refused(put("short.txt", raw, 4), PST_TOKENS_AUTO, 4, "4 tokens, needs at least 5 (sequence 4 + 1)");
  pst_tokens_close(opened(put("just.bin", raw, 10), PST_TOKENS_U16, 4));
  pst_tokens_close(opened(put("just.txt", raw, 5), PST_TOKENS_AUTO, 4));
  refused(put("just.txt", raw, 5), PST_TOKENS_AUTO, INT64_MAX - 1, "5 tokens, needs at least");
  pst_tokens *t = NULL;
  assert_int_equal(open_as(at("just.txt"), PST_TOKENS_AUTO, 0, &t), PST_INVALID);
  assert_int_equal(open_as(at("just.txt"), PST_TOKENS_AUTO, INT64_MAX, &t), PST_INVALID);
}

/* A FIFO must not make open wait for a writer: the test would hang. */
static void only_regular_files_are_taken(void **state) {
  refused(folder, PST_TOKENS_AUTO, 4, "is a directory, wanted a regular file");
  char *fifo = at("pipe");
  assert_int_equal(mkfifo(fifo, 0600), 0);
  refused(fifo, PST_TOKENS_U16, 4, "is a FIFO, wanted a regular file");
  refused("/dev/null", PST_TOKENS_U16, 4, "is a device, wanted a regular file");
  pst_tokens *t = NULL;
  assert_int_equal(open_as(at("absent.txt"), PST_TOKENS_AUTO, 4, &t), PST_IO);
  assert_non_null(strstr(pst_error(), "absent.txt"));
  assert_null(t);
}

static void formats_are_picked_or_asked_for(void **state) {
  unsigned char raw[2048];
  size_t n = encode(raw, some, N_SOME, 2);
  refused(put("plain.bin", raw, n), PST_TOKENS_AUTO, 4, "wanted format u16, u32 or nanogpt declared");
  refused(put("plain.BIN", raw, n), PST_TOKENS_AUTO, 4, "wanted format u16, u32 or nanogpt declared");
  refused(put("plain.bin", raw, n), PST_TOKENS_LLMC, 4, "does not begin with its magic number");
  refused(put("plain.dat", raw, n), PST_TOKENS_AUTO, 4, "byte 1 is zero, wanted a format declared");
  n = encode_llmc(raw, 20240520, 1, N_SOME, 2);
  refused(put("h.bin", raw, n), PST_TOKENS_U16, 4, "begins with llm.c's header but is declared as u16");
  pst_tokens_format format;
  for (int f = 0; f < PST_TOKENS_FORMAT_COUNT; f++) {
    assert_int_equal(pst_tokens_format_parse(pst_tokens_format_name((pst_tokens_format)f), &format), PST_OK);
    assert_int_equal(format, f);
  }
  assert_int_equal(pst_tokens_format_parse("u64", &format), PST_INVALID);
}

static void headers_at_odds_with_the_file_are_refused(void **state) {
  unsigned char raw[2048];
  size_t n = encode_llmc(raw, 20240520, 1, N_SOME, 2);
  refused(put("h1.bin", raw, n - 1), PST_TOKENS_AUTO, 4,
          "header counts 10 tokens of 2 bytes, so 1044 bytes, but the file has 1043");
  refused(put("h2.bin", raw, n + 2), PST_TOKENS_AUTO, 4, "but the file has 1046");
  refused(put("h3.bin", raw, 1023), PST_TOKENS_AUTO, 4, "1023 bytes, wanted llm.c's header of 1024");
  refused(put("h4.bin", raw, 4), PST_TOKENS_AUTO, 4, "4 bytes, wanted llm.c's header of 1024");
  n = encode_llmc(raw, 20240520, 7, N_SOME, 2);
  refused(put("h5.bin", raw, n), PST_TOKENS_AUTO, 4, "version 7, wanted 1");
  n = encode_llmc(raw, 20240801, 7, 0xffffffff, 4);
  refused(put("h6.bin", raw, n), PST_TOKENS_AUTO, 4, "header counts 4294967295 tokens");
  n = encode_llmc(raw, 20240801, 7, N_SOME, 2);
  refused(put("h7.bin", raw, n), PST_TOKENS_AUTO, 4, "header counts 10 tokens of 4 bytes");
  n = encode_llmc(raw, 20240520, 1, 0, 2);
  refused(put("h8.bin", raw, 1024), PST_TOKENS_AUTO, 4, "0 tokens, needs at least 5");
}

static void the_wrong_width_is_noticed(void **state) {
  unsigned char raw[256];
  uint32_t ids[40];
  for (uint32_t i = 0; i < 40; i++) ids[i] = i * 37 % 500;
  size_t n = encode(raw, ids, 40, 4);
  refused(put("w4.bin", raw, n), PST_TOKENS_U16, 4, "a file of 32-bit ids? wanted u32");
  refused(put("w4.bin", raw, n), PST_TOKENS_NANOGPT, 4, "a file of 32-bit ids? wanted u32");
  n = encode(raw, ids + 1, 38, 2);
  refused(put("w2.bin", raw, n), PST_TOKENS_U32, 4, "a file of 16-bit ids? wanted u16");
  /* a zero in an odd place hides that from open, not from the check */
  ids[4] = 0;
  n = encode(raw, ids + 1, 38, 2);
  pst_tokens *t = opened(put("w2.bin", raw, n), PST_TOKENS_U32, 4);
  assert_int_equal(pst_tokens_check(t, 70000), PST_INVALID);
  assert_non_null(strstr(pst_error(), "is it a u16 file?"));
  pst_tokens_close(t);
  /* nothing but zeros is no evidence */
  memset(raw, 0, sizeof raw);
  pst_tokens_close(opened(put("zeros.bin", raw, sizeof raw), PST_TOKENS_U16, 4));
}

static void ids_are_never_wrapped(void **state) {
  unsigned char raw[64];
  pst_tokens *t = opened(put("v.bin", raw, encode(raw, some, N_SOME, 2)), PST_TOKENS_U16, 4);
  assert_int_equal(pst_tokens_check(t, 70000), PST_INVALID);
  assert_non_null(strstr(pst_error(), "16-bit ids, which cannot name a vocabulary of 70000"));
  assert_int_equal(pst_tokens_check(t, 65536), PST_OK);
  assert_int_equal(pst_tokens_check(t, 65535), PST_INVALID);
  assert_non_null(strstr(pst_error(), "v.bin: token 1 has id 65535, wanted below the vocabulary 65535"));
  assert_int_equal(pst_tokens_check(t, 0), PST_INVALID);
  assert_int_equal(pst_tokens_check(t, INT64_C(1) << 31), PST_INVALID);
  pst_tokens_close(t);
  uint32_t wide[] = {1, 70000, 69999, 0xffffffffu, 5};
  t = opened(put("v4.bin", raw, encode(raw, wide, 5, 4)), PST_TOKENS_U32, 4);
  assert_int_equal(pst_tokens_check(t, 70000), PST_INVALID);
  assert_non_null(strstr(pst_error(), "token 1 has id 70000"));
  assert_int_equal(pst_tokens_check(t, INT32_MAX), PST_INVALID);
  assert_non_null(strstr(pst_error(), "token 3 has id 4294967295"));
  pst_tokens_close(t);
}

/* One id equal to the vocabulary, anywhere, in every width. */
static void a_single_bad_id_is_found_where_it_is(void **state) {
  enum { N = 20000, VOCAB = 97 };
  static const int64_t places[] = {0, 1234, 4095, 4096, 12287, N - 1};
  static const pst_tokens_format format_of[] = {PST_TOKENS_TEXT, PST_TOKENS_U16, PST_TOKENS_U32};
  uint32_t *ids = malloc(N * sizeof *ids);
  unsigned char *raw = malloc(N * 4);
  assert_non_null(ids);
  assert_non_null(raw);
  for (int w = 0; w < 3; w++) {
    for (size_t p = 0; p < sizeof places / sizeof *places; p++) {
      char want[96];
      for (uint32_t i = 0; i < N; i++) ids[i] = i % VOCAB;
      pst_tokens *t = opened(put("x.bin", raw, encode(raw, ids, N, 1 << w)), format_of[w], 32);
      assert_int_equal(pst_tokens_check(t, VOCAB), PST_OK);
      pst_tokens_close(t);
      ids[places[p]] = VOCAB;
      t = opened(put("x.bin", raw, encode(raw, ids, N, 1 << w)), format_of[w], 32);
      assert_int_equal(pst_tokens_check(t, VOCAB), PST_INVALID);
      snprintf(want, sizeof want, "x.bin: token %lld has id 97, wanted below the vocabulary 97",
               (long long)places[p]);
      assert_non_null(strstr(pst_error(), want));
      pst_tokens_close(t);
    }
  }
  free(raw);
  free(ids);
}

static void the_hash_tells_data_apart(void **state) {
  const char *paths[] = {put("q1.txt", "abc", 3), put("q2.txt", "defgh", 5)};
  pst_tokens_options both = {.paths = paths, .n_paths = 2, .sequence = 4};
  pst_tokens *t = NULL;
  assert_int_equal(pst_tokens_open(&both, &t), PST_OK);
  uint64_t hash = pst_tokens_hash(t);
  pst_tokens_close(t);
  t = opened(put("q3.txt", "abcdefgh", 8), PST_TOKENS_AUTO, 4);
  assert_true(pst_tokens_hash(t) == hash);
  pst_tokens_close(t);
  t = opened(put("q3.txt", "abcdefgi", 8), PST_TOKENS_AUTO, 4);
  assert_true(pst_tokens_hash(t) != hash);
  pst_tokens_close(t);
  t = opened(put("q3.txt", "abcdefgh", 8), PST_TOKENS_U16, 3);
  assert_true(pst_tokens_hash(t) != hash);
  pst_tokens_close(t);
}

static void windows_end_with_ignored_targets(void **state) {
  pst_tokens *t = opened(put("win.txt", "0123456789", 10), PST_TOKENS_AUTO, 4);
  pst_tokens_view train, valid;
  assert_int_equal(pst_tokens_split(t, 0.5, 4, &train, &valid), PST_OK);
  assert_true(train.first == 0 && train.count == 5 && valid.first == 5 && valid.count == 5);
  int32_t ids[4], targets[4];
  assert_int_equal(pst_tokens_window(&train, 0, 4, ids, targets), 4);
  assert_memory_equal(ids, ((int32_t[]){'0', '1', '2', '3'}), sizeof ids);
  assert_memory_equal(targets, ((int32_t[]){'1', '2', '3', '4'}), sizeof ids);
  assert_int_equal(pst_tokens_window(&train, 2, 4, ids, targets), 2);
  assert_memory_equal(ids, ((int32_t[]){'2', '3', 0, 0}), sizeof ids);
  assert_memory_equal(targets, ((int32_t[]){'3', '4', -1, -1}), sizeof ids);
  assert_int_equal(pst_tokens_window(&valid, 1, 4, ids, targets), 3);
  assert_memory_equal(targets, ((int32_t[]){'7', '8', '9', -1}), sizeof ids);
  int64_t none[] = {4, 5, 100, -1, INT64_MIN};
  for (int i = 0; i < 5; i++) {
    assert_int_equal(pst_tokens_window(&train, none[i], 4, ids, targets), 0);
    assert_memory_equal(ids, ((int32_t[]){0, 0, 0, 0}), sizeof ids);
    assert_memory_equal(targets, ((int32_t[]){-1, -1, -1, -1}), sizeof ids);
  }
  assert_int_equal(pst_tokens_split(t, 0.4, 4, &train, &valid), PST_INVALID);
  assert_non_null(
      strstr(pst_error(), "leaves 6 tokens to train on and 4 to validate, each needs at least 5"));
  double bad[] = {0, 1, -1, 2, 0.0 / 0.0};
  for (int i = 0; i < 5; i++) assert_int_equal(pst_tokens_split(t, bad[i], 1, &train, &valid), PST_INVALID);
  pst_tokens_close(t);
}

static void the_stories_file_is_read(void **state) {
  const char *data = getenv("PENSTOCK_TEST_DATA");
  char path[1024];
  snprintf(path, sizeof path, "%s/stories260k/stories.u16.bin",
           data ? data : PENSTOCK_SOURCE_DIR "/../shared/data");
  if (access(path, R_OK) != 0) {
    print_message("skipped: no %s (PENSTOCK_TEST_DATA says where it is)\n", path);
    skip();
  }
  pst_tokens *t = opened(path, PST_TOKENS_U16, 256);
  assert_int_equal(pst_tokens_count(t), 181878);
  assert_int_equal(pst_tokens_check(t, 512), PST_OK);
  int32_t ids[4];
  pst_tokens_read(t, 0, 4, ids);
  assert_memory_equal(ids, ((int32_t[]){1, 403, 407, 261}), sizeof ids);
  pst_tokens_close(t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_format_is_read),
      cmocka_unit_test(several_files_are_read_as_one),
      cmocka_unit_test(sizes_are_judged_with_need_and_have),
      cmocka_unit_test(only_regular_files_are_taken),
      cmocka_unit_test(formats_are_picked_or_asked_for),
      cmocka_unit_test(headers_at_odds_with_the_file_are_refused),
      cmocka_unit_test(the_wrong_width_is_noticed),
      cmocka_unit_test(ids_are_never_wrapped),
      cmocka_unit_test(a_single_bad_id_is_found_where_it_is),
      cmocka_unit_test(the_hash_tells_data_apart),
      cmocka_unit_test(windows_end_with_ignored_targets),
      cmocka_unit_test(the_stories_file_is_read),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
