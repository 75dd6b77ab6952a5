/* utf8.h - one character of UTF-8 at a time, checked (RFC 3629, section 4). Pure. */
#ifndef RUBATO_WORKER_UTF8_H
#define RUBATO_WORKER_UTF8_H

#include <stddef.h>
#include <stdint.h>

#define UTF8_MAX 4 /* bytes of a character */

/* Bytes of the character at text [bytes >= 1]: 1..4; 0 when there is none: cut off, overlong, a
 * surrogate, above U+10FFFF, or not UTF-8. Any thread. */
size_t utf8_length(const uint8_t *text, size_t bytes);

/* Bytes of the longest valid beginning of text [bytes]. Any thread. */
size_t utf8_valid(const uint8_t *text, size_t bytes);

/* The character of `length` bytes at text, as utf8_length() told. Any thread. */
uint32_t utf8_decode(const uint8_t *text, size_t length);

/* A code point (no surrogate, at most 0x10ffff; asserted) -> text [UTF8_MAX]; its bytes. */
size_t utf8_encode(uint32_t code, uint8_t *text);

#endif
