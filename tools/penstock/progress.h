/* What is seen of a training run: on a terminal one line that is rewritten, elsewhere one line for each log
 * interval.
 *
 *   progress p;
 *   progress_init(&p, stdout);
 *   progress_update(&p, &figures);                     // step 120/2000  loss 2.314 ...
 *   progress_say(&p, "step 120: saved %s", directory); // a line of its own, above the one that is rewritten
 *   progress_end(&p);                                  // the last figures stay
 */
#ifndef PENSTOCK_TOOLS_PROGRESS_H
#define PENSTOCK_TOOLS_PROGRESS_H

#include "core/penstock.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Empties the terminal's line. */
#define PROGRESS_CLEAR "\r\033[K"

typedef struct progress {
  FILE *out;
  bool terminal;
  bool shown;       /* the line on the terminal is ours to rewrite */
  bool stale;       /* `line` is newer than what is shown */
  int64_t shown_ns; /* when it was last written */
  char line[160];
} progress;

void progress_init(progress *p, FILE *out);
void progress_update(progress *p, const pst_run_progress *figures);
void progress_say(progress *p, const char *format, ...) PST_PRINTF(2, 3);
/* The same for a line that comes from any thread. */
void progress_note(const progress *p, const char *line);
void progress_end(progress *p);

#endif
