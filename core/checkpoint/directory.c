#include "core/checkpoint/directory.h"

#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/checkpoint/manifest.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
  MANIFEST_BYTES_MAX = 16 << 20,
  NAME_BYTES = 64 /* ".step-" + 19 digits + ".tmp-" + 19 digits, and room */
};

struct pst_checkpoint_save {
  char *root; /* RUN/checkpoints */
  char *temp; /* the directory written to */
  char temp_name[NAME_BYTES];
  char final_name[NAME_BYTES];
  int committed;
  pst_manifest manifest;
  size_t files_room, notes_room;
};

static pst_status checkpoints_root(const char *run_dir, char **out) {
  return pst_path_join(run_dir, "checkpoints", out);
}

static void step_name(char out[NAME_BYTES], int64_t step) {
  snprintf(out, NAME_BYTES, "step-%06lld", (long long)step);
}

static void temp_name(char out[NAME_BYTES], int64_t step) {
  snprintf(out, NAME_BYTES, ".step-%06lld.tmp-%ld", (long long)step, (long)getpid());
}

/* The step of a name that step_name makes; -1 for any other. */
static int64_t step_of(const char *name) {
  long long step = -1;
  char again[NAME_BYTES];
  if (sscanf(name, "step-%lld", &step) != 1 || step < 0) return -1;
  step_name(again, step);
  return strcmp(again, name) == 0 ? step : -1;
}

/* The process that writes, or wrote, a temporary name; -1 for any other name. */
static long writer_of(const char *name) {
  long long step = -1;
  long pid = -1;
  if (sscanf(name, ".step-%lld.tmp-%ld", &step, &pid) != 2 || step < 0 || pid <= 0) return -1;
  return pid;
}

pst_status pst_checkpoint_dir(const char *run_dir, int64_t step, char **out_dir) {
  char name[NAME_BYTES];
  char *root = NULL;
  step_name(name, step);
  PST_TRY(checkpoints_root(run_dir, &root));
  pst_status st = pst_path_join(root, name, out_dir);
  free(root);
  return st;
}

pst_status pst_checkpoint_lock(const char *run_dir, int *out_fd) {
  char *root = NULL;
  PST_TRY(checkpoints_root(run_dir, &root));
  pst_status st = pst_dir_create(root);
  if (st == PST_OK) st = pst_dir_lock(root, out_fd);
  free(root);
  return st;
}

pst_status pst_checkpoint_writable(const char *run_dir) {
  char *root = NULL;
  PST_TRY(checkpoints_root(run_dir, &root));
  pst_status st = PST_OK;
  if (access(root, W_OK | X_OK) != 0)
    st = pst_fail(PST_IO, "%s: cannot be written: %s", root, strerror(errno));
  free(root);
  return st;
}

void pst_checkpoint_save_destroy(pst_checkpoint_save *save) {
  if (!save) return;
  if (save->temp && !save->committed) {
    /* the cause of giving up is the message to keep, not a trouble in cleaning */
    char cause[1024];
    snprintf(cause, sizeof cause, "%s", pst_error());
    if (pst_dir_remove(save->root, save->temp_name) != PST_OK) pst_error_set(cause);
  }
  for (size_t i = 0; i < save->manifest.n_files; i++) free(save->manifest.files[i].name);
  for (size_t i = 0; i < save->manifest.n_notes; i++) {
    free(save->manifest.notes[i].key);
    free(save->manifest.notes[i].value);
  }
  free(save->manifest.files);
  free(save->manifest.notes);
  free(save->root);
  free(save->temp);
  free(save);
}

pst_status pst_checkpoint_save_begin(const char *run_dir, int64_t step, pst_checkpoint_save **out) {
  pst_status st = PST_OK;
  if (step < 0)
    return pst_fail(PST_INVALID, "%s: checkpoint of step %lld, wanted 0 or more", run_dir, (long long)step);
  pst_checkpoint_save *save = calloc(1, sizeof *save);
  if (!save) return pst_fail(PST_NO_MEMORY, "%s: no memory for %zu bytes", run_dir, sizeof *save);
  save->manifest.step = step;
  step_name(save->final_name, step);
  temp_name(save->temp_name, step);
  PST_GOTO(st, checkpoints_root(run_dir, &save->root), done);
  PST_GOTO(st, pst_dir_create(save->root), done);
  PST_GOTO(st, pst_dir_sync(run_dir), done);
  PST_GOTO(st, pst_checkpoint_clean(run_dir, NULL), done);
  PST_GOTO(st, pst_dir_remove(save->root, save->temp_name), done); /* of an earlier try of this process */
  PST_GOTO(st, pst_path_join(save->root, save->temp_name, &save->temp), done);
  PST_GOTO(st, pst_dir_create(save->temp), done);
  *out = save;
  save = NULL;
done:
  pst_checkpoint_save_destroy(save);
  return st;
}

static pst_status require_name(const pst_checkpoint_save *save, const char *name) {
  if (pst__manifest_name_ok(name)) return PST_OK;
  return pst_fail(PST_INVALID, "%s: \"%.200s\" cannot be a file of a checkpoint", save->temp, name);
}

pst_status pst_checkpoint_save_path(const pst_checkpoint_save *save, const char *name, char **out_path) {
  PST_TRY(require_name(save, name));
  return pst_path_join(save->temp, name, out_path);
}

/* One more element for a growing list. */
static pst_status grow(void **list, size_t n, size_t *room, size_t size) {
  if (n < *room) return PST_OK;
  size_t more = *room ? 2 * *room : 8;
  void *grown = realloc(*list, more * size);
  if (!grown) return pst_fail(PST_NO_MEMORY, "no memory for a list of %zu manifest entries", more);
  *list = grown;
  *room = more;
  return PST_OK;
}

pst_status pst_checkpoint_save_add(pst_checkpoint_save *save, const char *name, uint64_t checksum) {
  pst_manifest *manifest = &save->manifest;
  char *path = NULL, *copy = NULL;
  int fd = -1;
  uint64_t bytes = 0;
  pst_status st = PST_OK;
  for (size_t i = 0; i < manifest->n_files; i++)
    if (strcmp(manifest->files[i].name, name) == 0)
      return pst_fail(PST_INVALID, "%s: file \"%.200s\" is added twice", save->temp, name);
  PST_TRY(pst_checkpoint_save_path(save, name, &path));
  PST_GOTO(st, pst_file_open(path, &fd, &bytes), done);
  close(fd);
  PST_GOTO(st, grow((void **)&manifest->files, manifest->n_files, &save->files_room, sizeof *manifest->files),
           done);
  copy = strdup(name);
  if (!copy) {
    st = pst_fail(PST_NO_MEMORY, "%s: no memory for its name", path);
    goto done;
  }
  manifest->files[manifest->n_files++] = (pst_manifest_file){copy, bytes, checksum};
done:
  free(path);
  return st;
}

pst_status pst_checkpoint_save_note(pst_checkpoint_save *save, const char *key, const char *value) {
  pst_manifest *manifest = &save->manifest;
  if (pst_manifest_note_get(manifest, key))
    return pst_fail(PST_INVALID, "%s: note \"%.200s\" is added twice", save->temp, key);
  PST_TRY(grow((void **)&manifest->notes, manifest->n_notes, &save->notes_room, sizeof *manifest->notes));
  pst_manifest_note note = {strdup(key), strdup(value)};
  if (!note.key || !note.value) {
    free(note.key);
    free(note.value);
    return pst_fail(PST_NO_MEMORY, "%s: no memory for note \"%.200s\"", save->temp, key);
  }
  manifest->notes[manifest->n_notes++] = note;
  return PST_OK;
}

pst_status pst_checkpoint_save_commit(pst_checkpoint_save *save, const pst_checkpoint_facts *facts) {
  char *text = NULL, *path = NULL, *final = NULL;
  pst_status st = PST_OK;
  if (save->manifest.n_files == 0) return pst_fail(PST_INVALID, "%s: no file was added", save->temp);
  save->manifest.facts = *facts;
  PST_GOTO(st, pst__manifest_format(&save->manifest, &text), done);
  PST_GOTO(st, pst_path_join(save->temp, PST__MANIFEST_NAME, &path), done);
  PST_GOTO(st, pst_path_join(save->root, save->final_name, &final), done);
  PST_GOTO(st, pst_file_write(path, text, strlen(text)), done); /* syncs the directory too */
  PST_GOTO(st, pst_dir_publish(save->temp, final), done);
  save->committed = 1;
done:
  free(final);
  free(path);
  free(text);
  return st;
}

static pst_status check_file(const char *dir, const pst_manifest_file *file, int sums) {
  char *path = NULL;
  int fd = -1;
  uint64_t bytes = 0, checksum = 0;
  pst_status st = PST_OK;
  PST_TRY(pst_path_join(dir, file->name, &path));
  PST_GOTO(st, pst_file_open(path, &fd, &bytes), done);
  close(fd);
  if (bytes != file->bytes) {
    st = pst_fail(PST_INVALID, "%s: holds %llu bytes, wanted %llu as in the manifest", path,
                  (unsigned long long)bytes, (unsigned long long)file->bytes);
    goto done;
  }
  if (!sums) goto done;
  PST_GOTO(st, pst_file_hash(path, &bytes, &checksum), done);
  if (checksum != file->checksum)
    st = pst_fail(PST_INVALID, "%s: checksum is %016llx, wanted %016llx as in the manifest", path,
                  (unsigned long long)checksum, (unsigned long long)file->checksum);
done:
  free(path);
  return st;
}

pst_status pst_checkpoint_read(const char *dir, int sums, pst_manifest **out) {
  char *path = NULL, *text = NULL;
  size_t n = 0;
  pst_manifest *manifest = NULL;
  pst_status st = PST_OK;
  PST_TRY(pst_path_join(dir, PST__MANIFEST_NAME, &path));
  PST_GOTO(st, pst_file_read(path, MANIFEST_BYTES_MAX, &text, &n), done);
  PST_GOTO(st, pst__manifest_parse(text, n, path, &manifest), done);
  for (size_t i = 0; i < manifest->n_files; i++)
    PST_GOTO(st, check_file(dir, &manifest->files[i], sums), done);
  *out = manifest;
  manifest = NULL;
done:
  pst_manifest_destroy(manifest);
  free(text);
  free(path);
  return st;
}

/* Steps under RUN/checkpoints, ascending; none where the directory is not there. */
static int ascending(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

static pst_status list_steps(const char *root, int64_t **out_steps, size_t *out_n) {
  char **names = NULL;
  size_t n_names = 0, n = 0;
  int64_t *steps = NULL;
  if (access(root, F_OK) != 0 && errno == ENOENT) {
    *out_steps = NULL;
    *out_n = 0;
    return PST_OK;
  }
  PST_TRY(pst_dir_list(root, &names, &n_names));
  pst_status st = PST_OK;
  steps = malloc((n_names + 1) * sizeof *steps);
  if (!steps) {
    st = pst_fail(PST_NO_MEMORY, "%s: no memory for a list of %zu steps", root, n_names);
    goto done;
  }
  for (size_t i = 0; i < n_names; i++) {
    int64_t step = step_of(names[i]);
    if (step >= 0) steps[n++] = step;
  }
  /* by number: step-1000000 sorts before step-999999 by name */
  qsort(steps, n, sizeof *steps, ascending);
  *out_steps = steps;
  *out_n = n;
done:
  pst_dir_list_free(names, n_names);
  return st;
}

static pst_status add_line(char **text, const char *format, ...) PST_PRINTF(2, 3);

static pst_status add_line(char **text, const char *format, ...) {
  char line[1536];
  va_list args;
  va_start(args, format);
  vsnprintf(line, sizeof line, format, args);
  va_end(args);
  size_t old = *text ? strlen(*text) : 0;
  char *grown = realloc(*text, old + strlen(line) + 2);
  if (!grown) return pst_fail(PST_NO_MEMORY, "no memory for notes on checkpoints");
  sprintf(grown + old, "%s%s", old ? "\n" : "", line);
  *text = grown;
  return PST_OK;
}

/* One candidate of pst_checkpoint_latest. *out_manifest stays NULL when the checkpoint is passed over. */
static pst_status try_step(const char *dir, int64_t step, int sums, char **notes,
                           pst_manifest **out_manifest) {
  pst_manifest *manifest = NULL;
  pst_status st = pst_checkpoint_read(dir, sums, &manifest);
  if (st == PST_NO_MEMORY) return st;
  if (st != PST_OK) return add_line(notes, "passed over %s: %s", dir, pst_error());
  if (manifest->step != step) {
    st = add_line(notes, "passed over %s: its manifest says step %lld", dir, (long long)manifest->step);
    pst_manifest_destroy(manifest);
    return st;
  }
  *out_manifest = manifest;
  return PST_OK;
}

pst_status pst_checkpoint_latest(const char *run_dir, int sums, char **out_dir, pst_manifest **out_manifest,
                                 char **out_notes) {
  char *root = NULL, *notes = NULL, *dir = NULL;
  int64_t *steps = NULL;
  size_t n = 0;
  pst_manifest *manifest = NULL;
  pst_status st = PST_OK;
  PST_TRY(checkpoints_root(run_dir, &root));
  PST_GOTO(st, list_steps(root, &steps, &n), done);
  for (size_t i = n; i > 0 && !manifest; i--) {
    free(dir);
    dir = NULL;
    PST_GOTO(st, pst_checkpoint_dir(run_dir, steps[i - 1], &dir), done);
    PST_GOTO(st, try_step(dir, steps[i - 1], sums, &notes, &manifest), done);
  }
  if (manifest) {
    PST_GOTO(st, add_line(&notes, "took %s: step %lld, complete", dir, (long long)manifest->step), done);
  } else {
    PST_GOTO(st, add_line(&notes, "no complete checkpoint in %s", root), done);
    free(dir);
    dir = NULL;
  }
  *out_dir = dir;
  *out_manifest = manifest;
  *out_notes = notes;
  dir = NULL;
  manifest = NULL;
  notes = NULL;
done:
  pst_manifest_destroy(manifest);
  free(steps);
  free(notes);
  free(dir);
  free(root);
  return st;
}

/* Out of sight in one move, then removed: a kill in between leaves a temporary, never a checkpoint with parts
 * gone. */
static pst_status remove_step(const char *run_dir, const char *root, int64_t step) {
  char hidden_name[NAME_BYTES];
  char *dir = NULL, *hidden = NULL;
  pst_status st = PST_OK;
  temp_name(hidden_name, step);
  PST_GOTO(st, pst_checkpoint_dir(run_dir, step, &dir), done);
  PST_GOTO(st, pst_path_join(root, hidden_name, &hidden), done);
  if (rename(dir, hidden) != 0) {
    st = pst_fail(PST_IO, "%s: cannot rename to %s: %s", dir, hidden, strerror(errno));
    goto done;
  }
  PST_GOTO(st, pst_dir_remove(root, hidden_name), done);
done:
  free(hidden);
  free(dir);
  return st;
}

static pst_status is_complete(const char *run_dir, int64_t step, int *out) {
  char *dir = NULL;
  pst_manifest *manifest = NULL;
  PST_TRY(pst_checkpoint_dir(run_dir, step, &dir));
  pst_status st = pst_checkpoint_read(dir, 0, &manifest);
  *out = st == PST_OK && manifest->step == step;
  pst_manifest_destroy(manifest);
  free(dir);
  return st == PST_NO_MEMORY ? st : PST_OK;
}

pst_status pst_checkpoint_prune(const char *run_dir, int64_t keep, int64_t *out_removed) {
  char *root = NULL;
  int64_t *steps = NULL;
  size_t n = 0;
  int64_t kept = 0, removed = 0;
  pst_status st = PST_OK;
  if (keep < 1) keep = 1;
  PST_TRY(checkpoints_root(run_dir, &root));
  PST_GOTO(st, list_steps(root, &steps, &n), done);
  for (size_t i = n; i > 0; i--) {
    int complete = 0;
    PST_GOTO(st, is_complete(run_dir, steps[i - 1], &complete), done);
    if (!complete) continue;
    if (kept < keep) {
      kept++;
      continue;
    }
    PST_GOTO(st, remove_step(run_dir, root, steps[i - 1]), done);
    removed++;
  }
  if (out_removed) *out_removed = removed;
done:
  free(steps);
  free(root);
  return st;
}

pst_status pst_checkpoint_clean(const char *run_dir, int64_t *out_removed) {
  char *root = NULL;
  char **names = NULL;
  size_t n = 0;
  int64_t removed = 0;
  pst_status st = PST_OK;
  PST_TRY(checkpoints_root(run_dir, &root));
  if (access(root, F_OK) == 0) PST_GOTO(st, pst_dir_list(root, &names, &n), done);
  for (size_t i = 0; i < n; i++) {
    long pid = writer_of(names[i]);
    if (pid < 0 || kill((pid_t)pid, 0) == 0 || errno != ESRCH) continue;
    PST_GOTO(st, pst_dir_remove(root, names[i]), done);
    removed++;
  }
  if (out_removed) *out_removed = removed;
done:
  pst_dir_list_free(names, n);
  free(root);
  return st;
}
