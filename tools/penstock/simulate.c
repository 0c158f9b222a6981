#include "tools/penstock/command.h"

#include <string.h>

/* The letters of the field for the three sizes. */
static char *long_name(char *word) {
  static char workers[] = "--workers", chunks[] = "--chunks", microbatches[] = "--microbatches";
  if (strcmp(word, "-K") == 0) return workers;
  if (strcmp(word, "-V") == 0) return chunks;
  if (strcmp(word, "-M") == 0) return microbatches;
  return word;
}

static const char *const text =
    "Proves a schedule, predicts its step and draws it; no model and no device.\n"
    "SCHEDULE is a family (1f1b, gpipe, interleaved, looped-bfs, zb-h1, zb-h2,\n"
    "interleaved-zb, zb-v, v-half, v-min, dualpipe-v, auto, forward-only) or a .csv\n"
    "file as torch.distributed.pipelining writes it. F, I and W are the times of a\n"
    "worker's whole share of one microbatch: forward, input gradient, weight gradient.\n"
    "-K, -V and -M stand for --workers, --chunks and --microbatches.";

int command_simulate(int argc, char **argv) {
  pst_prediction_options o;
  pst_prediction_options_init(&o);
  int64_t workers = o.workers, chunks = 0, extra = 0;
  bool check = false, compare = false, messages = false;
  const char *csv = NULL, *export_path = NULL, *svg = NULL;
  const option_row options[] = {
      {"workers", "K", OPTION_INTEGER, &workers, "workers; 4"},
      {"chunks", "V", OPTION_INTEGER, &chunks, "stages on each worker; the schedule's own, or 2"},
      {"microbatches", "M", OPTION_INTEGER, &o.microbatches, "microbatches of a step; 8"},
      {"extra-forwards", "N", OPTION_INTEGER, &extra, "of 1f1b: more in flight, to hide latency; 0"},
      {"forward", "F", OPTION_NUMBER, &o.forward, "time of a forward; 1"},
      {"input", "I", OPTION_NUMBER, &o.input, "time of the input gradients; 1"},
      {"weight", "W", OPTION_NUMBER, &o.weight, "time of the weight gradients; 1"},
      {"latency", "C", OPTION_NUMBER, &o.latency, "time of a message; 0"},
      {"no-early-send", NULL, OPTION_FLAG, &o.no_early_send, "full backwards send at their end"},
      {"memory", "N", OPTION_NUMBER, &o.memory, "of auto: most microbatches in flight on a worker"},
      {"check", NULL, OPTION_FLAG, &check, "prove the schedule and print nothing else"},
      {"compare", NULL, OPTION_FLAG, &compare, "a table of all schedules at these sizes"},
      {"csv", "FILE", OPTION_TEXT, &csv, "read the schedule from FILE"},
      {"export", "FILE", OPTION_TEXT, &export_path, "write the schedule as .csv"},
      {"messages", NULL, OPTION_FLAG, &messages, "with --export: sends and receives too"},
      {"svg", "FILE", OPTION_TEXT, &svg, "draw the step"},
      {0},
  };
  const command_usage usage = {
      .name = "simulate",
      .arguments = {"SCHEDULE"},
      .text = text,
      .options = options,
      .examples = {"penstock simulate 1f1b -K 4 -M 8 --svg step.svg",
                   "penstock simulate --compare -K 8 -M 32 --forward 1 --input 1.2 --weight 0.8"},
  };
  char *arguments[MAX_ARGUMENTS];
  int status;
  for (int i = 1; i < argc; i++) argv[i] = long_name(argv[i]);
  if (!usage_read(&usage, argc, argv, arguments, &status)) return status;
  if (arguments[0] && csv)
    return command_refuse("simulate: '%s' and --csv: wanted one of them", arguments[0]);
  if (workers > UINT16_MAX || chunks > UINT16_MAX || extra > INT32_MAX)
    return command_refuse("simulate: wanted at most %d workers, %d chunks", UINT16_MAX, UINT16_MAX);
  if (messages && !export_path) return command_refuse("simulate: --messages goes with --export");
  o.workers = (int)workers;
  o.chunks = (int)chunks;
  o.extra_forwards = (int)extra;
  o.file = csv;
  if (arguments[0]) o.schedule = arguments[0];

  pst_status st = PST_OK;
  if (check)
    st = pst_schedule_prove(&o, stdout);
  else if (compare)
    st = pst_schedule_compare(&o, stdout);
  else
    st = pst_schedule_predict(&o, stdout);
  if (st == PST_OK && export_path) st = pst_schedule_export(&o, messages, export_path);
  if (st == PST_OK && svg) st = pst_schedule_draw(&o, svg);
  return command_end(st);
}
