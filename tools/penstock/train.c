#include "tools/penstock/command.h"
#include "tools/penstock/progress.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- signals ---- */

static const int stop_signals[] = {SIGINT, SIGTERM, SIGUSR1};
enum { N_STOP_SIGNALS = sizeof stop_signals / sizeof stop_signals[0] };

/* A handler is given nothing but the signal: what it acts on has to be found here. */
static pst_run *_Atomic training;
static atomic_int n_signals;

static void say_from_handler(const char *text) {
  ssize_t n = write(STDERR_FILENO, text, strlen(text));
  (void)n; /* nobody to tell */
}

/* The first signal asks; the second has its default effect as soon as this returns. */
static void on_signal(int signal_number) {
  pst_run *run = atomic_load(&training);
  if (!run) {
    say_from_handler("penstock: stopped before the first step\n");
    _exit(pst_status_exit(PST_STOPPED));
  }
  if (atomic_fetch_add(&n_signals, 1) == 0) {
    pst_run_stop(run);
    say_from_handler(isatty(STDERR_FILENO) ? "\r\033[K" : "");
    say_from_handler("penstock: finishing step, writing a checkpoint; again to end at once\n");
  } else {
    signal(signal_number, SIG_DFL);
    raise(signal_number);
  }
}

/* A signal that was ignored from the start stays so: a shell ignores SIGINT for what it runs beside itself.
 */
static void set_handlers(void (*handler)(int)) {
  struct sigaction before, action = {.sa_handler = handler, .sa_flags = SA_RESTART};
  sigemptyset(&action.sa_mask);
  for (int i = 0; i < N_STOP_SIGNALS; i++)
    if (sigaction(stop_signals[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
      sigaction(stop_signals[i], &action, NULL);
}

/* ---- what is printed on the way ---- */

typedef struct watcher {
  progress progress;
  pst_run *run;
  bool quiet;
  bool stepped; /* there is something to report */
  bool unread;  /* standard output takes no more */
} watcher;

/* Called after each line. When its reader is gone the run ends as on a signal; any other reason is said. */
static void check_output(watcher *w) {
  int reason = errno;
  if (w->unread || !ferror(w->progress.out)) return;
  w->unread = true;
  pst_run_stop(w->run);
  if (reason != EPIPE) command_refuse("standard output: %s", strerror(reason));
}

/* What the library says on the way, from whatever thread. */
static void on_log(void *user, pst_log_level level, const char *line) {
  const watcher *w = user;
  if (level == PST_LOG_WARN && w->progress.terminal) fprintf(w->progress.out, PROGRESS_CLEAR);
  if (level == PST_LOG_INFO && !w->quiet) progress_note(&w->progress, line);
  command_log(NULL, level, line);
}

static void on_progress(void *user, const pst_run_progress *figures) {
  watcher *w = user;
  w->stepped = true;
  progress_update(&w->progress, figures);
  check_output(w);
}

static void on_evaluated(void *user, int64_t step, double loss) {
  watcher *w = user;
  progress_say(&w->progress, "step %lld: validation loss %#.5g", (long long)step, loss);
  check_output(w);
}

static void on_sampled(void *user, int64_t step, const char *text, size_t bytes) {
  watcher *w = user;
  progress_say(&w->progress, "step %lld: sample", (long long)step);
  /* A model that has learnt little writes any byte, and a terminal obeys some. */
  for (size_t i = 0; i < bytes; i++) {
    unsigned char c = (unsigned char)text[i];
    putc((c < ' ' && c != '\n' && c != '\t') || c == 127 ? '?' : c, w->progress.out);
  }
  putc('\n', w->progress.out);
  fflush(w->progress.out);
  check_output(w);
}

static void on_saved(void *user, int64_t step, const char *directory) {
  watcher *w = user;
  progress_say(&w->progress, "step %lld: saved %s", (long long)step, directory);
  check_output(w);
}

static void print_next(const char *directory) {
  printf("\nnext:\n"
         "  penstock eval %s\n"
         "  penstock generate %s\n"
         "  penstock export %s hf\n",
         directory, directory, directory);
}

/* ---- the subcommand ---- */

static int train(const char *file, const option_texts *sets, bool dry_run, bool quiet) {
  pst_run_options options = command_run_options(file, sets);
  watcher w = {.quiet = quiet};
  const pst_run_events events = {.progress = on_progress,
                                 .evaluated = on_evaluated,
                                 .sampled = on_sampled,
                                 .saved = on_saved,
                                 .user = &w};
  pst_run *run = NULL;
  pst_status st;
  int status;
  options.log = on_log;
  options.log_user = &w;
  progress_init(&w.progress, stdout);
  PST_GOTO(st, pst_run_open(&options, &run), done);
  w.run = run;
  if (!dry_run) atomic_store(&training, run);
  if (!quiet) PST_GOTO(st, pst_run_describe(run, stdout), done);
  fflush(stdout);
  if (dry_run) goto done;

  /* A reader that goes away must not take the training with it. */
  signal(SIGPIPE, SIG_IGN);
  st = pst_run_train(run, quiet ? NULL : &events);
  progress_end(&w.progress);
  set_handlers(SIG_DFL);
  if (quiet || w.unread) goto done;
  if (st == PST_STOPPED) printf("%s\n", pst_error());
  if (st != PST_OK) goto done;
  if (w.stepped) {
    printf("\n");
    PST_GOTO(st, pst_run_report(run, stdout), done);
  }
  print_next(pst_run_directory(w.run));
done:
  status = command_end(st);
  set_handlers(SIG_DFL);
  atomic_store(&training, NULL);
  pst_run_close(run);
  return status;
}

int command_train(int argc, char **argv) {
  bool dry_run = false, quiet = false;
  option_texts sets = {.n = 0};
  const option_row options[] = {
      OPTION_SET(&sets),
      {"dry-run", NULL, OPTION_FLAG, &dry_run, "check everything, print what would run, write nothing"},
      {"quiet", NULL, OPTION_FLAG, &quiet, "print nothing but errors and warnings"},
      {0},
  };
  const command_usage usage = {
      .name = "train",
      .arguments = {"RUN.yaml"},
      .required = 1,
      .text = "Trains what the run file describes, from its last checkpoint when there is one.\n"
              "SIGINT, SIGTERM or SIGUSR1 finishes the step, writes a checkpoint and exits with\n"
              "75; so does an output that is no longer read. The same command continues.\n"
              "A second signal ends at once. Other exit statuses: 0 done, 2 bad input, 3 not\n"
              "enough memory, 4 a device or peer lost, 5 a loss or gradient that is not finite.",
      .options = options,
      .examples = {"penstock train run.yaml --dry-run",
                   "penstock train run.yaml --set steps=2000 --set optimizer.lr.peak=1e-3"},
  };
  char *arguments[MAX_ARGUMENTS];
  int status;
  if (!usage_read(&usage, argc, argv, arguments, &status)) return status;
  set_handlers(on_signal);
  return train(arguments[0], &sets, dry_run, quiet);
}
