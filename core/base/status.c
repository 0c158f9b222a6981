#include "core/base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_BYTES = 1024 };

static _Thread_local char message[MESSAGE_BYTES];

pst_status pst_fail(pst_status status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  char text[MESSAGE_BYTES]; /* the arguments may point into the old message */
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  memcpy(message, text, sizeof text);
  return status;
}

pst_status pst_fail_prefix(pst_status status, const char *format, ...) {
  char text[MESSAGE_BYTES];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  size_t n = strlen(text);
  snprintf(text + n, sizeof text - n, "%s", message);
  memcpy(message, text, sizeof text);
  return status;
}

const char *pst_error(void) {
  return message;
}

void pst_error_set(const char *text) {
  snprintf(message, sizeof message, "%s", text);
}

const char *pst_status_name(pst_status status) {
  static const char *const names[] = {
#define PST_STATUS_NAME(name, exit_status, help) #name,
      PST_STATUS_LIST(PST_STATUS_NAME)
#undef PST_STATUS_NAME
  };
  return (unsigned)status < PST_STATUS_COUNT ? names[status] : "UNKNOWN";
}

int pst_status_exit(pst_status status) {
  static const int codes[] = {
#define PST_STATUS_EXIT(name, exit_status, help) exit_status,
      PST_STATUS_LIST(PST_STATUS_EXIT)
#undef PST_STATUS_EXIT
  };
  return (unsigned)status < PST_STATUS_COUNT ? codes[status] : 70;
}
