#include "tools/penstock/command.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct ids {
  int32_t *items;
  int64_t n;
} ids;

/* Reads ids parted by commas or white space until the text ends; `where` names them in messages. */
static bool read_ids(const char *where, const char *text, ids *out) {
  size_t room = strlen(text) / 2 + 1; /* each id but the last takes a digit and something after it */
  int32_t *items = malloc(room * sizeof *items);
  int64_t n = 0;
  if (!items) {
    command_refuse("%s: no memory for %zu ids", where, room);
    return false;
  }
  for (;;) {
    text += strspn(text, ", \t\r\n");
    if (!*text) break;
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || value < 0 || value > INT32_MAX || !strchr(", \t\r\n", *end)) {
      command_refuse("%s: '%.*s', wanted token ids such as 1,2,3", where,
                     (int)(strcspn(text, ", \t\r\n") < 40 ? strcspn(text, ", \t\r\n") : 40), text);
      free(items);
      return false;
    }
    items[n++] = (int32_t)value;
    text = end;
  }
  *out = (ids){items, n};
  return true;
}

static bool read_ids_file(const char *path, ids *out) {
  enum { MAX_BYTES = 1 << 24 };
  bool read = false;
  char *text = NULL;
  size_t n;
  FILE *file = fopen(path, "rb");
  if (!file) {
    command_refuse("--ids-file: %s: %s", path, strerror(errno));
    return false;
  }
  text = malloc(MAX_BYTES + 1);
  if (!text) {
    command_refuse("--ids-file: no memory to read %s", path);
    goto done;
  }
  errno = 0;
  n = fread(text, 1, MAX_BYTES + 1, file);
  if (ferror(file)) {
    command_refuse("--ids-file: %s: %s", path, strerror(errno));
  } else if (n > MAX_BYTES) {
    command_refuse("--ids-file: %s holds more than %d bytes", path, MAX_BYTES);
  } else if (memchr(text, 0, n)) {
    command_refuse("--ids-file: %s is not text", path);
  } else {
    text[n] = '\0';
    read = read_ids(path, text, out);
  }
done:
  free(text);
  fclose(file);
  return read;
}

static void print_byte(void *user, int32_t id) {
  putchar(id);
  fflush(stdout);
}

static void print_id(void *user, int32_t id) {
  bool *first = user;
  printf(*first ? "%d" : " %d", id);
  *first = false;
  fflush(stdout);
}

int command_generate(int argc, char **argv) {
  const char *prompt = NULL, *list = NULL, *file = NULL;
  int64_t tokens = 64, seed = 1, step = -1;
  double temperature = 1;
  bool print_ids = false, first = true;
  option_texts sets = {.n = 0};
  const option_row options[] = {
      {"prompt", "TEXT", OPTION_TEXT, &prompt, "text to continue, for a model whose tokens are bytes"},
      {"ids", "1,2,3", OPTION_TEXT, &list, "token ids to continue"},
      {"ids-file", "FILE", OPTION_TEXT, &file, "the same from a file, parted by commas or white space"},
      {"tokens", "N", OPTION_INTEGER, &tokens, "how many to write; 64 when not given"},
      {"temperature", "T", OPTION_NUMBER, &temperature, "0 takes the likeliest token; 1 when not given"},
      {"seed", "N", OPTION_INTEGER, &seed, "another seed, another text; 1 when not given"},
      {"step", "N", OPTION_INTEGER, &step, "the checkpoint of this step; the latest when not given"},
      {"print-ids", NULL, OPTION_FLAG, &print_ids, "print token ids, not text"},
      OPTION_SET(&sets),
      {0},
  };
  const command_usage usage = {
      .name = "generate",
      .arguments = {"DIR"},
      .required = 1,
      .text = "Prints what a trained model writes after a prompt, token by token: text where\n"
              "its tokens are bytes, else ids. DIR is a run's directory or a Hugging Face\n"
              "directory.",
      .options = options,
      .examples = {"penstock generate runs/shakespeare --prompt 'To be, or' --tokens 200",
                   "penstock generate hf/tinyllama --ids 1,306,4658 --temperature 0"},
  };
  char *arguments[MAX_ARGUMENTS];
  int status;
  if (!usage_read(&usage, argc, argv, arguments, &status)) return status;
  if ((prompt != NULL) + (list != NULL) + (file != NULL) > 1)
    return command_refuse("generate: --prompt, --ids and --ids-file are three ways to give one prompt, "
                          "wanted at most one");

  ids given = {0};
  if (list && !read_ids("--ids", list, &given)) return EXIT_BAD_INPUT;
  if (file && !read_ids_file(file, &given)) return EXIT_BAD_INPUT;

  const pst_run_options run_options = command_run_options(NULL, &sets);
  pst_generate_options generate = {.prompt = given.items,
                                   .n_prompt = given.n,
                                   .prompt_text = prompt ? prompt : "",
                                   .tokens = tokens,
                                   .temperature = temperature,
                                   .seed = (uint64_t)seed,
                                   .token = print_id,
                                   .user = &first};
  pst_run *run = NULL;
  pst_status st;
  bool as_text = false;
  PST_GOTO(st, pst_run_open_trained(arguments[0], step, &run_options, &run), done);
  as_text = pst_run_bytes(run) && !print_ids;
  if (as_text) generate.token = print_byte;
  PST_GOTO(st, pst_run_generate(run, &generate), done);
  /* Text into a file or pipe is exactly the model's bytes. */
  if (!as_text || isatty(STDOUT_FILENO)) putchar('\n');
done:
  status = command_end(st);
  pst_run_close(run);
  free(given.items);
  return status;
}
