/* json.h - writes one JSON object into a caller's buffer; for metrics lines, headers and configs.
 *
 * Never allocates. On overflow the object is marked bad and json_end() says INVALID. A number that
 * is not finite is written as null, bytes of a text that are not UTF-8 as U+FFFD. Reading JSON is
 * not done here.
 */
#ifndef RUBATO_BASE_JSON_H
#define RUBATO_BASE_JSON_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json {
    char *text;
    size_t capacity;
    size_t bytes;
    bool bad;
    bool first; /* no comma before the next member */
};

/* Opens the outermost object in text [capacity]. */
void json_begin(struct json *json, char *text, size_t capacity);

/* Members of the object that is open. `key` NULL inside an array. `digits` are significant ones,
 * 1..17; 17 bring the same bits back. */
void json_text(struct json *json, const char *key, const char *value);
void json_int(struct json *json, const char *key, int64_t value);
void json_real(struct json *json, const char *key, double value, int digits);
void json_bool(struct json *json, const char *key, bool value);
void json_open_object(struct json *json, const char *key);
void json_close_object(struct json *json);
void json_open_array(struct json *json, const char *key);
void json_close_array(struct json *json);

/* Closes the outermost object, adds a 0 byte; `*bytes` without it. INVALID when it did not fit. */
enum status json_end(struct json *json, size_t *bytes) WARN_UNUSED;

#endif
