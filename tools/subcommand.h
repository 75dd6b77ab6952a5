/* subcommand.h - the subcommands of `rubato`: one file each, one row each in rubato.c.
 *
 * To add one: a file here that defines its constant struct, and a row in the array of rubato.c.
 */
#ifndef RUBATO_TOOLS_SUBCOMMAND_H
#define RUBATO_TOOLS_SUBCOMMAND_H

struct subcommand {
    const char *name;
    const char *summary; /* one line, for `rubato --help` */

    /* argv[0] is the subcommand's own name; --help among the rest prints its manual on standard
     * output. Returns the program's exit code (enum exit_code, or 128 + n for a signal). */
    int (*run)(int argc, char **argv);
};

extern const struct subcommand launch_subcommand;
extern const struct subcommand compare_subcommand;
extern const struct subcommand plan_table_subcommand;
extern const struct subcommand prepare_subcommand;
extern const struct subcommand sample_text_subcommand;
extern const struct subcommand keygen_subcommand;
extern const struct subcommand set_subcommand;
extern const struct subcommand export_subcommand;
extern const struct subcommand bench_subcommand;
extern const struct subcommand options_table_subcommand;

#endif
