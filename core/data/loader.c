#include "core/data/loader.h"

#include "core/base/hash.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_DEPTH = 64, MAX_CONSUMERS = 32, LINE = 64 };

/* One step's memory. It is the thread's while it is free, then lent until all consumers have given it back.
 */
typedef struct slot {
  int32_t *tokens, *targets;
  pst_loader_batch batch;   /* the thread's while `step` is -1 */
  int64_t step;             /* what it holds; -1: nothing, or a step in work */
  uint32_t taken, released; /* a bit per consumer */
} slot;

struct pst_loader {
  pst_loader_options options;
  pst_tokens_view view;
  pst_sampler sampler;
  slot slots[MAX_DEPTH]; /* step s lies in slot (s - first_step) % depth */
  int32_t *memory;
  pthread_t thread;
  bool started;

  pthread_mutex_t lock; /* guards all below, and the slots' bits */
  pthread_cond_t moved; /* any of it changed */
  int64_t n_ready;      /* steps first_step .. first_step + n_ready - 1 have been made */
  bool ending;
  pst_status status; /* why no more steps are made */
  char message[1024];
};

static uint32_t all_consumers(const pst_loader *l) {
  return UINT32_MAX >> (32 - l->options.n_consumers);
}

static slot *slot_of(pst_loader *l, int64_t step) {
  return &l->slots[(step - l->options.first_step) % l->options.depth];
}

/* ---- making a step ---- */

static pst_status check_sequence(const pst_loader *l, int64_t step, int64_t sequence, const int32_t *tokens,
                                 const int32_t *targets) {
  for (int64_t i = 0; i < l->options.sequence; i++) {
    bool token_ok = tokens[i] >= 0 && tokens[i] < l->options.vocab;
    if (token_ok && targets[i] >= -1 && targets[i] < l->options.vocab) continue;
    return pst_fail(PST_INVALID,
                    "data: %s %s %d at step %lld, sequence %lld, position %lld, wanted %d to %lld",
                    l->options.fill ? "the callback gave" : "the file, changed while it is in use, has",
                    token_ok ? "target" : "token", token_ok ? targets[i] : tokens[i], (long long)step,
                    (long long)sequence, (long long)i, token_ok ? -1 : 0, (long long)l->options.vocab - 1);
  }
  return PST_OK;
}

static pst_status fill_sequence(const pst_loader *l, int64_t step, int64_t sequence, int32_t *tokens,
                                int32_t *targets) {
  int64_t t = l->options.sequence;
  if (!l->options.fill) {
    PST_TRY(pst_tokens_whole(l->view.tokens));
    pst_tokens_window(&l->view, pst_sampler_start(&l->sampler, step, sequence), t, tokens, targets);
    return l->options.vocab > 0 ? check_sequence(l, step, sequence, tokens, targets) : PST_OK;
  }
  pst_error_set("");
  pst_status st = l->options.fill(l->options.user, step, sequence, t, tokens, targets);
  if (st == PST_OK) return check_sequence(l, step, sequence, tokens, targets);
  if (pst_error()[0] == 0)
    return pst_fail(st, "data: the callback returned %s at step %lld, sequence %lld", pst_status_name(st),
                    (long long)step, (long long)sequence);
  return st;
}

static bool is_ending(pst_loader *l) {
  pthread_mutex_lock(&l->lock);
  bool ending = l->ending;
  pthread_mutex_unlock(&l->lock);
  return ending;
}

static pst_status make_step(pst_loader *l, int64_t step, slot *s) {
  int64_t t = l->options.sequence, n = l->options.global * t;
  for (int64_t i = 0; i < l->options.global; i++) {
    if (is_ending(l)) return pst_fail(PST_STOPPED, "data: the loader was ended");
    PST_TRY(fill_sequence(l, step, i, s->tokens + i * t, s->targets + i * t));
  }
  int64_t n_valid = 0;
  for (int64_t i = 0; i < n; i++) n_valid += s->targets[i] >= 0;
  s->batch = (pst_loader_batch){.step = step,
                                .tokens = s->tokens,
                                .targets = s->targets,
                                .n_valid = n_valid,
                                .hash = pst_hash_bytes(s->tokens, (size_t)n * sizeof *s->tokens, 0)};
  return PST_OK;
}

/* Waits for the slot of the step; false when the loader ends. */
static bool wait_for_slot(pst_loader *l, int64_t n_made, slot *s) {
  pthread_mutex_lock(&l->lock);
  while (!l->ending && n_made >= l->options.depth && s->released != all_consumers(l))
    pthread_cond_wait(&l->moved, &l->lock);
  bool go = !l->ending;
  if (go) {
    s->step = -1;
    s->taken = s->released = 0;
  }
  pthread_mutex_unlock(&l->lock);
  return go;
}

static void publish(pst_loader *l, int64_t step, slot *s, pst_status st) {
  pthread_mutex_lock(&l->lock);
  if (st == PST_OK) {
    s->step = step;
    l->n_ready++;
  } else {
    l->status = st;
    snprintf(l->message, sizeof l->message, "%s", pst_error());
  }
  pthread_cond_broadcast(&l->moved);
  pthread_mutex_unlock(&l->lock);
}

static void *loader_main(void *arg) {
  pst_loader *l = arg;
  pst_status st = PST_OK;
  for (int64_t n = 0; st == PST_OK && (l->options.n_steps == 0 || n < l->options.n_steps); n++) {
    int64_t step = l->options.first_step + n;
    slot *s = slot_of(l, step);
    if (!wait_for_slot(l, n, s)) break;
    st = make_step(l, step, s);
    publish(l, step, s, st);
  }
  return NULL;
}

/* ---- taking and releasing ---- */

static struct timespec deadline_after(int64_t limit_ns) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  int64_t ns = t.tv_nsec + limit_ns % 1000000000;
  t.tv_sec += limit_ns / 1000000000 + ns / 1000000000;
  t.tv_nsec = ns % 1000000000;
  return t;
}

/* Why a step is not there in time; under the lock. */
static pst_status late(pst_loader *l, int64_t step, int64_t limit_ns) {
  int64_t making = l->options.first_step + l->n_ready;
  double s = (double)limit_ns * 1e-9;
  uint32_t missing = l->n_ready < l->options.depth ? 0 : all_consumers(l) & ~slot_of(l, making)->released;
  if (missing == 0 || slot_of(l, making)->step != making - l->options.depth)
    return pst_fail(PST_HUNG, "data: step %lld is not ready after %g s, the loader is still making step %lld",
                    (long long)step, s, (long long)making);
  int consumer = 0;
  while (!(missing >> consumer & 1)) consumer++;
  return pst_fail(PST_HUNG, "data: step %lld is not ready after %g s, consumer %d has not released step %lld",
                  (long long)step, s, consumer, (long long)(making - l->options.depth));
}

/* Under the lock: waits until the step has been made. */
static pst_status wait_for_step(pst_loader *l, int64_t step, int64_t limit_ns) {
  struct timespec until = deadline_after(limit_ns);
  while (l->options.first_step + l->n_ready <= step) {
    if (l->status != PST_OK) {
      pst_error_set(l->message);
      return l->status;
    }
    int err = pthread_cond_timedwait(&l->moved, &l->lock, &until);
    if (err == ETIMEDOUT && l->options.first_step + l->n_ready <= step && l->status == PST_OK)
      return late(l, step, limit_ns);
  }
  return PST_OK;
}

static pst_status lend(pst_loader *l, int consumer, int64_t step, pst_loader_batch *out_batch) {
  slot *s = slot_of(l, step);
  uint32_t bit = UINT32_C(1) << consumer;
  /* The slot may hold a later step, or be on its way there: then everyone had released this one. */
  if (s->step != step || (s->taken & bit))
    return pst_fail(PST_INVALID, "data: consumer %d has had step %lld, wanted a later one", consumer,
                    (long long)step);
  s->taken |= bit;
  *out_batch = s->batch;
  return PST_OK;
}

pst_status pst_loader_take(pst_loader *loader, int consumer, int64_t step, int64_t limit_ns,
                           pst_loader_batch *out_batch) {
  const pst_loader_options *o = &loader->options;
  if (consumer < 0 || consumer >= o->n_consumers)
    return pst_fail(PST_INVALID, "data: consumer %d, wanted 0 to %d", consumer, o->n_consumers - 1);
  if (step < o->first_step || (o->n_steps > 0 && step - o->first_step >= o->n_steps))
    return pst_fail(PST_INVALID, "data: step %lld, the loader makes %lld steps from step %lld on",
                    (long long)step, (long long)o->n_steps, (long long)o->first_step);
  pthread_mutex_lock(&loader->lock);
  pst_status st = wait_for_step(loader, step, limit_ns < 0 ? 0 : limit_ns);
  if (st == PST_OK) st = lend(loader, consumer, step, out_batch);
  pthread_mutex_unlock(&loader->lock);
  return st;
}

pst_status pst_loader_release(pst_loader *loader, int consumer, int64_t step) {
  pst_status st = PST_OK;
  pthread_mutex_lock(&loader->lock);
  bool known = consumer >= 0 && consumer < loader->options.n_consumers &&
               step >= loader->options.first_step && step < loader->options.first_step + loader->n_ready;
  slot *s = known ? slot_of(loader, step) : NULL;
  uint32_t bit = known ? UINT32_C(1) << consumer : 0;
  if (s && s->step == step && (s->taken & bit) && !(s->released & bit)) {
    s->released |= bit;
    pthread_cond_broadcast(&loader->moved);
  } else {
    st = pst_fail(PST_INTERNAL, "data: consumer %d releases step %lld, which it does not hold", consumer,
                  (long long)step);
  }
  pthread_mutex_unlock(&loader->lock);
  return st;
}

/* ---- creation ---- */

static pst_status check_options(const pst_loader_options *o) {
  if (o->sequence < 1 || o->global < 1 || o->sequence > INT32_MAX || o->global > INT32_MAX)
    return pst_fail(PST_INVALID, "data: %lld sequences of %lld tokens, wanted 1 to %d of each",
                    (long long)o->global, (long long)o->sequence, INT32_MAX);
  if (o->depth < 2 || o->depth > MAX_DEPTH)
    return pst_fail(PST_INVALID, "data: a queue of %d steps, wanted 2 to %d", o->depth, MAX_DEPTH);
  if (o->n_consumers < 1 || o->n_consumers > MAX_CONSUMERS)
    return pst_fail(PST_INVALID, "data: %d consumers, wanted 1 to %d", o->n_consumers, MAX_CONSUMERS);
  if (o->first_step < 0 || o->n_steps < 0)
    return pst_fail(PST_INVALID, "data: %lld steps from step %lld on, wanted no negative numbers",
                    (long long)o->n_steps, (long long)o->first_step);
  if (o->fill) {
    if (o->view || o->sampler)
      return pst_fail(PST_INVALID, "data: both a file and a callback, wanted one of them");
    if (o->vocab < 1 || o->vocab > INT32_MAX)
      return pst_fail(PST_INVALID, "data: vocabulary %lld, wanted 1 to %d", (long long)o->vocab, INT32_MAX);
    return PST_OK;
  }
  if (!o->view || !o->sampler)
    return pst_fail(PST_INVALID, "data: neither a file with a sampler nor a callback");
  if (o->sampler->sequence != o->sequence || o->sampler->global != o->global ||
      o->sampler->n_tokens != o->view->count)
    return pst_fail(PST_INVALID,
                    "data: a sampler of %lld sequences of %lld out of %lld tokens for batches of %lld of "
                    "%lld out of %lld",
                    (long long)o->sampler->global, (long long)o->sampler->sequence,
                    (long long)o->sampler->n_tokens, (long long)o->global, (long long)o->sequence,
                    (long long)o->view->count);
  return PST_OK;
}

static pst_status allocate(pst_loader *l) {
  const size_t ids_per_line = LINE / sizeof(int32_t);
  size_t n = (size_t)l->options.global * (size_t)l->options.sequence; /* below 2^62 */
  size_t padded = (n + ids_per_line - 1) / ids_per_line * ids_per_line;
  size_t arrays = 2 * (size_t)l->options.depth;
  if (padded > SIZE_MAX / sizeof(int32_t) / arrays ||
      !(l->memory = aligned_alloc(LINE, arrays * padded * sizeof(int32_t))))
    return pst_fail(PST_NO_MEMORY, "data: no memory for %d batches of %zu tokens", l->options.depth, n);
  for (int i = 0; i < l->options.depth; i++) {
    l->slots[i].tokens = l->memory + 2 * (size_t)i * padded;
    l->slots[i].targets = l->slots[i].tokens + padded;
    l->slots[i].step = -1;
  }
  return PST_OK;
}

/* The thread leaves asynchronous signals to the program's own. */
static pst_status start(pst_loader *l) {
  sigset_t blocked, before;
  sigfillset(&blocked);
  sigdelset(&blocked, SIGSEGV);
  sigdelset(&blocked, SIGBUS);
  sigdelset(&blocked, SIGFPE);
  sigdelset(&blocked, SIGILL);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  int err = pthread_create(&l->thread, NULL, loader_main, l);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (err != 0) return pst_fail(PST_NO_MEMORY, "data: cannot start the loader's thread: %s", strerror(err));
#ifdef __linux__
  pthread_setname_np(l->thread, "pst-loader");
#endif
  l->started = true;
  return PST_OK;
}

static void init_lock(pst_loader *l) {
  pthread_condattr_t attr;
  pthread_mutex_init(&l->lock, NULL);
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&l->moved, &attr);
  pthread_condattr_destroy(&attr);
}

pst_status pst_loader_create(const pst_loader_options *options, pst_loader **out_loader) {
  pst_loader_options o = *options;
  if (o.depth == 0) o.depth = 3;
  if (o.n_consumers == 0) o.n_consumers = 1;
  PST_TRY(check_options(&o));
  pst_loader *l = calloc(1, sizeof *l);
  if (!l) return pst_fail(PST_NO_MEMORY, "data: no memory for a loader");
  init_lock(l);
  if (o.view) {
    l->view = *o.view;
    l->sampler = *o.sampler;
  }
  o.view = NULL; /* only the copies are used from here on */
  o.sampler = NULL;
  l->options = o;

  pst_status st;
  PST_GOTO(st, allocate(l), destroy_loader);
  PST_GOTO(st, start(l), destroy_loader);
  *out_loader = l;
  return PST_OK;

destroy_loader:
  pst_loader_destroy(l);
  return st;
}

void pst_loader_destroy(pst_loader *loader) {
  if (!loader) return;
  pthread_mutex_lock(&loader->lock);
  loader->ending = true;
  pthread_cond_broadcast(&loader->moved);
  pthread_mutex_unlock(&loader->lock);
  if (loader->started) pthread_join(loader->thread, NULL);
  pthread_cond_destroy(&loader->moved);
  pthread_mutex_destroy(&loader->lock);
  free(loader->memory);
  free(loader);
}
