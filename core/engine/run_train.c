#include "core/engine/run_internal.h"

#include "core/base/clock.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* What one call of pst_run_train() carries along. */
typedef struct training {
  pst_run *run;
  const pst_run_events *events;
  pst_loader *loader;
  pst_learning_rate rate;
  int64_t began_ns, first_step; /* for the time to go */
  int64_t line_ns;              /* when the last progress line was written */
  int64_t line_steps, line_tokens;
  double line_loss;
  bool wrapped; /* the data's second epoch was announced */
} training;

static pst_learning_rate rate_of(const pst_runfile *f) {
  static const pst_decay decay[] = {[PST_RUN_DECAY_COSINE] = PST_DECAY_COSINE,
                                    [PST_RUN_DECAY_LINEAR] = PST_DECAY_LINEAR,
                                    [PST_RUN_DECAY_CONSTANT] = PST_DECAY_CONSTANT};
  return (pst_learning_rate){.peak = f->optimizer.peak,
                             .final = f->optimizer.final,
                             .warmup = f->optimizer.warmup,
                             .steps = f->optimizer.decay_steps,
                             .decay = decay[f->optimizer.decay]};
}

static pst_status make_loader(training *t) {
  pst_run *run = t->run;
  pst_loader_options o = {.view = &run->train,
                          .sampler = &run->sampler,
                          .vocab = run->config.vocab,
                          .sequence = run->file.data.sequence,
                          .global = run->file.batch.global,
                          .first_step = run->step,
                          .n_steps = run->file.steps - run->step};
  return pst_loader_create(&o, &t->loader);
}

/* Data that is used up begins again; said once. */
static void announce_epoch(training *t, int64_t step) {
  pst_run *run = t->run;
  if (t->wrapped) return;
  int64_t epoch = pst_sampler_epoch(&run->sampler, step, run->file.batch.global - 1);
  if (epoch == 0) return;
  t->wrapped = true;
  if (pst_sampler_epoch(&run->sampler, step, 0) > 0 && step != t->first_step) return;
  pst_log(run->logger, PST_LOG_INFO,
          "step %" PRId64 ": the training data of %" PRId64
          " windows is used up and begins again, in another order (epoch %" PRId64 ")",
          step + 1, run->sampler.n_windows, epoch + 1);
}

static void add_times(pst_run *run) {
  for (int s = 0; s < run->assembly->n_stages; s++) {
    const pst_worker_stats *a = &run->before[s], *b = &run->after[s];
    pst__run_time *t = &run->times[s];
    t->total_ns += b->total_ns - a->total_ns;
    t->busy_ns += b->busy_ns - a->busy_ns;
    t->wait_ns += b->wait_ns - a->wait_ns;
    t->forward_ns += b->forward_ns - a->forward_ns;
    t->backward_ns += b->backward_ns - a->backward_ns;
    t->input_ns += b->input_ns - a->input_ns;
    t->weight_ns += b->weight_ns - a->weight_ns;
    t->update_ns += b->update_ns - a->update_ns;
    t->message_bytes += b->message_bytes - a->message_bytes;
  }
}

static void take_stats(const pst_run *run, pst_worker_stats *out) {
  for (int s = 0; s < run->assembly->n_stages; s++) pst_pipeline_stats(run->assembly->pipeline, s, &out[s]);
}

static void tell_progress(training *t, const pst_step_result *r, double lr) {
  pst_run *run = t->run;
  t->line_loss += r->loss;
  t->line_tokens += r->tokens;
  t->line_steps++;
  if (run->step % run->file.log_every != 0 && run->step != run->file.steps) return;
  int64_t now = pst_clock_ns();
  double line_s = (double)(now - t->line_ns) / 1e9, all_s = (double)(now - t->began_ns) / 1e9;
  pst_run_progress p = {.step = run->step,
                        .steps = run->file.steps,
                        .loss = t->line_loss / (double)t->line_steps,
                        .gradient_norm = r->gradient_norm,
                        .lr = lr,
                        .tokens_per_s = line_s > 0 ? (double)t->line_tokens / line_s : 0,
                        .eta_s = all_s / (double)(run->step - t->first_step) *
                                 (double)(run->file.steps - run->step)};
  t->line_ns = now;
  t->line_loss = 0;
  t->line_steps = t->line_tokens = 0;
  if (t->events && t->events->progress) t->events->progress(t->events->user, &p);
}

static pst_status one_step(training *t) {
  pst_run *run = t->run;
  pst_loader_batch batch;
  pst_step_result r;
  double lr = pst_learning_rate_at(&t->rate, run->step);
  int64_t begin = pst_clock_ns();
  announce_epoch(t, run->step);
  PST_TRY(pst_loader_take(t->loader, 0, run->step, run->file.limits.op_ns, &batch));
  int64_t wait_ns = pst_clock_ns() - begin;
  take_stats(run, run->before);
  pst_batch b = {.tokens = batch.tokens, .targets = batch.targets, .sequences = run->file.batch.global};
  PST_TRY(pst_pipeline_step(run->assembly->pipeline, &b, (uint64_t)run->file.seed, run->step, lr, &r));
  PST_TRY(pst_loader_release(t->loader, 0, run->step));
  if (!isfinite(r.loss))
    return pst_fail(PST_NONFINITE, "step %" PRId64 ": the loss is %g", run->step, r.loss);
  take_stats(run, run->after);
  add_times(run);
  run->step++;
  run->tokens += (uint64_t)r.tokens;
  run->time_steps++;
  run->time_ns += pst_clock_ns() - begin;
  run->data_wait_ns += wait_ns;
  PST_TRY(pst__run_log_step(run, &r, lr, wait_ns));
  tell_progress(t, &r, lr);
  return PST_OK;
}

static bool is_due(const pst_run *run, int64_t every) {
  return run->step == run->file.steps || (every > 0 && run->step % every == 0);
}

static pst_status validate(training *t) {
  pst_run *run = t->run;
  double loss;
  int64_t tokens, begin = pst_clock_ns();
  PST_TRY(pst__run_validate(run, run->file.eval.sequences, &loss, &tokens));
  run->last_loss = loss;
  run->last_loss_step = run->step;
  if (run->best_step < 0 || loss < run->best_loss) {
    run->best_loss = loss;
    run->best_step = run->step;
  }
  if (t->events && t->events->evaluated) t->events->evaluated(t->events->user, run->step, loss);
  t->line_ns += pst_clock_ns() - begin; /* not the training's time */
  char more[128];
  snprintf(more, sizeof more, ", \"loss\": %.17g, \"tokens\": %" PRId64 ", \"best_step\": %" PRId64, loss,
           tokens, run->best_step);
  return pst__run_log_event(run, "eval", more);
}

static pst_status stop(training *t) {
  pst_run *run = t->run;
  if (run->step > 0 && run->saved_step != run->step) PST_TRY(pst__run_save(run, t->events));
  PST_TRY(pst__run_log_event(run, "stop", ""));
  atomic_store(&run->stop, 0);
  return pst_fail(PST_STOPPED, "stopped after step %" PRId64 " of %" PRId64 "; the same run continues there",
                  run->step, run->file.steps);
}

static pst_status loop(training *t) {
  pst_run *run = t->run;
  const pst_runfile *f = &run->file;
  while (run->step < f->steps) {
    if (atomic_load(&run->stop)) return stop(t);
    PST_TRY(one_step(t));
    if (atomic_load(&run->stop) && run->step < f->steps) return stop(t);
    if (run->has_valid && is_due(run, f->eval.every)) PST_TRY(validate(t));
    if (f->sample.every > 0 && run->step % f->sample.every == 0) {
      int64_t begin = pst_clock_ns();
      PST_TRY(pst__run_sample(run, t->events));
      t->line_ns += pst_clock_ns() - begin;
    }
    if (is_due(run, f->checkpoint.every)) PST_TRY(pst__run_save(run, t->events));
  }
  return PST_OK;
}

/* What later steps need is taken now, so that none of them allocates. */
static pst_status prepare(training *t) {
  pst_run *run = t->run;
  t->rate = rate_of(&run->file);
  t->first_step = run->step;
  memset(run->times, 0, (size_t)run->assembly->n_stages * sizeof *run->times);
  run->time_steps = run->time_ns = run->data_wait_ns = 0;
  if (run->has_valid) PST_TRY(pst__run_eval_room(run));
  PST_TRY(pst_checkpoint_writable(run->checkpoints)); /* not only when the first one is due */
  PST_TRY(pst__run_log_open(run));
  if (run->step > 0) PST_TRY(pst__run_log_event(run, "resume", ""));
  PST_TRY(make_loader(t));
  t->began_ns = t->line_ns = pst_clock_ns();
  return PST_OK;
}

pst_status pst_run_train(pst_run *run, const pst_run_events *events) {
  if (run->trained)
    return pst_fail(PST_INVALID, "%s was opened for what training left; training needs the run file",
                    run->directory);
  training t = {.run = run, .events = events};
  pst_status st = PST_OK;
  PST_GOTO(st, pst__run_claim(run), done);
  PST_GOTO(st, pst__run_resume(run, events), done);
  if (run->step >= run->file.steps) {
    pst_log(run->logger, PST_LOG_INFO, "%s is at step %" PRId64 " of %" PRId64 ": nothing is left to train",
            run->directory, run->step, run->file.steps);
    goto done;
  }
  PST_GOTO(st, prepare(&t), done);
  st = loop(&t);
done:
  pst_loader_destroy(t.loader);
  pst__run_log_close(run);
  pst__run_unclaim(run);
  return st;
}
