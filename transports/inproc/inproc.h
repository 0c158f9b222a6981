/* Messages between threads of one process: one copy, from the sender's memory into the receiver's.
 *
 *   pst_transport *t;
 *   PST_TRY(pst_inproc_create(&(pst_inproc_options){.n_workers = 2}, &t));
 *
 * Whoever posts second copies. Posting takes no lock and makes no system call unless the other side sleeps.
 */
#ifndef PENSTOCK_TRANSPORTS_INPROC_INPROC_H
#define PENSTOCK_TRANSPORTS_INPROC_INPROC_H

#include "core/transport/transport.h"

typedef struct pst_inproc_options {
  int n_workers;   /* at least 1 */
  int64_t spin_ns; /* how long a waiting worker spins before it sleeps; 0: never, right where workers
                      outnumber cores */
} pst_inproc_options;

PST_CHECKED pst_status pst_inproc_create(const pst_inproc_options *options, pst_transport **out_transport);

#endif
