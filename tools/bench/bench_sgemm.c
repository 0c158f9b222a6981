/* What this machine's cores give in fp32 matrix products: the rate that training is held against.
 *
 *   bench_sgemm [--threads N]        // default: the cores that this process may use
 *
 * The product is 1024 x 1024 x 1024, with more rows where threads would else have none. Figures are medians
 * of 100 runs in GFLOP/s; the last line, "best", is the greater of Penstock's own kernels and OpenBLAS. An
 * OpenBLAS that does not know this processor is told the nearest one that it knows, by OPENBLAS_CORETYPE. */
#include "backends/cpu/blas.h"
#include "backends/cpu/gemm.h"
#include "core/base/clock.h"
#include "core/base/cores.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RUNS = 100, SIZE = 1024, ROWS_OF_PIECE = 512 };

typedef struct job {
  const pst_gemm_kernels *set;
  const pst_blas *blas; /* NULL: the set */
  pst_gemm g;
  void *workspace;
} job;

static void multiply(pst_team_member *me, void *arg) {
  const job *j = arg;
  if (j->blas)
    pst__blas_team(me, j->blas, &j->g);
  else
    pst__gemm_team(me, j->set, &j->g, j->workspace);
}

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* GFLOP/s, the median of RUNS. */
static double rate(pst_team *team, job *j) {
  const double flops = 2.0 * (double)j->g.m * SIZE * SIZE;
  double rates[RUNS];
  pst_team_run(team, multiply, j);
  for (int i = 0; i < RUNS; i++) {
    const int64_t start = pst_clock_ns();
    pst_team_run(team, multiply, j);
    rates[i] = flops / (double)(pst_clock_ns() - start);
  }
  qsort(rates, RUNS, sizeof rates[0], ascending);
  return rates[RUNS / 2];
}

/* Starts the program again with a better core for OpenBLAS, which reads its environment but once. */
static void choose_core(const pst_blas *blas, char **argv) {
  char warning[256];
  if (!pst__blas_warning(blas, warning, sizeof warning)) return;
  fprintf(stderr, "%s\n", warning);
  if (getenv("OPENBLAS_CORETYPE")) return;
  setenv("OPENBLAS_CORETYPE", pst__gemm_find("v4") ? "SkylakeX" : "Haswell", 1);
  execv("/proc/self/exe", argv);
}

static float *matrix(int64_t rows) {
  float *x = aligned_alloc(64, (size_t)rows * SIZE * sizeof *x);
  for (int64_t i = 0; x && i < rows * SIZE; i++) x[i] = (float)(i * 2654435761u % 1024) / 1024 - 0.5f;
  return x;
}

int main(int argc, char **argv) {
  pst_cores cores;
  if (pst_cores_usable(&cores) != PST_OK) {
    fprintf(stderr, "bench_sgemm: %s\n", pst_error());
    return 2;
  }
  int threads = cores.n;
  if (argc == 3 && strcmp(argv[1], "--threads") == 0) threads = atoi(argv[2]);
  if ((argc != 1 && argc != 3) || threads < 1 || threads > PST_CORES_MAX) {
    fprintf(stderr, "usage: bench_sgemm [--threads N]\n");
    return 2;
  }

  pst_blas blas = {0};
  const bool has_blas = pst__blas_open(NULL, &blas) == PST_OK;
  if (has_blas) choose_core(&blas, argv);

  int status = 3;
  const int64_t rows = threads * ROWS_OF_PIECE > SIZE ? threads * ROWS_OF_PIECE : SIZE;
  job j = {.set = pst__gemm_best()};
  pst_team *team = NULL;
  float *a = matrix(rows), *b = matrix(SIZE), *c = matrix(rows);
  j.g = (pst_gemm){
      .m = rows, .n = SIZE, .k = SIZE, .a = a, .lda = SIZE, .b = b, .ldb = SIZE, .c = c, .ldc = SIZE};
  j.workspace = aligned_alloc(64, (pst__gemm_workspace_bytes(j.set, &j.g, threads) + 63) / 64 * 64);
  const bool bind = threads <= cores.n && !cores.by_quota;
  const pst_team_options options = {.n_threads = threads, .cores = bind ? cores.id : NULL};
  if (!a || !b || !c || !j.workspace || pst_team_create(&options, &team) != PST_OK) {
    fprintf(stderr, "bench_sgemm: no memory or no threads: %s\n", pst_error());
    goto done;
  }
  printf("sgemm %lld x %d x %d, %d threads, median of %d, GFLOP/s\n", (long long)rows, SIZE, SIZE, threads,
         RUNS);
  double best = rate(team, &j);
  printf("own       %8.1f  (%s)\n", best, pst__gemm_name(j.set));
  if (has_blas) {
    j.blas = &blas;
    const double other = rate(team, &j);
    printf("openblas  %8.1f  (%s)\n", other, blas.core);
    if (other > best) best = other;
  } else {
    printf("openblas         -  (%s)\n", pst_error());
  }
  printf("best      %8.1f\n", best);
  status = 0;
done:
  pst_team_destroy(team);
  pst__blas_close(&blas);
  free(a), free(b), free(c), free(j.workspace);
  return status;
}
