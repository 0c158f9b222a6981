/* The table a transport fills: channels that carry messages between two workers.
 *
 *   pst_channel_options o = {.from = 0, .to = 1, .n_tags = microbatches, .name = "F 0->1"};
 *   PST_TRY(t->table->open(t, &o, &channel));                          // once, before the first step
 *   PST_TRY(t->table->receive(channel, m, parts, n_parts, &got));      // worker 1 posts; returns at once
 *   PST_TRY(t->table->send(channel, m, parts, n_parts, &gone));        // worker 0 posts; returns at once
 *   PST_TRY(pst_transport_wait(t, 1, &got));                           // worker 1: the parts hold the data
 *   PST_TRY(pst_transport_wait(t, 0, &gone));                          // worker 0: the parts may be written
 * again
 *
 * A channel is one direction of one boundary between two workers. Messages meet by channel and tag, never by
 * arrival. Nothing is buffered: a send is complete when its data lies in the receiver's parts. On one tag
 * there is one message at a time: the next send or receive of a tag is posted only after the one before is
 * complete on that side. Both sides give parts of the same sizes.
 *
 * abort() ends every wait, present and to come, with the first cause.
 */
#ifndef PENSTOCK_TRANSPORT_TRANSPORT_H
#define PENSTOCK_TRANSPORT_TRANSPORT_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct pst_transport pst_transport;
typedef struct pst_channel pst_channel;

/* A piece of host memory; the caller keeps it alive until the message is complete. */
typedef struct pst_part {
  void *at;
  int64_t bytes;
} pst_part;

typedef struct pst_channel_options {
  int from, to;    /* workers */
  uint32_t n_tags; /* tags are 0 .. n_tags - 1 */
  const char *name;
} pst_channel_options;

/* One message, from one side. Plain data of the caller. */
typedef struct pst_request {
  pst_channel *channel; /* NULL: no message; complete */
  uint32_t tag;
  uint32_t round; /* how many messages this tag has carried, this one included */
} pst_request;

typedef struct pst_transport_table {
  const char *name;
  void (*destroy)(pst_transport *);
  pst_status (*open)(pst_transport *, const pst_channel_options *options, pst_channel **out_channel);
  /* Posts one side of a message; may carry it out when the other side has posted. */
  pst_status (*send)(pst_channel *, uint32_t tag, const pst_part *parts, int n_parts,
                     pst_request *out_request);
  pst_status (*receive)(pst_channel *, uint32_t tag, const pst_part *parts, int n_parts,
                        pst_request *out_request);
  /* True when the message is complete. Moves the worker's transfers on. */
  bool (*test)(const pst_request *);
  /* Sleeps, after a bounded spin, until something may have changed for `worker`, at most 100 ms. */
  void (*pause)(pst_transport *, int worker, const pst_request *unless_complete);
  /* Ends all waits with `status` and `message`; the first call counts. Any thread. */
  void (*abort)(pst_transport *, pst_status status, const char *message);
  /* OK, or the abort's status with its message. */
  pst_status (*health)(pst_transport *);
} pst_transport_table;

struct pst_transport {
  const pst_transport_table *table;
};

/* Waits until the request is complete or the transport aborted. For the worker's own thread. */
PST_CHECKED pst_status pst_transport_wait(pst_transport *t, int worker, const pst_request *request);

#endif
