#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/file.h"
#include "core/schedule/csv.h"

/* Text that grows; the first failure stays. */
typedef struct writer {
  char *text;
  size_t n, capacity;
  bool failed;
} writer;

static void put(writer *w, const char *text) {
  size_t more = strlen(text);
  if (w->failed) return;
  if (w->n + more + 1 > w->capacity) {
    size_t capacity = 2 * (w->n + more) + 256;
    char *grown = realloc(w->text, capacity);
    if (grown == NULL) {
      w->failed = true;
      return;
    }
    w->text = grown;
    w->capacity = capacity;
  }
  memcpy(w->text + w->n, text, more + 1);
  w->n += more;
}

static void put_rows(writer *out, const pst_schedule *schedule, bool ends) {
  char text[PST_ACTION_TEXT], cell[PST_ACTION_TEXT + 24];
  for (int w = 0; w < schedule->workers; w++) {
    const pst_action_list *list = &schedule->lists[w];
    bool first = true;
    for (size_t i = 0; i < list->count; i++) {
      if (list->items[i].kind > PST_ACTION_RECV_B) continue;
      if (!first) put(out, ",");
      put(out, pst_action_format(list->items[i], text));
      first = false;
    }
    for (int s = 0; ends && schedule->training && s < schedule->stages; s++) {
      if (schedule->worker_of[s] != w) continue;
      snprintf(cell, sizeof cell, ",%dREDUCE_GRAD,%dWAIT_REDUCE_GRAD", s, s);
      put(out, cell);
    }
    for (size_t i = 0; ends && i < list->count; i++) {
      pst_action a = list->items[i];
      if (a.kind != PST_ACTION_SEND_F && a.kind != PST_ACTION_SEND_B) continue;
      snprintf(cell, sizeof cell, ",%uWAIT_%s%u", (unsigned)a.chunk, pst_action_kind_name(a.kind),
               (unsigned)a.microbatch);
      put(out, cell);
    }
    put(out, "\n");
  }
}

/* Walks all lists until they end. A send is placed behind its action, and at that moment its receive at the
 * end of what the peer has so far; an action is placed once its receive is there. So the messages of two
 * workers stand in one order on both sides. */
typedef struct weave {
  const pst_schedule *from;
  pst_schedule *to;
  int64_t *activations, *gradients; /* [stages] received so far */
} weave;

static pst_status post(weave *w, pst_action a, int peer, pst_action_kind send, pst_action_kind receive) {
  int64_t *received = send == PST_ACTION_SEND_F ? w->activations : w->gradients;
  received[peer] = (int64_t)a.microbatch + 1;
  int here = w->from->worker_of[a.chunk], there = w->from->worker_of[peer];
  if (here == there) return PST_OK;
  PST_TRY(pst_schedule_append(w->to, here, send, a.chunk, a.microbatch));
  return pst_schedule_append(w->to, there, receive, peer, a.microbatch);
}

static bool is_ready(const weave *w, pst_action a) {
  if (a.kind == PST_ACTION_F) return a.chunk == 0 || w->activations[a.chunk] > a.microbatch;
  if (a.kind == PST_ACTION_W) return true;
  return a.chunk + 1 == w->from->stages || w->gradients[a.chunk] > a.microbatch;
}

static pst_status place(weave *w, int worker, pst_action a) {
  PST_TRY(pst_schedule_append(w->to, worker, (pst_action_kind)a.kind, a.chunk, a.microbatch));
  if (a.kind == PST_ACTION_F && a.chunk + 1 < w->from->stages)
    return post(w, a, a.chunk + 1, PST_ACTION_SEND_F, PST_ACTION_RECV_F);
  if ((a.kind == PST_ACTION_B || a.kind == PST_ACTION_I) && a.chunk > 0)
    return post(w, a, a.chunk - 1, PST_ACTION_SEND_B, PST_ACTION_RECV_B);
  return PST_OK;
}

static pst_status weave_lists(weave *w, size_t *at) {
  for (bool moved = true; moved;) {
    moved = false;
    for (int k = 0; k < w->from->workers; k++) {
      const pst_action_list *list = &w->from->lists[k];
      if (at[k] == list->count || !is_ready(w, list->items[at[k]])) continue;
      PST_TRY(place(w, k, list->items[at[k]++]));
      moved = true;
    }
  }
  for (int k = 0; k < w->from->workers; k++) {
    char text[PST_ACTION_TEXT];
    if (at[k] < w->from->lists[k].count)
      return pst_fail(PST_INVALID,
                      "schedule: worker %d, position %zu (%s): deadlock, no messages can be placed", k, at[k],
                      pst_action_format(w->from->lists[k].items[at[k]], text));
  }
  return PST_OK;
}

static pst_status with_messages(const pst_schedule *schedule, pst_schedule **out_schedule) {
  pst_status st = PST_OK;
  weave w = {.from = schedule};
  size_t stages = (size_t)schedule->stages, *at = NULL;
  if (schedule->lowered)
    return pst_fail(PST_INVALID, "schedule: seen full lists, wanted normal form to add messages");
  PST_TRY(pst_schedule_create(schedule->workers, schedule->chunks, schedule->microbatches, schedule->training,
                              &w.to));
  w.activations = calloc(stages, sizeof *w.activations);
  w.gradients = calloc(stages, sizeof *w.gradients);
  at = calloc((size_t)schedule->workers, sizeof *at);
  if (w.activations == NULL || w.gradients == NULL || at == NULL) {
    st = pst_fail(PST_NO_MEMORY, "schedule: no memory to place the messages of %zu stages", stages);
    goto done;
  }
  for (size_t s = 0; s < stages; s++) w.to->worker_of[s] = schedule->worker_of[s];
  PST_GOTO(st, weave_lists(&w, at), done);
  *out_schedule = w.to;
  w.to = NULL;

done:
  pst_schedule_destroy(w.to);
  free(w.activations);
  free(w.gradients);
  free(at);
  return st;
}

pst_status pst_schedule_format_csv(const pst_schedule *schedule, pst_csv_form form, char **out_text,
                                   size_t *out_n) {
  writer out = {0};
  pst_schedule *woven = NULL;
  if (form == PST_CSV_MESSAGES) PST_TRY(with_messages(schedule, &woven));
  pst_schedule *computed = NULL;
  pst_status st = woven == NULL && schedule->lowered ? pst_schedule_strip(schedule, &computed) : PST_OK;
  if (st == PST_OK) {
    const pst_schedule *rows = woven != NULL ? woven : computed != NULL ? computed : schedule;
    put_rows(&out, rows, form == PST_CSV_MESSAGES);
    if (out.failed) st = pst_fail(PST_NO_MEMORY, "schedule: no memory for %zu bytes of text", out.n);
  }
  pst_schedule_destroy(woven);
  pst_schedule_destroy(computed);
  if (st != PST_OK) {
    free(out.text);
    return st;
  }
  *out_text = out.text;
  *out_n = out.n;
  return PST_OK;
}

pst_status pst_schedule_write_csv(const pst_schedule *schedule, pst_csv_form form, const char *path) {
  char *text = NULL;
  size_t n = 0;
  PST_TRY(pst_schedule_format_csv(schedule, form, &text, &n));
  pst_status st = pst_file_write(path, text, n);
  free(text);
  return st;
}
