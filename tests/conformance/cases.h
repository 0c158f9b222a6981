/* The cases of the conformance suite: which ops, shapes, attributes and fillings every device is tried with.
 *
 *   case_list list = {0};
 *   cases_build(&list, seed);
 *   for (int i = 0; i < list.n; i++) { case_values v; case_values_make(&list.at[i], &v); ...;
 * case_values_free(&v); } cases_free(&list);
 *
 * A case is an op without offsets; its values follow from its seed alone, so a case named on the command line
 * has the same inputs as in the full run.
 */
#ifndef PENSTOCK_TESTS_CONFORMANCE_CASES_H
#define PENSTOCK_TESTS_CONFORMANCE_CASES_H

#include "core/device/program.h"

typedef struct op_case {
  char name[224]; /* op, shapes, attributes, dtype: what a failure prints and a filter matches */
  pst_op op;      /* operands have dims and dtypes; their segment says only present or not */
  pst_ctrl ctrl;
  uint64_t seed;
  int alias;         /* out[0] lies on this input; -1: on none */
  int special_input; /* this input gets special_value at special_index; -1: none */
  int64_t special_index;
  double special_value;
  double tolerance, floor; /* max|a - b| / (floor + max|b|) of each output is at most the tolerance */
} op_case;

typedef struct case_list {
  op_case *at;
  int n, room;
} case_list;

/* Fills `list` with every case. Ends the process when memory runs out, as all of this suite does. */
void cases_build(case_list *list, uint64_t seed);
void cases_free(case_list *list);

/* A case's operands as doubles, already rounded to their dtypes, and the reference's results. */
typedef struct case_values {
  double *in[PST_OP_MAX_IN];
  double *out[PST_OP_MAX_OUT];
  double *acc[PST_OP_MAX_ACC];        /* before the op */
  double *acc_result[PST_OP_MAX_ACC]; /* after it */
} case_values;

void case_values_make(const op_case *c, case_values *out_values);
void case_values_free(case_values *values);

/* A present operand of these dims; a dim of 0 ends the list. */
pst_operand case_operand(pst_dtype dtype, int64_t d0, int64_t d1, int64_t d2, int64_t d3);

/* n normal values from (seed, stream). */
double *case_normal(uint64_t seed, uint64_t stream, int64_t n, double std);

#endif
