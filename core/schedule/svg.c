/* The predicted step as a picture: a row for each worker, time to the right. */
#include <inttypes.h>
#include <stdlib.h>

#include "core/base/file.h"
#include "core/schedule/describe.h"

enum { LEFT = 64, TOP = 58, ROW = 26, GAP = 6, WIDTH = 1400, ACTION_LIMIT = 200000, DIGIT = 7 };

/* Colours of Okabe and Ito (2008), "Color Universal Design": told apart by colour-blind readers. The letter
 * and the position in the legend say the same. */
static const struct {
  const char *colour, *name;
} kinds[] = {
    [PST_ACTION_F] = {"#56b4e9", "F forward"},
    [PST_ACTION_B] = {"#e69f00", "B backward"},
    [PST_ACTION_I] = {"#f0e442", "I input gradient"},
    [PST_ACTION_W] = {"#009e73", "W weight gradient"},
};

static void draw_action(FILE *out, pst_action a, int chunk, double x, double width, int y) {
  int digits = 1;
  for (uint32_t m = a.microbatch; m > 9; m /= 10) digits++;
  fprintf(out, "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\"/>\n", x, y, width, ROW,
          kinds[a.kind].colour);
  /* later chunks have a bar at the foot, one step higher for each */
  if (chunk > 0)
    fprintf(out,
            "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"#000\" fill-opacity=\"0.45\" "
            "stroke=\"none\"/>\n",
            x, y + ROW - 3 * (chunk < 6 ? chunk : 6), width, 3 * (chunk < 6 ? chunk : 6));
  if (width < 4 + DIGIT * digits) return;
  fprintf(out, "<text x=\"%.2f\" y=\"%d\">%" PRIu32 "</text>\n", x + width / 2, y + 15, a.microbatch);
}

static void draw_head(FILE *out, const pst_prediction_options *options, const pst__prediction *p,
                      const pst_simulation *r) {
  const pst_schedule *s = p->schedule;
  int height = TOP + s->workers * (ROW + GAP) + 36;
  fprintf(out,
          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
          "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
          "<style>text{stroke:none}</style>\n",
          LEFT + WIDTH + 16, height);
  fprintf(out, "<text x=\"8\" y=\"20\" font-size=\"15\">");
  for (const char *c = pst__prediction_name(options); *c != '\0'; c++)
    fprintf(out, *c == '<' ? "&lt;" : *c == '&' ? "&amp;" : "%c", *c);
  fprintf(out, ": K = %d, V = %d, M = %" PRId64 "; makespan %.6g, bubble %.1f %%</text>\n", s->workers,
          s->chunks, s->microbatches, r->makespan_s, 100 * r->bubble_makespan);
  double x = 8;
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++, x += 150)
    fprintf(
        out,
        "<rect x=\"%.0f\" y=\"30\" width=\"14\" height=\"14\" fill=\"%s\" stroke=\"#000\"/><text x=\"%.0f\" "
        "y=\"42\">%s</text>\n",
        x, kinds[i].colour, x + 20, kinds[i].name);
  fprintf(out, "<text x=\"%.0f\" y=\"42\">%s</text>\n", x,
          s->chunks > 1 ? "bar at the foot: later chunk" : "number: microbatch");
}

static void draw_axis(FILE *out, const pst__prediction *p, double makespan) {
  int foot = TOP + p->schedule->workers * (ROW + GAP);
  for (int i = 0; i <= 10; i++) {
    double x = LEFT + WIDTH * i / 10.0;
    fprintf(out, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"#bbb\"/>\n", x, TOP - 4, x,
            foot + 4);
    fprintf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.4g</text>\n", x, foot + 18,
            makespan * i / 10);
  }
}

static void draw(FILE *out, const pst_prediction_options *options, const pst__prediction *p,
                 const pst_action_span *spans, const pst_simulation *r) {
  const pst_schedule *s = p->schedule;
  double scale = r->makespan_s > 0 ? WIDTH / r->makespan_s : 0;
  draw_head(out, options, p, r);
  draw_axis(out, p, r->makespan_s);
  for (int w = 0; w < s->workers; w++) {
    int y = TOP + w * (ROW + GAP);
    fprintf(out, "<text x=\"8\" y=\"%d\">worker %d</text>\n", y + 17, w);
    fprintf(out,
            "<g stroke=\"#333\" stroke-width=\"0.5\">\n<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" "
            "fill=\"#f2f2f2\"/>\n</g>\n<g stroke=\"#333\" stroke-width=\"0.5\" text-anchor=\"middle\">\n",
            LEFT, y, WIDTH, ROW);
    for (size_t i = 0; i < s->lists[w].count; i++, spans++) {
      pst_action a = s->lists[w].items[i];
      int chunk = 0;
      for (int lower = 0; lower < a.chunk; lower++) chunk += s->worker_of[lower] == w;
      draw_action(out, a, chunk, LEFT + spans->start_s * scale, (spans->end_s - spans->start_s) * scale, y);
    }
    fprintf(out, "</g>\n");
  }
  fprintf(out, "</svg>\n");
}

pst_status pst_schedule_draw(const pst_prediction_options *options, const char *path) {
  pst__prediction p;
  pst_simulation *r = NULL;
  pst_action_span *spans = NULL;
  char *text = NULL;
  size_t n = 0, total;
  PST_TRY(pst__prediction_make(options, &p));
  pst_status st = PST_OK;
  total = pst_schedule_total(p.schedule);
  if (total > ACTION_LIMIT) {
    st = pst_fail(PST_INVALID, "schedule: seen %zu actions to draw, wanted %d or fewer", total, ACTION_LIMIT);
    goto done;
  }
  spans = calloc(total + 1, sizeof *spans);
  if (spans == NULL) {
    st = pst_fail(PST_NO_MEMORY, "schedule: no memory to draw %zu actions", total);
    goto done;
  }
  p.clock.spans = spans;
  PST_GOTO(st, pst_schedule_simulate(p.schedule, &p.clock, &r), done);
  FILE *out = open_memstream(&text, &n);
  if (out == NULL) {
    st = pst_fail(PST_NO_MEMORY, "schedule: no memory to draw %zu actions", total);
    goto done;
  }
  draw(out, options, &p, spans, r);
  bool failed = ferror(out) != 0;
  if (fclose(out) != 0 || failed)
    st = pst_fail(PST_NO_MEMORY, "schedule: no memory to draw %zu actions", total);
  else
    st = pst_file_write(path, text, n);

done:
  free(text);
  free(spans);
  pst_simulation_destroy(r);
  pst__prediction_clear(&p);
  return st;
}
