/* number.h - whole numbers inside the texts of options. */
#ifndef RUBATO_PROTO_NUMBER_H
#define RUBATO_PROTO_NUMBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* text [bytes] is 1 to 9 digits, without a sign, of a number <= most -> *value. Pure. */
bool number_read(const char *text, size_t bytes, int64_t most, int64_t *value);

/* The same for a whole text. Pure. */
bool number_of(const char *text, int64_t most, int64_t *value);

#endif
