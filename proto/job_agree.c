/* Agreement on the AGREED options: the record that travels in a join, its merging by the
 * coordinator, and its adoption by the members. Values are parsed into a copy of the config first,
 * so that a record counts as a whole or not at all, and are compared as the text of what was
 * parsed, so that 1e-3 and 0.001 agree.
 */
#include "base/assert.h"
#include "base/log.h"
#include "proto/job.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define DIFF_MAX  ((size_t)4096)
#define WHY_BYTES ((size_t)512)

/* Lines into a fixed buffer; what does not fit is cut off. */
struct lines {
    char *text;
    size_t capacity;
    size_t used;
    const char *separator;
};

static void lines_add(struct lines *lines, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void lines_add(struct lines *lines, const char *format, ...) {
    char line[3 * OPTION_TEXT_MAX];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (length < 0) return;
    /* Names and values may be a stranger's: nothing that moves a terminal's cursor gets through. */
    for (char *c = line; *c != 0; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    size_t left = lines->capacity - lines->used;
    int written = snprintf(lines->text + lines->used, left, "%s%s",
                           lines->used > 0 ? lines->separator : "", line);
    if (written > 0) lines->used += (size_t)written < left ? (size_t)written : left - 1;
}

static struct lines lines_open(char *text, size_t capacity, const char *separator) {
    ASSERT_OP(capacity, >=, 1);
    text[0] = 0;
    return (struct lines){.text = text, .capacity = capacity, .separator = separator};
}

static bool is_given(const struct options *options, size_t index) {
    return options->origins[index] >= ORIGIN_FILE;
}

void job_given(const struct options *options, bool all, struct job_values *values) {
    values->count = 0;
    for (size_t i = 0; i < options->count; i++) {
        if (!options->table[i].agreed || (!all && !is_given(options, i))) continue;
        ASSERT_OP(values->count, <, JOB_AGREED_MAX);
        values->names[values->count] = options->table[i].name;
        options_text(options, (int)i, values->values[values->count], OPTION_TEXT_MAX);
        values->count++;
    }
}

/* A record, parsed: which option each value is of, and a config that holds all of them. */
struct parsed {
    struct options options; /* of `job`, with what the record says */
    struct job job;
    size_t indices[JOB_AGREED_MAX];
};

/* False, with a line for each reason, when this build cannot read the record. */
static bool parse_values(const struct options *options, const struct job_values *values,
                         struct parsed *parsed, struct lines *lines) {
    bool seen[OPTIONS_MAX] = {false};
    bool sound = true;
    ASSERT(options->table == job_table);
    ASSERT_OP(values->count, <=, JOB_AGREED_MAX);
    parsed->job = *(const struct job *)options->config;
    parsed->options = *options;
    parsed->options.config = &parsed->job;
    for (size_t i = 0; i < values->count; i++) {
        char why[WHY_BYTES];
        int index = options_find(options, values->names[i]);
        if (index < 0 || !options->table[index].agreed) {
            lines_add(lines, "%.64s: not an agreed option of this build", values->names[i]);
            sound = false;
            continue;
        }
        /* The copy's origins must not shield what is there from what the record says. */
        parsed->options.origins[index] = ORIGIN_DEFAULT;
        const char *problem = NULL;
        if (seen[index]) {
            problem = "is given twice";
        } else if (memchr(values->values[i], 0, OPTION_TEXT_MAX) == NULL) {
            problem = "is too long";
        } else if (options_set(&parsed->options, index, values->values[i], ORIGIN_JOB, why,
                               sizeof why) != STATUS_OK) {
            problem = why;
        }
        if (problem != NULL) {
            lines_add(lines, "%s: %s", options->table[index].name, problem);
            sound = false;
        }
        seen[index] = true;
        parsed->indices[i] = (size_t)index;
    }
    return sound;
}

/* Does the record say the same of option `index` as the config here? Both as text. */
static bool same_value(const struct options *options, const struct parsed *parsed, size_t index,
                       char ours[OPTION_TEXT_MAX], char theirs[OPTION_TEXT_MAX]) {
    options_text(options, (int)index, ours, OPTION_TEXT_MAX);
    options_text(&parsed->options, (int)index, theirs, OPTION_TEXT_MAX);
    return strcmp(ours, theirs) == 0;
}

/* Takes the record's values for all that nobody gave here. They have been parsed before. */
static void take_values(struct options *options, const struct job_values *values,
                        const struct parsed *parsed) {
    for (size_t i = 0; i < values->count; i++) {
        char why[WHY_BYTES];
        size_t index = parsed->indices[i];
        if (is_given(options, index)) continue;
        ASSERT(options_set(options, (int)index, values->values[i], ORIGIN_JOB, why, sizeof why) ==
               STATUS_OK);
    }
}

enum status job_agree(struct options *options, struct job_agreement *agreement,
                      const struct job_values *values, const char *peer, char *diff,
                      size_t diff_bytes) {
    struct lines lines = lines_open(diff, diff_bytes, "\n");
    struct parsed parsed;
    bool conflict = false;
    if (!parse_values(options, values, &parsed, &lines)) return STATUS_INVALID;
    for (size_t i = 0; i < values->count; i++) {
        char ours[OPTION_TEXT_MAX];
        char theirs[OPTION_TEXT_MAX];
        size_t index = parsed.indices[i];
        bool given = agreement->given[index] || is_given(options, index);
        if (!given || same_value(options, &parsed, index, ours, theirs)) continue;
        lines_add(&lines, "%s: %s (%s) is not %s (%.63s)", options->table[index].name, ours,
                  agreement->given[index] ? agreement->by[index] : "the coordinator", theirs, peer);
        conflict = true;
    }
    if (conflict) return STATUS_MISMATCH;

    take_values(options, values, &parsed);
    for (size_t i = 0; i < values->count; i++) {
        size_t index = parsed.indices[i];
        if (agreement->given[index]) continue;
        agreement->given[index] = true;
        snprintf(agreement->by[index], sizeof agreement->by[index], "%s", peer);
    }
    return STATUS_OK;
}

enum status job_adopt(struct options *options, const struct job_values *values) {
    char reasons[DIFF_MAX];
    struct lines lines = lines_open(reasons, sizeof reasons, "; ");
    struct parsed parsed;
    bool sound = parse_values(options, values, &parsed, &lines);
    for (size_t i = 0; sound && i < values->count; i++) {
        char ours[OPTION_TEXT_MAX];
        char theirs[OPTION_TEXT_MAX];
        size_t index = parsed.indices[i];
        if (!is_given(options, index) || same_value(options, &parsed, index, ours, theirs))
            continue;
        lines_add(&lines, "%s: %s (the job) is not %s (given here)", options->table[index].name,
                  theirs, ours);
    }
    if (lines.used > 0) {
        log_error("cannot take the job's options: %s", reasons);
        return STATUS_INVALID;
    }
    take_values(options, values, &parsed);
    return STATUS_OK;
}
