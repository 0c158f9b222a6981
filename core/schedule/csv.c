#include "core/schedule/csv.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/file.h"

enum { FILE_LIMIT = 1 << 29, CELL_LIMIT = 96 };

/* Cells that say nothing here. */
static const char *const passed_over[] = {"UNSHARD",     "RESHARD",     "REDUCE_GRAD", "WAIT_REDUCE_GRAD",
                                          "WAIT_SEND_F", "WAIT_SEND_B", NULL};

typedef struct cell {
  int row;
  pst_action action;
} cell;

typedef struct reader {
  const char *name;
  int row, column; /* from 1, for messages */
  cell *cells;
  size_t count, capacity;
} reader;

static pst_status refuse_cell(const reader *r, const char *text, const char *wanted) {
  return pst_fail(PST_INVALID, "%s: row %d, cell %d: seen \"%.40s\", wanted %s", r->name, r->row, r->column,
                  text, wanted);
}

static pst_status keep(reader *r, pst_action action) {
  if (r->count == r->capacity) {
    size_t capacity = r->capacity < 64 ? 64 : 2 * r->capacity;
    cell *cells = realloc(r->cells, capacity * sizeof *cells);
    if (cells == NULL) return pst_fail(PST_NO_MEMORY, "%s: no memory for %zu cells", r->name, capacity);
    r->cells = cells;
    r->capacity = capacity;
  }
  r->cells[r->count++] = (cell){r->row - 1, action};
  return PST_OK;
}

static bool is_passed_over(const char *text) {
  const char *word = text + strspn(text, "0123456789");
  size_t n = strspn(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_");
  if (word == text || word[n + strspn(word + n, "0123456789")] != '\0') return false;
  for (int i = 0; passed_over[i] != NULL; i++)
    if (strlen(passed_over[i]) == n && strncmp(passed_over[i], word, n) == 0) return true;
  return false;
}

static pst_status read_action(reader *r, const char *text) {
  static const char wanted[] =
      "stage, kind and microbatch such as 0F0, 1I3, 2SEND_B1 or (0F3;3B1)OVERLAP_F_B";
  pst_action action;
  if (is_passed_over(text)) return PST_OK;
  if (pst_action_parse(text, &action) != PST_OK || action.kind > PST_ACTION_RECV_B)
    return refuse_cell(r, text, wanted);
  return keep(r, action);
}

/* One cell without blanks and quotes; a pair falls into its two actions. */
static pst_status read_cell(reader *r, char *text) {
  if (text[0] == '\0') return PST_OK;
  if (text[0] != '(') return read_action(r, text);
  char *end = strchr(text, ')');
  if (end == NULL || strcmp(end + 1, "OVERLAP_F_B") != 0)
    return refuse_cell(r, text, "a pair such as (0F3;3B1)OVERLAP_F_B");
  *end = '\0';
  for (char *at = text + 1; at != NULL;) {
    char *next = strchr(at, ';');
    if (next != NULL) *next++ = '\0';
    PST_TRY(read_action(r, at));
    at = next;
  }
  return PST_OK;
}

static pst_status read_cells(reader *r, const char *text, size_t n) {
  char word[CELL_LIMIT];
  size_t used = 0;
  bool row_open = false;
  r->row = r->column = 1;
  for (size_t i = 0; i <= n; i++) {
    char c = i < n ? text[i] : '\n';
    if (c == '\0') return refuse_cell(r, "a zero byte", "text");
    if (c == ' ' || c == '\t' || c == '\r' || c == '"') continue;
    if (c != ',' && c != '\n') {
      if (used + 1 >= sizeof word) {
        word[used] = '\0';
        return refuse_cell(r, word, "a cell of at most 95 characters");
      }
      word[used++] = c;
      row_open = true;
      continue;
    }
    word[used] = '\0';
    used = 0;
    PST_TRY(read_cell(r, word));
    r->column++;
    if (c == ',') row_open = true;
    if (c != '\n' || !row_open) continue;
    r->row++;
    r->column = 1;
    row_open = false;
  }
  r->row--;
  return PST_OK;
}

static bool has_kind(const reader *r, bool (*is)(unsigned kind)) {
  for (size_t i = 0; i < r->count; i++)
    if (is(r->cells[i].action.kind)) return true;
  return false;
}

static bool is_message(unsigned kind) {
  return kind > PST_ACTION_W;
}

static bool is_backward(unsigned kind) {
  return kind == PST_ACTION_B || kind == PST_ACTION_I;
}

static bool moves_with_backward(unsigned kind) {
  return kind != PST_ACTION_F && kind != PST_ACTION_SEND_F && kind != PST_ACTION_RECV_F;
}

/* Each stage stands on the row where it is first met. */
static pst_status place(const reader *r, pst_schedule *schedule) {
  for (int s = 0; s < schedule->stages; s++) schedule->worker_of[s] = -1;
  for (size_t i = 0; i < r->count; i++) {
    const cell *c = &r->cells[i];
    int *worker = &schedule->worker_of[c->action.chunk];
    char text[PST_ACTION_TEXT];
    if (*worker < 0) *worker = c->row;
    if (*worker == c->row) continue;
    return pst_fail(PST_INVALID, "%s: row %d has %s, wanted no more of stage %d there, it stands in row %d",
                    r->name, c->row + 1, pst_action_format(c->action, text), (int)c->action.chunk,
                    *worker + 1);
  }
  for (int s = 0; s < schedule->stages; s++)
    if (schedule->worker_of[s] < 0)
      return pst_fail(PST_INVALID, "%s: no row has stage %d, wanted all stages from 0 to %d", r->name, s,
                      schedule->stages - 1);
  return PST_OK;
}

/* Gives the backwards of each stage that runs them in another order ascending numbers. A stage that has one
 * twice or lacks one is left to the checker. */
static pst_status renumber(const reader *r, const pst_schedule *schedule, bool *out_renumbered) {
  size_t m = (size_t)schedule->microbatches, n = (size_t)schedule->stages;
  *out_renumbered = false;
  if (r->count < m) return PST_OK; /* no stage can be complete, and m is not to be trusted with memory */
  uint32_t *seen = calloc(n, sizeof *seen), *number = NULL;
  bool *turned = calloc(n, sizeof *turned), *broken = calloc(n, sizeof *broken);
  pst_status st = PST_OK;
  if (m <= SIZE_MAX / n / sizeof *number) number = calloc(n * m, sizeof *number);
  if (seen == NULL || number == NULL || turned == NULL || broken == NULL) {
    st = pst_fail(PST_NO_MEMORY, "%s: no memory for %zu stages with %zu microbatches", r->name, n, m);
    goto done;
  }
  for (size_t i = 0; i < r->count; i++) {
    pst_action a = r->cells[i].action;
    if (!is_backward(a.kind)) continue;
    uint32_t *own = &number[a.chunk * m + a.microbatch];
    if (*own != 0) broken[a.chunk] = true;
    if (a.microbatch != seen[a.chunk]) turned[a.chunk] = true;
    *own = ++seen[a.chunk]; /* from 1; 0 is none */
  }
  for (size_t i = 0; i < r->count; i++) {
    pst_action *a = &r->cells[i].action;
    if (!turned[a->chunk] || broken[a->chunk] || seen[a->chunk] != m || !moves_with_backward(a->kind))
      continue;
    a->microbatch = number[a->chunk * m + a->microbatch] - 1;
    *out_renumbered = true;
  }

done:
  free(seen);
  free(number);
  free(turned);
  free(broken);
  return st;
}

static pst_status append_cells(const reader *r, pst_schedule *schedule) {
  for (size_t i = 0; i < r->count; i++) {
    pst_action a = r->cells[i].action;
    PST_TRY(pst_schedule_append(schedule, r->cells[i].row, (pst_action_kind)a.kind, a.chunk, a.microbatch));
  }
  for (int w = 0; schedule->lowered && schedule->training && w < schedule->workers; w++) {
    PST_TRY(pst_schedule_append(schedule, w, PST_ACTION_REDUCE, 0, 0));
    PST_TRY(pst_schedule_append(schedule, w, PST_ACTION_UPDATE, 0, 0));
  }
  return PST_OK;
}

pst_status pst_schedule_parse_csv(const char *text, size_t n, const char *name, pst_schedule **out_schedule,
                                  bool *out_renumbered) {
  pst_status st = PST_OK;
  pst_schedule *schedule = NULL;
  reader r = {.name = name};
  bool renumbered = false;
  int stages = 0;
  int64_t microbatches = 0;
  PST_GOTO(st, read_cells(&r, text, n), done);
  if (r.count == 0) {
    st = pst_fail(PST_INVALID, "%s: seen no action, wanted a row of cells for each worker", name);
    goto done;
  }
  for (size_t i = 0; i < r.count; i++) {
    pst_action a = r.cells[i].action;
    if (a.chunk >= stages) stages = a.chunk + 1;
    if (a.microbatch >= microbatches) microbatches = (int64_t)a.microbatch + 1;
  }
  if (stages % r.row != 0) {
    st = pst_fail(PST_INVALID, "%s: seen %d stages in %d rows, wanted as many stages in each row", name,
                  stages, r.row);
    goto done;
  }
  PST_GOTO(st, pst_schedule_create(r.row, stages / r.row, microbatches, has_kind(&r, is_backward), &schedule),
           done);
  schedule->lowered = has_kind(&r, is_message);
  PST_GOTO(st, place(&r, schedule), done);
  PST_GOTO(st, renumber(&r, schedule, &renumbered), done);
  PST_GOTO(st, append_cells(&r, schedule), done);
  *out_schedule = schedule;
  *out_renumbered = renumbered;
  schedule = NULL;

done:
  pst_schedule_destroy(schedule);
  free(r.cells);
  return st;
}

pst_status pst_schedule_read_csv(const char *path, pst_schedule **out_schedule, bool *out_renumbered) {
  char *text = NULL;
  size_t n = 0;
  PST_TRY(pst_file_read(path, FILE_LIMIT, &text, &n));
  pst_status st = pst_schedule_parse_csv(text, n, path, out_schedule, out_renumbered);
  free(text);
  return st;
}

pst_status pst_schedule_strip(const pst_schedule *full, pst_schedule **out_schedule) {
  pst_schedule *schedule = NULL;
  PST_TRY(pst_schedule_create(full->workers, full->chunks, full->microbatches, full->training, &schedule));
  for (int s = 0; s < full->stages; s++) schedule->worker_of[s] = full->worker_of[s];
  for (int w = 0; w < full->workers; w++)
    for (size_t i = 0; i < full->lists[w].count; i++) {
      pst_action a = full->lists[w].items[i];
      if (a.kind > PST_ACTION_W) continue;
      pst_status st = pst_schedule_append(schedule, w, (pst_action_kind)a.kind, a.chunk, a.microbatch);
      if (st == PST_OK) continue;
      pst_schedule_destroy(schedule);
      return st;
    }
  *out_schedule = schedule;
  return PST_OK;
}
