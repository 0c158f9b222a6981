/* Batches made ready ahead of the pipeline by one thread with a bounded queue.
 *
 *   pst_loader_options options = {.view = &train, .sampler = &sampler, .sequence = T, .global = 32};
 *   options.n_consumers = 2; // the first stage wants the tokens, the last one the targets
 *   PST_TRY(pst_loader_create(&options, &loader));
 *   for (int64_t step = 0; step < n_steps; step++) { // consumer 0; consumer 1 does the same
 *     pst_loader_batch batch;
 *     PST_TRY(pst_loader_take(loader, 0, step, limit_ns, &batch));
 *     use(batch.tokens);
 *     PST_TRY(pst_loader_release(loader, 0, step));
 *   }
 *   pst_loader_destroy(loader);
 *
 * Steps are made in ascending order, at most `depth` of them at once; a step's memory is used again when all
 * consumers have released it. Nothing is allocated after create. The thread keeps to the cores of the thread
 * that creates it.
 */
#ifndef PENSTOCK_DATA_LOADER_H
#define PENSTOCK_DATA_LOADER_H

#include "core/base/status.h"
#include "core/data/sampler.h"
#include "core/data/tokens.h"

#include <stdint.h>

typedef struct pst_loader pst_loader;

/* Writes one sequence: tokens[0..T) and targets[0..T), -1 for a target that does not count. Called by the
 * loader's thread, step by step, sequence by sequence, from the first step on; to be resumable it should
 * depend on step and sequence alone. An error ends the loader and comes out of take for this step. It must
 * return within bounded time: destroy waits for it. */
typedef pst_status (*pst_loader_fill)(void *user, int64_t step, int64_t sequence, int64_t T, int32_t *tokens,
                                      int32_t *targets);

typedef struct pst_loader_options {
  const pst_tokens_view
      *view; /* with sampler: the file to read from, already checked; both copied, tokens not */
  const pst_sampler *sampler; /* of the same sequence and global */
  pst_loader_fill fill;       /* in their place: the caller's own source */
  void *user;                 /* handed to fill */
  int64_t vocab;    /* every token must be below, every target below or -1; 0: not looked at (a file alone) */
  int64_t sequence; /* T, tokens of a sequence */
  int64_t global;   /* sequences of a step */
  int64_t first_step; /* default 0 */
  int64_t n_steps;    /* steps there will be from first_step on; default 0: without end */
  int depth;          /* steps held at once, 2 to 64; default (0): 3 */
  int n_consumers;    /* who must release a step, 1 to 32; default (0): 1 */
} pst_loader_options;

typedef struct pst_loader_batch {
  int64_t step;
  const int32_t *tokens;  /* [global, T] */
  const int32_t *targets; /* [global, T]; -1: does not count */
  int64_t n_valid;        /* targets that count */
  uint64_t hash; /* of tokens, as 32-bit ids in this machine's byte order: one run's steps compare by it */
} pst_loader_batch;

/* Allocates and starts the thread. INVALID or NO_MEMORY on failure. */
PST_CHECKED pst_status pst_loader_create(const pst_loader_options *options, pst_loader **out_loader);

/* Ends the thread, after the sequence in work, and frees all batches. No take may be waiting. NULL is legal.
 */
void pst_loader_destroy(pst_loader *loader);

/* Waits until `step` is ready and lends it to `consumer` (0 .. n_consumers - 1), who takes each step at most
 * once, in any order within the queue's depth; the pointers hold until the consumer's release. HUNG when it
 * is not ready within `limit_ns`, saying whether it is being made or who holds the queue up. INVALID for a
 * step that is past or never will be. The source's own error, with its message, when making this step or an
 * earlier one failed. Any thread; consumers do not disturb each other. */
PST_CHECKED pst_status pst_loader_take(pst_loader *loader, int consumer, int64_t step, int64_t limit_ns,
                                       pst_loader_batch *out_batch);

/* Gives a step back. INTERNAL when this consumer does not hold it. */
PST_CHECKED pst_status pst_loader_release(pst_loader *loader, int consumer, int64_t step);

#endif
