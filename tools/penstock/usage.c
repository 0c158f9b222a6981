/* Options and help of the subcommands, both from one table. */
#include "tools/penstock/command.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_OPTIONS = 16, FIRST_VALUE = 256 }; /* a row's value for getopt_long: above every letter */

static void print_help(const command_usage *u) {
  printf("usage: penstock %s", u->name);
  for (int i = 0; i < MAX_ARGUMENTS && u->arguments[i]; i++)
    printf(i < u->required ? " %s" : " [%s]", u->arguments[i]);
  printf(u->options ? " [options]\n\n%s\n" : "\n\n%s\n", u->text);
  printf("\noptions:\n");
  for (const option_row *o = u->options; o && o->name; o++) {
    char left[40];
    snprintf(left, sizeof left, "--%s%s%s", o->name, o->argument ? " " : "", o->argument ? o->argument : "");
    printf("  %-18s %s\n", left, o->help);
  }
  printf("  %-18s %s\n", "-h, --help", "this text");
  printf("\nexamples:\n  %s\n  %s\n", u->examples[0], u->examples[1]);
}

static bool read_value(const command_usage *u, const option_row *o, const char *text) {
  char *end;
  errno = 0;
  switch (o->kind) {
  case OPTION_FLAG:
    *(bool *)o->target = true;
    return true;
  case OPTION_TEXT:
    *(const char **)o->target = text;
    return true;
  case OPTION_TEXTS: {
    option_texts *list = o->target;
    if (list->n == MAX_TEXTS) {
      command_refuse("%s: --%s more than %d times", u->name, o->name, MAX_TEXTS);
      return false;
    }
    list->items[list->n++] = text;
    return true;
  }
  case OPTION_INTEGER: {
    long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < 0) break;
    *(int64_t *)o->target = value;
    return true;
  }
  case OPTION_NUMBER: {
    double value = strtod(text, &end);
    if (errno || end == text || *end || !isfinite(value) || value < 0) break;
    *(double *)o->target = value;
    return true;
  }
  }
  command_refuse("%s: --%s '%s', wanted a %s not below zero", u->name, o->name, text,
                 o->kind == OPTION_INTEGER ? "whole number" : "number");
  return false;
}

static void refuse_unknown(const command_usage *u, const char *word) {
  int length = (int)strcspn(word, "=");
  const option_row *nearest = NULL;
  int best = length / 2 + 1;
  for (const option_row *o = u->options; o && o->name; o++) {
    char written[64], given[64];
    snprintf(written, sizeof written, "--%s", o->name);
    snprintf(given, sizeof given, "%.*s", length, word);
    int distance = command_distance(written, given);
    if (distance < best) best = distance, nearest = o;
  }
  if (nearest)
    command_refuse("%s: unknown option %.*s, did you mean --%s?", u->name, length, word, nearest->name);
  else
    command_refuse("%s: unknown option %.*s; see 'penstock %s --help'", u->name, length, word, u->name);
}

/* What getopt_long() did not like about argv[optind - 1] or the letter or row in optopt. */
static void refuse_option(const command_usage *u, int code, char **argv) {
  if (optopt >= FIRST_VALUE && code == ':')
    command_refuse("%s: --%s needs %s", u->name, u->options[optopt - FIRST_VALUE].name,
                   u->options[optopt - FIRST_VALUE].argument);
  else if (optopt >= FIRST_VALUE)
    command_refuse("%s: --%s takes no value", u->name, u->options[optopt - FIRST_VALUE].name);
  else if (optopt == 'h')
    command_refuse("%s: --help takes no value", u->name);
  else if (optopt) /* one letter of a cluster */
    command_refuse("%s: unknown option -%c; see 'penstock %s --help'", u->name, optopt, u->name);
  else
    refuse_unknown(u, argv[optind - 1]);
}

bool usage_read(const command_usage *u, int argc, char **argv, char *out_arguments[MAX_ARGUMENTS],
                int *out_exit) {
  struct option table[MAX_OPTIONS + 2] = {{"help", no_argument, NULL, 'h'}};
  for (int i = 0; u->options && u->options[i].name && i < MAX_OPTIONS; i++)
    table[i + 1] = (struct option){u->options[i].name,
                                   u->options[i].kind == OPTION_FLAG ? no_argument : required_argument, NULL,
                                   FIRST_VALUE + i};
  *out_exit = EXIT_BAD_INPUT;
  opterr = 0;
  for (int code; (code = getopt_long(argc, argv, ":h", table, NULL)) != -1;) {
    if (code == 'h') {
      print_help(u);
      *out_exit = 0;
      return false;
    }
    if (code < FIRST_VALUE) {
      refuse_option(u, code, argv);
      return false;
    }
    if (!read_value(u, &u->options[code - FIRST_VALUE], optarg)) return false;
  }
  for (int i = 0; i < MAX_ARGUMENTS; i++) {
    out_arguments[i] = u->arguments[i] && optind < argc ? argv[optind++] : NULL;
    if (out_arguments[i] || i >= u->required) continue;
    command_refuse("%s: needs %s; see 'penstock %s --help'", u->name, u->arguments[i], u->name);
    return false;
  }
  if (optind == argc) return true;
  command_refuse("%s: '%s' is one argument too many", u->name, argv[optind]);
  return false;
}
