#include "core/plan/runfile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SMALLEST                                                                                             \
  "model: {family: gpt2, layers: 4, heads: 4, width: 128}\n"                                                 \
  "data:  {train: notes.txt}\n"                                                                              \
  "steps: 200\n"

static pst_settings *settings_of(const char *text) {
  size_t n_rows;
  const pst_setting *table = pst_runfile_table(&n_rows);
  pst_settings *s = NULL;
  assert_int_equal(pst_settings_create(table, n_rows, &s), PST_OK);
  pst_status st = pst_settings_load_text(s, "run.yaml", text, strlen(text));
  if (st != PST_OK) fail_msg("%s", pst_error());
  return s;
}

static pst_runfile loaded(const char *text) {
  pst_settings *s = settings_of(text);
  pst_runfile run;
  if (pst_runfile_load(s, &run) != PST_OK) fail_msg("%s", pst_error());
  pst_settings_destroy(s); /* the structure stands alone */
  return run;
}

static void refused_as(pst_status status, const char *text, const char *message) {
  pst_settings *s = settings_of(text);
  pst_runfile run = {.steps = -7};
  assert_int_equal(pst_runfile_load(s, &run), status);
  assert_string_equal(pst_error(), message);
  assert_int_equal(run.steps, -7);
  pst_settings_destroy(s);
}

static void refused(const char *text, const char *message) {
  refused_as(PST_INVALID, text, message);
}

/* Text that the settings themselves already refuse. */
static void refused_early(const char *text, const char *message) {
  size_t n_rows;
  const pst_setting *table = pst_runfile_table(&n_rows);
  pst_settings *s = NULL;
  assert_int_equal(pst_settings_create(table, n_rows, &s), PST_OK);
  assert_int_equal(pst_settings_load_text(s, "run.yaml", text, strlen(text)), PST_INVALID);
  assert_string_equal(pst_error(), message);
  pst_settings_destroy(s);
}

static void test_smallest(void **state) {
  pst_runfile run = loaded(SMALLEST);
  assert_string_equal(run.name, "run");
  assert_int_equal(run.steps, 200);
  assert_string_equal(run.model.family, "gpt2");
  assert_int_equal(run.model.layers, 4);
  assert_int_equal(run.model.kv_heads, 4);
  assert_int_equal(run.model.hidden, 0);
  assert_int_equal(run.model.context, 128);
  assert_int_equal(run.model.tied, -1);
  assert_int_equal(run.model.init, PST_RUN_INIT_RANDOM);
  assert_string_equal(run.data.train, "notes.txt");
  assert_null(run.data.valid);
  assert_int_equal(run.data.sequence, 128);
  assert_int_equal(run.data.eot, -1);
  assert_int_equal(run.batch.global, 32);
  assert_int_equal(run.batch.micro, 4);
  assert_int_equal(run.batch.microbatches, 8);
  assert_int_equal(run.n_stages, 0);
  assert_string_equal(run.schedule.name, "1f1b");
  assert_int_equal(run.optimizer.name, PST_RUN_ADAMW);
  assert_true(run.optimizer.peak == 3e-4);
  assert_true(run.optimizer.final == 3e-4 / 10);
  assert_int_equal(run.optimizer.decay_steps, 200);
  assert_true(run.optimizer.betas[0] == 0.9 && run.optimizer.betas[1] == 0.95);
  assert_int_equal(run.limits.peer_ns, INT64_C(10000000000));
  assert_int_equal(run.limits.memory_bytes, 0);
  assert_int_equal(run.bitwise, PST_RUN_BITWISE_WARN);
  assert_int_equal(run.cpu.isa, PST_RUN_ISA_AUTO);
  pst_runfile_free(&run);
  assert_null(run.name);
  pst_runfile_free(&run);
  pst_runfile_free(NULL);
}

static void test_everything_that_works(void **state) {
  pst_runfile run =
      loaded("name: small\nseed: 5\nsteps: 20\n"
             "model: {family: llama, layers: 3, heads: 6, kv_heads: 2, width: 48, hidden: 128, "
             "vocab: 300, context: 64, dropout: 0.1, tied: false}\n"
             "init: {std: 0.01}\n"
             "data: {train: a.bin, valid: b.bin, sequence: 32, format: llmc, eot: 299}\n"
             "batch: {micro: 3, microbatches: 5}\n"
             "threads: 2\n"
             "stages: [{device: 'cpu:cores=0-1,4', layers: 0}, {layers: 3, threads: 3}]\n"
             "schedule: gpipe\nbackward: split\nprecision: fp32\n"
             "optimizer: {name: sgd, lr: {peak: 0.1, warmup: 2, decay: linear, final: 0, steps: 18}, "
             "momentum: 0.9, weight_decay: 0, clip: 0}\n"
             "eval: {every: 5, sequences: 8}\n"
             "sample: {every: 5, prompt: 'Once', tokens: 7, temperature: 0}\n"
             "checkpoint: {every: 5, keep: 1, resume: never, directory: saved}\n"
             "log: {every: 1}\nruns: out\n"
             "limits: {peer: 2s, op: 1min, memory: 2GiB}\n"
             "bitwise: require\ncpu: {isa: v3, gemm: own}\n");
  assert_int_equal(run.seed, 5);
  assert_int_equal(run.model.kv_heads, 2);
  assert_int_equal(run.model.context, 64);
  assert_int_equal(run.model.tied, 0);
  assert_true(run.init_std == 0.01);
  assert_int_equal(run.data.format, PST_RUN_FORMAT_LLMC);
  assert_int_equal(run.data.eot, 299);
  assert_int_equal(run.batch.global, 15);
  assert_int_equal(run.n_stages, 2);
  assert_int_equal(run.stages[0].device.kind, PST_RUN_DEVICE_CPU);
  assert_int_equal(run.stages[0].device.n_cores, 3);
  assert_true(run.stages[0].device.cores[0] == 0x13);
  assert_int_equal(run.stages[0].threads, 2);
  assert_int_equal(run.stages[1].threads, 3);
  assert_int_equal(run.stages[1].device.kind, PST_RUN_DEVICE_ANY);
  assert_string_equal(run.schedule.name, "gpipe");
  assert_int_equal(run.backward, PST_RUN_BACKWARD_SPLIT);
  assert_int_equal(run.optimizer.name, PST_RUN_SGD);
  assert_true(run.optimizer.final == 0);
  assert_int_equal(run.optimizer.decay, PST_RUN_DECAY_LINEAR);
  assert_int_equal(run.optimizer.decay_steps, 18);
  assert_string_equal(run.sample.prompt, "Once");
  assert_string_equal(run.checkpoint.directory, "saved");
  assert_int_equal(run.limits.op_ns, INT64_C(60000000000));
  assert_int_equal(run.limits.memory_bytes, INT64_C(2) << 30);
  assert_int_equal(run.bitwise, PST_RUN_BITWISE_REQUIRE);
  assert_int_equal(run.cpu.isa, PST_RUN_ISA_V3);
  assert_int_equal(run.cpu.gemm, PST_RUN_GEMM_OWN);
  pst_runfile_free(&run);
}

/* The full example for two hosts is understood down to its last key; what this version does not do is named.
 */
static void test_full_example(void **state) {
  static const char text[] =
      "name:  tinyllama-mixed\nseed:  1\nsteps: 20000\n"
      "model: {from: hf/TinyLlama-1.1B, init: pretrained}\n"
      "data:\n  train: data/train.bin\n  valid: data/valid.bin\n  sequence: 2048\n"
      "batch: {global: 64, micro: 2}\n"
      "stages:\n"
      "  - {host: amd1, device: cpu,    layers: 0}\n"
      "  - {host: amd1, device: hip:0,  layers: 12}\n"
      "  - {host: nv1,  device: cuda:0, layers: 6, recompute: selective}\n"
      "  - {host: nv1,  device: cuda:1, layers: 4, offload: optimizer}\n"
      "schedule: 1f1b\nprecision: bf16\n"
      "optimizer:\n  name: adamw\n  lr: {peak: 3e-4, warmup: 500, decay: cosine, final: 3e-5}\n"
      "  betas: [0.9, 0.95]\n  weight_decay: 0.1\n  clip: 1.0\n"
      "eval:       {every: 500, sequences: 256}\n"
      "sample:     {every: 500, prompt: \"Once upon a time\", tokens: 64}\n"
      "checkpoint: {every: 500, keep: 3, resume: auto}\nlog:        {every: 10}\n";
  refused_as(PST_UNSUPPORTED, text,
             "run.yaml:11:12: stages.0.host = amd1: this version does not take the key; leave it out");
  refused_as(PST_UNSUPPORTED, SMALLEST "batch: {replicas: 2, micro: 2, microbatches: 2}\n",
             "run.yaml:4:19: batch.replicas = 2: this version takes only 1 here");
}

static void test_not_yet(void **state) {
  refused_as(PST_UNSUPPORTED, SMALLEST "precision: bf16\n",
             "run.yaml:4:12: precision = bf16: this version takes only fp32 here");
  refused_as(PST_UNSUPPORTED, SMALLEST "batch: {replicas: 2}\n",
             "run.yaml:4:19: batch.replicas = 2: this version takes only 1 here");
  refused_as(PST_UNSUPPORTED, SMALLEST "stages: [{}, {device: cuda:0}]\n",
             "run.yaml:4:23: stages.1.device = cuda:0: this version takes only cpu here");
  refused_as(PST_UNSUPPORTED, SMALLEST "stages: [{recompute: full}]\n",
             "run.yaml:4:22: stages.0.recompute = full: this version takes only none here");
  refused_as(PST_UNSUPPORTED, SMALLEST "stages: [{offload: optimizer}]\n",
             "run.yaml:4:20: stages.0.offload = optimizer: this version takes only none here");
  refused_as(PST_UNSUPPORTED, SMALLEST "checkpoint: {shared: true}\n",
             "run.yaml:4:22: checkpoint.shared = true: this version takes only false here");
  pst_runfile run =
      loaded(SMALLEST "precision: fp32\nbatch: {replicas: 1}\nschedule: {chunks: 1}\nrecompute: none\n");
  assert_int_equal(run.schedule.chunks, 1);
  pst_runfile_free(&run);
}

#define BATCH "global = micro x microbatches x replicas: "

static void test_batch_arithmetic(void **state) {
  static const struct {
    const char *text;
    int64_t global;
    int micro, microbatches;
  } right[] = {
      {"", 32, 4, 8},
      {"batch: {global: 10}\n", 10, 2, 5},
      {"batch: {global: 7}\n", 7, 1, 7},
      {"batch: {global: 9}\n", 9, 3, 3},
      {"batch: {global: 1}\n", 1, 1, 1},
      {"batch: {micro: 16}\n", 32, 16, 2},
      {"batch: {microbatches: 4}\n", 32, 8, 4},
      {"batch: {global: 12, micro: 6}\n", 12, 6, 2},
      {"batch: {global: 12, microbatches: 6}\n", 12, 2, 6},
      {"batch: {micro: 5, microbatches: 3}\n", 15, 5, 3},
      {"batch: {global: 15, micro: 5, microbatches: 3}\n", 15, 5, 3},
  };
  for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
    char text[512];
    snprintf(text, sizeof text, "%s%s", SMALLEST, right[i].text);
    pst_runfile run = loaded(text);
    assert_int_equal(run.batch.global, right[i].global);
    assert_int_equal(run.batch.micro, right[i].micro);
    assert_int_equal(run.batch.microbatches, right[i].microbatches);
    pst_runfile_free(&run);
  }
  refused(SMALLEST "batch: {global: 10, micro: 4, microbatches: 3}\n",
          "run.yaml:4:17: batch: " BATCH "global 10 (run.yaml:4:17), micro 4 (run.yaml:4:28), microbatches 3 "
          "(run.yaml:4:45), replicas 1 (default): 10 is not 4 x 3 x 1 = 12");
  refused(SMALLEST "batch: {global: 10, micro: 4}\n",
          "run.yaml:4:17: batch: " BATCH
          "global 10 (run.yaml:4:17), micro 4 (run.yaml:4:28), microbatches unset, "
          "replicas 1 (default): microbatches would be no whole number");
  refused(SMALLEST "batch: {global: 10, microbatches: 4}\n",
          "run.yaml:4:17: batch: " BATCH
          "global 10 (run.yaml:4:17), micro unset, microbatches 4 (run.yaml:4:35), "
          "replicas 1 (default): micro would be no whole number");
  refused(SMALLEST "batch: {micro: 3}\n",
          "run.yaml:4:16: batch: " BATCH "global 32 (default), micro 3 (run.yaml:4:16), microbatches unset, "
          "replicas 1 (default): microbatches would be no whole number");
  refused(SMALLEST "batch: {micro: 1000000, microbatches: 1000000}\n",
          "run.yaml:4:16: batch: " BATCH "global unset, micro 1000000 (run.yaml:4:16), microbatches 1000000 "
          "(run.yaml:4:39), replicas 1 (default): global comes to more than 1e9");
  refused_early("batch: {microbatches: 0}\n",
                "run.yaml:1:23: batch.microbatches = 0: wanted a whole number from 1 to 1000000");
}

static void test_batch_from_set(void **state) {
  pst_settings *s = settings_of(SMALLEST "batch: {global: 10, micro: 5}\n");
  pst_runfile run;
  assert_int_equal(pst_settings_set(s, "batch.microbatches=3"), PST_OK);
  assert_int_equal(pst_runfile_load(s, &run), PST_INVALID);
  assert_string_equal(pst_error(),
                      "run.yaml:4:17: batch: " BATCH
                      "global 10 (run.yaml:4:17), micro 5 (run.yaml:4:28), microbatches 3 (--set), "
                      "replicas 1 (default): 10 is not 5 x 3 x 1 = 15");
  pst_settings_destroy(s);
}

static void test_values(void **state) {
  refused_early("optimizer: {lr: {peak: -1e-3}}\n",
                "run.yaml:1:24: optimizer.lr.peak = -1e-3: wanted a number not below 0");
  refused_early("steps: 0\n", "run.yaml:1:8: steps = 0: wanted a whole number from 1 to 1e+12");
  refused_early("model: {layers: 0}\n",
                "run.yaml:1:17: model.layers = 0: wanted a whole number from 1 to 100000");
  refused("model: {family: gpt2, layers: 4, heads: 3, width: 128}\ndata: {train: x}\nsteps: 1\n",
          "run.yaml:1:41: model.heads = 3: wanted a divisor of model.width = 128 (run.yaml:1:51)");
  refused("model: {family: gpt2, layers: 4, heads: 4, kv_heads: 3, width: 128}\ndata: {train: x}\nsteps: 1\n",
          "run.yaml:1:54: model.kv_heads = 3: wanted a divisor of model.heads = 4 (run.yaml:1:41)");
  refused("model: {family: gpt2}\ndata: {train: x}\nsteps: 1\n",
          "model.layers: missing; the run file gives it, or model.from does");
  refused("model: {from: hf/x}\nsteps: 1\n", "data.train: missing; wanted a token file, .txt or .jsonl");
  refused("model: {from: hf/x}\ndata: {train: x}\n",
          "steps: missing; wanted the optimizer steps of the whole run");
  refused(SMALLEST "name: a/b\n",
          "run.yaml:4:7: name = a/b: wanted the name of a directory, without / and no dot in front");
  refused(SMALLEST "runs: ''\n", "run.yaml:4:7: runs = : is empty");
  refused(SMALLEST "optimizer: {betas: [0.9]}\n", "run.yaml:4:21: optimizer.betas: 1 numbers; wanted 2");
  refused(
      "model: {family: gpt2, layers: 1, width: 8, context: 16}\ndata: {train: x, sequence: 17}\nsteps: 1\n",
      "run.yaml:2:28: data.sequence = 17: longer than model.context = 16 (run.yaml:1:53)");
  refused("model: {family: gpt2, layers: 1, width: 8, init: pretrained}\ndata: {train: x}\nsteps: 1\n",
          "run.yaml:1:50: model.init = pretrained: there are no weights without model.from");
  refused("model: {family: gpt2, layers: 1, width: 8, vocab: 9}\ndata: {train: x, eot: 9}\nsteps: 1\n",
          "run.yaml:2:23: data.eot = 9: wanted a token below model.vocab = 9 (run.yaml:1:51)");
  pst_runfile run = loaded("model: {from: hf/x}\ndata: {train: x}\nsteps: 1\n");
  assert_int_equal(run.model.init, PST_RUN_INIT_PRETRAINED);
  pst_runfile_free(&run);
}

static void test_split(void **state) {
  refused(SMALLEST "stages: [{layers: 3}]\n",
          "run.yaml:4:19: stages: layers add up to 3; wanted model.layers = 4 (run.yaml:1:31)");
  refused(SMALLEST "stages: [{layers: 2}, {layers: 1}]\n",
          "run.yaml:4:19: stages: layers add up to 2 + 1 = 3; wanted model.layers = 4 (run.yaml:1:31)");
  refused(SMALLEST "stages: [{layers: 2}, {layers: 2}, {layers: 1}]\n",
          "run.yaml:4:19: stages: layers add up to 2 + 2 + 1 = 5; wanted model.layers = 4 (run.yaml:1:31)");
  refused_early("stages: [{layers: -1}, {layers: 5}]\n",
                "run.yaml:1:19: stages.0.layers = -1: wanted a whole number from 0 to 100000");
  refused_early("stages: [{layers: 2}, {layers: x}]\n",
                "run.yaml:1:32: stages.1.layers = x: wanted a whole number from 0 to 100000");
  refused(SMALLEST "stages: [{layers: 2}, {layers: 0}, {layers: 2}]\n",
          "run.yaml:4:32: stages.1.layers = 0: 0 is for the first and the last stage only, of 3");
  refused(SMALLEST "stages: [{layers: 4}, {}]\n",
          "run.yaml:4:19: stages: stages.1 has no layers; wanted on every stage or on none");
  pst_runfile run = loaded(SMALLEST "stages: [{layers: 0}, {layers: 4}, {layers: 0}]\n");
  assert_int_equal(run.n_stages, 3);
  assert_int_equal(run.stages[1].layers, 4);
  pst_runfile_free(&run);
  run = loaded(SMALLEST "stages: [{}, {}]\n");
  assert_int_equal(run.stages[1].layers, -1);
  pst_runfile_free(&run);
}

/* With model.from the total is known only once the model is. */
static void test_split_later(void **state) {
  pst_settings *s =
      settings_of("model: {from: hf/x}\ndata: {train: x}\nsteps: 1\nstages: [{layers: 3}, {layers: 2}]\n");
  pst_runfile run;
  assert_int_equal(pst_runfile_load(s, &run), PST_OK);
  assert_int_equal(pst_runfile_check_split(s, &run, 5), PST_OK);
  assert_int_equal(pst_runfile_check_split(s, &run, 6), PST_INVALID);
  assert_string_equal(pst_error(),
                      "run.yaml:4:19: stages: layers add up to 3 + 2 = 5; wanted model.layers = 6 (unset)");
  pst_runfile_free(&run);
  pst_settings_destroy(s);
}

static void test_devices(void **state) {
  static const struct {
    const char *text;
    pst_run_device_kind kind;
    int index, numa, n_cores;
  } right[] = {
      {"cpu", PST_RUN_DEVICE_CPU, 0, -1, 0},           {"cpu:numa1", PST_RUN_DEVICE_CPU, 0, 1, 0},
      {"cpu:cores=0-3", PST_RUN_DEVICE_CPU, 0, -1, 4}, {"cpu:cores=5,7-8,1023", PST_RUN_DEVICE_CPU, 0, -1, 4},
      {"opencl:0", PST_RUN_DEVICE_OPENCL, 0, -1, 0},   {"cuda:12", PST_RUN_DEVICE_CUDA, 12, -1, 0},
      {"hip:3", PST_RUN_DEVICE_HIP, 3, -1, 0},
  };
  static const char *const wrong[] = {
      "",
      "gpu",
      "cpu:",
      "cpu0",
      "cpu:numa",
      "cpu:numa1x",
      "cpu:cores=",
      "cpu:cores=3-1",
      "cpu:cores=1,1",
      "cpu:cores=0-2,2",
      "cpu:cores=1,",
      "cpu:cores=1024",
      "cpu:cores=-1",
      "cuda",
      "cuda:",
      "cuda:x",
      "cuda:-1",
      "cuda:1 ",
      "hip:99999999999999999999",
      "CPU",
      "opencl:0,1",
  };
  pst_run_device device;
  for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
    assert_int_equal(pst_run_device_parse(right[i].text, &device), PST_OK);
    assert_int_equal(device.kind, right[i].kind);
    assert_int_equal(device.index, right[i].index);
    assert_int_equal(device.numa, right[i].numa);
    assert_int_equal(device.n_cores, right[i].n_cores);
  }
  assert_int_equal(pst_run_device_parse("cpu:cores=5,64-65,1023", &device), PST_OK);
  assert_true(device.cores[0] == UINT64_C(1) << 5 && device.cores[1] == 3 &&
              device.cores[15] == UINT64_C(1) << 63);
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
    if (pst_run_device_parse(wrong[i], &device) != PST_INVALID) fail_msg("'%s' was taken", wrong[i]);
  refused(
      SMALLEST "stages: [{device: cpu:nodes}]\n",
      "run.yaml:4:19: stages.0.device = cpu:nodes: no device is written like this; wanted cpu, cpu:numa1, "
      "cpu:cores=0-3, opencl:0, cuda:0 or hip:0");
}

static void test_overlap(void **state) {
  refused(SMALLEST "stages: [{device: cpu:cores=0-3}, {device: cpu:cores=3-4}]\n",
          "run.yaml:4:44: stages.1.device = cpu:cores=3-4: overlaps stages.0.device = cpu:cores=0-3 "
          "(run.yaml:4:19)");
  refused(SMALLEST "stages: [{device: cpu}, {device: cpu:cores=3-4}]\n",
          "run.yaml:4:34: stages.1.device = cpu:cores=3-4: overlaps stages.0.device = cpu (run.yaml:4:19)");
  refused(SMALLEST "stages: [{device: cpu:numa0}, {device: cpu:numa0}]\n",
          "run.yaml:4:40: stages.1.device = cpu:numa0: overlaps stages.0.device = cpu:numa0 (run.yaml:4:19)");
  pst_runfile run = loaded(SMALLEST "stages: [{device: cpu}, {device: cpu}]\n");
  pst_runfile_free(&run);
  run = loaded(SMALLEST "stages: [{device: cpu:cores=0-1}, {device: cpu:cores=2-3}, {}]\n");
  assert_int_equal(run.n_stages, 3);
  pst_runfile_free(&run);
}

static char *written(pst_settings *s) {
  char *text = NULL;
  size_t n = 0;
  FILE *file = open_memstream(&text, &n);
  assert_non_null(file);
  assert_int_equal(pst_settings_write(s, file), PST_OK);
  fclose(file);
  return text;
}

static void test_resolved_file(void **state) {
  pst_settings *s =
      settings_of(SMALLEST "batch: {global: 12}\nstages: [{device: cpu, layers: 4}, {layers: 0}]\n"
                           "optimizer: {lr: 1e-3}\nsample: {prompt: \"a: \\\"b\\\"\"}\n");
  pst_runfile run, again;
  assert_int_equal(pst_runfile_load(s, &run), PST_OK);
  char *first = written(s);
  assert_non_null(strstr(first, "batch:\n  global: 12\n  micro: 4\n  replicas: 1\n"));
  pst_settings *t = settings_of(first);
  if (pst_runfile_load(t, &again) != PST_OK) fail_msg("%s in\n%s", pst_error(), first);
  char *second = written(t);
  assert_string_equal(first, second);
  assert_int_equal(again.batch.microbatches, 3);
  assert_int_equal(again.n_stages, 2);
  assert_string_equal(again.sample.prompt, "a: \"b\"");
  assert_true(again.optimizer.peak == 1e-3);
  free(first);
  free(second);
  pst_runfile_free(&run);
  pst_runfile_free(&again);
  pst_settings_destroy(s);
  pst_settings_destroy(t);
}

/* No two keys share a variable's name, and every row is described. */
static void test_table(void **state) {
  size_t n;
  const pst_setting *table = pst_runfile_table(&n);
  assert_true(n > 50);
  for (size_t i = 0; i < n; i++) {
    assert_true(table[i].help && *table[i].help);
    for (size_t j = 0; j < i; j++) {
      char a[128], b[128];
      snprintf(a, sizeof a, "%s", table[i].path);
      snprintf(b, sizeof b, "%s", table[j].path);
      for (char *c = a; *c; c++) *c = *c == '.' ? '_' : *c;
      for (char *c = b; *c; c++) *c = *c == '.' ? '_' : *c;
      assert_string_not_equal(a, b);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_smallest),
      cmocka_unit_test(test_everything_that_works),
      cmocka_unit_test(test_full_example),
      cmocka_unit_test(test_not_yet),
      cmocka_unit_test(test_batch_arithmetic),
      cmocka_unit_test(test_batch_from_set),
      cmocka_unit_test(test_values),
      cmocka_unit_test(test_split),
      cmocka_unit_test(test_split_later),
      cmocka_unit_test(test_devices),
      cmocka_unit_test(test_overlap),
      cmocka_unit_test(test_resolved_file),
      cmocka_unit_test(test_table),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
