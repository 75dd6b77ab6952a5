#include "worker/jsonl.h"

#include "base/log.h"
#include "worker/utf8.h"

#include <inttypes.h>
#include <string.h>

/* A cursor over one line. A problem is set once, where it is seen. */
struct line {
    const uint8_t *content;
    size_t bytes;
    size_t at;
    const char *problem; /* NULL: none yet */
    uint8_t *decoded;    /* the content again, to decode strings in place; NULL: only look */
};

struct span {
    size_t first, bytes;
};

static bool fail(struct line *line, const char *problem) {
    if (line->problem == NULL) line->problem = problem;
    return false;
}

/* The byte under the cursor, 0 at the line's end (a 0 byte itself is legal nowhere in JSON). */
static uint8_t peek(const struct line *line) {
    return line->at < line->bytes ? line->content[line->at] : 0;
}

static void skip_space(struct line *line) {
    while (peek(line) == ' ' || peek(line) == '\t' || peek(line) == '\r')
        line->at++;
}

static bool expect(struct line *line, char wanted, const char *problem) {
    skip_space(line);
    if (peek(line) != (uint8_t)wanted) return fail(line, problem);
    line->at++;
    return true;
}

/* XXXX of \uXXXX. */
static bool read_hex(struct line *line, uint32_t *code) {
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) {
        uint8_t c = peek(line);
        uint32_t digit = 0;
        if (c >= '0' && c <= '9') {
            digit = (uint32_t)c - '0';
        } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
            digit = (uint32_t)(c | 0x20) - 'a' + 10;
        } else {
            return fail(line, "\\u wants four hexadecimal digits");
        }
        value = value << 4 | digit;
        line->at++;
    }
    *code = value;
    return true;
}

static bool read_unicode_escape(struct line *line, uint32_t *code) {
    uint32_t low = 0;
    if (!read_hex(line, code)) return false;
    if (*code < 0xd800 || *code > 0xdfff) return true;
    if (*code > 0xdbff || line->bytes - line->at < 6 || line->content[line->at] != '\\' ||
        line->content[line->at + 1] != 'u')
        return fail(line, "a surrogate without its pair");
    line->at += 2;
    if (!read_hex(line, &low)) return false;
    if (low < 0xdc00 || low > 0xdfff) return fail(line, "a surrogate without its pair");
    *code = 0x10000 + ((*code - 0xd800) << 10) + (low - 0xdc00);
    return true;
}

static bool read_escape(struct line *line, uint32_t *code) {
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    uint8_t c = peek(line);
    const char *letter = c != 0 ? strchr(letters, c) : NULL;
    if (c != 'u' && letter == NULL) return fail(line, "an unknown escape");
    line->at++;
    if (c == 'u') return read_unicode_escape(line, code);
    *code = (uint8_t)meanings[letter - letters];
    return true;
}

/* The string whose opening quote is next -> its decoded bytes, in place (unless only looking). */
static bool read_string(struct line *line, struct span *span) {
    if (!expect(line, '"', "expected a string in double quotes")) return false;
    size_t to = line->at;
    span->first = to;
    for (;;) {
        uint8_t character[UTF8_MAX];
        size_t length = 0;
        if (line->at >= line->bytes) return fail(line, "a string without an end");
        const uint8_t *from = line->content + line->at;
        if (*from == '"') break;
        if (*from < 0x20) return fail(line, "a control character in a string");
        if (*from == '\\') {
            uint32_t code = 0;
            line->at++;
            if (!read_escape(line, &code)) return false;
            length = utf8_encode(code, character);
        } else {
            length = utf8_length(from, line->bytes - line->at);
            if (length == 0) return fail(line, "bytes that are not UTF-8");
            memcpy(character, from, length);
            line->at += length;
        }
        if (line->decoded != NULL) memcpy(line->decoded + to, character, length);
        to += length;
    }
    line->at++;
    span->bytes = to - span->first;
    return true;
}

static bool skip_digits(struct line *line) {
    size_t first = line->at;
    while (peek(line) >= '0' && peek(line) <= '9')
        line->at++;
    return line->at > first ? true : fail(line, "expected a digit");
}

static bool skip_number(struct line *line) {
    if (peek(line) == '-') line->at++;
    if (peek(line) < '0' || peek(line) > '9') return fail(line, "expected a value");
    if (peek(line) == '0') {
        line->at++;
    } else {
        (void)skip_digits(line);
    }
    if (peek(line) == '.') {
        line->at++;
        if (!skip_digits(line)) return false;
    }
    if ((peek(line) | 0x20) == 'e') {
        line->at++;
        if (peek(line) == '+' || peek(line) == '-') line->at++;
        return skip_digits(line);
    }
    return true;
}

static bool skip_word(struct line *line, const char *word) {
    size_t bytes = strlen(word);
    if (line->bytes - line->at < bytes || memcmp(line->content + line->at, word, bytes) != 0)
        return fail(line, "expected a value");
    line->at += bytes;
    return true;
}

/* A value that has no values inside. */
static bool skip_scalar(struct line *line) {
    struct span span;
    switch (peek(line)) {
    case '"':
        return read_string(line, &span);
    case 't':
        return skip_word(line, "true");
    case 'f':
        return skip_word(line, "false");
    case 'n':
        return skip_word(line, "null");
    default:
        return skip_number(line);
    }
}

/* "key": of the next member of an object. */
static bool skip_key(struct line *line) {
    struct span span;
    return read_string(line, &span) && expect(line, ':', "expected : after a key");
}

/* What is open in a value: the closing brackets, the last one first to come. */
struct open_brackets {
    char closing[JSONL_DEPTH_MAX];
    size_t depth;
};

/* A scalar, or an opening bracket; *inside: a value must follow. */
static bool begin_value(struct line *line, struct open_brackets *open, bool *inside) {
    skip_space(line);
    uint8_t c = peek(line);
    *inside = false;
    if (c != '{' && c != '[') return skip_scalar(line);
    if (open->depth == JSONL_DEPTH_MAX) return fail(line, "nested too deeply");
    char closing = c == '{' ? '}' : ']';
    open->closing[open->depth++] = closing;
    line->at++;
    skip_space(line);
    *inside = peek(line) != (uint8_t)closing;
    return !*inside || c == '[' || skip_key(line);
}

/* After a value: closes what ends here, or goes on to the next member. */
static bool end_value(struct line *line, struct open_brackets *open) {
    skip_space(line);
    while (open->depth > 0 && peek(line) == (uint8_t)open->closing[open->depth - 1]) {
        open->depth--;
        line->at++;
        skip_space(line);
    }
    if (open->depth == 0) return true;
    if (!expect(line, ',', "expected a comma or a closing bracket")) return false;
    return open->closing[open->depth - 1] == ']' || skip_key(line);
}

/* Any value, without recursion. */
static bool skip_value(struct line *line) {
    struct open_brackets open = {.depth = 0};
    bool inside = false;
    do {
        if (!begin_value(line, &open, &inside)) return false;
        if (!inside && !end_value(line, &open)) return false;
    } while (open.depth > 0);
    return true;
}

/* One member: true with *text set if it is "text". */
static bool read_member(struct line *line, struct span *text, bool *found) {
    struct span key = {0};
    if (!read_string(line, &key)) return false;
    bool is_text = key.bytes == 4 && memcmp(line->content + key.first, "text", 4) == 0;
    if (!expect(line, ':', "expected : after a key")) return false;
    if (!is_text) return skip_value(line);
    if (*found) return fail(line, "a second \"text\"");
    skip_space(line);
    if (peek(line) != '"') return fail(line, "\"text\" is not a string");
    *found = true;
    return read_string(line, text);
}

static bool read_object(struct line *line, struct span *text) {
    bool found = false;
    if (!expect(line, '{', "expected an object")) return false;
    skip_space(line);
    if (peek(line) == '}') return fail(line, "the object has no \"text\"");
    for (;;) {
        if (!read_member(line, text, &found)) return false;
        skip_space(line);
        if (peek(line) == '}') break;
        if (!expect(line, ',', "expected a comma or a closing bracket")) return false;
    }
    line->at++;
    skip_space(line);
    if (line->at < line->bytes) return fail(line, "something after the object");
    return found ? true : fail(line, "the object has no \"text\"");
}

void jsonl_init(struct jsonl *jsonl, uint8_t *content, uint64_t bytes, const char *path) {
    *jsonl = (struct jsonl){.bytes = bytes, .path = path};
    jsonl->content = content;
}

/* The line that starts at content [bytes >= 1]; its length, without the \n. */
static size_t line_length(const uint8_t *content, uint64_t bytes) {
    const uint8_t *end = memchr(content, '\n', (size_t)bytes);
    return end != NULL ? (size_t)(end - content) : (size_t)bytes;
}

enum status jsonl_next(struct jsonl *jsonl, uint8_t **text, uint64_t *bytes) {
    while (jsonl->at < jsonl->bytes) {
        uint8_t *content = jsonl->content + jsonl->at;
        struct line line = {.content = content, .decoded = content};
        struct span span = {0};
        line.bytes = line_length(content, jsonl->bytes - jsonl->at);
        jsonl->line++;
        jsonl->at += line.bytes < jsonl->bytes - jsonl->at ? line.bytes + 1 : line.bytes;
        skip_space(&line);
        if (line.at == line.bytes) continue;
        if (!read_object(&line, &span)) {
            log_error("%s: line %" PRIu64 ", column %zu: %s", jsonl->path, jsonl->line, line.at + 1,
                      line.problem);
            return STATUS_CORRUPT;
        }
        *text = content + span.first;
        *bytes = span.bytes;
        return STATUS_OK;
    }
    return STATUS_AGAIN;
}

bool jsonl_looks_like(const uint8_t *content, uint64_t bytes) {
    struct span span;
    if (bytes == 0 || content[0] != '{') return false;
    /* A key with escapes is not recognised, which no file that a program wrote has. */
    struct line line = {.content = content};
    line.bytes = line_length(content, bytes);
    return read_object(&line, &span);
}

enum status jsonl_join(uint8_t *content, uint64_t bytes, const char *path, uint64_t *joined) {
    struct jsonl jsonl;
    uint8_t *text = NULL;
    uint64_t length = 0, to = 0;
    enum status status = STATUS_OK;
    jsonl_init(&jsonl, content, bytes, path);
    for (bool first = true; (status = jsonl_next(&jsonl, &text, &length)) == STATUS_OK;
         first = false) {
        if (!first) content[to++] = '\n';
        memmove(content + to, text, (size_t)length);
        to += length;
    }
    if (status != STATUS_AGAIN) return status;
    *joined = to;
    return STATUS_OK;
}
