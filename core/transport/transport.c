#include "core/transport/transport.h"

#include <string.h>

pst_status pst_transport_wait(pst_transport *t, int worker, const pst_request *request) {
  if (!request->channel) return PST_OK;
  while (!t->table->test(request)) {
    PST_TRY(t->table->health(t));
    t->table->pause(t, worker, request);
  }
  return PST_OK;
}

const pst_transport_driver *pst_transport_find(const char *name) {
  for (const pst_transport_driver *const *d = pst_transports; *d; d++)
    if (strcmp((*d)->name, name) == 0) return *d;
  return NULL;
}
