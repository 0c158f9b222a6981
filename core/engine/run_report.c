#include "core/engine/run_internal.h"

#include "core/base/cores.h"
#include "core/graph/ir.h"
#include "core/schedule/families.h"
#include "core/schedule/simulate.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double mb(int64_t bytes) {
  return (double)bytes / 1e6;
}

double pst__run_bubble(int64_t k, int64_t m) {
  return (double)(k - 1) / (double)(m + k - 1);
}

/* 4 K microbatches bring 1f1b's bubble under a fifth. */
void pst__run_advise_microbatches(int64_t k, int64_t m, char *text, size_t bytes) {
  text[0] = 0;
  if (k < 2 || m >= 4 * k) return;
  snprintf(text, bytes, "M = %" PRId64 ", K = %" PRId64 ": bubble %.0f %%; M = %" PRId64 " gives %.0f %%", m,
           k, 100 * pst__run_bubble(k, m), 4 * k, 100 * pst__run_bubble(k, 4 * k));
}

/* ---- before ---- */

/* Layers with at least one sublayer in the stage, as "0-3"; a model's layer l is units 2 l + 1 and 2 l + 2.
 */
static void name_layers(const pst_run *run, int s, char *text, size_t bytes) {
  const int32_t *cut = run->assembly->cut;
  int32_t n_units = run->assembly->any->units.n;
  int32_t first = cut[s] < 1 ? 1 : cut[s], end = cut[s + 1] > n_units - 1 ? n_units - 1 : cut[s + 1];
  const char *embed = cut[s] == 0 ? "embedding" : "", *head = cut[s + 1] == n_units ? "head" : "";
  char layers[64] = "";
  if (first < end) {
    int32_t from = (first - 1) / 2, to = (end - 2) / 2;
    bool half_from = (first - 1) % 2 != 0, half_to = (end - 1) % 2 != 0;
    const char *tail_from = half_from ? " (feed-forward)" : "", *tail_to = half_to ? " (attention)" : "";
    if (from == to)
      snprintf(layers, sizeof layers, "layer %d%s%s", from, tail_from, tail_to);
    else
      snprintf(layers, sizeof layers, "layers %d%s to %d%s", from, tail_from, to, tail_to);
  }
  snprintf(text, bytes, "%s%s%s%s%s", embed, *embed && (*layers || *head) ? ", " : "", layers,
           *layers && *head ? ", " : "", head);
}

static int32_t first_use(const pst_graph *g, pst_value v) {
  for (int32_t i = 0; i < g->nodes.n; i++)
    for (int j = 0; j < PST_OP_MAX_IN; j++)
      if (g->nodes.at[i].in[j] == v) return g->nodes.at[i].unit;
  return -1;
}

/* Parameters counted at the stage of their first use. */
static void count_params(const pst_run *run, int s, int64_t *out_n, int64_t *out_bytes) {
  const pst_graph *g = run->assembly->any;
  *out_n = *out_bytes = 0;
  for (int32_t p = 0; p < g->params.n; p++) {
    int32_t unit = first_use(g, g->params.at[p].value);
    if (unit < run->assembly->cut[s] || unit >= run->assembly->cut[s + 1]) continue;
    int64_t n = pst_assembly_elements(run->assembly, p);
    *out_n += n;
    *out_bytes += n * (int64_t)pst_dtype_size(pst__value(g, g->params.at[p].value)->dtype);
  }
}

static void print_model(const pst_run *run, FILE *out) {
  const pst_model_config *c = &run->config;
  int64_t n = 0;
  for (int32_t p = 0; p < run->assembly->any->params.n; p++) n += pst_assembly_elements(run->assembly, p);
  fprintf(out,
          "model     %s: %" PRId64 " layers, width %" PRId64 ", %" PRId64 " heads (%" PRId64
          " key/value), feed-forward %" PRId64 ", vocabulary %" PRId64 ", context %" PRId64
          ", %s head: %" PRId64 " parameters\n",
          run->model->name, c->layers, c->width, c->heads, c->kv_heads, c->hidden, c->vocab, c->context,
          c->tied ? "tied" : "untied", n);
}

static void print_data(const pst_run *run, FILE *out) {
  const pst_runfile *f = &run->file;
  if (!run->train_tokens) return;
  fprintf(out, "data      %s: %s, %" PRId64 " tokens, hash %016" PRIx64 "\n", f->data.train,
          pst_tokens_format_name(pst_tokens_kind(run->train_tokens)), pst_tokens_count(run->train_tokens),
          run->data_hash);
  if (run->trained) return;
  fprintf(out,
          "          %" PRId64 " tokens for training, %" PRId64 " windows of %d an epoch; %" PRId64
          " steps are %.2f epochs\n",
          run->train.count, run->sampler.n_windows, f->data.sequence, f->steps,
          (double)f->steps * (double)f->batch.global / (double)run->sampler.n_windows);
  if (run->has_valid)
    fprintf(out, "          %" PRId64 " tokens for validation, from %s\n", run->valid.count,
            f->data.valid ? f->data.valid : "the end of the same file");
  else
    fprintf(out, "          no validation\n");
}

static void print_batch(const pst_run *run, FILE *out) {
  const pst_runfile *f = &run->file;
  fprintf(out,
          "batch     %" PRId64 " sequences a step = %d a microbatch x %d microbatches x %d replica; %" PRId64
          " tokens a step\n",
          f->batch.global, f->batch.micro, f->batch.microbatches, f->batch.replicas,
          f->batch.global * f->data.sequence);
}

/* What the schedule alone costs when F, I and W of every stage take alike; 1f1b and gpipe: (K-1)/(M+K-1). */
static double even_bubble(const pst_run *run) {
  pst_simulate_options o;
  pst_simulate_options_init(&o);
  pst_simulation *result = NULL;
  double bubble = 0;
  if (pst_schedule_simulate(pst_pipeline_schedule(run->assembly->pipeline), &o, &result) == PST_OK)
    bubble = result->bubble_makespan;
  pst_simulation_destroy(result);
  return bubble;
}

static void print_schedule(const pst_run *run, FILE *out) {
  int64_t k = run->assembly->n_workers, v = run->assembly->n_stages / k, m = run->file.batch.microbatches;
  const char *name = run->file.schedule.name;
  char advice[160];
  if (strcmp(name, "1f1b") == 0 || strcmp(name, "gpipe") == 0) {
    fprintf(out,
            "schedule  %s: K = %" PRId64 " stages, M = %" PRId64
            " microbatches, bubble (K-1)/(M+K-1) = %.0f %%\n",
            name, k, m, 100 * pst__run_bubble(k, m));
    pst__run_advise_microbatches(k, m, advice, sizeof advice);
    if (advice[0]) fprintf(out, "          %s\n", advice);
    return;
  }
  fprintf(out,
          "schedule  %s: K = %" PRId64 " workers with %" PRId64 " stages each, M = %" PRId64
          " microbatches, bubble %.0f %% of even stages\n",
          name, k, v, m, 100 * even_bubble(run));
}

static void print_stages(const pst_run *run, FILE *out) {
  const pst_assembly *a = run->assembly;
  bool several = a->n_stages > a->n_workers;
  fprintf(out, "\nstage  %sdevice        threads  units      parameters        MB  holds\n",
          several ? "worker  " : "");
  for (int s = 0; s < a->n_stages; s++) {
    pst_device_info info;
    char layers[160], units[32], worker[32] = "";
    int64_t n, bytes;
    int w = a->worker_of[s];
    a->devices[w]->table->query(a->devices[w], &info);
    count_params(run, s, &n, &bytes);
    name_layers(run, s, layers, sizeof layers);
    snprintf(units, sizeof units, "%d-%d", a->cut[s], a->cut[s + 1] - 1);
    if (several) snprintf(worker, sizeof worker, "%6d  ", w);
    fprintf(out, "%5d  %s%-12s  %7d  %-9s  %10" PRId64 "  %8.2f  %s\n", s, worker, info.name, a->threads[w],
            units, n, mb(bytes), layers);
  }
}

static void print_memory(const pst_run *run, FILE *out) {
  const pst_assembly *a = run->assembly;
  bool used[PST_SEGMENT_COUNT] = {false};
  int64_t heaviest = -1, total = 0;
  int heaviest_stage = 0;
  pst_stage_memory m;
  for (int s = 0; s < a->n_stages; s++) {
    pst_pipeline_memory(a->pipeline, s, &m);
    for (int g = 0; g < PST_SEGMENT_COUNT; g++) used[g] = used[g] || m.bytes[g] > 0;
    total += m.total_bytes;
    if (m.total_bytes > heaviest) heaviest = m.total_bytes, heaviest_stage = s;
  }
  fprintf(out, "\nmemory in MB (x copies)\nstage ");
  for (int g = 0; g < PST_SEGMENT_COUNT; g++)
    if (used[g]) fprintf(out, " %14s", pst_segment_name((pst_segment_kind)g));
  fprintf(out, "          total\n");
  for (int s = 0; s < a->n_stages; s++) {
    pst_pipeline_memory(a->pipeline, s, &m);
    fprintf(out, "%5d ", s);
    for (int g = 0; g < PST_SEGMENT_COUNT; g++) {
      char cell[32];
      if (!used[g]) continue;
      if (m.copies[g] > 1)
        snprintf(cell, sizeof cell, "%.2f x%" PRId64, mb(m.bytes[g]), m.copies[g]);
      else
        snprintf(cell, sizeof cell, "%.2f", mb(m.bytes[g]));
      fprintf(out, " %14s", cell);
    }
    fprintf(out, " %14.2f%s\n", mb(m.total_bytes),
            s == heaviest_stage && a->n_stages > 1 ? "  heaviest" : "");
  }
  fprintf(out, "all    %.2f MB\n", mb(total));
}

/* One line for each kind of device. */
static void print_devices(const pst_run *run, FILE *out) {
  const pst_assembly *a = run->assembly;
  char last[512] = "";
  fprintf(out, "\n");
  for (int w = 0; w < a->n_workers; w++) {
    pst_device_info info;
    char line[512];
    a->devices[w]->table->query(a->devices[w], &info);
    snprintf(line, sizeof line, "%s; numerics %s", info.description, info.numerics);
    if (strcmp(last, line) == 0) continue;
    strcpy(last, line);
    fprintf(out, "%s: %s\n", info.name, line);
  }
}

pst_status pst_run_describe(pst_run *run, FILE *out) {
  if (run->trained)
    fprintf(out, "run       %s, step %" PRId64 "\n", run->directory, run->step);
  else
    fprintf(out, "run       %s in %s: %" PRId64 " steps, seed %" PRId64 "\n", run->file.name, run->directory,
            run->file.steps, run->file.seed);
  print_model(run, out);
  print_data(run, out);
  if (!run->trained) {
    print_batch(run, out);
    print_schedule(run, out);
  }
  print_stages(run, out);
  print_memory(run, out);
  print_devices(run, out);
  return ferror(out) ? pst_fail(PST_IO, "the description of the run could not be written") : PST_OK;
}

/* ---- after ---- */

static int64_t compute_ns(const pst__run_time *t) {
  return t->forward_ns + t->backward_ns + t->input_ns + t->weight_ns;
}

/* The schedule with the times its actions took. */
static pst_status predict(const pst_run *run, double *out_bubble) {
  const pst_assembly *a = run->assembly;
  size_t n = (size_t)a->n_stages;
  double *times = calloc(3 * n, sizeof *times);
  if (!times) return pst_fail(PST_NO_MEMORY, "no memory to simulate %zu stages", n);
  double runs = (double)run->time_steps * (double)run->file.batch.microbatches * 1e9;
  for (size_t s = 0; s < n; s++) {
    const pst__run_time *t = &run->times[s];
    times[s] = (double)t->forward_ns / runs;
    times[n + s] = (double)(t->backward_ns + t->input_ns) / runs;
    times[2 * n + s] = (double)t->weight_ns / runs;
  }
  pst_simulate_options o;
  pst_simulate_options_init(&o);
  o.forward_s = times;
  o.input_s = times + n;
  o.weight_s = times + 2 * n;
  pst_simulation *result = NULL;
  pst_status st = pst_schedule_simulate(pst_pipeline_schedule(a->pipeline), &o, &result);
  if (st == PST_OK) *out_bubble = result->bubble_makespan;
  pst_simulation_destroy(result);
  free(times);
  return st;
}

/* A worker's times: the sums of its stages'. */
static pst__run_time worker_time(const pst_run *run, int worker) {
  pst__run_time t = {0};
  for (int s = 0; s < run->assembly->n_stages; s++) {
    const pst__run_time *one = &run->times[s];
    if (run->assembly->worker_of[s] != worker) continue;
    t.total_ns = one->total_ns; /* the worker's own already */
    t.wait_ns = one->wait_ns;
    t.busy_ns += one->busy_ns;
    t.forward_ns += one->forward_ns;
    t.backward_ns += one->backward_ns;
    t.input_ns += one->input_ns;
    t.weight_ns += one->weight_ns;
    t.update_ns += one->update_ns;
    t.message_bytes += one->message_bytes;
  }
  return t;
}

/* Share of the pipeline's part of a step in which the mean worker does not compute. */
static double measured_bubble(const pst_run *run) {
  double work = 0, span = 0;
  int k = run->assembly->n_workers;
  for (int w = 0; w < k; w++) {
    pst__run_time t = worker_time(run, w);
    double own = (double)(t.total_ns - t.update_ns);
    if (own > span) span = own;
    work += (double)compute_ns(&t) / k;
  }
  return span > 0 ? 1 - work / span : 0;
}

static int busiest(const pst_run *run, int *out_idlest) {
  int most = 0, least = 0;
  for (int s = 1; s < run->assembly->n_stages; s++) {
    if (compute_ns(&run->times[s]) > compute_ns(&run->times[most])) most = s;
    if (compute_ns(&run->times[s]) < compute_ns(&run->times[least])) least = s;
  }
  *out_idlest = least;
  return most;
}

static int64_t threads_of(const pst_run *run) {
  int64_t n = 0;
  for (int w = 0; w < run->assembly->n_workers; w++)
    n += run->assembly->threads[w] > 0 ? run->assembly->threads[w] : 1;
  return n;
}

static void advise(const pst_run *run, double runtime_share, FILE *out) {
  int k = run->assembly->n_workers, idlest, most = busiest(run, &idlest), said = 0;
  char text[160];
  double data = run->time_ns > 0 ? (double)run->data_wait_ns / (double)run->time_ns : 0;
  if (data > 0.02) {
    fprintf(out, "- %.0f %% of a step is waiting for data: put data.train on a faster disk\n", 100 * data);
    said++;
  }
  double a = (double)compute_ns(&run->times[most]), b = (double)compute_ns(&run->times[idlest]);
  if (k > 1 && a > 1.25 * b) {
    fprintf(out, "- stage %d computes %.1f times as long as stage %d: move layers from %d to %d\n", most,
            b > 0 ? a / b : INFINITY, idlest, most, idlest);
    said++;
  }
  pst__run_advise_microbatches(k, run->file.batch.microbatches, text, sizeof text);
  if (text[0]) {
    fprintf(out, "- %s: smaller batch.micro or larger batch.global\n", text);
    said++;
  }
  pst_cores cores;
  if (pst_cores_usable(&cores) == PST_OK && threads_of(run) > cores.n) {
    fprintf(out,
            "- the stages have %" PRId64
            " threads on %d cores, so they take turns: fewer stages or threads\n",
            threads_of(run), cores.n);
    said++;
  }
  if (runtime_share > 0.01) {
    fprintf(out,
            "- the runtime's own share is %.1f %%: ops are short (a larger batch.micro makes them longer), "
            "or other "
            "programs take the cores\n",
            100 * runtime_share);
    said++;
  }
  if (!said) fprintf(out, "- nothing stands out\n");
}

pst_status pst_run_report(pst_run *run, FILE *out) {
  if (run->time_steps == 0)
    return pst_fail(PST_INVALID, "no step was trained here, so there is nothing to report");
  double predicted = 0, steps = (double)run->time_steps, worst = 0;
  PST_TRY(predict(run, &predicted));
  fprintf(out, "%" PRId64 " steps of %.2f ms, of that %.2f ms waiting for data\n\n", run->time_steps,
          (double)run->time_ns / steps / 1e6, (double)run->data_wait_ns / steps / 1e6);
  fprintf(out, "%s    busy    wait  runtime   F ms   B ms  update ms  sent MB (a step)\n",
          run->assembly->n_stages > run->assembly->n_workers ? "worker" : "stage");
  for (int s = 0; s < run->assembly->n_workers; s++) {
    pst__run_time sum = worker_time(run, s);
    const pst__run_time *t = &sum;
    double total = t->total_ns > 0 ? (double)t->total_ns : 1;
    double own = (double)(t->total_ns - t->busy_ns - t->wait_ns) / total;
    if (own > worst) worst = own;
    fprintf(out, "%5d  %5.1f %%  %5.1f %%  %5.1f %%  %6.2f %6.2f  %9.2f  %7.2f\n", s,
            100 * (double)t->busy_ns / total, 100 * (double)t->wait_ns / total, 100 * own,
            (double)t->forward_ns / steps / 1e6, (double)(compute_ns(t) - t->forward_ns) / steps / 1e6,
            (double)t->update_ns / steps / 1e6, mb(t->message_bytes) / steps);
  }
  fprintf(out, "\nbubble    predicted %.1f %% (from the times above), measured %.1f %%\n\n", 100 * predicted,
          100 * measured_bubble(run));
  advise(run, worst, out);
  return ferror(out) ? pst_fail(PST_IO, "the report could not be written") : PST_OK;
}
