/* bf16 operands around fp32 kernels: inputs are widened into the workspace, the kernel runs on the copies,
 * outputs are rounded back. One mechanism for every op. */
#include "backends/cpu/kernel_common.h"
#include "backends/cpu/set.h"

bool pst__cpu_widens(const pst_op *op) {
  switch (op->code) {
  case PST_OP_cast:
  case PST_OP_copy:
  case PST_OP_adamw:
  case PST_OP_sgd:
    return false; /* these take bf16 as it is */
  default:
    break;
  }
  for (int i = 0; i < PST_OP_MAX_IN; i++)
    if (pst_operand_present(&op->in[i]) && op->in[i].dtype == PST_BF16) return true;
  for (int i = 0; i < PST_OP_MAX_OUT; i++)
    if (pst_operand_present(&op->out[i]) && op->out[i].dtype == PST_BF16) return true;
  return false;
}

static int64_t copy_bytes(const pst_operand *o) {
  if (!pst_operand_present(o) || o->dtype != PST_BF16) return 0;
  return align_up(pst_operand_elements(o) * (int64_t)sizeof(float));
}

static int64_t kernel_bytes(const pst_cpu_set *set, const pst_op *op, int n_threads) {
  pst_cpu_workspace workspace = set->workspace[op->code];
  return workspace ? align_up(workspace(op, n_threads)) : 0;
}

int64_t pst__cpu_workspace(const pst_cpu_set *set, const pst_op *op, int n_threads) {
  int64_t bytes = kernel_bytes(set, op, n_threads);
  if (!pst__cpu_widens(op)) return bytes;
  for (int i = 0; i < PST_OP_MAX_IN; i++) bytes += copy_bytes(&op->in[i]);
  for (int i = 0; i < PST_OP_MAX_OUT; i++) bytes += copy_bytes(&op->out[i]);
  return bytes;
}

static void run_widened(const pst_cpu_call *call) {
  const pst_op *op = call->op;
  const pst_cpu_set *set = call->set;
  pst_cpu_call wide = *call;
  char *next = (char *)call->workspace + kernel_bytes(set, op, pst_team_members(call->me));
  for (int i = 0; i < PST_OP_MAX_IN; i++) {
    if (copy_bytes(&op->in[i]) == 0) continue;
    float *to = (float *)(void *)next;
    wide.in[i] = to;
    next += copy_bytes(&op->in[i]);
    for (int64_t a, b; next_piece(call, pst_operand_elements(&op->in[i]), PIECE, &a, &b);)
      set->widen((const uint16_t *)call->in[i] + a, to + a, b - a);
    pst_team_barrier(call->me);
  }
  for (int i = 0; i < PST_OP_MAX_OUT; i++) {
    if (copy_bytes(&op->out[i]) == 0) continue;
    wide.out[i] = next;
    next += copy_bytes(&op->out[i]);
  }
  set->kernel[op->code](&wide);
  for (int i = 0; i < PST_OP_MAX_OUT; i++) {
    if (copy_bytes(&op->out[i]) == 0) continue;
    pst_team_barrier(call->me);
    for (int64_t a, b; next_piece(call, pst_operand_elements(&op->out[i]), PIECE, &a, &b);)
      set->narrow((const float *)wide.out[i] + a, (uint16_t *)call->out[i] + a, b - a);
  }
}

void pst__cpu_run(const pst_cpu_call *call) {
  if (pst__cpu_widens(call->op))
    run_widened(call);
  else
    call->set->kernel[call->op->code](call);
}
