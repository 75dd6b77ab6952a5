#define PCRE2_CODE_UNIT_WIDTH 8
#include "worker/split.h"

#include "base/log.h"
#include "worker/utf8.h"

#include <pcre2.h>
#include <stdbool.h>
#include <string.h>

#define STACK_FIRST ((size_t)1 << 15)
#define STACK_MOST  ((size_t)1 << 24)

/* White_Space of Unicode, for the inside of a class; PCRE2's own \s has U+180E, too. */
#define S                                                                                          \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"    \
    "\\x{205f}\\x{3000}"
#define UPPER       "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define LOWER       "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TRAILING    "[" S "]+(?![^" S "])|[" S "]+"

/* As they are published. */
#define GPT2_TEXT                                                                                  \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define GPT2_FAST_TEXT                                                                             \
    "'(?:[sdmt]|ll|ve|re)| ?\\p{L}++| ?\\p{N}++| ?[^\\s\\p{L}\\p{N}]++|\\s++$|\\s+(?!\\S)|\\s"
#define CL100K_TEXT                                                                                \
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| "                         \
    "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s"
#define LLAMA3_TEXT                                                                                \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "                     \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define O200K_TEXT                                                                                 \
    "[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]*[" LOWER "]+" CONTRACTION "?|"                              \
    "[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]+[" LOWER "]*" CONTRACTION "?|"                              \
    "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct {
    const char *name, *text;
} known[] = {
    {"gpt2", GPT2_TEXT},     {"gpt2", GPT2_FAST_TEXT}, {"cl100k", CL100K_TEXT},
    {"llama3", LLAMA3_TEXT}, {"o200k", O200K_TEXT},
};

static const struct {
    const char *name, *expression;
} expressions[] = {
    {"gpt2", "'(?:[sdmt]|ll|ve|re)| ?\\p{L}++| ?\\p{N}++| ?[^" S "\\p{L}\\p{N}]++|" TRAILING},
    {"cl100k", "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+|"
               " ?[^" S "\\p{L}\\p{N}]++[\\r\\n]*+|[" S "]++\\z|[" S "]*[\\r\\n]|" TRAILING},
    {"llama3", CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
                           " ?[^" S "\\p{L}\\p{N}]+[\\r\\n]*|[" S "]*[\\r\\n]+|" TRAILING},
    {"o200k", "[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]*[" LOWER "]+" CONTRACTION "?|"
              "[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]+[" LOWER "]*" CONTRACTION "?|"
              "\\p{N}{1,3}| ?[^" S "\\p{L}\\p{N}]+[\\r\\n/]*|[" S "]*[\\r\\n]+|" TRAILING},
};

const char *split_known(const char *name_or_text) {
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(known[i].name, name_or_text) == 0 || strcmp(known[i].text, name_or_text) == 0)
            return known[i].name;
    }
    return NULL;
}

static void log_pcre2(const char *what, int code) {
    PCRE2_UCHAR text[128] = "";
    (void)pcre2_get_error_message(code, text, sizeof(text));
    log_error("%s: %s", what, (const char *)text);
}

enum status split_open(struct split *split, const char *name) {
    for (size_t i = 0; i < sizeof(expressions) / sizeof(expressions[0]); i++) {
        if (strcmp(expressions[i].name, name) != 0) continue;
        int error = 0;
        PCRE2_SIZE offset = 0;
        pcre2_code *code =
            pcre2_compile((PCRE2_SPTR)expressions[i].expression, PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_UCP, &error, &offset, NULL);
        if (code == NULL) {
            log_pcre2(name, error);
            return STATUS_MEMORY;
        }
        /* Where there is no compiler for this chip, PCRE2 interprets. */
        (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
        *split = (struct split){.name = expressions[i].name, .code = code};
        return STATUS_OK;
    }
    log_error("'%s' is no known split pattern; allowed are " SPLIT_NAMES, name);
    return STATUS_INVALID;
}

void split_close(struct split *split) {
    pcre2_code_free(split->code);
    *split = (struct split){0};
}

enum status split_cursor_open(struct split_cursor *cursor) {
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    pcre2_jit_stack *stack = pcre2_jit_stack_create(STACK_FIRST, STACK_MOST, NULL);
    *cursor = (struct split_cursor){.match = match, .context = context, .stack = stack};
    if (match == NULL || context == NULL) {
        log_error("out of memory for a tokenizer");
        split_cursor_close(cursor);
        return STATUS_MEMORY;
    }
    /* The expressions are linear in all but one step back; no limit is needed against blow-up. */
    (void)pcre2_set_match_limit(context, UINT32_MAX);
    if (stack != NULL) pcre2_jit_stack_assign(context, NULL, stack);
    return STATUS_OK;
}

void split_cursor_close(struct split_cursor *cursor) {
    pcre2_match_data_free(cursor->match);
    pcre2_match_context_free(cursor->context);
    pcre2_jit_stack_free(cursor->stack);
    *cursor = (struct split_cursor){0};
}

void split_begin(struct split_cursor *cursor, const uint8_t *text, size_t bytes) {
    cursor->text = text;
    cursor->bytes = bytes;
    cursor->at = cursor->found_start = cursor->found_end = 0;
    cursor->valid = utf8_valid(text, bytes);
}

/* The next match from `at` on, within the part that is UTF-8. */
static enum status find(const struct split *split, struct split_cursor *cursor) {
    int code = pcre2_match(split->code, cursor->text, cursor->valid, cursor->at,
                           PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, cursor->match, cursor->context);
    if (code == PCRE2_ERROR_NOMATCH) {
        cursor->found_start = cursor->found_end = cursor->valid;
        return STATUS_OK;
    }
    if (code < 0) {
        log_pcre2("cutting the text by the tokenizer's pattern", code);
        return STATUS_MEMORY;
    }
    const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(cursor->match);
    cursor->found_start = ends[0];
    cursor->found_end = ends[1];
    return STATUS_OK;
}

enum status split_next(const struct split *split, struct split_cursor *cursor,
                       const uint8_t **piece, size_t *bytes) {
    size_t end = 0;
    if (cursor->at == cursor->bytes) return STATUS_AGAIN;
    if (cursor->at == cursor->valid) {
        /* One byte that is no UTF-8; then look how far the text is good again. */
        end = cursor->at + 1;
        cursor->valid = end + utf8_valid(cursor->text + end, cursor->bytes - end);
        cursor->found_start = cursor->found_end = end;
    } else {
        if (cursor->found_end <= cursor->at) TRY(find(split, cursor));
        end = cursor->found_start > cursor->at ? cursor->found_start : cursor->found_end;
    }
    *piece = cursor->text + cursor->at;
    *bytes = end - cursor->at;
    cursor->at = end;
    return STATUS_OK;
}
