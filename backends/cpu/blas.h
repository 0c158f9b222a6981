/* OpenBLAS as another maker of the CPU's matrix products, opened at run time where it is installed.
 *
 *   pst_blas blas;
 *   PST_TRY(pst__blas_open(NULL, &blas));
 *   char text[256];
 *   if (pst__blas_warning(&blas, text, sizeof(text))) pst_log_warn("%s", text);
 *   ... in a team's function:  pst__blas_team(me, &blas, &g);
 *   pst__blas_close(&blas);
 *
 * A product runs in pieces of 512 rows of C, by the shape alone, because OpenBLAS's bits change with how a
 * product is sliced; its own threads stay off. The bits depend on the core that OpenBLAS chose, so its name
 * goes where results are compared. The operands are those of gemm.h; where a bias or addend is given it is
 * written to C first.
 */
#ifndef PENSTOCK_BACKENDS_CPU_BLAS_H
#define PENSTOCK_BACKENDS_CPU_BLAS_H

#include "backends/cpu/gemm.h"
#include "core/base/status.h"

typedef struct pst_blas {
  void *library; /* of dlopen() */
  void (*sgemm)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a,
                int lda, const float *b, int ldb, float beta, float *c, int ldc);
  char core[32];    /* "SkylakeX"; "unknown" where the library does not say */
  char config[160]; /* the library's own description, version first; may be "" */
} pst_blas;

/* Opens `path`, or with NULL the first of the usual library names that loads, and sets it to one thread for
 * the whole process. UNSUPPORTED when there is none or it lacks cblas_sgemm; the message names what was
 * tried. */
PST_CHECKED pst_status pst__blas_open(const char *path, pst_blas *out_blas);

/* Lets the library go; a zeroed struct and NULL are legal. */
void pst__blas_close(pst_blas *blas);

/* True, with a text of one line, when the chosen core uses narrower vectors than AVX2 on a machine that has
 * AVX2, or than AVX2 on one that has AVX-512: an old OpenBLAS does not know a newer processor and falls back
 * by far. */
bool pst__blas_warning(const pst_blas *blas, char *text, size_t text_bytes);

/* The product by the calling thread. m, n, k and the lds fit an int. Any thread. */
void pst__blas_run(const pst_blas *blas, const pst_gemm *g);

/* The product by a team, called as pst__gemm_team() is; same bits as pst__blas_run(). */
void pst__blas_team(pst_team_member *me, const pst_blas *blas, const pst_gemm *g);

#endif
