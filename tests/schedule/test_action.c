/* The text form of an action, both ways. */
#include "tests/schedule/fixture.h"

static void test_text_round_trip(void **state) {
  static const char *const texts[] = {"0F0",      "1I3",      "1W3",      "2B1",    "0SEND_F1",
                                      "1RECV_F1", "1SEND_B0", "0RECV_B0", "REDUCE", "UPDATE"};
  for (int kind = 0; kind < (int)(sizeof texts / sizeof texts[0]); kind++) {
    pst_action a;
    char text[PST_ACTION_TEXT];
    assert_ok(pst_action_parse(texts[kind], &a));
    assert_string_equal(pst_action_format(a, text), texts[kind]);
  }
  assert_string_equal(pst_action_kind_name(PST_ACTION_SEND_B), "SEND_B");
  assert_string_equal(pst_action_kind_name(PST_ACTION_COUNT), "?");
  assert_string_equal(pst_action_kind_name(-1), "?");
}

static void test_largest_values(void **state) {
  pst_action a = pst_action_make(PST_ACTION_RECV_B, UINT16_MAX, UINT32_MAX);
  char text[PST_ACTION_TEXT];
  pst_action back;
  assert_string_equal(pst_action_format(a, text), "65535RECV_B4294967295");
  assert_ok(pst_action_parse(text, &back));
  assert_memory_equal(&a, &back, sizeof a);
  assert_int_equal(sizeof(pst_action), 8);
}

static void test_refuses_what_is_no_action(void **state) {
  static const char *const texts[] = {"",         "F",       "F0",     "0F",   "0X0",     "0F0 ",
                                      "0f0",      "-1F0",    "0F-1",   "0FF0", "65536F0", "0F4294967296",
                                      "0REDUCE0", "REDUCE0", "0SEND0", "0",    "0F0B0"};
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    pst_action a = {7, 7, 7};
    assert_refused(pst_action_parse(texts[i], &a), "wanted stage, kind, microbatch");
    assert_int_equal(a.kind, 7);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_text_round_trip),
      cmocka_unit_test(test_largest_values),
      cmocka_unit_test(test_refuses_what_is_no_action),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
