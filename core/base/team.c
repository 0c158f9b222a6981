#include "core/base/team.h"

#include "core/base/clock.h"
#include "core/base/cores.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define TEAM_LINE        64
#define TEAM_MAX_THREADS 1024
#define TEAM_SPIN_NS     50000

/* Members of all teams of the process, against the cores it may use: a team only spins by default while they
 * fit. */
static _Atomic int live_threads;

/* A number that only moves forward and that threads wait on. `sleepers` lets the one who advances it skip the
 * system call while all waiters are awake. */
typedef struct gate {
  alignas(TEAM_LINE) _Atomic uint32_t value;
  _Atomic int sleepers;
#ifndef __linux__
  pthread_mutex_t lock;
  pthread_cond_t moved;
#endif
} gate;

struct pst_team_member {
  alignas(TEAM_LINE) pst_team *team;
  pthread_t thread;
  int rank;
};

struct pst_team {
  gate start;    /* moves when a run begins, or the team ends */
  gate together; /* moves when the last member has arrived */
  alignas(TEAM_LINE) _Atomic int arrived;
  alignas(TEAM_LINE) _Atomic int64_t next_piece;
  alignas(TEAM_LINE) pst_team_function function; /* written before `start` moves, as all below */
  void *arg;
  bool ending;
  int n_threads;
  int n_started; /* threads that destroy() joins */
  int64_t spin_ns;
  bool spin_if_room; /* spin_ns is the default: only while all teams fit the cores */
  int room;          /* the cores this process may use */
#ifdef __linux__
  bool bound; /* member 0 was bound by create() */
  pthread_t caller;
  cpu_set_t caller_cores; /* what it had before */
#endif
  pst_team_member members[];
};

static void pause_core(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
  __asm__ volatile("yield");
#endif
}

/* ---- gates ---- */

static void gate_init(gate *g) {
  atomic_init(&g->value, 0);
  atomic_init(&g->sleepers, 0);
#ifndef __linux__
  pthread_mutex_init(&g->lock, NULL);
  pthread_cond_init(&g->moved, NULL);
#endif
}

static void gate_end(gate *g) {
#ifndef __linux__
  pthread_cond_destroy(&g->moved);
  pthread_mutex_destroy(&g->lock);
#else
  (void)g;
#endif
}

static void gate_sleep(gate *g, uint32_t seen) {
#ifdef __linux__
  syscall(SYS_futex, &g->value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
#else
  pthread_mutex_lock(&g->lock);
  while (atomic_load(&g->value) == seen) pthread_cond_wait(&g->moved, &g->lock);
  pthread_mutex_unlock(&g->lock);
#endif
}

static void gate_wake(gate *g) {
#ifdef __linux__
  syscall(SYS_futex, &g->value, FUTEX_WAKE_PRIVATE, TEAM_MAX_THREADS, NULL, NULL, 0);
#else
  pthread_mutex_lock(&g->lock);
  pthread_cond_broadcast(&g->moved);
  pthread_mutex_unlock(&g->lock);
#endif
}

static void gate_advance(gate *g) {
  /* Sequentially consistent on both sides: either we see the sleeper, or it sees the new value. */
  atomic_fetch_add(&g->value, 1);
  if (atomic_load(&g->sleepers) > 0) gate_wake(g);
}

/* True when the gate moved away from `seen` within `spin_ns`. */
static bool gate_spin(gate *g, uint32_t seen, int64_t spin_ns) {
  if (atomic_load_explicit(&g->value, memory_order_acquire) != seen) return true;
  if (spin_ns <= 0) return false;
  int64_t until = pst_clock_ns() + spin_ns;
  do {
    for (int i = 0; i < 32; i++) {
      if (atomic_load_explicit(&g->value, memory_order_acquire) != seen) return true;
      pause_core();
    }
  } while (pst_clock_ns() < until);
  return false;
}

static void gate_wait(gate *g, uint32_t seen, int64_t spin_ns) {
  if (gate_spin(g, seen, spin_ns)) return;
  atomic_fetch_add(&g->sleepers, 1);
  while (atomic_load(&g->value) == seen) gate_sleep(g, seen);
  atomic_fetch_sub(&g->sleepers, 1);
}

/* ---- members ---- */

static int64_t team_spin_ns(const pst_team *team) {
  if (team->spin_if_room && atomic_load_explicit(&live_threads, memory_order_relaxed) > team->room) return 0;
  return team->spin_ns;
}

/* Counts this member in; the last one makes the team ready for the next round and lets all go on. Nobody
 * takes pieces between the last arrival and that, so the piece counter has no race. */
static void team_arrive(pst_team *team) {
  if (atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel) + 1 < team->n_threads) return;
  atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
  atomic_store_explicit(&team->next_piece, 0, memory_order_relaxed);
  gate_advance(&team->together);
}

static void *member_main(void *arg) {
  pst_team_member *me = arg;
  pst_team *team = me->team;
  for (uint32_t seen = 0;; seen++) {
    gate_wait(&team->start, seen, team_spin_ns(team));
    if (team->ending) return NULL;
    team->function(me, team->arg);
    team_arrive(team);
  }
}

void pst_team_barrier(pst_team_member *me) {
  pst_team *team = me->team;
  /* The gate cannot move between this read and our arrival: it waits for us. */
  uint32_t seen = atomic_load_explicit(&team->together.value, memory_order_relaxed);
  team_arrive(team);
  gate_wait(&team->together, seen, team_spin_ns(team));
}

void pst_team_run(pst_team *team, pst_team_function function, void *arg) {
  team->function = function;
  team->arg = arg;
  if (team->n_threads > 1) gate_advance(&team->start);
  function(&team->members[0], arg);
  pst_team_barrier(&team->members[0]);
}

int64_t pst_team_take(pst_team_member *me, int64_t n_pieces) {
  int64_t piece = atomic_fetch_add_explicit(&me->team->next_piece, 1, memory_order_relaxed);
  return piece < n_pieces ? piece : -1;
}

int pst_team_size(const pst_team *team) {
  return team->n_threads;
}
int pst_team_rank(const pst_team_member *me) {
  return me->rank;
}
int pst_team_members(const pst_team_member *me) {
  return me->team->n_threads;
}

/* ---- creation ---- */

#ifdef __linux__
static pst_status core_set(int core, int rank, cpu_set_t *out_set) {
  if (core < 0 || core >= CPU_SETSIZE)
    return pst_fail(PST_INVALID, "team: core %d for member %d, wanted 0 to %d", core, rank, CPU_SETSIZE - 1);
  CPU_ZERO(out_set);
  CPU_SET(core, out_set);
  return PST_OK;
}

static pst_status bind_caller(pst_team *team, int core) {
  cpu_set_t set;
  PST_TRY(core_set(core, 0, &set));
  team->caller = pthread_self();
  int err = pthread_getaffinity_np(team->caller, sizeof team->caller_cores, &team->caller_cores);
  if (err == 0) err = pthread_setaffinity_np(team->caller, sizeof set, &set);
  if (err != 0)
    return pst_fail(PST_INVALID, "team: cannot bind member 0 to core %d: %s", core, strerror(err));
  team->bound = true;
  return PST_OK;
}

static void unbind_caller(pst_team *team) {
  if (team->bound && pthread_equal(team->caller, pthread_self()))
    pthread_setaffinity_np(team->caller, sizeof team->caller_cores, &team->caller_cores);
}

static bool cores_repeat(const int *cores, int n) {
  cpu_set_t seen;
  CPU_ZERO(&seen);
  for (int i = 0; i < n; i++) {
    if (cores[i] < 0 || cores[i] >= CPU_SETSIZE) continue; /* refused when it is bound */
    if (CPU_ISSET(cores[i], &seen)) return true;
    CPU_SET(cores[i], &seen);
  }
  return false;
}
#else
static void unbind_caller(pst_team *team) {
  (void)team;
}
#endif

static pst_status start_member(pst_team_member *me, const int *cores) {
  pthread_attr_t attr;
  int err = pthread_attr_init(&attr);
  if (err != 0) return pst_fail(PST_NO_MEMORY, "team: no attributes for a thread: %s", strerror(err));
  pst_status st = PST_OK;
#ifdef __linux__
  if (cores) {
    cpu_set_t set;
    PST_GOTO(st, core_set(cores[me->rank], me->rank, &set), free_attr);
    err = pthread_attr_setaffinity_np(&attr, sizeof set, &set);
  }
#else
  (void)cores;
#endif
  if (err == 0) err = pthread_create(&me->thread, &attr, member_main, me);
  if (err == EINVAL && cores)
    st = pst_fail(PST_INVALID, "team: cannot bind member %d to core %d: %s", me->rank, cores[me->rank],
                  strerror(err));
  else if (err != 0)
    st = pst_fail(PST_NO_MEMORY, "team: cannot start thread %d of %d: %s", me->rank, me->team->n_threads,
                  strerror(err));
  if (st != PST_OK) goto free_attr;
#ifdef __linux__
  char name[16];
  snprintf(name, sizeof name, "pst-team-%d", me->rank);
  pthread_setname_np(me->thread, name);
#endif
free_attr:
  pthread_attr_destroy(&attr);
  return st;
}

/* Members leave asynchronous signals to the threads of the program. */
static pst_status start_members(pst_team *team, const int *cores) {
  sigset_t blocked, before;
  sigfillset(&blocked);
  sigdelset(&blocked, SIGSEGV);
  sigdelset(&blocked, SIGBUS);
  sigdelset(&blocked, SIGFPE);
  sigdelset(&blocked, SIGILL);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  pst_status st = PST_OK;
  for (int i = 1; i < team->n_threads && st == PST_OK; i++) {
    st = start_member(&team->members[i], cores);
    if (st == PST_OK) team->n_started++;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return st;
}

pst_status pst_team_create(const pst_team_options *options, pst_team **out_team) {
  int n = options->n_threads;
  if (n < 1 || n > TEAM_MAX_THREADS)
    return pst_fail(PST_INVALID, "team: %d threads, wanted 1 to %d", n, TEAM_MAX_THREADS);
  pst_cores usable;
  PST_TRY(pst_cores_usable(&usable));

  size_t bytes = sizeof(pst_team) + (size_t)n * sizeof(pst_team_member);
  bytes = (bytes + TEAM_LINE - 1) / TEAM_LINE * TEAM_LINE;
  pst_team *team = aligned_alloc(TEAM_LINE, bytes);
  if (!team) return pst_fail(PST_NO_MEMORY, "team: no memory for %d members (%zu bytes)", n, bytes);
  memset(team, 0, bytes);
  gate_init(&team->start);
  gate_init(&team->together);
  team->n_threads = n;
  team->room = usable.n;
  team->spin_if_room = options->spin_ns == 0;
  team->spin_ns = options->spin_ns == 0 ? TEAM_SPIN_NS : options->spin_ns;
  for (int i = 0; i < n; i++) {
    team->members[i].team = team;
    team->members[i].rank = i;
  }
  atomic_fetch_add(&live_threads, n);

  pst_status st = PST_OK;
#ifdef __linux__
  if (options->cores && team->spin_if_room && cores_repeat(options->cores, n)) team->spin_ns = 0;
  if (options->cores) PST_GOTO(st, bind_caller(team, options->cores[0]), destroy_team);
#endif
  PST_GOTO(st, start_members(team, options->cores), destroy_team);
  *out_team = team;
  return PST_OK;

destroy_team:
  pst_team_destroy(team);
  return st;
}

void pst_team_destroy(pst_team *team) {
  if (!team) return;
  team->ending = true;
  gate_advance(&team->start);
  for (int i = 1; i <= team->n_started; i++) pthread_join(team->members[i].thread, NULL);
  unbind_caller(team);
  atomic_fetch_sub(&live_threads, team->n_threads);
  gate_end(&team->together);
  gate_end(&team->start);
  free(team);
}
