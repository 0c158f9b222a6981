/* The checkpoints of a run directory: saved aside and renamed, found again, pruned.
 *
 *   pst_checkpoint_save *save;
 *   PST_TRY(pst_checkpoint_save_begin("runs/a", 500, &save));
 *   char *path;
 *   PST_TRY(pst_checkpoint_save_path(save, "model.safetensors", &path));
 *   ... write it with pst_safetensors_writer, which gives its checksum ...
 *   PST_TRY(pst_checkpoint_save_add(save, "model.safetensors", checksum));
 *   PST_TRY(pst_checkpoint_save_note(save, "data_position", "81920"));
 *   PST_TRY(pst_checkpoint_save_commit(save, &facts));          // now runs/a/checkpoints/step-000500/ is
 * there pst_checkpoint_save_destroy(save);
 *
 *   char *dir, *notes;
 *   pst_manifest *manifest;
 *   PST_TRY(pst_checkpoint_latest("runs/a", 1, &dir, &manifest, &notes));
 *   pst_log_info("%s", notes);                                  // which was taken, and why newer ones were
 * not
 *
 * A checkpoint is a directory step-NNNNNN under RUN/checkpoints/ that holds tensor files and a manifest.json
 * with the step, the seed, tokens seen, the data file's size and checksum, and each file's size and checksum.
 * It is written as .step-NNNNNN.tmp-PID, every file synced, the manifest last, then renamed: under the final
 * name it is complete whenever the process or the host may die. One process of one host writes to a run
 * directory; finding is open to all.
 */
#ifndef PENSTOCK_CHECKPOINT_DIRECTORY_H
#define PENSTOCK_CHECKPOINT_DIRECTORY_H

#include "core/base/status.h"

#include <stddef.h>
#include <stdint.h>

enum { PST_MANIFEST_FORMAT = 1 }; /* raised when an older reader would go wrong */

/* What the run states about a checkpoint. */
typedef struct pst_checkpoint_facts {
  uint64_t seed;
  uint64_t tokens;     /* seen in training up to and with this step */
  uint64_t data_bytes; /* size and pst_hash of the training data's file; 0 and 0 where there is none */
  uint64_t data_checksum;
} pst_checkpoint_facts;

typedef struct pst_manifest_file {
  char *name; /* within the checkpoint's directory */
  uint64_t bytes;
  uint64_t checksum; /* pst_hash of the file */
} pst_manifest_file;

typedef struct pst_manifest_note {
  char *key, *value;
} pst_manifest_note;

/* Owns all it points to. */
typedef struct pst_manifest {
  int64_t step;
  pst_checkpoint_facts facts;
  pst_manifest_file *files;
  size_t n_files;
  pst_manifest_note *notes;
  size_t n_notes;
} pst_manifest;

/* Legal with NULL. */
void pst_manifest_destroy(pst_manifest *manifest);

/* The value of a note, or NULL. */
const char *pst_manifest_note_get(const pst_manifest *manifest, const char *key);

/* Makes RUN/checkpoints where it is not there and takes it for one writer, see pst_dir_lock(). */
pst_status pst_checkpoint_lock(const char *run_dir, int *out_fd) PST_CHECKED;

/* PST_IO where no checkpoint could be written there, as far as permissions tell. */
pst_status pst_checkpoint_writable(const char *run_dir) PST_CHECKED;

typedef struct pst_checkpoint_save pst_checkpoint_save;

/* Starts the checkpoint of `step` (>= 0) and removes what dead processes left half-written. PST_INVALID,
 * PST_IO, PST_NO_MEMORY. */
pst_status pst_checkpoint_save_begin(const char *run_dir, int64_t step,
                                     pst_checkpoint_save **out) PST_CHECKED;

/* Where file `name` (no slash, no leading dot, not manifest.json) is to be written; the caller frees the
 * path. */
pst_status pst_checkpoint_save_path(const pst_checkpoint_save *save, const char *name,
                                    char **out_path) PST_CHECKED;

/* Declares that `name` is written, complete and synced. */
pst_status pst_checkpoint_save_add(pst_checkpoint_save *save, const char *name,
                                   uint64_t checksum) PST_CHECKED;

/* Adds a pair of UTF-8 strings to the manifest. */
pst_status pst_checkpoint_save_note(pst_checkpoint_save *save, const char *key,
                                    const char *value) PST_CHECKED;

/* Writes the manifest and renames the directory; a checkpoint of the same step is replaced. Afterwards only
 * destroy may be called. */
pst_status pst_checkpoint_save_commit(pst_checkpoint_save *save,
                                      const pst_checkpoint_facts *facts) PST_CHECKED;

/* Legal with NULL. A save that was not committed is removed. */
void pst_checkpoint_save_destroy(pst_checkpoint_save *save);

/* Reads and checks one checkpoint directory: manifest, files present with their sizes; with `sums` also the
 * checksums, which reads every byte. PST_INVALID or PST_IO say what is wrong. */
pst_status pst_checkpoint_read(const char *dir, int sums, pst_manifest **out) PST_CHECKED;

/* The newest checkpoint of the run that passes pst_checkpoint_read(.., sums, ..). Where there is none, PST_OK
 * with *out_dir and *out_manifest NULL. `*out_notes` is always set on PST_OK: lines on what was taken and why
 * newer ones were passed over. The caller frees dir and notes and destroys the manifest. */
pst_status pst_checkpoint_latest(const char *run_dir, int sums, char **out_dir, pst_manifest **out_manifest,
                                 char **out_notes) PST_CHECKED;

/* Directory of the checkpoint of `step`, whether it is there or not; the caller frees it. */
pst_status pst_checkpoint_dir(const char *run_dir, int64_t step, char **out_dir) PST_CHECKED;

/* Removes complete checkpoints but the newest `keep` (at least 1 stays whatever `keep` says). A damaged one
 * counts for nothing and is left where it is. `out_removed` may be NULL. */
pst_status pst_checkpoint_prune(const char *run_dir, int64_t keep, int64_t *out_removed) PST_CHECKED;

/* Removes half-written checkpoints whose writing process is no more. `out_removed` may be NULL. */
pst_status pst_checkpoint_clean(const char *run_dir, int64_t *out_removed) PST_CHECKED;

#endif
