#include "base/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void append(struct json *json, const char *text, size_t bytes) {
    if (json->bad || bytes > json->capacity - json->bytes) {
        json->bad = true;
        return;
    }
    memcpy(json->text + json->bytes, text, bytes);
    json->bytes += bytes;
}

/* Bytes of the UTF-8 character at text (0-terminated), 0 when it is none (RFC 3629, section 4). */
static size_t utf8_bytes(const unsigned char *text) {
    unsigned char lead = text[0];
    if (lead < 0x80) return 1;
    size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4) return 0;
    for (size_t i = 1; i < bytes; i++) {
        if ((text[i] & 0xc0) != 0x80) return 0;
    }
    bool overlong = (lead == 0xe0 && text[1] < 0xa0) || (lead == 0xf0 && text[1] < 0x90);
    bool surrogate = lead == 0xed && text[1] > 0x9f;
    bool too_large = lead == 0xf4 && text[1] > 0x8f;
    return overlong || surrogate || too_large ? 0 : bytes;
}

/* Quoted and escaped. Bytes that are not UTF-8 become U+FFFD, since readers of JSON refuse them and
 * the text of a model in training has them. */
static void append_quoted(struct json *json, const char *text) {
    append(json, "\"", 1);
    while (*text) {
        unsigned char c = (unsigned char)*text;
        size_t bytes = utf8_bytes((const unsigned char *)text);
        if (c == '"' || c == '\\') {
            char escaped[2] = {'\\', *text};
            append(json, escaped, 2);
        } else if (c < 0x20) {
            char escaped[8];
            int length = snprintf(escaped, sizeof escaped, "\\u%04x", c);
            append(json, escaped, (size_t)length);
        } else if (bytes == 0) {
            append(json, "\xef\xbf\xbd", 3);
            bytes = 1;
        } else {
            append(json, text, bytes);
        }
        text += bytes;
    }
    append(json, "\"", 1);
}

/* Comma and key. */
static void append_key(struct json *json, const char *key) {
    if (!json->first) append(json, ",", 1);
    json->first = false;
    if (!key) return;
    append_quoted(json, key);
    append(json, ":", 1);
}

void json_begin(struct json *json, char *text, size_t capacity) {
    *json = (struct json){.capacity = capacity, .first = true};
    json->text = text;
    append(json, "{", 1);
}

void json_text(struct json *json, const char *key, const char *value) {
    append_key(json, key);
    append_quoted(json, value);
}

void json_int(struct json *json, const char *key, int64_t value) {
    char number[24];
    int length = snprintf(number, sizeof number, "%" PRId64, value);
    append_key(json, key);
    append(json, number, (size_t)length);
}

void json_real(struct json *json, const char *key, double value, int digits) {
    char number[32] = "null";
    if (digits < 1) digits = 1;
    if (digits > 17) digits = 17;
    if (isfinite(value)) snprintf(number, sizeof number, "%.*g", digits, value);
    append_key(json, key);
    append(json, number, strlen(number));
}

void json_bool(struct json *json, const char *key, bool value) {
    const char *word = value ? "true" : "false";
    append_key(json, key);
    append(json, word, strlen(word));
}

static void open_level(struct json *json, const char *key, const char *bracket) {
    append_key(json, key);
    append(json, bracket, 1);
    json->first = true;
}

static void close_level(struct json *json, const char *bracket) {
    append(json, bracket, 1);
    json->first = false;
}

void json_open_object(struct json *json, const char *key) {
    open_level(json, key, "{");
}

void json_close_object(struct json *json) {
    close_level(json, "}");
}

void json_open_array(struct json *json, const char *key) {
    open_level(json, key, "[");
}

void json_close_array(struct json *json) {
    close_level(json, "]");
}

enum status json_end(struct json *json, size_t *bytes) {
    append(json, "}", 2); /* with its 0 byte */
    if (json->bad) {
        if (json->capacity > 0) json->text[0] = 0;
        return STATUS_INVALID;
    }
    *bytes = json->bytes - 1;
    return STATUS_OK;
}
