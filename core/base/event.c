#include "core/base/event.h"

#include "core/base/clock.h"

#include <time.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static inline void pause_core(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

void pst_event_signal(pst_event *e) {
  atomic_fetch_add(&e->count, 1);
#if defined(__linux__)
  if (atomic_load(&e->sleepers)) syscall(SYS_futex, &e->count, FUTEX_WAKE_PRIVATE, 0x7fffffff, NULL, NULL, 0);
#endif
}

void pst_event_wait(pst_event *e, uint32_t seen, int64_t spin_ns, int64_t timeout_ns) {
  if (spin_ns > 0) {
    int64_t end = pst_clock_ns() + spin_ns;
    do {
      for (int i = 0; i < 64; i++) {
        if (atomic_load_explicit(&e->count, memory_order_acquire) != seen) return;
        pause_core();
      }
    } while (pst_clock_ns() < end);
  }
#if defined(__linux__)
  struct timespec t = {.tv_sec = timeout_ns / 1000000000, .tv_nsec = timeout_ns % 1000000000};
  atomic_fetch_add(&e->sleepers, 1);
  if (atomic_load(&e->count) == seen) syscall(SYS_futex, &e->count, FUTEX_WAIT_PRIVATE, seen, &t, NULL, 0);
  atomic_fetch_sub(&e->sleepers, 1);
#else
  int64_t end = pst_clock_ns() + timeout_ns; /* elsewhere: poll a thousand times a second */
  struct timespec t = {.tv_nsec = 1000000};
  while (atomic_load(&e->count) == seen && pst_clock_ns() < end) nanosleep(&t, NULL);
#endif
}
