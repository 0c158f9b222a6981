#include "core/checkpoint/manifest.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void pst_manifest_destroy(pst_manifest *manifest) {
  if (!manifest) return;
  for (size_t i = 0; i < manifest->n_files; i++) free(manifest->files[i].name);
  for (size_t i = 0; i < manifest->n_notes; i++) {
    free(manifest->notes[i].key);
    free(manifest->notes[i].value);
  }
  free(manifest->files);
  free(manifest->notes);
  free(manifest);
}

const char *pst_manifest_note_get(const pst_manifest *manifest, const char *key) {
  for (size_t i = 0; i < manifest->n_notes; i++)
    if (strcmp(manifest->notes[i].key, key) == 0) return manifest->notes[i].value;
  return NULL;
}

int pst__manifest_name_ok(const char *name) {
  return *name && *name != '.' && !strchr(name, '/') && strcmp(name, PST__MANIFEST_NAME) != 0;
}

pst_status pst__manifest_format(const pst_manifest *manifest, char **out_json) {
  const pst_checkpoint_facts *facts = &manifest->facts;
  char *text = NULL;
  json_t *files = json_array(), *notes = json_object();
  int failed = !files || !notes;
  for (size_t i = 0; i < manifest->n_files && !failed; i++) {
    const pst_manifest_file *file = &manifest->files[i];
    failed = json_array_append_new(files, json_pack("{s:s, s:I, s:o}", "name", file->name, "bytes",
                                                    (json_int_t)file->bytes, "checksum",
                                                    json_sprintf("%016" PRIx64, file->checksum)));
  }
  for (size_t i = 0; i < manifest->n_notes && !failed; i++)
    failed = json_object_set_new(notes, manifest->notes[i].key, json_string(manifest->notes[i].value));
  json_t *root =
      json_pack("{s:i, s:I, s:o, s:I, s:{s:I, s:o}, s:O, s:O}", "format", PST_MANIFEST_FORMAT, "step",
                (json_int_t)manifest->step, "seed", json_sprintf("%" PRIu64, facts->seed), "tokens",
                (json_int_t)facts->tokens, "data", "bytes", (json_int_t)facts->data_bytes, "checksum",
                json_sprintf("%016" PRIx64, facts->data_checksum), "files", files, "notes", notes);
  if (root && !failed) text = json_dumps(root, JSON_INDENT(2));
  json_decref(root);
  json_decref(files);
  json_decref(notes);
  if (!text)
    return pst_fail(PST_INVALID, "%s: a file name or note is no UTF-8, or memory is short",
                    PST__MANIFEST_NAME);
  *out_json = text;
  return PST_OK;
}

static pst_status get_count(const json_t *object, const char *key, const char *where, uint64_t *out) {
  const json_t *value = json_object_get(object, key);
  if (!json_is_integer(value) || json_integer_value(value) < 0)
    return pst_fail(PST_INVALID, "%s: \"%s\" is missing or no integer from 0 on", where, key);
  *out = (uint64_t)json_integer_value(value);
  return PST_OK;
}

static pst_status get_number_text(const json_t *object, const char *key, int base, const char *where,
                                  uint64_t *out) {
  const char *text = json_string_value(json_object_get(object, key));
  const char *digits = base == 16 ? "0123456789abcdef" : "0123456789";
  if (!text || !*text || text[strspn(text, digits)])
    return pst_fail(PST_INVALID, "%s: \"%s\" is missing or no string of digits in base %d", where, key, base);
  errno = 0;
  uint64_t value = strtoull(text, NULL, base);
  if (errno)
    return pst_fail(PST_INVALID, "%s: \"%s\" is %.40s, wanted a number below 2^64", where, key, text);
  *out = value;
  return PST_OK;
}

static pst_status parse_files(const json_t *list, const char *where, pst_manifest *manifest) {
  if (!json_is_array(list) || json_array_size(list) == 0)
    return pst_fail(PST_INVALID, "%s: \"files\" is missing, empty or no list", where);
  size_t n = json_array_size(list);
  manifest->files = calloc(n, sizeof *manifest->files);
  if (!manifest->files) return pst_fail(PST_NO_MEMORY, "%s: no memory for a list of %zu files", where, n);
  for (size_t i = 0; i < n; i++) {
    const json_t *entry = json_array_get(list, i);
    const char *name = json_string_value(json_object_get(entry, "name"));
    pst_manifest_file *file = &manifest->files[i];
    if (!name || !pst__manifest_name_ok(name))
      return pst_fail(PST_INVALID, "%s: file %zu has no name of a file in this directory", where, i);
    PST_TRY(get_count(entry, "bytes", where, &file->bytes));
    PST_TRY(get_number_text(entry, "checksum", 16, where, &file->checksum));
    file->name = strdup(name);
    if (!file->name) return pst_fail(PST_NO_MEMORY, "%s: no memory for the name of file %zu", where, i);
    manifest->n_files++;
  }
  return PST_OK;
}

static pst_status parse_notes(const json_t *object, const char *where, pst_manifest *manifest) {
  size_t n = json_object_size(object);
  if (n == 0) return PST_OK;
  manifest->notes = calloc(n, sizeof *manifest->notes);
  if (!manifest->notes) return pst_fail(PST_NO_MEMORY, "%s: no memory for a list of %zu notes", where, n);
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)object, key, value) {
    if (!json_is_string(value)) return pst_fail(PST_INVALID, "%s: note \"%.80s\" is no string", where, key);
    pst_manifest_note *note = &manifest->notes[manifest->n_notes++];
    note->key = strdup(key);
    note->value = strdup(json_string_value(value));
    if (!note->key || !note->value)
      return pst_fail(PST_NO_MEMORY, "%s: no memory for note \"%.80s\"", where, key);
  }
  return PST_OK;
}

static pst_status parse_root(const json_t *root, const char *where, pst_manifest *manifest) {
  uint64_t format = 0, step = 0;
  const json_t *data = json_object_get(root, "data");
  PST_TRY(get_count(root, "format", where, &format));
  if (format != PST_MANIFEST_FORMAT)
    return pst_fail(PST_UNSUPPORTED, "%s: format is %" PRIu64 ", wanted %d", where, format,
                    PST_MANIFEST_FORMAT);
  PST_TRY(get_count(root, "step", where, &step));
  manifest->step = (int64_t)step;
  PST_TRY(get_number_text(root, "seed", 10, where, &manifest->facts.seed));
  PST_TRY(get_count(root, "tokens", where, &manifest->facts.tokens));
  PST_TRY(get_count(data, "bytes", where, &manifest->facts.data_bytes));
  PST_TRY(get_number_text(data, "checksum", 16, where, &manifest->facts.data_checksum));
  PST_TRY(parse_files(json_object_get(root, "files"), where, manifest));
  return parse_notes(json_object_get(root, "notes"), where, manifest);
}

pst_status pst__manifest_parse(const char *json, size_t n, const char *where, pst_manifest **out) {
  json_error_t error;
  json_t *root = json_loadb(json, n, JSON_REJECT_DUPLICATES, &error);
  if (!root) return pst_fail(PST_INVALID, "%s:%d:%d: %s", where, error.line, error.column, error.text);
  pst_status st = PST_OK;
  pst_manifest *manifest = calloc(1, sizeof *manifest);
  if (!manifest) st = pst_fail(PST_NO_MEMORY, "%s: no memory for %zu bytes", where, sizeof *manifest);
  if (st == PST_OK) st = parse_root(root, where, manifest);
  if (st == PST_OK) {
    *out = manifest;
    manifest = NULL;
  }
  pst_manifest_destroy(manifest);
  json_decref(root);
  return st;
}
