#include "tools/compare_text.h"

#include "base/assert.h"
#include "base/files.h"
#include "base/memory.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Room for `bytes` more and a 0 byte. */
static void reserve(struct compare_text *text, size_t bytes) {
    if (text->used + bytes < text->capacity) return;
    size_t capacity = 2 * (text->used + bytes) + 4096;
    char *larger = memory_zeroed(capacity, 1);
    if (text->used > 0) memcpy(larger, text->bytes, text->used);
    free(text->bytes);
    text->bytes = larger;
    text->capacity = capacity;
}

void compare_text_add(struct compare_text *text, const char *format, ...) {
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int bytes = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    ASSERT(bytes >= 0);
    reserve(text, (size_t)bytes);
    (void)vsnprintf(text->bytes + text->used, text->capacity - text->used, format, again);
    va_end(again);
    text->used += (size_t)bytes;
}

void compare_text_escape(struct compare_text *text, const char *value) {
    for (; *value != '\0'; value++) {
        unsigned char c = (unsigned char)*value;
        if (c < 0x20 || c == 0x7f) {
            compare_text_add(text, " ");
        } else if (strchr("&<>\"'", c) != NULL) {
            compare_text_add(text, "&#%u;", c);
        } else {
            compare_text_add(text, "%c", c);
        }
    }
}

void compare_text_quote(struct compare_text *text, const char *value) {
    compare_text_add(text, "\"");
    for (; *value != '\0'; value++) {
        unsigned char c = (unsigned char)*value;
        if (c < 0x20) {
            compare_text_add(text, "\\u%04x", c);
        } else {
            compare_text_add(text, c == '"' || c == '\\' ? "\\%c" : "%c", c);
        }
    }
    compare_text_add(text, "\"");
}

void compare_text_number(struct compare_text *text, double value, int digits) {
    if (isfinite(value)) {
        compare_text_add(text, "%.*g", digits, value);
    } else {
        compare_text_add(text, "null");
    }
}

enum status compare_text_write(const struct compare_text *text, const char *path) {
    struct files_writer writer;
    TRY(files_create(&writer, path));
    TRY(files_write(&writer, text->used > 0 ? text->bytes : "", text->used));
    return files_commit(&writer);
}

void compare_text_free(struct compare_text *text) {
    free(text->bytes);
    *text = (struct compare_text){0};
}
