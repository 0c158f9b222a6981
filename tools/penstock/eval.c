#include "tools/penstock/command.h"

#include <math.h>

int command_eval(int argc, char **argv) {
  int64_t step = -1, sequences = 0, tokens = 0;
  double loss = 0;
  option_texts sets = {.n = 0};
  const option_row options[] = {
      {"step", "N", OPTION_INTEGER, &step, "the checkpoint of this step; the latest when not given"},
      {"sequences", "N", OPTION_INTEGER, &sequences, "the first so many; all when not given"},
      OPTION_SET(&sets),
      {0},
  };
  const command_usage usage = {
      .name = "eval",
      .arguments = {"DIR"},
      .required = 1,
      .text = "Prints the mean loss of a trained model on its validation data. DIR is a run's\n"
              "directory or a Hugging Face directory; the latter needs --set data.valid=FILE.",
      .options = options,
      .examples = {"penstock eval runs/shakespeare",
                   "penstock eval hf/tinyllama --set data.valid=valid.bin --sequences 256"},
  };
  char *arguments[MAX_ARGUMENTS];
  int status;
  if (!usage_read(&usage, argc, argv, arguments, &status)) return status;

  const pst_run_options run_options = command_run_options(NULL, &sets);
  pst_run *run = NULL;
  pst_status st;
  PST_GOTO(st, pst_run_open_trained(arguments[0], step, &run_options, &run), done);
  PST_GOTO(st, pst_run_evaluate(run, sequences, &loss, &tokens), done);
  printf("loss %.6f  perplexity %.4f", loss, exp(loss));
  if (pst_run_bytes(run)) printf("  bits per byte %.4f", loss / log(2));
  printf("  over %lld tokens\n", (long long)tokens);
done:
  status = command_end(st);
  pst_run_close(run);
  return status;
}
