/* What every test includes: CMocka with its prelude, and checks that show Penstock's own message. */
#ifndef PENSTOCK_TESTS_SUPPORT_H
#define PENSTOCK_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/status.h"

/* True where PENSTOCK_TEST_QUICK is set, as tools/check does under sanitizers: the same checks in fewer
 * repetitions. */
static inline bool test_quick(void) {
  return getenv("PENSTOCK_TEST_QUICK") != NULL;
}

/* The call must succeed; else its message is shown. */
#define assert_ok(call)                                                                                      \
  do {                                                                                                       \
    pst_status assert_ok_status_ = (call);                                                                   \
    if (assert_ok_status_ != PST_OK)                                                                         \
      fail_msg("%s: %s: %s", #call, pst_status_name(assert_ok_status_), pst_error());                        \
  } while (0)

/* The call must fail with `status` and a message that holds `text`. */
#define assert_fails(call, status, text)                                                                     \
  do {                                                                                                       \
    pst_status assert_fails_status_ = (call);                                                                \
    if (assert_fails_status_ != (status) || !strstr(pst_error(), (text)))                                    \
      fail_msg("%s: %s: '%s', wanted %s and '%s'", #call, pst_status_name(assert_fails_status_),             \
               assert_fails_status_ == PST_OK ? "" : pst_error(), #status, (text));                          \
  } while (0)

#endif
