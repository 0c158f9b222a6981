#include "core/base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { LINE_BYTES = 1024 };

struct pst_logger {
  pthread_mutex_t mutex;
  atomic_int level;
  pst_log_sink sink;
  void *context;
};

pst_status pst_logger_create(pst_log_level level, pst_log_sink sink, void *context, pst_logger **out_logger) {
  pst_logger *logger = malloc(sizeof *logger);
  if (!logger) return pst_fail(PST_NO_MEMORY, "log: no memory for a logger");
  if (pthread_mutex_init(&logger->mutex, NULL) != 0) {
    free(logger);
    return pst_fail(PST_NO_MEMORY, "log: the system gives no mutex");
  }
  atomic_init(&logger->level, (int)level);
  logger->sink = sink;
  logger->context = context;
  *out_logger = logger;
  return PST_OK;
}

void pst_logger_destroy(pst_logger *logger) {
  if (!logger) return;
  pthread_mutex_destroy(&logger->mutex);
  free(logger);
}

void pst_logger_set_level(pst_logger *logger, pst_log_level level) {
  if (logger) atomic_store(&logger->level, (int)level);
}

bool pst_log_enabled(const pst_logger *logger, pst_log_level level) {
  return logger && logger->sink && (int)level <= atomic_load(&logger->level);
}

static void append(char *line, size_t *used, int written) {
  if (written > 0) *used += (size_t)written;
  if (*used >= LINE_BYTES) *used = LINE_BYTES - 1;
  line[*used] = '\0';
}

static size_t put_place(char *line, const pst_log_place *place) {
  const struct {
    const char *name;
    int value;
  } parts[] = {{"worker", place->worker}, {"stage", place->stage}, {"microbatch", place->microbatch}};
  size_t used = 0;
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
    if (parts[i].value < 0) continue;
    append(
        line, &used,
        snprintf(line + used, LINE_BYTES - used, "%s%s %d", used ? " " : "", parts[i].name, parts[i].value));
  }
  if (used) append(line, &used, snprintf(line + used, LINE_BYTES - used, ": "));
  return used;
}

static void emit(pst_logger *logger, pst_log_level level, const pst_log_place *place, const char *format,
                 va_list args) {
  if (!pst_log_enabled(logger, level)) return;
  char line[LINE_BYTES] = "";
  size_t used = place ? put_place(line, place) : 0;
  append(line, &used, vsnprintf(line + used, LINE_BYTES - used, format, args));
  pthread_mutex_lock(&logger->mutex);
  logger->sink(logger->context, level, line);
  pthread_mutex_unlock(&logger->mutex);
}

void pst_log(pst_logger *logger, pst_log_level level, const char *format, ...) {
  va_list args;
  va_start(args, format);
  emit(logger, level, NULL, format, args);
  va_end(args);
}

void pst_log_at(pst_logger *logger, pst_log_level level, const pst_log_place *place, const char *format,
                ...) {
  va_list args;
  va_start(args, format);
  emit(logger, level, place, format, args);
  va_end(args);
}

const char *pst_log_level_name(pst_log_level level) {
  static const char *const names[] = {"error", "warn", "info", "debug"};
  return (unsigned)level < sizeof names / sizeof names[0] ? names[level] : "unknown";
}
