/* Files and directories: whole reads and writes, and replacing a file or directory so that no half is ever
 * seen.
 *
 *   char *text;
 *   size_t n;
 *   PST_TRY(pst_file_read(path, 1 << 20, &text, &n));          // a small file, at most 1 MiB; text[n] is 0
 *   ...
 *   PST_TRY(pst_file_write(path, text, n));                    // written aside, synced, renamed
 *
 * A path is a NUL-terminated string of the system. Every function may be called from any thread; two threads
 * that write the same path at once are the caller's mistake. Errors are PST_IO (with the path, the offset
 * where there is one, and the system's reason), PST_INVALID (not a regular file, too large) and
 * PST_NO_MEMORY.
 */
#ifndef PENSTOCK_BASE_FILE_H
#define PENSTOCK_BASE_FILE_H

#include "core/base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Opens an existing regular file for reading; a FIFO, device, socket or directory is refused without waiting
 * on it. The caller closes the descriptor. `out_bytes` (may be NULL) is the size at this moment. */
pst_status pst_file_open(const char *path, int *out_fd, uint64_t *out_bytes) PST_CHECKED;

/* Creates (or empties) a file for writing. The caller closes the descriptor. */
pst_status pst_file_create(const char *path, int *out_fd) PST_CHECKED;

/* Reads a whole regular file of at most `cap` bytes. The caller frees `*out_text`, which has a 0 after its
 * `*out_bytes` bytes. */
pst_status pst_file_read(const char *path, size_t cap, char **out_text, size_t *out_bytes) PST_CHECKED;

/* Exactly n bytes at `offset`, however the system splits the transfer; an end of file before that is PST_IO.
 * `path` serves the message. */
pst_status pst_file_pread(int fd, void *out, size_t n, uint64_t offset, const char *path) PST_CHECKED;
pst_status pst_file_pwrite(int fd, const void *bytes, size_t n, uint64_t offset,
                           const char *path) PST_CHECKED;

/* Waits until the file's bytes are on stable storage. */
pst_status pst_file_sync(int fd, const char *path) PST_CHECKED;

/* "PATH.tmp-PID": where this process writes what will become PATH. The caller frees it. */
pst_status pst_file_temp_path(const char *path, char **out_path) PST_CHECKED;

/* Makes `temp` (already synced) visible as `path`, replacing a file there in one move, and syncs the
 * directory that holds it. Both lie in the same directory. */
pst_status pst_file_publish(const char *temp, const char *path) PST_CHECKED;

/* Replaces `path` by these n bytes: temporary file, sync, rename, sync of the directory. After a crash at any
 * moment `path` holds the old bytes or the new ones. */
pst_status pst_file_write(const char *path, const void *bytes, size_t n) PST_CHECKED;

/* "dir/name"; the caller frees it. */
pst_status pst_path_join(const char *dir, const char *name, char **out_path) PST_CHECKED;

/* Makes a directory and those above it; one that is there already is fine. */
pst_status pst_dir_create(const char *path) PST_CHECKED;

/* Takes the directory for one user at a time, until *out_fd is closed or the process ends: PST_INVALID where
 * somebody else has it, in this process or another. A file system without locks lets everybody have it. */
pst_status pst_dir_lock(const char *path, int *out_fd) PST_CHECKED;

/* Waits until the directory's entries are on stable storage. */
pst_status pst_dir_sync(const char *path) PST_CHECKED;

/* Makes directory `temp` (its files and itself already synced) visible as `path`. A directory already at
 * `path` is exchanged for it in one move where the file system can, and removed. Both lie in the same
 * directory. */
pst_status pst_dir_publish(const char *temp, const char *path) PST_CHECKED;

/* The names in a directory, without "." and "..", sorted by byte value. Free with pst_dir_list_free. */
pst_status pst_dir_list(const char *path, char ***out_names, size_t *out_n) PST_CHECKED;
void pst_dir_list_free(char **names, size_t n);

/* Removes `name`, a file or a whole tree, from directory `dir`. `name` is one component, never "." or ".." or
 * a path, and symbolic links inside are removed, not followed: nothing outside dir/name is touched. A name
 * that is not there is fine. */
pst_status pst_dir_remove(const char *dir, const char *name) PST_CHECKED;

/* Size and content hash (pst_hash, seed 0) of a regular file, read from front to end. PST_IO, PST_INVALID,
 * PST_NO_MEMORY. */
pst_status pst_file_hash(const char *path, uint64_t *out_bytes, uint64_t *out_hash) PST_CHECKED;

#endif
