#include "tools/compare_arms.h"

#include "base/files.h"
#include "base/log.h"
#include "base/memory.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS_MAX = 64, FILE_MAX_BYTES = 1 << 20 };

/* Where a line is, for messages. */
struct place {
    const char *path;
    size_t line;
};

bool compare_arms_owned(const char *name) {
    static const char *const owned[] = {"seed", "run-dir", "listen", "progress", "stay"};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++) {
        if (strcmp(name, owned[i]) == 0) return true;
    }
    return false;
}

static enum status refuse(const struct place *place, const char *what) {
    log_error("--arms: line %zu of %s: %s", place->line, place->path, what);
    return STATUS_INVALID;
}

/* Cuts a line into words, in place: words [WORDS_MAX] from the second on, as a command line has
 * them. Returns the problem or NULL. */
static const char *split_words(char *text, char **words, int *count) {
    char *to = text;
    *count = 1;
    for (;;) {
        text += strspn(text, " \t\r");
        if (*text == '\0') return NULL;
        if (*count == WORDS_MAX) return "too many words";
        words[(*count)++] = to;
        while (*text != '\0' && strchr(" \t\r", *text) == NULL) {
            size_t length = strcspn(text, " \t\r'\"");
            bool quoted = length == 0;
            if (quoted) {
                const char *end = strchr(text + 1, *text);
                if (end == NULL) return "a quote without an end";
                length = (size_t)(end - text) - 1;
                text++;
            }
            memmove(to, text, length);
            to += length;
            text += length + (quoted ? 1 : 0);
        }
        text += *text != '\0' ? 1 : 0;
        *to++ = '\0';
    }
}

/* Flags that are for a program and not for a job, which the parser takes from anyone. */
static bool has_common_flag(int count, char **words, const char *config_path) {
    return config_path != NULL || options_wants(count, words, "--help") ||
           options_wants(count, words, "--print-config") ||
           options_wants(count, words, "--version");
}

/* What the line gives, over what all arms have. */
static enum status apply(const struct place *place, struct compare_arm *arm,
                         struct compare_setup *setup, const struct options *own) {
    size_t used = 0;
    for (size_t i = 0; i < job_table_count; i++) {
        char value[OPTION_TEXT_MAX], why[512];
        const char *name = job_table[i].name;
        if (own->origins[i] != ORIGIN_FLAG) continue;
        if (compare_arms_owned(name)) {
            (void)snprintf(why, sizeof why, "--%s is the comparison's, not an arm's", name);
            return refuse(place, why);
        }
        options_text(own, (int)i, value, sizeof value);
        if (options_set(&setup->options, (int)i, value, ORIGIN_FLAG, why, sizeof why) != STATUS_OK)
            return refuse(place, why);
        for (size_t axis = 0; axis < COMPARE_AXES; axis++) {
            if (strcmp(name, compare_axis_names[axis]) == 0)
                (void)snprintf(arm->axis[axis], sizeof arm->axis[axis], "%s", value);
        }
        size_t room = sizeof arm->options - used;
        int bytes = snprintf(arm->options + used, room, "%s--%s %s", used > 0 ? " " : "", name,
                             value[0] != '\0' ? value : "''");
        if (bytes < 0 || (size_t)bytes >= room) return refuse(place, "its options are too long");
        used += (size_t)bytes;
    }
    return used > 0 ? STATUS_OK : refuse(place, "an arm without an option of its own");
}

/* The job that launch would run. */
static enum status check_job(const struct place *place, const struct compare_arm *arm,
                             const struct compare_setup *setup) {
    struct job job = setup->job;
    char why[512];
    (void)snprintf(job.push, sizeof job.push, "%s", arm->axis[COMPARE_PUSH]);
    (void)snprintf(job.pull, sizeof job.pull, "%s", arm->axis[COMPARE_PULL]);
    (void)snprintf(job.mode, sizeof job.mode, "%s", arm->axis[COMPARE_MODE]);
    return job_check(&job, why, sizeof why) == STATUS_OK ? STATUS_OK : refuse(place, why);
}

static enum status take_flags(const struct place *place, char *text, struct compare_arm *arm,
                              struct compare_setup *setup) {
    char *words[WORDS_MAX + 1] = {"rubato compare --arms"};
    const char *config_path = NULL;
    int count;
    struct job job;
    struct options own;
    const char *problem = split_words(text, words, &count);
    if (problem != NULL) return refuse(place, problem);
    options_init(&own, job_table, job_table_count, &job);
    if (options_parse_flags(&own, JOB_LAUNCH, count, words, &config_path) != STATUS_OK)
        return refuse(place, "is no arm, for the reason above");
    if (has_common_flag(count, words, config_path))
        return refuse(place, "--config, --help, --print-config and --version are not for an arm");
    TRY(apply(place, arm, setup, &own));
    return check_job(place, arm, setup);
}

static enum status take_line(const struct place *place, char *line, const struct options *common,
                             const struct compare_list *lists, struct compare_arm *arm,
                             struct compare_setup *setup) {
    char *colon = strchr(line, ':');
    size_t length = colon != NULL ? (size_t)(colon - line) : 0;
    while (length > 0 && strchr(" \t", line[length - 1]) != NULL)
        length--;
    if (length == 0) return refuse(place, "is not of the form NAME: --option value ...");
    if (length >= sizeof arm->name - 16) return refuse(place, "the arm's name is too long");
    (void)snprintf(arm->label, sizeof arm->label, "%.*s", (int)length, line);
    for (size_t axis = 0; axis < COMPARE_AXES; axis++) {
        (void)snprintf(arm->axis[axis], OPTION_TEXT_MAX, "%s", lists[axis].values[0]);
    }
    setup->job = *(const struct job *)common->config;
    setup->options = *common;
    setup->options.table = job_table;
    setup->options.count = job_table_count;
    setup->options.config = &setup->job;
    TRY(take_flags(place, colon + 1, arm, setup));
    compare_grid_name(arm);
    return STATUS_OK;
}

static enum status check_name(const struct place *place, const struct compare_arm *arms,
                              size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(arms[i].label, arms[count].label) == 0)
            return refuse(place, "an arm of this name is there already");
    }
    return STATUS_OK;
}

static enum status take_text(const char *path, char *text, const struct options *common,
                             const struct compare_list *lists, struct compare_arm *arms,
                             struct compare_setup *setups, size_t *count) {
    struct place place = {path, 0};
    for (char *line = text; line != NULL;) {
        char *end = strchr(line, '\n');
        char *next = end != NULL ? end + 1 : NULL;
        if (end != NULL) *end = '\0';
        place.line++;
        line += strspn(line, " \t\r");
        if (*line != '\0' && *line != '#') {
            if (*count == COMPARE_ARMS_MAX) return refuse(&place, "too many arms");
            TRY(take_line(&place, line, common, lists, &arms[*count], &setups[*count]));
            TRY(check_name(&place, arms, *count));
            (*count)++;
        }
        line = next;
    }
    if (*count > 0) return STATUS_OK;
    log_error("--arms: %s has no arm: lines are NAME: --option value ...", path);
    return STATUS_INVALID;
}

enum status compare_arms_read(const char *path, const struct options *common,
                              const struct compare_list *lists, struct compare_arm **arms,
                              struct compare_setup **setups, size_t *count) {
    char *text = NULL;
    size_t bytes = 0, lines = 1;
    *count = 0;
    if (files_read(path, FILE_MAX_BYTES, &text, &bytes) != STATUS_OK) return STATUS_INVALID;
    for (size_t i = 0; i < bytes; i++)
        lines += text[i] == '\n';
    *arms = memory_zeroed(lines, sizeof **arms);
    *setups = memory_zeroed(lines, sizeof **setups);
    enum status status = take_text(path, text, common, lists, *arms, *setups, count);
    free(text);
    return status;
}
