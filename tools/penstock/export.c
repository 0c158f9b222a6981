#include "tools/penstock/command.h"

int command_export(int argc, char **argv) {
  int64_t step = -1;
  option_texts sets = {.n = 0};
  const option_row options[] = {
      {"step", "N", OPTION_INTEGER, &step, "the checkpoint of this step; the latest when not given"},
      OPTION_SET(&sets),
      {0},
  };
  const command_usage usage = {
      .name = "export",
      .arguments = {"DIR", "OUT"},
      .required = 2,
      .text = "Writes a trained model as a Hugging Face directory OUT: config.json and\n"
              "model.safetensors. DIR is a run's directory.",
      .options = options,
      .examples = {"penstock export runs/shakespeare hf/shakespeare",
                   "penstock export runs/shakespeare hf/early --step 500"},
  };
  char *arguments[MAX_ARGUMENTS];
  int status;
  if (!usage_read(&usage, argc, argv, arguments, &status)) return status;

  const pst_run_options run_options = command_run_options(NULL, &sets);
  pst_run *run = NULL;
  pst_status st;
  PST_GOTO(st, pst_run_open_trained(arguments[0], step, &run_options, &run), done);
  PST_GOTO(st, pst_run_export(run, arguments[1]), done);
  printf("wrote %s/config.json and %s/model.safetensors\n", arguments[1], arguments[1]);
done:
  status = command_end(st);
  pst_run_close(run);
  return status;
}
