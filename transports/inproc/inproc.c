/* Messages between threads of one process: one copy, from the sender's memory into the receiver's. Whoever
 * posts second copies. Posting takes no lock and makes no system call unless the other side sleeps. */
#include "core/base/event.h"
#include "core/transport/transport.h"

#include <pthread.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PARTS = 16, PAUSE_NS = 100000000 };

/* One tag of a channel. Each message is posted twice, once by either side, so the post that finds an odd
 * count is the second: both sides' parts are then known and it copies. `done` counts messages. */
typedef struct mailbox {
  alignas(64) _Atomic uint32_t posts;
  _Atomic uint32_t done;
  uint32_t sent, received; /* messages posted by each side; each its own */
  int n_from, n_to;
  pst_part from_parts[MAX_PARTS], to_parts[MAX_PARTS];
} mailbox;

typedef struct inproc {
  pst_transport base;
  pst_transport_options options;
  pst_event *events; /* per worker */
  struct pst_channel *channels;
  _Atomic int aborted;  /* a pst_status */
  pthread_mutex_t lock; /* of the message, the first abort and the list of channels */
  char message[1024];
} inproc;

struct pst_channel {
  inproc *owner;
  struct pst_channel *next;
  pst_channel_options options;
  char name[64];
  mailbox *boxes;
};

static void destroy(pst_transport *base) {
  if (!base) return;
  inproc *t = (inproc *)base;
  while (t->channels) {
    pst_channel *c = t->channels;
    t->channels = c->next;
    free(c->boxes);
    free(c);
  }
  pthread_mutex_destroy(&t->lock);
  free(t->events);
  free(t);
}

static pst_status open_channel(pst_transport *base, const pst_channel_options *options,
                               pst_channel **out_channel) {
  inproc *t = (inproc *)base;
  int n = t->options.n_workers;
  if (options->from < 0 || options->from >= n || options->to < 0 || options->to >= n || options->n_tags < 1)
    return pst_fail(
        PST_INVALID,
        "channel %s: from worker %d to %d with %u tags, wanted workers below %d and at least one tag",
        options->name, options->from, options->to, options->n_tags, n);
  pst_channel *c = calloc(1, sizeof *c);
  size_t bytes = (size_t)options->n_tags * sizeof *c->boxes;
  if (c) c->boxes = aligned_alloc(alignof(mailbox), bytes);
  if (!c || !c->boxes) {
    free(c);
    return pst_fail(PST_NO_MEMORY, "no memory for channel %s", options->name);
  }
  memset(c->boxes, 0, bytes);
  c->owner = t;
  c->options = *options;
  snprintf(c->name, sizeof c->name, "%s", options->name);
  c->options.name = c->name;
  pthread_mutex_lock(&t->lock);
  c->next = t->channels;
  t->channels = c;
  pthread_mutex_unlock(&t->lock);
  *out_channel = c;
  return PST_OK;
}

static void abort_all(pst_transport *base, pst_status status, const char *message) {
  inproc *t = (inproc *)base;
  pthread_mutex_lock(&t->lock);
  if (atomic_load(&t->aborted) == PST_OK) {
    snprintf(t->message, sizeof t->message, "%s", message);
    atomic_store(&t->aborted, (int)status);
  }
  pthread_mutex_unlock(&t->lock);
  for (int w = 0; w < t->options.n_workers; w++) pst_event_signal(&t->events[w]);
}

static pst_status health(pst_transport *base) {
  inproc *t = (inproc *)base;
  int status = atomic_load(&t->aborted);
  return status == PST_OK
             ? PST_OK
             : pst_fail((pst_status)status, "%s", t->message); /* written once, before the flag */
}

static pst_status unlike(const pst_channel *c, uint32_t tag) {
  return pst_fail(PST_INTERNAL, "channel %s, message %u: the two sides give parts of unlike sizes", c->name,
                  tag);
}

static pst_status carry(pst_channel *c, uint32_t tag, mailbox *box) {
  bool fits = box->n_from == box->n_to;
  for (int i = 0; fits && i < box->n_from; i++) fits = box->from_parts[i].bytes == box->to_parts[i].bytes;
  if (!fits) {
    pst_status st = unlike(c, tag);
    abort_all(&c->owner->base, st, pst_error());
    return st;
  }
  for (int i = 0; i < box->n_from; i++) /* an empty part may have no address */
    if (box->from_parts[i].bytes > 0)
      memcpy(box->to_parts[i].at, box->from_parts[i].at, (size_t)box->from_parts[i].bytes);
  atomic_fetch_add(&box->done, 1);
  pst_event_signal(&c->owner->events[c->options.from]);
  pst_event_signal(&c->owner->events[c->options.to]);
  return PST_OK;
}

static pst_status post(pst_channel *c, uint32_t tag, const pst_part *parts, int n_parts, bool sends,
                       pst_request *out_request) {
  if (tag >= c->options.n_tags || n_parts < 0 || n_parts > MAX_PARTS)
    return pst_fail(PST_INTERNAL,
                    "channel %s: message %u of %d parts, wanted a tag below %u and at most %d parts", c->name,
                    tag, n_parts, c->options.n_tags, MAX_PARTS);
  mailbox *box = &c->boxes[tag];
  if (n_parts > 0) memcpy(sends ? box->from_parts : box->to_parts, parts, (size_t)n_parts * sizeof *parts);
  *(sends ? &box->n_from : &box->n_to) = n_parts;
  *out_request = (pst_request){.channel = c, .tag = tag, .round = ++*(sends ? &box->sent : &box->received)};
  return atomic_fetch_add(&box->posts, 1) % 2 == 1 ? carry(c, tag, box) : PST_OK;
}

static pst_status send_message(pst_channel *c, uint32_t tag, const pst_part *parts, int n_parts,
                               pst_request *out_request) {
  return post(c, tag, parts, n_parts, true, out_request);
}

static pst_status receive_message(pst_channel *c, uint32_t tag, const pst_part *parts, int n_parts,
                                  pst_request *out_request) {
  return post(c, tag, parts, n_parts, false, out_request);
}

static bool test(const pst_request *r) {
  return atomic_load(&r->channel->boxes[r->tag].done) >= r->round;
}

static void pause_worker(pst_transport *base, int worker, const pst_request *unless_complete) {
  inproc *t = (inproc *)base;
  uint32_t seen = pst_event_now(&t->events[worker]);
  if (test(unless_complete) || atomic_load(&t->aborted) != PST_OK) return;
  pst_event_wait(&t->events[worker], seen, t->options.spin_ns, PAUSE_NS);
}

static const pst_transport_table table = {
    .name = "inproc",
    .destroy = destroy,
    .open = open_channel,
    .send = send_message,
    .receive = receive_message,
    .test = test,
    .pause = pause_worker,
    .abort = abort_all,
    .health = health,
};

static pst_status create(const pst_transport_options *options, pst_transport **out_transport) {
  if (options->n_workers < 1)
    return pst_fail(PST_INVALID, "a transport for %d workers: wanted at least 1", options->n_workers);
  inproc *t = calloc(1, sizeof *t);
  if (t) t->events = calloc((size_t)options->n_workers, sizeof *t->events);
  if (!t || !t->events) {
    free(t);
    return pst_fail(PST_NO_MEMORY, "no memory for a transport of %d workers", options->n_workers);
  }
  t->base.table = &table;
  t->options = *options;
  pthread_mutex_init(&t->lock, NULL);
  *out_transport = &t->base;
  return PST_OK;
}

const pst_transport_driver pst_transport_inproc = {.name = "inproc", .create = create};
