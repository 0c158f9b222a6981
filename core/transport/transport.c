#include "core/transport/transport.h"

pst_status pst_transport_wait(pst_transport *t, int worker, const pst_request *request) {
  if (!request->channel) return PST_OK;
  while (!t->table->test(request)) {
    PST_TRY(t->table->health(t));
    t->table->pause(t, worker, request);
  }
  return PST_OK;
}
