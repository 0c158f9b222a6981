/* The list of operations: the one place that says which exist, what operands they take and what kind they
 * are.
 *
 * core/graph/op_table.c adds each op's shape rule, gradient rule and cost; a backend adds one function per
 * op; the conformance tests walk the list. Shapes are row-major. b sequences of T positions make N = b*T
 * rows; C, D are widths, V a vocabulary, H heads, G key/value heads, d a head's width. Optional operands
 * stand in brackets and may be absent (segment PST_SEGMENT_NONE). `acc` operands are read and added to
 * (gradient accumulators, fp32).
 *
 *   op                        in                                      out                acc
 *   embedding                 tokens[b,T] i32, table[V,C], [pos[P,C]] y[b,T,C]
 *   embedding_grad            tokens, dy[b,T,C]                                          table[V,C],
 * [pos[P,C]] linear                    x[..,D], w, [bias[E]], [addend[..,E]]   y[..,E] w: attrs.w_in_out ?
 * [D,E] : [E,D] linear_wgrad              x[..,D], dy[..,E]                                          w,
 * [bias[E]] layer_norm                x[..,C], gain[C], [bias[C]]             y, mean[..] f32, rstd[..] f32
 *   layer_norm_grad           x, gain, mean, rstd, dy, [addend]       dx                 gain[C], [bias[C]]
 *   rms_norm                  x[..,C], gain[C]                        y, rstd[..] f32
 *   rms_norm_grad             x, gain, rstd, dy, [addend]             dx                 gain[C]
 *   rotary                    x[b,T,H*d], [addend]                    y half-split pairs (i, i + d/2);
 * attrs.inverse turns back attention                 q[b,T,H*d], k[b,T,G*d], v[b,T,G*d], [lengths[b] i32]
 * o[b,T,H*d], lse[b,H,T] f32 attrs.packed: q is [b,T,(H+2G)*d] = q|k|v and k, v are absent attention_grad q,
 * k, v, [lengths], o, lse, do          dq, dk, dv (packed: dq is q|k|v's gradient, dk, dv absent) gelu x y
 * attrs.exact: by erf; else by tanh gelu_grad                 x, dy                                   dx
 *   silu_gate                 gate, up                                y = silu(gate) * up
 *   silu_gate_grad            gate, up, dy                            dgate, dup
 *   add                       x, y                                    z
 *   scale                     x, [addend]                             y = attrs.scale * x (+ addend)
 *   dropout                   x, [addend]                             y = mask(x) / (1 - p) (+ addend); its
 * own gradient cast                      x                                       y (another dtype) copy x y
 *   slice                     x[..,C]                                 y[..,E] = x[.., attrs.start :
 * attrs.start + E] slice_grad                dy[..,E], [addend[..,C]]                dx[..,C] = 0 (or
 * addend), plus dy at attrs.start cross_entropy             logits[..,V], targets[..] i32           loss[..]
 * f32 cross_entropy_grad        logits, targets                         dlogits = (softmax - onehot) *
 * ctrl.gradient_scale linear_cross_entropy      x[..,C], w[V,C] (or w_in_out [C,V]), targets     loss[..] f32
 *   linear_cross_entropy_grad x, w, targets                           loss[..] f32, dx[..,C]   w    logits
 * never whole: in pieces of rows sum_squares               x sums[ceil(n / 4096)] f64        each block in
 * double, element order by 16 lanes adamw                     param, [master]  ... see below sgd
 *
 * A target of -1 is ignored: its loss is 0 and its gradient is 0. loss[i] is the plain negative
 * log-likelihood of row i (natural log), never scaled.
 *
 *   adamw   in: param (PARAM)        out: param_next (PARAM_NEXT)   acc: grad f32, m f32, v f32, [master f32]
 *   sgd     in: param (PARAM)        out: param_next (PARAM_NEXT)   acc: grad f32, [velocity f32], [master
 * f32] g = grad * ctrl.clip;  adamw (I. Loshchilov, F. Hutter, "Decoupled weight decay regularization", ICLR
 * 2019, alg. 2): m = beta1*m + (1-beta1)*g;  v = beta2*v + (1-beta2)*g*g; p = p - lr*weight_decay*p - lr *
 * (m*ctrl.bias1) / (sqrt(v*ctrl.bias2) + eps),   bias1 = 1/(1-beta1^t), bias2 = 1/(1-beta2^t) sgd: v =
 * momentum*v + g + weight_decay*p;  p = p - lr*v     (without velocity: p = p - lr*(g + weight_decay*p)) p is
 * the fp32 master where there is one (param_next is its rounding), else param. grad is zeroed as it is read,
 * so the next step starts clean. With ctrl.skip != 0 grad is zeroed and nothing else changes (param_next =
 * param).
 *
 * bf16: inputs and outputs of any forward or backward op but those fixed above to f32/i32/f64 may all be bf16
 * instead of f32; sums, softmax, norms and statistics are formed in fp32 all the same. acc operands are
 * always fp32.
 */
#ifndef PENSTOCK_DEVICE_OPS_H
#define PENSTOCK_DEVICE_OPS_H

#include <stdbool.h>
#include <stdint.h>

/* name, n_in, n_out, n_acc (optional ones counted), flags */
#define PST_OP_LIST(X)                                                                                       \
  X(embedding, 3, 1, 0, 0)                                                                                   \
  X(embedding_grad, 2, 0, 2, PST_OP_WEIGHT_GRADIENT)                                                         \
  X(linear, 4, 1, 0, PST_OP_ADDEND)                                                                          \
  X(linear_wgrad, 2, 0, 2, PST_OP_WEIGHT_GRADIENT)                                                           \
  X(layer_norm, 3, 3, 0, 0)                                                                                  \
  X(layer_norm_grad, 6, 1, 2, PST_OP_ADDEND)                                                                 \
  X(rms_norm, 2, 2, 0, 0)                                                                                    \
  X(rms_norm_grad, 5, 1, 1, PST_OP_ADDEND)                                                                   \
  X(rotary, 2, 1, 0, PST_OP_ADDEND | PST_OP_IN_PLACE)                                                        \
  X(attention, 4, 2, 0, 0)                                                                                   \
  X(attention_grad, 7, 3, 0, 0)                                                                              \
  X(gelu, 1, 1, 0, PST_OP_IN_PLACE)                                                                          \
  X(gelu_grad, 2, 1, 0, PST_OP_IN_PLACE)                                                                     \
  X(silu_gate, 2, 1, 0, PST_OP_IN_PLACE)                                                                     \
  X(silu_gate_grad, 3, 2, 0, 0)                                                                              \
  X(add, 2, 1, 0, PST_OP_IN_PLACE)                                                                           \
  X(scale, 2, 1, 0, PST_OP_ADDEND | PST_OP_IN_PLACE)                                                         \
  X(dropout, 2, 1, 0, PST_OP_ADDEND | PST_OP_IN_PLACE)                                                       \
  X(cast, 1, 1, 0, 0)                                                                                        \
  X(copy, 1, 1, 0, 0)                                                                                        \
  X(slice, 1, 1, 0, 0)                                                                                       \
  X(slice_grad, 2, 1, 0, PST_OP_ADDEND)                                                                      \
  X(take, 2, 1, 0, 0)                                                                                        \
  X(cross_entropy, 2, 1, 0, 0)                                                                               \
  X(cross_entropy_grad, 2, 1, 0, PST_OP_IN_PLACE)                                                            \
  X(linear_cross_entropy, 3, 1, 0, 0)                                                                        \
  X(linear_cross_entropy_grad, 3, 2, 1, 0)                                                                   \
  X(sum_squares, 1, 1, 0, 0)                                                                                 \
  X(adamw, 1, 1, 4, 0)                                                                                       \
  X(sgd, 1, 1, 3, 0)

typedef enum pst_op_code {
#define PST_OP_ENUM(name, n_in, n_out, n_acc, flags) PST_OP_##name,
  PST_OP_LIST(PST_OP_ENUM)
#undef PST_OP_ENUM
      PST_OP_COUNT
} pst_op_code;

enum {
  PST_OP_ADDEND =
      1, /* the last input is an optional addend: out[0] = result + addend; out[0] may lie on the addend */
  PST_OP_IN_PLACE = 2,        /* out[0] may lie exactly on any input of the same dtype and shape */
  PST_OP_WEIGHT_GRADIENT = 4, /* belongs to W when backward is split */
};

enum { PST_OP_MAX_IN = 8, PST_OP_MAX_OUT = 3, PST_OP_MAX_ACC = 4, PST_MAX_RANK = 4 };

/* Every attribute an op may have; those that an op does not use are zero. */
typedef struct pst_attrs {
  bool w_in_out;      /* linear: w is [in, out] (else [out, in]) */
  bool causal;        /* attention: position i sees j <= i */
  bool packed;        /* attention: q, k and v in one tensor */
  bool exact;         /* gelu: by erf */
  bool inverse;       /* rotary: turn by the negative angle */
  int32_t heads;      /* attention: H;  rotary: heads in x */
  int32_t kv_heads;   /* attention: G; divides H */
  int32_t head_dim;   /* attention, rotary: d (even for rotary) */
  int64_t start;      /* slice: first column */
  int64_t width;      /* slice: columns taken;  slice_grad: columns of dx */
  int32_t dtype;      /* cast: the pst_dtype wanted */
  float scale;        /* attention: of q*k;  scale: the factor */
  float theta;        /* rotary: base of the angles; angle of pair i at position t is t * theta^(-2i/d) */
  float eps;          /* norms, adamw */
  float p;            /* dropout, attention: share dropped, 0 <= p < 1 */
  uint32_t site;      /* dropout, attention: which dropout of the model this is */
  float beta1, beta2; /* adamw */
  float momentum;     /* sgd */
  float weight_decay; /* adamw, sgd */
} pst_attrs;

/* The small numbers that vary between runs of a program. They lie in the CTRL segment and are written by the
 * worker before a run, never passed by value. A value is dropped by philox (core/base/rng.h) with key
 * pst_rng_key_make(seed, step) and counter {e/4 low word, e/4 high word, first_sequence + row's sequence in
 * the microbatch, site}, word e%4; e is the element's index in its sequence: t*C + c for dropout, (h*T +
 * i)*ceil4(T) + j for attention. It is kept when uniform(word) >= p. */
typedef struct pst_ctrl {
  uint64_t seed;
  uint64_t step;          /* 0 for the first */
  int64_t first_sequence; /* index in the global batch of the microbatch's first sequence */
  float gradient_scale;   /* 1 / valid tokens of the whole step */
  float lr;
  float bias1, bias2; /* adamw: 1/(1-beta1^t), 1/(1-beta2^t) */
  float clip;         /* factor on every gradient; 1 when not clipped */
  uint32_t skip;      /* not 0: the update only clears the gradients */
} pst_ctrl;

/* "linear"; "unknown" for a value that is none. */
const char *pst_op_name(pst_op_code code);

#endif
