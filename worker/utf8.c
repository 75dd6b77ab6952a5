#include "worker/utf8.h"

#include "base/assert.h"

#include <stdbool.h>
#include <string.h>

size_t utf8_length(const uint8_t *text, size_t bytes) {
    uint8_t lead = text[0];
    if (lead < 0x80) return 1;
    if (lead < 0xc2 || lead > 0xf4) return 0;
    size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (length > bytes) return 0;
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) return 0;
    }
    bool overlong = (lead == 0xe0 && text[1] < 0xa0) || (lead == 0xf0 && text[1] < 0x90);
    bool surrogate = lead == 0xed && text[1] > 0x9f;
    bool too_large = lead == 0xf4 && text[1] > 0x8f;
    return overlong || surrogate || too_large ? 0 : length;
}

size_t utf8_valid(const uint8_t *text, size_t bytes) {
    size_t at = 0;
    while (at < bytes) {
        /* Eight bytes of ASCII at once: most text is. */
        uint64_t word = 0;
        if (bytes - at >= sizeof(word)) {
            memcpy(&word, text + at, sizeof(word));
            if ((word & UINT64_C(0x8080808080808080)) == 0) {
                at += sizeof(word);
                continue;
            }
        }
        size_t length = utf8_length(text + at, bytes - at);
        if (length == 0) return at;
        at += length;
    }
    return at;
}

uint32_t utf8_decode(const uint8_t *text, size_t length) {
    static const uint8_t lead_bits[UTF8_MAX + 1] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    ASSERT(length >= 1 && length <= UTF8_MAX);
    uint32_t code = (uint32_t)(text[0] & lead_bits[length]);
    for (size_t i = 1; i < length; i++)
        code = code << 6 | (text[i] & 0x3f);
    return code;
}

size_t utf8_encode(uint32_t code, uint8_t *text) {
    ASSERT(code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff));
    if (code < 0x80) {
        text[0] = (uint8_t)code;
        return 1;
    }
    size_t length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = length - 1; i > 0; i--) {
        text[i] = (uint8_t)(0x80 | (code & 0x3f));
        code >>= 6;
    }
    text[0] = (uint8_t)(code | (length == 2 ? 0xc0 : length == 3 ? 0xe0 : 0xf0));
    return length;
}
