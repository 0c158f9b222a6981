#include "core/engine/run_internal.h"

#include "core/base/file.h"
#include "core/checkpoint/config.h"
#include "core/engine/weights.h"

#include <stdlib.h>

/* The weights first: a directory with a config.json is a whole one. */
pst_status pst_run_export(pst_run *run, const char *directory) {
  char *config = NULL, *weights = NULL;
  pst_status st = PST_OK;
  PST_TRY(pst__run_ready(run));
  PST_GOTO(st, pst_dir_create(directory), done);
  PST_GOTO(st, pst_path_join(directory, "config.json", &config), done);
  PST_GOTO(st, pst_path_join(directory, "model.safetensors", &weights), done);
  PST_GOTO(st, pst_weights_save(run->assembly, weights, NULL), done);
  st = pst_model_config_save(&run->config, config);
done:
  free(config);
  free(weights);
  return st;
}
