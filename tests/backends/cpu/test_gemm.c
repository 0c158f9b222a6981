/* Matrix products against one chain of fmaf() per element, bit by bit; OpenBLAS against the same within a
 * tolerance. */
#include "backends/cpu/blas.h"
#include "backends/cpu/gemm.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { SEED = 20240611, ARENA_FLOATS = 1 << 20, GUARD_FLOATS = 64 };

/* Memory that ends at an unreadable page: reading one byte behind an operand ends the test. */
typedef struct arena {
  char *base;
  size_t bytes;
} arena;

static arena arena_make(void) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  arena r = {.bytes = ARENA_FLOATS * sizeof(float)};
  r.base = mmap(NULL, r.bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(r.base != MAP_FAILED);
  assert_int_equal(mprotect(r.base + r.bytes, page, PROT_NONE), 0);
  return r;
}

static void arena_free(arena *r) {
  munmap(r->base, r->bytes + (size_t)sysconf(_SC_PAGESIZE));
}

static uint64_t random_state;

static uint32_t random_bits(void) {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(random_state >> 33);
}
static int64_t random_between(int64_t low, int64_t high) {
  return low + random_bits() % (high - low + 1);
}
static float random_float(void) {
  return (float)((int32_t)random_bits() - (1 << 30)) * 0x1p-30f;
}

/* A [rows, width] matrix whose last element is the arena's last; gaps between rows are NaN. */
static float *matrix(arena *r, int64_t rows, int64_t width, int64_t ld) {
  const int64_t floats = rows > 0 && width > 0 ? (rows - 1) * ld + width : 0;
  assert_true(floats <= ARENA_FLOATS);
  float *x = (float *)(r->base + r->bytes) - floats;
  for (int64_t i = 0; i < floats; i++) x[i] = i % ld < width ? random_float() : NAN;
  return x;
}

typedef struct product {
  arena a, b, c, addend, bias, workspace;
  float *before; /* C as it was, with its gaps and the guard in front */
  pst_gemm g;
} product;

enum { START_ZERO, START_C, START_ADDEND, START_BIAS, START_ADDEND_BIAS, START_C_BIAS, START_COUNT };

static void product_init(product *p) {
  memset(p, 0, sizeof(*p));
  p->a = arena_make(), p->b = arena_make(), p->c = arena_make(), p->addend = arena_make(),
  p->bias = arena_make();
  p->workspace = arena_make();
  p->before = malloc(ARENA_FLOATS * sizeof(float));
  assert_non_null(p->before);
}

static void product_free(product *p) {
  arena *all[] = {&p->a, &p->b, &p->c, &p->addend, &p->bias, &p->workspace};
  for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) arena_free(all[i]);
  free(p->before);
}

static int64_t c_floats(const pst_gemm *g) {
  return g->m > 0 && g->n > 0 ? (g->m - 1) * g->ldc + g->n : 0;
}

static void product_fill(product *p, int64_t m, int64_t n, int64_t k, bool ta, bool tb, int start,
                         int64_t gap) {
  pst_gemm *g = &p->g;
  *g = (pst_gemm){.m = m, .n = n, .k = k, .a_transposed = ta, .b_transposed = tb};
  g->lda = (ta ? m : k) + gap, g->ldb = (tb ? k : n) + gap, g->ldc = n + gap, g->ldadd = n + 2 * gap;
  g->a = matrix(&p->a, ta ? k : m, ta ? m : k, g->lda);
  g->b = matrix(&p->b, tb ? n : k, tb ? k : n, g->ldb);
  g->c = matrix(&p->c, m, n, g->ldc);
  for (int64_t i = 1; i <= GUARD_FLOATS; i++) g->c[-i] = (float)i;
  g->accumulate = start == START_C || start == START_C_BIAS;
  if (start == START_ADDEND || start == START_ADDEND_BIAS) g->addend = matrix(&p->addend, m, n, g->ldadd);
  if (start >= START_BIAS) g->bias = matrix(&p->bias, 1, n, n + 1);
  memcpy(p->before, g->c - GUARD_FLOATS, (size_t)(c_floats(g) + GUARD_FLOATS) * sizeof(float));
}

/* C as it was before the product. */
static void product_reset(product *p) {
  memcpy(p->g.c - GUARD_FLOATS, p->before, (size_t)(c_floats(&p->g) + GUARD_FLOATS) * sizeof(float));
}

/* The workspace also ends at its arena's end, so that one byte too few is noticed. */
static void *product_workspace(product *p, const pst_gemm_kernels *set, int n_threads) {
  const size_t bytes = pst__gemm_workspace_bytes(set, &p->g, n_threads);
  assert_int_equal(bytes % 64, 0);
  assert_true(bytes <= p->workspace.bytes);
  return p->workspace.base + p->workspace.bytes - bytes;
}

static float at_a(const pst_gemm *g, int64_t i, int64_t q) {
  return g->a_transposed ? g->a[q * g->lda + i] : g->a[i * g->lda + q];
}
static float at_b(const pst_gemm *g, int64_t q, int64_t j) {
  return g->b_transposed ? g->b[j * g->ldb + q] : g->b[q * g->ldb + j];
}

/* The definition. */
static float reference(const product *p, int64_t i, int64_t j, bool fused) {
  const pst_gemm *g = &p->g;
  const float *start = g->accumulate ? p->before + GUARD_FLOATS + i * g->ldc + j
                       : g->addend   ? g->addend + i * g->ldadd + j
                                     : NULL;
  float s = start && g->bias ? *start + g->bias[j] : start ? *start : g->bias ? g->bias[j] : 0;
  for (int64_t q = 0; q < g->k; q++) {
    const float a = at_a(g, i, q), b = at_b(g, q, j);
    s = fused ? fmaf(a, b, s) : s + a * b;
  }
  return s;
}

static uint32_t bits(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof(u));
  return isnan(x) ? 0x7fc00000u : u;
}

static void expect_bits(const product *p, bool fused, const char *set, int64_t step) {
  const pst_gemm *g = &p->g;
  for (int64_t e = 0; e < g->m * g->n; e += step) {
    const int64_t i = e / g->n, j = e % g->n;
    const float want = reference(p, i, j, fused), seen = g->c[i * g->ldc + j];
    if (bits(want) != bits(seen))
      fail_msg("%s %lldx%lldx%lld ta %d tb %d: C[%lld][%lld] is %a, wanted %a", set, (long long)g->m,
               (long long)g->n, (long long)g->k, g->a_transposed, g->b_transposed, (long long)i, (long long)j,
               (double)seen, (double)want);
  }
}

/* Gaps between rows and the guard in front are as they were (behind is an unwritable page). */
static void expect_guards(const product *p) {
  const pst_gemm *g = &p->g;
  assert_memory_equal(g->c - GUARD_FLOATS, p->before, GUARD_FLOATS * sizeof(float));
  for (int64_t e = 0; e < c_floats(g); e++)
    if (e % g->ldc >= g->n)
      assert_int_equal(memcmp(&g->c[e], &p->before[GUARD_FLOATS + e], sizeof(float)), 0);
}

static const char *const set_names[] = {"base", "v3", "v4"};

static void odd_shapes_match_the_definition(void **state) {
  product p;
  product_init(&p);
  random_state = SEED;
  int compared = 0;
  for (int round = 0; round < 240; round++) {
    int64_t m = random_between(1, 67), n = random_between(1, 67), k = random_between(0, 67);
    if (round % 8 == 0) m = random_between(1, 15);
    if (round % 8 == 1) n = 32 * random_between(1, 3);
    product_fill(&p, m, n, k, round & 1, round & 2, round % START_COUNT,
                 round % 5 == 0 ? 0 : random_between(1, 9));
    for (size_t s = 0; s < 3; s++) {
      const pst_gemm_kernels *set = pst__gemm_find(set_names[s]);
      if (!set) continue;
      product_reset(&p);
      pst__gemm_run(set, &p.g, product_workspace(&p, set, 1));
      expect_bits(&p, s > 0, set_names[s], 1);
      expect_guards(&p);
      compared++;
    }
  }
  assert_true(compared >= 240);
  product_free(&p);
}

/* Sizes at which every kind of block, panel and packing occurs; elements by sample. */
static const int64_t large[][3] = {
    {150, 400, 700}, {61, 1100, 530}, {40, 70, 1300}, {200, 90, 1100}, {14, 608, 1024}};

static void large_shapes_match_the_definition(void **state) {
  product p;
  product_init(&p);
  random_state = SEED + 1;
  for (size_t c = 0; c < sizeof(large) / sizeof(large[0]); c++)
    for (int layout = 0; layout < 4; layout++) {
      product_fill(&p, large[c][0], large[c][1], large[c][2], layout & 1, layout & 2,
                   (int)(c + layout) % START_COUNT, layout == 3 ? 0 : 5);
      for (size_t s = 0; s < 3; s++) {
        const pst_gemm_kernels *set = pst__gemm_find(set_names[s]);
        if (!set) continue;
        product_reset(&p);
        pst__gemm_run(set, &p.g, product_workspace(&p, set, 1));
        expect_bits(&p, s > 0, set_names[s], 37);
        expect_guards(&p);
      }
    }
  product_free(&p);
}

static void wide_sets_agree(void **state) {
  const pst_gemm_kernels *v3 = pst__gemm_find("v3"), *v4 = pst__gemm_find("v4");
  if (!v3 || !v4) {
    print_message("skipped: this machine has no AVX-512 to compare with AVX2\n");
    skip();
  }
  product p;
  product_init(&p);
  random_state = SEED + 2;
  for (int layout = 0; layout < 4; layout++) {
    product_fill(&p, 203, 517, 611, layout & 1, layout & 2, layout, 0);
    const size_t bytes = (size_t)c_floats(&p.g) * sizeof(float);
    float *first = malloc(bytes);
    assert_non_null(first);
    pst__gemm_run(v3, &p.g, product_workspace(&p, v3, 1));
    memcpy(first, p.g.c, bytes);
    product_reset(&p);
    pst__gemm_run(v4, &p.g, product_workspace(&p, v4, 1));
    assert_memory_equal(first, p.g.c, bytes);
    free(first);
  }
  product_free(&p);
}

static void slices_give_the_same_bits(void **state) {
  product p;
  product_init(&p);
  random_state = SEED + 3;
  for (size_t s = 0; s < 3; s++) {
    const pst_gemm_kernels *set = pst__gemm_find(set_names[s]);
    if (!set) continue;
    for (int layout = 0; layout < 4; layout++) {
      product_fill(&p, 97, 211, 600, layout & 1, layout & 2, START_ADDEND_BIAS, 3);
      const size_t bytes = (size_t)c_floats(&p.g) * sizeof(float);
      float *whole = malloc(bytes);
      assert_non_null(whole);
      pst__gemm_run(set, &p.g, product_workspace(&p, set, 1));
      memcpy(whole, p.g.c, bytes);
      product_reset(&p);
      const int64_t cut_m[] = {0, 1, 40, 41, 97}, cut_n[] = {0, 15, 17, 130, 211}, cut_k[] = {0, 77, 600};
      for (int x = 0; x < 4; x++)
        for (int y = 0; y < 4; y++)
          for (int z = 0; z < 2; z++) {
            const int64_t i = cut_m[x], j = cut_n[y], q = cut_k[z];
            pst_gemm g = p.g;
            g.m = cut_m[x + 1] - i, g.n = cut_n[y + 1] - j, g.k = cut_k[z + 1] - q;
            g.a += g.a_transposed ? q * g.lda + i : i * g.lda + q;
            g.b += g.b_transposed ? j * g.ldb + q : q * g.ldb + j;
            g.c += i * g.ldc + j, g.addend += i * g.ldadd + j, g.bias += j;
            if (z > 0) g.accumulate = true, g.addend = NULL, g.bias = NULL;
            pst__gemm_run(set, &g, p.workspace.base);
          }
      for (int64_t i = 0; i < p.g.m; i++)
        assert_memory_equal(p.g.c + i * p.g.ldc, whole + i * p.g.ldc, (size_t)p.g.n * sizeof(float));
      free(whole);
    }
  }
  product_free(&p);
}

struct team_job {
  const pst_gemm_kernels *set;
  const pst_blas *blas;
  const pst_gemm *g;
  void *workspace;
};

static void team_product(pst_team_member *me, void *arg) {
  const struct team_job *job = arg;
  for (int repeat = 0; repeat < 2;
       repeat++) /* twice in a row: the second must not meet the first one's leavings */
    if (job->blas)
      pst__blas_team(me, job->blas, job->g);
    else
      pst__gemm_team(me, job->set, job->g, job->workspace);
}

static void teams_give_the_same_bits(void **state) {
  static const int64_t shapes[][3] = {{150, 400, 700}, {33, 900, 1100}, {5, 30, 20}, {120, 64, 64},
                                      {1, 1, 1030},    {0, 5, 5},       {700, 96, 0}};
  product p;
  product_init(&p);
  random_state = SEED + 4;
  for (int threads = 1; threads <= 5; threads += 1 + threads / 3) {
    pst_team *team = NULL;
    assert_int_equal(pst_team_create(&(pst_team_options){.n_threads = threads}, &team), PST_OK);
    for (size_t c = 0; c < sizeof(shapes) / sizeof(shapes[0]); c++)
      for (size_t s = 0; s < 3; s++) {
        const pst_gemm_kernels *set = pst__gemm_find(set_names[s]);
        if (!set) continue;
        product_fill(&p, shapes[c][0], shapes[c][1], shapes[c][2], c & 1, c & 2, START_ADDEND, 1);
        struct team_job job = {.set = set, .g = &p.g, .workspace = product_workspace(&p, set, threads)};
        pst_team_run(team, team_product, &job);
        const int64_t elements = p.g.m * p.g.n;
        expect_bits(&p, s > 0, set_names[s], elements > 5000 ? 29 : 1);
        expect_guards(&p);
      }
    pst_team_destroy(team);
  }
  product_free(&p);
}

static void not_a_number_goes_through(void **state) {
  product p;
  product_init(&p);
  random_state = SEED + 5;
  for (size_t s = 0; s < 3; s++) {
    const pst_gemm_kernels *set = pst__gemm_find(set_names[s]);
    if (!set) continue;
    product_fill(&p, 30, 45, 20, false, s & 1, START_ZERO, 2);
    float *a = (float *)(uintptr_t)p.g.a, *b = (float *)(uintptr_t)p.g.b;
    a[3 * p.g.lda + 7] = NAN;
    a[4 * p.g.lda + 1] = INFINITY;
    a[5 * p.g.lda + 2] = INFINITY;
    *(p.g.b_transposed ? &b[9 * p.g.ldb + 2] : &b[2 * p.g.ldb + 9]) = 0;
    pst__gemm_run(set, &p.g, product_workspace(&p, set, 1));
    for (int64_t j = 0; j < 45; j++) {
      assert_true(isnan(p.g.c[3 * p.g.ldc + j]));
      assert_true(isinf(p.g.c[4 * p.g.ldc + j]));
      assert_true(j == 9 ? isnan(p.g.c[5 * p.g.ldc + j]) : isinf(p.g.c[5 * p.g.ldc + j]));
      assert_true(isfinite(p.g.c[6 * p.g.ldc + j]));
    }
  }
  product_free(&p);
}

/* |seen - exact| against k roundings of the sum of magnitudes. */
static void expect_near(const product *p) {
  const pst_gemm *g = &p->g;
  for (int64_t i = 0; i < g->m; i++)
    for (int64_t j = 0; j < g->n; j += 3) {
      double sum = 0, magnitude = 0;
      if (g->accumulate) sum = (double)p->before[GUARD_FLOATS + i * g->ldc + j];
      if (g->addend) sum = (double)g->addend[i * g->ldadd + j];
      if (g->bias) sum += (double)g->bias[j];
      for (int64_t q = 0; q < g->k; q++) {
        const double t = (double)at_a(g, i, q) * (double)at_b(g, q, j);
        sum += t;
        magnitude += fabs(t);
      }
      const double error = fabs((double)g->c[i * g->ldc + j] - sum);
      if (!(error <= 0x1p-24 * ((double)g->k + 3) * (magnitude + fabs(sum) + 2)))
        fail_msg("C[%lld][%lld] is %g off %g", (long long)i, (long long)j, error, sum);
    }
}

static void every_set_is_near_the_exact_product(void **state) {
  product p;
  product_init(&p);
  random_state = SEED + 6;
  for (size_t s = 0; s < 3; s++) {
    const pst_gemm_kernels *set = pst__gemm_find(set_names[s]);
    if (!set) continue;
    for (int start = 0; start < START_COUNT; start++) {
      product_fill(&p, 50, 77, 300, start & 1, start & 2, start, 1);
      pst__gemm_run(set, &p.g, product_workspace(&p, set, 1));
      expect_near(&p);
    }
  }
  product_free(&p);
}

static void openblas_runs_the_same_products(void **state) {
  pst_blas blas;
  if (pst__blas_open(NULL, &blas) != PST_OK) {
    print_message("skipped: %s\n", pst_error());
    skip();
  }
  print_message("openblas core %s, %s\n", blas.core, blas.config);
  assert_true(blas.core[0] != '\0');
  product p;
  product_init(&p);
  random_state = SEED + 7;
  pst_team *team = NULL;
  assert_int_equal(pst_team_create(&(pst_team_options){.n_threads = 2}, &team), PST_OK);
  for (int round = 0; round < 2 * START_COUNT; round++) {
    product_fill(&p, round % 3 ? 60 : 1030, 45, 70, round & 1, round & 2, round % START_COUNT, 3);
    const size_t bytes = (size_t)c_floats(&p.g) * sizeof(float);
    pst__blas_run(&blas, &p.g);
    expect_near(&p);
    expect_guards(&p);
    float *alone = malloc(bytes);
    assert_non_null(alone);
    memcpy(alone, p.g.c, bytes);
    product_reset(&p);
    if (!p.g.accumulate) { /* team_product() runs twice, which would add twice */
      pst_team_run(team, team_product, &(struct team_job){.blas = &blas, .g = &p.g});
      assert_memory_equal(alone, p.g.c, bytes);
    }
    free(alone);
  }
  pst_team_destroy(team);
  product_free(&p);
  pst__blas_close(&blas);
  pst__blas_close(NULL);
}

static void a_slow_openblas_is_told_of(void **state) {
  char text[256] = "";
  pst_blas blas = {.core = "Prescott"};
  assert_int_equal(pst__blas_warning(&blas, text, sizeof(text)), pst__gemm_find("v3") != NULL);
  if (pst__gemm_find("v3")) {
    assert_non_null(strstr(text, "Prescott"));
    assert_non_null(strstr(text, "OPENBLAS_CORETYPE="));
  }
  snprintf(blas.core, sizeof(blas.core), "Haswell");
  assert_false(pst__blas_warning(&blas, text, sizeof(text)));
  snprintf(blas.core, sizeof(blas.core), "armv8");
  assert_false(pst__blas_warning(&blas, text, sizeof(text)));
  assert_int_equal(pst__blas_open("libno-such-blas.so", &blas), PST_UNSUPPORTED);
  assert_non_null(strstr(pst_error(), "libno-such-blas.so"));
}

static void sets_are_found_by_name(void **state) {
  assert_ptr_equal(pst__gemm_find("base"), &pst__gemm_base);
  assert_null(pst__gemm_find("v5"));
  const pst_gemm_kernels *best = pst__gemm_best();
  assert_ptr_equal(pst__gemm_find(pst__gemm_name(best)), best);
}

int main(void) {
  printf("seed %d, best set %s\n", SEED, pst__gemm_name(pst__gemm_best()));
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(odd_shapes_match_the_definition),
      cmocka_unit_test(large_shapes_match_the_definition),
      cmocka_unit_test(wide_sets_agree),
      cmocka_unit_test(slices_give_the_same_bits),
      cmocka_unit_test(teams_give_the_same_bits),
      cmocka_unit_test(not_a_number_goes_through),
      cmocka_unit_test(every_set_is_near_the_exact_product),
      cmocka_unit_test(openblas_runs_the_same_products),
      cmocka_unit_test(a_slow_openblas_is_told_of),
      cmocka_unit_test(sets_are_found_by_name),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
