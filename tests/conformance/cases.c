#include "tests/conformance/cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const op_names[PST_OP_COUNT] = {
#define ROW(name, n_in, n_out, n_acc, flags) [PST_OP_##name] = #name,
    PST_OP_LIST(ROW)
#undef ROW
};

typedef struct builder {
  case_list *list;
  uint64_t seed;
} builder;

/* An op case with nothing set but its code; the shape text is completed by push(). */
static op_case blank(pst_op_code code) {
  op_case c = {.op = {.code = code, .unit = -1}, .alias = -1, .special_input = -1};
  c.ctrl = (pst_ctrl){.seed = 0x123456789abcdefu,
                      .step = 3,
                      .first_sequence = 12,
                      .gradient_scale = 0.125f,
                      .lr = 0.05f,
                      .bias1 = 2.5f,
                      .bias2 = 20.0f,
                      .clip = 0.75f};
  return c;
}

static bool has_bf16(const pst_op *op) {
  for (int i = 0; i < PST_OP_MAX_IN; i++)
    if (pst_operand_present(&op->in[i]) && op->in[i].dtype == PST_BF16) return true;
  for (int i = 0; i < PST_OP_MAX_OUT; i++)
    if (pst_operand_present(&op->out[i]) && op->out[i].dtype == PST_BF16) return true;
  return false;
}

/* What fp32 arithmetic in any order may lose, per op; bf16 results are further off by their rounding. */
static double tolerance(const pst_op *op) {
  if (has_bf16(op)) return 1.2e-2;
  switch (op->code) {
  case PST_OP_copy:
  case PST_OP_slice:
  case PST_OP_take:
  case PST_OP_cast:
    return 0;
  case PST_OP_sum_squares:
    return 1e-11;
  case PST_OP_embedding:
  case PST_OP_add:
  case PST_OP_scale:
  case PST_OP_slice_grad:
  case PST_OP_dropout:
    return 3e-7;
  case PST_OP_attention:
    return 5e-6;
  /* one key, or a row of one element: the gradient is zero but for what is left of two numbers of size 1 or
   * rstd */
  case PST_OP_attention_grad:
    return 2e-5;
  /* a row of one element has a gradient of about zero: what is left of two numbers of size rstd */
  case PST_OP_layer_norm_grad:
  case PST_OP_rms_norm_grad:
    return pst_operand_width(&op->in[0]) == 1 ? 1e-3 : 1e-5;
  default:
    return 4e-6;
  }
}

static int put(char *to, size_t room, const char *label, const pst_operand *o) {
  int n = snprintf(to, room, " %s", label);
  for (int i = 0; i < o->rank && n < (int)room; i++)
    n += snprintf(to + n, room - (size_t)n, "%s%lld", i ? "x" : "", (long long)o->dim[i]);
  if (o->dtype != PST_F32 && n < (int)room)
    n += snprintf(to + n, room - (size_t)n, ":%s",
                  o->dtype == PST_BF16  ? "bf16"
                  : o->dtype == PST_I32 ? "i32"
                                        : "f64");
  return n < (int)room ? n : (int)room - 1;
}

static void describe(op_case *c) {
  char *at = c->name, *end = c->name + sizeof c->name;
  const pst_attrs *a = &c->op.attrs;
  at += snprintf(at, (size_t)(end - at), "%s", op_names[c->op.code]);
  for (int i = 0; i < PST_OP_MAX_IN; i++)
    if (pst_operand_present(&c->op.in[i]))
      at += put(at, (size_t)(end - at), (char[]){(char)('a' + i), ':', 0}, &c->op.in[i]);
  for (int i = 0; i < PST_OP_MAX_ACC; i++)
    if (pst_operand_present(&c->op.acc[i])) at += put(at, (size_t)(end - at), "acc:", &c->op.acc[i]);
#define SAY(condition, ...)                                                                                  \
  if ((condition) && at < end - 1) {                                                                         \
    int said_ = snprintf(at, (size_t)(end - at), __VA_ARGS__);                                               \
    at += said_ < end - at ? said_ : end - at - 1;                                                           \
  }
  SAY(has_bf16(&c->op), " bf16")
  SAY(a->w_in_out, " w_in_out")
  SAY(a->heads, " H=%d", a->heads)
  SAY(a->kv_heads, " G=%d", a->kv_heads)
  SAY(a->head_dim, " d=%d", a->head_dim)
  SAY(a->packed, " packed")
  SAY(a->causal, " causal")
  SAY(a->exact, " exact")
  SAY(a->inverse, " inverse")
  SAY(a->start, " start=%lld", (long long)a->start)
  SAY(a->p > 0, " p=%g", (double)a->p)
  SAY(c->ctrl.skip, " skip")
  SAY(c->alias >= 0, " on=%c", 'a' + c->alias)
  SAY(c->special_input >= 0, " %g@%c%lld", c->special_value, 'a' + c->special_input,
      (long long)c->special_index)
#undef SAY
}

/* Appends the case. Its seed follows from the suite's seed and its name, so it does not depend on the cases
 * before it. */
static void push(builder *b, op_case c) {
  case_list *list = b->list;
  if (list->n == list->room) {
    list->room = list->room ? 2 * list->room : 256;
    list->at = realloc(list->at, (size_t)list->room * sizeof *list->at);
    if (!list->at) {
      fprintf(stderr, "conformance: no memory for %d cases\n", list->room);
      exit(3);
    }
  }
  c.tolerance = tolerance(&c.op);
  /* a query that sees one key has no gradient: what is left of two numbers of size 1 */
  c.floor = c.op.code == PST_OP_attention_grad ? 1 : 0.01;
  describe(&c);
  uint64_t hash = b->seed * 0x9e3779b97f4a7c15u + 0xcbf29ce484222325u;
  for (const char *s = c.name; *s; s++) hash = (hash ^ (unsigned char)*s) * 0x100000001b3u;
  c.seed = hash;
  list->at[list->n++] = c;
}

/* The case, and again with out[0] on each input of its flags, and with a NaN (and, where `infinite`, an
 * infinity) in input `special`, at its last element. */
static void push_variants(builder *b, op_case c, int n_alias, int special, bool infinite) {
  push(b, c);
  for (int i = 0; i < n_alias; i++) {
    if (!pst_operand_present(&c.op.in[i])) continue;
    op_case aliased = c;
    aliased.alias = i;
    push(b, aliased);
  }
  if (special < 0) return;
  op_case odd = c;
  odd.special_input = special;
  odd.special_index = pst_operand_elements(&c.op.in[special]) - 1;
  odd.special_value = NAN;
  push(b, odd);
  odd.special_value = INFINITY;
  if (infinite) push(b, odd);
}

static pst_operand t1(pst_dtype dt, int64_t n) {
  return case_operand(dt, n, 0, 0, 0);
}
static pst_operand t2(pst_dtype dt, int64_t r, int64_t c) {
  return case_operand(dt, r, c, 0, 0);
}
static pst_operand t3(pst_dtype dt, int64_t b, int64_t t, int64_t c) {
  return case_operand(dt, b, t, c, 0);
}

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

static void embedding_cases(builder *b, pst_dtype dt) {
  static const int shape[][4] = {{1, 1, 1, 2}, {2, 3, 7, 5}, {2, 17, 33, 11}, {3, 65, 130, 50}};
  for (int i = 0; i < COUNT(shape); i++)
    for (int position = 0; position < 2; position++) {
      int64_t n = shape[i][0], T = shape[i][1], C = shape[i][2], V = shape[i][3];
      op_case c = blank(PST_OP_embedding);
      c.op.in[0] = t2(PST_I32, n, T);
      c.op.in[1] = t2(dt, V, C);
      if (position) c.op.in[2] = t2(dt, T + 3, C);
      c.op.out[0] = t3(dt, n, T, C);
      push_variants(b, c, 0, position ? 2 : 1, false);
      c = blank(PST_OP_embedding_grad);
      c.op.in[0] = t2(PST_I32, n, T);
      c.op.in[1] = t3(dt, n, T, C);
      c.op.acc[0] = t2(PST_F32, V, C);
      if (position) c.op.acc[1] = t2(PST_F32, T + 3, C);
      push_variants(b, c, 0, 1, false);
    }
}

static void linear_cases(builder *b, pst_dtype dt) {
  static const int shape[][3] = {{1, 1, 1},     {2, 3, 7},     {3, 2, 1},     {17, 33, 65},
                                 {33, 130, 17}, {130, 65, 33}, {7, 257, 130}, {600, 64, 96}};
  for (int i = 0; i < COUNT(shape); i++)
    for (int layout = 0; layout < 2; layout++)
      for (int bias = 0; bias < 2; bias++) {
        int64_t N = shape[i][0], D = shape[i][1], E = shape[i][2];
        pst_operand w = layout ? t2(dt, D, E) : t2(dt, E, D), master = w;
        master.dtype = PST_F32;
        for (int addend = 0; addend < 3; addend++) { /* none, apart, under the output */
          op_case c = blank(PST_OP_linear);
          c.op.attrs.w_in_out = layout;
          c.op.in[0] = t3(dt, 1, N, D);
          c.op.in[1] = w;
          if (bias) c.op.in[2] = t1(dt, E);
          if (addend) c.op.in[3] = t3(dt, 1, N, E);
          c.op.out[0] = t3(dt, 1, N, E);
          if (addend == 2) c.alias = 3;
          push_variants(b, c, 0, addend ? -1 : 0, true);
        }
        op_case c = blank(PST_OP_linear_wgrad);
        c.op.attrs.w_in_out = layout;
        c.op.in[0] = t2(dt, N, D);
        c.op.in[1] = t2(dt, N, E);
        c.op.acc[0] = master;
        if (bias) c.op.acc[1] = t1(PST_F32, E);
        push_variants(b, c, 0, 1, false);
      }
}

static void norm_cases(builder *b, pst_dtype dt) {
  static const int shape[][2] = {{1, 1}, {2, 3}, {7, 17}, {33, 65}, {3, 130}, {300, 33}, {65, 384}};
  for (int i = 0; i < COUNT(shape); i++)
    for (int option = 0; option < 4; option++) {
      int64_t N = shape[i][0], C = shape[i][1];
      bool bias = option & 1, addend = option & 2;
      op_case c = blank(PST_OP_layer_norm);
      c.op.attrs.eps = 1e-5f;
      c.op.in[0] = t3(dt, 1, N, C);
      c.op.in[1] = t1(dt, C);
      c.op.out[0] = t3(dt, 1, N, C);
      c.op.out[1] = c.op.out[2] = t2(PST_F32, 1, N);
      if (bias) c.op.in[2] = t1(dt, C);
      if (!addend) push_variants(b, c, 0, 0, true);

      c = blank(PST_OP_layer_norm_grad);
      c.op.attrs.eps = 1e-5f;
      c.op.in[0] = c.op.in[4] = c.op.out[0] = t3(dt, 1, N, C);
      c.op.in[1] = t1(dt, C);
      c.op.in[2] = c.op.in[3] = t2(PST_F32, 1, N);
      if (addend) c.op.in[5] = t3(dt, 1, N, C);
      c.op.acc[0] = t1(PST_F32, C);
      if (bias) c.op.acc[1] = t1(PST_F32, C);
      push_variants(b, c, 0, 4, false);
      if (addend) {
        c.alias = 5;
        push(b, c);
      }
      if (bias) continue;
      c = blank(PST_OP_rms_norm);
      c.op.attrs.eps = 1e-6f;
      c.op.in[0] = c.op.out[0] = t3(dt, 1, N, C);
      c.op.in[1] = t1(dt, C);
      c.op.out[1] = t2(PST_F32, 1, N);
      if (!addend) push_variants(b, c, 0, 0, false);

      c = blank(PST_OP_rms_norm_grad);
      c.op.attrs.eps = 1e-6f;
      c.op.in[0] = c.op.in[3] = c.op.out[0] = t3(dt, 1, N, C);
      c.op.in[1] = t1(dt, C);
      c.op.in[2] = t2(PST_F32, 1, N);
      if (addend) c.op.in[4] = t3(dt, 1, N, C);
      c.op.acc[0] = t1(PST_F32, C);
      push_variants(b, c, 0, 3, false);
      if (addend) {
        c.alias = 4;
        push(b, c);
      }
    }
}

static void rotary_cases(builder *b, pst_dtype dt) {
  static const int shape[][4] = {{1, 1, 1, 2}, {2, 5, 3, 8}, {1, 33, 2, 20}, {3, 65, 1, 64}};
  for (int i = 0; i < COUNT(shape); i++)
    for (int option = 0; option < 4; option++) {
      int64_t n = shape[i][0], T = shape[i][1], H = shape[i][2], d = shape[i][3];
      op_case c = blank(PST_OP_rotary);
      c.op.attrs.theta = 10000;
      c.op.attrs.inverse = option & 1;
      c.op.attrs.heads = (int32_t)H;
      c.op.attrs.head_dim = (int32_t)d;
      c.op.in[0] = c.op.out[0] = t3(dt, n, T, H * d);
      if (option & 2) c.op.in[1] = c.op.in[0];
      push_variants(b, c, 2, 0, false);
    }
}

typedef struct attention_shape {
  int b, T, H, G, d;
  bool causal, packed, lengths;
  float p;
} attention_shape;

static void attention_cases(builder *b, pst_dtype dt) {
  static const attention_shape shape[] = {
      {1, 1, 1, 1, 8, true, true, false, 0},       {2, 1, 2, 1, 16, false, false, true, 0},
      {2, 5, 3, 3, 8, true, true, false, 0},       {2, 5, 4, 2, 20, false, false, false, 0},
      {1, 33, 2, 2, 64, true, true, false, 0},     {1, 33, 2, 2, 64, false, true, false, 0},
      {3, 33, 4, 1, 16, true, false, true, 0},     {3, 33, 4, 2, 20, false, true, true, 0},
      {1, 128, 2, 2, 64, true, true, false, 0},    {2, 128, 2, 1, 8, false, false, true, 0},
      {1, 257, 2, 1, 64, true, true, false, 0},    {2, 257, 1, 1, 20, false, false, true, 0},
      {1, 257, 3, 3, 16, true, false, false, 0},   {2, 5, 2, 2, 16, true, true, false, 0.25f},
      {2, 33, 4, 2, 8, false, false, false, 0.1f}, {1, 130, 2, 2, 20, true, true, true, 0.2f},
      {3, 65, 2, 1, 64, true, false, true, 0.5f},  {1, 300, 1, 1, 100, true, true, false, 0},
      {1, 17, 2, 2, 3, false, true, false, 0},     {2, 64, 4, 4, 32, true, true, false, 0}};
  for (int i = 0; i < COUNT(shape); i++) {
    attention_shape s = shape[i];
    pst_operand q = t3(dt, s.b, s.T, (s.packed ? s.H + 2 * s.G : s.H) * s.d),
                kv = t3(dt, s.b, s.T, s.G * s.d);
    pst_operand o = t3(dt, s.b, s.T, s.H * s.d), lse = t3(PST_F32, s.b, s.H, s.T);
    op_case c = blank(PST_OP_attention);
    c.op.attrs = (pst_attrs){.causal = s.causal,
                             .packed = s.packed,
                             .heads = s.H,
                             .kv_heads = s.G,
                             .head_dim = s.d,
                             .scale = (float)(1 / sqrt(s.d)),
                             .p = s.p,
                             .site = 5};
    c.op.in[0] = q;
    if (!s.packed) c.op.in[1] = c.op.in[2] = kv;
    if (s.lengths) c.op.in[3] = t1(PST_I32, s.b);
    c.op.out[0] = o;
    c.op.out[1] = lse;
    bool plain = !s.lengths && s.p == 0;
    push(b, c);
    /* a NaN in the last query row of the last head: every key is visible there */
    op_case odd = c;
    odd.special_input = 0;
    odd.special_index = (int64_t)s.b * s.T * q.dim[2] - q.dim[2] + (int64_t)s.H * s.d - 1;
    odd.special_value = NAN;
    if (plain) push(b, odd);

    c.op.code = PST_OP_attention_grad;
    c.op.in[4] = o;
    c.op.in[5] = lse;
    c.op.in[6] = o;
    c.op.out[0] = q;
    c.op.out[1] = c.op.out[2] = (pst_operand){0};
    if (!s.packed) c.op.out[1] = c.op.out[2] = kv;
    push(b, c);
    odd = c;
    odd.special_input = 6;
    odd.special_index = (int64_t)s.b * s.T * s.H * s.d - 1;
    odd.special_value = NAN;
    if (plain) push(b, odd);
  }
}

static void elementwise_cases(builder *b, pst_dtype dt) {
  static const int size[] = {1, 2, 3, 7, 17, 33, 65, 130, 4097, 70001};
  for (int i = 0; i < COUNT(size); i++) {
    pst_operand x = t3(dt, 1, 1, size[i]);
    for (int exact = 0; exact < 2; exact++) {
      op_case c = blank(PST_OP_gelu);
      c.op.attrs.exact = exact;
      c.op.in[0] = c.op.out[0] = x;
      push_variants(b, c, 1, 0, true);
      c.op.code = PST_OP_gelu_grad;
      c.op.in[1] = x;
      push_variants(b, c, 2, 0, false);
    }
    op_case c = blank(PST_OP_silu_gate);
    c.op.in[0] = c.op.in[1] = c.op.out[0] = x;
    push_variants(b, c, 2, 0, true);
    c.op.code = PST_OP_silu_gate_grad;
    c.op.in[2] = c.op.out[1] = x;
    push_variants(b, c, 0, 2, false);

    c = blank(PST_OP_add);
    c.op.in[0] = c.op.in[1] = c.op.out[0] = x;
    push_variants(b, c, 2, 1, true);

    for (int addend = 0; addend < 2; addend++) {
      c = blank(PST_OP_scale);
      c.op.attrs.scale = -1.7f;
      c.op.in[0] = c.op.out[0] = x;
      if (addend) c.op.in[1] = x;
      push_variants(b, c, 2, 0, true);
    }
    c = blank(PST_OP_copy);
    c.op.in[0] = c.op.out[0] = x;
    push_variants(b, c, 0, 0, true);

    c = blank(PST_OP_cast);
    c.op.in[0] = x;
    c.op.out[0] = x;
    c.op.out[0].dtype = dt == PST_F32 ? PST_BF16 : PST_F32;
    c.op.attrs.dtype = c.op.out[0].dtype;
    push_variants(b, c, 0, 0, true);
  }
  static const int shape[][3] = {{1, 1, 1}, {2, 3, 7}, {3, 17, 33}, {2, 65, 130}, {5, 1, 2}};
  for (int i = 0; i < COUNT(shape); i++)
    for (int option = 0; option < 4; option++) {
      op_case c = blank(PST_OP_dropout);
      c.op.attrs.p = option & 1 ? 0.3f : 0;
      c.op.attrs.site = 9;
      c.op.in[0] = c.op.out[0] = t3(dt, shape[i][0], shape[i][1], shape[i][2]);
      if (option & 2) c.op.in[1] = c.op.in[0];
      push_variants(b, c, 2, -1, false);
    }
}

static void slice_cases(builder *b, pst_dtype dt) {
  static const int shape[][4] = {
      {1, 1, 0, 1}, {3, 7, 2, 3}, {17, 33, 0, 17}, {65, 130, 65, 65}, {33, 65, 64, 1}};
  for (int i = 0; i < COUNT(shape); i++) {
    int64_t N = shape[i][0], C = shape[i][1], start = shape[i][2], E = shape[i][3];
    op_case c = blank(PST_OP_slice);
    c.op.attrs.start = start;
    c.op.attrs.width = E;
    c.op.in[0] = t2(dt, N, C);
    c.op.out[0] = t2(dt, N, E);
    push_variants(b, c, 0, 0, true);
    c.op.code = PST_OP_slice_grad;
    c.op.attrs.width = C;
    c.op.in[0] = t2(dt, N, E);
    c.op.out[0] = t2(dt, N, C);
    push_variants(b, c, 0, 0, true);
    c.op.in[1] = c.op.out[0];
    push(b, c);
    c.alias = 1;
    push(b, c);
  }
}

static void take_cases(builder *b, pst_dtype dt) {
  static const int shape[][3] = {{1, 1, 1}, {3, 7, 17}, {2, 65, 130}, {7, 2, 3}};
  for (int i = 0; i < COUNT(shape); i++) {
    op_case c = blank(PST_OP_take);
    c.op.in[0] = t3(dt, shape[i][0], shape[i][1], shape[i][2]);
    c.op.in[1] = t1(PST_I32, shape[i][0]);
    c.op.out[0] = t3(dt, shape[i][0], 1, shape[i][2]);
    push_variants(b, c, 0, -1, false);
  }
}

static void loss_cases(builder *b, pst_dtype dt) {
  static const int shape[][3] = {{1, 1, 1},    {2, 7, 3},     {17, 33, 7},  {33, 65, 17},
                                 {7, 130, 65}, {300, 97, 33}, {3, 5003, 16}};
  for (int i = 0; i < COUNT(shape); i++) {
    int64_t N = shape[i][0], V = shape[i][1], C = shape[i][2];
    op_case c = blank(PST_OP_cross_entropy);
    c.op.in[0] = t3(dt, 1, N, V);
    c.op.in[1] = t2(PST_I32, 1, N);
    c.op.out[0] = t2(PST_F32, 1, N);
    push_variants(b, c, 0, 0, false);
    op_case ignored = c; /* the first target is ignored: its logits do not matter */
    ignored.special_input = 0;
    ignored.special_value = NAN;
    if (N > 1) push(b, ignored);
    op_case masked = c;
    masked.special_input = 0;
    masked.special_index = N * V - 1;
    masked.special_value = -INFINITY;
    if (V > 1) push(b, masked);

    c.op.code = ignored.op.code = PST_OP_cross_entropy_grad;
    c.op.out[0] = ignored.op.out[0] = c.op.in[0];
    push_variants(b, c, 1, 0, false);
    if (N > 1) push(b, ignored);

    for (int layout = 0; layout < 2; layout++) {
      c = blank(PST_OP_linear_cross_entropy);
      c.op.attrs.w_in_out = layout;
      c.op.in[0] = t3(dt, 1, N, C);
      c.op.in[1] = layout ? t2(dt, C, V) : t2(dt, V, C);
      c.op.in[2] = t2(PST_I32, 1, N);
      c.op.out[0] = t2(PST_F32, 1, N);
      push_variants(b, c, 0, 0, false);
      c.op.code = PST_OP_linear_cross_entropy_grad;
      c.op.out[1] = c.op.in[0];
      c.op.acc[0] = c.op.in[1];
      c.op.acc[0].dtype = PST_F32;
      push_variants(b, c, 0, 0, false);
    }
  }
}

static void update_cases(builder *b, pst_dtype dt) {
  static const int size[] = {1, 3, 17, 130, 4096, 4097, 20001};
  for (int i = 0; i < COUNT(size); i++) {
    int64_t n = size[i];
    op_case c = blank(PST_OP_sum_squares);
    c.op.in[0] = t1(PST_F32, n);
    c.op.out[0] = t1(PST_F64, (n + 4095) / 4096);
    if (dt == PST_F32) push_variants(b, c, 0, 0, true);
    for (int option = 0; option < 8; option++) {
      bool master = option & 1, skip = option & 2, in_place = option & 4;
      c = blank(PST_OP_adamw);
      c.ctrl.skip = skip;
      c.alias = in_place ? 0 : -1;
      c.op.attrs = (pst_attrs){.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f};
      c.op.in[0] = c.op.out[0] = t1(dt, n);
      for (int k = 0; k < (master ? 4 : 3); k++) c.op.acc[k] = t1(PST_F32, n);
      push(b, c);
      for (int velocity = 0; velocity < 2; velocity++) {
        c = blank(PST_OP_sgd);
        c.ctrl.skip = skip;
        c.alias = in_place ? 0 : -1;
        c.op.attrs = (pst_attrs){.momentum = velocity ? 0.9f : 0, .weight_decay = 0.1f};
        c.op.in[0] = c.op.out[0] = t1(dt, n);
        c.op.acc[0] = t1(PST_F32, n);
        if (velocity) c.op.acc[1] = t1(PST_F32, n);
        if (master) c.op.acc[2] = t1(PST_F32, n);
        push(b, c);
      }
    }
  }
}

void cases_build(case_list *list, uint64_t seed) {
  builder b = {.list = list, .seed = seed};
  for (int i = 0; i < 2; i++) {
    pst_dtype dt = i ? PST_BF16 : PST_F32;
    embedding_cases(&b, dt);
    linear_cases(&b, dt);
    norm_cases(&b, dt);
    rotary_cases(&b, dt);
    attention_cases(&b, dt);
    elementwise_cases(&b, dt);
    slice_cases(&b, dt);
    take_cases(&b, dt);
    loss_cases(&b, dt);
    update_cases(&b, dt);
  }
}

void cases_free(case_list *list) {
  free(list->at);
  *list = (case_list){0};
}
