/* options.h - the options engine: one table row declares an option; the rest derives from it.
 *
 * A table is an array of struct option (proto/job.h holds the project's one). From it come the
 * parser of flags, of RUBATO_* variables and of --config files, --help, --print-config, the record
 * that travels in a join, and README's table. Values live in a config struct at `offset`; the same
 * parser reads defaults and user input. Precedence: flag > environment > config file > default; a
 * value learnt from the job (ORIGIN_JOB) fills only what nobody gave here.
 * Flags are --name VALUE or --name=VALUE; a flag of type OPTION_FLAG is --name or --no-name.
 * Variables are RUBATO_<NAME>, upper case with _ for -; an empty one counts as not set. A config
 * file has lines `name = value`, with # comments and optional quotes around the value: in "..." the
 * escapes \\ \" \n \t \r hold, in '...' none. One file or environment may serve all programs:
 * there, options of other roles are passed over; as a flag they are refused.
 * User errors are logged in one line that names the option, the value and what is allowed, with the
 * nearest known name for an unknown flag. Not thread-safe: parse before the threads start.
 */
#ifndef RUBATO_BASE_OPTIONS_H
#define RUBATO_BASE_OPTIONS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define OPTION_TEXT_MAX ((size_t)256) /* bytes of a text value with its 0 */
#define OPTIONS_MAX     160

enum option_type {
    OPTION_FLAG, /* bool */
    OPTION_INT,  /* int64_t; suffixes k, m, g are powers of 1000, ki, mi, gi of 1024 */
    OPTION_REAL, /* double */
    OPTION_TEXT  /* char [OPTION_TEXT_MAX] */
};

enum option_origin { ORIGIN_DEFAULT, ORIGIN_JOB, ORIGIN_FILE, ORIGIN_ENVIRONMENT, ORIGIN_FLAG };

/* Says whether text is a legal value, and if not, what is allowed: why [why_bytes]. */
typedef bool option_check_fn(const char *text, char *why, size_t why_bytes);

struct option {
    const char *name;
    enum option_type type;
    const char *default_text; /* passes the same parser as what users give */
    double least, most;       /* range of a number, inclusive; equal means no range */
    const char *unit;         /* "steps", "seconds", ...; "" for none */
    const char *help;         /* one line */
    bool agreed;              /* AGREED: the same in all processes of a job; else LOCAL */
    unsigned roles;           /* bits, the caller's own: which programs have it */
    size_t offset;            /* of the value in the config struct */
    option_check_fn *check;   /* NULL for none */
};

struct options {
    const struct option *table;
    size_t count;
    void *config;
    enum option_origin origins[OPTIONS_MAX];
};

/* Fills config with the defaults. ASSERTs that the table is sound (count, defaults that parse). */
void options_init(struct options *options, const struct option *table, size_t count, void *config);

/* What the user gave: environment, --config file, flags, for the options of `role`. Words that are
 * no flags are refused. `--help` and `--print-config` are the caller's to look for (options_wants).
 * INVALID on any user error, logged. */
enum status options_parse(struct options *options, unsigned role, int argc,
                          char **argv) WARN_UNUSED;

/* The flags alone; *config_path is the file that a --config names, or NULL. */
enum status options_parse_flags(struct options *options, unsigned role, int argc, char **argv,
                                const char **config_path) WARN_UNUSED;

/* What a --config file does: text [bytes] is the file's content, `path` its name for messages.
 * INVALID, logged; settings before the wrong line are in the config. */
enum status options_parse_config(struct options *options, unsigned role, const char *path,
                                 const char *text, size_t bytes) WARN_UNUSED;

/* True when argv has the bare flag, e.g. "--help". */
bool options_wants(int argc, char **argv, const char *flag);

/* Index in the table, or -1. */
int options_find(const struct options *options, const char *name);

/* Parses one value into the config, unless the value there is of a higher origin: then the text is
 * only checked. INVALID with the reason in why [why_bytes], which quotes the text and says what is
 * allowed; config unchanged. */
enum status options_set(struct options *options, int index, const char *text,
                        enum option_origin origin, char *why, size_t why_bytes) WARN_UNUSED;

/* What a value of this row may be, e.g. "1 to 64 processes". */
void options_allowed(const struct option *row, char *text, size_t bytes);

/* The value as text that options_set would take back to the same bits. */
void options_text(const struct options *options, int index, char *text, size_t bytes);

/* Usage with `usage` (synopsis, description, examples) first, then each option of the role. */
void options_print_help(const struct options *options, unsigned role, const char *usage, FILE *out);

/* One `name = value  # origin` line an option of the role; a config file can be made of it. */
void options_print_config(const struct options *options, unsigned role, FILE *out);

/* A Markdown table of all options, for the README. */
void options_print_markdown(const struct options *options, FILE *out);

#endif
