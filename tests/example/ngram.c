/* A model of one's own through Penstock's C interface: an n-gram model after Y. Bengio et al., "A neural
 * probabilistic language model", JMLR 3 (2003), in two stages, learning to add.
 *
 *   cc ngram.c $(pkg-config --static --cflags --libs penstock) && ./a.out model.safetensors
 *
 * The task: the next symbol is the sum, modulo 16, of the two before it. A token is a window of two symbols,
 * the target is the window one further: an embedding of windows, two gelu layers, a head. */
#include <penstock.h>

#include <math.h>
#include <stdlib.h>

enum { SYMBOLS = 16, WINDOWS = SYMBOLS * SYMBOLS, WIDTH = 64, STEPS = 60 };

/* Recorded once; each unit is a place where the pipeline may cut. */
static void build(pst_graph *g, void *user) {
  const pst_init normal = {PST_INIT_NORMAL, 0.125f}, zeros = {PST_INIT_ZEROS, 0};
  pst_graph_unit(g, "embed");
  pst_value table = pst_param(g, "windows", 2, (int64_t[]){WINDOWS, WIDTH}, normal);
  pst_value x = pst_embedding(g, pst_graph_tokens(g), table, PST_NO_VALUE);
  const char *names[2][3] = {{"layer.0", "up.0", "down.0"}, {"layer.1", "up.1", "down.1"}};
  for (int i = 0; i < 2; i++) {
    pst_graph_unit(g, names[i][0]);
    pst_value up = pst_param(g, names[i][1], 2, (int64_t[]){2 * WIDTH, WIDTH}, normal);
    pst_value down = pst_param(g, names[i][2], 2, (int64_t[]){WIDTH, 2 * WIDTH}, normal);
    pst_value h = pst_gelu(g, pst_linear(g, x, up, PST_NO_VALUE, PST_NO_VALUE, false), false);
    x = pst_linear(g, h, down, PST_NO_VALUE, x, false); /* + x */
  }
  pst_graph_unit(g, "head");
  pst_value head = pst_param(g, "head", 2, (int64_t[]){WINDOWS, WIDTH}, zeros);
  pst_graph_loss(g, pst_linear_cross_entropy(g, x, head, pst_graph_targets(g), false));
}

/* Sequence `sequence` of step `step`: from a number of its own, so any thread may ask in any order. */
static pst_status fill(void *user, int64_t step, int64_t sequence, int64_t length, int32_t *tokens,
                       int32_t *targets) {
  uint32_t state = (uint32_t)(step * 1009 + sequence) * 2654435761u;
  for (int64_t i = 0; i < length; i++) {
    state = state * 1664525u + 1013904223u;
    const int32_t older = (int32_t)(state >> 24) / SYMBOLS, newer = (int32_t)(state >> 24) % SYMBOLS;
    tokens[i] = older * SYMBOLS + newer;
    targets[i] = newer * SYMBOLS + (older + newer) % SYMBOLS;
  }
  return PST_OK;
}

int main(int argc, char **argv) {
  pst_trainer_options o;
  pst_trainer_options_init(&o);
  o.build = build, o.fill = fill;
  o.sequence = 64, o.micro = 4, o.microbatches = 8, o.n_stages = 2, o.lr = 2e-3;
  pst_trainer *trainer = NULL;
  pst_trainer_result now = {0};
  float *gradient = NULL;
  double first = 0, norm = 0;
  int head, status = EXIT_FAILURE;
  if (pst_trainer_create(&o, &trainer) || pst_trainer_find(trainer, "head", &head)) goto done;
  if (!(gradient = malloc(sizeof(float) * WINDOWS * WIDTH))) goto done;
  for (int i = 0; i < STEPS; i++) {
    /* A step in two halves; between them gradients can be looked at. */
    if (pst_trainer_gradients(trainer, &now) || pst_trainer_gradient(trainer, head, gradient)) goto done;
    if (i == 0) first = now.loss;
    norm = 0;
    for (int j = 0; j < WINDOWS * WIDTH; j++) norm += gradient[j] * gradient[j];
    if (pst_trainer_apply(trainer, &now)) goto done;
    if (i % 10 == 0) printf("step %2d  loss %.4f  head's gradient %.4f\n", i, now.loss, sqrt(norm));
  }
  if (argc > 1 && pst_trainer_save(trainer, argv[1])) goto done;
  printf("loss %.4f -> %.4f\n", first, now.loss);
  if (fabs(first - log(WINDOWS)) < 1e-4 && now.loss < first / 2 && norm > 0) status = EXIT_SUCCESS;
done:
  if (pst_error()[0]) fprintf(stderr, "ngram: %s\n", pst_error());
  pst_trainer_destroy(trainer);
  free(gradient);
  return status;
}
