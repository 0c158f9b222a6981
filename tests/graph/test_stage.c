/* Lowering: a boundary of several tensors gives the bits of the uncut model wherever it is cut, and values
 * that share memory never disturb each other. */
#include "core/graph/stage.h"

#include "core/schedule/families.h"
#include "tests/graph/rig.h"
#include "tests/support.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STEPS = 3, UNITS = RIG_TWO_STREAMS_UNITS };

static rig_options streams(void) {
  return (rig_options){
      .build = rig_two_streams, .batch = 2, .sequence = 6, .microbatches = 5, .vocab = RIG_TWO_STREAMS_VOCAB};
}

typedef struct record {
  double loss[STEPS], norm[STEPS];
  uint64_t weights;
} record;

static record train(const rig_options *o) {
  record r;
  memset(&r, 0, sizeof r);
  rig *t = NULL;
  assert_ok(rig_create(o, &t));
  for (int s = 0; s < STEPS; s++) {
    pst_step_result result;
    assert_ok(rig_step(t, s, &result));
    r.loss[s] = result.loss;
    r.norm[s] = result.gradient_norm;
  }
  r.weights = rig_weights_hash(t);
  rig_destroy(t);
  return r;
}

static void assert_same(const record *a, const record *b, const char *what) {
  if (memcmp(a, b, sizeof *a) != 0)
    fail_msg("%s: losses %.17g %.17g and %.17g %.17g, norms %.17g and %.17g, weights %s", what, a->loss[0],
             a->loss[STEPS - 1], b->loss[0], b->loss[STEPS - 1], a->norm[0], b->norm[0],
             a->weights == b->weights ? "alike" : "unlike");
}

/* Bit u of `mask` cuts after unit u. */
static int cut_by(unsigned mask, int32_t *cut) {
  int n = 0;
  cut[n++] = 0;
  for (int u = 0; u + 1 < UNITS; u++)
    if (mask >> u & 1) cut[n++] = u + 1;
  cut[n] = UNITS;
  return n;
}

static void every_cut_gives_the_same_bits(void **state) {
  (void)state;
  rig_options o = streams();
  record oracle = train(&o);
  assert_true(oracle.norm[0] > 0 && oracle.loss[0] > 0);
  for (unsigned mask = 1; mask < 1u << (UNITS - 1); mask++) {
    for (int form = 0; form < 4; form++) {
      if (form % 2 == 1 && mask % 5 != 0) continue; /* fused and split everywhere are the extremes */
      int32_t cut[UNITS + 1];
      char what[64];
      o.n_stages = cut_by(mask, cut);
      o.cut = cut;
      o.backward = (pst_backward)((form + 1) % 4);
      o.schedule = mask % 2 ? "1f1b" : "gpipe";
      snprintf(what, sizeof what, "cut %#x, form %d, %s", mask, (int)o.backward, o.schedule);
      record r = train(&o);
      assert_same(&oracle, &r, what);
    }
  }
}

typedef struct slow {
  int worker;
  unsigned kinds; /* bits by action kind */
} slow;

static pst_status slow_down(void *user, int worker, int64_t step, pst_action a) {
  (void)step;
  const slow *s = user;
  if (worker == s->worker && (s->kinds >> a.kind & 1))
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  return PST_OK;
}

/* One worker is slow, so that everything its neighbour sends is early and everything it takes is late:
 * nothing may land where an older microbatch is still read, nothing may be written over before it is gone. */
static void a_slow_worker_disturbs_nobody(void **state) {
  (void)state;
  rig_options o = streams();
  record oracle = train(&o);
  static const unsigned kinds[] = {1u << PST_ACTION_W, 1u << PST_ACTION_B | 1u << PST_ACTION_I,
                                   1u << PST_ACTION_F};
  for (unsigned mask = 1; mask < 1u << (UNITS - 1); mask++) {
    int32_t cut[UNITS + 1];
    o.n_stages = cut_by(mask, cut);
    if (o.n_stages > 3) continue;
    o.cut = cut;
    o.hook = slow_down;
    for (int i = 0; i < o.n_stages * 3 * 2; i++) {
      slow s = {.worker = i / 6, .kinds = kinds[i / 2 % 3]};
      o.hook_user = &s;
      o.backward = (pst_backward)(1 + (i + (int)mask) % 3);
      o.schedule = i % 2 ? "gpipe" : "1f1b";
      char what[96];
      snprintf(what, sizeof what, "cut %#x, form %d, worker %d slow at %#x, %s", mask, (int)o.backward,
               s.worker, s.kinds, o.schedule);
      record r = train(&o);
      assert_same(&oracle, &r, what);
      o.backward = PST_BACKWARD_EACH_SPLIT;
      r = train(&o);
      assert_same(&oracle, &r, what);
    }
  }
}

/* Every family of schedules, chunks and all, with every worker slow in turn. */
static void every_schedule_gives_the_same_bits(void **state) {
  (void)state;
  rig_options base = streams();
  base.microbatches = 6;
  record oracle = train(&base);
  size_t n_families;
  const pst_schedule_family *families = pst_schedule_families(&n_families);
  int ran = 0;
  for (size_t f = 0; f < n_families; f++) {
    if (strcmp(families[f].name, "forward-only") == 0) continue;
    for (int workers = 1; workers <= 3; workers++) {
      for (int chunks = 1; chunks * workers <= UNITS; chunks++) {
        if (families[f].chunks != 0 && families[f].chunks != chunks) continue;
        for (int who = -1; who < workers; who++) {
          rig_options o = base;
          slow s = {.worker = who,
                    .kinds = who % 2 ? 1u << PST_ACTION_W : 1u << PST_ACTION_B | 1u << PST_ACTION_I};
          o.schedule = families[f].name;
          o.n_stages = workers * chunks;
          o.chunks = chunks;
          o.hook = slow_down;
          o.hook_user = &s;
          char what[96];
          snprintf(what, sizeof what, "%s, K=%d, V=%d, worker %d slow", o.schedule, workers, chunks, who);
          print_message("%s\n", what);
          record r = train(&o);
          assert_same(&oracle, &r, what);
          ran++;
          if (who >= 0) continue;
          o.backward = PST_BACKWARD_EACH_SPLIT;
          r = train(&o);
          assert_same(&oracle, &r, what);
        }
      }
    }
  }
  print_message("%d pipelines\n", ran);
  assert_true(ran > 50);
}

/* Attention that sees both ways; `user` is whether it is told how long the sequences are. */
static void two_ways(pst_graph *g, void *user) {
  enum { C = 8, V = RIG_TWO_STREAMS_VOCAB };
  const bool *told = user;
  pst_init init = {PST_INIT_NORMAL, 0.3f};
  pst_graph_unit(g, "embed");
  pst_value table = pst_param(g, "table", 2, (int64_t[]){V, C}, init);
  pst_value x = pst_embedding(g, pst_graph_tokens(g), table, PST_NO_VALUE);
  pst_graph_unit(g, "attention");
  pst_attention_options o = {
      .heads = 2, .kv_heads = 2, .head_dim = 4, .lengths = *told ? pst_graph_lengths(g) : PST_NO_VALUE};
  x = pst_add(g, x, pst_attention(g, x, x, x, &o));
  pst_graph_unit(g, "head");
  pst_graph_loss(g, pst_linear_cross_entropy(g, x, table, pst_graph_targets(g), false));
}

static void sequences_are_full_where_a_model_asks(void **state) {
  (void)state;
  bool told = false;
  rig_options o = streams();
  o.build = two_ways;
  o.user = &told;
  record oracle = train(&o);
  told = true;
  for (o.n_stages = 1; o.n_stages <= 3; o.n_stages++) {
    record r = train(&o);
    assert_same(&oracle, &r, "with lengths");
  }
}

/* Small allocations: the segments fall into many blocks, the bits stay. */
static void blocks_do_not_change_bits(void **state) {
  (void)state;
  rig_options o = streams();
  record oracle = train(&o);
  static const int64_t limits[] = {2112, 2560, 4096, 10000};
  for (int i = 0; i < 4; i++) {
    for (int k = 1; k <= 3; k++) {
      char what[64];
      o.max_block_bytes = limits[i];
      o.n_stages = k;
      o.backward = (pst_backward)((i + k) % 4);
      snprintf(what, sizeof what, "blocks of %lld, K=%d", (long long)limits[i], k);
      record r = train(&o);
      assert_same(&oracle, &r, what);
    }
  }
}

static pst_graph *record_streams(void) {
  pst_graph *g = NULL;
  assert_ok(pst_graph_create(&(pst_graph_options){.batch = 2, .sequence = 6}, &g));
  rig_two_streams(g, NULL);
  assert_ok(pst_graph_differentiate(g));
  return g;
}

static void segments_fall_into_blocks_below_the_limit(void **state) {
  (void)state;
  pst_graph *g = record_streams();
  pst_stage_code *code = NULL;
  pst_stage_options so = {.max_block_bytes = 512};
  assert_ok(pst_stage_lower(g, (int32_t[]){0, UNITS}, 1, 0, &so, &code));
  int most = 0;
  for (int s = 0; s < PST_SEGMENT_COUNT; s++) {
    int64_t sum = 0;
    for (int b = 0; b < code->layout[s].n_blocks; b++) {
      assert_true(code->layout[s].block_bytes[b] <= 512);
      sum += code->layout[s].block_bytes[b];
    }
    assert_int_equal(sum, code->layout[s].bytes);
    if (code->layout[s].n_blocks > most) most = code->layout[s].n_blocks;
  }
  assert_true(most > 2);
  pst_stage_destroy(code);
  so.max_block_bytes = 320; /* the tables are 11 * 8 * 4 = 352 bytes */
  assert_fails(pst_stage_lower(g, (int32_t[]){0, UNITS}, 1, 0, &so, &code), PST_NO_MEMORY,
               "a tensor of 352 bytes is larger than the device's largest allocation of 320");
  pst_graph_destroy(g);
}

/* The value of one stream crosses units that do not read it; gradients come back the same way. */
static void boundaries_pass_values_through(void **state) {
  (void)state;
  pst_graph *g = record_streams();
  pst_stage_code *code = NULL;
  int32_t cut[] = {0, 1, 2, 3, 4, 5, 6, 7};
  pst_stage_options so = {0};
  static const int forward[] = {2, 3, 3, 2, 2, 1, 0}; /* a b | a b c | a b d | b e | b f | h */
  for (int s = 0; s < UNITS; s++) {
    assert_ok(pst_stage_lower(g, cut, UNITS, s, &so, &code));
    if (s + 1 < UNITS) assert_in_range(code->send_forward.n, forward[s], forward[s]);
    for (int i = 0; i < code->receive_forward.n; i++) {
      bool sent_on = false;
      for (int j = 0; j < code->send_forward.n; j++)
        sent_on = sent_on || (code->send_forward.at[j].value == code->receive_forward.at[i].value &&
                              code->send_forward.at[j].at.segment == code->receive_forward.at[i].at.segment);
      if (s == 2 && i == 0) assert_true(sent_on); /* a, on its way to `late` */
    }
    bool reads_tokens = pst_operand_present(&code->inputs[PST_INPUT_TOKENS]);
    assert_int_equal(reads_tokens, s == 0 || s == 2);
    assert_int_equal(pst_operand_present(&code->inputs[PST_INPUT_TARGETS]), s == 6);
    assert_int_equal(pst_operand_present(&code->result), s == 6);
    pst_stage_destroy(code);
  }
  pst_graph_destroy(g);
}

static void bad_cuts_are_refused(void **state) {
  (void)state;
  pst_graph *g = record_streams();
  pst_stage_code *code = NULL;
  pst_stage_options so = {0};
  assert_fails(pst_stage_lower(g, (int32_t[]){0, 6}, 1, 0, &so, &code), PST_INVALID, "end at unit 7");
  assert_fails(pst_stage_lower(g, (int32_t[]){1, 7}, 1, 0, &so, &code), PST_INVALID, "begin at unit 0");
  assert_fails(pst_stage_lower(g, (int32_t[]){0, 3, 3, 7}, 3, 0, &so, &code), PST_INVALID,
               "stage 1 would hold no unit");
  assert_null(code);
  pst_graph_destroy(g);
  assert_ok(pst_graph_create(&(pst_graph_options){.batch = 2, .sequence = 6}, &g));
  rig_two_streams(g, NULL);
  assert_fails(pst_stage_lower(g, (int32_t[]){0, 7}, 1, 0, &so, &code), PST_INVALID, "differentiated");
  pst_graph_destroy(g);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_cut_gives_the_same_bits),
      cmocka_unit_test(a_slow_worker_disturbs_nobody),
      cmocka_unit_test(every_schedule_gives_the_same_bits),
      cmocka_unit_test(sequences_are_full_where_a_model_asks),
      cmocka_unit_test(blocks_do_not_change_bits),
      cmocka_unit_test(segments_fall_into_blocks_below_the_limit),
      cmocka_unit_test(boundaries_pass_values_through),
      cmocka_unit_test(bad_cuts_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
