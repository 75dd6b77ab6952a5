#include "proto/program.h"

#include "base/log.h"

bool program_begin(const struct program *program, struct options *options, struct job *job,
                   int argc, char **argv, int *exit_code) {
    enum log_level level;
    options_init(options, job_table, job_table_count, job);
    *exit_code = EXIT_CODE_OK;
    if (options_wants(argc, argv, "--help")) {
        options_print_help(options, program->role, program->usage, stdout);
        return false;
    }
    if (options_wants(argc, argv, "--version")) {
        printf("%s %s\n", program->name, RUBATO_VERSION);
        return false;
    }
    if (options_parse(options, program->role, argc, argv) != STATUS_OK) {
        *exit_code = EXIT_CODE_USAGE;
        return false;
    }
    if (options_wants(argc, argv, "--print-config")) {
        options_print_config(options, program->role, stdout);
        return false;
    }
    if (log_level_parse(job->log_level, &level) == STATUS_OK) {
        log_set_level(level);
    }
    return true;
}
