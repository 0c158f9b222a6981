#include "core/checkpoint/safetensors.h"

#include "core/base/file.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#ifndef PENSTOCK_SOURCE_DIR
#define PENSTOCK_SOURCE_DIR "."
#endif

static char base[64];

static int make_base(void **state) {
  snprintf(base, sizeof base, "/tmp/pst_tensors_XXXXXX");
  return mkdtemp(base) ? 0 : -1;
}

static int remove_base(void **state) {
  return pst_dir_remove("/tmp", base + strlen("/tmp/")) == PST_OK ? 0 : -1;
}

static char *at(const char *name) {
  char *path = NULL;
  assert_int_equal(pst_path_join(base, name, &path), PST_OK);
  return path;
}

#define OK(expr)                                                                                             \
  do {                                                                                                       \
    if ((expr) != PST_OK) fail_msg("%s: %s", #expr, pst_error());                                            \
  } while (0)

/* A file with this header text (its length field `length`) and n zero bytes of data. */
static void write_raw(const char *path, uint64_t length, const char *header, size_t header_bytes, size_t n) {
  size_t total = 8 + header_bytes + n;
  unsigned char *bytes = calloc(1, total);
  assert_non_null(bytes);
  for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(length >> 8 * i);
  memcpy(bytes + 8, header, header_bytes);
  OK(pst_file_write(path, bytes, total));
  free(bytes);
}

static void expect_refused(const char *path, const char *label, const char *const *words) {
  pst_safetensors *set = NULL;
  pst_status st = pst_safetensors_open(path, &set);
  if (st != PST_INVALID) fail_msg("%.200s: status %s", label, pst_status_name(st));
  assert_null(set);
  if (!strstr(pst_error(), path)) fail_msg("%.200s: \"%s\" lacks the path", label, pst_error());
  for (; *words; words++)
    if (!strstr(pst_error(), *words)) fail_msg("%.200s: \"%s\" lacks \"%s\"", label, pst_error(), *words);
}

static void header_lengths_are_bounded_by_the_file(void **state) {
  char *path = at("a.safetensors");
  static const char at_most_data[] =
      "at most the data"; /* stands for the number that the file's size gives */
  const char *good = "{\"t\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}";
  size_t n = strlen(good);
  const struct {
    uint64_t length;
    const char *words[4];
  } rows[] = {
      {(uint64_t)1 << 63, {"header length is 9223372036854775808", "at most 100000000"}},
      {UINT64_MAX, {"header length is 18446744073709551615", "at most 100000000"}},
      {100000001, {"header length is 100000001", "at most 100000000"}},
      {0, {"header length is 0", "at least 2"}},
      {1, {"header length is 1", "at least 2"}},
      {7, {"no JSON"}},
      {n + 4, {"no JSON"}},                         /* file size - 8: the data are taken for header */
      {n + 5, {"header length is", at_most_data}},  /* one beyond */
      {n + 12, {"header length is", at_most_data}}, /* file size */
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char limit[32], label[32];
    const char *words[4] = {rows[i].words[0], rows[i].words[1], NULL};
    snprintf(limit, sizeof limit, "at most %zu", n + 4);
    snprintf(label, sizeof label, "length %llu", (unsigned long long)rows[i].length);
    if (words[1] == at_most_data) words[1] = limit;
    write_raw(path, rows[i].length, good, n, 4);
    expect_refused(path, label, words);
  }
  for (size_t bytes = 0; bytes < 8; bytes++) {
    OK(pst_file_write(path, "\0\0\0\0\0\0\0", bytes));
    expect_refused(path, "short file", (const char *[]){"wanted at least the 8", NULL});
  }
  write_raw(path, n, good, n, 4);
  pst_safetensors *set = NULL;
  OK(pst_safetensors_open(path, &set));
  pst_safetensors_close(set);
  free(path);
}

/* Every row is one header over 16 bytes of data; the message has to hold the words. */
static void headers_that_lie_are_refused_by_tensor_name(void **state) {
  static const struct {
    const char *header;
    const char *words[4];
  } rows[] = {
#define T(dtype, shape, offsets)                                                                             \
  "{\"t\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
      {T("\"F32\"", "[4]", "[16,0]"), {"\"t\"", "[16, 0]", "begin <= end"}},
      {T("\"F32\"", "[4]", "[-8,0]"), {"\"t\"", "data_offsets[0] is -8", "at least 0"}},
      {T("\"F32\"", "[4]", "[0,18446744073709551608]"), {"\"t\"", "too big integer"}},
      {T("\"F32\"", "[4]", "[0,9223372036854775807]"), {"\"t\"", "9223372036854775807", "16 bytes of data"}},
      {T("\"F32\"", "[4]", "[0,17]"), {"\"t\"", "[0, 17]", "16 bytes of data"}},
      {T("\"F32\"", "[4]", "[0,15]"), {"\"t\"", "15 bytes", "wanted 16"}},
      {T("\"F32\"", "[3]", "[0,16]"), {"\"t\"", "16 bytes", "wanted 12"}},
      {T("\"U8\"", "[15]", "[0,15]"), {"1 bytes after the last tensor", "\"t\""}},
      {T("\"U8\"", "[15]", "[1,16]"), {"\"t\"", "byte 1", "wanted 0", "hole"}},
      {T("\"X32\"", "[4]", "[0,16]"), {"\"t\"", "\"X32\"", "BF16"}},
      {T("7", "[4]", "[0,16]"), {"\"t\"", "dtype"}},
      {T("\"F32\"", "[4294967296,4294967296]", "[0,16]"), {"\"t\"", "overflows", "4294967296"}},
      {T("\"F32\"", "[0,4294967296,4294967296]", "[0,0]"), {"\"t\"", "overflows"}},
      {T("\"U8\"", "[0,9223372036854775808]", "[0,0]"), {"\"t\"", "too big integer"}},
      {T("\"F32\"", "[1,1,1,1,1,1,1,1,4]", "[0,16]"), {"\"t\"", "9 dimensions", "at most 8"}},
      {T("\"F32\"", "[1e3]", "[0,16]"), {"\"t\"", "1000 written as a real", "plain integer"}},
      {T("\"F32\"", "[4.0]", "[0,16]"), {"\"t\"", "written as a real"}},
      {T("\"F32\"", "[4]", "[-0,16]"), {"\"t\"", "-0", "wanted 0"}},
      {T("\"F32\"", "[\"4\"]", "[0,16]"), {"\"t\"", "no number"}},
      {T("\"F32\"", "4", "[0,16]"), {"\"t\"", "shape"}},
      {T("\"F32\"", "[4]", "[0]"), {"\"t\"", "data_offsets"}},
      {T("\"F32\"", "[4]", "[0,16],\"x\":1"), {"\"t\"", "\"x\""}},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":[4]}}", {"\"t\"", "data_offsets"}},
      {"{\"t\":[]}", {"\"t\"", "no JSON object"}},
      {"{\"t\":{\"dtype\":\"U8\",\"shape\":[10],\"data_offsets\":[0,10]},"
       "\"u\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[8,16]}}",
       {"\"u\"", "byte 8", "inside tensor \"t\"", "10"}},
      {"{\"t\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
       "\"u\":{\"dtype\":\"U8\",\"shape\":[6],\"data_offsets\":[10,16]}}",
       {"\"u\"", "byte 10", "wanted 8"}},
      {"{\"t\":{\"dtype\":\"U8\",\"shape\":[16],\"data_offsets\":[0,16]},"
       "\"u\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[3,3]}}",
       {"\"u\"", "inside tensor \"t\""}},
      {"{\"t\":{\"dtype\":\"U8\",\"shape\":[16],\"data_offsets\":[0,16]},"
       "\"t\":{\"dtype\":\"U8\",\"shape\":[16],\"data_offsets\":[0,16]}}",
       {"\"t\"", "duplicate"}},
      {"{\"__metadata__\":{\"a\":1}}", {"__metadata__", "\"a\"", "no string"}},
      {"{\"__metadata__\":[]}", {"__metadata__"}},
      {" {}", {"0x20", "'{'"}},
      {"[]", {"0x5b", "'{'"}},
      {"{}x", {"no JSON"}},
      {"{}", {"16 bytes after the last tensor"}},
      {"{\"t\\u0000\":1}", {"no JSON"}},
#undef T
  };
  char *path = at("b.safetensors");
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const char *words[5] = {rows[i].words[0], rows[i].words[1], rows[i].words[2], rows[i].words[3], NULL};
    write_raw(path, strlen(rows[i].header), rows[i].header, strlen(rows[i].header), 16);
    expect_refused(path, rows[i].header, words);
  }
  free(path);
}

static void deep_nesting_and_many_dimensions_are_refused(void **state) {
  enum { DEPTH = 1000000 };
  char *path = at("c.safetensors"), *header = malloc(DEPTH + 8);
  assert_non_null(header);
  memcpy(header, "{\"t\":", 5);
  memset(header + 5, '[', DEPTH);
  write_raw(path, DEPTH + 5, header, DEPTH + 5, 16);
  expect_refused(path, "deep nesting", (const char *[]){"\"t\"", "depth", NULL});

  char *end = header + sprintf(header, "{\"t\":{\"dtype\":\"F32\",\"shape\":[4");
  for (int i = 0; i < 69; i++) end += sprintf(end, ",1");
  sprintf(end, "],\"data_offsets\":[0,16]}}");
  write_raw(path, strlen(header), header, strlen(header), 16);
  expect_refused(path, "70 dimensions", (const char *[]){"\"t\"", "70 dimensions", NULL});
  free(header);
  free(path);
}

/* The three small tensors that several tests use. */
static void write_small(const char *path, uint64_t *out_checksum) {
  const float a[6] = {1, 2, 3, 4, 5, 6};
  const uint16_t b[3] = {0x3f80, 0xc000, 0x7f80}; /* 1, -2, infinity */
  const double c = 0.5;
  pst_safetensors_writer *w = NULL;
  OK(pst_safetensors_writer_create(path, &w));
  OK(pst_safetensors_writer_metadata(w, "format", "pt"));
  OK(pst_safetensors_writer_declare(w, "a", PST_F32, 2, (const int64_t[]){2, 3}));
  OK(pst_safetensors_writer_declare(w, "empty", PST_F32, 2, (const int64_t[]){0, 3}));
  OK(pst_safetensors_writer_declare(w, "\xc3\xa9\"\\\n", PST_BF16, 1, (const int64_t[]){3}));
  OK(pst_safetensors_writer_declare(w, "scalar", PST_F64, 0, NULL));
  const char *bytes = (const char *)a;
  OK(pst_safetensors_writer_write(w, "a", bytes, 1));
  OK(pst_safetensors_writer_write(w, "a", bytes + 1, 20));
  OK(pst_safetensors_writer_write(w, "a", bytes + 21, 3));
  OK(pst_safetensors_writer_write(w, "\xc3\xa9\"\\\n", b, sizeof b));
  OK(pst_safetensors_writer_write(w, "scalar", &c, sizeof c));
  assert_int_not_equal(access(path, F_OK), 0); /* not there before it is finished */
  OK(pst_safetensors_writer_finish(w, out_checksum));
  pst_safetensors_writer_destroy(w);
}

static void what_is_written_is_read_back(void **state) {
  char *path = at("d.safetensors");
  uint64_t checksum = 0, seen = 0, bytes = 0;
  write_small(path, &checksum);
  OK(pst_file_hash(path, &bytes, &seen));
  assert_true(checksum == seen);

  pst_safetensors *set = NULL;
  OK(pst_safetensors_open(path, &set));
  assert_int_equal(pst_safetensors_count(set), 4);
  assert_string_equal(pst_safetensors_metadata(set, "format"), "pt");
  assert_null(pst_safetensors_metadata(set, "a"));
  assert_null(pst_safetensors_find(set, "b"));
  assert_string_equal(pst_safetensors_at(set, 0)->name, "a");
  const pst_safetensors_tensor *a = pst_safetensors_find(set, "a");
  assert_int_equal(a->offset % 8, 0);
  assert_int_equal(a->elements, 6);
  assert_int_equal(a->dims[1], 3);
  float values[6];
  OK(pst_safetensors_read_f32(set, a, 2, 4, values));
  assert_true(values[0] == 3.0f && values[3] == 6.0f);
  assert_int_equal(pst_safetensors_read_f32(set, a, 3, 4, values), PST_INVALID);
  assert_non_null(strstr(pst_error(), "\"a\""));
  assert_int_equal(pst_safetensors_read(set, a, UINT64_MAX, 2, values), PST_INVALID);
  const pst_safetensors_tensor *b = pst_safetensors_find(set, "\xc3\xa9\"\\\n");
  assert_non_null(b);
  assert_int_equal(b->dtype, PST_BF16);
  OK(pst_safetensors_read_f32(set, b, 0, 2, values));
  assert_true(values[0] == 1.0f && values[1] == -2.0f);
  const pst_safetensors_tensor *scalar = pst_safetensors_find(set, "scalar");
  assert_int_equal(scalar->n_dims, 0);
  OK(pst_safetensors_read_f32(set, scalar, 0, 1, values));
  assert_true(values[0] == 0.5f);
  assert_int_equal(pst_safetensors_find(set, "empty")->bytes, 0);
  pst_safetensors_close(set);

  assert_int_equal(truncate(path, (off_t)bytes - 1), 0);
  expect_refused(path, "truncated by 1 byte",
                 (const char *[]){"\"scalar\"", "bytes of data in the file", NULL});
  free(path);
}

/* More than one internal piece, from a start that is no piece's. */
static void long_tensors_convert_from_any_element(void **state) {
  enum { N = 100000 };
  const pst_dtype floats[] = {PST_BF16, PST_F16, PST_F64};
  char *path = at("long.safetensors");
  float *values = malloc(2 * N * sizeof *values), *back = values + N;
  double *stored = malloc(N * sizeof *stored);
  assert_true(values && stored);
  for (int i = 0; i < N; i++) values[i] = (float)(i % 251) - 125.0f; /* exact in each of the dtypes */
  for (size_t d = 0; d < sizeof floats / sizeof *floats; d++) {
    pst_safetensors_writer *w = NULL;
    pst_safetensors *set = NULL;
    OK(pst_safetensors_writer_create(path, &w));
    OK(pst_safetensors_writer_declare(w, "x", floats[d], 1, (const int64_t[]){N}));
    assert_true(pst_dtype_from_f32(floats[d], values, N, stored));
    OK(pst_safetensors_writer_write(w, "x", stored, N * pst_dtype_size(floats[d])));
    OK(pst_safetensors_writer_finish(w, NULL));
    pst_safetensors_writer_destroy(w);
    OK(pst_safetensors_open(path, &set));
    OK(pst_safetensors_read_f32(set, pst_safetensors_find(set, "x"), 7, N - 7, back));
    assert_memory_equal(back, values + 7, (N - 7) * sizeof *values);
    pst_safetensors_close(set);
  }
  free(values);
  free(stored);
  free(path);
}

static void dtypes_of_the_format_beyond_ours_are_listed_not_read(void **state) {
  const char *header = "{\"mask\":{\"dtype\":\"BOOL\",\"shape\":[2,4],\"data_offsets\":[0,8]},"
                       "\"ids\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[8,16]}}  ";
  char *path = at("e.safetensors");
  pst_safetensors *set = NULL;
  float value;
  write_raw(path, strlen(header), header, strlen(header), 16);
  OK(pst_safetensors_open(path, &set));
  assert_int_equal(pst_safetensors_find(set, "mask")->dtype, PST_DTYPE_COUNT);
  assert_int_equal(pst_safetensors_read_f32(set, pst_safetensors_find(set, "mask"), 0, 1, &value),
                   PST_UNSUPPORTED);
  assert_int_equal(pst_safetensors_read_f32(set, pst_safetensors_find(set, "ids"), 0, 1, &value),
                   PST_UNSUPPORTED);
  assert_non_null(strstr(pst_error(), "\"ids\": dtype is I64"));
  pst_safetensors_close(set);
  free(path);
}

static void the_writer_refuses_what_the_reader_would(void **state) {
  char *path = at("f.safetensors");
  pst_safetensors_writer *w = NULL;
  const int64_t two[1] = {2}, negative[1] = {-1}, huge[2] = {INT64_C(1) << 32, INT64_C(1) << 31};
  const int64_t nine[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
  OK(pst_safetensors_writer_create(path, &w));
  OK(pst_safetensors_writer_declare(w, "a", PST_F32, 1, two));
  OK(pst_safetensors_writer_declare(w, "b", PST_F32, 1, two));
  assert_int_equal(pst_safetensors_writer_declare(w, "a", PST_F32, 1, two), PST_INVALID);
  assert_int_equal(pst_safetensors_writer_declare(w, "", PST_F32, 1, two), PST_INVALID);
  assert_int_equal(pst_safetensors_writer_declare(w, "__metadata__", PST_F32, 1, two), PST_INVALID);
  assert_int_equal(pst_safetensors_writer_declare(w, "\xff", PST_F32, 1, two), PST_INVALID);
  assert_int_equal(pst_safetensors_writer_declare(w, "c", PST_DTYPE_COUNT, 1, two), PST_INVALID);
  assert_int_equal(pst_safetensors_writer_declare(w, "c", PST_F32, 1, negative), PST_INVALID);
  assert_int_equal(pst_safetensors_writer_declare(w, "c", PST_F32, 2, huge), PST_INVALID);
  assert_int_equal(pst_safetensors_writer_declare(w, "c", PST_F32, 9, nine), PST_INVALID);
  assert_int_equal(pst_safetensors_writer_metadata(w, "k", "\xff"), PST_INVALID);

  assert_int_equal(pst_safetensors_writer_write(w, "b", "1234", 4), PST_INVALID);
  assert_non_null(strstr(pst_error(), "wanted \"a\""));
  assert_int_equal(pst_safetensors_writer_write(w, "a", "123456789", 9), PST_INVALID);
  assert_int_equal(pst_safetensors_writer_declare(w, "late", PST_F32, 1, two), PST_INVALID);
  OK(pst_safetensors_writer_write(w, "a", "12345678", 8));
  OK(pst_safetensors_writer_write(w, "b", "1234", 4));
  assert_int_equal(pst_safetensors_writer_finish(w, NULL), PST_INVALID);
  assert_non_null(strstr(pst_error(), "\"b\": has 4 bytes, wanted 8"));
  pst_safetensors_writer_destroy(w);
  char **names = NULL;
  size_t n = 0;
  OK(pst_dir_list(base, &names, &n));
  assert_int_equal(n, 0); /* neither the file nor a temporary */
  pst_dir_list_free(names, n);
  free(path);
}

static void a_header_above_the_limit_is_not_written(void **state) {
  enum { NAME = 1000000 };
  char *path = at("g.safetensors"), *name = malloc(NAME + 1);
  pst_safetensors_writer *w = NULL;
  assert_non_null(name);
  memset(name, 'n', NAME);
  name[NAME] = 0;
  OK(pst_safetensors_writer_create(path, &w));
  for (int i = 0; i < 100; i++) {
    snprintf(name, NAME, "%03d", i);
    name[3] = 'n';
    OK(pst_safetensors_writer_declare(w, name, PST_U8, 1, (const int64_t[]){0}));
  }
  assert_int_equal(pst_safetensors_writer_finish(w, NULL), PST_INVALID);
  assert_non_null(strstr(pst_error(), "wanted at most 100000000"));
  pst_safetensors_writer_destroy(w);
  assert_int_not_equal(access(path, F_OK), 0);
  free(name);
  free(path);
}

static void shards_are_one_set(void **state) {
  char *first = at("x-1.safetensors"), *second = at("x-2.safetensors"),
       *index = at("model.safetensors.index.json");
  write_small(first, NULL);
  pst_safetensors_writer *w = NULL;
  OK(pst_safetensors_writer_create(second, &w));
  OK(pst_safetensors_writer_declare(w, "z", PST_U8, 1, (const int64_t[]){3}));
  OK(pst_safetensors_writer_declare(w, "a", PST_U8, 1, (const int64_t[]){1}));
  OK(pst_safetensors_writer_write(w, "z", "xyz", 3));
  OK(pst_safetensors_writer_write(w, "a", "!", 1));
  OK(pst_safetensors_writer_finish(w, NULL));
  pst_safetensors_writer_destroy(w);

  const char *text = "{\"metadata\":{\"total_size\":9},\"weight_map\":{\"a\":\"x-1.safetensors\","
                     "\"z\":\"x-2.safetensors\"}}";
  pst_safetensors *set = NULL;
  OK(pst_file_write(index, text, strlen(text)));
  OK(pst_safetensors_open(base, &set)); /* by directory */
  assert_int_equal(pst_safetensors_count(set), 2);
  assert_int_equal(pst_safetensors_find(set, "a")->dtype, PST_F32); /* where the map says */
  char z[3];
  OK(pst_safetensors_read(set, pst_safetensors_find(set, "z"), 0, 3, z));
  assert_memory_equal(z, "xyz", 3);
  assert_string_equal(pst_safetensors_path(set, pst_safetensors_find(set, "z")->file), second);
  pst_safetensors_close(set);

  static const struct {
    const char *text, *word;
  } bad[] = {
      {"{\"weight_map\":{\"q\":\"x-1.safetensors\"}}", "\"q\": is not in"},
      {"{\"weight_map\":{\"a\":\"../x-1.safetensors\"}}", "beside the index"},
      {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "beside the index"},
      {"{\"weight_map\":{\"a\":\"\"}}", "beside the index"},
      {"{\"weight_map\":{\"a\":3}}", "no string"},
      {"{\"weight_map\":{}}", "empty"},
      {"{}", "missing"},
      {"[", "index.json:1"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    OK(pst_file_write(index, bad[i].text, strlen(bad[i].text)));
    expect_refused(index, bad[i].text, (const char *[]){bad[i].word, NULL});
  }
  text = "{\"weight_map\":{\"a\":\"none.safetensors\"}}";
  OK(pst_file_write(index, text, strlen(text)));
  assert_int_equal(pst_safetensors_open(index, &set), PST_IO);
  assert_int_equal(unlink(index), 0);
  assert_int_equal(pst_safetensors_open(base, &set), PST_INVALID);
  assert_non_null(strstr(pst_error(), "holds neither"));
  free(first), free(second), free(index);
}

/* Sizes and offsets beyond 32 bits, on a file with a hole in it that takes no disk. */
static void a_tensor_above_4_gib_is_found_and_read(void **state) {
  const char *header = "{\"big\":{\"dtype\":\"U8\",\"shape\":[5000000000],\"data_offsets\":[0,5000000000]},"
                       "\"end\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[5000000000,5000000004]}}";
  char *path = at("h.safetensors");
  uint64_t end = 8 + strlen(header) + 5000000000u;
  int fd = -1;
  write_raw(path, strlen(header), header, strlen(header), 0);
  fd = open(path, O_WRONLY);
  assert_true(fd >= 0);
  if (pst_file_pwrite(fd, "tail", 4, end, path) != PST_OK) {
    close(fd);
    free(path);
    print_message("skipped: this file system has no files above 4 GiB: %s\n", pst_error());
    skip();
  }
  close(fd);
  pst_safetensors *set = NULL;
  char tail[4];
  OK(pst_safetensors_open(path, &set));
  assert_true(pst_safetensors_find(set, "big")->elements == 5000000000u);
  OK(pst_safetensors_read(set, pst_safetensors_find(set, "end"), 0, 4, tail));
  assert_memory_equal(tail, "tail", 4);
  OK(pst_safetensors_read(set, pst_safetensors_find(set, "big"), 4999999999u, 1, tail));
  assert_int_equal(tail[0], 0);
  pst_safetensors_close(set);
  free(path);
}

static void what_is_no_file_is_refused(void **state) {
  char *fifo = at("i.safetensors");
  pst_safetensors *set = NULL;
  assert_int_equal(mkfifo(fifo, 0600), 0);
  assert_int_equal(pst_safetensors_open(fifo, &set), PST_INVALID);
  assert_non_null(strstr(pst_error(), "a FIFO"));
  assert_int_equal(pst_safetensors_open("/nonexistent/model.safetensors", &set), PST_IO);
  pst_safetensors_close(NULL);
  pst_safetensors_writer_destroy(NULL);
  free(fifo);
}

static void a_real_directory_opens(void **state) {
  const char *data = getenv("PENSTOCK_TEST_DATA");
  char path[4096];
  snprintf(path, sizeof path, "%s/stories260k", data ? data : PENSTOCK_SOURCE_DIR "/../shared/data");
  if (access(path, R_OK) != 0) {
    print_message("skipped: %s is not there\n", path);
    skip();
  }
  pst_safetensors *set = NULL;
  OK(pst_safetensors_open(path, &set));
  const pst_safetensors_tensor *table = pst_safetensors_find(set, "model.embed_tokens.weight");
  assert_non_null(table);
  assert_int_equal(table->n_dims, 2);
  assert_int_equal(table->dims[0], 512);
  assert_int_equal(table->dims[1], 64);
  float *values = malloc(table->elements * sizeof *values);
  assert_non_null(values);
  OK(pst_safetensors_read_f32(set, table, 0, table->elements, values));
  double squares = 0;
  for (uint64_t i = 0; i < table->elements; i++) squares += (double)values[i] * values[i];
  assert_true(squares > 1.0 && squares < 1e6);
  free(values);
  pst_safetensors_close(set);
}

#define IN_BASE(test) cmocka_unit_test_setup_teardown(test, make_base, remove_base)

int main(void) {
  const struct CMUnitTest tests[] = {
      IN_BASE(header_lengths_are_bounded_by_the_file),
      IN_BASE(headers_that_lie_are_refused_by_tensor_name),
      IN_BASE(deep_nesting_and_many_dimensions_are_refused),
      IN_BASE(what_is_written_is_read_back),
      IN_BASE(long_tensors_convert_from_any_element),
      IN_BASE(dtypes_of_the_format_beyond_ours_are_listed_not_read),
      IN_BASE(the_writer_refuses_what_the_reader_would),
      IN_BASE(a_header_above_the_limit_is_not_written),
      IN_BASE(shards_are_one_set),
      IN_BASE(a_tensor_above_4_gib_is_found_and_read),
      IN_BASE(what_is_no_file_is_refused),
      cmocka_unit_test(a_real_directory_opens),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
