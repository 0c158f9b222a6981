#include "core/schedule/describe.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/schedule/check.h"
#include "core/schedule/csv.h"
#include "core/schedule/families.h"

void pst_prediction_options_init(pst_prediction_options *options) {
  *options = (pst_prediction_options){
      .schedule = "1f1b", .workers = 4, .microbatches = 8, .forward = 1, .input = 1, .weight = 1};
}

/* The file to read, or NULL. */
static const char *file_of(const pst_prediction_options *options) {
  size_t n = strlen(options->schedule);
  if (options->file != NULL) return options->file;
  return n > 4 && strcmp(options->schedule + n - 4, ".csv") == 0 ? options->schedule : NULL;
}

const char *pst__prediction_name(const pst_prediction_options *options) {
  const char *file = file_of(options);
  return file != NULL ? file : options->schedule;
}

/* V where the options leave it open. */
static int chunks_of(const pst_prediction_options *options) {
  size_t n = 0;
  const pst_schedule_family *rows = pst_schedule_families(&n);
  if (options->chunks > 0) return options->chunks;
  for (size_t i = 0; i < n; i++)
    if (strcmp(rows[i].name, options->schedule) == 0 && rows[i].chunks > 0) return rows[i].chunks;
  return strcmp(options->schedule, "forward-only") == 0 ? 1 : 2;
}

static pst_status set_times(pst__prediction *p, const pst_prediction_options *options, int workers,
                            int chunks) {
  int64_t stages = (int64_t)workers * chunks;
  if (workers < 1 || chunks < 1 || stages > UINT16_MAX)
    return pst_fail(PST_INVALID, "schedule: seen %d workers with %d chunks, wanted 1 to %d stages", workers,
                    chunks, UINT16_MAX);
  const double given[3] = {options->forward, options->input, options->weight};
  free(p->times);
  free(p->limits);
  p->limits = NULL;
  p->times = malloc(3 * (size_t)stages * sizeof *p->times);
  if (options->memory > 0) p->limits = malloc((size_t)workers * sizeof *p->limits);
  if (p->times == NULL || (options->memory > 0 && p->limits == NULL))
    return pst_fail(PST_NO_MEMORY, "schedule: no memory for the times of %lld stages", (long long)stages);
  for (int64_t i = 0; i < 3 * stages; i++) p->times[i] = given[i / stages] / chunks;
  for (int w = 0; p->limits != NULL && w < workers; w++) p->limits[w] = options->memory * chunks;
  pst_simulate_options_init(&p->clock);
  p->clock.forward_s = p->times;
  p->clock.input_s = p->times + stages;
  p->clock.weight_s = p->times + 2 * stages;
  p->clock.latency_s = options->latency;
  p->clock.early_send = !options->no_early_send;
  return PST_OK;
}

static pst_status read_file(const pst_prediction_options *options, pst__prediction *p) {
  pst_schedule *file = NULL;
  PST_TRY(pst_schedule_read_csv(file_of(options), &file, &p->renumbered));
  if (!file->lowered) {
    p->schedule = file;
    return PST_OK;
  }
  p->given = file;
  return pst_schedule_strip(file, &p->schedule);
}

pst_status pst__prediction_make(const pst_prediction_options *options, pst__prediction *out) {
  pst__prediction p = {0};
  pst_status st = PST_OK;
  if (file_of(options) != NULL) {
    PST_GOTO(st, read_file(options, &p), failed);
    PST_GOTO(st, set_times(&p, options, p.schedule->workers, p.schedule->chunks), failed);
  } else {
    int chunks = chunks_of(options);
    PST_GOTO(st, set_times(&p, options, options->workers, chunks), failed);
    pst_schedule_options make;
    pst_schedule_options_init(&make);
    make.name = options->schedule;
    make.workers = options->workers;
    make.chunks = chunks;
    make.microbatches = options->microbatches;
    make.extra_forwards = options->extra_forwards;
    make.forward_s = p.clock.forward_s;
    make.input_s = p.clock.input_s;
    make.weight_s = p.clock.weight_s;
    make.latency_s = options->latency;
    make.no_early_send = options->no_early_send;
    make.memory_bytes = p.limits;
    PST_GOTO(st, pst_schedule_generate(&make, &p.schedule), failed);
  }
  *out = p;
  return PST_OK;

failed:
  pst__prediction_clear(&p);
  return st;
}

void pst__prediction_clear(pst__prediction *p) {
  pst_schedule_destroy(p->schedule);
  pst_schedule_destroy(p->given);
  free(p->times);
  free(p->limits);
  *p = (pst__prediction){0};
}

static void print_sizes(const pst_prediction_options *options, const pst__prediction *p, FILE *out) {
  const pst_schedule *s = p->schedule;
  fprintf(out, "%s, K = %d worker%s, V = %d chunk%s each, M = %" PRId64 " microbatch%s",
          pst__prediction_name(options), s->workers, s->workers == 1 ? "" : "s", s->chunks,
          s->chunks == 1 ? "" : "s", s->microbatches, s->microbatches == 1 ? "" : "es");
}

static void print_note(const pst__prediction *p, FILE *out) {
  if (p->renumbered)
    fprintf(
        out,
        "note       backwards of the file run in another order than ascending; they got ascending numbers,\n"
        "           so that gradients add up as in one process\n");
}

pst_status pst_schedule_predict(const pst_prediction_options *options, FILE *out) {
  pst__prediction p;
  pst_simulation *r = NULL;
  PST_TRY(pst__prediction_make(options, &p));
  pst_status st = PST_OK;
  PST_GOTO(st, pst_schedule_simulate(p.schedule, &p.clock, &r), done);
  double v = p.schedule->chunks;
  fprintf(out, "schedule   ");
  print_sizes(options, &p, out);
  fprintf(out, "\ntimes      F %g, I %g, W %g; latency %g; %s\n", options->forward, options->input,
          options->weight, options->latency,
          options->no_early_send ? "gradients leave behind a full backward"
                                 : "gradients leave before weight gradients are formed");
  print_note(&p, out);
  fprintf(out, "makespan   %.6g\n", r->makespan_s);
  fprintf(out, "bubble     %5.1f %%  idle share of the makespan: 1 - mean work / makespan (GPipe, Hanayo)\n",
          100 * r->bubble_makespan);
  fprintf(out, "           %5.1f %%  beyond the slowest worker's own work: 1 - most work / makespan\n",
          100 * r->bubble_bottleneck);
  fprintf(out, "           %5.1f %%  idle to work: mean idle / mean work (Megatron-LM, PyTorch)\n",
          100 * r->bubble_relative);
  fprintf(out,
          "           %5.1f %%  within the workers' own spans: 1 - most work / longest span (Zero Bubble)\n",
          100 * r->bubble_span);
  fprintf(out, "messages   %" PRId64 "\n\n", r->messages);
  fprintf(out, "worker       busy       idle  idle in span  in flight to I     to W  messages sent\n");
  for (int w = 0; w < r->n_workers; w++) {
    const pst_worker_simulation *x = &r->workers[w];
    fprintf(out, "%6d %10.6g %10.6g    %10.6g      %10.6g %8.6g     %10" PRId64 "\n", w, x->busy_s, x->idle_s,
            x->idle_in_span_s, (double)x->peak_stash / v, (double)x->peak_defer / v, x->sends);
  }

done:
  pst_simulation_destroy(r);
  pst__prediction_clear(&p);
  return st;
}

pst_status pst_schedule_prove(const pst_prediction_options *options, FILE *out) {
  pst__prediction p;
  pst_schedule *full = NULL;
  pst_simulation *r = NULL;
  PST_TRY(pst__prediction_make(options, &p));
  pst_status st = PST_OK;
  PST_GOTO(st, pst_schedule_check(p.schedule, NULL, NULL), done);
  if (p.given == NULL) PST_GOTO(st, pst_schedule_lower(p.schedule, NULL, NULL, &full), done);
  const pst_schedule *lists = p.given != NULL ? p.given : full;
  PST_GOTO(st, pst_schedule_check(lists, NULL, NULL), done);
  PST_GOTO(st, pst_schedule_simulate(p.schedule, &p.clock, &r), done);
  int64_t most = 0;
  for (int w = 0; w < r->n_workers; w++)
    if (r->workers[w].peak_defer > most) most = r->workers[w].peak_defer;
  fprintf(out, "proved: ");
  print_sizes(options, &p, out);
  fprintf(
      out,
      ": %zu actions, %zu with %s messages; every microbatch once and in order on every stage, no deadlock "
      "even if no send is buffered, at most %g microbatches in flight on a worker\n",
      pst_schedule_total(p.schedule), pst_schedule_total(lists), p.given != NULL ? "its own" : "the",
      (double)most / p.schedule->chunks);
  print_note(&p, out);

done:
  pst_simulation_destroy(r);
  pst_schedule_destroy(full);
  pst__prediction_clear(&p);
  return st;
}

static pst_status compare_row(const pst_prediction_options *options, FILE *out) {
  pst__prediction p;
  pst_simulation *r = NULL;
  pst_status st = pst__prediction_make(options, &p);
  if (st == PST_INVALID) {
    fprintf(out, "%-15s %3s %s\n", options->schedule, "-", pst_error());
    return PST_OK;
  }
  if (st != PST_OK) return st;
  st = pst_schedule_simulate(p.schedule, &p.clock, &r);
  if (st == PST_OK) {
    int64_t stash = 0, defer = 0;
    for (int w = 0; w < r->n_workers; w++) {
      if (r->workers[w].peak_stash > stash) stash = r->workers[w].peak_stash;
      if (r->workers[w].peak_defer > defer) defer = r->workers[w].peak_defer;
    }
    double v = p.schedule->chunks;
    fprintf(out, "%-15s %3d %10.6g %7.1f %% %7.1f %% %7.1f %% %10.4g %10.4g %10" PRId64 "\n",
            options->schedule, p.schedule->chunks, r->makespan_s, 100 * r->bubble_makespan,
            100 * r->bubble_relative, 100 * r->bubble_span, (double)stash / v, (double)defer / v,
            r->messages);
  }
  pst_simulation_destroy(r);
  pst__prediction_clear(&p);
  return st;
}

pst_status pst_schedule_compare(const pst_prediction_options *options, FILE *out) {
  size_t n = 0;
  const pst_schedule_family *rows = pst_schedule_families(&n);
  fprintf(out, "K = %d workers, M = %" PRId64 " microbatches; F %g, I %g, W %g; latency %g\n\n",
          options->workers, options->microbatches, options->forward, options->input, options->weight,
          options->latency);
  fprintf(out, "schedule          V   makespan  of makespan  to work  in span    in flight to I      to W   "
               "messages\n");
  for (size_t i = 0; i < n; i++) {
    pst_prediction_options row = *options;
    row.schedule = rows[i].name;
    row.file = NULL;
    if (rows[i].chunks > 0) row.chunks = rows[i].chunks;
    if (!rows[i].takes_extra) row.extra_forwards = 0;
    PST_TRY(compare_row(&row, out));
  }
  return PST_OK;
}

pst_status pst_schedule_export(const pst_prediction_options *options, bool messages, const char *path) {
  pst__prediction p;
  PST_TRY(pst__prediction_make(options, &p));
  pst_status st = pst_schedule_check(p.schedule, NULL, NULL);
  if (st == PST_OK)
    st = pst_schedule_write_csv(p.schedule, messages ? PST_CSV_MESSAGES : PST_CSV_COMPUTE, path);
  pst__prediction_clear(&p);
  return st;
}
