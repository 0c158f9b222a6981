/* What every transport must do; each that is built in runs the whole suite. */
#include "core/transport/transport.h"

#include "core/base/clock.h"
#include "core/base/rng.h"
#include "tests/support.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static pst_transport *open_transport(const pst_transport_driver *driver, int n_workers, int64_t spin_ns) {
  pst_transport *t = NULL;
  assert_ok(driver->create(&(pst_transport_options){.n_workers = n_workers, .spin_ns = spin_ns}, &t));
  assert_string_equal(t->table->name, driver->name);
  return t;
}

static pst_channel *open_channel(pst_transport *t, int from, int to, uint32_t n_tags) {
  pst_channel *c = NULL;
  assert_ok(t->table->open(
      t, &(pst_channel_options){.from = from, .to = to, .n_tags = n_tags, .name = "F 0->1"}, &c));
  return c;
}

static pst_part part(void *at, int64_t bytes) {
  return (pst_part){.at = at, .bytes = bytes};
}

/* Messages meet by tag, in whatever order the two sides post. */
static void tags_match_not_order(const pst_transport_driver *driver) {
  enum { TAGS = 5 };
  pst_transport *t = open_transport(driver, 2, 0);
  pst_channel *there = open_channel(t, 0, 1, TAGS), *back = open_channel(t, 1, 0, TAGS);
  static const uint32_t sent_order[TAGS] = {3, 0, 4, 1, 2}, received_order[TAGS] = {1, 2, 0, 4, 3};
  for (int round = 0; round < 3; round++) {
    int64_t from[2][TAGS], to[2][TAGS];
    pst_request sent[2][TAGS], received[2][TAGS];
    for (int i = 0; i < TAGS; i++) {
      for (int d = 0; d < 2; d++) {
        uint32_t s = sent_order[i], r = received_order[i];
        from[d][s] = 1000 * round + 10 * (int64_t)s + d;
        to[d][r] = -1;
        pst_part out = part(&from[d][s], 8), in = part(&to[d][r], 8);
        if ((round + d) % 2) {
          assert_ok(t->table->receive(d ? back : there, r, &in, 1, &received[d][r]));
          assert_ok(t->table->send(d ? back : there, s, &out, 1, &sent[d][s]));
        } else {
          assert_ok(t->table->send(d ? back : there, s, &out, 1, &sent[d][s]));
          assert_ok(t->table->receive(d ? back : there, r, &in, 1, &received[d][r]));
        }
      }
    }
    for (int i = 0; i < TAGS; i++) {
      for (int d = 0; d < 2; d++) {
        assert_ok(pst_transport_wait(t, d ? 0 : 1, &received[d][i]));
        assert_ok(pst_transport_wait(t, d ? 1 : 0, &sent[d][i]));
        assert_int_equal(to[d][i], 1000 * round + 10 * i + d);
      }
    }
  }
  t->table->destroy(t);
}

/* A send is not complete before its receive is posted, whichever side is first; nothing is written before. */
static void nothing_is_complete_before_both_have_posted(const pst_transport_driver *driver) {
  pst_transport *t = open_transport(driver, 2, 0);
  pst_channel *c = open_channel(t, 0, 1, 2);
  for (int receiver_first = 0; receiver_first < 2; receiver_first++) {
    char from[] = "turbine", to[] = "-------";
    pst_request sent, received;
    pst_part out = part(from, sizeof from), in = part(to, sizeof to);
    if (receiver_first) {
      assert_ok(t->table->receive(c, 1, &in, 1, &received));
      assert_false(t->table->test(&received));
      assert_ok(t->table->send(c, 1, &out, 1, &sent));
    } else {
      assert_ok(t->table->send(c, 1, &out, 1, &sent));
      assert_false(t->table->test(&sent));
      assert_string_equal(to, "-------");
      from[0] = 'T'; /* nothing is buffered: what is sent is what lies there when the receive comes */
      assert_ok(t->table->receive(c, 1, &in, 1, &received));
    }
    assert_ok(pst_transport_wait(t, 1, &received));
    assert_ok(pst_transport_wait(t, 0, &sent));
    assert_string_equal(to, from);
  }
  pst_request none = {0};
  assert_ok(pst_transport_wait(t, 0, &none));
  t->table->destroy(t);
}

static void many_parts_and_none(const pst_transport_driver *driver) {
  pst_transport *t = open_transport(driver, 2, 0);
  pst_channel *c = open_channel(t, 0, 1, 1);
  char a[] = "one", b[] = "twenty", x[4] = {0}, y[7] = {0};
  pst_part out[] = {part(a, 4), part(NULL, 0), part(b, 7)}, in[] = {part(x, 4), part(NULL, 0), part(y, 7)};
  pst_request sent, received;
  assert_ok(t->table->send(c, 0, out, 3, &sent));
  assert_ok(t->table->receive(c, 0, in, 3, &received));
  assert_ok(pst_transport_wait(t, 1, &received));
  assert_ok(pst_transport_wait(t, 0, &sent));
  assert_string_equal(x, "one");
  assert_string_equal(y, "twenty");
  assert_ok(t->table->send(c, 0, out, 0, &sent));
  assert_ok(t->table->receive(c, 0, in, 0, &received));
  assert_ok(pst_transport_wait(t, 1, &received));
  assert_ok(pst_transport_wait(t, 0, &sent));
  t->table->destroy(t);
}

static void unlike_sizes_end_everything(const pst_transport_driver *driver) {
  for (int i = 0; i < 2; i++) {
    pst_transport *t = open_transport(driver, 2, 0);
    pst_channel *c = open_channel(t, 0, 1, 3);
    char from[16] = "0123456789abcde", to[16] = {0};
    pst_part out[] = {part(from, 8), part(from, 4)}, in[] = {part(to, i ? 8 : 7), part(to + 8, 4)};
    pst_request sent, received;
    assert_ok(t->table->send(c, 2, out, 2, &sent));
    pst_status st = t->table->receive(c, 2, in, i ? 1 : 2, &received);
    if (st == PST_OK) st = pst_transport_wait(t, 1, &received); /* a transport may see it later */
    assert_int_equal(st, PST_INTERNAL);
    assert_non_null(strstr(pst_error(), "F 0->1, message 2: the two sides give parts of unlike sizes"));
    assert_fails(pst_transport_wait(t, 0, &sent), PST_INTERNAL, "unlike sizes");
    assert_int_equal(to[0], 0);
    t->table->destroy(t);
  }
}

static void bad_arguments_are_refused(const pst_transport_driver *driver) {
  pst_transport *t = NULL;
  assert_fails(driver->create(&(pst_transport_options){.n_workers = 0}, &t), PST_INVALID, "0 workers");
  assert_null(t);
  t = open_transport(driver, 2, 0);
  pst_channel *c = NULL;
  assert_fails(t->table->open(t, &(pst_channel_options){.from = 0, .to = 2, .n_tags = 1, .name = "x"}, &c),
               PST_INVALID, "channel x: from worker 0 to 2");
  assert_fails(t->table->open(t, &(pst_channel_options){.from = -1, .to = 1, .n_tags = 1, .name = "x"}, &c),
               PST_INVALID, "wanted workers below 2");
  assert_fails(t->table->open(t, &(pst_channel_options){.from = 0, .to = 1, .n_tags = 0, .name = "x"}, &c),
               PST_INVALID, "at least one tag");
  assert_null(c);
  c = open_channel(t, 0, 1, 2);
  pst_request r;
  pst_part parts[64] = {{0}};
  assert_fails(t->table->send(c, 2, parts, 1, &r), PST_INTERNAL, "a tag below 2");
  assert_fails(t->table->receive(c, 0, parts, 64, &r), PST_INTERNAL, "64 parts");
  const pst_transport_table *table = t->table;
  table->destroy(t);
  table->destroy(NULL);
}

/* ---- two threads ---- */

typedef struct waiter {
  pst_transport *t;
  int worker;
  pst_request request;
  pst_status status;
  char error[256];
  double cpu_s;
} waiter;

static double thread_cpu_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void *wait_main(void *arg) {
  waiter *w = arg;
  double begin = thread_cpu_s();
  w->status = pst_transport_wait(w->t, w->worker, &w->request);
  w->cpu_s = thread_cpu_s() - begin;
  if (w->status != PST_OK) snprintf(w->error, sizeof w->error, "%s", pst_error());
  return NULL;
}

static void abort_wakes_all_with_the_first_cause(const pst_transport_driver *driver) {
  pst_transport *t = open_transport(driver, 4, 0);
  assert_ok(t->table->health(t));
  pst_channel *c[3];
  waiter w[3];
  pthread_t threads[3];
  char memory[3][8];
  for (int i = 0; i < 3; i++) {
    c[i] = open_channel(t, 3, i, 1);
    w[i] = (waiter){.t = t, .worker = i};
    pst_part in = part(memory[i], 8);
    assert_ok(t->table->receive(c[i], 0, &in, 1, &w[i].request));
    assert_int_equal(pthread_create(&threads[i], NULL, wait_main, &w[i]), 0);
  }
  nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
  int64_t begin = pst_clock_ns();
  t->table->abort(t, PST_LOST, "worker 3 lost its device");
  t->table->abort(t, PST_INVALID, "a consequence");
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
  assert_true(pst_clock_ns() - begin < 1000000000);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(w[i].status, PST_LOST);
    assert_string_equal(w[i].error, "worker 3 lost its device");
  }
  assert_fails(t->table->health(t), PST_LOST, "worker 3 lost its device");
  pst_request late; /* waits to come end too */
  pst_part in = part(memory[0], 8);
  pst_channel *another = open_channel(t, 1, 2, 1);
  if (t->table->receive(another, 0, &in, 1, &late) == PST_OK)
    assert_fails(pst_transport_wait(t, 2, &late), PST_LOST, "worker 3 lost its device");
  t->table->destroy(t);
}

static void waiting_sleeps(const pst_transport_driver *driver) {
  static const int64_t spins[] = {0, 20000};
  for (int i = 0; i < 2; i++) {
    pst_transport *t = open_transport(driver, 2, spins[i]);
    pst_channel *c = open_channel(t, 0, 1, 1);
    char from[8] = "late", to[8] = "";
    waiter w = {.t = t, .worker = 1};
    pst_part in = part(to, 8), out = part(from, 8);
    pthread_t thread;
    pst_request sent;
    assert_ok(t->table->receive(c, 0, &in, 1, &w.request));
    assert_int_equal(pthread_create(&thread, NULL, wait_main, &w), 0);
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    int64_t begin = pst_clock_ns();
    assert_ok(t->table->send(c, 0, &out, 1, &sent));
    pthread_join(thread, NULL);
    int64_t took = pst_clock_ns() - begin;
    assert_ok(pst_transport_wait(t, 0, &sent));
    assert_int_equal(w.status, PST_OK);
    assert_string_equal(to, "late");
    print_message("%s, spin %lld ns: %.2f ms of a core in 200 ms, woke after %.2f ms\n", driver->name,
                  (long long)spins[i], w.cpu_s * 1e3, (double)took / 1e6);
    assert_true(w.cpu_s < 0.005);
    t->table->destroy(t);
  }
}

/* ---- many messages, both ways, at uneven speeds ---- */

enum { SEED = 99, TAGS = 4, MESSAGES = 10000, WORDS = 5 };

typedef struct side {
  pst_transport *t;
  pst_channel *out, *in;
  int worker;
  int64_t wrong;
  pst_status status;
  char error[256];
} side;

static uint32_t draw(int worker, int64_t i, uint32_t what) {
  uint32_t r[4];
  pst_rng_philox(pst_rng_key_make(SEED + (uint64_t)worker, (uint64_t)i), (uint32_t[4]){what, 0, 0, 0}, r);
  return r[0];
}

static void dawdle(int worker, int64_t i) {
  uint32_t r = draw(worker, i, 1) % 64;
  if (r == 0)
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
  else
    for (volatile uint32_t n = 0; n < r * 8; n++) continue;
}

/* Blocks of TAGS messages: each side posts sends and receives of a block in an order of its own. */
static pst_status exchange_all(side *s) {
  const pst_transport_table *table = s->t->table;
  for (int64_t block = 0; block < MESSAGES / TAGS; block++) {
    uint64_t from[TAGS][WORDS], to[TAGS][WORDS];
    pst_request sent[TAGS], received[TAGS];
    for (int i = 0; i < 2 * TAGS; i++) {
      uint32_t tag = (uint32_t)((i / 2 + (int)(draw(s->worker, block, 0) % TAGS)) % TAGS);
      dawdle(s->worker, block * 2 * TAGS + i);
      if ((i + s->worker) % 2) {
        for (uint64_t w = 0; w < WORDS; w++)
          from[tag][w] = (uint64_t)(block * TAGS + tag) * 31 + w + (uint64_t)s->worker * 1000003;
        pst_part p = part(from[tag], sizeof from[tag]);
        PST_TRY(table->send(s->out, tag, &p, 1, &sent[tag]));
      } else {
        pst_part p = part(to[tag], sizeof to[tag]);
        PST_TRY(table->receive(s->in, tag, &p, 1, &received[tag]));
      }
    }
    for (uint32_t tag = 0; tag < TAGS; tag++) {
      PST_TRY(pst_transport_wait(s->t, s->worker, &received[tag]));
      for (uint64_t w = 0; w < WORDS; w++)
        s->wrong +=
            to[tag][w] != (uint64_t)(block * TAGS + tag) * 31 + w + (uint64_t)(1 - s->worker) * 1000003;
    }
    for (uint32_t tag = 0; tag < TAGS; tag++) PST_TRY(pst_transport_wait(s->t, s->worker, &sent[tag]));
  }
  return PST_OK;
}

static void *side_main(void *arg) {
  side *s = arg;
  s->status = exchange_all(s);
  if (s->status != PST_OK) {
    snprintf(s->error, sizeof s->error, "%s", pst_error());
    s->t->table->abort(s->t, s->status, s->error);
  }
  return NULL;
}

static void jitter_loses_and_mixes_nothing(const pst_transport_driver *driver) {
  print_message("seed %d\n", SEED);
  for (int spin = 0; spin < 2; spin++) {
    pst_transport *t = open_transport(driver, 2, spin ? 5000 : 0);
    pst_channel *there = open_channel(t, 0, 1, TAGS), *back = open_channel(t, 1, 0, TAGS);
    side sides[2] = {{.t = t, .out = there, .in = back, .worker = 0},
                     {.t = t, .out = back, .in = there, .worker = 1}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, side_main, &sides[i]), 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) {
      if (sides[i].status != PST_OK) fail_msg("worker %d: %s", i, sides[i].error);
      assert_int_equal(sides[i].wrong, 0);
    }
    t->table->destroy(t);
  }
}

/* ---- all of it, for each transport ---- */

static void on_each(void (*check)(const pst_transport_driver *)) {
  int n = 0;
  for (const pst_transport_driver *const *d = pst_transports; *d; d++, n++) {
    print_message("transport %s\n", (*d)->name);
    check(*d);
  }
  assert_true(n > 0);
}

#define CHECK(name)                                                                                          \
  static void check_##name(void **state) {                                                                   \
    (void)state;                                                                                             \
    on_each(name);                                                                                           \
  }
CHECK(tags_match_not_order)
CHECK(nothing_is_complete_before_both_have_posted)
CHECK(many_parts_and_none)
CHECK(unlike_sizes_end_everything)
CHECK(bad_arguments_are_refused)
CHECK(abort_wakes_all_with_the_first_cause)
CHECK(waiting_sleeps)
CHECK(jitter_loses_and_mixes_nothing)

static void transports_are_found_by_name(void **state) {
  (void)state;
  for (const pst_transport_driver *const *d = pst_transports; *d; d++)
    assert_ptr_equal(pst_transport_find((*d)->name), *d);
  assert_null(pst_transport_find("pigeon"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(transports_are_found_by_name),
      cmocka_unit_test(check_tags_match_not_order),
      cmocka_unit_test(check_nothing_is_complete_before_both_have_posted),
      cmocka_unit_test(check_many_parts_and_none),
      cmocka_unit_test(check_unlike_sizes_end_everything),
      cmocka_unit_test(check_bad_arguments_are_refused),
      cmocka_unit_test(check_abort_wakes_all_with_the_first_cause),
      cmocka_unit_test(check_waiting_sleeps),
      cmocka_unit_test(check_jitter_loses_and_mixes_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
