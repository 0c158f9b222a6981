/* Log lines: a level and a text, handed to a sink that the caller owns.
 *
 *   static void to_stderr(void *context, pst_log_level level, const char *line) {
 *     fprintf(stderr, "%s: %s\n", pst_log_level_name(level), line);
 *   }
 *   pst_logger *logger = NULL;
 *   PST_TRY(pst_logger_create(PST_LOG_INFO, to_stderr, NULL, &logger));
 *   pst_log(logger, PST_LOG_WARN, "%d stages on %d cores", n_stages, n_cores);
 *   pst_log_place here = {.worker = 1, .stage = 1, .microbatch = 7};
 *   pst_log_at(logger, PST_LOG_DEBUG, &here, "slot %d is free", slot);   // worker 1 stage 1 microbatch 7:
 * slot ... pst_logger_destroy(logger);
 *
 * A NULL logger takes every call and says nothing, so a library function may be given one.
 */
#ifndef PENSTOCK_BASE_LOG_H
#define PENSTOCK_BASE_LOG_H

#include "core/base/status.h"

#include <stdbool.h>

typedef enum pst_log_level { PST_LOG_ERROR, PST_LOG_WARN, PST_LOG_INFO, PST_LOG_DEBUG } pst_log_level;

/* Where in a run a line comes from; a member below zero is left out of the line. */
typedef struct pst_log_place {
  int worker;
  int stage;
  int microbatch;
} pst_log_place;

/* Receives one line without its newline, at most 1,023 bytes, valid during the call. Calls of one logger
 * never overlap, from whatever threads they come; a sink must not log to its own logger. */
typedef void (*pst_log_sink)(void *context, pst_log_level level, const char *line);

typedef struct pst_logger pst_logger;

/* Lines up to `level` go to `sink`, which gets `context`; a NULL sink drops all. */
pst_status pst_logger_create(pst_log_level level, pst_log_sink sink, void *context,
                             pst_logger **out_logger) PST_CHECKED;

/* Ends the logger; no other thread may be using it. NULL is legal. */
void pst_logger_destroy(pst_logger *logger);

/* Changes what is let through, from any thread. */
void pst_logger_set_level(pst_logger *logger, pst_log_level level);

/* Whether a line of this level would reach a sink: for lines that are costly to make. */
bool pst_log_enabled(const pst_logger *logger, pst_log_level level);

/* Writes one line; any thread. */
void pst_log(pst_logger *logger, pst_log_level level, const char *format, ...) PST_PRINTF(3, 4);

/* The same with "worker w stage s microbatch m: " in front; a NULL place puts nothing there. */
void pst_log_at(pst_logger *logger, pst_log_level level, const pst_log_place *place, const char *format, ...)
    PST_PRINTF(4, 5);

/* "error", "warn", "info", "debug". */
const char *pst_log_level_name(pst_log_level level);

#endif
