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

static char base[64];

static int make_base(void **state) {
  snprintf(base, sizeof base, "/tmp/pst_file_XXXXXX");
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

static void write_and_read_back(void **state) {
  char *path = at("text"), *text = NULL;
  size_t n = 0;
  assert_int_equal(pst_file_write(path, "first version", 13), PST_OK);
  assert_int_equal(pst_file_write(path, "two\0", 4), PST_OK);
  assert_int_equal(pst_file_read(path, 4, &text, &n), PST_OK);
  assert_int_equal(n, 4);
  assert_memory_equal(text, "two\0\0", 5);
  free(text);

  char **names = NULL;
  assert_int_equal(pst_dir_list(base, &names, &n), PST_OK);
  assert_int_equal(n, 1); /* no temporary is left */
  pst_dir_list_free(names, n);

  assert_int_equal(pst_file_read(path, 3, &text, &n), PST_INVALID);
  assert_non_null(strstr(pst_error(), "holds 4 bytes, wanted at most 3"));
  assert_int_equal(pst_file_write(path, "", 0), PST_OK);
  assert_int_equal(pst_file_read(path, 0, &text, &n), PST_OK);
  assert_int_equal(n, 0);
  free(text);
  free(path);
}

static void what_is_no_regular_file_is_refused_at_once(void **state) {
  char *fifo = at("fifo"), *missing = at("missing");
  int fd = -1;
  assert_int_equal(mkfifo(fifo, 0600), 0);
  assert_int_equal(pst_file_open(fifo, &fd, NULL), PST_INVALID); /* an open that waits would hang here */
  assert_non_null(strstr(pst_error(), "FIFO"));
  assert_int_equal(pst_file_create(fifo, &fd), PST_INVALID);
  assert_int_equal(pst_file_open(base, &fd, NULL), PST_INVALID);
  assert_non_null(strstr(pst_error(), "directory"));
  assert_int_equal(pst_file_open("/dev/zero", &fd, NULL), PST_INVALID);
  assert_non_null(strstr(pst_error(), "device"));
  assert_int_equal(pst_file_open(missing, &fd, NULL), PST_IO);
  assert_non_null(strstr(pst_error(), missing));
  assert_int_equal(fd, -1);
  free(fifo);
  free(missing);
}

static void transfers_say_path_and_offset(void **state) {
  char *path = at("bytes");
  char buffer[16];
  int fd = -1;
  assert_int_equal(pst_file_create(path, &fd), PST_OK);
  assert_int_equal(pst_file_pwrite(fd, "0123456789", 10, 5, path), PST_OK);
  assert_int_equal(pst_file_pread(fd, buffer, 10, 5, path), PST_OK);
  assert_memory_equal(buffer, "0123456789", 10);
  assert_int_equal(pst_file_pread(fd, buffer, 10, 8, path), PST_IO);
  assert_non_null(strstr(pst_error(), "ends at offset 15, wanted 3 bytes more"));
  assert_int_equal(pst_file_pread(fd, buffer, 1, UINT64_MAX, path), PST_IO);
  close(fd);
  int full = open("/dev/full", O_WRONLY);
  assert_true(full >= 0);
  assert_int_equal(pst_file_pwrite(full, "x", 1, 77, "/dev/full"), PST_IO);
  assert_non_null(strstr(pst_error(), "offset 77: No space left"));
  close(full);
  free(path);
}

static void trees_are_made_listed_and_removed(void **state) {
  char *deep = at("a/b/c"), *inside = at("a/b/c/file"), *kept = at("kept"), *link_path = at("a/link");
  char **names = NULL;
  size_t n = 0;
  assert_int_equal(pst_dir_create(deep), PST_OK);
  assert_int_equal(pst_dir_create(deep), PST_OK);
  assert_int_equal(pst_file_write(inside, "x", 1), PST_OK);
  assert_int_equal(pst_dir_create(inside), PST_INVALID);
  assert_int_equal(pst_dir_create(kept), PST_OK);
  assert_int_equal(symlink(kept, link_path), 0);
  assert_int_equal(pst_dir_list(base, &names, &n), PST_OK);
  assert_int_equal(n, 2);
  assert_string_equal(names[0], "a");
  assert_string_equal(names[1], "kept");
  pst_dir_list_free(names, n);

  const char *const refused[] = {"", ".", "..", "a/b", "/"};
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
    assert_int_equal(pst_dir_remove(base, refused[i]), PST_INVALID);
  assert_int_equal(pst_dir_remove(base, "a"), PST_OK);
  assert_int_not_equal(access(deep, F_OK), 0);
  assert_int_equal(access(kept, F_OK), 0); /* the link went, its target did not */
  assert_int_equal(pst_dir_remove(base, "a"), PST_OK);
  free(deep), free(inside), free(kept), free(link_path);
}

static void a_published_directory_takes_the_place_of_the_old(void **state) {
  char *temp = at("temp"), *final = at("final"), *temp_file = at("temp/new"), *old_file = at("final/old");
  char *new_file = at("final/new");
  assert_int_equal(pst_dir_create(temp), PST_OK);
  assert_int_equal(pst_dir_create(final), PST_OK);
  assert_int_equal(pst_file_write(temp_file, "n", 1), PST_OK);
  assert_int_equal(pst_file_write(old_file, "o", 1), PST_OK);
  assert_int_equal(pst_dir_publish(temp, final), PST_OK);
  assert_int_equal(access(new_file, F_OK), 0);
  assert_int_not_equal(access(old_file, F_OK), 0);
  assert_int_not_equal(access(temp, F_OK), 0);
  free(temp), free(final), free(temp_file), free(old_file), free(new_file);
}

static void a_directory_is_locked_for_one(void **state) {
  int first = -1, second = -1;
  assert_int_equal(pst_dir_lock(base, &first), PST_OK);
  assert_int_equal(pst_dir_lock(base, &second), PST_INVALID);
  assert_int_equal(second, -1);
  close(first);
  assert_int_equal(pst_dir_lock(base, &second), PST_OK);
  close(second);
}

#define IN_BASE(test) cmocka_unit_test_setup_teardown(test, make_base, remove_base)

int main(void) {
  const struct CMUnitTest tests[] = {
      IN_BASE(write_and_read_back),
      IN_BASE(what_is_no_regular_file_is_refused_at_once),
      IN_BASE(transfers_say_path_and_offset),
      IN_BASE(trees_are_made_listed_and_removed),
      IN_BASE(a_published_directory_takes_the_place_of_the_old),
      IN_BASE(a_directory_is_locked_for_one),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
