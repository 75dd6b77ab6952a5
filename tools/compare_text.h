/* compare_text.h - a text that grows: the report and the results are made in memory, then written.
 *
 * Set-up code: it allocates, and ends the process where there is no memory (memory_zeroed). The
 * caller owns the struct, zeroed before its first use; one thread.
 */
#ifndef RUBATO_TOOLS_COMPARE_TEXT_H
#define RUBATO_TOOLS_COMPARE_TEXT_H

#include "base/status.h"

#include <stddef.h>

struct compare_text {
    char *bytes; /* ends with a 0 byte that is not counted; NULL while empty */
    size_t used, capacity;
};

/* Appends as printf does. */
void compare_text_add(struct compare_text *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Appends with & < > and quotes as entities, control characters as spaces. */
void compare_text_escape(struct compare_text *text, const char *value);

/* Appends a JSON text in its quotes. */
void compare_text_quote(struct compare_text *text, const char *value);

/* Appends a JSON number of `digits` significant digits, null where it is not finite. */
void compare_text_number(struct compare_text *text, double value, int digits);

/* Writes it to a file that is complete or absent. IO, logged. */
enum status compare_text_write(const struct compare_text *text, const char *path) WARN_UNUSED;

void compare_text_free(struct compare_text *text);

#endif
