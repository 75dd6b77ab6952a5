/* options_table.c - `rubato options`: every option as the Markdown table that README.md holds. */
#include "base/log.h"
#include "base/options.h"
#include "proto/job.h"
#include "tools/subcommand.h"

#include <stdio.h>

static const char usage[] =
    "usage: rubato options\n"
    "\n"
    "Prints every option of rubato-server, rubato-worker and rubato launch as a Markdown table.\n"
    "README.md holds the same table; a test compares the two.\n";

static int options_table_run(int argc, char **argv) {
    if (options_wants(argc, argv, "--help")) {
        fputs(usage, stdout);
        return EXIT_CODE_OK;
    }
    if (argc != 1) {
        log_error("options: takes no arguments, got '%s'", argv[1]);
        return EXIT_CODE_USAGE;
    }
    struct job job;
    struct options options;
    options_init(&options, job_table, job_table_count, &job);
    options_print_markdown(&options, stdout);
    return EXIT_CODE_OK;
}

const struct subcommand options_table_subcommand = {
    .name = "options",
    .summary = "print all options as a Markdown table",
    .run = options_table_run,
};
