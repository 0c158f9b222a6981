#include "backends/cpu/blas.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { PIECE_ROWS = 512 };
enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 }; /* of the CBLAS standard */

static void *symbol_or_null(void *library, const char *name) {
  return library ? dlsym(library, name) : NULL;
}

pst_status pst__blas_open(const char *path, pst_blas *out_blas) {
  static const char *const usual[] = {"libopenblas.so.0", "libopenblas.so", "libopenblasp.so.0",
                                      "libopenblas.dylib"};
  pst_blas b = {0};
  if (path) b.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  for (size_t i = 0; !path && !b.library && i < sizeof(usual) / sizeof(usual[0]); i++)
    b.library = dlopen(usual[i], RTLD_NOW | RTLD_LOCAL);
  if (!b.library)
    return pst_fail(PST_UNSUPPORTED, "blas: could not open %s; install OpenBLAS or use the built-in products",
                    path ? path : "libopenblas.so.0 or libopenblas.so");

  void *sgemm = symbol_or_null(b.library, "cblas_sgemm");
  if (!sgemm) {
    dlclose(b.library);
    return pst_fail(PST_UNSUPPORTED, "blas: %s has no cblas_sgemm", path ? path : "the OpenBLAS found");
  }
  memcpy(&b.sgemm, &sgemm, sizeof(sgemm));

  void (*set_threads)(int) = NULL;
  char *(*get_core)(void) = NULL, *(*get_config)(void) = NULL;
  void *p = symbol_or_null(b.library, "openblas_set_num_threads");
  memcpy(&set_threads, &p, sizeof(p));
  p = symbol_or_null(b.library, "openblas_get_corename");
  memcpy(&get_core, &p, sizeof(p));
  p = symbol_or_null(b.library, "openblas_get_config");
  memcpy(&get_config, &p, sizeof(p));
  if (set_threads) set_threads(1);
  snprintf(b.core, sizeof(b.core), "%s", get_core ? get_core() : "unknown");
  snprintf(b.config, sizeof(b.config), "%s", get_config ? get_config() : "");
  *out_blas = b;
  return PST_OK;
}

void pst__blas_close(pst_blas *blas) {
  if (!blas) return;
  if (blas->library) dlclose(blas->library);
  memset(blas, 0, sizeof(*blas));
}

/* Vector generations: 1 up to SSE, 2 AVX, 3 AVX2 with FMA, 4 AVX-512; 0 for a core that is not in the list.
 */
static int core_generation(const char *core) {
  static const struct {
    const char *core;
    int generation;
  } known[] = {{"Generic", 1},     {"Katmai", 1},       {"Coppermine", 1},    {"Northwood", 1},
               {"Prescott", 1},    {"Banias", 1},       {"Atom", 1},          {"Core2", 1},
               {"Penryn", 1},      {"Dunnington", 1},   {"Nehalem", 1},       {"Athlon", 1},
               {"Opteron", 1},     {"Opteron_SSE3", 1}, {"Barcelona", 1},     {"Bobcat", 1},
               {"Nano", 1},        {"Sandybridge", 2},  {"Bulldozer", 2},     {"Piledriver", 2},
               {"Steamroller", 2}, {"Excavator", 3},    {"Haswell", 3},       {"Zen", 3},
               {"SkylakeX", 4},    {"Cooperlake", 4},   {"SapphireRapids", 4}};
  for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
    if (strcasecmp(core, known[i].core) == 0) return known[i].generation;
  return 0;
}

bool pst__blas_warning(const pst_blas *blas, char *text, size_t text_bytes) {
  const int core = core_generation(blas->core);
  const bool v4 = pst__gemm_find("v4") != NULL, v3 = pst__gemm_find("v3") != NULL;
  if (core == 0 || core >= 3 || !v3) return false;
  snprintf(text, text_bytes,
           "openblas chose its %s kernels on a machine with %s, several times slower than it can be: set "
           "OPENBLAS_CORETYPE=%s or use the built-in products",
           blas->core, v4 ? "AVX-512" : "AVX2", v4 ? "SkylakeX" : "Haswell");
  return true;
}

/* Writes what rows [from, to) of C start from; returns sgemm's beta. */
static float prepare_rows(const pst_gemm *g, int64_t from, int64_t to) {
  const bool keep = g->accumulate || (g->addend == g->c && g->addend != NULL);
  if (!g->bias && keep) return 1;
  if (!g->bias && !g->addend) return 0;
  for (int64_t i = from; i < to; i++) {
    float *c = g->c + i * g->ldc;
    const float *start = g->accumulate ? c : g->addend ? g->addend + i * g->ldadd : NULL;
    for (int64_t j = 0; j < g->n; j++)
      c[j] = start && g->bias ? start[j] + g->bias[j] : start ? start[j] : g->bias[j];
  }
  return 1;
}

static int64_t n_pieces(const pst_gemm *g) {
  return g->n > 0 ? (g->m + PIECE_ROWS - 1) / PIECE_ROWS : 0;
}

static void run_piece(const pst_blas *blas, const pst_gemm *g, int64_t piece) {
  const int64_t from = piece * PIECE_ROWS, to = from + PIECE_ROWS < g->m ? from + PIECE_ROWS : g->m;
  const float beta = prepare_rows(g, from, to);
  blas->sgemm(ROW_MAJOR, g->a_transposed ? TRANS : NO_TRANS, g->b_transposed ? TRANS : NO_TRANS,
              (int)(to - from), (int)g->n, (int)g->k, 1.0f, g->a + (g->a_transposed ? from : from * g->lda),
              (int)g->lda, g->b, (int)g->ldb, beta, g->c + from * g->ldc, (int)g->ldc);
}

void pst__blas_run(const pst_blas *blas, const pst_gemm *g) {
  for (int64_t piece = 0; piece < n_pieces(g); piece++) run_piece(blas, g, piece);
}

void pst__blas_team(pst_team_member *me, const pst_blas *blas, const pst_gemm *g) {
  for (int64_t piece; (piece = pst_team_take(me, n_pieces(g))) >= 0;) run_piece(blas, g, piece);
  pst_team_barrier(me);
}
