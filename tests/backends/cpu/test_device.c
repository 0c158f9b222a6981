/* The CPU as a device: opening and refusing, memory, runs with bad bindings, names, the driver's registry. */
#include "backends/cpu/device.h"
#include "core/device/registry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static pst_status open_with(pst_device_options options, pst_device **out_device) {
  return pst_driver_cpu.open(&options, out_device);
}

static void refuses(pst_device_options options, pst_status wanted, const char *text) {
  pst_device *device = NULL;
  assert_int_equal(open_with(options, &device), wanted);
  assert_null(device);
  if (!strstr(pst_error(), text)) fail_msg("message \"%s\" lacks \"%s\"", pst_error(), text);
}

static void bad_options_are_refused(void **state) {
  const int core = 0;
  refuses((pst_device_options){.spec = "cpu:cores=0-"}, PST_INVALID, "cpu:cores=0-");
  refuses((pst_device_options){.spec = "cpu:cores="}, PST_INVALID, "cpu:cores=");
  refuses((pst_device_options){.spec = "cpu:cores=3-1"}, PST_INVALID, "3-1");
  refuses((pst_device_options){.spec = "cpu:cores=0-99999999"}, PST_INVALID, "99999999");
  refuses((pst_device_options){.spec = "cpu:numa"}, PST_INVALID, "NUMA");
  refuses((pst_device_options){.spec = "cpu:numa4000"}, PST_INVALID, "4000");
  refuses((pst_device_options){.spec = "gpu"}, PST_INVALID, "gpu");
  refuses((pst_device_options){.spec = "cpu", .isa = "v9"}, PST_INVALID, "v9");
  refuses((pst_device_options){.spec = "cpu", .gemm = "other"}, PST_INVALID, "other");
  refuses((pst_device_options){.spec = "cpu", .n_threads = -1}, PST_INVALID, "-1");
  refuses((pst_device_options){.spec = "cpu:cores=0", .n_threads = 2}, PST_INVALID, "2 threads");
  refuses((pst_device_options){.spec = "cpu", .cores = &core}, PST_INVALID, "n_threads");
}

static void query_says_what_it_is(void **state) {
  pst_device *device;
  assert_int_equal(open_with((pst_device_options){.spec = "cpu", .n_threads = 2, .isa = "baseline"}, &device),
                   PST_OK);
  pst_device_info info;
  device->table->query(device, &info);
  assert_string_equal(info.name, "cpu");
  assert_string_equal(info.reason, "");
  assert_string_equal(info.numerics, "cpu f32 mul+add own-gemm");
  assert_non_null(strstr(info.description, "2 threads"));
  assert_true(info.memory_bytes > 0);
  const pst_device_table *t = device->table;
  t->close(device);
  t->close(NULL);
}

/* Another version of OpenBLAS may round otherwise on the same core. */
static void numerics_name_the_version_of_openblas(void **state) {
  const pst_cpu_set *set;
  pst_device_info info;
  assert_int_equal(pst__cpu_set_find("baseline", &set), PST_OK);
  pst_blas blas = {.core = "SkylakeX", .config = "OpenBLAS 0.3.21 DYNAMIC_ARCH NO_AFFINITY MAX_THREADS=64"};
  pst__cpu_describe(set, &blas, 1, &info);
  assert_string_equal(info.numerics, "cpu f32 mul+add openblas 0.3.21 SkylakeX");
  blas.config[0] = '\0';
  pst__cpu_describe(set, &blas, 1, &info);
  assert_string_equal(info.numerics, "cpu f32 mul+add openblas SkylakeX");
}

static void count_device(void *user, const pst_device_info *info) {
  assert_string_equal(info->name, "cpu");
  ++*(int *)user;
}

static void driver_is_found(void **state) {
  int n = 0;
  assert_ptr_equal(pst_driver_find("cpu"), &pst_driver_cpu);
  assert_ptr_equal(pst_driver_find("cpu:cores=0-3"), &pst_driver_cpu);
  assert_null(pst_driver_find("cp"));
  assert_null(pst_driver_find("cpux"));
  assert_null(pst_driver_find(""));
  pst_driver_cpu.enumerate(count_device, &n);
  assert_int_equal(n, 1);
}

static void memory_is_zeroed_and_bounded(void **state) {
  static const int64_t sizes[] = {0, 1, 1000, (INT64_C(2) << 20) + 3, INT64_C(9) << 20};
  pst_device *device;
  assert_int_equal(open_with((pst_device_options){.spec = "cpu", .n_threads = 1}, &device), PST_OK);
  const pst_device_table *t = device->table;
  for (int i = 0; i < 5; i++) {
    pst_buffer *b;
    assert_int_equal(t->alloc(device, sizes[i], &b), PST_OK);
    const char *p = t->host_pointer(device, b);
    assert_int_equal((uintptr_t)p % PST_ALIGN, 0);
    for (int64_t k = 0; k < sizes[i]; k++)
      if (p[k]) fail_msg("byte %lld of a block of %lld is not 0", (long long)k, (long long)sizes[i]);
    char byte = 7;
    assert_int_equal(t->upload(device, b, sizes[i], &byte, 1), PST_INTERNAL);
    assert_int_equal(t->download(device, &byte, b, -1, 1), PST_INTERNAL);
    assert_int_equal(t->fill(device, b, 1, sizes[i], 1), PST_INTERNAL);
    if (sizes[i] > 8) {
      assert_int_equal(t->fill(device, b, 2, 3, 9), PST_OK);
      assert_int_equal(t->copy(device, b, 5, b, 2, 3), PST_OK);
      assert_true(p[1] == 0 && p[2] == 9 && p[7] == 9 && p[8] == 0);
    }
    t->free(device, b);
  }
  t->free(device, NULL);
  pst_buffer *none = NULL;
  assert_int_equal(t->alloc(device, INT64_MAX / 4, &none), PST_NO_MEMORY);
  assert_int_equal(t->alloc(device, INT64_MAX, &none), PST_NO_MEMORY);
  assert_null(none);
  device->table->close(device);
}

static pst_operand vector_at(int64_t n, int64_t offset) {
  return (pst_operand){.segment = PST_SEGMENT_WORK, .rank = 1, .dim = {n, 1, 1, 1}, .offset = offset};
}

static void count_call(void *user) {
  ++*(int *)user;
}

static void programs_run_and_bad_ones_are_refused(void **state) {
  pst_device *device;
  assert_int_equal(open_with((pst_device_options){.spec = "cpu", .n_threads = 2}, &device), PST_OK);
  const pst_device_table *t = device->table;
  pst_buffer *b;
  assert_int_equal(t->alloc(device, 1024, &b), PST_OK);
  pst_segment work = {.blocks = &b, .n_blocks = 1, .bytes = 1024};
  pst_binding bound = {.base = {[PST_SEGMENT_WORK] = &work}}, unbound = {0};
  pst_op ops[2] = {{.code = PST_OP_add, .unit = 4}, {.code = PST_OP_scale, .unit = 4, .attrs.scale = 3.0f}};
  ops[0].in[0] = ops[0].in[1] = vector_at(5, 0);
  ops[0].out[0] = ops[1].in[0] = vector_at(5, 64);
  ops[1].out[0] = vector_at(5, 128);
  pst_program program = {.name = "F", .ops = ops, .n_ops = 2};
  float *x = t->host_pointer(device, b);
  x[4] = 1.5f;
  int calls = 0;
  t->set_progress(device, count_call, &calls);
  assert_int_equal(t->run(device, &program, &bound), PST_OK);
  assert_int_equal(t->wait(device), PST_OK);
  assert_true(x[20] == 3.0f && x[36] == 9.0f && x[37] == 0.0f);
  assert_int_equal(calls, 2);
  assert_int_equal(t->run(device, &program, &unbound), PST_INTERNAL);
  assert_non_null(strstr(pst_error(), "work"));
  ops[1].out[0].offset = 1008;
  assert_int_equal(t->run(device, &program, &bound), PST_INTERNAL);
  assert_non_null(strstr(pst_error(), "scale"));
  t->free(device, b);
  device->table->close(device);
}

static void what_kernels_lack_is_refused(void **state) {
  pst_device *device;
  assert_int_equal(open_with((pst_device_options){.spec = "cpu", .n_threads = 1}, &device), PST_OK);
  const pst_device_table *t = device->table;
  pst_op op = {.code = PST_OP_add};
  op.in[0] = op.in[1] = op.out[0] = vector_at(5, 0);
  assert_int_equal(t->supports(device, &op), PST_OK);
  op.in[1].dtype = PST_F16;
  assert_int_equal(t->supports(device, &op), PST_UNSUPPORTED);
  assert_non_null(strstr(pst_error(), "add: in[1] is f16 of shape [5,"));
  op.in[1] = (pst_operand){0};
  assert_int_equal(t->supports(device, &op), PST_UNSUPPORTED);
  op.code = PST_OP_COUNT;
  assert_int_equal(t->supports(device, &op), PST_UNSUPPORTED);
  device->table->close(device);
}

static void names_and_tables(void **state) {
  assert_string_equal(pst_op_name(PST_OP_linear_wgrad), "linear_wgrad");
  assert_string_equal(pst_op_name(PST_OP_COUNT), "unknown");
  for (int s = 0; s < PST_SEGMENT_COUNT; s++) assert_non_null(pst_segment_name((pst_segment_kind)s));
  assert_string_equal(pst_segment_name(PST_SEGMENT_PARAM_NEXT), "param_next");
  assert_string_equal(pst_segment_name(PST_SEGMENT_COUNT), "unknown");
  pst_device *device;
  assert_int_equal(open_with((pst_device_options){.spec = "cpu", .n_threads = 1}, &device), PST_OK);
  pst_device_table table = *device->table;
  assert_int_equal(pst_device_table_check("test", &table), PST_OK);
  table.fill = NULL;
  assert_int_equal(pst_device_table_check("test", &table), PST_INTERNAL);
  assert_non_null(strstr(pst_error(), "fill"));
  device->table->close(device);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bad_options_are_refused),
      cmocka_unit_test(query_says_what_it_is),
      cmocka_unit_test(numerics_name_the_version_of_openblas),
      cmocka_unit_test(driver_is_found),
      cmocka_unit_test(memory_is_zeroed_and_bounded),
      cmocka_unit_test(programs_run_and_bad_ones_are_refused),
      cmocka_unit_test(what_kernels_lack_is_refused),
      cmocka_unit_test(names_and_tables),
  };
  return cmocka_run_group_tests_name("cpu device", tests, NULL, NULL);
}
