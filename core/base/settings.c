#include "core/base/settings.h"

#include "core/base/settings_internal.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- places ----------------------------------------------------------------------------------------------
 */

pst__kind pst__settings_kind(const pst_settings *s, const char *pattern, size_t *out_row) {
  size_t n = strlen(pattern);
  if (n == 0) return PST__SECTION;
  for (size_t i = 0; i < s->n_rows; i++) {
    const char *path = s->rows[i].path;
    if (strncmp(path, pattern, n) != 0) continue;
    if (out_row) *out_row = i;
    if (path[n] == '\0') return PST__LEAF;
    if (path[n] == '[') return PST__LIST;
    if (path[n] == '.') return PST__SECTION;
  }
  return PST__UNKNOWN;
}

pst__kind pst__place_enter(const pst_settings *s, const pst__place *from, const char *name, size_t n,
                           pst__place *out_place) {
  if (n == 0 || strlen(from->pattern) + n + 2 > PST__PATH_BYTES) return PST__UNKNOWN;
  for (size_t i = 0; i < n; i++) /* a key of the file never holds a dot or a bracket of ours */
    if (!strchr("abcdefghijklmnopqrstuvwxyz0123456789_", name[i]) || !name[i]) return PST__UNKNOWN;
  pst__place at = *from;
  size_t used = strlen(at.pattern);
  if (used) at.pattern[used++] = '.';
  memcpy(at.pattern + used, name, n);
  at.pattern[used + n] = '\0';
  pst__kind kind = pst__settings_kind(s, at.pattern, NULL);
  if (kind != PST__UNKNOWN) *out_place = at;
  return kind;
}

void pst__place_name(const pst__place *at, char out_name[PST__PATH_BYTES + 24]) {
  const char *list = strstr(at->pattern, "[]");
  if (list)
    snprintf(out_name, PST__PATH_BYTES + 24, "%.*s.%zu%s", (int)(list - at->pattern), at->pattern, at->index,
             list + 2);
  else
    snprintf(out_name, PST__PATH_BYTES + 24, "%s", at->pattern);
}

static size_t list_count(const pst_settings *s, const char *list) {
  size_t row = 0;
  return pst__settings_kind(s, list, &row) == PST__LIST ? s->columns[row].n : 0;
}

pst_status pst__place_parse(pst_settings *s, const char *path, bool grow, pst__place *out_place) {
  pst__place at = {.pattern = ""};
  pst__kind kind = PST__SECTION;
  for (const char *name = path;;) {
    size_t n = strcspn(name, ".");
    if (kind == PST__LIST) {
      char *end;
      size_t count = list_count(s, at.pattern), last = count + (grow ? 1 : 0);
      unsigned long long index = strtoull(name, &end, 10);
      if (end != name + n || n == 0 || n > 9 || *name == '-' || *name == '+' || *name == ' ' ||
          index >= last || index >= PST_SETTINGS_MAX_ITEMS) {
        char seen[PST__SNIPPET_BYTES];
        return pst_fail(PST_INVALID, "%s: no item '%s'; the list has %zu, counted from 0", at.pattern,
                        pst__snippet(name, n, seen), count);
      }
      if (index == count) PST_TRY(pst__list_resize(s, at.pattern, count + 1, true));
      at.index = (size_t)index;
      strncat(at.pattern, "[]", sizeof at.pattern - strlen(at.pattern) - 1);
      kind = pst__settings_kind(s, at.pattern, NULL);
    } else {
      kind = kind == PST__SECTION ? pst__place_enter(s, &at, name, n, &at) : PST__UNKNOWN;
      if (kind == PST__UNKNOWN) return pst__settings_unknown(s, &at, name, n);
    }
    if (!name[n]) break;
    name += n + 1;
  }
  *out_place = at;
  return PST_OK;
}

/* ---- cells -----------------------------------------------------------------------------------------------
 */

void pst__cell_clear(pst__cell *cell) {
  free(cell->text);
  free(cell->origin);
  *cell = (pst__cell){.word = -1};
}

pst__cell *pst__settings_cell(pst_settings *s, const pst__place *at) {
  size_t row = 0;
  if (pst__settings_kind(s, at->pattern, &row) != PST__LEAF || at->index >= s->columns[row].n) return NULL;
  return &s->columns[row].cells[at->index];
}

pst_status pst__settings_put(pst_settings *s, const pst__place *at, const char *text, size_t n_bytes,
                             bool plain, bool given, const char *origin) {
  size_t row = 0;
  pst__settings_kind(s, at->pattern, &row);
  pst__cell *cell = pst__settings_cell(s, at);
  char name[PST__PATH_BYTES + 24], seen[PST__SNIPPET_BYTES], wanted[256];
  pst__place_name(at, name);
  if (!cell) return pst_fail(PST_INTERNAL, "settings: %s is no place for a value", name);
  pst__cell fresh = {.word = -1, .given = given, .text = strndup(text, n_bytes), .origin = strdup(origin)};
  if (!fresh.text || !fresh.origin) {
    pst__cell_clear(&fresh);
    return pst_fail(PST_NO_MEMORY, "%s: no memory for the value of %s", origin, name);
  }
  if (strlen(fresh.text) != n_bytes ||
      !pst__value_parse(&s->rows[row], s->locale, fresh.text, n_bytes, plain, &fresh)) {
    pst__cell_clear(&fresh);
    pst__value_wanted(&s->rows[row], wanted, sizeof wanted);
    const char *quote = plain ? "" : "\"";
    return pst_fail(PST_INVALID, "%s: %s = %s%s%s: wanted %s", origin, name, quote,
                    pst__snippet(text, n_bytes, seen), quote, wanted);
  }
  pst__cell_clear(cell);
  *cell = fresh;
  return PST_OK;
}

/* The default of the leaf `at`; the default of a list is a whole list and not its cells'. */
static pst_status put_default(pst_settings *s, size_t row, const pst__place *at) {
  const pst_setting *r = &s->rows[row];
  pst__cell_clear(&s->columns[row].cells[at->index]);
  if (!r->def || strcmp(r->path + strlen(r->path) - 1, "]") == 0) return PST_OK;
  return pst__settings_put(s, at, r->def, strlen(r->def), true, false, "default");
}

pst_status pst__list_resize(pst_settings *s, const char *list, size_t n, bool keep) {
  size_t length = strlen(list);
  for (size_t i = 0; i < s->n_rows; i++) {
    if (strncmp(s->rows[i].path, list, length) != 0 || s->rows[i].path[length] != '[') continue;
    pst__column *column = &s->columns[i];
    size_t kept = !keep ? 0 : column->n < n ? column->n : n;
    for (size_t j = kept; j < column->n; j++) pst__cell_clear(&column->cells[j]);
    column->n = kept;
    if (n == 0) continue;
    pst__cell *cells = realloc(column->cells, n * sizeof *cells);
    if (!cells) return pst_fail(PST_NO_MEMORY, "%s: no memory for %zu items", list, n);
    column->cells = cells;
    pst__place at;
    snprintf(at.pattern, sizeof at.pattern, "%s", s->rows[i].path);
    for (at.index = kept; at.index < n; at.index++) {
      cells[at.index] = (pst__cell){.word = -1};
      column->n = at.index + 1;
      PST_TRY(put_default(s, i, &at));
    }
  }
  return PST_OK;
}

pst_status pst__settings_reset(pst_settings *s, const pst__place *at) {
  size_t row = 0;
  pst__kind kind = pst__settings_kind(s, at->pattern, &row);
  if (kind == PST__LEAF) return put_default(s, row, at);
  if (kind != PST__LIST) return PST_OK;
  PST_TRY(pst__list_resize(s, at->pattern, 0, false));
  const pst_setting *r = &s->rows[row];
  bool scalars = strcmp(r->path + strlen(at->pattern), "[]") == 0;
  return scalars && r->def ? pst__settings_apply(s, at, "default", r->def, strlen(r->def), false, "default")
                           : PST_OK;
}

/* ---- life ------------------------------------------------------------------------------------------------
 */

static pst_status check_row(const pst_setting *row) {
  const char *list = strstr(row->path, "[]");
  if (strlen(row->path) + 2 > PST__PATH_BYTES || (list && strstr(list + 2, "[]")) || !row->help ||
      (row->type == PST_SETTING_ENUM && !row->words))
    return pst_fail(PST_INTERNAL, "settings: the row %s contradicts itself", row->path);
  return PST_OK;
}

pst_status pst_settings_create(const pst_setting *table, size_t n_rows, pst_settings **out_settings) {
  pst_status st = PST_OK;
  pst_settings *s = calloc(1, sizeof *s);
  if (!s) return pst_fail(PST_NO_MEMORY, "settings: no memory");
  s->rows = table;
  s->columns = calloc(n_rows ? n_rows : 1, sizeof *s->columns);
  s->locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  if (!s->columns || !s->locale) {
    st = pst_fail(PST_NO_MEMORY, "settings: no memory for %zu rows", n_rows);
    goto fail;
  }
  s->n_rows = n_rows;
  for (size_t i = 0; i < n_rows; i++) {
    PST_GOTO(st, check_row(&table[i]), fail);
    pst__place at = {.index = 0};
    size_t shown = strcspn(table[i].path, "[");
    snprintf(at.pattern, sizeof at.pattern, "%.*s", (int)shown, table[i].path);
    if (!table[i].path[shown]) {
      s->columns[i].cells = calloc(1, sizeof *s->columns[i].cells);
      if (!s->columns[i].cells) {
        st = pst_fail(PST_NO_MEMORY, "settings: no memory for %s", table[i].path);
        goto fail;
      }
      s->columns[i].n = 1;
    }
    PST_GOTO(st, pst__settings_reset(s, &at), fail);
  }
  *out_settings = s;
  return PST_OK;
fail:
  pst_settings_destroy(s);
  return st;
}

void pst_settings_destroy(pst_settings *s) {
  if (!s) return;
  for (size_t i = 0; i < s->n_rows; i++) {
    for (size_t j = 0; j < s->columns[i].n; j++) pst__cell_clear(&s->columns[i].cells[j]);
    free(s->columns[i].cells);
  }
  free(s->columns);
  if (s->locale) freelocale(s->locale);
  free(s);
}

/* ---- sources other than the file -------------------------------------------------------------------------
 */

pst_status pst_settings_set(pst_settings *s, const char *assignment) {
  const char *equals = strchr(assignment, '=');
  size_t n = equals ? (size_t)(equals - assignment) : 0;
  char path[2 * PST__PATH_BYTES], seen[PST__SNIPPET_BYTES];
  if (!equals || n == 0 || n >= sizeof path)
    return pst_fail(PST_INVALID, "--set: %s: wanted path=value, such as optimizer.lr.peak=1e-3",
                    pst__snippet(assignment, strlen(assignment), seen));
  memcpy(path, assignment, n);
  path[n] = '\0';
  pst__place at;
  pst_status st = pst__place_parse(s, path, true, &at);
  if (st != PST_OK) return pst_fail_prefix(st, "--set: ");
  return pst__settings_apply(s, &at, "--set", equals + 1, strlen(equals + 1), true, "--set");
}

pst_status pst_settings_default(pst_settings *s, const char *path, const char *text) {
  pst__place at;
  PST_TRY(pst__place_parse(s, path, false, &at));
  const pst__cell *cell = pst__settings_cell(s, &at);
  if (cell && cell->given) return PST_OK;
  return pst__settings_put(s, &at, text, strlen(text), true, false, "default");
}

/* Whether `name` (after PENSTOCK_) is the first `n` bytes of a row's path in capitals. */
static bool names_path(const char *name, size_t n_name, const char *path, size_t n) {
  if (n != n_name) return false;
  for (size_t i = 0; i < n; i++) {
    char c = path[i] == '.' ? '_' : path[i] >= 'a' && path[i] <= 'z' ? (char)(path[i] - 'a' + 'A') : path[i];
    if (c != name[i]) return false;
  }
  return true;
}

static bool find_variable(const pst_settings *s, const char *name, size_t n_name, pst__place *out_place) {
  for (size_t i = 0; i < s->n_rows; i++) {
    const char *path = s->rows[i].path;
    for (size_t n = 1; n <= strcspn(path, "["); n++) { /* every ending at a name: sections and lists too */
      if (!strchr(".[", path[n]) || !names_path(name, n_name, path, n)) continue;
      *out_place = (pst__place){.index = 0};
      memcpy(out_place->pattern, path, n);
      return true;
    }
  }
  return false;
}

static void warn_variable(const pst_settings *s, pst_logger *logger, const char *name, size_t n_name) {
  size_t best = SIZE_MAX;
  char nearest[PST__PATH_BYTES] = "", seen[PST__SNIPPET_BYTES];
  for (size_t i = 0; i < s->n_rows; i++) {
    char variable[PST__PATH_BYTES];
    size_t n = strcspn(s->rows[i].path, "[");
    for (size_t j = 0; j < n; j++) {
      char c = s->rows[i].path[j];
      variable[j] = c == '.' ? '_' : c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c;
    }
    variable[n] = '\0';
    size_t distance = pst__text_distance(name, n_name, variable, n);
    if (distance < best) {
      best = distance;
      memcpy(nearest, variable, n + 1);
    }
  }
  pst_log(logger, PST_LOG_WARN,
          "environment: PENSTOCK_%s is not known and does nothing; nearest is PENSTOCK_%s",
          pst__snippet(name, n_name, seen), nearest);
}

static bool is_reserved(const char *const *reserved, const char *name, size_t n) {
  for (; reserved && *reserved; reserved++)
    if (strlen(*reserved) == n && memcmp(*reserved, name, n) == 0) return true;
  return false;
}

pst_status pst_settings_load_environment(pst_settings *s, char *const *environment,
                                         const char *const *reserved, pst_logger *logger) {
  static const char prefix[] = "PENSTOCK_";
  enum { PREFIX = sizeof prefix - 1 };
  for (; environment && *environment; environment++) {
    const char *equals = strchr(*environment, '=');
    if (!equals || strncmp(*environment, prefix, PREFIX) != 0) continue;
    size_t n = (size_t)(equals - *environment);
    if (is_reserved(reserved, *environment, n)) continue;
    pst__place at;
    if (!find_variable(s, *environment + PREFIX, n - PREFIX, &at)) {
      warn_variable(s, logger, *environment + PREFIX, n - PREFIX);
      continue;
    }
    char origin[PST__PATH_BYTES + PREFIX];
    snprintf(origin, sizeof origin, "%.*s", (int)n, *environment);
    PST_TRY(pst__settings_apply(s, &at, origin, equals + 1, strlen(equals + 1), true, origin));
  }
  return PST_OK;
}

/* ---- getters ---------------------------------------------------------------------------------------------
 */

enum { ANY_TYPE = -1 };

static void note_misuse(pst_settings *s, const char *path) {
  if (!s->misuse[0]) snprintf(s->misuse, sizeof s->misuse, "%.*s", PST__PATH_BYTES, path);
}

/* The place that a getter's path means. A getter leaves the caller's last error message alone. */
static bool find_place(pst_settings *s, const char *path, pst__place *out_place) {
  char kept[1024];
  snprintf(kept, sizeof kept, "%s", pst_error());
  if (pst__place_parse(s, path, false, out_place) == PST_OK) return true;
  pst_error_set(kept);
  note_misuse(s, path);
  return false;
}

static const pst__cell *find_cell(pst_settings *s, int type, const char *format, va_list args) {
  static const pst__cell none = {.word = -1};
  char path[2 * PST__PATH_BYTES];
  vsnprintf(path, sizeof path, format, args);
  pst__place at;
  if (!find_place(s, path, &at)) return &none;
  size_t row = 0;
  pst__settings_kind(s, at.pattern, &row);
  const pst__cell *cell = pst__settings_cell(s, &at);
  if (cell && (type == ANY_TYPE || (int)s->rows[row].type == type)) return cell;
  note_misuse(s, path);
  return &none;
}

#define GETTER(result, name, type, expression)                                                               \
  result pst_settings_##name(pst_settings *s, const char *path, ...) {                                       \
    va_list args;                                                                                            \
    va_start(args, path);                                                                                    \
    const pst__cell *cell = find_cell(s, type, path, args);                                                  \
    va_end(args);                                                                                            \
    return expression;                                                                                       \
  }

GETTER(bool, bool, PST_SETTING_BOOL, cell->integer != 0)
GETTER(int64_t, int, PST_SETTING_INT, cell->integer)
GETTER(double, float, PST_SETTING_FLOAT, cell->real)
GETTER(const char *, string, PST_SETTING_STRING, cell->text)
GETTER(int64_t, size_bytes, PST_SETTING_SIZE, cell->integer)
GETTER(int64_t, time_ns, PST_SETTING_TIME, cell->integer)
GETTER(int, word, ANY_TYPE, cell->word)
GETTER(const char *, text, ANY_TYPE, cell->text)

size_t pst_settings_count(pst_settings *s, const char *path, ...) {
  va_list args;
  char name[2 * PST__PATH_BYTES];
  va_start(args, path);
  vsnprintf(name, sizeof name, path, args);
  va_end(args);
  pst__place at;
  if (!find_place(s, name, &at)) return 0;
  if (pst__settings_kind(s, at.pattern, NULL) != PST__LIST) note_misuse(s, name);
  return list_count(s, at.pattern);
}

/* The first cell at or under a place that has a value, one that was given before a default. */
static const pst__cell *first_cell(const pst_settings *s, const pst__place *at) {
  const pst__cell *found = NULL;
  size_t n = strlen(at->pattern);
  const char *list = strstr(at->pattern, "[]");
  for (size_t i = 0; i < s->n_rows; i++) {
    if (strncmp(s->rows[i].path, at->pattern, n) != 0 || !strchr(".[", s->rows[i].path[n])) continue;
    size_t begin = list ? at->index : 0, end = list ? at->index + 1 : s->columns[i].n;
    for (size_t j = begin; j < end; j++) {
      const pst__cell *cell = &s->columns[i].cells[j];
      if (cell->given) return cell;
      if (cell->origin && !found) found = cell;
    }
  }
  return found;
}

static const pst__cell *origin_cell(pst_settings *s, const char *format, va_list args) {
  char path[2 * PST__PATH_BYTES];
  vsnprintf(path, sizeof path, format, args);
  pst__place at;
  return find_place(s, path, &at) ? first_cell(s, &at) : NULL;
}

bool pst_settings_is_set(pst_settings *s, const char *path, ...) {
  va_list args;
  va_start(args, path);
  const pst__cell *cell = origin_cell(s, path, args);
  va_end(args);
  return cell && cell->given;
}

const char *pst_settings_origin(pst_settings *s, const char *path, ...) {
  va_list args;
  va_start(args, path);
  const pst__cell *cell = origin_cell(s, path, args);
  va_end(args);
  return cell ? cell->origin : "unset";
}

pst_status pst_settings_fail(pst_settings *s, const char *path, pst_status status, const char *format, ...) {
  char text[1024], seen[PST__SNIPPET_BYTES];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  pst__place at;
  const pst__cell *cell = find_place(s, path, &at) ? first_cell(s, &at) : NULL;
  const pst__cell *leaf = cell ? pst__settings_cell(s, &at) : NULL;
  pst_fail(status, "%s", text);
  if (leaf)
    return pst_fail_prefix(status, "%s: %s = %s: ", cell->origin, path,
                           pst__snippet(leaf->text, strlen(leaf->text), seen));
  if (cell && cell->given) return pst_fail_prefix(status, "%s: %s: ", cell->origin, path);
  return pst_fail_prefix(status, "%s: ", path);
}

pst_status pst_settings_misuse(const pst_settings *s) {
  if (!s->misuse[0]) return PST_OK;
  return pst_fail(PST_INTERNAL, "settings: %s was asked for, and is not in the table or of another type",
                  s->misuse);
}
