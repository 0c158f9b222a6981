#include "core/schedule/action.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const char *const kind_names[PST_ACTION_COUNT] = {
#define ACTION_NAME(name, text) text,
    PST_ACTION_LIST(ACTION_NAME)
#undef ACTION_NAME
};

const char *pst_action_kind_name(int kind) {
  return kind >= 0 && kind < PST_ACTION_COUNT ? kind_names[kind] : "?";
}

static bool is_for_worker(int kind) {
  return kind == PST_ACTION_REDUCE || kind == PST_ACTION_UPDATE;
}

const char *pst_action_format(pst_action action, char text[PST_ACTION_TEXT]) {
  if (is_for_worker(action.kind))
    snprintf(text, PST_ACTION_TEXT, "%s", kind_names[action.kind]);
  else
    snprintf(text, PST_ACTION_TEXT, "%u%s%" PRIu32, (unsigned)action.chunk, pst_action_kind_name(action.kind),
             action.microbatch);
  return text;
}

/* Reads digits up to `limit`; moves *at past them. */
static bool read_number(const char **at, uint64_t limit, uint64_t *out) {
  const char *p = *at;
  uint64_t value = 0;
  for (; *p >= '0' && *p <= '9'; p++) {
    value = value * 10 + (uint64_t)(*p - '0');
    if (value > limit) return false;
  }
  if (p == *at) return false;
  *at = p;
  *out = value;
  return true;
}

pst_status pst_action_parse(const char *text, pst_action *out_action) {
  const char *p = text;
  uint64_t chunk = 0, microbatch = 0;
  bool has_chunk = read_number(&p, UINT16_MAX, &chunk);
  size_t length = strspn(p, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_");
  int kind = 0;
  while (kind < PST_ACTION_COUNT &&
         (strlen(kind_names[kind]) != length || strncmp(kind_names[kind], p, length) != 0))
    kind++;
  if (kind == PST_ACTION_COUNT) goto refuse;
  p += length;
  if (has_chunk == is_for_worker(kind)) goto refuse;
  if (has_chunk && !read_number(&p, UINT32_MAX, &microbatch)) goto refuse;
  if (*p != '\0') goto refuse;
  *out_action = pst_action_make((pst_action_kind)kind, (int)chunk, (int64_t)microbatch);
  return PST_OK;

refuse:
  return pst_fail(PST_INVALID,
                  "action: seen \"%.40s\", wanted stage, kind, microbatch such as 0F0, 1I3 or 2SEND_B1",
                  text);
}
