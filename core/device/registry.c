#include "core/device/registry.h"

#include <string.h>

const pst_driver *pst_driver_find(const char *name) {
  const size_t length = strcspn(name, ":");
  for (const pst_driver *const *d = pst_drivers; *d; d++)
    if (strncmp((*d)->name, name, length) == 0 && (*d)->name[length] == '\0') return *d;
  return NULL;
}
