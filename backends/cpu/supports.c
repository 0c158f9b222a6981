/* Which ops the CPU can do: what each operand may be, by op. */
#include "backends/cpu/device.h"

#include <stdio.h>
#include <string.h>

/* One letter per operand, in the order of core/device/ops.h; a capital one must be present.
 * f: f32 or bf16;  s: f32;  i: i32;  d: f64;  a: any dtype, in and out alike;  p: a parameter, in and out
 * alike */
static const struct {
  const char *in, *out, *acc;
} operands[PST_OP_COUNT] = {
    [PST_OP_embedding] = {"IFf", "F", ""},
    [PST_OP_embedding_grad] = {"IF", "", "Ss"},
    [PST_OP_take] = {"FI", "F", ""},
    [PST_OP_linear] = {"FFff", "F", ""},
    [PST_OP_linear_wgrad] = {"FF", "", "Ss"},
    [PST_OP_layer_norm] = {"FFf", "FSS", ""},
    [PST_OP_layer_norm_grad] = {"FFSSFf", "F", "Ss"},
    [PST_OP_rms_norm] = {"FF", "FS", ""},
    [PST_OP_rms_norm_grad] = {"FFSFf", "F", "S"},
    [PST_OP_rotary] = {"Ff", "F", ""},
    [PST_OP_attention] = {"Fffi", "FS", ""},
    [PST_OP_attention_grad] = {"FffiFSF", "Fff", ""},
    [PST_OP_gelu] = {"F", "F", ""},
    [PST_OP_gelu_grad] = {"FF", "F", ""},
    [PST_OP_silu_gate] = {"FF", "F", ""},
    [PST_OP_silu_gate_grad] = {"FFF", "FF", ""},
    [PST_OP_add] = {"FF", "F", ""},
    [PST_OP_scale] = {"Ff", "F", ""},
    [PST_OP_dropout] = {"Ff", "F", ""},
    [PST_OP_cast] = {"F", "F", ""},
    [PST_OP_copy] = {"A", "A", ""},
    [PST_OP_slice] = {"F", "F", ""},
    [PST_OP_slice_grad] = {"Ff", "F", ""},
    [PST_OP_cross_entropy] = {"FI", "S", ""},
    [PST_OP_cross_entropy_grad] = {"FI", "F", ""},
    [PST_OP_linear_cross_entropy] = {"FFI", "S", ""},
    [PST_OP_linear_cross_entropy_grad] = {"FFI", "SF", "S"},
    [PST_OP_sum_squares] = {"S", "D", ""},
    [PST_OP_adamw] = {"P", "P", "SSSs"},
    [PST_OP_sgd] = {"P", "P", "Sss"},
};

static pst_status refuse(const pst_op *op, const pst_operand *o, const char *what, int i,
                         const char *wanted) {
  return pst_fail(PST_UNSUPPORTED,
                  "cpu: %s: %s[%d] is %s of shape [%lld, %lld, %lld, %lld] (rank %d), wanted %s, unit %d",
                  pst_op_name(op->code), what, i, pst_dtype_name((pst_dtype)o->dtype), (long long)o->dim[0],
                  (long long)o->dim[1], (long long)o->dim[2], (long long)o->dim[3], o->rank, wanted,
                  op->unit);
}

static const char *wanted_dtype(char letter, const pst_op *op, const pst_operand *o) {
  switch (letter) {
  case 'f':
  case 'p':
    if (o->dtype != PST_F32 && o->dtype != PST_BF16) return "f32 or bf16";
    return letter == 'p' && o->dtype != op->in[0].dtype ? "the dtype of in[0]" : NULL;
  case 's':
    return o->dtype == PST_F32 ? NULL : "f32";
  case 'i':
    return o->dtype == PST_I32 ? NULL : "i32";
  case 'd':
    return o->dtype == PST_F64 ? NULL : "f64";
  default:
    return o->dtype == op->in[0].dtype && o->dtype < PST_DTYPE_COUNT ? NULL : "the dtype of in[0]";
  }
}

static pst_status check_operands(const pst_op *op, const pst_operand *list, int most, const char *letters,
                                 const char *what) {
  const int n = (int)strlen(letters);
  for (int i = 0; i < most; i++) {
    const pst_operand *o = &list[i];
    const bool required = i < n && letters[i] >= 'A' && letters[i] <= 'Z';
    if (!pst_operand_present(o)) {
      if (required)
        return pst_fail(PST_UNSUPPORTED, "cpu: %s: %s[%d] is absent, unit %d", pst_op_name(op->code), what, i,
                        op->unit);
      continue;
    }
    if (i >= n) return refuse(op, o, what, i, "no such operand");
    const char *wanted = wanted_dtype(required ? (char)(letters[i] - 'A' + 'a') : letters[i], op, o);
    if (wanted) return refuse(op, o, what, i, wanted);
    for (int d = 0; d < PST_MAX_RANK; d++)
      if (o->dim[d] < 0) return refuse(op, o, what, i, "no negative dimension");
  }
  return PST_OK;
}

/* What the kernels ask of shapes and attributes beyond the op table's shape rules. */
static pst_status check_shape(const pst_op *op) {
  const pst_operand *x = &op->in[0];
  const pst_attrs *a = &op->attrs;
  switch (op->code) {
  case PST_OP_rotary:
    if (x->rank != 3) return refuse(op, x, "in", 0, "rank 3");
    if (a->head_dim < 2 || a->head_dim > 1024 || a->head_dim % 2)
      return pst_fail(PST_UNSUPPORTED,
                      "cpu: rotary: head_dim %d, wanted an even number from 2 to 1024, unit %d", a->head_dim,
                      op->unit);
    if (x->dim[2] % a->head_dim) return refuse(op, x, "in", 0, "a width of whole heads");
    return PST_OK;
  case PST_OP_dropout:
    if (x->rank < 2) return refuse(op, x, "in", 0, "sequences in front: rank 2 or more");
    if (!(a->p >= 0.0f && a->p < 1.0f))
      return pst_fail(PST_UNSUPPORTED, "cpu: dropout: p %g, wanted 0 <= p < 1, unit %d", (double)a->p,
                      op->unit);
    return PST_OK;
  default:
    return PST_OK;
  }
}

pst_status pst__cpu_supports(const pst_cpu_set *set, const pst_op *op) {
  if ((unsigned)op->code >= PST_OP_COUNT)
    return pst_fail(PST_UNSUPPORTED, "cpu: op %d is none, unit %d", (int)op->code, op->unit);
  if (!set->kernel[op->code])
    return pst_fail(PST_UNSUPPORTED, "cpu: %s: no kernel in set %s, unit %d", pst_op_name(op->code),
                    set->name, op->unit);
  PST_TRY(check_operands(op, op->in, PST_OP_MAX_IN, operands[op->code].in, "in"));
  PST_TRY(check_operands(op, op->out, PST_OP_MAX_OUT, operands[op->code].out, "out"));
  PST_TRY(check_operands(op, op->acc, PST_OP_MAX_ACC, operands[op->code].acc, "acc"));
  return check_shape(op);
}
