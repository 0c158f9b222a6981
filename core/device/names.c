/* Names of ops and segments. */
#include "core/device/program.h"

static const char *const op_names[PST_OP_COUNT] = {
#define OP_NAME(name, n_in, n_out, n_acc, flags) #name,
    PST_OP_LIST(OP_NAME)
#undef OP_NAME
};

static const char *const segment_names[PST_SEGMENT_COUNT] = {
    [PST_SEGMENT_NONE] = "none",
    [PST_SEGMENT_PARAM] = "param",
    [PST_SEGMENT_PARAM_NEXT] = "param_next",
    [PST_SEGMENT_GRAD] = "grad",
    [PST_SEGMENT_OPTIM] = "optim",
    [PST_SEGMENT_STASH] = "stash",
    [PST_SEGMENT_DEFER] = "defer",
    [PST_SEGMENT_WORK] = "work",
    [PST_SEGMENT_INPUT] = "input",
    [PST_SEGMENT_LOSS] = "loss",
    [PST_SEGMENT_OUT] = "out",
    [PST_SEGMENT_GRAD_IN] = "grad_in",
    [PST_SEGMENT_GRAD_OUT] = "grad_out",
    [PST_SEGMENT_STATE] = "state",
    [PST_SEGMENT_CTRL] = "ctrl",
};

const char *pst_op_name(pst_op_code code) {
  return (unsigned)code < PST_OP_COUNT ? op_names[code] : "unknown";
}

const char *pst_segment_name(pst_segment_kind segment) {
  return (unsigned)segment < PST_SEGMENT_COUNT ? segment_names[segment] : "unknown";
}
