#include "tests/graph/rig.h"

#include "core/base/hash.h"
#include "core/base/rng.h"
#include "core/device/registry.h"
#include "tests/support.h"

#include <stdlib.h>
#include <string.h>

/* The CPU's table with another answer to query: tests are one thread here, so one copy will do. */
static pst_device_table limited;
static const pst_device_table *original;
static int64_t limit_bytes;

static void limited_query(pst_device *d, pst_device_info *out_info) {
  original->query(d, out_info);
  out_info->max_block_bytes = limit_bytes;
}

static void limit_device(pst_device *d, int64_t bytes) {
  original = d->table == &limited ? original : d->table;
  limited = *original;
  limited.query = limited_query;
  limit_bytes = bytes;
  d->table = &limited;
}

static pst_status record(const rig_options *o, pst_purpose purpose, pst_graph **out) {
  pst_graph_options go = {.batch = o->batch, .sequence = o->sequence, .purpose = purpose, .dtype = o->dtype};
  PST_TRY(pst_graph_create(&go, out));
  o->build(*out, o->user);
  return purpose == PST_PURPOSE_TRAIN ? pst_graph_differentiate(*out) : pst_graph_status(*out);
}

static pst_status start(rig *r) {
  const rig_options *o = &r->options;
  int32_t *even = malloc((size_t)(o->n_stages + 1) * sizeof *even);
  for (int s = 0; s <= o->n_stages; s++) even[s] = (int32_t)((int64_t)r->train->units.n * s / o->n_stages);
  pst_pipeline_options p = {.train = r->train,
                            .loss = r->loss,
                            .n_stages = o->n_stages,
                            .chunks = o->chunks,
                            .cut = o->cut ? o->cut : even,
                            .devices = r->devices,
                            .transport = r->transport,
                            .schedule = o->schedule,
                            .microbatches = o->microbatches,
                            .backward = o->backward,
                            .optimizer = o->optimizer,
                            .hook = o->hook,
                            .hook_user = o->hook_user};
  pst_status st = pst_pipeline_create(&p, &r->pipeline);
  free(even);
  PST_TRY(st);
  PST_TRY(pst_pipeline_start(r->pipeline));
  return pst_pipeline_init(r->pipeline, 11);
}

static pst_status fill(rig *r) {
  rig_options *o = &r->options;
  PST_TRY(record(o, PST_PURPOSE_TRAIN, &r->train));
  if (o->evaluates) PST_TRY(record(o, PST_PURPOSE_LOSS, &r->loss));
  for (int s = 0; s < o->n_stages; s++) {
    PST_TRY(
        pst_driver_find("cpu")->open(&(pst_device_options){.spec = "cpu", .n_threads = 1}, &r->devices[s]));
    if (o->max_block_bytes) limit_device(r->devices[s], o->max_block_bytes);
  }
  PST_TRY(pst_transport_find("inproc")->create(&(pst_transport_options){.n_workers = o->n_stages},
                                               &r->transport));
  return start(r);
}

pst_status rig_create(const rig_options *options, rig **out_rig) {
  rig *r = calloc(1, sizeof *r);
  r->options = *options;
  rig_options *o = &r->options;
  if (o->n_stages == 0) o->n_stages = 1;
  if (!o->schedule) o->schedule = "1f1b";
  static const pst_optimizer_options none;
  if (memcmp(&o->optimizer, &none, sizeof none) == 0) pst_optimizer_options_init(&o->optimizer);
  size_t n = (size_t)(o->batch * o->microbatches * o->sequence);
  r->tokens = malloc(n * sizeof *r->tokens);
  r->targets = malloc(n * sizeof *r->targets);
  r->devices = calloc((size_t)o->n_stages, sizeof *r->devices);
  pst_status st = fill(r);
  if (st == PST_OK)
    *out_rig = r;
  else
    rig_destroy(r);
  return st;
}

void rig_destroy(rig *r) {
  if (!r) return;
  pst_pipeline_destroy(r->pipeline);
  if (r->transport) r->transport->table->destroy(r->transport);
  for (int s = 0; s < r->options.n_stages; s++)
    if (r->devices[s]) r->devices[s]->table->close(r->devices[s]);
  pst_graph_destroy(r->train);
  pst_graph_destroy(r->loss);
  free(r->devices);
  free(r->tokens);
  free(r->targets);
  free(r);
}

void rig_batch(rig *r, int64_t step, pst_batch *out_batch) {
  const rig_options *o = &r->options;
  int64_t sequences = o->batch * o->microbatches;
  for (int64_t i = 0; i < sequences * o->sequence; i++) {
    uint32_t x[4];
    pst_rng_philox(pst_rng_key_make(5, (uint64_t)step), (uint32_t[4]){(uint32_t)i, 0, 0, 0}, x);
    r->tokens[i] = (int32_t)(x[0] % (uint32_t)o->vocab);
    r->targets[i] = i % 5 == 4 ? -1 : (int32_t)(x[1] % (uint32_t)o->vocab);
  }
  *out_batch = (pst_batch){.tokens = r->tokens, .targets = r->targets, .sequences = sequences};
}

pst_status rig_step(rig *r, int64_t step, pst_step_result *out_result) {
  pst_batch batch;
  rig_batch(r, step, &batch);
  return pst_pipeline_step(r->pipeline, &batch, 3, step, 1e-2, out_result);
}

int64_t rig_elements(const rig *r, int32_t param) {
  const int64_t *d = r->train->values.at[r->train->params.at[param].value].dim;
  return d[0] * d[1] * d[2] * d[3];
}

uint64_t rig_weights_hash(rig *r) {
  uint64_t h = 0;
  for (int32_t i = 0; i < r->train->params.n; i++) {
    int64_t bytes = rig_elements(r, i) * (int64_t)pst_dtype_size(r->options.dtype);
    void *x = malloc((size_t)bytes);
    assert_ok(pst_pipeline_read(r->pipeline, PST_TENSOR_PARAM, i, 0, 0, x, bytes));
    h = pst_hash_bytes(x, (size_t)bytes, h);
    free(x);
  }
  return h;
}

static pst_value matrix(pst_graph *g, const char *name, int64_t rows, int64_t columns) {
  return pst_param(g, name, 2, (int64_t[]){rows, columns}, (pst_init){PST_INIT_NORMAL, 0.5f});
}

void rig_two_streams(pst_graph *g, void *user) {
  const float *dropout = user;
  enum { C = 8, V = RIG_TWO_STREAMS_VOCAB };
  pst_graph_unit(g, "embed");
  pst_value tokens = pst_graph_tokens(g), table = matrix(g, "table", V, C);
  pst_value a = pst_embedding(g, tokens, table, PST_NO_VALUE);
  pst_value b = pst_embedding(g, tokens, matrix(g, "second", V, C), PST_NO_VALUE);
  pst_graph_unit(g, "first");
  pst_value bias = pst_param(g, "first.bias", 1, (int64_t[]){C}, (pst_init){PST_INIT_ZEROS, 0});
  pst_value c = pst_linear(g, a, matrix(g, "first.weight", C, C), bias, PST_NO_VALUE, true);
  pst_graph_unit(g, "middle");
  pst_value shared = matrix(g, "shared", C, C);
  pst_value again = pst_embedding(g, tokens, matrix(g, "third", V, C), PST_NO_VALUE);
  pst_value d =
      pst_add(g, pst_gelu(g, pst_linear(g, c, shared, PST_NO_VALUE, PST_NO_VALUE, false), false), again);
  d = pst_dropout(g, d, c, dropout ? *dropout : 0.2f);
  pst_graph_unit(g, "late");
  pst_value e = pst_linear(g, d, matrix(g, "late.weight", C, C), PST_NO_VALUE, a, false);
  pst_graph_unit(g, "gate");
  pst_value f = pst_silu_gate(g, e, b);
  pst_value gain = pst_param(g, "gain", 1, (int64_t[]){C}, (pst_init){PST_INIT_ONES, 0});
  f = pst_rms_norm(g, f, gain, 1e-5f);
  pst_graph_unit(g, "tied");
  pst_value h = pst_linear(g, f, shared, PST_NO_VALUE, f, true);
  h = pst_add(
      g, h,
      pst_scale(g, pst_slice(g, pst_linear(g, b, shared, PST_NO_VALUE, PST_NO_VALUE, false), 0, C), 0.5f));
  pst_graph_unit(g, "head");
  pst_graph_loss(g, pst_linear_cross_entropy(g, h, table, pst_graph_targets(g), false));
}
