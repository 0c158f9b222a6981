/* The clock against published tables, and on lists that no family here makes (split, V placement). */
#include <time.h>

#include "tests/schedule/fixture.h"

/* K=4, M=8 rows: simulator values published for F, I, W = (1,1,1) and (1,2,1), full backward sending at its
 * end. */
typedef struct table_row {
  const char *name;
  double input_s, makespan_s, idle_s, in_span_s[4], bubble, relative, span, slow_link_s;
  int peaks[4];
} table_row;

static const table_row table[] = {
    {"forward-only", 1, 11, 3, {0, 0, 0, 0}, 3.0 / 11, 3.0 / 8, 0, 11.75, {1, 1, 1, 1}},
    {"gpipe", 1, 33, 9, {9, 6, 3, 0}, 9.0 / 33, 3.0 / 8, 9.0 / 33, 34.5, {8, 8, 8, 8}},
    {"1f1b", 1, 33, 9, {9, 6, 3, 0}, 9.0 / 33, 3.0 / 8, 9.0 / 33, 37, {4, 3, 2, 1}},
    {"gpipe", 2, 44, 12, {12, 8, 4, 0}, 12.0 / 44, 3.0 / 8, 12.0 / 44, 45.5, {8, 8, 8, 8}},
    {"1f1b", 2, 44, 12, {12, 8, 4, 0}, 12.0 / 44, 3.0 / 8, 12.0 / 44, 48, {4, 3, 2, 1}},
};

static pst_simulation *simulate(const pst_schedule *s, const pst_simulate_options *o) {
  pst_simulation *r = NULL;
  assert_ok(pst_schedule_simulate(s, o, &r));
  return r;
}

static void test_published_table(void **state) {
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
    const table_row *row = &table[i];
    double input[] = {row->input_s, row->input_s, row->input_s, row->input_s};
    pst_schedule *s = generate(row->name, 4, 8, 0);
    pst_simulate_options o;
    pst_simulate_options_init(&o);
    o.input_s = input;
    o.early_send = false;
    pst_simulation *r = simulate(s, &o);
    assert_close(r->makespan_s, row->makespan_s, row->name);
    assert_close(r->bubble_makespan, row->bubble, "bubble_makespan");
    assert_close(r->bubble_bottleneck, row->bubble, "bubble_bottleneck");
    assert_close(r->bubble_relative, row->relative, "bubble_relative");
    assert_close(r->bubble_span, row->span, "bubble_span");
    for (int w = 0; w < 4; w++) {
      assert_close(r->workers[w].idle_s, row->idle_s, "idle");
      assert_close(r->workers[w].idle_in_span_s, row->in_span_s[w], "idle in span");
      assert_int_equal(r->workers[w].peak_stash, row->peaks[w]);
      assert_int_equal(r->workers[w].peak_defer, row->peaks[w]);
      int links = s->training ? (w > 0) + (w < 3) : w < 3;
      assert_int_equal(r->workers[w].sends, 8 * links);
    }
    pst_simulation_destroy(r);
    o.latency_s = 0.25;
    r = simulate(s, &o);
    assert_close(r->makespan_s, row->slow_link_s, "makespan, latency 1/4");
    pst_simulation_destroy(r);
    pst_schedule_destroy(s);
  }
}

/* 1F1B with a link of latency c takes max(T, (K T + 2 (K-1) c) / K) for each further microbatch. */
static void test_latency_period(void **state) {
  for (int k = 2; k <= 6; k++)
    for (double c = 0.25; c <= 2; c *= 2) {
      double makespan[2];
      for (int i = 0; i < 2; i++) {
        pst_schedule *s = generate("1f1b", k, (int64_t)k * (10 + 10 * i), 0);
        pst_simulate_options o;
        pst_simulate_options_init(&o);
        o.early_send = false;
        o.latency_s = c;
        pst_simulation *r = simulate(s, &o);
        makespan[i] = r->makespan_s;
        pst_simulation_destroy(r);
        pst_schedule_destroy(s);
      }
      assert_close((makespan[1] - makespan[0]) / (10 * k), fmax(3, (k * 3 + 2 * (k - 1) * c) / k), "period");
    }
}

/* Automatic: the fewest that are as quick as any; none where there is no latency to hide. */
static void test_automatic_extra_forwards(void **state) {
  static const struct {
    double latency;
    int wanted;
  } rows[] = {{0, 0}, {0.25, 1}, {0.5, 2}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    pst_schedule_options o;
    pst_schedule *s = NULL, *fixed = generate("1f1b", 4, 8, rows[i].wanted);
    pst_schedule_options_init(&o);
    o.workers = 4, o.microbatches = 8;
    o.extra_forwards = PST_EXTRA_AUTO;
    o.latency_s = rows[i].latency;
    o.no_early_send = true;
    assert_ok(pst_schedule_generate(&o, &s));
    for (int w = 0; w < 4; w++) {
      char *text = to_text(fixed, w);
      assert_list(s, w, text);
      free(text);
    }
    pst_schedule_destroy(fixed);
    pst_schedule_destroy(s);
  }
}

/* K=4, M=8, latency 1/2: one more forward on every worker but those that have no round trip left to hide;
 * from K-1 on it is eager 1F1B. Values of an independent simulator. */
static void test_extra_forwards_with_latency(void **state) {
  static const double wanted[] = {41, 37, 36, 36, 36, 36, 36};
  for (int extra = 0; extra <= 6; extra++) {
    pst_schedule *s = generate("1f1b", 4, 8, extra);
    pst_simulate_options o;
    pst_simulate_options_init(&o);
    o.early_send = false;
    o.latency_s = 0.5;
    pst_simulation *r = simulate(s, &o);
    assert_close(r->makespan_s, wanted[extra], "makespan");
    pst_simulation_destroy(r);
    pst_schedule_destroy(s);
  }
}

static const char *const zb_h1[] = {
    "0F0 0F1 0F2 0F3 0I0 0W0 0F4 0I1 0W1 0F5 0I2 0W2 0F6 0I3 0W3 0F7 0I4 0W4 0I5 0W5 0I6 0W6 0I7 0W7",
    "1F0 1F1 1F2 1I0 1F3 1I1 1W0 1F4 1I2 1W1 1F5 1I3 1W2 1F6 1I4 1W3 1F7 1I5 1W4 1I6 1W5 1I7 1W6 1W7",
    "2F0 2F1 2I0 2F2 2I1 2F3 2I2 2W0 2F4 2I3 2W1 2F5 2I4 2W2 2F6 2I5 2W3 2F7 2I6 2W4 2I7 2W5 2W6 2W7",
    "3F0 3I0 3F1 3I1 3F2 3I2 3F3 3I3 3W0 3F4 3I4 3W1 3F5 3I5 3W2 3F6 3I6 3W3 3F7 3I7 3W4 3W5 3W6 3W7",
};

/* A split list (ZB-H1): 27 = M T + (K-1) F, 4 in flight to the end of W on every worker, K-r to the end of I.
 */
static void test_split_list(void **state) {
  pst_schedule *s = from_text(4, 1, 8, false, zb_h1), *full = NULL;
  pst_stage_buffers b[4];
  assert_ok(pst_schedule_buffers(s, NULL, b));
  assert_ok(pst_schedule_lower(s, NULL, b, &full));
  pst_simulate_options o;
  pst_simulate_options_init(&o);
  for (int form = 0; form < 2; form++) {
    pst_simulation *r = simulate(form == 0 ? s : full, &o);
    assert_close(r->makespan_s, 27, "makespan");
    for (int w = 0; w < 4; w++) {
      assert_close(r->workers[w].idle_in_span_s, 3 - w, "idle in span");
      assert_int_equal(r->workers[w].peak_defer, 4);
      assert_int_equal(r->workers[w].peak_stash, 4 - w);
      assert_int_equal(b[w].stash, 4 - w);
      assert_int_equal(b[w].defer, 4);
    }
    pst_simulation_destroy(r);
  }
  o.latency_s = 0.25;
  pst_simulation *r = simulate(s, &o);
  assert_close(r->makespan_s, 30, "makespan, latency 1/4");
  pst_simulation_destroy(r);
  pst_schedule_destroy(full);
  pst_schedule_destroy(s);
}

static const char *const zb_v[] = {
    "0F0 0F1 0F2 0F3 0F4 0F5 0F6 7F0 7I0 7W0 7F1 7I1 7W1 7F2 7I2 7W2 7F3 7I3 7W3 0F7 0I0 0W0 7F4 7I4 7W4 0I1 "
    "0W1 7F5 7I5 7W5 0I2 0W2 7F6 7I6 7W6 0I3 0W3 7F7 7I7 7W7 0I4 0W4 0I5 0W5 0I6 0W6 0I7 0W7",
    "1F0 1F1 1F2 1F3 1F4 6F0 1F5 6F1 6I0 6W0 6F2 6I1 6W1 6F3 6I2 6W2 1F6 1I0 1W0 6F4 6I3 6W3 1F7 1I1 1W1 6F5 "
    "6I4 6W4 1I2 1W2 6F6 6I5 6W5 1I3 1W3 6F7 6I6 6W6 1I4 6I7 1I5 1W4 1I6 1W5 1I7 1W6 6W7 1W7",
    "2F0 2F1 2F2 5F0 2F3 5F1 2F4 5F2 5I0 5W0 5F3 5I1 5W1 2F5 2I0 2W0 5F4 5I2 5W2 2F6 2I1 2W1 5F5 5I3 5W3 2F7 "
    "2I2 2W2 5F6 5I4 5W4 2I3 2W3 5F7 5I5 5W5 2I4 5I6 2I5 5I7 2I6 2W4 2I7 2W5 5W6 5W7 2W6 2W7",
    "3F0 4F0 3F1 4F1 3F2 4F2 3F3 4F3 4I0 4W0 3F4 3I0 3W0 4F4 4I1 4W1 3F5 3I1 3W1 4F5 4I2 4W2 3F6 3I2 3W2 4F6 "
    "4I3 4W3 3F7 3I3 3W3 4F7 4I4 4W4 3I4 4I5 3I5 4I6 3I6 4I7 3I7 3W4 4W5 4W6 4W7 3W5 3W6 3W7",
};

/* Two chunks per worker, V placement: no messages at the turn, 25.5 = M T + (K-1) F / 2 in worker time. */
static void test_v_placement(void **state) {
  static const int sends[] = {16, 32, 32, 16};
  double half[8];
  for (int i = 0; i < 8; i++) half[i] = 0.5;
  pst_schedule *s = from_text(4, 2, 8, true, zb_v), *full = NULL;
  assert_ok(pst_schedule_lower(s, NULL, NULL, &full));
  pst_simulate_options o;
  pst_simulate_options_init(&o);
  o.forward_s = o.input_s = o.weight_s = half;
  for (int form = 0; form < 2; form++) {
    pst_simulation *r = simulate(form == 0 ? s : full, &o);
    for (int w = 0; w < 4; w++) assert_int_equal(r->workers[w].sends, sends[w]);
    assert_int_equal(r->messages, 96);
    if (form == 0) assert_close(r->makespan_s, 25.5, "makespan");
    assert_true(r->makespan_s >= 25.5);
    pst_simulation_destroy(r);
  }
  pst_schedule_destroy(full);
  pst_schedule_destroy(s);
}

static void test_spans(void **state) {
  pst_schedule *s = generate("1f1b", 2, 1, 0);
  pst_action_span spans[4];
  pst_simulate_options o;
  pst_simulate_options_init(&o);
  o.spans = spans;
  o.latency_s = 0.5;
  pst_simulation_destroy(simulate(s, &o));
  static const double wanted[4][2] = {{0, 1}, {4, 6}, {1.5, 2.5}, {2.5, 4.5}};
  for (int i = 0; i < 4; i++) {
    assert_close(spans[i].start_s, wanted[i][0], "start");
    assert_close(spans[i].end_s, wanted[i][1], "end");
  }
  pst_schedule_destroy(s);
}

static void test_unlike_stages(void **state) {
  double forward[] = {1, 3}, zero[] = {0, 0};
  pst_schedule *s = generate("forward-only", 2, 4, 0);
  pst_simulate_options o;
  pst_simulate_options_init(&o);
  o.forward_s = forward;
  o.input_s = o.weight_s = zero;
  pst_simulation *r = simulate(s, &o);
  assert_close(r->makespan_s, 13, "makespan");
  assert_close(r->bubble_makespan, 1 - 16.0 / 26, "bubble_makespan");
  assert_close(r->bubble_bottleneck, 1 - 12.0 / 13, "bubble_bottleneck");
  pst_simulation_destroy(r);
  pst_schedule_destroy(s);
}

/* The first slot is free again only behind B: with one more, the next input travels meanwhile. */
static void test_extra_slot_hides_transfer(void **state) {
  double makespan[2];
  for (int extra = 0; extra < 2; extra++) {
    pst_lower_options lower;
    pst_lower_options_init(&lower);
    lower.extra_slots = extra;
    pst_schedule *s = generate("1f1b", 2, 16, 2), *full = NULL;
    assert_ok(pst_schedule_lower(s, &lower, NULL, &full));
    pst_simulate_options o;
    pst_simulate_options_init(&o);
    o.lower = &lower;
    o.latency_s = 0.5;
    pst_simulation *r = simulate(full, &o);
    makespan[extra] = r->makespan_s;
    pst_simulation_destroy(r);
    pst_schedule_destroy(full);
    pst_schedule_destroy(s);
  }
  assert_true(makespan[1] < makespan[0]);
}

/* GPipe, K=2, M=2, latency 5: with outgoing rings of one, F1 and B1 wait until F0's and B0's tensor has
 * arrived. */
static void test_ring_waits(void **state) {
  for (int n_out = 1; n_out <= 2; n_out++) {
    pst_lower_options lower;
    pst_lower_options_init(&lower);
    lower.n_out = n_out;
    pst_schedule *s = generate("gpipe", 2, 2, 0), *full = NULL;
    assert_ok(pst_schedule_lower(s, &lower, NULL, &full));
    pst_simulate_options o;
    pst_simulate_options_init(&o);
    o.lower = &lower;
    o.latency_s = 5;
    o.early_send = false;
    pst_simulation *r = simulate(full, &o);
    assert_close(r->makespan_s, n_out == 1 ? 29 : 19, "makespan");
    pst_simulation_destroy(r);
    pst_schedule_destroy(full);
    pst_schedule_destroy(s);
  }
}

static void test_refusals(void **state) {
  double bad[] = {1, -1}, nan_times[] = {NAN, 1};
  pst_schedule *s = generate("1f1b", 2, 2, 0);
  pst_simulation *r = NULL;
  pst_simulate_options o;
  pst_simulate_options_init(&o);
  o.weight_s = bad;
  assert_refused(pst_schedule_simulate(s, &o, &r), "weight_s of stage 1: seen -1");
  o.weight_s = NULL, o.forward_s = nan_times;
  assert_refused(pst_schedule_simulate(s, &o, &r), "forward_s of stage 0: seen nan");
  o.forward_s = NULL, o.latency_s = INFINITY;
  assert_refused(pst_schedule_simulate(s, &o, &r), "latency_s: seen inf");
  o.latency_s = 0;
  s->lists[0].count--;
  assert_refused(pst_schedule_simulate(s, &o, &r), "B or I of stage 0, microbatch 1 is missing");
  assert_null(r);
  pst_schedule_destroy(s);
}

/* 8.4 million compute actions, 25 million with messages: linear, in seconds. */
static void test_large(void **state) {
  struct timespec t[4];
  pst_simulate_options o;
  pst_simulation *r = NULL;
  pst_simulate_options_init(&o);
  clock_gettime(CLOCK_MONOTONIC, &t[0]);
  pst_schedule *s = generate("1f1b", 1024, 4096, 0), *full = NULL;
  assert_ok(pst_schedule_simulate(s, &o, &r));
  clock_gettime(CLOCK_MONOTONIC, &t[1]);
  assert_close(r->makespan_s, 4096.0 * 3 + 1023 * 2, "makespan");
  pst_simulation_destroy(r);
  assert_ok(pst_schedule_lower(s, NULL, NULL, &full));
  pst_schedule_destroy(s);
  clock_gettime(CLOCK_MONOTONIC, &t[2]);
  assert_ok(pst_schedule_simulate(full, &o, &r));
  clock_gettime(CLOCK_MONOTONIC, &t[3]);
  assert_close(r->makespan_s, 4096.0 * 3 + 1023 * 2, "makespan of the full lists");
  double s_of[3];
  for (int i = 0; i < 3; i++)
    s_of[i] = (double)(t[i + 1].tv_sec - t[i].tv_sec) + 1e-9 * (double)(t[i + 1].tv_nsec - t[i].tv_nsec);
  print_message("1024 x 4096: made and simulated %.2f s, lowered %.2f s, %zu actions simulated %.2f s\n",
                s_of[0], s_of[1], pst_schedule_total(full), s_of[2]);
  pst_simulation_destroy(r);
  pst_schedule_destroy(full);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_published_table),
      cmocka_unit_test(test_latency_period),
      cmocka_unit_test(test_extra_forwards_with_latency),
      cmocka_unit_test(test_automatic_extra_forwards),
      cmocka_unit_test(test_split_list),
      cmocka_unit_test(test_v_placement),
      cmocka_unit_test(test_spans),
      cmocka_unit_test(test_unlike_stages),
      cmocka_unit_test(test_extra_slot_hides_transfer),
      cmocka_unit_test(test_ring_waits),
      cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_large),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
