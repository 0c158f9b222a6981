#include "core/penstock.h"

#include "core/base/clock.h"
#include "core/data/loader.h"
#include "core/device/registry.h"
#include "core/engine/weights.h"
#include "core/graph/ir.h"

#include <stdlib.h>
#include <string.h>

enum { DATA_LIMIT_S = 600 };

struct pst_trainer {
  pst_trainer_options options;
  pst_logger *logger;
  pst_assembly *assembly;
  pst_loader *loader;
  pst_fill_function fill;
  int64_t step;        /* the next one */
  bool between_halves; /* gradients are there, the update is owed */
  pst_trainer_result half;
};

void pst_trainer_options_init(pst_trainer_options *o) {
  *o = (pst_trainer_options){.sequence = 64,
                             .micro = 4,
                             .microbatches = 8,
                             .n_stages = 1,
                             .schedule = "1f1b",
                             .backward = "auto",
                             .optimizer = "adamw",
                             .lr = 3e-4,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .eps = 1e-8,
                             .weight_decay = 0.1,
                             .clip = 1.0,
                             .seed = 1,
                             .isa = "auto",
                             .gemm = "auto"};
}

static pst_status parse_backward(const char *text, pst_backward *out) {
  static const char *const names[] = {"auto", "fused", "early", "split"};
  static const pst_backward values[] = {PST_BACKWARD_AUTO, PST_BACKWARD_EACH_FUSED, PST_BACKWARD_EACH_EARLY,
                                        PST_BACKWARD_EACH_SPLIT};
  for (int i = 0; i < 4; i++) {
    if (strcmp(text, names[i]) != 0) continue;
    *out = values[i];
    return PST_OK;
  }
  return pst_fail(PST_INVALID, "backward = %s: wanted auto, fused, early or split", text);
}

static pst_status parse_optimizer(const pst_trainer_options *o, pst_optimizer_options *out) {
  pst_optimizer_options_init(out);
  if (strcmp(o->optimizer, "sgd") == 0)
    out->kind = PST_SGD;
  else if (strcmp(o->optimizer, "adamw") != 0)
    return pst_fail(PST_INVALID, "optimizer = %s: wanted adamw or sgd", o->optimizer);
  if (!(o->lr >= 0) || !(o->clip >= 0) || !(o->weight_decay >= 0))
    return pst_fail(PST_INVALID, "lr = %g, clip = %g, weight_decay = %g: wanted none below 0", o->lr, o->clip,
                    o->weight_decay);
  out->beta1 = (float)o->beta1;
  out->beta2 = (float)o->beta2;
  out->eps = (float)o->eps;
  out->momentum = (float)o->momentum;
  out->weight_decay = (float)o->weight_decay;
  out->clip = (float)o->clip;
  return PST_OK;
}

static pst_status assemble(pst_trainer *t) {
  const pst_trainer_options *o = &t->options;
  pst_assembly_options a = {.build = o->build,
                            .build_user = o->build_user,
                            .trains = true,
                            .evaluates = o->evaluates,
                            .sequence = o->sequence,
                            .micro = o->micro,
                            .microbatches = o->microbatches,
                            .dtype = PST_F32,
                            .n_workers = o->n_stages,
                            .schedule = o->schedule,
                            .isa = o->isa,
                            .gemm = o->gemm,
                            .logger = t->logger};
  PST_TRY(parse_backward(o->backward, &a.backward));
  PST_TRY(parse_optimizer(o, &a.optimizer));
  pst_assembly_worker *stages = NULL;
  if (o->stages && o->n_stages > 0) {
    stages = calloc((size_t)o->n_stages, sizeof *stages);
    if (!stages) return pst_fail(PST_NO_MEMORY, "no memory for %d stages", o->n_stages);
    for (int s = 0; s < o->n_stages; s++)
      stages[s] = (pst_assembly_worker){
          .device = o->stages[s].device, .threads = o->stages[s].threads, .units = o->stages[s].units};
    a.workers = stages;
  }
  pst_status st = pst_assembly_create(&a, &t->assembly);
  free(stages);
  PST_TRY(st);
  PST_TRY(pst_assembly_start(t->assembly));
  return pst_pipeline_init(t->assembly->pipeline, o->seed);
}

/* The vocabulary that ids must stay below: the rows of the smallest table that tokens look up, the classes of
 * the loss. */
static int64_t vocabulary(const pst_graph *g) {
  int64_t vocab = INT32_MAX;
  for (int32_t i = 0; i < g->nodes.n; i++) {
    const pst_node *n = &g->nodes.at[i];
    if (n->code == PST_OP_embedding && pst__value(g, n->in[1])->dim[0] < vocab)
      vocab = pst__value(g, n->in[1])->dim[0];
    if (n->code == PST_OP_linear_cross_entropy_grad) {
      int64_t classes = pst__value(g, n->in[1])->dim[n->attrs.w_in_out ? 1 : 0];
      if (classes < vocab) vocab = classes;
    }
    if (n->code == PST_OP_cross_entropy) {
      const pst_value_info *logits = pst__value(g, n->in[0]);
      if (logits->dim[logits->rank - 1] < vocab) vocab = logits->dim[logits->rank - 1];
    }
  }
  return vocab;
}

pst_status pst_trainer_create(const pst_trainer_options *options, pst_trainer **out_trainer) {
  if (!options->build || !options->fill)
    return pst_fail(PST_INVALID, "a trainer needs a build and a fill function");
  if (options->micro < 1 || options->microbatches < 1 || options->sequence < 1)
    return pst_fail(
        PST_INVALID, "sequence = %lld, micro = %lld, microbatches = %lld: wanted at least 1 of each",
        (long long)options->sequence, (long long)options->micro, (long long)options->microbatches);
  pst_status st = PST_OK;
  pst_trainer *t = calloc(1, sizeof *t);
  if (!t) return pst_fail(PST_NO_MEMORY, "no memory for a trainer");
  t->options = *options;
  PST_GOTO(st, pst_logger_create(PST_LOG_INFO, options->log, options->log_user, &t->logger), done);
  PST_GOTO(st, assemble(t), done);
  pst_loader_options loader = {.fill = options->fill,
                               .user = options->fill_user,
                               .vocab = vocabulary(t->assembly->train),
                               .sequence = options->sequence,
                               .global = options->micro * options->microbatches};
  PST_GOTO(st, pst_loader_create(&loader, &t->loader), done);
  *out_trainer = t;
  t = NULL;
done:
  pst_trainer_destroy(t);
  return st;
}

void pst_trainer_destroy(pst_trainer *t) {
  if (!t) return;
  pst_loader_destroy(t->loader);
  pst_assembly_destroy(t->assembly);
  pst_logger_destroy(t->logger);
  free(t);
}

/* ---- steps ---- */

static pst_status take_batch(pst_trainer *t, pst_batch *batch, int64_t *out_wait_ns) {
  int64_t begin = pst_clock_ns();
  pst_loader_batch ready;
  PST_TRY(pst_loader_take(t->loader, 0, t->step, (int64_t)DATA_LIMIT_S * 1000000000, &ready));
  *out_wait_ns = pst_clock_ns() - begin;
  *batch = (pst_batch){.tokens = ready.tokens,
                       .targets = ready.targets,
                       .sequences = t->options.micro * t->options.microbatches};
  return PST_OK;
}

/* Forward and backward, with the update (the whole step) or without (its first half). */
static pst_status advance(pst_trainer *t, bool update, pst_trainer_result *out) {
  if (t->between_halves)
    return pst_fail(PST_INVALID, "step %lld: its update is owed: call pst_trainer_apply() first",
                    (long long)t->step);
  pst_batch batch;
  int64_t waited;
  PST_TRY(take_batch(t, &batch, &waited));
  pst_pipeline *p = t->assembly->pipeline;
  pst_step_result r;
  pst_status st = update ? pst_pipeline_step(p, &batch, t->options.seed, t->step, t->options.lr, &r)
                         : pst_pipeline_gradients(p, &batch, t->options.seed, t->step, &r);
  pst_status released = pst_loader_release(t->loader, 0, t->step);
  PST_TRY(st);
  PST_TRY(released);
  *out = (pst_trainer_result){.step = t->step,
                              .loss = r.loss,
                              .gradient_norm = r.gradient_norm,
                              .tokens = r.tokens,
                              .step_ns = r.step_ns + waited,
                              .data_wait_ns = waited};
  return PST_OK;
}

pst_status pst_trainer_step(pst_trainer *t, pst_trainer_result *out_result) {
  PST_TRY(advance(t, true, out_result));
  t->step++;
  return PST_OK;
}

pst_status pst_trainer_gradients(pst_trainer *t, pst_trainer_result *out_result) {
  PST_TRY(advance(t, false, &t->half));
  t->between_halves = true;
  *out_result = t->half;
  return PST_OK;
}

pst_status pst_trainer_apply(pst_trainer *t, pst_trainer_result *out_result) {
  if (!t->between_halves)
    return pst_fail(PST_INVALID, "no gradients to apply: call pst_trainer_gradients() first");
  int64_t begin = pst_clock_ns();
  PST_TRY(pst_pipeline_apply(t->assembly->pipeline, t->step, t->options.lr, &t->half.gradient_norm));
  t->half.step_ns += pst_clock_ns() - begin;
  t->between_halves = false;
  t->step++;
  *out_result = t->half;
  return PST_OK;
}

/* Every id of the caller's is looked at before a table is. */
static pst_status check_ids(const pst_trainer *t, const int32_t *ids, int64_t n, int32_t lowest,
                            const char *what) {
  int64_t vocab = vocabulary(t->assembly->train), length = t->options.sequence;
  for (int64_t i = 0; i < n * length; i++)
    if (ids[i] < lowest || ids[i] >= vocab)
      return pst_fail(PST_INVALID, "%s %d at sequence %lld, position %lld, wanted %d to %lld", what, ids[i],
                      (long long)(i / length), (long long)(i % length), lowest, (long long)(vocab - 1));
  return PST_OK;
}

pst_status pst_trainer_loss(pst_trainer *t, const int32_t *tokens, const int32_t *targets, int64_t n,
                            double *out_loss) {
  int64_t length = t->options.sequence, some = t->options.micro * t->options.microbatches, valid = 0;
  double sum = 0;
  if (n < 0) return pst_fail(PST_INVALID, "the loss of %lld sequences: wanted none or more", (long long)n);
  PST_TRY(check_ids(t, tokens, n, 0, "token"));
  PST_TRY(check_ids(t, targets, n, -1, "target"));
  for (int64_t i = 0; i < n; i += some) {
    pst_batch batch = {.tokens = tokens + i * length,
                       .targets = targets + i * length,
                       .sequences = n - i < some ? n - i : some};
    double one;
    int64_t count;
    PST_TRY(pst_pipeline_loss(t->assembly->pipeline, &batch, &one, &count, NULL));
    sum += one;
    valid += count;
  }
  *out_loss = valid > 0 ? sum / (double)valid : 0.0;
  return PST_OK;
}

/* ---- parameters ---- */

int pst_trainer_params(const pst_trainer *t) {
  return t->assembly->any->params.n;
}

void pst_trainer_param_at(const pst_trainer *t, int index, pst_trainer_param *out) {
  const pst_graph *g = t->assembly->any;
  const pst_param_info *info = &g->params.at[index];
  const pst_value_info *v = pst__value(g, info->value);
  *out = (pst_trainer_param){.name = info->name,
                             .rank = v->rank,
                             .elements = pst_assembly_elements(t->assembly, index),
                             .stage = pst_pipeline_owner(t->assembly->pipeline, index)};
  memcpy(out->dim, v->dim, sizeof out->dim);
}

pst_status pst_trainer_find(const pst_trainer *t, const char *name, int *out_index) {
  const pst_graph *g = t->assembly->any;
  for (int32_t i = 0; i < g->params.n; i++) {
    if (strcmp(g->params.at[i].name, name) != 0) continue;
    *out_index = i;
    return PST_OK;
  }
  return pst_fail(PST_INVALID, "the model has no parameter named %s", name);
}

static int64_t bytes_of(const pst_trainer *t, int index) {
  return pst_assembly_elements(t->assembly, index) * (int64_t)sizeof(float);
}

static pst_status check_index(const pst_trainer *t, int index) {
  if (index >= 0 && index < pst_trainer_params(t)) return PST_OK;
  return pst_fail(PST_INVALID, "parameter %d: the model has %d", index, pst_trainer_params(t));
}

pst_status pst_trainer_read(pst_trainer *t, int index, float *out_values) {
  PST_TRY(check_index(t, index));
  return pst_pipeline_read(t->assembly->pipeline, PST_TENSOR_PARAM, index, 0, 0, out_values,
                           bytes_of(t, index));
}

pst_status pst_trainer_write(pst_trainer *t, int index, const float *values) {
  PST_TRY(check_index(t, index));
  return pst_pipeline_write(t->assembly->pipeline, PST_TENSOR_PARAM, index, 0, 0, values, bytes_of(t, index));
}

pst_status pst_trainer_gradient(pst_trainer *t, int index, float *out_values) {
  PST_TRY(check_index(t, index));
  if (!t->between_halves)
    return pst_fail(PST_INVALID,
                    "gradients are there between pst_trainer_gradients() and pst_trainer_apply()");
  return pst_pipeline_read(t->assembly->pipeline, PST_TENSOR_GRADIENT, index, 0, 0, out_values,
                           bytes_of(t, index));
}

pst_status pst_trainer_save(pst_trainer *t, const char *path) {
  return pst_weights_save(t->assembly, path, NULL);
}

pst_status pst_trainer_load(pst_trainer *t, const char *path) {
  return pst_weights_load(t->assembly, path, NULL, 0);
}

/* ---- what is here ---- */

const char *pst_version(void) {
  return PENSTOCK_VERSION;
}

void pst_devices(void (*visit)(void *user, const pst_device_info *info), void *user) {
  for (const pst_driver *const *d = pst_drivers; *d; d++) (*d)->enumerate(visit, user);
}
