/* Settings for people and as YAML again. */
#include "core/base/settings_internal.h"

#include <string.h>

/* ---- YAML ------------------------------------------------------------------------------------------------
 */

static bool is_word(const char *text) {
  if (!*text || pst__word_find("null|Null|NULL", text, strlen(text)) >= 0) return false;
  for (const char *c = text; *c; c++) {
    bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9');
    if (!letter && (c == text || !strchr("_./-+", *c)) &&
        !(*c == ':' && c > text && c[1] >= '0' && c[1] <= '9'))
      return false;
  }
  return true;
}

/* One character of UTF-8 text; its length. Bytes that are none count as one character each. */
static size_t decode(const char *text, unsigned *out_code) {
  const unsigned char *c = (const unsigned char *)text;
  size_t n = c[0] >= 0xF0 ? 4 : c[0] >= 0xE0 ? 3 : c[0] >= 0xC0 ? 2 : 1;
  unsigned code = n == 1 ? c[0] : c[0] & (0x7Fu >> n);
  for (size_t i = 1; i < n; i++) {
    if ((c[i] & 0xC0) != 0x80) {
      *out_code = c[0];
      return 1;
    }
    code = code << 6 | (c[i] & 0x3F);
  }
  *out_code = code;
  return n;
}

static bool prints(unsigned code) {
  if (code == '"' || code == '\\' || code == 0x2028 || code == 0x2029 || code == 0xFEFF) return false;
  return (code >= 0x20 && code < 0x7F) || (code >= 0xA0 && code < 0xD800) ||
         (code >= 0xE000 && code < 0xFFFE) || code >= 0x10000;
}

static void write_text(const pst_setting *row, const char *text, FILE *file) {
  bool number =
      row->type == PST_SETTING_INT || row->type == PST_SETTING_FLOAT || row->type == PST_SETTING_BOOL;
  if (number || is_word(text)) {
    fputs(text, file);
    return;
  }
  fputc('"', file);
  for (unsigned code; *text;) {
    size_t n = decode(text, &code);
    if (prints(code))
      fwrite(text, 1, n, file);
    else if (code == '\n')
      fputs("\\n", file);
    else if (code == '"' || code == '\\')
      fprintf(file, "\\%c", (char)code);
    else
      fprintf(file, "\\u%04X", code);
    text += n;
  }
  fputc('"', file);
}

static bool has_value(const pst_settings *s, size_t row) {
  for (size_t j = 0; j < s->columns[row].n; j++)
    if (s->columns[row].cells[j].origin) return true;
  return false;
}

/* Whether row i is at or under the first n bytes of `path`. */
static bool under(const pst_settings *s, size_t i, const char *path, size_t n) {
  return strncmp(s->rows[i].path, path, n) == 0 && (n == 0 || strchr(".[", s->rows[i].path[n]));
}

static void write_list_of_maps(const pst_settings *s, const char *list, size_t n, int indent, FILE *file) {
  size_t n_items = 0;
  for (size_t i = 0; i < s->n_rows; i++)
    if (under(s, i, list, n)) n_items = s->columns[i].n;
  for (size_t j = 0; j < n_items; j++) {
    fprintf(file, "%*s- {", indent + 2, "");
    const char *comma = "";
    for (size_t i = 0; i < s->n_rows; i++) {
      if (!under(s, i, list, n) || !s->columns[i].cells[j].origin) continue;
      fprintf(file, "%s%s: ", comma, s->rows[i].path + n + 3);
      write_text(&s->rows[i], s->columns[i].cells[j].text, file);
      comma = ", ";
    }
    fputs("}\n", file);
  }
}

static void write_list(const pst_settings *s, size_t row, FILE *file) {
  fputs(" [", file);
  for (size_t j = 0; j < s->columns[row].n; j++) {
    if (j) fputs(", ", file);
    write_text(&s->rows[row], s->columns[row].cells[j].text, file);
  }
  fputs("]\n", file);
}

/* The keys under the first n bytes of `path`, each once, in the table's order. */
static void write_section(const pst_settings *s, const char *path, size_t n, int indent, FILE *file) {
  for (size_t i = 0; i < s->n_rows; i++) {
    if (!under(s, i, path, n)) continue;
    const char *row = s->rows[i].path, *key = row + n + (n > 0);
    size_t n_key = (size_t)(key - row) + strcspn(key, ".[");
    bool seen = false, any = has_value(s, i);
    for (size_t k = 0; k < i && !seen; k++) seen = under(s, k, row, n_key);
    for (size_t k = i + 1; k < s->n_rows; k++) any = any || (under(s, k, row, n_key) && has_value(s, k));
    if (seen || !any) continue;
    fprintf(file, "%*s%.*s:", indent, "", (int)(row + n_key - key), key);
    if (!row[n_key]) {
      fputc(' ', file);
      write_text(&s->rows[i], s->columns[i].cells[0].text, file);
      fputc('\n', file);
    } else if (row[n_key] == '.') {
      fputc('\n', file);
      write_section(s, row, n_key, indent + 2, file);
    } else if (row[n_key + 2]) {
      fputc('\n', file);
      write_list_of_maps(s, row, n_key, indent, file);
    } else {
      write_list(s, i, file);
    }
  }
}

static pst_status finish(FILE *file) {
  return fflush(file) != 0 || ferror(file) ? pst_fail(PST_IO, "settings: writing them failed") : PST_OK;
}

pst_status pst_settings_write(pst_settings *s, FILE *file) {
  write_section(s, "", 0, 0, file);
  return finish(file);
}

/* ---- for people ------------------------------------------------------------------------------------------
 */

pst_status pst_settings_print(pst_settings *s, FILE *file) {
  static const char *const types[] = {"bool", "int", "float", "string", "size", "time", "enum"};
  for (size_t i = 0; i < s->n_rows; i++) {
    const pst_setting *row = &s->rows[i];
    const pst__column *column = &s->columns[i];
    fprintf(file, "%-24s %-6s  %s", row->path, types[row->type], row->help);
    if (row->words) fprintf(file, " (%s)", row->words);
    fprintf(file, "\n%-24s         default %s", "", !row->def ? "none" : *row->def ? row->def : "\"\"");
    for (size_t j = 0; j < column->n; j++) {
      const pst__cell *cell = &column->cells[j];
      if (cell->given) {
        fputs("; now ", file);
        write_text(row, cell->text, file);
        fprintf(file, " from %s", cell->origin);
      }
    }
    fputc('\n', file);
  }
  return finish(file);
}
