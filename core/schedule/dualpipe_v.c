#include "core/schedule/emit.h"

#include <stdlib.h>

enum { DOWN, UP };

/* One worker's list as it grows. A backward is whole, or I with its W put off; those are run in the order of
 * their I. */
typedef struct writer {
  pst_schedule *schedule;
  int worker;
  int stage[2];
  int64_t forwards[2], backwards[2], weights[2];
  unsigned char *owed; /* [2K] the way of each W put off, a queue */
  int n_owed, paid;
  pst_status st;
} writer;

static void append(writer *o, pst_action_kind kind, int way, int64_t m) {
  if (o->st == PST_OK) o->st = pst_schedule_append(o->schedule, o->worker, kind, o->stage[way], m);
}

static void forward(writer *o, int way) {
  append(o, PST_ACTION_F, way, o->forwards[way]++);
}

static void backward(writer *o, int way) {
  append(o, PST_ACTION_B, way, o->backwards[way]++);
  o->weights[way]++;
}

static void input_gradient(writer *o, int way) {
  append(o, PST_ACTION_I, way, o->backwards[way]++);
  o->owed[o->n_owed++ % (2 * o->schedule->workers)] = (unsigned char)way;
}

static void weight_gradient(writer *o) {
  int way = o->owed[o->paid++ % (2 * o->schedule->workers)];
  append(o, PST_ACTION_W, way, o->weights[way]++);
}

/* The eight phases of the published list. What is an overlapped pair of forward and backward there is one
 * after the other here, the forward first. */
static void emit_phases(writer *o) {
  int k = o->schedule->workers, r = o->worker;
  int64_t n = o->schedule->microbatches;
  for (int i = 0; i < 2 * (k - r - 1); i++) forward(o, DOWN);
  for (int i = 0; i < r + 1; i++) forward(o, DOWN), forward(o, UP);
  for (int i = 0; i < k - r - 1; i++) input_gradient(o, UP), weight_gradient(o), forward(o, UP);
  for (int64_t i = 0; i < n - 2 * k + r + 1; i++) {
    forward(o, DOWN), backward(o, UP);
    forward(o, UP), backward(o, DOWN);
  }
  for (int i = 0; i < k - r - 1; i++) backward(o, UP), forward(o, UP), backward(o, DOWN);
  bool put_off = false;
  for (int i = 0; i < r + 1; i++) {
    if (i == (r + 1) / 2 && r % 2 == 1) put_off = true;
    put_off ? input_gradient(o, UP) : backward(o, UP);
    if (i == (r + 1) / 2 && r % 2 == 0) put_off = true;
    put_off ? input_gradient(o, DOWN) : backward(o, DOWN);
  }
  for (int i = 0; i < k - r - 1; i++) weight_gradient(o), input_gradient(o, DOWN);
  while (o->paid < o->n_owed) weight_gradient(o);
}

static pst_status emit_worker(pst_schedule *schedule, int worker, const pst_schedule_options *options) {
  int k = schedule->workers;
  writer o = {.schedule = schedule, .worker = worker, .stage = {worker, 2 * k - 1 - worker}};
  PST_TRY(pst_schedule_reserve(schedule, worker, 6 * (size_t)schedule->microbatches));
  o.owed = calloc(2 * (size_t)k, 1);
  if (o.owed == NULL) return pst_fail(PST_NO_MEMORY, "schedule: no memory for dualpipe-v");
  emit_phases(&o);
  free(o.owed);
  return o.st;
}

pst_status pst__generate_dualpipe_v(const pst_schedule_options *options, pst_schedule **out_schedule) {
  if (options->microbatches < 2 * (int64_t)options->workers)
    return pst_fail(PST_INVALID,
                    "schedule microbatches: seen %lld, wanted %lld or more for dualpipe-v with %d workers "
                    "(both ends of its list are 2K forwards long); zb-v takes any number",
                    (long long)options->microbatches, 2ll * options->workers, options->workers);
  return pst__generate_lists(options, true, true, emit_worker, out_schedule);
}
