/* Waiting for something that another thread does, without burning a core.
 *
 *   for (;;) {                                              // the waiter
 *     uint32_t seen = pst_event_now(&e);
 *     if (ready()) break;
 *     pst_event_wait(&e, seen, spin_ns, 100000000);         // returns after the next signal, or after 100 ms
 *   }
 *   make_ready(); pst_event_signal(&e);                     // the other side
 *
 * A signal between pst_event_now() and pst_event_wait() is never lost. Nothing is allocated; a signal makes a
 * system call only when someone sleeps.
 */
#ifndef PENSTOCK_BASE_EVENT_H
#define PENSTOCK_BASE_EVENT_H

#include <stdatomic.h>
#include <stdint.h>

typedef struct pst_event {
  _Atomic uint32_t count;
  _Atomic uint32_t sleepers;
} pst_event;

static inline uint32_t pst_event_now(pst_event *e) {
  return atomic_load(&e->count);
}

/* Wakes all who wait. Any thread. */
void pst_event_signal(pst_event *e);

/* Returns when the count is no longer `seen`, or `timeout_ns` has passed: spins for `spin_ns` at most, then
 * sleeps. */
void pst_event_wait(pst_event *e, uint32_t seen, int64_t spin_ns, int64_t timeout_ns);

#endif
