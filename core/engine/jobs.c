#include "core/engine/internal.h"

#include "core/base/clock.h"

#include <stdio.h>
#include <string.h>

/* How the owner's thread hands work to the workers and waits for its end. */

enum { DEFAULT_OP_LIMIT_S = 60, GIVE_UP_S = 10, LOOK_NS = 100000000, STOPPED_NS = 1000000000 };

void *pst__worker_main(void *arg) {
  pst__worker *w = arg;
  pst_pipeline *p = w->p;
  for (;;) {
    uint32_t seen = pst_event_now(&w->wake);
    if (atomic_load(&w->ending)) return NULL;
    pst__job_function job = atomic_load(&w->job);
    if (!job) {
      pst_event_wait(&w->wake, seen, 0, 1000000000);
      continue;
    }
    pst_status st = job(w, p->job_arg);
    if (st != PST_OK) p->options.transport->table->abort(p->options.transport, st, pst_error());
    atomic_store(&w->job, NULL);
    if (atomic_fetch_sub(&p->n_busy, 1) == 1) pst_event_signal(&p->done);
  }
}

static uint64_t heartbeats(const pst_pipeline *p) {
  uint64_t sum = 0;
  for (int i = 0; i < p->n_workers; i++)
    sum += atomic_load_explicit(&p->workers[i].heartbeat, memory_order_relaxed);
  return sum;
}

/* Names the workers that are inside an action, for the message of a hang. */
static void name_doing(const pst_pipeline *p, char *text, size_t bytes) {
  size_t n = 0;
  for (int i = 0; i < p->n_workers && n < bytes; i++) {
    uint64_t d = atomic_load_explicit(&p->workers[i].doing, memory_order_relaxed);
    pst_action a = {.kind = (uint16_t)(d >> 48), .chunk = (uint16_t)(d >> 32), .microbatch = (uint32_t)d};
    char action[PST_ACTION_TEXT];
    int wrote =
        snprintf(text + n, bytes - n, "%sworker %d at %s", i ? ", " : "", i, pst_action_format(a, action));
    n += wrote > 0 ? (size_t)wrote : 0;
  }
}

/* Waits for the job's end. A job in which no action ends for the op limit is given up. A look that comes much
 * too late finds a process that was stopped as a whole, its workers too: that time does not count. */
static void wait_done(pst_pipeline *p) {
  int64_t limit =
      p->options.op_limit_ns > 0 ? p->options.op_limit_ns : (int64_t)DEFAULT_OP_LIMIT_S * 1000000000;
  int64_t last = pst_clock_ns(), aborted = 0;
  uint64_t beats = heartbeats(p);
  for (;;) {
    uint32_t seen = pst_event_now(&p->done);
    if (atomic_load(&p->n_busy) == 0) return;
    int64_t before = pst_clock_ns();
    pst_event_wait(&p->done, seen, 0, LOOK_NS);
    int64_t now = pst_clock_ns(), late = now - before - LOOK_NS;
    if (late > STOPPED_NS) {
      last += late;
      if (aborted) aborted += late;
    }
    uint64_t beat = heartbeats(p);
    if (beat != beats) {
      beats = beat;
      last = now;
    } else if (aborted && now - aborted > (int64_t)GIVE_UP_S * 1000000000) {
      return; /* a thread that cannot be ended: the pipeline is dead, its memory is not given back */
    } else if (!aborted && now - last > limit) {
      char doing[512], text[640];
      name_doing(p, doing, sizeof doing);
      snprintf(text, sizeof text, "no action ended for %.1f s: %s", (double)limit / 1e9, doing);
      p->options.transport->table->abort(p->options.transport, PST_HUNG, text);
      aborted = now;
    }
  }
}

/* Runs `function` on worker `only`, or on all when it is -1. */
pst_status pst__run_job(pst_pipeline *p, int only, pst__job_function function, const void *arg,
                        size_t bytes) {
  if (p->dead != PST_OK) return pst_fail(p->dead, "%s", p->dead_error);
  if (!p->started) return pst_fail(PST_INVALID, "the pipeline is not started");
  if (bytes > sizeof p->job_arg)
    return pst_fail(PST_INTERNAL, "a job of %zu bytes, wanted at most %zu", bytes, sizeof p->job_arg);
  memcpy(p->job_arg, arg, bytes);
  int n = only < 0 ? p->n_workers : 1;
  atomic_store(&p->n_busy, n);
  for (int i = 0; i < p->n_workers; i++) {
    if (only >= 0 && i != only) continue;
    pst__worker *w = &p->workers[i];
    atomic_store(&w->job, function);
    pst_event_signal(&w->wake);
  }
  wait_done(p);
  pst_status st = p->options.transport->table->health(p->options.transport);
  if (st != PST_OK) {
    p->dead = st;
    snprintf(p->dead_error, sizeof p->dead_error, "%s", pst_error());
  }
  return st;
}
