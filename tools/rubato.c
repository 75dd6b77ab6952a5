/* rubato.c - the tool's entry: finds the subcommand and runs it. */
#include "base/log.h"
#include "base/status.h"
#include "tools/subcommand.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const struct subcommand *const subcommands[] = {
    &launch_subcommand,      &compare_subcommand,       &plan_table_subcommand, &prepare_subcommand,
    &sample_text_subcommand, &keygen_subcommand,        &set_subcommand,        &export_subcommand,
    &bench_subcommand,       &options_table_subcommand,
};
#define SUBCOMMAND_COUNT (sizeof subcommands / sizeof subcommands[0])

static void print_help(FILE *out) {
    fputs("usage: rubato COMMAND [--flag VALUE ...]\n"
          "\n"
          "The tool of Rubato, a parameter-server system for training language models.\n"
          "\n"
          "commands:\n",
          out);
    for (size_t i = 0; i < SUBCOMMAND_COUNT; i++) {
        fprintf(out, "  %-10s %s\n", subcommands[i]->name, subcommands[i]->summary);
    }
    fputs("\n"
          "`rubato help COMMAND` or `rubato COMMAND --help` tells more; --version prints the "
          "version.\n"
          "\n"
          "example: one server and two workers on this machine, on a text of your own\n"
          "  rubato launch --servers 1 --workers 2 --data corpus.txt --steps 200\n",
          out);
}

static const struct subcommand *find(const char *name) {
    for (size_t i = 0; i < SUBCOMMAND_COUNT; i++) {
        if (strcmp(subcommands[i]->name, name) == 0) return subcommands[i];
    }
    return NULL;
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Levenshtein distance of two words of less than 32 letters; a longer word is far from all. */
static size_t distance(const char *a, const char *b) {
    enum { WORD_MAX = 32 };
    size_t a_length = strlen(a), b_length = strlen(b);
    size_t row[WORD_MAX + 1];
    if (a_length >= WORD_MAX || b_length >= WORD_MAX) return WORD_MAX;
    for (size_t j = 0; j <= b_length; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= a_length; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t above = row[j];
            row[j] = least(least(above, row[j - 1]) + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
        }
    }
    return row[b_length];
}

static int refuse(const char *name) {
    size_t best = 4; // farther than three letters is no slip of the finger
    const char *nearest = NULL;
    for (size_t i = 0; i < SUBCOMMAND_COUNT; i++) {
        size_t d = distance(name, subcommands[i]->name);
        if (d < best) {
            best = d;
            nearest = subcommands[i]->name;
        }
    }
    if (nearest) {
        log_error("unknown command '%s', did you mean '%s'?", name, nearest);
    } else {
        log_error("unknown command '%s'; `rubato --help` lists them", name);
    }
    return EXIT_CODE_USAGE;
}

static int run_help(int argc, char **argv) {
    if (argc < 2) {
        print_help(stdout);
        return EXIT_CODE_OK;
    }
    const struct subcommand *subcommand = find(argv[1]);
    if (!subcommand) return refuse(argv[1]);
    char flag[] = "--help";
    char *help_argv[] = {argv[1], flag, NULL};
    return subcommand->run(2, help_argv);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        print_help(stderr);
        return EXIT_CODE_USAGE;
    }
    if (strcmp(argv[1], "help") == 0) return run_help(argc - 1, argv + 1);
    if (strcmp(argv[1], "--help") == 0) {
        print_help(stdout);
        return EXIT_CODE_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("rubato %s\n", RUBATO_VERSION);
        return EXIT_CODE_OK;
    }
    const struct subcommand *subcommand = find(argv[1]);
    return subcommand ? subcommand->run(argc - 1, argv + 1) : refuse(argv[1]);
}
