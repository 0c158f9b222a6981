/* Speed of the CPU's matrix products at the shapes that training runs: own kernels against OpenBLAS, one
 * thread and more.
 *
 *   bench_gemm [--set v4] [--threads 2] [--only TEXT] [--no-blas]
 *
 * Figures are medians. "tile" is the rate of the register tile on operands that stay in the L1 cache,
 * measured between the runs of a product: what the processor gives at that moment, with whatever else runs on
 * it.
 */
#include "backends/cpu/blas.h"
#include "backends/cpu/gemm.h"
#include "backends/cpu/gemm_kernels.h"
#include "core/base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RUNS = 100, TILE_K = 192 };
static const int64_t MAX_NS = 1500000000;

typedef struct shape {
  const char *name;
  int64_t m, n, k;
  bool ta, tb, accumulate;
} shape;

static const shape shapes[] = {
    {"cube", 1024, 1024, 1024, false, false, false},      {"gpt qkv y", 1024, 1152, 384, false, false, false},
    {"gpt proj y", 1024, 384, 384, false, false, false},  {"gpt up y", 1024, 1536, 384, false, false, false},
    {"gpt down y", 1024, 384, 1536, false, false, false}, {"gpt qkv dx", 1024, 384, 1152, false, true, false},
    {"gpt proj dx", 1024, 384, 384, false, true, false},  {"gpt up dx", 1024, 384, 1536, false, true, false},
    {"gpt down dx", 1024, 1536, 384, false, true, false}, {"gpt qkv dw", 384, 1152, 1024, true, false, true},
    {"gpt proj dw", 384, 384, 1024, true, false, true},   {"gpt up dw", 384, 1536, 1024, true, false, true},
    {"gpt down dw", 1536, 384, 1024, true, false, true},  {"small qkv y", 768, 384, 128, false, false, false},
    {"small proj y", 768, 128, 128, false, false, false}, {"small up y", 768, 512, 128, false, false, false},
    {"small down y", 768, 128, 512, false, false, false}, {"small qkv dx", 768, 128, 384, false, true, false},
    {"small down dx", 768, 512, 128, false, true, false}, {"small up dw", 128, 512, 768, true, false, true},
    {"head y 256", 256, 50304, 384, false, true, false},  {"head y 128", 128, 50304, 384, false, true, false},
    {"head dx", 256, 384, 50304, false, false, false},    {"head dw", 50304, 384, 256, true, false, true},
    {"tile qk 64", 64, 64, 64, false, true, false},       {"tile qk 128", 128, 128, 64, false, true, false},
    {"tile qk wide", 64, 256, 64, false, true, false},    {"tile pv 64", 64, 64, 64, false, false, true},
    {"tile pv 128", 128, 64, 128, false, false, true},    {"tile pv long", 64, 64, 256, false, false, true},
    {"tile dv", 128, 64, 128, true, false, true},
};

typedef struct job {
  const pst_gemm_kernels *set;
  const pst_blas *blas;
  const pst_gemm *g;
  void *workspace;
} job;

static void run_job(pst_team_member *me, void *arg) {
  const job *j = arg;
  if (j->blas)
    pst__blas_team(me, j->blas, j->g);
  else
    pst__gemm_team(me, j->set, j->g, j->workspace);
}

static int compare_double(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *x, int n) {
  qsort(x, (size_t)n, sizeof(*x), compare_double);
  return x[n / 2];
}

static float *operand(int64_t floats) {
  float *x = aligned_alloc(64, (size_t)(floats * 4 + 63) / 64 * 64);
  if (!x) exit(3);
  uint32_t s = 12345;
  for (int64_t i = 0; i < floats; i++)
    x[i] = (float)((s = s * 1664525u + 1013904223u) >> 8) * 0x1p-23f - 1.0f;
  return x;
}

/* GFLOP/s of the tallest tile in L1. */
static double tile_rate(const pst_gemm_kernels *set, const float *a, const float *b, float *c) {
  const int n = 2 * set->lanes, repeats = 16;
  const int64_t t = pst_clock_ns();
  for (int i = 0; i < repeats; i++)
    set->tile[0][1][set->rows - 1](TILE_K, a, set->a_stride, b, n, c, n, NULL, 0, NULL, n);
  return 2.0 * repeats * TILE_K * n * set->rows / (double)(pst_clock_ns() - t);
}

typedef struct figures {
  double rate, of_tile; /* GFLOP/s; share of the tile's rate */
} figures;

static figures measure(pst_team *team, const job *j, const pst_gemm_kernels *tile_set, const float *a,
                       const float *b, float *c) {
  double rates[MAX_RUNS], shares[MAX_RUNS];
  const double flops = 2.0 * (double)j->g->m * (double)j->g->n * (double)j->g->k;
  const int64_t inner = flops < 2e7 ? (int64_t)(2e7 / flops) : 1; /* a timing lasts 0.1 ms at least */
  const int64_t start = pst_clock_ns();
  int n = 0;
  pst_team_run(team, run_job, (void *)(uintptr_t)j);
  while (n < MAX_RUNS && (n < 3 || pst_clock_ns() - start < MAX_NS)) {
    const double tile = tile_rate(tile_set, a, b, c);
    const int64_t t = pst_clock_ns();
    for (int64_t i = 0; i < inner; i++) pst_team_run(team, run_job, (void *)(uintptr_t)j);
    rates[n] = flops * (double)inner / (double)(pst_clock_ns() - t);
    shares[n] = rates[n] / tile;
    n++;
  }
  return (figures){median(rates, n), median(shares, n)};
}

static int bench_shape(const shape *s, const pst_gemm_kernels *set, const pst_blas *blas, pst_team *alone,
                       pst_team *team) {
  float *a = operand(s->m * s->k), *b = operand(s->n * s->k), *c = operand(s->m * s->n);
  float *tile_a = operand(TILE_K * 16), *tile_b = operand(TILE_K * 32), *tile_c = operand(16 * 32);
  pst_gemm g = {.m = s->m, .n = s->n, .k = s->k, .a_transposed = s->ta, .b_transposed = s->tb};
  g.a = a, g.lda = s->ta ? s->m : s->k, g.b = b, g.ldb = s->tb ? s->k : s->n, g.c = c, g.ldc = s->n;
  g.accumulate = s->accumulate;
  void *workspace =
      aligned_alloc(64, (pst__gemm_workspace_bytes(set, &g, pst_team_size(team)) + 63) / 64 * 64);
  if (!workspace) exit(3);
  const job own = {.set = set, .g = &g, .workspace = workspace}, other = {.blas = blas, .g = &g};

  const figures one = measure(alone, &own, set, tile_a, tile_b, tile_c);
  const figures many = measure(team, &own, set, tile_a, tile_b, tile_c);
  printf("%-14s %6lld %6lld %6lld %c%c%c %8.1f %6.1f%% %8.1f %6.2fx", s->name, (long long)s->m,
         (long long)s->n, (long long)s->k, s->ta ? 'T' : 'N', s->tb ? 'T' : 'N', s->accumulate ? '+' : ' ',
         one.rate, 100 * one.of_tile, many.rate, many.of_tile / one.of_tile);
  if (blas) {
    const figures blas_one = measure(alone, &other, set, tile_a, tile_b, tile_c);
    const figures blas_many = measure(team, &other, set, tile_a, tile_b, tile_c);
    printf(" %8.1f %8.1f", blas_one.rate, blas_many.rate);
  }
  printf("\n");
  fflush(stdout);
  free(a), free(b), free(c), free(tile_a), free(tile_b), free(tile_c), free(workspace);
  return 0;
}

int main(int argc, char **argv) {
  const pst_gemm_kernels *set = pst__gemm_best();
  const char *only = "";
  int n_threads = 2;
  bool with_blas = true;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--set") == 0 && i + 1 < argc)
      set = pst__gemm_find(argv[++i]);
    else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
      n_threads = atoi(argv[++i]);
    else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
      only = argv[++i];
    else if (strcmp(argv[i], "--no-blas") == 0)
      with_blas = false;
    else
      set = NULL;
    if (!set) {
      fprintf(stderr, "usage: bench_gemm [--set base|v3|v4] [--threads N] [--only TEXT] [--no-blas]\n");
      return 2;
    }
  }
  pst_blas blas = {0};
  if (with_blas && pst__blas_open(NULL, &blas) != PST_OK) {
    printf("without OpenBLAS: %s\n", pst_error());
    with_blas = false;
  }
  pst_team *alone = NULL, *team = NULL;
  if (pst_team_create(&(pst_team_options){.n_threads = 1}, &alone) != PST_OK ||
      pst_team_create(&(pst_team_options){.n_threads = n_threads}, &team) != PST_OK) {
    fprintf(stderr, "%s\n", pst_error());
    return 3;
  }
  char warning[256];
  if (with_blas) printf("openblas core %s (%s)\n", blas.core, blas.config);
  if (with_blas && pst__blas_warning(&blas, warning, sizeof(warning))) printf("%s\n", warning);
  printf("set %s, GFLOP/s, medians\n", pst__gemm_name(set));
  printf("%-14s %6s %6s %6s     %8s %7s %6s x%-2d %6s %8s %8s\n", "product", "m", "n", "k", "1 thread",
         "of tile", "own", n_threads, "gain", "blas", "blas xN");
  for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
    if (strstr(shapes[i].name, only)) bench_shape(&shapes[i], set, with_blas ? &blas : NULL, alone, team);
  pst_team_destroy(team);
  pst_team_destroy(alone);
  pst__blas_close(&blas);
  return 0;
}
