/* How fast the CPU's attention is, by instruction set and threads, with the products it executes counted
 * exactly.
 *
 *   bench_attention                              the two shapes of the small models, 1 thread, every set
 *   bench_attention T d H G b causal p threads [set]
 *                                                one shape, packed
 *
 * A line per direction: the best time of several, useful products (those that the mathematics needs) and
 * executed ones (padding of blocks included) in GFLOP/s.
 */
#include "backends/cpu/attention.h"
#include "backends/cpu/set.h"
#include "core/base/clock.h"
#include "core/base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct shape {
  int64_t T, d, H, G, b;
  bool causal;
  float p;
  int threads;
} shape;

/* Scalar products of queries and keys: needed, in score-like products, in products over keys, over queries.
 */
typedef struct counts {
  double needed, scores, mixed, gathered;
} counts;

static counts count(const shape *s) {
  counts n = {0, 0, 0, 0};
  for (int64_t first = 0; first < s->T; first += ATTENTION_BLOCK) {
    int64_t queries = s->T - first < ATTENTION_BLOCK ? s->T - first : ATTENTION_BLOCK;
    int64_t keys = s->causal ? first + queries : s->T;
    int64_t rows = (keys + ATTENTION_ROWS - 1) / ATTENTION_ROWS * ATTENTION_ROWS;
    for (int64_t i = first; i < first + queries; i++) n.needed += (double)(s->causal ? i + 1 : s->T);
    n.scores += (double)(rows * ATTENTION_BLOCK);
    for (int64_t g = 0; g < ATTENTION_BLOCK; g += ATTENTION_ROWS) {
      int64_t last = first + g + ATTENTION_ROWS;
      n.mixed += (double)((s->causal && last < keys ? last : keys) * ATTENTION_ROWS);
    }
    for (int64_t j = 0; j < rows; j += ATTENTION_ROWS) {
      int64_t from = s->causal && j > first ? j - first : 0;
      n.gathered += (double)((queries - from) * ATTENTION_ROWS);
    }
  }
  return n;
}

static void run_kernel(pst_team_member *me, void *arg) {
  pst_cpu_call call = *(const pst_cpu_call *)arg;
  call.me = me;
  call.set->kernel[call.op->code](&call);
}

static float *room(int64_t n) {
  float *x = aligned_alloc(64, (size_t)((n * 4 + 127) / 64 * 64));
  if (!x) {
    fprintf(stderr, "bench_attention: no memory for %lld floats\n", (long long)n);
    exit(3);
  }
  return x;
}

static double best_ns(pst_team *team, pst_cpu_call *call) {
  double best = INFINITY;
  for (int i = 0; i < 25; i++) {
    int64_t start = pst_clock_ns();
    pst_team_run(team, run_kernel, call);
    double ns = (double)(pst_clock_ns() - start);
    if (ns < best) best = ns;
  }
  return best;
}

static void report(const char *what, double ns, double needed, double executed, double heads) {
  printf("  %-8s %9.1f us  useful %6.1f  executed %6.1f GFLOP/s\n", what, ns / 1000, needed * heads / ns,
         executed * heads / ns);
}

static int bench(const shape *s, const char *set_name) {
  const pst_cpu_set *set;
  if (pst__cpu_set_find(set_name, &set) != PST_OK) {
    printf("%s: %s\n", set_name, pst_error());
    return 0;
  }
  pst_team *team;
  if (pst_team_create(&(pst_team_options){.n_threads = s->threads}, &team) != PST_OK) {
    fprintf(stderr, "bench_attention: %s\n", pst_error());
    return 3;
  }
  int64_t width = (s->H + 2 * s->G) * s->d, rows = s->b * s->T;
  pst_ctrl ctrl = {.seed = 1};
  pst_op op = {.code = PST_OP_attention,
               .in[0] = {.rank = 3, .dim = {s->b, s->T, width, 1}},
               .attrs = {.packed = true,
                         .causal = s->causal,
                         .heads = (int32_t)s->H,
                         .kv_heads = (int32_t)s->G,
                         .head_dim = (int32_t)s->d,
                         .scale = 1 / sqrtf((float)s->d),
                         .p = s->p}};
  float *qkv = room(rows * width), *dqkv = room(rows * width), *o = room(rows * s->H * s->d);
  float *dout = room(rows * s->H * s->d), *lse = room(s->b * s->H * s->T);
  pst_rng_normal(pst_rng_key_make(1, 1), 0, rows * width, 0, 1, qkv);
  pst_rng_normal(pst_rng_key_make(1, 2), 0, rows * s->H * s->d, 0, 1, dout);
  pst_cpu_call call = {.op = &op, .in = {qkv}, .out = {o, lse}, .ctrl = &ctrl, .set = set};
  call.workspace = room(set->workspace[PST_OP_attention](&op, s->threads) / 4);
  double forward = best_ns(team, &call);
  free(call.workspace);
  op.code = PST_OP_attention_grad;
  call.in[4] = o;
  call.in[5] = lse;
  call.in[6] = dout;
  call.out[0] = dqkv;
  call.workspace = room(set->workspace[PST_OP_attention_grad](&op, s->threads) / 4);
  double backward = best_ns(team, &call);
  free(call.workspace);
  counts n = count(s);
  double heads = 2.0 * (double)(s->d * s->b * s->H);
  printf("T=%lld d=%lld H=%lld G=%lld b=%lld%s p=%g, set %s, %d threads\n", (long long)s->T, (long long)s->d,
         (long long)s->H, (long long)s->G, (long long)s->b, s->causal ? " causal" : "", (double)s->p,
         set->name, s->threads);
  report("forward", forward, 2 * n.needed, n.scores + n.mixed, heads);
  report("backward", backward, 5 * n.needed, 2 * n.scores + n.mixed + 2 * n.gathered, heads);
  free(qkv);
  free(dqkv);
  free(o);
  free(dout);
  free(lse);
  pst_team_destroy(team);
  return 0;
}

int main(int argc, char **argv) {
  static const char *const sets[] = {"baseline", "v3", "v4"};
  shape list[] = {
      {256, 64, 6, 6, 4, true, 0, 1}, {64, 32, 4, 4, 12, true, 0, 1}, {256, 64, 6, 6, 4, true, 0.1f, 1}};
  int n = (int)(sizeof list / sizeof *list);
  if (argc == 9 || argc == 10) {
    list[0] = (shape){.T = atoll(argv[1]),
                      .d = atoll(argv[2]),
                      .H = atoll(argv[3]),
                      .G = atoll(argv[4]),
                      .b = atoll(argv[5]),
                      .causal = atoi(argv[6]) != 0,
                      .p = (float)atof(argv[7]),
                      .threads = atoi(argv[8])};
    n = 1;
  } else if (argc != 1) {
    fprintf(stderr, "usage: bench_attention [T d H G b causal p threads [set]]\n");
    return 2;
  }
  for (int i = 0; i < n; i++)
    for (int k = 0; k < 3; k++) {
      if (argc == 10 && strcmp(argv[9], sets[k])) continue;
      int status = bench(&list[i], sets[k]);
      if (status) return status;
    }
  return 0;
}
