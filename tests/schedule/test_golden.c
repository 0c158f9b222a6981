/* The families against published orders, formulas and the values of an independent simulator.
 *
 * Orders: Megatron-LM (interleaved), PyTorch (zb-h1 as interleaved zero-bubble, zb-v), the zero-bubble
 * authors' generators (v-half, v-min at K = 3 and 4). A worker's F, I, W are divided among its chunks; full
 * backwards send at their end. */
#include "tests/schedule/fixture.h"

/* K = 4, M = 8; F = 1, W = 1. Peaks are (chunk, microbatch) pairs. */
typedef struct table_row {
  const char *name;
  int chunks;
  double input_s, makespan_s, idle_in_span_s[4];
  int64_t peak_defer[4], peak_stash[4], sends[4];
  double slow_link_s; /* makespan with a latency of 1/4 */
} table_row;

static const table_row table[] = {
    {"gpipe", 1, 1, 33, {9, 6, 3, 0}, {8, 8, 8, 8}, {8, 8, 8, 8}, {8, 16, 16, 8}, 34.5},
    {"1f1b", 1, 1, 33, {9, 6, 3, 0}, {4, 3, 2, 1}, {4, 3, 2, 1}, {8, 16, 16, 8}, 37},
    {"interleaved", 2, 1, 28.5, {4.5, 3, 1.5, 0}, {11, 9, 7, 5}, {11, 9, 7, 5}, {24, 32, 32, 24}, 32},
    {"looped-bfs", 2, 1, 28.5, {4.5, 3, 1.5, 0}, {16, 16, 16, 16}, {16, 16, 16, 16}, {24, 32, 32, 24}, 30},
    {"zb-h1", 1, 1, 27, {3, 2, 1, 0}, {4, 4, 4, 4}, {4, 3, 2, 1}, {8, 16, 16, 8}, 30},
    {"zb-h2", 1, 1, 27, {0, 0, 0, 0}, {7, 7, 7, 7}, {7, 5, 3, 1}, {8, 16, 16, 8}, 27.75},
    {"interleaved-zb", 2, 1, 25.5, {1.5, 1, 0.5, 0}, {8, 8, 8, 8}, {8, 7, 6, 5}, {24, 32, 32, 24}, 29.5},
    {"zb-v", 2, 1, 25.5, {0, 0, 0, 0}, {8, 8, 8, 8}, {8, 8, 8, 8}, {16, 32, 32, 16}, 28.75},
    {"v-half", 2, 1, 26.5, {2.5, 1.5, 1, 1}, {6, 6, 6, 6}, {6, 6, 6, 6}, {16, 32, 32, 16}, 34},
    {"v-min", 2, 1, 29.5, {5.5, 4.5, 3.5, 3}, {4, 4, 4, 4}, {4, 4, 4, 4}, {16, 32, 32, 16}, 39},
    {"dualpipe-v", 2, 1, 27, {3, 2.5, 2, 1.5}, {9, 9, 9, 9}, {9, 9, 9, 9}, {16, 32, 32, 16}, 32},
    {"gpipe", 1, 2, 44, {12, 8, 4, 0}, {8, 8, 8, 8}, {8, 8, 8, 8}, {8, 16, 16, 8}, 45.5},
    {"1f1b", 1, 2, 44, {12, 8, 4, 0}, {4, 3, 2, 1}, {4, 3, 2, 1}, {8, 16, 16, 8}, 48},
    {"interleaved", 2, 2, 38, {6, 4, 2, 0}, {11, 9, 7, 5}, {11, 9, 7, 5}, {24, 32, 32, 24}, 41.5},
    {"looped-bfs", 2, 2, 38, {6, 4, 2, 0}, {16, 16, 16, 16}, {16, 16, 16, 16}, {24, 32, 32, 24}, 39.5},
    {"zb-h1", 1, 2, 38, {6, 4, 2, 0}, {4, 4, 4, 4}, {4, 3, 2, 1}, {8, 16, 16, 8}, 41},
    {"zb-h2", 1, 2, 35, {3, 2, 1, 0}, {7, 7, 7, 7}, {7, 5, 3, 1}, {8, 16, 16, 8}, 36.5},
    {"interleaved-zb", 2, 2, 35, {3, 2, 1, 0}, {8, 8, 8, 8}, {8, 7, 6, 5}, {24, 32, 32, 24}, 39},
    {"zb-v", 2, 2, 35, {3, 2.5, 2, 1.5}, {8, 8, 8, 8}, {8, 8, 8, 8}, {16, 32, 32, 16}, 39},
    {"v-half", 2, 2, 43.5, {11.5, 10, 9, 8.5}, {6, 6, 6, 6}, {6, 6, 6, 6}, {16, 32, 32, 16}, 50.5},
    {"v-min", 2, 2, 52.5, {20.5, 19, 17.5, 16.5}, {4, 4, 4, 4}, {4, 4, 4, 4}, {16, 32, 32, 16}, 62},
    {"dualpipe-v", 2, 2, 37.5, {5.5, 4.5, 3.5, 2.5}, {9, 9, 9, 9}, {9, 9, 9, 9}, {16, 32, 32, 16}, 43},
};

/* F = I = W = 1: makespan and the highest peak. */
typedef struct size_row {
  const char *name;
  int workers, chunks;
  int64_t microbatches;
  double makespan_s;
  int64_t peak;
} size_row;

static const size_row sizes[] = {
    {"gpipe", 2, 1, 2, 9, 2},
    {"gpipe", 2, 1, 3, 12, 3},
    {"gpipe", 2, 1, 4, 15, 4},
    {"gpipe", 2, 1, 5, 18, 5},
    {"gpipe", 2, 1, 6, 21, 6},
    {"gpipe", 2, 1, 7, 24, 7},
    {"gpipe", 2, 1, 8, 27, 8},
    {"1f1b", 2, 1, 2, 9, 2},
    {"1f1b", 2, 1, 3, 12, 2},
    {"1f1b", 2, 1, 4, 15, 2},
    {"1f1b", 2, 1, 5, 18, 2},
    {"1f1b", 2, 1, 6, 21, 2},
    {"1f1b", 2, 1, 7, 24, 2},
    {"1f1b", 2, 1, 8, 27, 2},
    {"interleaved", 2, 2, 2, 7.5, 4},
    {"interleaved", 2, 2, 3, 10.5, 6},
    {"interleaved", 2, 2, 4, 13.5, 5},
    {"interleaved", 2, 2, 6, 19.5, 5},
    {"interleaved", 2, 2, 8, 25.5, 5},
    {"looped-bfs", 2, 2, 2, 7.5, 4},
    {"looped-bfs", 2, 2, 3, 10.5, 6},
    {"looped-bfs", 2, 2, 4, 13.5, 8},
    {"looped-bfs", 2, 2, 5, 16.5, 10},
    {"looped-bfs", 2, 2, 6, 19.5, 12},
    {"looped-bfs", 2, 2, 7, 22.5, 14},
    {"looped-bfs", 2, 2, 8, 25.5, 16},
    {"zb-h1", 2, 1, 2, 7, 2},
    {"zb-h1", 2, 1, 3, 10, 2},
    {"zb-h1", 2, 1, 4, 13, 2},
    {"zb-h1", 2, 1, 5, 16, 2},
    {"zb-h1", 2, 1, 6, 19, 2},
    {"zb-h1", 2, 1, 7, 22, 2},
    {"zb-h1", 2, 1, 8, 25, 2},
    {"zb-h2", 2, 1, 2, 7, 2},
    {"zb-h2", 2, 1, 3, 10, 3},
    {"zb-h2", 2, 1, 4, 13, 3},
    {"zb-h2", 2, 1, 5, 16, 3},
    {"zb-h2", 2, 1, 6, 19, 3},
    {"zb-h2", 2, 1, 7, 22, 3},
    {"zb-h2", 2, 1, 8, 25, 3},
    {"interleaved-zb", 2, 2, 2, 6.5, 4},
    {"interleaved-zb", 2, 2, 3, 9.5, 5},
    {"interleaved-zb", 2, 2, 4, 12.5, 4},
    {"interleaved-zb", 2, 2, 6, 18.5, 4},
    {"interleaved-zb", 2, 2, 8, 24.5, 4},
    {"zb-v", 2, 2, 2, 7, 4},
    {"zb-v", 2, 2, 3, 9.5, 4},
    {"zb-v", 2, 2, 4, 12.5, 4},
    {"zb-v", 2, 2, 5, 15.5, 4},
    {"zb-v", 2, 2, 6, 18.5, 4},
    {"zb-v", 2, 2, 7, 21.5, 4},
    {"zb-v", 2, 2, 8, 24.5, 4},
    {"v-half", 2, 2, 2, 6.5, 4},
    {"v-half", 2, 2, 3, 9.5, 4},
    {"v-half", 2, 2, 4, 12.5, 4},
    {"v-half", 2, 2, 5, 15.5, 4},
    {"v-half", 2, 2, 6, 18.5, 4},
    {"v-half", 2, 2, 7, 21.5, 4},
    {"v-half", 2, 2, 8, 24.5, 4},
    {"v-min", 2, 2, 2, 6.5, 4},
    {"v-min", 2, 2, 3, 9.5, 4},
    {"v-min", 2, 2, 4, 12.5, 4},
    {"v-min", 2, 2, 5, 15.5, 4},
    {"v-min", 2, 2, 6, 18.5, 4},
    {"v-min", 2, 2, 7, 21.5, 4},
    {"v-min", 2, 2, 8, 24.5, 4},
    {"dualpipe-v", 2, 2, 4, 13, 5},
    {"dualpipe-v", 2, 2, 5, 16, 5},
    {"dualpipe-v", 2, 2, 6, 19, 5},
    {"dualpipe-v", 2, 2, 7, 22, 5},
    {"dualpipe-v", 2, 2, 8, 25, 5},
    {"gpipe", 3, 1, 3, 15, 3},
    {"gpipe", 3, 1, 4, 18, 4},
    {"gpipe", 3, 1, 5, 21, 5},
    {"gpipe", 3, 1, 6, 24, 6},
    {"gpipe", 3, 1, 7, 27, 7},
    {"gpipe", 3, 1, 8, 30, 8},
    {"1f1b", 3, 1, 3, 15, 3},
    {"1f1b", 3, 1, 4, 18, 3},
    {"1f1b", 3, 1, 5, 21, 3},
    {"1f1b", 3, 1, 6, 24, 3},
    {"1f1b", 3, 1, 7, 27, 3},
    {"1f1b", 3, 1, 8, 30, 3},
    {"interleaved", 3, 2, 3, 12, 6},
    {"interleaved", 3, 2, 4, 15, 8},
    {"interleaved", 3, 2, 5, 18, 10},
    {"interleaved", 3, 2, 6, 21, 8},
    {"interleaved", 3, 2, 8, 27, 9},
    {"looped-bfs", 3, 2, 3, 12, 6},
    {"looped-bfs", 3, 2, 4, 15, 8},
    {"looped-bfs", 3, 2, 5, 18, 10},
    {"looped-bfs", 3, 2, 6, 21, 12},
    {"looped-bfs", 3, 2, 7, 24, 14},
    {"looped-bfs", 3, 2, 8, 27, 16},
    {"zb-h1", 3, 1, 3, 11, 3},
    {"zb-h1", 3, 1, 4, 14, 3},
    {"zb-h1", 3, 1, 5, 17, 3},
    {"zb-h1", 3, 1, 6, 20, 3},
    {"zb-h1", 3, 1, 7, 23, 3},
    {"zb-h1", 3, 1, 8, 26, 3},
    {"zb-h2", 3, 1, 3, 12, 3},
    {"zb-h2", 3, 1, 4, 14, 4},
    {"zb-h2", 3, 1, 5, 17, 5},
    {"zb-h2", 3, 1, 6, 20, 5},
    {"zb-h2", 3, 1, 7, 23, 5},
    {"zb-h2", 3, 1, 8, 26, 5},
    {"interleaved-zb", 3, 2, 3, 10, 6},
    {"interleaved-zb", 3, 2, 4, 13, 7},
    {"interleaved-zb", 3, 2, 5, 16, 8},
    {"interleaved-zb", 3, 2, 6, 19, 6},
    {"interleaved-zb", 3, 2, 8, 25, 7},
    {"zb-v", 3, 2, 3, 11, 6},
    {"zb-v", 3, 2, 4, 13, 6},
    {"zb-v", 3, 2, 5, 16, 6},
    {"zb-v", 3, 2, 6, 19, 6},
    {"zb-v", 3, 2, 7, 22, 6},
    {"zb-v", 3, 2, 8, 25, 6},
    {"v-half", 3, 2, 3, 11.5, 4},
    {"v-half", 3, 2, 4, 14.5, 4},
    {"v-half", 3, 2, 5, 17.5, 4},
    {"v-half", 3, 2, 6, 20.5, 4},
    {"v-half", 3, 2, 7, 23.5, 4},
    {"v-half", 3, 2, 8, 26.5, 4},
    {"v-min", 3, 2, 3, 11.5, 4},
    {"v-min", 3, 2, 4, 14.5, 4},
    {"v-min", 3, 2, 5, 17.5, 4},
    {"v-min", 3, 2, 6, 20.5, 4},
    {"v-min", 3, 2, 7, 23.5, 4},
    {"v-min", 3, 2, 8, 26.5, 4},
    {"dualpipe-v", 3, 2, 6, 20, 7},
    {"dualpipe-v", 3, 2, 7, 23, 7},
    {"dualpipe-v", 3, 2, 8, 26, 7},
    {"gpipe", 4, 1, 4, 21, 4},
    {"gpipe", 4, 1, 5, 24, 5},
    {"gpipe", 4, 1, 6, 27, 6},
    {"gpipe", 4, 1, 7, 30, 7},
    {"gpipe", 4, 1, 8, 33, 8},
    {"1f1b", 4, 1, 4, 21, 4},
    {"1f1b", 4, 1, 5, 24, 4},
    {"1f1b", 4, 1, 6, 27, 4},
    {"1f1b", 4, 1, 7, 30, 4},
    {"1f1b", 4, 1, 8, 33, 4},
    {"interleaved", 4, 2, 4, 16.5, 8},
    {"interleaved", 4, 2, 5, 19.5, 10},
    {"interleaved", 4, 2, 6, 22.5, 12},
    {"interleaved", 4, 2, 7, 25.5, 14},
    {"interleaved", 4, 2, 8, 28.5, 11},
    {"looped-bfs", 4, 2, 4, 16.5, 8},
    {"looped-bfs", 4, 2, 5, 19.5, 10},
    {"looped-bfs", 4, 2, 6, 22.5, 12},
    {"looped-bfs", 4, 2, 7, 25.5, 14},
    {"looped-bfs", 4, 2, 8, 28.5, 16},
    {"zb-h1", 4, 1, 4, 15, 4},
    {"zb-h1", 4, 1, 5, 18, 4},
    {"zb-h1", 4, 1, 6, 21, 4},
    {"zb-h1", 4, 1, 7, 24, 4},
    {"zb-h1", 4, 1, 8, 27, 4},
    {"zb-h2", 4, 1, 4, 16, 4},
    {"zb-h2", 4, 1, 5, 19, 5},
    {"zb-h2", 4, 1, 6, 21, 6},
    {"zb-h2", 4, 1, 7, 24, 7},
    {"zb-h2", 4, 1, 8, 27, 7},
    {"interleaved-zb", 4, 2, 4, 13.5, 8},
    {"interleaved-zb", 4, 2, 5, 16.5, 9},
    {"interleaved-zb", 4, 2, 6, 19.5, 10},
    {"interleaved-zb", 4, 2, 7, 22.5, 11},
    {"interleaved-zb", 4, 2, 8, 25.5, 8},
    {"zb-v", 4, 2, 4, 15, 8},
    {"zb-v", 4, 2, 5, 17, 8},
    {"zb-v", 4, 2, 6, 19.5, 8},
    {"zb-v", 4, 2, 7, 22.5, 8},
    {"zb-v", 4, 2, 8, 25.5, 8},
    {"v-half", 4, 2, 4, 14.5, 6},
    {"v-half", 4, 2, 5, 17.5, 6},
    {"v-half", 4, 2, 6, 20.5, 6},
    {"v-half", 4, 2, 7, 23.5, 6},
    {"v-half", 4, 2, 8, 26.5, 6},
    {"v-min", 4, 2, 4, 17.5, 4},
    {"v-min", 4, 2, 5, 20.5, 4},
    {"v-min", 4, 2, 6, 23.5, 4},
    {"v-min", 4, 2, 7, 26.5, 4},
    {"v-min", 4, 2, 8, 29.5, 4},
    {"dualpipe-v", 4, 2, 8, 27, 9},
};

/* K = 4, M = 8: kind, microbatch, and for two chunks a or b. */
static const struct {
  const char *name;
  int chunks, worker;
  const char *list;
} lists[] = {
    {"interleaved", 2, 0,
     "F0a F1a F2a F3a F0b F1b F2b F3b F4a F5a F6a B0b F7a B1b F4b B2b F5b B3b F6b B0a F7b B1a B2a B3a B4b "
     "B5b B6b B7b B4a B5a B6a B7a"},
    {"interleaved", 2, 1,
     "F0a F1a F2a F3a F0b F1b F2b F3b F4a B0b F5a B1b F6a B2b F7a B3b F4b B0a F5b B1a F6b B2a F7b B3a B4b "
     "B5b B6b B7b B4a B5a B6a B7a"},
    {"interleaved", 2, 2,
     "F0a F1a F2a F3a F0b F1b F2b B0b F3b B1b F4a B2b F5a B3b F6a B0a F7a B1a F4b B2a F5b B3a F6b B4b F7b "
     "B5b B6b B7b B4a B5a B6a B7a"},
    {"interleaved", 2, 3,
     "F0a F1a F2a F3a F0b B0b F1b B1b F2b B2b F3b B3b F4a B0a F5a B1a F6a B2a F7a B3a F4b B4b F5b B5b F6b "
     "B6b F7b B7b B4a B5a B6a B7a"},
    {"zb-h1", 1, 0, "F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7"},
    {"zb-h1", 1, 1, "F0 F1 F2 I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 F6 I4 W3 F7 I5 W4 I6 W5 I7 W6 W7"},
    {"zb-h1", 1, 2, "F0 F1 I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 F6 I5 W3 F7 I6 W4 I7 W5 W6 W7"},
    {"zb-h1", 1, 3, "F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7"},
    {"zb-h2", 1, 0, "F0 F1 F2 F3 F4 F5 F6 I0 W0 F7 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5 I6 W6 I7 W7"},
    {"zb-h2", 1, 1, "F0 F1 F2 F3 F4 I0 F5 I1 F6 I2 W0 F7 I3 W1 I4 W2 I5 W3 I6 W4 I7 W5 W6 W7"},
    {"zb-h2", 1, 2, "F0 F1 F2 I0 F3 I1 F4 I2 F5 I3 F6 I4 W0 F7 I5 W1 I6 W2 I7 W3 W4 W5 W6 W7"},
    {"zb-h2", 1, 3, "F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 F5 I5 F6 I6 W0 F7 I7 W1 W2 W3 W4 W5 W6 W7"},
    {"interleaved-zb", 2, 0,
     "F0a F1a F2a F3a F0b F1b F2b F3b I0b W0b F4a I1b W1b F5a I2b W2b F6a I3b W3b F7a I0a W0a F4b I1a W1a "
     "F5b I2a W2a F6b I3a W3a F7b I4b W4b I5b W5b I6b W6b I7b W7b I4a W4a I5a W5a I6a W6a I7a W7a"},
    {"interleaved-zb", 2, 1,
     "F0a F1a F2a F3a F0b F1b F2b I0b F3b I1b W0b F4a I2b W1b F5a I3b W2b F6a I0a W3b F7a I1a W0a F4b I2a "
     "W1a F5b I3a W2a F6b I4b W3a F7b I5b W4b I6b W5b I7b W6b I4a W7b I5a W4a I6a W5a I7a W6a W7a"},
    {"interleaved-zb", 2, 2,
     "F0a F1a F2a F3a F0b F1b I0b F2b I1b F3b I2b W0b F4a I3b W1b F5a I0a W2b F6a I1a W3b F7a I2a W0a F4b "
     "I3a W1a F5b I4b W2a F6b I5b W3a F7b I6b W4b I7b W5b I4a W6b I5a W7b I6a W4a I7a W5a W6a W7a"},
    {"interleaved-zb", 2, 3,
     "F0a F1a F2a F3a F0b I0b F1b I1b F2b I2b F3b I3b W0b F4a I0a W1b F5a I1a W2b F6a I2a W3b F7a I3a W0a "
     "F4b I4b W1a F5b I5b W2a F6b I6b W3a F7b I7b W4b I4a W5b I5a W6b I6a W7b I7a W4a W5a W6a W7a"},
    {"zb-v", 2, 0,
     "F0a F1a F2a F3a F4a F5a F6a F0b I0b W0b F1b I1b W1b F2b I2b W2b F3b I3b W3b F7a I0a W0a F4b I4b W4b "
     "I1a W1a F5b I5b W5b I2a W2a F6b I6b W6b I3a W3a F7b I7b W7b I4a W4a I5a W5a I6a W6a I7a W7a"},
    {"zb-v", 2, 1,
     "F0a F1a F2a F3a F4a F0b F5a F1b I0b W0b F2b I1b W1b F3b I2b W2b F6a I0a W0a F4b I3b W3b F7a I1a W1a "
     "F5b I4b W4b I2a W2a F6b I5b W5b I3a W3a F7b I6b W6b I4a I7b I5a W4a I6a W5a I7a W6a W7b W7a"},
    {"zb-v", 2, 2,
     "F0a F1a F2a F0b F3a F1b F4a F2b I0b W0b F3b I1b W1b F5a I0a W0a F4b I2b W2b F6a I1a W1a F5b I3b W3b "
     "F7a I2a W2a F6b I4b W4b I3a W3a F7b I5b W5b I4a I6b I5a I7b I6a W4a I7a W5a W6b W7b W6a W7a"},
    {"zb-v", 2, 3,
     "F0a F0b F1a F1b F2a F2b F3a F3b I0b W0b F4a I0a W0a F4b I1b W1b F5a I1a W1a F5b I2b W2b F6a I2a W2a "
     "F6b I3b W3b F7a I3a W3a F7b I4b W4b I4a I5b I5a I6b I6a I7b I7a W4a W5b W6b W7b W5a W6a W7a"},
    {"v-half", 2, 0,
     "F0a F1a F2a F3a F0b I0b F1b I1b W0b F2b W1b F4a I0a I2b W0a W2b F3b F5a I1a I3b W1a W3b F4b F6a I2a "
     "I4b W2a W4b F5b F7a I3a I5b W3a W5b F6b I6b I4a W6b W4a F7b I7b I5a W7b I6a W5a W6a I7a W7a"},
    {"v-half", 2, 1,
     "F0a F1a F2a F3a F0b F1b I0b W0b F2b I1b W1b I0a F4a W0a I2b F3b W2b I1a F5a W1a I3b F4b W3b I2a F6a "
     "W2a I4b F5b W4b I3a F7a W3a I5b F6b W5b I4a I6b W4a W6b F7b I5a I7b I6a W5a W7b W6a I7a W7a"},
    {"v-half", 2, 2,
     "F0a F1a F2a F0b F1b F2b I0b W0b F3a I0a I1b W0a W1b F3b F4a I1a I2b W1a W2b F4b F5a I2a I3b W2a W3b "
     "F5b F6a I3a I4b W3a W4b F6b F7a I4a I5b W4a I6b F7b W5b I5a W6b I6a I7b W5a W6a I7a W7b W7a"},
    {"v-half", 2, 3,
     "F0a F0b F1a F1b F2a F2b I0b I0a W0b F3a W0a F3b I1b I1a W1b F4a W1a F4b I2b I2a W2b F5a W2a F5b I3b "
     "I3a W3b F6a W3a F6b I4b I4a W4b F7a W4a F7b I5b I5a I6b I6a W5b W5a I7b I7a W6b W6a W7b W7a"},
    {"v-min", 2, 0,
     "F0a F1a F2a F0b I0b W0b F1b I1b W1b F3a I0a W0a F2b I2b I1a W2b F4a W1a F3b I3b I2a W3b F5a W2a F4b "
     "I4b I3a W4b F6a W3a F5b I5b I4a W5b F7a W4a F6b I6b I5a W6b W5a F7b I7b I6a W7b W6a I7a W7a"},
    {"v-min", 2, 1,
     "F0a F1a F0b F1b I0b W0b F2a I1b W1b I0a F3a W0a F2b I1a I2b W1a W2b F3b F4a I2a I3b W2a W3b F4b F5a "
     "I3a I4b W3a W4b F5b F6a I4a I5b W4a W5b F6b F7a I5a I6b W5a W6b F7b I6a I7b W6a W7b I7a W7a"},
    {"v-min", 2, 2,
     "F0a F1a F0b F1b I0b W0b F2a I0a I1b W0a W1b F2b F3a I1a W1a I2b F3b W2b I2a F4a W2a I3b F4b W3b I3a "
     "F5a W3a I4b F5b W4b I4a F6a W4a I5b F6b W5b I5a F7a W5a I6b F7b W6b I6a W6a I7b W7b I7a W7a"},
    {"v-min", 2, 3,
     "F0a F0b F1a F1b I0b I0a W0b F2a W0a F2b I1b I1a W1b F3a W1a F3b I2b I2a W2b W2a F4a F4b I3b I3a W3b "
     "W3a F5a F5b I4b I4a W4b W4a F6a F6b I5b I5a W5b W5a F7a F7b I6b I6a W6b W6a I7b I7a W7b W7a"},
};

static pst_schedule *make(const char *name, int workers, int chunks, int64_t microbatches) {
  pst_schedule_options o;
  pst_schedule *s = NULL;
  pst_schedule_options_init(&o);
  o.name = name;
  o.workers = workers, o.chunks = chunks, o.microbatches = microbatches;
  assert_ok(pst_schedule_generate(&o, &s));
  return s;
}

typedef struct clock_times {
  double f[64], i[64], w[64];
} clock_times;

static pst_simulation *run(const pst_schedule *s, double f, double i, double w, double latency,
                           bool early_send, const pst_stage_buffers *buffers) {
  clock_times t;
  pst_simulate_options o;
  pst_simulation *r = NULL;
  for (int k = 0; k < s->stages; k++) t.f[k] = f / s->chunks, t.i[k] = i / s->chunks, t.w[k] = w / s->chunks;
  pst_simulate_options_init(&o);
  o.forward_s = t.f, o.input_s = t.i, o.weight_s = t.w;
  o.latency_s = latency;
  o.early_send = early_send;
  o.buffers = buffers;
  assert_ok(pst_schedule_simulate(s, &o, &r));
  return r;
}

/* DualPipeV's pairs are one unit in the published model, here the forward's output leaves before the backward
 * starts: quicker, never slower. */
static bool is_bound(const char *name) {
  return strcmp(name, "dualpipe-v") == 0;
}

static void test_table(void **state) {
  for (size_t n = 0; n < sizeof table / sizeof table[0]; n++) {
    const table_row *row = &table[n];
    pst_schedule *s = make(row->name, 4, row->chunks, 8);
    pst_simulation *r = run(s, 1, row->input_s, 1, 0, false, NULL);
    if (is_bound(row->name))
      assert_true(r->makespan_s <= row->makespan_s);
    else
      assert_close(r->makespan_s, row->makespan_s, row->name);
    for (int w = 0; w < 4; w++) {
      if (!is_bound(row->name)) assert_close(r->workers[w].idle_in_span_s, row->idle_in_span_s[w], row->name);
      assert_int_equal(r->workers[w].peak_defer, row->peak_defer[w]);
      assert_int_equal(r->workers[w].peak_stash, row->peak_stash[w]);
      assert_int_equal(r->workers[w].sends, row->sends[w]);
    }
    pst_simulation_destroy(r);
    r = run(s, 1, row->input_s, 1, 0.25, false, NULL);
    if (is_bound(row->name))
      assert_true(r->makespan_s <= row->slow_link_s);
    else
      assert_close(r->makespan_s, row->slow_link_s, row->name);
    pst_simulation_destroy(r);
    pst_schedule_destroy(s);
  }
}

static void test_sizes(void **state) {
  for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; n++) {
    const size_row *row = &sizes[n];
    pst_schedule *s = make(row->name, row->workers, row->chunks, row->microbatches);
    pst_simulation *r = run(s, 1, 1, 1, 0, false, NULL);
    int64_t peak = 0;
    for (int w = 0; w < row->workers; w++)
      if (r->workers[w].peak_defer > peak) peak = r->workers[w].peak_defer;
    if (is_bound(row->name) ? r->makespan_s > row->makespan_s : fabs(r->makespan_s - row->makespan_s) > 1e-9)
      fail_msg("%s, K = %d, M = %d: %g, wanted %g", row->name, row->workers, (int)row->microbatches,
               r->makespan_s, row->makespan_s);
    if (peak != row->peak)
      fail_msg("%s, K = %d, M = %d: peak %d, wanted %d", row->name, row->workers, (int)row->microbatches,
               (int)peak, (int)row->peak);
    pst_simulation_destroy(r);
    pst_schedule_destroy(s);
  }
}

static void test_lists(void **state) {
  for (size_t n = 0; n < sizeof lists / sizeof lists[0]; n++) {
    pst_schedule *s = make(lists[n].name, 4, lists[n].chunks, 8);
    const pst_action_list *list = &s->lists[lists[n].worker];
    char seen[1024] = "";
    size_t used = 0;
    for (size_t i = 0; i < list->count; i++) {
      pst_action a = list->items[i];
      used += (size_t)snprintf(seen + used, sizeof seen - used, "%s%s%u%s", i > 0 ? " " : "",
                               pst_action_kind_name(a.kind), (unsigned)a.microbatch,
                               lists[n].chunks == 1 ? ""
                               : a.chunk < 4        ? "a"
                                                    : "b");
    }
    assert_string_equal(seen, lists[n].list);
    pst_schedule_destroy(s);
  }
}

static const double time_sets[][3] = {{1, 1, 1}, {1, 2, 1}, {2, 2, 1}, {2, 3, 1}, {1, 1, 2}, {3, 2, 1}};

static double most(double a, double b) {
  return a > b ? a : b;
}

/* What a step takes beyond M (F + I + W), by formula; negative where no formula holds. */
static double excess(const char *name, int k, int v, int64_t m, const double *t, bool early) {
  double f = t[0], i = t[1], w = t[2], least = f < i ? f : i;
  if (strcmp(name, "gpipe") == 0 || strcmp(name, "1f1b") == 0) return (k - 1) * (f + i + (early ? 0 : w));
  if (strcmp(name, "interleaved") == 0 || strcmp(name, "looped-bfs") == 0)
    return m < k || early ? -1 : (k - 1) * (f + i + w) / v;
  if (strcmp(name, "zb-h1") == 0) return m < k ? -1 : (k - 1) * most(most(f, i), f + i - w);
  if (strcmp(name, "zb-h2") == 0) return m < 2 * k - 1 || w > least ? -1 : (k - 1) * most(f, f + i - 2 * w);
  if (strcmp(name, "interleaved-zb") == 0) return m < k || w > least ? -1 : (k - 1) * (f + i - w) / v;
  if (strcmp(name, "zb-v") == 0) return m < 2 * k - 1 || f != i || f != w ? -1 : (k - 1) * f / 2;
  return -1;
}

/* (chunk, microbatch) pairs in flight on worker r to the end of W, by formula; negative where none is known.
 */
static int64_t flight(const char *name, int k, int v, int64_t m, int r) {
  int64_t groups = m / k > 0 ? m / k : 1, group = (m + groups - 1) / groups, all = m * v, peak = -1;
  if (strcmp(name, "gpipe") == 0 || strcmp(name, "looped-bfs") == 0) peak = all;
  if (strcmp(name, "1f1b") == 0) peak = k - r;
  if (strcmp(name, "interleaved") == 0) peak = v == 1 ? k - r : (v - 1) * group + 2 * (k - 1 - r) + 1;
  if (strcmp(name, "zb-h1") == 0) peak = k;
  if (strcmp(name, "zb-h2") == 0) peak = 2 * k - 1;
  if (strcmp(name, "interleaved-zb") == 0) peak = (v - 1) * group + k;
  if (strcmp(name, "zb-v") == 0 && m >= 2 * k - 1) peak = 2 * k;
  if (strcmp(name, "dualpipe-v") == 0) peak = 2 * k + 1;
  return peak < all ? peak : all;
}

/* V-Half and V-Min: never above floor((K+2)/2) and floor((K+4)/3) microbatches. */
static int64_t flight_bound(const char *name, int k) {
  if (strcmp(name, "v-half") == 0) return 2 * ((k + 2) / 2);
  if (strcmp(name, "v-min") == 0) return 2 * ((k + 4) / 3);
  return strcmp(name, "zb-v") == 0 ? 2 * k : INT32_MAX;
}

static void check_times(const pst_schedule *s, const pst_schedule *full, const pst_stage_buffers *b,
                        const char *name) {
  int k = s->workers, v = s->chunks;
  int64_t m = s->microbatches;
  for (size_t t = 0; t < sizeof time_sets / sizeof time_sets[0]; t++)
    for (int early = 0; early < 2; early++) {
      const double *x = time_sets[t];
      double wanted = excess(name, k, v, m, x, early != 0);
      if (t > 0 && wanted < 0) continue;
      pst_simulation *r = run(s, x[0], x[1], x[2], 0, early != 0, NULL);
      if (wanted >= 0 && fabs(r->makespan_s - wanted - (double)m * (x[0] + x[1] + x[2])) > 1e-6)
        fail_msg("%s, K = %d, V = %d, M = %d, times %d: %g, wanted %g", name, k, v, (int)m, (int)t,
                 r->makespan_s, wanted + (double)m * (x[0] + x[1] + x[2]));
      for (int w = 0; w < k && t == 0; w++) {
        int64_t formula = flight(name, k, v, m, w);
        if (formula >= 0 && r->workers[w].peak_defer != formula)
          fail_msg("%s, K = %d, V = %d, M = %d, worker %d: peak %d, wanted %d", name, k, v, (int)m, w,
                   (int)r->workers[w].peak_defer, (int)formula);
        assert_true(r->workers[w].peak_defer <= flight_bound(name, k));
      }
      if (t == 0) { /* with rings and slots as planned, nobody waits for a buffer */
        pst_simulation *real = run(full, x[0], x[1], x[2], 0, early != 0, b);
        if (early) assert_close(real->makespan_s, r->makespan_s, name);
        assert_true(real->makespan_s >= r->makespan_s - 1e-9);
        pst_simulation_destroy(real);
      }
      pst_simulation_destroy(r);
    }
}

/* Evaluation on the same placement. */
static void check_forward_only(const pst_schedule *s, int64_t microbatches) {
  pst_schedule *evaluation = NULL, *full = NULL;
  assert_ok(pst_schedule_forward_only_like(s, microbatches, &evaluation));
  assert_false(evaluation->training);
  assert_int_equal(pst_schedule_total(evaluation), s->stages * microbatches);
  for (int k = 0; k < s->stages; k++) assert_int_equal(evaluation->worker_of[k], s->worker_of[k]);
  assert_ok(pst_schedule_lower(evaluation, NULL, NULL, &full));
  assert_ok(pst_schedule_check(full, NULL, NULL));
  pst_schedule_destroy(full);
  pst_schedule_destroy(evaluation);
}

/* Every family, every K to 8, V to 4, M to 24: M = 1, K-1, K, K+1, 2K-1 and multiples of nothing among them.
 */
static void test_all_sizes(void **state) {
  size_t n = 0;
  const pst_schedule_family *rows = pst_schedule_families(&n);
  int made = 0, refused = 0;
  for (size_t f = 0; f < n; f++) {
    if (strcmp(rows[f].name, "auto") == 0 || strcmp(rows[f].name, "forward-only") == 0) continue;
    for (int v = rows[f].chunks > 0 ? rows[f].chunks : 1; v <= (rows[f].chunks > 0 ? rows[f].chunks : 4); v++)
      for (int k = 1; k <= 8; k++)
        for (int64_t m = 1; m <= 24; m++) {
          pst_schedule_options o;
          pst_schedule *s = NULL, *full = NULL;
          pst_stage_buffers b[32];
          pst_schedule_options_init(&o);
          o.name = rows[f].name;
          o.workers = k, o.chunks = v, o.microbatches = m;
          if (is_bound(o.name) && m < 2 * k) {
            assert_refused(pst_schedule_generate(&o, &s), "or more for dualpipe-v");
            refused++;
            continue;
          }
          assert_ok(pst_schedule_generate(&o, &s));
          if (pst_schedule_check(s, NULL, NULL) != PST_OK)
            fail_msg("%s, K = %d, V = %d, M = %d: %s", o.name, k, v, (int)m, pst_error());
          assert_ok(pst_schedule_buffers(s, NULL, b));
          assert_ok(pst_schedule_lower(s, NULL, b, &full));
          assert_ok(pst_schedule_check(full, NULL, b));
          check_times(s, full, b, o.name);
          if (m % 7 == 3) check_forward_only(s, m);
          pst_schedule_destroy(full);
          pst_schedule_destroy(s);
          made++;
        }
  }
  print_message("%d schedules, %d refused for fewer than 2K microbatches\n", made, refused);
  assert_int_equal(refused, 64);
}

/* Values that the authors' generators reach, in half units; no more in flight. With times in the options the
 * lists of v-half and v-min follow them. */
static void test_reference_generators(void **state) {
  static const struct {
    const char *name;
    int workers;
    int64_t microbatches;
    double f, i, w, at_most;
  } rows[] = {
      {"v-half", 4, 8, 1, 1, 1, 53},   {"v-min", 4, 8, 1, 1, 1, 59},   {"v-min", 2, 8, 1, 1, 1, 50},
      {"v-half", 8, 24, 1, 1, 1, 161}, {"v-min", 8, 24, 1, 1, 1, 169}, {"zb-v", 8, 24, 1, 1, 1, 151},
      {"v-half", 4, 8, 2, 3, 1, 124},  {"v-min", 4, 8, 2, 3, 1, 161},  {"v-half", 4, 8, 1, 2, 1, 87},
      {"v-min", 4, 8, 1, 2, 1, 105},   {"auto", 4, 8, 1, 1, 1, 51},    {"auto", 4, 8, 2, 3, 1, 107},
  };
  for (size_t n = 0; n < sizeof rows / sizeof rows[0]; n++) {
    clock_times t;
    double limits[8];
    pst_schedule_options o;
    pst_schedule *s = NULL;
    pst_schedule_options_init(&o);
    o.name = rows[n].name;
    o.workers = rows[n].workers, o.chunks = 2, o.microbatches = rows[n].microbatches;
    for (int k = 0; k < 16; k++) t.f[k] = rows[n].f, t.i[k] = rows[n].i, t.w[k] = rows[n].w;
    for (int k = 0; k < 8; k++) limits[k] = 2 * rows[n].workers;
    o.forward_s = t.f, o.input_s = t.i, o.weight_s = t.w;
    o.memory_bytes = limits;
    assert_ok(pst_schedule_generate(&o, &s));
    assert_ok(pst_schedule_check(s, NULL, NULL));
    pst_simulation *r = run(s, 2 * rows[n].f, 2 * rows[n].i, 2 * rows[n].w, 0, false, NULL);
    if (r->makespan_s > rows[n].at_most + 1e-9)
      fail_msg("%s: %g, wanted %g or less", rows[n].name, r->makespan_s, rows[n].at_most);
    for (int w = 0; w < o.workers; w++)
      assert_true(r->workers[w].peak_defer <=
                  (strcmp(o.name, "auto") == 0 ? 2 * o.workers : flight_bound(o.name, o.workers)));
    pst_simulation_destroy(r);
    pst_schedule_destroy(s);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_table),
      cmocka_unit_test(test_sizes),
      cmocka_unit_test(test_lists),
      cmocka_unit_test(test_all_sizes),
      cmocka_unit_test(test_reference_generators),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
