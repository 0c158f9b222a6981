#include "tests/reference/reference.h"

#include "core/base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double *scratch(int64_t n) {
  double *p = calloc((size_t)(n > 0 ? n : 1), sizeof *p);
  if (!p) {
    fprintf(stderr, "reference: no memory for %lld doubles\n", (long long)n);
    exit(3);
  }
  return p;
}

static int64_t elements(const pst_operand *o) {
  return pst_operand_elements(o);
}

bool reference_keeps(const pst_ctrl *ctrl, uint32_t site, float p, int64_t sequence, int64_t e) {
  uint64_t group = (uint64_t)e / 4;
  uint32_t counter[4] = {(uint32_t)group, (uint32_t)(group >> 32),
                         (uint32_t)(ctrl->first_sequence + sequence), site};
  uint32_t word[4];
  pst_rng_philox(pst_rng_key_make(ctrl->seed, ctrl->step), counter, word);
  return pst_rng_uniform(word[e % 4]) >= p;
}

/* ---- embedding ---- */

static void embedding(const reference_call *c) {
  const double *tokens = c->in[0], *table = c->in[1], *position = c->in[2];
  int64_t C = pst_operand_width(&c->op->out[0]), T = c->op->in[0].dim[1], N = elements(&c->op->in[0]);
  for (int64_t r = 0; r < N; r++)
    for (int64_t j = 0; j < C; j++)
      c->out[0][r * C + j] = table[(int64_t)tokens[r] * C + j] + (position ? position[(r % T) * C + j] : 0);
}

static void embedding_grad(const reference_call *c) {
  const double *tokens = c->in[0], *dy = c->in[1];
  double *table = c->acc[0], *position = c->acc[1];
  int64_t C = pst_operand_width(&c->op->in[1]), T = c->op->in[0].dim[1], N = elements(&c->op->in[0]);
  for (int64_t r = 0; r < N; r++)
    for (int64_t j = 0; j < C; j++) {
      table[(int64_t)tokens[r] * C + j] += dy[r * C + j];
      if (position) position[(r % T) * C + j] += dy[r * C + j];
    }
}

/* ---- linear ---- */

/* Where w(d, e), which takes input d to output e, lies. */
static int64_t w_index(const pst_attrs *attrs, int64_t D, int64_t E, int64_t d, int64_t e) {
  return attrs->w_in_out ? d * E + e : e * D + d;
}

static void linear(const reference_call *c) {
  const double *x = c->in[0], *w = c->in[1], *bias = c->in[2], *addend = c->in[3];
  int64_t D = pst_operand_width(&c->op->in[0]), E = pst_operand_width(&c->op->out[0]);
  int64_t N = pst_operand_rows(&c->op->in[0]);
  for (int64_t r = 0; r < N; r++)
    for (int64_t e = 0; e < E; e++) {
      double sum = 0;
      for (int64_t d = 0; d < D; d++) sum += x[r * D + d] * w[w_index(&c->op->attrs, D, E, d, e)];
      c->out[0][r * E + e] = sum + (bias ? bias[e] : 0) + (addend ? addend[r * E + e] : 0);
    }
}

static void linear_wgrad(const reference_call *c) {
  const double *x = c->in[0], *dy = c->in[1];
  double *w = c->acc[0], *bias = c->acc[1];
  int64_t D = pst_operand_width(&c->op->in[0]), E = pst_operand_width(&c->op->in[1]);
  int64_t N = pst_operand_rows(&c->op->in[0]);
  for (int64_t r = 0; r < N; r++)
    for (int64_t e = 0; e < E; e++) {
      for (int64_t d = 0; d < D; d++) w[w_index(&c->op->attrs, D, E, d, e)] += x[r * D + d] * dy[r * E + e];
      if (bias) bias[e] += dy[r * E + e];
    }
}

/* ---- norms ---- */

static void layer_norm(const reference_call *c) {
  const double *x = c->in[0], *gain = c->in[1], *bias = c->in[2];
  int64_t C = pst_operand_width(&c->op->in[0]), N = pst_operand_rows(&c->op->in[0]);
  for (int64_t r = 0; r < N; r++) {
    double mean = 0, variance = 0;
    for (int64_t j = 0; j < C; j++) mean += x[r * C + j] / (double)C;
    for (int64_t j = 0; j < C; j++) variance += pow(x[r * C + j] - mean, 2) / (double)C;
    double rstd = 1 / sqrt(variance + c->op->attrs.eps);
    for (int64_t j = 0; j < C; j++)
      c->out[0][r * C + j] = (x[r * C + j] - mean) * rstd * gain[j] + (bias ? bias[j] : 0);
    if (c->out[1]) c->out[1][r] = mean;
    if (c->out[2]) c->out[2][r] = rstd;
  }
}

/* dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) with g = dy * gain, xhat = (x - mean) * rstd; an RMS norm
 * has mean 0 and no mean(g) term. */
static void norm_grad(const reference_call *c, const double *mean, const double *rstd, const double *dy,
                      const double *addend, double *gain_grad, double *bias_grad) {
  const double *x = c->in[0], *gain = c->in[1];
  int64_t C = pst_operand_width(&c->op->in[0]), N = pst_operand_rows(&c->op->in[0]);
  for (int64_t r = 0; r < N; r++) {
    double mean_g = 0, mean_gx = 0, mu = mean ? mean[r] : 0;
    for (int64_t j = 0; j < C; j++) {
      double g = dy[r * C + j] * gain[j], xhat = (x[r * C + j] - mu) * rstd[r];
      if (mean) mean_g += g / (double)C;
      mean_gx += g * xhat / (double)C;
    }
    for (int64_t j = 0; j < C; j++) {
      double g = dy[r * C + j] * gain[j], xhat = (x[r * C + j] - mu) * rstd[r];
      c->out[0][r * C + j] = rstd[r] * (g - mean_g - xhat * mean_gx) + (addend ? addend[r * C + j] : 0);
      gain_grad[j] += dy[r * C + j] * xhat;
      if (bias_grad) bias_grad[j] += dy[r * C + j];
    }
  }
}

static void layer_norm_grad(const reference_call *c) {
  norm_grad(c, c->in[2], c->in[3], c->in[4], c->in[5], c->acc[0], c->acc[1]);
}

static void rms_norm(const reference_call *c) {
  const double *x = c->in[0], *gain = c->in[1];
  int64_t C = pst_operand_width(&c->op->in[0]), N = pst_operand_rows(&c->op->in[0]);
  for (int64_t r = 0; r < N; r++) {
    double square = 0;
    for (int64_t j = 0; j < C; j++) square += pow(x[r * C + j], 2) / (double)C;
    double rstd = 1 / sqrt(square + c->op->attrs.eps);
    for (int64_t j = 0; j < C; j++) c->out[0][r * C + j] = x[r * C + j] * rstd * gain[j];
    if (c->out[1]) c->out[1][r] = rstd;
  }
}

static void rms_norm_grad(const reference_call *c) {
  norm_grad(c, NULL, c->in[2], c->in[3], c->in[4], c->acc[0], NULL);
}

/* ---- rotary ---- */

static void rotary(const reference_call *c) {
  const double *x = c->in[0], *addend = c->in[1];
  const pst_attrs *a = &c->op->attrs;
  int64_t b = c->op->in[0].dim[0], T = c->op->in[0].dim[1], H = a->heads, d = a->head_dim;
  for (int64_t s = 0; s < b; s++)
    for (int64_t t = 0; t < T; t++)
      for (int64_t h = 0; h < H; h++)
        for (int64_t i = 0; i < d / 2; i++) {
          double angle = (double)t * pow(a->theta, -2.0 * (double)i / (double)d);
          if (a->inverse) angle = -angle;
          int64_t lo = ((s * T + t) * H + h) * d + i, hi = lo + d / 2;
          c->out[0][lo] = x[lo] * cos(angle) - x[hi] * sin(angle) + (addend ? addend[lo] : 0);
          c->out[0][hi] = x[hi] * cos(angle) + x[lo] * sin(angle) + (addend ? addend[hi] : 0);
        }
}

/* ---- attention ---- */

typedef struct attention_view {
  int64_t b, T, H, G, d;
  const double *q, *k, *v, *lengths;
  int64_t ldq, ldk; /* elements from one position to the next */
  double scale;
} attention_view;

static attention_view view_of(const reference_call *c) {
  const pst_attrs *a = &c->op->attrs;
  attention_view w = {.b = c->op->in[0].dim[0],
                      .T = c->op->in[0].dim[1],
                      .H = a->heads,
                      .G = a->kv_heads,
                      .d = a->head_dim,
                      .q = c->in[0],
                      .k = c->in[1],
                      .v = c->in[2],
                      .lengths = c->in[3],
                      .scale = a->scale};
  w.ldq = w.H * w.d;
  w.ldk = w.G * w.d;
  if (a->packed) {
    w.k = w.q + w.H * w.d;
    w.v = w.k + w.G * w.d;
    w.ldq = w.ldk = (w.H + 2 * w.G) * w.d;
  }
  return w;
}

/* How many keys position i of sequence s sees: those before its length, itself included at most when causal.
 */
static int64_t visible(const attention_view *w, bool causal, int64_t s, int64_t i) {
  int64_t length = w->lengths ? (int64_t)w->lengths[s] : w->T;
  if (i >= length) return 0;
  return causal ? i + 1 : length;
}

static double score(const attention_view *w, int64_t s, int64_t h, int64_t i, int64_t j) {
  const double *q = w->q + (s * w->T + i) * w->ldq + h * w->d;
  const double *k = w->k + (s * w->T + j) * w->ldk + h / (w->H / w->G) * w->d;
  double sum = 0;
  for (int64_t x = 0; x < w->d; x++) sum += q[x] * k[x];
  return sum * w->scale;
}

/* The factor that dropout puts on probability (i, j): 0 or 1 / (1 - p). */
static double kept(const reference_call *c, const attention_view *w, int64_t s, int64_t h, int64_t i,
                   int64_t j) {
  float p = c->op->attrs.p;
  if (p == 0) return 1;
  int64_t e = (h * w->T + i) * ((w->T + 3) / 4 * 4) + j;
  return reference_keeps(c->ctrl, c->op->attrs.site, p, s, e) ? 1 / (1 - (double)p) : 0;
}

static void attention(const reference_call *c) {
  attention_view w = view_of(c);
  double *p = scratch(w.T);
  for (int64_t s = 0; s < w.b; s++)
    for (int64_t h = 0; h < w.H; h++)
      for (int64_t i = 0; i < w.T; i++) {
        int64_t n = visible(&w, c->op->attrs.causal, s, i);
        double top = -INFINITY, sum = 0;
        for (int64_t j = 0; j < n; j++) {
          p[j] = score(&w, s, h, i, j);
          if (p[j] > top) top = p[j];
        }
        for (int64_t j = 0; j < n; j++) sum += p[j] = exp(p[j] - top);
        double *o = c->out[0] + ((s * w.T + i) * w.H + h) * w.d;
        for (int64_t x = 0; x < w.d; x++) o[x] = 0;
        for (int64_t j = 0; j < n; j++) {
          const double *v = w.v + (s * w.T + j) * w.ldk + h / (w.H / w.G) * w.d;
          double weight = p[j] / sum * kept(c, &w, s, h, i, j);
          for (int64_t x = 0; x < w.d; x++) o[x] += weight * v[x];
        }
        if (c->out[1]) c->out[1][(s * w.H + h) * w.T + i] = n ? top + log(sum) : -INFINITY;
      }
  free(p);
}

static void attention_grad(const reference_call *c) {
  attention_view w = view_of(c);
  const double *o = c->in[4], *lse = c->in[5], *dout = c->in[6];
  double *dq = c->out[0], *dk = c->out[1], *dv = c->out[2];
  if (c->op->attrs.packed) {
    dk = dq + w.H * w.d;
    dv = dk + w.G * w.d;
  }
  for (int64_t r = 0; r < w.b * w.T; r++) {
    for (int64_t x = 0; x < w.H * w.d; x++) dq[r * w.ldq + x] = 0;
    for (int64_t x = 0; x < w.G * w.d; x++) dk[r * w.ldk + x] = dv[r * w.ldk + x] = 0;
  }
  for (int64_t s = 0; s < w.b; s++)
    for (int64_t h = 0; h < w.H; h++)
      for (int64_t i = 0; i < w.T; i++) {
        int64_t n = visible(&w, c->op->attrs.causal, s, i);
        const double *oi = o + ((s * w.T + i) * w.H + h) * w.d, *doi = dout + ((s * w.T + i) * w.H + h) * w.d;
        double D = 0;
        for (int64_t x = 0; x < w.d; x++) D += oi[x] * doi[x];
        for (int64_t j = 0; j < n; j++) {
          int64_t kv = (s * w.T + j) * w.ldk + h / (w.H / w.G) * w.d, qi = (s * w.T + i) * w.ldq + h * w.d;
          double p = exp(score(&w, s, h, i, j) - lse[(s * w.H + h) * w.T + i]);
          double keep = kept(c, &w, s, h, i, j), dp = 0;
          for (int64_t x = 0; x < w.d; x++) dp += doi[x] * w.v[kv + x];
          double ds = p * (keep * dp - D) * w.scale;
          for (int64_t x = 0; x < w.d; x++) {
            dv[kv + x] += p * keep * doi[x];
            dk[kv + x] += ds * w.q[qi + x];
            dq[qi + x] += ds * w.k[kv + x];
          }
        }
      }
}

/* ---- elementwise ---- */

static const double SQRT_2_OVER_PI = 0.79788456080286535588;

static void gelu(const reference_call *c) {
  const double *x = c->in[0];
  for (int64_t i = 0, n = elements(&c->op->in[0]); i < n; i++) {
    double inner = SQRT_2_OVER_PI * (x[i] + 0.044715 * x[i] * x[i] * x[i]);
    double cdf = c->op->attrs.exact ? 0.5 * erfc(-x[i] * M_SQRT1_2) : 0.5 * (1 + tanh(inner));
    c->out[0][i] = x[i] * cdf;
  }
}

static void gelu_grad(const reference_call *c) {
  const double *x = c->in[0], *dy = c->in[1];
  for (int64_t i = 0, n = elements(&c->op->in[0]); i < n; i++) {
    double inner = SQRT_2_OVER_PI * (x[i] + 0.044715 * x[i] * x[i] * x[i]);
    double slope;
    if (c->op->attrs.exact) {
      slope = 0.5 * erfc(-x[i] * M_SQRT1_2) + x[i] * exp(-0.5 * x[i] * x[i]) * SQRT_2_OVER_PI / 2;
    } else {
      double t = tanh(inner);
      slope = 0.5 * (1 + t) + 0.5 * x[i] * (1 - t * t) * SQRT_2_OVER_PI * (1 + 3 * 0.044715 * x[i] * x[i]);
    }
    c->out[0][i] = dy[i] * slope;
  }
}

static double sigmoid(double x) {
  return 1 / (1 + exp(-x));
}

static void silu_gate(const reference_call *c) {
  const double *gate = c->in[0], *up = c->in[1];
  for (int64_t i = 0, n = elements(&c->op->in[0]); i < n; i++)
    c->out[0][i] = gate[i] * sigmoid(gate[i]) * up[i];
}

static void silu_gate_grad(const reference_call *c) {
  const double *gate = c->in[0], *up = c->in[1], *dy = c->in[2];
  for (int64_t i = 0, n = elements(&c->op->in[0]); i < n; i++) {
    double s = sigmoid(gate[i]);
    c->out[0][i] = dy[i] * up[i] * s * (1 + gate[i] * (1 - s));
    c->out[1][i] = dy[i] * gate[i] * s;
  }
}

static void add(const reference_call *c) {
  for (int64_t i = 0, n = elements(&c->op->in[0]); i < n; i++) c->out[0][i] = c->in[0][i] + c->in[1][i];
}

static void scale(const reference_call *c) {
  for (int64_t i = 0, n = elements(&c->op->in[0]); i < n; i++)
    c->out[0][i] = (double)c->op->attrs.scale * c->in[0][i] + (c->in[1] ? c->in[1][i] : 0);
}

static void dropout(const reference_call *c) {
  float p = c->op->attrs.p;
  int64_t n = elements(&c->op->in[0]), per_sequence = n / c->op->in[0].dim[0];
  for (int64_t i = 0; i < n; i++) {
    bool keep = p == 0 || reference_keeps(c->ctrl, c->op->attrs.site, p, i / per_sequence, i % per_sequence);
    c->out[0][i] = (keep ? c->in[0][i] / (1 - (double)p) : 0) + (c->in[1] ? c->in[1][i] : 0);
  }
}

static void copy(const reference_call *c) {
  memcpy(c->out[0], c->in[0], (size_t)elements(&c->op->in[0]) * sizeof(double));
}

static void cast(const reference_call *c) {
  copy(c);
}

static void slice(const reference_call *c) {
  int64_t C = pst_operand_width(&c->op->in[0]), E = pst_operand_width(&c->op->out[0]);
  int64_t N = pst_operand_rows(&c->op->in[0]);
  for (int64_t r = 0; r < N; r++)
    for (int64_t j = 0; j < E; j++) c->out[0][r * E + j] = c->in[0][r * C + c->op->attrs.start + j];
}

static void slice_grad(const reference_call *c) {
  int64_t E = pst_operand_width(&c->op->in[0]), C = pst_operand_width(&c->op->out[0]);
  int64_t N = pst_operand_rows(&c->op->in[0]), start = c->op->attrs.start;
  for (int64_t r = 0; r < N; r++)
    for (int64_t j = 0; j < C; j++) {
      double dy = j >= start && j < start + E ? c->in[0][r * E + j - start] : 0;
      c->out[0][r * C + j] = dy + (c->in[1] ? c->in[1][r * C + j] : 0);
    }
}

/* Row positions[s] of each sequence s. */
static void take(const reference_call *c) {
  int64_t b = c->op->in[0].dim[0], T = c->op->in[0].dim[1], C = c->op->in[0].dim[2];
  for (int64_t s = 0; s < b; s++)
    for (int64_t j = 0; j < C; j++) c->out[0][s * C + j] = c->in[0][(s * T + (int64_t)c->in[1][s]) * C + j];
}

/* ---- cross entropy ---- */

/* Loss and, where wanted, scaled logit gradient of one row; an ignored target gives zeros whatever the
 * logits.
 */
static double row_loss(const double *logits, int64_t V, int64_t target, double gradient_scale,
                       double *dlogits) {
  if (target < 0) {
    for (int64_t v = 0; dlogits && v < V; v++) dlogits[v] = 0;
    return 0;
  }
  double top = -INFINITY, sum = 0;
  for (int64_t v = 0; v < V; v++)
    if (logits[v] > top) top = logits[v];
  for (int64_t v = 0; v < V; v++) sum += exp(logits[v] - top);
  for (int64_t v = 0; dlogits && v < V; v++)
    dlogits[v] = (exp(logits[v] - top) / sum - (v == target ? 1 : 0)) * gradient_scale;
  return top + log(sum) - logits[target];
}

static void cross_entropy(const reference_call *c) {
  int64_t V = pst_operand_width(&c->op->in[0]), N = pst_operand_rows(&c->op->in[0]);
  for (int64_t r = 0; r < N; r++) c->out[0][r] = row_loss(c->in[0] + r * V, V, (int64_t)c->in[1][r], 0, NULL);
}

static void cross_entropy_grad(const reference_call *c) {
  int64_t V = pst_operand_width(&c->op->in[0]), N = pst_operand_rows(&c->op->in[0]);
  for (int64_t r = 0; r < N; r++)
    row_loss(c->in[0] + r * V, V, (int64_t)c->in[1][r], c->ctrl->gradient_scale, c->out[0] + r * V);
}

static void head(const reference_call *c, double *loss, double *dx, double *w_grad) {
  const double *x = c->in[0], *w = c->in[1], *targets = c->in[2];
  const pst_attrs *a = &c->op->attrs;
  int64_t C = pst_operand_width(&c->op->in[0]), N = pst_operand_rows(&c->op->in[0]);
  int64_t V = elements(&c->op->in[1]) / C;
  double *logits = scratch(V), *dlogits = scratch(V);
  for (int64_t r = 0; r < N; r++) {
    for (int64_t v = 0; v < V; v++) {
      logits[v] = 0;
      for (int64_t j = 0; j < C; j++) logits[v] += x[r * C + j] * w[w_index(a, C, V, j, v)];
    }
    loss[r] = row_loss(logits, V, (int64_t)targets[r], dx ? c->ctrl->gradient_scale : 0, dlogits);
    if (!dx) continue;
    for (int64_t j = 0; j < C; j++) dx[r * C + j] = 0;
    if (targets[r] < 0) continue;
    for (int64_t v = 0; v < V; v++)
      for (int64_t j = 0; j < C; j++) {
        dx[r * C + j] += dlogits[v] * w[w_index(a, C, V, j, v)];
        w_grad[w_index(a, C, V, j, v)] += dlogits[v] * x[r * C + j];
      }
  }
  free(logits);
  free(dlogits);
}

static void linear_cross_entropy(const reference_call *c) {
  head(c, c->out[0], NULL, NULL);
}

static void linear_cross_entropy_grad(const reference_call *c) {
  head(c, c->out[0], c->out[1], c->acc[0]);
}

/* ---- whole-model sums and updates ---- */

static void sum_squares(const reference_call *c) {
  int64_t n = elements(&c->op->in[0]);
  for (int64_t block = 0; block * 4096 < n; block++) {
    c->out[0][block] = 0;
    for (int64_t i = block * 4096; i < n && i < (block + 1) * 4096; i++)
      c->out[0][block] += c->in[0][i] * c->in[0][i];
  }
}

static void adamw(const reference_call *c) {
  double *grad = c->acc[0], *m = c->acc[1], *v = c->acc[2], *master = c->acc[3];
  const pst_attrs *a = &c->op->attrs;
  double beta1 = a->beta1, beta2 = a->beta2, lr = c->ctrl->lr;
  for (int64_t i = 0, n = elements(&c->op->in[0]); i < n; i++) {
    double g = grad[i] * c->ctrl->clip, p = master ? master[i] : c->in[0][i];
    grad[i] = 0;
    c->out[0][i] = c->in[0][i];
    if (c->ctrl->skip) continue;
    m[i] = beta1 * m[i] + (1 - beta1) * g;
    v[i] = beta2 * v[i] + (1 - beta2) * g * g;
    p = p - lr * a->weight_decay * p - lr * (m[i] * c->ctrl->bias1) / (sqrt(v[i] * c->ctrl->bias2) + a->eps);
    c->out[0][i] = p;
    if (master) master[i] = p;
  }
}

static void sgd(const reference_call *c) {
  double *grad = c->acc[0], *velocity = c->acc[1], *master = c->acc[2];
  const pst_attrs *a = &c->op->attrs;
  for (int64_t i = 0, n = elements(&c->op->in[0]); i < n; i++) {
    double g = grad[i] * c->ctrl->clip, p = master ? master[i] : c->in[0][i];
    grad[i] = 0;
    c->out[0][i] = c->in[0][i];
    if (c->ctrl->skip) continue;
    double step = g + a->weight_decay * p;
    if (velocity) step = velocity[i] = a->momentum * velocity[i] + step;
    p -= c->ctrl->lr * step;
    c->out[0][i] = p;
    if (master) master[i] = p;
  }
}

bool reference_run(const reference_call *call) {
  static void (*const table[PST_OP_COUNT])(const reference_call *) = {
#define ROW(name, n_in, n_out, n_acc, flags) [PST_OP_##name] = name,
      PST_OP_LIST(ROW)
#undef ROW
  };
  if ((unsigned)call->op->code >= PST_OP_COUNT || !table[call->op->code]) return false;
  table[call->op->code](call);
  return true;
}
