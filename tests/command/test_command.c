/* The command as a person or a script meets it: the built binary, run in a directory of its own, judged by
 * what it prints, its exit status and what it leaves behind. Every child is under a time limit of its own. */
#include "tests/support.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LIMIT_S = 60, TEXT_BYTES = 1 << 18, MAX_ARGS = 16 };

static char binary[PATH_MAX];
static char top[] = "/tmp/penstock-command-XXXXXX"; /* every test's directory is in it */

/* What a child left: its streams, and its exit status or the signal that ended it. */
typedef struct outcome {
  char out[TEXT_BYTES], err[TEXT_BYTES];
  int exit_status; /* -1: ended by a signal */
  int signal;
} outcome;

static outcome seen; /* of the latest child */

/* ---- children ---- */

static void read_file(const char *path, char *text) {
  int fd = open(path, O_RDONLY);
  ssize_t n = fd < 0 ? 0 : read(fd, text, TEXT_BYTES - 1);
  text[n > 0 ? n : 0] = '\0';
  if (fd >= 0) close(fd);
}

static void write_file(const char *path, const char *text) {
  FILE *f = fopen(path, "w");
  assert_non_null(f);
  assert_true(fputs(text, f) >= 0);
  assert_int_equal(fclose(f), 0);
}

/* Starts `penstock` with the words of `line`, parted by single blanks; output into files "out" and "err", or
 * standard output into `out_fd`. */
static pid_t start(const char *line, int out_fd) {
  char words[1024], *argv[MAX_ARGS + 2] = {(char *)"penstock"};
  int n = 1;
  assert_true(strlen(line) < sizeof words);
  strcpy(words, line);
  for (char *w = strtok(words, " "); w && n <= MAX_ARGS; w = strtok(NULL, " ")) argv[n++] = w;
  unlink("out");
  unlink("err");
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid) return pid;
  int out = out_fd >= 0 ? out_fd : open("out", O_WRONLY | O_CREAT | O_TRUNC, 0666);
  int err = open("err", O_WRONLY | O_CREAT | O_TRUNC, 0666);
  int in = open("/dev/null", O_RDONLY);
  dup2(in, 0);
  dup2(out, 1);
  dup2(err, 2);
  signal(SIGINT, SIG_DFL);
  alarm(LIMIT_S);
  execv(binary, argv);
  _exit(127);
}

static void finish(pid_t pid) {
  int status;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  read_file("out", seen.out);
  read_file("err", seen.err);
  seen.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  seen.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void run(const char *line) {
  finish(start(line, -1));
}

static void expect_exit(const char *line, int wanted) {
  if (seen.exit_status != wanted)
    fail_msg("penstock %s: exit status %d, signal %d, wanted %d\n%s%s", line, seen.exit_status, seen.signal,
             wanted, seen.out, seen.err);
}

static void run_ok(const char *line) {
  run(line);
  expect_exit(line, 0);
  if (seen.err[0]) fail_msg("penstock %s: on stderr: %s", line, seen.err);
}

/* Exit status 2, and one line on stderr that holds `text`. */
static void run_refused(const char *line, const char *text) {
  run(line);
  expect_exit(line, 2);
  const char *end = strchr(seen.err, '\n');
  if (strncmp(seen.err, "penstock: ", 10) != 0 || !end || end[1] || !strstr(seen.err, text))
    fail_msg("penstock %s: on stderr: '%s', wanted one line with '%s'", line, seen.err, text);
}

static void expect_text(const char *where, const char *text) {
  if (!strstr(where, text)) fail_msg("wanted '%s' in:\n%s", text, where);
}

/* Waits until a child's file holds `text`; false when the child ended before or the limit passed. */
static bool await(pid_t pid, const char *path, const char *text) {
  static char now[TEXT_BYTES];
  for (int i = 0; i < LIMIT_S * 100; i++) {
    siginfo_t info = {0};
    read_file(path, now);
    if (strstr(now, text)) return true;
    if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid) return false;
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  }
  return false;
}

/* ---- directories ---- */

static int remove_tree(const char *path) {
  char below[512];
  DIR *dir = opendir(path);
  if (!dir) return unlink(path);
  for (struct dirent *e; (e = readdir(dir));) {
    if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
    snprintf(below, sizeof below, "%s/%s", path, e->d_name);
    remove_tree(below);
  }
  closedir(dir);
  return rmdir(path);
}

static int entries(const char *path) {
  int n = 0;
  DIR *dir = opendir(path);
  assert_non_null(dir);
  for (struct dirent *e; (e = readdir(dir));) n += e->d_name[0] != '.';
  closedir(dir);
  return n;
}

static const char run_file[] = "name: tiny\n"
                               "model: {family: gpt2, layers: 1, heads: 2, width: 16}\n"
                               "data: {train: notes.txt, sequence: 16}\n"
                               "batch: {global: 4, micro: 2}\n"
                               "stages: [{device: cpu, threads: 1}, {device: cpu, threads: 1}]\n"
                               "steps: 20\n"
                               "eval: {every: 10, sequences: 8}\n"
                               "sample: {every: 10, prompt: the, tokens: 8}\n"
                               "checkpoint: {every: 10}\n"
                               "log: {every: 5}\n";

/* An empty directory but for a run file and the text that it trains on. */
static int setup(void **state) {
  if (chdir(top) != 0) return -1;
  remove_tree("here");
  if (mkdir("here", 0777) != 0 || chdir("here") != 0) return -1;
  FILE *f = fopen("notes.txt", "w");
  if (!f) return -1;
  for (int i = 0; i < 400; i++) fprintf(f, "the water of line %d turns wheel %d\n", i, i * 7 % 13);
  if (fclose(f) != 0) return -1;
  write_file("run.yaml", run_file);
  return 0;
}

/* ---- help and refusals ---- */

static const char *const subcommands[] = {"devices", "train",    "eval", "generate",
                                          "export",  "settings", "help"};
enum { N_SUBCOMMANDS = sizeof subcommands / sizeof subcommands[0] };

/* The last three lines: "examples:" and two that begin with the command. */
static void expect_examples(const char *line) {
  const char *examples = strstr(seen.out, "\nexamples:\n  penstock ");
  const char *second = examples ? strstr(examples + 13, "\n  penstock ") : NULL;
  const char *end = second ? strchr(second + 1, '\n') : NULL;
  if (!end || end[1]) fail_msg("penstock %s: wanted two examples at the end of:\n%s", line, seen.out);
}

static void test_help_ends_with_examples(void **state) {
  static const char *const forms[] = {"%s -h", "%s --help", "help %s"};
  for (int i = 0; i < N_SUBCOMMANDS; i++)
    for (int f = 0; f < 3; f++) {
      char line[64];
      snprintf(line, sizeof line, forms[f], subcommands[i]);
      run_ok(line);
      expect_examples(line);
    }
  run_ok("help");
  expect_examples("help");
  for (int i = 0; i < N_SUBCOMMANDS; i++) expect_text(seen.out, subcommands[i]);
  run_ok("--help");
  expect_examples("--help");
}

static void test_version(void **state) {
  run_ok("--version");
  assert_int_equal(strncmp(seen.out, "penstock ", 9), 0);
  assert_int_equal(strcspn(seen.out, "\n") + 1, strlen(seen.out));
}

static void test_unknown_words(void **state) {
  run("");
  expect_exit("", 2);
  run_refused("trian", "unknown command 'trian', did you mean 'train'?");
  run_refused("help exprot", "did you mean 'export'?");
  run_refused("zzzzzzzz", "'penstock help' lists them");
  run_refused("--verbose", "unknown option --verbose");
  for (int i = 0; i < N_SUBCOMMANDS; i++) {
    char line[64];
    snprintf(line, sizeof line, "%s --frobnicate", subcommands[i]);
    run_refused(line, "unknown option --frobnicate");
    snprintf(line, sizeof line, "%s -q", subcommands[i]);
    run_refused(line, "unknown option -q");
  }
  run_refused("train run.yaml --sett steps=3", "did you mean --set?");
}

static void test_wrong_arguments(void **state) {
  run_refused("train", "train: needs RUN.yaml");
  run_refused("export runs/tiny", "export: needs OUT");
  run_refused("train run.yaml more", "'more' is one argument too many");
  run_refused("train run.yaml --set", "--set needs A.B=C");
  run_refused("train run.yaml --quiet=3", "--quiet takes no value");
  run_refused("eval runs/tiny --step ten", "--step 'ten', wanted a whole number not below zero");
  run_refused("eval runs/tiny --step -1", "--step '-1'");
  run_refused("eval runs/tiny --step 99999999999999999999", "--step '99999999999999999999'");
  run_refused("generate runs/tiny --temperature warm", "--temperature 'warm', wanted a number");
  run_refused("generate runs/tiny --temperature nan", "--temperature 'nan'");
  run_refused("generate runs/tiny --ids 1,x", "--ids: 'x'");
  run_refused("generate runs/tiny --ids 1,-4", "--ids: '-4'");
  run_refused("generate runs/tiny --ids 1 --prompt the", "wanted at most one");
  run_refused("generate runs/tiny --ids-file absent", "--ids-file: absent: No such file");
}

static void test_wrong_input(void **state) {
  run_refused("train absent.yaml", "absent.yaml");
  run_refused("settings absent.yaml", "absent.yaml");
  run_refused("eval absent", "absent");
  run_refused("generate absent", "absent");
  run_refused("export absent out", "absent");
  run_refused("train run.yaml --set stepz=3", "stepz");
  run_refused("settings run.yaml --set stepz=3", "stepz");
  run_refused("train run.yaml --set data.train=absent.txt", "absent.txt");
  write_file("bad.yaml", "steps: 3\nmodle: {}\n");
  run_refused("train bad.yaml", "bad.yaml:2:");
  assert_int_equal(access("runs", F_OK), -1);
}

/* ---- what there is ---- */

static void test_devices(void **state) {
  run_ok("devices");
  expect_text(seen.out, "cpu");
  expect_text(seen.out, "memory");
  expect_text(seen.out, "kernels");
}

static void test_settings(void **state) {
  run_ok("settings run.yaml --set optimizer.lr.peak=0.0125");
  expect_text(seen.out, "optimizer.lr.peak");
  expect_text(seen.out, "0.0125");
  expect_text(seen.out, "--set");
  run_ok("settings");
  expect_text(seen.out, "checkpoint.every");
}

/* ---- training ---- */

static void test_dry_run_writes_nothing(void **state) {
  int before = entries(".");
  run_ok("train run.yaml --dry-run");
  expect_text(seen.out, "stage");
  assert_null(strstr(seen.out, "tokens/s"));
  assert_int_equal(entries("."), before + 2); /* the two streams that this test captures */
}

static double loss_of(const char *line) {
  double loss = -1;
  run_ok(line);
  assert_int_equal(sscanf(seen.out, "loss %lf", &loss), 1);
  return loss;
}

static void test_from_training_to_export(void **state) {
  run_ok("train run.yaml");
  expect_text(seen.out, "step  5/20  loss ");
  expect_text(seen.out, "step 20/20  loss ");
  expect_text(seen.out, "  norm ");
  expect_text(seen.out, "  lr ");
  expect_text(seen.out, " tokens/s  eta 0s\n");
  expect_text(seen.out, "step 10: validation loss ");
  expect_text(seen.out, "step 10: sample\n");
  expect_text(seen.out, "step 20: saved runs/tiny/checkpoints/step-000020\n");
  expect_text(seen.out, "\n  penstock eval runs/tiny\n");
  expect_text(seen.out, "\n  penstock generate runs/tiny\n");
  expect_text(seen.out, "\n  penstock export runs/tiny ");

  double loss = loss_of("eval runs/tiny");
  assert_true(loss > 0 && loss < 6); /* 256 equally likely bytes: 5.5 */
  expect_text(seen.out, "bits per byte ");
  assert_true(loss_of("eval runs/tiny --step 10") != loss);
  run_refused("eval runs/tiny --step 11", "11");

  run_ok("generate runs/tiny --prompt the --tokens 12 --temperature 0 --print-ids");
  int ids[12], n = 0, used = 0;
  for (const char *at = seen.out; n < 12 && sscanf(at, "%d%n", &ids[n], &used) == 1; at += used) n++;
  assert_int_equal(n, 12);
  /* the same as text, byte for byte; from ids; and from a file of ids */
  static const char *const prompts[] = {"--prompt the", "--ids 116,104,101", "--ids-file ids"};
  write_file("ids", "116 104\n101\n");
  for (int p = 0; p < 3; p++) {
    char line[128];
    snprintf(line, sizeof line, "generate runs/tiny %s --tokens 12 --temperature 0", prompts[p]);
    run_ok(line);
    for (int i = 0; i < 12; i++) assert_int_equal((unsigned char)seen.out[i], ids[i]);
    assert_int_equal(strlen(seen.out), 12);
  }

  run_ok("export runs/tiny hf");
  assert_int_equal(access("hf/config.json", R_OK), 0);
  assert_int_equal(access("hf/model.safetensors", R_OK), 0);
  /* the run held out the last tenth of its text; the same here from a file of the whole */
  double exported = loss_of("eval hf --set data.train=notes.txt --set data.sequence=16");
  assert_true(exported - loss < 1e-6 && loss - exported < 1e-6);

  run_ok("train run.yaml"); /* nothing is left to do, and that is no error */
  assert_null(strstr(seen.out, "tokens/s"));
}

static void test_quiet(void **state) {
  run_ok("train run.yaml --quiet --set steps=2");
  assert_string_equal(seen.out, "");
  assert_int_equal(access("runs/tiny/checkpoints/step-000002", F_OK), 0);
}

/* ---- being stopped ---- */

/* The step of the latest checkpoint in a run's output; -1: none. */
static long saved_step(void) {
  long step = -1;
  for (const char *at = seen.out; (at = strstr(at, "\nstep "));) {
    long s;
    char word[8];
    at++;
    if (sscanf(at, "step %ld: %7s", &s, word) == 2 && strcmp(word, "saved") == 0) step = s;
  }
  return step;
}

static const char endless[] =
    "train run.yaml --set steps=100000000 --set log.every=1 --set eval.every=0 --set "
    "sample.every=0 --set checkpoint.every=0";

static void test_stopped_runs_continue(void **state) {
  static const int signals[] = {SIGUSR1, SIGINT, SIGTERM};
  long before = 0;
  for (int i = 0; i < 3; i++) {
    pid_t pid = start(endless, -1);
    bool trains = await(pid, "out", " tokens/s ");
    kill(pid, signals[i]);
    finish(pid);
    assert_true(trains);
    expect_exit(endless, 75);
    assert_string_equal(seen.err, "penstock: finishing step, writing a checkpoint; again to end at once\n");
    if (i > 0) {
      char text[64];
      snprintf(text, sizeof text, ": step %ld, complete", before);
      expect_text(seen.out, text);
    }
    long now = saved_step();
    assert_true(now > before);
    before = now;
  }
}

/* Steps so long that the second signal comes before the first one is obeyed. */
static void test_second_signal_ends_at_once(void **state) {
  static const char line[] = "train run.yaml --set batch.global=400000 --set log.every=1";
  pid_t pid = start(line, -1);
  bool trains = await(pid, "out", "stage");
  kill(pid, SIGTERM);
  bool heard = trains && await(pid, "err", "again to end at once");
  kill(pid, SIGTERM);
  finish(pid);
  assert_true(heard);
  assert_int_equal(seen.exit_status, -1);
  assert_int_equal(seen.signal, SIGTERM);
}

/* A reader that takes the first step's line and leaves: the run saves and ends without a word. */
static void test_reader_that_leaves(void **state) {
  static char text[TEXT_BYTES];
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  fcntl(ends[0], F_SETFD, FD_CLOEXEC);
  pid_t pid = start(endless, ends[1]);
  close(ends[1]);
  for (size_t n = 0; n + 1 < sizeof text && !strstr(text, " tokens/s ");) { /* until the first step */
    ssize_t got = read(ends[0], text + n, sizeof text - 1 - n);
    if (got <= 0) break;
    text[n += (size_t)got] = '\0';
  }
  close(ends[0]);
  finish(pid);
  assert_string_equal(seen.err, "");
  expect_exit(endless, 75);
  assert_true(entries("runs/tiny/checkpoints") > 0);
}

/* A limit too low for a checkpoint: said by file name, and nothing half-written is left. */
static void test_files_that_may_not_grow(void **state) {
  struct rlimit before, low;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  low = before;
  low.rlim_cur = 12288;
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
  pid_t pid = start("train run.yaml --quiet", -1);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
  finish(pid);
  expect_exit("train run.yaml --quiet", 2);
  expect_text(seen.err, "model.safetensors");
  expect_text(seen.err, "File too large");
  assert_int_equal(entries("runs/tiny/checkpoints"), 0);
}

static void test_output_that_fails(void **state) {
  int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  if (full < 0) {
    print_message("no /dev/full here\n");
    skip();
  }
  finish(start("devices", full));
  close(full);
  expect_exit("devices", 2);
  expect_text(seen.err, "penstock: standard output: ");
}

int main(void) {
  const char *given = getenv("PENSTOCK_COMMAND");
  if (!given) given = PENSTOCK_COMMAND;
  if (!realpath(given, binary) || access(binary, X_OK) != 0) {
    fprintf(stderr, "%s: %s\n", given, strerror(errno));
    return 1;
  }
  for (char **e = environ; *e;) {
    char name[128] = "";
    size_t n = strcspn(*e, "=");
    if (strncmp(*e, "PENSTOCK_", 9) == 0 && n < sizeof name) {
      memcpy(name, *e, n);
      unsetenv(name);
      e = environ;
    } else {
      e++;
    }
  }
  if (!mkdtemp(top)) {
    fprintf(stderr, "%s: %s\n", top, strerror(errno));
    return 1;
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(test_help_ends_with_examples, setup),
      cmocka_unit_test_setup(test_version, setup),
      cmocka_unit_test_setup(test_unknown_words, setup),
      cmocka_unit_test_setup(test_wrong_arguments, setup),
      cmocka_unit_test_setup(test_wrong_input, setup),
      cmocka_unit_test_setup(test_devices, setup),
      cmocka_unit_test_setup(test_settings, setup),
      cmocka_unit_test_setup(test_dry_run_writes_nothing, setup),
      cmocka_unit_test_setup(test_from_training_to_export, setup),
      cmocka_unit_test_setup(test_quiet, setup),
      cmocka_unit_test_setup(test_stopped_runs_continue, setup),
      cmocka_unit_test_setup(test_second_signal_ends_at_once, setup),
      cmocka_unit_test_setup(test_reader_that_leaves, setup),
      cmocka_unit_test_setup(test_files_that_may_not_grow, setup),
      cmocka_unit_test_setup(test_output_that_fails, setup),
  };
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  if (chdir("/") == 0) remove_tree(top);
  return failed;
}
