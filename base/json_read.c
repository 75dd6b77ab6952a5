#include "base/json_read.h"

#include "base/assert.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NODES_FIRST     64u
#define NUMBER_TEXT_MAX ((size_t)64)

struct parser {
    struct json_tree *tree;
    size_t bytes, at;
    uint32_t node_limit;
    char *why;
    size_t why_bytes;
};

static enum status refuse(const struct parser *parser, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static enum status refuse(const struct parser *parser, const char *format, ...) {
    char reason[192];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    snprintf(parser->why, parser->why_bytes, "%s, at byte %zu", reason, parser->at);
    return STATUS_CORRUPT;
}

/* The next byte, or -1 at the end. */
static int peek(const struct parser *parser) {
    return parser->at < parser->bytes ? (unsigned char)parser->tree->text[parser->at] : -1;
}

static void skip_blanks(struct parser *parser) {
    for (int c = peek(parser); c == ' ' || c == '\n' || c == '\r' || c == '\t'; c = peek(parser))
        parser->at++;
}

static enum status add_node(struct parser *parser, enum json_kind kind, uint32_t *index) {
    struct json_tree *tree = parser->tree;
    if (tree->count == parser->node_limit)
        return refuse(parser, "more than %" PRIu32 " values", parser->node_limit);
    if (tree->count == tree->capacity) {
        uint32_t more = tree->capacity == 0 ? NODES_FIRST : tree->capacity;
        uint32_t left = parser->node_limit - tree->capacity;
        uint32_t capacity = tree->capacity + (more < left ? more : left);
        struct json_node *nodes = realloc(tree->nodes, capacity * sizeof *nodes);
        if (nodes == NULL) {
            snprintf(parser->why, parser->why_bytes, "out of memory for %" PRIu32 " values",
                     capacity);
            return STATUS_MEMORY;
        }
        tree->nodes = nodes;
        tree->capacity = capacity;
    }
    *index = tree->count++;
    tree->nodes[*index] = (struct json_node){.kind = kind, .begin = (uint32_t)parser->at};
    return STATUS_OK;
}

/* The node and all below it are read. */
static void close_node(const struct parser *parser, uint32_t index) {
    parser->tree->nodes[index].end = (uint32_t)parser->at;
    parser->tree->nodes[index].next = parser->tree->count;
}

/* Bytes of the UTF-8 character at text [left], 0 when it is none (RFC 3629, section 4). */
static size_t utf8_bytes(const unsigned char *text, size_t left) {
    unsigned char lead = text[0];
    if (lead < 0x80) return 1;
    size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4 || bytes > left) return 0;
    for (size_t i = 1; i < bytes; i++) {
        if ((text[i] & 0xc0) != 0x80) return 0;
    }
    bool overlong = (lead == 0xe0 && text[1] < 0xa0) || (lead == 0xf0 && text[1] < 0x90);
    bool surrogate = lead == 0xed && text[1] > 0x9f;
    bool too_large = lead == 0xf4 && text[1] > 0x8f;
    return overlong || surrogate || too_large ? 0 : bytes;
}

static size_t utf8_encode(uint32_t code, char *out) {
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xc0 | (code >> 6));
        out[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xe0 | (code >> 12));
        out[1] = (char)(0x80 | ((code >> 6) & 0x3f));
        out[2] = (char)(0x80 | (code & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | (code >> 18));
    out[1] = (char)(0x80 | ((code >> 12) & 0x3f));
    out[2] = (char)(0x80 | ((code >> 6) & 0x3f));
    out[3] = (char)(0x80 | (code & 0x3f));
    return 4;
}

/* Four hexadecimal digits. */
static bool read_hex(struct parser *parser, uint32_t *code) {
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) {
        int c = peek(parser);
        if (c >= '0' && c <= '9') {
            value = value * 16 + (uint32_t)(c - '0');
        } else if (c >= 'a' && c <= 'f') {
            value = value * 16 + (uint32_t)(c - 'a' + 10);
        } else if (c >= 'A' && c <= 'F') {
            value = value * 16 + (uint32_t)(c - 'A' + 10);
        } else {
            return false;
        }
        parser->at++;
    }
    *code = value;
    return true;
}

/* What follows a \u: one character, which beyond U+FFFF is a pair of surrogates. */
static enum status read_unicode(struct parser *parser, uint32_t *code) {
    uint32_t low = 0;
    if (!read_hex(parser, code)) return refuse(parser, "\\u without four hexadecimal digits");
    if (*code == 0) return refuse(parser, "\\u0000 in a text");
    if (*code < 0xd800 || *code > 0xdfff) return STATUS_OK;
    if (*code < 0xdc00 && peek(parser) == '\\') {
        parser->at++;
        if (peek(parser) == 'u') {
            parser->at++;
            if (read_hex(parser, &low) && low >= 0xdc00 && low <= 0xdfff) {
                *code = 0x10000 + ((*code - 0xd800) << 10) + (low - 0xdc00);
                return STATUS_OK;
            }
        }
    }
    return refuse(parser, "half of a pair of surrogates");
}

/* What follows a backslash -> out, never longer than it was written. */
static enum status read_escape(struct parser *parser, char *out, size_t *out_bytes) {
    static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    int c = peek(parser);
    const char *letter = c > 0 ? strchr(letters, c) : NULL;
    if (letter != NULL) {
        parser->at++;
        *out = meant[letter - letters];
        *out_bytes = 1;
        return STATUS_OK;
    }
    if (c != 'u') return refuse(parser, "an unknown escape");
    parser->at++;
    uint32_t code = 0;
    TRY(read_unicode(parser, &code));
    *out_bytes = utf8_encode(code, out);
    return STATUS_OK;
}

/* At a quote. The decoded text and its 0 byte take the place behind the first quote. */
static enum status read_text(struct parser *parser) {
    uint32_t index = 0;
    TRY(add_node(parser, JSON_TEXT, &index));
    char *text = parser->tree->text;
    size_t out = ++parser->at, first = out;
    for (;;) {
        int c = peek(parser);
        if (c < 0) return refuse(parser, "a text without end");
        if (c == '"') break;
        if (c < 0x20) return refuse(parser, "a control character in a text");
        size_t bytes = 0;
        if (c == '\\') {
            char decoded[4];
            parser->at++;
            TRY(read_escape(parser, decoded, &bytes));
            memcpy(text + out, decoded, bytes);
        } else {
            const unsigned char *from = (const unsigned char *)text + parser->at;
            bytes = utf8_bytes(from, parser->bytes - parser->at);
            if (bytes == 0) return refuse(parser, "not UTF-8");
            memmove(text + out, from, bytes);
            parser->at += bytes;
        }
        out += bytes;
    }
    text[out] = 0;
    parser->at++;
    parser->tree->nodes[index].length = (uint32_t)(out - first);
    close_node(parser, index);
    return STATUS_OK;
}

static size_t skip_digits(struct parser *parser) {
    size_t first = parser->at;
    for (int c = peek(parser); c >= '0' && c <= '9'; c = peek(parser))
        parser->at++;
    return parser->at - first;
}

static enum status read_number(struct parser *parser) {
    uint32_t index = 0;
    TRY(add_node(parser, JSON_NUMBER, &index));
    if (peek(parser) == '-') parser->at++;
    bool zero = peek(parser) == '0';
    size_t digits = skip_digits(parser);
    bool sound = digits > 0 && !(zero && digits > 1);
    if (sound && peek(parser) == '.') {
        parser->at++;
        sound = skip_digits(parser) > 0;
    }
    if (sound && (peek(parser) == 'e' || peek(parser) == 'E')) {
        parser->at++;
        if (peek(parser) == '+' || peek(parser) == '-') parser->at++;
        sound = skip_digits(parser) > 0;
    }
    if (!sound) return refuse(parser, "no JSON number");
    close_node(parser, index);
    return STATUS_OK;
}

static enum status read_word(struct parser *parser) {
    static const struct {
        const char *word;
        enum json_kind kind;
    } words[] = {{"null", JSON_NULL}, {"false", JSON_FALSE}, {"true", JSON_TRUE}};
    const char *text = parser->tree->text + parser->at;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        size_t length = strlen(words[i].word);
        if (parser->bytes - parser->at < length || memcmp(text, words[i].word, length) != 0)
            continue;
        uint32_t index = 0;
        TRY(add_node(parser, words[i].kind, &index));
        parser->at += length;
        close_node(parser, index);
        return STATUS_OK;
    }
    return refuse(parser, "no JSON value");
}

static int compare_keys(const void *left, const void *right) {
    const char *const *a = left, *const *b = right;
    return strcmp(*a, *b);
}

static enum status check_keys(const struct parser *parser, uint32_t object) {
    const struct json_tree *tree = parser->tree;
    const struct json_node *node = &tree->nodes[object];
    if (node->length < 2) return STATUS_OK;
    const char **keys = malloc(node->length * sizeof *keys);
    if (keys == NULL) {
        snprintf(parser->why, parser->why_bytes, "out of memory for %" PRIu32 " keys",
                 node->length);
        return STATUS_MEMORY;
    }
    size_t count = 0;
    for (uint32_t key = object + 1; key < node->next; key = tree->nodes[key + 1].next)
        keys[count++] = json_read_text(tree, key);
    qsort(keys, count, sizeof *keys, compare_keys);
    enum status status = STATUS_OK;
    for (size_t i = 1; i < count && status == STATUS_OK; i++) {
        if (strcmp(keys[i - 1], keys[i]) == 0)
            status = refuse(parser, "the key \"%.80s\" twice in the object that ends", keys[i]);
    }
    free(keys);
    return status;
}

static enum status read_value(struct parser *parser, int depth);

/* At the bracket that opens an array or an object. */
// NOLINTNEXTLINE(misc-no-recursion): JSON_DEPTH_MAX bounds it
static enum status read_container(struct parser *parser, enum json_kind kind, int depth) {
    uint32_t index = 0;
    int end = kind == JSON_ARRAY ? ']' : '}';
    if (depth == JSON_DEPTH_MAX) return refuse(parser, "nested too deep");
    TRY(add_node(parser, kind, &index));
    parser->at++;
    skip_blanks(parser);
    while (peek(parser) != end) {
        if (parser->tree->nodes[index].length > 0) {
            if (peek(parser) != ',') return refuse(parser, "no comma between two values");
            parser->at++;
            skip_blanks(parser);
        }
        if (kind == JSON_OBJECT) {
            if (peek(parser) != '"') return refuse(parser, "no key");
            TRY(read_text(parser));
            skip_blanks(parser);
            if (peek(parser) != ':') return refuse(parser, "no colon behind a key");
            parser->at++;
            skip_blanks(parser);
        }
        TRY(read_value(parser, depth + 1));
        skip_blanks(parser);
        parser->tree->nodes[index].length++;
    }
    parser->at++;
    close_node(parser, index);
    return kind == JSON_OBJECT ? check_keys(parser, index) : STATUS_OK;
}

// NOLINTNEXTLINE(misc-no-recursion): JSON_DEPTH_MAX bounds it
static enum status read_value(struct parser *parser, int depth) {
    int c = peek(parser);
    if (c == '{') return read_container(parser, JSON_OBJECT, depth);
    if (c == '[') return read_container(parser, JSON_ARRAY, depth);
    if (c == '"') return read_text(parser);
    if (c == '-' || (c >= '0' && c <= '9')) return read_number(parser);
    return read_word(parser);
}

// NOLINTNEXTLINE(readability-non-const-parameter): texts are decoded in it
enum status json_read_parse(struct json_tree *tree, char *text, size_t bytes, uint32_t node_limit,
                            char *why, size_t why_bytes) {
    ASSERT_OP(node_limit, >=, 1);
    struct json_tree made = {.text = text};
    struct parser parser = {.tree = &made,
                            .bytes = bytes,
                            .node_limit = node_limit,
                            .why = why,
                            .why_bytes = why_bytes};
    if (bytes > JSON_BYTES_MAX) {
        snprintf(why, why_bytes, "longer than %zu bytes", JSON_BYTES_MAX);
        return STATUS_CORRUPT;
    }
    skip_blanks(&parser);
    enum status status = read_value(&parser, 0);
    if (status == STATUS_OK) {
        skip_blanks(&parser);
        if (parser.at < bytes) status = refuse(&parser, "something behind the JSON value");
    }
    if (status != STATUS_OK) {
        json_read_free(&made);
        return status;
    }
    *tree = made;
    return STATUS_OK;
}

void json_read_free(struct json_tree *tree) {
    free(tree->nodes);
    *tree = (struct json_tree){0};
}

uint32_t json_read_member(const struct json_tree *tree, uint32_t object, const char *key) {
    const struct json_node *nodes = tree->nodes;
    if (nodes[object].kind != JSON_OBJECT) return JSON_NONE;
    for (uint32_t at = object + 1; at < nodes[object].next; at = nodes[at + 1].next) {
        if (strcmp(json_read_text(tree, at), key) == 0) return at + 1;
    }
    return JSON_NONE;
}

const char *json_read_text(const struct json_tree *tree, uint32_t node) {
    ASSERT_OP(tree->nodes[node].kind, ==, JSON_TEXT);
    return tree->text + tree->nodes[node].begin + 1;
}

bool json_read_int(const struct json_tree *tree, uint32_t node, int64_t *value) {
    const struct json_node *number = &tree->nodes[node];
    if (number->kind != JSON_NUMBER) return false;
    const char *digit = tree->text + number->begin, *end = tree->text + number->end;
    bool negative = *digit == '-';
    uint64_t size = 0, most = (uint64_t)INT64_MAX + negative;
    for (digit += negative; digit < end; digit++) {
        if (*digit < '0' || *digit > '9') return false;
        uint64_t units = (uint64_t)(*digit - '0');
        if (size > (most - units) / 10) return false;
        size = size * 10 + units;
    }
    *value = negative ? (int64_t)(0 - size) : (int64_t)size;
    return true;
}

bool json_read_real(const struct json_tree *tree, uint32_t node, double *value) {
    const struct json_node *number = &tree->nodes[node];
    char text[NUMBER_TEXT_MAX];
    size_t bytes = number->end - number->begin;
    if (number->kind != JSON_NUMBER || bytes >= sizeof text) return false;
    memcpy(text, tree->text + number->begin, bytes);
    text[bytes] = 0;
    double read = strtod(text, NULL);
    if (!isfinite(read)) return false;
    *value = read;
    return true;
}
