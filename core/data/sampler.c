#include "core/data/sampler.h"

#include "core/base/rng.h"

enum { PHASE_WINDOWS = 8 };

/* A seed for one use, so that the draws of one are unrelated to those of another. */
static uint64_t seed_for(uint64_t seed, const char *use) {
  pst_rng_key key = pst_rng_key_make(seed, pst_rng_hash_text(use));
  return ((uint64_t)key.k[1] << 32) | key.k[0];
}

/* Uniform in [0, n); the bias of the remainder is below n / 2^64. */
static int64_t draw(pst_rng_key key, int64_t counter, int64_t n) {
  uint32_t r[4];
  pst_rng_philox(key, (uint32_t[4]){(uint32_t)counter, (uint32_t)((uint64_t)counter >> 32), 0, 0}, r);
  return (int64_t)((((uint64_t)r[1] << 32) | r[0]) % (uint64_t)n);
}

pst_status pst_sampler_init(const pst_sampler_options *options, pst_sampler *out_sampler) {
  int64_t n = options->n_tokens, t = options->sequence;
  if (t < 1 || t == INT64_MAX)
    return pst_fail(PST_INVALID, "sampler: sequence %lld, wanted at least 1", (long long)t);
  if (options->global < 1)
    return pst_fail(PST_INVALID, "sampler: global batch %lld, wanted at least 1", (long long)options->global);
  if (options->n_windows < 0)
    return pst_fail(PST_INVALID, "sampler: %lld windows, wanted 0 (all) or more",
                    (long long)options->n_windows);
  int64_t need = options->mode == PST_SAMPLER_IN_ORDER ? 2 : t + 1;
  if (n < need)
    return pst_fail(PST_INVALID, "sampler: %lld tokens, needs at least %lld for sequence %lld", (long long)n,
                    (long long)need, (long long)t);

  pst_sampler s = {.mode = options->mode,
                   .n_tokens = n,
                   .sequence = t,
                   .global = options->global,
                   .order_seed = seed_for(options->seed, "data.order"),
                   .phase_seed = seed_for(options->seed, "data.phase")};
  switch (options->mode) {
  case PST_SAMPLER_WINDOWS:
    /* Any phase up to T - 1 leaves room for n / T - 1 windows, so all epochs have the same number. */
    s.phase = !options->fixed_phase && n / t - 1 >= PHASE_WINDOWS;
    s.n_windows = s.phase ? n / t - 1 : (n - 1) / t;
    break;
  case PST_SAMPLER_RANDOM:
    break;
  case PST_SAMPLER_IN_ORDER:
    s.n_windows = (n - 2) / t + 1;
    if (options->n_windows > 0 && options->n_windows < s.n_windows) s.n_windows = options->n_windows;
    break;
  default:
    return pst_fail(PST_INVALID, "sampler: mode number %d is unknown", (int)options->mode);
  }
  *out_sampler = s;
  return PST_OK;
}

static int64_t start_of_shuffled(const pst_sampler *s, int64_t g) {
  int64_t epoch = g / s->n_windows;
  int64_t window =
      pst_rng_permute(pst_rng_key_make(s->order_seed, (uint64_t)epoch), s->n_windows, g % s->n_windows);
  int64_t phase = s->phase ? draw(pst_rng_key_make(s->phase_seed, 0), epoch, s->sequence) : 0;
  return phase + window * s->sequence;
}

int64_t pst_sampler_start(const pst_sampler *sampler, int64_t step, int64_t sequence) {
  int64_t g = step * sampler->global + sequence;
  switch (sampler->mode) {
  case PST_SAMPLER_WINDOWS:
    return start_of_shuffled(sampler, g);
  case PST_SAMPLER_RANDOM:
    return draw(pst_rng_key_make(sampler->order_seed, (uint64_t)step), sequence,
                sampler->n_tokens - sampler->sequence);
  default:
    return g < sampler->n_windows ? g * sampler->sequence : -1;
  }
}

int64_t pst_sampler_epoch(const pst_sampler *sampler, int64_t step, int64_t sequence) {
  return sampler->mode == PST_SAMPLER_WINDOWS ? (step * sampler->global + sequence) / sampler->n_windows : 0;
}

int64_t pst_sampler_steps(const pst_sampler *sampler) {
  return sampler->n_windows == 0 ? 0 : (sampler->n_windows - 1) / sampler->global + 1;
}
