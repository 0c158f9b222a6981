/* Schedules as text: PyTorch's own files, the way there and back, and what is no schedule.
 *
 * tests/golden/schedule holds what PyTorch 2.15.0 wrote for each of its schedules: compute actions (NAME.csv)
 * and with messages (NAME_comms.csv). */
#include <unistd.h>

#include "core/schedule/csv.h"
#include "tests/schedule/fixture.h"

static pst_schedule *read_golden(const char *name, bool *out_renumbered) {
  char path[512];
  pst_schedule *s = NULL;
  snprintf(path, sizeof path, "%s/tests/golden/schedule/%s.csv", PENSTOCK_SOURCE_DIR, name);
  assert_ok(pst_schedule_read_csv(path, &s, out_renumbered));
  return s;
}

static pst_schedule *make(const char *name, int workers, int chunks, int64_t microbatches) {
  pst_schedule_options o;
  pst_schedule *s = NULL;
  pst_schedule_options_init(&o);
  o.name = name;
  o.workers = workers, o.chunks = chunks, o.microbatches = microbatches;
  assert_ok(pst_schedule_generate(&o, &s));
  return s;
}

static void assert_same(const pst_schedule *a, const pst_schedule *b) {
  assert_int_equal(a->workers, b->workers);
  assert_int_equal(a->stages, b->stages);
  assert_int_equal(a->microbatches, b->microbatches);
  assert_int_equal(a->training, b->training);
  for (int s = 0; s < a->stages; s++) assert_int_equal(a->worker_of[s], b->worker_of[s]);
  for (int w = 0; w < a->workers; w++) {
    char *text = to_text(a, w);
    assert_list(b, w, text);
    free(text);
  }
}

/* PyTorch's orders are ours, one action after the other. */
static void test_files_of_pytorch(void **state) {
  static const struct {
    const char *file, *family;
    int workers, chunks;
    int64_t microbatches;
    bool renumbered, messages;
  } rows[] = {
      {"gpipe", "gpipe", 3, 1, 5, false, false},
      {"looped_bfs", "looped-bfs", 2, 2, 4, true, true},
      {"interleaved", "interleaved", 2, 2, 4, false, true},
      {"interleaved_rounds", "interleaved", 4, 2, 10, false, true},
      {"interleaved_zb", "interleaved-zb", 2, 2, 4, false, true},
      {"zb_v", "zb-v", 2, 2, 4, false, true},
      {"dualpipe_v", "dualpipe-v", 2, 2, 6, false, true},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    bool renumbered = !rows[i].renumbered;
    pst_schedule *file = read_golden(rows[i].file, &renumbered), *ours;
    assert_int_equal(renumbered, rows[i].renumbered);
    assert_false(file->lowered);
    assert_ok(pst_schedule_check(file, NULL, NULL));
    ours = make(rows[i].family, rows[i].workers, rows[i].chunks, rows[i].microbatches);
    assert_same(file, ours);
    if (rows[i].messages) {
      char name[64];
      pst_schedule *compute = NULL;
      snprintf(name, sizeof name, "%s_comms", rows[i].file);
      pst_schedule *full = read_golden(name, &renumbered);
      assert_true(full->lowered);
      assert_ok(pst_schedule_check(full, NULL, NULL));
      assert_ok(pst_schedule_strip(full, &compute));
      assert_same(compute, file);
      pst_schedule_destroy(compute);
      pst_schedule_destroy(full);
    }
    pst_schedule_destroy(ours);
    pst_schedule_destroy(file);
  }
}

/* The listing that PyTorch 2.15.0 gives of its 1F1B has microbatches 1 to 5 in place of 0 to 4 on the last
 * worker.
 */
static void test_wrong_file_is_refused(void **state) {
  bool renumbered;
  pst_schedule *s = read_golden("1f1b", &renumbered);
  assert_refused(pst_schedule_check(s, NULL, NULL), "worker 2, position 0 (2F1): out of order, wanted 2F0");
  pst_schedule_destroy(s);
}

static void test_there_and_back(void **state) {
  static const char *const names[] = {"1f1b", "gpipe",  "interleaved", "looped-bfs", "zb-h1",       "zb-h2",
                                      "zb-v", "v-half", "v-min",       "dualpipe-v", "forward-only"};
  char path[] = "/tmp/penstock-csv-XXXXXX";
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  close(fd);
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    bool chunks = strcmp(names[i], "interleaved") == 0 || strcmp(names[i], "looped-bfs") == 0;
    pst_schedule *s = make(names[i], 3, chunks ? 3 : 1, 7), *back = NULL, *full = NULL, *compute = NULL;
    bool renumbered = true;
    assert_ok(pst_schedule_write_csv(s, PST_CSV_COMPUTE, path));
    assert_ok(pst_schedule_read_csv(path, &back, &renumbered));
    assert_false(renumbered);
    assert_same(s, back);
    assert_ok(pst_schedule_write_csv(s, PST_CSV_MESSAGES, path));
    assert_ok(pst_schedule_read_csv(path, &full, &renumbered));
    assert_true(full->lowered);
    assert_ok(pst_schedule_check(full, NULL, NULL));
    assert_ok(pst_schedule_strip(full, &compute));
    assert_same(s, compute);
    pst_schedule_destroy(compute);
    pst_schedule_destroy(full);
    pst_schedule_destroy(back);
    pst_schedule_destroy(s);
  }
  unlink(path);
}

/* The messages between two workers stand in one order on both sides. */
static void test_messages_match_in_order(void **state) {
  pst_schedule *s = make("interleaved", 3, 2, 6), *full = NULL;
  char *text = NULL;
  size_t n = 0;
  bool renumbered;
  assert_ok(pst_schedule_format_csv(s, PST_CSV_MESSAGES, &text, &n));
  assert_ok(pst_schedule_parse_csv(text, n, "text", &full, &renumbered));
  for (int from = 0; from < 3; from++)
    for (int to = 0; to < 3; to++) {
      pst_action sent[128], got[128];
      size_t n_sent = 0, n_got = 0;
      for (size_t i = 0; i < full->lists[from].count; i++) {
        pst_action a = full->lists[from].items[i];
        int peer = a.kind == PST_ACTION_SEND_F ? a.chunk + 1 : a.kind == PST_ACTION_SEND_B ? a.chunk - 1 : -1;
        if (peer >= 0 && full->worker_of[peer] == to) {
          a.chunk = (uint16_t)peer;
          a.kind = a.kind == PST_ACTION_SEND_F ? PST_ACTION_RECV_F : PST_ACTION_RECV_B;
          sent[n_sent++] = a;
        }
      }
      for (size_t i = 0; i < full->lists[to].count; i++) {
        pst_action a = full->lists[to].items[i];
        int peer = a.kind == PST_ACTION_RECV_F ? a.chunk - 1 : a.kind == PST_ACTION_RECV_B ? a.chunk + 1 : -1;
        if (peer >= 0 && full->worker_of[peer] == from) got[n_got++] = a;
      }
      assert_int_equal(n_sent, n_got);
      if (n_sent > 0) assert_memory_equal(sent, got, n_sent * sizeof sent[0]);
    }
  assert_non_null(strstr(text, ",0REDUCE_GRAD,0WAIT_REDUCE_GRAD"));
  assert_non_null(strstr(text, "0WAIT_SEND_F0"));
  free(text);
  pst_schedule_destroy(full);
  pst_schedule_destroy(s);
}

static void test_a_run_takes_a_file(void **state) {
  char path[512];
  pst_schedule_options o;
  pst_schedule *s = NULL;
  snprintf(path, sizeof path, "%s/tests/golden/schedule/zb_v_comms.csv", PENSTOCK_SOURCE_DIR);
  pst_schedule_options_init(&o);
  o.name = path;
  o.workers = 2, o.microbatches = 4;
  assert_ok(pst_schedule_generate(&o, &s));
  assert_false(s->lowered);
  assert_int_equal(s->worker_of[3], 0);
  pst_schedule_destroy(s);
  s = NULL;
  o.microbatches = 5;
  assert_refused(pst_schedule_generate(&o, &s), "2 workers and 4 microbatches, wanted the run's 2 and 5");
  o.microbatches = 4, o.chunks = 3;
  assert_refused(pst_schedule_generate(&o, &s), "2 chunks on each worker, wanted the run's 3");
  o.name = "nowhere.csv";
  assert_int_equal(pst_schedule_generate(&o, &s), PST_IO);
}

static void test_bad_text(void **state) {
  static const struct {
    const char *text, *part;
  } rows[] = {
      {"", "seen no action"},
      {"\n\n", "seen no action"},
      {"0F0,0X0\n", "row 1, cell 2: seen \"0X0\""},
      {"0F0\n1F0,1F\n", "row 2, cell 2: seen \"1F\""},
      {"0F0,F0\n", "seen \"F0\""},
      {"0F0,0F99999999999\n", "row 1, cell 2"},
      {"0F0,(0F1;0B0)\n", "seen \"(0F1;0B0)\""},
      {"0F0,(0F1;0B0\n", "wanted a pair"},
      {"0F0,REDUCE\n", "seen \"REDUCE\""},
      {"0F0\n1F0,0B0\n", "wanted no more of stage 0"},
      {"0F0,2F0\n1F0\n", "seen 3 stages in 2 rows"},
      {"0F0,3F0\n1F0\n", "no row has stage 2"},
      {"0F0,"
       "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
       "at most 95 characters"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    pst_schedule *s = NULL;
    bool renumbered;
    assert_refused(pst_schedule_parse_csv(rows[i].text, strlen(rows[i].text), "text", &s, &renumbered),
                   rows[i].part);
    assert_null(s);
  }
  pst_schedule *s = NULL;
  bool renumbered;
  assert_refused(pst_schedule_parse_csv("0F0\0,", 5, "text", &s, &renumbered), "zero byte");
  /* a huge number asks for no memory, and is refused by the checker */
  assert_ok(pst_schedule_parse_csv("0F2000000000,0B0", 16, "text", &s, &renumbered));
  assert_refused(pst_schedule_check(s, NULL, NULL), "out of order");
  pst_schedule_destroy(s);
}

/* Blanks, quotes, pauses, line ends of both kinds and no last one. */
static void test_loose_text(void **state) {
  static const char text[] = " 0F0 ,, \"0F1\",\r\n,1F0,(1F1;1B0)OVERLAP_F_B,1REDUCE_GRAD,1B1";
  pst_schedule *s = NULL;
  bool renumbered;
  assert_ok(pst_schedule_parse_csv(text, sizeof text - 1, "text", &s, &renumbered));
  assert_list(s, 0, "0F0 0F1");
  assert_list(s, 1, "1F0 1F1 1B0 1B1");
  pst_schedule_destroy(s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_files_of_pytorch),   cmocka_unit_test(test_wrong_file_is_refused),
      cmocka_unit_test(test_there_and_back),     cmocka_unit_test(test_messages_match_in_order),
      cmocka_unit_test(test_a_run_takes_a_file), cmocka_unit_test(test_bad_text),
      cmocka_unit_test(test_loose_text),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
