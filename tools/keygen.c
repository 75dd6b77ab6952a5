/* keygen.c - `rubato keygen FILE`: a new random key for the control channel. */
#include "base/log.h"
#include "base/options.h"
#include "tools/subcommand.h"
#include "transport/control_tcp.h"

#include <stdio.h>
#include <string.h>

static const char usage[] =
    "usage: rubato keygen FILE\n"
    "\n"
    "Writes 32 random bytes as 64 hexadecimal digits to FILE, readable by its owner alone (mode\n"
    "0600). An existing file is never overwritten. Copy the file to every machine of the job and\n"
    "give it to each process as --key-file FILE: who does not have it cannot join.\n"
    "\n"
    "example:\n"
    "  rubato keygen job.key\n"
    "  rubato launch --servers 1 --workers 2 --data corpus.txt --key-file job.key\n";

static int keygen_run(int argc, char **argv) {
    if (options_wants(argc, argv, "--help")) {
        fputs(usage, stdout);
        return EXIT_CODE_OK;
    }
    if (argc != 2 || argv[1][0] == '-') {
        log_error("keygen: give the name of one file to write, not %d words", argc - 1);
        return EXIT_CODE_USAGE;
    }
    if (control_tcp_write_key(argv[1]) != STATUS_OK) {
        return EXIT_CODE_CREATE;
    }
    printf("wrote %s (mode 0600); give it to every process as --key-file %s\n", argv[1], argv[1]);
    return EXIT_CODE_OK;
}

const struct subcommand keygen_subcommand = {
    .name = "keygen",
    .summary = "write a new key for --key-file",
    .run = keygen_run,
};
