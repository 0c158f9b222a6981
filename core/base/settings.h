/* Typed settings: one table says what can be set; a YAML file, the environment and `--set` fill it in.
 *
 *   static const pst_setting table[] = {
 *       {.path = "steps", .type = PST_SETTING_INT, .min = 1, .max = 1e9, .help = "optimizer steps"},
 *       {.path = "optimizer.lr.peak", .type = PST_SETTING_FLOAT, .def = "3e-4", .shorthand = true, .help =
 * "..."},
 *       {.path = "optimizer.betas[]", .type = PST_SETTING_FLOAT, .def = "[0.9, 0.95]", .help = "..."},
 *       {.path = "stages[].device", .type = PST_SETTING_STRING, .help = "where the stage runs"},
 *   };
 *   pst_settings *s = NULL;
 *   PST_GOTO(st, pst_settings_create(table, 4, &s), done);
 *   PST_GOTO(st, pst_settings_load_file(s, "run.yaml"), done);
 *   PST_GOTO(st, pst_settings_load_environment(s, environ, reserved, logger), done);  //
 * PENSTOCK_OPTIMIZER_LR_PEAK=1e-3 PST_GOTO(st, pst_settings_set(s, "stages.1.device=cpu"), done); int64_t
 * steps = pst_settings_int(s, "steps"); for (size_t i = 0; i < pst_settings_count(s, "stages"); i++)
 *     use(pst_settings_string(s, "stages.%zu.device", i));
 *   if (steps % 2) st = pst_settings_fail(s, "steps", PST_INVALID, "wanted an even number");
 *                                                     // run.yaml:3:8: steps = 7: wanted an even number
 *
 * A path names keys from the outermost in, joined by dots. In the table `[]` after a name makes it a list, at
 * most once in a path: `stages[].device` is a list of maps, `betas[]` a list of numbers. Elsewhere an element
 * is named by its index from zero: `stages.2.device`, `optimizer.betas.1`.
 *
 * The later call wins: load the file, then the environment, then each `--set`. Every value keeps where it
 * came from ("run.yaml:12:7", "PENSTOCK_STEPS", "--set", "default"). After a failed load or set the settings
 * may hold part of the input; they can only be destroyed. One thread at a time.
 */
#ifndef PENSTOCK_BASE_SETTINGS_H
#define PENSTOCK_BASE_SETTINGS_H

#include "core/base/log.h"
#include "core/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum {
  PST_SETTINGS_MAX_BYTES = 1 << 20, /* of a file */
  PST_SETTINGS_MAX_DEPTH = 16,      /* of nested maps and lists */
  PST_SETTINGS_MAX_ITEMS = 4096     /* of a list */
};

typedef enum pst_setting_type {
  PST_SETTING_BOOL,   /* true, false */
  PST_SETTING_INT,    /* decimal, 64-bit */
  PST_SETTING_FLOAT,  /* decimal, finite */
  PST_SETTING_STRING, /* any text, as written */
  PST_SETTING_SIZE,   /* bytes, or with KiB MiB GiB TiB, kB MB GB TB; fractions are taken: 1.5GiB */
  PST_SETTING_TIME,   /* with ns us ms s min h */
  PST_SETTING_ENUM    /* one of `words` */
} pst_setting_type;

/* One row of the table. Everything is text or number that outlives the settings. */
typedef struct pst_setting {
  const char *path;
  pst_setting_type type;
  const char *def;   /* default, as one would write it in the file; NULL: none */
  const char *words; /* ENUM: "cosine|linear"; for a number, words taken in its place, such as "auto" */
  double min, max;   /* inclusive (bytes, nanoseconds); held to only where min < max */
  bool shorthand;    /* a plain value where the enclosing map is expected means this key */
  const char *help;  /* one line */
} pst_setting;

typedef struct pst_settings pst_settings;

/* `table` of n_rows rows is borrowed until destroy. PST_INTERNAL when the table contradicts itself. */
pst_status pst_settings_create(const pst_setting *table, size_t n_rows,
                               pst_settings **out_settings) PST_CHECKED;
void pst_settings_destroy(pst_settings *settings);

/* Reads a YAML file (UTF-8, one document, no anchors, aliases or tags). PST_IO when it cannot be read,
 * PST_INVALID with file, line and column (from 1) when its contents are refused. */
pst_status pst_settings_load_file(pst_settings *settings, const char *path) PST_CHECKED;

/* The same from memory; `name` stands for the file in messages and origins. */
pst_status pst_settings_load_text(pst_settings *settings, const char *name, const char *text,
                                  size_t n_bytes) PST_CHECKED;

/* Takes every PENSTOCK_A_B=value of `environment` ("NAME=value" strings, NULL at the end) whose name is a
 * path in capitals with underscores for dots. The value is YAML. Names of other PENSTOCK_* variables are
 * warned about, unless they are in `reserved` (NULL at the end; NULL: none). `logger` may be NULL. */
pst_status pst_settings_load_environment(pst_settings *settings, char *const *environment,
                                         const char *const *reserved, pst_logger *logger) PST_CHECKED;

/* Takes "path=value"; the value is YAML. An index one past the end of a list appends. */
pst_status pst_settings_set(pst_settings *settings, const char *assignment) PST_CHECKED;

/* Gives `path` a worked-out default, with origin "default", unless it was set; `text` as in a table row. */
pst_status pst_settings_default(pst_settings *settings, const char *path, const char *text) PST_CHECKED;

/* Values by path, which is formatted like printf. 0, false or NULL where there is no value. Strings live
 * until the setting changes. A path that is not in the table or of another type gives the same and is
 * remembered for pst_settings_misuse(). */
bool pst_settings_bool(pst_settings *settings, const char *path, ...) PST_PRINTF(2, 3);
int64_t pst_settings_int(pst_settings *settings, const char *path, ...) PST_PRINTF(2, 3);
double pst_settings_float(pst_settings *settings, const char *path, ...) PST_PRINTF(2, 3);
const char *pst_settings_string(pst_settings *settings, const char *path, ...) PST_PRINTF(2, 3);
int64_t pst_settings_size_bytes(pst_settings *settings, const char *path, ...) PST_PRINTF(2, 3);
int64_t pst_settings_time_ns(pst_settings *settings, const char *path, ...) PST_PRINTF(2, 3);

/* Index of the value among the row's words, for ENUM and for words in place of a number; -1: no word. */
int pst_settings_word(pst_settings *settings, const char *path, ...) PST_PRINTF(2, 3);

/* Items in a list. */
size_t pst_settings_count(pst_settings *settings, const char *path, ...) PST_PRINTF(2, 3);

/* Whether somebody set it: false for a default. A list is set when any part of it is. */
bool pst_settings_is_set(pst_settings *settings, const char *path, ...) PST_PRINTF(2, 3);

/* Where the value came from; "unset" where there is none. For a list, that of its first value. */
const char *pst_settings_origin(pst_settings *settings, const char *path, ...) PST_PRINTF(2, 3);

/* The value as it was written; NULL where there is none. */
const char *pst_settings_text(pst_settings *settings, const char *path, ...) PST_PRINTF(2, 3);

/* Records "origin: path = value: " + the formatted message and returns `status`. */
pst_status pst_settings_fail(pst_settings *settings, const char *path, pst_status status, const char *format,
                             ...) PST_PRINTF(4, 5);

/* PST_INTERNAL with the first path that a getter was wrongly asked for. */
pst_status pst_settings_misuse(const pst_settings *settings) PST_CHECKED;

/* Writes the table with current values and origins, for people. PST_IO when `file` refuses. */
pst_status pst_settings_print(pst_settings *settings, FILE *file) PST_CHECKED;

/* Writes every value there is, defaults too, as YAML that loads to the same values. PST_IO when `file`
 * refuses. */
pst_status pst_settings_write(pst_settings *settings, FILE *file) PST_CHECKED;

#endif
