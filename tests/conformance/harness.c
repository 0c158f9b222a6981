#include "tests/conformance/harness.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 128, PATTERN = 0xA5 };

/* One segment on the host: what is uploaded, and which bytes the op may change. */
typedef struct image {
  uint8_t *start, *after, *writable;
  int64_t bytes, room;
  pst_buffer *buffer;
  pst_segment segment;
} image;

typedef struct stand {
  pst_device *device;
  image image[PST_SEGMENT_COUNT];
  pst_op op; /* the case's, with operands placed */
  pst_binding binding;
} stand;

static void *zeroed(int64_t bytes) {
  void *p = calloc(1, (size_t)(bytes > 0 ? bytes : 1));
  if (!p) {
    fprintf(stderr, "conformance: no memory for %" PRId64 " bytes\n", bytes);
    exit(3);
  }
  return p;
}

static int64_t operand_bytes(const pst_operand *o) {
  return pst_operand_elements(o) * (int64_t)pst_dtype_size((pst_dtype)o->dtype);
}

/* Room for `bytes` with guards in a segment; their offset. */
static int64_t reserve(stand *s, pst_segment_kind kind, int64_t bytes, bool writable) {
  image *m = &s->image[kind];
  int64_t offset = (m->bytes + GUARD + PST_ALIGN - 1) / PST_ALIGN * PST_ALIGN, end = offset + bytes + GUARD;
  if (end > m->room) {
    int64_t room = 2 * end;
    uint8_t *start = zeroed(room), *mask = zeroed(room);
    memset(start, PATTERN, (size_t)room);
    if (m->bytes) {
      memcpy(start, m->start, (size_t)m->bytes);
      memcpy(mask, m->writable, (size_t)m->bytes);
    }
    free(m->start);
    free(m->writable);
    m->start = start;
    m->writable = mask;
    m->room = room;
  }
  m->bytes = end;
  if (writable) memset(m->writable + offset, 1, (size_t)bytes);
  return offset;
}

static void encode(const pst_operand *o, const double *x, uint8_t *to) {
  for (int64_t i = 0, n = pst_operand_elements(o); i < n; i++) {
    float f = (float)x[i];
    int32_t whole = o->dtype == PST_I32 ? (int32_t)x[i] : 0;
    uint16_t half = pst_f32_to_bf16(f);
    switch (o->dtype) {
    case PST_F32:
      memcpy(to + 4 * i, &f, 4);
      break;
    case PST_BF16:
      memcpy(to + 2 * i, &half, 2);
      break;
    case PST_I32:
      memcpy(to + 4 * i, &whole, 4);
      break;
    default:
      memcpy(to + 8 * i, &x[i], 8);
    }
  }
}

static double decode(const pst_operand *o, const uint8_t *from, int64_t i) {
  float f;
  uint16_t half;
  double d;
  switch (o->dtype) {
  case PST_F32:
    memcpy(&f, from + 4 * i, 4);
    return (double)f;
  case PST_BF16:
    memcpy(&half, from + 2 * i, 2);
    return (double)pst_bf16_to_f32(half);
  default:
    memcpy(&d, from + 8 * i, 8);
    return d;
  }
}

static void place(stand *s, pst_operand *o, pst_segment_kind kind, const double *x, bool writable) {
  o->segment = (uint8_t)kind;
  o->offset = reserve(s, kind, operand_bytes(o), writable);
  uint8_t *at = s->image[kind].start + o->offset;
  if (x)
    encode(o, x, at);
  else
    memset(at, 0xff, (size_t)operand_bytes(o)); /* a NaN in every float dtype */
}

static void place_all(stand *s, const op_case *c, const case_values *v) {
  bool update = c->op.code == PST_OP_adamw || c->op.code == PST_OP_sgd;
  s->op = c->op;
  for (int i = 0; i < PST_OP_MAX_IN; i++) {
    pst_operand *o = &s->op.in[i];
    if (!pst_operand_present(o)) continue;
    pst_segment_kind kind = update                ? PST_SEGMENT_PARAM
                            : o->dtype == PST_I32 ? PST_SEGMENT_INPUT
                                                  : PST_SEGMENT_STASH;
    place(s, o, kind, v->in[i], c->alias == i);
  }
  for (int i = 0; i < PST_OP_MAX_OUT; i++) {
    pst_operand *o = &s->op.out[i];
    if (!pst_operand_present(o)) continue;
    if (i == 0 && c->alias >= 0) {
      o->segment = s->op.in[c->alias].segment;
      o->offset = s->op.in[c->alias].offset;
    } else {
      place(s, o, update ? PST_SEGMENT_PARAM_NEXT : PST_SEGMENT_OUT, NULL, true);
    }
    if (update) o->segment = PST_SEGMENT_PARAM_NEXT;
  }
  for (int i = 0; i < PST_OP_MAX_ACC; i++)
    if (pst_operand_present(&s->op.acc[i])) place(s, &s->op.acc[i], PST_SEGMENT_GRAD, v->acc[i], true);
  /* the control block lies at the segment's start, where the guard of an empty operand makes the room */
  _Static_assert(sizeof(pst_ctrl) <= GUARD, "the guard is too small to hold a pst_ctrl");
  reserve(s, PST_SEGMENT_CTRL, 0, false);
  memcpy(s->image[PST_SEGMENT_CTRL].start, &c->ctrl, sizeof c->ctrl);
}

static pst_status prepare(stand *s) {
  int64_t scratch = s->device->table->workspace(s->device, &s->op);
  if (scratch > 0) {
    s->op.workspace =
        (pst_operand){.segment = PST_SEGMENT_WORK, .dtype = PST_U8, .rank = 1, .dim = {scratch, 1, 1, 1}};
    s->op.workspace.offset = reserve(s, PST_SEGMENT_WORK, scratch, true);
  }
  for (int k = 0; k < PST_SEGMENT_COUNT; k++) {
    image *m = &s->image[k];
    if (!m->bytes) continue;
    PST_TRY(s->device->table->alloc(s->device, m->bytes, &m->buffer));
    m->after = zeroed(m->bytes);
    m->segment = (pst_segment){.blocks = &m->buffer, .n_blocks = 1, .bytes = m->bytes};
    s->binding.base[k] = &m->segment;
  }
  /* an update in place: both names of the parameters are one memory */
  if (!s->image[PST_SEGMENT_PARAM_NEXT].bytes && s->image[PST_SEGMENT_PARAM].bytes)
    s->binding.base[PST_SEGMENT_PARAM_NEXT] = s->binding.base[PST_SEGMENT_PARAM];
  return PST_OK;
}

static pst_status run_once(stand *s) {
  const pst_device_table *t = s->device->table;
  for (int k = 0; k < PST_SEGMENT_COUNT; k++)
    if (s->image[k].buffer)
      PST_TRY(t->upload(s->device, s->image[k].buffer, 0, s->image[k].start, s->image[k].bytes));
  pst_program program = {.name = "case", .ops = &s->op, .n_ops = 1};
  PST_TRY(t->run(s->device, &program, &s->binding));
  PST_TRY(t->wait(s->device));
  for (int k = 0; k < PST_SEGMENT_COUNT; k++)
    if (s->image[k].buffer)
      PST_TRY(t->download(s->device, s->image[k].after, s->image[k].buffer, 0, s->image[k].bytes));
  return PST_OK;
}

static const image *image_of(const stand *s, const pst_operand *o) {
  const image *m = &s->image[o->segment];
  return o->segment == PST_SEGMENT_PARAM_NEXT && !m->bytes ? &s->image[PST_SEGMENT_PARAM] : m;
}

static bool wrong(harness_result *r, const char *format, ...) PST_PRINTF(2, 3);
static bool wrong(harness_result *r, const char *format, ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(r->message, sizeof r->message, format, list);
  va_end(list);
  r->verdict = HARNESS_WRONG;
  return false;
}

static bool guards_intact(const stand *s, harness_result *r) {
  for (int k = 0; k < PST_SEGMENT_COUNT; k++) {
    const image *m = &s->image[k];
    for (int64_t i = 0; i < m->bytes; i++)
      if (!m->writable[i] && m->after[i] != m->start[i])
        return wrong(r,
                     "byte %" PRId64 " of segment %d was not the op's to write: seen 0x%02x, wanted 0x%02x",
                     i, k, m->after[i], m->start[i]);
  }
  return true;
}

/* Non-finite elements must agree in kind; over the others max|a - b| / (floor + max|b|) is the error. */
static bool operand_agrees(const stand *s, const char *label, int index, const pst_operand *o,
                           const double *want, const op_case *c, harness_result *r) {
  const uint8_t *at = image_of(s, o)->after + o->offset;
  double worst = 0, scale = 0;
  int64_t where = 0, n = pst_operand_elements(o);
  for (int64_t i = 0; i < n; i++) {
    double a = decode(o, at, i), b = want[i];
    if (!isfinite(b) || !isfinite(a)) {
      if (isnan(a) != isnan(b) || (!isnan(b) && a != b))
        return wrong(r, "%s[%d] element %" PRId64 ": seen %g, wanted %g", label, index, i, a, b);
      continue;
    }
    if (fabs(b) > scale) scale = fabs(b);
    if (fabs(a - b) > worst) {
      worst = fabs(a - b);
      where = i;
    }
  }
  double error = worst / (c->floor + scale);
  if (error > r->error) r->error = error;
  if (error > c->tolerance)
    return wrong(r,
                 "%s[%d] element %" PRId64 " of %" PRId64 ": seen %.9g, wanted %.9g, error %.3g above %.3g",
                 label, index, where, n, decode(o, at, where), want[where], error, c->tolerance);
  return true;
}

static void collect(const stand *s, const pst_operand *o, harness_result *r) {
  if (!pst_operand_present(o)) return;
  memcpy(r->bits + r->n_bits, image_of(s, o)->after + o->offset, (size_t)operand_bytes(o));
  r->n_bits += operand_bytes(o);
}

static void collect_all(const stand *s, harness_result *r) {
  int64_t bytes = 0;
  for (int i = 0; i < PST_OP_MAX_OUT; i++)
    if (pst_operand_present(&s->op.out[i])) bytes += operand_bytes(&s->op.out[i]);
  for (int i = 0; i < PST_OP_MAX_ACC; i++)
    if (pst_operand_present(&s->op.acc[i])) bytes += operand_bytes(&s->op.acc[i]);
  r->bits = zeroed(bytes);
  r->n_bits = 0;
  for (int i = 0; i < PST_OP_MAX_OUT; i++) collect(s, &s->op.out[i], r);
  for (int i = 0; i < PST_OP_MAX_ACC; i++) collect(s, &s->op.acc[i], r);
}

static bool agrees(const stand *s, const op_case *c, const case_values *v, harness_result *r) {
  for (int i = 0; i < PST_OP_MAX_OUT; i++)
    if (v->out[i] && !operand_agrees(s, "out", i, &s->op.out[i], v->out[i], c, r)) return false;
  for (int i = 0; i < PST_OP_MAX_ACC; i++)
    if (v->acc[i] && !operand_agrees(s, "acc", i, &s->op.acc[i], v->acc_result[i], c, r)) return false;
  return true;
}

void harness_run(pst_device *device, const op_case *c, const case_values *values,
                 harness_result *out_result) {
  harness_result r = {.verdict = HARNESS_RIGHT}, again = {.verdict = HARNESS_RIGHT};
  stand s = {.device = device};
  place_all(&s, c, values);
  pst_status st = device->table->supports(device, &s.op);
  if (st != PST_OK) {
    r.verdict = HARNESS_UNSUPPORTED;
    snprintf(r.message, sizeof r.message, "%s", pst_error());
    goto done;
  }
  PST_GOTO(st, prepare(&s), failed);
  PST_GOTO(st, run_once(&s), failed);
  collect_all(&s, &r);
  if (!guards_intact(&s, &r) || !agrees(&s, c, values, &r)) goto done;
  PST_GOTO(st, run_once(&s), failed);
  collect_all(&s, &again);
  if (memcmp(r.bits, again.bits, (size_t)r.n_bits)) wrong(&r, "a second run gave other bits");
  goto done;
failed:
  wrong(&r, "%s: %s", pst_status_name(st), pst_error());
done:
  free(again.bits);
  for (int k = 0; k < PST_SEGMENT_COUNT; k++) {
    if (s.image[k].buffer) device->table->free(device, s.image[k].buffer);
    free(s.image[k].start);
    free(s.image[k].after);
    free(s.image[k].writable);
  }
  *out_result = r;
}
