#include "core/device/device.h"

pst_status pst_device_table_check(const char *driver, const pst_device_table *table) {
  if (!table) return pst_fail(PST_INTERNAL, "%s: no device table", driver);
#define CHECK_ENTRY(entry)                                                                                   \
  if (!table->entry)                                                                                         \
  return pst_fail(PST_INTERNAL, "%s: device table lacks the required entry " #entry, driver)
  CHECK_ENTRY(close);
  CHECK_ENTRY(query);
  CHECK_ENTRY(alloc);
  CHECK_ENTRY(free);
  CHECK_ENTRY(fill);
  CHECK_ENTRY(upload);
  CHECK_ENTRY(download);
  CHECK_ENTRY(copy);
  CHECK_ENTRY(supports);
  CHECK_ENTRY(workspace);
  CHECK_ENTRY(run);
  CHECK_ENTRY(wait);
#undef CHECK_ENTRY
  return PST_OK;
}
