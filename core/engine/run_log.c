#include "core/engine/run_internal.h"

#include "core/base/cores.h"
#include "core/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

enum { LINE_BYTES = 512, STAGE_BYTES = 64 };

/* ---- run.yaml and env.json ---- */

static pst_status write_runfile(pst_run *run) {
  char *path = NULL, *text = NULL;
  size_t n = 0;
  FILE *memory = open_memstream(&text, &n);
  if (!memory) return pst_fail(PST_NO_MEMORY, "no memory for the resolved run file");
  pst_status st = pst_settings_write(run->settings, memory);
  if (fclose(memory) != 0 && st == PST_OK)
    st = pst_fail(PST_NO_MEMORY, "no memory for the resolved run file");
  if (st == PST_OK) st = pst_path_join(run->directory, "run.yaml", &path);
  if (st == PST_OK) st = pst_file_write(path, text, n);
  free(path);
  free(text);
  return st;
}

static json_t *stage_json(const pst_run *run, int s) {
  pst_device_info info;
  pst_device *d = run->assembly->devices[run->assembly->worker_of[s]];
  d->table->query(d, &info);
  return json_pack("{s:i, s:s, s:s, s:s, s:i}", "stage", s, "device", info.name, "description",
                   info.description, "numerics", info.numerics, "threads",
                   run->assembly->threads[run->assembly->worker_of[s]]);
}

static pst_status write_environment(const pst_run *run) {
  char *path = NULL, *text = NULL;
  struct utsname os;
  pst_cores cores = {.n = 0};
  json_t *stages = json_array();
  pst_status st = PST_OK;
  if (uname(&os) != 0) memset(&os, 0, sizeof os);
  if (pst_cores_usable(&cores) != PST_OK) cores.n = 0;
  for (int s = 0; s < run->assembly->n_stages; s++) json_array_append_new(stages, stage_json(run, s));
  json_t *root = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:o}", "penstock", pst_version(), "compiler",
                           __VERSION__, "host", os.nodename, "system", os.sysname, "release", os.release,
                           "machine", os.machine, "cores", cores.n, "stages", stages);
  if (root) text = json_dumps(root, JSON_INDENT(2));
  json_decref(root);
  if (!text) return pst_fail(PST_NO_MEMORY, "no memory for env.json");
  PST_GOTO(st, pst_path_join(run->directory, "env.json", &path), done);
  st = pst_file_write(path, text, strlen(text));
done:
  free(path);
  free(text);
  return st;
}

/* ---- appending ---- */

/* The step a line is about; -1: of none. */
static int64_t step_of_record(const char *line) {
  const char *at = strstr(line, "\"step\": ");
  return at ? strtoll(at + strlen("\"step\": "), NULL, 10) : -1;
}

static int64_t step_of_sample(const char *line) {
  return strncmp(line, "=== step ", 9) == 0 ? strtoll(line + 9, NULL, 10) : -1;
}

/* Where the first line stands that is about a later step or was cut off in the middle: steps that are done
 * again are written again. */
static pst_status find_end(const char *path, int64_t step, int64_t (*step_of)(const char *),
                           int64_t *out_bytes) {
  FILE *file = fopen(path, "re");
  *out_bytes = 0;
  if (!file)
    return errno == ENOENT ? PST_OK : pst_fail(PST_IO, "%s: cannot be opened: %s", path, strerror(errno));
  char *line = NULL;
  size_t room = 0;
  for (ssize_t n; (n = getline(&line, &room, file)) > 0;) {
    if (line[n - 1] != '\n' || step_of(line) > step) break;
    *out_bytes += n;
  }
  free(line);
  fclose(file);
  return PST_OK;
}

static pst_status open_at(pst_run *run, const char *name, int64_t (*step_of)(const char *), int *out_fd) {
  char *path = NULL;
  int64_t end;
  PST_TRY(pst_path_join(run->directory, name, &path));
  pst_status st = find_end(path, run->step, step_of, &end);
  if (st == PST_OK) {
    *out_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (*out_fd < 0 || ftruncate(*out_fd, end) != 0)
      st = pst_fail(PST_IO, "%s: cannot be written: %s", path, strerror(errno));
  }
  free(path);
  return st;
}

pst_status pst__run_log_open(pst_run *run) {
  PST_TRY(pst_dir_create(run->directory));
  PST_TRY(write_runfile(run));
  PST_TRY(write_environment(run));
  run->log.room = LINE_BYTES + STAGE_BYTES * (size_t)run->assembly->n_stages;
  free(run->log.line);
  run->log.line = malloc(run->log.room);
  if (!run->log.line) return pst_fail(PST_NO_MEMORY, "no memory for a line of log.jsonl");
  PST_TRY(open_at(run, "log.jsonl", step_of_record, &run->log.fd));
  if (run->file.sample.every > 0) PST_TRY(open_at(run, "samples.txt", step_of_sample, &run->log.samples_fd));
  return PST_OK;
}

void pst__run_log_close(pst_run *run) {
  if (run->log.fd >= 0) close(run->log.fd);
  if (run->log.samples_fd >= 0) close(run->log.samples_fd);
  free(run->log.line);
  run->log = (pst__run_log){.fd = -1, .samples_fd = -1};
}

static pst_status write_all(const pst_run *run, int fd, const char *name, const char *text, size_t n) {
  while (n > 0) {
    ssize_t wrote = write(fd, text, n);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return pst_fail(PST_IO, "%s/%s: %s", run->directory, name, strerror(errno));
    text += wrote;
    n -= (size_t)wrote;
  }
  return PST_OK;
}

static void add(pst__run_log *log, size_t *used, const char *format, ...) PST_PRINTF(3, 4);

static void add(pst__run_log *log, size_t *used, const char *format, ...) {
  va_list args;
  va_start(args, format);
  int n = vsnprintf(log->line + *used, log->room - *used, format, args);
  va_end(args);
  if (n > 0 && *used + (size_t)n < log->room) *used += (size_t)n;
}

static double ms(int64_t ns) {
  return (double)ns / 1e6;
}

pst_status pst__run_log_step(pst_run *run, const pst_step_result *r, double lr, int64_t data_wait_ns) {
  pst__run_log *log = &run->log;
  size_t n = 0;
  int64_t ns = r->step_ns + data_wait_ns;
  add(log, &n,
      "{\"step\": %" PRId64 ", \"tokens\": %" PRIu64 ", \"loss\": %.17g, \"grad_norm\": %.17g, \"lr\": %.9g, "
      "\"tokens_per_s\": %.1f, \"step_ms\": %.3f, \"data_wait_ms\": %.3f, \"busy_ms\": [",
      run->step, run->tokens, r->loss, r->gradient_norm, lr,
      ns > 0 ? (double)r->tokens * 1e9 / (double)ns : 0.0, ms(r->step_ns), ms(data_wait_ns));
  for (int s = 0; s < run->assembly->n_stages; s++)
    add(log, &n, "%s%.3f", s ? ", " : "", ms(run->after[s].busy_ns - run->before[s].busy_ns));
  add(log, &n, "], \"wait_ms\": [");
  for (int s = 0; s < run->assembly->n_stages; s++)
    add(log, &n, "%s%.3f", s ? ", " : "", ms(run->after[s].wait_ns - run->before[s].wait_ns));
  add(log, &n, "]}\n");
  return write_all(run, log->fd, "log.jsonl", log->line, n);
}

pst_status pst__run_log_event(pst_run *run, const char *event, const char *more) {
  pst__run_log *log = &run->log;
  size_t n = 0;
  add(log, &n, "{\"event\": \"%s\", \"step\": %" PRId64 "%s}\n", event, run->step, more);
  return write_all(run, log->fd, "log.jsonl", log->line, n);
}

pst_status pst__run_log_sample(pst_run *run, const char *text, size_t bytes) {
  char head[64];
  int n = snprintf(head, sizeof head, "=== step %" PRId64 " ===\n", run->step);
  PST_TRY(write_all(run, run->log.samples_fd, "samples.txt", head, (size_t)n));
  PST_TRY(write_all(run, run->log.samples_fd, "samples.txt", text, bytes));
  return write_all(run, run->log.samples_fd, "samples.txt", "\n", 1);
}
