#include "core/graph/model.h"

#include <string.h>

const pst_model *pst_model_find(const char *name) {
  for (const pst_model *const *m = pst_models; *m; m++)
    if (strcmp((*m)->name, name) == 0) return *m;
  return NULL;
}
