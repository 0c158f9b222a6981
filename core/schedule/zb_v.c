#include "core/schedule/emit.h"

/* One worker's list as it grows: the two stages take turns, each kind counts its own microbatches. */
typedef struct writer {
  pst_schedule *schedule;
  int worker;
  int stage[2];       /* down, up */
  int64_t next[3][2]; /* of F, I, W */
  pst_status st;
} writer;

static void put(writer *o, pst_action_kind kind, int way) {
  int row = kind == PST_ACTION_F ? 0 : kind == PST_ACTION_I ? 1 : 2;
  int64_t m = o->next[row][way]++;
  if (o->st == PST_OK && m < o->schedule->microbatches)
    o->st = pst_schedule_append(o->schedule, o->worker, kind, o->stage[way], m);
}

static void put_backward(writer *o, int way) {
  put(o, PST_ACTION_I, way);
  put(o, PST_ACTION_W, way);
}

/* For fewer than 2K-1 microbatches the list is made for 2K-1 and what is too much is left out. */
static pst_status emit_worker(pst_schedule *schedule, int worker, const pst_schedule_options *options) {
  enum { DOWN, UP };
  int k = schedule->workers, r = worker;
  int64_t n = schedule->microbatches > 2 * k - 1 ? schedule->microbatches : 2 * k - 1;
  writer o = {.schedule = schedule, .worker = r, .stage = {r, 2 * k - 1 - r}};
  PST_TRY(pst_schedule_reserve(schedule, r, 6 * (size_t)schedule->microbatches));
  for (int i = 0; i < 2 * (k - r) - 1; i++) put(&o, PST_ACTION_F, DOWN);
  for (int i = 0; i < r; i++) {
    put(&o, PST_ACTION_F, UP);
    put(&o, PST_ACTION_F, DOWN);
  }
  for (int i = 0; i < k - r; i++) {
    put(&o, PST_ACTION_F, UP);
    put_backward(&o, UP);
  }
  while (o.next[0][UP] < o.next[0][DOWN] || o.next[0][DOWN] < n) {
    if (o.next[0][DOWN] < n) put(&o, PST_ACTION_F, DOWN);
    put_backward(&o, DOWN);
    put(&o, PST_ACTION_F, UP);
    put_backward(&o, UP);
  }
  for (int i = 0; i < r; i++) {
    put(&o, PST_ACTION_I, DOWN);
    put(&o, PST_ACTION_I, UP);
  }
  for (int i = 0; i < k - r; i++) put_backward(&o, DOWN);
  while (o.next[2][UP] < o.next[1][UP]) put(&o, PST_ACTION_W, UP);
  while (o.next[2][DOWN] < o.next[1][DOWN]) put(&o, PST_ACTION_W, DOWN);
  return o.st;
}

pst_status pst__generate_zb_v(const pst_schedule_options *options, pst_schedule **out_schedule) {
  return pst__generate_lists(options, true, true, emit_worker, out_schedule);
}
