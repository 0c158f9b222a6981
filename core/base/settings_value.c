/* Scalars: from text to typed values, and the words for what is wanted. */
#include "core/base/settings_internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct unit {
  const char *name;
  double scale;
} unit;

static const unit size_units[] = {
    {"", 1},     {"B", 1},    {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
    {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9},     {"TB", 1e12},    {NULL, 0},
};
static const unit time_units[] = {{"ns", 1},     {"us", 1e3},   {"ms", 1e6}, {"s", 1e9},
                                  {"min", 60e9}, {"h", 3600e9}, {NULL, 0}};

int pst__word_find(const char *words, const char *text, size_t n_bytes) {
  int index = 0;
  for (const char *word = words; word; index++) {
    size_t n = strcspn(word, "|");
    if (n == n_bytes && memcmp(word, text, n) == 0) return index;
    word = word[n] ? word + n + 1 : NULL;
  }
  return -1;
}

static bool parse_int(const char *text, int64_t *out) {
  const char *digits = text + (*text == '-' || *text == '+');
  if (!*digits || digits[strspn(digits, "0123456789")]) return false;
  errno = 0;
  *out = strtoll(text, NULL, 10);
  return errno == 0;
}

/* A decimal number at the start of text; strtod alone would take hexadecimal, infinities and NaN too. */
static bool parse_decimal(const char *text, locale_t locale, double *out, const char **out_end) {
  const char *first = text + (*text == '-' || *text == '+');
  if (!strchr(".0123456789", *first) || !*first) return false;
  if (first[0] == '0' && (first[1] == 'x' || first[1] == 'X')) return false;
  char *end;
  *out = strtod_l(text, &end, locale);
  *out_end = end;
  return end != text && isfinite(*out);
}

static bool parse_scaled(const char *text, locale_t locale, const unit *units, int64_t *out) {
  const char *end;
  if (units == size_units && parse_int(text, out)) return true;
  double value;
  if (!parse_decimal(text, locale, &value, &end)) return false;
  while (*end == ' ') end++;
  for (const unit *u = units; u->name; u++) {
    if (strcmp(u->name, end) != 0) continue;
    value *= u->scale;
    if (!(value >= 0 && value < 0x1p62)) return false;
    *out = (int64_t)(value + 0.5);
    return units == time_units || *u->name; /* bytes come whole */
  }
  return false;
}

bool pst__value_parse(const pst_setting *row, locale_t locale, const char *text, size_t n_bytes, bool plain,
                      pst__cell *out_cell) {
  const char *end;
  out_cell->word = row->words ? pst__word_find(row->words, text, n_bytes) : -1;
  if (out_cell->word >= 0) return true;
  switch (row->type) {
  case PST_SETTING_ENUM:
    return false;
  case PST_SETTING_STRING:
    return true;
  case PST_SETTING_BOOL:
    out_cell->integer = strcmp(text, "true") == 0;
    return plain && (out_cell->integer || strcmp(text, "false") == 0);
  case PST_SETTING_INT:
    if (!plain || !parse_int(text, &out_cell->integer)) return false;
    out_cell->real = (double)out_cell->integer;
    break;
  case PST_SETTING_FLOAT:
    if (!plain || !parse_decimal(text, locale, &out_cell->real, &end) || *end) return false;
    break;
  case PST_SETTING_SIZE:
  case PST_SETTING_TIME:
    if (!parse_scaled(text, locale, row->type == PST_SETTING_SIZE ? size_units : time_units,
                      &out_cell->integer))
      return false;
    if (out_cell->integer < 0) return false;
    out_cell->real = (double)out_cell->integer;
    break;
  }
  return !(row->min < row->max) || (out_cell->real >= row->min && out_cell->real <= row->max);
}

void pst__value_wanted(const pst_setting *row, char *out_text, size_t n_bytes) {
  static const char *const what[] = {
      [PST_SETTING_BOOL] = "true or false",
      [PST_SETTING_INT] = "a whole number",
      [PST_SETTING_FLOAT] = "a number",
      [PST_SETTING_STRING] = "text",
      [PST_SETTING_SIZE] = "a size such as 512MiB or 6GiB",
      [PST_SETTING_TIME] = "a time such as 10s or 500ms",
      [PST_SETTING_ENUM] = "one of ",
  };
  static const char *const suffix[] = {
      [PST_SETTING_SIZE] = " bytes", [PST_SETTING_TIME] = " ns", [PST_SETTING_ENUM] = ""};
  const char *of = row->type == PST_SETTING_SIZE || row->type == PST_SETTING_TIME ? suffix[row->type] : "";
  size_t used = (size_t)snprintf(out_text, n_bytes, "%s", what[row->type]);
  if (row->min < row->max && row->max < 1e17)
    used +=
        (size_t)snprintf(out_text + used, n_bytes - used, " from %.10g to %.10g%s", row->min, row->max, of);
  else if (row->min < row->max)
    used += (size_t)snprintf(out_text + used, n_bytes - used, " not below %.10g%s", row->min, of);
  if (row->words && row->type != PST_SETTING_ENUM && used < n_bytes)
    used += (size_t)snprintf(out_text + used, n_bytes - used, " or ");
  for (const char *word = row->words; word && used < n_bytes;) {
    size_t n = strcspn(word, "|");
    bool last = !word[n];
    used += (size_t)snprintf(out_text + used, n_bytes - used, "%.*s%s", (int)n, word, last ? "" : ", ");
    word = last ? NULL : word + n + 1;
  }
}

const char *pst__snippet(const char *text, size_t n_bytes, char out_text[PST__SNIPPET_BYTES]) {
  enum { KEPT = PST__SNIPPET_BYTES - 4 };
  size_t n = n_bytes < PST__SNIPPET_BYTES ? n_bytes : KEPT;
  while (n < n_bytes && n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80) n--; /* never half a character */
  for (size_t i = 0; i < n; i++)
    out_text[i] = (unsigned char)text[i] < 0x20 || text[i] == 0x7F ? '?' : text[i];
  memcpy(out_text + n, n < n_bytes ? "..." : "", n < n_bytes ? 4 : 1);
  return out_text;
}

size_t pst__text_distance(const char *a, size_t n_a, const char *b, size_t n_b) {
  enum { MOST = 64 };
  size_t row[MOST + 1];
  if (n_a > MOST) n_a = MOST;
  if (n_b > MOST) n_b = MOST;
  for (size_t j = 0; j <= n_b; j++) row[j] = j;
  for (size_t i = 1; i <= n_a; i++) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= n_b; j++) {
      size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      size_t other = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
      diagonal = row[j];
      row[j] = replaced < other ? replaced : other;
    }
  }
  return row[n_b];
}
