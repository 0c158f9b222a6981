#include "tools/penstock/command.h"

#include <getopt.h>

int command_help(int argc, char **argv) {
  const command_usage usage = {
      .name = "help",
      .arguments = {"COMMAND"},
      .text = "Prints the help of a subcommand, or the list of them.",
      .examples = {"penstock help", "penstock help train"},
  };
  char *arguments[MAX_ARGUMENTS];
  int status;
  if (!usage_read(&usage, argc, argv, arguments, &status)) return status;
  if (!arguments[0]) {
    command_list();
    return 0;
  }
  const command *found = command_find(arguments[0]);
  if (!found) return EXIT_BAD_INPUT;
  char flag[] = "--help";
  char *line[] = {arguments[0], flag, NULL};
  optind = 0; /* getopt starts anew */
  return found->run(2, line);
}
