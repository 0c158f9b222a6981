#include "tools/penstock/command.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One line whatever the text holds: a value that somebody typed may have line ends in it. */
static void say(const char *start, const char *text) {
  char line[2048];
  int n = snprintf(line, sizeof line - 1, "penstock: %s%s", start, text);
  if (n > (int)sizeof line - 2) n = (int)sizeof line - 2;
  for (int i = 0; i < n; i++)
    if ((unsigned char)line[i] < ' ' || line[i] == 127) line[i] = ' ';
  line[n++] = '\n';
  fflush(stdout); /* what was printed comes first */
  fwrite(line, 1, (size_t)n, stderr);
}

int command_refuse(const char *format, ...) {
  char text[1536];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  say("", text);
  return EXIT_BAD_INPUT;
}

int command_end(pst_status st) {
  if (st != PST_OK && st != PST_STOPPED) say("", pst_error());
  /* A thread that does not end would be waited for. */
  if (st == PST_HUNG) _exit(pst_status_exit(st));
  return pst_status_exit(st);
}

void command_log(void *context, pst_log_level level, const char *line) {
  if (level == PST_LOG_WARN) say("warning: ", line);
}

pst_run_options command_run_options(const char *file, const option_texts *sets) {
  return (pst_run_options){
      .file = file, .sets = sets->items, .n_sets = sets->n, .environment = environ, .log = command_log};
}

/* Optimal string alignment, one row of the table at a time (Damerau 1964 names the four edits). */
int command_distance(const char *a, const char *b) {
  enum { MAX_WORD = 63 };
  int above2[MAX_WORD + 1] = {0}, above[MAX_WORD + 1], row[MAX_WORD + 1];
  int n = (int)strlen(b);
  if (n > MAX_WORD || strlen(a) > MAX_WORD) return MAX_WORD;
  for (int j = 0; j <= n; j++) above[j] = j;
  for (int i = 1; a[i - 1]; i++) {
    row[0] = i;
    for (int j = 1; j <= n; j++) {
      row[j] = above[j - 1] + (a[i - 1] != b[j - 1]);
      if (above[j] + 1 < row[j]) row[j] = above[j] + 1;
      if (row[j - 1] + 1 < row[j]) row[j] = row[j - 1] + 1;
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && above2[j - 2] + 1 < row[j])
        row[j] = above2[j - 2] + 1;
    }
    memcpy(above2, above, sizeof above);
    memcpy(above, row, sizeof row);
  }
  return above[n];
}

const char *command_bytes(int64_t bytes, char out[32]) {
  static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = (double)bytes;
  int unit = 0;
  while (value >= 1024 && unit < 4) value /= 1024, unit++;
  snprintf(out, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
  return out;
}
