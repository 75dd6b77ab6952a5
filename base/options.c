#include "base/options.h"

#include "base/assert.h"
#include "base/files.h"
#include "base/log.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define NAME_MAX_BYTES    ((size_t)64) /* with its 0 */
#define REASON_BYTES      ((size_t)512)
#define CONFIG_FILE_BYTES ((size_t)1 << 20)
#define CONFIG_LINE_BYTES ((size_t)1024)

/* Flags that every program has besides its table. */
static const char *const common_flags[] = {"help", "print-config", "version", "config"};
#define COMMON_FLAG_COUNT (sizeof common_flags / sizeof common_flags[0])

static void assert_name_sound(const char *name) {
    size_t bytes = strlen(name);
    ASSERT(bytes >= 1 && bytes < NAME_MAX_BYTES);
    ASSERT_OP(strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-"), ==, bytes);
    ASSERT(name[0] != '-');
    for (size_t i = 0; i < COMMON_FLAG_COUNT; i++)
        ASSERT(strcmp(name, common_flags[i]) != 0);
}

void options_init(struct options *options, const struct option *table, size_t count, void *config) {
    ASSERT_OP(count, <=, OPTIONS_MAX);
    *options = (struct options){.table = table, .count = count, .config = config};
    for (size_t i = 0; i < count; i++) {
        assert_name_sound(table[i].name);
        ASSERT_OP(options_find(options, table[i].name), ==, i); /* else the name is there twice */
        ASSERT(table[i].unit && table[i].help && table[i].least <= table[i].most);
        char why[REASON_BYTES];
        enum status status =
            options_set(options, (int)i, table[i].default_text, ORIGIN_DEFAULT, why, sizeof why);
        if (status != STATUS_OK) log_error("default of --%s: %s", table[i].name, why);
        ASSERT_OP(status, ==, STATUS_OK);
    }
}

bool options_wants(int argc, char **argv, const char *flag) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], flag) == 0) return true;
    }
    return false;
}

int options_find(const struct options *options, const char *name) {
    for (size_t i = 0; i < options->count; i++) {
        if (strcmp(options->table[i].name, name) == 0) return (int)i;
    }
    return -1;
}

static size_t least_of(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Levenshtein distance; both shorter than NAME_MAX_BYTES. One row of the table is kept: on the way
 * through it, costs[j] still is the row above, and `diagonal` what costs[j - 1] was there. */
static size_t edit_distance(const char *a, const char *b) {
    size_t costs[NAME_MAX_BYTES];
    size_t width = strlen(b);
    for (size_t j = 0; j <= width; j++)
        costs[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t diagonal = costs[0];
        costs[0] = i;
        for (size_t j = 1; j <= width; j++) {
            size_t above = costs[j];
            size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
            costs[j] = least_of(replaced, 1 + least_of(above, costs[j - 1]));
            diagonal = above;
        }
    }
    return costs[width];
}

/* The known name that is near enough to be what was meant, or NULL. */
static const char *nearest_name(const struct options *options, unsigned role, const char *name) {
    size_t best = 2 + strlen(name) / 4; /* a distance of less than this is near */
    const char *nearest = NULL;
    for (size_t i = 0; i < options->count + COMMON_FLAG_COUNT; i++) {
        bool common = i >= options->count;
        if (!common && !(options->table[i].roles & role)) continue;
        const char *known = common ? common_flags[i - options->count] : options->table[i].name;
        size_t distance = edit_distance(name, known);
        if (distance < best) {
            best = distance;
            nearest = known;
        }
    }
    return nearest;
}

/* `where` names the config line with ": " after it, or is empty. */
static enum status refuse_unknown(const struct options *options, unsigned role, const char *where,
                                  const char *name) {
    const char *nearest = strlen(name) < NAME_MAX_BYTES ? nearest_name(options, role, name) : NULL;
    if (nearest) {
        log_error("%sunknown option --%.64s, did you mean --%s?", where, name, nearest);
    } else {
        log_error("%sunknown option --%.64s (--help lists all)", where, name);
    }
    return STATUS_INVALID;
}

/* One word of the command line, taken apart. */
struct flag_word {
    char name[NAME_MAX_BYTES + 1]; /* cut when longer, which no known name is */
    const char *value;             /* after the =, or NULL */
};

static bool split_flag(const char *word, struct flag_word *flag) {
    if (strncmp(word, "--", 2) != 0 || word[2] == 0 || word[2] == '=') return false;
    const char *equals = strchr(word + 2, '=');
    size_t bytes = equals ? (size_t)(equals - word - 2) : strlen(word + 2);
    bytes = least_of(bytes, sizeof flag->name - 1);
    memcpy(flag->name, word + 2, bytes);
    flag->name[bytes] = 0;
    flag->value = equals ? equals + 1 : NULL;
    return true;
}

/* The value after = or in the next word, which then is used up. A next word that looks like a flag
 * is taken for a forgotten value. NULL, logged, if there is none. */
static const char *take_value(const struct flag_word *flag, const char *allowed, int argc,
                              char **argv, int *at) {
    if (flag->value) return flag->value;
    if (*at + 1 < argc && strncmp(argv[*at + 1], "--", 2) != 0) return argv[++*at];
    log_error("--%s: needs a value (allowed: %s)", flag->name, allowed);
    return NULL;
}

/* Row of the table for a flag, also as --no-NAME; or -1. */
static int find_flag(const struct options *options, const char *name, bool *negated) {
    int index = options_find(options, name);
    *negated = false;
    if (index >= 0 || strncmp(name, "no-", 3) != 0) return index;
    index = options_find(options, name + 3);
    if (index < 0 || options->table[index].type != OPTION_FLAG) return -1;
    *negated = true;
    return index;
}

/* Sets the option of argv[*at]; leaves *at at the last word used. */
static enum status parse_word(struct options *options, unsigned role, int argc, char **argv,
                              int *at, const char **config_path) {
    struct flag_word flag;
    if (!split_flag(argv[*at], &flag)) {
        log_error("'%.64s' is not an option (allowed: --NAME VALUE, --NAME=VALUE)", argv[*at]);
        return STATUS_INVALID;
    }
    if (strcmp(flag.name, "config") == 0) {
        *config_path = take_value(&flag, "path of a file", argc, argv, at);
        return *config_path ? STATUS_OK : STATUS_INVALID;
    }
    for (size_t i = 0; i < COMMON_FLAG_COUNT; i++) {
        if (strcmp(flag.name, common_flags[i]) != 0) continue;
        if (!flag.value) return STATUS_OK;
        log_error("--%s: takes no value", flag.name);
        return STATUS_INVALID;
    }
    bool negated;
    int index = find_flag(options, flag.name, &negated);
    if (index < 0) return refuse_unknown(options, role, "", flag.name);
    const struct option *row = &options->table[index];
    if (!(row->roles & role)) {
        log_error("--%s: unknown for this program, it belongs to another one of the job",
                  row->name);
        return STATUS_INVALID;
    }
    if (negated && flag.value) {
        log_error("--%s: takes no value (allowed: --%s, --no-%s)", flag.name, row->name, row->name);
        return STATUS_INVALID;
    }
    char why[REASON_BYTES];
    options_allowed(row, why, sizeof why);
    const char *value = negated ? "false" : "true";
    if (row->type != OPTION_FLAG || flag.value) value = take_value(&flag, why, argc, argv, at);
    if (!value) return STATUS_INVALID;
    enum status status = options_set(options, index, value, ORIGIN_FLAG, why, sizeof why);
    if (status != STATUS_OK) log_error("--%s: %s", row->name, why);
    return status;
}

/* RUBATO_<NAME> of an option; `variable` has room for prefix and name. */
static void variable_of(const char *name, char variable[NAME_MAX_BYTES + 8]) {
    snprintf(variable, NAME_MAX_BYTES + 8, "RUBATO_%s", name);
    for (char *at = variable; *at; at++)
        *at = (char)(*at == '-' ? '_' : toupper((unsigned char)*at));
}

/* A mistyped variable would be silent otherwise. */
static void warn_unknown_variables(const struct options *options) {
    extern char **environ;
    for (char **entry = environ; *entry != NULL; entry++) {
        bool known = strncmp(*entry, "RUBATO_", 7) != 0;
        for (size_t i = 0; i < options->count && !known; i++) {
            char variable[NAME_MAX_BYTES + 8];
            variable_of(options->table[i].name, variable);
            size_t length = strlen(variable);
            known = strncmp(*entry, variable, length) == 0 && (*entry)[length] == '=';
        }
        if (!known) {
            log_warn("%.*s is no option of ours: ignored", (int)strcspn(*entry, "="), *entry);
        }
    }
}

static enum status parse_environment(struct options *options, unsigned role) {
    warn_unknown_variables(options);
    for (size_t i = 0; i < options->count; i++) {
        char variable[NAME_MAX_BYTES + 8], why[REASON_BYTES];
        if (!(options->table[i].roles & role)) continue;
        variable_of(options->table[i].name, variable);
        const char *value = getenv(variable);
        if (!value || !value[0]) continue;
        if (options_set(options, (int)i, value, ORIGIN_ENVIRONMENT, why, sizeof why) != STATUS_OK) {
            log_error("%s (--%s): %s", variable, options->table[i].name, why);
            return STATUS_INVALID;
        }
    }
    return STATUS_OK;
}

static char *skip_blanks(char *text) {
    return text + strspn(text, " \t\r");
}

/* Undoes what options_print_config() does to a text: *next is at the opening quote and ends behind
 * the closing one, the value is written over itself. Returns the problem or NULL. */
static const char *unquote(char **next, char **value) {
    char quote = *(*next)++;
    char *from = *next, *to = *next;
    *value = to;
    while (*from && *from != quote) {
        if (quote == '"' && *from == '\\') {
            static const char codes[] = "\\\"ntr", meanings[] = "\\\"\n\t\r";
            const char *code = from[1] ? strchr(codes, from[1]) : NULL;
            if (!code) return "unknown escape in a quoted value (allowed: \\\\ \\\" \\n \\t \\r)";
            *to++ = meanings[code - codes];
            from += 2;
        } else {
            *to++ = *from++;
        }
    }
    if (!*from) return "quote without an end";
    *next = from + 1;
    *to = 0;
    return NULL;
}

/* `name = value # comment` -> parts, in place; *name NULL for a line without a setting. Returns the
 * problem or NULL. */
static const char *split_line(char *line, char **name, char **value) {
    char *next = skip_blanks(line);
    *name = NULL;
    if (*next == 0 || *next == '#') return NULL;
    char *name_start = next;
    next += strcspn(next, " \t\r=#\"'");
    char *name_end = next;
    next = skip_blanks(next);
    if (*next != '=' || name_end == name_start) return "is not of the form name = value";
    next = skip_blanks(next + 1);
    *name_end = 0;
    if (*next == '"' || *next == '\'') {
        const char *problem = unquote(&next, value);
        if (problem) return problem;
        next = skip_blanks(next);
        if (*next != 0 && *next != '#') return "has text behind the quoted value";
    } else {
        *value = next;
        char *end = next + strcspn(next, "#");
        while (end > next && strchr(" \t\r", end[-1]))
            end--;
        *end = 0;
    }
    *name = name_start;
    return NULL;
}

static enum status parse_line(struct options *options, unsigned role, const char *where,
                              char *line) {
    char *name, *value, why[REASON_BYTES];
    const char *problem = split_line(line, &name, &value);
    if (problem) {
        log_error("%s%s", where, problem);
        return STATUS_INVALID;
    }
    if (!name) return STATUS_OK;
    int index = options_find(options, name);
    if (index < 0) return refuse_unknown(options, role, where, name);
    if (!(options->table[index].roles & role)) return STATUS_OK;
    enum status status = options_set(options, index, value, ORIGIN_FILE, why, sizeof why);
    if (status != STATUS_OK) log_error("%s--%s: %s", where, name, why);
    return status;
}

enum status options_parse_config(struct options *options, unsigned role, const char *path,
                                 const char *text, size_t bytes) {
    const char *next = text, *end = text + bytes;
    for (long number = 1; next < end; number++) {
        char where[REASON_BYTES], line[CONFIG_LINE_BYTES];
        snprintf(where, sizeof where, "%s, line %ld: ", path, number);
        const char *newline = memchr(next, '\n', (size_t)(end - next));
        size_t length = (size_t)((newline ? newline : end) - next);
        if (length >= sizeof line || memchr(next, 0, length)) {
            log_error("%sis longer than %zu bytes or has a 0 byte", where, sizeof line - 1);
            return STATUS_INVALID;
        }
        memcpy(line, next, length);
        line[length] = 0;
        TRY(parse_line(options, role, where, line));
        next += length + (newline != NULL);
    }
    return STATUS_OK;
}

static enum status parse_config_file(struct options *options, unsigned role, const char *path) {
    char *text;
    size_t bytes;
    enum status status = files_read(path, CONFIG_FILE_BYTES, &text, &bytes);
    if (status != STATUS_OK) return status == STATUS_MEMORY ? status : STATUS_INVALID;
    status = options_parse_config(options, role, path, text, bytes);
    free(text);
    return status;
}

enum status options_parse_flags(struct options *options, unsigned role, int argc, char **argv,
                                const char **config_path) {
    *config_path = NULL;
    for (int i = 1; i < argc; i++)
        TRY(parse_word(options, role, argc, argv, &i, config_path));
    return STATUS_OK;
}

/* The order of the three does not matter: options_set() keeps the value of the higher origin. */
enum status options_parse(struct options *options, unsigned role, int argc, char **argv) {
    const char *config_path;
    TRY(options_parse_flags(options, role, argc, argv, &config_path));
    TRY(parse_environment(options, role));
    return config_path ? parse_config_file(options, role, config_path) : STATUS_OK;
}
