#include "tools/penstock/progress.h"

#include <stdarg.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { REWRITE_NS = 200000000 }; /* at most five times a second */

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void progress_init(progress *p, FILE *out) {
  *p = (progress){.out = out, .terminal = isatty(fileno(out))};
}

/* "1m32s": the two largest units */
static void format_duration(double seconds, char out[24]) {
  if (!(seconds >= 0 && seconds < 1e10)) {
    snprintf(out, 24, "?");
    return;
  }
  long long s = (long long)(seconds + 0.5);
  if (s < 60)
    snprintf(out, 24, "%llds", s);
  else if (s < 3600)
    snprintf(out, 24, "%lldm%02llds", s / 60, s % 60);
  else if (s < 86400)
    snprintf(out, 24, "%lldh%02lldm", s / 3600, s / 60 % 60);
  else
    snprintf(out, 24, "%lldd%02lldh", s / 86400, s / 3600 % 24);
}

/* "48.2k" */
static void format_rate(double rate, char out[24]) {
  static const char *const units[] = {"", "k", "M", "G"};
  int unit = 0;
  while (rate >= 999.95 && unit < 3) rate /= 1000, unit++;
  snprintf(out, 24, unit ? "%.1f%s" : "%.0f%s", rate, units[unit]);
}

static void write_line(progress *p) {
  struct winsize size;
  int columns = (int)sizeof p->line;
  /* A line that wraps could not be rewritten. */
  if (ioctl(fileno(p->out), TIOCGWINSZ, &size) == 0 && size.ws_col > 1) columns = size.ws_col - 1;
  fprintf(p->out, "\r%.*s\033[K", columns, p->line);
  p->shown = true;
  p->stale = false;
  p->shown_ns = now_ns();
}

void progress_update(progress *p, const pst_run_progress *f) {
  char rate[24], eta[24];
  int width = snprintf(NULL, 0, "%lld", (long long)f->steps);
  format_rate(f->tokens_per_s, rate);
  format_duration(f->eta_s, eta);
  snprintf(p->line, sizeof p->line, "step %*lld/%lld  loss %#.4g  norm %#.3g  lr %.1e  %s tokens/s  eta %s",
           width, (long long)f->step, (long long)f->steps, f->loss, f->gradient_norm, f->lr, rate, eta);
  if (!p->terminal) {
    fprintf(p->out, "%s\n", p->line);
  } else {
    p->stale = true;
    if (p->shown && now_ns() - p->shown_ns < REWRITE_NS) return;
    write_line(p);
  }
  fflush(p->out);
}

void progress_say(progress *p, const char *format, ...) {
  va_list arguments;
  if (p->shown) fprintf(p->out, PROGRESS_CLEAR);
  p->shown = false;
  va_start(arguments, format);
  vfprintf(p->out, format, arguments);
  va_end(arguments);
  fputc('\n', p->out);
  fflush(p->out);
}

/* One call of stdio, so that it is whole; a line that was cleared is written again by the next update. */
void progress_note(const progress *p, const char *line) {
  fprintf(p->out, "%s%s\n", p->terminal ? PROGRESS_CLEAR : "", line);
}

void progress_end(progress *p) {
  if (p->terminal && (p->shown || p->stale)) {
    write_line(p);
    fputc('\n', p->out);
  }
  p->shown = p->stale = false;
  fflush(p->out);
}
