/* YAML text into settings, by libyaml. */
#include "core/base/settings_internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <yaml.h>

typedef struct walk {
  pst_settings *settings;
  yaml_document_t document;
  const char *name;   /* of the file */
  const char *origin; /* the same for all, or NULL: name:line:column */
  bool given;
} walk;

enum { ORIGIN_BYTES = 256 };

static const char *origin_of(const walk *w, yaml_mark_t mark, char out_origin[ORIGIN_BYTES]) {
  if (w->origin)
    snprintf(out_origin, ORIGIN_BYTES, "%s", w->origin);
  else
    snprintf(out_origin, ORIGIN_BYTES, "%.200s:%zu:%zu", w->name, mark.line + 1, mark.column + 1);
  return out_origin;
}

static pst_status refuse(const walk *w, yaml_mark_t mark, const char *format, ...) PST_PRINTF(3, 4);
static pst_status refuse(const walk *w, yaml_mark_t mark, const char *format, ...) {
  char text[768], origin[ORIGIN_BYTES];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  return pst_fail(PST_INVALID, "%s: %s", origin_of(w, mark, origin), text);
}

/* ---- reading ---------------------------------------------------------------------------------------------
 */

static pst_status refuse_syntax(const walk *w, const yaml_parser_t *parser, const char *text) {
  const char *problem = parser->problem ? parser->problem : "not YAML";
  if (parser->error == YAML_MEMORY_ERROR) return pst_fail(PST_NO_MEMORY, "%s: no memory to read it", w->name);
  if (parser->error != YAML_READER_ERROR) return refuse(w, parser->problem_mark, "%s", problem);
  yaml_mark_t mark = {0}; /* bytes that are not text have an offset only */
  for (size_t i = 0; i < parser->problem_offset; i++) {
    if (text[i] == '\n')
      mark.line++, mark.column = 0;
    else if (((unsigned char)text[i] & 0xC0) != 0x80)
      mark.column++;
  }
  return refuse(w, mark, "%s; wanted UTF-8 text", problem);
}

static const char *event_fault(const yaml_event_t *event, int depth, int n_documents) {
  const yaml_char_t *anchor = NULL, *tag = NULL;
  switch (event->type) {
  case YAML_SCALAR_EVENT:
    anchor = event->data.scalar.anchor, tag = event->data.scalar.tag;
    break;
  case YAML_SEQUENCE_START_EVENT:
    anchor = event->data.sequence_start.anchor, tag = event->data.sequence_start.tag;
    break;
  case YAML_MAPPING_START_EVENT:
    anchor = event->data.mapping_start.anchor, tag = event->data.mapping_start.tag;
    break;
  case YAML_ALIAS_EVENT:
    anchor = event->data.alias.anchor;
    break;
  default:
    break;
  }
  if (anchor) return "anchors and aliases are not taken; write the value out";
  if (tag) return "tags are not taken; the key says the type";
  if (depth > PST_SETTINGS_MAX_DEPTH) return "nested too deep; at most 16 levels are taken";
  if (n_documents > 1) return "a second document; one file describes one run";
  return NULL;
}

static void parser_open(yaml_parser_t *parser, const char *text, size_t n_bytes) {
  yaml_parser_set_encoding(parser, YAML_UTF8_ENCODING);
  yaml_parser_set_input_string(parser, (const unsigned char *)text, n_bytes);
}

/* Anchors, tags and further documents can no longer be seen in a loaded document, and aliases make loading
 * slow: look at the events first. */
static pst_status check_events(const walk *w, const char *text, size_t n_bytes) {
  pst_status st = PST_OK;
  yaml_parser_t parser;
  if (!yaml_parser_initialize(&parser)) return pst_fail(PST_NO_MEMORY, "%s: no memory to read it", w->name);
  parser_open(&parser, text, n_bytes);
  int depth = 0, n_documents = 0;
  for (bool done = false; st == PST_OK && !done;) {
    yaml_event_t event;
    if (!yaml_parser_parse(&parser, &event)) {
      st = refuse_syntax(w, &parser, text);
      break;
    }
    yaml_event_type_t type = event.type;
    depth += type == YAML_SEQUENCE_START_EVENT || type == YAML_MAPPING_START_EVENT;
    depth -= type == YAML_SEQUENCE_END_EVENT || type == YAML_MAPPING_END_EVENT;
    n_documents += type == YAML_DOCUMENT_START_EVENT;
    const char *fault = event_fault(&event, depth, n_documents);
    if (fault) st = refuse(w, event.start_mark, "%s", fault);
    done = type == YAML_STREAM_END_EVENT;
    yaml_event_delete(&event);
  }
  yaml_parser_delete(&parser);
  return st;
}

/* ---- from nodes to settings ------------------------------------------------------------------------------
 */

static bool is_plain(const yaml_node_t *node) {
  return node->type == YAML_SCALAR_NODE && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

static bool is_empty(const yaml_node_t *node) {
  return is_plain(node) && node->data.scalar.length == 0;
}

static bool is_null(const yaml_node_t *node) {
  return is_plain(node) && node->data.scalar.length > 0 &&
         pst__word_find("null|~|Null|NULL", (const char *)node->data.scalar.value,
                        node->data.scalar.length) >= 0;
}

static const char *describe(const yaml_node_t *node, char out_text[PST__SNIPPET_BYTES]) {
  if (node->type == YAML_MAPPING_NODE) return "a map";
  if (node->type == YAML_SEQUENCE_NODE) return "a list";
  return is_empty(node)
             ? "nothing"
             : pst__snippet((const char *)node->data.scalar.value, node->data.scalar.length, out_text);
}

static pst_status apply(const walk *w, const pst__place *at, const yaml_node_t *node);

static pst_status refuse_kind(const walk *w, const pst__place *at, const yaml_node_t *node,
                              const char *wanted) {
  char name[PST__PATH_BYTES + 24], seen[PST__SNIPPET_BYTES];
  pst__place_name(at, name);
  return refuse(w, node->start_mark, "%s = %s: wanted %s", *name ? name : "the whole file",
                describe(node, seen), wanted);
}

static pst_status apply_leaf(const walk *w, const pst__place *at, size_t row, const yaml_node_t *node) {
  char wanted[256], origin[ORIGIN_BYTES];
  pst__value_wanted(&w->settings->rows[row], wanted, sizeof wanted);
  if (node->type != YAML_SCALAR_NODE || is_empty(node)) return refuse_kind(w, at, node, wanted);
  return pst__settings_put(w->settings, at, (const char *)node->data.scalar.value, node->data.scalar.length,
                           is_plain(node), w->given, origin_of(w, node->start_mark, origin));
}

static pst_status apply_list(const walk *w, const pst__place *at, const yaml_node_t *node) {
  if (node->type != YAML_SEQUENCE_NODE) return refuse_kind(w, at, node, "a list");
  size_t n = (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);
  if (n > PST_SETTINGS_MAX_ITEMS)
    return refuse(w, node->start_mark, "%s: %zu items; at most %d are taken", at->pattern, n,
                  PST_SETTINGS_MAX_ITEMS);
  PST_TRY(pst__list_resize(w->settings, at->pattern, n, false));
  pst__place item = {.index = 0};
  snprintf(item.pattern, sizeof item.pattern, "%.*s[]", PST__PATH_BYTES - 3, at->pattern);
  for (; item.index < n; item.index++)
    PST_TRY(apply(w, &item,
                  yaml_document_get_node((yaml_document_t *)&w->document,
                                         node->data.sequence.items.start[item.index])));
  return PST_OK;
}

static pst_status apply_section(const walk *w, const pst__place *at, const yaml_node_t *node) {
  const pst_settings *s = w->settings;
  if (node->type == YAML_SCALAR_NODE && !is_empty(node)) {
    size_t n = strlen(at->pattern);
    for (size_t i = 0; i < s->n_rows; i++) {
      const char *path = s->rows[i].path;
      if (!s->rows[i].shorthand || strncmp(path, at->pattern, n) != 0 || path[n] != '.' ||
          strchr(path + n + 1, '.'))
        continue;
      pst__place inner = {.index = at->index};
      snprintf(inner.pattern, sizeof inner.pattern, "%s", path);
      return apply(w, &inner, node);
    }
  }
  if (is_empty(node)) return PST_OK; /* a section whose keys are all commented out */
  if (node->type != YAML_MAPPING_NODE) return refuse_kind(w, at, node, "a map of keys");
  yaml_document_t *document = (yaml_document_t *)&w->document;
  for (const yaml_node_pair_t *pair = node->data.mapping.pairs.start; pair < node->data.mapping.pairs.top;
       pair++) {
    const yaml_node_t *key = yaml_document_get_node(document, pair->key);
    if (key->type != YAML_SCALAR_NODE)
      return refuse(w, key->start_mark, "a key that is a list or a map; wanted a name");
    const char *name = (const char *)key->data.scalar.value;
    pst__place inner;
    if (pst__place_enter(s, at, name, key->data.scalar.length, &inner) == PST__UNKNOWN) {
      char origin[ORIGIN_BYTES];
      pst_status st = pst__settings_unknown(s, at, name, key->data.scalar.length);
      return pst_fail_prefix(st, "%s: ", origin_of(w, key->start_mark, origin));
    }
    for (const yaml_node_pair_t *before = node->data.mapping.pairs.start; before < pair; before++) {
      const yaml_node_t *other = yaml_document_get_node(document, before->key);
      if (strcmp((const char *)other->data.scalar.value, name) == 0)
        return refuse(w, key->start_mark, "duplicate key '%s'; it is already on line %zu", name,
                      other->start_mark.line + 1);
    }
    PST_TRY(apply(w, &inner, yaml_document_get_node(document, pair->value)));
  }
  return PST_OK;
}

static pst_status apply(const walk *w, const pst__place *at, const yaml_node_t *node) {
  size_t row = 0;
  pst__kind kind = pst__settings_kind(w->settings, at->pattern, &row);
  bool element = kind == PST__LEAF && at->pattern[strlen(at->pattern) - 1] == ']';
  if (is_null(node) && !element) return pst__settings_reset(w->settings, at); /* a list has no holes */
  if (kind == PST__LEAF) return apply_leaf(w, at, row, node);
  if (kind == PST__LIST) return apply_list(w, at, node);
  return apply_section(w, at, node);
}

pst_status pst__settings_apply(pst_settings *s, const pst__place *at, const char *name, const char *text,
                               size_t n_bytes, bool given, const char *origin) {
  walk w = {.settings = s, .name = name, .origin = origin, .given = given};
  if (n_bytes > PST_SETTINGS_MAX_BYTES)
    return pst_fail(PST_INVALID, "%s: %zu bytes; at most %d are taken", name, n_bytes,
                    PST_SETTINGS_MAX_BYTES);
  PST_TRY(check_events(&w, text, n_bytes));
  yaml_parser_t parser;
  if (!yaml_parser_initialize(&parser)) return pst_fail(PST_NO_MEMORY, "%s: no memory to read it", name);
  parser_open(&parser, text, n_bytes);
  pst_status st = PST_OK;
  if (!yaml_parser_load(&parser, &w.document)) {
    st = refuse_syntax(&w, &parser, text);
  } else {
    const yaml_node_t *root = yaml_document_get_root_node(&w.document);
    if (root) {
      st = apply(&w, at, root);
    } else if (*at->pattern) {
      char path[PST__PATH_BYTES + 24];
      pst__place_name(at, path);
      st = pst_fail(PST_INVALID, "%s: %s has no value", name, path);
    }
    yaml_document_delete(&w.document);
  }
  yaml_parser_delete(&parser);
  return st;
}

/* ---- unknown keys ----------------------------------------------------------------------------------------
 */

/* The key of row i right under `at`; its length, 0 when the row is elsewhere. */
static size_t key_under(const pst_settings *s, size_t i, const pst__place *at, const char **out_key) {
  size_t n = strlen(at->pattern);
  const char *path = s->rows[i].path;
  if (n > 0 && (strncmp(path, at->pattern, n) != 0 || path[n] != '.')) return 0;
  *out_key = path + n + (n > 0);
  return strcspn(*out_key, ".[");
}

pst_status pst__settings_unknown(const pst_settings *s, const pst__place *at, const char *name,
                                 size_t n_bytes) {
  char seen[PST__SNIPPET_BYTES], here[PST__PATH_BYTES + 24];
  pst__snippet(name, n_bytes, seen);
  size_t best = SIZE_MAX, n_best = 0;
  const char *nearest = NULL, *elsewhere = NULL;
  for (size_t i = 0; i < s->n_rows; i++) {
    const char *key, *last = strrchr(s->rows[i].path, '.');
    if (last && strlen(last + 1) == n_bytes && memcmp(last + 1, name, n_bytes) == 0)
      elsewhere = s->rows[i].path;
    size_t n = key_under(s, i, at, &key);
    size_t distance = n ? pst__text_distance(name, n_bytes, key, n) : SIZE_MAX;
    if (distance < best) best = distance, nearest = key, n_best = n;
  }
  pst__place_name(at, here);
  const char *under = *here ? " under " : "";
  if (elsewhere && best > 2)
    return pst_fail(PST_INVALID, "unknown key '%s'%s%s; there is '%s'", seen, under, here, elsewhere);
  if (!nearest) return pst_fail(PST_INVALID, "unknown key '%s'%s%s, which takes no keys", seen, under, here);
  return pst_fail(PST_INVALID, "unknown key '%s'%s%s; nearest is '%.*s'", seen, under, here, (int)n_best,
                  nearest);
}

/* ---- files -----------------------------------------------------------------------------------------------
 */

pst_status pst_settings_load_text(pst_settings *s, const char *name, const char *text, size_t n_bytes) {
  return pst__settings_apply(s, &(pst__place){.pattern = ""}, name, text, n_bytes, true, NULL);
}

pst_status pst_settings_load_file(pst_settings *s, const char *path) {
  pst_status st = PST_OK;
  char *text = NULL;
  FILE *file = fopen(path, "rb");
  if (!file) return pst_fail(PST_IO, "%s: %s", path, strerror(errno));
  text = malloc(PST_SETTINGS_MAX_BYTES + 1);
  if (!text) {
    st = pst_fail(PST_NO_MEMORY, "%s: no memory to read it", path);
    goto close;
  }
  size_t n = fread(text, 1, PST_SETTINGS_MAX_BYTES + 1, file);
  if (ferror(file))
    st = pst_fail(PST_IO, "%s: %s", path, strerror(errno));
  else if (n > PST_SETTINGS_MAX_BYTES)
    st = pst_fail(PST_INVALID, "%s: more than %d bytes; a run file is smaller", path, PST_SETTINGS_MAX_BYTES);
  else
    st = pst_settings_load_text(s, path, text, n);
close:
  free(text);
  fclose(file);
  return st;
}
