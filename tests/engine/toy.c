#include "tests/engine/toy.h"

#include "core/base/hash.h"
#include "core/base/rng.h"
#include "core/checkpoint/config.h"
#include "core/device/registry.h"
#include "tests/support.h"

#include <stdlib.h>
#include <string.h>

static toy_options common(pst_family family) {
  toy_options o = {.batch = 2,
                   .sequence = 32,
                   .microbatches = 4,
                   .n_stages = 1,
                   .threads = 1,
                   .schedule = "1f1b",
                   .seed = 7,
                   .lr = 1e-2};
  pst_model_config_init(&o.config, family);
  pst_optimizer_options_init(&o.optimizer);
  o.optimizer.clip = 0.05f;
  o.config.heads = 4;
  o.config.width = 32;
  o.config.context = 32;
  return o;
}

toy_options toy_gpt2(void) {
  toy_options o = common(PST_FAMILY_GPT2);
  o.config.layers = 4;
  o.config.kv_heads = 4;
  o.config.hidden = 128;
  o.config.vocab = 97;
  o.config.head_dim = 8;
  o.config.tied = 1;
  o.config.dropout_embedding = o.config.dropout_attention = o.config.dropout_residual = 0.1;
  return o;
}

toy_options toy_llama(void) {
  toy_options o = common(PST_FAMILY_LLAMA);
  o.config.layers = 6;
  o.config.kv_heads = 2;
  o.config.hidden = 48;
  o.config.vocab = 101;
  o.config.head_dim = 8;
  o.config.tied = 0;
  return o;
}

static pst_status build(const toy_options *o, pst_purpose purpose, pst_graph **out) {
  pst_graph_options go = {.batch = o->batch, .sequence = o->sequence, .purpose = purpose, .dtype = o->dtype};
  if (purpose == PST_PURPOSE_LOGITS) go.batch = 1;
  PST_TRY(pst_graph_create(&go, out));
  pst_model_find(pst_family_name(o->config.family))->build(*out, &o->config);
  return purpose == PST_PURPOSE_TRAIN ? pst_graph_differentiate(*out) : pst_graph_status(*out);
}

pst_status toy_try_create(const toy_options *options, toy **out_toy) {
  toy *t = calloc(1, sizeof *t);
  t->options = *options;
  const toy_options *o = &t->options;
  int k = o->n_stages, n_workers = k / (o->chunks > 0 ? o->chunks : 1);
  int32_t *even = malloc((size_t)(k + 1) * sizeof *even);
  t->devices = calloc((size_t)k, sizeof *t->devices);
  t->tokens = malloc((size_t)(o->batch * o->microbatches * o->sequence) * sizeof *t->tokens);
  t->targets = malloc((size_t)(o->batch * o->microbatches * o->sequence) * sizeof *t->targets);
  pst_status st = PST_OK;
  PST_GOTO(st, build(o, PST_PURPOSE_TRAIN, &t->train), done);
  if (o->evaluates) {
    PST_GOTO(st, build(o, PST_PURPOSE_LOSS, &t->loss), done);
    PST_GOTO(st, build(o, PST_PURPOSE_LOGITS, &t->logits), done);
  }
  for (int s = 0; s <= k; s++) even[s] = (int32_t)((int64_t)t->train->units.n * s / k);
  for (int s = 0; s < n_workers; s++) {
    pst_device_options d = {.spec = "cpu", .n_threads = o->threads, .isa = o->isa, .gemm = o->gemm};
    PST_GOTO(st, pst_driver_find("cpu")->open(&d, &t->devices[s]), done);
  }
  PST_GOTO(
      st,
      pst_transport_find("inproc")->create(&(pst_transport_options){.n_workers = n_workers}, &t->transport),
      done);
  pst_pipeline_options p = {.train = t->train,
                            .loss = t->loss,
                            .logits = t->logits,
                            .n_stages = k,
                            .chunks = o->chunks,
                            .cut = o->cut ? o->cut : even,
                            .devices = t->devices,
                            .transport = t->transport,
                            .schedule = o->schedule,
                            .extra_forwards = o->extra_forwards,
                            .microbatches = o->microbatches,
                            .backward = o->backward,
                            .optimizer = o->optimizer,
                            .op_limit_ns = o->op_limit_ns,
                            .memory_limit_bytes = o->memory_limit_bytes,
                            .hook = o->hook,
                            .hook_user = o->hook_user};
  PST_GOTO(st, pst_pipeline_create(&p, &t->pipeline), done);
  PST_GOTO(st, pst_pipeline_start(t->pipeline), done);
  PST_GOTO(st, pst_pipeline_init(t->pipeline, o->seed), done);
  *out_toy = t;
  t = NULL;
done:
  free(even);
  toy_destroy(t);
  return st;
}

toy *toy_create(const toy_options *options) {
  toy *t = NULL;
  assert_ok(toy_try_create(options, &t));
  return t;
}

void toy_destroy(toy *t) {
  if (!t || pst_pipeline_lost(t->pipeline)) return;
  pst_pipeline_destroy(t->pipeline);
  if (t->transport) t->transport->table->destroy(t->transport);
  for (int s = 0; t->devices && s < t->options.n_stages; s++)
    if (t->devices[s]) t->devices[s]->table->close(t->devices[s]);
  pst_graph_destroy(t->train);
  pst_graph_destroy(t->loss);
  pst_graph_destroy(t->logits);
  free(t->devices);
  free(t->tokens);
  free(t->targets);
  free(t);
}

void toy_batch(toy *t, int64_t step, pst_batch *out_batch) {
  const toy_options *o = &t->options;
  int64_t sequences = o->batch * o->microbatches, length = o->sequence;
  for (int64_t i = 0; i < sequences; i++) {
    pst_rng_key key = pst_rng_key_make(o->seed + 1000, (uint64_t)(step * sequences + i));
    uint32_t r[4];
    pst_rng_philox(key, (uint32_t[4]){0, 0, 0, 0}, r);
    for (int64_t j = 0; j <= length; j++) {
      int32_t id = (int32_t)((r[0] % 1000 + (uint64_t)j * (1 + r[1] % 3)) % (uint64_t)o->config.vocab);
      if (j < length) t->tokens[i * length + j] = id;
      if (j > 0) t->targets[i * length + j - 1] = id;
    }
  }
  *out_batch = (pst_batch){.tokens = t->tokens, .targets = t->targets, .sequences = sequences};
}

pst_status toy_step(toy *t, int64_t step, pst_step_result *out_result) {
  pst_batch batch;
  toy_batch(t, step, &batch);
  return pst_pipeline_step(t->pipeline, &batch, t->options.seed, step, t->options.lr, out_result);
}

static int64_t elements_of(const toy *t, int32_t param) {
  const pst_value_info *v = &t->train->values.at[t->train->params.at[param].value];
  return v->dim[0] * v->dim[1] * v->dim[2] * v->dim[3];
}

float *toy_weights(toy *t, int64_t *out_n) {
  int64_t n = 0, at = 0, size = (int64_t)pst_dtype_size(t->options.dtype);
  for (int32_t i = 0; i < t->train->params.n; i++) n += elements_of(t, i);
  float *all = malloc((size_t)n * sizeof *all);
  for (int32_t i = 0; i < t->train->params.n; i++) {
    int64_t some = elements_of(t, i);
    if (t->options.dtype == PST_F32) {
      assert_ok(pst_pipeline_read(t->pipeline, PST_TENSOR_PARAM, i, 0, 0, all + at, some * size));
    } else {
      uint16_t *half = malloc((size_t)(some * size));
      assert_ok(pst_pipeline_read(t->pipeline, PST_TENSOR_PARAM, i, 0, 0, half, some * size));
      for (int64_t j = 0; j < some; j++) all[at + j] = pst_bf16_to_f32(half[j]);
      free(half);
    }
    at += some;
  }
  *out_n = n;
  return all;
}

uint64_t toy_weights_hash(toy *t) {
  int64_t n;
  float *w = toy_weights(t, &n);
  uint64_t h = pst_hash_bytes(w, (size_t)n * sizeof *w, 0);
  free(w);
  return h;
}

float *toy_gradient(toy *t, int32_t param, int64_t *out_n) {
  int64_t n = elements_of(t, param);
  float *g = malloc((size_t)n * sizeof *g);
  assert_ok(pst_pipeline_read(t->pipeline, PST_TENSOR_GRADIENT, param, 0, 0, g, n * (int64_t)sizeof *g));
  *out_n = n;
  return g;
}
