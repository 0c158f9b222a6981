/* penstock: the command. */
#include "tools/penstock/command.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

const command commands[] = {
    {"devices", command_devices, "what is here to train on, and why the rest is not"},
    {"train", command_train, "train a model as a run file says, or continue"},
    {"eval", command_eval, "loss of a trained model on validation data"},
    {"generate", command_generate, "let a trained model continue a text"},
    {"export", command_export, "write a trained model as a Hugging Face directory"},
    {"simulate", command_simulate, "prove, predict, compare and draw schedules"},
    {"settings", command_settings, "everything that can be set, with its value and where it came from"},
    {"help", command_help, "help on a subcommand"},
    {NULL, NULL, NULL},
};

void command_list(void) {
  printf("usage: penstock COMMAND [arguments]\n\n"
         "Trains one model across several devices, each holding a stage of it.\n\n");
  for (const command *c = commands; c->name; c++) printf("  %-9s %s\n", c->name, c->help);
  printf("\n'penstock COMMAND --help' tells more; 'penstock --version' prints the version.\n"
         "\nexamples:\n"
         "  penstock train run.yaml\n"
         "  penstock help train\n");
}

const command *command_find(const char *name) {
  const command *nearest = NULL;
  int best = (int)strlen(name) / 2 + 1;
  for (const command *c = commands; c->name; c++) {
    if (strcmp(c->name, name) == 0) return c;
    int distance = command_distance(c->name, name);
    if (distance < best) best = distance, nearest = c;
  }
  if (nearest)
    command_refuse("unknown command '%s', did you mean '%s'?", name, nearest->name);
  else
    command_refuse("unknown command '%s'; 'penstock help' lists them", name);
  return NULL;
}

/* What was printed must have arrived. A reader that went away is no fault. */
static int end_output(int status) {
  errno = 0;
  bool failed = fflush(stdout) != 0;
  int reason = errno;
  if ((!failed && !ferror(stdout)) || reason == EPIPE || status != 0) return status;
  return command_refuse("standard output: %s", reason ? strerror(reason) : "cannot be written");
}

int main(int argc, char **argv) {
  /* A parent may have left it ignored; a filter whose reader goes away ends. */
  signal(SIGPIPE, SIG_DFL);
  signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error to be said */
  if (argc < 2) {
    command_list();
    return end_output(EXIT_BAD_INPUT);
  }
  if (strcmp(argv[1], "--version") == 0) {
    printf("penstock %s\n", pst_version());
    return end_output(0);
  }
  if (strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0) {
    command_list();
    return end_output(0);
  }
  if (argv[1][0] == '-') return command_refuse("unknown option %s; see 'penstock help'", argv[1]);
  const command *found = command_find(argv[1]);
  return found ? end_output(found->run(argc - 1, argv + 1)) : EXIT_BAD_INPUT;
}
