#include "core/engine/assembly.h"

#include "core/base/cores.h"
#include "core/device/registry.h"
#include "core/graph/ir.h"
#include "core/plan/partition.h"
#include "core/schedule/families.h"

#include <stdlib.h>
#include <string.h>

enum { WAIT_SPIN_NS = 20000 };

static pst_status record(const pst_assembly_options *o, pst_purpose purpose, pst_graph **out_graph) {
  pst_graph_options go = {.batch = purpose == PST_PURPOSE_LOGITS ? 1 : o->micro,
                          .sequence = o->sequence,
                          .purpose = purpose,
                          .dtype = o->dtype};
  PST_TRY(pst_graph_create(&go, out_graph));
  o->build(*out_graph, o->build_user);
  return purpose == PST_PURPOSE_TRAIN ? pst_graph_differentiate(*out_graph) : pst_graph_status(*out_graph);
}

static pst_status record_graphs(const pst_assembly_options *o, pst_assembly *a) {
  if (o->trains) PST_TRY(record(o, PST_PURPOSE_TRAIN, &a->train));
  if (o->evaluates) PST_TRY(record(o, PST_PURPOSE_LOSS, &a->loss));
  if (o->generates) PST_TRY(record(o, PST_PURPOSE_LOGITS, &a->logits));
  a->any = a->train ? a->train : a->loss ? a->loss : a->logits;
  return a->any ? PST_OK
                : pst_fail(PST_INVALID,
                           "nothing to build: neither training nor evaluation nor generation is asked for");
}

/* ---- devices ---- */

static const pst_assembly_worker any_cpu = {.device = "cpu"};

static const pst_assembly_worker *worker_at(const pst_assembly_options *o, int w) {
  return o->workers ? &o->workers[w] : &any_cpu;
}

static const char *spec_of(const pst_assembly_options *o, int s) {
  return worker_at(o, s)->device ? worker_at(o, s)->device : "cpu";
}

/* Stages that just say "cpu" share the cores that no other stage claims for itself. */
static pst_status share_threads(const pst_assembly_options *o, pst_assembly *a) {
  pst_cores usable;
  PST_TRY(pst_cores_usable(&usable));
  int n_plain = 0, plain = 0;
  for (int s = 0; s < a->n_workers; s++) n_plain += strcmp(spec_of(o, s), "cpu") == 0;
  for (int s = 0; s < a->n_workers; s++) {
    if (strcmp(spec_of(o, s), "cpu") != 0) {
      a->threads[s] = worker_at(o, s)->threads;
      continue;
    }
    pst_cores mine;
    bool shared;
    PST_TRY(pst_cores_share(&usable, n_plain, plain++, &mine, &shared));
    a->threads[s] = worker_at(o, s)->threads > 0 ? worker_at(o, s)->threads : mine.n;
  }
  return PST_OK;
}

static pst_status open_devices(const pst_assembly_options *o, pst_assembly *a) {
  for (int s = 0; s < a->n_workers; s++) {
    const pst_driver *driver = pst_driver_find(spec_of(o, s));
    if (!driver)
      return pst_fail(PST_UNSUPPORTED, "stage %d: no driver for device %s in this build", s, spec_of(o, s));
    pst_device_options d = {
        .spec = spec_of(o, s), .n_threads = a->threads[s], .isa = o->isa, .gemm = o->gemm};
    pst_status st = driver->open(&d, &a->devices[s]);
    if (st != PST_OK) return pst_fail_prefix(st, "stage %d: ", s);
  }
  return PST_OK;
}

/* ---- split ---- */

static pst_status split_by_hand(const pst_assembly_options *o, pst_assembly *a) {
  int64_t sum = 0;
  for (int s = 0; s < a->n_stages; s++) {
    if (worker_at(o, s)->units < 1)
      return pst_fail(PST_INVALID, "stage %d: units = %d: give every stage at least one, or none to any", s,
                      worker_at(o, s)->units);
    sum += worker_at(o, s)->units;
    if (sum <= a->any->units.n) a->cut[s + 1] = (int32_t)sum;
  }
  if (sum != a->any->units.n)
    return pst_fail(PST_INVALID, "the stages hold %lld units together, the model has %d", (long long)sum,
                    a->any->units.n);
  return PST_OK;
}

static pst_status split_by_cost(pst_assembly *a) {
  pst_graph *g = a->train ? a->train : a->loss ? a->loss : a->logits; /* `any`, to be written to */
  pst_graph_cost(g);
  pst_status st = PST_OK;
  int64_t *cost = malloc((size_t)(g->units.n + 1) * sizeof *cost);
  double *speed = malloc((size_t)a->n_stages * sizeof *speed);
  if (!cost || !speed) {
    st = pst_fail(PST_NO_MEMORY, "no memory to split %d units", g->units.n);
  } else {
    for (int32_t u = 0; u < g->units.n; u++)
      cost[u] = g->units.at[u].flops_forward + g->units.at[u].flops_backward;
    for (int s = 0; s < a->n_stages; s++)
      speed[s] = a->threads[a->worker_of[s]] > 0 ? a->threads[a->worker_of[s]] : 1;
    st = pst_partition(cost, g->units.n, speed, a->n_stages, a->cut);
  }
  free(cost);
  free(speed);
  return st;
}

static pst_status split(const pst_assembly_options *o, pst_assembly *a) {
  bool by_hand = false;
  for (int w = 0; w < a->n_workers; w++) by_hand = by_hand || worker_at(o, w)->units != 0;
  if (by_hand && a->n_stages != a->n_workers)
    return pst_fail(PST_UNSUPPORTED, "a split by hand with %d stages on each worker: leave it to the cost",
                    a->n_stages / a->n_workers);
  return by_hand ? split_by_hand(o, a) : split_by_cost(a);
}

/* ---- all of it ---- */

/* Workers spin for a moment when each has cores of its own; where they share cores a waiting one sleeps at
 * once. */
static pst_status make_transport(pst_assembly *a) {
  pst_cores usable;
  PST_TRY(pst_cores_usable(&usable));
  int threads = 0;
  for (int w = 0; w < a->n_workers; w++) threads += a->threads[w] > 0 ? a->threads[w] : 1;
  pst_transport_options options = {.n_workers = a->n_workers,
                                   .spin_ns = threads <= usable.n ? WAIT_SPIN_NS : 0};
  const pst_transport_driver *driver = pst_transport_find("inproc");
  if (!driver) return pst_fail(PST_UNSUPPORTED, "this build has no transport between threads");
  return driver->create(&options, &a->transport);
}

/* Which worker holds which stage, as the schedule lays them out. */
static pst_status place_stages(const pst_assembly_options *o, pst_assembly *a) {
  pst_schedule_options so;
  pst_schedule_options_init(&so);
  so.name = o->schedule;
  so.workers = a->n_workers;
  so.chunks = a->n_stages / a->n_workers;
  so.microbatches = o->microbatches;
  so.extra_forwards = o->extra_forwards;
  if (!o->trains) so.name = "forward-only";
  pst_schedule *s = NULL;
  PST_TRY(pst_schedule_generate(&so, &s));
  memcpy(a->worker_of, s->worker_of, (size_t)a->n_stages * sizeof *a->worker_of);
  bool trains = s->training;
  pst_schedule_destroy(s);
  return trains || !o->trains
             ? PST_OK
             : pst_fail(PST_INVALID, "schedule: %s has no backwards: nothing would be learnt", o->schedule);
}

static pst_status assemble(const pst_assembly_options *o, pst_assembly *a) {
  PST_TRY(record_graphs(o, a));
  PST_TRY(share_threads(o, a));
  PST_TRY(place_stages(o, a));
  PST_TRY(split(o, a));
  PST_TRY(open_devices(o, a));
  PST_TRY(make_transport(a));
  pst_pipeline_options p = {.train = a->train,
                            .loss = a->loss,
                            .logits = a->logits,
                            .n_stages = a->n_stages,
                            .chunks = a->n_stages / a->n_workers,
                            .cut = a->cut,
                            .devices = a->devices,
                            .transport = a->transport,
                            .schedule = o->schedule,
                            .extra_forwards = o->extra_forwards,
                            .microbatches = o->microbatches,
                            .backward = o->backward,
                            .optimizer = o->optimizer,
                            .op_limit_ns = o->op_limit_ns,
                            .memory_limit_bytes = o->memory_limit_bytes,
                            .logger = o->logger,
                            .hook = o->hook,
                            .hook_user = o->hook_user};
  return pst_pipeline_create(&p, &a->pipeline);
}

pst_status pst_assembly_create(const pst_assembly_options *options, pst_assembly **out_assembly) {
  if (options->n_workers < 1)
    return pst_fail(PST_INVALID, "a pipeline of %d stages: wanted at least 1", options->n_workers);
  pst_status st = PST_OK;
  pst_assembly *a = calloc(1, sizeof *a);
  if (!a) return pst_fail(PST_NO_MEMORY, "no memory for a pipeline");
  a->n_workers = options->n_workers;
  /* without training there is no schedule to fill: one stage a worker will do */
  a->n_stages = a->n_workers * (options->chunks > 0 && options->trains ? options->chunks : 1);
  a->cut = calloc((size_t)a->n_stages + 1, sizeof *a->cut);
  a->worker_of = calloc((size_t)a->n_stages, sizeof *a->worker_of);
  a->devices = calloc((size_t)a->n_workers, sizeof *a->devices);
  a->threads = calloc((size_t)a->n_workers, sizeof *a->threads);
  if (!a->cut || !a->worker_of || !a->devices || !a->threads) {
    st = pst_fail(PST_NO_MEMORY, "no memory for %d stages", a->n_stages);
    goto done;
  }
  PST_GOTO(st, assemble(options, a), done);
  *out_assembly = a;
  a = NULL;
done:
  pst_assembly_destroy(a);
  return st;
}

pst_status pst_assembly_start(pst_assembly *a) {
  return pst_pipeline_start(a->pipeline);
}

void pst_assembly_destroy(pst_assembly *a) {
  if (!a) return;
  if (pst_pipeline_lost(a->pipeline)) return; /* a worker that cannot be ended still uses all of it */
  pst_pipeline_destroy(a->pipeline);
  if (a->transport) a->transport->table->destroy(a->transport);
  for (int w = 0; a->devices && w < a->n_workers; w++)
    if (a->devices[w]) a->devices[w]->table->close(a->devices[w]);
  pst_graph_destroy(a->train);
  pst_graph_destroy(a->loss);
  pst_graph_destroy(a->logits);
  free(a->worker_of);
  free(a->devices);
  free(a->threads);
  free(a->cut);
  free(a);
}

int64_t pst_assembly_elements(const pst_assembly *a, int32_t param) {
  const pst_value_info *v = pst__value(a->any, a->any->params.at[param].value);
  return v->dim[0] * v->dim[1] * v->dim[2] * v->dim[3];
}
