/* Which tokens make up sequence i of step s: a pure function, so that any worker finds its own, a resumed run
 * goes on exactly where it was, and nothing depends on how the run is laid out.
 *
 *   pst_sampler sampler;
 *   pst_sampler_options options = {.seed = 1, .n_tokens = view.count, .sequence = T, .global = 32};
 *   PST_TRY(pst_sampler_init(&options, &sampler));
 *   int64_t start = pst_sampler_start(&sampler, step, i);    // step from 0; i from 0 to global - 1
 *   pst_tokens_window(&view, start, T, ids, targets);
 *
 * Modes:
 *
 *   windows   epochs of non-overlapping windows of T tokens (targets shifted by one), each epoch in an order
 *             of its own. Sequence i of step s is number g = s global + i since the start; its epoch is
 *             g / n_windows; data that is used up begins again with the next epoch, in mid-step if need be.
 *   random    independent, uniform over all starts, as nanoGPT draws them.
 *   in_order  for evaluation: windows from the first to the last, once, the last one cut short where the
 *             tokens end; after it empty sequences (start -1).
 */
#ifndef PENSTOCK_DATA_SAMPLER_H
#define PENSTOCK_DATA_SAMPLER_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum pst_sampler_mode {
  PST_SAMPLER_WINDOWS,
  PST_SAMPLER_RANDOM,
  PST_SAMPLER_IN_ORDER
} pst_sampler_mode;

typedef struct pst_sampler_options {
  pst_sampler_mode mode;
  uint64_t seed;
  int64_t n_tokens; /* of the view that starts point into; at least sequence + 1, for in_order at least 2 */
  int64_t sequence; /* T */
  int64_t global;   /* sequences of a step */
  bool fixed_phase; /* windows: borders at multiples of T in every epoch. Default: each epoch shifts them by a
                       phase of its own in [0, T), and has one window less for that, while at least 8 windows
                       are left */
  int64_t n_windows; /* in_order: at most this many; 0: all */
} pst_sampler_options;

typedef struct pst_sampler {
  pst_sampler_mode mode;
  int64_t n_tokens, sequence, global;
  int64_t n_windows; /* of an epoch; of the whole evaluation; 0 for random */
  bool phase;
  uint64_t order_seed, phase_seed;
} pst_sampler;

/* INVALID for too few tokens (need and have), sizes below 1, an unknown mode. */
PST_CHECKED pst_status pst_sampler_init(const pst_sampler_options *options, pst_sampler *out_sampler);

/* The view's token that the sequence starts at; -1 for an empty sequence. step * global must stay below 2^63.
 */
int64_t pst_sampler_start(const pst_sampler *sampler, int64_t step, int64_t sequence);

/* windows: the epoch, from 0, that the sequence belongs to. Other modes: 0. */
int64_t pst_sampler_epoch(const pst_sampler *sampler, int64_t step, int64_t sequence);

/* in_order: the steps that cover all windows. */
int64_t pst_sampler_steps(const pst_sampler *sampler);

#endif
