/* The drivers of this build, by name.
 *
 *   const pst_driver *cpu = pst_driver_find("cpu");
 *   for (const pst_driver *const *d = pst_drivers; *d; d++) (*d)->enumerate(print_device, NULL);
 */
#ifndef PENSTOCK_DEVICE_REGISTRY_H
#define PENSTOCK_DEVICE_REGISTRY_H

#include "core/device/device.h"

/* Every driver built in, in the order `devices` lists them; ends with NULL. The build writes this array. */
extern const pst_driver *const pst_drivers[];

/* The driver of this name, or of the device spec that starts with it ("cpu:cores=0-3", "cuda:1"); NULL when
 * this build has none. */
const pst_driver *pst_driver_find(const char *name);

#endif
