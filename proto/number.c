#include "proto/number.h"

#include <string.h>

bool number_read(const char *text, size_t bytes, int64_t most, int64_t *value) {
    int64_t number = 0;
    if (bytes < 1 || bytes > 9) return false;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        number = number * 10 + (text[i] - '0');
    }
    if (number > most) return false;
    *value = number;
    return true;
}

bool number_of(const char *text, int64_t most, int64_t *value) {
    return number_read(text, strlen(text), most, value);
}
