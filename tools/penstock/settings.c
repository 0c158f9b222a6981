#include "tools/penstock/command.h"

int command_settings(int argc, char **argv) {
  option_texts sets = {.n = 0};
  const option_row options[] = {OPTION_SET(&sets), {0}};
  const command_usage usage = {
      .name = "settings",
      .arguments = {"RUN.yaml"},
      .text = "Prints everything that can be set: its value, where that came from, what it means.\n"
              "A setting is taken from its default, then the run file, then PENSTOCK_A_B in the\n"
              "environment, then --set; the last one wins.",
      .options = options,
      .examples = {"penstock settings", "penstock settings run.yaml --set optimizer.lr.peak=1e-3"},
  };
  char *arguments[MAX_ARGUMENTS];
  int status;
  if (!usage_read(&usage, argc, argv, arguments, &status)) return status;
  const pst_run_options run_options = command_run_options(arguments[0], &sets);
  return command_end(pst_settings_describe(&run_options, stdout));
}
