/* What the subcommands of `penstock` share: the reading of options, one way to fail, one way to end.
 *
 *   int command_eval(int argc, char **argv) {
 *     int64_t step = -1;
 *     const option options[] = {{"step", "N", OPTION_INTEGER, &step, "checkpoint of this step"}, {0}};
 *     const command_usage usage = {.name = "eval", .arguments = {"DIR"}, .required = 1, .options = options,
 * ...}; char *arguments[MAX_ARGUMENTS]; int status; if (!usage_read(&usage, argc, argv, arguments, &status))
 * return status;   // --help, or a wrong line
 *     ...
 *     return command_end(st);                                                   // the exit status
 *   }
 *
 * A subcommand is a function in a file of its own and a row in the table of main.c. It is written with
 * core/penstock.h alone.
 */
#ifndef PENSTOCK_TOOLS_COMMAND_H
#define PENSTOCK_TOOLS_COMMAND_H

#include "core/penstock.h"

#include <stdbool.h>
#include <stdint.h>

enum { MAX_ARGUMENTS = 2, MAX_TEXTS = 256, EXIT_BAD_INPUT = 2 };

/* ---- the table ---- */

typedef struct command {
  const char *name;
  int (*run)(int argc, char **argv); /* argv[0] is the subcommand's name; returns the exit status */
  const char *help;                  /* one line */
} command;

/* Every subcommand; ends with a NULL name. */
extern const command commands[];

/* Prints the list of subcommands. */
void command_list(void);

/* The subcommand of this name; NULL, with one line on stderr that names the nearest, when there is none. */
const command *command_find(const char *name);

int command_devices(int argc, char **argv);
int command_train(int argc, char **argv);
int command_eval(int argc, char **argv);
int command_generate(int argc, char **argv);
int command_export(int argc, char **argv);
int command_simulate(int argc, char **argv);
int command_settings(int argc, char **argv);
int command_help(int argc, char **argv);

/* ---- options ---- */

/* Texts of an option that may be repeated. */
typedef struct option_texts {
  const char *items[MAX_TEXTS];
  int n;
} option_texts;

typedef enum option_kind {
  OPTION_FLAG,    /* bool */
  OPTION_TEXT,    /* const char * */
  OPTION_TEXTS,   /* option_texts */
  OPTION_INTEGER, /* int64_t, not below zero */
  OPTION_NUMBER   /* double, finite, not below zero */
} option_kind;

typedef struct option_row {
  const char *name;     /* without its dashes; NULL ends the list */
  const char *argument; /* as the help names it; NULL for a flag */
  option_kind kind;
  void *target; /* of the kind's type; left alone when the option is not given */
  const char *help;
} option_row;

/* The --set of every subcommand that takes settings. */
#define OPTION_SET(target)                                                                                   \
  { "set", "A.B=C", OPTION_TEXTS, target, "change a setting; may be repeated (see 'penstock settings')" }

typedef struct command_usage {
  const char *name;
  const char *arguments[MAX_ARGUMENTS]; /* "RUN.yaml" */
  int required;                         /* the first so many of them must be given */
  const char *text;                     /* what it does, in lines of at most 78 columns */
  const option_row *options;            /* NULL: only --help */
  const char *examples[2];
} command_usage;

/* Reads argv into the options' targets and `out_arguments` (NULL where one is not given). False when there is
 * nothing more to do: help was printed, or one line on stderr says what is wrong; *out_exit is the status. */
bool usage_read(const command_usage *usage, int argc, char **argv, char *out_arguments[MAX_ARGUMENTS],
                int *out_exit);

/* ---- failing and ending ---- */

/* One line on stderr, "penstock: " and the text; returns the exit status of bad input. */
int command_refuse(const char *format, ...) PST_PRINTF(1, 2);

/* Says the library's message when `st` is an error; returns the exit status. Ends the process when a device
 * or peer hangs: the library could not be closed. To be called before a close, which may have messages of its
 * own. */
int command_end(pst_status st);

/* A log sink: warnings go to stderr; an error is left to command_end(), which says it once. */
void command_log(void *context, pst_log_level level, const char *line);

/* Options of a run for the library: a file or NULL, --set, and this process's environment. */
pst_run_options command_run_options(const char *file, const option_texts *sets);

/* How alike two words are: single letters to insert, remove, change or swap with their neighbour. */
int command_distance(const char *a, const char *b);

/* "12.5 GiB" */
const char *command_bytes(int64_t bytes, char out[32]);

#endif
