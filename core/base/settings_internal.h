/* What the settings' parts share: the store of values and the places in the table.
 *
 *   pst__place at;
 *   PST_TRY(pst__place_parse(s, "stages.2.layers", false, &at));      // pattern "stages[].layers", index 2
 *   const pst__cell *cell = pst__settings_cell(s, &at);
 */
#ifndef PENSTOCK_BASE_SETTINGS_INTERNAL_H
#define PENSTOCK_BASE_SETTINGS_INTERNAL_H

#include "core/base/settings.h"

#include <locale.h>

enum { PST__PATH_BYTES = 128, PST__SNIPPET_BYTES = 64 };

/* One value. No origin: none. */
typedef struct pst__cell {
  char *text;      /* as written; owned */
  char *origin;    /* owned */
  int64_t integer; /* BOOL, INT, SIZE, TIME */
  double real;     /* FLOAT, INT */
  int word;        /* index among the row's words; -1: none */
  bool given;      /* by anybody but the table */
} pst__cell;

/* The values of one row: one, or one for each item of the list it is in. */
typedef struct pst__column {
  pst__cell *cells;
  size_t n;
} pst__column;

struct pst_settings {
  const pst_setting *rows;
  size_t n_rows;
  pst__column *columns;
  locale_t locale; /* "C", so that 0.5 is a number whatever the program's locale */
  char misuse[PST__PATH_BYTES + 64];
};

typedef enum pst__kind { PST__UNKNOWN, PST__LEAF, PST__LIST, PST__SECTION } pst__kind;

/* A place in the table, and the item where the pattern passes through a list. */
typedef struct pst__place {
  char pattern[PST__PATH_BYTES]; /* "stages[].layers"; "" is the whole */
  size_t index;
} pst__place;

pst__kind pst__settings_kind(const pst_settings *s, const char *pattern, size_t *out_row);

/* Reads "stages.2.layers". With `grow` an index one past the end of its list appends an item. */
pst_status pst__place_parse(pst_settings *s, const char *path, bool grow, pst__place *out_place) PST_CHECKED;

/* Goes into key `name` of n bytes; PST__UNKNOWN when the table has none there. */
pst__kind pst__place_enter(const pst_settings *s, const pst__place *from, const char *name, size_t n,
                           pst__place *out_place);

/* "stages.2.layers" */
void pst__place_name(const pst__place *at, char out_name[PST__PATH_BYTES + 24]);

pst__cell *pst__settings_cell(pst_settings *s, const pst__place *at);
void pst__cell_clear(pst__cell *cell);

/* Gives the list n items: all of them new (`keep` false), or the first ones kept. */
pst_status pst__list_resize(pst_settings *s, const char *list, size_t n, bool keep) PST_CHECKED;

/* Back to the table's defaults for a leaf or a list. */
pst_status pst__settings_reset(pst_settings *s, const pst__place *at) PST_CHECKED;

/* Parses text into the leaf. On refusal the message starts with the origin. */
pst_status pst__settings_put(pst_settings *s, const pst__place *at, const char *text, size_t n_bytes,
                             bool plain, bool given, const char *origin) PST_CHECKED;

/* Applies YAML text at a place. `origin` NULL: each value's origin is name:line:column. */
pst_status pst__settings_apply(pst_settings *s, const pst__place *at, const char *name, const char *text,
                               size_t n_bytes, bool given, const char *origin) PST_CHECKED;

/* Fills a cell's numbers from its text; false when the row does not allow it. */
bool pst__value_parse(const pst_setting *row, locale_t locale, const char *text, size_t n_bytes, bool plain,
                      pst__cell *out_cell);

/* "a whole number from 1 to 10 or auto" */
void pst__value_wanted(const pst_setting *row, char *out_text, size_t n_bytes);

/* Index of text among "a|b|c"; -1: none. */
int pst__word_find(const char *words, const char *text, size_t n_bytes);

/* Printable, short: control characters as '?', a long text cut with "...". */
const char *pst__snippet(const char *text, size_t n_bytes, char out_text[PST__SNIPPET_BYTES]);

/* Records that key `name` is not known under `at`, with the nearest that is. */
pst_status pst__settings_unknown(const pst_settings *s, const pst__place *at, const char *name,
                                 size_t n_bytes) PST_CHECKED;

/* Edits that turn a into b. */
size_t pst__text_distance(const char *a, size_t n_a, const char *b, size_t n_b);

#endif
