/* A model at size: planned memory against what the process takes, a few steps, saving and loading.
 *
 *   bench_size --layers 12 --heads 12 --width 768 --vocab 50257 --sequence 256 --stages 2 --steps 3 --path
 * /tmp/size bench_size --layers 1 --heads 16 --width 1024 --vocab 1100000 --tied 0 --steps 0 --path /tmp/size
 * tensors over 4 GiB
 *
 * With --steps 0 nothing is trained: only parameters are held. Prints one JSON line: planned and peak bytes,
 * the weights' hash after the steps (the same for every --stages), seconds and GB/s of saving (synced) and
 * loading, and whether what was loaded is what was saved.
 */
#include "core/base/clock.h"
#include "core/base/hash.h"
#include "core/base/rng.h"
#include "core/checkpoint/config.h"
#include "core/engine/assembly.h"
#include "core/engine/weights.h"
#include "core/graph/ir.h"
#include "core/graph/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { CHUNK = 64 << 20 };

static void check(pst_status st, const char *what) {
  if (st == PST_OK) return;
  fprintf(stderr, "bench_size: %s: %s\n", what, pst_error());
  exit(pst_status_exit(st));
}

static void build(pst_graph *g, void *user) {
  const pst_model_config *c = user;
  pst_model_find(pst_family_name(c->family))->build(g, c);
}

static uint64_t weights_hash(pst_assembly *a) {
  char *buffer = malloc(CHUNK);
  pst_hash h;
  pst_hash_init(&h, 0);
  for (int32_t p = 0; p < a->any->params.n; p++) {
    int64_t bytes = pst_assembly_elements(a, p) * (int64_t)sizeof(float);
    for (int64_t at = 0; at < bytes; at += CHUNK) {
      int64_t some = bytes - at < CHUNK ? bytes - at : CHUNK;
      check(pst_pipeline_read(a->pipeline, PST_TENSOR_PARAM, p, 0, at, buffer, some), "read");
      pst_hash_update(&h, buffer, (size_t)some);
    }
  }
  free(buffer);
  return pst_hash_value(&h);
}

static long option(int argc, char **argv, const char *name, long otherwise) {
  for (int i = 1; i + 1 < argc; i += 2)
    if (strncmp(argv[i], "--", 2) == 0 && strcmp(argv[i] + 2, name) == 0)
      return strtol(argv[i + 1], NULL, 10);
  return otherwise;
}

static const char *path_option(int argc, char **argv) {
  for (int i = 1; i + 1 < argc; i += 2)
    if (strcmp(argv[i], "--path") == 0) return argv[i + 1];
  return "size";
}

static void train(pst_assembly *a, const pst_assembly_options *o, long vocab, long steps) {
  int64_t sequences = o->micro * o->microbatches, n = sequences * o->sequence;
  int32_t *tokens = malloc((size_t)(n + 1) * sizeof *tokens);
  for (int64_t i = 0; i <= n; i++) {
    uint32_t r[4];
    pst_rng_philox(pst_rng_key_make(1, 2), (uint32_t[4]){(uint32_t)i, 0, 0, 0}, r);
    tokens[i] = (int32_t)(r[0] % (uint32_t)vocab);
  }
  pst_batch batch = {.tokens = tokens, .targets = tokens + 1, .sequences = sequences};
  for (long s = 0; s < steps; s++) {
    pst_step_result r;
    check(pst_pipeline_step(a->pipeline, &batch, 1, s, 3e-4, &r), "step");
    fprintf(stderr, "step %ld: loss %.6f, norm %.6f, %.1f s\n", s, r.loss, r.gradient_norm,
            (double)r.step_ns * 1e-9);
  }
  free(tokens);
}

static double peak_bytes(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return 1024.0 * (double)u.ru_maxrss;
}

int main(int argc, char **argv) {
  long steps = option(argc, argv, "steps", 3), vocab = option(argc, argv, "vocab", 50257);
  pst_model_config c;
  pst_model_config_init(&c, PST_FAMILY_GPT2);
  c.layers = option(argc, argv, "layers", 12);
  c.heads = c.kv_heads = option(argc, argv, "heads", 12);
  c.width = option(argc, argv, "width", 768);
  c.hidden = 4 * c.width;
  c.vocab = vocab;
  c.context = option(argc, argv, "sequence", 256);
  c.head_dim = c.width / c.heads;
  c.tied = option(argc, argv, "tied", 1);
  pst_assembly_options o = {.build = build,
                            .build_user = &c,
                            .trains = steps > 0,
                            .evaluates = steps == 0,
                            .sequence = c.context,
                            .micro = option(argc, argv, "micro", 1),
                            .microbatches = option(argc, argv, "microbatches", 2),
                            .n_workers = (int)option(argc, argv, "stages", 1),
                            .schedule = "1f1b"};
  pst_optimizer_options_init(&o.optimizer);
  pst_assembly *a;
  check(pst_assembly_create(&o, &a), "assemble");
  double planned = 0, most = 0;
  for (int s = 0; s < o.n_workers; s++) {
    pst_stage_memory m;
    pst_pipeline_memory(a->pipeline, s, &m);
    planned += (double)m.total_bytes;
    if ((double)m.bytes[PST_SEGMENT_PARAM] > most) most = (double)m.bytes[PST_SEGMENT_PARAM];
  }
  check(pst_assembly_start(a), "start");
  check(pst_pipeline_init(a->pipeline, 1), "init");
  if (steps > 0) train(a, &o, vocab, steps);
  double peak = peak_bytes(), bytes = 0;
  uint64_t hash = weights_hash(a);
  for (int32_t p = 0; p < a->any->params.n; p++) bytes += 4.0 * (double)pst_assembly_elements(a, p);
  const char *path = path_option(argc, argv);
  int64_t t0 = pst_clock_ns();
  check(pst_weights_save(a, path, NULL), "save");
  int64_t t1 = pst_clock_ns();
  check(pst_pipeline_init(a->pipeline, 2), "init again");
  bool changed = weights_hash(a) != hash;
  int64_t t2 = pst_clock_ns();
  check(pst_weights_load(a, path, NULL, 0), "load");
  int64_t t3 = pst_clock_ns();
  bool same = weights_hash(a) == hash;
  unlink(path);
  printf("{\"planned_mib\": %.1f, \"peak_mib\": %.1f, \"largest_param_segment_mib\": %.1f, \"weights\": "
         "\"%016llx\", "
         "\"file_mib\": %.1f, \"save_s\": %.2f, \"save_gbps\": %.3f, \"load_s\": %.2f, \"load_gbps\": %.3f, "
         "\"loaded_as_saved\": %s}\n",
         planned / 1048576, peak / 1048576, most / 1048576, (unsigned long long)hash, bytes / 1048576,
         (double)(t1 - t0) * 1e-9, bytes / (double)(t1 - t0), (double)(t3 - t2) * 1e-9,
         bytes / (double)(t3 - t2), changed && same ? "true" : "false");
  pst_assembly_destroy(a);
  return changed && same ? 0 : 1;
}
