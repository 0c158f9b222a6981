/* Runs one case on one open device through its public table and judges what came back.
 *
 *   harness_result r;
 *   harness_run(device, &c, &values, &r);
 *   if (r.verdict == HARNESS_WRONG) printf("%s: %s\n", c.name, r.message);
 *   free(r.bits);
 *
 * Every segment is a buffer of its own, every operand in it has bytes of a known pattern before and after it;
 * all of what the op may not write must be as it was. Outputs start as NaNs, so one that is never written is
 * seen. The op runs twice from the same start and must give the same bits.
 */
#ifndef PENSTOCK_TESTS_CONFORMANCE_HARNESS_H
#define PENSTOCK_TESTS_CONFORMANCE_HARNESS_H

#include "core/device/device.h"
#include "tests/conformance/cases.h"

typedef enum harness_verdict { HARNESS_RIGHT, HARNESS_WRONG, HARNESS_UNSUPPORTED } harness_verdict;

typedef struct harness_result {
  harness_verdict verdict;
  char message[512]; /* what is wrong or why it is not supported */
  double error;      /* largest normalised error */
  uint8_t *bits;     /* everything the op wrote, in operand order; the caller frees it; NULL when not run */
  int64_t n_bits;    /* bytes */
} harness_result;

void harness_run(pst_device *device, const op_case *c, const case_values *values, harness_result *out_result);

#endif
