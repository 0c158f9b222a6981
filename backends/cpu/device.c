#include "backends/cpu/device.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

/* Blocks from this size come from mmap() on boundaries of huge pages. */
#define HUGE_PAGE (INT64_C(2) << 20)

struct pst_buffer {
  char *bytes;
  int64_t size;
  void *mapping; /* what mmap() gave; NULL: from the heap */
  size_t mapping_size;
};

typedef struct cpu_device {
  pst_device base;
  pst_team *team;
  const pst_cpu_set *set;
  pst_blas blas;
  bool has_blas;
  pst_device_info info;
  void (*progress)(void *user);
  void *progress_user;
} cpu_device;

static cpu_device *cpu(pst_device *device) {
  return (cpu_device *)(void *)device;
}

/* ---- memory ---- */

static pst_status no_memory(int64_t bytes) {
  return pst_fail(PST_NO_MEMORY, "cpu: no block of %lld bytes: %s", (long long)bytes, strerror(errno));
}

static pst_status map_block(pst_buffer *b, int64_t bytes) {
  if (bytes > INT64_MAX - 2 * HUGE_PAGE) {
    errno = ENOMEM;
    return no_memory(bytes);
  }
  const size_t size = (size_t)((bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
  void *p = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return no_memory(bytes);
  b->mapping = p;
  b->mapping_size = size + HUGE_PAGE;
  b->bytes = (char *)p + (HUGE_PAGE - (int64_t)((uintptr_t)p % HUGE_PAGE)) % HUGE_PAGE;
#ifdef MADV_HUGEPAGE
  madvise(b->bytes, size, MADV_HUGEPAGE);
#endif
#ifdef MADV_POPULATE_WRITE
  /* A machine that is short of memory says so now, not by a signal in mid-step; older kernels answer EINVAL.
   */
  if (madvise(b->bytes, (size_t)bytes, MADV_POPULATE_WRITE) != 0 && errno == ENOMEM) {
    munmap(b->mapping, b->mapping_size);
    errno = ENOMEM;
    return no_memory(bytes);
  }
#endif
  return PST_OK;
}

static pst_status cpu_alloc(pst_device *device, int64_t bytes, pst_buffer **out_buffer) {
  if (bytes < 0) return pst_fail(PST_INTERNAL, "cpu: block of %lld bytes", (long long)bytes);
  pst_buffer *b = calloc(1, sizeof *b);
  if (!b) return no_memory((int64_t)sizeof *b);
  pst_status st = PST_OK;
  if (bytes >= HUGE_PAGE) {
    PST_GOTO(st, map_block(b, bytes), free_handle);
  } else {
    const size_t size = ((size_t)bytes + PST_ALIGN) / PST_ALIGN * PST_ALIGN;
    b->bytes = aligned_alloc(PST_ALIGN, size);
    if (!b->bytes) PST_GOTO(st, no_memory(bytes), free_handle);
    memset(b->bytes, 0, size);
  }
  b->size = bytes;
  *out_buffer = b;
  return PST_OK;

free_handle:
  free(b);
  return st;
}

static void cpu_free(pst_device *device, pst_buffer *b) {
  if (!b) return;
  if (b->mapping)
    munmap(b->mapping, b->mapping_size);
  else
    free(b->bytes);
  free(b);
}

static pst_status check_range(const char *what, const pst_buffer *b, int64_t offset, int64_t bytes) {
  if (offset < 0 || bytes < 0 || offset > b->size || bytes > b->size - offset)
    return pst_fail(PST_INTERNAL, "cpu: %s of %lld bytes at %lld in a block of %lld", what, (long long)bytes,
                    (long long)offset, (long long)b->size);
  return PST_OK;
}

static pst_status cpu_fill(pst_device *device, pst_buffer *b, int64_t offset, int64_t bytes, uint8_t value) {
  PST_TRY(check_range("fill", b, offset, bytes));
  if (bytes) memset(b->bytes + offset, value, (size_t)bytes);
  return PST_OK;
}

static pst_status cpu_upload(pst_device *device, pst_buffer *to, int64_t offset, const void *from,
                             int64_t bytes) {
  PST_TRY(check_range("upload", to, offset, bytes));
  if (bytes) memcpy(to->bytes + offset, from, (size_t)bytes);
  return PST_OK;
}

static pst_status cpu_download(pst_device *device, void *to, const pst_buffer *from, int64_t offset,
                               int64_t bytes) {
  PST_TRY(check_range("download", from, offset, bytes));
  if (bytes) memcpy(to, from->bytes + offset, (size_t)bytes);
  return PST_OK;
}

static pst_status cpu_copy(pst_device *device, pst_buffer *to, int64_t to_offset, const pst_buffer *from,
                           int64_t from_offset, int64_t bytes) {
  PST_TRY(check_range("copy", to, to_offset, bytes));
  PST_TRY(check_range("copy", from, from_offset, bytes));
  if (bytes) memmove(to->bytes + to_offset, from->bytes + from_offset, (size_t)bytes);
  return PST_OK;
}

static void *cpu_host_pointer(pst_device *device, pst_buffer *b) {
  return b->bytes;
}

/* ---- subnormals ---- */

#if defined(__x86_64__)
typedef unsigned int float_mode;
static float_mode flush_subnormals(void) {
  float_mode before = _mm_getcsr();
  _mm_setcsr(before | 0x8040); /* flush to zero, denormals are zero */
  return before;
}
static void float_mode_restore(float_mode mode) {
  _mm_setcsr(mode);
}
#elif defined(__aarch64__)
typedef uint64_t float_mode;
static float_mode flush_subnormals(void) {
  float_mode before;
  __asm__ volatile("mrs %0, fpcr" : "=r"(before));
  __asm__ volatile("msr fpcr, %0" : : "r"(before | (UINT64_C(1) << 24)));
  return before;
}
static void float_mode_restore(float_mode mode) {
  __asm__ volatile("msr fpcr, %0" : : "r"(mode));
}
#else
typedef int float_mode;
static float_mode flush_subnormals(void) {
  return 0;
}
static void float_mode_restore(float_mode mode) {}
#endif

/* ---- programs ---- */

typedef struct run_job {
  cpu_device *device;
  const pst_program *program;
  const pst_binding *binding;
  const pst_ctrl *ctrl;
} run_job;

static void *resolve(const pst_binding *binding, const pst_operand *o) {
  if (!pst_operand_present(o)) return NULL;
  return binding->base[o->segment]->blocks[o->block]->bytes + o->offset;
}

static void run_member(pst_team_member *me, void *arg) {
  const run_job *job = arg;
  const float_mode before = flush_subnormals();
  const bool reports = pst_team_rank(me) == 0 && job->device->progress;
  pst_cpu_call call = {.ctrl = job->ctrl,
                       .set = job->device->set,
                       .blas = job->device->has_blas ? &job->device->blas : NULL,
                       .me = me};
  for (int64_t n = 0; n < job->program->n_ops; n++) {
    const pst_op *op = &job->program->ops[n];
    call.op = op;
    for (int i = 0; i < PST_OP_MAX_IN; i++) call.in[i] = resolve(job->binding, &op->in[i]);
    for (int i = 0; i < PST_OP_MAX_OUT; i++) call.out[i] = resolve(job->binding, &op->out[i]);
    for (int i = 0; i < PST_OP_MAX_ACC; i++) call.acc[i] = resolve(job->binding, &op->acc[i]);
    call.workspace = resolve(job->binding, &op->workspace);
    pst__cpu_run(&call);
    pst_team_barrier(me);
    if (reports) job->device->progress(job->device->progress_user);
  }
  float_mode_restore(before);
}

/* An operand outside its memory is found here, not by a signal. */
static pst_status check_operand(const pst_program *program, int64_t n, const pst_binding *binding,
                                const pst_operand *o, const char *what) {
  if (!pst_operand_present(o)) return PST_OK;
  const pst_op *op = &program->ops[n];
  const pst_segment *s = o->segment < PST_SEGMENT_COUNT ? binding->base[o->segment] : NULL;
  if (!s || o->block >= s->n_blocks || !s->blocks[o->block])
    return pst_fail(PST_INTERNAL,
                    "cpu: program %s, op %lld %s, %s: block %d of segment %s is not bound, unit %d",
                    program->name, (long long)n, pst_op_name(op->code), what, o->block,
                    pst_segment_name((pst_segment_kind)o->segment), op->unit);
  const int64_t size = s->blocks[o->block]->size;
  const int64_t bytes = pst_operand_elements(o) * (int64_t)pst_dtype_size((pst_dtype)o->dtype);
  if (o->offset < 0 || o->offset > size || bytes > size - o->offset)
    return pst_fail(
        PST_INTERNAL,
        "cpu: program %s, op %lld %s, %s: %lld bytes at %lld of segment %s, which has %lld, unit %d",
        program->name, (long long)n, pst_op_name(op->code), what, (long long)bytes, (long long)o->offset,
        pst_segment_name((pst_segment_kind)o->segment), (long long)size, op->unit);
  return PST_OK;
}

static pst_status check_program(const cpu_device *d, const pst_program *program, const pst_binding *binding) {
  for (int64_t n = 0; n < program->n_ops; n++) {
    const pst_op *op = &program->ops[n];
    if ((unsigned)op->code >= PST_OP_COUNT || !d->set->kernel[op->code])
      return pst_fail(PST_INTERNAL, "cpu: program %s, op %lld: no kernel for %s", program->name, (long long)n,
                      pst_op_name(op->code));
    for (int i = 0; i < PST_OP_MAX_IN; i++) PST_TRY(check_operand(program, n, binding, &op->in[i], "in"));
    for (int i = 0; i < PST_OP_MAX_OUT; i++) PST_TRY(check_operand(program, n, binding, &op->out[i], "out"));
    for (int i = 0; i < PST_OP_MAX_ACC; i++) PST_TRY(check_operand(program, n, binding, &op->acc[i], "acc"));
    PST_TRY(check_operand(program, n, binding, &op->workspace, "workspace"));
  }
  return PST_OK;
}

static pst_status cpu_run(pst_device *device, const pst_program *program, const pst_binding *binding) {
  static const pst_ctrl none = {0};
  cpu_device *d = cpu(device);
  PST_TRY(check_program(d, program, binding));
  const pst_segment *ctrl = binding->base[PST_SEGMENT_CTRL];
  run_job job = {.device = d, .program = program, .binding = binding, .ctrl = &none};
  if (ctrl && ctrl->n_blocks > 0) {
    PST_TRY(check_range("ctrl", ctrl->blocks[0], 0, (int64_t)sizeof(pst_ctrl)));
    job.ctrl = (const pst_ctrl *)(const void *)ctrl->blocks[0]->bytes;
  }
  pst_team_run(d->team, run_member, &job);
  return PST_OK;
}

static pst_status cpu_wait(pst_device *device) {
  return PST_OK;
}

/* ---- the rest ---- */

static pst_status cpu_supports(pst_device *device, const pst_op *op) {
  return pst__cpu_supports(cpu(device)->set, op);
}

static int64_t cpu_workspace(pst_device *device, const pst_op *op) {
  return pst__cpu_workspace(cpu(device)->set, op, pst_team_size(cpu(device)->team));
}

static void cpu_set_progress(pst_device *device, void (*progress)(void *user), void *user) {
  cpu(device)->progress = progress;
  cpu(device)->progress_user = user;
}

static void cpu_query(pst_device *device, pst_device_info *out_info) {
  *out_info = cpu(device)->info;
}

static void cpu_close(pst_device *device) {
  if (!device) return;
  cpu_device *d = cpu(device);
  pst_team_destroy(d->team);
  if (d->has_blas) pst__blas_close(&d->blas);
  free(d);
}

static const pst_device_table table = {
    .close = cpu_close,
    .query = cpu_query,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .fill = cpu_fill,
    .upload = cpu_upload,
    .download = cpu_download,
    .copy = cpu_copy,
    .supports = cpu_supports,
    .workspace = cpu_workspace,
    .run = cpu_run,
    .wait = cpu_wait,
    .host_pointer = cpu_host_pointer,
    .set_progress = cpu_set_progress,
};

pst_status pst__cpu_device_create(const pst_cpu_plan *plan, pst_device **out_device) {
  PST_TRY(pst_device_table_check("cpu", &table));
  cpu_device *d = calloc(1, sizeof *d);
  if (!d) return no_memory((int64_t)sizeof *d);
  d->base.table = &table;
  d->base.driver = &pst_driver_cpu;
  d->set = plan->set;
  pst_status st = PST_OK;
  if (plan->openblas) {
    PST_GOTO(st, pst__blas_open(NULL, &d->blas), close_device);
    d->has_blas = true;
  }
  PST_GOTO(st,
           pst_team_create(&(pst_team_options){.n_threads = plan->n_threads, .cores = plan->cores}, &d->team),
           close_device);
  pst__cpu_describe(d->set, d->has_blas ? &d->blas : NULL, plan->n_threads, &d->info);
  *out_device = &d->base;
  return PST_OK;

close_device:
  cpu_close(&d->base);
  return st;
}
