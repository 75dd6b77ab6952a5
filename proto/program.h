/* program.h - how the programs of a job begin: flags, --help, --version, --print-config, log level.
 */
#ifndef RUBATO_PROTO_PROGRAM_H
#define RUBATO_PROTO_PROGRAM_H

#include "proto/job.h"

#include <stdbool.h>

struct program {
    const char *name;  /* "rubato-server" */
    const char *usage; /* what --help says before the options */
    enum job_role role;
};

/* Fills job, through options, from what the user gave. True: go on. False: exit with *exit_code,
 * all being said. Before any thread starts. */
bool program_begin(const struct program *program, struct options *options, struct job *job,
                   int argc, char **argv, int *exit_code);

#endif
