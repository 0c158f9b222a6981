#include "core/checkpoint/directory.h"

#include "core/base/file.h"
#include "core/checkpoint/safetensors.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static char run[64];

static int make_run(void **state) {
  snprintf(run, sizeof run, "/tmp/pst_run_XXXXXX");
  return mkdtemp(run) ? 0 : -1;
}

static int remove_run(void **state) {
  return pst_dir_remove("/tmp", run + strlen("/tmp/")) == PST_OK ? 0 : -1;
}

#define OK(expr)                                                                                             \
  do {                                                                                                       \
    if ((expr) != PST_OK) fail_msg("%s: %s", #expr, pst_error());                                            \
  } while (0)

enum { VALUES = 20000 };

static pst_status write_tensors(pst_checkpoint_save *save, const char *name, float value) {
  char *path = NULL;
  uint64_t checksum = 0;
  pst_safetensors_writer *w = NULL;
  pst_status st = PST_OK;
  static float values[VALUES];
  for (int i = 0; i < VALUES; i++) values[i] = value;
  PST_GOTO(st, pst_checkpoint_save_path(save, name, &path), done);
  PST_GOTO(st, pst_safetensors_writer_create(path, &w), done);
  PST_GOTO(st, pst_safetensors_writer_declare(w, "x", PST_F32, 1, (const int64_t[]){VALUES}), done);
  PST_GOTO(st, pst_safetensors_writer_write(w, "x", values, sizeof values / 2), done);
  PST_GOTO(st, pst_safetensors_writer_write(w, "x", (char *)values + sizeof values / 2, sizeof values / 2),
           done);
  PST_GOTO(st, pst_safetensors_writer_finish(w, &checksum), done);
  PST_GOTO(st, pst_checkpoint_save_add(save, name, checksum), done);
done:
  pst_safetensors_writer_destroy(w);
  free(path);
  return st;
}

static pst_status save_step(int64_t step) {
  const pst_checkpoint_facts facts = {UINT64_MAX, (uint64_t)step * 1024, 4000, 0xdeadbeefdeadbeefu};
  pst_checkpoint_save *save = NULL;
  pst_status st = PST_OK;
  PST_TRY(pst_checkpoint_save_begin(run, step, &save));
  PST_GOTO(st, write_tensors(save, "model.safetensors", (float)step), done);
  PST_GOTO(st, write_tensors(save, "optimizer.safetensors", (float)-step), done);
  PST_GOTO(st, pst_checkpoint_save_note(save, "schedule", "1f1b"), done);
  PST_GOTO(st, pst_checkpoint_save_commit(save, &facts), done);
done:
  pst_checkpoint_save_destroy(save);
  return st;
}

/* Step of the newest complete checkpoint, -1 for none; its notes in `notes`. */
static int64_t latest_step(char notes[4096]) {
  char *dir = NULL, *text = NULL;
  pst_manifest *manifest = NULL;
  OK(pst_checkpoint_latest(run, 1, &dir, &manifest, &text));
  int64_t step = manifest ? manifest->step : -1;
  snprintf(notes, 4096, "%s", text);
  pst_manifest_destroy(manifest);
  free(dir);
  free(text);
  return step;
}

static size_t count_entries(const char *prefix) {
  char *root = NULL, **names = NULL;
  size_t n = 0, matching = 0;
  OK(pst_path_join(run, "checkpoints", &root));
  OK(pst_dir_list(root, &names, &n));
  for (size_t i = 0; i < n; i++) matching += strncmp(names[i], prefix, strlen(prefix)) == 0;
  pst_dir_list_free(names, n);
  free(root);
  return matching;
}

static char *in_step(int64_t step, const char *name) {
  char *dir = NULL, *path = NULL;
  OK(pst_checkpoint_dir(run, step, &dir));
  OK(pst_path_join(dir, name, &path));
  free(dir);
  return path;
}

static void a_saved_checkpoint_is_found_with_its_facts(void **state) {
  char *dir = NULL, *notes = NULL;
  pst_manifest *manifest = NULL;
  OK(pst_checkpoint_latest(run, 1, &dir, &manifest, &notes));
  assert_null(dir);
  assert_null(manifest);
  assert_non_null(strstr(notes, "no complete checkpoint"));
  free(notes);

  OK(save_step(0));
  OK(save_step(500));
  OK(pst_checkpoint_latest(run, 1, &dir, &manifest, &notes));
  assert_non_null(strstr(dir, "checkpoints/step-000500"));
  assert_non_null(strstr(notes, "took "));
  assert_int_equal(manifest->step, 500);
  assert_true(manifest->facts.seed == UINT64_MAX);
  assert_int_equal(manifest->facts.tokens, 512000);
  assert_int_equal(manifest->facts.data_bytes, 4000);
  assert_true(manifest->facts.data_checksum == 0xdeadbeefdeadbeefu);
  assert_int_equal(manifest->n_files, 2);
  assert_string_equal(manifest->files[1].name, "optimizer.safetensors");
  assert_string_equal(pst_manifest_note_get(manifest, "schedule"), "1f1b");
  assert_null(pst_manifest_note_get(manifest, "other"));
  pst_manifest_destroy(manifest);

  pst_safetensors *set = NULL;
  float value = 0;
  OK(pst_safetensors_open(dir, &set));
  OK(pst_safetensors_read_f32(set, pst_safetensors_find(set, "x"), VALUES - 1, 1, &value));
  assert_true(value == 500.0f);
  pst_safetensors_close(set);
  free(dir);
  free(notes);
  assert_int_equal(count_entries("."), 0);
}

static void the_newest_is_by_number(void **state) {
  char notes[4096];
  OK(save_step(999999));
  OK(save_step(1000000));
  assert_int_equal(latest_step(notes), 1000000);
}

static void a_step_saved_again_takes_the_place_of_the_first(void **state) {
  char notes[4096];
  OK(save_step(7));
  char *extra = in_step(7, "extra");
  OK(pst_file_write(extra, "x", 1));
  OK(save_step(7));
  assert_int_not_equal(access(extra, F_OK), 0);
  assert_int_equal(latest_step(notes), 7);
  assert_int_equal(count_entries(""), 1);
  free(extra);
}

static void damage_is_passed_over_and_said(void **state) {
  char notes[4096];
  for (int64_t step = 1; step <= 7; step++)
    if (step != 2) OK(save_step(step));
  char *path = in_step(7, "model.safetensors");
  int fd = open(path, O_RDWR);
  OK(pst_file_pwrite(fd, "!", 1, 50000, path)); /* one byte turned, size kept */
  close(fd);
  free(path);
  path = in_step(6, "optimizer.safetensors");
  assert_int_equal(truncate(path, 1000), 0);
  free(path);
  path = in_step(5, "model.safetensors");
  assert_int_equal(unlink(path), 0);
  free(path);
  path = in_step(4, "manifest.json");
  assert_int_equal(truncate(path, 60), 0);
  free(path);
  path = in_step(3, "manifest.json");
  assert_int_equal(unlink(path), 0);
  free(path);
  char *from = NULL, *to = NULL;
  OK(pst_checkpoint_dir(run, 1, &from));
  OK(pst_checkpoint_dir(run, 2, &to));
  assert_int_equal(rename(from, to), 0); /* a whole directory under another step's name */
  free(from);
  free(to);
  OK(save_step(1));

  assert_int_equal(latest_step(notes), 1);
  static const char *const words[] = {
      "step-000007/model.safetensors: checksum is",
      "step-000006/optimizer.safetensors: holds 1000 bytes, wanted",
      "step-000005/model.safetensors: cannot open",
      "step-000004/manifest.json:",
      "step-000003/manifest.json: cannot open",
      "its manifest says step 1",
      "took ",
  };
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (!strstr(notes, words[i])) fail_msg("\"%s\" lacks \"%s\"", notes, words[i]);
}

static void manifests_that_lie_are_refused(void **state) {
  static const struct {
    const char *text, *word;
  } rows[] = {
#define M(format, step, name, bytes, sum)                                                                    \
  "{\"format\":" format ",\"step\":" step ",\"seed\":\"1\",\"tokens\":1,\"data\":{\"bytes\":0,\"checksum\":" \
  "\"0\"},\"files\":[{\"name\":" name ",\"bytes\":" bytes ",\"checksum\":" sum "}]}"
      {M("2", "1", "\"a\"", "1", "\"0\""), "format is 2, wanted 1"},
      {M("1", "-1", "\"a\"", "1", "\"0\""), "\"step\""},
      {M("1", "1", "\"../../etc/passwd\"", "1", "\"0\""), "file 0"},
      {M("1", "1", "\"manifest.json\"", "1", "\"0\""), "file 0"},
      {M("1", "1", "\"a\"", "1e9", "\"0\""), "\"bytes\""},
      {M("1", "1", "\"a\"", "1", "\"xyz\""), "\"checksum\""},
      {M("1", "1", "\"a\"", "1", "\"fffffffffffffffff\""), "below 2^64"},
#undef M
      {"{\"format\":1,\"step\":1,\"seed\":\"1\",\"tokens\":1,\"data\":{\"bytes\":0,\"checksum\":\"0\"},"
       "\"files\":[]}",
       "\"files\""},
      {"{\"format\":1,\"step\":1,\"seed\":-1}", "\"seed\""},
      {"{\"format\":1,\"format\":1}", "duplicate"},
      {"[]", "\"format\""},
  };
  OK(save_step(1));
  char *path = in_step(1, "manifest.json"), *dir = NULL;
  OK(pst_checkpoint_dir(run, 1, &dir));
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    pst_manifest *manifest = NULL;
    OK(pst_file_write(path, rows[i].text, strlen(rows[i].text)));
    assert_int_not_equal(pst_checkpoint_read(dir, 0, &manifest), PST_OK);
    if (!strstr(pst_error(), rows[i].word)) fail_msg("\"%s\" lacks \"%s\"", pst_error(), rows[i].word);
  }
  free(path);
  free(dir);
}

static void a_save_given_up_leaves_nothing(void **state) {
  pst_checkpoint_save *save = NULL;
  const pst_checkpoint_facts facts = {0};
  char *path = NULL;
  OK(pst_checkpoint_save_begin(run, 3, &save));
  assert_int_equal(pst_checkpoint_save_path(save, "../x", &path), PST_INVALID);
  assert_int_equal(pst_checkpoint_save_path(save, "manifest.json", &path), PST_INVALID);
  assert_int_equal(pst_checkpoint_save_add(save, "model.safetensors", 0), PST_IO); /* never written */
  assert_int_equal(pst_checkpoint_save_commit(save, &facts), PST_INVALID);
  OK(write_tensors(save, "model.safetensors", 1));
  assert_int_equal(pst_checkpoint_save_add(save, "model.safetensors", 0), PST_INVALID);
  OK(pst_checkpoint_save_note(save, "k", "v"));
  assert_int_equal(pst_checkpoint_save_note(save, "k", "v"), PST_INVALID);
  assert_int_equal(count_entries(".step-000003.tmp-"), 1);
  pst_checkpoint_save_destroy(save);
  pst_checkpoint_save_destroy(NULL);
  assert_int_equal(count_entries(""), 0);
  assert_int_equal(pst_checkpoint_save_begin(run, -1, &save), PST_INVALID);
}

static void pruning_keeps_the_newest_complete(void **state) {
  char notes[4096];
  int64_t removed = -1;
  for (int64_t step = 10; step <= 60; step += 10) OK(save_step(step));
  char *path = in_step(60, "model.safetensors");
  assert_int_equal(unlink(path), 0); /* the newest of all is damaged */
  free(path);
  OK(pst_checkpoint_prune(run, 3, &removed));
  assert_int_equal(removed, 2);
  assert_int_equal(count_entries("step-"), 4); /* 30 40 50, and 60 as it was */
  OK(pst_checkpoint_prune(run, 0, &removed));
  assert_int_equal(removed, 2);
  assert_int_equal(latest_step(notes), 50);
  assert_int_equal(count_entries("."), 0);
}

static void what_the_dead_left_is_cleaned_and_what_the_living_write_is_not(void **state) {
  pid_t child = fork();
  if (child == 0) {
    pst_checkpoint_save *save = NULL;
    _exit(pst_checkpoint_save_begin(run, 8, &save) == PST_OK ? 0 : 1);
  }
  int status = 0, pipe_ends[2];
  int64_t removed = -1;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  assert_int_equal(count_entries(".step-000008.tmp-"), 1);

  /* another process that lives until the pipe closes */
  assert_int_equal(pipe(pipe_ends), 0);
  pid_t living = fork();
  if (living == 0) {
    char byte;
    close(pipe_ends[1]);
    _exit(read(pipe_ends[0], &byte, 1) == 0 ? 0 : 1);
  }
  char name[64], *path = NULL, *kept = NULL;
  snprintf(name, sizeof name, "checkpoints/.step-000009.tmp-%ld", (long)living);
  OK(pst_path_join(run, name, &path));
  OK(pst_dir_create(path));
  OK(pst_path_join(run, "checkpoints/.step-notes", &kept));
  OK(pst_file_write(kept, "x", 1)); /* not ours: stays */

  OK(pst_checkpoint_clean(run, &removed));
  assert_int_equal(removed, 1);
  assert_int_equal(access(path, F_OK), 0);
  assert_int_equal(access(kept, F_OK), 0);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  assert_int_equal(waitpid(living, &status, 0), living);
  OK(pst_checkpoint_clean(run, &removed));
  assert_int_equal(removed, 1);
  free(path);
  free(kept);
}

/* Saves step after step, and prunes, until it is killed; writes each committed step to the pipe. */
static void save_until_killed(int to_parent, int64_t first) {
  for (int64_t step = first;; step++) {
    if (save_step(step) != PST_OK) _exit(1);
    if (write(to_parent, &step, sizeof step) != sizeof step) _exit(2);
    if (pst_checkpoint_prune(run, 2, NULL) != PST_OK) _exit(3);
  }
}

static void a_kill_at_any_moment_leaves_the_last_complete_one(void **state) {
  uint64_t seed = (uint64_t)time(NULL), x = seed;
  int64_t reached = 0;
  print_message("seed %llu\n", (unsigned long long)seed);
  for (int round = 0; round < 20; round++) {
    int pipe_ends[2], status = 0;
    assert_int_equal(pipe(pipe_ends), 0);
    pid_t child = fork();
    if (child == 0) {
      close(pipe_ends[0]);
      save_until_killed(pipe_ends[1], reached + 1);
    }
    close(pipe_ends[1]);
    x = x * 6364136223846793005u + 1442695040888963407u;
    struct timespec pause = {0, (long)((x >> 33) % 60000000)};
    nanosleep(&pause, NULL);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status)); /* it did not end by an error of its own */
    int64_t step;
    while (read(pipe_ends[0], &step, sizeof step) == sizeof step) reached = step;
    close(pipe_ends[0]);

    char notes[4096];
    int64_t found = latest_step(notes);
    /* the one in flight may have been renamed before its number reached the pipe */
    if (reached && found != reached && found != reached + 1)
      fail_msg("round %d: committed %lld, found %lld: %s", round, (long long)reached, (long long)found,
               notes);
    if (strstr(notes, "passed over")) fail_msg("round %d: a half under a final name: %s", round, notes);
    if (found > reached) reached = found;
  }
  OK(pst_checkpoint_clean(run, NULL));
  if (reached) assert_int_equal(count_entries("."), 0);
  print_message("20 kills, %lld checkpoints\n", (long long)reached);
  assert_true(reached > 0);
}

#define IN_RUN(test) cmocka_unit_test_setup_teardown(test, make_run, remove_run)

int main(void) {
  const struct CMUnitTest tests[] = {
      IN_RUN(a_saved_checkpoint_is_found_with_its_facts),
      IN_RUN(the_newest_is_by_number),
      IN_RUN(a_step_saved_again_takes_the_place_of_the_first),
      IN_RUN(damage_is_passed_over_and_said),
      IN_RUN(manifests_that_lie_are_refused),
      IN_RUN(a_save_given_up_leaves_nothing),
      IN_RUN(pruning_keeps_the_newest_complete),
      IN_RUN(what_the_dead_left_is_cleaned_and_what_the_living_write_is_not),
      IN_RUN(a_kill_at_any_moment_leaves_the_last_complete_one),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
