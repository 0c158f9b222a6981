/* Training speed of a GPT-2 shape: tokens per second, share of this machine's sgemm rate, where the time
 * goes.
 *
 *   bench_train --layers 6 --heads 6 --width 384 --sequence 256 --vocab 256 --micro 4 --microbatches 8
 * --threads 2 bench_train --stages 2 --threads 1 ...          K = 2, one thread each
 *
 * Weights are random and so are the tokens. Prints one JSON line, medians over --steps after three that are
 * not counted. FLOPs count the products as executed (causal attention: the blocks on and below the diagonal),
 * two per multiply-add.
 */
#include "core/base/clock.h"
#include "core/base/rng.h"
#include "core/checkpoint/config.h"
#include "core/data/loader.h"
#include "core/engine/assembly.h"
#include "core/graph/ir.h"
#include "core/graph/model.h"
#include "core/schedule/simulate.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

typedef struct options {
  long layers, heads, width, sequence, vocab, micro, microbatches, threads, stages, steps, tied, delay;
  const char *schedule, *gemm, *isa, *family;
} options;

static void fail(const char *what) {
  fprintf(stderr, "bench_train: %s: %s\n", what, pst_error());
  exit(1);
}

static void build(pst_graph *g, void *user) {
  const pst_model_config *c = user;
  pst_model_find(pst_family_name(c->family))->build(g, c);
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static double median(double *x, int n) {
  qsort(x, (size_t)n, sizeof *x, ascending);
  return x[n / 2];
}

static double cpu_seconds(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static double step_flops(const pst_graph *g, long microbatches) {
  double sum = 0;
  for (int32_t i = 0; i < g->nodes.n; i++) {
    int64_t flops, bytes;
    pst_node_cost(g, &g->nodes.at[i], &flops, &bytes);
    switch (g->nodes.at[i].code) {
    case PST_OP_linear:
    case PST_OP_linear_wgrad:
    case PST_OP_attention:
    case PST_OP_attention_grad:
    case PST_OP_linear_cross_entropy_grad:
      sum += (double)flops;
      break;
    default:
      break;
    }
  }
  return sum * (double)microbatches;
}

static void parse(int argc, char **argv, options *o) {
  *o = (options){6, 6, 384, 256, 256, 4, 8, 1, 1, 10, 0, 0, "1f1b", "auto", "auto", "gpt2"};
  struct {
    const char *name;
    long *number;
    const char **text;
  } all[] = {{"layers", &o->layers, NULL},
             {"heads", &o->heads, NULL},
             {"width", &o->width, NULL},
             {"sequence", &o->sequence, NULL},
             {"vocab", &o->vocab, NULL},
             {"micro", &o->micro, NULL},
             {"microbatches", &o->microbatches, NULL},
             {"threads", &o->threads, NULL},
             {"stages", &o->stages, NULL},
             {"steps", &o->steps, NULL},
             {"tied", &o->tied, NULL},
             {"delay", &o->delay, NULL},
             {"schedule", NULL, &o->schedule},
             {"gemm", NULL, &o->gemm},
             {"isa", NULL, &o->isa},
             {"family", NULL, &o->family}};
  for (int i = 1; i + 1 < argc; i += 2) {
    bool known = false;
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
      if (strncmp(argv[i], "--", 2) != 0 || strcmp(argv[i] + 2, all[k].name) != 0) continue;
      known = true;
      if (all[k].number)
        *all[k].number = strtol(argv[i + 1], NULL, 10);
      else
        *all[k].text = argv[i + 1];
    }
    if (!known) {
      fprintf(stderr, "bench_train: unknown option %s\n", argv[i]);
      exit(2);
    }
  }
}

/* What the schedule alone costs, given the times of this run: 1 - busy / makespan of the slowest worker. */
static double simulated_bubble(const pst_pipeline *p, long stages, long microbatches) {
  double *t = calloc((size_t)stages * 3, sizeof *t);
  for (long s = 0; s < stages; s++) {
    pst_worker_stats w;
    pst_pipeline_stats(p, (int)s, &w);
    double k = 1e-9 / (double)(w.steps * microbatches);
    t[s] = (double)w.forward_ns * k;
    t[stages + s] = (double)(w.input_ns + w.backward_ns) * k;
    t[2 * stages + s] = (double)w.weight_ns * k;
  }
  pst_simulate_options so;
  pst_simulate_options_init(&so);
  so.forward_s = t;
  so.input_s = t + stages;
  so.weight_s = t + 2 * stages;
  pst_simulation *result = NULL;
  double bubble = -1;
  if (pst_schedule_simulate(pst_pipeline_schedule(p), &so, &result) == PST_OK)
    bubble = result->bubble_makespan;
  pst_simulation_destroy(result);
  free(t);
  return bubble;
}

typedef struct slow_source {
  const int32_t *tokens;
  int64_t sleep_ns;
} slow_source;

static pst_status fill_slowly(void *user, int64_t step, int64_t sequence, int64_t length, int32_t *tokens,
                              int32_t *targets) {
  const slow_source *s = user;
  struct timespec t = {.tv_sec = s->sleep_ns / 1000000000, .tv_nsec = s->sleep_ns % 1000000000};
  if (sequence == 0) nanosleep(&t, NULL);
  memcpy(tokens, s->tokens + sequence * length, (size_t)length * sizeof *tokens);
  memcpy(targets, s->tokens + sequence * length + 1, (size_t)length * sizeof *targets);
  return PST_OK;
}

/* The same steps fed by a loader whose source takes `delay` percent of a step; the median of the times
 * between steps. */
static double delayed_step(pst_assembly *as, const options *o, const int32_t *tokens, double step_s) {
  slow_source source = {tokens, (int64_t)(step_s * 1e9 * (double)o->delay / 100)};
  pst_loader_options lo = {.fill = fill_slowly,
                           .user = &source,
                           .vocab = o->vocab,
                           .sequence = o->sequence,
                           .global = o->micro * o->microbatches};
  pst_loader *loader;
  if (pst_loader_create(&lo, &loader) != PST_OK) fail("loader");
  double *seconds = malloc((size_t)o->steps * sizeof *seconds);
  for (long s = -3; s < o->steps; s++) {
    int64_t begin = pst_clock_ns();
    pst_loader_batch ready;
    pst_step_result result;
    if (pst_loader_take(loader, 0, s + 3, 60000000000, &ready) != PST_OK) fail("take");
    pst_batch batch = {.tokens = ready.tokens, .targets = ready.targets, .sequences = lo.global};
    if (pst_pipeline_step(as->pipeline, &batch, 1, s + 3, 3e-4, &result) != PST_OK) fail("step");
    if (pst_loader_release(loader, 0, s + 3) != PST_OK) fail("release");
    if (s >= 0) seconds[s] = (double)(pst_clock_ns() - begin) * 1e-9;
  }
  double t = median(seconds, (int)o->steps);
  free(seconds);
  pst_loader_destroy(loader);
  return t;
}

int main(int argc, char **argv) {
  options o;
  parse(argc, argv, &o);
  pst_model_config c;
  pst_model_config_init(&c, PST_FAMILY_GPT2);
  c.layers = o.layers;
  c.heads = c.kv_heads = o.heads;
  c.width = o.width;
  c.hidden = 4 * o.width;
  c.vocab = o.vocab;
  c.context = o.sequence;
  c.head_dim = o.width / o.heads;
  c.tied = o.tied;
  c.dropout_attention = c.dropout_embedding = c.dropout_residual = 0;
  pst_assembly_worker *stages = calloc((size_t)o.stages, sizeof *stages);
  for (long s = 0; s < o.stages; s++) stages[s].threads = (int)o.threads;
  pst_assembly_options a = {.build = build,
                            .build_user = &c,
                            .trains = true,
                            .sequence = o.sequence,
                            .micro = o.micro,
                            .microbatches = o.microbatches,
                            .n_workers = (int)o.stages,
                            .workers = stages,
                            .schedule = o.schedule,
                            .isa = o.isa,
                            .gemm = o.gemm};
  pst_optimizer_options_init(&a.optimizer);
  pst_assembly *as;
  if (pst_assembly_create(&a, &as) != PST_OK) fail("assemble");
  if (pst_assembly_start(as) != PST_OK || pst_pipeline_init(as->pipeline, 1) != PST_OK) fail("start");
  int64_t sequences = o.micro * o.microbatches, n = sequences * o.sequence;
  int32_t *tokens = malloc((size_t)(n + 1) * sizeof *tokens);
  pst_rng_key key = pst_rng_key_make(1, 2);
  for (int64_t i = 0; i <= n; i++) {
    uint32_t r[4];
    pst_rng_philox(key, (uint32_t[4]){(uint32_t)i, 0, 0, 0}, r);
    tokens[i] = (int32_t)(r[0] % (uint32_t)o.vocab);
  }
  pst_batch batch = {.tokens = tokens, .targets = tokens + 1, .sequences = sequences};
  double *seconds = malloc((size_t)o.steps * sizeof *seconds);
  pst_step_result result = {0};
  double cpu = 0;
  for (long s = -3; s < o.steps; s++) {
    if (s == 0) {
      pst_pipeline_stats_reset(as->pipeline);
      cpu = cpu_seconds();
    }
    int64_t begin = pst_clock_ns();
    if (pst_pipeline_step(as->pipeline, &batch, 1, s + 3, 3e-4, &result) != PST_OK) fail("step");
    if (s >= 0) seconds[s] = (double)(pst_clock_ns() - begin) * 1e-9;
  }
  cpu = (cpu_seconds() - cpu) / (double)o.steps;
  double t = median(seconds, (int)o.steps), flops = step_flops(as->train, o.microbatches);
  printf("{\"tokens_per_s\": %.0f, \"step_ms\": %.1f, \"gflops\": %.1f, \"cpu_ms\": %.1f, \"loss\": %.4f",
         (double)n / t, t * 1e3, flops / t * 1e-9, cpu * 1e3, result.loss);
  for (int s = 0; s < o.stages; s++) {
    pst_worker_stats w;
    pst_pipeline_stats(as->pipeline, s, &w);
    double total = (double)w.total_ns, k = 1e-6 / (double)w.steps;
    printf(", \"stage%d\": {\"f_ms\": %.1f, \"b_ms\": %.1f, \"i_ms\": %.1f, \"w_ms\": %.1f, \"update_ms\": "
           "%.1f, \"wait\": %.4f, "
           "\"runtime\": %.4f}",
           s, (double)w.forward_ns * k, (double)w.backward_ns * k, (double)w.input_ns * k,
           (double)w.weight_ns * k, (double)w.update_ns * k, (double)w.wait_ns / total,
           1.0 - (double)(w.busy_ns + w.wait_ns) / total);
  }
  printf(", \"bubble\": %.4f", simulated_bubble(as->pipeline, o.stages, o.microbatches));
  if (o.delay > 0) printf(", \"delayed_over_plain\": %.4f", delayed_step(as, &o, tokens, t) / t);
  printf("}\n");
  free(tokens);
  free(seconds);
  free(stages);
  pst_assembly_destroy(as);
  return 0;
}
