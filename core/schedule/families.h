/* The schedule families by name, and the one call that makes a schedule from options.
 *
 *   pst_schedule_options options;
 *   pst_schedule_options_init(&options);                          // 1f1b, one worker, one microbatch
 *   options.workers = 4;
 *   options.microbatches = 8;
 *   pst_schedule *schedule = NULL;
 *   PST_TRY(pst_schedule_generate(&options, &schedule));          // normal form
 *
 * A family is one file that emits the compute actions of each worker and one row in families.c. Checking,
 * lowering, simulating and running are not told about it.
 */
#ifndef PENSTOCK_SCHEDULE_FAMILIES_H
#define PENSTOCK_SCHEDULE_FAMILIES_H

#include "core/schedule/schedule.h"

enum { PST_EXTRA_AUTO = -1 };

typedef struct pst_schedule_options {
  const char *name;     /* "1f1b"; borrowed for the call */
  int workers;          /* 1; K */
  int chunks;           /* 1; V, stages on each worker; a family with a fixed number of its own takes that */
  int64_t microbatches; /* 1; M */
  int extra_forwards;   /* 0; microbatches in flight beyond the family's own number, hides latency (1f1b);
                           PST_EXTRA_AUTO: what hides latency_s with the times below */
  /* What `auto`, v-half, v-min and PST_EXTRA_AUTO lay their lists out for; borrowed. Stages are K * V. */
  const double *forward_s, *input_s, *weight_s; /* [stages] seconds; NULL: 1 each */
  double latency_s;                             /* 0; of each message, one way */
  bool no_early_send;                           /* false; see simulate.h */
  const double *stash_bytes, *defer_bytes;      /* [stages] of one slot; NULL: 0 and 1 */
  const double *memory_bytes; /* [workers] what slots of a worker may take; NULL: no limit */
} pst_schedule_options;

typedef struct pst_schedule_family {
  const char *name;
  const char *help; /* one line */
  int chunks;       /* V of its own; 0: any */
  bool takes_extra; /* extra_forwards makes sense */
  /* Emits the lists. Options have been checked against the row and for range. The caller owns *out. */
  pst_status (*generate)(const pst_schedule_options *options, pst_schedule **out_schedule);
} pst_schedule_family;

void pst_schedule_options_init(pst_schedule_options *options);

/* The table, in the order in which it is to be listed; *out_count rows. Static. */
const pst_schedule_family *pst_schedule_families(size_t *out_count);

/* Makes the schedule in normal form. A name that ends in .csv is a file to read (csv.h), whose K and M must
 * be those of the options. PST_INVALID names the option, the value seen and the values wanted; an unknown
 * name is answered with the known ones, nearest first. PST_NO_MEMORY. Any thread. The caller owns
 * *out_schedule. */
PST_CHECKED pst_status pst_schedule_generate(const pst_schedule_options *options,
                                             pst_schedule **out_schedule);

/* Forward-only lists on the placement of `like`, for evaluation between training steps: microbatches in
 * groups of K, each group through a worker's stages in ascending order. Passed by pst_schedule_check().
 * PST_INVALID, PST_NO_MEMORY. The caller owns *out_schedule. Any thread. */
PST_CHECKED pst_status pst_schedule_forward_only_like(const pst_schedule *like, int64_t microbatches,
                                                      pst_schedule **out_schedule);

/* ---- the families ----
 *
 * Worker r of K, M microbatches, V chunks; F, I, W are a worker's times for one microbatch, B = I + W. Times
 * and in-flight counts are for unlimited links without latency and full backwards that send at their end. In
 * all of them B (or I) and W of a stage run in ascending order, so that gradients add up as in one process.
 */

/* Forward only: every worker runs F, in groups of K microbatches through its chunks. (M + K-1) F for V = 1.
 */
pst_status pst__generate_forward_only(const pst_schedule_options *options, pst_schedule **out_schedule);

/* GPipe (Huang et al. 2019, "GPipe", section 2.3): all forwards, then all backwards. The backwards run in
 * ascending order, not in the paper's descending one: same makespan, (M + K-1)(F+B). M in flight. */
pst_status pst__generate_gpipe(const pst_schedule_options *options, pst_schedule **out_schedule);

/* 1F1B (Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training", PipeDream-Flush; Fan et al.
 * 2021, "DAPPLE"): warmup of min(M, K-1-r+extra) forwards on worker r, then one forward and one backward in
 * turn, then the backwards left. (M + K-1)(F+B); min(M, K-r+extra) in flight, extra = min(extra_forwards,
 * K-1-r): from extra_forwards = K-1 on it is eager 1F1B, whose steady state waits for no link of latency
 * (F+B)/2 or less. */
pst_status pst__generate_one_f_one_b(const pst_schedule_options *options, pst_schedule **out_schedule);

/* Interleaved 1F1B (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters",
 * section 2.2), Megatron-LM's order where M is a multiple of K. Any other M falls into floor(M/K) groups (one
 * for M < K) as even as possible, the larger first. Warmup of (V-1) G + 2 (K-1-r), G the largest group.
 * M (F+B) + (K-1)(F+B)/V for M >= K; min(MV, (V-1) G + 2 (K-1-r) + 1) / V in flight. V = 1 is 1F1B. */
pst_status pst__generate_interleaved(const pst_schedule_options *options, pst_schedule **out_schedule);

/* Looped breadth-first (Lamy-Poirier 2023, "Breadth-First Pipeline Parallelism"): chunk by chunk, all
 * forwards up, then all backwards down, in ascending order where the paper's is descending. Times as
 * interleaved; M in flight; each chunk's gradients are ready in one piece. */
pst_status pst__generate_looped_bfs(const pst_schedule_options *options, pst_schedule **out_schedule);

/* ZB-H1 (Qi et al. 2024, "Zero Bubble Pipeline Parallelism", section 2): 1F1B with the W of worker r put off
 * by r microbatches. M (F+B) + (K-1) max(F, I, F+I-W) for M >= K; K in flight to the end of W on every
 * worker, K-r to the end of I. */
pst_status pst__generate_zb_h1(const pst_schedule_options *options, pst_schedule **out_schedule);

/* ZB-H2 (same paper): warmup 2 (K-1-r), W put off by 2r. M (F+B) + (K-1) max(F, F+I-2W) for M >= 2K-1 and
 * W <= min(F, I); 2K-1 in flight. */
pst_status pst__generate_zb_h2(const pst_schedule_options *options, pst_schedule **out_schedule);

/* ZB-H1 over the rounds of interleaved 1F1B. M (F+B) + (K-1)(F+I-W)/V for M >= K and W <= min(F, I);
 * ((V-1) G + K) / V in flight. V = 1 is ZB-H1. */
pst_status pst__generate_interleaved_zb(const pst_schedule_options *options, pst_schedule **out_schedule);

/* ZB-V (Qi et al. 2024, "Pipeline Parallelism with Controllable Memory", section 3): V placement, two chunks;
 * its list for F = I = W. M (F+B) + (K-1) F/2 for F = I = W and M >= 2K-1; K in flight. */
pst_status pst__generate_zb_v(const pst_schedule_options *options, pst_schedule **out_schedule);

/* V-Half and V-Min (same paper): a building block repeated, see v_blocks.h. floor((K+2)/2) and floor((K+4)/3)
 * in flight. V-Half keeps its pace with unequal times as long as W+2I >= 2F and W+2F >= 2I. */
pst_status pst__generate_v_half(const pst_schedule_options *options, pst_schedule **out_schedule);
pst_status pst__generate_v_min(const pst_schedule_options *options, pst_schedule **out_schedule);

/* DualPipeV (DeepSeek-AI 2025, DualPipe's README): V placement, forwards and backwards that belong to
 * different microbatches next to each other. M >= 2K. (2K+1)/2 in flight. */
pst_status pst__generate_dualpipe_v(const pst_schedule_options *options, pst_schedule **out_schedule);

/* Searches for a quick list for the options' times, latency and memory: all families with V chunks, a list
 * scheduler in the manner of Qi et al. 2024 ("Zero Bubble Pipeline Parallelism", section 3) under many rules,
 * and from the best of them a search by moving single actions. Never slower than a family that fits. The same
 * options give the same list. PST_INVALID when nothing fits the memory. */
pst_status pst__generate_auto(const pst_schedule_options *options, pst_schedule **out_schedule);

#endif
