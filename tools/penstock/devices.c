#include "tools/penstock/command.h"

static void print_device(void *user, const pst_device_info *info) {
  bool *any = user;
  if (info->reason[0]) {
    printf("%-10s absent: %s\n", info->name, info->reason);
    return;
  }
  char text[32];
  *any = true;
  printf("%-10s %s\n", info->name, info->description);
  printf("%-10s memory %s", "", info->memory_bytes ? command_bytes(info->memory_bytes, text) : "not known");
  if (info->max_block_bytes) printf(", in blocks of at most %s", command_bytes(info->max_block_bytes, text));
  printf("\n");
  if (info->numerics[0]) printf("%-10s numerics %s\n", "", info->numerics);
}

int command_devices(int argc, char **argv) {
  const command_usage usage = {
      .name = "devices",
      .text = "Lists every device that a stage can run on - its name in a run file, what it is,\n"
              "its memory, its kernels - and for each driver without one, the reason.",
      .examples = {"penstock devices", "penstock devices | grep cuda"},
  };
  char *arguments[MAX_ARGUMENTS];
  int status;
  if (!usage_read(&usage, argc, argv, arguments, &status)) return status;
  bool any = false;
  pst_devices(print_device, &any);
  if (!any) printf("no device can be used\n");
  return 0;
}
