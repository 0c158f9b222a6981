#include "core/base/file.h"

#include "core/base/hash.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
  TRANSFER_MAX = 1 << 30, /* the system moves at most 2 GiB - 4 KiB a call */
  TREE_DEPTH_MAX = 64     /* each level of a removal holds a descriptor */
};

static const char *kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISCHR(mode)) return "a character device";
  if (S_ISBLK(mode)) return "a block device";
  if (S_ISSOCK(mode)) return "a socket";
  return "not a regular file";
}

static pst_status require_regular(const char *path, mode_t mode) {
  if (S_ISREG(mode)) return PST_OK;
  return pst_fail(PST_INVALID, "%s: is %s, wanted a regular file", path, kind_of(mode));
}

pst_status pst_file_open(const char *path, int *out_fd, uint64_t *out_bytes) {
  struct stat info;
  if (stat(path, &info) != 0) return pst_fail(PST_IO, "%s: cannot open: %s", path, strerror(errno));
  PST_TRY(require_regular(path, info.st_mode));
  /* O_NONBLOCK: should a FIFO have taken the name since, the open must not wait for its writer */
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return pst_fail(PST_IO, "%s: cannot open: %s", path, strerror(errno));
  pst_status st = PST_OK;
  if (fstat(fd, &info) != 0) st = pst_fail(PST_IO, "%s: cannot stat: %s", path, strerror(errno));
  if (st == PST_OK) st = require_regular(path, info.st_mode);
  if (st != PST_OK) {
    close(fd);
    return st;
  }
  *out_fd = fd;
  if (out_bytes) *out_bytes = (uint64_t)info.st_size;
  return PST_OK;
}

pst_status pst_file_create(const char *path, int *out_fd) {
  struct stat info;
  if (stat(path, &info) == 0) PST_TRY(require_regular(path, info.st_mode));
  int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0666);
  if (fd < 0) return pst_fail(PST_IO, "%s: cannot create: %s", path, strerror(errno));
  *out_fd = fd;
  return PST_OK;
}

pst_status pst_file_pread(int fd, void *out, size_t n, uint64_t offset, const char *path) {
  char *to = out;
  if (offset > (uint64_t)INT64_MAX - n)
    return pst_fail(PST_IO, "%s: cannot read %zu bytes at offset %llu: beyond any file", path, n,
                    (unsigned long long)offset);
  for (size_t done = 0; done < n;) {
    size_t want = n - done < TRANSFER_MAX ? n - done : TRANSFER_MAX;
    ssize_t got = pread(fd, to + done, want, (off_t)(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return pst_fail(PST_IO, "%s: cannot read %zu bytes at offset %llu: %s", path, want,
                      (unsigned long long)(offset + done), strerror(errno));
    if (got == 0)
      return pst_fail(PST_IO, "%s: ends at offset %llu, wanted %zu bytes more", path,
                      (unsigned long long)(offset + done), n - done);
    done += (size_t)got;
  }
  return PST_OK;
}

pst_status pst_file_pwrite(int fd, const void *bytes, size_t n, uint64_t offset, const char *path) {
  const char *from = bytes;
  if (offset > (uint64_t)INT64_MAX - n)
    return pst_fail(PST_IO, "%s: cannot write %zu bytes at offset %llu: beyond any file", path, n,
                    (unsigned long long)offset);
  for (size_t done = 0; done < n;) {
    size_t want = n - done < TRANSFER_MAX ? n - done : TRANSFER_MAX;
    ssize_t put = pwrite(fd, from + done, want, (off_t)(offset + done));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0)
      return pst_fail(PST_IO, "%s: cannot write %zu bytes at offset %llu: %s", path, want,
                      (unsigned long long)(offset + done), put < 0 ? strerror(errno) : "nothing was written");
    done += (size_t)put;
  }
  return PST_OK;
}

pst_status pst_file_read(const char *path, size_t cap, char **out_text, size_t *out_bytes) {
  int fd = -1;
  uint64_t bytes = 0;
  char *text = NULL;
  pst_status st = PST_OK;
  PST_GOTO(st, pst_file_open(path, &fd, &bytes), done);
  if (bytes > cap) {
    st = pst_fail(PST_INVALID, "%s: holds %llu bytes, wanted at most %zu", path, (unsigned long long)bytes,
                  cap);
    goto done;
  }
  text = malloc((size_t)bytes + 1);
  if (!text) {
    st = pst_fail(PST_NO_MEMORY, "%s: no memory for its %llu bytes", path, (unsigned long long)bytes);
    goto done;
  }
  PST_GOTO(st, pst_file_pread(fd, text, (size_t)bytes, 0, path), done);
  text[bytes] = 0;
  *out_text = text;
  *out_bytes = (size_t)bytes;
  text = NULL;
done:
  free(text);
  if (fd >= 0) close(fd);
  return st;
}

pst_status pst_file_sync(int fd, const char *path) {
  while (fsync(fd) != 0)
    if (errno != EINTR) return pst_fail(PST_IO, "%s: cannot sync: %s", path, strerror(errno));
  return PST_OK;
}

pst_status pst_file_temp_path(const char *path, char **out_path) {
  size_t n = strlen(path) + 32;
  char *temp = malloc(n);
  if (!temp) return pst_fail(PST_NO_MEMORY, "%s: no memory for a path of %zu bytes", path, n);
  snprintf(temp, n, "%s.tmp-%ld", path, (long)getpid());
  *out_path = temp;
  return PST_OK;
}

/* The directory that holds `path`: what is before its last slash. */
static pst_status sync_parent(const char *path) {
  const char *slash = strrchr(path, '/');
  if (!slash) return pst_dir_sync(".");
  if (slash == path) return pst_dir_sync("/");
  char *parent = strndup(path, (size_t)(slash - path));
  if (!parent) return pst_fail(PST_NO_MEMORY, "%s: no memory for its directory's path", path);
  pst_status st = pst_dir_sync(parent);
  free(parent);
  return st;
}

pst_status pst_file_publish(const char *temp, const char *path) {
  if (rename(temp, path) != 0)
    return pst_fail(PST_IO, "%s: cannot rename to %s: %s", temp, path, strerror(errno));
  return sync_parent(path);
}

pst_status pst_file_write(const char *path, const void *bytes, size_t n) {
  char *temp = NULL;
  int fd = -1;
  pst_status st = PST_OK;
  PST_TRY(pst_file_temp_path(path, &temp));
  PST_GOTO(st, pst_file_create(temp, &fd), done);
  PST_GOTO(st, pst_file_pwrite(fd, bytes, n, 0, temp), unlink);
  PST_GOTO(st, pst_file_sync(fd, temp), unlink);
  PST_GOTO(st, pst_file_publish(temp, path), unlink);
  goto done;
unlink:
  unlink(temp);
done:
  if (fd >= 0) close(fd);
  free(temp);
  return st;
}

pst_status pst_path_join(const char *dir, const char *name, char **out_path) {
  size_t n = strlen(dir) + strlen(name) + 2;
  char *path = malloc(n);
  if (!path) return pst_fail(PST_NO_MEMORY, "%s/%s: no memory for a path of %zu bytes", dir, name, n);
  snprintf(path, n, "%s/%s", dir, name);
  *out_path = path;
  return PST_OK;
}

static pst_status make_one_dir(const char *path) {
  if (mkdir(path, 0777) == 0) return PST_OK;
  int reason = errno;
  struct stat info;
  if (reason == EEXIST && stat(path, &info) == 0) {
    if (S_ISDIR(info.st_mode)) return PST_OK;
    return pst_fail(PST_INVALID, "%s: is there and no directory, wanted a directory", path);
  }
  return pst_fail(PST_IO, "%s: cannot make directory: %s", path, strerror(reason));
}

pst_status pst_dir_create(const char *path) {
  char *prefix = strdup(path);
  if (!prefix) return pst_fail(PST_NO_MEMORY, "%s: no memory for a copy of the path", path);
  pst_status st = PST_OK;
  for (char *slash = strchr(prefix + (*prefix != 0), '/'); slash && st == PST_OK;
       slash = strchr(slash + 1, '/')) {
    *slash = 0;
    st = make_one_dir(prefix);
    *slash = '/';
  }
  if (st == PST_OK) st = make_one_dir(prefix);
  free(prefix);
  return st;
}

pst_status pst_dir_lock(const char *path, int *out_fd) {
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return pst_fail(PST_IO, "%s: cannot open directory: %s", path, strerror(errno));
  if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    close(fd);
    return pst_fail(PST_INVALID, "%s: is in use by another run, wanted one at a time", path);
  }
  *out_fd = fd;
  return PST_OK;
}

pst_status pst_dir_sync(const char *path) {
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return pst_fail(PST_IO, "%s: cannot open directory: %s", path, strerror(errno));
  /* some file systems have no sync of directories and answer EINVAL */
  pst_status st = PST_OK;
  if (fsync(fd) != 0 && errno != EINVAL) st = pst_fail(PST_IO, "%s: cannot sync: %s", path, strerror(errno));
  close(fd);
  return st;
}

static pst_status split_path(const char *path, char **out_dir, const char **out_name) {
  const char *slash = strrchr(path, '/');
  char *dir = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
  if (!dir) return pst_fail(PST_NO_MEMORY, "%s: no memory for its directory's path", path);
  *out_dir = dir;
  *out_name = slash ? slash + 1 : path;
  return PST_OK;
}

/* After this the old directory, if there was one, is at `temp`. */
static pst_status exchange_dirs(const char *temp, const char *path) {
  if (rename(temp, path) == 0) return PST_OK; /* nothing, or an empty directory, was there */
  if (errno != ENOTEMPTY && errno != EEXIST)
    return pst_fail(PST_IO, "%s: cannot rename to %s: %s", temp, path, strerror(errno));
  if (renameat2(AT_FDCWD, temp, AT_FDCWD, path, RENAME_EXCHANGE) == 0) return PST_OK;
  if (errno != EINVAL && errno != ENOSYS)
    return pst_fail(PST_IO, "%s: cannot exchange for %s: %s", temp, path, strerror(errno));
  /* this file system cannot exchange: for a moment neither is visible, never a half */
  char *old = NULL;
  PST_TRY(pst_file_temp_path(temp, &old));
  pst_status st = PST_OK;
  if (rename(path, old) != 0 || rename(temp, path) != 0 || rename(old, temp) != 0)
    st = pst_fail(PST_IO, "%s: cannot take the place of %s: %s", temp, path, strerror(errno));
  free(old);
  return st;
}

pst_status pst_dir_publish(const char *temp, const char *path) {
  char *dir = NULL;
  const char *name = NULL;
  pst_status st = PST_OK;
  PST_TRY(split_path(temp, &dir, &name));
  PST_GOTO(st, exchange_dirs(temp, path), done);
  PST_GOTO(st, sync_parent(path), done);
  PST_GOTO(st, pst_dir_remove(dir, name), done);
done:
  free(dir);
  return st;
}

static int by_name(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

void pst_dir_list_free(char **names, size_t n) {
  for (size_t i = 0; i < n; i++) free(names[i]);
  free(names);
}

static int is_dot(const char *name) {
  return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

pst_status pst_dir_list(const char *path, char ***out_names, size_t *out_n) {
  char **names = NULL;
  size_t n = 0, room = 0;
  DIR *dir = opendir(path);
  if (!dir) return pst_fail(PST_IO, "%s: cannot list: %s", path, strerror(errno));
  pst_status st = PST_OK;
  for (;;) {
    errno = 0;
    struct dirent *entry = readdir(dir);
    if (!entry) break;
    if (is_dot(entry->d_name)) continue;
    if (n == room) {
      size_t more = room ? 2 * room : 16;
      char **grown = realloc(names, more * sizeof *names);
      if (!grown) {
        st = pst_fail(PST_NO_MEMORY, "%s: no memory for a list of %zu names", path, more);
        goto done;
      }
      names = grown;
      room = more;
    }
    names[n] = strdup(entry->d_name);
    if (!names[n]) {
      st = pst_fail(PST_NO_MEMORY, "%s: no memory for the name of entry %zu", path, n);
      goto done;
    }
    n++;
  }
  if (errno) {
    st = pst_fail(PST_IO, "%s: cannot list: %s", path, strerror(errno));
    goto done;
  }
  if (n) qsort(names, n, sizeof *names, by_name);
  *out_names = names;
  *out_n = n;
  names = NULL;
  n = 0;
done:
  pst_dir_list_free(names, n);
  closedir(dir);
  return st;
}

/* Removes `name` below the open directory `at`; `shown` is for messages. */
static pst_status remove_below(int at, const char *name, const char *shown, int depth) {
  if (unlinkat(at, name, 0) == 0 || errno == ENOENT) return PST_OK;
  if (errno != EISDIR && errno != EPERM)
    return pst_fail(PST_IO, "%s: cannot remove %s: %s", shown, name, strerror(errno));
  if (depth == TREE_DEPTH_MAX)
    return pst_fail(PST_INVALID, "%s: is deeper than %d directories, not removed", shown, TREE_DEPTH_MAX);
  int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return pst_fail(PST_IO, "%s: cannot open %s: %s", shown, name, strerror(errno));
  DIR *dir = fdopendir(fd);
  if (!dir) {
    close(fd);
    return pst_fail(PST_IO, "%s: cannot list %s: %s", shown, name, strerror(errno));
  }
  pst_status st = PST_OK;
  for (struct dirent *entry; st == PST_OK && (entry = readdir(dir));)
    if (!is_dot(entry->d_name)) st = remove_below(dirfd(dir), entry->d_name, shown, depth + 1);
  closedir(dir);
  if (st == PST_OK && unlinkat(at, name, AT_REMOVEDIR) != 0)
    st = pst_fail(PST_IO, "%s: cannot remove %s: %s", shown, name, strerror(errno));
  return st;
}

pst_status pst_dir_remove(const char *dir, const char *name) {
  if (!*name || is_dot(name) || strchr(name, '/'))
    return pst_fail(PST_INVALID, "%s: cannot remove \"%s\": wanted the name of one entry", dir, name);
  int at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (at < 0) return pst_fail(PST_IO, "%s: cannot open directory: %s", dir, strerror(errno));
  pst_status st = remove_below(at, name, dir, 0);
  close(at);
  return st;
}

enum { READ_BYTES = 1 << 20 };

pst_status pst_file_hash(const char *path, uint64_t *out_bytes, uint64_t *out_hash) {
  int fd = -1;
  uint64_t bytes = 0;
  unsigned char *buffer = NULL;
  pst_hash hash;
  pst_status st = PST_OK;
  pst_hash_init(&hash, 0);
  PST_GOTO(st, pst_file_open(path, &fd, &bytes), done);
  buffer = malloc(READ_BYTES);
  if (!buffer) {
    st = pst_fail(PST_NO_MEMORY, "%s: no memory for a buffer of %d bytes", path, READ_BYTES);
    goto done;
  }
  for (uint64_t at = 0; at < bytes;) {
    size_t n = bytes - at < READ_BYTES ? (size_t)(bytes - at) : READ_BYTES;
    PST_GOTO(st, pst_file_pread(fd, buffer, n, at, path), done);
    pst_hash_update(&hash, buffer, n);
    at += n;
  }
  *out_bytes = bytes;
  *out_hash = pst_hash_value(&hash);
done:
  free(buffer);
  if (fd >= 0) close(fd);
  return st;
}
