/* Values of options: text -> value with checks, and value -> text. */
#include "base/assert.h"
#include "base/options.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN_BYTES 64 /* of a wrong value in a message */

union option_value {
    bool flag;
    int64_t whole;
    double real;
};

struct word_value {
    const char *word;
    int64_t value;
};

/* The parsers return NULL, or what is wrong as the end of a sentence that starts with the value. */

static const char *parse_flag(const char *text, bool *value) {
    static const struct word_value words[] = {{"true", 1},  {"yes", 1}, {"on", 1},  {"1", 1},
                                              {"false", 0}, {"no", 0},  {"off", 0}, {"0", 0}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(text, words[i].word) == 0) {
            *value = words[i].value != 0;
            return NULL;
        }
    }
    return "is not true or false";
}

static bool suffix_factor(const char *suffix, int64_t *factor) {
    static const struct word_value suffixes[] = {
        {"", 1},         {"k", 1000},     {"m", 1000000},  {"g", 1000000000},
        {"ki", 1 << 10}, {"mi", 1 << 20}, {"gi", 1 << 30},
    };
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        if (strcmp(suffix, suffixes[i].word) == 0) {
            *factor = suffixes[i].value;
            return true;
        }
    }
    return false;
}

static const char *parse_whole(const char *text, int64_t *value) {
    int sign = *text == '-' ? -1 : 1;
    const char *digit = *text == '-' || *text == '+' ? text + 1 : text;
    size_t digits = strspn(digit, "0123456789");
    int64_t factor;
    if (digits == 0 || !suffix_factor(digit + digits, &factor)) return "is not a whole number";
    int64_t sum = 0;
    bool overflow = false;
    /* Added with its sign, so that the most negative number can be written, too. */
    for (size_t i = 0; i < digits; i++) {
        overflow |= __builtin_mul_overflow(sum, (int64_t)10, &sum);
        overflow |= __builtin_add_overflow(sum, sign * (digit[i] - '0'), &sum);
    }
    overflow |= __builtin_mul_overflow(sum, factor, &sum);
    if (overflow) return "does not fit in 64 bits";
    *value = sum;
    return NULL;
}

static const char *parse_real(const char *text, double *value) {
    /* strtod takes spaces, nan, infinity and hexadecimal as well, which are nobody's settings. */
    size_t bytes = strlen(text);
    if (bytes == 0 || strspn(text, "0123456789+-.eE") != bytes) return "is not a number";
    char *end;
    double parsed = strtod(text, &end);
    if (end != text + bytes) return "is not a number";
    if (!isfinite(parsed)) return "is too large";
    *value = parsed;
    return NULL;
}

static bool has_range(const struct option *row) {
    return row->least < row->most;
}

static const char *parse_value(const struct option *row, const char *text,
                               union option_value *value) {
    const char *problem = NULL;
    double number = 0;
    switch (row->type) {
    case OPTION_FLAG:
        return parse_flag(text, &value->flag);
    case OPTION_INT:
        problem = parse_whole(text, &value->whole);
        if (!problem) number = (double)value->whole;
        break;
    case OPTION_REAL:
        problem = parse_real(text, &value->real);
        if (!problem) number = value->real;
        break;
    case OPTION_TEXT:
        return strlen(text) < OPTION_TEXT_MAX ? NULL : "is too long";
    }
    if (problem) return problem;
    if (has_range(row) && (number < row->least || number > row->most)) return "is out of range";
    return NULL;
}

void options_allowed(const struct option *row, char *text, size_t bytes) {
    const char *space = row->unit[0] ? " " : "";
    const char *of = row->unit[0] ? " of " : "";
    switch (row->type) {
    case OPTION_FLAG:
        snprintf(text, bytes, "true, false, yes, no, on, off, 1, 0");
        return;
    case OPTION_TEXT:
        snprintf(text, bytes, "text of at most %zu bytes", OPTION_TEXT_MAX - 1);
        return;
    case OPTION_INT:
    case OPTION_REAL:
        break;
    }
    if (has_range(row)) {
        snprintf(text, bytes, "%.15g to %.15g%s%s", row->least, row->most, space, row->unit);
    } else {
        snprintf(text, bytes, "any %s%s%s",
                 row->type == OPTION_INT ? "whole number" : "finite number", of, row->unit);
    }
}

static void explain(const char *text, const char *problem, const char *allowed, char *why,
                    size_t why_bytes) {
    const char *dots = strlen(text) > SHOWN_BYTES ? "..." : "";
    snprintf(why, why_bytes, "'%.*s%s' %s (allowed: %s)", SHOWN_BYTES, text, dots, problem,
             allowed);
}

static void store(const struct option *row, const char *text, const union option_value *value,
                  void *config) {
    char *place = (char *)config + row->offset;
    size_t bytes;
    switch (row->type) {
    case OPTION_FLAG:
        memcpy(place, &value->flag, sizeof value->flag);
        return;
    case OPTION_INT:
        memcpy(place, &value->whole, sizeof value->whole);
        return;
    case OPTION_REAL:
        memcpy(place, &value->real, sizeof value->real);
        return;
    case OPTION_TEXT:
        /* All of the field is written, so that two configs of equal values are equal bytes. The
         * text may be the field's own. */
        bytes = strlen(text);
        memmove(place, text, bytes);
        memset(place + bytes, 0, OPTION_TEXT_MAX - bytes);
        return;
    }
}

enum status options_set(struct options *options, int index, const char *text,
                        enum option_origin origin, char *why, size_t why_bytes) {
    ASSERT(index >= 0 && (size_t)index < options->count);
    const struct option *row = &options->table[index];
    union option_value value;
    char allowed[256] = "";
    const char *problem = parse_value(row, text, &value);
    if (problem) {
        options_allowed(row, allowed, sizeof allowed);
        explain(text, problem, allowed, why, why_bytes);
        return STATUS_INVALID;
    }
    if (row->check && !row->check(text, allowed, sizeof allowed)) {
        explain(text, "is not accepted", allowed, why, why_bytes);
        return STATUS_INVALID;
    }
    if (origin < options->origins[index]) return STATUS_OK;
    store(row, text, &value, options->config);
    options->origins[index] = origin;
    return STATUS_OK;
}

/* 15 digits are what people wrote, 17 always come back to the same bits. */
static void real_text(double value, char *text, size_t bytes) {
    char shorter[32];
    snprintf(shorter, sizeof shorter, "%.15g", value);
    double back = strtod(shorter, NULL);
    uint64_t bits, back_bits;
    memcpy(&bits, &value, sizeof bits);
    memcpy(&back_bits, &back, sizeof back_bits);
    if (bits == back_bits) {
        snprintf(text, bytes, "%s", shorter);
    } else {
        snprintf(text, bytes, "%.17g", value);
    }
}

void options_text(const struct options *options, int index, char *text, size_t bytes) {
    ASSERT(index >= 0 && (size_t)index < options->count);
    const struct option *row = &options->table[index];
    const char *place = (const char *)options->config + row->offset;
    union option_value value;
    switch (row->type) {
    case OPTION_FLAG:
        memcpy(&value.flag, place, sizeof value.flag);
        snprintf(text, bytes, "%s", value.flag ? "true" : "false");
        return;
    case OPTION_INT:
        memcpy(&value.whole, place, sizeof value.whole);
        snprintf(text, bytes, "%" PRId64, value.whole);
        return;
    case OPTION_REAL:
        memcpy(&value.real, place, sizeof value.real);
        real_text(value.real, text, bytes);
        return;
    case OPTION_TEXT:
        snprintf(text, bytes, "%s", place);
        return;
    }
}
