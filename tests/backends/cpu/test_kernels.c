/* The CPU's kernels: the same bits in every set with fused multiply-add and for any number of threads,
 * nothing written outside outputs, aliases as core/device/ops.h allows them, and the accuracy of the
 * elementary functions. */
#include "backends/cpu/device.h"
#include "backends/cpu/simd.h"
#include "core/base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { GUARD = 192, GUARD_BYTE = 0xa5, MAX_OPERANDS = PST_OP_MAX_IN + PST_OP_MAX_OUT + PST_OP_MAX_ACC };

/* ---- an op and its memory ---- */

typedef struct op_case {
  char name[64];
  pst_op op;
  int32_t n_ids; /* i32 operands hold ids below this, some -1 when `ignore` */
  bool ignore;
  bool positive; /* f32 statistics and second moments are positive */
  pst_ctrl ctrl;
  int alias_in; /* out[0] lies on this input; -1: on none */
} op_case;

static op_case case_new(const char *name, pst_op_code code) {
  op_case c = {.op = {.code = code, .unit = -1}, .n_ids = 1, .alias_in = -1};
  snprintf(c.name, sizeof c.name, "%s", name);
  c.ctrl = (pst_ctrl){.seed = 7,
                      .step = 3,
                      .first_sequence = 5,
                      .gradient_scale = 0.25f,
                      .lr = 0.01f,
                      .bias1 = 2.0f,
                      .bias2 = 3.0f,
                      .clip = 0.5f};
  return c;
}

static pst_operand shaped(pst_dtype dtype, int64_t a, int64_t b, int64_t d) {
  pst_operand o = {.segment = PST_SEGMENT_WORK, .dtype = (uint8_t)dtype, .dim = {1, 1, 1, 1}};
  const int64_t dims[3] = {a, b, d};
  for (int i = 0; i < 3 && dims[i] > 0; i++) o.dim[o.rank++] = dims[i];
  return o;
}
static pst_operand f32(int64_t a, int64_t b, int64_t d) {
  return shaped(PST_F32, a, b, d);
}
static pst_operand ids(int64_t a, int64_t b) {
  return shaped(PST_I32, a, b, 0);
}

static int64_t bytes_of(const pst_operand *o) {
  return pst_operand_elements(o) * (int64_t)pst_dtype_size((pst_dtype)o->dtype);
}

static int operands_of(op_case *c, pst_operand *list[MAX_OPERANDS]) {
  int n = 0;
  for (int i = 0; i < PST_OP_MAX_IN; i++)
    if (pst_operand_present(&c->op.in[i])) list[n++] = &c->op.in[i];
  for (int i = 0; i < PST_OP_MAX_ACC; i++)
    if (pst_operand_present(&c->op.acc[i])) list[n++] = &c->op.acc[i];
  for (int i = 0; i < PST_OP_MAX_OUT; i++)
    if (pst_operand_present(&c->op.out[i])) list[n++] = &c->op.out[i];
  return n;
}

/* Places all operands, guards between them; returns the bytes taken, the workspace excluded. */
static int64_t place(op_case *c) {
  pst_operand *list[MAX_OPERANDS];
  int n = operands_of(c, list);
  int64_t at = GUARD;
  for (int i = 0; i < n; i++) {
    if (c->alias_in >= 0 && list[i] == &c->op.out[0]) {
      list[i]->offset = c->op.in[c->alias_in].offset;
      continue;
    }
    list[i]->offset = at;
    at += (bytes_of(list[i]) + GUARD + PST_ALIGN - 1) / PST_ALIGN * PST_ALIGN;
  }
  return at;
}

static void fill_operand(const op_case *c, const pst_operand *o, pst_rng_key key, char *memory) {
  const int64_t n = pst_operand_elements(o);
  float *values = malloc((size_t)n * sizeof *values + 1);
  assert_non_null(values);
  pst_rng_normal(key, 0, n, 0.0f, 1.0f, values);
  for (int64_t i = 0; i < n; i++) {
    char *to = memory + o->offset + i * (int64_t)pst_dtype_size((pst_dtype)o->dtype);
    float v = c->positive ? fabsf(values[i]) : values[i];
    if (o->dtype == PST_I32) {
      int32_t id = (int32_t)(fabsf(values[i]) * 1000.0f) % c->n_ids;
      if (c->ignore && i % 5 == 2) id = -1;
      memcpy(to, &id, sizeof id);
    } else if (o->dtype == PST_BF16) {
      uint16_t h = pst_f32_to_bf16(v);
      memcpy(to, &h, sizeof h);
    } else if (o->dtype == PST_F32) {
      memcpy(to, &v, sizeof v);
    }
  }
  free(values);
}

static void fill_memory(op_case *c, char *memory, int64_t bytes) {
  memset(memory, GUARD_BYTE, (size_t)bytes);
  pst_operand *list[MAX_OPERANDS];
  int n = operands_of(c, list);
  for (int i = 0; i < n; i++) {
    bool output = list[i] >= c->op.out && list[i] < c->op.out + PST_OP_MAX_OUT;
    if (!output) fill_operand(c, list[i], pst_rng_key_make(11, (uint64_t)i), memory);
  }
}

static pst_device *open_device(const char *isa, int n_threads) {
  pst_device *device = NULL;
  pst_device_options options = {.spec = "cpu", .n_threads = n_threads, .isa = isa, .gemm = "own"};
  if (pst_driver_cpu.open(&options, &device) != PST_OK) fail_msg("open %s: %s", isa, pst_error());
  return device;
}

static bool has_set(const char *isa) {
  const pst_cpu_set *set;
  return pst__cpu_set_find(isa, &set) == PST_OK;
}

/* Runs the case on memory filled the same way every time; returns the memory after it, for free(). */
static char *run_on(pst_device *device, op_case *c, int64_t *out_bytes) {
  const pst_device_table *t = device->table;
  const int64_t bytes = place(c);
  if (t->supports(device, &c->op) != PST_OK) fail_msg("%s: %s", c->name, pst_error());
  const int64_t scratch = t->workspace(device, &c->op);
  c->op.workspace = (pst_operand){.segment = scratch ? PST_SEGMENT_WORK : PST_SEGMENT_NONE,
                                  .dtype = PST_U8,
                                  .rank = 1,
                                  .dim = {scratch, 1, 1, 1},
                                  .offset = bytes};
  char *memory = malloc((size_t)(bytes + scratch + GUARD));
  assert_non_null(memory);
  fill_memory(c, memory, bytes + scratch + GUARD);
  pst_buffer *work, *ctrl;
  assert_int_equal(t->alloc(device, bytes + scratch + GUARD, &work), PST_OK);
  assert_int_equal(t->alloc(device, (int64_t)sizeof c->ctrl, &ctrl), PST_OK);
  assert_int_equal(t->upload(device, work, 0, memory, bytes + scratch + GUARD), PST_OK);
  assert_int_equal(t->upload(device, ctrl, 0, &c->ctrl, (int64_t)sizeof c->ctrl), PST_OK);
  pst_segment work_segment = {.blocks = &work, .n_blocks = 1, .bytes = bytes};
  pst_segment ctrl_segment = {.blocks = &ctrl, .n_blocks = 1, .bytes = (int64_t)sizeof c->ctrl};
  pst_binding binding = {.base = {[PST_SEGMENT_WORK] = &work_segment, [PST_SEGMENT_CTRL] = &ctrl_segment}};
  pst_program program = {.name = "test", .ops = &c->op, .n_ops = 1};
  if (t->run(device, &program, &binding) != PST_OK) fail_msg("%s: %s", c->name, pst_error());
  assert_int_equal(t->wait(device), PST_OK);
  assert_int_equal(t->download(device, memory, work, 0, bytes + scratch + GUARD), PST_OK);
  for (int i = 0; i < GUARD; i++)
    if ((unsigned char)memory[bytes + scratch + i] != GUARD_BYTE)
      fail_msg("%s: wrote after its workspace", c->name);
  t->free(device, work);
  t->free(device, ctrl);
  *out_bytes = bytes;
  return memory;
}

static char *run_case(const char *isa, int n_threads, op_case *c, int64_t *out_bytes) {
  pst_device *device = open_device(isa, n_threads);
  char *memory = run_on(device, c, out_bytes);
  device->table->close(device);
  return memory;
}

/* Only outputs and accumulators may differ from the filling. */
static void check_untouched(op_case *c, const char *memory, int64_t bytes) {
  char *before = malloc((size_t)bytes);
  assert_non_null(before);
  fill_memory(c, before, bytes);
  pst_operand *list[MAX_OPERANDS];
  int n = operands_of(c, list);
  for (int i = 0; i < n; i++) {
    bool input = list[i] >= c->op.in && list[i] < c->op.in + PST_OP_MAX_IN;
    if (!input || (c->alias_in >= 0 && list[i] == &c->op.in[c->alias_in]))
      memcpy(before + list[i]->offset, memory + list[i]->offset, (size_t)bytes_of(list[i]));
  }
  for (int64_t i = 0; i < bytes; i++)
    if (before[i] != memory[i])
      fail_msg("%s: wrote outside its outputs, at byte %lld", c->name, (long long)i);
  free(before);
}

/* ---- the cases ---- */

#define WIDTHS 3
static const int64_t widths[WIDTHS] = {7, 67, 1030};

enum { MAX_CASES = 256 };
typedef struct case_list {
  op_case items[MAX_CASES];
  int n;
} case_list;

static op_case *push(case_list *l, const char *name, pst_op_code code) {
  assert_true(l->n < MAX_CASES);
  l->items[l->n] = case_new(name, code);
  return &l->items[l->n++];
}

static void push_linear(case_list *l, int64_t rows, int64_t in, int64_t out) {
  for (int layout = 0; layout < 2; layout++) {
    op_case *c = push(l, "linear", PST_OP_linear);
    c->op.attrs.w_in_out = layout;
    c->op.in[0] = f32(rows, in, 0);
    c->op.in[1] = layout ? f32(in, out, 0) : f32(out, in, 0);
    c->op.in[2] = f32(out, 0, 0);
    c->op.in[3] = f32(rows, out, 0);
    c->op.out[0] = f32(rows, out, 0);
    c = push(l, "linear_wgrad", PST_OP_linear_wgrad);
    c->op.attrs.w_in_out = layout;
    c->op.in[0] = f32(rows, in, 0);
    c->op.in[1] = f32(rows, out, 0);
    c->op.acc[0] = layout ? f32(in, out, 0) : f32(out, in, 0);
    c->op.acc[1] = f32(out, 0, 0);
    c = push(l, "linear_cross_entropy", PST_OP_linear_cross_entropy);
    c->op.attrs.w_in_out = layout;
    c->n_ids = (int32_t)out;
    c->ignore = true;
    c->op.in[0] = f32(rows, in, 0);
    c->op.in[1] = layout ? f32(in, out, 0) : f32(out, in, 0);
    c->op.in[2] = ids(rows, 0);
    c->op.out[0] = f32(rows, 0, 0);
    op_case *g = push(l, "linear_cross_entropy_grad", PST_OP_linear_cross_entropy_grad);
    g->op.attrs.w_in_out = layout;
    g->n_ids = (int32_t)out;
    g->ignore = true;
    memcpy(g->op.in, c->op.in, sizeof g->op.in);
    g->op.out[0] = f32(rows, 0, 0);
    g->op.out[1] = f32(rows, in, 0);
    g->op.acc[0] = c->op.in[1];
  }
}

static void push_norms(case_list *l, int64_t rows, int64_t width, bool optional) {
  op_case *c = push(l, "layer_norm", PST_OP_layer_norm);
  c->op.attrs.eps = 1e-5f;
  c->op.in[0] = f32(rows, width, 0);
  c->op.in[1] = f32(width, 0, 0);
  if (optional) c->op.in[2] = f32(width, 0, 0);
  c->op.out[0] = f32(rows, width, 0);
  c->op.out[1] = c->op.out[2] = f32(rows, 0, 0);
  c = push(l, "layer_norm_grad", PST_OP_layer_norm_grad);
  c->positive = true;
  c->op.in[0] = c->op.in[4] = f32(rows, width, 0);
  c->op.in[1] = f32(width, 0, 0);
  c->op.in[2] = c->op.in[3] = f32(rows, 0, 0);
  if (optional) c->op.in[5] = f32(rows, width, 0);
  c->op.out[0] = f32(rows, width, 0);
  c->op.acc[0] = f32(width, 0, 0);
  if (optional) c->op.acc[1] = f32(width, 0, 0);
  c = push(l, "rms_norm", PST_OP_rms_norm);
  c->op.attrs.eps = 1e-5f;
  c->op.in[0] = f32(rows, width, 0);
  c->op.in[1] = f32(width, 0, 0);
  c->op.out[0] = f32(rows, width, 0);
  c->op.out[1] = f32(rows, 0, 0);
  c = push(l, "rms_norm_grad", PST_OP_rms_norm_grad);
  c->positive = true;
  c->op.in[0] = c->op.in[3] = f32(rows, width, 0);
  c->op.in[1] = f32(width, 0, 0);
  c->op.in[2] = f32(rows, 0, 0);
  if (optional) c->op.in[4] = f32(rows, width, 0);
  c->op.out[0] = f32(rows, width, 0);
  c->op.acc[0] = f32(width, 0, 0);
}

static void push_elementwise(case_list *l, int64_t width) {
  static const struct {
    pst_op_code code;
    int n_in, n_out;
  } ops[] = {{PST_OP_gelu, 1, 1},           {PST_OP_gelu_grad, 2, 1}, {PST_OP_silu_gate, 2, 1},
             {PST_OP_silu_gate_grad, 3, 2}, {PST_OP_add, 2, 1},       {PST_OP_scale, 1, 1},
             {PST_OP_scale, 2, 1},          {PST_OP_dropout, 1, 1},   {PST_OP_dropout, 2, 1},
             {PST_OP_cast, 1, 1},           {PST_OP_copy, 1, 1}};
  for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
    for (int exact = 0; exact < (ops[i].code == PST_OP_gelu || ops[i].code == PST_OP_gelu_grad ? 2 : 1);
         exact++) {
      op_case *c = push(l, pst_op_name(ops[i].code), ops[i].code);
      c->op.attrs = (pst_attrs){.exact = exact, .scale = 1.7f, .p = 0.3f, .site = 9};
      for (int k = 0; k < ops[i].n_in; k++) c->op.in[k] = f32(3, 11, width);
      for (int k = 0; k < ops[i].n_out; k++) c->op.out[k] = f32(3, 11, width);
      if (ops[i].code == PST_OP_cast) c->op.out[0].dtype = PST_BF16;
    }
  }
}

static void push_sequence(case_list *l, int64_t width) {
  op_case *c = push(l, "embedding", PST_OP_embedding);
  c->n_ids = 13;
  c->op.in[0] = ids(3, 9);
  c->op.in[1] = f32(13, width, 0);
  c->op.in[2] = f32(12, width, 0);
  c->op.out[0] = f32(3, 9, width);
  c = push(l, "embedding_grad", PST_OP_embedding_grad);
  c->n_ids = 13;
  c->op.in[0] = ids(3, 9);
  c->op.in[1] = f32(3, 9, width);
  c->op.acc[0] = f32(13, width, 0);
  c->op.acc[1] = f32(12, width, 0);
  c = push(l, "take", PST_OP_take);
  c->n_ids = 9;
  c->op.in[0] = f32(3, 9, width);
  c->op.in[1] = ids(3, 0);
  c->op.out[0] = f32(3, width, 0);
  c = push(l, "slice", PST_OP_slice);
  c->op.attrs.start = 3;
  c->op.in[0] = f32(5, 7, width + 5);
  c->op.out[0] = f32(5, 7, width);
  for (int addend = 0; addend < 2; addend++) {
    c = push(l, "slice_grad", PST_OP_slice_grad);
    c->op.attrs.start = 3;
    c->op.in[0] = f32(5, 7, width);
    if (addend) c->op.in[1] = f32(5, 7, width + 5);
    c->op.out[0] = f32(5, 7, width + 5);
    c = push(l, "rotary", PST_OP_rotary);
    c->op.attrs = (pst_attrs){.head_dim = (int32_t)(2 * width), .theta = 10000.0f, .inverse = addend};
    if (width > 512) c->op.attrs.head_dim = 1024;
    c->op.in[0] = c->op.out[0] = f32(2, 70, 3 * c->op.attrs.head_dim);
    if (addend) c->op.in[1] = c->op.in[0];
  }
  c = push(l, "cross_entropy", PST_OP_cross_entropy);
  c->n_ids = (int32_t)width;
  c->ignore = true;
  c->op.in[0] = f32(31, width, 0);
  c->op.in[1] = ids(31, 0);
  c->op.out[0] = f32(31, 0, 0);
  c = push(l, "cross_entropy_grad", PST_OP_cross_entropy_grad);
  c->n_ids = (int32_t)width;
  c->ignore = true;
  c->op.in[0] = c->op.out[0] = f32(31, width, 0);
  c->op.in[1] = ids(31, 0);
}

static void push_optim(case_list *l, int64_t n) {
  op_case *c = push(l, "sum_squares", PST_OP_sum_squares);
  c->op.in[0] = f32(n, 0, 0);
  c->op.out[0] = shaped(PST_F64, (n + 4095) / 4096, 0, 0);
  for (int bf16 = 0; bf16 < 2; bf16++) {
    for (uint32_t skip = 0; skip < 2; skip++) {
      c = push(l, "adamw", PST_OP_adamw);
      c->positive = true;
      c->ctrl.skip = skip;
      c->op.attrs = (pst_attrs){.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f};
      c->op.in[0] = c->op.out[0] = shaped(bf16 ? PST_BF16 : PST_F32, n, 0, 0);
      for (int i = 0; i < 3 + bf16; i++) c->op.acc[i] = f32(n, 0, 0);
      c = push(l, "sgd", PST_OP_sgd);
      c->ctrl.skip = skip;
      c->op.attrs = (pst_attrs){.momentum = 0.9f, .weight_decay = 0.1f};
      c->op.in[0] = c->op.out[0] = shaped(bf16 ? PST_BF16 : PST_F32, n, 0, 0);
      c->op.acc[0] = f32(n, 0, 0);
      if (bf16) c->op.acc[1] = f32(n, 0, 0);
    }
  }
}

static case_list *cases_make(void) {
  case_list *l = calloc(1, sizeof *l);
  assert_non_null(l);
  push_linear(l, 37, 19, 23);
  push_linear(l, 150, 65, 130);
  for (int w = 0; w < WIDTHS; w++) {
    push_norms(l, 133, widths[w], w % 2 == 0);
    push_elementwise(l, widths[w]);
    push_sequence(l, widths[w]);
  }
  push_optim(l, 20011);
  /* the same once more with bf16 where it may stand */
  const int n = l->n;
  for (int i = 0; i < n; i++) {
    const op_case *from = &l->items[i];
    if (pst_operand_width(&from->op.in[0]) > 70 || from->op.code >= PST_OP_sum_squares) continue;
    if (from->op.code == PST_OP_cast) continue;
    op_case *c = push(l, from->name, from->op.code);
    *c = *from;
    strncat(c->name, " bf16", sizeof c->name - strlen(c->name) - 1);
    const pst_op_code k = c->op.code;
    const bool ln_grad = k == PST_OP_layer_norm_grad, rms_grad = k == PST_OP_rms_norm_grad;
    for (int a = 0; a < PST_OP_MAX_IN; a++)
      if (c->op.in[a].dtype == PST_F32 && !(ln_grad && (a == 2 || a == 3)) && !(rms_grad && a == 2))
        c->op.in[a].dtype = PST_BF16;
    const bool loss = k == PST_OP_cross_entropy || k == PST_OP_linear_cross_entropy;
    const int first = k == PST_OP_linear_cross_entropy_grad;
    if (!loss) c->op.out[first].dtype = PST_BF16;
    if (k == PST_OP_silu_gate_grad) c->op.out[1].dtype = PST_BF16;
  }
  return l;
}

/* ---- tests ---- */

static void same_bits(void **state) {
  case_list *l = cases_make();
  int compared = 0;
  static const struct {
    const char *isa, *base;
    int n_threads;
  } runs[] = {{"baseline", "baseline", 2},
              {"baseline", "baseline", 3},
              {"v3", "v3", 2},
              {"v3", "v3", 3},
              {"v4", "v3", 1},
              {"v4", "v3", 2},
              {"v4", "v3", 3}};
  const char *base_isa = NULL;
  char **first = calloc(MAX_CASES, sizeof *first);
  assert_non_null(first);
  for (size_t r = 0; r < sizeof runs / sizeof runs[0]; r++) {
    if (!has_set(runs[r].isa)) {
      print_message("set %s: %s\n", runs[r].isa, pst_error());
      continue;
    }
    if (!base_isa || strcmp(base_isa, runs[r].base) != 0) {
      pst_device *one = open_device(runs[r].base, 1);
      base_isa = runs[r].base;
      for (int i = 0; i < l->n; i++) {
        int64_t bytes;
        free(first[i]);
        first[i] = run_on(one, &l->items[i], &bytes);
        check_untouched(&l->items[i], first[i], bytes);
      }
      one->table->close(one);
    }
    pst_device *device = open_device(runs[r].isa, runs[r].n_threads);
    for (int i = 0; i < l->n; i++) {
      int64_t bytes;
      char *got = run_on(device, &l->items[i], &bytes);
      if (memcmp(got, first[i], (size_t)bytes) != 0)
        fail_msg("case %d %s: %s with %d threads differs from %s with 1", i, l->items[i].name, runs[r].isa,
                 runs[r].n_threads, runs[r].base);
      compared++;
      free(got);
    }
    device->table->close(device);
  }
  for (int i = 0; i < l->n; i++) free(first[i]);
  free(first);
  assert_true(compared >= 2 * l->n);
  free(l);
}

static void aliases(void **state) {
  static const int flags[PST_OP_COUNT] = {
#define OP_FLAGS(name, n_in, n_out, n_acc, op_flags) op_flags,
      PST_OP_LIST(OP_FLAGS)
#undef OP_FLAGS
  };
  static const int n_inputs[PST_OP_COUNT] = {
#define OP_INPUTS(name, n_in, n_out, n_acc, op_flags) n_in,
      PST_OP_LIST(OP_INPUTS)
#undef OP_INPUTS
  };
  case_list *l = cases_make();
  int compared = 0;
  pst_device *device = open_device("auto", 2);
  for (int k = 0; k < l->n; k++) {
    op_case *c = &l->items[k];
    for (int i = 0; i < n_inputs[c->op.code]; i++) {
      const bool addend = (flags[c->op.code] & PST_OP_ADDEND) && i == n_inputs[c->op.code] - 1;
      if (!addend && !(flags[c->op.code] & PST_OP_IN_PLACE)) continue;
      const pst_operand *in = &c->op.in[i], *out = &c->op.out[0];
      if (!pst_operand_present(in) || in->dtype != out->dtype ||
          memcmp(in->dim, out->dim, sizeof in->dim) != 0)
        continue;
      int64_t bytes, alias_bytes;
      c->alias_in = -1;
      char *apart = run_on(device, c, &bytes);
      const int64_t at = c->op.out[0].offset;
      c->alias_in = i;
      char *alias = run_on(device, c, &alias_bytes);
      if (memcmp(apart + at, alias + c->op.out[0].offset, (size_t)bytes_of(out)) != 0)
        fail_msg("case %d %s: out[0] on in[%d] differs", k, c->name, i);
      check_untouched(c, alias, alias_bytes);
      compared++;
      free(apart);
      free(alias);
    }
  }
  device->table->close(device);
  free(l);
  assert_true(compared > 40);
}

/* The largest error of `got` in units of fp32's spacing at the wanted value. */
static double ulps(float got, double wanted) {
  if (isnan(wanted)) return isnan(got) ? 0.0 : 1e9;
  if ((double)got == wanted || (float)wanted == got) return 0.0;
  int e;
  frexp(wanted, &e);
  double unit = ldexp(1.0, e - 24 < -149 ? -149 : e - 24);
  return fabs((double)got - wanted) / unit;
}

static void functions_are_accurate(void **state) {
  double worst_exp = 0, worst_log = 0, worst_normal = 0;
  for (int i = 0; i < 400000; i++) {
    float x = -105.0f + (float)i * (195.0f / 400000.0f);
    double u = ulps(v16_first(v16_exp(v16_set1(x))),
                    (double)(float)exp((double)x) == INFINITY ? INFINITY : exp((double)x));
    if (u > worst_exp) worst_exp = u;
    float y = ldexpf(1.0f + (float)(i % 997) / 997.0f, i % 250 - 140);
    u = ulps(v16_first(v16_log(v16_set1(y))), log((double)y));
    if (u > worst_log) worst_log = u;
    float z = -6.0f + (float)i * (12.0f / 400000.0f);
    v16 density;
    double wanted = 0.5 * erfc(-(double)z / sqrt(2.0));
    double error = fabs((double)v16_first(v16_normal(v16_set1(z), &density)) - wanted) / wanted;
    if (error > worst_normal) worst_normal = error;
  }
  print_message("exp %.2f ulp, log %.2f ulp, normal %.2g relative\n", worst_exp, worst_log, worst_normal);
  assert_true(worst_exp <= 1.5);
  assert_true(worst_log <= 2.5);
  assert_true(worst_normal <= 3e-6);
  assert_true(v16_first(v16_exp(v16_set1(-INFINITY))) == 0.0f);
  assert_true(v16_first(v16_exp(v16_set1(INFINITY))) == INFINITY);
  assert_true(isnan(v16_first(v16_exp(v16_set1(NAN)))));
  assert_true(v16_first(v16_log(v16_set1(0.0f))) == -INFINITY);
  assert_true(v16_first(v16_log(v16_set1(INFINITY))) == INFINITY);
  assert_true(isnan(v16_first(v16_log(v16_set1(-1.0f)))));
  assert_true(isnan(v16_first(v16_log(v16_set1(NAN)))));
}

/* Activations of every set against libm in double. */
static double gelu_wanted(double x, bool exact, bool grad) {
  const double k = sqrt(2.0 / acos(-1.0));
  if (exact) {
    double share = 0.5 * erfc(-x / sqrt(2.0));
    return grad ? share + x * exp(-0.5 * x * x) / sqrt(2.0 * acos(-1.0)) : x * share;
  }
  double u = k * (x + 0.044715 * x * x * x), s = 1.0 / (1.0 + exp(-2.0 * u));
  return grad ? s + x * s * (1.0 - s) * 2.0 * k * (1.0 + 3.0 * 0.044715 * x * x) : x * s;
}

static void activations_are_accurate(void **state) {
  static const char *const sets[] = {"baseline", "v3", "v4"};
  for (int s = 0; s < 3; s++) {
    if (!has_set(sets[s])) {
      print_message("set %s: %s\n", sets[s], pst_error());
      continue;
    }
    for (int kind = 0; kind < 4; kind++) {
      const bool exact = kind & 1, grad = kind & 2;
      op_case c = case_new("gelu", grad ? PST_OP_gelu_grad : PST_OP_gelu);
      c.op.attrs.exact = exact;
      c.op.in[0] = c.op.out[0] = f32(20000, 0, 0);
      if (grad) c.op.in[1] = f32(20000, 0, 0);
      int64_t bytes;
      char *memory = run_case(sets[s], 1, &c, &bytes);
      const float *x = (const float *)(void *)(memory + c.op.in[0].offset);
      const float *dy = grad ? (const float *)(void *)(memory + c.op.in[1].offset) : NULL;
      const float *y = (const float *)(void *)(memory + c.op.out[0].offset);
      double worst = 0;
      for (int i = 0; i < 20000; i++) {
        double wanted = gelu_wanted((double)x[i], exact, grad) * (grad ? (double)dy[i] : 1.0);
        double error = fabs((double)y[i] - wanted) / (fabs(wanted) + (grad ? fabs((double)dy[i]) : 1e-30));
        if (error > worst) worst = error;
      }
      if (worst > 2e-6) fail_msg("%s gelu kind %d: relative error %g", sets[s], kind, worst);
      free(memory);
    }
  }
}

/* Dropout keeps what the documented counters say. */
static void dropout_draws_as_documented(void **state) {
  op_case c = case_new("dropout", PST_OP_dropout);
  c.op.attrs = (pst_attrs){.p = 0.3f, .site = 21};
  c.op.in[0] = c.op.out[0] = f32(3, 5, 1001);
  int64_t bytes, kept = 0;
  char *memory = run_case("auto", 2, &c, &bytes);
  const float *x = (const float *)(void *)(memory + c.op.in[0].offset);
  const float *y = (const float *)(void *)(memory + c.op.out[0].offset);
  pst_rng_key key = pst_rng_key_make(c.ctrl.seed, c.ctrl.step);
  for (int64_t i = 0; i < 3 * 5005; i++) {
    uint64_t e = (uint64_t)(i % 5005);
    uint32_t words[4], counter[4] = {(uint32_t)(e / 4), (uint32_t)(e / 4 >> 32),
                                     (uint32_t)(c.ctrl.first_sequence + i / 5005), c.op.attrs.site};
    pst_rng_philox(key, counter, words);
    bool keep = pst_rng_uniform(words[e % 4]) >= c.op.attrs.p;
    float wanted = keep ? x[i] * (1.0f / (1.0f - c.op.attrs.p)) : 0.0f;
    if (y[i] != wanted) fail_msg("element %lld is %g, wanted %g", (long long)i, (double)y[i], (double)wanted);
    kept += keep;
  }
  assert_in_range(kept, 10200, 10800);
  free(memory);
}

/* The chunked head against logits formed whole, with enough rows for several chunks. */
static void head_in_chunks(void **state) {
  enum { ROWS = 1100, IN = 24, VOCAB = 40 };
  op_case c = case_new("linear_cross_entropy_grad", PST_OP_linear_cross_entropy_grad);
  c.n_ids = VOCAB;
  c.ignore = true;
  c.op.in[0] = c.op.out[1] = f32(ROWS, IN, 0);
  c.op.in[1] = c.op.acc[0] = f32(VOCAB, IN, 0);
  c.op.in[2] = ids(ROWS, 0);
  c.op.out[0] = f32(ROWS, 0, 0);
  int64_t bytes;
  char *memory = run_case("auto", 2, &c, &bytes), *before = malloc((size_t)bytes);
  assert_non_null(before);
  fill_memory(&c, before, bytes);
  const float *x = (const float *)(void *)(memory + c.op.in[0].offset);
  const float *w = (const float *)(void *)(memory + c.op.in[1].offset);
  const int32_t *targets = (const int32_t *)(void *)(memory + c.op.in[2].offset);
  const float *loss = (const float *)(void *)(memory + c.op.out[0].offset);
  const float *dx = (const float *)(void *)(memory + c.op.out[1].offset);
  const float *dw = (const float *)(void *)(memory + c.op.acc[0].offset);
  const float *dw_before = (const float *)(void *)(before + c.op.acc[0].offset);
  static double wanted_dw[VOCAB * IN];
  for (int i = 0; i < VOCAB * IN; i++) wanted_dw[i] = (double)dw_before[i];
  for (int n = 0; n < ROWS; n++) {
    double logits[VOCAB], sum = 0, wanted_dx[IN] = {0};
    for (int v = 0; v < VOCAB; v++) {
      logits[v] = 0;
      for (int i = 0; i < IN; i++) logits[v] += (double)x[n * IN + i] * (double)w[v * IN + i];
      sum += exp(logits[v]);
    }
    double wanted_loss = targets[n] < 0 ? 0.0 : log(sum) - logits[targets[n]];
    assert_true(fabs((double)loss[n] - wanted_loss) < 1e-5 * (1.0 + wanted_loss));
    for (int v = 0; v < VOCAB && targets[n] >= 0; v++) {
      double d = (exp(logits[v]) / sum - (v == targets[n])) * (double)c.ctrl.gradient_scale;
      for (int i = 0; i < IN; i++) {
        wanted_dx[i] += d * (double)w[v * IN + i];
        wanted_dw[v * IN + i] += d * (double)x[n * IN + i];
      }
    }
    for (int i = 0; i < IN; i++) assert_true(fabs((double)dx[n * IN + i] - wanted_dx[i]) < 1e-5);
  }
  for (int i = 0; i < VOCAB * IN; i++) assert_true(fabs((double)dw[i] - wanted_dw[i]) < 1e-4);
  free(memory);
  free(before);
}

static void rotary_turns_pairs(void **state) {
  op_case c = case_new("rotary", PST_OP_rotary);
  c.op.attrs = (pst_attrs){.head_dim = 48, .theta = 10000.0f};
  c.op.in[0] = c.op.out[0] = f32(1, 3000, 96);
  int64_t bytes;
  char *memory = run_case("auto", 1, &c, &bytes);
  const float *x = (const float *)(void *)(memory + c.op.in[0].offset);
  const float *y = (const float *)(void *)(memory + c.op.out[0].offset);
  for (int t = 0; t < 3000; t++) {
    for (int i = 0; i < 24; i++) {
      float frequency = 1.0f / (float)pow(10000.0, (double)((float)(2 * i) / 48.0f));
      double angle = (double)((float)t * frequency);
      for (int head = 0; head < 2; head++) {
        double a = (double)x[t * 96 + head * 48 + i], b = (double)x[t * 96 + head * 48 + i + 24];
        double p = a * cos(angle) - b * sin(angle), q = b * cos(angle) + a * sin(angle);
        assert_true(fabs((double)y[t * 96 + head * 48 + i] - p) < 1e-6);
        assert_true(fabs((double)y[t * 96 + head * 48 + i + 24] - q) < 1e-6);
      }
    }
  }
  free(memory);
}

static void adamw_steps_and_clears(void **state) {
  enum { N = 1000 };
  op_case c = case_new("adamw", PST_OP_adamw);
  c.positive = true;
  c.op.attrs = (pst_attrs){.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f};
  c.op.in[0] = c.op.out[0] = f32(N, 0, 0);
  for (int i = 0; i < 3; i++) c.op.acc[i] = f32(N, 0, 0);
  int64_t bytes;
  char *memory = run_case("auto", 1, &c, &bytes), *before = malloc((size_t)bytes);
  assert_non_null(before);
  fill_memory(&c, before, bytes);
  for (int i = 0; i < N; i++) {
    double old[4], now[4];
    const pst_operand *from[4] = {&c.op.in[0], &c.op.acc[0], &c.op.acc[1], &c.op.acc[2]};
    const pst_operand *to[4] = {&c.op.out[0], &c.op.acc[0], &c.op.acc[1], &c.op.acc[2]};
    for (int k = 0; k < 4; k++) {
      old[k] = (double)((const float *)(void *)(before + from[k]->offset))[i];
      now[k] = (double)((const float *)(void *)(memory + to[k]->offset))[i];
    }
    double g = old[1] * 0.5, m = 0.9 * old[2] + 0.1 * g, v = 0.95 * old[3] + 0.05 * g * g;
    double p = old[0] - 0.01 * 0.1 * old[0] - 0.01 * (m * 2.0) / (sqrt(v * 3.0) + 1e-8);
    assert_true(fabs(now[0] - p) < 1e-5 * (1.0 + fabs(p)) && now[1] == 0.0);
    assert_true(fabs(now[2] - m) < 1e-6 * (1.0 + fabs(m)) && fabs(now[3] - v) < 1e-6 * (1.0 + fabs(v)));
  }
  free(memory);
  free(before);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(functions_are_accurate),
      cmocka_unit_test(activations_are_accurate),
      cmocka_unit_test(dropout_draws_as_documented),
      cmocka_unit_test(rotary_turns_pairs),
      cmocka_unit_test(head_in_chunks),
      cmocka_unit_test(adamw_steps_and_clears),
      cmocka_unit_test(same_bits),
      cmocka_unit_test(aliases),
  };
  return cmocka_run_group_tests_name("cpu kernels", tests, NULL, NULL);
}
