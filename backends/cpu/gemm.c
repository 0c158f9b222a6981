/* The matrix product's blocking, the same for every instruction set. */
#include "backends/cpu/gemm.h"
#include "backends/cpu/gemm_kernels.h"

#include <string.h>

/* A packed block of B is at most this many floats (768 KiB): two of them and the strips of A fit an L2 cache
 * of 2 MiB. The bits do not depend on it, nor on BLOCK_K. */
enum { BLOCK_K = 384, BLOCK_FLOATS = 196608, PAGE_FLOATS = 1024 };

/* How one product is cut. Blocks (n_block, k_block) are walked with k inside; a block of B has panels of two
 * vectors; strips of rows go over all panels of the block, or over one group of them. */
typedef struct cut {
  int64_t panel;          /* floats across a panel */
  int64_t panels, strips; /* of the whole product */
  int64_t n_blocks, k_blocks;
  int64_t block_floats; /* of packed B, one block */
  int64_t strip_floats; /* of packed A, one strip */
  bool pack_a, pack_b;
} cut;

/* One block of B and what is packed of it. */
typedef struct block {
  int64_t first_k, k;          /* rows of B */
  int64_t first_panel, panels; /* panels of B */
  int64_t unpacked;            /* panels before this one are read in place */
  float *packed;
} block;

static int64_t min64(int64_t a, int64_t b) {
  return a < b ? a : b;
}
static int64_t max64(int64_t a, int64_t b) {
  return a > b ? a : b;
}
static int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

static cut cut_make(const pst_gemm_kernels *kernels, const pst_gemm *g) {
  cut s = {.panel = 2 * kernels->lanes};
  s.panels = ceil_div(g->n, s.panel);
  s.strips = ceil_div(g->m, kernels->rows);
  s.k_blocks = max64(1, ceil_div(g->k, BLOCK_K));
  const int64_t k = max64(1, ceil_div(g->k, s.k_blocks));
  s.n_blocks = max64(1, ceil_div(s.panels, BLOCK_FLOATS / (k * s.panel)));
  s.block_floats = ceil_div(ceil_div(s.panels, s.n_blocks) * s.panel * k, 16) * 16;
  /* Rows of B are read in place where packing would cost more than it saves: few rows of A to share it, or a
   * small B. A is read in place but for a transposed one whose columns lie a page or more apart. Measured,
   * not derived. */
  const bool few = g->m <= 192 || g->k * g->n <= 131072;
  s.pack_b = g->b_transposed || !few || g->ldb % PAGE_FLOATS == 0;
  s.pack_a = g->a_transposed && (g->lda % PAGE_FLOATS == 0 || g->lda >= 2 * PAGE_FLOATS);
  if (!s.pack_b)
    s.block_floats =
        g->n % s.panel > 0 ? ceil_div(s.panel * k, 16) * 16 : 0; /* a narrow last panel is packed */
  s.strip_floats = s.pack_a ? ceil_div(k * kernels->a_stride, 16) * 16 : 0;
  return s;
}

/* Blocks in the order they are walked: k fastest, so that C is read back while it is near. */
static block block_at(const cut *s, const pst_gemm *g, int64_t index, float *packed) {
  const int64_t kb = index % s->k_blocks, nb = index / s->k_blocks;
  block d = {
      .first_k = g->k * kb / s->k_blocks, .first_panel = s->panels * nb / s->n_blocks, .packed = packed};
  d.k = g->k * (kb + 1) / s->k_blocks - d.first_k;
  d.panels = s->panels * (nb + 1) / s->n_blocks - d.first_panel;
  if (!s->pack_b) d.unpacked = min64(d.panels, g->n / s->panel - d.first_panel);
  return d;
}

static void pack_panel(const pst_gemm_kernels *kernels, const pst_gemm *g, const cut *s, const block *d,
                       int64_t panel) {
  const int64_t j = (d->first_panel + panel) * s->panel, width = min64(s->panel, g->n - j);
  float *out = d->packed + (panel - d->unpacked) * s->panel * d->k;
  if (g->b_transposed)
    kernels->pack_transposed(out, s->panel, g->b + j * g->ldb + d->first_k, g->ldb, width, d->k);
  else
    kernels->pack(out, s->panel, g->b + d->first_k * g->ldb + j, g->ldb, width, d->k);
}

/* The part of C that the next tile starts from, while this one computes. */
static void prefetch_tile(const float *c, int64_t ld, int64_t rows) {
  for (int64_t i = 0; i < rows; i++) {
    __builtin_prefetch(c + i * ld);
    __builtin_prefetch(c + i * ld + 16);
  }
}

/* One strip of rows times panels [from_panel, to_panel) of the block. */
static void run_strip(const pst_gemm_kernels *kernels, const pst_gemm *g, const cut *s, const block *d,
                      int64_t strip, int64_t from_panel, int64_t to_panel, float *packed_a) {
  const int64_t i = g->m * strip / s->strips, rows = g->m * (strip + 1) / s->strips - i;
  const float *a = g->a_transposed ? g->a + d->first_k * g->lda + i : g->a + i * g->lda + d->first_k;
  int64_t lda = g->lda;
  if (s->pack_a) {
    kernels->pack(packed_a, kernels->a_stride, a, lda, rows, d->k);
    a = packed_a;
    lda = kernels->a_stride;
  }

  const bool first = d->first_k == 0;
  const float *start = first && !g->accumulate ? g->addend : g->c;
  const int64_t ldstart = first && !g->accumulate ? g->ldadd : g->ldc;
  const float *touched = start ? start : g->c;
  const int64_t ldtouched = start ? ldstart : g->ldc;
  const float *bias = first ? g->bias : NULL;
  for (int64_t panel = from_panel; panel < to_panel; panel++) {
    const int64_t j = (d->first_panel + panel) * s->panel, width = min64(s->panel, g->n - j);
    const bool packed = panel >= d->unpacked;
    if (panel + 1 < to_panel) prefetch_tile(touched + i * ldtouched + j + s->panel, ldtouched, rows);
    const float *b =
        packed ? d->packed + (panel - d->unpacked) * s->panel * d->k : g->b + d->first_k * g->ldb + j;
    kernels->tile[!g->a_transposed][width > kernels->lanes][rows - 1](
        d->k, a, lda, b, packed ? s->panel : g->ldb, g->c + i * g->ldc + j, g->ldc,
        start ? start + i * ldstart + j : NULL, ldstart, bias ? bias + j : NULL, width);
  }
}

size_t pst__gemm_workspace_bytes(const pst_gemm_kernels *kernels, const pst_gemm *g, int n_threads) {
  const cut s = cut_make(kernels, g);
  const int64_t buffers = n_threads > 1 && s.n_blocks * s.k_blocks > 1 ? 2 : 1;
  return sizeof(float) * (size_t)(buffers * s.block_floats + n_threads * s.strip_floats);
}

void pst__gemm_run(const pst_gemm_kernels *kernels, const pst_gemm *g, void *workspace) {
  if (g->m <= 0 || g->n <= 0) return;
  const cut s = cut_make(kernels, g);
  float *packed_a = (float *)workspace + s.block_floats;
  for (int64_t index = 0; index < s.n_blocks * s.k_blocks; index++) {
    const block d = block_at(&s, g, index, workspace);
    for (int64_t panel = d.unpacked; panel < d.panels; panel++) pack_panel(kernels, g, &s, &d, panel);
    for (int64_t strip = 0; strip < s.strips; strip++)
      run_strip(kernels, g, &s, &d, strip, 0, d.panels, packed_a);
  }
}

void pst__gemm_team(pst_team_member *me, const pst_gemm_kernels *kernels, const pst_gemm *g,
                    void *workspace) {
  const int members = pst_team_members(me);
  if (members == 1) {
    pst__gemm_run(kernels, g, workspace);
    return;
  }
  if (g->m <= 0 || g->n <= 0) return;
  const cut s = cut_make(kernels, g);
  const int64_t n_blocks = s.n_blocks * s.k_blocks;
  float *buffer[2] = {workspace, workspace};
  if (n_blocks > 1) buffer[1] = buffer[0] + s.block_floats;
  float *packed_a =
      (float *)workspace + (n_blocks > 1 ? 2 : 1) * s.block_floats + pst_team_rank(me) * s.strip_floats;

  /* Round r packs block r and multiplies with block r - 1, so that one barrier per block is enough. */
  block now = {0};
  for (int64_t r = 0; r <= n_blocks; r++) {
    block next = {0};
    if (r < n_blocks) next = block_at(&s, g, r, buffer[r % 2]);
    const int64_t n_packs = next.panels - next.unpacked;
    const int64_t groups = r == 0 ? 0 : max64(1, min64(now.panels, ceil_div(8 * members, s.strips)));
    for (int64_t piece; (piece = pst_team_take(me, n_packs + s.strips * groups)) >= 0;) {
      if (piece < n_packs) {
        pack_panel(kernels, g, &s, &next, next.unpacked + piece);
        continue;
      }
      const int64_t strip = (piece - n_packs) / groups, group = (piece - n_packs) % groups;
      run_strip(kernels, g, &s, &now, strip, now.panels * group / groups, now.panels * (group + 1) / groups,
                packed_a);
    }
    pst_team_barrier(me);
    now = next;
  }
}

const char *pst__gemm_name(const pst_gemm_kernels *kernels) {
  return kernels->name;
}

const pst_gemm_kernels *pst__gemm_find(const char *name) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool v3 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  if (v4 && strcmp(name, "v4") == 0) return &pst__gemm_v4;
  if (v3 && strcmp(name, "v3") == 0) return &pst__gemm_v3;
#endif
  return strcmp(name, "base") == 0 ? &pst__gemm_base : NULL;
}

const pst_gemm_kernels *pst__gemm_best(void) {
  const pst_gemm_kernels *best = pst__gemm_find("v4");
  if (!best) best = pst__gemm_find("v3");
  return best ? best : &pst__gemm_base;
}
