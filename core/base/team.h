/* A small team of threads that run one function together, as the CPU device and the optimizer use it.
 *
 *   static void sum_rows(pst_team_member *me, void *arg) {
 *     struct job *job = arg;
 *     for (int64_t i; (i = pst_team_take(me, job->n_pieces)) >= 0;) work_on(job, i);   // pieces in any order
 *     pst_team_barrier(me);                                                            // all pieces are done
 *   }
 *   pst_team_create(&(pst_team_options){.n_threads = 2}, &team);
 *   pst_team_run(team, sum_rows, &job);                                                // caller is member 0
 *
 * The caller of pst_team_run() is member 0; the other members wait between runs, first spinning for a bounded
 * time, then asleep. Barriers do the same, so more threads than cores share them instead of burning them.
 * Nothing is allocated and no system call is made while members are awake.
 */
#ifndef PENSTOCK_BASE_TEAM_H
#define PENSTOCK_BASE_TEAM_H

#include "core/base/status.h"

#include <stdint.h>

typedef struct pst_team pst_team;
typedef struct pst_team_member pst_team_member;

typedef struct pst_team_options {
  int n_threads;    /* members, the caller included; 1 to 1024 */
  const int *cores; /* core of each member (logical CPU number), n_threads long; NULL: not bound. Member 0 is
                       the thread that calls create, given its cores back by destroy */
  int64_t spin_ns;  /* how long a waiting member spins before it sleeps; 0: the default, 50 us while all teams
                       of the process fit the cores it may use, else none; negative: none */
} pst_team_options;

/* Starts the members. The team is used by one caller at a time. NO_MEMORY or INVALID on failure. */
PST_CHECKED pst_status pst_team_create(const pst_team_options *options, pst_team **out_team);

/* Ends and joins the members; NULL is legal. */
void pst_team_destroy(pst_team *team);

int pst_team_size(const pst_team *team);

typedef void (*pst_team_function)(pst_team_member *me, void *arg);

/* Runs `function` once on every member and returns when all have returned. */
void pst_team_run(pst_team *team, pst_team_function function, void *arg);

/* 0 for the caller, up to n - 1. */
int pst_team_rank(const pst_team_member *me);
int pst_team_members(const pst_team_member *me);

/* The next piece of `n_pieces`, or -1 when all are taken. A round of pieces ends with pst_team_barrier(),
 * which all members must call; the next round then starts at 0. `n_pieces` is the same for all members of a
 * round. With one member pieces come in order. */
int64_t pst_team_take(pst_team_member *me, int64_t n_pieces);

/* Returns when every member has called it; what they wrote before is visible to all after. */
void pst_team_barrier(pst_team_member *me);

#endif
